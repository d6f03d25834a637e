//! One error type for every failure of an allocator.
//!
//! [`AllocationError`] is opaque: its predicates classify it, its [`figures`](AllocationError::figures) describe the memory at
//! that time, and its source is the upstream's error.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

use crate::ids::PoolId;
use crate::settings::SettingsError;
use crate::upstream::{MemoryInfo, UpstreamError};

/// The reason why an allocator call failed.
#[derive(Debug)]
pub struct AllocationError(Box<Kind>);

#[derive(Debug, Error)]
pub(crate) enum Kind {
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),
    // The message of an upstream's error is part of ours, so this error's source is the source of the upstream's error.
    #[error("{call}: {error}")]
    Upstream { call: &'static str, error: UpstreamError },
    #[error(
        "{0:?} does not exist, or was released as often as it was created and retained; create one with create_pool, or \
         retain it for as long as it is used"
    )]
    UnknownPool(PoolId),
    #[error("allocations go to {0:?} already; call end_allocate_to_pool before beginning again")]
    PoolInUse(PoolId),
    #[error("no allocations go to {0:?}; end_allocate_to_pool must follow one begin_allocate_to_pool")]
    PoolNotInUse(PoolId),
    #[error(
        "{call} is not possible while a capture is under way; call it before the capture begins or after it ends"
    )]
    Capturing { call: &'static str },
    #[error(
        "the allocator was called by a function that it calls itself with its locks held (an observer of events, a \
         callback for lack of memory, a source of segments); take note there, and call it afterwards"
    )]
    Reentered,
    #[error("{what} cannot be changed once there is an allocator; set it before the first allocation")]
    Fixed { what: &'static str },
    #[error("{0}")]
    Settings(SettingsError),
    #[error(
        "{pool:?} cannot be checkpointed, or put back to this checkpoint: {problem}; nothing was changed"
    )]
    Checkpoint { pool: PoolId, problem: String },
    #[error("the memory cannot be shared with another process: {0}; ask is_exportable before")]
    Sharing(&'static str),
    #[error(
        "{requested_bytes} bytes could not be allocated at the exact address {address:#x} ({}): {reason}",
        .problem.name()
    )]
    Address { address: u64, requested_bytes: u64, problem: AddressProblem, reason: String },
}

/// The reason why an allocation at an address failed ([`DeviceAllocator::allocate_at`](crate::DeviceAllocator::allocate_at)).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum AddressProblem {
    /// The address is not a multiple of 512.
    Misaligned,
    /// Part of the range is not free: it is taken, or work on other streams still uses it, or the free memory ends before the
    /// range does.
    Occupied,
    /// No cached memory is at this address on this stream and in this pool.
    Unknown,
}

impl AddressProblem {
    /// Returns the problem as one word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Misaligned => "misaligned",
            Self::Occupied => "occupied",
            Self::Unknown => "unknown address",
        }
    }
}

/// The figures of a request that could not be served. Sizes are in bytes.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// The owner of the memory, as text: `GPU 0`.
    pub label: String,
    /// The number of the device; -1 for the host.
    pub device_number: i32,
    /// The size that was requested.
    pub requested_bytes: u64,
    /// The size of the segment that would have been taken from the upstream.
    pub segment_bytes: u64,
    /// Memory held by callers.
    pub allocated_bytes: u64,
    /// Memory taken from the upstream.
    pub reserved_bytes: u64,
    /// Memory that was freed, but is held until work on other streams is done, or a capture is over.
    pub pending_bytes: u64,
    /// Memory of private pools (graphs) that callers hold, or that is pending.
    pub private_pool_bytes: u64,
    /// Free memory of private pools, which only serves their own requests.
    pub private_pool_cached_bytes: u64,
    /// Free memory of the shared pool on streams other than the request's.
    pub other_streams_cached_bytes: u64,
    /// The largest free block, wherever it is.
    pub largest_free_block_bytes: u64,
    /// The most that may be taken from the upstream, if there is a limit.
    pub allowed_bytes: Option<u64>,
    /// The device's figures, if the upstream could report them.
    pub device: Option<MemoryInfo>,
    /// Whether a capture was under way, during which no cached memory is returned to the upstream.
    pub capturing: bool,
    /// Whether the request was refused only because of the memory fraction, without an attempt to make room
    /// (`throw_on_cudamalloc_oom`).
    pub rejected: bool,
    /// The single change that would have let this request succeed.
    pub advice: Option<Advice>,
    /// The file of the requested snapshot, or the reason why it was not written.
    pub snapshot: Option<Result<PathBuf, String>>,
}

impl OutOfMemory {
    /// Returns the size of the cached memory: taken from the upstream, and held by no caller.
    pub fn cached_bytes(&self) -> u64 {
        self.reserved_bytes.saturating_sub(self.allocated_bytes + self.pending_bytes)
    }

    /// Returns the memory of the device that is used outside this allocator: by other processes, other libraries, and the driver
    /// itself.
    pub fn outside_bytes(&self) -> Option<u64> {
        let MemoryInfo { free_bytes, total_bytes } = self.device?;
        Some(total_bytes.saturating_sub(free_bytes).saturating_sub(self.reserved_bytes))
    }
}

impl AllocationError {
    pub(crate) fn upstream(call: &'static str, error: UpstreamError) -> Self {
        Kind::Upstream { call, error }.into()
    }

    /// Returns whether there was no room: freeing memory and trying again may help.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(*self.0, Kind::OutOfMemory(_))
    }

    /// Returns whether an argument was invalid: a pool that does not exist or is in the wrong state, or a value out of its range.
    /// Also `true` if the caller was in a function that the allocator calls with its locks held.
    pub fn is_invalid_argument(&self) -> bool {
        matches!(
            *self.0,
            Kind::UnknownPool(_)
                | Kind::PoolInUse(_)
                | Kind::PoolNotInUse(_)
                | Kind::Reentered
                | Kind::Fixed { .. }
                | Kind::Settings(_)
                | Kind::Checkpoint { .. }
                | Kind::Sharing(_)
                | Kind::Address { .. }
        )
    }

    /// Returns whether the call is not possible while a capture is under way.
    pub fn is_capture(&self) -> bool {
        matches!(*self.0, Kind::Capturing { .. })
    }

    /// Returns whether the upstream failed for a different reason than lack of memory. [`into_upstream`](Self::into_upstream) returns
    /// its error.
    pub fn is_upstream(&self) -> bool {
        matches!(*self.0, Kind::Upstream { .. })
    }

    /// Returns the reason why an allocation at an address failed.
    pub fn address_problem(&self) -> Option<AddressProblem> {
        match *self.0 {
            Kind::Address { problem, .. } => Some(problem),
            _ => None,
        }
    }

    /// Returns the figures of an out-of-memory error.
    pub fn figures(&self) -> Option<&OutOfMemory> {
        match &*self.0 {
            Kind::OutOfMemory(figures) => Some(figures),
            _ => None,
        }
    }

    /// Returns the figures of an out-of-memory error for modification.
    pub(crate) fn figures_mut(&mut self) -> Option<&mut OutOfMemory> {
        match &mut *self.0 {
            Kind::OutOfMemory(figures) => Some(figures),
            _ => None,
        }
    }

    /// Returns the upstream's own error, unchanged.
    ///
    /// # Errors
    /// Returns this error, if it is not one of the upstream.
    pub fn into_upstream(self) -> Result<UpstreamError, Self> {
        match *self.0 {
            Kind::Upstream { error, .. } => Ok(error),
            other => Err(other.into()),
        }
    }
}

impl From<SettingsError> for AllocationError {
    fn from(error: SettingsError) -> Self {
        Kind::Settings(error).into()
    }
}

impl From<Kind> for AllocationError {
    fn from(kind: Kind) -> Self {
        Self(Box::new(kind))
    }
}

impl fmt::Display for AllocationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for AllocationError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &*self.0 {
            Kind::Upstream { error: UpstreamError::Other(error), .. } => Some(&**error),
            _ => None,
        }
    }
}

impl fmt::Display for OutOfMemory {
    /// Writes PyTorch's parts in PyTorch's order, then ours, then the advice.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { label, .. } = self;
        write!(f, "out of memory. Tried to allocate {}. ", Size(self.requested_bytes))?;
        if self.requested_bytes > 1 << 60 {
            f.write_str("Tried to allocate more than 1EB memory: more than any device can address. ")?;
        }
        if let Some(MemoryInfo { free_bytes, total_bytes }) = self.device {
            let (total, free) = (Size(total_bytes), Size(free_bytes));
            write!(f, "{label} has a total capacity of {total} of which {free} is free. ")?;
        } else {
            write!(f, "{label} could not be asked for its capacity. ")?;
        }
        if let Some(bytes @ 1..) = self.outside_bytes() {
            write!(f, "{} is in use outside this allocator. ", Size(bytes))?;
        }
        if let Some(allowed_bytes) = self.allowed_bytes {
            write!(f, "{} allowed; ", Size(allowed_bytes))?;
        }
        write!(f, "Of the allocated memory {} is allocated by Thalweg, ", Size(self.allocated_bytes))?;
        if self.private_pool_bytes > 0 {
            let bytes = Size(self.private_pool_bytes);
            write!(f, "with {bytes} allocated in private pools (e.g., CUDA Graphs), ")?;
        }
        if self.pending_bytes > 0 {
            write!(f, "{} is freed but still in use by other streams, ", Size(self.pending_bytes))?;
        }
        write!(f, "and {} is reserved by Thalweg but unallocated", Size(self.cached_bytes()))?;
        let parts = [
            (self.private_pool_cached_bytes, "in private pools"),
            (self.other_streams_cached_bytes, "on other streams"),
            (self.largest_free_block_bytes, "in the largest block"),
        ];
        let mut parts = parts.iter().filter(|(bytes, _)| *bytes > 0);
        if let Some((bytes, place)) = parts.next() {
            write!(f, " ({} {place}", Size(*bytes))?;
            parts.try_for_each(|(bytes, place)| write!(f, ", {} {place}", Size(*bytes)))?;
            f.write_str(")")?;
        }
        f.write_str(".")?;
        if self.rejected {
            f.write_str(
                " The request was preemptively rejected: it would have passed per_process_memory_fraction, and \
                 throw_on_cudamalloc_oom is set, so that nothing was given back for it.",
            )?;
        }
        if let Some(advice) = &self.advice {
            write!(f, " {advice}")?;
        }
        match &self.snapshot {
            Some(Ok(path)) => write!(f, " A snapshot of the memory is in {}.", path.display()),
            Some(Err(why)) => write!(f, " A snapshot of the memory could not be written: {why}."),
            None => Ok(()),
        }
    }
}

/// A change that would have let a request succeed. Sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Advice {
    /// Let other streams finish with memory that was freed.
    WaitForUses {
        /// The size of that memory.
        bytes: u64,
    },
    /// Release cached memory in cases where the allocator does not: before a capture begins, or before a request that
    /// `throw_on_cudamalloc_oom` would refuse.
    EmptyCache,
    /// End the capture, which keeps memory that was freed during it.
    EndCapture {
        /// The size of that memory.
        bytes: u64,
    },
    /// Release a private pool that contains only free memory.
    ReleasePool {
        /// The pool to release.
        pool: PoolId,
        /// The size of the pool's memory.
        bytes: u64,
    },
    /// Set `cross_stream_reuse:ordered`.
    ReuseAcrossStreams,
    /// Set `last_resort:True`.
    LastResort,
    /// Raise `max_split_size_mb`.
    RaiseMaxSplitSize {
        /// The new value in MiB.
        mebibytes: u64,
    },
    /// Set `expandable_segments:True` from the start.
    ExpandableSegments,
    /// Set `expandable_segments:True` from the start: the request's own pool could then grow what it caches.
    ExpandablePool {
        /// The pool.
        pool: PoolId,
        /// The memory that the pool caches.
        bytes: u64,
    },
    /// Set `expandable_page_mb:2` from the start.
    SmallPages,
    /// Raise the memory fraction.
    RaiseMemoryFraction {
        /// The new value in percent of the device.
        percent: u32,
    },
    /// Free memory that other users of the device occupy.
    FreeOutside {
        /// The size to free.
        bytes: u64,
    },
    /// Request less memory.
    AskForLess {
        /// The size by which to reduce the request.
        bytes: u64,
    },
    /// Free memory that this program uses.
    FreeLive {
        /// The size to free.
        bytes: u64,
    },
    /// Divide the request: it is larger than the device.
    Divide,
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::WaitForUses { bytes } => write!(
                f,
                "It would fit when other streams are done with the {} that was freed: synchronise them first.",
                Size(bytes)
            ),
            Self::EmptyCache => f.write_str(
                "It would fit if empty_cache were called first, before the capture begins if there is one: cached \
                 memory is not given back by itself here.",
            ),
            Self::EndCapture { bytes } => write!(
                f,
                "It would fit after the capture, which holds {} that was freed: capture less at a time.",
                Size(bytes)
            ),
            Self::ReleasePool { pool, bytes } => write!(
                f,
                "It would fit without the {} that private pool (0, {}) caches and does not use: release the pool, or \
                 call empty_pool_cache if no graph relies on it.",
                Size(bytes),
                pool.raw()
            ),
            Self::ReuseAcrossStreams => f.write_str(
                "It would fit in memory that is free on another stream: set cross_stream_reuse:ordered.",
            ),
            Self::LastResort => f.write_str(
                "It would fit in a free block that is kept for other sizes: set last_resort:True.",
            ),
            Self::RaiseMaxSplitSize { mebibytes } => write!(
                f,
                "It would fit in a free block that max_split_size_mb keeps whole: set it to {mebibytes} or more."
            ),
            Self::ExpandableSegments => f.write_str(
                "It would fit if the free memory between live blocks were one piece: set expandable_segments:True \
                 before the program begins to allocate.",
            ),
            Self::ExpandablePool { pool, bytes } => write!(
                f,
                "It would fit if the {} that private pool (0, {}), from which this is asked, caches in pieces of fixed sizes could \
                 grow: set expandable_segments:True before the program begins to allocate.",
                Size(bytes),
                pool.raw()
            ),
            Self::SmallPages => f.write_str(
                "It would fit if live blocks kept smaller pages where they are: set expandable_page_mb:2 before the \
                 program begins to allocate.",
            ),
            Self::RaiseMemoryFraction { percent } => write!(
                f,
                "It would fit under a larger limit: set per_process_memory_fraction to {}.{:02} or more.",
                percent / 100,
                percent % 100
            ),
            Self::FreeOutside { bytes } => write!(
                f,
                "It would fit if others on the device, processes or libraries, freed {}.",
                Size(bytes)
            ),
            Self::AskForLess { bytes } => write!(f, "It would fit if it were {} less.", Size(bytes)),
            Self::FreeLive { bytes } => {
                write!(f, "It would fit if {} of what is in use here were freed first.", Size(bytes))
            }
            Self::Divide => f.write_str(
                "No freeing helps, since the request alone is larger than the device: ask for it in parts.",
            ),
        }
    }
}

/// A size in human-readable form: `20.00 MiB`.
pub(crate) struct Size(pub(crate) u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0;
        for (unit, shift) in [("GiB", 30), ("MiB", 20), ("KiB", 10)] {
            if bytes > 1 << shift {
                return write!(f, "{:.2} {unit}", bytes as f64 / (1u64 << shift) as f64);
            }
        }
        write!(f, "{bytes} bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures() -> OutOfMemory {
        OutOfMemory {
            label: "GPU 0".to_owned(),
            requested_bytes: 20 << 20,
            allocated_bytes: 3 << 30,
            reserved_bytes: (3 << 30) + (512 << 10),
            device: Some(MemoryInfo { free_bytes: 5000, total_bytes: 4 << 30 }),
            ..OutOfMemory::default()
        }
    }

    #[test]
    fn the_message_has_the_parts_of_pytorchs() {
        assert_eq!(
            figures().to_string(),
            "out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 4.00 GiB of which 4.88 KiB is \
             free. 1023.50 MiB is in use outside this allocator. Of the allocated memory 3.00 GiB is allocated by \
             Thalweg, and 512.00 KiB is reserved by Thalweg but unallocated."
        );
        let more = OutOfMemory {
            private_pool_bytes: 1 << 21,
            pending_bytes: 1024,
            private_pool_cached_bytes: 2048,
            largest_free_block_bytes: 4096,
            allowed_bytes: Some(1 << 32),
            device: None,
            advice: Some(Advice::EmptyCache),
            snapshot: Some(Err("the disk is full".to_owned())),
            ..figures()
        };
        assert_eq!(
            more.to_string(),
            "out of memory. Tried to allocate 20.00 MiB. GPU 0 could not be asked for its capacity. 4.00 GiB allowed; Of \
             the allocated memory 3.00 GiB is allocated by Thalweg, with 2.00 MiB allocated in private pools (e.g., CUDA \
             Graphs), 1024 bytes is freed but still in use by other streams, and 511.00 KiB is reserved by Thalweg but \
             unallocated (2.00 KiB in private pools, 4.00 KiB in the largest block). It would fit if \
             empty_cache were called first, before the capture begins if there is one: cached memory is not given back by \
             itself here. A snapshot of the memory could not be written: the disk is full."
        );
    }
}
