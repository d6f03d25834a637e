//! The standard library's locks without poison: [`Mutex`], [`RwLock`] and [`Condvar`].
//!
//! A panic of a thread that has a guard unlocks, and the next thread that locks sees the value as the panic left it. Code that
//! calls a user's function with a guard keeps the value valid at that call, so poison would only turn one failure into many: the
//! panic has already reached the thread that panicked, and the thread that joins it.

#![expect(clippy::disallowed_types, reason = "the wrappers of these types")]

use std::fmt;
use std::sync::{self, PoisonError, TryLockError};
use std::time::Duration;

pub use std::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// A mutual exclusion lock, as [`std::sync::Mutex`], without poison.
#[derive(Default)]
pub struct Mutex<T: ?Sized>(sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Creates an unlocked mutex around `value`.
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Locks the mutex. *Blocks* while another thread has it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the mutex, unless it is locked.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        unless_locked(self.0.try_lock())
    }

    /// Returns the value without locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.try_lock() {
            Some(value) => f.debug_tuple("Mutex").field(&&*value).finish(),
            None => f.write_str("Mutex(<locked>)"),
        }
    }
}

/// A lock for many readers or one writer, as [`std::sync::RwLock`], without poison.
#[derive(Default)]
pub struct RwLock<T: ?Sized>(sync::RwLock<T>);

impl<T> RwLock<T> {
    /// Creates an unlocked lock around `value`.
    pub const fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Locks for reading. *Blocks* while a writer has the lock.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks for writing. *Blocks* while another thread has the lock.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks for reading, unless a writer has the lock.
    #[inline]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        unless_locked(self.0.try_read())
    }

    /// Locks for writing, unless the lock is taken.
    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        unless_locked(self.0.try_write())
    }

    /// Returns the value without locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.try_read() {
            Some(value) => f.debug_tuple("RwLock").field(&&*value).finish(),
            None => f.write_str("RwLock(<locked>)"),
        }
    }
}

/// A condition variable, as [`std::sync::Condvar`], for the guards of a [`Mutex`] here.
#[derive(Default, Debug)]
pub struct Condvar(sync::Condvar);

impl Condvar {
    /// Creates a condition variable that no thread waits for.
    pub const fn new() -> Self {
        Self(sync::Condvar::new())
    }

    /// Unlocks, waits for a notification, and locks again. *Blocks*; may also return without a notification.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while `condition` holds. *Blocks*.
    pub fn wait_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        self.0.wait_while(guard, condition).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a notification, at most for `limit`. Returns whether the time ran out, too.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
    ) -> (MutexGuard<'a, T>, bool) {
        let (guard, result) = self.0.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner);
        (guard, result.timed_out())
    }

    /// Waits while `condition` holds, at most for `limit`. Returns whether the time ran out, too.
    pub fn wait_timeout_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, bool) {
        let waited = self.0.wait_timeout_while(guard, limit, condition);
        let (guard, result) = waited.unwrap_or_else(PoisonError::into_inner);
        (guard, result.timed_out())
    }

    /// Wakes one thread that waits.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all threads that wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Returns the guard of an attempt to lock, or `None` if the lock is taken.
fn unless_locked<G>(attempt: sync::TryLockResult<G>) -> Option<G> {
    match attempt {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// The model checker's mutex with the interface of [`Mutex`], for tests of other crates with `--cfg loom`.
#[cfg(loom)]
pub mod checked {
    use std::sync::PoisonError;

    pub use loom::sync::MutexGuard;

    /// A mutex of the model checker.
    #[derive(Default, Debug)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        /// Creates an unlocked mutex around `value`.
        pub fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        /// Locks the mutex.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        /// Locks the mutex, unless it is locked.
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            super::unless_locked(self.0.try_lock())
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn a_panic_with_a_guard_unlocks_and_leaves_the_value() {
        let (mutex, lock) = (Mutex::new(1), RwLock::new(1));
        let panic = catch_unwind(AssertUnwindSafe(|| {
            let (mut value, mut other) = (mutex.lock(), lock.write());
            (*value, *other) = (2, 3);
            panic!("with both guards");
        }));
        assert!(panic.is_err());
        assert_eq!((*mutex.lock(), *lock.read()), (2, 3));
        assert_eq!(mutex.try_lock().map(|value| *value), Some(2));
        assert_eq!(lock.try_write().map(|value| *value), Some(3));
        assert_eq!((mutex.into_inner(), lock.into_inner()), (2, 3));
    }

    #[test]
    fn an_attempt_fails_while_the_lock_is_taken() {
        let (mutex, lock) = (Mutex::new(()), RwLock::new(()));
        let (guard, reading) = (mutex.lock(), lock.read());
        assert!(mutex.try_lock().is_none() && lock.try_write().is_none() && lock.try_read().is_some());
        drop((guard, reading));
        assert!(mutex.try_lock().is_some() && lock.try_write().is_some());
    }

    #[test]
    fn a_waiting_thread_continues_after_another_panicked_with_the_guard() {
        let shared = Arc::new((Mutex::new(false), Condvar::new()));
        let other = Arc::clone(&shared);
        let panicked = thread::spawn(move || {
            let mut is_set = other.0.lock();
            *is_set = true;
            other.1.notify_all();
            panic!("with the guard");
        });
        assert!(*shared.1.wait_while(shared.0.lock(), |is_set| !*is_set));
        assert!(panicked.join().is_err());
        let (is_set, is_late) = shared.1.wait_timeout(shared.0.lock(), Duration::from_millis(1));
        assert!(*is_set && is_late, "no thread notifies any more");
    }
}
