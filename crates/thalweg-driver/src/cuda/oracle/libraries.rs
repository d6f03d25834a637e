//! Constants of the libraries that are not members of an enumeration, and the names of errors.

use super::*;
use crate::cuda::blaslt::epilogue;

#[test]
fn constants_of_the_libraries() {
    use blas::cublasLtMatmulPreferenceAttributes_t as Preference;
    same_numbers! {
        epilogue::EPILOGUE_GELU_KEPT | epilogue::EPILOGUE_BIAS =>
            blas::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
        epilogue::EPILOGUE_RELU_KEPT | epilogue::EPILOGUE_BIAS =>
            blas::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU_AUX_BIAS;
        blaslt::PREFERENCE_ALIGNMENT_A_BYTES + 1 => Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES;
        blaslt::PREFERENCE_ALIGNMENT_A_BYTES + 2 => Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES;
        blaslt::PREFERENCE_ALIGNMENT_A_BYTES + 3 => Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES;
        ReductionSchemes::NONE.0 => blas::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_NONE;
        ReductionSchemes::COMPUTE_TYPE.0 =>
            blas::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
        ReductionSchemes::ANY.0 => blas::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_MASK;
        ElementFormat::R_32F.0 => blas::cudaDataType::CUDA_R_32F;
        ElementFormat::R_64F.0 => blas::cudaDataType::CUDA_R_64F;
        ElementFormat::R_16F.0 => blas::cudaDataType::CUDA_R_16F;
        ElementFormat::R_16BF.0 => blas::cudaDataType::CUDA_R_16BF;
        ElementFormat::R_8I.0 => blas::cudaDataType::CUDA_R_8I;
        ElementFormat::R_8U.0 => blas::cudaDataType::CUDA_R_8U;
        ElementFormat::R_32I.0 => blas::cudaDataType::CUDA_R_32I;
        ElementFormat::R_32U.0 => blas::cudaDataType::CUDA_R_32U;
        ElementFormat::R_64I.0 => blas::cudaDataType::CUDA_R_64I;
        ElementFormat::R_64U.0 => blas::cudaDataType::CUDA_R_64U;
        ComputeFormat::F32.0 => blas::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        ComputeFormat::F32_FAST_TF32.0 => blas::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32;
        ComputeFormat::F16.0 => blas::cublasComputeType_t::CUBLAS_COMPUTE_16F;
        ComputeFormat::F32_EMULATED_BF16X9.0 =>
            blas::cublasComputeType_t::CUBLAS_COMPUTE_32F_EMULATED_16BFX9;
        ComputeFormat::F64.0 => blas::cublasComputeType_t::CUBLAS_COMPUTE_64F;
        super::super::tools::nvrtc::ERROR_COMPILATION => nvrtc::nvrtcResult::NVRTC_ERROR_COMPILATION;
        super::super::tools::nvrtc::ERROR_INVALID_OPTION => nvrtc::nvrtcResult::NVRTC_ERROR_INVALID_OPTION;
    }
}

#[test]
fn numbers_of_cudnn() {
    use dnn::cudnnBackendAttributeName_t as Name;
    use dnn::cudnnBackendHeurMode_t as Mode;
    use dnn::cudnnStatus_t as Status;
    same_numbers! {
        attribute::OPERATION_POINTWISE_INPUTS[0] => Name::CUDNN_ATTR_OPERATION_POINTWISE_XDESC;
        attribute::OPERATION_POINTWISE_INPUTS[1] => Name::CUDNN_ATTR_OPERATION_POINTWISE_BDESC;
        attribute::OPERATION_POINTWISE_INPUTS[2] => Name::CUDNN_ATTR_OPERATION_POINTWISE_TDESC;
        attribute::OPERATION_MATMUL_OVERRIDES[0] => Name::CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC;
        attribute::OPERATION_MATMUL_OVERRIDES[1] => Name::CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC;
        attribute::OPERATION_MATMUL_OVERRIDES[2] => Name::CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC;
        HEURISTIC_MODES[0] => Mode::CUDNN_HEUR_MODE_A;
        HEURISTIC_MODES[1] => Mode::CUDNN_HEUR_MODE_FALLBACK;
        NOT_SUPPORTED.start => Status::CUDNN_STATUS_NOT_SUPPORTED;
        NOT_SUPPORTED.end => Status::CUDNN_STATUS_INTERNAL_ERROR;
    }
}

#[test]
fn numbers_of_collectives() {
    use nccl::{ncclDataType_t as Type, ncclRedOp_t as Operation};
    for (format, number) in [
        (ElementFormat::R_8I, Type::ncclInt8),
        (ElementFormat::R_8U, Type::ncclUint8),
        (ElementFormat::R_32I, Type::ncclInt32),
        (ElementFormat::R_32U, Type::ncclUint32),
        (ElementFormat::R_64I, Type::ncclInt64),
        (ElementFormat::R_64U, Type::ncclUint64),
        (ElementFormat::R_16F, Type::ncclFloat16),
        (ElementFormat::R_32F, Type::ncclFloat32),
        (ElementFormat::R_64F, Type::ncclFloat64),
        (ElementFormat::R_16BF, Type::ncclBfloat16),
    ] {
        assert_eq!(data_type(format), Some(number as u32), "{number:?}");
    }
    for (reduction, number) in [
        (Reduction::Sum, Operation::ncclSum),
        (Reduction::Product, Operation::ncclProd),
        (Reduction::Maximum, Operation::ncclMax),
        (Reduction::Minimum, Operation::ncclMin),
        (Reduction::Average, Operation::ncclAvg),
    ] {
        assert_eq!(reduction_operation(reduction), number as u32, "{number:?}");
    }
}

#[test]
fn numbers_and_names_of_errors() {
    use cuda::CUresult as Status;
    for (code, status) in [
        (Code::InvalidValue, Status::CUDA_ERROR_INVALID_VALUE),
        (Code::OutOfMemory, Status::CUDA_ERROR_OUT_OF_MEMORY),
        (Code::NotInitialized, Status::CUDA_ERROR_NOT_INITIALIZED),
        (Code::Deinitialized, Status::CUDA_ERROR_DEINITIALIZED),
        (Code::StubLibrary, Status::CUDA_ERROR_STUB_LIBRARY),
        (Code::DeviceUnavailable, Status::CUDA_ERROR_DEVICE_UNAVAILABLE),
        (Code::NoDevice, Status::CUDA_ERROR_NO_DEVICE),
        (Code::InvalidDevice, Status::CUDA_ERROR_INVALID_DEVICE),
        (Code::InvalidImage, Status::CUDA_ERROR_INVALID_IMAGE),
        (Code::InvalidContext, Status::CUDA_ERROR_INVALID_CONTEXT),
        (Code::MapFailed, Status::CUDA_ERROR_MAP_FAILED),
        (Code::UnmapFailed, Status::CUDA_ERROR_UNMAP_FAILED),
        (Code::AlreadyMapped, Status::CUDA_ERROR_ALREADY_MAPPED),
        (Code::NoBinaryForDevice, Status::CUDA_ERROR_NO_BINARY_FOR_GPU),
        (Code::NotMapped, Status::CUDA_ERROR_NOT_MAPPED),
        (Code::EccUncorrectable, Status::CUDA_ERROR_ECC_UNCORRECTABLE),
        (Code::PeerAccessUnsupported, Status::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED),
        (Code::InvalidPtx, Status::CUDA_ERROR_INVALID_PTX),
        (Code::UnsupportedPtxVersion, Status::CUDA_ERROR_UNSUPPORTED_PTX_VERSION),
        (Code::OperatingSystem, Status::CUDA_ERROR_OPERATING_SYSTEM),
        (Code::InvalidHandle, Status::CUDA_ERROR_INVALID_HANDLE),
        (Code::IllegalState, Status::CUDA_ERROR_ILLEGAL_STATE),
        (Code::NotFound, Status::CUDA_ERROR_NOT_FOUND),
        (Code::NotReady, Status::CUDA_ERROR_NOT_READY),
        (Code::IllegalAddress, Status::CUDA_ERROR_ILLEGAL_ADDRESS),
        (Code::LaunchOutOfResources, Status::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES),
        (Code::LaunchTimeout, Status::CUDA_ERROR_LAUNCH_TIMEOUT),
        (Code::PeerAccessAlreadyEnabled, Status::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED),
        (Code::PeerAccessNotEnabled, Status::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED),
        (Code::ContextIsDestroyed, Status::CUDA_ERROR_CONTEXT_IS_DESTROYED),
        (Code::Assert, Status::CUDA_ERROR_ASSERT),
        (Code::MisalignedAddress, Status::CUDA_ERROR_MISALIGNED_ADDRESS),
        (Code::LaunchFailed, Status::CUDA_ERROR_LAUNCH_FAILED),
        (Code::NotPermitted, Status::CUDA_ERROR_NOT_PERMITTED),
        (Code::NotSupported, Status::CUDA_ERROR_NOT_SUPPORTED),
        (Code::StreamCaptureUnsupported, Status::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
        (Code::StreamCaptureInvalidated, Status::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
        (Code::StreamCaptureMerge, Status::CUDA_ERROR_STREAM_CAPTURE_MERGE),
        (Code::StreamCaptureUnmatched, Status::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED),
        (Code::StreamCaptureUnjoined, Status::CUDA_ERROR_STREAM_CAPTURE_UNJOINED),
        (Code::StreamCaptureIsolation, Status::CUDA_ERROR_STREAM_CAPTURE_ISOLATION),
        (Code::StreamCaptureImplicit, Status::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
        (Code::CapturedEvent, Status::CUDA_ERROR_CAPTURED_EVENT),
        (Code::StreamCaptureWrongThread, Status::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD),
        (Code::GraphExecUpdateFailure, Status::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE),
        (Code::Unknown, Status::CUDA_ERROR_UNKNOWN),
    ] {
        assert_eq!((code.number(), code.name()), (status as u32, format!("{status:?}").as_str()));
    }
}

#[test]
fn numbers_of_networks_transforms_and_decompositions() {
    use crate::cuda::cudnn::recurrent as network;
    use crate::cuda::dense;
    use crate::cuda::fourier;
    use crate::library::fourier::{FourierKind, FourierShape};
    use crate::library::recurrent::RecurrentKind as Kind;
    let transform = |kind, format| {
        let shape = FourierShape { kind, rank: 1, sizes: [8, 1, 1], batch: 1, input_strides: [1, 8], format };
        fourier::number_of(&shape)
    };
    let (single, double) = (ElementFormat::R_32F, ElementFormat::R_64F);
    let complex = FourierKind::Complex { forward: true };
    same_numbers! {
        network::STANDARD => dnn::cudnnRNNAlgo_t::CUDNN_RNN_ALGO_STANDARD;
        network::PERSISTENT => dnn::cudnnRNNAlgo_t::CUDNN_RNN_ALGO_PERSIST_STATIC;
        network::PERSISTENT_SMALL => dnn::cudnnRNNAlgo_t::CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H;
        network::BIASES[0] => dnn::cudnnRNNBiasMode_t::CUDNN_RNN_NO_BIAS;
        network::BIASES[1] => dnn::cudnnRNNBiasMode_t::CUDNN_RNN_DOUBLE_BIAS;
        network::LINEAR_INPUT => dnn::cudnnRNNInputMode_t::CUDNN_LINEAR_INPUT;
        network::MATH[0] => dnn::cudnnMathType_t::CUDNN_DEFAULT_MATH;
        network::MATH[1] => dnn::cudnnMathType_t::CUDNN_TENSOR_OP_MATH;
        network::MATH[2] => dnn::cudnnMathType_t::CUDNN_FMA_MATH;
        network::FORWARD[0] => dnn::cudnnForwardMode_t::CUDNN_FWD_MODE_INFERENCE;
        network::FORWARD[1] => dnn::cudnnForwardMode_t::CUDNN_FWD_MODE_TRAINING;
        network::ADD => dnn::cudnnWgradMode_t::CUDNN_WGRAD_MODE_ADD;
        network::LAYOUTS[0] => dnn::cudnnRNNDataLayout_t::CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED;
        network::LAYOUTS[1] => dnn::cudnnRNNDataLayout_t::CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED;
        network::mode(Kind::Relu) => dnn::cudnnRNNMode_t::CUDNN_RNN_RELU;
        network::mode(Kind::Tanh) => dnn::cudnnRNNMode_t::CUDNN_RNN_TANH;
        network::mode(Kind::LongShortTerm) => dnn::cudnnRNNMode_t::CUDNN_LSTM;
        network::mode(Kind::Gated) => dnn::cudnnRNNMode_t::CUDNN_GRU;
        network::data_type(double).unwrap() => dnn::cudnnDataType_t::CUDNN_DATA_DOUBLE;
        network::data_type(single).unwrap() => dnn::cudnnDataType_t::CUDNN_DATA_FLOAT;
        transform(complex, single) => fft::cufftType_t::CUFFT_C2C;
        transform(complex, double) => fft::cufftType_t::CUFFT_Z2Z;
        transform(FourierKind::FromReal, single) => fft::cufftType_t::CUFFT_R2C;
        transform(FourierKind::FromReal, double) => fft::cufftType_t::CUFFT_D2Z;
        transform(FourierKind::ToReal, single) => fft::cufftType_t::CUFFT_C2R;
        transform(FourierKind::ToReal, double) => fft::cufftType_t::CUFFT_Z2D;
        dense::TRIANGLES[0] => batches::cublasFillMode_t::CUBLAS_FILL_MODE_LOWER;
        dense::TRIANGLES[1] => batches::cublasFillMode_t::CUBLAS_FILL_MODE_UPPER;
        dense::RIGHT => batches::cublasSideMode_t::CUBLAS_SIDE_RIGHT;
        dense::VECTORS => solver::cusolverEigMode_t::CUSOLVER_EIG_MODE_VECTOR;
    }
}
