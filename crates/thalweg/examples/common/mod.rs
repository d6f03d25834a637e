//! The parts that examples of training share.

pub mod arguments;
pub mod checkpoint;
mod dtype;
pub mod options;
pub mod training;
