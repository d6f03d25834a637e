//! Llama.

use std::collections::BTreeSet;

use thalweg_ir::DType;
use thalweg_nn::functional::cross_entropy;
use thalweg_nn::models::DecodeOptions;
use thalweg_nn::models::llama::{LlamaConfig, LlamaForCausalLM};
use thalweg_nn::module::{Forward, IntegerFormat, Module, StateDict};
use thalweg_nn::optim::AdamWOptions;
use thalweg_runtime::{Device, Result};
use thalweg_tensor::random::Generator;
use thalweg_tensor::{Tensor, no_grad};

use super::Network;
use crate::support::device;

impl Network for LlamaForCausalLM {
    type Options = AdamWOptions;

    fn new(g: &mut Generator, d: &Device) -> Result<Self> {
        let config = LlamaConfig {
            vocab_size: 53,
            hidden_size: 32,
            intermediate_size: 48,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            ..LlamaConfig::default()
        };
        Self::new(config, g, d)
    }

    fn forward(&self, batch: &StateDict) -> Result<Tensor> {
        Forward::forward(self, &batch["tokens"])
    }

    fn loss(&self, output: &Tensor, batch: &StateDict) -> Result<Tensor> {
        cross_entropy(&output.flatten(0, 1)?, &batch["next"].flatten(0, -1)?)
    }

    fn options() -> AdamWOptions {
        AdamWOptions { lr: 3e-3, betas: (0.9, 0.95), weight_decay: 0.1, ..AdamWOptions::default() }
    }
}

#[test]
fn a_decoder_continues_as_the_model_does() {
    let device = device();
    let config = LlamaConfig {
        vocab_size: 61,
        hidden_size: 64,
        intermediate_size: 96,
        num_hidden_layers: 3,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        ..LlamaConfig::default()
    };
    let model = LlamaForCausalLM::new(config, &mut Generator::new(4), &device).unwrap();
    no_grad(|| {
        let weights = model.state_dict().into_iter();
        let of_layers = weights.filter(|(name, weight)| name.contains(".layers.") && weight.rank() == 2);
        of_layers.for_each(|(_, weight)| weight.mul_scalar_(3.0).unwrap());
    });
    let best = |found: &[i64]| -> Vec<i64> {
        let sequence = Tensor::from_slice(found, &[1, found.len()], &device).unwrap();
        let scores = no_grad(|| Forward::forward(&model, &sequence)).unwrap();
        scores.argmax(-1).unwrap().to_vec().unwrap()
    };
    let options = DecodeOptions { dtype: DType::F32, ..DecodeOptions::default() };
    let decoder = model.decoder(20, options).unwrap();
    for prompt in [&[5_i64][..], &[7, 60, 0, 33]] {
        let found = decoder.generate(prompt, 20 - prompt.len()).unwrap();
        // Each token is the likeliest after those before it, according to the full model.
        assert_eq!(found[prompt.len()..], best(&found)[prompt.len() - 1..19], "after {prompt:?}");
        let distinct: BTreeSet<_> = found.iter().collect();
        assert!(distinct.len() > 3, "{found:?}");
    }
    // In 16 bits, by one kernel, most of the tokens are the likeliest according to the model in f32; with integers, some are.
    let narrow = model.decoder(20, DecodeOptions::default()).unwrap();
    let integers = Some(IntegerFormat::Int8);
    for (decoder, least) in
        [(narrow, 14), (model.decoder(20, DecodeOptions { integers, ..options }).unwrap(), 12)]
    {
        let found = decoder.generate(&[5], 19).unwrap();
        let same = found[1..].iter().zip(best(&found)).filter(|(found, best)| *found == best).count();
        assert!(same >= least, "{same} of 19: {found:?}");
    }
    assert!(model.decoder(0, options).unwrap_err().is_invalid_argument());
}
