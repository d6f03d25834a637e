//! Self-attention over queries, keys and values in one packed tensor, as one operator.
//!
//! Products read the heads' matrices directly from the packed tensor and write their results to their final places: the heads'
//! results next to each other, and the gradients of queries, keys and values into one packed tensor. Nothing is copied or
//! concatenated. One kernel for scale, mask and softmax runs between two products.

use smallvec::SmallVec;
use thalweg_ops::LoopOp;
use thalweg_ops::structured::{CAUSAL_SOFTMAX, SCALED_SOFTMAX};
use thalweg_runtime::{Error, Label, Result, refuse};

use super::matmul::multiply_into;
use crate::autograd::{Backward, Gradients, Saved, no_grad, record};
use crate::dispatch::{Arguments, Call, Operator, built_in};
use crate::loops::{self, LoopArguments, LoopBackward, LoopCall, Points};
use crate::tensor::{Tensor, Tensors};

/// The softmax of a call: over all keys, or over those up to the query's own position.
struct Softmax {
    operator: &'static Operator,
    entry: &'static LoopOp,
    arguments: LoopArguments,
}

impl Softmax {
    fn of(call: &Call<'_>) -> Result<Self> {
        let (operator, entry) = match call.bool(2) {
            true => (built_in!("thalweg::causal_softmax")?, &CAUSAL_SOFTMAX),
            false => (built_in!("thalweg::scaled_softmax")?, &SCALED_SOFTMAX),
        };
        let arguments = LoopArguments {
            scalars: SmallVec::from_slice(&[call.scalar(1)]),
            points: Points::Reduced(SmallVec::from_slice(&[2])),
            ..LoopArguments::default()
        };
        Ok(Self { operator, entry, arguments })
    }
}

/// Returns queries, keys and values of a packed tensor (tokens, heads, 3, features): (heads, tokens, features) each.
fn parts(packed: &Tensor) -> Result<[Tensor; 3]> {
    let parts = packed.unbind(2)?;
    let part = |place: usize| parts[place].transpose(0, 1);
    Ok([part(0)?, part(1)?, part(2)?])
}

/// Returns the heads' results (tokens, heads, features); for the gradient also the scores and their softmax.
pub(crate) fn backend(call: &Call<'_>) -> Result<Tensors> {
    let packed = call.tensors[0].detach();
    let &[tokens, heads, 3, features] = packed.shape() else {
        refuse!("the input is (tokens, heads, 3, features), not {:?}", packed.shape());
    };
    let [query, key, value] = parts(&packed)?;
    let result = call.new_empty(&[tokens, heads, features], packed.dtype())?;
    let scores = call.new_empty(&[heads, tokens, tokens], packed.dtype())?;
    multiply_into(&query, &key.transpose(1, 2)?, &scores, call.label)?;
    let Softmax { operator, arguments, .. } = Softmax::of(call)?;
    let weights = operator.call_loop(&[&scores], &arguments, None, call.label)?.swap_remove(0);
    multiply_into(&weights, &value, &result.transpose(0, 1)?, call.label)?;
    Ok([result, scores, weights].into_iter().collect())
}

/// Runs the operator, and records a node that keeps the packed tensor, scores and weights.
pub(crate) fn autograd(call: &Call<'_>) -> Result<Tensors> {
    let mut results = no_grad(|| call.redispatch())?;
    let Softmax { entry, arguments, .. } = Softmax::of(call)?;
    // The softmax is differentiated as if its scores were a leaf.
    let scores = results[1].detach();
    let softmax_call = LoopCall::new(entry, call, &[&scores], arguments);
    let node = PackedAttentionBackward {
        packed: Saved::new(call.tensors[0])?,
        weights: Saved::new(&results[2])?,
        softmax: loops::node(&softmax_call, &results[2..], 1)?,
        label: call.label,
    };
    record(Box::new(node), call.tensors, &mut results, call.device.current_stream());
    Ok(results)
}

struct PackedAttentionBackward {
    packed: Saved,
    weights: Saved,
    softmax: LoopBackward,
    label: Label,
}

impl Backward for PackedAttentionBackward {
    fn name(&self) -> &'static str {
        "packed_attention"
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        let Some(gradient) = &gradients[0] else { return Ok(Gradients::from_elem(None, 1)) };
        let (packed, weights) = (self.packed.get()?, self.weights.get()?);
        let [query, key, value] = parts(&packed)?;
        let gradient = gradient.transpose(0, 1)?;
        let stream = packed.device().current_stream();
        let whole = Tensor::empty_on(packed.shape(), packed.dtype(), &stream, self.label)?;
        let [of_query, of_key, of_value] = parts(&whole)?;
        let of_weights = Tensor::empty_on(weights.shape(), weights.dtype(), &stream, self.label)?;
        multiply_into(&gradient, &value.transpose(1, 2)?, &of_weights, self.label)?;
        multiply_into(&weights.transpose(1, 2)?, &gradient, &of_value, self.label)?;
        let of_scores = self.softmax.backward(&[Some(of_weights)])?.swap_remove(0);
        let of_scores = of_scores.expect("the gradient of the scores is wanted");
        multiply_into(&of_scores, &key, &of_query, self.label)?;
        multiply_into(&of_scores.transpose(1, 2)?, &query, &of_key, self.label)?;
        Ok(Gradients::from_elem(Some(whole), 1))
    }

    fn is_recorded(&self) -> bool {
        false
    }

    fn release(&self) {
        self.packed.release();
        self.weights.release();
        self.softmax.release();
    }
}
