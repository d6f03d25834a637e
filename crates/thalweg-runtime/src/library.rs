//! Library work: matrix products and attention.
//!
//! On a GPU with cuBLASLt a product is a library call; without the library it is a kernel of our own; in the simulator it is a
//! host function. All three are described by one [`Matmul`]. A product of f32 that is too small to fill a GPU is a
//! [`FusedMatmul`], always a kernel of our own: the library's kernels are made for large products.
//!
//! Attention calls cuDNN if it is installed and supports the shape ([`Stream::library_attention`]); in the simulator it is a host
//! function. The callers have kernels of our own for all other cases.

use std::sync::Arc;

use thalweg_driver::{
    Access, Activation, AttentionCall, AttentionGradients, AttentionMask, AttentionOperand, AttentionShape,
    Code, ComputeFormat, ConvolutionCall, ConvolutionEpilogue, ConvolutionPass, ConvolutionShape, DenseCall,
    DevicePointer, ElementFormat, FourierCall, FourierShape, GpuCall, HostKernel, Label, LibraryLaunch,
    MatmulAlgorithm, MatmulCall, MatmulEpilogue, Matrix, RecurrentCall, RecurrentMemory, RecurrentShape,
    ReductionSchemes,
};
use thalweg_ir::DType;
use thalweg_kernels::attention::{Addresses, LibraryAttention, PerOperand as PerAttentionOperand, Strides};
use thalweg_kernels::convolution;
use thalweg_kernels::decompose::library;
use thalweg_kernels::matmul::few_rows::{self, FewRows};
use thalweg_kernels::matmul::fused::{self, FusedMatmul, PerOperand};
use thalweg_kernels::matmul::warp_groups::{self, MappedOperands, Tiles, WarpGroupMatmul};
use thalweg_kernels::matmul::{
    Matmul, Operand, host_function, library_accesses, library_words, wide_accesses, wide_host_function,
};
use thalweg_kernels::{NativeKernel, Placed, fourier, recurrent};

use crate::aligned::{Call, Operands, Strips};
use crate::backends::cuda::{BlasLibrary, cublaslt_workspace_for, preferred_blas_library};
use crate::recorder;
use crate::tunable::Solution;
use crate::{Buffer, Error, Result, Stream, backends, tunable};
use crate::{refuse, refuse_if};

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

impl Stream {
    /// Queues the product that `product` describes over the matrices A, B and D at these addresses.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`](crate::Error::is_invalid_argument) if there is no kernel for the dtype, and the driver's
    /// errors.
    pub fn matmul(&self, product: &Matmul, at: [DevicePointer; 3], label: Label) -> Result<()> {
        self.matmul_as_tuned(product, &Operands { at, bias: None, is_wide: false }, label)
    }

    /// Returns whether [`matmul_with`](Self::matmul_with) supports a product with a bias.
    pub fn takes_bias(&self, product: &Matmul) -> bool {
        product.dtype != DType::F64 && !product.accumulates() && self.has_library_for(product)
    }

    /// Returns whether [`matmul_with`](Self::matmul_with) supports a product with an activation; the argument of GELU has the
    /// layout of D.
    pub fn takes_activation(&self, product: &Matmul, function: Activation) -> bool {
        let is_short = matches!(product.dtype, DType::F16 | DType::Bf16);
        let has_rows = function == Activation::Relu
            || product.d.leading_dimension.is_multiple_of(function.row_multiple());
        is_short && product.batch == 1 && has_rows && self.takes_bias(product)
    }

    /// Returns whether [`matmul_into_wide`](Self::matmul_into_wide) supports a product.
    pub fn takes_wide(&self, product: &Matmul) -> bool {
        matches!(product.dtype, DType::F16 | DType::Bf16) && self.has_library_for(product)
    }

    /// Queues a [`matmul`](Self::matmul) of 16-bit floats whose result, and the matrix that it is added to, are f32: the result
    /// is not rounded to 16 bits.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`](crate::Error::is_invalid_argument) for a product that is not [supported](Self::takes_wide),
    /// and the driver's errors.
    pub fn matmul_into_wide(&self, product: &Matmul, at: [DevicePointer; 3], label: Label) -> Result<()> {
        refuse_if!(!self.takes_wide(product), "matmul {product}: no library here gives it in float32");
        self.matmul_as_tuned(product, &Operands { at, bias: None, is_wide: true }, label)
    }

    /// Queues a [`matmul`](Self::matmul) with an epilogue, all of the product's dtype: a bias of n contiguous elements is added
    /// to each row of D before it is rounded, and an activation or its gradient is applied ([`MatmulEpilogue`]). The library does
    /// so while it stores.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`](crate::Error::is_invalid_argument) for a product that is not supported with [a
    /// bias](Self::takes_bias) or [an activation](Self::takes_activation), and the driver's errors.
    pub fn matmul_with(
        &self,
        product: &Matmul,
        at: [DevicePointer; 3],
        epilogue: &MatmulEpilogue,
        label: Label,
    ) -> Result<()> {
        let is_taken = match epilogue.activation {
            Some(activation) => self.takes_activation(product, activation.function),
            None => self.takes_bias(product),
        };
        if !is_taken {
            refuse!("matmul {product}: no library here adds a bias to it or takes an activation of it");
        }
        match epilogue.activation {
            None => {
                self.matmul_as_tuned(product, &Operands { at, bias: epilogue.bias, is_wide: false }, label)
            }
            Some(_) => {
                self.library_matmul(product, at, epilogue, (backends::precision_of(product), None), label)
            }
        }
    }

    /// Returns whether a product with A, B and D at these addresses is computed as one of [few rows](FewRows), by a kernel of our
    /// own: not while tuning chooses, nor if [`preferred_blas_library`] names another implementation.
    pub fn takes_few_rows(&self, product: &Matmul, at: [DevicePointer; 3]) -> bool {
        !tunable::is_enabled() && self.has_few_rows(product, at)
    }

    /// Returns whether the device has a kernel for a product of few rows.
    pub(crate) fn can_take_few_rows(&self, product: &Matmul) -> bool {
        few_rows::fits(product)
            && (!few_rows::cuda::needs_tensor_cores(product.dtype) || self.device().has_tensor_cores())
    }

    /// Returns whether the device has a kernel by groups of warps for a product.
    pub(crate) fn can_take_groups(&self, product: &Matmul) -> bool {
        self.device().has_warp_groups() && warp_groups::fits(product)
    }

    /// Queues a product by groups of warps.
    fn matmul_by_groups(
        &self,
        product: &Matmul,
        tiles: Tiles,
        at: [DevicePointer; 3],
        bias: Option<DevicePointer>,
        label: Label,
    ) -> Result<()> {
        let device = self.device();
        let processors = device.properties().multi_processor_count;
        let kernel = WarpGroupMatmul { product: *product, tiles, processors };
        let [a, b, d] = kernel.tensors(at);
        recorder::refuse(|| format!("{label} reads its matrices by maps of their addresses"));
        let map = |tensor| self.check(device.driver().tensor_map(&tensor));
        let maps = [map(a)?, map(b)?, map(d)?];
        self.launch_native(&Placed { kernel, at: MappedOperands { at, bias, maps } }, label)
    }

    /// Returns whether a product has few rows and tuning does not choose.
    fn has_few_rows(&self, product: &Matmul, at: [DevicePointer; 3]) -> bool {
        product.m <= MOST_ROWS_BY_DEFAULT
            && self.can_take_few_rows(product)
            && is_aligned_for_rows(at)
            && preferred_blas_library() == BlasLibrary::Default
    }

    /// Queues a product by the solution that tuning found, or by the default one.
    fn matmul_as_tuned(&self, product: &Matmul, operands: &Operands, label: Label) -> Result<()> {
        let precision = backends::precision_of(product);
        if !tunable::is_enabled() {
            return self.matmul_by(Solution::Default, precision, product, operands, label);
        }
        let solution = tunable::solution_of(self, product, precision, operands, label)?;
        let result = self.matmul_by(solution, precision, product, operands, label);
        match &result {
            // The library has changed, or the addresses are less aligned than those of the trial.
            Err(error) if solution != Solution::Default && is_refusal(error) => {
                tunable::forget_refused(self.device(), product, precision, operands, error);
                self.matmul_by(Solution::Default, precision, product, operands, label)
            }
            _ => result,
        }
    }

    /// Queues a product by a solution.
    pub(crate) fn matmul_by(
        &self,
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
        let processors = u64::from(self.device().properties().multi_processor_count);
        if is_default
            && self.has_library_for(product)
            && let Some(strips) = Strips::of(product, is_wide, processors)
        {
            return self.matmul_in_strips(&strips, product, *operands, (precision, None), label);
        }
        if is_wide {
            return self.library_matmul_into_wide(product, at, (precision, algorithm), label);
        }
        if let Solution::Groups(tiles) = solution
            && self.can_take_groups(product)
            && warp_groups::is_aligned(at, bias)
        {
            return self.matmul_by_groups(product, tiles, at, bias, label);
        }
        let in_tiles = solution == Solution::Tiles || (is_ours && fused::fits(product));
        let by_rows =
            solution == Solution::Rows && self.can_take_few_rows(product) && is_aligned_for_rows(at);
        if by_rows || (is_ours && !in_tiles && self.has_few_rows(product, at)) {
            let [a, b, d] = at.map(DevicePointer::address);
            let bias_at = bias.map_or(0, DevicePointer::address);
            let at = PerOperand { a, b, d, bias: bias_at, ..PerOperand::default() };
            let kernel = FewRows { bias: bias.is_some(), ..FewRows::unfused(*product) };
            return self.launch_native(&Placed { kernel, at }, label);
        }
        if bias.is_none() && in_tiles {
            let [a, b, d] = at.map(DevicePointer::address);
            let at = PerOperand { a, b, d, ..PerOperand::default() };
            return self.launch_native(&Placed { kernel: FusedMatmul::unfused(*product), at }, label);
        }
        if self.has_library_for(product) {
            let epilogue = MatmulEpilogue { bias, activation: None };
            return self.library_matmul(product, at, &epilogue, (precision, algorithm), label);
        }
        self.launch_native(&Placed { kernel: *product, at }, label)
    }

    /// Queues a product of the library in strips of aligned rows.
    pub(crate) fn matmul_in_strips(
        &self,
        strips: &Strips,
        product: &Matmul,
        operands: Operands,
        method: (Precision, Option<MatmulAlgorithm>),
        label: Label,
    ) -> Result<()> {
        let multiply = |product: &Matmul, Operands { at, bias, is_wide }: Operands| {
            if is_wide {
                return self.library_matmul_into_wide(product, at, method, label);
            }
            let epilogue = MatmulEpilogue { bias, activation: None };
            self.library_matmul(product, at, &epilogue, method, label)
        };
        Call { stream: self, strips, product, operands, label, multiply }.queue()
    }

    /// Returns the algorithms that the library has for a product; empty if the product is not computed by the library.
    pub(crate) fn library_algorithms(
        &self,
        product: &Matmul,
        precision: Precision,
        operands: &Operands,
        most: u32,
    ) -> Result<Vec<MatmulAlgorithm>> {
        if !self.has_library_for(product) {
            return Ok(Vec::new());
        }
        // Only the size matters; the address stands for one with the alignment of the cache's memory.
        let bytes = self.workspace_bytes(product);
        let workspace = (bytes > 0).then_some((DevicePointer::new(256), bytes));
        let Operands { at, bias, is_wide } = *operands;
        let epilogue = MatmulEpilogue { bias, activation: None };
        let Some(mut call) = matmul_call(product, at, epilogue, workspace, (precision, None)) else {
            return Ok(Vec::new());
        };
        if is_wide {
            call.output_format = ElementFormat::R_32F;
        }
        self.check(self.device().driver().matmul_algorithms(self.device().index(), &call, most))
    }

    /// Returns the scratch memory of a product of the library.
    fn workspace_bytes(&self, product: &Matmul) -> u64 {
        let device = self.device();
        let is_divided = is_divided(product, u64::from(device.properties().multi_processor_count));
        let wants = !device.is_simulated() && (is_divided || product.flops() >= WORKSPACE_FLOPS);
        if wants { cublaslt_workspace_for(is_divided) } else { 0 }
    }

    /// Queues attention, or its gradient, as a call of the vendor's library. The first call for a shape prepares it, which may
    /// take some tenths of a second.
    ///
    /// # Errors
    /// [`Error::is_library_missing`] and [`Error::is_not_supported`] if there is no library, or none that supports these sizes
    /// and strides; [`Error::is_invalid_argument`] for an invalid description, and the driver's errors.
    pub fn library_attention(&self, call: &LibraryAttention, at: &Addresses, label: Label) -> Result<()> {
        let placed = Placed { kernel: *call, at: *at };
        placed.check().map_err(|fault| Error::invalid(fault.to_string()))?;
        let Some(mut attention) = attention_call(call, at) else {
            refuse!("attention: the library computes in 16-bit floats");
        };
        let bytes = self
            .device()
            .driver()
            .library_workspace(self.device().index(), &GpuCall::Attention(attention))?;
        let (words, host) = (placed.words(), placed.host());
        let gpu = |workspace| {
            attention.workspace = workspace;
            GpuCall::Attention(attention)
        };
        self.submit_with_workspace(bytes, gpu, (&host, &words), || placed.accesses(), label)
    }

    /// Queues a convolution, or one of its gradients, as a call of the vendor's library. It computes one of input, weight and
    /// output, at these addresses in this order, from the other two. The first call for a shape prepares it. [`backends::cudnn`]
    /// decides whether f32 may be rounded to TF32, and, unless `deterministic` is set, whether results must be bitwise
    /// reproducible. With its `benchmark` the first call tries several of the library's engines, and blocks. A forward pass may
    /// add a bias, and apply the rectified linear unit.
    ///
    /// # Errors
    /// [`Error::is_library_missing`] and [`Error::is_not_supported`] if there is no library, or none that supports these sizes;
    /// [`Error::is_invalid_argument`] for an invalid description, and the driver's errors.
    pub fn library_convolution(
        &self,
        shape: &ConvolutionShape,
        pass: ConvolutionPass,
        deterministic: bool,
        [input, weight, output]: [DevicePointer; 3],
        epilogue: Option<ConvolutionEpilogue>,
        label: Label,
    ) -> Result<()> {
        if let Some(fault) = shape.fault() {
            refuse!("convolution: {fault}");
        }
        let call = ConvolutionCall {
            shape: *shape,
            pass,
            input,
            weight,
            output,
            allow_tf32: backends::cudnn::allow_tf32(),
            deterministic: deterministic || backends::cudnn::deterministic(),
            epilogue,
            most_engines: backends::cudnn::most_engines(),
            workspace: None,
        };
        let device = self.device();
        let bytes = device.driver().library_workspace(device.index(), &GpuCall::Convolution(call))?;
        let host = convolution::host_function(call);
        let gpu = |workspace| GpuCall::Convolution(ConvolutionCall { workspace, ..call });
        self.submit_with_workspace(bytes, gpu, (&host, &[]), || convolution::accesses(&call), label)
    }

    /// Queues a batch of discrete Fourier transforms as a call of the vendor's library. The first call for a shape prepares it.
    ///
    /// # Errors
    /// [`Error::is_library_missing`] and [`Error::is_not_supported`] if there is no library, or none that supports these sizes;
    /// [`Error::is_invalid_argument`] for an invalid description, and the driver's errors.
    pub fn library_fourier(
        &self,
        shape: &FourierShape,
        [input, output]: [DevicePointer; 2],
        label: Label,
    ) -> Result<()> {
        if let Some(fault) = shape.fault() {
            refuse!("Fourier transform: {fault}");
        }
        let call = FourierCall { shape: *shape, input, output, workspace: None };
        let device = self.device();
        let bytes = device.driver().library_workspace(device.index(), &GpuCall::Fourier(call))?;
        let host = fourier::host_function(call);
        let gpu = |workspace| GpuCall::Fourier(FourierCall { workspace, ..call });
        self.submit_with_workspace(bytes, gpu, (&host, &[]), || fourier::accesses(&call), label)
    }

    /// Queues a batch of decompositions as a call of the vendor's libraries. The call's workspace is allocated here. It cannot be
    /// captured.
    ///
    /// # Errors
    /// [`Error::is_library_missing`] if there is no library; [`Error::is_invalid_argument`] for an invalid description, and the
    /// driver's errors.
    pub fn library_dense(&self, call: &DenseCall, label: Label) -> Result<()> {
        if let Some(fault) = call.fault() {
            refuse!("decomposition: {fault}");
        }
        let (device, dense) = (self.device(), GpuCall::Dense(call.clone()));
        let bytes = device.driver().library_workspace(device.index(), &dense)?;
        let host = library::host_function(call.clone());
        let gpu = |workspace| GpuCall::Dense(DenseCall { workspace, ..call.clone() });
        self.submit_with_workspace(bytes, gpu, (&host, &[]), || library::accesses(call), label)
    }

    /// Returns the layout of a recurrent network's weights, and the memory that its passes need.
    ///
    /// # Errors
    /// [`Error::is_library_missing`] and [`Error::is_not_supported`] if there is no library, or none that supports these sizes;
    /// [`Error::is_invalid_argument`] for an invalid description, and the driver's errors.
    pub fn recurrent_memory(&self, shape: &RecurrentShape) -> Result<RecurrentMemory> {
        if let Some(fault) = shape.fault() {
            refuse!("recurrent network: {fault}");
        }
        let device = self.device();
        self.check(device.driver().recurrent_memory(device.index(), shape))
    }

    /// Queues a pass of a recurrent network as a call of the vendor's library, with the memory that
    /// [`recurrent_memory`](Self::recurrent_memory) returned for its shape. The call's workspace is allocated here.
    pub fn library_recurrent(
        &self,
        call: &RecurrentCall,
        memory: &RecurrentMemory,
        label: Label,
    ) -> Result<()> {
        let host = recurrent::host_function(call.clone());
        let gpu = |workspace| GpuCall::Recurrent(RecurrentCall { workspace, ..call.clone() });
        let accesses = || recurrent::accesses(call, memory);
        self.submit_with_workspace(memory.workspace_bytes, gpu, (&host, &[]), accesses, label)
    }

    /// Queues a call of a library with `bytes` of workspace. The workspace returns to the cache when the call is queued: later
    /// work of this stream may use it then.
    fn submit_with_workspace<A: IntoIterator<Item = Access>>(
        &self,
        bytes: u64,
        gpu: impl FnOnce(Option<(DevicePointer, u64)>) -> GpuCall,
        (host, arguments): (&Arc<dyn HostKernel>, &[u64]),
        accesses: impl FnOnce() -> A,
        label: Label,
    ) -> Result<()> {
        let memory = (bytes > 0).then(|| Buffer::labelled(self, bytes, label)).transpose()?;
        let workspace = memory.as_ref().map(|memory| (memory.pointer(), bytes));
        let (gpu, arguments) = (gpu(workspace), bytemuck::cast_slice(arguments));
        let launch = LibraryLaunch { gpu: &gpu, host, arguments, accesses: &[], label };
        self.submit_library(launch, |list| {
            list.extend(accesses());
            list.extend(workspace.map(|(start, bytes)| Access::write(start, bytes)));
        })
    }

    /// Returns whether a product is a call of the vendor's library.
    fn has_library_for(&self, product: &Matmul) -> bool {
        // The library refuses products over nothing; our own kernel writes their zeros.
        let has_library = product.k > 0 && self.device().properties().libraries.matmul;
        has_library && element_format(product.dtype).is_some()
    }

    fn library_matmul(
        &self,
        product: &Matmul,
        at: [DevicePointer; 3],
        epilogue: &MatmulEpilogue,
        method: (Precision, Option<MatmulAlgorithm>),
        label: Label,
    ) -> Result<()> {
        let Some((placed, call)) = placed_call(product, at, *epilogue, method) else { return Ok(()) };
        let (bytes, words) = (self.workspace_bytes(product), library_words(&placed, epilogue));
        let gpu = |workspace| GpuCall::Matmul(MatmulCall { workspace, ..call });
        let accesses = || library_accesses(&placed, epilogue);
        self.submit_with_workspace(bytes, gpu, (host_function(), &words), accesses, label)
    }

    fn library_matmul_into_wide(
        &self,
        product: &Matmul,
        at: [DevicePointer; 3],
        method: (Precision, Option<MatmulAlgorithm>),
        label: Label,
    ) -> Result<()> {
        let Some((placed, call)) = placed_call(product, at, MatmulEpilogue::default(), method) else {
            return Ok(());
        };
        let call = MatmulCall { output_format: ElementFormat::R_32F, ..call };
        let (bytes, words) = (self.workspace_bytes(product), placed.words());
        let gpu = |workspace| GpuCall::Matmul(MatmulCall { workspace, ..call });
        let accesses = || wide_accesses(&placed);
        self.submit_with_workspace(bytes, gpu, (wide_host_function(), &words), accesses, label)
    }
}

/// Returns a product at its addresses, and the library's call for the product, without a workspace; `None` if there is nothing to
/// compute.
fn placed_call(
    product: &Matmul,
    at: [DevicePointer; 3],
    epilogue: MatmulEpilogue,
    method: (Precision, Option<MatmulAlgorithm>),
) -> Option<(Placed<Matmul, [DevicePointer; 3]>, MatmulCall)> {
    let placed = Placed { kernel: *product, at };
    placed.launch_shape()?;
    Some((placed, matmul_call(product, at, epilogue, None, method)?))
}

/// The format in which products are accumulated, and the allowed reductions.
pub(crate) type Precision = (ComputeFormat, ReductionSchemes);

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
    ((compute, reductions), algorithm): (Precision, Option<MatmulAlgorithm>),
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

/// Returns the result of a library call; `None` if no library of this machine computes it.
///
/// # Errors
/// Every other error of the call.
pub fn if_supported<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(result) => Ok(Some(result)),
        Err(error) if error.is_without_library() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the format of a floating-point dtype's elements; `None` for dtypes that libraries do not compute with.
pub fn element_format(dtype: DType) -> Option<ElementFormat> {
    match dtype {
        DType::F32 => Some(ElementFormat::R_32F),
        DType::F64 => Some(ElementFormat::R_64F),
        DType::F16 => Some(ElementFormat::R_16F),
        DType::Bf16 => Some(ElementFormat::R_16BF),
        _ => None,
    }
}

/// Returns a call without its workspace; `None` if the library has no format for the elements.
fn attention_call(call: &LibraryAttention, at: &Addresses) -> Option<AttentionCall> {
    let attention = &call.attention;
    let of = |address: u64, Strides { batch, head, row }: Strides| AttentionOperand {
        address: DevicePointer::new(address),
        strides: [batch, head, row],
    };
    let (addresses, strides) = (at.operands.list(), attention.strides.list());
    let operands = PerAttentionOperand::of(std::array::from_fn(|place| of(addresses[place], strides[place])));
    Some(AttentionCall {
        shape: AttentionShape {
            batch: attention.batch,
            heads: attention.heads,
            kv_heads: attention.kv_heads,
            queries: attention.queries,
            keys: attention.keys,
            head_size: attention.features,
            causal: attention.is_causal,
            format: element_format(attention.dtype)?,
        },
        scale: attention.scale(),
        query: operands.q,
        key: operands.k,
        value: operands.v,
        mask: attention.mask.map(|mask| AttentionMask {
            address: DevicePointer::new(at.mask),
            strides: [mask.strides.batch, mask.strides.head, mask.strides.query],
        }),
        output: operands.o,
        log_sum_exp: DevicePointer::new(at.lse),
        gradients: call.is_backward.then_some(AttentionGradients {
            output: operands.grad_o,
            query: operands.grad_q,
            key: operands.grad_k,
            value: operands.grad_v,
        }),
        deterministic: call.is_deterministic,
        workspace: None,
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
