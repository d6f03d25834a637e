//! Composition: two bodies over one iteration space as a single body.
//!
//! This is fusion as substitution. Where the second body reads what the first one writes, the load is replaced by the first
//! body's expression, cast to the dtype in which memory would have held it. The composition therefore has the bits of the two
//! bodies one after the other, but for those of a NaN: a cast that changes no number is left out. What both read is loaded once, and
//! expressions that both compute are shared.
//!
//! The caller decides that the bodies may share a space: which dimension of the space each dimension of a body is, that the second
//! body reads an element only where the first one writes it, and that the reductions keep their order.

use crate::body::{Body, BodyBuilder, Dimension, ExprId, Input, Node, OutputPlace, Reduction, Value};
use crate::{DType, Scalar};

/// The source of a body's input in a composition.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// The input of the composition with this number.
    Input(u16),
    /// The output of the first body with this number.
    Output(u16),
}

/// A body with its place in a composition.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    /// The body. It neither scatters nor reports.
    pub body: &'a Body,
    /// The source of each input.
    pub sources: Vec<Source>,
    /// The dimension of the space that each row dimension is; `None` for one of a single index.
    pub rows: Vec<Option<Dimension>>,
    /// The dimension of the space that each inner dimension is; `None` for one of a single index.
    pub inner: Vec<Option<Dimension>>,
    /// The outputs that the composition writes, and whether it writes them once per row or once per point of the space.
    pub outputs: Vec<(u16, OutputPlace)>,
}

/// Returns the composition of two bodies, with these inputs: the scalars, the reductions and the outputs of the first, followed by
/// those of the second. A reduction that both have is computed once.
///
/// # Panics
/// If a body scatters or reports, or if the first one reads an output.
pub fn compose(first: &Part<'_>, second: &Part<'_>, inputs: &[Input]) -> Body {
    let builder = BodyBuilder::new();
    let mut reductions = Vec::new();
    let written = {
        let mut copy = Copy { builder: &builder, reductions: &mut reductions, outputs: &[], slots: 0 };
        let values = copy.of(first);
        let at_output = |output: u16| {
            let output = &first.body.outputs[usize::from(output)];
            // Memory would hold the value in this dtype.
            values[output.value.index()].to(output.dtype).id()
        };
        let outputs: Vec<ExprId> = (0..first.body.outputs.len() as u16).map(at_output).collect();
        let slots = first.body.scalars.len() as u16;
        let mut copy = Copy { builder: &builder, reductions: &mut reductions, outputs: &outputs, slots };
        let seconds = copy.of(second);
        let of = |part: &Part<'_>, values: &[Value<'_>]| -> Vec<(ExprId, DType, OutputPlace)> {
            let written = part.outputs.iter().map(|&(number, place)| {
                let output = &part.body.outputs[usize::from(number)];
                (values[output.value.index()].id(), output.dtype, place)
            });
            written.collect()
        };
        [of(first, &values), of(second, &seconds)].concat()
    };
    for (value, dtype, place) in written {
        builder.write(value, dtype, place);
    }
    let mut body = builder.finish();
    body.inputs = inputs.to_vec();
    body.scalars = [&first.body.scalars[..], &second.body.scalars].concat();
    body.reductions = reductions;
    body.pruned()
}

/// The copy of a part's expressions into a composition.
struct Copy<'c, 'b> {
    builder: &'b BodyBuilder,
    /// The reductions of the composition so far.
    reductions: &'c mut Vec<Reduction>,
    /// The outputs of the first body, rounded as they would be in memory.
    outputs: &'c [ExprId],
    /// The number of scalars of the first body, if this is the second.
    slots: u16,
}

impl<'b> Copy<'_, 'b> {
    /// Copies the expressions of a part, and returns each.
    fn of(&mut self, part: &Part<'_>) -> Vec<Value<'b>> {
        let body = part.body;
        let is_plain = body.outputs.iter().all(|output| output.scatter.is_none()) && body.report.is_none();
        assert!(is_plain, "a body that scatters or reports is not composed");
        let mut values: Vec<Value<'b>> = Vec::with_capacity(body.nodes.len());
        for (node, &dtype) in body.nodes.iter().zip(&body.dtypes) {
            let value = self.node(part, *node, dtype, &values);
            values.push(value);
        }
        values
    }

    fn node(&mut self, part: &Part<'_>, node: Node, dtype: DType, values: &[Value<'b>]) -> Value<'b> {
        let at = |id: ExprId| values[id.index()].id();
        let node = match node {
            Node::Load { input } => match part.sources[usize::from(input)] {
                Source::Input(input) => Node::Load { input },
                Source::Output(output) => return self.builder.value(self.outputs[usize::from(output)]),
            },
            Node::Offset { input } => match part.sources[usize::from(input)] {
                Source::Input(input) => Node::Offset { input },
                Source::Output(_) => panic!("offsets are those in memory"),
            },
            Node::Gather { input, index, guard, otherwise } => match part.sources[usize::from(input)] {
                Source::Input(input) => Node::Gather { input, index: at(index), guard: at(guard), otherwise },
                Source::Output(_) => panic!("what a body gathers from is in memory"),
            },
            Node::Scalar { slot } => Node::Scalar { slot: slot + self.slots },
            Node::Index(dimension) => match of_space(part, dimension) {
                Some(dimension) => Node::Index(dimension),
                None => Node::Constant(Scalar::I64(0)),
            },
            Node::Reduced { reduction } => {
                let Reduction { op, value } = part.body.reductions[usize::from(reduction)];
                Node::Reduced { reduction: self.reduction(Reduction { op, value: at(value) }) }
            }
            Node::Cast(value) => return values[value.index()].to(dtype),
            node => node.with_operands(at),
        };
        self.builder.node(node, dtype)
    }

    /// Returns the index of a reduction, which is added unless there is an equal one.
    fn reduction(&mut self, reduction: Reduction) -> u16 {
        let known = self.reductions.iter().position(|other| *other == reduction);
        known.unwrap_or_else(|| {
            self.reductions.push(reduction);
            self.reductions.len() - 1
        }) as u16
    }
}

/// Returns the dimension of the space that a dimension of a part is.
fn of_space(part: &Part<'_>, dimension: Dimension) -> Option<Dimension> {
    match dimension {
        Dimension::Row(number) => part.rows[usize::from(number)],
        Dimension::Inner(number) => part.inner[usize::from(number)],
    }
}
