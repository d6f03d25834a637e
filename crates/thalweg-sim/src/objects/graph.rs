//! Graphs and their nodes.
//!
//! Invariant: a node's predecessors have smaller numbers than the node.

use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_driver::{Code, GraphNodeHandle, GraphNodeKind};

use crate::conditional::{BodyOf, Branch, Conditions, Round};
use crate::executor::command::{Body, Frontier, Origin, Planned};
use crate::executor::plug::Reached;
use crate::executor::task::{Task, Work};
use crate::objects::stream::EventNode;
use crate::refusal::{CallResult, Refusal};
use crate::schedules::Actor;

/// The number of bits of a node's number in its handle. The graph's number is above it.
pub(crate) const NODE_BITS: u32 = 24;

pub(crate) const GRAPH_BITS: u32 = 24;

/// A graph.
pub(crate) struct Graph {
    /// The serial number, unique among the graphs of the driver.
    pub(crate) serial: u64,
    pub(crate) nodes: Vec<Node>,
    /// Whether the graph's capture is over.
    pub(crate) is_complete: bool,
    /// The conditional node that the graph is a body of, if any.
    pub(crate) body_of: Option<BodyOf>,
    /// All bodies within the graph, if it is a root.
    pub(crate) bodies: Vec<u64>,
    pub(crate) conditions: Vec<u64>,
    /// Whether the capture of a body failed, if the graph is a root.
    pub(crate) is_broken: bool,
}

/// A node.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) kind: GraphNodeKind,
    pub(crate) level: u8,
    pub(crate) task: Option<Arc<Task>>,
    pub(crate) branch: Option<Arc<Branch>>,
    pub(crate) event: Option<EventNode>,
    pub(crate) predecessors: SmallVec<[u32; 2]>,
}

/// A graph that can be launched.
pub(crate) struct Executable {
    /// The handle of the graph that the executable was instantiated from. Its nodes have the executable's handles and numbers.
    pub(crate) template: u64,
    pub(crate) nodes: Arc<[Node]>,
    /// The nodes without successors.
    pub(crate) sinks: SmallVec<[u32; 2]>,
    pub(crate) last_launch: Frontier,
    pub(crate) conditions: Arc<Conditions>,
    /// The graph whose memory the executable holds, if that graph allocates memory.
    pub(crate) memory: Option<u64>,
}

impl Node {
    /// Creates a node without work and dependencies.
    pub(crate) fn new(kind: GraphNodeKind) -> Self {
        Self { kind, level: 0, task: None, branch: None, event: None, predecessors: SmallVec::new() }
    }

    /// Returns whether a body of a conditional node may contain the node.
    pub(crate) fn can_be_in_a_body(&self) -> bool {
        use GraphNodeKind::{Conditional, Copy, Empty, Fill, Kernel, Library};
        let is_gated = self.task.as_ref().is_some_and(|task| matches!(task.work, Work::Gated(_)));
        !is_gated && matches!(self.kind, Conditional | Copy | Empty | Fill | Kernel | Library)
    }
}

impl Graph {
    pub(crate) fn new(serial: u64) -> Self {
        Self {
            serial,
            nodes: Vec::new(),
            is_complete: false,
            body_of: None,
            bodies: Vec::new(),
            conditions: Vec::new(),
            is_broken: false,
        }
    }

    /// Creates a body, which is empty until it is captured.
    pub(crate) fn body(serial: u64, body_of: BodyOf) -> Self {
        Self { is_complete: true, body_of: Some(body_of), ..Self::new(serial) }
    }

    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// Adds a node and returns its number.
    pub(crate) fn push(&mut self, node: Node) -> CallResult<u32> {
        if self.nodes.len() >> NODE_BITS != 0 {
            let detail = format!("a graph of the simulator has at most {} nodes", 1 << NODE_BITS);
            return Err(Refusal::new(Code::NotSupported, detail));
        }
        let index = self.nodes.len() as u32;
        debug_assert!(node.predecessors.iter().all(|&predecessor| predecessor < index));
        self.nodes.push(node);
        Ok(index)
    }

    /// Returns, for each node of the graph, whether it is one of these nodes or precedes one of them.
    pub(crate) fn ancestors(&self, nodes: &[u32]) -> Vec<bool> {
        let mut found = vec![false; self.nodes.len()];
        for &node in nodes {
            found[node as usize] = true;
        }
        for index in (0..self.nodes.len()).rev() {
            if found[index] {
                for &predecessor in &self.nodes[index].predecessors {
                    found[predecessor as usize] = true;
                }
            }
        }
        found
    }

    /// Returns the handle of a node: the number of its graph and its own, with a bit that distinguishes it from other
    /// handles.
    pub(crate) fn handle(&self, index: u32) -> GraphNodeHandle {
        let graph = self.serial & ((1 << GRAPH_BITS) - 1);
        GraphNodeHandle::from_raw(1 << 63 | graph << NODE_BITS | u64::from(index))
    }

    /// Returns the number of a node of this graph.
    pub(crate) fn index(&self, handle: GraphNodeHandle) -> Option<u32> {
        let index = (handle.raw() & ((1 << NODE_BITS) - 1)) as u32;
        ((index as usize) < self.nodes.len() && self.handle(index) == handle).then_some(index)
    }
}

/// Returns the nodes of a graph as commands of a launch on the stream with this number.
pub(crate) fn planned(nodes: &[Node], first_number: u32, stream: u32) -> impl Iterator<Item = Planned<'_>> {
    nodes.iter().zip(first_number..).map(move |(node, number)| {
        let body = if let Some(task) = &node.task {
            Body::Task(Arc::clone(task))
        } else if let Some(branch) = &node.branch {
            Body::Step(Box::new(Round::first(branch, stream)), None)
        } else {
            Body::Mark(node.event.as_ref().map(|event| Arc::new(event.launched()) as Arc<dyn Reached>))
        };
        let origin = Origin { level: node.level, actor: Actor::Node { stream, node: number } };
        Planned { body, origin, predecessors: &node.predecessors }
    })
}

pub(crate) fn sinks(nodes: &[Node]) -> SmallVec<[u32; 2]> {
    let mut has_successor = vec![false; nodes.len()];
    for &predecessor in nodes.iter().flat_map(|node| &node.predecessors) {
        has_successor[predecessor as usize] = true;
    }
    (0..nodes.len() as u32).filter(|&index| !has_successor[index as usize]).collect()
}
