//! Matrix products: calls of the vendor's library, or kernels of our own.
//!
//! On a GPU with cuBLASLt a product is a library call; without the library it is a kernel of our own; in the simulator it is a
//! host function. All three are described by one [`Matmul`]. A product of f32 that is too small to fill a GPU is a
//! [`FusedMatmul`], always a kernel of our own: the library's kernels are made for large products.

use thalweg_driver::{
    Activation, Code, ComputeFormat, DevicePointer, ElementFormat, GpuCall, Label, MatmulAlgorithm,
    MatmulCall, MatmulEpilogue, Matrix, ReductionSchemes,
};
use thalweg_ir::DType;
use thalweg_kernels::matmul::few_rows::{self, FewRows};
use thalweg_kernels::matmul::fused::{self, FusedMatmul, PerOperand};
use thalweg_kernels::matmul::warp_groups::{self, MappedOperands, Tiles, WarpGroupMatmul};
use thalweg_kernels::matmul::{
    Matmul, Operand, host_function, library_accesses, library_words, wide_accesses, wide_host_function,
};
use thalweg_kernels::{NativeKernel, Placed};
use thalweg_runtime::{Error, Result, Stream, command_list, element_format, refuse, refuse_if};

use crate::backends::cuda::{BlasLibrary, cublaslt_workspace_for, preferred_blas_library};
use crate::library::submit_with_workspace;
use crate::strips::{Call, Operands, Strips};
use crate::tunable::Solution;
use crate::{Work, backends, tunable};

/// The size below which no algorithm that needs scratch memory is worthwhile, unless it divides the terms.
const WORKSPACE_FLOPS: u64 = 1 << 28;

/// The number of terms from which an algorithm that divides them, and needs scratch memory for the parts, may be worthwhile.
const DIVIDED_TERMS: u64 = 1 << 11;

/// The rows and columns of a tile that a multiprocessor computes.
const TILE: u64 = 128;

/// Returns whether a product has many terms, and too few tiles for the multiprocessors to be busy unless they share the terms.
fn is_divided(product: &Matmul, processors: u64) -> bool {
    let tiles = product.m.div_ceil(TILE) * product.n.div_ceil(TILE);
    product.k >= DIVIDED_TERMS && tiles.saturating_mul(product.batch) < processors
}

/// The maximum number of rows for which a product that reads its weight once is a kernel of our own; with more rows, the library
/// is faster for large weights.
const MOST_ROWS_BY_DEFAULT: u64 = 4;

/// A product. Placed at the addresses of the matrices A, B and D.
///
/// # Errors
/// [`Error::is_invalid_argument`] if there is no kernel for the dtype, and the driver's errors.
#[derive(Clone, Copy, Debug)]
pub struct Product<'a>(pub &'a Matmul);

impl Work<[DevicePointer; 3]> for Product<'_> {
    fn queue(self, at: [DevicePointer; 3], stream: &Stream, label: Label) -> Result<()> {
        matmul_as_tuned(stream, self.0, &Operands { at, bias: None, is_wide: false }, label)
    }
}

/// A product of 16-bit floats whose result, and the matrix that it is added to, are f32: the result is not rounded to 16 bits.
/// Placed like a [`Product`].
///
/// # Errors
/// [`Error::is_invalid_argument`] for a product that is not [supported](takes_wide), and the driver's errors.
#[derive(Clone, Copy, Debug)]
pub struct WideProduct<'a>(pub &'a Matmul);

impl Work<[DevicePointer; 3]> for WideProduct<'_> {
    fn queue(self, at: [DevicePointer; 3], stream: &Stream, label: Label) -> Result<()> {
        let product = self.0;
        refuse_if!(!takes_wide(stream, product), "matmul {product}: no library here gives it in float32");
        matmul_as_tuned(stream, product, &Operands { at, bias: None, is_wide: true }, label)
    }
}

/// A product with an epilogue, all of the product's dtype: a bias of n contiguous elements is added to each row of D before it is
/// rounded, and an activation or its gradient is applied. The library does so while it stores. Placed at the addresses of A, B and D,
/// with a [`MatmulEpilogue`] of addresses.
///
/// # Errors
/// [`Error::is_invalid_argument`] for a product that is not supported with [a bias](takes_bias) or [an activation](takes_activation),
/// and the driver's errors.
#[derive(Clone, Copy, Debug)]
pub struct ProductWith<'a>(pub &'a Matmul);

impl Work<([DevicePointer; 3], MatmulEpilogue)> for ProductWith<'_> {
    fn queue(
        self,
        (at, epilogue): ([DevicePointer; 3], MatmulEpilogue),
        stream: &Stream,
        label: Label,
    ) -> Result<()> {
        let product = self.0;
        let is_taken = match epilogue.activation {
            Some(activation) => takes_activation(stream, product, activation.function),
            None => takes_bias(stream, product),
        };
        if !is_taken {
            refuse!("matmul {product}: no library here adds a bias to it or takes an activation of it");
        }
        match epilogue.activation {
            None => {
                let operands = Operands { at, bias: epilogue.bias, is_wide: false };
                matmul_as_tuned(stream, product, &operands, label)
            }
            Some(_) => {
                let method = (backends::precision_of(product), None);
                with_epilogue(stream, product, at, &epilogue, method, label)
            }
        }
    }
}

/// Returns whether [`ProductWith`] supports a product with a bias.
pub fn takes_bias(stream: &Stream, product: &Matmul) -> bool {
    product.dtype != DType::F64 && !product.accumulates() && has_library_for(stream, product)
}

/// Returns whether [`ProductWith`] supports a product with an activation; the argument of GELU has the
/// layout of D.
pub fn takes_activation(stream: &Stream, product: &Matmul, function: Activation) -> bool {
    let is_short = matches!(product.dtype, DType::F16 | DType::Bf16);
    let has_rows =
        function == Activation::Relu || product.d.leading_dimension.is_multiple_of(function.row_multiple());
    is_short && product.batch == 1 && has_rows && takes_bias(stream, product)
}

/// Returns whether [`WideProduct`] supports a product.
pub fn takes_wide(stream: &Stream, product: &Matmul) -> bool {
    matches!(product.dtype, DType::F16 | DType::Bf16) && has_library_for(stream, product)
}

/// Returns whether a product with A, B and D at these addresses is computed as one of [few rows](FewRows), by a kernel of our
/// own: not while tuning chooses, nor if [`preferred_blas_library`] names another implementation.
pub fn takes_few_rows(stream: &Stream, product: &Matmul, at: [DevicePointer; 3]) -> bool {
    !tunable::is_enabled() && has_few_rows(stream, product, at)
}

/// Returns whether the device has a kernel for a product of few rows.
pub(crate) fn can_take_few_rows(stream: &Stream, product: &Matmul) -> bool {
    few_rows::fits(product)
        && (!few_rows::cuda::needs_tensor_cores(product.dtype) || stream.device().has_tensor_cores())
}

/// Returns whether the device has a kernel by groups of warps for a product.
pub(crate) fn can_take_groups(stream: &Stream, product: &Matmul) -> bool {
    stream.device().has_warp_groups() && warp_groups::fits(product)
}

/// Queues a product by groups of warps.
fn matmul_by_groups(
    stream: &Stream,
    product: &Matmul,
    tiles: Tiles,
    at: [DevicePointer; 3],
    bias: Option<DevicePointer>,
    label: Label,
) -> Result<()> {
    let device = stream.device();
    let processors = device.properties().multi_processor_count;
    let kernel = WarpGroupMatmul { product: *product, tiles, processors };
    let [a, b, d] = kernel.tensors(at);
    command_list::refuse(|| format!("{label} reads its matrices by maps of their addresses"));
    let map = |tensor| stream.check(device.driver().tensor_map(&tensor));
    let maps = [map(a)?, map(b)?, map(d)?];
    stream.launch_native(&Placed { kernel, at: MappedOperands { at, bias, maps } }, label)
}

/// Returns whether a product has few rows and tuning does not choose.
fn has_few_rows(stream: &Stream, product: &Matmul, at: [DevicePointer; 3]) -> bool {
    product.m <= MOST_ROWS_BY_DEFAULT
        && can_take_few_rows(stream, product)
        && is_aligned_for_rows(at)
        && preferred_blas_library() == BlasLibrary::Default
}

/// Queues a product by the solution that tuning found, or by the default one.
fn matmul_as_tuned(stream: &Stream, product: &Matmul, operands: &Operands, label: Label) -> Result<()> {
    let precision = backends::precision_of(product);
    if !tunable::is_enabled() {
        return matmul_by(stream, Solution::Default, precision, product, operands, label);
    }
    let solution = tunable::solution_of(stream, product, precision, operands, label)?;
    let result = matmul_by(stream, solution, precision, product, operands, label);
    match &result {
        // The library has changed, or the addresses are less aligned than those of the trial.
        Err(error) if solution != Solution::Default && is_refusal(error) => {
            tunable::forget_refused(stream.device(), product, precision, operands, error);
            matmul_by(stream, Solution::Default, precision, product, operands, label)
        }
        _ => result,
    }
}

/// Queues a product by a solution.
pub(crate) fn matmul_by(
    stream: &Stream,
    solution: Solution,
    precision: Precision,
    product: &Matmul,
    operands: &Operands,
    label: Label,
) -> Result<()> {
    let algorithm = match solution {
        Solution::Library(algorithm) => Some(algorithm),
        Solution::Default | Solution::Tiles | Solution::Rows | Solution::Groups(_) => None,
    };
    let Operands { at, bias, is_wide } = *operands;
    let is_default = solution == Solution::Default;
    let is_ours = is_default && preferred_blas_library() == BlasLibrary::Default;
    let processors = u64::from(stream.device().properties().multi_processor_count);
    if is_default
        && has_library_for(stream, product)
        && let Some(strips) = Strips::of(product, is_wide, processors)
    {
        return matmul_in_strips(stream, &strips, product, *operands, (precision, None), label);
    }
    if is_wide {
        return by_library(stream, product, operands, (precision, algorithm), label);
    }
    if let Solution::Groups(tiles) = solution
        && can_take_groups(stream, product)
        && warp_groups::is_aligned(at, bias)
    {
        return matmul_by_groups(stream, product, tiles, at, bias, label);
    }
    let in_tiles = solution == Solution::Tiles || (is_ours && fused::fits(product));
    let by_rows = solution == Solution::Rows && can_take_few_rows(stream, product) && is_aligned_for_rows(at);
    if by_rows || (is_ours && !in_tiles && has_few_rows(stream, product, at)) {
        let [a, b, d] = at.map(DevicePointer::address);
        let bias_at = bias.map_or(0, DevicePointer::address);
        let at = PerOperand { a, b, d, bias: bias_at, ..PerOperand::default() };
        let kernel = FewRows { bias: bias.is_some(), ..FewRows::unfused(*product) };
        return stream.launch_native(&Placed { kernel, at }, label);
    }
    if bias.is_none() && in_tiles {
        let [a, b, d] = at.map(DevicePointer::address);
        let at = PerOperand { a, b, d, ..PerOperand::default() };
        return stream.launch_native(&Placed { kernel: FusedMatmul::unfused(*product), at }, label);
    }
    if has_library_for(stream, product) {
        return by_library(stream, product, operands, (precision, algorithm), label);
    }
    stream.launch_native(&Placed { kernel: *product, at }, label)
}

/// Queues a product of the library in strips of aligned rows.
pub(crate) fn matmul_in_strips(
    stream: &Stream,
    strips: &Strips,
    product: &Matmul,
    operands: Operands,
    method: Method,
    label: Label,
) -> Result<()> {
    let multiply =
        |product: &Matmul, operands: Operands| by_library(stream, product, &operands, method, label);
    Call { stream, strips, product, operands, label, multiply }.queue()
}

/// Returns the algorithms that the library has for a product; empty if the product is not computed by the library.
pub(crate) fn library_algorithms(
    stream: &Stream,
    product: &Matmul,
    precision: Precision,
    operands: &Operands,
    most: u32,
) -> Result<Vec<MatmulAlgorithm>> {
    if !has_library_for(stream, product) {
        return Ok(Vec::new());
    }
    // Only the size matters; the address stands for one with the alignment of the cache's memory.
    let bytes = workspace_bytes(stream, product);
    let workspace = (bytes > 0).then_some((DevicePointer::new(256), bytes));
    let Operands { at, bias, is_wide } = *operands;
    let epilogue = MatmulEpilogue { bias, activation: None };
    let Some(mut call) = matmul_call(product, at, epilogue, workspace, (precision, None)) else {
        return Ok(Vec::new());
    };
    if is_wide {
        call.output_format = ElementFormat::R_32F;
    }
    stream.check(stream.device().driver().matmul_algorithms(stream.device().index(), &call, most))
}

/// Returns the scratch memory of a product of the library.
fn workspace_bytes(stream: &Stream, product: &Matmul) -> u64 {
    let device = stream.device();
    let is_divided = is_divided(product, u64::from(device.properties().multi_processor_count));
    let wants = !device.is_simulated() && (is_divided || product.flops() >= WORKSPACE_FLOPS);
    if wants { cublaslt_workspace_for(is_divided) } else { 0 }
}

/// Returns whether a product is a call of the vendor's library.
fn has_library_for(stream: &Stream, product: &Matmul) -> bool {
    // The library refuses products over nothing; our own kernel writes their zeros.
    let has_library = product.k > 0 && stream.device().properties().libraries.matmul;
    has_library && element_format(product.dtype).is_some()
}

/// Queues a product of the library over its operands.
fn by_library(
    stream: &Stream,
    product: &Matmul,
    &Operands { at, bias, is_wide }: &Operands,
    method: Method,
    label: Label,
) -> Result<()> {
    if !is_wide {
        return with_epilogue(stream, product, at, &MatmulEpilogue { bias, activation: None }, method, label);
    }
    let Some((placed, call)) = placed_call(product, at, MatmulEpilogue::default(), method) else {
        return Ok(());
    };
    let call = MatmulCall { output_format: ElementFormat::R_32F, ..call };
    let (bytes, words) = (workspace_bytes(stream, product), placed.words());
    let gpu = |workspace| GpuCall::Matmul(MatmulCall { workspace, ..call });
    let accesses = || wide_accesses(&placed);
    submit_with_workspace(stream, bytes, gpu, (wide_host_function(), &words), accesses, label)
}

/// Queues a product of the library with an epilogue.
fn with_epilogue(
    stream: &Stream,
    product: &Matmul,
    at: [DevicePointer; 3],
    epilogue: &MatmulEpilogue,
    method: Method,
    label: Label,
) -> Result<()> {
    let Some((placed, call)) = placed_call(product, at, *epilogue, method) else { return Ok(()) };
    let (bytes, words) = (workspace_bytes(stream, product), library_words(&placed, epilogue));
    let gpu = |workspace| GpuCall::Matmul(MatmulCall { workspace, ..call });
    let accesses = || library_accesses(&placed, epilogue);
    submit_with_workspace(stream, bytes, gpu, (host_function(), &words), accesses, label)
}

/// Returns a product at its addresses, and the library's call for the product, without a workspace; `None` if there is nothing to
/// compute.
fn placed_call(
    product: &Matmul,
    at: [DevicePointer; 3],
    epilogue: MatmulEpilogue,
    method: Method,
) -> Option<(Placed<Matmul, [DevicePointer; 3]>, MatmulCall)> {
    let placed = Placed { kernel: *product, at };
    placed.launch_shape()?;
    Some((placed, matmul_call(product, at, epilogue, None, method)?))
}

/// The format in which products are accumulated, and the allowed reductions.
pub(crate) type Precision = (ComputeFormat, ReductionSchemes);

/// The way in which the library computes a product: a precision, and an algorithm unless the library chooses.
type Method = (Precision, Option<MatmulAlgorithm>);

fn is_aligned_for_rows([a, b, _]: [DevicePointer; 3]) -> bool {
    few_rows::is_aligned(a.address(), b.address())
}

/// Returns whether an error means that the library does not support an algorithm.
fn is_refusal(error: &Error) -> bool {
    error.driver_error().is_some_and(|error| error.code() == Code::NotSupported)
}

/// Returns the library's call for a product; `None` for a dtype that the library does not support.
fn matmul_call(
    product: &Matmul,
    at: [DevicePointer; 3],
    epilogue: MatmulEpilogue,
    workspace: Option<(DevicePointer, u64)>,
    ((compute, reductions), algorithm): Method,
) -> Option<MatmulCall> {
    let [a, b, d] = at;
    let format = element_format(product.dtype)?;
    Some(MatmulCall {
        m: product.m,
        n: product.n,
        k: product.k,
        batch: product.batch,
        a: matrix(&product.a, a),
        b: matrix(&product.b, b),
        d: matrix(&product.d, d),
        format,
        output_format: format,
        compute,
        alpha: product.alpha.get(),
        beta: product.beta.get(),
        epilogue,
        workspace,
        reductions,
        algorithm,
    })
}

fn matrix(operand: &Operand, address: DevicePointer) -> Matrix {
    Matrix {
        address,
        leading_dimension: operand.leading_dimension,
        batch_stride: operand.batch_stride,
        transposed: operand.transposed,
    }
}
