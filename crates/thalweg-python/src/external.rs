//! Gradients that are objects of Python: sparse tensors, and instances of a program's class with functions of its own.
//!
//! Such an object has a shape and a dtype on the device `meta`. In the graph it is represented by that tensor, and a hook, a
//! function in Python or `grad` receives the object itself.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyType;
use thalweg::Tensor;
use thalweg::autograd::ExternalGradient;

use crate::failure::call_python;
use crate::handle::{Held, PyTensor, PythonGradient};

impl PythonGradient {
    /// Calls a function of the package that returns a tensor.
    fn called(py: Python<'_>, name: &str, tensors: &[&Tensor]) -> PyResult<Tensor> {
        let function = py.import("thalweg._external")?.getattr(name)?;
        let objects = tensors.iter().map(|tensor| PyTensor::object(py, (*tensor).clone()));
        let objects = pyo3::types::PyTuple::new(py, objects.collect::<PyResult<Vec<_>>>()?)?;
        gradient_of(function.call1(objects)?.cast::<PyTensor>()?)
    }
}

impl ExternalGradient for PythonGradient {
    fn sum(&self, first: &Tensor, second: &Tensor) -> thalweg::Result<Tensor> {
        call_python(|py| Self::called(py, "sum_of_gradients", &[first, second]))
    }

    fn accumulated(&self, kept: &Tensor, arrived: &Tensor) -> thalweg::Result<Tensor> {
        call_python(|py| Self::called(py, "accumulated", &[kept, arrived]))
    }

    fn dense(&self) -> thalweg::Result<Tensor> {
        call_python(|py| {
            let function = py.import("thalweg._external")?.getattr("with_elements")?;
            Ok(function.call1((&self.0,))?.cast::<PyTensor>()?.tensor())
        })
    }
}

/// Returns an object as a gradient: an instance of a subclass without elements of its own is represented by its tensor.
pub fn gradient_of(object: &Bound<'_, PyTensor>) -> PyResult<Tensor> {
    let tensor = object.tensor();
    let is_plain = object.get_type().is(PyType::new::<PyTensor>(object.py()));
    if is_plain || !tensor.device().is_meta() {
        return Ok(tensor);
    }
    Ok(tensor.representing(Arc::new(PythonGradient(object.clone().unbind()))))
}
