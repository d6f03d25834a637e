//! Whether a thread is in a function of the program's that an allocator calls with its locks held.
//!
//! Observers of events, callbacks for want of memory and sources of segments are the program's, and may do what they like. An
//! allocation there would wait for a lock that its own thread has. So the thread takes note, and calls that would wait for ever
//! are refused instead: with an error where there is one to give, else by a panic. Dropping a block is fine: it is queued.
//!
//! What is not here: the locks. Nobody is asked on the way of an allocation that the cache serves, unless somebody observes.

use std::cell::Cell;

use crate::error::Kind;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
    static TELLS_OF_FAILURE: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread is in a function of the program's, with a lock held, as long as this lives.
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

/// An error if the calling thread is in such a function.
pub(crate) fn check() -> Result<(), Kind> {
    if CALLS.get() > 0 { Err(Kind::Reentered) } else { Ok(()) }
}

/// Tells somebody of a request that failed. What he asks for himself and does not get he is not told of: that would go on for
/// ever.
pub(crate) fn tell_of_failure(tell: impl FnOnce()) {
    struct Told;
    impl Drop for Told {
        fn drop(&mut self) {
            TELLS_OF_FAILURE.set(false);
        }
    }
    if !TELLS_OF_FAILURE.replace(true) {
        let _told = Told;
        tell();
    }
}
