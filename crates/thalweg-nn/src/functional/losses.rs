//! Losses over classes.

use std::panic::Location;

use smallvec::SmallVec;
use thalweg_ir::{Scalar, Shape};
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
/// of i64. One kernel, and one for the mean. A class out of range makes the result NaN, and is an error at the next wait for the device.
#[track_caller]
pub fn cross_entropy_with(input: &Tensor, target: &Tensor, options: ClassLossOptions) -> Result<Tensor> {
    let location = Location::caller();
    in_call("cross_entropy", &[input, target], location, || {
        if !(0.0..=1.0).contains(&options.label_smoothing) {
            return Err(Error::invalid(format!(
                "label_smoothing {} is not between 0 and 1",
                options.label_smoothing
            )));
        }
        class_loss(input, target, options, location)
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
        let reduction = match options.reduction {
            Reduction::None => 0_i64,
            Reduction::Mean => 1,
            Reduction::Sum => 2,
        };
        let (none, ignored): (Argument<'_>, Argument<'_>) = (Argument::None, options.ignore_index.into());
        let arguments = [log_probabilities.into(), target.into(), none, reduction.into(), ignored];
        let label = label_at("nll_loss", location);
        Ok(operator!("nll_loss").call(&arguments, None, label)?.swap_remove(0))
    })
}

fn class_loss(
    input: &Tensor,
    target: &Tensor,
    options: ClassLossOptions,
    location: &'static Location<'static>,
) -> Result<Tensor> {
    if input.rank() == 0 {
        return Err(Error::invalid("the input has no dimension of classes"));
    }
    let class_dimension = usize::from(input.rank() > 1);
    let mut rows: Shape = input.shape().into();
    let classes = rows.remove(class_dimension);
    if target.shape() != rows.as_slice() {
        return Err(Error::invalid(format!("the target is {:?}, not {rows:?}", target.shape())));
    }
    let operator = match options.label_smoothing {
        0.0 => operator!("thalweg::cross_entropy"),
        _ => operator!("thalweg::cross_entropy_smoothed"),
    };
    let ignored = Scalar::I64(options.ignore_index);
    let dimension = [class_dimension as i64];
    let mut arguments: SmallVec<[Argument<'_>; 6]> = SmallVec::from_slice(&[
        input.into(),
        target.into(),
        Scalar::I64(classes as i64).into(),
        ignored.into(),
    ]);
    if options.label_smoothing != 0.0 {
        arguments.push(Scalar::F64(options.label_smoothing).into());
    }
    arguments.push(Argument::Ints(&dimension));
    let losses = operator.call(&arguments, None, label_at("cross_entropy", location))?.swap_remove(0);
    match options.reduction {
        Reduction::None => Ok(losses),
        Reduction::Sum => losses.sum(&[], false),
        Reduction::Mean if rows.is_empty() => {
            mean(&losses.unsqueeze(0)?, &target.unsqueeze(0)?, ignored, location)
        }
        Reduction::Mean => mean(&losses, target, ignored, location),
    }
}

/// Returns the mean of losses over the targets that are not ignored.
fn mean(
    losses: &Tensor,
    target: &Tensor,
    ignored: Scalar,
    location: &'static Location<'static>,
) -> Result<Tensor> {
    let dimensions: SmallVec<[i64; 6]> = (0..losses.rank() as i64).collect();
    let arguments = [losses.into(), target.into(), ignored.into(), Argument::Ints(&dimensions)];
    let label = label_at("mean_over_classes", location);
    Ok(operator!("thalweg::mean_over_classes").call(&arguments, None, label)?.swap_remove(0))
}
