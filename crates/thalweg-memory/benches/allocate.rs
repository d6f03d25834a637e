//! The host's cost of an allocation, on the fake upstream: no device is needed, so that a regression shows on any machine.
//!
//! `cargo bench -p thalweg-memory` prints a table, with `-- --json` one object per line (`name`, `value`, `least`, `unit`,
//! `samples`, `steps`); a word after `--` runs only the rows that contain it. `value` is the median over the samples of the mean
//! time of a step, `least` the smallest. Statistics are on; the history is off unless the row says otherwise.

use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::time::Instant;

use thalweg_memory::fake::FakeUpstream;
use thalweg_memory::history::{Enabled, HistorySettings};
use thalweg_memory::{Block, DeviceAllocator, HostAllocator, Settings, StreamId};

const SAMPLES: usize = 101;

/// A small generator of random numbers (splitmix64), so that every run is the same.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Returns 2^e + U(0, 2^e), with e uniform in 9..=22.
    fn mixed_size(&mut self) -> u64 {
        let power = 1 << (9 + self.below(14));
        power + self.below(power)
    }
}

fn allocator() -> Arc<DeviceAllocator> {
    DeviceAllocator::new(Arc::new(FakeUpstream::new(1 << 40)), Settings::default())
}

fn allocate(allocator: &Arc<DeviceAllocator>, bytes: u64, stream: u64) -> Block {
    allocator.allocate(bytes, StreamId::from_raw(stream)).expect("the fake device is large")
}

/// Nanoseconds per step.
#[derive(Clone, Copy)]
struct Measured {
    median: f64,
    /// The time of the fastest sample, which other programs disturbed the least.
    least: f64,
}

/// Measures many short samples; the first one warms up and does not count.
fn measure(steps: u64, mut sample: impl FnMut(u64)) -> Measured {
    let mut means: Vec<f64> = (0..=SAMPLES)
        .map(|_| {
            let start = Instant::now();
            sample(steps);
            start.elapsed().as_nanos() as f64 / steps as f64
        })
        .skip(1)
        .collect();
    means.sort_by(f64::total_cmp);
    Measured { median: means[SAMPLES / 2], least: means[0] }
}

fn pairs(bytes: u64, steps: u64) -> Measured {
    let allocator = allocator();
    measure(steps, |steps| {
        for _ in 0..steps {
            black_box(allocate(&allocator, black_box(bytes), 1));
        }
    })
}

/// Records three events per step: alloc, free_requested, free_completed.
fn pairs_with_a_history(steps: u64) -> Measured {
    let allocator = allocator();
    let settings =
        HistorySettings { enabled: Enabled::All, max_entries: 10_000, ..HistorySettings::default() };
    allocator.record_memory_history(settings);
    measure(steps, |steps| {
        for _ in 0..steps {
            black_box(allocate(&allocator, black_box(4096), 1));
        }
    })
}

fn churn(live: u64, steps: u64) -> Measured {
    let allocator = allocator();
    let mut random = Random(1);
    let mut blocks: Vec<Option<Block>> =
        (0..live).map(|_| Some(allocate(&allocator, random.mixed_size(), 1))).collect();
    measure(steps, |steps| {
        for _ in 0..steps {
            let slot = random.below(live) as usize;
            blocks[slot] = None;
            blocks[slot] = Some(allocate(&allocator, random.mixed_size(), 1));
        }
    })
}

fn pairs_in_threads(threads: u64, steps: u64) -> Measured {
    let allocator = allocator();
    measure(steps, |steps| {
        let barrier = Barrier::new(threads as usize);
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (allocator, barrier) = (&allocator, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    for _ in 0..steps {
                        black_box(allocate(allocator, black_box(4096), thread));
                    }
                });
            }
        });
    })
}

fn pairs_with_a_use(steps: u64) -> Measured {
    let upstream = Arc::new(FakeUpstream::new(1 << 40));
    let allocator = DeviceAllocator::new(upstream.clone(), Settings::default());
    measure(steps, |steps| {
        for _ in 0..steps {
            allocate(&allocator, 4096, 1).record_stream(StreamId::from_raw(2));
            upstream.complete_all();
        }
    })
}

fn host_pairs(bytes: u64, steps: u64) -> Measured {
    let allocator = HostAllocator::new(Arc::new(FakeUpstream::new(1 << 40)), Settings::default());
    measure(steps, |steps| {
        for _ in 0..steps {
            black_box(allocator.allocate(black_box(bytes)).expect("the fake host is large"));
        }
    })
}

/// A benchmark: its name, the number of steps of a sample, and the function that runs them.
type Bench = (&'static str, u64, fn(u64) -> Measured);

const BENCHES: [Bench; 8] = [
    ("allocate+free 4 KiB", 20_000, |steps| pairs(4 << 10, steps)),
    ("allocate+free 32 MiB", 20_000, |steps| pairs(32 << 20, steps)),
    ("allocate+free 4 KiB, history on", 20_000, pairs_with_a_history),
    ("churn, 1000 live blocks", 10_000, |steps| churn(1000, steps)),
    ("churn, 10000 live blocks", 10_000, |steps| churn(10_000, steps)),
    ("allocate+free 4 KiB, 8 threads on 8 streams", 20_000, |steps| pairs_in_threads(8, steps)),
    ("allocate+record_stream+free 4 KiB", 10_000, pairs_with_a_use),
    ("pinned allocate+free 1 MiB", 20_000, |steps| host_pairs(1 << 20, steps)),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let json = arguments.iter().any(|argument| argument == "--json");
    let only = arguments.iter().find(|argument| !argument.starts_with("--"));
    if !json {
        println!("{:<45} {:>10} {:>10}", "ns per step, on an invented device", "median", "least");
    }
    for (name, steps, bench) in BENCHES {
        if only.is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        let Measured { median, least } = bench(steps);
        if json {
            println!(
                r#"{{"name":"{name}","value":{median:.1},"least":{least:.1},"unit":"ns/step","samples":{SAMPLES},"steps":{steps}}}"#
            );
        } else {
            println!("{name:<45} {median:>10.1} {least:>10.1}");
        }
    }
}
