//! The cost of handing large buffers from one stream to another, as data-parallel training does: memory and time.
//!
//! 32 buffers of 256 MiB are filled on a side stream and read on the main one, which then has other work (two matrix products),
//! while the host runs ahead. Each buffer is dropped as soon as its work is queued. There are three ways to declare when its
//! memory may be used again:
//!
//! - `record_stream`: an event after all work that is on the main stream when the buffer is dropped;
//! - `record_use`: an event after the last use, one line;
//! - `keep_alive`: the code to write by hand if neither is good enough: keep the last buffers, make the side stream wait for
//!   their events, then drop them.
//!
//! Every way has a device allocator of its own, so each must run in its own process: `hand_over --way record_use`; without
//! `--way` the bench runs itself once for each. It prints one JSON object per line: `name`, `value` (MiB reserved at the peak),
//! `unit`, `first_ms` and `ms` (the loop's time, first and best of the later ones), `waits` (device-side waits for memory).
//!
//! On a simulated GPU the buffers are 1 MiB and the matrices small: that shows the memory, not the time.

use std::collections::VecDeque;
use std::time::Instant;

use thalweg_driver::FillPattern;
use thalweg_execute::products::Product;
use thalweg_ir::DType;
use thalweg_kernels::matmul::Matmul;
use thalweg_runtime::{Buffer, Device, Error, Event, Label, Result, Stream};

mod increment;

use increment::Increment;

const BUFFERS: usize = 32;
/// The number of buffers that stay alive besides the one in use.
const KEPT: usize = 2;
const ROUNDS: usize = 8;

#[derive(Clone, Copy, PartialEq)]
enum Way {
    RecordStream,
    RecordUse,
    KeepAlive,
}

const WAYS: [(&str, Way); 3] =
    [("record_stream", Way::RecordStream), ("record_use", Way::RecordUse), ("keep_alive", Way::KeepAlive)];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let after = |name: &str| {
        let place = arguments.iter().position(|argument| argument == name)?;
        arguments.get(place + 1)
    };
    if let Some(name) = after("--way") {
        let way = WAYS.iter().find(|(known, _)| known == name);
        let way = way.ok_or_else(|| Error::invalid(format!("--way {name}: there is no such way")))?.1;
        let device = match after("--device") {
            Some(device) => Device::from_name(device)?,
            None => Device::best()?,
        };
        return run(&device, name, way);
    }
    for (name, _) in WAYS {
        let program = std::env::current_exe().expect("a running program has a file");
        let device = after("--device").map(|device| ["--device", device]);
        let status = std::process::Command::new(program)
            .args(["--way", name])
            .args(device.into_iter().flatten())
            .status()
            .expect("the program runs");
        assert!(status.success(), "{name} failed");
    }
    Ok(())
}

fn run(device: &Device, name: &str, way: Way) -> Result<()> {
    let bench = Bench::new(device)?;
    device.synchronize()?;
    device.allocator().reset_peak_memory_stats();
    let mut times_ms = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        bench.round(way)?;
        device.synchronize()?;
        times_ms.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let statistics = device.allocator().statistics();
    let best_ms = times_ms[1..].iter().copied().fold(f64::INFINITY, f64::min);
    println!(
        r#"{{"name":"hand_over_{name}","value":{},"unit":"MiB reserved","active":{},"first_ms":{:.2},"ms":{best_ms:.2},"waits":{},"device":"{device}"}}"#,
        statistics.reserved_bytes.all.peak >> 20,
        statistics.active_bytes.all.peak >> 20,
        times_ms[0],
        statistics.num_cross_stream_waits,
    );
    Ok(())
}

struct Bench {
    side: Stream,
    main: Stream,
    elements: u64,
    /// The input and the output of the unrelated work.
    matrices: [Buffer; 2],
    product: Matmul,
    add_one: Increment,
}

impl Bench {
    fn new(device: &Device) -> Result<Self> {
        let simulated = device.driver().name() == "sim";
        let (bytes, size) = if simulated { (1 << 20, 64) } else { (256 << 20, 8192) };
        let (side, main) = (Stream::new(device)?, Stream::new(device)?);
        let matrices = [Buffer::new(&main, size * size * 2)?, Buffer::new(&main, size * size * 2)?];
        let product = Matmul::contiguous(size, size, size, 1, DType::Bf16);
        main.fill(matrices[0].pointer(), FillPattern::U16(0x3f80), size * size, Label::here("ones"))?;
        let elements = bytes / 4;
        let add_one = Increment::new(elements);
        let bench = Self { side, main, elements, matrices, product, add_one };
        for _ in 0..3 {
            bench.other_work()?;
        }
        Ok(bench)
    }

    fn other_work(&self) -> Result<()> {
        let [a, b] = self.matrices.each_ref().map(Buffer::pointer);
        thalweg_execute::execute(Product(&self.product), [a, a, b], &self.main, Label::here("other work"))
    }

    /// Runs one round over all buffers.
    fn round(&self, way: Way) -> Result<()> {
        let mut kept: VecDeque<(Buffer, Event)> = VecDeque::new();
        for _ in 0..BUFFERS {
            let buffer = Buffer::new(&self.side, self.elements * 4)?;
            self.side.fill(buffer.pointer(), FillPattern::U32(0), self.elements, Label::here("fill"))?;
            self.main.wait_stream(&self.side)?;
            self.add_one.launch(&self.main, &buffer, Label::here("add_"))?;
            // The precise ways record the use here, before the other work.
            let used = Event::new();
            match way {
                Way::RecordUse => buffer.record_use(&self.main),
                Way::KeepAlive => used.record(&self.main)?,
                Way::RecordStream => {}
            }
            self.other_work()?;
            self.other_work()?;
            match way {
                Way::RecordUse => {}
                Way::RecordStream => buffer.record_stream(&self.main),
                Way::KeepAlive => {
                    kept.push_back((buffer, used));
                    if kept.len() > KEPT
                        && let Some((oldest, used)) = kept.pop_front()
                    {
                        used.wait(&self.side)?;
                        drop(oldest);
                    }
                }
            }
        }
        Ok(())
    }
}
