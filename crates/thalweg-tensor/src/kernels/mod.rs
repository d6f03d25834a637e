//! The kernels of the built-in operators: what the dispatcher calls for a backend or for autograd.
//!
//! All loop operators of the table share one backend kernel and one autograd kernel ([`loops`]), made from their entry.
//! Matrix products, linear layers, attention, windows and what gathers or scatters have kernels of their own; layer normalization and dropout record
//! nodes of their own. Every kernel serves both backends: the runtime below tells a card
//! from the simulator.

pub(crate) mod attention;
mod convolution;
pub(crate) mod creation;
pub(crate) mod dropout;
pub(crate) mod indexing;
pub(crate) mod linear;
pub(crate) mod loops;
pub(crate) mod matmul;
pub(crate) mod normalization;
mod reductions;
pub(crate) mod windows;

use std::sync::Arc;

use thalweg_ops::structured::{ADAM_STEP, ADAM_TICK, ADAMW_STEP, STACK3, WINDOW_SCALARS};
use thalweg_ops::{LoopOp, Sizes};

use crate::dispatch::{DispatchKey, KernelFunction};
use crate::schema::Schema;

/// Kernels by key, under which an operator is defined.
type Kernels = Vec<(DispatchKey, KernelFunction)>;

/// One backend kernel for both backends, and one for autograd.
fn kernels(backend: KernelFunction, autograd: Option<KernelFunction>) -> Kernels {
    let backends = [DispatchKey::Sim, DispatchKey::Cuda].map(|key| (key, backend.clone()));
    backends.into_iter().chain(autograd.map(|kernel| (DispatchKey::Autograd, kernel))).collect()
}

/// Defines every built-in operator.
pub(crate) fn define_all(define: &mut dyn FnMut(&'static str, Schema, Kernels)) {
    let table = thalweg_ops::ELEMENTWISE.iter().chain(thalweg_ops::structured::STRUCTURED);
    // What is only ever launched into given tensors is no operator to be called.
    let in_place = [&ADAM_TICK, &ADAM_STEP, &ADAMW_STEP, &STACK3];
    let own = |operator: &LoopOp| {
        windows::is_window(operator)
            || indexing::is_indexing(operator)
            || in_place.iter().any(|other| other.name == operator.name)
    };
    for operator in table.copied().filter(|operator| !own(operator)) {
        let backend: KernelFunction = match operator.name {
            "full" => Arc::new(creation::full),
            "clamp" => Arc::new(creation::clamp),
            "layer_norm_affine" => Arc::new(normalization::backend),
            "sum" | "mean" | "amax" | "amin" => Arc::new(move |call| reductions::backend(operator, call)),
            _ => Arc::new(move |call| loops::backend(operator, call)),
        };
        let autograd: KernelFunction = match operator.name {
            "layer_norm_affine" => Arc::new(normalization::autograd),
            "dropout" => Arc::new(dropout::autograd),
            _ => Arc::new(move |call| loops::autograd(operator, call)),
        };
        define(operator.name, Schema::of(operator), kernels(backend, Some(autograd)));
    }
    let embedding = kernels(Arc::new(indexing::embedding), Some(Arc::new(indexing::embedding_autograd)));
    define("embedding", Schema { numbers: 0..=1, ..Schema::new(2, 0, Sizes::None) }, embedding);
    let attention = kernels(Arc::new(attention::backend), Some(Arc::new(attention::autograd)));
    define("packed_attention", Schema::new(1, 1, Sizes::Numbers(1)), attention);
    let fork = kernels(Arc::new(normalization::fork), Some(Arc::new(normalization::autograd)));
    define("layer_norm_fork", Schema::new(3, 2, Sizes::Dimensions), fork);
    let linear = kernels(Arc::new(linear::backend), Some(Arc::new(linear::autograd)));
    define("linear", Schema { tensors: 2..=4, ..Schema::new(2, 0, Sizes::Numbers(2)) }, linear);
    let matmul = kernels(Arc::new(matmul::backend), Some(Arc::new(matmul::autograd)));
    define("matmul", Schema::new(2, 0, Sizes::None), matmul);
    let convolution = kernels(Arc::new(convolution::backend), Some(Arc::new(convolution::autograd)));
    define("conv2d", Schema::new(2, 0, Sizes::Numbers(WINDOW_SCALARS.len())), convolution);
    let window = Schema::new(1, 0, Sizes::Numbers(WINDOW_SCALARS.len()));
    windows::define(&mut |name, backend, autograd| {
        define(name, window.clone(), kernels(backend, Some(autograd)));
    });
}
