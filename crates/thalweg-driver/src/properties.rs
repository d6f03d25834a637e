//! The properties and abilities of a device.

use std::fmt;

/// The compute capability: the generation of a device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ComputeCapability {
    /// 9 for Hopper.
    pub major: u32,
    /// 0 for the H100.
    pub minor: u32,
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The kind of code that a device takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ImageKind {
    /// Machine code for this compute capability (cubin), or PTX.
    Cubin(ComputeCapability),
    /// Host functions: the simulator.
    Host,
}

/// The properties of a device. Names follow `torch.cuda.get_device_properties` where it has them.
#[derive(Clone, PartialEq, Debug)]
pub struct DeviceProperties {
    /// The marketing name.
    pub name: String,
    /// The compute capability.
    pub compute_capability: ComputeCapability,
    /// The kind of code that it takes.
    pub image_kind: ImageKind,
    /// All memory, in bytes.
    pub total_memory_bytes: u64,
    /// Streaming multiprocessors.
    pub multi_processor_count: u32,
    /// Threads of a warp.
    pub warp_size: u32,
    /// The most threads a block may have.
    pub max_threads_per_block: u32,
    /// The most threads that live on a multiprocessor at once.
    pub max_threads_per_multi_processor: u32,
    /// Shared memory a block gets without asking.
    pub shared_memory_per_block_bytes: u32,
    /// Shared memory a block can ask for.
    pub shared_memory_per_block_optin_bytes: u32,
    /// 32-bit registers of a multiprocessor.
    pub registers_per_multi_processor: u32,
    /// The second-level cache.
    pub l2_cache_bytes: u64,
    /// Peak clock of the multiprocessors.
    pub clock_rate_khz: u32,
    /// Peak clock of the memory.
    pub memory_clock_rate_khz: u32,
    /// Width of the memory bus.
    pub memory_bus_width_bits: u32,
    /// The PCI address (`0000:17:00.0`).
    pub pci_bus_id: String,
    /// The UUID.
    pub uuid: [u8; 16],
    /// Whether it shares the host's memory.
    pub is_integrated: bool,
    /// Whether virtual memory can be reserved, created and mapped.
    pub virtual_memory: bool,
    /// The size of a page that can be mapped: sizes and offsets of virtual memory are its multiples.
    pub virtual_memory_granularity_bytes: u64,
    /// Whether physical memory can be shared as a file descriptor.
    pub shares_file_descriptors: bool,
    /// Whether physical memory can be shared as a fabric handle.
    pub shares_fabric_handles: bool,
    /// Whether network adapters can reach memory that is made by hand.
    pub gpu_direct_rdma_with_virtual_memory: bool,
    /// Whether the stream-ordered allocator is there.
    pub memory_pools: bool,
    /// Whether managed memory can be allocated.
    pub managed_memory: bool,
    /// Whether managed memory can be touched by device and host at the same time, and be advised.
    pub concurrent_managed_access: bool,
    /// Whether memory of the process can be pinned where it is.
    pub host_register: bool,
    /// The lowest and the greatest priority of a stream (the greatest is the smaller number: `(0, -5)`).
    pub stream_priority_range: (i32, i32),
    /// The conditional nodes that its graphs can have.
    pub conditional_nodes: ConditionalSupport,
    /// The library calls that it can do (see [`crate::GpuCall`]).
    pub libraries: LibrarySupport,
}

/// The conditional nodes that the graphs of a device can have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ConditionalSupport {
    /// `If` and `While`: drivers for CUDA 12.4 and later, and the simulator.
    pub if_and_while: bool,
    /// `IfElse` and `Switch`: drivers for CUDA 12.8 and later, and the simulator.
    pub else_and_switch: bool,
}

/// The library calls that a device can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LibrarySupport {
    /// [`crate::GpuCall::Matmul`]: cuBLASLt was found, or the device runs host functions.
    pub matmul: bool,
    /// The version of cuBLASLt, as `cublasLtGetVersion` numbers it; 0 without one.
    pub matmul_version: u64,
    /// [`crate::GpuCall::Attention`]: a cuDNN was found that has it, or the device runs host functions. Whether it takes a shape is
    /// asked of [`Driver::library_workspace`](crate::Driver::library_workspace).
    pub attention: bool,
    /// [`crate::GpuCall::Convolution`], likewise.
    pub convolution: bool,
}

/// A version, as CUDA numbers it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Version {
    /// 13 of 13.0.
    pub major: u32,
    /// 0 of 13.0.
    pub minor: u32,
}

impl Version {
    /// Creates the version from CUDA's number (13000 is 13.0).
    pub const fn from_cuda(number: u32) -> Self {
        Self { major: number / 1000, minor: number % 1000 / 10 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
