//! The requests of a program to its allocator, extracted from a trace.
//!
//! This module forms a cycle with `reading`, which makes a program from a trace, and `start`, which determines the state before
//! it.

use super::reading;
use super::start::Layout;
use thalweg_memory::{StreamId, settings::Settings};
use thalweg_snapshot::{Event, Recording, Snapshot, SnapshotError};

/// A request of a program. Blocks are numbered from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordedStep {
    /// Allocates memory.
    Allocate {
        /// The number of the new block.
        block: u32,
        /// The private pool of the block, an index into [`RecordedProgram::pools`]; `None` for the shared one.
        pool: Option<u16>,
        /// The requested bytes.
        bytes: u64,
        /// The stream whose work uses the block.
        stream: StreamId,
        /// The address in the trace; 0 for a block that only prepares the state in which the trace began.
        recorded_address: u64,
    },
    /// Frees a block that no other stream uses.
    Free {
        /// The number of the block.
        block: u32,
    },
    /// Frees a block that another stream still uses.
    FreePending {
        /// The number of the block.
        block: u32,
    },
    /// Declares that the other stream has finished with a block that was freed.
    Complete {
        /// The number of the block.
        block: u32,
    },
    /// Calls `empty_cache`.
    EmptyCache,
    /// Makes a request that failed in the recording for lack of memory (`oom`). The recording does not show how such a block
    /// would have been used, so a block that the request returns is freed at once. Only a replay with
    /// [attempts](super::Replay::with_attempts) makes this request.
    Attempt {
        /// The private pool, as in an allocation.
        pool: Option<u16>,
        /// The requested bytes, after rounding.
        bytes: u64,
        /// The stream whose work would use the block.
        stream: StreamId,
    },
}

/// The part of the state before the trace that is recreated before a program is served.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum StartState {
    /// The complete state: the segments, and the live blocks at their addresses. Correct only under the settings of the
    /// recording, since only these have led to that state.
    #[default]
    Recorded,
    /// Only the live blocks, at any address that the allocator chooses. The memory that other settings had reserved by then is
    /// not known, so all reserved figures are lower bounds. If no block was live there is no difference: the segments are
    /// recreated.
    LiveBlocks,
}

/// The requests of a trace. See the [module's essay](super).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RecordedProgram {
    pub(super) steps: Vec<RecordedStep>,
    /// The trace entry of each step.
    pub(super) entries: Vec<u32>,
    /// Requests that recreate the state before the trace, as far as requests can.
    pub(super) start: Vec<RecordedStep>,
    /// The layout of the state before the trace, if requests under the same settings would not lead to it.
    pub(super) layout: Option<Layout>,
    pub(super) older_blocks: usize,
    /// The segments as (address, bytes), in the order in which the trace's allocator took them.
    pub(super) segments: Vec<(u64, u64)>,
    /// The block for which each segment was taken, if it is known.
    pub(super) opened_for: Vec<Option<u32>>,
    /// The blocks for which memory was mapped, each with the first mapped address. If a segment began to grow at that time, it
    /// began at this address.
    pub(super) mapped_for: Vec<(u32, u64)>,
    /// The requested bytes of each block.
    pub(super) requested_bytes: Vec<u64>,
    pub(super) pools: Vec<(u64, u64)>,
    /// The number of arenas: pairs of a stream and a pool.
    pub(super) arenas: usize,
}

impl RecordedProgram {
    /// Creates the program of one device from a recording that contains its trace.
    ///
    /// # Errors
    /// If the recording has no trace of the device, or an impossible one: for example with more private pools than can be
    /// numbered.
    pub fn from_recording(recording: &Recording, device: usize) -> Result<Self, SnapshotError> {
        let segments = recording
            .segments(device)
            .map(|(segment, blocks)| reading::LastSegment::new(segment, blocks))
            .collect();
        reading::read(segments, recording.trace(device), device)
    }

    /// Creates the program of one device from a snapshot.
    ///
    /// # Errors
    /// If it has no trace of the device, or an impossible one: for example if memory is allocated twice.
    pub fn from_snapshot(snapshot: &Snapshot, device: usize) -> Result<Self, SnapshotError> {
        let segments =
            snapshot.segments.iter().filter(|segment| usize::try_from(segment.device) == Ok(device));
        let trace = snapshot.device_traces.get(device).map_or(&[][..], |trace| &trace[..]);
        reading::read(
            segments.map(reading::LastSegment::of).collect(),
            trace.iter().map(reading::event),
            device,
        )
    }

    /// Creates the program of a trace without further information.
    pub fn from_trace(trace: &[Event]) -> Result<Self, SnapshotError> {
        reading::read(Vec::new(), trace.iter().copied(), 0)
    }

    /// Returns the program without its calls of `empty_cache`.
    #[must_use]
    pub fn without_empty_cache(mut self) -> Self {
        let kept = |step: &RecordedStep| *step != RecordedStep::EmptyCache;
        let entries = self.steps.iter().zip(&self.entries).filter(|(step, _)| kept(step));
        self.entries = entries.map(|(_, entry)| *entry).collect();
        self.steps.retain(kept);
        self
    }

    /// Returns the steps of the trace, in order.
    pub fn steps(&self) -> &[RecordedStep] {
        &self.steps
    }

    /// Returns the steps that recreate the state before the trace. There are none if the state is laid out as recorded.
    pub fn start_steps(&self, start: StartState) -> &[RecordedStep] {
        match start {
            StartState::Recorded if self.layout.is_some() => &[],
            _ => &self.start,
        }
    }

    /// Returns the number of blocks that were live before the trace.
    pub fn older_blocks(&self) -> usize {
        self.older_blocks
    }

    /// Returns the trace entry of a step.
    ///
    /// # Panics
    /// If there is no such step.
    pub fn entry_of(&self, step: usize) -> u32 {
        self.entries[step]
    }

    /// Returns the segments as (address, bytes), in the order in which the trace's allocator took them, without mapped ones.
    pub fn segments(&self) -> &[(u64, u64)] {
        &self.segments
    }

    /// Returns the private pools, by PyTorch's numbers.
    pub fn pools(&self) -> &[(u64, u64)] {
        &self.pools
    }

    /// Returns the number of arenas that the program uses: pairs of a stream and a pool in which it allocates.
    pub fn arenas(&self) -> usize {
        self.arenas
    }

    /// Returns the number of allocated blocks, including those that recreate the state before the trace.
    pub fn blocks(&self) -> usize {
        self.requested_bytes.len()
    }

    /// Returns the peak of live and pending memory, by requested size, in bytes.
    pub fn peak_live_bytes(&self) -> u64 {
        self.peak(|requested_bytes| requested_bytes, false)
    }

    /// Returns a lower bound of the peak of reserved memory under `settings`, whatever else has happened: the peak of live
    /// memory, each block rounded by the settings, in bytes.
    pub fn least_reserved_bytes(&self, settings: &Settings) -> u64 {
        self.peak(thalweg_memory::restore::rounding(settings), true)
    }

    /// Returns the greatest sum over live blocks. With `at_request` a freed block no longer counts, even if another stream still
    /// uses it.
    fn peak(&self, bytes: impl Fn(u64) -> u64, at_request: bool) -> u64 {
        let bytes = |block: u32| match self.requested_bytes(block) {
            0 => 0,
            requested_bytes => bytes(requested_bytes),
        };
        let (mut live, mut peak) = (0_u64, 0);
        for step in self.start_steps(StartState::LiveBlocks).iter().chain(&self.steps) {
            match *step {
                RecordedStep::Allocate { block, .. } => live = live.saturating_add(bytes(block)),
                RecordedStep::Free { block } => live = live.saturating_sub(bytes(block)),
                RecordedStep::FreePending { block } if at_request => live = live.saturating_sub(bytes(block)),
                RecordedStep::Complete { block } if !at_request => live = live.saturating_sub(bytes(block)),
                _ => {}
            }
            peak = live.max(peak);
        }
        peak
    }

    /// Returns an upper bound of the reserved memory in the recording, in bytes.
    pub(crate) fn recorded_bytes(&self) -> u64 {
        let laid_out = self.layout.iter().flat_map(|layout| &layout.segments);
        let laid_out = laid_out.flat_map(|segment| &segment.ranges).map(|(_, bytes)| *bytes);
        let taken = self.segments.iter().map(|(_, bytes)| *bytes);
        laid_out.chain(taken).fold(0, u64::saturating_add)
    }

    /// Returns the requested bytes of a block; 0 for one that was never requested, and only represents free memory while the
    /// state before the trace is recreated.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn requested_bytes(&self, number: u32) -> u64 {
        self.requested_bytes[number as usize]
    }

    /// Returns the addresses where segments may have begun to grow for a block, with the block's number.
    pub(crate) fn mapped(&self) -> impl Iterator<Item = (u32, u64)> {
        self.mapped_for.iter().copied()
    }

    /// Returns the segments that were taken for a block, with its number, as (address, bytes).
    pub(crate) fn opened(&self) -> impl Iterator<Item = (u32, (u64, u64))> {
        self.opened_for.iter().zip(&self.segments).filter_map(|(block, &segment)| Some(((*block)?, segment)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::replay::{Replay, ReplayUpstream};
    use thalweg_memory::DeviceAllocator;
    use thalweg_memory::settings::Settings;
    use thalweg_snapshot::{Action, BlockState, TraceEntry};

    fn entry(action: Action, address: u64) -> TraceEntry {
        TraceEntry::new(action, address, 600, StreamId::from_raw(1))
    }

    fn program(trace: Vec<TraceEntry>) -> Result<RecordedProgram, SnapshotError> {
        RecordedProgram::from_snapshot(&Snapshot { device_traces: vec![trace], ..Snapshot::default() }, 0)
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
        let RecordedProgram { steps, entries, .. } = program.expect("it is a trace");
        let [first, second] = [0, 1].map(|block| RecordedStep::Allocate {
            block,
            pool: None,
            bytes: 600,
            stream: StreamId::from_raw(1),
            recorded_address: u64::from(block) + 1,
        });
        let expected = [
            first,
            RecordedStep::FreePending { block: 0 },
            second,
            RecordedStep::Free { block: 1 },
            RecordedStep::Complete { block: 0 },
        ];
        assert_eq!((&steps[..], &entries[..]), (&expected[..], &[0, 1, 2, 3, 5][..]));
    }

    fn requests(steps: &[RecordedStep]) -> Vec<(u64, u64)> {
        let requests = steps.iter().filter_map(|step| match *step {
            RecordedStep::Allocate { bytes, recorded_address, .. } => Some((bytes, recorded_address)),
            _ => None,
        });
        requests.collect()
    }

    #[test]
    fn what_was_there_before_the_trace_is_made_first() {
        let trace = vec![
            TraceEntry::new(Action::SegmentFree, 0x20_0000, 2 << 20, StreamId::from_raw(1)),
            TraceEntry::new(Action::SegmentFree, 0x40_0000, 20 << 20, StreamId::from_raw(1)),
        ];
        let program = program(trace).expect("it is a trace");
        assert_eq!(program.segments(), [(0x20_0000, 2 << 20), (0x40_0000, 20 << 20)]);
        for start in [StartState::Recorded, StartState::LiveBlocks] {
            assert_eq!(requests(program.start_steps(start)), [(1, 0), (20 << 20, 0)]);
        }
        assert_eq!(program.steps(), [RecordedStep::EmptyCache], "two segments went back in one call");
        assert!(program.without_empty_cache().steps().is_empty());
    }

    #[test]
    fn live_blocks_are_put_where_they_were() {
        const MIB: u64 = 1 << 20;
        let stream = StreamId::from_raw(1);
        let free = |address, bytes| TraceEntry::new(Action::FreeCompleted, address, bytes, stream);
        const HALF: u64 = MIB / 2;
        let trace = vec![
            free(64 * MIB, 5 * MIB - 100),
            // Between this block and the next is half a MiB, which cannot be free on its own: it belongs to this block too.
            free(72 * MIB, 3 * MIB),
            free(75 * MIB + HALF, 2 * MIB),
            TraceEntry::new(Action::SegmentFree, 64 * MIB, 20 * MIB, stream),
        ];
        let program = program(trace).expect("it is a trace");
        assert_eq!(program.older_blocks(), 3);
        assert_eq!(program.start_steps(StartState::Recorded), [], "it is laid out");
        let upstream = Arc::new(ReplayUpstream::scripted(&program, 1 << 30));
        let settings = Settings::parse("policy:pytorch").expect("it is one");
        let allocator = DeviceAllocator::new(upstream.clone(), settings);
        let mut replay = Replay::new(&program, allocator, upstream);
        replay.begin().expect("there is room");
        let segments = replay.allocator().snapshot();
        let blocks: Vec<_> = segments.iter().flat_map(|segment| &segment.blocks).collect();
        let sizes: Vec<_> =
            blocks.iter().map(|block| (block.size_bytes, block.state == BlockState::Inactive)).collect();
        let (live, free) = (false, true);
        let expected = [
            (5 * MIB, live),
            (3 * MIB, free),
            (3 * MIB + HALF, live),
            (2 * MIB, live),
            (6 * MIB + HALF, free),
        ];
        assert_eq!((segments[0].address, sizes), (64 * MIB, expected.to_vec()));
        assert_eq!((replay.mismatches(), segments.len()), (0, 1));
        let live = requests(program.start_steps(StartState::LiveBlocks));
        let expected = [(5 * MIB - 100, 64 * MIB), (3 * MIB, 72 * MIB), (2 * MIB, 75 * MIB + HALF)];
        assert_eq!(live, expected);
    }

    #[test]
    fn memory_that_is_allocated_twice_is_no_trace() {
        let error =
            program(vec![entry(Action::Alloc, 512), entry(Action::Alloc, 512)]).expect_err("it is none");
        assert!(error.to_string().contains("entry 1 of the trace: 0x200 is allocated"), "{error}");
        assert!(program(vec![]).expect_err("it is none").to_string().contains("no trace of device 0"));
    }
}
