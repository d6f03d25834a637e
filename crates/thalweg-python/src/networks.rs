//! Recurrent networks over packed sequences, for `thalweg.nn`.

use pyo3::prelude::*;
use thalweg::dispatch::{Argument, find_operator};

use crate::failure::{exception, run};
use crate::handle::{Held, PyTensor};

/// Runs a recurrent network over packed rows, or, without sizes of batches, over sequences of one length, and returns its output
/// and last states. The mode is the library's number of the function of a step.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // those of PyTorch's functions
fn _network(
    py: Python<'_>,
    input: &Bound<'_, PyTensor>,
    hx: Vec<Bound<'_, PyTensor>>,
    params: Vec<Bound<'_, PyTensor>>,
    mode: i64,
    has_biases: bool,
    num_layers: i64,
    dropout: f64,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    batch_sizes: Vec<i64>,
) -> PyResult<Vec<Py<PyTensor>>> {
    let operator = find_operator("thalweg::network").map_err(|error| exception(&error))?;
    let input = input.tensor();
    let [hx, params] = [hx, params].map(|list| list.iter().map(Held::tensor).collect::<Vec<_>>());
    let label = thalweg::tensor::caller::label_at("network", std::panic::Location::caller());
    let results = run(py, || {
        let arguments = [
            (&input).into(),
            Argument::Tensors(&hx),
            Argument::Tensors(&params),
            mode.into(),
            has_biases.into(),
            num_layers.into(),
            dropout.into(),
            train.into(),
            bidirectional.into(),
            batch_first.into(),
            Argument::Ints(&batch_sizes),
        ];
        operator.call(&arguments, None, label)
    })?;
    // Only long short-term memory has cells.
    let count = if hx.len() == 2 { 3 } else { 2 };
    results.into_iter().take(count).map(|result| Ok(PyTensor::object(py, result)?.unbind())).collect()
}

/// Adds the function to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(_network, module)?)
}
