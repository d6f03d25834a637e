//! Compiled functions: the regions that `torch.compile` runs functions in.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Once;

use pyo3::prelude::*;
use thalweg::tensor::compile::{self, Region};
use thalweg::{Device, Environment};

use crate::failure::run;
use crate::lines::Reader;
use crate::trees;

thread_local! {
    /// The regions that this thread is in.
    static REGIONS: RefCell<Vec<Region>> = const { RefCell::new(Vec::new()) };
}

/// Begins a region whose loops are compiled.
#[pyfunction]
fn _begin_compiled() {
    static LINES: Once = Once::new();
    let environment = Environment::get();
    if environment.explain_compile || environment.explain_file.is_some() {
        // The explanation names the lines of the program, for the rest of the process.
        LINES.call_once(|| std::mem::forget(Reader::new()));
    }
    begin();
}

/// Begins a region on this thread.
pub fn begin() {
    REGIONS.with_borrow_mut(|regions| regions.push(Region::enter()));
}

/// Begins a part of this thread that is excluded from the regions around it.
pub fn begin_excluded(py: Python<'_>) -> PyResult<()> {
    run(py, || {
        let region = Region::leave()?;
        REGIONS.with_borrow_mut(|regions| regions.push(region));
        Ok(())
    })
}

/// Ends the innermost region or part of this thread.
pub fn end(py: Python<'_>) -> PyResult<()> {
    run(py, || REGIONS.with_borrow_mut(Vec::pop).map_or(Ok(()), Region::end))
}

/// Begins a part that is excluded from the regions around it.
#[pyfunction]
fn _begin_uncompiled(py: Python<'_>) -> PyResult<()> {
    begin_excluded(py)
}

/// Ends the innermost region or part.
#[pyfunction]
fn _end_compiled(py: Python<'_>) -> PyResult<()> {
    end(py)
}

/// Returns whether this thread runs a compiled function.
#[pyfunction]
fn _is_compiling() -> bool {
    compile::is_compiling()
}

/// Forgets the programs and the graphs of this thread.
#[pyfunction]
fn _forget_programs() {
    compile::reset();
    trees::forget();
}

/// Returns the folder of compiled kernels, if they are kept.
#[pyfunction]
fn _kernel_folder() -> Option<PathBuf> {
    Environment::get().cache_directory.as_ref().map(|base| base.join("kernels"))
}

/// Returns counts of the work of this thread's compiled functions: loops, segments, kernels, programs, and loops that waited while
/// another kernel was queued.
#[pyfunction]
fn _compile_counters() -> (u64, u64, u64, u64, u64) {
    let counters = compile::counters();
    (counters.loops, counters.segments, counters.kernels, counters.programs, counters.passed)
}

/// Returns whether commands take time on a GPU beside the host: the current device is not simulated.
#[pyfunction]
fn _waits_for_gpu(py: Python<'_>) -> PyResult<bool> {
    run(py, || Device::current().map(|device| !device.is_simulated() && !device.is_meta()))
}

/// Returns the number of kernels that the current device has loaded.
#[pyfunction]
fn _loaded_kernel_count(py: Python<'_>) -> PyResult<usize> {
    run(py, || Ok(Device::current()?.loaded_kernel_count()))
}

/// Waits for all work of the current device.
#[pyfunction]
fn _await_gpu(py: Python<'_>) -> PyResult<()> {
    run(py, || Device::current()?.synchronize())
}

/// Returns whether the current stream captures.
#[pyfunction]
fn _is_capturing(py: Python<'_>) -> PyResult<bool> {
    run(py, || Device::current()?.current_stream().is_capturing())
}

/// Returns the bytes that are free on the current device, and the most that the program had allocated.
#[pyfunction]
fn _free_and_peak_bytes(py: Python<'_>) -> PyResult<(u64, u64)> {
    run(py, || {
        let device = Device::current()?;
        let info = device.driver().memory_info(device.index())?;
        Ok((info.free_bytes, device.max_memory_allocated()))
    })
}

/// Registers the functions.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    functions![module;
        _begin_compiled, _begin_uncompiled, _end_compiled, _is_compiling, _forget_programs, _kernel_folder,
        _compile_counters, _loaded_kernel_count, _waits_for_gpu, _await_gpu, _is_capturing, _free_and_peak_bytes
    ];
    Ok(())
}
