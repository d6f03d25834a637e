//! Parts of the graph that programs put in themselves: functions with a backward pass of their own, hooks of saved tensors, checkpointed
//! functions, and checks of gradients.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use thalweg::Tensor;
use thalweg::autograd::{
    Backward, CheckpointOptions, GradcheckOptions, Gradients, Saved, SavedTensorsRegion, checkpoint_with,
    enter_saved_tensors_hooks, gradcheck, gradgradcheck, record_function,
};

use crate::failure::{attempt, call_python, exception, run, type_error};
use crate::handle::{Held, PyTensor};
use crate::node::gradient_objects;

fn inner(tensors: &[Bound<'_, PyTensor>]) -> Vec<Tensor> {
    tensors.iter().map(|tensor| tensor.tensor()).collect()
}

/// Returns a name that lives as long as the process: there are as many as classes of functions.
fn lasting(name: String) -> &'static str {
    static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_default();
    if let Some(known) = names.get(name.as_str()) {
        return known;
    }
    let name: &'static str = Box::leak(name.into_boxed_str());
    names.insert(name);
    name
}

/// Tensors that a function keeps for its backward pass.
#[pyclass(frozen)]
struct _SavedTensors(Vec<Option<Saved>>);

#[pymethods]
impl _SavedTensors {
    /// Keeps tensors; those that are results of the function are known by their places.
    #[new]
    fn new(
        py: Python<'_>,
        tensors: Vec<Option<Bound<'_, PyTensor>>>,
        results: Vec<Bound<'_, PyTensor>>,
    ) -> PyResult<Self> {
        let results = inner(&results);
        let tensors: Vec<Option<Tensor>> =
            tensors.iter().map(|tensor| tensor.as_ref().map(|tensor| tensor.tensor())).collect();
        run(py, || {
            let keep = |tensor: &Tensor| match results.iter().position(|result| result.is_same(tensor)) {
                Some(place) => Saved::result(tensor, place),
                None => Saved::new(tensor),
            };
            tensors.iter().map(|tensor| tensor.as_ref().map(keep).transpose()).collect::<thalweg::Result<_>>()
        })
        .map(Self)
    }

    /// Returns the tensors. They may not have been written since.
    fn get<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let tensors = run(py, || {
            self.0
                .iter()
                .map(|saved| saved.as_ref().map(Saved::get_recorded).transpose())
                .collect::<thalweg::Result<Vec<_>>>()
        })?;
        gradient_objects(py, &tensors)
    }
}

/// A function of Python with a backward pass of its own.
struct PythonFunction {
    name: &'static str,
    /// Computes the gradients of the inputs from those of the results.
    backward: Py<PyAny>,
    saved: Py<_SavedTensors>,
}

impl Backward for PythonFunction {
    fn name(&self) -> &'static str {
        self.name
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> thalweg::Result<Gradients> {
        call_python(|py| {
            let found = self.backward.call1(py, (gradient_objects(py, gradients)?,))?;
            (found.bind(py).try_iter()?)
                .map(|gradient| {
                    let gradient = gradient?;
                    if gradient.is_none() {
                        return Ok(None);
                    }
                    match gradient.cast::<PyTensor>() {
                        Ok(tensor) => Ok(Some(tensor.tensor())),
                        Err(_) => {
                            Err(type_error("expected Variable or None (got a gradient that is not a tensor)"))
                        }
                    }
                })
                .collect()
        })
    }

    fn release(&self) {
        self.saved.get().0.iter().flatten().for_each(Saved::release);
    }
}

/// Records a function of one's own over tensors: returns its results as parts of the graph. `backward` takes the gradients of the
/// results and gives those of the inputs.
#[pyfunction]
fn _record_function<'py>(
    py: Python<'py>,
    name: String,
    backward: Py<PyAny>,
    saved: Py<_SavedTensors>,
    inputs: Vec<Bound<'py, PyTensor>>,
    results: Vec<Bound<'py, PyTensor>>,
) -> PyResult<Vec<Bound<'py, PyTensor>>> {
    let (inputs, results) = (inner(&inputs), inner(&results));
    let function = Box::new(PythonFunction { name: lasting(name), backward, saved });
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    let results = record_function(function, &inputs, results);
    results.into_iter().map(|result| PyTensor::object(py, result)).collect()
}

/// An open region with hooks of saved tensors; it belongs to its thread.
#[pyclass(frozen, unsendable)]
struct _SavedTensorsRegion(Cell<Option<SavedTensorsRegion>>);

#[pymethods]
impl _SavedTensorsRegion {
    #[new]
    fn new(pack: Py<PyAny>, unpack: Py<PyAny>) -> Self {
        let packed =
            move |tensor: &Tensor| call_python(|py| pack.call1(py, (PyTensor::object(py, tensor.clone())?,)));
        let unpacked = move |value: &Py<PyAny>| {
            call_python(|py| {
                let tensor = unpack.call1(py, (value,))?;
                match tensor.bind(py).cast::<PyTensor>() {
                    Ok(tensor) => Ok(tensor.tensor()),
                    Err(_) => Err(type_error(format!(
                        "Output of saved tensor unpack_hook expected to be a Tensor but got result of type {}",
                        tensor.bind(py).get_type().name()?
                    ))),
                }
            })
        };
        Self(Cell::new(Some(enter_saved_tensors_hooks(packed, unpacked))))
    }

    /// Ends the region.
    fn close(&self) {
        let _dropped_outside = self.0.take();
    }
}

/// Runs a function of tensors without keeping what its operators save: the backward pass runs it again.
#[pyfunction]
fn _checkpoint(
    py: Python<'_>,
    function: Py<PyAny>,
    inputs: Vec<Bound<'_, PyTensor>>,
    preserve_rng_state: bool,
    determinism_check: bool,
    early_stop: bool,
) -> PyResult<Py<PyAny>> {
    let inputs = inner(&inputs);
    let options = CheckpointOptions {
        preserve_rng_state,
        determinism_check,
        early_stop,
        ..CheckpointOptions::default()
    };
    let called = move |inputs: &[Tensor]| {
        call_python(|py| {
            let objects = inputs.iter().map(|input| PyTensor::object(py, input.clone()));
            function.call1(py, (PyTuple::new(py, objects.collect::<PyResult<Vec<_>>>()?)?,))
        })
    };
    run(py, || checkpoint_with(options, called, &inputs))
}

/// Checks gradients, or with `second` those of gradients, against finite differences. Returns what is wrong, if anything is; an
/// exception of the function travels out.
#[pyfunction]
fn _gradcheck(
    py: Python<'_>,
    function: Py<PyAny>,
    inputs: Vec<Bound<'_, PyTensor>>,
    output_gradients: Option<Vec<Bound<'_, PyTensor>>>,
    tolerances: (f64, f64, f64, f64),
    second: bool,
) -> PyResult<Option<String>> {
    let inputs = inner(&inputs);
    let output_gradients = output_gradients.map(|gradients| inner(&gradients));
    let (eps, atol, rtol, nondet_tol) = tolerances;
    let options = GradcheckOptions { eps, atol, rtol, nondet_tol };
    let called = |inputs: &[Tensor]| {
        call_python(|py| {
            let objects = inputs.iter().map(|input| PyTensor::object(py, input.clone()));
            let found = function.call1(py, (PyTuple::new(py, objects.collect::<PyResult<Vec<_>>>()?)?,))?;
            (found.bind(py).try_iter()?)
                .map(|tensor| Ok(tensor?.cast::<PyTensor>()?.tensor()))
                .collect::<PyResult<Vec<_>>>()
        })
    };
    let outcome = attempt(py, || match second {
        false => gradcheck(called, &inputs, options),
        true => gradgradcheck(called, &inputs, output_gradients.as_deref(), options),
    })?;
    Ok(outcome.err().map(|error| exception(&error).value(py).to_string()))
}

/// Adds the classes and the functions.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<_SavedTensors>()?;
    module.add_class::<_SavedTensorsRegion>()?;
    module.add_function(wrap_pyfunction!(_record_function, module)?)?;
    module.add_function(wrap_pyfunction!(_checkpoint, module)?)?;
    module.add_function(wrap_pyfunction!(_gradcheck, module)?)
}
