//! Reuse within a capture: only where the graph orders it.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use thalweg_memory::fake::FakeUpstream;
use thalweg_memory::{Block, CaptureId, DeviceAllocator, NodeId, PoolId, Settings, StreamFilter};

use crate::harness::stream;
use crate::random::runner;

const MIB: u64 = 1 << 20;

/// An allocator whose requests on all streams are directed to a pool, with a capture under way on stream 1.
struct Capture {
    upstream: Arc<FakeUpstream>,
    allocator: Arc<DeviceAllocator>,
    pool: PoolId,
    capture: CaptureId,
}

impl Capture {
    fn begin() -> Self {
        let upstream = Arc::new(FakeUpstream::with_virtual_memory(1 << 32));
        let allocator = DeviceAllocator::new(upstream.clone(), Settings::default());
        let pool = allocator.create_pool();
        Self::begin_in(upstream, allocator, pool)
    }

    fn begin_in(upstream: Arc<FakeUpstream>, allocator: Arc<DeviceAllocator>, pool: PoolId) -> Self {
        allocator.begin_allocate_to_pool(pool, StreamFilter::All).expect("the pool exists");
        let capture = upstream.begin_capture(stream(1));
        Self { upstream, allocator, pool, capture }
    }

    fn allocate(&self) -> Block {
        self.allocator.allocate(4 * MIB, stream(1)).expect("there is room")
    }

    /// Submits a command to a stream.
    fn work(&self, on: u64) -> NodeId {
        self.upstream.capture_command(stream(on))
    }

    /// Makes one stream wait for the other.
    fn join(&self, on: u64, after: u64) {
        self.upstream.capture_join(stream(on), stream(after));
    }

    fn end(self) -> (Arc<FakeUpstream>, Arc<DeviceAllocator>, PoolId) {
        self.upstream.end_capture(self.capture);
        self.allocator.end_allocate_to_pool(self.pool).expect("it was begun");
        (self.upstream, self.allocator, self.pool)
    }
}

#[test]
fn with_two_streams_memory_is_reused_once_they_have_joined() {
    for precise in [true, false] {
        let capture = Capture::begin();
        let block = capture.allocate();
        let address = block.address();
        capture.work(1);
        capture.join(2, 1);
        capture.work(2);
        if precise {
            block.record_use(stream(2));
            // Later work of the stream does not use the block.
            capture.join(1, 2);
            capture.work(2);
        } else {
            block.record_stream(stream(2));
        }
        drop(block);
        let _other = (!precise).then(|| {
            let other = capture.allocate();
            assert_ne!(other.address(), address, "stream 1 is not behind stream 2");
            capture.join(1, 2);
            other
        });
        assert_eq!(capture.allocate().address(), address, "stream 1 is behind stream 2");
        let (upstream, ..) = capture.end();
        assert_eq!(upstream.calls().record_event, 0, "no event was needed");
    }
}

#[test]
fn with_four_streams_a_part_of_the_joins_is_not_enough() {
    let capture = Capture::begin();
    let block = capture.allocate();
    let address = block.address();
    capture.work(1);
    for on in 2..=4 {
        capture.join(on, 1);
        capture.work(on);
        block.record_stream(stream(on));
    }
    drop(block);
    let mut kept = Vec::new();
    for on in 2..=4 {
        kept.push(capture.allocate());
        assert_ne!(kept[kept.len() - 1].address(), address, "only the streams below {on} were joined");
        capture.join(1, on);
        capture.work(1);
    }
    assert_eq!(capture.allocate().address(), address);
    capture.end();
}

#[test]
fn a_pool_shared_by_two_captures_serves_the_second_with_what_the_first_freed() {
    let capture = Capture::begin();
    let block = capture.allocate();
    let address = block.address();
    capture.work(1);
    capture.join(2, 1);
    capture.work(2);
    block.record_stream(stream(2));
    drop(block);
    let (upstream, allocator, pool) = capture.end();
    upstream.complete_all();
    allocator.process_events();
    let second = Capture::begin_in(upstream, allocator, pool);
    assert_eq!(second.allocate().address(), address);
    second.end();
}

#[test]
fn a_use_from_before_the_capture_is_not_ordered_by_its_graph() {
    for precise in [true, false] {
        let upstream = Arc::new(FakeUpstream::with_virtual_memory(1 << 32));
        let allocator = DeviceAllocator::new(upstream.clone(), Settings::default());
        let pool = allocator.create_pool();
        let scope = allocator.use_pool(pool).expect("the pool exists");
        let block = allocator.allocate(4 * MIB, stream(1)).expect("there is room");
        drop(scope);
        let address = block.address();
        if precise {
            block.record_use(stream(2))
        } else {
            block.record_stream(stream(2))
        }
        let capture = Capture::begin_in(upstream, allocator, pool);
        capture.join(2, 1);
        capture.work(2);
        drop(block);
        capture.join(1, 2);
        assert_ne!(capture.allocate().address(), address, "the graph is replayed beside that work");
        let (upstream, allocator, pool) = capture.end();
        upstream.complete_all();
        allocator.process_events();
        let second = Capture::begin_in(upstream, allocator, pool);
        assert_eq!(second.allocate().address(), address, "and it is done now");
        second.end();
    }
}

#[test]
fn a_stream_outside_the_capture_holds_a_block_until_its_end() {
    let capture = Capture::begin();
    let block = capture.allocate();
    let address = block.address();
    block.record_use(stream(9));
    drop(block);
    assert_ne!(capture.allocate().address(), address);
    let (upstream, allocator, _) = capture.end();
    assert_eq!(upstream.live_events(), 1, "its event is recorded when that is allowed");
    upstream.complete_all();
    allocator.process_events();
    assert_eq!(allocator.statistics().active.all.current, 0);
}

#[test]
fn each_edge_of_the_graph_is_walked_once_however_often_is_asked() {
    let capture = Capture::begin();
    let (mut edges, mut kept) = (0, Vec::new());
    capture.work(1);
    for round in 0..200 {
        capture.join(2, 1);
        capture.work(2);
        let block = capture.allocate();
        block.record_use(stream(2));
        drop(block);
        if round % 3 == 0 {
            capture.join(1, 2);
        }
        capture.work(1);
        edges += 4;
        kept.push(capture.allocate());
    }
    let calls = capture.upstream.calls();
    assert!(calls.predecessors <= 2 * edges, "{} calls for {edges} edges", calls.predecessors);
    drop(kept);
    capture.end();
}

/// Returns the nodes that the next command of a stream is ordered after, found by walking the entire graph.
fn reachable(upstream: &FakeUpstream, on: u64) -> BTreeSet<NodeId> {
    use thalweg_memory::Captures;
    let capturing = upstream.capture_of(stream(on)).expect("no fault");
    let mut unvisited = capturing.map_or(Vec::new(), |_| upstream.terminals(stream(on)).expect("no fault"));
    let mut reached = BTreeSet::new();
    while let Some(node) = unvisited.pop() {
        if reached.insert(node) {
            unvisited.extend(upstream.predecessors(stream(on), node).expect("no fault"));
        }
    }
    reached
}

#[test]
fn reuse_in_random_graphs_is_what_reachability_allows() {
    // Steps: a command, a join, a block that is used by a stream and dropped, a request.
    let step = (0..4u8, 1..=4u64, 1..=4u64);
    let outcome = runner(300).run(&prop::collection::vec(step, 1..80), |steps| {
        let capture = Capture::begin();
        (2..=4).for_each(|on| capture.join(on, 1));
        // Freed blocks that were not handed out again: their address, and the nodes that they wait for.
        let mut waiting: Vec<(u64, Vec<NodeId>)> = Vec::new();
        let mut kept = Vec::new();
        for (kind, on, other) in steps {
            match kind {
                0 => drop(capture.work(on)),
                1 => capture.join(on, other),
                2 => {
                    let block = capture.allocate();
                    waiting.retain(|(address, _)| *address != block.address());
                    let node = capture.work(on);
                    block.record_use(stream(on));
                    let address = block.address();
                    drop(block);
                    waiting.push((address, if on == 1 { vec![] } else { vec![node] }));
                }
                _ => {
                    let reached = reachable(&capture.upstream, 1);
                    let is_past = |nodes: &[NodeId]| nodes.iter().all(|node| reached.contains(node));
                    let block = capture.allocate();
                    let reused = waiting.iter().position(|(address, _)| *address == block.address());
                    match reused {
                        Some(place) => prop_assert!(is_past(&waiting.remove(place).1), "reused too early"),
                        None => {
                            let free = waiting.iter().find(|(_, nodes)| is_past(nodes));
                            prop_assert!(free.is_none(), "{free:?} could have been reused");
                        }
                    }
                    kept.push(block);
                }
            }
        }
        drop(kept);
        capture.end();
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}
