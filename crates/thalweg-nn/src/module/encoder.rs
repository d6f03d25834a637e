//! Layers of transformers with PyTorch's names, layouts and options: `torch.nn.TransformerEncoderLayer` and related ones.

use std::sync::Arc;

use thalweg_derive::{in_call, in_function};
use thalweg_runtime::{Device, Error, Result, options, refuse_if};
use thalweg_tensor::random::{DeviceGenerator, Generator};
use thalweg_tensor::{Tensor, no_grad};

use super::{
    AttentionMasks, Forward, LayerNorm, Linear, Module, MultiheadAttention, MultiheadAttentionOptions,
    uniform,
};
use crate::functional;

options! {
    /// The options of a layer of a transformer.
    #[derive(Clone, Debug)]
    pub struct TransformerLayerOptions {
        /// The number of features between the two products of the feed-forward part.
        pub dim_feedforward: usize = 2048,
        /// The probability with which elements are dropped in training, and its generator.
        pub dropout: Option<(f64, Arc<DeviceGenerator>)> = None,
        /// Whether GELU replaces max(0, x) (`activation="gelu"`).
        pub gelu: bool = false,
        /// The number that layer norms add to the variance.
        pub layer_norm_eps: f64 = 1e-5,
        /// Whether the batch comes before the sequence.
        pub batch_first: bool = false,
        /// Whether the input of each part is normalized, instead of the sum after it.
        pub norm_first: bool = false,
        /// Whether products and norms have biases.
        pub bias: bool = true,
    }
}

impl TransformerLayerOptions {
    fn attention(
        &self,
        [features, heads]: [usize; 2],
        generator: &mut Generator,
        device: &Device,
    ) -> Result<MultiheadAttention> {
        let options = MultiheadAttentionOptions {
            dropout: self.dropout.clone(),
            bias: self.bias,
            batch_first: self.batch_first,
            ..MultiheadAttentionOptions::default()
        };
        MultiheadAttention::new(features, heads, options, generator, device)
    }

    fn linear(
        &self,
        [inputs, outputs]: [usize; 2],
        generator: &mut Generator,
        device: &Device,
    ) -> Result<Linear> {
        match self.bias {
            true => Linear::new(inputs, outputs, generator, device),
            false => Linear::without_bias(inputs, outputs, generator, device),
        }
    }

    fn norm(&self, features: usize, device: &Device) -> Result<LayerNorm> {
        let norm = LayerNorm::new(features, device)?;
        let bias = norm.bias.clone().filter(|_| self.bias);
        Ok(LayerNorm { bias, eps: self.layer_norm_eps, ..norm })
    }

    fn activate(&self, x: &Tensor) -> Result<Tensor> {
        if self.gelu { x.gelu() } else { x.relu() }
    }

    /// Returns the feed-forward part of a layer.
    fn feed_forward(&self, x: &Tensor, [first, second]: [&Linear; 2], training: bool) -> Result<Tensor> {
        let drops = training && self.dropout.is_some();
        let result = if self.gelu || drops {
            second.forward(&self.drop(self.activate(&first.forward(x)?)?, training)?)?
        } else {
            let biases = [first.bias.as_ref(), second.bias.as_ref()];
            functional::relu_mlp(x, [&first.weight, &second.weight], biases)?
        };
        self.drop(result, training)
    }

    fn drop(&self, x: Tensor, training: bool) -> Result<Tensor> {
        match &self.dropout {
            Some((p, generator)) => functional::dropout(&x, *p, training, generator),
            None => Ok(x),
        }
    }
}

/// Adds a part of a layer to the part's input (a residual connection), and normalizes either that input or the sum.
fn residual(
    x: &Tensor,
    norm: &LayerNorm,
    norm_first: bool,
    part: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    match norm_first {
        true => x.add(&part(&norm.forward(x)?)?),
        false => norm.forward(&x.add(&part(x)?)?),
    }
}

/// A layer of an encoder: self-attention and a feed-forward part (`torch.nn.TransformerEncoderLayer`).
#[derive(Module, Clone, Debug)]
pub struct TransformerEncoderLayer {
    self_attn: MultiheadAttention,
    linear1: Linear,
    linear2: Linear,
    norm1: LayerNorm,
    norm2: LayerNorm,
    #[module(skip)]
    options: TransformerLayerOptions,
    #[module(training)]
    training: bool,
}

impl TransformerEncoderLayer {
    /// Makes a layer over `features` features, divided evenly among `heads` heads.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the heads do not divide the features.
    #[in_function("TransformerEncoderLayer::new")]
    pub fn new(
        features: usize,
        heads: usize,
        options: TransformerLayerOptions,
        generator: &mut Generator,
        device: &Device,
    ) -> Result<Self> {
        let inner = options.dim_feedforward;
        Ok(Self {
            self_attn: options.attention([features, heads], generator, device)?,
            linear1: options.linear([features, inner], generator, device)?,
            linear2: options.linear([inner, features], generator, device)?,
            norm1: options.norm(features, device)?,
            norm2: options.norm(features, device)?,
            options,
            training: true,
        })
    }

    /// Returns the layer's result, with the shape of its input: (tokens, batch, features), (batch, tokens, features) with
    /// `batch_first`, or (tokens, features). Asynchronous.
    #[in_call("TransformerEncoderLayer", &[input])]
    pub fn forward_masked(&self, input: &Tensor, masks: AttentionMasks<'_>) -> Result<Tensor> {
        let (options, training) = (&self.options, self.training);
        let x = residual(input, &self.norm1, options.norm_first, |x| {
            options.drop(self.self_attn.attend(x, x, x, masks)?, training)
        })?;
        residual(&x, &self.norm2, options.norm_first, |x| {
            options.feed_forward(x, [&self.linear1, &self.linear2], training)
        })
    }
}

impl Forward for TransformerEncoderLayer {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.forward_masked(input, AttentionMasks::default())
    }
}

/// A layer of a decoder: self-attention, attention to an encoder's result and a feed-forward part
/// (`torch.nn.TransformerDecoderLayer`).
#[derive(Module, Clone, Debug)]
pub struct TransformerDecoderLayer {
    self_attn: MultiheadAttention,
    multihead_attn: MultiheadAttention,
    linear1: Linear,
    linear2: Linear,
    norm1: LayerNorm,
    norm2: LayerNorm,
    norm3: LayerNorm,
    #[module(skip)]
    options: TransformerLayerOptions,
    #[module(training)]
    training: bool,
}

impl TransformerDecoderLayer {
    /// Makes a layer over `features` features, divided evenly among `heads` heads.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the heads do not divide the features.
    #[in_function("TransformerDecoderLayer::new")]
    pub fn new(
        features: usize,
        heads: usize,
        options: TransformerLayerOptions,
        generator: &mut Generator,
        device: &Device,
    ) -> Result<Self> {
        let inner = options.dim_feedforward;
        Ok(Self {
            self_attn: options.attention([features, heads], generator, device)?,
            multihead_attn: options.attention([features, heads], generator, device)?,
            linear1: options.linear([features, inner], generator, device)?,
            linear2: options.linear([inner, features], generator, device)?,
            norm1: options.norm(features, device)?,
            norm2: options.norm(features, device)?,
            norm3: options.norm(features, device)?,
            options,
            training: true,
        })
    }

    /// Returns the layer's result, with the shape of its input, from the result of an encoder; the masks are those of the
    /// self-attention, and of the attention to the encoder's result. Asynchronous.
    #[in_call("TransformerDecoderLayer", &[input, memory])]
    pub fn forward(
        &self,
        input: &Tensor,
        memory: &Tensor,
        masks: AttentionMasks<'_>,
        memory_masks: AttentionMasks<'_>,
    ) -> Result<Tensor> {
        let (options, training) = (&self.options, self.training);
        let x = residual(input, &self.norm1, options.norm_first, |x| {
            options.drop(self.self_attn.attend(x, x, x, masks)?, training)
        })?;
        let x = residual(&x, &self.norm2, options.norm_first, |x| {
            options.drop(self.multihead_attn.attend(x, memory, memory, memory_masks)?, training)
        })?;
        residual(&x, &self.norm3, options.norm_first, |x| {
            options.feed_forward(x, [&self.linear1, &self.linear2], training)
        })
    }
}

/// The layers of an encoder in sequence (`torch.nn.TransformerEncoder`).
#[derive(Module, Clone, Debug)]
pub struct TransformerEncoder {
    /// The layers.
    pub layers: Vec<TransformerEncoderLayer>,
    /// The norm of the last result.
    pub norm: Option<LayerNorm>,
}

impl TransformerEncoder {
    /// Returns the last layer's result; each layer has the same masks. Asynchronous.
    #[in_call("TransformerEncoder", &[input])]
    pub fn forward_masked(&self, input: &Tensor, masks: AttentionMasks<'_>) -> Result<Tensor> {
        let mut x = input.clone();
        for layer in &self.layers {
            x = layer.forward_masked(&x, masks)?;
        }
        self.norm.as_ref().map_or(Ok(x.clone()), |norm| norm.forward(&x))
    }
}

impl Forward for TransformerEncoder {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.forward_masked(input, AttentionMasks::default())
    }
}

/// The layers of a decoder in sequence (`torch.nn.TransformerDecoder`).
#[derive(Module, Clone, Debug)]
pub struct TransformerDecoder {
    /// The layers.
    pub layers: Vec<TransformerDecoderLayer>,
    /// The norm of the last result.
    pub norm: Option<LayerNorm>,
}

impl TransformerDecoder {
    /// Returns the last layer's result; each layer has the same masks. Asynchronous.
    #[in_call("TransformerDecoder", &[input, memory])]
    pub fn forward(
        &self,
        input: &Tensor,
        memory: &Tensor,
        masks: AttentionMasks<'_>,
        memory_masks: AttentionMasks<'_>,
    ) -> Result<Tensor> {
        let mut x = input.clone();
        for layer in &self.layers {
            x = layer.forward(&x, memory, masks, memory_masks)?;
        }
        self.norm.as_ref().map_or(Ok(x.clone()), |norm| norm.forward(&x))
    }
}

/// An encoder and a decoder (`torch.nn.Transformer`; [`Transformer`](super::Transformer) is a model of tokens).
#[derive(Module, Clone, Debug)]
pub struct EncoderDecoder {
    encoder: TransformerEncoder,
    decoder: TransformerDecoder,
}

impl EncoderDecoder {
    /// Makes these numbers of layers of an encoder and a decoder over `features` features with `heads` heads, with a norm after
    /// each stack.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the heads do not divide the features.
    #[in_function("EncoderDecoder::new")]
    pub fn new(
        [features, heads]: [usize; 2],
        [encoder_layers, decoder_layers]: [usize; 2],
        options: &TransformerLayerOptions,
        generator: &mut Generator,
        device: &Device,
    ) -> Result<Self> {
        let encoder = (0..encoder_layers)
            .map(|_| TransformerEncoderLayer::new(features, heads, options.clone(), generator, device))
            .collect::<Result<_>>()?;
        let decoder = (0..decoder_layers)
            .map(|_| TransformerDecoderLayer::new(features, heads, options.clone(), generator, device))
            .collect::<Result<_>>()?;
        let made = Self {
            encoder: TransformerEncoder { layers: encoder, norm: Some(options.norm(features, device)?) },
            decoder: TransformerDecoder { layers: decoder, norm: Some(options.norm(features, device)?) },
        };
        // Every matrix is initialized with Xavier's bound.
        for parameter in made.parameters() {
            if let &[rows, columns] = parameter.shape() {
                let bound = (6.0 / (rows + columns) as f64).sqrt();
                let start = uniform(&[rows, columns], bound, generator, device)?;
                no_grad(|| parameter.copy_(&start))?;
            }
        }
        Ok(made)
    }

    /// Returns the decoder's result for the target, given the encoder's result for the source. The masks are those of the source,
    /// of the target, and of the attention between them. Asynchronous.
    #[in_call("EncoderDecoder", &[source, target])]
    pub fn forward(
        &self,
        source: &Tensor,
        target: &Tensor,
        source_masks: AttentionMasks<'_>,
        target_masks: AttentionMasks<'_>,
        memory_masks: AttentionMasks<'_>,
    ) -> Result<Tensor> {
        let (from, to) = (source.shape().last(), target.shape().last());
        refuse_if!(
            from != to || source.rank() != target.rank(),
            "the feature number of src and tgt must be equal to d_model, got {:?} and {:?}",
            source.shape(),
            target.shape()
        );
        let memory = self.encoder.forward_masked(source, source_masks)?;
        self.decoder.forward(target, &memory, target_masks, memory_masks)
    }
}
