//! The blocks of GPT-2 and a function that makes them on a device, for the benchmarks of training.

use thalweg_ir::DType;
use thalweg_nn::functional::{self, AttentionOptions};
use thalweg_nn::module::{Embedding, Forward, LayerNorm, Linear, Module};
use thalweg_runtime::{Device, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::DeviceGenerator;

pub const VOCABULARY: usize = 50_304;

/// The arguments of the program.
pub struct Arguments(Vec<String>);

impl Arguments {
    pub fn of_program() -> Self {
        Self(std::env::args().collect())
    }

    pub fn has(&self, flag: &str) -> bool {
        self.0.iter().any(|argument| argument == flag)
    }

    pub fn after(&self, flag: &str) -> Option<&String> {
        self.0.get(self.0.iter().position(|argument| argument == flag)? + 1)
    }

    pub fn number(&self, flag: &str, default: usize) -> usize {
        self.after(flag).map_or(default, |text| text.parse().expect("a whole number"))
    }
}

#[derive(Module)]
pub struct Block {
    norm1: LayerNorm,
    qkv: Linear,
    projection: Linear,
    norm2: LayerNorm,
    expand: Linear,
    contract: Linear,
    #[module(skip)]
    heads: usize,
}

impl Forward for Block {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [batch, tokens, features] = [x.shape()[0], x.shape()[1], x.shape()[2]];
        let packed = self.qkv.forward(&self.norm1.forward(x)?)?;
        let parts = packed.reshape(&[batch, tokens, 3, self.heads, features / self.heads])?.unbind(2)?;
        let heads = |part: usize| parts[part].transpose(1, 2);
        let options = AttentionOptions { is_causal: true, ..AttentionOptions::default() };
        let heads = functional::scaled_dot_product_attention(&heads(0)?, &heads(1)?, &heads(2)?, options)?;
        let heads = heads.transpose(1, 2)?.reshape(&[batch, tokens, features])?;
        let x = x.add(&self.projection.forward(&heads)?)?;
        x.add(&self.contract.forward(&self.expand.forward(&self.norm2.forward(&x)?)?.gelu_tanh()?)?)
    }
}

/// A maker of weights on the device, of which the large ones would take the host too long.
pub struct Maker {
    pub generator: DeviceGenerator,
    pub device: Device,
}

impl Maker {
    fn weight(&self, shape: &[usize]) -> Result<Tensor> {
        self.generator.normal(shape, 0.0, 0.02, DType::F32)?.requires_grad_()
    }

    fn linear(&self, inputs: usize, outputs: usize) -> Result<Linear> {
        let bias = Tensor::zeros(&[outputs], DType::F32, &self.device)?.requires_grad_()?;
        Ok(Linear { weight: self.weight(&[outputs, inputs])?, bias: Some(bias) })
    }

    pub fn embedding(&self, rows: usize, features: usize) -> Result<Embedding> {
        Ok(Embedding { weight: self.weight(&[rows, features])?, padding_idx: None })
    }

    pub fn block(&self, features: usize, heads: usize) -> Result<Block> {
        Ok(Block {
            norm1: LayerNorm::new(features, &self.device)?,
            qkv: self.linear(features, 3 * features)?,
            projection: self.linear(features, features)?,
            norm2: LayerNorm::new(features, &self.device)?,
            expand: self.linear(features, 4 * features)?,
            contract: self.linear(4 * features, features)?,
            heads,
        })
    }
}
