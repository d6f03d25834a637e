//! Losses of margins, angles and counts.

use thalweg_ir::DType;
use thalweg_ops::default_dtype;
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::Body::Composite;
use super::distance::pairwise;
use super::loss::{check_weights, reduced, wide};
use super::operators;
use crate::dispatch::{Arguments, Call};
use crate::dtype_name::named;
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns 1 − cos of the rows' angle where the target is 1, max(0, cos − margin) where it is −1, reduced.
    "cosine_embedding_loss(Tensor input1, Tensor input2, Tensor target, float margin=0.0, int reduction=Mean) -> Tensor"
        fn cosine_embedding_loss(input2: tensor, target: tensor, margin: float, reduction: int)
        = Composite(cosine_embedding_loss), autocast: Full;
    /// Returns self where the target is 1, max(0, margin − self) where it is −1, reduced.
    "hinge_embedding_loss(Tensor self, Tensor target, float margin=1.0, int reduction=Mean) -> Tensor"
        fn hinge_embedding_loss(target: tensor, margin: float, reduction: int)
        = Composite(|call| {
            let (x, target) = (call.tensor(0), call.tensor(1));
            let zero = Tensor::zeros(&[], x.dtype(), x.device())?;
            let rest = x.neg()?.add_scalar(call.float(2))?.clamp_min(0.0)?;
            let apart = target.ne_scalar(1)?.select_where(&rest, &zero)?;
            let near = target.ne_scalar(-1)?.select_where(x, &zero)?;
            let loss = apart.add(&near)?;
            reduced(&loss, call.int(3), loss.dtype())
        }), autocast: Full;
    /// Returns max(0, |anchor − positive| − |anchor − negative| + margin), reduced; with `swap` the negative's distance is the
    /// smaller of those to anchor and positive.
    "triplet_margin_loss(Tensor anchor, Tensor positive, Tensor negative, float margin=1.0, float p=2, float eps=1e-06, bool swap=False, int reduction=Mean) -> Tensor"
        fn triplet_margin_loss(positive: tensor, negative: tensor, margin: float, p: float, eps: float, swap: bool, reduction: int)
        = Composite(triplet_margin_loss), autocast: Full;
    /// Returns the negative logarithm of a Poisson distribution's probability, reduced; `full` adds Stirling's approximation of ln target!.
    "poisson_nll_loss(Tensor input, Tensor target, bool log_input, bool full, float eps, int reduction) -> Tensor"
        fn poisson_nll_loss(target: tensor, log_input: bool, full: bool, eps: float, reduction: int)
        = Composite(poisson_nll_loss), autocast: Full;
    /// Returns the mean over classes of max(0, margin − self at the target + self)ᵖ, times the target's weight, reduced.
    "multi_margin_loss(Tensor self, Tensor target, Scalar p=1, Scalar margin=1, Tensor? weight=None, int reduction=Mean) -> Tensor"
        fn multi_margin_loss(target: tensor, p: scalar, margin: scalar, weight: optional_tensor, reduction: int)
        = Composite(multi_margin_loss), autocast: Full;
    /// Returns the sum over targets and other classes of max(0, 1 − self at the target + self), divided by the number of classes,
    /// reduced. A row's targets end at the first that is −1.
    "multilabel_margin_loss(Tensor self, Tensor target, int reduction=Mean) -> Tensor"
        fn multilabel_margin_loss(target: tensor, reduction: int)
        = Composite(multilabel_margin_loss), autocast: Full;
}

fn cosine_embedding_loss(call: &Call<'_>) -> Result<Tensors> {
    let (x, y, target, margin) = (call.tensor(0), call.tensor(1), call.tensor(2), call.float(3));
    let dims = target.rank() + 1;
    refuse_if!(
        target.rank() > 1,
        "0D or 1D target tensor expected, multi-target not supported, but the target has shape {:?}",
        target.shape()
    );
    refuse_if!(
        x.rank() != dims || y.rank() != dims,
        "{}D target tensor expects {dims}D input tensors, but found inputs with sizes {:?} and {:?}.",
        target.rank(),
        x.shape(),
        y.shape()
    );
    let dim = [dims as i64 - 1];
    let dtype = x.dtype().promote(y.dtype()).map_err(|error| Error::invalid(error.to_string()))?;
    let dtype = if dtype.is_floating_point() { dtype } else { default_dtype() };
    let (x, y) = (x.to_dtype(dtype.compute())?, y.to_dtype(dtype.compute())?);
    let sums = |a: &Tensor, b: &Tensor| a.mul(b)?.sum(&dim, false);
    let square = |a: &Tensor| sums(a, a)?.add_scalar(1e-12);
    let cosine = sums(&x, &y)?.div(&square(&x)?.mul(&square(&y)?)?.sqrt()?)?;
    let zero = Tensor::zeros(&[], cosine.dtype(), cosine.device())?;
    let near = target.eq_scalar(1)?.select_where(&cosine.neg()?.add_scalar(1.0)?, &zero)?;
    let apart = target.eq_scalar(-1)?.select_where(&cosine.sub_scalar(margin)?.clamp_min(0.0)?, &zero)?;
    reduced(&near.add(&apart)?, call.int(4), dtype)
}

fn triplet_margin_loss(call: &Call<'_>) -> Result<Tensors> {
    let [anchor, positive, negative] = [0, 1, 2].map(|place| call.tensor(place));
    let [margin, p, eps] = [3, 4, 5].map(|place| call.float(place));
    if margin <= 0.0 || margin.is_nan() {
        return Err(Error::value(format!("margin must be greater than 0, got {margin}")));
    }
    refuse_if!(
        anchor.rank() != positive.rank() || anchor.rank() != negative.rank(),
        "The anchor, positive, and negative tensors are expected to have the same number of dimensions, but got: anchor {}D, \
         positive {}D, and negative {}D inputs",
        anchor.rank(),
        positive.rank(),
        negative.rank()
    );
    let near = pairwise(anchor, positive, p, eps, false)?;
    let mut apart = pairwise(anchor, negative, p, eps, false)?;
    if call.bool(6) {
        apart = apart.minimum(&pairwise(positive, negative, p, eps, false)?)?;
    }
    let loss = near.sub(&apart)?.add_scalar(margin)?.clamp_min(0.0)?;
    reduced(&loss, call.int(7), loss.dtype())
}

fn poisson_nll_loss(call: &Call<'_>) -> Result<Tensors> {
    let (x, target, eps) = (call.tensor(0), call.tensor(1), call.float(4));
    let mut loss = match call.bool(2) {
        true => x.exp()?.sub(&target.mul(x)?)?,
        false => x.sub(&target.mul(&x.add_scalar(eps)?.log()?)?)?,
    };
    if call.bool(3) {
        let tau = 2.0 * std::f64::consts::PI;
        let half = target.mul_scalar(tau)?.log()?.mul_scalar(0.5)?;
        let stirling = target.mul(&target.log()?)?.sub(target)?.add(&half)?;
        let zero = Tensor::zeros(&[], stirling.dtype(), stirling.device())?;
        loss = loss.add(&target.le_scalar(1)?.select_where(&zero, &stirling)?)?;
    }
    reduced(&loss, call.int(5), loss.dtype())
}

/// Returns scores as rows of classes, if they are floats of at most two dimensions with classes.
fn rows_of_classes(x: &Tensor) -> Result<Tensor> {
    let is_empty = x.rank() > 2 || x.rank() > 0 && x.shape()[x.rank() - 1] == 0;
    refuse_if!(
        is_empty,
        "Expected non-empty vector or matrix with optional 0-dim batch size, but got: {:?}",
        x.shape()
    );
    if !x.dtype().is_floating_point() {
        return Err(Error::not_implemented(format!("the loss is not implemented for '{}'", x.dtype())));
    }
    let classes = x.shape().last().copied().unwrap_or(1);
    x.reshape(&[x.elements() / classes.max(1), classes])
}

fn check_classes(target: &Tensor) -> Result<()> {
    match target.dtype() {
        DType::I64 => Ok(()),
        other => Err(invalid!("expected scalar type Long but found {}", named(other))),
    }
}

fn multi_margin_loss(call: &Call<'_>) -> Result<Tensors> {
    let (x, target, weight) = (call.tensor(0), call.tensor(1), call.optional_tensor(4));
    let (p, margin) = (call.scalar(2).to_f64(), call.scalar(3).to_f64());
    if p != 1.0 && p != 2.0 {
        return Err(Error::value("only p == 1 and p == 2 supported"));
    }
    let rows = wide(&rows_of_classes(x)?)?;
    let [count, classes] = [rows.shape()[0], rows.shape()[1]];
    if target.rank() > 1 || target.elements() != count {
        refuse!("inconsistent target size, expected {count} but got {:?}", target.shape());
    }
    if let Some(weight) = weight.filter(|weight| weight.rank() > 1 || weight.elements() != classes) {
        refuse!("inconsistent weight size, expected {classes} but got {:?}", weight.shape());
    }
    check_classes(target)?;
    check_weights(weight, x)?;
    let index = target.reshape(&[count, 1])?;
    let distance = rows.sub(&rows.gather(1, &index)?)?.add_scalar(margin)?.relu()?;
    let mut costs = if p == 2.0 { distance.mul(&distance)? } else { distance };
    if let Some(weight) = weight {
        costs =
            costs.mul(&weight.reshape(&[classes])?.gather(0, &target.reshape(&[count])?)?.unsqueeze(1)?)?;
    }
    // The target itself would contribute the margin.
    let own = Tensor::arange(classes, 0, 1, DType::I64, x.device())?.eq(&index)?;
    let zero = Tensor::zeros(&[], costs.dtype(), x.device())?;
    let loss = own.select_where(&zero, &costs)?.sum(&[1], false)?.div_scalar(classes as f64)?;
    // The loss of a single row has the shape of its target.
    let loss = if count == 1 { loss.reshape(target.shape())? } else { loss };
    reduced(&loss, call.int(5), x.dtype())
}

fn multilabel_margin_loss(call: &Call<'_>) -> Result<Tensors> {
    let (x, target) = (call.tensor(0), call.tensor(1));
    let rows = wide(&rows_of_classes(x)?)?;
    refuse_if!(
        target.shape() != x.shape()
            && !(target.rank() < 2 && x.rank() < 2 && target.elements() == x.elements()),
        "inconsistent target size: {:?} for input of size: {:?}",
        target.shape(),
        x.shape()
    );
    check_classes(target)?;
    let [count, classes] = [rows.shape()[0], rows.shape()[1]];
    let target = target.reshape(&[count, classes])?;
    // Targets after the first −1 are ignored.
    let counts = target.lt_scalar(0)?.to_dtype(DType::I64)?.cumsum(1)?.eq_scalar(0)?;
    let index = target.clamp(0, classes as i64 - 1)?;
    let zero = Tensor::zeros(&[], rows.dtype(), x.device())?;
    let is_target = Tensor::zeros(&[count, classes], DType::I64, x.device())?
        .scatter_add(1, &index, &counts.to_dtype(DType::I64)?)?
        .gt_scalar(0)?;
    // The dimensions are rows, targets, classes.
    let of_targets = rows.gather(1, &index)?.unsqueeze(2)?;
    let distance = rows.unsqueeze(1)?.sub(&of_targets)?.add_scalar(1.0)?.relu()?;
    let pairs = counts.unsqueeze(2)?.logical_and(&is_target.logical_not()?.unsqueeze(1)?)?;
    let loss = pairs.select_where(&distance, &zero)?.sum(&[1, 2], false)?.div_scalar(classes as f64)?;
    let loss = if x.rank() < 2 { loss.reshape(())? } else { loss };
    reduced(&loss, call.int(2), x.dtype())
}
