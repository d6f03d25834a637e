//! A walk through a trace: the state before it, and the state at one entry.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use thalweg_memory::StreamId;
use thalweg_snapshot::{Action, BlockState, Event, Recording, StackId};

/// A block that is live, or whose free is pending.
#[derive(Clone, Copy, Debug)]
pub(super) struct Live {
    pub(super) requested_bytes: u64,
    /// The bytes that the block takes in its segment.
    pub(super) size_bytes: u64,
    pub(super) stream: StreamId,
    pub(super) stack: Option<StackId>,
}

impl Live {
    pub(super) fn of(event: &Event) -> Self {
        let size_bytes = event.size_bytes.max(1).checked_next_multiple_of(512).unwrap_or(u64::MAX);
        Self { requested_bytes: event.size_bytes, size_bytes, stream: event.stream, stack: event.stack }
    }
}

/// A range that has been taken from the driver.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) end: u64,
    pub(super) stream: StreamId,
    pub(super) pool_id: (u64, u64),
    /// Whether the range was mapped into an expandable segment; adjacent mapped ranges form one segment.
    pub(super) is_mapped: bool,
}

impl Taken {
    pub(super) fn of(event: &Event) -> Self {
        Self {
            end: event.address.saturating_add(event.size_bytes),
            stream: event.stream,
            pool_id: event.pool_id.unwrap_or((0, 0)),
            is_mapped: matches!(event.action, Action::SegmentMap | Action::SegmentUnmap),
        }
    }
}

/// The memory at one moment, by address.
#[derive(Clone, Default, Debug)]
pub(super) struct MemoryState {
    pub(super) live: FxHashMap<u64, Live>,
    pub(super) taken: BTreeMap<u64, Taken>,
}

impl MemoryState {
    /// Creates the state at the end of the file, from its segments.
    pub(super) fn at_end(recording: &Recording, device: usize) -> Self {
        let mut state = Self::default();
        for (segment, blocks) in recording.segments(device) {
            let taken = Taken {
                end: segment.address.saturating_add(segment.total_bytes),
                stream: segment.stream,
                pool_id: segment.pool_id,
                is_mapped: segment.is_expandable,
            };
            state.taken.insert(segment.address, taken);
            for block in blocks.filter(|block| block.state != BlockState::Inactive) {
                let (requested_bytes, size_bytes, stack) =
                    (block.requested_bytes, block.size_bytes, block.stack);
                // The oldest versions do not contain the requested size.
                let requested_bytes = if requested_bytes == 0 { size_bytes } else { requested_bytes };
                let live = Live { requested_bytes, size_bytes, stream: segment.stream, stack };
                state.live.insert(block.address, live);
            }
        }
        state
    }

    /// Creates the state before a trace from the state at its end.
    pub(super) fn before(recording: &Recording, device: usize, first: &FirstPass) -> Self {
        let mut state = Self { live: first.older.clone(), taken: Self::at_end(recording, device).taken };
        for event in recording.trace(device).rev() {
            match event.action {
                Action::SegmentAlloc | Action::SegmentMap => state.give_back(&event),
                Action::SegmentFree | Action::SegmentUnmap => state.take(&event),
                _ => {}
            }
        }
        state
    }

    /// Applies an entry.
    pub(super) fn apply(&mut self, event: &Event) {
        match event.action {
            Action::Alloc => drop(self.live.insert(event.address, Live::of(event))),
            Action::FreeCompleted => drop(self.live.remove(&event.address)),
            Action::SegmentAlloc | Action::SegmentMap => self.take(event),
            Action::SegmentFree | Action::SegmentUnmap => self.give_back(event),
            Action::FreeRequested | Action::Snapshot | Action::Oom | Action::Annotate => {}
        }
    }

    fn take(&mut self, event: &Event) {
        self.taken.insert(event.address, Taken::of(event));
    }

    /// Removes a range from the taken ones: entire segments, or a part of a mapped range.
    fn give_back(&mut self, event: &Event) {
        let (start, end) = (event.address, event.address.saturating_add(event.size_bytes));
        while let Some((&first, &taken)) =
            self.taken.range(..end).next_back().filter(|(_, taken)| taken.end > start)
        {
            self.taken.remove(&first);
            if taken.end > end {
                self.taken.insert(end, taken);
            }
            if first < start {
                self.taken.insert(first, Taken { end: start, ..taken });
            }
        }
    }

    pub(super) fn requested_bytes(&self) -> u64 {
        self.live.values().map(|live| live.requested_bytes).fold(0, u64::saturating_add)
    }

    pub(super) fn reserved_bytes(&self) -> u64 {
        self.taken.iter().map(|(&start, taken)| taken.end - start).fold(0, u64::saturating_add)
    }
}

/// The results of one pass over a trace, without the state before it.
#[derive(Default, Debug)]
pub(super) struct FirstPass {
    /// The blocks that were live before the trace, by address.
    pub(super) older: FxHashMap<u64, Live>,
    /// The number of these blocks that the trace frees.
    pub(super) unseen_frees: usize,
    /// The greatest change of the live memory since the start, in bytes, with the entry at which it was reached; 0 is the start.
    /// `reserved` is the same for the reserved memory.
    pub(super) live: Peak,
    pub(super) reserved: Peak,
    /// The greatest change of the live memory minus the reserved memory.
    pub(super) excess: i128,
    /// The greatest change of the live memory in each quarter of the trace.
    pub(super) quarters: [i128; 4],
    pub(super) first_us: Option<i64>,
    pub(super) last_us: Option<i64>,
    pub(super) entries: usize,
}

/// A sum with its greatest value.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Peak {
    pub(super) now: i128,
    pub(super) highest: i128,
    /// The number of entries before the greatest value was reached.
    pub(super) at: usize,
}

impl Peak {
    fn add(&mut self, bytes: u64, entry: usize) {
        self.now += i128::from(bytes);
        if self.now > self.highest {
            (self.highest, self.at) = (self.now, entry + 1);
        }
    }

    fn subtract(&mut self, bytes: u64) {
        self.now -= i128::from(bytes);
    }
}

impl FirstPass {
    pub(super) fn over(recording: &Recording, device: usize) -> Self {
        let length = recording.trace_len(device);
        let mut pass = Self { entries: length, ..Self::default() };
        pass.quarters = [i128::MIN; 4];
        // The requested bytes of the blocks that the trace allocated and that are not free.
        let mut live: FxHashMap<u64, u64> = FxHashMap::default();
        for (index, event) in recording.trace(device).enumerate() {
            pass.last_us = event.time_us.or(pass.last_us);
            pass.first_us = pass.first_us.or(event.time_us);
            match event.action {
                Action::Alloc => {
                    if let Some(lost) = live.insert(event.address, event.size_bytes) {
                        // Its free is missing in the trace: some actions can be left out of the recording.
                        pass.live.subtract(lost);
                    }
                    pass.live.add(event.size_bytes, index);
                }
                Action::FreeCompleted => match live.remove(&event.address) {
                    Some(bytes) => pass.live.subtract(bytes),
                    None => {
                        pass.live.subtract(event.size_bytes);
                        pass.unseen_frees += 1;
                        pass.older.entry(event.address).or_insert(Live { stack: None, ..Live::of(&event) });
                    }
                },
                Action::SegmentAlloc | Action::SegmentMap => pass.reserved.add(event.size_bytes, index),
                Action::SegmentFree | Action::SegmentUnmap => pass.reserved.subtract(event.size_bytes),
                Action::FreeRequested | Action::Snapshot | Action::Oom | Action::Annotate => {}
            }
            pass.excess = pass.excess.max(pass.live.now - pass.reserved.now);
            let quarter = &mut pass.quarters[index * 4 / length];
            *quarter = pass.live.now.max(*quarter);
        }
        for (address, block) in MemoryState::at_end(recording, device).live {
            if !live.contains_key(&address) {
                pass.older.entry(address).or_insert(block);
            }
        }
        pass
    }

    pub(super) fn older_bytes(&self) -> u64 {
        self.older.values().map(|live| live.requested_bytes).fold(0, u64::saturating_add)
    }
}
