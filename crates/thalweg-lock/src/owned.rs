//! A guard that owns the value containing its mutex, and a store inside the mutex for such owners.
//!
//! A counted value with a mutex inside is passed around as an [`Arc`]: each user locks it, changes something, and drops the
//! reference, and the next user clones another. Both are atomic operations. But the code that holds the lock has exclusive
//! access, so a reference that is *left* inside the mutex and taken from there costs no more than a plain counter.
//!
//! Leaving references makes a cycle: the counted value now owns itself. Taking the [`DeferredReferences`] out breaks the cycle, which is its
//! user's duty.

use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::Arc;

use crate::BiasedMutex;
use crate::biased::RawGuard;

/// A locked mutex inside the value that `owner` refers to.
///
/// Owner and value borrow nothing (`'static`), so the mutex is inside a value that the owner keeps alive, and not inside one that
/// the owner only borrows, and that may have been dropped before the guard:
///
/// ```compile_fail,E0597
/// use std::sync::Arc;
/// use thalweg_lock::{BiasedMutex, OwnedGuard};
///
/// let guard;
/// let mutex = BiasedMutex::new(1);
/// guard = OwnedGuard::try_lock(Arc::new(&mutex), |mutex| *mutex);
/// ```
#[must_use = "the mutex is unlocked when the guard is dropped"]
pub struct OwnedGuard<A: 'static, T: 'static> {
    /// Dropped first: it points into the value that the owner keeps alive.
    guard: RawGuard<T>,
    owner: Arc<A>,
}

impl<A, T> OwnedGuard<A, T> {
    /// Tries to lock the mutex that `of` returns for the value of `owner`.
    ///
    /// # Errors
    /// Returns the owner if the mutex is locked ([`BiasedMutex::try_lock`]).
    #[inline]
    pub fn try_lock(owner: Arc<A>, of: impl FnOnce(&A) -> &BiasedMutex<T>) -> Result<Self, Arc<A>> {
        let Some(guard) = of(&owner).try_lock() else { return Err(owner) };
        // SAFETY: `of` takes a reference of any lifetime, up to all of the owner's life, and returns a mutex that is valid for
        // that lifetime. Neither type borrows anything, so it cannot be a mutex that is dropped earlier. The guard does not
        // outlive the owner in the same struct, which is dropped or returned after it, or left inside the mutex (`leave`). And
        // moving an `Arc` does not move its value.
        let guard = unsafe { guard.into_raw() };
        Ok(Self { guard, owner })
    }

    /// Returns the locked value, and the owner's value that contains the mutex.
    #[inline]
    pub fn parts(&mut self) -> (&mut T, &A) {
        (self.guard.value_mut(), &self.owner)
    }

    /// Returns the owner's value, which contains the mutex.
    #[inline]
    pub fn owner(&self) -> &A {
        &self.owner
    }

    /// Unlocks, and returns the owner.
    pub fn unlock(self) -> Arc<A> {
        let Self { guard, owner } = self;
        drop(guard);
        owner
    }

    /// Leaves the owner in the deferred references inside the mutex, and unlocks.
    ///
    /// # Panics
    /// If there are deferred references to another value; the mutex is then unlocked, and the owner dropped.
    #[inline]
    pub fn leave(self, deferred: impl FnOnce(&mut T) -> &mut DeferredReferences<A>) {
        // The order of bindings matters: if `deferred` panics, the last binding is dropped first.
        let Self { owner, mut guard } = self;
        // Other threads may take and drop the deferred owner before the thread that unlocks an ordinary mutex has
        // returned.
        let until_unlocked = (!guard.unlocks_at_once()).then(|| Arc::clone(&owner));
        // The list is in the value, by the type of `deferred`, so no thread takes the owner from it before the mutex is unlocked.
        let refused = deferred(guard.value_mut()).try_push(owner);
        drop(guard);
        drop(until_unlocked);
        assert!(refused.is_ok(), "deferred references are to one value");
    }
}

impl<A, T> Deref for OwnedGuard<A, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.guard.value()
    }
}

impl<A, T> DerefMut for OwnedGuard<A, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.guard.value_mut()
    }
}

impl<A, T: fmt::Debug> fmt::Debug for OwnedGuard<A, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::fmt(self, f)
    }
}

/// References to one value, stored as a pointer and a count.
pub struct DeferredReferences<A> {
    /// The pointer that [`Arc::into_raw`] returned, if there are references.
    of: *const A,
    /// The number of references that this owns.
    references: usize,
}

// SAFETY: it owns references, and may be sent and shared where each of them may.
unsafe impl<A: Send + Sync> Send for DeferredReferences<A> {}
// SAFETY: as above.
unsafe impl<A: Send + Sync> Sync for DeferredReferences<A> {}

impl<A> DeferredReferences<A> {
    /// Adds a reference.
    ///
    /// # Panics
    /// If it refers to a different value than the deferred references.
    #[inline]
    pub fn push(&mut self, reference: Arc<A>) {
        assert!(self.try_push(reference).is_ok(), "deferred references are to one value");
    }

    /// Adds a reference, or returns it if it refers to a different value than the deferred references.
    #[inline]
    fn try_push(&mut self, reference: Arc<A>) -> Result<(), Arc<A>> {
        if self.references > 0 && !ptr::eq(self.of, Arc::as_ptr(&reference)) {
            return Err(reference);
        }
        self.of = Arc::into_raw(reference);
        self.references += 1;
        Ok(())
    }

    /// Takes a reference, if there is one.
    #[inline]
    pub fn pop(&mut self) -> Option<Arc<A>> {
        self.references = self.references.checked_sub(1)?;
        // SAFETY: `of` is the pointer that `into_raw` returned for each of the counted references, and this one is no longer
        // counted.
        Some(unsafe { Arc::from_raw(self.of) })
    }

    /// Returns the number of references.
    pub fn len(&self) -> usize {
        self.references
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.references == 0
    }

    /// Takes all references, so that they can be dropped outside of the lock.
    pub fn take(&mut self) -> Self {
        mem::take(self)
    }
}

impl<A> Default for DeferredReferences<A> {
    fn default() -> Self {
        Self { of: ptr::null(), references: 0 }
    }
}

impl<A> Drop for DeferredReferences<A> {
    fn drop(&mut self) {
        while let Some(reference) = self.pop() {
            drop(reference);
        }
    }
}

impl<A> fmt::Debug for DeferredReferences<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeferredReferences").field("references", &self.references).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[derive(Debug, Default)]
    struct Thing {
        state: BiasedMutex<State>,
    }

    #[derive(Debug, Default)]
    struct State {
        visits: u64,
        left: DeferredReferences<Thing>,
    }

    fn visit(thing: Arc<Thing>) -> Result<OwnedGuard<Thing, State>, Arc<Thing>> {
        let mut guard = OwnedGuard::try_lock(thing, |thing| &thing.state)?;
        guard.visits += 1;
        Ok(guard)
    }

    #[test]
    fn what_is_left_is_what_comes_out_and_each_is_counted_once() {
        let thing = Arc::new(Thing::default());
        for _ in 0..3 {
            visit(Arc::clone(&thing)).expect("no thread is inside").leave(|state| &mut state.left);
        }
        assert_eq!(Arc::strong_count(&thing), 4);
        let one = thing.state.lock().left.pop().expect("three were left");
        assert!(Arc::ptr_eq(&one, &thing));
        let one = visit(one).expect("no thread is inside").unlock();
        assert_eq!((thing.state.lock().left.len(), Arc::strong_count(&thing)), (2, 4));
        drop(one);
        let deferred = thing.state.lock().left.take();
        drop(deferred);
        assert_eq!((thing.state.lock().visits, Arc::strong_count(&thing)), (4, 1));
        assert!(thing.state.lock().left.pop().is_none());
    }

    #[test]
    fn a_thing_whose_last_reference_is_left_lives_until_it_is_taken() {
        let thing = Arc::new(Thing::default());
        let gone = Arc::downgrade(&thing);
        visit(thing).expect("no thread is inside").leave(|state| &mut state.left);
        let thing = gone.upgrade().expect("it owns itself");
        let deferred = thing.state.lock().left.take();
        drop(thing);
        assert_eq!(gone.strong_count(), 1);
        drop(deferred);
        assert_eq!(gone.strong_count(), 0);
    }

    #[test]
    fn a_guard_that_is_dropped_with_the_last_reference_unlocks_first() {
        let thing = Arc::new(Thing::default());
        let gone = Arc::downgrade(&thing);
        drop(visit(thing));
        assert_eq!(gone.strong_count(), 0);
    }

    #[test]
    fn a_panic_while_leaving_drops_the_reference_behind_the_guard() {
        let thing = Arc::new(Thing::default());
        let gone = Arc::downgrade(&thing);
        let guard = visit(thing).expect("no thread is inside");
        let panicked = catch_unwind(AssertUnwindSafe(|| guard.leave(|_| panic!("no pile"))));
        assert!(panicked.is_err());
        assert_eq!(gone.strong_count(), 0);
    }

    #[test]
    fn an_owner_that_the_pile_refuses_is_dropped_behind_the_guard() {
        let thing = Arc::new(Thing::default());
        thing.state.lock().left.push(Arc::new(Thing::default()));
        let gone = Arc::downgrade(&thing);
        let guard = visit(thing).expect("no thread is inside");
        let panicked = catch_unwind(AssertUnwindSafe(|| guard.leave(|state| &mut state.left)));
        assert!(panicked.is_err());
        assert_eq!(gone.strong_count(), 0);
    }

    #[test]
    fn who_finds_it_locked_keeps_the_reference() {
        let thing = Arc::new(Thing::default());
        let guard = thing.state.lock();
        let refused = visit(Arc::clone(&thing)).expect_err("it is locked");
        assert!(Arc::ptr_eq(&refused, &thing));
        drop(guard);
    }

    #[test]
    #[should_panic(expected = "deferred references are to one value")]
    fn a_pile_is_of_one_thing() {
        let mut deferred = DeferredReferences::default();
        deferred.push(Arc::new(1));
        deferred.push(Arc::new(1));
    }

    #[test]
    fn threads_that_leave_and_take_lose_none() {
        let thing = Arc::new(Thing::default());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..if cfg!(miri) { 50 } else { 20_000 } {
                        let taken = thing.state.lock().left.pop().unwrap_or_else(|| Arc::clone(&thing));
                        if let Ok(guard) = visit(taken) {
                            guard.leave(|state| &mut state.left);
                        }
                    }
                });
            }
        });
        let left = thing.state.lock().left.len();
        assert_eq!(Arc::strong_count(&thing), 1 + left);
        let deferred = thing.state.lock().left.take();
        drop(deferred);
        assert_eq!(Arc::strong_count(&thing), 1);
    }
}
