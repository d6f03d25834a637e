//! BERT, with the names of Hugging Face's weights.

use thalweg_ir::DType;
use thalweg_runtime::{Device, Error, Result, invalid, options};
use thalweg_tensor::random::Generator;
use thalweg_tensor::{Tensor, i};

use super::{check_heads, merge_heads, split_heads};
use crate::functional::{AttentionOptions, scaled_dot_product_attention};
use crate::module::{Embedding, Forward, LayerNorm, Linear, Module};

options! {
    /// The sizes of a BERT (`BertConfig`); the defaults are those of `bert-base-uncased`.
    #[derive(Clone, Copy, PartialEq, Debug)]
    pub struct BertConfig {
        /// The number of tokens.
        pub vocab_size: usize = 30522,
        /// The number of features of a token.
        pub hidden_size: usize = 768,
        /// The number of layers.
        pub num_hidden_layers: usize = 12,
        /// The number of attention heads.
        pub num_attention_heads: usize = 12,
        /// The number of features inside a layer.
        pub intermediate_size: usize = 3072,
        /// The maximum length of a sequence.
        pub max_position_embeddings: usize = 512,
        /// The number of segment kinds, by which sentences of a pair are distinguished.
        pub type_vocab_size: usize = 2,
        /// The number that norms add to the variance.
        pub layer_norm_eps: f64 = 1e-12,
        /// The token that pads sequences: its embedding has no gradient.
        pub pad_token_id: usize = 0,
    }
}

impl BertConfig {
    fn norm(&self, d: &Device) -> Result<LayerNorm> {
        Ok(LayerNorm { eps: self.layer_norm_eps, ..LayerNorm::new(self.hidden_size, d)? })
    }

    fn output(&self, inputs: usize, g: &mut Generator, d: &Device) -> Result<Output> {
        Ok(Output { dense: Linear::new(inputs, self.hidden_size, g, d)?, LayerNorm: self.norm(d)? })
    }

    fn layer(&self, g: &mut Generator, d: &Device) -> Result<Layer> {
        let (hidden, inner, heads) = (self.hidden_size, self.intermediate_size, self.num_attention_heads);
        let mut linear = || Linear::new(hidden, hidden, g, d);
        let own = SelfAttention { query: linear()?, key: linear()?, value: linear()?, heads };
        Ok(Layer {
            attention: Attention { own, output: self.output(hidden, g, d)? },
            intermediate: Dense { dense: Linear::new(hidden, inner, g, d)? },
            output: self.output(inner, g, d)?,
        })
    }

    fn embeddings(&self, g: &mut Generator, d: &Device) -> Result<Embeddings> {
        let Self { vocab_size, hidden_size, max_position_embeddings, type_vocab_size, .. } = *self;
        Ok(Embeddings {
            word_embeddings: Embedding::with_padding(vocab_size, hidden_size, self.pad_token_id, g, d)?,
            position_embeddings: Embedding::new(max_position_embeddings, hidden_size, g, d)?,
            token_type_embeddings: Embedding::new(type_vocab_size, hidden_size, g, d)?,
            LayerNorm: self.norm(d)?,
        })
    }
}

#[derive(Module, Clone, Debug)]
#[allow(non_snake_case)]
struct Embeddings {
    word_embeddings: Embedding,
    position_embeddings: Embedding,
    token_type_embeddings: Embedding,
    LayerNorm: LayerNorm,
}

impl Embeddings {
    fn forward(&self, tokens: &Tensor, types: &Tensor) -> Result<Tensor> {
        let positions = Tensor::arange(tokens.size(-1)?, 0, 1, DType::I64, tokens.device())?;
        let words = self.word_embeddings.forward(tokens)?;
        let x = (words + self.token_type_embeddings.forward(types)?)?;
        self.LayerNorm.forward(&(x + self.position_embeddings.forward(&positions)?)?)
    }
}

#[derive(Module, Clone, Debug)]
struct SelfAttention {
    query: Linear,
    key: Linear,
    value: Linear,
    #[module(skip)]
    heads: usize,
}

impl SelfAttention {
    fn forward(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let split = |layer: &Linear| split_heads(&layer.forward(x)?, self.heads);
        let mask = mask.i(i![.., None, None, ..])?;
        let options = AttentionOptions { attn_mask: Some(&mask), ..AttentionOptions::default() };
        let [q, k, v] = [&self.query, &self.key, &self.value].map(split);
        merge_heads(&scaled_dot_product_attention(&q?, &k?, &v?, options)?)
    }
}

#[derive(Module, Clone, Debug)]
#[allow(non_snake_case)]
struct Output {
    dense: Linear,
    LayerNorm: LayerNorm,
}

impl Output {
    fn forward(&self, x: &Tensor, past: &Tensor) -> Result<Tensor> {
        self.LayerNorm.forward(&(self.dense.forward(x)? + past)?)
    }
}

#[derive(Module, Clone, Debug)]
struct Attention {
    #[module(name = "self")]
    own: SelfAttention,
    output: Output,
}

#[derive(Module, Clone, Debug)]
struct Dense {
    dense: Linear,
}

#[derive(Module, Clone, Debug)]
struct Layer {
    attention: Attention,
    intermediate: Dense,
    output: Output,
}

impl Layer {
    fn forward(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let attended = self.attention.own.forward(x, mask)?;
        let x = self.attention.output.forward(&attended, x)?;
        self.output.forward(&self.intermediate.dense.forward(&x)?.gelu()?, &x)
    }
}

#[derive(Module, Clone, Debug)]
struct Encoder {
    layer: Vec<Layer>,
}

/// The encoder: features of every token, and of the sequence.
#[derive(Module, Clone, Debug)]
pub struct BertModel {
    embeddings: Embeddings,
    encoder: Encoder,
    pooler: Option<Dense>,
}

impl BertModel {
    /// Makes a model with random weights in f32.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the heads do not divide the features, or the padding token does not exist.
    pub fn new(config: &BertConfig, g: &mut Generator, d: &Device) -> Result<Self> {
        check_heads(config.hidden_size, config.num_attention_heads)?;
        let embeddings = config.embeddings(g, d)?;
        let layer = (0..config.num_hidden_layers).map(|_| config.layer(g, d)).collect::<Result<_>>()?;
        let pooler = Dense { dense: Linear::new(config.hidden_size, config.hidden_size, g, d)? };
        Ok(Self { embeddings, encoder: Encoder { layer }, pooler: Some(pooler) })
    }

    /// Makes a model without the layer for [`pool`](Self::pool) (`add_pooling_layer=False`), as for masked tokens.
    pub fn without_pooler(config: &BertConfig, g: &mut Generator, d: &Device) -> Result<Self> {
        Ok(Self { pooler: None, ..Self::new(config, g, d)? })
    }

    /// Returns the features of every token, (batch, length, features): `last_hidden_state`. Tokens and kinds of sentences are (batch,
    /// length) of i64, and the mask is true where a token is not padding. Asynchronous.
    pub fn encode(&self, tokens: &Tensor, types: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let mut x = self.embeddings.forward(tokens, types)?;
        for layer in &self.encoder.layer {
            x = layer.forward(&x, mask)?;
        }
        Ok(x)
    }

    /// Returns the features of each sequence, (batch, features), from those of its first token: `pooler_output`. Asynchronous.
    ///
    /// # Errors
    /// Those of the products; [`Error::is_invalid_argument`] if the model was made [without](Self::without_pooler).
    pub fn pool(&self, features: &Tensor) -> Result<Tensor> {
        let none = || invalid!("BertModel::pool: the model has no pooler: make it by BertModel::new");
        self.pooler.as_ref().ok_or_else(none)?.dense.forward(&features.i(i![.., 0])?)?.tanh()
    }
}

/// The encoder with a head that scores classes of sequences.
#[derive(Module, Clone, Debug)]
pub struct BertForSequenceClassification {
    bert: BertModel,
    classifier: Linear,
}

impl BertForSequenceClassification {
    /// Makes a model with random weights in f32.
    pub fn new(config: &BertConfig, classes: usize, g: &mut Generator, d: &Device) -> Result<Self> {
        let bert = BertModel::new(config, g, d)?;
        Ok(Self { bert, classifier: Linear::new(config.hidden_size, classes, g, d)? })
    }

    /// Returns the scores of the classes, (batch, classes); the arguments are those of [`BertModel::encode`]. Asynchronous.
    pub fn forward(&self, tokens: &Tensor, types: &Tensor, mask: &Tensor) -> Result<Tensor> {
        self.classifier.forward(&self.bert.pool(&self.bert.encode(tokens, types, mask)?)?)
    }
}

#[derive(Module, Clone, Debug)]
#[allow(non_snake_case)]
struct Transform {
    dense: Linear,
    LayerNorm: LayerNorm,
}

#[derive(Module, Clone, Debug)]
struct Predictions {
    /// The bias of the decoder.
    #[module(parameter)]
    bias: Tensor,
    transform: Transform,
    decoder: Linear,
}

#[derive(Module, Clone, Debug)]
struct MaskedHead {
    predictions: Predictions,
}

/// The encoder with a head that scores tokens in place of masked ones. The head shares the weight of the embedding.
#[derive(Module, Clone, Debug)]
pub struct BertForMaskedLM {
    bert: BertModel,
    cls: MaskedHead,
}

impl BertForMaskedLM {
    /// Makes a model with random weights in f32.
    pub fn new(config: &BertConfig, g: &mut Generator, d: &Device) -> Result<Self> {
        let bert = BertModel::without_pooler(config, g, d)?;
        let weight = bert.embeddings.word_embeddings.weight.clone();
        let bias = Tensor::zeros(&[config.vocab_size], DType::F32, d)?.requires_grad_()?;
        let dense = Linear::new(config.hidden_size, config.hidden_size, g, d)?;
        let predictions = Predictions {
            bias: bias.clone(),
            transform: Transform { dense, LayerNorm: config.norm(d)? },
            decoder: Linear { weight, bias: Some(bias) },
        };
        Ok(Self { bert, cls: MaskedHead { predictions } })
    }

    /// Returns the scores of the tokens at every position, (batch, length, tokens); the arguments are those of
    /// [`BertModel::encode`]. Asynchronous.
    pub fn forward(&self, tokens: &Tensor, types: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let Predictions { transform, decoder, .. } = &self.cls.predictions;
        let features = self.bert.encode(tokens, types, mask)?;
        let features = transform.LayerNorm.forward(&transform.dense.forward(&features)?.gelu()?)?;
        decoder.forward(&features)
    }
}
