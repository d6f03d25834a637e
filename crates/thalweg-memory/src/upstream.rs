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

macro_rules! identifiers {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u64);

        impl $name {
            /// The identifier with this number. Only the upstream gives the number a meaning.
            pub const fn from_raw(raw: u64) -> Self {
                Self(raw)
            }

            /// The number.
            pub const fn raw(self) -> u64 {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    )*};
}

identifiers! {
    /// A stream: a queue of device work that runs in order. Two streams of one upstream never share a number.
    StreamId;
    /// An event that was recorded on a stream and has not been released.
    EventId;
}

/// Free and total memory of a device, in bytes, as the device itself sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryInfo {
    /// What an allocation could still take.
    pub free_bytes: u64,
    /// All there is.
    pub total_bytes: u64,
}

/// Why an upstream refused.
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

    /// Whether the device has passed `event`. Must not block.
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
    /// Takes a segment of `bytes` (a positive multiple of 2 MiB) and returns its address, a positive multiple of 512. May
    /// block, and must be legal while a stream captures.
    ///
    /// # Errors
    /// [`UpstreamError::OutOfMemory`] when there is no room: then the allocator gives back what it caches and asks again.
    fn allocate(&self, bytes: u64) -> Result<u64, UpstreamError>;

    /// Gives a segment back: `address` and `bytes` as [`allocate`](Self::allocate) had them. May block. All uses by other
    /// streams are complete by then; work on the stream that the segment belongs to may still be running, and the upstream
    /// waits for it or orders itself behind it, as `cudaFree` does.
    ///
    /// # Errors
    /// Any; the segment is then still the allocator's, and is offered again later.
    fn free(&self, address: u64, bytes: u64) -> Result<(), UpstreamError>;

    /// Free and total memory of the device.
    ///
    /// # Errors
    /// Any. In an error message for want of memory the figure is then left out.
    fn memory_info(&self) -> Result<MemoryInfo, UpstreamError>;
}

/// A source of pinned host memory.
pub trait HostUpstream: Events {
    /// Takes `bytes` (a power of two) of page-locked memory and returns its address, which is not 0. May block.
    ///
    /// # Errors
    /// [`UpstreamError::OutOfMemory`] when the host has no more, anything else as it is.
    fn allocate_host(&self, bytes: u64) -> Result<u64, UpstreamError>;

    /// Gives pinned memory back. No device work uses it any more. May block.
    ///
    /// # Errors
    /// Any; the memory is then still the allocator's, and is offered again later.
    fn free_host(&self, address: u64, bytes: u64) -> Result<(), UpstreamError>;
}
