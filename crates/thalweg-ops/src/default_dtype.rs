//! The default floating-point dtype of the process (`torch.get_default_dtype`): what integers become in operators that give floats, and what
//! tensors have that are made without a dtype.

use std::sync::atomic::{AtomicU8, Ordering};

use thalweg_ir::DType;

/// Its place in [`FLOATS`].
static DEFAULT: AtomicU8 = AtomicU8::new(0);

/// The dtypes that may be the default, float32 first.
const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::Bf16];

/// Returns the default floating-point dtype: float32, unless [`set_default_dtype`] changed it.
pub fn default_dtype() -> DType {
    FLOATS[usize::from(DEFAULT.load(Ordering::Relaxed))]
}

/// Makes a dtype the default of every thread, as `torch.set_default_dtype` does. Returns whether it can be: float64, float32, float16 and
/// bfloat16 can.
///
/// Calls that run at the same time see the former default or the new one.
pub fn set_default_dtype(dtype: DType) -> bool {
    let place = FLOATS.iter().position(|&float| float == dtype);
    if let Some(place) = place {
        DEFAULT.store(place as u8, Ordering::Relaxed);
    }
    place.is_some()
}
