//! Tools over recorded memory: what a program did with its GPU memory, and would do under other settings.
//!
//! - [`replay`]: a recorded program, served again by the allocators of `thalweg-memory` under any settings.
//! - [`analysis`]: what was live, cached and fragmented at each moment, by place and category; what other settings would reserve.
//! - [`report`]: all of it as one self-contained HTML page.
//!
//! Snapshots are read by `thalweg-snapshot`. What is not here: files, arguments and terminals, which are the command line's.
#![forbid(unsafe_code)]

pub mod analysis;
pub mod replay;
pub mod report;
