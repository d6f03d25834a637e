//! The runtime's cost on the host: a cached launch, events, queries, replays and the check before them, allocations. Only the
//! queueing is timed; the device is waited for between the samples.
//!
//! `cargo bench -p thalweg-runtime` prints a table for the GPU if there is one, else for the simulated GPU; `-- --device sim`
//! or `-- --device cuda` chooses. With `-- --json`, one object per line (`name`, `value`, `unit`, `device`, `samples`,
//! `steps`). Each figure is the median over the samples of the mean time of a step.

use std::hint::black_box;
use std::time::Instant;

use thalweg_runtime::{Buffer, CaptureOptions, Device, Error, Event, Graph, Label, Result, Stream};

mod increment;

use increment::Increment;

const SAMPLES: usize = 11;
/// The number of steps per sample: small enough that no queue of a GPU fills up before the device is waited for.
const STEPS: u32 = 500;
const ELEMENTS: u64 = 64;

fn main() -> Result<()> {
    let mut json = false;
    let mut name = None;
    // Cargo passes `--bench`.
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--json" => json = true,
            "--device" => {
                name =
                    Some(arguments.next().ok_or_else(|| Error::invalid("--device: write `cuda` or `sim`"))?);
            }
            other => {
                return Err(Error::invalid(format!(
                    "unknown argument '{other}'; there are --json and --device"
                )));
            }
        }
    }
    let device = match name {
        Some(name) => Device::from_name(&name)?,
        None => Device::best()?,
    };
    let bench = Bench::new(&device)?;
    let report = |name: &str, nanoseconds: f64| {
        if json {
            println!(
                "{{\"name\": \"{name}\", \"value\": {nanoseconds:.1}, \"unit\": \"ns\", \"device\": \"{device}\", \
                 \"samples\": {SAMPLES}, \"steps\": {STEPS}}}"
            );
        } else {
            println!("{name:<28} {nanoseconds:>10.1} ns");
        }
    };
    let Bench { stream, other, data, .. } = &bench;
    report("launch", bench.measure(|| bench.launch())?);
    let event = Event::new();
    report("event_record_and_wait", bench.measure(|| event.record(stream).and_then(|()| event.wait(other)))?);
    report("wait_stream", bench.measure(|| other.wait_stream(stream))?);
    report("stream_query", bench.measure(|| stream.query().map(|idle| assert!(black_box(idle))))?);
    report(
        "allocate_and_free",
        bench.measure(|| Buffer::new(stream, black_box(data.size_bytes())).map(drop))?,
    );
    for nodes in [1, 100] {
        let graph = bench.graph(nodes)?;
        report(&format!("graph_replay_{nodes}"), bench.measure(|| graph.replay())?);
    }
    for inputs in [1, 32] {
        let (graph, _inputs) = bench.graph_of(inputs)?;
        let contract = graph.contract();
        assert_eq!(contract.inputs().len(), inputs);
        report(&format!("contract_check_{inputs}_inputs"), bench.measure(|| black_box(contract).check())?);
    }
    Ok(())
}

struct Bench {
    device: Device,
    stream: Stream,
    other: Stream,
    data: Buffer,
    increment: Increment,
}

impl Bench {
    fn new(device: &Device) -> Result<Self> {
        let stream = Stream::new(device)?;
        let other = Stream::new(device)?;
        let data = Buffer::new(&stream, ELEMENTS * 4)?;
        Ok(Self { device: device.clone(), stream, other, data, increment: Increment::new(ELEMENTS) })
    }

    fn launch(&self) -> Result<()> {
        self.increment.launch(&self.stream, &self.data, Label::here("increment"))
    }

    fn graph(&self, nodes: u32) -> Result<Graph> {
        let options = CaptureOptions { stream: Some(self.stream.clone()), ..CaptureOptions::default() };
        let capture = || (0..nodes).try_for_each(|_| self.launch());
        Ok(Graph::capture(&self.device, options, capture)?.0)
    }

    /// Returns a graph that uses `inputs` buffers.
    fn graph_of(&self, inputs: usize) -> Result<(Graph, Vec<Buffer>)> {
        let new = || Buffer::new(&self.stream, self.data.size_bytes());
        let inputs = (0..inputs).map(|_| new()).collect::<Result<Vec<Buffer>>>()?;
        let label = Label::here("increment");
        let options = CaptureOptions { stream: Some(self.stream.clone()), ..CaptureOptions::default() };
        let capture =
            || inputs.iter().try_for_each(|input| self.increment.launch(&self.stream, input, label));
        Ok((Graph::capture(&self.device, options, capture)?.0, inputs))
    }

    /// Returns the nanoseconds per step; the first sample is a warm-up and does not count.
    fn measure(&self, mut step: impl FnMut() -> Result<()>) -> Result<f64> {
        let _current = self.stream.make_current();
        let mut means = Vec::with_capacity(SAMPLES);
        for sample in 0..=SAMPLES {
            let start = Instant::now();
            for _ in 0..STEPS {
                step()?;
            }
            let nanoseconds = start.elapsed().as_nanos() as f64 / f64::from(STEPS);
            self.device.synchronize()?;
            if sample > 0 {
                means.push(nanoseconds);
            }
        }
        means.sort_by(f64::total_cmp);
        Ok(means[SAMPLES / 2])
    }
}
