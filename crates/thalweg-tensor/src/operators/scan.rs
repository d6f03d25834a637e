//! Cumulative sums, products and extrema along a dimension.

use smallvec::SmallVec;
use thalweg_ir::DType;
use thalweg_kernels::scan::{Scan, ScanOp};
use thalweg_runtime::{Error, Label, Result, refuse};

use super::Body::{Composite, Differentiable};
use super::reduce::{dimensions, rows_along};
use super::{call as call_operator, operators, single};
use crate::autograd::formula::{Formula, GradientCall};
use crate::destination::for_kernel_over;
use crate::dispatch::{Argument, Arguments, Call, built_in};
use crate::native::launch;
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns the sum of the elements up to each along a dimension. Integers and truth values are summed in i64.
    "cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor"
        fn cumsum(dim: int) = Composite(|call| widened(call, built_in!("thalweg::cumsum")?)), out: [GivesDType], first: Consumed, autocast: Full;
    /// Returns the product of the elements up to each along a dimension. Integers and truth values are multiplied in i64.
    "cumprod(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor"
        fn cumprod(dim: int) = Composite(|call| widened(call, built_in!("thalweg::cumprod")?)), out: [GivesDType], first: Consumed, autocast: Full;
    /// Returns ln of the sum of eˣ of the elements up to each along a dimension, without overflow.
    "logcumsumexp(Tensor self, int dim) -> Tensor"
        fn logcumsumexp(dim: int) = Differentiable(|call| running(call, ScanOp::LogSumExp), &LOGCUMSUMEXP), out: [OfResult], first: Consumed, complex: Parts(|call| logarithms_of_complex(call.tensor(0), call.int(1)).map(single));
    /// Returns the greatest element up to each along a dimension, and its index: the last of equal elements.
    "cummax(Tensor self, int dim) -> (Tensor values, Tensor indices)"
        fn cummax(dim: int) -> 2 = Differentiable(|call| extremum(call, ScanOp::Max), &EXTREMUM), out: [OfResult];
    /// Returns the smallest element up to each along a dimension, and its index: the last of equal elements.
    "cummin(Tensor self, int dim) -> (Tensor values, Tensor indices)"
        fn cummin(dim: int) -> 2 = Differentiable(|call| extremum(call, ScanOp::Min), &EXTREMUM), out: [OfResult];
    /// Returns the cumulative sum in a dtype that a kernel supports.
    "thalweg::cumsum(Tensor self, int dim, bool reversed=False) -> Tensor"
        = Differentiable(|call| running(call, ScanOp::Sum), &CUMSUM), autocast: Full, complex: Parts(cumulative_sum);
    /// Returns the cumulative product in a dtype that a kernel supports.
    "thalweg::cumprod(Tensor self, int dim) -> Tensor" = Differentiable(|call| running(call, ScanOp::Product), &CUMPROD), autocast: Full, complex: Parts(cumulative_product);
    /// Returns yᵢ = xᵢ + factorᵢ · yᵢ₋₁ along a dimension, with 0 before the first; reversed, yᵢ = xᵢ + factorᵢ · yᵢ₊₁ from the end on. The
    /// factors have the shape and dtype of the points, which are floats.
    "thalweg::linear_recurrence(Tensor self, Tensor factor, int dim, bool reversed=False) -> Tensor"
        fn linear_recurrence(factor: tensor, dim: int) = Differentiable(|call| {
            check(call, ScanOp::Recurrence)?;
            let (x, factors) = (call.tensor(0).detach().contiguous()?, call.tensor(1).detach().contiguous()?);
            if x.shape() != factors.shape() || x.dtype() != factors.dtype() {
                refuse!("a recurrence takes a factor per element, of its dtype");
            }
            scan(&x, Some(&factors), call.int(2), ScanOp::Recurrence, call.bool(3), call.label).map(single)
        }, &RECURRENCE);
}

/// Combines the points of a contiguous tensor along a dimension.
fn scan(
    x: &Tensor,
    other: Option<&Tensor>,
    dim: i64,
    op: ScanOp,
    reversed: bool,
    label: Label,
) -> Result<Tensor> {
    let [outer, length, inner] = rows_along(x, dim)?;
    let result = match for_kernel_over(x) {
        Some(over) => over,
        None => Tensor::result_on(x.shape(), x.dtype(), &x.device().current_stream(), label)?,
    };
    if x.elements() > 0 {
        let kernel = Scan { op, outer, length, inner, reversed, dtype: x.dtype() };
        launch(kernel, [Some(x), other, Some(&result)], label)?;
    }
    Ok(result)
}

/// Returns a cumulative sum or product in the requested dtype, by default i64 for integers.
fn widened(call: &Call<'_>, operator: &'static crate::dispatch::Operator) -> Result<Tensors> {
    let x = call.tensor(0);
    let wanted = match call.optional_dtype(2) {
        Some(dtype) => dtype,
        None if x.dtype().is_differentiable() => x.dtype(),
        None => DType::I64,
    };
    // Narrower integers wrap around at the end.
    let converted = x.to_dtype(wanted)?;
    let wide = if wanted.is_differentiable() { converted } else { converted.to_dtype(DType::I64)? };
    let arguments = [Argument::Tensor(&wide), Argument::Int(call.int(1))];
    call_operator(operator, &arguments, None, call.label.location)?.to_dtype(wanted).map(single)
}

fn check(call: &Call<'_>, op: ScanOp) -> Result<()> {
    let dtype = call.tensor(0).dtype();
    match op.takes(dtype) {
        true => Ok(()),
        false => Err(Error::not_implemented(format!(
            "\"{}\" not implemented for '{dtype}'",
            call.operator.base_name()
        ))),
    }
}

fn running(call: &Call<'_>, op: ScanOp) -> Result<Tensors> {
    check(call, op)?;
    let x = call.tensor(0).detach().contiguous()?;
    let reversed = op == ScanOp::Sum && call.bool(2);
    scan(&x, None, call.int(1), op, reversed, call.label).map(single)
}

/// Returns ln of cumulative sums of eˣ of complex numbers: each pass adds elements at twice the distance of the previous pass.
fn logarithms_of_complex(x: &Tensor, dim: i64) -> Result<Tensor> {
    if x.rank() == 0 {
        return x.copied(std::panic::Location::caller());
    }
    let (mut result, extent, mut distance) = (x.clone(), x.size(dim)?, 1);
    while distance < extent {
        let (first, rest) =
            (result.narrow(dim, 0, distance)?, result.narrow(dim, distance, extent - distance)?);
        let before = result.narrow(dim, 0, extent - distance)?;
        let arguments = [(&rest).into(), (&before).into()];
        let location = std::panic::Location::caller();
        let sums = call_operator(built_in!("thalweg::logaddexp_of_complex")?, &arguments, None, location)?;
        result = Tensor::cat(&[first, sums], dim)?;
        distance *= 2;
    }
    Ok(result)
}

fn extremum(call: &Call<'_>, op: ScanOp) -> Result<Tensors> {
    let (x, dim) = (call.tensor(0).detach(), call.int(1));
    if x.rank() == 0 && !(-1..=0).contains(&dim) {
        return Err(Error::index(format!(
            "{}(): Expected reduction dim -1 or 0 for scalar but got {dim}",
            call.operator.base_name()
        )));
    }
    let dtype = x.dtype();
    let wide = if dtype.is_floating_point() { x } else { x.to_dtype(DType::I64)? }.contiguous()?;
    let places = call.new_result(wide.shape(), DType::I64)?;
    let values = scan(&wide, Some(&places), dim, op, false, call.label)?;
    Ok(SmallVec::from_iter([values.to_dtype(dtype)?, places]))
}

/// The gradient of a cumulative sum: the sum of the gradients from each element on.
static CUMSUM: Formula = Formula {
    inputs: &[],
    outputs: &[],
    backward: |call| {
        call.one(0, || {
            let gradient = call.gradient()?;
            let arguments = [(&gradient).into(), call.int(1).into(), (!call.bool(2)).into()];
            call_operator(built_in!("thalweg::cumsum")?, &arguments, None, call.label().location)
        })
    },
};

/// Returns the dimension of a gradient's call; `None` for a tensor without dimensions.
fn dimension_of(call: &GradientCall<'_>) -> Option<i64> {
    let rank = call.shape(0).len() as i64;
    let dim = call.int(1);
    (rank > 0).then_some(if dim < 0 { dim + rank } else { dim })
}

/// Solves y[i] = gradient[i] + factor[i] · y[i + 1] from the last element to the first, or y[i] = gradient[i] + factor[i] · y[i −
/// 1] from the first on.
fn recurrence(gradient: &Tensor, factor: &Tensor, dim: i64, reversed: bool, label: Label) -> Result<Tensor> {
    let arguments =
        [Argument::Tensor(gradient), Argument::Tensor(factor), Argument::Int(dim), Argument::Bool(reversed)];
    Ok(built_in!("thalweg::linear_recurrence")?.call(&arguments, None, label)?.swap_remove(0))
}

/// The gradient of a recurrence. The gradient of the points is the recurrence in the other direction, with the factor of the next
/// element; that of a factor is its point's gradient times the y that it was multiplied with.
static RECURRENCE: Formula = Formula {
    inputs: &[1],
    outputs: &[0],
    backward: |call| {
        let (gradient, factors, y, reversed) =
            (call.gradient()?, call.saved(1)?, call.result(0)?, call.bool(3));
        if y.elements() == 0 {
            return call.each(|_| Ok(Some(gradient.clone())));
        }
        if y.rank() == 0 {
            return call.each(|tensor| match tensor {
                0 => Ok(Some(gradient.clone())),
                _ => gradient.zeros_like().map(Some),
            });
        }
        let dim = y.layout().dimension(call.int(2))? as i64;
        let [earlier, later] = [shifted_back, shifted_forward];
        let (of_next, of_last) = if reversed { (earlier, later) } else { (later, earlier) };
        let of_points = recurrence(&gradient, &of_next(&factors, dim, 0.0)?, dim, !reversed, call.label())?;
        call.each(|tensor| match tensor {
            0 => Ok(Some(of_points.clone())),
            _ => of_points.mul(&of_last(&y, dim, 0.0)?).map(Some),
        })
    },
};

/// Returns the elements shifted back by one along a dimension, with a value before them.
fn shifted_back(x: &Tensor, dim: i64, value: f64) -> Result<Tensor> {
    let length = x.shape()[dim as usize];
    Tensor::cat(&[filled(x, dim, value)?, x.narrow(dim, 0, length - 1)?], dim)
}

/// Returns the elements shifted forward by one along a dimension, with a value after them.
fn shifted_forward(x: &Tensor, dim: i64, value: f64) -> Result<Tensor> {
    let length = x.shape()[dim as usize];
    Tensor::cat(&[x.narrow(dim, 1, length - 1)?, filled(x, dim, value)?], dim)
}

fn filled(x: &Tensor, dim: i64, value: f64) -> Result<Tensor> {
    let mut shape: SmallVec<[usize; 6]> = x.shape().into();
    shape[dim as usize] = 1;
    Tensor::full(&shape, value, x.dtype(), x.device())
}

/// The gradient of a cumulative product, for xᵢ: the product of the elements before it, times Σ over j from i on of gⱼ times the
/// product of those between. No division, so that zeros are handled.
static CUMPROD: Formula = Formula {
    inputs: &[0],
    outputs: &[0],
    backward: |call| {
        call.one(0, || {
            let (gradient, x, y) = (call.gradient()?, call.saved(0)?, call.result(0)?);
            let Some(dim) = dimension_of(call).filter(|_| x.elements() > 0) else { return Ok(gradient) };
            let before = shifted_back(&y, dim, 1.0)?;
            recurrence(&gradient, &shifted_forward(&x, dim, 0.0)?, dim, true, call.label())?.mul(&before)
        })
    },
};

/// The gradient of `logcumsumexp`, for xᵢ: e^(xᵢ − yᵢ) · Σ over j from i on of gⱼ · e^(yᵢ − yⱼ), whose exponents are not above 0.
static LOGCUMSUMEXP: Formula = Formula {
    inputs: &[0],
    outputs: &[0],
    backward: |call| {
        call.one(0, || {
            let (gradient, x, y) = (call.gradient()?, call.saved(0)?, call.result(0)?);
            let share = x.sub(&y)?.exp()?;
            let Some(dim) = dimension_of(call).filter(|_| x.elements() > 0) else {
                return gradient.mul(&share);
            };
            let after = shifted_forward(&y, dim, f64::INFINITY)?;
            recurrence(&gradient, &y.sub(&after)?.exp()?, dim, true, call.label())?.mul(&share)
        })
    },
};

/// The gradient of a cumulative extremum: for each element the sum over the run of results that are taken from it.
static EXTREMUM: Formula = Formula {
    inputs: &[],
    outputs: &[1],
    backward: |call| {
        call.one(0, || {
            let (gradient, places) = (call.gradient()?, call.result(1)?);
            let Some(dim) = dimension_of(call).filter(|_| gradient.elements() > 0) else {
                return Ok(gradient);
            };
            let dtype = gradient.dtype();
            let goes_on = places.eq(&shifted_forward(&places, dim, -1.0)?)?.to_dtype(dtype)?;
            let sums = recurrence(&gradient, &goes_on, dim, true, call.label())?;
            let mut extents: SmallVec<[usize; 6]> = SmallVec::from_elem(1, places.rank());
            extents[dim as usize] = places.shape()[dim as usize];
            let own =
                Tensor::arange(extents[dim as usize], 0, 1, DType::I64, call.device())?.reshape(&extents)?;
            places.eq(&own)?.select_where(&sums, &Tensor::zeros(&[], dtype, call.device())?)
        })
    },
};

/// Returns the sums up to each complex number of a dimension.
fn cumulative_sum(call: &Call<'_>) -> Result<Tensors> {
    let x = call.tensor(0);
    let Some(&dimension) = dimensions(x, &[call.int(1)])?.first() else {
        return x.mul_scalar(1).map(single);
    };
    let parts = x.view_as_real()?;
    let arguments = [(&parts).into(), (dimension as i64).into(), call.bool(2).into()];
    call_operator(call.operator, &arguments, None, call.label.location)?
        .contiguous()?
        .view_as_complex()
        .map(single)
}

/// Returns the products up to each complex number of a dimension.
fn cumulative_product(call: &Call<'_>) -> Result<Tensors> {
    let x = call.tensor(0);
    let Some(&dimension) = dimensions(x, &[call.int(1)])?.first() else {
        return x.mul_scalar(1).map(single);
    };
    // After each step an element is the product of twice as many elements as before.
    let (extent, dim) = (x.shape()[dimension], dimension as i64);
    let (mut result, mut reach) = (x.mul_scalar(1)?, 1);
    while reach < extent {
        let first = result.narrow(dim, 0, reach)?;
        let others =
            result.narrow(dim, reach, extent - reach)?.mul(&result.narrow(dim, 0, extent - reach)?)?;
        result = Tensor::cat(&[first, others], dim)?;
        reach *= 2;
    }
    Ok(single(result))
}
