//! The layout of an elementwise operator's results.

use std::cmp::Reverse;

use thalweg_ir::{Layout, Shape};

use super::Operand;
use crate::definition::{DTypeRule, LoopOp, Space};

/// Returns the layout of an operator's results of a shape if they are not row-major. `thalweg::copy` makes tensors row-major.
pub(super) fn kept_layout(operator: &LoopOp, operands: &[Operand<'_>], shape: &[usize]) -> Option<Layout> {
    if operator.space != Space::Elementwise || operator.rule == DTypeRule::Converted {
        return None;
    }
    layout_like(operands.iter().map(|operand| operand.layout), shape)
}

/// Returns the layout of a tensor of a shape that is computed from tensors point by point, if it is not row-major: the order of
/// dimensions of the first tensor of that shape whose elements do not overlap, without gaps, as in PyTorch's `TensorIterator`. The
/// result of a transposed or channels-last tensor thus has the same order.
pub fn layout_like<'a>(operands: impl IntoIterator<Item = &'a Layout>, shape: &[usize]) -> Option<Layout> {
    if shape.len() < 2 {
        return None;
    }
    let apart = |layout: &&Layout| {
        let dimensions = layout.shape().iter().zip(layout.strides());
        layout.shape() == shape && dimensions.into_iter().all(|(&extent, &stride)| extent == 1 || stride > 0)
    };
    let like = operands.into_iter().find(apart)?;
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
