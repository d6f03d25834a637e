//! Calls of vendor libraries, as data.
//!
//! A library call is a command like a launch ([`LibraryLaunch`](crate::LibraryLaunch)). On a GPU the driver makes the call
//! that is described here; the simulator runs the accompanying host function. This module knows no dtypes: element formats
//! are CUDA's own numbers (`cudaDataType_t` in `library_types.h`).
//!
//! This module is a hub: `attention`, `convolution`, `recurrent`, `fourier` and `dense` describe five of its calls, with its element formats.

mod addresses;
pub(crate) mod attention;
pub(crate) mod convolution;
pub(crate) mod dense;
pub(crate) mod fourier;
pub(crate) mod recurrent;

use self::attention::AttentionCall;
use self::convolution::ConvolutionCall;
use self::dense::DenseCall;
use self::fourier::FourierCall;
use self::recurrent::{RecurrentCall, RecurrentPass};
use crate::DevicePointer;

/// A call of a vendor library.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum GpuCall {
    /// A matrix product through cuBLASLt.
    Matmul(MatmulCall),
    /// Scaled dot-product attention, or its gradient, through cuDNN.
    Attention(AttentionCall),
    /// A convolution, or one of its gradients, through cuDNN.
    Convolution(ConvolutionCall),
    /// A pass of a recurrent network through cuDNN.
    Recurrent(RecurrentCall),
    /// A batch of discrete Fourier transforms through cuFFT.
    Fourier(FourierCall),
    /// A batch of decompositions through cuSOLVER and cuBLAS.
    Dense(DenseCall),
}

impl GpuCall {
    /// Returns the library's function that does the work, for errors.
    pub const fn entry_point(&self) -> &'static str {
        match self {
            Self::Matmul(_) => "cublasLtMatmul",
            Self::Attention(_) | Self::Convolution(_) => "cudnnBackendExecute",
            Self::Dense(_) => "cusolverDn",
            Self::Fourier(_) => "cufftExec",
            Self::Recurrent(call) => match call.pass {
                RecurrentPass::Forward { .. } => "cudnnRNNForward",
                RecurrentPass::Backward { .. } => "cudnnRNNBackwardData_v8",
                RecurrentPass::Weights { .. } => "cudnnRNNBackwardWeights_v8",
            },
        }
    }
}

/// An element format, as `cudaDataType_t` numbers it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ElementFormat(pub u32);

impl ElementFormat {
    /// 32-bit floats (`CUDA_R_32F`).
    pub const R_32F: Self = Self(0);
    /// 64-bit floats (`CUDA_R_64F`).
    pub const R_64F: Self = Self(1);
    /// IEEE 16-bit floats (`CUDA_R_16F`).
    pub const R_16F: Self = Self(2);
    /// 16-bit brain floats (`CUDA_R_16BF`).
    pub const R_16BF: Self = Self(14);
    /// Signed bytes (`CUDA_R_8I`).
    pub const R_8I: Self = Self(3);
    /// Unsigned bytes (`CUDA_R_8U`).
    pub const R_8U: Self = Self(8);
    /// Signed 32-bit integers (`CUDA_R_32I`).
    pub const R_32I: Self = Self(10);
    /// Unsigned 32-bit integers (`CUDA_R_32U`).
    pub const R_32U: Self = Self(12);
    /// Signed 64-bit integers (`CUDA_R_64I`).
    pub const R_64I: Self = Self(24);
    /// Unsigned 64-bit integers (`CUDA_R_64U`).
    pub const R_64U: Self = Self(26);

    /// Returns the size of an element; `None` for a format that has no name here.
    pub const fn bytes(self) -> Option<u64> {
        match self {
            Self::R_8I | Self::R_8U => Some(1),
            Self::R_16F | Self::R_16BF => Some(2),
            Self::R_32F | Self::R_32I | Self::R_32U => Some(4),
            Self::R_64F | Self::R_64I | Self::R_64U => Some(8),
            _ => None,
        }
    }
}

/// The way in which products are accumulated, as `cublasComputeType_t` numbers it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ComputeFormat(pub u32);

impl ComputeFormat {
    /// 32-bit floats (`CUBLAS_COMPUTE_32F`): IEEE single precision for f32 operands.
    pub const F32: Self = Self(68);
    /// 32-bit floats whose operands are rounded to TF32 (`CUBLAS_COMPUTE_32F_FAST_TF32`).
    pub const F32_FAST_TF32: Self = Self(77);
    /// 16-bit floats (`CUBLAS_COMPUTE_16F`), for operands of 16-bit IEEE floats; the factors are 0 or 1.
    pub const F16: Self = Self(64);
    /// 32-bit floats, each of which is treated as a sum of three 16-bit brain floats (`CUBLAS_COMPUTE_32F_EMULATED_16BFX9`,
    /// CUDA 12.9 and later).
    pub const F32_EMULATED_BF16X9: Self = Self(78);
    /// 64-bit floats (`CUBLAS_COMPUTE_64F`).
    pub const F64: Self = Self(70);
}

/// The schemes by which an algorithm may add up the parts of a product that is split along k: a mask of
/// `cublasLtReductionScheme_t`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReductionSchemes(pub u32);

impl ReductionSchemes {
    /// No scheme: products are not split along k.
    pub const NONE: Self = Self(0);
    /// Parts are added in the format that products are accumulated in (`CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE`).
    pub const COMPUTE_TYPE: Self = Self(2);
    /// Any scheme, including parts in the output's format (`CUBLASLT_REDUCTION_SCHEME_MASK`).
    pub const ANY: Self = Self(7);
}

/// An algorithm of the library for a product: cuBLASLt's `cublasLtMatmulAlgoConfigAttributes_t`. It identifies the same
/// algorithm in every process with the same library on the same kind of device. The numbers have no meaning outside the
/// library.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct MatmulAlgorithm {
    /// The algorithm's number.
    pub id: i32,
    /// The shape of a tile.
    pub tile: u32,
    /// The depth of the pipeline.
    pub stages: u32,
    /// The number of parts that k is split into; 0 or 1 for no split.
    pub split_k: i32,
    /// The reduction scheme of the parts.
    pub reduction: u32,
    /// The order of blocks.
    pub swizzle: u32,
    /// An option specific to this algorithm.
    pub custom: u32,
    /// The shape of the instruction.
    pub inner_shape: u16,
    /// The shape of a cluster of blocks.
    pub cluster_shape: u16,
}

/// One matrix of a product, stored row by row (row-major).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Matrix {
    /// The address of the first element.
    pub address: DevicePointer,
    /// Elements from one stored row to the next.
    pub leading_dimension: u64,
    /// Elements from one matrix of the batch to the next; 0 repeats the same matrix.
    pub batch_stride: u64,
    /// Whether the stored matrix is the transpose of the operand. Never set for the output.
    pub transposed: bool,
}

/// Additional work of the library on a product before it stores it.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct MatmulEpilogue {
    /// The first of n numbers in the format of the output that are added to each row before rounding. Products in 64-bit
    /// floats have no bias.
    pub bias: Option<DevicePointer>,
    /// The product's role in an activation.
    pub activation: Option<MatmulActivation>,
}

/// A product's role in an activation, for 16-bit floats. A batch, a `beta` that is not 0, and an output of another format
/// than the operands are [`InvalidValue`](crate::Code::InvalidValue).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MatmulActivation {
    /// The function.
    pub function: Activation,
    /// The pass, forward or backward.
    pub pass: ActivationPass,
    /// The first of m×n elements or bits that the forward pass stores for the backward pass: see [`Activation`]. Aligned to
    /// 16 bytes.
    pub kept: DevicePointer,
    /// Elements, or bits, from one row of `kept` to the next: a multiple of [`Activation::row_multiple`].
    pub leading_dimension: u64,
}

/// A function of each element of a product.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Activation {
    /// `g(x) = x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`. Its argument is stored, in the format of the elements.
    Gelu,
    /// `max(x, 0)`. One bit per element is stored, whether the element is above 0, in the library's order.
    Relu,
}

impl Activation {
    /// Returns the number that the row distance of the stored values must be a multiple of: in elements for [`Gelu`](Self::Gelu),
    /// in bits for [`Relu`](Self::Relu).
    pub const fn row_multiple(self) -> u64 {
        match self {
            Self::Gelu => 8,
            Self::Relu => 128,
        }
    }
}

/// The pass that a [`MatmulActivation`] belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ActivationPass {
    /// The activation of the product, with its bias, is the output.
    Forward,
    /// The product is multiplied by the activation's derivative, computed from the stored values. There is no bias.
    Backward,
}

/// `D = alpha · op(A) · op(B) + beta · D`, with an epilogue, for each matrix of a batch, row-major: `op(A)` is m×k, `op(B)` is k×n, `D` m×n.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MatmulCall {
    /// Rows of the output.
    pub m: u64,
    /// Columns of the output.
    pub n: u64,
    /// The length that is summed over.
    pub k: u64,
    /// The number of products; at least 1.
    pub batch: u64,
    /// The left operand.
    pub a: Matrix,
    /// The right operand.
    pub b: Matrix,
    /// The output, and the addend where `beta` is not 0.
    pub d: Matrix,
    /// The format of the elements of both operands.
    pub format: ElementFormat,
    /// The format of the output's elements: the format of the operands, or 32-bit floats for operands of 16 bits.
    pub output_format: ElementFormat,
    /// The way in which products are accumulated.
    pub compute: ComputeFormat,
    /// The factor of the product.
    pub alpha: f64,
    /// The factor of the addend.
    pub beta: f64,
    /// The work on the product before it is stored.
    pub epilogue: MatmulEpilogue,
    /// The workspace that the library may use while this command runs: address and bytes.
    pub workspace: Option<(DevicePointer, u64)>,
    /// The reduction schemes from which the library may choose.
    pub reductions: ReductionSchemes,
    /// The algorithm, one of [`Driver::matmul_algorithms`](crate::Driver::matmul_algorithms) for this product; `None`
    /// leaves the choice to the library. An algorithm that the library does not have for the product is
    /// [`NotSupported`](crate::Code::NotSupported).
    pub algorithm: Option<MatmulAlgorithm>,
}
