//! The properties of a simulated device: an H100's limits, as far as a host can provide them.

use thalweg_driver::{ComputeCapability, ConditionalSupport, DeviceProperties, ImageKind, LibrarySupport};

use super::SimDriver;
use crate::calls::code::{MAX_SHARED_MEMORY_BYTES, MAX_THREADS_PER_BLOCK};
use crate::memory::virtual_memory::GRANULARITY_BYTES;
use crate::objects::stream::PRIORITY_RANGE;

impl SimDriver {
    /// Returns the properties of an existing device.
    pub(super) fn properties(&self, device: u32) -> DeviceProperties {
        let mut uuid = *b"thalweg-sim-gpu\0";
        uuid[15] = device as u8;
        DeviceProperties {
            name: self.config.name.clone(),
            compute_capability: ComputeCapability { major: 9, minor: 0 },
            image_kind: ImageKind::Host,
            total_memory_bytes: self.config.memory_bytes,
            multi_processor_count: self.config.workers as u32,
            warp_size: 32,
            max_threads_per_block: MAX_THREADS_PER_BLOCK,
            max_threads_per_multi_processor: 2048,
            shared_memory_per_block_bytes: 48 << 10,
            shared_memory_per_block_optin_bytes: MAX_SHARED_MEMORY_BYTES,
            registers_per_multi_processor: 64 << 10,
            l2_cache_bytes: 50 << 20,
            clock_rate_khz: 0,
            memory_clock_rate_khz: 0,
            memory_bus_width_bits: 0,
            pci_bus_id: format!("0000:{device:02x}:00.0"),
            uuid,
            is_integrated: false,
            virtual_memory: true,
            virtual_memory_granularity_bytes: GRANULARITY_BYTES,
            shares_file_descriptors: true,
            shares_fabric_handles: true,
            gpu_direct_rdma_with_virtual_memory: false,
            memory_pools: true,
            managed_memory: true,
            concurrent_managed_access: true,
            host_register: true,
            stream_priority_range: PRIORITY_RANGE,
            conditional_nodes: ConditionalSupport { if_and_while: true, else_and_switch: true },
            libraries: LibrarySupport {
                matmul: true,
                matmul_version: 0,
                attention: true,
                convolution: true,
                recurrent: true,
            },
        }
    }
}
