//! Gradients for calls in which the gradients of some outputs are absent.

use crate::body::InputKind;
use crate::{Binary, Body, BodyBuilder, ExprId, Node, ReduceOp, Unary, Value};

/// Returns the body of a gradient for calls in which these inputs, gradients of outputs, are absent. Products with them are left
/// out, so that an infinite or NaN factor has no effect. Inputs and scalars keep their numbers.
#[must_use]
pub fn without_gradients(gradient: &Body, absent: &[usize]) -> Body {
    let builder = BodyBuilder::new();
    {
        let mut remaining = Remaining { gradient, builder: &builder, copies: Vec::new() };
        remaining.copy(absent);
        for output in &gradient.outputs {
            assert!(output.scatter.is_none(), "a gradient is not scattered");
            let value = remaining.or_zero(output.value);
            builder.output(value, output.dtype, output.place);
        }
    }
    builder.finish().pruned()
}

/// The expressions that remain; `None` where one is 0 because its gradient is absent.
struct Remaining<'b> {
    gradient: &'b Body,
    builder: &'b BodyBuilder,
    copies: Vec<Option<Value<'b>>>,
}

impl<'b> Remaining<'b> {
    fn copy(&mut self, absent: &[usize]) {
        for input in &self.gradient.inputs {
            match input.kind {
                InputKind::Strided => _ = self.builder.input(input.dtype),
                InputKind::Gathered => _ = self.builder.gathered_input(input.dtype),
            }
        }
        self.gradient.scalars.iter().for_each(|&dtype| _ = self.builder.scalar(dtype));
        for index in 0..self.gradient.nodes.len() {
            let copy = match self.gradient.nodes[index] {
                Node::Load { input } if absent.contains(&usize::from(input)) => None,
                node => self.remains(&node, index),
            };
            self.copies.push(copy);
        }
    }

    /// Returns the copy of an expression, or 0 if it does not remain.
    fn or_zero(&self, id: ExprId) -> Value<'b> {
        let zero = || self.builder.constant(0.0, self.gradient.dtype(id));
        self.copies[id.index()].unwrap_or_else(zero)
    }

    /// Returns the part of a node that remains; a gradient is linear in the gradients of outputs.
    fn remains(&self, node: &Node, index: usize) -> Option<Value<'b>> {
        let copy = |id: ExprId| self.copies[id.index()];
        match *node {
            Node::Unary(Unary::Neg | Unary::Conj, x) | Node::Cast(x) | Node::Detach(x) => copy(x)?,
            Node::Binary(Binary::Mul, a, b) => copy(a).and(copy(b))?,
            Node::Binary(Binary::Div, a, _) => copy(a)?,
            Node::Binary(Binary::Add, a, b) if copy(a).is_none() || copy(b).is_none() => {
                return copy(a).or(copy(b));
            }
            Node::Binary(Binary::Sub, a, b) if copy(b).is_none() => return copy(a),
            Node::Binary(Binary::Sub, a, b) if copy(a).is_none() => return copy(b).map(|b| -b),
            Node::Fma(a, b, c) if copy(a).and(copy(b)).is_none() => return copy(c),
            Node::Select(_, yes, no) => copy(yes).or(copy(no))?,
            Node::Reduced { reduction } => {
                let reduction = self.gradient.reductions[usize::from(reduction)];
                let is_sum = reduction.op == ReduceOp::Sum;
                let value = if is_sum { copy(reduction.value)? } else { self.or_zero(reduction.value) };
                return Some(self.builder.reduce(reduction.op, value));
            }
            _ => return Some(self.node(node, index)),
        };
        Some(self.node(node, index))
    }

    fn node(&self, node: &Node, index: usize) -> Value<'b> {
        self.builder.node(node.with_operands(|id| self.or_zero(id).id()), self.gradient.dtypes[index])
    }
}
