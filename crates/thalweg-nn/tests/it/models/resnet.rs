//! A residual network of bottlenecks with the names of torchvision's weights.

use thalweg_nn::functional::{ConvOptions, PoolOptions, cross_entropy, max_pool2d};
use thalweg_nn::module::{
    BatchNorm2d, BatchNormOptions, Conv2d, Forward, Linear, Module, Sequential, StateDict,
};
use thalweg_nn::optim::SgdOptions;
use thalweg_runtime::{Device, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::Generator;

use super::Network;

/// A convolution without a bias, of which so much of the border is zeros that only the stride makes its result smaller.
fn conv(
    inputs: usize,
    outputs: usize,
    kernel: usize,
    stride: usize,
    g: &mut Generator,
    d: &Device,
) -> Result<Conv2d> {
    let options = ConvOptions { stride: [stride; 2], padding: [kernel / 2; 2], ..ConvOptions::default() };
    Conv2d::without_bias(inputs, outputs, [kernel; 2], options, g, d)
}

fn norm(features: usize, d: &Device) -> Result<BatchNorm2d> {
    BatchNorm2d::new(features, BatchNormOptions::default(), d)
}

#[derive(Module)]
struct Bottleneck {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    conv3: Conv2d,
    bn3: BatchNorm2d,
    downsample: Option<Sequential>,
}

impl Bottleneck {
    fn new(inputs: usize, width: usize, stride: usize, g: &mut Generator, d: &Device) -> Result<Self> {
        let downsample = match (stride, inputs == 4 * width) {
            (1, true) => None,
            _ => Some(
                Sequential::new().then(conv(inputs, 4 * width, 1, stride, g, d)?).then(norm(4 * width, d)?),
            ),
        };
        Ok(Self {
            conv1: conv(inputs, width, 1, 1, g, d)?,
            bn1: norm(width, d)?,
            conv2: conv(width, width, 3, stride, g, d)?,
            bn2: norm(width, d)?,
            conv3: conv(width, 4 * width, 1, 1, g, d)?,
            bn3: norm(4 * width, d)?,
            downsample,
        })
    }
}

impl Forward for Bottleneck {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let past = match &self.downsample {
            None => x.clone(),
            Some(downsample) => downsample.forward(x)?,
        };
        let y = self.bn1.forward(&self.conv1.forward(x)?)?.relu()?;
        let y = self.bn2.forward(&self.conv2.forward(&y)?)?.relu()?;
        (self.bn3.forward(&self.conv3.forward(&y)?)? + past)?.relu()
    }
}

#[derive(Module)]
pub struct ResNet {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    layer1: Sequential,
    layer2: Sequential,
    fc: Linear,
}

impl Network for ResNet {
    type Options = SgdOptions;

    fn new(g: &mut Generator, d: &Device) -> Result<Self> {
        let mut block = |inputs, width, stride| Bottleneck::new(inputs, width, stride, g, d);
        let layer1 = Sequential::new().then(block(8, 4, 1)?).then(block(16, 4, 1)?);
        let layer2 = Sequential::new().then(block(16, 8, 2)?).then(block(32, 8, 1)?);
        Ok(Self {
            conv1: conv(3, 8, 7, 2, g, d)?,
            bn1: norm(8, d)?,
            layer1,
            layer2,
            fc: Linear::new(32, 5, g, d)?,
        })
    }

    fn forward(&self, batch: &StateDict) -> Result<Tensor> {
        let x = self.bn1.forward(&self.conv1.forward(&batch["images"])?)?.relu()?;
        let x = max_pool2d(
            &x,
            [3, 3],
            PoolOptions { stride: Some([2, 2]), padding: 1, ..PoolOptions::default() },
        )?;
        let x = self.layer2.forward(&self.layer1.forward(&x)?)?;
        self.fc.forward(&x.adaptive_avg_pool2d(&[1, 1])?.flatten(1, -1)?)
    }

    fn loss(&self, output: &Tensor, batch: &StateDict) -> Result<Tensor> {
        cross_entropy(output, &batch["classes"])
    }

    fn options() -> SgdOptions {
        SgdOptions { learning_rate: 0.005, momentum: 0.9, weight_decay: 1e-4, ..SgdOptions::default() }
    }
}
