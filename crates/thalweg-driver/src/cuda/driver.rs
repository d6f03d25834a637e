//! The [`Driver`](crate::Driver) of real GPUs.
//!
//! The sibling modules implement the calls in groups, as methods of [`CudaDriver`]. This module connects these to the trait, and
//! contains the properties of a device.

use super::blaslt::BlasLt;
use super::context::Device;
use super::graph::conditional::support;
use super::state::CudaDriver;
use super::sys::DeviceAttribute;
use super::tools::cupti::Cupti;
use crate::calls::*;
use crate::properties::{ImageKind, LibrarySupport};
use crate::{ComputeCapability, Driver, Version};

impl CudaDriver {
    fn device_properties(&self, device: u32) -> Result<DeviceProperties> {
        let device = self.device(device)?;
        if let Some(properties) = device.properties.get() {
            return Ok(properties.clone());
        }
        let properties = self.read_properties(device)?;
        Ok(device.properties.get_or_init(|| properties).clone())
    }

    fn read_properties(&self, device: &Device) -> Result<DeviceProperties> {
        let (cuda, raw) = (&self.cuda, device.raw);
        let what = || format!("device {}", device.index);
        let (mut name, mut bus, mut uuid, mut total) = ([0_u8; 256], [0_u8; 32], [0_u8; 16], 0_usize);
        // SAFETY: the size of the buffer is passed to each call that writes one; the others write one value of the stated
        // type.
        unsafe {
            cuda.check(cuda.table.device_get_name(name.as_mut_ptr().cast(), name.len() as i32, raw), what)?;
            cuda.check(
                cuda.table.device_get_pci_bus_id(bus.as_mut_ptr().cast(), bus.len() as i32, raw),
                what,
            )?;
            cuda.check(cuda.table.device_get_uuid(&raw mut uuid, raw), what)?;
            cuda.check(cuda.table.device_total_memory(&raw mut total, raw), what)?;
        }
        let get = |attribute| device.attribute(cuda, attribute);
        let compute_capability = ComputeCapability {
            major: get(DeviceAttribute::ComputeCapabilityMajor)?,
            minor: get(DeviceAttribute::ComputeCapabilityMinor)?,
        };
        let able = |ability| device.is_able(cuda, ability);
        let granularity = device.granularity(cuda)?;
        Ok(DeviceProperties {
            name: Device::text(&name),
            compute_capability,
            image_kind: ImageKind::Cubin(compute_capability),
            total_memory_bytes: total as u64,
            multi_processor_count: get(DeviceAttribute::MultiprocessorCount)?,
            warp_size: get(DeviceAttribute::WarpSize)?,
            max_threads_per_block: device.max_threads_per_block,
            max_threads_per_multi_processor: get(DeviceAttribute::MaxThreadsPerMultiprocessor)?,
            shared_memory_per_block_bytes: get(DeviceAttribute::MaxSharedMemoryPerBlock)?,
            shared_memory_per_block_optin_bytes: get(DeviceAttribute::MaxSharedMemoryPerBlockOptin)?,
            registers_per_multi_processor: get(DeviceAttribute::MaxRegistersPerMultiprocessor)?,
            l2_cache_bytes: u64::from(get(DeviceAttribute::L2CacheSize)?),
            clock_rate_khz: get(DeviceAttribute::ClockRate)?,
            memory_clock_rate_khz: get(DeviceAttribute::MemoryClockRate)?,
            memory_bus_width_bits: get(DeviceAttribute::GlobalMemoryBusWidth)?,
            pci_bus_id: Device::text(&bus),
            uuid,
            is_integrated: get(DeviceAttribute::Integrated)? != 0,
            virtual_memory: granularity != 0,
            virtual_memory_granularity_bytes: granularity,
            shares_file_descriptors: able(DeviceAttribute::FileDescriptorHandlesSupported),
            shares_fabric_handles: able(DeviceAttribute::FabricHandlesSupported),
            gpu_direct_rdma_with_virtual_memory: able(
                DeviceAttribute::GpuDirectRdmaWithVirtualMemorySupported,
            ),
            memory_pools: able(DeviceAttribute::MemoryPoolsSupported),
            managed_memory: able(DeviceAttribute::ManagedMemory),
            concurrent_managed_access: able(DeviceAttribute::ConcurrentManagedAccess),
            host_register: able(DeviceAttribute::HostRegisterSupported),
            stream_priority_range: self.priority_range(device)?,
            conditional_nodes: support(cuda.version),
            libraries: LibrarySupport {
                matmul: self.blas_lt().is_ok(),
                matmul_version: self.blas_lt().map_or(0, BlasLt::version),
                attention: self.cudnn().is_ok(),
                convolution: self.cudnn().is_ok(),
                recurrent: self.cudnn().is_ok(),
            },
        })
    }

    /// Returns the range of priorities. Makes the context current first, because the driver returns the range of the
    /// current one only.
    fn priority_range(&self, device: &Device) -> Result<(i32, i32)> {
        self.enter(device.index)?;
        Ok(device.context(&self.cuda)?.priorities)
    }

    fn context_is_active(&self, device: u32) -> Result<bool> {
        let device = self.device(device)?;
        let (mut flags, mut active) = (0_u32, 0_i32);
        // SAFETY: writes two numbers.
        let outcome =
            unsafe { self.cuda.table.primary_context_state(device.raw, &raw mut flags, &raw mut active) };
        self.cuda.check(outcome, || format!("device {}", device.index))?;
        Ok(active != 0)
    }

    fn context_initialize(&self, device: u32) -> Result<()> {
        self.enter(device).map(drop)
    }

    fn device_synchronize(&self, device: u32) -> Result<()> {
        let device = self.submit(device)?;
        // SAFETY: waits for the current context.
        let outcome = unsafe { self.cuda.table.context_synchronize() };
        self.cuda.check(outcome, || format!("device {}", device.index))?;
        device.fault.check()
    }

    fn can_access_peer(&self, device: u32, peer: u32) -> Result<bool> {
        let (first, second) = (self.device(device)?, self.device(peer)?);
        if device == peer {
            return Ok(false);
        }
        let mut answer = 0;
        // SAFETY: writes one number.
        let outcome =
            unsafe { self.cuda.table.device_can_access_peer(&raw mut answer, first.raw, second.raw) };
        self.cuda.check(outcome, || format!("device {device} and device {peer}"))?;
        Ok(answer != 0)
    }

    fn enable_peer_access(&self, device: u32, peer: u32) -> Result<()> {
        let peer_context = self.device(peer)?.context(&self.cuda)?.raw;
        self.enter(device)?;
        // SAFETY: the peer's context is retained until the process ends.
        let outcome = unsafe { self.cuda.table.context_enable_peer(peer_context, 0) };
        self.cuda.check(outcome, || format!("device {device} to memory of device {peer}"))
    }

    fn disable_peer_access(&self, device: u32, peer: u32) -> Result<()> {
        let peer_context = self.device(peer)?.context(&self.cuda)?.raw;
        self.enter(device)?;
        // SAFETY: the peer's context is retained until the process ends.
        let outcome = unsafe { self.cuda.table.context_disable_peer(peer_context) };
        self.cuda.check(outcome, || format!("device {device} to memory of device {peer}"))
    }
}

/// Makes a function of each call. It refuses to work in a forked child, then calls the inherent method of the same name.
macro_rules! checked {
    ($(
        $(#[$documentation:meta])*
        fn $name:ident(&$self:ident $(, $argument:ident: $type:ty)*) -> $answer:ty;
    )*) => {$(
        #[inline]
        pub(super) fn $name(driver: &CudaDriver $(, $argument: $type)*) -> $answer {
            check_not_forked(stringify!($name))?;
            CudaDriver::$name(driver $(, $argument)*)
        }
    )*};
}

/// The functions in a module of their own. Where [`Driver`](crate::Driver) is in scope, the path of a call that lacks an inherent
/// method would name the trait's method, which would call itself.
mod checked {
    use super::super::context::check_not_forked;
    use super::super::state::CudaDriver;
    use crate::calls::*;

    calls!(checked);
}

/// Makes the trait's method of each call.
macro_rules! methods {
    ($(
        $(#[$documentation:meta])*
        fn $name:ident(&$self:ident $(, $argument:ident: $type:ty)*) -> $answer:ty;
    )*) => {$(
        #[inline]
        fn $name(&$self $(, $argument: $type)*) -> $answer {
            checked::$name($self $(, $argument)*)
        }
    )*};
}

impl Driver for CudaDriver {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn reads_accesses(&self) -> bool {
        false
    }

    fn activity_tracer(&self) -> Result<&dyn crate::ActivityTracer> {
        let loaded = self.cupti.get_or_init(|| Cupti::load(&self.environment));
        loaded.as_ref().map(|cupti| cupti as _).map_err(Clone::clone)
    }

    fn version(&self) -> Version {
        self.cuda.version
    }

    fn device_count(&self) -> u32 {
        u32::try_from(self.devices.len()).unwrap_or(u32::MAX)
    }

    calls!(methods);
}
