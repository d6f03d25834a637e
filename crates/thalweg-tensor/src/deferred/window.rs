//! [`Window`]: the loops of a thread that wait, with their operands.

use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_lock::{Mutex, MutexGuard};
use thalweg_ops::lower::{LaunchNumbers, LoopLaunch};

use thalweg_runtime::{Access, Buffer, Label, Stream};

use super::launches::SharedLaunch;
use super::taken::Taken;
use super::waiters::Waiters;
use crate::storage::Storage;

/// The most loops that wait, without those that compute something again.
const MOST_LOOPS: usize = 64;

/// The first element of an operand: a storage, and an offset in bytes.
pub(crate) type Place = (Arc<Storage>, u64);

/// A loop that is to wait.
pub(crate) struct Deferral {
    pub launch: Arc<SharedLaunch>,
    pub numbers: LaunchNumbers,
    pub read: SmallVec<[Place; 4]>,
    pub written: SmallVec<[Place; 2]>,
    pub stream: Stream,
    pub label: Label,
}

impl Deferral {
    /// Returns whether the loop cannot wait: another library has the address of an operand, so it may read or write the memory
    /// unnoticed, or the memory was freed.
    pub fn is_refused(&self) -> bool {
        let mut places = self.read.iter().chain(&self.written);
        self.stream.device().is_meta()
            || places.any(|(storage, _)| storage.is_exported() || storage.is_given_back())
    }
}

/// The loops of a thread that wait.
#[derive(Default)]
pub(crate) struct Window {
    waiters: Mutex<Waiters>,
}

impl Window {
    fn waiters(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock()
    }

    /// Returns whether as many loops wait as may.
    pub fn is_full(&self) -> bool {
        self.waiters().count_but_again() >= MOST_LOOPS
    }

    /// Adds a loop.
    pub fn add(&self, deferral: Deferral) {
        self.waiters().add(deferral, false);
    }

    /// Returns whether this many more loops may wait to compute something again.
    pub(super) fn has_room_for_again(&self, loops: usize) -> bool {
        self.waiters().has_room_for_again(loops)
    }

    /// Adds loops that compute results again when they are read.
    pub(super) fn add_again(&self, deferrals: impl IntoIterator<Item = Deferral>) {
        let mut waiters = self.waiters();
        deferrals.into_iter().for_each(|deferral| waiters.add(deferral, true));
    }

    /// Frees the memory of a storage that only saved tensors hold, and adds the loops that compute its content again. Returns whether it
    /// did.
    pub(super) fn forget(&self, storage: &Storage, nothing: Buffer, recipe: Vec<Deferral>) -> bool {
        let mut waiters = self.waiters();
        let is_of_stream = |other: &Stream| recipe.iter().all(|deferral| deferral.stream == *other);
        // Loops that wait to read the memory have its address.
        if waiters.uses(storage)
            || !waiters.has_room_for_again(recipe.len())
            || !waiters.stream().is_none_or(is_of_stream)
        {
            return false;
        }
        // Another thread that waits for the memory looks for these loops under the same lock.
        let freed = storage.forget(nothing);
        if freed.is_some() {
            recipe.into_iter().for_each(|deferral| waiters.add(deferral, true));
        }
        drop(waiters);
        freed.is_some()
    }

    /// Returns whether any loop waits.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiters().is_empty()
    }

    /// Takes all loops that wait.
    pub(super) fn take(&self) -> Taken {
        self.waiters().take_all()
    }

    /// Takes all loops that wait, but those that compute something again and that nothing of the others needs.
    pub(super) fn take_but_again(&self) -> Taken {
        self.waiters().take_but_again()
    }

    /// Returns whether the loops that wait are of another stream.
    pub fn is_of_another_stream(&self, stream: &Stream) -> bool {
        self.waiters().stream().is_some_and(|own| own != stream)
    }

    /// Returns the bytes of what a loop of a kind reads that is the only one to use a storage, if nothing but waiting loops holds
    /// its first input: [`take_gather`](Self::take_gather) then needs a storage of this size for it.
    pub(super) fn forgotten_table(
        &self,
        storage: &Storage,
        is_gather: impl Fn(&LoopLaunch) -> bool,
    ) -> Option<u64> {
        self.waiters().forgotten_table(storage, is_gather)
    }

    /// Takes back a loop of a kind that is the only one to use a storage, which it writes, if no later loop writes what it reads. `table`
    /// becomes the storage of its first input if nothing else holds that.
    pub(super) fn take_gather(
        &self,
        storage: &Storage,
        is_gather: impl Fn(&LoopLaunch) -> bool,
        table: Option<Arc<Storage>>,
    ) -> Option<Deferral> {
        self.waiters().take_gather(storage, is_gather, table)
    }

    /// Takes the loops that must run before the address of a storage is read. If they compute again what was forgotten, loops of other
    /// families that read the same are taken with them, so that it is read once.
    pub(super) fn take_before_reading(&self, storage: &Storage) -> Taken {
        let mut waiters = self.waiters();
        let families = waiters.families_to_read(storage);
        waiters.take(&families)
    }

    /// Takes the loops that must run before a command that touches this memory, and those that would need too much memory while they
    /// wait. Returns them, and the number of loops that wait on and did not before.
    pub(super) fn take_before_command(
        &self,
        is_of_stream: impl FnOnce(&Stream) -> bool,
        accesses: &[Access],
    ) -> (Taken, u64) {
        let mut waiters = self.waiters();
        if !waiters.stream().is_some_and(is_of_stream) {
            return (waiters.take_all(), 0);
        }
        let mut families = waiters.touched(accesses);
        families.extend(waiters.greedy());
        let taken = waiters.take(&families);
        (taken, waiters.let_pass() as u64)
    }
}
