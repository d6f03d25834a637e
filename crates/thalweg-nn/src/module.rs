//! Modules: functions with parameters (`torch.nn`).

mod callable;
mod transformer;

use std::panic::Location;

use thalweg_ir::DType;
use thalweg_runtime::{Device, Result};

pub use callable::callable;
pub use transformer::{MultiheadAttention, Transformer, TransformerBlock, TransformerOptions};

use crate::functional::{self, WindowOptions};
use thalweg_tensor::Tensor;
use thalweg_tensor::caller::{at_line, enter};
use thalweg_tensor::random::Generator;

/// A function with parameters.
pub trait Module {
    /// The result for an input.
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor>;

    /// The parameters with their names (`weight`, `bias`; nested ones as `conv1.weight`).
    fn named_parameters(&self) -> Vec<(String, Tensor)>;

    /// The parameters.
    fn parameters(&self) -> Vec<Tensor> {
        self.named_parameters().into_iter().map(|(_, tensor)| tensor).collect()
    }
}

/// The names of a module's parameters behind a prefix.
pub fn prefixed(prefix: &str, module: &dyn Module) -> Vec<(String, Tensor)> {
    module.named_parameters().into_iter().map(|(name, tensor)| (format!("{prefix}.{name}"), tensor)).collect()
}

/// A weight and a bias as PyTorch starts them: uniform in ±1/√fan_in (`kaiming_uniform_` with a = √5).
fn weight_and_bias(shape: &[usize], generator: &mut Generator, device: &Device) -> Result<(Tensor, Tensor)> {
    let fan_in = at_line(Location::caller(), || Ok(thalweg_ir::element_count(&shape[1..])?))?;
    let bound = 1.0 / (fan_in.max(1) as f32).sqrt();
    let mut parameter =
        |shape: &[usize]| Tensor::uniform(shape, -bound, bound, generator, device)?.requires_grad_();
    Ok((parameter(shape)?, parameter(&shape[..1])?))
}

/// `input · weightᵀ + bias`.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Tensor,
    bias: Tensor,
}

impl Linear {
    /// A layer from `inputs` to `outputs` features, with random parameters.
    #[track_caller]
    pub fn new(inputs: usize, outputs: usize, generator: &mut Generator, device: &Device) -> Result<Self> {
        let _entered = enter(Location::caller());
        let (weight, bias) = weight_and_bias(&[outputs, inputs], generator, device)?;
        Ok(Self { weight, bias })
    }

    /// [`Module::forward`] plus an addend of the result's shape.
    #[track_caller]
    pub fn forward_add(&self, input: &Tensor, addend: &Tensor) -> Result<Tensor> {
        let _entered = enter(Location::caller());
        functional::linear_add(input, &self.weight, Some(&self.bias), addend)
    }
}

impl Module for Linear {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _entered = enter(Location::caller());
        functional::linear(input, &self.weight, Some(&self.bias))
    }

    fn named_parameters(&self) -> Vec<(String, Tensor)> {
        vec![("weight".into(), self.weight.clone()), ("bias".into(), self.bias.clone())]
    }
}

/// A two-dimensional convolution with a square kernel.
#[derive(Clone, Debug)]
pub struct Conv2d {
    weight: Tensor,
    bias: Tensor,
    options: WindowOptions,
}

impl Conv2d {
    /// A layer from `inputs` to `outputs` channels, with random parameters.
    #[track_caller]
    pub fn new(
        inputs: usize,
        outputs: usize,
        kernel: usize,
        options: WindowOptions,
        generator: &mut Generator,
        device: &Device,
    ) -> Result<Self> {
        let _entered = enter(Location::caller());
        let (weight, bias) = weight_and_bias(&[outputs, inputs, kernel, kernel], generator, device)?;
        Ok(Self { weight, bias, options })
    }
}

impl Module for Conv2d {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _entered = enter(Location::caller());
        functional::conv2d(input, &self.weight, Some(&self.bias), self.options)
    }

    fn named_parameters(&self) -> Vec<(String, Tensor)> {
        vec![("weight".into(), self.weight.clone()), ("bias".into(), self.bias.clone())]
    }
}

/// The rows of a weight at indices.
#[derive(Clone, Debug)]
pub struct Embedding {
    weight: Tensor,
}

impl Embedding {
    /// A table of `count` rows of `features` numbers, normally distributed.
    #[track_caller]
    pub fn new(count: usize, features: usize, generator: &mut Generator, device: &Device) -> Result<Self> {
        let _entered = enter(Location::caller());
        let weight = Tensor::normal(&[count, features], 0.0, 1.0, generator, device)?.requires_grad_()?;
        Ok(Self { weight })
    }

    /// The rows.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }
}

impl Module for Embedding {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _entered = enter(Location::caller());
        functional::embedding(input, &self.weight, None)
    }

    fn named_parameters(&self) -> Vec<(String, Tensor)> {
        vec![("weight".into(), self.weight.clone())]
    }
}

/// Layer normalization over the last dimension.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
}

impl LayerNorm {
    /// Over `features` features, with a weight of ones and a bias of zeros.
    #[track_caller]
    pub fn new(features: usize, device: &Device) -> Result<Self> {
        let _entered = enter(Location::caller());
        let weight = Tensor::ones(&[features], DType::F32, device)?.requires_grad_()?;
        let bias = Tensor::zeros(&[features], DType::F32, device)?.requires_grad_()?;
        Ok(Self { weight, bias })
    }
}

impl LayerNorm {
    /// The result, and the input itself for a residual connection: see [`functional::layer_norm_fork`].
    #[track_caller]
    pub fn forward_fork(&self, input: &Tensor) -> Result<[Tensor; 2]> {
        let _entered = enter(Location::caller());
        functional::layer_norm_fork(input, &self.weight, &self.bias, 1e-5)
    }
}

impl Module for LayerNorm {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _entered = enter(Location::caller());
        functional::layer_norm(input, self.weight.shape(), Some(&self.weight), Some(&self.bias), 1e-5)
    }

    fn named_parameters(&self) -> Vec<(String, Tensor)> {
        vec![("weight".into(), self.weight.clone()), ("bias".into(), self.bias.clone())]
    }
}
