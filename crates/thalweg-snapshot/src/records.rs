//! The content of a snapshot's file, in little memory.
//!
//! A [`Snapshot`](super::Snapshot) has entries of 150 bytes, which is adequate for the snapshot of a running process, and too
//! much for files of a gigabyte. Here an entry has 32 bytes: address, size, time, a number for its stack, and one for everything
//! in which few entries differ (stream, pool, texts).

use std::ops::Range;
use std::sync::Arc;

use super::{Action, Annotation, BlockState, SettingValue, frames, stacks};
use crate::SizeClass;

/// A snapshot that was read from a file, stored as columns of small records.
#[derive(Default, Debug)]
pub struct Recording {
    pub(super) texts: Vec<Arc<str>>,
    pub(super) frames: frames::Frames,
    pub(super) stacks: stacks::Stacks,
    pub(super) contexts: Vec<Context>,
    pub(super) entries: Vec<Entry>,
    pub(super) blocks: Vec<RecordedBlock>,
    pub(super) segments: Vec<RecordedSegment>,
    pub(super) traces: Vec<Trace>,
    /// The traces to repair, with their missing entries.
    pub(super) mended: Vec<Mended>,
    pub(super) host_segments: Vec<RecordedSegment>,
    pub(super) host_trace: Trace,
    pub(super) settings: Vec<(Arc<str>, SettingValue)>,
    pub(super) annotations: Vec<Annotation>,
    pub(super) file_bytes: u64,
    /// The parts that were not understood and therefore left out, with their counts.
    pub(super) left_out: Vec<(String, u64)>,
}

impl Recording {
    /// Returns the bytes that the columns take.
    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&self.texts[..])
            + self.frames.heap_bytes()
            + self.stacks.heap_bytes()
            + size_of_val(&self.contexts[..])
            + size_of_val(&self.entries[..])
            + size_of_val(&self.blocks[..])
    }
}

/// The context that several entries share.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(super) struct Context {
    pub(super) stream: u64,
    pub(super) compile_context: Option<u32>,
    pub(super) user_metadata: Option<u32>,
    pub(super) internal_metadata: Option<u32>,
    pub(super) pool_id: Option<(u64, u64)>,
    pub(super) forward_frames: Option<u32>,
    pub(super) is_timed: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) address: u64,
    pub(super) size_bytes: u64,
    /// The time in microseconds; 0 if the context has no times.
    pub(super) time_us: i64,
    /// The number of the entry's stack plus one; 0 if it has no stack.
    stack: u32,
    /// The number of the entry's context, with the number of its action in the lowest bits.
    context: u32,
}

impl Entry {
    const ACTION_BITS: u32 = 4;

    /// The greatest number of contexts.
    pub(super) const MOST_CONTEXTS: usize = 1 << (32 - Self::ACTION_BITS);

    pub(super) fn new(
        (address, size_bytes, time_us): (u64, u64, i64),
        action: Action,
        context: u32,
        stack: Option<u32>,
    ) -> Self {
        debug_assert!((context as usize) < Self::MOST_CONTEXTS);
        let stack = stack.map_or(0, |stack| stack + 1);
        Self { address, size_bytes, time_us, stack, context: context << Self::ACTION_BITS | action as u32 }
    }

    pub(super) fn action(&self) -> Action {
        Action::ALL[(self.context & ((1 << Self::ACTION_BITS) - 1)) as usize]
    }

    pub(super) fn context(&self) -> u32 {
        self.context >> Self::ACTION_BITS
    }

    pub(super) fn stack(&self) -> Option<u32> {
        self.stack.checked_sub(1)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RecordedBlock {
    pub(super) address: u64,
    pub(super) size_bytes: u64,
    pub(super) requested_bytes: u64,
    pub(super) frames: Option<u32>,
    pub(super) forward_frames: Option<u32>,
    pub(super) state: BlockState,
    pub(super) has_address: bool,
}

#[derive(Clone, Debug)]
pub(super) struct RecordedSegment {
    pub(super) device: i32,
    pub(super) address: u64,
    pub(super) total_bytes: u64,
    pub(super) allocated_bytes: u64,
    pub(super) active_bytes: u64,
    pub(super) requested_bytes: u64,
    pub(super) stream: u64,
    pub(super) class: SizeClass,
    pub(super) pool_id: (u64, u64),
    pub(super) is_expandable: bool,
    pub(super) frames: Option<u32>,
    pub(super) blocks: Vec<Range<u32>>,
}

/// The numbers of entries, in order: nearly always one range.
#[derive(Clone, Default, Debug)]
pub(super) struct Trace(pub(super) Vec<Range<u32>>);

impl Trace {
    pub(super) fn indices(&self) -> impl DoubleEndedIterator<Item = u32> + Clone + '_ {
        self.0.iter().cloned().flatten()
    }

    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|range| range.len()).sum()
    }
}

/// The trace of a device with its missing entries inserted.
#[derive(Clone, Default, Debug)]
pub(super) struct Mended {
    pub(super) trace: Trace,
    pub(super) gap: Option<Gap>,
    /// Whether frees are complete when they are requested.
    pub(super) ends_at_request: bool,
}

/// A part that is missing in the middle of a history: see [`Recording::gap`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    /// The entry that follows the gap; the first of several.
    pub entry: usize,
    /// Whether a single gap explains all inconsistencies.
    pub is_one: bool,
    /// The number of blocks that must have been freed in the gap.
    pub freed_blocks: usize,
    /// The number of blocks that must have been allocated in the gap.
    pub allocated_blocks: usize,
}
