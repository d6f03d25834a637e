//! The gradients of the functional collectives, which are collectives themselves.

use thalweg_runtime::{Error, Result, invalid};
use thalweg_tensor::autograd::{Backward, Gradients, record_function};
use thalweg_tensor::dispatch::{Arguments, Call};
use thalweg_tensor::{Tensor, Tensors, no_grad};

use super::operators::{Kind, group_of, reduction, splits};
use super::{all_gather_tensor, all_reduce, all_to_all_single, reduce_scatter_tensor};
use crate::{ProcessGroup, ReduceOp};

/// Runs a call, and records a node with its gradient. The node holds the group.
pub(super) fn record(kind: Kind, call: &Call<'_>) -> Result<Tensors> {
    let group = group_of(call)?;
    let way_back = match kind {
        Kind::AllReduce => WayBack::AllReduce(reduction(call.str(1))?),
        Kind::Broadcast => WayBack::Reduce(call.int(1)),
        Kind::AllGather => WayBack::ReduceScatter,
        Kind::ReduceScatter => WayBack::AllGather(reduction(call.str(1))?),
        Kind::AllToAll => WayBack::AllToAll { from: splits(call, 1)?, to: splits(call, 2)? },
    };
    let results = no_grad(|| call.redispatch())?;
    let node = CollectiveBackward { name: call.operator.base_name(), group, way_back };
    Ok(record_function(Box::new(node), call.tensors, results.into_vec()).into())
}

/// The computation of the input's gradient.
enum WayBack {
    AllReduce(ReduceOp),
    /// The sum of all ranks' gradients, for this rank.
    Reduce(i64),
    ReduceScatter,
    /// An all-gather, of a reduction by this operation.
    AllGather(ReduceOp),
    /// The rows back, from and to each rank.
    AllToAll {
        from: Vec<usize>,
        to: Vec<usize>,
    },
}

struct CollectiveBackward {
    name: &'static str,
    group: ProcessGroup,
    way_back: WayBack,
}

impl CollectiveBackward {
    /// Checks that the forward pass was a sum, whose gradient is known.
    fn check_sum(&self, operation: ReduceOp) -> Result<()> {
        if operation == ReduceOp::Sum {
            return Ok(());
        }
        let (name, operation) = (self.name, operation.name());
        Err(invalid!("{name} backward only supports 'sum' reduction, got '{operation}'"))
    }
}

impl Backward for CollectiveBackward {
    fn name(&self) -> &'static str {
        self.name
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        let gradient = gradients[0].as_ref().expect("a node runs when its only result has a gradient");
        let group = &self.group;
        let result = match &self.way_back {
            WayBack::AllReduce(operation) => {
                self.check_sum(*operation)?;
                all_reduce(gradient, ReduceOp::Sum, group)?
            }
            WayBack::Reduce(root) => {
                let sum = all_reduce(gradient, ReduceOp::Sum, group)?;
                if i64::from(group.rank()) == *root { sum } else { sum.zeros_like()? }
            }
            WayBack::ReduceScatter => reduce_scatter_tensor(gradient, ReduceOp::Sum, 0, group)?,
            WayBack::AllGather(operation) => {
                self.check_sum(*operation)?;
                all_gather_tensor(gradient, 0, group)?
            }
            WayBack::AllToAll { from, to } => all_to_all_single(gradient, Some(to), Some(from), group)?,
        };
        Ok(Gradients::from_iter([Some(result)]))
    }

    /// Returns `false` for a broadcast: only the source has its gradient, so a gradient of that would not run on all ranks.
    fn is_recorded(&self) -> bool {
        !matches!(self.way_back, WayBack::Reduce(_))
    }
}
