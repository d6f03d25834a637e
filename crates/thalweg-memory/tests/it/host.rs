//! The cache of pinned host memory.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use thalweg_memory::fake::FakeUpstream;
use thalweg_memory::{HostAllocator, HostBlock};

use crate::harness::{Danger, STREAMS, stream};
use crate::random::runner;

const KIB: u64 = 1 << 10;

fn allocator(capacity: u64) -> (Arc<FakeUpstream>, Arc<HostAllocator>) {
    let upstream = Arc::new(FakeUpstream::new(capacity));
    let allocator = HostAllocator::new(upstream.clone());
    (upstream, allocator)
}

#[test]
fn statistics_of_two_blocks() {
    let (upstream, allocator) = allocator(1 << 30);
    let first = allocator.allocate(40 * KIB).expect("there is room");
    let second = allocator.allocate(80 * KIB).expect("there is room");
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
    assert_eq!(statistics.host_alloc_time.count, 0);
}

#[test]
fn the_statistics_have_pytorchs_keys() {
    let mut expected = BTreeSet::from(["num_host_alloc".to_owned(), "num_host_free".to_owned()]);
    for name in ["allocations", "active_requests", "allocated_bytes", "active_bytes"] {
        expected.extend(["current", "peak", "allocated", "freed"].map(|figure| format!("{name}.{figure}")));
    }
    for name in ["host_alloc_time", "host_free_time"] {
        expected.extend(["total", "max", "min", "count", "avg"].map(|figure| format!("{name}.{figure}")));
    }
    let stats = allocator(0).1.memory_stats();
    assert_eq!(stats.into_iter().map(|(key, _)| key).collect::<BTreeSet<_>>(), expected);
}

#[test]
fn the_block_that_was_freed_last_is_used_first() {
    let (_, allocator) = allocator(1 << 30);
    let [a, b] = [(); 2].map(|()| allocator.allocate(1000).expect("there is room"));
    let (first, second) = (a.address(), b.address());
    drop(b);
    drop(a);
    let again = allocator.allocate(600).expect("there is room");
    assert_eq!(again.address(), first);
    assert_eq!(allocator.allocate(600).expect("there is room").address(), second);
    let smaller = allocator.allocate(512).expect("there is room");
    assert!(![first, second].contains(&smaller.address()), "another power of two");
}

#[test]
fn a_block_waits_for_every_stream_that_uses_it() {
    let (upstream, allocator) = allocator(1 << 30);
    let block = allocator.allocate(1000).expect("there is room");
    let address = block.address();
    for on in [1, 2, 1] {
        block.record_use(stream(on));
    }
    drop(block);
    assert_eq!(upstream.calls().record_event, 2);
    assert_eq!(allocator.statistics().active_requests.current, 1);
    upstream.complete_stream(stream(1));
    assert_ne!(allocator.allocate(1000).expect("there is room").address(), address);
    upstream.complete_stream(stream(2));
    // The other block is free too, but this one has just come back.
    assert_eq!(allocator.allocate(1000).expect("there is room").address(), address);
}

#[test]
fn nothing_is_recorded_during_a_capture() {
    let (upstream, allocator) = allocator(1 << 30);
    allocator.begin_capture();
    let block = allocator.allocate(1000).expect("there is room");
    block.record_use(stream(1));
    drop(block);
    drop(allocator.allocate(1000).expect("there is room"));
    assert!(allocator.empty_cache().expect_err("a capture is under way").is_capture());
    assert_eq!((upstream.calls().record_event, upstream.calls().query_event), (0, 0));
    allocator.end_capture();
    assert_eq!(upstream.calls().record_event, 1);
    allocator.empty_cache().expect("no capture is under way");
    assert_eq!(upstream.live_host_allocations(), []);
}

#[test]
fn under_pressure_uses_are_waited_for_and_the_cache_goes_back() {
    let (upstream, allocator) = allocator(64 * KIB);
    let block = allocator.allocate(64 * KIB).expect("there is room");
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
    assert!(allocator.allocate(u64::MAX).expect_err("nobody has that").is_out_of_memory());
    assert!(allocator.allocate(0).expect("nothing is needed").is_null());
}

#[test]
fn random_programs_never_reuse_what_is_used() {
    let step = (0..5u8, 1..=100 * KIB, any::<usize>(), 1..=STREAMS);
    let program = prop::collection::vec(step, 1..150);
    let outcome = runner(200).run(&program, |program| {
        let (upstream, allocator) = allocator(1 << 20);
        let mut held: Vec<(HostBlock, Vec<u64>)> = Vec::new();
        let mut dangers: Vec<Danger> = Vec::new();
        for (kind, bytes, index, on) in program {
            match kind {
                0 | 1 => {
                    let Ok(block) = allocator.allocate(bytes) else { continue };
                    let overlaps = |address: u64, size: u64| {
                        block.address() < address + size && address < block.address() + block.size_bytes()
                    };
                    assert!(block.size_bytes() >= bytes);
                    assert!(!held.iter().any(|(other, _)| overlaps(other.address(), other.size_bytes())));
                    dangers.retain(|danger| !danger.is_past(&upstream));
                    let clear = |danger: &Danger| !danger.overlaps(block.address(), block.size_bytes());
                    assert!(dangers.iter().all(clear), "{block:?} is still used");
                    held.push((block, Vec::new()));
                }
                2 if !held.is_empty() => {
                    let at = index % held.len();
                    held[at].0.record_use(stream(on));
                    held[at].1.push(on);
                }
                3 if !held.is_empty() => {
                    let (block, uses) = held.swap_remove(index % held.len());
                    dangers.push(Danger::new(&upstream, block.address(), block.size_bytes(), &uses));
                }
                _ => upstream.complete_next(stream(on)),
            }
            let statistics = allocator.statistics();
            let out: u64 = upstream.live_host_allocations().iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(statistics.allocated_bytes.current, out);
            assert!(statistics.active_requests.current >= held.len() as u64);
        }
        held.clear();
        allocator.empty_cache().expect("no capture is under way");
        assert_eq!(allocator.statistics().active_bytes.current, 0);
        assert_eq!((upstream.live_host_allocations().len(), upstream.live_events()), (0, 0));
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}
