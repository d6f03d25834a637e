//! The cost of recording: nanoseconds per event, which must stay below 100 without stacks.
//!
//! `cargo bench -p thalweg-memory --bench history` prints a table, with `--
//! --json` one object per line (`name`, `value`, `unit`, `samples`, `steps`). Each figure is the median over the samples of the
//! mean time of a step.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use thalweg_lock::Mutex;
use thalweg_memory::StreamId;
use thalweg_memory::history::{Enabled, Event, History, HistorySettings, Ring, set_user_metadata};
use thalweg_snapshot::{Action, Snapshot};

const SAMPLES: usize = 11;
const STREAM: StreamId = StreamId::from_raw(1);

/// Returns the median over the samples of the nanoseconds per step; the first sample warms up and does not count.
fn measure(steps: u64, mut sample: impl FnMut(u64)) -> f64 {
    let mut means: Vec<f64> = (0..=SAMPLES)
        .map(|_| {
            let start = Instant::now();
            sample(steps);
            start.elapsed().as_nanos() as f64 / steps as f64
        })
        .skip(1)
        .collect();
    means.sort_by(f64::total_cmp);
    means[SAMPLES / 2]
}

fn history(max_entries: usize) -> History {
    let history = History::new();
    history.configure(HistorySettings { enabled: Enabled::All, max_entries, ..HistorySettings::default() });
    history
}

fn event(address: u64) -> Event {
    Event::new(Action::Alloc, black_box(address), 4096, STREAM)
}

fn push(history: &History, steps: u64) -> f64 {
    let mut ring = Ring::new();
    measure(steps, |steps| {
        for address in 0..steps {
            ring.push(history, &event(address));
        }
        black_box(&ring);
    })
}

/// Each sample begins with an empty ring, so that all its memory is newly allocated.
fn push_into_new_room(steps: u64) -> f64 {
    let history = history(usize::MAX);
    measure(steps, |steps| {
        let mut ring = Ring::new();
        for address in 0..steps {
            ring.push(&history, &event(address));
        }
        black_box(&ring);
    })
}

fn push_in_threads(threads: u64, steps: u64) -> f64 {
    let history = history(10_000);
    let rings: Vec<_> = (0..threads).map(|_| Mutex::new(Ring::new())).collect();
    measure(steps, |steps| {
        let barrier = Barrier::new(threads as usize);
        std::thread::scope(|scope| {
            for ring in &rings {
                let (history, barrier) = (&history, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    for address in 0..steps {
                        ring.lock().push(history, &event(address));
                    }
                });
            }
        });
    })
}

fn clock(steps: u64) -> f64 {
    let start = Instant::now();
    measure(steps, |steps| {
        for _ in 0..steps {
            black_box(start.elapsed().as_nanos() as u64);
        }
    })
}

/// Returns a benchmark whose step is one event of a snapshot of 100,000 events in 8 rings.
fn merge(_: u64) -> f64 {
    const EVENTS: u64 = 100_000;
    let history = history(usize::MAX);
    let mut rings: Vec<_> = (0..8).map(|_| Ring::new()).collect();
    (0..EVENTS).for_each(|address| rings[(address % 8) as usize].push(&history, &event(address)));
    measure(EVENTS, |_| {
        let mut merge = history.merge();
        rings.iter().for_each(|ring| merge.add(ring));
        black_box(merge.finish());
    })
}

/// Returns a benchmark whose step is one event of a snapshot of 100,000 events.
fn write(to: impl Fn(&Snapshot) -> usize) -> f64 {
    const EVENTS: u64 = 100_000;
    let history = history(usize::MAX);
    let mut ring = Ring::new();
    (0..EVENTS).for_each(|address| ring.push(&history, &event(address)));
    let mut merge = history.merge();
    merge.add(&ring);
    let snapshot = Snapshot { device_traces: vec![merge.finish()], ..Snapshot::default() };
    measure(EVENTS, |_| {
        black_box(to(&snapshot));
    })
}

/// A benchmark: its name, the number of steps of a sample, and the function that runs them.
type Bench = (&'static str, u64, fn(u64) -> f64);

const BENCHES: [Bench; 8] = [
    ("history off, per event", 1_000_000, |steps| push(&History::new(), steps)),
    ("history on, per event", 1_000_000, |steps| push(&history(10_000), steps)),
    ("history on, room not yet used, per event", 200_000, push_into_new_room),
    ("history on, 8 threads on 8 rings, per event", 100_000, |steps| push_in_threads(8, steps)),
    ("the clock alone", 1_000_000, clock),
    ("merge 8 rings, per event", 100_000, merge),
    ("write a pickle, per event", 100_000, |_| write(|snapshot| snapshot.to_pickle().len())),
    ("write JSON, per event", 100_000, |_| write(|snapshot| snapshot.to_json().len())),
];

fn main() {
    let json = std::env::args().any(|argument| argument == "--json");
    set_user_metadata("step");
    for (name, steps, bench) in BENCHES {
        let value = bench(steps);
        if json {
            println!(
                r#"{{"name":"{name}","value":{value:.1},"unit":"ns/step","samples":{SAMPLES},"steps":{steps}}}"#
            );
        } else {
            println!("{name:<45} {value:>10.1} ns");
        }
    }
}
