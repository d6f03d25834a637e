//! [`Window`]: the loops of a thread that wait, with their operands.

use std::sync::{Arc, Weak};

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use thalweg_graph::Operand;
use thalweg_lock::{Mutex, MutexGuard};
use thalweg_ops::lower::LaunchNumbers;

use thalweg_runtime::{Access, DevicePointer, Error, Label, Result, Stream};

use super::launches::SharedLaunch;
use super::taken::Taken;
use crate::storage::{DeferredHolder, Storage};

/// The most loops that wait.
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

/// The memory of operands.
pub(super) enum Known {
    /// Memory that exists. Its storage is kept until the last loop that uses it is queued.
    Existing { holder: Option<DeferredHolder>, pointer: DevicePointer, bytes: u64 },
    /// Memory that is to be allocated, if anything reads it afterwards: if its storage is alive.
    Pending { storage: Weak<Storage>, bytes: u64 },
}

/// A loop that waits.
pub(super) struct Waiting {
    pub launch: Arc<SharedLaunch>,
    pub numbers: LaunchNumbers,
    pub label: Label,
    pub inputs: SmallVec<[Operand; 4]>,
    pub outputs: SmallVec<[Operand; 2]>,
    /// Whether it has waited while a command of another kind was queued.
    has_let_pass: bool,
}

/// A memory that waiting loops use.
struct Used {
    known: Known,
    /// The address of its storage. A storage whose memory is pending keeps that address while it is listed, even if it is dropped.
    address: usize,
    /// A memory of the same family; itself if it represents the family.
    family: u32,
    is_written: bool,
}

/// The loops that wait, and their operands.
///
/// Loops with memory in common are a *family*: they may be fused, and one may depend on another. Families are independent.
#[derive(Default)]
struct Waiters {
    stream: Option<Stream>,
    /// The loops, in program order.
    loops: Vec<Waiting>,
    /// The memories, by number; `None` where no loop uses that number.
    memories: Vec<Option<Used>>,
    /// The numbers that no loop uses.
    unused: Vec<u32>,
    /// The number of each storage's memory, by the storage's address.
    places: FxHashMap<usize, u32>,
}

/// The loops of a thread that wait.
#[derive(Default)]
pub(crate) struct Window {
    waiters: Mutex<Waiters>,
    /// The failures of earlier programs, and the storages that they left without memory, by address.
    failures: Mutex<Vec<(Error, FxHashSet<usize>)>>,
}

/// The most failures that are remembered.
const MOST_FAILURES: usize = 16;

impl Window {
    fn waiters(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock()
    }

    /// Returns whether a loop may wait with those that wait already.
    pub fn accepts(&self, deferral: &Deferral) -> bool {
        let waiters = self.waiters();
        waiters.loops.len() < MOST_LOOPS
            && waiters.stream.as_ref().is_none_or(|stream| *stream == deferral.stream)
    }

    /// Adds a loop.
    pub fn add(&self, deferral: Deferral) {
        let Deferral { launch, numbers, read, written, stream, label } = deferral;
        let mut waiters = self.waiters();
        waiters.stream.get_or_insert(stream);
        let inputs = read.into_iter().map(|place| waiters.operand(place, false)).collect();
        let outputs = written.into_iter().map(|place| waiters.operand(place, true)).collect();
        let waiting = Waiting { launch, numbers, label, inputs, outputs, has_let_pass: false };
        waiters.unite(&waiting);
        waiters.loops.push(waiting);
    }

    /// Returns whether any loop waits.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiters().loops.is_empty()
    }

    /// Takes all loops that wait.
    pub(super) fn take(&self) -> Taken {
        self.waiters().take(|_| true)
    }

    /// Takes the loops that must run before the address of a storage is read.
    pub(super) fn take_before_reading(&self, storage: &Storage) -> Taken {
        let mut waiters = self.waiters();
        let Some(&memory) = waiters.places.get(&std::ptr::from_ref(storage).addr()) else {
            return Taken::default();
        };
        let family = waiters.family(memory);
        waiters.take(|other| other == family)
    }

    /// Takes the loops that must run before a command that touches this memory, and those that would need more memory while they wait
    /// than their results. Returns them, and the number of loops that wait on and did not before.
    pub(super) fn take_before_command(
        &self,
        is_of_stream: impl FnOnce(&Stream) -> bool,
        accesses: &[Access],
    ) -> (Taken, u64) {
        let mut waiters = self.waiters();
        if !waiters.stream.as_ref().is_some_and(is_of_stream) {
            return (waiters.take(|_| true), 0);
        }
        let mut families = waiters.touched(accesses);
        families.extend(waiters.greedy());
        let taken = match families.is_empty() {
            true => Taken::default(),
            false => waiters.take(|family| families.contains(&family)),
        };
        let waiting = waiters.loops.iter_mut().filter(|waiting| !waiting.has_let_pass);
        let passed = waiting.map(|waiting| waiting.has_let_pass = true).count() as u64;
        (taken, passed)
    }

    /// Remembers the failure of a program that was to write these storages.
    pub(super) fn failed(&self, error: &Error, storages: impl Iterator<Item = usize>) {
        let mut failures = self.failures.lock();
        if failures.len() == MOST_FAILURES {
            failures.remove(0);
        }
        failures.push((error.clone(), storages.collect()));
    }

    /// Returns the failure of the program that was to write a storage.
    pub fn check(&self, storage: &Storage) -> Result<()> {
        let failures = self.failures.lock();
        let at = std::ptr::from_ref(storage).addr();
        match failures.iter().find(|(_, storages)| storages.contains(&at)) {
            Some((error, _)) => {
                Err(error.clone().context("an earlier command of a compiled function failed"))
            }
            None => Ok(()),
        }
    }
}

impl Waiters {
    /// Returns an operand of a loop.
    fn operand(&mut self, (storage, offset): Place, is_written: bool) -> Operand {
        let address = Arc::as_ptr(&storage).addr();
        if let Some(&memory) = self.places.get(&address) {
            self.used(memory).is_written |= is_written;
            return Operand { memory, offset };
        }
        let memory = self.unused.pop().unwrap_or_else(|| {
            self.memories.push(None);
            self.memories.len() as u32 - 1
        });
        let known = match storage.promised_bytes() {
            Some(bytes) => Known::Pending { storage: Arc::downgrade(&storage), bytes },
            None => {
                let (pointer, bytes) = (storage.pointer(), storage.buffer().size_bytes());
                Known::Existing { pointer, bytes, holder: Some(DeferredHolder::new(storage)) }
            }
        };
        self.places.insert(address, memory);
        self.memories[memory as usize] = Some(Used { known, address, family: memory, is_written });
        Operand { memory, offset }
    }

    fn used(&mut self, memory: u32) -> &mut Used {
        self.memories[memory as usize].as_mut().expect("a number of a loop's operand is used")
    }

    /// Returns the memories that are used, with their numbers.
    fn all(&self) -> impl Iterator<Item = (u32, &Used)> {
        (0..).zip(&self.memories).filter_map(|(memory, used)| Some((memory, used.as_ref()?)))
    }

    /// Returns the memory that represents the family of a memory.
    fn family(&self, mut memory: u32) -> u32 {
        while let Some(used) = &self.memories[memory as usize]
            && used.family != memory
        {
            memory = used.family;
        }
        memory
    }

    /// Makes the operands of a loop one family.
    fn unite(&mut self, waiting: &Waiting) {
        let family = self.family(waiting.outputs[0].memory);
        for operand in waiting.inputs.iter().chain(&waiting.outputs) {
            let other = self.family(operand.memory);
            self.used(other).family = family;
            self.used(operand.memory).family = family;
        }
    }

    /// Returns the families of loops that a command could affect or be affected by.
    fn touched(&self, accesses: &[Access]) -> SmallVec<[u32; 8]> {
        let mut families = SmallVec::new();
        for (memory, used) in self.all() {
            let Known::Existing { pointer, bytes, .. } = used.known else { continue };
            let (start, end) = (pointer.address(), pointer.address() + bytes);
            let meets = |access: &Access| {
                access.start < end
                    && start < access.start + access.bytes
                    && (access.mode.writes() || used.is_written)
            };
            if accesses.iter().any(meets) {
                families.push(self.family(memory));
            }
        }
        families
    }

    /// Returns the families that hold more bytes that nothing else holds than their results have.
    fn greedy(&self) -> impl Iterator<Item = u32> {
        let mut needs: SmallVec<[(u32, i64); 16]> = SmallVec::new();
        for (memory, used) in self.all() {
            let need = match &used.known {
                Known::Existing { holder: Some(holder), bytes, .. } if holder.is_alone() => *bytes as i64,
                Known::Existing { .. } => continue,
                Known::Pending { storage, bytes } if storage.strong_count() > 0 => -(*bytes as i64),
                Known::Pending { .. } => continue,
            };
            let family = self.family(memory);
            match needs.iter_mut().find(|(known, _)| *known == family) {
                Some((_, sum)) => *sum += need,
                None => needs.push((family, need)),
            }
        }
        needs.into_iter().filter(|(_, need)| *need > 0).map(|(family, _)| family)
    }

    /// Takes the loops of the families that are wanted, in their order. The others remain, in theirs.
    fn take(&mut self, is_wanted: impl Fn(u32) -> bool) -> Taken {
        let mut taken = Taken::on(self.stream.clone());
        let wanted: SmallVec<[bool; 64]> =
            (self.loops.iter()).map(|waiting| is_wanted(self.family(waiting.outputs[0].memory))).collect();
        // The number of each memory in what is taken.
        let mut numbers: SmallVec<[Option<u32>; 64]> = SmallVec::from_elem(None, self.memories.len());
        let Self { loops, memories, unused, places, .. } = self;
        let mut wanted = wanted.into_iter();
        for mut waiting in loops.extract_if(.., |_| wanted.next() == Some(true)) {
            for operand in waiting.inputs.iter_mut().chain(&mut waiting.outputs) {
                let former = operand.memory;
                operand.memory = *numbers[former as usize].get_or_insert_with(|| {
                    let used = memories[former as usize].take().expect("a memory is in one family");
                    unused.push(former);
                    places.remove(&used.address);
                    taken.memory(used.known)
                });
            }
            taken.add(waiting);
        }
        if self.loops.is_empty() {
            self.stream = None;
        }
        taken
    }
}
