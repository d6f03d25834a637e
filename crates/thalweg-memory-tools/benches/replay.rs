//! The speed of a replay, which should be 5 million events per second on one core, after reading.
//!
//! `cargo bench -p thalweg-memory-tools --bench replay` prints a table, with `--
//! --json` one object per line (`name`, `value`, `unit`, `samples`, `steps`). The trace has 10 million events and 1,000 live
//! blocks of sizes 2^e + U(0, 2^e), e uniform in 9…22, of which each step replaces a random one: three events. Each figure is the
//! median over the samples; a sample replays the entire trace from its program on. On a machine with other work, use the second
//! figure: events by the time that this thread had a core (`/proc/thread-self/schedstat`; without that file it equals the first).

use std::sync::Arc;
use std::time::{Duration, Instant};

use thalweg_memory::{DeviceAllocator, Settings, StreamId};
use thalweg_memory_tools::replay::{RecordedProgram, Replay, ReplayUpstream};
use thalweg_snapshot::{Action, Event};

const SAMPLES: usize = 3;
const EVENTS: u64 = 10_000_000;
/// The number of events with tags, fewer because tags are slow.
const TAGGED_EVENTS: u64 = 1_000_000;
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

/// Returns the program of a trace of about `events` events.
fn program(events: u64) -> RecordedProgram {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let stream = StreamId::from_raw(0);
    let entry = |action, slot: u64, size_bytes| {
        let address = (slot + 1) << 32;
        Event { action, address, size_bytes, stream, pool_id: None, time_us: None, stack: None }
    };
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
    RecordedProgram::from_trace(&trace).expect("it is a trace")
}

/// Returns how long this thread has had a core, if the system reports it.
fn core_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}

/// Returns millions of events per second: by wall-clock time, and by the time on a core.
fn replay(program: &RecordedProgram, events: u64, settings: &str, with_tags: bool) -> (f64, f64) {
    let new = if with_tags { Replay::new } else { Replay::without_tags };
    let settings = Settings::parse(settings).expect("these are settings");
    let rate = |time: Duration| events as f64 / 1e6 / time.as_secs_f64();
    let mut rates: Vec<(f64, f64)> = (0..SAMPLES)
        .map(|_| {
            let (start, core) = (Instant::now(), core_time());
            let upstream = Arc::new(ReplayUpstream::scripted(program, DEVICE_BYTES));
            let allocator = DeviceAllocator::new(upstream.clone(), settings.clone());
            new(program, allocator, upstream).run().expect("there is room");
            let on_clock = start.elapsed();
            let on_core = core_time().zip(core).map_or(on_clock, |(end, start)| end - start);
            (rate(on_clock), rate(on_core))
        })
        .collect();
    let mut median = |of: fn(&(f64, f64)) -> f64| {
        rates.sort_by(|one, other| of(one).total_cmp(&of(other)));
        of(&rates[SAMPLES / 2])
    };
    (median(|rate| rate.0), median(|rate| rate.1))
}

fn main() {
    let json = std::env::args().any(|argument| argument == "--json");
    let (long, short) = (program(EVENTS), program(TAGGED_EVENTS));
    let benches = [
        ("replay, policy:pytorch", "policy:pytorch", &long, EVENTS, false),
        ("replay, our default", "", &long, EVENTS, false),
        ("replay with tags, policy:pytorch", "policy:pytorch", &short, TAGGED_EVENTS, true),
    ];
    for (name, settings, program, events, with_tags) in benches {
        let (on_clock, on_core) = replay(program, events, settings, with_tags);
        for (name, value) in [(name.to_owned(), on_clock), (format!("{name}, by core time"), on_core)] {
            if json {
                println!(
                    r#"{{"name":"{name}","value":{value:.2},"unit":"million events/s","samples":{SAMPLES},"steps":{events}}}"#
                );
            } else {
                println!("{name:<50} {value:>10.2} million events/s");
            }
        }
    }
}
