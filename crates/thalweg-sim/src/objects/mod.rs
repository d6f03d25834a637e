//! The objects that handles name: streams, captures, graphs and kernels, each accessed through a checked integer.
//!
//! The calls on them are in [`calls`](crate::calls).

pub(crate) mod capture;
pub(crate) mod code;
pub(crate) mod graph;
pub(crate) mod graph_memory;
pub(crate) mod stream;
