//! [`BiasedMutex`]: a mutex that leans towards one thread.
//!
//! # The protocol
//!
//! `owner` names the thread that the mutex is biased to, if any. Each bias that is ever granted has a flag of its own in
//! `held`, and only the thread that it was granted to ever writes it. Beside them there is an ordinary mutex, `shared`, which
//! all other threads take, and under which biases are granted and revoked.
//!
//! ```text
//! the owner                              another thread, with `shared` locked
//!
//!   owner == me?  (else: as others)        owner = SHARED
//!   held = true                            heavy barrier
//!   light barrier                          wait until held == false      (`try_lock`: give up if it is not)
//!   owner == me?  (else: held = false,     ... the value is its own while `shared` is locked ...
//!                  as others)
//!   ... the value is its own ...
//!   held = false  (release)
//! ```
//!
//! # Why two threads are never inside
//!
//! - *The owner enters while its bias is revoked.* It stores `held` and then loads `owner`; the other stores `owner` and then
//!   loads `held`. With the two barriers between (`barrier`) at least one sees the other: the owner draws back, or the other
//!   waits. Both may: then the other waits for the moment until the owner has drawn back.
//! - *What the owner wrote is seen.* The other leaves its wait by an acquiring load of the `false` that the owner released.
//!   Drawing back releases too: the load may read that store and not the one of the last unlock.
//! - *The owner comes late.* A thread may stop between its first look at `owner` and its store to `held` for as long as it
//!   likes. When it goes on, its bias may have been revoked long ago, and another granted. So no two biases share a flag: it
//!   writes one that is no longer read, sees that `owner` is another, and draws back. That is why the number of biases
//!   in a mutex's life is limited. (The same thread cannot be late for an old bias and have a new one.)
//! - *A bias is granted* to a thread that has locked `shared`, and waited as above. It sets its flag, then `owner`, and only
//!   then unlocks `shared`: it is inside by its flag without having left. A thread that waits for `shared` finds all three.
//! - *Giving up*. A thread in `try_lock` that finds the flag set leaves the bias revoked, but *unsettled*: the next one with
//!   `shared` locked looks at the flag again. Once it was seen down behind the heavy barrier it means nothing any more.
//! - *The kernel refuses the barrier* all at once, because of a filter that was installed after the first use. Then the heavy
//!   side waits instead, and no more biases are granted (`barrier`).
//! - *The owner enters twice.* It finds its own flag set: [`lock`](BiasedMutex::lock) panics, `try_lock` fails. If its bias was
//!   revoked meanwhile, `lock` blocks for ever, as that of the standard library may.
//! - *The owner ends.* Its flag is down, unless it forgot a guard; then the mutex is locked for ever, like any other. Its token
//!   is not given to another thread.
//! - *The process forks.* The child has one thread, with the token that it had; a guard of a thread that is not there is as
//!   stuck as that of an ordinary mutex.
//! - *A panic with a guard* unlocks. There is no poison: users keep their value valid at each call that may panic, or ignore
//!   poison today.
//! - *A thread is cancelled, or exits, with a guard* (`pthread_cancel`, `pthread_exit`). Rust gives no meaning to that: the guard
//!   may be dropped on the way or not. What is sure is that nothing goes on with the mutex locked for ever, since the process is
//!   aborted where the unwinding comes to a catch of panics or to a function that C calls.
//!
//! # What it costs
//!
//! The owner pays two loads and two stores. Taking a bias away costs a heavy barrier, microseconds. So the second bias of a
//! mutex is granted to a thread that has locked it [`FIRST_STREAK`] times in a row, each further one after twice as many, and
//! after the last flag the mutex is an ordinary one. All revocations together cost less than a fraction of the locks between
//! them, and there are at most [`FLAGS`].

use std::marker::PhantomData;
use std::mem::{self, MaybeUninit};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::PoisonError;
use std::{fmt, hint};

use crate::barrier;
use crate::sync::{
    Acquire, AtomicBool, AtomicU64, Mutex, MutexGuard, Relaxed, Release, TryLockError, UnsafeCell, thread,
    token,
};

/// The number of biases that a mutex grants in its life.
const FLAGS: usize = if cfg!(loom) { 2 } else { token::STEP as usize };
/// The number of locks in a row by one thread that the second bias takes; a heavy barrier is worth some hundred.
const FIRST_STREAK: u64 = if cfg!(loom) {
    1
} else if cfg!(miri) {
    16
} else {
    1024
};

/// No thread owns the mutex. Far from every token.
const SHARED: u64 = u64::MAX;

/// The state of the last bias.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bias {
    /// Its thread may enter.
    Standing,
    /// Its thread enters no more, but may be inside.
    Revoked,
    /// There is none.
    Settled,
}

/// The state that the ordinary mutex guards.
#[derive(Debug)]
struct Shared {
    bias: Bias,
    /// The number of biases that were granted so far.
    granted: usize,
    /// The thread that locked the ordinary mutex last, and how often in a row.
    thread: u64,
    streak: u64,
}

/// A mutex that the thread that uses it locks without an atomic read-modify-write. See the [crate's essay](crate).
///
/// It is not poisoned by a panic: what it guards should be valid whenever something may panic.
pub struct BiasedMutex<T> {
    /// [`SHARED`], or the owner's token plus the place of its flag.
    owner: AtomicU64,
    /// One for each bias.
    held: [AtomicBool; FLAGS],
    shared: Mutex<Shared>,
    /// The guard of `shared` while a guard of ours stands for it, which only that guard reads: two words are all that it is
    /// then, and it moves in registers. Never dropped from here: with a guard that was forgotten, this mutex may have moved.
    parked: std::cell::UnsafeCell<MaybeUninit<MutexGuard<'static, Shared>>>,
    value: UnsafeCell<T>,
}

// SAFETY: the value goes with the mutex, and nothing else in it belongs to a thread: a token is a name, and what is parked
// is only read by a guard, for whose life the mutex stays where it is, and which stays on its thread.
unsafe impl<T: Send> Send for BiasedMutex<T> {}
// SAFETY: a shared mutex gives the value to one thread at a time (the module's essay), which may take it away: hence `Send`.
unsafe impl<T: Send> Sync for BiasedMutex<T> {}

/// The result of an owner's attempt.
enum Entry {
    Entered(usize),
    Inside,
    NotOwner,
}

impl<T> BiasedMutex<T> {
    /// Creates a mutex around `value`. The first thread that locks it owns it until another comes.
    pub fn new(value: T) -> Self {
        Self {
            owner: AtomicU64::new(SHARED),
            held: std::array::from_fn(|_| AtomicBool::new(false)),
            shared: Mutex::new(Shared { bias: Bias::Settled, granted: 0, thread: 0, streak: 0 }),
            parked: std::cell::UnsafeCell::new(MaybeUninit::uninit()),
            value: UnsafeCell::new(value),
        }
    }

    /// Locks. *Blocks* while another thread has it.
    ///
    /// # Panics
    /// If the calling thread has it already, where that is noticed; else that blocks for ever.
    #[inline]
    pub fn lock(&self) -> BiasedMutexGuard<'_, T> {
        match self.enter() {
            Entry::Entered(flag) => self.entered(flag),
            Entry::Inside => panic!("a thread locks a mutex that it has locked"),
            Entry::NotOwner => self.lock_shared(),
        }
    }

    /// Locks, unless it is held: another thread, or the calling one. It may fail, too, when its owner was just about to
    /// lock it.
    #[inline]
    pub fn try_lock(&self) -> Option<BiasedMutexGuard<'_, T>> {
        match self.enter() {
            Entry::Entered(flag) => Some(self.entered(flag)),
            Entry::Inside => None,
            Entry::NotOwner => self.try_lock_shared(),
        }
    }

    /// Returns the value, without locking.
    pub fn get_mut(&mut self) -> &mut T {
        // SAFETY: the code that has the mutex alone has the value alone.
        self.value.with_mut(|value| unsafe { &mut *value })
    }

    #[inline]
    fn enter(&self) -> Entry {
        // A thread without a token is 0, and no owner is as small as a flag's place.
        let token = token::peek();
        let owner = self.owner.load(Relaxed);
        let flag = owner.wrapping_sub(token);
        if flag >= FLAGS as u64 {
            return Entry::NotOwner;
        }
        let held = &self.held[flag as usize];
        if held.load(Relaxed) {
            return Entry::Inside;
        }
        held.store(true, Relaxed);
        barrier::light();
        if self.owner.load(Relaxed) == owner {
            return Entry::Entered(flag as usize);
        }
        held.store(false, Release);
        Entry::NotOwner
    }

    #[inline]
    fn entered(&self, flag: usize) -> BiasedMutexGuard<'_, T> {
        BiasedMutexGuard::new(self, Some(&self.held[flag]))
    }

    #[cold]
    #[inline(never)]
    fn lock_shared(&self) -> BiasedMutexGuard<'_, T> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        self.revoke(&mut shared);
        let mut looks = 0;
        while !self.settle(&mut shared) {
            pause(&mut looks);
        }
        self.admit(shared)
    }

    #[cold]
    #[inline(never)]
    fn try_lock_shared(&self) -> Option<BiasedMutexGuard<'_, T>> {
        let mut shared = match self.shared.try_lock() {
            Ok(shared) => shared,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.revoke(&mut shared);
        self.settle(&mut shared).then(|| self.admit(shared))
    }

    /// Unlocks the ordinary mutex for a guard that stands for it, and is not used again.
    #[cold]
    #[inline(never)]
    fn unlock_shared(&self) {
        // SAFETY: the guard was parked when the one that calls this was made, on this thread, and `shared` has been locked
        // since. So this is the only one to look, and it is not read twice.
        let shared = unsafe { (*self.parked.get()).assume_init_read() };
        drop(shared);
    }

    /// Revokes the ownership: from here on no thread enters by its flag.
    #[inline]
    fn revoke(&self, shared: &mut Shared) {
        if shared.bias == Bias::Standing {
            self.owner.store(SHARED, Relaxed);
            barrier::heavy();
            shared.bias = Bias::Revoked;
        }
    }

    /// Returns whether no thread is inside by its flag.
    #[inline]
    fn settle(&self, shared: &mut Shared) -> bool {
        if shared.bias == Bias::Revoked && !self.held[shared.granted - 1].load(Acquire) {
            shared.bias = Bias::Settled;
        }
        shared.bias == Bias::Settled
    }

    /// Notes that the calling thread has the value now. If it comes often, it is made the owner.
    #[inline]
    fn admit<'a>(&'a self, mut shared: MutexGuard<'a, Shared>) -> BiasedMutexGuard<'a, T> {
        let token = token::get();
        if shared.thread != token {
            (shared.thread, shared.streak) = (token, 0);
        }
        shared.streak += 1;
        if shared.streak > wanted_streak(shared.granted) && barrier::is_available() {
            let flag = shared.granted;
            shared.granted += 1;
            (shared.bias, shared.streak) = (Bias::Standing, 0);
            self.held[flag].store(true, Relaxed);
            self.owner.store(token + flag as u64, Relaxed);
            return self.entered(flag);
        }
        // SAFETY: only the lifetime changes. For as long as the guard below lives, `self` stays where it is, and that guard
        // alone, when it is dropped, reads what is parked. The thread that has `shared` locked is the only one to come here, so nothing that is parked is overwritten.
        unsafe {
            let shared = mem::transmute::<MutexGuard<'a, Shared>, MutexGuard<'static, Shared>>(shared);
            (*self.parked.get()).write(shared);
        }
        BiasedMutexGuard::new(self, None)
    }
}

/// Returns how many locks in a row come before the next bias, after so many.
fn wanted_streak(granted: usize) -> u64 {
    match granted {
        0 => 0,
        FLAGS.. => u64::MAX,
        _ => FIRST_STREAK << (granted - 1),
    }
}

/// Waits a little for a thread that is inside, longer each time: most are out at once, some are in a driver's call.
fn pause(looks: &mut u32) {
    *looks += 1;
    if cfg!(loom) || (64..128).contains(looks) {
        thread::yield_now();
    } else if *looks < 64 {
        hint::spin_loop();
    } else {
        std::thread::sleep(std::time::Duration::from_micros(50));
    }
}

impl<T: Default> Default for BiasedMutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> fmt::Debug for BiasedMutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BiasedMutex").finish_non_exhaustive()
    }
}

/// The value of a [`BiasedMutex`], as long as this lives. It stays with the thread that locked.
#[must_use = "the mutex is unlocked when the guard is dropped"]
pub struct BiasedMutexGuard<'a, T> {
    raw: RawGuard<T>,
    mutex: PhantomData<&'a BiasedMutex<T>>,
}

impl<'a, T> BiasedMutexGuard<'a, T> {
    #[inline]
    fn new(mutex: &'a BiasedMutex<T>, flag: Option<&'a AtomicBool>) -> Self {
        let raw = RawGuard { mutex: NonNull::from(mutex), flag: flag.map(NonNull::from) };
        Self { raw, mutex: PhantomData }
    }

    /// Returns the guard without its lifetime.
    ///
    /// # Safety
    /// The mutex stays alive, and where it is, until the guard is dropped.
    #[inline]
    pub(crate) unsafe fn into_raw(self) -> RawGuard<T> {
        self.raw
    }
}

impl<T> Deref for BiasedMutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.raw.value()
    }
}

impl<T> DerefMut for BiasedMutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.raw.value_mut()
    }
}

/// A guard that borrows nothing: there is one only while its mutex is alive and stays where it is, by the lifetime of the
/// [`BiasedMutexGuard`] around it or by the promise of [`BiasedMutexGuard::into_raw`].
///
/// It has pointers and no references, for a reference that a function was given must be good until it returns, and when a
/// function unlocks, the mutex may be gone by then ([`unlocks_at_once`](Self::unlocks_at_once)).
pub(crate) struct RawGuard<T> {
    mutex: NonNull<BiasedMutex<T>>,
    /// That of the bias by which the thread is inside; `None` if it has the ordinary mutex. A flag is written by the thread
    /// that it was granted to, and by no other: so it is well that a pointer is not sent.
    flag: Option<NonNull<AtomicBool>>,
}

impl<T> RawGuard<T> {
    /// Returns whether to drop the guard touches the mutex for the last time in the moment that unlocks it. Where the mutex is
    /// left to the threads that lock it next, the guard of another must be dropped while it is kept alive.
    #[inline]
    pub(crate) fn unlocks_at_once(&self) -> bool {
        self.flag.is_some()
    }

    #[inline]
    pub(crate) fn value(&self) -> &T {
        // SAFETY: the mutex is alive while the guard is (its type's promise). No other thread is inside (the module's essay),
        // and this one has no second guard: by the flag it finds itself inside, by the ordinary mutex it has but one.
        unsafe { (*self.mutex.as_ptr()).value.with(|value| &*value) }
    }

    #[inline]
    pub(crate) fn value_mut(&mut self) -> &mut T {
        // SAFETY: as above; and the guard is borrowed alone.
        unsafe { (*self.mutex.as_ptr()).value.with_mut(|value| &mut *value) }
    }
}

impl<T> Drop for RawGuard<T> {
    #[inline]
    fn drop(&mut self) {
        match self.flag {
            // SAFETY: the flag lies in the mutex, which is alive until this store.
            Some(held) => unsafe { held.as_ref() }.store(false, Release),
            // SAFETY: the mutex is alive until the guard is dropped, which is when this returns.
            None => unsafe { self.mutex.as_ref() }.unlock_shared(),
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for BiasedMutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::fmt(self, f)
    }
}

#[cfg(test)]
#[path = "biased_tests.rs"]
mod tests;
