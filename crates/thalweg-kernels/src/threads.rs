//! Threads that share the work of a host function. They are started once and wait for work, which costs a few microseconds; starting a
//! thread costs tens.
//!
//! # Invariants
//! - What a host function computes does not depend on how many threads there are: jobs write apart, and a sum is cut into parts whose
//!   number follows from sizes alone.
//! - A job shares no work itself.

use std::num::NonZero;
use std::sync::OnceLock;
use std::thread;

use thread_tree::{ThreadTree, ThreadTreeCtx};

/// Returns how many threads a host function may have.
pub fn threads() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new();
    *THREADS.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get).min(MOST))
}

/// The most threads that share a host function.
const MOST: usize = 1 << 6;

/// Runs jobs, [`threads`] of them or fewer at a time, and returns their results in the jobs' order.
///
/// # Panics
/// If a job does, when all have ended.
pub fn share<R: Send>(jobs: Vec<impl FnOnce() -> R + Send>) -> Vec<R> {
    static TREE: OnceLock<Box<ThreadTree>> = OnceLock::new();
    if jobs.len() < 2 {
        return jobs.into_iter().map(|job| job()).collect();
    }
    let levels = || threads().next_power_of_two().trailing_zeros() as usize;
    halves(TREE.get_or_init(|| ThreadTree::new_with_level(levels())).top(), jobs)
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

/// Returns `count` things as ranges, for as many threads as there are and have `least` things each.
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
