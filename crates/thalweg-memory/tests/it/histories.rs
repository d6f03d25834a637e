//! Recording from many threads, and the stacks of a Rust program.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use thalweg_lock::Mutex;
use thalweg_memory::StreamId;
use thalweg_memory::history::{Enabled, Event, History, HistorySettings, Ring};
use thalweg_snapshot::{Action, TraceEntry};

fn recording() -> History {
    let history = History::new();
    history.configure(HistorySettings { enabled: Enabled::All, ..HistorySettings::default() });
    history
}

fn merged(history: &History, rings: &[Mutex<Ring>]) -> Vec<TraceEntry> {
    let mut merge = history.merge();
    rings.iter().for_each(|ring| merge.add(&ring.lock()));
    merge.finish()
}

/// A number is passed from thread to thread, and the thread that raises it records it. Merges that are made meanwhile have no
/// gap: if they contain an event, they contain all earlier ones.
#[test]
fn a_merge_among_running_threads_is_a_consistent_cut() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 500;
    let history = recording();
    let rings: Vec<_> = (0..THREADS).map(|_| Mutex::new(Ring::new())).collect();
    let (turn, done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (history, ring, turn, done) = (&history, &rings[thread as usize], &turn, &done);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let number = round * THREADS + thread;
                    while turn.load(Ordering::Acquire) != number {
                        std::thread::yield_now();
                    }
                    let event = Event::new(Action::Alloc, number, 512, StreamId::from_raw(thread));
                    ring.lock().push(history, &event);
                    turn.store(number + 1, Ordering::Release);
                }
                done.fetch_or(thread == THREADS - 1, Ordering::Release);
            });
        }
        while !done.load(Ordering::Acquire) {
            let entries = merged(&history, &rings);
            let numbers = entries.iter().map(|entry| entry.address);
            assert!(numbers.eq(0..entries.len() as u64), "no event is missing or out of order");
        }
    });
    assert_eq!(merged(&history, &rings).len() as u64, THREADS * ROUNDS);
}

#[cfg(feature = "backtrace")]
#[test]
fn rust_functions_have_names_in_stacks() {
    use std::sync::Arc;

    use thalweg_memory::history::RustStacks;

    #[inline(never)]
    fn a_function_that_allocates(history: &History, ring: &mut Ring) {
        let event = Event::new(Action::Alloc, 512, 512, StreamId::from_raw(1));
        ring.push(history, &Event { stack: history.stack_of_allocation(), ..event });
    }

    let history = recording();
    assert!(history.set_stack_source(Arc::new(RustStacks::new())).is_ok(), "it is the first");
    let ring = Mutex::new(Ring::new());
    for _ in 0..std::hint::black_box(2) {
        a_function_that_allocates(&history, &mut ring.lock());
    }
    let entries = merged(&history, &[ring]);
    let stacks = [0, 1].map(|index| entries[index].frames.clone().expect("there is a source"));
    assert_eq!(stacks[0], stacks[1]);
    assert!(Arc::ptr_eq(&stacks[0], &stacks[1]), "one place is one stack");
    assert!(stacks[0][0].name.contains("a_function_that_allocates"), "{:?}", stacks[0][0]);
    assert!(stacks[0][0].filename.ends_with("histories.rs") && stacks[0][0].line > 0, "{:?}", stacks[0][0]);
}
