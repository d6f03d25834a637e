//! Functions that pools of captured graphs need besides allocation: their addresses must stay valid while a graph may run.

pub(crate) mod aliases;
pub(crate) mod checkpoint;
pub(crate) mod liveness;
