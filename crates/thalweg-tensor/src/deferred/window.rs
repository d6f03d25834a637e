//! [`Window`]: the loops of a thread that wait, with their operands.

use std::sync::{Arc, Weak};

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use thalweg_execute::alignment_of;
use thalweg_graph::{Lifetime, Memory, Node, Operand, Segment};
use thalweg_ir::{DType, Node as Expression};
use thalweg_lock::{Mutex, MutexGuard};
use thalweg_ops::lower::{LaunchNumbers, LoopLaunch};

use thalweg_runtime::{Access, DevicePointer, Error, Label, Result, Stream};

use crate::storage::{DeferredHolder, Storage};

/// The most loops that wait.
const MOST_LOOPS: usize = 64;

/// The first element of an operand: a storage, and an offset in bytes.
pub(crate) type Place = (Arc<Storage>, u64);

/// A loop that is to wait.
pub(crate) struct Deferral<'a> {
    pub launch: &'a LoopLaunch,
    pub numbers: LaunchNumbers,
    pub read: SmallVec<[Place; 4]>,
    pub written: SmallVec<[Place; 2]>,
    pub stream: Stream,
    pub label: Label,
}

impl Deferral<'_> {
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
    pub node: Node,
    pub numbers: LaunchNumbers,
    pub label: Label,
    /// Whether it has waited while a command of another kind was queued.
    pub has_let_pass: bool,
}

/// The loops that wait, and their operands.
///
/// Loops with memory in common are a *family*: they may be fused, and one may depend on another. Families are independent.
#[derive(Default)]
pub(super) struct Waiters {
    pub stream: Option<Stream>,
    pub loops: Vec<Waiting>,
    pub memories: Vec<Known>,
    /// A memory of the same family for each memory; itself if it represents the family.
    families: Vec<u32>,
    /// The number of each storage's memory, by the storage's address. A storage whose memory is pending keeps that address while it
    /// is listed, even if it is dropped.
    places: FxHashMap<usize, u32>,
    /// Numbers that determine the loops.
    pub key: Vec<u64>,
}

/// Returns whether a loop only casts numbers to a dtype that has all of them.
fn is_widening(launch: &LoopLaunch) -> bool {
    let body = &launch.body;
    let ([input], [output]) = (body.inputs.as_slice(), body.outputs.as_slice()) else { return false };
    let mut value = body.nodes[output.value.index()];
    while let Expression::Cast(id) = value {
        value = body.nodes[id.index()];
    }
    let is_exact = matches!(
        (input.dtype, output.dtype),
        (DType::F16 | DType::Bf16, DType::F32 | DType::F64) | (DType::F32, DType::F64)
    );
    let is_load = matches!(value, Expression::Load { .. });
    let casts_are_wide =
        body.dtypes.iter().all(|&dtype| dtype == input.dtype || dtype == output.dtype || dtype == DType::F32);
    is_exact
        && is_load
        && casts_are_wide
        && output.scatter.is_none()
        && body.reductions.is_empty()
        && body.report.is_none()
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
    pub(super) fn waiters(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock()
    }

    /// Returns whether a loop may wait with those that wait already.
    pub fn accepts(&self, deferral: &Deferral<'_>) -> bool {
        let waiters = self.waiters();
        waiters.loops.len() < MOST_LOOPS
            && waiters.stream.as_ref().is_none_or(|stream| *stream == deferral.stream)
    }

    /// Adds a loop.
    pub fn add(&self, deferral: Deferral<'_>) {
        let Deferral { launch, numbers, read, written, stream, label } = deferral;
        let mut waiters = self.waiters();
        waiters.stream.get_or_insert(stream);
        waiters.key.extend(launch.key(0));
        let inputs = read.into_iter().map(|place| waiters.operand(place)).collect();
        let outputs = written.into_iter().map(|place| waiters.operand(place)).collect();
        let launch = LoopLaunch { scalars: LaunchNumbers::new(), ..launch.clone() };
        let numbers_of = waiters.numbers_of(launch.id, &numbers);
        let node = Node { launch, inputs, outputs, numbers_of };
        waiters.unite(&node);
        waiters.loops.push(Waiting { node, numbers, label, has_let_pass: false });
    }

    /// Returns whether any loop waits.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiters().loops.is_empty()
    }

    /// Takes all loops that wait.
    pub(super) fn take(&self) -> Waiters {
        std::mem::take(&mut *self.waiters())
    }

    /// Takes the loops that must run before the address of a storage is read.
    pub(super) fn take_before_reading(&self, storage: &Storage) -> Waiters {
        let mut waiters = self.waiters();
        let Some(&memory) = waiters.places.get(&std::ptr::from_ref(storage).addr()) else {
            return Waiters::default();
        };
        let family = waiters.family(memory);
        waiters.take_families(&FxHashSet::from_iter([family]))
    }

    /// Takes the loops that must run before a command that touches this memory, and those that would need more memory while they wait
    /// than their results. Returns them, and the number of loops that wait on and did not before.
    pub(super) fn take_before_command(
        &self,
        is_of_stream: impl FnOnce(&Stream) -> bool,
        accesses: &[Access],
    ) -> (Waiters, u64) {
        let mut waiters = self.waiters();
        if !waiters.stream.as_ref().is_some_and(is_of_stream) {
            return (std::mem::take(&mut *waiters), 0);
        }
        let mut families = waiters.touched(accesses);
        families.extend(waiters.greedy());
        let taken = waiters.take_families(&families);
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

/// A loop that widens the numbers of a memory.
pub(super) struct Widening {
    node: usize,
    source: u32,
    /// The memory of the result.
    pub result: u32,
}

/// A loop that waits on with a window that was taken.
pub(super) struct Again {
    pub node: Node,
    pub numbers: LaunchNumbers,
    pub label: Label,
    pub read: Place,
    pub written: Place,
    /// The memory of the result, in the window that was taken.
    pub result: u32,
}

impl Waiters {
    /// Returns the loops that widen numbers exactly (`float` of a 16-bit tensor) from memory that only waiting loops hold, so that
    /// nothing can change it, into a result that is larger, is alive, and is not written otherwise.
    pub fn widening(&self, alive: &[Option<Arc<Storage>>]) -> Vec<Widening> {
        let writes = |memory: u32| {
            let outputs = self.loops.iter().flat_map(|waiting| &waiting.node.outputs);
            outputs.filter(|output| output.memory == memory).count()
        };
        let of = |(node, waiting): (usize, &Waiting)| {
            let ([input], [output]) = (waiting.node.inputs.as_slice(), waiting.node.outputs.as_slice())
            else {
                return None;
            };
            let (source, result) = (input.memory, output.memory);
            let Known::Existing { holder: Some(holder), bytes, .. } = &self.memories[source as usize] else {
                return None;
            };
            let Known::Pending { bytes: wide, .. } = &self.memories[result as usize] else { return None };
            let is_safe = holder.is_alone() && writes(source) == 0 && writes(result) == 1;
            let is_kept = alive[result as usize].is_some() && wide > bytes;
            (is_safe && is_kept && is_widening(&waiting.node.launch)).then_some(Widening {
                node,
                source,
                result,
            })
        };
        self.loops.iter().enumerate().filter_map(of).collect()
    }

    /// Returns a widening loop for another window, with the storages of its operands.
    pub fn again(&self, widening: &Widening, alive: &[Option<Arc<Storage>>]) -> Option<Again> {
        let Waiting { node, numbers, label, .. } = &self.loops[widening.node];
        let Known::Existing { holder: Some(holder), .. } = &self.memories[widening.source as usize] else {
            return None;
        };
        Some(Again {
            read: (Arc::clone(holder.storage()), node.inputs[0].offset),
            written: (alive[widening.result as usize].clone()?, node.outputs[0].offset),
            node: node.clone(),
            numbers: numbers.clone(),
            label: *label,
            result: widening.result,
        })
    }

    /// Returns an operand of the segment.
    fn operand(&mut self, (storage, offset): Place) -> Operand {
        let next = self.memories.len() as u32;
        let memory = *self.places.entry(Arc::as_ptr(&storage).addr()).or_insert(next);
        if memory == next {
            self.families.push(next);
            self.memories.push(match storage.promised_bytes() {
                Some(bytes) => Known::Pending { storage: Arc::downgrade(&storage), bytes },
                None => {
                    let (pointer, bytes) = (storage.pointer(), storage.buffer().size_bytes());
                    Known::Existing { pointer, bytes, holder: Some(DeferredHolder::new(storage)) }
                }
            });
        }
        self.key.extend_from_slice(&[u64::from(memory), offset]);
        Operand { memory, offset }
    }

    /// Returns the first loop with the same body and numbers as the next one, and makes it a part of the key.
    fn numbers_of(&mut self, id: u64, numbers: &[u64]) -> u32 {
        let next = self.loops.len();
        if numbers.is_empty() {
            return next as u32;
        }
        let is_alike =
            |waiting: &Waiting| waiting.node.launch.id == id && waiting.numbers.as_slice() == numbers;
        let found = self.loops.iter().position(is_alike).unwrap_or(next) as u32;
        self.key.push(u64::from(found));
        found
    }

    /// Returns the memory that represents the family of a memory.
    fn family(&self, mut memory: u32) -> u32 {
        while self.families[memory as usize] != memory {
            memory = self.families[memory as usize];
        }
        memory
    }

    /// Makes the operands of a loop one family.
    fn unite(&mut self, node: &Node) {
        let family = self.family(node.outputs[0].memory);
        for operand in node.inputs.iter().chain(&node.outputs) {
            let other = self.family(operand.memory);
            self.families[other as usize] = family;
            self.families[operand.memory as usize] = family;
        }
    }

    /// Returns the families of loops that a command could affect or be affected by.
    fn touched(&self, accesses: &[Access]) -> FxHashSet<u32> {
        let mut families = FxHashSet::default();
        for (memory, known) in (0..).zip(&self.memories) {
            let Known::Existing { pointer, bytes, .. } = known else { continue };
            let (start, end) = (pointer.address(), pointer.address() + bytes);
            let is_written = || {
                let mut outputs = self.loops.iter().flat_map(|waiting| &waiting.node.outputs);
                outputs.any(|output| output.memory == memory)
            };
            let meets = |access: &Access| {
                access.start < end
                    && start < access.start + access.bytes
                    && (access.mode.writes() || is_written())
            };
            if accesses.iter().any(meets) {
                families.insert(self.family(memory));
            }
        }
        families
    }

    /// Returns the families that hold more bytes that nothing else holds than their results have.
    fn greedy(&self) -> impl Iterator<Item = u32> {
        let mut needs: FxHashMap<u32, i64> = FxHashMap::default();
        for (memory, known) in (0..).zip(&self.memories) {
            let need = match known {
                Known::Existing { holder: Some(holder), bytes, .. } if holder.is_alone() => *bytes as i64,
                Known::Existing { .. } => continue,
                Known::Pending { storage, bytes } if storage.strong_count() > 0 => -(*bytes as i64),
                Known::Pending { .. } => continue,
            };
            *needs.entry(self.family(memory)).or_default() += need;
        }
        needs.into_iter().filter(|(_, need)| *need > 0).map(|(family, _)| family)
    }

    /// Takes the loops of families, in their order. The others remain, in theirs.
    fn take_families(&mut self, families: &FxHashSet<u32>) -> Self {
        if families.is_empty() {
            return Self::default();
        }
        let of: Vec<u32> = (0..self.memories.len() as u32).map(|memory| self.family(memory)).collect();
        let all = std::mem::take(self);
        if all.loops.iter().all(|waiting| families.contains(&of[waiting.node.outputs[0].memory as usize])) {
            return all;
        }
        let (mut taken, mut numbers) = (Self::default(), Vec::with_capacity(of.len()));
        let mut addresses = vec![0; of.len()];
        all.places.iter().for_each(|(&address, &memory)| addresses[memory as usize] = address);
        for ((known, family), address) in all.memories.into_iter().zip(&of).zip(addresses) {
            let side = if families.contains(family) { &mut taken } else { &mut *self };
            let number = side.memories.len() as u32;
            side.memories.push(known);
            side.families.push(number);
            side.places.insert(address, number);
            numbers.push(number);
        }
        for mut waiting in all.loops {
            let family = of[waiting.node.outputs[0].memory as usize];
            let side = if families.contains(&family) { &mut taken } else { &mut *self };
            side.stream.clone_from(&all.stream);
            side.key.extend(waiting.node.launch.key(0));
            for operand in waiting.node.inputs.iter_mut().chain(&mut waiting.node.outputs) {
                operand.memory = numbers[operand.memory as usize];
                side.key.extend_from_slice(&[u64::from(operand.memory), operand.offset]);
            }
            waiting.node.numbers_of = side.numbers_of(waiting.node.launch.id, &waiting.numbers);
            side.unite(&waiting.node);
            side.loops.push(waiting);
        }
        taken
    }

    /// Returns the segment, and completes its key by what the memory is. `alive` has the storages that are alive.
    pub fn segment(&mut self, alive: &[Option<Arc<Storage>>]) -> Segment {
        let memories: Vec<Memory> = (self.memories.iter().zip(alive))
            .map(|(known, alive)| match *known {
                Known::Existing { pointer, .. } => Memory {
                    bytes: 0,
                    alignment_bytes: alignment_of([pointer]),
                    lifetime: Lifetime::Existing,
                },
                Known::Pending { bytes, .. } => {
                    let lifetime = if alive.is_some() { Lifetime::Kept } else { Lifetime::Temporary };
                    Memory { bytes, alignment_bytes: 256, lifetime }
                }
            })
            .collect();
        for memory in &memories {
            self.key.extend_from_slice(&[memory.bytes, memory.alignment_bytes << 8 | memory.lifetime as u64]);
        }
        Segment { memories, nodes: Vec::new() }
    }
}
