//! The events of the memory: their recording, and their observers.

pub mod history;
pub mod observe;
pub(crate) mod watch;
