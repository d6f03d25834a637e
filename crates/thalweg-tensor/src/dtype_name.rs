//! The names that dtypes have in PyTorch's messages.

use thalweg_ir::DType;
use thalweg_runtime::Error;

/// Returns the name of a dtype in PyTorch's messages.
pub(crate) fn named(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "Bool",
        DType::U8 => "Byte",
        DType::I8 => "Char",
        DType::I16 => "Short",
        DType::I32 => "Int",
        DType::I64 => "Long",
        DType::F16 => "Half",
        DType::Bf16 => "BFloat16",
        DType::F32 => "Float",
        DType::F64 => "Double",
        DType::C64 => "ComplexFloat",
        DType::C128 => "ComplexDouble",
        other => other.name(),
    }
}

/// Returns the C++ type of a dtype's elements, as it appears in PyTorch's messages about numbers.
fn cpp_type(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "bool",
        DType::U8 => "uint8_t",
        DType::I8 => "int8_t",
        DType::I16 => "int16_t",
        DType::I32 => "int",
        DType::I64 => "int64_t",
        DType::F16 => "c10::Half",
        DType::Bf16 => "c10::BFloat16",
        DType::F32 => "float",
        DType::F64 => "double",
        DType::C64 => "c10::complex<float>",
        DType::C128 => "c10::complex<double>",
        other => other.name(),
    }
}

/// Returns the C++ type of a dtype's elements as it appears in PyTorch's messages about `out` tensors: without aliases.
pub(crate) fn unaliased_cpp_type(dtype: DType) -> &'static str {
    match dtype {
        DType::U8 => "unsigned char",
        DType::I8 => "signed char",
        DType::I16 => "short int",
        DType::I64 => "long int",
        other => cpp_type(other),
    }
}

/// Returns PyTorch's message about a number that a dtype cannot represent.
pub(crate) fn overflow_text(dtype: DType) -> String {
    format!("value cannot be converted to type {} without overflow", cpp_type(dtype))
}

/// Returns the error of a number that a dtype cannot represent.
pub(crate) fn overflow(dtype: DType) -> Error {
    Error::invalid(overflow_text(dtype))
}
