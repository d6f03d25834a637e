//! GPT-2.

use std::collections::BTreeSet;

use thalweg_ir::DType;
use thalweg_nn::functional::cross_entropy;
use thalweg_nn::models::DecodeOptions;
use thalweg_nn::models::gpt2::{GPT2Config, GPT2LMHeadModel};
use thalweg_nn::module::{Forward, IntegerFormat, Linear, Module, StateDict, WeightOnlyLinear};
use thalweg_nn::optim::AdamWOptions;
use thalweg_runtime::graph::CaptureOptions;
use thalweg_runtime::{Device, Graph, Result};
use thalweg_tensor::random::{Generator, default_generator};
use thalweg_tensor::{Tensor, no_grad};

use super::Network;
use crate::support::device;

impl Network for GPT2LMHeadModel {
    type Options = AdamWOptions;

    fn new(g: &mut Generator, d: &Device) -> Result<Self> {
        let config = GPT2Config { vocab_size: 61, n_positions: 16, n_embd: 32, n_layer: 2, n_head: 4 };
        Self::new(config, g, d)
    }

    fn full(g: &mut Generator, d: &Device) -> Result<Self> {
        Self::new(GPT2Config::default(), g, d)
    }

    fn forward(&self, batch: &StateDict) -> Result<Tensor> {
        Forward::forward(self, &batch["tokens"])
    }

    fn loss(&self, output: &Tensor, batch: &StateDict) -> Result<Tensor> {
        cross_entropy(&output.flatten(0, 1)?, &batch["next"].flatten(0, -1)?)
    }

    fn options() -> AdamWOptions {
        AdamWOptions { lr: 3e-3, weight_decay: 0.1, ..AdamWOptions::default() }
    }
}

/// Returns a model whose predicted tokens differ: with the usual random weights, every token would have nearly the same score.
fn with_distinct_predictions(device: &Device) -> GPT2LMHeadModel {
    let config = GPT2Config { vocab_size: 61, n_positions: 20, n_embd: 64, n_layer: 3, n_head: 2 };
    let model = GPT2LMHeadModel::new(config, &mut Generator::new(4), device).unwrap();
    no_grad(|| {
        for (_, weight) in model.state_dict() {
            if weight.rank() == 2 && weight.shape() != [61, 64] {
                weight.mul_scalar_(8.0).unwrap();
            }
        }
    });
    model
}

#[test]
fn a_decoder_continues_as_the_model_does() {
    let device = device();
    let model = with_distinct_predictions(&device);
    let decoder = model.decoder(DecodeOptions { dtype: DType::F32, ..DecodeOptions::default() }).unwrap();
    for prompt in [&[5_i64][..], &[7, 60, 0, 33]] {
        let count = 20 - prompt.len();
        let found = decoder.generate(prompt, count).unwrap();
        assert_eq!(found[..prompt.len()], *prompt);
        // Each token is the likeliest after those before it, according to the full model.
        let sequence = Tensor::from_slice(&found, &[1, found.len()], &device).unwrap();
        let scores = no_grad(|| Forward::forward(&model, &sequence)).unwrap();
        let best: Vec<i64> = scores.argmax(-1).unwrap().to_vec().unwrap();
        assert_eq!(found[prompt.len()..], best[prompt.len() - 1..19], "behind {prompt:?}");
        let distinct: BTreeSet<_> = found.iter().collect();
        assert!(distinct.len() > 3, "{found:?}");
    }
}

#[test]
fn a_captured_step_in_16_bits_continues_likewise_and_draws_by_temperature() {
    let device = device();
    let model = with_distinct_predictions(&device);
    for (dtype, temperature) in [(DType::Bf16, None), (DType::F16, None), (DType::Bf16, Some(0.7))] {
        let decoder =
            model.decoder(DecodeOptions { dtype, temperature, ..DecodeOptions::default() }).unwrap();
        let start = || {
            default_generator(&device).unwrap().manual_seed(3).unwrap();
            decoder.restart(&[7, 60]).unwrap();
        };
        start();
        (0..15).for_each(|_| decoder.step().unwrap());
        let eager = decoder.sequence(17).unwrap();
        let (graph, ()) = Graph::capture(&device, CaptureOptions::default(), || decoder.step()).unwrap();
        start();
        (0..15).for_each(|_| graph.replay().unwrap());
        assert_eq!(decoder.sequence(17).unwrap(), eager, "{dtype} {temperature:?}");
    }
}

#[test]
fn a_decoder_with_integers_continues_as_one_with_the_floats_that_they_stand_for() {
    let device = device();
    let model = with_distinct_predictions(&device);
    for format in [IntegerFormat::Int8, IntegerFormat::Int4 { group: 32 }] {
        let rounded = with_distinct_predictions(&device);
        no_grad(|| {
            for (name, weight) in rounded.state_dict() {
                if !(weight.rank() == 2 && name.contains(".c_")) {
                    continue;
                }
                let [inputs, outputs] = [weight.shape()[0], weight.shape()[1]];
                let layer =
                    Linear { weight: weight.transpose(0, 1).unwrap().contiguous().unwrap(), bias: None };
                let integers = WeightOnlyLinear::of(&layer, format).unwrap();
                let floats =
                    integers.forward(&Tensor::eye(inputs, inputs, DType::F32, &device).unwrap()).unwrap();
                assert_eq!(floats.shape(), [inputs, outputs]);
                weight.copy_(&floats).unwrap();
            }
        });
        let floats = DecodeOptions { dtype: DType::F32, ..DecodeOptions::default() };
        let expected = rounded.decoder(floats).unwrap().generate(&[7, 60], 18).unwrap();
        let decoder = model.decoder(DecodeOptions { integers: Some(format), ..floats }).unwrap();
        assert_eq!(decoder.generate(&[7, 60], 18).unwrap(), expected, "{format:?}");
        let (graph, ()) = Graph::capture(&device, CaptureOptions::default(), || decoder.step()).unwrap();
        decoder.restart(&[7, 60]).unwrap();
        (0..18).for_each(|_| graph.replay().unwrap());
        assert_eq!(decoder.sequence(20).unwrap(), expected, "{format:?}, captured");
        let short = DecodeOptions { integers: Some(format), ..DecodeOptions::default() };
        assert_eq!(model.decoder(short).unwrap().generate(&[7, 60], 18).unwrap().len(), 20);
    }
}

#[test]
fn what_a_decoder_cannot_continue_is_refused() {
    let device = device();
    let model = with_distinct_predictions(&device);
    let decoder = model.decoder(DecodeOptions::default()).unwrap();
    for (prompt, count, part) in [
        (&[][..], 1, "1 to 20 tokens"),
        (&[1; 21][..], 0, "do not fit"),
        (&[1; 15][..], 6, "do not fit"),
        (&[61][..], 1, "token 61"),
        (&[-1][..], 1, "token -1"),
    ] {
        let error = decoder.generate(prompt, count).unwrap_err();
        assert!(error.is_invalid_argument() && error.to_string().contains(part), "{error}");
    }
    assert_eq!(decoder.generate(&[3], 4).unwrap().len(), 5, "a refused call leaves the decoder as it was");
    for temperature in [0.0, -1.0, f64::NAN] {
        let options = DecodeOptions { temperature: Some(temperature), ..DecodeOptions::default() };
        assert!(model.decoder(options).unwrap_err().is_invalid_argument());
    }
}
