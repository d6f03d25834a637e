//! GPT-2 with a cache of keys and values, one token at a time.
//!
//! Everything that differs from step to step lies in device memory: the token, its position, the cache. A step reads the
//! position there, writes keys and values at it, lets attention see what lies up to it, and leaves the next token and the
//! next position behind. The host decides nothing, so a captured step can be replayed as often as the context is long.

use thalweg::functional::{self, DecoderLayer};
use thalweg::module::{Embedding, Forward, LayerNorm, Linear, Mlp, StateDict};
use thalweg::random::{Generator, default_generator};
use thalweg::{DType, Device, Error, Result, Tensor};

use super::options::Options;

/// The sizes of a model.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub layers: usize,
    pub features: usize,
    pub heads: usize,
    pub context: usize,
    pub vocabulary: usize,
}

impl Sizes {
    /// Returns the sizes of a file's model, by Hugging Face's names. GPT-2's heads have 64 features.
    pub fn of(weights: &StateDict) -> Result<Self> {
        let shape = |name: &str| found(weights, name).map(|tensor| tensor.shape().to_vec());
        let (Some(tokens), Some(positions)) = (shape("wte.weight"), shape("wpe.weight")) else {
            return Err(Error::invalid(
                "the weights have no wte.weight and wpe.weight, so they are not of a GPT-2",
            ));
        };
        let layers = (0..).take_while(|layer| shape(&format!("h.{layer}.ln_1.weight")).is_some()).count();
        let (features, context, vocabulary) = (tokens[1], positions[0], tokens[0]);
        Ok(Self { layers, features, heads: (features / 64).max(1), context, vocabulary })
    }
}

/// Returns a weight by its name, with or without the name of the model in front.
fn found<'w>(weights: &'w StateDict, name: &str) -> Option<&'w Tensor> {
    weights.get(name).or_else(|| weights.get(&format!("transformer.{name}")))
}

/// Where weights come from: a file, or a generator.
struct Source<'s> {
    weights: Option<&'s StateDict>,
    generator: Generator,
    dtype: DType,
    device: &'s Device,
}

impl Source<'_> {
    /// Returns a weight of a shape. Without a file it is normally distributed about `mean`.
    fn take(&mut self, name: &str, shape: &[usize], [mean, deviation]: [f32; 2]) -> Result<Tensor> {
        let tensor = match self.weights {
            None => Tensor::normal(shape, mean, deviation, &mut self.generator, self.device)?,
            Some(weights) => found(weights, name)
                .ok_or_else(|| Error::invalid(format!("the weights have no {name}")))?
                .clone(),
        };
        if tensor.shape() != shape {
            return Err(Error::invalid(format!("{name} is {shape:?}, not {:?}", tensor.shape())));
        }
        tensor.to_dtype(self.dtype)
    }

    fn norm(&mut self, name: &str, features: usize) -> Result<LayerNorm> {
        let mut norm = LayerNorm::new(features, self.device)?;
        norm.weight = Some(self.take(&format!("{name}.weight"), &[features], [1.0, 0.0])?);
        norm.bias = Some(self.take(&format!("{name}.bias"), &[features], [0.0, 0.0])?);
        Ok(norm)
    }

    /// Returns a layer, whose weight lies (in, out) in the file and (out, in) in the layer.
    fn linear(&mut self, name: &str, inputs: usize, outputs: usize) -> Result<Linear> {
        let weight = self.take(&format!("{name}.weight"), &[inputs, outputs], [0.0, 0.02])?;
        let bias = self.take(&format!("{name}.bias"), &[outputs], [0.0, 0.0])?;
        Ok(Linear { weight: weight.transpose(0, 1)?.contiguous()?, bias: Some(bias) })
    }

    fn embedding(&mut self, name: &str, rows: usize, features: usize) -> Result<Embedding> {
        Ok(Embedding { weight: self.take(name, &[rows, features], [0.0, 0.02])?, padding_idx: None })
    }
}

/// A layer, with its caches of the keys and values so far: (1, heads, context, features of a head).
struct Layer {
    attention_norm: LayerNorm,
    projection: Linear,
    output: Linear,
    mlp_norm: LayerNorm,
    mlp: Mlp,
    caches: [Tensor; 2],
}

impl Layer {
    fn new(number: usize, sizes: &Sizes, source: &mut Source<'_>) -> Result<Self> {
        let &Sizes { features, heads, context, .. } = sizes;
        let name = |part: &str| format!("h.{number}.{part}");
        let cache = || Tensor::zeros(&[1, heads, context, features / heads], source.dtype, source.device);
        let caches = [cache()?, cache()?];
        Ok(Self {
            attention_norm: source.norm(&name("ln_1"), features)?,
            projection: source.linear(&name("attn.c_attn"), features, 3 * features)?,
            output: source.linear(&name("attn.c_proj"), features, features)?,
            mlp_norm: source.norm(&name("ln_2"), features)?,
            mlp: Mlp {
                expand: source.linear(&name("mlp.c_fc"), features, 4 * features)?,
                contract: source.linear(&name("mlp.c_proj"), 4 * features, features)?,
            },
            caches,
        })
    }

    /// Returns the tensors of the layer.
    fn parts(&self) -> Option<DecoderLayer<'_>> {
        fn norm(norm: &LayerNorm) -> Option<[&Tensor; 2]> {
            Some([norm.weight.as_ref()?, norm.bias.as_ref()?])
        }
        fn linear(linear: &Linear) -> Option<[&Tensor; 2]> {
            Some([&linear.weight, linear.bias.as_ref()?])
        }
        Some(DecoderLayer {
            norms: [norm(&self.attention_norm)?, norm(&self.mlp_norm)?],
            products: [
                linear(&self.projection)?,
                linear(&self.output)?,
                linear(&self.mlp.expand)?,
                linear(&self.mlp.contract)?,
            ],
            caches: self.caches.each_ref(),
        })
    }
}

/// The model, with the state of one sequence.
pub struct Decoder {
    tokens: Embedding,
    positions: Embedding,
    layers: Vec<Layer>,
    norm: LayerNorm,
    /// The embedding of tokens once more, as a layer.
    head: Linear,
    /// The temperature at which tokens are drawn; `None` takes the likeliest.
    temperature: Option<f64>,
    one: Tensor,
    /// The token to be read next, and its position.
    token: Tensor,
    position: Tensor,
    /// The tokens so far, each at its position.
    history: Tensor,
}

impl Decoder {
    /// A model with the weights of a file, or with random ones, at the beginning of a sequence.
    pub fn new(
        sizes: &Sizes,
        weights: Option<&StateDict>,
        options: &Options,
        device: &Device,
    ) -> Result<Self> {
        let mut source = Source { weights, generator: Generator::new(0), dtype: options.dtype, device };
        let &Sizes { features, context, vocabulary, .. } = sizes;
        let numbers = |count| Tensor::zeros(&[count], DType::I64, device);
        let tokens = source.embedding("wte.weight", vocabulary, features)?;
        Ok(Self {
            head: Linear { weight: tokens.weight.clone(), bias: None },
            tokens,
            positions: source.embedding("wpe.weight", context, features)?,
            layers: (0..sizes.layers)
                .map(|number| Layer::new(number, sizes, &mut source))
                .collect::<Result<_>>()?,
            norm: source.norm("ln_f", features)?,
            temperature: options.temperature,
            one: Tensor::ones(&[1], DType::I64, device)?,
            token: numbers(1)?,
            position: numbers(1)?,
            history: numbers(context)?,
        })
    }

    /// Back to the beginning of a sequence. What the cache holds behind the position is never seen.
    pub fn restart(&self, first: i64) -> Result<()> {
        let device = self.token.device();
        default_generator(device)?.manual_seed(0)?;
        self.token.copy_(&Tensor::from_slice(&[first], &[1], device)?)?;
        self.position.copy_(&Tensor::zeros(&[1], DType::I64, device)?)?;
        self.history.index_copy_(0, &self.position, &self.token)
    }

    /// Reads the token at the position, and leaves the next one to be read.
    pub fn step(&self) -> Result<()> {
        let x = self.tokens.forward(&self.token)?.add(&self.positions.forward(&self.position)?)?;
        let layers: Vec<_> = self.layers.iter().filter_map(Layer::parts).collect();
        let x = functional::decoder_layers(&x, &self.position, &layers, self.norm.eps)?;
        let scores = self.head.forward_norm(&self.norm, &x)?;
        self.token.copy_(&self.choose(&scores)?)?;
        self.position.add_(&self.one)?;
        self.history.index_copy_(0, &self.position, &self.token)
    }

    /// Returns the likeliest token, or one that is drawn: of exponentially distributed waiting times, each token's by its weight, the first to end.
    fn choose(&self, scores: &Tensor) -> Result<Tensor> {
        let Some(temperature) = self.temperature else { return scores.argmax(-1) };
        let weights = scores.to_dtype(DType::F32)?.mul_scalar(1.0 / temperature)?.softmax(-1)?;
        let fractions = default_generator(weights.device())?.rand(weights.shape(), DType::F32)?;
        let times = fractions.mul_scalar(-1.0)?.add_scalar(1.0)?.log()?.mul_scalar(-1.0)?;
        weights.div(&times)?.argmax(-1)
    }

    /// The tokens of the sequence. *Blocks* until they are there.
    pub fn history(&self, count: usize) -> Result<Vec<i64>> {
        self.history.narrow(0, 0, count)?.to_vec()
    }
}
