//! Library work: matrix products.
//!
//! On a GPU with cuBLASLt a product is a library call; where the library is missing it is a kernel of our own; in the
//! simulator it is a host function. All three are described by one [`Matmul`]. A product of f32 that is too small to fill a GPU
//! is a [`FusedMatmul`], always a kernel of our own: the library's are made for large ones.

use thalweg_driver::{
    Access, ComputeFormat, DevicePointer, ElementFormat, GpuCall, Label, LibraryLaunch, MatmulCall, Matrix,
};
use thalweg_ir::DType;
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

fn matrix(operand: &Operand, address: DevicePointer) -> Matrix {
    Matrix {
        address,
        leading_dimension: operand.leading_dimension,
        batch_stride: operand.batch_stride,
        transposed: operand.transposed,
    }
}
