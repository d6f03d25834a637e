//! Autograd: gradients, the switch of recording, and regions of autocast.

use std::cell::Cell;

use pyo3::prelude::*;
use thalweg::Tensor;
use thalweg::autograd::{
    Backpropagation, BackwardOptions, Edge, at_pass_end, pass_number, queue_callback, run_backward,
    running_node, will_run,
};
use thalweg::tensor::autocast::{AutocastOptions, Region};

use crate::external::gradient_of;
use crate::failure::{call_python, exception, run, runtime, type_error};
use crate::handle::{Held, PyTensor};
use crate::node::{PyNode, object_of};

/// An end point of a backward pass: a tensor, or one result of a node.
#[derive(FromPyObject)]
enum Place<'py> {
    Tensor(Bound<'py, PyTensor>),
    Edge(Bound<'py, PyNode>, usize),
}

impl Place<'_> {
    fn edge(&self) -> Option<Edge> {
        match self {
            Self::Tensor(tensor) => tensor.tensor().gradient_edge(),
            Self::Edge(node, place) => Some(Edge::new(node.get().0.clone(), *place)),
        }
    }
}

/// Runs a backward pass from end points, each with its gradient. With `accumulates`, gradients are accumulated in the leaves: all
/// of them, or those of `inputs`. Without it, the gradients of `inputs` are returned, with `None` where there is no gradient.
#[pyfunction]
fn _run_backward(
    py: Python<'_>,
    roots: Vec<(Place<'_>, Bound<'_, PyTensor>)>,
    inputs: Option<Vec<Place<'_>>>,
    accumulates: bool,
    retain_graph: bool,
    create_graph: bool,
) -> PyResult<Vec<Option<Py<PyTensor>>>> {
    let roots: Vec<(Edge, Tensor)> =
        (roots.iter().filter_map(|(place, gradient)| Some((place.edge()?, gradient))))
            .map(|(edge, gradient)| Ok((edge, gradient_of(gradient)?)))
            .collect::<PyResult<_>>()?;
    let targets: Option<Vec<Option<Edge>>> = inputs.map(|inputs| inputs.iter().map(Place::edge).collect());
    let options = BackwardOptions { retain_graph, create_graph };
    let found = run(py, || {
        let kind = match (&targets, accumulates) {
            (None, _) => Backpropagation::Accumulate,
            (Some(targets), true) => Backpropagation::AccumulateAt(targets),
            (Some(targets), false) => Backpropagation::Gradients(targets),
        };
        run_backward(roots, kind, options)
    })?;
    (found.into_iter())
        .map(|gradient| gradient.map(|gradient| Ok(PyTensor::object(py, gradient)?.unbind())).transpose())
        .collect()
}

/// Registers a function that is called after the backward pass of this thread has succeeded.
#[pyfunction]
fn _queue_callback(py: Python<'_>, callback: Py<PyAny>) -> PyResult<()> {
    _ = py;
    match queue_callback(move || call_python(|py| callback.call0(py).map(drop))) {
        true => Ok(()),
        false => Err(runtime("Final callbacks can only be installed during backward pass.")),
    }
}

/// Calls a function at the end of this thread's backward pass, even if the pass fails. An exception that the function raises is
/// dropped.
#[pyfunction]
fn _at_pass_end(callback: Py<PyAny>) {
    at_pass_end(move || {
        let _lost = call_python(|py| callback.call0(py).map(drop));
    });
}

/// Returns whether this thread's backward pass will reach the node that receives the tensor's gradient.
#[pyfunction]
fn _will_run(tensor: &Bound<'_, PyTensor>) -> bool {
    will_run(&tensor.tensor())
}

/// Returns the number of the backward pass that this thread runs, or -1 (`torch._C._current_graph_task_id`).
#[pyfunction]
fn _current_graph_task_id() -> i64 {
    pass_number().map_or(-1, |number| i64::try_from(number).unwrap_or(i64::MAX))
}

/// Returns the node whose backward function this thread runs, or None (`torch._C._current_autograd_node`).
#[pyfunction]
fn _current_autograd_node(py: Python<'_>) -> PyResult<Option<Bound<'_, PyNode>>> {
    running_node().map(|node| object_of(py, node)).transpose()
}

/// Sets whether operators are recorded, and returns the previous setting.
#[pyfunction]
fn _set_grad_enabled(enabled: bool) -> bool {
    thalweg::autograd::set_grad_enabled(enabled)
}

/// Sets whether this thread is in inference mode, and returns the previous setting.
#[pyfunction]
fn _set_inference_mode(enabled: bool) -> bool {
    thalweg::autograd::set_inference_mode_enabled(enabled)
}

/// Returns whether this thread is in inference mode (`torch.is_inference_mode_enabled`).
#[pyfunction]
fn is_inference_mode_enabled() -> bool {
    thalweg::autograd::is_inference_mode_enabled()
}

/// Sets anomaly mode and its NaN check, and returns the previous settings.
#[pyfunction]
fn _set_anomaly(mode: bool, check_nan: bool) -> (bool, bool) {
    thalweg::autograd::set_anomaly_enabled(mode, check_nan)
}

/// Returns whether this thread is in anomaly mode (`torch.is_anomaly_enabled`).
#[pyfunction]
fn is_anomaly_enabled() -> bool {
    thalweg::autograd::is_anomaly_enabled()
}

/// Returns whether anomaly mode checks for NaN (`torch.is_anomaly_check_nan_enabled`).
#[pyfunction]
fn is_anomaly_check_nan_enabled() -> bool {
    thalweg::autograd::is_anomaly_check_nan_enabled()
}

/// Returns whether operators are recorded (`torch.is_grad_enabled`).
#[pyfunction]
fn is_grad_enabled() -> bool {
    thalweg::autograd::is_grad_enabled()
}

/// Returns whether the innermost `autocast` region caches casts of leaves.
#[pyfunction]
fn is_autocast_cache_enabled() -> bool {
    thalweg::tensor::autocast::is_autocast_cache_enabled()
}

/// Returns whether autocast chooses the dtypes that operators compute in (`torch.is_autocast_enabled`).
#[pyfunction]
#[pyo3(signature = (device_type=None))]
fn is_autocast_enabled(device_type: Option<&str>) -> bool {
    _ = device_type;
    thalweg::tensor::autocast::is_autocast_enabled()
}

/// An open autocast region, which belongs to its thread.
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

/// Returns the current Python call stack, formatted as in a traceback.
fn stack_of_python() -> Option<String> {
    Python::try_attach(|py| -> PyResult<String> {
        let lines = py.import("traceback")?.call_method0("format_stack")?;
        lines.try_iter()?.map(|line| line?.extract::<String>()).collect()
    })?
    .ok()
}

/// Adds the functions and the class.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    thalweg::autograd::set_stack_source(stack_of_python);
    module.add_class::<_AutocastRegion>()?;
    functions![module;
        _run_backward, _queue_callback, _at_pass_end, _will_run, _current_graph_task_id,
        _current_autograd_node, _set_grad_enabled, is_grad_enabled, _set_inference_mode,
        is_inference_mode_enabled, _set_anomaly, is_anomaly_enabled, is_anomaly_check_nan_enabled,
        is_autocast_cache_enabled, is_autocast_enabled
    ];
    Ok(())
}
