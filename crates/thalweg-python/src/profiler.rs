//! Recordings of device activity, for `thalweg.profiler`.

use std::cell::Cell;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use thalweg::cuda::nvtx;
use thalweg::profiler::{
    EmitNvtx, ProfilerDriver, RecordFunction, SortBy, Trace, emit_nvtx, profile_on_demand, profiler_of,
    record_function,
};
use thalweg::{Device, Error};
use thalweg_lock::Mutex;

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

/// Begins to record a device's activity, optionally with each block of its caching allocator.
#[pyfunction]
fn _profiler_start(py: Python<'_>, device: Option<&Bound<'_, PyAny>>, profile_memory: bool) -> PyResult<()> {
    let device = or_current(py, device)?;
    run(py, || {
        let profiler = profiler(&device)?;
        profiler.profile_memory(profile_memory);
        Ok(profiler.start()?)
    })
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
    /// Writes the timeline in Kineto's format.
    fn export(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.0.export_chrome_trace(path)).map_err(PyErr::from)
    }

    /// Returns the sums per operator as a formatted table.
    fn table(&self, sort_by: Option<&str>, row_limit: usize) -> PyResult<String> {
        let sort_by = sort_by.map_or(Ok(SortBy::default()), str::parse).map_err(value_error)?;
        Ok(self.0.key_averages().table(sort_by, row_limit))
    }

    /// Returns the sums for each operator, with times in microseconds.
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
            row.set_item("device_memory_usage", average.device_memory_bytes)?;
            row.set_item("self_device_memory_usage", average.self_device_memory_bytes)?;
            rows.append(row)?;
        }
        Ok(rows)
    }
}

/// A named region of the program that is shown in recordings; it belongs to its thread.
#[pyclass(frozen, unsendable)]
struct _RecordFunction(Cell<Option<RecordFunction>>);

#[pymethods]
impl _RecordFunction {
    #[new]
    fn new(name: &str) -> Self {
        Self(Cell::new(Some(record_function(name))))
    }

    /// Ends the region.
    fn close(&self) {
        let _dropped_outside = self.0.take();
    }
}

/// A guard: regions and operators are NVTX ranges while it is open.
#[pyclass(frozen)]
struct _EmitNvtx(Mutex<Option<EmitNvtx>>);

#[pymethods]
impl _EmitNvtx {
    #[new]
    fn new() -> Self {
        Self(Mutex::new(Some(emit_nvtx())))
    }

    /// Ends the emission of NVTX ranges.
    fn close(&self) {
        let _dropped_outside = self.0.lock().take();
    }
}

/// Begins a range of the thread, and returns how many ranges were open before.
#[pyfunction]
fn _nvtx_range_push(msg: &str) -> usize {
    nvtx::range_push(msg)
}

/// Ends the range that the thread began last, and returns how many are still open; -1 if none was open.
#[pyfunction]
fn _nvtx_range_pop() -> i64 {
    nvtx::range_pop().map_or(-1, |left| i64::try_from(left).unwrap_or(i64::MAX))
}

/// Begins a process-wide range, and returns its number.
#[pyfunction]
fn _nvtx_range_start(msg: &str) -> u64 {
    nvtx::range_start(msg).0
}

/// Ends a process-wide range.
#[pyfunction]
fn _nvtx_range_end(range_id: u64) {
    nvtx::range_end(nvtx::RangeId(range_id));
}

/// Marks a point in time.
#[pyfunction]
fn _nvtx_mark(msg: &str) {
    nvtx::mark(msg);
}

/// Adds the classes and the functions, and enables recording on devices that are opened from now on.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    profile_on_demand();
    module.add_class::<_Trace>()?;
    module.add_class::<_RecordFunction>()?;
    module.add_class::<_EmitNvtx>()?;
    functions![module;
        _nvtx_range_push, _nvtx_range_pop, _nvtx_range_start, _nvtx_range_end, _nvtx_mark, _profiler_start,
        _profiler_stop
    ];
    Ok(())
}
