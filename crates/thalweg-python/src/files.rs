//! Files of `safetensors`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use thalweg::serialize::{Object, load_file, save_file};

use crate::device::or_current;
use crate::failure::{run, type_error};
use crate::handle::{Held, PyTensor};

/// Converts a Python value to one that can be saved.
fn to_object(value: &Bound<'_, PyAny>) -> PyResult<Object> {
    if let Ok(tensor) = value.cast::<PyTensor>() {
        return Ok(Object::Tensor(tensor.tensor()));
    }
    let all = |list: &Bound<'_, PyAny>| {
        list.try_iter()?.map(|element| to_object(&element?)).collect::<PyResult<Vec<_>>>()
    };
    if value.is_none() {
        Ok(Object::None)
    } else if let Ok(truth) = value.cast::<PyBool>() {
        Ok(Object::Bool(truth.is_true()))
    } else if value.is_instance_of::<PyInt>() {
        Ok(Object::Int(value.extract()?))
    } else if let Ok(number) = value.cast::<PyFloat>() {
        Ok(Object::Float(number.value()))
    } else if value.is_instance_of::<PyString>() {
        Ok(Object::Str(value.extract()?))
    } else if value.is_instance_of::<PyList>() {
        Ok(Object::List(all(value)?))
    } else if value.is_instance_of::<PyTuple>() {
        Ok(Object::Tuple(all(value)?))
    } else if let Ok(dictionary) = value.cast::<PyDict>() {
        // The copy is made at once, and no other thread can change it.
        let copy = dictionary.copy()?;
        let pairs = copy.iter().map(|(key, value)| Ok((to_object(&key)?, to_object(&value)?)));
        Ok(Object::Dict(pairs.collect::<PyResult<_>>()?))
    } else {
        Err(type_error(format!(
            "save() takes tensors, numbers, strings, lists, tuples and dictionaries of them, not {}; save a state_dict",
            value.get_type().name()?
        )))
    }
}

/// Converts a loaded value to a Python object.
fn to_python<'py>(py: Python<'py>, object: Object) -> PyResult<Bound<'py, PyAny>> {
    Ok(match object {
        Object::None => py.None().into_bound(py),
        Object::Bool(truth) => PyBool::new(py, truth).to_owned().into_any(),
        Object::Int(integer) => integer.into_pyobject(py)?.into_any(),
        Object::Float(number) => PyFloat::new(py, number).into_any(),
        Object::Str(text) => PyString::new(py, &text).into_any(),
        Object::Tensor(tensor) => PyTensor::object(py, tensor)?.into_any(),
        Object::List(list) => {
            let list = list.into_iter().map(|object| to_python(py, object)).collect::<PyResult<Vec<_>>>()?;
            PyList::new(py, list)?.into_any()
        }
        Object::Tuple(list) => {
            let list = list.into_iter().map(|object| to_python(py, object)).collect::<PyResult<Vec<_>>>()?;
            PyTuple::new(py, list)?.into_any()
        }
        Object::Dict(pairs) => {
            let dictionary = PyDict::new(py);
            for (key, value) in pairs {
                dictionary.set_item(to_python(py, key)?, to_python(py, value)?)?;
            }
            dictionary.into_any()
        }
    })
}

/// Reads the tensors of a `safetensors` file.
#[pyfunction]
#[pyo3(signature = (path, device=None))]
fn _load_safetensors<'py>(
    py: Python<'py>,
    path: PathBuf,
    device: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let device = or_current(py, device)?;
    let tensors = run(py, || load_file(&path, &device))?;
    to_python(py, Object::from(tensors))
}

/// Writes tensors to a `safetensors` file, with metadata.
#[pyfunction]
fn _save_safetensors(
    py: Python<'_>,
    tensors: &Bound<'_, PyDict>,
    notes: BTreeMap<String, String>,
    path: PathBuf,
) -> PyResult<()> {
    let tensors = to_object(tensors.as_any())?
        .state_dict()
        .ok_or_else(|| type_error("a safetensors file holds a dictionary of tensors by name"))?;
    let notes: Vec<(&str, &str)> = notes.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    run(py, || save_file(&tensors, &path, &notes))
}

/// Adds the functions.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    functions![module; _load_safetensors, _save_safetensors];
    Ok(())
}
