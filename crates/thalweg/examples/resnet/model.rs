//! A residual network of bottlenecks, with torchvision's names of weights.

use thalweg::functional::{ConvOptions, PoolOptions, max_pool2d};
use thalweg::module::{BatchNorm2d, BatchNormOptions, Conv2d, Forward, Linear, Module, Sequential};
use thalweg::random::Generator;
use thalweg::{Device, Result, Tensor};

/// Channels inside the bottlenecks of each layer.
const WIDTHS: [usize; 2] = [8, 16];

/// A result of a bottleneck has so many times its channels.
const EXPANSION: usize = 4;

fn conv(channels: [usize; 2], kernel: usize, stride: usize, g: &mut Generator, d: &Device) -> Result<Conv2d> {
    let options = ConvOptions { stride: [stride; 2], padding: [kernel / 2; 2], ..ConvOptions::default() };
    Conv2d::without_bias(channels[0], channels[1], [kernel; 2], options, g, d)
}

fn norm(channels: usize, d: &Device) -> Result<BatchNorm2d> {
    BatchNorm2d::new(channels, BatchNormOptions::default(), d)
}

#[derive(Module)]
struct Bottleneck {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    conv3: Conv2d,
    bn3: BatchNorm2d,
    /// Makes the input as small and as deep as the result.
    downsample: Option<Sequential>,
}

impl Bottleneck {
    fn new(inputs: usize, width: usize, stride: usize, g: &mut Generator, d: &Device) -> Result<Self> {
        let outputs = EXPANSION * width;
        let downsample = match (stride, inputs == outputs) {
            (1, true) => None,
            _ => Some(
                Sequential::new().then(conv([inputs, outputs], 1, stride, g, d)?).then(norm(outputs, d)?),
            ),
        };
        Ok(Self {
            conv1: conv([inputs, width], 1, 1, g, d)?,
            bn1: norm(width, d)?,
            conv2: conv([width, width], 3, stride, g, d)?,
            bn2: norm(width, d)?,
            conv3: conv([width, outputs], 1, 1, g, d)?,
            bn3: norm(outputs, d)?,
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

impl ResNet {
    pub fn new(classes: usize, g: &mut Generator, d: &Device) -> Result<Self> {
        let stem = 16;
        let conv1 = conv([1, stem], 7, 2, g, d)?;
        let mut layer = |inputs: usize, width: usize, stride: usize| -> Result<Sequential> {
            let first = Bottleneck::new(inputs, width, stride, g, d)?;
            Ok(Sequential::new().then(first).then(Bottleneck::new(EXPANSION * width, width, 1, g, d)?))
        };
        let layer1 = layer(stem, WIDTHS[0], 1)?;
        let layer2 = layer(EXPANSION * WIDTHS[0], WIDTHS[1], 2)?;
        let fc = Linear::new(EXPANSION * WIDTHS[1], classes, g, d)?;
        Ok(Self { conv1, bn1: norm(stem, d)?, layer1, layer2, fc })
    }
}

impl Forward for ResNet {
    /// Images (count, 1, 32, 32) to scores (count, classes).
    fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let x = self.bn1.forward(&self.conv1.forward(images)?)?.relu()?;
        let pool = PoolOptions { stride: Some([2, 2]), padding: 1, ..PoolOptions::default() };
        let x = self.layer2.forward(&self.layer1.forward(&max_pool2d(&x, [3, 3], pool)?)?)?;
        self.fc.forward(&x.mean(&[-2, -1], false)?)
    }
}
