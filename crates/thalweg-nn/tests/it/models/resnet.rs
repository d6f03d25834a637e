//! A residual network of two layers.

use thalweg_nn::functional::cross_entropy;
use thalweg_nn::models::resnet::{ResNet, ResNetConfig};
use thalweg_nn::module::{Forward, StateDict};
use thalweg_nn::optim::SgdOptions;
use thalweg_runtime::{Device, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::Generator;

use super::Network;

impl Network for ResNet {
    type Options = SgdOptions;

    const SMOOTH_STEPS: usize = 12;

    fn new(g: &mut Generator, d: &Device) -> Result<Self> {
        let config = ResNetConfig { channels: 3, stem: 8, layers: vec![(4, 2), (8, 2)], classes: 5 };
        Self::new(&config, g, d)
    }

    fn full(g: &mut Generator, d: &Device) -> Result<Self> {
        Self::new(&ResNetConfig::default(), g, d)
    }

    fn forward(&self, batch: &StateDict) -> Result<Tensor> {
        Forward::forward(self, &batch["images"])
    }

    fn loss(&self, output: &Tensor, batch: &StateDict) -> Result<Tensor> {
        cross_entropy(output, &batch["classes"])
    }

    fn options() -> SgdOptions {
        SgdOptions { lr: 0.005, momentum: 0.9, weight_decay: 1e-4, ..SgdOptions::default() }
    }
}
