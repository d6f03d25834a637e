//! What a program asked of its allocator, out of a trace.

use std::collections::{BTreeMap, BTreeSet};

use crate::snapshot::{Action, BlockState, Segment, Snapshot, SnapshotError, TraceEntry};
use crate::stats::SizeClass;
use crate::upstream::StreamId;

/// One thing that a program does. Blocks are numbered from 0, in the order of their allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Asks for memory.
    Allocate {
        /// The number of the new block.
        block: usize,
        /// What is asked for.
        bytes: u64,
        /// For work on this stream.
        stream: StreamId,
        /// Where the trace has it; 0 for a block that only prepares the state in which the trace began.
        recorded_address: u64,
    },
    /// Frees a block that no other stream uses.
    Free {
        /// Its number.
        block: usize,
    },
    /// Frees a block that another stream still uses.
    FreePending {
        /// Its number.
        block: usize,
    },
    /// The other stream is done with a block that was freed.
    Complete {
        /// Its number.
        block: usize,
    },
    /// Calls `empty_cache`.
    EmptyCache,
}

/// The client's side of a trace. See the [module](super).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    steps: Vec<Step>,
    /// The segments as (address, bytes), in the order in which the trace's allocator took them.
    segments: Vec<(u64, u64)>,
    /// For each of them the block for which it was taken, if that is known.
    opened_for: Vec<Option<usize>>,
    /// By block: what was asked for, and where the trace has it.
    requested_bytes: Vec<u64>,
    addresses: Vec<u64>,
}

/// A block that was live when the trace began.
#[derive(Clone, Copy)]
struct Older {
    bytes: u64,
    stream: StreamId,
}

impl Program {
    /// The program of one device of a snapshot that has its trace.
    ///
    /// # Errors
    /// If the snapshot has no trace of the device, or one that cannot be: memory that is allocated twice, say.
    pub fn from_snapshot(snapshot: &Snapshot, device: usize) -> Result<Self, SnapshotError> {
        let trace = snapshot.device_traces.get(device).filter(|trace| !trace.is_empty()).ok_or_else(|| {
            SnapshotError::new(format!(
                "the snapshot has no trace of device {device}; record one with the history enabled before the work begins"
            ))
        })?;
        let segments =
            snapshot.segments.iter().filter(|segment| usize::try_from(segment.device) == Ok(device));
        Reading::new(segments.collect()).read(trace)
    }

    /// The same without its calls of `empty_cache`.
    #[must_use]
    pub fn without_empty_cache(mut self) -> Self {
        self.steps.retain(|step| *step != Step::EmptyCache);
        self
    }

    /// All steps, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The segments as (address, bytes), in the order in which the trace's allocator took them. Mapped ones are not among
    /// them.
    pub fn segments(&self) -> &[(u64, u64)] {
        &self.segments
    }

    /// How many blocks are allocated in all.
    pub fn blocks(&self) -> usize {
        self.addresses.len()
    }

    /// What was asked for with block `number`, in bytes.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn requested_bytes(&self, number: usize) -> u64 {
        self.requested_bytes[number]
    }

    /// The segments that were taken for a block, by its number, as (address, bytes).
    pub(crate) fn opened(&self) -> impl Iterator<Item = (usize, (u64, u64))> {
        self.opened_for.iter().zip(&self.segments).filter_map(|(block, &segment)| Some(((*block)?, segment)))
    }

    /// Where the trace has each block, by number; 0 for one that is not in the trace.
    pub(crate) fn addresses(&self) -> &[u64] {
        &self.addresses
    }
}

/// A trace that is being read: what is known of the state after the entries so far.
struct Reading<'s> {
    /// The segments after the last entry.
    last_segments: Vec<&'s Segment>,
    steps: Vec<Step>,
    segments: Vec<(u64, u64)>,
    opened_for: Vec<Option<usize>>,
    requested_bytes: Vec<u64>,
    addresses: Vec<u64>,
    /// The number of the live block at an address, if it was allocated in the trace or freed in it.
    live: BTreeMap<u64, usize>,
    pending: BTreeMap<u64, usize>,
    /// The blocks that were live when the trace began, by address, with the numbers that they have until all are known.
    older: BTreeMap<u64, (usize, Older)>,
    /// Where the trace took segments that are still there.
    taken: BTreeSet<u64>,
    /// Segments that were there when the trace began, by address.
    older_segments: BTreeMap<u64, OlderSegment>,
}

#[derive(Clone, Copy)]
struct OlderSegment {
    bytes: u64,
    stream: StreamId,
    class: SizeClass,
}

impl<'s> Reading<'s> {
    fn new(last_segments: Vec<&'s Segment>) -> Self {
        Self {
            last_segments,
            steps: Vec::new(),
            segments: Vec::new(),
            opened_for: Vec::new(),
            requested_bytes: Vec::new(),
            addresses: Vec::new(),
            live: BTreeMap::new(),
            pending: BTreeMap::new(),
            older: BTreeMap::new(),
            taken: BTreeSet::new(),
            older_segments: BTreeMap::new(),
        }
    }

    fn read(mut self, trace: &[TraceEntry]) -> Result<Program, SnapshotError> {
        for (index, entry) in trace.iter().enumerate() {
            self.entry(entry, trace.get(index + 1))
                .map_err(|what| SnapshotError::new(format!("entry {index} of the trace: {what}")))?;
        }
        let tells_of_segments = trace.iter().any(|entry| {
            use Action::{SegmentAlloc, SegmentFree, SegmentMap, SegmentUnmap};
            matches!(entry.action, SegmentAlloc | SegmentFree | SegmentMap | SegmentUnmap)
        });
        self.find_older(tells_of_segments);
        Ok(self.finish())
    }

    fn entry(&mut self, entry: &TraceEntry, next: Option<&TraceEntry>) -> Result<(), String> {
        let address = entry.address;
        match entry.action {
            Action::Alloc => {
                if self.live.contains_key(&address) || self.pending.contains_key(&address) {
                    return Err(format!("{address:#x} is allocated, and was not freed before"));
                }
                let block = self.add_block(entry.size_bytes, address);
                // A new segment's first block is at its beginning.
                if let (Some(&(segment, _)), Some(opened_for @ None)) =
                    (self.segments.last(), self.opened_for.last_mut())
                    && segment == address
                {
                    *opened_for = Some(block);
                }
                self.live.insert(address, block);
                self.steps.push(Step::Allocate {
                    block,
                    bytes: entry.size_bytes,
                    stream: entry.stream,
                    recorded_address: address,
                });
            }
            Action::FreeRequested => {
                let block = self.take_live(entry);
                let at_once =
                    next.is_some_and(|next| next.action == Action::FreeCompleted && next.address == address);
                // The entry that follows finds it pending, and adds no step for one that was freed at once.
                self.steps.push(if at_once { Step::Free { block } } else { Step::FreePending { block } });
                self.pending.insert(address, block);
            }
            Action::FreeCompleted => match self.pending.remove(&address) {
                Some(block) if self.steps.last() == Some(&Step::Free { block }) => {}
                Some(block) => self.steps.push(Step::Complete { block }),
                None => {
                    let block = self.take_live(entry);
                    self.steps.push(Step::Free { block });
                }
            },
            Action::SegmentAlloc => {
                self.taken.insert(address);
                self.segments.push((address, entry.size_bytes));
                self.opened_for.push(None);
            }
            Action::SegmentFree => self.segment_free(entry),
            Action::SegmentMap | Action::SegmentUnmap | Action::Snapshot | Action::Oom | Action::Annotate => {
            }
        }
        Ok(())
    }

    fn segment_free(&mut self, entry: &TraceEntry) {
        if !self.taken.remove(&entry.address) {
            let (bytes, stream) = (entry.size_bytes, entry.stream);
            let class = if bytes <= SMALL_SEGMENT_BYTES { SizeClass::Small } else { SizeClass::Large };
            self.older_segments.insert(entry.address, OlderSegment { bytes, stream, class });
        }
        if self.steps.last() != Some(&Step::EmptyCache) {
            self.steps.push(Step::EmptyCache);
        }
    }

    fn add_block(&mut self, bytes: u64, address: u64) -> usize {
        self.requested_bytes.push(bytes);
        self.addresses.push(address);
        self.addresses.len() - 1
    }

    /// The live block that an entry frees. One that was never allocated in the trace was live before it.
    fn take_live(&mut self, entry: &TraceEntry) -> usize {
        if let Some(block) = self.live.remove(&entry.address) {
            return block;
        }
        self.add_older(entry.address, entry.size_bytes, entry.stream)
    }

    fn add_older(&mut self, address: u64, bytes: u64, stream: StreamId) -> usize {
        let block = self.add_block(bytes, address);
        self.older.insert(address, (block, Older { bytes, stream }));
        block
    }

    /// Finds what was there before the trace and still is after it. A trace that tells of no segment at all does not say which
    /// were; then only those with blocks that were live count.
    fn find_older(&mut self, tells_of_segments: bool) {
        let segments = std::mem::take(&mut self.last_segments);
        for segment in &segments {
            for block in &segment.blocks {
                let seen =
                    self.live.contains_key(&block.address) || self.pending.contains_key(&block.address);
                if block.state == BlockState::ActiveAllocated && !seen {
                    self.add_older(block.address, block.requested_bytes.max(1), segment.stream);
                }
            }
        }
        for segment in segments {
            let Segment { address, total_bytes: bytes, stream, class, .. } = *segment;
            let is_older = if tells_of_segments {
                !self.taken.contains(&address)
            } else {
                self.older.range(address..address.saturating_add(bytes)).next().is_some()
            };
            if !segment.is_expandable && is_older {
                self.older_segments.insert(address, OlderSegment { bytes, stream, class });
            }
        }
    }

    /// Puts what restores the state before the trace in front of it.
    fn finish(mut self) -> Program {
        let mut first = Vec::new();
        let mut opened_for = self.make_older_segments(&mut first);
        let older = std::mem::take(&mut self.older);
        first.extend(older.into_iter().map(|(recorded_address, (block, Older { bytes, stream }))| {
            Step::Allocate { block, bytes, stream, recorded_address }
        }));
        first.append(&mut self.steps);
        let mut segments: Vec<_> =
            self.older_segments.iter().map(|(&address, segment)| (address, segment.bytes)).collect();
        segments.append(&mut self.segments);
        opened_for.append(&mut self.opened_for);
        let Self { requested_bytes, addresses, .. } = self;
        Program { steps: first, segments, opened_for, requested_bytes, addresses }
    }

    /// Makes the segments that were there when the trace began, and leaves them free. Each is filled before the next is asked
    /// for, so that this is not served from it; the last small one of a stream need not be. Returns the block that takes each.
    fn make_older_segments(&mut self, steps: &mut Vec<Step>) -> Vec<Option<usize>> {
        let segments: Vec<OlderSegment> = self.older_segments.values().copied().collect();
        let mut opened_for = Vec::new();
        let mut blocks = Vec::new();
        for (index, segment) in segments.iter().enumerate() {
            let same = |other: &OlderSegment| other.class == segment.class && other.stream == segment.stream;
            let sizes: &[u64] = match segment.class {
                SizeClass::Large => &[segment.bytes],
                SizeClass::Small if segments[index + 1..].iter().any(same) => &[SMALL_SEGMENT_BYTES / 2; 2],
                SizeClass::Small => &[1],
            };
            opened_for.push(Some(self.addresses.len()));
            for &bytes in sizes {
                let block = self.add_block(bytes, 0);
                steps.push(Step::Allocate { block, bytes, stream: segment.stream, recorded_address: 0 });
                blocks.push(block);
            }
        }
        steps.extend(blocks.into_iter().map(|block| Step::Free { block }));
        opened_for
    }
}

/// The segment of small requests, in every version of PyTorch.
const SMALL_SEGMENT_BYTES: u64 = 2 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(action: Action, address: u64) -> TraceEntry {
        TraceEntry::new(action, address, 600, StreamId::from_raw(1))
    }

    fn program(trace: Vec<TraceEntry>) -> Result<Program, SnapshotError> {
        Program::from_snapshot(&Snapshot { device_traces: vec![trace], ..Snapshot::default() }, 0)
    }

    #[test]
    fn frees_are_immediate_or_pending() {
        use Action::{Alloc, FreeCompleted, FreeRequested};
        let trace = [
            (Alloc, 1),
            (FreeRequested, 1),
            (Alloc, 2),
            (FreeRequested, 2),
            (FreeCompleted, 2),
            (FreeCompleted, 1),
        ];
        let program = program(trace.map(|(action, address)| entry(action, address)).to_vec());
        let steps = program.expect("it is a trace").steps;
        let [first, second] = [0, 1].map(|block| Step::Allocate {
            block,
            bytes: 600,
            stream: StreamId::from_raw(1),
            recorded_address: block as u64 + 1,
        });
        let expected = [
            first,
            Step::FreePending { block: 0 },
            second,
            Step::Free { block: 1 },
            Step::Complete { block: 0 },
        ];
        assert_eq!(steps, expected);
    }

    #[test]
    fn what_was_there_before_the_trace_is_made_first() {
        let trace = vec![
            TraceEntry::new(Action::SegmentFree, 0x20_0000, 2 << 20, StreamId::from_raw(1)),
            TraceEntry::new(Action::SegmentFree, 0x40_0000, 20 << 20, StreamId::from_raw(1)),
            entry(Action::FreeRequested, 0x100_0200),
            entry(Action::FreeCompleted, 0x100_0200),
            entry(Action::FreeCompleted, 0x100_0000),
        ];
        let program = program(trace).expect("it is a trace");
        assert_eq!(program.segments(), [(0x20_0000, 2 << 20), (0x40_0000, 20 << 20)]);
        let allocated: Vec<_> = program
            .steps()
            .iter()
            .filter_map(|step| match *step {
                Step::Allocate { bytes, recorded_address, .. } => Some((bytes, recorded_address)),
                _ => None,
            })
            .collect();
        assert_eq!(allocated, [(1, 0), (20 << 20, 0), (600, 0x100_0000), (600, 0x100_0200)]);
        let empties = program.steps().iter().filter(|step| **step == Step::EmptyCache).count();
        assert_eq!(empties, 1, "two segments went back in one call");
        assert!(!program.without_empty_cache().steps().contains(&Step::EmptyCache));
    }

    #[test]
    fn memory_that_is_allocated_twice_is_no_trace() {
        let error =
            program(vec![entry(Action::Alloc, 512), entry(Action::Alloc, 512)]).expect_err("it is none");
        assert!(error.to_string().contains("entry 1 of the trace: 0x200 is allocated"), "{error}");
        assert!(program(vec![]).expect_err("it is none").to_string().contains("no trace of device 0"));
    }
}
