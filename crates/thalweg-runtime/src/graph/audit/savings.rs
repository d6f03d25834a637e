//! [`Savings`]: the predicted time that capturing a region would save on a GPU, from the rate at which it was submitted.
//!
//! ```text
//! saved = commands × (host time a command) − one replay − staging copies × (host time a command)
//! ```
//!
//! The host time of a command is the median of the times from one submission to the next on the region's thread. It includes the
//! cost of the operators above, but not the few long pauses (a kernel compiled, memory taken from the driver, a wait). The cost
//! of a replay is measured with a graph of the same number of nodes. If the device was behind all the time (the host waited for
//! it for longer than it took to submit), a graph makes the region no faster, and the prediction says so.

use std::fmt;
use std::time::{Duration, Instant};

use thalweg_driver::{FillPattern, Label};

use super::counts::Counts;
use super::times::SubmissionTimes;
use crate::{Buffer, CaptureOptions, Device, Graph, Result, Stream};

/// The most nodes of the graph whose replay is measured; a larger graph costs proportionally more.
const MOST_NODES: u64 = 1000;

/// The number of replays that are measured; the median counts.
const REPLAYS: usize = 21;

/// The savings per run if a region were captured, predicted on a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Savings {
    /// The host time of all the region's commands, submitted one by one.
    pub eager: Duration,
    /// The host time of one replay.
    pub replay: Duration,
    /// The host time of the copies that would have to be made before each replay.
    pub staging: Duration,
    /// The time that the host waited for the device.
    pub waiting: Duration,
}

impl Savings {
    /// Returns the host time that a run would save; zero if a graph would cost more than it saves.
    pub fn host_time_saved(&self) -> Duration {
        self.eager.saturating_sub(self.replay + self.staging)
    }

    /// Returns whether the region would finish sooner. It would not if the host saved nothing, or if the region was waiting for
    /// the device.
    pub fn is_faster(&self) -> bool {
        !self.host_time_saved().is_zero() && self.waiting < self.eager
    }

    /// Measures a replay and predicts the savings from it. `drained` is the time for which the device kept working after the
    /// region's end.
    pub(super) fn predict(
        device: &Device,
        counts: &Counts,
        times: &SubmissionTimes,
        drained: Duration,
    ) -> Result<Self> {
        let replay = measure_replay(device, counts.commands().clamp(1, MOST_NODES))?;
        Ok(Self::from_parts(counts, times.per_command(), replay, times.waiting + drained))
    }

    fn from_parts(counts: &Counts, per_command: Duration, replay: Duration, waiting: Duration) -> Self {
        let times = |count: u64| per_command.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
        let scale = counts.commands().div_ceil(MOST_NODES).max(1);
        Self {
            eager: times(counts.commands()),
            replay: replay.saturating_mul(u32::try_from(scale).unwrap_or(u32::MAX)),
            staging: times(counts.staging_copies),
            waiting,
        }
    }
}

/// Returns the host time of a replay of a graph with `nodes` nodes.
fn measure_replay(device: &Device, nodes: u64) -> Result<Duration> {
    let stream = Stream::new(device)?;
    let _current = stream.make_current();
    let buffer = Buffer::new(&stream, 256)?;
    let options = CaptureOptions { stream: Some(stream.clone()), ..CaptureOptions::default() };
    let (graph, ()) = Graph::capture(device, options, || {
        let label = Label::here("replay measured by the audit");
        (0..nodes).try_for_each(|_| stream.fill(buffer.pointer(), FillPattern::U32(0), 1, label))
    })?;
    let mut times = Vec::with_capacity(REPLAYS);
    for _ in 0..REPLAYS {
        let start = Instant::now();
        graph.replay()?;
        times.push(start.elapsed());
        stream.synchronize()?;
    }
    times.sort_unstable();
    Ok(times[REPLAYS / 2])
}

impl fmt::Display for Savings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let microseconds = |time: Duration| time.as_secs_f64() * 1e6;
        let saved = microseconds(self.host_time_saved());
        if saved == 0.0 {
            f.write_str(
                "no savings: a replay and its staging copies cost the host as much as the commands one by one",
            )?;
        } else if self.is_faster() {
            write!(f, "about {saved:.0} µs of host time a run saved")?;
        } else {
            write!(
                f,
                "no savings in time: the device is what the region waits for; about {saved:.0} µs of host time would be free"
            )?;
        }
        write!(
            f,
            " (one by one {:.0} µs, a replay {:.1} µs, staging copies {:.0} µs, waiting for the device {:.0} µs)",
            microseconds(self.eager),
            microseconds(self.replay),
            microseconds(self.staging),
            microseconds(self.waiting)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn microseconds(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    #[test]
    fn what_is_saved_is_launches_less_replay_and_staging() {
        let counts = Counts { kernels: 98, copies: 2, staging_copies: 2, ..Counts::default() };
        let savings = Savings::from_parts(&counts, microseconds(7), microseconds(6), microseconds(100));
        assert_eq!((savings.eager, savings.staging), (microseconds(700), microseconds(14)));
        assert_eq!(savings.host_time_saved(), microseconds(680));
        assert!(savings.is_faster());
        assert!(savings.to_string().starts_with("about 680 µs of host time a run saved (one by one 700 µs"));
    }

    #[test]
    fn where_nothing_is_gained_it_says_so() {
        let one = Counts { kernels: 1, ..Counts::default() };
        let savings = Savings::from_parts(&one, microseconds(5), microseconds(6), microseconds(0));
        assert!(!savings.is_faster());
        assert!(savings.to_string().starts_with("no savings: a replay"));
        let many = Counts { kernels: 10, ..Counts::default() };
        let after = Savings::from_parts(&many, microseconds(5), microseconds(6), microseconds(900));
        assert_eq!(after.host_time_saved(), microseconds(44));
        assert!(!after.is_faster());
        assert!(after.to_string().starts_with("no savings in time: the device"));
    }

    #[test]
    fn long_pauses_do_not_count() {
        let mut times = SubmissionTimes::start();
        for pause in [1, 1, 500_000, 1, 2] {
            times.intervals.push(microseconds(pause));
        }
        assert_eq!(times.per_command(), microseconds(1));
        assert_eq!(SubmissionTimes::start().per_command(), Duration::ZERO);
    }

    #[test]
    fn larger_graphs_than_the_measured_one_cost_in_proportion() {
        let counts = Counts { kernels: 2500, ..Counts::default() };
        let savings = Savings::from_parts(&counts, microseconds(5), microseconds(10), microseconds(0));
        assert_eq!(savings.replay, microseconds(30));
    }
}
