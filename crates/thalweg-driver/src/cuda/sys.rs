//! The part of `cuda.h` that we use: types, constants and the table of entry points.
//!
//! The types are our own, in C's layout; a test compares every size, offset, constant and signature with a second,
//! generated description of the same header. Handles are integers as wide as a pointer, with one type each, so that they
//! can be sent between threads and cannot be mixed up.
//!
//! Each entry point has the *version of CUDA that introduced its signature*. It is looked up by that version, so a newer
//! driver, which may have a newer signature under the same name, still returns the one that is written here.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use super::table::{entry_points, numbers};
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

numbers! { constants_of_the_driver from cudarc::driver::sys, pub(super) c_uint {
    ALLOCATION_PINNED = 1, CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    LOCATION_DEVICE = 1, CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    LOCATION_HOST = 2, CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST;
    HANDLE_TYPE_FILE_DESCRIPTOR = 1, CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;
    HANDLE_TYPE_FABRIC = 8, CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC.0;
    ACCESS_NONE = 0, CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;
    ACCESS_READ = 1, CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ;
    ACCESS_READ_WRITE = 3, CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    GRANULARITY_MINIMUM = 0, CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    POOL_REUSE_FOLLOW_EVENT_DEPENDENCIES = 1, CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES;
    POOL_REUSE_ALLOW_OPPORTUNISTIC = 2, CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC;
    POOL_REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3, CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
    POOL_RELEASE_THRESHOLD = 4, CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    POOL_RESERVED_CURRENT = 5, CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
    POOL_RESERVED_HIGH = 6, CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
    POOL_USED_CURRENT = 7, CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
    POOL_USED_HIGH = 8, CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH;
    ATTACH_GLOBAL = 1, CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL;
    ADVISE_SET_READ_MOSTLY = 1, CUmem_advise::CU_MEM_ADVISE_SET_READ_MOSTLY;
    ADVISE_UNSET_READ_MOSTLY = 2, CUmem_advise::CU_MEM_ADVISE_UNSET_READ_MOSTLY;
    ADVISE_SET_PREFERRED_LOCATION = 3, CUmem_advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION;
    ADVISE_UNSET_PREFERRED_LOCATION = 4, CUmem_advise::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION;
    ADVISE_SET_ACCESSED_BY = 5, CUmem_advise::CU_MEM_ADVISE_SET_ACCESSED_BY;
    ADVISE_UNSET_ACCESSED_BY = 6, CUmem_advise::CU_MEM_ADVISE_UNSET_ACCESSED_BY;
    IPC_LAZY_ENABLE_PEER_ACCESS = 1, CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
    STREAM_NON_BLOCKING = 1, CUstream_flags::CU_STREAM_NON_BLOCKING;
    EVENT_BLOCKING_SYNC = 1, CUevent_flags::CU_EVENT_BLOCKING_SYNC;
    EVENT_DISABLE_TIMING = 2, CUevent_flags::CU_EVENT_DISABLE_TIMING;
    HOST_PORTABLE = 1, CU_MEMHOSTALLOC_PORTABLE;
    HOST_REGISTER_PORTABLE = 1, CU_MEMHOSTREGISTER_PORTABLE;
    HOST_WRITE_COMBINED = 4, CU_MEMHOSTALLOC_WRITECOMBINED;
    CAPTURE_NONE = 0, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    CAPTURE_ACTIVE = 1, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
    MODE_GLOBAL = 0, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    MODE_THREAD_LOCAL = 1, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    MODE_RELAXED = 2, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    DEPENDENCIES_ADD = 0, CUstreamUpdateCaptureDependencies_flags::CU_STREAM_ADD_CAPTURE_DEPENDENCIES;
    DEPENDENCIES_SET = 1, CUstreamUpdateCaptureDependencies_flags::CU_STREAM_SET_CAPTURE_DEPENDENCIES;
    CONDITION_ASSIGN_DEFAULT = 1, CU_GRAPH_COND_ASSIGN_DEFAULT;
    CONDITIONAL_IF = 0, CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_IF;
    CONDITIONAL_WHILE = 1, CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_WHILE;
    CONDITIONAL_SWITCH = 2, CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_SWITCH;
    NODE_CONDITIONAL = 13, CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL;
    DEBUG_DOT_VERBOSE = 1, CUgraphDebugDot_flags::CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE;
    UPDATE_TOPOLOGY_CHANGED = 2, CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    UPDATE_NODE_TYPE_CHANGED = 3, CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    UPDATE_FUNCTION_CHANGED = 4, CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_FUNCTION_CHANGED;
    UPDATE_PARAMETERS_CHANGED = 5, CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    UPDATE_NOT_SUPPORTED = 6, CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
    UPDATE_UNSUPPORTED_FUNCTION_CHANGE = 7, CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE;
    UPDATE_ATTRIBUTES_CHANGED = 8, CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED;
    USER_OBJECT_NO_DESTRUCTOR_SYNC = 1, CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC;
    GRAPH_USER_OBJECT_MOVE = 1, CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE;
    JIT_ERROR_LOG_BUFFER = 5, CUjit_option::CU_JIT_ERROR_LOG_BUFFER;
    JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES;
    POINTER_MEMORY_TYPE = 2, CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    MEMORY_TYPE_DEVICE = 2, CUmemorytype::CU_MEMORYTYPE_DEVICE;
} }

/// The host as a device, for the call without locations.
pub(super) const DEVICE_CPU: RawDevice = -1;
pub(super) const EVENT_RECORD_EXTERNAL: c_uint = 1;
pub(super) const EVENT_WAIT_EXTERNAL: c_uint = 1;

numbers! { long_constants_of_the_driver from cudarc::driver::sys, pub(super) u64 {
    GET_PROC_ADDRESS_LEGACY_STREAM = 1, CUdriverProcAddress_flags::CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    INSTANTIATE_AUTO_FREE_ON_LAUNCH = 1, CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH.0;
    INSTANTIATE_USE_NODE_PRIORITY = 8, CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY.0;
} }
numbers! { sizes_of_the_driver from cudarc::driver::sys, pub(super) usize {
    LAUNCH_PARAMETER_END = 0, CU_LAUNCH_PARAM_END_AS_INT;
    LAUNCH_PARAMETER_BUFFER_POINTER = 1, CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT;
    LAUNCH_PARAMETER_BUFFER_SIZE = 2, CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT;
} }

numbers! { variants_of_device_attribute from cudarc::driver::sys::CUdevice_attribute,
    /// `CUdevice_attribute`, the values that [`DeviceProperties`](crate::DeviceProperties) needs.
    pub(super) enum DeviceAttribute {
        MaxThreadsPerBlock = 1, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
        MaxSharedMemoryPerBlock = 8, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK;
        WarpSize = 10, CU_DEVICE_ATTRIBUTE_WARP_SIZE;
        ClockRate = 13, CU_DEVICE_ATTRIBUTE_CLOCK_RATE;
        MultiprocessorCount = 16, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        Integrated = 18, CU_DEVICE_ATTRIBUTE_INTEGRATED;
        MemoryClockRate = 36, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE;
        GlobalMemoryBusWidth = 37, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH;
        L2CacheSize = 38, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE;
        MaxThreadsPerMultiprocessor = 39, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR;
        ComputeCapabilityMajor = 75, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
        ComputeCapabilityMinor = 76, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR;
        MaxRegistersPerMultiprocessor = 82, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR;
        ManagedMemory = 83, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY;
        ConcurrentManagedAccess = 89, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
        MaxSharedMemoryPerBlockOptin = 97, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        HostRegisterSupported = 99, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED;
        VirtualMemorySupported = 102,
            cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
        FileDescriptorHandlesSupported = 103, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
        GpuDirectRdmaWithVirtualMemorySupported = 110, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
        MemoryPoolsSupported = 115, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
        FabricHandlesSupported = 128, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED;
    }
}

numbers! { variants_of_function_attribute from cudarc::driver::sys::CUfunction_attribute,
    /// `CUfunction_attribute`.
    pub(super) enum FunctionAttribute {
        MaxThreadsPerBlock = 0, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
        SharedSizeBytes = 1, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
        LocalSizeBytes = 3, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES;
        Registers = 4, CU_FUNC_ATTRIBUTE_NUM_REGS;
        MaxDynamicSharedSizeBytes = 8, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    }
}

entry_points! {
    /// libcuda.
    CudaTable from cudarc::driver::sys {
        init = cuInit @ 2000 (flags: c_uint);
        get_error_name = cuGetErrorName @ 6000 (status: u32, text: *mut *const c_char);
        get_error_string = cuGetErrorString @ 6000 (status: u32, text: *mut *const c_char);

        device_get_count = cuDeviceGetCount @ 2000 (count: *mut c_int);
        device_get = cuDeviceGet @ 2000 (device: *mut RawDevice, ordinal: c_int);
        device_get_name = cuDeviceGetName @ 2000 (name: *mut c_char, bytes: c_int, device: RawDevice);
        device_get_uuid = cuDeviceGetUuid as cuDeviceGetUuid_v2 @ 11040 old (uuid: *mut [u8; 16], device: RawDevice);
        device_get_attribute = cuDeviceGetAttribute @ 2000 (value: *mut c_int, attribute: DeviceAttribute, device: RawDevice);
        device_total_memory = cuDeviceTotalMem as cuDeviceTotalMem_v2 @ 3020 (bytes: *mut usize, device: RawDevice);
        device_get_pci_bus_id = cuDeviceGetPCIBusId @ 4010 (text: *mut c_char, bytes: c_int, device: RawDevice);
        device_can_access_peer = cuDeviceCanAccessPeer @ 4000 (answer: *mut c_int, device: RawDevice, peer: RawDevice);

        primary_context_retain = cuDevicePrimaryCtxRetain @ 7000 (context: *mut RawContext, device: RawDevice);
        primary_context_state = cuDevicePrimaryCtxGetState @ 7000 (device: RawDevice, flags: *mut c_uint, active: *mut c_int);
        context_get_current = cuCtxGetCurrent @ 4000 (context: *mut RawContext);
        context_set_current = cuCtxSetCurrent @ 4000 (context: RawContext);
        context_get_device = cuCtxGetDevice @ 2000 (device: *mut RawDevice);
        context_synchronize = cuCtxSynchronize @ 2000 ();
        context_priority_range = cuCtxGetStreamPriorityRange @ 5050 (least: *mut c_int, greatest: *mut c_int);
        context_enable_peer = cuCtxEnablePeerAccess @ 4000 (peer: RawContext, flags: c_uint);
        context_disable_peer = cuCtxDisablePeerAccess @ 4000 (peer: RawContext);

        memory_get_info = cuMemGetInfo as cuMemGetInfo_v2 @ 3020 (free: *mut usize, total: *mut usize);
        memory_allocate = cuMemAlloc as cuMemAlloc_v2 @ 3020 (pointer: *mut RawPointer, bytes: usize);
        memory_free = cuMemFree as cuMemFree_v2 @ 3020 (pointer: RawPointer);
        host_allocate = cuMemHostAlloc @ 2020 (pointer: *mut *mut c_void, bytes: usize, flags: c_uint);
        memory_allocate_managed = cuMemAllocManaged @ 6000 (pointer: *mut RawPointer, bytes: usize, flags: c_uint);
        advise_v1 = cuMemAdvise @ 8000 old (pointer: RawPointer, bytes: usize, advice: c_uint, device: RawDevice);
        advise_v2 = cuMemAdvise as cuMemAdvise_v2 @ 12020 (pointer: RawPointer, bytes: usize, advice: c_uint,
            location: MemoryLocation);
        address_range = cuMemGetAddressRange as cuMemGetAddressRange_v2 @ 3020 (start: *mut RawPointer, bytes: *mut usize,
            pointer: RawPointer);
        ipc_export = cuIpcGetMemHandle @ 4010 (handle: *mut RawIpcHandle, pointer: RawPointer);
        ipc_open = cuIpcOpenMemHandle as cuIpcOpenMemHandle_v2 @ 11000 (pointer: *mut RawPointer, handle: RawIpcHandle,
            flags: c_uint);
        ipc_close = cuIpcCloseMemHandle @ 4010 (pointer: RawPointer);
        host_free = cuMemFreeHost @ 2000 (pointer: *mut c_void);
        host_register = cuMemHostRegister as cuMemHostRegister_v2 @ 6050 (pointer: *mut c_void, bytes: usize, flags: c_uint);
        host_unregister = cuMemHostUnregister @ 4000 (pointer: *mut c_void);
        pointer_get_attribute = cuPointerGetAttribute @ 4000 (value: *mut c_void, attribute: c_uint, pointer: RawPointer);
        address_reserve = cuMemAddressReserve @ 10020 (pointer: *mut RawPointer, bytes: usize, alignment: usize,
            wanted: RawPointer, flags: c_ulonglong);
        address_free = cuMemAddressFree @ 10020 (pointer: RawPointer, bytes: usize);
        physical_create = cuMemCreate @ 10020 (physical: *mut RawPhysical, bytes: usize, properties: *const AllocationProperties,
            flags: c_ulonglong);
        physical_release = cuMemRelease @ 10020 (physical: RawPhysical);
        physical_export = cuMemExportToShareableHandle @ 10020 (target: *mut c_void, physical: RawPhysical, handle_type: c_uint,
            flags: c_ulonglong);
        physical_import = cuMemImportFromShareableHandle @ 10020 (physical: *mut RawPhysical, source: *mut c_void,
            handle_type: c_uint);
        physical_properties = cuMemGetAllocationPropertiesFromHandle @ 10020 (properties: *mut AllocationProperties,
            physical: RawPhysical);
        memory_map = cuMemMap @ 10020 (pointer: RawPointer, bytes: usize, offset: usize, physical: RawPhysical,
            flags: c_ulonglong);
        memory_unmap = cuMemUnmap @ 10020 (pointer: RawPointer, bytes: usize);
        memory_set_access = cuMemSetAccess @ 10020 (pointer: RawPointer, bytes: usize, descriptions: *const AccessDescription,
            count: usize);
        allocation_granularity = cuMemGetAllocationGranularity @ 10020 (bytes: *mut usize,
            properties: *const AllocationProperties, option: c_uint);
        pool_create = cuMemPoolCreate @ 11020 (pool: *mut RawPool, properties: *const PoolProperties);
        pool_destroy = cuMemPoolDestroy @ 11020 (pool: RawPool);
        pool_set_attribute = cuMemPoolSetAttribute @ 11020 (pool: RawPool, attribute: c_uint, value: *mut c_void);
        pool_get_attribute = cuMemPoolGetAttribute @ 11020 (pool: RawPool, attribute: c_uint, value: *mut c_void);
        pool_trim = cuMemPoolTrimTo @ 11020 (pool: RawPool, keep_bytes: usize);
        pool_allocate = cuMemAllocFromPoolAsync @ 11020 (pointer: *mut RawPointer, bytes: usize, pool: RawPool,
            stream: RawStream);
        memory_free_async = cuMemFreeAsync @ 11020 (pointer: RawPointer, stream: RawStream);

        copy_async = cuMemcpyAsync @ 4000 (target: RawPointer, source: RawPointer, bytes: usize, stream: RawStream);
        copy_to_device = cuMemcpyHtoDAsync as cuMemcpyHtoDAsync_v2 @ 3020 (target: RawPointer, source: *const c_void,
            bytes: usize, stream: RawStream);
        copy_to_host = cuMemcpyDtoHAsync as cuMemcpyDtoHAsync_v2 @ 3020 (target: *mut c_void, source: RawPointer, bytes: usize,
            stream: RawStream);
        fill_8 = cuMemsetD8Async @ 3020 (target: RawPointer, value: u8, count: usize, stream: RawStream);
        fill_16 = cuMemsetD16Async @ 3020 (target: RawPointer, value: u16, count: usize, stream: RawStream);
        fill_32 = cuMemsetD32Async @ 3020 (target: RawPointer, value: u32, count: usize, stream: RawStream);
        launch_host_function = cuLaunchHostFunc @ 10000 (stream: RawStream, function: RawHostFunction, data: *mut c_void);

        stream_create = cuStreamCreateWithPriority @ 5050 (stream: *mut RawStream, flags: c_uint, priority: c_int);
        stream_destroy = cuStreamDestroy as cuStreamDestroy_v2 @ 4000 (stream: RawStream);
        stream_get_priority = cuStreamGetPriority @ 5050 (stream: RawStream, priority: *mut c_int);
        stream_get_flags = cuStreamGetFlags @ 5050 (stream: RawStream, flags: *mut c_uint);
        stream_get_context = cuStreamGetCtx @ 9020 (stream: RawStream, context: *mut RawContext);
        stream_get_device = cuStreamGetDevice @ 12080 (stream: RawStream, device: *mut RawDevice);
        stream_query = cuStreamQuery @ 2000 (stream: RawStream);
        stream_synchronize = cuStreamSynchronize @ 2000 (stream: RawStream);
        stream_wait_event = cuStreamWaitEvent @ 3020 (stream: RawStream, event: RawEvent, flags: c_uint);

        event_create = cuEventCreate @ 2000 (event: *mut RawEvent, flags: c_uint);
        event_destroy = cuEventDestroy as cuEventDestroy_v2 @ 4000 (event: RawEvent);
        event_record = cuEventRecord @ 2000 (event: RawEvent, stream: RawStream);
        event_record_with_flags = cuEventRecordWithFlags @ 11010 (event: RawEvent, stream: RawStream, flags: c_uint);
        event_query = cuEventQuery @ 2000 (event: RawEvent);
        event_synchronize = cuEventSynchronize @ 2000 (event: RawEvent);
        event_elapsed_v1 = cuEventElapsedTime @ 2000 old (milliseconds: *mut f32, start: RawEvent, end: RawEvent);
        event_elapsed_v2 = cuEventElapsedTime as cuEventElapsedTime_v2 @ 12080 (milliseconds: *mut f32, start: RawEvent,
            end: RawEvent);

        module_load = cuModuleLoadDataEx @ 2010 (module: *mut RawModule, image: *const c_void, count: c_uint,
            options: *mut c_uint, values: *mut *mut c_void);
        module_unload = cuModuleUnload @ 2000 (module: RawModule);
        module_get_function = cuModuleGetFunction @ 2000 (function: *mut RawFunction, module: RawModule, name: *const c_char);
        function_get_attribute = cuFuncGetAttribute @ 2020 (value: *mut c_int, attribute: FunctionAttribute,
            function: RawFunction);
        function_set_attribute = cuFuncSetAttribute @ 9000 (function: RawFunction, attribute: FunctionAttribute, value: c_int);
        function_get_parameter = cuFuncGetParamInfo @ 12040 (function: RawFunction, index: usize, offset: *mut usize,
            bytes: *mut usize);
        launch_kernel = cuLaunchKernel @ 4000 (function: RawFunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
            block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: RawStream,
            parameters: *mut *mut c_void, extra: *mut *mut c_void);
        launch_kernel_ex = cuLaunchKernelEx @ 11060 (config: *const LaunchConfig, function: RawFunction,
            parameters: *mut *mut c_void, extra: *mut *mut c_void);
        occupancy_max_active_clusters = cuOccupancyMaxActiveClusters @ 11080 (clusters: *mut c_int, function: RawFunction,
            config: *const LaunchConfig);
        tensor_map_encode_tiled = cuTensorMapEncodeTiled @ 12000 (map: *mut c_void, elements: c_uint, rank: c_uint, address: u64,
            extents: *const u64, strides: *const u64, tile: *const c_uint, steps: *const c_uint, interleave: c_uint,
            swizzle: c_uint, promotion: c_uint, fill: c_uint);

        stream_begin_capture = cuStreamBeginCapture as cuStreamBeginCapture_v2 @ 10010 (stream: RawStream, mode: c_uint);
        stream_end_capture = cuStreamEndCapture @ 10000 (stream: RawStream, graph: *mut RawGraph);
        stream_is_capturing = cuStreamIsCapturing @ 10000 (stream: RawStream, status: *mut c_uint);
        capture_info_v2 = cuStreamGetCaptureInfo as cuStreamGetCaptureInfo_v2 @ 11030 old (stream: RawStream, status: *mut c_uint,
            id: *mut u64, graph: *mut RawGraph, dependencies: *mut *const RawGraphNode, count: *mut usize);
        capture_info_v3 = cuStreamGetCaptureInfo as cuStreamGetCaptureInfo_v3 @ 12030 (stream: RawStream, status: *mut c_uint,
            id: *mut u64, graph: *mut RawGraph, dependencies: *mut *const RawGraphNode, edges: *mut *const EdgeData,
            count: *mut usize);
        update_dependencies_v1 = cuStreamUpdateCaptureDependencies @ 11030 old (stream: RawStream,
            dependencies: *mut RawGraphNode, count: usize, flags: c_uint);
        update_dependencies_v2 = cuStreamUpdateCaptureDependencies as cuStreamUpdateCaptureDependencies_v2 @ 12030 (
            stream: RawStream, dependencies: *mut RawGraphNode, edges: *const EdgeData, count: usize, flags: c_uint);
        begin_capture_to_graph = cuStreamBeginCaptureToGraph @ 12030 (stream: RawStream, graph: RawGraph,
            dependencies: *const RawGraphNode, edges: *const EdgeData, count: usize, mode: c_uint);
        condition_create = cuGraphConditionalHandleCreate @ 12030 (condition: *mut u64, graph: RawGraph, context: RawContext,
            initial: c_uint, flags: c_uint);
        graph_add_node = cuGraphAddNode as cuGraphAddNode_v2 @ 12030 (node: *mut RawGraphNode, graph: RawGraph,
            dependencies: *const RawGraphNode, edges: *const EdgeData, count: usize, parameters: *mut ConditionalNodeParameters);
        exchange_capture_mode = cuThreadExchangeStreamCaptureMode @ 10010 (mode: *mut c_uint);
        graph_get_nodes = cuGraphGetNodes @ 10000 (graph: RawGraph, nodes: *mut RawGraphNode, count: *mut usize);
        graph_get_edges_v1 = cuGraphGetEdges @ 10000 old (graph: RawGraph, from: *mut RawGraphNode, to: *mut RawGraphNode,
            count: *mut usize);
        graph_get_edges_v2 = cuGraphGetEdges as cuGraphGetEdges_v2 @ 12030 (graph: RawGraph, from: *mut RawGraphNode,
            to: *mut RawGraphNode, edges: *mut EdgeData, count: *mut usize);
        graph_node_predecessors_v1 = cuGraphNodeGetDependencies @ 10000 old (node: RawGraphNode, nodes: *mut RawGraphNode,
            count: *mut usize);
        graph_node_predecessors_v2 = cuGraphNodeGetDependencies as cuGraphNodeGetDependencies_v2 @ 12030 (node: RawGraphNode,
            nodes: *mut RawGraphNode, edges: *mut EdgeData, count: *mut usize);
        graph_node_get_type = cuGraphNodeGetType @ 10000 (node: RawGraphNode, kind: *mut c_uint);
        graph_kernel_node_get = cuGraphKernelNodeGetParams as cuGraphKernelNodeGetParams_v2 @ 12000 (node: RawGraphNode,
            parameters: *mut KernelNodeParameters);
        graph_copy_node_get = cuGraphMemcpyNodeGetParams @ 10000 (node: RawGraphNode, parameters: *mut CopyNodeParameters);
        graph_fill_node_get = cuGraphMemsetNodeGetParams @ 10000 (node: RawGraphNode, parameters: *mut FillNodeParameters);
        function_get_name = cuFuncGetName @ 12030 (name: *mut *const c_char, function: RawFunction);
        kernel_get_name = cuKernelGetName @ 12030 (name: *mut *const c_char, kernel: RawKernel);
        graph_debug_dot_print = cuGraphDebugDotPrint @ 11030 (graph: RawGraph, path: *const c_char, flags: c_uint);
        graph_instantiate = cuGraphInstantiateWithFlags @ 11040 (exec: *mut RawGraphExec, graph: RawGraph, flags: c_ulonglong);
        graph_exec_update = cuGraphExecUpdate as cuGraphExecUpdate_v2 @ 12000 (exec: RawGraphExec, graph: RawGraph,
            result: *mut UpdateResult);
        graph_exec_kernel_node_set = cuGraphExecKernelNodeSetParams as cuGraphExecKernelNodeSetParams_v2 @ 12000 (
            exec: RawGraphExec, node: RawGraphNode, parameters: *const KernelNodeParameters);
        graph_launch = cuGraphLaunch @ 10000 (exec: RawGraphExec, stream: RawStream);
        graph_destroy = cuGraphDestroy @ 10000 (graph: RawGraph);
        graph_exec_destroy = cuGraphExecDestroy @ 10000 (exec: RawGraphExec);
        user_object_create = cuUserObjectCreate @ 11030 (object: *mut RawUserObject, data: *mut c_void, destroy: RawHostFunction,
            references: c_uint, flags: c_uint);
        user_object_release = cuUserObjectRelease @ 11030 (object: RawUserObject, references: c_uint);
        graph_retain_user_object = cuGraphRetainUserObject @ 11030 (graph: RawGraph, object: RawUserObject, references: c_uint,
            flags: c_uint);
    }
}
