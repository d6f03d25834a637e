//! Choice of kernels by measurement, for `thalweg.cuda.tunable`.

use std::path::Path;

use pyo3::prelude::*;
use thalweg::cuda::tunable;

use crate::device::or_current;
use crate::failure::run;

/// Defines Python functions that set or return one value by the Rust function of the same name.
macro_rules! forwarded {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $kind:ty)?) $(-> $result:ty)?;)*) => {
        $(
            $(#[$doc])*
            #[pyfunction]
            fn $name(py: Python<'_>, $($argument: $kind)?) -> PyResult<forwarded!(@ $($result)?)> {
                run(py, || Ok(tunable::$name($($argument)?)))
            }
        )*

        fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
            $(module.add_function(wrap_pyfunction!($name, module)?)?;)*
            Ok(())
        }
    };
    (@ $result:ty) => { $result };
    (@) => { () };
}

forwarded! {
    /// Turns tuning and the use of its results on or off.
    enable(on: bool);
    /// Returns whether the results of tuning are used for products.
    is_enabled() -> bool;
    /// Sets whether products without a result are tuned.
    tuning_enable(on: bool);
    /// Returns whether products without a result are tuned.
    tuning_is_enabled() -> bool;
    /// Sets whether products without a result are recorded.
    record_untuned_enable(on: bool);
    /// Returns whether products without a result are recorded.
    record_untuned_is_enabled() -> bool;
    /// Sets the maximum time in milliseconds for which a candidate is timed.
    set_max_tuning_duration(milliseconds: u32);
    /// Returns the maximum time in milliseconds for which a candidate is timed.
    get_max_tuning_duration() -> u32;
    /// Sets the maximum number of times that a candidate is timed.
    set_max_tuning_iterations(iterations: u32);
    /// Returns the maximum number of times that a candidate is timed.
    get_max_tuning_iterations() -> u32;
    /// Sets the total size in MB of the rotating copies of the operands.
    set_rotating_buffer_size(megabytes: i64);
}

/// Returns the total size in MB of the rotating copies of the operands on the current device.
#[pyfunction]
fn get_rotating_buffer_size(py: Python<'_>) -> PyResult<u64> {
    let device = or_current(py, None)?;
    run(py, || Ok(tunable::get_rotating_buffer_size(&device)))
}

/// Sets the tolerances for checking a candidate's result.
#[pyfunction]
fn set_numerical_check_tolerances(py: Python<'_>, enable: bool, atol: f64, rtol: f64) -> PyResult<()> {
    run(py, || {
        tunable::set_numerical_check_tolerances(enable, atol, rtol);
        Ok(())
    })
}

/// Sets the file for the results.
#[pyfunction]
fn set_filename(py: Python<'_>, filename: String, insert_device_ordinal: bool) -> PyResult<()> {
    run(py, || {
        tunable::set_filename(&filename, insert_device_ordinal);
        Ok(())
    })
}

/// Returns the file for the current device's results.
#[pyfunction]
fn get_filename(py: Python<'_>) -> PyResult<String> {
    let device = or_current(py, None)?;
    run(py, || Ok(tunable::get_filename(&device).to_string_lossy().into_owned()))
}

/// Returns the results for the current device: operator, sizes, solution, and milliseconds.
#[pyfunction]
fn get_results(py: Python<'_>) -> PyResult<Vec<(String, String, String, f64)>> {
    let device = or_current(py, None)?;
    run(py, || {
        let results = tunable::get_results(&device).into_iter();
        Ok(results.map(|one| (one.operator, one.parameters, one.solution, one.milliseconds)).collect())
    })
}

/// Returns the versions and properties that the results of the current device depend on.
#[pyfunction]
fn get_validators(py: Python<'_>) -> PyResult<Vec<(String, String)>> {
    let device = or_current(py, None)?;
    run(py, || Ok(tunable::get_validators(&device)))
}

/// Reads results from a file, by default the current device's own.
#[pyfunction]
fn read_file(py: Python<'_>, filename: Option<String>) -> PyResult<bool> {
    let device = or_current(py, None)?;
    run(py, || tunable::read_file(&device, filename.as_deref().map(Path::new)))
}

/// Writes the results to a file, by default the current device's own.
#[pyfunction]
fn write_file(py: Python<'_>, filename: Option<String>) -> PyResult<()> {
    let device = or_current(py, None)?;
    run(py, || tunable::write_file(&device, filename.as_deref().map(Path::new)))
}

/// Tunes the products that are listed in a file.
#[pyfunction]
fn tune_gemm_in_file(py: Python<'_>, filename: String) -> PyResult<()> {
    let device = or_current(py, None)?;
    run(py, || tunable::tune_gemm_in_file(&device, Path::new(&filename), &mut |_, _, _| {}))
}

/// Adds the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let own = PyModule::new(module.py(), "_tunable")?;
    add(&own)?;
    functions![&own;
        get_rotating_buffer_size, set_numerical_check_tolerances, set_filename, get_filename, get_results,
        get_validators, read_file, write_file, tune_gemm_in_file
    ];
    module.add_submodule(&own)
}
