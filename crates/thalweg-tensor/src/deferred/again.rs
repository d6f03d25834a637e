//! Recomputation: results that only saved tensors hold do not keep memory, if loops compute them from what is kept anyway.
//!
//! A saved result that only loops read is not stored at all: the loops of its backward pass compute it. One that another kernel read in
//! the forward pass (the activation before a product) is stored for that kernel, and [forgotten](Window::forget) as soon as the program
//! holds it no more. In both cases the loops wait in the [window](super::window) and run before the result's address is read.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::{Arc, Weak};

use smallvec::SmallVec;
use thalweg_graph::Operand;
use thalweg_ir::Node as Expression;
use thalweg_ops::lower::LaunchNumbers;
use thalweg_runtime::{Access, Buffer, Environment, Label, Stream};

use super::launches::SharedLaunch;
use super::taken::Taken;
use super::waiters::Known;
use super::window::{Deferral, Window};
use super::{count, is_backward, is_on, promised};
use crate::storage::Storage;

/// The least bytes of a result for which recomputing is worthwhile, by default.
const LEAST_BYTES: u64 = 1 << 20;

/// The most loops that compute a result again.
const MOST_LOOPS: usize = 4;

/// The memory that may be kept only to compute a result again, as a divisor of the result's bytes.
const SMALL_SHARE: u64 = 16;

/// A loop of a recipe.
struct Step {
    launch: Arc<SharedLaunch>,
    numbers: LaunchNumbers,
    label: Label,
    inputs: SmallVec<[Source; 4]>,
    outputs: SmallVec<[Target; 2]>,
}

/// The memory that a loop of a recipe reads, with the offset in bytes.
enum Source {
    /// Memory that is kept anyway, and the number of writes when it was read.
    Kept(Weak<Storage>, u64, u32),
    /// A result of the recipe, by its number.
    Made(usize, u64),
}

/// The memory that a loop of a recipe writes: a result by its number, its bytes, and the offset.
struct Target {
    number: usize,
    bytes: u64,
    offset: u64,
}

/// The loops that compute a result again.
pub(super) struct Recipe {
    steps: Vec<Step>,
    /// The number of the result.
    result: usize,
}

/// A stored result with its recipe.
pub(super) struct Candidate {
    storage: Weak<Storage>,
    /// The number of writes to the result when it was stored. The recipe does not cover later writes.
    writes: u32,
    stream: Stream,
    recipe: Recipe,
    /// The addresses of the result and of the memory that its loops read.
    memory: SmallVec<[Range<u64>; 4]>,
}

thread_local! {
    /// The least bytes of a result that this thread computes again, if it was set.
    static RECOMPUTED: Cell<Option<u64>> = const { Cell::new(None) };
    /// The results of this thread's region that may be forgotten once only saved tensors hold them.
    static CANDIDATES: RefCell<Vec<Candidate>> = const { RefCell::new(Vec::new()) };
}

/// The loops of a segment, with the storages that are alive.
struct Recipes<'a> {
    taken: &'a Taken,
    alive: &'a [Option<Arc<Storage>>],
    /// The memory that is to be computed again.
    again: Vec<u32>,
}

impl Recipes<'_> {
    /// Returns the recipe of a memory.
    fn of(&self, memory: u32) -> Option<Recipe> {
        let mut loops = Vec::new();
        self.collect(memory, &mut loops)?;
        loops.sort_unstable();
        let bytes = |memory: u32| match &self.taken.memories[memory as usize] {
            Known::Pending { bytes, .. } | Known::Existing { bytes, .. } => *bytes,
        };
        let mut kept_bytes = 0;
        let mut steps = Vec::new();
        for &number in &loops {
            let waiting = &self.taken.loops[number];
            let source = |operand: &Operand| -> Option<Source> {
                let memory = operand.memory;
                if loops.iter().any(|&other| self.writes(other, memory)) {
                    return Some(Source::Made(memory as usize, operand.offset));
                }
                let storage = self.storage(memory)?;
                Some(Source::Kept(Arc::downgrade(storage), operand.offset, storage.writes()))
            };
            for operand in &waiting.inputs {
                let is_kept = self.storage(operand.memory).is_some_and(|storage| storage.is_saved());
                if !is_kept && !loops.iter().any(|&other| self.writes(other, operand.memory)) {
                    kept_bytes += bytes(operand.memory);
                }
            }
            let target = |operand: &Operand| Target {
                number: operand.memory as usize,
                bytes: bytes(operand.memory),
                offset: operand.offset,
            };
            steps.push(Step {
                launch: Arc::clone(&waiting.launch),
                numbers: waiting.numbers.clone(),
                label: waiting.label,
                inputs: waiting.inputs.iter().map(source).collect::<Option<_>>()?,
                outputs: waiting.outputs.iter().map(target).collect(),
            });
        }
        (kept_bytes <= bytes(memory) / SMALL_SHARE).then_some(Recipe { steps, result: memory as usize })
    }

    /// Lists the loops that compute the content of a memory, and those that compute what these loops read, unless that is kept.
    fn collect(&self, memory: u32, loops: &mut Vec<usize>) -> Option<()> {
        let mut writers = (0..self.taken.loops.len()).filter(|&number| self.writes(number, memory));
        let writer = writers.next()?;
        let waiting = &self.taken.loops[writer];
        let body = &waiting.launch.launch.body;
        // The state of a generator changes without a note.
        let is_random = body.nodes.iter().any(|node| matches!(node, Expression::Random(..)));
        let scatters = body.outputs.iter().any(|output| output.scatter.is_some());
        let is_plain = body.report.is_none() && !scatters && !is_random;
        let overwrites = waiting.inputs.iter().any(|input| self.writes(writer, input.memory));
        if writers.next().is_some() || !is_plain || overwrites || waiting.launch.launch.is_staged() {
            return None;
        }
        if !loops.contains(&writer) {
            loops.push(writer);
        }
        for input in &waiting.inputs {
            let writers = (0..self.taken.loops.len()).filter(|&number| self.writes(number, input.memory));
            let is_existing = self.is_existing(input.memory);
            let is_kept = is_existing || self.storage(input.memory).is_some_and(|kept| kept.is_saved());
            // What was written more than once may have been read in between.
            match (is_kept, writers.count()) {
                (true, 0) => {}
                (true, 1) if !is_existing => {}
                (false, 1) if loops.len() < MOST_LOOPS => self.collect(input.memory, loops)?,
                _ => return None,
            }
        }
        Some(())
    }

    fn writes(&self, number: usize, memory: u32) -> bool {
        self.taken.loops[number].outputs.iter().any(|output| output.memory == memory)
    }

    fn is_existing(&self, memory: u32) -> bool {
        matches!(self.taken.memories[memory as usize], Known::Existing { .. })
    }

    /// Returns the storage of memory that is there after the segment.
    fn storage(&self, memory: u32) -> Option<&Arc<Storage>> {
        match &self.taken.memories[memory as usize] {
            Known::Existing { holder, .. } => holder.as_ref().map(|holder| holder.storage()),
            Known::Pending { .. } => {
                self.alive[memory as usize].as_ref().filter(|_| !self.again.contains(&memory))
            }
        }
    }
}

impl Recipe {
    /// Returns the loops, which write `result`; `None` if memory that they read no longer exists, or was written since.
    fn deferrals(&self, result: &Arc<Storage>, stream: &Stream) -> Option<Vec<Deferral>> {
        let mut made: Vec<(usize, Arc<Storage>)> = vec![(self.result, Arc::clone(result))];
        let mut deferrals = Vec::new();
        for step in &self.steps {
            let mut written = SmallVec::new();
            for target in &step.outputs {
                let known = made.iter().find(|(number, _)| *number == target.number);
                let storage = match known {
                    Some((_, storage)) => Arc::clone(storage),
                    None => {
                        let storage = Arc::new(promised(stream, target.bytes, step.label).ok()?);
                        made.push((target.number, Arc::clone(&storage)));
                        storage
                    }
                };
                written.push((storage, target.offset));
            }
            let read = |source: &Source| match source {
                Source::Kept(storage, offset, writes) => {
                    let storage = storage.upgrade().filter(|storage| storage.writes() == *writes)?;
                    Some((storage, *offset))
                }
                Source::Made(number, offset) => {
                    let (_, storage) = made.iter().find(|(known, _)| known == number)?;
                    Some((Arc::clone(storage), *offset))
                }
            };
            let deferral = Deferral {
                launch: Arc::clone(&step.launch),
                numbers: step.numbers.clone(),
                read: step.inputs.iter().map(read).collect::<Option<_>>()?,
                written,
                stream: stream.clone(),
                label: step.label,
            };
            if deferral.is_refused() {
                return None;
            }
            deferrals.push(deferral);
        }
        Some(deferrals)
    }
}

/// Returns the results of loops that nothing but saved tensors holds, and whose address is not `read`, each with the loops that compute
/// it again.
pub(super) fn saved_only(
    taken: &Taken,
    alive: &[Option<Arc<Storage>>],
    stream: &Stream,
    read: Option<&Storage>,
) -> Vec<(u32, Vec<Deferral>)> {
    if !is_recorded() {
        return Vec::new();
    }
    let is_saved = |memory: &u32| {
        let storage = &alive[*memory as usize];
        storage.as_ref().is_some_and(|storage| {
            storage.promised_bytes().is_some_and(|bytes| bytes >= least_bytes())
                && Storage::is_only_saved(storage, 1)
                && !read.is_some_and(|read| std::ptr::eq(read, &raw const **storage))
        })
    };
    let again: Vec<u32> = (0..alive.len() as u32).filter(is_saved).collect();
    // A captured graph computes what its own region needs.
    if again.is_empty() || stream.is_capturing().unwrap_or(true) {
        return Vec::new();
    }
    let mut recipes = Recipes { taken, alive, again };
    loop {
        let found: Vec<(u32, Option<Recipe>)> =
            recipes.again.iter().map(|&memory| (memory, recipes.of(memory))).collect();
        if found.iter().all(|(_, recipe)| recipe.is_some()) {
            let deferrals = |(memory, recipe): (u32, Option<Recipe>)| {
                let result = alive[memory as usize].as_ref()?;
                Some((memory, recipe?.deferrals(result, stream)?))
            };
            return found.into_iter().filter_map(deferrals).collect();
        }
        // What cannot be computed again is stored, so that the others may read it.
        recipes.again =
            found.iter().filter(|(_, recipe)| recipe.is_some()).map(|(memory, _)| *memory).collect();
    }
}

/// Sets the least bytes of a result that this thread computes again; `None` for the default.
pub(crate) fn set_recomputed(bytes: Option<u64>) {
    RECOMPUTED.set(bytes);
}

fn least_bytes() -> u64 {
    RECOMPUTED.get().or(Environment::get().recompute_bytes).unwrap_or(LEAST_BYTES)
}

/// Returns whether a result has so many bytes that it is worthwhile to compute it later, or again.
pub(crate) fn is_large(bytes: u64) -> bool {
    bytes >= least_bytes()
}

/// Returns whether a forward pass is recorded in a compiled region of this thread.
fn is_recorded() -> bool {
    is_on() && !is_backward()
}

/// Returns the results of loops that are to be stored, and could be computed again.
pub(super) fn stored(taken: &Taken, alive: &[Option<Arc<Storage>>], stream: &Stream) -> Vec<Candidate> {
    if !is_recorded() {
        return Vec::new();
    }
    let recipes = Recipes { taken, alive, again: Vec::new() };
    let candidate = |(memory, storage): (u32, &Option<Arc<Storage>>)| {
        let storage = storage.as_ref()?;
        storage.promised_bytes().filter(|bytes| *bytes >= least_bytes())?;
        Some(Candidate {
            storage: Arc::downgrade(storage),
            writes: storage.writes(),
            stream: stream.clone(),
            recipe: recipes.of(memory)?,
            memory: SmallVec::new(),
        })
    };
    (0..).zip(alive).filter_map(candidate).collect()
}

/// Notes results that were stored, and could be computed again.
pub(super) fn note_stored(candidates: Vec<Candidate>) {
    let placed = candidates.into_iter().filter_map(Candidate::placed);
    CANDIDATES.with_borrow_mut(|list| list.extend(placed));
}

/// Returns whether there are results that may be forgotten.
pub(super) fn has_candidates() -> bool {
    CANDIDATES.with_borrow(|candidates| !candidates.is_empty())
}

/// Keeps all results that are stored, since memory is written unnoticed.
pub(super) fn keep_all() {
    CANDIDATES.with_borrow_mut(Vec::clear);
}

/// Stores the results that a command overwrites, or whose loops read memory that it overwrites. A command may also write memory that
/// does not belong to a tensor of the program yet, when a kernel completes a result that a loop began.
pub(super) fn keep_written(accesses: &[Access]) {
    let is_written = |own: &Range<u64>| {
        let meets = |access: &Access| access.start < own.end && own.start < access.start + access.bytes;
        accesses.iter().any(|access| access.mode.writes() && meets(access))
    };
    CANDIDATES.with_borrow_mut(|list| list.retain(|candidate| !candidate.memory.iter().any(is_written)));
}

/// Forgets the stored results that only saved tensors hold now. At the end of a region the others are kept for good.
pub(super) fn forget_saved(window: &Window, is_end: bool) {
    let candidates = CANDIDATES.with_borrow_mut(std::mem::take);
    if candidates.is_empty() || !is_recorded() && !is_end {
        CANDIDATES.with_borrow_mut(|list| *list = candidates);
        return;
    }
    let mut waiting = Vec::new();
    for candidate in candidates {
        let storage = candidate.storage.upgrade();
        let Some(storage) = storage.filter(|storage| storage.writes() == candidate.writes) else { continue };
        if !Storage::is_only_saved(&storage, 1) || candidate.forget(&storage, window).is_none() {
            waiting.push(candidate);
        }
    }
    if !is_end {
        CANDIDATES.with_borrow_mut(|list| list.extend(waiting));
    }
}

impl Candidate {
    /// Returns the result with the addresses of its memory and of the memory that its loops read; `None` if one of them is gone.
    fn placed(mut self) -> Option<Self> {
        let kept =
            (self.recipe.steps.iter().flat_map(|step| &step.inputs)).filter_map(|source| match source {
                Source::Kept(storage, ..) => Some(storage),
                Source::Made(..) => None,
            });
        let mut memory = SmallVec::new();
        for storage in kept.chain([&self.storage]) {
            let storage = storage.upgrade()?;
            // What was forgotten is complete, and is written by nothing but its loops.
            if !storage.is_pending() {
                memory.push(storage.range());
            }
        }
        self.memory = memory;
        Some(self)
    }

    /// Forgets the result, unless its stream is captured.
    fn forget(&self, storage: &Arc<Storage>, window: &Window) -> Option<()> {
        let stream = &self.stream;
        if stream.is_capturing().unwrap_or(true) {
            return None;
        }
        let deferrals = self.recipe.deferrals(storage, stream)?;
        let label = self.recipe.steps.last()?.label;
        let nothing = Buffer::labelled(stream, 0, label).ok()?;
        let is_forgotten = window.forget(storage, nothing, deferrals);
        count(|counters| counters.recomputed += u64::from(is_forgotten));
        is_forgotten.then_some(())
    }
}
