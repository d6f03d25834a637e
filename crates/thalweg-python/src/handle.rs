//! [`PyTensor`]: the object of a tensor. Its methods are in `tensor`, its operators in `protocol`.

use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::{PyComplex, PyWeakrefMethods, PyWeakrefReference};
use thalweg::{DType, Scalar, Tensor, c128};

use crate::failure::{run, runtime};

/// A tensor on one device (`torch.Tensor`): elements of one dtype, seen through a shape and strides.
#[pyclass(name = "Tensor", module = "thalweg", subclass, weakref, dict, frozen)]
pub struct PyTensor {
    slot: Slot,
    /// Of a view: the object that it was made of, which may be gone.
    base: Option<Py<PyWeakrefReference>>,
    /// The object of the gradient that Python was given last, which may be gone.
    grad: Mutex<Option<Py<PyWeakrefReference>>>,
}

/// The place of an object's tensor, which `data` replaces while other threads may read it.
///
/// # Note: a place without a lock of its own
/// Every call reads the tensors of its arguments, so reading one costs as little as it can: an interpreter with its lock lets one thread at
/// a time run what is attached to it, and a free-threaded one has a lock in each object ([`with_critical_section`]), which stands for
/// nothing in an interpreter with its lock.
struct Slot(UnsafeCell<ManuallyDrop<Tensor>>);

// SAFETY: the cell is touched in `Slot::with` alone, by one thread at a time; `Tensor` may be used and dropped on every thread.
unsafe impl Sync for Slot {}

impl Slot {
    /// Runs a function with the tensor of an object, which no other thread touches meanwhile. The function calls nothing of Python.
    fn with<T>(object: &Bound<'_, PyTensor>, function: impl FnOnce(&mut Tensor) -> T) -> T {
        let Self(cell) = &object.get().slot;
        // SAFETY: this thread is attached to the interpreter, as it has a `Bound`, and stays so, since the function calls nothing of Python.
        // So no other thread is within this closure for the same object: by the interpreter's lock, or by the object's own, which
        // `with_critical_section` holds. The function cannot come back here for the same reason.
        with_critical_section(object.as_any(), || function(unsafe { &mut *cell.get() }))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let (_line, _stack) = (crate::lines::noted_at_drop(), crate::history::noted_at_drop());
        // SAFETY: the slot goes with its object, and nothing reads it any more.
        unsafe { ManuallyDrop::drop(self.0.get_mut()) };
    }
}

/// The tensor in an object.
pub trait Held {
    /// Returns the tensor, as it is now: another thread may put another one in its place.
    fn tensor(&self) -> Tensor;

    /// Puts another tensor in its place.
    fn replace(&self, tensor: Tensor);

    /// Returns whether it is this very tensor.
    fn holds(&self, tensor: &Tensor) -> bool;
}

impl Held for Bound<'_, PyTensor> {
    fn tensor(&self) -> Tensor {
        Slot::with(self, |own| own.clone())
    }

    fn replace(&self, tensor: Tensor) {
        // The former one is dropped outside: what it holds may run code of Python.
        let _line = crate::lines::noted(self.py());
        let _former = Slot::with(self, |own| std::mem::replace(own, tensor));
    }

    fn holds(&self, tensor: &Tensor) -> bool {
        Slot::with(self, |own| own.is_same(tensor))
    }
}

impl PyTensor {
    /// Returns what an object of a tensor is made of.
    pub fn new(tensor: Tensor) -> Self {
        Self { slot: Slot(UnsafeCell::new(ManuallyDrop::new(tensor))), base: None, grad: Mutex::new(None) }
    }

    /// Returns a tensor as an object.
    pub fn object(py: Python<'_>, tensor: Tensor) -> PyResult<Bound<'_, Self>> {
        Bound::new(py, Self::new(tensor))
    }

    /// Returns a result as an object; a view of the tensor of an object, or of what that is a view of, knows the object.
    pub fn object_of<'py>(
        py: Python<'py>,
        tensor: Tensor,
        source: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Self>> {
        let mut made = Self::new(tensor);
        if made.slot.0.get_mut().is_view()
            && let Some(source) = source.and_then(|source| source.cast::<Self>().ok())
            && source.tensor().shares_storage_with(made.slot.0.get_mut())
        {
            made.base = match &source.get().base {
                Some(base) => Some(base.clone_ref(py)),
                None => Some(PyWeakrefReference::new(source)?.unbind()),
            };
        }
        Bound::new(py, made)
    }

    /// Returns the object of the gradient: the same one while Python has it.
    pub fn gradient<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(gradient) = slf.tensor().grad() else { return Ok(None) };
        let known = slf.get().known_gradient().as_ref().and_then(|known| known.bind(slf.py()).upgrade());
        if let Some(known) = known
            && known.cast::<Self>().is_ok_and(|known| known.holds(&gradient))
        {
            return Ok(Some(known));
        }
        let made = Self::object(slf.py(), gradient)?;
        Self::know_gradient(slf, Some(&made))?;
        Ok(Some(made.into_any()))
    }

    /// Keeps in mind the object of the gradient.
    pub fn know_gradient(slf: &Bound<'_, Self>, gradient: Option<&Bound<'_, Self>>) -> PyResult<()> {
        let known =
            gradient.map(|gradient| PyWeakrefReference::new(gradient)).transpose()?.map(Bound::unbind);
        let former = std::mem::replace(&mut *slf.get().known_gradient(), known);
        drop(former);
        Ok(())
    }

    fn known_gradient(&self) -> MutexGuard<'_, Option<Py<PyWeakrefReference>>> {
        self.grad.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the object of the tensor that this one is a view of.
    pub fn base<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let own = slf.tensor();
        if !own.is_view() {
            return Ok(None);
        }
        let known = slf.get().base.as_ref().and_then(|base| base.bind(slf.py()).upgrade());
        if let Some(known) = known
            && known.cast::<Self>().is_ok_and(|known| known.tensor().shares_storage_with(&own))
        {
            return Ok(Some(known));
        }
        own.base().map(|base| Ok(Self::object(slf.py(), base)?.into_any())).transpose()
    }

    /// Returns the only element as Python has it.
    pub fn one_object<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let tensor = slf.tensor();
        if tensor.dtype().is_complex() && tensor.elements() == 1 {
            let number = complex_item(slf.py(), &tensor)?;
            return Ok(PyComplex::from_doubles(slf.py(), number.re, number.im).into_any());
        }
        crate::convert::number_object(slf.py(), Self::one(slf)?)
    }

    /// Returns the only element, which is real. The interpreter lock is released while the host waits for it.
    pub fn one(slf: &Bound<'_, Self>) -> PyResult<Scalar> {
        let tensor = slf.tensor();
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

/// Returns the only element of a tensor of complex numbers.
pub fn complex_item(py: Python<'_>, tensor: &Tensor) -> PyResult<c128> {
    run(py, || tensor.detach().to_dtype(DType::C128)?.item())
}
