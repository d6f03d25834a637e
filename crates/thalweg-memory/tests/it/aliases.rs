//! Pages in a pool whose addresses must stay valid, and the conditions under which pages move.

use std::sync::Arc;

use thalweg_memory::fake::{FakeUpstream, Fault};
use thalweg_memory::{Alias, Block, DeviceAllocator, PoolId, PoolOptions, StreamFilter};

use crate::harness::{small_pages, stream};

const MIB: u64 = 1 << 20;

struct World {
    upstream: Arc<FakeUpstream>,
    allocator: Arc<DeviceAllocator>,
}

impl World {
    fn new(settings: &str) -> Self {
        let upstream = Arc::new(FakeUpstream::with_virtual_memory(1 << 36));
        let settings = small_pages().apply(settings).expect("these are settings");
        let allocator = DeviceAllocator::new(upstream.clone(), settings);
        Self { upstream, allocator }
    }

    fn pool(&self) -> PoolId {
        self.allocator.create_pool_with(PoolOptions { may_alias: true, ..PoolOptions::default() })
    }

    /// Runs `body` in a capture on stream 1.
    fn capture<T>(&self, pool: PoolId, body: impl FnOnce() -> T) -> T {
        let filter = StreamFilter::Stream(stream(1));
        self.allocator.begin_allocate_to_pool(pool, filter).expect("the pool is there");
        let result = body();
        self.allocator.end_allocate_to_pool(pool).expect("it was begun");
        result
    }

    fn allocate(&self, mib: u64) -> Block {
        self.allocator.allocate(mib * MIB, stream(1)).expect("there is room")
    }

    /// Allocates blocks of 2 MiB and frees every second one. Returns the others; the last block is one of them.
    fn pieces(&self, count: usize) -> Vec<Block> {
        let all: Vec<Block> = (0..count).map(|_| self.allocate(2)).collect();
        all.into_iter().skip(1).step_by(2).collect()
    }

    fn reserved_mib(&self) -> u64 {
        self.allocator.statistics().reserved_bytes.all.current / MIB
    }

    /// Returns the number of addresses at which each page is mapped, in ascending order.
    fn addresses_per_page(&self) -> Vec<usize> {
        let mut pages: Vec<_> = self.upstream.mapped_pages().into_iter().map(|(_, _, page)| page).collect();
        pages.sort_unstable();
        let mut counts: Vec<usize> = pages.chunk_by(|a, b| a == b).map(<[_]>::len).collect();
        counts.sort_unstable();
        counts
    }
}

#[test]
fn a_capture_is_stitched_and_its_addresses_keep_their_pages() {
    let world = World::new("");
    let pool = world.pool();
    let (kept, whole) = world.capture(pool, || (world.pieces(8), world.allocate(8)));
    assert_eq!(world.reserved_mib(), 16, "no more than the pieces");
    assert_eq!(world.addresses_per_page(), [1, 1, 1, 1, 2, 2, 2, 2]);
    assert_eq!(world.upstream.calls().unmap, 0);
    // Each alias contains the present address of the memory.
    let aliases = world.allocator.aliases(pool);
    assert_eq!(aliases.iter().map(|alias| alias.size_bytes).sum::<u64>(), 8 * MIB);
    for Alias { address, size_bytes, now_at } in aliases {
        assert!((whole.address()..whole.address() + 8 * MIB).contains(&now_at) && size_bytes > 0);
        assert!(kept.iter().all(|block| block.address() != address));
        let page_at = |address| world.upstream.mapped_pages().into_iter().find(|(at, ..)| *at == address);
        assert_eq!(page_at(address).map(|(.., page)| page), page_at(now_at).map(|(.., page)| page));
    }
    world.allocator.empty_cache().expect("no capture is under way");
    assert_eq!(world.addresses_per_page(), [1, 1, 1, 1, 2, 2, 2, 2], "the graph may be replayed");

    world.allocator.release_pool(pool).expect("it has one reference");
    drop(kept);
    world.allocator.empty_cache().expect("no capture is under way");
    assert_eq!(world.addresses_per_page(), [1; 4], "a live block outlives its pool, at one address");
    drop(whole);
    world.allocator.empty_cache().expect("no capture is under way");
    assert_eq!((world.upstream.live_pages(), world.upstream.reserved_ranges()), (0, Vec::new()));
}

#[test]
fn pages_stay_where_they_are_without_leave_and_after_a_checkpoint() {
    let settings = "stitching_slack:0";
    for (may_alias, checkpointed) in [(false, false), (true, true)] {
        let world = World::new(settings);
        let options = PoolOptions { may_alias, ..PoolOptions::default() };
        let pool = world.allocator.create_pool_with(options);
        let kept = world.capture(pool, || world.pieces(8));
        let checkpoint = world.allocator.checkpoint_pool(pool).expect("no capture is under way");
        if !checkpointed {
            assert_eq!(world.allocator.aliases(pool), []);
        }
        let whole = world.capture(pool, || world.allocate(8));
        assert_eq!(world.reserved_mib(), 16 + 8, "{may_alias} {checkpointed}");
        drop(whole);
        let restored = world.allocator.restore_pool(pool, &checkpoint).expect("all of it is there");
        assert_eq!(restored.allocated.len(), kept.len());
    }
}

#[test]
fn a_pool_may_ask_for_an_end_of_aliases() {
    let world = World::new("stitching_slack:0");
    let pool = world.pool();
    let kept = world.capture(pool, || (world.pieces(8), world.allocate(4)));
    assert_eq!((world.reserved_mib(), world.allocator.aliases(pool).len()), (16, 2));
    world.allocator.keep_pool_in_place(pool);
    let more = world.capture(pool, || world.allocate(4));
    assert_eq!((world.reserved_mib(), world.allocator.aliases(pool).len()), (20, 2));
    drop((kept, more));
}

/// Nothing is replayed, but the allocator cannot know this, so aliases stay. Their number must be bounded, unless memory is
/// short.
#[test]
fn a_pool_that_serves_for_long_has_no_more_aliases_than_memory() {
    for (settings, short) in [("stitching_slack:0", false), ("per_process_memory_fraction:0.002", true)] {
        let world = World::new(settings);
        let pool = world.pool();
        let scope = world.allocator.use_pool(pool).expect("the pool is there");
        let (mut held, mut random, mut failed) = (Vec::new(), 1u64, 0);
        for _ in 0..4000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let mib = 2 + (random >> 33) % 12;
            if held.len() > 12 {
                held.swap_remove((random >> 40) as usize % held.len());
            }
            match world.allocator.allocate(mib * MIB, stream(1)) {
                Ok(block) => held.push(block),
                Err(error) => {
                    assert!(error.is_out_of_memory(), "{error}");
                    failed += 1;
                    held.truncate(held.len() / 2);
                }
            }
        }
        let aliases = world.allocator.aliases(pool);
        let alias_mib = aliases.iter().map(|alias| alias.size_bytes).sum::<u64>() / MIB;
        let (ranges, reserved_mib) = (world.upstream.reserved_ranges().len(), world.reserved_mib());
        let figures =
            format!("{settings}: {failed} failed, {alias_mib} of {reserved_mib} MiB, {ranges} ranges");
        assert!((1..=reserved_mib + 14).contains(&alias_mib) != short, "{figures}");
        // 13 blocks of up to 13 MiB.
        assert!(reserved_mib <= 2 * 169 && ranges <= 4, "{figures}");
        assert!(if short { failed < 20 } else { failed == 0 }, "{figures}");
        drop((scope, held));
    }
}

/// A page that could not be mapped at its new address is spare, and serves another stream once nothing touches it.
#[test]
fn aliases_are_known_also_where_the_page_is_on_another_stream() {
    let world = World::new("stitching_slack:0");
    let pool = world.pool();
    let kept = world.capture(pool, || {
        let kept = world.pieces(8);
        world.upstream.fail_call(1, Fault::Other);
        world.allocator.allocate(8 * MIB, stream(1)).expect_err("the pages are not mapped");
        kept
    });
    world.allocator.empty_cache().expect("no capture is under way");
    let filter = StreamFilter::Stream(stream(2));
    world.allocator.begin_allocate_to_pool(pool, filter).expect("the pool is there");
    let elsewhere = world.allocator.allocate(8 * MIB, stream(2)).expect("there is room");
    world.allocator.end_allocate_to_pool(pool).expect("it was begun");
    assert_eq!(world.reserved_mib(), 16, "the spare pages serve");
    let aliases = world.allocator.aliases(pool);
    assert_eq!(aliases.iter().map(|alias| alias.size_bytes).sum::<u64>(), 8 * MIB);
    let there = elsewhere.address()..elsewhere.address() + 8 * MIB;
    assert!(aliases.iter().all(|alias| there.contains(&alias.now_at)), "{aliases:?}");
    drop((kept, elsewhere));
}

#[test]
fn fewer_addresses_do_when_there_are_not_as_many_as_usual() {
    let ranges_after = |refusals: u64| {
        let world = World::new("");
        let other = world.allocator.allocate(MIB, stream(2)).expect("there is room");
        // The device's size is known now, so the first call reserves addresses.
        (1..=refusals).for_each(|call| world.upstream.fail_call(call, Fault::OutOfMemory));
        drop((world.allocate(8), other));
        world.upstream.reserved_ranges().into_iter().map(|(_, bytes)| bytes).collect::<Vec<u64>>()
    };
    let usual = ranges_after(0);
    assert_eq!(ranges_after(1), [usual[0], usual[1] / 2]);
    assert_eq!(ranges_after(2), [usual[0], usual[1] / 4]);
}

/// A capture cannot wait on the device for the stream that had shared memory; the host can, unless that stream is being captured
/// too.
#[test]
fn a_capture_has_shared_pages_after_a_wait() {
    let world = World::new("");
    let before = world.allocator.allocate(16 * MIB, stream(2)).expect("there is room");
    let pool = world.pool();
    let block = world.capture(pool, || {
        drop(before);
        world.allocate(16)
    });
    assert_eq!(world.reserved_mib(), 16);
    assert_eq!(world.upstream.calls().synchronize_stream, 1);
    let pools = world.allocator.statistics().reserved_bytes_by_private_pools;
    assert_eq!(pools[&pool].current, 16 * MIB, "the pool has them now");
    drop(block);
    world.allocator.release_pool(pool).expect("it has one reference");
    world.allocator.empty_cache().expect("no capture is under way");
    assert_eq!((world.reserved_mib(), world.upstream.live_pages()), (0, 0));
}

/// Waiting does not help to get pages of another size.
#[test]
fn a_capture_waits_for_shared_pages_of_its_own_size_only() {
    let world = World::new("expandable_page_mb:8");
    let before = world.allocator.allocate(16 * MIB, stream(2)).expect("there is room");
    let pool = world.pool();
    let blocks = world.capture(pool, || {
        drop(before);
        let small = world.allocate(1);
        assert_eq!(world.upstream.calls().synchronize_stream, 0);
        [small, world.allocate(16)]
    });
    assert_eq!(world.upstream.calls().synchronize_stream, 1);
    assert_eq!(world.reserved_mib(), 2 + 16);
    drop(blocks);
}

/// Four free pages are scattered over 400 MiB.
#[test]
fn pages_are_made_not_moved_as_long_as_there_is_slack() {
    for (settings, moves, reserved_mib) in [
        ("stitching_slack:0", true, 400),
        ("stitching_slack:0.01", true, 400),
        ("", false, 408),
        ("per_process_memory_fraction:0.00615", true, 400),
    ] {
        let world = World::new(settings);
        let mut base: Vec<Option<Block>> = (0..200).map(|_| Some(world.allocate(2))).collect();
        (0..4).for_each(|free| base[50 * free + 7] = None);
        let whole = world.allocate(8);
        assert_eq!(world.allocator.statistics().num_pages_moved > 0, moves, "{settings}");
        assert_eq!(world.reserved_mib(), reserved_mib, "{settings}");
        drop((base, whole));
    }
}

#[test]
fn slack_is_measured_by_what_was_active_since_the_cache_was_emptied() {
    let world = World::new("stitching_slack:0.1");
    let much = world.allocate(400);
    drop(much);
    world.allocator.empty_cache().expect("nothing is captured");
    // The 40 MiB of slack disappear together with the memory from which they were computed.
    let kept = world.pieces(16);
    assert_eq!(world.allocator.statistics().num_pages_moved, 0);
    let whole = world.allocate(16);
    assert_eq!(world.reserved_mib(), 32, "the pieces moved: there is no slack for 16 MiB more");
    drop((kept, whole));
}
