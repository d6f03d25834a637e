//! The styles of a plan: how a module's parameters are divided, and how its input and output are held.

use super::Placement;

/// A style of parallel computation (`torch.distributed.tensor.parallel.ParallelStyle`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParallelStyle {
    /// The outputs of a layer are divided.
    Colwise(ColwiseParallel),
    /// The inputs of a layer are divided.
    Rowwise(RowwiseParallel),
    /// A norm over a part of the sequence.
    Sequence(SequenceParallel),
    /// The input is held in another way inside.
    PrepareInput(PrepareModuleInput),
    /// The output is held in another way outside.
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

/// A style that divides the outputs of a linear layer, or the features of an embedding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ColwiseParallel {
    /// The way in which the input is held; it is made whole. [`Placement::Replicate`].
    pub input_layouts: Placement,
    /// The way in which the output is to be held. [`Placement::Shard`] of the last dimension: as it is computed.
    pub output_layouts: Placement,
    /// The number of equally many outputs that lie one behind the other, of each of which every rank gets a part: 3 for queries, keys and
    /// values in one layer. 1.
    pub packed: usize,
    /// Whether the input's gradient is summed over the ranks here; `false` where a [`PrepareModuleInput`] does it for several layers at once, whose input is
    /// whole. `true`.
    pub reduce_gradient: bool,
}

impl Default for ColwiseParallel {
    fn default() -> Self {
        Self {
            input_layouts: Placement::Replicate,
            output_layouts: Placement::Shard(-1),
            packed: 1,
            reduce_gradient: true,
        }
    }
}

/// A style that divides the inputs of a linear layer, or the rows of an embedding (its vocabulary).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowwiseParallel {
    /// The way in which the input is held: [`Placement::Shard`] of the last dimension, as a [`ColwiseParallel`] layer gives it. Indices of
    /// an embedding are mostly [`Placement::Replicate`].
    pub input_layouts: Placement,
    /// The way in which the output is to be held. [`Placement::Replicate`].
    pub output_layouts: Placement,
}

impl Default for RowwiseParallel {
    fn default() -> Self {
        Self { input_layouts: Placement::Shard(-1), output_layouts: Placement::Replicate }
    }
}

/// A style that computes a norm of each rank's part of the sequence; the parameters are whole on every rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SequenceParallel {
    /// The dimension of which input and output are parts. 1: behind the batch.
    pub sequence_dim: i64,
}

impl Default for SequenceParallel {
    fn default() -> Self {
        Self { sequence_dim: 1 }
    }
}

/// A style that holds the input of a module in another way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrepareModuleInput {
    /// The way in which it is held outside.
    pub input_layouts: Placement,
    /// The way in which it is to be held inside.
    pub desired_input_layouts: Placement,
    /// Whether its gradient, of a whole input, is summed over the ranks here: those inside leave it
    /// ([`ColwiseParallel::reduce_gradient`]).
    pub reduce_gradient: bool,
}

/// A style that holds the output of a module in another way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrepareModuleOutput {
    /// The way in which the module gives it.
    pub output_layouts: Placement,
    /// The way in which it is to be held outside.
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
