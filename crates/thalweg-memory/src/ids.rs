//! Names of the objects that the allocators handle: streams, pools, arenas; and the filter that directs requests to a pool.
//!
//! Every other module of the crate may use this one; it uses none of them.

use std::fmt;
use std::sync::Arc;

pub use thalweg_snapshot::{PoolId, SizeClass, StreamId};

/// The requests that a private pool serves while allocations are directed to it.
#[derive(Clone)]
pub enum StreamFilter {
    /// The requests on every stream. Memory that unrelated work allocates meanwhile is overwritten by the next replay, if the
    /// capture had used it before: choose this only if there is no such work.
    All,
    /// The requests on one stream.
    Stream(StreamId),
    /// The requests on the streams for which the function returns `true`, for example the streams that a capture has spread to.
    /// The function is called with the allocator's lock held and must not call the allocator.
    Matching(Arc<dyn Fn(StreamId) -> bool + Send + Sync>),
}

impl StreamFilter {
    pub(crate) fn matches(&self, stream: StreamId) -> bool {
        match self {
            Self::All => true,
            Self::Stream(one) => *one == stream,
            Self::Matching(matches) => matches(stream),
        }
    }
}

impl fmt::Debug for StreamFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("All"),
            Self::Stream(stream) => f.debug_tuple("Stream").field(stream).finish(),
            Self::Matching(_) => f.write_str("Matching(..)"),
        }
    }
}

/// The owner of memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum Owner {
    Shared,
    Private(PoolId),
}

impl Owner {
    pub(crate) fn pool(self) -> Option<PoolId> {
        match self {
            Self::Shared => None,
            Self::Private(id) => Some(id),
        }
    }
}

/// The key of an arena: the owner of its memory, and its stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ArenaKey {
    pub(crate) stream: StreamId,
    pub(crate) owner: Owner,
}

impl ArenaKey {
    /// Returns the name of the pool in snapshots.
    pub(crate) fn pool_id(self) -> (u64, u64) {
        (0, self.owner.pool().map_or(0, PoolId::raw))
    }
}

/// The kind of a segment; all its blocks have the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentKind {
    pub(crate) class: SizeClass,
    /// Whether the segment's pages are mapped and unmapped one by one.
    pub(crate) is_expandable: bool,
    /// The rank of the segment among those of a pool whose addresses have no meaning; 0 elsewhere.
    pub(crate) registration: u32,
}
