//! [`PyTensor`]: the object of a tensor. Its methods are in `tensor`, its operators in `protocol`.

use pyo3::prelude::*;
use pyo3::types::PyComplex;
use thalweg::driver::Label;
use thalweg::graph::audit::{ObstacleKind, explain};
use thalweg::{DType, Scalar, Tensor, c128};

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

    /// Returns the only element as Python has it.
    pub fn one_object<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let tensor = slf.borrow().tensor.clone();
        if tensor.dtype().is_complex() && tensor.elements() == 1 {
            let number = complex_item(slf.py(), &tensor)?;
            return Ok(PyComplex::from_doubles(slf.py(), number.re, number.im).into_any());
        }
        crate::convert::number_object(slf.py(), Self::one(slf)?)
    }

    /// Returns the only element, which is real. The interpreter lock is released while the host waits for it.
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
    if crate::check::is_reporting() && !tensor.dtype().is_complex() {
        let label = crate::check::label(py, "item");
        return run(py, || labelled_item(&tensor.detach(), label));
    }
    run(py, || {
        let tensor = tensor.detach();
        Ok(match tensor.dtype() {
            DType::Bool => Scalar::Bool(tensor.to_dtype(DType::U8)?.item::<u8>()? != 0),
            dtype if dtype.is_floating_point() => Scalar::F64(tensor.to_dtype(DType::F64)?.item()?),
            dtype if dtype.is_complex() => {
                let number: c128 = tensor.to_dtype(DType::C128)?.item()?;
                if number.im != 0.0 {
                    return Err(thalweg::Error::invalid(
                        "value cannot be converted to type double without overflow",
                    ));
                }
                Scalar::F64(number.re)
            }
            _ => Scalar::I64(tensor.to_dtype(DType::I64)?.item()?),
        })
    })
}

/// Returns the only element of a tensor of real numbers, in the name of a label: reports of checks and audits have its line of Python.
fn labelled_item(tensor: &Tensor, label: Label) -> thalweg::Result<Scalar> {
    fn bytes<const N: usize>(tensor: &Tensor, dtype: DType, label: Label) -> thalweg::Result<[u8; N]> {
        let source = tensor.to_dtype(dtype)?.contiguous()?;
        let mut bytes = [0; N];
        explain(source.device(), ObstacleKind::DataDependentShape, label);
        source.device().current_stream().copy_to_host(&mut bytes, source.pointer(), label)?;
        Ok(bytes)
    }
    Ok(match tensor.dtype() {
        DType::Bool => Scalar::Bool(bytes::<1>(tensor, DType::U8, label)? != [0]),
        dtype if dtype.is_floating_point() => {
            Scalar::F64(f64::from_ne_bytes(bytes(tensor, DType::F64, label)?))
        }
        _ => Scalar::I64(i64::from_ne_bytes(bytes(tensor, DType::I64, label)?)),
    })
}

/// Returns the only element of a tensor of complex numbers.
pub fn complex_item(py: Python<'_>, tensor: &Tensor) -> PyResult<c128> {
    run(py, || tensor.detach().to_dtype(DType::C128)?.item())
}
