//! [`Online`]: rows for which a single pass computes the greatest value and the sum of exponentials of the distances from it.
//!
//! A thread keeps the greatest value so far, and the sum of the exponentials of the values so far minus that greatest value.
//! Whenever the greatest value grows, the sum is scaled (Milakov and Gimelshein, "Online normalizer calculation for softmax",
//! 2018). No elements of the row are kept, so many rows are in flight on a multiprocessor at a time, and a row may have any
//! length.

use crate::body::{Node, OutputPlace};
use crate::held::reduced_by;
use crate::{Binary, Body, Class, Dimension, ExprId, ReduceOp, Scalar, Unary};

/// The reductions of a row that one pass computes. See the [module](self).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Online {
    /// The number of the reduction that finds the greatest value.
    pub greatest: usize,
    /// The number of the sum of exponentials.
    pub sum: usize,
    /// The value at each point that both reductions combine.
    pub value: ExprId,
}

impl Online {
    /// Finds the two reductions of a body whose repeated inputs `class` lists. Returns `None` if the body has other reductions,
    /// except those of a value that is the same for the whole row and [`picked`] ones, or if an output is written at points.
    pub fn of(body: &Body, class: &Class) -> Option<Self> {
        let at_points = body.point_dependent(|input| !class.repeats(input));
        let of_rows = body.outputs.iter().all(|output| output.place == OutputPlace::Row)
            && body.written().all(|id| !at_points[id.index()]);
        let mut others = (0..body.reductions.len()).filter(|&number| {
            !is_one_value(body, &at_points, number) && picked(body, &at_points, number).is_none()
        });
        let (greatest, sum) = (others.next()?, others.next()?);
        let (value, shifted) = (body.reductions[greatest].value, body.reductions[sum].value);
        let Node::Unary(Unary::Exp, distance) = body.nodes[shifted.index()] else { return None };
        let Node::Binary(Binary::Sub, from, shift) = body.nodes[distance.index()] else { return None };
        let fits = body.reductions[greatest].op == ReduceOp::Max
            && body.reductions[sum].op == ReduceOp::Sum
            && below_detach(body, from) == below_detach(body, value)
            && body.nodes[below_detach(body, shift).index()] == Node::Reduced { reduction: greatest as u16 };
        let is_plain = !reads_coordinates(body, value) && body.dtype(value).is_floating_point();
        (of_rows && fits && is_plain && others.next().is_none()).then_some(Self { greatest, sum, value })
    }
}

/// A sum over a row to which only one point contributes: the value at the row's class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Picked {
    /// The index of the point, the same for the whole row; it may be outside the row.
    pub place: ExprId,
    /// The value at that point.
    pub value: ExprId,
}

/// Returns the one point of a reduction that sums a value where the inner coordinate equals a number, and 0 elsewhere. That
/// number must not depend on combined values.
pub fn picked(body: &Body, at_points: &[bool], number: usize) -> Option<Picked> {
    let reduction = &body.reductions[number];
    let Node::Select(condition, value, otherwise) = body.nodes[reduction.value.index()] else { return None };
    let Node::Binary(Binary::Equal, a, b) = body.nodes[condition.index()] else { return None };
    let is_coordinate = |id: ExprId| body.nodes[id.index()] == Node::Index(Dimension::Inner(0));
    let place = if is_coordinate(a) { b } else { a };
    let is_zero = matches!(body.nodes[otherwise.index()], Node::Constant(zero) if zero == Scalar::F64(0.0));
    let fits = reduction.op == ReduceOp::Sum
        && (is_coordinate(a) || is_coordinate(b))
        && !at_points[place.index()]
        && reduced_by(body, place).all(|earlier| is_one_value(body, at_points, earlier))
        && is_zero;
    fits.then_some(Picked { place, value })
}

/// Returns whether a reduction is the maximum or minimum of a value that is the same at all points, and so equals that value.
pub(crate) fn is_one_value(body: &Body, at_points: &[bool], number: usize) -> bool {
    let reduction = &body.reductions[number];
    matches!(reduction.op, ReduceOp::Max | ReduceOp::Min) && !at_points[reduction.value.index()]
}

/// Returns the value below any [`Node::Detach`].
fn below_detach(body: &Body, id: ExprId) -> ExprId {
    match body.nodes[id.index()] {
        Node::Detach(operand) => below_detach(body, operand),
        _ => id,
    }
}

/// Returns whether a value depends on coordinates.
fn reads_coordinates(body: &Body, id: ExprId) -> bool {
    let node = &body.nodes[id.index()];
    matches!(node, Node::Index(_)) || node.operands().any(|operand| reads_coordinates(body, operand))
}
