//! Arenas own themselves through the references that freed blocks leave in them. Whether the allocator or a block is dropped
//! last, on whatever thread: everything is returned to the upstream once, and nothing keeps it alive.

use std::sync::{Arc, Barrier};

use thalweg_memory::fake::FakeUpstream;
use thalweg_memory::{Block, DeviceAllocator, PoolOptions, Settings, StreamId, Upstream};

const STREAMS: u64 = 3;

fn stream(number: u64) -> StreamId {
    StreamId::from_raw(number)
}

/// Allocates blocks on several streams and frees some of them, so that their references are left in the arenas.
fn used(allocator: &DeviceAllocator) -> Vec<Block> {
    let sizes = [4 << 10, 0, 3 << 20, 40 << 20, 512];
    let allocate = |index: u64| {
        let bytes = sizes[index as usize % sizes.len()];
        allocator.allocate(bytes, stream(index % STREAMS)).expect("the fake device is large")
    };
    let mut blocks: Vec<Block> = (0..60).map(allocate).collect();
    for index in (0..blocks.len()).rev().filter(|index| index % 2 == 0) {
        drop(blocks.swap_remove(index));
    }
    blocks.extend((0..10).map(allocate));
    blocks
}

/// Asserts that no memory of the upstream is held, nor the upstream itself.
fn assert_all_returned(upstream: &Arc<FakeUpstream>, what: &str) {
    assert_eq!(upstream.live_segments(), [], "{what}");
    assert_eq!((upstream.live_pages(), upstream.live_events()), (0, 0), "{what}");
    assert_eq!(Arc::strong_count(upstream), 1, "{what}: an arena, or what arenas share, is still there");
}

fn upstreams() -> [Arc<FakeUpstream>; 2] {
    [FakeUpstream::new(1 << 40), FakeUpstream::with_virtual_memory(1 << 40)].map(Arc::new)
}

#[test]
fn whichever_goes_last_everything_is_returned() {
    for upstream in upstreams() {
        for (what, order) in [("blocks first", 0), ("allocator first", 1), ("allocator in the middle", 2)] {
            let allocator = DeviceAllocator::new(upstream.clone(), Settings::default());
            let mut blocks = used(&allocator);
            let half = blocks.split_off(blocks.len() / 2);
            match order {
                0 => drop((blocks, half, allocator)),
                1 => drop((allocator, blocks, half)),
                _ => drop((blocks, allocator, half)),
            }
            assert_all_returned(&upstream, what);
        }
    }
}

#[test]
fn the_last_block_on_another_thread_takes_everything_with_it() {
    for upstream in upstreams() {
        let allocator = DeviceAllocator::new(upstream.clone(), Settings::default());
        let blocks = used(&allocator);
        blocks[0].record_stream(stream(9));
        drop(allocator);
        assert!(Arc::strong_count(&upstream) > 1, "blocks keep their arenas");
        std::thread::spawn(move || drop(blocks)).join().expect("a drop does not panic");
        assert_all_returned(&upstream, "another thread");
    }
}

#[test]
fn blocks_that_are_dropped_while_the_allocator_goes_leave_nothing_behind() {
    for round in 0..200 {
        let upstream = Arc::new(FakeUpstream::new(1 << 40));
        let allocator = DeviceAllocator::new(upstream.clone(), Settings::default());
        let mut blocks = used(&allocator);
        let other = blocks.split_off(blocks.len() / 2);
        let start = Barrier::new(3);
        std::thread::scope(|scope| {
            for blocks in [blocks, other] {
                scope.spawn(|| {
                    start.wait();
                    drop(blocks);
                });
            }
            start.wait();
            drop(allocator);
        });
        assert_all_returned(&upstream, &format!("round {round}"));
    }
}

#[test]
fn a_pool_that_is_given_up_goes_with_its_last_block() {
    let upstream = Arc::new(FakeUpstream::new(1 << 40));
    let others: Arc<dyn Upstream> = Arc::new(FakeUpstream::new(1 << 40));
    let source: Arc<dyn thalweg_memory::SegmentSource> = Arc::new(Source(Arc::clone(&others)));
    let allocator = DeviceAllocator::new(upstream.clone(), Settings::default());
    for keeps_a_null_block in [false, true] {
        let options = PoolOptions { source: Some(Arc::clone(&source)), ..PoolOptions::default() };
        let pool = allocator.create_pool_with(options);
        let scope = allocator.use_pool(pool).expect("the pool is there");
        let blocks = used(&allocator);
        drop(scope);
        let (null, blocks): (Vec<Block>, Vec<Block>) = blocks.into_iter().partition(Block::is_null);
        let null = keeps_a_null_block.then_some(null);
        drop(blocks);
        allocator.release_pool(pool).expect("it was created once");
        allocator.empty_cache().expect("nothing is captured");
        assert_eq!(Arc::strong_count(&source) > 1, null.is_some(), "the pool's arenas refer to its source");
        drop(null);
        assert_eq!(Arc::strong_count(&source), 1);
    }
    drop(allocator);
    assert_all_returned(&upstream, "pools");
}

/// A source that takes segments from another upstream.
struct Source(Arc<dyn Upstream>);

impl thalweg_memory::SegmentSource for Source {
    fn allocate(&self, bytes: u64, stream: StreamId) -> Result<u64, thalweg_memory::UpstreamError> {
        self.0.allocate(bytes, stream)
    }

    fn free(&self, address: u64, bytes: u64, stream: StreamId) -> Result<(), thalweg_memory::UpstreamError> {
        let freed = self.0.free(address, bytes, stream);
        assert!(freed.is_ok(), "a segment goes back once");
        freed
    }
}
