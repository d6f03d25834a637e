//! Compares our copy of NVIDIA's headers with a second, generated one (cudarc's bindings for CUDA 13.0): sizes, alignments
//! and offsets of structs, constants, and the number and size of every argument.

use std::ffi::c_void;
use std::mem::{align_of, offset_of, size_of};

use cudarc::cublas::sys as batches;
use cudarc::cublaslt::sys as blas;
use cudarc::cudnn::sys as dnn;
use cudarc::cufft::sys as fft;
use cudarc::cusolver::sys as solver;
use cudarc::driver::sys as cuda;
use cudarc::nccl::sys as nccl;
use cudarc::nvrtc::sys as nvrtc;

use super::blaslt::{self, Algorithm, BlasTable, HeuristicResult};
use super::cudnn::{CudnnTable, HEURISTIC_MODES, NOT_SUPPORTED, attribute};
use super::dense::{BlasBatchTable, SolverTable};
use super::fourier::FourierTable;
use super::nccl::{NcclTable, RawId, data_type, reduction_operation};
use super::sys::*;
use super::tools::cupti::CuptiTable;
use super::tools::nvml::NvmlTable;
use super::tools::nvrtc::NvrtcTable;
use crate::library::{ComputeFormat, ElementFormat, ReductionSchemes};
use crate::{Code, Reduction};

#[test]
fn arguments_of_entry_points() {
    CudaTable::compare();
    NcclTable::compare();
    BlasTable::compare();
    CudnnTable::compare();
    FourierTable::compare();
    SolverTable::compare();
    BlasBatchTable::compare();
    NvrtcTable::compare();
    CuptiTable::compare();
}

/// NVML has no generated bindings here: these are the sizes of its arguments in `nvml.h`.
#[test]
fn arguments_of_the_management_library() {
    let theirs = [
        ("nvmlInit_v2\0", vec![]),
        ("nvmlShutdown\0", vec![]),
        ("nvmlDeviceGetCount_v2\0", vec![8]),
        ("nvmlDeviceGetHandleByIndex_v2\0", vec![4, 8]),
        ("nvmlDeviceGetUUID\0", vec![8, 8, 4]),
        ("nvmlDeviceGetUtilizationRates\0", vec![8, 8]),
        ("nvmlDeviceGetTemperature\0", vec![8, 4, 8]),
        ("nvmlDeviceGetPowerUsage\0", vec![8, 8]),
        ("nvmlDeviceGetClockInfo\0", vec![8, 4, 8]),
        ("nvmlDeviceGetComputeRunningProcesses_v3\0", vec![8, 8, 8]),
    ];
    assert_eq!(NvmlTable::sizes(), theirs);
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

mod cupti;
mod libraries;
