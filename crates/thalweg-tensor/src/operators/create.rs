//! New tensors: of one value, counted, copied and converted, padded, repeated.

use std::slice::from_ref;

use smallvec::SmallVec;
use thalweg_ir::{DType, Dimensions, Layout, Scalar, Shape, byte_count, element_count, inverse_order};
use thalweg_ops::structured::{REVERSE, TRIANGLE};
use thalweg_ops::{Placement, default_dtype};
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::Body::{Composite, Differentiable};
use super::join::copy_into;
use super::view::{
    check_options, copied_in_format, diagonal, dtype_of, extents, format_of, in_format, made_like, wrap,
    wrap_all,
};
use super::{operators, single};
use crate::autograd::formula::Formula;
use crate::autograd::no_grad;
use crate::destination::for_kernel_over;
use crate::dispatch::{Argument, Arguments, Call, as_ints, built_in, check_conversion};
use crate::kernels::creation;
use crate::loops::{launch_placed, widen};
use crate::memory_format::{channels_last_order, format_order, from_last, is_channels_last};
use crate::tensor::{Tensor, Tensors, uninitialized};

operators! {
    /// Returns a tensor with one value, which the dtype must be able to represent; the dtype is the value's if none is given.
    "full(SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        = Composite(|call| {
            let value = call.scalar(1);
            filled(call, &call.ints(0), value, 2, || dtype_of(value))
        }), complex: EachPart;
    /// Returns a tensor with one value and the shape of another.
    "full_like(Tensor self, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor"
        fn full_like(fill_value: scalar) = Composite(|call| filled_like(call, call.scalar(1), 2)), complex: EachPart;
    /// Returns zeros.
    "zeros(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        = Composite(|call| filled(call, &call.ints(0), Scalar::I64(0), 1, default_dtype));
    /// Returns zeros with the shape of a tensor.
    "zeros_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor"
        fn zeros_like() = Composite(|call| filled_like(call, Scalar::I64(0), 1));
    /// Returns ones.
    "ones(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        = Composite(|call| filled(call, &call.ints(0), Scalar::I64(1), 1, default_dtype));
    /// Returns ones with the shape of a tensor.
    "ones_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor"
        fn ones_like() = Composite(|call| filled_like(call, Scalar::I64(1), 1));
    /// Returns an uninitialized tensor.
    "empty.memory_format(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor"
        = Composite(|call| {
            let shape = extents(&call.ints(0))?;
            let make = |shape: &[usize]| empty(call, shape, 1, default_dtype());
            match format_order(shape.len(), call.optional_int(5).filter(|&format| format != 1).unwrap_or(0))? {
                None => make(&shape).map(single),
                Some(order) => {
                    let nested: Shape = order.iter().map(|&dim| shape[dim]).collect();
                    make(&nested)?.permute(&inverse_order(&order)).map(single)
                }
            }
        }), out_form: "empty.out";
    /// Returns an uninitialized tensor with the shape of another.
    "empty_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor"
        fn empty_like() = Composite(|call| {
            made_like(call, 5, |shape| empty(call, shape, 1, call.tensor(0).dtype())).map(single)
        });
    /// Returns an uninitialized tensor with this shape and these strides.
    "empty_strided(SymInt[] size, SymInt[] stride, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        = Composite(|call| empty_strided(call, &call.ints(0), &call.ints(1), 2, default_dtype()).map(single));
    /// Returns zeros with this shape and a tensor's dtype and device.
    "new_zeros(Tensor self, SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        fn new_zeros(size: sizes)
        = Composite(|call| filled(call, &call.ints(1), Scalar::I64(0), 2, || call.tensor(0).dtype()));
    /// Returns ones with this shape and a tensor's dtype and device.
    "new_ones(Tensor self, SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        fn new_ones(size: sizes)
        = Composite(|call| filled(call, &call.ints(1), Scalar::I64(1), 2, || call.tensor(0).dtype()));
    /// Returns a tensor with this shape and one value, with a tensor's dtype and device.
    "new_full(Tensor self, SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        fn new_full(size: sizes, fill_value: scalar)
        = Composite(|call| filled(call, &call.ints(1), call.scalar(2), 3, || call.tensor(0).dtype())), complex: EachPart;
    /// Returns an uninitialized tensor with this shape and a tensor's dtype and device.
    "new_empty(Tensor self, SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        fn new_empty(size: sizes)
        = Composite(|call| empty(call, &extents(&call.ints(1))?, 2, call.tensor(0).dtype()).map(single));
    /// Returns an uninitialized tensor with this shape, these strides, and a tensor's dtype and device.
    "new_empty_strided(Tensor self, SymInt[] size, SymInt[] stride, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        fn new_empty_strided(size: sizes, stride: sizes)
        = Composite(|call| {
            empty_strided(call, &call.ints(1), &call.ints(2), 3, call.tensor(0).dtype()).map(single)
        });
    /// Returns a number as a tensor without dimensions.
    "scalar_tensor(Scalar s, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        = Composite(|call| {
            let (call, named) = options(call, 1)?;
            creation::represented(call.scalar(0), named.unwrap_or_else(default_dtype), call.device).map(single)
        }), complex: EachPart;
    /// Returns 0, 1, … below an end.
    "arange(Scalar end, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        = Composite(|call| arange(call, [Scalar::I64(0), call.scalar(0), Scalar::I64(1)], 1).map(single)), out: [KeepsShape];
    /// Returns start, start + 1, … below an end.
    "arange.start(Scalar start, Scalar end, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        = Composite(|call| arange(call, [call.scalar(0), call.scalar(1), Scalar::I64(1)], 2).map(single)), out: [KeepsShape];
    /// Returns start, start + step, … before an end, which is excluded.
    "arange.start_step(Scalar start, Scalar end, Scalar step=1, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        = Composite(|call| arange(call, [call.scalar(0), call.scalar(1), call.scalar(2)], 3).map(single)), out_form: "arange.start_out", out: [KeepsShape];
    /// Returns `steps` equidistant numbers from a start to an end, both included.
    "linspace(Scalar start, Scalar end, int steps, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        = Composite(|call| linspace(call).map(single)), out: [KeepsShape];
    /// Returns the identity matrix.
    "eye(SymInt n, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        = Composite(|call| eye(call, [call.int(0); 2], 1).map(single));
    /// Returns the matrix of n rows and m columns with ones on its main diagonal.
    "eye.m(SymInt n, SymInt m, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        = Composite(|call| eye(call, [call.int(0), call.int(1)], 2).map(single));
    /// Returns matrices with zeros above a diagonal.
    "tril(Tensor self, SymInt diagonal=0) -> Tensor"
        fn tril(diagonal: int) = Differentiable(|call| triangle(call, true), &LOWER), out: [OfResult], first: Consumed, complex: Taken;
    /// Returns matrices with zeros below a diagonal.
    "triu(Tensor self, SymInt diagonal=0) -> Tensor"
        fn triu(diagonal: int) = Differentiable(|call| triangle(call, false), &UPPER), out: [OfResult], first: Consumed, complex: Taken;
    /// Returns a tensor of a tensor's shape and dtype with one value.
    "fill.Scalar(Tensor self, Scalar value) -> Tensor"
        fn fill(value: scalar) = Differentiable(
            |call| {
                let x = call.tensor(0);
                Tensor::full(x.shape(), call.scalar(1), x.dtype(), x.device()).map(single)
            },
            &FILL,
        ), first: Filled, complex: Taken;
    /// Returns a tensor with the shape and dtype of the first tensor, filled with the only element of the second.
    "fill.Tensor(Tensor self, Tensor value) -> Tensor"
        fn fill_tensor(value: tensor)
        = Differentiable(|call| {
        let (x, value) = (call.tensor(0), call.tensor(1));
        refuse_if!(
            value.rank() != 0,
            "fill_ only supports 0-dimension value tensor but got tensor with {} dimensions.",
            value.rank()
        );
        value.detach().to_dtype(x.dtype())?.expand(x.shape())?.copied(call.label.location).map(single)
    }, &FILL), first: Filled, complex: Taken;
    /// Returns the elements of the second tensor, broadcast to the shape of the first and converted to its dtype and device.
    "copy(Tensor self, Tensor src, bool non_blocking=False) -> Tensor" = Composite(|call| {
        let (x, source) = (call.tensor(0), call.tensor(1));
        check_conversion(source.dtype(), x.dtype())?;
        let source = source.expand(x.shape())?;
        let arguments = [(&source).into(), x.dtype().into()];
        super::call(built_in!("thalweg::copy")?, &arguments, None, call.label.location).map(single)
    }), first: Ignored, complex: Taken;
    /// Returns a copy in another dtype.
    "_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, bool non_blocking=False, MemoryFormat? memory_format=None) -> Tensor"
        = Composite(|call| {
            check_options(call.optional_int(2), call.optional_bool(4))?;
            let x = &on_device(call, 3)?;
            converted(call, x, call.optional_dtype(1).unwrap_or(x.dtype()), (true, call.optional_int(6))).map(single)
        }), complex: Taken;
    /// Returns the elements in another dtype; the tensor itself if it has that dtype and no copy is requested.
    "to.dtype(Tensor(a) self, ScalarType dtype, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor(a)"
        = Composite(|call| {
            converted(call, call.tensor(0), call.dtype(1), (call.bool(3), call.optional_int(4))).map(single)
        }), autocast: Parts, complex: Taken;
    /// Returns the elements in the dtype of another tensor; the tensor itself if it has that dtype and no copy is requested.
    "to.other(Tensor(a) self, Tensor other, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor(a)"
        = Composite(|call| {
            let dtype = call.tensor(1).dtype();
            converted(call, call.tensor(0), dtype, (call.bool(3), call.optional_int(4))).map(single)
        }), autocast: Parts, complex: Taken;
    /// Returns the tensor with a number of elements of one value before and after each of the last dimensions, the last one
    /// first; negative numbers remove elements.
    "constant_pad_nd(Tensor self, SymInt[] pad, Scalar value=0) -> Tensor"
        fn constant_pad_nd(pad: ints, value: scalar) = Differentiable(constant_pad, &CONSTANT_PAD), complex: Taken;
    /// Returns the tensor repeated along each dimension; more numbers than dimensions add leading dimensions.
    "repeat(Tensor self, SymInt[] repeats) -> Tensor"
        fn repeat(repeats: sizes) = Composite(|call| {
            let repeats = call.ints(1);
            refuse_if!(
                repeats.len() < call.tensor(0).rank(),
                "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor"
            );
            repeat(call.tensor(0), &repeats).map(single)
        });
    /// Returns the tensor repeated along each dimension; fewer numbers than dimensions apply to the last ones.
    "tile(Tensor self, SymInt[] dims) -> Tensor"
        fn tile(dims: sizes) = Composite(|call| {
            let (x, dims) = (call.tensor(0), call.ints(1));
            let missing = x.rank().saturating_sub(dims.len());
            let repeats: SmallVec<[i64; 6]> = std::iter::repeat_n(1, missing).chain(dims).collect();
            repeat(x, &repeats).map(single)
        }), autocast: Parts;
    /// Returns each slice of a dimension, or each element without a dimension, repeated consecutively.
    "repeat_interleave.self_int(Tensor self, SymInt repeats, int? dim=None, *, SymInt? output_size=None) -> Tensor"
        fn repeat_interleave(repeats: int, dim: optional_int) = Composite(|call| repeat_interleave(call).map(single)), autocast: Parts;
    /// Returns dimensions in reverse order.
    "flip(Tensor self, int[] dims) -> Tensor"
        fn flip(dims: ints) = Differentiable(flip, &FLIP), complex: Taken;
    /// Returns a matrix with its columns in reverse order.
    "fliplr(Tensor self) -> Tensor"
        fn fliplr() = Composite(|call| flip_matrix(call, 1, "Input must be >= 2-d.").map(single)), autocast: Parts;
    /// Returns a tensor with its first dimension in reverse order.
    "flipud(Tensor self) -> Tensor"
        fn flipud() = Composite(|call| flip_matrix(call, 0, "Input must be >= 1-d.").map(single)), autocast: Parts;
    /// Returns the elements shifted along dimensions, with those beyond the end reinserted at the beginning; without a dimension
    /// all elements are shifted as one row.
    "roll(Tensor self, SymInt[1] shifts, int[1] dims=[]) -> Tensor"
        fn roll(shifts: ints, dims: ints) = Composite(|call| roll(call).map(single));
    /// Returns the tensor with the frequency 0 of dimensions, or of all, moved from the beginning to the middle.
    "fft_fftshift(Tensor self, int[1]? dim=None) -> Tensor"
        fn fft_fftshift(dim: optional_ints) = Composite(|call| centered(call, 0).map(single)), autocast: Parts;
    /// Returns the tensor with the frequency 0 of dimensions, or of all, moved back from the middle to the beginning.
    "fft_ifftshift(Tensor self, int[1]? dim=None) -> Tensor"
        fn fft_ifftshift(dim: optional_ints) = Composite(|call| centered(call, 1).map(single)), autocast: Parts;
    /// Returns tensors of at most one dimension as the coordinates of a grid, the first one's dimension first.
    "meshgrid(Tensor[] tensors) -> Tensor[]"
        of fn meshgrid(tensors: tensors) -> list
        = Composite(|call| meshgrid(call.tensor_list(0), "ij")), autocast: Parts;
    /// Returns tensors of at most one dimension as the coordinates of a grid; with the indexing `xy` the second one's dimension is
    /// first.
    "meshgrid.indexing(Tensor[] tensors, *, str indexing) -> Tensor[]"
        of fn meshgrid_indexing(tensors: tensors, indexing: str) -> list
        = Composite(|call| meshgrid(call.tensor_list(0), call.str(1))), autocast: Parts;
}

/// The gradient of `fill`: zero for the overwritten elements, the sum for the value.
static FILL: Formula = Formula {
    inputs: &[],
    outputs: &[],
    backward: |call| {
        call.each(|tensor| match tensor {
            0 => Tensor::zeros(call.shape(0), call.dtype_of(0), call.device()).map(Some),
            _ => call.gradient()?.sum_to_shape(&[])?.to_dtype(call.dtype_of(1)).map(Some),
        })
    },
};

/// The gradient of `constant_pad_nd`: that of the original elements.
static CONSTANT_PAD: Formula = Formula {
    inputs: &[],
    outputs: &[],
    backward: |call| {
        call.one(0, || {
            let padding: SmallVec<[i64; 12]> = call.ints(1).iter().map(|&count| -count).collect();
            pad(&call.gradient()?, &padding, Scalar::I64(0))
        })
    },
};

/// The gradient of `flip`: the same dimensions in reverse order.
static FLIP: Formula = Formula {
    inputs: &[],
    outputs: &[],
    backward: |call| call.one(0, || call.gradient()?.flip(&call.ints(1))),
};

/// Returns the result of `constant_pad_nd`; the tensor itself if nothing is added or removed.
pub(super) fn pad(x: &Tensor, padding: &[i64], value: Scalar) -> Result<Tensor> {
    if padding.iter().all(|&count| count == 0) {
        return Ok(x.clone());
    }
    let arguments = [x.into(), padding.into(), Argument::Scalar(value)];
    super::call(built_in!("constant_pad_nd")?, &arguments, None, std::panic::Location::caller())
}

/// Reads the options of a new tensor, from a position in the schema on: dtype, layout, device, pinned memory. Returns the call on
/// the device that is named, and the dtype.
pub(super) fn options<'a>(call: &'a Call<'a>, at: usize) -> Result<(Call<'a>, Option<DType>)> {
    check_options(call.optional_int(at + 1), call.optional_bool(at + 3))?;
    let device = match call.argument(at + 2) {
        Argument::Device(device) => device,
        _ => call.device,
    };
    Ok((Call { device, ..*call }, call.optional_dtype(at)))
}

/// Returns the first tensor, moved to the device that an argument names, if there is one.
pub(super) fn on_device(call: &Call<'_>, at: usize) -> Result<Tensor> {
    match call.argument(at) {
        Argument::Device(device) => call.tensor(0).to_device(device),
        _ => Ok(call.tensor(0).clone()),
    }
}

fn filled(
    call: &Call<'_>,
    size: &[i64],
    value: Scalar,
    at: usize,
    dtype: impl FnOnce() -> DType,
) -> Result<Tensors> {
    let (call, named) = options(call, at)?;
    let dtype = named.unwrap_or_else(dtype);
    Tensor::full(&extents(size)?, value, dtype, call.device).map(single)
}

fn filled_like(call: &Call<'_>, value: Scalar, at: usize) -> Result<Tensors> {
    let (call, named) = options(call, at)?;
    let dtype = named.unwrap_or(call.tensor(0).dtype());
    made_like(&call, at + 4, |shape| Tensor::full(shape, value, dtype, call.device)).map(single)
}

fn empty(call: &Call<'_>, shape: &[usize], at: usize, dtype: DType) -> Result<Tensor> {
    let (call, named) = options(call, at)?;
    let dtype = named.unwrap_or(dtype);
    uninitialized(call.new_result(shape, dtype)?)
}

fn empty_strided(call: &Call<'_>, size: &[i64], stride: &[i64], at: usize, dtype: DType) -> Result<Tensor> {
    let (call, named) = options(call, at)?;
    let dtype = named.unwrap_or(dtype);
    refuse_if!(
        size.len() != stride.len(),
        "dimensionality of sizes ({}) must match dimensionality of strides ({})",
        size.len(),
        stride.len()
    );
    let shape = extents(size)?;
    let strides: Shape = stride
        .iter()
        .map(|&stride| usize::try_from(stride))
        .collect::<std::result::Result<_, _>>()
        .map_err(|_| invalid!("empty_strided: negative strides are not supported, got {stride:?}"))?;
    let too_large =
        || invalid!("sizes {size:?} and strides {stride:?} have more elements than can be addressed");
    let elements = match element_count(&shape)? {
        0 => 0,
        _ => (shape.iter().zip(&strides))
            .try_fold(1usize, |end, (&extent, &stride)| end.checked_add((extent - 1).checked_mul(stride)?))
            .ok_or_else(too_large)?,
    };
    byte_count(&[elements], dtype)?;
    let memory = call.new_empty(&[elements], dtype)?;
    let memory = uninitialized(memory)?;
    Ok(memory.with_layout(Layout::new(&shape, &strides, 0)?))
}

/// Returns start, start + step, … before an end, which is excluded.
fn arange(call: &Call<'_>, [start, end, step]: [Scalar; 3], at: usize) -> Result<Tensor> {
    let whole = [start, end, step].iter().all(|number| !number.is_floating_point());
    let (call, named) = options(call, at)?;
    let dtype = named.unwrap_or(if whole { DType::I64 } else { default_dtype() });
    let [from, to, by] = [start, end, step].map(Scalar::to_f64);
    refuse_if!(by == 0.0 || by.is_nan(), "step must be nonzero");
    refuse_if!(!from.is_finite() || !to.is_finite(), "unsupported range: {from} -> {to}");
    if (by > 0.0 && to < from) || (by < 0.0 && to > from) {
        refuse!("upper bound and lower bound inconsistent with step sign");
    }
    let count = if dtype.is_floating_point() || !whole {
        let parts = if dtype.is_floating_point() { [from, to, by] } else { [from, to, by].map(f64::trunc) };
        refuse_if!(parts[2] == 0.0, "step must be nonzero");
        Some(((parts[1] - parts[0]) / parts[2]).ceil())
            .filter(|&count| count < 2f64.powi(62))
            .map(|count| count as usize)
    } else {
        let [from, to, by] = [start, end, step].map(|number| i128::from(number.to_i64()));
        usize::try_from((to - from + by - by.signum()) / by).ok()
    };
    let count = count.ok_or_else(|| invalid!("invalid size, possible overflow?"))?;
    let [start, step] = match dtype.is_floating_point() {
        true => [start, step],
        false => [start, step].map(|number| Scalar::I64(number.to_i64())),
    };
    Tensor::arange(count, start, step, dtype, call.device)
}

fn linspace(call: &Call<'_>) -> Result<Tensor> {
    let [start, end] = [call.scalar(0), call.scalar(1)];
    let (call, named) = options(call, 3)?;
    let dtype = named.unwrap_or_else(default_dtype);
    let Ok(steps) = usize::try_from(call.int(2)) else {
        refuse!("number of steps must be non-negative");
    };
    if dtype == DType::Bool {
        return Err(Error::not_implemented("\"linspace\" not implemented for 'Bool'"));
    }
    for bound in [start, end] {
        creation::convertible(bound, dtype)?;
    }
    let [start, end] = [start, end].map(|bound| match dtype.is_floating_point() {
        true => bound.to_f64(),
        false => bound.to_i64() as f64,
    });
    let last = steps.saturating_sub(1);
    let step = (end - start) / last.max(1) as f64;
    // A single number is the start.
    let half = if steps == 1 { 1 } else { steps / 2 };
    let counts = [half, last].map(|count| Argument::Scalar(Scalar::I64(count as i64)));
    let numbers = [start, end, step].map(|number| Argument::Scalar(Scalar::F64(number)));
    let sizes = [steps];
    let arguments =
        [numbers[0], numbers[1], numbers[2], counts[0], counts[1], as_ints(&sizes).into(), dtype.into()];
    super::call(built_in!("thalweg::linspace")?, &arguments, Some(call.device), call.label.location)
}

fn eye(call: &Call<'_>, size: [i64; 2], at: usize) -> Result<Tensor> {
    for (extent, name) in size.iter().zip(["n", "m"]) {
        refuse_if!(*extent < 0, "{name} must be greater or equal to 0, got {extent}");
    }
    let (call, named) = options(call, at)?;
    let dtype = named.unwrap_or_else(default_dtype);
    let size = size.map(|extent| extent as usize);
    let result = Tensor::zeros(&size, dtype, call.device)?;
    no_grad(|| diagonal(&result, 0, 0, 1)?.fill_(1))?;
    Ok(result)
}

/// Returns the lower or upper triangles of matrices, and 0 elsewhere.
fn triangle(call: &Call<'_>, is_lower: bool) -> Result<Tensors> {
    let x = call.tensor(0);
    let &[.., rows, columns] = x.shape() else {
        let name = call.operator.base_name();
        refuse!("{name}: input tensor must have at least 2 dimensions");
    };
    // Beyond the corners all diagonals are the same.
    let (lowest, highest) = (-(rows as i64) - 1, columns as i64 + 1);
    let diagonal = call.int(1).clamp(lowest, highest);
    let count = x.shape()[..x.rank() - 2].iter().product();
    let matrices = x.detach().reshape(&[count, rows, columns])?;
    let result = match for_kernel_over(&matrices) {
        Some(over) => over,
        None => call.new_result(&[count, rows, columns], x.dtype())?,
    };
    if result.elements() > 0 {
        let placed = |tensor: &Tensor| Placement::Strided {
            rows: widen(tensor.layout().strides()),
            inner: Dimensions::new(),
        };
        let [side, diagonal] = if is_lower { [1, diagonal] } else { [-1, -diagonal] };
        launch_placed(
            &TRIANGLE,
            (&[count, rows, columns], &[]),
            (&[&matrices], from_ref(&result)),
            [placed(&matrices), placed(&result)].into_iter().collect(),
            &[side, diagonal].map(|number| number as u64),
            call.label,
        )?;
    }
    result.reshape(x.shape()).map(single)
}

/// The gradient of the lower triangles.
static LOWER: Formula = Formula {
    inputs: &[],
    outputs: &[],
    backward: |call| call.one(0, || call.gradient()?.tril(call.int(1))),
};

/// The gradient of the upper triangles.
static UPPER: Formula = Formula {
    inputs: &[],
    outputs: &[],
    backward: |call| call.one(0, || call.gradient()?.triu(call.int(1))),
};

fn converted(
    call: &Call<'_>,
    x: &Tensor,
    dtype: DType,
    (copies, format): (bool, Option<i64>),
) -> Result<Tensor> {
    match format {
        _ if dtype != x.dtype() => x.cast(dtype, format, call.label.location),
        _ if copies => copied_in_format(call, x, format),
        None | Some(1) => Ok(x.clone()),
        // Returned unchanged if it already has the layout.
        Some(format) => in_format(x, format),
    }
}

fn constant_pad(call: &Call<'_>) -> Result<Tensors> {
    let (x, padding) = (call.tensor(0), call.ints(1));
    if !padding.len().is_multiple_of(2) {
        refuse!("Length of pad must be even but instead it equals {}", padding.len());
    }
    let Some(kept) = x.rank().checked_sub(padding.len() / 2) else {
        refuse!(
            "Length of pad should be no more than twice the number of dimensions of the input. Pad length is {} while the input has \
             {} dimensions.",
            padding.len(),
            x.rank()
        );
    };
    let mut shape: Shape = x.shape().into();
    let (mut source, mut target) = (x.layout().clone(), Shape::new());
    for dim in 0..x.rank() {
        let at = (x.rank() - 1 - dim) * 2;
        let [before, after] = if dim < kept { [0, 0] } else { [padding[at], padding[at + 1]] };
        let extent = x.shape()[dim] as i64;
        let Some(whole) =
            extent.checked_add(before).and_then(|sum| sum.checked_add(after)).filter(|&sum| sum >= 0)
        else {
            refuse!(
                "The input size {extent}, plus negative padding {before} and {after}, resulted in a negative output size, which is \
                 invalid. Check dimension {dim} of your input."
            );
        };
        shape[dim] = whole as usize;
        let first = before.min(0).unsigned_abs().min(extent as u64) as usize;
        let last = (after.min(0).unsigned_abs() as usize).min(extent as usize - first);
        source = source.narrow(dim, first, extent as usize - first - last)?;
        target.push((before.max(0) as usize).min(whole as usize));
    }
    let value = creation::convertible(call.scalar(2), x.dtype())?;
    let is_last = x.rank() > 3 && is_channels_last(x);
    let order = if is_last { channels_last_order(x.rank()) } else { (0..x.rank()).collect() };
    let ordered: Shape = order.iter().map(|&dim| shape[dim]).collect();
    let result = match source.shape() == shape.as_slice() {
        // Nothing is added.
        true => call.new_result(&ordered, x.dtype())?,
        false => Tensor::full(&ordered, value, x.dtype(), call.device)?,
    };
    let result = if is_last { from_last(&result)? } else { result };
    let source = x.with_layout(source);
    if source.elements() > 0 {
        let mut layout = result.layout().clone();
        for (dim, &start) in target.iter().enumerate() {
            layout = layout.narrow(dim, start, source.shape()[dim])?;
        }
        copy_into(call, &source, &result.with_layout(layout), x.dtype())?;
    }
    in_format(&result, format_of(x)).map(single)
}

/// Returns the tensor repeated along each dimension; there are at least as many numbers as the tensor has dimensions.
fn repeat(x: &Tensor, repeats: &[i64]) -> Result<Tensor> {
    let added = repeats.len() - x.rank();
    let counts = extents(repeats)?;
    let (mut apart, mut repeated, mut whole) = (Shape::new(), Shape::new(), Shape::new());
    for (at, &count) in counts.iter().enumerate() {
        let extent = at.checked_sub(added).map_or(1, |dim| x.shape()[dim]);
        apart.extend([1, extent]);
        repeated.extend([count, extent]);
        whole.push(extent.saturating_mul(count));
    }
    element_count(&whole)?;
    x.reshape(&apart)?.expand(&repeated)?.copied(std::panic::Location::caller())?.reshape(&whole)
}

fn repeat_interleave(call: &Call<'_>) -> Result<Tensor> {
    let (x, repeats) = (call.tensor(0), call.int(1));
    let Ok(repeats) = usize::try_from(repeats) else {
        refuse!("Repeats must be non-negative");
    };
    let (x, dim) = match call.optional_int(2) {
        Some(dim) if x.rank() > 0 => (x.clone(), wrap(dim, x.rank())?),
        dim => {
            wrap(dim.unwrap_or(0), 0)?;
            (x.reshape(&[x.elements()])?, 0)
        }
    };
    let mut whole: Shape = x.shape().into();
    whole[dim] = whole[dim].saturating_mul(repeats);
    if call.optional_int(3).is_some_and(|wanted| wanted != whole[dim] as i64) {
        refuse!("Allocated size does not match required size");
    }
    element_count(&whole)?;
    let mut repeated: Shape = x.shape().into();
    repeated.insert(dim + 1, repeats);
    x.unsqueeze(dim as i64 + 1)?.expand(&repeated)?.copied(call.label.location)?.reshape(&whole)
}

fn flip(call: &Call<'_>) -> Result<Tensors> {
    let x = call.tensor(0);
    if x.rank() == 0 {
        wrap_all(&call.ints(1), 0)?;
        return x.copied(call.label.location).map(single);
    }
    let dims = wrap_all(&call.ints(1), x.rank())?;
    let is_flipped = |dim: usize| x.shape()[dim] > 1 && dims.contains(&dim);
    let mut result = None;
    let mut dim = 0;
    while dim < x.rank() {
        // Neighbours in reverse order are one dimension in reverse order; extents of 1 do not separate them.
        let end =
            (dim..x.rank()).find(|&other| x.shape()[other] > 1 && !is_flipped(other)).unwrap_or(x.rank());
        if (dim..end).any(is_flipped) {
            result = Some(reversed(call, result.as_ref().unwrap_or(x), dim..end)?);
        }
        dim = end + 1;
    }
    result.map_or_else(|| x.copied(call.label.location), Ok).map(single)
}

/// Returns a tensor with neighbouring dimensions, as one, in reverse order.
fn reversed(call: &Call<'_>, x: &Tensor, dims: std::ops::Range<usize>) -> Result<Tensor> {
    let x = x.detach().contiguous()?;
    let product = |list: &[usize]| list.iter().product::<usize>();
    let shape = x.shape();
    let sizes @ [_, extent, inner] =
        [product(&shape[..dims.start]), product(&shape[dims.clone()]), product(&shape[dims.end..])];
    let result = call.new_result(shape, x.dtype())?;
    if result.elements() > 0 {
        let rows: Dimensions = [extent * inner, inner, 1].map(|stride| stride as u64).into_iter().collect();
        let placements =
            [Placement::Gathered(x.elements() as u64), Placement::Strided { rows, inner: Dimensions::new() }];
        launch_placed(
            &REVERSE,
            (&sizes, &[]),
            (&[&x], from_ref(&result)),
            placements.into_iter().collect(),
            &[extent, inner].map(|number| number as u64),
            call.label,
        )?;
    }
    Ok(result)
}

fn flip_matrix(call: &Call<'_>, dim: usize, refusal: &str) -> Result<Tensor> {
    let x = call.tensor(0);
    if x.rank() <= dim {
        return Err(Error::invalid(refusal.to_owned()));
    }
    x.flip(&[dim as i64])
}

/// Rolls dimensions by half of their extents, rounded up by `odd`.
fn centered(call: &Call<'_>, odd: i64) -> Result<Tensor> {
    let x = call.tensor(0);
    let dims = call.optional_ints(1).unwrap_or_else(|| (0..x.rank() as i64).collect());
    let half = |&dim: &i64| -> Result<i64> { Ok((x.shape()[x.layout().dimension(dim)?] as i64 + odd) / 2) };
    let shifts: SmallVec<[i64; 6]> = dims.iter().map(half).collect::<Result<_>>()?;
    x.roll(&shifts, &dims)
}

fn roll(call: &Call<'_>) -> Result<Tensor> {
    let (x, shifts, dims) = (call.tensor(0), call.ints(1), call.ints(2));
    if dims.is_empty() && shifts.len() == 1 {
        let flat = x.reshape(&[x.elements()])?;
        return rolled(&flat, 0, shifts[0])?.reshape(x.shape());
    }
    refuse_if!(shifts.is_empty(), "`shifts` required");
    if shifts.len() != dims.len() {
        refuse!("shifts and dimensions must align. shifts: {}, dims:{}", shifts.len(), dims.len());
    }
    let mut result = x.copied(call.label.location)?;
    for (&dim, &shift) in dims.iter().zip(&shifts) {
        if x.rank() == 0 {
            return Err(Error::index(format!("Dimension specified as {dim} but tensor has no dimensions")));
        }
        result = rolled(&result, wrap(dim, x.rank())?, shift)?;
    }
    Ok(result)
}

fn rolled(x: &Tensor, dim: usize, shift: i64) -> Result<Tensor> {
    let extent = x.shape()[dim];
    if extent == 0 {
        return x.copied(std::panic::Location::caller());
    }
    let start = (-i128::from(shift)).rem_euclid(extent as i128) as usize;
    let dim = dim as i64;
    Tensor::cat(&[x.narrow(dim, start, extent - start)?, x.narrow(dim, 0, start)?], dim)
}

fn meshgrid(tensors: &[Tensor], indexing: &str) -> Result<Tensors> {
    refuse_if!(tensors.is_empty(), "meshgrid expects a non-empty TensorList");
    if !["ij", "xy"].contains(&indexing) {
        refuse!("torch.meshgrid: indexing must be one of \"xy\" or \"ij\", but received: {indexing}");
    }
    if let Some(x) = tensors.iter().find(|x| x.rank() > 1) {
        refuse!("torch.meshgrid: Expected 0D or 1D tensor in the tensor list but got: {:?}", x.shape());
    }
    if tensors.iter().any(|x| x.dtype() != tensors[0].dtype()) {
        refuse!("torch.meshgrid expects all tensors to have the same dtype");
    }
    let shape: Shape = tensors.iter().map(Tensor::elements).collect();
    let swaps = indexing == "xy" && tensors.len() >= 2;
    tensors
        .iter()
        .enumerate()
        .map(|(at, x)| {
            let mut own: Shape = SmallVec::from_elem(1, shape.len());
            own[at] = x.elements();
            let grid = x.reshape(&own)?.expand(&shape)?;
            if swaps { grid.transpose(0, 1) } else { Ok(grid) }
        })
        .collect()
}
