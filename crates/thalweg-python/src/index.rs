//! Python subscripts: `x[0, 1:3, ::2, None, ..., indices, mask]`.

use pyo3::exceptions::{PyIndexError, PyUserWarning};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyEllipsis, PyInt, PySlice, PyString, PyTuple};
use smallvec::SmallVec;
use thalweg::{DType, Device, Index};

use crate::convert::{is_sequence, read_int, tensor_of};
use crate::failure::{run, type_error, value_error};
use crate::handle::{Held, PyTensor};

/// Reads the parts of a subscript of a tensor on a device.
pub fn read_subscript(subscript: &Bound<'_, PyAny>, device: &Device) -> PyResult<SmallVec<[Index; 4]>> {
    if let Ok(parts) = subscript.cast::<PyTuple>() {
        return parts.iter().map(|part| read_part(&part, device)).collect();
    }
    if stands_for_tuple(subscript)? {
        return subscript.try_iter()?.map(|part| read_part(&part?, device)).collect();
    }
    Ok(SmallVec::from_iter([read_part(subscript, device)?]))
}

/// Returns whether a value is an array of NumPy, and not one of its numbers.
pub(crate) fn is_array(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(value.hasattr("__array_interface__")? && value.hasattr("__len__")?)
}

/// Returns whether a sequence is a subscript of several parts, and shows PyTorch's warning for it. As in PyTorch, that is a short
/// sequence with a part that is not just a number.
fn stands_for_tuple(subscript: &Bound<'_, PyAny>) -> PyResult<bool> {
    let is_number = subscript.is_instance_of::<PyInt>() || subscript.is_instance_of::<PySlice>();
    if is_number
        || subscript.is_instance_of::<PyTensor>()
        || !is_sequence(subscript)
        || subscript.len()? >= 32
    {
        return Ok(false);
    }
    for part in subscript.try_iter()? {
        let part = part?;
        let is_part = part.is_none()
            || part.is_instance_of::<PyTensor>()
            || part.is_instance_of::<PySlice>()
            || part.is_instance_of::<PyEllipsis>();
        if is_part || is_sequence(&part) || is_array(&part)? {
            let text = c"Using a non-tuple sequence for multidimensional indexing is deprecated; use x[tuple(seq)] instead of x[seq]";
            let py = subscript.py();
            PyErr::warn(py, &py.get_type::<PyUserWarning>(), text, 1)?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads a tensor as a part of a subscript. An integer tensor without dimensions is an index. The host waits for its value, and
/// the result is a view, as in PyTorch. A captured step cannot wait, so there the result is a copy.
fn read_tensor(part: &Bound<'_, PyTensor>) -> PyResult<Index> {
    let tensor = part.tensor();
    let is_place = tensor.rank() == 0
        && !matches!(tensor.dtype(), DType::Bool | DType::U8)
        && !tensor.dtype().is_floating_point()
        && !tensor.dtype().is_complex()
        && !tensor.device().is_meta();
    if is_place && !run(part.py(), || tensor.device().current_stream().is_capturing())? {
        return Ok(Index::At(crate::handle::item(part.py(), &tensor)?.to_i64()));
    }
    Ok(Index::Tensor(tensor))
}

fn read_part(part: &Bound<'_, PyAny>, device: &Device) -> PyResult<Index> {
    if part.is_none() {
        return Ok(Index::NewAxis);
    }
    if part.is_instance_of::<PyBool>() {
        return Ok(Index::Tensor(tensor_of(part, Some(DType::Bool), Some(device.clone()))?));
    }
    if let Some(place) = read_int(part) {
        return Ok(Index::At(place));
    }
    if let Ok(slice) = part.cast::<PySlice>() {
        let bound = |name: &str| -> PyResult<Option<i64>> {
            let value = slice.getattr(name)?;
            if value.is_none() {
                return Ok(None);
            }
            if let Ok(tensor) = value.cast::<PyTensor>() {
                let number = crate::handle::item(value.py(), &tensor.tensor())?;
                return Ok(Some(number.to_i64()));
            }
            read_int(&value).map(Some).ok_or_else(|| {
                type_error("slice indices must be integers or None or have an __index__ method")
            })
        };
        let step = bound("step")?.unwrap_or(1);
        if step < 1 {
            return Err(value_error("step must be greater than zero"));
        }
        return Ok(Index::Slice(bound("start")?, bound("stop")?, step));
    }
    if part.is_instance_of::<PyEllipsis>() {
        return Ok(Index::Ellipsis);
    }
    if let Ok(tensor) = part.cast::<PyTensor>() {
        return read_tensor(tensor);
    }
    if is_sequence(part) || part.hasattr("__array_interface__")? {
        let dtype = if part.len().is_ok_and(|count| count == 0) { Some(DType::I64) } else { None };
        return Ok(Index::Tensor(tensor_of(part, dtype, Some(device.clone()))?));
    }
    let text = format!(
        "only integers, slices (`:`), ellipsis (`...`), None and long or bool tensors are valid indices (got {})",
        part.get_type().name()?
    );
    Err(if part.is_instance_of::<PyString>() { type_error(text) } else { PyIndexError::new_err(text) })
}
