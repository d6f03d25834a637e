//! Threads that share the work of a host function. They are started once and wait for work, which costs a few microseconds;
//! starting a thread costs tens. A process that is forked has none of its parent's threads, and starts its own.
//!
//! # Invariants
//! - The results of a host function do not depend on the number of threads: jobs write disjoint memory, and a sum is divided into
//!   parts whose number depends only on sizes.
//! - A job does not share work itself.

use std::num::NonZero;
use std::sync::OnceLock;
use std::{process, thread};

use thread_tree::{ThreadTree, ThreadTreeCtx};

/// Returns the number of threads that a host function may use.
pub fn threads() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new();
    *THREADS.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get).min(MOST))
}

/// The amount of work, in elements times steps of a program, that justifies a thread: some 30 µs, while waking one takes 5.
pub const WORK_OF_A_THREAD: u64 = 100_000;

/// The most threads that share a host function.
const MOST: usize = 1 << 6;

/// The threads of a process, and those of a process that was forked from it.
struct Threads {
    process: u32,
    tree: Box<ThreadTree>,
    of_fork: OnceLock<Box<Threads>>,
}

impl Threads {
    fn start() -> Self {
        let levels = threads().next_power_of_two().trailing_zeros() as usize;
        Self { process: process::id(), tree: ThreadTree::new_with_level(levels), of_fork: OnceLock::new() }
    }

    /// Returns the threads of this process, which are started if there are none.
    fn own() -> &'static Self {
        static FIRST: OnceLock<Threads> = OnceLock::new();
        let mut found = FIRST.get_or_init(Self::start);
        while found.process != process::id() {
            found = found.of_fork.get_or_init(|| Box::new(Self::start()));
        }
        found
    }
}

/// Runs jobs, at most [`threads`] of them at a time, and returns their results in the jobs' order.
///
/// # Panics
/// If a job panics, after all have ended.
pub fn share<R: Send>(jobs: Vec<impl FnOnce() -> R + Send>) -> Vec<R> {
    if jobs.len() < 2 {
        return jobs.into_iter().map(|job| job()).collect();
    }
    halves(Threads::own().tree.top(), jobs)
}

fn halves<R: Send>(tree: ThreadTreeCtx<'_>, mut jobs: Vec<impl FnOnce() -> R + Send>) -> Vec<R> {
    if jobs.len() < 2 || !tree.is_parallel() {
        return jobs.into_iter().map(|job| job()).collect();
    }
    let later = jobs.split_off(jobs.len().div_ceil(2));
    let (mut first, second) = tree.join(|tree| halves(tree, jobs), |tree| halves(tree, later));
    first.extend(second);
    first
}

/// Divides `count` items into ranges, for as many threads as are available and have at least `least` items each.
pub fn ranges(count: usize, least: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let parts = (count / least.max(1)).clamp(1, threads());
    (0..parts).map(move |part| count * part / parts..count * (part + 1) / parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_jobs() {
        for count in [0, 1, 2, 3, 7, 100] {
            let jobs: Vec<_> = (0..count).map(|job| move || job * job).collect();
            assert_eq!(share(jobs), (0..count).map(|job| job * job).collect::<Vec<_>>());
        }
    }

    #[test]
    fn several_callers_share_at_once() {
        thread::scope(|scope| {
            for caller in 0..8 {
                scope.spawn(move || {
                    for _ in 0..100 {
                        let jobs: Vec<_> = (0..4).map(|job| move || caller + job).collect();
                        assert_eq!(share(jobs), [caller, caller + 1, caller + 2, caller + 3]);
                    }
                });
            }
        });
    }

    #[test]
    fn ranges_cover_all_once() {
        for (count, least) in [(0, 1), (1, 1), (5, 2), (1000, 1), (1000, 999), (7, 0)] {
            let covered: Vec<usize> = ranges(count, least).flatten().collect();
            assert_eq!(covered, (0..count).collect::<Vec<_>>());
        }
    }
}
