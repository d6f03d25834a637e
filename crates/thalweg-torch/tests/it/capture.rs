//! Captured graphs, as `torch.cuda.graph` and `make_graphed_callables` drive the allocator.

use thalweg_torch::Status;

use crate::support::{Graph, MIB, Torch, fill, read};

#[test]
fn a_graphs_memory_stays_put() {
    let torch = Torch::small();
    let stream = torch.stream(0);
    let input = torch.full(4096, 1, &stream);
    stream.synchronize().unwrap();
    let (graph, output) = Graph::capture(&torch, (1, 0), &stream, || {
        let between = torch.full(4096, 2, &stream);
        let output = torch.full(4096, 9, &stream);
        drop(between);
        output
    });
    assert_eq!(torch.use_count((1, 0)), 1);
    for _ in 0..3 {
        let bystander = torch.full(4096, 5, &stream);
        graph.replay(&stream);
        assert_eq!(read(&stream, &output), 9);
        assert_eq!(read(&stream, &bystander), 5, "the graph writes to its own memory alone");
        torch.empty_cache().unwrap();
    }
    assert_eq!(read(&stream, &input), 1);
    let segments = torch.snapshot((1, 0)).segments;
    assert!(!segments.is_empty() && segments.iter().all(|(segment, _)| segment.pool_first == 1));
    let reserved = torch.statistics(0).reserved_bytes.all.current;
    drop((graph, output));
    torch.empty_cache().unwrap();
    assert!(
        torch.statistics(0).reserved_bytes.all.current < reserved,
        "the pool went with its last reference"
    );
    assert_eq!(torch.use_count((1, 0)), 0);
}

#[test]
fn graphs_share_a_pool() {
    let torch = Torch::small();
    let stream = torch.stream(0);
    let (one, first) = Graph::capture(&torch, (0, 7), &stream, || torch.full(2048, 1, &stream));
    let (two, second) = Graph::capture(&torch, (0, 7), &stream, || torch.full(2048, 2, &stream));
    assert_eq!(torch.use_count((0, 7)), 2);
    one.replay(&stream);
    two.replay(&stream);
    assert_eq!((read(&stream, &first), read(&stream, &second)), (1, 2));
    drop(one);
    assert_eq!(torch.use_count((0, 7)), 1);
    torch.empty_cache().unwrap();
    two.replay(&stream);
    assert_eq!(read(&stream, &second), 2);
    drop((first, second, two));
}

#[test]
fn frees_with_uses_wait_for_the_end_of_the_capture() {
    let torch = Torch::small();
    let (stream, side) = (torch.stream(0), torch.stream(0));
    let (graph, output) = Graph::capture(&torch, (3, 0), &stream, || {
        let x = torch.full(MIB, 4, &stream);
        side.wait_stream(&stream).unwrap();
        fill(&side, &x, 6);
        x.record_stream(&side);
        stream.wait_stream(&side).unwrap();
        drop(x);
        torch.full(MIB, 8, &stream)
    });
    graph.replay(&stream);
    assert_eq!(read(&stream, &output), 8);
    torch.empty_cache().unwrap();
    drop((graph, output));
}

#[test]
fn what_a_capture_forbids_is_refused_and_breaks_nothing() {
    let torch = Torch::small();
    let stream = torch.stream(0);
    let (graph, output) = Graph::capture(&torch, (5, 0), &stream, || {
        assert_eq!(torch.empty_cache().unwrap_err().0, Status::Capture);
        assert_eq!(torch.begin((5, 0), |_| true).unwrap_err().0, Status::Invalid, "it is begun already");
        torch.full(4096, 3, &stream)
    });
    assert_eq!(torch.use_count((5, 0)), 1, "what failed holds nothing");
    graph.replay(&stream);
    assert_eq!(read(&stream, &output), 3);
    drop((graph, output));
}

#[test]
fn other_streams_keep_out_of_the_pool() {
    let torch = Torch::small();
    let (stream, other) = (torch.stream(0), torch.stream(0));
    let (graph, (inside, outside)) = Graph::capture(&torch, (6, 0), &stream, || {
        let inside = torch.empty(4096, &stream).unwrap();
        (inside, torch.empty(4096, &other).unwrap())
    });
    let snapshot = torch.snapshot((6, 0));
    let holds = |address: u64| {
        snapshot
            .segments
            .iter()
            .any(|(segment, _)| (segment.address..segment.address + segment.total_bytes).contains(&address))
    };
    assert!(holds(inside.address) && !holds(outside.address));
    drop((graph, inside, outside));
}

#[test]
fn a_tensor_outlives_its_graph() {
    let torch = Torch::small();
    let stream = torch.stream(0);
    let (graph, output) = Graph::capture(&torch, (9, 0), &stream, || torch.full(4096, 3, &stream));
    graph.replay(&stream);
    stream.synchronize().unwrap();
    drop(graph);
    torch.empty_cache().unwrap();
    assert_eq!(read(&stream, &output), 3);
    let names: Vec<_> = torch
        .snapshot((0, 0))
        .segments
        .iter()
        .map(|(segment, _)| (segment.pool_first, segment.pool_second))
        .collect();
    assert!(names.contains(&(9, 0)), "a released pool that has memory keeps its name: {names:?}");
    // The name may be used again: that is another pool.
    let (again, second) = Graph::capture(&torch, (9, 0), &stream, || torch.full(4096, 4, &stream));
    assert_ne!(second.address, output.address);
    drop((again, second, output));
}

/// Python's garbage collection drops a graph while something else is captured: the device must not be waited for then.
#[test]
fn a_graph_may_be_dropped_during_another_capture() {
    let torch = Torch::small();
    let stream = torch.stream(0);
    let (old, first) = Graph::capture(&torch, (11, 0), &stream, || torch.full(4096, 1, &stream));
    old.replay(&stream);
    let (graph, output) = Graph::capture(&torch, (12, 0), &stream, || {
        drop((old, first));
        torch.full(4096, 2, &stream)
    });
    graph.replay(&stream);
    assert_eq!(read(&stream, &output), 2);
    torch.empty_cache().unwrap();
    assert!(
        torch.snapshot((0, 0)).segments.iter().all(|(segment, _)| segment.pool_first == 12),
        "the old pool is gone"
    );
    drop((graph, output));
}
