//! The decisions that PyTorch documents, one by one.

use std::collections::BTreeSet;
use std::sync::Arc;

use thalweg_memory::fake::FakeUpstream;
use thalweg_memory::{BlockState, DeviceAllocator, Settings, SizeClass};

use crate::harness::{pytorch, stream};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn allocator(capacity: u64) -> (Arc<FakeUpstream>, Arc<DeviceAllocator>) {
    let upstream = Arc::new(FakeUpstream::new(capacity));
    let allocator = DeviceAllocator::new(upstream.clone(), pytorch());
    (upstream, allocator)
}

#[test]
fn requests_get_segments_of_their_class() {
    for (request, block, segment, class) in [
        (1, 512, 2 * MIB, SizeClass::Small),
        (MIB, MIB, 2 * MIB, SizeClass::Small),
        (MIB + 1, MIB + 512, 20 * MIB, SizeClass::Large),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB, SizeClass::Large),
        (10 * MIB, 10 * MIB, 10 * MIB, SizeClass::Large),
        // The remainder of 1 MiB or less stays with the block.
        (10 * MIB + 1, 12 * MIB - (2 * MIB - 512), 12 * MIB, SizeClass::Large),
        (11 * MIB + 512, 12 * MIB, 12 * MIB, SizeClass::Large),
        (19 * MIB, 20 * MIB, 20 * MIB, SizeClass::Large),
    ] {
        let (upstream, allocator) = allocator(GIB);
        let got = allocator.allocate(request, stream(1)).expect("there is room");
        assert_eq!((got.size_bytes(), got.requested_bytes()), (block, request), "a request of {request}");
        assert_eq!(upstream.live_segments(), [(got.address(), segment)], "a request of {request}");
        assert_eq!(allocator.snapshot()[0].class, class);
    }
}

#[test]
fn coarse_segments_serve_requests_of_other_sizes() {
    for (granularity, reserved) in [(2 * MIB, [20 * MIB, 70 * MIB]), (64 * MIB, [64 * MIB, 64 * MIB])] {
        let upstream = Arc::new(FakeUpstream::new(GIB));
        let settings = pytorch().with_segment_granularity_bytes(granularity).expect("an even number of MiB");
        let allocator = DeviceAllocator::new(upstream.clone(), settings);
        for (request, reserved) in [20 * MIB, 50 * MIB].into_iter().zip(reserved) {
            drop(allocator.allocate(request, stream(1)).expect("there is room"));
            let segments: u64 = upstream.live_segments().iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(segments, reserved, "after a request of {request}, by {granularity}");
        }
        let small = allocator.allocate(2 * MIB, stream(2)).expect("there is room");
        assert_eq!(upstream.live_segments().len(), if granularity == 2 * MIB { 3 } else { 2 });
        assert!(
            upstream.live_segments().contains(&(small.address(), 20 * MIB)),
            "smaller requests are left alone"
        );
    }
}

#[test]
fn a_request_of_nothing_gets_nothing() {
    let (upstream, allocator) = allocator(0);
    let block = allocator.allocate(0, stream(1)).expect("nothing is needed");
    block.record_stream(stream(2));
    assert!(block.is_null());
    assert_eq!((block.address(), block.size_bytes()), (0, 0));
    drop(block);
    assert_eq!(upstream.calls().fallible(), 0);
    assert_eq!(allocator.statistics().allocation.all.allocated, 0);
}

#[test]
fn the_smallest_free_block_of_the_stream_serves() {
    let (_, allocator) = allocator(GIB);
    let allocate = |bytes, on| allocator.allocate(bytes, stream(on)).expect("there is room");
    // Free blocks of 4 KiB, 1 KiB and 2 KiB, with live ones between them.
    let blocks: Vec<_> = [4096, 512, 1024, 512, 2048, 512].map(|bytes| allocate(bytes, 1)).into();
    let addresses: Vec<_> = blocks.iter().map(|block| block.address()).collect();
    let _fences: Vec<_> = blocks.into_iter().enumerate().filter(|(index, _)| index % 2 == 1).collect();
    assert_eq!(allocate(1024, 1).address(), addresses[2]);
    assert_eq!(allocate(1500, 1).address(), addresses[4]);
    assert_eq!(allocate(2049, 1).address(), addresses[0]);
    let other = allocate(1024, 2);
    assert!(!addresses.contains(&other.address()), "another stream does not get them");
    assert_eq!(allocator.statistics().segment.all.current, 2);
}

#[test]
fn a_block_is_reused_on_its_stream_at_once_and_elsewhere_after_its_events() {
    let (upstream, allocator) = allocator(GIB);
    let allocate = || allocator.allocate(30 * MIB, stream(1)).expect("there is room");
    let block = allocate();
    let first = block.address();
    drop(block);
    let block = allocate();
    assert_eq!(block.address(), first);
    assert_eq!(upstream.calls().record_event, 0);

    block.record_stream(stream(1));
    block.record_stream(stream(2));
    block.record_stream(stream(2));
    drop(block);
    assert_eq!(upstream.calls().record_event, 1, "its own stream needs no event, another needs one");
    assert_eq!(allocator.snapshot()[0].blocks[0].state, BlockState::ActivePendingFree);
    let statistics = allocator.statistics();
    assert_eq!((statistics.allocation.all.current, statistics.active.all.current), (0, 1));
    let second = allocate();
    assert_ne!(second.address(), first, "work on stream 2 may still use it");
    upstream.complete_stream(stream(2));
    assert_eq!(allocate().address(), first);
    assert_eq!(upstream.live_events(), 0);
}

#[test]
fn oversize_blocks_stay_whole_and_go_back_one_by_one() {
    let upstream = Arc::new(FakeUpstream::new(200 * MIB));
    let settings = pytorch().with_max_split_size_bytes(40 * MIB).expect("20 MiB or more");
    let allocator = DeviceAllocator::new(upstream.clone(), settings);
    let allocate = |bytes| allocator.allocate(bytes, stream(1)).expect("there is room");
    drop((allocate(50 * MIB), allocate(100 * MIB)));
    let statistics = allocator.statistics();
    assert_eq!((statistics.oversize_segments.current, statistics.oversize_allocations.peak), (2, 2));
    assert_eq!(statistics.oversize_allocations.current, 0);
    // A smaller request may not split them, and a larger one may waste less than 20 MiB.
    let small = allocate(30 * MIB);
    assert_eq!(allocator.statistics().num_device_alloc, 3);
    drop(allocate(45 * MIB));
    assert_eq!(allocator.statistics().num_device_alloc, 3);
    // A request for 80 MiB: with a block of 100 MiB it would waste 20 MiB, which is too much, and the device has only 20 left.
    // The one block that makes enough room is returned.
    drop(allocate(80 * MIB));
    let statistics = allocator.statistics();
    assert_eq!((statistics.num_device_free, statistics.num_alloc_retries), (1, 0));
    assert_eq!(statistics.num_sync_all_streams, 0);
    drop(small);
    let error = pytorch().with_max_split_size_bytes(20 * MIB - 1).expect_err("too small");
    assert!(error.is_invalid_value());
}

#[test]
fn where_no_oversize_block_suffices_the_largest_go_back_first() {
    let upstream = Arc::new(FakeUpstream::new(200 * MIB));
    let settings = pytorch().with_max_split_size_bytes(40 * MIB).expect("20 MiB or more");
    let allocator = DeviceAllocator::new(upstream.clone(), settings);
    let kept = [46, 60, 50].map(|mib| allocator.allocate(mib * MIB, stream(1)).expect("there is room"));
    let smallest = kept[0].address();
    drop(kept);
    let block = allocator.allocate(100 * MIB, stream(1)).expect("there is room after all");
    let statistics = allocator.statistics();
    assert_eq!((statistics.num_device_free, statistics.num_alloc_retries), (2, 0));
    assert_eq!(upstream.live_segments(), [(smallest, 46 * MIB), (block.address(), 100 * MIB)]);
}

#[test]
fn under_pressure_pending_blocks_are_waited_for_and_the_cache_goes_back() {
    let (upstream, allocator) = allocator(60 * MIB);
    let pending = allocator.allocate(30 * MIB, stream(1)).expect("there is room");
    pending.record_stream(stream(2));
    drop(pending);
    drop(allocator.allocate(20 * MIB, stream(2)).expect("there is room"));
    let large = allocator.allocate(50 * MIB, stream(3)).expect("there is room after all");
    assert_eq!(upstream.live_segments(), [(large.address(), 50 * MIB)]);
    let statistics = allocator.statistics();
    assert_eq!(statistics.num_alloc_retries, 1);
    assert_eq!(statistics.num_sync_all_streams, 1);
    assert_eq!((statistics.num_device_alloc, statistics.num_device_free), (3, 2));
}

#[test]
fn a_pending_part_of_a_segment_serves_where_pytorch_gives_up() {
    for settings in [Settings::default(), pytorch()] {
        let gives_up = settings == pytorch();
        let allocator = DeviceAllocator::new(Arc::new(FakeUpstream::new(20 * MIB)), settings);
        let pending = allocator.allocate(8 * MIB, stream(1)).expect("there is room");
        let _fence = allocator.allocate(8 * MIB, stream(1)).expect("there is room");
        let address = pending.address();
        pending.record_stream(stream(2));
        drop(pending);
        // The segment cannot be returned and there is no room for another; but after waiting, a part of it is free.
        let block = allocator.allocate(8 * MIB, stream(1));
        match gives_up {
            true => assert!(block.expect_err("PyTorch does not look again").is_out_of_memory()),
            false => assert_eq!(block.expect("an eligible free block exists").address(), address),
        }
        assert_eq!(allocator.statistics().num_ooms, u64::from(gives_up));
    }
}

#[test]
fn an_error_for_want_of_memory_says_how_things_are() {
    let upstream = Arc::new(FakeUpstream::new(64 * MIB));
    let allocator = DeviceAllocator::new(upstream, pytorch().with_label("GPU 3"));
    let live = allocator.allocate(30 * MIB, stream(1)).expect("there is room");
    let error = allocator.allocate(40 * MIB, stream(1)).expect_err("there is no room");
    assert!(error.is_out_of_memory());
    assert_eq!(
        error.to_string(),
        "out of memory. Tried to allocate 40.00 MiB. GPU 3 has a total capacity of 64.00 MiB of which 34.00 MiB is free. \
         Of the allocated memory 30.00 MiB is allocated by Thalweg, and 0 bytes is reserved by Thalweg but unallocated. \
         It would fit if it were 6.00 MiB less."
    );
    let figures = error.figures().expect("it has figures");
    assert_eq!((figures.requested_bytes, figures.pending_bytes), (40 * MIB, 0));
    let statistics = allocator.statistics();
    assert_eq!((statistics.num_ooms, statistics.num_alloc_retries), (1, 1));
    drop(live);
    assert!(allocator.allocate(40 * MIB, stream(1)).is_ok());
    let error = allocator.allocate(u64::MAX, stream(1)).expect_err("there is no such device");
    assert!(error.is_out_of_memory(), "{error}");
}

#[test]
fn the_memory_fraction_is_a_limit() {
    let (_, allocator) = allocator(100 * MIB);
    allocator.set_memory_fraction(0.5).expect("from 0 to 1");
    let half = allocator.allocate(50 * MIB, stream(1)).expect("that much is allowed");
    let error = allocator.allocate(1, stream(1)).expect_err("the limit is reached");
    assert_eq!(error.figures().expect("it has figures").allowed_bytes, Some(50 * MIB));
    assert!(error.to_string().contains("50.00 MiB allowed; "), "{error}");
    drop(half);
    assert!(allocator.allocate(1, stream(1)).is_ok(), "the cache goes back to stay within the limit");
    allocator.set_memory_fraction(1.0).expect("from 0 to 1");
    assert!(allocator.allocate(90 * MIB, stream(1)).is_ok());
    for wrong in [-0.1, 1.1, f64::NAN] {
        assert!(allocator.set_memory_fraction(wrong).expect_err("out of range").is_invalid_argument());
    }
}

#[test]
fn emptying_the_cache_spares_live_blocks_and_synchronises_once() {
    let (upstream, allocator) = allocator(GIB);
    let live = allocator.allocate(100, stream(1)).expect("there is room");
    drop(allocator.allocate(30 * MIB, stream(1)).expect("there is room"));
    drop(allocator.allocate(100, stream(1)).expect("there is room"));
    allocator.empty_cache().expect("no capture is under way");
    assert_eq!(upstream.live_segments(), [(live.address(), 2 * MIB)]);
    assert_eq!(allocator.statistics().num_sync_all_streams, 1);
    drop(live);
    allocator.empty_cache().expect("no capture is under way");
    assert_eq!(upstream.live_segments(), []);
}

#[test]
fn the_statistics_have_pytorchs_keys() {
    let mut expected = BTreeSet::new();
    let figures = ["current", "peak", "allocated", "freed"];
    for name in [
        "allocation",
        "segment",
        "active",
        "inactive_split",
        "allocated_bytes",
        "reserved_bytes",
        "active_bytes",
        "inactive_split_bytes",
        "requested_bytes",
    ] {
        for pool in ["all", "small_pool", "large_pool"] {
            expected.extend(figures.map(|figure| format!("{name}.{pool}.{figure}")));
        }
    }
    for name in ["oversize_allocations", "oversize_segments"] {
        expected.extend(figures.map(|figure| format!("{name}.{figure}")));
    }
    let counters = [
        "num_alloc_retries",
        "num_ooms",
        "num_sync_all_streams",
        "num_device_alloc",
        "num_device_free",
        "num_oom_rejections",
        "max_split_size",
        "pending_use_bytes",
        "num_cross_stream_waits",
        "num_pages_moved",
    ];
    expected.extend(counters.map(str::to_owned));
    let (_, allocator) = allocator(GIB);
    let _block = allocator.allocate(700, stream(1)).expect("there is room");
    let stats = allocator.memory_stats();
    assert!(stats.is_sorted());
    assert_eq!(stats.len(), expected.len());
    assert_eq!(stats.iter().map(|(key, _)| key.clone()).collect::<BTreeSet<_>>(), expected);
    let value = |key: &str| stats.iter().find(|(name, _)| name == key).expect("the key exists").1;
    assert_eq!(value("requested_bytes.all.current"), 700);
    assert_eq!(value("allocated_bytes.small_pool.current"), 1024);
    assert_eq!(value("reserved_bytes.all.peak"), 2 << 20);
    assert_eq!(value("inactive_split_bytes.small_pool.current"), (2 << 20) - 1024);
    assert_eq!(value("allocated_bytes.large_pool.current"), 0);
    allocator.reset_accumulated_memory_stats();
    allocator.reset_peak_memory_stats();
    assert_eq!(allocator.statistics().num_device_alloc, 0);
    assert_eq!(allocator.statistics().allocation.all.current, 1);
}

#[test]
fn a_class_of_streams_reserves_what_its_key_says() {
    let upstream = Arc::new(FakeUpstream::with_virtual_memory(GIB));
    let settings =
        Settings::parse("expandable_segments_reserve_by_class:[copy:0.25]").expect("a fraction for a class");
    let allocator = DeviceAllocator::new(upstream.clone(), settings);
    allocator.set_expandable_segment_reserve_class(stream(2), Some("copy"));
    let _blocks = [1, 2].map(|on| allocator.allocate(3 * MIB, stream(on)).expect("there is room"));
    let mut sizes: Vec<u64> = upstream.reserved_ranges().into_iter().map(|(_, bytes)| bytes).collect();
    sizes.sort();
    assert_eq!(sizes, [GIB / 4, GIB / 8 * 9]);
    assert_eq!(allocator.expandable_segments_reserved(), (GIB / 4 + GIB / 8 * 9, 2));
    // A request that no segment of the class can hold is refused, although there is memory.
    let error = allocator.allocate(GIB / 2, stream(2)).expect_err("the range is too small");
    assert!(error.is_out_of_memory());
    assert!(allocator.allocate(GIB / 2, stream(1)).is_ok());
}
