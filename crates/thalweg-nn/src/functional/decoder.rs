//! The layers of a decoder for one token.

use std::panic::Location;

use thalweg_ir::DType;
use thalweg_runtime::{Error, Result, refuse};
use thalweg_tensor::Tensor;
use thalweg_tensor::caller::in_call;
use thalweg_tensor::dispatch::as_ints;
use thalweg_tensor::fused::NormLinear;
use thalweg_tensor::fused::decoder::{
    Affine, DecoderHead, DecoderInput, DecoderLayer, DecoderOptions, DecoderState, fused_decoder_layers,
    fused_next_token,
};

use super::{cached_attention, call, embedding, layer_norm, linear, linear_add, norm_linear, operator};

/// Returns the result of the layers of a decoder for one token: `x += out(attention(qkv(norm(x))))`, `x +=
/// contract(act(expand(norm(x))))` for each, where attention writes the token's keys and values at `position` into the layer's
/// caches and sees those up to that position. The result is (1, features), the input a [`DecoderInput`], the position one int64
/// in device memory, each layer a [`DecoderLayer`], whose shapes say its form: layer norms or root-mean-square norms, GELU by its
/// tanh formula or a gate by SiLU, heads that share keys.
///
/// Layers of float16 and bfloat16 without a gradient are one kernel on GPUs from compute capability 9.0 on, which keeps the sum of
/// the layers in float32. Otherwise a layer is a norm, products and [`cached_attention`]. Asynchronous.
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
        layers.iter().try_fold(row, |x, layer| composed(&x, position, layer, options))
    })
}

/// Returns the input row of the layers.
pub(crate) fn embedded(input: DecoderInput<'_>, position: &Tensor) -> Result<Tensor> {
    match input {
        DecoderInput::Row(row) => Ok(row.clone()),
        DecoderInput::Embedded { tokens, token, positions } => {
            let row = |table, index: &Tensor| embedding(&index.reshape(&[1])?, table, None);
            match positions {
                Some(positions) => row(tokens, token)?.add(&row(positions, position)?),
                None => row(tokens, token),
            }
        }
    }
}

/// Returns attention over the caches for queries, keys and values in one row, (1, (heads + 2 · heads of keys) · features of one).
pub(crate) fn attended(
    packed: &Tensor,
    caches: [&Tensor; 2],
    position: &Tensor,
    rotations: Option<[&Tensor; 2]>,
) -> Result<Tensor> {
    let [key_heads, width] = [1, 3].map(|dimension| caches[0].shape()[dimension]);
    let heads = (packed.elements() / width).saturating_sub(2 * key_heads);
    let part = |first: usize, count: usize| {
        packed.narrow(1, first * width, count * width)?.reshape(&[1, count, 1, width])
    };
    let (mut query, mut key, value) =
        (part(0, heads)?, part(heads, key_heads)?, part(heads + key_heads, key_heads)?);
    if let Some(tables) = rotations {
        query = turned(&query, tables, position)?;
        key = turned(&key, tables, position)?;
    }
    cached_attention([&query, &key, &value], caches, position, None)?.reshape(&[1, heads * width])
}

/// Returns heads (1, heads, 1, features) turned by a position's angles, computed in f32.
fn turned(heads: &Tensor, tables: [&Tensor; 2], position: &Tensor) -> Result<Tensor> {
    let half = tables[0].shape()[1];
    let [cosines, sines] = tables.map(|table| embedding(&position.reshape(&[1])?, table, None));
    let (cosines, sines, wide) = (cosines?, sines?, heads.to_dtype(DType::F32)?);
    let (near, far) = (wide.narrow(3, 0, half)?, wide.narrow(3, half, half)?);
    let turned = [near.mul(&cosines)?.sub(&far.mul(&sines)?)?, far.mul(&cosines)?.add(&near.mul(&sines)?)?];
    Tensor::cat(&turned, -1)?.to_dtype(heads.dtype())
}

/// Makes the likeliest token the next one that a decoder reads, in place: `token = argmax(norm(input) · weightᵀ)`, `position +=
/// 1`, `history[position] = token`. Input (1, features). One kernel, which stores no scores, for contiguous tensors of float16 and
/// bfloat16 with a multiple of 32 features up to 4,096 and a product without bias; else the norm, the product, [`Tensor::argmax`] and the rest. A position past the end of the history is reported at the next synchronization. Asynchronous.
///
/// # Errors
/// [`Error::is_invalid_argument`] if shapes, dtypes or devices do not fit; those of the device.
#[track_caller]
pub fn next_token_(input: &Tensor, head: &DecoderHead<'_>, state: DecoderState<'_>) -> Result<()> {
    let location = Location::caller();
    let DecoderState { token, position, history, .. } = state;
    in_call("next_token_", &[input, head.product.weight, token, position, history], location, || {
        if fused_next_token(input, head, state, location)? {
            return Ok(());
        }
        follow(&scores(input, head)?.argmax(-1)?, state)
    })
}

/// Returns the scores of tokens for a row.
pub(crate) fn scores(input: &Tensor, head: &DecoderHead<'_>) -> Result<Tensor> {
    normed_product(input, head.norm, head.product, head.eps, false)
}

/// Replaces a token, one int64, by the next one, in place. A position past the end of the history is reported at the next
/// synchronization.
pub(crate) fn follow(found: &Tensor, state: DecoderState<'_>) -> Result<()> {
    let DecoderState { token, position, history, .. } = state;
    token.copy_(&found.reshape(token.shape())?)?;
    position.add_scalar_(1)?;
    history.index_copy_(0, position, token)
}

/// Returns a norm of rows.
pub(crate) fn normed(input: &Tensor, norm: Affine<'_>, eps: f64) -> Result<Tensor> {
    let shape = norm.weight.shape();
    if norm.bias.is_some() {
        return layer_norm(input, shape, Some(norm.weight), norm.bias, eps);
    }
    let shape = as_ints(shape);
    let arguments = [input.into(), shape.into(), norm.weight.into(), eps.into()];
    call(operator!("rms_norm"), &arguments, Location::caller())
}

/// Returns the product with a norm of rows, with or without GELU.
fn normed_product(
    input: &Tensor,
    norm: Affine<'_>,
    product: Affine<'_>,
    eps: f64,
    gelu: bool,
) -> Result<Tensor> {
    if let Some(bias) = norm.bias {
        let norm = [norm.weight, bias];
        let parts = NormLinear { norm, eps, weight: product.weight, bias: product.bias, gelu, addend: None };
        return norm_linear(input, &parts);
    }
    let result = linear(&normed(input, norm, eps)?, product.weight, product.bias)?;
    if gelu { result.gelu_tanh() } else { Ok(result) }
}

/// Returns hidden features of a gate and its value, side by side: `silu(gate) · value`.
pub(crate) fn gated(both: &Tensor) -> Result<Tensor> {
    let hidden = both.shape()[1] / 2;
    both.narrow(1, 0, hidden)?.silu()?.mul(&both.narrow(1, hidden, hidden)?)
}

/// Returns the result of a layer for a row, computed operator by operator.
fn composed(
    input: &Tensor,
    position: &Tensor,
    layer: &DecoderLayer<'_>,
    options: DecoderOptions<'_>,
) -> Result<Tensor> {
    let Some(form) = layer.form().filter(|form| input.shape() == [1, form.features]) else {
        refuse!(
            "decoder_layers: expected an input (1, features), caches (1, heads, context, features of a head), norms of the features, and products \
             to queries, keys and values, from heads, to hidden features and back, but got {input:?} and {layer:?}"
        );
    };
    let eps = options.eps;
    let [attend, out, expand, contract] = layer.products;
    let packed = normed_product(input, layer.norms[0], attend, eps, false)?;
    let mixed = attended(&packed, layer.caches, position, options.rotations)?;
    let x = linear_add(&mixed, out.weight, out.bias, input)?;
    let hidden = normed_product(&x, layer.norms[1], expand, eps, !form.gated)?;
    let hidden = if form.gated { gated(&hidden)? } else { hidden };
    linear_add(&hidden, contract.weight, contract.bias, &x)
}
