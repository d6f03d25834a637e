//! The [`Driver`](crate::Driver) of real GPUs.
//!
//! The trait is a list of CUDA's verbs, which the sibling modules implement in groups. This module contains the list that
//! connects the two, and the properties of a device.

use std::path::Path;

use super::blaslt::BlasLt;
use super::conditional::support;
use super::context::{Device, check_not_forked};
use super::cupti::Cupti;
use super::state::CudaDriver;
use super::sys::DeviceAttribute;
use crate::collective::{Collective, CommunicatorId, CommunicatorInfo, Registration};
use crate::command::{Copy, Fill, HostFunction, Label, Launch, LibraryLaunch};
use crate::conditional::{ConditionFormat, Conditional};
use crate::description::GraphDescription;
use crate::graph::{CaptureInfo, CaptureMode, DependencyUpdate, GraphExecUpdate};
use crate::library::{GpuCall, MatmulAlgorithm, MatmulCall};
use crate::module::{Cluster, Image};
use crate::properties::{ImageKind, LibrarySupport};
use crate::tensor_map::{TensorMap, TensorTiles};
use crate::{
    CommunicatorHandle, ComputeCapability, ConditionHandle, DevicePointer, DeviceProperties, Driver,
    EventFlags, EventHandle, FunctionAttributes, FunctionHandle, GraphExecHandle, GraphHandle,
    GraphNodeHandle, HostFlags, HostPointer, IpcHandle, MemoryAccess, MemoryAdvice, MemoryInfo, ModuleHandle,
    PhysicalFlags, PhysicalHandle, PoolAttributes, PoolHandle, PoolUsage, Result, ShareableHandle,
    StreamHandle, Version,
};

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

/// The trait's methods: each refuses to work in a forked child, then calls the inherent method of the same name.
macro_rules! calls {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {$(
        #[inline]
        fn $name(&self, $($argument: $type),*) -> Result<$answer> {
            check_not_forked(stringify!($name))?;
            CudaDriver::$name(self, $($argument),*)
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

    calls! {
        fn device_properties(device: u32) -> DeviceProperties;
        fn context_is_active(device: u32) -> bool;
        fn context_initialize(device: u32) -> ();
        fn device_synchronize(device: u32) -> ();
        fn memory_info(device: u32) -> MemoryInfo;
        fn can_access_peer(device: u32, peer: u32) -> bool;
        fn enable_peer_access(device: u32, peer: u32) -> ();
        fn disable_peer_access(device: u32, peer: u32) -> ();

        fn default_stream(device: u32) -> StreamHandle;
        fn stream_create(device: u32, priority: i32) -> StreamHandle;
        fn stream_destroy(stream: StreamHandle) -> ();
        fn stream_device(stream: StreamHandle) -> u32;
        fn stream_priority(stream: StreamHandle) -> i32;
        fn stream_is_blocking(stream: StreamHandle) -> bool;
        fn stream_query(stream: StreamHandle) -> bool;
        fn stream_synchronize(stream: StreamHandle) -> ();
        fn stream_wait_event(stream: StreamHandle, event: EventHandle) -> ();
        fn stream_wait_event_external(stream: StreamHandle, event: EventHandle) -> ();
        fn stream_from_external(device: u32, stream: crate::ExternalStream) -> StreamHandle;
        fn cuda_stream(stream: StreamHandle) -> u64;

        fn event_create(device: u32, flags: EventFlags) -> EventHandle;
        fn cuda_event(event: EventHandle) -> u64;
        fn event_destroy(event: EventHandle) -> ();
        fn event_record(event: EventHandle, stream: StreamHandle) -> ();
        fn event_record_external(event: EventHandle, stream: StreamHandle) -> ();
        fn event_query(event: EventHandle) -> bool;
        fn event_synchronize(event: EventHandle) -> ();
        fn event_elapsed_ms(start: EventHandle, end: EventHandle) -> f32;

        fn memory_allocate(device: u32, bytes: u64) -> DevicePointer;
        fn memory_allocate_managed(device: u32, bytes: u64) -> DevicePointer;
        fn memory_advise(pointer: DevicePointer, bytes: u64, advice: MemoryAdvice) -> ();
        fn memory_free(pointer: DevicePointer) -> ();
        fn address_reserve(device: u32, bytes: u64) -> DevicePointer;
        fn address_free(pointer: DevicePointer, bytes: u64) -> ();
        fn physical_create(device: u32, bytes: u64, flags: PhysicalFlags) -> PhysicalHandle;
        fn physical_release(physical: PhysicalHandle) -> ();
        fn memory_map(pointer: DevicePointer, bytes: u64, physical: PhysicalHandle, offset: u64) -> ();
        fn memory_unmap(pointer: DevicePointer, bytes: u64) -> ();
        fn memory_set_access(pointer: DevicePointer, bytes: u64, device: u32, access: MemoryAccess) -> ();
        fn physical_export(physical: PhysicalHandle) -> ShareableHandle;
        fn physical_import(device: u32, bytes: u64, handle: &ShareableHandle) -> PhysicalHandle;
        fn ipc_export(pointer: DevicePointer) -> IpcHandle;
        fn ipc_open(device: u32, handle: IpcHandle) -> DevicePointer;
        fn ipc_close(pointer: DevicePointer) -> ();
        fn address_range(pointer: DevicePointer) -> (DevicePointer, u64);
        fn pool_create(device: u32) -> PoolHandle;
        fn pool_destroy(pool: PoolHandle) -> ();
        fn pool_trim(pool: PoolHandle, keep_bytes: u64) -> ();
        fn pool_attributes(pool: PoolHandle) -> PoolAttributes;
        fn pool_set_attributes(pool: PoolHandle, attributes: PoolAttributes) -> ();
        fn pool_usage(pool: PoolHandle) -> PoolUsage;
        fn pool_reset_peaks(pool: PoolHandle) -> ();
        fn memory_allocate_async(pool: PoolHandle, bytes: u64, stream: StreamHandle) -> DevicePointer;
        fn memory_free_async(pointer: DevicePointer, stream: StreamHandle) -> ();

        fn host_allocate(bytes: u64, flags: HostFlags) -> HostPointer;
        fn host_free(pointer: HostPointer) -> ();
        fn host_read(source: HostPointer, target: &mut [u8]) -> ();
        fn host_write(target: HostPointer, source: &[u8]) -> ();

        fn copy_async(stream: StreamHandle, copy: &Copy) -> ();
        fn copy_from_host(stream: StreamHandle, target: DevicePointer, source: &[u8], label: Label) -> ();
        fn copy_to_host(stream: StreamHandle, target: &mut [u8], source: DevicePointer, label: Label) -> ();
        fn fill_async(stream: StreamHandle, fill: &Fill) -> ();
        fn host_function_async(stream: StreamHandle, function: HostFunction, label: Label) -> ();

        fn module_load(device: u32, image: Image<'_>) -> ModuleHandle;
        fn module_unload(module: ModuleHandle) -> ();
        fn function_get(module: ModuleHandle, name: &str) -> FunctionHandle;
        fn function_attributes(function: FunctionHandle) -> FunctionAttributes;
        fn max_active_clusters(function: FunctionHandle, cluster: Cluster) -> u32;
        fn launch(stream: StreamHandle, launch: &Launch<'_>) -> ();
        fn tensor_map(tiles: &TensorTiles) -> TensorMap;
        fn library_workspace(device: u32, call: &GpuCall) -> u64;
        fn matmul_algorithms(device: u32, call: &MatmulCall, most: u32) -> Vec<MatmulAlgorithm>;
        fn library_async(stream: StreamHandle, launch: &LibraryLaunch<'_>) -> ();

        fn communicators_create(devices: &[u32]) -> Vec<CommunicatorHandle>;
        fn communicator_id() -> CommunicatorId;
        fn communicator_join(id: &CommunicatorId, device: u32, rank: u32, ranks: u32) -> CommunicatorHandle;
        fn communicator_info(communicator: CommunicatorHandle) -> CommunicatorInfo;
        fn communicator_destroy(communicator: CommunicatorHandle) -> ();
        fn communicator_abort(communicator: CommunicatorHandle) -> ();
        fn communicator_split(own: CommunicatorHandle, part: &[u32]) -> Option<CommunicatorHandle>;
        fn memory_allocate_collective(device: u32, bytes: u64) -> DevicePointer;
        fn memory_register(registration: &Registration) -> ();
        fn memory_deregister(communicator: CommunicatorHandle, pointer: DevicePointer) -> ();
        fn collectives_async(collectives: &[Collective]) -> ();

        fn stream_begin_capture(stream: StreamHandle, mode: CaptureMode) -> ();
        fn stream_end_capture(stream: StreamHandle) -> GraphHandle;
        fn stream_capture_info(stream: StreamHandle) -> CaptureInfo;
        fn stream_update_capture_dependencies(
            stream: StreamHandle, dependencies: &[GraphNodeHandle], update: DependencyUpdate
        ) -> ();
        fn condition_create(stream: StreamHandle, initial: u32) -> ConditionHandle;
        fn condition_set_async(
            stream: StreamHandle, condition: ConditionHandle, source: DevicePointer, format: ConditionFormat, label: Label
        ) -> ();
        fn conditional_node_add(
            stream: StreamHandle, condition: ConditionHandle, conditional: Conditional, label: Label
        ) -> Vec<GraphHandle>;
        fn stream_begin_capture_to_graph(stream: StreamHandle, body: GraphHandle, mode: CaptureMode) -> ();
        fn thread_exchange_capture_mode(mode: CaptureMode) -> CaptureMode;
        fn graph_node_predecessors(graph: GraphHandle, node: GraphNodeHandle) -> Vec<GraphNodeHandle>;
        fn graph_describe(graph: GraphHandle) -> GraphDescription;
        fn graph_debug_dot_print(graph: GraphHandle, path: &Path, verbose: bool) -> ();
        fn graph_destroy(graph: GraphHandle) -> ();
        fn graph_instantiate(graph: GraphHandle, device: u32) -> GraphExecHandle;
        fn graph_exec_update(exec: GraphExecHandle, graph: GraphHandle) -> GraphExecUpdate;
        fn graph_exec_kernel_node_set_params(
            exec: GraphExecHandle, node: GraphNodeHandle, launch: &Launch<'_>
        ) -> ();
        fn graph_exec_destroy(exec: GraphExecHandle) -> ();
        fn graph_launch(exec: GraphExecHandle, stream: StreamHandle) -> ();
    }
}
