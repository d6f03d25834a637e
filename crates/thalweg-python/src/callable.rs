//! Python functions and modules as graphs, for `thalweg.cuda.make_graphed_callables`.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use thalweg::Tensor;
use thalweg::tensor::graph::callable::Callable;
use thalweg::tensor::graph::{CallableOptions, GraphedCallable, LiveOutputs, make_graphed_callables};

use crate::device::or_current;
use crate::failure::{call_python, run};
use crate::graphs::graph_pool;
use crate::handle::{Held, PyTensor};
use crate::lines::Reader;

/// A Python function from which graphs are captured.
struct PythonCallable {
    name: String,
    function: Py<PyAny>,
    parameters: Vec<Tensor>,
    buffers: Vec<Tensor>,
    /// The module, whose `training` attribute is part of the key of a graph.
    module: Option<Py<PyAny>>,
}

fn inner(tensors: &[Bound<'_, PyTensor>]) -> Vec<Tensor> {
    tensors.iter().map(|tensor| tensor.tensor()).collect()
}

impl Callable for PythonCallable {
    fn name(&self) -> &str {
        &self.name
    }

    fn call(&self, inputs: &[Tensor]) -> thalweg::Result<Vec<Tensor>> {
        call_python(|py| {
            let objects = inputs.iter().map(|input| PyTensor::object(py, input.clone()));
            let results =
                self.function.call1(py, (PyTuple::new(py, objects.collect::<PyResult<Vec<_>>>()?)?,))?;
            (results.bind(py).try_iter()?).map(|tensor| Ok(tensor?.cast::<PyTensor>()?.tensor())).collect()
        })
    }

    fn parameters(&self) -> Vec<Tensor> {
        self.parameters.clone()
    }

    fn buffers(&self) -> Vec<Tensor> {
        self.buffers.clone()
    }

    fn is_training(&self) -> bool {
        let Some(module) = &self.module else { return true };
        call_python(|py| module.getattr(py, "training")?.is_truthy(py)).unwrap_or(true)
    }
}

/// A function that replays captured graphs.
#[pyclass(frozen)]
struct _GraphedCallable(GraphedCallable);

#[pymethods]
impl _GraphedCallable {
    /// Returns the results for inputs.
    fn call<'py>(
        &self,
        py: Python<'py>,
        inputs: Vec<Bound<'py, PyTensor>>,
    ) -> PyResult<Vec<Bound<'py, PyTensor>>> {
        let inputs = inner(&inputs);
        let results = run(py, || self.0.call(&inputs))?;
        results.into_iter().map(|result| PyTensor::object(py, result)).collect()
    }
}

/// A function to capture: its name, a function that takes a tuple, its parameters, its buffers, and the module.
type Described<'py> =
    (String, Py<PyAny>, Vec<Bound<'py, PyTensor>>, Vec<Bound<'py, PyTensor>>, Option<Py<PyAny>>);

/// Captures the forward and backward passes of functions as graphs.
#[pyfunction]
fn _make_graphed_callables(
    py: Python<'_>,
    callables: Vec<Described<'_>>,
    samples: Vec<Vec<Bound<'_, PyTensor>>>,
    num_warmup_iters: usize,
    allow_unused_input: bool,
    pool: Option<&Bound<'_, PyAny>>,
) -> PyResult<Vec<_GraphedCallable>> {
    let samples: Vec<Vec<Tensor>> = samples.iter().map(|tensors| inner(tensors)).collect();
    let device = match samples.iter().flatten().next() {
        Some(tensor) => tensor.device().clone(),
        None => or_current(py, None)?,
    };
    let callables: Vec<Box<dyn Callable>> = (callables.into_iter())
        .map(|(name, function, parameters, buffers, module)| -> Box<dyn Callable> {
            let (parameters, buffers) = (inner(&parameters), inner(&buffers));
            Box::new(PythonCallable { name, function, parameters, buffers, module })
        })
        .collect();
    let options = CallableOptions {
        warm_up: num_warmup_iters,
        allow_unused_input,
        pool: pool.map(graph_pool).transpose()?,
        // A loop that rebinds the name of its result still holds the previous result during the next call.
        live_outputs: LiveOutputs::Clone,
        ..CallableOptions::default()
    };
    let _reader = Reader::new();
    let graphed = run(py, || make_graphed_callables(&device, callables, samples, &options))?;
    Ok(graphed.into_iter().map(_GraphedCallable).collect())
}

/// Adds the class and the function.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<_GraphedCallable>()?;
    module.add_function(wrap_pyfunction!(_make_graphed_callables, module)?)
}
