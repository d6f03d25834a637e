//! The state of GPUs as NVML reports it, for `thalweg.cuda`. A GPU that is given by its number is not opened for it.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use thalweg::driver::cuda::{Reading, StateUnknown, device_processes, device_reading};

use crate::device::or_current;
use crate::failure::run;

/// Returns the number of the GPU that the argument of the named function refers to.
fn gpu_of(py: Python<'_>, function: &str, device: Option<&Bound<'_, PyAny>>) -> PyResult<u32> {
    if let Some(value) = device {
        let text = value.extract::<String>().unwrap_or_default();
        let number = text.strip_prefix("cuda:").and_then(|number| number.parse().ok());
        if let Some(number) = number.or_else(|| value.extract().ok()) {
            return Ok(number);
        }
    }
    let device = or_current(py, device)?;
    if device.driver().name() != "cuda" {
        return Err(PyRuntimeError::new_err(format!(
            "{function}: {device} is not a GPU, and NVML tells of GPUs alone: name one, as in {function}(0), where there is one"
        )));
    }
    Ok(device.index())
}

/// Queries NVML without the interpreter lock.
fn query_nvml<T: Send>(
    py: Python<'_>,
    function: &str,
    device: Option<&Bound<'_, PyAny>>,
    call: impl FnOnce(u32) -> Result<T, StateUnknown> + Send,
) -> PyResult<T> {
    let gpu = gpu_of(py, function, device)?;
    run(py, || call(gpu).map_err(|error| thalweg::Error::invalid(format!("{function}: {error}"))))
}

/// Returns the percentage of the last sample period in which a kernel ran on a GPU.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn utilization(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
    query_nvml(py, "utilization", device, |gpu| device_reading(gpu, Reading::Utilization))
}

/// Returns the percentage of the last sample period in which memory of a GPU was read or written.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn memory_usage(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
    query_nvml(py, "memory_usage", device, |gpu| device_reading(gpu, Reading::MemoryUtilization))
}

/// Returns the temperature of a GPU in degrees Celsius.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn temperature(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
    query_nvml(py, "temperature", device, |gpu| device_reading(gpu, Reading::Temperature))
}

/// Returns the power that a GPU draws, in milliwatts.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn power_draw(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
    query_nvml(py, "power_draw", device, |gpu| device_reading(gpu, Reading::Power))
}

/// Returns the clock rate of the multiprocessors of a GPU, in megahertz.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn clock_rate(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
    query_nvml(py, "clock_rate", device, |gpu| device_reading(gpu, Reading::ClockRate))
}

/// The number of a GPU and its processes, each with its process id and the bytes that it uses, if known.
type Processes = (u32, Vec<(u32, Option<u64>)>);

/// Returns the number of a GPU and the processes that compute on it: process id, and bytes of GPU memory if known.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn _gpu_processes(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<Processes> {
    query_nvml(py, "list_gpu_processes", device, |gpu| {
        let processes = device_processes(gpu)?;
        Ok((gpu, processes.into_iter().map(|process| (process.id, process.used_bytes)).collect()))
    })
}

/// Adds the functions to the module of `thalweg.cuda`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    functions![module; utilization, memory_usage, temperature, power_draw, clock_rate, _gpu_processes];
    Ok(())
}
