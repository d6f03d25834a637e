//! The events that an allocator records: events in PyTorch's words, stacks of live blocks, snapshots.
//!
//! Comments name PyTorch's own tests of the same behaviour.

use std::sync::Arc;

use thalweg_lock::Mutex;
use thalweg_memory::fake::FakeUpstream;
use thalweg_memory::history::{
    ContextLevel, Enabled, HistorySettings, ScopeStage, StackId, StackSource, set_user_metadata,
};
use thalweg_memory::{
    DeviceAllocator, PoolOptions, SegmentSource, Settings, SnapshotOptions, StreamFilter, StreamId, Upstream,
    UpstreamError,
};
use thalweg_snapshot::{Action, Frame, Snapshot, TraceEntry};

use crate::harness::{pytorch, stream};

const MIB: u64 = 1 << 20;

fn recorded() -> HistorySettings {
    HistorySettings { enabled: Enabled::All, ..HistorySettings::default() }
}

fn allocator(settings: Settings) -> (Arc<FakeUpstream>, Arc<DeviceAllocator>) {
    let upstream = Arc::new(FakeUpstream::with_virtual_memory(256 * MIB));
    let allocator = DeviceAllocator::new(upstream.clone(), settings);
    allocator.record_memory_history(recorded());
    (upstream, allocator)
}

fn trace(allocator: &DeviceAllocator) -> Vec<TraceEntry> {
    allocator.memory_snapshot().device_traces.pop().expect("there is one device")
}

fn actions(allocator: &DeviceAllocator) -> Vec<Action> {
    trace(allocator).iter().map(|entry| entry.action).collect()
}

/// A source that numbers stacks as they are taken.
#[derive(Default)]
pub struct Numbered(Mutex<u32>);

impl StackSource for Numbered {
    fn capture(&self) -> Option<StackId> {
        let mut last = self.0.lock();
        *last += 1;
        StackId::new(*last)
    }

    fn frames(&self, stack: StackId) -> Vec<Frame> {
        vec![Frame { filename: "program.py".into(), line: stack.get(), name: "main".into() }]
    }
}

pub fn line(frames: Option<&[Frame]>) -> Option<u32> {
    frames?.first().map(|frame| frame.line)
}

#[test]
fn a_block_is_alloc_free_requested_and_free_completed() {
    let (upstream, allocator) = allocator(pytorch());
    let block = allocator.allocate(1000, stream(1)).expect("there is room");
    block.record_stream(stream(2));
    let address = block.address();
    drop(block);
    allocator.process_events();
    use Action::{Alloc, FreeCompleted, FreeRequested, SegmentAlloc, SegmentFree, Snapshot};
    assert_eq!(actions(&allocator), [SegmentAlloc, Alloc, FreeRequested], "stream 2 may still use it");
    upstream.complete_stream(stream(2));
    allocator.process_events();
    allocator.empty_cache().expect("nothing fails");
    let entries = trace(&allocator);
    let reported: Vec<_> =
        entries.iter().map(|entry| (entry.action, entry.address, entry.size_bytes, entry.stream)).collect();
    let one = stream(1);
    assert_eq!(
        reported,
        [
            (SegmentAlloc, address, 2 * MIB, one),
            (Alloc, address, 1000, one),
            (FreeRequested, address, 1000, one),
            (Snapshot, 0, 1024, StreamId::from_raw(0)),
            (FreeCompleted, address, 1000, one),
            (SegmentFree, address, 2 * MIB, one),
        ],
        "a snapshot is part of the next one's past; sizes are those that were asked for"
    );
    assert!(entries.is_sorted_by_key(|entry| entry.time_us));
    assert_eq!(entries[0].pool_id, Some((0, 0)));
    assert_eq!(entries[0].compile_context.as_deref(), Some("N/A"));
}

#[test]
fn growing_segments_map_and_unmap_what_is_reserved() {
    for settings in [Settings::default(), pytorch().with_expandable_segments(true)] {
        let (_upstream, allocator) = allocator(settings);
        let mut held: Vec<_> =
            (0..40).map(|_| allocator.allocate(3 * MIB + 512, stream(1)).expect("there is room")).collect();
        let mut number = 0;
        held.retain(|_| {
            number += 1;
            number % 2 == 0
        });
        // With the default settings, pages between live blocks move.
        held.push(allocator.allocate(90 * MIB, stream(1)).expect("there is room"));
        held.truncate(5);
        allocator.empty_cache().expect("nothing fails");
        let mut mapped = std::collections::BTreeMap::new();
        for entry in trace(&allocator) {
            let pages = (entry.address..entry.address + entry.size_bytes).step_by(MIB as usize);
            match entry.action {
                Action::SegmentMap => {
                    pages.for_each(|page| {
                        assert_eq!(mapped.insert(page, ()), None, "{page:#x} is mapped twice")
                    });
                }
                Action::SegmentUnmap => {
                    pages.for_each(|page| {
                        assert_eq!(mapped.remove(&page), Some(()), "{page:#x} is not mapped")
                    });
                }
                _ => {}
            }
        }
        let segments = allocator.snapshot();
        let shown: u64 = segments.iter().map(|segment| segment.total_bytes).sum();
        assert_eq!(mapped.len() as u64 * MIB, shown);
        assert!(segments.iter().all(|segment| mapped.contains_key(&segment.address)));
    }
}

#[test]
fn switched_off_it_records_nothing_and_forgets() {
    let (_upstream, allocator) = allocator(pytorch());
    drop(allocator.allocate(1000, stream(1)).expect("there is room"));
    allocator.record_memory_history(HistorySettings::default());
    drop(allocator.allocate(1000, stream(1)).expect("there is room"));
    assert_eq!(actions(&allocator), []);
    allocator.record_memory_history(recorded());
    drop(allocator.allocate(1000, stream(1)).expect("there is room"));
    assert_eq!(actions(&allocator), [Action::Alloc, Action::FreeRequested, Action::FreeCompleted]);
}

/// Corresponds to `test_memory_snapshot_skip_actions` of PyTorch.
#[test]
fn skipped_actions_are_left_out_and_no_others() {
    for skipped in
        [vec![Action::Alloc], vec![Action::FreeRequested, Action::FreeCompleted], Action::ALL.to_vec()]
    {
        let (_upstream, allocator) = allocator(pytorch());
        let settings = HistorySettings { skip_actions: skipped.iter().copied().collect(), ..recorded() };
        allocator.record_memory_history(settings);
        drop(allocator.allocate(1000, stream(1)).expect("there is room"));
        allocator.empty_cache().expect("nothing fails");
        use Action::{Alloc, FreeCompleted, FreeRequested, SegmentAlloc, SegmentFree};
        let mut expected = vec![SegmentAlloc, Alloc, FreeRequested, FreeCompleted, SegmentFree];
        expected.retain(|action| !skipped.contains(action));
        assert_eq!(actions(&allocator), expected);
    }
}

/// `test_memory_snapshot`, `test_allocation_traceback` and its `_no_recording`.
#[test]
fn live_blocks_and_segments_have_the_stack_of_their_allocation() {
    let (_upstream, allocator) = allocator(pytorch());
    assert!(allocator.set_stack_source(Arc::new(Numbered::default())).is_ok());
    let [first, second] = [(); 2].map(|()| allocator.allocate(1000, stream(1)).expect("there is room"));
    let snapshot = allocator.memory_snapshot();
    let segment = &snapshot.segments[0];
    assert_eq!(line(Some(&segment.frames)), Some(1), "the first request took the segment");
    let lines: Vec<_> = segment.blocks.iter().map(|block| line(Some(&block.frames))).collect();
    assert_eq!(lines, [Some(1), Some(2), None]);
    assert_eq!(segment.blocks[0].address, first.address());

    let within = second.address() + 17;
    let traceback = || allocator.allocation_traceback(within);
    assert_eq!(line(traceback().as_deref()), Some(2));
    let second_address = second.address();
    drop(second);
    assert_eq!(traceback(), None, "it was freed");
    let again = allocator.allocate(1000, stream(1)).expect("there is room");
    assert_eq!((again.address(), line(traceback().as_deref())), (second_address, Some(4)));
    allocator.record_memory_history(HistorySettings::default());
    assert_eq!(traceback(), None, "nothing is recorded any more");
    drop(again);
    let _unrecorded = allocator.allocate(1000, stream(1)).expect("there is room");
    allocator.record_memory_history(recorded());
    assert_eq!(traceback(), None, "it was allocated before recording began");
}

/// Corresponds to `test_memory_plots_free_stack`, `test_memory_plots_history_context`, `test_memory_plots_free_segment_stack` of PyTorch.
#[test]
fn events_carry_stacks_as_the_context_says() {
    use Action::{Alloc, FreeCompleted, FreeRequested, SegmentAlloc, SegmentFree};
    for (context, expected) in [
        (ContextLevel::All, [Some(1), Some(1), Some(2), Some(2), Some(3)]),
        // A free without a stack of its own has that of the allocation.
        (ContextLevel::Alloc, [Some(1), Some(1), Some(1), Some(1), Some(1)]),
        (ContextLevel::State, [None; 5]),
        (ContextLevel::Never, [None; 5]),
    ] {
        let (_upstream, allocator) = allocator(pytorch());
        assert!(allocator.set_stack_source(Arc::new(Numbered::default())).is_ok());
        allocator.record_memory_history(HistorySettings { context, ..recorded() });
        drop(allocator.allocate(1000, stream(1)).expect("there is room"));
        allocator.empty_cache().expect("nothing fails");
        let entries = trace(&allocator);
        let reported: Vec<_> =
            entries.iter().map(|entry| (entry.action, line(entry.frames.as_deref()))).collect();
        let actions = [SegmentAlloc, Alloc, FreeRequested, FreeCompleted, SegmentFree];
        assert_eq!(reported, actions.into_iter().zip(expected).collect::<Vec<_>>(), "{context:?}");
    }
}

/// Corresponds to `test_memory_plots_metadata`, `test_memory_plots_annotate` of PyTorch.
#[test]
fn metadata_stands_beside_events_and_annotations_come_after() {
    let (_upstream, allocator) = allocator(pytorch());
    set_user_metadata("weights");
    let block = allocator.allocate(1000, stream(1)).expect("there is room");
    set_user_metadata("");
    let address = block.address();
    block.annotate("layer 1");
    assert!(allocator.annotate(address + 500, "a view of layer 1"));
    drop(block);
    assert!(!allocator.annotate(address, "it is free"));
    let entries = trace(&allocator);
    let metadata = |action| {
        let of_kind = entries.iter().filter(move |entry| entry.action == action);
        of_kind
            .map(|entry| (entry.address, entry.size_bytes, entry.user_metadata.as_deref()))
            .collect::<Vec<_>>()
    };
    assert_eq!(metadata(Action::Alloc), [(address, 1000, Some("weights"))]);
    assert_eq!(
        metadata(Action::Annotate),
        [(address, 1000, Some("layer 1")), (address, 1000, Some("a view of layer 1"))]
    );
    assert_eq!(metadata(Action::FreeRequested), [(address, 1000, Some(""))]);
}

/// `test_snapshot_include_traces` and its `_correctness`; `memory_snapshot(mempool_id)`.
#[test]
fn a_part_of_a_snapshot_is_equal_to_that_part() {
    let (_upstream, allocator) = allocator(pytorch());
    let pool = allocator.create_pool();
    let _shared = allocator.allocate(1000, stream(1)).expect("there is room");
    allocator.begin_allocate_to_pool(pool, StreamFilter::All).expect("it is there");
    let private = allocator.allocate(1000, stream(1)).expect("there is room");
    allocator.end_allocate_to_pool(pool).expect("it was begun");
    allocator.annotate_scope("step", ScopeStage::Start);
    let whole = allocator.memory_snapshot();
    let without = allocator.memory_snapshot_with(&SnapshotOptions::default().with_traces(false));
    assert_eq!((&without.segments, without.device_traces.len()), (&whole.segments, 0));
    let of_pool = allocator.memory_snapshot_with(&SnapshotOptions::default().with_pool(pool));
    let in_pool = whole.segments.iter().filter(|segment| segment.pool_id == (0, pool.raw()));
    assert_eq!(of_pool.segments, in_pool.cloned().collect::<Vec<_>>());
    assert_eq!(of_pool.segments[0].address, private.address());
    assert_eq!(whole.external_annotations, [], "they were not asked for");
    assert_eq!(whole.allocator_settings[0].0.as_ref(), "PYTORCH_CUDA_ALLOC_CONF");
}

/// Corresponds to `test_cpp_memory_snapshot_pickle` of PyTorch.
#[test]
fn a_snapshot_of_the_third_device_survives_a_pickle() {
    let (_upstream, allocator) = allocator(pytorch().with_device_number(2));
    allocator.record_memory_history(HistorySettings { record_annotations: true, ..recorded() });
    let _block = allocator.allocate(1000, stream(1)).expect("there is room");
    allocator.annotate_scope("step", ScopeStage::Start);
    let snapshot = allocator.memory_snapshot();
    assert_eq!(snapshot.segments[0].device, 2);
    let traces: Vec<_> = snapshot.device_traces.iter().map(Vec::len).collect();
    assert_eq!(traces, [0, 0, 2], "each device has its place in the list");
    assert_eq!(snapshot.external_annotations[0].device, 2);
    assert_eq!(Snapshot::from_pickle(&snapshot.to_pickle()).expect("it was just written"), snapshot);
}

/// A source that takes the segments of a pool from another upstream.
struct Lender(Arc<FakeUpstream>);

impl SegmentSource for Lender {
    fn allocate(&self, bytes: u64, stream: StreamId) -> Result<u64, UpstreamError> {
        Upstream::allocate(&*self.0, bytes, stream)
    }

    fn free(&self, address: u64, bytes: u64, stream: StreamId) -> Result<(), UpstreamError> {
        Upstream::free(&*self.0, address, bytes, stream)
    }
}

/// A source that breaks its contract.
struct Careless(u64);

impl SegmentSource for Careless {
    fn allocate(&self, _bytes: u64, _stream: StreamId) -> Result<u64, UpstreamError> {
        Ok(self.0)
    }

    fn free(&self, _address: u64, _bytes: u64, _stream: StreamId) -> Result<(), UpstreamError> {
        Ok(())
    }
}

#[test]
fn addresses_that_no_device_has_are_an_error() {
    for address in [0, 511, (1 << 20) + 1, 1 << 57, u64::MAX - 511] {
        let (_upstream, allocator) = allocator(pytorch());
        let source = Some(Arc::new(Careless(address)) as Arc<dyn SegmentSource>);
        let pool = allocator.create_pool_with(PoolOptions { source, ..PoolOptions::default() });
        let scope = allocator.use_pool(pool).expect("it is there");
        let error = allocator.allocate(1000, stream(1)).expect_err("nothing can be done with that address");
        assert!(format!("{error:?}").contains("multiples of 512"), "{error:?}");
        drop(scope);
        allocator.allocate(1000, stream(1)).expect("the shared pool is as it was");
    }
}

#[test]
fn events_of_a_pool_outlive_it() {
    let (upstream, allocator) = allocator(pytorch());
    let source = Some(Arc::new(Lender(upstream)) as Arc<dyn SegmentSource>);
    let options = PoolOptions { source, ..PoolOptions::default() };
    let pool = allocator.create_pool_with(options);
    let scope = allocator.use_pool(pool).expect("it is there");
    drop(allocator.allocate(1000, stream(1)).expect("there is room"));
    drop(scope);
    allocator.release_pool(pool).expect("one reference");
    allocator.empty_cache().expect("nothing fails");
    assert_eq!(allocator.pool_use_count(pool), 0);
    drop(allocator.allocate(1000, stream(2)).expect("there is room"));
    let pools: Vec<_> = trace(&allocator).iter().map(|entry| entry.pool_id.map(|(_, id)| id)).collect();
    assert_eq!(pools, [[Some(pool.raw()); 5].as_slice(), [Some(0); 4].as_slice()].concat());
}

#[test]
fn observers_are_told_of_events_that_are_not_recorded() {
    let (_upstream, allocator) = allocator(pytorch());
    allocator.record_memory_history(HistorySettings::default());
    let reported = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&reported);
    let observer = allocator.add_event_observer(move |event| {
        list.lock().push(event.action);
    });
    drop(allocator.allocate(1000, stream(1)).expect("there is room"));
    assert!(allocator.remove_event_observer(observer));
    drop(allocator.allocate(1000, stream(1)).expect("there is room"));
    use Action::{Alloc, FreeCompleted, FreeRequested, SegmentAlloc};
    assert_eq!(*reported.lock(), [SegmentAlloc, Alloc, FreeRequested, FreeCompleted]);
    assert_eq!(actions(&allocator), []);
}

#[test]
fn streams_of_many_threads_make_one_history() {
    let (_upstream, allocator) = allocator(Settings::default());
    std::thread::scope(|scope| {
        for number in 1..=4 {
            let allocator = &allocator;
            scope.spawn(move || {
                for _ in 0..100 {
                    drop(allocator.allocate(1000 * number, stream(number)).expect("there is room"));
                }
            });
        }
    });
    let entries = trace(&allocator);
    assert!(entries.is_sorted_by_key(|entry| entry.time_us));
    for number in 1..=4 {
        let of_stream = entries.iter().filter(|entry| entry.stream == stream(number));
        let kinds: Vec<_> =
            of_stream.filter(|entry| entry.size_bytes == 1000 * number).map(|entry| entry.action).collect();
        let pair = [Action::Alloc, Action::FreeRequested, Action::FreeCompleted];
        assert_eq!(kinds, pair.repeat(100));
    }
}

/// `test_resize_storage_with_addr`: PyTorch attaches `mallocWithAddress`.
#[test]
fn a_block_at_an_exact_address_says_so_and_has_its_stack() {
    let (_upstream, allocator) = allocator(pytorch());
    assert!(allocator.set_stack_source(Arc::new(Numbered::default())).is_ok());
    let address = allocator.allocate(1000, stream(1)).expect("there is room").address();
    let _block = allocator.allocate_at(address + 1024, 1000, stream(1)).expect("it is free");
    let entries = trace(&allocator);
    let last = entries.last().expect("it is recorded");
    assert_eq!((last.action, last.address), (Action::Alloc, address + 1024));
    assert_eq!(last.internal_metadata.as_deref(), Some("mallocWithAddress"));
    assert_eq!(line(allocator.allocation_traceback(address + 1024).as_deref()), Some(3));
}

#[test]
fn a_restored_pool_gives_and_takes_blocks_in_its_history() {
    let (_upstream, allocator) = allocator(pytorch());
    assert!(allocator.set_stack_source(Arc::new(Numbered::default())).is_ok());
    let pool = allocator.create_pool();
    let allocate = || {
        let _scope = allocator.use_pool(pool).expect("it is there");
        allocator.allocate(1000, stream(1)).expect("there is room")
    };
    let kept = allocate();
    let address = kept.address();
    let checkpoint = allocator.checkpoint_pool(pool).expect("it is referred to");
    let newer = allocate();
    newer.record_stream(stream(2));
    let restored = allocator.restore_pool(pool, &checkpoint).expect("all is there");
    kept.annotate("it is free");
    drop((kept, newer));
    use Action::{Alloc, FreeCompleted, FreeRequested};
    let of_restore: Vec<_> = trace(&allocator)
        .iter()
        .skip(3)
        .map(|entry| (entry.action, entry.address - address, line(entry.frames.as_deref())))
        .collect();
    assert_eq!(
        of_restore,
        [
            (FreeRequested, 0, Some(1)),
            (FreeCompleted, 0, Some(1)),
            (FreeRequested, 1024, Some(2)),
            (FreeCompleted, 1024, Some(2)),
            (Alloc, 0, None),
        ]
    );
    assert_eq!(restored.allocated[0].address(), address);
}

/// `test_memory_plots_free_segment_stack`, and the stacks that a source has to keep.
#[test]
fn a_segment_that_is_given_back_names_who_gave_it_back() {
    for (settings, gone) in
        [(pytorch(), Action::SegmentFree), (pytorch().with_expandable_segments(true), Action::SegmentUnmap)]
    {
        for (context, expected) in
            [(ContextLevel::Alloc, Some(1)), (ContextLevel::All, Some(3)), (ContextLevel::State, None)]
        {
            let upstream = Arc::new(FakeUpstream::with_virtual_memory(1 << 30));
            let allocator = DeviceAllocator::new(upstream, settings.clone());
            assert!(allocator.set_stack_source(Arc::new(Numbered::default())).is_ok(), "it is the first");
            allocator.record_memory_history(HistorySettings { context, ..recorded() });
            drop(allocator.allocate(1000, stream(1)).expect("there is room"));
            // `test_memory_plots_free_stack`: the state alone contains nothing about free memory.
            let segments = allocator.memory_snapshot().segments;
            let has_stack = segments.iter().any(|segment| !segment.frames.is_empty());
            assert_eq!(has_stack, context != ContextLevel::State, "{context:?}");
            allocator.empty_cache().expect("nothing fails");
            let entries = trace(&allocator);
            let last = entries.iter().rfind(|entry| entry.action == gone).expect("it was given back");
            assert_eq!(line(last.frames.as_deref()), expected, "{context:?}");
            let mut used: Vec<u32> = allocator.stacks_in_use().into_iter().map(StackId::get).collect();
            used.sort_unstable();
            let all: &[u32] = if context == ContextLevel::All { &[1, 2, 3] } else { &[1] };
            assert_eq!(used, if context == ContextLevel::State { &[] } else { all }, "{context:?}");
            allocator.record_memory_history(HistorySettings { enabled: Enabled::Off, ..Default::default() });
            assert!(allocator.stacks_in_use().is_empty(), "all is forgotten");
        }
    }
}
