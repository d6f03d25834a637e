//! BERT with a classifier.

use thalweg_nn::functional::cross_entropy;
use thalweg_nn::models::bert::{BertConfig, BertForSequenceClassification};
use thalweg_nn::module::StateDict;
use thalweg_nn::optim::AdamWOptions;
use thalweg_runtime::{Device, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::Generator;

use super::Network;

impl Network for BertForSequenceClassification {
    type Options = AdamWOptions;

    fn new(g: &mut Generator, d: &Device) -> Result<Self> {
        let config = BertConfig {
            vocab_size: 50,
            hidden_size: 32,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            intermediate_size: 64,
            max_position_embeddings: 12,
            ..BertConfig::default()
        };
        Self::new(&config, 3, g, d)
    }

    fn forward(&self, batch: &StateDict) -> Result<Tensor> {
        let tokens = &batch["tokens"];
        self.forward(tokens, &batch["types"], &tokens.ne_scalar(0)?)
    }

    fn loss(&self, output: &Tensor, batch: &StateDict) -> Result<Tensor> {
        cross_entropy(output, &batch["classes"])
    }

    fn options() -> AdamWOptions {
        AdamWOptions { lr: 2e-3, weight_decay: 0.01, ..AdamWOptions::default() }
    }
}
