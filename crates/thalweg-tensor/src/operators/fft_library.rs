//! Discrete Fourier transforms as calls of the vendor's library; on the simulator as a host function.

use std::panic::Location;

use thalweg_execute::library::Fourier;
use thalweg_execute::{execute, if_supported};
use thalweg_ir::{Shape, inverse_order};
use thalweg_runtime::{FourierKind, FourierShape, Label, Result, element_format};

use crate::tensor::Tensor;

/// The number of dimensions that the library transforms together.
const MOST: usize = 3;

/// Transforms complex numbers along dimensions; `None` if no library does.
pub(super) fn complex(x: &Tensor, dims: &[usize], forward: bool, label: Label) -> Result<Option<Tensor>> {
    let mut result = x.clone();
    for group in dims.chunks(MOST) {
        let kind = FourierKind::Complex { forward };
        match transform(&result, group, kind, x.shape()[group[group.len() - 1]], label)? {
            Some(next) => result = next,
            None => return Ok(None),
        }
    }
    Ok(Some(result))
}

/// Transforms real numbers along dimensions, to the half up to the middle of the last one; `None` if no library does.
pub(super) fn from_real(x: &Tensor, dims: &[usize], label: Label) -> Result<Option<Tensor>> {
    let (others, group) = dims.split_at(dims.len().saturating_sub(MOST));
    let last = x.shape()[dims[dims.len() - 1]];
    match transform(x, group, FourierKind::FromReal, last, label)? {
        Some(half) => complex(&half, others, true, label),
        None => Ok(None),
    }
}

/// Transforms the half of a spectrum up to the middle of the last dimension to real numbers, of which there are `last` there;
/// `None` if no library does.
pub(super) fn to_real(x: &Tensor, dims: &[usize], last: usize, label: Label) -> Result<Option<Tensor>> {
    let (others, group) = dims.split_at(dims.len().saturating_sub(MOST));
    match complex(x, others, false, label)? {
        Some(half) => transform(&half, group, FourierKind::ToReal, last, label),
        None => Ok(None),
    }
}

/// Returns the distance between consecutive lines of a tensor whose last dimension is a line; `None` if there is no such distance.
fn distance(x: &Tensor) -> Option<u64> {
    let (shape, strides) = (x.shape(), x.layout().strides());
    let mut lines: Option<(i64, i64)> = None;
    for (&extent, &stride) in shape.iter().zip(strides).rev().skip(1).filter(|(extent, _)| **extent > 1) {
        lines = match lines {
            None => Some((stride as i64, stride as i64 * extent as i64)),
            Some((first, next)) if stride as i64 == next => Some((first, next * extent as i64)),
            Some(_) => return None,
        };
    }
    match lines {
        Some((first, _)) => u64::try_from(first).ok().filter(|&first| first > 0),
        None => Some(x.elements() as u64),
    }
}

/// Returns the tensor whose last dimensions are transformed in a form that the library reads, with step and distance of its
/// numbers.
fn readable(x: &Tensor, kind: FourierKind, rank: usize, count: u64) -> Result<(Tensor, [u64; 2])> {
    let is_aligned = x.pointer().address().is_multiple_of(16);
    let is_read = kind != FourierKind::ToReal && is_aligned;
    if let (true, 1, Some(distance), Some(&step)) = (is_read, rank, distance(x), x.layout().strides().last())
        && let Some(step) = u64::try_from(step).ok().filter(|&step| step > 0)
    {
        return Ok((x.detach(), [step, distance]));
    }
    let mut numbers = x.detach().contiguous()?;
    // The library overwrites a half, and reads pairs of real numbers.
    if numbers.shares_storage_with(x) && !(is_read && is_aligned) {
        numbers = numbers.copied(Location::caller())?;
    }
    Ok((numbers, [1, count]))
}

fn transform(
    x: &Tensor,
    dims: &[usize],
    kind: FourierKind,
    last: usize,
    label: Label,
) -> Result<Option<Tensor>> {
    let Some(format) = element_format(x.dtype().real()) else { return Ok(None) };
    if x.elements() == 0 {
        return Ok(None);
    }
    let others: Shape = (0..x.rank()).filter(|dim| !dims.contains(dim)).collect();
    let order: Shape = others.iter().chain(dims).copied().collect();
    let mut sizes = [1; MOST];
    sizes.iter_mut().zip(dims).for_each(|(size, &dim)| *size = x.shape()[dim] as u64);
    sizes[dims.len() - 1] = last as u64;
    let batch = others.iter().map(|&dim| x.shape()[dim] as u64).product();
    let mut shape =
        FourierShape { kind, rank: dims.len() as u32, sizes, batch, input_strides: [1, 1], format };
    let [count, _] = shape.counts();
    let (numbers, strides) = readable(&x.permute(&order)?, kind, dims.len(), count)?;
    shape.input_strides = strides;
    if shape.fault().is_some() {
        return Ok(None);
    }
    let mut extents: Shape = order.iter().map(|&dim| x.shape()[dim]).collect();
    let place = extents.len() - 1;
    let dtype = match kind {
        FourierKind::ToReal => {
            extents[place] = last;
            x.dtype().real()
        }
        FourierKind::FromReal => {
            extents[place] = last / 2 + 1;
            x.dtype().complex()
        }
        FourierKind::Complex { .. } => x.dtype(),
    };
    let stream = x.device().current_stream();
    let result = Tensor::empty_on(&extents, dtype, &stream, label)?;
    let queued = execute(Fourier(&shape), [numbers.pointer(), result.pointer()], &stream, label);
    if_supported(queued)?.map(|()| result.permute(&inverse_order(&order))).transpose()
}
