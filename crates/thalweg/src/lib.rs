//! Thalweg: PyTorch's CUDA backend in Rust, with a simulated GPU.
//!
//! This crate is the facade: it has no logic and only re-exports names. A tensor program needs no other crate:
//!
//! ```
//! use thalweg::{DType, Device, Tensor};
//!
//! # fn main() -> thalweg::Result<()> {
//! let device = Device::sim(0)?; // or Device::best()?: the GPU if there is one
//! let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], &[3], &device)?.requires_grad_()?;
//! let y = x.mul(&x)?.sum(&[], false)?;
//! y.backward()?;
//! assert_eq!(x.grad().expect("x requires a gradient").to_vec::<f32>()?, [2.0, 4.0, 6.0]);
//! assert_eq!(y.dtype(), DType::F32);
//! # Ok(())
//! # }
//! ```
//!
//! Default features are few, so that a first build is short; `full` has all of them:
//!
//! | feature | adds |
//! |---|---|
//! | `nn` | [`nn`], [`module`], [`functional`], [`optim`], [`models`], [`data`], [`progress`] |
//! | `files` | [`serialize`], [`summary`]; includes `nn` |
//! | `distributed` | [`distributed`]; includes `files` |
//! | `profiler` | timelines as files: [`profiler::Trace::export_chrome_trace`] |
//! | `memory-tools` | [`memory_tools`] |
//! | `sim-tools` | [`sim`], [`sanitizer`], [`testing`] |
//! | `ndarray` | [`Tensor::from_ndarray`], [`Tensor::to_ndarray`] |
//!
//! | to | see |
//! |---|---|
//! | begin | [`prelude`], [the book](https://github.com/thalweg-rs/thalweg/blob/main/docs/README.md), [PyTorch's calls in Rust](https://github.com/thalweg-rs/thalweg/blob/main/docs/rust.md) |
//! | fuse the loops of a function | [`compile`](compile()) |
//! | compute with tensors and their gradients | [`Tensor`], [`autograd`], [`no_grad`], [`random`], and [`tensor`], which has autocast and graphs of whole steps |
//! | build and train a network | [`module`], [`functional`], [`optim`], [`models`], [`data`], [`progress`], [`summary`]; all of them are in [`nn`] |
//! | save and load it | [`serialize`] |
//! | order work on a device | [`Device`], [`Stream`], [`Event`], and [`runtime`] |
//! | capture and replay work | [`Graph`], [`graph`], which has the audit of a capture |
//! | use several GPUs | [`distributed`] |
//! | understand the use of memory | [`memory`], [`snapshot`], [`memory_tools`] |
//! | find races and lifetime bugs without a GPU | [`sim`], over the [`simulator`] and the [`sanitizer`] |
//! | measure and tune | [`profiler`], [`backends`], [`cuda::tunable`] |
//! | define an operator or a kernel, and test it | [`dispatch`], the table in [`ops`], [`kernels`], [`ir`], [`testing`] |
//! | add a driver, and test it | [`driver`], and the crate [`thalweg-conformance`] |
//! | derive a module from its fields | [`derive(Module)`](derive@module::Module), of the crate [`thalweg-derive`] |
//! | use it from a shell, from Python, or inside PyTorch | the crates [`thalweg-cli`], [`thalweg-python`] and [`thalweg-torch`] |
//! | see the mutex of the allocators | the crate [`thalweg-lock`] |
//!
//! [`thalweg-cli`]: https://github.com/thalweg-rs/thalweg/tree/main/crates/thalweg-cli
//! [`thalweg-conformance`]: https://github.com/thalweg-rs/thalweg/tree/main/crates/thalweg-conformance
//! [`thalweg-derive`]: https://github.com/thalweg-rs/thalweg/tree/main/crates/thalweg-derive
//! [`thalweg-lock`]: https://github.com/thalweg-rs/thalweg/tree/main/crates/thalweg-lock
//! [`thalweg-python`]: https://github.com/thalweg-rs/thalweg/tree/main/crates/thalweg-python
//! [`thalweg-torch`]: https://github.com/thalweg-rs/thalweg/tree/main/crates/thalweg-torch
#![forbid(unsafe_code)]

#[cfg(feature = "distributed")]
pub use thalweg_dist as distributed;
pub use thalweg_driver as driver;
pub use thalweg_ir as ir;
pub use thalweg_kernels as kernels;
pub use thalweg_memory as memory;
#[cfg(feature = "memory-tools")]
pub use thalweg_memory_tools as memory_tools;
#[cfg(feature = "nn")]
pub use thalweg_nn as nn;
pub use thalweg_ops as ops;
pub use thalweg_profiler as profiler;
pub use thalweg_runtime as runtime;
#[cfg(feature = "sim-tools")]
pub use thalweg_sanitizer as sanitizer;
pub use thalweg_sim as simulator;
pub use thalweg_snapshot as snapshot;
pub use thalweg_tensor as tensor;

pub use thalweg_execute::backends::{self, get_float32_matmul_precision, set_float32_matmul_precision};
pub use thalweg_ir::{DType, Element, HostElement, Scalar, bf16, c64, c128, f16};
#[cfg(feature = "nn")]
pub use thalweg_nn::{data, functional, models, optim, progress};
#[cfg(feature = "files")]
pub use thalweg_nn::{serialize, summary};
pub use thalweg_runtime::graph;
#[cfg(feature = "sim-tools")]
pub use thalweg_runtime::sim;
pub use thalweg_runtime::{
    CaptureMode, CaptureOptions, Device, DeviceGuard, Environment, Error, ErrorClass, Event, Graph,
    GraphPool, Result, Stream, StreamGuard, is_available,
};

pub mod prelude;

#[cfg(doctest)]
mod book;

/// Parts of `torch.cuda`.
pub mod cuda {
    pub use thalweg_driver::cuda::nvtx;
    pub use thalweg_execute::tunable;
}

/// Modules: functions with parameters. See [`thalweg_nn::module`].
#[cfg(feature = "nn")]
pub mod module {
    pub use thalweg_derive::FacadeModule as Module;
    pub use thalweg_nn::module::*;
}

pub use thalweg_tensor::compile::{self, compile};
#[cfg(feature = "sim-tools")]
pub use thalweg_tensor::testing;
pub use thalweg_tensor::{
    HostTensor, Index, MemoryFormat, NoGrad, Tensor, autograd, dispatch, i, no_grad, random, try_no_grad,
    warning,
};
