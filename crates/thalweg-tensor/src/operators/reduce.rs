//! Reductions over dimensions, and operators that divide by one: sums, means, extrema, softmax.

use smallvec::SmallVec;
use thalweg_ir::{DType, Scalar, Shape};
use thalweg_kernels::extremum_columns::ExtremumColumns;
use thalweg_kernels::extremum_place::ExtremumPlace;
use thalweg_ops::default_dtype;
use thalweg_ops::structured;
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::Body::{Composite, Differentiable};
use super::view::wrap;
use super::{complex, operators, single};
use crate::autograd::formula::Formula;
use crate::autograd::{is_grad_enabled, no_grad};
use crate::dispatch::{Arguments, BuiltIn, Call, Ints, built_in};
use crate::dtype_name::named;
use crate::kernels::reductions::PRODUCT;
use crate::loops::{self, LoopArguments, LoopCall, Points};
use crate::tensor::{Tensor, Tensors};
use crate::warning::warn;

operators! {
    /// Returns the sum over dimensions, all of them if the list is empty. Integers and truth values are summed in i64.
    "sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"
        fn sum(dim: ints, keepdim: bool) = Composite(|call| {
            sum(call, &dims(call, 1), call.bool(2), call.optional_dtype(3))
        }), out_form: "sum.IntList_out", out: [GivesDType], autocast: Full;
    /// Returns the sum of all elements.
    "sum(Tensor self, *, ScalarType? dtype=None) -> Tensor"
        = Composite(|call| sum(call, &[], false, call.optional_dtype(1))), out: [GivesDType], autocast: Full;
    /// Returns the mean of floats over dimensions, all of them if the list is empty.
    "mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"
        fn mean(dim: ints, keepdim: bool) = Composite(|call| {
            mean(call, &dims(call, 1), call.bool(2), call.optional_dtype(3))
        }), out_form: "mean.out", out: [GivesDType];
    /// Returns the mean of all elements, which must be floats.
    "mean(Tensor self, *, ScalarType? dtype=None) -> Tensor"
        = Composite(|call| mean(call, &[], false, call.optional_dtype(1))), out_form: "mean.dtype_out", out: [GivesDType];
    /// Returns the greatest element over dimensions, all of them if the list is empty; NaN if any is NaN.
    "amax(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor"
        fn amax(dim: ints, keepdim: bool) = Composite(|call| extremum(call, &AMAX)), out: [SameDType];
    /// Returns the smallest element over dimensions, all of them if the list is empty; NaN if any is NaN.
    "amin(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor"
        fn amin(dim: ints, keepdim: bool) = Composite(|call| extremum(call, &AMIN)), out: [SameDType];
    /// Returns the index of the greatest element along a dimension, as i64: the first of equal elements, or of NaNs.
    "argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor"
        fn argmax(dim: int) = Composite(|call| position(call, false)), out: [OfResult];
    /// Returns the index of the smallest element along a dimension, as i64: the first of equal elements, or of NaNs.
    "argmin(Tensor self, int? dim=None, bool keepdim=False) -> Tensor"
        fn argmin(dim: int) = Composite(|call| position(call, true)), out: [OfResult];
    /// Returns the greatest element along a dimension, and its index; the gradient flows to that element.
    "max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"
        fn max_dim(dim: int, keepdim: bool) -> 2 = Differentiable(|call| chosen(call, &MAX_AND_PLACE), &CHOSEN), out_form: "max.dim_max(max, max_values)", out: [OfResult];
    /// Returns the smallest element along a dimension, and its index; the gradient flows to that element.
    "min.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"
        fn min_dim(dim: int, keepdim: bool) -> 2 = Differentiable(|call| chosen(call, &MIN_AND_PLACE), &CHOSEN), out_form: "min.dim_min(min, min_indices)", out: [OfResult];
    /// Returns the greatest of all elements; NaN if any is NaN.
    "max(Tensor self) -> Tensor"
        fn max() = Composite(|call| value_among(call, || extremum_of(call, &AMAX, &[], false))), out_form: "max.unary_out";
    /// Returns the smallest of all elements; NaN if any is NaN.
    "min(Tensor self) -> Tensor"
        fn min() = Composite(|call| value_among(call, || extremum_of(call, &AMIN, &[], false))), out_form: "min.unary_out";
    /// Returns the smallest and the greatest element, along a dimension or of all elements.
    "aminmax(Tensor self, *, int? dim=None, bool keepdim=False) -> (Tensor min, Tensor max)"
        fn aminmax() -> 2
        = Composite(|call| {
            let dim = Ints::from_iter(call.optional_int(1));
            refuse_if!(
                dim.is_empty() && call.tensor(0).elements() == 0,
                "aminmax(): cannot compute aminmax over an empty dimension as the operation has no identity."
            );
            [&AMIN, &AMAX].iter().map(|operator| extremum_of(call, operator, &dim, call.bool(2))).collect()
        }), out: [OfResult];
    /// Returns the product of all elements. Integers and truth values are multiplied in i64.
    "prod(Tensor self, *, ScalarType? dtype=None) -> Tensor"
        fn prod() = Composite(|call| prod(call, &[], false, call.optional_dtype(1))), out: [GivesDType], autocast: Full;
    /// Returns the product over a dimension. Integers and truth values are multiplied in i64.
    "prod.dim_int(Tensor self, int dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"
        fn prod_dim(dim: int, keepdim: bool) = Composite(|call| {
            prod(call, &[call.int(1)], call.bool(2), call.optional_dtype(3))
        }), out_form: "prod.int_out", out: [GivesDType], autocast: Full;
    /// Returns the second tensor, a value of some elements of the first, which share its gradient evenly; NaN counts as equal to
    /// NaN.
    "thalweg::value_among(Tensor self, Tensor value) -> Tensor"
        = Differentiable(|call| {
            let (x, value) = (call.tensor(0), call.tensor(1));
            match value.rank() == 0 && value.dtype() == x.dtype() && !x.dtype().is_complex() {
                true => Ok(single(value.detach())),
                false => Err(invalid!("the value is one of the tensor's, without dimensions")),
            }
        }, &VALUE_AMONG);
    /// Returns the product over dimensions.
    "thalweg::prod(Tensor self, int[] dim) -> Tensor"
        = Differentiable(|call| loops::run(&LoopCall::of(&structured::PROD, call)?, call.resolved), &PRODUCT),
        autocast: Full,
        complex: Parts(complex::products);
    /// Returns whether any element is not 0.
    "any(Tensor self) -> Tensor"
        fn any() = Composite(|call| truth(call, &ANY, None, false)), out_form: "any.all_out", out: [Truth];
    /// Returns whether any element along a dimension is not 0.
    "any.dim(Tensor self, int dim, bool keepdim=False) -> Tensor"
        fn any_dim(dim: int, keepdim: bool) = Composite(|call| truth(call, &ANY, Some(&[call.int(1)]), call.bool(2))), out_form: "any.out", out: [Truth];
    /// Returns whether any element over dimensions is not 0.
    "any.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor"
        fn any_dims(dim: optional_ints, keepdim: bool)
        = Composite(|call| truth(call, &ANY, call.optional_ints(1).as_deref(), call.bool(2)));
    /// Returns whether no element is 0.
    "all(Tensor self) -> Tensor"
        fn all() = Composite(|call| truth(call, &ALL, None, false)), out_form: "all.all_out", out: [Truth];
    /// Returns whether no element along a dimension is 0.
    "all.dim(Tensor self, int dim, bool keepdim=False) -> Tensor"
        fn all_dim(dim: int, keepdim: bool) = Composite(|call| truth(call, &ALL, Some(&[call.int(1)]), call.bool(2))), out_form: "all.out", out: [Truth];
    /// Returns whether no element over dimensions is 0.
    "all.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor"
        fn all_dims(dim: optional_ints, keepdim: bool)
        = Composite(|call| truth(call, &ALL, call.optional_ints(1).as_deref(), call.bool(2)));
    /// Returns how many elements along a dimension are not 0, or of all without a dimension.
    "count_nonzero(Tensor self, int? dim=None) -> Tensor"
        = Composite(|call| reduce(call, &COUNT_NONZERO, &Ints::from_iter(call.optional_int(1)), false, None));
    /// Returns how many elements over dimensions are not 0, or of all if the list is empty.
    "count_nonzero.dim_IntList(Tensor self, int[] dim) -> Tensor"
        fn count_nonzero(dim: ints) = Composite(|call| reduce(call, &COUNT_NONZERO, &call.ints(1), false, None));
    /// Returns the sum of the elements that are not NaN over dimensions, all of them if the list is empty.
    "nansum(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"
        fn nansum(dim: ints, keepdim: bool) = Composite(|call| {
            reduce(call, &NANSUM, &dims(call, 1), call.bool(2), call.optional_dtype(3))
        }), out: [GivesDType];
    /// Returns the mean of the elements that are not NaN over dimensions, all of them if the list is empty.
    "nanmean(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"
        fn nanmean(dim: ints, keepdim: bool) = Composite(nanmean), autocast: Parts;
    /// Returns the variance of all elements, which must be floats, divided by their number minus 1, or by their number if not
    /// `unbiased`.
    "var(Tensor self, bool unbiased=True) -> Tensor"
        = Composite(|call| deviation(call, Spread::Variance, &[], bessel(call.bool(1)), false)), autocast: Parts;
    /// Returns the variance of floats over dimensions.
    "var.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> Tensor"
        = Composite(|call| deviation(call, Spread::Variance, &dims(call, 1), bessel(call.bool(2)), call.bool(3))), out_form: "var.out", autocast: Parts;
    /// Returns the variance of floats over dimensions: the sum of squares is divided by their number minus the correction.
    "var.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor"
        fn var(dim: ints, correction: scalar, keepdim: bool)
        = Composite(|call| deviation(call, Spread::Variance, &dims(call, 1), correction(call), call.bool(3)));
    /// Returns the standard deviation of all elements, which must be floats.
    "std(Tensor self, bool unbiased=True) -> Tensor"
        = Composite(|call| deviation(call, Spread::StandardDeviation, &[], bessel(call.bool(1)), false)), autocast: Parts;
    /// Returns the standard deviation of floats over dimensions.
    "std.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> Tensor"
        = Composite(|call| deviation(call, Spread::StandardDeviation, &dims(call, 1), bessel(call.bool(2)), call.bool(3))), out_form: "std.out", autocast: Parts;
    /// Returns the standard deviation of floats over dimensions: the root of `var`, with a gradient of 0 where it is 0.
    "std.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor"
        fn std(dim: ints, correction: scalar, keepdim: bool)
        = Composite(|call| deviation(call, Spread::StandardDeviation, &dims(call, 1), correction(call), call.bool(3)));
    /// Returns the variance and the mean of floats over dimensions.
    "var_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor, Tensor)"
        fn var_mean(dim: ints, correction: scalar, keepdim: bool) -> 2
        = Composite(|call| deviation(call, Spread::VarianceAndMean, &dims(call, 1), correction(call), call.bool(3)));
    /// Returns the standard deviation and the mean of floats over dimensions.
    "std_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor, Tensor)"
        fn std_mean(dim: optional_ints) -> 2
        = Composite(|call| {
            let mut both = deviation(call, Spread::StandardDeviation, &dims(call, 1), correction(call), call.bool(3))?;
            both.extend(mean(call, &dims(call, 1), call.bool(3), None)?);
            Ok(both)
        });
    /// Returns (Σ |self|^ord)^(1/ord) of floats over dimensions; for ord 0 the number of elements that are not 0, for ±∞ the
    /// extremum of |self|.
    "linalg_vector_norm(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"
        fn vector_norm(ord: scalar, dim: ints, keepdim: bool) = Composite(|call| {
            norm(call, call.scalar(1).to_f64(), &dims(call, 2), call.bool(3), call.optional_dtype(4))
        }), out: [OfResult], autocast: Full, complex: Parts(complex::of_absolute_values);
    /// Returns the p-norm of floats over dimensions; the default of p is 2.
    "norm.ScalarOpt_dim(Tensor self, Scalar? p, int[1] dim, bool keepdim=False) -> Tensor"
        = Composite(|call| norm(call, exponent(call), &dims(call, 2), call.bool(3), None)), out: [OfResult], autocast: Full, complex: Parts(complex::of_absolute_values);
    /// Returns the p-norm over dimensions, in a dtype.
    "norm.ScalarOpt_dim_dtype(Tensor self, Scalar? p, int[1] dim, bool keepdim, *, ScalarType dtype) -> Tensor"
        = Composite(|call| norm(call, exponent(call), &dims(call, 2), call.bool(3), Some(call.dtype(4)))), autocast: Full;
    /// Returns the p-norm of all elements, which must be floats.
    "norm.Scalar(Tensor self, Scalar p=2) -> Tensor"
        fn norm(p: scalar) = Composite(|call| norm(call, exponent(call), &[], false, None)), autocast: Full, complex: Parts(complex::of_absolute_values);
    /// Returns ln Σ eˣ over dimensions, without overflow.
    "logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor"
        fn logsumexp(dim: ints, keepdim: bool) = Composite(|call| {
            let x = call.tensor(0);
            if x.dtype().is_complex() {
                return logarithm_of_complex_sum(x, &call.ints(1), call.bool(2)).map(single);
            }
            let dtype = (!x.dtype().is_floating_point()).then(default_dtype);
            reduce(call, &LOGSUMEXP, &call.ints(1), call.bool(2), dtype)
        }), autocast: Full, complex: Parts(complex::logarithms_of_sums);
    /// Returns eˣ divided by its sum along a dimension; with `half_to_float` in f32 for 16-bit floats.
    "_softmax(Tensor self, int dim, bool half_to_float) -> Tensor"
        = Composite(|call| along(call, &SOFTMAX, half_to_float(call)?));
    /// Returns the logarithm of softmax along a dimension; with `half_to_float` in f32 for 16-bit floats.
    "_log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor"
        = Composite(|call| along(call, &LOG_SOFTMAX, half_to_float(call)?));
    /// Returns eˣ divided by its sum along a dimension, for floats.
    "softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor"
        fn softmax(dim: int) = Composite(|call| along(call, &SOFTMAX, call.optional_dtype(2))), out: [OfResult], autocast: Full;
    /// Returns the logarithm of softmax along a dimension, for floats.
    "log_softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor"
        fn log_softmax(dim: int) = Composite(|call| along(call, &LOG_SOFTMAX, call.optional_dtype(2))), out: [OfResult], autocast: Full;
}

// The parts that these operators call.
static SUM: BuiltIn = BuiltIn::new("thalweg::sum");
static WIDE_SUM: BuiltIn = BuiltIn::new("thalweg::wide_sum");
static MEAN: BuiltIn = BuiltIn::new("thalweg::mean");
static AMAX: BuiltIn = BuiltIn::new("thalweg::amax");
static AMIN: BuiltIn = BuiltIn::new("thalweg::amin");
static ARGMAX: BuiltIn = BuiltIn::new("thalweg::argmax");
static ARGMIN: BuiltIn = BuiltIn::new("thalweg::argmin");
static MAX_AND_PLACE: BuiltIn = BuiltIn::new("thalweg::max_and_place");
static MIN_AND_PLACE: BuiltIn = BuiltIn::new("thalweg::min_and_place");
static PROD: BuiltIn = BuiltIn::new("thalweg::prod");
static NANSUM: BuiltIn = BuiltIn::new("thalweg::nansum");
static ANY: BuiltIn = BuiltIn::new("thalweg::any");
static ALL: BuiltIn = BuiltIn::new("thalweg::all");
static COUNT_NONZERO: BuiltIn = BuiltIn::new("thalweg::count_nonzero");
static VAR: BuiltIn = BuiltIn::new("thalweg::var");
static VAR_MEAN: BuiltIn = BuiltIn::new("thalweg::var_mean");
static STD: BuiltIn = BuiltIn::new("thalweg::std");
static LOGSUMEXP: BuiltIn = BuiltIn::new("thalweg::logsumexp");
static NORM_1: BuiltIn = BuiltIn::new("thalweg::norm_1");
static NORM_2: BuiltIn = BuiltIn::new("thalweg::norm_2");
static NORM_P: BuiltIn = BuiltIn::new("thalweg::norm_p");
static SOFTMAX: BuiltIn = BuiltIn::new("thalweg::softmax");
static LOG_SOFTMAX: BuiltIn = BuiltIn::new("thalweg::log_softmax");

/// The maximum number of dimensions of a tensor that is reduced, as in PyTorch.
const MOST_DIMENSIONS: usize = 64;

fn check_rank(x: &Tensor) -> Result<()> {
    refuse_if!(x.rank() > MOST_DIMENSIONS, "only tensors with up to {MOST_DIMENSIONS} dims are supported");
    Ok(())
}

/// Returns dimensions sorted, negative ones counted from the end; an empty list is all of them.
pub(super) fn dimensions(x: &Tensor, list: &[i64]) -> Result<Shape> {
    check_rank(x)?;
    let mut sorted = Shape::new();
    if list.is_empty() {
        (0..x.rank()).for_each(|dimension| sorted.push(dimension));
    } else if !(x.rank() == 0 && matches!(list, [0 | -1])) {
        // As in PyTorch, the first and the last dimension are valid for a tensor without dimensions.
        for &dim in list {
            sorted.push(wrap(dim, x.rank())?);
        }
        sorted.sort_unstable();
    }
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(invalid!("dim {} appears multiple times in the list of dims", pair[0])),
        None => Ok(sorted),
    }
}

/// Returns the extents of a contiguous tensor as rows along a dimension: outer, length, inner. A tensor without dimensions is one row
/// of one point.
pub(super) fn rows_along(x: &Tensor, dim: i64) -> Result<[u64; 3]> {
    let (dimension, shape) = (dimensions(x, &[dim])?.first().copied(), x.shape());
    let extents = dimension.map_or([1; 3], |dimension| {
        let count = |extents: &[usize]| extents.iter().product::<usize>();
        [count(&shape[..dimension]), shape[dimension], count(&shape[dimension + 1..])]
    });
    Ok(extents.map(|extent| extent as u64))
}

/// Returns the dimensions of an optional list.
fn dims(call: &Call<'_>, place: usize) -> Ints {
    call.optional_ints(place).unwrap_or_default()
}

/// Reduces the first tensor of a call by an internal operator, whose result has the rows' shape.
fn reduce(
    call: &Call<'_>,
    operator: &BuiltIn,
    dim: &[i64],
    keepdim: bool,
    dtype: Option<DType>,
) -> Result<Tensors> {
    let x = call.tensor(0);
    let converted = dtype.map(|dtype| x.to_dtype(dtype)).transpose()?;
    let mut results = reduce_tensor(call, operator, converted.as_ref().unwrap_or(x), dim, keepdim, &[])?;
    if let Some(dtype) = dtype {
        // Integers are computed in i64; the result has the requested dtype.
        results[0] = results[0].to_dtype(dtype)?;
    }
    Ok(results)
}

/// Returns the sum, in a requested dtype: floats are not rounded to 16 bits if that is the dtype in which they are summed.
fn sum(call: &Call<'_>, dim: &[i64], keepdim: bool, dtype: Option<DType>) -> Result<Tensors> {
    let x = call.tensor(0);
    let is_widened = matches!(x.dtype(), DType::F16 | DType::Bf16) && dtype == Some(x.dtype().compute());
    match is_widened {
        true => reduce(call, &WIDE_SUM, dim, keepdim, None),
        false => reduce(call, &SUM, dim, keepdim, dtype),
    }
}

/// Returns ln Σ eᶻ of complex numbers. The shift by the greatest real part changes no result, so no gradient flows through it.
fn logarithm_of_complex_sum(z: &Tensor, dim: &[i64], keepdim: bool) -> Result<Tensor> {
    if z.elements() == 0 {
        return z.sum(dim, keepdim)?.log();
    }
    let shift = z.detach().real()?.amax(dim, true)?;
    let shift = shift.isfinite()?.select_where(&shift, &shift.zeros_like()?)?;
    let sum = z.sub(&shift)?.exp()?.sum(dim, keepdim)?.log()?;
    let shift = if keepdim { shift } else { shift.reshape(sum.shape())? };
    sum.add(&shift)
}

/// Returns the mean of floats or complex numbers, in a requested dtype.
fn mean(call: &Call<'_>, dim: &[i64], keepdim: bool, dtype: Option<DType>) -> Result<Tensors> {
    let x = call.tensor(0);
    refuse_if!(
        !dtype.unwrap_or(x.dtype()).is_differentiable(),
        "mean(): could not infer output dtype. {} dtype must be either a floating point or complex dtype. Got: {}",
        if dtype.is_some() { "Optional" } else { "Input" },
        named(dtype.unwrap_or(x.dtype()))
    );
    let converted = dtype.map(|dtype| x.to_dtype(dtype)).transpose()?;
    let count = count_of(x, &dimensions(x, dim)?);
    reduce_tensor(call, &MEAN, converted.as_ref().unwrap_or(x), dim, keepdim, &[count])
}

/// Returns the product, in a requested dtype.
fn prod(call: &Call<'_>, dim: &[i64], keepdim: bool, dtype: Option<DType>) -> Result<Tensors> {
    reduce(call, &PROD, dim, keepdim, dtype)
}

/// Reduces a tensor on behalf of a call, by an operator that takes numbers.
fn reduce_tensor(
    call: &Call<'_>,
    operator: &BuiltIn,
    x: &Tensor,
    dim: &[i64],
    keepdim: bool,
    numbers: &[f64],
) -> Result<Tensors> {
    let reduced = dimensions(x, dim)?;
    if reduced.is_empty() {
        // A scalar has no dimension to reduce over, so one is added.
        return run(call, operator, &x.unsqueeze(0)?, &SmallVec::from_slice(&[0]), numbers);
    }
    let results = run(call, operator, x, &reduced, numbers)?;
    if !keepdim {
        return Ok(results);
    }
    let kept: Shape = (x.shape().iter().enumerate())
        .map(|(dimension, &extent)| if reduced.contains(&dimension) { 1 } else { extent })
        .collect();
    results.into_iter().map(|result| result.reshape(&kept)).collect()
}

/// Calls an internal operator.
fn run(call: &Call<'_>, operator: &BuiltIn, x: &Tensor, reduced: &Shape, numbers: &[f64]) -> Result<Tensors> {
    let scalars = numbers.iter().map(|&number| Scalar::F64(number)).collect();
    let arguments =
        LoopArguments { scalars, points: Points::Reduced(reduced.clone()), ..LoopArguments::default() };
    operator.get()?.call_loop(&[x], &arguments, None, call.label)
}

/// Returns the number of elements that are reduced to one.
fn count_of(x: &Tensor, reduced: &Shape) -> f64 {
    reduced.iter().map(|&dimension| x.shape()[dimension] as f64).product()
}

/// Refuses a reduction that has no elements to choose from.
fn check_not_empty(call: &Call<'_>, x: &Tensor, dim: &[i64]) -> Result<()> {
    let (name, reduced) = (call.operator.base_name(), dimensions(x, dim)?);
    if dim.is_empty() && x.elements() == 0 {
        return Err(no_identity(call, Error::index));
    }
    match reduced.iter().find(|&&dimension| x.shape()[dimension] == 0) {
        Some(dimension) => {
            Err(Error::index(format!("{name}(): Expected reduction dim {dimension} to have non-zero size.")))
        }
        None => Ok(()),
    }
}

/// Returns the error of a reduction of no elements, of a class that the caller chooses.
fn no_identity(call: &Call<'_>, of: fn(String) -> Error) -> Error {
    of(format!(
        "{}(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the 'dim' argument.",
        call.operator.base_name()
    ))
}

fn extremum(call: &Call<'_>, operator: &BuiltIn) -> Result<Tensors> {
    extremum_of(call, operator, &call.ints(1), call.bool(2)).map(single)
}

/// Returns the greatest or smallest element over dimensions, also for truth values.
fn extremum_of(call: &Call<'_>, operator: &BuiltIn, dim: &[i64], keepdim: bool) -> Result<Tensor> {
    let x = call.tensor(0);
    check_rank(x)?;
    if dim.is_empty() && x.elements() == 0 {
        return Err(no_identity(call, Error::invalid));
    }
    check_not_empty(call, x, dim)?;
    let is_bool = x.dtype() == DType::Bool;
    let dtype = is_bool.then_some(DType::U8);
    let result = reduce(call, operator, dim, keepdim, dtype)?.swap_remove(0);
    if is_bool { result.to_dtype(DType::Bool) } else { Ok(result) }
}

/// Returns the index of the smallest or greatest element, of all or along a dimension.
fn position(call: &Call<'_>, smallest: bool) -> Result<Tensors> {
    let (x, operator) = (call.tensor(0), if smallest { &ARGMIN } else { &ARGMAX });
    if x.dtype() == DType::Bool {
        let name = call.operator.base_name();
        return Err(Error::not_implemented(format!("\"{name}_cuda\" not implemented for 'Bool'")));
    }
    let Some(dim) = call.optional_int(1) else {
        let rank = x.rank();
        check_not_empty(call, x, &[])?;
        let flat = x.reshape(&[x.elements()])?;
        if let Some(result) = place_in_few_rows(call, smallest, &flat)? {
            return result.reshape(&vec![1; if call.bool(2) { rank } else { 0 }]).map(single);
        }
        let result = run(call, operator, &flat, &SmallVec::from_slice(&[0]), &[])?.swap_remove(0);
        return if call.bool(2) { result.reshape(&vec![1; rank]).map(single) } else { Ok(single(result)) };
    };
    check_not_empty(call, x, &[dim])?;
    if dimensions(x, &[dim])?.first() == x.rank().checked_sub(1).as_ref()
        && let Some(result) = place_in_few_rows(call, smallest, x)?
    {
        let mut shape = x.shape()[..x.rank() - 1].to_vec();
        shape.extend(call.bool(2).then_some(1));
        return result.reshape(&shape).map(single);
    }
    if let Some(&along) = dimensions(x, &[dim])?.first()
        && let Some(result) = place_in_columns(call, smallest, x, along)?
    {
        return if call.bool(2) { result.unsqueeze(along as i64).map(single) } else { Ok(single(result)) };
    }
    reduce(call, operator, &[dim], call.bool(2), None)
}

/// Returns the indices of the extrema along a dimension other than the last, without that dimension, if columns are long, many
/// and without gaps.
fn place_in_columns(call: &Call<'_>, smallest: bool, x: &Tensor, along: usize) -> Result<Option<Tensor>> {
    let extent = |dimensions: &[usize]| dimensions.iter().map(|&extent| extent as u64).product::<u64>();
    let (before, after) = (&x.shape()[..along], &x.shape()[along + 1..]);
    let sizes = [extent(before), x.shape()[along] as u64, extent(after)];
    let kernel = ExtremumColumns { sizes, smallest, dtype: x.dtype() };
    if !x.is_contiguous() || !kernel.fits(x.pointer()) {
        return Ok(None);
    }
    let places = call.new_result(&[before, after].concat(), DType::I64)?;
    call.launch(kernel, [x, &places])?;
    Ok(Some(places))
}

/// Returns the index of the extremum along the last dimension, one number per row, if rows are few, long and without gaps.
fn place_in_few_rows(call: &Call<'_>, smallest: bool, x: &Tensor) -> Result<Option<Tensor>> {
    let length = x.shape().last().map_or(0, |&length| length as u64);
    let rows = x.elements() as u64 / length.max(1);
    let kernel = ExtremumPlace { rows, length, smallest, dtype: x.dtype() };
    if !kernel.fits() || !x.is_contiguous() {
        return Ok(None);
    }
    let places = call.new_result(&[rows as usize], DType::I64)?;
    call.launch(kernel, [x, &places])?;
    Ok(Some(places))
}

/// Returns the extremum along a dimension and its index.
fn chosen(call: &Call<'_>, operator: &BuiltIn) -> Result<Tensors> {
    let (x, dim) = (call.tensor(0), [call.int(1)]);
    check_rank(x)?;
    check_not_empty(call, x, &dim)?;
    let is_bool = x.dtype() == DType::Bool;
    let mut both = reduce(call, operator, &dim, call.bool(2), is_bool.then_some(DType::U8))?;
    if is_bool {
        both[0] = both[0].to_dtype(DType::Bool)?;
    }
    Ok(both)
}

/// The gradient of `value_among`, divided among the elements that equal the value.
static VALUE_AMONG: Formula = Formula {
    inputs: &[0],
    outputs: &[0],
    backward: |call| {
        call.one(0, || {
            let (x, value, gradient) = (call.saved(0)?, call.result(0)?, call.gradient()?);
            let is_it = x.eq(&value)?.logical_or(&x.isnan()?.logical_and(&value.isnan()?)?)?;
            let count = is_it.sum(&[], false)?.to_dtype(gradient.dtype().compute())?;
            let part = gradient.to_dtype(count.dtype())?.div(&count)?.to_dtype(gradient.dtype())?;
            is_it.select_where(&part, &Tensor::zeros(&[], part.dtype(), part.device())?)
        })
    },
};

/// Returns a value that occurs among some elements of the first tensor; these elements share its gradient evenly.
pub(super) fn value_among(call: &Call<'_>, value: impl FnOnce() -> Result<Tensor>) -> Result<Tensors> {
    let x = call.tensor(0);
    if !is_grad_enabled() || !x.requires_grad() {
        return value().map(single);
    }
    let value = no_grad(value)?;
    built_in!("thalweg::value_among")?.call(&[x.into(), (&value).into()], None, call.label)
}

static CHOSEN: Formula = Formula {
    inputs: &[],
    outputs: &[1],
    backward: |call| {
        call.one(0, || {
            let (gradient, place) = (call.gradient()?, call.result(1)?);
            at_place(&gradient, &place, call.shape(0), call.int(1), call.bool(2))
        })
    },
};

/// Returns a tensor of this shape that is a gradient at one index along a dimension, and 0 elsewhere.
pub(super) fn at_place(
    gradient: &Tensor,
    place: &Tensor,
    shape: &[usize],
    dim: i64,
    keepdim: bool,
) -> Result<Tensor> {
    if shape.is_empty() {
        return Ok(gradient.clone());
    }
    let along = if dim < 0 { dim + shape.len() as i64 } else { dim };
    let kept = |tensor: &Tensor| if keepdim { Ok(tensor.clone()) } else { tensor.unsqueeze(along) };
    let mut extents: Shape = SmallVec::from_elem(1, shape.len());
    extents[along as usize] = shape[along as usize];
    let places =
        Tensor::arange(shape[along as usize], 0, 1, DType::I64, gradient.device())?.reshape(&extents)?;
    let zero = Tensor::zeros(&[], gradient.dtype(), gradient.device())?;
    places.eq(&kept(place)?)?.select_where(&kept(gradient)?, &zero)
}

/// Returns whether any element is not 0, or whether all are not. For bytes the result is a byte, as in PyTorch; an empty list
/// reduces nothing.
fn truth(call: &Call<'_>, operator: &BuiltIn, dim: Option<&[i64]>, keepdim: bool) -> Result<Tensors> {
    let x = call.tensor(0);
    let result = match dim {
        Some([]) if x.dtype() == DType::Bool => x.copied(call.label.location)?,
        Some([]) => x.to_dtype(DType::Bool)?,
        _ => reduce(call, operator, dim.unwrap_or_default(), keepdim, None)?.swap_remove(0),
    };
    if x.dtype() == DType::U8 { result.to_dtype(DType::U8).map(single) } else { Ok(single(result)) }
}

/// Returns Bessel's correction: 1 for an unbiased variance, which divides by the number of elements minus 1.
fn bessel(is_unbiased: bool) -> f64 {
    if is_unbiased { 1.0 } else { 0.0 }
}

fn correction(call: &Call<'_>) -> f64 {
    call.optional_scalar(2).map_or(1.0, |number| number.to_f64())
}

/// A measure of how far numbers are spread.
#[derive(Clone, Copy)]
enum Spread {
    Variance,
    VarianceAndMean,
    StandardDeviation,
}

/// Returns a variance, a standard deviation, or a variance with the mean.
fn deviation(
    call: &Call<'_>,
    spread: Spread,
    dim: &[i64],
    correction: f64,
    keepdim: bool,
) -> Result<Tensors> {
    let x = call.tensor(0);
    refuse_if!(!x.dtype().is_differentiable(), "std and var only support floating point and complex dtypes");
    let reduced = dimensions(x, dim)?;
    let count: f64 = count_of(x, &reduced);
    let has_results = x.shape().iter().enumerate().all(|(dim, &extent)| extent > 0 || reduced.contains(&dim));
    if correction >= if has_results { count } else { 0.0 } {
        warn(&format!(
            "{}(): degrees of freedom is <= 0. Correction should be strictly less than the reduction factor (input numel divided by output \
             numel).",
            call.operator.base_name()
        ));
    }
    let numbers = [count, (count - correction).max(0.0)];
    if !x.dtype().is_complex() {
        let operator = match spread {
            Spread::Variance => &VAR,
            Spread::VarianceAndMean => &VAR_MEAN,
            Spread::StandardDeviation => &STD,
        };
        return reduce_tensor(call, operator, x, dim, keepdim, &numbers);
    }
    // The variance of complex numbers is the sum of those of their real parts and their imaginary parts.
    let whole = if x.rank() == 0 { x.unsqueeze(0)? } else { x.clone() };
    let reduced: Ints = dimensions(&whole, dim)?.iter().map(|&dimension| dimension as i64).collect();
    let parts = whole.view_as_real()?;
    let variance = reduce_tensor(call, &VAR, &parts, &reduced, keepdim && x.rank() > 0, &numbers)?;
    let variance = variance[0].sum(&[-1], false)?;
    match spread {
        Spread::Variance => Ok(single(variance)),
        Spread::VarianceAndMean => Ok(Tensors::from_iter([variance, x.mean(dim, keepdim)?])),
        Spread::StandardDeviation => {
            // The gradient for equal numbers is 0, not that of the root at 0.
            let is_zero = variance.detach().eq_scalar(0)?;
            let positive = is_zero.select_where(&variance.ones_like()?, &variance)?.sqrt()?;
            is_zero.select_where(&variance.zeros_like()?, &positive).map(single)
        }
    }
}

fn nanmean(call: &Call<'_>) -> Result<Tensors> {
    let x = call.tensor(0);
    if !x.dtype().is_floating_point() {
        refuse!("nanmean(): expected input to have floating point or complex dtype");
    }
    let (dim, keepdim, dtype) = (dims(call, 1), call.bool(2), call.optional_dtype(3));
    let sum = reduce(call, &NANSUM, &dim, keepdim, dtype)?.swap_remove(0);
    let counted = x.eq(x)?;
    let count = reduce_tensor(call, &SUM, &counted, &dim, keepdim, &[])?.swap_remove(0);
    sum.div(&count.to_dtype(sum.dtype())?).map(single)
}

/// Returns the exponent of a norm; 2 by default.
fn exponent(call: &Call<'_>) -> f64 {
    call.optional_scalar(1).map_or(2.0, |number| number.to_f64())
}

fn norm(call: &Call<'_>, exponent: f64, dim: &[i64], keepdim: bool, dtype: Option<DType>) -> Result<Tensors> {
    let x = call.tensor(0);
    let wanted = dtype.map_or(x.dtype(), DType::real);
    refuse_if!(
        !x.dtype().is_floating_point() || !wanted.is_floating_point(),
        "linalg.vector_norm: Expected a floating point or complex tensor as input. Got {}",
        if x.dtype().is_floating_point() { wanted } else { x.dtype() }
    );
    let converted = x.to_dtype(wanted)?;
    let reduced = |operator: &BuiltIn, x: &Tensor, numbers: &[f64]| {
        reduce_tensor(call, operator, x, dim, keepdim, numbers)
    };
    if exponent < 0.0 || exponent == f64::INFINITY {
        let empty = dimensions(x, dim)?.iter().any(|&dimension| x.shape()[dimension] == 0);
        refuse_if!(
            empty,
            "linalg.vector_norm cannot compute the {exponent} norm on an empty tensor because the operation does not have an \
             identity"
        );
    }
    match exponent {
        f64::INFINITY => reduced(&AMAX, &converted.abs()?, &[]),
        f64::NEG_INFINITY => reduced(&AMIN, &converted.abs()?, &[]),
        0.0 => {
            let count = reduced(&COUNT_NONZERO, &converted, &[])?.swap_remove(0);
            // A constant through which a gradient of 0 flows.
            let zero = reduced(&SUM, &converted.mul_scalar(0.0)?, &[])?.swap_remove(0);
            let count = count.to_dtype(wanted)?;
            if x.requires_grad() { count.add(&zero).map(single) } else { Ok(single(count)) }
        }
        1.0 => reduced(&NORM_1, &converted, &[]),
        2.0 => reduced(&NORM_2, &converted, &[]),
        _ => reduced(&NORM_P, &converted, &[exponent, 1.0 / exponent]),
    }
}

/// Returns the dtype of a softmax whose `half_to_float` requests f32 from 16-bit floats.
fn half_to_float(call: &Call<'_>) -> Result<Option<DType>> {
    match (call.bool(2), call.tensor(0).dtype()) {
        (false, _) => Ok(None),
        (true, DType::F16 | DType::Bf16) => Ok(Some(DType::F32)),
        (true, _) => Err(invalid!("conversion is supported for Half type only")),
    }
}

/// Applies an operator that keeps the shape along one dimension.
fn along(call: &Call<'_>, operator: &BuiltIn, dtype: Option<DType>) -> Result<Tensors> {
    let converted = dtype.map(|dtype| call.tensor(0).to_dtype(dtype)).transpose()?;
    let x = converted.as_ref().unwrap_or_else(|| call.tensor(0));
    let dimension = dimensions(x, &[call.int(1)])?;
    if dimension.is_empty() {
        let result = run(call, operator, &x.unsqueeze(0)?, &SmallVec::from_slice(&[0]), &[])?;
        return result[0].squeeze(0).map(single);
    }
    if is_of_few_columns(x, dimension[0]) {
        return run(call, operator, &x.contiguous()?, &dimension, &[]);
    }
    run(call, operator, x, &dimension, &[])
}

/// The number of columns from which on blocks of neighbouring columns fill a GPU, and the points of a column from which on a copy
/// in rows pays.
const MANY_COLUMNS: usize = 1024;
const LONG_COLUMN: usize = 1024;

/// Returns whether a tensor's last dimension is one of few long columns in memory: as rows, they have more blocks.
fn is_of_few_columns(x: &Tensor, dimension: usize) -> bool {
    let points = x.shape()[dimension];
    dimension + 1 == x.rank()
        && points >= LONG_COLUMN
        && x.layout().strides()[dimension] > 1
        && x.elements() / points < MANY_COLUMNS
}
