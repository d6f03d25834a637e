//! The end of a wait: the program of the loops that waited, and its launches.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_execute::{Addresses, Kept, Lowered, alignment_of, compile_ahead, execute};
use thalweg_graph::{Machine, Operand, Program, Segment, Step, plan};
use thalweg_runtime::{Buffer, Device, DevicePointer, Label, Result, Stream};

use super::again;
use super::count;
use super::explain::{explain, is_explained};
use super::taken::Taken;
use super::waiters::{Known, Waiting};
use super::window::{Deferral, Window};
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

/// The end of a wait.
#[derive(Clone, Copy)]
pub(super) enum End<'a> {
    /// A call with this label.
    Call(Label),
    /// The end of the outermost region, with this label.
    Region(Label),
    /// The read of a storage's address.
    Read(&'a Storage),
}

impl<'a> End<'a> {
    fn label(self) -> Option<Label> {
        match self {
            Self::Call(label) | Self::Region(label) => Some(label),
            Self::Read(_) => None,
        }
    }

    fn read(self) -> Option<&'a Storage> {
        if let Self::Read(storage) = self { Some(storage) } else { None }
    }
}

impl Window {
    /// Queues loops that waited.
    ///
    /// When the outermost region ends, a [widening](Taken::widening) loop whose result the other loops can do without waits on:
    /// it is computed within them, and again where the result is read later, if it ever is.
    pub(super) fn queue(&self, mut taken: Taken, end: End<'_>) -> Result<()> {
        let before = end.label();
        let Some(stream) = taken.stream.take().filter(|_| !taken.loops.is_empty()) else { return Ok(()) };
        let mut alive: Vec<Option<Arc<Storage>>> = (taken.memories.iter())
            .map(|known| match known {
                Known::Pending { storage, .. } => storage.upgrade(),
                Known::Existing { .. } => None,
            })
            .collect();
        // A captured graph computes what its own region needs.
        let may_wait = matches!(end, End::Region(_)) && !stream.is_capturing().unwrap_or(true);
        let mut again = again::saved_only(&taken, &alive, &stream, end.read());
        // At the end of a region, a widening loop that only this region's loops need waits on, too.
        let widening = if may_wait { taken.widening(&alive) } else { Vec::new() };
        again.extend(widening.iter().filter_map(|of| taken.again(of, &stream, &alive)));
        if !self.has_room_for_again(again.iter().map(|(_, deferrals)| deferrals.len()).sum()) {
            again.clear();
        }
        let again = not_stored(again, &mut taken, &alive, stream.device(), before);
        again.iter().for_each(|(result, _)| alive[*result as usize] = None);
        count(|counters| counters.recomputed += again.len() as u64);
        let stored = again::stored(&taken, &alive, &stream);
        let queued = queue(&mut taken, &alive, &stream, before);
        again::note_stored(stored);
        if let Err(error) = &queued {
            let written = again.iter().flat_map(|(_, deferrals)| deferrals).flat_map(|loops| &loops.written);
            let lost = alive.iter().flatten().chain(written.map(|(storage, _)| storage));
            lost.for_each(|storage| storage.fail(error));
            return queued;
        }
        self.add_again(again.into_iter().flat_map(|(_, deferrals)| deferrals));
        queued
    }
}

/// Loops that compute a memory again.
type Again = (u32, Vec<Deferral>);

/// Returns those of the results that the program of the loops does not store if they need not be kept.
fn not_stored(
    again: Vec<Again>,
    taken: &mut Taken,
    alive: &[Option<Arc<Storage>>],
    device: &Device,
    before: Option<Label>,
) -> Vec<Again> {
    if again.is_empty() {
        return again;
    }
    let length = taken.key.len();
    let mut fewer = alive.to_vec();
    again.iter().for_each(|(result, _)| fewer[*result as usize] = None);
    let ready = program(taken, &fewer, device, before);
    taken.key.truncate(length);
    let is_stored = |memory: u32| ready.program.placed.iter().any(|(placed, _)| *placed == memory);
    again.into_iter().filter(|(result, _)| !is_stored(*result)).collect()
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
    execute(&lowered, (&inputs[..], &outputs[..]), stream, label)
}
