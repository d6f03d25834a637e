//! Pipeline stages: the layers of a module on several ranks, through which a batch goes in microbatches (`torch.distributed.pipelining`).
//!
//! - [`Schedule`]: what each rank does in which order, a table with a row per rank. GPipe, 1F1B, interleaved 1F1B, zero bubble and ZBV are
//!   cases of one function; a CSV file of PyTorch's is read as well.
//! - [`Action`]: one entry of the table.
//! - [`PipelineStage`]: the layers of one stage.
//! - [`Pipeline`]: a schedule with the stages of one rank, which runs batches, or a stream of microbatches.
//! - [`Timeline`]: when each rank computes what, measured or planned, with the share of time in which it idles.
//!
//! This module is a hub: `generate` makes schedules, `run` does a row of one, `stream` runs inference, `meta` is about the shapes of
//! what goes between stages, `picture` draws timelines.

mod action;
mod generate;
mod meta;
mod picture;
mod run;
mod runtime;
mod schedule;
mod stage;
mod stream;
mod timeline;

pub use action::{Action, Computation};
pub use runtime::{Pipeline, PipelineLoss, PipelineOptions, PipelineOutput};
pub use schedule::Schedule;
pub use stage::PipelineStage;
pub use timeline::{Timeline, TimelineSpan};
