//! The rate at which a region was submitted.

use std::time::{Duration, Instant};

/// The time that the submission of a region took.
pub(super) struct SubmissionTimes {
    /// The moment of the last submission by the region's thread, or of the beginning.
    pub(super) last: Instant,
    /// The times from one submission to the next.
    pub(super) intervals: Vec<Duration>,
    /// The time that the host waited for the device.
    pub(super) waiting: Duration,
}

impl SubmissionTimes {
    pub(super) fn start() -> Self {
        Self { last: Instant::now(), intervals: Vec::new(), waiting: Duration::ZERO }
    }

    /// Notes the moment at which the driver accepted a command. The time that the audit has taken since is not counted as the
    /// region's.
    pub(super) fn submitted(&mut self, taken: Instant) {
        self.intervals.push(taken.duration_since(self.last));
        self.last = Instant::now();
    }

    pub(super) fn waited(&mut self, time: Duration) {
        self.waiting += time;
        self.last = Instant::now();
    }

    /// Returns the host time of a command.
    pub(super) fn per_command(&self) -> Duration {
        let mut sorted = self.intervals.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or_default()
    }
}
