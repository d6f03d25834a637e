//! Copies of views: each is the view of its name, in new memory; and copies of tensors in which another tensor replaces a view.

use super::Body::Composite;
use super::view::{as_strided, diagonal, select, slice};
use super::{operators, single};
use crate::dispatch::{Arguments, Call, Operator, built_in};
use crate::tensor::{Tensor, Tensors};
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

operators! {
    /// Returns a copy of all elements.
    "alias_copy(Tensor self) -> Tensor" = Composite(|call| copied(call, built_in!("alias")?));
    /// Returns a copy of all elements, outside the autograd graph.
    "detach_copy(Tensor self) -> Tensor" = Composite(|call| copied(call, built_in!("detach")?));
    /// Returns a copy of the memory with these extents and strides.
    "as_strided_copy(Tensor self, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor"
        = Composite(|call| copied(call, built_in!("as_strided")?));
    /// Returns a copy of the diagonals of two dimensions.
    "diagonal_copy(Tensor self, int offset=0, int dim1=0, int dim2=1) -> Tensor"
        = Composite(|call| copied(call, built_in!("diagonal")?));
    /// Returns the tensor broadcast to a shape, with memory for each element.
    "expand_copy(Tensor self, SymInt[] size, *, bool implicit=False) -> Tensor"
        = Composite(|call| copied(call, built_in!("expand")?));
    /// Returns a copy of `length` indices of a dimension, from `start` on.
    "narrow_copy(Tensor self, int dim, SymInt start, SymInt length) -> Tensor"
        = Composite(|call| {
            check_part(call)?;
            copied(call, built_in!("narrow")?)
        }), out: [OfResult];
    /// Returns a copy with the dimensions in another order.
    "permute_copy(Tensor self, int[] dims) -> Tensor" = Composite(|call| copied(call, built_in!("permute")?));
    /// Returns a copy of one slice of a dimension, without that dimension.
    "select_copy.int(Tensor self, int dim, SymInt index) -> Tensor"
        = Composite(|call| copied(call, built_in!("select.int")?));
    /// Returns a copy of every `step`th index of a dimension.
    "slice_copy.Tensor(Tensor self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor"
        = Composite(|call| copied(call, built_in!("slice.Tensor")?));
    /// Returns copies of the parts of a dimension, each of `split_size` elements, the last of the remainder.
    "split_copy.Tensor(Tensor self, SymInt split_size, int dim=0) -> Tensor[]"
        = Composite(|call| copied(call, built_in!("split.Tensor")?));
    /// Returns copies of the parts of a dimension, of these sizes.
    "split_with_sizes_copy(Tensor self, SymInt[] split_sizes, int dim=0) -> Tensor[]"
        = Composite(|call| copied(call, built_in!("split_with_sizes")?));
    /// Returns a copy without the dimensions of extent 1.
    "squeeze_copy(Tensor self) -> Tensor" = Composite(|call| copied(call, built_in!("squeeze")?));
    /// Returns a copy without a dimension, if its extent is 1.
    "squeeze_copy.dim(Tensor self, int dim) -> Tensor" = Composite(|call| copied(call, built_in!("squeeze.dim")?));
    /// Returns a copy without those of these dimensions whose extent is 1.
    "squeeze_copy.dims(Tensor self, int[] dim) -> Tensor"
        = Composite(|call| copied(call, built_in!("squeeze.dims")?));
    /// Returns a copy of a matrix with its two dimensions swapped.
    "t_copy(Tensor self) -> Tensor" = Composite(|call| copied(call, built_in!("t")?));
    /// Returns a copy with two dimensions swapped.
    "transpose_copy.int(Tensor self, int dim0, int dim1) -> Tensor"
        = Composite(|call| copied(call, built_in!("transpose.int")?));
    /// Returns copies of every slice of a dimension, without that dimension.
    "unbind_copy.int(Tensor self, int dim=0) -> Tensor[]" = Composite(|call| copied(call, built_in!("unbind.int")?));
    /// Returns copies of all windows of a dimension, which is their last.
    "unfold_copy(Tensor self, int dimension, int size, int step) -> Tensor"
        = Composite(|call| copied(call, built_in!("unfold")?));
    /// Returns a copy with a new dimension of extent 1.
    "unsqueeze_copy(Tensor self, int dim) -> Tensor" = Composite(|call| copied(call, built_in!("unsqueeze")?));
    /// Returns a copy of the elements, row-major, in another shape, in which one extent may be −1.
    "view_copy(Tensor self, SymInt[] size) -> Tensor" = Composite(|call| copied(call, built_in!("view")?));
    /// Returns a copy of the memory as elements of another dtype.
    "view_copy.dtype(Tensor self, ScalarType dtype) -> Tensor"
        = Composite(|call| copied(call, built_in!("view.dtype")?));
    /// Returns the tensor with one slice of a dimension replaced.
    "select_scatter(Tensor self, Tensor src, int dim, SymInt index) -> Tensor"
        fn select_scatter(src: tensor, dim: int, index: int) = Composite(|call| {
            with_part(call, |x| select(x, call.int(2), call.int(3)))
        });
    /// Returns the tensor with every `step`th slice of a dimension replaced.
    "slice_scatter(Tensor self, Tensor src, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor"
        fn slice_scatter(src: tensor, dim: int, start: optional_int, end: optional_int, step: int) = Composite(|call| {
            with_part(call, |x| slice(x, call.int(2), (call.optional_int(3), call.optional_int(4)), call.int(5)))
        });
    /// Returns the tensor with the diagonals of two dimensions replaced.
    "diagonal_scatter(Tensor self, Tensor src, int offset=0, int dim1=0, int dim2=1) -> Tensor"
        fn diagonal_scatter(src: tensor, offset: int, dim1: int, dim2: int) = Composite(|call| {
            with_part(call, |x| diagonal(x, call.int(2), call.int(3), call.int(4)))
        });
    /// Returns the tensor with the elements at these strides of its memory replaced.
    "as_strided_scatter(Tensor self, Tensor src, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor"
        fn as_strided_scatter(src: tensor, size: sizes, stride: sizes, storage_offset: optional_int) = Composite(|call| {
            with_part(call, |x| as_strided(x, &call.ints(2), &call.ints(3), call.optional_int(4)))
        });
}

/// Refuses a part with the error message that is specific to `narrow_copy`.
fn check_part(call: &Call<'_>) -> Result<()> {
    let (shape, dim, start, length) = (call.tensor(0).shape(), call.int(1), call.int(2), call.int(3));
    if dim >= shape.len() as i64 && !shape.is_empty() {
        refuse!("Expected dim < static_cast<int64_t>(self_sizes.size()) to be true, but got false.");
    }
    match usize::try_from(dim).ok().and_then(|dim| shape.get(dim)) {
        Some(extent) if length < 0 => {
            Err(invalid!("start ({start}) + length ({length}) exceeds dimension size ({extent})."))
        }
        _ => Ok(()),
    }
}

/// Copies the results of another operator with the same arguments.
fn copied(call: &Call<'_>, view: &'static Operator) -> Result<Tensors> {
    let views = view.call(call.arguments, None, call.label)?;
    views.iter().map(|view| view.copied(call.label.location)).collect()
}

/// Returns a copy of the first tensor in which the second replaces a part.
fn with_part(call: &Call<'_>, part: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensors> {
    let (x, source) = (call.tensor(0), call.tensor(1));
    let whole = x.copied(call.label.location)?;
    let part = part(&whole)?;
    refuse_if!(
        part.shape() != source.shape(),
        "expected src to have a size equal to the slice of self. src size = {:?}, slice size = {:?}",
        source.shape(),
        part.shape()
    );
    part.copy_(source)?;
    Ok(single(whole))
}
