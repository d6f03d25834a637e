//! [`Window`]: the loops of a thread that wait, with their operands.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use thalweg_graph::Operand;
use thalweg_lock::{Mutex, MutexGuard};
use thalweg_ops::lower::{LaunchNumbers, LoopLaunch};

use thalweg_runtime::{Access, Buffer, DevicePointer, Label, Stream};

use super::launches::SharedLaunch;
use super::taken::Taken;
use crate::storage::{DeferredHolder, Storage};

/// The most loops that wait, without those that compute something again.
const MOST_LOOPS: usize = 64;

/// The most loops that wait to compute something again.
const MOST_AGAIN: usize = 512;

/// The most memory that waiting loops hold while other commands are queued, as a multiple of the memory of their results. It is more
/// than 1 because the gradients of several products whose sum is one gradient may then wait for the loop that adds them all.
const MOST_MEMORY: i64 = 2;

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

impl Known {
    /// Returns a second reference to the memory of loops that are removed, because other loops may use it, too.
    fn again(&self) -> Self {
        match self {
            Self::Existing { holder, pointer, bytes } => Self::Existing {
                holder: holder.as_ref().map(|holder| DeferredHolder::new(Arc::clone(holder.storage()))),
                pointer: *pointer,
                bytes: *bytes,
            },
            Self::Pending { storage, bytes } => Self::Pending { storage: storage.clone(), bytes: *bytes },
        }
    }
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
    /// Whether the loop computes again a result that was forgotten, or one that is not stored at all.
    is_again: bool,
}

/// A memory that waiting loops use.
struct Used {
    known: Known,
    /// The address of its storage. A storage whose memory is pending keeps that address while it is listed, even if it is dropped.
    address: usize,
    /// A memory of the same family; itself if it represents the family.
    family: u32,
    is_written: bool,
    /// The number of operands of waiting loops in it.
    operands: u32,
    /// The results of loops of other families that only read it: loops that [compute again](Window::forget) what was forgotten.
    readers: SmallVec<[u32; 2]>,
}

/// The loops that wait, and their operands.
///
/// Loops with memory in common are a *family*: they may be fused, and one may depend on another. Families are independent. A loop that
/// computes something again is of the family of its result only: many of them may read one parameter, and each waits by itself until its
/// result is read, or until something is to write what it reads.
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
    /// The memory that exists, by its start and number, with its end.
    ranges: BTreeMap<(u64, u32), u64>,
    /// The most bytes of such a memory so far.
    longest: u64,
    /// The number of loops that compute something again.
    again: usize,
    /// The number of loops, which are the last ones, that have not waited while a command of another kind was queued.
    fresh: usize,
    /// The number of commands so far, before which loops waited.
    commands: u32,
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
        let waiters = self.waiters();
        waiters.loops.len() - waiters.again >= MOST_LOOPS
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
        let is_read = waiters.places.contains_key(&std::ptr::from_ref(storage).addr());
        if is_read
            || !waiters.has_room_for_again(recipe.len())
            || !waiters.stream.as_ref().is_none_or(is_of_stream)
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
        !self.waiters().loops.is_empty()
    }

    /// Takes all loops that wait.
    pub(super) fn take(&self) -> Taken {
        self.waiters().take(|_| true)
    }

    /// Takes all loops that wait, but those that compute something again and that nothing of the others needs.
    pub(super) fn take_but_again(&self) -> Taken {
        let mut waiters = self.waiters();
        let others = waiters.loops.iter().filter(|waiting| !waiting.is_again);
        let families: FxHashSet<u32> =
            others.map(|waiting| waiters.family(waiting.outputs[0].memory)).collect();
        waiters.take(|family| families.contains(&family))
    }

    /// Returns whether the loops that wait are of another stream.
    pub fn is_of_another_stream(&self, stream: &Stream) -> bool {
        self.waiters().stream.as_ref().is_some_and(|own| own != stream)
    }

    /// Returns the bytes of what a loop of a kind reads that is the only one to use a storage, if nothing but waiting loops holds
    /// its first input: [`take_gather`](Self::take_gather) then needs a storage of this size for it.
    pub(super) fn forgotten_table(
        &self,
        storage: &Storage,
        is_gather: impl Fn(&LoopLaunch) -> bool,
    ) -> Option<u64> {
        let waiters = self.waiters();
        let waiting = &waiters.loops[waiters.gather(storage, is_gather)?];
        match &waiters.memories[waiting.inputs[0].memory as usize].as_ref()?.known {
            Known::Pending { storage, bytes } if storage.strong_count() == 0 => Some(*bytes),
            _ => None,
        }
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
        let Some(&memory) = waiters.places.get(&std::ptr::from_ref(storage).addr()) else {
            return Taken::default();
        };
        let mut families = waiters.siblings(waiters.family(memory));
        families.push(waiters.family(memory));
        waiters.take(|family| families.contains(&family))
    }

    /// Takes the loops that must run before a command that touches this memory, and those that would need too much memory while they
    /// wait. Returns them, and the number of loops that wait on and did not before.
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
        if waiters.looks_for_greedy() {
            families.extend(waiters.greedy());
        }
        let taken = match families.is_empty() {
            true => Taken::default(),
            false => waiters.take(|family| families.contains(&family)),
        };
        let passed = std::mem::take(&mut waiters.fresh);
        waiters.loops.iter_mut().rev().take(passed).for_each(|waiting| waiting.has_let_pass = true);
        (taken, passed as u64)
    }
}

impl Waiters {
    fn has_room_for_again(&self, loops: usize) -> bool {
        self.again + loops <= MOST_AGAIN
    }

    /// Adds a loop.
    fn add(&mut self, deferral: Deferral, is_again: bool) {
        let Deferral { launch, numbers, read, written, stream, label } = deferral;
        self.stream.get_or_insert(stream);
        let inputs = read.into_iter().map(|place| self.operand(place, false)).collect();
        let outputs = written.into_iter().map(|place| self.operand(place, true)).collect();
        let waiting = Waiting { launch, numbers, label, inputs, outputs, has_let_pass: false, is_again };
        self.unite(&waiting);
        self.again += usize::from(is_again);
        self.fresh += 1;
        self.loops.push(waiting);
    }

    /// Returns an operand of a loop.
    fn operand(&mut self, (storage, offset): Place, is_written: bool) -> Operand {
        let address = Arc::as_ptr(&storage).addr();
        if let Some(&memory) = self.places.get(&address) {
            let used = self.used(memory);
            used.is_written |= is_written;
            used.operands += 1;
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
                self.ranges.insert((pointer.address(), memory), pointer.address() + bytes);
                self.longest = self.longest.max(bytes);
                Known::Existing { pointer, bytes, holder: Some(DeferredHolder::new(storage)) }
            }
        };
        self.places.insert(address, memory);
        let readers = SmallVec::new();
        self.memories[memory as usize] =
            Some(Used { known, address, family: memory, is_written, operands: 1, readers });
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

    /// Makes the operands of a loop one family, together with the loops that read its results.
    fn unite(&mut self, waiting: &Waiting) {
        let result = waiting.outputs[0].memory;
        let family = self.family(result);
        let read = waiting.inputs.iter().map(|operand| (operand, true));
        for (operand, is_read) in read.chain(waiting.outputs.iter().map(|operand| (operand, false))) {
            let used = self.used(operand.memory);
            let is_existing = matches!(used.known, Known::Existing { .. });
            if is_read && waiting.is_again && is_existing && !used.is_written {
                used.readers.push(result);
                continue;
            }
            let readers = if is_read { SmallVec::new() } else { std::mem::take(&mut used.readers) };
            for memory in readers.into_iter().chain([operand.memory]) {
                let other = self.family(memory);
                self.used(other).family = family;
                self.used(memory).family = family;
            }
        }
    }

    /// Returns the families of loops that compute something again and read the same memory as such loops of this family.
    fn siblings(&self, family: u32) -> SmallVec<[u32; 8]> {
        let is_read_by_both = |used: &Used| used.readers.iter().any(|&reader| self.family(reader) == family);
        self.all().filter(|(_, used)| is_read_by_both(used)).map(|(memory, _)| self.family(memory)).collect()
    }

    /// Returns the families of loops that a command could affect or be affected by.
    fn touched(&self, accesses: &[Access]) -> SmallVec<[u32; 8]> {
        let mut families = SmallVec::new();
        for access in accesses {
            // Memory that overlaps begins before the access ends, by its own length at most.
            let first = (access.start.saturating_sub(self.longest), 0);
            for (&(_, memory), &end) in self.ranges.range(first..(access.start + access.bytes, 0)) {
                let used = self.memories[memory as usize].as_ref().expect("memory with a range is used");
                if end <= access.start || !access.mode.writes() && !used.is_written {
                    continue;
                }
                families.push(self.family(memory));
                families.extend(used.readers.iter().map(|&reader| self.family(reader)));
            }
        }
        families
    }

    /// Returns whether to search for families that hold too much memory: before the first command after a loop was added, and once in
    /// eight commands, since other holders of the memory may have released it.
    fn looks_for_greedy(&mut self) -> bool {
        self.commands = self.commands.wrapping_add(1);
        self.loops.len() > self.again && self.fresh > 0 || self.commands.is_multiple_of(8)
    }

    /// Returns the families that hold more than [`MOST_MEMORY`] times the bytes of their results that nothing else holds.
    fn greedy(&self) -> impl Iterator<Item = u32> {
        let mut needs: SmallVec<[(u32, i64); 16]> = SmallVec::new();
        for (memory, used) in self.all() {
            let need = match &used.known {
                Known::Existing { holder: Some(holder), bytes, .. } if holder.is_alone() => *bytes as i64,
                Known::Existing { .. } => continue,
                Known::Pending { storage, bytes } if storage.strong_count() > 0 => {
                    -MOST_MEMORY * *bytes as i64
                }
                Known::Pending { .. } => continue,
            };
            let family = self.family(used.readers.first().copied().unwrap_or(memory));
            match needs.iter_mut().find(|(known, _)| *known == family) {
                Some((_, sum)) => *sum += need,
                None => needs.push((family, need)),
            }
        }
        needs.into_iter().filter(|(_, need)| *need > 0).map(|(family, _)| family)
    }

    /// Returns the number of the loop of a kind that writes a storage, if no other loop uses that, and no later one writes what it reads.
    fn gather(&self, storage: &Storage, is_gather: impl Fn(&LoopLaunch) -> bool) -> Option<usize> {
        let &result = self.places.get(&std::ptr::from_ref(storage).addr())?;
        let writes =
            |waiting: &Waiting, memory: u32| waiting.outputs.iter().any(|output| output.memory == memory);
        let number = self.loops.iter().position(|waiting| writes(waiting, result))?;
        let waiting = &self.loops[number];
        let is_written_later =
            |read: &Operand| self.loops[number + 1..].iter().any(|later| writes(later, read.memory));
        let is_alone = self.memories[result as usize].as_ref()?.operands == 1;
        let is_wanted = is_alone && is_gather(&waiting.launch.launch) && !waiting.is_again;
        (is_wanted && !waiting.inputs.iter().any(is_written_later)).then_some(number)
    }

    fn take_gather(
        &mut self,
        storage: &Storage,
        is_gather: impl Fn(&LoopLaunch) -> bool,
        table: Option<Arc<Storage>>,
    ) -> Option<Deferral> {
        let number = self.gather(storage, is_gather)?;
        let waiting = &self.loops[number];
        let (result, of_table) = (waiting.outputs[0].memory, waiting.inputs[0].memory);
        if let (Some(table), Some(used)) = (&table, &mut self.memories[of_table as usize])
            && let Known::Pending { storage, .. } = &mut used.known
        {
            *storage = Arc::downgrade(table);
            self.places.remove(&used.address);
            used.address = Arc::as_ptr(table).addr();
            self.places.insert(used.address, of_table);
        }
        let place = |operand: &Operand| {
            let storage = match &self.memories[operand.memory as usize].as_ref()?.known {
                Known::Existing { holder, .. } => Arc::clone(holder.as_ref()?.storage()),
                Known::Pending { storage, .. } => storage.upgrade()?,
            };
            Some((storage, operand.offset))
        };
        let deferral = Deferral {
            launch: Arc::clone(&waiting.launch),
            numbers: waiting.numbers.clone(),
            read: waiting.inputs.iter().map(place).collect::<Option<_>>()?,
            written: waiting.outputs.iter().map(place).collect::<Option<_>>()?,
            stream: self.stream.clone()?,
            label: waiting.label,
        };
        let waiting = self.loops.remove(number);
        self.fresh -= usize::from(!waiting.has_let_pass);
        // The result may represent the family.
        let of_family =
            |(memory, used): (u32, &Used)| (memory != result && used.family == result).then_some(memory);
        let heir = self.all().find_map(of_family).unwrap_or(result);
        self.memories
            .iter_mut()
            .flatten()
            .filter(|used| used.family == result)
            .for_each(|used| used.family = heir);
        for operand in waiting.inputs.iter().chain(&waiting.outputs) {
            if let Some(used) = &mut self.memories[operand.memory as usize] {
                used.operands -= 1;
                self.drop_unused(operand.memory);
            }
        }
        if self.loops.is_empty() {
            (self.stream, self.longest) = (None, 0);
        }
        Some(deferral)
    }

    /// Gives back the number of a memory that no waiting loop uses.
    fn drop_unused(&mut self, memory: u32) {
        let slot = &mut self.memories[memory as usize];
        let Some(used) = slot.take_if(|used| used.operands == 0) else { return };
        if let Known::Existing { pointer, .. } = &used.known {
            self.ranges.remove(&(pointer.address(), memory));
        }
        self.places.remove(&used.address);
        self.unused.push(memory);
    }

    /// Takes the loops of the families that are wanted, in their order. The others remain, in theirs.
    fn take(&mut self, is_wanted: impl Fn(u32) -> bool) -> Taken {
        let mut taken = Taken::on(self.stream.clone());
        let wanted: SmallVec<[bool; 64]> =
            (self.loops.iter()).map(|waiting| is_wanted(self.family(waiting.outputs[0].memory))).collect();
        if !wanted.contains(&true) {
            return taken;
        }
        // The number of each memory in what is taken.
        let mut numbers: SmallVec<[Option<u32>; 64]> = SmallVec::from_elem(None, self.memories.len());
        let mut wanted = wanted.into_iter();
        let loops: Vec<Waiting> = self.loops.extract_if(.., |_| wanted.next() == Some(true)).collect();
        for mut waiting in loops {
            self.again -= usize::from(waiting.is_again);
            self.fresh -= usize::from(!waiting.has_let_pass);
            for operand in waiting.inputs.iter_mut().chain(&mut waiting.outputs) {
                let former = operand.memory;
                let used = self.used(former);
                used.operands -= 1;
                // Loops of other families only read it.
                (used.family, used.is_written) = (former, false);
                let number = &mut numbers[former as usize];
                operand.memory = *number.get_or_insert_with(|| taken.memory(used.known.again()));
                self.drop_unused(former);
            }
            taken.add(waiting);
        }
        // Numbers that are unused now may be given to other memory.
        for used in self.memories.iter_mut().flatten().filter(|used| !used.readers.is_empty()) {
            used.readers.retain(|reader| numbers[*reader as usize].is_none());
        }
        if self.loops.is_empty() {
            (self.stream, self.longest) = (None, 0);
        }
        taken
    }
}
