//! BERT with the names of Hugging Face's weights, and a classifier.

use thalweg_ir::DType;
use thalweg_nn::functional::{AttentionOptions, cross_entropy, scaled_dot_product_attention};
use thalweg_nn::module::{Embedding, Forward, LayerNorm, Linear, Module, StateDict};
use thalweg_nn::optim::AdamWOptions;
use thalweg_runtime::{Device, Result};
use thalweg_tensor::random::Generator;
use thalweg_tensor::{Tensor, i};

use super::Network;
use super::gpt2::{heads_apart, heads_together};

fn layer_norm(features: usize, d: &Device) -> Result<LayerNorm> {
    Ok(LayerNorm { eps: 1e-12, ..LayerNorm::new(features, d)? })
}

#[derive(Module)]
#[allow(non_snake_case)]
struct Embeddings {
    word_embeddings: Embedding,
    position_embeddings: Embedding,
    token_type_embeddings: Embedding,
    LayerNorm: LayerNorm,
}

impl Embeddings {
    fn forward(&self, tokens: &Tensor, types: &Tensor) -> Result<Tensor> {
        let positions = Tensor::arange(tokens.shape()[1], 0, 1, DType::I64, tokens.device())?;
        let words = self.word_embeddings.forward(tokens)?;
        let x = (words + self.token_type_embeddings.forward(types)?)?;
        self.LayerNorm.forward(&(x + self.position_embeddings.forward(&positions)?)?)
    }
}

#[derive(Module)]
struct SelfAttention {
    query: Linear,
    key: Linear,
    value: Linear,
    #[module(skip)]
    heads: usize,
}

impl SelfAttention {
    fn forward(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let apart = |layer: &Linear| heads_apart(&layer.forward(x)?, self.heads);
        let mask = mask.i(i![.., None, None, ..])?;
        let options = AttentionOptions { attn_mask: Some(&mask), ..AttentionOptions::default() };
        let [q, k, v] = [&self.query, &self.key, &self.value].map(apart);
        heads_together(&scaled_dot_product_attention(&q?, &k?, &v?, options)?)
    }
}

#[derive(Module)]
#[allow(non_snake_case)]
struct Output {
    dense: Linear,
    LayerNorm: LayerNorm,
}

impl Output {
    fn new(inputs: usize, features: usize, g: &mut Generator, d: &Device) -> Result<Self> {
        Ok(Self { dense: Linear::new(inputs, features, g, d)?, LayerNorm: layer_norm(features, d)? })
    }

    fn forward(&self, x: &Tensor, past: &Tensor) -> Result<Tensor> {
        self.LayerNorm.forward(&(self.dense.forward(x)? + past)?)
    }
}

#[derive(Module)]
struct Attention {
    #[module(name = "self")]
    own: SelfAttention,
    output: Output,
}

#[derive(Module)]
struct Dense {
    dense: Linear,
}

#[derive(Module)]
struct Layer {
    attention: Attention,
    intermediate: Dense,
    output: Output,
}

impl Layer {
    fn new(features: usize, wide: usize, heads: usize, g: &mut Generator, d: &Device) -> Result<Self> {
        let mut linear = || Linear::new(features, features, g, d);
        let own = SelfAttention { query: linear()?, key: linear()?, value: linear()?, heads };
        Ok(Self {
            attention: Attention { own, output: Output::new(features, features, g, d)? },
            intermediate: Dense { dense: Linear::new(features, wide, g, d)? },
            output: Output::new(wide, features, g, d)?,
        })
    }

    fn forward(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let attended = self.attention.own.forward(x, mask)?;
        let x = self.attention.output.forward(&attended, x)?;
        self.output.forward(&self.intermediate.dense.forward(&x)?.gelu()?, &x)
    }
}

#[derive(Module)]
struct Encoder {
    layer: Vec<Layer>,
}

#[derive(Module)]
struct Model {
    embeddings: Embeddings,
    encoder: Encoder,
    pooler: Dense,
}

impl Model {
    fn forward(&self, tokens: &Tensor, types: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let mut x = self.embeddings.forward(tokens, types)?;
        for layer in &self.encoder.layer {
            x = layer.forward(&x, mask)?;
        }
        self.pooler.dense.forward(&x.i(i![.., 0])?)?.tanh()
    }
}

#[derive(Module)]
pub struct Bert {
    bert: Model,
    classifier: Linear,
}

impl Network for Bert {
    type Options = AdamWOptions;

    fn new(g: &mut Generator, d: &Device) -> Result<Self> {
        let embeddings = Embeddings {
            word_embeddings: Embedding::with_padding(50, 32, 0, g, d)?,
            position_embeddings: Embedding::new(12, 32, g, d)?,
            token_type_embeddings: Embedding::new(2, 32, g, d)?,
            LayerNorm: layer_norm(32, d)?,
        };
        let layer = (0..2).map(|_| Layer::new(32, 64, 4, g, d)).collect::<Result<_>>()?;
        let pooler = Dense { dense: Linear::new(32, 32, g, d)? };
        let bert = Model { embeddings, encoder: Encoder { layer }, pooler };
        Ok(Self { bert, classifier: Linear::new(32, 3, g, d)? })
    }

    fn forward(&self, batch: &StateDict) -> Result<Tensor> {
        let tokens = &batch["tokens"];
        self.classifier.forward(&self.bert.forward(tokens, &batch["types"], &tokens.ne_scalar(0)?)?)
    }

    fn loss(&self, output: &Tensor, batch: &StateDict) -> Result<Tensor> {
        cross_entropy(output, &batch["classes"])
    }

    fn options() -> AdamWOptions {
        AdamWOptions { learning_rate: 2e-3, weight_decay: 0.01, ..AdamWOptions::default() }
    }
}
