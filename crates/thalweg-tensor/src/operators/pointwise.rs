//! Elementwise operators whose schema says more than one formula takes: they choose a body.

use smallvec::SmallVec;
use thalweg_ir::{DType, Scalar};
use thalweg_ops::{LoopOp, table};
use thalweg_runtime::{Error, Result};

use super::Body::Lowered;
use super::operators;
use crate::dispatch::{Arguments, Call};
use crate::kernels::creation::convertible;
use crate::kernels::loops::{LoopArguments, LoopCall, signature_of};
use crate::tensor::Tensor;

operators! {
    /// Returns self + alpha · other; of truth values, whether one of both is true. The shapes are broadcast.
    "add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
        fn add(other: tensor) = Lowered(|call| scaled(call, [&table::add, &table::add_scaled]));
    /// Returns self + alpha · other. Integers wrap around, and so does a number that their dtype does not hold.
    "add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor"
        fn add_scalar(other: scalar) = Lowered(|call| shifted(call, 1));
    /// Returns self − alpha · other. The shapes are broadcast.
    "sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
        fn sub(other: tensor) = Lowered(|call| scaled(call, [&table::sub, &table::sub_scaled]));
    /// Returns self − alpha · other. Integers wrap around, and so does a number that their dtype does not hold.
    "sub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor"
        fn sub_scalar(other: scalar) = Lowered(|call| shifted(call, -1));
    /// Returns self, but not below min and not above max; max where min is above it, and NaN where a bound is. At the bounds the
    /// gradient is self's. Bounds that the dtype does not hold are refused.
    "clamp(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor"
        fn clamp(min: scalar, max: scalar) = Lowered(clamp);
    /// Returns the Gaussian error linear unit, self · Φ(self); with `approximate='tanh'` by the tanh form of Φ.
    "gelu(Tensor self, *, str approximate='none') -> Tensor"
        fn gelu() = Lowered(gelu);
    /// Returns ln (1 + e^(beta · self)) / beta, and self where beta · self is above the threshold.
    "softplus(Tensor self, Scalar beta=1, Scalar threshold=20) -> Tensor"
        fn softplus() = Lowered(|call| {
            Ok(with_numbers(call, &table::softplus_of, [call.scalar(1), call.scalar(2)]))
        });
}

/// A call of a body over the tensors of a call and these numbers.
fn with_numbers<'a>(
    call: &'a Call<'a>,
    body: &'static LoopOp,
    numbers: impl IntoIterator<Item = Scalar>,
) -> LoopCall<'a> {
    let scalars: SmallVec<[Scalar; 12]> = numbers.into_iter().collect();
    let arguments = LoopArguments { scalars, ..LoopArguments::default() };
    LoopCall::new(body, call, call.tensors.iter().copied(), arguments)
}

/// Whether a number is 1, whatever its kind.
fn is_one(number: Scalar) -> bool {
    number.to_f64() == 1.0
}

/// Refuses a floating-point factor of integers, and a truth value as a factor of other numbers.
fn check_alpha(alpha: Scalar, tensors: &[&Tensor]) -> Result<()> {
    let is_floating_point = tensors.iter().any(|tensor| tensor.dtype().is_floating_point());
    let is_bool = tensors.iter().all(|tensor| tensor.dtype() == DType::Bool);
    match alpha {
        Scalar::F64(_) if !is_floating_point => Err(Error::invalid(
            "For integral input tensors, argument alpha must not be a floating point number.",
        )),
        Scalar::Bool(_) if !is_bool => {
            Err(Error::invalid("Boolean alpha only supported for Boolean results."))
        }
        _ => Ok(()),
    }
}

/// The first body, or the second with a factor of the second tensor.
fn scaled<'a>(call: &'a Call<'a>, [plain, with_alpha]: [&'static LoopOp; 2]) -> Result<LoopCall<'a>> {
    let alpha = call.scalar(2);
    check_alpha(alpha, call.tensors)?;
    Ok(match is_one(alpha) {
        true => with_numbers(call, plain, []),
        false => with_numbers(call, with_alpha, [alpha]),
    })
}

/// A number, times alpha and a sign, added to a tensor.
fn shifted<'a>(call: &'a Call<'a>, sign: i64) -> Result<LoopCall<'a>> {
    let (other, alpha) = (call.scalar(1), call.scalar(2));
    check_alpha(alpha, call.tensors)?;
    let added = match (other, alpha) {
        (other, alpha) if is_one(alpha) && sign == 1 => other,
        (Scalar::F64(_), _) | (_, Scalar::F64(_)) => {
            Scalar::F64(other.to_f64() * alpha.to_f64() * sign as f64)
        }
        _ => Scalar::I64(other.to_i64().wrapping_mul(alpha.to_i64()).wrapping_mul(sign)),
    };
    Ok(with_numbers(call, &table::add_scalar, [added]))
}

/// One bound or both, which the dtype that is computed in must hold.
fn clamp<'a>(call: &'a Call<'a>) -> Result<LoopCall<'a>> {
    let lowered = match (call.optional_scalar(1), call.optional_scalar(2)) {
        (Some(min), Some(max)) => with_numbers(call, &table::clamp, [min, max]),
        (Some(min), None) => with_numbers(call, &table::clamp_min, [min]),
        (None, Some(max)) => with_numbers(call, &table::clamp_max, [max]),
        (None, None) => {
            return Err(Error::invalid("torch.clamp: At least one of 'min' or 'max' must not be None"));
        }
    };
    let compute = signature_of(lowered.operator, &lowered.tensors, &lowered.arguments)?.compute;
    lowered.arguments.scalars.iter().try_for_each(|&bound| convertible(bound, compute).map(drop))?;
    Ok(lowered)
}

fn gelu<'a>(call: &'a Call<'a>) -> Result<LoopCall<'a>> {
    match call.str(1) {
        "none" => Ok(with_numbers(call, &table::gelu, [])),
        "tanh" => Ok(with_numbers(call, &table::gelu_tanh, [])),
        other => {
            Err(Error::invalid(format!("approximate argument must be either none or tanh, not {other}")))
        }
    }
}
