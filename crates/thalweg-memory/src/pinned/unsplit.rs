//! A range of pinned memory, and a request for one.

use super::rounding::Request;
use crate::trace::history::StackId;
use crate::upstream::HostMethod;

/// The source of a block, which determines how it is freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// The upstream, pinned in this way.
    Upstream(HostMethod),
    /// The reserve, which is freed in one piece.
    Reserve,
}

/// A range of pinned memory. It is never split or merged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PinnedBlock {
    pub(crate) address: u64,
    pub(crate) size_bytes: u64,
    /// The size that the block's last holder requested.
    pub(crate) requested_bytes: u64,
    pub(crate) source: Source,
}

/// A request on its way through the buckets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) request: Request,
    /// The stack of the request, if stacks are recorded.
    pub(crate) stack: Option<StackId>,
}
