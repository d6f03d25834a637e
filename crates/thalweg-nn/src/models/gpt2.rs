//! GPT-2, with the names and layouts of Hugging Face's weights.

use thalweg_derive::enter;
use thalweg_ir::DType;
use thalweg_runtime::{Device, Error, Result, invalid, options, refuse};
use thalweg_tensor::random::Generator;
use thalweg_tensor::{Tensor, no_grad};

use super::decoder::{Layer, Part, Parts};
use super::{DecodeOptions, Decoder, check_heads, merge_heads, split_heads};
use crate::functional::{AttentionOptions, scaled_dot_product_attention};
use crate::module::{Embedding, Forward, LayerNorm, Linear, Module, StateDict};

options! {
    /// The sizes of a GPT-2 (`GPT2Config`); the defaults are those of the smallest checkpoint, with 124 million parameters.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct GPT2Config {
        /// The number of tokens.
        pub vocab_size: usize = 50257,
        /// The maximum length of a sequence.
        pub n_positions: usize = 1024,
        /// The number of features of a token.
        pub n_embd: usize = 768,
        /// The number of blocks.
        pub n_layer: usize = 12,
        /// The number of attention heads.
        pub n_head: usize = 12,
    }
}

impl GPT2Config {
    /// Returns the sizes of a checkpoint's model. GPT-2's heads have 64 features.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the checkpoint is not one of a GPT-2.
    pub fn of(checkpoint: &StateDict) -> Result<Self> {
        let shape = |name: &str| {
            let found = checkpoint.get(name).or_else(|| checkpoint.get(&format!("transformer.{name}")));
            found.map(|tensor| tensor.shape().to_vec())
        };
        let (Some(&[vocab_size, n_embd]), Some(&[n_positions, _])) =
            (shape("wte.weight").as_deref(), shape("wpe.weight").as_deref())
        else {
            refuse!("the weights have no wte.weight and wpe.weight, so they are not of a GPT-2");
        };
        let n_layer = (0..).take_while(|layer| shape(&format!("h.{layer}.ln_1.weight")).is_some()).count();
        Ok(Self { vocab_size, n_positions, n_embd, n_layer, n_head: (n_embd / 64).max(1) })
    }
}

/// A linear layer whose weight is stored transposed.
#[derive(Module, Clone, Debug)]
pub struct Conv1D {
    /// The weight, (in, out).
    #[module(parameter)]
    pub weight: Tensor,
    /// The bias, (out).
    #[module(parameter)]
    pub bias: Tensor,
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

#[derive(Module, Clone, Debug)]
struct Attention {
    c_attn: Conv1D,
    c_proj: Conv1D,
    #[module(skip)]
    heads: usize,
}

impl Forward for Attention {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let parts = self.c_attn.forward(x)?.chunk(3, -1)?;
        let [q, k, v] = [0, 1, 2].map(|part: usize| split_heads(&parts[part], self.heads));
        let options = AttentionOptions { is_causal: true, ..AttentionOptions::default() };
        self.c_proj.forward(&merge_heads(&scaled_dot_product_attention(&q?, &k?, &v?, options)?)?)
    }
}

#[derive(Module, Clone, Debug)]
struct Mlp {
    c_fc: Conv1D,
    c_proj: Conv1D,
}

impl Forward for Mlp {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.c_proj.forward(&self.c_fc.forward(x)?.gelu_tanh()?)
    }
}

#[derive(Module, Clone, Debug)]
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

#[derive(Module, Clone, Debug)]
struct Transformer {
    wte: Embedding,
    wpe: Embedding,
    h: Vec<Block>,
    ln_f: LayerNorm,
}

impl Forward for Transformer {
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let positions = Tensor::arange(tokens.size(-1)?, 0, 1, DType::I64, tokens.device())?;
        let mut x = (self.wte.forward(tokens)? + self.wpe.forward(&positions)?)?;
        for block in &self.h {
            x = block.forward(&x)?;
        }
        self.ln_f.forward(&x)
    }
}

/// GPT-2 with a head that scores the next token. The head shares its weight with the token embedding.
#[derive(Module, Clone, Debug)]
pub struct GPT2LMHeadModel {
    transformer: Transformer,
    lm_head: Linear,
}

impl GPT2LMHeadModel {
    /// Makes a model with random weights in f32.
    ///
    /// # Errors
    /// [`thalweg_runtime::Error::is_invalid_argument`] if the heads do not divide the features.
    pub fn new(config: GPT2Config, g: &mut Generator, d: &Device) -> Result<Self> {
        let GPT2Config { vocab_size, n_positions, n_embd, n_layer, n_head } = config;
        check_heads(n_embd, n_head)?;
        let transformer = Transformer {
            wte: Embedding::new(vocab_size, n_embd, g, d)?,
            wpe: Embedding::new(n_positions, n_embd, g, d)?,
            h: (0..n_layer).map(|_| Block::new(n_embd, n_head, g, d)).collect::<Result<_>>()?,
            ln_f: LayerNorm::new(n_embd, d)?,
        };
        let lm_head = Linear { weight: transformer.wte.weight.clone(), bias: None };
        Ok(Self { transformer, lm_head })
    }

    /// Makes a decoder with a copy of the weights. Its context has the length of the model's positions.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] for a temperature that is not above 0; those of the allocation.
    pub fn decoder(&self, options: DecodeOptions) -> Result<Decoder> {
        options.check()?;
        no_grad(|| {
            let of = |weight: &Tensor| weight.detach().to_dtype(options.dtype)?.contiguous();
            let base = &self.transformer;
            let (tokens, positions) = (of(&base.wte.weight)?, of(&base.wpe.weight)?);
            let context = positions.shape()[0];
            let is_tied = self.lm_head.weight.shares_storage_with(&base.wte.weight);
            let weight = if is_tied { &tokens } else { &self.lm_head.weight };
            let parts = Parts {
                layers: base.h.iter().map(|block| block.decoded(context, options)).collect::<Result<_>>()?,
                norm: normed(&base.ln_f, options.dtype)?,
                eps: base.ln_f.eps,
                head: Part::new(weight, self.lm_head.bias.as_ref(), options.dtype)?,
                tokens,
                positions: Some(positions),
                rotations: None,
                context,
            };
            Decoder::new(parts, options.temperature)
        })
    }
}

/// Copies a layer norm for a decoder.
fn normed(norm: &LayerNorm, dtype: DType) -> Result<Part> {
    match (&norm.weight, &norm.bias) {
        (Some(weight), Some(bias)) => Part::new(weight, Some(bias), dtype),
        _ => Err(invalid!("a decoder of GPT-2 takes norms with weight and bias")),
    }
}

impl Block {
    /// Copies the block for a decoder.
    fn decoded(&self, context: usize, options: DecodeOptions) -> Result<Layer> {
        let DecodeOptions { dtype, integers, .. } = options;
        let of =
            |layer: &Conv1D| Part::new(&layer.weight.detach().transpose(0, 1)?, Some(&layer.bias), dtype);
        let products =
            [of(&self.attn.c_attn)?, of(&self.attn.c_proj)?, of(&self.mlp.c_fc)?, of(&self.mlp.c_proj)?];
        let (features, heads) = (self.attn.c_proj.bias.elements(), self.attn.heads);
        let norms = [normed(&self.ln_1, dtype)?, normed(&self.ln_2, dtype)?];
        Layer::new(norms, products, [1, heads, context, features / heads], integers)
    }
}

impl Forward for GPT2LMHeadModel {
    /// Returns the scores of the tokens that may come next, (batch, length, tokens), for tokens (batch, length) of i64. Asynchronous.
    #[enter]
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        self.lm_head.forward(&self.transformer.forward(tokens)?)
    }
}
