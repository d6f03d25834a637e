//! Which backend computes scaled dot product attention.
//!
//! [`SdpBackend::Cudnn`] is a call of NVIDIA's library, [`SdpBackend::Flash`] a kernel of our own; neither stores a matrix of
//! scores. [`SdpBackend::Math`] is a composition of operators. A call takes the first of its thread's backends, in the order of
//! [`SdpBackend`], that can compute it; [`sdp_kernel`] sets which may be used. Cudnn and Flash take queries, keys and values with 3
//! or 4 dimensions, equal batches and a scale above 0, on the simulator and on GPUs from compute capability 8.0 on: of bf16 or f16 with
//! up to 256 features, and Flash of f32 with up to 128; Cudnn only if the library is present and supports the shape. Features that do
//! not fill chunks of 16 bytes, and values with other features than queries, are padded with zeros. Math takes everything.
//!
//! Both take a mask of truth values or of numbers that repeats along any of its dimensions; numbers are added to the scores in the
//! queries' dtype, and may need a gradient. Cudnn takes masks that are contiguous along the keys, with other strides that are
//! multiples of 8. A query whose keys are all masked results in zeros.
//!
//! Only Flash takes dropout: it [draws](thalweg_kernels::attention::Dropout) in the forward pass and again in the gradient, by
//! numbers that a simulator draws too, while the library draws numbers of its own.
//!
//! One query per head that needs no gradient, such as a step of a decoder, is computed by a form of Flash with a kernel of its
//! own, which also takes a mask of truth values.
//!
//! The first pass of attention by Cudnn for a shape prepares a plan, which takes some tenths of a second on a GPU. Its gradients
//! may differ in their last bits from run to run; if
//! [`use_deterministic_algorithms`](crate::deterministic::use_deterministic_algorithms) is set, Flash computes them.

use std::cell::Cell;
use std::panic::Location;

use smallvec::SmallVec;
use thalweg_ir::DType;
use thalweg_kernels::attention::{WORDS, chunk, most_features};
use thalweg_kernels::one_query::OneQuery;
use thalweg_runtime::{Error, Result, invalid};

use crate::autocast::{dtype_in_lower, is_taken_as_it_is};
use crate::autograd::is_grad_enabled;
use crate::caller::label_at;
use crate::dispatch::{Argument, built_in};
use crate::kernels::attention_in_pieces;
use crate::kernels::fused_attention::is_mask_of_library;
use crate::kernels::one_query;
use crate::random::DeviceGenerator;
use crate::tensor::{Tensor, Tensors};

/// A way to compute attention (`torch.nn.attention.SDPBackend`), the preferred first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SdpBackend {
    /// NVIDIA's library (`CUDNN_ATTENTION`).
    Cudnn,
    /// The fused kernel (`FLASH_ATTENTION`).
    Flash,
    /// Products and loops over pieces of the scores (`MATH`).
    Math,
}

impl SdpBackend {
    /// Returns the backend's bit in the argument `backends` of the operators.
    pub(crate) const fn bit(self) -> i64 {
        1 << self as u32
    }
}

thread_local! {
    static ALLOWED: Cell<[bool; 3]> = const { Cell::new([true; 3]) };
}

/// Calls a function in which this thread's attention is computed only by these backends (`torch.nn.attention.sdpa_kernel`).
///
/// # Errors
/// Those of the function. Attention that none of the backends can compute is an error.
pub fn sdp_kernel<T>(backends: &[SdpBackend], function: impl FnOnce() -> Result<T>) -> Result<T> {
    struct Restored([bool; 3]);
    impl Drop for Restored {
        fn drop(&mut self) {
            ALLOWED.set(self.0);
        }
    }
    let mut allowed = [false; 3];
    backends.iter().for_each(|&backend| allowed[backend as usize] = true);
    let _restored = Restored(replace_allowed(allowed));
    function()
}

/// Sets which backends may compute this thread's attention, in the order of [`SdpBackend`], and returns which could before. For
/// regions that do not end in the scope in which they begin.
#[doc(hidden)]
pub fn replace_allowed(allowed: [bool; 3]) -> [bool; 3] {
    ALLOWED.replace(allowed)
}

/// The options of a call of attention, apart from its three tensors.
#[derive(Clone, Copy, Debug)]
pub struct Request<'t> {
    /// Whether query i sees only the keys up to the i-th.
    pub is_causal: bool,
    /// The factor of the scores.
    pub scale: f64,
    /// Whether several heads of queries share one of keys and values.
    pub enable_gqa: bool,
    /// The mask: truth values that are true for the keys that a query sees, or numbers that are added to the scores.
    pub mask: Option<&'t Tensor>,
    /// The probability with which a weight is dropped, above 0, and the generator.
    pub dropout: Option<(f64, &'t DeviceGenerator)>,
}

/// Returns attention by the backend that is to compute it; `None` if that is [`SdpBackend::Math`].
///
/// # Errors
/// [`Error::is_invalid_argument`] if no allowed backend can compute it.
pub fn fused_attention(
    [query, key, value]: [&Tensor; 3],
    request: Request<'_>,
    location: &'static Location<'static>,
) -> Result<Option<Tensor>> {
    let reason = reason_against(&[query, key, value], request).or_else(|| {
        let [q, k, v] = [query, key, value].map(Tensor::shape);
        let rank = q.len();
        let fits = (3..=4).contains(&rank) && k.len() == rank && v.len() == rank;
        if !fits || k[..rank - 1] != v[..rank - 1] || k[rank - 1] != q[rank - 1] {
            return Some("it takes three tensors of 3 or 4 dimensions, queries and keys with equal features, as many keys as values");
        }
        let (heads, kv_heads) = (q[rank - 3], k[rank - 3]);
        let is_shared = request.enable_gqa && rank == 4 && kv_heads > 0 && heads.is_multiple_of(kv_heads);
        if (rank == 4 && q[0] != k[0]) || (heads != kv_heads && !is_shared) {
            return Some("batches and heads differ");
        }
        if [q, k, v].iter().any(|shape| shape.contains(&0)) {
            return Some("a tensor has no elements");
        }
        reason_against_mask(query, key, request.mask?).or(request.is_causal.then_some("a mask and is_causal exclude each other"))
    });
    let (is_single, result_features) = (query.rank() == 3, value.shape().last().copied().unwrap_or(0));
    let width = [query, value].iter().filter_map(|tensor| tensor.shape().last()).max();
    let width = width.map_or(0, |width| width.next_multiple_of(chunk(dtype_in_lower(query)) as usize));
    let whole = |tensor: &Tensor| {
        let tensor = if is_single { tensor.unsqueeze(0)? } else { tensor.clone() };
        match width.saturating_sub(tensor.shape().last().copied().unwrap_or(0)) {
            further @ 1.. if reason.is_none() => tensor.constant_pad_nd(&[0, further as i64], 0.0),
            _ => Ok(tensor),
        }
    };
    let [query, key, value] = [whole(query)?, whole(key)?, whole(value)?];
    let mask = request.mask.filter(|_| reason.is_none());
    let mask = mask.map(|mask| in_dtype(mask, dtype_in_lower(&query))).transpose()?;
    let takes_mask = mask.as_ref().map(|mask| is_mask_of_library(mask, &query, &key)).transpose()?;
    let takes_call = takes_mask.unwrap_or(true) && request.dropout.is_none();
    let Some(backends) = fused_backends(&query, takes_call, reason)? else {
        return Ok(None);
    };
    let label = label_at("scaled_dot_product_attention", location);
    let state = request.dropout.map(|(_, generator)| generator.reserve(WORDS, label)).transpose()?;
    let dropout = request.dropout.map_or(0.0, |(probability, _)| probability);
    let optional = [Argument::from(mask.as_ref()), state.as_ref().into()];
    let options = [request.is_causal.into(), request.scale.into(), backends.into(), dropout.into()];
    let arguments: SmallVec<[Argument<'_>; 9]> =
        [&query, &key, &value].into_iter().map(Argument::from).chain(optional).chain(options).collect();
    let Some(mut result) = or_math(built_in!("thalweg::fused_attention")?.call(&arguments, None, label))?
    else {
        return Ok(None);
    };
    if width != result_features {
        result = result.narrow(-1, 0, result_features)?;
    }
    if is_single { result.squeeze(0).map(Some) } else { Ok(Some(result)) }
}

/// Returns attention by the backend that is to compute it, of tensors (…, tokens, features) of one dtype of floats.
///
/// # Errors
/// [`Error::is_invalid_argument`] if the tensors do not fit, or no allowed backend can compute it.
pub fn attention(
    tensors: [&Tensor; 3],
    request: Request<'_>,
    location: &'static Location<'static>,
) -> Result<Tensor> {
    if let Some(result) = one_query_attention(tensors, request, location)? {
        return Ok(result);
    }
    if let Some(result) = fused_attention(tensors, request, location)? {
        return Ok(result);
    }
    let label = label_at("scaled_dot_product_attention", location);
    let state = request.dropout.map(|(_, generator)| generator.reserve(WORDS, label)).transpose()?;
    let dropout = request.dropout.map_or(0.0, |(probability, _)| probability);
    let options = (request.is_causal, request.scale, dropout);
    attention_in_pieces::attention(
        tensors,
        [request.mask, state.as_ref()],
        options,
        request.enable_gqa,
        label,
    )
}

/// Calls a function in which [`SdpBackend::Math`] takes at most this number of scores at a time, for tests.
#[doc(hidden)]
pub fn in_pieces_of<T>(most: usize, function: impl FnOnce() -> T) -> T {
    attention_in_pieces::in_pieces_of(most, function)
}

/// Returns attention of one query per head by its own kernel, a form of [`SdpBackend::Flash`] that takes a mask of truth values
/// and float32, too, and has no gradient; `None` if that kernel does not support the call.
pub fn one_query_attention(
    [query, key, value]: [&Tensor; 3],
    request: Request<'_>,
    location: &'static Location<'static>,
) -> Result<Option<Tensor>> {
    let [_, flash, _] = ALLOWED.get();
    let wants_gradient = is_grad_enabled() && [query, key, value].iter().any(|tensor| tensor.requires_grad());
    let (q, k) = (query.shape(), key.shape());
    let rank = q.len();
    let fits = flash
        && !wants_gradient
        && !request.is_causal
        && request.dropout.is_none()
        && (3..=4).contains(&rank)
        && k == value.shape()
        && k.len() == rank
        && q[rank - 2] == 1
        && q[rank - 1] == k[rank - 1]
        && (rank == 3 || q[0] == k[0])
        && !q.contains(&0)
        && !k.contains(&0)
        && [query, key, value].iter().all(|tensor| dtype_in_lower(tensor) == query.dtype());
    let shares = fits
        && (q[rank - 3] == k[rank - 3] || (request.enable_gqa && q[rank - 3].is_multiple_of(k[rank - 3])));
    if !shares {
        return Ok(None);
    }
    let whole = |tensor: &Tensor| if rank == 3 { tensor.unsqueeze(0) } else { Ok(tensor.clone()) };
    let tensors = [whole(query)?, whole(key)?, whole(value)?];
    if !one_query::takes(&tensors[0], &tensors[1], request.mask) {
        return Ok(None);
    }
    let arguments: Vec<Argument<'_>> =
        tensors.iter().map(Argument::from).chain([request.mask.into(), request.scale.into()]).collect();
    let label = label_at("scaled_dot_product_attention", location);
    let result = built_in!("thalweg::one_query_attention")?.call(&arguments, None, label)?.swap_remove(0);
    if rank == 3 { result.squeeze(0).map(Some) } else { Ok(Some(result)) }
}

/// Writes a key and a value at a position into caches, and returns attention of one query per head over the keys up to that
/// position, by one kernel; `None` if no kernel supports the call. The caller has checked that the shapes fit: query (batch,
/// heads, 1, features), key and value (batch, fewer heads, 1, features), caches (batch, fewer heads, keys, features), position of
/// one int64.
pub fn cached_attention(
    tensors: [&Tensor; 3],
    caches: [&Tensor; 2],
    position: &Tensor,
    scale: f64,
    location: &'static Location<'static>,
) -> Result<Option<Tensor>> {
    let [_, flash, _] = ALLOWED.get();
    let query = tensors[0];
    let (mut all, features) = (tensors.into_iter().chain(caches), query.shape()[3] as u64);
    let fits = flash
        && OneQuery::takes(query.dtype(), features)
        && ![query, caches[0]].iter().any(|tensor| tensor.shape().contains(&0))
        && all.all(|tensor| is_taken_as_it_is(tensor, query.dtype(), query.device()));
    match fits {
        true => one_query::append(tensors, caches, position, scale, label_at("cached_attention", location)),
        false => Ok(None),
    }
}

/// Returns self-attention, (tokens, heads, features), of a packed tensor (tokens, heads, 3, features): as one operator if a fused backend
/// computes it, else by [`attention`].
///
/// # Errors
/// [`Error::is_invalid_argument`] if the tensor has another shape, or no allowed backend can compute it.
pub fn packed_attention(
    packed: &Tensor,
    is_causal: bool,
    scale: f64,
    location: &'static Location<'static>,
) -> Result<Tensor> {
    if !matches!(packed.shape(), [_, _, 3, _]) {
        return Err(invalid!("the input is (tokens, heads, 3, features), not {:?}", packed.shape()));
    }
    if let Some(result) = fused_packed_attention(packed, is_causal, scale, location)? {
        return Ok(result);
    }
    let parts = packed.unbind(2)?;
    let heads = |part: usize| parts[part].transpose(0, 1);
    let request = Request { is_causal, scale, enable_gqa: false, mask: None, dropout: None };
    attention([&heads(0)?, &heads(1)?, &heads(2)?], request, location)?.transpose(0, 1)
}

/// Returns self-attention of a packed tensor by the fused backend that is to compute it; `None` if none is.
fn fused_packed_attention(
    packed: &Tensor,
    is_causal: bool,
    scale: f64,
    location: &'static Location<'static>,
) -> Result<Option<Tensor>> {
    let request = Request { is_causal, scale, enable_gqa: false, mask: None, dropout: None };
    let reason = reason_against(&[packed], request).or_else(|| {
        let is_packed =
            matches!(packed.shape(), [_, _, 3, features] if features.is_multiple_of(chunk(dtype_in_lower(packed)) as usize));
        (!is_packed || packed.elements() == 0)
            .then_some("it takes (tokens, heads, 3, features), features in whole chunks of 16 bytes")
    });
    let Some(backends) = fused_backends(packed, true, reason)? else { return Ok(None) };
    let arguments = [packed.into(), is_causal.into(), scale.into(), backends.into()];
    let label = label_at("packed_attention", location);
    or_math(built_in!("thalweg::packed_fused_attention")?.call(&arguments, None, label))
}

/// Returns a mask of truth values as it is, and one of numbers in a dtype.
fn in_dtype(mask: &Tensor, dtype: DType) -> Result<Tensor> {
    if mask.dtype() == DType::Bool { Ok(mask.clone()) } else { mask.to_dtype(dtype) }
}

/// Returns why Flash does not take a mask.
fn reason_against_mask(query: &Tensor, key: &Tensor, mask: &Tensor) -> Option<&'static str> {
    let rank = query.rank();
    let scores = query.shape()[..rank - 1].iter().copied().chain([key.shape()[rank - 2]]);
    let scores: SmallVec<[usize; 4]> = scores.collect();
    let fits = mask.rank() <= rank
        && mask.shape().iter().rev().zip(scores.iter().rev()).all(|(&size, &of)| size == 1 || size == of);
    if !fits {
        return Some("the mask does not expand to the scores");
    }
    let is_number = mask.dtype().is_floating_point();
    (mask.dtype() != DType::Bool && !is_number).then_some("it takes a mask of truth values or of floats")
}

/// Returns why neither Cudnn nor Flash can compute attention of these tensors, apart from reasons in their shapes or the mask.
fn reason_against(tensors: &[&Tensor], request: Request<'_>) -> Option<&'static str> {
    let device = tensors[0].device();
    let dtype = dtype_in_lower(tensors[0]);
    if !matches!(dtype, DType::Bf16 | DType::F16 | DType::F32)
        || tensors.iter().any(|tensor| dtype_in_lower(tensor) != dtype)
    {
        return Some("it takes bfloat16, float16 or float32");
    }
    if tensors
        .iter()
        .any(|tensor| tensor.shape().last().is_none_or(|&features| features as u64 > most_features(dtype)))
    {
        return Some("it takes up to 256 features, or up to 128 of float32");
    }
    if !(request.scale > 0.0 && (request.scale as f32) > 0.0 && (request.scale as f32).is_finite()) {
        return Some("it takes a finite scale above 0");
    }
    (!device.has_tensor_cores()).then_some("it needs compute capability 8.0")
}

/// Returns the bits of the fused backends that may compute attention, unless `reason` excludes them; `None` if Math computes it.
/// `takes_call` is whether Cudnn takes mask and
/// dropout.
fn fused_backends(query: &Tensor, takes_call: bool, reason: Option<&str>) -> Result<Option<i64>> {
    let [cudnn, flash, math] = ALLOWED.get();
    let takes_call = takes_call && dtype_in_lower(query) != DType::F32;
    let cudnn = cudnn && takes_call && query.device().properties().libraries.attention;
    let bit = |is: bool, backend: SdpBackend| if is { backend.bit() } else { 0 };
    match (reason, bit(cudnn, SdpBackend::Cudnn) | bit(flash, SdpBackend::Flash)) {
        (None, backends @ 1..) => Ok(Some(backends)),
        _ if math => Ok(None),
        (reason, _) => Err(no_kernel(
            reason.unwrap_or(
                "it is not among the backends of sdp_kernel, or cuDNN's library is missing or does not take the mask or dropout",
            ),
        )),
    }
}

fn no_kernel(reason: &str) -> Error {
    invalid!(
        "No available kernel. Cudnn, Flash: {reason}; Math: it is not among the backends of sdp_kernel; add SdpBackend::Math"
    )
}

/// Returns the result of a fused backend; `None` if only Cudnn was tried, does not support the shape, and Math is allowed.
fn or_math(results: Result<Tensors>) -> Result<Option<Tensor>> {
    let [_, _, math] = ALLOWED.get();
    match results {
        Ok(mut results) => Ok(Some(results.swap_remove(0))),
        Err(error) if error.is_without_library() => {
            if math {
                Ok(None)
            } else {
                Err(no_kernel(&error.to_string()))
            }
        }
        Err(error) => Err(error),
    }
}
