//! Sums of what happened, and their table for people.

pub mod stats;
pub(crate) mod summary;
