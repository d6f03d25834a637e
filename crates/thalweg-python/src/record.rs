//! Parts of the graph that programs define themselves: functions with a backward pass of their own, hooks of saved tensors,
//! checkpointed functions, and gradient checks.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};
use thalweg::Tensor;
use thalweg::autograd::{
    Backward, CheckpointOptions, Explain, Gradients, Saved, SavedPlace, SavedTensorsRegion, checkpoint_with,
    enter_saved_tensors_hooks, enter_saved_tensors_hooks_for, record_function_of_any,
};
use thalweg_lock::Mutex;

use crate::external::gradient_of;
use crate::failure::{call_python, run, type_error};
use crate::handle::{Held, PyTensor};
use crate::node::{_NodeReference, gradient_objects, put_function};

fn inner_of_any(tensors: &[Option<Bound<'_, PyTensor>>]) -> Vec<Option<Tensor>> {
    tensors.iter().map(|tensor| tensor.as_ref().map(Held::tensor)).collect()
}

fn inner(tensors: &[Bound<'_, PyTensor>]) -> Vec<Tensor> {
    tensors.iter().map(|tensor| tensor.tensor()).collect()
}

/// Returns the name with static lifetime. There is at most one allocation per class of functions.
fn lasting(name: String) -> &'static str {
    static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut names = NAMES.lock();
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
    /// Saves tensors. Those that are results of the function are identified by their positions.
    #[new]
    fn new(
        py: Python<'_>,
        tensors: Vec<Option<Bound<'_, PyTensor>>>,
        results: Vec<Option<Bound<'_, PyTensor>>>,
    ) -> PyResult<Self> {
        let (tensors, results) = (inner_of_any(&tensors), inner_of_any(&results));
        run(py, || {
            let keep = |tensor: &Tensor| match (results.iter())
                .position(|result| result.as_ref().is_some_and(|result| result.is_same(tensor)))
            {
                Some(place) => Saved::result(tensor, place),
                None => Saved::new(tensor),
            };
            tensors.iter().map(|tensor| tensor.as_ref().map(keep).transpose()).collect::<thalweg::Result<_>>()
        })
        .map(Self)
    }

    /// Returns the number of saved tensors.
    fn count(&self) -> usize {
        self.0.len()
    }

    /// Refuses tensors that a pass has freed.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        run(py, || self.0.iter().flatten().try_for_each(Saved::check_kept))
    }

    /// Returns the tensors. Fails if one was written since it was saved.
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

/// A Python function with its own backward pass.
struct PythonFunction {
    name: &'static str,
    /// Computes the gradients of the inputs from those of the results.
    backward: Py<PyAny>,
    saved: Py<_SavedTensors>,
}

impl Drop for PythonFunction {
    /// Frees the saved tensors, because the context may outlive the node.
    fn drop(&mut self) {
        self.release();
    }
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
                        Ok(tensor) => gradient_of(tensor).map(Some),
                        Err(_) => {
                            Err(type_error("expected Variable or None (got a gradient that is not a tensor)"))
                        }
                    }
                })
                .collect()
        })
    }

    fn takes_external(&self) -> bool {
        true
    }

    fn is_of_the_program(&self) -> bool {
        true
    }

    fn release(&self) {
        self.saved.get().0.iter().flatten().for_each(Saved::release);
    }

    fn runs_without_gradients(&self) -> bool {
        true
    }

    fn saved(&self) -> Vec<SavedPlace<'_>> {
        let places = self.saved.get().0.iter().enumerate();
        let named = |(place, saved)| SavedPlace { name: format!("tensors.{place}"), saved };
        places.filter_map(|(place, saved)| Some((place, saved.as_ref()?))).map(named).collect()
    }
}

/// The results of a function as parts of the graph, and its node.
type Recorded<'py> = (Vec<Option<Bound<'py, PyTensor>>>, Option<_NodeReference>);

/// Records a user-defined function over tensors. Returns its results as parts of the graph, with None for a result that is not a
/// tensor. `backward` takes the gradients of the results and returns those of the inputs.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "they are parts of one function")]
fn _record_function<'py>(
    py: Python<'py>,
    name: String,
    backward: Py<PyAny>,
    saved: Py<_SavedTensors>,
    inputs: Vec<Bound<'py, PyTensor>>,
    results: Vec<Option<Bound<'py, PyTensor>>>,
    class: Py<PyType>,
    context: Py<PyAny>,
) -> PyResult<Recorded<'py>> {
    let (inputs, results) = (inner(&inputs), inner_of_any(&results));
    let function = Box::new(PythonFunction { name: lasting(name), backward, saved });
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    let results = record_function_of_any(function, &inputs, results);
    let node = results.iter().flatten().find_map(Tensor::grad_fn);
    if let Some(node) = &node {
        put_function(node, class, context)?;
    }
    let object = |result: Option<Tensor>| result.map(|result| PyTensor::object(py, result)).transpose();
    let results = results.into_iter().map(object).collect::<PyResult<_>>()?;
    Ok((results, node.map(|node| _NodeReference(Arc::downgrade(&node)))))
}

/// Returns hooks of saved tensors that call these functions.
#[expect(clippy::type_complexity, reason = "they are functions")]
pub fn saved_hooks(
    pack: Py<PyAny>,
    unpack: Py<PyAny>,
) -> (
    impl Fn(&Tensor) -> thalweg::Result<Py<PyAny>> + Send + Sync + 'static,
    impl Fn(&Py<PyAny>) -> thalweg::Result<Tensor> + Send + Sync + 'static,
) {
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
    (packed, unpacked)
}

/// An open region with hooks of saved tensors, which belongs to its thread.
#[pyclass(frozen, unsendable)]
struct _SavedTensorsRegion(Cell<Option<SavedTensorsRegion>>);

#[pymethods]
impl _SavedTensorsRegion {
    /// Begins a region. With `of_storages`, whose keys are identities of storages, the hooks are for tensors over those, and other
    /// tensors are saved as outside the region.
    #[new]
    #[pyo3(signature = (pack, unpack, of_storages=None))]
    fn new(pack: Py<PyAny>, unpack: Py<PyAny>, of_storages: Option<Py<PyDict>>) -> Self {
        let (packed, unpacked) = saved_hooks(pack, unpack);
        let Some(storages) = of_storages else {
            return Self(Cell::new(Some(enter_saved_tensors_hooks(packed, unpacked))));
        };
        let chosen = move |tensor: &Tensor| {
            let is_chosen = call_python(|py| storages.bind(py).contains(tensor.storage_identity()))?;
            is_chosen.then(|| packed(tensor)).transpose()
        };
        Self(Cell::new(Some(enter_saved_tensors_hooks_for(chosen, unpacked))))
    }

    /// Ends the region.
    fn close(&self) {
        let _dropped_outside = self.0.take();
    }
}

/// Runs a function of tensors without saving tensors for its operators: the backward pass runs the function again.
#[pyfunction]
fn _checkpoint(
    py: Python<'_>,
    function: Py<PyAny>,
    inputs: Vec<Bound<'_, PyTensor>>,
    preserve_rng_state: bool,
    determinism_check: bool,
    early_stop: bool,
    explain: Option<Py<PyAny>>,
) -> PyResult<Py<PyAny>> {
    let inputs = inner(&inputs);
    let explain = explain.map(|explain| {
        Explain(Arc::new(move |text: String| {
            let explained = call_python(|py| explain.call1(py, (&text,))?.extract::<String>(py));
            explained.unwrap_or(text)
        }))
    });
    let options = CheckpointOptions {
        preserve_rng_state,
        determinism_check,
        early_stop,
        explain,
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

/// Adds the classes and the functions.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<_SavedTensors>()?;
    module.add_class::<_SavedTensorsRegion>()?;
    functions![module; _record_function, _checkpoint];
    Ok(())
}
