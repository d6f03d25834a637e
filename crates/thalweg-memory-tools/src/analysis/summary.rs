//! The summary of a recording.

use rustc_hash::FxHashMap;

use super::layout::Fragmentation;
use super::walk::{FirstPass, Live, MemoryState, Peak};
use thalweg_memory::StreamId;
use thalweg_snapshot::{Action, BlockState, Gap, Recording, StackId};

/// The summary of the recording of one device. Sizes are in bytes.
#[derive(Clone, PartialEq, Debug)]
pub struct Summary {
    /// The device.
    pub device: usize,
    /// The number of entries of the trace. If it is 0, only the moment at which the file was written is known.
    pub entries: usize,
    /// The time from the first entry to the last in microseconds, if the entries have times.
    pub duration_us: Option<i64>,
    /// The state before the trace.
    pub start: Start,
    /// The greatest amount of live memory, by requested size.
    pub peak_live_bytes: u64,
    /// The greatest amount of reserved memory.
    pub peak_reserved_bytes: u64,
    /// The moment of the greatest amount of live memory.
    pub at_peak: Moment,
    /// The moment at which the file was written.
    pub at_end: Moment,
    /// The growth of the peak of live memory from the second to the last quarter of the trace, as a fraction of the second
    /// quarter's peak. It should be near 0 in a program that repeats its steps. `None` if the trace is too short, or nothing was
    /// live.
    pub growth: Option<f64>,
    /// The memory of each pool at the end: the shared one is (0, 0).
    pub pools: Vec<PoolUse>,
    /// The requests that failed, in order.
    pub out_of_memory: Vec<OutOfMemoryEntry>,
    /// Pinned host memory at the end, if its history was recorded.
    pub host_bytes: u64,
    /// The inconsistencies in the file.
    pub doubts: Doubts,
}

/// The inconsistencies in a file, which can make its figures wrong.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Doubts {
    /// The gap, if entries are missing in the middle of the trace.
    pub gap: Option<Gap>,
    /// Whether the trace never records when a free is complete.
    pub leaves_out_ends: bool,
    /// The number of blocks at the end that are in no segment, or overlap another.
    pub misplaced_blocks: usize,
    /// The greatest number of bytes by which the live memory exceeds the reserved memory; 0 if there is a gap, which explains the
    /// excess.
    pub excess_bytes: u64,
}

/// The memory when the trace began.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Start {
    /// The number of blocks that were live.
    pub live_blocks: usize,
    /// The requested bytes of these blocks.
    pub live_bytes: u64,
    /// The bytes that were reserved.
    pub reserved_bytes: u64,
    /// The number of frees of blocks that the trace never allocates.
    pub unseen_frees: usize,
}

impl Start {
    /// Returns whether the trace begins with the program: nothing was live before. If something was, the history was switched on
    /// late, or its ring was full and dropped the beginning; a file does not show which.
    pub fn is_complete(&self) -> bool {
        self.live_blocks == 0
    }
}

/// The memory at one moment. Sizes are in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moment {
    /// The number of entries of the trace before this moment.
    pub entry: usize,
    /// The live bytes, by requested size.
    pub live_bytes: u64,
    /// The number of live blocks.
    pub live_blocks: usize,
    /// The reserved bytes.
    pub reserved_bytes: u64,
    /// The reasons why reserved memory that was not active served no request.
    pub fragmentation: Fragmentation,
    /// The stream whose requests the fragmentation is computed for.
    pub stream: StreamId,
    /// The live blocks by requested size, the most bytes first.
    pub by_size: Vec<SizeGroup>,
    /// The live blocks by the stack of their allocation, the most bytes first.
    pub by_stack: Vec<StackGroup>,
}

/// Live blocks of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SizeGroup {
    /// The requested bytes of each block.
    pub size_bytes: u64,
    /// The number of blocks.
    pub blocks: usize,
    /// The total bytes.
    pub bytes: u64,
}

/// Live blocks that were allocated at one stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StackGroup {
    /// The stack; `None` for blocks without a recorded stack.
    pub stack: Option<StackId>,
    /// The number of blocks.
    pub blocks: usize,
    /// The total requested bytes.
    pub bytes: u64,
}

/// The memory of one pool. Sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolUse {
    /// PyTorch's number of the pool.
    pub pool_id: (u64, u64),
    /// The number of segments.
    pub segments: usize,
    /// The total size of the segments.
    pub reserved_bytes: u64,
    /// The bytes of blocks that are live or whose free is pending.
    pub active_bytes: u64,
}

/// A request that failed. Sizes are in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutOfMemoryEntry {
    /// The number of the entry in the trace.
    pub entry: usize,
    /// The bytes that were requested.
    pub requested_bytes: u64,
    /// The bytes that the device had left.
    pub device_free_bytes: u64,
    /// The bytes that the allocator had reserved.
    pub reserved_bytes: u64,
    /// The stack of the request.
    pub stack: Option<StackId>,
    /// The reasons why reserved memory that was not active did not serve the request.
    pub fragmentation: Fragmentation,
    /// The live memory at that time by the stack of its allocation, the most bytes first.
    pub by_stack: Vec<StackGroup>,
}

impl OutOfMemoryEntry {
    /// Returns the memory of a GPU of `total_bytes` that was neither in this allocator nor free: memory of the driver itself, of
    /// libraries, of other processes.
    pub fn outside_bytes(&self, total_bytes: u64) -> u64 {
        total_bytes.saturating_sub(self.device_free_bytes).saturating_sub(self.reserved_bytes)
    }
}

/// Returns the summary of the recording of `device`.
pub fn summarise(recording: &Recording, device: usize) -> Summary {
    let pass = FirstPass::over(recording, device);
    let end = MemoryState::at_end(recording, device);
    let before = MemoryState::before(recording, device, &pass);
    let start = Start {
        live_blocks: pass.older.len(),
        live_bytes: pass.older_bytes(),
        reserved_bytes: before.reserved_bytes(),
        unseen_frees: pass.unseen_frees,
    };
    let at_end = moment(&end, busiest(&end), pass.entries);
    let (at_peak, out_of_memory) = if pass.entries == 0 {
        (at_end.clone(), Vec::new())
    } else {
        at_peak(recording, device, before, pass.live.at)
    };
    let peak = |start: u64, peak: &Peak| {
        let bytes = i128::from(start) + peak.highest;
        bytes.clamp(0, i128::from(u64::MAX)) as u64
    };
    Summary {
        device,
        entries: pass.entries,
        duration_us: pass
            .first_us
            .zip(pass.last_us)
            .map(|(first, last)| last.saturating_sub(first))
            .filter(|us| *us >= 0),
        start,
        peak_live_bytes: peak(start.live_bytes, &pass.live),
        peak_reserved_bytes: peak(start.reserved_bytes, &pass.reserved),
        at_peak,
        at_end,
        growth: growth(&pass),
        pools: pools(recording, device),
        out_of_memory,
        host_bytes: recording
            .host_segments()
            .map(|(segment, _)| segment.total_bytes)
            .fold(0, u64::saturating_add),
        doubts: Doubts {
            gap: recording.gap(device),
            leaves_out_ends: recording.leaves_out_ends(device),
            misplaced_blocks: misplaced_blocks(recording, device),
            // In a gap, blocks appear without their segments.
            excess_bytes: recording.gap(device).map_or_else(|| excess_bytes(&pass, &start), |_| 0),
        },
    }
}

/// Returns the greatest number of bytes by which the live memory exceeds the reserved memory.
fn excess_bytes(pass: &FirstPass, start: &Start) -> u64 {
    let before = i128::from(start.live_bytes) - i128::from(start.reserved_bytes);
    u64::try_from((before + pass.excess).max(0)).unwrap_or(u64::MAX)
}

/// Returns the number of blocks of the file that are outside of their segments, or overlap the one before.
fn misplaced_blocks(recording: &Recording, device: usize) -> usize {
    let mut misplaced = 0;
    for (segment, blocks) in recording.segments(device) {
        let end = segment.address.saturating_add(segment.total_bytes);
        let mut at = segment.address;
        for block in blocks {
            let block_end = block.address.saturating_add(block.size_bytes);
            misplaced += usize::from(block.address < at || block_end > end);
            at = block_end.max(at);
        }
    }
    misplaced
}

/// Returns the moment after `entries` entries, and each failure in the entire trace.
fn at_peak(
    recording: &Recording,
    device: usize,
    mut state: MemoryState,
    entries: usize,
) -> (Moment, Vec<OutOfMemoryEntry>) {
    let last_failure = recording.trace(device).rev().position(|event| event.action == Action::Oom);
    let last = last_failure.map_or(0, |from_end| recording.trace_len(device) - from_end).max(entries);
    let mut peak = (entries == 0).then(|| moment(&state, busiest(&state), 0));
    let mut failures = Vec::new();
    for (index, event) in recording.trace(device).take(last).enumerate() {
        if event.action == Action::Oom {
            failures.push(OutOfMemoryEntry {
                entry: index,
                requested_bytes: event.size_bytes,
                device_free_bytes: event.address,
                reserved_bytes: state.reserved_bytes(),
                stack: event.stack,
                fragmentation: Fragmentation::of(&state, event.stream),
                by_stack: by_stack(&state),
            });
        }
        state.apply(&event);
        if index + 1 == entries {
            peak = Some(moment(&state, event.stream, entries));
        }
    }
    (peak.expect("the trace has that many entries"), failures)
}

fn moment(state: &MemoryState, stream: StreamId, entry: usize) -> Moment {
    let mut sizes: FxHashMap<u64, usize> = FxHashMap::default();
    for live in state.live.values() {
        *sizes.entry(live.requested_bytes).or_default() += 1;
    }
    let mut by_size: Vec<_> = sizes
        .into_iter()
        .map(|(size_bytes, blocks)| SizeGroup {
            size_bytes,
            blocks,
            bytes: size_bytes.saturating_mul(blocks as u64),
        })
        .collect();
    by_size.sort_unstable_by_key(|group| (std::cmp::Reverse(group.bytes), group.size_bytes));
    Moment {
        entry,
        live_bytes: state.requested_bytes(),
        live_blocks: state.live.len(),
        reserved_bytes: state.reserved_bytes(),
        fragmentation: Fragmentation::of(state, stream),
        stream,
        by_size,
        by_stack: by_stack(state),
    }
}

/// Returns the live blocks by the stack of their allocation, the most bytes first.
fn by_stack(state: &MemoryState) -> Vec<StackGroup> {
    let mut stacks: FxHashMap<Option<StackId>, (usize, u64)> = FxHashMap::default();
    for live in state.live.values() {
        let stack = stacks.entry(live.stack).or_default();
        *stack = (stack.0 + 1, stack.1.saturating_add(live.requested_bytes));
    }
    let groups = stacks.into_iter().map(|(stack, (blocks, bytes))| StackGroup { stack, blocks, bytes });
    let mut groups: Vec<_> = groups.collect();
    groups.sort_unstable_by_key(|group| (std::cmp::Reverse(group.bytes), group.stack));
    groups
}

/// Returns the stream with the most live bytes.
fn busiest(state: &MemoryState) -> StreamId {
    let mut bytes: FxHashMap<StreamId, u64> = FxHashMap::default();
    for Live { stream, size_bytes, .. } in state.live.values() {
        let sum = bytes.entry(*stream).or_default();
        *sum = sum.saturating_add(*size_bytes);
    }
    let most = bytes.into_iter().max_by_key(|&(stream, bytes)| (bytes, std::cmp::Reverse(stream.raw())));
    let any = state.taken.values().next().map(|taken| taken.stream);
    most.map(|(stream, _)| stream).or(any).unwrap_or(StreamId::from_raw(0))
}

fn growth(pass: &FirstPass) -> Option<f64> {
    let before = i128::from(pass.older_bytes());
    let [_, second, _, last] = pass.quarters.map(|highest| highest.saturating_add(before));
    (pass.entries >= 8 && second > 0).then(|| last as f64 / second as f64 - 1.0)
}

fn pools(recording: &Recording, device: usize) -> Vec<PoolUse> {
    let mut pools: Vec<PoolUse> = Vec::new();
    for (segment, blocks) in recording.segments(device) {
        let at = pools.iter().position(|pool| pool.pool_id == segment.pool_id).unwrap_or_else(|| {
            pools.push(PoolUse { pool_id: segment.pool_id, segments: 0, reserved_bytes: 0, active_bytes: 0 });
            pools.len() - 1
        });
        let pool = &mut pools[at];
        pool.segments += 1;
        pool.reserved_bytes = pool.reserved_bytes.saturating_add(segment.total_bytes);
        let active = blocks.filter(|block| block.state != BlockState::Inactive).map(|block| block.size_bytes);
        pool.active_bytes = pool.active_bytes.saturating_add(active.fold(0, u64::saturating_add));
    }
    pools.sort_unstable_by_key(|pool| pool.pool_id);
    pools
}
