//! Audits of regions of Python: why a region cannot be captured (`thalweg::graph::audit`), with the lines of Python.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use thalweg::CaptureOptions;
use thalweg::graph::{Audit, Obstacle, audit};

use crate::cuda::PyStream;
use crate::device::or_current;
use crate::failure::{call_python, run};
use crate::graphs::capture_mode;
use crate::lines::Reader;

/// Runs a function without arguments once, eagerly, and returns the obstacles that a capture of it would meet, as a dictionary.
#[pyfunction]
fn _audit<'py>(
    py: Python<'py>,
    function: Bound<'py, PyAny>,
    stream: Option<&Bound<'py, PyStream>>,
    capture_error_mode: &str,
) -> PyResult<Bound<'py, PyDict>> {
    let mode = capture_mode(capture_error_mode)?;
    let stream = stream.map(|stream| stream.get().0.clone());
    let device = match &stream {
        Some(stream) => stream.device().clone(),
        None => or_current(py, None)?,
    };
    let function = function.unbind();
    let options = CaptureOptions { mode, stream, ..CaptureOptions::default() };
    let _reader = Reader::new();
    let found = run(py, || audit(&device, options, || call_python(|py| function.call0(py).map(drop))))?;
    described(py, &found)
}

/// Returns the findings as a dictionary.
fn described<'py>(py: Python<'py>, found: &Audit) -> PyResult<Bound<'py, PyDict>> {
    let counts = found.counts();
    let numbers = PyDict::new(py);
    for (name, number) in [
        ("kernels", counts.kernels),
        ("library_calls", counts.library_calls),
        ("copies", counts.copies),
        ("copied_bytes", counts.copied_bytes),
        ("fills", counts.fills),
        ("host_functions", counts.host_functions),
        ("allocations", counts.allocations),
        ("allocated_bytes", counts.allocated_bytes),
    ] {
        numbers.set_item(name, number)?;
    }
    let obstacles = PyList::empty(py);
    for obstacle in found.obstacles() {
        obstacles.append(obstacle_object(py, obstacle)?)?;
    }
    let object = PyDict::new(py);
    object.set_item("is_capturable", found.is_capturable())?;
    object.set_item("code", found.code().map(|code| code.name()))?;
    object.set_item("text", found.to_string())?;
    object.set_item("counts", numbers)?;
    object.set_item("obstacles", obstacles)?;
    object.set_item(
        "host_time_saved",
        found.savings().map(|savings| savings.host_time_saved().as_secs_f64()),
    )?;
    Ok(object)
}

fn obstacle_object<'py>(py: Python<'py>, obstacle: &Obstacle) -> PyResult<Bound<'py, PyDict>> {
    let object = PyDict::new(py);
    object.set_item("kind", obstacle.kind().name())?;
    object.set_item("operator", obstacle.operator())?;
    object.set_item("line", obstacle.location().map(|line| format!("{}:{}", line.file, line.line)))?;
    object.set_item("code", obstacle.code().map(|code| code.name()))?;
    object.set_item("detail", obstacle.detail())?;
    object.set_item("repair", obstacle.repair())?;
    object.set_item("count", obstacle.count())?;
    Ok(object)
}

/// Adds the function.
pub fn register(own: &Bound<'_, PyModule>) -> PyResult<()> {
    own.add_function(wrap_pyfunction!(_audit, own)?)
}
