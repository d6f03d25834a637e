//! Graphs: the effects of a replay.

use thalweg_driver::{FillPattern, GraphNodeKind};
use thalweg_runtime::{Buffer, CaptureOptions, Device, Graph, GraphPool, Label, Stream};
use thalweg_sim::Fault;

use crate::kernels::launch_sum;
use crate::support::{Gate, buffer_of, device, pinned_of, read, read_pinned, write};

/// Captures `output = input + 1 + 1`, with an allocation for the intermediate sum.
fn add_two(device: &Device, options: CaptureOptions, input: &Buffer) -> (Graph, Buffer) {
    Graph::capture(device, options, || {
        let stream = device.current_stream();
        let between = Buffer::new(&stream, input.size_bytes())?;
        let output = Buffer::new(&stream, input.size_bytes())?;
        launch_sum(&stream, &[input.pointer()], between.pointer(), input.size_bytes() / 4)?;
        launch_sum(&stream, &[between.pointer()], output.pointer(), input.size_bytes() / 4)?;
        Ok(output)
    })
    .unwrap()
}

#[test]
fn replays_work_on_changed_inputs_at_the_same_addresses() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let _current = stream.make_current();
    let input = buffer_of(&stream, &[1.0, 2.0]);
    let (graph, output) = add_two(&device, CaptureOptions::default(), &input);
    let address = output.pointer();
    for round in 0..5 {
        write(&stream, &input, &[round as f32, 10.0]);
        // Allocations between the replays get nothing of the graph's memory.
        let bystander = buffer_of(&stream, &[-1.0, -1.0]);
        graph.replay().unwrap();
        assert_eq!(read(&stream, &output), [round as f32 + 2.0, 12.0]);
        assert_eq!(read(&stream, &bystander), [-1.0, -1.0]);
        assert_eq!(output.pointer(), address);
        device.empty_cache().unwrap();
    }
}

#[test]
fn nothing_runs_while_it_is_captured() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let data = buffer_of(&stream, &[1.0]);
    let (graph, ()) = Graph::capture(&device, CaptureOptions::default(), || {
        launch_sum(&device.current_stream(), &[data.pointer()], data.pointer(), 1)
    })
    .unwrap();
    assert_eq!(read(&stream, &data), [1.0]);
    let _current = stream.make_current();
    graph.replay().unwrap();
    graph.replay().unwrap();
    assert_eq!(read(&stream, &data), [3.0]);
}

#[test]
fn replays_on_several_streams_run_one_after_the_other() {
    let device = device();
    let first = Stream::new(&device).unwrap();
    let data = buffer_of(&first, &[0.0]);
    first.synchronize().unwrap();
    let (graph, ()) = Graph::capture(&device, CaptureOptions::default(), || {
        let stream = device.current_stream();
        (0..10).try_for_each(|_| launch_sum(&stream, &[data.pointer()], data.pointer(), 1))
    })
    .unwrap();
    let streams: Vec<_> = (0..4).map(|_| Stream::new(&device).unwrap()).collect();
    for _ in 0..5 {
        for stream in &streams {
            let _current = stream.make_current();
            graph.replay().unwrap();
        }
    }
    device.synchronize().unwrap();
    assert_eq!(read(&first, &data), [200.0]);
}

#[test]
fn a_graph_can_be_dropped_while_a_replay_is_under_way() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let input = buffer_of(&stream, &vec![1.0; 1 << 18]);
    let result = pinned_of(&device, &[0.0]);
    stream.synchronize().unwrap();
    let (graph, output) = add_two(&device, CaptureOptions::default(), &input);
    let gate = Gate::close(&stream);
    {
        let _current = stream.make_current();
        graph.replay().unwrap();
        stream.copy_to_pinned(&result, 0, output.pointer(), 4, Label::here("copy")).unwrap();
    }
    output.record_stream(&stream);
    // This returns although the gate is closed: nothing waits.
    drop((graph, output));
    assert!(!stream.query().unwrap());
    // Allocations from now on get none of the memory that the replay will write.
    let others: Vec<_> = (0..4).map(|_| Stream::new(&device).unwrap()).collect();
    let others: Vec<_> = others.iter().map(|other| (other, buffer_of(other, &vec![5.0; 1 << 18]))).collect();
    gate.open();
    stream.synchronize().unwrap();
    assert_eq!(read_pinned(&result), [3.0]);
    for (other, buffer) in &others {
        assert!(read(other, buffer).iter().all(|value| *value == 5.0));
    }
}

#[test]
fn a_dropped_graphs_memory_goes_back() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let input = buffer_of(&stream, &vec![1.0; 1 << 20]);
    device.synchronize().unwrap();
    device.empty_cache().unwrap();
    let reserved = || device.allocator().statistics().reserved_bytes.all.current;
    let before = reserved();
    let (graph, output) = add_two(&device, CaptureOptions::default(), &input);
    device.empty_cache().unwrap();
    let with_graph = reserved();
    assert!(with_graph > before);
    drop(output);
    device.empty_cache().unwrap();
    assert_eq!(reserved(), with_graph, "the graph keeps its addresses");
    drop(graph);
    device.empty_cache().unwrap();
    assert_eq!(reserved(), before);
}

#[test]
fn two_graphs_can_share_a_pool() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let _current = stream.make_current();
    let capture_stream = Stream::new(&device).unwrap();
    let input = buffer_of(&stream, &vec![1.0; 1 << 20]);
    let pool = GraphPool::new(&device);
    let options = || CaptureOptions {
        pool: Some(pool.clone()),
        stream: Some(capture_stream.clone()),
        ..Default::default()
    };
    let reserved = || device.allocator().statistics().reserved_bytes.all.current;
    let (first, middle) = add_two(&device, options(), &input);
    let after_first = reserved();
    // The second graph's intermediate has the address of the first one's.
    let (second, output) = add_two(&device, options(), &middle);
    assert!(reserved() - after_first <= 8 << 20, "only the output is new: a page of 8 MiB at the most");
    assert_eq!(first.pool().id(), second.pool().id());
    first.replay().unwrap();
    second.replay().unwrap();
    assert!(read(&stream, &output).iter().all(|value| *value == 5.0));
    // The pool outlives the first graph.
    drop(first);
    write(&stream, &middle, &vec![7.0; 1 << 20]);
    second.replay().unwrap();
    assert!(read(&stream, &output).iter().all(|value| *value == 9.0));
}

#[test]
fn captured_copies_keep_their_pinned_memory() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let data = buffer_of(&stream, &[0.0; 4]);
    let source = pinned_of(&device, &[4.0; 4]);
    let address = source.pointer();
    let (graph, ()) = Graph::capture(&device, CaptureOptions::default(), || {
        device.current_stream().copy_from_pinned(data.pointer(), &source, 0, 16, Label::here("copy"))
    })
    .unwrap();
    drop(source);
    device.synchronize().unwrap();
    let other = pinned_of(&device, &[5.0; 4]);
    assert_ne!(other.pointer(), address, "the graph copies from there");
    let gate = Gate::close(&stream);
    {
        let _current = stream.make_current();
        graph.replay().unwrap();
    }
    drop(graph);
    let more = pinned_of(&device, &[6.0; 4]);
    assert_ne!(more.pointer(), address, "a replay is under way");
    gate.open();
    assert_eq!(read(&stream, &data), [4.0; 4]);
    stream.synchronize().unwrap();
    assert_eq!(pinned_of(&device, &[0.0; 4]).pointer(), address);
}

#[test]
fn a_description_has_the_nodes_and_edges() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let data = buffer_of(&stream, &[1.0; 8]);
    let side = Stream::new(&device).unwrap();
    let label = Label::here("node");
    let (graph, ()) = Graph::capture(&device, CaptureOptions::default(), || {
        let stream = device.current_stream();
        stream.fill(data.pointer(), FillPattern::U32(0), 2, label)?;
        side.wait_stream(&stream)?;
        launch_sum(&side, &[data.pointer()], data.pointer(), 2)?;
        stream.copy_on_device(data.pointer().offset(16), data.pointer().offset(8), 8, label)?;
        stream.wait_stream(&side)?;
        launch_sum(&stream, &[data.pointer()], data.pointer(), 4)
    })
    .unwrap();
    let description = graph.description().unwrap();
    let mut kinds: Vec<_> = description.nodes.iter().map(|node| format!("{:?}", node.kind)).collect();
    kinds.sort();
    assert_eq!(kinds, ["Copy", "Fill", "Kernel", "Kernel"]);
    let place = |kind| description.nodes.iter().position(|node| node.kind == kind).unwrap();
    let (fill, copy) = (place(GraphNodeKind::Fill), place(GraphNodeKind::Copy));
    assert!(description.edges.contains(&(fill, copy)));
    assert_eq!(description.edges.len(), 4, "a diamond: {:?}", description.edges);
    assert!(
        description.edges.iter().all(|&(before, after)| before != after && before != copy || after != fill)
    );
    let _current = stream.make_current();
    graph.replay().unwrap();
    assert_eq!(read(&stream, &data), [2.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0]);
}

#[test]
fn an_empty_region_is_an_empty_graph() {
    let device = device();
    let (graph, value) = Graph::capture(&device, CaptureOptions::default(), || Ok(7)).unwrap();
    assert_eq!(value, 7);
    assert!(graph.description().unwrap().nodes.is_empty());
    let stream = Stream::new(&device).unwrap();
    let _current = stream.make_current();
    graph.replay().unwrap();
    stream.synchronize().unwrap();
}

#[test]
fn what_was_captured_is_no_suspect_before_it_runs() {
    let (driver, devices) = crate::support::sim_in(&thalweg_runtime::Environment::default(), 1);
    let device = &devices[0];
    let stream = Stream::new(device).unwrap();
    let data = buffer_of(&stream, &[1.0]);
    let (graph, ()) = Graph::capture(device, CaptureOptions::default(), || {
        launch_sum(&device.current_stream(), &[data.pointer()], data.pointer(), 1)
    })
    .unwrap();
    let _current = stream.make_current();
    graph.replay().unwrap();
    device.synchronize().unwrap();
    driver.inject(&[Fault::CommandFails { command: 0, by_hardware: false }]);
    let replayed = graph.replay().and_then(|()| stream.synchronize());
    let error = replayed.unwrap_err();
    let causes: Vec<_> = error.possible_causes().iter().map(|label| label.operator).collect();
    assert_eq!(causes, ["graph replay"], "{error}");
}

#[test]
fn capturing_again_and_again_gathers_no_memory() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let data = buffer_of(&stream, &[1.0; 64]);
    let mut reserved_bytes = Vec::new();
    for _ in 0..200 {
        let options = CaptureOptions::default();
        let (graph, result) = Graph::capture(&device, options, || {
            let stream = device.current_stream();
            let result = Buffer::new(&stream, 256)?;
            launch_sum(&stream, &[data.pointer()], result.pointer(), 64)?;
            Ok(result)
        })
        .unwrap();
        graph.replay_on(&stream).unwrap();
        drop((graph, result));
        reserved_bytes.push(device.allocator().statistics().reserved_bytes.all.current);
    }
    let (first, last) = (reserved_bytes[0], *reserved_bytes.last().unwrap());
    assert_eq!(first, last, "memory of graphs that are gone serves the next one: {reserved_bytes:?}");
}

#[test]
fn a_pool_with_an_output_that_is_held_serves_no_other_graph() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let data = buffer_of(&stream, &[1.0; 64]);
    let capture = || {
        let sum = || {
            let stream = device.current_stream();
            let result = Buffer::new(&stream, 256)?;
            launch_sum(&stream, &[data.pointer()], result.pointer(), 64)?;
            Ok(result)
        };
        Graph::capture(&device, CaptureOptions::default(), sum).unwrap()
    };
    device.synchronize().unwrap();
    let (first, held) = capture();
    let pool = first.pool().id();
    drop(first);
    let (second, result) = capture();
    assert_ne!(second.pool().id(), pool, "a replay would not know whose the output is");
    assert_ne!(result.pointer(), held.pointer());
}
