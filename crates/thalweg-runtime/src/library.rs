//! Library work: matrix products.
//!
//! On a card with cuBLASLt a product is a library call; where the library is missing it is a kernel of our own; in the
//! simulator it is a host function. All three are described by one [`Matmul`]. A product of f32 that is too small to fill a card
//! is a [`FusedMatmul`], always a kernel of our own: the library's are made for large ones.

use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use thalweg_driver::{
    Access, CardCall, ComputeFormat, DevicePointer, ElementFormat, HostFault, HostKernel, HostLaunch, Label,
    Launch, LibraryLaunch, MatmulCall, Matrix, Touch,
};
use thalweg_ir::DType;
use thalweg_ir::host::SliceMut;
use thalweg_ir::matmul::fused::{self, FusedMatmul, HostOperands, PerOperand};
use thalweg_ir::matmul::{self, Matmul, Operand};

use crate::graph::Command;
use crate::kernel::slice;
use crate::launch::touch_of;

use crate::{Buffer, Error, Result, Stream};

/// Scratch memory that cuBLASLt may use for a product of at least [`WORKSPACE_FLOPS`]: enough for its split-k algorithms.
const WORKSPACE_BYTES: u64 = 4 << 20;

/// Below this no algorithm that needs scratch memory pays.
const WORKSPACE_FLOPS: u64 = 1 << 28;

impl Stream {
    /// Queues the product that `product` describes over matrices at these addresses.
    pub fn matmul(
        &self,
        product: &Matmul,
        a: DevicePointer,
        b: DevicePointer,
        d: DevicePointer,
        label: Label,
    ) -> Result<()> {
        if product.m == 0 || product.n == 0 || product.batch == 0 {
            return Ok(());
        }
        if fused::fits(product) {
            let [a, b, d] = [a, b, d].map(DevicePointer::address);
            let addresses = PerOperand { a, b, d, ..PerOperand::default() };
            return self.fused_matmul(&FusedMatmul::alone(*product), &addresses, label);
        }
        let arguments = product.pack(a.address(), b.address(), d.address());
        let bytes = product.spans().map(|elements| elements * product.dtype.size_bytes() as u64);
        let touch =
            |operand: &Operand, rows: u64, columns: u64| touch_of_matrix(product, operand, rows, columns);
        let mut accesses: SmallVec<[Access; 4]> = SmallVec::new();
        accesses.push(Access::read(a, bytes[0]).touching(touch(&product.a, product.m, product.k)));
        accesses.push(Access::read(b, bytes[1]).touching(touch(&product.b, product.k, product.n)));
        let result =
            if product.accumulate { Access::read_write(d, bytes[2]) } else { Access::write(d, bytes[2]) };
        accesses.push(result.touching(touch(&product.d, product.m, product.n)));
        // The library refuses products over nothing; our own kernel writes their zeros.
        let has_library = product.k > 0 && self.device().properties().libraries.matmul;
        let (Some(format), true) = (element_format(product.dtype), has_library) else {
            return self.matmul_kernel(product, bytemuck::cast_slice(&arguments), &accesses, label);
        };
        // The workspace goes back to the cache when the call is queued: later work of this stream may have it then.
        let workspace = if !self.device().is_simulated() && product.flops() >= WORKSPACE_FLOPS {
            Some(Buffer::labelled(self, WORKSPACE_BYTES, label)?)
        } else {
            None
        };
        if let Some(workspace) = &workspace {
            accesses.push(Access::write(workspace.pointer(), WORKSPACE_BYTES));
        }
        let card = CardCall::Matmul(MatmulCall {
            m: product.m,
            n: product.n,
            k: product.k,
            batch: product.batch,
            a: matrix(&product.a, a),
            b: matrix(&product.b, b),
            d: matrix(&product.d, d),
            format,
            compute: if product.dtype == DType::F64 { ComputeFormat::F64 } else { ComputeFormat::F32 },
            alpha: 1.0,
            beta: if product.accumulate { 1.0 } else { 0.0 },
            workspace: workspace.as_ref().map(|buffer| (buffer.pointer(), WORKSPACE_BYTES)),
        });
        let launch = LibraryLaunch {
            card: &card,
            host: host_function(),
            arguments: bytemuck::cast_slice(&arguments),
            accesses: &accesses,
            label,
        };
        let parameters = launch.arguments;
        let command = Command::Other { label, accesses: &accesses, parameters };
        self.submit(command, || self.device().driver().library_async(self.handle(), &launch))
    }

    /// Queues a product with what stands beside it, over operands at these addresses.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the description cannot be carried out ([`FusedMatmul::check`]).
    pub fn fused_matmul(&self, fused: &FusedMatmul, at: &PerOperand, label: Label) -> Result<()> {
        let product = &fused.product;
        fused.check().map_err(|fault| Error::invalid(fault.to_string()))?;
        let spans = fused.spans();
        if spans.d == 0 && spans.row_sums == 0 {
            return Ok(());
        }
        let arguments = fused.pack(at);
        let bytes = |elements: u64| elements * size_of::<f32>() as u64;
        let mut accesses: SmallVec<[Access; 8]> = SmallVec::new();
        let (m, n, k) = (product.m, product.n, product.k);
        let read = |address: u64, span: u64| Access::read(DevicePointer::new(address), bytes(span));
        accesses.push(read(at.a, spans.a).touching(touch_of_matrix(product, &product.a, m, k)));
        accesses.push(read(at.b, spans.b).touching(touch_of_matrix(product, &product.b, k, n)));
        accesses.push(read(at.bias, spans.bias));
        if let Some(addend) = &fused.addend {
            accesses.push(read(at.addend, spans.addend).touching(touch_of_matrix(product, addend, m, n)));
        }
        let write = |address: u64, span: u64| Access::write(DevicePointer::new(address), bytes(span));
        accesses.push(write(at.d, spans.d).touching(touch_of_matrix(product, &product.d, m, n)));
        accesses.push(write(at.row_sums, spans.row_sums));
        accesses.retain(|access| access.bytes > 0);
        let host = || fused_host_function().clone();
        let function = self.device().text_kernel(fused::cuda::NAME, &fused::cuda::print, &host)?;
        let shape = fused::cuda::launch_shape(fused);
        let launch = Launch {
            function,
            grid: shape.grid,
            block: shape.block,
            shared_memory_bytes: 0,
            arguments: bytemuck::cast_slice(&arguments),
            accesses: &accesses,
            label,
        };
        self.submit(Command::Launch(&launch), || self.device().driver().launch(self.handle(), &launch))
    }

    fn matmul_kernel(
        &self,
        product: &Matmul,
        arguments: &[u8],
        accesses: &[Access],
        label: Label,
    ) -> Result<()> {
        if !product.dtype.is_floating_point() {
            return Err(Error::invalid(format!(
                "matmul: {} matrices are not supported; convert them to a floating-point dtype",
                product.dtype
            )));
        }
        let name = matmul::cuda::name(product.dtype);
        let function = self
            .device()
            .text_kernel(&name, &|| matmul::cuda::print(product.dtype), &|| host_function().clone())?;
        let shape = matmul::cuda::launch_shape(product);
        let launch = Launch {
            function,
            grid: shape.grid,
            block: shape.block,
            shared_memory_bytes: 0,
            arguments,
            accesses,
            label,
        };
        self.submit(Command::Launch(&launch), || self.device().driver().launch(self.handle(), &launch))
    }
}

/// Which bytes of its span a matrix of a product touches, of this many rows and columns as it stands in the product.
fn touch_of_matrix(product: &Matmul, operand: &Operand, rows: u64, columns: u64) -> Touch {
    let (rows, columns) = if operand.transposed { (columns, rows) } else { (rows, columns) };
    let dimensions = [(product.batch, operand.batch_stride), (rows, operand.leading_dimension), (columns, 1)];
    touch_of(dimensions.into_iter(), product.dtype.size_bytes() as u64)
}

fn element_format(dtype: DType) -> Option<ElementFormat> {
    match dtype {
        DType::F32 => Some(ElementFormat::R_32F),
        DType::F64 => Some(ElementFormat::R_64F),
        DType::F16 => Some(ElementFormat::R_16F),
        DType::Bf16 => Some(ElementFormat::R_16BF),
        DType::Bool | DType::U8 | DType::I32 | DType::I64 => None,
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

fn host_function() -> &'static Arc<dyn HostKernel> {
    static FUNCTION: OnceLock<Arc<dyn HostKernel>> = OnceLock::new();
    FUNCTION.get_or_init(|| Arc::new(run_on_host))
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (product, [a, b, d]) = Matmul::unpack(launch.arguments)
        .ok_or_else(|| HostFault("matmul: the arguments are not in its layout".to_owned()))?;
    let [a_span, b_span, d_span] = product.spans();
    let a = slice(launch, product.dtype, a, a_span)?;
    let b = slice(launch, product.dtype, b, b_span)?;
    let pointer = DevicePointer::new(d);
    let count = d_span as usize;
    let d = match product.dtype {
        DType::F16 => SliceMut::F16(launch.write(pointer, count)?),
        DType::Bf16 => SliceMut::Bf16(launch.write(pointer, count)?),
        DType::F32 => SliceMut::F32(launch.write(pointer, count)?),
        DType::F64 => SliceMut::F64(launch.write(pointer, count)?),
        other => return Err(HostFault(format!("matmul: {other} is no floating-point dtype"))),
    };
    matmul::host::run(&product, a, b, d).map_err(|fault| HostFault(format!("matmul: {fault}")))
}

fn fused_host_function() -> &'static Arc<dyn HostKernel> {
    static FUNCTION: OnceLock<Arc<dyn HostKernel>> = OnceLock::new();
    FUNCTION.get_or_init(|| Arc::new(run_fused_on_host))
}

fn run_fused_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (fused, at) = FusedMatmul::unpack(launch.arguments)
        .ok_or_else(|| HostFault("fused matmul: the arguments are not in its layout".to_owned()))?;
    let spans = fused.spans();
    let read = |address: u64, span: u64| -> Result<&[f32], HostFault> {
        if span == 0 { Ok(&[]) } else { launch.read(DevicePointer::new(address), span as usize) }
    };
    let write = |address: u64, span: u64| -> Result<&mut [f32], HostFault> {
        if span == 0 { Ok(&mut []) } else { launch.write(DevicePointer::new(address), span as usize) }
    };
    let operands = HostOperands {
        a: read(at.a, spans.a)?,
        b: read(at.b, spans.b)?,
        bias: read(at.bias, spans.bias)?,
        addend: read(at.addend, spans.addend)?,
        d: write(at.d, spans.d)?,
        row_sums: write(at.row_sums, spans.row_sums)?,
    };
    fused::run_on_host(&fused, operands).map_err(|fault| HostFault(fault.to_string()))
}
