//! [`gradient`]: the body that computes the gradient of a body.
//!
//! The derivation is reverse mode over the expressions and through the reductions. A body describes a point and the combination
//! of points over a row. So does its gradient, which is again one body: that of log-softmax or of a variance is one kernel with
//! its own reductions, and the gradient of a gradient needs nothing special.
//!
//! # Two levels
//! An expression belongs to the points or, if it depends only on results of reductions, to the row. The adjoint of an expression
//! is on the same level as the expression. Contributions of points to the adjoint of a row's value are summed over the row: the
//! adjoint of a broadcast is a sum, the adjoint of a sum is a broadcast. Contributions are collected before they are summed, so a
//! row's value costs one reduction however often points use it.
//!
//! # Conventions, which are PyTorch's
//! - The maximum and the minimum of equal numbers share the gradient: half to each of two operands, an equal part to each point
//!   of a row that attains the greatest value.
//! - |x| has gradient 0 at 0; rounding has gradient 0; xʸ has gradient 0 in x where y = 0, and in y where x = 0 ≤ y.
//! - Nothing flows through comparisons, integers, bools and [`Node::Detach`].
//! - The branch that a select does not take has no effect, even if its value or its derivative is infinite or NaN: the gradient
//!   of a select is a select between the gradients of its branches (the module `flow`). So formulas need not replace operands
//!   where their value is not used.
//! - The second derivatives of a product over a row leave out the terms between two factors where one of them is 0.
//!
//! # Limits
//! Nothing is differentiated with respect to gathered inputs: their gradient is a scatter, which is not a body. Nothing is summed
//! over broadcast dimensions: the gradient of an input is computed at every point, and the code that broadcast the input sums it.

mod absent;
mod algebra;
mod flow;
mod prune;
mod rules;

use std::fmt;

use crate::body::{InputKind, OutputPlace};
use crate::{Body, BodyBuilder, ExprId, Node, ReduceOp, Value};
pub use absent::without_gradients;
use algebra::{add, div};
use flow::Flow;

/// The gradient of a body. See [`gradient`].
#[derive(Clone, PartialEq, Debug)]
pub struct Gradient {
    /// The body that computes the gradient.
    ///
    /// Its inputs are those of the forward body, in order, then the gradient of each output, with the dtype and the geometry of
    /// that output; [`Body::uses_input`] returns which of them are read. Its scalars are those of the forward body. Its outputs
    /// are the requested gradients of the inputs, in order, at each point, in the dtype of the input.
    pub body: Body,
    /// For each output, whether it is 0 for all inputs because nothing flows there.
    pub is_zero: Vec<bool>,
}

/// The reason why there is no gradient.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotDifferentiable(String);

impl fmt::Display for NotDifferentiable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotDifferentiable {}

/// Returns the gradient with respect to inputs, by their numbers.
///
/// # Errors
/// If an output is scattered; if an input does not exist, is not a float, or is gathered from; or if an output that is written
/// once per row depends on such an input at single points, without a reduction.
pub fn gradient(body: &Body, wrt: &[usize]) -> Result<Gradient, NotDifferentiable> {
    check_inputs(body, wrt)?;
    let at_points = body.point_dependent(|_| true);
    let carries = carriers(body, wrt);
    let place = gradient_place(body, &at_points, &carries)?;
    let builder = BodyBuilder::new();
    let is_zero = {
        let mut reverse = Reverse::new(body, &builder, at_points, carries);
        reverse.seed();
        reverse.run();
        let gradients: Vec<Option<Value>> = wrt.iter().map(|&input| reverse.inputs[input]).collect();
        for (&input, gradient) in wrt.iter().zip(&gradients) {
            let dtype = body.inputs[input].dtype;
            let value = gradient.unwrap_or_else(|| builder.constant(0.0, dtype.compute()));
            builder.output(value, dtype, place);
        }
        gradients.iter().map(Option::is_none).collect()
    };
    Ok(Gradient { body: builder.finish().pruned(), is_zero })
}

fn check_inputs(body: &Body, wrt: &[usize]) -> Result<(), NotDifferentiable> {
    if let Some(number) = body.outputs.iter().position(|output| output.scatter.is_some()) {
        return Err(NotDifferentiable(format!("output {number} is scattered, and its gradient is a gather")));
    }
    for &number in wrt {
        let error =
            |reason: String| Err(NotDifferentiable(format!("no gradient for input {number}: {reason}")));
        match body.inputs.get(number) {
            None => return error(format!("the body has {} inputs", body.inputs.len())),
            Some(input) if !input.dtype.is_differentiable() => {
                return error(format!("its dtype is {}, and only floats have gradients", input.dtype));
            }
            Some(input) if input.kind == InputKind::Gathered => {
                return error("it is gathered from, and its gradient is a scatter".to_string());
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Returns the expressions through which a gradient flows to the inputs.
fn carriers(body: &Body, wrt: &[usize]) -> Vec<bool> {
    let mut carries = vec![false; body.nodes.len()];
    for (index, node) in body.nodes.iter().enumerate() {
        let any = |mut operands: std::vec::IntoIter<ExprId>| operands.any(|operand| carries[operand.index()]);
        let flows = match *node {
            Node::Load { input } => wrt.contains(&usize::from(input)),
            Node::Reduced { reduction } => {
                let value = body.reductions[usize::from(reduction)].value;
                assert!(value.index() < index, "a reduction's value comes before its result");
                carries[value.index()]
            }
            Node::Unary(op, _) if rules::is_flat(op) => false,
            Node::Detach(_) | Node::Gather { .. } => false,
            _ => any(node.operands().collect::<Vec<_>>().into_iter()),
        };
        carries[index] = flows && body.dtypes[index].is_differentiable();
    }
    carries
}

/// Returns where the gradients are written: at points, or, for a body that has rows only, once per row.
fn gradient_place(
    body: &Body,
    at_points: &[bool],
    carries: &[bool],
) -> Result<OutputPlace, NotDifferentiable> {
    let places = || body.outputs.iter().map(|output| output.place);
    if body.reductions.is_empty() && places().all(|place| place == OutputPlace::Row) {
        return Ok(OutputPlace::Row);
    }
    for (number, output) in body.outputs.iter().enumerate() {
        let value = output.value.index();
        if output.place == OutputPlace::Row && at_points[value] && carries[value] {
            return Err(NotDifferentiable(format!(
                "output {number} is written once per row, but depends on single points of it: reduce it first"
            )));
        }
    }
    Ok(OutputPlace::Point)
}

/// The contributions to an expression's adjoint that were collected so far.
#[derive(Clone, Default)]
struct Adjoint<'b> {
    /// The adjoints from uses on the expression's own level.
    here: Vec<Flow<'b>>,
    /// From points, for an expression of the row: these are summed over the points.
    from_points: Vec<Flow<'b>>,
}

/// The pass from the outputs to the inputs.
struct Reverse<'b> {
    forward: &'b Body,
    builder: &'b BodyBuilder,
    at_points: Vec<bool>,
    carries: Vec<bool>,
    /// The forward expressions in the new body.
    copies: Vec<Value<'b>>,
    /// The reductions of the new body, so that equal ones are shared.
    reductions: Vec<(ReduceOp, ExprId, Value<'b>)>,
    adjoints: Vec<Adjoint<'b>>,
    /// The gradient of each input.
    inputs: Vec<Option<Value<'b>>>,
}

impl<'b> Reverse<'b> {
    /// Copies the forward body.
    fn new(forward: &'b Body, builder: &'b BodyBuilder, at_points: Vec<bool>, carries: Vec<bool>) -> Self {
        for input in &forward.inputs {
            match input.kind {
                InputKind::Strided => _ = builder.input(input.dtype),
                InputKind::Gathered => _ = builder.gathered_input(input.dtype),
            }
        }
        forward.scalars.iter().for_each(|&dtype| _ = builder.scalar(dtype));
        let mut reverse = Self {
            forward,
            builder,
            at_points,
            carries,
            copies: Vec::with_capacity(forward.nodes.len()),
            reductions: Vec::new(),
            adjoints: vec![Adjoint::default(); forward.nodes.len()],
            inputs: vec![None; forward.inputs.len()],
        };
        for (node, &dtype) in forward.nodes.iter().zip(&forward.dtypes) {
            let copy = match *node {
                Node::Reduced { reduction } => {
                    let reduction = forward.reductions[usize::from(reduction)];
                    reverse.reduce(reduction.op, reverse.copies[reduction.value.index()])
                }
                node => builder.node(node.with_operands(|id| reverse.copies[id.index()].id()), dtype),
            };
            reverse.copies.push(copy);
        }
        reverse
    }

    /// Returns a reduction of the new body, shared if an equal one exists.
    fn reduce(&mut self, op: ReduceOp, value: Value<'b>) -> Value<'b> {
        let known = self.reductions.iter().find(|(other, id, _)| *other == op && *id == value.id());
        if let Some(&(_, _, result)) = known {
            return result;
        }
        let result = self.builder.reduce(op, value);
        self.reductions.push((op, value.id(), result));
        result
    }

    /// Adds the gradient inputs, as adjoints of the outputs.
    fn seed(&mut self) {
        for output in &self.forward.outputs {
            let gradient = self.builder.input(output.dtype);
            self.contribute(output.value, output.place == OutputPlace::Point, Flow::new(gradient));
        }
    }

    /// Adds to the adjoint of an expression, from a use at points or at rows.
    fn contribute(&mut self, to: ExprId, from_points: bool, flow: Flow<'b>) {
        if !self.carries[to.index()] || flow.is_nowhere() {
            return;
        }
        let adjoint = &mut self.adjoints[to.index()];
        if from_points && !self.at_points[to.index()] && !self.forward.reductions.is_empty() {
            adjoint.from_points.push(flow);
        } else {
            adjoint.here.push(flow);
        }
    }

    /// Visits all expressions, each after all its uses.
    fn run(&mut self) {
        for index in (0..self.forward.nodes.len()).rev() {
            let Adjoint { mut here, from_points } = std::mem::take(&mut self.adjoints[index]);
            if let Some(flow) = Flow::sum(&from_points) {
                let summed = self.reduce(ReduceOp::Sum, flow.bounded());
                here.push(Flow::new(summed));
            }
            let Some(adjoint) = Flow::sum(&here) else { continue };
            match self.forward.nodes[index] {
                Node::Load { input } => {
                    let (adjoint, sum) = (adjoint.bounded(), &mut self.inputs[usize::from(input)]);
                    *sum = Some(sum.map_or(adjoint, |sum| add(sum, adjoint)));
                }
                Node::Reduced { reduction } => {
                    self.through_reduction(usize::from(reduction), self.copies[index], &adjoint);
                }
                node => {
                    let copy = |id: ExprId| self.copies[id.index()];
                    for part in rules::operands(&node, copy, self.copies[index], adjoint.value()) {
                        let flow = adjoint.through(part.value, part.branch);
                        self.contribute(part.operand, self.at_points[index], flow);
                    }
                }
            }
        }
    }

    /// Passes the gradient from the result of a reduction to the values that it combined.
    fn through_reduction(&mut self, number: usize, result: Value<'b>, flow: &Flow<'b>) {
        let reduction = self.forward.reductions[number];
        let value = self.copies[reduction.value.index()];
        let (zero, adjoint) = (value.like(0.0), flow.value());
        let contribution = match reduction.op {
            ReduceOp::Sum => flow.clone(),
            ReduceOp::Max | ReduceOp::Min => {
                let attains = value.eq(result);
                let ties = self.reduce(ReduceOp::Sum, attains.to(value.dtype()));
                flow.through(div(adjoint, ties), Some((attains, true)))
            }
            ReduceOp::Product => {
                // If no factor is 0, the product of the others is result / value; if exactly one is 0, only that one has a
                // gradient.
                let is_zero = value.eq(0.0);
                let zeros = self.reduce(ReduceOp::Sum, is_zero.to(value.dtype()));
                let factor = is_zero.select(value.like(1.0), value);
                let others = self.reduce(ReduceOp::Product, factor);
                let where_zero = zeros.eq(1.0).select(others, zero);
                let elsewhere = zeros.eq(0.0).select(others / factor, zero);
                flow.through(algebra::mul(adjoint, is_zero.select(where_zero, elsewhere)), None)
            }
        };
        self.contribute(reduction.value, true, contribution);
    }
}
