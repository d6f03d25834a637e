//! Counters, with PyTorch's names and meanings.
//!
//! Every [`Statistic`] has four figures: the present value (`current`), the greatest value so far (`peak`), and the sums of
//! additions (`allocated`) and removals (`freed`). Those of device memory exist three times, for all requests and for the small
//! and the large ones. The meanings of the names are documented at the fields of [`DeviceStatistics`] and, for pinned host
//! memory, of [`HostStatistics`](crate::HostStatistics); `memory_stats` lists them under PyTorch's keys
//! (`allocated_bytes.all.peak`).
//!
//! The counters are plain numbers; their owner keeps them exact. This module decides nothing.

use std::collections::BTreeMap;

use crate::ids::{PoolId, SizeClass};

/// A quantity over time.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Statistic {
    /// The present value.
    pub current: u64,
    /// The greatest value of `current` since the last reset of peaks.
    pub peak: u64,
    /// The sum of all additions since the last reset of sums.
    pub allocated: u64,
    /// The sum of all removals since the last reset of sums.
    pub freed: u64,
}

impl Statistic {
    pub(crate) fn increase(&mut self, amount: u64) {
        self.current += amount;
        self.allocated += amount;
        self.peak = self.peak.max(self.current);
    }

    /// Subtracts `amount`.
    ///
    /// # Panics
    /// If the present value is less than `amount`: then something is removed that was never added.
    pub(crate) fn decrease(&mut self, amount: u64) {
        self.current = self.current.checked_sub(amount).expect("a statistic never falls below zero");
        self.freed += amount;
    }

    pub(crate) fn reset_peak(&mut self) {
        self.peak = self.current;
    }

    pub(crate) fn reset_accumulated(&mut self) {
        self.allocated = 0;
        self.freed = 0;
    }

    fn push_entries(&self, entries: &mut Vec<(String, u64)>, name: &str) {
        for (figure, value) in [
            ("current", self.current),
            ("peak", self.peak),
            ("allocated", self.allocated),
            ("freed", self.freed),
        ] {
            entries.push((format!("{name}.{figure}"), value));
        }
    }
}

/// A quantity for all requests, and separately for the small and the large ones.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ByPool {
    /// All requests. The peak is the peak of the sum.
    pub all: Statistic,
    /// Small requests.
    pub small_pool: Statistic,
    /// Large requests.
    pub large_pool: Statistic,
}

impl ByPool {
    fn selected(&mut self, class: SizeClass) -> [&mut Statistic; 2] {
        match class {
            SizeClass::Small => [&mut self.all, &mut self.small_pool],
            SizeClass::Large => [&mut self.all, &mut self.large_pool],
        }
    }

    pub(crate) fn increase(&mut self, class: SizeClass, amount: u64) {
        self.selected(class).into_iter().for_each(|statistic| statistic.increase(amount));
    }

    pub(crate) fn decrease(&mut self, class: SizeClass, amount: u64) {
        self.selected(class).into_iter().for_each(|statistic| statistic.decrease(amount));
    }

    fn each(&mut self) -> [&mut Statistic; 3] {
        [&mut self.all, &mut self.small_pool, &mut self.large_pool]
    }
}

/// The statistics of a [`DeviceAllocator`](crate::DeviceAllocator). Sizes are in bytes.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct DeviceStatistics {
    /// Blocks that callers hold.
    pub allocation: ByPool,
    /// Segments taken from the upstream.
    pub segment: ByPool,
    /// Blocks that callers hold, and freed ones that wait for events.
    pub active: ByPool,
    /// Free blocks that share their segment with others, and so cannot be returned to the upstream.
    pub inactive_split: ByPool,
    /// The bytes of `allocation`, rounded as the blocks are.
    pub allocated_bytes: ByPool,
    /// The bytes of `segment`.
    pub reserved_bytes: ByPool,
    /// The bytes of `active`.
    pub active_bytes: ByPool,
    /// The bytes of `inactive_split`.
    pub inactive_split_bytes: ByPool,
    /// The bytes of `active` as they were requested, before rounding.
    pub requested_bytes: ByPool,
    /// Blocks of at least `max_split_size` that callers hold.
    pub oversize_allocations: Statistic,
    /// Segments of at least `max_split_size`.
    pub oversize_segments: Statistic,
    /// The number of times that the upstream was called again after the cache had been returned to it.
    pub num_alloc_retries: u64,
    /// The number of requests that failed for lack of memory.
    pub num_ooms: u64,
    /// The number of times that the host waited for all pending events.
    pub num_sync_all_streams: u64,
    /// The number of segments that were taken from the upstream.
    pub num_device_alloc: u64,
    /// The number of segments that were returned.
    pub num_device_free: u64,
    /// The number of requests that were refused before memory was searched for, because they would have exceeded the memory
    /// fraction.
    pub num_oom_rejections: u64,
    /// The size from which blocks are not split; `None` if blocks of every size may be split.
    pub max_split_size: Option<u64>,
    /// The memory that each private pool has taken from the upstream. A pool's entry outlives it, until the peaks are reset.
    pub reserved_bytes_by_private_pools: BTreeMap<PoolId, Statistic>,
    /// Bytes that were freed and wait for uses on other streams. Only in Thalweg.
    pub pending_use_bytes: u64,
    /// The number of times that a stream was made to wait for another, on the device, so that memory could move between them.
    /// Only in Thalweg.
    pub num_cross_stream_waits: u64,
    /// The number of times that free pages were moved to where they were needed. Only in Thalweg.
    pub num_pages_moved: u64,
}

impl DeviceStatistics {
    /// Returns all figures under PyTorch's keys, sorted by key; Thalweg's own figures have keys of the same form.
    /// `max_split_size` is -1 if it is off.
    pub fn memory_stats(&self) -> Vec<(String, i64)> {
        let mut copy = self.clone();
        let Named { by_pool, oversize, counters } = copy.named();
        let mut entries = Vec::with_capacity(128);
        for (name, quantity) in by_pool {
            for (pool, statistic) in ["all", "small_pool", "large_pool"].into_iter().zip(quantity.each()) {
                statistic.push_entries(&mut entries, &format!("{name}.{pool}"));
            }
        }
        for (name, statistic) in oversize {
            statistic.push_entries(&mut entries, name);
        }
        for (pool, statistic) in &self.reserved_bytes_by_private_pools {
            let name = format!("reserved_bytes_by_private_pools.0_{}", pool.raw());
            statistic.push_entries(&mut entries, &name);
        }
        entries.extend(counters.map(|(name, counter)| (name.to_owned(), *counter)));
        entries.push(("pending_use_bytes".to_owned(), self.pending_use_bytes));
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let mut entries: Vec<_> = entries.into_iter().map(|(name, value)| (name, signed(value))).collect();
        entries.push(("max_split_size".to_owned(), self.max_split_size.map_or(-1, signed)));
        entries.sort();
        entries
    }

    pub(crate) fn reset_peak(&mut self) {
        self.named().statistics().for_each(Statistic::reset_peak);
    }

    pub(crate) fn reset_accumulated(&mut self) {
        let mut named = self.named();
        named.statistics().for_each(Statistic::reset_accumulated);
        named.counters.into_iter().for_each(|(_, counter)| *counter = 0);
    }

    /// Returns the list of all fields, which every operation on all fields uses.
    fn named(&mut self) -> Named<'_> {
        Named {
            by_pool: [
                ("allocation", &mut self.allocation),
                ("segment", &mut self.segment),
                ("active", &mut self.active),
                ("inactive_split", &mut self.inactive_split),
                ("allocated_bytes", &mut self.allocated_bytes),
                ("reserved_bytes", &mut self.reserved_bytes),
                ("active_bytes", &mut self.active_bytes),
                ("inactive_split_bytes", &mut self.inactive_split_bytes),
                ("requested_bytes", &mut self.requested_bytes),
            ],
            oversize: [
                ("oversize_allocations", &mut self.oversize_allocations),
                ("oversize_segments", &mut self.oversize_segments),
            ],
            counters: [
                ("num_alloc_retries", &mut self.num_alloc_retries),
                ("num_ooms", &mut self.num_ooms),
                ("num_sync_all_streams", &mut self.num_sync_all_streams),
                ("num_device_alloc", &mut self.num_device_alloc),
                ("num_device_free", &mut self.num_device_free),
                ("num_oom_rejections", &mut self.num_oom_rejections),
                ("num_cross_stream_waits", &mut self.num_cross_stream_waits),
                ("num_pages_moved", &mut self.num_pages_moved),
            ],
        }
    }
}

/// The fields of [`DeviceStatistics`] with their names.
struct Named<'a> {
    by_pool: [(&'static str, &'a mut ByPool); 9],
    oversize: [(&'static str, &'a mut Statistic); 2],
    counters: [(&'static str, &'a mut u64); 8],
}

impl Named<'_> {
    fn statistics(&mut self) -> impl Iterator<Item = &mut Statistic> {
        let by_pool = self.by_pool.iter_mut().flat_map(|(_, quantity)| quantity.each());
        by_pool.chain(self.oversize.iter_mut().map(|(_, statistic)| &mut **statistic))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resets_leave_what_is_there() {
        let mut statistics = DeviceStatistics { num_ooms: 3, ..DeviceStatistics::default() };
        statistics.active.increase(SizeClass::Large, 10);
        statistics.active.decrease(SizeClass::Large, 4);
        statistics.oversize_segments.increase(2);
        statistics.reset_peak();
        assert_eq!(statistics.active.all, Statistic { current: 6, peak: 6, allocated: 10, freed: 4 });
        statistics.reset_accumulated();
        assert_eq!(statistics.active.all, Statistic { current: 6, peak: 6, allocated: 0, freed: 0 });
        assert_eq!(statistics.oversize_segments, Statistic { current: 2, peak: 2, allocated: 0, freed: 0 });
        assert_eq!(statistics.num_ooms, 0);
    }
}
