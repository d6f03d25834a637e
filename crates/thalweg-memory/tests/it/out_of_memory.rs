//! Running out of memory: observers, the content of the error, and the effect of following its advice.

use std::sync::Arc;

use thalweg_lock::Mutex;
use thalweg_memory::fake::FakeUpstream;
use thalweg_memory::history::{Enabled, HistorySettings};
use thalweg_memory::observe::{OutOfMemoryEvent, SnapshotFiles};
use thalweg_memory::{
    Advice, AllocationError, Block, CrossStreamReuse, DeviceAllocator, OutOfMemory, PoolId, Settings,
    StreamFilter, Upstream,
};
use thalweg_snapshot::{Action, Snapshot};

use crate::harness::{pytorch, small_pages, stream};

const MIB: u64 = 1 << 20;

/// An allocator, and the objects that a scenario must keep alive.
struct World {
    upstream: Arc<FakeUpstream>,
    allocator: Arc<DeviceAllocator>,
    held: Vec<Block>,
    pool: Option<PoolId>,
}

impl World {
    fn new(mebibytes: u64, settings: Settings) -> Self {
        let upstream = Arc::new(FakeUpstream::with_virtual_memory(mebibytes * MIB));
        let allocator = DeviceAllocator::new(upstream.clone(), settings);
        Self { upstream, allocator, held: Vec::new(), pool: None }
    }

    fn allocate(&self, mebibytes: u64, on: u64) -> Result<Block, AllocationError> {
        self.allocator.allocate(mebibytes * MIB, stream(on))
    }

    fn hold(&mut self, mebibytes: u64, on: u64) {
        let block = self.allocate(mebibytes, on).expect("the scenario has room");
        self.held.push(block);
    }

    fn settings(&self) -> Settings {
        self.allocator.settings()
    }

    fn set(&self, settings: Settings) {
        self.allocator.set_settings(settings).expect("the backend stays");
    }

    fn begin(&mut self) {
        let pool = self.pool.unwrap_or_else(|| self.allocator.create_pool());
        self.pool = Some(pool);
        self.allocator.begin_allocate_to_pool(pool, StreamFilter::Stream(stream(1))).expect("it is there");
    }

    fn end(&self) {
        let pool = self.pool.expect("one was begun");
        self.allocator.end_allocate_to_pool(pool).expect("it was begun");
    }
}

/// A way to run out of memory: the preparation, the request that fails, and how to follow the advice.
struct Scenario {
    name: &'static str,
    mebibytes: u64,
    settings: Settings,
    prepare: fn(&mut World),
    /// The size of the request in MiB.
    request: u64,
    advises: fn(Advice) -> bool,
    follow: fn(&mut World, Advice),
}

fn fraction(settings: Settings, fraction: f64) -> Settings {
    settings.with_per_process_memory_fraction(fraction).expect("from 0 to 1")
}

/// Allocates 20 MiB on stream 2, of which one end is live; the rest is free.
fn free_on_another_stream(world: &mut World) {
    world.hold(8, 2);
    drop(world.allocate(8, 2).expect("there is room"));
}

fn scenarios() -> Vec<Scenario> {
    let parts = [
        scenarios_of_rejections(),
        scenarios_of_captures(),
        scenarios_of_free_memory(),
        scenarios_of_segments(),
        scenarios_of_full_devices(),
    ];
    parts.into_iter().flatten().collect()
}

/// Scenarios in which a request is refused at once although existing memory could have served it.
fn scenarios_of_rejections() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "a block waits for another stream, and nothing may be waited for",
            mebibytes: 100,
            settings: fraction(pytorch(), 0.5).with_throw_on_cudamalloc_oom(true),
            prepare: |world| {
                world.hold(40, 1);
                world.held.pop().expect("it was just pushed").record_stream(stream(2));
            },
            request: 40,
            advises: |advice| advice == Advice::WaitForUses { bytes: 40 * MIB },
            follow: |world, _| world.upstream.complete_stream(stream(2)),
        },
        Scenario {
            name: "the cache would have to go, and a rejection does not try",
            mebibytes: 100,
            settings: fraction(pytorch(), 0.5).with_throw_on_cudamalloc_oom(true),
            prepare: |world| drop(world.allocate(30, 1)),
            request: 40,
            advises: |advice| advice == Advice::EmptyCache,
            follow: |world, _| world.allocator.empty_cache().expect("nothing fails"),
        },
    ]
}

/// Scenarios in which a capture, or the pool of one, keeps memory.
fn scenarios_of_captures() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "the cache would have to go, and a capture does not let it",
            mebibytes: 60,
            settings: pytorch(),
            prepare: |world| {
                drop(world.allocate(40, 1));
                world.begin();
            },
            request: 40,
            advises: |advice| advice == Advice::EmptyCache,
            follow: |world, _| {
                world.end();
                world.allocator.empty_cache().expect("nothing fails");
                world.begin();
            },
        },
        Scenario {
            name: "what was freed waits for the end of the capture",
            mebibytes: 60,
            settings: pytorch(),
            prepare: |world| {
                world.begin();
                world.hold(40, 1);
                world.held.pop().expect("it was just pushed").record_stream(stream(2));
            },
            request: 40,
            advises: |advice| advice == Advice::EndCapture { bytes: 40 * MIB },
            follow: |world, _| {
                world.end();
                world.upstream.complete_all();
                world.allocator.process_events();
                world.begin();
            },
        },
        Scenario {
            name: "an unused pool keeps its memory",
            mebibytes: 60,
            settings: Settings::default(),
            prepare: |world| {
                world.begin();
                drop(world.allocate(40, 1));
                world.end();
            },
            request: 40,
            advises: |advice| matches!(advice, Advice::ReleasePool { bytes, .. } if bytes == 40 * MIB),
            follow: |world, advice| {
                let Advice::ReleasePool { pool, .. } = advice else { panic!("{advice:?}") };
                assert_eq!(Some(pool), world.pool);
                world.allocator.release_pool(pool).expect("the scenario holds it");
            },
        },
    ]
}

/// Scenarios in which free memory would serve under another setting.
fn scenarios_of_free_memory() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "a part of another stream's segment is free",
            mebibytes: 20,
            settings: pytorch(),
            prepare: free_on_another_stream,
            request: 8,
            advises: |advice| advice == Advice::ReuseAcrossStreams,
            follow: |world, _| {
                let settings = world.settings();
                world.set(settings.with_cross_stream_reuse(CrossStreamReuse::Ordered));
            },
        },
        Scenario {
            name: "a part of a large segment is free, and the request is small",
            mebibytes: 20,
            settings: pytorch(),
            prepare: |world| world.hold(9, 1),
            request: 1,
            advises: |advice| advice == Advice::LastResort,
            follow: |world, _| world.set(world.settings().with_last_resort(true)),
        },
        Scenario {
            name: "a pool's whole block is too large to be cut",
            mebibytes: 60,
            settings: pytorch().with_max_split_size_bytes(30 * MIB).expect("20 MiB or more"),
            prepare: |world| {
                world.begin();
                drop(world.allocate(50, 1));
                world.end();
                let pool = world.pool.expect("one was begun");
                world.allocator.begin_allocate_to_pool(pool, StreamFilter::All).expect("it is there");
            },
            request: 25,
            advises: |advice| advice == Advice::RaiseMaxSplitSize { mebibytes: 51 },
            follow: |world, advice| {
                let Advice::RaiseMaxSplitSize { mebibytes } = advice else { panic!("{advice:?}") };
                let settings = world.settings().with_max_split_size_bytes(mebibytes * MIB);
                world.set(settings.expect("20 MiB or more"));
            },
        },
    ]
}

/// Scenarios in which free memory would serve if segments could expand, or had smaller pages.
fn scenarios_of_segments() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "free memory is in pieces between live blocks",
            mebibytes: 60,
            settings: Settings::default().with_expandable_segments(false),
            prepare: in_pieces,
            request: 14,
            advises: |advice| advice == Advice::ExpandableSegments,
            follow: |world, _| {
                world.held.clear();
                *world = World::new(60, small_pages());
                in_pieces(world);
            },
        },
        Scenario {
            name: "a pool cannot grow what it caches",
            mebibytes: 100,
            settings: Settings::default().with_expandable_segments(false),
            prepare: in_a_pool,
            request: 70,
            advises: |advice| matches!(advice, Advice::ExpandablePool { bytes, .. } if bytes == 60 * MIB),
            follow: |world, _| {
                *world = World::new(100, Settings::default());
                in_a_pool(world);
            },
        },
        Scenario {
            name: "a live block lies in every page",
            mebibytes: 64,
            settings: Settings::default(),
            prepare: in_every_page,
            request: 20,
            advises: |advice| advice == Advice::SmallPages,
            follow: |world, _| {
                world.held.clear();
                *world = World::new(64, small_pages());
                in_every_page(world);
            },
        },
    ]
}

/// A pool that caches 60 MiB and serves the next request.
fn in_a_pool(world: &mut World) {
    world.begin();
    drop(world.allocate(60, 1));
    world.end();
    let pool = world.pool.expect("one was begun");
    world.allocator.begin_allocate_to_pool(pool, StreamFilter::All).expect("it is there");
}

/// Allocates pages of 8 MiB, each with a live block of 2.
fn in_every_page(world: &mut World) {
    let all: Vec<Block> = (0..16)
        .map(|place| world.allocate(if place % 2 == 0 { 2 } else { 6 }, 1).expect("there is room"))
        .collect();
    world.held.extend(all.into_iter().step_by(2));
}

/// Scenarios in which there is not enough memory, whatever is done with the free part.
fn scenarios_of_full_devices() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "the limit is too low",
            mebibytes: 100,
            settings: fraction(small_pages(), 0.5),
            prepare: |world| world.hold(40, 1),
            request: 20,
            advises: |advice| advice == Advice::RaiseMemoryFraction { percent: 60 },
            follow: |world, advice| {
                let Advice::RaiseMemoryFraction { percent } = advice else { panic!("{advice:?}") };
                let fraction = f64::from(percent) / 100.0;
                world.allocator.set_memory_fraction(fraction).expect("from 0 to 1");
            },
        },
        Scenario {
            name: "others have it",
            mebibytes: 100,
            settings: small_pages(),
            prepare: |world| drop(Upstream::allocate(&*world.upstream, 70 * MIB, stream(9))),
            request: 60,
            advises: |advice| advice == Advice::FreeOutside { bytes: 30 * MIB },
            follow: |world, _| {
                let (address, bytes) = world.upstream.live_segments()[0];
                Upstream::free(&*world.upstream, address, bytes, stream(9)).expect("it is out");
            },
        },
        Scenario {
            name: "the device is full of live memory",
            mebibytes: 100,
            settings: small_pages(),
            prepare: |world| (0..10).for_each(|_| world.hold(10, 1)),
            request: 20,
            advises: |advice| advice == Advice::FreeLive { bytes: 20 * MIB },
            follow: |world, _| world.held.truncate(8),
        },
    ]
}

fn in_pieces(world: &mut World) {
    for _ in 0..3 {
        world.hold(9, 1);
        world.hold(9, 1);
    }
    // The free ranges have 9 MiB or less, each next to a live block.
    let mut place = 0;
    world.held.retain(|_| {
        place += 1;
        place % 2 == 0
    });
}

/// The advice must contain a change, and it must work.
#[test]
fn following_the_advice_makes_the_same_request_succeed() {
    for scenario in scenarios() {
        let Scenario { name, mebibytes, settings, prepare, request, advises, follow } = scenario;
        let mut world = World::new(mebibytes, settings);
        prepare(&mut world);
        let error = world.allocate(request, 1).expect_err(name);
        let advice = error.figures().and_then(|figures| figures.advice);
        let advice = advice.unwrap_or_else(|| panic!("{name}: no advice in {error}"));
        assert!(advises(advice), "{name}: {error}");
        assert!(error.to_string().contains(&advice.to_string()), "{name}: {error}");
        assert!(world.allocate(request, 1).is_err(), "{name}: it fails again without the change");
        follow(&mut world, advice);
        if let Err(error) = world.allocate(request, 1) {
            panic!("{name}: {advice:?} was followed, and still: {error}");
        }
    }
}

#[test]
fn asking_for_as_much_less_as_it_says_succeeds() {
    for settings in [Settings::default(), pytorch(), fraction(Settings::default(), 0.7)] {
        let mut world = World::new(100, settings);
        world.hold(31, 1);
        let request = 75 * MIB + 100;
        let error = world.allocator.allocate(request, stream(1)).expect_err("there is less");
        let advice = error.figures().and_then(|figures| figures.advice);
        let less = match advice {
            Some(Advice::AskForLess { bytes }) => bytes,
            // Without the limit the request would not fit either.
            other => panic!("{other:?}: {error}"),
        };
        assert!(world.allocator.allocate(request - less, stream(1)).is_ok(), "{error}");
    }
}

/// `test_out_of_memory`: a request larger than any device.
#[test]
fn a_request_larger_than_the_device_is_to_be_divided() {
    for request in [101 * MIB, 1 << 61, u64::MAX] {
        for settings in [Settings::default(), pytorch(), fraction(Settings::default(), 0.5)] {
            let mut world = World::new(100, settings);
            world.hold(10, 1);
            let error = world.allocator.allocate(request, stream(1)).expect_err("the device is smaller");
            let figures = error.figures().expect("it is for lack of memory");
            assert_eq!(figures.advice, Some(Advice::Divide), "{error}");
            assert!(world.allocate(10, 1).is_ok(), "later requests are served");
        }
    }
}

#[test]
fn the_figures_say_where_the_memory_is() {
    let mut world = World::new(200, pytorch().with_label("GPU 1").with_device_number(1));
    world.hold(8, 1);
    free_on_another_stream(&mut world);
    world.begin();
    world.hold(30, 1);
    drop(world.allocate(20, 1));
    world.end();
    let _outside = Upstream::allocate(&*world.upstream, 50 * MIB, stream(9)).expect("there is room");
    let error = world.allocate(150, 1).expect_err("there is less");
    let figures = error.figures().expect("it is for lack of memory");
    let OutOfMemory { private_pool_bytes, private_pool_cached_bytes, other_streams_cached_bytes, .. } =
        *figures;
    assert_eq!((private_pool_bytes, private_pool_cached_bytes), (30 * MIB, 20 * MIB));
    assert_eq!(other_streams_cached_bytes, 12 * MIB);
    assert_eq!((figures.allocated_bytes, figures.reserved_bytes), (46 * MIB, 90 * MIB));
    assert_eq!((figures.outside_bytes(), figures.cached_bytes()), (Some(50 * MIB), 44 * MIB));
    assert_eq!(figures.largest_free_block_bytes, 20 * MIB);
    assert_eq!((figures.segment_bytes, figures.device_number), (150 * MIB, 1));
    let text = error.to_string();
    assert!(
        text.contains(
            "(20.00 MiB in private pools, 12.00 MiB on other streams, 20.00 MiB in the largest block)"
        ),
        "{text}"
    );
}

/// Corresponds to `test_notifies_oom`, `test_raises_oom`, `test_out_of_memory_retry` of PyTorch.
#[test]
fn observers_are_told_without_a_lock_and_the_event_is_recorded() {
    let mut world = World::new(100, pytorch().with_device_number(3));
    world
        .allocator
        .record_memory_history(HistorySettings { enabled: Enabled::All, ..HistorySettings::default() });
    world.hold(51, 1);
    let reported = Arc::new(Mutex::new(Vec::new()));
    let (list, allocator) = (Arc::clone(&reported), Arc::downgrade(&world.allocator));
    let observer = world.allocator.add_out_of_memory_observer(move |event: &OutOfMemoryEvent| {
        list.lock().push(*event);
        // An observer may use the allocator.
        let allocator = allocator.upgrade().expect("it is being used");
        drop(allocator.allocate(1000, stream(2)).expect("there is room"));
        allocator.empty_cache().expect("nothing fails");
    });
    assert!(world.allocate(51, 1).expect_err("there is room for one").is_out_of_memory());
    let event =
        OutOfMemoryEvent { device: 3, size_bytes: 52 * MIB, allowed_bytes: 100 * MIB, free_bytes: 48 * MIB };
    assert_eq!(*reported.lock(), [event]);
    let trace = world.allocator.memory_snapshot().device_traces.pop().expect("there is a device");
    let oom = trace.iter().find(|entry| entry.action == Action::Oom).expect("it is recorded");
    assert_eq!((oom.address, oom.size_bytes, oom.stream), (48 * MIB, 51 * MIB, stream(1)));
    assert_eq!(world.allocator.statistics().num_ooms, 1);
    assert!(world.allocator.remove_out_of_memory_observer(observer));
    world.held.clear();
    assert!(world.allocate(51, 1).is_ok(), "after freeing the first");
}

/// Corresponds to `test_throw_on_cudamalloc_oom` of PyTorch.
#[test]
fn rejections_have_observers_of_their_own() {
    let mut world = World::new(100, fraction(pytorch(), 0.5).with_throw_on_cudamalloc_oom(true));
    let (failed, refused) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(Vec::new())));
    let (count, list) = (Arc::clone(&failed), Arc::clone(&refused));
    world.allocator.add_out_of_memory_observer(move |_| *count.lock() += 1);
    world.allocator.add_rejection_observer(move |event| list.lock().push(*event));
    world.hold(40, 1);
    let error = world.allocate(20, 1).expect_err("it would pass the limit");
    assert!(error.to_string().contains("preemptively rejected"), "{error}");
    let event =
        OutOfMemoryEvent { device: 0, size_bytes: 20 * MIB, allowed_bytes: 50 * MIB, free_bytes: 60 * MIB };
    assert_eq!(*refused.lock(), [event]);
    let statistics = world.allocator.statistics();
    assert_eq!((statistics.num_oom_rejections, statistics.num_ooms), (1, 0));
    assert_eq!((*failed.lock(), statistics.num_alloc_retries), (0, 0));
}

#[test]
fn a_snapshot_is_written_when_memory_runs_out() {
    let folder = std::env::temp_dir().join(format!("thalweg-out-of-memory-{}", std::process::id()));
    let world = World::new(10, pytorch());
    world.allocator.write_snapshots_on_out_of_memory(Some(SnapshotFiles::new(&folder, "gpu0", 1)));
    let error = world.allocate(11, 1).expect_err("the device is smaller");
    let figures = error.figures().expect("it is for lack of memory");
    let path = figures.snapshot.clone().expect("one was asked for").expect("there is room for a small file");
    assert!(error.to_string().contains("gpu0_0.pickle"), "{error}");
    assert!(Snapshot::from_pickle(&std::fs::read(&path).expect("it was written")).is_ok());
    let error = world.allocate(11, 1).expect_err("the device is smaller");
    assert_eq!(error.figures().expect("as before").snapshot, None, "one is enough");
    std::fs::remove_dir_all(&folder).expect("it is ours");
}

/// Corresponds to `test_caching_allocator_record_stream_oom` of PyTorch.
#[test]
fn blocks_that_other_streams_used_come_back_before_failure() {
    let mut world = World::new(100, pytorch());
    world.hold(60, 1);
    world.held.pop().expect("it was just pushed").record_stream(stream(2));
    assert!(world.allocate(60, 1).is_ok());
}
