//! Complex numbers: their parts as views, and the operators that compute with the parts.
//!
//! A loop takes complex numbers if its formula is defined for them: arithmetic, comparison for equality, and loops that only move
//! elements (`thalweg_ir::Body::complex_is_defined`). If an operator's entry states that other operators on the parts compute
//! complex numbers ([`Complex`](super::Complex)), these run under
//! [`DispatchKey::Complex`](crate::dispatch::DispatchKey::Complex), above autograd, so that gradients flow through them. Every
//! other kernel refuses complex numbers there, with its name and PyTorch's message, and a composite operator does so where it
//! would convert them to real ones.
//!
//! Gradients are PyTorch's: with respect to the conjugate, so that a step against a gradient makes a real loss smaller.

use smallvec::SmallVec;
use thalweg_ir::{DType, Layout, Shape};
use thalweg_kernels::scatter::Combine;
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::Body::{Composite, Differentiable};
use super::index::gathered;
use super::{call as call_operator, operators, single};
use crate::autograd::formula::Formula;
use crate::destination::by_parts;
use crate::dispatch::{Argument, Arguments, Call, Operator, built_in, over};
use crate::dtype_name::named;
use crate::kernels::indexing::{call_scatter, combine_of};
use crate::kernels::matmul;
use crate::kernels::views::{ViewBackward, record_view};
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns a view of complex numbers as real ones, whose last dimension has the real and the imaginary part.
    "view_as_real(Tensor(a) self) -> Tensor(a)"
        fn view_as_real() = Composite(|call| view_as_real(call.tensor(0)).map(single));
    /// Returns a view of real numbers, whose last dimension has a real and an imaginary part next to each other, as complex ones.
    "view_as_complex(Tensor(a) self) -> Tensor(a)"
        fn view_as_complex() = Composite(|call| view_as_complex(call.tensor(0)).map(single));
    /// Returns a view of the real parts; the tensor itself if it is real.
    "real(Tensor(a) self) -> Tensor(a)" fn real() = Composite(|call| match call.tensor(0) {
        x if x.dtype().is_complex() => x.view_as_real()?.select(-1, 0).map(single),
        x => Ok(single(x.clone())),
    }), autocast: Parts;
    /// Returns a view of the imaginary parts of complex numbers.
    "imag(Tensor(a) self) -> Tensor(a)" fn imag() = Composite(|call| match call.tensor(0) {
        x if x.dtype().is_complex() => x.view_as_real()?.select(-1, 1).map(single),
        _ => Err(invalid!("imag is not implemented for tensors with non-complex dtypes.")),
    }), autocast: Parts;
    /// Returns the complex conjugates, in new memory; the tensor itself if it is real.
    "conj(Tensor(a) self) -> Tensor(a)" fn conj() = Composite(|call| conjugate(call).map(single)), autocast: Parts;
    /// Returns the complex conjugates, in new memory; the tensor itself if it is real.
    "_conj(Tensor(a) self) -> Tensor(a)" = Composite(|call| conjugate(call).map(single));
    /// Returns the complex conjugates, in new memory; the tensor itself if it is real.
    "conj_physical(Tensor self) -> Tensor"
        fn conj_physical()
        = Composite(|call| conjugate(call).map(single)), out: [OfResult], autocast: Parts;
    /// Returns the tensor itself: conjugates are never lazy views.
    "resolve_conj(Tensor(a) self) -> Tensor(a)"
        fn resolve_conj()
        = Composite(|call| Ok(single(call.tensor(0).clone()))), autocast: Parts;
    /// Returns complex numbers with these real and imaginary parts, which are broadcast.
    "complex(Tensor real, Tensor imag) -> Tensor"
        fn complex(imag: tensor) = Composite(|call| {
            check_parts(call.tensor(0), call.tensor(1))?;
            of_parts(call.tensor(0), call.tensor(1)).map(single)
        }), out: [ComplexOfFirst];
    /// Returns complex numbers with these absolute values and angles in radians, which are broadcast.
    "polar(Tensor abs, Tensor angle) -> Tensor"
        fn polar(angle: tensor) = Composite(|call| {
            let (size, angle) = (call.tensor(0), call.tensor(1));
            check_parts(size, angle)?;
            let of_size = |part: Tensor| over(&part, |part| size.mul(part));
            of_parts(&of_size(angle.cos()?)?, &of_size(angle.sin()?)?).map(single)
        }), out: [ComplexOfFirst];
    /// Returns the absolute values of complex numbers.
    "thalweg::abs_of_complex(Tensor self) -> Tensor" = Differentiable(|call| {
        let [re, im] = parts(call.tensor(0))?;
        re.hypot(&im).map(single)
    }, &ABSOLUTE), complex: Taken;
    /// Returns the angles of complex numbers in radians, in (−π, π].
    "thalweg::angle_of_complex(Tensor self) -> Tensor" = Differentiable(|call| {
        let [re, im] = parts(call.tensor(0))?;
        im.atan2(&re).map(single)
    }, &ANGLE), complex: Taken;
    /// Returns whether both parts of complex numbers are finite.
    "thalweg::isfinite_of_complex(Tensor self) -> Tensor"
        = Composite(|call| call.tensor(0).view_as_real()?.isfinite()?.all_dim(-1, false).map(single)), complex: Taken;
    /// Returns whether a part of complex numbers is infinite.
    "thalweg::isinf_of_complex(Tensor self) -> Tensor"
        = Composite(|call| call.tensor(0).view_as_real()?.isinf()?.any_dim(-1, false).map(single)), complex: Taken;
    /// Returns the sums of complex numbers over dimensions.
    "thalweg::sum_of_complex(Tensor self, int[] dim) -> Tensor"
        = Composite(|call| over_parts_by(built_in!("thalweg::sum")?, call)), complex: Taken;
    /// Returns the means of complex numbers over dimensions, with the number of elements passed by the call.
    "thalweg::mean_of_complex(Tensor self, Scalar count, int[] dim) -> Tensor"
        = Composite(|call| over_parts_by(built_in!("thalweg::mean")?, call)), complex: Taken;
}

/// The gradient of |z| is z / |z|, and 0 where z is 0.
static ABSOLUTE: Formula = Formula {
    inputs: &[0],
    outputs: &[],
    backward: |call| call.one(0, || call.saved(0)?.sgn()?.mul(&call.gradient()?)),
};

/// The gradient of the angle is i · z / |z|², and 0 where z is 0.
static ANGLE: Formula = Formula {
    inputs: &[0],
    outputs: &[],
    backward: |call| {
        call.one(0, || {
            let (z, gradient) = (call.saved(0)?, call.gradient()?);
            let [re, im] = parts(&z)?;
            let square = re.square()?.add(&im.square()?)?;
            let scale = gradient.div(&one_for_zero(&square)?)?;
            of_parts(&im.neg()?.mul(&scale)?, &re.mul(&scale)?)
        })
    },
};

fn view_as_real(x: &Tensor) -> Result<Tensor> {
    refuse_if!(!x.dtype().is_complex(), "view_as_real is only supported for complex tensors");
    let shape: Shape = x.shape().iter().copied().chain([2]).collect();
    let strides: Shape = x.layout().strides().iter().map(|&stride| 2 * stride).chain([1]).collect();
    let layout = Layout::new(&shape, &strides, 2 * x.layout().offset())?;
    Ok(record_view(x, x.view_of_dtype(layout, x.dtype().real()), || ViewBackward::Parts))
}

fn view_as_complex(x: &Tensor) -> Result<Tensor> {
    let refuse = |why: &str| Err(Error::invalid(why.to_owned()));
    refuse_if!(
        !matches!(x.dtype(), DType::F32 | DType::F64),
        "view_as_complex is only supported for float and double tensors, but got a tensor of scalar type: {}",
        x.dtype()
    );
    let (Some((&last, shape)), Some((&step, strides))) =
        (x.shape().split_last(), x.layout().strides().split_last())
    else {
        return refuse("Input tensor must have one or more dimensions");
    };
    if last != 2 {
        return refuse("Tensor must have a last dimension of size 2");
    }
    if step != 1 {
        return refuse("Tensor must have a last dimension with stride 1");
    }
    // The stride of a dimension of one element is never used.
    let is_even = |(&extent, stride): (&usize, &usize)| extent <= 1 || stride.is_multiple_of(2);
    if !shape.iter().zip(strides).all(is_even) {
        return refuse("Tensor must have a stride divisible by 2 for all but last dimension");
    }
    if !x.layout().offset().is_multiple_of(2) {
        return refuse("Tensor must have a storage_offset divisible by 2");
    }
    let strides: Shape = strides.iter().map(|&stride| stride / 2).collect();
    let layout = Layout::new(shape, &strides, x.layout().offset() / 2)?;
    Ok(record_view(x, x.view_of_dtype(layout, x.dtype().complex()), || ViewBackward::Numbers))
}

/// Returns the real and the imaginary parts of complex numbers, as views.
pub(super) fn parts(z: &Tensor) -> Result<[Tensor; 2]> {
    let both = z.view_as_real()?.unbind(-1)?;
    Ok(both.try_into().expect("a complex number has two parts"))
}

/// Returns complex numbers with these real and imaginary parts, which are broadcast.
pub(super) fn of_parts(re: &Tensor, im: &Tensor) -> Result<Tensor> {
    let shape = thalweg_ir::broadcast_shapes(re.shape(), im.shape())?;
    by_parts(|| Tensor::stack(&[re.expand(&shape)?, im.expand(&shape)?], -1))?.view_as_complex()
}

fn check_parts(a: &Tensor, b: &Tensor) -> Result<()> {
    refuse_if!(
        ![a, b].iter().all(|part| matches!(part.dtype(), DType::F32 | DType::F64)),
        "Expected both inputs to be Half, Float or Double tensors but got {} and {}",
        named(a.dtype()),
        named(b.dtype())
    );
    refuse_if!(
        a.dtype() != b.dtype(),
        "Expected object of scalar type {} but got scalar type {} for second argument",
        named(a.dtype()),
        named(b.dtype())
    );
    Ok(())
}

fn conjugate(call: &Call<'_>) -> Result<Tensor> {
    match call.tensor(0) {
        z if z.dtype().is_complex() => {
            call_operator(built_in!("thalweg::conj_of")?, &[z.into()], None, call.label.location)
        }
        x => Ok(x.clone()),
    }
}

/// Returns complex numbers divided by their absolute values, and 0 where they are 0.
pub(super) fn sign(call: &Call<'_>) -> Result<Tensors> {
    let z = call.tensor(0);
    z.div(&one_for_zero(&z.abs()?)?).map(single)
}

/// Returns complex numbers to the power of a number.
pub(super) fn power_by_number(call: &Call<'_>) -> Result<Tensors> {
    let (x, exponent) = (call.tensor(0), call.scalar(1));
    match exponent.to_f64() {
        // Repeated products have no branch cut, and they have a gradient at 0.
        1.0 => x.mul_scalar(1).map(single),
        2.0 => x.mul(x).map(single),
        3.0 => x.mul(x)?.mul(x).map(single),
        exponent => power(x, &Tensor::full(&[], exponent, x.dtype(), x.device())?).map(single),
    }
}

/// Returns a number to the power of complex numbers.
pub(super) fn power_of_number(call: &Call<'_>) -> Result<Tensors> {
    let exponent = call.tensor(1);
    let base = Tensor::full(&[], call.scalar(0), exponent.dtype(), exponent.device())?;
    power(&base, exponent).map(single)
}

/// Returns base^exponent = exp(exponent · log base). For a base of 0 it is 0 where the exponent's real part is positive, infinite
/// where that is negative, 1 where the exponent is 0, and otherwise NaN.
pub(super) fn power(base: &Tensor, exponent: &Tensor) -> Result<Tensor> {
    let zero_dimensional = u32::from(base.rank() == 0) | u32::from(exponent.rank() == 0) << 1;
    let dtype = thalweg_ops::result_type(&[base.dtype(), exponent.dtype()], zero_dimensional);
    let dtype = dtype.map_err(|error| Error::invalid(error.to_string()))?;
    // An error of the angle grows with the exponent: in f64 it stays below the rounding of f32.
    let (base, exponent) = (base.to_dtype(DType::C128)?, exponent.to_dtype(DType::C128)?);
    let one = Tensor::ones(&[], DType::C128, base.device())?;
    let is_zero = base.eq_scalar(0.0)?;
    let result = is_zero.select_where(&one, &base)?.log()?.mul(&exponent)?.exp()?;
    let magnitude = exponent.detach().real()?.mul_scalar(f64::NEG_INFINITY)?.exp()?;
    let of_zero = of_parts(&magnitude, &magnitude.mul_scalar(0.0)?)?;
    let of_zero = exponent.eq_scalar(0.0)?.select_where(&one, &of_zero)?;
    is_zero.select_where(&of_zero, &result)?.to_dtype(dtype)
}

/// Returns real numbers with 1 in place of 0.
fn one_for_zero(x: &Tensor) -> Result<Tensor> {
    let one = Tensor::ones(&[], x.dtype(), x.device())?;
    x.eq_scalar(0.0)?.select_where(&one, x)
}

/// Returns the complex numbers whose parts are the operator's results for the real parts and for the imaginary parts.
pub(super) fn over_parts(call: &Call<'_>) -> Result<Tensors> {
    over_parts_by(call.operator, call)
}

/// Returns the complex numbers whose parts are the results of an operator with the arguments of a call, for the real parts and
/// for the imaginary parts.
fn over_parts_by(operator: &'static Operator, call: &Call<'_>) -> Result<Tensors> {
    let (rank, parts) = (call.tensor(0).rank(), call.tensor(0).view_as_real()?);
    let reduced = call
        .arguments
        .iter()
        .filter_map(|argument| if let Argument::Ints(list) = argument { Some(list) } else { None });
    if let Some(dimension) =
        reduced.flat_map(|list| list.iter()).find(|&&dimension| !(0..rank as i64).contains(&dimension))
    {
        return Err(Error::index(format!("dimension {dimension} is out of range for {rank} dimensions")));
    }
    with_first(operator, call, &parts)?.swap_remove(0).contiguous()?.view_as_complex().map(single)
}

/// Returns products over dimensions, computed by repeated halving.
pub(super) fn products(call: &Call<'_>) -> Result<Tensors> {
    let x = call.tensor(0);
    let reduced = call
        .arguments
        .iter()
        .find_map(|argument| if let Argument::Ints(list) = argument { Some(list.to_vec()) } else { None });
    let mut reduced = reduced.unwrap_or_default();
    reduced.sort_unstable();
    let mut result = x.clone();
    for dimension in reduced.into_iter().rev() {
        let mut extent = result.size(dimension)?;
        if extent == 0 {
            // The empty product, whose gradient is empty.
            result = result.sum(&[dimension], true)?.add_scalar(1)?;
        }
        while extent > 1 {
            let half = extent / 2;
            let product = result.narrow(dimension, 0, half)?.mul(&result.narrow(dimension, half, half)?)?;
            result = match extent % 2 {
                0 => product,
                _ => Tensor::cat(&[product, result.narrow(dimension, extent - 1, 1)?], dimension)?,
            };
            extent = extent.div_ceil(2);
        }
        result = result.squeeze(dimension)?;
    }
    if result.shares_storage_with(x) { result.mul_scalar(1).map(single) } else { Ok(single(result)) }
}

/// Returns ln Σ eᶻ over dimensions. The greatest real part is subtracted from the exponents and added to the logarithm.
pub(super) fn logarithms_of_sums(call: &Call<'_>) -> Result<Tensors> {
    let (z, keeps) = (call.tensor(0), call.bool(2));
    let reduced: Vec<i64> =
        super::reduce::dimensions(z, &call.ints(1))?.iter().map(|&at| at as i64).collect();
    if z.elements() == 0 {
        return z.exp()?.sum(&reduced, keeps)?.log().map(single);
    }
    let greatest = z.real()?.detach().amax(&reduced, true)?;
    let greatest =
        greatest.abs()?.lt_scalar(f64::INFINITY)?.select_where(&greatest, &greatest.full_like(0.0)?)?;
    let sums = z.sub(&greatest)?.exp()?.sum(&reduced, true)?.log()?.add(&greatest)?;
    let squeezed =
        |sums: Tensor| reduced.iter().rev().try_fold(sums, |sums, &dimension| sums.squeeze(dimension));
    if keeps { Ok(single(sums)) } else { squeezed(sums).map(single) }
}

/// Returns the operator's result for the absolute values.
pub(super) fn of_absolute_values(call: &Call<'_>) -> Result<Tensors> {
    with_first(call.operator, call, &call.tensor(0).abs()?)
}

/// Calls an operator with the arguments of a call, but with another first tensor.
fn with_first(operator: &'static Operator, call: &Call<'_>, first: &Tensor) -> Result<Tensors> {
    let mut arguments: SmallVec<[Argument<'_>; 8]> = call.arguments.into();
    arguments[0] = first.into();
    operator.call(&arguments, None, call.label)
}

/// Multiplies complex numbers at indices. They are sorted by index; then each is multiplied by the one before it, by the one two before,
/// four before and so on, as long as the index is the same, so that the last of each index has the product of all.
fn product_at(x: &Tensor, index: &Tensor, source: &Tensor) -> Result<Tensor> {
    let [outer, count, inner] = [0, 1, 2].map(|dimension| source.shape()[dimension]);
    if x.elements() == 0 || source.elements() == 0 {
        return Ok(x.clone());
    }
    let [index, order] = index.expand(source.shape())?.sort(1, false)?;
    let mut product = gathered(source, &order)?;
    let mut distance = 1;
    while distance < count {
        let rest = count - distance;
        let is_same = index.narrow(1, distance, rest)?.eq(&index.narrow(1, 0, rest)?)?;
        let later = product.narrow(1, distance, rest)?;
        let joined = is_same.select_where(&later.mul(&product.narrow(1, 0, rest)?)?, &later)?;
        product = Tensor::cat(&[product.narrow(1, 0, distance)?, joined], 1)?;
        distance *= 2;
    }
    let is_last = index.narrow(1, 1, count - 1)?.ne(&index.narrow(1, 0, count - 1)?)?;
    let is_last = Tensor::cat(&[is_last, Tensor::ones(&[outer, 1, inner], DType::Bool, x.device())?], 1)?;
    // Nothing is written at an index that is out of range.
    let written = is_last.select_where(&index, &Tensor::full(&[], -1, DType::I64, x.device())?)?;
    let former = gathered(x, &index.clamp(0, x.shape()[1] as i64 - 1)?)?;
    call_scatter(x, &written, &former.mul(&product)?, Combine::Replace)
}

/// Writes or adds complex numbers at indices, as pairs of adjacent real ones, or multiplies them.
pub(super) fn scatter(call: &Call<'_>) -> Result<Tensors> {
    let (x, index, source) = (call.tensor(0), call.tensor(1), call.tensor(2));
    let combine = combine_of(call)?;
    if [x, index, source].iter().any(|tensor| tensor.rank() != 3) {
        refuse!("the tensor, indices and source are (outer, extent, inner)");
    }
    refuse_if!(
        x.dtype() != source.dtype(),
        "scatter of {} into {}: the dtypes differ",
        source.dtype(),
        x.dtype()
    );
    match combine {
        Combine::Product => return product_at(x, index, source).map(single),
        Combine::Max | Combine::Min => {
            let (way, dtype) = (combine.name(), named(x.dtype()));
            return Err(Error::not_implemented(format!(
                "\"scatter_reduce_{way}\" not implemented for '{dtype}'"
            )));
        }
        Combine::Replace | Combine::Sum => {}
    }
    let of_parts = |z: &Tensor| {
        let [outer, extent, inner] = [0, 1, 2].map(|dimension| z.shape()[dimension]);
        z.view_as_real()?.reshape(&[outer, extent, 2 * inner])
    };
    let [outer, count, inner] = [0, 1, 2].map(|dimension| source.shape()[dimension]);
    let places = index.expand(&[outer, count, inner])?.unsqueeze(-1)?.expand(&[outer, count, inner, 2])?;
    let places = places.reshape(&[outer, count, 2 * inner])?;
    let arguments = [
        Argument::from(&of_parts(x)?).to_value(),
        Argument::from(&places).to_value(),
        Argument::from(&of_parts(source)?).to_value(),
        Argument::from(combine.name()).to_value(),
    ];
    let arguments: SmallVec<[Argument<'_>; 4]> = arguments.iter().map(|value| value.as_argument()).collect();
    let written = call_operator(call.operator, &arguments, None, call.label.location)?;
    let [outer, extent, inner] = [0, 1, 2].map(|dimension| x.shape()[dimension]);
    written.reshape(&[outer, extent, inner, 2])?.view_as_complex().map(single)
}

/// Returns the product of complex matrices as one of real ones: each row (re, im, …) of the left is multiplied with the rows (re,
/// im) and (−im, re) for each number of the right.
pub(super) fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    matmul::check(a, b)?;
    let doubled = |matrix: &Tensor, rows: usize, columns: usize| {
        let shape = matrix.shape();
        let [height, width] = [shape[shape.len() - 2], shape[shape.len() - 1]];
        let batch = shape[..shape.len() - 2].iter().copied();
        batch.chain([rows * height, columns * width]).collect::<Shape>()
    };
    let left = a.view_as_real()?.reshape(&doubled(a, 1, 2))?;
    let [re, im] = parts(b)?;
    let transposed = Tensor::stack(&[im.neg()?, re], -1)?;
    let right = Tensor::stack(&[b.view_as_real()?, transposed], -3)?.reshape(&doubled(b, 2, 2))?;
    let result = left.matmul(&right)?;
    let columns = b.shape()[b.rank() - 1];
    let shape: Shape = result.shape()[..result.rank() - 1].iter().copied().chain([columns, 2]).collect();
    result.reshape(&shape)?.contiguous()?.view_as_complex()
}
