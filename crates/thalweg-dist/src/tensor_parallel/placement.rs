//! [`Placement`]: how the ranks of a mesh hold a tensor; and the conversion between placements.

use std::fmt;
use thalweg_derive::in_call;
use thalweg_runtime::{Error, Result, invalid};
use thalweg_tensor::autograd::{Backward, Gradients, record_function};
use thalweg_tensor::{Tensor, no_grad};

use crate::functional::{
    all_gather_tensor, all_reduce, all_to_all_single, dimension, reduce_scatter_tensor, side_by_side, stacked,
};
use crate::{ProcessGroup, ReduceOp};

/// A way in which the ranks of a mesh hold a tensor (`torch.distributed.tensor.Placement`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Every rank has the full tensor.
    Replicate,
    /// Each rank has one of the equal parts of a dimension; negative dimensions count from the end.
    Shard(i64),
    /// The full tensor is the sum of the ranks' tensors.
    Partial,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replicate => f.write_str("Replicate()"),
            Self::Shard(dim) => write!(f, "Shard(dim={dim})"),
            Self::Partial => f.write_str("Partial(sum)"),
        }
    }
}

impl Placement {
    /// Returns the placement with a negative dimension counted from the front.
    fn of(self, tensor: &Tensor) -> Result<Self> {
        Ok(match self {
            Self::Shard(dim) => Self::Shard(dimension(tensor, dim)? as i64),
            other => other,
        })
    }
}

/// Converts a tensor from the placement `from` to the placement `to`, and returns this rank's part (`DTensor.redistribute`).
/// `gradient` is the placement of the result's gradient, of one loss that all ranks compute: [`Placement::Partial`] if each rank
/// uses the full result for its own part of the work, otherwise `to`. The input's gradient has the placement of the input; for a
/// partial input it is replicated. Asynchronous.
///
/// | from | to | gradient | forward | backward |
/// |---|---|---|---|---|
/// | Replicate | Replicate | Partial | – | all-reduce |
/// | Partial | Replicate | Replicate | all-reduce | – |
/// | Shard | Replicate | Partial | all-gather | reduce-scatter |
/// | Partial | Shard | Shard | reduce-scatter | all-gather |
/// | Shard | Replicate | Replicate | all-gather | this rank's part |
/// | Replicate | Shard | Shard | this rank's part | all-gather |
/// | Shard | another Shard | the latter | all-to-all | all-to-all |
///
/// # Errors
/// [`Error::is_invalid_argument`] if the dimension is not a multiple of the number of ranks, or the table has no such conversion;
/// those of collectives. The gradient of the gradient is an error.
#[in_call("redistribute", &[input])]
pub fn redistribute(
    input: &Tensor,
    group: &ProcessGroup,
    from: Placement,
    to: Placement,
    gradient: Placement,
) -> Result<Tensor> {
    let [from, to, gradient] = [from, to, gradient].map(|placement| placement.of(input));
    let (from, to, gradient) = (from?, to?, gradient?);
    let result = no_grad(|| moved(input, group, from, to))?;
    let way_back = match from {
        Placement::Partial => Placement::Replicate,
        other => other,
    };
    if (from == to && gradient == way_back) || group.size() == 1 {
        return Ok(input.clone());
    }
    let node = RedistributeBackward { group: group.clone(), from: gradient, to: way_back };
    Ok(record_function(Box::new(node), &[input], vec![result]).remove(0))
}

/// Converts a tensor from one placement to another, without a gradient.
fn moved(tensor: &Tensor, group: &ProcessGroup, from: Placement, to: Placement) -> Result<Tensor> {
    let (rank, ranks) = (group.rank() as usize, group.size() as usize);
    if from == to || ranks == 1 {
        return Ok(tensor.clone());
    }
    let part = |dim: i64| -> Result<usize> {
        let size = tensor.shape()[dim as usize];
        if size.is_multiple_of(ranks) {
            return Ok(size / ranks);
        }
        Err(invalid!(
            "{from} to {to}: the size {size} of dimension {dim} must be divisible by the mesh's {ranks} ranks"
        ))
    };
    match (from, to) {
        (Placement::Partial, Placement::Replicate) => all_reduce(tensor, ReduceOp::Sum, group),
        (Placement::Partial, Placement::Shard(dim)) => {
            part(dim)?;
            reduce_scatter_tensor(tensor, ReduceOp::Sum, dim, group)
        }
        (Placement::Shard(dim), Placement::Replicate) => all_gather_tensor(tensor, dim, group),
        (Placement::Replicate, Placement::Shard(dim)) => {
            let size = part(dim)?;
            tensor.narrow(dim, rank * size, size)?.contiguous()
        }
        (Placement::Shard(gathered), Placement::Shard(divided)) => {
            part(divided)?;
            let parts = stacked(tensor, divided as usize, ranks)?;
            side_by_side(&all_to_all_single(&parts, None, None, group)?, gathered as usize, ranks)
        }
        (Placement::Replicate, Placement::Partial) if rank == 0 => Ok(tensor.clone()),
        (Placement::Replicate, Placement::Partial) => tensor.zeros_like(),
        _ => Err(invalid!("a tensor cannot go from {from} to {to}")),
    }
}

/// The node of [`redistribute`].
struct RedistributeBackward {
    group: ProcessGroup,
    from: Placement,
    to: Placement,
}

impl Backward for RedistributeBackward {
    fn name(&self) -> &'static str {
        "redistribute"
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        let gradient = gradients[0].as_ref().expect("a node runs when its only result has a gradient");
        Ok(Gradients::from_iter([Some(moved(gradient, &self.group, self.from, self.to)?)]))
    }

    /// Returns `false`: the placement of gradients of gradients is not known.
    fn is_recorded(&self) -> bool {
        false
    }
}
