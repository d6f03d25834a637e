//! Device memory by address.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use thalweg_memory::fake::FakeUpstream;
use thalweg_memory::{Block, BlockState, DeviceAllocator, RawBlock, Settings};

use crate::harness::{pytorch, stream};

const MIB: u64 = 1 << 20;

fn allocator() -> (Arc<FakeUpstream>, Arc<DeviceAllocator>) {
    let upstream = Arc::new(FakeUpstream::new(1 << 30));
    let allocator = DeviceAllocator::new(upstream.clone(), pytorch());
    (upstream, allocator)
}

/// As `test_memory_allocation` and `test_cachingAllocator_raw_alloc` have it.
#[test]
fn raw_memory_is_counted_as_any_other_and_served_from_the_cache() {
    let (upstream, allocator) = allocator();
    let allocated = || allocator.statistics().allocated_bytes.all.current;
    let address = allocator.allocate_raw(1000, stream(1)).expect("there is room");
    assert_eq!((allocated(), allocator.statistics().requested_bytes.all.current), (1024, 1000));
    allocator.free_raw(address).expect("it is live");
    assert_eq!(allocated(), 0);
    assert_eq!(allocator.allocate_raw(900, stream(1)).expect("there is room"), address);
    assert_eq!(upstream.calls().allocate, 1);
    allocator.free_raw(address).expect("it is live");
}

#[test]
fn nothing_has_the_address_zero_and_frees_as_often_as_one_likes() {
    let (upstream, allocator) = allocator();
    assert_eq!(allocator.allocate_raw(0, stream(1)).expect("nothing is needed"), 0);
    for _ in 0..2 {
        allocator.free_raw(0).expect("nothing is freed");
    }
    assert_eq!(allocator.raw_block_containing(0), None);
    assert_eq!(upstream.calls().fallible(), 0);
}

#[test]
fn an_address_that_is_not_live_is_refused_with_its_number() {
    let (_, allocator) = allocator();
    let address = allocator.allocate_raw(4096, stream(1)).expect("there is room");
    let held = allocator.allocate(4096, stream(1)).expect("there is room");
    let inside = allocator.free_raw(address + 512).expect_err("it does not begin there");
    let foreign = allocator.free_raw(held.address()).expect_err("a Rust block is nobody else's to free");
    allocator.free_raw(address).expect("it is live");
    let twice = allocator.free_raw(address).expect_err("it is freed");
    for (error, address) in [(inside, address + 512), (foreign, held.address()), (twice, address)] {
        assert!(error.is_invalid_argument());
        assert_eq!(
            error.to_string(),
            format!(
                "the address given to free_raw is {address:#x}, but must be in a block that allocate_raw returned and \
                 free_raw has not freed (at its beginning, to free it)"
            )
        );
    }
    for error in
        [allocator.record_stream_raw(address, stream(2)), allocator.record_use_raw(address, stream(2))]
    {
        let error = error.expect_err("it is freed");
        assert!(error.to_string().contains(&format!("{address:#x}")), "{error}");
    }
}

#[test]
fn views_find_their_block_and_its_segment() {
    let (_, allocator) = allocator();
    let first = allocator.allocate_raw(3000, stream(1)).expect("there is room");
    let second = allocator.allocate_raw(5000, stream(1)).expect("there is room");
    for (address, size_bytes, requested_bytes) in [(first, 3072, 3000), (second, 5120, 5000)] {
        for inside in [0, 1, size_bytes - 1] {
            let found = allocator.raw_block_containing(address + inside);
            assert_eq!(found, Some(RawBlock { address, size_bytes, requested_bytes }));
            let base = allocator.base_allocation(address + inside).expect("it is live");
            assert_eq!((base.address, base.size_bytes, base.is_expandable), (first, 2 * MIB, false));
            assert_eq!(base.stream, stream(1));
        }
    }
    assert_eq!(allocator.raw_block_containing(second + 5120), None);
    assert_eq!(allocator.base_allocation(first - 1), None);
    let growing = Settings::parse("expandable_segments:True").expect("it is right");
    let allocator = DeviceAllocator::new(Arc::new(FakeUpstream::with_virtual_memory(1 << 30)), growing);
    let address = allocator.allocate_raw(3000, stream(1)).expect("there is room");
    assert!(allocator.base_allocation(address).expect("it is live").is_expandable);
}

#[test]
fn uses_are_told_by_any_address_in_the_block() {
    let (upstream, allocator) = allocator();
    let pending = || allocator.statistics().pending_use_bytes;
    // A stream that nothing was ever allocated on will do.
    let foreign = stream(0x7fff_dead_0000);
    for (address, precise) in [(4096, false), (8192, true)] {
        let address = allocator.allocate_raw(address, stream(1)).expect("there is room");
        let record =
            if precise { DeviceAllocator::record_use_raw } else { DeviceAllocator::record_stream_raw };
        record(&allocator, address + 7, foreign).expect("a view of the block");
        assert_eq!(upstream.recorded_events(foreign), u64::from(precise) * 2, "at the call, or at the free");
        allocator.free_raw(address).expect("it is live");
        assert!(pending() > 0);
        upstream.complete_all();
        allocator.process_events();
        assert_eq!(pending(), 0);
    }
}

#[test]
fn raw_memory_outlives_the_allocator() {
    let (upstream, allocator) = allocator();
    let kept = allocator.allocate_raw(1000, stream(1)).expect("there is room");
    let freed = allocator.allocate_raw(30 * MIB, stream(2)).expect("there is room");
    allocator.free_raw(freed).expect("it is live");
    drop(allocator);
    assert_eq!(upstream.live_segments(), [(kept, 2 * MIB)], "a C caller may still use it");
}

#[test]
fn a_block_becomes_a_raw_one() {
    let (_, allocator) = allocator();
    let block = allocator.allocate(1000, stream(1)).expect("there is room");
    let address = block.address();
    assert_eq!(allocator.register_raw(block), address);
    assert_eq!(allocator.statistics().allocation.all.current, 1);
    allocator.free_raw(address).expect("it was registered");
    assert_eq!(allocator.statistics().allocation.all.current, 0);
    let null = allocator.allocate(0, stream(1)).expect("nothing is needed");
    assert_eq!(allocator.register_raw(null), 0);
}

#[test]
fn raw_memory_comes_and_goes_on_any_thread() {
    let (upstream, allocator) = allocator();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for thread in 1..=4u64 {
            let (allocator, sender) = (&allocator, sender.clone());
            scope.spawn(move || {
                for round in 0..1000 {
                    let bytes = 1 + round * 977 % 10_000;
                    let address = allocator.allocate_raw(bytes, stream(thread)).expect("there is room");
                    allocator.record_stream_raw(address + bytes - 1, stream(5)).expect("it is live");
                    sender.send(address).expect("somebody listens");
                }
            });
        }
        drop(sender);
        let allocator = &allocator;
        scope.spawn(move || {
            receiver.iter().for_each(|address| allocator.free_raw(address).expect("it is live"))
        });
    });
    upstream.complete_all();
    allocator.process_events();
    allocator.empty_cache().expect("no capture is under way");
    assert_eq!((upstream.live_segments().len(), upstream.live_events()), (0, 0));
}

proptest! {
    /// Against a map of what is out: every address is found, or not, as the map has it.
    #[test]
    fn addresses_are_found_as_in_a_plain_map(
        steps in prop::collection::vec((0..4u8, 1..3 * MIB, 1..3u64, any::<prop::sample::Index>()), 1..80)
    ) {
        let (_, allocator) = allocator();
        let mut raw: BTreeMap<u64, u64> = BTreeMap::new();
        let mut held: Vec<Block> = Vec::new();
        for (kind, bytes, on, index) in steps {
            match kind {
                0 | 1 => {
                    let address = allocator.allocate_raw(bytes, stream(on)).expect("there is room");
                    prop_assert!(raw.insert(address, bytes).is_none());
                }
                2 => held.push(allocator.allocate(bytes, stream(on)).expect("there is room")),
                _ if raw.is_empty() => {}
                _ => {
                    let address = *index.get(&raw.keys().copied().collect::<Vec<_>>());
                    raw.remove(&address);
                    prop_assert!(allocator.free_raw(address).is_ok());
                }
            }
            let blocks = allocator.snapshot().into_iter().flat_map(|segment| segment.blocks);
            for block in blocks {
                let expected = raw.get(&block.address).copied();
                let is_held = held.iter().any(|held| held.address() == block.address);
                let found = allocator.raw_block_containing(block.address + block.size_bytes - 1);
                prop_assert_eq!(found.map(|found| (found.address, found.requested_bytes)),
                    expected.map(|requested| (block.address, requested)));
                prop_assert_eq!(expected.is_some() || is_held, block.state == BlockState::ActiveAllocated);
            }
        }
    }
}
