//! DLPack.
use pyo3::prelude::*;
/// Adds the functions.
pub fn register(_module: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
