//! A capture under way.

use std::thread::ThreadId;

use thalweg_driver::CaptureMode;

/// A capture under way.
pub(crate) struct Capture {
    /// The number of the capture, unique in the process.
    pub(crate) id: u64,
    pub(crate) origin: u64,
    pub(crate) mode: CaptureMode,
    pub(crate) thread: ThreadId,
    pub(crate) graph: u64,
    pub(crate) members: Vec<u64>,
    /// The last nodes of the branches of streams that were destroyed.
    pub(crate) orphans: Vec<u32>,
    /// The reason why the capture is invalid; `None` if it is valid.
    pub(crate) broken: Option<String>,
}
