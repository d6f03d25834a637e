//! The events of the memory: how they are recorded, and the observers that hear of them.

pub mod history;
pub mod observe;
pub(crate) mod watch;
