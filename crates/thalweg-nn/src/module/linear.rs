//! Linear layers, embeddings, and changes of shape.

use std::panic::Location;

use thalweg_derive::enter;
use thalweg_runtime::{Activation, Device, Error, Result, options};
use thalweg_tensor::Tensor;
use thalweg_tensor::caller::outermost;
use thalweg_tensor::random::Generator;

use super::{Forward, Module, uniform, weight_and_bias};
use crate::functional;

/// A linear layer, `input · weightᵀ + bias`.
#[derive(Module, Clone, Debug)]
pub struct Linear {
    /// The weight, (out, in).
    #[module(parameter)]
    pub weight: Tensor,
    /// The bias, (out).
    #[module(parameter)]
    pub bias: Option<Tensor>,
}

impl Linear {
    /// Makes a layer from `inputs` to `outputs` features, with random parameters.
    #[enter]
    pub fn new(inputs: usize, outputs: usize, generator: &mut Generator, device: &Device) -> Result<Self> {
        let (weight, bias) = weight_and_bias(&[outputs, inputs], Some(outputs), generator, device)?;
        Ok(Self { weight, bias })
    }

    /// Makes a layer without a bias.
    #[enter]
    pub fn without_bias(
        inputs: usize,
        outputs: usize,
        generator: &mut Generator,
        device: &Device,
    ) -> Result<Self> {
        let (weight, bias) = weight_and_bias(&[outputs, inputs], None, generator, device)?;
        Ok(Self { weight, bias })
    }
}

impl Forward for Linear {
    #[enter]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        functional::linear(input, &self.weight, self.bias.as_ref())
    }
}

/// Two linear layers with GELU (by its tanh formula) or the rectified linear unit between them: the feed-forward part of a
/// transformer's block, in as few kernels as the library allows ([`functional::gelu_mlp`], [`functional::relu_mlp`]).
#[derive(Module, Clone, Debug)]
pub struct Mlp {
    /// The first layer, (hidden, in).
    pub expand: Linear,
    /// The second layer, (out, hidden).
    pub contract: Linear,
    /// The function between the layers.
    #[module(skip)]
    pub activation: Activation,
}

impl Mlp {
    /// Makes two layers, from `features` to `hidden` features and back, with random parameters and GELU.
    #[enter]
    pub fn new(features: usize, hidden: usize, generator: &mut Generator, device: &Device) -> Result<Self> {
        let expand = Linear::new(features, hidden, generator, device)?;
        let contract = Linear::new(hidden, features, generator, device)?;
        Ok(Self { expand, contract, activation: Activation::Gelu })
    }
}

impl Forward for Mlp {
    #[enter]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let weights = [&self.expand.weight, &self.contract.weight];
        let biases = [self.expand.bias.as_ref(), self.contract.bias.as_ref()];
        match self.activation {
            Activation::Gelu => functional::gelu_mlp(input, weights, biases),
            Activation::Relu => functional::relu_mlp(input, weights, biases),
        }
    }
}

/// A bilinear layer, `input1ᵀ · weight · input2 + bias` per output feature.
#[derive(Module, Clone, Debug)]
pub struct Bilinear {
    /// The weight, (out, in1, in2).
    #[module(parameter)]
    pub weight: Tensor,
    /// The bias, (out).
    #[module(parameter)]
    pub bias: Option<Tensor>,
}

impl Bilinear {
    /// Makes a layer with random parameters, from pairs of features.
    #[enter]
    pub fn new(
        inputs: [usize; 2],
        outputs: usize,
        bias: bool,
        generator: &mut Generator,
        device: &Device,
    ) -> Result<Self> {
        let bound = 1.0 / (inputs[0].max(1) as f64).sqrt();
        let weight = uniform(&[outputs, inputs[0], inputs[1]], bound, generator, device)?;
        let bias = bias.then(|| uniform(&[outputs], bound, generator, device)).transpose()?;
        Ok(Self { weight, bias })
    }

    /// Returns the result for inputs (…, in1) and (…, in2).
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the shapes do not fit.
    #[enter]
    pub fn forward(&self, input1: &Tensor, input2: &Tensor) -> Result<Tensor> {
        functional::bilinear(input1, input2, &self.weight, self.bias.as_ref())
    }
}

/// The rows of a weight at indices.
#[derive(Module, Clone, Debug)]
pub struct Embedding {
    /// The weight, (rows, features).
    #[module(parameter)]
    pub weight: Tensor,
    /// The row that has no gradient; a negative index is counted from the end.
    #[module(skip)]
    pub padding_idx: Option<i64>,
}

impl Embedding {
    /// Makes a table of `count` rows of `features` numbers, normally distributed.
    #[enter]
    pub fn new(count: usize, features: usize, generator: &mut Generator, device: &Device) -> Result<Self> {
        let weight = Tensor::normal(&[count, features], 0.0, 1.0, generator, device)?.requires_grad_()?;
        Ok(Self { weight, padding_idx: None })
    }

    /// Makes a table with a row of zeros for padding, which training does not change.
    ///
    /// # Errors
    /// Those of the allocation; [`Error::is_invalid_argument`] if there is no such row.
    #[enter]
    pub fn with_padding(
        count: usize,
        features: usize,
        padding_idx: usize,
        generator: &mut Generator,
        device: &Device,
    ) -> Result<Self> {
        if padding_idx >= count {
            let text = format!("Embedding: padding_idx {padding_idx} must be below the {count} embeddings");
            return Err(Error::invalid(text).at(outermost(Location::caller())));
        }
        let table = Self::new(count, features, generator, device)?;
        let row = table.weight.detach().narrow(0, padding_idx, 1)?;
        row.copy_(&Tensor::zeros(&[], row.dtype(), device)?)?;
        Ok(Self { padding_idx: Some(padding_idx as i64), ..table })
    }
}

impl Forward for Embedding {
    #[enter]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        functional::embedding(input, &self.weight, self.padding_idx)
    }
}

/// A module that returns its input.
#[derive(Module, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Identity;

impl Forward for Identity {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        Ok(input.clone())
    }
}

options! {
    /// A module that merges a range of dimensions.
    #[derive(Module, Clone, Copy, PartialEq, Eq, Debug)]
    #[module(skip)]
    pub struct Flatten {
        /// The first dimension of the range.
        pub start_dim: i64 = 1,
        /// The last dimension of the range.
        pub end_dim: i64 = -1,
    }
}

impl Forward for Flatten {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.flatten(self.start_dim, self.end_dim)
    }
}

/// A module that splits a dimension into several.
#[derive(Module, Clone, PartialEq, Eq, Debug)]
#[module(skip)]
pub struct Unflatten {
    /// The dimension.
    pub dim: i64,
    /// The new extents; one of them may be −1.
    pub unflattened_size: Vec<i64>,
}

impl Forward for Unflatten {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.unflatten(self.dim, &self.unflattened_size)
    }
}
