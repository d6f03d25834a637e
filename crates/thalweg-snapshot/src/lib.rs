//! The memory at one moment, block by block, and the events that led to it.
//!
//! There are two views of it:
//!
//! - [`SegmentSnapshot`], [`BlockSnapshot`]: an allocator's description of its own memory. For programs and tests.
//! - [`Snapshot`]: the complete dictionary that PyTorch's `_snapshot()` returns, with traces, stacks and settings, of one process
//!   with all its devices. For files, for tools, and for people who read either.
//!
//! A snapshot is a copy: it holds no memory, and it is out of date as soon as the allocator is used again. Its length is
//! proportional to the number of blocks, so it is for people and tests, not for every step.
//!
//! # Files
//!
//! ```text
//!  Snapshot ──▶ to_pickle ──▶ memory_viz (web and Python), pickle.load      memory-efficient: stacks are written once
//!     ▲   └───▶ to_json   ──▶ memory_viz of late, anything else
//!     └──────── Recording ◀── any program's _dump_snapshot, of any age; our JSON
//! ```
//!
//! A [`Recording`] is the content of a file in little memory; tools work on it. A [`Snapshot`] is the same content as plain Rust
//! types, for creating and writing snapshots.
//!
//! Writing follows PyTorch 2.15 to the key. Reading is tolerant of the form (keys that are missing or unknown, tuples where lists
//! were expected, a bare list of segments) and strict with the rest (a size is a number and not negative). A file may come from
//! anywhere, so whatever it contains, reading it executes nothing, neither panics nor recurses, and takes no more memory than
//! some multiple of the file's own size.
//!
//! Recording is in `thalweg-memory`; drawing is not part of this crate.
#![forbid(unsafe_code)]

mod build;
mod dump;
mod files;
mod frames;
mod ids;
mod json;
mod json_reader;
mod mend;
mod model;
mod names;
mod pickle;
mod recording;
mod records;
mod sniff;
mod source;
mod stacks;
mod undump;
mod whole;

use std::fmt;

pub use model::{
    Action, Annotation, Frame, Frames, Segment, SegmentBlock, SettingValue, Snapshot, TraceEntry,
};
pub use names::{PoolId, SizeClass, StreamId};
pub use recording::{BlockView, Event, FrameId, FrameView, Remarks, SegmentView, StackId};
pub use records::{Gap, Recording};

/// A segment that was taken from the upstream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentSnapshot {
    /// The address at which the segment begins.
    pub address: u64,
    /// The size, in bytes.
    pub total_bytes: u64,
    /// The stream that all the segment's blocks belong to.
    pub stream: StreamId,
    /// The class of the requests that the segment serves: small or large.
    pub class: SizeClass,
    /// The private pool that the segment belongs to, if any.
    pub pool: Option<PoolId>,
    /// Whether the segment's pages are mapped and unmapped one by one. This entry is then one of its mapped ranges.
    pub is_expandable: bool,
    /// The blocks, in address order, without gaps.
    pub blocks: Vec<BlockSnapshot>,
}

/// A block of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockSnapshot {
    /// The address at which the block begins.
    pub address: u64,
    /// The size, in bytes.
    pub size_bytes: u64,
    /// The number of bytes that were requested; 0 if the block is inactive.
    pub requested_bytes: u64,
    /// The state of the block.
    pub state: BlockState,
}

/// The state of a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BlockState {
    /// A caller holds the block.
    ActiveAllocated,
    /// No caller holds the block, but work on other streams may still use it.
    ActivePendingFree,
    /// The block is free, and serves the next request that fits.
    Inactive,
}

impl BlockState {
    /// Returns PyTorch's name of the state.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ActiveAllocated => "active_allocated",
            Self::ActivePendingFree => "active_pending_free",
            Self::Inactive => "inactive",
        }
    }

    /// Returns the state with PyTorch's name, or with the name in its documentation (`active_awaiting_free`).
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "active_allocated" => Some(Self::ActiveAllocated),
            "active_pending_free" | "active_awaiting_free" => Some(Self::ActivePendingFree),
            "inactive" => Some(Self::Inactive),
            _ => None,
        }
    }
}

/// The reason why a file is not read as a snapshot: it is broken, or it is something else.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotError(String);

impl SnapshotError {
    /// Creates an error with this text.
    pub fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SnapshotError {}
