//! Removal of expressions that no output needs.

use crate::{Body, ExprId, Node, Output, Report, Scatter};

impl Body {
    /// Returns the body without the expressions and reductions that no output needs. Inputs and scalars keep their numbers,
    /// whether needed or not. ([`Body::live`] counts every expression that a reduction needs, since a kernel runs all reductions
    /// of its body.)
    #[must_use]
    pub fn pruned(&self) -> Self {
        let mut nodes = vec![false; self.nodes.len()];
        let mut reductions = vec![false; self.reductions.len()];
        self.written().for_each(|id| nodes[id.index()] = true);
        for index in (0..nodes.len()).rev() {
            if !nodes[index] {
                continue;
            }
            self.nodes[index].operands().for_each(|operand| nodes[operand.index()] = true);
            if let Node::Reduced { reduction } = self.nodes[index] {
                let value = self.reductions[usize::from(reduction)].value;
                assert!(value.index() < index, "a reduction's value comes before its result");
                reductions[usize::from(reduction)] = true;
                nodes[value.index()] = true;
            }
        }
        self.keeping(&nodes, &reductions)
    }

    /// Returns the body with only these expressions and reductions.
    fn keeping(&self, nodes: &[bool], reductions: &[bool]) -> Self {
        let node_places = places(nodes);
        let reduction_places = places(reductions);
        let moved = |id: ExprId| ExprId(node_places[id.index()]);
        let mut body = Self { inputs: self.inputs.clone(), scalars: self.scalars.clone(), ..Self::default() };
        for index in (0..nodes.len()).filter(|&index| nodes[index]) {
            body.nodes.push(match self.nodes[index] {
                Node::Reduced { reduction } => {
                    Node::Reduced { reduction: reduction_places[usize::from(reduction)] as u16 }
                }
                node => node.with_operands(moved),
            });
            body.dtypes.push(self.dtypes[index]);
        }
        for (reduction, _) in self.reductions.iter().zip(reductions).filter(|&(_, &kept)| kept) {
            body.reductions.push(crate::Reduction { value: moved(reduction.value), ..*reduction });
        }
        for output in &self.outputs {
            let scatter = output
                .scatter
                .map(|Scatter { index, guard }| Scatter { index: moved(index), guard: moved(guard) });
            body.outputs.push(Output { value: moved(output.value), scatter, ..*output });
        }
        body.report = self.report.map(|Report { guard, index, extent }| Report {
            guard: moved(guard),
            index: moved(index),
            extent: moved(extent),
        });
        body
    }
}

/// Returns the index of each kept element among the kept ones.
fn places(kept: &[bool]) -> Vec<u32> {
    kept.iter()
        .scan(0, |next, &kept| {
            let place = *next;
            *next += u32::from(kept);
            Some(place)
        })
        .collect()
}

impl Node {
    /// Returns the node with other operands.
    #[must_use]
    pub fn with_operands(self, mut map: impl FnMut(ExprId) -> ExprId) -> Self {
        match self {
            Self::Constant(_)
            | Self::Load { .. }
            | Self::Place { .. }
            | Self::Scalar { .. }
            | Self::Index(_)
            | Self::Reduced { .. } => self,
            Self::Gather { input, index, guard, otherwise } => {
                Self::Gather { input, index: map(index), guard: map(guard), otherwise }
            }
            Self::Unary(op, x) => Self::Unary(op, map(x)),
            Self::Binary(op, a, b) => Self::Binary(op, map(a), map(b)),
            Self::Fma(a, b, c) => Self::Fma(map(a), map(b), map(c)),
            Self::Select(condition, yes, no) => Self::Select(map(condition), map(yes), map(no)),
            Self::Random(a, b, c) => Self::Random(map(a), map(b), map(c)),
            Self::Cast(x) => Self::Cast(map(x)),
            Self::Detach(x) => Self::Detach(map(x)),
        }
    }
}
