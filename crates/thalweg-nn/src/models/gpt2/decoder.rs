//! GPT-2 token by token, with a cache of keys and values.

use thalweg_ir::DType;
use thalweg_runtime::{Error, Result};
use thalweg_tensor::fused::decoder::exchange_for;
use thalweg_tensor::random::default_generator;
use thalweg_tensor::{Tensor, no_grad};

use super::{Block, Conv1D, GPT2LMHeadModel};
use crate::functional::{self, DecoderInput, DecoderLayer, DecoderOptions, DecoderState, NormLinear};
use crate::module::{Embedding, Forward, IntegerFormat, LayerNorm, Linear, WeightOnlyLinear};

/// The options of a [`GPT2Decoder`].
#[derive(Clone, Copy, Debug)]
pub struct DecodeOptions {
    /// The dtype of weights, caches and scores.
    pub dtype: DType,
    /// The temperature at which tokens are drawn from the device's generator; `None` chooses the likeliest.
    pub temperature: Option<f64>,
    /// The integer format to which the weights of the layers' products are converted; `None` leaves them unchanged. Embeddings
    /// and head stay in `dtype`.
    pub integers: Option<IntegerFormat>,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        Self { dtype: DType::Bf16, temperature: None, integers: None }
    }
}

/// A layer, with its caches of the keys and values so far: (1, heads, context, features per head).
#[derive(Debug)]
struct Layer {
    norms: [[Tensor; 2]; 2],
    products: Products,
    caches: [Tensor; 2],
}

/// Weight and bias of a layer's four products.
#[derive(Debug)]
enum Products {
    Floats([[Tensor; 2]; 4]),
    Integers([WeightOnlyLinear; 4]),
}

impl Layer {
    fn new(block: &Block, context: usize, dtype: DType, integers: Option<IntegerFormat>) -> Result<Self> {
        let to = |tensor: &Tensor| tensor.detach().to_dtype(dtype)?.contiguous();
        let norm = |norm: &LayerNorm| match (&norm.weight, &norm.bias) {
            (Some(weight), Some(bias)) => Ok([to(weight)?, to(bias)?]),
            _ => Err(Error::invalid("a decoder of GPT-2 takes norms with weight and bias")),
        };
        let linear = |layer: &Conv1D| Ok::<_, Error>([to(&layer.weight.transpose(0, 1)?)?, to(&layer.bias)?]);
        let (features, heads) = (block.attn.c_proj.bias.elements(), block.attn.heads);
        let device = block.attn.c_proj.bias.device();
        let cache = || Tensor::zeros(&[1, heads, context, features / heads], dtype, device);
        let layers = [&block.attn.c_attn, &block.attn.c_proj, &block.mlp.c_fc, &block.mlp.c_proj];
        let products = match integers {
            None => Products::Floats(each(layers, linear)?),
            Some(format) => Products::Integers(each(layers, |layer| {
                let [weight, bias] = linear(layer)?;
                WeightOnlyLinear::of(&Linear { weight, bias: Some(bias) }, format)
            })?),
        };
        Ok(Self { norms: [norm(&block.ln_1)?, norm(&block.ln_2)?], products, caches: [cache()?, cache()?] })
    }

    /// Returns the tensors of a layer whose weights are floats.
    fn parts(&self) -> Option<DecoderLayer<'_>> {
        let Products::Floats(products) = &self.products else { return None };
        Some(DecoderLayer {
            norms: self.norms.each_ref().map(|pair| pair.each_ref()),
            products: products.each_ref().map(|pair| pair.each_ref()),
            caches: self.caches.each_ref(),
        })
    }

    /// Returns a row (1, features) and the branch to be added to it, computed operator by operator with integer weights. The
    /// following norm computes the sum in its own kernel.
    fn by_integers(
        &self,
        (row, branch): (Tensor, Option<Tensor>),
        position: &Tensor,
        eps: f64,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let Products::Integers([attend, project, expand, contract]) = &self.products else {
            return Err(Error::invalid("a decoder's layers have weights of one kind"));
        };
        let [[weight, bias], [second_weight, second_bias]] = &self.norms;
        let [normed, row] = match branch {
            Some(branch) => functional::add_layer_norm(&row, &branch, weight, bias, eps)?,
            None => [functional::layer_norm(&row, weight.shape(), Some(weight), Some(bias), eps)?, row],
        };
        let mixed = functional::attended(&attend.forward(&normed)?, self.caches.each_ref(), position)?;
        let [normed, row] =
            functional::add_layer_norm(&row, &project.forward(&mixed)?, second_weight, second_bias, eps)?;
        let hidden = expand.forward(&normed)?.gelu_tanh()?;
        Ok((row, Some(contract.forward(&hidden)?)))
    }
}

/// Returns the results of a function for each of four values.
fn each<'t, T, U>(four: [&'t T; 4], of: impl Fn(&'t T) -> Result<U>) -> Result<[U; 4]> {
    let [a, b, c, d] = four;
    Ok([of(a)?, of(b)?, of(c)?, of(d)?])
}

/// A GPT-2 that continues one sequence, token by token ([`GPT2LMHeadModel::decoder`]).
///
/// Everything that changes from step to step is in device memory: the token, its position, the caches. A step reads the position
/// there, and writes the next token and the next position. The host decides nothing, so [`step`](Self::step) can be captured and
/// replayed until the context is full. The layers are one kernel if [`functional::decoder_layers`] supports them.
#[derive(Debug)]
pub struct GPT2Decoder {
    tokens: Embedding,
    positions: Embedding,
    layers: Vec<Layer>,
    norm: LayerNorm,
    head: Linear,
    temperature: Option<f64>,
    /// The memory through which the blocks of the layers' kernel exchange results, if there is such a kernel.
    exchange: Option<Tensor>,
    /// The token to be read next, and its position.
    token: Tensor,
    position: Tensor,
    /// The tokens so far, each at its position.
    history: Tensor,
    /// The memory through which the blocks of the head's kernel synchronise.
    barrier: Tensor,
}

impl GPT2LMHeadModel {
    /// Makes a decoder with a copy of the weights. Its context has the length of the model's positions.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] for a temperature that is not above 0; those of the allocation.
    pub fn decoder(&self, options: DecodeOptions) -> Result<GPT2Decoder> {
        let DecodeOptions { dtype, temperature, integers } = options;
        if temperature.is_some_and(|temperature| !temperature.is_finite() || temperature <= 0.0) {
            return Err(Error::invalid(format!(
                "a decoder's temperature is above 0, or None for the likeliest token, not {temperature:?}"
            )));
        }
        no_grad(|| {
            let of = |weight: &Tensor| weight.detach().to_dtype(dtype)?.contiguous();
            let embedding =
                |from: &Embedding| Ok::<_, Error>(Embedding { weight: of(&from.weight)?, padding_idx: None });
            let base = &self.transformer;
            let (tokens, positions) = (embedding(&base.wte)?, embedding(&base.wpe)?);
            let context = positions.weight.shape()[0];
            let is_tied = self.lm_head.weight.shares_storage_with(&base.wte.weight);
            let head = if is_tied { tokens.weight.clone() } else { of(&self.lm_head.weight)? };
            let part = |part: &Option<Tensor>| part.as_ref().map(of).transpose();
            let norm = LayerNorm {
                weight: part(&base.ln_f.weight)?,
                bias: part(&base.ln_f.bias)?,
                ..base.ln_f.clone()
            };
            let device = base.wte.weight.device();
            let numbers = |count| Tensor::zeros(&[count], DType::I64, device);
            let layers = base.h.iter().map(|block| Layer::new(block, context, dtype, integers));
            let mut decoder = GPT2Decoder {
                layers: layers.collect::<Result<_>>()?,
                tokens,
                positions,
                norm,
                head: Linear { weight: head, bias: None },
                temperature,
                exchange: None,
                token: numbers(1)?,
                position: numbers(1)?,
                history: numbers(context)?,
                barrier: numbers(2)?,
            };
            let parts: Option<Vec<_>> = decoder.layers.iter().map(Layer::parts).collect();
            decoder.exchange = match parts {
                Some(parts) => exchange_for(decoder.input(), &parts)?,
                None => None,
            };
            Ok(decoder)
        })
    }
}

impl GPT2Decoder {
    /// Returns the maximum number of tokens of the sequence.
    pub fn context(&self) -> usize {
        self.history.elements()
    }

    /// Begins a sequence with the tokens of a prompt, which are read one by one except for the last, which the next
    /// [`step`](Self::step) reads. Cache entries past the position are never used.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] for an empty prompt, one that is longer than the context, or a token that does not exist.
    pub fn restart(&self, prompt: &[i64]) -> Result<()> {
        let (context, vocabulary) = (self.context(), self.tokens.weight.shape()[0]);
        if prompt.is_empty() || prompt.len() > context {
            return Err(Error::invalid(format!(
                "a prompt has 1 to {context} tokens, the model's positions, not {}",
                prompt.len()
            )));
        }
        let is_token = |&token: &i64| usize::try_from(token).is_ok_and(|token| token < vocabulary);
        if let Some(token) = prompt.iter().find(|token| !is_token(token)) {
            return Err(Error::invalid(format!("the prompt has token {token}, and the model {vocabulary}")));
        }
        no_grad(|| {
            let device = self.token.device();
            let tokens = Tensor::from_slice(prompt, &[prompt.len()], device)?;
            self.history.narrow(0, 0, prompt.len())?.copy_(&tokens)?;
            self.position.zero_()?;
            self.token.copy_(&tokens.narrow(0, 0, 1)?)?;
            for next in 1..prompt.len() {
                self.read()?;
                self.position.add_scalar_(1)?;
                self.token.copy_(&tokens.narrow(0, next, 1)?)?;
            }
            Ok(())
        })
    }

    /// Returns the last layer norm and the head.
    fn normed_head(&self) -> Result<NormLinear<'_>> {
        let (Some(scale), Some(shift)) = (&self.norm.weight, &self.norm.bias) else {
            return Err(Error::invalid("GPT2Decoder: the last layer norm takes a weight and a bias"));
        };
        let Linear { weight, bias } = &self.head;
        let (eps, bias) = (self.norm.eps, bias.as_ref());
        Ok(NormLinear { norm: [scale, shift], eps, weight, bias, gelu: false, addend: None })
    }

    /// Reads the token at the position, and appends the next one to the sequence, to be read by the next step. Asynchronous. If
    /// the context is full, the index out of range is reported at the next synchronization.
    ///
    /// # Errors
    /// Those of the device.
    pub fn step(&self) -> Result<()> {
        no_grad(|| {
            let (row, head) = (self.read()?, self.normed_head()?);
            let state = DecoderState {
                token: &self.token,
                position: &self.position,
                history: &self.history,
                barrier: &self.barrier,
            };
            match self.temperature {
                None => functional::next_token_(&row, &head, state),
                Some(temperature) => {
                    functional::follow(&drawn(&functional::norm_linear(&row, &head)?, temperature)?, state)
                }
            }
        })
    }

    /// Returns the first `count` tokens of the sequence. *Blocks* until they have arrived.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] for more than the context; those of the device.
    pub fn sequence(&self, count: usize) -> Result<Vec<i64>> {
        self.history.narrow(0, 0, count)?.to_vec()
    }

    /// Returns the prompt and `count` tokens that continue it. *Blocks* until they have arrived.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if they exceed the context; and those of [`restart`](Self::restart).
    pub fn generate(&self, prompt: &[i64], count: usize) -> Result<Vec<i64>> {
        let length = prompt.len().saturating_add(count);
        if length > self.context() {
            return Err(Error::invalid(format!(
                "a prompt of {} tokens and {count} more do not fit into a context of {}",
                prompt.len(),
                self.context()
            )));
        }
        self.restart(prompt)?;
        (0..count).try_for_each(|_| self.step())?;
        self.sequence(length)
    }

    /// Returns the result of the layers for the token at the position, (1, features).
    fn read(&self) -> Result<Tensor> {
        let layers: Option<Vec<_>> = self.layers.iter().map(Layer::parts).collect();
        let (eps, position) = (self.norm.eps, &self.position);
        if let Some(layers) = layers {
            let options = DecoderOptions { eps, exchange: self.exchange.as_ref() };
            return functional::decoder_layers(self.input(), position, &layers, options);
        }
        let row = functional::embedded(self.input(), position)?;
        let mut layers = self.layers.iter();
        match layers.try_fold((row, None), |row, layer| layer.by_integers(row, position, eps))? {
            (row, Some(branch)) => row.add(&branch),
            (row, None) => Ok(row),
        }
    }

    fn input(&self) -> DecoderInput<'_> {
        let (tokens, positions) = (&self.tokens.weight, &self.positions.weight);
        DecoderInput::Embedded { tokens, token: &self.token, positions }
    }
}

/// Returns a token drawn from scores: the one with the shortest of exponentially distributed waiting times, whose rates are the
/// tokens' weights.
fn drawn(scores: &Tensor, temperature: f64) -> Result<Tensor> {
    let weights = scores.to_dtype(DType::F32)?.mul_scalar(1.0 / temperature)?.softmax(-1)?;
    let fractions = default_generator(weights.device())?.rand(weights.shape(), DType::F32)?;
    let times = fractions.mul_scalar(-1.0)?.add_scalar(1.0)?.log()?.mul_scalar(-1.0)?;
    weights.div(&times)?.argmax(-1)
}
