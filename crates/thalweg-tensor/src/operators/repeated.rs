//! Reading at indices of a tensor whose elements are repeated by its strides, without a copy of all of them.

use thalweg_ir::{DType, Layout, Shape};
use thalweg_runtime::{RangeOf, Result};

use super::index::{checked, gathered};
use crate::tensor::Tensor;

/// Returns the elements at indices of a dimension of a tensor with any strides, read directly at their positions in memory.
pub(super) fn gathered_in_place(source: &Tensor, dim: usize, index: &Tensor) -> Result<Tensor> {
    let (layout, shape) = (source.layout(), source.shape());
    let index = checked(index, (0, shape[dim]), ("gather", RangeOf::Dimension(dim)))?;
    let mut places = index.mul_scalar(layout.strides()[dim] as i64)?;
    for (other, &stride) in layout.strides().iter().enumerate() {
        if other != dim && stride > 0 && shape[other] > 1 {
            let starts = Tensor::arange(shape[other], 0i64, stride as i64, DType::I64, source.device())?;
            let mut along = Shape::from_elem(1, source.rank());
            along[other] = shape[other];
            places = places.add(&starts.reshape(&along)?)?;
        }
    }
    let memory = source.with_layout(Layout::new(&[1, layout.span(), 1], &[0, 1, 1], layout.offset())?);
    gathered(&memory, &places.reshape(&[1, places.elements(), 1])?)
}
