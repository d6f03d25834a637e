//! Parts of a dimension by their number or by the indices between them, and windows of a dimension.

use thalweg_ir::{DType, Layout, Shape};
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::Body::Composite;
use super::view::{chunk_as, extents, parts, split_as, strided, wrap};
use super::{operators, single};
use crate::dispatch::{Argument, Arguments, Call, built_in};
use crate::host_room::host_room;
use crate::kernels::views::{ViewBackward, record_view, windows_gradient};
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns `sections` parts of a dimension, the first ones longer by one if it is not a multiple.
    "tensor_split.sections(Tensor(a -> *) self, SymInt sections, int dim=0) -> Tensor(a)[]"
        fn tensor_split(sections: int, dim: int) -> list
        = Composite(|call| into_sections(call.tensor(0), call.int(1), call.int(2))), autocast: Parts;
    /// Returns the parts into which these indices divide a dimension.
    "tensor_split.indices(Tensor(a -> *) self, SymInt[] indices, int dim=0) -> Tensor(a)[]"
        fn tensor_split_indices(indices: ints, dim: int) -> list
        = Composite(|call| at_indices(call.tensor(0), &call.ints(1), call.int(2))), autocast: Parts;
    /// Returns the parts of a dimension, whose number is in a tensor without dimensions or whose ends are in a vector; the host
    /// reads it.
    "tensor_split.tensor_indices_or_sections(Tensor(a -> *) self, Tensor tensor_indices_or_sections, int dim=0) -> Tensor(a)[]"
        = Composite(by_tensor), autocast: Parts;
    /// Returns `sections` equal parts of the second dimension; for a vector, of its only one.
    "hsplit.int(Tensor(a -> *) self, int sections) -> Tensor(a)[]"
        fn hsplit(sections: int) -> list
        = Composite(|call| equal_sections(call, SECOND)), autocast: Parts;
    /// Returns the parts into which these indices divide the second dimension, or the only dimension of a vector.
    "hsplit.array(Tensor(a -> *) self, int[] indices) -> Tensor(a)[]"
        fn hsplit_array(indices: ints) -> list
        = Composite(|call| at_indices(call.tensor(0), &call.ints(1), SECOND.of(call)?)), autocast: Parts;
    /// Returns `sections` equal parts of the first dimension.
    "vsplit.int(Tensor(a -> *) self, int sections) -> Tensor(a)[]"
        fn vsplit(sections: int) -> list
        = Composite(|call| equal_sections(call, FIRST)), autocast: Parts;
    /// Returns the parts into which these indices divide the first dimension.
    "vsplit.array(Tensor(a -> *) self, int[] indices) -> Tensor(a)[]"
        fn vsplit_array(indices: ints) -> list
        = Composite(|call| at_indices(call.tensor(0), &call.ints(1), FIRST.of(call)?)), autocast: Parts;
    /// Returns `sections` equal parts of the third dimension.
    "dsplit.int(Tensor(a -> *) self, int sections) -> Tensor(a)[]"
        fn dsplit(sections: int) -> list
        = Composite(|call| equal_sections(call, THIRD)), autocast: Parts;
    /// Returns the parts into which these indices divide the third dimension.
    "dsplit.array(Tensor(a -> *) self, int[] indices) -> Tensor(a)[]"
        fn dsplit_array(indices: ints) -> list
        = Composite(|call| at_indices(call.tensor(0), &call.ints(1), THIRD.of(call)?)), autocast: Parts;
    /// Returns the parts of a dimension, each of `split_size` elements, the last of the remainder.
    "unsafe_split.Tensor(Tensor self, SymInt split_size, int dim=0) -> Tensor[]" = Composite(|call| split_as(call, Tensor::viewed));
    /// Returns at most `chunks` parts of a dimension, all but the last of one size.
    "unsafe_chunk(Tensor self, int chunks, int dim=0) -> Tensor[]" = Composite(|call| chunk_as(call, Tensor::viewed)), autocast: Parts;
    /// Returns all windows of a dimension, at distance `step`, each of `size` elements, which become a new last dimension.
    "unfold(Tensor(a) self, int dimension, int size, int step) -> Tensor(a)"
        fn unfold(dimension: int, size: int, step: int) = Composite(|call| unfold(call).map(single));
    /// Returns the gradient of a tensor from that of its windows along a dimension, which may overlap.
    "unfold_backward(Tensor grad_in, SymInt[] input_sizes, int dim, int size, int step) -> Tensor"
        = Composite(|call| unfold_backward(call).map(single));
}

/// The maximum number of sections, since each, even if empty, is a separate tensor on the host.
const MOST_SECTIONS: usize = 1 << 20;

fn into_sections(x: &Tensor, sections: i64, dim: i64) -> Result<Tensors> {
    check_divisible(x)?;
    let dim = wrap(dim, x.rank())?;
    let Some(count) = usize::try_from(sections).ok().filter(|&count| count > 0) else {
        refuse!("number of sections must be larger than 0, got {sections}");
    };
    let extent = x.shape()[dim];
    refuse_if!(
        count > MOST_SECTIONS.max(extent),
        "tensor_split of {extent} places into {sections} sections: all but {extent} of them are empty; ask for at most {MOST_SECTIONS}"
    );
    let mut lengths = host_room(count)?;
    lengths.extend((0..count).map(|part| extent / count + usize::from(part < extent % count)));
    parts(x, dim, lengths, Tensor::viewed)
}

fn check_divisible(x: &Tensor) -> Result<()> {
    match x.rank() {
        0 => Err(invalid!(
            "tensor_split expected at least a 1-dimensional tensor, but got a tensor with 0 dims"
        )),
        _ => Ok(()),
    }
}

/// Returns the parts between indices, which may overlap or be empty, like slices in Python.
fn at_indices(x: &Tensor, indices: &[i64], dim: i64) -> Result<Tensors> {
    check_divisible(x)?;
    let dim = wrap(dim, x.rank())?;
    let extent = x.shape()[dim] as i64;
    let place = |index: i64| if index < 0 { index.saturating_add(extent) } else { index }.clamp(0, extent);
    let starts = std::iter::once(0).chain(indices.iter().map(|&index| place(index)));
    let ends = indices.iter().map(|&index| place(index)).chain([extent]);
    starts
        .zip(ends)
        .map(|(start, end)| x.narrow(dim as i64, start as usize, (end - start).max(0) as usize))
        .collect()
}

fn by_tensor(call: &Call<'_>) -> Result<Tensors> {
    let (x, which, dim) = (call.tensor(0), call.tensor(1), call.int(2));
    check_divisible(x)?;
    refuse_if!(
        which.dtype() != DType::I64,
        "tensor_split expected tensor_indices_or_sections to have dtype of long, but got {}",
        crate::dtype_name::named(which.dtype())
    );
    let numbers = || which.detach().to_vec::<i64>();
    match which.rank() {
        0 => into_sections(x, numbers()?[0], dim),
        1 => at_indices(x, &numbers()?, dim),
        rank => Err(invalid!(
            "tensor_split expected tensor_indices_or_sections to be a zero-dimensional or one-dimensional tensor, but got a tensor \
             with {rank} dims"
        )),
    }
}

/// The dimension that an operator divides, and the minimum number of dimensions of its tensor.
#[derive(Clone, Copy)]
struct Divided {
    dim: i64,
    least: usize,
}

const FIRST: Divided = Divided { dim: 0, least: 2 };
/// The second dimension; for a vector, its only one.
const SECOND: Divided = Divided { dim: 1, least: 1 };
const THIRD: Divided = Divided { dim: 2, least: 3 };

impl Divided {
    /// Returns the dimension of a call's tensor.
    fn of(self, call: &Call<'_>) -> Result<i64> {
        let (rank, least) = (call.tensor(0).rank(), self.least);
        refuse_if!(
            rank < least,
            "torch.{} requires a tensor with at least {least} dimension, but got a tensor with {rank} dimensions!",
            call.operator.base_name()
        );
        Ok(self.dim.min(rank as i64 - 1))
    }
}

fn equal_sections(call: &Call<'_>, divided: Divided) -> Result<Tensors> {
    let (x, sections) = (call.tensor(0), call.int(1));
    let dim = divided.of(call)?;
    let extent = x.shape()[dim as usize];
    refuse_if!(
        sections == 0 || extent as i64 % sections.max(1) != 0,
        "torch.{} attempted to split along dimension {dim}, but the size of the dimension {extent} is not divisible by the \
         split_size {sections}!",
        call.operator.base_name()
    );
    into_sections(x, sections, dim)
}

fn unfold(call: &Call<'_>) -> Result<Tensor> {
    let (x, size, step) = (call.tensor(0), call.int(2), call.int(3));
    let dim = wrap(call.int(1), x.rank())?;
    let extent = x.shape().get(dim).copied().unwrap_or(1);
    let Some(size) = usize::try_from(size).ok().filter(|&size| size <= extent) else {
        refuse!("maximum size for tensor at dimension {dim} is {extent} but size is {size}");
    };
    let Some(step) = usize::try_from(step).ok().filter(|&step| step > 0) else {
        refuse!("step is {step} but must be > 0");
    };
    let layout = x.layout();
    let (mut shape, mut strides): (Shape, Shape) = (layout.shape().into(), layout.strides().into());
    if x.rank() == 0 {
        shape.push(size);
        strides.push(1);
    } else {
        shape.push(size);
        strides.push(strides[dim]);
        shape[dim] = (extent - size) / step + 1;
        strides[dim] = if shape[dim] > 1 { strides[dim] * step } else { strides[dim] };
    }
    let windows = Layout::new(&shape, &strides, layout.offset())?;
    if x.rank() == 0 {
        return Ok(strided(x, windows));
    }
    let node = || ViewBackward::Windows { shape: x.shape().into(), dimension: dim, size, step };
    Ok(record_view(x, x.viewed(windows), node))
}

/// Returns the gradient of a tensor of a shape from that of its windows.
fn unfold_backward(call: &Call<'_>) -> Result<Tensor> {
    let (gradient, shape) = (call.tensor(0), extents(&call.ints(1))?);
    if shape.is_empty() {
        // A tensor without dimensions has the windows of a row of one element.
        let row = gradient.unsqueeze(0)?;
        let [size, step] = [call.int(3), call.int(4)].map(Argument::Int);
        let arguments = [(&row).into(), Argument::Ints(&[1]), Argument::Int(0), size, step];
        let whole = built_in!("unfold_backward")?.call(&arguments, None, call.label)?.swap_remove(0);
        return whole.squeeze(0);
    }
    let dim = wrap(call.int(2), shape.len())?;
    let [size, step] = [call.int(3), call.int(4)].map(|number| usize::try_from(number).unwrap_or(0));
    let extent = shape.get(dim).copied().unwrap_or(0);
    let count = if step > 0 && size <= extent { (extent - size) / step + 1 } else { 0 };
    let mut expected = shape.clone();
    expected.push(size);
    if let Some(windows) = expected.get_mut(dim) {
        *windows = count;
    }
    refuse_if!(
        count == 0 || gradient.shape() != &expected[..],
        "unfold_backward: a gradient of shape {:?} is not that of windows of {size} elements at each {step} of dimension {dim} of \
         {shape:?}",
        gradient.shape()
    );
    windows_gradient(gradient, &shape, dim, [size, step])
}
