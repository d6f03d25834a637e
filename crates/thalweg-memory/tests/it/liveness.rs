//! Watches over blocks that others hold.

use std::sync::Arc;

use thalweg_memory::fake::FakeUpstream;
use thalweg_memory::{DeviceAllocator, LiveBlock, LivenessWatch, StreamFilter};

use crate::harness::{pytorch, stream};

fn allocator() -> Arc<DeviceAllocator> {
    DeviceAllocator::new(Arc::new(FakeUpstream::new(1 << 30)), pytorch())
}

fn at(allocator: &DeviceAllocator, address: u64) -> LiveBlock {
    let live = allocator.live_blocks();
    *live.iter().find(|block| block.address == address).expect("the block is live")
}

#[test]
fn live_blocks_are_those_in_callers_hands() {
    let allocator = allocator();
    let held: Vec<_> =
        [(1000, 1), (3 << 20, 1), (500, 2)].map(|(bytes, on)| allocator.allocate(bytes, stream(on))).into();
    let held: Vec<_> = held.into_iter().map(|block| block.expect("there is room")).collect();
    drop(allocator.allocate(2000, stream(1)).expect("there is room"));
    let waits = allocator.allocate(4000, stream(1)).expect("there is room");
    waits.record_stream(stream(2));
    drop(waits);
    let mut expected: Vec<_> =
        held.iter().map(|block| (block.address(), block.size_bytes(), block.requested_bytes())).collect();
    expected.sort_unstable();
    let live = allocator.live_blocks();
    let found: Vec<_> =
        live.iter().map(|block| (block.address, block.size_bytes, block.requested_bytes)).collect();
    assert_eq!(found, expected);
    assert!(live.iter().all(|block| block.pool.is_none()));
}

#[test]
fn a_death_is_told_to_every_watch_and_nothing_else_is() {
    let allocator = allocator();
    let [one, other] = [(); 2].map(|()| allocator.allocate(1000, stream(1)).expect("there is room"));
    let watches = [(); 3].map(|()| Arc::new(LivenessWatch::default()));
    let address = one.address();
    let block = at(&allocator, address);
    assert!(allocator.watch_block(&block, &watches[0]) && allocator.watch_block(&block, &watches[1]));
    assert!(allocator.watch_block(&at(&allocator, other.address()), &watches[2]));
    // Allocating and freeing other blocks disturbs no watch.
    drop(allocator.allocate(1000, stream(1)).expect("there is room"));
    assert!(watches.iter().all(|watch| watch.is_undisturbed()));
    drop(one);
    assert_eq!(watches[0].died(), [address]);
    assert_eq!(watches[1].died(), [address]);
    assert!(watches[2].is_undisturbed() && watches[2].died().is_empty());
    // The next block at the address is a different one.
    let heir = allocator.allocate(1000, stream(1)).expect("there is room");
    assert_eq!(heir.address(), address);
    drop(heir);
    assert_eq!(watches[0].died(), [address], "told once");
}

#[test]
fn what_died_since_it_was_found_cannot_be_watched() {
    let allocator = allocator();
    let watch = Arc::new(LivenessWatch::default());
    let block = allocator.allocate(1000, stream(1)).expect("there is room");
    let found = at(&allocator, block.address());
    drop(block);
    assert!(!allocator.watch_block(&found, &watch));
    let waits = allocator.allocate(1000, stream(1)).expect("there is room");
    let found = at(&allocator, waits.address());
    waits.record_stream(stream(2));
    drop(waits);
    assert!(!allocator.watch_block(&found, &watch), "it waits for another stream");
}

#[test]
fn a_drop_that_waits_for_another_stream_is_a_death_at_once() {
    let allocator = allocator();
    let watch = Arc::new(LivenessWatch::default());
    let block = allocator.allocate(1000, stream(1)).expect("there is room");
    assert!(allocator.watch_block(&at(&allocator, block.address()), &watch));
    block.record_stream(stream(2));
    assert!(watch.is_undisturbed());
    drop(block);
    assert!(!watch.is_undisturbed());
}

#[test]
fn a_block_that_is_revoked_has_died() {
    let allocator = allocator();
    let pool = allocator.create_pool();
    allocator.begin_allocate_to_pool(pool, StreamFilter::All).expect("the pool is known");
    let block = allocator.allocate(1000, stream(1)).expect("there is room");
    allocator.end_allocate_to_pool(pool).expect("it was begun");
    let found = at(&allocator, block.address());
    assert_eq!((found.pool, block.pool()), (Some(pool), Some(pool)));
    assert_eq!(allocator.live_blocks_of(pool), [found]);
    let checkpoint = allocator.checkpoint_pool(pool).expect("nothing is captured");
    let watch = Arc::new(LivenessWatch::default());
    assert!(allocator.watch_block(&found, &watch));
    let restored = allocator.restore_pool(pool, &checkpoint).expect("nothing is captured");
    assert_eq!(watch.died(), [block.address()]);
    drop(block);
    assert_eq!(watch.died().len(), 1, "a revoked block has nothing to give back");
    drop(restored);
    allocator.release_pool(pool).expect("it has a reference");
}

#[test]
fn watches_without_an_owner_are_forgotten() {
    let allocator = allocator();
    let block = allocator.allocate(1000, stream(1)).expect("there is room");
    let found = at(&allocator, block.address());
    let kept = Arc::new(LivenessWatch::default());
    assert!(allocator.watch_block(&found, &kept));
    for _ in 0..100 {
        let passing = Arc::new(LivenessWatch::default());
        assert!(allocator.watch_block(&found, &passing));
        assert!(Arc::strong_count(&passing) == 2);
    }
    drop(block);
    assert_eq!(kept.died().len(), 1);
    assert_eq!(Arc::strong_count(&kept), 1);
}
