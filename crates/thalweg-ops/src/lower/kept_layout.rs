//! The layout of an elementwise operator's results.

use std::cmp::Ordering;

use smallvec::SmallVec;
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

/// Returns the layout of a tensor of a shape that is computed from tensors point by point, if it is not row-major: without gaps, its
/// dimensions in the order of memory of the first tensor that tells two of them apart, as in PyTorch's `TensorIterator`. A dimension that
/// a tensor repeats tells nothing. The result of a transposed or channels-last tensor thus has the same order.
pub fn layout_like<'a>(operands: impl IntoIterator<Item = &'a Layout>, shape: &[usize]) -> Option<Layout> {
    if shape.len() < 2 {
        return None;
    }
    let operands: SmallVec<[&Layout; 4]> = operands.into_iter().collect();
    if operands.iter().all(|layout| layout.shape() == shape && layout.is_contiguous()) {
        return None;
    }
    // Innermost first; each dimension moves inwards as long as it is nearer than its neighbour.
    let mut order: SmallVec<[usize; 6]> = (0..shape.len()).rev().collect();
    for start in 1..order.len() {
        let mut at = start;
        for place in (0..start).rev() {
            match nearer(&operands, shape, order[place], order[at]) {
                Ordering::Greater => {
                    order.swap(place, at);
                    at = place;
                }
                Ordering::Less => break,
                Ordering::Equal => {}
            }
        }
    }
    let mut strides: Shape = shape.into();
    let mut elements = 1;
    for dimension in order {
        strides[dimension] = elements;
        elements = elements.checked_mul(shape[dimension])?;
    }
    Layout::new(shape, &strides, 0).ok().filter(|layout| !layout.is_contiguous())
}

/// Returns whether a dimension is nearer in memory than another (`Less`), by the first tensor that repeats neither; of two with the same
/// stride, an extent that is greater than the other's is farther.
fn nearer(operands: &[&Layout], shape: &[usize], dimension: usize, other: usize) -> Ordering {
    for layout in operands {
        let stride = |dimension: usize| {
            let at = (dimension + layout.rank()).checked_sub(shape.len())?;
            (layout.shape()[at] == shape[dimension]).then(|| layout.strides()[at])
        };
        let (Some(own), Some(of_other)) = (stride(dimension), stride(other)) else { continue };
        if own == 0 || of_other == 0 {
            continue;
        }
        match own.cmp(&of_other) {
            Ordering::Equal if shape[dimension] > shape[other] => return Ordering::Greater,
            Ordering::Equal => {}
            order => return order,
        }
    }
    Ordering::Equal
}
