//! [`ParallelAttention`]: self-attention whose heads are divided among ranks.

use thalweg_derive::{in_call, in_function};
use thalweg_nn::functional::{AttentionOptions, scaled_dot_product_attention};
use thalweg_nn::module::{Forward, Linear, Module, MultiheadAttention};
use thalweg_runtime::{Error, Result, refuse, refuse_if};
use thalweg_tensor::Tensor;

use super::layers::Parallel;
use super::style::{ColwiseParallel, RowwiseParallel};

/// Self-attention of (batch, tokens, features) whose heads a plan may divide: queries, keys and values are computed by one layer,
/// `in_proj`, whose outputs are divided by heads; the inputs of `out_proj` are divided too. [`styles`](Self::styles) returns the
/// styles for a plan.
#[derive(Module)]
pub struct ParallelAttention {
    /// (3 · features, features): queries, keys and values stacked, as in PyTorch.
    pub in_proj: Parallel<Linear>,
    /// (features, features).
    pub out_proj: Parallel<Linear>,
    #[module(skip)]
    head_features: usize,
    #[module(skip)]
    is_causal: bool,
}

impl ParallelAttention {
    /// Makes the layer from a `MultiheadAttention`, whose parameters it takes over.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if keys or values have another number of features than queries, or a key and a value are
    /// added to the sequence.
    #[in_function("ParallelAttention")]
    pub fn new(attention: MultiheadAttention, is_causal: bool) -> Result<Self> {
        let named = attention.named_parameters();
        let find =
            |name: &str| named.iter().find(|(other, _)| other == name).map(|(_, tensor)| tensor.clone());
        let (Some(in_weight), Some(out_weight)) = (find("in_proj_weight"), find("out_proj.weight")) else {
            refuse!("keys and values have as many features as queries (no `kdim`, `vdim`)");
        };
        if find("bias_k").is_some() {
            refuse!("no key and value are added to the sequence (`add_bias_kv`)");
        }
        let head_features = out_weight.shape()[0] / attention.num_heads();
        let in_proj = Parallel::new(Linear { weight: in_weight, bias: find("in_proj_bias") });
        let out_proj = Parallel::new(Linear { weight: out_weight, bias: find("out_proj.bias") });
        Ok(Self { in_proj, out_proj, head_features, is_causal })
    }

    /// Returns the styles of `in_proj` and `out_proj` for replicated input and output. For other placements, set the layouts of
    /// the styles.
    pub fn styles() -> (ColwiseParallel, RowwiseParallel) {
        (ColwiseParallel { packed: 3, ..ColwiseParallel::default() }, RowwiseParallel::default())
    }
}

impl Forward for ParallelAttention {
    #[in_call("ParallelAttention", &[input])]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let parts = self.in_proj.forward(input)?.chunk(3, -1)?;
        let width = self.head_features;
        // The number of this rank's heads.
        let own = parts[0].size(-1)?;
        refuse_if!(
            !own.is_multiple_of(width),
            "num_heads must be divisible by the mesh size: a rank has {own} features, and a head {width}"
        );
        let heads = |part: &Tensor| part.unflatten(-1, &[-1, width as i64])?.transpose(-2, -3);
        let options = AttentionOptions { is_causal: self.is_causal, ..AttentionOptions::default() };
        let [q, k, v] = [heads(&parts[0])?, heads(&parts[1])?, heads(&parts[2])?];
        let attended = scaled_dot_product_attention(&q, &k, &v, options)?;
        self.out_proj.forward(&attended.transpose(-2, -3)?.flatten(-2, -1)?)
    }
}
