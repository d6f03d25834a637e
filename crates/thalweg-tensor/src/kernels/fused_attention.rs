//! Attention by cuDNN or by the fused kernels of [`thalweg_kernels::attention`], and its gradient.
//!
//! Queries, keys and values are read in place with any strides. The gradient saves only these, the result and a number per query,
//! the same for both backends, so the gradient may be computed by the other one. The result is laid out as (batch, tokens, heads,
//! features), so that joining the heads is a view. The gradients of parts of one packed tensor are laid out as its parts, so that
//! joining them is a view, too.
//!
//! The last argument of the operators is the set of backends that may compute them ([`SdpBackend::bit`]).

use thalweg_ir::{DType, Layout};
use thalweg_kernels::Placed;
use thalweg_kernels::attention::{
    Addresses, Attention, AttentionPass, CHUNK, LibraryAttention, MaskStrides, Pass, PerOperand, Strides,
    TensorCores,
};
use thalweg_runtime::{Device, Error, Label, Result, Stream};

use crate::autograd::formula::{Formula, GradientCall};
use crate::autograd::is_grad_enabled;
use crate::deterministic::are_deterministic_algorithms_enabled;
use crate::dispatch::{Argument, Arguments, Call, built_in};
use crate::sdp::SdpBackend;
use crate::tensor::{Tensor, Tensors};

/// Returns a tensor that the kernels can read, copied if its strides or its address do not fit.
fn readable(tensor: &Tensor) -> Result<Tensor> {
    let tensor = tensor.detach();
    let fits = steps_fit(tensor.layout()) && tensor.pointer().address().is_multiple_of(16);
    if fits { Ok(tensor) } else { tensor.contiguous() }
}

/// Returns whether the kernels read and write tensors of these strides: contiguous features, and rows at multiples of a chunk.
fn steps_fit(layout: &Layout) -> bool {
    let (shape, strides) = (layout.shape(), layout.strides());
    let is_whole = |(&size, &step): (&usize, &usize)| size <= 1 || (step as u64).is_multiple_of(CHUNK);
    shape.iter().zip(strides).take(3).all(is_whole) && strides[3] == 1
}

fn strides_of(tensor: &Tensor) -> Strides {
    let step = |dimension: usize| match tensor.shape()[dimension] {
        0 | 1 => 0,
        _ => tensor.layout().strides()[dimension] as u64,
    };
    Strides { batch: step(0), head: step(1), row: step(2) }
}

/// Returns a mask expanded to all scores.
fn whole_mask(mask: &Tensor, query: &Tensor, key: &Tensor) -> Result<Tensor> {
    if mask.dtype() != query.dtype() {
        let (found, wanted) = (mask.dtype(), query.dtype());
        return Err(Error::invalid(format!(
            "attention: the mask is of the queries' dtype {wanted}, not {found}"
        )));
    }
    let (q, keys) = (query.shape(), key.shape()[2]);
    mask.detach().expand(&[q[0], q[1], q[2], keys])
}

fn mask_strides(mask: &Tensor) -> MaskStrides {
    let [batch, head, query, key] = [0, 1, 2, 3].map(|dimension| match mask.shape()[dimension] {
        1 => 0,
        _ => mask.layout().strides()[dimension] as u64,
    });
    MaskStrides { batch, head, query, key }
}

/// Returns whether a vendor's library can read a mask over the scores of these queries and keys, of four dimensions, in its
/// layout.
pub(crate) fn is_mask_of_library(mask: &Tensor, query: &Tensor, key: &Tensor) -> Result<bool> {
    let (q, keys) = (query.shape(), key.shape()[2]);
    let whole = mask.detach().expand(&[q[0], q[1], q[2], keys])?;
    Ok(mask_strides(&whole).are_of_library(whole.pointer().address()))
}

/// Allocates a tensor (batch, heads, tokens, features) with the memory order (batch, tokens, heads, features).
fn empty_rows(shape: &[usize], dtype: DType, stream: &Stream, label: Label) -> Result<Tensor> {
    let [batch, heads, tokens, features] = [0, 1, 2, 3].map(|at| shape[at]);
    Tensor::empty_on(&[batch, tokens, heads, features], dtype, stream, label)?.transpose(1, 2)
}

/// The arguments of a call other than tensors.
#[derive(Clone, Copy)]
struct Options {
    is_causal: bool,
    scale: f64,
    /// The bits of the backends that may compute the call.
    backends: i64,
}

impl Options {
    /// Reads the three arguments from a position on.
    fn of(call: &Call<'_>, place: usize) -> Self {
        Self { is_causal: call.bool(place), scale: call.float(place + 1), backends: call.int(place + 2) }
    }

    fn of_gradient(call: &GradientCall<'_>, place: usize) -> Self {
        Self { is_causal: call.bool(place), scale: call.float(place + 1), backends: call.int(place + 2) }
    }

    fn may_be(self, backend: SdpBackend) -> bool {
        self.backends & backend.bit() != 0
    }
}

/// The operands of one call. Absent ones are set to the queries; no kernel accesses them.
struct Operands<'t> {
    tensors: PerOperand<&'t Tensor>,
    lse: &'t Tensor,
    /// The mask, expanded to all scores.
    mask: Option<Tensor>,
    options: Options,
}

impl Operands<'_> {
    /// Queues the call, or its gradient, by the first of its backends that takes it.
    fn submit(&self, is_backward: bool, stream: &Stream, label: Label) -> Result<()> {
        let (attention, is_deterministic) = (self.attention()?, are_deterministic_algorithms_enabled());
        let operands = PerOperand::of(self.tensors.list().map(|tensor| tensor.pointer().address()));
        let mask = self.mask.as_ref().map_or(0, |mask| mask.pointer().address());
        let at = Addresses { operands, lse: self.lse.pointer().address(), sums: 0, mask };
        let is_flash = self.options.may_be(SdpBackend::Flash);
        let takes_mask = attention.mask.is_none_or(|strides| strides.are_of_library(mask));
        let is_cudnn = self.options.may_be(SdpBackend::Cudnn) && takes_mask;
        let is_ours = is_flash
            && match is_backward {
                true => is_deterministic,
                false => self.pass(Pass::Forward, attention).is_ahead_of_library(),
            };
        if is_cudnn && !is_ours {
            let call = LibraryAttention { attention, is_backward, is_deterministic };
            match stream.library_attention(&call, &at, label) {
                Err(error) if is_flash && (error.is_not_supported() || error.is_library_missing()) => {}
                done => return done,
            }
        }
        if !is_flash {
            return Err(Error::invalid("attention: none of the backends of this call is a fused one"));
        }
        if !is_backward {
            return self.launch(Pass::Forward, at, attention, stream, label);
        }
        let sums = Tensor::empty_on(&[attention.sums() as usize], DType::F32, stream, label)?;
        let at = Addresses { sums: sums.pointer().address(), ..at };
        [Pass::Sums, Pass::Keys, Pass::Queries]
            .into_iter()
            .try_for_each(|pass| self.launch(pass, at, attention, stream, label))
    }

    fn launch(
        &self,
        pass: Pass,
        at: Addresses,
        attention: Attention,
        stream: &Stream,
        label: Label,
    ) -> Result<()> {
        stream.launch_native(&Placed { kernel: self.pass(pass, attention), at }, label)
    }

    /// Returns a pass as a kernel of our own.
    fn pass(&self, pass: Pass, attention: Attention) -> AttentionPass {
        let device = self.tensors.q.device();
        let processors = device.properties().multi_processor_count;
        AttentionPass { attention, pass, cores: cores_of(device), processors }
    }

    fn attention(&self) -> Result<Attention> {
        let (q, k) = (self.tensors.q.shape(), self.tensors.k.shape());
        let attention = Attention {
            dtype: self.tensors.q.dtype(),
            batch: q[0] as u64,
            heads: q[1] as u64,
            kv_heads: k[1] as u64,
            queries: q[2] as u64,
            keys: k[2] as u64,
            features: q[3] as u64,
            is_causal: self.options.is_causal,
            scale_bits: (self.options.scale as f32).to_bits(),
            strides: PerOperand::of(self.tensors.list().map(strides_of)),
            mask: self.mask.as_ref().map(mask_strides),
        };
        attention.check().map_err(|fault| Error::invalid(fault.to_string()))?;
        Ok(attention)
    }
}

fn cores_of(device: &Device) -> TensorCores {
    if device.has_warp_groups() { TensorCores::WarpGroup } else { TensorCores::Warp }
}

/// Checks shapes and dtypes of queries, keys and values, and of the tensors with the shape of the queries.
fn check(query: &Tensor, key: &Tensor, value: &Tensor, like_query: &[&Tensor]) -> Result<()> {
    let (q, k) = (query.shape(), key.shape());
    let fits = q.len() == 4
        && k.len() == 4
        && k == value.shape()
        && (q[0], q[3]) == (k[0], k[3])
        && like_query.iter().all(|tensor| tensor.shape() == q)
        && [key, value]
            .into_iter()
            .chain(like_query.iter().copied())
            .all(|tensor| tensor.dtype() == query.dtype());
    match fits {
        true if [q, k].iter().all(|shape| !shape.contains(&0)) => Ok(()),
        true => Err(Error::invalid("attention: every operand has elements")),
        false => Err(Error::invalid(format!(
            "attention: operands are (batch, heads, tokens, features) of one dtype, keys and values of one shape; but those are {q:?}, {k:?} \
             and {:?}",
            value.shape()
        ))),
    }
}

/// Checks the logarithms that belong to the queries.
fn check_lse(query: &Tensor, lse: &Tensor) -> Result<()> {
    match lse.dtype() == DType::F32 && lse.shape() == &query.shape()[..3] && lse.is_contiguous() {
        true => Ok(()),
        false => {
            Err(Error::invalid("attention: the logarithms are contiguous float32 (batch, heads, tokens)"))
        }
    }
}

/// Computes softmax(scale · query · keyᵀ + mask) · value, and the logarithm of each query's sum of exponentials.
pub(crate) fn forward(call: &Call<'_>) -> Result<Tensors> {
    let [query, key, value] = [0, 1, 2].map(|place| call.tensor(place));
    check(query, key, value, &[])?;
    let (q, k, v) = (readable(query)?, readable(key)?, readable(value)?);
    let stream = call.device.current_stream();
    let lse = Tensor::empty_on(&q.shape()[..3], DType::F32, &stream, call.label)?;
    let result = empty_rows(q.shape(), q.dtype(), &stream, call.label)?;
    let tensors = PerOperand { k: &k, v: &v, o: &result, ..PerOperand::of([&q; 8]) };
    let mask = call.optional_tensor(3).map(|mask| whole_mask(mask, &q, &k)).transpose()?;
    let operands = Operands { tensors, lse: &lse, mask, options: Options::of(call, 4) };
    operands.submit(false, &stream, call.label)?;
    Ok([result, lse].into_iter().collect())
}

/// The tensors from which gradients are computed.
struct Known<'t> {
    gradient: &'t Tensor,
    query: &'t Tensor,
    key: &'t Tensor,
    value: &'t Tensor,
    mask: Option<&'t Tensor>,
    result: &'t Tensor,
    lse: &'t Tensor,
}

/// Computes the gradients of queries, keys and values into tensors with layouts that the kernels can write.
fn gradients_into(
    known: &Known<'_>,
    [of_query, of_key, of_value]: [&Tensor; 3],
    options: Options,
    label: Label,
) -> Result<()> {
    let Known { gradient, query, key, value, mask, result, lse } = *known;
    check(query, key, value, &[gradient, result])?;
    check_lse(query, lse)?;
    let stream = query.device().current_stream();
    let [q, k, v, o, grad_o] = [query, key, value, result, gradient].map(readable);
    let (q, k, v, o, grad_o) = (q?, k?, v?, o?, grad_o?);
    let tensors = PerOperand {
        q: &q,
        k: &k,
        v: &v,
        o: &o,
        grad_o: &grad_o,
        grad_q: of_query,
        grad_k: of_key,
        grad_v: of_value,
    };
    let mask = mask.map(|mask| whole_mask(mask, query, key)).transpose()?;
    Operands { tensors, lse, mask, options }.submit(true, &stream, label)
}

/// Allocates the gradients of queries, keys and values. If these are the three parts that make up one packed tensor, so are the
/// gradients; otherwise each has the memory order (batch, tokens, heads, features).
fn empty_gradients(parts: [&Tensor; 3], stream: &Stream, label: Label) -> Result<[Tensor; 3]> {
    let [query, key, value] = parts;
    if let Some(layouts) = packed_layouts(parts) {
        let whole = Tensor::empty_on(&[3 * query.elements()], query.dtype(), stream, label)?;
        return Ok(layouts.map(|layout| whole.with_layout(layout)));
    }
    let [query, key, value] =
        [query, key, value].map(|tensor| empty_rows(tensor.shape(), tensor.dtype(), stream, label));
    Ok([query?, key?, value?])
}

/// Returns the layouts of three parts of equal shapes and strides, equally far apart in one storage, from the first element of
/// the first part on, if together they fill a range and the kernels can write tensors with these layouts.
fn packed_layouts(parts: [&Tensor; 3]) -> Option<[Layout; 3]> {
    let [first, second, third] = parts.map(Tensor::layout);
    let step = second.offset().checked_sub(first.offset())?;
    let is_alike = parts.iter().all(|part| {
        part.shares_storage_with(parts[0])
            && part.shape() == parts[0].shape()
            && part.layout().strides() == first.strides()
    });
    let is_written = steps_fit(first) && (step as u64).is_multiple_of(CHUNK);
    if !is_alike || !is_written || third.offset().checked_sub(second.offset()) != Some(step) {
        return None;
    }
    let mut dimensions: Vec<(usize, usize)> =
        (first.strides().iter().copied().zip(first.shape().iter().copied())).chain([(step, 3)]).collect();
    dimensions.retain(|&(_, extent)| extent != 1);
    dimensions.sort_unstable();
    let mut next = 1;
    for (stride, extent) in dimensions {
        if stride != next {
            return None;
        }
        next *= extent;
    }
    let part = |place: usize| Layout::new(first.shape(), first.strides(), place * step).ok();
    Some([part(0)?, part(1)?, part(2)?])
}

/// Computes the gradients of queries, keys and values.
pub(crate) fn backward(call: &Call<'_>) -> Result<Tensors> {
    let [gradient, query, key, value, result, lse] = [0, 1, 2, 3, 5, 6].map(|place| call.tensor(place));
    let mask = call.optional_tensor(4);
    check(query, key, value, &[gradient, result])?;
    let stream = call.device.current_stream();
    let gradients = empty_gradients([query, key, value], &stream, call.label)?;
    let known = Known { gradient, query, key, value, mask, result, lse };
    gradients_into(&known, gradients.each_ref(), Options::of(call, 7), call.label)?;
    Ok(gradients.into_iter().collect())
}

/// The gradient of [`forward`]: by the fused kernels, or, if it must be differentiable itself, by operators.
pub(crate) static GRADIENT: Formula = Formula {
    inputs: &[0, 1, 2, 3],
    outputs: &[0, 1],
    backward: |call| {
        let (q, k, v) = (call.saved(0)?, call.saved(1)?, call.saved(2)?);
        let options = Options::of_gradient(call, 4);
        let mask = (call.tensor_count() > 3).then(|| call.saved(3)).transpose()?;
        let gradient = call.gradient()?;
        let gradients = if is_grad_enabled() {
            by_operators([&q, &k, &v], mask.as_ref(), &gradient, options)?
        } else {
            let (result, lse) = (call.result(0)?, call.result(1)?);
            let tensors = [&gradient, &q, &k, &v];
            let mut arguments: Vec<Argument<'_>> = tensors.into_iter().map(Argument::from).collect();
            let Options { is_causal, scale, backends } = options;
            arguments.extend([Argument::from(mask.as_ref()), (&result).into(), (&lse).into()]);
            arguments.extend([Argument::from(is_causal), scale.into(), backends.into()]);
            built_in!("thalweg::fused_attention_backward")?.call(&arguments, None, call.label())?
        };
        call.each(|place| Ok(gradients.get(place).cloned()))
    },
};

/// Computes the gradients of queries, keys and values by operators that have gradients themselves.
fn by_operators(
    [query, key, value]: [&Tensor; 3],
    mask: Option<&Tensor>,
    gradient: &Tensor,
    Options { is_causal, scale, .. }: Options,
) -> Result<Tensors> {
    let shared = query.shape()[1] / key.shape()[1];
    let wide = |tensor: &Tensor, times: usize| -> Result<Tensor> {
        let tensor = tensor.to_dtype(DType::F32)?;
        if times == 1 { Ok(tensor) } else { tensor.repeat_interleave(times as i64, Some(1)) }
    };
    let (q, k, v, gradient) = (wide(query, 1)?, wide(key, shared)?, wide(value, shared)?, wide(gradient, 1)?);
    let mut scores = q.matmul(&k.transpose(-2, -1)?)?.mul_scalar(scale)?;
    if let Some(mask) = mask {
        scores = scores.add(&mask.to_dtype(DType::F32)?)?;
    }
    if is_causal {
        let seen = Tensor::ones(&scores.shape()[2..], DType::Bool, q.device())?.tril(0)?;
        scores =
            seen.select_where(&scores, &Tensor::full(&[], f64::NEG_INFINITY, DType::F32, q.device())?)?;
    }
    let mut weights = scores.softmax(-1)?;
    if mask.is_some() {
        // A query that sees no key has weights of 0.
        let lowest = scores.amax(&[-1], true)?.eq_scalar(f64::NEG_INFINITY)?;
        weights = lowest.select_where(&Tensor::zeros(&[], DType::F32, q.device())?, &weights)?;
    }
    let of_weights = gradient.matmul(&v.transpose(-2, -1)?)?;
    let sums = weights.mul(&of_weights)?.sum(&[-1], true)?;
    let of_scores = weights.mul(&of_weights.sub(&sums)?)?.mul_scalar(scale)?;
    let narrow = |tensor: &Tensor, like: &Tensor| -> Result<Tensor> {
        let &[batch, heads, tokens, features] = like.shape() else {
            return Err(Error::invalid("four dimensions"));
        };
        let of_groups = tensor.reshape(&[batch, heads, tensor.shape()[1] / heads, tokens, features])?;
        of_groups.sum(&[2], false)?.to_dtype(like.dtype())
    };
    Ok([
        narrow(&of_scores.matmul(&k)?, query)?,
        narrow(&of_scores.transpose(-2, -1)?.matmul(&q)?, key)?,
        narrow(&weights.transpose(-2, -1)?.matmul(&gradient)?, value)?,
    ]
    .into_iter()
    .collect())
}

/// Returns queries, keys and values of a packed tensor (tokens, heads, 3, features) as views (1, heads, tokens, features).
fn parts(packed: &Tensor) -> Result<[Tensor; 3]> {
    let parts = packed.unbind(2)?;
    let part = |place: usize| parts[place].transpose(0, 1)?.unsqueeze(0);
    Ok([part(0)?, part(1)?, part(2)?])
}

/// Computes self-attention of a packed tensor: the result (tokens, heads, features), and the logarithms (1, heads, tokens).
pub(crate) fn packed(call: &Call<'_>) -> Result<Tensors> {
    let packed = call.tensor(0).detach();
    if !matches!(packed.shape(), [_, _, 3, _]) || packed.elements() == 0 {
        let shape = packed.shape();
        return Err(Error::invalid(format!("the input is (tokens, heads, 3, features), not {shape:?}")));
    }
    let [query, key, value] = parts(&packed)?;
    let (q, k, v) = (readable(&query)?, readable(&key)?, readable(&value)?);
    let stream = call.device.current_stream();
    let lse = Tensor::empty_on(&q.shape()[..3], DType::F32, &stream, call.label)?;
    let result = empty_rows(q.shape(), q.dtype(), &stream, call.label)?;
    let tensors = PerOperand { k: &k, v: &v, o: &result, ..PerOperand::of([&q; 8]) };
    let operands = Operands { tensors, lse: &lse, mask: None, options: Options::of(call, 1) };
    operands.submit(false, &stream, call.label)?;
    Ok([result.squeeze(0)?.transpose(0, 1)?, lse].into_iter().collect())
}

/// The gradient of [`packed`], written into one packed tensor.
pub(crate) static PACKED_GRADIENT: Formula =
    Formula { inputs: &[0], outputs: &[0, 1], backward: |call| call.one(0, || packed_gradient(call)) };

fn packed_gradient(call: &GradientCall<'_>) -> Result<Tensor> {
    let (packed, options) = (call.saved(0)?, Options::of_gradient(call, 1));
    let gradient = call.gradient()?.transpose(0, 1)?.unsqueeze(0)?;
    let [query, key, value] = parts(&packed)?;
    if is_grad_enabled() {
        let gradients = by_operators([&query, &key, &value], None, &gradient, options)?;
        let rows: Vec<Tensor> =
            gradients.iter().map(|part| part.squeeze(0)?.transpose(0, 1)).collect::<Result<_>>()?;
        return Tensor::stack(&rows, 2);
    }
    let (result, lse) = (call.result(0)?.transpose(0, 1)?.unsqueeze(0)?, call.result(1)?);
    let stream = packed.device().current_stream();
    let whole = Tensor::empty_on(packed.shape(), packed.dtype(), &stream, call.label())?;
    let [of_query, of_key, of_value] = parts(&whole)?;
    let known = Known {
        gradient: &gradient,
        query: &query,
        key: &key,
        value: &value,
        mask: None,
        result: &result,
        lse: &lse,
    };
    gradients_into(&known, [&of_query, &of_key, &of_value], options, call.label())?;
    Ok(whole)
}
