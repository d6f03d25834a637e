//! Locks: those of the standard library without poison ([`Mutex`], [`RwLock`], [`Condvar`]), and one for data that one thread
//! uses nearly always, and any other thread now and then.
//!
//! A panic with a guard unlocks and leaves the value as it is. Poison would turn one failure into many, and every user of a lock
//! here keeps the value valid wherever something may panic.
//!
//! An atomic read-modify-write costs some six nanoseconds even without contention, because it waits for all earlier stores.
//! Locking and unlocking a mutex needs two of them, and cloning and dropping a counted reference two more; where the work in
//! between takes thirty nanoseconds, that is half the time. The other two types avoid them. They are `unsafe` inside, so they are
//! small, do not depend on their users, and are checked by a model checker:
//!
//! - [`BiasedMutex`] belongs to the thread that uses it, which locks and unlocks with plain stores. Another thread can take it
//!   over, at a cost of some microseconds, and by a rule that bounds how often that happens.
//! - [`OwnedGuard`] locks a mutex inside an [`Arc`](std::sync::Arc) through that very reference, and may leave the reference
//!   inside the mutex instead of decrementing its count; a [`DeferredReferences`] stores such references until the next user takes one.
//!
//! Not provided: fairness. `docs/decisions/0012` explains why the crate exists.
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
mod locks;
mod owned;
mod sync;

pub use biased::{BiasedMutex, BiasedMutexGuard};
#[cfg(loom)]
pub use locks::checked;
pub use locks::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use owned::{DeferredReferences, OwnedGuard};
