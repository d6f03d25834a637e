//! DLPack: exchange of tensors with other libraries, by version 1.0 of its structures (`dlpack.h`), with capsules of both forms.
//!
//! Memory is exported without a copy, and the capsule keeps the tensor alive; that of the simulated GPU at its address in the host's
//! memory. Imported memory is used in place, and the tensor keeps the capsule alive: a GPU's by that GPU, the host's by the simulated
//! GPU. Copies are made of what a graph may move, of memory that may not be written or is not aligned, and for another device. The
//! ordering of streams is done in Python (`_dlpack.py`).

use std::ffi::{CStr, c_void};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::critical_section::with_critical_section;
use thalweg::driver::{DevicePointer, ExternalMemory};
use thalweg::runtime::{ProcessMemory, map_process};
use thalweg::{DType, Device, Tensor};

use crate::convert::to_bytes;
use crate::failure::{left_out, run, type_error, value_error};
use crate::handle::{Held, PyTensor};

/// `DLDevice`.
#[repr(C)]
#[derive(Clone, Copy)]
struct DlDevice {
    kind: i32,
    index: i32,
}

/// `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct DlType {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
    rank: i32,
    dtype: DlType,
    shape: *mut i64,
    strides: *mut i64,
    offset_bytes: u64,
}

/// `DLManagedTensor`, the form without a version.
#[repr(C)]
struct Managed {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: DlTensor,
}

/// `kDLCPU`, `kDLCUDA`, `kDLCUDAHost`.
const HOST: i32 = 1;
const CUDA: i32 = 2;
const PINNED: i32 = 3;

/// `DLPACK_FLAG_BITMASK_READ_ONLY`.
const READ_ONLY: u64 = 1;

/// `DLPACK_FLAG_BITMASK_IS_COPIED`.
const IS_COPIED: u64 = 2;

const NAME: &CStr = c"dltensor";
const NAME_VERSIONED: &CStr = c"dltensor_versioned";
const USED: &CStr = c"used_dltensor";
const USED_VERSIONED: &CStr = c"used_dltensor_versioned";

/// Returns DLPack's type of a dtype.
fn type_of(dtype: DType) -> DlType {
    DlType { code: dtype.exchange().dlpack, bits: 8 * dtype.size_bytes() as u8, lanes: 1 }
}

/// Returns the dtype for DLPack's type.
fn dtype_of(ty: DlType) -> PyResult<DType> {
    let found = DType::ALL.into_iter().find(|&dtype| type_of(dtype) == ty);
    found.ok_or_else(|| {
        left_out(format!(
            "DLPack's type (code {}, {} bits, {} lanes) has no dtype here",
            ty.code, ty.bits, ty.lanes
        ))
    })
}

/// The memory of an exported capsule, and the arrays that its structure points to.
struct ExportedMemory {
    _tensor: Tensor,
    bytes: Vec<u8>,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

impl ExportedMemory {
    /// Returns the structure that describes `tensor`. It points into `self`, which must not move.
    fn describe(&mut self, tensor: &Tensor, address: Option<u64>) -> PyResult<DlTensor> {
        let is_host = !is_on_gpu(tensor.device());
        let data = match address {
            None => self.bytes.as_mut_ptr().cast(),
            Some(address) => address as *mut c_void,
        };
        Ok(DlTensor {
            data,
            device: DlDevice {
                kind: if is_host { HOST } else { CUDA },
                index: if is_host { 0 } else { tensor.device().index() as i32 },
            },
            rank: self.shape.len() as i32,
            dtype: type_of(tensor.dtype()),
            shape: self.shape.as_mut_ptr(),
            strides: self.strides.as_mut_ptr(),
            offset_bytes: 0,
        })
    }
}

fn is_on_gpu(device: &Device) -> bool {
    !device.is_simulated() && !device.is_meta()
}

/// Deletes an exported structure without a version.
///
/// # Safety
/// Called once, with a pointer that [`_to_dlpack`] made.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: both were boxes, and this is the only call.
    unsafe {
        drop(Box::from_raw((*managed).context.cast::<ExportedMemory>()));
        drop(Box::from_raw(managed));
    }
}

/// Deletes an exported structure with a version.
///
/// # Safety
/// Called once, with a pointer that [`_to_dlpack`] made.
unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: both were boxes, and this is the only call.
    unsafe {
        drop(Box::from_raw((*managed).context.cast::<ExportedMemory>()));
        drop(Box::from_raw(managed));
    }
}

/// Frees the structure of a capsule that no consumer has taken. A consumer renames the capsule.
///
/// # Safety
/// Called by the interpreter with a capsule that [`_to_dlpack`] made.
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: a capsule with one of these names holds the structure of that form, whose deleter nothing has called.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, NAME_VERSIONED.as_ptr()) == 1 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, NAME_VERSIONED.as_ptr()).cast());
        }
    }
}

/// Returns a capsule over a tensor, with a version if `versioned` is true.
#[pyfunction]
fn _to_dlpack<'py>(
    py: Python<'py>,
    object: &Bound<'py, PyTensor>,
    versioned: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let tensor = object.tensor().detach();
    if tensor.device().is_meta() {
        return Err(value_error("a tensor on the meta device has no elements to hand out"));
    }
    tensor.mark_exported();
    let address = match is_on_gpu(tensor.device()) {
        true => Some(tensor.pointer().address()),
        false => run(py, || tensor.host_address(true))?,
    };
    let is_copied = address.is_none();
    let bytes = if is_copied { run(py, || to_bytes(&tensor))? } else { Vec::new() };
    let as_list = |list: &[usize]| list.iter().map(|&number| number as i64).collect::<Vec<i64>>();
    let strides = match is_copied {
        true => as_list(&thalweg::ir::contiguous_strides(tensor.shape())),
        false => as_list(tensor.layout().strides()),
    };
    let mut kept =
        Box::new(ExportedMemory { _tensor: tensor.clone(), bytes, shape: as_list(tensor.shape()), strides });
    let described = kept.describe(&tensor, address)?;
    let context = Box::into_raw(kept).cast();
    let (pointer, name): (*mut c_void, _) = if versioned {
        let flags = if is_copied { IS_COPIED } else { 0 };
        let managed = ManagedVersioned {
            major: 1,
            minor: 0,
            context,
            deleter: Some(delete_versioned),
            flags,
            tensor: described,
        };
        (Box::into_raw(Box::new(managed)).cast(), NAME_VERSIONED)
    } else {
        let managed = Managed { tensor: described, context, deleter: Some(delete) };
        (Box::into_raw(Box::new(managed)).cast(), NAME)
    };
    // SAFETY: the name is static; the pointer has the type that the name denotes.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(pointer, name.as_ptr(), Some(destroy))) }
}

/// A structure that was taken out of another library's capsule. Dropping it calls the deleter.
enum Taken {
    Plain(*mut Managed),
    Versioned(*mut ManagedVersioned),
}

impl Taken {
    /// Takes the structure out of a capsule and renames the capsule, so that it is taken only once. If several threads try at
    /// once, one succeeds.
    fn of(capsule: &Bound<'_, PyAny>) -> PyResult<Self> {
        with_critical_section(capsule, || Self::taken_out(capsule))
    }

    /// Takes the structure out of a capsule that no other thread of this package accesses meanwhile.
    fn taken_out(capsule: &Bound<'_, PyAny>) -> PyResult<Self> {
        let object = capsule.as_ptr();
        // SAFETY: a capsule with one of these names holds the structure of that form, by DLPack's rules.
        unsafe {
            if ffi::PyCapsule_IsValid(object, NAME_VERSIONED.as_ptr()) == 1 {
                let pointer =
                    ffi::PyCapsule_GetPointer(object, NAME_VERSIONED.as_ptr()).cast::<ManagedVersioned>();
                if (*pointer).major != 1 {
                    return Err(left_out(format!(
                        "DLPack {}.{} is not read, only 1",
                        (*pointer).major,
                        (*pointer).minor
                    )));
                }
                ffi::PyCapsule_SetName(object, USED_VERSIONED.as_ptr());
                Ok(Self::Versioned(pointer))
            } else if ffi::PyCapsule_IsValid(object, NAME.as_ptr()) == 1 {
                let pointer = ffi::PyCapsule_GetPointer(object, NAME.as_ptr()).cast::<Managed>();
                ffi::PyCapsule_SetName(object, USED.as_ptr());
                Ok(Self::Plain(pointer))
            } else {
                Err(type_error(
                    "from_dlpack() takes a capsule named `dltensor` that was not taken before, or an object that gives one",
                ))
            }
        }
    }

    /// Returns whether the producer forbids writes.
    fn is_read_only(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            // SAFETY: the structure lives until the deleter is called, in `drop`.
            Self::Versioned(managed) => unsafe { (**managed).flags & READ_ONLY != 0 },
        }
    }

    fn tensor(&self) -> &DlTensor {
        // SAFETY: the structure lives until the deleter is called, in `drop`.
        unsafe {
            match self {
                Self::Plain(managed) => &(**managed).tensor,
                Self::Versioned(managed) => &(**managed).tensor,
            }
        }
    }
}

// SAFETY: the structure is only read, and DLPack lets its deleter be called on any thread.
unsafe impl Send for Taken {}
// SAFETY: as above.
unsafe impl Sync for Taken {}

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: the structure was taken, so this is the only call of the deleter.
        unsafe {
            match *self {
                Self::Plain(managed) => {
                    if let Some(deleter) = (*managed).deleter {
                        deleter(managed);
                    }
                }
                Self::Versioned(managed) => {
                    if let Some(deleter) = (*managed).deleter {
                        deleter(managed);
                    }
                }
            }
        }
    }
}

/// Returns the extents and strides of a tensor of another library. Without strides, they are those of row-major order.
fn layout_of(tensor: &DlTensor) -> PyResult<(Vec<usize>, Vec<i64>)> {
    let rank =
        usize::try_from(tensor.rank).map_err(|_| value_error("the number of dimensions is negative"))?;
    let shape: &[i64] = match rank {
        0 => &[],
        // SAFETY: DLPack's structure points to as many extents as it has dimensions.
        _ => unsafe { std::slice::from_raw_parts(tensor.shape, rank) },
    };
    let shape: Vec<usize> = (shape.iter())
        .map(|&extent| usize::try_from(extent).map_err(|_| value_error("an extent is negative")))
        .collect::<PyResult<_>>()?;
    let strides = if tensor.strides.is_null() || rank == 0 {
        thalweg::ir::contiguous_strides(&shape).iter().map(|&stride| stride as i64).collect()
    } else {
        // SAFETY: as above; strides are there.
        unsafe { std::slice::from_raw_parts(tensor.strides, rank) }.to_vec()
    };
    Ok((shape, strides))
}

/// Returns the elements of a tensor in host memory, row-major.
fn host_bytes(tensor: &DlTensor, shape: &[usize], strides: &[i64], size: usize) -> Vec<u8> {
    let count: usize = shape.iter().product();
    let mut bytes = Vec::with_capacity(count * size);
    let mut place = vec![0usize; shape.len()];
    for _ in 0..count {
        let offset: i64 = place.iter().zip(strides).map(|(&place, &stride)| place as i64 * stride).sum();
        let start = tensor.data.cast::<u8>().wrapping_add(tensor.offset_bytes as usize);
        let element = start.wrapping_offset(offset as isize * size as isize);
        // SAFETY: the producer guarantees an element at each position within the extents.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(element, size) });
        for (place, &extent) in place.iter_mut().zip(shape).rev() {
            *place += 1;
            if *place < extent {
                break;
            }
            *place = 0;
        }
    }
    bytes
}

/// Creates a tensor from a capsule: over GPU memory without a copy, or from host memory with a copy on a device. Read-only memory
/// is copied.
#[pyfunction]
fn _from_dlpack<'py>(
    py: Python<'py>,
    capsule: &Bound<'py, PyAny>,
    device: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyTensor>> {
    let taken = Taken::of(capsule)?;
    let other = taken.tensor();
    let (shape, strides) = layout_of(other)?;
    let dtype = dtype_of(other.dtype)?;
    let tensor = match other.device.kind {
        HOST | PINNED => {
            let device = crate::device::or_current(py, device)?;
            let address = other.data as usize + other.offset_bytes as usize;
            let is_usable = !taken.is_read_only()
                && !shape.contains(&0)
                && strides.iter().all(|&stride| stride >= 0)
                && address.is_multiple_of(dtype.size_bytes());
            if is_usable && device.is_simulated() && !crate::device::is_shown_as_cuda(&device) {
                over_host(py, address, (&shape, &strides), dtype, &device, taken)?
            } else {
                let bytes = host_bytes(other, &shape, &strides, dtype.size_bytes());
                run(py, || crate::convert::from_bytes(&bytes, &shape, dtype, &device))?
            }
        }
        CUDA => {
            let index = other.device.index as u32;
            let address = other.data as u64 + other.offset_bytes;
            let is_read_only = taken.is_read_only();
            let made = over(py, address, &shape, &strides, dtype, &cuda(py, index)?, external(taken))?;
            if is_read_only { run(py, || crate::convert::cloned(&made))? } else { made }
        }
        kind => return Err(left_out(format!("DLPack's device {kind} is none that Thalweg has"))),
    };
    PyTensor::object(py, tensor)
}

/// Returns a function that makes memory of an owner. The producer guarantees that the bytes are in memory of the GPU, and keeps the
/// memory until the owner is dropped, which is after the work that uses it.
fn external(owner: impl std::any::Any + Send + Sync) -> impl FnOnce(DevicePointer, u64) -> ExternalMemory {
    // SAFETY: the producer's guarantee.
    move |pointer, bytes| unsafe { ExternalMemory::new(pointer, bytes, owner) }
}

/// Returns a tensor over GPU memory, which a function makes of an address and a number of bytes, and which keeps its owner alive.
pub fn over(
    py: Python<'_>,
    address: u64,
    shape: &[usize],
    strides: &[i64],
    dtype: DType,
    device: &Device,
    memory: impl FnOnce(DevicePointer, u64) -> ExternalMemory + Send,
) -> PyResult<Tensor> {
    let steps: Vec<usize> = (strides.iter())
        .map(|&stride| usize::try_from(stride))
        .collect::<Result<_, _>>()
        .map_err(|_| left_out(format!("a tensor with negative strides {strides:?}: copy it before")))?;
    let last: usize = shape
        .iter()
        .zip(&steps)
        .map(|(&extent, &stride)| extent.saturating_sub(1).saturating_mul(stride))
        .sum();
    let bytes = (last as u64).saturating_add(1).saturating_mul(dtype.size_bytes() as u64);
    let memory = memory(DevicePointer::new(address), bytes);
    run(py, || Tensor::from_external(shape, &steps, dtype, device, memory))
}

/// Returns a tensor of the simulated GPU over memory of the host that a capsule keeps alive.
fn over_host(
    py: Python<'_>,
    address: usize,
    (shape, strides): (&[usize], &[i64]),
    dtype: DType,
    device: &Device,
    taken: Taken,
) -> PyResult<Tensor> {
    let steps: Vec<usize> = strides.iter().map(|&stride| stride as usize).collect();
    let last: usize = shape.iter().zip(&steps).map(|(&extent, &stride)| (extent - 1) * stride).sum();
    let bytes = (last as u64 + 1) * dtype.size_bytes() as u64;
    // SAFETY: the producer guarantees that the elements can be read and written until the structure is deleted.
    let memory = unsafe { ProcessMemory::new(address, bytes) };
    run(py, || {
        let memory = map_process(device.driver(), &memory, Box::new(taken))?;
        Tensor::from_external(shape, &steps, dtype, device, memory)
    })
}

/// Returns a GPU by its number.
fn cuda(py: Python<'_>, index: u32) -> PyResult<Device> {
    run(py, || Device::cuda(index))
}

/// Returns a tensor over the memory of an object with `__cuda_array_interface__`, from the fields of the interface. Strides are
/// in bytes, and `None` for row-major order.
#[pyfunction]
fn _from_cuda_array<'py>(
    py: Python<'py>,
    object: Py<PyAny>,
    address: u64,
    shape: Vec<usize>,
    strides: Option<Vec<i64>>,
    dtype: &Bound<'py, crate::dtype::PyDType>,
    index: u32,
) -> PyResult<Bound<'py, PyTensor>> {
    let dtype = dtype.get().held()?;
    let size = dtype.size_bytes() as i64;
    let strides = match strides {
        Some(strides) if strides.len() != shape.len() || strides.iter().any(|stride| stride % size != 0) => {
            return Err(value_error(format!(
                "__cuda_array_interface__: strides {strides:?} are not those of elements of {size} bytes in shape {shape:?}"
            )));
        }
        Some(strides) => strides.iter().map(|stride| stride / size).collect(),
        None => {
            thalweg::ir::contiguous_strides(&shape).iter().map(|&stride| stride as i64).collect::<Vec<_>>()
        }
    };
    let tensor = over(py, address, &shape, &strides, dtype, &cuda(py, index)?, external(object))?;
    PyTensor::object(py, tensor)
}

/// Adds the functions.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    functions![module; _to_dlpack, _from_dlpack, _from_cuda_array];
    Ok(())
}
