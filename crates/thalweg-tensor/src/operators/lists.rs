//! Operators over lists of tensors, by one kernel for all tensors of a dtype.

use std::sync::{Arc, LazyLock};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_ir::foreach::{ForeachArguments, ForeachItem, ForeachKernel, ForeachOperand};
use thalweg_ir::{BodyBuilder, DType, Layout, OutputPlace, byte_count};
use thalweg_lock::Mutex;
use thalweg_runtime::Result;

use super::Body::Kernel;
use super::operators;
use crate::dispatch::{Arguments, Call};
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns the tensors in a dtype, as new tensors in the order of dimensions that each has in memory.
    "thalweg::to_each(Tensor[] tensors, ScalarType dtype) -> Tensor[]" = Kernel(to_each);
}

/// Returns the kernel that converts the tensors of a list, each into another one.
fn cast_kernel(from: DType, to: DType) -> Arc<ForeachKernel> {
    static KERNELS: LazyLock<Mutex<FxHashMap<[DType; 2], Arc<ForeachKernel>>>> =
        LazyLock::new(Mutex::default);
    let mut kernels = KERNELS.lock();
    let kernel = kernels.entry([from, to]).or_insert_with(|| {
        let builder = BodyBuilder::new();
        let x = builder.input(from);
        builder.output(x, to, OutputPlace::Row);
        // The second one is written, and never read.
        builder.input(to);
        Arc::new(ForeachKernel {
            name: format!("cast_list_{}_to_{}", from.name(), to.name()),
            body: builder.finish(),
            operands: SmallVec::from_slice(&[ForeachOperand::Elements; 2]),
            targets: SmallVec::from_slice(&[1]),
        })
    });
    Arc::clone(kernel)
}

fn to_each(call: &Call<'_>) -> Result<Tensors> {
    let (tensors, dtype) = (call.tensor_list(0), call.dtype(1));
    let stream = call.device.current_stream();
    let mut lists: SmallVec<[(DType, Vec<ForeachItem>); 2]> = SmallVec::new();
    let mut results = Tensors::new();
    for tensor in tensors {
        let layout = tensor.layout();
        let is_listed = tensor.dtype().is_floating_point() && dtype.is_floating_point();
        if !is_listed || layout.dense_order().is_none() {
            results.push(tensor.cast(dtype, None, call.label.location)?);
            continue;
        }
        let layout = Layout::new(layout.shape(), layout.strides(), 0)?;
        let result = match Tensor::offered(&layout, dtype, &stream) {
            Some(offered) => offered,
            None => {
                let bytes = byte_count(layout.shape(), dtype)? as u64;
                Tensor::empty_in(layout, bytes, dtype, &stream, call.label)?
            }
        };
        let addresses = [tensor, &result].map(|tensor| tensor.pointer().address());
        let item =
            ForeachItem { elements: tensor.elements() as u64, addresses: SmallVec::from_slice(&addresses) };
        match lists.iter_mut().find(|(from, _)| *from == tensor.dtype()) {
            Some((_, items)) => items.push(item),
            None => lists.push((tensor.dtype(), vec![item])),
        }
        results.push(result);
    }
    for (from, items) in lists {
        let kernel = cast_kernel(from, dtype);
        let arguments = ForeachArguments { shared: SmallVec::new(), scalars: SmallVec::new(), items };
        call.launch(&kernel, (call.device, &arguments))?;
    }
    Ok(results)
}
