//! A backward pass in two halves: first the gradient of one input, then those of everything else.
//!
//! The first half runs the nodes that lead to the input, and for each computes only the edges that lead there. For nodes with
//! other edges, to the weights, it keeps the gradients that have arrived. The second half starts from there.
//!
//! This module and `engine` use each other: the engine runs both halves.

use std::panic::Location;
use std::sync::Arc;

use thalweg_runtime::{Error, Label, Result, refuse, within};

use super::engine::{self, RetainedNode};
use super::{BackwardOptions, Edge, Node};
use crate::caller::at_line;
use crate::tensor::Tensor;

/// The second half of a backward pass, which [`backward_input`] returns: it computes the gradients of the leaves.
#[must_use = "leaves get their gradients in `run`"]
pub struct BackwardWeights {
    pub(super) kept: Vec<RetainedNode>,
    /// The output and its gradient, if the output does not depend on the input.
    pub(super) root: Option<(Edge, Tensor)>,
}

impl BackwardWeights {
    /// Adds the gradients of all leaves except the input to [`Tensor::grad`], and frees the tensors that the graph saved.
    /// Together both halves have the effect of one pass, with the same bits.
    #[track_caller]
    pub fn run(self) -> Result<()> {
        let _call = within(Label::here("backward"));
        at_line(Location::caller(), || {
            let options = BackwardOptions::default();
            options.run(|| engine::second_half(self))
        })
    }
}

/// Computes only the gradient of `input`, from a gradient of `output` (1 if none is given and the output has one element), and
/// returns it with the rest of the backward pass, so that work that uses the gradient of the input need not wait for those of the
/// weights (`stage_backward_input` of PyTorch's pipelining). `None` if the output does not depend on the input. No leaf's
/// [`Tensor::grad`] changes before the rest has run.
///
/// Hooks of tensors and hooks before nodes are called in the first half if it reaches the node, hooks after a node in both.
#[track_caller]
pub fn backward_input(
    output: &Tensor,
    gradient: Option<&Tensor>,
    input: &Tensor,
) -> Result<(Option<Tensor>, BackwardWeights)> {
    let _call = within(Label::here("backward"));
    at_line(Location::caller(), || {
        let options = BackwardOptions::default();
        let gradient = output.starting_gradient("backward", gradient, options)?;
        let Some(edge) = output.gradient_edge() else {
            refuse!(
                "backward: this tensor does not require grad and does not have a grad_fn: it depends on no leaf that requires a gradient \
                 (was it computed under no_grad?)"
            );
        };
        options.run(|| engine::first_half(edge, gradient, input.gradient_edge()))
    })
}

impl RetainedNode {
    /// Returns the edges that the second half follows.
    pub(super) fn others(&self) -> impl Iterator<Item = &Edge> {
        self.node
            .edges
            .iter()
            .zip(&self.asked)
            .filter(|(_, asked)| **asked)
            .filter_map(|(edge, _)| edge.as_ref())
    }

    /// Returns the node.
    pub(super) fn node(&self) -> &Arc<Node> {
        &self.node
    }
}
