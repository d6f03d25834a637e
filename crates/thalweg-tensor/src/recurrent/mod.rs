//! Recurrent networks: layers over sequences, with PyTorch's names and layouts. The gates of a weight are consecutive blocks of
//! its rows.
//!
//! A network is a call of the vendor's library, forward and backward (`library`). What the library lacks is composed of
//! operators (`steps`): a product of the whole sequence by the weight of the input, and a loop over time on the host in which
//! each step is a product and one kernel. The composition is also the gradient of the library's gradient.

pub(crate) mod library;
pub(crate) mod steps;

pub use steps::{of_input, step};
use thalweg_ir::DType;
pub use thalweg_runtime::RecurrentKind;
use thalweg_runtime::{Error, Result, refuse};

use crate::autocast;
use crate::tensor::Tensor;

/// The weights of one layer in one direction.
#[derive(Clone, Debug)]
pub struct LayerWeights {
    /// The weight of the input, (gates · hidden, in).
    pub of_input: Tensor,
    /// The weight of the hidden state, (gates · hidden, hidden or projected).
    pub of_hidden: Tensor,
    /// The biases of input and hidden state, gates · hidden each.
    pub biases: Option<[Tensor; 2]>,
    /// The weight of the projection, (projected, hidden).
    pub projection: Option<Tensor>,
}

impl LayerWeights {
    /// Returns the tensors in PyTorch's order.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let pair = [&self.of_input, &self.of_hidden];
        pair.into_iter().chain(self.biases.iter().flatten()).chain(&self.projection)
    }
}

/// A function of the rows between two layers.
pub type Between<'b> = &'b dyn Fn(&Tensor) -> Result<Tensor>;

/// A network of recurrent layers.
#[derive(Clone, Copy, Debug)]
pub struct Network<'n> {
    /// The function of a step.
    pub kind: RecurrentKind,
    /// Whether each layer has a second direction.
    pub bidirectional: bool,
    /// The weights of each layer, forwards and then backwards.
    pub weights: &'n [LayerWeights],
}

/// Returns the number of states of a kind of network, including the hidden state.
pub const fn states(kind: RecurrentKind) -> usize {
    if kind.has_cell() { 2 } else { 1 }
}

impl Network<'_> {
    /// Returns the number of directions.
    pub fn directions(&self) -> usize {
        1 + usize::from(self.bidirectional)
    }

    /// Returns the hidden states of the last layer at each step, and the last states of all layers and directions.
    ///
    /// The input is (length, batch, features), or with `batch_sizes`, the number of sequences of each step, packed rows (rows,
    /// features). States are (layers · directions, batch, features). `between` is applied to the rows between layers. In a region
    /// of autocast, input and states are cast like those of a product. Asynchronous.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if shapes or dtypes do not fit.
    #[track_caller]
    pub fn run(
        &self,
        input: &Tensor,
        first: &[Tensor],
        batch_sizes: Option<&[usize]>,
        between: Option<Between<'_>>,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let directions = self.directions();
        if self.weights.is_empty() || !self.weights.len().is_multiple_of(directions) {
            let count = self.weights.len();
            refuse!("weights of {count} layers and directions, of {directions} each");
        }
        let input = lowered(input)?;
        let first = first.iter().map(lowered).collect::<Result<Vec<_>>>()?;
        if between.is_none() || self.weights.len() == directions {
            return self.apply(&input, &first, batch_sizes);
        }
        let (mut rows, mut last) = (input, vec![Vec::new(); first.len()]);
        for (layer, weights) in self.weights.chunks(directions).enumerate() {
            if let (true, Some(between)) = (layer > 0, between) {
                rows = between(&rows)?;
            }
            let part = |state: &Tensor| state.narrow(0, layer * directions, directions);
            let own = first.iter().map(part).collect::<Result<Vec<_>>>()?;
            let states;
            (rows, states) = Network { weights, ..*self }.apply(&rows, &own, batch_sizes)?;
            last.iter_mut().zip(states).for_each(|(list, state)| list.push(state));
        }
        let last = last.iter().map(|list| Tensor::cat(list, 0)).collect::<Result<_>>()?;
        Ok((rows, last))
    }

    /// Runs all layers without dropout between them.
    fn apply(
        &self,
        input: &Tensor,
        first: &[Tensor],
        batch_sizes: Option<&[usize]>,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        match library::attempt(self, input, first, batch_sizes)? {
            Some(results) => Ok(results),
            None => steps::run(self, input, first, batch_sizes),
        }
    }
}

/// Returns a tensor in the dtype that autocast chooses for products, inside of its regions.
fn lowered(tensor: &Tensor) -> Result<Tensor> {
    match autocast::current_options().filter(|options| options.enabled) {
        Some(options) if matches!(tensor.dtype(), DType::F32 | DType::F16 | DType::Bf16) => {
            tensor.to_dtype(options.dtype)
        }
        _ => Ok(tensor.clone()),
    }
}
