//! [`BackwardOptions`].

use super::no_grad;
use crate::dispatch::{DispatchKey, ExcludeKeyGuard};
use crate::tensor::Tensor;

/// The options of a backward pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BackwardOptions {
    /// Whether what the graph saved is kept, so that another backward pass can follow (`retain_graph` of PyTorch). Without it
    /// the memory is given back as the pass goes, and a second one over the same nodes is an error.
    pub retain_graph: bool,
    /// Whether the gradients are themselves part of a graph, so that gradients of gradients can follow (`create_graph` of
    /// PyTorch). What the graph saved is kept then too.
    pub create_graph: bool,
}

impl BackwardOptions {
    /// Returns whether what the graph saved is kept.
    pub(crate) const fn retains(self) -> bool {
        self.retain_graph || self.create_graph
    }

    /// Runs a pass, recorded only if gradients of gradients are asked for.
    pub(crate) fn run<T>(self, pass: impl FnOnce() -> T) -> T {
        let _computes_in_the_dtypes_of_the_forward_pass = ExcludeKeyGuard::new(DispatchKey::Autocast);
        if self.create_graph { pass() } else { no_grad(pass) }
    }

    /// Returns a gradient that the caller gave: outside the graph unless gradients of gradients are asked for.
    pub(super) fn given(self, gradient: &Tensor) -> Tensor {
        if self.create_graph { gradient.clone() } else { gradient.detach() }
    }
}
