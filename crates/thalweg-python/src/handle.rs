//! [`PyTensor`]: the Python object of a tensor. Its methods are in `tensor`, its operators in `protocol`.

use std::any::Any;
use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;

use pyo3::prelude::*;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::{PyComplex, PyWeakrefMethods, PyWeakrefReference};
use thalweg::{DType, Scalar, Tensor, c128};
use thalweg_lock::{Mutex, MutexGuard};

use crate::failure::{run, runtime};

/// A tensor on one device (`torch.Tensor`): elements of one dtype, with a shape and strides.
#[pyclass(name = "Tensor", module = "thalweg", subclass, weakref, dict, frozen)]
pub struct PyTensor {
    slot: Slot,
    /// For a view, the object that it was made from, which may have been freed.
    base: Option<Py<PyWeakrefReference>>,
    /// The gradient object that Python received last, which may have been freed.
    grad: Mutex<Option<Py<PyWeakrefReference>>>,
}

/// A gradient that is an object of Python (`external`), which a tensor without memory represents in the graph.
pub struct PythonGradient(pub Py<PyTensor>);

/// The cell of an object's tensor, which `data` replaces while other threads may read it.
///
/// # Note: a cell without a lock of its own
/// Every call reads the tensors of its arguments, so a read must be cheap. An interpreter with its lock runs one attached thread
/// at a time. A free-threaded interpreter has a lock in each object ([`with_critical_section`], which does nothing in an
/// interpreter with its lock).
struct Slot(UnsafeCell<ManuallyDrop<Tensor>>);

// SAFETY: the cell is touched in `Slot::with` alone, by one thread at a time; `Tensor` may be used and dropped on every thread.
unsafe impl Sync for Slot {}

impl Slot {
    /// Runs a function with the tensor of an object, which no other thread accesses meanwhile. The function must not call Python.
    fn with<T>(object: &Bound<'_, PyTensor>, function: impl FnOnce(&mut Tensor) -> T) -> T {
        let Self(cell) = &object.get().slot;
        // SAFETY: this thread is attached to the interpreter, as it has a `Bound`, and stays so, since the function does not call
        // Python. So no other thread is inside this closure for the same object: the interpreter's lock prevents it, or the
        // object's own lock, which `with_critical_section` holds. For the same reason the function cannot re-enter here.
        with_critical_section(object.as_any(), || function(unsafe { &mut *cell.get() }))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let (_line, _stack) = (crate::lines::noted_at_drop(), crate::history::noted_at_drop());
        // SAFETY: the slot is dropped with its object, and nothing reads it afterwards.
        unsafe { ManuallyDrop::drop(self.0.get_mut()) };
    }
}

/// Access to the tensor in a Python object.
pub trait Held {
    /// Returns the current tensor. Another thread may replace it.
    fn tensor(&self) -> Tensor;

    /// Replaces the tensor.
    fn replace(&self, tensor: Tensor);

    /// Returns whether the object holds this same tensor.
    fn holds(&self, tensor: &Tensor) -> bool;
}

impl Held for Bound<'_, PyTensor> {
    fn tensor(&self) -> Tensor {
        Slot::with(self, |own| own.clone())
    }

    fn replace(&self, tensor: Tensor) {
        // The former tensor is dropped outside of `with`, because its drop may run Python code.
        let _line = crate::lines::noted(self.py());
        let _former = Slot::with(self, |own| std::mem::replace(own, tensor));
    }

    fn holds(&self, tensor: &Tensor) -> bool {
        Slot::with(self, |own| own.is_same(tensor))
    }
}

impl PyTensor {
    /// Returns the initial state of a tensor's object.
    pub fn new(tensor: Tensor) -> Self {
        Self { slot: Slot(UnsafeCell::new(ManuallyDrop::new(tensor))), base: None, grad: Mutex::new(None) }
    }

    /// Returns a tensor as an object.
    pub fn object(py: Python<'_>, tensor: Tensor) -> PyResult<Bound<'_, Self>> {
        if let Some(external) = tensor.external()
            && let Some(PythonGradient(object)) = (&**external as &dyn Any).downcast_ref()
        {
            return Ok(object.bind(py).clone());
        }
        Bound::new(py, Self::new(tensor))
    }

    /// Returns a result as an object. A view keeps a reference to the object of its base, or to the base of that object.
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

    /// Returns the object of the gradient: the same one as long as Python holds it.
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

    /// Remembers the object of the gradient.
    pub fn know_gradient(slf: &Bound<'_, Self>, gradient: Option<&Bound<'_, Self>>) -> PyResult<()> {
        let known =
            gradient.map(|gradient| PyWeakrefReference::new(gradient)).transpose()?.map(Bound::unbind);
        let former = std::mem::replace(&mut *slf.get().known_gradient(), known);
        drop(former);
        Ok(())
    }

    fn known_gradient(&self) -> MutexGuard<'_, Option<Py<PyWeakrefReference>>> {
        self.grad.lock()
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

    /// Returns the only element as a Python number.
    pub fn one_object<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let tensor = slf.tensor();
        if tensor.dtype().is_complex() && tensor.elements() == 1 {
            let number = complex_item(slf.py(), &tensor)?;
            return Ok(PyComplex::from_doubles(slf.py(), number.re, number.im).into_any());
        }
        crate::convert::number_object(slf.py(), Self::one(slf)?)
    }

    /// Returns the only element, a real number. The interpreter lock is released while the host waits for it.
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
