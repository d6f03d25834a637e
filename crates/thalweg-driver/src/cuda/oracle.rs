//! Compares our copy of NVIDIA's headers with a second, generated one (cudarc's bindings for CUDA 13.0): sizes, alignments
//! and offsets of structs, constants, and the number and size of every argument.
//!
//! Signatures that CUDA 13 replaced by a newer one have no counterpart there; the test of the newer one covers their common
//! part.

use std::ffi::{CStr, c_void};
use std::mem::{align_of, offset_of, size_of};

use cudarc::cublas::sys as batches;
use cudarc::cublaslt::sys as blas;
use cudarc::cudnn::sys as dnn;
use cudarc::cufft::sys as fft;
use cudarc::cusolver::sys as solver;
use cudarc::driver::sys as cuda;
use cudarc::nccl::sys as nccl;
use cudarc::nvrtc::sys as nvrtc;

use super::blaslt::algorithm;
use super::blaslt::{self, Algorithm, BlasTable, HeuristicResult};
use super::cudnn::{
    CudnnTable, Format, HEURISTIC_MODES, NOT_SUPPORTED, Pointwise, Reduction as DnnReduction, attribute,
    kind, of_type,
};
use super::dense::{BlasBatchTable, SolverTable};
use super::fourier::FourierTable;
use super::nccl::{NcclTable, RawId, data_type, reduction_operation};
use super::sys::{self, *};
use super::tools::nvml::NvmlTable;
use super::tools::nvrtc::NvrtcTable;
use crate::library::{ComputeFormat, ElementFormat, ReductionSchemes};
use crate::{Code, Reduction};

/// The sizes of a function's arguments.
trait ArgumentSizes {
    fn sizes(self) -> Vec<usize>;
}

macro_rules! arguments {
    ($($argument:ident)*) => {
        impl<Answer, $($argument),*> ArgumentSizes for unsafe fn($($argument),*) -> Answer {
            fn sizes(self) -> Vec<usize> {
                vec![$(size_of::<$argument>()),*]
            }
        }
    };
}

arguments!();
arguments!(A);
arguments!(A B);
arguments!(A B C);
arguments!(A B C D);
arguments!(A B C D E);
arguments!(A B C D E F);
arguments!(A B C D E F G);
arguments!(A B C D E F G H);
arguments!(A B C D E F G H I);
arguments!(A B C D E F G H I J);
arguments!(A B C D E F G H I J K);
arguments!(A B C D E F G H I J K L);
arguments!(A B C D E F G H I J K L M);
arguments!(A B C D E F G H I J K L M N);
arguments!(A B C D E F G H I J K L M N O);
arguments!(A B C D E F G H I J K L M N O P);
arguments!(A B C D E F G H I J K L M N O P Q);
arguments!(A B C D E F G H I J K L M N O P Q R S T);
arguments!(A B C D E F G H I J K L M N O P Q R S T U V);

macro_rules! generated {
    ($module:ident: $($function:ident($($argument:tt),*);)*) => {
        vec![$((stringify!($function), ($module::$function as unsafe fn($($argument),*) -> _).sizes())),*]
    };
}

fn compare(ours: Vec<(&'static CStr, Vec<usize>)>, theirs: &[(&str, Vec<usize>)], older: &[&str]) {
    for (symbol, sizes) in ours {
        let symbol = symbol.to_str().expect("names are ASCII");
        match theirs.iter().find(|(name, _)| *name == symbol) {
            Some((_, expected)) => assert_eq!(sizes, *expected, "arguments of {symbol}"),
            None => assert!(older.contains(&symbol), "{symbol} is not compared with anything"),
        }
    }
}

fn calls_of_memory() -> Vec<(&'static str, Vec<usize>)> {
    generated! {
        cuda:
            cuMemGetInfo_v2(_, _);
            cuMemAlloc_v2(_, _);
            cuMemFree_v2(_);
            cuMemHostAlloc(_, _, _);
            cuMemAllocManaged(_, _, _);
            cuMemAdvise_v2(_, _, _, _);
            cuMemGetAddressRange_v2(_, _, _);
            cuIpcGetMemHandle(_, _);
            cuIpcOpenMemHandle_v2(_, _, _);
            cuIpcCloseMemHandle(_);
            cuMemFreeHost(_);
            cuMemHostRegister_v2(_, _, _);
            cuMemHostUnregister(_);
            cuPointerGetAttribute(_, _, _);
            cuMemAddressReserve(_, _, _, _, _);
            cuMemAddressFree(_, _);
            cuMemCreate(_, _, _, _);
            cuMemRelease(_);
            cuMemExportToShareableHandle(_, _, _, _);
            cuMemImportFromShareableHandle(_, _, _);
            cuMemGetAllocationPropertiesFromHandle(_, _);
            cuMemMap(_, _, _, _, _);
            cuMemUnmap(_, _);
            cuMemSetAccess(_, _, _, _);
            cuMemGetAllocationGranularity(_, _, _);
            cuMemPoolCreate(_, _);
            cuMemPoolDestroy(_);
            cuMemPoolSetAttribute(_, _, _);
            cuMemPoolGetAttribute(_, _, _);
            cuMemPoolTrimTo(_, _);
            cuMemAllocFromPoolAsync(_, _, _, _);
            cuMemFreeAsync(_, _);
    }
}

fn calls_of_graphs() -> Vec<(&'static str, Vec<usize>)> {
    generated! {
        cuda:
            cuStreamBeginCapture_v2(_, _);
            cuStreamEndCapture(_, _);
            cuStreamIsCapturing(_, _);
            cuStreamGetCaptureInfo_v3(_, _, _, _, _, _, _);
            cuStreamUpdateCaptureDependencies_v2(_, _, _, _, _);
            cuThreadExchangeStreamCaptureMode(_);
            cuStreamBeginCaptureToGraph(_, _, _, _, _, _);
            cuGraphConditionalHandleCreate(_, _, _, _, _);
            cuGraphAddNode_v2(_, _, _, _, _, _);
            cuGraphGetNodes(_, _, _);
            cuGraphGetEdges_v2(_, _, _, _, _);
            cuGraphNodeGetDependencies_v2(_, _, _, _);
            cuGraphNodeGetType(_, _);
            cuGraphInstantiateWithFlags(_, _, _);
            cuGraphKernelNodeGetParams_v2(_, _);
            cuGraphMemcpyNodeGetParams(_, _);
            cuGraphMemsetNodeGetParams(_, _);
            cuFuncGetName(_, _);
            cuKernelGetName(_, _);
            cuGraphDebugDotPrint(_, _, _);
            cuGraphExecUpdate_v2(_, _, _);
            cuGraphExecKernelNodeSetParams_v2(_, _, _);
            cuGraphLaunch(_, _);
            cuGraphDestroy(_);
            cuGraphExecDestroy(_);
            cuUserObjectCreate(_, _, _, _, _);
            cuUserObjectRelease(_, _);
            cuGraphRetainUserObject(_, _, _, _);
    }
}

#[test]
fn arguments_of_the_driver() {
    let mut theirs = generated! {
        cuda:
            cuInit(_);
            cuGetErrorName(_, _);
            cuGetErrorString(_, _);
            cuDeviceGetCount(_);
            cuDeviceGet(_, _);
            cuDeviceGetName(_, _, _);
            cuDeviceGetAttribute(_, _, _);
            cuDeviceTotalMem_v2(_, _);
            cuDeviceGetPCIBusId(_, _, _);
            cuDeviceCanAccessPeer(_, _, _);
            cuDevicePrimaryCtxRetain(_, _);
            cuDevicePrimaryCtxGetState(_, _, _);
            cuCtxGetCurrent(_);
            cuCtxSetCurrent(_);
            cuCtxGetDevice(_);
            cuCtxSynchronize();
            cuCtxGetStreamPriorityRange(_, _);
            cuCtxEnablePeerAccess(_, _);
            cuCtxDisablePeerAccess(_);
            cuMemcpyAsync(_, _, _, _);
            cuMemcpyHtoDAsync_v2(_, _, _, _);
            cuMemcpyDtoHAsync_v2(_, _, _, _);
            cuMemsetD8Async(_, _, _, _);
            cuMemsetD16Async(_, _, _, _);
            cuMemsetD32Async(_, _, _, _);
            cuLaunchHostFunc(_, _, _);
            cuStreamCreateWithPriority(_, _, _);
            cuStreamDestroy_v2(_);
            cuStreamGetPriority(_, _);
            cuStreamGetFlags(_, _);
            cuStreamGetCtx(_, _);
            cuStreamGetDevice(_, _);
            cuStreamQuery(_);
            cuStreamSynchronize(_);
            cuStreamWaitEvent(_, _, _);
            cuEventCreate(_, _);
            cuEventDestroy_v2(_);
            cuEventRecord(_, _);
            cuEventRecordWithFlags(_, _, _);
            cuEventQuery(_);
            cuEventSynchronize(_);
            cuEventElapsedTime_v2(_, _, _);
            cuModuleLoadDataEx(_, _, _, _, _);
            cuModuleUnload(_);
            cuModuleGetFunction(_, _, _);
            cuFuncGetAttribute(_, _, _);
            cuFuncSetAttribute(_, _, _);
            cuFuncGetParamInfo(_, _, _, _);
            cuLaunchKernel(_, _, _, _, _, _, _, _, _, _, _);
            cuLaunchKernelEx(_, _, _, _);
            cuOccupancyMaxActiveClusters(_, _, _);
            cuTensorMapEncodeTiled(_, _, _, _, _, _, _, _, _, _, _, _);
    };
    theirs.extend(calls_of_memory());
    theirs.extend(calls_of_graphs());
    let older = [
        "cuDeviceGetUuid_v2",
        "cuEventElapsedTime",
        "cuStreamGetCaptureInfo_v2",
        "cuStreamUpdateCaptureDependencies",
        "cuGraphGetEdges",
        "cuGraphNodeGetDependencies",
        "cuMemAdvise",
    ];
    compare(CudaTable::signatures(), &theirs, &older);
}

#[test]
fn arguments_of_nccl() {
    let theirs = generated! {
        nccl:
            ncclCommInitAll(_, _, _);
            ncclGetVersion(_);
            ncclGetUniqueId(_);
            ncclCommInitRank(_, _, _, _);
            ncclCommSplit(_, _, _, _, _);
            ncclMemAlloc(_, _);
            ncclMemFree(_);
            ncclCommRegister(_, _, _, _);
            ncclCommDeregister(_, _);
            ncclCommWindowRegister(_, _, _, _, _);
            ncclCommWindowDeregister(_, _);
            ncclCommAbort(_);
            ncclCommDestroy(_);
            ncclGroupStart();
            ncclGroupEnd();
            ncclAllReduce(_, _, _, _, _, _, _);
            ncclBroadcast(_, _, _, _, _, _, _);
            ncclReduce(_, _, _, _, _, _, _, _);
            ncclAllGather(_, _, _, _, _, _);
            ncclReduceScatter(_, _, _, _, _, _, _);
            ncclSend(_, _, _, _, _, _);
            ncclRecv(_, _, _, _, _, _);
    };
    compare(NcclTable::signatures(), &theirs, &[]);
}

#[test]
fn arguments_of_the_libraries() {
    let theirs = generated! {
        blas:
            cublasLtCreate(_);
            cublasLtMatmul(_, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _);
            cublasLtMatmulAlgoGetHeuristic(_, _, _, _, _, _, _, _, _, _);
            cublasLtMatmulAlgoInit(_, _, _, _, _, _, _, _, _);
            cublasLtMatmulAlgoConfigSetAttribute(_, _, _, _);
            cublasLtMatmulAlgoConfigGetAttribute(_, _, _, _, _);
            cublasLtMatmulAlgoCheck(_, _, _, _, _, _, _, _);
            cublasLtMatmulDescCreate(_, _, _);
            cublasLtMatmulDescSetAttribute(_, _, _, _);
            cublasLtMatmulDescDestroy(_);
            cublasLtMatrixLayoutCreate(_, _, _, _, _);
            cublasLtMatrixLayoutSetAttribute(_, _, _, _);
            cublasLtMatrixLayoutDestroy(_);
            cublasLtMatmulPreferenceCreate(_);
            cublasLtMatmulPreferenceSetAttribute(_, _, _, _);
            cublasLtMatmulPreferenceDestroy(_);
    };
    compare(BlasTable::signatures(), &theirs, &[]);
    let theirs = generated! {
        dnn:
            cudnnCreate(_);
            cudnnSetStream(_, _);
            cudnnBackendCreateDescriptor(_, _);
            cudnnBackendDestroyDescriptor(_);
            cudnnBackendSetAttribute(_, _, _, _, _);
            cudnnBackendGetAttribute(_, _, _, _, _, _);
            cudnnBackendFinalize(_);
            cudnnBackendExecute(_, _, _);
            cudnnCreateTensorDescriptor(_);
            cudnnDestroyTensorDescriptor(_);
            cudnnSetTensorNdDescriptor(_, _, _, _, _);
            cudnnCreateDropoutDescriptor(_);
            cudnnDestroyDropoutDescriptor(_);
            cudnnSetDropoutDescriptor(_, _, _, _, _, _);
            cudnnCreateRNNDescriptor(_);
            cudnnDestroyRNNDescriptor(_);
            cudnnSetRNNDescriptor_v8(_, _, _, _, _, _, _, _, _, _, _, _, _, _, _);
            cudnnCreateRNNDataDescriptor(_);
            cudnnDestroyRNNDataDescriptor(_);
            cudnnSetRNNDataDescriptor(_, _, _, _, _, _, _, _);
            cudnnGetRNNTempSpaceSizes(_, _, _, _, _, _);
            cudnnGetRNNWeightSpaceSize(_, _, _);
            cudnnGetRNNWeightParams(_, _, _, _, _, _, _, _, _, _);
            cudnnRNNForward(_, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _);
            cudnnRNNBackwardData_v8(_, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _);
            cudnnRNNBackwardWeights_v8(_, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _);
    };
    compare(CudnnTable::signatures(), &theirs, &[]);
}

#[test]
fn arguments_of_transforms_and_decompositions() {
    let theirs = generated! {
        fft:
            cufftGetVersion(_);
            cufftCreate(_);
            cufftDestroy(_);
            cufftSetAutoAllocation(_, _);
            cufftMakePlanMany64(_, _, _, _, _, _, _, _, _, _, _, _);
            cufftSetWorkArea(_, _);
            cufftSetStream(_, _);
            cufftExecC2C(_, _, _, _);
            cufftExecR2C(_, _, _);
            cufftExecC2R(_, _, _);
            cufftExecZ2Z(_, _, _, _);
            cufftExecD2Z(_, _, _);
            cufftExecZ2D(_, _, _);
    };
    compare(FourierTable::signatures(), &theirs, &[]);
    let theirs = generated! {
        solver:
            cusolverDnCreate(_);
            cusolverDnSetStream(_, _);
            cusolverDnDpotrf_bufferSize(_, _, _, _, _, _);
            cusolverDnDpotrf(_, _, _, _, _, _, _, _);
            cusolverDnDpotrfBatched(_, _, _, _, _, _, _);
            cusolverDnDgetrf_bufferSize(_, _, _, _, _, _);
            cusolverDnDgetrf(_, _, _, _, _, _, _, _);
            cusolverDnDgeqrf_bufferSize(_, _, _, _, _, _);
            cusolverDnDgeqrf(_, _, _, _, _, _, _, _, _);
            cusolverDnDorgqr_bufferSize(_, _, _, _, _, _, _, _);
            cusolverDnDorgqr(_, _, _, _, _, _, _, _, _, _);
            cusolverDnDsyevd_bufferSize(_, _, _, _, _, _, _, _);
            cusolverDnDsyevd(_, _, _, _, _, _, _, _, _, _);
            cusolverDnCreateParams(_);
            cusolverDnXsyevBatched_bufferSize(_, _, _, _, _, _, _, _, _, _, _, _, _, _);
            cusolverDnXsyevBatched(_, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _);
            cusolverDnCreateGesvdjInfo(_);
            cusolverDnDgesvdj_bufferSize(_, _, _, _, _, _, _, _, _, _, _, _, _, _);
            cusolverDnDgesvdj(_, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _);
    };
    compare(SolverTable::signatures(), &theirs, &[]);
    let theirs = generated! {
        batches:
            cublasCreate_v2(_);
            cublasSetStream_v2(_, _);
            cublasDgetrfBatched(_, _, _, _, _, _, _);
            cublasDtrsm_v2(_, _, _, _, _, _, _, _, _, _, _, _);
            cublasDtrsmBatched(_, _, _, _, _, _, _, _, _, _, _, _, _);
    };
    compare(BlasBatchTable::signatures(), &theirs, &[]);
}

#[test]
fn arguments_of_the_tools() {
    let theirs = generated! {
        nvrtc:
            nvrtcVersion(_, _);
            nvrtcCreateProgram(_, _, _, _, _, _);
            nvrtcDestroyProgram(_);
            nvrtcCompileProgram(_, _, _);
            nvrtcGetProgramLogSize(_, _);
            nvrtcGetProgramLog(_, _);
            nvrtcGetCUBINSize(_, _);
            nvrtcGetCUBIN(_, _);
            nvrtcGetNumSupportedArchs(_);
            nvrtcGetSupportedArchs(_);
    };
    compare(NvrtcTable::signatures(), &theirs, &[]);
}

/// NVML has no generated bindings here: these are the sizes of its arguments in `nvml.h`.
#[test]
fn arguments_of_the_management_library() {
    let theirs = [
        ("nvmlInit_v2", vec![]),
        ("nvmlShutdown", vec![]),
        ("nvmlDeviceGetCount_v2", vec![8]),
        ("nvmlDeviceGetHandleByIndex_v2", vec![4, 8]),
        ("nvmlDeviceGetUUID", vec![8, 8, 4]),
        ("nvmlDeviceGetUtilizationRates", vec![8, 8]),
        ("nvmlDeviceGetTemperature", vec![8, 4, 8]),
        ("nvmlDeviceGetPowerUsage", vec![8, 8]),
        ("nvmlDeviceGetClockInfo", vec![8, 4, 8]),
        ("nvmlDeviceGetComputeRunningProcesses_v3", vec![8, 8, 8]),
    ];
    compare(NvmlTable::signatures(), &theirs, &[]);
}

macro_rules! same_fields {
    ($ours:ty, $theirs:ty { $($field:ident = $($other:ident).+),* $(,)? }) => {
        $(assert_eq!(
            offset_of!($ours, $field),
            offset_of!($theirs, $($other).+),
            concat!(stringify!($ours), ".", stringify!($field))
        );)*
    };
}

macro_rules! same_struct {
    ($ours:ty, $theirs:ty { $($fields:tt)* }) => {
        assert_eq!(size_of::<$ours>(), size_of::<$theirs>(), stringify!($ours));
        assert_eq!(align_of::<$ours>(), align_of::<$theirs>(), stringify!($ours));
        same_fields!($ours, $theirs { $($fields)* });
    };
}

#[test]
fn layouts_of_structs() {
    same_struct!(MemoryLocation, cuda::CUmemLocation { kind = type_, id = id });
    same_struct!(AllocationProperties, cuda::CUmemAllocationProp {
        kind = type_,
        handle_types = requestedHandleTypes,
        location = location,
        windows_metadata = win32HandleMetaData,
        compression_kind = allocFlags.compressionType,
        gpu_direct_capable = allocFlags.gpuDirectRDMACapable,
        usage = allocFlags.usage,
        reserved = allocFlags.reserved,
    });
    same_struct!(AccessDescription, cuda::CUmemAccessDesc { location = location, flags = flags });
    same_struct!(PoolProperties, cuda::CUmemPoolProps {
        kind = allocType,
        handle_types = handleTypes,
        location = location,
        windows_attributes = win32SecurityAttributes,
        max_bytes = maxSize,
        usage = usage,
        reserved = reserved,
    });
    same_struct!(EdgeData, cuda::CUgraphEdgeData {
        from_port = from_port,
        to_port = to_port,
        kind = type_,
        reserved = reserved,
    });
    same_struct!([u8; 16], cuda::CUuuid {});
    same_struct!(RawId, nccl::ncclUniqueId {});
    same_struct!(RawIpcHandle, cuda::CUipcMemHandle { bytes = reserved });
    same_struct!([u8; 64], cuda::CUmemFabricHandle {});
    same_struct!(RawHostFunction, cuda::CUhostFn {});
    same_struct!(Algorithm, blas::cublasLtMatmulAlgo_t { data = data });
    same_struct!(HeuristicResult, blas::cublasLtMatmulHeuristicResult_t {
        algorithm = algo,
        workspace_bytes = workspaceSize,
        status = state,
        waves = wavesCount,
        reserved = reserved,
    });
    for size in [
        size_of::<RawContext>(),
        size_of::<RawStream>(),
        size_of::<RawEvent>(),
        size_of::<RawModule>(),
        size_of::<RawFunction>(),
        size_of::<RawGraph>(),
        size_of::<RawGraphExec>(),
        size_of::<RawGraphNode>(),
        size_of::<RawPool>(),
        size_of::<RawUserObject>(),
    ] {
        assert_eq!(size, size_of::<*mut c_void>());
    }
}

#[test]
fn layouts_of_structs_of_graphs() {
    same_struct!(UpdateResult, cuda::CUgraphExecUpdateResultInfo {
        result = result,
        error_node = errorNode,
        error_from_node = errorFromNode,
    });
    same_struct!(ConditionalNodeParameters, cuda::CUgraphNodeParams {});
    let conditional = offset_of!(cuda::CUgraphNodeParams, __bindgen_anon_1);
    assert_eq!(
        ConditionalNodeParameters::offsets(),
        [
            offset_of!(cuda::CUgraphNodeParams, type_),
            conditional + offset_of!(cuda::CUDA_CONDITIONAL_NODE_PARAMS, handle),
            conditional + offset_of!(cuda::CUDA_CONDITIONAL_NODE_PARAMS, type_),
            conditional + offset_of!(cuda::CUDA_CONDITIONAL_NODE_PARAMS, size),
            conditional + offset_of!(cuda::CUDA_CONDITIONAL_NODE_PARAMS, phGraph_out),
            conditional + offset_of!(cuda::CUDA_CONDITIONAL_NODE_PARAMS, ctx),
            offset_of!(cuda::CUgraphNodeParams, reserved2),
        ],
    );
    same_struct!(CopyNodeParameters, cuda::CUDA_MEMCPY3D {
        source = srcXInBytes,
        target = dstXInBytes,
        width_bytes = WidthInBytes,
        height = Height,
        depth = Depth,
    });
    same_struct!(FillNodeParameters, cuda::CUDA_MEMSET_NODE_PARAMS {
        target = dst,
        pitch = pitch,
        value = value,
        element_bytes = elementSize,
        width = width,
        height = height,
    });
    same_struct!(LaunchConfig, cuda::CUlaunchConfig {
        grid = gridDimX,
        block = blockDimX,
        shared_bytes = sharedMemBytes,
        stream = hStream,
        attributes = attrs,
        attribute_count = numAttrs,
    });
    same_struct!(LaunchAttribute, cuda::CUlaunchAttribute { id = id, value = value });
    let programmatic = cuda::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    assert_eq!(PROGRAMMATIC_STREAM_SERIALIZATION, programmatic as u32);
    assert_eq!(COOPERATIVE, cuda::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE as u32);
    let cluster = cuda::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    assert_eq!(CLUSTER_DIMENSION, cluster as u32);
    same_struct!(KernelNodeParameters, cuda::CUDA_KERNEL_NODE_PARAMS {
        function = func,
        grid = gridDimX,
        block = blockDimX,
        shared_bytes = sharedMemBytes,
        parameters = kernelParams,
        extra = extra,
        kernel = kern,
        context = ctx,
    });
}

macro_rules! same_numbers {
    ($($ours:expr => $theirs:expr;)*) => {
        $(assert_eq!($ours as u64, $theirs as u64, stringify!($theirs));)*
    };
}

#[test]
fn constants_of_the_driver() {
    same_numbers! {
        sys::ALLOCATION_PINNED => cuda::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        sys::LOCATION_DEVICE => cuda::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        sys::ACCESS_NONE => cuda::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;
        sys::ACCESS_READ => cuda::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ;
        sys::ACCESS_READ_WRITE => cuda::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        sys::GRANULARITY_MINIMUM =>
            cuda::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        sys::LOCATION_HOST => cuda::CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST;
        sys::HANDLE_TYPE_FILE_DESCRIPTOR =>
            cuda::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;
        sys::HANDLE_TYPE_FABRIC => cuda::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC.0;
        sys::POOL_REUSE_FOLLOW_EVENT_DEPENDENCIES =>
            cuda::CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES;
        sys::POOL_REUSE_ALLOW_OPPORTUNISTIC =>
            cuda::CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC;
        sys::POOL_REUSE_ALLOW_INTERNAL_DEPENDENCIES =>
            cuda::CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
        sys::POOL_RESERVED_CURRENT => cuda::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
        sys::POOL_RESERVED_HIGH => cuda::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
        sys::POOL_USED_CURRENT => cuda::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
        sys::POOL_USED_HIGH => cuda::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH;
        sys::ATTACH_GLOBAL => cuda::CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL;
        sys::ADVISE_SET_READ_MOSTLY => cuda::CUmem_advise::CU_MEM_ADVISE_SET_READ_MOSTLY;
        sys::ADVISE_UNSET_READ_MOSTLY => cuda::CUmem_advise::CU_MEM_ADVISE_UNSET_READ_MOSTLY;
        sys::ADVISE_SET_PREFERRED_LOCATION => cuda::CUmem_advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION;
        sys::ADVISE_UNSET_PREFERRED_LOCATION => cuda::CUmem_advise::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION;
        sys::ADVISE_SET_ACCESSED_BY => cuda::CUmem_advise::CU_MEM_ADVISE_SET_ACCESSED_BY;
        sys::ADVISE_UNSET_ACCESSED_BY => cuda::CUmem_advise::CU_MEM_ADVISE_UNSET_ACCESSED_BY;
        sys::IPC_LAZY_ENABLE_PEER_ACCESS => cuda::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
        sys::POOL_RELEASE_THRESHOLD => cuda::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        sys::STREAM_NON_BLOCKING => cuda::CUstream_flags::CU_STREAM_NON_BLOCKING;
        sys::EVENT_BLOCKING_SYNC => cuda::CUevent_flags::CU_EVENT_BLOCKING_SYNC;
        sys::EVENT_DISABLE_TIMING => cuda::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        sys::HOST_PORTABLE => cuda::CU_MEMHOSTALLOC_PORTABLE;
        sys::HOST_REGISTER_PORTABLE => cuda::CU_MEMHOSTREGISTER_PORTABLE;
        sys::HOST_WRITE_COMBINED => cuda::CU_MEMHOSTALLOC_WRITECOMBINED;
        sys::LAUNCH_PARAMETER_END => cuda::CU_LAUNCH_PARAM_END_AS_INT;
        sys::LAUNCH_PARAMETER_BUFFER_POINTER => cuda::CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT;
        sys::LAUNCH_PARAMETER_BUFFER_SIZE => cuda::CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT;
        sys::JIT_ERROR_LOG_BUFFER => cuda::CUjit_option::CU_JIT_ERROR_LOG_BUFFER;
        sys::JIT_ERROR_LOG_BUFFER_SIZE_BYTES => cuda::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES;
        sys::POINTER_MEMORY_TYPE => cuda::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        sys::MEMORY_TYPE_DEVICE => cuda::CUmemorytype::CU_MEMORYTYPE_DEVICE;
        sys::GET_PROC_ADDRESS_LEGACY_STREAM =>
            cuda::CUdriverProcAddress_flags::CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    }
}

#[test]
fn constants_of_capture_and_graphs() {
    same_numbers! {
        sys::CAPTURE_NONE => cuda::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        sys::CAPTURE_ACTIVE => cuda::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
        sys::MODE_GLOBAL => cuda::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        sys::MODE_THREAD_LOCAL => cuda::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        sys::MODE_RELAXED => cuda::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        sys::DEPENDENCIES_ADD =>
            cuda::CUstreamUpdateCaptureDependencies_flags::CU_STREAM_ADD_CAPTURE_DEPENDENCIES;
        sys::DEPENDENCIES_SET =>
            cuda::CUstreamUpdateCaptureDependencies_flags::CU_STREAM_SET_CAPTURE_DEPENDENCIES;
        sys::INSTANTIATE_AUTO_FREE_ON_LAUNCH =>
            cuda::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH.0;
        sys::INSTANTIATE_USE_NODE_PRIORITY =>
            cuda::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY.0;
        sys::CONDITION_ASSIGN_DEFAULT => cuda::CU_GRAPH_COND_ASSIGN_DEFAULT;
        sys::CONDITIONAL_IF => cuda::CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_IF;
        sys::CONDITIONAL_WHILE => cuda::CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_WHILE;
        sys::CONDITIONAL_SWITCH => cuda::CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_SWITCH;
        sys::NODE_CONDITIONAL => cuda::CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL;
        sys::DEBUG_DOT_VERBOSE => cuda::CUgraphDebugDot_flags::CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE;
        sys::UPDATE_TOPOLOGY_CHANGED =>
            cuda::CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        sys::UPDATE_NODE_TYPE_CHANGED =>
            cuda::CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        sys::UPDATE_FUNCTION_CHANGED =>
            cuda::CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_FUNCTION_CHANGED;
        sys::UPDATE_PARAMETERS_CHANGED =>
            cuda::CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
        sys::UPDATE_NOT_SUPPORTED => cuda::CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
        sys::UPDATE_UNSUPPORTED_FUNCTION_CHANGE =>
            cuda::CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE;
        sys::UPDATE_ATTRIBUTES_CHANGED =>
            cuda::CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED;
        sys::USER_OBJECT_NO_DESTRUCTOR_SYNC => cuda::CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC;
        sys::GRAPH_USER_OBJECT_MOVE => cuda::CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE;
    }
}

#[test]
fn attributes_of_devices_and_functions() {
    use cuda::CUdevice_attribute as Device;
    use cuda::CUfunction_attribute as Function;
    same_numbers! {
        DeviceAttribute::MaxThreadsPerBlock => Device::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
        DeviceAttribute::MaxSharedMemoryPerBlock => Device::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK;
        DeviceAttribute::WarpSize => Device::CU_DEVICE_ATTRIBUTE_WARP_SIZE;
        DeviceAttribute::ClockRate => Device::CU_DEVICE_ATTRIBUTE_CLOCK_RATE;
        DeviceAttribute::MultiprocessorCount => Device::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        DeviceAttribute::Integrated => Device::CU_DEVICE_ATTRIBUTE_INTEGRATED;
        DeviceAttribute::MemoryClockRate => Device::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE;
        DeviceAttribute::GlobalMemoryBusWidth => Device::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH;
        DeviceAttribute::L2CacheSize => Device::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE;
        DeviceAttribute::MaxThreadsPerMultiprocessor =>
            Device::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR;
        DeviceAttribute::ComputeCapabilityMajor => Device::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
        DeviceAttribute::ComputeCapabilityMinor => Device::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR;
        DeviceAttribute::MaxRegistersPerMultiprocessor =>
            Device::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR;
        DeviceAttribute::ManagedMemory => Device::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY;
        DeviceAttribute::ConcurrentManagedAccess => Device::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
        DeviceAttribute::HostRegisterSupported => Device::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED;
        DeviceAttribute::FileDescriptorHandlesSupported =>
            Device::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
        DeviceAttribute::GpuDirectRdmaWithVirtualMemorySupported =>
            Device::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
        DeviceAttribute::FabricHandlesSupported => Device::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED;
        DeviceAttribute::MaxSharedMemoryPerBlockOptin =>
            Device::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        DeviceAttribute::VirtualMemorySupported =>
            Device::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
        DeviceAttribute::MemoryPoolsSupported => Device::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
        FunctionAttribute::MaxThreadsPerBlock => Function::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
        FunctionAttribute::SharedSizeBytes => Function::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
        FunctionAttribute::LocalSizeBytes => Function::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES;
        FunctionAttribute::Registers => Function::CU_FUNC_ATTRIBUTE_NUM_REGS;
        FunctionAttribute::MaxDynamicSharedSizeBytes =>
            Function::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    }
}

mod cupti;
mod libraries;
