//! Sequences of one length, and of many: eager, a graph for each length, and a few captured sizes that the rest is padded to.

use std::time::Instant;

use thalweg::progress::Progress;
use thalweg::random::Generator;
use thalweg::tensor::graph::tree::{CaptureSizes, FunctionId, FunctionOptions, Padding};
use thalweg::tensor::graph::{GraphTreeCounters, GraphTreeManager, GraphTreeOptions};
use thalweg::{Result, Tensor};

use super::report::{Chart, Figure, Line, Row, Section, Unit};
use super::setting::{Network, Setting, TOKENS, bits, tokens};
use super::timing::Times;

/// The lengths, which repeat in this order. No two consecutive lengths share a captured size.
const LENGTHS: [usize; 12] = [10, 42, 26, 64, 5, 37, 21, 53, 16, 48, 32, 58];

/// The captured sizes: a sequence is padded to the nearest one that fits.
const SIZES: [usize; 4] = [16, 32, 48, TOKENS];

/// Passes over all lengths in which trees warm up and record.
const BUILD_UP: usize = 2;

/// The maximum difference between padded outputs and eager ones: sums over more terms are computed in another order.
const TOLERANCE: f64 = 1e-4;

/// The way in which calls are served.
enum Server<'a> {
    Eager(&'a Network),
    Tree(Box<GraphTreeManager>, FunctionId),
}

impl<'a> Server<'a> {
    fn tree(setting: &Setting, sizes: Option<CaptureSizes>) -> Result<Self> {
        let mut tree = GraphTreeManager::new(&setting.device, GraphTreeOptions::default())?;
        let network = setting.network().clone();
        let options = FunctionOptions { sizes, ..FunctionOptions::default() };
        let forward =
            tree.register("forward", options, move |inputs| Ok(vec![network.forward(&inputs[0])?]))?;
        Ok(Self::Tree(Box::new(tree), forward))
    }

    fn call(&mut self, tokens: &Tensor) -> Result<Tensor> {
        match self {
            Self::Eager(network) => network.forward(tokens),
            Self::Tree(tree, forward) => Ok(tree.call(*forward, vec![tokens.clone()])?.remove(0)),
        }
    }

    fn counters(&self) -> GraphTreeCounters {
        match self {
            Self::Eager(_) => GraphTreeCounters::default(),
            Self::Tree(tree, _) => tree.counters(),
        }
    }
}

/// A way of serving calls, timed.
struct Way<'a> {
    name: &'static str,
    key: &'static str,
    server: Server<'a>,
    /// The times of the passes in which graphs were recorded, in microseconds.
    build_up: f64,
    /// The times at the greatest length only.
    fixed: Times,
    /// The times at each of the lengths.
    varying: Vec<Times>,
    /// The graphs that were recorded after the build-up.
    late_recordings: u64,
    is_identical: bool,
    difference: f64,
}

pub fn study(setting: &Setting) -> Result<Section> {
    let mut generator = Generator::new(3);
    let inputs: Vec<Tensor> = LENGTHS
        .iter()
        .map(|&length| tokens(length, &mut generator, &setting.device))
        .collect::<Result<_>>()?;
    let sizes = CaptureSizes {
        sizes: SIZES.to_vec(),
        inputs: vec![(0, 1)],
        outputs: vec![(0, 0)],
        padding: Padding::Value(0.0),
    };
    let ways = [
        run(setting, &inputs, "eager", "eager", Server::Eager(setting.network()))?,
        run(setting, &inputs, "a graph a length", "each", Server::tree(setting, None)?)?,
        run(setting, &inputs, "captured sizes", "sizes", Server::tree(setting, Some(sizes))?)?,
    ];
    let mut section = Section::new(
        "Sequences of one length, and of many",
        format!(
            "{} lengths from 5 to {TOKENS} tokens come in turn: eagerly; with a graph of each length; and with graphs of {SIZES:?} \
             tokens, where a sequence is padded to the nearest size that fits. Build-up: the first {BUILD_UP} passes, in which graph \
             trees warm up and record.",
            LENGTHS.len()
        ),
    );
    section.table(
        "Microseconds to the end of a step; of the whole build-up",
        &["way", "64: p50", "64: p95", "all: p50", "all: p95", "build-up"],
        ways.iter().map(time_row).collect(),
    );
    let [_, each, sized] = &ways;
    section.table(
        "What the graph trees counted",
        &["counter", each.name, sized.name],
        counter_rows(each, sized),
    );
    check(&mut section, &ways);
    let line = |way: &Way<'_>| {
        let points =
            LENGTHS.iter().zip(&way.varying).map(|(&length, times)| (length as f64, times.end().p50));
        let mut points: Vec<(f64, f64)> = points.collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Line { name: way.name.to_owned(), points }
    };
    section.chart = Some(Chart::Lines {
        title: "Time to the end of a step, p50, by sequence length".to_owned(),
        lines: ways.iter().map(line).collect(),
        marks: SIZES.iter().map(|&size| size as f64).collect(),
    });
    Ok(section)
}

fn run<'a>(
    setting: &Setting,
    inputs: &[Tensor],
    name: &'static str,
    key: &'static str,
    mut server: Server<'a>,
) -> Result<Way<'a>> {
    let device = &setting.device;
    device.synchronize()?;
    let start = Instant::now();
    for input in (0..BUILD_UP).flat_map(|_| inputs) {
        server.call(input)?;
    }
    device.synchronize()?;
    let build_up = start.elapsed().as_secs_f64() * 1e6;
    let recordings = server.counters().recordings;
    let mut varying: Vec<Times> = inputs.iter().map(|_| Times::default()).collect();
    let passes = (setting.rounds / 5).max(2);
    let mut progress = Progress::transient("sequence lengths", passes as u64);
    for pass in 0..passes {
        for (input, times) in inputs.iter().zip(&mut varying) {
            times.step(device, || server.call(input))?;
        }
        progress.advance(pass as u64 + 1);
    }
    let mut fixed = Times::default();
    for _ in 0..setting.rounds {
        fixed.step(device, || server.call(&setting.inputs[0]))?;
    }
    let late_recordings = server.counters().recordings - recordings;
    let (mut is_identical, mut difference) = (true, 0.0f64);
    for input in inputs {
        let (found, expected) = (server.call(input)?, setting.network().forward(input)?);
        is_identical &= bits(&found)? == bits(&expected)?;
        let pairs = found.to_vec::<f32>()?.into_iter().zip(expected.to_vec::<f32>()?);
        difference = pairs.map(|(a, b)| f64::from((a - b).abs())).fold(difference, f64::max);
    }
    Ok(Way { name, key, server, build_up, fixed, varying, late_recordings, is_identical, difference })
}

fn time_row(way: &Way<'_>) -> Row {
    let mut all = Times::default();
    way.varying.iter().for_each(|times| all.extend(times));
    let mut figures = Vec::from(way.fixed.end().figures(&format!("lengths_{}_fixed", way.key)));
    figures.extend(all.end().figures(&format!("lengths_{}_varying", way.key)));
    figures.push(Figure::new(format!("lengths_{}_build_up", way.key), way.build_up, Unit::Microseconds));
    Row::new(way.name, figures)
}

fn counter_rows(each: &Way<'_>, sized: &Way<'_>) -> Vec<Row> {
    let counters = [each, sized].map(|way| (way, way.server.counters()));
    let row = |name: &str, key: &str, value: fn(&GraphTreeCounters) -> u64| {
        let figure = |(way, counters): &(&Way<'_>, _)| {
            Figure::count(format!("lengths_{}_{key}", way.key), value(counters))
        };
        Row::new(name, counters.iter().map(figure))
    };
    let mut rows = vec![
        row("calls", "calls", |counters| counters.calls),
        row("eager calls, to warm up", "warm_ups", |counters| counters.warm_ups),
        row("eager calls, for other reasons", "eager", |counters| counters.eager),
        row("graphs recorded", "recordings", |counters| counters.recordings),
        row("graphs replayed", "replays", |counters| counters.replays),
        row("calls padded to a size", "padded", |counters| counters.padded),
        row("bytes copied to graphs' inputs", "copied_bytes", |counters| counters.copied_bytes),
    ];
    let pools = [each, sized].into_iter().filter_map(|way| match &way.server {
        Server::Eager(_) => None,
        Server::Tree(tree, _) => {
            Some(Figure::bytes(format!("lengths_{}_pool_bytes", way.key), tree.pool_bytes()))
        }
    });
    rows.push(Row::new("bytes reserved by the pools", pools));
    let difference = |way: &Way<'_>| {
        Figure::new(format!("lengths_{}_difference", way.key), way.difference, Unit::Difference)
    };
    rows.push(Row::new("largest difference from eager", [difference(each), difference(sized)]));
    rows
}

fn check(section: &mut Section, [_, each, sized]: &[Way<'_>; 3]) {
    section.check(each.is_identical, "a graph a length: eager's bits at every length");
    section.check(
        sized.difference <= TOLERANCE,
        format!("captured sizes: within {TOLERANCE:e} of eager at every length"),
    );
    for (way, graphs) in [(each, LENGTHS.len()), (sized, SIZES.len())] {
        let (name, counters) = (way.name, way.server.counters());
        section.check(
            counters.recordings == graphs as u64 && way.late_recordings == 0,
            format!("{name}: {graphs} graphs, none recorded after the build-up"),
        );
        section.check(
            counters.calls == counters.warm_ups + counters.replays && counters.eager == 0,
            format!("{name}: every call that did not warm up was a replay"),
        );
    }
}
