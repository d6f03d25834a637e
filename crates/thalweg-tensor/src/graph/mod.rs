//! CUDA graphs for tensors: work that a program replays instead of launching it again.
//!
//! [`thalweg_runtime::graph`] captures and replays regions. This module adds the tensors and gradients of a region:
//!
//! - [`capture_step`]: one piece of work that is repeated, usually an entire training step. Eager while it warms up, then one
//!   graph.
//! - [`make_graphed_callables`]: functions whose forward and backward passes are one graph each, inside an eager program.
//! - [`GraphTreeManager`]: functions that are called in changing order, with changing shapes, each call a graph.
//!
//! # Memory
//! A graph writes to the addresses at which it was captured. Its outputs are tensors over its pool's memory, which they keep
//! alive. The graph's owner has an [`OutputHandle`](thalweg_runtime::OutputHandle) of each, which reports whether the output is
//! still held when the next replay would overwrite it.

pub mod callable;
mod outputs;
mod step;
pub mod tree;

pub use callable::{CallableOptions, GraphedCallable, make_graphed_callables};
pub use outputs::LiveOutputs;
pub use step::{CapturedStep, StepOptions, capture_step};
pub use tree::{GraphTreeCounters, GraphTreeManager, GraphTreeOptions};
