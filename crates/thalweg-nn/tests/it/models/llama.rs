//! Llama with the names of Hugging Face's weights: rotations for positions, shared heads of keys, gated layers.

use thalweg_nn::functional::{AttentionOptions, cross_entropy, scaled_dot_product_attention};
use thalweg_nn::module::{Embedding, Forward, Linear, Module, RMSNorm, StateDict};
use thalweg_nn::optim::AdamWOptions;
use thalweg_runtime::{Device, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::Generator;

use super::Network;
use super::gpt2::{heads_apart, heads_together};

/// Cosines and sines of the rotations, (length, features of a head).
struct Rotations {
    cos: Tensor,
    sin: Tensor,
}

impl Rotations {
    fn new(length: usize, width: usize, like: &Tensor) -> Result<Self> {
        let dtype = like.dtype();
        let places = |count: usize, step: i64| Tensor::arange(count, 0, step, dtype, like.device());
        let rates = (places(width / 2, 2)? * (-(10000f64.ln()) / width as f64))?.exp()?;
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

#[derive(Module)]
struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    #[module(skip)]
    heads: [usize; 2],
}

impl Attention {
    fn forward(&self, x: &Tensor, rotations: &Rotations) -> Result<Tensor> {
        let [heads, key_heads] = self.heads;
        let q = rotations.of(&heads_apart(&self.q_proj.forward(x)?, heads)?)?;
        let k = rotations.of(&heads_apart(&self.k_proj.forward(x)?, key_heads)?)?;
        let v = heads_apart(&self.v_proj.forward(x)?, key_heads)?;
        let shared = (heads / key_heads) as i64;
        let [k, v] = [k, v].map(|x| x.repeat_interleave(shared, Some(1)));
        let options = AttentionOptions { is_causal: true, ..AttentionOptions::default() };
        self.o_proj.forward(&heads_together(&scaled_dot_product_attention(&q, &k?, &v?, options)?)?)
    }
}

#[derive(Module)]
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

#[derive(Module)]
struct Layer {
    self_attn: Attention,
    mlp: Mlp,
    input_layernorm: RMSNorm,
    post_attention_layernorm: RMSNorm,
}

fn norm(d: &Device) -> Result<RMSNorm> {
    Ok(RMSNorm { eps: Some(1e-5), ..RMSNorm::new(&[32], d)? })
}

impl Layer {
    fn new(g: &mut Generator, d: &Device) -> Result<Self> {
        let mut linear = |inputs, outputs| Linear::without_bias(inputs, outputs, g, d);
        Ok(Self {
            self_attn: Attention {
                q_proj: linear(32, 32)?,
                k_proj: linear(32, 16)?,
                v_proj: linear(32, 16)?,
                o_proj: linear(32, 32)?,
                heads: [4, 2],
            },
            mlp: Mlp { gate_proj: linear(32, 48)?, up_proj: linear(32, 48)?, down_proj: linear(48, 32)? },
            input_layernorm: norm(d)?,
            post_attention_layernorm: norm(d)?,
        })
    }

    fn forward(&self, x: &Tensor, rotations: &Rotations) -> Result<Tensor> {
        let x = (x + self.self_attn.forward(&self.input_layernorm.forward(x)?, rotations)?)?;
        &x + self.mlp.forward(&self.post_attention_layernorm.forward(&x)?)?
    }
}

#[derive(Module)]
struct Model {
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: RMSNorm,
}

#[derive(Module)]
pub struct Llama {
    model: Model,
    lm_head: Linear,
}

impl Network for Llama {
    type Options = AdamWOptions;

    fn new(g: &mut Generator, d: &Device) -> Result<Self> {
        let embed_tokens = Embedding::new(53, 32, g, d)?;
        let layers = (0..2).map(|_| Layer::new(g, d)).collect::<Result<_>>()?;
        let lm_head = Linear::without_bias(32, 53, g, d)?;
        Ok(Self { model: Model { embed_tokens, layers, norm: norm(d)? }, lm_head })
    }

    fn forward(&self, batch: &StateDict) -> Result<Tensor> {
        let tokens = &batch["tokens"];
        let mut x = self.model.embed_tokens.forward(tokens)?;
        let rotations = Rotations::new(tokens.shape()[1], 8, &x)?;
        for layer in &self.model.layers {
            x = layer.forward(&x, &rotations)?;
        }
        self.lm_head.forward(&self.model.norm.forward(&x)?)
    }

    fn loss(&self, output: &Tensor, batch: &StateDict) -> Result<Tensor> {
        cross_entropy(&output.flatten(0, 1)?, &batch["next"].flatten(0, -1)?)
    }

    fn options() -> AdamWOptions {
        AdamWOptions { learning_rate: 3e-3, beta2: 0.95, weight_decay: 0.1, ..AdamWOptions::default() }
    }
}
