//! Llama, with the names of Hugging Face's weights: rotations for positions, shared heads of keys, gated layers.

use thalweg_runtime::{Device, Error, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::Generator;

use super::{check_heads, merge_heads, split_heads};
use crate::functional::{AttentionOptions, scaled_dot_product_attention};
use crate::module::{Embedding, Forward, Linear, Module, RMSNorm};

/// The sizes of a Llama (`LlamaConfig`); the defaults are those of the second generation's model with 7 billion parameters.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LlamaConfig {
    /// The number of tokens.
    pub vocab_size: usize,
    /// Features of a token.
    pub hidden_size: usize,
    /// Features inside a gated layer.
    pub intermediate_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Heads of queries.
    pub num_attention_heads: usize,
    /// Heads of keys and values, each of which equally many heads of queries share.
    pub num_key_value_heads: usize,
    /// The base of the wave lengths of the rotations.
    pub rope_theta: f64,
    /// The number that norms add to the mean square.
    pub rms_norm_eps: f64,
}

impl Default for LlamaConfig {
    fn default() -> Self {
        Self {
            vocab_size: 32000,
            hidden_size: 4096,
            intermediate_size: 11008,
            num_hidden_layers: 32,
            num_attention_heads: 32,
            num_key_value_heads: 32,
            rope_theta: 10000.0,
            rms_norm_eps: 1e-5,
        }
    }
}

/// Cosines and sines of the rotations, (length, features of a head).
struct Rotations {
    cos: Tensor,
    sin: Tensor,
}

impl Rotations {
    fn new(length: usize, width: usize, theta: f64, like: &Tensor) -> Result<Self> {
        let dtype = like.dtype();
        let places = |count: usize, step: i64| Tensor::arange(count, 0, step, dtype, like.device());
        let rates = (places(width / 2, 2)? * (-theta.ln() / width as f64))?.exp()?;
        let angles = places(length, 1)?.outer(&rates)?;
        let angles = Tensor::cat(&[angles.clone(), angles], -1)?;
        Ok(Self { cos: angles.cos()?, sin: angles.sin()? })
    }

    fn of(&self, x: &Tensor) -> Result<Tensor> {
        let halves = x.chunk(2, -1)?;
        let turned = Tensor::cat(&[(-&halves[1])?, halves[0].clone()], -1)?;
        (x * &self.cos)? + (turned * &self.sin)?
    }
}

#[derive(Module, Clone, Debug)]
struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    /// Of queries, and of keys.
    #[module(skip)]
    heads: [usize; 2],
}

impl Attention {
    fn forward(&self, x: &Tensor, rotations: &Rotations) -> Result<Tensor> {
        let [heads, key_heads] = self.heads;
        let q = rotations.of(&split_heads(&self.q_proj.forward(x)?, heads)?)?;
        let k = rotations.of(&split_heads(&self.k_proj.forward(x)?, key_heads)?)?;
        let v = split_heads(&self.v_proj.forward(x)?, key_heads)?;
        let options = AttentionOptions { is_causal: true, enable_gqa: true, ..AttentionOptions::default() };
        self.o_proj.forward(&merge_heads(&scaled_dot_product_attention(&q, &k, &v, options)?)?)
    }
}

#[derive(Module, Clone, Debug)]
struct Mlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

impl Forward for Mlp {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.down_proj.forward(&(self.gate_proj.forward(x)?.silu()? * self.up_proj.forward(x)?)?)
    }
}

#[derive(Module, Clone, Debug)]
struct Layer {
    self_attn: Attention,
    mlp: Mlp,
    input_layernorm: RMSNorm,
    post_attention_layernorm: RMSNorm,
}

impl LlamaConfig {
    fn norm(&self, d: &Device) -> Result<RMSNorm> {
        Ok(RMSNorm { eps: Some(self.rms_norm_eps), ..RMSNorm::new(&[self.hidden_size], d)? })
    }

    fn layer(&self, g: &mut Generator, d: &Device) -> Result<Layer> {
        let mut linear = |inputs, outputs| Linear::without_bias(inputs, outputs, g, d);
        let (hidden, inner) = (self.hidden_size, self.intermediate_size);
        let keys = hidden / self.num_attention_heads * self.num_key_value_heads;
        let self_attn = Attention {
            q_proj: linear(hidden, hidden)?,
            k_proj: linear(hidden, keys)?,
            v_proj: linear(hidden, keys)?,
            o_proj: linear(hidden, hidden)?,
            heads: [self.num_attention_heads, self.num_key_value_heads],
        };
        let mlp = Mlp {
            gate_proj: linear(hidden, inner)?,
            up_proj: linear(hidden, inner)?,
            down_proj: linear(inner, hidden)?,
        };
        let (input_layernorm, post_attention_layernorm) = (self.norm(d)?, self.norm(d)?);
        Ok(Layer { self_attn, mlp, input_layernorm, post_attention_layernorm })
    }
}

impl Layer {
    fn forward(&self, x: &Tensor, rotations: &Rotations) -> Result<Tensor> {
        let x = (x + self.self_attn.forward(&self.input_layernorm.forward(x)?, rotations)?)?;
        &x + self.mlp.forward(&self.post_attention_layernorm.forward(&x)?)?
    }
}

#[derive(Module, Clone, Debug)]
struct Decoder {
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: RMSNorm,
}

/// A Llama with a head that scores the next token.
#[derive(Module, Clone, Debug)]
pub struct LlamaForCausalLM {
    model: Decoder,
    lm_head: Linear,
    #[module(skip)]
    config: LlamaConfig,
}

impl LlamaForCausalLM {
    /// Makes a model with random weights in f32.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the heads do not divide the features, the heads of keys not those of queries, or a head has an
    /// odd number of features.
    pub fn new(config: LlamaConfig, g: &mut Generator, d: &Device) -> Result<Self> {
        let LlamaConfig { vocab_size, hidden_size, num_attention_heads, num_key_value_heads, .. } = config;
        check_heads(hidden_size, num_attention_heads)?;
        check_heads(num_attention_heads, num_key_value_heads)?;
        let width = hidden_size / num_attention_heads;
        if !width.is_multiple_of(2) {
            return Err(Error::invalid(format!("a head of {width} features cannot be turned in pairs")));
        }
        let embed_tokens = Embedding::new(vocab_size, hidden_size, g, d)?;
        let layers = (0..config.num_hidden_layers).map(|_| config.layer(g, d)).collect::<Result<_>>()?;
        let lm_head = Linear::without_bias(hidden_size, vocab_size, g, d)?;
        let model = Decoder { embed_tokens, layers, norm: config.norm(d)? };
        Ok(Self { model, lm_head, config })
    }
}

impl Forward for LlamaForCausalLM {
    /// Returns the scores of the tokens that may come next, (batch, length, tokens), for tokens (batch, length) of i64. Asynchronous.
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let mut x = self.model.embed_tokens.forward(tokens)?;
        let width = self.config.hidden_size / self.config.num_attention_heads;
        let rotations = Rotations::new(tokens.size(-1)?, width, self.config.rope_theta, &x)?;
        for layer in &self.model.layers {
            x = layer.forward(&x, &rotations)?;
        }
        self.lm_head.forward(&self.model.norm.forward(&x)?)
    }
}
