//! Views of another shape: extents that are to be inferred, and PyTorch's refusals.

use thalweg_ir::{Shape, element_count};
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::views::{ViewBackward, record_view};
use crate::tensor::Tensor;

/// Returns a shape of this number of elements, in which −1 is the extent computed from the others.
pub(crate) fn inferred(size: &[i64], elements: usize) -> Result<Shape> {
    let mut unknown = None;
    for (at, &extent) in size.iter().enumerate() {
        match extent {
            -1 if unknown.is_some() => return Err(invalid!("only one dimension can be inferred")),
            -1 => unknown = Some(at),
            ..0 => return Err(invalid!("invalid shape dimension {extent}")),
            0.. => {}
        }
    }
    let invalid = || invalid!("shape '{size:?}' is invalid for input of size {elements}");
    let mut shape: Shape = size.iter().map(|&extent| extent.max(0) as usize).collect();
    if let Some(at) = unknown {
        shape[at] = 1;
        let known = element_count(&shape).map_err(|_| invalid())?;
        refuse_if!(
            known == 0 && elements == 0,
            "cannot reshape tensor of 0 elements into shape {size:?} because the unspecified dimension size -1 can be any \
             value and is ambiguous"
        );
        if known == 0 || !elements.is_multiple_of(known) {
            return Err(invalid());
        }
        shape[at] = elements / known;
    }
    check_count(&shape, elements)?;
    Ok(shape)
}

/// Refuses a shape of another number of elements.
pub(crate) fn check_count(shape: &[usize], elements: usize) -> Result<()> {
    match element_count(shape) {
        Ok(count) if count == elements => Ok(()),
        _ => Err(invalid!("shape '{shape:?}' is invalid for input of size {elements}")),
    }
}

/// Returns a view that is broadcast to a shape, in which −1 keeps an extent.
pub(crate) fn expand(x: &Tensor, size: &[i64]) -> Result<Tensor> {
    let Some(added) = size.len().checked_sub(x.rank()) else {
        refuse!(
            "expand({}{{{:?}}}, size={size:?}): the number of sizes provided ({}) must be greater or equal to the number of \
             dimensions in the tensor ({})",
            x.dtype(),
            x.shape(),
            size.len(),
            x.rank()
        );
    };
    let mut shape = Shape::new();
    for (at, &wanted) in size.iter().enumerate() {
        let extent = at.checked_sub(added).map(|dim| x.shape()[dim]);
        shape.push(match (wanted, extent) {
            (-1, Some(extent)) => extent,
            (0.., None) => wanted as usize,
            (..0, None) => {
                refuse!(
                    "The expanded size of the tensor ({wanted}) isn't allowed in a leading, non-existing dimension {at}"
                );
            }
            (0.., Some(extent)) if extent == 1 || extent == wanted as usize => wanted as usize,
            (_, Some(extent)) => {
                refuse!(
                    "The expanded size of the tensor ({wanted}) must match the existing size ({extent}) at non-singleton dimension \
                     {at}.  Target sizes: {size:?}.  Tensor sizes: {:?}",
                    x.shape()
                );
            }
        });
    }
    x.expanded(&shape)
}

/// Returns a view of the elements in another shape.
pub(crate) fn view(x: &Tensor, shape: &[usize]) -> Result<Tensor> {
    check_count(shape, x.elements())?;
    match x.layout().reshape(shape)? {
        Some(layout) => Ok(record_view(x, x.viewed(layout), || ViewBackward::Reshape(x.shape().into()))),
        None => Err(invalid!(
            "view size is not compatible with input tensor's size and stride (at least one dimension spans across two contiguous \
             subspaces). Use .reshape(...) instead."
        )),
    }
}
