//! Library work: matrix products and attention.
//!
//! On a GPU with cuBLASLt a product is a library call; where the library is missing it is a kernel of our own; in the
//! simulator it is a host function. All three are described by one [`Matmul`]. A product of f32 that is too small to fill a GPU
//! is a [`FusedMatmul`], always a kernel of our own: the library's are made for large ones.
//!
//! Attention is cuDNN's where it is there and takes the shape ([`Stream::library_attention`]); in the simulator it is a host function.
//! Who calls it has kernels of our own for the rest.

use thalweg_driver::{
    Access, AttentionCall, AttentionGradients, AttentionOperand, AttentionShape, ComputeFormat,
    DevicePointer, ElementFormat, GpuCall, Label, LibraryLaunch, MatmulCall, Matrix,
};
use thalweg_ir::DType;
use thalweg_kernels::attention::{Addresses, LibraryAttention, PerOperand as PerAttentionOperand, Strides};
use thalweg_kernels::matmul::fused::{self, FusedMatmul, PerOperand};
use thalweg_kernels::matmul::{Matmul, Operand, host_function};
use thalweg_kernels::{NativeKernel, Placed};

use crate::{Buffer, Error, Result, Stream};

/// Scratch memory that cuBLASLt may use for a product of at least [`WORKSPACE_FLOPS`]: enough for its split-k algorithms.
const WORKSPACE_BYTES: u64 = 4 << 20;

/// Below this no algorithm that needs scratch memory pays.
const WORKSPACE_FLOPS: u64 = 1 << 28;

impl Stream {
    /// Queues the product that `product` describes over the matrices A, B and D at these addresses.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`](crate::Error::is_invalid_argument) if there is no kernel for the dtype, and what the driver
    /// answers.
    pub fn matmul(&self, product: &Matmul, at: [DevicePointer; 3], label: Label) -> Result<()> {
        if fused::fits(product) {
            let [a, b, d] = at.map(DevicePointer::address);
            let at = PerOperand { a, b, d, ..PerOperand::default() };
            return self.launch_native(&Placed { kernel: FusedMatmul::alone(*product), at }, label);
        }
        if self.has_library_for(product) {
            return self.library_matmul(product, at, None, label);
        }
        self.launch_native(&Placed { kernel: *product, at }, label)
    }

    /// Returns whether [`matmul_with_bias`](Self::matmul_with_bias) takes a product.
    pub fn takes_bias(&self, product: &Matmul) -> bool {
        product.dtype != DType::F64 && !product.accumulates() && self.has_library_for(product)
    }

    /// Queues [`matmul`](Self::matmul) with `bias`, n elements of the product's dtype that lie one after another, added to each
    /// row of D before it is rounded: the library does so while it stores.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`](crate::Error::is_invalid_argument) for a product that is not
    /// [taken](Self::takes_bias), and what the driver answers.
    pub fn matmul_with_bias(
        &self,
        product: &Matmul,
        at: [DevicePointer; 3],
        bias: DevicePointer,
        label: Label,
    ) -> Result<()> {
        if !self.takes_bias(product) {
            return Err(Error::invalid(format!("matmul {product}: no library here adds a bias to it")));
        }
        self.library_matmul(product, at, Some(bias), label)
    }

    /// Queues attention, or its gradient, as a call of the vendor's library. The first call for a shape prepares it, which may take some tenths
    /// of a second.
    ///
    /// # Errors
    /// [`Error::is_library_missing`] and [`Error::is_not_supported`] if there is no library, or none that takes these sizes and strides;
    /// [`Error::is_invalid_argument`] for a description that no attention can have, and what the driver answers.
    pub fn library_attention(&self, call: &LibraryAttention, at: &Addresses, label: Label) -> Result<()> {
        let placed = Placed { kernel: *call, at: *at };
        placed.check().map_err(|fault| Error::invalid(fault.to_string()))?;
        let Some(mut attention) = attention_call(call, at) else {
            return Err(Error::invalid("attention: the library computes in 16-bit floats"));
        };
        let bytes = self
            .device()
            .driver()
            .library_workspace(self.device().index(), &GpuCall::Attention(attention))?;
        // It goes back to the cache when the call is queued, like that of a product.
        let workspace = (bytes > 0).then(|| Buffer::labelled(self, bytes, label)).transpose()?;
        attention.workspace = workspace.as_ref().map(|memory| (memory.pointer(), bytes));
        let (words, host) = (placed.words(), placed.host());
        let launch = LibraryLaunch {
            gpu: &GpuCall::Attention(attention),
            host: &host,
            arguments: bytemuck::cast_slice(&words),
            accesses: &[],
            label,
        };
        self.submit_library(launch, |list| {
            list.extend(placed.accesses());
            list.extend(workspace.as_ref().map(|memory| Access::write(memory.pointer(), bytes)));
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
        bias: Option<DevicePointer>,
        label: Label,
    ) -> Result<()> {
        let placed = Placed { kernel: *product, at };
        let Some(format) = element_format(product.dtype).filter(|_| placed.launch_shape().is_some()) else {
            return Ok(());
        };
        let mut arguments = placed.words();
        arguments.extend(bias.map(DevicePointer::address));
        // The workspace goes back to the cache when the call is queued: later work of this stream may have it then.
        let workspace = if !self.device().is_simulated() && product.flops() >= WORKSPACE_FLOPS {
            Some(Buffer::labelled(self, WORKSPACE_BYTES, label)?)
        } else {
            None
        };
        let [a, b, d] = at;
        let gpu = GpuCall::Matmul(MatmulCall {
            m: product.m,
            n: product.n,
            k: product.k,
            batch: product.batch,
            a: matrix(&product.a, a),
            b: matrix(&product.b, b),
            d: matrix(&product.d, d),
            format,
            compute: if product.dtype == DType::F64 { ComputeFormat::F64 } else { ComputeFormat::F32 },
            alpha: product.alpha.get(),
            beta: product.beta.get(),
            bias,
            workspace: workspace.as_ref().map(|buffer| (buffer.pointer(), WORKSPACE_BYTES)),
        });
        let launch = LibraryLaunch {
            gpu: &gpu,
            host: host_function(),
            arguments: bytemuck::cast_slice(&arguments),
            accesses: &[],
            label,
        };
        self.submit_library(launch, |list| {
            list.extend(placed.accesses());
            let bytes = product.n * product.dtype.size_bytes() as u64;
            list.extend(bias.map(|bias| Access::read(bias, bytes)));
            list.extend(workspace.as_ref().map(|memory| Access::write(memory.pointer(), WORKSPACE_BYTES)));
        })
    }
}

fn element_format(dtype: DType) -> Option<ElementFormat> {
    match dtype {
        DType::F32 => Some(ElementFormat::R_32F),
        DType::F64 => Some(ElementFormat::R_64F),
        DType::F16 => Some(ElementFormat::R_16F),
        DType::Bf16 => Some(ElementFormat::R_16BF),
        _ => None,
    }
}

/// Returns a call without its workspace; `None` where the library has no format for the elements.
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
