//! Cross entropy of scores whose classes are divided among ranks (`loss_parallel`).

use thalweg_derive::in_call;
use thalweg_ir::DType;
use thalweg_nn::functional::{ClassLossOptions, Reduction};
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};
use thalweg_tensor::Tensor;

use super::placement::{Placement, redistribute};
use crate::ProcessGroup;

/// Returns the cross entropy of scores whose classes are divided among the ranks, as a
/// [`ColwiseParallel`](super::ColwiseParallel) head returns them (`torch.nn.functional.cross_entropy` in
/// `torch.distributed.tensor.parallel.loss_parallel`): input (classes / ranks), (rows, classes / ranks) or (rows, classes /
/// ranks, …), target () or (rows, …) of i64. The target and the result are the same on every rank. The scores are not gathered:
/// each rank sends two numbers per row, and none in the backward pass. A class out of range makes the result NaN. Asynchronous.
///
/// # Errors
/// [`Error::is_invalid_argument`] if the shapes do not fit, or for label smoothing; those of collectives.
#[in_call("cross_entropy", &[input, target])]
pub fn cross_entropy(
    input: &Tensor,
    target: &Tensor,
    options: ClassLossOptions,
    group: &ProcessGroup,
) -> Result<Tensor> {
    refuse_if!(options.label_smoothing != 0.0, "loss_parallel() does not support label_smoothing");
    refuse_if!(input.rank() == 0, "the input has no dimension of classes");
    let class_dim = usize::from(input.rank() > 1);
    let mut rows = input.shape().to_vec();
    let classes = rows.remove(class_dim);
    if target.shape() != rows || target.dtype() != DType::I64 {
        refuse!("the target is {} {:?}, not int64 {rows:?}", target.dtype(), target.shape());
    }
    let whole = classes
        .checked_mul(group.size() as usize)
        .ok_or_else(|| invalid!("{classes} classes on each of {} ranks are too many", group.size()))?;
    let dim = class_dim as i64;
    let wide = if input.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    // Per row: the logarithm of the sum of this rank's exponentials, and the target's score if this rank has it.
    let scores = input.to_dtype(wide)?;
    let own = Own::new(target, classes, group)?;
    let known = own.pick(&scores, dim)?;
    let part = Tensor::stack(&[scores.logsumexp(&[dim], false)?, known], 0)?.unsqueeze(0)?;
    let (shard, replicate) = (Placement::Shard(0), Placement::Replicate);
    let parts = redistribute(&part, group, shard, replicate, replicate)?;
    let normalizer = parts.select(1, 0)?.logsumexp(&[0], false)?;
    let losses = normalizer.sub(&parts.select(1, 1)?.sum(&[0], false)?)?;
    reduce(&losses, target, whole as i64, options)
}

/// The rows whose target class is on this rank.
struct Own {
    has: Tensor,
    /// The target class's index among this rank's classes; 0 if it is on another rank.
    class: Tensor,
}

impl Own {
    fn new(target: &Tensor, classes: usize, group: &ProcessGroup) -> Result<Self> {
        let class = target.sub_scalar(i64::from(group.rank()) * classes as i64)?;
        let has = class.ge_scalar(0i64)?.logical_and(&class.lt_scalar(classes as i64)?)?;
        let zero = Tensor::zeros(&[], DType::I64, target.device())?;
        let class = has.select_where(&class, &zero)?;
        Ok(Self { has, class })
    }

    /// Returns the scores of the target classes, and 0 in rows whose class is on another rank.
    fn pick(&self, scores: &Tensor, dim: i64) -> Result<Tensor> {
        let picked = scores.gather(dim, &self.class.unsqueeze(dim)?)?.squeeze(dim)?;
        let zero = Tensor::zeros(&[], picked.dtype(), picked.device())?;
        self.has.select_where(&picked, &zero)
    }
}

/// Returns the reduction of losses per row: 0 if the target is ignored, NaN if it is not a class.
fn reduce(losses: &Tensor, target: &Tensor, classes: i64, options: ClassLossOptions) -> Result<Tensor> {
    let number = |value: f64| Tensor::full(&[], value, losses.dtype(), losses.device());
    let counts = target.ne_scalar(options.ignore_index)?;
    let is_class = target.ge_scalar(0i64)?.logical_and(&target.lt_scalar(classes)?)?;
    let losses = is_class.select_where(losses, &number(f64::NAN)?)?;
    let losses = counts.select_where(&losses, &number(0.0)?)?;
    match options.reduction {
        Reduction::None => Ok(losses),
        Reduction::Sum => losses.sum(&[], false),
        Reduction::Mean => {
            let count = counts.to_dtype(losses.dtype())?.sum(&[], false)?;
            losses.sum(&[], false)?.div(&count)
        }
    }
}
