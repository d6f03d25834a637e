//! Reading a trace into a [`RecordedProgram`].

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::program::{RecordedProgram, RecordedStep};
use super::start::{Backwards, Bases, Layout, OlderBlock, free_segments, live_blocks};
use thalweg_memory::{SizeClass, StreamId};
use thalweg_snapshot::{
    Action, BlockState, BlockView, Event, Segment, SegmentView, SnapshotError, TraceEntry,
};

/// A segment after the trace.
pub(super) struct LastSegment {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) stream: StreamId,
    pub(super) class: SizeClass,
    pub(super) pool_id: (u64, u64),
    pub(super) is_expandable: bool,
    active: Vec<LastBlock>,
}

/// A block that is live after the trace, or whose free is pending.
struct LastBlock {
    address: u64,
    size_bytes: u64,
    requested_bytes: u64,
}

impl LastSegment {
    pub(super) fn new(segment: SegmentView, blocks: impl Iterator<Item = BlockView>) -> Self {
        let SegmentView { address, total_bytes: bytes, stream, class, pool_id, is_expandable, .. } = segment;
        let active = blocks
            .filter(|block| block.state != BlockState::Inactive)
            .map(|block| LastBlock::new(block.address, block.size_bytes, block.requested_bytes));
        Self { address, bytes, stream, class, pool_id, is_expandable, active: active.collect() }
    }

    pub(super) fn of(segment: &Segment) -> Self {
        let &Segment { address, total_bytes: bytes, stream, class, pool_id, is_expandable, .. } = segment;
        let active = segment
            .blocks
            .iter()
            .filter(|block| block.state != BlockState::Inactive)
            .map(|block| LastBlock::new(block.address, block.size_bytes, block.requested_bytes));
        Self { address, bytes, stream, class, pool_id, is_expandable, active: active.collect() }
    }
}

impl LastBlock {
    fn new(address: u64, size_bytes: u64, requested_bytes: u64) -> Self {
        // The oldest versions do not contain the requested size.
        let requested_bytes = if requested_bytes == 0 { size_bytes } else { requested_bytes };
        Self { address, size_bytes, requested_bytes }
    }
}

/// Returns the parts of an entry that are needed here.
pub(super) fn event(entry: &TraceEntry) -> Event {
    let &TraceEntry { action, address, size_bytes, stream, pool_id, time_us, .. } = entry;
    Event { action, address, size_bytes, stream, pool_id, time_us, stack: None }
}

/// Reads the trace of a device.
pub(super) fn read(
    last: Vec<LastSegment>,
    trace: impl DoubleEndedIterator<Item = Event> + Clone,
    device: usize,
) -> Result<RecordedProgram, SnapshotError> {
    if trace.clone().next().is_none() {
        return Err(SnapshotError::new(format!(
            "the snapshot has no trace of device {device}; record one with the history enabled before the work begins"
        )));
    }
    let mut found = Backwards::over(&last, trace.clone());
    let bases = Bases::over(&found, trace.clone());
    let program = RecordedProgram { pools: found.pools.clone(), ..RecordedProgram::default() };
    let mut reading = Reading {
        program,
        pools: std::mem::take(&mut found.of_allocations),
        tells_of_ends: trace.clone().any(|event| event.action == Action::FreeCompleted),
        ..Reading::default()
    };
    let mut rest = trace.clone().enumerate().peekable();
    while let Some((index, event)) = rest.next() {
        let next = rest.peek().map(|(_, next)| next);
        reading
            .entry(index, &event, next)
            .map_err(|what| SnapshotError::new(format!("entry {index} of the trace: {what}")))?;
    }
    reading.find_live_on(&last);
    reading.begin_after_first(&last);
    let tells_of_segments = trace.clone().map(|event| event.action).any(is_of_segments);
    if reading.older.is_empty() && !tells_of_segments {
        // The trace begins with the program, and segments were left out of it: which of them existed before is not known.
        found.segments.clear();
    }
    reading.learn_rooms(trace);
    Ok(reading.finish(found, &bases))
}

fn is_of_segments(action: Action) -> bool {
    use Action::{SegmentAlloc, SegmentFree, SegmentMap, SegmentUnmap};
    matches!(action, SegmentAlloc | SegmentFree | SegmentMap | SegmentUnmap)
}

/// A trace that is being read: the known state after the entries so far.
#[derive(Default)]
struct Reading {
    program: RecordedProgram,
    /// The pools of the remaining allocations, the next one last.
    pools: Vec<Option<u16>>,
    /// The numbers of the live blocks that were allocated in the trace, by address.
    live: FxHashMap<u64, u32>,
    pending: FxHashMap<u64, u32>,
    /// Whether there are entries that record when a free is complete. They can be left out of a recording (`skip_actions`).
    tells_of_ends: bool,
    /// The first address where memory was mapped since the last allocation.
    mapped: Option<u64>,
    /// The blocks that were live when the trace began, by address.
    older: BTreeMap<u64, OlderBlock>,
}

impl Reading {
    fn entry(&mut self, index: usize, event: &Event, next: Option<&Event>) -> Result<(), String> {
        let address = event.address;
        match event.action {
            Action::Alloc => self.allocate(index, event)?,
            Action::FreeRequested => {
                let block = self.take_live(index, event);
                if !self.tells_of_ends {
                    self.step(index, RecordedStep::Free { block });
                    return Ok(());
                }
                let at_once =
                    next.is_some_and(|next| next.action == Action::FreeCompleted && next.address == address);
                // The following entry finds the block pending, and adds no step for one that was free at once.
                self.step(
                    index,
                    if at_once { RecordedStep::Free { block } } else { RecordedStep::FreePending { block } },
                );
                self.pending.insert(address, block);
            }
            Action::FreeCompleted => match self.pending.remove(&address) {
                Some(block) if self.program.steps.last() == Some(&RecordedStep::Free { block }) => {}
                Some(block) => self.step(index, RecordedStep::Complete { block }),
                None => {
                    let block = self.take_live(index, event);
                    self.step(index, RecordedStep::Free { block });
                }
            },
            Action::SegmentAlloc => {
                self.program.segments.push((address, event.size_bytes));
                self.program.opened_for.push(None);
            }
            Action::SegmentFree | Action::SegmentUnmap => {
                if self.program.steps.last() != Some(&RecordedStep::EmptyCache) {
                    self.step(index, RecordedStep::EmptyCache);
                }
            }
            Action::SegmentMap => drop(self.mapped.get_or_insert(address)),
            Action::Oom => {
                self.mapped = None;
                let pool =
                    event.pool_id.and_then(|id| self.program.pools.iter().position(|known| *known == id));
                let pool = pool.map(|at| at as u16);
                self.step(
                    index,
                    RecordedStep::Attempt { pool, bytes: event.size_bytes, stream: event.stream },
                );
            }
            Action::Snapshot | Action::Annotate => {}
        }
        Ok(())
    }

    fn allocate(&mut self, index: usize, event: &Event) -> Result<(), String> {
        let &Event { address, size_bytes: bytes, stream, .. } = event;
        let block = self.add_block(bytes);
        if let Some(pending) = self.pending.remove(&address) {
            // The free is complete, whether or not an entry records it.
            self.step(index, RecordedStep::Complete { block: pending });
        }
        if self.live.insert(address, block).is_some() {
            return Err(format!("{address:#x} is allocated, and was not freed before"));
        }
        // The first block of a new segment is at its beginning.
        if let (Some(&(segment, _)), Some(opened_for @ None)) =
            (self.program.segments.last(), self.program.opened_for.last_mut())
            && segment == address
        {
            *opened_for = Some(block);
        }
        if let Some(mapped) = self.mapped.take() {
            self.program.mapped_for.push((block, mapped));
        }
        let pool = self.pools.pop().flatten();
        self.step(index, RecordedStep::Allocate { block, pool, bytes, stream, recorded_address: address });
        Ok(())
    }

    fn step(&mut self, entry: usize, step: RecordedStep) {
        self.program.steps.push(step);
        self.program.entries.push(entry as u32);
    }

    fn add_block(&mut self, requested_bytes: u64) -> u32 {
        self.program.requested_bytes.push(requested_bytes);
        u32::try_from(self.program.requested_bytes.len() - 1)
            .expect("a recording has fewer than 2^32 entries")
    }

    /// Returns the live block that an entry frees. A block that was never allocated in the trace was live before it.
    fn take_live(&mut self, index: usize, event: &Event) -> u32 {
        if let Some(block) = self.live.remove(&event.address) {
            return block;
        }
        let &Event { address, size_bytes: requested_bytes, stream, .. } = event;
        let number = self.add_block(requested_bytes);
        let (size_bytes, room_bytes, freed) = (None, u64::MAX, Some(index));
        let block = OlderBlock { number, requested_bytes, size_bytes, room_bytes, stream, freed };
        self.older.insert(address, block);
        number
    }

    /// Adds the blocks that were live before the trace and still are after it.
    fn find_live_on(&mut self, last: &[LastSegment]) {
        for segment in last {
            let stream = segment.stream;
            for &LastBlock { address, size_bytes, requested_bytes } in &segment.active {
                let is_seen = self.live.contains_key(&address)
                    || self.pending.contains_key(&address)
                    || self.older.contains_key(&address);
                if !is_seen {
                    let number = self.add_block(requested_bytes);
                    let (size_bytes, room_bytes, freed) = (Some(size_bytes), u64::MAX, None);
                    let block = OlderBlock { number, requested_bytes, size_bytes, room_bytes, stream, freed };
                    self.older.insert(address, block);
                }
            }
        }
    }

    /// Starts after the first entry if the beginning of the trace is lost, so that the block of the first entry counts as older
    /// than the trace. A lost entry may have taken the memory for this block, and a search in the memory before the trace would
    /// then find another address.
    fn begin_after_first(&mut self, last: &[LastSegment]) {
        let (steps, entries) = (&mut self.program.steps, &mut self.program.entries);
        let Some(&RecordedStep::Allocate {
            block: number,
            bytes: requested_bytes,
            stream,
            recorded_address,
            ..
        }) = steps.first().filter(|_| !self.older.is_empty() && entries[0] == 0)
        else {
            return;
        };
        steps.remove(0);
        entries.remove(0);
        let frees = |step: &RecordedStep| matches!(*step, RecordedStep::Free { block } | RecordedStep::FreePending { block } if block == number);
        let freed = steps.iter().position(frees).map(|at| entries[at] as usize);
        let mut at_end = last.iter().flat_map(|segment| &segment.active);
        let is_it = |block: &&LastBlock| freed.is_none() && block.address == recorded_address;
        let size_bytes = at_end.find(is_it).map(|block| block.size_bytes);
        let room_bytes = u64::MAX;
        let block = OlderBlock { number, requested_bytes, size_bytes, room_bytes, stream, freed };
        self.older.insert(recorded_address, block);
    }

    /// Determines the greatest possible sizes of blocks that were live before the trace and are freed in it. Such a block ends,
    /// at the latest, where a block that is allocated after it in memory begins.
    fn learn_rooms(&mut self, trace: impl Iterator<Item = Event>) {
        if self.older.is_empty() {
            return;
        }
        for (index, event) in trace.enumerate().filter(|(_, event)| event.action == Action::Alloc) {
            if let Some((&address, before)) = self.older.range_mut(..event.address).next_back()
                && before.freed.is_some_and(|freed| freed > index)
            {
                before.learn_room(event.address - address);
            }
        }
    }

    /// Adds the data that recreates the state before the trace.
    fn finish(self, found: Backwards, bases: &Bases) -> RecordedProgram {
        let Self { mut program, older, .. } = self;
        let first = program.requested_bytes.len() as u32;
        let (fillers, opened) = free_segments(&found, first);
        let is_expandable = found.segments.values().any(|segment| segment.is_expandable);
        let layout = (!older.is_empty() || is_expandable).then(|| Layout::of(&found, &older, bases));
        let mut segments: Vec<_> = opened.iter().map(|(_, segment)| *segment).collect();
        let mut opened_for: Vec<_> = opened.iter().map(|(block, _)| Some(*block)).collect();
        let start = match older.is_empty() {
            true => {
                program.requested_bytes.resize(first as usize + fillers.len() / 2, 0);
                fillers
            }
            false => {
                opened_for.fill(None);
                live_blocks(&found, &older)
            }
        };
        segments.append(&mut program.segments);
        opened_for.append(&mut program.opened_for);
        let (older_blocks, pools) = (older.len(), found.pools);
        let mut arenas: FxHashSet<(StreamId, Option<u16>)> = FxHashSet::default();
        for step in start.iter().chain(&program.steps) {
            if let RecordedStep::Allocate { stream, pool, .. } = *step {
                arenas.insert((stream, pool));
            }
        }
        let arenas = arenas.len();
        RecordedProgram { start, layout, older_blocks, segments, opened_for, pools, arenas, ..program }
    }
}
