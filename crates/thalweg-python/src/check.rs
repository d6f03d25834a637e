//! A function of Python under the simulated GPU of a check: many seeds, with the sanitizer watching (`thalweg::sim`).
//!
//! While one runs, operators are labelled with the line of Python that called them, and `cpu`, `cuda` and `sim` name the device of the check.

use std::collections::HashSet;
use std::panic::Location;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use thalweg::sim::Check;
use thalweg::tensor::caller::label_at;

use crate::failure::guarded;

/// The number of checks that run.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// The names of labels, which live as long as the process: one for each operator and line that were met under checks.
static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);

/// The number of checks and audits that run, whose labels have lines of Python.
static REPORTING: AtomicUsize = AtomicUsize::new(0);

/// A guard that counts a check, or an audit, while it runs.
struct Running(&'static AtomicUsize);

impl Running {
    fn begin(count: &'static AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns whether labels have lines of Python.
pub fn is_reporting() -> bool {
    REPORTING.load(Ordering::Relaxed) != 0
}

/// Runs a function while labels have the lines of Python that called the operators.
pub fn with_lines<T>(function: impl FnOnce() -> T) -> T {
    let _reporting = Running::begin(&REPORTING);
    function()
}

/// Returns whether a check runs in this process.
pub fn is_running() -> bool {
    RUNNING.load(Ordering::Relaxed) != 0
}

/// Returns the label of an operator: under a check or an audit its name has the line of Python that called it.
#[track_caller]
pub fn label(py: Python<'_>, operator: &'static str) -> thalweg::driver::Label {
    let location = Location::caller();
    if !is_reporting() {
        return label_at(operator, location);
    }
    match line_of_program(py) {
        Ok(Some(line)) => label_at(kept(format!("{operator} ({line})")), location),
        _ => label_at(operator, location),
    }
}

/// Returns `file:line` of the innermost frame of Python that is not this package's.
fn line_of_program(py: Python<'_>) -> PyResult<Option<String>> {
    let package: String = py.import("thalweg")?.getattr("__path__")?.get_item(0)?.extract()?;
    let mut frame = py.import("sys")?.getattr("_getframe")?.call0()?;
    while !frame.is_none() {
        let file: String = frame.getattr("f_code")?.getattr("co_filename")?.extract()?;
        if !file.starts_with(&package) {
            let line: u32 = frame.getattr("f_lineno")?.extract()?;
            return Ok(Some(format!("{file}:{line}")));
        }
        frame = frame.getattr("f_back")?;
    }
    Ok(None)
}

fn kept(name: String) -> &'static str {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_default();
    if let Some(known) = names.get(name.as_str()) {
        return known;
    }
    let name: &'static str = Box::leak(name.into_boxed_str());
    names.insert(name);
    name
}

/// Runs a function under so many seeds on a simulated GPU that a sanitizer watches. Raises the function's exception, or a `RuntimeError` with the report of
/// what was found.
#[pyfunction]
fn _check(py: Python<'_>, program: Py<PyAny>, seeds: u64) -> PyResult<()> {
    let raised: Mutex<Option<PyErr>> = Mutex::new(None);
    let found = guarded(|| {
        Ok(py.detach(|| {
            let _running = (Running::begin(&RUNNING), Running::begin(&REPORTING));
            // Tensors that Python still holds at the end are the garbage collector's affair.
            Check::new().seeds(0..seeds).allow_leaks().find(|_| {
                Python::attach(|py| {
                    program.call0(py).map(drop).map_err(|error| {
                        let text = error.to_string();
                        *raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                        text
                    })
                })
            })
        }))
    })?;
    let Err(failure) = found else { return Ok(()) };
    let report = failure.to_string();
    match raised.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) if matches!(failure.problem(), thalweg::sim::Problem::Error(_)) => {
            error.value(py).call_method1("add_note", (report,)).ok();
            Err(error)
        }
        _ => Err(PyRuntimeError::new_err(report)),
    }
}

/// Adds the function.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(_check, module)?)
}
