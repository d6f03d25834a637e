//! Pipeline stages: the layers of a module on several ranks, through which a batch goes in microbatches (`torch.distributed.pipelining`).
//!
//! - [`Schedule`]: what each rank does in which order, a table with a row per rank. GPipe, 1F1B, interleaved 1F1B, zero bubble and ZBV are
//!   cases of one function; a CSV file of PyTorch's is read as well.
//! - [`Action`]: one entry of the table.

mod action;
mod generate;
mod schedule;

pub use action::{Action, Computation};
pub use schedule::Schedule;
