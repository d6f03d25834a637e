//! A queue next to a lock, for threads that must not wait for the lock.
//!
//! Dropping a block returns it to an allocator that may be busy: another thread may be pinning memory with the lock held, or the
//! drop may happen inside a call that the allocator itself makes. A drop must neither wait nor fail. So it *tries* the lock, and
//! if the lock is taken it leaves its entry in the inbox. The next thread that takes the lock empties the inbox first, before it
//! does anything else.
//!
//! ```text
//! drop ──try_lock──▶ got it: empty the inbox, apply
//!           │
//!           └──────▶ taken:  push ──▶ inbox ──▶ applied by the next one to take the lock
//! ```
//!
//! The inbox is nearly always empty, and checking it must cost nothing: the number of entries is also stored in an atomic, so
//! that the usual check is one load and takes no lock.
//!
//! Invariants:
//!
//! - The number changes only with the queue's own lock held, after the queue has changed. That lock is held for a push or a pop
//!   and for nothing else: no call leaves this module meanwhile, so waiting for it is short.
//! - An entry that was pushed before a check is seen by that check if the push is ordered before it (for example by the lock that
//!   the inbox belongs to). A check that races with the push may miss the entry; then the next one sees it.
//! - Entries are processed in the order in which they were pushed, one at a time: if processing one panics, the rest are still
//!   there.
//!
//! Not part of this module: the lock, and the meaning of an entry.

use std::collections::VecDeque;

use crate::sync::{AtomicUsize, Mutex, MutexGuard, Ordering};

/// Entries for a thread that holds the lock. See the [module's essay](self).
#[derive(Debug)]
pub(crate) struct Inbox<T> {
    len: AtomicUsize,
    entries: Mutex<VecDeque<T>>,
}

impl<T> Default for Inbox<T> {
    fn default() -> Self {
        Self { len: AtomicUsize::new(0), entries: Mutex::default() }
    }
}

impl<T> Inbox<T> {
    /// Leaves an entry.
    pub(crate) fn push(&self, entry: T) {
        let mut entries = self.entries();
        entries.push_back(entry);
        self.len.store(entries.len(), Ordering::Release);
    }

    /// Returns whether the inbox was empty at the time of the call. One atomic load.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    /// Takes the oldest entry.
    pub(crate) fn pop(&self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let mut entries = self.entries();
        let entry = entries.pop_front();
        self.len.store(entries.len(), Ordering::Release);
        entry
    }

    fn entries(&self) -> MutexGuard<'_, VecDeque<T>> {
        // Neither a push nor a pop leaves the queue half changed.
        self.entries.lock()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn entries_leave_in_the_order_in_which_they_came() {
        let inbox = Inbox::default();
        assert_eq!(inbox.pop(), None);
        (0..3).for_each(|entry| inbox.push(entry));
        assert_eq!(inbox.pop(), Some(0));
        inbox.push(3);
        assert_eq!(std::iter::from_fn(|| inbox.pop()).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(inbox.pop(), None);
    }

    #[test]
    fn the_last_thread_to_take_the_lock_finds_all_entries() {
        // Producers try the lock and leave an entry when it is taken; no entry may be lost or processed twice.
        let (sum, inbox) = (Mutex::new(0u64), Inbox::default());
        let deliver = |amount: u64| match sum.try_lock() {
            Some(mut sum) => {
                while let Some(left) = inbox.pop() {
                    *sum += left;
                }
                *sum += amount;
            }
            None => inbox.push(amount),
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (1..=5000).for_each(deliver));
            }
        });
        let left: u64 = std::iter::from_fn(|| inbox.pop()).sum();
        assert_eq!(sum.into_inner() + left, 4 * 5000 * 5001 / 2);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;

    use super::*;
    use crate::sync::thread;

    #[test]
    fn loom_nothing_is_lost_or_comes_twice() {
        loom::model(|| {
            let shared = Arc::new((Mutex::new(0u64), Inbox::default()));
            let deliver = |shared: &(Mutex<u64>, Inbox<u64>), amount: u64| match shared.0.try_lock() {
                Some(mut sum) => {
                    while let Some(left) = shared.1.pop() {
                        *sum += left;
                    }
                    *sum += amount;
                }
                None => shared.1.push(amount),
            };
            let other = Arc::clone(&shared);
            let handle = thread::spawn(move || [1, 10].map(|amount| deliver(&other, amount)));
            deliver(&shared, 100);
            handle.join().expect("no thread panics");
            // The next thread that takes the lock finds all entries.
            let sum = shared.0.lock();
            let left: u64 = std::iter::from_fn(|| shared.1.pop()).sum();
            assert_eq!(*sum + left, 111);
        });
    }
}
