//! One value everywhere: what a number becomes in the dtype, or why it cannot.

use thalweg_ir::{DType, Element, Scalar, with_dtype};
use thalweg_ops::default_dtype;
use thalweg_ops::structured::FULL;
use thalweg_runtime::{Error, Result};

use crate::dispatch::Call;
use crate::dtype_name::overflow_text;
use crate::loops::{self, LoopCall};
use crate::tensor::Tensors;

/// Returns a tensor with one value, which the dtype must hold.
pub(crate) fn full(call: &Call<'_>) -> Result<Tensors> {
    let mut lowered = LoopCall::of(&FULL, call)?;
    let dtype = lowered.arguments.dtype.unwrap_or_else(default_dtype);
    lowered.arguments.scalars[0] = convertible(lowered.arguments.scalars[0], dtype)?;
    loops::run(&lowered, None)
}

/// Refuses a number that is beyond the range of a dtype of integers, as PyTorch refuses it in a list of numbers.
///
/// # Errors
/// [`Error::is_invalid_argument`] if it is.
pub fn check_convertible(value: Scalar, dtype: DType) -> Result<()> {
    if dtype.is_differentiable() { Ok(()) } else { convertible(value, dtype).map(drop) }
}

/// Returns the value as the kernel reads it. A truth value is whether it is not 0, which NaN is not. What is beyond the dtype's
/// range is refused as PyTorch refuses it: infinities are floats, and a negative integer of an unsigned type wraps around.
pub(crate) fn convertible(value: Scalar, dtype: DType) -> Result<Scalar> {
    if dtype == DType::Bool {
        return Ok(Scalar::I64(i64::from(value.to_f64() != 0.0)));
    }
    // A real number has the imaginary part 0.
    let dtype = dtype.real();
    let range = with_dtype!(dtype,
        bool => f64::MIN..=f64::MAX,
        integer T => match dtype {
            // The greatest f64 below 2⁶³.
            DType::I64 => i64::MIN as f64..=(i64::MAX - 1023) as f64,
            _ if dtype.is_signed() || value.is_floating_point() => T::MIN as f64..=T::MAX as f64,
            _ => -(T::MAX as f64)..=T::MAX as f64,
        },
        reduced T => T::MIN.to_f64()..=T::MAX.to_f64(),
        float T => T::MIN.to_f64()..=T::MAX.to_f64(),
    );
    let number = value.to_f64();
    let whole = matches!(value, Scalar::Bool(_) | Scalar::I64(_)) && dtype == DType::I64;
    if whole || range.contains(&number) || (dtype.is_floating_point() && !number.is_finite()) {
        return Ok(value);
    }
    Err(Error::invalid(format!("{}: {number}", overflow_text(dtype))))
}
