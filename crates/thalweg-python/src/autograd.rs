//! Autograd: gradients, the switch of recording, and regions of autocast.

use std::cell::Cell;

use pyo3::prelude::*;
use thalweg::Tensor;
use thalweg::autograd::{BackwardOptions, gradients_with};
use thalweg::tensor::autocast::{AutocastOptions, Region};

use crate::failure::{exception, run, type_error};
use crate::handle::{Held, PyTensor};

/// Returns the gradients of `inputs`, from gradients of `outputs`; `None` where there is none.
#[pyfunction]
fn _gradients(
    py: Python<'_>,
    outputs: Vec<Bound<'_, PyTensor>>,
    output_gradients: Vec<Option<Bound<'_, PyTensor>>>,
    inputs: Vec<Bound<'_, PyTensor>>,
    retain_graph: bool,
    create_graph: bool,
) -> PyResult<Vec<Option<Py<PyTensor>>>> {
    let of = |tensor: &Bound<'_, PyTensor>| tensor.tensor();
    let outputs: Vec<Tensor> = outputs.iter().map(of).collect();
    let output_gradients: Vec<Option<Tensor>> =
        output_gradients.iter().map(|gradient| gradient.as_ref().map(of)).collect();
    let inputs: Vec<Tensor> = inputs.iter().map(of).collect();
    let options = BackwardOptions { retain_graph, create_graph };
    let found = run(py, || gradients_with(&outputs, &output_gradients, &inputs, options))?;
    (found.into_iter())
        .map(|gradient| gradient.map(|gradient| Ok(PyTensor::object(py, gradient)?.unbind())).transpose())
        .collect()
}

/// Sets whether operators record themselves, and returns whether they did.
#[pyfunction]
fn _set_grad_enabled(enabled: bool) -> bool {
    thalweg::autograd::set_grad_enabled(enabled)
}

/// Sets whether this thread is in inference mode, and returns whether it was.
#[pyfunction]
fn _set_inference_mode(enabled: bool) -> bool {
    thalweg::autograd::set_inference_mode_enabled(enabled)
}

/// Returns whether this thread is in inference mode (`torch.is_inference_mode_enabled`).
#[pyfunction]
fn is_inference_mode_enabled() -> bool {
    thalweg::autograd::is_inference_mode_enabled()
}

/// Sets anomaly mode and its look for NaN, and returns what they were.
#[pyfunction]
fn _set_anomaly(mode: bool, check_nan: bool) -> (bool, bool) {
    thalweg::autograd::set_anomaly_enabled(mode, check_nan)
}

/// Returns whether this thread is in anomaly mode (`torch.is_anomaly_enabled`).
#[pyfunction]
fn is_anomaly_enabled() -> bool {
    thalweg::autograd::is_anomaly_enabled()
}

/// Returns whether anomaly mode looks for NaN (`torch.is_anomaly_check_nan_enabled`).
#[pyfunction]
fn is_anomaly_check_nan_enabled() -> bool {
    thalweg::autograd::is_anomaly_check_nan_enabled()
}

/// Returns whether operators record themselves (`torch.is_grad_enabled`).
#[pyfunction]
fn is_grad_enabled() -> bool {
    thalweg::autograd::is_grad_enabled()
}

/// Returns whether the innermost region of `autocast` keeps casts of leaves.
#[pyfunction]
fn is_autocast_cache_enabled() -> bool {
    thalweg::tensor::autocast::is_autocast_cache_enabled()
}

/// Returns whether operators choose the dtype that they compute in (`torch.is_autocast_enabled`).
#[pyfunction]
#[pyo3(signature = (device_type=None))]
fn is_autocast_enabled(device_type: Option<&str>) -> bool {
    _ = device_type;
    thalweg::tensor::autocast::is_autocast_enabled()
}

/// An open region of autocast; it belongs to its thread.
#[pyclass(frozen, unsendable)]
struct _AutocastRegion(Cell<Option<Region>>);

#[pymethods]
impl _AutocastRegion {
    #[new]
    fn new(dtype: &Bound<'_, PyAny>, enabled: bool, cache_enabled: bool) -> PyResult<Self> {
        let dtype = crate::dtype::read(dtype).ok_or_else(|| type_error("autocast() takes a dtype"))?;
        let region = Region::enter(AutocastOptions { dtype, enabled, cache_enabled });
        region.map(|region| Self(Cell::new(Some(region)))).map_err(|error| exception(&error))
    }

    /// Ends the region.
    fn close(&self) {
        let _dropped_outside = self.0.take();
    }
}

/// Adds the functions and the class.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<_AutocastRegion>()?;
    module.add_function(wrap_pyfunction!(_gradients, module)?)?;
    module.add_function(wrap_pyfunction!(_set_grad_enabled, module)?)?;
    module.add_function(wrap_pyfunction!(is_grad_enabled, module)?)?;
    module.add_function(wrap_pyfunction!(_set_inference_mode, module)?)?;
    module.add_function(wrap_pyfunction!(is_inference_mode_enabled, module)?)?;
    module.add_function(wrap_pyfunction!(_set_anomaly, module)?)?;
    module.add_function(wrap_pyfunction!(is_anomaly_enabled, module)?)?;
    module.add_function(wrap_pyfunction!(is_anomaly_check_nan_enabled, module)?)?;
    module.add_function(wrap_pyfunction!(is_autocast_cache_enabled, module)?)?;
    module.add_function(wrap_pyfunction!(is_autocast_enabled, module)?)
}
