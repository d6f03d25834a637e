//! The network: two convolutions, each with ReLU and pooling, and two linear layers.

use thalweg::functional::{ConvOptions, PoolOptions, max_pool2d};
use thalweg::module::{Conv2d, Forward, Linear, Module};
use thalweg::random::Generator;
use thalweg::{Device, Result, Tensor};

#[derive(Module)]
pub struct Network {
    conv1: Conv2d,
    conv2: Conv2d,
    linear1: Linear,
    linear2: Linear,
}

const SAME: ConvOptions<2> = ConvOptions { stride: [1; 2], padding: [1; 2], dilation: [1; 2], groups: 1 };

impl Network {
    pub fn new(generator: &mut Generator, device: &Device) -> Result<Self> {
        Ok(Self {
            conv1: Conv2d::new(1, 16, [3; 2], SAME, generator, device)?,
            conv2: Conv2d::new(16, 32, [3; 2], SAME, generator, device)?,
            linear1: Linear::new(32 * 2 * 2, 64, generator, device)?,
            linear2: Linear::new(64, 10, generator, device)?,
        })
    }
}

impl Forward for Network {
    /// Maps images (count, 1, 8, 8) to scores (count, 10).
    fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let halved = |x: &Tensor| max_pool2d(x, [2, 2], PoolOptions::default());
        let x = halved(&self.conv1.forward(images)?.relu()?)?;
        let x = halved(&self.conv2.forward(&x)?.relu()?)?;
        let x = self.linear1.forward(&x.flatten_from(1)?)?.relu()?;
        self.linear2.forward(&x)
    }
}
