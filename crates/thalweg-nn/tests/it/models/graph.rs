//! A graph network: the sum of the messages of a node's neighbours changes its state; nodes are summed per graph.

use thalweg_nn::module::{Forward, GRUCell, Linear, Module, StateDict};
use thalweg_nn::optim::AdamWOptions;
use thalweg_runtime::{Device, Result};
use thalweg_tensor::random::Generator;
use thalweg_tensor::{Tensor, i};

use super::Network;

#[derive(Module)]
struct Messages {
    message: Linear,
    update: GRUCell,
}

impl Messages {
    fn forward(&self, nodes: &Tensor, edges: &Tensor, of_edges: &Tensor) -> Result<Tensor> {
        let (source, target) = (edges.i(i![0])?, edges.i(i![1])?);
        let pairs = [nodes.i(i![source])?, nodes.index_select(0, &target)?, of_edges.clone()];
        let messages = self.message.forward(&Tensor::cat(&pairs, 1)?)?.silu()?;
        let collected = nodes.zeros_like()?.index_add(0, &target, &messages)?;
        Ok(self.update.forward(&collected, Some(std::slice::from_ref(nodes)))?.remove(0))
    }
}

#[derive(Module)]
pub struct GraphNetwork {
    encode: Linear,
    layers: Vec<Messages>,
    decode: Linear,
}

impl Network for GraphNetwork {
    type Options = AdamWOptions;

    fn new(g: &mut Generator, d: &Device) -> Result<Self> {
        let mut layer = || {
            Ok(Messages { message: Linear::new(34, 16, g, d)?, update: GRUCell::new(16, 16, true, g, d)? })
        };
        let layers = (0..3).map(|_| layer()).collect::<Result<_>>()?;
        Ok(Self { encode: Linear::new(5, 16, g, d)?, layers, decode: Linear::new(16, 2, g, d)? })
    }

    fn forward(&self, batch: &StateDict) -> Result<Tensor> {
        let mut nodes = self.encode.forward(&batch["nodes"])?.tanh()?;
        for layer in &self.layers {
            nodes = layer.forward(&nodes, &batch["edges"], &batch["of_edges"])?;
        }
        let graphs = batch["graphs"].i(i![.., None])?.expand_as(&nodes)?;
        let sums = Tensor::zeros(&[3, 16], nodes.dtype(), nodes.device())?.scatter_add(0, &graphs, &nodes)?;
        self.decode.forward(&sums)
    }

    fn loss(&self, output: &Tensor, batch: &StateDict) -> Result<Tensor> {
        output.mse_loss(&batch["wanted"])
    }

    fn options() -> AdamWOptions {
        AdamWOptions { lr: 5e-3, weight_decay: 0.01, amsgrad: true, ..AdamWOptions::default() }
    }
}
