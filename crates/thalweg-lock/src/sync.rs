//! Synchronisation primitives of the standard library, or of the model checker in its place (`--cfg loom`).
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --profile loom -p thalweg-lock --lib loom_ --target-dir target/loom
//! ```

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicU64},
    thread,
};
#[cfg(not(loom))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicU64},
    thread,
};

#[cfg(loom)]
pub(crate) use crate::locks::checked::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use crate::locks::{Mutex, MutexGuard};
pub(crate) use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The standard library's cell, with the interface of the model checker's.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline]
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    #[inline]
    pub(crate) fn with_mut<R>(&self, change: impl FnOnce(*mut T) -> R) -> R {
        change(self.0.get())
    }
}

/// Names of threads: multiples of `STEP`, never used twice, so that no thread is mistaken for one that has ended. The address of
/// a thread-local would be shorter, but addresses are reused.
pub(crate) mod token {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU64, Ordering};

    pub(crate) const STEP: u64 = 16;

    static NEXT: AtomicU64 = AtomicU64::new(1);

    #[cfg(not(loom))]
    thread_local! {
        // A constant without a destructor: reading it is one instruction, and possible at any time of the thread's life.
        static TOKEN: Cell<u64> = const { Cell::new(0) };
    }
    #[cfg(loom)]
    loom::thread_local! {
        static TOKEN: Cell<u64> = Cell::new(0);
    }

    /// Returns the calling thread's token, or 0 if it has none yet.
    #[inline]
    pub(crate) fn peek() -> u64 {
        TOKEN.with(Cell::get)
    }

    /// Returns the calling thread's token.
    pub(crate) fn get() -> u64 {
        TOKEN.with(|token| {
            if token.get() == 0 {
                token.set(NEXT.fetch_add(1, Ordering::Relaxed) * STEP);
            }
            token.get()
        })
    }
}
