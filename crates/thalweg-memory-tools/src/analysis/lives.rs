//! The lives of all blocks and segments of a trace, for drawings.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::walk::{FirstPass, Live, MemoryState, Taken};
use thalweg_memory::StreamId;
use thalweg_snapshot::{Action, Event, Recording, StackId};

/// All blocks that were ever live and all segments that were ever taken from the driver, on one device. Entries of the trace are
/// given by their number.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Lives {
    /// The blocks: first those that were live before the trace, by address, then in order of allocation.
    pub blocks: Vec<BlockLife>,
    /// The segments, in the same order. If a part of a mapped range was unmapped, the rest continues as the same segment.
    pub segments: Vec<SegmentLife>,
}

/// The life of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockLife {
    /// The entry that allocated the block; `None` if the block was live before the trace.
    pub allocated: Option<usize>,
    /// The entry in which the owner freed the block.
    pub freed: Option<usize>,
    /// The entry in which the block became free.
    pub completed: Option<usize>,
    /// The address at which the block begins.
    pub address: u64,
    /// The bytes that were requested.
    pub requested_bytes: u64,
    /// The bytes that the block takes in its segment; computed by the rounding rule if the trace does not contain them.
    pub size_bytes: u64,
    /// The stream that the block belongs to.
    pub stream: StreamId,
    /// The pool of the block's segment.
    pub pool_id: (u64, u64),
    /// The stack of the block's allocation.
    pub stack: Option<StackId>,
}

/// The life of a segment, or of a mapped range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentLife {
    /// The entry that took the segment from the driver; `None` if the segment existed before the trace.
    pub taken: Option<usize>,
    /// The entry that returned the segment to the driver.
    pub returned: Option<usize>,
    /// The address at which the segment begins.
    pub address: u64,
    /// The size, in bytes.
    pub size_bytes: u64,
    /// The stream that the segment belongs to.
    pub stream: StreamId,
    /// PyTorch's number of the segment's pool; (0, 0) for the shared pool, and if the file does not contain the pool.
    pub pool_id: (u64, u64),
    /// Whether the segment is mapped into an expandable range.
    pub is_expandable: bool,
}

/// Returns the lives on `device`.
pub fn lives(recording: &Recording, device: usize) -> Lives {
    let before = MemoryState::before(recording, device, &FirstPass::over(recording, device));
    let mut walk = Walk::default();
    for (&address, taken) in &before.taken {
        walk.take(None, address, *taken);
    }
    let mut older: Vec<_> = before.live.into_iter().collect();
    older.sort_unstable_by_key(|(address, _)| *address);
    for (address, live) in older {
        walk.allocate(None, address, live);
    }
    for (entry, event) in recording.trace(device).enumerate() {
        walk.apply(entry, &event);
    }
    walk.finish(&MemoryState::at_end(recording, device))
}

/// The blocks and segments seen so far, and those that still exist, by address.
#[derive(Default)]
struct Walk {
    lives: Lives,
    /// The segment that contains each block.
    segments_of_blocks: Vec<Option<usize>>,
    live: FxHashMap<u64, usize>,
    taken: BTreeMap<u64, usize>,
}

impl Walk {
    fn apply(&mut self, entry: usize, event: &Event) {
        match event.action {
            Action::Alloc => self.allocate(Some(entry), event.address, Live::of(event)),
            Action::FreeRequested => {
                if let Some(&block) = self.live.get(&event.address) {
                    self.lives.blocks[block].freed.get_or_insert(entry);
                }
            }
            Action::FreeCompleted => self.complete(entry, event.address),
            Action::SegmentAlloc | Action::SegmentMap => {
                self.take(Some(entry), event.address, Taken::of(event));
            }
            Action::SegmentFree | Action::SegmentUnmap => {
                self.give_back(entry, event.address, event.address.saturating_add(event.size_bytes));
            }
            Action::Snapshot | Action::Oom | Action::Annotate => {}
        }
    }

    fn allocate(&mut self, entry: Option<usize>, address: u64, live: Live) {
        if let Some(entry) = entry {
            // If a block still exists at this address, its free is missing in the trace.
            self.complete(entry, address);
        }
        let segment = self.taken.range(..=address).next_back().map(|(_, segment)| *segment);
        self.segments_of_blocks.push(segment.filter(|&segment| {
            let segment = &self.lives.segments[segment];
            address - segment.address < segment.size_bytes
        }));
        self.live.insert(address, self.lives.blocks.len());
        self.lives.blocks.push(BlockLife {
            allocated: entry,
            freed: None,
            completed: None,
            address,
            requested_bytes: live.requested_bytes,
            size_bytes: live.size_bytes,
            stream: live.stream,
            pool_id: (0, 0),
            stack: live.stack,
        });
    }

    fn complete(&mut self, entry: usize, address: u64) {
        if let Some(block) = self.live.remove(&address) {
            let block = &mut self.lives.blocks[block];
            block.freed.get_or_insert(entry);
            block.completed = Some(entry);
        }
    }

    fn take(&mut self, entry: Option<usize>, address: u64, taken: Taken) {
        let lost = self.taken.insert(address, self.lives.segments.len());
        if let (Some(lost), Some(entry)) = (lost, entry) {
            self.lives.segments[lost].returned = Some(entry);
        }
        self.lives.segments.push(SegmentLife {
            taken: entry,
            returned: None,
            address,
            size_bytes: taken.end.saturating_sub(address),
            stream: taken.stream,
            pool_id: taken.pool_id,
            is_expandable: taken.is_mapped,
        });
    }

    /// Ends the segments in a range; the parts outside of it continue.
    fn give_back(&mut self, entry: usize, start: u64, end: u64) {
        while let Some((&address, &segment)) = self.taken.range(..end).next_back() {
            let life = self.lives.segments[segment];
            let segment_end = address.saturating_add(life.size_bytes);
            if segment_end <= start {
                break;
            }
            self.taken.remove(&address);
            self.lives.segments[segment].returned = Some(entry);
            let pieces = [(address, start.min(segment_end)), (end.max(address), segment_end)];
            for (from, to) in pieces.into_iter().filter(|(from, to)| from < to) {
                self.taken.insert(from, self.lives.segments.len());
                let (taken, size_bytes) = (Some(entry), to - from);
                self.lives.segments.push(SegmentLife {
                    taken,
                    address: from,
                    size_bytes,
                    returned: None,
                    ..life
                });
            }
        }
    }

    /// Adds the data that only the end of the file contains: exact sizes, and the pools of segments that still exist.
    fn finish(mut self, end: &MemoryState) -> Lives {
        for (address, &segment) in &self.taken {
            if let Some(taken) = end.taken.range(..=address).next_back().map(|(_, taken)| taken)
                && *address < taken.end
            {
                self.lives.segments[segment].pool_id = taken.pool_id;
            }
        }
        for (address, &block) in &self.live {
            if let Some(live) = end.live.get(address) {
                self.lives.blocks[block].size_bytes = live.size_bytes;
            }
        }
        for (block, segment) in self.lives.blocks.iter_mut().zip(&self.segments_of_blocks) {
            block.pool_id = segment.map_or((0, 0), |segment| self.lives.segments[segment].pool_id);
        }
        self.lives
    }
}
