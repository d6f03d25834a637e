//! A graph as text for Graphviz.

use std::fmt::Write as _;

use thalweg_device::GraphDescription;

/// The description in the DOT language: a box a node, with what it does and who submitted it.
pub(super) fn write(description: &GraphDescription) -> String {
    let mut text = "digraph captured {\n  node [shape=box, fontname=monospace];\n".to_owned();
    for (index, node) in description.nodes.iter().enumerate() {
        let mut label = format!("{index}: {:?}", node.kind);
        if let Some(submitted) = node.label {
            label.push_str(&format!("\n{submitted}"));
        }
        append(&mut text, format_args!("  n{index} [label={label:?}];\n"));
    }
    for (before, after) in &description.edges {
        append(&mut text, format_args!("  n{before} -> n{after};\n"));
    }
    text.push_str("}\n");
    text
}

fn append(text: &mut String, line: std::fmt::Arguments<'_>) {
    let written = text.write_fmt(line);
    debug_assert!(written.is_ok(), "writing to a string does not fail");
}
