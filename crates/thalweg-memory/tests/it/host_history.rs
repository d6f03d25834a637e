//! The events that the host allocator records. Tests have the names of PyTorch's own tests where it has one.

use std::sync::Arc;

use thalweg_memory::fake::{FakeUpstream, Fault};
use thalweg_memory::history::{ContextLevel, Enabled, HistorySettings, set_user_metadata};
use thalweg_memory::{
    BlockState, DeviceAllocator, HostAllocator, PoolId, Settings, SnapshotOptions, SnapshotPart, StreamFilter,
};
use thalweg_snapshot::{Action, Snapshot, TraceEntry};

use crate::harness::{pytorch, stream};
use crate::history_wiring::{Numbered, line};
use crate::host::with;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

use Action::{Alloc, FreeCompleted, FreeRequested, SegmentAlloc, SegmentFree};

fn recorded() -> HistorySettings {
    HistorySettings { enabled: Enabled::All, ..HistorySettings::default() }
}

fn recording() -> (Arc<FakeUpstream>, Arc<HostAllocator>) {
    let (upstream, allocator) = with(256 * MIB, Settings::default());
    allocator.record_memory_history(recorded());
    (upstream, allocator)
}

fn trace(allocator: &HostAllocator) -> Vec<TraceEntry> {
    allocator.memory_snapshot().host_traces
}

fn actions(allocator: &HostAllocator) -> Vec<Action> {
    trace(allocator).iter().map(|entry| entry.action).collect()
}

/// Returns address, size, requested size and state of every block.
fn blocks(allocator: &HostAllocator) -> Vec<(u64, u64, u64, BlockState)> {
    let snapshot = allocator.memory_snapshot();
    let block = |segment: &thalweg_snapshot::Segment| {
        let [block] = &segment.blocks[..] else { panic!("a block is one block") };
        assert_eq!((segment.device, segment.stream.raw(), segment.address), (-1, 0, block.address));
        assert_eq!((segment.total_bytes, segment.requested_bytes), (block.size_bytes, block.requested_bytes));
        let active = if block.state == BlockState::Inactive { 0 } else { block.size_bytes };
        let allocated = if block.state == BlockState::ActiveAllocated { block.size_bytes } else { 0 };
        assert_eq!((segment.active_bytes, segment.allocated_bytes), (active, allocated));
        (block.address, block.size_bytes, block.requested_bytes, block.state)
    };
    snapshot.host_segments.iter().map(block).collect()
}

#[test]
fn host_memory_snapshot() {
    let (upstream, allocator) = recording();
    set_user_metadata("loading");
    let block = allocator.allocate(40 * KIB).expect("there is room");
    set_user_metadata("");
    let address = block.address();
    block.record_use(stream(1));
    assert_eq!(blocks(&allocator), [(address, 64 * KIB, 40 * KIB, BlockState::ActiveAllocated)]);
    drop(block);
    allocator.process_events();
    assert_eq!(actions(&allocator), [SegmentAlloc, Alloc, FreeRequested], "stream 1 may still use it");
    assert_eq!(blocks(&allocator), [(address, 64 * KIB, 40 * KIB, BlockState::ActivePendingFree)]);
    upstream.complete_stream(stream(1));
    allocator.process_events();
    assert_eq!(blocks(&allocator), [(address, 64 * KIB, 0, BlockState::Inactive)]);
    allocator.empty_cache().expect("nothing fails");
    assert_eq!(blocks(&allocator), []);
    let entries = trace(&allocator);
    let reported: Vec<_> =
        entries.iter().map(|entry| (entry.action, entry.address, entry.size_bytes)).collect();
    assert_eq!(
        reported,
        [
            (SegmentAlloc, address, 64 * KIB),
            (Alloc, address, 40 * KIB),
            (FreeRequested, address, 40 * KIB),
            (FreeCompleted, address, 40 * KIB),
            (SegmentFree, address, 64 * KIB),
        ]
    );
    assert!(entries.is_sorted_by_key(|entry| entry.time_us));
    assert_eq!(entries[1].user_metadata.as_deref(), Some("loading"));
    assert_eq!(entries[1].compile_context.as_deref(), Some("N/A"));
    assert_eq!((entries[1].stream.raw(), entries[1].pool_id), (0, Some((0, 0))));
}

/// Nothing is recorded, but the present memory is shown, as for a device.
#[test]
fn host_memory_snapshot_disabled() {
    let (_upstream, allocator) = with(256 * MIB, Settings::default());
    let held = allocator.allocate(40 * KIB).expect("there is room");
    drop(allocator.allocate(MIB).expect("there is room"));
    assert_eq!(actions(&allocator), []);
    let mut expected = [
        (held.address(), 64 * KIB, 64 * KIB, BlockState::ActiveAllocated),
        (0, MIB, 0, BlockState::Inactive),
    ];
    let mut seen = blocks(&allocator);
    seen.sort_by_key(|block| block.1);
    expected[1].0 = seen[1].0;
    assert_eq!(seen, expected, "how much was asked for was not recorded");
}

#[test]
fn host_memory_snapshot_max_entries() {
    let (_upstream, allocator) = recording();
    allocator.record_memory_history(HistorySettings { max_entries: 4, ..recorded() });
    for bytes in [KIB, 8 * KIB, MIB, KIB] {
        drop(allocator.allocate(bytes).expect("there is room"));
    }
    assert_eq!(actions(&allocator), [FreeCompleted, Alloc, FreeRequested, FreeCompleted]);
}

#[test]
fn host_memory_snapshot_none_disables() {
    let (_upstream, allocator) = recording();
    assert!(allocator.set_stack_source(Arc::new(Numbered::default())).is_ok());
    let held = allocator.allocate(40 * KIB).expect("there is room");
    allocator.record_memory_history(HistorySettings::default());
    drop(allocator.allocate(KIB).expect("there is room"));
    assert_eq!(actions(&allocator), []);
    allocator.record_memory_history(recorded());
    let snapshot = allocator.memory_snapshot();
    assert!(snapshot.host_segments.iter().all(|segment| segment.frames.is_empty()));
    assert!(snapshot.host_segments.iter().all(|segment| segment.blocks[0].frames.is_empty()));
    drop(held);
    assert_eq!(actions(&allocator), [FreeRequested, FreeCompleted]);
}

/// The two allocators are switched independently, and both are in one snapshot.
#[test]
fn host_memory_snapshot_host_only() {
    for host_is_on in [true, false] {
        let (upstream, host) = with(256 * MIB, Settings::default());
        let device = DeviceAllocator::new(upstream, pytorch());
        device.attach_host_allocator(host.clone()).expect("it is the first");
        assert!(device.attach_host_allocator(host.clone()).is_err(), "there is one already");
        if host_is_on {
            host.record_memory_history(recorded());
        } else {
            device.record_memory_history(recorded());
        }
        let pinned = host.allocate(3000).expect("there is room");
        drop(device.allocate(3000, stream(1)).expect("there is room"));
        let snapshot = device.memory_snapshot();
        assert_eq!(snapshot.host_traces.is_empty(), !host_is_on);
        assert_eq!(snapshot.device_traces[0].is_empty(), host_is_on);
        assert_eq!((snapshot.segments.len(), snapshot.host_segments.len()), (1, 1));
        assert_eq!(snapshot.host_segments[0].address, pinned.address());
        assert_eq!(Snapshot::from_pickle(&snapshot.to_pickle()).as_ref(), Ok(&snapshot));
        let json =
            format!(r#""host_segments":[{{"device":-1,"address":{},"total_size":4096,"#, pinned.address());
        assert!(snapshot.to_json().contains(&json), "{}", snapshot.to_json());
        let without = device.memory_snapshot_with(&SnapshotOptions::default().with_traces(false));
        assert_eq!((without.host_segments, without.host_traces), (snapshot.host_segments, vec![]));
    }
}

#[test]
fn events_carry_stacks_as_the_context_says() {
    for (context, expected, at) in [
        (ContextLevel::All, [Some(1), Some(1), Some(2), Some(2), Some(1)], Some(1)),
        // A free without a stack of its own has that of the allocation.
        (ContextLevel::Alloc, [Some(1); 5], Some(1)),
        (ContextLevel::State, [None; 5], Some(1)),
        (ContextLevel::Never, [None; 5], None),
    ] {
        let (_upstream, allocator) = recording();
        assert!(allocator.set_stack_source(Arc::new(Numbered::default())).is_ok());
        allocator.record_memory_history(HistorySettings { context, ..recorded() });
        let block = allocator.allocate(KIB).expect("there is room");
        let segment = allocator.memory_snapshot().host_segments.pop().expect("there is one");
        assert_eq!([line(Some(&segment.frames)), line(Some(&segment.blocks[0].frames))], [at, at]);
        drop(block);
        allocator.empty_cache().expect("nothing fails");
        let entries = trace(&allocator);
        let lines: Vec<_> = entries.iter().map(|entry| line(entry.frames.as_deref())).collect();
        assert_eq!(lines, expected, "{context:?}");
    }
}

#[test]
fn a_block_is_annotated() {
    let (_upstream, allocator) = recording();
    let block = allocator.allocate(3000).expect("there is room");
    block.annotate("a batch");
    allocator.allocate(0).expect("it takes nothing").annotate("of no memory");
    let entries = trace(&allocator);
    let last = entries.last().expect("it was recorded");
    assert_eq!(
        (entries.len(), last.action, last.address, last.size_bytes),
        (3, Action::Annotate, block.address(), 3000)
    );
    assert_eq!(last.user_metadata.as_deref(), Some("a batch"));
}

/// A block that a capture keeps is pending until its graphs are dropped, and is recorded under its pool's name, even after the
/// pool was dropped.
#[test]
fn the_memory_of_a_pool_has_its_name() {
    let (_upstream, allocator) = recording();
    let pool: PoolId = allocator.create_pool();
    allocator.begin_allocate_to_pool(pool, StreamFilter::All).expect("it is there");
    let block = allocator.allocate_on(MIB, stream(1)).expect("there is room");
    block.record_use(stream(1));
    let shown = |options: &SnapshotOptions| {
        let mut snapshot = Snapshot::default();
        allocator.add_to_snapshot(&mut snapshot, options);
        snapshot
            .host_segments
            .iter()
            .map(|segment| (segment.pool_id, segment.blocks[0].state))
            .collect::<Vec<_>>()
    };
    let (all, of_pool) = (SnapshotOptions::default(), SnapshotOptions::default().with_pool(pool));
    let id = (0, pool.raw());
    assert_eq!(shown(&of_pool), [(id, BlockState::ActiveAllocated)]);
    drop(block);
    allocator.end_allocate_to_pool(pool).expect("it was begun");
    assert_eq!(shown(&of_pool), [(id, BlockState::ActivePendingFree)]);
    allocator.release_pool(pool).expect("it is ours");
    assert_eq!(shown(&all), [((0, 0), BlockState::Inactive)]);
    assert_eq!(shown(&of_pool), []);
    allocator.empty_cache().expect("nothing fails");
    let reported: Vec<_> = trace(&allocator).iter().map(|entry| (entry.action, entry.pool_id)).collect();
    let (of_pool, shared) = (Some(id), Some((0, 0)));
    assert_eq!(
        reported,
        [
            (SegmentAlloc, shared),
            (Alloc, of_pool),
            (FreeRequested, of_pool),
            (FreeCompleted, of_pool),
            (SegmentFree, shared)
        ]
    );
}

/// Memory that the upstream refuses to free is shown as before; lost memory stays pending for ever.
#[test]
fn memory_that_stays_is_still_shown() {
    let (upstream, allocator) = recording();
    let [lost, kept] = [8 * KIB, MIB].map(|bytes| allocator.allocate(bytes).expect("there is room"));
    lost.record_stream(stream(1));
    let address = lost.address();
    upstream.fail_call(1, Fault::Other);
    drop((lost, kept));
    upstream.fail_call(1, Fault::Other);
    allocator.empty_cache().expect_err("the upstream refuses");
    let last: Vec<_> = actions(&allocator).into_iter().rev().take(2).collect();
    assert_eq!(last, [SegmentAlloc, SegmentFree]);
    let states = || blocks(&allocator).iter().map(|block| (block.0, block.3)).collect::<Vec<_>>();
    assert_eq!(states().len(), 2);
    allocator.empty_cache().expect("nothing fails any more");
    assert_eq!(states(), [(address, BlockState::ActivePendingFree)]);
    assert_eq!(allocator.statistics().retired.bytes, 8 * KIB);
}
