//! Requests on a nearly full device, with the default page size for large requests.

use std::sync::Arc;

use thalweg_memory::fake::FakeUpstream;
use thalweg_memory::{Advice, AllocationError, Block, DeviceAllocator, PoolOptions, Settings, StreamFilter};

use crate::harness::stream;

const MIB: u64 = 1 << 20;

struct World {
    allocator: Arc<DeviceAllocator>,
}

impl World {
    fn new(mebibytes: u64, settings: &str) -> Self {
        let upstream = Arc::new(FakeUpstream::with_virtual_memory(mebibytes * MIB));
        let settings = Settings::parse(settings).expect("these are settings");
        Self { allocator: DeviceAllocator::new(upstream, settings) }
    }

    fn ask(&self, bytes: u64) -> Result<Block, AllocationError> {
        self.allocator.allocate(bytes, stream(1))
    }

    fn allocate(&self, mebibytes: u64) -> Block {
        self.ask(mebibytes * MIB).expect("there is room")
    }
}

/// The lowest place lacks two pages, the one after it only one; and there is memory for one.
#[test]
fn growth_goes_where_the_fewest_pages_are_missing() {
    let world = World::new(40, "");
    let [first, middle, last] = [8, 16, 12].map(|mebibytes| world.allocate(mebibytes));
    drop(middle);
    world.allocator.empty_cache().expect("no capture is under way");
    let small: Vec<Block> = (0..8).map(|_| world.allocate(1)).collect();
    let served = world.allocate(12);
    assert_eq!(served.address(), last.address() + 12 * MIB);
    drop((first, last, small));
}

/// Of the five missing pages four are free: they are not taken apart needlessly, and the error does not promise them.
#[test]
fn a_growth_that_fails_in_a_capture_leaves_what_is_free_as_it_is() {
    let world = World::new(64, "");
    let options = PoolOptions { may_alias: true, ..PoolOptions::default() };
    let pool = world.allocator.create_pool_with(options);
    world.allocator.begin_allocate_to_pool(pool, StreamFilter::Stream(stream(1))).expect("the pool is there");
    let all: Vec<Block> = (0..8).map(|_| world.allocate(8)).collect();
    let kept: Vec<Block> = all.into_iter().skip(1).step_by(2).collect();
    let before = world.allocator.snapshot();
    for _ in 0..2 {
        let error = world.ask(40 * MIB).expect_err("there are 32 MiB");
        let advice = error.figures().and_then(|figures| figures.advice);
        assert_ne!(advice, None, "the request is not taken for one that would fit: {error}");
        assert_eq!(world.allocator.snapshot(), before);
    }
    let served = [1, 8, 16].map(|mebibytes| world.allocate(mebibytes));
    drop((kept, served));
    world.allocator.end_allocate_to_pool(pool).expect("it was begun");
}

/// The remaining memory is less than a large page, or than the large pages that the request would take, but enough for small
/// ones.
#[test]
fn large_requests_have_small_pages_when_large_ones_do_not_fit() {
    for (device, settings, held, requests) in [
        (100, "", 96, &[1536][..]),
        (100, "", 88, &[9 * 1024, 12 * 1024, 1025][..]),
        (100, "per_process_memory_fraction:0.5", 0, &[49 * 1024, 50 * 1024][..]),
    ] {
        for kibibytes in requests {
            let world = World::new(device, settings);
            let held: Vec<Block> = (0..held / 8).map(|_| world.allocate(8)).collect();
            let request = world.ask(kibibytes << 10).expect("there is room");
            // A request that is larger by one page fails, and the error does not claim otherwise.
            drop(request);
            let error = world.ask((kibibytes << 10) + 4 * MIB).err();
            assert!(
                error.is_none_or(|error| error.figures().is_some_and(|figures| figures.advice.is_some()))
            );
            let again = world.ask(kibibytes << 10).expect("it is free again");
            drop((held, again));
            world.allocator.empty_cache().expect("no capture is under way");
            let left = world.allocator.memory_stats().into_iter();
            let left: Vec<_> = left.filter(|(key, value)| key.ends_with(".current") && *value > 0).collect();
            assert_eq!(left, []);
        }
    }
}

/// A request that is smaller by the amount in the error fits, and a larger one does not: exact to the page.
#[test]
fn what_fits_is_known_to_the_small_page() {
    let world = World::new(100, "");
    let held: Vec<Block> = (0..11).map(|_| world.allocate(8)).collect();
    let error = world.ask(20 * MIB).expect_err("there are 12 MiB");
    let advice = error.figures().and_then(|figures| figures.advice);
    assert_eq!(advice, Some(Advice::AskForLess { bytes: 8 * MIB }), "{error}");
    drop((world.allocate(12), held));
}

/// Small pages and large ones are not exchanged: only as many of one kind are returned as the other kind needs, and the cache
/// stays.
#[test]
fn no_more_goes_back_than_is_missing() {
    let pages = 10;
    for (cached, request, kept_mib) in [(8 * MIB, MIB, 8 * (pages - 1) + 2), (MIB, 8 * MIB, 80)] {
        let world = World::new(8 * pages, "");
        let filling: Vec<Block> =
            (0..8 * pages * MIB / cached).map(|_| world.ask(cached).expect("there is room")).collect();
        drop(filling);
        let block = world.ask(request).expect("there is room");
        let statistics = world.allocator.statistics();
        assert_eq!(statistics.reserved_bytes.all.current, kept_mib * MIB);
        assert_eq!((statistics.num_alloc_retries, statistics.num_sync_all_streams), (1, 0));
        drop(block);
        // The memory that is still cached serves.
        let again = world.ask(cached).expect("there is room");
        assert_eq!(world.allocator.statistics().num_alloc_retries, 1);
        drop(again);
    }
}
