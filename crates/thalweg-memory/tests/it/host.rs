//! The cache of pinned host memory: which block serves which request, when, and the statistics.

use std::collections::BTreeSet;
use std::sync::Arc;

use thalweg_memory::fake::{FakeUpstream, Fault};
use thalweg_memory::{HostAllocator, HostBlock, HostMethod, Policy, Settings, StatisticEntry, Tally};

use crate::harness::{pytorch, stream};
use crate::host_harness::{KIB, MIB};

pub fn with(capacity: u64, settings: Settings) -> (Arc<FakeUpstream>, Arc<HostAllocator>) {
    let upstream = Arc::new(FakeUpstream::new(capacity));
    let allocator = HostAllocator::new(upstream.clone(), settings);
    (upstream, allocator)
}

fn allocator(capacity: u64) -> (Arc<FakeUpstream>, Arc<HostAllocator>) {
    with(capacity, Settings::default())
}

fn allocate(allocator: &Arc<HostAllocator>, bytes: u64) -> HostBlock {
    allocator.allocate(bytes).expect("there is room")
}

/// Allocates and drops a block, and returns its address.
fn address_of_next(allocator: &Arc<HostAllocator>, bytes: u64) -> u64 {
    allocate(allocator, bytes).address()
}

#[test]
fn host_memory_stats() {
    let (upstream, allocator) = allocator(1 << 30);
    let first = allocate(&allocator, 40 * KIB);
    let second = allocate(&allocator, 80 * KIB);
    assert_eq!((first.size_bytes(), second.size_bytes()), (64 * KIB, 128 * KIB));
    allocator.empty_cache().expect("no capture is under way");
    let statistics = allocator.statistics();
    assert_eq!((statistics.allocations.current, statistics.active_requests.current), (2, 2));
    assert_eq!((statistics.allocated_bytes.current, statistics.active_bytes.current), (192 * KIB, 192 * KIB));
    assert_eq!((statistics.num_host_alloc, statistics.num_host_free), (2, 0));
    assert_eq!(statistics.host_alloc_time.count, 2);
    drop(first);
    let statistics = allocator.statistics();
    assert_eq!((statistics.active_requests.current, statistics.active_requests.freed), (1, 1));
    assert_eq!(statistics.allocated_bytes.current, 192 * KIB, "it is cached");
    allocator.empty_cache().expect("no capture is under way");
    let statistics = allocator.statistics();
    assert_eq!((statistics.allocated_bytes.current, statistics.num_host_free), (128 * KIB, 1));
    assert_eq!(upstream.live_host_allocations(), [(second.address(), 128 * KIB)]);
    allocator.reset_peak_memory_stats();
    allocator.reset_accumulated_memory_stats();
    let statistics = allocator.statistics();
    assert_eq!((statistics.allocated_bytes.peak, statistics.allocated_bytes.allocated), (128 * KIB, 0));
    assert_eq!((statistics.active_bytes.peak, statistics.active_bytes.freed), (128 * KIB, 0));
    assert_eq!((statistics.host_alloc_time.count, statistics.num_host_alloc), (0, 0));
}

#[test]
fn host_memory_stats_active_after_free_no_events() {
    let (_, allocator) = allocator(1 << 30);
    for _ in ["a new block", "a cached one"] {
        drop(allocate(&allocator, 1000));
        let statistics = allocator.statistics();
        assert_eq!((statistics.active_requests.current, statistics.active_bytes.current), (0, 0));
    }
    assert_eq!(allocator.statistics().active_requests.freed, 2);
}

#[test]
fn host_memory_stats_active_after_event_drain() {
    let (upstream, allocator) = allocator(1 << 30);
    let block = allocate(&allocator, 1000);
    block.record_use(stream(1));
    drop(block);
    let statistics = allocator.statistics();
    assert_eq!(statistics.active_requests.current, 1);
    assert_eq!(statistics.pending, Tally { count: 1, bytes: 1024 });
    upstream.complete_all();
    allocator.empty_cache().expect("no capture is under way");
    let statistics = allocator.statistics();
    assert_eq!((statistics.active_requests.current, statistics.active_requests.freed), (0, 1));
    assert_eq!((statistics.active_bytes.current, statistics.active_bytes.freed), (0, 1024));
    assert_eq!(statistics.pending, Tally::default());
}

#[test]
fn the_statistics_have_pytorchs_keys() {
    let figures = [
        ("active_bytes", vec!["current", "peak", "allocated", "freed"]),
        ("active_requests", vec!["current", "peak", "allocated", "freed"]),
        ("allocated_bytes", vec!["current", "peak", "allocated", "freed"]),
        ("allocations", vec!["current", "peak", "allocated", "freed"]),
        ("host_alloc_time", vec!["total", "max", "min", "count", "avg"]),
        ("host_free_time", vec!["total", "max", "min", "count", "avg"]),
        ("num_host_alloc", vec![]),
        ("num_host_free", vec![]),
    ];
    let allocator = allocator(0).1;
    let (mut flat, mut nested) = (BTreeSet::new(), Vec::new());
    for (name, figures) in figures {
        flat.extend(figures.iter().map(|figure| format!("{name}.{figure}")));
        if figures.is_empty() {
            flat.insert(name.to_owned());
            nested.push((name, StatisticEntry::Count(0)));
        } else {
            let zeros = figures.into_iter().map(|figure| (figure, 0)).collect();
            nested.push((name, StatisticEntry::Figures(zeros)));
        }
    }
    assert_eq!(allocator.memory_stats().into_iter().map(|(key, _)| key).collect::<BTreeSet<_>>(), flat);
    assert_eq!(allocator.memory_stats_nested(), nested);
}

#[test]
fn peaks_of_what_is_pinned_are_exact_and_of_what_is_active_never_too_low() {
    let (_, allocator) = allocator(1 << 30);
    drop(allocate(&allocator, 64 * KIB));
    allocator.empty_cache().expect("no capture is under way");
    drop(allocate(&allocator, 128 * KIB));
    let statistics = allocator.statistics();
    assert_eq!(statistics.allocated_bytes.peak, 128 * KIB);
    assert_eq!(statistics.active_bytes.peak, 192 * KIB, "the sum of both buckets' peaks");
}

#[test]
fn pinned_memory_empty_cache() {
    for register in [false, true] {
        let settings = Settings::default().with_pinned_use_cuda_host_register(register);
        let (upstream, allocator) = with(1 << 30, settings);
        let live = allocate(&allocator, 100 * MIB);
        drop(allocate(&allocator, 1000));
        allocator.empty_cache().expect("no capture is under way");
        assert_eq!(upstream.live_host_allocations(), [(live.address(), live.size_bytes())]);
    }
}

#[test]
fn pinned_memory_with_cudaregister_multithread() {
    let settings = Settings::default()
        .with_pinned_use_cuda_host_register(true)
        .with_pinned_num_register_threads(8)
        .expect("a power of two");
    let (upstream, allocator) = with(1 << 30, settings);
    std::thread::scope(|scope| {
        for thread in 1..=4 {
            let allocator = &allocator;
            scope.spawn(move || drop(allocate(allocator, thread * MIB)));
        }
    });
    let methods = upstream.live_host_methods();
    assert!((1..=4).contains(&methods.len()));
    assert!(methods.iter().all(|method| *method == HostMethod::Register { threads: 8 }), "{methods:?}");
    // Registered memory is unregistered, whatever the settings are by then (the fake checks this).
    allocator.set_settings(Settings::default());
    allocator.empty_cache().expect("no capture is under way");
    assert_eq!(upstream.live_host_allocations(), []);
}

#[test]
fn caching_pinned_memory() {
    let (upstream, allocator) = allocator(1 << 30);
    let first = address_of_next(&allocator, 1000);
    let block = allocate(&allocator, 1000);
    assert_eq!(block.address(), first, "reused after the drop");
    block.record_use(stream(1));
    drop(block);
    let second = allocate(&allocator, 1000);
    assert_ne!(second.address(), first, "a copy is under way");
    upstream.complete_all();
    assert_eq!(address_of_next(&allocator, 1000), first);
}

#[test]
fn the_block_that_was_freed_last_is_used_first() {
    let (_, allocator) = allocator(1 << 30);
    let [a, b] = [(); 2].map(|()| allocate(&allocator, 1000));
    let (first, second) = (a.address(), b.address());
    drop(b);
    drop(a);
    let again = allocate(&allocator, 600);
    assert_eq!(again.address(), first);
    assert_eq!(address_of_next(&allocator, 600), second);
    let smaller = allocate(&allocator, 512);
    assert!(![first, second].contains(&smaller.address()), "another power of two");
}

#[test]
fn steady_work_asks_no_driver() {
    let (upstream, allocator) = allocator(1 << 30);
    let block = allocate(&allocator, 1000);
    block.record_use(stream(1));
    let cached = allocate(&allocator, 1000);
    drop((block, cached));
    let before = upstream.calls();
    for _ in 0..10 {
        drop(allocate(&allocator, 1000));
    }
    assert_eq!(upstream.calls(), before, "a free block serves, and the other one's event is not asked for");
}

#[test]
fn a_precise_use_does_not_wait_for_later_work() {
    let (upstream, allocator) = allocator(1 << 30);
    let [precise, marked] = [(); 2].map(|()| allocate(&allocator, 1000));
    let [first, second] = [precise.address(), marked.address()];
    precise.record_use(stream(1));
    marked.record_stream(stream(1));
    assert_eq!(upstream.recorded_events(stream(1)), 1, "the mark's event comes with the drop");
    // Later work of the stream follows, which ends with the event of an unrelated block.
    allocate(&allocator, MIB).record_use(stream(1));
    drop(marked);
    drop(precise);
    upstream.complete_next(stream(1));
    assert_eq!(allocate(&allocator, 1000).address(), first);
    allocator.process_events();
    assert_eq!(allocator.statistics().pending.count, 2);
    upstream.complete_all();
    let held = allocate(&allocator, 1000);
    assert_eq!(
        BTreeSet::from([held.address(), address_of_next(&allocator, 1000)]),
        BTreeSet::from([first, second])
    );
}

#[test]
fn many_uses_on_one_stream_are_one() {
    let (upstream, allocator) = allocator(1 << 30);
    let block = allocate(&allocator, 1000);
    for _ in 0..100 {
        block.record_use(stream(1));
        block.record_use(stream(2));
    }
    assert_eq!(upstream.live_events(), 2);
    block.record_stream(stream(2));
    assert_eq!(upstream.live_events(), 1, "the mark's event will stand behind the other");
    block.record_use(stream(2));
    assert_eq!(upstream.live_events(), 1, "a mark is enough");
    drop(block);
    assert_eq!(upstream.live_events(), 2);
    upstream.complete_stream(stream(1));
    allocator.process_events();
    assert_eq!(allocator.statistics().pending.count, 1);
    upstream.complete_stream(stream(2));
    allocator.process_events();
    assert_eq!((allocator.statistics().pending.count, upstream.live_events()), (0, 0));
}

#[test]
fn a_stuck_stream_holds_up_no_other_block() {
    let (upstream, allocator) = allocator(1 << 30);
    let (stuck, healthy) = (stream(1), stream(2));
    allocate(&allocator, 1000).record_use(stuck);
    let blocks: Vec<_> = (0..50).map(|_| allocate(&allocator, 1000)).collect();
    blocks.iter().for_each(|block| block.record_use(healthy));
    drop(blocks);
    upstream.complete_stream(healthy);
    allocator.process_events();
    assert_eq!(allocator.statistics().pending.count, 1, "only what the stuck stream uses waits");
    let pinned = allocator.statistics().allocations.current;
    let again: Vec<_> = (0..50).map(|_| allocate(&allocator, 1000)).collect();
    assert_eq!(allocator.statistics().allocations.current, pinned);
    drop(again);
}

#[test]
fn blocks_freed_in_another_order_than_they_were_used_do_not_hold_each_other_up() {
    let (upstream, allocator) = allocator(1 << 30);
    let [early, late] = [(); 2].map(|()| allocate(&allocator, 1000));
    let address = early.address();
    early.record_use(stream(1));
    late.record_use(stream(1));
    drop(late);
    drop(early);
    upstream.complete_next(stream(1));
    assert_eq!(address_of_next(&allocator, 1000), address);
}

#[test]
fn a_block_whose_event_fails_is_retired() {
    let (upstream, allocator) = allocator(1 << 30);
    let [marked, asked, healthy] = [(); 3].map(|()| allocate(&allocator, 1000));
    let lost = [marked.address(), asked.address()];
    let address = healthy.address();
    // The event of the mark cannot be recorded.
    marked.record_use(stream(2));
    marked.record_stream(stream(1));
    upstream.fail_call(1, Fault::Other);
    drop(marked);
    assert_eq!(allocator.statistics().retired, Tally { count: 1, bytes: 1024 });
    assert_eq!(upstream.live_events(), 0, "its other event is of no use");
    // The event of the next block cannot be queried; the later event on the same stream can.
    asked.record_use(stream(1));
    asked.record_use(stream(2));
    drop(asked);
    healthy.record_use(stream(1));
    drop(healthy);
    upstream.complete_all();
    upstream.fail_call(1, Fault::Other);
    allocator.process_events();
    let statistics = allocator.statistics();
    assert_eq!(statistics.retired, Tally { count: 2, bytes: 2048 });
    assert_eq!((statistics.active_requests.current, statistics.pending.count), (0, 0));
    assert_eq!(upstream.live_events(), 0);
    assert_eq!(address_of_next(&allocator, 1000), address);
    let blocks: Vec<_> = (0..4).map(|_| allocate(&allocator, 1000)).collect();
    assert!(blocks.iter().all(|block| !lost.contains(&block.address())));
    drop(blocks);
    allocator.empty_cache().expect("no capture is under way");
    assert_eq!(allocator.statistics().allocations.current, 2, "what is lost stays pinned");
}

#[test]
fn a_use_that_cannot_be_recorded_at_once_is_recorded_at_the_drop() {
    let (upstream, allocator) = allocator(1 << 30);
    let block = allocate(&allocator, 1000);
    block.record_use(stream(1));
    upstream.fail_call(1, Fault::Other);
    block.record_use(stream(1));
    assert_eq!(upstream.live_events(), 0, "the earlier event stands before the use");
    drop(block);
    assert_eq!((upstream.live_events(), allocator.statistics().retired.count), (1, 0));
}

#[test]
fn max_round_threshold() {
    let settings = pytorch().with_pinned_max_round_threshold_bytes(MIB).expect("a whole number of MiB");
    let (_, allocator) = with(1 << 40, settings);
    assert_eq!(allocate(&allocator, 600 * KIB).size_bytes(), MIB);
    assert_eq!(allocate(&allocator, MIB + 1).size_bytes(), MIB + 1);
}

#[test]
fn max_cached_size() {
    let settings = pytorch().with_pinned_max_cached_size_bytes(4 * MIB).expect("a whole number of MiB");
    let (upstream, allocator) = with(1 << 40, settings);
    let large = allocate(&allocator, 5 * MIB);
    assert_eq!(large.size_bytes(), 5 * MIB, "what is not cached is not rounded");
    large.record_use(stream(1));
    drop(large);
    drop(allocate(&allocator, 3 * MIB));
    allocator.process_events();
    assert_eq!(upstream.live_host_allocations().len(), 2, "a copy is under way");
    upstream.complete_all();
    allocator.process_events();
    assert_eq!(upstream.calls().free_host, 1);
    assert_eq!(allocator.statistics().allocated_bytes.current, 4 * MIB, "the smaller one is cached");
    let large = allocate(&allocator, 5 * MIB);
    drop(large);
    assert_eq!(upstream.calls().free_host, 1, "a drop waits for nothing");
    drop(allocate(&allocator, 1));
    assert_eq!(upstream.calls().free_host, 2, "the next call gives it back");
}

#[test]
fn both_thresholds() {
    let settings = pytorch()
        .with_pinned_max_round_threshold_bytes(2 * MIB)
        .and_then(|settings| settings.with_pinned_max_cached_size_bytes(8 * MIB))
        .expect("whole numbers of MiB");
    let (_, allocator) = with(1 << 40, settings);
    for (requested, size, cached) in
        [(3 * MIB / 2, 2 * MIB, true), (3 * MIB, 3 * MIB, true), (9 * MIB, 9 * MIB, false)]
    {
        let block = allocate(&allocator, requested);
        assert_eq!(block.size_bytes(), size);
        drop(block);
        let pinned = allocator.statistics().num_host_alloc;
        drop(allocate(&allocator, requested));
        assert_eq!(allocator.statistics().num_host_alloc == pinned, cached, "{requested}");
    }
}

#[test]
fn round_threshold_larger_than_cached_size() {
    let settings = pytorch()
        .with_pinned_max_round_threshold_bytes(64 * MIB)
        .and_then(|settings| settings.with_pinned_max_cached_size_bytes(4 * MIB))
        .expect("whole numbers of MiB");
    let (_, allocator) = with(1 << 40, settings);
    assert_eq!(allocate(&allocator, 5 * MIB).size_bytes(), 5 * MIB, "the cache's limit wins");
    assert_eq!(allocate(&allocator, 3 * MIB).size_bytes(), 4 * MIB);
}

#[test]
fn unrounded_bucket_no_undersized_reuse() {
    for settings in [pytorch(), Settings::default()] {
        let settings = settings.with_pinned_max_round_threshold_bytes(MIB).expect("a whole number of MiB");
        let (_, allocator) = with(1 << 40, settings);
        let small = address_of_next(&allocator, 150 * MIB);
        let large = allocate(&allocator, 200 * MIB);
        assert_ne!(large.address(), small);
        assert!(large.size_bytes() >= 200 * MIB);
    }
}

#[test]
fn rounding_wastes_an_eighth_at_most() {
    let (_, ours) = allocator(1 << 50);
    let (_, pytorch) = with(1 << 50, pytorch());
    // Cached blocks of all sizes change nothing.
    drop((1..100).map(|step| allocate(&ours, step * 5 * MIB)).collect::<Vec<_>>());
    let requested = 20_890 * MIB;
    assert_eq!(allocate(&pytorch, requested).size_bytes(), 32 << 30);
    for bytes in [requested, MIB + 1, 33 * MIB, 63 * MIB, 64 * MIB + 1, 129 * MIB] {
        let size = allocate(&ours, bytes).size_bytes();
        assert!(size >= bytes && (size - bytes) * 8 <= bytes, "{bytes} became {size}");
    }
}

#[test]
fn the_reserve_is_pinned_once_and_serves_until_it_is_used_up() {
    let settings =
        Settings::default().with_pinned_reserve_segment_size_bytes(MIB).expect("more than nothing");
    let (upstream, allocator) = with(1 << 30, settings);
    assert_eq!(upstream.live_host_allocations(), []);
    let blocks = [1, 256 * KIB, 512 * KIB].map(|bytes| allocate(&allocator, bytes));
    let reserve = upstream.live_host_allocations();
    assert_eq!(reserve, [(blocks[0].address(), MIB)]);
    let offsets = blocks.each_ref().map(|block| block.address() - reserve[0].0);
    assert_eq!(offsets, [0, 4 * KIB, 260 * KIB], "in granules of 4 KiB");
    let statistics = allocator.statistics();
    assert_eq!((statistics.reserve_segment_bytes, statistics.reserve_segment_used_bytes), (MIB, 772 * KIB));
    assert_eq!((statistics.allocations.current, statistics.allocated_bytes.current), (3, 768 * KIB + 1));
    let beyond = allocate(&allocator, 512 * KIB);
    assert_eq!(upstream.live_host_allocations().len(), 2);
    drop((beyond, blocks));
    allocator.empty_cache().expect("no capture is under way");
    assert_eq!(upstream.live_host_allocations(), reserve, "the reserve stays");
    assert_eq!(allocate(&allocator, 512 * KIB).address() - reserve[0].0, 260 * KIB, "and is cached");
    drop(allocator);
    assert_eq!(upstream.live_host_allocations(), []);
}

#[test]
fn a_block_of_the_reserve_is_kept_however_large() {
    let settings = Settings::default()
        .with_pinned_reserve_segment_size_bytes(4 * MIB)
        .and_then(|settings| settings.with_pinned_max_cached_size_bytes(MIB))
        .expect("whole numbers of MiB");
    let (upstream, allocator) = with(1 << 30, settings);
    let block = allocate(&allocator, 2 * MIB);
    let (address, reserve) = (block.address(), upstream.live_host_allocations());
    drop(block);
    assert_eq!(upstream.live_host_allocations(), reserve, "a part of it cannot go back");
    assert_eq!(allocate(&allocator, 2 * MIB).address(), address);
    assert_eq!(upstream.calls().allocate_host, 1);
    // Such a block is not kept unless it comes from the reserve.
    let blocks = [(); 2].map(|()| allocate(&allocator, 4 * MIB));
    drop(blocks);
    drop(allocate(&allocator, 4 * MIB));
    assert_eq!(upstream.calls().allocate_host, 4);
}

#[test]
fn a_reserve_that_cannot_be_had_is_done_without() {
    let settings = Settings::default().with_pinned_reserve_segment_size_bytes(1 << 40).expect("enough");
    let (upstream, allocator) = with(1 << 30, settings);
    let _blocks = [(); 2].map(|()| allocate(&allocator, 1000));
    assert_eq!(upstream.calls().allocate_host, 3, "one attempt");
    assert_eq!(allocator.statistics().reserve_segment_bytes, 0);
}

#[test]
fn free_catch_all() {
    for catch_all in [false, true] {
        let (upstream, allocator) = with(1 << 30, Settings::default().with_pinned_free_catch_all(catch_all));
        drop([(); 3].map(|()| allocate(&allocator, 1000)));
        upstream.fail_call(2, Fault::Other);
        let outcome = allocator.empty_cache();
        let statistics = allocator.statistics();
        if catch_all {
            outcome.expect("failures are swallowed");
            assert_eq!((statistics.retired.count, statistics.allocations.current), (1, 1));
        } else {
            assert!(outcome.expect_err("the call was made to fail").is_upstream());
            assert_eq!((statistics.retired.count, statistics.allocations.current), (0, 2));
            allocator.empty_cache().expect("the next call works");
            assert_eq!(upstream.live_host_allocations(), []);
        }
    }
}

#[test]
fn under_pressure_uses_are_waited_for_and_the_cache_goes_back() {
    let (upstream, allocator) = allocator(64 * KIB);
    let block = allocate(&allocator, 64 * KIB);
    let address = block.address();
    block.record_use(stream(1));
    drop(block);
    let block = allocator.allocate(40 * KIB).expect("there is room after waiting");
    assert_eq!((block.address(), upstream.calls().free_host), (address, 0));
    drop(block);
    let small = allocator.allocate(KIB).expect("there is room after the cache went back");
    assert_eq!(upstream.live_host_allocations(), [(small.address(), KIB)]);
    let error = allocator.allocate(64 * KIB).expect_err("there is no room");
    assert!(error.is_out_of_memory());
    assert!(error.to_string().starts_with("out of memory. Tried to allocate 64.00 KiB."), "{error}");
    assert!(allocator.allocate(u64::MAX).expect_err("there is not so much").is_out_of_memory());
    assert!(allocator.allocate(0).expect("nothing is needed").is_null());
}

#[test]
fn under_pressure_no_request_waits_that_can_be_served_without() {
    let (upstream, allocator) = allocator(2 * MIB);
    let [stuck, done] = [(); 2].map(|()| allocate(&allocator, 512 * KIB));
    let idle = allocate(&allocator, MIB);
    stuck.record_use(stream(1));
    done.record_use(stream(2));
    drop((stuck, done, idle));
    upstream.complete_stream(stream(2));
    let _block = allocator.allocate(256 * KIB).expect("there is room after the cache went back");
    assert_eq!(upstream.calls().synchronize_event, 0);
    assert_eq!(allocator.statistics().pending.count, 1);
}

#[test]
fn a_request_fails_only_if_no_free_block_is_large_enough() {
    // Memory of the reserve cannot be returned; a request of another class gets it nevertheless, if there is nothing else.
    let settings =
        Settings::default().with_pinned_reserve_segment_size_bytes(MIB).expect("more than nothing");
    let (_, allocator) = with(MIB, settings);
    let large = address_of_next(&allocator, MIB);
    let small = allocator.allocate(1000).expect("a free block is large enough");
    assert_eq!((small.address(), small.size_bytes()), (large, MIB));
    assert!(allocator.allocate(1000).expect_err("nothing is free").is_out_of_memory());
}

#[test]
fn settings_may_change_at_any_time() {
    let (_, allocator) = allocator(1 << 40);
    let block = allocate(&allocator, 9 * MIB);
    let address = block.address();
    drop(block);
    allocator.set_settings(pytorch());
    assert!(allocator.settings().policy() == Policy::PyTorch);
    let block = allocate(&allocator, 9 * MIB);
    assert_eq!((block.address(), block.size_bytes()), (address, 9 * MIB), "large enough, and in the bucket");
    let other = allocate(&allocator, 9 * MIB);
    assert_eq!(other.size_bytes(), 16 * MIB);
    drop((block, other));
    allocator.set_settings(Settings::default());
    assert_eq!(allocate(&allocator, 9 * MIB).size_bytes(), 9 * MIB, "the smallest that is large enough");
}
