//! Memory that Python and the simulated GPU use in place: arrays of NumPy and other buffers, mapped files, and the memory of tensors.

use std::any::Any;

use pyo3::prelude::*;
use thalweg::Tensor;
use thalweg::runtime::{ExternalMemory, ProcessMemory, map_process};

use crate::dtype::PyDType;
use crate::failure::{run, value_error};
use crate::handle::{Held, PyTensor};

/// An object that keeps memory alive, and is released with the interpreter lock. After the interpreter has ended it is kept.
pub struct Owner(Option<Py<PyAny>>);

impl Owner {
    pub fn new(object: Py<PyAny>) -> Self {
        Self(Some(object))
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let mut object = self.0.take();
        let _ = Python::try_attach(|_| drop(object.take()));
        std::mem::forget(object);
    }
}

/// Returns the memory of an object as memory of a device.
fn mapped(
    py: Python<'_>,
    device: &thalweg::Device,
    object: Py<PyAny>,
    address: usize,
    bytes: u64,
) -> PyResult<ExternalMemory> {
    let owner: Box<dyn Any + Send + Sync> = Box::new(Owner::new(object));
    // SAFETY: the package passes the address and the size of writable memory that the object keeps alive. What other threads and
    // processes do with it is the program's, as the type describes.
    let memory = unsafe { ProcessMemory::new(address, bytes) };
    run(py, || Ok(map_process(device.driver(), &memory, owner)?))
}

/// Returns a tensor over memory that an object keeps alive, on the simulated GPU. Strides are in elements.
#[pyfunction]
fn _over_process<'py>(
    py: Python<'py>,
    object: Py<PyAny>,
    address: usize,
    layout: (Vec<usize>, Vec<usize>),
    dtype: &Bound<'py, PyDType>,
    device: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyTensor>> {
    let (shape, strides) = layout;
    let (device, dtype) = (crate::device::or_current(py, device)?, dtype.get().held()?);
    let last = (shape.iter().zip(&strides)).try_fold(0usize, |last, (&extent, &stride)| {
        last.checked_add(extent.saturating_sub(1).checked_mul(stride)?)
    });
    let bytes = last.and_then(|last| last.checked_add(1)?.checked_mul(dtype.size_bytes()));
    let bytes = bytes.ok_or_else(|| value_error("the elements take more bytes than there are"))?;
    let memory = mapped(py, &device, object, address, bytes as u64)?;
    let tensor = run(py, || Tensor::from_external(&shape, &strides, dtype, &device, memory))?;
    PyTensor::object(py, tensor)
}

#[pymethods]
impl PyTensor {
    /// Returns the address at which the host accesses the first element in place; `None` if there is none. If the memory `stays`, it
    /// cannot be resized any more.
    fn _host_address(slf: &Bound<'_, Self>, stays: bool) -> PyResult<Option<u64>> {
        let own = slf.tensor();
        run(slf.py(), || own.host_address(stays))
    }

    /// Moves the storage to memory that an object keeps alive, for all tensors over it.
    fn _move_storage(slf: &Bound<'_, Self>, object: Py<PyAny>, address: usize, bytes: u64) -> PyResult<()> {
        let own = slf.tensor();
        let memory = mapped(slf.py(), own.device(), object, address, bytes)?;
        run(slf.py(), || own.move_storage(memory))
    }

    /// Makes the object hold another tensor, with its place in the graph. The child of a fork calls it, because it cannot use the
    /// device of its parent.
    fn _become(slf: &Bound<'_, Self>, other: &Bound<'_, Self>) {
        slf.replace(other.tensor());
    }

    /// Returns the object that keeps the storage's memory alive, if it is memory of an object.
    fn _memory_owner(slf: &Bound<'_, Self>) -> Option<Py<PyAny>> {
        let own = slf.tensor();
        let object = |owner: &(dyn Any + Send + Sync)| {
            owner.downcast_ref::<Owner>().and_then(|owner| Some(owner.0.as_ref()?.clone_ref(slf.py())))
        };
        own.with_owner(object).flatten()
    }
}

/// Adds the functions.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    functions![module; _over_process];
    Ok(())
}
