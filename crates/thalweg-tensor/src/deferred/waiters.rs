//! [`Waiters`]: the loops that wait, their families, and the memory that they use.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_graph::Operand;
use thalweg_ops::lower::{LaunchNumbers, LoopLaunch};
use thalweg_runtime::{Access, DevicePointer, Label, Stream};

use super::launches::SharedLaunch;
use super::taken::Taken;
use super::window::{Deferral, Place};
use crate::storage::{DeferredHolder, Storage};

/// The most loops that wait to compute something again.
const MOST_AGAIN: usize = 512;

/// The most memory that waiting loops hold while other commands are queued, as a multiple of the memory of their results. It is more
/// than 1 because the gradients of several products whose sum is one gradient may then wait for the loop that adds them all.
const MOST_MEMORY: i64 = 2;

/// The number of commands after which all families are searched for those that hold too much memory.
const COMMANDS_PER_SEARCH: u32 = 16;

/// Families, by the memories that represent them.
pub(super) type Families = SmallVec<[u32; 8]>;

/// The memory of operands.
pub(super) enum Known {
    /// Memory that exists. Its storage is kept until the last loop that uses it is queued.
    Existing { holder: Option<DeferredHolder>, pointer: DevicePointer, bytes: u64 },
    /// Memory that is to be allocated, if anything reads it afterwards: if its storage is alive.
    Pending { storage: Weak<Storage>, bytes: u64 },
}

impl Known {
    /// Takes the reference of the last loop.
    fn take(&mut self) -> Self {
        match self {
            Self::Existing { holder, pointer, bytes } => {
                Self::Existing { holder: holder.take(), pointer: *pointer, bytes: *bytes }
            }
            Self::Pending { storage, bytes } => {
                Self::Pending { storage: std::mem::take(storage), bytes: *bytes }
            }
        }
    }

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
    /// Whether the loop computes again a result that was forgotten, or one that is not stored at all.
    is_again: bool,
    /// Its place in program order.
    order: u64,
}

/// A memory that waiting loops use.
struct Used {
    known: Known,
    /// The address of its storage. A storage whose memory is pending keeps that address while it is listed, even if it is dropped.
    address: usize,
    /// A memory of the same family; itself if it represents the family.
    family: u32,
    /// The loops of the family, if it represents that.
    loops: SmallVec<[u32; 2]>,
    is_written: bool,
    /// The number of operands of waiting loops in it.
    operands: u32,
    /// The results of loops of other families that only read it: loops that [compute again](super::window::Window::forget) what was
    /// forgotten.
    readers: SmallVec<[u32; 2]>,
    /// Its number among the memories of loops that are being taken.
    taken: Option<u32>,
    /// The last count of a family's bytes that met it.
    counted: Cell<u64>,
}

/// The loops that wait, and their operands.
///
/// Loops with memory in common are a *family*: they may be fused, and one may depend on another. Families are independent. A loop that
/// computes something again is of the family of its result only: many of them may read one parameter, and each waits by itself until its
/// result is read, or until something is to write what it reads.
///
/// Hundreds of loops may wait to compute something again, while one command after another asks which loops must run before it. So the
/// answer takes the time of what it names, not of everything that waits.
#[derive(Default)]
pub(super) struct Waiters {
    stream: Option<Stream>,
    /// The loops, by number; `None` where no loop has that number.
    loops: Vec<Option<Waiting>>,
    /// The numbers that no loop has.
    unused_loops: Vec<u32>,
    /// The number of loops that wait.
    count: usize,
    /// The memories, by number; `None` where no loop uses that number.
    memories: Vec<Option<Used>>,
    /// The numbers that no memory has.
    unused: Vec<u32>,
    /// The number of each storage's memory, by the storage's address.
    places: FxHashMap<usize, u32>,
    /// The memory that exists, by its start and number, with its end.
    ranges: BTreeMap<(u64, u32), u64>,
    /// Whether some of that memory has overlapped other memory of it.
    overlaps: bool,
    /// The number of loops that compute something again.
    again: usize,
    /// The loops that were added after the last command, as far as they wait.
    fresh: Vec<u32>,
    /// The number of loops that were ever added.
    added: u64,
    /// The number of commands so far, before which loops waited.
    commands: u32,
    /// The number of counts of a family's bytes so far.
    counts: Cell<u64>,
}

impl Waiters {
    pub(super) fn stream(&self) -> Option<&Stream> {
        self.stream.as_ref()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the number of loops that wait and compute nothing again.
    pub(super) fn count_but_again(&self) -> usize {
        self.count - self.again
    }

    pub(super) fn has_room_for_again(&self, loops: usize) -> bool {
        self.again + loops <= MOST_AGAIN
    }

    /// Returns whether a loop uses a storage.
    pub(super) fn uses(&self, storage: &Storage) -> bool {
        self.place(storage).is_some()
    }

    fn place(&self, storage: &Storage) -> Option<u32> {
        self.places.get(&std::ptr::from_ref(storage).addr()).copied()
    }

    /// Adds a loop.
    pub(super) fn add(&mut self, deferral: Deferral, is_again: bool) {
        let Deferral { launch, numbers, read, written, stream, label } = deferral;
        self.stream.get_or_insert(stream);
        let inputs = read.into_iter().map(|place| self.operand(place, false)).collect();
        let outputs = written.into_iter().map(|place| self.operand(place, true)).collect();
        self.added += 1;
        let waiting = Waiting { launch, numbers, label, inputs, outputs, is_again, order: self.added };
        let number = self.unused_loops.pop().unwrap_or_else(|| {
            self.loops.push(None);
            self.loops.len() as u32 - 1
        });
        let family = self.unite(&waiting);
        self.used(family).loops.push(number);
        self.again += usize::from(is_again);
        self.count += 1;
        self.fresh.push(number);
        self.loops[number as usize] = Some(waiting);
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
                self.add_range(memory, pointer.address(), pointer.address() + bytes);
                Known::Existing { pointer, bytes, holder: Some(DeferredHolder::new(storage)) }
            }
        };
        self.places.insert(address, memory);
        self.memories[memory as usize] = Some(Used {
            known,
            address,
            family: memory,
            loops: SmallVec::new(),
            is_written,
            operands: 1,
            readers: SmallVec::new(),
            taken: None,
            counted: Cell::new(0),
        });
        Operand { memory, offset }
    }

    fn add_range(&mut self, memory: u32, start: u64, end: u64) {
        let former = self.ranges.range(..(start, memory)).next_back();
        let next = self.ranges.range((start, memory)..).next();
        self.overlaps |= former.is_some_and(|(_, &former)| former > start)
            || next.is_some_and(|(&(next, _), _)| next < end);
        self.ranges.insert((start, memory), end);
    }

    fn used(&mut self, memory: u32) -> &mut Used {
        self.memories[memory as usize].as_mut().expect("a number of a loop's operand is used")
    }

    fn memory(&self, memory: u32) -> &Used {
        self.memories[memory as usize].as_ref().expect("a number of a loop's operand is used")
    }

    fn waiting(&self, number: u32) -> &Waiting {
        self.loops[number as usize].as_ref().expect("a family has loops that wait")
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

    /// Makes the operands of a loop one family, together with the loops that read its results. Returns the family.
    fn unite(&mut self, waiting: &Waiting) -> u32 {
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
                if other != family {
                    let loops = std::mem::take(&mut self.used(other).loops);
                    self.used(other).family = family;
                    self.used(family).loops.extend(loops);
                }
                self.used(memory).family = family;
            }
        }
        family
    }

    /// Returns the family of a storage whose address is to be read. If its loops compute again what was forgotten, adds the families
    /// that read the same.
    pub(super) fn families_to_read(&self, storage: &Storage) -> Families {
        let mut families = Families::new();
        let Some(memory) = self.place(storage) else { return families };
        let family = self.family(memory);
        families.push(family);
        let loops = self.memory(family).loops.iter().map(|&number| self.waiting(number));
        for waiting in loops.filter(|waiting| waiting.is_again) {
            let result = waiting.outputs[0].memory;
            let is_shared = |read: &&Operand| self.memory(read.memory).readers.contains(&result);
            families.extend(waiting.inputs.iter().filter(is_shared).map(|read| self.family(read.memory)));
        }
        families
    }

    /// Returns the families of loops that a command could affect or be affected by.
    pub(super) fn touched(&self, accesses: &[Access]) -> Families {
        let mut families = Families::new();
        for access in accesses {
            for (&(_, memory), &end) in self.ranges.range(..(access.start + access.bytes, 0)).rev() {
                if end <= access.start {
                    if self.overlaps {
                        continue;
                    }
                    break;
                }
                let used = self.memory(memory);
                if access.mode.writes() || used.is_written {
                    families.push(self.family(memory));
                    families.extend(used.readers.iter().map(|&reader| self.family(reader)));
                }
            }
        }
        families
    }

    /// Returns the families that hold more than [`MOST_MEMORY`] times the bytes of their results that nothing else holds: those of loops
    /// that were added after the last command, and once in [`COMMANDS_PER_SEARCH`] commands all, since other holders of the memory may
    /// have released it.
    pub(super) fn greedy(&mut self) -> Families {
        self.commands = self.commands.wrapping_add(1);
        let of = |&number: &u32| self.family(self.waiting(number).outputs[0].memory);
        let mut families: SmallVec<[u32; 32]> = if self.commands.is_multiple_of(COMMANDS_PER_SEARCH) {
            let represents = |(memory, used): (u32, &Option<Used>)| {
                used.as_ref().is_some_and(|used| !used.loops.is_empty()).then_some(memory)
            };
            (0..).zip(&self.memories).filter_map(represents).collect()
        } else if self.count_but_again() > 0 {
            self.fresh.iter().map(of).collect()
        } else {
            SmallVec::new()
        };
        families.sort_unstable();
        families.dedup();
        families.into_iter().filter(|&family| self.held_bytes(family) > 0).collect()
    }

    /// Returns the bytes that only a family holds less those that its results may take.
    fn held_bytes(&self, family: u32) -> i64 {
        let count = self.counts.get() + 1;
        self.counts.set(count);
        let mut held = 0;
        for &number in &self.memory(family).loops {
            let waiting = self.waiting(number);
            for &Operand { memory, .. } in waiting.inputs.iter().chain(&waiting.outputs) {
                let used = self.memory(memory);
                let holder = self.family(used.readers.first().copied().unwrap_or(memory));
                if holder != family || used.counted.replace(count) == count {
                    continue;
                }
                held += match &used.known {
                    Known::Existing { holder: Some(holder), bytes, .. } if holder.is_alone() => *bytes as i64,
                    Known::Pending { storage, bytes } if storage.strong_count() > 0 => {
                        -MOST_MEMORY * *bytes as i64
                    }
                    Known::Existing { .. } | Known::Pending { .. } => 0,
                };
            }
        }
        held
    }

    /// Notes that a command was queued. Returns the number of loops that wait on and did not before.
    pub(super) fn let_pass(&mut self) -> usize {
        let passed = self.fresh.len();
        self.fresh.clear();
        passed
    }

    /// Takes all loops that wait.
    pub(super) fn take_all(&mut self) -> Taken {
        let all = (0..).zip(&self.loops).filter_map(|(number, waiting)| waiting.is_some().then_some(number));
        self.take_loops(all.collect())
    }

    /// Takes all loops that wait, but those that compute something again and that nothing of the others needs.
    pub(super) fn take_but_again(&mut self) -> Taken {
        let others = self.loops.iter().flatten().filter(|waiting| !waiting.is_again);
        let families: Families = others.map(|waiting| self.family(waiting.outputs[0].memory)).collect();
        self.take(&families)
    }

    /// Takes the loops of families, in their order. The others remain, in theirs.
    pub(super) fn take(&mut self, families: &[u32]) -> Taken {
        let mut loops = SmallVec::new();
        // A family that is listed twice has no loops the second time.
        families.iter().for_each(|&family| loops.extend(std::mem::take(&mut self.used(family).loops)));
        self.take_loops(loops)
    }

    /// Takes all loops of some families.
    fn take_loops(&mut self, mut loops: SmallVec<[u32; 16]>) -> Taken {
        if loops.is_empty() {
            return Taken::default();
        }
        let mut taken = Taken::on(self.stream.clone(), loops.len());
        loops.sort_unstable_by_key(|&number| self.waiting(number).order);
        // The memories of loops, with the results of these.
        let mut used_for: SmallVec<[(u32, u32); 16]> = SmallVec::new();
        for &number in &loops {
            let mut waiting = self.remove(number);
            let result = waiting.outputs[0].memory;
            for operand in waiting.inputs.iter_mut().chain(&mut waiting.outputs) {
                let former = operand.memory;
                let used = self.used(former);
                used.operands -= 1;
                if !used.readers.contains(&result) {
                    // It is of a family that is taken. Loops of other families only read it.
                    (used.family, used.is_written) = (former, false);
                    used.loops.clear();
                }
                let is_last = used.operands == 0;
                operand.memory = match used.taken {
                    Some(number) => number,
                    None if is_last => taken.memory(used.known.take()),
                    None => *used.taken.insert(taken.memory(used.known.again())),
                };
                match is_last {
                    true => self.drop_unused(former),
                    false => used_for.push((former, result)),
                }
            }
            taken.add(waiting);
        }
        for (memory, result) in used_for {
            if let Some(used) = &mut self.memories[memory as usize] {
                used.taken = None;
                used.readers.retain(|reader| *reader != result);
            }
        }
        self.settle();
        taken
    }

    /// Removes a loop from the list of those that wait.
    fn remove(&mut self, number: u32) -> Waiting {
        let waiting = self.loops[number as usize].take().expect("it waits");
        self.unused_loops.push(number);
        self.count -= 1;
        self.again -= usize::from(waiting.is_again);
        waiting
    }

    /// Forgets removed loops, and the stream if nothing waits.
    fn settle(&mut self) {
        self.fresh.retain(|&number| self.loops[number as usize].is_some());
        if self.is_empty() {
            (self.stream, self.overlaps) = (None, false);
        }
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

    /// Returns the number of the loop of a kind that writes a storage, if no other loop uses that, and no later one writes what it reads.
    fn gather(&self, storage: &Storage, is_gather: impl Fn(&LoopLaunch) -> bool) -> Option<u32> {
        let result = self.place(storage)?;
        // What writes that storage, or what its writer reads, is of one family.
        let family = &self.memory(self.family(result)).loops;
        let writes = |number: u32, memory: u32| {
            self.waiting(number).outputs.iter().any(|output| output.memory == memory)
        };
        let number = family.iter().copied().find(|&number| writes(number, result))?;
        let waiting = self.waiting(number);
        let is_later = |other: &u32| self.waiting(*other).order > waiting.order;
        let is_written_later =
            |read: &Operand| family.iter().copied().filter(is_later).any(|later| writes(later, read.memory));
        let is_alone = self.memory(result).operands == 1;
        let is_wanted = is_alone && is_gather(&waiting.launch.launch) && !waiting.is_again;
        (is_wanted && !waiting.inputs.iter().any(is_written_later)).then_some(number)
    }

    /// Returns the bytes of the first input of a gather that [`take_gather`](Self::take_gather) takes, if nothing else holds it.
    pub(super) fn forgotten_table(
        &self,
        storage: &Storage,
        is_gather: impl Fn(&LoopLaunch) -> bool,
    ) -> Option<u64> {
        let waiting = self.waiting(self.gather(storage, is_gather)?);
        match &self.memory(waiting.inputs[0].memory).known {
            Known::Pending { storage, bytes } if storage.strong_count() == 0 => Some(*bytes),
            _ => None,
        }
    }

    /// Takes back a loop of a kind that is the only one to use a storage. `table` becomes the storage of its first input.
    pub(super) fn take_gather(
        &mut self,
        storage: &Storage,
        is_gather: impl Fn(&LoopLaunch) -> bool,
        table: Option<Arc<Storage>>,
    ) -> Option<Deferral> {
        let number = self.gather(storage, is_gather)?;
        let waiting = self.waiting(number);
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
            let storage = match &self.memory(operand.memory).known {
                Known::Existing { holder, .. } => Arc::clone(holder.as_ref()?.storage()),
                Known::Pending { storage, .. } => storage.upgrade()?,
            };
            Some((storage, operand.offset))
        };
        let waiting = self.waiting(number);
        let deferral = Deferral {
            launch: Arc::clone(&waiting.launch),
            numbers: waiting.numbers.clone(),
            read: waiting.inputs.iter().map(place).collect::<Option<_>>()?,
            written: waiting.outputs.iter().map(place).collect::<Option<_>>()?,
            stream: self.stream.clone()?,
            label: waiting.label,
        };
        let family = self.family(result);
        self.used(family).loops.retain(|member| *member != number);
        let waiting = self.remove(number);
        for &Operand { memory, .. } in waiting.inputs.iter().chain(&waiting.outputs) {
            let used = self.used(memory);
            used.operands -= 1;
            if used.operands == 0 {
                self.hand_on(memory);
                self.drop_unused(memory);
            }
        }
        self.settle();
        Some(deferral)
    }

    /// Makes another memory represent those that a memory represents.
    fn hand_on(&mut self, memory: u32) {
        let is_member = |(other, used): (u32, &Option<Used>)| {
            (other != memory && used.as_ref().is_some_and(|used| used.family == memory)).then_some(other)
        };
        let Some(member) = (0..).zip(&self.memories).find_map(is_member) else { return };
        let family = self.family(memory);
        let heir = if family == memory { member } else { family };
        let loops = std::mem::take(&mut self.used(memory).loops);
        let members = self.memories.iter_mut().flatten().filter(|used| used.family == memory);
        members.for_each(|used| used.family = heir);
        self.used(heir).loops.extend(loops);
    }
}
