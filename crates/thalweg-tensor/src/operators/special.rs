//! Functions of two numbers whose kernel is not a loop over a formula: divisors, zeta and gamma functions, orthogonal polynomials.

use thalweg_ir::{DType, Scalar, broadcast_shapes};
use thalweg_kernels::special::{Function, Special};
use thalweg_ops::default_dtype;
use thalweg_runtime::{Error, Result, refuse_if};

use super::Body::{Composite, Differentiable, Kernel};
use super::{operators, single};
use crate::autograd::Gradients;
use crate::autograd::formula::{Formula, GradientCall};
use crate::destination::for_kernel_over;
use crate::dispatch::{Arguments, Call, built_in, over};
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns the greatest common divisors of integers, which are not negative.
    "gcd(Tensor self, Tensor other) -> Tensor" fn gcd(other: tensor) = Kernel(|call| divisor(call).map(single));
    /// Returns the least common multiples of integers, which are not negative.
    "lcm(Tensor self, Tensor other) -> Tensor" fn lcm(other: tensor) = Kernel(|call| {
        let (x, y) = (call.tensor(0).detach(), call.tensor(1).detach());
        let divisor = divisor(call)?;
        let one = Tensor::ones(&[], divisor.dtype(), call.device)?;
        let divisor = divisor.eq_scalar(0)?.select_where(&one, &divisor)?;
        x.floor_divide(&divisor)?.mul(&y)?.abs().map(single)
    });
    /// Returns the next representable number from each element towards that of the other tensor.
    "nextafter(Tensor self, Tensor other) -> Tensor"
        fn nextafter(other: tensor) = Kernel(|call| {
            if call.tensor(0).dtype().promote(call.tensor(1).dtype()).is_ok_and(|dtype| !dtype.is_floating_point()) {
                return Err(Error::not_implemented("\"nextafter\" not implemented for integers"));
            }
            function(call, Function::NextAfter)
        }), first: Consumed;
    /// Returns Σ (other + k)⁻ˢ over k from 0 on, with s self: the Hurwitz zeta function.
    "special_zeta(Tensor self, Tensor other) -> Tensor"
        fn zeta(other: tensor) = Differentiable(|call| function(call, Function::Zeta), &ZETA);
    /// Returns the integral of tᵃ⁻¹ e⁻ᵗ from 0 to x divided by Γ(a), where a is self and x is other.
    "igamma(Tensor self, Tensor other) -> Tensor"
        fn igamma(other: tensor) = Differentiable(|call| function(call, Function::LowerGamma), &LOWER_GAMMA), first: Consumed;
    /// Returns the integral of tᵃ⁻¹ e⁻ᵗ from x on over Γ(a), with a self and x other.
    "igammac(Tensor self, Tensor other) -> Tensor"
        fn igammac(other: tensor) = Differentiable(|call| function(call, Function::UpperGamma), &UPPER_GAMMA), first: Consumed;
    /// Returns the (n + 1)-th derivative of ln Γ(self).
    "polygamma(int n, Tensor self) -> Tensor"
        of fn polygamma(n: int, input: tensor)
        = Composite(|call| polygamma(call).map(single));
    /// Returns the (n + 1)-th derivative of ln Γ(self).
    "special_polygamma(int n, Tensor self) -> Tensor" = Composite(|call| polygamma(call).map(single)), autocast: Parts;
    /// Returns ln Γₚ(self), the multivariate gamma function of dimension p.
    "mvlgamma(Tensor self, int p) -> Tensor" fn mvlgamma(p: int) = Composite(|call| mvlgamma(call).map(single));
    /// Returns Chebyshev's polynomial of the first kind of degree n.
    "special_chebyshev_polynomial_t(Tensor x, Tensor n) -> Tensor"
        fn special_chebyshev_polynomial_t(n: tensor)
        = Kernel(|call| function(call, Function::ChebyshevT));
    /// Returns Chebyshev's polynomial of the second kind of degree n.
    "special_chebyshev_polynomial_u(Tensor x, Tensor n) -> Tensor"
        fn special_chebyshev_polynomial_u(n: tensor)
        = Kernel(|call| function(call, Function::ChebyshevU));
    /// Returns Chebyshev's polynomial of the third kind of degree n.
    "special_chebyshev_polynomial_v(Tensor x, Tensor n) -> Tensor"
        fn special_chebyshev_polynomial_v(n: tensor)
        = Kernel(|call| function(call, Function::ChebyshevV));
    /// Returns Chebyshev's polynomial of the fourth kind of degree n.
    "special_chebyshev_polynomial_w(Tensor x, Tensor n) -> Tensor"
        fn special_chebyshev_polynomial_w(n: tensor)
        = Kernel(|call| function(call, Function::ChebyshevW));
    /// Returns Chebyshev's polynomial of the first kind of 2x − 1.
    "special_shifted_chebyshev_polynomial_t(Tensor x, Tensor n) -> Tensor"
        fn special_shifted_chebyshev_polynomial_t(n: tensor)
        = Kernel(|call| shifted(call, Function::ChebyshevT));
    /// Returns Chebyshev's polynomial of the second kind of 2x − 1.
    "special_shifted_chebyshev_polynomial_u(Tensor x, Tensor n) -> Tensor"
        fn special_shifted_chebyshev_polynomial_u(n: tensor)
        = Kernel(|call| shifted(call, Function::ChebyshevU));
    /// Returns Chebyshev's polynomial of the third kind of 2x − 1.
    "special_shifted_chebyshev_polynomial_v(Tensor x, Tensor n) -> Tensor"
        fn special_shifted_chebyshev_polynomial_v(n: tensor)
        = Kernel(|call| shifted(call, Function::ChebyshevV));
    /// Returns Chebyshev's polynomial of the fourth kind of 2x − 1.
    "special_shifted_chebyshev_polynomial_w(Tensor x, Tensor n) -> Tensor"
        fn special_shifted_chebyshev_polynomial_w(n: tensor)
        = Kernel(|call| shifted(call, Function::ChebyshevW));
    /// Returns the physicists' Hermite polynomial of degree n.
    "special_hermite_polynomial_h(Tensor x, Tensor n) -> Tensor"
        fn special_hermite_polynomial_h(n: tensor)
        = Kernel(|call| function(call, Function::HermiteH));
    /// Returns the probabilists' Hermite polynomial of degree n.
    "special_hermite_polynomial_he(Tensor x, Tensor n) -> Tensor"
        fn special_hermite_polynomial_he(n: tensor)
        = Kernel(|call| function(call, Function::HermiteHe));
    /// Returns Laguerre's polynomial of degree n.
    "special_laguerre_polynomial_l(Tensor x, Tensor n) -> Tensor"
        fn special_laguerre_polynomial_l(n: tensor)
        = Kernel(|call| function(call, Function::Laguerre));
    /// Returns Legendre's polynomial of degree n.
    "special_legendre_polynomial_p(Tensor x, Tensor n) -> Tensor"
        fn special_legendre_polynomial_p(n: tensor)
        = Kernel(|call| function(call, Function::Legendre));
}

/// Launches a function over two tensors of one dtype, broadcast. The result may replace the first where that is offered.
fn launch(call: &Call<'_>, function: Function, x: &Tensor, y: &Tensor, dtype: DType) -> Result<Tensor> {
    let shape = broadcast_shapes(x.shape(), y.shape())?;
    let operand = |tensor: &Tensor| {
        let tensor = tensor.detach().to_dtype(dtype)?;
        // One number is read at every place.
        if tensor.elements() == 1 { tensor.contiguous() } else { tensor.expand(&shape)?.contiguous() }
    };
    let (x, y) = (operand(x)?, operand(y)?);
    let over = if x.shape() == shape.as_slice() { for_kernel_over(&x) } else { None };
    let result = over.map_or_else(|| call.new_result(&shape, dtype), Ok)?;
    if result.elements() > 0 {
        let strides = [&x, &y].map(|operand| u64::from(operand.elements() > 1));
        let kernel = Special { function, elements: result.elements() as u64, strides, dtype };
        call.launch(kernel, [&x, &y, &result])?;
    }
    Ok(result)
}

/// Returns the dtype that both tensors are promoted to; one without dimensions takes the other's dtype within a category.
fn common(x: &Tensor, y: &Tensor) -> Result<DType> {
    let gives_way = |one: &Tensor, other: &Tensor| {
        one.rank() == 0 && other.rank() > 0 && one.dtype().category() <= other.dtype().category()
    };
    match (gives_way(x, y), gives_way(y, x)) {
        (true, _) => Ok(y.dtype()),
        (_, true) => Ok(x.dtype()),
        _ => x.dtype().promote(y.dtype()).map_err(|error| Error::invalid(error.to_string())),
    }
}

fn floats(call: &Call<'_>) -> Result<DType> {
    let dtype = common(call.tensor(0), call.tensor(1))?;
    match dtype {
        dtype if dtype.is_float8() => Err(Error::not_implemented(format!(
            "\"{}\" not implemented for '{dtype}'",
            call.operator.base_name()
        ))),
        dtype if dtype.is_floating_point() => Ok(dtype),
        _ => Ok(default_dtype()),
    }
}

fn function(call: &Call<'_>, function: Function) -> Result<Tensors> {
    let dtype = floats(call)?;
    launch(call, function, call.tensor(0), call.tensor(1), dtype).map(single)
}

fn shifted(call: &Call<'_>, function: Function) -> Result<Tensors> {
    let dtype = floats(call)?;
    // Not rounded to 16 bits in between.
    let doubled = call.tensor(0).detach().to_dtype(dtype.compute())?.mul_scalar(2.0)?;
    let x = over(&doubled, |doubled| doubled.sub_scalar(1.0))?;
    over(&x, |x| launch(call, function, x, call.tensor(1), dtype.compute()))?.to_dtype(dtype).map(single)
}

fn divisor(call: &Call<'_>) -> Result<Tensor> {
    let dtype = common(call.tensor(0), call.tensor(1))?;
    if dtype.is_floating_point() || dtype == DType::Bool {
        return Err(Error::not_implemented(format!(
            "\"{}\" not implemented for '{dtype}'",
            call.operator.base_name()
        )));
    }
    launch(call, Function::Gcd, call.tensor(0), call.tensor(1), DType::I64)?.to_dtype(dtype)
}

/// Returns the gradient of the second tensor. The gradient of the first is an error, as in PyTorch.
fn of_second(
    call: &GradientCall<'_>,
    slope: impl FnOnce(&Tensor, &Tensor) -> Result<Tensor>,
) -> Result<Gradients> {
    if call.wants(0) {
        return Err(Error::not_implemented(
            "the derivative for 'self' is not implemented; only that for 'other' is",
        ));
    }
    let (x, y) = (call.saved(0)?, call.saved(1)?);
    let gradient =
        call.gradient()?.mul(&slope(&x, &y)?)?.sum_to_shape(call.shape(1))?.to_dtype(call.dtype_of(1))?;
    Ok(Gradients::from_iter([None, Some(gradient)]))
}

/// The gradient of ζ(s, q) with respect to q, −s ζ(s + 1, q).
static ZETA: Formula = Formula {
    inputs: &[0, 1],
    outputs: &[],
    backward: |call| of_second(call, |s, q| s.add_scalar(1.0)?.zeta(q)?.mul(&s.neg()?)),
};

/// Returns the density of the gamma distribution, xᵃ⁻¹ e⁻ˣ / Γ(a).
fn density(a: &Tensor, x: &Tensor) -> Result<Tensor> {
    a.sub_scalar(1.0)?.mul(&x.log()?)?.sub(x)?.sub(&a.lgamma()?)?.exp()
}

static LOWER_GAMMA: Formula =
    Formula { inputs: &[0, 1], outputs: &[], backward: |call| of_second(call, density) };

static UPPER_GAMMA: Formula =
    Formula { inputs: &[0, 1], outputs: &[], backward: |call| of_second(call, |a, x| density(a, x)?.neg()) };

fn polygamma(call: &Call<'_>) -> Result<Tensor> {
    let (n, x) = (call.int(0), call.tensor(1));
    refuse_if!(n < 0, "polygamma(n, x) does not support negative n.");
    match n {
        0 => return x.digamma(),
        1 => return super::call(built_in!("thalweg::trigamma")?, &[x.into()], None, call.label.location),
        _ => {}
    }
    // (−1)ⁿ⁺¹ n! ζ(n + 1, x).
    let x = if x.dtype().is_floating_point() { x.clone() } else { x.to_dtype(default_dtype())? };
    let wide = x.to_dtype(x.dtype().compute())?;
    let order = Tensor::full(&[], Scalar::F64(n as f64 + 1.0), wide.dtype(), x.device())?;
    let factorial: f64 = (2..=n.min(171)).map(|factor| factor as f64).product();
    let sign = if n % 2 == 0 { -1.0 } else { 1.0 };
    over(&order.zeta(&wide)?, |zeta| zeta.mul_scalar(sign * factorial))?.to_dtype(x.dtype())
}

fn mvlgamma(call: &Call<'_>) -> Result<Tensor> {
    let (x, p) = (call.tensor(0), call.int(1));
    refuse_if!(p < 1, "p has to be greater than or equal to 1");
    if x.dtype() == DType::Bool || p > 1 << 20 {
        return Err(Error::not_implemented(format!(
            "\"mvlgamma\" not implemented for '{}' and p = {p}",
            x.dtype()
        )));
    }
    let dtype = if x.dtype().is_floating_point() { x.dtype() } else { default_dtype() };
    // Σ ln Γ(x − j/2) over j below p.
    let shifts = Tensor::arange(p as usize, 0.0, -0.5, dtype.compute(), x.device())?;
    let sum = x.to_dtype(dtype.compute())?.unsqueeze(-1)?.add(&shifts)?.lgamma()?.sum(&[-1], false)?;
    let p = p as f64;
    sum.add_scalar(p * (p - 1.0) / 4.0 * std::f64::consts::PI.ln())?.to_dtype(dtype)
}
