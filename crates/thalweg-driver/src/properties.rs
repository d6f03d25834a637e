//! The properties and abilities of a device.

use std::fmt;

/// The compute capability: the generation of a device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ComputeCapability {
    /// The major number: 9 for Hopper.
    pub major: u32,
    /// The minor number: 0 for the H100.
    pub minor: u32,
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The kind of code that a device accepts.
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
    /// The kind of code that the device accepts.
    pub image_kind: ImageKind,
    /// The total memory, in bytes.
    pub total_memory_bytes: u64,
    /// The number of streaming multiprocessors.
    pub multi_processor_count: u32,
    /// The number of threads of a warp.
    pub warp_size: u32,
    /// The greatest number of threads per block.
    pub max_threads_per_block: u32,
    /// The greatest number of threads that are resident on a multiprocessor at once.
    pub max_threads_per_multi_processor: u32,
    /// Shared memory that a block can use without opting in.
    pub shared_memory_per_block_bytes: u32,
    /// Shared memory that a block can use at most, by opting in.
    pub shared_memory_per_block_optin_bytes: u32,
    /// 32-bit registers of a multiprocessor.
    pub registers_per_multi_processor: u32,
    /// The size of the second-level cache.
    pub l2_cache_bytes: u64,
    /// The peak clock of the multiprocessors.
    pub clock_rate_khz: u32,
    /// The peak clock of the memory.
    pub memory_clock_rate_khz: u32,
    /// The width of the memory bus.
    pub memory_bus_width_bits: u32,
    /// The PCI address (`0000:17:00.0`).
    pub pci_bus_id: String,
    /// The UUID.
    pub uuid: [u8; 16],
    /// Whether the device shares the host's memory.
    pub is_integrated: bool,
    /// Whether virtual memory can be reserved, created and mapped.
    pub virtual_memory: bool,
    /// The size of a page that can be mapped; sizes and offsets of virtual memory are multiples of it.
    pub virtual_memory_granularity_bytes: u64,
    /// Whether physical memory can be shared as a file descriptor.
    pub shares_file_descriptors: bool,
    /// Whether physical memory can be shared as a fabric handle.
    pub shares_fabric_handles: bool,
    /// Whether network adapters can directly access memory of the virtual memory interface.
    pub gpu_direct_rdma_with_virtual_memory: bool,
    /// Whether the stream-ordered allocator is supported.
    pub memory_pools: bool,
    /// Whether managed memory can be allocated.
    pub managed_memory: bool,
    /// Whether device and host can touch managed memory at the same time. Managed memory can then also be advised
    /// ([`MemoryAdvice`](crate::MemoryAdvice)).
    pub concurrent_managed_access: bool,
    /// Whether memory of the process can be pinned in place.
    pub host_register: bool,
    /// The lowest and the highest priority of a stream (the highest is the smaller number: `(0, -5)`).
    pub stream_priority_range: (i32, i32),
    /// The conditional nodes that graphs of the device can contain.
    pub conditional_nodes: ConditionalSupport,
    /// The library calls that the device supports (see [`crate::GpuCall`]).
    pub libraries: LibrarySupport,
}

/// The conditional nodes that the graphs of a device can contain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ConditionalSupport {
    /// `If` and `While`: drivers for CUDA 12.4 and later, and the simulator.
    pub if_and_while: bool,
    /// `IfElse` and `Switch`: drivers for CUDA 12.8 and later, and the simulator.
    pub else_and_switch: bool,
}

/// The library calls that a device supports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LibrarySupport {
    /// [`crate::GpuCall::Matmul`]: cuBLASLt was found, or the device runs host functions.
    pub matmul: bool,
    /// The version of cuBLASLt, as `cublasLtGetVersion` numbers it; 0 without cuBLASLt.
    pub matmul_version: u64,
    /// [`crate::GpuCall::Attention`]: a cuDNN with attention was found, or the device runs host functions.
    /// [`Driver::library_workspace`](crate::Driver::library_workspace) reports whether it supports a shape.
    pub attention: bool,
    /// [`crate::GpuCall::Convolution`]: a cuDNN with convolutions was found, or the device runs host functions.
    pub convolution: bool,
    /// [`crate::GpuCall::Recurrent`]: a cuDNN was found, or the device runs host functions.
    /// [`Driver::recurrent_memory`](crate::Driver::recurrent_memory) reports whether it supports a shape.
    pub recurrent: bool,
}

/// A version of CUDA.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Version {
    /// The major number: 13 for 13.0.
    pub major: u32,
    /// The minor number: 0 for 13.0.
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
