//! Memory, as the driver speaks of it: how it is made, advised, measured, and shared with other processes.

use std::fmt;
use std::os::fd::OwnedFd;

/// The flags with which an allocation of pinned host memory is made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct HostFlags {
    /// Whether the host's writes bypass its caches: faster to copy from, very slow to read. With [`HostMethod::Allocate`]
    /// only.
    pub write_combined: bool,
    /// The side that finds the pages.
    pub method: HostMethod,
}

/// The way in which pages of the host become pinned memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum HostMethod {
    /// The driver allocates and pins them in one call (`cuMemHostAlloc`).
    #[default]
    Allocate,
    /// They are ordinary memory of the process, touched by some threads first, and then pinned where they are
    /// (`cuMemHostRegister`). Large allocations are faster: the pages are found in parallel, outside the driver's lock.
    Register {
        /// The number of threads that touch the pages: 0 leaves that to the driver, in its one thread.
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
    /// All there is.
    pub total_bytes: u64,
}

/// The access of a device to a mapped range.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemoryAccess {
    /// No thread on that device.
    None,
    /// Reads only.
    Read,
    /// Reads and writes.
    ReadWrite,
}

/// A hint about the use of managed memory (`cuMemAdvise`). Each is a hint: it changes where pages are and what a touch costs,
/// never what a program computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemoryAdvice {
    /// It is read far more often than written: readers get copies of their own.
    ReadMostly(bool),
    /// Pages stay there unless something else touches them and cannot map them; `None` takes that back.
    PreferredLocation(Option<MemoryLocation>),
    /// The location touches it: it is mapped there in advance, wherever it is.
    AccessedBy(MemoryLocation),
    /// Takes [`AccessedBy`](Self::AccessedBy) back.
    NotAccessedBy(MemoryLocation),
}

/// The attributes of a pool of the stream-ordered allocator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PoolAttributes {
    /// The bytes that the pool may hold, in use or not, before the driver gives unused memory back whenever the host waits for
    /// the device. `u64::MAX`: it keeps everything until it is trimmed.
    pub release_threshold_bytes: u64,
    /// Whether memory that was freed on one stream serves another which waited for an event behind the free.
    pub reuse_follow_event_dependencies: bool,
    /// Whether memory whose free happens to be over serves any stream.
    pub reuse_allow_opportunistic: bool,
    /// Whether the driver may make a stream wait for another, to reuse what was freed there.
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

/// The memory of a pool of the stream-ordered allocator, in bytes. Peaks are since the pool was made, or since
/// [`Driver::pool_reset_peaks`](crate::Driver::pool_reset_peaks).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PoolUsage {
    /// Taken from the device, in use or not.
    pub reserved_bytes: u64,
    /// The most that ever was.
    pub reserved_peak_bytes: u64,
    /// In allocations. Memory counts until its free is reached in stream order.
    pub used_bytes: u64,
    /// The most that ever was.
    pub used_peak_bytes: u64,
}

/// The flags with which physical memory is made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PhysicalFlags {
    /// As what it can be given to other processes; `None` if it cannot.
    pub share_as: Option<HandleType>,
    /// Whether network adapters may read and write it directly. Where the properties say that no device can, an error.
    pub gpu_direct_rdma: bool,
}

/// The kind of handle by which physical memory is shared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HandleType {
    /// A file descriptor: within one host.
    FileDescriptor,
    /// 64 bytes: within one host, or hosts whose GPUs share a fabric. A driver that says it can may still refuse with
    /// [`NotPermitted`](crate::Code::NotPermitted), where the machine's fabric is not set up.
    Fabric,
}

/// Physical memory as something that another process can be given.
pub enum ShareableHandle {
    /// An open file. It keeps the memory alive on a GPU; to send it, the receiver takes it out of this process
    /// ([`descriptor_of_process`](crate::descriptor_of_process)), or this one sends it through a socket.
    FileDescriptor(OwnedFd),
    /// Bytes, to be sent as they are.
    Fabric(Box<[u8; 64]>),
}

impl ShareableHandle {
    /// Returns which kind it is.
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

/// Plain memory of a device as something that another process can be given (`CUipcMemHandle`): bytes, to be sent as they
/// are.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct IpcHandle(pub [u8; 64]);

impl fmt::Debug for IpcHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IpcHandle(..)")
    }
}
