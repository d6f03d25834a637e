//! Decoding with key and value caches whose heads the ranks divide, captured in lockstep, against one rank that computes the whole sequence
//! anew without any cache.

use thalweg_dist::{LockstepGraph, ProcessGroup, ReduceOp, run_ranks, simulated_devices};
use thalweg_ir::DType;
use thalweg_nn::functional::{AttentionOptions, scaled_dot_product_attention};
use thalweg_runtime::{CaptureOptions, Device, Error, Result};
use thalweg_tensor::{Tensor, no_grad};

use crate::support::{Random, checked, close};

const FEATURES: usize = 24;
const HEADS: usize = 6;
const WIDTH: usize = FEATURES / HEADS;
const LAYERS: usize = 2;
/// The number of tokens that the caches have room for.
const TOKENS: usize = 16;

/// Returns numbers around 0, by a generator of the test's own.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut random = Random::new(seed);
    (0..count).map(|_| (random.below(2001) as f32 - 1000.0) / 3000.0).collect()
}

fn token(place: usize) -> Vec<f32> {
    numbers(100 + place as u64, FEATURES)
}

/// Returns the weights of a layer for queries, keys, values and outputs, (features in, features out).
fn weights(layer: usize, device: &Device) -> Result<[Tensor; 4]> {
    let weight = |part: u64| {
        let seed = 10 * layer as u64 + part + 1;
        Tensor::from_slice(&numbers(seed, FEATURES * FEATURES), &[FEATURES, FEATURES], device)
    };
    Ok([weight(0)?, weight(1)?, weight(2)?, weight(3)?])
}

/// Splits features into heads: (tokens, features) to (heads, tokens, width).
fn heads(x: &Tensor) -> Result<Tensor> {
    x.reshape(&[x.shape()[0], x.shape()[1] / WIDTH, WIDTH])?.transpose(0, 1)
}

/// Computes the outputs of all tokens at once on one device.
fn whole(count: usize) -> Vec<f32> {
    let device = simulated_devices(1).unwrap().remove(0);
    let run = || {
        let tokens: Vec<f32> = (0..count).flat_map(token).collect();
        let mut x = Tensor::from_slice(&tokens, &[count, FEATURES], &device)?;
        for layer in 0..LAYERS {
            let [query, key, value, output] = weights(layer, &device)?;
            let options = AttentionOptions { is_causal: true, ..AttentionOptions::default() };
            let [q, k, v] =
                [heads(&x.matmul(&query)?)?, heads(&x.matmul(&key)?)?, heads(&x.matmul(&value)?)?];
            let attended = scaled_dot_product_attention(&q, &k, &v, options)?.transpose(0, 1)?;
            x = x.add(&attended.reshape(&[count, FEATURES])?.matmul(&output)?)?;
        }
        x.to_vec::<f32>()
    };
    no_grad(run).unwrap()
}

/// A rank's heads of the layers, with its cache of earlier tokens.
struct Decoder {
    layers: Vec<[Tensor; 4]>,
    caches: Vec<[Tensor; 2]>,
    /// The place of the next token.
    next: Tensor,
    group: ProcessGroup,
}

impl Decoder {
    fn new(group: &ProcessGroup) -> Result<Self> {
        let (device, own) = (group.device(), FEATURES / group.size() as usize);
        let first = own * group.rank() as usize;
        let layer = |layer: usize| {
            let [query, key, value, output] = weights(layer, device)?;
            let columns = |weight: &Tensor| weight.narrow(1, first, own)?.contiguous();
            Ok([columns(&query)?, columns(&key)?, columns(&value)?, output.narrow(0, first, own)?])
        };
        let cache = || Tensor::zeros(&[own / WIDTH, TOKENS, WIDTH], DType::F32, device);
        let caches = (0..LAYERS).map(|_| Ok([cache()?, cache()?]));
        Ok(Self {
            layers: (0..LAYERS).map(layer).collect::<Result<_>>()?,
            caches: caches.collect::<Result<_>>()?,
            next: Tensor::zeros(&[1], DType::I64, device)?,
            group: group.clone(),
        })
    }

    /// Returns the outputs of the next tokens, (tokens, features), and remembers their keys and values.
    fn decode(&self, tokens: &Tensor) -> Result<Tensor> {
        let (count, device) = (tokens.shape()[0], self.group.device());
        let places = Tensor::arange(count, 0, 1, DType::I64, device)?.add(&self.next)?;
        let is_later = Tensor::arange(TOKENS, 0, 1, DType::I64, device)?.gt(&places.unsqueeze(1)?)?;
        let mut x = tokens.clone();
        for ([query, key, value, output], [keys, values]) in self.layers.iter().zip(&self.caches) {
            let q = heads(&x.matmul(query)?)?;
            keys.index_copy_(1, &places, &heads(&x.matmul(key)?)?.contiguous()?)?;
            values.index_copy_(1, &places, &heads(&x.matmul(value)?)?.contiguous()?)?;
            let scores = q.matmul(&keys.transpose(1, 2)?)?.mul_scalar(1.0 / (WIDTH as f64).sqrt())?;
            let shares = scores.masked_fill(&is_later, f64::NEG_INFINITY)?.softmax(-1)?;
            let attended = shares.matmul(values)?.transpose(0, 1)?;
            let part = attended.reshape(&[count, FEATURES / self.group.size() as usize])?.matmul(output)?;
            self.group.all_reduce(&part, ReduceOp::Sum)?.wait()?;
            x = x.add(&part)?;
        }
        self.next.add_scalar_(count as i64)?;
        Ok(x)
    }

    /// Captures the decoding of `count` tokens at once. The caches are unchanged.
    fn capture(&self, count: usize) -> Result<Captured> {
        let tokens = Tensor::zeros(&[count, FEATURES], DType::F32, self.group.device())?;
        let (graph, output) =
            LockstepGraph::capture(&self.group, CaptureOptions::default(), || self.decode(&tokens))?;
        Ok(Captured { graph, tokens, output })
    }
}

/// A graph that decodes, with its input and its output.
struct Captured {
    graph: LockstepGraph,
    tokens: Tensor,
    output: Tensor,
}

impl Captured {
    fn decode(&self, first: usize) -> Result<Vec<f32>> {
        let tokens: Vec<f32> = (first..first + self.tokens.shape()[0]).flat_map(token).collect();
        self.tokens.copy_(&Tensor::from_slice(&tokens, self.tokens.shape(), self.tokens.device())?)?;
        self.graph.replay()?;
        self.output.to_vec::<f32>()
    }
}

/// Allocates and frees memory, so that memory that was freed too early is overwritten.
fn disturb(group: &ProcessGroup) -> Result<()> {
    let taken: Result<Vec<Tensor>> =
        (1..12).map(|size| Tensor::full(&[size * 96], f32::NAN, DType::F32, group.device())).collect();
    group.all_reduce(&taken?[3], ReduceOp::Sum)?.wait()
}

/// Decodes alternately with graphs of one token and of three tokens that share the caches, with a failing capture in between.
fn decoded(group: &ProcessGroup) -> Result<()> {
    no_grad(|| {
        let decoder = Decoder::new(group)?;
        // Once eagerly, then the caches start anew.
        decoder.decode(&Tensor::zeros(&[1, FEATURES], DType::F32, group.device())?)?;
        decoder
            .caches
            .iter()
            .flatten()
            .chain([&decoder.next])
            .try_for_each(|cache| cache.zero_().map(drop))?;
        let (single, several) = (decoder.capture(1)?, decoder.capture(3)?);
        let mut found = Vec::new();
        let mut steps = |graphs: &[&Captured]| -> Result<()> {
            for graph in graphs {
                found.extend(graph.decode(found.len() / FEATURES)?);
                disturb(group)?;
            }
            Ok(())
        };
        steps(&[&several, &single, &single])?;
        let refused = LockstepGraph::capture(group, CaptureOptions::default(), || {
            decoder.decode(&several.tokens)?;
            match group.rank() == 0 {
                true => Err(Error::invalid("no more")),
                false => Ok(()),
            }
        });
        assert!(refused.is_err());
        disturb(group)?;
        steps(&[&single, &several])?;
        // Another graph over the same caches, and those before are gone.
        let later = decoder.capture(2)?;
        steps(&[&later])?;
        drop((single, several));
        steps(&[&later])?;
        later.graph.verify()?;
        assert_eq!(later.graph.replays(), 2);
        assert_eq!(decoder.next.to_vec::<i64>()?, [13]);
        close(&found, &whole(13), 2e-5);
        Ok(())
    })
}

#[test]
fn caches_survive_replays_and_captures_on_all_ranks() {
    for ranks in [1, 2, 3] {
        run_ranks(&simulated_devices(ranks).unwrap(), |group| decoded(&group)).unwrap();
    }
}

#[test]
fn cached_decoding_has_no_race() {
    checked(4, 2, |group, _| decoded(group));
}
