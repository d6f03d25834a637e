//! The layout of an elementwise operator's results.

use std::cmp::Reverse;

use thalweg_ir::{Layout, Shape};
use thalweg_ops::{DTypeRule, LoopOp, Space};

use crate::tensor::Tensor;

/// Returns the layout of results of a shape where they do not lie row-major: the dimensions of the first tensor of that shape whose
/// elements are apart, in the order of its strides and without gaps, as PyTorch's `TensorIterator` has them. So what is
/// computed from a transposed tensor, or from one whose channels come last, lies as that does. `thalweg::copy` is what makes
/// tensors row-major.
pub(super) fn kept_layout(operator: &LoopOp, tensors: &[&Tensor], shape: &[usize]) -> Option<Layout> {
    if operator.space != Space::Elementwise || operator.rule == DTypeRule::Converted || shape.len() < 2 {
        return None;
    }
    let apart = |tensor: &&&Tensor| {
        let layout = tensor.layout();
        let dimensions = layout.shape().iter().zip(layout.strides());
        tensor.shape() == shape && dimensions.into_iter().all(|(&extent, &stride)| extent == 1 || stride > 0)
    };
    let like = tensors.iter().find(apart)?.layout();
    if like.is_contiguous() {
        return None;
    }
    let mut order: Vec<usize> = (0..shape.len()).collect();
    order.sort_by_key(|&dimension| Reverse(like.strides()[dimension]));
    let mut strides: Shape = shape.into();
    let mut elements = 1;
    for dimension in order.into_iter().rev() {
        strides[dimension] = elements;
        elements *= shape[dimension];
    }
    Layout::new(shape, &strides, 0).ok().filter(|layout| !layout.is_contiguous())
}
