//! The threads of a machine that is not controlled.

use std::thread::JoinHandle;

/// The threads of a machine, and the number of threads in each state.
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
    /// Whether there is a thread that keeps the time of links.
    pub(crate) keeps_time: bool,
}
