//! Elementwise operators whose schema needs more than one formula: they choose a body.

use std::cmp::Ordering;

use thalweg_ir::{DType, Element, Scalar, with_dtype};
use thalweg_ops::{LoopOp, Signature, table};
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::Body::{Composite, Lowered};
use super::advanced_index::number_beside;
use super::{complex, operators, single};
use crate::dispatch::{Argument, Arguments, Call, Operator, built_in, over};
use crate::dtype_name::{named, unaliased_cpp_type};
use crate::kernels::creation::convertible;
use crate::loops::{LoopArguments, LoopCall, signature};
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns self + alpha · other; for truth values, whether either is true. The shapes are broadcast.
    "add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
        fn add(other: tensor) = Lowered(|call| scaled(call, [&table::add, &table::add_scaled]));
    /// Returns self + alpha · other. Integers wrap around, and so does a number that their dtype cannot represent.
    "add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor"
        fn add_scalar(other: scalar) = Lowered(|call| shifted(call, 1));
    /// Returns self − alpha · other. The shapes are broadcast.
    "sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
        fn sub(other: tensor) = Lowered(|call| {
            check_difference(call)?;
            scaled(call, [&table::sub, &table::sub_scaled])
        });
    /// Returns self − alpha · other. Integers wrap around, and so does a number that their dtype cannot represent.
    "sub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor"
        fn sub_scalar(other: scalar) = Lowered(|call| {
            check_difference(call)?;
            shifted(call, -1)
        });
    /// Returns self · 2 to the power of each element of other; see `bitwise_left_shift.Tensor`.
    "bitwise_left_shift.Scalar_Tensor(Scalar self, Tensor other) -> Tensor" = Composite(|call| {
        number_beside(call, 0, call.tensor(1))?.bitwise_left_shift(call.tensor(1)).map(single)
    });
    /// Returns self divided by 2 to the power of each element of other, rounded down; see `bitwise_right_shift.Tensor`.
    "bitwise_right_shift.Scalar_Tensor(Scalar self, Tensor other) -> Tensor" = Composite(|call| {
        number_beside(call, 0, call.tensor(1))?.bitwise_right_shift(call.tensor(1)).map(single)
    });
    /// Returns self · 2 to the power of other for integers: Python's `<<`.
    "__lshift__.Tensor(Tensor self, Tensor other) -> Tensor"
        = Composite(|call| call.tensor(0).bitwise_left_shift(call.tensor(1)).map(single));
    /// Returns self · 2 to the power of other for integers: Python's `<<`.
    "__lshift__.Scalar(Tensor self, Scalar other) -> Tensor"
        = Composite(|call| call.tensor(0).bitwise_left_shift_scalar(call.scalar(1)).map(single));
    /// Returns self divided by 2 to the power of other, rounded down, for integers: Python's `>>`.
    "__rshift__.Tensor(Tensor self, Tensor other) -> Tensor"
        = Composite(|call| call.tensor(0).bitwise_right_shift(call.tensor(1)).map(single));
    /// Returns self divided by 2 to the power of other, rounded down, for integers: Python's `>>`.
    "__rshift__.Scalar(Tensor self, Scalar other) -> Tensor"
        = Composite(|call| call.tensor(0).bitwise_right_shift_scalar(call.scalar(1)).map(single));
    /// Returns fractions between ½ and 1, or −½ and −1, and int32 exponents of 2, whose product is self; 0 has the exponent 0.
    "frexp.Tensor(Tensor self) -> (Tensor mantissa, Tensor exponent)"
        fn frexp() -> 2 = Composite(|call| {
            if !call.tensor(0).dtype().is_floating_point() {
                refuse!("torch.frexp() only supports floating-point dtypes");
            }
            let arguments = [call.tensor(0).into()];
            let part = |operator: &'static Operator| super::call(operator, &arguments, None, call.label.location);
            let exponent = part(built_in!("thalweg::exponent_of_power")?)?.detach().to_dtype(DType::I32)?;
            Ok(Tensors::from_iter([part(built_in!("thalweg::fraction_of_power")?)?, exponent]))
        }), out: [OfResult];
    /// Returns self, but not below min and not above max; max if min is above it, and NaN if one of two bounds is NaN (one bound that is NaN is none). At the
    /// bounds the gradient is passed on. Bounds that the dtype cannot represent are refused.
    "clamp(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor"
        fn clamp(min: scalar, max: scalar) = Lowered(clamp);
    /// Returns self + weight · (end − self) for tensors of one floating-point dtype.
    "lerp.Scalar(Tensor self, Tensor end, Scalar weight) -> Tensor"
        fn lerp(end: tensor, weight: scalar) = Lowered(|call| {
            check_one_dtype(call)?;
            representable(with_numbers(call, &table::lerp, [call.scalar(2)]))
        });
    /// Returns self + weight · (end − self) for tensors of one floating-point dtype; a weight without dimensions may have another
    /// dtype.
    "lerp.Tensor(Tensor self, Tensor end, Tensor weight) -> Tensor"
        fn lerp_tensor(end: tensor, weight: tensor) = Lowered(|call| {
            check_one_dtype(call)?;
            Ok(with_numbers(call, &table::lerp_tensor, []))
        });
    /// Returns self + value · tensor1 · tensor2. For integers the fraction of value is dropped.
    "addcmul(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor"
        fn addcmul(tensor1: tensor, tensor2: tensor, value: scalar) = Lowered(|call| {
            let is_of_integers = !call.tensors.iter().any(|tensor| tensor.dtype().is_differentiable());
            if call.tensors.iter().all(|tensor| tensor.dtype() == DType::Bool) {
                return Err(Error::not_implemented("\"addcmul\" not implemented for 'Bool'"));
            }
            let value = if is_of_integers { whole(call.scalar(3))? } else { call.scalar(3) };
            representable(with_numbers(call, &table::addcmul, [value]))
        }), first: Consumed, autocast: Widest, complex: Sum("mul.Tensor");
    /// Returns self + value · tensor1 / tensor2. Two tensors of integers are refused.
    "addcdiv(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor"
        fn addcdiv(tensor1: tensor, tensor2: tensor, value: scalar) = Lowered(|call| {
            if [1, 2].iter().all(|&place| !call.tensor(place).dtype().is_differentiable()) {
                return Err(Error::invalid(INTEGER_DIVISION));
            }
            representable(with_numbers(call, &table::addcdiv, [call.scalar(3)]))
        }), first: Consumed, autocast: Widest, complex: Sum("div.Tensor");
    /// Returns whether the sign of each element is negative, including that of −0.
    "signbit(Tensor self) -> Tensor" fn signbit() = Lowered(|call| Ok(with_numbers(call, &table::signbit, []))), out: [Boolean];
    /// Returns whether each element is +∞.
    "isposinf(Tensor self) -> Tensor" fn isposinf() = Lowered(|call| of_real(call, &table::isposinf)), out: [Boolean];
    /// Returns whether each element is −∞.
    "isneginf(Tensor self) -> Tensor" fn isneginf() = Lowered(|call| of_real(call, &table::isneginf)), out: [Boolean];
    /// Returns the Gaussian error linear unit, self · Φ(self); with `approximate='tanh'` by the tanh form of Φ.
    "gelu(Tensor self, *, str approximate='none') -> Tensor"
        fn gelu() = Lowered(gelu);
    /// Returns ln (1 + e^(beta · self)) / beta, and self where beta · self is above the threshold.
    "softplus(Tensor self, Scalar beta=1, Scalar threshold=20) -> Tensor"
        fn softplus() = Lowered(|call| {
            Ok(with_numbers(call, &table::softplus_of, [call.scalar(1), call.scalar(2)]))
        }), autocast: Full;
    /// Returns other − alpha · self: `sub` with its operands exchanged.
    "rsub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
        = Lowered(|call| {
            check_difference(call)?;
            let mut lowered = scaled(call, [&table::sub, &table::sub_scaled])?;
            lowered.tensors.reverse();
            Ok(lowered)
        });
    /// Returns other − alpha · self.
    "rsub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor"
        fn rsub_scalar(other: scalar) = Lowered(|call| {
            check_difference(call)?;
            check_alpha(call, call.scalar(2))?;
            Ok(with_numbers(call, &table::rsub_scalar, [call.scalar(1), call.scalar(2)]))
        });
    /// Returns self / other; integers are divided as float32. Floats of 16 bits are multiplied by the reciprocal in float32.
    "div.Scalar(Tensor self, Scalar other) -> Tensor"
        fn div_scalar(other: scalar) = Lowered(|call| {
            let dtype = call.tensor(0).dtype();
            let is_narrow = dtype.is_floating_point() && dtype.size_bytes() == 2;
            let body = if is_narrow { &table::mul_reciprocal } else { &table::div_scalar };
            Ok(with_numbers(call, body, [call.scalar(1)]))
        });
    /// Returns self / other, rounded down with `rounding_mode='floor'` and towards 0 with `'trunc'`. The shapes are broadcast.
    "div.Tensor_mode(Tensor self, Tensor other, *, str? rounding_mode) -> Tensor"
        fn div_mode(other: tensor, rounding_mode: optional_str) = Lowered(|call| {
            let bodies = [&table::div, &table::trunc_divide, &table::floor_divide_of];
            Ok(with_numbers(call, rounded(call, bodies)?, []))
        }), out_form: "div.out_mode";
    /// Returns self / other, rounded down with `rounding_mode='floor'` and towards 0 with `'trunc'`.
    "div.Scalar_mode(Tensor self, Scalar other, *, str? rounding_mode) -> Tensor"
        fn div_scalar_mode(other: scalar, rounding_mode: optional_str) = Lowered(|call| {
            let bodies = [&table::div_scalar, &table::trunc_divide_scalar, &table::floor_divide_scalar];
            Ok(with_numbers(call, rounded(call, bodies)?, [call.scalar(1)]))
        });
    /// Returns self / other, rounded down. The shapes are broadcast.
    "floor_divide(Tensor self, Tensor other) -> Tensor"
        fn floor_divide(other: tensor) = Lowered(|call| Ok(with_numbers(call, &table::floor_divide_of, []))), in_place: "floor_divide_.Tensor";
    /// Returns self / other, rounded down.
    "floor_divide.Scalar(Tensor self, Scalar other) -> Tensor"
        fn floor_divide_scalar(other: scalar)
        = Lowered(|call| Ok(with_numbers(call, &table::floor_divide_scalar, [call.scalar(1)])));
    /// Returns self to the power of exponent; for integers an integer. The shapes are broadcast.
    "pow.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor"
        fn pow(exponent: tensor) = Lowered(|call| {
            let is_floating_point = call.tensors.iter().any(|tensor| tensor.dtype().is_floating_point());
            let body = if is_floating_point { &table::power } else { &table::integer_power };
            Ok(with_numbers(call, body, []))
        }), in_place: "pow_.Tensor", autocast: Full, complex: Parts(|call| complex::power(call.tensor(0), call.tensor(1)).map(single));
    /// Returns self to the power of exponent; for integers an integer, and a negative exponent is refused.
    "pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor"
        fn pow_scalar(exponent: scalar) = Lowered(|call| {
            let exponent = call.scalar(1);
            if call.tensor(0).dtype().is_floating_point()
                && let Some(body) = power_without_logarithm(exponent)
            {
                return Ok(with_numbers(call, body, []));
            }
            if call.tensor(0).dtype().is_floating_point() || exponent.is_floating_point() {
                return Ok(with_numbers(call, &table::power_scalar, [exponent]));
            }
            refuse_if!(exponent.to_i64() < 0, "Integers to negative integer powers are not allowed.");
            representable(with_numbers(call, &table::integer_power_scalar, [exponent]))
        }), in_place: "pow_.Scalar", autocast: Full, complex: Parts(complex::power_by_number);
    /// Returns a number to the power of each element of exponent; for integers an integer.
    "pow.Scalar(Scalar self, Tensor exponent) -> Tensor"
        = Lowered(|call| {
            let base = call.scalar(0);
            let is_floating_point = call.tensor(1).dtype().is_floating_point() || base.is_floating_point();
            let body = if is_floating_point { &table::pow_of_scalar } else { &table::integer_power_of_scalar };
            Ok(with_numbers(call, body, [base]))
        }), autocast: Full, complex: Parts(complex::power_of_number);
    /// Returns self, but not below min and not above max, which are broadcast; NaN where any of them is NaN.
    "clamp.Tensor(Tensor self, Tensor? min=None, Tensor? max=None) -> Tensor"
        fn clamp_tensor(min: optional_tensor, max: optional_tensor) = Lowered(|call| {
            let body = match (call.optional_tensor(1), call.optional_tensor(2)) {
                (Some(_), Some(_)) => &table::clamp_between,
                (Some(_), None) => &table::clamp_above,
                (None, Some(_)) => &table::clamp_below,
                (None, None) => {
                    refuse!("torch.clamp: At least one of 'min' or 'max' must not be None");
                }
            };
            Ok(with_numbers(call, body, []))
        });
    /// Returns self, but not below min; NaN if min is NaN.
    "clamp_min(Tensor self, Scalar min) -> Tensor"
        fn clamp_min(min: scalar) = Lowered(|call| {
            let min = call.scalar(1);
            Ok(match min.to_f64().is_nan() {
                true => with_numbers(call, &table::clamp, [min, Scalar::F64(f64::INFINITY)]),
                false => with_numbers(call, &table::clamp_min, [min]),
            })
        });
    /// Returns self, but not above max; NaN if max is NaN.
    "clamp_max(Tensor self, Scalar max) -> Tensor"
        fn clamp_max(max: scalar) = Lowered(|call| {
            let max = call.scalar(1);
            Ok(match max.to_f64().is_nan() {
                true => with_numbers(call, &table::clamp, [Scalar::F64(f64::NEG_INFINITY), max]),
                false => with_numbers(call, &table::clamp_max, [max]),
            })
        });
    /// Returns self, but not below min, which is broadcast.
    "clamp_min.Tensor(Tensor self, Tensor min) -> Tensor"
        fn clamp_min_tensor(min: tensor)
        = Lowered(|call| Ok(with_numbers(call, &table::clamp_above, [])));
    /// Returns self, but not above max, which is broadcast.
    "clamp_max.Tensor(Tensor self, Tensor max) -> Tensor"
        fn clamp_max_tensor(max: tensor)
        = Lowered(|call| Ok(with_numbers(call, &table::clamp_below, [])));
    /// Returns |self| with the sign of other. The shapes are broadcast.
    "copysign.Tensor(Tensor self, Tensor other) -> Tensor"
        fn copysign(other: tensor) = Lowered(|call| Ok(with_numbers(call, &table::copysign_of, [])));
    /// Returns |self| with the sign of other.
    "copysign.Scalar(Tensor self, Scalar other) -> Tensor"
        = Lowered(|call| Ok(with_numbers(call, &table::copysign_scalar, [call.scalar(1)])));
    /// Returns ln (self / (1 − self)), with self clamped between eps and 1 − eps if eps is given.
    "logit(Tensor self, float? eps=None) -> Tensor"
        fn logit(eps: optional_float) = Composite(|call| {
            let x = call.tensor(0);
            match call.optional_float(1) {
                None => built_in!("thalweg::logit_of")?.call(&[x.into()], None, call.label),
                Some(eps) => {
                    let [low, high] = [eps, 1.0 - eps].map(|bound| Argument::Scalar(Scalar::F64(bound)));
                    built_in!("thalweg::logit_within")?.call(&[x.into(), low, high], None, call.label)
                }
            }
        }), first: Consumed;
    /// Returns self with NaN replaced by nan (0) and infinities by posinf and neginf (the dtype's greatest and least numbers).
    "nan_to_num(Tensor self, float? nan=None, float? posinf=None, float? neginf=None) -> Tensor"
        fn nan_to_num() = Composite(nan_to_num), out: [OfResult], first: Consumed, complex: Parts(complex::over_parts);
    /// Returns self².
    "square(Tensor self) -> Tensor"
        fn square() = Composite(|call| {
            let x = call.tensor(0);
            // Truth values are squared as int64.
            let x = if x.dtype() == DType::Bool { x.to_dtype(DType::I64)? } else { x.clone() };
            built_in!("thalweg::square_of")?.call(&[(&x).into()], None, call.label)
        }), first: Consumed, autocast: Full;
    /// Returns self between min_val and max_val. The gradient at the bounds is 0.
    "hardtanh(Tensor self, Scalar min_val=-1, Scalar max_val=1) -> Tensor"
        fn hardtanh(min_val: scalar, max_val: scalar) = Lowered(|call| {
            let bounds = [call.scalar(1), call.scalar(2)];
            Ok(match call.tensor(0).dtype().is_floating_point() {
                // Bounds that are NaN, or in the wrong order, are those of a clamp.
                true if bounds[0].to_f64().partial_cmp(&bounds[1].to_f64()).is_none_or(Ordering::is_gt) => {
                    with_numbers(call, &table::clamp, bounds)
                }
                true => with_numbers(call, bounded(call.tensor(0).dtype(), bounds), bounds),
                false => with_numbers(call, &table::hardtanh_of, bounds.map(|bound| Scalar::I64(bound.to_i64()))),
            })
        });
    /// Returns self where it is positive, else self times negative_slope.
    "leaky_relu(Tensor self, Scalar negative_slope=0.01) -> Tensor"
        fn leaky_relu(negative_slope: scalar) = Lowered(|call| {
            let slope = call.scalar(1);
            Ok(with_numbers(call, if slope.to_f64() >= 0.0 { &table::leaky_relu_rising } else { &table::leaky_relu_of }, [slope]))
        });
    /// Returns 0 where self is negative, 1 where it is positive, and the element of values where it is 0.
    "heaviside(Tensor self, Tensor values) -> Tensor"
        fn heaviside(values: tensor) = Lowered(|call| match call.tensor(0).dtype() == call.tensor(1).dtype() {
            true => Ok(with_numbers(call, &table::heaviside, [])),
            false => Err(invalid!("heaviside is not yet implemented for tensors with different dtypes.")),
        });
    /// Returns self where it is above the threshold, else value. Integers stay integers.
    "threshold(Tensor self, Scalar threshold, Scalar value) -> Tensor"
        fn threshold(threshold: scalar, value: scalar) = Lowered(|call| {
            let numbers = [call.scalar(1), call.scalar(2)];
            let dtype = call.tensor(0).dtype();
            match dtype {
                DType::Bool => Err(Error::not_implemented("\"threshold\" not implemented for 'Bool'")),
                _ if dtype.is_floating_point() => representable(with_numbers(call, &table::threshold, numbers)),
                _ => {
                    let [threshold, value] = numbers;
                    representable(with_numbers(call, &table::threshold, [whole(threshold)?, whole(value)?]))
                }
            }
        });
    /// Returns self moved towards 0 by lambd, and 0 where |self| is at most lambd.
    "softshrink(Tensor self, Scalar lambd=0.5) -> Tensor"
        fn softshrink(lambd: scalar) = Lowered(|call| {
            let lambd = call.scalar(1);
            refuse_if!(
                lambd.to_f64().is_nan() || lambd.to_f64() < 0.0,
                "lambda must be in range [0, 3.40282e+38] for input dtype Float, but found {}",
                lambd.to_f64()
            );
            Ok(with_numbers(call, &table::softshrink_of, [lambd]))
        });
    /// Returns one half of a dimension times the sigmoid of the other.
    "glu(Tensor self, int dim=-1) -> Tensor"
        fn glu(dim: int) = Composite(|call| {
            let (x, dim) = (call.tensor(0), call.int(1));
            refuse_if!(x.rank() == 0, "glu does not support 0-dimensional tensors");
            let size = x.size(dim)?;
            if !size.is_multiple_of(2) {
                refuse!("Halving dimension must be even, but dimension {dim} is size {size}");
            }
            let gate = x.narrow(dim, size / 2, size / 2)?.sigmoid()?;
            over(&gate, |gate| x.narrow(dim, 0, size / 2)?.mul(gate)).map(single)
        });
    /// Returns self rounded to `decimals` decimals, ties to even.
    "round.decimals(Tensor self, *, int decimals) -> Tensor"
        fn round_decimals(decimals: int) = Composite(|call| {
            let (x, decimals) = (call.tensor(0), call.int(1));
            if decimals == 0 || !x.dtype().is_floating_point() {
                return x.round().map(single);
            }
            let power = 10f64.powi(decimals.unsigned_abs().min(400) as i32);
            let scaled = if decimals > 0 { x.mul_scalar(power)? } else { x.div_scalar(power)? };
            let rounded = over(&scaled, Tensor::round)?;
            over(&rounded, |rounded| match decimals > 0 {
                true => rounded.div_scalar(power),
                false => rounded.mul_scalar(power),
            })
            .map(single)
        }), first: Consumed;
}

/// Returns the body for exponents that need neither logarithm nor exponential.
fn power_without_logarithm(exponent: Scalar) -> Option<&'static LoopOp> {
    Some(match exponent.to_f64() {
        1.0 => &table::power_1,
        2.0 => &table::power_2,
        3.0 => &table::power_3,
        0.5 => &table::sqrt,
        -0.5 => &table::rsqrt,
        -1.0 => &table::reciprocal,
        -2.0 => &table::power_minus_2,
        _ => return None,
    })
}

/// Returns a call of a body over the tensors of a call and these numbers.
fn with_numbers<'a>(
    call: &'a Call<'a>,
    body: &'static LoopOp,
    numbers: impl IntoIterator<Item = Scalar>,
) -> LoopCall<'a> {
    let mut arguments = LoopArguments::default();
    numbers.into_iter().for_each(|number| arguments.scalars.push(number));
    LoopCall::new(body, call, call.tensors, arguments)
}

/// Returns a loop, and refuses numbers of it that the dtype in which it computes cannot represent.
fn representable(lowered: LoopCall<'_>) -> Result<LoopCall<'_>> {
    representable_in(lowered, |signature| signature.compute)
}

/// Returns a loop, and refuses numbers of it that a dtype of its signature cannot represent.
fn representable_in(lowered: LoopCall<'_>, dtype: impl Fn(&Signature) -> DType) -> Result<LoopCall<'_>> {
    let dtype = dtype(&signature(lowered.operator, &lowered.tensors, &lowered.arguments)?);
    lowered.arguments.scalars.iter().try_for_each(|&number| convertible(number, dtype).map(drop))?;
    Ok(lowered)
}

/// Returns a number without its fraction, and refuses one that 64 bits cannot represent.
fn whole(number: Scalar) -> Result<Scalar> {
    Ok(Scalar::I64(convertible(number, DType::I64)?.to_i64()))
}

/// PyTorch's message about a quotient of integers.
const INTEGER_DIVISION: &str = "Integer division with addcdiv is no longer supported, and in a future  release addcdiv will perform a true \
    division of tensor1 and tensor2. The historic addcdiv behavior can be implemented as (input + value * torch.trunc(tensor1 / \
    tensor2)).to(input.dtype) for integer inputs and as (input + value * tensor1 / tensor2) for float inputs. The future addcdiv \
    behavior is just the latter implementation: (input + value * tensor1 / tensor2), for all dtypes.";

/// Refuses tensors that are not of the first one's floating-point dtype, with PyTorch's message; a weight without dimensions may
/// have another.
fn check_one_dtype(call: &Call<'_>) -> Result<()> {
    let dtype = call.tensor(0).dtype();
    if !dtype.is_differentiable() {
        let name = call.operator.base_name();
        return Err(Error::not_implemented(format!("\"{name}\" not implemented for '{}'", named(dtype))));
    }
    for (tensor, parameter) in call.tensors.iter().zip(&call.schema().parameters).skip(1) {
        let may_differ = parameter.name == "weight" && tensor.rank() == 0;
        if tensor.dtype() != dtype && !may_differ {
            let [dtype, found] = [dtype, tensor.dtype()].map(unaliased_cpp_type);
            refuse!("expected dtype {dtype} for `{}` but got dtype {found}", parameter.name);
        }
    }
    Ok(())
}

/// Returns the call of a loop that PyTorch has for real numbers only.
fn of_real<'a>(call: &'a Call<'a>, body: &'static LoopOp) -> Result<LoopCall<'a>> {
    match call.tensor(0).dtype().is_complex() {
        true => Err(invalid!("{} does not support complex inputs.", call.operator.base_name())),
        false => Ok(with_numbers(call, body, [])),
    }
}

/// Returns whether a number of any kind is 1.
fn is_one(number: Scalar) -> bool {
    number.to_f64() == 1.0
}

/// Returns the number that is the second operand of a call, if it is not a tensor.
fn second_number(call: &Call<'_>) -> Option<Scalar> {
    (call.tensors.len() == 1).then(|| call.scalar(1))
}

/// Refuses a floating-point factor of integers, and a truth value as a factor of other numbers.
fn check_alpha(call: &Call<'_>, alpha: Scalar) -> Result<()> {
    let other = second_number(call);
    let is_floating_point = call.tensors.iter().any(|tensor| tensor.dtype().is_differentiable())
        || matches!(other, Some(Scalar::F64(_)));
    let is_bool = call.tensors.iter().all(|tensor| tensor.dtype() == DType::Bool)
        && matches!(other, None | Some(Scalar::Bool(_)));
    match alpha {
        Scalar::F64(_) if !is_floating_point => {
            Err(invalid!("For integral input tensors, argument alpha must not be a floating point number."))
        }
        Scalar::Bool(_) if !is_bool => Err(invalid!("Boolean alpha only supported for Boolean results.")),
        _ => Ok(()),
    }
}

/// Refuses truth values as operands of a difference.
fn check_difference(call: &Call<'_>) -> Result<()> {
    let of_tensors = call.tensors.iter().filter(|tensor| tensor.dtype() == DType::Bool).count();
    match of_tensors + usize::from(matches!(second_number(call), Some(Scalar::Bool(_)))) {
        0 => Ok(()),
        1 => Err(invalid!(
            "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a mask, use the `~` or \
             `logical_not()` operator instead."
        )),
        _ => Err(invalid!(
            "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or `logical_xor()` operator instead."
        )),
    }
}

/// Returns the first body, or the second with a factor of the second tensor.
fn scaled<'a>(call: &'a Call<'a>, [plain, with_alpha]: [&'static LoopOp; 2]) -> Result<LoopCall<'a>> {
    let alpha = call.scalar(2);
    check_alpha(call, alpha)?;
    // The factor is converted to the tensors' dtype: for truth values it is a truth value itself.
    let is_bool = call.tensors.iter().all(|tensor| tensor.dtype() == DType::Bool);
    let alpha = if is_bool { Scalar::Bool(alpha.to_f64() != 0.0) } else { alpha };
    Ok(match is_one(alpha) {
        true => with_numbers(call, plain, []),
        false => with_numbers(call, with_alpha, [alpha]),
    })
}

/// Returns a number, times alpha and a sign, added to a tensor.
fn shifted<'a>(call: &'a Call<'a>, sign: i64) -> Result<LoopCall<'a>> {
    let (other, alpha) = (call.scalar(1), call.scalar(2));
    check_alpha(call, alpha)?;
    let added = match (other, alpha) {
        (other, alpha) if is_one(alpha) && sign == 1 => other,
        (Scalar::F64(_), _) | (_, Scalar::F64(_)) => {
            Scalar::F64(other.to_f64() * alpha.to_f64() * sign as f64)
        }
        _ => Scalar::I64(other.to_i64().wrapping_mul(alpha.to_i64()).wrapping_mul(sign)),
    };
    Ok(with_numbers(call, &table::add_scalar, [added]))
}

/// Returns the loop of a clamp with one bound or both, which the compute dtype must be able to represent.
fn clamp<'a>(call: &'a Call<'a>) -> Result<LoopCall<'a>> {
    let lowered = match (call.optional_scalar(1), call.optional_scalar(2)) {
        (Some(min), Some(max)) => with_numbers(call, &table::clamp, [min, max]),
        (Some(min), None) => with_numbers(call, &table::clamp_min, [min]),
        (None, Some(max)) => with_numbers(call, &table::clamp_max, [max]),
        (None, None) => {
            refuse!("torch.clamp: At least one of 'min' or 'max' must not be None");
        }
    };
    // Bounds are numbers of the result's dtype, also where 16-bit floats are computed in 32 bits.
    representable_in(lowered, |signature| signature.common)
}

/// Returns the loop of a clamp whose gradient at the bounds is 0. If the result shows where they were reached, it is kept, and not the input.
fn bounded(dtype: DType, bounds: [Scalar; 2]) -> &'static LoopOp {
    let is_exact = |bound: &Scalar| {
        let bound = bound.to_f64();
        with_dtype!(dtype, T => <T as Element>::from_f64(bound).to_f64() == bound)
    };
    if bounds.iter().all(is_exact) { &table::hardtanh_exact } else { &table::hardtanh_of }
}

fn gelu<'a>(call: &'a Call<'a>) -> Result<LoopCall<'a>> {
    match call.str(1) {
        "none" => Ok(with_numbers(call, &table::gelu, [])),
        "tanh" => Ok(with_numbers(call, &table::gelu_tanh, [])),
        other => Err(invalid!("approximate argument must be either none or tanh, not {other}")),
    }
}

/// Returns the body for a rounding mode: none, towards 0, down.
fn rounded(call: &Call<'_>, bodies: [&'static LoopOp; 3]) -> Result<&'static LoopOp> {
    match call.optional_str(2) {
        None => Ok(bodies[0]),
        Some("trunc") => Ok(bodies[1]),
        Some("floor") => Ok(bodies[2]),
        Some(other) => Err(invalid!(
            "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '{other}'"
        )),
    }
}

fn nan_to_num(call: &Call<'_>) -> Result<Tensors> {
    let x = call.tensor(0);
    if !x.dtype().is_floating_point() {
        return x.copied(call.label.location).map(single);
    }
    let (least, greatest) = with_dtype!(x.dtype(),
        bool => (0.0, 0.0),
        integer T => (T::MIN as f64, T::MAX as f64),
        reduced T => (T::MIN.to_f64(), T::MAX.to_f64()),
        float T => (T::MIN.to_f64(), T::MAX.to_f64()),
    );
    let number = |place: usize, default: f64| Argument::Float(call.optional_float(place).unwrap_or(default));
    let arguments = [x.into(), number(1, 0.0), number(2, greatest), number(3, least)];
    built_in!("thalweg::nan_to_num_of")?.call(&arguments, None, call.label)
}
