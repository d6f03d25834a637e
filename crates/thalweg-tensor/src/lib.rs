//! Tensors: dispatcher, autograd, operators, random numbers.
//!
//! - [`Tensor`]: a view of device memory with a dtype; its methods are the operators.
//! - [`dispatch`]: which kernel runs a call, and registration of your own kernels.
//! - [`autograd`]: the recorded graph and the engine that runs it backwards.
//! - [`autocast`]: regions whose operators choose the dtype that they compute in.
//! - [`compile`]: functions whose loops are fused.
//! - [`graph`]: entire steps, callables with their backward passes, and trees of functions as CUDA graphs.
//! - [`fused`]: functions of several operators in fewer launches, by a table of patterns.
//! - [`sdp`]: which backend computes attention.
//! - [`random`]: random numbers from the host and on the device.
//! - `testing`, with the feature `sim-tools`: tests of operators from samples.
//! - [`caller`]: the line that commands and errors name, for functions that call others.
//! - [`HostTensor`]: pinned host memory with a shape.
//!
//! # Modules
//! Each module uses those above it. In the core, `tensor` and the nodes of the graph depend on each other, and so do an operator,
//! its body and a call of it; the modules `autograd::node` and `dispatch` document these cycles.
//!
//! | module | contents |
//! |---|---|
//! | `deferred`, [`compile`] | loops that wait to become programs, and the functions that make them wait |
//! | `tensor`, `storage`, `argument`, `caller`, `destination` | tensors, and the parts of calls |
//! | [`autograd`] | nodes, formulas, and the engine |
//! | [`dispatch`] | operators as data, the kernels that follow from them, the registry |
//! | `loops` | launches of the loops of [`thalweg_ops`] on tensors, and their nodes |
//! | `kernels` | kernels of other operators, and the nodes that they record |
//! | `operators` | the entries, by family; `operators::table` is their union |
//! | `arithmetic`, `subscript`, `views`, [`graph`], [`fused`] | functionality built from operators |
//!
//! # Invariants
//! - No public type is generic over a backend; no operator names a device.
//! - Everything is asynchronous on the current stream, unless its documentation says that it blocks.
//! - A call that is refused changes no tensor. An in-place or `out=` call that fails later, for lack of memory, may have written
//!   part of its result. No `unsafe`.
#![forbid(unsafe_code)]

// The attributes of `thalweg_derive` name functions of this crate by its name.
extern crate self as thalweg_tensor;

mod argument;
mod arithmetic;
pub mod autocast;
pub mod autograd;
pub mod caller;
pub mod compile;
mod deferred;
mod destination;
pub mod deterministic;
pub mod dispatch;
mod display;
mod dtype_name;
pub mod fused;
pub mod graph;
mod host_room;
mod host_tensor;
mod kernels;
mod layouts;
mod loops;
mod memory_format;
mod moves;
mod native;
#[cfg(feature = "ndarray")]
mod ndarray;
mod operators;
pub mod random;
pub mod recurrent;
mod scoped;
pub mod sdp;
mod sizes;
mod storage;
mod subscript;
mod tensor;
#[cfg(feature = "sim-tools")]
pub mod testing;
mod views;
pub mod warning;

pub use autograd::{NoGrad, inference_mode, no_grad, try_no_grad};
pub use display::{PrintOptions, print_options, set_print_options};
pub use host_tensor::HostTensor;
pub use kernels::creation::{check_convertible, converted, represented};
pub use memory_format::MemoryFormat;
pub use sizes::{Size, Sizes};
pub use subscript::Index;
pub use tensor::{DevicePointer, Tensor, Tensors};
