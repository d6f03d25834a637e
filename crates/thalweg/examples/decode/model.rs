//! A decoder-only transformer with a cache of keys and values, one token at a time.
//!
//! Everything that differs from step to step lies in device memory: the token, its position, the cache. A step reads the
//! position there, writes keys and values at it, lets attention see what lies up to it, and leaves the next token and the
//! next position behind. The host decides nothing, so a captured step can be replayed as often as the context is long.

use thalweg::functional::{self, AttentionOptions};
use thalweg::module::{Embedding, Forward, LayerNorm, Linear};
use thalweg::random::Generator;
use thalweg::{DType, Device, Result, Tensor};

use super::options::Options;

/// How many different tokens there are.
pub const VOCABULARY: usize = 256;

/// A layer, with its cache of the keys and values so far: (heads, context, features of a head).
struct Layer {
    attention_norm: LayerNorm,
    projection: Linear,
    output: Linear,
    mlp_norm: LayerNorm,
    expand: Linear,
    contract: Linear,
    keys: Tensor,
    values: Tensor,
}

impl Layer {
    fn new(options: &Options, generator: &mut Generator, device: &Device) -> Result<Self> {
        let &Options { features, heads, context, .. } = options;
        let cache = || Tensor::zeros(&[heads, context, features / heads], DType::F32, device);
        Ok(Self {
            attention_norm: LayerNorm::new(features, device)?,
            projection: Linear::new(features, 3 * features, generator, device)?,
            output: Linear::new(features, features, generator, device)?,
            mlp_norm: LayerNorm::new(features, device)?,
            expand: Linear::new(features, 4 * features, generator, device)?,
            contract: Linear::new(4 * features, features, generator, device)?,
            keys: cache()?,
            values: cache()?,
        })
    }

    /// (1, features) to the same, at the position; `mask` is true for the places that attention sees.
    fn forward(&self, x: &Tensor, position: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let &[heads, _, head_features] = self.keys.shape() else {
            unreachable!("a cache has three dimensions")
        };
        let packed = self.projection.forward(&self.attention_norm.forward(x)?)?;
        let parts = packed.reshape(&[3, heads, 1, head_features])?.unbind(0)?;
        self.keys.index_copy_(1, position, &parts[1])?;
        self.values.index_copy_(1, position, &parts[2])?;
        let options = AttentionOptions { attn_mask: Some(mask), ..AttentionOptions::default() };
        let mixed = functional::scaled_dot_product_attention(&parts[0], &self.keys, &self.values, options)?;
        let x = self.output.forward_add(&mixed.reshape(&[1, heads * head_features])?, x)?;
        let hidden = self.expand.forward(&self.mlp_norm.forward(&x)?)?.gelu_tanh()?;
        self.contract.forward_add(&hidden, &x)
    }
}

/// The model, with the state of one sequence.
pub struct Decoder {
    tokens: Embedding,
    positions: Embedding,
    layers: Vec<Layer>,
    norm: LayerNorm,
    head: Linear,
    /// 0, 1, 2 … up to the context.
    places: Tensor,
    one: Tensor,
    /// The token to be read next, and its position.
    token: Tensor,
    position: Tensor,
    /// The tokens so far, each at its position.
    history: Tensor,
}

impl Decoder {
    /// A model with random parameters, at the beginning of a sequence.
    pub fn new(options: &Options, device: &Device) -> Result<Self> {
        let mut generator = Generator::new(0);
        let &Options { features, context, .. } = options;
        let numbers = |count| Tensor::zeros(&[count], DType::I64, device);
        Ok(Self {
            tokens: Embedding::new(VOCABULARY, features, &mut generator, device)?,
            positions: Embedding::new(context, features, &mut generator, device)?,
            layers: (0..options.layers)
                .map(|_| Layer::new(options, &mut generator, device))
                .collect::<Result<_>>()?,
            norm: LayerNorm::new(features, device)?,
            head: Linear::new(features, VOCABULARY, &mut generator, device)?,
            places: Tensor::arange(context, 0, 1, DType::I64, device)?,
            one: Tensor::ones(&[1], DType::I64, device)?,
            token: numbers(1)?,
            position: numbers(1)?,
            history: numbers(context)?,
        })
    }

    /// Back to the beginning of a sequence. What the cache holds behind the position is never seen.
    pub fn restart(&self, first: i64) -> Result<()> {
        let device = self.token.device();
        self.token.copy_(&Tensor::from_slice(&[first], &[1], device)?)?;
        self.position.copy_(&Tensor::zeros(&[1], DType::I64, device)?)?;
        self.history.index_copy_(0, &self.position, &self.token)
    }

    /// Reads the token at the position, and leaves the likeliest next one as the next to be read.
    pub fn step(&self) -> Result<()> {
        let mask = self.places.le(&self.position)?;
        let mut x = self.tokens.forward(&self.token)?.add(&self.positions.forward(&self.position)?)?;
        for layer in &self.layers {
            x = layer.forward(&x, &self.position, &mask)?;
        }
        let scores = self.head.forward(&self.norm.forward(&x)?)?;
        self.token.copy_(&scores.argmax(-1)?)?;
        self.position.copy_(&self.position.add(&self.one)?)?;
        self.history.index_copy_(0, &self.position, &self.token)
    }

    /// The tokens of the sequence. *Blocks* until they are there.
    pub fn history(&self, count: usize) -> Result<Vec<i64>> {
        self.history.narrow(0, 0, count)?.to_vec()
    }
}
