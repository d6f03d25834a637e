//! The seam below: where segments and events come from.
//!
//! The allocators know no driver. They speak to an [`Upstream`] (device memory) or a [`HostUpstream`] (pinned host
//! memory), each of which is also a source of [`Events`]. The runtime implements all three over a driver; the
//! [`fake`](crate::fake) implements them with invented addresses, so that everything in this crate is tested and measured
//! without a device.
//!
//! # Contract
//!
//! - A call that fails has changed nothing.
//! - Every method may be called from every thread at any time. The allocator calls with its lock held, so a method must
//!   not call back into the allocator that it serves. (Dropping a block there is allowed: the drop is queued.)
//! - The allocator's state is valid whenever it calls: a method that fails, or even panics, leaves an allocator that
//!   goes on working.
//!
//! This module does not say how memory is got (plain, mapped, stream-ordered): that is the implementer's choice.

use std::error::Error;
use std::fmt;

use crate::ids::StreamId;

thalweg_snapshot::identifiers! {
    /// An event that was recorded on a stream and has not been released.
    EventId;
    /// A piece of physical memory of a [`VirtualMemory`], without an address of its own.
    PageId;
    /// A capture under way. Two captures of a process never share a number.
    CaptureId;
    /// A node of the graph that a capture is building.
    NodeId;
}

/// Free and total memory of a device, in bytes, as the device itself sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryInfo {
    /// The memory that an allocator could still take.
    pub free_bytes: u64,
    /// All there is.
    pub total_bytes: u64,
}

/// The reason why an upstream refused.
#[derive(Debug)]
#[non_exhaustive]
pub enum UpstreamError {
    /// There is no room. The allocator gives back what it can spare and asks again.
    OutOfMemory,
    /// Anything else. It is handed to the caller as it is: [`AllocationError::source`](crate::AllocationError) leads to
    /// it, and it can be downcast there.
    Other(Box<dyn Error + Send + Sync>),
}

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory => f.write_str("the upstream has no memory left"),
            Self::Other(error) => error.fmt(f),
        }
    }
}

impl Error for UpstreamError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::OutOfMemory => None,
            Self::Other(error) => Some(&**error),
        }
    }
}

/// Markers in streams, by which the host learns how far the device has come.
///
/// None of these is called while a capture is under way (see
/// [`DeviceAllocator::begin_allocate_to_pool`](crate::DeviceAllocator::begin_allocate_to_pool)), except
/// [`release_event`](Self::release_event).
pub trait Events: Send + Sync {
    /// Records an event behind all work that `stream` has been given so far. Must not block.
    ///
    /// # Errors
    /// Any. The allocator keeps the block and tries again at a later call.
    fn record_event(&self, stream: StreamId) -> Result<EventId, UpstreamError>;

    /// Returns whether the device has passed `event`. Must not block.
    ///
    /// # Errors
    /// Any; it reads as "not yet".
    fn query_event(&self, event: EventId) -> Result<bool, UpstreamError>;

    /// *Blocks* the host until the device has passed `event`.
    ///
    /// # Errors
    /// Those of the work before the event, and the upstream's own.
    fn synchronize_event(&self, event: EventId) -> Result<(), UpstreamError>;

    /// Makes all later work of `stream` wait for `event`, on the device. Must not block.
    ///
    /// # Errors
    /// Any; the order is then not established.
    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<(), UpstreamError>;

    /// Gives `event` back. It is called once for each event, and the upstream may reuse its number from then on.
    fn release_event(&self, event: EventId);
}

/// A source of device memory.
pub trait Upstream: Events {
    /// Returns whether the stream may end at any moment without notice, since its owner is another library. Then it is named only
    /// in calls that the caller of the allocator has named it in: its memory does not go to other streams behind an event, but
    /// stays with it, or goes back behind [`VirtualMemory::synchronize_stream`], which has to wait for all of the device instead
    /// of that stream.
    fn may_end(&self, _stream: StreamId) -> bool {
        false
    }

    /// Takes a segment of `bytes` (a positive multiple of 512) and returns its address, a positive multiple of 512. The first
    /// work to use it will be on `stream`. May block, and must be allowed while a stream captures.
    ///
    /// # Errors
    /// [`UpstreamError::OutOfMemory`] when there is no room: then the allocator gives back what it caches and asks again.
    fn allocate(&self, bytes: u64, stream: StreamId) -> Result<u64, UpstreamError>;

    /// Gives a segment back: `address`, `bytes` and `stream` as [`allocate`](Self::allocate) had them. May block. All uses
    /// by other streams are complete by then; work on the stream that the segment belongs to may still be running, and the
    /// upstream waits for it or orders itself behind it, as `cudaFree` does.
    ///
    /// # Errors
    /// Any; the segment is then still the allocator's, and is offered again later.
    fn free(&self, address: u64, bytes: u64, stream: StreamId) -> Result<(), UpstreamError>;

    /// Returns the free and total memory of the device.
    ///
    /// # Errors
    /// Any. An error message for lack of memory then leaves the figure out.
    fn memory_info(&self) -> Result<MemoryInfo, UpstreamError>;

    /// Returns the means to reserve addresses apart from memory, if the device can do that. Segments can then grow, and pages can move.
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        None
    }

    /// Returns the driver's own stream-ordered allocator (`cudaMallocAsync`), if it has one.
    fn stream_ordered(&self) -> Option<&dyn StreamOrdered> {
        None
    }

    /// Returns what captures are building, if the upstream can say. Without it, memory that other streams used is never reused within
    /// the capture that freed it.
    fn captures(&self) -> Option<&dyn Captures> {
        None
    }

    /// Returns the source of memory that several processes share, if the upstream has one.
    fn sharing(&self) -> Option<&dyn MemorySharing> {
        None
    }
}

/// The place where the segments of one private pool come from, if not from the allocator's upstream: `ncclMemAlloc`, say, or a pluggable
/// allocator of the user. Events still come from the upstream.
pub trait SegmentSource: Send + Sync {
    /// Allocates a segment, as [`Upstream::allocate`] does.
    ///
    /// # Errors
    /// As there.
    fn allocate(&self, bytes: u64, stream: StreamId) -> Result<u64, UpstreamError>;

    /// Frees a segment, as [`Upstream::free`] does.
    ///
    /// # Errors
    /// As there.
    fn free(&self, address: u64, bytes: u64, stream: StreamId) -> Result<(), UpstreamError>;
}

/// Address ranges and physical pages that are put together explicitly (`cuMemAddressReserve`, `cuMemCreate`, `cuMemMap`).
pub trait VirtualMemory: Send + Sync {
    /// Returns the granularity, of which all sizes and offsets below are multiples: 2 MiB on every GPU so far.
    fn granularity_bytes(&self) -> u64;

    /// Reserves a range of addresses with no memory behind it.
    ///
    /// # Errors
    /// [`UpstreamError::OutOfMemory`] when there is no such range.
    fn reserve_addresses(&self, bytes: u64) -> Result<u64, UpstreamError>;

    /// Gives a range back; nothing is mapped in it.
    ///
    /// # Errors
    /// Any; the range is then still reserved.
    fn free_addresses(&self, address: u64, bytes: u64) -> Result<(), UpstreamError>;

    /// Creates a page of physical memory.
    ///
    /// # Errors
    /// [`UpstreamError::OutOfMemory`] when there is no room.
    fn create_page(&self, bytes: u64) -> Result<PageId, UpstreamError>;

    /// Gives a page back; it is mapped nowhere.
    ///
    /// # Errors
    /// Any; the page is then still there.
    fn destroy_page(&self, page: PageId) -> Result<(), UpstreamError>;

    /// Maps pages of `page_bytes` each side by side from `address` on, and lets the device (and its peers) touch them. A page
    /// may be mapped at several addresses at a time. Must not block.
    ///
    /// # Errors
    /// Any; then none of them is mapped there.
    fn map(&self, address: u64, page_bytes: u64, pages: &[PageId]) -> Result<(), UpstreamError>;

    /// Unmaps whole pages. No work in flight touches them *at this address*. Must not block.
    ///
    /// # Errors
    /// Any; then all of them are still mapped.
    fn unmap(&self, address: u64, bytes: u64) -> Result<(), UpstreamError>;

    /// *Blocks* until all work that `stream` was given so far is done, so that pages it used can be unmapped. It is not called
    /// for a stream that [may end](Upstream::may_end) while a capture is under way.
    ///
    /// # Errors
    /// Those of the work, and the upstream's own.
    fn synchronize_stream(&self, stream: StreamId) -> Result<(), UpstreamError>;
}

/// The memory that a driver's pool holds, in use or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reserved {
    /// The bytes that it holds now.
    pub current_bytes: u64,
    /// The most since the pool was made, or since its peak was reset.
    pub peak_bytes: u64,
}

/// A driver's allocator whose memory comes and goes in stream order.
pub trait StreamOrdered: Send + Sync {
    /// Allocates `bytes` for work that comes later on `stream`. Must not block.
    ///
    /// # Errors
    /// [`UpstreamError::OutOfMemory`] when there is no room.
    fn allocate_async(&self, bytes: u64, stream: StreamId) -> Result<u64, UpstreamError>;

    /// Frees once earlier work on `stream` is done. Must not block.
    ///
    /// # Errors
    /// Any; the memory is then still allocated.
    fn free_async(&self, address: u64, stream: StreamId) -> Result<(), UpstreamError>;

    /// Gives unused memory back to the device, down to `keep_bytes`. May block.
    ///
    /// # Errors
    /// Any.
    fn trim(&self, keep_bytes: u64) -> Result<(), UpstreamError>;

    /// Returns what the driver's pool holds, in use or not.
    ///
    /// # Errors
    /// Any.
    fn reserved(&self) -> Result<Reserved, UpstreamError>;

    /// Sets the peak of what the driver's pool holds to what it holds now.
    ///
    /// # Errors
    /// Any.
    fn reset_reserved_peak(&self) -> Result<(), UpstreamError>;

    /// *Blocks* until the device is idle.
    ///
    /// # Errors
    /// Those of the work, and the upstream's own.
    fn synchronize(&self) -> Result<(), UpstreamError>;
}

/// The graphs that captures are building, as far as order is concerned. Nothing here waits or changes a graph.
pub trait Captures: Send + Sync {
    /// Returns the capture that `stream` is part of, if any.
    ///
    /// # Errors
    /// Any; the stream then counts as capturing something unknown, within which nothing is reused early.
    fn capture_of(&self, stream: StreamId) -> Result<Option<CaptureId>, UpstreamError>;

    /// Returns the nodes that the next command on the capturing `stream` will depend on.
    ///
    /// # Errors
    /// Any.
    fn terminals(&self, stream: StreamId) -> Result<Vec<NodeId>, UpstreamError>;

    /// Returns the nodes that `node` depends on directly. The graph it belongs to is still being captured, on `stream` among others.
    ///
    /// # Errors
    /// Any.
    fn predecessors(&self, stream: StreamId, node: NodeId) -> Result<Vec<NodeId>, UpstreamError>;
}

/// The way in which pinned host memory is got.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HostMethod {
    /// The driver allocates it (`cudaHostAlloc`).
    Allocate,
    /// Ordinary memory is allocated, its pages are touched by `threads` threads, and it is registered with the driver
    /// (`cudaHostRegister`).
    Register {
        /// From 1 to 128.
        threads: u32,
    },
}

/// A source of pinned host memory.
///
/// Pinning and unpinning are called with no lock of the allocator held, but for the reserve segment's. A block whose event
/// cannot be asked for, or cannot be recorded when the block is freed, is never used again and stays pinned.
pub trait HostUpstream: Events {
    /// Takes `bytes` (more than 0) of page-locked memory and returns its address, which is not 0. May block, and must be allowed
    /// while a stream captures. An upstream that knows one method only may use that.
    ///
    /// # Errors
    /// [`UpstreamError::OutOfMemory`] when the host has no more, anything else as it is.
    fn allocate_host(&self, bytes: u64, method: HostMethod) -> Result<u64, UpstreamError>;

    /// Gives pinned memory back: `address`, `bytes` and `method` as [`allocate_host`](Self::allocate_host) had them. No
    /// device work uses it any more. May block.
    ///
    /// # Errors
    /// Any; the memory is then still the allocator's, and is offered again later.
    fn free_host(&self, address: u64, bytes: u64, method: HostMethod) -> Result<(), UpstreamError>;
}

/// A page as something that another process can be given.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum PageHandle {
    /// A file descriptor of the process that exported it.
    Descriptor(i32),
    /// Bytes that mean the same in all processes of the fabric.
    Fabric(Box<[u8; 64]>),
}

/// Memory that several processes have. What is exported must stay as long as another process has it open.
pub trait MemorySharing: Send + Sync {
    /// Returns what another process needs to open what [`Upstream::allocate`] gave: `base_address` is its first address.
    ///
    /// # Errors
    /// Any: memory of some kinds cannot be shared.
    fn export_allocation(&self, base_address: u64) -> Result<[u8; 64], UpstreamError>;

    /// Opens what another process exported: the address of its beginning here. May block.
    ///
    /// # Errors
    /// Any: the other process may be gone, or be this one.
    fn import_allocation(&self, handle: &[u8; 64]) -> Result<u64, UpstreamError>;

    /// Closes what [`import_allocation`](Self::import_allocation) opened, once for each time. No work in flight touches it.
    /// May block.
    ///
    /// # Errors
    /// Any; it is then still open.
    fn close_allocation(&self, address: u64) -> Result<(), UpstreamError>;

    /// Returns a page of [`VirtualMemory`] for another process. A file descriptor stays the upstream's: it is the same each time, and
    /// open until the page is destroyed.
    ///
    /// # Errors
    /// Any.
    fn export_page(&self, page: PageId) -> Result<PageHandle, UpstreamError>;

    /// Returns a number that is another whenever a file descriptor that was exported has been closed, so that its number may be
    /// another's since; and another in every process.
    fn serial(&self) -> u64 {
        0
    }

    /// Returns a page of `bytes` that `process` exported, to be mapped as one's own, and given back by
    /// [`VirtualMemory::destroy_page`].
    ///
    /// # Errors
    /// Any: the process may be gone, or not let this one have its file descriptors.
    fn import_page(&self, process: u32, bytes: u64, handle: &PageHandle) -> Result<PageId, UpstreamError>;
}
