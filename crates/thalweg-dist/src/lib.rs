//! Many GPUs: process groups, collectives, data parallel training (`torch.distributed`).
//!
//! - [`ProcessGroup`]: ranks that do collectives together, each with its own device; [`Work`], a collective that was submitted.
//! - [`store`]: keys and values by which ranks find each other.
//! - [`Rendezvous`]: rank, world size and store, from the environment of `torchrun`, SLURM or MPI.
//! - [`DeviceMesh`]: ranks in rows and columns, with a group along each dimension.
//! - [`functional`]: collectives as operators that return new tensors and have gradients.
//! - [`run_ranks`]: ranks as threads of one process, on GPUs or on simulated ones.
//! - [`DistributedDataParallel`]: a module whose gradients are those of the full batch.
//! - [`LockstepGraph`]: a region that either all ranks capture as a graph, or none.
//! - [`pipeline`]: stages of a module on several ranks, and the order in which microbatches go through them.
//! - [`FullyShard`]: a module whose parameters are sharded over all ranks; [`ActivationOffload`]: saved tensors in host memory.
//! - [`tensor_parallel`]: layers whose parameters and work are divided among ranks.
//!
//! ```
//! use thalweg_dist::{ReduceOp, run_ranks, simulated_devices};
//! use thalweg_tensor::Tensor;
//!
//! # fn main() -> thalweg_runtime::Result<()> {
//! let sums = run_ranks(&simulated_devices(2)?, |group| {
//!     let x = Tensor::from_slice(&[1.0f32 + group.rank() as f32], &[1], group.device())?;
//!     group.all_reduce(&x, ReduceOp::Sum)?.wait()?;
//!     x.item::<f32>()
//! })?;
//! assert_eq!(sums, [3.0, 3.0]);
//! # Ok(())
//! # }
//! ```
//!
//! # Invariants
//! - A collective is checked before any part of it is submitted.
//! - Ranks in arguments are those of the group (`group_src`, `group_dst` of PyTorch), from 0.
//! - No call blocks the host unless its documentation says so. No `unsafe`.
#![forbid(unsafe_code)]

mod checks;
mod coalesce;
mod collectives;
mod data_parallel;
mod environment;
mod flight;
mod fully_shard;
pub mod functional;
mod group;
mod lockstep;
mod mesh;
mod names;
mod object;
mod offload;
pub mod pipeline;
pub mod store;
pub mod tensor_parallel;
mod threads;
mod watchdog;
mod work;

pub use coalesce::Coalescing;
pub use data_parallel::{
    BucketHook, DataParallelOptions, DistributedDataParallel, JoinOptions, bf16_compress_hook,
};
pub use environment::{LaunchEnvironment, Rendezvous};
pub use flight::{FlightCall, FlightState, FlightSummary, FlightTensor, RankFlight};
pub use fully_shard::{
    FullyShard, FullyShardOptions, MixedPrecision, OffloadPolicy, OffloadedOptimizer, fully_shard,
    fully_shard_on_mesh,
};
pub use group::{GroupOptions, ProcessGroup};
pub use lockstep::LockstepGraph;
pub use mesh::DeviceMesh;
pub use offload::{ActivationOffload, OffloadOptions};
pub use threads::{run_ranks, run_ranks_with, simulated_devices};
pub use work::Work;

/// The operation that reduces elements of several ranks to one (`torch.distributed.ReduceOp`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReduceOp {
    /// The sum; integers wrap, and booleans are ORed.
    Sum,
    /// The product; integers wrap.
    Product,
    /// The minimum.
    Min,
    /// The maximum.
    Max,
    /// The sum divided by the number of ranks; for integers rounded towards 0.
    Avg,
    /// The sum of the ranks' elements, each multiplied by its rank's factor; for floating-point dtypes only.
    /// [`ReduceOp::premul_sum`] makes it.
    PreMulSum(Factor),
}

/// A factor of [`ReduceOp::PreMulSum`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Factor(u64);

impl Factor {
    /// Returns the factor.
    pub const fn value(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl std::fmt::Debug for Factor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.value())
    }
}

impl ReduceOp {
    /// Returns a sum whose elements are first multiplied by a factor (`_make_nccl_premul_sum`); ranks may have different factors.
    /// The products are rounded to the dtype.
    pub const fn premul_sum(factor: f64) -> Self {
        Self::PreMulSum(Factor(factor.to_bits()))
    }

    /// Returns the name in PyTorch's operators.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Product => "product",
            Self::Min => "min",
            Self::Max => "max",
            Self::Avg => "avg",
            Self::PreMulSum(_) => "premul_sum",
        }
    }
}
