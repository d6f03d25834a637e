//! Private pools, as the capture of a graph uses them.

use std::sync::Arc;

use thalweg_memory::fake::FakeUpstream;
use thalweg_memory::{Block, DeviceAllocator, PoolId, StreamFilter};

use crate::harness::{pytorch, stream};

const MIB: u64 = 1 << 20;

fn allocator() -> (Arc<FakeUpstream>, Arc<DeviceAllocator>) {
    let upstream = Arc::new(FakeUpstream::new(1 << 30));
    let allocator = DeviceAllocator::new(upstream.clone(), pytorch());
    (upstream, allocator)
}

fn allocate(allocator: &Arc<DeviceAllocator>, bytes: u64, on: u64) -> Block {
    allocator.allocate(bytes, stream(on)).expect("there is room")
}

fn begin(allocator: &Arc<DeviceAllocator>, pool: PoolId) {
    allocator.begin_allocate_to_pool(pool, StreamFilter::Stream(stream(1))).expect("the pool is known");
}

#[test]
fn memory_of_a_pool_stays_with_it() {
    let (_, allocator) = allocator();
    drop(allocate(&allocator, 1000, 1));
    let pool = allocator.create_pool();
    begin(&allocator, pool);
    let inside = allocate(&allocator, 1000, 1);
    let bystander = allocate(&allocator, 1000, 2);
    allocator.end_allocate_to_pool(pool).expect("it was begun");
    let of = |block: &Block| {
        let snapshot = allocator.snapshot();
        let segment = snapshot.iter().rfind(|segment| segment.address <= block.address()).expect("it is out");
        segment.pool
    };
    assert_eq!(of(&inside), Some(pool));
    assert_eq!(of(&bystander), None);
    let address = inside.address();
    drop(inside);
    let outside = allocate(&allocator, 1000, 1);
    assert_eq!(of(&outside), None, "what comes after the capture does not get the graph's memory");
    begin(&allocator, pool);
    assert_eq!(allocate(&allocator, 1000, 1).address(), address, "the next capture into the pool does");
    allocator.end_allocate_to_pool(pool).expect("it was begun");
}

#[test]
fn addresses_stay_put_until_the_last_reference_goes() {
    let (upstream, allocator) = allocator();
    let pool = allocator.create_pool();
    begin(&allocator, pool);
    let kept = allocate(&allocator, 30 * MIB, 1);
    drop(allocate(&allocator, 5 * MIB, 1));
    allocator.end_allocate_to_pool(pool).expect("it was begun");
    allocator.retain_pool(pool).expect("it has a reference");
    allocator.release_pool(pool).expect("it has two references");
    allocator.empty_cache().expect("no capture is under way");
    assert_eq!(upstream.live_segments().len(), 2, "the graph may be replayed");
    allocator.release_pool(pool).expect("it has one reference");
    allocator.empty_cache().expect("no capture is under way");
    assert_eq!(upstream.live_segments(), [(kept.address(), 30 * MIB)], "a live block outlives its pool");
    for error in [allocator.release_pool(pool), allocator.retain_pool(pool)] {
        let error = error.expect_err("it has no reference");
        assert!(error.is_invalid_argument() && error.to_string().contains("does not exist"), "{error}");
    }
    drop(kept);
    allocator.empty_cache().expect("no capture is under way");
    assert_eq!(upstream.live_segments(), []);
}

#[test]
fn pressure_takes_the_memory_of_released_pools_only() {
    let upstream = Arc::new(FakeUpstream::new(60 * MIB));
    let allocator = DeviceAllocator::new(upstream, pytorch());
    let pool = allocator.create_pool();
    begin(&allocator, pool);
    drop(allocate(&allocator, 40 * MIB, 1));
    allocator.end_allocate_to_pool(pool).expect("it was begun");
    let error = allocator.allocate(40 * MIB, stream(1)).expect_err("the pool holds the memory");
    assert!(error.is_out_of_memory());
    allocator.release_pool(pool).expect("it has one reference");
    assert!(allocator.allocate(40 * MIB, stream(1)).is_ok());
}

#[test]
fn no_event_is_touched_during_a_capture() {
    let (upstream, allocator) = allocator();
    let before = allocate(&allocator, 1000, 1);
    before.record_stream(stream(2));
    let pool = allocator.create_pool();
    begin(&allocator, pool);
    drop(before);
    let inside = allocate(&allocator, 1000, 1);
    let address = inside.address();
    inside.record_stream(stream(3));
    drop(inside);
    let again = allocate(&allocator, 1000, 1);
    assert_ne!(again.address(), address, "its use on stream 3 is not known to be over");
    allocator.process_events();
    let error = allocator.empty_cache().expect_err("a capture is under way");
    assert!(error.is_capture(), "{error}");
    let calls = upstream.calls();
    assert_eq!((calls.record_event, calls.query_event, calls.synchronize_event), (0, 0, 0));
    allocator.end_allocate_to_pool(pool).expect("it was begun");
    assert_eq!(upstream.calls().record_event, 2, "now they are recorded");
    assert_eq!(allocator.statistics().active.all.current, 3);
    upstream.complete_all();
    allocator.process_events();
    assert_eq!(allocator.statistics().active.all.current, 1);
}

#[test]
fn running_out_during_a_capture_says_so() {
    let upstream = Arc::new(FakeUpstream::new(60 * MIB));
    let allocator = DeviceAllocator::new(upstream.clone(), pytorch());
    drop(allocate(&allocator, 40 * MIB, 1));
    let pool = allocator.create_pool();
    begin(&allocator, pool);
    let error = allocator.allocate(40 * MIB, stream(1)).expect_err("the cache holds the memory");
    assert!(error.figures().expect("it has figures").capturing);
    assert!(error.to_string().contains("before the capture begins"), "{error}");
    assert_eq!(upstream.calls().free, 0);
    allocator.end_allocate_to_pool(pool).expect("it was begun");
}

#[test]
fn scopes_are_used_as_they_should_be() {
    let (_, allocator) = allocator();
    let pool = allocator.create_pool();
    let error = allocator.end_allocate_to_pool(pool).expect_err("nothing was begun");
    assert!(error.is_invalid_argument() && error.to_string().contains("must follow"), "{error}");
    begin(&allocator, pool);
    let error = allocator.begin_allocate_to_pool(pool, StreamFilter::All).expect_err("it was begun");
    assert!(error.is_invalid_argument() && error.to_string().contains("already"), "{error}");
    // The scope has its own reference.
    allocator.release_pool(pool).expect("it has two references");
    drop(allocate(&allocator, 1000, 1));
    allocator.end_allocate_to_pool(pool).expect("it was begun");
    allocator.empty_cache().expect("no capture is under way");
    assert!(allocator.begin_allocate_to_pool(pool, StreamFilter::All).is_err(), "it was forgotten");
}

#[test]
fn a_filter_may_ask_anything() {
    let (_, allocator) = allocator();
    let pool = allocator.create_pool();
    let filter = StreamFilter::Matching(Arc::new(|on| on.raw().is_multiple_of(2)));
    allocator.begin_allocate_to_pool(pool, filter).expect("the pool is known");
    let _blocks = [1, 2, 3, 4].map(|on| allocate(&allocator, 1000, on));
    allocator.end_allocate_to_pool(pool).expect("it was begun");
    let private: Vec<_> = allocator.snapshot().iter().map(|segment| segment.pool.is_some()).collect();
    assert_eq!(private, [false, true, false, true]);
}

/// `torch.cuda.use_mem_pool` of a stream: operations that a capture forbids are allowed.
#[test]
fn a_pool_is_used_without_a_capture() {
    let allocator = DeviceAllocator::new(Arc::new(FakeUpstream::new(1 << 30)), pytorch());
    let pool = allocator.create_pool();
    allocator.begin_use_pool(pool, StreamFilter::Stream(stream(1))).expect("the pool is known");
    assert!(allocator.begin_use_pool(pool, StreamFilter::All).expect_err("twice").is_invalid_argument());
    assert_eq!(allocator.pool_use_count(pool), 2);
    let block = allocate(&allocator, 1000, 1);
    block.record_stream(stream(2));
    drop(block);
    allocator.checkpoint_pool(pool).expect("it waits for the other stream");
    let capture = allocator.begin_capture();
    assert!(allocator.empty_cache().expect_err("a capture").is_capture());
    drop(capture);
    allocator.empty_cache().expect("no capture is under way");
    let segment = allocator.snapshot();
    assert_eq!(segment.iter().map(|segment| segment.pool).collect::<Vec<_>>(), [Some(pool)], "it is held");
    allocator.end_use_pool(pool).expect("it was begun");
    assert!(allocator.end_use_pool(pool).expect_err("it has ended").is_invalid_argument());
    assert_eq!(allocator.pool_use_count(pool), 1);
    drop(allocate(&allocator, 1000, 1));
    assert!(allocator.snapshot().iter().any(|segment| segment.pool.is_none()), "requests go elsewhere again");
}

/// `test_reserved_bytes_by_private_pools`, plain and expandable.
#[test]
fn what_each_pool_has_taken_is_told_until_the_peaks_are_reset() {
    for upstream in [FakeUpstream::new(1 << 30), FakeUpstream::with_virtual_memory(1 << 30)] {
        let allocator = DeviceAllocator::new(Arc::new(upstream), thalweg_memory::Settings::default());
        let pool = allocator.create_pool();
        let figure = |name: &str| {
            let key = format!("reserved_bytes_by_private_pools.0_{}.{name}", pool.raw());
            allocator.memory_stats().into_iter().find(|(found, _)| *found == key).map(|(_, value)| value)
        };
        assert_eq!(figure("current"), None);
        let scope = allocator.use_pool(pool).expect("the pool exists");
        let blocks =
            [1000, 5 << 20].map(|bytes| allocator.allocate(bytes, stream(1)).expect("there is room"));
        drop(scope);
        let taken = figure("current").expect("the pool has memory");
        assert_eq!(Some(taken), i64::try_from(allocator.statistics().reserved_bytes.all.current).ok());
        drop(blocks);
        assert_eq!(figure("current"), Some(taken), "it is cached");
        allocator.release_pool(pool).expect("one reference");
        allocator.empty_cache().expect("no capture is under way");
        assert_eq!(
            (figure("current"), figure("peak")),
            (Some(0), Some(taken)),
            "the pool is gone, its figures are not"
        );
        allocator.reset_peak_memory_stats();
        assert_eq!(figure("peak"), None);
    }
}
