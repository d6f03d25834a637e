//! The kernels of the built-in operators: what the dispatcher calls for a backend or for autograd.
//!
//! All loop operators of the table share one backend kernel and one autograd kernel ([`loops`]), made from their entry.
//! Matrix products and windows have kernels of their own. Every kernel serves both backends: the runtime below tells a card
//! from the simulator.

pub(crate) mod loops;
pub(crate) mod matmul;
pub(crate) mod windows;

use std::sync::Arc;

use crate::dispatch::{DispatchKey, KernelFunction};

/// Kernels by key, under which an operator is defined.
type Kernels = Vec<(DispatchKey, KernelFunction)>;

/// One backend kernel for both backends, and one for autograd.
fn kernels(backend: KernelFunction, autograd: Option<KernelFunction>) -> Kernels {
    let backends = [DispatchKey::Sim, DispatchKey::Cuda].map(|key| (key, backend.clone()));
    backends.into_iter().chain(autograd.map(|kernel| (DispatchKey::Autograd, kernel))).collect()
}

/// Defines every built-in operator.
pub(crate) fn define_all(define: &mut dyn FnMut(&'static str, Kernels)) {
    let table = thalweg_ops::ELEMENTWISE.iter().chain(thalweg_ops::structured::STRUCTURED);
    for operator in table.copied().filter(|operator| !windows::is_window(operator)) {
        define(
            operator.name,
            kernels(
                Arc::new(move |call| loops::backend(operator, call)),
                Some(Arc::new(move |call| loops::autograd(operator, call))),
            ),
        );
    }
    define("matmul", kernels(Arc::new(matmul::backend), Some(Arc::new(matmul::autograd))));
    windows::define(&mut |name, backend, autograd| define(name, kernels(backend, Some(autograd))));
}
