//! The interface to the layer below: the source of segments and events.
//!
//! The allocators do not depend on a driver. They call an [`Upstream`] (device memory) or a [`HostUpstream`] (pinned host
//! memory), each of which is also a source of [`Events`]. The runtime implements all three over a driver; the
//! [`fake`](crate::fake) implements them with invented addresses, so that everything in this crate is tested and measured without
//! a device.
//!
//! # Contract
//!
//! - A call that fails has changed nothing.
//! - Every method may be called from every thread at any time. The allocator calls with its lock held, so a method must not call
//!   back into the allocator that it serves. (Dropping a block there is allowed: the drop is queued.)
//! - The allocator's state is valid whenever it calls: if a method fails, or even panics, the allocator stays usable.
//!
//! How memory is obtained (plain, mapped, stream-ordered) is the implementer's choice.

use std::error::Error;
use std::fmt;

use crate::ids::StreamId;

thalweg_snapshot::identifiers! {
    /// An event that was recorded on a stream and has not been released.
    EventId;
    /// A piece of physical memory of a [`VirtualMemory`], without an address of its own.
    PageId;
    /// A capture under way. Two captures of a process never have the same number.
    CaptureId;
    /// A node of the graph that a capture is building.
    NodeId;
}

/// Free and total memory of a device, in bytes, as the device itself sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryInfo {
    /// The memory that an allocator could still take.
    pub free_bytes: u64,
    /// The total memory.
    pub total_bytes: u64,
}

/// The reason why a call of an upstream failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum UpstreamError {
    /// There is no room. The allocator returns the memory that it can release and calls again.
    OutOfMemory,
    /// Any other error. It is passed to the caller unchanged: [`AllocationError::source`](crate::AllocationError) leads to it,
    /// and it can be downcast there.
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

/// Markers in streams, by which the host learns the progress of the device.
///
/// None of these methods is called while a capture is under way (see
/// [`DeviceAllocator::begin_allocate_to_pool`](crate::DeviceAllocator::begin_allocate_to_pool)), except
/// [`release_event`](Self::release_event).
pub trait Events: Send + Sync {
    /// Records an event after all work that `stream` has been given so far. Must not block.
    ///
    /// # Errors
    /// Any error. The allocator keeps the block and tries again at a later call.
    fn record_event(&self, stream: StreamId) -> Result<EventId, UpstreamError>;

    /// Returns whether the device has passed `event`. Must not block.
    ///
    /// # Errors
    /// Any error; it is treated as "not yet".
    fn query_event(&self, event: EventId) -> Result<bool, UpstreamError>;

    /// *Blocks* the host until the device has passed `event`.
    fn synchronize_event(&self, event: EventId) -> Result<(), UpstreamError>;

    /// Makes all later work of `stream` wait for `event`, on the device. Must not block.
    ///
    /// # Errors
    /// Any error; the order is then not established.
    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<(), UpstreamError>;

    /// Releases `event`. Called once for each event; the upstream may reuse its number from then on.
    fn release_event(&self, event: EventId);
}

/// A source of device memory.
pub trait Upstream: Events {
    /// Returns whether the stream may end at any moment without notice, since its owner is another library. Such a stream is only
    /// used in calls in which the caller of the allocator has named it: its memory does not move to other streams after an event,
    /// but stays with it, or is returned after [`VirtualMemory::synchronize_stream`], which then has to wait for the entire
    /// device instead of that stream.
    fn may_end(&self, _stream: StreamId) -> bool {
        false
    }

    /// Takes a segment of `bytes` (a positive multiple of 512) and returns its address, a positive multiple of 512. The first
    /// work to use it will be on `stream`. May block, and must be allowed while a stream captures.
    ///
    /// # Errors
    /// [`UpstreamError::OutOfMemory`] if there is no room: then the allocator returns its cached memory and calls again.
    fn allocate(&self, bytes: u64, stream: StreamId) -> Result<u64, UpstreamError>;

    /// Frees a segment: `address`, `bytes` and `stream` are those of [`allocate`](Self::allocate). May block. All uses by other
    /// streams are complete by then; work on the segment's own stream may still be running, and the upstream waits for it or
    /// orders the free after it, as `cudaFree` does.
    ///
    /// # Errors
    /// Any error; the segment then still belongs to the allocator, which tries to free it again later.
    fn free(&self, address: u64, bytes: u64, stream: StreamId) -> Result<(), UpstreamError>;

    /// Returns the free and total memory of the device.
    ///
    /// # Errors
    /// Any error. An out-of-memory message then leaves the figure out.
    fn memory_info(&self) -> Result<MemoryInfo, UpstreamError>;

    /// Returns the functions for reserving addresses separately from memory, if the device supports this. Segments can then grow,
    /// and pages can move.
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        None
    }

    /// Returns the driver's own stream-ordered allocator (`cudaMallocAsync`), if it has one.
    fn stream_ordered(&self) -> Option<&dyn StreamOrdered> {
        None
    }

    /// Returns the interface for reading the graphs that captures are building, if the upstream has one. Without it, memory that
    /// other streams used is never reused within the capture that freed it.
    fn captures(&self) -> Option<&dyn Captures> {
        None
    }

    /// Returns the interface for sharing memory between processes, if the upstream has one.
    fn sharing(&self) -> Option<&dyn MemorySharing> {
        None
    }
}

/// A source of the segments of one private pool, in place of the allocator's upstream: for example `ncclMemAlloc`, or a pluggable
/// allocator of the user. Events still come from the upstream.
pub trait SegmentSource: Send + Sync {
    /// Allocates a segment, as [`Upstream::allocate`] does.
    fn allocate(&self, bytes: u64, stream: StreamId) -> Result<u64, UpstreamError>;

    /// Frees a segment, as [`Upstream::free`] does.
    fn free(&self, address: u64, bytes: u64, stream: StreamId) -> Result<(), UpstreamError>;
}

/// Functions for address ranges and physical pages that are combined explicitly (`cuMemAddressReserve`, `cuMemCreate`,
/// `cuMemMap`).
pub trait VirtualMemory: Send + Sync {
    /// Returns the granularity: all sizes and offsets below are multiples of it. It is 2 MiB on every GPU so far.
    fn granularity_bytes(&self) -> u64;

    /// Reserves a range of addresses without memory.
    ///
    /// # Errors
    /// [`UpstreamError::OutOfMemory`] if there is no such range.
    fn reserve_addresses(&self, bytes: u64) -> Result<u64, UpstreamError>;

    /// Releases a range of addresses, in which nothing is mapped.
    ///
    /// # Errors
    /// Whatever the driver returns. The range stays reserved.
    fn free_addresses(&self, address: u64, bytes: u64) -> Result<(), UpstreamError>;

    /// Creates a page of physical memory.
    ///
    /// # Errors
    /// [`UpstreamError::OutOfMemory`] if there is no room.
    fn create_page(&self, bytes: u64) -> Result<PageId, UpstreamError>;

    /// Destroys a page that is not mapped anywhere.
    ///
    /// # Errors
    /// Any error; the page then still exists.
    fn destroy_page(&self, page: PageId) -> Result<(), UpstreamError>;

    /// Maps pages of `page_bytes` each side by side from `address` on, and lets the device (and its peers) access them. A page
    /// may be mapped at several addresses at a time. Must not block.
    ///
    /// # Errors
    /// Any error; then none of the pages is mapped there.
    fn map(&self, address: u64, page_bytes: u64, pages: &[PageId]) -> Result<(), UpstreamError>;

    /// Unmaps whole pages. No work in flight touches them *at this address*. Must not block.
    ///
    /// # Errors
    /// Any error; then all pages are still mapped.
    fn unmap(&self, address: u64, bytes: u64) -> Result<(), UpstreamError>;

    /// *Blocks* until all work that `stream` was given so far is done, so that pages that it used can be unmapped. Not called for
    /// a stream that [may end](Upstream::may_end) while a capture is under way.
    fn synchronize_stream(&self, stream: StreamId) -> Result<(), UpstreamError>;
}

/// The memory that a driver's pool has, in use or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reserved {
    /// The present size in bytes.
    pub current_bytes: u64,
    /// The greatest size since the pool was created, or since its peak was reset.
    pub peak_bytes: u64,
}

/// A driver's allocator that allocates and frees memory in stream order.
pub trait StreamOrdered: Send + Sync {
    /// Allocates `bytes` for later work on `stream`. Must not block.
    ///
    /// # Errors
    /// [`UpstreamError::OutOfMemory`] if there is no room.
    fn allocate_async(&self, bytes: u64, stream: StreamId) -> Result<u64, UpstreamError>;

    /// Frees once earlier work on `stream` is done. Must not block.
    ///
    /// # Errors
    /// Any error; the memory is then still allocated.
    fn free_async(&self, address: u64, stream: StreamId) -> Result<(), UpstreamError>;

    /// Returns unused memory to the device, down to `keep_bytes`. May block.
    fn trim(&self, keep_bytes: u64) -> Result<(), UpstreamError>;

    /// Returns the size of the driver's pool, in use or not.
    fn reserved(&self) -> Result<Reserved, UpstreamError>;

    /// Sets the peak of the driver's pool to its present size.
    fn reset_reserved_peak(&self) -> Result<(), UpstreamError>;

    /// *Blocks* until the device is idle.
    fn synchronize(&self) -> Result<(), UpstreamError>;
}

/// The graphs that captures are building, as far as order is concerned. No method waits or changes a graph.
pub trait Captures: Send + Sync {
    /// Returns the capture that `stream` is part of, if any.
    ///
    /// # Errors
    /// Any error; the stream then counts as part of an unknown capture, within which nothing is reused early.
    fn capture_of(&self, stream: StreamId) -> Result<Option<CaptureId>, UpstreamError>;

    /// Returns the nodes that the next command on the capturing `stream` will depend on.
    fn terminals(&self, stream: StreamId) -> Result<Vec<NodeId>, UpstreamError>;

    /// Returns the nodes that `node` depends on directly. Its graph is still being captured, on `stream` among others.
    fn predecessors(&self, stream: StreamId, node: NodeId) -> Result<Vec<NodeId>, UpstreamError>;
}

/// The way in which pinned host memory is obtained.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HostMethod {
    /// The driver allocates it (`cudaHostAlloc`).
    Allocate,
    /// Ordinary memory is allocated, its pages are touched by `threads` threads, and it is registered with the driver
    /// (`cudaHostRegister`).
    Register {
        /// The number of threads, from 1 to 128.
        threads: u32,
    },
}

/// A source of pinned host memory.
///
/// Pinning and unpinning are called with no lock of the allocator held, except for the reserve segment. A block whose event
/// cannot be queried, or cannot be recorded when the block is freed, is never used again and stays pinned.
pub trait HostUpstream: Events {
    /// Allocates `bytes` (more than 0) of page-locked memory and returns its address, which is not 0. May block, and must be
    /// allowed while a stream captures. An upstream that has only one method may use that.
    ///
    /// # Errors
    /// [`UpstreamError::OutOfMemory`] if the host has no more memory, otherwise any error.
    fn allocate_host(&self, bytes: u64, method: HostMethod) -> Result<u64, UpstreamError>;

    /// Frees pinned memory: `address`, `bytes` and `method` are those of [`allocate_host`](Self::allocate_host). No device work
    /// uses it any more. May block.
    ///
    /// # Errors
    /// Any error; the memory then still belongs to the allocator, which tries to free it again later.
    fn free_host(&self, address: u64, bytes: u64, method: HostMethod) -> Result<(), UpstreamError>;
}

/// The handle of a page that can be sent to another process.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum PageHandle {
    /// A file descriptor of the process that exported it.
    Descriptor(i32),
    /// Bytes that mean the same in all processes of the fabric.
    Fabric(Box<[u8; 64]>),
}

/// Functions for memory that several processes share. Exported memory must stay allocated as long as another process has it open.
pub trait MemorySharing: Send + Sync {
    /// Returns the handle with which another process can open memory of [`Upstream::allocate`]; `base_address` is its first
    /// address.
    ///
    /// # Errors
    /// Any error: memory of some kinds cannot be shared.
    fn export_allocation(&self, base_address: u64) -> Result<[u8; 64], UpstreamError>;

    /// Opens memory that another process exported, and returns its address in this process. May block.
    ///
    /// # Errors
    /// Any error: the other process may have ended, or may be this one.
    fn import_allocation(&self, handle: &[u8; 64]) -> Result<u64, UpstreamError>;

    /// Closes memory that [`import_allocation`](Self::import_allocation) opened, once per call of that. No work in flight touches
    /// it. May block.
    ///
    /// # Errors
    /// Any error; the memory is then still open.
    fn close_allocation(&self, address: u64) -> Result<(), UpstreamError>;

    /// Exports a page of [`VirtualMemory`] for another process. A file descriptor belongs to the upstream: it is the same at each
    /// call, and open until the page is destroyed.
    fn export_page(&self, page: PageId) -> Result<PageHandle, UpstreamError>;

    /// Returns a number that changes whenever an exported file descriptor has been closed, since its number may then be reused;
    /// and that differs between processes.
    fn serial(&self) -> u64 {
        0
    }

    /// Imports a page of `bytes` that `process` exported. It is mapped like the process's own pages, and destroyed with
    /// [`VirtualMemory::destroy_page`].
    ///
    /// # Errors
    /// Any error: the process may have ended, or may deny access to its file descriptors.
    fn import_page(&self, process: u32, bytes: u64, handle: &PageHandle) -> Result<PageId, UpstreamError>;
}
