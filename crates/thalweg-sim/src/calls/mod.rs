//! The driver's calls, by their subjects: each turns a call on [objects](crate::objects) into commands of the
//! [executor](crate::executor).
//!
//! The calls are methods of [`MachineState`](crate::state::MachineState), which runs in the critical section and never
//! waits, or functions of [`Locked`](crate::machine::Locked), which waits. The calls on collectives and conditional nodes
//! are in the modules of those subjects.

pub(crate) mod capture;
pub(crate) mod code;
pub(crate) mod graph;
pub(crate) mod graph_memory;
pub(crate) mod graph_update;
pub(crate) mod pool;
pub(crate) mod stream;
pub(crate) mod transfer;
