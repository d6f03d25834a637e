//! Means with variances or deviations, covariance, quantiles, and modes.

use thalweg_ir::{DType, Scalar, Shape};
use thalweg_ops::default_dtype;
use thalweg_runtime::{Error, Result, refuse, refuse_if};

use super::Body::Composite;
use super::complex::{of_parts, parts};
use super::reduce::value_among;
use super::view::wrap;
use super::{call_all, operators, single};
use crate::autocast::dtype_in_lower;
use crate::dispatch::{Argument, Arguments, Call, built_in};
use crate::tensor::{Tensor, Tensors};
use crate::warning::warn;

operators! {
    /// Returns the variance and the mean of all elements.
    "var_mean(Tensor self, bool unbiased=True) -> (Tensor, Tensor)"
        = Composite(|call| spread(call, built_in!("var_mean.correction")?, Argument::None, call.bool(1), false)), autocast: Parts;
    /// Returns the variance and the mean over dimensions.
    "var_mean.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> (Tensor, Tensor)"
        = Composite(|call| {
            spread(call, built_in!("var_mean.correction")?, call.argument(1), call.bool(2), call.bool(3))
        }), autocast: Parts;
    /// Returns the standard deviation and the mean of all elements.
    "std_mean(Tensor self, bool unbiased=True) -> (Tensor, Tensor)"
        = Composite(|call| spread(call, built_in!("std_mean.correction")?, Argument::None, call.bool(1), false)), autocast: Parts;
    /// Returns the standard deviation and the mean over dimensions.
    "std_mean.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> (Tensor, Tensor)"
        = Composite(|call| {
            spread(call, built_in!("std_mean.correction")?, call.argument(1), call.bool(2), call.bool(3))
        }), autocast: Parts;
    /// Returns the covariance of the rows' variables over the columns' observations, with the repetitions `fweights` and the
    /// weights `aweights`.
    "cov(Tensor self, *, int correction=1, Tensor? fweights=None, Tensor? aweights=None) -> Tensor"
        fn cov()
        = Composite(|call| {
            let weights = [call.optional_tensor(2), call.optional_tensor(3)];
            cov(call.tensor(0), call.int(1) as f64, weights).map(single)
        }), autocast: Parts;
    /// Returns Pearson's correlation of the rows' variables.
    "corrcoef(Tensor self) -> Tensor" fn corrcoef() = Composite(|call| corrcoef(call.tensor(0)).map(single)), autocast: Parts;
    /// Returns the quantiles along a dimension, or of all elements; NaN if any is NaN.
    "quantile(Tensor self, Tensor q, int? dim=None, bool keepdim=False, *, str interpolation='linear') -> Tensor"
        fn quantile(q: tensor, dim: optional_int, keepdim: bool)
        = Composite(|call| quantile(call, call.tensor(1), false).map(single)), out: [OfResult], autocast: Parts;
    /// Returns a quantile along a dimension, or of all elements; NaN if any is NaN.
    "quantile.scalar(Tensor self, float q, int? dim=None, bool keepdim=False, *, str interpolation='linear') -> Tensor"
        fn quantile_scalar(q: float, dim: optional_int, keepdim: bool)
        = Composite(|call| quantile(call, &fraction(call)?, false).map(single)), out: [OfResult], autocast: Parts;
    /// Returns the quantiles of the elements that are not NaN, along a dimension or of all.
    "nanquantile(Tensor self, Tensor q, int? dim=None, bool keepdim=False, *, str interpolation='linear') -> Tensor"
        fn nanquantile(q: tensor, dim: optional_int, keepdim: bool)
        = Composite(|call| quantile(call, call.tensor(1), true).map(single)), out: [OfResult], autocast: Parts;
    /// Returns a quantile of the elements that are not NaN, along a dimension or of all.
    "nanquantile.scalar(Tensor self, float q, int? dim=None, bool keepdim=False, *, str interpolation='linear') -> Tensor"
        fn nanquantile_scalar(q: float, dim: optional_int, keepdim: bool)
        = Composite(|call| quantile(call, &fraction(call)?, true).map(single)), out: [OfResult], autocast: Parts;
    /// Returns the median of all elements that are not NaN: the lower one of two.
    "nanmedian(Tensor self) -> Tensor" fn nanmedian() = Composite(|call| {
        let x = call.tensor(0);
        let flat = x.reshape(&[x.elements()])?;
        if flat.elements() == 0 {
            let nothing = if x.dtype().is_floating_point() { f64::NAN } else { 0.0 };
            return Tensor::full(&[], nothing, x.dtype(), x.device()).map(single);
        }
        value_among(call, || nanmedian(&flat, 0, false).map(|mut results| results.swap_remove(0)))
    });
    /// Returns the median of the elements that are not NaN along a dimension, and its index.
    "nanmedian.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)"
        fn nanmedian_dim(dim: int, keepdim: bool) -> 2
        = Composite(|call| nanmedian(call.tensor(0), call.int(1), call.bool(2))), out: [OfResult];
    /// Returns the most frequent value along a dimension, the least of several, and an index of it.
    "mode(Tensor self, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)"
        fn mode(dim: int, keepdim: bool) -> 2 = Composite(mode), out: [OfResult];
}

/// Calls an operator that takes a correction, on behalf of one that takes `unbiased`.
fn spread(
    call: &Call<'_>,
    operator: &'static crate::dispatch::Operator,
    dim: Argument<'_>,
    is_unbiased: bool,
    keepdim: bool,
) -> Result<Tensors> {
    let correction = Argument::Scalar(Scalar::I64(i64::from(is_unbiased)));
    operator.call(&[call.tensor(0).into(), dim, correction, keepdim.into()], None, call.label)
}

/// Refuses weights of observations that do not fit them.
fn check_weights(count: usize, [frequencies, weights]: [Option<&Tensor>; 2]) -> Result<()> {
    for (name, list, is_integer) in [("fweights", frequencies, true), ("aweights", weights, false)] {
        let Some(list) = list else { continue };
        refuse_if!(
            list.rank() > 1,
            "cov(): expected {name} to have one or fewer dimensions but got {name} with {} dimensions",
            list.rank()
        );
        if list.dtype().is_floating_point() == is_integer || list.dtype() == DType::Bool {
            let wanted = if is_integer { "integral" } else { "floating point" };
            refuse!(
                "cov(): expected {name} to have {wanted} dtype but got {name} with {} dtype",
                list.dtype()
            );
        }
        refuse_if!(
            list.elements() != count,
            "cov(): expected {name} to have the same numel as there are observations in the input but got {} != {count}",
            list.elements()
        );
    }
    for (name, list) in [("fweights", frequencies), ("aweights", weights)] {
        if let Some(list) = list
            && list.detach().lt_scalar(0)?.any()?.to_dtype(DType::U8)?.item::<u8>()? != 0
        {
            refuse!("cov(): {name} cannot be negative");
        }
    }
    Ok(())
}

fn cov(x: &Tensor, correction: f64, [frequencies, weights]: [Option<&Tensor>; 2]) -> Result<Tensor> {
    refuse_if!(
        x.rank() > 2,
        "cov(): expected input to have two or fewer dimensions but got an input with {} dimensions",
        x.rank()
    );
    refuse_if!(x.dtype() == DType::Bool, "cov(): bool dtype is not supported for input");
    let rows = if x.rank() < 2 { x.reshape(&[1, x.elements()])? } else { x.clone() };
    let count = rows.shape()[1];
    check_weights(count, [frequencies, weights])?;
    // Sums of 16-bit floats are kept in f32, and only the result is rounded.
    let narrow = if x.dtype().is_differentiable() { x.dtype() } else { default_dtype() };
    let dtype = narrow.compute();
    let result = match weights {
        Some(weights) => {
            narrow.promote(weights.dtype()).map_err(|error| Error::invalid(error.to_string()))?
        }
        None => narrow,
    };
    let rows = rows.to_dtype(dtype)?;
    let as_row = |list: &Tensor| list.reshape(&[count]);
    let all = match (frequencies, weights) {
        (Some(a), Some(b)) => Some(as_row(a)?.mul(&as_row(b)?)?),
        (a, b) => a.or(b).map(as_row).transpose()?,
    };
    let (weighted, norm) = match &all {
        None => {
            if count as f64 <= correction {
                warn(
                    "cov(): degrees of freedom is <= 0. Correction should be strictly less than the number of observations.",
                );
            }
            let norm = Tensor::full(&[], (count as f64 - correction).max(0.0), dtype, x.device())?;
            (rows.sub(&rows.sum(&[1], true)?.div_scalar(count as f64)?)?, norm)
        }
        Some(all) => {
            let total = all.sum(&[], false)?;
            let mean = rows.mul(all)?.sum(&[1], true)?.div(&total)?;
            let taken = match weights {
                Some(weights) => {
                    all.mul(&as_row(weights)?)?.sum(&[], false)?.div(&total)?.mul_scalar(correction)?
                }
                None => Tensor::full(&[], correction, dtype.real(), x.device())?,
            };
            (rows.sub(&mean)?, total.sub(&taken)?.clamp_min(0.0)?)
        }
    };
    let right = match &all {
        Some(all) => weighted.mul(all)?,
        None => weighted.clone(),
    };
    let products = weighted
        .mm(&right.to_dtype(weighted.dtype())?.transpose(0, 1)?.conj()?)?
        .div(&norm.to_dtype(dtype)?)?;
    // In a region of autocast the product of matrices has chosen the dtype.
    let products = if dtype_in_lower(x) == x.dtype() { products.to_dtype(result)? } else { products };
    if products.elements() == 1 { products.reshape(()) } else { Ok(products) }
}

fn corrcoef(x: &Tensor) -> Result<Tensor> {
    refuse_if!(
        x.rank() > 2,
        "corrcoef(): expected input to have two or fewer dimensions but got an input with {} dimensions",
        x.rank()
    );
    let narrow = if x.dtype().is_differentiable() { x.dtype() } else { default_dtype() };
    let c = cov(&x.to_dtype(narrow.compute())?, 1.0, [None, None])?;
    let narrow = if dtype_in_lower(x) == x.dtype() { narrow } else { c.dtype() };
    if c.rank() == 0 {
        return c.div(&c)?.to_dtype(narrow);
    }
    let diagonal = c.diagonal(0, 0, 1)?;
    let deviation = if c.dtype().is_complex() { diagonal.real()? } else { diagonal }.sqrt()?;
    let result = c.div(&deviation.unsqueeze(1)?)?.div(&deviation)?;
    over_parts(&result, |part| part.clamp(-1.0, 1.0))?.to_dtype(narrow)
}

/// Returns the results of a function of real numbers on the real and the imaginary part.
fn over_parts(x: &Tensor, function: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    if !x.dtype().is_complex() {
        return function(x);
    }
    let [re, im] = parts(x)?;
    of_parts(&function(&re)?, &function(&im)?)
}

/// Returns the quantile of a call as a tensor without dimensions.
fn fraction(call: &Call<'_>) -> Result<Tensor> {
    let q = call.float(1);
    refuse_if!(!(0.0..=1.0).contains(&q), "quantile() q must be in the range [0, 1] but got {q}");
    let dtype =
        if call.tensor(0).dtype().is_floating_point() { call.tensor(0).dtype() } else { default_dtype() };
    Tensor::full(&[], q, dtype, call.device)
}

/// The value of a quantile between two elements.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Interpolation {
    Linear,
    Lower,
    Higher,
    Midpoint,
    Nearest,
}

impl Interpolation {
    fn of(interpolation: &str, name: &str) -> Result<Self> {
        Ok(match interpolation {
            "linear" => Self::Linear,
            "lower" => Self::Lower,
            "higher" => Self::Higher,
            "midpoint" => Self::Midpoint,
            "nearest" => Self::Nearest,
            _ => {
                refuse!(
                    "{name} interpolation must be one of linear, lower, higher, midpoint or nearest, but got {interpolation}"
                );
            }
        })
    }
}

fn check_quantile(x: &Tensor, q: &Tensor, name: &str) -> Result<()> {
    refuse_if!(x.elements() == 0, "{name} input tensor must be non-empty");
    if q.rank() > 1 {
        refuse!("{name} q must be a scalar or 1D tensor, but got a tensor with {} dimensions", q.rank());
    }
    if !matches!(x.dtype(), DType::F32 | DType::F64) {
        refuse!("{name} input tensor must be either float or double dtype");
    }
    refuse_if!(x.dtype() != q.dtype(), "{name} q tensor must be same dtype as the input tensor");
    Ok(())
}

fn quantile(call: &Call<'_>, q: &Tensor, skips_nan: bool) -> Result<Tensor> {
    let (x, dim, keepdim) = (call.tensor(0), call.optional_int(2), call.bool(3));
    let name = if skips_nan { "nanquantile()" } else { "quantile()" };
    check_quantile(x, q, name)?;
    let interpolation = Interpolation::of(call.str(4), name)?;
    // The dimension becomes the last and is replaced by the quantiles.
    let kept: Shape = match dim {
        Some(dim) => {
            let dim = wrap(dim, x.rank())?;
            x.shape().iter().enumerate().map(|(at, &extent)| if at == dim { 1 } else { extent }).collect()
        }
        None => Shape::from_elem(1, x.rank()),
    };
    let rows = match dim {
        None => x.reshape(&[x.elements()])?,
        Some(_) if x.rank() == 0 => x.reshape(&[1])?,
        Some(dim) => x.movedim(&[dim], &[-1])?,
    };
    let [sorted, _] = rows.sort(-1, false)?;
    let last = sorted.shape()[sorted.rank() - 1] as f64 - 1.0;
    let list = q.reshape(&[q.elements()])?;
    let ranks = if skips_nan {
        let counts = sorted.eq(&sorted)?.sum(&[-1], true)?.sub_scalar(1)?.to_dtype(q.dtype())?;
        list.mul(&counts)?.clamp_min(0.0)?
    } else {
        let has_nan = sorted.isnan()?.any_dim(-1, true)?;
        let end = Tensor::full(&[], last, q.dtype(), x.device())?;
        has_nan.select_where(&end, &list.mul_scalar(last)?)?
    };
    let ranks = match interpolation {
        Interpolation::Lower => ranks.floor()?,
        Interpolation::Higher => ranks.ceil()?,
        Interpolation::Nearest => ranks.round()?,
        Interpolation::Linear | Interpolation::Midpoint => ranks,
    };
    let below = ranks.detach().to_dtype(DType::I64)?;
    let mut result = sorted.gather(-1, &below)?;
    let weight = match interpolation {
        Interpolation::Linear => Some(ranks.sub(&below.to_dtype(x.dtype())?)?),
        Interpolation::Midpoint => {
            Some(Tensor::full(&[], 0.5, x.dtype(), x.device())?.expand(result.shape())?)
        }
        _ => None,
    };
    if let Some(weight) = weight {
        let above = sorted.gather(-1, &ranks.detach().ceil()?.to_dtype(DType::I64)?)?;
        result = result.lerp_tensor(&above, &weight)?;
    }
    let result = result.movedim(&[-1], &[0])?;
    let mut shape: Shape = q.shape().into();
    if keepdim {
        shape.extend(kept);
    } else {
        shape.extend_from_slice(&result.shape()[1..]);
    }
    // With `keepdim` the rows' dimension keeps its position.
    result.reshape(&shape)
}

/// Returns the elements at indices along a dimension, to which gradients flow, and the indices.
fn at_places(x: &Tensor, places: &Tensor, dim: i64, keepdim: bool) -> Result<Tensors> {
    if x.rank() == 0 {
        let value = x.copied(std::panic::Location::caller())?;
        return Ok(Tensors::from_iter([value, places.reshape(())?]));
    }
    let values = x.gather(dim, places)?;
    match keepdim {
        true => Ok(Tensors::from_iter([values, places.clone()])),
        false => Ok(Tensors::from_iter([values.squeeze(dim)?, places.squeeze(dim)?.contiguous()?])),
    }
}

fn check_row(x: &Tensor, dim: i64, name: &str) -> Result<()> {
    let at = wrap(dim, x.rank())?;
    match x.shape().get(at) {
        Some(0) => {
            Err(Error::index(format!("{name}(): Expected reduction dim {dim} to have non-zero size.")))
        }
        _ => Ok(()),
    }
}

fn nanmedian(x: &Tensor, dim: i64, keepdim: bool) -> Result<Tensors> {
    check_row(x, dim, "median")?;
    if x.rank() == 0 {
        return at_places(x, &Tensor::zeros(&[], DType::I64, x.device())?, dim, keepdim);
    }
    // NaNs are sorted after all numbers.
    let [sorted, order] = x.detach().sort(dim, false)?;
    let counts = sorted.eq(&sorted)?.sum(&[dim], true)?;
    let middle = counts.sub_scalar(1)?.clamp_min(0)?.floor_divide_scalar(2)?;
    at_places(x, &order.gather(dim, &middle)?, dim, keepdim)
}

fn mode(call: &Call<'_>) -> Result<Tensors> {
    let (x, dim, keepdim) = (call.tensor(0), call.int(1), call.bool(2));
    check_row(x, dim, "mode")?;
    if x.rank() == 0 || x.elements() == 0 {
        let at = wrap(dim, x.rank())?;
        let shape: Shape = x
            .shape()
            .iter()
            .enumerate()
            .map(|(place, &extent)| if place == at { 1 } else { extent })
            .collect();
        return at_places(x, &Tensor::zeros(&shape, DType::I64, x.device())?, dim, keepdim);
    }
    let mut sorted = call_all(
        built_in!("sort.stable")?,
        &[(&x.detach()).into(), true.into(), dim.into(), false.into()],
        None,
        call.label.location,
    )?;
    let (order, values) = (sorted.swap_remove(1), sorted.swap_remove(0));
    // The number of equal elements before each, from the index at which its run began.
    let at = wrap(dim, x.rank())?;
    let length = x.shape()[at];
    let mut shape = vec![1; x.rank()];
    shape[at] = length;
    let places = Tensor::arange(length, 0, 1, DType::I64, x.device())?.reshape(&shape)?;
    let begins = values.narrow(dim, 1, length - 1)?.ne(&values.narrow(dim, 0, length - 1)?)?;
    let zero = Tensor::zeros(&[], DType::I64, x.device())?;
    let starts = begins.select_where(&places.narrow(dim, 1, length - 1)?, &zero)?;
    let mut first_shape: Shape = x.shape().into();
    first_shape[at] = 1;
    let starts = Tensor::cat(&[Tensor::zeros(&first_shape, DType::I64, x.device())?, starts], dim)?;
    let [starts, _] = starts.cummax(dim)?;
    let [_, best] = places.sub(&starts)?.max_dim(dim, true)?;
    at_places(x, &order.gather(dim, &best)?, dim, keepdim)
}
