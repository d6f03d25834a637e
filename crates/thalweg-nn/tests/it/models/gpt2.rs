//! GPT-2 with the names and layouts of Hugging Face's weights.

use thalweg_ir::DType;
use thalweg_nn::functional::{AttentionOptions, cross_entropy, scaled_dot_product_attention};
use thalweg_nn::module::{Embedding, Forward, LayerNorm, Linear, Module, StateDict};
use thalweg_nn::optim::AdamWOptions;
use thalweg_runtime::{Device, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::Generator;

use super::Network;

/// A linear layer with its weight as (in, out).
#[derive(Module)]
struct Conv1D {
    #[module(parameter)]
    weight: Tensor,
    #[module(parameter)]
    bias: Tensor,
}

impl Conv1D {
    fn new(inputs: usize, outputs: usize, g: &mut Generator, d: &Device) -> Result<Self> {
        let weight = Tensor::normal(&[inputs, outputs], 0.0, 0.02, g, d)?.requires_grad_()?;
        let bias = Tensor::zeros(&[outputs], DType::F32, d)?.requires_grad_()?;
        Ok(Self { weight, bias })
    }
}

impl Forward for Conv1D {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.matmul(&self.weight)? + &self.bias
    }
}

/// (batch, length, features) as (batch, heads, length, features / heads).
pub fn heads_apart(x: &Tensor, heads: usize) -> Result<Tensor> {
    x.unflatten(-1, &[heads as i64, -1])?.transpose(-2, -3)
}

pub fn heads_together(x: &Tensor) -> Result<Tensor> {
    x.transpose(-2, -3)?.flatten(-2, -1)
}

#[derive(Module)]
struct Attention {
    c_attn: Conv1D,
    c_proj: Conv1D,
    #[module(skip)]
    heads: usize,
}

impl Forward for Attention {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let parts = self.c_attn.forward(x)?.chunk(3, -1)?;
        let [q, k, v] = [0, 1, 2].map(|part: usize| heads_apart(&parts[part], self.heads));
        let options = AttentionOptions { is_causal: true, ..AttentionOptions::default() };
        self.c_proj.forward(&heads_together(&scaled_dot_product_attention(&q?, &k?, &v?, options)?)?)
    }
}

#[derive(Module)]
struct Mlp {
    c_fc: Conv1D,
    c_proj: Conv1D,
}

impl Forward for Mlp {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.c_proj.forward(&self.c_fc.forward(x)?.gelu_tanh()?)
    }
}

#[derive(Module)]
struct Block {
    ln_1: LayerNorm,
    attn: Attention,
    ln_2: LayerNorm,
    mlp: Mlp,
}

impl Block {
    fn new(features: usize, heads: usize, g: &mut Generator, d: &Device) -> Result<Self> {
        let attn = Attention {
            c_attn: Conv1D::new(features, 3 * features, g, d)?,
            c_proj: Conv1D::new(features, features, g, d)?,
            heads,
        };
        let mlp = Mlp {
            c_fc: Conv1D::new(features, 4 * features, g, d)?,
            c_proj: Conv1D::new(4 * features, features, g, d)?,
        };
        Ok(Self { ln_1: LayerNorm::new(features, d)?, attn, ln_2: LayerNorm::new(features, d)?, mlp })
    }
}

impl Forward for Block {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = (x + self.attn.forward(&self.ln_1.forward(x)?)?)?;
        &x + self.mlp.forward(&self.ln_2.forward(&x)?)?
    }
}

#[derive(Module)]
struct Model {
    wte: Embedding,
    wpe: Embedding,
    h: Vec<Block>,
    ln_f: LayerNorm,
}

impl Forward for Model {
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let positions = Tensor::arange(tokens.shape()[1], 0, 1, DType::I64, tokens.device())?;
        let mut x = (self.wte.forward(tokens)? + self.wpe.forward(&positions)?)?;
        for block in &self.h {
            x = block.forward(&x)?;
        }
        self.ln_f.forward(&x)
    }
}

#[derive(Module)]
pub struct GPT2 {
    transformer: Model,
    lm_head: Linear,
}

impl Network for GPT2 {
    type Options = AdamWOptions;

    fn new(g: &mut Generator, d: &Device) -> Result<Self> {
        let transformer = Model {
            wte: Embedding::new(61, 32, g, d)?,
            wpe: Embedding::new(16, 32, g, d)?,
            h: (0..2).map(|_| Block::new(32, 4, g, d)).collect::<Result<_>>()?,
            ln_f: LayerNorm::new(32, d)?,
        };
        let lm_head = Linear { weight: transformer.wte.weight.clone(), bias: None };
        Ok(Self { transformer, lm_head })
    }

    fn forward(&self, batch: &StateDict) -> Result<Tensor> {
        self.lm_head.forward(&self.transformer.forward(&batch["tokens"])?)
    }

    fn loss(&self, output: &Tensor, batch: &StateDict) -> Result<Tensor> {
        cross_entropy(&output.flatten(0, 1)?, &batch["next"].flatten(0, -1)?)
    }

    fn options() -> AdamWOptions {
        AdamWOptions { learning_rate: 3e-3, weight_decay: 0.1, ..AdamWOptions::default() }
    }
}
