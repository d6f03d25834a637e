//! The dtypes of command lines.

use thalweg::DType;

/// Returns the dtype of a value of `--dtype`.
pub fn dtype(name: &str) -> Result<DType, String> {
    match name {
        "f32" => Ok(DType::F32),
        "bf16" => Ok(DType::Bf16),
        other => Err(format!("--dtype takes f32 or bf16, not '{other}'")),
    }
}
