//! Views: other layouts over the memory of a tensor. Views copy nothing, unless their documentation states it.

use smallvec::SmallVec;
use thalweg_ir::{DType, Layout, Shape, inverse_order};
use thalweg_ops::default_dtype;
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::Body::{Composite, Kernel};
use super::{operators, single};
use crate::dispatch::{Arguments, Call};
use crate::dtype_name::named;
use crate::host_room::host_room;
use crate::kernels::reshape::{check_count, expand, inferred, view};
use crate::kernels::views::{ViewBackward, record_split, record_view};
use crate::memory_format::{format_order, in_order};
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns a view of all elements.
    "alias(Tensor(a) self) -> Tensor(a)" = Composite(|call| alias(call.tensor(0)).map(single));
    /// Returns a view of the memory with these extents and strides. The view must be inside the memory.
    "as_strided(Tensor(a) self, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor(a)"
        fn as_strided(size: sizes, stride: sizes, storage_offset: optional_int) = Composite(|call| {
            as_strided(call.tensor(0), &call.ints(1), &call.ints(2), call.optional_int(3)).map(single)
        }), in_place: "as_strided_";
    /// Changes the tensor's size, with a contiguous layout or that of a memory format, and gives its storage more memory if it
    /// does not have enough; additional elements are uninitialized. Returns the tensor.
    "resize_(Tensor(a!) self, SymInt[] size, *, MemoryFormat? memory_format=None) -> Tensor(a!)"
        fn resize_(size: sizes) = Kernel(|call| resize(call, &extents(&call.ints(1))?)), complex: Taken;
    /// Gives the tensor another's size, as `resize_` does.
    "resize_as_(Tensor(a!) self, Tensor the_template, *, MemoryFormat? memory_format=None) -> Tensor(a!)"
        fn resize_as_(the_template: tensor)
        = Kernel(|call| resize(call, call.tensor(1).shape())), complex: Taken;
    /// Returns the diagonals of two dimensions as a new last one; `offset` is their distance above the main one.
    "diagonal(Tensor(a) self, int offset=0, int dim1=0, int dim2=1) -> Tensor(a)"
        fn diagonal(offset: int, dim1: int, dim2: int) = Composite(|call| {
            diagonal(call.tensor(0), call.int(1), call.int(2), call.int(3)).map(single)
        });
    /// Returns the tensor broadcast to a shape, in which −1 keeps an extent.
    "expand(Tensor(a) self, SymInt[] size, *, bool implicit=False) -> Tensor(a)"
        = Composite(|call| expand(call.tensor(0), &call.ints(1)).map(single));
    /// Returns the tensor broadcast to the shape of another.
    "expand_as(Tensor(a) self, Tensor other) -> Tensor(a)"
        fn expand_as(other: tensor) = Composite(|call| {
            let size: SmallVec<[i64; 6]> = call.tensor(1).shape().iter().map(|&extent| extent as i64).collect();
            expand(call.tensor(0), &size).map(single)
        }), autocast: Parts;
    /// Returns the tensor with its dimensions in another order.
    "permute(Tensor(a) self, int[] dims) -> Tensor(a)" = Composite(|call| permute(call).map(single));
    /// Returns the tensor with two dimensions swapped.
    "transpose.int(Tensor(a) self, int dim0, int dim1) -> Tensor(a)"
        = Composite(|call| transpose(call.tensor(0), call.int(1), call.int(2)).map(single)), in_place: "transpose_";
    /// Returns the tensor with two dimensions swapped.
    "swapaxes(Tensor(a) self, int axis0, int axis1) -> Tensor(a)"
        fn swapaxes(axis0: int, axis1: int)
        = Composite(|call| transpose(call.tensor(0), call.int(1), call.int(2)).map(single)), in_place: "swapaxes_", autocast: Parts;
    /// Returns the tensor with two dimensions swapped.
    "swapdims(Tensor(a) self, int dim0, int dim1) -> Tensor(a)"
        fn swapdims(dim0: int, dim1: int)
        = Composite(|call| transpose(call.tensor(0), call.int(1), call.int(2)).map(single)), in_place: "swapdims_", autocast: Parts;
    /// Returns a matrix with its two dimensions swapped; a tensor with fewer dimensions is returned unchanged.
    "t(Tensor(a) self) -> Tensor(a)"
        fn t() = Composite(|call| match call.tensor(0).rank() {
            0 | 1 => alias(call.tensor(0)).map(single),
            2 => transpose(call.tensor(0), 0, 1).map(single),
            rank => Err(invalid!("t() expects a tensor with <= 2 dimensions, but self is {rank}D")),
        }), in_place: "t_";
    /// Returns one slice of a dimension, without that dimension.
    "select.int(Tensor(a) self, int dim, SymInt index) -> Tensor(a)"
        = Composite(|call| select(call.tensor(0), call.int(1), call.int(2)).map(single));
    /// Returns every `step`th index of a dimension, from `start` on and below `end`; negative bounds are counted from the end.
    "slice.Tensor(Tensor(a) self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor(a)"
        fn slice(dim: int, start: optional_int, end: optional_int, step: int) = Composite(|call| {
            let bounds = (call.optional_int(2), call.optional_int(3));
            slice(call.tensor(0), call.int(1), bounds, call.int(4)).map(single)
        });
    /// Returns `length` indices of a dimension, from `start` on.
    "narrow(Tensor(a) self, int dim, SymInt start, SymInt length) -> Tensor(a)" = Composite(|call| narrow(call).map(single)), autocast: Parts;
    /// Returns the parts of a dimension, each of `split_size` elements, the last of the remainder.
    "split.Tensor(Tensor(a -> *) self, SymInt split_size, int dim=0) -> Tensor(a)[]"
        fn split(split_size: int, dim: int) -> list = Composite(split);
    /// Returns the parts of a dimension, of these sizes.
    "split_with_sizes(Tensor(a -> *) self, SymInt[] split_sizes, int dim=0) -> Tensor(a)[]"
        fn split_with_sizes(split_sizes: sizes, dim: int) -> list = Composite(split_with_sizes);
    /// Returns the parts of a dimension, of these sizes.
    "split.sizes(Tensor(a -> *) self, SymInt[] split_size, int dim=0) -> Tensor(a)[]" = Composite(split_with_sizes), autocast: Parts;
    /// Returns at most `chunks` parts of a dimension, all but the last of one size.
    "chunk(Tensor(a -> *) self, int chunks, int dim=0) -> Tensor(a)[]"
        fn chunk(chunks: int, dim: int) -> list = Composite(chunk), autocast: Parts;
    /// Returns every slice of a dimension, without that dimension.
    "unbind.int(Tensor(a -> *) self, int dim=0) -> Tensor(a)[]" = Composite(|call| {
        let x = call.tensor(0);
        let dim = wrap(call.int(1), x.rank())?;
        check_has_places(x, "Dimension specified as 0 but tensor has no dimensions")?;
        Ok(x.unbind(dim as i64)?.into())
    });
    /// Returns the tensor without its dimensions of extent 1.
    "squeeze(Tensor(a) self) -> Tensor(a)" = Composite(|call| {
        let all: SmallVec<[i64; 6]> = (0..call.tensor(0).rank() as i64).collect();
        squeeze(call.tensor(0), &all).map(single)
    }), in_place: "squeeze_";
    /// Returns the tensor without a dimension, if its extent is 1.
    "squeeze.dim(Tensor(a) self, int dim) -> Tensor(a)"
        = Composite(|call| squeeze(call.tensor(0), &[call.int(1)]).map(single)), in_place: "squeeze_.dim";
    /// Returns the tensor without those of these dimensions whose extent is 1.
    "squeeze.dims(Tensor(a) self, int[] dim) -> Tensor(a)"
        = Composite(|call| squeeze(call.tensor(0), &call.ints(1)).map(single)), in_place: "squeeze_.dims";
    /// Returns the tensor with a new dimension of extent 1.
    "unsqueeze(Tensor(a) self, int dim) -> Tensor(a)" = Composite(|call| {
        let x = call.tensor(0);
        x.unsqueeze(wrap(call.int(1), x.rank() + 1)? as i64).map(single)
    }), in_place: "unsqueeze_";
    /// Returns the elements, row-major, in another shape, in which one extent may be −1; refused if that needs a copy.
    "view(Tensor(a) self, SymInt[] size) -> Tensor(a)" = Composite(|call| {
        let x = call.tensor(0);
        view(x, &inferred(&call.ints(1), x.elements())?).map(single)
    });
    /// Returns a view of the memory as elements of another dtype, outside the autograd graph. If that dtype has another size, the
    /// last dimension becomes longer or shorter, and its elements must be contiguous.
    "view.dtype(Tensor(a) self, ScalarType dtype) -> Tensor(a)"
        fn view_dtype(dtype: dtype) = Composite(|call| view_dtype(call.tensor(0), call.dtype(1)).map(single));
    /// Returns the elements, row-major, in the shape of another tensor; refused if that needs a copy.
    "view_as(Tensor(a) self, Tensor other) -> Tensor(a)"
        fn view_as(other: tensor) = Composite(|call| view(call.tensor(0), call.tensor(1).shape()).map(single)), autocast: Parts;
    /// Returns the elements, row-major, in another shape, in which one extent may be −1: a view if the strides allow it, else a
    /// copy.
    "reshape(Tensor(a) self, SymInt[] shape) -> Tensor(a)" = Composite(|call| {
        let x = call.tensor(0);
        x.reshaped(&inferred(&call.ints(1), x.elements())?).map(single)
    }), autocast: Parts;
    /// Returns the elements, row-major, in the shape of another tensor: a view if the strides allow it, else a copy.
    "reshape_as(Tensor(a) self, Tensor other) -> Tensor(a)"
        fn reshape_as(other: tensor) = Composite(|call| {
            check_count(call.tensor(1).shape(), call.tensor(0).elements())?;
            call.tensor(0).reshape(call.tensor(1).shape()).map(single)
        }), autocast: Parts;
    /// Returns a range of dimensions as one: a view if the strides allow it, else a copy.
    "flatten.using_ints(Tensor(a) self, int start_dim=0, int end_dim=-1) -> Tensor(a)"
        fn flatten(start_dim: int, end_dim: int) = Composite(|call| flatten(call).map(single)), autocast: Parts;
    /// Returns all dimensions as one: a view of a contiguous tensor, else a copy.
    "ravel(Tensor(a) self) -> Tensor(a)"
        fn ravel() = Composite(|call| {
            let x = call.tensor(0).contiguous()?;
            x.reshape(&[x.elements()]).map(single)
        }), autocast: Parts;
    /// Returns the tensor with a dimension split into several, one of whose sizes may be −1.
    "unflatten.int(Tensor(a) self, int dim, SymInt[] sizes) -> Tensor(a)"
        fn unflatten(dim: int, sizes: sizes) = Composite(|call| unflatten(call).map(single)), autocast: Parts;
    /// Returns the tensor with dimensions moved to other positions; the others keep their order.
    "movedim.intlist(Tensor(a) self, int[] source, int[] destination) -> Tensor(a)"
        fn movedim(source: ints, destination: ints)
        = Composite(|call| movedim(call.tensor(0), &call.ints(1), &call.ints(2)).map(single)), autocast: Parts;
    /// Returns the tensor with a dimension moved to another position; the others keep their order.
    "movedim.int(Tensor(a) self, int source, int destination) -> Tensor(a)"
        = Composite(|call| movedim(call.tensor(0), &[call.int(1)], &[call.int(2)]).map(single)), autocast: Parts;
    /// Returns the same memory outside the autograd graph.
    "detach(Tensor(a) self) -> Tensor(a)" = Composite(|call| Ok(single(call.tensor(0).detach())));
    /// Returns the elements without gaps in the order of a memory format; the tensor itself if they already are.
    "contiguous(Tensor(a) self, *, MemoryFormat memory_format=contiguous_format) -> Tensor(a)"
        = Composite(|call| in_format(call.tensor(0), call.int(1)).map(single)), autocast: Parts;
    /// Returns a copy of the elements.
    "clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor"
        = Composite(|call| copied_in_format(call, call.tensor(0), call.optional_int(1)).map(single));
}

/// Returns a dimension counted from the end if it is negative. A tensor without dimensions is treated as if it had one.
pub(super) fn wrap(dim: i64, rank: usize) -> Result<usize> {
    let count = rank.max(1) as i64;
    if (-count..count).contains(&dim) {
        return Ok(dim.rem_euclid(count) as usize);
    }
    Err(Error::index(format!(
        "Dimension out of range (expected to be in range of [{}, {}], but got {dim})",
        -count,
        count - 1
    )))
}

/// Returns dimensions counted from the front, and refuses repeated ones.
pub(super) fn wrap_all(dims: &[i64], rank: usize) -> Result<Shape> {
    let mut wrapped = Shape::new();
    for &dim in dims {
        let dim = wrap(dim, rank)?;
        refuse_if!(wrapped.contains(&dim), "dim {dim} appears multiple times in the list of dims");
        wrapped.push(dim);
    }
    Ok(wrapped)
}

/// Refuses a tensor without dimensions, in which no index exists.
fn check_has_places(x: &Tensor, refusal: &str) -> Result<()> {
    if x.rank() == 0 { Err(Error::index(refusal.to_owned())) } else { Ok(()) }
}

/// Refuses a tensor without dimensions.
pub(super) fn check_has_dimensions(x: &Tensor, refusal: &str) -> Result<()> {
    if x.rank() == 0 { Err(Error::invalid(refusal.to_owned())) } else { Ok(()) }
}

/// Returns extents, none of which is negative.
pub(super) fn extents(size: &[i64]) -> Result<Shape> {
    size.iter().map(|&extent| usize::try_from(extent)).collect::<std::result::Result<_, _>>().map_err(|_| {
        let negative = size.iter().find(|&&extent| extent < 0).expect("one is negative");
        invalid!("Trying to create tensor with negative dimension {negative}: {size:?}")
    })
}

/// Returns a view of a subset of the elements, each once: `place` computes their layout from that of all.
fn part(x: &Tensor, name: &'static str, place: impl Fn(&Layout) -> Result<Layout>) -> Result<Tensor> {
    let layout = place(x.layout())?;
    Ok(record_view(x, x.viewed(layout), || {
        let part = place(&Layout::contiguous(x.shape())).expect("what fits the tensor fits its shape");
        ViewBackward::Part { name, shape: x.shape().into(), part }
    }))
}

pub(super) fn alias(x: &Tensor) -> Result<Tensor> {
    Ok(record_view(x, x.viewed(x.layout().clone()), || ViewBackward::Reshape(x.shape().into())))
}

pub(super) fn as_strided(x: &Tensor, size: &[i64], stride: &[i64], start: Option<i64>) -> Result<Tensor> {
    refuse_if!(size.len() != stride.len(), "mismatch in length of strides and shape");
    let shape = extents(size)?;
    let strides: Shape = stride
        .iter()
        .map(|&stride| usize::try_from(stride))
        .collect::<std::result::Result<_, _>>()
        .map_err(|_| {
            invalid!("as_strided: Negative strides are not supported at the moment, got strides: {stride:?}")
        })?;
    let offset = usize::try_from(start.unwrap_or(x.layout().offset() as i64))
        .map_err(|_| invalid!("Tensor: invalid storage offset"))?;
    let itemsize = x.dtype().size_bytes();
    let available = x.storage().buffer().size_bytes() as usize / itemsize;
    let last = shape.iter().zip(&strides).try_fold(offset, |end, (&extent, &stride)| {
        end.checked_add(extent.saturating_sub(1).checked_mul(stride)?)
    });
    // A view without elements may begin anywhere, as a slice of an empty tensor does, as long as its address is a number.
    let is_empty = shape.contains(&0) && offset < (1 << 60) / itemsize;
    if !(is_empty || last.is_some_and(|last| last < available)) {
        let needed = last.and_then(|last| last.checked_add(1)?.checked_mul(itemsize));
        let needed = needed.map_or_else(|| "more than 2⁶⁴".to_owned(), |bytes| bytes.to_string());
        refuse!(
            "setStorage: sizes {size:?}, strides {stride:?}, storage offset {offset}, and itemsize {itemsize} requiring a storage size of \
             {needed} are out of bounds for storage of size {}",
            available * itemsize
        );
    }
    let layout = Layout::new(&shape, &strides, offset)?;
    Ok(strided(x, layout))
}

/// Returns a view of any layout inside the memory.
pub(super) fn strided(x: &Tensor, layout: Layout) -> Tensor {
    let view = x.viewed(layout.clone());
    let base = x.layout().clone();
    record_view(x, view, || ViewBackward::Strided { base, view: layout })
}

/// Resizes the first tensor of a call, whose third argument is the memory format.
fn resize(call: &Call<'_>, shape: &[usize]) -> Result<Tensors> {
    let (x, format) = (call.tensor(0), call.optional_int(2));
    let format = match (format, call.tensors.get(1)) {
        (Some(1), Some(template)) => Some(format_of(template)),
        _ => format,
    };
    let layout = layout_in(shape, format.unwrap_or(0))?;
    if format.is_some() || x.shape() != shape {
        x.resize(shape, layout.strides(), call.label)?;
    }
    Ok(single(x.clone()))
}

pub(super) fn diagonal(x: &Tensor, offset: i64, dim1: i64, dim2: i64) -> Result<Tensor> {
    let (first, second) = (wrap(dim1, x.rank())?, wrap(dim2, x.rank())?);
    refuse_if!(first == second, "diagonal dimensions cannot be identical {dim1}, {dim2}");
    let [rows, columns] = [first, second].map(|dim| x.shape()[dim]);
    let (down, right) = if offset < 0 { (offset.unsigned_abs(), 0) } else { (0, offset.unsigned_abs()) };
    let length = (rows as u64).saturating_sub(down).min((columns as u64).saturating_sub(right)) as usize;
    part(x, "diagonal", |layout| {
        let strides = layout.strides();
        let kept = (0..layout.rank()).filter(|&dim| dim != first && dim != second);
        let shape: Shape = kept.clone().map(|dim| layout.shape()[dim]).chain([length]).collect();
        let kept: Shape = kept.map(|dim| strides[dim]).chain([strides[first] + strides[second]]).collect();
        let start = match length {
            0 => 0,
            _ => down as usize * strides[first] + right as usize * strides[second],
        };
        Ok(Layout::new(&shape, &kept, layout.offset() + start)?)
    })
}

fn permute(call: &Call<'_>) -> Result<Tensor> {
    let (x, dims) = (call.tensor(0), call.ints(1));
    refuse_if!(
        dims.len() != x.rank(),
        "permute(sparse_coo): number of dimensions in the tensor input does not match the length of the desired ordering of \
         dimensions i.e. input.dim() = {} is not equal to len(dims) = {}",
        x.rank(),
        dims.len()
    );
    let mut order = Shape::new();
    for &dim in &dims {
        let dim = wrap(dim, x.rank())?;
        refuse_if!(order.contains(&dim), "permute(): duplicate dims are not allowed.");
        order.push(dim);
    }
    x.permute(&order)
}

pub(super) fn transpose(x: &Tensor, dim0: i64, dim1: i64) -> Result<Tensor> {
    let [first, second] = [wrap(dim0, x.rank())?, wrap(dim1, x.rank())?];
    if first == second { alias(x) } else { x.transpose(first as i64, second as i64) }
}

pub(super) fn select(x: &Tensor, dim: i64, index: i64) -> Result<Tensor> {
    check_has_places(x, "select() cannot be applied to a 0-dim tensor.")?;
    let at = wrap(dim, x.rank())?;
    let extent = x.shape()[at] as i64;
    if !(-extent..extent).contains(&index) {
        return Err(Error::index(format!(
            "select(): index {index} out of range for tensor of size {:?} at dimension {at}",
            x.shape()
        )));
    }
    let index = index.rem_euclid(extent) as usize;
    part(x, "select", |layout| Ok(layout.select(at, index)?))
}

pub(super) fn slice(
    x: &Tensor,
    dim: i64,
    (start, end): (Option<i64>, Option<i64>),
    step: i64,
) -> Result<Tensor> {
    check_has_dimensions(x, "slice() cannot be applied to a 0-dim tensor.")?;
    let dim = wrap(dim, x.rank())?;
    refuse_if!(step <= 0, "slice step must be positive");
    let extent = x.shape()[dim] as i64;
    let counted = |place: i64| if place < 0 { place + extent } else { place };
    let start = counted(start.unwrap_or(0)).clamp(0, extent);
    let end = counted(end.unwrap_or(i64::MAX)).clamp(start, extent);
    let length = ((end - start) as u64).div_ceil(step as u64) as usize;
    part(x, "slice", |layout| {
        let (mut shape, mut strides): (Shape, Shape) = (layout.shape().into(), layout.strides().into());
        shape[dim] = length;
        let stride = strides[dim].checked_mul(step as usize).filter(|&stride| stride <= isize::MAX as usize);
        if let Some(stride) = stride {
            strides[dim] = stride;
        }
        Ok(Layout::new(&shape, &strides, layout.offset() + start as usize * layout.strides()[dim])?)
    })
}

fn narrow(call: &Call<'_>) -> Result<Tensor> {
    let (x, start, length) = (call.tensor(0), call.int(2), call.int(3));
    check_has_dimensions(x, "narrow() cannot be applied to a 0-dim tensor.")?;
    let dim = wrap(call.int(1), x.rank())?;
    refuse_if!(length < 0, "narrow(): length must be non-negative.");
    let extent = x.shape()[dim] as i64;
    if !(-extent..=extent).contains(&start) {
        return Err(Error::index(format!(
            "start out of range (expected to be in range of [{}, {extent}], but got {start})",
            -extent
        )));
    }
    let start = if start < 0 { start + extent } else { start };
    if length > extent - start {
        refuse!("start ({start}) + length ({length}) exceeds dimension size ({extent}).");
    }
    x.narrow(dim as i64, start as usize, length as usize)
}

/// A function that returns a view with a layout: one of many, or one that is independent of the others.
pub(super) type Viewed = fn(&Tensor, Layout) -> Tensor;

/// Returns the parts of a dimension, of lengths that fill it.
pub(super) fn parts(x: &Tensor, dim: usize, lengths: Vec<usize>, viewed: Viewed) -> Result<Tensors> {
    let mut list = host_room(lengths.len())?;
    let mut start = 0;
    for &length in &lengths {
        list.push(viewed(x, x.layout().narrow(dim, start, length)?));
        start += length;
    }
    Ok(record_split(x, list, dim, lengths).into())
}

/// Returns the lengths of parts of one size, the last of the remainder.
fn even(extent: usize, size: usize) -> Result<Vec<usize>> {
    let mut lengths = host_room(extent.div_ceil(size.max(1)).max(1))?;
    let mut left = extent;
    loop {
        lengths.push(size.min(left));
        left -= size.min(left);
        if left == 0 {
            return Ok(lengths);
        }
    }
}

fn split(call: &Call<'_>) -> Result<Tensors> {
    split_as(call, Tensor::one_of_many)
}

pub(super) fn split_as(call: &Call<'_>, viewed: Viewed) -> Result<Tensors> {
    let (x, size) = (call.tensor(0), call.int(1));
    check_has_dimensions(x, "split expects at least a 1-dimensional tensor")?;
    let Ok(size) = usize::try_from(size) else {
        refuse!("split expects split_size be non-negative, but got split_size={size}");
    };
    let dim = wrap(call.int(2), x.rank())?;
    let extent = x.shape()[dim];
    if size == 0 && extent > 0 {
        refuse!("split_size can only be 0 if dimension size is 0, but got dimension size of {extent}");
    }
    parts(x, dim, even(extent, size)?, viewed)
}

fn split_with_sizes(call: &Call<'_>) -> Result<Tensors> {
    let (x, sizes) = (call.tensor(0), call.ints(1));
    check_has_dimensions(x, "split expects at least a 1-dimensional tensor")?;
    let dim = wrap(call.int(2), x.rank())?;
    let lengths: std::result::Result<Vec<usize>, _> =
        sizes.iter().map(|&size| usize::try_from(size)).collect();
    let Ok(lengths) = lengths else {
        refuse!(
            "split_with_sizes expects split_sizes have only non-negative entries, but got split_sizes={sizes:?}"
        );
    };
    let sum = lengths.iter().try_fold(0usize, |sum, &length| sum.checked_add(length));
    refuse_if!(
        sum != Some(x.shape()[dim]),
        "split_with_sizes expects split_sizes to sum exactly to {} (input tensor's size at dimension {dim}), but got \
         split_sizes={sizes:?}",
        x.shape()[dim]
    );
    parts(x, dim, lengths, Tensor::one_of_many)
}

fn chunk(call: &Call<'_>) -> Result<Tensors> {
    chunk_as(call, Tensor::one_of_many)
}

pub(super) fn chunk_as(call: &Call<'_>, viewed: Viewed) -> Result<Tensors> {
    let (x, chunks) = (call.tensor(0), call.int(1));
    check_has_dimensions(x, "chunk expects at least a 1-dimensional tensor")?;
    refuse_if!(chunks <= 0, "chunk expects `chunks` to be greater than 0, got: {chunks}");
    let dim = wrap(call.int(2), x.rank())?;
    let extent = x.shape()[dim];
    if extent == 0 {
        // The requested number of parts, so that their number does not depend on the extent.
        let mut lengths = host_room(chunks as usize)?;
        lengths.resize(chunks as usize, 0);
        return parts(x, dim, lengths, viewed);
    }
    parts(x, dim, even(extent, extent.div_ceil(chunks as usize))?, viewed)
}

fn squeeze(x: &Tensor, dims: &[i64]) -> Result<Tensor> {
    let dims = wrap_all(dims, x.rank())?;
    let mut layout = x.layout().clone();
    for dim in (0..x.rank()).rev().filter(|dim| dims.contains(dim)) {
        layout = layout.squeeze(dim);
    }
    Ok(record_view(x, x.viewed(layout), || ViewBackward::Reshape(x.shape().into())))
}

/// Returns the memory as elements of another dtype.
fn view_dtype(x: &Tensor, dtype: DType) -> Result<Tensor> {
    let [from, to] = [x.dtype(), dtype].map(DType::size_bytes);
    let layout = match from == to {
        true => x.layout().clone(),
        false => layout_of_dtype(x, dtype)?,
    };
    // Tensors of PyTorch are always aligned; memory of another library may not be.
    let address = x.pointer().address();
    refuse_if!(
        x.elements() > 0 && !address.is_multiple_of(to as u64) && to > from,
        "the address {address:#x} is not a multiple of the {to} bytes of {}: clone the tensor before it is viewed",
        named(dtype)
    );
    Ok(x.view_of_dtype(layout, dtype))
}

/// Returns the layout of a tensor's memory as elements of a dtype of another size.
fn layout_of_dtype(x: &Tensor, dtype: DType) -> Result<Layout> {
    let layout = x.layout();
    let as_that = format!("to view {} as {} (different element sizes)", named(x.dtype()), named(dtype));
    let (Some((&last, outer)), Some((&step, strides))) =
        (layout.shape().split_last(), layout.strides().split_last())
    else {
        refuse!("self.dim() cannot be 0 {as_that}");
    };
    let is_longer = x.dtype().size_bytes() > dtype.size_bytes();
    let ratio = match is_longer {
        true => x.dtype().size_bytes() / dtype.size_bytes(),
        false => dtype.size_bytes() / x.dtype().size_bytes(),
    };
    let check = |name: &str, number: usize| match is_longer || number.is_multiple_of(ratio) {
        true => Ok(()),
        false => Err(invalid!("self.{name} must be divisible by {ratio} {as_that}, but got {number}")),
    };
    check("size(-1)", last)?;
    check("storage_offset()", layout.offset())?;
    refuse_if!(step != 1, "self.stride(-1) must be 1 {as_that}, but got {step}");
    let scaled = |number: usize| match is_longer {
        true => number.checked_mul(ratio).ok_or_else(|| invalid!("a stride is too large {as_that}")),
        false => Ok(number / ratio),
    };
    let mut shape: Shape = outer.into();
    shape.push(scaled(last)?);
    let mut all = Shape::new();
    for (dimension, &stride) in strides.iter().enumerate() {
        check(&format!("stride({dimension})"), stride)?;
        all.push(scaled(stride)?);
    }
    all.push(1);
    Ok(Layout::new(&shape, &all, scaled(layout.offset())?)?)
}

fn flatten(call: &Call<'_>) -> Result<Tensor> {
    let x = call.tensor(0);
    let [start, end] = [wrap(call.int(1), x.rank())?, wrap(call.int(2), x.rank())?];
    refuse_if!(start > end, "flatten() has invalid args: start_dim cannot come after end_dim");
    if x.rank() == 0 {
        return x.reshape(&[1]);
    }
    if start == end {
        return Ok(x.clone());
    }
    let (shape, merged) = (x.shape(), x.shape()[start..=end].iter().product());
    let shape: Shape =
        shape[..start].iter().copied().chain([merged]).chain(shape[end + 1..].iter().copied()).collect();
    x.reshape(&shape)
}

fn unflatten(call: &Call<'_>) -> Result<Tensor> {
    let (x, sizes) = (call.tensor(0), call.ints(2));
    let dim = wrap(call.int(1), x.rank())?;
    check_has_dimensions(x, "unflatten: the tensor has no dimension to take apart")?;
    refuse_if!(sizes.is_empty(), "unflatten: sizes must be non-empty");
    let extent = x.shape()[dim];
    let inner = inferred(&sizes, extent).map_err(|_| {
        invalid!(
            "unflatten: Provided sizes {sizes:?} don't multiply up to the size of dim {dim} ({extent}) in the input tensor"
        )
    })?;
    let outer = x.shape();
    let shape: Shape =
        outer[..dim].iter().copied().chain(inner).chain(outer[dim + 1..].iter().copied()).collect();
    view(x, &shape)
}

pub(super) fn movedim(x: &Tensor, source: &[i64], destination: &[i64]) -> Result<Tensor> {
    refuse_if!(
        source.len() != destination.len(),
        "movedim: Invalid source or destination dims: source ({source:?} dims) should contain the same number of dims as \
         destination ({destination:?} dims)"
    );
    let repeats = |which: &str, dims: &[i64]| {
        wrap_all(dims, x.rank()).map_err(|error| match error.to_string().contains("multiple times") {
            true => invalid!("movedim: repeated dim in `{which}` ({dims:?})"),
            false => error,
        })
    };
    let (from, to) = (repeats("source", source)?, repeats("destination", destination)?);
    if x.rank() == 0 {
        return alias(x);
    }
    let mut rest = (0..x.rank()).filter(|dim| !from.contains(dim));
    let order: Shape = (0..x.rank())
        .filter_map(|place| match to.iter().position(|&target| target == place) {
            Some(moved) => Some(from[moved]),
            None => rest.next(),
        })
        .collect();
    x.permute(&order)
}

/// Returns PyTorch's number of the memory format of images or volumes (`suggest_memory_format`): channels last, or the order of
/// the shape.
pub(super) fn format_of(x: &Tensor) -> i64 {
    match x.rank() {
        rank @ (4 | 5) if x.layout().is_like_channels_last() => rank as i64 - 2,
        _ => 0,
    }
}

/// Returns the layout of a shape without gaps in a memory format.
pub(super) fn layout_in(shape: &[usize], format: i64) -> Result<Layout> {
    let Some(order) = format_order(shape.len(), format)? else { return Ok(Layout::contiguous(shape)) };
    let nested: Shape = order.iter().map(|&dim| shape[dim]).collect();
    Ok(Layout::contiguous(&nested).permute(&inverse_order(&order))?)
}

pub(super) fn in_format(x: &Tensor, format: i64) -> Result<Tensor> {
    match format_order(x.rank(), format)? {
        None => x.contiguous(),
        Some(order) => in_order(x, &order),
    }
}

/// Returns the order of dimensions, outermost first, of a tensor like another in a memory format; `None` if it is the order of
/// the shape. Without a format, or to preserve it, this is the other's own order.
fn order_like(x: &Tensor, format: Option<i64>) -> Result<Option<Shape>> {
    match format {
        None | Some(1) => Ok((!x.is_contiguous()).then(|| x.layout().kept_order())),
        Some(format) => format_order(x.rank(), format),
    }
}

/// Returns a copy in a memory format; without one, in the order of dimensions that the tensor has.
pub(super) fn copied_in_format(call: &Call<'_>, x: &Tensor, format: Option<i64>) -> Result<Tensor> {
    in_order_like(x, format, |x| x.copied(call.label.location))
}

/// Makes a tensor of a tensor in a memory format; without one, in the order of dimensions that it has. `make` returns a contiguous
/// tensor of the shape that it is passed.
pub(super) fn in_order_like(
    x: &Tensor,
    format: Option<i64>,
    make: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    match order_like(x, format)? {
        None => make(x),
        Some(order) => make(&x.permute(&order)?)?.permute(&inverse_order(&order)),
    }
}

/// Makes a tensor in the shape of a call's first tensor and in the memory format of an argument, as [`copied_in_format`] does. `make`
/// returns a contiguous tensor of the shape that it is passed.
pub(super) fn made_like(
    call: &Call<'_>,
    format: usize,
    make: impl FnOnce(&[usize]) -> Result<Tensor>,
) -> Result<Tensor> {
    let x = call.tensor(0);
    match order_like(x, call.optional_int(format))? {
        None => make(x.shape()),
        Some(order) => {
            let shape: Shape = order.iter().map(|&dim| x.shape()[dim]).collect();
            make(&shape)?.permute(&inverse_order(&order))
        }
    }
}

/// Refuses options of a new tensor that this library does not support: a layout that is not strided, and pinned memory.
pub(super) fn check_options(layout: Option<i64>, pin_memory: Option<bool>) -> Result<()> {
    match (layout, pin_memory) {
        (None | Some(0), None | Some(false)) => Ok(()),
        (None | Some(0), _) => Err(invalid!("Only dense CPU tensors can be pinned")),
        _ => Err(invalid!("only strided tensors exist; leave the layout out")),
    }
}

/// Returns the dtype of a tensor made from a number.
pub(super) fn dtype_of(number: thalweg_ir::Scalar) -> DType {
    match number {
        thalweg_ir::Scalar::Bool(_) => DType::Bool,
        thalweg_ir::Scalar::I64(_) => DType::I64,
        thalweg_ir::Scalar::F64(_) => default_dtype(),
    }
}
