//! The dispatch of PyTorch's calls to the operators' functions.

use super::libtorch::Stack;
use super::operators::Attempt;
use super::rows::Computation;
use super::{Kernels, Operator, adam, batch, copies, embedding, group, loss, operators, reductions, rms};

impl Operator {
    /// Runs a call of PyTorch's.
    ///
    /// # Safety
    /// The words are a stack with the operator's arguments, and room for its results.
    pub(super) unsafe fn call(self, kernels: &Kernels, words: *mut u64) {
        // SAFETY: the caller's promise; each argument is taken once.
        let stack = unsafe { Stack::new(&kernels.torch, words) };
        let originals = &kernels.originals;
        let attempt = |computation| Attempt { kernels, operator: self, computation };
        match self {
            Self::Softmax => operators::forward(&attempt(Computation::Softmax), originals.softmax, &stack),
            Self::LogSoftmax => {
                operators::forward(&attempt(Computation::LogSoftmax), originals.log_softmax, &stack);
            }
            Self::SoftmaxBackward => {
                operators::backward(
                    &attempt(Computation::SoftmaxBackward),
                    originals.softmax_backward,
                    &stack,
                );
            }
            Self::LogSoftmaxBackward => {
                let attempt = attempt(Computation::LogSoftmaxBackward);
                operators::backward(&attempt, originals.log_softmax_backward, &stack);
            }
            Self::LayerNorm => operators::layer_norm(kernels, &stack),
            Self::LayerNormBackward => operators::layer_norm_backward(kernels, &stack),
            Self::EmbeddingBackward => embedding::backward(kernels, &stack),
            Self::RmsNorm => rms::forward(kernels, &stack),
            Self::RmsNormBackward => rms::backward(kernels, &stack),
            Self::GroupNorm => group::forward(kernels, &stack),
            Self::GroupNormBackward => group::backward(kernels, &stack),
            Self::BatchNorm => batch::forward(kernels, &stack),
            Self::BatchNormBackward => batch::backward(kernels, &stack),
            Self::CrossEntropy => loss::forward(kernels, &stack),
            Self::CrossEntropyBackward => loss::backward(kernels, &stack),
            Self::Sum => reductions::to_dtype(&attempt(Computation::Sum), originals.sum, &stack),
            Self::Mean => reductions::to_dtype(&attempt(Computation::Mean), originals.mean, &stack),
            Self::Amax => reductions::reduce(&attempt(Computation::Amax), originals.amax, &stack),
            Self::LogSumExp => {
                reductions::reduce(&attempt(Computation::LogSumExp), originals.logsumexp, &stack);
            }
            Self::Clone => copies::clone(kernels, &stack),
            Self::Adam => adam::adam(kernels, self, originals.adam, &stack),
            Self::AdamByTensor => adam::adam(kernels, self, originals.adam_by_tensor, &stack),
            Self::AdamW => adam::adamw(kernels, self, originals.adamw, &stack),
            Self::AdamWByTensor => adam::adamw(kernels, self, originals.adamw_by_tensor, &stack),
        }
    }
}
