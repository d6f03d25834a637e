//! Neural networks over tensors: functions, modules, optimizers.
//!
//! - [`data`]: batches on the device (`torch.utils.data`).
//! - [`functional`]: functions of tensors (`torch.nn.functional`).
//! - [`models`]: GPT-2, BERT, Llama and residual networks, whose checkpoints load by name.
//! - [`module`]: functions with parameters (`torch.nn`).
//! - [`optim`]: optimizers, schedules of learning rates, clipping and scaling of gradients (`torch.optim`).
//! - [`progress`]: a progress bar.
//! - [`serialize`]: tensors in files, `safetensors` and PyTorch's own.
//! - [`summary`]: numbers of a run over its steps, for TensorBoard and as JSON lines.
//!
//! # Invariants
//! - Everything is asynchronous on the current stream, unless its documentation says that it blocks.
//! - A function of tensors whose shapes or dtypes do not fit returns an error that
//!   [`is_invalid_argument`](thalweg_runtime::Error::is_invalid_argument).
//! - Everything that this crate needs of tensors is public there: a user's crate can do the same.
#![forbid(unsafe_code)]

// The code that `derive(Module)` generates names this crate, also within it.
extern crate self as thalweg_nn;

pub mod data;
pub mod functional;
pub mod models;
pub mod module;
pub mod optim;
pub mod progress;
#[cfg(feature = "files")]
pub mod serialize;
#[cfg(feature = "files")]
pub mod summary;
