//! Allocation without the cache: by the driver's stream-ordered allocator, or by one call of the driver per request. The statistics
//! are the same.

use std::sync::Arc;

use thalweg_memory::fake::{FakeUpstream, Fault};
use thalweg_memory::history::{Enabled, HistorySettings};
use thalweg_memory::{Backend, BlockState, DeviceAllocator, Settings, StreamFilter};
use thalweg_snapshot::Action;

use crate::harness::{pytorch, stream};

const MIB: u64 = 1 << 20;

/// Memory that is freed on one stream is not at once available to another, so the driver holds more than was ever active.
#[test]
fn the_peak_of_what_is_reserved_is_the_drivers() {
    let (upstream, allocator) = allocator(100, stream_ordered());
    let reserved = || {
        let all = allocator.statistics().reserved_bytes.all;
        (all.current / MIB, all.peak / MIB)
    };
    for on in [1, 2] {
        drop(allocator.allocate(20 * MIB, stream(on)).expect("there is room"));
    }
    assert_eq!(allocator.statistics().active_bytes.all.peak, 20 * MIB);
    assert_eq!(reserved(), (40, 40));
    upstream.complete_all();
    allocator.empty_cache().expect("the driver gives it back");
    assert_eq!(reserved(), (0, 40));
    allocator.reset_peak_memory_stats();
    assert_eq!(reserved(), (0, 0));
}

/// Corresponds to `test_allocator_backend` of PyTorch.
fn stream_ordered() -> Settings {
    let settings = Settings::parse("backend:cudaMallocAsync").expect("it is a backend");
    assert_eq!(settings.backend(), Backend::CudaMallocAsync);
    settings
}

fn uncached() -> Settings {
    let variables = |name: &str| (name == "PYTORCH_NO_CUDA_MEMORY_CACHING").then(|| "1".to_owned());
    Settings::from_environment(variables).expect("it is valid")
}

fn allocator(mebibytes: u64, settings: Settings) -> (Arc<FakeUpstream>, Arc<DeviceAllocator>) {
    let upstream = Arc::new(FakeUpstream::with_stream_order(mebibytes * MIB));
    let allocator = DeviceAllocator::new(upstream.clone(), settings);
    (upstream, allocator)
}

#[test]
fn the_books_are_those_of_a_cache() {
    let mut seen = Vec::new();
    for settings in [pytorch(), stream_ordered(), uncached()] {
        let (upstream, allocator) = allocator(100, settings);
        let settings = HistorySettings { enabled: Enabled::All, ..HistorySettings::default() };
        allocator.record_memory_history(settings);
        let small = allocator.allocate(1000, stream(1)).expect("there is room");
        let large = allocator.allocate(20 * MIB, stream(2)).expect("there is room");
        large.record_stream(stream(3));
        drop(large);
        upstream.complete_all();
        allocator.process_events();
        let statistics = allocator.statistics();
        assert!(allocator.allocate(101 * MIB, stream(1)).is_err());
        let snapshot = allocator.memory_snapshot();
        let live = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
        let live: Vec<_> = live
            .filter(|block| block.state != BlockState::Inactive)
            .map(|block| (block.address, block.size_bytes, block.requested_bytes))
            .collect();
        assert_eq!(live, [(small.address(), 1024, 1000)]);
        let mut actions: Vec<_> = snapshot.device_traces[0]
            .iter()
            .filter(|entry| !matches!(entry.action, Action::SegmentAlloc | Action::SegmentFree))
            .map(|entry| (entry.action, entry.size_bytes, entry.stream))
            .collect();
        assert_eq!(actions.pop().map(|(action, ..)| action), Some(Action::Oom));
        seen.push((
            (statistics.allocation, statistics.active, statistics.allocated_bytes, statistics.active_bytes),
            (statistics.requested_bytes, allocator.statistics().num_ooms),
            actions,
        ));
    }
    assert_eq!(seen[1], seen[0], "cudaMallocAsync");
    assert_eq!(seen[2], seen[0], "without a cache");
}

#[test]
fn every_block_is_a_segment() {
    for settings in [stream_ordered(), uncached()] {
        let (_upstream, allocator) = allocator(100, settings);
        let settings = HistorySettings { enabled: Enabled::All, ..HistorySettings::default() };
        allocator.record_memory_history(settings);
        let block = allocator.allocate(1000, stream(1)).expect("there is room");
        let segments = allocator.snapshot();
        assert_eq!((segments[0].address, segments[0].total_bytes), (block.address(), 1024));
        drop(block);
        assert_eq!(allocator.snapshot(), []);
        let statistics = allocator.statistics();
        assert_eq!((statistics.segment.all.current, statistics.segment.all.peak), (0, 1));
        assert_eq!((statistics.num_device_alloc, statistics.num_device_free), (1, 1));
        let trace = allocator.memory_snapshot().device_traces.pop().expect("there is a device");
        let actions: Vec<_> = trace.iter().map(|entry| entry.action).collect();
        use Action::{Alloc, FreeCompleted, FreeRequested, SegmentAlloc, SegmentFree};
        assert_eq!(actions, [SegmentAlloc, Alloc, FreeRequested, FreeCompleted, SegmentFree]);
    }
}

#[test]
fn a_free_behind_another_stream_waits_on_the_device() {
    let (upstream, allocator) = allocator(100, stream_ordered());
    let block = allocator.allocate(10 * MIB, stream(1)).expect("there is room");
    block.record_stream(stream(2));
    drop(block);
    let calls = upstream.calls();
    assert_eq!((calls.wait_event, calls.free_async, calls.synchronize_event), (1, 1, 0));
    upstream.complete_stream(stream(1));
    assert_eq!(upstream.freed_in_stream_order(), 10 * MIB, "stream 2 is not done, and stream 1 waits for it");
    upstream.complete_stream(stream(2));
    assert_eq!(upstream.freed_in_stream_order(), 0);
    assert_eq!(allocator.statistics().active.all.current, 0);
}

#[test]
fn without_a_cache_a_free_waits_for_the_event() {
    let (upstream, allocator) = allocator(100, uncached());
    let block = allocator.allocate(10 * MIB, stream(1)).expect("there is room");
    block.record_stream(stream(2));
    drop(block);
    allocator.process_events();
    assert_eq!(allocator.snapshot()[0].blocks[0].state, BlockState::ActivePendingFree);
    assert_eq!(upstream.calls().free, 0);
    upstream.complete_stream(stream(2));
    allocator.process_events();
    assert_eq!(upstream.live_segments(), []);
}

/// Corresponds to `test_cudamallocasync_trim_on_oom_retry` of PyTorch.
#[test]
fn what_is_freed_in_stream_order_is_reclaimed_before_failure() {
    let (upstream, allocator) = allocator(100, stream_ordered());
    drop(allocator.allocate(60 * MIB, stream(1)).expect("there is room"));
    assert_eq!(upstream.freed_in_stream_order(), 60 * MIB, "stream 1 has not come that far");
    let other = allocator.allocate(50 * MIB, stream(2)).expect("the device is waited for");
    let calls = upstream.calls();
    assert_eq!((calls.synchronize, calls.trim), (1, 1));
    let statistics = allocator.statistics();
    assert_eq!((statistics.num_alloc_retries, statistics.num_ooms), (1, 0));
    assert_eq!(statistics.reserved_bytes.all.current, other.size_bytes());
}

/// A free waits for the uses by other streams too.
#[test]
fn pending_frees_of_every_stream_are_reclaimed_before_failure() {
    let (_upstream, allocator) = allocator(100, uncached());
    let block = allocator.allocate(60 * MIB, stream(1)).expect("there is room");
    block.record_stream(stream(3));
    drop(block);
    assert!(allocator.allocate(50 * MIB, stream(2)).is_ok());
}

#[test]
fn emptying_the_cache_trims_the_drivers() {
    let (upstream, allocator) = allocator(100, stream_ordered());
    drop(allocator.allocate(60 * MIB, stream(1)).expect("there is room"));
    assert_eq!(allocator.statistics().reserved_bytes.all.current, 60 * MIB);
    allocator.empty_cache().expect("nothing fails");
    assert_eq!(allocator.statistics().reserved_bytes.all.current, 0);
    assert_eq!(upstream.live_segments(), []);
}

/// The fake panics when the device is waited for while a graph is being captured.
#[test]
fn nothing_waits_for_the_device_during_a_capture() {
    for settings in [stream_ordered(), uncached()] {
        let (upstream, allocator) = allocator(100, settings);
        let before = allocator.allocate(40 * MIB, stream(2)).expect("there is room");
        let address = before.address();
        let pool = allocator.create_pool();
        let only = StreamFilter::Stream(stream(1));
        allocator.begin_allocate_to_pool(pool, only).expect("it is there");
        let capture = upstream.begin_capture(stream(1));
        drop(before);
        assert_eq!(
            allocator.snapshot()[0].blocks[0].state,
            BlockState::ActivePendingFree,
            "a replay would free it again"
        );
        drop(allocator.allocate(20 * MIB, stream(1)).expect("there is room"));
        assert!(allocator.allocate(90 * MIB, stream(1)).expect_err("there is less").is_out_of_memory());
        assert!(allocator.allocate(90 * MIB, stream(2)).expect_err("there is less").is_out_of_memory());
        assert!(allocator.empty_cache().expect_err("not now").is_capture());
        assert_eq!(upstream.calls().synchronize, 0);
        upstream.end_capture(capture);
        allocator.end_allocate_to_pool(pool).expect("it was begun");
        assert!(allocator.snapshot().iter().all(|segment| segment.address != address));
        assert!(allocator.allocate(90 * MIB, stream(2)).is_ok());
    }
}

#[test]
fn a_free_that_the_driver_refuses_is_tried_again() {
    for settings in [stream_ordered(), uncached()] {
        let (upstream, allocator) = allocator(100, settings);
        let block = allocator.allocate(60 * MIB, stream(1)).expect("there is room");
        upstream.fail_call(1, Fault::Other);
        drop(block);
        assert_eq!(allocator.snapshot()[0].blocks[0].state, BlockState::ActivePendingFree);
        upstream.complete_all();
        allocator.process_events();
        assert_eq!(allocator.snapshot(), []);
        assert!(allocator.allocate(60 * MIB, stream(1)).is_ok());
    }
}
