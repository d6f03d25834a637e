//! Tensor parallelism: the parameters of layers and the work with them are divided among ranks
//! (`torch.distributed.tensor.parallel`).
//!
//! The layers of a module that can be divided are fields of type [`Parallel`]; [`parallelize_module`] divides them by a plan of
//! names and styles. All ranks of the mesh's dimension then compute one loss together, from the same batch:
//!
//! ```text
//!                 x (whole)                                  x (part of the sequence)
//!                 │  backward: all-reduce                    │ all-gather       backward: reduce-scatter
//!   ColwiseParallel: outputs divided            ColwiseParallel { input_layouts: Shard(1), .. }
//!                 │  gelu, attention of own heads            │
//!    RowwiseParallel: inputs divided            RowwiseParallel { output_layouts: Shard(1), .. }
//!                 │  all-reduce                              │ reduce-scatter   backward: all-gather
//!                 y (whole)                                  y (part of the sequence), into norms of `SequenceParallel`
//! ```
//!
//! [`redistribute`] is called between layers: it converts a tensor from one [`Placement`] to another, and its gradient back. A
//! replicated value has its full gradient on every rank. [`cross_entropy`] takes scores whose classes are divided.
//!
//! # Invariants
//! - Parameters are divided evenly: a dimension that is not a multiple of the number of ranks is an error, before anything is
//!   changed.
//! - All ranks call the same functions in the same order.

mod attention;
mod layers;
mod loss;
mod placement;
mod plan;
mod split;
mod style;

pub use self::attention::ParallelAttention;
pub use self::layers::{Parallel, Parallelize};
pub use self::loss::cross_entropy;
pub use self::placement::{Placement, redistribute};
pub use self::plan::{TensorParallel, parallelize_module};
pub use self::split::Split;
pub use self::style::{
    ColwiseParallel, ParallelStyle, PrepareModuleInput, PrepareModuleOutput, RowwiseParallel,
    SequenceParallel,
};
