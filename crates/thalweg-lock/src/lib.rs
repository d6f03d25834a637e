//! A lock for what one thread uses nearly always, and any thread now and then.
//!
//! An atomic read-modify-write costs some six nanoseconds even without contention, because it waits for all stores
//! before it. A mutex has two, and a counted reference two more; where the work between them takes thirty, that is half the
//! time. This crate does without them, and it is `unsafe` inside, so it is small, knows nothing of its users, and has a model
//! checker:
//!
//! - [`BiasedMutex`] belongs to the thread that uses it, which locks and unlocks with plain stores. Another thread can take
//!   it away, at the price of some microseconds, and by a rule that bounds how often that happens.
//! - [`OwnedGuard`] locks a mutex inside an [`Arc`](std::sync::Arc) through that very reference, and may leave the reference
//!   behind the lock instead of counting it down; [`Pile`] is what it is left in, to be taken from the next time.
//!
//! What is not here: fairness, poisoning, condition variables. `docs/decisions/0012` says why the crate exists.
//!
//! ```
//! let sum = thalweg_lock::BiasedMutex::new(0);
//! *sum.lock() += 1;
//! std::thread::scope(|scope| {
//!     scope.spawn(|| *sum.lock() += 1);
//! });
//! assert_eq!(*sum.lock(), 2);
//! ```

mod barrier;
mod biased;
mod owned;
mod sync;

pub use biased::{BiasedMutex, BiasedMutexGuard};
pub use owned::{OwnedGuard, Pile};
