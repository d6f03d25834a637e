//! Attention by cuDNN or by the fused kernels of [`thalweg_kernels::attention`], and its gradient.
//!
//! Queries, keys and values are read in place with any strides. The gradient saves only these, the result and a number per query,
//! the same for both backends, so the gradient may be computed by the other one. The result is laid out as (batch, tokens, heads,
//! features), so that joining the heads is a view. The gradients of parts of one packed tensor are laid out as its parts, so that
//! joining them is a view, too.
//!
//! With dropout the gradient also saves seed and offset of the generator, and regenerates which weights were dropped
//! ([`thalweg_kernels::attention::Dropout`]); only the fused kernels do that. A mask of truth values is saved as it is given, and
//! converted for cuDNN in each pass. The gradient of a mask is a kernel of its own.
//!
//! The argument `backends` of the operators is the set of backends that may compute them ([`SdpBackend::bit`]).

use smallvec::SmallVec;
use thalweg_execute::{execute, library};
use thalweg_ir::{DType, Layout};
use thalweg_kernels::attention::{
    Addresses, Attention, AttentionPass, CHUNK_OF_LIBRARY, Dropout, GradientPasses, KeptAddresses,
    KeptWeights, LibraryAttention, Mask, MaskStrides, Pass, PerOperand, Strides, TensorCores, chunk,
};
use thalweg_runtime::{Device, Error, Label, Result, invalid, refuse, refuse_if};

use crate::autograd::formula::{Formula, GradientCall};
use crate::autograd::is_grad_enabled;
use crate::deterministic::are_deterministic_algorithms_enabled;
use crate::dispatch::{Argument, Arguments, Call, built_in};
use crate::native::launch;
use crate::sdp::SdpBackend;
use crate::tensor::{Tensor, Tensors};

/// Returns a tensor that the kernels can read, copied if its strides or its address do not fit.
fn readable(tensor: &Tensor) -> Result<Tensor> {
    let tensor = tensor.detach();
    let fits = steps_fit(&tensor) && tensor.pointer().address().is_multiple_of(16);
    if fits { Ok(tensor) } else { tensor.contiguous() }
}

/// Returns whether the kernels read and write tensors of these strides: contiguous features, and rows at multiples of a chunk.
fn steps_fit(tensor: &Tensor) -> bool {
    let (shape, strides) = (tensor.shape(), tensor.layout().strides());
    let is_whole =
        |(&size, &step): (&usize, &usize)| size <= 1 || (step as u64).is_multiple_of(chunk(tensor.dtype()));
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
    if mask.dtype() != query.dtype() && mask.dtype() != DType::Bool {
        let (found, wanted) = (mask.dtype(), query.dtype());
        refuse!("attention: the mask is of truth values or of the queries' dtype {wanted}, not {found}");
    }
    let (q, keys) = (query.shape(), key.shape()[2]);
    mask.detach().expand(&[q[0], q[1], q[2], keys])
}

fn mask_strides(mask: &Layout) -> MaskStrides {
    let [batch, head, query, key] = [0, 1, 2, 3].map(|dimension| match mask.shape()[dimension] {
        1 => 0,
        _ => mask.strides()[dimension] as u64,
    });
    MaskStrides { batch, head, query, key }
}

/// Returns a mask that is expanded to all scores as the kernels' description.
fn described(mask: &Tensor) -> Mask {
    Mask { strides: mask_strides(mask.layout()), is_truth: mask.dtype() == DType::Bool }
}

/// Returns whether a vendor's library can read a mask over the scores of these queries and keys, of four dimensions: in its layout,
/// or, if it is of truth values, as [`numbers`].
pub(crate) fn is_mask_of_library(mask: &Tensor, query: &Tensor, key: &Tensor) -> Result<bool> {
    let (q, keys) = (query.shape(), key.shape()[2]);
    Ok(is_of_library(&mask.detach().expand(&[q[0], q[1], q[2], keys])?))
}

fn is_of_library(whole: &Tensor) -> bool {
    match whole.dtype() {
        DType::Bool => {
            mask_strides(whole.layout()).key != 0
                && (whole.shape()[3] as u64).is_multiple_of(CHUNK_OF_LIBRARY)
        }
        _ => described(whole).is_of_library(whole.pointer().address()),
    }
}

/// Returns a mask of truth values, expanded to all scores, as numbers that are added to the scores: 0 where a key is seen, −∞ where
/// it is not. Dimensions along which the mask repeats are not multiplied.
fn numbers(mask: &Tensor, dtype: DType) -> Result<Tensor> {
    let mut part = mask.detach();
    for dimension in 0..3 {
        if part.layout().strides()[dimension] == 0 {
            part = part.narrow(dimension as i64, 0, 1)?;
        }
    }
    let number = |value: f64| Tensor::full(&[], value, dtype, mask.device());
    let numbers = part.select_where(&number(0.0)?, &number(f64::NEG_INFINITY)?)?.contiguous()?;
    numbers.expand(mask.shape())
}

/// Allocates a result (batch, heads, tokens, features) with the memory order (batch, tokens, heads, features), or takes offered memory.
fn empty_rows(call: &Call<'_>, shape: &[usize], dtype: DType) -> Result<Tensor> {
    let [batch, heads, tokens, features] = [0, 1, 2, 3].map(|at| shape[at]);
    let strides = [tokens * heads * features, features, heads * features, 1];
    let stream = call.device.current_stream();
    if let Some(offered) = Tensor::offered(&Layout::new(shape, &strides, 0)?, dtype, &stream) {
        return Ok(offered);
    }
    call.new_empty(&[batch, tokens, heads, features], dtype)?.transpose(1, 2)
}

/// The arguments of a call other than tensors.
#[derive(Clone, Copy)]
pub(super) struct Options {
    pub(super) is_causal: bool,
    pub(super) scale: f64,
    /// The bits of the backends that may compute the call.
    pub(super) backends: i64,
    /// The probability of dropout.
    pub(super) dropout: f64,
}

impl Options {
    pub(super) const NONE: Self = Self { is_causal: false, scale: 1.0, backends: 0, dropout: 0.0 };

    /// Reads the three arguments from a position on. There is no dropout.
    fn of(call: &impl Arguments, place: usize) -> Self {
        let (is_causal, scale) = (call.bool(place), call.float(place + 1));
        Self { is_causal, scale, backends: call.int(place + 2), dropout: 0.0 }
    }

    /// Reads four arguments, of which the last is the probability of dropout.
    fn with_dropout(call: &impl Arguments, place: usize) -> Self {
        Self { dropout: call.float(place + 3), ..Self::of(call, place) }
    }

    /// Returns the options as the last arguments of an operator.
    fn arguments(self) -> [Argument<'static>; 4] {
        let Self { is_causal, scale, backends, dropout } = self;
        [is_causal.into(), scale.into(), backends.into(), dropout.into()]
    }

    fn may_be(self, backend: SdpBackend) -> bool {
        self.backends & backend.bit() != 0
    }

    /// Returns the generator's state of a call with dropout.
    pub(super) fn state(self, state: Option<&Tensor>) -> Result<Option<&Tensor>> {
        let is_state = |state: &&Tensor| state.dtype() == DType::I64 && state.elements() == 2;
        match (self.dropout, state.filter(is_state)) {
            (0.0, _) => Ok(None),
            (0.0..=1.0, Some(state)) if state.is_contiguous() => Ok(Some(state)),
            (p, _) => {
                Err(invalid!("attention: dropout with a probability of {p} draws from a state of two int64"))
            }
        }
    }
}

/// The operands of one call. Absent ones are set to the queries; no kernel accesses them.
struct Operands<'t> {
    tensors: PerOperand<&'t Tensor>,
    lse: &'t Tensor,
    /// The mask, expanded to all scores.
    mask: Option<Tensor>,
    /// Seed and offset of the generator, with dropout.
    state: Option<&'t Tensor>,
    options: Options,
}

impl Operands<'_> {
    /// Queues the call, or its gradient, by the first of its backends that takes it.
    fn submit(&self, is_backward: bool, label: Label) -> Result<()> {
        let (attention, is_deterministic) = (self.attention()?, are_deterministic_algorithms_enabled());
        let at = self.addresses();
        let is_flash = self.options.may_be(SdpBackend::Flash);
        let takes_mask = self.mask.as_ref().is_none_or(is_of_library);
        let takes_call = takes_mask && attention.dropout.is_none() && attention.dtype != DType::F32;
        let is_cudnn = self.options.may_be(SdpBackend::Cudnn) && takes_call;
        let is_ours = is_flash
            && match is_backward {
                true => is_deterministic,
                false => self.pass(Pass::Forward, attention).is_ahead_of_library(),
            };
        if is_cudnn && !is_ours {
            match self.by_library(attention, is_backward, label) {
                Err(error) if is_flash && error.is_without_library() => {}
                done => return done,
            }
        }
        refuse_if!(!is_flash, "attention: none of the backends of this call is a fused one");
        if !is_backward {
            return launch(self.pass(Pass::Forward, attention), (self.tensors.q.device(), at), label);
        }
        self.launch_backward(&[Pass::Keys, Pass::Queries], at, attention, label)
    }

    /// Queues passes of the gradient, and the one whose sums they read.
    fn launch_backward(
        &self,
        passes: &[Pass],
        at: Addresses,
        attention: Attention,
        label: Label,
    ) -> Result<()> {
        let sums = self.pass(Pass::Sums, attention);
        launch(GradientPasses { sums, passes }, (self.tensors.q.device(), at), label)
    }

    /// Queues the call, or its gradient, as a call of the library.
    fn by_library(&self, attention: Attention, is_backward: bool, label: Label) -> Result<()> {
        let truths = self.mask.as_ref().filter(|mask| mask.dtype() == DType::Bool);
        let numbers = truths.map(|mask| numbers(mask, attention.dtype)).transpose()?;
        let mask = numbers.as_ref().or(self.mask.as_ref());
        let address = mask.map_or(0, |mask| mask.pointer().address());
        let attention = Attention { mask: mask.map(described), ..attention };
        let is_deterministic = are_deterministic_algorithms_enabled();
        let call = LibraryAttention { attention, is_backward, is_deterministic };
        let stream = self.tensors.q.device().current_stream();
        let at = Addresses { mask: address, ..self.addresses() };
        execute(library::Attention(call), &at, &stream, label)
    }

    fn addresses(&self) -> Addresses {
        let address = |tensor: &Tensor| tensor.pointer().address();
        Addresses {
            operands: PerOperand::of(self.tensors.list().map(address)),
            lse: address(self.lse),
            sums: 0,
            mask: self.mask.as_ref().map_or(0, address),
            grad_mask: 0,
            state: self.state.map_or(0, address),
        }
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
            mask: self.mask.as_ref().map(described),
            grad_mask: MaskStrides::default(),
            mask_parts: 1,
            dropout: self.state.and_then(|_| Dropout::of(self.options.dropout)),
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
        true => Err(invalid!("attention: every operand has elements")),
        false => Err(invalid!(
            "attention: operands are (batch, heads, tokens, features) of one dtype, keys and values of one shape; but those are {q:?}, {k:?} \
             and {:?}",
            value.shape()
        )),
    }
}

/// Checks the logarithms that belong to the queries.
fn check_lse(query: &Tensor, lse: &Tensor) -> Result<()> {
    match lse.dtype() == DType::F32 && lse.shape() == &query.shape()[..3] && lse.is_contiguous() {
        true => Ok(()),
        false => Err(invalid!("attention: the logarithms are contiguous float32 (batch, heads, tokens)")),
    }
}

/// Computes softmax(scale · query · keyᵀ + mask) · value, and the logarithm of each query's sum of exponentials.
pub(crate) fn forward(call: &Call<'_>) -> Result<Tensors> {
    let [query, key, value] = [0, 1, 2].map(|place| call.tensor(place));
    check(query, key, value, &[])?;
    let (q, k, v) = (readable(query)?, readable(key)?, readable(value)?);
    let lse = call.new_result(&q.shape()[..3], DType::F32)?;
    let result = empty_rows(call, q.shape(), q.dtype())?;
    let tensors = PerOperand { k: &k, v: &v, o: &result, ..PerOperand::of([&q; 8]) };
    let mask = call.optional_tensor(3).map(|mask| whole_mask(mask, &q, &k)).transpose()?;
    let options = Options::with_dropout(call, 5);
    let state = options.state(call.optional_tensor(4))?;
    let operands = Operands { tensors, lse: &lse, mask, state, options };
    operands.submit(false, call.label)?;
    Ok([result, lse].into_iter().collect())
}

/// The tensors from which gradients are computed.
struct Known<'t> {
    gradient: &'t Tensor,
    query: &'t Tensor,
    key: &'t Tensor,
    value: &'t Tensor,
    mask: Option<&'t Tensor>,
    state: Option<&'t Tensor>,
    result: &'t Tensor,
    lse: &'t Tensor,
}

impl<'t> Known<'t> {
    /// Reads the tensors of an operator that computes a gradient.
    fn of(call: &'t Call<'_>, options: Options) -> Result<Self> {
        let [gradient, query, key, value, result, lse] = [0, 1, 2, 3, 6, 7].map(|place| call.tensor(place));
        check(query, key, value, &[gradient, result])?;
        check_lse(query, lse)?;
        let (mask, state) = (call.optional_tensor(4), options.state(call.optional_tensor(5))?);
        Ok(Self { gradient, query, key, value, mask, state, result, lse })
    }
}

/// Computes the gradients of queries, keys and values into tensors with layouts that the kernels can write.
fn gradients_into(
    known: &Known<'_>,
    [of_query, of_key, of_value]: [&Tensor; 3],
    options: Options,
    label: Label,
) -> Result<()> {
    let Known { gradient, query, key, value, mask, state, result, lse } = *known;
    check(query, key, value, &[gradient, result])?;
    check_lse(query, lse)?;
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
    Operands { tensors, lse, mask, state, options }.submit(true, label)
}

/// Allocates the gradients of queries, keys and values. If these are the three parts that make up one packed tensor, so are the
/// gradients; otherwise each has the memory order (batch, tokens, heads, features).
fn empty_gradients(call: &Call<'_>, parts: [&Tensor; 3]) -> Result<[Tensor; 3]> {
    let [query, key, value] = parts;
    if let Some(layouts) = packed_layouts(parts) {
        let whole = call.new_empty(&[3 * query.elements()], query.dtype())?;
        return Ok(layouts.map(|layout| whole.with_layout(layout)));
    }
    let [query, key, value] =
        [query, key, value].map(|tensor| empty_rows(call, tensor.shape(), tensor.dtype()));
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
    let is_written = steps_fit(parts[0]) && (step as u64).is_multiple_of(chunk(parts[0].dtype()));
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
    let options = Options::with_dropout(call, 8);
    let known = Known::of(call, options)?;
    let gradients = empty_gradients(call, [known.query, known.key, known.value])?;
    gradients_into(&known, gradients.each_ref(), options, call.label)?;
    Ok(gradients.into_iter().collect())
}

/// Computes the gradient of a mask of numbers.
pub(crate) fn backward_of_mask(call: &Call<'_>) -> Result<Tensors> {
    let options = Options::with_dropout(call, 8);
    let Known { gradient, query, key, value, mask, state, result, lse } = Known::of(call, options)?;
    let Some(mask) = mask.filter(|mask| mask.dtype() == query.dtype()) else {
        refuse!("attention: only a mask of numbers has a gradient");
    };
    let [q, k, v, o, grad_o] = [query, key, value, result, gradient].map(readable);
    let (q, k, v, o, grad_o) = (q?, k?, v?, o?, grad_o?);
    let tensors = PerOperand { k: &k, v: &v, o: &o, grad_o: &grad_o, ..PerOperand::of([&q; 8]) };
    let whole = Some(whole_mask(mask, query, key)?);
    let operands = Operands { tensors, lse, mask: whole, state, options };
    let ones = SmallVec::<[usize; 4]>::from_elem(1, 4 - mask.rank());
    let shape: SmallVec<[usize; 4]> = ones.into_iter().chain(mask.shape().iter().copied()).collect();
    let grad_mask = mask_strides(&Layout::contiguous(&shape));
    let attention = Attention { grad_mask, ..operands.attention()? };
    let mask_parts = operands.pass(Pass::Mask, attention).parts_of_mask();
    let parts = call.new_empty(&[&[mask_parts as usize], mask.shape()].concat(), DType::F32)?;
    let at = Addresses { grad_mask: parts.pointer().address(), ..operands.addresses() };
    operands.launch_backward(&[Pass::Mask], at, Attention { mask_parts, ..attention }, call.label)?;
    let sum = if mask_parts == 1 { parts.select(0, 0)? } else { parts.sum(&[0], false)? };
    Ok([sum.to_dtype(mask.dtype())?].into_iter().collect())
}

/// Computes which weights a call with dropout keeps, as truth values (batch, heads, queries, keys).
pub(crate) fn kept_weights(call: &Call<'_>) -> Result<Tensors> {
    let state = Options { dropout: call.float(2), ..Options::NONE }.state(Some(call.tensor(0)))?;
    let sizes: Option<SmallVec<[usize; 4]>> =
        call.ints(1).iter().map(|&size| usize::try_from(size).ok()).collect();
    let (Some(shape), Some(state), Some(dropout)) =
        (sizes.filter(|sizes| sizes.len() == 4), state, Dropout::of(call.float(2)))
    else {
        refuse!("attention: kept weights have four sizes, and a probability of at least 2^-17");
    };
    let kept = call.new_empty(&shape, DType::Bool)?;
    let [batch, heads, queries, keys] = [0, 1, 2, 3].map(|at| shape[at] as u64);
    let kernel = KeptWeights { heads: batch * heads, queries, keys, dropout };
    let at = KeptAddresses { state: state.pointer(), to: kept.pointer() };
    call.launch(kernel, (call.device, at))?;
    Ok([kept].into_iter().collect())
}

/// The gradient of [`forward`]: by the fused kernels, or, if it must be differentiable itself, by operators.
pub(crate) static GRADIENT: Formula = Formula {
    inputs: &[0, 1, 2, 3, 4],
    outputs: &[0, 1],
    backward: |call| {
        let options = Options::with_dropout(call, 5);
        let has_state = options.dropout != 0.0;
        let has_mask = call.tensor_count() > 3 + usize::from(has_state);
        let (q, k, v) = (call.saved(0)?, call.saved(1)?, call.saved(2)?);
        let mask = has_mask.then(|| call.saved(3)).transpose()?;
        let state = has_state.then(|| call.saved(3 + usize::from(has_mask))).transpose()?;
        let gradient = call.gradient()?;
        if is_grad_enabled() {
            let gradients = by_operators([&q, &k, &v], [mask.as_ref(), state.as_ref()], &gradient, options)?;
            return call.each(|place| Ok(gradients.get(place).cloned()));
        }
        let (result, lse) = (call.result(0)?, call.result(1)?);
        let tensors = [&gradient, &q, &k, &v].map(Argument::from);
        let optional =
            [Argument::from(mask.as_ref()), state.as_ref().into(), (&result).into(), (&lse).into()];
        let arguments: SmallVec<[Argument<'_>; 12]> =
            tensors.into_iter().chain(optional).chain(options.arguments()).collect();
        let gradients = match (0..3).any(|place| call.wants(place)) {
            true => built_in!("thalweg::fused_attention_backward")?.call(&arguments, None, call.label())?,
            false => Tensors::new(),
        };
        call.each(|place| match place {
            3 if has_mask => {
                let operator = built_in!("thalweg::fused_attention_backward_mask")?;
                Ok(Some(operator.call(&arguments, None, call.label())?.swap_remove(0)))
            }
            _ => Ok(gradients.get(place).cloned()),
        })
    },
};

/// Computes the gradients of queries, keys, values and mask by operators that have gradients themselves.
fn by_operators(
    [query, key, value]: [&Tensor; 3],
    [mask, state]: [Option<&Tensor>; 2],
    gradient: &Tensor,
    Options { is_causal, scale, dropout, .. }: Options,
) -> Result<Tensors> {
    let shared = query.shape()[1] / key.shape()[1];
    let wide = |tensor: &Tensor, times: usize| -> Result<Tensor> {
        let tensor = tensor.to_dtype(DType::F32)?;
        if times == 1 { Ok(tensor) } else { tensor.repeat_interleave(times as i64, Some(1)) }
    };
    let (q, k, v, gradient) = (wide(query, 1)?, wide(key, shared)?, wide(value, shared)?, wide(gradient, 1)?);
    let mut scores = q.matmul(&k.transpose(-2, -1)?)?.mul_scalar(scale)?;
    let infinite = Tensor::full(&[], f64::NEG_INFINITY, DType::F32, q.device())?;
    scores = match mask {
        Some(mask) if mask.dtype() == DType::Bool => mask.select_where(&scores, &infinite)?,
        Some(mask) => scores.add(&mask.to_dtype(DType::F32)?)?,
        None => scores,
    };
    if is_causal {
        let seen = Tensor::ones(&scores.shape()[2..], DType::Bool, q.device())?.tril(0)?;
        scores = seen.select_where(&scores, &infinite)?;
    }
    let mut weights = scores.softmax(-1)?;
    if mask.is_some() {
        // A query that sees no key has weights of 0.
        let lowest = scores.amax(&[-1], true)?.eq_scalar(f64::NEG_INFINITY)?;
        weights = lowest.select_where(&Tensor::zeros(&[], DType::F32, q.device())?, &weights)?;
    }
    let mut of_weights = gradient.matmul(&v.transpose(-2, -1)?)?;
    let mut used = weights.clone();
    if let (Some(state), Some(kind)) = (state, Dropout::of(dropout)) {
        let sizes: SmallVec<[i64; 4]> = weights.shape().iter().map(|&size| size as i64).collect();
        let arguments = [state.into(), Argument::Ints(&sizes), dropout.into()];
        let operator = built_in!("thalweg::attention_kept_weights")?;
        let kept = operator.call(&arguments, None, Label::here("dropout"))?.swap_remove(0);
        let factors = kept.to_dtype(DType::F32)?.mul_scalar(f64::from(kind.rescale()))?;
        (of_weights, used) = (of_weights.mul(&factors)?, weights.mul(&factors)?);
    }
    let sums = weights.mul(&of_weights)?.sum(&[-1], true)?;
    let of_mask = weights.mul(&of_weights.sub(&sums)?)?;
    let of_scores = of_mask.mul_scalar(scale)?;
    let narrow = |tensor: &Tensor, like: &Tensor| -> Result<Tensor> {
        let &[batch, heads, tokens, features] = like.shape() else {
            refuse!("four dimensions");
        };
        let of_groups = tensor.reshape(&[batch, heads, tensor.shape()[1] / heads, tokens, features])?;
        of_groups.sum(&[2], false)?.to_dtype(like.dtype())
    };
    let mut gradients = Tensors::from_iter([
        narrow(&of_scores.matmul(&k)?, query)?,
        narrow(&of_scores.transpose(-2, -1)?.matmul(&q)?, key)?,
        narrow(&used.transpose(-2, -1)?.matmul(&gradient)?, value)?,
    ]);
    if let Some(mask) = mask.filter(|mask| mask.dtype() != DType::Bool) {
        gradients.push(of_mask.sum_to_shape(mask.shape())?.to_dtype(mask.dtype())?);
    }
    Ok(gradients)
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
        refuse!("the input is (tokens, heads, 3, features), not {shape:?}");
    }
    let [query, key, value] = parts(&packed)?;
    let (q, k, v) = (readable(&query)?, readable(&key)?, readable(&value)?);
    let lse = call.new_result(&q.shape()[..3], DType::F32)?;
    let result = empty_rows(call, q.shape(), q.dtype())?;
    let tensors = PerOperand { k: &k, v: &v, o: &result, ..PerOperand::of([&q; 8]) };
    let operands = Operands { tensors, lse: &lse, mask: None, state: None, options: Options::of(call, 1) };
    operands.submit(false, call.label)?;
    Ok([result.squeeze(0)?.transpose(0, 1)?, lse].into_iter().collect())
}

/// The gradient of [`packed`], written into one packed tensor.
pub(crate) static PACKED_GRADIENT: Formula =
    Formula { inputs: &[0], outputs: &[0, 1], backward: |call| call.one(0, || packed_gradient(call)) };

fn packed_gradient(call: &GradientCall<'_>) -> Result<Tensor> {
    let (packed, options) = (call.saved(0)?, Options::of(call, 1));
    let gradient = call.gradient()?.transpose(0, 1)?.unsqueeze(0)?;
    let [query, key, value] = parts(&packed)?;
    if is_grad_enabled() {
        let gradients = by_operators([&query, &key, &value], [None; 2], &gradient, options)?;
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
        state: None,
        result: &result,
        lse: &lse,
    };
    gradients_into(&known, [&of_query, &of_key, &of_value], options, call.label())?;
    Ok(whole)
}
