//! Normalization.

use std::panic::Location;

use thalweg_derive::{enter, in_call};
use thalweg_ir::DType;
use thalweg_runtime::{Device, Error, Result, invalid, options, refuse, refuse_if};
use thalweg_tensor::caller::outermost;
use thalweg_tensor::{Tensor, no_grad};

use super::{Forward, Module, constant};
use crate::functional::{self, call, operator};

/// Returns a buffer of f32 with one value everywhere.
fn buffer(shape: &[usize], value: f64, device: &Device) -> Result<Tensor> {
    Tensor::full(shape, value, DType::F32, device)
}

options! {
    /// The options of [`BatchNorm`] and [`InstanceNorm`].
    #[derive(Clone, Copy, PartialEq, Debug)]
    pub struct BatchNormOptions {
        /// The number that is added to the variance.
        pub eps: f64 = 1e-5,
        /// The weight of a batch in the running statistics; without it they are the mean over all batches.
        pub momentum: Option<f64> = Some(0.1),
        /// Whether there are a weight and a bias.
        pub affine: bool = true,
        /// Whether there are running statistics.
        pub track_running_stats: bool = true,
    }
}

impl BatchNormOptions {
    /// Returns PyTorch's defaults of instance normalization: no weight, bias and running statistics.
    pub fn instance() -> Self {
        Self { affine: false, track_running_stats: false, ..Self::default() }
    }
}

/// The tensors of batch and instance normalization.
#[derive(Module, Clone, Debug)]
struct Statistics {
    #[module(parameter)]
    weight: Option<Tensor>,
    #[module(parameter)]
    bias: Option<Tensor>,
    #[module(buffer)]
    running_mean: Option<Tensor>,
    #[module(buffer)]
    running_var: Option<Tensor>,
    #[module(buffer)]
    num_batches_tracked: Option<Tensor>,
    #[module(skip)]
    options: BatchNormOptions,
    #[module(training)]
    training: bool,
}

impl Statistics {
    fn new(features: usize, options: BatchNormOptions, device: &Device) -> Result<Self> {
        let shape = [features];
        let affine = |value| options.affine.then(|| constant(&shape, value, device)).transpose();
        let running = |value| options.track_running_stats.then(|| buffer(&shape, value, device)).transpose();
        let count = || Tensor::zeros(&[], DType::I64, device);
        Ok(Self {
            weight: affine(1.0)?,
            bias: affine(0.0)?,
            running_mean: running(0.0)?,
            running_var: running(1.0)?,
            num_batches_tracked: options.track_running_stats.then(count).transpose()?,
            options,
            training: true,
        })
    }

    /// Returns the tensor arguments of the operators, without the input.
    fn tensors(&self) -> [Option<&Tensor>; 4] {
        [&self.weight, &self.bias, &self.running_mean, &self.running_var].map(Option::as_ref)
    }
}

/// Normalization of channels over the batch and all positions: (batch, channels, …) to the same. In training the statistics are
/// the batch's, and the running ones move towards them; in evaluation they are the running ones, if there are any.
#[derive(Module, Clone, Debug)]
pub struct BatchNorm {
    #[module(flatten)]
    statistics: Statistics,
}

/// Batch normalization of sequences and vectors.
pub type BatchNorm1d = BatchNorm;
/// Batch normalization of images.
pub type BatchNorm2d = BatchNorm;
/// Batch normalization of volumes.
pub type BatchNorm3d = BatchNorm;

impl BatchNorm {
    /// Makes a layer over `features` channels.
    #[enter]
    pub fn new(features: usize, options: BatchNormOptions, device: &Device) -> Result<Self> {
        Ok(Self { statistics: Statistics::new(features, options, device)? })
    }

    /// Counts the batch, and returns the weight of the batch in the running statistics.
    fn momentum(&self) -> Result<f64> {
        let Statistics { options, num_batches_tracked, .. } = &self.statistics;
        let Some(count) = num_batches_tracked else { return Ok(options.momentum.unwrap_or(0.0)) };
        no_grad(|| count.copy_(&count.add_scalar(1i64)?))?;
        match options.momentum {
            Some(momentum) => Ok(momentum),
            // The mean over all batches needs their number, which is on the device.
            None => Ok(1.0 / count.item::<i64>()? as f64),
        }
    }
}

impl Forward for BatchNorm {
    /// *Blocks* in training without a momentum, which needs the number of batches on the host.
    #[in_call("BatchNorm", &[input])]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let Statistics { training, options, .. } = &self.statistics;
        let [weight, bias, mean, variance] = self.statistics.tensors();
        // An empty batch has no statistics towards which the running ones could move.
        let is_kept = *training && input.elements() == 0;
        let [mean, variance] = [mean, variance].map(|running| running.filter(|_| !is_kept).into());
        let (weight, bias) = (weight.into(), bias.into());
        let of_batch = *training || self.statistics.running_mean.is_none();
        refuse_if!(
            of_batch && input.rank() >= 2 && input.elements() == input.shape()[1],
            "Expected more than 1 value per channel when training, got input size torch.Size({:?})",
            input.shape()
        );
        let momentum = if *training { self.momentum()? } else { options.momentum.unwrap_or(0.0) };
        let numbers = [of_batch.into(), momentum.into(), options.eps.into(), true.into()];
        let [of_batch, momentum, eps, cudnn] = numbers;
        let arguments = [input.into(), weight, bias, mean, variance, of_batch, momentum, eps, cudnn];
        call(operator!("batch_norm"), &arguments, Location::caller())
    }
}

/// Normalization of the channels of each instance over its positions along `AXES` axes: (batch, channels, …) or (channels, …) to
/// the same.
#[derive(Module, Clone, Debug)]
pub struct InstanceNorm<const AXES: usize> {
    #[module(flatten)]
    statistics: Statistics,
}

impl<const AXES: usize> InstanceNorm<AXES> {
    /// Makes a layer over `features` channels; PyTorch's defaults are [`BatchNormOptions::instance`].
    #[enter]
    pub fn new(features: usize, options: BatchNormOptions, device: &Device) -> Result<Self> {
        Ok(Self { statistics: Statistics::new(features, options, device)? })
    }
}

impl<const AXES: usize> Forward for InstanceNorm<AXES> {
    #[in_call("InstanceNorm", &[input])]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        if input.rank() == AXES + 1 {
            return self.forward(&input.unsqueeze(0)?)?.squeeze(0);
        }
        if input.rank() != AXES + 2 {
            refuse!("expected {}D or {}D input (got {}D input)", AXES + 1, AXES + 2, input.rank());
        }
        let Statistics { training, options, .. } = &self.statistics;
        let [weight, bias, mean, variance] = self.statistics.tensors().map(Into::into);
        let of_input = *training || self.statistics.running_mean.is_none();
        let momentum = options.momentum.unwrap_or(0.0).into();
        let (of_input, eps) = (of_input.into(), options.eps.into());
        let arguments = [input.into(), weight, bias, mean, variance, of_input, momentum, eps, true.into()];
        call(operator!("instance_norm"), &arguments, Location::caller())
    }
}

/// Layer normalization over the last dimensions.
#[derive(Module, Clone, Debug)]
pub struct LayerNorm {
    /// The weight, with the extents of the last dimensions.
    #[module(parameter)]
    pub weight: Option<Tensor>,
    /// The bias, with the extents of the last dimensions.
    #[module(parameter)]
    pub bias: Option<Tensor>,
    /// The extents of the last dimensions.
    #[module(skip)]
    pub normalized_shape: Vec<usize>,
    /// The number that is added to the variance.
    #[module(skip)]
    pub eps: f64,
}

impl LayerNorm {
    /// Makes a layer over `features` features, with a weight of ones and a bias of zeros.
    #[enter]
    pub fn new(features: usize, device: &Device) -> Result<Self> {
        Self::over(&[features], device)
    }

    /// Makes a layer over several dimensions.
    #[enter]
    pub fn over(normalized_shape: &[usize], device: &Device) -> Result<Self> {
        let weight = Some(constant(normalized_shape, 1.0, device)?);
        let bias = Some(constant(normalized_shape, 0.0, device)?);
        Ok(Self { weight, bias, normalized_shape: normalized_shape.into(), eps: 1e-5 })
    }

    /// Returns the result, and the input unchanged for a residual connection: see [`functional::layer_norm_fork`].
    ///
    /// # Errors
    /// Those of [`functional::layer_norm_fork`]; [`Error::is_invalid_argument`] without weight and bias.
    #[enter]
    pub fn forward_fork(&self, input: &Tensor) -> Result<[Tensor; 2]> {
        match (&self.weight, &self.bias) {
            (Some(weight), Some(bias)) => functional::layer_norm_fork(input, weight, bias, self.eps),
            _ => {
                Err(invalid!("LayerNorm: a fork takes a weight and a bias").at(outermost(Location::caller())))
            }
        }
    }

    /// Returns the result for the sum of an input and a branch, and the sum itself: see [`functional::add_layer_norm`].
    ///
    /// # Errors
    /// Those of [`functional::add_layer_norm`]; [`Error::is_invalid_argument`] without weight and bias.
    #[enter]
    pub fn forward_add(&self, input: &Tensor, branch: &Tensor) -> Result<[Tensor; 2]> {
        match (&self.weight, &self.bias) {
            (Some(weight), Some(bias)) => functional::add_layer_norm(input, branch, weight, bias, self.eps),
            _ => Err(invalid!("LayerNorm: a sum is normalized with a weight and a bias")
                .at(outermost(Location::caller()))),
        }
    }
}

impl Forward for LayerNorm {
    #[enter]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let (weight, bias) = (self.weight.as_ref(), self.bias.as_ref());
        functional::layer_norm(input, &self.normalized_shape, weight, bias, self.eps)
    }
}

/// Normalization of the last dimensions by the root of their mean square.
#[derive(Module, Clone, Debug)]
pub struct RMSNorm {
    /// The weight, with the extents of the last dimensions.
    #[module(parameter)]
    pub weight: Option<Tensor>,
    /// The extents of the last dimensions.
    #[module(skip)]
    pub normalized_shape: Vec<usize>,
    /// The number that is added to the mean square; by default the dtype's machine epsilon.
    #[module(skip)]
    pub eps: Option<f64>,
}

impl RMSNorm {
    /// Makes a layer with a weight of ones.
    #[enter]
    pub fn new(normalized_shape: &[usize], device: &Device) -> Result<Self> {
        let weight = Some(constant(normalized_shape, 1.0, device)?);
        Ok(Self { weight, normalized_shape: normalized_shape.into(), eps: None })
    }
}

impl Forward for RMSNorm {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let shape = thalweg_tensor::dispatch::as_ints(&self.normalized_shape);
        let arguments = [input.into(), shape.into(), self.weight.as_ref().into(), self.eps.into()];
        call(operator!("rms_norm"), &arguments, Location::caller())
    }
}

/// Normalization of groups of channels over all their positions: (batch, channels, …) to the same.
#[derive(Module, Clone, Debug)]
pub struct GroupNorm {
    /// The weight, (channels).
    #[module(parameter)]
    pub weight: Option<Tensor>,
    /// The bias, (channels).
    #[module(parameter)]
    pub bias: Option<Tensor>,
    /// The number of groups.
    #[module(skip)]
    pub num_groups: usize,
    /// The number that is added to the variance.
    #[module(skip)]
    pub eps: f64,
}

impl GroupNorm {
    /// Makes a layer over `channels` channels in `num_groups` groups, with a weight of ones and a bias of zeros.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the groups do not divide the channels.
    #[enter]
    pub fn new(num_groups: usize, channels: usize, device: &Device) -> Result<Self> {
        if num_groups == 0 || !channels.is_multiple_of(num_groups) {
            let text = format!("num_channels ({channels}) must be divisible by num_groups ({num_groups})");
            return Err(Error::invalid(text).at(outermost(Location::caller())));
        }
        let [weight, bias] = [1.0, 0.0].map(|value| constant(&[channels], value, device));
        Ok(Self { weight: Some(weight?), bias: Some(bias?), num_groups, eps: 1e-5 })
    }
}

impl Forward for GroupNorm {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let groups = (self.num_groups as i64).into();
        let (weight, bias) = (self.weight.as_ref().into(), self.bias.as_ref().into());
        let arguments = [input.into(), groups, weight, bias, self.eps.into()];
        call(operator!("group_norm"), &arguments, Location::caller())
    }
}

/// Normalization of each element by a power of the sum of squares of its neighbours among the channels.
#[derive(Module, Clone, Copy, PartialEq, Debug)]
#[module(skip)]
pub struct LocalResponseNorm {
    /// The number of channels that are summed.
    pub size: usize,
    /// The factor of the sum.
    pub alpha: f64,
    /// The power.
    pub beta: f64,
    /// The number that is added to the sum.
    pub k: f64,
}

impl LocalResponseNorm {
    /// Makes a layer over `size` channels, with PyTorch's defaults.
    pub fn new(size: usize) -> Self {
        Self { size, alpha: 1e-4, beta: 0.75, k: 1.0 }
    }
}

impl Forward for LocalResponseNorm {
    #[enter]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        functional::local_response_norm(input, self.size, self.alpha, self.beta, self.k)
    }
}
