//! How fast a trace is replayed: it should be 5 million events a second on one core, after reading.
//!
//! `cargo bench -p thalweg-memory --bench replay` prints a table, with `-- --json` one object a line (`name`, `value`, `unit`,
//! `samples`, `steps`). The trace has 1,000 live blocks of sizes 2^e + U(0, 2^e), e uniform in 9…22, of which a random one is
//! replaced a step: three events. Each figure is the median over the samples; a sample replays the whole trace from its program on.

use std::sync::Arc;
use std::time::Instant;

use thalweg_memory::replay::{Program, Replay, ReplayUpstream};
use thalweg_memory::snapshot::{Action, Snapshot, TraceEntry};
use thalweg_memory::{DeviceAllocator, Settings, StreamId};

const SAMPLES: usize = 5;
const LIVE: u64 = 1_000;
const DEVICE_BYTES: u64 = 1 << 37;

/// A generator of numbers (xorshift), so that every run has the same trace.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    fn size_bytes(&mut self) -> u64 {
        let power = 1 << (9 + self.below(14));
        power + self.below(power)
    }
}

/// A trace of about so many events.
fn program(events: u64) -> Program {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let entry =
        |action, slot: u64, bytes| TraceEntry::new(action, (slot + 1) << 32, bytes, StreamId::from_raw(0));
    let mut sizes: Vec<u64> = (0..LIVE).map(|_| random.size_bytes()).collect();
    let mut trace: Vec<_> =
        (0..LIVE).zip(&sizes).map(|(slot, &bytes)| entry(Action::Alloc, slot, bytes)).collect();
    for _ in 0..events / 3 {
        let slot = random.below(LIVE);
        let bytes = std::mem::replace(&mut sizes[slot as usize], random.size_bytes());
        trace.push(entry(Action::FreeRequested, slot, bytes));
        trace.push(entry(Action::FreeCompleted, slot, bytes));
        trace.push(entry(Action::Alloc, slot, sizes[slot as usize]));
    }
    let snapshot = Snapshot { device_traces: vec![trace], ..Snapshot::default() };
    Program::from_snapshot(&snapshot, 0).expect("it is a trace")
}

/// Millions of events a second.
fn replay(program: &Program, events: u64, settings: &str, with_tags: bool) -> f64 {
    let new = if with_tags { Replay::new } else { Replay::without_tags };
    let settings = Settings::parse(settings).expect("these are settings");
    let mut rates: Vec<f64> = (0..SAMPLES)
        .map(|_| {
            let start = Instant::now();
            let upstream = Arc::new(ReplayUpstream::scripted(program, DEVICE_BYTES));
            let allocator = DeviceAllocator::new(upstream.clone(), settings.clone());
            new(program, allocator, upstream).run().expect("there is room");
            events as f64 / 1e6 / start.elapsed().as_secs_f64()
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    rates[SAMPLES / 2]
}

fn main() {
    let json = std::env::args().any(|argument| argument == "--json");
    let events = 3_000_000;
    let program = program(events);
    let benches = [
        ("replay, policy:pytorch", "policy:pytorch", false),
        ("replay, our default", "", false),
        ("replay with tags, policy:pytorch", "policy:pytorch", true),
    ];
    for (name, settings, with_tags) in benches {
        let value = replay(&program, events, settings, with_tags);
        if json {
            println!(
                r#"{{"name":"{name}","value":{value:.2},"unit":"million events/s","samples":{SAMPLES},"steps":{events}}}"#
            );
        } else {
            println!("{name:<45} {value:>10.2} million events/s");
        }
    }
}
