//! The atomics and locks that threads share, from the standard library, or from the model checker in its place.
//!
//! With `--cfg loom` the counting without a shared counter ([`gauges`](crate::device::gauges)), the
//! [`inbox`](crate::device::inbox) and the [`pending_list`](crate::device::pending_list) use loom's atomics and locks, and their tests try every
//! order that matters. Nothing else is built on this module, so with that flag only the tests named `loom` can run:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --profile loom -p thalweg-memory --lib loom_ --target-dir target/loom
//! ```

#[cfg(loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence},
    thread::{self, ThreadId},
};
#[cfg(not(loom))]
pub(crate) use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence},
    thread::{self, ThreadId},
};
#[cfg(loom)]
pub(crate) use thalweg_lock::checked::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use thalweg_lock::{Mutex, MutexGuard};
