//! The CUDA C of sorts and selections. Each works on the bits of elements, so that one text serves every dtype of the same width.

use thalweg_ir::DType;

use super::keys::Keys;
use crate::source::Source;

/// Returns the name of the CUDA structure that maps elements of a dtype to keys.
pub(super) fn elements_of(dtype: DType) -> String {
    let bits = match dtype.size_bytes() {
        2 => "u16",
        4 => "u32",
        _ => "u64",
    };
    format!("elements_of<{bits}, {:#x}ull>", Keys::new(dtype, false).infinity.unwrap_or(0))
}

/// Returns a translation unit of a launch that sorts by digits.
pub(super) fn of_digits(name: &str, call: &str) -> String {
    Source::new(name).define("CALL", call).print(include_str!("digits.cu"))
}

/// Returns a translation unit of a selection.
pub(super) fn of_selection(name: &str, threads: u32, call: &str) -> String {
    Source::new(name).define("BLOCK", threads).define("CALL", call).print(include_str!("select.cu"))
}

/// Returns a translation unit of a selection from long rows.
pub(super) fn of_long_selection(name: &str, call: &str) -> String {
    Source::new(name).define("CALL", call).print(include_str!("long.cu"))
}
