//! [`DeviceStatistics`] in C's layout.

use thalweg_memory::{ByPool, DeviceStatistics, Statistic};

/// `thalweg_statistic`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(C)]
pub struct StatisticC {
    /// The current value.
    pub current: i64,
    /// The maximum value.
    pub peak: i64,
    /// The sum of all additions.
    pub allocated: i64,
    /// The sum of all subtractions.
    pub freed: i64,
}

/// `thalweg_by_pool`: in the order of PyTorch's `StatType`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(C)]
pub struct ByPoolC {
    /// All requests.
    pub all: StatisticC,
    /// Small requests.
    pub small_pool: StatisticC,
    /// Large requests.
    pub large_pool: StatisticC,
}

/// `thalweg_statistics`. The meanings are those of [`DeviceStatistics`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "each field is explained where it comes from")]
pub struct StatisticsC {
    pub allocation: ByPoolC,
    pub segment: ByPoolC,
    pub active: ByPoolC,
    pub inactive_split: ByPoolC,
    pub allocated_bytes: ByPoolC,
    pub reserved_bytes: ByPoolC,
    pub active_bytes: ByPoolC,
    pub inactive_split_bytes: ByPoolC,
    pub requested_bytes: ByPoolC,
    pub oversize_allocations: StatisticC,
    pub oversize_segments: StatisticC,
    pub num_alloc_retries: i64,
    pub num_ooms: i64,
    pub num_sync_all_streams: i64,
    pub num_device_alloc: i64,
    pub num_device_free: i64,
    pub num_oom_rejections: i64,
    /// The largest block that may be split, in bytes; -1 if there is no limit, as in PyTorch.
    pub max_split_size: i64,
    pub pending_use_bytes: i64,
    pub num_cross_stream_waits: i64,
    pub num_pages_moved: i64,
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl From<&Statistic> for StatisticC {
    fn from(statistic: &Statistic) -> Self {
        let Statistic { current, peak, allocated, freed } = *statistic;
        Self {
            current: signed(current),
            peak: signed(peak),
            allocated: signed(allocated),
            freed: signed(freed),
        }
    }
}

impl From<&ByPool> for ByPoolC {
    fn from(quantity: &ByPool) -> Self {
        let ByPool { all, small_pool, large_pool } = quantity;
        Self { all: all.into(), small_pool: small_pool.into(), large_pool: large_pool.into() }
    }
}

impl From<&DeviceStatistics> for StatisticsC {
    fn from(statistics: &DeviceStatistics) -> Self {
        Self {
            allocation: (&statistics.allocation).into(),
            segment: (&statistics.segment).into(),
            active: (&statistics.active).into(),
            inactive_split: (&statistics.inactive_split).into(),
            allocated_bytes: (&statistics.allocated_bytes).into(),
            reserved_bytes: (&statistics.reserved_bytes).into(),
            active_bytes: (&statistics.active_bytes).into(),
            inactive_split_bytes: (&statistics.inactive_split_bytes).into(),
            requested_bytes: (&statistics.requested_bytes).into(),
            oversize_allocations: (&statistics.oversize_allocations).into(),
            oversize_segments: (&statistics.oversize_segments).into(),
            num_alloc_retries: signed(statistics.num_alloc_retries),
            num_ooms: signed(statistics.num_ooms),
            num_sync_all_streams: signed(statistics.num_sync_all_streams),
            num_device_alloc: signed(statistics.num_device_alloc),
            num_device_free: signed(statistics.num_device_free),
            num_oom_rejections: signed(statistics.num_oom_rejections),
            max_split_size: statistics.max_split_size.map_or(-1, signed),
            pending_use_bytes: signed(statistics.pending_use_bytes),
            num_cross_stream_waits: signed(statistics.num_cross_stream_waits),
            num_pages_moved: signed(statistics.num_pages_moved),
        }
    }
}
