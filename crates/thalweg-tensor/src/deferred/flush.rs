//! The end of a wait: the program of the loops that waited, and its launches.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_execute::{Addresses, Kept, Lowered, alignment_of, compile_ahead, execute};
use thalweg_graph::{Machine, Operand, Program, Segment, Step, plan};
use thalweg_runtime::{Buffer, Device, DevicePointer, Label, Result, Stream};

use super::count;
use super::explain::{explain, is_explained};
use super::taken::{Again, Taken};
use super::window::{Known, Waiting, Window};
use crate::storage::Storage;

/// The number of programs that a thread keeps.
const PROGRAMS_KEPT: usize = 1 << 11;

/// A program with its launches, once they are loaded.
struct Ready {
    program: Program,
    /// The launch of each step, for the alignment of the first addresses.
    launches: Vec<OnceLock<Kept>>,
    /// The memory that each step is the first to use, and that which it is the last to use.
    uses: Vec<[Vec<u32>; 2]>,
    /// The bytes that the program allocates.
    allocated_bytes: u64,
}

impl Ready {
    fn new(program: Program, segment: &Segment) -> Self {
        let of = |step: &Step| -> Vec<u32> {
            let operands = step.inputs.iter().chain(&step.outputs);
            let mut used: Vec<u32> = operands.map(|operand| operand.memory).collect();
            used.sort_unstable();
            used.dedup();
            used
        };
        let used: Vec<Vec<u32>> = program.steps.iter().map(of).collect();
        let without = |step: usize, others: &[Vec<u32>]| -> Vec<u32> {
            let is_apart = |memory: &u32| !others.iter().any(|used| used.contains(memory));
            used[step].iter().copied().filter(is_apart).collect()
        };
        let uses = (0..used.len())
            .map(|step| [without(step, &used[..step]), without(step, &used[step + 1..])])
            .collect();
        let launches = program.steps.iter().map(|_| OnceLock::new()).collect();
        let allocated_bytes = program.allocated_bytes(segment);
        Self { program, launches, uses, allocated_bytes }
    }
}

thread_local! {
    /// The programs of this thread, by everything that they depend on.
    static PROGRAMS_OF_THREAD: RefCell<FxHashMap<Box<[u64]>, Arc<Ready>>> = RefCell::default();
}

/// Forgets the programs of this thread.
pub(super) fn forget_programs() {
    let _ = PROGRAMS_OF_THREAD.try_with(|programs| programs.borrow_mut().clear());
}

impl Window {
    /// Queues loops that waited, before a call with this label; `None` if an address is read.
    ///
    /// When the outermost region ends, a [widening](Waiters::widening) loop whose result the other loops can do without waits on:
    /// it is computed within them, and again where the result is read later, if it ever is.
    pub(super) fn queue(&self, mut taken: Taken, before: Option<Label>, ends: bool) -> Result<()> {
        let Some(stream) = taken.stream.take().filter(|_| !taken.loops.is_empty()) else { return Ok(()) };
        let mut alive: Vec<Option<Arc<Storage>>> = (taken.memories.iter())
            .map(|known| match known {
                Known::Pending { storage, .. } => storage.upgrade(),
                Known::Existing { .. } => None,
            })
            .collect();
        // A captured graph computes what its own region needs.
        let may_wait = ends && !stream.is_capturing().unwrap_or(true);
        let again = if may_wait { waits_on(&mut taken, &alive, &stream, before) } else { Vec::new() };
        again.iter().for_each(|again| alive[again.result as usize] = None);
        let queued = queue(&mut taken, &alive, &stream, before);
        if let Err(error) = &queued {
            let addresses = alive.iter().flatten().map(|storage| Arc::as_ptr(storage).addr());
            self.failed(error, addresses);
        }
        again.into_iter().for_each(|again| self.add(again.deferral));
        queued
    }
}

/// Returns the widening loops that wait on: those whose results the program of the others does not store.
fn waits_on(
    taken: &mut Taken,
    alive: &[Option<Arc<Storage>>],
    stream: &Stream,
    before: Option<Label>,
) -> Vec<Again> {
    let widening = taken.widening(alive);
    if widening.is_empty() {
        return Vec::new();
    }
    let length = taken.key.len();
    let mut fewer = alive.to_vec();
    widening.iter().for_each(|widening| fewer[widening.result as usize] = None);
    let ready = program(taken, &fewer, stream.device(), before);
    taken.key.truncate(length);
    let is_stored = |memory: u32| ready.program.placed.iter().any(|(placed, _)| *placed == memory);
    let waits = widening.iter().filter(|widening| !is_stored(widening.result));
    waits.filter_map(|widening| taken.again(widening, stream, alive)).collect()
}

/// Queues the program of loops, and gives the storages that are alive their memory.
fn queue(
    taken: &mut Taken,
    alive: &[Option<Arc<Storage>>],
    stream: &Stream,
    before: Option<Label>,
) -> Result<()> {
    let is_wanted = |(known, alive): (&Known, &Option<Arc<Storage>>)| {
        alive.is_some() || matches!(known, Known::Existing { .. })
    };
    if let [alone] = taken.loops.as_slice()
        && !is_explained()
        && taken.memories.iter().zip(alive).all(is_wanted)
    {
        return run_alone(alone, &taken.memories, alive, stream);
    }
    let ready = program(taken, alive, stream.device(), before);
    let program = &ready.program;
    count(|counters| {
        counters.segments += 1;
        counters.kernels += program.steps.len() as u64;
        counters.repeated += program.twins.len() as u64;
        counters.planned_bytes = ready.allocated_bytes;
    });
    let label = taken.loops.last().expect("a window with a stream has loops").label;
    let arena = Buffer::labelled(stream, program.arena_bytes, label)?;
    let mut bases: Vec<DevicePointer> = (taken.memories.iter())
        .map(|known| match known {
            Known::Existing { pointer, .. } => *pointer,
            Known::Pending { .. } => DevicePointer::new(0),
        })
        .collect();
    for &(memory, offset) in &program.placed {
        bases[memory as usize] = arena.pointer().offset(offset);
    }
    if ready.launches.iter().any(|launch| launch.get().is_none()) {
        let wanted = program.steps.iter();
        let wanted = wanted.map(|step| (&step.launch, step.steps.as_ref(), addresses(step, &bases)));
        compile_ahead(stream.device(), wanted);
    }
    let mut kept = Vec::with_capacity(program.kept.len());
    for ((step, kept_launch), [begun, ended]) in program.steps.iter().zip(&ready.launches).zip(&ready.uses) {
        for &memory in begun {
            if let Some(storage) = &alive[memory as usize] {
                let buffer = storage.allocated()?;
                bases[memory as usize] = buffer.pointer();
                kept.push((storage, buffer));
            }
        }
        run(step, kept_launch, &taken.loops, &bases, stream)?;
        for &memory in ended {
            // What nothing else holds is free for the steps that follow on the stream.
            if let Known::Existing { holder, .. } = &mut taken.memories[memory as usize] {
                *holder = None;
            }
        }
    }
    kept.into_iter().for_each(|(storage, buffer)| storage.fulfil(buffer));
    Ok(())
}

/// Queues a loop that nothing can be fused with. It needs no program.
fn run_alone(
    alone: &Waiting,
    memories: &[Known],
    alive: &[Option<Arc<Storage>>],
    stream: &Stream,
) -> Result<()> {
    count(|counters| {
        counters.segments += 1;
        counters.kernels += 1;
    });
    let mut bases = SmallVec::<[DevicePointer; 8]>::new();
    let (mut kept, mut allocated_bytes) = (SmallVec::<[(&Arc<Storage>, Buffer); 2]>::new(), 0);
    for (known, alive) in memories.iter().zip(alive) {
        bases.push(match (known, alive) {
            (Known::Existing { pointer, .. }, _) => *pointer,
            (Known::Pending { bytes, .. }, storage) => {
                let storage = storage.as_ref().expect("the results of the loop are alive");
                let buffer = storage.allocated()?;
                let pointer = buffer.pointer();
                allocated_bytes += bytes;
                kept.push((storage, buffer));
                pointer
            }
        });
    }
    count(|counters| counters.planned_bytes = allocated_bytes);
    let address = |operand: &Operand| bases[operand.memory as usize].offset(operand.offset);
    let inputs: SmallVec<[DevicePointer; 8]> = alone.inputs.iter().map(address).collect();
    let outputs: SmallVec<[DevicePointer; 4]> = alone.outputs.iter().map(address).collect();
    alone.launch.run(stream, (&inputs, &outputs), &alone.numbers, alone.label)?;
    kept.into_iter().for_each(|(storage, buffer)| storage.fulfil(buffer));
    Ok(())
}

/// Returns the program of the loops, planned once. `alive` has the storages that are alive.
fn program(
    taken: &mut Taken,
    alive: &[Option<Arc<Storage>>],
    device: &Device,
    before: Option<Label>,
) -> Arc<Ready> {
    let memories = taken.memory_of_segment(alive);
    taken.key.push(device.number());
    let known = PROGRAMS_OF_THREAD.try_with(|programs| programs.borrow().get(taken.key.as_slice()).cloned());
    if let Ok(Some(known)) = known {
        return known;
    }
    let segment = taken.segment(memories);
    let shared_memory_bytes = device.properties().shared_memory_per_block_optin_bytes;
    let has_clusters = device.with_clusters(Ok).unwrap_or(false);
    let program = plan(&segment, &Machine { shared_memory_bytes, has_clusters });
    count(|counters| counters.programs += 1);
    explain(&program, &segment, &taken.loops, before);
    let ready = Arc::new(Ready::new(program, &segment));
    let _ = PROGRAMS_OF_THREAD.try_with(|programs| {
        let mut programs = programs.borrow_mut();
        if programs.len() >= PROGRAMS_KEPT {
            programs.clear();
        }
        programs.insert(taken.key.as_slice().into(), Arc::clone(&ready));
    });
    ready
}

/// Returns the addresses of a step's operands.
fn addresses(step: &Step, bases: &[DevicePointer]) -> Addresses {
    let address = |operand: &Operand| bases[operand.memory as usize].offset(operand.offset);
    (step.inputs.iter().map(address).collect(), step.outputs.iter().map(address).collect())
}

/// Queues a step.
fn run(
    step: &Step,
    kept: &OnceLock<Kept>,
    loops: &[Waiting],
    bases: &[DevicePointer],
    stream: &Stream,
) -> Result<()> {
    let (inputs, outputs) = addresses(step, bases);
    let numbers: SmallVec<[u64; 12]> =
        step.numbers.iter().map(|&(node, slot)| loops[node as usize].numbers[slot as usize]).collect();
    let last = *step.members.last().expect("a step computes a loop");
    let label = loops[last as usize].label;
    let kept = kept.get_or_init(|| Kept::new(alignment_of(inputs.iter().chain(&outputs).copied())));
    let lowered =
        Lowered { launch: &step.launch, steps: step.steps.as_ref(), numbers: &numbers, kept: Some(kept) };
    execute(&lowered, stream, (&inputs, &outputs), label)
}
