//! A call of PyTorch's, handed to the operator's function.

use super::libtorch::Stack;
use super::{Kernels, Operator, copies, embedding, group, loss, operators, reductions, rms};

impl Operator {
    /// Carries a call of PyTorch's out.
    ///
    /// # Safety
    /// The words are a stack with the operator's arguments, and room for its results.
    pub(super) unsafe fn call(self, kernels: &Kernels, words: *mut u64) {
        // SAFETY: the caller's promise; each argument is taken once.
        let stack = unsafe { Stack::new(&kernels.torch, words) };
        match self {
            Self::Softmax | Self::LogSoftmax => operators::forward(kernels, self, &stack),
            Self::SoftmaxBackward | Self::LogSoftmaxBackward => operators::backward(kernels, self, &stack),
            Self::LayerNorm => operators::layer_norm(kernels, &stack),
            Self::LayerNormBackward => operators::layer_norm_backward(kernels, &stack),
            Self::EmbeddingBackward => embedding::backward(kernels, &stack),
            Self::RmsNorm => rms::forward(kernels, &stack),
            Self::RmsNormBackward => rms::backward(kernels, &stack),
            Self::GroupNorm => group::forward(kernels, &stack),
            Self::CrossEntropy => loss::forward(kernels, &stack),
            Self::CrossEntropyBackward => loss::backward(kernels, &stack),
            Self::Sum | Self::Mean | Self::Amax | Self::LogSumExp => reductions::call(kernels, self, &stack),
            Self::Clone => copies::clone(kernels, &stack),
        }
    }
}
