//! Edges for programs that run passes between places of a graph, and the public methods of nodes.

use std::any::Any;
use std::panic::Location;
use std::sync::Arc;

use thalweg_runtime::{Label, Result, within};

use super::engine::{self, run_function};
use super::saved::Unpacked;
use super::{BackwardOptions, Edge, Gradients, Node, Request, Saved, running};
use crate::caller::at_line;
use crate::tensor::Tensor;

/// The kind of a pass, and the places whose gradients it computes.
pub enum Backpropagation<'a> {
    /// All leaves accumulate.
    Accumulate,
    /// Only the leaves at these places accumulate.
    AccumulateAt(&'a [Option<Edge>]),
    /// The gradients that arrive at these places are returned, and leaves do not accumulate.
    Gradients(&'a [Option<Edge>]),
}

/// Runs a backward pass from several places at once, each with its gradient, and returns the gradients that arrive at the places
/// that [`Backpropagation::Gradients`] names.
#[track_caller]
pub fn run_backward(
    roots: Vec<(Edge, Tensor)>,
    kind: Backpropagation<'_>,
    options: BackwardOptions,
) -> Result<Vec<Option<Tensor>>> {
    let _call = within(Label::here("backward"));
    at_line(Location::caller(), || {
        let roots = roots.into_iter().map(|(edge, gradient)| (edge, options.given(&gradient))).collect();
        options.run(|| match kind {
            Backpropagation::Accumulate => engine::accumulate(roots, None, options).map(|()| Vec::new()),
            Backpropagation::AccumulateAt(targets) => {
                engine::accumulate(roots, Some(targets), options).map(|()| Vec::new())
            }
            Backpropagation::Gradients(targets) => engine::gradients(roots, targets, options),
        })
    })
}

impl Node {
    /// Returns the number of results of the operator.
    pub fn output_count(&self) -> usize {
        self.outputs
    }

    /// Calls the node's backward function directly, with a gradient for each result: outside a pass and without hooks. Saved
    /// tensors are kept.
    pub fn call(self: &Arc<Self>, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        run_function(self, gradients, &Request::default())
    }

    /// Returns the value that a program has attached to the node, or attaches the one that `make` returns if there is none.
    /// `None` if the attached value has another type.
    pub fn attachment<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<&T> {
        self.attachment.get_or_init(|| Box::new(make())).downcast_ref()
    }

    /// Returns the names of the tensors that the node keeps.
    pub fn saved_names(&self) -> Vec<String> {
        self.function.saved().into_iter().map(|place| place.name).collect()
    }

    /// Runs a function with a tensor that the node keeps, as part of the node; `None` if there is no tensor of that name.
    pub fn with_saved<T>(self: &Arc<Self>, name: &str, function: impl FnOnce(&Saved) -> T) -> Option<T> {
        let _unpacked = Unpacked::new();
        let places = self.function.saved();
        let place = places.into_iter().find(|place| place.name == name)?;
        Some(running(self, || function(place.saved)))
    }
}
