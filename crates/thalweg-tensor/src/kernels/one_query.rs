//! Attention of one query per head over many keys, by the kernel of [`thalweg_kernels::one_query`]: a step of a decoder.

use thalweg_ir::DType;
use thalweg_kernels::one_query::{OneQuery, Steps};
use thalweg_runtime::{Error, Label, Result, refuse_if};

use crate::dispatch::{Arguments, Call};
use crate::native::launch;
use crate::tensor::{Tensor, Tensors};

/// Returns whether the kernel supports queries (batch, heads, 1, features), keys and values (batch, heads, keys, features) of
/// these shapes, with a mask that can be expanded to (batch, heads, 1, keys).
pub(crate) fn takes(query: &Tensor, key: &Tensor, mask: Option<&Tensor>) -> bool {
    let shape = query.shape();
    let is_mask = |mask: &Tensor| {
        let wanted = [shape[0], shape[1], 1, key.shape()[2]];
        let sizes = mask.shape().iter().rev().zip(wanted.iter().rev());
        mask.dtype() == DType::Bool
            && mask.rank() <= 4
            && sizes.into_iter().all(|(has, wants)| has == wants || *has == 1)
    };
    shape[2] == 1 && OneQuery::takes(query.dtype(), shape[3] as u64) && mask.is_none_or(is_mask)
}

/// Returns a tensor of rank 4 whose strides the kernel supports, copied first if they do not fit.
fn readable(tensor: &Tensor) -> Result<(Tensor, Steps)> {
    let steps = |tensor: &Tensor| {
        let step = |dimension: usize| match tensor.shape()[dimension] {
            0 | 1 => 0,
            _ => tensor.layout().strides()[dimension] as u64,
        };
        Steps { batch: step(0), head: step(1), key: step(2) }
    };
    let width = 16 / tensor.dtype().size_bytes() as u64;
    let Steps { batch, head, key } = steps(tensor);
    let fits = [batch, head, key].iter().all(|step| step.is_multiple_of(width))
        && tensor.layout().strides()[3] == 1
        && tensor.pointer().address().is_multiple_of(16);
    let tensor = if fits { tensor.detach() } else { tensor.detach().contiguous()? };
    let steps = steps(&tensor);
    Ok((tensor, steps))
}

/// Returns the result (batch, heads, 1, features).
pub(crate) fn backend(call: &Call<'_>) -> Result<Tensors> {
    let [query, key, value] = [0, 1, 2].map(|place| call.tensor(place));
    let mask = call.optional_tensor(3);
    let fits = query.rank() == 4
        && key.rank() == 4
        && key.shape() == value.shape()
        && (query.shape()[0], query.shape()[3]) == (key.shape()[0], key.shape()[3])
        && [key, value].iter().all(|tensor| tensor.dtype() == query.dtype())
        && takes(query, key, mask);
    refuse_if!(
        !fits,
        "attention of one query: it takes (batch, heads, 1, features), keys and values of one shape, and a mask of truth values; not \
         {:?}, {:?} and {:?}",
        query.shape(),
        key.shape(),
        value.shape()
    );
    let shape = [query.shape()[0], query.shape()[1], 1, query.shape()[3]];
    let result = call.new_empty(&shape, query.dtype())?;
    let ((query, query_steps), (key, key_steps), (value, value_steps)) =
        (readable(query)?, readable(key)?, readable(value)?);
    let mask = mask.map(|mask| mask.detach().expand(&[shape[0], shape[1], 1, key.shape()[2]])).transpose()?;
    let mask_steps = mask.as_ref().map(|mask| {
        let strides = mask.layout().strides();
        Steps { batch: strides[0] as u64, head: strides[1] as u64, key: strides[3] as u64 }
    });
    let kernel = OneQuery {
        batch: shape[0] as u64,
        heads: shape[1] as u64,
        kv_heads: key.shape()[1] as u64,
        keys: key.shape()[2] as u64,
        features: shape[3] as u64,
        scale_bits: (call.float(4) as f32).to_bits(),
        dtype: query.dtype(),
        query: query_steps,
        key: key_steps,
        value: value_steps,
        mask: mask_steps,
        append: None,
    };
    let [q, k, v, to] = [&query, &key, &value, &result].map(Some);
    call.launch(kernel, [q, k, v, mask.as_ref(), to, None, None, None])?;
    Ok(Tensors::from_elem(result, 1))
}

/// Writes a key and a value at a position into a cache of both, and returns attention of a query over the cache up to that
/// position: query (batch, heads, 1, features), key and value (batch, fewer heads, 1, features), caches (batch, fewer heads,
/// keys, features), whose shapes fit each other. `None` if the kernel cannot read or write them in place.
pub(crate) fn append(
    [query, key, value]: [&Tensor; 3],
    caches: [&Tensor; 2],
    position: &Tensor,
    scale: f64,
    label: Label,
) -> Result<Option<Tensor>> {
    let [batch, heads, _, features] = *query.shape() else { return Ok(None) };
    let [_, kv_heads, keys, _] = *caches[0].shape() else { return Ok(None) };
    let ((query, query_steps), (key, new_key), (value, new_value)) =
        (readable(query)?, readable(key)?, readable(value)?);
    let written = [readable(caches[0])?, readable(caches[1])?];
    let is_in_place =
        written.iter().zip(caches).all(|((tensor, _), cache)| tensor.pointer() == cache.pointer());
    let kernel = OneQuery {
        batch: batch as u64,
        heads: heads as u64,
        kv_heads: kv_heads as u64,
        keys: keys as u64,
        features: features as u64,
        scale_bits: (scale as f32).to_bits(),
        dtype: query.dtype(),
        query: query_steps,
        key: written[0].1,
        value: written[1].1,
        mask: None,
        append: Some([new_key, new_value]),
    };
    let size = query.dtype().size_bytes() as u64;
    let [_, key_span, value_span, ..] = kernel.spans();
    let range = |tensor: &Tensor, span: u64| {
        let start = tensor.pointer().address();
        start..start + span * size
    };
    let (keys, values) = (range(caches[0], key_span), range(caches[1], value_span));
    let is_apart = |other: &std::ops::Range<u64>| {
        [&keys, &values].iter().all(|cache| other.end <= cache.start || cache.end <= other.start)
    };
    let new = [&query, &key, &value].map(|tensor| range(tensor, tensor.layout().span() as u64));
    if !is_in_place || !(keys.end <= values.start || values.end <= keys.start) || !new.iter().all(is_apart) {
        return Ok(None);
    }
    let stream = query.device().current_stream();
    let result = Tensor::empty_on(&[batch, heads, 1, features], query.dtype(), &stream, label)?;
    let position = position.detach().contiguous()?;
    let [q, k, v, to] = [&query, caches[0], caches[1], &result].map(Some);
    let [new_key, new_value, position] = [&key, &value, &position].map(Some);
    launch(kernel, [q, k, v, None, to, new_key, new_value, position], label)?;
    caches.into_iter().for_each(Tensor::bump_version);
    Ok(Some(result))
}
