//! Sorting along a dimension, and operators that read sorted rows.

use smallvec::SmallVec;
use thalweg_ir::DType;
use thalweg_kernels::sort::{Select, SelectLong, SelectOne, Sort};
use thalweg_runtime::{Error, Label, Result, invalid, refuse, refuse_if};

use super::Body::{Composite, Differentiable};
use super::reduce::{dimensions, rows_along, value_among};
use super::view::wrap;
use super::{call as call_operator, call_all, operators, single};
use crate::autograd::formula::Formula;
use crate::dispatch::{Argument, Arguments, Call, built_in};
use crate::native::launch;
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns the elements in order along a dimension, and their former indices. Equal elements keep their order; NaN is above
    /// every number.
    "sort(Tensor self, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)"
        fn sort(dim: int, descending: bool) -> 2
        = Composite(|call| sorted(call.tensor(0), call.int(1), call.bool(2), call)), out: [OfResult];
    /// Returns the elements in order along a dimension, and their former indices. Equal elements keep their order.
    "sort.stable(Tensor self, *, bool? stable, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)"
        fn sort_stable(stable: optional_bool) -> 2
        = Composite(|call| sorted(call.tensor(0), call.int(2), call.bool(3), call)), out_form: "sort.values_stable(values, indices)", out: [OfResult];
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
    }), out: [OfResult], autocast: Parts;
    /// Returns the k greatest elements along a dimension in order, or the smallest, and their indices.
    "topk(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor values, Tensor indices)"
        fn topk(k: int, dim: int, largest: bool, sorted: bool) -> 2
        = Composite(topk), out: [OfResult];
    /// Returns the kth smallest element along a dimension, counted from 1, and its index.
    "kthvalue(Tensor self, SymInt k, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)"
        fn kthvalue(k: int, dim: int, keepdim: bool) -> 2
        = Composite(kthvalue), out: [OfResult, Unshared];
    /// Returns the median along a dimension, the lower of two, and its index; NaN if any element is NaN.
    "median.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"
        fn median_dim(dim: int, keepdim: bool) -> 2
        = Composite(|call| median(call.tensor(0), call.int(1), call.bool(2), call)), out: [OfResult];
    /// Returns the median of all elements, the lower of two; NaN if any is NaN.
    "median(Tensor self) -> Tensor"
        fn median()
        = Composite(|call| {
        let x = call.tensor(0);
        if x.elements() == 0 {
            return if x.dtype().is_floating_point() {
                Tensor::full(&[], f64::NAN, x.dtype(), x.device()).map(single)
            } else {
                Err(invalid!("median() of an empty tensor of integers"))
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
    /// Returns the element at a place of the order along a dimension, counted from 0, and its index; or the last NaN.
    "thalweg::select_one(Tensor self, int place, int dim, bool keepdim, bool takes_nan) -> (Tensor values, Tensor indices)"
        = Differentiable(select_one, &SELECT_ONE);
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
    let [outer, length, inner] = rows_along(x, dim)?;
    Ok(Sort { outer, length, inner, descending, dtype: x.dtype() })
}

fn select(call: &Call<'_>) -> Result<Tensors> {
    let (k, dim) = (call.int(1), call.int(2));
    let x = call.tensor(0).detach().contiguous()?;
    let kernel = Select { sort: rows(&x, dim, call.bool(3))?, count: k as u64 };
    refuse_if!(
        !kernel.is_possible(),
        "thalweg::select takes 1 to 1024 of the floats of each row, not {k} of {} of {:?}",
        x.dtype(),
        x.shape()
    );
    let mut shape: SmallVec<[usize; 6]> = SmallVec::from_slice(x.shape());
    shape[x.layout().dimension(dim)?] = k as usize;
    let results = [call.new_result(&shape, x.dtype())?, call.new_result(&shape, DType::I64)?];
    call.launch(kernel, [&x, &results[0], &results[1]])?;
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
        launch(rows(&x, dim, descending)?, [&x, &values, &places], label)?;
    }
    Ok(SmallVec::from_iter([values, places]))
}

/// Returns elements in a dtype that sorts take: smaller integers and truth values as int32, larger ones as int64.
fn sortable(x: &Tensor) -> Result<Tensor> {
    match x.dtype() {
        dtype if dtype.is_floating_point() => Ok(x.clone()),
        dtype if dtype.size_bytes() < 4 || dtype == DType::I32 => x.to_dtype(DType::I32),
        _ => x.to_dtype(DType::I64),
    }
}

/// Sorts any dtype.
fn sorted(x: &Tensor, dim: i64, descending: bool, call: &Call<'_>) -> Result<Tensors> {
    let dtype = x.dtype();
    let wide = sortable(x)?;
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
        refuse!("selected index k out of range");
    };
    let selected = Select { sort: rows(x, dim, call.bool(3))?, count: k as u64 };
    if selected.is_better() {
        let arguments =
            [Argument::Tensor(x), Argument::Int(k as i64), Argument::Int(dim), Argument::Bool(call.bool(3))];
        return call_all(built_in!("thalweg::select")?, &arguments, None, call.label.location);
    }
    if let Some(results) = first_of_parts(x, &selected, call)? {
        return Ok(results);
    }
    let results = sorted(x, dim, call.bool(3), call)?;
    match dimension {
        Some(_) => results.iter().map(|result| result.narrow(dim, 0, k)?.contiguous()).collect(),
        None if k == 1 => Ok(results),
        None => Err(invalid!("selected index k out of range")),
    }
}

/// Returns the first points of few long rows: of each of many parts of a row, and then of those. `None` if a part would have too
/// few points.
fn first_of_parts(x: &Tensor, select: &Select, call: &Call<'_>) -> Result<Option<Tensors>> {
    let Sort { outer, length, inner, descending, .. } = select.sort;
    let part = length / PARTS;
    let parts = Select { sort: Sort { outer: outer * PARTS, length: part.max(1), ..select.sort }, ..*select };
    if inner > 1 || part < LEAST_PART.max(select.count * LEAST_SHARE) || !parts.is_possible() {
        return Ok(None);
    }
    let call_select = |rows: &Tensor| {
        let arguments =
            [rows.into(), Argument::Int(select.count as i64), Argument::Int(-1), descending.into()];
        call_all(built_in!("thalweg::select")?, &arguments, None, call.label.location)
    };
    let [rows, part, count] = [outer, part, select.count].map(|size| size as usize);
    let (parts, divided) = (PARTS as usize, PARTS as usize * part);
    let whole = x.reshape(&[rows, length as usize])?;
    let found = call_select(&whole.narrow(1, 0, divided)?.reshape(&[rows, parts, part])?)?;
    let begins = Tensor::arange(parts, 0, part as i64, DType::I64, x.device())?.reshape(&[1, parts, 1])?;
    let flat = |found: &Tensor| found.reshape(&[rows, parts * count]);
    // Few points are in no part.
    let rest = length as usize - divided;
    let left = Tensor::arange(rest, divided as i64, 1, DType::I64, x.device())?.reshape(&[1, rest])?;
    let places = [flat(&found[1].add(&begins)?)?, left.expand(&[rows, rest])?];
    let candidates = Tensor::cat(&[flat(&found[0])?, whole.narrow(1, divided, rest)?], 1)?;
    let last = call_select(&candidates)?;
    let places = Tensor::cat(&places, 1)?.gather(1, &last[1])?;
    let mut shape: SmallVec<[usize; 6]> = SmallVec::from_slice(x.shape());
    shape[x.layout().dimension(call.int(2))?] = count;
    Ok(Some(SmallVec::from_iter([last[0].reshape(&shape)?, places.reshape(&shape)?])))
}

/// The number of parts of a long row, each of which one block selects from.
const PARTS: u64 = 256;

/// The least number of points of a part, and how many times longer than the selection it is at least.
const LEAST_PART: u64 = 1024;
const LEAST_SHARE: u64 = 8;

/// Returns the elements at one position of the sorted order along a dimension, and their indices; with `takes_nan`, the last NaN
/// instead if there is one. The dimension is kept if `keepdim` is set.
fn at_place(
    x: &Tensor,
    (dim, keepdim): (i64, bool),
    (place, takes_nan): (usize, bool),
    call: &Call<'_>,
) -> Result<Tensors> {
    let wide = sortable(x)?;
    let arguments = [
        Argument::Tensor(&wide),
        Argument::Int(place as i64),
        Argument::Int(dim),
        Argument::Bool(keepdim),
        Argument::Bool(takes_nan && x.dtype().is_floating_point()),
    ];
    let mut results = call_all(built_in!("thalweg::select_one")?, &arguments, None, call.label.location)?;
    results[0] = results[0].to_dtype(x.dtype())?;
    Ok(results)
}

fn select_one(call: &Call<'_>) -> Result<Tensors> {
    let (x, place, dim, keepdim, takes_nan) =
        (call.tensor(0).detach(), call.int(1), call.int(2), call.bool(3), call.bool(4));
    if x.rank() == 0 {
        return Ok(SmallVec::from_iter([x.deep_clone()?, Tensor::zeros(&[], DType::I64, x.device())?]));
    }
    let dimension = x.layout().dimension(dim)?;
    // Rows whose elements are neighbours in memory are read several times.
    let transposed = x.movedim(&[dimension as i64], &[-1])?.contiguous()?;
    let mut shape: SmallVec<[usize; 6]> = SmallVec::from_slice(transposed.shape());
    shape.truncate(x.rank() - 1);
    let kernel = SelectOne { sort: rows(&transposed, -1, false)?, place: place as u64, takes_nan };
    if !kernel.is_possible() {
        refuse!("a point of the order of rows cannot be selected from {} of {:?}", x.dtype(), x.shape());
    }
    let results = [call.new_empty(&shape, x.dtype())?, call.new_empty(&shape, DType::I64)?];
    let [values, places] = &results;
    if kernel.is_long() {
        let counters = Tensor::zeros(&[kernel.counters() as usize], DType::I32, x.device())?;
        call.launch(SelectLong(kernel), [&transposed, values, places, &counters])?;
    } else {
        call.launch(kernel, [&transposed, values, places])?;
    }
    let results: Tensors = SmallVec::from_iter(results);
    if !keepdim {
        return Ok(results);
    }
    shape.insert(dimension, 1);
    results.iter().map(|result| result.reshape(&shape)).collect()
}

/// The gradient of [`select_one`]: the gradients flow back to the indices, and the rest is 0.
static SELECT_ONE: Formula = Formula {
    inputs: &[],
    outputs: &[1],
    backward: |call| {
        call.one(0, || {
            let (mut gradient, mut places, dim) = (call.gradient()?, call.result(1)?, call.int(2));
            if call.shape(0).is_empty() {
                return Ok(gradient);
            }
            if !call.bool(3) {
                (gradient, places) = (gradient.unsqueeze(dim)?, places.unsqueeze(dim)?);
            }
            Tensor::zeros(call.shape(0), gradient.dtype(), call.device())?.scatter(dim, &places, &gradient)
        })
    },
};

fn kthvalue(call: &Call<'_>) -> Result<Tensors> {
    let (x, k, dim) = (call.tensor(0), call.int(1), call.int(2));
    let dimension = dimensions(x, &[dim])?.first().copied();
    let length = dimension.map_or(1, |dimension| x.shape()[dimension]);
    let Some(place) = usize::try_from(k).ok().filter(|&k| (1..=length).contains(&k)) else {
        return Err(match length {
            0 => Error::index(format!("kthvalue(): Expected reduction dim {dim} to have non-zero size.")),
            _ => invalid!("kthvalue(): selected number k out of range for dimension {dim}"),
        });
    };
    at_place(x, (dim, call.bool(3)), (place - 1, false), call)
}

fn median(x: &Tensor, dim: i64, keepdim: bool, call: &Call<'_>) -> Result<Tensors> {
    let dimension = dimensions(x, &[dim])?.first().copied();
    let length = dimension.map_or(1, |dimension| x.shape()[dimension]);
    if length == 0 {
        return Err(Error::index(format!("median(): Expected reduction dim {dim} to have non-zero size.")));
    }
    at_place(x, (dim, keepdim), ((length - 1) / 2, true), call)
}
