//! The layers of a decoder for one token.

use std::panic::Location;

use thalweg_runtime::{Error, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::caller::in_call;
use thalweg_tensor::fused::NormLinear;
use thalweg_tensor::fused::decoder::{
    DecoderInput, DecoderLayer, DecoderOptions, DecoderState, fused_decoder_layers, fused_next_token,
};

use super::{cached_attention, embedding, linear_add, norm_linear};

/// Returns the result of the layers of a decoder in GPT-2's form for one token: `x += out(attention(qkv(norm(x))))`, `x +=
/// contract(gelu(expand(norm(x))))` for each, where attention writes the token's keys and values at `position` into the layer's
/// caches and sees those up to that position. The result is (1, features), the input a [`DecoderInput`], the position one int64
/// in device memory, each layer a [`DecoderLayer`], and GELU uses the tanh formula.
///
/// Layers of float16 and bfloat16 without a gradient are one kernel on GPUs from compute capability 9.0 on, if the weights of a
/// layer fit into the shared memory of its blocks, as those of GPT-2 with 124 million parameters do; the kernel keeps the sum of
/// the layers in float32. Otherwise a layer is [`norm_linear`], [`cached_attention`] and [`linear_add`]. Asynchronous.
///
/// # Errors
/// [`Error::is_invalid_argument`] if shapes, dtypes or devices do not fit; those of the device.
#[track_caller]
pub fn decoder_layers(
    input: DecoderInput<'_>,
    position: &Tensor,
    layers: &[DecoderLayer<'_>],
    options: DecoderOptions<'_>,
) -> Result<Tensor> {
    let location = Location::caller();
    in_call("decoder_layers", &[input.first(), position], location, || {
        if let Some(result) = fused_decoder_layers(input, position, layers, options, location)? {
            return Ok(result);
        }
        let row = embedded(input, position)?;
        layers.iter().try_fold(row, |x, layer| composed(&x, position, layer, options.eps))
    })
}

/// Returns the input row of the layers.
pub(crate) fn embedded(input: DecoderInput<'_>, position: &Tensor) -> Result<Tensor> {
    match input {
        DecoderInput::Row(row) => Ok(row.clone()),
        DecoderInput::Embedded { tokens, token, positions } => {
            let row = |table, index: &Tensor| embedding(&index.reshape(&[1])?, table, None);
            row(tokens, token)?.add(&row(positions, position)?)
        }
    }
}

/// Returns attention over the caches for queries, keys and values in one row, (1, features).
pub(crate) fn attended(packed: &Tensor, caches: [&Tensor; 2], position: &Tensor) -> Result<Tensor> {
    let [heads, width] = [1, 3].map(|dimension| caches[0].shape()[dimension]);
    let parts = packed.reshape(&[3, 1, heads, 1, width])?;
    let [query, key, value] = [0, 1, 2].map(|part| parts.select(0, part));
    cached_attention([&query?, &key?, &value?], caches, position, None)?.reshape(&[1, heads * width])
}

/// Makes the likeliest token the next one that a decoder reads, in place: `token = argmax(norm(input) · weightᵀ)`, `position +=
/// 1`, `history[position] = token`. Input (1, features), `parts` without bias, GELU and addend. One kernel, which stores no
/// scores, for contiguous tensors of float16 and bfloat16 with a multiple of 32 features up to 4,096; else [`norm_linear`],
/// [`Tensor::argmax`] and the rest. A position past the end of the history is reported at the next synchronization. Asynchronous.
///
/// # Errors
/// [`Error::is_invalid_argument`] if shapes, dtypes or devices do not fit; those of the device.
#[track_caller]
pub fn next_token_(input: &Tensor, parts: &NormLinear<'_>, state: DecoderState<'_>) -> Result<()> {
    let location = Location::caller();
    let DecoderState { token, position, history, .. } = state;
    in_call("next_token_", &[input, parts.weight, token, position, history], location, || {
        if fused_next_token(input, parts, state, location)? {
            return Ok(());
        }
        follow(&norm_linear(input, parts)?.argmax(-1)?, state)
    })
}

/// Replaces a token, one int64, by the next one, in place. A position past the end of the history is reported at the next
/// synchronization.
pub(crate) fn follow(found: &Tensor, state: DecoderState<'_>) -> Result<()> {
    let DecoderState { token, position, history, .. } = state;
    token.copy_(&found.reshape(token.shape())?)?;
    position.add_scalar_(1)?;
    history.index_copy_(0, position, token)
}

/// Returns the result of a layer for a row, computed operator by operator.
fn composed(input: &Tensor, position: &Tensor, layer: &DecoderLayer<'_>, eps: f64) -> Result<Tensor> {
    let keys = layer.caches[0];
    let (&[1, heads, _, width], &[1, features]) = (keys.shape(), input.shape()) else {
        return Err(Error::invalid(format!(
            "decoder_layers: expected an input (1, features) and caches (1, heads, context, features of a head), but got {input:?} and {keys:?}"
        )));
    };
    if heads * width != features || layer.products[0][1].shape() != [3 * features] {
        return Err(Error::invalid(format!(
            "decoder_layers: expected {features} features to be shared by the heads of {keys:?}, and a bias of three times as many for queries, keys and \
             values, but got {:?}",
            layer.products[0][1]
        )));
    }
    let after = |norm: [_; 2], [weight, bias]: [_; 2], gelu| NormLinear {
        norm,
        eps,
        weight,
        bias: Some(bias),
        gelu,
        addend: None,
    };
    let packed = norm_linear(input, &after(layer.norms[0], layer.products[0], false))?;
    let mixed = attended(&packed, layer.caches, position)?;
    let [[out, out_bias], [contract, contract_bias]] = [layer.products[1], layer.products[3]];
    let x = linear_add(&mixed, out, Some(out_bias), input)?;
    let hidden = norm_linear(&x, &after(layer.norms[1], layer.products[2], true))?;
    linear_add(&hidden, contract, Some(contract_bias), &x)
}
