//! A smoke test: a region is captured once, and every replay has eager's bits for the current content of its input.

use thalweg::progress::Progress;
use thalweg::{CaptureOptions, Graph, Result};

use super::report::{Figure, Row, Section};
use super::setting::{Setting, bits, static_input};

pub fn study(setting: &Setting) -> Result<Section> {
    let network = setting.network();
    let mut section = Section::new(
        "One stage, captured once",
        "The region is captured once. Before each replay its input is rewritten in place with another one; after it the output, \
         read in place, is compared with the eager result of the region for the same input, bit by bit.",
    );
    let expected = setting.expected(network)?;
    let input = static_input(&setting.device)?;
    let (graph, output) =
        Graph::capture(&setting.device, CaptureOptions::default(), || network.forward(&input))?;
    let mut identical = 0;
    let mut progress = Progress::transient("replays", setting.rounds as u64);
    for round in 0..setting.rounds {
        let number = round % setting.inputs.len();
        input.copy_(&setting.inputs[number])?;
        graph.replay()?;
        identical += u64::from(bits(&output)? == expected[number]);
        progress.advance(round as u64 + 1);
    }
    let description = graph.description()?;
    let count = |name: &str, value: usize| Figure::count(format!("smoke_{name}"), value as u64);
    section.table(
        "Replays, and the graph that was replayed",
        &["what", "count"],
        vec![
            Row::new("replays", [count("replays", setting.rounds)]),
            Row::new("bit-identical to eager", [Figure::count("smoke_identical", identical)]),
            Row::new("values compared each time", [count("values", output.elements())]),
            Row::new("nodes of the graph", [count("nodes", description.nodes.len())]),
            Row::new("edges of the graph", [count("edges", description.edges.len())]),
            Row::new("inputs that it relies on", [count("inputs", graph.contract().inputs().len())]),
        ],
    );
    section.check(
        identical == setting.rounds as u64,
        format!("{identical} of {} replays gave eager's bits", setting.rounds),
    );
    section.check(
        expected.windows(2).all(|pair| pair[0] != pair[1]),
        "different inputs have different outputs, so a replay that ignored its input would be seen",
    );
    Ok(section)
}
