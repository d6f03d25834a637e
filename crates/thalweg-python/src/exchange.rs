//! Conversion of tensors between another front end (PyTorch) and this package.
//!
//! Memory of a GPU is used in place, by its address. The simulated GPU has memory of its own, so tensors in the host's memory are
//! copied to it, with their strides, and back; tensors over its own memory are used in place, too.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use thalweg::dispatch::{Argument, as_ints, find_operator};
use thalweg::driver::ExternalMemory;
use thalweg::ir::Layout;
use thalweg::runtime::command_list::refuse;
use thalweg::tensor::caller::label_at;
use thalweg::{DType, Device, Tensor};

use crate::dlpack::over;
use crate::failure::{run, runtime, type_error};
use crate::in_place::Owner;
use crate::journal;

/// The functions of the front end.
pub struct Exchange {
    /// The dtypes of the front end, each with this package's.
    dtypes: Vec<(Py<PyAny>, DType)>,
    /// Makes a tensor of a shape, strides and a dtype, without writing its elements.
    empty_strided: Py<PyAny>,
    /// Makes a tensor over the memory of another one: of a shape, strides and an offset.
    alias: Py<PyAny>,
    /// Returns the addresses of a list of tensors.
    addresses: Py<PyAny>,
    /// Returns whether no other tensor uses the memory of a tensor to which there is one reference.
    is_alone: Py<PyAny>,
    /// Whether tensors of the front end are in the memory of the program's device, and are not copied.
    pub is_in_place: bool,
}

/// Returns the number of bytes from the first to the last element.
fn span_bytes(layout: &Layout, dtype: DType) -> usize {
    if layout.elements() == 0 {
        return 0;
    }
    let last: usize =
        layout.shape().iter().zip(layout.strides()).map(|(&extent, &stride)| (extent - 1) * stride).sum();
    (last + 1) * dtype.size_bytes()
}

impl Exchange {
    /// Reads the functions from a dictionary.
    pub fn read(functions: &Bound<'_, PyDict>) -> PyResult<Self> {
        let dtypes = (functions.as_any().get_item("dtypes")?.try_iter()?)
            .map(|pair| {
                let (theirs, ours): (Py<PyAny>, Bound<'_, crate::dtype::PyDType>) = pair?.extract()?;
                Ok((theirs, ours.get().held()?))
            })
            .collect::<PyResult<_>>()?;
        let function = |name| Ok::<_, PyErr>(functions.as_any().get_item(name)?.unbind());
        let is_in_place = functions.as_any().get_item("is_in_place")?.extract()?;
        let [empty_strided, alias] = [function("empty_strided")?, function("alias")?];
        let [addresses, is_alone] = [function("addresses")?, function("is_alone")?];
        Ok(Self { dtypes, empty_strided, alias, addresses, is_alone, is_in_place })
    }

    /// Returns the addresses of tensors of the front end.
    pub fn addresses(&self, tensors: &Bound<'_, PyList>) -> PyResult<Vec<u64>> {
        let made = self.addresses.bind(tensors.py()).call1((tensors,))?;
        made.cast::<PyList>()?.iter().map(|address| address.extract()).collect()
    }

    /// Returns whether no other tensor uses the memory of a tensor.
    pub fn is_alone(&self, tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.is_alone.bind(tensor.py()).call1((tensor,))?.is_truthy()
    }

    /// Returns a tensor of this package over a tensor of the front end.
    pub fn read_tensor(&self, object: &Bound<'_, PyAny>, device: &Device) -> PyResult<Tensor> {
        let py = object.py();
        let theirs = object.getattr("dtype")?;
        let known = self.dtypes.iter().find(|(known, _)| known.is(&theirs));
        let (_, dtype) = known.ok_or_else(|| type_error(format!("there are no tensors of {theirs}")))?;
        if dtype.is_complex() && object.call_method0("is_conj")?.is_truthy()? {
            refuse(|| "an input is conjugated when it is read".to_owned());
            return self.read_tensor(&object.call_method0("resolve_conj")?, device);
        }
        if object.call_method0("is_neg")?.is_truthy()? {
            refuse(|| "an input is negated when it is read".to_owned());
            return self.read_tensor(&object.call_method0("resolve_neg")?, device);
        }
        let shape: Vec<usize> = object.getattr("shape")?.extract()?;
        let strides: Vec<usize> = object.call_method0("stride")?.extract()?;
        let layout = Layout::new(&shape, &strides, 0).map_err(|error| type_error(error.to_string()))?;
        let count = span_bytes(&layout, *dtype);
        let address = address_of(object, count)?;
        if address == 0 && count > 0 {
            // Zeros without memory, as gradients in forward mode may be.
            refuse(|| "an input has no memory".to_owned());
            return self.read_tensor(&object.call_method0("clone")?, device);
        }
        if self.is_in_place {
            let strides: Vec<i64> = strides.iter().map(|&stride| stride as i64).collect();
            return over_object(object, address, (&shape, &strides), *dtype, device);
        }
        // SAFETY: the front end keeps the tensor's memory while `object` lives, and its elements are in this range. A program
        // that writes a tensor while another thread of it computes with the tensor has undefined results in the front end, too.
        let bytes = unsafe { host_bytes(address, count) };
        run(py, || from_host(bytes, &layout, *dtype, device))
    }

    /// Returns one of our tensors as a new one of the front end, with the same strides.
    pub fn write_tensor<'py>(&self, py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
        let layout = tensor.layout();
        let object = self.empty(py, layout.shape(), layout.strides(), tensor.dtype())?;
        if layout.elements() == 0 {
            return Ok(object);
        }
        if self.is_in_place {
            let target = self.read_tensor(&object, tensor.device())?;
            run(py, || copy_once(&target, tensor))?;
        } else {
            self.copy_to_host(py, tensor, &object)?;
        }
        Ok(object)
    }

    /// Returns a new tensor of the front end, without writing its elements.
    fn empty<'py>(
        &self,
        py: Python<'py>,
        shape: &[usize],
        strides: &[usize],
        dtype: DType,
    ) -> PyResult<Bound<'py, PyAny>> {
        let arguments = self.arguments(py, shape, strides, dtype)?;
        let object = self.make(&arguments)?;
        journal::made(&object, &arguments);
        Ok(object)
    }

    /// Returns the arguments by which a new tensor is made.
    fn arguments<'py>(
        &self,
        py: Python<'py>,
        shape: &[usize],
        strides: &[usize],
        dtype: DType,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let known = self.dtypes.iter().find(|(_, ours)| *ours == dtype);
        let (theirs, _) = known.ok_or_else(|| type_error(format!("PyTorch has no {dtype}")))?;
        (PyTuple::new(py, shape)?, PyTuple::new(py, strides)?, theirs.bind(py)).into_pyobject(py)
    }

    /// Returns the arguments by which a new tensor of bytes is made.
    pub fn arguments_of_block(&self, py: Python<'_>, bytes: u64) -> PyResult<Py<PyTuple>> {
        Ok(self.arguments(py, &[bytes as usize], &[1], DType::U8)?.unbind())
    }

    /// Returns a new tensor of the front end, of a shape, strides and a dtype.
    pub fn make<'py>(&self, arguments: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
        self.empty_strided.bind(arguments.py()).call1(arguments)
    }

    /// Returns a new tensor of the front end on a GPU, and a tensor of this package over its memory, for a result that is written
    /// there.
    pub fn target(
        &self,
        py: Python<'_>,
        (shape, strides): (&[usize], &[usize]),
        dtype: DType,
        device: &Device,
    ) -> PyResult<(Py<PyAny>, Tensor)> {
        let object = self.empty(py, shape, strides, dtype)?;
        let address: u64 = object.call_method0("data_ptr")?.extract()?;
        let steps: Vec<i64> = strides.iter().map(|&stride| stride as i64).collect();
        let tensor = over_object(&object, address, (shape, &steps), dtype, device)?;
        Ok((object.unbind(), tensor))
    }

    /// Returns one of our tensors as a view of the tensor of the front end whose memory it is in.
    pub fn view_of<'py>(&self, base: &Bound<'py, PyAny>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
        let py = base.py();
        let known =
            self.dtypes.iter().find(|(theirs, _)| base.getattr("dtype").is_ok_and(|own| own.is(theirs)));
        if known.is_none_or(|(_, dtype)| *dtype != tensor.dtype()) {
            return self.write_tensor(py, tensor);
        }
        self.aliased(base, tensor, tensor.layout().offset())
    }

    /// Returns a tensor of the front end over the memory of another one, with the shape and the strides of a tensor of this package.
    /// `distance` separates their first elements.
    fn aliased<'py>(
        &self,
        base: &Bound<'py, PyAny>,
        tensor: &Tensor,
        offset: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = base.py();
        let shape = PyTuple::new(py, tensor.layout().shape())?;
        let strides = PyTuple::new(py, tensor.layout().strides())?;
        let first: usize = base.call_method0("storage_offset")?.extract()?;
        let object = self.alias_of(base, &shape, &strides, first + offset)?;
        journal::view(&object, base, (&shape, &strides), offset);
        Ok(object)
    }

    /// Returns a tensor of the front end over the memory of another one.
    pub fn alias_of<'py>(
        &self,
        base: &Bound<'py, PyAny>,
        shape: &Bound<'py, PyTuple>,
        strides: &Bound<'py, PyTuple>,
        offset: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.alias.bind(base.py()).call1((base, shape, strides, offset))
    }

    /// Returns several of our tensors, over one storage and of one dtype, as new ones of the front end that share memory.
    pub fn write_shared<'py>(&self, py: Python<'py>, tensors: &[Tensor]) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let full = || tensors.iter().filter(|tensor| tensor.elements() > 0);
        let end = |tensor: &Tensor| {
            tensor.layout().offset()
                + span_bytes(tensor.layout(), tensor.dtype()) / tensor.dtype().size_bytes()
        };
        let first = full().map(|tensor| tensor.layout().offset()).min().unwrap_or(0);
        let last = full().map(end).max().unwrap_or(first);
        let Some(one) = full().next() else {
            return tensors.iter().map(|tensor| self.write_tensor(py, tensor)).collect();
        };
        let flat = run(py, || strided(one, &[last - first], &[1], first))?;
        let base = self.write_tensor(py, &flat)?;
        (tensors.iter())
            .map(|tensor| self.aliased(&base, tensor, tensor.layout().offset().saturating_sub(first)))
            .collect()
    }

    /// Copies one of our tensors, on the simulated GPU, into a tensor of the front end in the host's memory, of the same strides.
    pub fn copy_to_host(&self, py: Python<'_>, tensor: &Tensor, object: &Bound<'_, PyAny>) -> PyResult<()> {
        let count = span_bytes(tensor.layout(), tensor.dtype());
        if count == 0 {
            return Ok(());
        }
        let address = address_of(object, count)?;
        // SAFETY: the tensor has these strides, so that its elements take this many bytes from its address on. `object` keeps
        // the memory alive, and no other reference to it exists in Rust.
        let target = unsafe { std::slice::from_raw_parts_mut(address as *mut u8, count) };
        let label = label_at("results", std::panic::Location::caller());
        run(py, || tensor.device().current_stream().copy_to_host(target, tensor.pointer(), label))
    }
}

/// Returns a tensor over the memory of an object of the front end on a GPU.
fn over_object(
    object: &Bound<'_, PyAny>,
    address: u64,
    (shape, strides): (&[usize], &[i64]),
    dtype: DType,
    device: &Device,
) -> PyResult<Tensor> {
    let span =
        shape.iter().zip(strides).map(|(&extent, &stride)| extent.saturating_sub(1) as u64 * stride as u64);
    let elements = if shape.contains(&0) { 0 } else { span.sum::<u64>() + 1 };
    journal::given(object, address, elements * dtype.size_bytes() as u64);
    let owner = Owner::new(object.clone().unbind());
    // SAFETY: the object is a tensor whose memory lives as long as it does, and its elements are in the range. Its allocator reuses
    // memory in the order of the stream on which it was allocated, and the program is called on that stream, or orders the work of
    // others itself (`record_stream`), as for every operator of the front end.
    let memory = |pointer, bytes| unsafe { ExternalMemory::new(pointer, bytes, owner).in_stream_order() };
    over(object.py(), address, shape, strides, dtype, device, memory)
}

/// Returns the address of a tensor of the front end, after a check that its storage holds this many bytes from there on: a
/// program may have given the memory back (`resize_`).
fn address_of(object: &Bound<'_, PyAny>, count: usize) -> PyResult<u64> {
    let held: usize = object.call_method0("untyped_storage")?.call_method0("nbytes")?.extract()?;
    let offset: usize = object.call_method0("storage_offset")?.extract()?;
    let before = offset * object.call_method0("element_size")?.extract::<usize>()?;
    if count > 0 && before + count > held {
        return Err(runtime(format!(
            "the tensor's elements take {} bytes of a storage that has {held}: its memory was given back",
            before + count
        )));
    }
    object.call_method0("data_ptr")?.extract()
}

/// Returns bytes of the host's memory.
///
/// # Safety
/// The bytes are in memory that lives and is not written as long as they are used.
unsafe fn host_bytes<'a>(address: u64, count: usize) -> &'a [u8] {
    if count == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(address as *const u8, count) }
}

/// Makes a tensor of a layout from the bytes from its first to its last element.
fn from_host(bytes: &[u8], layout: &Layout, dtype: DType, device: &Device) -> thalweg::Result<Tensor> {
    let label = label_at("inputs", std::panic::Location::caller());
    if layout.is_contiguous() {
        let tensor = Tensor::empty(layout.shape(), dtype, device)?;
        device.current_stream().copy_from_host(tensor.pointer(), bytes, label)?;
        return Ok(tensor);
    }
    let flat = Tensor::empty(&[bytes.len() / dtype.size_bytes()], dtype, device)?;
    device.current_stream().copy_from_host(flat.pointer(), bytes, label)?;
    strided(&flat, layout.shape(), layout.strides(), 0)
}

/// Copies a tensor into another one, each element once: where the other one's dimensions repeat an element, the first is copied.
pub(crate) fn copy_once(target: &Tensor, tensor: &Tensor) -> thalweg::Result<()> {
    let repeats = |(&extent, &stride): (&usize, &usize)| if stride == 0 { extent.min(1) } else { extent };
    let shape: Vec<usize> = target.shape().iter().zip(target.layout().strides()).map(repeats).collect();
    let once = |tensor: &Tensor| strided(tensor, &shape, tensor.layout().strides(), tensor.layout().offset());
    once(target)?.copy_(&once(tensor)?)
}

/// Returns a view of a tensor's memory.
fn strided(tensor: &Tensor, shape: &[usize], strides: &[usize], offset: usize) -> thalweg::Result<Tensor> {
    let label = label_at("as_strided", std::panic::Location::caller());
    let (shape, strides) = (as_ints(shape), as_ints(strides));
    let arguments: [Argument<'_>; 4] =
        [tensor.into(), shape.into(), strides.into(), Argument::Int(offset as i64)];
    let mut made = find_operator("as_strided")?.call(&arguments, None, label)?;
    Ok(made.swap_remove(0))
}
