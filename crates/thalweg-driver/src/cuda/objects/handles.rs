//! Tables from handles to the driver's objects.
//!
//! A handle is a slot's index and the slot's generation at the time of issue. Slots live in chunks that are only ever
//! added, so a slot never moves; each has its own lock. A lookup takes the slot's lock for reading and compares the
//! generation: two atomic operations on a cache line that no other thread writes. It hands out a guard, and [`Table::remove`]
//! needs the lock for writing: an object is destroyed only when no call uses it, and a later call with the same handle
//! finds another generation. A wrong handle is therefore an error whatever its bits are.
//!
//! A call holds its guard while it waits for the device, so destroying an object waits for such calls too. No call takes
//! two guards of one slot at once: a writer that waits between the two would block the thread forever.

use std::ops::Deref;
use std::sync::OnceLock;

use thalweg_lock::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::{Code, Error, Result};

/// Slots of the first chunk; each later chunk has twice as many as the one before.
const FIRST: u32 = 64;
const CHUNKS: usize = 26;

struct Slot<T> {
    /// The generation: odd while the slot is taken, so that no handle is ever 0.
    generation: u32,
    value: Option<T>,
}

type Chunk<T> = Box<[RwLock<Slot<T>>]>;

/// Objects by handle. `kind` is their name in errors.
pub(in crate::cuda) struct Table<T> {
    kind: &'static str,
    chunks: [OnceLock<Chunk<T>>; CHUNKS],
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    /// The slots that are free again.
    indices: Vec<u32>,
    /// The number of slots that have been in use.
    used: u32,
}

/// A looked-up object. It is not destroyed while the guard lives.
pub(in crate::cuda) struct Entry<'a, T>(RwLockReadGuard<'a, Slot<T>>);

impl<T> Deref for Entry<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.value.as_ref().expect("an entry is of a slot that is taken")
    }
}

/// A looked-up object that no other call uses.
pub(in crate::cuda) struct EntryAlone<'a, T>(RwLockWriteGuard<'a, Slot<T>>);

impl<T> Deref for EntryAlone<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.value.as_ref().expect("an entry is of a slot that is taken")
    }
}

impl<T> Table<T> {
    pub(in crate::cuda) fn new(kind: &'static str) -> Self {
        Self { kind, chunks: [const { OnceLock::new() }; CHUNKS], free: Mutex::default() }
    }

    /// Takes a slot for the object and returns its handle.
    pub(in crate::cuda) fn insert(&self, value: T) -> u64 {
        let index = {
            let mut free = self.free.lock();
            free.indices.pop().unwrap_or_else(|| {
                free.used += 1;
                free.used - 1
            })
        };
        let (chunk, offset) = place(index);
        let slots = self.chunks[chunk].get_or_init(|| {
            let empty = || RwLock::new(Slot { generation: 0, value: None });
            (0..FIRST << chunk).map(|_| empty()).collect()
        });
        let mut slot = slots[offset].write();
        slot.generation += 1;
        slot.value = Some(value);
        u64::from(slot.generation) << 32 | u64::from(index)
    }

    /// Returns the object of the handle; a wrong handle is an error of `call`.
    pub(in crate::cuda) fn get(&self, handle: u64, call: &'static str) -> Result<Entry<'_, T>> {
        let slot = self.slot(handle).ok_or_else(|| self.unknown(handle, call))?;
        let slot = slot.read();
        if slot.generation != generation(handle) || slot.value.is_none() {
            return Err(self.unknown(handle, call));
        }
        Ok(Entry(slot))
    }

    /// Returns the object of the handle, once no other call uses it; no call can start using it while the guard lives.
    pub(in crate::cuda) fn get_alone(&self, handle: u64, call: &'static str) -> Result<EntryAlone<'_, T>> {
        let slot = self.slot(handle).ok_or_else(|| self.unknown(handle, call))?;
        let slot = slot.write();
        if slot.generation != generation(handle) || slot.value.is_none() {
            return Err(self.unknown(handle, call));
        }
        Ok(EntryAlone(slot))
    }

    /// Ends the object: waits for the calls that use it, runs `destroy`, and frees the slot if that succeeded.
    pub(in crate::cuda) fn remove(
        &self,
        handle: u64,
        call: &'static str,
        destroy: impl FnOnce(&mut T) -> Result<()>,
    ) -> Result<()> {
        let slot = self.slot(handle).ok_or_else(|| self.unknown(handle, call))?;
        let mut slot = slot.write();
        if slot.generation != generation(handle) {
            return Err(self.unknown(handle, call));
        }
        let value = slot.value.as_mut().ok_or_else(|| self.unknown(handle, call))?;
        destroy(value)?;
        let value = slot.value.take();
        slot.generation += 1;
        // A slot whose generations are used up is never issued again.
        let reusable = slot.generation < u32::MAX - 1;
        drop(slot);
        drop(value);
        if reusable {
            self.free.lock().indices.push(handle as u32);
        }
        Ok(())
    }

    fn slot(&self, handle: u64) -> Option<&RwLock<Slot<T>>> {
        let (chunk, offset) = place(handle as u32);
        self.chunks.get(chunk)?.get()?.get(offset)
    }

    fn unknown(&self, handle: u64, call: &'static str) -> Error {
        let detail = format!("{} {handle:#x} was never issued or is destroyed", self.kind);
        Error::new(Code::InvalidHandle, call, detail)
    }
}

const fn generation(handle: u64) -> u32 {
    (handle >> 32) as u32
}

/// Returns the chunk and offset of a slot: chunk `c` begins at slot `FIRST * (2^c - 1)`.
const fn place(index: u32) -> (usize, usize) {
    let chunk = (index / FIRST + 1).ilog2();
    (chunk as usize, (index - FIRST * ((1 << chunk) - 1)) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_placed_without_gap_or_overlap() {
        let mut expected = (0, 0);
        for index in 0..FIRST * 1023 {
            assert_eq!(place(index), expected, "slot {index}");
            expected.1 += 1;
            if expected.1 == (FIRST as usize) << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert!(place(u32::MAX).0 < CHUNKS + 1);
    }

    #[test]
    fn a_handle_is_dead_after_removal_even_when_its_slot_is_used_again() {
        let table = Table::new("number");
        let first = table.insert(1);
        table.remove(first, "end", |_| Ok(())).expect("remove");
        let second = table.insert(2);
        assert_eq!(first as u32, second as u32, "the slot is used again");
        assert_eq!(table.get(first, "look").err().map(|e| e.code()), Some(Code::InvalidHandle));
        assert_eq!(*table.get(second, "look").expect("live"), 2);
        assert!(table.remove(first, "end", |_| Ok(())).is_err());
    }

    #[test]
    fn a_failed_destroy_keeps_the_object() {
        let table = Table::new("number");
        let handle = table.insert(7);
        let refuse = |_: &mut i32| Err(Error::new(Code::Unknown, "end", ""));
        assert!(table.remove(handle, "end", refuse).is_err());
        assert_eq!(*table.get(handle, "look").expect("still there"), 7);
    }

    #[test]
    fn made_up_handles_are_errors() {
        let table = Table::new("number");
        let live = table.insert(0);
        for wrong in [0, 1, live ^ 1, live + (1 << 32), live + (2 << 32), u64::MAX, u64::from(u32::MAX)] {
            let error = table.get(wrong, "look").err().expect("wrong");
            assert_eq!(error.code(), Code::InvalidHandle, "{wrong:#x}");
        }
    }

    #[test]
    fn who_has_an_object_alone_keeps_other_calls_from_it() {
        let table = Table::new("number");
        let handle = table.insert(7);
        std::thread::scope(|scope| {
            let alone = table.get_alone(handle, "look").expect("live");
            let other = scope.spawn(|| *table.get(handle, "look").expect("live"));
            assert!(table.slot(handle).expect("a slot").try_read().is_none());
            assert_eq!(*alone, 7);
            drop(alone);
            assert_eq!(other.join().expect("no panic"), 7);
        });
        table.remove(handle, "end", |_| Ok(())).expect("remove");
        assert_eq!(table.get_alone(handle, "look").err().map(|e| e.code()), Some(Code::InvalidHandle));
    }

    #[test]
    fn threads_that_insert_use_and_remove_never_meet_another_object() {
        let table = Table::new("number");
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let table = &table;
                scope.spawn(move || {
                    for round in 0..2_000 {
                        let mine = thread << 32 | round;
                        let handle = table.insert(mine);
                        assert_eq!(*table.get(handle, "look").expect("mine"), mine);
                        table
                            .remove(handle, "end", |value| {
                                assert_eq!(*value, mine);
                                Ok(())
                            })
                            .expect("mine to remove");
                        assert!(table.get(handle, "look").is_err());
                    }
                });
            }
        });
    }
}
