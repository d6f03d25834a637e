//! [`Ahead`]: values that background threads make before they are requested.
//!
//! Compiling a kernel takes a tenth of a second, and a program that calls operators one after the other would compile its kernels one
//! after the other. So an operator that records a gradient announces the gradient's kernels ([`Ahead::expect`]), and threads compile them
//! while the program goes on. Who needs a kernel takes it ([`Ahead::take`]): finished, or waits for the thread that makes it, or makes it
//! itself if no thread has begun.
//!
//! # Invariants
//! - All state is behind one lock, which is never held while something is made.
//! - A key has at most one entry; a job runs at most once, and its entry is `Running` exactly while it runs on a thread of ours.
//! - Threads end when the queue is empty, so an idle program has none. A thread that exists sees every job that was queued before it
//!   saw an empty queue, because both happen under the lock.
//! - A process that ends waits for the jobs that run, and starts no other: a compiler cannot be unloaded while it works.

use std::collections::VecDeque;
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustc_hash::FxHashMap;
use thalweg_lock::{Condvar, Mutex};

/// Makes one value.
type Job<T> = Box<dyn FnOnce() -> T + Send>;

enum Entry<T> {
    Queued(Job<T>),
    Running,
    Made(T),
}

struct State<K, T> {
    entries: FxHashMap<K, Entry<T>>,
    /// The keys of entries that may be queued, oldest first; some were taken meanwhile.
    queue: VecDeque<K>,
    threads: usize,
}

/// Values that are made ahead, by key.
pub(crate) struct Ahead<K, T> {
    state: Mutex<State<K, T>>,
    /// Notified when a job is done.
    done: Condvar,
}

impl<K, T> Default for Ahead<K, T> {
    fn default() -> Self {
        let state = State { entries: FxHashMap::default(), queue: VecDeque::new(), threads: 0 };
        Self { state: Mutex::new(state), done: Condvar::new() }
    }
}

impl<K: Clone + Eq + Hash + Send + 'static, T: Send + 'static> Ahead<K, T> {
    /// Returns whether a value is being made, or is made.
    pub(crate) fn contains(&self, key: &K) -> bool {
        self.state.lock().entries.contains_key(key)
    }

    /// Returns whether a thread makes a value, or has made it.
    pub(crate) fn is_begun(&self, key: &K) -> bool {
        matches!(self.state.lock().entries.get(key), Some(Entry::Running | Entry::Made(_)))
    }

    /// Keeps a value that was made, unless a thread is making it.
    pub(crate) fn put(&self, key: K, value: T) {
        let mut state = self.state.lock();
        if !matches!(state.entries.get(&key), Some(Entry::Running)) {
            state.entries.insert(key, Entry::Made(value));
        }
    }

    /// Makes a value in the background, by at most this number of threads, unless the key has one. Does not block. Libraries that the
    /// first job needs are loaded before: a process that ends then waits for jobs before it unloads them.
    pub(crate) fn expect(
        self: &Arc<Self>,
        key: K,
        most_threads: usize,
        make: impl FnOnce() -> T + Send + 'static,
    ) {
        static WAITS: OnceLock<bool> = OnceLock::new();
        let waits = *WAITS.get_or_init(|| thalweg_driver::at_exit(wait_at_exit));
        let mut state = self.state.lock();
        if !waits || state.entries.contains_key(&key) || ENDS.load(Ordering::SeqCst) {
            return;
        }
        state.entries.insert(key.clone(), Entry::Queued(Box::new(make)));
        state.queue.push_back(key);
        if state.threads < most_threads {
            let ahead = Arc::clone(self);
            let thread = std::thread::Builder::new().name("thalweg-compile".to_owned());
            state.threads += usize::from(thread.spawn(move || ahead.work()).is_ok());
        }
    }

    /// Removes and returns a value, or `None` if the key has none. Waits if a thread is making it; makes it if none has begun.
    pub(crate) fn take(&self, key: &K) -> Option<T> {
        let mut state = self.state.lock();
        loop {
            match state.entries.remove(key)? {
                Entry::Made(value) => return Some(value),
                Entry::Queued(make) => {
                    drop(state);
                    return Some(make());
                }
                Entry::Running => {
                    state.entries.insert(key.clone(), Entry::Running);
                    state = self.done.wait(state);
                }
            }
        }
    }

    /// Runs jobs until none is queued.
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            let next = loop {
                let Some(key) = state.queue.pop_front() else { break None };
                match state.entries.get_mut(&key) {
                    Some(entry @ Entry::Queued(_)) => {
                        let Entry::Queued(make) = std::mem::replace(entry, Entry::Running) else {
                            break None;
                        };
                        break Some((key, make));
                    }
                    _ => continue,
                }
            };
            let Some((key, make)) = next else {
                state.threads -= 1;
                return;
            };
            drop(state);
            // The hook has reported a panic; who needs the value finds none, and makes it.
            let made = Running::begin().and_then(|_running| catch_unwind(AssertUnwindSafe(make)).ok());
            state = self.state.lock();
            match made {
                Some(value) => state.entries.insert(key, Entry::Made(value)),
                None => state.entries.remove(&key),
            };
            self.done.notify_all();
        }
    }
}

/// Whether the process ends.
static ENDS: AtomicBool = AtomicBool::new(false);

/// The number of jobs that run on background threads.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// A job that runs, for which the end of the process waits.
struct Running;

impl Running {
    /// Returns `None` if the process ends. The number is raised before `ENDS` is read, and [`wait_at_exit`] sets `ENDS` before it reads the
    /// number, both in one total order: either the job sees the end, or the end sees the job.
    fn begin() -> Option<Self> {
        RUNNING.fetch_add(1, Ordering::SeqCst);
        let running = Self;
        (!ENDS.load(Ordering::SeqCst)).then_some(running)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits for the jobs that run.
fn wait_at_exit() {
    ENDS.store(true, Ordering::SeqCst);
    while RUNNING.load(Ordering::SeqCst) > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_value_is_made_once() {
        let ahead = Arc::new(Ahead::<usize, usize>::default());
        let made = Arc::new(AtomicUsize::new(0));
        for round in 0..200 {
            let keys = round * 8..round * 8 + 8;
            for key in keys.clone() {
                for _ in 0..2 {
                    let made = Arc::clone(&made);
                    ahead.expect(key, 1 + round % 4, move || {
                        made.fetch_add(1, Ordering::Relaxed);
                        key * 3
                    });
                }
            }
            for key in keys.rev() {
                assert_eq!(ahead.take(&key), Some(key * 3), "round {round}");
                assert_eq!(ahead.take(&key), None, "it is taken");
            }
        }
        assert_eq!(made.load(Ordering::Relaxed), 1600);
    }

    #[test]
    fn who_takes_what_a_thread_makes_waits_for_it() {
        let ahead = Arc::new(Ahead::<u8, &str>::default());
        let (begun, has_begun) = mpsc::channel();
        let (proceed, may_proceed) = mpsc::channel::<()>();
        ahead.expect(1, 1, move || {
            begun.send(()).unwrap();
            may_proceed.recv().unwrap();
            "made"
        });
        has_begun.recv().unwrap();
        assert!(ahead.contains(&1) && ahead.is_begun(&1));
        ahead.put(1, "made elsewhere");
        // The only thread is busy: this value is made by the one who takes it.
        ahead.expect(2, 1, || "taken early");
        ahead.expect(3, 1, || "made later");
        assert!(ahead.contains(&3) && !ahead.is_begun(&3));
        ahead.put(3, "made first");
        assert!(ahead.is_begun(&3) && ahead.take(&3) == Some("made first"));
        assert_eq!(ahead.take(&2), Some("taken early"));
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| ahead.take(&1));
            proceed.send(()).unwrap();
            assert_eq!(taken.join().unwrap(), Some("made"));
        });
        assert_eq!(ahead.take(&1), None, "it is taken, and was not kept twice");
    }

    #[test]
    fn a_job_that_panics_leaves_no_value_and_no_waiting_thread() {
        let ahead = Arc::new(Ahead::<u8, u8>::default());
        ahead.expect(1, 1, || panic!("a job of a test"));
        while ahead.contains(&1) {
            if let Ok(None) = catch_unwind(AssertUnwindSafe(|| ahead.take(&1))) {
                break;
            }
        }
        ahead.expect(1, 1, || 7);
        assert_eq!(ahead.take(&1), Some(7));
    }
}
