//! Restoring private pools to an earlier state.
//!
//! PyTorch's tests of the same feature (`TestBlockStateAbsorption`), and the tests of this behaviour here:
//!
//! - `test_simple`: `the_pool_looks_as_it_did_and_blocks_are_at_their_addresses`
//! - `test_allocated_in_middle_of_segment`, `test_multiple_middle_allocations`, `test_middle_allocations_contiguous`:
//!   `live_blocks_in_the_middle_are_cut_out_again`
//! - `test_additional_free_following_checkpoint`: `frees_after_the_checkpoint_are_undone`
//! - `test_tensor_dies_after_checkpoint`: `a_revoked_block_dies_without_effect_early_or_late`
//! - `test_assigning_back_deleter_fns_to_tensor`: `the_new_blocks_free_the_memory`
//! - `test_resnet`: `any_program_is_undone`
//! - `test_check_pool_live_allocations`: `live_blocks_are_compared_by_address`
//! - `test_allocate_in_thread_to_pool`: `another_thread_allocates_in_the_pool`
//! - `test_expandable_segment_checkpoint_growth`: `segments_may_have_grown_and_others_may_have_come`

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use thalweg_memory::fake::{FakeUpstream, Fault};
use thalweg_memory::{Block, BlockState, DeviceAllocator, PoolId, SegmentSnapshot, Settings, StreamFilter};

use crate::harness::{pytorch, stream};

const MIB: u64 = 1 << 20;

struct Bench {
    upstream: Arc<FakeUpstream>,
    allocator: Arc<DeviceAllocator>,
    pool: PoolId,
}

/// Returns a pool of an allocator for each kind of segments.
fn benches() -> [Bench; 3] {
    let growing = pytorch().with_expandable_segments(true);
    [pytorch(), growing, Settings::default()].map(|settings| {
        let upstream = Arc::new(FakeUpstream::with_virtual_memory(1 << 30));
        let allocator = DeviceAllocator::new(upstream.clone(), settings);
        let pool = allocator.create_pool();
        Bench { upstream, allocator, pool }
    })
}

impl Bench {
    fn allocate_on(&self, bytes: u64, on: u64) -> Block {
        let _scope = self.allocator.use_pool(self.pool).expect("it is known");
        self.allocator.allocate(bytes, stream(on)).expect("there is room")
    }

    fn allocate(&self, bytes: u64) -> Block {
        self.allocate_on(bytes, 1)
    }

    fn snapshot(&self) -> Vec<SegmentSnapshot> {
        let all = self.allocator.snapshot().into_iter();
        all.filter(|segment| segment.pool == Some(self.pool)).collect()
    }

    /// Asserts that the pool's own statistics agree with its blocks.
    fn assert_counted(&self) {
        let blocks: Vec<_> =
            self.allocator.snapshot().into_iter().flat_map(|segment| segment.blocks).collect();
        let live = blocks.iter().filter(|block| block.state == BlockState::ActiveAllocated);
        let (count, bytes, requested) = live.fold((0, 0, 0), |(count, bytes, requested), block| {
            (count + 1, bytes + block.size_bytes, requested + block.requested_bytes)
        });
        let statistics = self.allocator.statistics();
        assert_eq!(statistics.allocation.all.current, count);
        assert_eq!(statistics.allocated_bytes.all.current, bytes);
        assert_eq!(statistics.active_bytes.all.current, bytes);
        assert_eq!(statistics.requested_bytes.all.current, requested);
    }
}

fn addresses(blocks: &[Block]) -> Vec<u64> {
    let mut addresses: Vec<u64> = blocks.iter().map(Block::address).collect();
    addresses.sort_unstable();
    addresses
}

#[test]
fn the_pool_looks_as_it_did_and_blocks_are_at_their_addresses() {
    for bench in benches() {
        let outside = bench.allocator.allocate(1000, stream(1)).expect("there is room");
        let kept = [1000, 700_000, 3 * MIB, 25 * MIB].map(|bytes| bench.allocate(bytes));
        let checkpoint = bench.allocator.checkpoint_pool(bench.pool).expect("nothing is in the way");
        assert_eq!((checkpoint.pool(), checkpoint.live_addresses()), (bench.pool, addresses(&kept)));
        let then = bench.snapshot();
        let later = [2000, 400_000].map(|bytes| bench.allocate(bytes));
        let live: Vec<u64> = addresses(&kept)
            .into_iter()
            .chain(addresses(&later))
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        let restored = bench.allocator.restore_pool(bench.pool, &checkpoint).expect("nothing is in the way");
        assert_eq!(restored.freed, live);
        assert_eq!(addresses(&restored.allocated), addresses(&kept));
        assert_eq!(bench.snapshot(), then);
        for (new, old) in restored.allocated.iter().zip({
            let mut kept: Vec<&Block> = kept.iter().collect();
            kept.sort_by_key(|block| block.address());
            kept
        }) {
            assert_eq!((new.size_bytes(), new.requested_bytes()), (old.size_bytes(), old.requested_bytes()));
            assert_eq!(new.stream(), old.stream());
            assert!(old.is_revoked() && !new.is_revoked());
        }
        assert!(!outside.is_revoked(), "other memory is not touched");
        bench.assert_counted();
        assert_eq!(bench.allocator.checkpoint_pool(bench.pool).expect("nothing is in the way"), checkpoint);
    }
}

#[test]
fn live_blocks_in_the_middle_are_cut_out_again() {
    for bench in benches() {
        for bytes in [512, 60_000, 2 * MIB] {
            for pattern in
                [[false, true, false, false], [true, false, true, false], [false, true, true, false]]
            {
                let blocks = [(); 4].map(|()| bench.allocate(bytes));
                let mut kept: Vec<Block> = blocks
                    .into_iter()
                    .zip(pattern)
                    .filter(|(_, keep)| *keep)
                    .map(|(block, _)| block)
                    .collect();
                let checkpoint = bench.allocator.checkpoint_pool(bench.pool).expect("nothing is in the way");
                let then = bench.snapshot();
                kept.push(bench.allocate(4 * bytes));
                kept.extend((0..3).map(|_| bench.allocate(bytes)));
                let restored =
                    bench.allocator.restore_pool(bench.pool, &checkpoint).expect("nothing is in the way");
                drop(kept);
                let now = bench.snapshot();
                let at_first =
                    |segment: &&SegmentSnapshot| then.iter().any(|one| one.address == segment.address);
                let now_then: Vec<_> = now.iter().filter(at_first).collect();
                for (now, then) in now_then.into_iter().zip(&then) {
                    let grown = now.is_expandable && now.total_bytes > then.total_bytes;
                    assert!(grown || now == then, "{now:?} instead of {then:?}");
                }
                assert_eq!(addresses(&restored.allocated), checkpoint.live_addresses());
                bench.assert_counted();
                drop(restored);
                assert!(bench.snapshot().iter().all(|segment| segment.blocks.len() == 1));
            }
        }
    }
}

#[test]
fn frees_after_the_checkpoint_are_undone() {
    for bench in benches() {
        let (first, second) = (bench.allocate(3000), bench.allocate(5000));
        let at = [first.address(), second.address()];
        let checkpoint = bench.allocator.checkpoint_pool(bench.pool).expect("nothing is in the way");
        drop(first);
        let instead = bench.allocate(3000);
        assert_eq!(instead.address(), at[0]);
        let restored = bench.allocator.restore_pool(bench.pool, &checkpoint).expect("nothing is in the way");
        assert_eq!((addresses(&restored.allocated), &restored.freed), (at.to_vec(), &at.to_vec()));
        assert!(instead.is_revoked() && second.is_revoked());
        bench.assert_counted();
    }
}

#[test]
fn a_revoked_block_dies_without_effect_early_or_late() {
    for bench in benches() {
        let before = bench.upstream.live_events();
        let old = bench.allocate(3000);
        let late = bench.allocate(4000);
        let checkpoint = bench.allocator.checkpoint_pool(bench.pool).expect("nothing is in the way");
        old.record_use(stream(2));
        let first = bench.allocator.restore_pool(bench.pool, &checkpoint).expect("nothing is in the way");
        old.record_use(stream(3));
        old.record_stream(stream(4));
        let then = bench.snapshot();
        drop(old);
        assert_eq!(bench.snapshot(), then, "it frees nothing");
        assert_eq!(bench.upstream.live_events(), before, "its events are given back");
        // Identifiers of blocks are reused: the late block must not be mistaken for another.
        let others: Vec<Block> = (0..20).map(|place| bench.allocate(512 * place + 1)).collect();
        let then = bench.snapshot();
        drop(late);
        assert_eq!(bench.snapshot(), then);
        let second = bench.allocator.restore_pool(bench.pool, &checkpoint).expect("it can be done again");
        drop(first);
        drop(others);
        assert_eq!(second.allocated.len(), 2);
        bench.assert_counted();
        drop(second);
        bench.allocator.release_pool(bench.pool).expect("it has one reference");
        bench.allocator.empty_cache().expect("no capture is under way");
        assert_eq!((bench.upstream.live_segments(), bench.upstream.live_pages()), (Vec::new(), 0));
    }
}

#[test]
fn a_revoked_block_may_outlive_its_pool_and_the_allocator() {
    for bench in benches() {
        let old = bench.allocate(3000);
        let checkpoint = bench.allocator.checkpoint_pool(bench.pool).expect("nothing is in the way");
        drop(bench.allocator.restore_pool(bench.pool, &checkpoint).expect("nothing is in the way"));
        bench.allocator.release_pool(bench.pool).expect("it has one reference");
        bench.allocator.empty_cache().expect("no capture is under way");
        assert_eq!(bench.upstream.live_segments(), []);
        assert!(old.is_revoked());
        let Bench { upstream, allocator, .. } = bench;
        drop(allocator);
        drop(old);
        assert_eq!((upstream.live_segments(), upstream.live_events()), (Vec::new(), 0));
    }
}

#[test]
fn the_new_blocks_free_the_memory() {
    for bench in benches() {
        let old = bench.allocate(3000);
        let checkpoint = bench.allocator.checkpoint_pool(bench.pool).expect("nothing is in the way");
        let mut restored =
            bench.allocator.restore_pool(bench.pool, &checkpoint).expect("nothing is in the way");
        let new = restored.allocated.pop().expect("one was live");
        let address = new.address();
        new.record_stream(stream(2));
        drop(new);
        assert_eq!(bench.allocator.statistics().pending_use_bytes, 3072, "uses of the new block count");
        bench.upstream.complete_all();
        assert_eq!(bench.allocate(3000).address(), address);
        drop(old);
        bench.assert_counted();
    }
}

#[test]
fn live_blocks_are_compared_by_address() {
    for bench in benches() {
        let check = |expected: &[u64]| bench.allocator.check_pool_live_allocations(bench.pool, expected);
        assert_eq!(check(&[]), Ok(()));
        let (first, second) = (bench.allocate(3000), bench.allocate(3 * MIB));
        let at = [first.address(), second.address()];
        assert_eq!(check(&at), Ok(()));
        let difference = check(&[at[1], 0x1000]).expect_err("they differ");
        assert_eq!((&difference.missing[..], &difference.unexpected[..]), (&[0x1000][..], &at[..1]));
        let text = difference.to_string();
        assert!(text.contains("0x1000") && text.contains(&format!("{:#x}", at[0])), "{text}");
        second.record_stream(stream(2));
        drop(second);
        assert_eq!(check(&at[..1]), Ok(()), "what waits is not live");
        let unknown = bench.allocator.create_pool();
        assert_eq!(bench.allocator.check_pool_live_allocations(unknown, &[]), Ok(()));
    }
}

#[test]
fn another_thread_allocates_in_the_pool() {
    for bench in benches() {
        let first = bench.allocate(3000);
        let checkpoint = bench.allocator.checkpoint_pool(bench.pool).expect("nothing is in the way");
        let then = bench.snapshot();
        let there = std::thread::scope(|scope| scope.spawn(|| bench.allocate(3000)).join());
        let there = there.expect("it does not panic");
        let check = |live: &[u64]| bench.allocator.check_pool_live_allocations(bench.pool, live);
        assert_eq!(check(&[first.address(), there.address()]), Ok(()));
        let restored = bench.allocator.restore_pool(bench.pool, &checkpoint).expect("nothing is in the way");
        assert_eq!(check(&[first.address()]), Ok(()));
        std::thread::scope(|scope| scope.spawn(|| drop(there)).join()).expect("it does not panic");
        assert_eq!(bench.snapshot(), then);
        drop(restored);
    }
}

#[test]
fn segments_may_have_grown_and_others_may_have_come() {
    for bench in benches() {
        let first = bench.allocate(3 * MIB);
        let checkpoint = bench.allocator.checkpoint_pool(bench.pool).expect("nothing is in the way");
        let later: Vec<Block> = [60 * MIB, 100 * MIB, 1000].map(|bytes| bench.allocate(bytes)).into();
        let elsewhere = bench.allocate_on(5000, 2);
        let reserved = bench.allocator.statistics().reserved_bytes.all.current;
        let restored =
            bench.allocator.restore_pool(bench.pool, &checkpoint).expect("more memory does not matter");
        assert_eq!(addresses(&restored.allocated), [first.address()]);
        assert!(elsewhere.is_revoked(), "streams that came later are the pool's too");
        assert_eq!(bench.allocator.statistics().reserved_bytes.all.current, reserved, "it stays the pool's");
        bench.assert_counted();
        let free: u64 = bench
            .snapshot()
            .iter()
            .flat_map(|segment| &segment.blocks)
            .filter(|block| block.state == BlockState::Inactive)
            .map(|block| block.size_bytes)
            .sum();
        assert_eq!(free, reserved - first.size_bytes());
        drop((first, later, elsewhere));
        bench.assert_counted();
    }
}

#[test]
fn memory_that_is_gone_is_an_error_that_changes_nothing() {
    for bench in benches() {
        let kept = bench.allocate(1000);
        drop(bench.allocate(30 * MIB));
        let checkpoint = bench.allocator.checkpoint_pool(bench.pool).expect("nothing is in the way");
        bench.allocator.empty_pool_cache(bench.pool).expect("no capture is under way");
        let before = (bench.snapshot(), bench.allocator.memory_stats());
        let error = bench.allocator.restore_pool(bench.pool, &checkpoint).expect_err("a segment is gone");
        assert!(error.is_invalid_argument() && error.to_string().contains("given back since"), "{error}");
        assert!(error.to_string().contains("nothing was changed"), "{error}");
        assert_eq!((bench.snapshot(), bench.allocator.memory_stats()), before);
        assert!(!kept.is_revoked());
        let other = bench.allocator.create_pool();
        let error = bench.allocator.restore_pool(other, &checkpoint).expect_err("it is another's");
        assert!(error.to_string().contains(&format!("is of {:?}", bench.pool)), "{error}");
    }
}

#[test]
fn a_pool_without_references_and_a_capture_are_refused() {
    for bench in benches() {
        let _kept = bench.allocate(1000);
        let checkpoint = bench.allocator.checkpoint_pool(bench.pool).expect("nothing is in the way");
        let other = bench.allocator.create_pool();
        bench.allocator.begin_allocate_to_pool(other, StreamFilter::All).expect("it is known");
        // Nothing waits yet.
        assert_eq!(bench.allocator.checkpoint_pool(bench.pool).expect("nothing waits"), checkpoint);
        let used = bench.allocate(1000);
        used.record_stream(stream(2));
        drop(used);
        assert!(bench.allocator.checkpoint_pool(bench.pool).expect_err("a capture").is_capture());
        assert!(bench.allocator.restore_pool(bench.pool, &checkpoint).expect_err("a capture").is_capture());
        bench.allocator.end_allocate_to_pool(other).expect("it was begun");
        bench.allocator.release_pool(bench.pool).expect("it has one reference");
        for error in [
            bench.allocator.checkpoint_pool(bench.pool).map(drop),
            bench.allocator.restore_pool(bench.pool, &checkpoint).map(drop),
        ] {
            let error = error.expect_err("it has no reference");
            assert!(error.is_invalid_argument() && error.to_string().contains("does not exist"), "{error}");
        }
    }
    let settings = pytorch().with_caching(false);
    let allocator = DeviceAllocator::new(Arc::new(FakeUpstream::new(1 << 30)), settings);
    let pool = allocator.create_pool();
    let error = allocator.checkpoint_pool(pool).expect_err("nothing is cached");
    assert!(error.to_string().contains("the settings leave caching"), "{error}");
}

#[test]
fn deferred_frees_are_waited_for() {
    for bench in benches() {
        let block = bench.allocate(1000);
        block.record_stream(stream(2));
        drop(block);
        bench.upstream.fail_call(1, Fault::Other);
        let error = bench.allocator.checkpoint_pool(bench.pool).expect_err("it cannot be waited for");
        assert!(error.is_upstream());
        let checkpoint = bench.allocator.checkpoint_pool(bench.pool).expect("now it can");
        assert_eq!(checkpoint.live_addresses(), []);
        assert_eq!(bench.upstream.calls().synchronize_event, 2);
        assert_eq!(bench.allocator.statistics().pending_use_bytes, 0);
        let again = bench.allocate(1000);
        again.record_stream(stream(2));
        drop(again);
        let restored = bench.allocator.restore_pool(bench.pool, &checkpoint).expect("it waits");
        assert!(restored.freed.is_empty() && restored.allocated.is_empty());
        assert_eq!(bench.upstream.live_events(), 0);
    }
}

#[test]
fn the_layout_does_not_depend_on_max_split_size() {
    let [bench, ..] = benches();
    let blocks = [(); 3].map(|()| bench.allocate(25 * MIB));
    drop(blocks);
    let kept = [bench.allocate(9 * MIB), bench.allocate(12 * MIB)];
    let checkpoint = bench.allocator.checkpoint_pool(bench.pool).expect("nothing is in the way");
    let then = bench.snapshot();
    let settings = pytorch().with_max_split_size_bytes(20 * MIB).expect("at least a segment");
    bench.allocator.set_settings(settings).expect("it may change");
    let restored = bench.allocator.restore_pool(bench.pool, &checkpoint).expect("nothing is in the way");
    assert_eq!(bench.snapshot(), then);
    assert_eq!(addresses(&restored.allocated), addresses(&kept));
}

proptest! {
    /// Everything that happens between a checkpoint and its restoration is undone, however late the old blocks are dropped.
    #[test]
    fn any_program_is_undone(
        before in prop::collection::vec((1..4 * MIB, 1..3u64, any::<bool>()), 1..30),
        after in prop::collection::vec((1..8 * MIB, 1..4u64, 0..4u8), 0..40),
        kind in 0..3usize,
    ) {
        let bench = &benches()[kind];
        let run = |blocks: &mut Vec<Block>, bytes, on, keep| {
            let block = bench.allocate_on(bytes, on);
            if keep { blocks.push(block) }
        };
        let (mut kept, mut later) = (Vec::new(), Vec::new());
        for (bytes, on, keep) in before {
            run(&mut kept, bytes, on, keep);
        }
        let checkpoint = bench.allocator.checkpoint_pool(bench.pool).expect("nothing is in the way");
        let then = bench.snapshot();
        for (bytes, on, what) in after {
            match what {
                0 => drop(kept.pop()),
                1 => drop((!later.is_empty()).then(|| later.swap_remove(bytes as usize % later.len()))),
                2 => {
                    run(&mut later, bytes, on, true);
                    later.last().expect("one was pushed").record_use(stream(on + 1));
                }
                _ => run(&mut later, bytes, on, true),
            }
        }
        let late = later.split_off(later.len() / 2);
        let live = addresses(&kept).len() + later.len() + late.len();
        let restored = bench.allocator.restore_pool(bench.pool, &checkpoint).expect("nothing is in the way");
        prop_assert_eq!(restored.freed.len(), live);
        prop_assert_eq!(addresses(&restored.allocated), checkpoint.live_addresses());
        prop_assert!(kept.iter().chain(&later).chain(&late).all(Block::is_revoked));
        drop(later);
        // The earlier state is restored, except for free memory that was added after it.
        let now = bench.snapshot();
        let live_of = |segments: &[SegmentSnapshot]| -> Vec<_> {
            let blocks = segments.iter().flat_map(|segment| segment.blocks.clone());
            blocks.filter(|block| block.state == BlockState::ActiveAllocated).collect()
        };
        prop_assert_eq!(live_of(&now), live_of(&then));
        for segment in &then {
            if !segment.is_expandable {
                prop_assert!(now.contains(segment), "{:?} is not in {:?}", segment, now);
            }
        }
        bench.assert_counted();
        drop(kept);
        drop(restored);
        drop(late);
        bench.upstream.complete_all();
        bench.allocator.process_events();
        prop_assert!(bench.snapshot().iter().all(|segment| segment.blocks.len() == 1));
        bench.allocator.release_pool(bench.pool).expect("it has one reference");
        bench.allocator.empty_cache().expect("no capture is under way");
        prop_assert_eq!((bench.upstream.live_segments().len(), bench.upstream.live_pages()), (0, 0));
        prop_assert_eq!(bench.upstream.live_events(), 0);
    }
}
