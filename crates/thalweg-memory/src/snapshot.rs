//! What the memory looks like at one moment, block by block.
//!
//! The names are those of PyTorch's `memory_snapshot()`. A snapshot is a copy: it holds no memory, and it is out of date as
//! soon as the allocator is used again. Its length is proportional to the number of blocks, so it is for people and tests,
//! not for every step.

use crate::pools::PoolId;
use crate::stats::SizeClass;
use crate::upstream::StreamId;

/// One segment that was taken from the upstream.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SegmentSnapshot {
    /// Where it begins.
    pub address: u64,
    /// Its size, in bytes.
    pub total_bytes: u64,
    /// The stream that all its blocks belong to.
    pub stream: StreamId,
    /// Whether it serves small or large requests.
    pub class: SizeClass,
    /// The private pool that it belongs to, if any.
    pub pool: Option<PoolId>,
    /// Whether its pages come and go one by one; then this is one of its mapped ranges.
    pub is_expandable: bool,
    /// Its blocks, in address order, without a gap.
    pub blocks: Vec<BlockSnapshot>,
}

/// One block of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BlockSnapshot {
    /// Where it begins.
    pub address: u64,
    /// Its size, in bytes.
    pub size_bytes: u64,
    /// How many of them were asked for; 0 if it is inactive.
    pub requested_bytes: u64,
    /// Who has it.
    pub state: BlockState,
}

/// Who has a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BlockState {
    /// A caller.
    ActiveAllocated,
    /// Nobody, but work on other streams may still use it.
    ActivePendingFree,
    /// Nobody. It serves the next request that it fits.
    Inactive,
}

impl BlockState {
    /// PyTorch's name of the state.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ActiveAllocated => "active_allocated",
            Self::ActivePendingFree => "active_pending_free",
            Self::Inactive => "inactive",
        }
    }
}
