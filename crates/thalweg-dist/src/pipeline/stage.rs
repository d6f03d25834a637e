//! [`PipelineStage`]: the layers of one stage.

use thalweg_nn::module::{Forward, Module};
use thalweg_runtime::{Error, Result, refuse_if};
use thalweg_tensor::Tensor;

/// A function that computes a stage's result from its input.
type StageForward<'m> = dyn Fn(&Tensor) -> Result<Tensor> + 'm;

/// The layers of one stage (`torch.distributed.pipelining.PipelineStage`), on the rank that has them. A stage has one input
/// tensor and one output tensor, each with the same shape and dtype for every microbatch.
pub struct PipelineStage<'m> {
    index: usize,
    stages: usize,
    pub(super) parameters: Vec<Tensor>,
    pub(super) forward: Box<StageForward<'m>>,
}

impl<'m> PipelineStage<'m> {
    /// Makes stage `index` of `stages` from a module.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if there is no such stage.
    pub fn new<M: Forward>(module: &'m M, index: usize, stages: usize) -> Result<Self> {
        Self::with(module, index, stages, |input| module.forward(input))
    }

    /// Makes a stage from a module and a function that runs it.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if there is no such stage.
    pub fn with(
        module: &impl Module,
        index: usize,
        stages: usize,
        forward: impl Fn(&Tensor) -> Result<Tensor> + 'm,
    ) -> Result<Self> {
        refuse_if!(index >= stages, "Stage index {index} is out of range of {stages}");
        Ok(Self { index, stages, parameters: module.parameters(), forward: Box::new(forward) })
    }

    /// Returns the stage's number.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the number of stages of the pipeline.
    pub fn stages(&self) -> usize {
        self.stages
    }

    /// Returns whether this is the first stage, which takes the batch.
    pub fn is_first(&self) -> bool {
        self.index == 0
    }

    /// Returns whether this is the last stage, which computes the pipeline's result.
    pub fn is_last(&self) -> bool {
        self.index + 1 == self.stages
    }
}
