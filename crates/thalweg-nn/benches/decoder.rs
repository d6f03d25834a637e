//! A token of decoders of many sizes and forms, captured: microseconds, and how often the weights could have been read once at the
//! speed of a copy in that time.
//!
//! `cargo bench -p thalweg-nn --bench decoder [-- --device cuda|sim] [--position N] [--check] [LAYERSxFEATURES..]`: one line per
//! size and form. With sizes, only those. `--check` also compares each kernel's row with that of the operators in f32.

use std::time::Instant;

use thalweg_ir::DType;
use thalweg_nn::functional::{
    Affine, DecoderHead, DecoderInput, DecoderLayer, DecoderOptions, DecoderState, decoder_layers,
    next_token_,
};
use thalweg_runtime::{CaptureOptions, Device, Error, Graph, Result};
use thalweg_tensor::fused::decoder::exchange_for;
use thalweg_tensor::random::default_generator;
use thalweg_tensor::{Tensor, no_grad};

const CONTEXT: usize = 1024;
const VOCABULARY: usize = 50_257;
/// Timed replays of a round, and rounds, of which the median counts.
const REPLAYS: u32 = 30;
const ROUNDS: usize = 5;

/// The form of a decoder: GPT-2's, or Llama's with a number of query heads per head of keys.
#[derive(Clone, Copy, Debug)]
enum Form {
    Gpt2,
    Llama(usize),
}

/// A decoder's weights in bfloat16.
struct Decoder {
    layers: Vec<Vec<Tensor>>,
    caches: Vec<[Tensor; 2]>,
    rotations: Option<[Tensor; 2]>,
    tokens: Tensor,
    norm: [Tensor; 2],
    form: Form,
}

impl Decoder {
    fn new([count, features]: [usize; 2], form: Form, device: &Device) -> Result<Self> {
        let generator = default_generator(device)?;
        let of = |shape: &[usize], scale: f64, plus: f64| {
            generator.randn(shape, DType::Bf16)?.mul_scalar(scale)?.add_scalar(plus)
        };
        let matrix = |rows: usize, terms: usize| of(&[rows, terms], (terms as f64).powf(-0.5), 0.0);
        let width = if features >= 2048 { 128 } else { 64 };
        let heads = features / width;
        let (keys, hidden, expanded) = match form {
            Form::Gpt2 => (heads, 4 * features, 4 * features),
            Form::Llama(shared) => {
                let hidden = (features * 8 / 3).next_multiple_of(256);
                ((heads / shared).max(1), hidden, 2 * hidden)
            }
        };
        let layer = || -> Result<Vec<Tensor>> {
            Ok(vec![
                of(&[features], 0.1, 1.0)?,
                of(&[features], 0.1, 0.0)?,
                of(&[features], 0.1, 1.0)?,
                of(&[features], 0.1, 0.0)?,
                matrix((heads + 2 * keys) * width, features)?,
                of(&[(heads + 2 * keys) * width], 0.1, 0.0)?,
                matrix(features, features)?,
                of(&[features], 0.1, 0.0)?,
                matrix(expanded, features)?,
                of(&[expanded], 0.1, 0.0)?,
                matrix(features, hidden)?,
                of(&[features], 0.1, 0.0)?,
            ])
        };
        let cache = || of(&[1, keys, CONTEXT, width], 1.0, 0.0);
        let angles = generator.rand(&[CONTEXT, width / 2], DType::F32)?;
        Ok(Self {
            layers: (0..count).map(|_| layer()).collect::<Result<_>>()?,
            caches: (0..count).map(|_| Ok([cache()?, cache()?])).collect::<Result<_>>()?,
            rotations: match form {
                Form::Gpt2 => None,
                Form::Llama(_) => Some([angles.cos()?, angles.sin()?]),
            },
            tokens: matrix(VOCABULARY, features)?,
            norm: [of(&[features], 0.1, 1.0)?, of(&[features], 0.1, 0.0)?],
            form,
        })
    }

    /// Returns the bytes of the weights that a token reads.
    fn bytes(&self) -> usize {
        let matrices = self.layers.iter().flatten().chain([&self.tokens]);
        matrices.map(|weight| 2 * weight.elements()).sum()
    }

    fn layers(&self) -> Vec<DecoderLayer<'_>> {
        let has_biases = matches!(self.form, Form::Gpt2);
        let each = self.layers.iter().zip(&self.caches).map(|(weights, caches)| {
            let part = |at: usize| affine(&weights[2 * at], &weights[2 * at + 1], has_biases);
            DecoderLayer {
                norms: [part(0), part(1)],
                products: [part(2), part(3), part(4), part(5)],
                caches: caches.each_ref(),
            }
        });
        each.collect()
    }

    fn options(&self) -> DecoderOptions<'_> {
        let rotations = self.rotations.as_ref().map(|tables| tables.each_ref());
        DecoderOptions { eps: 1e-5, rotations, exchange: None }
    }

    /// Returns the distance of the layers' result to that of operators in f32.
    fn distance(&self, device: &Device, position: i64) -> Result<f64> {
        let row = self.tokens.narrow(0, 7, 1)?;
        let at = Tensor::from_slice(&[position], &[1], device)?;
        let found = decoder_layers(DecoderInput::Row(&row), &at, &self.layers(), self.options())?;
        let wide = |tensor: &Tensor| tensor.to_dtype(DType::F32);
        let all = |tensors: &Vec<Tensor>| tensors.iter().map(wide).collect::<Result<Vec<_>>>();
        let other = Self {
            layers: self.layers.iter().map(all).collect::<Result<_>>()?,
            caches: self.caches.iter().map(|[a, b]| Ok([wide(a)?, wide(b)?])).collect::<Result<_>>()?,
            rotations: self.rotations.clone(),
            tokens: self.tokens.clone(),
            norm: self.norm.clone(),
            form: self.form,
        };
        let row = wide(&row)?;
        let expected = decoder_layers(DecoderInput::Row(&row), &at, &other.layers(), other.options())?;
        let apart = wide(&found)?.sub(&expected)?.square()?.sum(&[], false)?.to_vec::<f32>()?[0];
        Ok(f64::from(apart / expected.square()?.sum(&[], false)?.to_vec::<f32>()?[0]).sqrt())
    }

    /// Returns the time of a token in microseconds, of the layers and of the layers with the head.
    fn time(&self, device: &Device, position: i64) -> Result<[f64; 2]> {
        let number = |value: i64| Tensor::from_slice(&[value], &[1], device);
        let numbers = |count| Tensor::zeros(&[count], DType::I64, device);
        let (token, place) = (number(7)?, number(position)?);
        let (history, barrier) = (numbers(CONTEXT)?, numbers(2)?);
        let input = DecoderInput::Embedded { tokens: &self.tokens, token: &token, positions: None };
        let layers = self.layers();
        let exchange = exchange_for(input, &layers, self.options())?;
        let options = DecoderOptions { exchange: exchange.as_ref(), ..self.options() };
        let has_biases = matches!(self.form, Form::Gpt2);
        let head = DecoderHead {
            norm: affine(&self.norm[0], &self.norm[1], has_biases),
            eps: 1e-5,
            product: Affine { weight: &self.tokens, bias: None },
        };
        let (next, after) = (number(7)?, number(position)?);
        let state = DecoderState { token: &next, position: &after, history: &history, barrier: &barrier };
        let step = |has_head: bool| {
            let row = decoder_layers(input, &place, &layers, options)?;
            if has_head {
                next_token_(&row, &head, state)?;
                after.copy_(&place)?;
            }
            Ok(())
        };
        let mut times = [0.0; 2];
        for (has_head, time) in [false, true].into_iter().zip(&mut times) {
            step(has_head)?;
            let (graph, ()) = Graph::capture(device, CaptureOptions::default(), || step(has_head))?;
            let round = || -> Result<f64> {
                let start = Instant::now();
                (0..REPLAYS).try_for_each(|_| graph.replay())?;
                device.synchronize()?;
                Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(REPLAYS))
            };
            round()?;
            let mut rounds = (0..ROUNDS).map(|_| round()).collect::<Result<Vec<_>>>()?;
            rounds.sort_by(f64::total_cmp);
            *time = rounds[ROUNDS / 2];
        }
        Ok(times)
    }
}

fn affine<'t>(weight: &'t Tensor, bias: &'t Tensor, has_bias: bool) -> Affine<'t> {
    Affine { weight, bias: has_bias.then_some(bias) }
}

/// Returns the bytes that a copy of 1 GiB moves per microsecond, read and written.
fn copy_speed(device: &Device) -> Result<f64> {
    let bytes = if device.is_simulated() { 1 << 20 } else { 1 << 30 };
    let from = Tensor::zeros(&[bytes / 4], DType::F32, device)?;
    let to = Tensor::zeros(&[bytes / 4], DType::F32, device)?;
    to.copy_(&from)?;
    device.synchronize()?;
    let start = Instant::now();
    for _ in 0..20 {
        to.copy_(&from)?;
    }
    device.synchronize()?;
    Ok(20.0 * 2.0 * bytes as f64 / (start.elapsed().as_secs_f64() * 1e6))
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).cloned()
    };
    let device = value("--device").map_or_else(Device::best, |name| Device::from_name(&name))?;
    let position: i64 = value("--position").and_then(|number| number.parse().ok()).unwrap_or(255);
    let size = |text: &String| {
        let (layers, features) = text.split_once('x')?;
        Some([layers.parse().ok()?, features.parse().ok()?])
    };
    let mut sizes: Vec<[usize; 2]> = arguments.iter().filter_map(size).collect();
    if sizes.is_empty() {
        sizes = vec![
            [2, 256],
            [6, 512],
            [12, 640],
            [12, 768],
            [12, 896],
            [16, 1024],
            [24, 1280],
            [24, 1536],
            [24, 2048],
            [16, 2560],
            [16, 3072],
            [16, 4096],
            [32, 4096],
        ];
    }
    let speed = copy_speed(&device)?;
    println!("a copy moves {:.0} GB/s", speed / 1e3);
    for size in sizes {
        for form in [Form::Gpt2, Form::Llama(1), Form::Llama(4)] {
            let line = no_grad(|| {
                let decoder = Decoder::new(size, form, &device)?;
                let apart = if arguments.iter().any(|argument| argument == "--check") {
                    format!(" distance {:.4}", decoder.distance(&device, position)?)
                } else {
                    String::new()
                };
                let [layers, token] = decoder.time(&device, position)?;
                let floor = decoder.bytes() as f64 / speed;
                let [count, features] = size;
                Ok::<_, Error>(format!(
                    "{count} x {features} {form:?}: layers {layers:.1} us, token {token:.1} us, weights {floor:.1} us, ratio {:.2}{apart}",
                    token / floor
                ))
            })?;
            println!("{line}");
        }
    }
    Ok(())
}
