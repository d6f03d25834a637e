//! A guard that owns what its mutex lies in, and a place behind the lock for such owners.
//!
//! Something counted, with a mutex inside, is handed about as an [`Arc`]; each user locks it, changes
//! something, and drops the reference, and the next one to come clones another. Both are atomic. But behind the lock nothing
//! else is there: a reference that is *left* there instead, and taken from there, costs no more than a plain counter.
//!
//! Leaving references makes a circle: what is counted now owns itself. It is broken by taking the [`Pile`] out, which is
//! its user's duty.

use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::Arc;

use crate::BiasedMutex;
use crate::biased::RawGuard;

/// A locked mutex that lies in what `owner` refers to.
///
/// Owner and value borrow nothing (`'static`), so the mutex lies in what the owner keeps alive, and not in something that
/// the owner only borrows, and that may be gone when the guard is dropped:
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
    /// Dropped first: it points into what the owner keeps.
    guard: RawGuard<T>,
    owner: Arc<A>,
}

impl<A, T> OwnedGuard<A, T> {
    /// Tries to lock the mutex `of` what `owner` refers to.
    ///
    /// # Errors
    /// The owner again, if the mutex is locked ([`BiasedMutex::try_lock`]).
    #[inline]
    pub fn try_lock(owner: Arc<A>, of: impl FnOnce(&A) -> &BiasedMutex<T>) -> Result<Self, Arc<A>> {
        let Some(guard) = of(&owner).try_lock() else { return Err(owner) };
        // SAFETY: `of` takes a reference of any lifetime, up to all that the owner may be alive, and gives a mutex that is valid
        // for as long: neither type borrows anything, so it cannot be one that goes earlier. The guard lives no longer than the
        // owner beside it, which is dropped or given out after it, or left behind the lock (`leave`). And an `Arc` that moves
        // does not move what it refers to.
        let guard = unsafe { guard.into_raw() };
        Ok(Self { guard, owner })
    }

    /// Returns the value, and what it lies in.
    #[inline]
    pub fn parts(&mut self) -> (&mut T, &A) {
        (self.guard.value_mut(), &self.owner)
    }

    /// Returns what the mutex lies in.
    #[inline]
    pub fn owner(&self) -> &A {
        &self.owner
    }

    /// Unlocks and gives the owner back.
    pub fn unlock(self) -> Arc<A> {
        let Self { guard, owner } = self;
        drop(guard);
        owner
    }

    /// Leaves the owner in a pile behind the lock, and unlocks.
    ///
    /// # Panics
    /// If the pile has references to something else; the mutex is unlocked then, and the owner dropped.
    #[inline]
    pub fn leave(self, pile: impl FnOnce(&mut T) -> &mut Pile<A>) {
        // In this order: if `pile` panics, what is bound last is dropped first.
        let Self { owner, mut guard } = self;
        // What is left may be taken and dropped by others before the thread that unlocks an ordinary mutex has returned.
        let until_unlocked = (!guard.unlocks_at_once()).then(|| Arc::clone(&owner));
        // The pile is in the value, by the type of `pile`, so nothing takes the owner from it before the mutex is unlocked.
        let refused = pile(guard.value_mut()).try_push(owner);
        drop(guard);
        drop(until_unlocked);
        assert!(refused.is_ok(), "a pile is of references to one thing");
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

/// Any number of references to one thing, kept as a number.
pub struct Pile<A> {
    /// The pointer that [`Arc::into_raw`] returned, if there are references.
    of: *const A,
    /// The number of references that are owned here.
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
        assert!(self.try_push(reference).is_ok(), "a pile is of references to one thing");
    }

    /// Adds a reference, or gives it back if it refers to something else than those that are there.
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
        // SAFETY: `of` is what `into_raw` gave for as many references as were counted, and this one is counted no more.
        Some(unsafe { Arc::from_raw(self.of) })
    }

    /// Returns how many references there are.
    pub fn len(&self) -> usize {
        self.references
    }

    /// Returns whether there are none.
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
        left: Pile<Thing>,
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
        let pile = thing.state.lock().left.take();
        drop(pile);
        assert_eq!((thing.state.lock().visits, Arc::strong_count(&thing)), (4, 1));
        assert!(thing.state.lock().left.pop().is_none());
    }

    #[test]
    fn a_thing_whose_last_reference_is_left_lives_until_it_is_taken() {
        let thing = Arc::new(Thing::default());
        let gone = Arc::downgrade(&thing);
        visit(thing).expect("no thread is inside").leave(|state| &mut state.left);
        let thing = gone.upgrade().expect("it owns itself");
        let pile = thing.state.lock().left.take();
        drop(thing);
        assert_eq!(gone.strong_count(), 1);
        drop(pile);
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
    #[should_panic(expected = "references to one thing")]
    fn a_pile_is_of_one_thing() {
        let mut pile = Pile::default();
        pile.push(Arc::new(1));
        pile.push(Arc::new(1));
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
        let pile = thing.state.lock().left.take();
        drop(pile);
        assert_eq!(Arc::strong_count(&thing), 1);
    }
}
