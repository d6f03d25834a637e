//! Copies that transpose: `contiguous()` of a view whose last dimension is not the one with stride 1, for which PyTorch calls
//! `clone`.

use smallvec::SmallVec;

use super::libtorch::{Sizes, Stack};
use super::operators::{Taken, put_or};
use super::original::{CloneArguments, CloneTo, Exported, Kind};
use super::rows::CopyCall;
use super::speeds::{Class, Form};
use super::{Kernels, Operator};

/// PyTorch's number of the contiguous layout.
const CONTIGUOUS: Kind = Kind(0);

/// The maximum rank; views with more dimensions are left to PyTorch.
const MOST_DIMENSIONS: usize = 6;

/// The minimum size, of the dimension with stride 1 and of the last one, for which the copy is a transpose of tiles.
const FEWEST: i64 = 8;

fn attempt<'k>(kernels: &'k Kernels, arguments: &CloneArguments<'_>) -> Taken<'k> {
    let CloneArguments { input, format } = arguments;
    let device = input.device()?;
    let (sizes, strides) = (input.sizes()?, input.strides()?);
    let dtype = input.dtype().filter(|dtype| dtype.is_floating_point())?;
    let (last, close) = (*sizes.last()?, close_dimension(&sizes, &strides)?);
    let fits = *format == Some(CONTIGUOUS)
        && *strides.last()? != 1
        && last >= FEWEST
        && close >= FEWEST
        && sizes.len() <= MOST_DIMENSIONS;
    let is_plain = |(&size, &stride): (&i64, &i64)| size > 0 && (size == 1 || stride > 0);
    if !fits || !sizes.iter().zip(&strides).all(is_plain) {
        return None;
    }
    let unsigned =
        |numbers: &Sizes| -> SmallVec<[u64; 6]> { numbers.iter().map(|n| n.unsigned_abs()).collect() };
    let (extents, steps) = (unsigned(&sizes), unsigned(&strides));
    let columns = last.unsigned_abs();
    let class = Class {
        form: Form::Transposed,
        dtype,
        columns,
        // Tiles are read along one dimension and written along the other.
        contiguous: columns | close.unsigned_abs(),
        elements: extents.iter().product(),
    };
    if !kernels.takes(Operator::Clone, &class) {
        return None;
    }
    let source = input.address()?;
    let result = kernels.torch.empty(&sizes, dtype, device)?;
    let call = CopyCall { dtype, sizes: &extents, strides: &steps, source, target: result.address()? };
    // SAFETY: the input is a tensor of these sizes and strides on this device, and the result was just made.
    unsafe { call.run(kernels, device) }?;
    Some([result].into_iter().collect())
}

/// Returns the size of the dimension with stride 1; `None` if there is none.
fn close_dimension(sizes: &Sizes, strides: &Sizes) -> Option<i64> {
    let close = sizes.iter().zip(strides).find(|(size, stride)| **size > 1 && **stride == 1)?;
    Some(*close.0)
}

pub(super) fn clone(kernels: &Kernels, operator: Operator, original: Option<CloneTo<'_>>, stack: &Stack<'_>) {
    let arguments = CloneArguments::take(stack);
    let taken = kernels.attempt(operator, || attempt(kernels, &arguments));
    put_or(kernels, stack, taken, || arguments.call(original.found()));
}
