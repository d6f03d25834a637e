//! Recordings of what devices do, for `thalweg.profiler`.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use thalweg::profiler::{
    ProfilerDriver, RecordFunction, SortBy, Trace, profile_on_demand, profiler_of, record_function,
};
use thalweg::{Device, Error};

use crate::device::or_current;
use crate::failure::{run, value_error};

/// Returns the profiler of a device.
fn profiler(device: &Device) -> thalweg::Result<std::sync::Arc<ProfilerDriver>> {
    profiler_of(device.driver()).ok_or_else(|| {
        Error::invalid(format!(
            "{device} is recorded or watched from outside of the program: start the program without `thalweg profile` and `thalweg sim`"
        ))
    })
}

/// Begins to record what a device does.
#[pyfunction]
fn _profiler_start(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let device = or_current(py, device)?;
    run(py, || Ok(profiler(&device)?.start()?))
}

/// Ends the recording of a device, and returns its trace. Blocks until the device is idle.
#[pyfunction]
fn _profiler_stop(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<_Trace> {
    let device = or_current(py, device)?;
    run(py, || Ok(profiler(&device)?.stop()?)).map(_Trace)
}

/// A recorded timeline.
#[pyclass(frozen)]
struct _Trace(Trace);

#[pymethods]
impl _Trace {
    /// Writes the timeline as Kineto does.
    fn export(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.0.export_chrome_trace(path)).map_err(PyErr::from)
    }

    /// Returns the sums per operator as a table.
    fn table(&self, sort_by: Option<&str>, row_limit: usize) -> PyResult<String> {
        let sort_by = sort_by.map_or(Ok(SortBy::default()), str::parse).map_err(value_error)?;
        Ok(self.0.key_averages().table(sort_by, row_limit))
    }

    /// Returns the sums of each operator: times in microseconds.
    fn averages<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let rows = PyList::empty(py);
        for average in self.0.key_averages().0 {
            let row = PyDict::new(py);
            row.set_item("key", average.operator)?;
            row.set_item("count", average.count)?;
            row.set_item("self_cpu_time_total", average.self_host_nanoseconds as f64 / 1000.0)?;
            row.set_item("cpu_time_total", average.host_nanoseconds as f64 / 1000.0)?;
            row.set_item("device_time_total", average.device_nanoseconds as f64 / 1000.0)?;
            row.set_item("flops", average.flops)?;
            rows.append(row)?;
        }
        Ok(rows)
    }
}

/// A region of the program that recordings show by its name; it belongs to its thread.
#[pyclass(unsendable)]
struct _RecordFunction(Option<RecordFunction>);

#[pymethods]
impl _RecordFunction {
    #[new]
    fn new(name: &str) -> Self {
        Self(Some(record_function(name)))
    }

    /// Ends the region.
    fn close(&mut self) {
        self.0 = None;
    }
}

/// Adds the classes and the functions, and lets devices be recorded that are opened from now on.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    profile_on_demand();
    module.add_class::<_Trace>()?;
    module.add_class::<_RecordFunction>()?;
    module.add_function(wrap_pyfunction!(_profiler_start, module)?)?;
    module.add_function(wrap_pyfunction!(_profiler_stop, module)?)
}
