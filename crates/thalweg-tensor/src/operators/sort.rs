//! Sorting along a dimension, and operators that read sorted rows.

use smallvec::SmallVec;
use thalweg_ir::DType;
use thalweg_kernels::Placed;
use thalweg_kernels::sort::{Select, Sort};
use thalweg_runtime::{Error, Label, Result};

use super::Body::{Composite, Differentiable};
use super::reduce::{dimensions, value_among};
use super::view::wrap;
use super::{call as call_operator, call_all, operators, single};
use crate::autograd::formula::Formula;
use crate::dispatch::{Argument, Arguments, Call, built_in};
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns the elements in order along a dimension, and their former indices. Equal elements keep their order; NaN is above
    /// every number.
    "sort(Tensor self, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)"
        fn sort(dim: int, descending: bool) -> 2
        = Composite(|call| sorted(call.tensor(0), call.int(1), call.bool(2), call));
    /// Returns the elements in order along a dimension, and their former indices. Equal elements keep their order.
    "sort.stable(Tensor self, *, bool? stable, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)"
        fn sort_stable(stable: optional_bool) -> 2
        = Composite(|call| sorted(call.tensor(0), call.int(2), call.bool(3), call)), out_form: "sort.values_stable(values, indices)";
    /// Returns the indices of the elements in order along a dimension.
    "argsort(Tensor self, int dim=-1, bool descending=False) -> Tensor"
        fn argsort(dim: int, descending: bool)
        = Composite(|call| sorted(call.tensor(0), call.int(1), call.bool(2), call).map(second)), autocast: Parts;
    /// Returns the indices of the elements in order along a dimension. Equal elements keep their order.
    "argsort.stable(Tensor self, *, bool stable, int dim=-1, bool descending=False) -> Tensor"
        fn argsort_stable(stable: bool)
        = Composite(|call| sorted(call.tensor(0), call.int(2), call.bool(3), call).map(second)), autocast: Parts;
    /// Returns the elements in order along the first dimension.
    "msort(Tensor self) -> Tensor"
        fn msort()
        = Composite(|call| {
        let x = call.tensor(0);
        sorted(x, 0, false, call).map(|mut results| single(results.swap_remove(0)))
    }), autocast: Parts;
    /// Returns the k greatest elements along a dimension in order, or the smallest, and their indices.
    "topk(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor values, Tensor indices)"
        fn topk(k: int, dim: int, largest: bool, sorted: bool) -> 2
        = Composite(topk);
    /// Returns the kth smallest element along a dimension, counted from 1, and its index.
    "kthvalue(Tensor self, SymInt k, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)"
        fn kthvalue(k: int, dim: int, keepdim: bool) -> 2
        = Composite(kthvalue), out: [Unshared];
    /// Returns the median along a dimension, the lower of two, and its index; NaN if any element is NaN.
    "median.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"
        fn median_dim(dim: int, keepdim: bool) -> 2
        = Composite(|call| median(call.tensor(0), call.int(1), call.bool(2), call));
    /// Returns the median of all elements, the lower of two; NaN if any is NaN.
    "median(Tensor self) -> Tensor"
        fn median()
        = Composite(|call| {
        let x = call.tensor(0);
        if x.elements() == 0 {
            return if x.dtype().is_floating_point() {
                Tensor::full(&[], f64::NAN, x.dtype(), x.device()).map(single)
            } else {
                Err(Error::invalid("median() of an empty tensor of integers"))
            };
        }
        let flat = x.reshape(&[x.elements()])?;
        value_among(call, || median(&flat, 0, false, call).map(|mut results| results.swap_remove(0)))
    });
    /// Returns the elements in order along a dimension, for dtypes that a kernel supports, and their former indices.
    "thalweg::sort(Tensor self, int dim, bool descending) -> (Tensor values, Tensor indices)"
        = Differentiable(|call| sort(call.tensor(0), call.int(1), call.bool(2), call.label), &SORT);
    /// Returns the first k elements in order along a dimension and their indices, if a kernel can select them without sorting the
    /// rest.
    "thalweg::select(Tensor self, int k, int dim, bool descending) -> (Tensor values, Tensor indices)"
        = Differentiable(select, &SELECT);
}

fn second(mut results: Tensors) -> Tensors {
    results.drain(1..).collect()
}

/// The gradient of sorting: the gradients flow back to the former indices.
static SORT: Formula = Formula {
    inputs: &[],
    outputs: &[1],
    backward: |call| {
        call.one(0, || {
            let (gradient, places) = (call.gradient()?, call.result(1)?);
            if call.shape(0).is_empty() {
                return Ok(gradient);
            }
            // The indices are a permutation; sorting them returns its inverse.
            let inverse = sort(&places, call.int(1), false, call.label())?.swap_remove(1);
            at_places(&gradient, &inverse, call.int(1), call.label())
        })
    },
};

/// Returns the elements of a tensor at indices along a dimension; there are as many indices as elements.
fn at_places(x: &Tensor, places: &Tensor, dim: i64, label: Label) -> Result<Tensor> {
    if x.elements() == 0 {
        return Ok(x.clone());
    }
    let dimension = x.layout().dimension(dim)?;
    let (length, inner) = (x.shape()[dimension], x.shape()[dimension + 1..].iter().product::<usize>());
    let outer = x.elements() / (length * inner);
    let count = |extent: usize, step: usize, shape: &[usize; 3]| {
        Tensor::arange(extent, 0, step as i64, DType::I64, x.device())?.reshape(shape)
    };
    // The position in memory of each element.
    let index = (places.reshape(&[outer, length, inner])?.mul_scalar(inner as i64)?)
        .add(&count(outer, length * inner, &[outer, 1, 1])?)?
        .add(&count(inner, 1, &[1, 1, inner])?)?;
    let rows = x.reshape(&[x.elements(), 1])?;
    let arguments = [Argument::Tensor(&rows), Argument::Tensor(&index)];
    call_operator(built_in!("thalweg::embedding")?, &arguments, None, label.location)?.reshape(x.shape())
}

/// The gradient of selection: the gradients flow back to the indices, and the rest is 0.
static SELECT: Formula = Formula {
    inputs: &[],
    outputs: &[1],
    backward: |call| {
        call.one(0, || {
            let (gradient, places) = (call.gradient()?, call.result(1)?);
            Tensor::zeros(call.shape(0), gradient.dtype(), call.device())?.scatter(
                call.int(2),
                &places,
                &gradient,
            )
        })
    },
};

/// Returns the rows of a contiguous tensor along a dimension, for a kernel.
fn rows(x: &Tensor, dim: i64, descending: bool) -> Result<Sort> {
    let dimension = dimensions(x, &[dim])?.first().copied();
    let shape = x.shape();
    let [outer, length, inner] = match dimension {
        Some(dimension) => [
            shape[..dimension].iter().product(),
            shape[dimension],
            shape[dimension + 1..].iter().product::<usize>(),
        ],
        None => [1; 3],
    }
    .map(|extent| extent as u64);
    Ok(Sort { outer, length, inner, descending, dtype: x.dtype() })
}

fn select(call: &Call<'_>) -> Result<Tensors> {
    let (k, dim) = (call.int(1), call.int(2));
    let x = call.tensor(0).detach().contiguous()?;
    let kernel = Select { sort: rows(&x, dim, call.bool(3))?, count: k as u64 };
    if !kernel.is_possible() {
        return Err(Error::invalid(format!(
            "thalweg::select takes 1 to 1024 of the floats of each row, not {k} of {} of {:?}",
            x.dtype(),
            x.shape()
        )));
    }
    let mut shape: SmallVec<[usize; 6]> = SmallVec::from_slice(x.shape());
    shape[x.layout().dimension(dim)?] = k as usize;
    let stream = x.device().current_stream();
    let empty = |dtype| Tensor::result_on(&shape, dtype, &stream, call.label);
    let results = [empty(x.dtype())?, empty(DType::I64)?];
    let at = [x.pointer(), results[0].pointer(), results[1].pointer()];
    stream.launch_native(&Placed { kernel, at }, call.label)?;
    Ok(SmallVec::from_iter(results))
}

/// Sorts floats or int64 along a dimension.
fn sort(x: &Tensor, dim: i64, descending: bool, label: Label) -> Result<Tensors> {
    let x = x.detach().contiguous()?;
    let shape = x.shape();
    let stream = x.device().current_stream();
    let empty = |dtype| Tensor::result_on(shape, dtype, &stream, label);
    let (values, places) = (empty(x.dtype())?, empty(DType::I64)?);
    wrap(dim, x.rank())?;
    if x.elements() > 0 {
        let kernel = rows(&x, dim, descending)?;
        let scratch = Tensor::empty_on(&[kernel.scratch_words() as usize], DType::I64, &stream, label)?;
        let at = [&x, &values, &places, &scratch].map(Tensor::pointer);
        for kernel in kernel.steps() {
            stream.launch_native(&Placed { kernel, at }, label)?;
        }
    }
    Ok(SmallVec::from_iter([values, places]))
}

/// Sorts any dtype: integers and truth values as int64.
fn sorted(x: &Tensor, dim: i64, descending: bool, call: &Call<'_>) -> Result<Tensors> {
    let dtype = x.dtype();
    let wide = if dtype.is_floating_point() { x.clone() } else { x.to_dtype(DType::I64)? };
    let arguments = [Argument::Tensor(&wide), Argument::Int(dim), Argument::Bool(descending)];
    let mut results = call_all(built_in!("thalweg::sort")?, &arguments, None, call.label.location)?;
    results[0] = results[0].to_dtype(dtype)?;
    Ok(results)
}

fn topk(call: &Call<'_>) -> Result<Tensors> {
    let (x, k, dim) = (call.tensor(0), call.int(1), call.int(2));
    let dimension = dimensions(x, &[dim])?.first().copied();
    let length = dimension.map_or(1, |dimension| x.shape()[dimension]);
    let Some(k) = usize::try_from(k).ok().filter(|&k| k <= length) else {
        return Err(Error::invalid("selected index k out of range"));
    };
    let selected = Select { sort: rows(x, dim, call.bool(3))?, count: k as u64 };
    if selected.is_better() {
        let arguments =
            [Argument::Tensor(x), Argument::Int(k as i64), Argument::Int(dim), Argument::Bool(call.bool(3))];
        return call_all(built_in!("thalweg::select")?, &arguments, None, call.label.location);
    }
    let results = sorted(x, dim, call.bool(3), call)?;
    match dimension {
        Some(_) => results.iter().map(|result| result.narrow(dim, 0, k)?.contiguous()).collect(),
        None if k == 1 => Ok(results),
        None => Err(Error::invalid("selected index k out of range")),
    }
}

/// Selects one index of sorted rows, and keeps their dimension if `keepdim` is set.
fn at_place(results: &Tensors, dim: i64, place: usize, keepdim: bool) -> Result<Tensors> {
    (results.iter())
        .map(|result| {
            if result.rank() == 0 {
                return Ok(result.clone());
            }
            let part = result.narrow(dim, place, 1)?;
            if keepdim { part.contiguous() } else { part.squeeze(dim)?.contiguous() }
        })
        .collect()
}

fn kthvalue(call: &Call<'_>) -> Result<Tensors> {
    let (x, k, dim) = (call.tensor(0), call.int(1), call.int(2));
    let dimension = dimensions(x, &[dim])?.first().copied();
    let length = dimension.map_or(1, |dimension| x.shape()[dimension]);
    let Some(place) = usize::try_from(k).ok().filter(|&k| (1..=length).contains(&k)) else {
        return Err(match length {
            0 => Error::index(format!("kthvalue(): Expected reduction dim {dim} to have non-zero size.")),
            _ => Error::invalid(format!("kthvalue(): selected number k out of range for dimension {dim}")),
        });
    };
    at_place(&sorted(x, dim, false, call)?, dim, place - 1, call.bool(3))
}

fn median(x: &Tensor, dim: i64, keepdim: bool, call: &Call<'_>) -> Result<Tensors> {
    let dimension = dimensions(x, &[dim])?.first().copied();
    let length = dimension.map_or(1, |dimension| x.shape()[dimension]);
    if length == 0 {
        return Err(Error::index(format!("median(): Expected reduction dim {dim} to have non-zero size.")));
    }
    let results = sorted(x, dim, false, call)?;
    let middle = at_place(&results, dim, (length - 1) / 2, keepdim)?;
    if !x.dtype().is_floating_point() {
        return Ok(middle);
    }
    // NaNs are sorted after all numbers: if the last element is NaN, so is the median.
    let last = at_place(&results, dim, length - 1, keepdim)?;
    let is_number = last[0].eq(&last[0])?;
    let value = is_number.select_where(&middle[0], &last[0])?;
    let place = is_number.select_where(&middle[1], &last[1])?;
    Ok(SmallVec::from_iter([value, place]))
}
