//! The names that dtypes have in PyTorch's messages.

use thalweg_ir::DType;
use thalweg_runtime::Error;

/// Returns the name of a dtype in PyTorch's messages.
pub(crate) fn named(dtype: DType) -> &'static str {
    dtype.exchange().scalar_type
}

/// Returns the C++ type of a dtype's elements as it appears in PyTorch's messages about `out` tensors: without aliases.
pub(crate) fn unaliased_cpp_type(dtype: DType) -> &'static str {
    dtype.exchange().plain_cpp
}

/// Returns PyTorch's message about a number that a dtype cannot represent.
pub(crate) fn overflow_text(dtype: DType) -> String {
    format!("value cannot be converted to type {} without overflow", dtype.exchange().cpp)
}

/// Returns the error of a number that a dtype cannot represent.
pub(crate) fn overflow(dtype: DType) -> Error {
    Error::invalid(overflow_text(dtype))
}
