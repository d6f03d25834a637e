//! Types of memory: its creation, advice, usage, and sharing with other processes.

use std::fmt;
use std::os::fd::OwnedFd;

/// The flags for allocating pinned host memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct HostFlags {
    /// Whether the host's writes bypass its caches: faster to copy from, very slow to read. With [`HostMethod::Allocate`]
    /// only.
    pub write_combined: bool,
    /// The method of allocation.
    pub method: HostMethod,
}

/// The method by which pages of the host become pinned memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum HostMethod {
    /// The driver allocates and pins the pages in one call (`cuMemHostAlloc`).
    #[default]
    Allocate,
    /// Ordinary memory of the process that is first touched by several threads and then pinned in place
    /// (`cuMemHostRegister`). This is faster for large allocations: the pages are found in parallel, outside the driver's
    /// lock.
    Register {
        /// The number of threads that touch the pages; with 0 the driver finds them in its one thread.
        prefault_threads: u32,
    },
}

/// A place where memory is, or a device that uses it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemoryLocation {
    /// A device.
    Device(u32),
    /// The host.
    Host,
}

/// Free and total memory of a device, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MemoryInfo {
    /// The memory that an allocation could still take, in bytes.
    pub free_bytes: u64,
    /// The total memory, in bytes.
    pub total_bytes: u64,
}

/// The access of a device to a mapped range.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemoryAccess {
    /// No access.
    None,
    /// Read access.
    Read,
    /// Read and write access.
    ReadWrite,
}

/// A hint about the use of managed memory (`cuMemAdvise`). A hint affects where pages are and the cost of touching them,
/// never the result of a program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemoryAdvice {
    /// The memory is read far more often than written: readers get copies of their own.
    ReadMostly(bool),
    /// Pages stay at the location unless something else touches them and cannot map them; `None` removes the hint.
    PreferredLocation(Option<MemoryLocation>),
    /// The location uses the memory: it is mapped there in advance, wherever it is.
    AccessedBy(MemoryLocation),
    /// Removes [`AccessedBy`](Self::AccessedBy).
    NotAccessedBy(MemoryLocation),
}

/// The attributes of a pool of the stream-ordered allocator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PoolAttributes {
    /// The bytes that the pool may keep, in use or not. The driver releases unused memory above it whenever the host waits
    /// for the device. With `u64::MAX` the pool keeps everything until it is trimmed.
    pub release_threshold_bytes: u64,
    /// Whether memory that was freed on one stream can be reused by another that waited for an event recorded after the
    /// free.
    pub reuse_follow_event_dependencies: bool,
    /// Whether memory whose free happens to be complete can be reused by any stream.
    pub reuse_allow_opportunistic: bool,
    /// Whether the driver may make a stream wait for another, to reuse memory that was freed there.
    pub reuse_allow_internal_dependencies: bool,
}

impl Default for PoolAttributes {
    /// Returns the settings of [`Driver::pool_create`](crate::Driver::pool_create): everything is kept and every kind of reuse
    /// is on.
    fn default() -> Self {
        Self {
            release_threshold_bytes: u64::MAX,
            reuse_follow_event_dependencies: true,
            reuse_allow_opportunistic: true,
            reuse_allow_internal_dependencies: true,
        }
    }
}

/// The memory of a pool of the stream-ordered allocator, in bytes. Peaks count from the pool's creation or the last
/// [`Driver::pool_reset_peaks`](crate::Driver::pool_reset_peaks).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PoolUsage {
    /// Memory taken from the device, in use or not.
    pub reserved_bytes: u64,
    /// The peak of `reserved_bytes`.
    pub reserved_peak_bytes: u64,
    /// Memory in allocations. It counts until its free is reached in stream order.
    pub used_bytes: u64,
    /// The peak of `used_bytes`.
    pub used_peak_bytes: u64,
}

/// The flags for creating physical memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PhysicalFlags {
    /// The type of handle by which the memory can be shared with other processes; `None` if it cannot be shared.
    pub share_as: Option<HandleType>,
    /// Whether network adapters may read and write the memory directly. An error if the properties of the device exclude this.
    pub gpu_direct_rdma: bool,
}

/// The kind of handle by which physical memory is shared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HandleType {
    /// A file descriptor: within one host.
    FileDescriptor,
    /// 64 bytes: within one host, or between hosts whose GPUs share a fabric. A driver that supports it may still refuse
    /// with [`NotPermitted`](crate::Code::NotPermitted), if the machine's fabric is not set up.
    Fabric,
}

/// A handle of physical memory that can be passed to another process.
pub enum ShareableHandle {
    /// An open file. It keeps the memory alive on a GPU. The receiver duplicates it from this process
    /// ([`descriptor_of_process`](crate::descriptor_of_process)), or this process sends it through a socket.
    FileDescriptor(OwnedFd),
    /// Bytes, to be sent as they are.
    Fabric(Box<[u8; 64]>),
}

impl ShareableHandle {
    /// Returns the type of the handle.
    pub const fn handle_type(&self) -> HandleType {
        match self {
            Self::FileDescriptor(_) => HandleType::FileDescriptor,
            Self::Fabric(_) => HandleType::Fabric,
        }
    }
}

impl fmt::Debug for ShareableHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FileDescriptor(descriptor) => f.debug_tuple("FileDescriptor").field(descriptor).finish(),
            Self::Fabric(_) => f.write_str("Fabric(..)"),
        }
    }
}

/// A handle of plain memory of a device that can be passed to another process (`CUipcMemHandle`): bytes, to be sent as they
/// are.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct IpcHandle(pub [u8; 64]);

impl fmt::Debug for IpcHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IpcHandle(..)")
    }
}
