//! [`BackwardOptions`].

use super::no_grad;
use crate::dispatch::{DispatchKey, ExcludeKeyGuard};
use crate::tensor::Tensor;

/// The options of a backward pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BackwardOptions {
    /// Whether the tensors that the graph saved are kept, so that another backward pass can follow (`retain_graph` of PyTorch).
    /// Otherwise the memory is freed during the pass, and a second one over the same nodes is an error.
    pub retain_graph: bool,
    /// Whether the gradients are themselves part of a graph, so that gradients of gradients can follow (`create_graph` of
    /// PyTorch). The tensors that the graph saved are then kept too.
    pub create_graph: bool,
}

impl BackwardOptions {
    /// Returns whether the tensors that the graph saved are kept.
    pub(crate) const fn retains(self) -> bool {
        self.retain_graph || self.create_graph
    }

    /// Runs a pass, recorded only if gradients of gradients are requested.
    pub(crate) fn run<T>(self, pass: impl FnOnce() -> T) -> T {
        let _computes_in_the_dtypes_of_the_forward_pass = ExcludeKeyGuard::new(DispatchKey::Autocast);
        if self.create_graph { pass() } else { no_grad(pass) }
    }

    /// Returns a gradient that the caller passed, detached from the graph unless gradients of gradients are requested.
    pub(super) fn given(self, gradient: &Tensor) -> Tensor {
        if self.create_graph { gradient.clone() } else { gradient.detach() }
    }
}
