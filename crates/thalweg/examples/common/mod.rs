//! The parts that examples of training share.

pub mod arguments;
mod dtype;
pub mod options;
#[path = "../digits/progress.rs"]
mod progress;
pub mod training;
