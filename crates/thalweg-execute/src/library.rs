//! Calls of the vendor's libraries: attention, convolutions, Fourier transforms, decompositions and recurrent networks. On the
//! simulated GPU each is a host function. Where no library of the machine computes a call, it is refused ([`if_supported`]), and
//! the callers have kernels of their own.
//!
//! A call's workspace comes from the caching allocator, and returns to it when the call is queued: later work of the stream may use
//! it then. The first call for a shape prepares the call, which may take some tenths of a second.

use std::sync::Arc;

use thalweg_driver::{
    Access, AttentionCall, AttentionGradients, AttentionMask, AttentionOperand, AttentionShape,
    ConvolutionCall, ConvolutionEpilogue, ConvolutionPass, ConvolutionShape, DenseCall, DevicePointer,
    FourierCall, FourierShape, GpuCall, HostKernel, Label, LibraryLaunch, RecurrentCall, RecurrentMemory,
    RecurrentShape,
};
use thalweg_kernels::attention::{Addresses, LibraryAttention, PerOperand, Strides};
use thalweg_kernels::decompose::library as dense;
use thalweg_kernels::{Placed, convolution, fourier, recurrent};
use thalweg_runtime::{Buffer, Error, Result, Stream, element_format, refuse};

use crate::{Work, backends};

/// Attention, or its gradient. Placed at the addresses of its operands.
///
/// # Errors
/// [`Error::is_library_missing`] and [`Error::is_not_supported`] if there is no library, or none that supports these sizes and
/// strides; [`Error::is_invalid_argument`] for an invalid description, and the driver's errors.
#[derive(Clone, Copy, Debug)]
pub struct Attention(pub LibraryAttention);

impl Work<&Addresses> for Attention {
    fn queue(self, at: &Addresses, stream: &Stream, label: Label) -> Result<()> {
        let placed = Placed { kernel: self.0, at: *at };
        placed.check().map_err(|fault| Error::invalid(fault.to_string()))?;
        let Some(attention) = attention_call(&self.0, at) else {
            refuse!("attention: the library computes in 16-bit floats");
        };
        let (words, host) = (placed.words(), placed.host());
        let gpu = |workspace| GpuCall::Attention(AttentionCall { workspace, ..attention });
        submit(stream, gpu, (&host, &words), || placed.accesses(), label)
    }
}

/// A convolution, or one of its gradients. Computes one of input, weight and output, at these addresses in this order, from the other
/// two. [`backends::cudnn`] decides whether f32 may be rounded to TF32, and, unless `deterministic` is set, whether results must be
/// bitwise reproducible. With its `benchmark` the first call tries several of the library's engines, and blocks.
///
/// # Errors
/// [`Error::is_library_missing`] and [`Error::is_not_supported`] if there is no library, or none that supports these sizes;
/// [`Error::is_invalid_argument`] for an invalid description, and the driver's errors.
#[derive(Clone, Copy, Debug)]
pub struct Convolution<'a> {
    /// The sizes, strides and dtypes.
    pub shape: &'a ConvolutionShape,
    /// The operand that is computed.
    pub pass: ConvolutionPass,
    /// Whether the result must be bitwise reproducible.
    pub deterministic: bool,
    /// A bias that a forward pass adds before it stores, and whether it applies the rectified linear unit.
    pub epilogue: Option<ConvolutionEpilogue>,
}

impl Work<[DevicePointer; 3]> for Convolution<'_> {
    fn queue(self, [input, weight, output]: [DevicePointer; 3], stream: &Stream, label: Label) -> Result<()> {
        let Self { shape, pass, deterministic, epilogue } = self;
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
        let host = convolution::host_function(call);
        let gpu = |workspace| GpuCall::Convolution(ConvolutionCall { workspace, ..call });
        submit(stream, gpu, (&host, &[]), || convolution::accesses(&call), label)
    }
}

/// A batch of discrete Fourier transforms. Placed at the addresses of input and output.
///
/// # Errors
/// Those of [`Convolution`].
#[derive(Clone, Copy, Debug)]
pub struct Fourier<'a>(pub &'a FourierShape);

impl Work<[DevicePointer; 2]> for Fourier<'_> {
    fn queue(self, [input, output]: [DevicePointer; 2], stream: &Stream, label: Label) -> Result<()> {
        if let Some(fault) = self.0.fault() {
            refuse!("Fourier transform: {fault}");
        }
        let call = FourierCall { shape: *self.0, input, output, workspace: None };
        let host = fourier::host_function(call);
        let gpu = |workspace| GpuCall::Fourier(FourierCall { workspace, ..call });
        submit(stream, gpu, (&host, &[]), || fourier::accesses(&call), label)
    }
}

/// Queues a batch of decompositions, whose description has the addresses. It cannot be captured.
///
/// # Errors
/// [`Error::is_library_missing`] if there is no library; [`Error::is_invalid_argument`] for an invalid description, and the driver's
/// errors.
pub fn decompose(call: &DenseCall, stream: &Stream, label: Label) -> Result<()> {
    if let Some(fault) = call.fault() {
        refuse!("decomposition: {fault}");
    }
    let host = dense::host_function(call.clone());
    let gpu = |workspace| GpuCall::Dense(DenseCall { workspace, ..call.clone() });
    submit(stream, gpu, (&host, &[]), || dense::accesses(call), label)
}

/// Returns the layout of a recurrent network's weights, and the memory that its passes need.
///
/// # Errors
/// Those of [`Convolution`].
pub fn recurrent_memory(shape: &RecurrentShape, stream: &Stream) -> Result<RecurrentMemory> {
    if let Some(fault) = shape.fault() {
        refuse!("recurrent network: {fault}");
    }
    let device = stream.device();
    stream.check(device.driver().recurrent_memory(device.index(), shape))
}

/// Queues a pass of a recurrent network, whose description has the addresses, with the memory that [`recurrent_memory`] returned for
/// its shape.
pub fn pass_recurrent(
    call: &RecurrentCall,
    memory: &RecurrentMemory,
    stream: &Stream,
    label: Label,
) -> Result<()> {
    let host = recurrent::host_function(call.clone());
    let gpu = |workspace| GpuCall::Recurrent(RecurrentCall { workspace, ..call.clone() });
    let accesses = || recurrent::accesses(call, memory);
    submit_with_workspace(stream, memory.workspace_bytes, gpu, (&host, &[]), accesses, label)
}

/// Queues a call of a library with as much workspace as the library asks for.
fn submit<A: IntoIterator<Item = Access>>(
    stream: &Stream,
    gpu: impl Fn(Option<(DevicePointer, u64)>) -> GpuCall,
    host: (&Arc<dyn HostKernel>, &[u64]),
    accesses: impl FnOnce() -> A,
    label: Label,
) -> Result<()> {
    let device = stream.device();
    let bytes = device.driver().library_workspace(device.index(), &gpu(None))?;
    submit_with_workspace(stream, bytes, gpu, host, accesses, label)
}

/// Queues a call of a library with `bytes` of workspace.
pub(crate) fn submit_with_workspace<A: IntoIterator<Item = Access>>(
    stream: &Stream,
    bytes: u64,
    gpu: impl FnOnce(Option<(DevicePointer, u64)>) -> GpuCall,
    (host, arguments): (&Arc<dyn HostKernel>, &[u64]),
    accesses: impl FnOnce() -> A,
    label: Label,
) -> Result<()> {
    let memory = (bytes > 0).then(|| Buffer::labelled(stream, bytes, label)).transpose()?;
    let workspace = memory.as_ref().map(|memory| (memory.pointer(), bytes));
    let (gpu, arguments) = (gpu(workspace), bytemuck::cast_slice(arguments));
    let launch = LibraryLaunch { gpu: &gpu, host, arguments, accesses: &[], label };
    stream.submit_library(launch, |list| {
        list.extend(accesses());
        list.extend(workspace.map(|(start, bytes)| Access::write(start, bytes)));
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

/// Returns a call without its workspace; `None` if the library has no format for the elements.
fn attention_call(call: &LibraryAttention, at: &Addresses) -> Option<AttentionCall> {
    let attention = &call.attention;
    let of = |address: u64, Strides { batch, head, row }: Strides| AttentionOperand {
        address: DevicePointer::new(address),
        strides: [batch, head, row],
    };
    let (addresses, strides) = (at.operands.list(), attention.strides.list());
    let operands = PerOperand::of(std::array::from_fn(|place| of(addresses[place], strides[place])));
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
