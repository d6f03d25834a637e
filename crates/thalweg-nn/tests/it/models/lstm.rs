//! A language model: a two-layer LSTM over packed sequences, whose decoder shares the weight of its embedding.

use thalweg_nn::functional::cross_entropy;
use thalweg_nn::module::{
    Embedding, Forward, LSTM, Linear, Module, PackedSequence, RecurrentOptions, StateDict,
    pack_padded_sequence,
};
use thalweg_nn::optim::SgdOptions;
use thalweg_runtime::{Device, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::Generator;

use super::Network;

#[derive(Module)]
pub struct LanguageModel {
    encoder: Embedding,
    rnn: LSTM,
    decoder: Linear,
}

fn packed(x: &Tensor, batch: &StateDict) -> Result<PackedSequence> {
    let lengths: Vec<usize> =
        batch["lengths"].to_vec::<i64>()?.into_iter().map(|length| length as usize).collect();
    pack_padded_sequence(x, &lengths, true, false)
}

impl Network for LanguageModel {
    type Options = SgdOptions;

    fn new(g: &mut Generator, d: &Device) -> Result<Self> {
        let options = RecurrentOptions { num_layers: 2, batch_first: true, ..RecurrentOptions::default() };
        let encoder = Embedding::new(40, 24, g, d)?;
        let rnn = LSTM::new(24, 24, options, g, d)?;
        let decoder = Linear { weight: encoder.weight.clone(), ..Linear::new(24, 40, g, d)? };
        Ok(Self { encoder, rnn, decoder })
    }

    fn forward(&self, batch: &StateDict) -> Result<Tensor> {
        let sequence = packed(&self.encoder.forward(&batch["tokens"])?, batch)?;
        let (result, _) = self.rnn.forward_packed(&sequence, None)?;
        self.decoder.forward(&result.data)
    }

    fn loss(&self, output: &Tensor, batch: &StateDict) -> Result<Tensor> {
        cross_entropy(output, &packed(&batch["next"], batch)?.data)
    }

    fn options() -> SgdOptions {
        SgdOptions { lr: 1.0, momentum: 0.5, nesterov: true, ..SgdOptions::default() }
    }
}
