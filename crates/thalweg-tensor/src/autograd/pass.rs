//! The backward passes that a thread runs: one, or more where a hook runs another.

use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use crate::scoped::{Scoped, scoped};

thread_local! {
    static PASSES: Scoped<SmallVec<[Running; 2]>> = const { scoped(SmallVec::new_const()) };
}

struct Running {
    number: u64,
    at_end: Vec<Box<dyn FnOnce()>>,
}

/// A guard: while it lives, this thread runs a backward pass.
pub(super) struct RunningPass;

impl RunningPass {
    pub(super) fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        PASSES.with_borrow_mut(|passes| passes.push(Running { number, at_end: Vec::new() }));
        Self
    }
}

impl Drop for RunningPass {
    fn drop(&mut self) {
        let ended = PASSES.with_borrow_mut(|passes| passes.pop()).expect("it was pushed");
        ended.at_end.into_iter().for_each(|function| function());
    }
}

/// Returns the number of the innermost pass that this thread runs; no two have the same.
pub(super) fn number() -> Option<u64> {
    PASSES.with_borrow(|passes| passes.last().map(|pass| pass.number))
}

/// Calls a function at the end of the innermost pass, also where that fails.
pub(super) fn at_end(function: impl FnOnce() + 'static) {
    PASSES.with_borrow_mut(|passes| {
        if let Some(pass) = passes.last_mut() {
            pass.at_end.push(Box::new(function));
        }
    });
}
