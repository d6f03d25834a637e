//! Sums of events, and their table for people.

pub mod stats;
pub(crate) mod summary;
