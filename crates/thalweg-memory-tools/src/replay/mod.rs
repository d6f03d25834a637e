//! Replaying a recorded trace with another allocator or other settings.
//!
//! A trace contains the requests of a program and the responses of its allocator. The requests are a [`RecordedProgram`]:
//! allocate this many bytes, free this block, now the other streams have finished with that one. Any allocator can serve it. Then
//! one compares how much was reserved, how much of that was needed, and, if both follow the same rules, whether every address is
//! the same.
//!
//! ```text
//!  Snapshot ──▶ RecordedProgram ──▶ Replay ──▶ DeviceAllocator ──▶ ReplayUpstream
//!              (the client)   │ ▲                            invented memory; segments where
//!                             ▼ │                            the trace had them, if asked for
//!                      figures, addresses, tags
//! ```
//!
//! # Model
//!
//! - A block whose `free_completed` immediately follows its `free_requested` was free at once. Otherwise it had uses on other
//!   streams: the replay records one, with [`record_stream`](thalweg_memory::Block::record_stream), on a *lane*, a stream of the
//!   replay's own whose event passes at the recorded time.
//! - The state before the trace is recreated first: the segments and the live blocks at their addresses, or only the blocks
//!   ([`StartState`]). If the recording leaves open how much of a free piece belonged to a block before it, the replay determines
//!   this on the way.
//! - A sequence of `segment_free` or `segment_unmap` entries is interpreted as a call of `empty_cache`. This is right for traces
//!   of programs that had enough memory; if memory was short, the allocator itself may have returned the segments.
//! - A request that failed (`oom`) is not part of the program, and is repeated only with
//!   [`with_attempts`](Replay::with_attempts).
//! - A block from a private pool is allocated from a private pool here. The pool is determined by the segment that contained the
//!   block; for a segment that was returned before the snapshot was taken it is not known, and the block counts as shared, unless
//!   the entries contain the pool.
//! - Expandable segments are a property of the allocator: the program is the same. They grow at other addresses than in the
//!   recording, so their blocks are compared by their distance from the segment's beginning.
//!
//! # Tags
//!
//! Every piece of physical memory has a tag: which block owns it, or from when on which block may touch it. If a block is handed
//! out that overlaps one that is live, or pending, or was freed on another stream without an event in between, the replay ends
//! with an error, even if a page moved from one address to another. An event that a stream was made to wait for counts as order,
//! and so does one that passed on the host. The tags take twice as long as everything else, so a caller that trusts the
//! allocator, and only needs figures, creates the replay [without](Replay::without_tags) them.
//!
//! Threads are not modelled: a trace has one order, which is kept.

mod addresses;
mod clocks;
mod doubts;
mod layout;
mod program;
mod reading;
mod start;
mod tags;
mod upstream;

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

use doubts::Doubts;
pub use program::{RecordedProgram, RecordedStep, StartState};
use rustc_hash::FxHashMap;
use tags::{Conflict, Points, Tags};
use thalweg_memory::{
    AllocationError, Block, DeviceAllocator, PoolId, PoolScope, StreamId, settings::Settings,
};
pub(crate) use upstream::MOST_BYTES;
pub use upstream::ReplayUpstream;

/// The first number of lanes, far from the handles of real streams.
const FIRST_LANE: u64 = 0x4c61_6e65 << 32;

/// A program that is being replayed.
pub struct Replay<'p> {
    program: &'p RecordedProgram,
    allocator: Arc<DeviceAllocator>,
    upstream: Arc<ReplayUpstream>,
    start: StartState,
    /// The live blocks, by number. A program has many more blocks than are ever live at once, so they are not in one long list.
    blocks: FxHashMap<u32, Block>,
    mismatches: u64,
    first_mismatch: Option<Divergence>,
    /// The allocator's identifier of each private pool that was used.
    pools: Vec<Option<PoolId>>,
    /// The lanes of pending blocks, by number.
    pending: BTreeMap<u32, StreamId>,
    idle_lanes: Vec<StreamId>,
    lanes: u64,
    tags: Option<Tags>,
    /// Whether the state before the trace has been laid out, or need not be.
    is_laid_out: bool,
    /// The uncertain part of that state.
    doubts: Doubts,
    attempts: bool,
    /// The next step, counted from the first of those that recreate the state before the trace.
    at: usize,
    start_steps: usize,
    requested_bytes: u64,
    requested_peak_bytes: u64,
}

/// The figures of the memory at one moment of a [`Replay`]. Sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Figures {
    /// Memory taken from the upstream.
    pub reserved_bytes: u64,
    /// The most that `reserved_bytes` has been.
    pub reserved_peak_bytes: u64,
    /// Memory of blocks that are live or pending, as counted by the allocator.
    pub active_bytes: u64,
    /// The most that `active_bytes` has been.
    pub active_peak_bytes: u64,
    /// Requested bytes of blocks that are live or pending, as counted by the program: the same under every allocator, as long as
    /// pending frees complete at the recorded time.
    pub requested_bytes: u64,
    /// The most that `requested_bytes` has been.
    pub requested_peak_bytes: u64,
}

impl Figures {
    /// Returns the peak of the reserved memory divided by the peak of the active memory: 1 is perfect.
    pub fn reserved_over_active(&self) -> f64 {
        self.reserved_peak_bytes as f64 / self.active_peak_bytes as f64
    }
}

/// A block at a different address than in the trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Divergence {
    /// The block's number.
    pub block: u32,
    /// The address in the trace.
    pub recorded: u64,
    /// The address in the replay.
    pub replayed: u64,
}

impl<'p> Replay<'p> {
    /// Creates a replay that has not begun. `allocator` is new, and `upstream` is its upstream.
    pub fn new(
        program: &'p RecordedProgram,
        allocator: Arc<DeviceAllocator>,
        upstream: Arc<ReplayUpstream>,
    ) -> Self {
        Self {
            program,
            allocator,
            upstream,
            start: StartState::Recorded,
            blocks: FxHashMap::default(),
            mismatches: 0,
            first_mismatch: None,
            pools: vec![None; program.pools().len()],
            pending: BTreeMap::new(),
            idle_lanes: Vec::new(),
            lanes: 0,
            tags: Some(Tags::default()),
            is_laid_out: false,
            doubts: Doubts::default(),
            attempts: false,
            at: 0,
            start_steps: program.start_steps(StartState::Recorded).len(),
            requested_bytes: 0,
            requested_peak_bytes: 0,
        }
    }

    /// Creates a replay without tags, which is about three times as fast: it does not detect an allocator that hands out memory
    /// that is in use.
    pub fn without_tags(
        program: &'p RecordedProgram,
        allocator: Arc<DeviceAllocator>,
        upstream: Arc<ReplayUpstream>,
    ) -> Self {
        Self { tags: None, ..Self::new(program, allocator, upstream) }
    }

    /// Creates a replay that starts from another state before the trace than the recorded one.
    #[must_use]
    pub fn starting_with(self, start: StartState) -> Self {
        Self { start, start_steps: self.program.start_steps(start).len(), ..self }
    }

    /// Creates a replay that also makes the requests that failed for lack of memory in the recording.
    #[must_use]
    pub fn with_attempts(self) -> Self {
        Self { attempts: true, ..self }
    }

    /// Serves one step and returns it; `None` after the last. The first steps recreate the state before the trace, and leave no
    /// peaks.
    ///
    /// # Errors
    /// If the allocator refuses, or hands out memory that is in use. The step has then ended, and the next call serves the next
    /// step; a block that was refused is skipped from then on.
    #[inline]
    pub fn step(&mut self) -> Result<Option<RecordedStep>, ReplayError> {
        self.begin()?;
        if self.at < self.start_steps {
            self.upstream.set_endless(true);
        }
        let step = match self.at.checked_sub(self.start_steps) {
            Some(at) => self.program.steps().get(at),
            None => self.program.start_steps(self.start).get(self.at),
        };
        let Some(&step) = step else { return Ok(None) };
        self.at += 1;
        match step {
            RecordedStep::Allocate { .. } => self.allocate(step)?,
            RecordedStep::Free { block } => self.free(block, None),
            RecordedStep::FreePending { block } => {
                let lane = self.lane();
                self.free(block, Some(lane));
            }
            RecordedStep::Complete { block } => self.complete(block),
            RecordedStep::EmptyCache => {
                self.allocator.empty_cache().map_err(|error| self.to_replay_error(error))?
            }
            RecordedStep::Attempt { pool, bytes, stream } => self.attempt(pool, bytes, stream)?,
        }
        if self.at == self.start_steps {
            self.fit_start()?;
        }
        Ok(Some(step))
    }

    /// Returns the trace entry of the last step; `None` while the state before the trace is recreated.
    pub fn entry(&self) -> Option<u32> {
        Some(self.program.entry_of(self.at.checked_sub(self.start_steps + 1)?))
    }

    /// Serves all remaining steps.
    ///
    /// # Errors
    /// Returns the first error of [`step`](Self::step).
    pub fn run(&mut self) -> Result<(), ReplayError> {
        while self.step()?.is_some() {}
        Ok(())
    }

    /// Returns the present figures of the memory.
    pub fn figures(&self) -> Figures {
        let statistics = self.allocator.statistics();
        let (reserved, active) = (statistics.reserved_bytes.all, statistics.active_bytes.all);
        Figures {
            reserved_bytes: reserved.current,
            reserved_peak_bytes: reserved.peak,
            active_bytes: active.current,
            active_peak_bytes: active.peak,
            requested_bytes: self.requested_bytes,
            requested_peak_bytes: self.requested_peak_bytes,
        }
    }

    /// Returns the number of bytes that are taken from the upstream now.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.upstream.taken_bytes()
    }

    /// Returns the number of blocks so far at other addresses than in the trace.
    pub fn mismatches(&self) -> u64 {
        self.mismatches
    }

    /// Returns the first block at a different address than in the trace.
    pub fn first_mismatch(&self) -> Option<Divergence> {
        self.first_mismatch
    }

    /// Returns the allocator that serves.
    pub fn allocator(&self) -> &Arc<DeviceAllocator> {
        &self.allocator
    }

    fn allocate(&mut self, step: RecordedStep) -> Result<(), ReplayError> {
        let RecordedStep::Allocate { block: number, pool, bytes, stream, recorded_address } = step else {
            return Ok(());
        };
        self.check_request(bytes)?;
        self.upstream.serve_block(number);
        let _scope = pool.map(|pool| self.enter(pool)).transpose()?;
        let block = self.allocator.allocate(bytes, stream).map_err(|error| self.to_replay_error(error))?;
        let block = match self.doubts.is_empty() {
            true => block,
            false => {
                let block = self.reconsidered(block, bytes, recorded_address);
                block.map_err(|error| self.to_replay_error(error))?
            }
        };
        self.hold(number, block, recorded_address)
    }

    /// Stores a block that was just handed out, and checks its address.
    fn hold(&mut self, number: u32, block: Block, recorded_address: u64) -> Result<(), ReplayError> {
        let placed = self.tag(number, &block);
        let replayed = self.upstream.recorded(block.address());
        if replayed != recorded_address && recorded_address != 0 {
            self.mismatches += 1;
            self.first_mismatch.get_or_insert(Divergence {
                block: number,
                recorded: recorded_address,
                replayed,
            });
        }
        self.blocks.insert(number, block);
        self.requested_bytes = self.requested_bytes.saturating_add(self.program.requested_bytes(number));
        self.requested_peak_bytes = self.requested_peak_bytes.max(self.requested_bytes);
        placed.map_err(|conflict| ReplayError {
            step: self.at.saturating_sub(1),
            kind: Kind::Conflict(number, conflict),
        })
    }

    fn attempt(&mut self, pool: Option<u16>, bytes: u64, stream: StreamId) -> Result<(), ReplayError> {
        if !self.attempts {
            return Ok(());
        }
        self.check_request(bytes)?;
        self.upstream.serve_block(u32::MAX);
        let _scope = pool.map(|pool| self.enter(pool)).transpose()?;
        self.allocator.allocate(bytes, stream).map(drop).map_err(|error| self.to_replay_error(error))
    }

    /// Directs requests to a private pool while the scope is alive.
    fn enter(&mut self, pool: u16) -> Result<PoolScope, ReplayError> {
        let pool = *self.pools[usize::from(pool)].get_or_insert_with(|| self.allocator.create_pool());
        self.allocator.use_pool(pool).map_err(|error| self.to_replay_error(error))
    }

    /// Tags the memory of a block that was just handed out, even on a conflict.
    fn tag(&mut self, number: u32, block: &Block) -> Result<(), Conflict> {
        let Some(tags) = &mut self.tags else { return Ok(()) };
        let (upstream, stream) = (&self.upstream, block.stream());
        for (address, bytes) in upstream.take_released() {
            tags.forget(address, bytes);
        }
        let ordered = |after: StreamId, place| after == stream || upstream.is_past(after, place, stream);
        let mut placed = Ok(());
        for (place, bytes) in upstream.physical(block.address(), block.size_bytes()) {
            placed = placed.and(tags.place(place, bytes, number, ordered));
        }
        placed
    }

    fn free(&mut self, number: u32, lane: Option<StreamId>) {
        // A block that was refused has no memory to free.
        let Some(block) = self.blocks.remove(&number) else { return };
        if let Some(tags) = &mut self.tags {
            let next_place = |stream| (stream, self.upstream.recorded_events(stream) + 1);
            let after: Points = [Some(block.stream()), lane].into_iter().flatten().map(next_place).collect();
            for (place, _) in self.upstream.physical(block.address(), block.size_bytes()) {
                tags.release(place, after.clone());
            }
        }
        let fillers = self.doubts.end(number, &block);
        match lane {
            None => self.count_free(number),
            Some(lane) => {
                block.record_stream(lane);
                fillers.iter().for_each(|filler| filler.record_stream(lane));
                self.pending.insert(number, lane);
            }
        }
    }

    fn complete(&mut self, number: u32) {
        let Some(lane) = self.pending.remove(&number) else { return };
        self.upstream.complete_stream(lane);
        self.idle_lanes.push(lane);
        self.count_free(number);
    }

    fn count_free(&mut self, number: u32) {
        self.requested_bytes = self.requested_bytes.saturating_sub(self.program.requested_bytes(number));
    }

    /// Returns a lane without an event in flight.
    fn lane(&mut self) -> StreamId {
        self.idle_lanes.pop().unwrap_or_else(|| {
            self.lanes += 1;
            StreamId::from_raw(FIRST_LANE + self.lanes)
        })
    }

    /// Checks a size: in a damaged file it can be any number.
    fn check_request(&self, bytes: u64) -> Result<(), ReplayError> {
        match bytes > MOST_BYTES {
            true => Err(ReplayError { step: self.at.saturating_sub(1), kind: Kind::Impossible(bytes) }),
            false => Ok(()),
        }
    }

    /// Returns the error for a state before the trace that does not fit the device.
    fn too_large(&self, excess_bytes: u64) -> ReplayError {
        ReplayError { step: self.at.saturating_sub(1), kind: Kind::TooLarge(excess_bytes) }
    }

    fn to_replay_error(&self, error: AllocationError) -> ReplayError {
        ReplayError { step: self.at.saturating_sub(1), kind: Kind::Refused(error) }
    }
}

/// The bytes that the driver's allocator takes in one piece, as far as this can be observed.
pub(crate) const DRIVER_PIECE_BYTES: u64 = 32 << 20;

/// Returns an estimate of the peak that `backend:cudaMallocAsync` would reserve for `program`, in bytes, on a device of
/// `total_bytes`.
///
/// The rules of the driver's allocator are not public. Those of PyTorch's expandable segments are similar: the driver also maps
/// physical pages side by side, in pieces of 32 MiB, and keeps freed memory. Expect up to 20 % or 64 MiB of difference between
/// the estimate and a run.
///
/// # Errors
/// If the device has no room for that.
pub fn estimate_stream_ordered_peak(program: &RecordedProgram, total_bytes: u64) -> Result<u64, ReplayError> {
    let mut replay = stream_ordered_estimate(program, total_bytes);
    replay.run()?;
    Ok(replay.figures().reserved_peak_bytes.next_multiple_of(DRIVER_PIECE_BYTES))
}

/// Returns the replay whose reserved bytes, rounded up to entire pieces, are that estimate.
pub(crate) fn stream_ordered_estimate(program: &RecordedProgram, total_bytes: u64) -> Replay<'_> {
    let settings = "policy:pytorch,expandable_segments:True,large_segment_size_mb:32";
    let settings = Settings::parse(settings).expect("these are settings");
    let upstream = Arc::new(ReplayUpstream::unscripted(total_bytes));
    let allocator = DeviceAllocator::new(upstream.clone(), settings);
    Replay::without_tags(program, allocator, upstream).starting_with(StartState::LiveBlocks)
}

impl fmt::Debug for Replay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay").field("at", &self.at).finish_non_exhaustive()
    }
}

/// The reason why a [`Replay`] stopped.
#[derive(Debug)]
pub struct ReplayError {
    step: usize,
    kind: Kind,
}

#[derive(Debug, thiserror::Error)]
enum Kind {
    #[error(transparent)]
    Refused(AllocationError),
    #[error("block {0} was put where {1}")]
    Conflict(u32, Conflict),
    #[error("the state before the trace takes {0} bytes more than the device has")]
    TooLarge(u64),
    #[error("{0} bytes are asked for, more than any device has")]
    Impossible(u64),
}

impl ReplayError {
    /// Returns the step that was served, from 0, including those that recreate the state before the trace.
    pub fn step(&self) -> usize {
        self.step
    }

    /// Returns the allocator's error, if the allocator refused the step.
    pub fn refusal(&self) -> Option<&AllocationError> {
        match &self.kind {
            Kind::Refused(error) => Some(error),
            Kind::Conflict(..) | Kind::TooLarge(_) | Kind::Impossible(_) => None,
        }
    }

    /// Returns whether the error is lack of memory: a request failed for that reason, or the state before the trace is larger
    /// than the device.
    pub fn is_out_of_memory(&self) -> bool {
        match &self.kind {
            Kind::Refused(error) => error.is_out_of_memory(),
            Kind::TooLarge(_) | Kind::Impossible(_) => true,
            Kind::Conflict(..) => false,
        }
    }
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: {}", self.step, self.kind)
    }
}

impl Error for ReplayError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.kind.source()
    }
}
