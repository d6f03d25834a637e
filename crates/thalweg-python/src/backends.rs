//! Switches of the libraries that operators use, for `thalweg.backends`, each under its PyTorch name.

use pyo3::prelude::*;
use thalweg::backends::cuda::matmul::{self, ReducedPrecisionReduction};
use thalweg::backends::{self, cudnn};
use thalweg::tensor::deterministic::{self, DeterministicDebugMode};

use crate::failure::{run, value_error};

/// A switch: its name, its getter and its setter.
type Switch = (&'static str, fn() -> bool, fn(bool));

const SWITCHES: [Switch; 7] = [
    ("cuda.matmul.allow_tf32", matmul::allow_tf32, matmul::set_allow_tf32),
    (
        "cuda.matmul.allow_fp16_accumulation",
        matmul::allow_fp16_accumulation,
        matmul::set_allow_fp16_accumulation,
    ),
    ("cudnn.enabled", cudnn::enabled, cudnn::set_enabled),
    ("cudnn.allow_tf32", cudnn::allow_tf32, cudnn::set_allow_tf32),
    ("cudnn.deterministic", cudnn::deterministic, cudnn::set_deterministic),
    ("cudnn.benchmark", cudnn::benchmark, cudnn::set_benchmark),
    (
        "deterministic.fill_uninitialized_memory",
        deterministic::fill_uninitialized_memory,
        deterministic::set_fill_uninitialized_memory,
    ),
];

fn switch(name: &str) -> PyResult<Switch> {
    let found = SWITCHES.into_iter().find(|(own, ..)| *own == name);
    found.ok_or_else(|| value_error(format!("there is no switch `{name}`")))
}

/// Returns whether a switch is on.
#[pyfunction]
fn _switch(name: &str) -> PyResult<bool> {
    Ok(switch(name)?.1())
}

/// Sets a switch.
#[pyfunction]
fn _set_switch(name: &str, value: bool) -> PyResult<()> {
    switch(name)?.2(value);
    Ok(())
}

/// Returns how operators that are not deterministic are treated: 0 to allow them, 1 to warn, 2 to raise an error.
#[pyfunction]
fn _deterministic_debug_mode() -> u8 {
    deterministic::deterministic_debug_mode() as u8
}

/// Sets how operators that are not deterministic are treated: 0 to allow them, 1 to warn, 2 to raise an error.
#[pyfunction]
fn _set_deterministic_debug_mode(mode: u8) -> PyResult<()> {
    let modes =
        [DeterministicDebugMode::Default, DeterministicDebugMode::Warn, DeterministicDebugMode::Error];
    let mode = modes.into_iter().find(|&known| known as u8 == mode);
    let mode =
        mode.ok_or_else(|| value_error("invalid value of debug_mode, expected 0, 1, or 2".to_owned()))?;
    deterministic::set_deterministic_debug_mode(mode);
    Ok(())
}

/// Returns whether products of 16-bit floats may be accumulated in reduced precision, and whether they may be split along k.
#[pyfunction]
fn _reduction(dtype: &str) -> PyResult<(bool, bool)> {
    let reduction = match dtype {
        "fp16" => matmul::allow_fp16_reduced_precision_reduction(),
        "bf16" => matmul::allow_bf16_reduced_precision_reduction(),
        other => return Err(value_error(format!("reductions are of fp16 or bf16, not {other}"))),
    };
    Ok((reduction.allow, reduction.allow_split_k))
}

/// Sets whether products of 16-bit floats may be accumulated in reduced precision, and whether they may be split along k.
#[pyfunction]
fn _set_reduction(py: Python<'_>, dtype: &str, allow: bool, allow_split_k: bool) -> PyResult<()> {
    let reduction = ReducedPrecisionReduction { allow, allow_split_k };
    match dtype {
        "fp16" => run(py, || matmul::set_allow_fp16_reduced_precision_reduction(reduction)),
        "bf16" => run(py, || matmul::set_allow_bf16_reduced_precision_reduction(reduction)),
        other => Err(value_error(format!("reductions are of fp16 or bf16, not {other}"))),
    }
}

/// Returns how products of float32 are computed, by the names of `set_float32_matmul_precision`.
#[pyfunction]
fn _float32_matmul_precision() -> &'static str {
    backends::get_float32_matmul_precision()
}

/// Sets how products of float32 are computed.
#[pyfunction]
fn _set_float32_matmul_precision(py: Python<'_>, precision: &str) -> PyResult<()> {
    run(py, || backends::set_float32_matmul_precision(precision))
}

/// Returns the maximum number of cuDNN algorithms that are tried.
#[pyfunction]
fn _benchmark_limit() -> u32 {
    cudnn::benchmark_limit()
}

/// Sets the maximum number of cuDNN algorithms that are tried.
#[pyfunction]
fn _set_benchmark_limit(limit: u32) {
    cudnn::set_benchmark_limit(limit);
}

/// Sets which of cuDNN, Flash and operators may compute attention in this thread, and returns the previous settings.
#[pyfunction]
fn _replace_sdp(cudnn: bool, flash: bool, math: bool) -> (bool, bool, bool) {
    thalweg::tensor::sdp::replace_allowed([cudnn, flash, math]).into()
}

/// Adds the functions, in a module of their own.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let own = PyModule::new(module.py(), "_backends")?;
    functions![&own;
        _switch, _set_switch, _deterministic_debug_mode, _set_deterministic_debug_mode, _reduction,
        _set_reduction, _float32_matmul_precision, _set_float32_matmul_precision, _benchmark_limit,
        _set_benchmark_limit, _replace_sdp
    ];
    module.add("_backends", own)
}
