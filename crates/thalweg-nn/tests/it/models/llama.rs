//! Llama.

use thalweg_nn::functional::cross_entropy;
use thalweg_nn::models::llama::{LlamaConfig, LlamaForCausalLM};
use thalweg_nn::module::{Forward, StateDict};
use thalweg_nn::optim::AdamWOptions;
use thalweg_runtime::{Device, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::Generator;

use super::Network;

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
