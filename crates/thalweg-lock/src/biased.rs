//! [`BiasedMutex`]: a mutex that leans towards one thread.
//!
//! # The protocol
//!
//! `owner` names the thread that the mutex is biased to, if any. Each bias that is granted has its own flag in `held`, and only
//! the thread that it was granted to writes that flag. An ordinary mutex, `shared`, is taken by all other threads; biases are
//! granted and revoked under it.
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
//! - *The owner enters while its bias is revoked.* The owner stores `held` and then loads `owner`; the other thread stores
//!   `owner` and then loads `held`. With the two barriers in between (`barrier`), at least one sees the other's store: the owner
//!   backs out, or the other thread waits. If both do, the other thread waits only until the owner has backed out.
//! - *The owner's writes are seen.* The other thread leaves its wait with an acquiring load of the `false` that the owner
//!   released. Backing out releases too, because the load may read that store instead of the one of the last unlock.
//! - *The owner is late.* A thread may stop between its first load of `owner` and its store to `held` for any time. When it
//!   continues, its bias may have been revoked long ago, and another granted. So no two biases share a flag: the late thread
//!   writes a flag that is no longer read, sees that `owner` is another thread, and backs out. This is why the number of biases
//!   in a mutex's life is limited. (A thread cannot be late for an old bias and own a new one.)
//! - *A bias is granted* to a thread that has locked `shared` and waited as described above. It sets its flag, then `owner`, and
//!   only then unlocks `shared`, so it stays inside by its flag without having left. A thread that waits for `shared` sees all
//!   three.
//! - *Giving up.* A thread in `try_lock` that finds the flag set leaves the bias revoked, but *unsettled*: the next thread that
//!   locks `shared` checks the flag again. Once the flag was seen cleared after the heavy barrier, it is ignored.
//! - *The kernel suddenly refuses the barrier*, because a filter was installed after the first use. Then the heavy side waits
//!   instead, and no more biases are granted (`barrier`).
//! - *The owner enters twice.* It finds its own flag set: [`lock`](BiasedMutex::lock) panics, and `try_lock` fails. If its bias
//!   was revoked meanwhile, `lock` blocks for ever, as the standard library's may.
//! - *The owner ends.* Its flag is cleared, unless it leaked a guard; then the mutex is locked for ever, like any other. Its
//!   token is never assigned to another thread.
//! - *The process forks.* The child has one thread, which keeps its token. A mutex whose guard belongs to a thread that does not
//!   exist in the child stays locked, as an ordinary mutex does.
//! - *A panic with a guard* unlocks. There is no poison: users keep their value valid at each call that may panic.
//! - *A thread is cancelled, or exits, with a guard* (`pthread_cancel`, `pthread_exit`). Rust does not define this case: the
//!   guard may be dropped during the unwinding or not. But no thread continues with the mutex locked for ever, because the
//!   process aborts when the unwinding reaches a catch of panics or a function that C calls.
//!
//! # Cost
//!
//! The owner pays two loads and two stores. Revoking a bias costs a heavy barrier, which takes microseconds. So the second bias
//! of a mutex is granted to a thread that has locked it [`FIRST_STREAK`] times in a row, each further one after twice as many,
//! and after the last flag the mutex behaves like an ordinary one. All revocations together cost less than a fraction of the
//! locks between them, and there are at most [`FLAGS`].

use std::marker::PhantomData;
use std::mem::{self, MaybeUninit};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::{fmt, hint};

use crate::barrier;
use crate::sync::{
    Acquire, AtomicBool, AtomicU64, Mutex, MutexGuard, Relaxed, Release, UnsafeCell, thread, token,
};

/// The number of biases that a mutex grants in its life.
const FLAGS: usize = if cfg!(loom) { 2 } else { token::STEP as usize };
/// The number of locks in a row by one thread after which the second bias is granted; a heavy barrier costs as much as some
/// hundred locks.
const FIRST_STREAK: u64 = if cfg!(loom) {
    1
} else if cfg!(miri) {
    16
} else {
    1024
};

/// The value of `owner` when no thread owns the mutex; far from every token.
const SHARED: u64 = u64::MAX;

/// The state of the last bias.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bias {
    /// The owner may enter by its flag.
    Standing,
    /// The former owner can no longer enter by its flag, but may still be inside.
    Revoked,
    /// The bias is revoked or absent, and no thread is inside by it.
    Settled,
}

/// The state that is guarded by the ordinary mutex.
#[derive(Debug)]
struct Shared {
    bias: Bias,
    /// The number of biases that were granted so far.
    granted: usize,
    /// The thread that locked the ordinary mutex last, and how often in a row.
    thread: u64,
    streak: u64,
}

/// A mutex that its owner, the thread that uses it most, locks without an atomic read-modify-write. See the [crate's
/// essay](crate).
///
/// A panic does not poison the mutex: the guarded value should be valid whenever something may panic.
pub struct BiasedMutex<T> {
    /// [`SHARED`], or the owner's token plus the index of its flag.
    owner: AtomicU64,
    /// The flags, one per bias.
    held: [AtomicBool; FLAGS],
    shared: Mutex<Shared>,
    /// The guard of `shared` while a guard of this mutex represents it; only that guard reads it. The guard of this mutex then
    /// consists of two words and is moved in registers. It is never dropped here: if a guard was leaked, this mutex may have moved
    /// since.
    parked: std::cell::UnsafeCell<MaybeUninit<MutexGuard<'static, Shared>>>,
    value: UnsafeCell<T>,
}

// SAFETY: the value moves with the mutex, and nothing else in it belongs to a thread: a token is only a name, and the parked
// guard is only read by a guard of ours, which stays on its thread and during whose life the mutex does not move.
unsafe impl<T: Send> Send for BiasedMutex<T> {}
// SAFETY: a shared mutex lends the value to one thread at a time (see the module's essay), which may move it out: hence `Send`.
unsafe impl<T: Send> Sync for BiasedMutex<T> {}

/// The result of an owner's attempt to enter.
enum Entry {
    Entered(usize),
    Inside,
    NotOwner,
}

impl<T> BiasedMutex<T> {
    /// Creates a mutex around `value`. The first thread that locks it owns it until another thread locks it.
    pub fn new(value: T) -> Self {
        Self {
            owner: AtomicU64::new(SHARED),
            held: std::array::from_fn(|_| AtomicBool::new(false)),
            shared: Mutex::new(Shared { bias: Bias::Settled, granted: 0, thread: 0, streak: 0 }),
            parked: std::cell::UnsafeCell::new(MaybeUninit::uninit()),
            value: UnsafeCell::new(value),
        }
    }

    /// Locks the mutex. *Blocks* while another thread has it.
    ///
    /// # Panics
    /// If the calling thread has locked it already and this is detected; otherwise the call blocks for ever.
    #[inline]
    pub fn lock(&self) -> BiasedMutexGuard<'_, T> {
        match self.enter() {
            Entry::Entered(flag) => self.entered(flag),
            Entry::Inside => panic!("a thread locks a mutex that it has locked"),
            Entry::NotOwner => self.lock_shared(),
        }
    }

    /// Locks the mutex, unless a thread, possibly the calling one, has locked it. May also fail when the owner was just about to
    /// lock it.
    #[inline]
    pub fn try_lock(&self) -> Option<BiasedMutexGuard<'_, T>> {
        match self.enter() {
            Entry::Entered(flag) => Some(self.entered(flag)),
            Entry::Inside => None,
            Entry::NotOwner => self.try_lock_shared(),
        }
    }

    /// Returns the value without locking.
    pub fn get_mut(&mut self) -> &mut T {
        // SAFETY: exclusive access to the mutex is exclusive access to the value.
        self.value.with_mut(|value| unsafe { &mut *value })
    }

    #[inline]
    fn enter(&self) -> Entry {
        // The token of a thread without one is 0, and no owner is as small as a flag's index.
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
        let mut shared = self.shared.lock();
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
        let mut shared = self.shared.try_lock()?;
        self.revoke(&mut shared);
        self.settle(&mut shared).then(|| self.admit(shared))
    }

    /// Unlocks the ordinary mutex for a guard that represents it and is not used again.
    #[cold]
    #[inline(never)]
    fn unlock_shared(&self) {
        // SAFETY: the guard was parked when the calling guard was made, on this thread, and `shared` has been locked since. So no
        // other thread accesses it, and it is not read twice.
        let shared = unsafe { (*self.parked.get()).assume_init_read() };
        drop(shared);
    }

    /// Revokes the ownership: from now on no thread enters by its flag.
    #[inline]
    fn revoke(&self, shared: &mut Shared) {
        if shared.bias == Bias::Standing {
            self.owner.store(SHARED, Relaxed);
            barrier::heavy();
            shared.bias = Bias::Revoked;
        }
    }

    /// Returns whether no thread is inside by its flag any more.
    #[inline]
    fn settle(&self, shared: &mut Shared) -> bool {
        if shared.bias == Bias::Revoked && !self.held[shared.granted - 1].load(Acquire) {
            shared.bias = Bias::Settled;
        }
        shared.bias == Bias::Settled
    }

    /// Records that the calling thread has the value now. A thread that locks often enough becomes the owner.
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
        // SAFETY: only the lifetime changes. While the guard below is alive, `self` does not move, and only that guard reads the
        // parked guard, when it is dropped. Only the thread that has locked `shared` gets here, so no parked guard is
        // overwritten.
        unsafe {
            let shared = mem::transmute::<MutexGuard<'a, Shared>, MutexGuard<'static, Shared>>(shared);
            (*self.parked.get()).write(shared);
        }
        BiasedMutexGuard::new(self, None)
    }
}

/// Returns the number of locks in a row that the next bias requires, after `granted` biases.
fn wanted_streak(granted: usize) -> u64 {
    match granted {
        0 => 0,
        FLAGS.. => u64::MAX,
        _ => FIRST_STREAK << (granted - 1),
    }
}

/// Waits briefly for a thread that is inside, longer each time: most leave at once, some are in a driver call.
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

/// A locked [`BiasedMutex`], through which its value is accessed. It stays on the thread that locked.
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
    /// The mutex stays alive and is not moved until the guard is dropped.
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

/// A guard that borrows nothing. While it exists, its mutex is alive and does not move, because of the lifetime of the
/// [`BiasedMutexGuard`] around it or the promise of [`BiasedMutexGuard::into_raw`].
///
/// It has pointers instead of references: a reference that is passed to a function must stay valid until the function returns,
/// and when a function unlocks, the mutex may be freed before that ([`unlocks_at_once`](Self::unlocks_at_once)).
pub(crate) struct RawGuard<T> {
    mutex: NonNull<BiasedMutex<T>>,
    /// The flag of the bias by which the thread is inside; `None` if it has the ordinary mutex. Only the thread that a flag was
    /// granted to writes it, so it is right that a pointer is not `Send`.
    flag: Option<NonNull<AtomicBool>>,
}

impl<T> RawGuard<T> {
    /// Returns whether dropping the guard touches the mutex for the last time at the moment that unlocks it. Otherwise, when the
    /// mutex is left to the threads that lock it next, the mutex must be kept alive until the drop has returned.
    #[inline]
    pub(crate) fn unlocks_at_once(&self) -> bool {
        self.flag.is_some()
    }

    #[inline]
    pub(crate) fn value(&self) -> &T {
        // SAFETY: the mutex is alive while the guard is (promised by its type). No other thread is inside (see the module's
        // essay), and this thread has no second guard: by the flag it would find itself inside, and of the ordinary mutex it has
        // only one guard.
        unsafe { (*self.mutex.as_ptr()).value.with(|value| &*value) }
    }

    #[inline]
    pub(crate) fn value_mut(&mut self) -> &mut T {
        // SAFETY: as above; and the guard is borrowed exclusively.
        unsafe { (*self.mutex.as_ptr()).value.with_mut(|value| &mut *value) }
    }
}

impl<T> Drop for RawGuard<T> {
    #[inline]
    fn drop(&mut self) {
        match self.flag {
            // SAFETY: the flag is a field of the mutex, which is alive until this store.
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
