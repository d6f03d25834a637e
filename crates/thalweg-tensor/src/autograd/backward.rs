//! Backward passes from tensors: into the gradients of leaves, or of chosen inputs.

use std::panic::Location;

use thalweg_runtime::{Error, Label, Result, refuse, refuse_if, within};

use super::{BackwardOptions, Edge, engine, no_grad};
use crate::caller::at_line;
use crate::tensor::Tensor;

impl Tensor {
    /// Computes the gradients of all leaves that this tensor, of one element, depends on, and adds them to [`Tensor::grad`] in
    /// place. Frees the tensors that the graph saved, so that it can run only once: see [`BackwardOptions`]. Asynchronous: the
    /// gradients are ready for work on the current stream.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the tensor does not have exactly one element, depends on no leaf that requires a
    /// gradient, or its graph was run before; and those of the operators' backward functions. Leaves that a failed pass has not
    /// reached keep their gradients.
    #[track_caller]
    pub fn backward(&self) -> Result<()> {
        self.backward_options(None, BackwardOptions::default())
    }

    /// Runs backward as [`Tensor::backward`] does, from a given gradient of this tensor.
    #[track_caller]
    pub fn backward_with(&self, gradient: &Tensor) -> Result<()> {
        self.backward_options(Some(gradient), BackwardOptions::default())
    }

    /// Runs backward as [`Tensor::backward`] does, with options, from a gradient of this tensor (1 if none is given and the
    /// tensor has one element).
    ///
    /// # Errors
    /// Those of [`Tensor::backward`]; [`Error::is_invalid_argument`] if the gradient does not have the tensor's shape, dtype and
    /// device.
    #[track_caller]
    pub fn backward_options(&self, gradient: Option<&Tensor>, options: BackwardOptions) -> Result<()> {
        let _call = within(Label::here("backward"));
        at_line(Location::caller(), || {
            let gradient = self.starting_gradient("backward", gradient, options)?;
            let Some(edge) = self.gradient_edge() else {
                refuse!(
                    "backward: this tensor does not require grad and does not have a grad_fn: it depends on no leaf that requires a \
                     gradient (was it computed under no_grad? is it made of gradients of a pass without create_graph?)"
                );
            };
            options.run(|| engine::run(edge, gradient, options))
        })
    }

    /// Returns the gradient of this output that a pass starts from: the given one, or 1 for a real output of one element.
    pub(super) fn starting_gradient(
        &self,
        operator: &str,
        gradient: Option<&Tensor>,
        options: BackwardOptions,
    ) -> Result<Tensor> {
        if let Some(gradient) = gradient {
            self.check_gradient(operator, gradient)?;
            return Ok(options.given(gradient));
        }
        refuse_if!(
            self.elements() != 1,
            "{operator}: shape {:?} has {} elements, and grad can be implicitly created only for scalar outputs; give a gradient, \
             or reduce it to one",
            self.shape(),
            self.elements()
        );
        refuse_if!(
            self.dtype().is_complex(),
            "{operator}: grad can be implicitly created only for real scalar outputs, and this one is complex; give a gradient"
        );
        no_grad(|| Tensor::ones(self.shape(), self.dtype(), self.device()))
    }
}

/// Returns, for each leaf, whether a backward pass from any of these tensors would reach it: for parameters, whether they were
/// used.
pub fn reached(outputs: &[Tensor], leaves: &[Tensor]) -> Vec<bool> {
    engine::reached(outputs, leaves)
}

/// Returns the gradients of `inputs`, from gradients of `outputs` (`torch.autograd.grad` with `allow_unused`): `None` for an
/// input that requires none, or that no output depends on. The gradient of an output with one real element may be left out and is
/// 1 then; outputs outside the graph are ignored. No leaf's [`Tensor::grad`] changes. Frees the tensors that the nodes on the way
/// saved. Asynchronous: the results are ready for work on the current stream.
///
/// # Errors
/// [`Error::is_invalid_argument`] if a gradient does not have the shape, dtype and device of its output, is left out for an
/// output of more than one element or of complex numbers, if there is not one entry per output, or the graph was run before.
#[track_caller]
pub fn gradients(
    outputs: &[Tensor],
    output_gradients: &[Option<Tensor>],
    inputs: &[Tensor],
) -> Result<Vec<Option<Tensor>>> {
    gradients_with(outputs, output_gradients, inputs, BackwardOptions::default())
}

/// Computes gradients as [`gradients`] does, with options.
#[track_caller]
pub fn gradients_with(
    outputs: &[Tensor],
    output_gradients: &[Option<Tensor>],
    inputs: &[Tensor],
    options: BackwardOptions,
) -> Result<Vec<Option<Tensor>>> {
    let _call = within(Label::here("gradients"));
    at_line(Location::caller(), || {
        refuse_if!(
            outputs.len() != output_gradients.len(),
            "gradients: {} outputs and {} gradients of outputs",
            outputs.len(),
            output_gradients.len()
        );
        let mut roots = Vec::new();
        for (output, gradient) in outputs.iter().zip(output_gradients) {
            let Some(edge) = output.gradient_edge() else { continue };
            roots.push((edge, output.starting_gradient("gradients", gradient.as_ref(), options)?));
        }
        let targets: Vec<Option<Edge>> = inputs.iter().map(Tensor::gradient_edge).collect();
        options.run(|| engine::gradients(roots, &targets, options))
    })
}
