//! The formats in which drivers and libraries know dtypes.

use thalweg_driver::ElementFormat;
use thalweg_ir::DType;

/// Returns the format of a floating-point dtype's elements; `None` for dtypes that libraries do not compute with.
pub fn element_format(dtype: DType) -> Option<ElementFormat> {
    match dtype {
        DType::F32 => Some(ElementFormat::R_32F),
        DType::F64 => Some(ElementFormat::R_64F),
        DType::F16 => Some(ElementFormat::R_16F),
        DType::Bf16 => Some(ElementFormat::R_16BF),
        _ => None,
    }
}
