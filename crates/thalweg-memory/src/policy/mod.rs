//! The rules by which sizes are rounded, segments are sized and blocks are split.
//!
//! A [`Policy`] is arithmetic on sizes: it has no state, handles no addresses and calls no other code. It is made from the
//! [`Settings`](crate::Settings) for one arena.
//!
//! | request | class | plain segment | page of an expandable segment |
//! |---|---|---|---|
//! | up to 1 MiB | small | 2 MiB | 2 MiB |
//! | up to 10 MiB | large | 20 MiB | 20 MiB as PyTorch, 8 MiB as Thalweg (`expandable_page_mb`) |
//! | more | large | the next multiple of 2 MiB (`segment_granularity_mb`) | the same |
//!
//! Small and large requests never share a segment, unless one would fail: a small block that lives long would prevent the return
//! of a large segment. Every size is rounded up to a multiple of 512 bytes, and so every address is a multiple of 512 too.
//!
//! The remainder of a block is split off if it has at least 512 bytes (small blocks, and all in expandable segments) or more than
//! 1 MiB (large blocks of plain segments). With `max_split_size` set, blocks of that size or more are *oversize*: they are never
//! split, serve only requests that are oversize themselves, and only if little is wasted.

use crate::ids::SizeClass;
use crate::settings::{Backend, CrossStreamReuse, Policy as PolicySetting, PowerTwoDivisions, Settings};
use crate::trace::history::StackId;

/// The unit of sizes and addresses: the size and the address of every block are multiples of it.
pub const MIN_BLOCK_BYTES: u64 = 512;
/// The size up to which requests are small.
pub(crate) const SMALL_REQUEST_BYTES: u64 = 1 << 20;
/// The size of a segment of small requests, and of their pages.
pub(crate) const SMALL_SEGMENT_BYTES: u64 = 2 << 20;
/// The size from which a request gets a segment of its own size.
const MIN_OWN_SEGMENT_BYTES: u64 = 10 << 20;
/// The size that no request may exceed (64 PiB). No device has addresses for more, the rounded size fits in the bins, and sums of
/// sizes cannot overflow.
pub const MAX_REQUEST_BYTES: u64 = 1 << 56;

/// A request with everything that is known before memory is searched for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) requested_bytes: u64,
    pub(crate) size_bytes: u64,
    pub(crate) class: SizeClass,
    /// The stack of the request, if stacks are recorded.
    pub(crate) stack: Option<StackId>,
    /// Whether the request is for a certain address.
    pub(crate) exact_address: bool,
}

impl Request {
    /// Returns the request, rounded to whole granules only.
    pub(crate) fn unrounded(self) -> Self {
        let size_bytes = self.requested_bytes.next_multiple_of(MIN_BLOCK_BYTES);
        Self { size_bytes, class: size_class(size_bytes), ..self }
    }
}

/// The rules for one arena.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Policy {
    /// The size from which blocks are never split.
    pub(crate) max_split_bytes: u64,
    /// A block is used for an oversize request only if it exceeds the request by less than this (`max_non_split_rounding_mb`).
    pub(crate) max_non_split_rounding_bytes: u64,
    /// The size of a segment for large requests below [`MIN_OWN_SEGMENT_BYTES`].
    pub(crate) large_segment_bytes: u64,
    /// The granularity of segments for larger requests: their size is a multiple of this.
    pub(crate) segment_granularity_bytes: u64,
    /// The settings for rounding to steps between powers of two; `None` if this rounding is off.
    pub(crate) power2: Option<PowerTwoDivisions>,
    /// Whether new segments are expandable.
    pub(crate) expandable: bool,
    /// The page size of expandable segments, by class.
    pub(crate) page_bytes: [u64; 2],
    /// Whether no block is ever split (`MemPool(no_split=True)`).
    pub(crate) no_split: bool,
    /// Whether free pages may move to where an expandable segment needs them.
    pub(crate) stitching: bool,
    /// The amount that may be reserved above the most that was ever active before pages move, as a fraction of the latter.
    pub(crate) stitching_slack: f64,
    /// The rule by which free memory of other streams serves before more is taken.
    pub(crate) cross_stream_reuse: CrossStreamReuse,
    /// The most waits in flight for the reuse of other streams' memory.
    pub(crate) cross_stream_wait_limit: usize,
    /// The number of fitting blocks that must be waiting before the stream is made to wait for the oldest.
    pub(crate) record_use_depth: Option<usize>,
    /// Whether any free block that is safe to use serves before a request fails.
    pub(crate) last_resort: bool,
    /// The fraction of the allowed memory above which old cached segments are returned; 0 for never.
    pub(crate) garbage_collection_threshold: f64,
    /// Whether locks are released while the upstream allocates.
    pub(crate) release_lock_on_cudamalloc: bool,
    /// Whether nothing is cached here: each request uses the driver's own allocator, or takes plain memory.
    pub(crate) direct: bool,
    /// Whether requests use the driver's own stream-ordered allocator.
    pub(crate) stream_ordered: bool,
    /// Whether every allocation checks the progress of all streams, not only its own, and ages the cached blocks of all.
    pub(crate) processes_all: bool,
    /// Whether the last-freed block stays unmerged until the next request.
    pub(crate) keeps_last_freed: bool,
    /// Whether requests that would exceed the memory fraction are refused before anything is tried.
    pub(crate) throw_on_cudamalloc_oom: bool,
}

impl Policy {
    /// Returns the policy for `settings` on an upstream with or without virtual memory.
    pub(crate) fn new(settings: &Settings, has_virtual_memory: bool, no_split: bool) -> Self {
        let expandable = settings.expandable_segments() && has_virtual_memory;
        let depth = usize::try_from(settings.record_use_depth()).unwrap_or(usize::MAX);
        let orders = settings.policy() == PolicySetting::Thalweg || settings.is_set("record_use_depth");
        let divisions = settings.roundup_power2_divisions();
        let page_bytes =
            [SizeClass::Small, SizeClass::Large].map(|class| settings.expandable_page_bytes(class));
        Self {
            max_split_bytes: settings.max_split_size_bytes().unwrap_or(u64::MAX),
            max_non_split_rounding_bytes: settings.max_non_split_rounding_bytes(),
            large_segment_bytes: settings.large_segment_size_bytes(),
            segment_granularity_bytes: settings.segment_granularity_bytes(),
            power2: (divisions != PowerTwoDivisions::default()).then_some(divisions),
            expandable,
            page_bytes,
            no_split,
            stitching: settings.stitching() && expandable,
            stitching_slack: settings.stitching_slack(),
            cross_stream_reuse: settings.cross_stream_reuse(),
            cross_stream_wait_limit: usize::try_from(settings.cross_stream_wait_limit())
                .unwrap_or(usize::MAX),
            record_use_depth: orders.then_some(depth),
            last_resort: settings.last_resort(),
            garbage_collection_threshold: settings.garbage_collection_threshold().unwrap_or(0.0),
            release_lock_on_cudamalloc: settings.release_lock_on_cudamalloc(),
            direct: !settings.is_cached_here(),
            stream_ordered: settings.caching() && settings.backend() == Backend::CudaMallocAsync,
            processes_all: settings.policy() == PolicySetting::PyTorch,
            keeps_last_freed: settings.policy() == PolicySetting::Thalweg && settings.is_cached_here(),
            throw_on_cudamalloc_oom: settings.throw_on_cudamalloc_oom(),
        }
    }

    /// Returns the size of the block for a request.
    #[inline]
    pub(crate) fn round_size(&self, requested_bytes: u64) -> u64 {
        match &self.power2 {
            Some(divisions) => divisions.round_size(requested_bytes),
            None => requested_bytes.max(1).next_multiple_of(MIN_BLOCK_BYTES),
        }
    }

    /// Returns the size of the segment to request from the upstream when no cached block serves a rounded size.
    pub(crate) fn segment_size(&self, size_bytes: u64) -> u64 {
        if size_bytes <= SMALL_REQUEST_BYTES {
            SMALL_SEGMENT_BYTES
        } else if size_bytes < MIN_OWN_SEGMENT_BYTES {
            self.large_segment_bytes
        } else {
            size_bytes.next_multiple_of(self.segment_granularity_bytes)
        }
    }

    /// Returns whether to split a block that serves `size_bytes` and leaves `rest_bytes`.
    #[inline]
    pub(crate) fn should_split(&self, class: SizeClass, size_bytes: u64, rest_bytes: u64) -> bool {
        if self.no_split {
            false
        } else if class == SizeClass::Small || self.expandable {
            rest_bytes >= MIN_BLOCK_BYTES
        } else {
            size_bytes < self.max_split_bytes && rest_bytes > SMALL_REQUEST_BYTES
        }
    }

    /// Returns whether a free block of `block_bytes`, which is large enough, may serve a request of `size_bytes`.
    #[inline]
    pub(crate) fn may_serve(&self, size_bytes: u64, block_bytes: u64) -> bool {
        if size_bytes < self.max_split_bytes {
            block_bytes < self.max_split_bytes
        } else {
            block_bytes < size_bytes.saturating_add(self.max_non_split_rounding_bytes)
        }
    }
}

/// Returns the class of a rounded size.
#[inline]
pub(crate) fn size_class(size_bytes: u64) -> SizeClass {
    if size_bytes <= SMALL_REQUEST_BYTES { SizeClass::Small } else { SizeClass::Large }
}
