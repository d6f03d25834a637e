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

/// Returns an offer of the memory of an in-place form's tensor, the first operand, to an operator that is one loop and that autograd
/// records; `None` if a gradient could read an element of another operand, or of a view, that the write changes.
pub(super) fn recorded_offer(target: &Tensor, operands: &[&Tensor]) -> Option<Offer> {
    let is_recorded = is_grad_enabled() && operands.iter().any(|operand| operand.requires_grad());
    let is_leaf = target.is_leaf() && target.requires_grad();
    let is_apart = |other: &&Tensor| !other.shares_storage_with(target) && other.device() == target.device();
    let is_offered = is_recorded
        && !is_leaf
        && target.0.autograd.view_of().is_none()
        && is_writable(target)
        && operands.iter().skip(1).all(is_apart);
    is_offered.then(|| Offer::recorded(target))
}

/// Returns an offer of a tensor's memory to a function that does not read it.
pub(crate) fn offer_to_function(target: &Tensor) -> Option<Offer> {
    is_free(target, &[]).then(|| Offer::new(target, false, false))
}

/// Runs an operator on a result of another operator that nothing reads afterwards, so that its kernels may overwrite it.
pub(crate) fn over<R>(x: &Tensor, run: impl FnOnce(&Tensor) -> R) -> R {
    match is_free(x, &[]) {
        true => also_offered(Offer::new(x, true, false), || run(x)),
        false => run(x),
    }
}

/// Returns whether a tensor may be written while nothing is recorded that reads its former elements, or that gradients flow through.
/// `operands` are the tensors that the operator reads.
fn is_free(target: &Tensor, operands: &[&Tensor]) -> bool {
    let base = target.0.autograd.view_of().and_then(ViewOf::base);
    let is_refused = matches!(target.0.autograd.view_of(), Some(ViewOf::Unrecorded { of_required: true }));
    let mut tensors = operands.iter().copied().chain([target]).chain(base);
    let is_recorded = is_grad_enabled() && (is_refused || tensors.any(Tensor::requires_grad));
    !is_recorded && is_writable(target)
}

/// Returns whether a kernel may write into a tensor. If the memory was freed, copying the result reports the error.
fn is_writable(target: &Tensor) -> bool {
    !target.storage().is_given_back()
        && !target.layout().may_overlap()
        && target.check_inference_write().is_ok()
}
