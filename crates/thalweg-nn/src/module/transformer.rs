//! Attention, and a small decoder-only transformer.
//!
//! Activations are (tokens, batch, features), PyTorch's default for `torch.nn.MultiheadAttention`. The heads of queries, keys and
//! values are then matrices that products read and write in place: a layer copies nothing.

use std::panic::Location;

use thalweg_derive::enter;
use thalweg_runtime::{Device, Error, Result};

use super::{Embedding, Forward, LayerNorm, Linear, Module};
use crate::functional;
use thalweg_tensor::Tensor;
use thalweg_tensor::caller::outermost;
use thalweg_tensor::random::Generator;

/// Returns an error of the module that was entered last.
fn invalid(text: String) -> Error {
    Error::invalid(text).at(outermost(Location::caller()))
}

/// Returns the product of a factor and a number of features.
fn times(features: usize, count: usize) -> Result<usize> {
    features.checked_mul(count).ok_or_else(|| invalid(format!("{features} features are too many")))
}

/// Self-attention with several heads: (tokens, batch, features) to the same.
///
/// One projection computes queries, keys and values head by head, so that the products read them in place: the rows of its weight
/// are (head, query or key or value, feature of the head). [`MultiheadAttention`](super::MultiheadAttention) has PyTorch's order
/// of rows.
#[derive(Module, Clone, Debug)]
pub struct SelfAttention {
    #[module(name = "in_proj")]
    projection: Linear,
    #[module(name = "out_proj")]
    output: Linear,
    #[module(skip)]
    heads: usize,
    #[module(skip)]
    is_causal: bool,
}

impl SelfAttention {
    /// Creates a layer over `features` features, divided evenly among `heads` heads.
    #[enter]
    pub fn new(
        features: usize,
        heads: usize,
        is_causal: bool,
        generator: &mut Generator,
        device: &Device,
    ) -> Result<Self> {
        if heads == 0 || !features.is_multiple_of(heads) {
            return Err(invalid(format!("{features} features cannot be divided among {heads} heads")));
        }
        let projection = Linear::new(features, times(features, 3)?, generator, device)?;
        let output = Linear::new(features, features, generator, device)?;
        Ok(Self { projection, output, heads, is_causal })
    }

    /// Returns the heads' results joined, before the output layer.
    #[enter]
    fn heads_result(&self, input: &Tensor) -> Result<Tensor> {
        let &[tokens, batch, features] = input.shape() else {
            return Err(invalid(format!(
                "SelfAttention: the input is (tokens, batch, features), not {:?}",
                input.shape()
            )));
        };
        let packed = self.projection.forward(input)?;
        let packed = packed.reshape(&[tokens, batch * self.heads, 3, features / self.heads])?;
        functional::packed_attention(&packed, self.is_causal)?.reshape(&[tokens, batch, features])
    }
}

impl Forward for SelfAttention {
    #[enter]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.output.forward(&self.heads_result(input)?)
    }
}

/// A layer of a transformer: x + attention(norm(x)), then x + mlp(norm(x)), with GELU between the two products of the MLP.
#[derive(Module, Clone, Debug)]
pub struct TransformerBlock {
    #[module(name = "norm1")]
    attention_norm: LayerNorm,
    #[module(name = "self_attn")]
    attention: SelfAttention,
    #[module(name = "norm2")]
    mlp_norm: LayerNorm,
    #[module(name = "linear1")]
    expand: Linear,
    #[module(name = "linear2")]
    contract: Linear,
}

impl TransformerBlock {
    /// Creates a causal layer over `features` features, with four times as many inside the MLP.
    #[enter]
    pub fn new(features: usize, heads: usize, generator: &mut Generator, device: &Device) -> Result<Self> {
        Ok(Self {
            attention_norm: LayerNorm::new(features, device)?,
            attention: SelfAttention::new(features, heads, true, generator, device)?,
            mlp_norm: LayerNorm::new(features, device)?,
            expand: Linear::new(features, times(features, 4)?, generator, device)?,
            contract: Linear::new(times(features, 4)?, features, generator, device)?,
        })
    }
}

impl Forward for TransformerBlock {
    #[enter]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let [normalized, x] = self.attention_norm.forward_fork(input)?;
        let mixed = self.attention.heads_result(&normalized)?;
        let Linear { weight, bias } = &self.attention.output;
        let x = functional::linear_add(&mixed, weight, bias.as_ref(), &x)?;
        let [normalized, x] = self.mlp_norm.forward_fork(&x)?;
        let hidden = self.expand.forward(&normalized)?.gelu()?;
        functional::linear_add(&hidden, &self.contract.weight, self.contract.bias.as_ref(), &x)
    }
}

/// The sizes of a [`Transformer`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransformerOptions {
    /// The number of different tokens.
    pub vocabulary: usize,
    /// The maximum number of tokens of a sequence.
    pub context: usize,
    /// The number of layers.
    pub layers: usize,
    /// The number of features of a token.
    pub features: usize,
    /// The number of heads of a layer.
    pub heads: usize,
}

/// A decoder-only transformer: from tokens (batch, tokens) of i64 to scores of the next ones (tokens, batch, vocabulary).
#[derive(Module, Clone, Debug)]
pub struct Transformer {
    tokens: Embedding,
    positions: Embedding,
    #[module(name = "layers")]
    blocks: Vec<TransformerBlock>,
    norm: LayerNorm,
    head: Linear,
}

impl Transformer {
    /// Creates a transformer with random parameters.
    #[enter]
    pub fn new(options: TransformerOptions, generator: &mut Generator, device: &Device) -> Result<Self> {
        let TransformerOptions { vocabulary, context, layers, features, heads } = options;
        Ok(Self {
            tokens: Embedding::new(vocabulary, features, generator, device)?,
            positions: Embedding::new(context, features, generator, device)?,
            blocks: (0..layers)
                .map(|_| TransformerBlock::new(features, heads, generator, device))
                .collect::<Result<_>>()?,
            norm: LayerNorm::new(features, device)?,
            head: Linear::new(features, vocabulary, generator, device)?,
        })
    }

    /// Returns the cross entropy of the scores against the tokens that follow, (batch, tokens) like the input.
    #[enter]
    pub fn loss(&self, input: &Tensor, next: &Tensor) -> Result<Tensor> {
        let scores = self.forward(input)?;
        let rows = next.elements();
        let next = next.transpose(0, 1)?.reshape(&[rows])?;
        functional::cross_entropy(&scores.flatten_to_matrix()?, &next)
    }
}

impl Forward for Transformer {
    #[enter]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let &[_, tokens] = input.shape() else {
            return Err(invalid(format!("Transformer: tokens are (batch, tokens), not {:?}", input.shape())));
        };
        let context = self.positions.weight.size(0)?;
        if tokens > context {
            return Err(invalid(format!("Transformer: {tokens} tokens are more than its {context}")));
        }
        let positions = self.positions.weight.narrow(0, 0, tokens)?.unsqueeze(1)?;
        let mut x = self.tokens.forward(&input.transpose(0, 1)?)?.add(&positions)?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        self.head.forward(&self.norm.forward(&x)?)
    }
}
