//! Allocation at an address that the caller specifies.
//!
//! PyTorch's tests of the same feature (`TestResizeStorageWithAddr`), and the tests of this behaviour here; the parts about
//! storages and views concern tensors.
//!
//! - `test_resize_storage_with_addr_exact_allocation`: `memory_returns_at_its_old_address`
//! - `…_occupied_address_errors`: `what_is_not_free_is_occupied`
//! - `…_misaligned_address_errors`: `addresses_are_multiples_of_512`
//! - `…_middle_of_block`, `test_resize_storage_with_multiple_blocks_in_the_middle`:
//!   `prefix_and_suffix_stay_free_and_adjacent`
//! - `test_resize_storage_with_size_zero_ignores_addr`: `nothing_fits_anywhere`
//! - `test_resize_storage_with_coalesced_small_prefixes`: `a_large_prefix_stays_in_the_small_pool`

use std::sync::Arc;

use proptest::prelude::*;
use thalweg_memory::fake::FakeUpstream;
use thalweg_memory::{
    AddressProblem, Block, BlockState, DeviceAllocator, PoolOptions, Settings, SizeClass, StreamFilter,
};

use crate::harness::{pytorch, stream};

const MIB: u64 = 1 << 20;

/// Returns an allocator for each kind of segments.
fn allocators() -> [(Arc<FakeUpstream>, Arc<DeviceAllocator>); 3] {
    let growing = pytorch().with_expandable_segments(true);
    [pytorch(), growing, Settings::default()].map(|settings| {
        let upstream = Arc::new(FakeUpstream::with_virtual_memory(1 << 30));
        (upstream.clone(), DeviceAllocator::new(upstream, settings))
    })
}

fn allocate(allocator: &DeviceAllocator, bytes: u64) -> Block {
    allocator.allocate(bytes, stream(1)).expect("there is room")
}

fn problem(allocator: &DeviceAllocator, address: u64, bytes: u64) -> (AddressProblem, String) {
    let error = allocator.allocate_at(address, bytes, stream(1)).expect_err("it cannot be had");
    assert!(error.is_invalid_argument() && !error.is_out_of_memory());
    (error.address_problem().expect("it is the address"), error.to_string())
}

/// Returns the blocks of all segments in address order: their size, and whether they are free.
fn layout(allocator: &DeviceAllocator) -> Vec<(u64, bool)> {
    let blocks = allocator.snapshot().into_iter().flat_map(|segment| segment.blocks);
    blocks.map(|block| (block.size_bytes, block.state == BlockState::Inactive)).collect()
}

#[test]
fn memory_returns_at_its_old_address() {
    for (upstream, allocator) in allocators() {
        let first = allocate(&allocator, 4096);
        let after = allocate(&allocator, 512);
        let address = first.address();
        drop(first);
        let calls = (upstream.calls().allocate, upstream.calls().create_page);
        let again = allocator.allocate_at(address, 3000, stream(1)).expect("it is free");
        assert_eq!((again.address(), again.size_bytes(), again.requested_bytes()), (address, 3072, 3000));
        assert_eq!((again.stream(), again.is_null()), (stream(1), false));
        let small = allocate(&allocator, 512);
        assert!(small.address() >= address + 3072, "no other request gets it");
        assert_eq!((upstream.calls().allocate, upstream.calls().create_page), calls);
        let statistics = allocator.statistics();
        assert_eq!(statistics.allocation.all.current, 3);
        assert_eq!(statistics.requested_bytes.all.current, 3000 + 512 + 512);
        drop((again, small, after));
        assert_eq!(layout(&allocator).len(), 1, "all is merged");
        assert_eq!(allocator.statistics().inactive_split_bytes.all.current, 0);
    }
}

#[test]
fn what_is_not_free_is_occupied() {
    for (upstream, allocator) in allocators() {
        let live = allocate(&allocator, 4096);
        let waiting = allocate(&allocator, 4096);
        let (live_at, waiting_at) = (live.address(), waiting.address());
        waiting.record_stream(stream(2));
        drop(waiting);
        let before = (layout(&allocator), allocator.memory_stats());
        for inside in [0, 512, 4096 - 512] {
            let (problem, message) = problem(&allocator, live_at + inside, 512);
            assert_eq!(problem, AddressProblem::Occupied);
            assert!(message.contains(&format!("{:#x} (occupied)", live_at + inside)), "{message}");
            assert!(
                message.contains(&format!("a block is allocated at {live_at:#x} (4096 bytes)")),
                "{message}"
            );
        }
        let (kind, message) = problem(&allocator, waiting_at, 4096);
        assert_eq!(kind, AddressProblem::Occupied);
        assert!(message.contains("waits for work on other streams"), "{message}");
        assert_eq!((layout(&allocator), allocator.memory_stats()), before, "nothing has changed");
        upstream.complete_all();
        let gap = allocator.allocate_at(waiting_at + 512, 512, stream(1)).expect("the work is done");
        // The range begins before the gap and extends over it.
        let (kind, message) = problem(&allocator, waiting_at, 1024);
        assert_eq!(kind, AddressProblem::Occupied);
        assert!(message.contains("only 512 bytes are free from there on"), "{message}");
        drop((gap, live));
        let reserved = allocator.statistics().reserved_bytes.all.current;
        let (kind, _) = problem(&allocator, live_at, reserved + 512);
        assert_eq!(kind, AddressProblem::Occupied, "it does not reach beyond its memory");
        let (kind, _) = problem(&allocator, live_at, u64::MAX);
        assert_eq!(kind, AddressProblem::Occupied);
    }
}

#[test]
fn addresses_are_multiples_of_512() {
    for (_, allocator) in allocators() {
        let address = allocate(&allocator, 4096).address();
        for off in [1, 8, 256, 511] {
            let (kind, message) = problem(&allocator, address + off, 512);
            assert_eq!(kind, AddressProblem::Misaligned);
            assert!(message.ends_with("(misaligned): the address is not a multiple of 512"), "{message}");
        }
    }
}

#[test]
fn nothing_fits_anywhere() {
    for (_, allocator) in allocators() {
        for address in [0, 7, u64::MAX] {
            let block = allocator.allocate_at(address, 0, stream(1)).expect("nothing is needed");
            assert!(block.is_null());
        }
    }
}

#[test]
fn prefix_and_suffix_stay_free_and_adjacent() {
    for (_, allocator) in allocators() {
        for bytes in [1 << 19, 8 * MIB] {
            let base = allocate(&allocator, bytes).address();
            let before = layout(&allocator);
            let blocks = [1, 3, 4].map(|place| {
                allocator.allocate_at(base + place * bytes / 8, bytes / 8, stream(1)).expect("it is free")
            });
            let eighth = bytes / 8;
            let first = before.iter().take_while(|(size, _)| *size < bytes).count();
            let rest = before[first].0 - 5 * eighth;
            let expected = [
                (eighth, true),
                (eighth, false),
                (eighth, true),
                (eighth, false),
                (eighth, false),
                (rest, true),
            ];
            assert_eq!(layout(&allocator)[first..first + 6], expected);
            let between = allocator.allocate_at(base + 2 * eighth, eighth, stream(1)).expect("it is free");
            drop((blocks, between));
            assert_eq!(layout(&allocator), before);
        }
        assert_eq!(allocator.statistics().inactive_split.all.current, 0);
    }
}

#[test]
fn a_large_prefix_stays_in_the_small_pool() {
    for (_, allocator) in allocators() {
        let small: Vec<Block> = (0..4).map(|_| allocate(&allocator, MIB / 2)).collect();
        let last = small[3].address();
        drop(small);
        let block = allocator.allocate_at(last, MIB / 2, stream(1)).expect("it is free");
        let segments = allocator.snapshot();
        assert_eq!(segments.len(), 1);
        assert_eq!(segments[0].class, SizeClass::Small);
        assert_eq!(layout(&allocator), [(3 * MIB / 2, true), (MIB / 2, false)]);
        assert_eq!(allocator.statistics().allocation.small_pool.current, 1);
        assert_eq!(allocate(&allocator, MIB).address(), last - 3 * MIB / 2, "small requests find it");
        drop(block);
    }
}

#[test]
fn oversize_segments_are_cut_where_it_is_asked_for() {
    let settings = pytorch().with_max_split_size_bytes(20 * MIB).expect("at least a segment");
    let allocator = DeviceAllocator::new(Arc::new(FakeUpstream::new(1 << 30)), settings);
    let base = allocate(&allocator, 64 * MIB).address();
    let block = allocator.allocate_at(base + 8 * MIB, 30 * MIB, stream(1)).expect("it is free");
    assert_eq!(layout(&allocator), [(8 * MIB, true), (30 * MIB, false), (26 * MIB, true)]);
    drop(block);
    assert_eq!(layout(&allocator), [(64 * MIB, true)]);
}

#[test]
fn only_the_pool_and_the_stream_of_the_caller_are_looked_into() {
    for (upstream, allocator) in allocators() {
        let shared = allocate(&allocator, 4096).address();
        let elsewhere = allocator.allocate(4096, stream(2)).expect("there is room").address();
        let pool = allocator.create_pool();
        allocator.begin_allocate_to_pool(pool, StreamFilter::Stream(stream(1))).expect("it is known");
        let private = allocate(&allocator, 4096).address();
        assert!(problem(&allocator, shared, 512).1.contains("in no private pool"));
        allocator.allocate_at(private, 4096, stream(1)).expect("it is free in this pool");
        allocator.end_allocate_to_pool(pool).expect("it was begun");
        for (address, words) in [
            (private, format!("(unknown address): it belongs to {pool:?} on StreamId(0x1); allocate there")),
            (elsewhere, "(unknown address): it belongs to StreamId(0x2), in no private pool".to_owned()),
            (1 << 40, "the allocator has no memory there".to_owned()),
        ] {
            let (kind, message) = problem(&allocator, address, 512);
            assert_eq!(kind, AddressProblem::Unknown);
            assert!(message.contains(&words), "{message}");
        }
        allocator.allocate_at(shared, 4096, stream(1)).expect("it is free in the shared pool");
        allocator.empty_cache().expect("no capture is under way");
        assert_eq!(problem(&allocator, shared, 4096).0, AddressProblem::Unknown, "it was given back");
        upstream.complete_all();
    }
}

#[test]
fn a_pool_that_never_cuts_gives_whole_blocks_only() {
    let (_, allocator) = &allocators()[0];
    let pool = allocator.create_pool_with(PoolOptions { no_split: true, ..PoolOptions::default() });
    let _scope = allocator.use_pool(pool).expect("it is known");
    let base = allocate(allocator, 4096).address();
    assert!(problem(allocator, base + 512, 512).1.contains("never cuts a block"));
    let block = allocator.allocate_at(base, 512, stream(1)).expect("it is free");
    assert_eq!((block.size_bytes(), block.requested_bytes()), (2 * MIB, 512));
}

proptest! {
    /// All free and cached memory can be allocated, in any pieces, and is merged again afterwards.
    #[test]
    fn every_free_range_can_be_had(
        sizes in prop::collection::vec(1..3 * MIB, 1..20),
        kept in prop::collection::vec(any::<bool>(), 20),
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 0..100u64, 1..=100u64), 1..20),
        kind in 0..3usize,
    ) {
        let (_, allocator) = &allocators()[kind];
        let blocks: Vec<Block> = sizes.iter().map(|&bytes| allocate(allocator, bytes)).collect();
        let mut held: Vec<Block> = blocks.into_iter().zip(&kept).filter(|(_, keep)| **keep).map(|(block, _)| block).collect();
        for (index, from, share) in cuts {
            let free: Vec<_> = allocator.snapshot().into_iter().flat_map(|segment| segment.blocks)
                .filter(|block| block.state == BlockState::Inactive).collect();
            if free.is_empty() {
                break;
            }
            let free = index.get(&free);
            let units = free.size_bytes / 512;
            let first = units * from / 100;
            let count = ((units - first) * share / 100).max(1);
            let block = allocator.allocate_at(free.address + first * 512, count * 512, stream(1));
            let block = block.expect("it is free and cached");
            prop_assert_eq!((block.address(), block.size_bytes()), (free.address + first * 512, count * 512));
            for other in &held {
                let apart = block.address() + block.size_bytes() <= other.address()
                    || other.address() + other.size_bytes() <= block.address();
                prop_assert!(apart, "{:?} overlaps {:?}", block, other);
            }
            held.push(block);
        }
        let active: u64 = held.iter().map(Block::size_bytes).sum();
        let statistics = allocator.statistics();
        prop_assert_eq!(statistics.active_bytes.all.current, active);
        let inactive: u64 = allocator.snapshot().iter()
            .filter(|segment| !segment.is_expandable && segment.blocks.len() > 1)
            .flat_map(|segment| &segment.blocks)
            .filter(|block| block.state == BlockState::Inactive).map(|block| block.size_bytes).sum();
        prop_assert_eq!(statistics.inactive_split_bytes.all.current, inactive);
        drop(held);
        prop_assert!(allocator.snapshot().iter().all(|segment| segment.blocks.len() == 1));
        prop_assert_eq!(allocator.statistics().active_bytes.all.current, 0);
    }
}
