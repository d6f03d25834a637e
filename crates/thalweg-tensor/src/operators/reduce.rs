//! Reductions over dimensions, and what divides by one: sums, means, extrema, softmax.

use smallvec::SmallVec;
use thalweg_ir::{Scalar, Shape};
use thalweg_runtime::{Error, Result};

use super::Body::Composite;
use super::{operators, single};
use crate::dispatch::{Arguments, Call, Operator, built_in};
use crate::kernels::loops::LoopArguments;
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns the sum over dimensions, all of them where the list is empty. Integers and truth values are summed in i64.
    "sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"
        fn sum(dim: ints, keepdim: bool) = Composite(|call| {
            reduce(call, built_in!("thalweg::sum")?, &call.optional_ints(1).unwrap_or_default(), call.bool(2), call.optional_dtype(3))
        });
    /// Returns the sum of all elements.
    "sum(Tensor self, *, ScalarType? dtype=None) -> Tensor"
        = Composite(|call| reduce(call, built_in!("thalweg::sum")?, &[], false, call.optional_dtype(1)));
    /// Returns the mean over dimensions, all of them where the list is empty, of floats.
    "mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"
        fn mean(dim: ints, keepdim: bool) = Composite(|call| {
            reduce(call, built_in!("thalweg::mean")?, &call.optional_ints(1).unwrap_or_default(), call.bool(2), call.optional_dtype(3))
        });
    /// Returns the mean of all elements, of floats.
    "mean(Tensor self, *, ScalarType? dtype=None) -> Tensor"
        = Composite(|call| reduce(call, built_in!("thalweg::mean")?, &[], false, call.optional_dtype(1)));
    /// Returns the greatest element over dimensions, all of them where the list is empty; NaN where there is one.
    "amax(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor"
        fn amax(dim: ints, keepdim: bool) = Composite(|call| extremum(call, built_in!("thalweg::amax")?));
    /// Returns the smallest element over dimensions, all of them where the list is empty; NaN where there is one.
    "amin(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor"
        fn amin(dim: ints, keepdim: bool) = Composite(|call| extremum(call, built_in!("thalweg::amin")?));
    /// Returns the place of the greatest element along a dimension, as i64: the first of equals.
    "argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor"
        fn argmax(dim: int) = Composite(argmax);
    /// Returns eˣ over its sum along a dimension, of floats.
    "softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor"
        fn softmax(dim: int) = Composite(|call| along(call, built_in!("thalweg::softmax")?));
    /// Returns the logarithm of softmax along a dimension, of floats.
    "log_softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor"
        fn log_softmax(dim: int) = Composite(|call| along(call, built_in!("thalweg::log_softmax")?));
}

/// Returns dimensions sorted, negative ones counted from the end; an empty list is all of them.
pub(super) fn dimensions(x: &Tensor, list: &[i64]) -> Result<Shape> {
    let mut sorted: Shape = if list.is_empty() {
        (0..x.rank()).collect()
    } else if x.rank() == 0 && matches!(list, [0 | -1]) {
        // As in PyTorch, the only dimension that a tensor without any may be asked for.
        Shape::new()
    } else {
        list.iter().map(|&dim| x.layout().dimension(dim)).collect::<Result<_, _>>()?
    };
    sorted.sort_unstable();
    if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Error::invalid(format!("dimensions {list:?} of shape {:?} repeat", x.shape())));
    }
    Ok(sorted)
}

/// Reduces the first tensor of a call by an internal operator, whose result has the rows' shape.
fn reduce(
    call: &Call<'_>,
    operator: &'static Operator,
    dim: &[i64],
    keepdim: bool,
    dtype: Option<thalweg_ir::DType>,
) -> Result<Tensors> {
    let converted;
    let mut x = call.tensor(0);
    if let Some(dtype) = dtype {
        converted = x.to_dtype(dtype)?;
        x = &converted;
    }
    let reduced = dimensions(x, dim)?;
    if reduced.is_empty() {
        // A scalar has nothing to reduce over: it gets one dimension.
        return run(call, operator, &x.unsqueeze(0)?, &SmallVec::from_slice(&[0])).map(single);
    }
    let result = run(call, operator, x, &reduced)?;
    if !keepdim {
        return Ok(single(result));
    }
    let kept: Shape = (x.shape().iter().enumerate())
        .map(|(dimension, &extent)| if reduced.contains(&dimension) { 1 } else { extent })
        .collect();
    result.reshape(&kept).map(single)
}

/// Calls the internal operator; a mean is told how many elements it divides by.
fn run(call: &Call<'_>, operator: &'static Operator, x: &Tensor, reduced: &Shape) -> Result<Tensor> {
    let count: usize = reduced.iter().map(|&dimension| x.shape()[dimension]).product();
    let scalars = (operator.base_name() == "mean").then_some(Scalar::F64(count as f64)).into_iter().collect();
    let arguments = LoopArguments { scalars, sizes: reduced.clone(), dtype: None };
    Ok(operator.call_loop(&[x], &arguments, None, call.label)?.swap_remove(0))
}

/// Refuses a reduction that has nothing to choose from.
fn check_not_empty(x: &Tensor, dim: &[i64]) -> Result<()> {
    let reduced = dimensions(x, dim)?;
    if reduced.iter().any(|&dimension| x.shape()[dimension] == 0) {
        return Err(Error::invalid(format!("shape {:?} has nothing to choose from", x.shape())));
    }
    Ok(())
}

fn extremum(call: &Call<'_>, operator: &'static Operator) -> Result<Tensors> {
    let dim = call.ints(1);
    check_not_empty(call.tensor(0), &dim)?;
    reduce(call, operator, &dim, call.bool(2), None)
}

fn argmax(call: &Call<'_>) -> Result<Tensors> {
    let x = call.tensor(0);
    let Some(dim) = call.optional_int(1) else {
        let rank = x.rank();
        let flat = x.reshape(&[x.elements()])?;
        check_not_empty(&flat, &[0])?;
        let result = run(call, built_in!("thalweg::argmax")?, &flat, &SmallVec::from_slice(&[0]))?;
        return if call.bool(2) { result.reshape(&vec![1; rank]).map(single) } else { Ok(single(result)) };
    };
    check_not_empty(x, &[dim])?;
    reduce(call, built_in!("thalweg::argmax")?, &[dim], call.bool(2), None)
}

/// An operator along one dimension that keeps the shape.
fn along(call: &Call<'_>, operator: &'static Operator) -> Result<Tensors> {
    let converted = call.optional_dtype(2).map(|dtype| call.tensor(0).to_dtype(dtype)).transpose()?;
    let x = converted.as_ref().unwrap_or_else(|| call.tensor(0));
    let dimension = dimensions(x, &[call.int(1)])?;
    if dimension.is_empty() {
        return run(call, operator, &x.unsqueeze(0)?, &SmallVec::from_slice(&[0]))?.squeeze(0).map(single);
    }
    run(call, operator, x, &dimension).map(single)
}
