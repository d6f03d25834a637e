//! The setting that every part of the study works with: a device, two networks of one shape, inputs.

use std::fmt;

use thalweg::module::{Forward, Transformer, TransformerOptions};
use thalweg::random::Generator;
use thalweg::{DType, Device, Result, Tensor};

/// The number of sequences of a batch, and the maximum number of tokens of each.
pub const BATCH: usize = 4;
pub const TOKENS: usize = 64;

/// The sizes of a layer of the networks, so small that launching costs more than computing.
const SIZES: TransformerOptions =
    TransformerOptions { vocabulary: 128, context: TOKENS, layers: 1, features: 64, heads: 4 };

/// The number of different inputs.
const INPUTS: usize = 3;

pub struct Setting {
    pub device: Device,
    pub rounds: usize,
    layers: usize,
    /// Two networks of the same shape, with different parameters at different addresses.
    pub networks: [Network; 2],
    /// Tokens, each (batch, tokens).
    pub inputs: Vec<Tensor>,
}

/// A transformer's forward pass.
#[derive(Clone)]
pub struct Network(Transformer);

impl Network {
    /// Maps tokens (batch, tokens) to scores (tokens, batch, vocabulary).
    pub fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        self.0.forward(tokens)
    }
}

impl Setting {
    pub fn new(device: Device, rounds: usize, layers: usize) -> Result<Self> {
        let sizes = TransformerOptions { layers, ..SIZES };
        let network = |seed| Transformer::new(sizes, &mut Generator::new(seed), &device).map(Network);
        let networks = [network(0)?, network(1)?];
        let mut generator = Generator::new(2);
        let inputs = (0..INPUTS).map(|_| tokens(TOKENS, &mut generator, &device)).collect::<Result<_>>()?;
        Ok(Self { device, rounds, layers, networks, inputs })
    }

    /// Returns the network that most parts of the study use.
    pub fn network(&self) -> &Network {
        &self.networks[0]
    }

    /// Returns the bits of a network's eager outputs for each input.
    pub fn expected(&self, network: &Network) -> Result<Vec<Vec<u32>>> {
        self.inputs.iter().map(|input| bits(&network.forward(input)?)).collect()
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (layers, TransformerOptions { features, heads, .. }) = (self.layers, SIZES);
        write!(
            f,
            "the forward pass of a transformer of {layers} layers, {features} features and {heads} heads, f32, over {BATCH} \
             sequences of {TOKENS} tokens"
        )
    }
}

/// Returns random tokens, (batch, `count`).
pub fn tokens(count: usize, generator: &mut Generator, device: &Device) -> Result<Tensor> {
    let values = (0..BATCH * count)
        .map(|_| generator.below(SIZES.vocabulary as u32).map(i64::from))
        .collect::<Result<Vec<i64>>>()?;
    Tensor::from_slice(&values, &[BATCH, count], device)
}

/// Returns a tensor that a graph reads, to be rewritten in place.
pub fn static_input(device: &Device) -> Result<Tensor> {
    Tensor::zeros(&[BATCH, TOKENS], DType::I64, device)
}

/// Returns the bits of a tensor of f32, by which outputs are compared. *Blocks*.
pub fn bits(tensor: &Tensor) -> Result<Vec<u32>> {
    Ok(tensor.to_vec::<f32>()?.into_iter().map(f32::to_bits).collect())
}
