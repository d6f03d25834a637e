//! The default floating-point dtype of the process (`torch.get_default_dtype`): the dtype to which operators with floating-point
//! results convert integers, and the dtype of tensors that are created without one.

use std::sync::atomic::{AtomicU8, Ordering};

use thalweg_ir::DType;

/// The index of the default dtype in [`FLOATS`].
static DEFAULT: AtomicU8 = AtomicU8::new(0);

/// The dtypes that may be the default, float32 first.
const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::Bf16];

/// Returns the default floating-point dtype: float32, unless [`set_default_dtype`] changed it.
pub fn default_dtype() -> DType {
    FLOATS[usize::from(DEFAULT.load(Ordering::Relaxed))]
}

/// Makes a dtype the default of every thread, as `torch.set_default_dtype` does. Returns whether the dtype is allowed: float64,
/// float32, float16 and bfloat16 are.
///
/// Concurrent calls see either the former or the new default.
pub fn set_default_dtype(dtype: DType) -> bool {
    let place = FLOATS.iter().position(|&float| float == dtype);
    if let Some(place) = place {
        DEFAULT.store(place as u8, Ordering::Relaxed);
    }
    place.is_some()
}
