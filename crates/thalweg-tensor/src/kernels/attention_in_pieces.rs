//! Attention by products and one loop, a piece of the scores at a time: [`SdpBackend::Math`](crate::sdp::SdpBackend::Math).
//!
//! A piece is some entries of the batch, some heads of one, or some queries of one head, with at most `MOST_SCORES` scores. Its scores are a
//! product, its weights one loop (mask and softmax), its results another product. The gradient keeps queries, keys, values and mask,
//! and computes the weights of each piece again, so that the scores of a call are never stored.
//!
//! With dropout it also keeps seed and offset of the generator, and which weights were dropped is drawn again, as in the fused kernels
//! ([`Dropout`]).

use std::cell::Cell;
use std::ops::Range;

use smallvec::SmallVec;
use thalweg_ir::{DType, Scalar, Shape, broadcast_shapes};
use thalweg_kernels::attention::Dropout;
use thalweg_runtime::{Error, Label, Result, invalid, refuse_if};

use super::fused_attention::Options;
use crate::autograd::formula::Formula;
use crate::autograd::is_grad_enabled;
use crate::dispatch::{Argument, Arguments, Call, Operator, built_in};
use crate::no_grad;
use crate::tensor::{Tensor, Tensors};

thread_local! {
    /// The greatest number of scores of a piece, by default 32 MiB of 32-bit floats, which stay in the L2 of large GPUs from one kernel to
    /// the next.
    static MOST_SCORES: Cell<usize> = const { Cell::new(1 << 23) };
}

/// Calls a function in which the pieces of this thread have another greatest number of scores.
pub(crate) fn in_pieces_of<T>(most: usize, function: impl FnOnce() -> T) -> T {
    struct Restored(usize);
    impl Drop for Restored {
        fn drop(&mut self) {
            MOST_SCORES.set(self.0);
        }
    }
    let _restored = Restored(MOST_SCORES.replace(most));
    function()
}

/// The least number of queries of a piece with the mask of a triangle, unless it would have too many scores.
const LEAST_QUERIES: usize = 128;

/// A part of the scores: entries of the batch, heads of keys, queries, and the number of keys that those see.
struct Piece {
    batch: Range<usize>,
    heads: Range<usize>,
    queries: Range<usize>,
    keys: usize,
}

/// The operands of a call: queries (batch, heads, queries, features), keys and values (batch, fewer heads, keys, features), and masks that
/// are expanded to all scores.
struct Operands {
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Option<Tensor>,
    /// The weights that dropout keeps, as truth values, and the factor of those.
    kept: Option<(Tensor, f64)>,
    options: Options,
    label: Label,
}

impl Operands {
    fn new(
        [query, key, value]: [&Tensor; 3],
        [mask, state]: [Option<&Tensor>; 2],
        options: Options,
        label: Label,
    ) -> Result<Self> {
        let state = options.state(state)?;
        let (q, k, v) = (query.shape(), key.shape(), value.shape());
        let fits = [q, k, v].iter().all(|shape| shape.len() == 4 && shape[0] == q[0])
            && k[..3] == v[..3]
            && q[3] == k[3]
            && k[1] > 0
            && q[1].is_multiple_of(k[1]);
        refuse_if!(
            !fits,
            "attention: operands are (batch, heads, tokens, features), with as many keys as values and as many features of queries as of \
             keys; but those are {q:?}, {k:?} and {v:?}"
        );
        let scores = [q[0], q[1], q[2], k[2]];
        let kept = match (state, Dropout::of(options.dropout)) {
            (Some(state), Some(dropout)) => {
                let sizes = scores.map(|size| size as i64);
                let arguments = [state.into(), Argument::Ints(&sizes), options.dropout.into()];
                let kept = built_in!("thalweg::attention_kept_weights")?.call(&arguments, None, label)?;
                Some((kept[0].clone(), f64::from(dropout.rescale())))
            }
            _ => None,
        };
        let mask = mask.map(|mask| mask.expand(&scores)).transpose()?;
        Ok(Self { query: query.clone(), key: key.clone(), value: value.clone(), mask, kept, options, label })
    }

    /// Returns the number of keys that the queries before a place see.
    fn keys_before(&self, query: usize) -> usize {
        let keys = self.key.shape()[2];
        if self.options.is_causal { keys.min(query) } else { keys }
    }

    /// Returns the pieces: those of one range of heads follow one another, the last queries first.
    fn pieces(&self, most: usize) -> Vec<Piece> {
        let &[batch, heads, queries, _] = self.query.shape() else { return Vec::new() };
        let kv_heads = self.key.shape()[1];
        let of_query = (heads / kv_heads * self.key.shape()[2]).max(1);
        // Of many queries the first see few keys only.
        let rows = if self.options.is_causal { queries.div_ceil(8).max(LEAST_QUERIES) } else { queries };
        let rows = (most / of_query).clamp(1, rows.clamp(1, queries.max(1)));
        let ranges = |count: usize, step: usize| {
            let step = step.clamp(1, count.max(1));
            (0..count).step_by(step).map(move |first| first..count.min(first + step))
        };
        let of_head = of_query * rows;
        let of_entry = of_head * kv_heads;
        let mut pieces = Vec::new();
        for batch in ranges(batch, most / of_entry) {
            for heads in ranges(kv_heads, if of_entry <= most { kv_heads } else { most / of_head }) {
                for queries in ranges(queries, rows).rev() {
                    let (batch, heads, keys) = (batch.clone(), heads.clone(), self.keys_before(queries.end));
                    pieces.push(Piece { batch, heads, queries, keys });
                }
            }
        }
        pieces
    }

    /// Returns the part of a tensor with the shape of the scores that belongs to a piece.
    fn part_of_scores(&self, tensor: &Tensor, piece: &Piece) -> Result<Tensor> {
        narrowed(&self.part(tensor, piece)?, 3, &(0..piece.keys))
    }

    /// Returns the part of a tensor with the shape of the queries that belongs to a piece.
    fn part(&self, tensor: &Tensor, piece: &Piece) -> Result<Tensor> {
        let shared = self.query.shape()[1] / self.key.shape()[1];
        let heads = piece.heads.start * shared..piece.heads.end * shared;
        narrowed(&narrowed(&narrowed(tensor, 0, &piece.batch)?, 1, &heads)?, 2, &piece.queries)
    }

    /// Returns the part of a tensor with the shape of the keys or of the values that belongs to a piece.
    fn part_of_keys(&self, tensor: &Tensor, piece: &Piece) -> Result<Tensor> {
        narrowed(&narrowed(tensor, 0, &piece.batch)?, 1, &piece.heads)
    }

    /// Returns a part with the shape of the queries as matrices, one for each head of keys.
    fn matrices(&self, part: &Tensor, piece: &Piece) -> Result<Tensor> {
        let &[batch, heads, rows, features] = part.shape() else { unreachable!("of four dimensions") };
        let kv_heads = piece.heads.len();
        part.reshape(&[batch * kv_heads, heads / kv_heads * rows, features])
    }

    /// Returns the weights of a piece, (batch, heads, queries, keys), before dropout, of scaled queries.
    fn weights(&self, piece: &Piece, queries: &Tensor, keys: &Tensor) -> Result<Tensor> {
        let scores = queries.bmm(&keys.transpose(-2, -1)?)?;
        let (count, rows) = (piece.keys, piece.queries.len());
        let heads = piece.heads.len() * self.query.shape()[1] / self.key.shape()[1];
        let scores = scores.reshape(&[piece.batch.len(), heads, rows, count])?;
        let softmax = |operator: &'static Operator, tensors: &[&Tensor]| -> Result<Tensor> {
            let last = [tensors[0].rank() as i64 - 1];
            let rest = [Scalar::F64(1.0).into(), Argument::Ints(&last)];
            let arguments: SmallVec<[Argument<'_>; 4]> =
                tensors.iter().map(|&tensor| tensor.into()).chain(rest).collect();
            Ok(operator.call(&arguments, None, self.label)?.swap_remove(0))
        };
        if let Some(mask) = &self.mask {
            let mask = self.part_of_scores(mask, piece)?;
            return softmax(built_in!("thalweg::masked_softmax")?, &[&scores, &mask]);
        }
        if !self.options.is_causal {
            return softmax(built_in!("thalweg::scaled_softmax")?, &[&scores]);
        }
        if piece.queries.start == 0 {
            let rows = scores.reshape(&[piece.batch.len() * heads, rows, count])?;
            return softmax(built_in!("thalweg::causal_softmax")?, &[&rows])?.reshape(scores.shape());
        }
        let number = |range: Range<usize>| {
            Tensor::arange(range.len(), range.start as i64, 1, DType::I64, self.query.device())
        };
        let seen = number(0..count)?.le(&number(piece.queries.clone())?.unsqueeze(1)?)?;
        softmax(built_in!("thalweg::masked_softmax")?, &[&scores, &seen.expand(scores.shape())?])
    }

    /// Returns weights, or their gradient, without what dropout drops.
    fn kept(&self, weights: Tensor, piece: &Piece) -> Result<Tensor> {
        match &self.kept {
            Some((kept, _)) => weights.mul(&self.part_of_scores(kept, piece)?),
            None => Ok(weights),
        }
    }

    fn rescaled(&self, tensor: Tensor) -> Result<Tensor> {
        match &self.kept {
            Some((_, factor)) => tensor.mul_scalar(*factor),
            None => Ok(tensor),
        }
    }

    fn has_no_scores(&self) -> bool {
        self.query.shape()[..3].contains(&0) || self.key.shape()[2] == 0
    }

    /// Returns the result.
    fn results(&self) -> Result<Tensor> {
        let result = rows_like(&self.query, self.value.shape()[3])?;
        if self.has_no_scores() {
            result.fill_(0.0)?;
            return Ok(result);
        }
        for piece in self.pieces(MOST_SCORES.get()) {
            self.part(&result, &piece)?.copy_(&self.result_of(&piece)?)?;
        }
        Ok(result)
    }

    /// Returns the result of a piece.
    fn result_of(&self, piece: &Piece) -> Result<Tensor> {
        let part = self.part(&self.query, piece)?;
        let queries = self.matrices(&part, piece)?.mul_scalar(self.options.scale)?;
        let [keys, values] = [&self.key, &self.value].map(|tensor| self.flat(tensor, piece));
        let weights = self.kept(self.weights(piece, &queries, &keys?)?, piece)?;
        let rows = self.rescaled(self.matrices(&weights, piece)?.bmm(&values?)?)?;
        let &[batch, heads, count, _] = part.shape() else { unreachable!("of four dimensions") };
        rows.reshape(&[batch, heads, count, self.value.shape()[3]])
    }

    /// Returns all scores as one piece.
    fn whole(&self) -> Piece {
        let (queries, keys) = (self.query.shape(), self.key.shape());
        Piece { batch: 0..queries[0], heads: 0..keys[1], queries: 0..queries[2], keys: keys[2] }
    }

    /// Returns the heads of keys or values of a piece as matrices.
    fn flat(&self, tensor: &Tensor, piece: &Piece) -> Result<Tensor> {
        let part = narrowed(&self.part_of_keys(tensor, piece)?, 2, &(0..piece.keys))?;
        let &[batch, heads, rows, features] = part.shape() else { unreachable!("of four dimensions") };
        part.reshape(&[batch * heads, rows, features])
    }

    /// Returns the gradients of queries, keys and values, and that of all scores before the scale if it is wanted, for which all scores
    /// are one piece.
    fn gradients(&self, gradient: &Tensor, of_scores: bool) -> Result<([Tensor; 3], Option<Tensor>)> {
        let like = |tensor: &Tensor| rows_like(tensor, tensor.shape()[3]);
        let made = [like(&self.query)?, like(&self.key)?, like(&self.value)?];
        if self.has_no_scores() {
            made.iter().try_for_each(|one| one.fill_(0.0))?;
            return Ok((made, None));
        }
        if self.keys_before(self.query.shape()[2]) < self.key.shape()[2] {
            made[1..].iter().try_for_each(|one| one.fill_(0.0))?;
        }
        let mut all_scores = None;
        // The sums over queries of one range of heads, for the keys that earlier queries see.
        let mut sums: Option<[Tensor; 2]> = None;
        for piece in self.pieces(if of_scores { usize::MAX } else { MOST_SCORES.get() }) {
            let queries = self.matrices(&self.part(&self.query, &piece)?, &piece)?;
            let queries = queries.mul_scalar(self.options.scale)?;
            let (keys, values) = (self.flat(&self.key, &piece)?, self.flat(&self.value, &piece)?);
            let weights = self.weights(&piece, &queries, &keys)?;
            let rows = self.rescaled(self.matrices(&self.part(gradient, &piece)?, &piece)?)?;
            let of_weights = rows.bmm(&values.transpose(-2, -1)?)?.reshape(weights.shape())?;
            let of_weights = self.kept(of_weights, &piece)?;
            let used = self.matrices(&self.kept(weights.clone(), &piece)?, &piece)?;
            let scores = softmax_gradient(&of_weights, &weights, self.label)?;
            let flat = self.matrices(&scores, &piece)?;
            let place = self.part(&made[0], &piece)?;
            place.copy_(&flat.bmm(&keys)?.mul_scalar(self.options.scale)?.reshape(place.shape())?)?;
            let later = sums.take();
            let sum = |place: usize, left: &Tensor, right: &Tensor| {
                let left = left.transpose(-2, -1)?;
                match &later {
                    Some(later) => later[place].baddbmm(&left, right),
                    None => left.bmm(right),
                }
            };
            let own = [sum(0, &flat, &queries)?, sum(1, &used, &rows)?];
            // No query before these sees the last of their keys.
            let left = if piece.queries.start == 0 { 0 } else { self.keys_before(piece.queries.start) };
            if left < piece.keys {
                for (sum, made) in own.iter().zip(&made[1..]) {
                    let place = narrowed(&self.part_of_keys(made, &piece)?, 2, &(left..piece.keys))?;
                    place.copy_(&narrowed(sum, 1, &(left..piece.keys))?.reshape(place.shape())?)?;
                }
            }
            if left > 0 {
                let [of_keys, of_values] = &own;
                sums = Some([narrowed(of_keys, 1, &(0..left))?, narrowed(of_values, 1, &(0..left))?]);
            }
            all_scores = of_scores.then_some(scores);
        }
        Ok((made, all_scores))
    }
}

/// Returns the gradient of softmax along the last dimension.
fn softmax_gradient(gradient: &Tensor, result: &Tensor, label: Label) -> Result<Tensor> {
    let arguments = [gradient.into(), result.into(), Argument::from(-1i64), result.dtype().into()];
    Ok(built_in!("_softmax_backward_data")?.call(&arguments, None, label)?.swap_remove(0))
}

fn narrowed(tensor: &Tensor, dim: i64, range: &Range<usize>) -> Result<Tensor> {
    match range.len() == tensor.shape()[dim as usize] {
        true => Ok(tensor.clone()),
        false => tensor.narrow(dim, range.start, range.len()),
    }
}

/// Returns a new tensor with the shape of another one but for the features. Tokens are before heads in memory, as in the results of the fused
/// kernels, if they are in the other tensor.
fn rows_like(tensor: &Tensor, features: usize) -> Result<Tensor> {
    let &[batch, heads, tokens, _] = tensor.shape() else { unreachable!("of four dimensions") };
    let strides = tensor.layout().strides();
    match strides[1] < strides[2] {
        true => {
            Tensor::empty(&[batch, tokens, heads, features], tensor.dtype(), tensor.device())?.transpose(1, 2)
        }
        false => Tensor::empty(&[batch, heads, tokens, features], tensor.dtype(), tensor.device()),
    }
}

/// Returns the arguments of a call, or of its gradient.
fn options_of(call: &impl Arguments) -> Options {
    Options { is_causal: call.bool(5), scale: call.float(6), dropout: call.float(7), ..Options::NONE }
}

/// Computes attention.
pub(crate) fn forward(call: &Call<'_>) -> Result<Tensors> {
    no_grad(|| {
        let tensors = [0, 1, 2].map(|place| call.tensor(place));
        let optional = [call.optional_tensor(3), call.optional_tensor(4)];
        let operands = Operands::new(tensors, optional, options_of(call), call.label)?;
        Ok([operands.results()?].into_iter().collect())
    })
}

/// The gradient of [`forward`]: in pieces, or, if it must be differentiable itself, that of the operators of one piece.
pub(crate) static GRADIENT: Formula = Formula {
    inputs: &[0, 1, 2, 3, 4],
    outputs: &[],
    backward: |call| {
        let options = options_of(call);
        let tensors: SmallVec<[Tensor; 5]> =
            (0..call.tensor_count()).map(|place| call.saved(place)).collect::<Result<_>>()?;
        let has_state = options.dropout != 0.0;
        let has_mask = tensors.len() > 3 + usize::from(has_state);
        let mask = tensors.get(3).filter(|_| has_mask);
        let state = tensors.last().filter(|_| has_state);
        let operands =
            Operands::new([&tensors[0], &tensors[1], &tensors[2]], [mask, state], options, call.label())?;
        if is_grad_enabled() {
            return call.recorded(&[operands.result_of(&operands.whole())?], &tensors);
        }
        let of_mask = has_mask && call.wants(3);
        let (gradients, of_scores) = operands.gradients(&call.gradient()?, of_mask)?;
        call.each(|place| match (place, mask, &of_scores) {
            (3, Some(mask), Some(scores)) => {
                scores.sum_to_shape(mask.shape())?.to_dtype(mask.dtype()).map(Some)
            }
            (3.., ..) => Ok(None),
            _ => Ok(Some(gradients[place].clone())),
        })
    },
};

/// Returns attention of tensors (…, tokens, features) of one dtype, whose dimensions before the last two are broadcast. With `shares_heads`
/// several heads of queries share one of keys and values. `state` is the generator's state for dropout.
///
/// # Errors
/// [`Error::is_invalid_argument`] if the shapes do not fit.
pub(crate) fn attention(
    tensors: [&Tensor; 3],
    [mask, state]: [Option<&Tensor>; 2],
    (is_causal, scale, dropout): (bool, f64, f64),
    shares_heads: bool,
    label: Label,
) -> Result<Tensor> {
    let dtype = tensors[0].dtype();
    refuse_if!(
        tensors.iter().any(|tensor| tensor.rank() < 2 || tensor.dtype() != dtype)
            || !dtype.is_floating_point(),
        "queries, keys and values have at least two dimensions and one dtype of floats"
    );
    refuse_if!(is_causal && mask.is_some(), "a mask and is_causal exclude each other");
    let sizes = Sizes::of(tensors, shares_heads)?;
    let (heads, [queries, keys]) =
        (sizes.heads, [0, 1].map(|place| tensors[place].shape()[tensors[place].rank() - 2]));
    let whole = |place: usize| sizes.whole(&tensors[place].to_dtype(dtype.compute())?, heads[place]);
    let mask = mask.map(|mask| match (sizes.is_plain, mask.rank()) {
        (true, ..=2 | 4) => Ok(mask.clone()),
        (true, 3) if sizes.entries.is_empty() => mask.unsqueeze(0),
        _ => {
            let shape: Shape = sizes.entries.iter().copied().chain([heads[0], queries, keys]).collect();
            mask.expand(&shape)?.reshape(&[sizes.entries.iter().product(), heads[0], queries, keys])
        }
    });
    let mask = mask.transpose()?;
    let (query, key, value) = (whole(0)?, whole(1)?, whole(2)?);
    let optional = [Argument::from(mask.as_ref()), state.into()];
    let options = [is_causal.into(), scale.into(), dropout.into()];
    let arguments: SmallVec<[Argument<'_>; 8]> =
        [&query, &key, &value].into_iter().map(Argument::from).chain(optional).chain(options).collect();
    let result = built_in!("thalweg::attention_in_pieces")?.call(&arguments, None, label)?.swap_remove(0);
    let features = result.shape()[3];
    let shape: Shape = sizes.leading.iter().copied().chain([queries, features]).collect();
    result.reshape(&shape)?.to_dtype(dtype)
}

/// The dimensions of a call before the last two.
struct Sizes {
    /// Those of the result.
    leading: Shape,
    /// Those before the heads.
    entries: Shape,
    /// The numbers of heads of queries, keys and values.
    heads: [usize; 3],
    /// Whether the operands have them, and no others.
    is_plain: bool,
}

impl Sizes {
    fn of(tensors: [&Tensor; 3], shares_heads: bool) -> Result<Self> {
        let refused = || {
            let [q, k, v] = tensors.map(Tensor::shape);
            invalid!(
                "queries {q:?}, keys {k:?} and values {v:?} are (…, tokens, features), with dimensions before \
                 them that broadcast, as many features of queries as of keys, and as many keys as values"
            )
        };
        let [q, k, v] = tensors.map(Tensor::shape);
        let (ends, starts) = (
            [q, k, v].map(|shape| &shape[shape.len() - 2..]),
            [q, k, v].map(|shape| &shape[..shape.len() - 2]),
        );
        if ends[0][1] != ends[1][1] || ends[1][0] != ends[2][0] {
            return Err(refused());
        }
        let broadcast = |parts: [&[usize]; 3]| -> Result<Shape> {
            let two = broadcast_shapes(parts[0], parts[1]).map_err(|_| refused())?;
            broadcast_shapes(&two, parts[2]).map_err(|_| refused())
        };
        let last = starts.map(|start| start.last().copied());
        if let [Some(own), Some(shared), Some(other)] = last
            && shares_heads
            && (own != shared || shared != other)
        {
            let fits = shared == other && shared > 0 && own.is_multiple_of(shared);
            refuse_if!(!fits, "Number of heads in key and value must divide the number of heads in query");
            let entries = broadcast(starts.map(|start| &start[..start.len() - 1]))?;
            let leading = entries.iter().copied().chain([own]).collect();
            let is_plain =
                entries.len() <= 1 && starts.iter().all(|start| start[..start.len() - 1] == entries[..]);
            return Ok(Self { leading, entries, heads: [own, shared, other], is_plain });
        }
        refuse_if!(
            shares_heads && last.contains(&None),
            "Number of heads in key and value must divide the number of heads in query"
        );
        let leading = broadcast(starts)?;
        let is_plain = leading.len() <= 2 && starts.iter().all(|start| *start == &leading[..]);
        let heads = leading.last().copied().unwrap_or(1);
        let entries = leading[..leading.len().saturating_sub(1)].into();
        Ok(Self { leading, entries, heads: [heads; 3], is_plain })
    }

    /// Returns an operand as (batch, heads, tokens, features).
    fn whole(&self, tensor: &Tensor, heads: usize) -> Result<Tensor> {
        let end = &tensor.shape()[tensor.rank() - 2..];
        let shape: Shape = self.entries.iter().copied().chain([heads]).chain(end.iter().copied()).collect();
        let tensor = match tensor.rank() {
            2 if self.leading.is_empty() => tensor.unsqueeze(0)?,
            _ => tensor.expand(&shape)?,
        };
        tensor.reshape(&[self.entries.iter().product(), heads, end[0], end[1]])
    }
}
