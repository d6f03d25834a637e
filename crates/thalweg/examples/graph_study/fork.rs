//! Two networks side by side on two streams, in one graph; and the report if the join is forgotten.

use thalweg::graph::{ObstacleKind, audit};
use thalweg::{CaptureOptions, Graph, Result, Stream, Tensor};

use super::report::{Figure, Row, Section};
use super::setting::{Setting, bits, static_input};

/// The width of the audit's text.
const WIDTH: usize = 78;

/// Runs one network on the current stream, the other on `side`, ordered by an event, and returns both results.
fn fork(setting: &Setting, side: &Stream, tokens: &Tensor) -> Result<[Tensor; 2]> {
    let [first, second] = &setting.networks;
    setting.device.current_stream().record_event()?.wait(side)?;
    let aside = {
        let _current = side.make_current();
        second.forward(tokens)?
    };
    Ok([first.forward(tokens)?, aside])
}

/// Runs the fork, its join by another event, and the sum of both results on the current stream.
fn fork_and_join(setting: &Setting, side: &Stream, tokens: &Tensor) -> Result<Tensor> {
    let main = setting.device.current_stream();
    let [here, aside] = fork(setting, side, tokens)?;
    side.record_event()?.wait(&main)?;
    let sum = here.add(&aside)?;
    aside.record_use(&main);
    Ok(sum)
}

/// Submits the work on one stream.
fn in_turn(setting: &Setting, tokens: &Tensor) -> Result<Tensor> {
    let [first, second] = &setting.networks;
    first.forward(tokens)?.add(&second.forward(tokens)?)
}

pub fn study(setting: &Setting) -> Result<Section> {
    let Setting { device, rounds, inputs, .. } = setting;
    let mut section = Section::new(
        "Two streams: fork and join",
        "One network runs on the region's stream, another on a side stream; the fork and the join are events. The graph's replays are \
         compared with the same work done eagerly on one stream. Then the join is left out.",
    );
    let expected: Vec<Vec<u32>> =
        inputs.iter().map(|tokens| bits(&in_turn(setting, tokens)?)).collect::<Result<_>>()?;
    let side = Stream::new(device)?;
    let input = static_input(device)?;
    let options = CaptureOptions::default;
    let (graph, output) = Graph::capture(device, options(), || fork_and_join(setting, &side, &input))?;
    let mut identical = 0;
    for round in 0..*rounds {
        let number = round % inputs.len();
        input.copy_(&inputs[number])?;
        graph.replay()?;
        identical += u64::from(bits(&output)? == expected[number]);
    }
    let description = graph.description()?;
    let joins = (0..description.nodes.len())
        .filter(|&node| description.edges.iter().filter(|edge| edge.1 == node).count() > 1)
        .count();
    let roots = (0..description.nodes.len())
        .filter(|&node| description.edges.iter().all(|edge| edge.1 != node))
        .count();
    let count = |name: &str, value: u64| [Figure::count(format!("fork_{name}"), value)];
    section.table(
        "The graph of both streams",
        &["what", "count"],
        vec![
            Row::new("replays", count("replays", *rounds as u64)),
            Row::new("bit-identical to one stream, eager", count("identical", identical)),
            Row::new("nodes", count("nodes", description.nodes.len() as u64)),
            Row::new("edges", count("edges", description.edges.len() as u64)),
            Row::new("nodes that nothing comes before", count("roots", roots as u64)),
            Row::new("nodes behind more than one other", count("joins", joins as u64)),
        ],
    );
    section.check(
        identical == *rounds as u64,
        format!("{identical} of {rounds} replays gave the bits of one stream"),
    );
    section.check(roots > 1 && joins > 0, "the graph has two branches and joins them");
    forget_the_join(setting, &side, &input, &mut section)?;
    Ok(section)
}

fn forget_the_join(setting: &Setting, side: &Stream, input: &Tensor, section: &mut Section) -> Result<()> {
    let device = &setting.device;
    let forgotten = || fork(setting, side, input);
    let found = audit(device, CaptureOptions::default(), forgotten)?;
    let kinds: Vec<ObstacleKind> = found.obstacles().iter().map(|obstacle| obstacle.kind()).collect();
    section.check(
        kinds == [ObstacleKind::UnjoinedFork],
        "without the join the audit names one obstacle: the unjoined fork",
    );
    let refused = Graph::capture(device, CaptureOptions::default(), forgotten).err();
    section.check(
        refused.as_ref().is_some_and(|error| error.is_capture()),
        "a capture without the join is refused",
    );
    let again = Graph::capture(device, CaptureOptions::default(), || fork_and_join(setting, side, input));
    section.check(again.is_ok(), "the same streams capture again afterwards");
    let error = refused.map(|error| error.to_string()).unwrap_or_default();
    section.quotation = Some(format!("{found:WIDTH$}\nGraph::capture answers:\n{}", wrap(&error)));
    Ok(())
}

/// Breaks a text into lines.
fn wrap(text: &str) -> String {
    super::terminal::wrapped(text, WIDTH).join("\n")
}
