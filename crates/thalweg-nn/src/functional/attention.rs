//! Attention by the backend that [`thalweg_tensor::sdp`] selects.

use std::panic::Location;

use thalweg_ir::DType;
use thalweg_runtime::{Error, Result, invalid, refuse};

use thalweg_tensor::Tensor;
use thalweg_tensor::caller::in_call;
use thalweg_tensor::random::DeviceGenerator;
use thalweg_tensor::sdp::{
    Request, attention, cached_attention as cached, packed_attention as packed_attention_by,
};

/// The options of [`scaled_dot_product_attention`]; the defaults are PyTorch's.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttentionOptions<'a> {
    /// The mask, broadcast to (…, queries, keys): truth values, true where a query sees a key, or numbers to add to the scaled
    /// scores.
    pub attn_mask: Option<&'a Tensor>,
    /// Whether a query sees only the keys up to its own position. Cannot be combined with a mask.
    pub is_causal: bool,
    /// The factor of the scores; 1/√features by default.
    pub scale: Option<f64>,
    /// Whether equal numbers of query heads share each head of keys and values: (…, heads, queries, features) and (…, fewer
    /// heads, keys, features).
    pub enable_gqa: bool,
    /// The probability with which a weight is dropped, and the generator for it.
    pub dropout: Option<(f64, &'a DeviceGenerator)>,
}

/// Writes a key and a value, in place, at a position into caches of keys and values, and returns [`scaled_dot_product_attention`] of the query over
/// the caches up to that position, as a step of a decoder does: query (batch, heads, 1, features), key and value (batch, kv_heads, 1,
/// features), where kv_heads divides heads, caches (batch, kv_heads, keys, features), position one int64 in device memory. A position out of
/// range writes nothing.
///
/// This is one kernel for float32, float16 and bfloat16 with heads of up to 128 features in a multiple of 16 bytes, if nothing
/// requires a gradient; otherwise it is [`Tensor::index_copy_`] twice, a mask, and attention.
///
/// # Errors
/// [`Error::is_invalid_argument`] if shapes, dtypes or devices do not fit; those of the device.
#[track_caller]
pub fn cached_attention(
    [query, key, value]: [&Tensor; 3],
    caches: [&Tensor; 2],
    position: &Tensor,
    scale: Option<f64>,
) -> Result<Tensor> {
    let location = Location::caller();
    let passed = [query, key, value, caches[0], caches[1], position];
    in_call("cached_attention", &passed, location, || {
        check_cache([query, key, value], caches, position)?;
        let (features, keys) = (query.shape()[3], caches[0].shape()[2]);
        let factor = scale.unwrap_or_else(|| default_scale(features));
        if let Some(result) = cached([query, key, value], caches, position, factor, location)? {
            return Ok(result);
        }
        let position = position.reshape(&[1])?;
        caches[0].index_copy_(2, &position, key)?;
        caches[1].index_copy_(2, &position, value)?;
        let mask = Tensor::arange(keys, 0, 1, DType::I64, query.device())?.le(&position)?;
        let options = AttentionOptions {
            attn_mask: Some(&mask),
            scale,
            enable_gqa: query.shape()[1] != key.shape()[1],
            ..AttentionOptions::default()
        };
        scaled_dot_product_attention(query, caches[0], caches[1], options)
    })
}

/// Checks that a query, a key and a value fit caches of keys and values.
fn check_cache([query, key, value]: [&Tensor; 3], caches: [&Tensor; 2], position: &Tensor) -> Result<()> {
    let fits = match (query.shape(), key.shape(), caches[0].shape()) {
        (&[batch, heads, 1, features], &[items, kv_heads, 1, width], &[all, cached, _, row]) => {
            (items, all, width, row) == (batch, batch, features, features)
                && kv_heads == cached
                && kv_heads > 0
                && heads.is_multiple_of(kv_heads)
                && value.shape() == key.shape()
                && caches[1].shape() == caches[0].shape()
        }
        _ => false,
    };
    let is_position = position.dtype() == DType::I64 && position.elements() == 1 && position.rank() <= 1;
    let others = [key, value, caches[0], caches[1]];
    let is_alike =
        others.iter().all(|tensor| tensor.dtype() == query.dtype() && tensor.device() == query.device());
    if fits && is_position && is_alike && position.device() == query.device() {
        return Ok(());
    }
    Err(invalid!(
        "cached_attention: expected a query (batch, heads, 1, features), key and value (batch, kv_heads, 1, features), caches (batch, kv_heads, \
         keys, features) of one dtype and device, and a position of one int64, but got {query:?}, {key:?}, {value:?}, {:?}, {:?} and \
         {position:?}",
        caches[0],
        caches[1]
    ))
}

/// Returns softmax(scale · query · keyᵀ + mask) · value (`torch.nn.functional.scaled_dot_product_attention`): query (…, queries,
/// features), key (…, keys, features), value (…, keys, result features). A query whose keys are all masked results in zeros.
/// Without features all scores are 0 for any scale, and the result is the mean of the values, as in PyTorch's composition of
/// operators (`SDPBackend.MATH`), which scales queries and keys before their product; PyTorch's fused kernels may return NaN.
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let q = Tensor::from_slice(&[1.0f32, 0.0], &[1, 1, 2], &device)?;
/// let k = Tensor::from_slice(&[1.0f32, 0.0, 0.0, 1.0], &[1, 2, 2], &device)?;
/// let v = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 2, 2], &device)?;
/// assert_eq!(functional::scaled_dot_product_attention(&q, &k, &v, Default::default())?.to_string(), "tensor([[[1.6605, 2.6605]]], device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
#[track_caller]
pub fn scaled_dot_product_attention(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    options: AttentionOptions<'_>,
) -> Result<Tensor> {
    let location = Location::caller();
    in_call("scaled_dot_product_attention", &[query, key, value], location, || {
        let features = query.shape().last().copied().unwrap_or(0);
        let scale = options.scale.unwrap_or_else(|| default_scale(features));
        let AttentionOptions { is_causal, enable_gqa, .. } = options;
        let dropped = options.dropout.filter(|(probability, _)| *probability != 0.0);
        if let Some((p, _)) = dropped.filter(|(p, _)| !(0.0..=1.0).contains(p)) {
            refuse!("dropout probability has to be between 0 and 1, but got {p}");
        }
        let request = Request { is_causal, scale, enable_gqa, mask: options.attn_mask, dropout: dropped };
        attention([query, key, value], request, location)
    })
}

/// Computes self-attention of packed queries, keys and values: (tokens, heads, 3, features) to (tokens, heads, features), with
/// scale 1/√features. The result is that of [`scaled_dot_product_attention`] of the three parts; fused kernels read the parts in place and
/// write their gradients into one packed tensor.
#[track_caller]
pub fn packed_attention(packed: &Tensor, is_causal: bool) -> Result<Tensor> {
    let location = Location::caller();
    in_call("packed_attention", &[packed], location, || {
        let scale = default_scale(packed.size(-1)?);
        packed_attention_by(packed, is_causal, scale, location)
    })
}

/// Returns 1/√features. Without features all scores are 0, for any scale.
fn default_scale(features: usize) -> f64 {
    (features.max(1) as f64).sqrt().recip()
}
