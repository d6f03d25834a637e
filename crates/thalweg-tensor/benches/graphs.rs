//! The host time of CUDA graphs: of capture, per node, and of replay.
//!
//! `cargo bench -p thalweg-tensor --bench graphs [-- --device cuda|sim]`: one line of JSON per figure. The region is a chain of
//! additions of 16 `f32`, each into memory of its own from the graph's pool. On a GPU, run it together with
//! `benches/peers/graph_launch.cu`, which does the same with only CUDA's runtime, and is timed in the same ways.

use std::time::Instant;

use thalweg_ir::DType;
use thalweg_runtime::{CaptureOptions, Device, Graph, Result, Stream};
use thalweg_tensor::Tensor;

/// The number of timed rounds of a capture, of which the median is reported.
const CAPTURES: usize = 15;
/// The number of timed replays. The device is waited for after each, so that no queue is full.
const REPLAYS: usize = 200;

struct Bench {
    device: Device,
    a: Tensor,
    b: Tensor,
}

impl Bench {
    fn capture(&self, nodes: usize) -> Result<Graph> {
        let region = || {
            let mut x = self.a.add(&self.b)?;
            for _ in 1..nodes {
                x = x.add(&self.b)?;
            }
            Ok(x)
        };
        Ok(Graph::capture(&self.device, CaptureOptions::default(), region)?.0)
    }

    fn report(&self, name: &str, unit: &str, mut times: Vec<f64>) {
        times.sort_by(f64::total_cmp);
        println!(
            "{{\"name\": \"{name}\", \"value\": {:.4}, \"unit\": \"{unit}\", \"device\": \"{}\", \"min\": {:.4}, \"max\": {:.4}}}",
            times[times.len() / 2],
            self.device.properties().name,
            times[0],
            times[times.len() - 1]
        );
    }

    /// Capture and instantiation together, from the first call to the graph that can be replayed.
    fn time_capture(&self, nodes: usize, rounds: usize) -> Result<f64> {
        self.capture(nodes)?;
        let mut times = Vec::new();
        for _ in 0..rounds {
            self.device.synchronize()?;
            let start = Instant::now();
            let graph = self.capture(nodes)?;
            times.push(start.elapsed().as_secs_f64() * 1e6);
            drop(graph);
        }
        times.sort_by(f64::total_cmp);
        let median = times[rounds / 2];
        self.report(&format!("graph_capture_n{nodes}"), "us", times);
        Ok(median)
    }

    fn time_replay(&self, nodes: usize) -> Result<()> {
        let graph = self.capture(nodes)?;
        let mut times = Vec::new();
        for round in 0..REPLAYS + 20 {
            let start = Instant::now();
            graph.replay()?;
            let elapsed = start.elapsed().as_secs_f64() * 1e6;
            self.device.synchronize()?;
            if round >= 20 {
                times.push(elapsed);
            }
        }
        self.report(&format!("graph_replay_host_n{nodes}"), "us", times);
        Ok(())
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |flag: &str| {
        arguments.iter().position(|argument| argument == flag).and_then(|at| arguments.get(at + 1))
    };
    let device = match after("--device") {
        Some(name) => Device::from_name(name)?,
        None => Device::best()?,
    };
    let stream = Stream::new(&device)?;
    let _current = stream.make_current();
    let small = |value: f64| Tensor::full(&[16], value, DType::F32, &device);
    let bench = Bench { a: small(1.0)?, b: small(2.0)?, device: device.clone() };
    for nodes in [10, 100, 1000] {
        bench.time_replay(nodes)?;
    }
    let few = bench.time_capture(100, CAPTURES)? / 100.0;
    let many = bench.time_capture(10_000, 3)? / 10_000.0;
    bench.report("graph_capture_node_cost_ratio_10000_to_100", "ratio", vec![many / few]);
    Ok(())
}
