//! Losses. Elementwise ones are computed in f32 for 16-bit floats, and rounded at the end.

use thalweg_ir::{DType, Scalar, Shape, broadcast_shapes};
use thalweg_runtime::{Error, Label, OutOfRangeReport, RangeOf, Result, invalid, refuse, refuse_if};

use super::Body::Composite;
use super::{call, operators, single};
use crate::autocast::dtype_in_full;
use crate::caller::label_at;
use crate::dispatch::{Argument, Arguments, Call, Operator, built_in};
use crate::dtype_name::named;
use crate::loops::{LoopArguments, Points};
use crate::tensor::{Tensor, Tensors};

/// Returns the loops of a loss: one for the sum over dimensions, and one for every element.
macro_rules! loss {
    ($name:literal) => {
        [built_in!(concat!("thalweg::", $name))?, built_in!(concat!("thalweg::", $name, "_elements"))?]
    };
}

operators! {
    /// Reports classes that are out of range, and not the one that is ignored. Returns one element, which nothing is written to.
    "thalweg::check_classes(Tensor target, int classes, int ignored) -> Tensor" = Composite(check_classes);
    /// Returns (self − target)², reduced: 0 for none, 1 for the mean, 2 for the sum.
    "mse_loss(Tensor self, Tensor target, int reduction=Mean) -> Tensor"
        fn mse_loss(target: tensor) = Composite(|call| of_pair(call, loss!("mse_loss"), call.int(2), &[])), autocast: Full;
    /// Returns |self − target|, reduced.
    "l1_loss(Tensor self, Tensor target, int reduction=Mean) -> Tensor"
        fn l1_loss(target: tensor) = Composite(|call| of_pair(call, loss!("l1_loss"), call.int(2), &[])), autocast: Full;
    /// Returns (self − target)² / (2 · beta) where the difference is below beta, else |self − target| − beta / 2, reduced.
    "smooth_l1_loss(Tensor self, Tensor target, int reduction=Mean, float beta=1.0) -> Tensor"
        fn smooth_l1_loss(target: tensor) = Composite(smooth_l1_loss), autocast: Full;
    /// Returns (self − target)² / 2 where the difference is at most delta, else delta · (|self − target| − delta / 2), reduced.
    "huber_loss(Tensor self, Tensor target, int reduction=Mean, float delta=1.0) -> Tensor"
        fn huber_loss(target: tensor) = Composite(huber_loss), autocast: Full;
    /// Returns −target · ln self − (1 − target) · ln (1 − self), with logarithms of at least −100, times a weight, reduced.
    "binary_cross_entropy(Tensor self, Tensor target, Tensor? weight=None, int reduction=Mean) -> Tensor"
        fn binary_cross_entropy(target: tensor) = Composite(binary_cross_entropy), autocast: Banned;
    /// Returns the binary cross entropy of sigmoid(self), without overflow, times a weight, reduced.
    "binary_cross_entropy_with_logits(Tensor self, Tensor target, Tensor? weight=None, Tensor? pos_weight=None, int reduction=Mean) -> Tensor"
        fn binary_cross_entropy_with_logits(target: tensor) = Composite(with_logits), autocast: Full;
    /// Returns target · (ln target − self), reduced; with `log_target` the target is a logarithm too.
    "kl_div(Tensor self, Tensor target, int reduction=Mean, *, bool log_target=False) -> Tensor"
        fn kl_div(target: tensor) = Composite(kl_div), autocast: Full;
    /// Returns ln (1 + e^(−self · target)), reduced.
    "soft_margin_loss(Tensor self, Tensor target, int reduction=Mean) -> Tensor"
        fn soft_margin_loss(target: tensor) = Composite(|call| of_pair(call, loss!("soft_margin_loss"), call.int(2), &[])), autocast: Full;
    /// Returns max(0, −target · (input1 − input2) + margin), reduced.
    "margin_ranking_loss(Tensor input1, Tensor input2, Tensor target, float margin=0.0, int reduction=Mean) -> Tensor"
        fn margin_ranking_loss(input2: tensor, target: tensor, margin: float, reduction: int)
        = Composite(|call| {
            let [a, b, target] = [0, 1, 2].map(|place| call.tensor(place));
            let loss = a.sub(b)?.mul(&target.neg()?)?.add_scalar(call.float(3))?.clamp_min_zero()?;
            reduced(&loss, call.int(4), loss.dtype())
        }), autocast: Full;
    /// Returns −self at each row's class, times the class's weight, reduced; rows whose class is `ignore_index` are ignored.
    "nll_loss(Tensor self, Tensor target, Tensor? weight=None, int reduction=Mean, SymInt ignore_index=-100) -> Tensor"
        = Composite(nll), autocast: Full;
    /// Returns −self at each row's class, for images of classes.
    "nll_loss2d(Tensor self, Tensor target, Tensor? weight=None, int reduction=Mean, SymInt ignore_index=-100) -> Tensor"
        = Composite(nll), autocast: Full;
    /// Returns −self at each row's class, for any number of dimensions.
    "nll_loss_nd(Tensor self, Tensor target, Tensor? weight=None, int reduction=Mean, SymInt ignore_index=-100) -> Tensor"
        = Composite(nll), autocast: Full;
    /// Returns −self at each row's class, reduced, and the sum of the classes' weights.
    "nll_loss_forward(Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index) -> (Tensor output, Tensor total_weight)"
        = Composite(nll_forward);
    /// Returns −self at each row's class, reduced, and the sum of the classes' weights, for images of classes.
    "nll_loss2d_forward(Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index) -> (Tensor output, Tensor total_weight)"
        = Composite(nll_forward);
    /// Returns −ln softmax(self) at each row's class, or weighted by probabilities of self's shape, reduced.
    "cross_entropy_loss(Tensor self, Tensor target, Tensor? weight=None, int reduction=Mean, SymInt ignore_index=-100, float label_smoothing=0.0) -> Tensor"
        = Composite(cross_entropy), autocast: Parts;
}

impl Tensor {
    /// Returns the greater of each element and 0.
    fn clamp_min_zero(&self) -> Result<Self> {
        let location = std::panic::Location::caller();
        call(built_in!("clamp_min")?, &[self.into(), Argument::Scalar(0.into())], None, location)
    }
}

/// Returns the tensor in the dtype in which a loss is computed.
pub(super) fn wide(tensor: &Tensor) -> Result<Tensor> {
    tensor.to_dtype(tensor.dtype().compute())
}

/// Refuses weights of classes that do not have the input's dtype, with PyTorch's message.
pub(super) fn check_weights(weight: Option<&Tensor>, x: &Tensor) -> Result<()> {
    let expected = dtype_in_full(x);
    match weight.map(dtype_in_full).filter(|&found| found != expected) {
        Some(found) => Err(invalid!("expected scalar type {} but found {}", named(expected), named(found))),
        None => Ok(()),
    }
}

/// Returns a loss of elements, reduced and rounded to a dtype.
pub(super) fn reduced(loss: &Tensor, reduction: i64, dtype: DType) -> Result<Tensors> {
    let result = match reduction {
        0 => Ok(loss.clone()),
        1 => loss.mean(&[], false),
        2 => loss.sum(&[], false),
        other => Err(Error::value(format!("{other} is not a valid value for reduction"))),
    };
    result?.to_dtype(dtype).map(single)
}

/// Returns the dtype of a loss of the first two tensors.
fn dtype_of(call: &Call<'_>) -> Result<DType> {
    let (x, target) = (call.tensor(0), call.tensor(1));
    let dtype = x.dtype().promote(target.dtype()).map_err(|error| Error::invalid(error.to_string()))?;
    if dtype.is_floating_point() {
        return Ok(dtype);
    }
    Err(Error::not_implemented(format!("\"{}\" not implemented for '{dtype}'", call.operator.base_name())))
}

/// Returns a loss of the elements of the first two tensors, which are broadcast: one loop computes and reduces it.
fn of_pair(
    call: &Call<'_>,
    [sum, elements]: [&'static Operator; 2],
    reduction: i64,
    numbers: &[f64],
) -> Result<Tensors> {
    let x = call.tensor(0).to_dtype(dtype_of(call)?)?;
    let target = call.tensor(1);
    let mut arguments = LoopArguments::default();
    arguments.scalars.extend(numbers.iter().map(|&number| Scalar::F64(number)));
    if reduction == 0 {
        return elements.call_loop(&[&x, target], &arguments, None, call.label);
    }
    let mut shape = broadcast_shapes(x.shape(), target.shape())?;
    if shape.is_empty() {
        // A tensor without dimensions has none to reduce over, so one is added.
        shape.push(1);
    }
    let count = shape.iter().map(|&extent| extent as f64).product();
    arguments.scalars.push(Scalar::F64(match reduction {
        1 => count,
        2 => 1.0,
        other => return Err(Error::value(format!("{other} is not a valid value for reduction"))),
    }));
    arguments.points = Points::Reduced((0..shape.len()).collect());
    // A broadcast tensor is widened first, since its gradient is a sum.
    let expanded = |x: &Tensor| match x.shape() == shape.as_slice() {
        true => Ok(x.clone()),
        false => wide(x)?.expand(&shape),
    };
    let results = sum.call_loop(&[&expanded(&x)?, &expanded(target)?], &arguments, None, call.label)?;
    results.iter().map(|result| result.to_dtype(x.dtype())).collect()
}

/// Returns a loss of the first two tensors' elements, in its compute dtype.
fn elements_of_pair(call: &Call<'_>, [_, elements]: [&'static Operator; 2]) -> Result<Tensor> {
    let x = call.tensor(0).to_dtype(dtype_of(call)?.compute())?;
    let arguments = LoopArguments::default();
    Ok(elements.call_loop(&[&x, call.tensor(1)], &arguments, None, call.label)?.swap_remove(0))
}

fn smooth_l1_loss(call: &Call<'_>) -> Result<Tensors> {
    let beta = call.float(3);
    refuse_if!(beta < 0.0 || beta.is_nan(), "smooth_l1_loss does not support negative values for beta.");
    match beta {
        0.0 => of_pair(call, loss!("l1_loss"), call.int(2), &[]),
        _ => of_pair(call, loss!("smooth_l1_loss"), call.int(2), &[beta]),
    }
}

fn huber_loss(call: &Call<'_>) -> Result<Tensors> {
    let delta = call.float(3);
    refuse_if!(delta.is_nan() || delta <= 0.0, "huber_loss does not support non-positive values for delta.");
    of_pair(call, loss!("huber_loss"), call.int(2), &[delta])
}

/// Returns ln (1 + eˣ), without overflow at any x.
fn softplus(x: &Tensor) -> Result<Tensor> {
    let operator = built_in!("softplus")?;
    let arguments = [x.into(), Scalar::F64(1.0).into(), Scalar::F64(f64::INFINITY).into()];
    super::call(operator, &arguments, None, std::panic::Location::caller())
}

/// Returns the loss times the weight of its elements, if there is one.
fn weighted(loss: Tensor, weight: Option<&Tensor>) -> Result<Tensor> {
    match weight {
        Some(weight) => loss.mul(&wide(weight)?),
        None => Ok(loss),
    }
}

fn check_size(x: &Tensor, target: &Tensor, message: &str) -> Result<()> {
    if x.shape() == target.shape() {
        return Ok(());
    }
    Err(Error::value(
        message
            .replace("{target}", &format!("{:?}", target.shape()))
            .replace("{input}", &format!("{:?}", x.shape())),
    ))
}

fn binary_cross_entropy(call: &Call<'_>) -> Result<Tensors> {
    check_size(
        call.tensor(0),
        call.tensor(1),
        "Using a target size ({target}) that is different to the input size ({input}) is deprecated. Please ensure they have the \
         same size.",
    )?;
    match call.optional_tensor(2) {
        None => of_pair(call, loss!("binary_cross_entropy"), call.int(3), &[]),
        weight => {
            let losses = elements_of_pair(call, loss!("binary_cross_entropy"))?;
            reduced(&weighted(losses, weight)?, call.int(3), dtype_of(call)?)
        }
    }
}

fn with_logits(call: &Call<'_>) -> Result<Tensors> {
    check_size(
        call.tensor(0),
        call.tensor(1),
        "Target size ({target}) must be the same as input size ({input})",
    )?;
    let (weight, positive) = (call.optional_tensor(2), call.optional_tensor(3));
    if weight.is_none() && positive.is_none() {
        return of_pair(call, loss!("binary_cross_entropy_with_logits"), call.int(4), &[]);
    }
    let losses = match positive {
        None => elements_of_pair(call, loss!("binary_cross_entropy_with_logits"))?,
        Some(positive) => {
            // (1 − t) · x + (1 + (p − 1) · t) · ln (1 + e⁻ˣ).
            let (x, target) = (wide(call.tensor(0))?, wide(call.tensor(1))?);
            let scale = wide(positive)?.add_scalar(-1)?.mul(&target)?.add_scalar(1)?;
            let tail = scale.mul(&softplus(&x.neg()?)?)?;
            target.neg()?.add_scalar(1)?.mul(&x)?.add(&tail)?
        }
    };
    reduced(&weighted(losses, weight)?, call.int(4), dtype_of(call)?)
}

fn kl_div(call: &Call<'_>) -> Result<Tensors> {
    let log_target = call.bool(3);
    let loops = if log_target { loss!("kl_div_of_logarithms") } else { loss!("kl_div") };
    of_pair(call, loops, call.int(2), &[])
}

/// Refuses classes of a different shape than the rows, or of a dtype that classes cannot have, with PyTorch's message.
fn check_target(x: &Tensor, target: &Tensor, rows: &[usize]) -> Result<()> {
    let (shape, found) = (x.shape(), target.shape());
    let batch = found.first().copied().unwrap_or(0);
    if x.rank() > 1 && shape[0] != batch {
        return Err(Error::value(format!(
            "Expected input batch_size ({}) to match target batch_size ({batch}).",
            shape[0]
        )));
    }
    let refusal = match x.rank() {
        1 | 2 if found.len() > 1 => {
            Some(format!("0D or 1D target tensor expected, multi-target not supported, but got {found:?}"))
        }
        1 if found != rows => {
            return Err(Error::value(format!(
                "For 1D input, 1D target must have size 1, but got target size: {batch}"
            )));
        }
        4 if found.len() != 3 => Some(format!(
            "only batches of spatial targets supported (3D tensors) but got targets of dimension: {}",
            found.len()
        )),
        4 if found != rows => Some(format!("size mismatch (got input: {shape:?} , target: {found:?})")),
        _ if found != rows => Some(format!("Expected target size {rows:?}, got {found:?}")),
        _ => None,
    };
    let is_of_bytes = target.dtype() == DType::U8 && x.rank() <= 2;
    match refusal {
        Some(why) => Err(Error::invalid(why)),
        None if target.dtype() == DType::I64 || is_of_bytes => Ok(()),
        None => Err(invalid!("expected scalar type Long but found {}", named(target.dtype()))),
    }
}

/// The classes of a loss: their dimension, their number, and the rows' classes as int64.
struct Classes {
    dimension: usize,
    count: usize,
    target: Tensor,
}

impl Classes {
    fn of(x: &Tensor, target: &Tensor, weight: Option<&Tensor>) -> Result<Self> {
        refuse_if!(x.rank() == 0, "input tensor should be 1D or 2D");
        let dimension = usize::from(x.rank() > 1);
        let mut rows: Shape = x.shape().into();
        let count = rows.remove(dimension);
        check_target(x, target, &rows)?;
        check_weights(weight, x)?;
        if let Some(weight) = weight
            && weight.shape() != [count]
        {
            refuse!(
                "weight tensor should be defined either for all {count} classes or no classes but got weight tensor of shape: {:?}",
                weight.shape()
            );
        }
        Ok(Self { dimension, count, target: target.to_dtype(DType::I64)? })
    }

    /// Returns −x at each row's class times the weight of the class, and that weight, in the compute dtype of x: 0 where the row
    /// is ignored, NaN where the class does not exist.
    fn pick(&self, label: Label, x: &Tensor, weight: Option<&Tensor>, ignored: i64) -> Result<[Tensor; 2]> {
        let weight = weight.map(|weight| weight.detach().to_dtype(x.dtype())).transpose()?;
        let dimension = self.dimension as i64;
        let target = &self.target;
        let arguments = [x.into(), target.into(), weight.as_ref().into(), ignored.into(), dimension.into()];
        let results = built_in!("thalweg::nll_loss")?.call(&arguments, None, label)?;
        Ok([results[0].clone(), results[1].detach()])
    }

    /// Returns the mean of losses: divided by the weights' sum, or by the number of rows that are not ignored, in which a class
    /// out of range counts.
    fn mean(&self, losses: &Tensor, weights: Option<&Tensor>, ignored: i64) -> Result<Tensor> {
        if let Some(weights) = weights {
            return losses.sum(&[], false)?.div(&weights.sum(&[], false)?);
        }
        let (losses, target) = match losses.rank() {
            0 => (losses.unsqueeze(0)?, self.target.unsqueeze(0)?),
            _ => (losses.clone(), self.target.clone()),
        };
        let arguments = LoopArguments {
            scalars: [Scalar::I64(ignored)].into_iter().collect(),
            points: Points::Reduced((0..losses.rank()).collect()),
            ..LoopArguments::default()
        };
        let label = label_at("mean_over_classes", std::panic::Location::caller());
        let operator = built_in!("thalweg::mean_over_classes")?;
        Ok(operator.call_loop(&[&losses, &target], &arguments, None, label)?.swap_remove(0))
    }

    /// Returns a value per class, spread over a tensor's rows.
    fn spread(&self, values: &Tensor, shape: &[usize]) -> Result<Tensor> {
        let mut extents: Shape = Shape::from_elem(1, shape.len());
        extents[self.dimension] = self.count;
        values.reshape(&extents)?.expand(shape)
    }
}

/// Returns the loss at classes.
fn nll(call: &Call<'_>) -> Result<Tensors> {
    let (x, target, weight) = (call.tensor(0), call.tensor(1), call.optional_tensor(2));
    let (reduction, ignored) = (call.int(3), call.int(4));
    let classes = Classes::of(x, target, weight)?;
    let [losses, weights] = classes.pick(call.label, x, weight, ignored)?;
    let loss = match reduction {
        0 => losses,
        1 => classes.mean(&losses, weight.map(|_| &weights), ignored)?,
        2 => losses.sum(&[], false)?,
        other => return Err(Error::value(format!("{other} is not a valid value for reduction"))),
    };
    loss.to_dtype(x.dtype()).map(single)
}

/// Returns the loss at classes, and the sum of the classes' weights.
fn nll_forward(call: &Call<'_>) -> Result<Tensors> {
    let (x, target, weight) = (call.tensor(0), call.tensor(1), call.optional_tensor(2));
    let [_, weights] = Classes::of(x, target, weight)?.pick(call.label, &x.detach(), weight, call.int(4))?;
    let loss = nll(call)?.swap_remove(0);
    Ok(Tensors::from_iter([loss, weights.sum(&[], false)?.to_dtype(x.dtype())?]))
}

fn cross_entropy(call: &Call<'_>) -> Result<Tensors> {
    let (x, target, weight) = (call.tensor(0), call.tensor(1), call.optional_tensor(2));
    let (reduction, ignored, smoothing) = (call.int(3), call.int(4), call.float(5));
    if !(0.0..=1.0).contains(&smoothing) {
        refuse!("label_smoothing must be between 0.0 and 1.0. Got: {smoothing}");
    }
    if !(0..=2).contains(&reduction) {
        return Err(Error::value(format!("{reduction} is not a valid value for reduction")));
    }
    if target.dtype().is_floating_point() {
        return against_probabilities(call, smoothing);
    }
    let classes = Classes::of(x, target, weight)?;
    let (losses, weights) = match weight {
        None => (by_softmax(call, &classes, ignored, smoothing)?, None),
        Some(weight) if smoothing > 0.0 => smoothed(call, &classes, weight, ignored, smoothing)?,
        Some(_) => {
            let [_, weights] = classes.pick(call.label, &x.detach(), weight, ignored)?;
            (by_softmax(call, &classes, ignored, 0.0)?.mul(&weights)?, Some(weights))
        }
    };
    let loss = match reduction {
        0 => losses,
        1 => classes.mean(&losses, weights.as_ref(), ignored)?,
        _ => losses.sum(&[], false)?,
    };
    loss.to_dtype(dtype_in_full(x)).map(single)
}

/// Reports classes that are out of range under the name of the loss.
fn check_classes(call: &Call<'_>) -> Result<Tensors> {
    let _report = OutOfRangeReport::of("cross_entropy_loss", RangeOf::Classes);
    built_in!("thalweg::index_check")?.call(call.arguments, None, call.label)
}

/// Returns −ln softmax(x) at each row's class, or against targets smoothed over all classes, in the compute dtype of x.
fn by_softmax(call: &Call<'_>, classes: &Classes, ignored: i64, smoothing: f64) -> Result<Tensor> {
    let mut arguments = LoopArguments {
        scalars: [classes.count as i64, ignored].map(Scalar::I64).into_iter().collect(),
        points: Points::Reduced([classes.dimension].into_iter().collect()),
        ..LoopArguments::default()
    };
    let operator = match smoothing {
        0.0 => built_in!("thalweg::cross_entropy")?,
        _ => {
            arguments.scalars.push(Scalar::F64(smoothing));
            built_in!("thalweg::cross_entropy_smoothed")?
        }
    };
    let _report = OutOfRangeReport::of(call.label.operator, RangeOf::Classes);
    let checked =
        [Argument::Tensor(&classes.target), Argument::Int(classes.count as i64), Argument::Int(ignored)];
    built_in!("thalweg::check_classes")?.call(&checked, None, call.label)?;
    let tensors = [call.tensor(0), &classes.target];
    Ok(operator.call_loop(&tensors, &arguments, None, call.label)?.swap_remove(0))
}

/// Returns the losses against targets smoothed over all classes by their weights, and the weights of the rows' classes.
fn smoothed(
    call: &Call<'_>,
    classes: &Classes,
    weight: &Tensor,
    ignored: i64,
    smoothing: f64,
) -> Result<(Tensor, Option<Tensor>)> {
    let x = call.tensor(0);
    let logarithms = wide(x)?.log_softmax(classes.dimension as i64)?;
    let [losses, weights] = classes.pick(call.label, &logarithms, Some(weight), ignored)?;
    let weight = weight.detach().to_dtype(logarithms.dtype())?;
    let per_class = logarithms.mul(&classes.spread(&weight, x.shape())?)?;
    let spread = per_class.sum(&[classes.dimension as i64], false)?;
    let zero = Tensor::zeros(&[], spread.dtype(), spread.device())?;
    let spread = classes.target.ne_scalar(ignored)?.select_where(&spread, &zero)?;
    let part = -smoothing / classes.count as f64;
    let losses = losses.mul_scalar(1.0 - smoothing)?.add(&spread.mul_scalar(part)?)?;
    Ok((losses, Some(weights)))
}

/// Returns −Σ target · ln softmax(x), where the target assigns a probability to every class.
fn against_probabilities(call: &Call<'_>, smoothing: f64) -> Result<Tensors> {
    let (x, target, weight) = (call.tensor(0), call.tensor(1), call.optional_tensor(2));
    refuse_if!(
        x.shape() != target.shape() || x.rank() == 0,
        "a target of floats gives every class a probability: it has the input's shape {:?}, not {:?}; classes are of int64 (expected \
         scalar type Long but found {})",
        x.shape(),
        target.shape(),
        named(target.dtype())
    );
    let dimension = usize::from(x.rank() > 1);
    let classes = Classes { dimension, count: x.shape()[dimension], target: target.clone() };
    let mut logarithms = wide(x)?.log_softmax(dimension as i64)?;
    if let Some(weight) = weight {
        refuse_if!(
            weight.shape() != [classes.count],
            "cross_entropy: weight tensor should be defined either for all {} classes or no classes but got weight tensor of shape: {:?}",
            classes.count,
            weight.shape()
        );
        logarithms = logarithms.mul(&classes.spread(&wide(weight)?, x.shape())?)?;
    }
    let mut target = wide(target)?;
    if smoothing > 0.0 {
        target = target.mul_scalar(1.0 - smoothing)?.add_scalar(smoothing / classes.count as f64)?;
    }
    let losses = logarithms.mul(&target)?.sum(&[dimension as i64], false)?.neg()?;
    let loss = match call.int(3) {
        0 => losses,
        1 => {
            let rows = x.elements().checked_div(classes.count).unwrap_or(0);
            losses.sum(&[], false)?.mul_scalar(1.0 / rows as f64)?
        }
        _ => losses.sum(&[], false)?,
    };
    loss.to_dtype(dtype_in_full(x)).map(single)
}
