//! The kernels that follow from an operator's definition: those of its body for backends and autograd, and those for autocast and
//! complex numbers.

use std::sync::Arc;

use smallvec::SmallVec;

use super::complex_kernel;
use super::definition::{Body, OpDef};
use super::{Call, DispatchKey, KernelFunction, in_place, out};
use crate::autocast;
use crate::caller::enter;
use crate::loops::{self, LoopCall};
use crate::tensor::{Tensor, Tensors};

/// Kernels by key, under which an operator is defined.
pub(super) type Kernels = SmallVec<[(DispatchKey, KernelFunction); 4]>;

/// Returns the kernels of an operator, by key.
pub(super) fn kernels(definition: &OpDef) -> Kernels {
    let mut kernels = of_body(definition.body);
    let is_composite = matches!(definition.body, Body::Composite(_));
    let of_autocast =
        autocast::kernel(definition.autocast, is_composite).map(|kernel| (DispatchKey::Autocast, kernel));
    let of_complex = complex_kernel::of(definition).map(|kernel| (DispatchKey::Complex, kernel));
    kernels.extend(of_autocast.into_iter().chain(of_complex));
    kernels
}

/// Returns the kernels of a body for backends and autograd.
fn of_body(body: Body) -> Kernels {
    let (backend, autograd): (KernelFunction, Option<KernelFunction>) = match body {
        Body::Loop(operator) => (
            Arc::new(move |call| loops::run(&LoopCall::of(operator, call)?, call.resolved)),
            Some(Arc::new(move |call| loops::autograd(&LoopCall::of(operator, call)?, call))),
        ),
        Body::Lowered(lower) => (
            Arc::new(move |call| loops::run(&lower(call)?, call.resolved)),
            Some(Arc::new(move |call| loops::autograd(&lower(call)?, call))),
        ),
        Body::Composite(function) | Body::Kernel(function) => (
            Arc::new(move |call| {
                // Operators that the body calls name the line of this call.
                let _entered = enter(call.label.location);
                Ok(outside_of_history(function(call)?, call))
            }),
            None,
        ),
        Body::Differentiable(function, formula) => {
            (Arc::new(function), Some(Arc::new(|call| formula.record(call))))
        }
        Body::InPlace(functional) => (
            Arc::new(move |call| {
                let _entered = enter(call.label.location);
                in_place::run(functional, call)
            }),
            None,
        ),
        Body::InPlaceView(functional) => (
            Arc::new(move |call| {
                let _entered = enter(call.label.location);
                in_place::run_view(functional, call)
            }),
            None,
        ),
        Body::Out(returning) => (Arc::new(move |call| out::run(returning, call)), None),
        Body::Pair(backend, autograd) => (Arc::new(backend), Some(Arc::new(autograd))),
        Body::Registered => return Kernels::new(),
    };
    let backends = DispatchKey::BACKENDS.map(|key| (key, backend.clone()));
    backends.into_iter().chain(autograd.map(|kernel| (DispatchKey::Autograd, kernel))).collect()
}

/// Returns views of memory that only this call holds as tensors that are not views. A leaf made from such a result is then not a
/// view, so a write through a view of the leaf does not change another tensor's history; and the only result of a call can be
/// detached in place.
fn outside_of_history(results: Tensors, call: &Call<'_>) -> Tensors {
    let is_only = results.len() == 1;
    let own = |result: Tensor| {
        let shares = |tensor: &&Tensor| tensor.shares_storage_with(&result);
        match result.is_view() && !call.tensors.iter().any(shares) {
            true if !result.requires_grad() => result.detach(),
            true if is_only => result.without_base(),
            _ => result,
        }
    };
    results.into_iter().map(own).collect()
}
