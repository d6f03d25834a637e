//! Language models token by token, with a cache of keys and values.

use thalweg_derive::at_line;
use thalweg_ir::DType;
use thalweg_runtime::{Error, Result, options, refuse, refuse_if};
use thalweg_tensor::fused::decoder::exchange_for;
use thalweg_tensor::random::default_generator;
use thalweg_tensor::{Tensor, no_grad};

use crate::functional::{
    self, Affine, DecoderHead, DecoderInput, DecoderLayer, DecoderOptions, DecoderState,
};
use crate::module::{Forward, IntegerFormat, Linear, WeightOnlyLinear};

options! {
    /// The options of a [`Decoder`].
    #[derive(Clone, Copy, Debug)]
    pub struct DecodeOptions {
        /// The dtype of weights, caches and scores.
        pub dtype: DType = DType::Bf16,
        /// The temperature at which tokens are drawn from the device's generator; `None` chooses the likeliest.
        pub temperature: Option<f64> = None,
        /// The integer format to which the weights of the layers' products are converted; `None` leaves them unchanged. Embeddings
        /// and head stay in `dtype`.
        pub integers: Option<IntegerFormat> = None,
    }
}

/// A weight in a decoder's dtype, with its bias, if it has one.
#[derive(Debug)]
pub(super) struct Part {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Part {
    /// Copies a weight and a bias.
    pub(super) fn new(weight: &Tensor, bias: Option<&Tensor>, dtype: DType) -> Result<Self> {
        let to = |tensor: &Tensor| tensor.detach().to_dtype(dtype)?.contiguous();
        Ok(Self { weight: to(weight)?, bias: bias.map(to).transpose()? })
    }

    /// Copies weights (out, in), one after the other.
    pub(super) fn side_by_side(weights: &[&Linear], dtype: DType) -> Result<Self> {
        let parts = weights.iter().map(|part| part.weight.detach()).collect::<Vec<_>>();
        let biases: Option<Vec<_>> = weights.iter().map(|part| Some(part.bias.as_ref()?.detach())).collect();
        let bias = biases.map(|biases| Tensor::cat(&biases, 0)).transpose()?;
        Self::new(&Tensor::cat(&parts, 0)?, bias.as_ref(), dtype)
    }

    fn parts(&self) -> Affine<'_> {
        Affine { weight: &self.weight, bias: self.bias.as_ref() }
    }
}

/// A layer, with its caches of the keys and values so far: (1, heads of keys, context, features per head).
#[derive(Debug)]
pub(super) struct Layer {
    norms: [Part; 2],
    products: Products,
    caches: [Tensor; 2],
}

/// A layer's four products.
#[derive(Debug)]
enum Products {
    Floats([Part; 4]),
    Integers { of: [WeightOnlyLinear; 4], is_gated: bool },
}

impl Layer {
    /// Makes a layer with empty caches of a shape.
    pub(super) fn new(
        norms: [Part; 2],
        products: [Part; 4],
        cache: [usize; 4],
        integers: Option<IntegerFormat>,
    ) -> Result<Self> {
        let like = &products[0].weight;
        let new = || Tensor::zeros(&cache, like.dtype(), like.device());
        let caches = [new()?, new()?];
        let Some(format) = integers else {
            return Ok(Self { norms, products: Products::Floats(products), caches });
        };
        let is_gated = products[2].weight.shape()[0] != products[3].weight.shape()[1];
        let of = |Part { weight, bias }: Part| WeightOnlyLinear::of(&Linear { weight, bias }, format);
        let [a, b, c, d] = products;
        let of = [of(a)?, of(b)?, of(c)?, of(d)?];
        Ok(Self { norms, products: Products::Integers { of, is_gated }, caches })
    }

    /// Returns the tensors of a layer whose weights are floats.
    fn parts(&self) -> Option<DecoderLayer<'_>> {
        let Products::Floats(products) = &self.products else { return None };
        Some(DecoderLayer {
            norms: self.norms.each_ref().map(Part::parts),
            products: products.each_ref().map(Part::parts),
            caches: self.caches.each_ref(),
        })
    }

    /// Returns a row (1, features) and the branch to be added to it, computed operator by operator with integer weights. The
    /// following norm computes the sum in its own kernel.
    fn by_integers(
        &self,
        (row, branch): (Tensor, Option<Tensor>),
        position: &Tensor,
        options: DecoderOptions<'_>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let Products::Integers { of: [attend, project, expand, contract], is_gated } = &self.products else {
            refuse!("a decoder's layers have weights of one kind");
        };
        let [first, second] = self.norms.each_ref().map(Part::parts);
        let [normal, row] = added_and_normed(row, branch, first, options.eps)?;
        let mixed = functional::attended(
            &attend.forward(&normal)?,
            self.caches.each_ref(),
            position,
            options.rotations,
        )?;
        let [normal, row] = added_and_normed(row, Some(project.forward(&mixed)?), second, options.eps)?;
        let hidden = expand.forward(&normal)?;
        let hidden = if *is_gated { functional::gated(&hidden)? } else { hidden.gelu_tanh()? };
        Ok((row, Some(contract.forward(&hidden)?)))
    }
}

/// Returns the norm of a row plus a branch, and this sum.
fn added_and_normed(row: Tensor, branch: Option<Tensor>, norm: Affine<'_>, eps: f64) -> Result<[Tensor; 2]> {
    match (branch, norm.bias) {
        (Some(branch), Some(bias)) => functional::add_layer_norm(&row, &branch, norm.weight, bias, eps),
        (branch, _) => {
            let row = branch.map_or_else(|| Ok(row.clone()), |branch| row.add(&branch))?;
            Ok([functional::normed(&row, norm, eps)?, row])
        }
    }
}

/// The parts of a decoder, with the weights in its dtype.
#[derive(Debug)]
pub(super) struct Parts {
    pub tokens: Tensor,
    pub positions: Option<Tensor>,
    /// Cosines and sines of the angles by which queries and keys are turned.
    pub rotations: Option<[Tensor; 2]>,
    pub layers: Vec<Layer>,
    pub norm: Part,
    pub eps: f64,
    pub head: Part,
    pub context: usize,
}

/// A language model that continues one sequence, token by token: a [`GPT2LMHeadModel`](super::gpt2::GPT2LMHeadModel) or a
/// [`LlamaForCausalLM`](super::llama::LlamaForCausalLM).
///
/// Everything that changes from step to step is in device memory: the token, its position, the caches. A step reads the position
/// there, and writes the next token and the next position. The host decides nothing, so [`step`](Self::step) can be captured and
/// replayed until the context is full. The layers are one kernel if [`functional::decoder_layers`] supports them.
#[derive(Debug)]
pub struct Decoder {
    parts: Parts,
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

impl DecodeOptions {
    /// Checks the dtype and the temperature.
    pub(super) fn check(&self) -> Result<()> {
        let Self { dtype, temperature, .. } = self;
        refuse_if!(
            !dtype.is_floating_point(),
            "a decoder computes in floating-point numbers, not in {dtype}"
        );
        refuse_if!(
            temperature.is_some_and(|temperature| !temperature.is_finite() || temperature <= 0.0),
            "a decoder's temperature is above 0, or None for the likeliest token, not {temperature:?}"
        );
        Ok(())
    }
}

impl Decoder {
    /// Makes a decoder.
    pub(super) fn new(parts: Parts, temperature: Option<f64>) -> Result<Self> {
        let device = parts.tokens.device().clone();
        let numbers = |count| Tensor::zeros(&[count], DType::I64, &device);
        let mut decoder = Self {
            temperature,
            exchange: None,
            token: numbers(1)?,
            position: numbers(1)?,
            history: numbers(parts.context)?,
            barrier: numbers(2)?,
            parts,
        };
        let layers: Option<Vec<_>> = decoder.parts.layers.iter().map(Layer::parts).collect();
        decoder.exchange = match layers {
            Some(layers) => exchange_for(decoder.input(), &layers, decoder.options())?,
            None => None,
        };
        Ok(decoder)
    }

    /// Returns the maximum number of tokens of the sequence.
    pub fn context(&self) -> usize {
        self.history.elements()
    }

    /// Begins a sequence with the tokens of a prompt, which are read one by one except for the last, which the next
    /// [`step`](Self::step) reads. Cache entries past the position are never used.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] for an empty prompt, one that is longer than the context, or a token that does not exist.
    #[at_line]
    pub fn restart(&self, prompt: &[i64]) -> Result<()> {
        let (context, vocabulary) = (self.context(), self.parts.tokens.shape()[0]);
        if prompt.is_empty() || prompt.len() > context {
            refuse!("a prompt has 1 to {context} tokens, the model's positions, not {}", prompt.len());
        }
        let is_token = |&token: &i64| usize::try_from(token).is_ok_and(|token| token < vocabulary);
        if let Some(token) = prompt.iter().find(|token| !is_token(token)) {
            refuse!("the prompt has token {token}, and the model {vocabulary}");
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

    /// Returns the last norm and the product that scores tokens.
    fn head(&self) -> DecoderHead<'_> {
        DecoderHead { norm: self.parts.norm.parts(), eps: self.parts.eps, product: self.parts.head.parts() }
    }

    fn options(&self) -> DecoderOptions<'_> {
        let rotations = self.parts.rotations.as_ref().map(|tables| tables.each_ref());
        DecoderOptions { eps: self.parts.eps, rotations, exchange: self.exchange.as_ref() }
    }

    /// Reads the token at the position, and appends the next one to the sequence, to be read by the next step. Asynchronous. If
    /// the context is full, the index out of range is reported at the next synchronization.
    #[at_line]
    pub fn step(&self) -> Result<()> {
        no_grad(|| {
            let (row, head) = (self.read()?, self.head());
            let state = DecoderState {
                token: &self.token,
                position: &self.position,
                history: &self.history,
                barrier: &self.barrier,
            };
            match self.temperature {
                None => functional::next_token_(&row, &head, state),
                Some(temperature) => {
                    functional::follow(&drawn(&functional::scores(&row, &head)?, temperature)?, state)
                }
            }
        })
    }

    /// Returns the first `count` tokens of the sequence. *Blocks* until they have arrived.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] for more than the context; those of the device.
    #[at_line]
    pub fn sequence(&self, count: usize) -> Result<Vec<i64>> {
        self.history.narrow(0, 0, count)?.to_vec()
    }

    /// Returns the prompt and `count` tokens that continue it. *Blocks* until they have arrived.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if they exceed the context; and those of [`restart`](Self::restart).
    #[at_line]
    pub fn generate(&self, prompt: &[i64], count: usize) -> Result<Vec<i64>> {
        let length = prompt.len().saturating_add(count);
        refuse_if!(
            length > self.context(),
            "a prompt of {} tokens and {count} more do not fit into a context of {}",
            prompt.len(),
            self.context()
        );
        self.restart(prompt)?;
        (0..count).try_for_each(|_| self.step())?;
        self.sequence(length)
    }

    /// Returns the result of the layers for the token at the position, (1, features).
    fn read(&self) -> Result<Tensor> {
        let layers: Option<Vec<_>> = self.parts.layers.iter().map(Layer::parts).collect();
        let (options, position) = (self.options(), &self.position);
        if let Some(layers) = layers {
            return functional::decoder_layers(self.input(), position, &layers, options);
        }
        let row = functional::embedded(self.input(), position)?;
        let mut layers = self.parts.layers.iter();
        match layers.try_fold((row, None), |row, layer| layer.by_integers(row, position, options))? {
            (row, Some(branch)) => row.add(&branch),
            (row, None) => Ok(row),
        }
    }

    fn input(&self) -> DecoderInput<'_> {
        let Parts { tokens, positions, .. } = &self.parts;
        DecoderInput::Embedded { tokens, token: &self.token, positions: positions.as_ref() }
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
