//! The objects that handles name: streams, captures, graphs and kernels, each behind a checked integer.
//!
//! A call on an object becomes commands of the [executor](crate::executor).

pub(crate) mod capture;
pub(crate) mod code;
pub(crate) mod graph;
pub(crate) mod graph_memory;
pub(crate) mod graph_update;
pub(crate) mod stream;
