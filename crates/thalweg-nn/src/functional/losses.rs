//! Losses over classes.

use std::panic::Location;

use thalweg_runtime::{Error, Result};

use super::operator;
use thalweg_tensor::Tensor;
use thalweg_tensor::caller::{in_call, label_at};
use thalweg_tensor::dispatch::Argument;

/// The way in which the losses of all rows are reduced.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Reduction {
    /// They are the result.
    None,
    /// Their sum over the number of rows whose class is not ignored; NaN where all are.
    #[default]
    Mean,
    /// Their sum.
    Sum,
}

impl Reduction {
    /// Returns losses as this reduction of them.
    ///
    /// # Errors
    /// Those of the reduction.
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
    /// Returns the number by which ATen's operators know it.
    fn from(reduction: Reduction) -> Self {
        Self::Int(match reduction {
            Reduction::None => 0,
            Reduction::Mean => 1,
            Reduction::Sum => 2,
        })
    }
}

/// The options of a loss over classes, with PyTorch's defaults.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ClassLossOptions {
    /// A class whose rows have loss 0 and do not count in the mean.
    pub ignore_index: i64,
    /// The part of a target, from 0 to 1, that is spread evenly over all classes. Only cross entropy takes it.
    pub label_smoothing: f64,
    /// The reduction of the losses.
    pub reduction: Reduction,
}

impl Default for ClassLossOptions {
    fn default() -> Self {
        Self { ignore_index: -100, label_smoothing: 0.0, reduction: Reduction::Mean }
    }
}

/// Returns [`cross_entropy_with`] PyTorch's defaults: the mean over the rows of −log softmax(input) at the row's class.
#[track_caller]
pub fn cross_entropy(input: &Tensor, target: &Tensor) -> Result<Tensor> {
    cross_entropy_with(input, target, ClassLossOptions::default())
}

/// Returns −log softmax(input) at the class of each row: input (classes), (rows, classes) or (rows, classes, …), target () or (rows, …)
/// of i64; or −Σ target · log softmax(input), where the target has the input's shape and gives every class a probability. One kernel for
/// classes, and one for the mean. In a region of [`autocast`](thalweg_tensor::autocast) the result is f32. A class out of range makes it NaN,
/// and is an error at the next wait for the device.
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

/// Returns −input at the class of each row, where the input holds logarithms of probabilities; shapes are those of
/// [`cross_entropy_with`].
#[track_caller]
pub fn nll_loss(log_probabilities: &Tensor, target: &Tensor, options: ClassLossOptions) -> Result<Tensor> {
    let location = Location::caller();
    in_call("nll_loss", &[log_probabilities, target], location, || {
        if options.label_smoothing != 0.0 {
            return Err(Error::invalid("only cross_entropy takes label_smoothing"));
        }
        let (none, ignored): (Argument<'_>, Argument<'_>) = (Argument::None, options.ignore_index.into());
        let arguments = [log_probabilities.into(), target.into(), none, options.reduction.into(), ignored];
        let label = label_at("nll_loss", location);
        Ok(operator!("nll_loss").call(&arguments, None, label)?.swap_remove(0))
    })
}
