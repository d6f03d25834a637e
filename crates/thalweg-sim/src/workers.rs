//! The threads of a machine that is not controlled, as it counts them.

use std::thread::JoinHandle;

/// The threads of a machine, and how many of them do what.
#[derive(Debug, Default)]
pub(crate) struct WorkerThreads {
    pub(crate) shutdown: bool,
    pub(crate) threads: Vec<JoinHandle<()>>,
    pub(crate) spinning: usize,
    pub(crate) sleeping: usize,
    pub(crate) wakeups: usize,
    pub(crate) host_threads: usize,
    pub(crate) host_thread_limit: usize,
    pub(crate) host_starting: usize,
    pub(crate) host_sleeping: usize,
    pub(crate) host_wakeups: usize,
    pub(crate) host_waiters: usize,
    /// Whether a thread keeps the time of links.
    pub(crate) keeps_time: bool,
}
