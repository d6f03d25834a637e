//! `Tensor`: the class, with the members that are not operators of the table.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyByteArray, PyDict, PyEllipsis, PyFloat, PyInt, PyList, PyTuple};
use thalweg::ops::default_dtype;
use thalweg::tensor::{PrintOptions, set_print_options};
use thalweg::{DType, Device, Tensor};

use crate::convert::{cloned, external, from_bytes, read_complex, read_scalar, tensor_of, to_bytes, to_list};
use crate::device::{self, PyDevice};
use crate::dtype::{self, Numbered, PyDType};
use crate::external::gradient_of;
use crate::failure::{exception, run, runtime, type_error};
use crate::handle::{Held, PyTensor};
use crate::node::warn_of_missing_gradient;
use crate::protocol::method;

/// The class of shapes, `thalweg.Size`.
static SIZE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Returns numbers as a shape.
fn size_object<'py>(py: Python<'py>, shape: &[usize]) -> PyResult<Bound<'py, PyAny>> {
    let class = SIZE.get_or_try_init(py, || {
        Ok::<_, PyErr>(py.import("thalweg._results")?.getattr("plain_size")?.unbind())
    })?;
    class.bind(py).call1((PyTuple::new(py, shape)?,))
}

impl PyTensor {
    /// Returns the tensor in a dtype and on a device, or the tensor itself if nothing changes.
    fn moved(
        slf: &Bound<'_, Self>,
        device: Option<&Device>,
        dtype: Option<DType>,
        copy: bool,
    ) -> PyResult<Tensor> {
        let source = &slf.tensor();
        run(slf.py(), || {
            let there = match device {
                Some(device) if device != source.device() => source.to_device(device)?,
                _ => source.clone(),
            };
            let converted = match dtype {
                Some(dtype) => there.to_dtype(dtype)?,
                None => there,
            };
            if copy && converted.shares_storage_with(source) { cloned(&converted) } else { Ok(converted) }
        })
    }

    /// Returns the object itself if a call returned the tensor that it already holds.
    fn same_or<'py>(slf: &Bound<'py, Self>, tensor: Tensor) -> PyResult<Bound<'py, Self>> {
        if slf.holds(&tensor) { Ok(slf.clone()) } else { Self::object(slf.py(), tensor) }
    }
}

#[pymethods]
impl PyTensor {
    /// Creates a tensor over the memory of another, outside of the graph. The constructors of tensor classes call this.
    #[new]
    #[pyo3(signature = (*data, requires_grad=false))]
    fn make(data: &Bound<'_, PyTuple>, requires_grad: bool) -> PyResult<Self> {
        let empty = |sizes: &[usize]| {
            Device::current()
                .and_then(|device| Tensor::empty(sizes, default_dtype(), &device))
                .map_err(|error| exception(&error))
        };
        // Integers passed one by one are a shape, as a `Size` is; everything else is data.
        let sizes: Option<Vec<usize>> = data
            .iter()
            .map(|one| one.is_exact_instance_of::<PyInt>().then(|| one.extract().ok()).flatten())
            .collect();
        let tensor = match (sizes, data.len()) {
            (Some(sizes), 1..) => empty(&sizes)?,
            (_, 0) => empty(&[0])?,
            (None, 1) => {
                let data = data.get_item(0)?;
                match data.cast::<Self>() {
                    Ok(tensor) => tensor.tensor().detach(),
                    Err(_) if data.get_type().name()? == "Size" => empty(&data.extract::<Vec<usize>>()?)?,
                    Err(_) if is_storage(&data)? => over_storage(&data, None)?,
                    Err(_) => tensor_of(&data, Some(default_dtype()), None)?,
                }
            }
            (None, _) => {
                return Err(type_error(
                    "Tensor() takes one object with the elements, or the sizes as integers from 0 on",
                ));
            }
        };
        if requires_grad {
            tensor.set_requires_grad(true).map_err(|error| exception(&error))?;
        }
        Ok(Self::new(tensor))
    }

    // ---- Properties -----------------------------------------------------------------------------------------------

    /// The shape: the extent of each dimension.
    #[getter]
    fn shape<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        size_object(slf.py(), slf.tensor().shape())
    }

    /// The dtype.
    #[getter]
    fn dtype(slf: &Bound<'_, Self>) -> PyResult<Py<PyDType>> {
        dtype::object(slf.py(), slf.tensor().dtype())
    }

    /// The device.
    #[getter(device)]
    fn place(slf: &Bound<'_, Self>) -> PyDevice {
        PyDevice::of(slf.tensor().device().clone())
    }

    /// The number of dimensions of the tensor.
    #[getter]
    fn ndim(slf: &Bound<'_, Self>) -> usize {
        slf.tensor().rank()
    }

    /// Whether the tensor is on a GPU, or on a simulated GPU that is shown as one.
    #[getter]
    fn is_cuda(slf: &Bound<'_, Self>) -> bool {
        device::is_shown_as_cuda(slf.tensor().device())
    }

    /// Whether the elements are in the memory of a GPU, which the host does not read.
    #[getter]
    fn _is_on_gpu(slf: &Bound<'_, Self>) -> bool {
        let tensor = slf.tensor();
        let device = tensor.device();
        !device.is_simulated() && !device.is_meta()
    }

    /// Whether the tensor has only a shape and a dtype, and no elements.
    #[getter]
    fn is_meta(slf: &Bound<'_, Self>) -> bool {
        slf.tensor().device().is_meta()
    }

    /// The size of an element in bytes.
    #[getter]
    fn itemsize(slf: &Bound<'_, Self>) -> usize {
        slf.tensor().dtype().size_bytes()
    }

    /// The size of all elements in bytes.
    #[getter]
    fn nbytes(slf: &Bound<'_, Self>) -> usize {
        let tensor = slf.tensor();
        tensor.elements() * tensor.dtype().size_bytes()
    }

    /// Whether gradients are computed for the tensor.
    #[getter]
    fn get_requires_grad(slf: &Bound<'_, Self>) -> bool {
        slf.tensor().requires_grad()
    }

    #[setter]
    fn set_requires_grad(slf: &Bound<'_, Self>, requires_grad: bool) -> PyResult<()> {
        slf.tensor().set_requires_grad(requires_grad).map_err(|error| exception(&error))
    }

    /// Whether the tensor is not the result of a recorded operator.
    #[getter]
    fn is_leaf(slf: &Bound<'_, Self>) -> bool {
        slf.tensor().is_leaf()
    }

    /// The gradient that `backward` has accumulated.
    #[getter]
    fn get_grad<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let gradient = Self::gradient(slf)?;
        let tensor = slf.tensor();
        if gradient.is_none() {
            warn_of_missing_gradient(slf.py(), &tensor)?;
        }
        Ok(gradient)
    }

    #[setter]
    fn set_grad(slf: &Bound<'_, Self>, gradient: Option<&Bound<'_, Self>>) -> PyResult<()> {
        let value = gradient.map(gradient_of).transpose()?;
        slf.tensor().set_grad(value).map_err(|error| exception(&error))?;
        Self::know_gradient(slf, gradient)
    }

    #[deleter(grad)]
    fn del_grad(slf: &Bound<'_, Self>) -> PyResult<()> {
        Self::set_grad(slf, None)
    }

    #[deleter(data)]
    fn del_data(_slf: &Bound<'_, Self>) -> PyResult<()> {
        Err(runtime("data of a tensor can't be deleted"))
    }

    #[deleter(requires_grad)]
    fn del_requires_grad(_slf: &Bound<'_, Self>) -> PyResult<()> {
        Err(runtime("requires_grad of a tensor can't be deleted"))
    }

    /// The tensor outside of the graph. Assigning another tensor replaces it.
    #[getter]
    fn get_data<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        Self::object(slf.py(), slf.tensor().data())
    }

    /// The number of in-place writes so far, including writes through views.
    #[getter]
    fn _version(slf: &Bound<'_, Self>) -> u32 {
        slf.tensor().version()
    }

    #[setter]
    fn set_data(slf: &Bound<'_, Self>, data: &Bound<'_, Self>) -> PyResult<()> {
        let tensor = slf.tensor().with_data(&data.tensor()).map_err(|error| exception(&error))?;
        slf.replace(tensor);
        Ok(())
    }

    /// The dimensions in reverse order.
    #[getter(T)]
    fn reversed<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        method!("numpy_T", slf)
    }

    /// The transpose of the matrices in the last two dimensions.
    #[getter(mT)]
    fn matrices_transposed<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        method!("mT", slf)
    }

    /// The conjugate transpose of a matrix.
    #[getter(H)]
    fn adjoint_matrix<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        method!("matrix_H", slf)
    }

    /// The conjugate transpose of the matrices in the last two dimensions.
    #[getter(mH)]
    fn adjoint_matrices<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        method!("mH", slf)
    }

    /// The real parts.
    #[getter]
    fn real<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        method!("real", slf)
    }

    /// The imaginary parts.
    #[getter]
    fn imag<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        method!("imag", slf)
    }

    #[setter]
    fn set_real(slf: &Bound<'_, Self>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        Self::real(slf)?.set_item(PyEllipsis::get(slf.py()), value)
    }

    #[setter]
    fn set_imag(slf: &Bound<'_, Self>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        Self::imag(slf)?.set_item(PyEllipsis::get(slf.py()), value)
    }

    /// Returns the shape, or the extent of a dimension.
    #[pyo3(signature = (dim=None))]
    fn size<'py>(slf: &Bound<'py, Self>, dim: Option<i64>) -> PyResult<Bound<'py, PyAny>> {
        match dim {
            None => Self::shape(slf),
            Some(dim) => {
                let extent = slf.tensor().size(dim).map_err(|error| exception(&error))?;
                Ok(extent.into_pyobject(slf.py())?.into_any())
            }
        }
    }

    /// Returns the strides in elements, or the stride of a dimension.
    #[pyo3(signature = (dim=None))]
    fn stride<'py>(slf: &Bound<'py, Self>, dim: Option<i64>) -> PyResult<Bound<'py, PyAny>> {
        let tensor = slf.tensor();
        let (layout, strides) = (tensor.layout(), tensor.layout().strides());
        match dim {
            None => Ok(PyTuple::new(slf.py(), strides)?.into_any()),
            Some(dim) => {
                let place = layout.dimension(dim).map_err(|error| exception(&error.into()))?;
                Ok(strides[place].into_pyobject(slf.py())?.into_any())
            }
        }
    }

    /// Returns the number of dimensions.
    fn dim(slf: &Bound<'_, Self>) -> usize {
        slf.tensor().rank()
    }

    /// Returns the number of elements.
    fn numel(slf: &Bound<'_, Self>) -> usize {
        slf.tensor().elements()
    }

    /// Returns the number of elements.
    fn nelement(slf: &Bound<'_, Self>) -> usize {
        slf.tensor().elements()
    }

    /// Returns the size of an element in bytes.
    fn element_size(slf: &Bound<'_, Self>) -> usize {
        slf.tensor().dtype().size_bytes()
    }

    /// Returns the address of the first element, or 0 if there is none. If the simulated GPU is shown as the CPU, the host may read and
    /// write there; otherwise it is the device's address, as in snapshots of its memory.
    fn data_ptr(slf: &Bound<'_, Self>) -> PyResult<u64> {
        let tensor = slf.tensor();
        let device = tensor.device();
        if tensor.elements() == 0 || device.is_meta() {
            return Ok(0);
        }
        tensor.mark_exported();
        if device.is_simulated()
            && device::is_shown_as_cpu()
            && let Some(address) = run(slf.py(), || tensor.host_address(false))?
        {
            return Ok(address);
        }
        Ok(tensor.pointer().address())
    }

    /// Returns the offset of the first element in the storage, in elements.
    fn storage_offset(slf: &Bound<'_, Self>) -> usize {
        slf.tensor().layout().offset()
    }

    /// Returns whether the elements are contiguous in memory, in the order of a memory format.
    #[pyo3(signature = (memory_format=None))]
    fn is_contiguous(slf: &Bound<'_, Self>, memory_format: Option<&Bound<'_, Numbered>>) -> bool {
        match memory_format.map_or(0, |format| format.get().number) {
            2 => is_channels_last(&slf.tensor(), 4),
            3 => is_channels_last(&slf.tensor(), 5),
            _ => slf.tensor().is_contiguous(),
        }
    }

    /// Returns whether the dtype is a floating-point one.
    fn is_floating_point(slf: &Bound<'_, Self>) -> bool {
        slf.tensor().dtype().is_floating_point()
    }

    /// Returns whether the dtype is complex.
    fn is_complex(slf: &Bound<'_, Self>) -> bool {
        slf.tensor().dtype().is_complex()
    }

    // ---- Elements -------------------------------------------------------------------------------------------------

    /// Returns the only element as a number. Blocks until it has been computed.
    fn item<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::one_object(slf)
    }

    /// Returns the elements as nested lists. Blocks until they have been computed.
    fn tolist<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let tensor = slf.tensor();
        to_list(slf.py(), &tensor)
    }

    /// Returns the bytes of the elements, row-major. Blocks until they have been computed.
    fn _bytes<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyByteArray>> {
        let tensor = slf.tensor();
        let bytes = run(slf.py(), || to_bytes(&tensor))?;
        Ok(PyByteArray::new(slf.py(), &bytes))
    }

    // ---- Other devices and dtypes ---------------------------------------------------------------------------------

    /// Returns the tensor in another dtype or on another device, or the tensor itself if nothing changes. A move to another
    /// device blocks and is not recorded.
    #[pyo3(signature = (*args, **kwargs))]
    fn to<'py>(
        slf: &Bound<'py, Self>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut target = Target::default();
        for (place, value) in args.iter().enumerate() {
            target.read_place(place, &value)?;
        }
        for (name, value) in kwargs.iter().flat_map(|kwargs| kwargs.iter()) {
            target.read_name(&name.extract::<String>()?, &value)?;
        }
        let moved = Self::moved(slf, target.device.as_ref(), target.dtype, target.copy)?;
        let moved = Self::same_or(slf, moved)?;
        match target.memory_format {
            Some(format) => {
                let kwargs = PyDict::new(slf.py());
                kwargs.set_item("memory_format", format)?;
                moved.call_method("contiguous", (), Some(&kwargs))
            }
            None => Ok(moved.into_any()),
        }
    }

    /// Returns the tensor on a GPU.
    #[pyo3(signature = (device=None, non_blocking=false))]
    fn cuda<'py>(
        slf: &Bound<'py, Self>,
        device: Option<&Bound<'py, PyAny>>,
        non_blocking: bool,
    ) -> PyResult<Bound<'py, Self>> {
        _ = non_blocking;
        let device = match device {
            Some(device) => device::or_current(slf.py(), Some(device))?,
            None => run(slf.py(), || device::named("cuda"))?,
        };
        let moved = Self::moved(slf, Some(&device), None, false)?;
        Self::same_or(slf, moved)
    }

    /// Returns the tensor on the simulated GPU, whose memory is host memory.
    fn cpu<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let device = run(slf.py(), || device::named("cpu"))?;
        let moved = Self::moved(slf, Some(&device), None, false)?;
        Self::same_or(slf, moved)
    }

    // ---- Autograd -------------------------------------------------------------------------------------------------

    /// Computes the gradients of the leaves that the tensor depends on, and adds them to their `grad`.
    #[pyo3(signature = (gradient=None, retain_graph=None, create_graph=false, inputs=None))]
    fn backward(
        slf: &Bound<'_, Self>,
        gradient: Option<&Bound<'_, PyAny>>,
        retain_graph: Option<bool>,
        create_graph: bool,
        inputs: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let module = slf.py().import("thalweg.autograd")?;
        module
            .call_method1("backward", (slf, gradient, retain_graph, create_graph, None::<()>, inputs))
            .map(drop)
    }

    /// Returns a tensor over the same memory that is outside of the graph.
    fn detach<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        Self::object(slf.py(), slf.tensor().detach())
    }

    /// Takes the tensor out of the graph, in place.
    fn detach_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let tensor = slf.tensor();
        if tensor.is_view() {
            return Err(runtime(
                "Can't detach views in-place. Use detach() instead. The base of a view has the history of both.",
            ));
        }
        slf.replace(tensor.taken_out());
        Ok(slf.clone())
    }

    /// Sets whether gradients are computed for the tensor, in place.
    #[pyo3(signature = (requires_grad=true))]
    fn requires_grad_<'py>(slf: &Bound<'py, Self>, requires_grad: bool) -> PyResult<Bound<'py, Self>> {
        Self::set_requires_grad(slf, requires_grad)?;
        Ok(slf.clone())
    }

    /// Overwrites the elements with those of another tensor, which may belong to another library. They are converted, and moved
    /// if they are on another device.
    #[pyo3(signature = (src, non_blocking=false))]
    fn copy_<'py>(
        slf: &Bound<'py, Self>,
        src: &Bound<'py, PyAny>,
        non_blocking: bool,
    ) -> PyResult<Bound<'py, Self>> {
        _ = non_blocking;
        let source = match src.cast::<Self>() {
            Ok(tensor) => tensor.tensor(),
            Err(_) if read_complex(src).is_some() || read_scalar(src, false)?.is_some() => {
                slf.call_method1("fill_", (src,))?;
                return Ok(slf.clone());
            }
            Err(_) => external(src)?.ok_or_else(|| {
                type_error(format!("copy_(): argument 'src' must be Tensor, not {}", src.get_type()))
            })?,
        };
        let target = slf.tensor();
        run(slf.py(), || {
            let source = if source.device() == target.device() {
                source
            } else {
                source.to_device(target.device())?
            };
            target.copy_(&source)
        })?;
        Ok(slf.clone())
    }

    /// Returns whether pinned memory was requested, on the simulated GPU, whose memory is host memory.
    #[pyo3(signature = (device=None))]
    fn is_pinned(slf: &Bound<'_, Self>, device: Option<&Bound<'_, PyAny>>) -> bool {
        _ = device;
        slf.tensor().is_pinned()
    }

    /// Returns a copy in pinned memory, or the tensor itself if it is already there.
    #[pyo3(signature = (device=None))]
    fn pin_memory<'py>(
        slf: &Bound<'py, Self>,
        device: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Self>> {
        _ = device;
        let own = slf.tensor();
        if own.is_pinned() {
            return Ok(slf.clone());
        }
        if !own.device().is_simulated() {
            return Err(runtime(format!(
                "cannot pin a tensor of {}: only dense CPU tensors can be pinned",
                own.device()
            )));
        }
        let pinned = run(slf.py(), || {
            let copy = cloned(&own)?;
            copy.mark_pinned()?;
            Ok(copy)
        })?;
        Self::object(slf.py(), pinned)
    }

    /// Notes that pinned memory was requested. Only the simulated GPU, which has no other kind of memory, supports this.
    fn _mark_pinned(slf: &Bound<'_, Self>) {
        let _on_a_gpu = slf.tensor().mark_pinned();
    }

    /// Returns the size of the storage in bytes.
    fn _storage_bytes(slf: &Bound<'_, Self>) -> u64 {
        slf.tensor().storage_bytes()
    }

    /// Returns the address of the storage.
    fn _storage_pointer(slf: &Bound<'_, Self>) -> u64 {
        let tensor = slf.tensor();
        if tensor.device().is_meta() { 0 } else { tensor.storage_pointer().address() }
    }

    /// Returns a number that tensors over one storage share.
    fn _storage_identity(slf: &Bound<'_, Self>) -> usize {
        slf.tensor().storage_identity()
    }

    /// Resizes the storage to a number of bytes; 0 frees its memory.
    fn _resize_storage(slf: &Bound<'_, Self>, bytes: u64) -> PyResult<()> {
        let own = slf.tensor();
        run(slf.py(), || own.resize_storage(bytes))
    }

    /// Returns the bytes of the storage as a tensor over it.
    fn _storage_as_bytes<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let own = slf.tensor();
        let bytes = run(slf.py(), || own.storage_as_bytes())?;
        Self::object(slf.py(), bytes)
    }

    /// Returns whether the tensor was made as a view of another tensor.
    fn _is_view(slf: &Bound<'_, Self>) -> bool {
        slf.tensor().is_view()
    }

    /// The base of a view: the tensor that it was made from, or the base of that tensor if it is a view itself.
    #[getter]
    fn _base<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        Self::base(slf)
    }

    /// Makes this object share another object's tensor, with its history.
    fn _share(slf: &Bound<'_, Self>, other: &Bound<'_, Self>) {
        slf.replace(other.tensor());
    }

    /// Returns whether both objects hold the same tensor.
    fn _is_same(slf: &Bound<'_, Self>, other: &Bound<'_, Self>) -> bool {
        slf.holds(&other.tensor())
    }
}

/// Returns whether the second of `rank` dimensions is the innermost in memory, without gaps.
fn is_channels_last(tensor: &Tensor, rank: usize) -> bool {
    if tensor.rank() != rank {
        return false;
    }
    let order: Vec<usize> = std::iter::once(0).chain(2..rank).chain([1]).collect();
    tensor.detach().permute(&order).is_ok_and(|tensor| tensor.is_contiguous())
}

/// PyTorch's number for `preserve_format`, which keeps the order of the dimensions.
const PRESERVE: i64 = 1;

/// The device, dtype and memory format that are requested from [`PyTensor::to`].
#[derive(Default)]
struct Target<'py> {
    device: Option<Device>,
    dtype: Option<DType>,
    copy: bool,
    memory_format: Option<Bound<'py, PyAny>>,
}

impl<'py> Target<'py> {
    fn read_place(&mut self, place: usize, value: &Bound<'py, PyAny>) -> PyResult<()> {
        if value.is_none() {
            return Ok(());
        }
        if let Ok(other) = value.cast::<PyTensor>() {
            let other = other.tensor();
            (self.device, self.dtype) = (Some(other.device().clone()), Some(other.dtype()));
            return Ok(());
        }
        if let Some(dtype) = dtype::read(value) {
            self.dtype = Some(dtype);
            return Ok(());
        }
        if let Ok(flag) = value.extract::<bool>() {
            // The first flag is `non_blocking`, the second `copy`.
            if place >= 2 && flag {
                self.copy = true;
            }
            return Ok(());
        }
        match device::read(value)? {
            Some(device) => {
                self.device = Some(device);
                Ok(())
            }
            None => {
                Err(PyTypeError::new_err(format!("to() takes a device, a dtype or a tensor, not {value:?}")))
            }
        }
    }

    fn read_name(&mut self, name: &str, value: &Bound<'py, PyAny>) -> PyResult<()> {
        match name {
            "device" | "dtype" | "other" | "tensor" => self.read_place(0, value),
            "non_blocking" => value.extract::<bool>().map(drop),
            "copy" => {
                self.copy = value.extract()?;
                Ok(())
            }
            "memory_format" => {
                let is_kept = value.is_none()
                    || value.cast::<Numbered>().is_ok_and(|format| format.get().number == PRESERVE);
                self.memory_format = (!is_kept).then(|| value.clone());
                Ok(())
            }
            _ => Err(type_error(format!("to() got an unexpected keyword argument '{name}'"))),
        }
    }
}

/// Returns whether an object is a storage.
fn is_storage(data: &Bound<'_, PyAny>) -> PyResult<bool> {
    let is_other = data.is_instance_of::<PyList>()
        || data.is_instance_of::<PyFloat>()
        || data.is_instance_of::<PyInt>()
        || data.is_instance_of::<PyTensor>();
    Ok(!is_other && data.get_type().name()?.to_cow()?.ends_with("Storage"))
}

/// Returns a tensor over a storage, in the given dtype, the storage's dtype, or the default dtype.
fn over_storage(data: &Bound<'_, PyAny>, dtype: Option<DType>) -> PyResult<Tensor> {
    let dtype = dtype.map(|dtype| dtype::object(data.py(), dtype)).transpose()?;
    let made = data.py().import("thalweg._storage")?.call_method1("tensor_over", (data, dtype))?;
    Ok(made.cast::<PyTensor>()?.tensor())
}

/// Creates a tensor with a copy of numbers, nested lists, a tensor, a storage or a buffer.
#[pyfunction]
#[pyo3(signature = (data, *, dtype=None, device=None, requires_grad=false, pin_memory=false))]
fn tensor<'py>(
    data: &Bound<'py, PyAny>,
    dtype: Option<&Bound<'py, PyAny>>,
    device: Option<&Bound<'py, PyAny>>,
    requires_grad: bool,
    pin_memory: bool,
) -> PyResult<Bound<'py, PyTensor>> {
    let dtype = match dtype {
        Some(value) => Some(
            dtype::read(value)
                .ok_or_else(|| type_error(format!("{value:?} is not a dtype of tensors here")))?,
        ),
        None => None,
    };
    let device = device.map(|device| device::or_current(data.py(), Some(device))).transpose()?;
    let tensor = if is_storage(data)? {
        let over = over_storage(data, dtype)?;
        let device = device.unwrap_or_else(|| over.device().clone());
        run(data.py(), || cloned(&over)?.to_device(&device))?
    } else {
        crate::failure::guarded(|| tensor_of(data, dtype, device))?
    };
    if pin_memory {
        tensor.mark_pinned().map_err(|error| exception(&error))?;
    }
    if requires_grad {
        tensor.set_requires_grad(true).map_err(|error| exception(&error))?;
    }
    PyTensor::object(data.py(), tensor)
}

/// Creates a tensor from the bytes of its elements, row-major.
#[pyfunction]
fn _from_bytes<'py>(
    bytes: &Bound<'py, PyAny>,
    shape: Vec<usize>,
    dtype: &Bound<'py, PyDType>,
    device: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyTensor>> {
    let device = device::or_current(bytes.py(), device)?;
    let (owned, dtype) = (bytes.extract::<Vec<u8>>()?, dtype.get().held()?);
    let tensor = run(bytes.py(), || from_bytes(&owned, &shape, dtype, &device))?;
    PyTensor::object(bytes.py(), tensor)
}

/// Seeds the default generators of the devices that this process may use.
#[pyfunction]
fn _manual_seed(py: Python<'_>, seed: i64) -> PyResult<()> {
    crate::generator::check_host(py, &device::or_current(py, None)?, "manual_seed")?;
    run(py, || {
        let mut devices = vec![Device::current()?];
        if thalweg::is_available() {
            devices.push(Device::cuda(0)?);
        }
        devices.push(Device::sim(0)?);
        devices
            .iter()
            .try_for_each(|device| thalweg::random::default_generator(device)?.manual_seed(seed as u64))
    })
}

/// Returns the seed and the offset of a device's default generator.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn _rng_state(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<(u64, u64)> {
    let device = device::or_current(py, device)?;
    crate::generator::check_host(py, &device, "get_rng_state")?;
    run(py, || thalweg::random::default_generator(&device)?.state())
}

/// Sets the seed and the offset of a device's default generator.
#[pyfunction]
#[pyo3(signature = (seed, offset, device=None))]
fn _set_rng_state(py: Python<'_>, seed: u64, offset: u64, device: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let device = device::or_current(py, device)?;
    crate::generator::check_host(py, &device, "set_rng_state")?;
    run(py, || thalweg::random::default_generator(&device)?.set_state(seed, offset))
}

/// Sets how tensors are printed. `sci_mode` selects scientific notation for floats.
#[pyfunction]
fn _set_print_options(
    precision: usize,
    threshold: usize,
    edgeitems: usize,
    linewidth: usize,
    sci_mode: Option<bool>,
) -> PyResult<()> {
    let options = PrintOptions {
        precision,
        threshold,
        edge_items: edgeitems,
        line_width: linewidth,
        has_exponent: sci_mode,
    };
    set_print_options(options).map_err(|error| exception(&error))
}

/// Adds the class and the functions.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(_set_print_options, module)?)?;
    module.add_class::<PyTensor>()?;
    functions![module; tensor, _from_bytes, _manual_seed, _rng_state, _set_rng_state];
    Ok(())
}
