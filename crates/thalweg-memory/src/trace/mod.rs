//! What happened to the memory: events as they are recorded, and observers who are told.

pub mod history;
pub mod observe;
pub(crate) mod watch;
