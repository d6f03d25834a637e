//! The statistics of pinned memory, under PyTorch's keys.
//!
//! Each bucket counts its own figures, under the lock that it holds anyway, and [`HostStatistics`] is the sum. So every figure is
//! exact with one exception: the peaks of `active_requests` and `active_bytes` are sums of the buckets' own peaks, which need not
//! have occurred at the same time. They are never too low. (All of PyTorch's peaks are of that kind. Here those of `allocations`
//! and `allocated_bytes` are exact: they change only together with a driver call, where one more lock costs nothing.)
//!
//! Figures for which PyTorch has no key (waiting blocks, lost blocks, the reserve) are fields, and not in the lists.

use std::ops::Add;
use std::time::Duration;

use crate::statistics::stats::Statistic;

/// A number of blocks, and their total size.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    /// The number of blocks.
    pub count: u64,
    /// Their total size in bytes.
    pub bytes: u64,
}

impl Tally {
    pub(crate) fn of(sizes: impl Iterator<Item = u64>) -> Self {
        let mut tally = Self::default();
        sizes.for_each(|bytes| tally.count(bytes));
        tally
    }

    pub(crate) fn count(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }
}

impl Add for Tally {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { count: self.count + other.count, bytes: self.bytes + other.bytes }
    }
}

/// One entry of [`HostStatistics::memory_stats_nested`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StatisticEntry {
    /// A counter.
    Count(u64),
    /// A quantity, with the names of its figures.
    Figures(Vec<(&'static str, u64)>),
}

/// The time of calls of the upstream: wall-clock time, for people to read; no decision depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TimeStatistic {
    /// The sum over all calls, in microseconds.
    pub total_us: u64,
    /// The longest call, in microseconds.
    pub max_us: u64,
    /// The shortest call, in microseconds; 0 if there was no call.
    pub min_us: u64,
    /// The number of calls.
    pub count: u64,
}

impl TimeStatistic {
    /// Returns the mean, in microseconds; 0 if there was no call.
    pub fn average_us(&self) -> u64 {
        self.total_us.checked_div(self.count).unwrap_or(0)
    }

    pub(crate) fn add(&mut self, duration: Duration) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.min_us = if self.count == 0 { us } else { self.min_us.min(us) };
        self.max_us = self.max_us.max(us);
        self.total_us = self.total_us.saturating_add(us);
        self.count += 1;
    }
}

/// The statistics of a [`HostAllocator`](crate::HostAllocator). Sizes are in bytes.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct HostStatistics {
    /// Pieces of pinned memory taken from the upstream or the reserve, in use or cached.
    pub allocations: Statistic,
    /// Pieces that callers hold, and freed ones that wait for events.
    pub active_requests: Statistic,
    /// The bytes of `allocations`.
    pub allocated_bytes: Statistic,
    /// The bytes of `active_requests`.
    pub active_bytes: Statistic,
    /// The time that the upstream took to pin memory.
    pub host_alloc_time: TimeStatistic,
    /// The time that the upstream took to free it.
    pub host_free_time: TimeStatistic,
    /// The number of pieces taken from the upstream or the reserve since the last reset of sums.
    pub num_host_alloc: u64,
    /// The number of pieces returned since the last reset of sums.
    pub num_host_free: u64,
    /// Freed pieces that wait: for events, for the end of a capture, or in a private pool for the end of a graph.
    pub pending: Tally,
    /// Pieces that are lost, because the end of their use could not be determined, or because they could not be freed. They stay
    /// in `allocations` and are never used again.
    pub retired: Tally,
    /// The size of the reserve, if there is one.
    pub reserve_segment_bytes: u64,
    /// The number of bytes of the reserve that were ever handed out. They are included in `allocations`.
    pub reserve_segment_used_bytes: u64,
}

impl HostStatistics {
    pub(crate) fn reset_peak(&mut self) {
        self.each().into_iter().for_each(Statistic::reset_peak);
    }

    pub(crate) fn reset_accumulated(&mut self) {
        self.each().into_iter().for_each(Statistic::reset_accumulated);
        self.host_alloc_time = TimeStatistic::default();
        self.host_free_time = TimeStatistic::default();
        self.num_host_alloc = 0;
        self.num_host_free = 0;
    }

    fn each(&mut self) -> [&mut Statistic; 4] {
        [&mut self.allocations, &mut self.active_requests, &mut self.allocated_bytes, &mut self.active_bytes]
    }

    /// Returns all figures under PyTorch's keys (`active_bytes.peak`), sorted by key. Times are in microseconds.
    pub fn memory_stats(&self) -> Vec<(String, u64)> {
        let mut entries = Vec::with_capacity(32);
        for (name, entry) in self.memory_stats_nested() {
            match entry {
                StatisticEntry::Count(count) => entries.push((name.to_owned(), count)),
                StatisticEntry::Figures(figures) => {
                    entries.extend(
                        figures.into_iter().map(|(figure, value)| (format!("{name}.{figure}"), value)),
                    );
                }
            }
        }
        entries.sort();
        entries
    }

    /// Returns the figures under PyTorch's keys. Figures of the same quantity are grouped, and groups are sorted by name.
    pub fn memory_stats_nested(&self) -> Vec<(&'static str, StatisticEntry)> {
        vec![
            ("active_bytes", figures(&self.active_bytes)),
            ("active_requests", figures(&self.active_requests)),
            ("allocated_bytes", figures(&self.allocated_bytes)),
            ("allocations", figures(&self.allocations)),
            ("host_alloc_time", self.host_alloc_time.figures()),
            ("host_free_time", self.host_free_time.figures()),
            ("num_host_alloc", StatisticEntry::Count(self.num_host_alloc)),
            ("num_host_free", StatisticEntry::Count(self.num_host_free)),
        ]
    }
}

impl TimeStatistic {
    fn figures(&self) -> StatisticEntry {
        StatisticEntry::Figures(vec![
            ("total", self.total_us),
            ("max", self.max_us),
            ("min", self.min_us),
            ("count", self.count),
            ("avg", self.average_us()),
        ])
    }
}

fn figures(statistic: &Statistic) -> StatisticEntry {
    StatisticEntry::Figures(vec![
        ("current", statistic.current),
        ("peak", statistic.peak),
        ("allocated", statistic.allocated),
        ("freed", statistic.freed),
    ])
}

/// Adds one bucket's figures to a sum.
pub(crate) fn add(sum: &mut Statistic, part: &Statistic) {
    sum.current += part.current;
    sum.peak += part.peak;
    sum.allocated += part.allocated;
    sum.freed += part.freed;
}

/// Adds the sums of an empty bucket that no longer exists.
pub(crate) fn add_past(sum: &mut Statistic, part: &Statistic) {
    sum.allocated += part.allocated;
    sum.freed += part.freed;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_shortest_and_a_longest() {
        let mut time = TimeStatistic::default();
        assert_eq!(time.average_us(), 0);
        for us in [5, 2, 8] {
            time.add(Duration::from_micros(us));
        }
        assert_eq!(time, TimeStatistic { total_us: 15, max_us: 8, min_us: 2, count: 3 });
        assert_eq!(time.average_us(), 5);
    }
}
