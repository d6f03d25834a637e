//! Products with weights of 8-bit and 4-bit integers and their scales, and the packing of such weights.

use std::sync::Arc;

use thalweg_ir::{DType, Layout, contiguous_strides};
use thalweg_kernels::matmul::few_rows::cuda::needs_tensor_cores;
use thalweg_kernels::matmul::quantized::{Quantization, QuantizedMatmul};
use thalweg_runtime::{Error, Result};

use super::Body::Kernel;
use super::{operators, single};
use crate::dispatch::{Arguments, Call};
use crate::tensor::Tensor;

operators! {
    /// Returns self (m, k) times the transpose of `mat2` (n, k) of int8, each column times its scale (n), of self's dtype:
    /// float32, float16 or bfloat16. Up to 16 rows are multiplied directly by the integers as they are read; for more rows the
    /// weight is converted first.
    "_weight_int8pack_mm(Tensor self, Tensor mat2, Tensor scales) -> Tensor"
        fn weight_int8pack_mm(mat2: tensor, scales: tensor) = Kernel(|call| int8(call).map(single));
    /// Returns self (m, k) times the transpose of a weight (n, k) of 4-bit integers that `_convert_weight_to_int4pack` has
    /// packed: each q represents (q − 8) · scale + zero, with scales and zeros (k / qGroupSize, n, 2), of self's dtype. Rows are
    /// handled as in `_weight_int8pack_mm`.
    "_weight_int4pack_mm(Tensor self, Tensor mat2, int qGroupSize, Tensor qScaleAndZeros) -> Tensor"
        fn weight_int4pack_mm(mat2: tensor, group: int, scales_and_zeros: tensor) = Kernel(|call| int4(call).map(single));
    /// Packs a weight (n, k / 2) of bytes, each of which has two 4-bit integers, the first in its upper half, for
    /// `_weight_int4pack_mm`: (n / 8, k / (16 · innerKTiles), 32, innerKTiles / 2) of int32. The packed layout is specific to
    /// this library.
    "_convert_weight_to_int4pack(Tensor self, int innerKTiles) -> Tensor"
        fn convert_weight_to_int4pack(inner_k_tiles: int) = Kernel(|call| packed(call).map(single));
}

fn refuse<T>(says: String) -> Result<T> {
    Err(Error::invalid(says))
}

/// Checks the input of a product and returns its rows and terms.
fn rows_and_terms(name: &str, x: &Tensor) -> Result<[usize; 2]> {
    if !matches!(x.dtype(), DType::F32 | DType::F16 | DType::Bf16) {
        return refuse(format!(
            "{name} : expect A to be either 32-bit or 16-bit float tensor, not {}",
            x.dtype()
        ));
    }
    match *x.shape() {
        [m, k] => Ok([m, k]),
        ref shape => refuse(format!("{name} : expect A to be a 2D tensor, not of shape {shape:?}")),
    }
}

fn int8(call: &Call<'_>) -> Result<Tensor> {
    let name = "_weight_int8pack_mm";
    let (x, weight, scales) = (call.tensor(0), call.tensor(1), call.tensor(2));
    let [m, k] = rows_and_terms(name, x)?;
    if weight.dtype() != DType::I8 || weight.rank() != 2 || weight.shape()[1] != k {
        return refuse(format!(
            "{name} : expect B to be an int8 tensor of shape [n, {k}], not {:?} {}",
            weight.shape(),
            weight.dtype()
        ));
    }
    let n = weight.shape()[0];
    if scales.shape() != [n] || scales.dtype() != x.dtype() {
        return refuse(format!(
            "{name} : expect scales to be a 1d tensor of size {n} and dtype {}, not {:?} {}",
            x.dtype(),
            scales.shape(),
            scales.dtype()
        ));
    }
    let kernel = QuantizedMatmul {
        sizes: [m, n, k].map(|size| size as u64),
        quantization: Quantization::Int8,
        dtype: x.dtype(),
    };
    if let Some(result) = of_few_rows(call, kernel, [x, weight, scales])? {
        return Ok(result);
    }
    let weight = weight.to_dtype(x.dtype())?.transpose(0, 1)?;
    x.matmul(&weight)?.mul(scales)
}

fn int4(call: &Call<'_>) -> Result<Tensor> {
    let name = "_weight_int4pack_mm";
    let (x, weight, group, scales) = (call.tensor(0), call.tensor(1), call.int(2), call.tensor(3));
    let [m, k] = rows_and_terms(name, x)?;
    if ![32, 64, 128, 256].contains(&group) {
        return refuse(format!("{name} : expect qGroupSize to be 32, 64, 128 or 256, got {group}"));
    }
    let is_packed = weight.dtype() == DType::I32
        && matches!(*weight.shape(), [_, tiles, 32, half] if tiles.checked_mul(half * 32) == Some(k));
    if !is_packed {
        return refuse(format!(
            "{name} : expect B to be what _convert_weight_to_int4pack returns for {k} terms, not {:?} {}",
            weight.shape(),
            weight.dtype()
        ));
    }
    let (n, group) = (weight.shape()[0] * 8, group as usize);
    if scales.shape() != [k / group, n, 2] || !k.is_multiple_of(group) || scales.dtype() != x.dtype() {
        return refuse(format!(
            "{name} : expect qScaleAndZeros to be a 3d tensor of sizes [{k} / {group}, {n}, 2] and dtype {}, not {:?} {}",
            x.dtype(),
            scales.shape(),
            scales.dtype()
        ));
    }
    let kernel = QuantizedMatmul {
        sizes: [m, n, k].map(|size| size as u64),
        quantization: Quantization::Int4 { group: group as u64 },
        dtype: x.dtype(),
    };
    if let Some(result) = of_few_rows(call, kernel, [x, weight, scales])? {
        return Ok(result);
    }
    let bytes = viewed(&weight.contiguous()?, DType::U8, &[n, k / 2, 1])?;
    let halves = [bytes.bitwise_right_shift_scalar(4)?, bytes.bitwise_and_scalar(15)?];
    let numbers =
        Tensor::cat(&halves, 2)?.to_dtype(DType::F32)?.sub_scalar(8.0)?.reshape(&[n, k / group, group])?;
    // (n, groups, 2), with scale and zero each repeated over the terms of its group.
    let of_groups = scales.transpose(0, 1)?.to_dtype(DType::F32)?;
    let part = |which| of_groups.narrow(2, which, 1);
    let weight = numbers.mul(&part(0)?)?.add(&part(1)?)?.reshape(&[n, k])?;
    x.matmul(&weight.to_dtype(x.dtype())?.transpose(0, 1)?)
}

/// Returns the product by the kernel that reads integers, if it supports the call.
fn of_few_rows(call: &Call<'_>, kernel: QuantizedMatmul, operands: [&Tensor; 3]) -> Result<Option<Tensor>> {
    let [m, n, k] = kernel.sizes;
    let runs = !needs_tensor_cores(kernel.dtype) || call.device.has_tensor_cores();
    if !kernel.fits() || k == 0 || !runs {
        return Ok(None);
    }
    let dense = operands.map(|operand| operand.detach().contiguous());
    let [x, weight, scales] = dense;
    let [x, weight, scales] = &[x?, weight?, scales?];
    if [x, weight, scales].iter().any(|operand| !operand.pointer().address().is_multiple_of(16)) {
        return Ok(None);
    }
    let result = call.new_empty(&[m as usize, n as usize], kernel.dtype)?;
    call.launch(kernel, [x, weight, scales, &result])?;
    Ok(Some(result))
}

fn packed(call: &Call<'_>) -> Result<Tensor> {
    let name = "_convert_weight_to_int4pack";
    let (x, tiles) = (call.tensor(0), call.int(1));
    if x.dtype() != DType::U8 || x.rank() != 2 {
        return refuse(format!(
            "{name}: in is to be a 2D tensor of bytes, not {:?} {}",
            x.shape(),
            x.dtype()
        ));
    }
    if ![2, 4, 8].contains(&tiles) {
        return refuse(format!("{name}: innerKTiles need to be 2, 4, or 8, but got {tiles}"));
    }
    let ([n, half], tiles) = ([x.shape()[0], x.shape()[1]], tiles as usize);
    if !n.is_multiple_of(8) || !half.is_multiple_of(tiles * 8) {
        return refuse(format!(
            "{name}: {n} rows of {half} bytes are not multiples of 8 and of {} bytes, 16 terms for each of innerKTiles",
            tiles * 8
        ));
    }
    let shape = [n / 8, half / (tiles * 8), 32, tiles / 2];
    viewed(&x.detach().contiguous()?.copied(call.label.location)?, DType::I32, &shape)
}

/// Returns the bytes of a tensor without gaps as elements of another dtype.
fn viewed(tensor: &Tensor, dtype: DType, shape: &[usize]) -> Result<Tensor> {
    let first = tensor.layout().offset() * tensor.dtype().size_bytes() / dtype.size_bytes();
    let layout = Layout::new(shape, &contiguous_strides(shape), first)?;
    Ok(Tensor::over(Arc::clone(tensor.storage()), layout, dtype))
}
