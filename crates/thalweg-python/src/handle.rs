//! [`PyTensor`]: the object of a tensor. Its methods are in `tensor`, its operators in `protocol`.

use pyo3::prelude::*;
use thalweg::{DType, Scalar, Tensor};

use crate::failure::{run, runtime};

/// A tensor on one device (`torch.Tensor`): elements of one dtype, seen through a shape and strides.
#[pyclass(name = "Tensor", module = "thalweg", subclass, weakref)]
pub struct PyTensor {
    /// The tensor; `data` replaces it.
    pub tensor: Tensor,
}

impl PyTensor {
    /// Returns a tensor as an object.
    pub fn object(py: Python<'_>, tensor: Tensor) -> PyResult<Bound<'_, Self>> {
        Bound::new(py, Self { tensor })
    }

    /// Returns the only element. The interpreter lock is released while the host waits for it.
    pub fn one(slf: &Bound<'_, Self>) -> PyResult<Scalar> {
        let tensor = slf.borrow().tensor.clone();
        if tensor.elements() != 1 {
            return Err(runtime(format!(
                "a Tensor with {} elements cannot be converted to Scalar",
                tensor.elements()
            )));
        }
        item(slf.py(), &tensor)
    }
}

/// Returns the only element of a tensor. The interpreter lock is released while the host waits for it.
pub fn item(py: Python<'_>, tensor: &Tensor) -> PyResult<Scalar> {
    run(py, || {
        let tensor = tensor.detach();
        Ok(match tensor.dtype() {
            DType::Bool => Scalar::Bool(tensor.to_dtype(DType::U8)?.item::<u8>()? != 0),
            dtype if dtype.is_floating_point() => Scalar::F64(tensor.to_dtype(DType::F64)?.item()?),
            dtype if dtype.is_complex() => return Err(no_number(dtype)),
            _ => Scalar::I64(tensor.to_dtype(DType::I64)?.item()?),
        })
    })
}

/// Returns the refusal to make a number of a complex one, which numbers are not yet.
pub fn no_number(dtype: DType) -> thalweg::Error {
    thalweg::Error::invalid(format!("a number cannot be {dtype}; take it of `real()` and `imag()`"))
}
