//! Llama, with the names of Hugging Face's weights: rotations for positions, shared heads of keys, gated layers.

use thalweg_derive::enter;
use thalweg_ir::DType;
use thalweg_runtime::{Device, Error, Result, invalid, options, refuse_if};
use thalweg_tensor::random::Generator;
use thalweg_tensor::{Tensor, no_grad};

use super::decoder::{Layer as DecodedLayer, Part, Parts};
use super::{DecodeOptions, Decoder as TokenDecoder, check_heads, merge_heads, split_heads};
use crate::functional::{AttentionOptions, scaled_dot_product_attention};
use crate::module::{Embedding, Forward, Linear, Module, RMSNorm};

options! {
    /// The sizes of a Llama (`LlamaConfig`); the defaults are those of the second generation's model with 7 billion parameters.
    #[derive(Clone, Copy, PartialEq, Debug)]
    pub struct LlamaConfig {
        /// The number of tokens.
        pub vocab_size: usize = 32000,
        /// The number of features of a token.
        pub hidden_size: usize = 4096,
        /// The number of features inside a gated layer.
        pub intermediate_size: usize = 11008,
        /// The number of layers.
        pub num_hidden_layers: usize = 32,
        /// The number of query heads.
        pub num_attention_heads: usize = 32,
        /// The number of heads of keys and values, each of which is shared by an equal number of query heads.
        pub num_key_value_heads: usize = 32,
        /// The base of the rotations' wavelengths.
        pub rope_theta: f64 = 10000.0,
        /// The change of the rotations for sequences that are longer than the sequences of the first training.
        pub rope_scaling: Option<RopeScaling> = None,
        /// The number that norms add to the mean square.
        pub rms_norm_eps: f64 = 1e-5,
        /// Whether the head that scores tokens shares the weight of their embedding, as in the smaller models of the third
        /// generation.
        pub tie_word_embeddings: bool = false,
    }
}

/// A change of the rotations (`rope_scaling`), by the names of its types.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum RopeScaling {
    /// `linear`: all rotations are slower by a factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// `llama3`: slow rotations are slowed down further by a factor, fast rotations are unchanged, and between them the factor
    /// changes gradually.
    Llama3 {
        /// The factor.
        factor: f64,
        /// The number of turns within the original length up to which a rotation counts as slow.
        low_freq_factor: f64,
        /// The number of turns within the original length from which a rotation counts as fast.
        high_freq_factor: f64,
        /// The original length.
        original_max_position_embeddings: usize,
    },
}

/// Cosines and sines of the rotations, (length, features of a head).
struct Rotations {
    cos: Tensor,
    sin: Tensor,
}

impl Rotations {
    /// Returns the angles of a sequence, (length, width / 2), in f32.
    fn angles(length: usize, width: usize, config: &LlamaConfig, device: &Device) -> Result<Tensor> {
        let places = |count: usize, step: i64| Tensor::arange(count, 0, step, DType::F32, device);
        let rates = (places(width / 2, 2)? * (-config.rope_theta.ln() / width as f64))?.exp()?;
        let rates = config.rope_scaling.map_or(Ok(rates.clone()), |scaling| scaling.of(&rates))?;
        places(length, 1)?.outer(&rates)
    }

    /// Returns the rotations for a sequence. Angles are f32 for any dtype of features: few positions are exact in 16 bits.
    fn new(length: usize, width: usize, config: &LlamaConfig, like: &Tensor) -> Result<Self> {
        let angles = Self::angles(length, width, config, like.device())?;
        let angles = Tensor::cat(&[angles.clone(), angles], -1)?;
        let dtype = like.dtype();
        Ok(Self { cos: angles.cos()?.to_dtype(dtype)?, sin: angles.sin()?.to_dtype(dtype)? })
    }

    fn of(&self, x: &Tensor) -> Result<Tensor> {
        let halves = x.chunk(2, -1)?;
        let turned = Tensor::cat(&[(-&halves[1])?, halves[0].clone()], -1)?;
        (x * &self.cos)? + (turned * &self.sin)?
    }
}

impl RopeScaling {
    /// Returns the changed rates of turning, in radians per position.
    fn of(self, rates: &Tensor) -> Result<Tensor> {
        match self {
            Self::Linear { factor } => rates / factor,
            Self::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings,
            } => {
                let turns = (rates * (original_max_position_embeddings as f64 / std::f64::consts::TAU))?;
                let quick = ((turns - low)? / (high - low))?.clamp(0.0, 1.0)?;
                rates * (&quick + ((1.0 - &quick)? / factor)?)?
            }
        }
    }

    /// Checks the parameters.
    fn check(self) -> Result<()> {
        let is_valid = match self {
            Self::Linear { factor } => factor > 0.0,
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => {
                factor > 0.0 && low_freq_factor < high_freq_factor && original_max_position_embeddings > 0
            }
        };
        if is_valid {
            return Ok(());
        }
        let rule = "the factor is above 0, low_freq_factor below high_freq_factor, and the original length at least 1";
        Err(invalid!("{self:?}: {rule}"))
    }
}

#[derive(Module, Clone, Debug)]
struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    /// The numbers of query heads and of key heads.
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
    /// [`Error::is_invalid_argument`] if the heads do not divide the features, the heads of keys do not divide those of queries,
    /// a head has an odd number of features, or the parameters of the scaled rotations are invalid.
    pub fn new(config: LlamaConfig, g: &mut Generator, d: &Device) -> Result<Self> {
        let LlamaConfig { vocab_size, hidden_size, num_attention_heads, num_key_value_heads, .. } = config;
        check_heads(hidden_size, num_attention_heads)?;
        check_heads(num_attention_heads, num_key_value_heads)?;
        let width = hidden_size / num_attention_heads;
        refuse_if!(!width.is_multiple_of(2), "a head of {width} features cannot be turned in pairs");
        config.rope_scaling.map_or(Ok(()), RopeScaling::check)?;
        let embed_tokens = Embedding::new(vocab_size, hidden_size, g, d)?;
        let layers = (0..config.num_hidden_layers).map(|_| config.layer(g, d)).collect::<Result<_>>()?;
        let lm_head = match config.tie_word_embeddings {
            true => Linear { weight: embed_tokens.weight.clone(), bias: None },
            false => Linear::without_bias(hidden_size, vocab_size, g, d)?,
        };
        let model = Decoder { embed_tokens, layers, norm: config.norm(d)? };
        Ok(Self { model, lm_head, config })
    }

    /// Makes a decoder with a copy of the weights, for sequences of up to `context` tokens.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] for a temperature that is not above 0 or an empty context; those of the allocation.
    pub fn decoder(&self, context: usize, options: DecodeOptions) -> Result<TokenDecoder> {
        options.check()?;
        refuse_if!(context == 0, "a decoder's context has at least one position");
        no_grad(|| {
            let dtype = options.dtype;
            let LlamaConfig { hidden_size, num_attention_heads, num_key_value_heads, .. } = self.config;
            let width = hidden_size / num_attention_heads;
            let tokens = self.model.embed_tokens.weight.detach();
            let angles = Rotations::angles(context, width, &self.config, tokens.device())?;
            let cache = [1, num_key_value_heads, context, width];
            let layers = self.model.layers.iter().map(|layer| layer.decoded(cache, options));
            let tokens = tokens.to_dtype(dtype)?.contiguous()?;
            let is_tied = self.lm_head.weight.shares_storage_with(&self.model.embed_tokens.weight);
            let parts = Parts {
                layers: layers.collect::<Result<_>>()?,
                norm: normed(&self.model.norm, dtype)?,
                eps: self.config.rms_norm_eps,
                head: Part::new(if is_tied { &tokens } else { &self.lm_head.weight }, None, dtype)?,
                tokens,
                positions: None,
                rotations: Some([angles.cos()?, angles.sin()?]),
                context,
            };
            TokenDecoder::new(parts, options.temperature)
        })
    }
}

/// Copies a norm for a decoder.
fn normed(norm: &RMSNorm, dtype: DType) -> Result<Part> {
    match &norm.weight {
        Some(weight) => Part::new(weight, None, dtype),
        None => Err(invalid!("a decoder takes norms with weights")),
    }
}

impl Layer {
    /// Copies the layer for a decoder.
    fn decoded(&self, cache: [usize; 4], options: DecodeOptions) -> Result<DecodedLayer> {
        let DecodeOptions { dtype, integers, .. } = options;
        let norms = [normed(&self.input_layernorm, dtype)?, normed(&self.post_attention_layernorm, dtype)?];
        let (attention, mlp) = (&self.self_attn, &self.mlp);
        let of = |parts: &[&Linear]| Part::side_by_side(parts, dtype);
        let products = [
            of(&[&attention.q_proj, &attention.k_proj, &attention.v_proj])?,
            of(&[&attention.o_proj])?,
            of(&[&mlp.gate_proj, &mlp.up_proj])?,
            of(&[&mlp.down_proj])?,
        ];
        DecodedLayer::new(norms, products, cache, integers)
    }
}

impl Forward for LlamaForCausalLM {
    /// Returns the scores of the tokens that may come next, (batch, length, tokens), for tokens (batch, length) of i64. Asynchronous.
    #[enter]
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let mut x = self.model.embed_tokens.forward(tokens)?;
        let width = self.config.hidden_size / self.config.num_attention_heads;
        let rotations = Rotations::new(tokens.size(-1)?, width, &self.config, &x)?;
        for layer in &self.model.layers {
            x = layer.forward(&x, &rotations)?;
        }
        self.lm_head.forward(&self.model.norm.forward(&x)?)
    }
}

/// Compares with the rates that transformers computes, in f64 and with its three cases.
#[cfg(test)]
mod tests {
    use super::*;

    const SCALING: RopeScaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 64,
    };

    fn rate(plain: f64) -> f64 {
        let (factor, low, high, original) = (8.0, 1.0, 4.0, 64.0);
        let wave_length = std::f64::consts::TAU / plain;
        if wave_length < original / high {
            plain
        } else if wave_length > original / low {
            plain / factor
        } else {
            let smooth = (original / wave_length - low) / (high - low);
            (1.0 - smooth) * plain / factor + smooth * plain
        }
    }

    #[test]
    fn scaled_rotations_are_those_of_the_formula() -> Result<()> {
        let (device, width, length) = (Device::sim(0)?, 16, 40);
        let config = LlamaConfig { rope_scaling: Some(SCALING), rope_theta: 500.0, ..LlamaConfig::default() };
        let like = Tensor::zeros(&[1], DType::F32, &device)?;
        let linear = LlamaConfig { rope_scaling: Some(RopeScaling::Linear { factor: 4.0 }), ..config };
        let plain = |pair: usize| 500.0_f64.powf(-2.0 * pair as f64 / width as f64);
        type Rate = fn(f64) -> f64;
        for (config, rate) in [(config, rate as Rate), (linear, |plain| plain / 4.0)] {
            let Rotations { cos, sin } = Rotations::new(length, width, &config, &like)?;
            let (cos, sin) = (cos.to_vec::<f32>()?, sin.to_vec::<f32>()?);
            for place in 0..length {
                for feature in 0..width {
                    let angle = place as f64 * rate(plain(feature % (width / 2)));
                    let at = place * width + feature;
                    assert!((f64::from(cos[at]) - angle.cos()).abs() < 1e-5, "{place} {feature}");
                    assert!((f64::from(sin[at]) - angle.sin()).abs() < 1e-5, "{place} {feature}");
                }
            }
        }
        // All three cases occur.
        let cases = (0..width / 2).map(|pair| rate(plain(pair)) / plain(pair));
        let cases: Vec<f64> = cases.collect();
        assert!(
            cases.contains(&1.0)
                && cases.contains(&0.125)
                && cases.iter().any(|case| (0.13..0.99).contains(case))
        );
        Ok(())
    }

    #[test]
    fn angles_of_16_bits_are_those_of_f32() -> Result<()> {
        let (device, config) = (Device::sim(0)?, LlamaConfig::default());
        let like = |dtype| Tensor::zeros(&[1], dtype, &device);
        let exact = Rotations::new(400, 8, &config, &like(DType::F32)?)?;
        let rounded = Rotations::new(400, 8, &config, &like(DType::Bf16)?)?;
        assert_eq!(
            rounded.sin.to_vec::<thalweg_ir::bf16>()?,
            exact.sin.to_dtype(DType::Bf16)?.to_vec::<thalweg_ir::bf16>()?
        );
        Ok(())
    }
}
