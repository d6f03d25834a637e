//! The layout of the table for people.

use thalweg_memory::{ByPool, DeviceStatistics, Statistic};

fn statistic(current: u64, peak: u64, allocated: u64, freed: u64) -> Statistic {
    Statistic { current, peak, allocated, freed }
}

/// Figures of all orders of magnitude.
fn statistics() -> DeviceStatistics {
    let bytes = ByPool {
        all: statistic((3 << 30) + (512 << 20), 71 << 30, 847 << 30, (843 << 30) + (512 << 20)),
        large_pool: statistic((3 << 30) + (256 << 20), 70 << 30, 5 << 50, 5 << 50),
        small_pool: statistic(256 << 20, 1 << 30, 512, 0),
    };
    let blocks = ByPool {
        all: statistic(4102, 4118, 9_234_567, 9_230_465),
        large_pool: statistic(102, 118, 234_567, 234_465),
        small_pool: statistic(4000, 4000, 9_000_000, 8_996_000),
    };
    DeviceStatistics {
        allocated_bytes: bytes,
        allocation: blocks,
        num_ooms: 2,
        num_alloc_retries: 3,
        num_sync_all_streams: 4,
        num_device_alloc: 1_234_567,
        num_device_free: 999_999,
        ..DeviceStatistics::default()
    }
}

#[test]
fn the_table_looks_like_this() {
    assert_eq!(statistics().memory_summary("GPU 0", false), include_str!("summary.txt"));
}

#[test]
fn abbreviated_it_has_the_sums_only_and_every_line_is_as_wide() {
    let statistics = DeviceStatistics { active: statistics().allocation, ..statistics() };
    let table = statistics.memory_summary("GPU 0", true);
    assert!(!table.contains("pool"));
    let labels = ["", "GPU 0", &"a very long name ".repeat(10), &"ö".repeat(90)];
    let largest = statistic(u64::MAX, u64::MAX, u64::MAX, u64::MAX);
    let largest = ByPool { all: largest, large_pool: largest, small_pool: largest };
    let full =
        DeviceStatistics { reserved_bytes: largest, segment: largest, num_ooms: u64::MAX, ..statistics };
    for label in labels {
        let table = full.memory_summary(label, false);
        for line in table.lines() {
            assert_eq!(line.chars().count(), 77, "{line}");
        }
    }
}
