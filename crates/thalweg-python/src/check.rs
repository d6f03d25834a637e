//! Runs a Python function on the simulated GPU for many seeds, under the sanitizer (`thalweg::sim`).
//!
//! While a check runs, labels have lines of Python (`lines`), and `cpu`, `cuda` and `sim` name the device of the check.

use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use thalweg::distributed::simulated_devices;
use thalweg::sim::Check;
use thalweg_lock::Mutex;

use crate::failure::{guarded, run};
use crate::lines::Reader;
use crate::regions::set_aside;

/// The number of checks that are running.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// A guard that counts a check while it runs.
struct Running(());

impl Running {
    fn begin() -> Self {
        RUNNING.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns whether a check runs in this process.
pub fn is_running() -> bool {
    RUNNING.load(Ordering::Relaxed) != 0
}

/// Runs a function once for each of `seeds` seeds on a simulated GPU with the sanitizer. Raises the function's exception, or a
/// `RuntimeError` with the report of the findings.
#[pyfunction]
fn _check(py: Python<'_>, program: Py<PyAny>, seeds: u64) -> PyResult<()> {
    let raised: Mutex<Option<PyErr>> = Mutex::new(None);
    let found = guarded(|| {
        Ok(py.detach(|| {
            let _running = (Running::begin(), Reader::new());
            // Tensors that Python still holds at the end are left to the garbage collector.
            Check::new().seeds(0..seeds).allow_leaks().find(|gpu| {
                // The program's own threads use the device of the check, too.
                let _default = gpu.device().make_default();
                let _aside = set_aside();
                Python::attach(|py| {
                    program.call0(py).map(drop).map_err(|error| {
                        let text = error.to_string();
                        *raised.lock() = Some(error);
                        text
                    })
                })
            })
        }))
    })?;
    let Err(failure) = found else { return Ok(()) };
    let report = failure.to_string();
    match raised.into_inner() {
        Some(error) if matches!(failure.problem(), thalweg::sim::Problem::Error(_)) => {
            error.value(py).call_method1("add_note", (report,)).ok();
            Err(error)
        }
        _ => Err(PyRuntimeError::new_err(report)),
    }
}

/// Gives this process, which was forked from one that had used a device, a simulated GPU of its own, under every name of a
/// device. Tensors from before the fork stay on the former one, which this process cannot use.
#[pyfunction]
fn _start_in_child(py: Python<'_>) -> PyResult<()> {
    let devices = run(py, || simulated_devices(1))?;
    // They last as long as the process, in place of the device that this thread had made current.
    devices.into_iter().for_each(|device| std::mem::forget((device.make_default(), device.make_current())));
    std::mem::forget((Running::begin(), set_aside()));
    Ok(())
}

/// Adds the functions.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    functions![module; _start_in_child, _check];
    Ok(())
}
