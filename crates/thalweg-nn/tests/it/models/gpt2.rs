//! GPT-2.

use thalweg_nn::functional::cross_entropy;
use thalweg_nn::models::gpt2::{GPT2Config, GPT2LMHeadModel};
use thalweg_nn::module::{Forward, StateDict};
use thalweg_nn::optim::AdamWOptions;
use thalweg_runtime::{Device, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::Generator;

use super::Network;

impl Network for GPT2LMHeadModel {
    type Options = AdamWOptions;

    fn new(g: &mut Generator, d: &Device) -> Result<Self> {
        let config = GPT2Config { vocab_size: 61, n_positions: 16, n_embd: 32, n_layer: 2, n_head: 4 };
        Self::new(config, g, d)
    }

    fn forward(&self, batch: &StateDict) -> Result<Tensor> {
        Forward::forward(self, &batch["tokens"])
    }

    fn loss(&self, output: &Tensor, batch: &StateDict) -> Result<Tensor> {
        cross_entropy(&output.flatten(0, 1)?, &batch["next"].flatten(0, -1)?)
    }

    fn options() -> AdamWOptions {
        AdamWOptions { learning_rate: 3e-3, weight_decay: 0.1, ..AdamWOptions::default() }
    }
}
