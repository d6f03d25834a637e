//! Pinned memory in captures: which events are not touched, which memory is kept, and for how long.

use std::sync::Arc;

use thalweg_memory::fake::FakeUpstream;
use thalweg_memory::{DeviceAllocator, HostAllocator, HostBlock, PoolId, Settings, StreamFilter};

use crate::harness::stream;
use crate::host::with;
use crate::host_harness::KIB;

/// Returns allocators with and without each of the settings that must not matter here.
fn variants() -> Vec<(Arc<FakeUpstream>, Arc<HostAllocator>)> {
    let background = |on| Settings::default().with_pinned_use_background_threads(on);
    let register = |on| background(on).with_pinned_use_cuda_host_register(true);
    [background(false), background(true), register(false), register(true)]
        .map(|settings| with(1 << 30, settings))
        .into()
}

/// Returns the name of a pool that the host allocator does not know.
fn device_pool() -> PoolId {
    DeviceAllocator::new(Arc::new(FakeUpstream::new(0)), Settings::default()).create_pool()
}

/// The stream that captures.
const CAPTURING: u64 = 1;

fn begin(allocator: &HostAllocator, pool: PoolId) {
    allocator
        .begin_allocate_to_pool(pool, StreamFilter::Stream(stream(CAPTURING)))
        .expect("the pool is retained");
}

fn end(allocator: &HostAllocator, pool: PoolId) {
    allocator.end_allocate_to_pool(pool).expect("the scope is open");
}

fn allocate(allocator: &Arc<HostAllocator>) -> HostBlock {
    allocator.allocate_on(1000, stream(CAPTURING)).expect("there is room")
}

#[test]
fn pin_memory_no_use() {
    for (_, allocator) in variants() {
        let pool = allocator.create_pool();
        begin(&allocator, pool);
        let (one, other) = (allocate(&allocator), allocate(&allocator));
        assert_ne!(one.address(), other.address());
        end(&allocator, pool);
    }
}

#[test]
fn pin_memory_no_use2() {
    for (_, allocator) in variants() {
        let pool = allocator.create_pool();
        begin(&allocator, pool);
        let address = allocate(&allocator).address();
        assert_eq!(allocate(&allocator).address(), address, "no captured copy used it");
        end(&allocator, pool);
        let outside = allocate(&allocator);
        assert_ne!(outside.address(), address, "the pool's memory is the pool's");
    }
}

#[test]
fn pin_memory_use() {
    for (_, allocator) in variants() {
        let pool = allocator.create_pool();
        begin(&allocator, pool);
        let block = allocate(&allocator);
        let address = block.address();
        block.record_use(stream(CAPTURING));
        drop(block);
        let next = allocate(&allocator);
        assert_ne!(next.address(), address, "the graph copies from there at each replay");
        end(&allocator, pool);
        let outside: Vec<_> = (0..3).map(|_| allocate(&allocator)).collect();
        assert!(outside.iter().all(|block| block.address() != address));
        assert_eq!(allocator.statistics().pending.count, 1);
    }
}

#[test]
fn two_graphs() {
    for use_first in [false, true] {
        for delete_first in [false, true] {
            for (_, allocator) in variants() {
                // Both graphs hold the pool, under the name that a device allocator assigned.
                let pool = device_pool();
                allocator.retain_pool(pool).expect("a new name");
                begin(&allocator, pool);
                let first = allocate(&allocator);
                let address = first.address();
                if use_first {
                    first.record_use(stream(CAPTURING));
                }
                let mut held = Some(first);
                if delete_first {
                    held = None;
                }
                end(&allocator, pool);
                allocator.retain_pool(pool).expect("it is known");
                begin(&allocator, pool);
                let second = allocate(&allocator);
                let reused = second.address() == address;
                assert_eq!(reused, delete_first && !use_first);
                end(&allocator, pool);
                drop((held, second));
                allocator.release_pool(pool).expect("the first graph's reference");
                let shared = allocate(&allocator);
                assert_ne!(shared.address(), address, "the second graph lives");
                drop(shared);
                allocator.release_pool(pool).expect("the second graph's reference");
                assert!(allocator.release_pool(pool).expect_err("it has no reference").is_invalid_argument());
                allocator.empty_cache().expect("no capture is under way");
                assert_eq!(allocator.statistics().allocations.current, 0, "all of it is shared again");
            }
        }
    }
}

#[test]
fn a_block_from_outside_that_a_capture_uses_is_kept_for_all_graphs_that_use_it() {
    let (upstream, allocator) = with(1 << 30, Settings::default());
    let block = allocator.allocate(1000).expect("there is room");
    let address = block.address();
    block.record_use(stream(2));
    let pools = [(); 2].map(|()| allocator.create_pool());
    for pool in pools {
        begin(&allocator, pool);
        block.record_use(stream(CAPTURING));
        end(&allocator, pool);
    }
    drop(block);
    upstream.complete_all();
    let is_free = || allocator.allocate(1000).expect("there is room").address() == address;
    assert!(!is_free());
    allocator.release_pool(pools[1]).expect("one reference");
    assert!(!is_free());
    allocator.release_pool(pools[0]).expect("one reference");
    allocator.empty_cache().expect("no capture is under way");
    assert_eq!(allocator.statistics().allocations.current, 0);
}

#[test]
fn what_replays_told_of_is_waited_for_after_the_pool_is_gone() {
    let (upstream, allocator) = with(1 << 30, Settings::default());
    let pool = allocator.create_pool();
    begin(&allocator, pool);
    let block = allocate(&allocator);
    block.record_use(stream(CAPTURING));
    end(&allocator, pool);
    block.record_stream(stream(3));
    drop(block);
    assert_eq!(upstream.recorded_events(stream(3)), 1);
    allocator.release_pool(pool).expect("one reference");
    assert_eq!(allocator.statistics().pending.count, 1, "the last replay is under way");
    upstream.complete_all();
    allocator.process_events();
    assert_eq!(allocator.statistics().pending.count, 0);
    allocator.empty_cache().expect("no capture is under way");
    assert_eq!(upstream.live_host_allocations(), []);
}

#[test]
fn a_block_that_outlives_its_pool_comes_back_to_all() {
    let (upstream, allocator) = with(1 << 30, Settings::default());
    let pool = allocator.create_pool();
    begin(&allocator, pool);
    let block = allocate(&allocator);
    block.record_use(stream(CAPTURING));
    let address = block.address();
    end(&allocator, pool);
    allocator.release_pool(pool).expect("one reference");
    assert!(allocator.retain_pool(pool).expect_err("a block of it is out").is_invalid_argument());
    drop(block);
    assert_eq!(allocator.allocate(1000).expect("there is room").address(), address);
    assert_eq!(upstream.calls().allocate_host, 1);
    let statistics = allocator.statistics();
    assert_eq!((statistics.active_requests.allocated, statistics.active_requests.freed), (2, 2));
    allocator.retain_pool(pool).expect("it is forgotten, so the name is new");
}

#[test]
fn nothing_touches_events_during_a_capture() {
    for (upstream, allocator) in variants() {
        let before = allocator.allocate(1000).expect("there is room");
        before.record_use(stream(2));
        let pool = allocator.create_pool();
        begin(&allocator, pool);
        let calls = upstream.calls();
        drop(before);
        // An unrelated block, on a stream that does not capture.
        let block = allocator.allocate_on(1000, stream(2)).expect("there is room");
        block.record_use(stream(2));
        block.record_stream(stream(3));
        drop(block);
        drop(allocator.allocate_on(1000, stream(2)).expect("there is room"));
        assert!(allocator.empty_cache().expect_err("a capture is under way").is_capture());
        allocator.process_events();
        let now = upstream.calls();
        assert_eq!((now.record_event, now.query_event), (calls.record_event, calls.query_event));
        assert_eq!(now.synchronize_event, 0);
        end(&allocator, pool);
        assert_eq!(upstream.calls().record_event, calls.record_event + 2, "the bystander's uses");
        allocator.empty_cache().expect("no capture is under way");
        assert_eq!((upstream.live_host_allocations().len(), upstream.live_events()), (0, 0));
    }
}

#[test]
fn requests_go_where_the_filter_says() {
    let (_, allocator) = with(1 << 30, Settings::default());
    let (all, one) = (allocator.create_pool(), allocator.create_pool());
    let shared = allocator.allocate_on(1000, stream(1)).expect("there is room").address();
    begin(&allocator, one);
    assert_eq!(allocator.allocate_on(1000, stream(2)).expect("there is room").address(), shared);
    assert_eq!(allocator.allocate(1000).expect("there is room").address(), shared, "for no stream");
    let private = allocate(&allocator).address();
    assert_ne!(private, shared);
    assert!(
        allocator.begin_allocate_to_pool(one, StreamFilter::All).expect_err("twice").is_invalid_argument()
    );
    end(&allocator, one);
    assert!(allocator.end_allocate_to_pool(one).expect_err("twice").is_invalid_argument());
    allocator.begin_allocate_to_pool(all, StreamFilter::All).expect("the pool exists");
    let for_none = allocator.allocate(1000).expect("there is room").address();
    assert!(![shared, private].contains(&for_none));
    end(&allocator, all);
    for pool in [all, one] {
        allocator.release_pool(pool).expect("one reference");
        let begun = allocator.begin_allocate_to_pool(pool, StreamFilter::All);
        assert!(begun.expect_err("it has no reference").is_invalid_argument());
    }
}

#[test]
fn a_private_pool_that_finds_no_memory_takes_a_shared_block() {
    let (_, allocator) = with(KIB, Settings::default());
    let shared = allocator.allocate(1000).expect("there is room").address();
    let pool = allocator.create_pool();
    begin(&allocator, pool);
    let block = allocate(&allocator);
    assert_eq!(block.address(), shared);
    drop(block);
    assert!(allocator.allocate(1000).expect_err("it is the pool's now").is_out_of_memory());
    end(&allocator, pool);
    allocator.release_pool(pool).expect("one reference");
    assert_eq!(allocator.allocate(1000).expect("it is shared again").address(), shared);
}
