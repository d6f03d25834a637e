//! A U-Net: down to a quarter of the resolution and back by transposed convolutions, joined with the results on the way down.

use thalweg_nn::functional::{ConvOptions, PoolOptions, max_pool2d};
use thalweg_nn::module::{
    BatchNorm2d, BatchNormOptions, Conv2d, ConvTranspose2d, Forward, Module, ReLU, Sequential, StateDict,
};
use thalweg_nn::optim::AdamOptions;
use thalweg_runtime::{Device, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::Generator;

use super::Network;

/// Returns a convolution with its normalization, twice.
fn twice(inputs: usize, outputs: usize, g: &mut Generator, d: &Device) -> Result<Sequential> {
    let mut sequence = Sequential::new();
    for inputs in [inputs, outputs] {
        let options = ConvOptions { padding: [1, 1], ..ConvOptions::default() };
        sequence = sequence
            .then(Conv2d::without_bias(inputs, outputs, [3, 3], options, g, d)?)
            .then(BatchNorm2d::new(outputs, BatchNormOptions::default(), d)?)
            .then(ReLU {});
    }
    Ok(sequence)
}

#[derive(Module)]
pub struct UNet {
    down1: Sequential,
    down2: Sequential,
    middle: Sequential,
    up2: ConvTranspose2d,
    merge2: Sequential,
    up1: ConvTranspose2d,
    merge1: Sequential,
    out: Conv2d,
}

fn halved(x: &Tensor) -> Result<Tensor> {
    max_pool2d(x, [2, 2], PoolOptions::default())
}

impl Network for UNet {
    type Options = AdamOptions;

    const SMOOTH_STEPS: usize = 12;

    fn new(g: &mut Generator, d: &Device) -> Result<Self> {
        let two = ConvOptions { stride: [2, 2], ..ConvOptions::default() };
        let wide = ConvOptions { padding: [1, 1], ..two };
        Ok(Self {
            down1: twice(1, 8, g, d)?,
            down2: twice(8, 16, g, d)?,
            middle: twice(16, 24, g, d)?,
            up2: ConvTranspose2d::new(24, 16, [2, 2], two, g, d)?,
            merge2: twice(32, 16, g, d)?,
            up1: ConvTranspose2d::new(16, 8, [4, 4], wide, g, d)?,
            merge1: twice(16, 8, g, d)?,
            out: Conv2d::new(8, 1, [1, 1], ConvOptions::default(), g, d)?,
        })
    }

    fn forward(&self, batch: &StateDict) -> Result<Tensor> {
        let one = self.down1.forward(&batch["images"])?;
        let two = self.down2.forward(&halved(&one)?)?;
        let x = self.up2.forward(&self.middle.forward(&halved(&two)?)?)?;
        let x = self.merge2.forward(&Tensor::cat(&[two, x], 1)?)?;
        let x = self.merge1.forward(&Tensor::cat(&[one, self.up1.forward(&x)?], 1)?)?;
        self.out.forward(&x)
    }

    fn loss(&self, output: &Tensor, batch: &StateDict) -> Result<Tensor> {
        output.binary_cross_entropy_with_logits(&batch["masks"])
    }

    fn options() -> AdamOptions {
        AdamOptions { lr: 2e-3, ..AdamOptions::default() }
    }
}
