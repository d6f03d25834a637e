//! Decisions whether the memory of a tensor may be offered to an operator for its result.

use crate::autograd::{ViewOf, is_grad_enabled};
use crate::destination::{First, Offer, also_offered, are_disjoint, are_same};
use crate::tensor::Tensor;

/// The properties of an operator that decide whether memory may be offered to it.
pub(super) struct Taker {
    pub(super) first: First,
    /// Whether the operator is one loop, to which strides do not matter, and which itself checks which of its operands share
    /// memory with the result.
    pub(super) is_of_loop: bool,
    /// Whether other operators compute the result because an operand is complex.
    pub(super) is_by_parts: bool,
}

/// Returns an offer of a tensor's memory to an operator; `None` if the memory must not be written yet. `operands` are the tensors
/// that the operator reads.
pub(super) fn offer(taker: &Taker, target: &Tensor, operands: &[&Tensor]) -> Option<Offer> {
    let others = match operands {
        [first, others @ ..] if are_same(first, target) => Some(others),
        _ => None,
    };
    let are_apart = |list: &[&Tensor]| list.iter().all(|operand| are_disjoint(operand, target));
    let is_read = match (taker.first, others) {
        _ if are_apart(operands) => false,
        (First::Ignored | First::Filled, Some(others)) if are_apart(others) => false,
        _ if taker.is_of_loop => true,
        (First::Consumed, Some(others)) if are_apart(others) && !taker.is_by_parts => true,
        _ => return None,
    };
    let is_offered =
        is_free(target, operands) && operands.iter().all(|operand| operand.device() == target.device());
    is_offered.then(|| Offer::new(target, is_read, taker.is_of_loop))
}

/// Returns an offer of a tensor's memory to a function that does not read it.
pub(crate) fn offer_to_function(target: &Tensor) -> Option<Offer> {
    is_free(target, &[]).then(|| Offer::new(target, false, false))
}

/// Runs an operator over a result of another one that nothing reads afterwards: what reads it may write over it.
pub(crate) fn over<R>(x: &Tensor, run: impl FnOnce(&Tensor) -> R) -> R {
    match is_free(x, &[]) {
        true => also_offered(Offer::new(x, true, false), || run(x)),
        false => run(x),
    }
}

/// Returns whether a tensor may be written while nothing is recorded that reads its former elements, or that gradients flow through.
/// `operands` are the tensors that the operator reads.
fn is_free(target: &Tensor, operands: &[&Tensor]) -> bool {
    let base = match target.0.autograd.view_of() {
        Some(ViewOf::Base(base)) => Some(base),
        _ => None,
    };
    let mut tensors = operands.iter().copied().chain([target]).chain(base);
    let is_recorded = is_grad_enabled() && tensors.any(Tensor::requires_grad);
    // If the memory was freed, copying the result reports the error.
    !is_recorded
        && !target.storage().is_given_back()
        && !target.layout().may_overlap()
        && target.check_inference_write().is_ok()
}
