//! `record_use`: its guarantees, one per test.

use std::sync::Arc;

use thalweg_memory::fake::{FakeUpstream, Fault};
use thalweg_memory::{BlockState, CrossStreamReuse, DeviceAllocator, Settings};

use crate::harness::{small_pages, stream};

const MIB: u64 = 1 << 20;

fn allocator(settings: Settings) -> (Arc<FakeUpstream>, Arc<DeviceAllocator>) {
    let upstream = Arc::new(FakeUpstream::with_virtual_memory(1 << 30));
    (upstream.clone(), DeviceAllocator::new(upstream, settings))
}

/// Returns settings under which memory moves between streams only after `record_use`.
fn alone() -> Settings {
    small_pages().with_cross_stream_reuse(CrossStreamReuse::Never)
}

#[test]
fn on_the_blocks_own_stream_it_is_a_no_op() {
    let (upstream, allocator) = allocator(alone());
    let block = allocator.allocate(4 * MIB, stream(1)).expect("there is room");
    let address = block.address();
    block.record_use(stream(1));
    assert_eq!(upstream.calls().record_event, 0);
    drop(block);
    let again = allocator.allocate(4 * MIB, stream(1)).expect("there is room");
    assert_eq!((again.address(), upstream.live_events()), (address, 0));
}

#[test]
fn many_uses_of_a_stream_are_as_one() {
    let (upstream, allocator) = allocator(alone());
    let block = allocator.allocate(4 * MIB, stream(1)).expect("there is room");
    for round in 0..1000 {
        block.record_use(stream(2 + round % 2));
        assert!(upstream.live_events() <= 2);
    }
    drop(block);
    assert_eq!(upstream.live_events(), 2, "one per stream waits");
    // The last use counts, not the first.
    (0..499).for_each(|_| upstream.complete_next(stream(2)));
    upstream.complete_stream(stream(3));
    allocator.process_events();
    assert_eq!(allocator.statistics().active.all.current, 1);
    upstream.complete_next(stream(2));
    allocator.process_events();
    assert_eq!((allocator.statistics().active.all.current, upstream.live_events()), (0, 0));
}

#[test]
fn with_record_stream_the_later_of_both_counts() {
    for precise_first in [true, false] {
        let (upstream, allocator) = allocator(alone());
        let block = allocator.allocate(4 * MIB, stream(1)).expect("there is room");
        if precise_first {
            block.record_use(stream(2));
            block.record_stream(stream(2));
        } else {
            block.record_stream(stream(2));
            block.record_use(stream(2));
        }
        upstream.complete_stream(stream(2));
        drop(block);
        assert_eq!(upstream.live_events(), 1, "the event at the drop stands for both");
        allocator.process_events();
        assert_eq!(allocator.statistics().active.all.current, 1);
        upstream.complete_stream(stream(2));
        allocator.process_events();
        assert_eq!((allocator.statistics().active.all.current, upstream.live_events()), (0, 0));
    }
}

#[test]
fn a_block_may_be_dropped_on_another_thread_long_after() {
    let (upstream, allocator) = allocator(alone());
    let block = allocator.allocate(4 * MIB, stream(1)).expect("there is room");
    let address = block.address();
    block.record_use(stream(2));
    upstream.complete_stream(stream(2));
    std::thread::spawn(move || drop(block)).join().expect("a drop does not panic");
    let again = allocator.allocate(4 * MIB, stream(1)).expect("there is room");
    assert_eq!(again.address(), address);
    assert_eq!((upstream.calls().record_event, upstream.calls().synchronize_event), (1, 0));
}

#[test]
fn reuse_waits_on_the_device_and_not_on_the_host() {
    let (upstream, allocator) = allocator(alone().with_record_use_depth(1));
    let block = allocator.allocate(4 * MIB, stream(1)).expect("there is room");
    let address = block.address();
    block.record_use(stream(2));
    drop(block);
    let again = allocator.allocate(4 * MIB, stream(1)).expect("there is room");
    assert_eq!(again.address(), address, "the use has not passed, but is ordered before the reuse");
    let calls = upstream.calls();
    assert_eq!((calls.wait_event, calls.synchronize_event, calls.synchronize_stream), (1, 0, 0));
    assert_eq!(allocator.statistics().num_cross_stream_waits, 1);
}

#[test]
fn the_depth_says_how_many_wait_before_the_stream_does() {
    for depth in 1..4usize {
        let (upstream, allocator) = allocator(alone().with_record_use_depth(depth as u64));
        let mut addresses = Vec::new();
        for waiting in 0..6 {
            let block = allocator.allocate(4 * MIB, stream(1)).expect("there is room");
            let reused = addresses.contains(&block.address());
            assert_eq!(reused, waiting >= depth, "with {waiting} blocks behind a depth of {depth}");
            addresses.push(block.address());
            block.record_use(stream(2));
        }
        assert_eq!(upstream.calls().wait_event as usize, 6 - depth);
    }
}

#[test]
fn pending_uses_are_seen_in_statistics_and_snapshots() {
    let (upstream, allocator) = allocator(alone());
    let block = allocator.allocate(4 * MIB, stream(1)).expect("there is room");
    block.record_use(stream(2));
    assert_eq!(allocator.statistics().pending_use_bytes, 0, "it is not free yet");
    drop(block);
    let statistics = allocator.statistics();
    assert_eq!((statistics.pending_use_bytes, statistics.allocated_bytes.all.current), (4 * MIB, 0));
    let states = || -> Vec<_> {
        allocator.snapshot().iter().flat_map(|one| &one.blocks).map(|block| block.state).collect()
    };
    assert_eq!(states(), [BlockState::ActivePendingFree]);
    upstream.complete_all();
    allocator.process_events();
    assert_eq!(allocator.statistics().pending_use_bytes, 0);
    assert_eq!(states(), [BlockState::Inactive]);
}

#[test]
fn a_slow_stream_holds_no_other_up() {
    // pytorch#71616: with one queue of events for all, a stream that was done waited behind one that was not.
    let (upstream, allocator) = allocator(alone());
    let blocks = [2, 3, 2, 3].map(|on| {
        let block = allocator.allocate(4 * MIB, stream(1)).expect("there is room");
        block.record_use(stream(on));
        block
    });
    drop(blocks);
    upstream.complete_stream(stream(3));
    allocator.process_events();
    assert_eq!(allocator.statistics().active.all.current, 2, "stream 2 is slow, stream 3 is done");
}

#[test]
fn a_use_whose_event_cannot_be_recorded_is_noted_for_the_drop() {
    for fault in [Fault::OutOfMemory, Fault::Other] {
        let (upstream, allocator) = allocator(alone());
        let block = allocator.allocate(4 * MIB, stream(1)).expect("there is room");
        upstream.fail_call(1, fault);
        block.record_use(stream(2));
        assert_eq!(upstream.live_events(), 0);
        drop(block);
        assert_eq!(upstream.live_events(), 1, "the event at the drop stands for the use");
        assert_eq!(allocator.statistics().pending_use_bytes, 4 * MIB);
        upstream.complete_all();
        allocator.process_events();
        assert_eq!(allocator.statistics().pending_use_bytes, 0);
    }
}

/// PyTorch's programs may free memory that another stream still reads, unrecorded, if the memory's own stream waits for that
/// before it next requests memory. Meanwhile its memory must not move to a third stream, or be returned to the driver.
#[test]
fn free_memory_keeps_its_stream_until_unrecorded_users_are_done() {
    let [home, reader, third] = [1, 2, 3].map(stream);
    for unrecorded in [false, true] {
        let (upstream, allocator) = allocator(small_pages());
        if unrecorded {
            [home, reader, third].into_iter().for_each(|user| allocator.add_unrecorded_user(user));
        }
        let reserved = || allocator.statistics().reserved_bytes.all.current;
        drop(allocator.allocate(40 * MIB, home).expect("there is room"));
        // The first request finds that nothing is known to be idle.
        drop(allocator.allocate(2 * MIB, third).expect("there is room"));
        let before = reserved();
        upstream.complete_stream(home);
        let x = allocator.allocate(38 * MIB, third).expect("there is room");
        assert_eq!(reserved() > before, unrecorded, "with the reader at work: {} of {before}", reserved());
        drop(x);
        upstream.complete_stream(reader);
        upstream.complete_stream(third);
        let before = reserved();
        let y = allocator.allocate(60 * MIB, third).expect("there is room");
        assert!(reserved() <= before.max(60 * MIB), "all are done: {} of {before}", reserved());
        drop(y);
        let waited = upstream.calls().synchronize_stream;
        allocator.empty_cache().expect("the upstream works");
        assert_eq!(upstream.calls().synchronize_stream - waited > 3, unrecorded, "every user is waited for");
        assert_eq!((reserved(), upstream.live_events()), (0, 0));
    }
}

/// No event can be recorded on a stream that may have ended. So memory that such a stream may be reading does not move after
/// events, nor does its own, and it gets none of another stream.
#[test]
fn memory_is_not_handed_on_past_a_stream_that_may_end() {
    let [home, transient, third] = [1, 2, 3].map(stream);
    for (from, to, unrecorded) in [(home, third, true), (transient, third, false), (home, transient, false)] {
        for growing in ["", "expandable_segments:False,"] {
            for reuse in ["idle", "ordered"] {
                let text = format!("{growing}cross_stream_reuse:{reuse}");
                let (upstream, allocator) = allocator(small_pages().apply(&text).expect("it is right"));
                if unrecorded {
                    [home, transient, third].into_iter().for_each(|user| allocator.add_unrecorded_user(user));
                }
                upstream.make_transient(transient);
                let reserved = || allocator.statistics().reserved_bytes.all.current;
                drop(allocator.allocate(40 * MIB, from).expect("there is room"));
                drop(allocator.allocate(2 * MIB, to).expect("there is room"));
                upstream.complete_all();
                let before = reserved();
                let x = allocator.allocate(38 * MIB, to).expect("there is room");
                assert!(reserved() >= before + 36 * MIB, "{from:?} to {to:?}, {text}: {}", reserved());
                drop(x);
                allocator.empty_cache().expect("the upstream works");
                assert_eq!(
                    (reserved(), upstream.live_events(), upstream.recorded_events(transient)),
                    (0, 0, 0)
                );
            }
        }
    }
}
