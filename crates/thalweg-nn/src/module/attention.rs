//! Attention with several heads, in PyTorch's layout of weights.

use std::panic::Location;
use std::sync::Arc;

use thalweg_derive::{in_call, in_function};
use thalweg_ir::DType;
use thalweg_runtime::{Device, Error, Result, invalid, options, refuse, refuse_if};
use thalweg_tensor::Tensor;
use thalweg_tensor::caller::enter;
use thalweg_tensor::random::{DeviceGenerator, Generator};

use super::{Forward, Linear, Module, constant, uniform};
use crate::functional::{self, AttentionOptions};

options! {
    /// The options of [`MultiheadAttention`].
    #[derive(Clone, Debug)]
    pub struct MultiheadAttentionOptions {
        /// The probability with which a weight is dropped in training, and its generator.
        pub dropout: Option<(f64, Arc<DeviceGenerator>)> = None,
        /// Whether the projections have biases.
        pub bias: bool = true,
        /// Whether a learnt key and value are added to the sequence.
        pub add_bias_kv: bool = false,
        /// Whether a key and a value of zeros are added to the sequence.
        pub add_zero_attn: bool = false,
        /// The number of features of a key, if it differs from the number of features of a query.
        pub kdim: Option<usize> = None,
        /// The number of features of a value, if it differs from the number of features of a query.
        pub vdim: Option<usize> = None,
        /// Whether the batch comes before the sequence.
        pub batch_first: bool = false,
    }
}

/// Attention with several heads (`torch.nn.MultiheadAttention`).
#[derive(Module, Clone, Debug)]
pub struct MultiheadAttention {
    /// The projections of queries, keys and values as consecutive rows, (3 · features, features), if all have the same number of
    /// features.
    #[module(parameter)]
    in_proj_weight: Option<Tensor>,
    #[module(parameter)]
    q_proj_weight: Option<Tensor>,
    #[module(parameter)]
    k_proj_weight: Option<Tensor>,
    #[module(parameter)]
    v_proj_weight: Option<Tensor>,
    #[module(parameter)]
    in_proj_bias: Option<Tensor>,
    out_proj: Linear,
    #[module(parameter)]
    bias_k: Option<Tensor>,
    #[module(parameter)]
    bias_v: Option<Tensor>,
    #[module(skip)]
    options: MultiheadAttentionOptions,
    #[module(skip)]
    features: usize,
    #[module(skip)]
    heads: usize,
    #[module(training)]
    training: bool,
}

/// The masks of an attention. All are by default absent.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttentionMasks<'a> {
    /// The mask of keys, (batch, keys): truth values, true for keys that are ignored, or numbers to add to their scores.
    pub key_padding_mask: Option<&'a Tensor>,
    /// The mask of pairs, (queries, keys) or (batch · heads, queries, keys): truth values, true for pairs that are ignored, or
    /// numbers to add to their scores.
    pub attn_mask: Option<&'a Tensor>,
}

/// The result of an attention.
#[derive(Clone, Debug)]
pub struct Attended {
    /// The result, with the shape of the query.
    pub output: Tensor,
    /// The weights of each head: (batch, heads, queries, keys).
    pub weights: Tensor,
}

impl MultiheadAttention {
    /// Makes a layer over `features` features, divided evenly among `heads` heads.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the heads do not divide the features.
    #[in_function("MultiheadAttention::new")]
    pub fn new(
        features: usize,
        heads: usize,
        options: MultiheadAttentionOptions,
        generator: &mut Generator,
        device: &Device,
    ) -> Result<Self> {
        refuse_if!(
            features == 0 || heads == 0 || !features.is_multiple_of(heads),
            "embed_dim must be divisible by num_heads, and both greater than 0, got embed_dim={features} and \
                 num_heads={heads}"
        );
        // Xavier's bound, for the stacked rows.
        let mut weight = |shape: [usize; 2]| {
            uniform(&shape, (6.0 / (shape[0] + shape[1]) as f64).sqrt(), generator, device)
        };
        let (kdim, vdim) = (options.kdim.unwrap_or(features), options.vdim.unwrap_or(features));
        let is_packed = kdim == features && vdim == features;
        let in_proj_weight = is_packed.then(|| weight([3 * features, features])).transpose()?;
        let mut apart = |inputs| (!is_packed).then(|| weight([features, inputs])).transpose();
        let [q, k, v] = [apart(features)?, apart(kdim)?, apart(vdim)?];
        let mut out_proj = Linear::new(features, features, generator, device)?;
        out_proj.bias = options.bias.then(|| constant(&[features], 0.0, device)).transpose()?;
        let mut added = || {
            let deviation = (2.0 / (2 * features) as f32).sqrt();
            let tensor = Tensor::normal(&[1, 1, features], 0.0, deviation, generator, device);
            options.add_bias_kv.then(|| tensor?.requires_grad_()).transpose()
        };
        let (bias_k, bias_v) = (added()?, added()?);
        Ok(Self {
            in_proj_weight,
            q_proj_weight: q,
            k_proj_weight: k,
            v_proj_weight: v,
            in_proj_bias: options.bias.then(|| constant(&[3 * features], 0.0, device)).transpose()?,
            out_proj,
            bias_k,
            bias_v,
            options,
            features,
            heads,
            training: true,
        })
    }

    /// Returns the number of heads.
    pub fn num_heads(&self) -> usize {
        self.heads
    }

    /// Returns the attention of queries (queries, batch, features) to keys and values (keys, batch, features), the batch first
    /// with `batch_first`, or all without a batch, and the weights. Asynchronous.
    #[in_call("MultiheadAttention", &[query, key, value])]
    pub fn forward(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        masks: AttentionMasks<'_>,
    ) -> Result<Attended> {
        let (heads, is_batched) = self.split(query, key, value)?;
        let mask = self.mask(&heads, masks, is_batched, false)?;
        let [query, key, value] = &heads;
        let scale = ((self.features / self.heads) as f64).sqrt().recip();
        let mut scores = query.mul_scalar(scale)?.matmul(&key.transpose(-2, -1)?)?;
        if let Some(mask) = &mask {
            scores = scores.add(mask)?;
        }
        let weights = scores.softmax(-1)?;
        let dropped = match &self.options.dropout {
            Some((p, generator)) => functional::dropout(&weights, *p, self.training, generator)?,
            None => weights.clone(),
        };
        let output = self.join(&dropped.matmul(value)?, is_batched)?;
        Ok(Attended { output, weights: if is_batched { weights } else { weights.squeeze(0)? } })
    }

    /// Computes [`MultiheadAttention::forward`] without returning the weights, which need not be stored then. A query whose keys
    /// are all ignored results in the output's bias.
    #[in_call("MultiheadAttention", &[query, key, value])]
    pub fn attend(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        masks: AttentionMasks<'_>,
    ) -> Result<Tensor> {
        let (heads, is_batched) = self.split(query, key, value)?;
        let mask = self.mask(&heads, masks, is_batched, true)?;
        let dropout = match &self.options.dropout {
            Some((p, generator)) if self.training && *p > 0.0 => Some((*p, &**generator)),
            _ => None,
        };
        let options = AttentionOptions { attn_mask: mask.as_ref(), dropout, ..AttentionOptions::default() };
        let [query, key, value] = &heads;
        self.join(&functional::scaled_dot_product_attention(query, key, value, options)?, is_batched)
    }

    /// Returns queries, keys and values of each head, (batch, heads, tokens, features per head), and whether there is a batch.
    fn split(&self, query: &Tensor, key: &Tensor, value: &Tensor) -> Result<([Tensor; 3], bool)> {
        let rank = query.rank();
        refuse_if!(
            !(2..=3).contains(&rank) || key.rank() != rank || value.rank() != rank,
            "query should be unbatched 2D or batched 3D tensor but received {rank}-D query tensor, and key and value of as \
             many dimensions"
        );
        let added = [None, self.bias_k.as_ref(), self.bias_v.as_ref()];
        let tokens = self.tokens_dimension(rank == 3);
        let mut parts = Vec::new();
        for (place, mut part) in self.projected([query, key, value])?.into_iter().enumerate() {
            let mut one = [part.shape()[0], part.shape()[1], self.features];
            one[tokens] = 1;
            if let Some(added) = added[place] {
                part = Tensor::cat(&[part, added.expand(&one)?], tokens as i64)?;
            }
            if place > 0 && self.options.add_zero_attn {
                let zeros = Tensor::zeros(&one, part.dtype(), part.device())?;
                part = Tensor::cat(&[part, zeros], tokens as i64)?;
            }
            let shape = [part.shape()[0], part.shape()[1], self.heads, self.features / self.heads];
            let order = if tokens == 0 { [1, 2, 0, 3] } else { [0, 2, 1, 3] };
            parts.push(part.reshape(&shape)?.permute(&order)?);
        }
        let parts: [Tensor; 3] = parts.try_into().expect("there are three");
        if parts[1].shape() != parts[2].shape() || parts[0].shape()[0] != parts[1].shape()[0] {
            refuse!("keys and values must be as many, and in as many batches as queries");
        }
        Ok((parts, rank == 3))
    }

    /// Returns which of the first two dimensions are the tokens.
    fn tokens_dimension(&self, is_batched: bool) -> usize {
        usize::from(is_batched && self.options.batch_first)
    }

    /// Returns the projected queries, keys and values, with a batch. Those of equal tensors are one product.
    fn projected(&self, tensors: [&Tensor; 3]) -> Result<Vec<Tensor>> {
        let batched =
            |tensor: &Tensor| if tensor.rank() == 2 { tensor.unsqueeze(1) } else { Ok(tensor.clone()) };
        let [query, key, value] = tensors;
        let counts: &[usize] = match &self.in_proj_weight {
            Some(_) if query.is_same(key) && key.is_same(value) => &[3],
            Some(_) if key.is_same(value) => &[1, 2],
            _ => &[1, 1, 1],
        };
        let (mut parts, mut first) = (Vec::new(), 0);
        for (place, &count) in counts.iter().enumerate() {
            let rows = |packed: &Tensor| match count {
                3 => Ok(packed.clone()),
                _ => packed.narrow(0, first * self.features, count * self.features),
            };
            let apart = [&self.q_proj_weight, &self.k_proj_weight, &self.v_proj_weight][place];
            let weight = match (&self.in_proj_weight, apart) {
                (Some(packed), _) => rows(packed)?,
                (None, Some(weight)) => weight.clone(),
                (None, None) => return Err(invalid!("MultiheadAttention: a projection has no weight")),
            };
            let bias = self.in_proj_bias.as_ref().map(rows).transpose()?;
            let result = functional::linear(&batched(tensors[place])?, &weight, bias.as_ref())?;
            parts.extend(if count == 1 { vec![result] } else { result.chunk(count as i64, -1)? });
            first += count;
        }
        Ok(parts)
    }

    /// Returns the numbers that are added to the scores, broadcast to (batch, heads, queries, keys). If `allows_flags` and there is
    /// only a padding mask, returns truth values instead: true for visible keys. Attention reads these directly.
    fn mask(
        &self,
        heads: &[Tensor; 3],
        masks: AttentionMasks<'_>,
        is_batched: bool,
        allows_flags: bool,
    ) -> Result<Option<Tensor>> {
        let [batch, _, queries, _] = [0, 1, 2, 3].map(|dim| heads[0].shape()[dim]);
        let (keys, dtype) = (heads[1].shape()[2], heads[0].dtype());
        let own = keys - usize::from(self.bias_k.is_some()) - usize::from(self.options.add_zero_attn);
        let mut sum: Option<Tensor> = None;
        let mut add = |mask: &Tensor, name: &str, shapes: [&[usize]; 2], to: [usize; 4]| -> Result<()> {
            if !shapes.contains(&mask.shape()) {
                let (found, wanted) = (mask.shape(), shapes[0]);
                refuse!("The shape of the {name} is {found:?}, but should be {wanted:?}.");
            }
            let numbers = match mask.dtype() {
                DType::Bool => {
                    let (zero, out) = (Tensor::zeros(&[], dtype, mask.device())?, f64::NEG_INFINITY);
                    mask.select_where(&Tensor::full(&[], out, dtype, mask.device())?, &zero)?
                }
                _ => mask.to_dtype(dtype)?,
            };
            // Keys that were added to the sequence are not masked.
            let numbers = numbers.constant_pad_nd(&[0, (keys - own) as i64], 0.0)?.reshape(&to)?;
            sum = Some(match sum.take() {
                Some(other) => other.add(&numbers)?,
                None => numbers,
            });
            Ok(())
        };
        if let Some(mask) = masks.attn_mask {
            let (of_all, of_heads) = ([queries, own], [batch * self.heads, queries, own]);
            let to =
                if mask.rank() == 2 { [1, 1, queries, keys] } else { [batch, self.heads, queries, keys] };
            add(mask, "attn_mask", [&of_all, &of_heads], to)?;
        }
        if let Some(mask) = masks.key_padding_mask {
            let shape = [batch, own];
            let shape = &shape[usize::from(!is_batched)..];
            let is_alone = masks.attn_mask.is_none() && own == keys && mask.shape() == shape;
            if allows_flags && is_alone && mask.dtype() == DType::Bool {
                return mask.logical_not()?.reshape(&[batch, 1, 1, keys]).map(Some);
            }
            add(mask, "key_padding_mask", [shape; 2], [batch, 1, 1, keys])?;
        }
        Ok(sum)
    }

    /// Returns the output projection of the heads' results.
    fn join(&self, heads: &Tensor, is_batched: bool) -> Result<Tensor> {
        let (batch, queries) = (heads.shape()[0], heads.shape()[2]);
        let (order, shape) = match self.tokens_dimension(is_batched) {
            0 => ([2, 0, 1, 3], [queries, batch, self.features]),
            _ => ([0, 2, 1, 3], [batch, queries, self.features]),
        };
        let joined = heads.permute(&order)?.reshape(&shape)?;
        let _entered = enter(Location::caller());
        let output = self.out_proj.forward(&joined)?;
        if is_batched { Ok(output) } else { output.squeeze(1) }
    }
}
