//! The part of `cuda.h` that we use: types, constants and the table of entry points.
//!
//! The types are our own, in C's layout; a test compares every size, offset, constant and signature with a second,
//! generated description of the same header. Handles are integers as wide as a pointer, with one type each, so that they
//! can be sent between threads and cannot be mixed up.
//!
//! Each entry point has the *version of CUDA that introduced its signature*. It is looked up by that version, so a newer
//! driver, which may have a newer signature under the same name, still returns the one that is written here.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use super::table::entry_points;
use crate::{HandleType, PhysicalFlags};

macro_rules! raw_handles {
    ($($name:ident)*) => {$(
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
        pub(super) struct $name(pub(super) usize);
    )*};
}

raw_handles! {
    RawContext RawStream RawEvent RawModule RawFunction RawKernel RawGraph RawGraphExec RawGraphNode RawPool RawUserObject
}

/// `CUdevice`.
pub(super) type RawDevice = c_int;
/// `CUdeviceptr`.
pub(super) type RawPointer = u64;
/// `CUmemGenericAllocationHandle`.
pub(super) type RawPhysical = c_ulonglong;
/// `CUhostFn`.
pub(super) type RawHostFunction = unsafe extern "C" fn(*mut c_void);

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryLocation {
    pub(super) kind: c_uint,
    pub(super) id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct AllocationProperties {
    pub(super) kind: c_uint,
    pub(super) handle_types: c_uint,
    pub(super) location: MemoryLocation,
    pub(super) windows_metadata: usize,
    pub(super) compression_kind: u8,
    pub(super) gpu_direct_capable: u8,
    pub(super) usage: u16,
    pub(super) reserved: [u8; 4],
}

impl AllocationProperties {
    /// Describes memory of a device.
    pub(super) const fn of_device(device: RawDevice, flags: PhysicalFlags) -> Self {
        Self {
            kind: ALLOCATION_PINNED,
            handle_types: handle_type_number(flags.share_as),
            location: MemoryLocation { kind: LOCATION_DEVICE, id: device },
            windows_metadata: 0,
            compression_kind: 0,
            gpu_direct_capable: flags.gpu_direct_rdma as u8,
            usage: 0,
            reserved: [0; 4],
        }
    }
}

/// Returns the `CUmemAllocationHandleType`.
pub(super) const fn handle_type_number(handle_type: Option<HandleType>) -> c_uint {
    match handle_type {
        None => 0,
        Some(HandleType::FileDescriptor) => HANDLE_TYPE_FILE_DESCRIPTOR,
        Some(HandleType::Fabric) => HANDLE_TYPE_FABRIC,
    }
}

/// `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct RawIpcHandle {
    pub(super) bytes: [u8; 64],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct AccessDescription {
    pub(super) location: MemoryLocation,
    pub(super) flags: c_uint,
}

/// `CUmemPoolProps`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolProperties {
    pub(super) kind: c_uint,
    pub(super) handle_types: c_uint,
    pub(super) location: MemoryLocation,
    pub(super) windows_attributes: usize,
    pub(super) max_bytes: usize,
    pub(super) usage: u16,
    pub(super) reserved: [u8; 54],
}

/// `CUgraphEdgeData`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EdgeData {
    pub(super) from_port: u8,
    pub(super) to_port: u8,
    pub(super) kind: u8,
    pub(super) reserved: [u8; 5],
}

/// `CUgraphExecUpdateResultInfo`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UpdateResult {
    pub(super) result: c_uint,
    pub(super) error_node: RawGraphNode,
    pub(super) error_from_node: RawGraphNode,
}

/// `CUDA_KERNEL_NODE_PARAMS`, of CUDA 12.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelNodeParameters {
    pub(super) function: RawFunction,
    pub(super) grid: [c_uint; 3],
    pub(super) block: [c_uint; 3],
    pub(super) shared_bytes: c_uint,
    pub(super) parameters: *mut *mut c_void,
    pub(super) extra: *mut *mut c_void,
    /// Used if `function` is null.
    pub(super) kernel: RawKernel,
    /// Ignored if there is a function.
    pub(super) context: RawContext,
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct LaunchConfig {
    pub(super) grid: [c_uint; 3],
    pub(super) block: [c_uint; 3],
    pub(super) shared_bytes: c_uint,
    pub(super) stream: RawStream,
    pub(super) attributes: *mut LaunchAttribute,
    pub(super) attribute_count: c_uint,
}

/// `CUlaunchAttribute`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub(super) struct LaunchAttribute {
    pub(super) id: c_uint,
    pub(super) padding: c_uint,
    pub(super) value: [c_int; 16],
}

/// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`.
pub(super) const COOPERATIVE: c_uint = 2;

/// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`.
pub(super) const CLUSTER_DIMENSION: c_uint = 4;

/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
pub(super) const PROGRAMMATIC_STREAM_SERIALIZATION: c_uint = 6;

impl LaunchAttribute {
    /// Returns the attribute by which a launch may begin before the earlier work of the stream is complete.
    pub(super) const fn programmatic_stream_serialization() -> Self {
        Self::enabled(PROGRAMMATIC_STREAM_SERIALIZATION)
    }

    /// Returns the attribute by which all blocks of a launch run at once.
    pub(super) const fn cooperative() -> Self {
        Self::enabled(COOPERATIVE)
    }

    /// Returns the attribute that sets the number of blocks of a cluster.
    pub(super) const fn cluster(blocks: c_int) -> Self {
        let mut value = [0; 16];
        (value[0], value[1], value[2]) = (blocks, 1, 1);
        Self { id: CLUSTER_DIMENSION, padding: 0, value }
    }

    const fn enabled(id: c_uint) -> Self {
        let mut value = [0; 16];
        value[0] = 1;
        Self { id, padding: 0, value }
    }
}

/// `CUgraphNodeParams` of a conditional node.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct ConditionalNodeParameters {
    kind: c_uint,
    reserved_before: [c_int; 3],
    condition: u64,
    conditional: c_uint,
    count: c_uint,
    /// The place where the driver stores the bodies.
    pub(super) bodies: *mut RawGraph,
    context: RawContext,
    /// The room that the union needs for other kinds of nodes.
    rest: [u64; 25],
    reserved_after: i64,
}

impl ConditionalNodeParameters {
    /// Returns the offsets of the fields, for the comparison with generated bindings.
    #[cfg(test)]
    pub(super) fn offsets() -> [usize; 7] {
        use std::mem::offset_of;
        [
            offset_of!(Self, kind),
            offset_of!(Self, condition),
            offset_of!(Self, conditional),
            offset_of!(Self, count),
            offset_of!(Self, bodies),
            offset_of!(Self, context),
            offset_of!(Self, reserved_after),
        ]
    }

    pub(super) const fn new(condition: u64, conditional: c_uint, count: c_uint, context: RawContext) -> Self {
        Self {
            kind: NODE_CONDITIONAL,
            reserved_before: [0; 3],
            condition,
            conditional,
            count,
            bodies: std::ptr::null_mut(),
            context,
            rest: [0; 25],
            reserved_after: 0,
        }
    }
}

/// `CUDA_MEMCPY3D`. Only the size is read.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CopyNodeParameters {
    pub(super) source: [usize; 11],
    pub(super) target: [usize; 11],
    pub(super) width_bytes: usize,
    pub(super) height: usize,
    pub(super) depth: usize,
}

/// `CUDA_MEMSET_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FillNodeParameters {
    pub(super) target: RawPointer,
    pub(super) pitch: usize,
    pub(super) value: c_uint,
    pub(super) element_bytes: c_uint,
    pub(super) width: usize,
    pub(super) height: usize,
}

pub(super) const ALLOCATION_PINNED: c_uint = 1;
pub(super) const LOCATION_DEVICE: c_uint = 1;
pub(super) const LOCATION_HOST: c_uint = 2;
pub(super) const HANDLE_TYPE_FILE_DESCRIPTOR: c_uint = 1;
pub(super) const HANDLE_TYPE_FABRIC: c_uint = 8;
pub(super) const ACCESS_NONE: c_uint = 0;
pub(super) const ACCESS_READ: c_uint = 1;
pub(super) const ACCESS_READ_WRITE: c_uint = 3;
pub(super) const GRANULARITY_MINIMUM: c_uint = 0;
pub(super) const POOL_REUSE_FOLLOW_EVENT_DEPENDENCIES: c_uint = 1;
pub(super) const POOL_REUSE_ALLOW_OPPORTUNISTIC: c_uint = 2;
pub(super) const POOL_REUSE_ALLOW_INTERNAL_DEPENDENCIES: c_uint = 3;
pub(super) const POOL_RELEASE_THRESHOLD: c_uint = 4;
pub(super) const POOL_RESERVED_CURRENT: c_uint = 5;
pub(super) const POOL_RESERVED_HIGH: c_uint = 6;
pub(super) const POOL_USED_CURRENT: c_uint = 7;
pub(super) const POOL_USED_HIGH: c_uint = 8;
pub(super) const ATTACH_GLOBAL: c_uint = 1;
pub(super) const ADVISE_SET_READ_MOSTLY: c_uint = 1;
pub(super) const ADVISE_UNSET_READ_MOSTLY: c_uint = 2;
pub(super) const ADVISE_SET_PREFERRED_LOCATION: c_uint = 3;
pub(super) const ADVISE_UNSET_PREFERRED_LOCATION: c_uint = 4;
pub(super) const ADVISE_SET_ACCESSED_BY: c_uint = 5;
pub(super) const ADVISE_UNSET_ACCESSED_BY: c_uint = 6;
/// The host as a device, for the call without locations.
pub(super) const DEVICE_CPU: RawDevice = -1;
pub(super) const IPC_LAZY_ENABLE_PEER_ACCESS: c_uint = 1;
pub(super) const STREAM_NON_BLOCKING: c_uint = 1;
pub(super) const EVENT_BLOCKING_SYNC: c_uint = 1;
pub(super) const EVENT_RECORD_EXTERNAL: c_uint = 1;
pub(super) const EVENT_WAIT_EXTERNAL: c_uint = 1;
pub(super) const EVENT_DISABLE_TIMING: c_uint = 2;
pub(super) const HOST_PORTABLE: c_uint = 1;
pub(super) const HOST_REGISTER_PORTABLE: c_uint = 1;
pub(super) const HOST_WRITE_COMBINED: c_uint = 4;
pub(super) const CAPTURE_NONE: c_uint = 0;
pub(super) const CAPTURE_ACTIVE: c_uint = 1;
pub(super) const MODE_GLOBAL: c_uint = 0;
pub(super) const MODE_THREAD_LOCAL: c_uint = 1;
pub(super) const MODE_RELAXED: c_uint = 2;
pub(super) const DEPENDENCIES_ADD: c_uint = 0;
pub(super) const DEPENDENCIES_SET: c_uint = 1;
pub(super) const INSTANTIATE_AUTO_FREE_ON_LAUNCH: c_ulonglong = 1;
pub(super) const INSTANTIATE_USE_NODE_PRIORITY: c_ulonglong = 8;
pub(super) const CONDITION_ASSIGN_DEFAULT: c_uint = 1;
pub(super) const CONDITIONAL_IF: c_uint = 0;
pub(super) const CONDITIONAL_WHILE: c_uint = 1;
pub(super) const CONDITIONAL_SWITCH: c_uint = 2;
pub(super) const NODE_CONDITIONAL: c_uint = 13;
pub(super) const DEBUG_DOT_VERBOSE: c_uint = 1;
pub(super) const UPDATE_TOPOLOGY_CHANGED: c_uint = 2;
pub(super) const UPDATE_NODE_TYPE_CHANGED: c_uint = 3;
pub(super) const UPDATE_FUNCTION_CHANGED: c_uint = 4;
pub(super) const UPDATE_PARAMETERS_CHANGED: c_uint = 5;
pub(super) const UPDATE_NOT_SUPPORTED: c_uint = 6;
pub(super) const UPDATE_UNSUPPORTED_FUNCTION_CHANGE: c_uint = 7;
pub(super) const UPDATE_ATTRIBUTES_CHANGED: c_uint = 8;
pub(super) const USER_OBJECT_NO_DESTRUCTOR_SYNC: c_uint = 1;
pub(super) const GRAPH_USER_OBJECT_MOVE: c_uint = 1;
pub(super) const LAUNCH_PARAMETER_END: usize = 0;
pub(super) const LAUNCH_PARAMETER_BUFFER_POINTER: usize = 1;
pub(super) const LAUNCH_PARAMETER_BUFFER_SIZE: usize = 2;
pub(super) const JIT_ERROR_LOG_BUFFER: c_uint = 5;
pub(super) const JIT_ERROR_LOG_BUFFER_SIZE_BYTES: c_uint = 6;
pub(super) const POINTER_MEMORY_TYPE: c_uint = 2;
pub(super) const MEMORY_TYPE_DEVICE: c_uint = 2;
pub(super) const GET_PROC_ADDRESS_LEGACY_STREAM: u64 = 1;

/// `CUdevice_attribute`, the values that [`DeviceProperties`](crate::DeviceProperties) needs.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DeviceAttribute {
    MaxThreadsPerBlock = 1,
    MaxSharedMemoryPerBlock = 8,
    WarpSize = 10,
    ClockRate = 13,
    MultiprocessorCount = 16,
    Integrated = 18,
    MemoryClockRate = 36,
    GlobalMemoryBusWidth = 37,
    L2CacheSize = 38,
    MaxThreadsPerMultiprocessor = 39,
    ComputeCapabilityMajor = 75,
    ComputeCapabilityMinor = 76,
    MaxRegistersPerMultiprocessor = 82,
    ManagedMemory = 83,
    ConcurrentManagedAccess = 89,
    MaxSharedMemoryPerBlockOptin = 97,
    HostRegisterSupported = 99,
    VirtualMemorySupported = 102,
    FileDescriptorHandlesSupported = 103,
    GpuDirectRdmaWithVirtualMemorySupported = 110,
    MemoryPoolsSupported = 115,
    FabricHandlesSupported = 128,
}

/// `CUfunction_attribute`.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FunctionAttribute {
    MaxThreadsPerBlock = 0,
    SharedSizeBytes = 1,
    LocalSizeBytes = 3,
    Registers = 4,
    MaxDynamicSharedSizeBytes = 8,
}

entry_points! {
    /// libcuda.
    CudaTable {
        init = "cuInit" @ 2000 c"cuInit" (flags: c_uint);
        get_error_name = "cuGetErrorName" @ 6000 c"cuGetErrorName" (status: u32, text: *mut *const c_char);
        get_error_string = "cuGetErrorString" @ 6000 c"cuGetErrorString" (status: u32, text: *mut *const c_char);

        device_get_count = "cuDeviceGetCount" @ 2000 c"cuDeviceGetCount" (count: *mut c_int);
        device_get = "cuDeviceGet" @ 2000 c"cuDeviceGet" (device: *mut RawDevice, ordinal: c_int);
        device_get_name = "cuDeviceGetName" @ 2000 c"cuDeviceGetName"
            (name: *mut c_char, bytes: c_int, device: RawDevice);
        device_get_uuid = "cuDeviceGetUuid" @ 11040 c"cuDeviceGetUuid_v2" (uuid: *mut [u8; 16], device: RawDevice);
        device_get_attribute = "cuDeviceGetAttribute" @ 2000 c"cuDeviceGetAttribute"
            (value: *mut c_int, attribute: DeviceAttribute, device: RawDevice);
        device_total_memory = "cuDeviceTotalMem" @ 3020 c"cuDeviceTotalMem_v2" (bytes: *mut usize, device: RawDevice);
        device_get_pci_bus_id = "cuDeviceGetPCIBusId" @ 4010 c"cuDeviceGetPCIBusId"
            (text: *mut c_char, bytes: c_int, device: RawDevice);
        device_can_access_peer = "cuDeviceCanAccessPeer" @ 4000 c"cuDeviceCanAccessPeer"
            (answer: *mut c_int, device: RawDevice, peer: RawDevice);

        primary_context_retain = "cuDevicePrimaryCtxRetain" @ 7000 c"cuDevicePrimaryCtxRetain"
            (context: *mut RawContext, device: RawDevice);
        primary_context_state = "cuDevicePrimaryCtxGetState" @ 7000 c"cuDevicePrimaryCtxGetState"
            (device: RawDevice, flags: *mut c_uint, active: *mut c_int);
        context_get_current = "cuCtxGetCurrent" @ 4000 c"cuCtxGetCurrent" (context: *mut RawContext);
        context_set_current = "cuCtxSetCurrent" @ 4000 c"cuCtxSetCurrent" (context: RawContext);
        context_get_device = "cuCtxGetDevice" @ 2000 c"cuCtxGetDevice" (device: *mut RawDevice);
        context_synchronize = "cuCtxSynchronize" @ 2000 c"cuCtxSynchronize" ();
        context_priority_range = "cuCtxGetStreamPriorityRange" @ 5050 c"cuCtxGetStreamPriorityRange"
            (least: *mut c_int, greatest: *mut c_int);
        context_enable_peer = "cuCtxEnablePeerAccess" @ 4000 c"cuCtxEnablePeerAccess"
            (peer: RawContext, flags: c_uint);
        context_disable_peer = "cuCtxDisablePeerAccess" @ 4000 c"cuCtxDisablePeerAccess" (peer: RawContext);

        memory_get_info = "cuMemGetInfo" @ 3020 c"cuMemGetInfo_v2" (free: *mut usize, total: *mut usize);
        memory_allocate = "cuMemAlloc" @ 3020 c"cuMemAlloc_v2" (pointer: *mut RawPointer, bytes: usize);
        memory_free = "cuMemFree" @ 3020 c"cuMemFree_v2" (pointer: RawPointer);
        host_allocate = "cuMemHostAlloc" @ 2020 c"cuMemHostAlloc"
            (pointer: *mut *mut c_void, bytes: usize, flags: c_uint);
        memory_allocate_managed = "cuMemAllocManaged" @ 6000 c"cuMemAllocManaged"
            (pointer: *mut RawPointer, bytes: usize, flags: c_uint);
        advise_v1 = "cuMemAdvise" @ 8000 c"cuMemAdvise"
            (pointer: RawPointer, bytes: usize, advice: c_uint, device: RawDevice);
        advise_v2 = "cuMemAdvise" @ 12020 c"cuMemAdvise_v2"
            (pointer: RawPointer, bytes: usize, advice: c_uint, location: MemoryLocation);
        address_range = "cuMemGetAddressRange" @ 3020 c"cuMemGetAddressRange_v2"
            (start: *mut RawPointer, bytes: *mut usize, pointer: RawPointer);
        ipc_export = "cuIpcGetMemHandle" @ 4010 c"cuIpcGetMemHandle" (handle: *mut RawIpcHandle, pointer: RawPointer);
        ipc_open = "cuIpcOpenMemHandle" @ 11000 c"cuIpcOpenMemHandle_v2"
            (pointer: *mut RawPointer, handle: RawIpcHandle, flags: c_uint);
        ipc_close = "cuIpcCloseMemHandle" @ 4010 c"cuIpcCloseMemHandle" (pointer: RawPointer);
        host_free = "cuMemFreeHost" @ 2000 c"cuMemFreeHost" (pointer: *mut c_void);
        host_register = "cuMemHostRegister" @ 6050 c"cuMemHostRegister_v2"
            (pointer: *mut c_void, bytes: usize, flags: c_uint);
        host_unregister = "cuMemHostUnregister" @ 4000 c"cuMemHostUnregister" (pointer: *mut c_void);
        pointer_get_attribute = "cuPointerGetAttribute" @ 4000 c"cuPointerGetAttribute"
            (value: *mut c_void, attribute: c_uint, pointer: RawPointer);
        address_reserve = "cuMemAddressReserve" @ 10020 c"cuMemAddressReserve"
            (pointer: *mut RawPointer, bytes: usize, alignment: usize, wanted: RawPointer, flags: c_ulonglong);
        address_free = "cuMemAddressFree" @ 10020 c"cuMemAddressFree" (pointer: RawPointer, bytes: usize);
        physical_create = "cuMemCreate" @ 10020 c"cuMemCreate"
            (physical: *mut RawPhysical, bytes: usize, properties: *const AllocationProperties, flags: c_ulonglong);
        physical_release = "cuMemRelease" @ 10020 c"cuMemRelease" (physical: RawPhysical);
        physical_export = "cuMemExportToShareableHandle" @ 10020 c"cuMemExportToShareableHandle"
            (target: *mut c_void, physical: RawPhysical, handle_type: c_uint, flags: c_ulonglong);
        physical_import = "cuMemImportFromShareableHandle" @ 10020 c"cuMemImportFromShareableHandle"
            (physical: *mut RawPhysical, source: *mut c_void, handle_type: c_uint);
        physical_properties = "cuMemGetAllocationPropertiesFromHandle" @ 10020 c"cuMemGetAllocationPropertiesFromHandle"
            (properties: *mut AllocationProperties, physical: RawPhysical);
        memory_map = "cuMemMap" @ 10020 c"cuMemMap"
            (pointer: RawPointer, bytes: usize, offset: usize, physical: RawPhysical, flags: c_ulonglong);
        memory_unmap = "cuMemUnmap" @ 10020 c"cuMemUnmap" (pointer: RawPointer, bytes: usize);
        memory_set_access = "cuMemSetAccess" @ 10020 c"cuMemSetAccess"
            (pointer: RawPointer, bytes: usize, descriptions: *const AccessDescription, count: usize);
        allocation_granularity = "cuMemGetAllocationGranularity" @ 10020 c"cuMemGetAllocationGranularity"
            (bytes: *mut usize, properties: *const AllocationProperties, option: c_uint);
        pool_create = "cuMemPoolCreate" @ 11020 c"cuMemPoolCreate"
            (pool: *mut RawPool, properties: *const PoolProperties);
        pool_destroy = "cuMemPoolDestroy" @ 11020 c"cuMemPoolDestroy" (pool: RawPool);
        pool_set_attribute = "cuMemPoolSetAttribute" @ 11020 c"cuMemPoolSetAttribute"
            (pool: RawPool, attribute: c_uint, value: *mut c_void);
        pool_get_attribute = "cuMemPoolGetAttribute" @ 11020 c"cuMemPoolGetAttribute"
            (pool: RawPool, attribute: c_uint, value: *mut c_void);
        pool_trim = "cuMemPoolTrimTo" @ 11020 c"cuMemPoolTrimTo" (pool: RawPool, keep_bytes: usize);
        pool_allocate = "cuMemAllocFromPoolAsync" @ 11020 c"cuMemAllocFromPoolAsync"
            (pointer: *mut RawPointer, bytes: usize, pool: RawPool, stream: RawStream);
        memory_free_async = "cuMemFreeAsync" @ 11020 c"cuMemFreeAsync" (pointer: RawPointer, stream: RawStream);

        copy_async = "cuMemcpyAsync" @ 4000 c"cuMemcpyAsync"
            (target: RawPointer, source: RawPointer, bytes: usize, stream: RawStream);
        copy_to_device = "cuMemcpyHtoDAsync" @ 3020 c"cuMemcpyHtoDAsync_v2"
            (target: RawPointer, source: *const c_void, bytes: usize, stream: RawStream);
        copy_to_host = "cuMemcpyDtoHAsync" @ 3020 c"cuMemcpyDtoHAsync_v2"
            (target: *mut c_void, source: RawPointer, bytes: usize, stream: RawStream);
        fill_8 = "cuMemsetD8Async" @ 3020 c"cuMemsetD8Async"
            (target: RawPointer, value: u8, count: usize, stream: RawStream);
        fill_16 = "cuMemsetD16Async" @ 3020 c"cuMemsetD16Async"
            (target: RawPointer, value: u16, count: usize, stream: RawStream);
        fill_32 = "cuMemsetD32Async" @ 3020 c"cuMemsetD32Async"
            (target: RawPointer, value: u32, count: usize, stream: RawStream);
        launch_host_function = "cuLaunchHostFunc" @ 10000 c"cuLaunchHostFunc"
            (stream: RawStream, function: RawHostFunction, data: *mut c_void);

        stream_create = "cuStreamCreateWithPriority" @ 5050 c"cuStreamCreateWithPriority"
            (stream: *mut RawStream, flags: c_uint, priority: c_int);
        stream_destroy = "cuStreamDestroy" @ 4000 c"cuStreamDestroy_v2" (stream: RawStream);
        stream_get_priority = "cuStreamGetPriority" @ 5050 c"cuStreamGetPriority"
            (stream: RawStream, priority: *mut c_int);
        stream_get_flags = "cuStreamGetFlags" @ 5050 c"cuStreamGetFlags" (stream: RawStream, flags: *mut c_uint);
        stream_get_context = "cuStreamGetCtx" @ 9020 c"cuStreamGetCtx" (stream: RawStream, context: *mut RawContext);
        stream_get_device = "cuStreamGetDevice" @ 12080 c"cuStreamGetDevice"
            (stream: RawStream, device: *mut RawDevice);
        stream_query = "cuStreamQuery" @ 2000 c"cuStreamQuery" (stream: RawStream);
        stream_synchronize = "cuStreamSynchronize" @ 2000 c"cuStreamSynchronize" (stream: RawStream);
        stream_wait_event = "cuStreamWaitEvent" @ 3020 c"cuStreamWaitEvent"
            (stream: RawStream, event: RawEvent, flags: c_uint);

        event_create = "cuEventCreate" @ 2000 c"cuEventCreate" (event: *mut RawEvent, flags: c_uint);
        event_destroy = "cuEventDestroy" @ 4000 c"cuEventDestroy_v2" (event: RawEvent);
        event_record = "cuEventRecord" @ 2000 c"cuEventRecord" (event: RawEvent, stream: RawStream);
        event_record_with_flags = "cuEventRecordWithFlags" @ 11010 c"cuEventRecordWithFlags"
            (event: RawEvent, stream: RawStream, flags: c_uint);
        event_query = "cuEventQuery" @ 2000 c"cuEventQuery" (event: RawEvent);
        event_synchronize = "cuEventSynchronize" @ 2000 c"cuEventSynchronize" (event: RawEvent);
        event_elapsed_v1 = "cuEventElapsedTime" @ 2000 c"cuEventElapsedTime"
            (milliseconds: *mut f32, start: RawEvent, end: RawEvent);
        event_elapsed_v2 = "cuEventElapsedTime" @ 12080 c"cuEventElapsedTime_v2"
            (milliseconds: *mut f32, start: RawEvent, end: RawEvent);

        module_load = "cuModuleLoadDataEx" @ 2010 c"cuModuleLoadDataEx"
            (module: *mut RawModule, image: *const c_void, count: c_uint, options: *mut c_uint, values: *mut *mut c_void);
        module_unload = "cuModuleUnload" @ 2000 c"cuModuleUnload" (module: RawModule);
        module_get_function = "cuModuleGetFunction" @ 2000 c"cuModuleGetFunction"
            (function: *mut RawFunction, module: RawModule, name: *const c_char);
        function_get_attribute = "cuFuncGetAttribute" @ 2020 c"cuFuncGetAttribute"
            (value: *mut c_int, attribute: FunctionAttribute, function: RawFunction);
        function_set_attribute = "cuFuncSetAttribute" @ 9000 c"cuFuncSetAttribute"
            (function: RawFunction, attribute: FunctionAttribute, value: c_int);
        function_get_parameter = "cuFuncGetParamInfo" @ 12040 c"cuFuncGetParamInfo"
            (function: RawFunction, index: usize, offset: *mut usize, bytes: *mut usize);
        launch_kernel = "cuLaunchKernel" @ 4000 c"cuLaunchKernel"
            (function: RawFunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
             block_z: c_uint, shared_bytes: c_uint, stream: RawStream, parameters: *mut *mut c_void,
             extra: *mut *mut c_void);
        launch_kernel_ex = "cuLaunchKernelEx" @ 11060 c"cuLaunchKernelEx"
            (config: *const LaunchConfig, function: RawFunction, parameters: *mut *mut c_void, extra: *mut *mut c_void);
        occupancy_max_active_clusters = "cuOccupancyMaxActiveClusters" @ 11080 c"cuOccupancyMaxActiveClusters"
            (clusters: *mut c_int, function: RawFunction, config: *const LaunchConfig);
        tensor_map_encode_tiled = "cuTensorMapEncodeTiled" @ 12000 c"cuTensorMapEncodeTiled"
            (map: *mut c_void, elements: c_uint, rank: c_uint, address: u64, extents: *const u64, strides: *const u64,
             tile: *const c_uint, steps: *const c_uint, interleave: c_uint, swizzle: c_uint, promotion: c_uint, fill: c_uint);

        stream_begin_capture = "cuStreamBeginCapture" @ 10010 c"cuStreamBeginCapture_v2"
            (stream: RawStream, mode: c_uint);
        stream_end_capture = "cuStreamEndCapture" @ 10000 c"cuStreamEndCapture"
            (stream: RawStream, graph: *mut RawGraph);
        stream_is_capturing = "cuStreamIsCapturing" @ 10000 c"cuStreamIsCapturing"
            (stream: RawStream, status: *mut c_uint);
        capture_info_v2 = "cuStreamGetCaptureInfo" @ 11030 c"cuStreamGetCaptureInfo_v2"
            (stream: RawStream, status: *mut c_uint, id: *mut u64, graph: *mut RawGraph,
             dependencies: *mut *const RawGraphNode, count: *mut usize);
        capture_info_v3 = "cuStreamGetCaptureInfo" @ 12030 c"cuStreamGetCaptureInfo_v3"
            (stream: RawStream, status: *mut c_uint, id: *mut u64, graph: *mut RawGraph,
             dependencies: *mut *const RawGraphNode, edges: *mut *const EdgeData, count: *mut usize);
        update_dependencies_v1 = "cuStreamUpdateCaptureDependencies" @ 11030 c"cuStreamUpdateCaptureDependencies"
            (stream: RawStream, dependencies: *mut RawGraphNode, count: usize, flags: c_uint);
        update_dependencies_v2 = "cuStreamUpdateCaptureDependencies" @ 12030 c"cuStreamUpdateCaptureDependencies_v2"
            (stream: RawStream, dependencies: *mut RawGraphNode, edges: *const EdgeData, count: usize, flags: c_uint);
        begin_capture_to_graph = "cuStreamBeginCaptureToGraph" @ 12030 c"cuStreamBeginCaptureToGraph"
            (stream: RawStream, graph: RawGraph, dependencies: *const RawGraphNode, edges: *const EdgeData, count: usize,
             mode: c_uint);
        condition_create = "cuGraphConditionalHandleCreate" @ 12030 c"cuGraphConditionalHandleCreate"
            (condition: *mut u64, graph: RawGraph, context: RawContext, initial: c_uint, flags: c_uint);
        graph_add_node = "cuGraphAddNode" @ 12030 c"cuGraphAddNode_v2"
            (node: *mut RawGraphNode, graph: RawGraph, dependencies: *const RawGraphNode, edges: *const EdgeData,
             count: usize, parameters: *mut ConditionalNodeParameters);
        exchange_capture_mode = "cuThreadExchangeStreamCaptureMode" @ 10010 c"cuThreadExchangeStreamCaptureMode"
            (mode: *mut c_uint);
        graph_get_nodes = "cuGraphGetNodes" @ 10000 c"cuGraphGetNodes"
            (graph: RawGraph, nodes: *mut RawGraphNode, count: *mut usize);
        graph_get_edges_v1 = "cuGraphGetEdges" @ 10000 c"cuGraphGetEdges"
            (graph: RawGraph, from: *mut RawGraphNode, to: *mut RawGraphNode, count: *mut usize);
        graph_get_edges_v2 = "cuGraphGetEdges" @ 12030 c"cuGraphGetEdges_v2"
            (graph: RawGraph, from: *mut RawGraphNode, to: *mut RawGraphNode, edges: *mut EdgeData, count: *mut usize);
        graph_node_predecessors_v1 = "cuGraphNodeGetDependencies" @ 10000 c"cuGraphNodeGetDependencies"
            (node: RawGraphNode, nodes: *mut RawGraphNode, count: *mut usize);
        graph_node_predecessors_v2 = "cuGraphNodeGetDependencies" @ 12030 c"cuGraphNodeGetDependencies_v2"
            (node: RawGraphNode, nodes: *mut RawGraphNode, edges: *mut EdgeData, count: *mut usize);
        graph_node_get_type = "cuGraphNodeGetType" @ 10000 c"cuGraphNodeGetType"
            (node: RawGraphNode, kind: *mut c_uint);
        graph_kernel_node_get = "cuGraphKernelNodeGetParams" @ 12000 c"cuGraphKernelNodeGetParams_v2"
            (node: RawGraphNode, parameters: *mut KernelNodeParameters);
        graph_copy_node_get = "cuGraphMemcpyNodeGetParams" @ 10000 c"cuGraphMemcpyNodeGetParams"
            (node: RawGraphNode, parameters: *mut CopyNodeParameters);
        graph_fill_node_get = "cuGraphMemsetNodeGetParams" @ 10000 c"cuGraphMemsetNodeGetParams"
            (node: RawGraphNode, parameters: *mut FillNodeParameters);
        function_get_name = "cuFuncGetName" @ 12030 c"cuFuncGetName"
            (name: *mut *const c_char, function: RawFunction);
        kernel_get_name = "cuKernelGetName" @ 12030 c"cuKernelGetName"
            (name: *mut *const c_char, kernel: RawKernel);
        graph_debug_dot_print = "cuGraphDebugDotPrint" @ 11030 c"cuGraphDebugDotPrint"
            (graph: RawGraph, path: *const c_char, flags: c_uint);
        graph_instantiate = "cuGraphInstantiateWithFlags" @ 11040 c"cuGraphInstantiateWithFlags"
            (exec: *mut RawGraphExec, graph: RawGraph, flags: c_ulonglong);
        graph_exec_update = "cuGraphExecUpdate" @ 12000 c"cuGraphExecUpdate_v2"
            (exec: RawGraphExec, graph: RawGraph, result: *mut UpdateResult);
        graph_exec_kernel_node_set = "cuGraphExecKernelNodeSetParams" @ 12000 c"cuGraphExecKernelNodeSetParams_v2"
            (exec: RawGraphExec, node: RawGraphNode, parameters: *const KernelNodeParameters);
        graph_launch = "cuGraphLaunch" @ 10000 c"cuGraphLaunch" (exec: RawGraphExec, stream: RawStream);
        graph_destroy = "cuGraphDestroy" @ 10000 c"cuGraphDestroy" (graph: RawGraph);
        graph_exec_destroy = "cuGraphExecDestroy" @ 10000 c"cuGraphExecDestroy" (exec: RawGraphExec);
        user_object_create = "cuUserObjectCreate" @ 11030 c"cuUserObjectCreate"
            (object: *mut RawUserObject, data: *mut c_void, destroy: RawHostFunction, references: c_uint, flags: c_uint);
        user_object_release = "cuUserObjectRelease" @ 11030 c"cuUserObjectRelease"
            (object: RawUserObject, references: c_uint);
        graph_retain_user_object = "cuGraphRetainUserObject" @ 11030 c"cuGraphRetainUserObject"
            (graph: RawGraph, object: RawUserObject, references: c_uint, flags: c_uint);
    }
}
