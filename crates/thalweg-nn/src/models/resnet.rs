//! Residual networks of bottlenecks, with the names of torchvision's weights.

use thalweg_derive::enter;
use thalweg_runtime::{Device, Error, Result, options, refuse};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::Generator;

use crate::functional::{ConvOptions, PoolOptions, max_pool2d};
use crate::module::{BatchNorm2d, BatchNormOptions, Conv2d, Forward, Linear, Module, Sequential};

/// The ratio of a bottleneck's output channels to its inner channels.
const EXPANSION: usize = 4;

options! {
    /// The sizes of a [`ResNet`]; the defaults are those of `resnet50`.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct ResNetConfig {
        /// The number of channels of an image.
        pub channels: usize = 3,
        /// The number of channels after the first convolution.
        pub stem: usize = 64,
        /// The layers, from one to four: for each, the inner channels of its bottlenecks and the number of its bottlenecks. Each
        /// layer after the first halves height and width.
        pub layers: Vec<(usize, usize)> = vec![(64, 3), (128, 4), (256, 6), (512, 3)],
        /// The number of classes.
        pub classes: usize = 1000,
    }
}

/// Returns a convolution without a bias, padded so that only the stride reduces the size of its result.
fn conv(channels: [usize; 2], kernel: usize, stride: usize, g: &mut Generator, d: &Device) -> Result<Conv2d> {
    let options = ConvOptions { stride: [stride; 2], padding: [kernel / 2; 2], ..ConvOptions::default() };
    Conv2d::without_bias(channels[0], channels[1], [kernel; 2], options, g, d)
}

fn norm(channels: usize, d: &Device) -> Result<BatchNorm2d> {
    BatchNorm2d::new(channels, BatchNormOptions::default(), d)
}

/// Three convolutions with a residual connection. The middle convolution has few channels.
#[derive(Module)]
pub struct Bottleneck {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    conv3: Conv2d,
    bn3: BatchNorm2d,
    /// The projection of the input to the size and channels of the result.
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

/// A residual network that scores classes of images (`torchvision.models.ResNet` of bottlenecks).
#[derive(Module)]
pub struct ResNet {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    layer1: Sequential,
    layer2: Option<Sequential>,
    layer3: Option<Sequential>,
    layer4: Option<Sequential>,
    fc: Linear,
}

impl ResNet {
    /// Makes a network with random weights in f32, in training mode.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if there are not one to four layers, each with at least one bottleneck.
    pub fn new(config: &ResNetConfig, g: &mut Generator, d: &Device) -> Result<Self> {
        let ResNetConfig { channels, stem, ref layers, classes } = *config;
        if !(1..=4).contains(&layers.len()) || layers.iter().any(|&(_, blocks)| blocks == 0) {
            refuse!("a residual network has one to four layers of at least one block, not {layers:?}");
        }
        let conv1 = conv([channels, stem], 7, 2, g, d)?;
        let (mut inputs, mut made) = (stem, Vec::new());
        for (index, &(width, blocks)) in layers.iter().enumerate() {
            let mut layer = Sequential::new();
            for block in 0..blocks {
                let stride = if index > 0 && block == 0 { 2 } else { 1 };
                layer = layer.then(Bottleneck::new(inputs, width, stride, g, d)?);
                inputs = EXPANSION * width;
            }
            made.push(layer);
        }
        let mut made = made.into_iter();
        Ok(Self {
            conv1,
            bn1: norm(stem, d)?,
            layer1: made.next().unwrap_or_else(Sequential::new),
            layer2: made.next(),
            layer3: made.next(),
            layer4: made.next(),
            fc: Linear::new(inputs, classes, g, d)?,
        })
    }
}

impl Forward for ResNet {
    /// Returns the scores of the classes, (count, classes), for images (count, channels, height, width). Asynchronous.
    #[enter]
    fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let x = self.bn1.forward(&self.conv1.forward(images)?)?.relu()?;
        let pool = PoolOptions { stride: Some([2, 2]), padding: 1, ..PoolOptions::default() };
        let mut x = self.layer1.forward(&max_pool2d(&x, [3, 3], pool)?)?;
        for layer in [&self.layer2, &self.layer3, &self.layer4].into_iter().flatten() {
            x = layer.forward(&x)?;
        }
        self.fc.forward(&x.adaptive_avg_pool2d(&[1, 1])?.flatten(1, -1)?)
    }
}
