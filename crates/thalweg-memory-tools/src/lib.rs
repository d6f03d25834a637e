//! Tools for recorded memory: how a program used its GPU memory, and how it would under other settings.
//!
//! - [`replay`]: a recorded program, served again by the allocators of `thalweg-memory` under any settings.
//! - [`analysis`]: the live, cached and fragmented memory at each moment, by code location and category; the memory that other
//!   settings would reserve.
//! - [`report`]: all of it as one self-contained HTML page.
//!
//! Snapshots are read by `thalweg-snapshot`. Files, arguments and terminals are handled by the command line.
#![forbid(unsafe_code)]

pub mod analysis;
pub mod replay;
pub mod report;
