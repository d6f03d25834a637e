//! A guard that owns what its mutex lies in, and a place behind the lock for such owners.
//!
//! Something counted, with a mutex inside, is handed about as an [`Arc`]; whoever is done with his locks it, changes
//! something, and drops the reference, and the next one to come clones another. Both are atomic. But behind the lock nobody
//! else is there: a reference that is *left* there instead, and taken from there, costs no more than a plain counter.
//!
//! Whoever leaves references makes a circle: what is counted now owns itself. It is broken by taking the [`Pile`] out, which is
//! its user's duty.

use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::Arc;

use crate::{BiasedMutex, BiasedMutexGuard};

/// A locked mutex that lies in what `owner` refers to.
#[must_use = "the mutex is unlocked when the guard is dropped"]
pub struct OwnedGuard<A, T: 'static> {
    /// Dropped first: it points into what the owner keeps.
    guard: BiasedMutexGuard<'static, T>,
    /// There until it is left, which ends the guard.
    owner: Option<Arc<A>>,
}

impl<A, T> OwnedGuard<A, T> {
    /// Tries to lock the mutex `of` what `owner` refers to.
    ///
    /// # Errors
    /// The owner again, if the mutex is locked ([`BiasedMutex::try_lock`]).
    #[inline]
    pub fn try_lock(owner: Arc<A>, of: impl FnOnce(&A) -> &BiasedMutex<T>) -> Result<Self, Arc<A>> {
        let mutex: *const BiasedMutex<T> = of(&owner);
        // SAFETY: it is valid for as long as the referred is, by the type of `of`. The guard below lives no longer than the
        // owner beside it, which is dropped after it or left behind the lock (`leave`); and an `Arc` that moves does not
        // move what it refers to.
        let mutex: &'static BiasedMutex<T> = unsafe { &*mutex };
        match mutex.try_lock() {
            Some(guard) => Ok(Self { guard, owner: Some(owner) }),
            None => Err(owner),
        }
    }

    /// Leaves the owner in a pile behind the lock, and unlocks.
    #[inline]
    pub fn leave(mut self, pile: impl FnOnce(&mut T) -> &mut Pile<A>) {
        // The pile is in the value, so nobody can take the owner from it before the mutex is unlocked; and unlocking, by
        // dropping the guard, is the last that touches the mutex here.
        let pile = pile(&mut self.guard);
        pile.push(self.owner.take().expect("the owner is there until it is left"));
    }
}

impl<A, T> Deref for OwnedGuard<A, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<A, T> DerefMut for OwnedGuard<A, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<A, T: fmt::Debug> fmt::Debug for OwnedGuard<A, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}

/// Any number of references to one thing, kept as a number.
pub struct Pile<A> {
    /// What [`Arc::into_raw`] gave, if there are any.
    of: *const A,
    /// How many references are owned here.
    references: usize,
}

// SAFETY: it owns references, and is to be sent and shared where each of them is.
unsafe impl<A: Send + Sync> Send for Pile<A> {}
// SAFETY: as above.
unsafe impl<A: Send + Sync> Sync for Pile<A> {}

impl<A> Pile<A> {
    /// Adds a reference.
    ///
    /// # Panics
    /// If it refers to something else than those that are there.
    #[inline]
    pub fn push(&mut self, reference: Arc<A>) {
        let same = self.references == 0 || ptr::eq(self.of, Arc::as_ptr(&reference));
        assert!(same, "a pile is of references to one thing");
        self.of = Arc::into_raw(reference);
        self.references += 1;
    }

    /// Takes a reference, if there is one.
    #[inline]
    pub fn pop(&mut self) -> Option<Arc<A>> {
        self.references = self.references.checked_sub(1)?;
        // SAFETY: `of` is what `into_raw` gave for as many references as were counted, and this one is counted no more.
        Some(unsafe { Arc::from_raw(self.of) })
    }

    /// How many references there are.
    pub fn len(&self) -> usize {
        self.references
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.references == 0
    }

    /// Takes all of them: drop the pile outside of the lock.
    pub fn take(&mut self) -> Self {
        mem::take(self)
    }
}

impl<A> Default for Pile<A> {
    fn default() -> Self {
        Self { of: ptr::null(), references: 0 }
    }
}

impl<A> Drop for Pile<A> {
    fn drop(&mut self) {
        while let Some(reference) = self.pop() {
            drop(reference);
        }
    }
}

impl<A> fmt::Debug for Pile<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pile").field("references", &self.references).finish()
    }
}
