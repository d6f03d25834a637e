//! Pipeline stages: the layers of a module on several ranks, through which a batch goes in microbatches (`torch.distributed.pipelining`).
//!
//! - [`Schedule`]: the actions of each rank in order, a table with one row per rank. GPipe, 1F1B, interleaved 1F1B, zero bubble
//!   and ZBV are built in; PyTorch's CSV files can be read as well.
//! - [`Action`]: one entry of the table.
//! - [`PipelineStage`]: the layers of one stage.
//! - [`Pipeline`]: a schedule with the stages of one rank. It runs batches, or a stream of microbatches.
//! - [`Timeline`]: the times of each rank's computations, measured or planned, with the share of idle time.
//!
//! This module is a hub: `generate` makes schedules, `run` runs a row of one, `stream` runs inference, `meta` has the shapes of
//! tensors between stages, `picture` draws timelines.

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
