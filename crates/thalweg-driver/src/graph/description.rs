//! A graph as data, and as a drawing.
//!
//! A [`GraphDescription`] contains all that a driver knows about a graph, as plain values: two graphs can be compared,
//! counted and printed without the driver. Nodes are numbered in the order of the list, and edges are pairs of these
//! numbers.
//!
//! [`GraphDescription::to_dot`] writes it in Graphviz format. Handles and addresses are left out, so the same program
//! results in the same text.

use std::fmt::{self, Write as _};

use crate::GraphNodeHandle;
use crate::command::Label;
use crate::conditional::Conditional;

/// The kind of a node of a graph.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum GraphNodeKind {
    /// A kernel, or library work that the library submitted as a kernel.
    Kernel,
    /// Library work of the simulator.
    Library,
    /// A copy.
    Copy,
    /// A fill.
    Fill,
    /// A host function.
    Host,
    /// A node without work, which only has dependencies.
    Empty,
    /// A wait for an event from outside the graph.
    WaitEvent,
    /// The record of an event that work outside the graph waits for.
    RecordEvent,
    /// A stream-ordered allocation.
    Allocate,
    /// A stream-ordered free.
    Free,
    /// A conditional node, with its bodies.
    Conditional,
    /// A kind that this version has no name for.
    Other,
}

/// A graph as data.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GraphDescription {
    /// The nodes, in an order in which they may run if the driver knows one.
    pub nodes: Vec<GraphNode>,
    /// The edges: the second node runs after the first. Indices into `nodes`.
    pub edges: Vec<(usize, usize)>,
}

/// One node as data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GraphNode {
    /// The node's handle.
    pub handle: GraphNodeHandle,
    /// The kind of the work.
    pub kind: GraphNodeKind,
    /// The operator and the source line that submitted the node's command, if the driver has them.
    pub label: Option<Label>,
    /// The amount of work.
    pub work: GraphNodeWork,
}

/// The amount of a node's work, as far as the driver knows it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum GraphNodeWork {
    /// Work that the driver has no description of.
    #[default]
    Unknown,
    /// A kernel is launched.
    Kernel {
        /// The kernel's name in its module; for library work in the simulator, the operator that submitted it.
        name: Option<String>,
        /// Blocks in x, y, z.
        grid: [u32; 3],
        /// Threads per block in x, y, z.
        block: [u32; 3],
        /// Dynamic shared memory per block, in bytes.
        shared_memory_bytes: u32,
    },
    /// Bytes are copied.
    Copy {
        /// The number of bytes.
        bytes: u64,
    },
    /// Bytes are written.
    Fill {
        /// The number of bytes.
        bytes: u64,
    },
    /// Other graphs run, possibly not at all or several times.
    Conditional {
        /// The control flow.
        conditional: Conditional,
        /// The bodies.
        bodies: Vec<GraphDescription>,
    },
}

impl fmt::Display for GraphNodeWork {
    /// Writes the node in a few words; writes nothing if nothing is known.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sides = |sides: &[u32; 3]| format!("{}×{}×{}", sides[0], sides[1], sides[2]);
        match self {
            Self::Unknown => Ok(()),
            Self::Kernel { name, grid, block, shared_memory_bytes } => {
                let name = name.as_deref().unwrap_or("a kernel without a name");
                write!(f, "{name}, {} blocks of {} threads", sides(grid), sides(block))?;
                match shared_memory_bytes {
                    0 => Ok(()),
                    bytes => write!(f, ", {bytes} bytes of shared memory"),
                }
            }
            Self::Copy { bytes } | Self::Fill { bytes } => write!(f, "{bytes} bytes"),
            Self::Conditional { conditional, .. } => write!(f, "{conditional}"),
        }
    }
}

impl GraphDescription {
    /// Returns the graph in Graphviz format: each node's work, its size, and the operator that submitted it. The bodies of
    /// conditional nodes are frames next to their nodes.
    pub fn to_dot(&self) -> String {
        let mut text =
            String::from("digraph graph_of_commands {\n    node [shape=box fontname=monospace];\n");
        self.draw(&mut text, "n", 1);
        text.push_str("}\n");
        text
    }

    /// Draws nodes and edges; `prefix` begins the names of the nodes.
    fn draw(&self, text: &mut String, prefix: &str, depth: usize) {
        let indent = "    ".repeat(depth);
        for (index, node) in self.nodes.iter().enumerate() {
            let mut lines = vec![format!("{index}: {:?}", node.kind)];
            lines.extend(Some(node.work.to_string()).filter(|line| !line.is_empty()));
            lines.extend(node.label.map(|label| label.to_string()));
            let _ = writeln!(text, "{indent}{prefix}{index} [label={}];", quoted(&lines));
            let GraphNodeWork::Conditional { conditional, bodies } = &node.work else { continue };
            for (number, body) in bodies.iter().enumerate() {
                let (name, inside) = (conditional.body_name(number), format!("{prefix}{index}_{number}_"));
                let _ = writeln!(text, "{indent}subgraph cluster_{inside} {{");
                let _ = writeln!(text, "{indent}    label=\"{name} of {index}\";");
                body.draw(text, &inside, depth + 1);
                let _ = writeln!(text, "{indent}}}");
                if !body.nodes.is_empty() {
                    let _ = writeln!(
                        text,
                        "{indent}{prefix}{index} -> {inside}0 [label=\"{name}\" style=dashed];"
                    );
                }
            }
        }
        for (from, to) in &self.edges {
            let _ = writeln!(text, "{indent}{prefix}{from} -> {prefix}{to};");
        }
    }
}

/// Returns lines as one quoted Graphviz string, with each line aligned left.
fn quoted(lines: &[String]) -> String {
    let mut text = String::from("\"");
    for character in lines.iter().flat_map(|line| line.chars().chain(['\n'])) {
        match character {
            '"' | '\\' => text.extend(['\\', character]),
            // A line break that aligns the text before it left.
            '\n' => text.push_str("\\l"),
            character if character.is_control() => text.push(char::REPLACEMENT_CHARACTER),
            character => text.push(character),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(kind: GraphNodeKind, work: GraphNodeWork) -> GraphNode {
        GraphNode { handle: GraphNodeHandle::from_raw(0xabc), kind, label: None, work }
    }

    #[test]
    fn a_drawing_names_nodes_and_edges_and_no_handles() {
        let kernel = GraphNodeWork::Kernel {
            name: Some("add".into()),
            grid: [4, 1, 1],
            block: [128, 2, 1],
            shared_memory_bytes: 64,
        };
        let nodes = vec![
            node(GraphNodeKind::Kernel, kernel),
            node(GraphNodeKind::Copy, GraphNodeWork::Copy { bytes: 32 }),
            node(GraphNodeKind::Host, GraphNodeWork::Unknown),
        ];
        let graph = GraphDescription { nodes, edges: vec![(0, 1), (1, 2)] };
        assert_eq!(
            graph.to_dot(),
            r#"digraph graph_of_commands {
    node [shape=box fontname=monospace];
    n0 [label="0: Kernel\ladd, 4×1×1 blocks of 128×2×1 threads, 64 bytes of shared memory\l"];
    n1 [label="1: Copy\l32 bytes\l"];
    n2 [label="2: Host\l"];
    n0 -> n1;
    n1 -> n2;
}
"#
        );
    }

    #[test]
    fn bodies_are_drawn_in_frames() {
        let body = GraphDescription {
            nodes: vec![node(GraphNodeKind::Fill, GraphNodeWork::Fill { bytes: 4 })],
            edges: Vec::new(),
        };
        let bodies = vec![body, GraphDescription::default()];
        let work = GraphNodeWork::Conditional { conditional: Conditional::IfElse, bodies };
        let nodes =
            vec![node(GraphNodeKind::Conditional, work), node(GraphNodeKind::Host, GraphNodeWork::Unknown)];
        let graph = GraphDescription { nodes, edges: vec![(0, 1)] };
        assert_eq!(
            graph.to_dot(),
            r#"digraph graph_of_commands {
    node [shape=box fontname=monospace];
    n0 [label="0: Conditional\lif and else\l"];
    subgraph cluster_n0_0_ {
        label="then of 0";
        n0_0_0 [label="0: Fill\l4 bytes\l"];
    }
    n0 -> n0_0_0 [label="then" style=dashed];
    subgraph cluster_n0_1_ {
        label="else of 0";
    }
    n1 [label="1: Host\l"];
    n0 -> n1;
}
"#
        );
    }

    #[test]
    fn names_cannot_end_their_strings() {
        let name = Some("a\"];\\\n\u{7}}".to_owned());
        let work = GraphNodeWork::Kernel { name, grid: [1; 3], block: [1; 3], shared_memory_bytes: 0 };
        let graph = GraphDescription { nodes: vec![node(GraphNodeKind::Kernel, work)], edges: Vec::new() };
        let expected = r#"n0 [label="0: Kernel\la\"];\\\l�}, 1×1×1 blocks of 1×1×1 threads\l"];"#;
        assert!(graph.to_dot().contains(expected), "{}", graph.to_dot());
    }
}
