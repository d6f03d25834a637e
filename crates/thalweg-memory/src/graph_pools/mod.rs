//! The needs of captured graphs' pools beside allocation: their addresses stay put while a graph may run.

pub(crate) mod aliases;
pub(crate) mod checkpoint;
pub(crate) mod liveness;
