//! Losses over classes.

use std::panic::Location;

use thalweg_derive::in_call;
use thalweg_runtime::{Error, Result, options, refuse_if};

use super::operator;
use thalweg_tensor::Tensor;
use thalweg_tensor::caller::{in_call, label_at};
use thalweg_tensor::dispatch::Argument;

/// The way in which the losses of all rows are reduced.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Reduction {
    /// The losses are returned unreduced.
    None,
    /// The sum of the losses divided by the number of rows whose class is not ignored; NaN if all are.
    #[default]
    Mean,
    /// The sum of the losses.
    Sum,
}

impl Reduction {
    /// Returns the reduction of losses.
    #[track_caller]
    pub fn of(self, losses: &Tensor) -> Result<Tensor> {
        match self {
            Self::None => Ok(losses.clone()),
            Self::Mean => losses.mean(&[], false),
            Self::Sum => losses.sum(&[], false),
        }
    }
}

impl From<Reduction> for Argument<'_> {
    /// Returns the number of the reduction in ATen's operators.
    fn from(reduction: Reduction) -> Self {
        Self::Int(match reduction {
            Reduction::None => 0,
            Reduction::Mean => 1,
            Reduction::Sum => 2,
        })
    }
}

options! {
    /// The options of a loss over classes, with PyTorch's defaults.
    #[derive(Clone, Copy, PartialEq, Debug)]
    pub struct ClassLossOptions {
        /// The class whose rows have loss 0 and are ignored in the mean.
        pub ignore_index: i64 = -100,
        /// The fraction of a target, from 0 to 1, that is spread evenly over all classes. Only cross entropy uses it.
        pub label_smoothing: f64 = 0.0,
        /// The reduction of the losses.
        pub reduction: Reduction = Reduction::Mean,
    }
}

/// Returns the result of [`cross_entropy_with`] for PyTorch's defaults: the mean over the rows of −log softmax(input) at the
/// row's class.
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let x = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 1.0], &[2, 2], &device)?;
/// let t = Tensor::from_values([0i64, 1], &device)?;
/// assert_eq!(functional::cross_entropy(&x, &t)?.to_string(), "tensor(0.2201, device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
#[track_caller]
pub fn cross_entropy(input: &Tensor, target: &Tensor) -> Result<Tensor> {
    cross_entropy_with(input, target, ClassLossOptions::default())
}

/// Returns −log softmax(input) at the class of each row: input (classes), (rows, classes) or (rows, classes, …), target () or
/// (rows, …) of i64; or −Σ target · log softmax(input), where the target has the input's shape and assigns every class a
/// probability. This takes one kernel for classes, and one for the mean. In a region of [`autocast`](thalweg_tensor::autocast)
/// the result is f32. If a class is out of range, the result is NaN, and the next wait for the device returns an error.
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let x = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 1.0], &[2, 2], &device)?;
/// let t = Tensor::from_values([0i64, 1], &device)?;
/// let y = functional::cross_entropy_with(&x, &t, ClassLossOptions { label_smoothing: 0.5, ..Default::default() })?;
/// assert_eq!(y.to_string(), "tensor(0.5951, device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
#[track_caller]
pub fn cross_entropy_with(input: &Tensor, target: &Tensor, options: ClassLossOptions) -> Result<Tensor> {
    let location = Location::caller();
    in_call("cross_entropy", &[input, target], location, || {
        let arguments = [
            input.into(),
            target.into(),
            Argument::None,
            options.reduction.into(),
            options.ignore_index.into(),
            options.label_smoothing.into(),
        ];
        let label = label_at("cross_entropy", location);
        Ok(operator!("cross_entropy_loss").call(&arguments, None, label)?.swap_remove(0))
    })
}

/// Returns −input at the class of each row. The input contains logarithms of probabilities; shapes are the same as for
/// [`cross_entropy_with`].
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let x = Tensor::from_slice(&[-0.5f32, -1.0, -2.0, -0.25], &[2, 2], &device)?;
/// let t = Tensor::from_values([0i64, 1], &device)?;
/// assert_eq!(functional::nll_loss(&x, &t, Default::default())?.to_string(), "tensor(0.3750, device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
#[track_caller]
pub fn nll_loss(log_probabilities: &Tensor, target: &Tensor, options: ClassLossOptions) -> Result<Tensor> {
    let location = Location::caller();
    in_call("nll_loss", &[log_probabilities, target], location, || {
        refuse_if!(options.label_smoothing != 0.0, "only cross_entropy takes label_smoothing");
        let (none, ignored): (Argument<'_>, Argument<'_>) = (Argument::None, options.ignore_index.into());
        let arguments = [log_probabilities.into(), target.into(), none, options.reduction.into(), ignored];
        let label = label_at("nll_loss", location);
        Ok(operator!("nll_loss").call(&arguments, None, label)?.swap_remove(0))
    })
}

/// Returns half of the squared distance divided by the variance, plus half of the variance's logarithm
/// (`torch.nn.functional.gaussian_nll_loss`). Variances have the input's shape, that shape with a last extent of 1, or without
/// the last dimension. They are at least `eps`, and have no gradient below it. `full` adds half of ln 2π.
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let x = Tensor::from_values([1.0f32, 2.0], &device)?;
/// let t = Tensor::from_values([1.0f32, 3.0], &device)?;
/// let v = Tensor::from_values([1.0f32, 1.0], &device)?;
/// assert_eq!(functional::gaussian_nll_loss(&x, &t, &v, false, 1e-6, Reduction::Mean)?.to_string(), "tensor(0.2500, device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
#[in_call("gaussian_nll_loss", &[input, target, variance])]
pub fn gaussian_nll_loss(
    input: &Tensor,
    target: &Tensor,
    variance: &Tensor,
    full: bool,
    eps: f64,
    reduction: Reduction,
) -> Result<Tensor> {
    let is_without_last = variance.rank() + 1 == input.rank() && input.shape().starts_with(variance.shape());
    let variance = if is_without_last { variance.unsqueeze(-1)? } else { variance.clone() };
    // The limit applies to the value only; the gradient is not affected by it.
    let missing = variance.detach().clamp_min(eps)?.sub(&variance.detach())?;
    let variance = variance.add(&missing)?;
    let mut loss = input.sub(target)?.square()?.div(&variance)?.add(&variance.log()?)?.mul_scalar(0.5)?;
    if full {
        loss = loss.add_scalar(0.5 * std::f64::consts::TAU.ln())?;
    }
    reduction.of(&loss)
}

/// Returns the mean over a row's classes of −target · ln σ(x) − (1 − target) · ln σ(−x), times a weight per class
/// (`torch.nn.functional.multilabel_soft_margin_loss`).
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let x = Tensor::from_slice(&[1.0f32, -1.0], &[1, 2], &device)?;
/// let t = Tensor::from_slice(&[1.0f32, 0.0], &[1, 2], &device)?;
/// assert_eq!(functional::multilabel_soft_margin_loss(&x, &t, None, Reduction::Mean)?.to_string(), "tensor(0.3133, device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
#[in_call("multilabel_soft_margin_loss", &[input, target])]
pub fn multilabel_soft_margin_loss(
    input: &Tensor,
    target: &Tensor,
    weight: Option<&Tensor>,
    reduction: Reduction,
) -> Result<Tensor> {
    let rest = target.neg()?.add_scalar(1.0)?;
    let likelihood = target.mul(&input.log_sigmoid()?)?.add(&rest.mul(&input.neg()?.log_sigmoid()?)?)?;
    let weighted = weight.map_or(Ok(likelihood.clone()), |weight| likelihood.mul(weight));
    reduction.of(&weighted?.neg()?.mean(&[-1], false)?)
}

/// Returns max(0, margin + distance to the positive − distance to the negative), with any distance function
/// (`torch.nn.functional.triplet_margin_with_distance_loss`). With `swap` the distance from the positive to the negative is used
/// if it is smaller.
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let a = Tensor::from_slice(&[0.0f32, 0.0], &[1, 2], &device)?;
/// let p = Tensor::from_slice(&[0.0f32, 1.0], &[1, 2], &device)?;
/// let n = Tensor::from_slice(&[0.0f32, 3.0], &[1, 2], &device)?;
/// let y = functional::triplet_margin_with_distance_loss([&a, &p, &n], |x, y| x.dist(y, 2), 3.0, false, Reduction::Mean)?;
/// assert_eq!(y.to_string(), "tensor(1., device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
///
/// # Errors
/// [`Error::is_invalid_argument`] if the margin is not above 0; those of the distance.
#[in_call("triplet_margin_with_distance_loss", &[anchor, positive, negative])]
pub fn triplet_margin_with_distance_loss(
    [anchor, positive, negative]: [&Tensor; 3],
    distance: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
    margin: f64,
    swap: bool,
    reduction: Reduction,
) -> Result<Tensor> {
    refuse_if!(margin.is_nan() || margin <= 0.0, "margin must be greater than 0, got {margin}");
    let (near, mut far) = (distance(anchor, positive)?, distance(anchor, negative)?);
    if swap {
        far = far.minimum(&distance(positive, negative)?)?;
    }
    reduction.of(&near.sub(&far)?.add_scalar(margin)?.clamp_min(0.0)?)
}
