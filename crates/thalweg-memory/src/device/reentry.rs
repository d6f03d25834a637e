//! Guards against calls of an allocator from a function that it calls with its locks held.
//!
//! Observers of events, callbacks for lack of memory and sources of segments are functions of the program, and may run any code.
//! An allocation there would wait for a lock that its own thread holds. So the thread is marked, and calls that would wait for
//! ever are refused instead: with an error if the call returns one, otherwise by a panic. Dropping a block is allowed: the free
//! is queued.
//!
//! An allocation that the cache serves does not check the mark, unless there is an observer.

use std::cell::Cell;

use crate::error::Kind;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
    static TELLS_OF_FAILURE: Cell<bool> = const { Cell::new(false) };
}

/// A guard during whose life the calling thread is in a function of the program, with a lock held.
#[derive(Debug)]
pub(crate) struct Outside(());

impl Outside {
    pub(crate) fn enter() -> Self {
        CALLS.set(CALLS.get() + 1);
        Self(())
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        CALLS.set(CALLS.get() - 1);
    }
}

/// Returns an error if the calling thread is in a function that the allocator called with a lock held.
pub(crate) fn check() -> Result<(), Kind> {
    if CALLS.get() > 0 { Err(Kind::Reentered) } else { Ok(()) }
}

/// Runs `report`, which notifies observers of a failed request. Requests that fail inside are not reported: that would never end.
pub(crate) fn report_failure(report: impl FnOnce()) {
    struct Reported;
    impl Drop for Reported {
        fn drop(&mut self) {
            TELLS_OF_FAILURE.set(false);
        }
    }
    if !TELLS_OF_FAILURE.replace(true) {
        let _told = Reported;
        report();
    }
}
