//! The styles of a plan: how a module's parameters are divided, and the placements of its input and output.

use super::Placement;
use thalweg_runtime::options;

/// A style of parallel computation (`torch.distributed.tensor.parallel.ParallelStyle`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParallelStyle {
    /// A layer with divided outputs.
    Colwise(ColwiseParallel),
    /// A layer with divided inputs.
    Rowwise(RowwiseParallel),
    /// A norm over a part of the sequence.
    Sequence(SequenceParallel),
    /// A module whose input is converted to another placement.
    PrepareInput(PrepareModuleInput),
    /// A module whose output is converted to another placement.
    PrepareOutput(PrepareModuleOutput),
}

impl ParallelStyle {
    /// Returns PyTorch's name.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Colwise(_) => "ColwiseParallel",
            Self::Rowwise(_) => "RowwiseParallel",
            Self::Sequence(_) => "SequenceParallel",
            Self::PrepareInput(_) => "PrepareModuleInput",
            Self::PrepareOutput(_) => "PrepareModuleOutput",
        }
    }
}

options! {
    /// A style that divides the outputs of a linear layer, or the features of an embedding.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct ColwiseParallel {
        /// The placement of the input, which is converted to a replicated one. The default is [`Placement::Replicate`].
        pub input_layouts: Placement = Placement::Replicate,
        /// The placement of the output. The default is [`Placement::Shard`] of the last dimension, as it is computed.
        pub output_layouts: Placement = Placement::Shard(-1),
        /// The number of equal consecutive groups of outputs: 3 for queries, keys and values in one layer. Every rank gets a part of
        /// each group. The default is 1.
        pub packed: usize = 1,
        /// Whether the input's gradient is summed over the ranks here; `false` where a [`PrepareModuleInput`] does it for several
        /// layers at once, whose input is replicated. The default is `true`.
        pub reduce_gradient: bool = true,
    }
}

options! {
    /// A style that divides the inputs of a linear layer, or the rows of an embedding (its vocabulary).
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct RowwiseParallel {
        /// The placement of the input. The default is [`Placement::Shard`] of the last dimension, as a [`ColwiseParallel`] layer
        /// returns it. Indices of an embedding are mostly [`Placement::Replicate`].
        pub input_layouts: Placement = Placement::Shard(-1),
        /// The placement of the output. The default is [`Placement::Replicate`].
        pub output_layouts: Placement = Placement::Replicate,
    }
}

/// A style that computes a norm of each rank's part of the sequence; every rank has the full parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SequenceParallel {
    /// The dimension along which input and output are divided. The default is 1, after the batch.
    pub sequence_dim: i64,
}

impl Default for SequenceParallel {
    fn default() -> Self {
        Self { sequence_dim: 1 }
    }
}

/// A style that converts the input of a module to another placement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrepareModuleInput {
    /// The placement of the input outside the module.
    pub input_layouts: Placement,
    /// The placement of the input inside the module.
    pub desired_input_layouts: Placement,
    /// Whether the gradient of a replicated input is summed over the ranks here, so that the layers inside need not do it
    /// ([`ColwiseParallel::reduce_gradient`]).
    pub reduce_gradient: bool,
}

/// A style that converts the output of a module to another placement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrepareModuleOutput {
    /// The placement of the output that the module returns.
    pub output_layouts: Placement,
    /// The placement of the output outside the module.
    pub desired_output_layouts: Placement,
}

macro_rules! styles {
    ($($variant:ident($style:ident)),*) => {$(
        impl From<$style> for ParallelStyle {
            fn from(style: $style) -> Self {
                Self::$variant(style)
            }
        }
    )*};
}

styles! {
    Colwise(ColwiseParallel), Rowwise(RowwiseParallel), Sequence(SequenceParallel), PrepareInput(PrepareModuleInput),
    PrepareOutput(PrepareModuleOutput)
}
