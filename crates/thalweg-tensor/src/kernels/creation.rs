//! Tensors filled with one value, and the conversion of that number to the dtype or its refusal.

use thalweg_ir::{DType, Element, Scalar, with_dtype};
use thalweg_ops::default_dtype;
use thalweg_ops::structured::FULL;
use thalweg_runtime::{Device, Error, Result, invalid};

use crate::dispatch::Call;
use crate::dtype_name::overflow_text;
use crate::loops::{self, LoopCall};
use crate::tensor::{Tensor, Tensors};

/// Returns a tensor with one value, which the dtype must be able to represent.
pub(crate) fn full(call: &Call<'_>) -> Result<Tensors> {
    let mut lowered = LoopCall::of(&FULL, call)?;
    let dtype = lowered.arguments.dtype.unwrap_or_else(default_dtype);
    lowered.arguments.scalars[0] = convertible(lowered.arguments.scalars[0], dtype)?;
    loops::run(&lowered, None)
}

/// Returns a number as a tensor without dimensions. It is converted as elements are: beyond the range of a float it is infinite, and
/// integers wrap around.
///
/// # Errors
/// If the device has no memory.
pub fn converted(number: Scalar, dtype: DType, device: &Device) -> Result<Tensor> {
    if convertible(number, dtype).is_ok() {
        return Tensor::full(&[], number, dtype, device);
    }
    let widest = if number.is_floating_point() { DType::F64 } else { DType::I64 };
    Tensor::full(&[], number, widest, device)?.to_dtype(dtype)
}

/// Returns a number as [`converted`] does, and refuses one that the dtype cannot represent. As in PyTorch, only a float of 16 bits is
/// infinite beyond its range.
///
/// # Errors
/// [`Error::is_invalid_argument`] if the dtype cannot represent the number.
pub fn represented(number: Scalar, dtype: DType, device: &Device) -> Result<Tensor> {
    if !(dtype.is_floating_point() && dtype.size_bytes() < 4) {
        convertible(number, dtype)?;
    }
    converted(number, dtype, device)
}

/// Refuses a number that is beyond the range of a dtype of integers, as PyTorch does for a list of numbers.
///
/// # Errors
/// [`Error::is_invalid_argument`] if the number is beyond the range.
pub fn check_convertible(value: Scalar, dtype: DType) -> Result<()> {
    if dtype.is_differentiable() { Ok(()) } else { convertible(value, dtype).map(drop) }
}

/// Returns the value in the form that the kernel reads. Converted to a truth value, it is true unless it is 0; NaN is true. A
/// value beyond the dtype's range is refused as in PyTorch: infinities are valid floats, and a negative integer wraps around in
/// an unsigned type.
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
    Err(invalid!("{}: {number}", overflow_text(dtype)))
}
