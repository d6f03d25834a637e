//! The operators of PyTorch that have a kernel here.

use std::ffi::CStr;

use super::original::Originals;

/// Passes the list of operators to a macro. Each entry has PyTorch's name, PyTorch's own kernel (which calls outside the table need,
/// unless the operator is composed of others), the function that runs a call, and further arguments of that function.
macro_rules! operators {
    ($macro:ident) => {
        $macro! {
            Softmax = "_softmax" [softmax]: operators::forward, Computation::Softmax;
            LogSoftmax = "_log_softmax" [log_softmax]: operators::forward, Computation::LogSoftmax;
            SoftmaxBackward = "_softmax_backward_data" [softmax_backward]:
                operators::backward, Computation::SoftmaxBackward;
            LogSoftmaxBackward = "_log_softmax_backward_data" [log_softmax_backward]:
                operators::backward, Computation::LogSoftmaxBackward;
            LayerNorm = "native_layer_norm" [layer_norm]: norms::layer_norm;
            LayerNormBackward = "native_layer_norm_backward" [layer_norm_backward]: norms::layer_norm_backward;
            RmsNorm = "_fused_rms_norm" [rms_norm]: norms::rms_norm;
            RmsNormBackward = "_fused_rms_norm_backward" [rms_norm_backward]: norms::rms_norm_backward;
            GroupNorm = "native_group_norm" [group_norm]: channels::group_norm;
            GroupNormBackward = "native_group_norm_backward" [group_norm_backward]: channels::group_norm_backward;
            BatchNorm = "native_batch_norm" [batch_norm]: channels::batch_norm;
            BatchNormBackward = "native_batch_norm_backward" [batch_norm_backward]: channels::batch_norm_backward;
            EmbeddingBackward = "embedding_dense_backward" [embedding_backward]: embedding::backward;
            CrossEntropy = "cross_entropy_loss": loss::forward;
            CrossEntropyBackward = "cross_entropy_loss_backward": loss::backward;
            Sum = "sum.dim_IntList" [sum]: reductions::to_dtype, Computation::Sum;
            Mean = "mean.dim" [mean]: reductions::to_dtype, Computation::Mean;
            Amax = "amax" [amax]: reductions::reduce, Computation::Amax;
            LogSumExp = "logsumexp" [logsumexp]: reductions::reduce, Computation::LogSumExp;
            Clone = "clone" [clone]: copies::clone;
            Adam = "_fused_adam_" [adam]: adam::adam;
            AdamByTensor = "_fused_adam_.tensor_lr" [adam_by_tensor]: adam::adam;
            AdamW = "_fused_adamw_" [adamw]: adam::adamw;
            AdamWByTensor = "_fused_adamw_.tensor_lr" [adamw_by_tensor]: adam::adamw;
        }
    };
}

pub(super) use operators;

/// Defines the operators.
macro_rules! define {
    ($($operator:ident = $name:literal $([$original:ident])?: $run:path $(, $argument:expr)*;)*) => {
        /// An operator of PyTorch that has a kernel here.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(super) enum Operator {
            $($operator,)*
        }

        impl Operator {
            pub(super) const ALL: [Self; [$($name),*].len()] = [$(Self::$operator),*];

            /// Returns PyTorch's name.
            pub(super) const fn name(self) -> &'static str {
                match self {
                    $(Self::$operator => $name,)*
                }
            }

            /// Returns whether this PyTorch has the kernel that calls outside the table need.
            pub(super) fn is_found(self, originals: &Originals) -> bool {
                match self {
                    $(Self::$operator => true $(&& originals.$original.is_some())?,)*
                }
            }
        }
    };
}

operators!(define);

impl Operator {
    /// Returns the namespace and the name of the operator that the kernel is registered for.
    pub(super) const fn schema(self) -> (&'static CStr, &'static str) {
        match self {
            Self::CrossEntropy => (c"thalweg", "cross_entropy_rows"),
            Self::CrossEntropyBackward => (c"thalweg", "cross_entropy_rows_backward"),
            _ => (c"aten", self.name()),
        }
    }
}
