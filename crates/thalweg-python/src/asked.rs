//! Calls that are asked for before they become steps of a program: the table says on the meta device whether it takes them, and which
//! results they have.

use pyo3::prelude::*;
use thalweg::Device;
use thalweg::dispatch::{Argument, Value, find_operator};
use thalweg::tensor::caller::label_at;

use crate::dtype::{self, PyDType};
use crate::failure::{attempt, exception, run};
use crate::program::number_value;
use crate::steps::Call;

/// A value in the place of a slot: the sizes, the strides and the dtype of a tensor.
type Form<'py> = (Vec<i64>, Vec<i64>, Bound<'py, PyDType>);

/// The sizes and the dtype of a result; `None` if it is not a tensor.
type Answer = Option<(Vec<usize>, Py<PyDType>)>;

/// Returns the results of a call whose arguments refer to values, which are forms of tensors, or numbers. Raises what the table refuses it
/// with. Returns `None` if the results depend on the elements of tensors.
#[pyfunction]
fn _asked(
    py: Python<'_>,
    name: &str,
    arguments: Vec<Bound<'_, PyAny>>,
    values: Vec<Bound<'_, PyAny>>,
) -> PyResult<Option<Vec<Answer>>> {
    let device = run(py, Device::meta)?;
    let (results, writes): (Vec<Option<usize>>, Vec<usize>) = Default::default();
    let call = Call::read(&(name, arguments, results, writes).into_pyobject(py)?)?;
    let values =
        values.iter().map(|value| value_of(value, &device).map(Some)).collect::<PyResult<Vec<_>>>()?;
    match attempt(py, || call.answer(&values, None, &device))? {
        Ok(answers) => answers.iter().map(|answer| answer_of(py, answer)).collect::<PyResult<_>>().map(Some),
        Err(error) if error.is_invalid_argument() => Err(exception(&error)),
        Err(_) => Ok(None),
    }
}

/// Returns a value on the meta device.
fn value_of(value: &Bound<'_, PyAny>, device: &Device) -> PyResult<Value> {
    if let Some(number) = number_value(value)? {
        return Ok(number);
    }
    let (sizes, strides, dtype): Form<'_> = value.extract()?;
    let arguments = [Argument::Ints(&sizes), Argument::Ints(&strides), Argument::DType(dtype.get().held()?)];
    let made = || {
        let label = label_at("empty_strided", std::panic::Location::caller());
        find_operator("empty_strided")?.call(&arguments, Some(device), label)
    };
    let made = run(value.py(), made)?.swap_remove(0);
    Ok(Value::Tensor(made))
}

/// Returns the sizes and the dtype of a result.
fn answer_of(py: Python<'_>, answer: &Value) -> PyResult<Answer> {
    match answer {
        Value::Tensor(tensor) => Ok(Some((tensor.shape().to_vec(), dtype::object(py, tensor.dtype())?))),
        _ => Ok(None),
    }
}

/// Adds the function.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    functions![module; _asked];
    Ok(())
}
