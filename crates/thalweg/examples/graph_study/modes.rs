//! Five ways of running a step, with parameters that change or stay the same.

use thalweg::graph::UpdateCounts;
use thalweg::progress::Progress;
use thalweg::{CaptureOptions, Device, Graph, GraphPool, Result, Stream, Tensor};

use super::report::{Chart, Figure, Row, Section, Unit};
use super::setting::{Network, Setting, bits};
use super::timing::Times;

/// The factor of the scores: a number on the host, and therefore a parameter of one kernel.
const FACTORS: [f64; 3] = [1.0, 0.5, 2.0];

/// The number of untimed steps of each way, which compile kernels and fill caches.
const WARM_UP: usize = 2;

/// The region with the parameters of one round.
struct Step<'a> {
    setting: &'a Setting,
    network: usize,
    factor: usize,
}

impl Step<'_> {
    fn run(&self) -> Result<Tensor> {
        let network: &Network = &self.setting.networks[self.network];
        network.forward(&self.setting.inputs[0])?.mul_scalar(FACTORS[self.factor])
    }
}

/// A way of running steps, with its times.
struct Way {
    name: &'static str,
    key: &'static str,
    times: Times,
    /// The number of timed steps whose outputs have the same bits as eager ones.
    identical: usize,
    updates: Option<UpdateCounts>,
}

/// The parameters that change from round to round.
#[derive(Clone, Copy)]
enum Changes {
    Nothing,
    Factor,
    Network,
}

pub fn study(setting: &Setting) -> Result<Section> {
    let ways = [
        run(setting, "eager", "eager", Changes::Factor, eager)?,
        run(setting, "captured", "captured", Changes::Nothing, captured)?,
        run(setting, "updated, one kernel", "updated_kernel", Changes::Factor, updated)?,
        run(setting, "updated, all kernels", "updated_whole", Changes::Network, updated)?,
        run(setting, "captured anew", "anew", Changes::Factor, anew)?,
    ];
    let mut section = Section::new(
        "Eager, captured, updated",
        "A step is the region and a multiplication by a number of the host's. Captured, it is replayed as it is. Updated, it is \
         captured again each round with another number (one kernel differs) or with another network's parameters (all kernels \
         differ), and the executable graph becomes that capture in place. Captured anew, it is instantiated each round. Host: until \
         the host is free again; end: until the device has done the step.",
    );
    section.table(
        "Microseconds per step; speedup: of the host's p50, over eager",
        &["way", "host p50", "host p95", "end p50", "end p95", "speedup"],
        rows(&ways),
    );
    let updates = ways.iter().filter_map(|way| Some(update_row(way, way.updates?))).collect();
    section.table(
        "What the updates came to: see thalweg::graph::Update",
        &["way", "unchanged", "kernels", "whole", "instantiated"],
        updates,
    );
    for way in &ways {
        let Way { name, identical, .. } = way;
        section.check(
            *identical == setting.rounds,
            format!("{name}: {identical} of {} steps gave eager's bits", setting.rounds),
        );
        if let Some(updates) = way.updates {
            section.check(updates.instantiated == 0, format!("{name}: no update needed a new executable"));
        }
    }
    let bars = |spread: fn(&Times) -> _| {
        ways.iter().map(|way: &Way| super::timing::Spread::bar(spread(&way.times), way.name)).collect()
    };
    section.chart = Some(Chart::Bars {
        title: "Time of a step".to_owned(),
        groups: vec![
            ("Host, until it is free again".to_owned(), bars(Times::host)),
            ("Until the end of the step".to_owned(), bars(Times::end)),
        ],
    });
    Ok(section)
}

fn rows(ways: &[Way]) -> Vec<Row> {
    let eager = ways[0].times.host().p50;
    let row = |way: &Way| {
        let (host, end) = (way.times.host(), way.times.end());
        let mut figures = Vec::from(host.figures(&format!("modes_{}_host", way.key)));
        figures.extend(end.figures(&format!("modes_{}_end", way.key)));
        figures.push(Figure::new(format!("modes_{}_speedup", way.key), eager / host.p50, Unit::Times));
        Row::new(way.name, figures)
    };
    ways.iter().map(row).collect()
}

fn update_row(way: &Way, counts: UpdateCounts) -> Row {
    let UpdateCounts { unchanged, kernels, whole, instantiated } = counts;
    let figure = |(name, count)| Figure::count(format!("{}_{name}", way.key), count);
    let counts =
        [("unchanged", unchanged), ("kernels", kernels), ("whole", whole), ("instantiated", instantiated)];
    Row::new(way.name, counts.map(figure))
}

/// The state that a way keeps from step to step. Each capture is on the same stream and in the same pool: if the pool is in the
/// same state as at the last capture, the new one gets the same memory.
struct State {
    stream: Stream,
    pool: GraphPool,
    graph: Option<Graph>,
    output: Option<Tensor>,
}

impl State {
    fn new(device: &Device) -> Result<Self> {
        Ok(Self { stream: Stream::new(device)?, pool: GraphPool::new(device), graph: None, output: None })
    }

    fn options(&self) -> CaptureOptions {
        CaptureOptions {
            pool: Some(self.pool.clone()),
            stream: Some(self.stream.clone()),
            ..CaptureOptions::default()
        }
    }
}

/// A function that runs a step in one way and stores its output in the state.
type Do = fn(&mut State, &Step<'_>) -> Result<()>;

fn run(setting: &Setting, name: &'static str, key: &'static str, changes: Changes, step: Do) -> Result<Way> {
    let mut way = Way { name, key, times: Times::default(), identical: 0, updates: None };
    let mut state = State::new(&setting.device)?;
    let mut expected: Vec<(usize, usize, Vec<u32>)> = Vec::new();
    let mut progress = Progress::transient(name, (WARM_UP + setting.rounds) as u64);
    for round in 0..WARM_UP + setting.rounds {
        let (network, factor) = match changes {
            Changes::Nothing => (0, 0),
            Changes::Factor => (0, round % FACTORS.len()),
            Changes::Network => (round % setting.networks.len(), 0),
        };
        let parameters = Step { setting, network, factor };
        if round < WARM_UP {
            step(&mut state, &parameters)?;
            continue;
        }
        let timed = way.times.step(&setting.device, || step(&mut state, &parameters));
        timed.map_err(|error| error.context(format!("{name}, round {}", round - WARM_UP + 1)))?;
        if !expected.iter().any(|known| (known.0, known.1) == (network, factor)) {
            expected.push((network, factor, bits(&parameters.run()?)?));
        }
        let known = expected.iter().find(|known| (known.0, known.1) == (network, factor));
        let found = bits(state.output.as_ref().expect("a step leaves its output"))?;
        way.identical += usize::from(known.is_some_and(|known| known.2 == found));
        progress.advance(round as u64 + 1);
    }
    way.updates =
        state.graph.map(|graph| graph.update_counts()).filter(|counts| *counts != UpdateCounts::default());
    Ok(way)
}

fn eager(state: &mut State, step: &Step<'_>) -> Result<()> {
    state.output = None;
    state.output = Some(step.run()?);
    Ok(())
}

fn captured(state: &mut State, step: &Step<'_>) -> Result<()> {
    match &state.graph {
        Some(graph) => graph.replay(),
        None => anew(state, step),
    }
}

/// Updates the executable. The output is dropped first, so that the next one gets its memory, and only changed parameters are
/// updated in the executable.
fn updated(state: &mut State, step: &Step<'_>) -> Result<()> {
    let options = state.options();
    let State { graph: Some(graph), output, .. } = state else { return anew(state, step) };
    *output = None;
    let (_, new) = graph.recapture(options, || step.run())?;
    *output = Some(new);
    graph.replay()
}

fn anew(state: &mut State, step: &Step<'_>) -> Result<()> {
    (state.graph, state.output) = (None, None);
    let (graph, output) = Graph::capture(&step.setting.device, state.options(), || step.run())?;
    graph.replay()?;
    (state.graph, state.output) = (Some(graph), Some(output));
    Ok(())
}
