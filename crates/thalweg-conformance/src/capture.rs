//! Capture: the nodes and edges that result, and the state that a capturing stream reports.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use thalweg_driver::{
    CaptureInfo, CaptureMode, CaptureStatus, Copy, DependencyUpdate, Endpoint, Fill, FillPattern,
    GraphDescription, GraphNodeHandle, GraphNodeKind, GraphNodeWork, HostFlags, Label,
};

use super::fixture::{Fixture, equal, holds, refused_argument, skip};
use super::{CaseResult, Kernel, KernelArguments, group};

group! {
    "capture":
    nothing_runs_during_capture,
    a_stream_becomes_a_chain,
    a_fork_and_a_join_become_a_diamond,
    a_fork_reaches_further_streams,
    every_command_becomes_a_node,
    nodes_tell_of_their_work,
    a_graph_is_written_to_a_file,
    nodes_keep_their_labels,
    information_follows_the_capture,
    a_forked_stream_tells_of_its_capture,
    dependencies_are_replaced_and_added,
    nodes_know_their_predecessors,
    many_predecessors_are_all_there,
    nothing_is_a_graph_too,
    host_functions_run_at_each_launch,
    events_are_ordinary_again_after_a_new_record,
    other_streams_go_on,
    the_default_stream_goes_on,
    relaxed_captures_allow_allocation,
    relaxed_captures_allow_freeing_pinned_memory,
    the_mode_of_a_thread_is_exchanged,
    pool_memory_becomes_nodes,
    pool_memory_that_a_graph_leaves_is_freed_outside,
    pool_memory_of_before_is_not_freed_in_a_capture,
}

/// Returns the shape of a graph as sorted in- and out-degrees. Unlike edges between node kinds, these distinguish all the graphs
/// here.
fn shape(graph: &GraphDescription) -> Vec<(usize, usize)> {
    let mut degrees: Vec<_> = (0..graph.nodes.len())
        .map(|node| {
            let into = graph.edges.iter().filter(|edge| edge.1 == node).count();
            let out = graph.edges.iter().filter(|edge| edge.0 == node).count();
            (into, out)
        })
        .collect();
    degrees.sort_unstable();
    degrees
}

fn nothing_runs_during_capture(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let buffer = fixture.iota(16, 0)?;
    let graph = fixture.capture(&stream, CaptureMode::Relaxed, || {
        fixture.add(&stream, &buffer, 1)?;
        equal(buffer.words()?, (0..16).collect(), "memory while a kernel on it is being captured")
    })?;
    fixture.driver.stream_synchronize(stream.handle)?;
    equal(buffer.words()?, (0..16).collect(), "memory after the capture")?;
    graph.replay(&stream, 3)?;
    equal(buffer.words()?, (3..19).collect(), "memory after three launches of the graph")
}

fn a_stream_becomes_a_chain(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let buffer = fixture.iota(16, 0)?;
    let graph = fixture.capture(&stream, CaptureMode::Global, || {
        for _ in 0..4 {
            fixture.add(&stream, &buffer, 1)?;
        }
        Ok(())
    })?;
    let description = fixture.driver.graph_describe(graph.handle)?;
    equal(description.nodes.len(), 4, "the nodes of four captured kernels")?;
    equal(
        shape(&description),
        vec![(0, 1), (1, 0), (1, 1), (1, 1)],
        "edges into and out of the nodes of a chain",
    )?;
    holds(
        description.nodes.iter().all(|node| node.kind == GraphNodeKind::Kernel),
        "every node of a captured kernel is a kernel",
    )
}

fn a_fork_and_a_join_become_a_diamond(fixture: &Fixture) -> CaseResult {
    let (one, two) = (fixture.stream()?, fixture.stream()?);
    let (fork, join) = (fixture.event()?, fixture.event()?);
    let (left, right) = (fixture.iota(8, 0)?, fixture.iota(8, 0)?);
    let graph = fixture.capture(&one, CaptureMode::Global, || {
        fixture.set(&one, &left, 10)?;
        fixture.event_record(fork.handle, one.handle)?;
        fixture.stream_wait_event(two.handle, fork.handle)?;
        let copied = KernelArguments::new(right.pointer, 8, 1).with_source(left.pointer).with_delay_us(200);
        fixture.launch(&two, Kernel::Copy, copied)?;
        fixture.launch(&one, Kernel::Iota, KernelArguments::new(left.pointer, 0, 5))?;
        fixture.event_record(join.handle, two.handle)?;
        fixture.stream_wait_event(one.handle, join.handle)?;
        fixture.add(&one, &right, 1)?;
        Ok(())
    })?;
    let description = fixture.graph_describe(graph.handle)?;
    equal(description.nodes.len(), 4, "the nodes of a fork and a join")?;
    equal(
        shape(&description),
        vec![(0, 2), (1, 1), (1, 1), (2, 0)],
        "edges into and out of the nodes of a diamond",
    )?;
    graph.replay(&one, 2)?;
    equal(right.words()?, vec![12; 8], "what went through the branch")?;
    equal(
        fixture.stream_capture_info(two.handle)?,
        CaptureInfo::none(),
        "the forked stream after the capture",
    )
}

fn a_fork_reaches_further_streams(fixture: &Fixture) -> CaseResult {
    let streams: Vec<_> = (0..4).map(|_| fixture.stream()).collect::<Result<_, _>>()?;
    let events: Vec<_> = (0..4).map(|_| fixture.event()).collect::<Result<_, _>>()?;
    let buffer = fixture.iota(4, 0)?;
    let graph = fixture.capture(&streams[0], CaptureMode::Global, || {
        for i in 0..4 {
            fixture.add(&streams[i], &buffer, 1)?;
            fixture.event_record(events[i].handle, streams[i].handle)?;
            fixture.stream_wait_event(streams[(i + 1) % 4].handle, events[i].handle)?;
        }
        fixture.add(&streams[0], &buffer, 1)?;
        Ok(())
    })?;
    let description = fixture.graph_describe(graph.handle)?;
    equal(description.nodes.len(), 5, "the nodes of a walk over four streams")?;
    graph.replay(&streams[1], 2)?;
    equal(buffer.words()?, (10..14).collect(), "two launches of five additions in a row")
}

fn every_command_becomes_a_node(fixture: &Fixture) -> CaseResult {
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let label = Label::here("a captured command");
    let (one, two, pinned) = (fixture.iota(8, 0)?, fixture.iota(8, 0)?, fixture.pinned(32)?);
    let fill = Fill { target: one.pointer, pattern: FillPattern::U32(6), count: 8, label };
    let graph = fixture.capture(&stream, CaptureMode::Global, || {
        driver.fill_async(stream.handle, &fill)?;
        fixture.add(&stream, &one, 1)?;
        fixture.copy(&stream, two.end(), one.end(), 32)?;
        fixture.copy(&stream, pinned.end_at(0), two.end(), 32)?;
        driver.host_function_async(stream.handle, Arc::new(|| ()), label)?;
        Ok(())
    })?;
    let mut kinds: Vec<_> = driver.graph_describe(graph.handle)?.nodes.iter().map(|node| node.kind).collect();
    kinds.sort_by_key(|kind| format!("{kind:?}"));
    let expected = vec![
        GraphNodeKind::Copy,
        GraphNodeKind::Copy,
        GraphNodeKind::Fill,
        GraphNodeKind::Host,
        GraphNodeKind::Kernel,
    ];
    equal(kinds, expected, "the kinds of the nodes")?;
    graph.replay(&stream, 1)?;
    equal(pinned.bytes(8)?, vec![7, 0, 0, 0, 7, 0, 0, 0], "what arrived in pinned memory")
}

fn nodes_tell_of_their_work(fixture: &Fixture) -> CaseResult {
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let label = Label::here("a captured command");
    let (one, two) = (fixture.iota(300, 0)?, fixture.iota(300, 0)?);
    let fill = Fill { target: one.pointer, pattern: FillPattern::U16(6), count: 100, label };
    let graph = fixture.capture(&stream, CaptureMode::Global, || {
        driver.fill_async(stream.handle, &fill)?;
        fixture.kernels.with_launch(Kernel::Add, KernelArguments::new(one.pointer, 300, 1), |launch| {
            driver.launch(stream.handle, &thalweg_driver::Launch { shared_memory_bytes: 512, ..*launch })
        })?;
        Ok(fixture.copy(&stream, two.end(), one.end(), 1200)?)
    })?;
    let nodes = driver.graph_describe(graph.handle)?.nodes;
    let work = |kind| nodes.iter().find(|node| node.kind == kind).map(|node| node.work.clone());
    equal(work(GraphNodeKind::Fill), Some(GraphNodeWork::Fill { bytes: 200 }), "the size of a fill")?;
    equal(work(GraphNodeKind::Copy), Some(GraphNodeWork::Copy { bytes: 1200 }), "the size of a copy")?;
    let Some(GraphNodeWork::Kernel { name, grid, block, shared_memory_bytes }) = work(GraphNodeKind::Kernel)
    else {
        return super::fixture::fail("a kernel's node tells of a kernel");
    };
    // Drivers before CUDA 12.3 cannot report it.
    let expected = name.is_some().then(|| Kernel::Add.name().to_owned());
    equal(name, expected, "the name of the kernel")?;
    equal((grid, block, shared_memory_bytes), ([3, 1, 1], [128, 1, 1], 512), "the shape of the launch")
}

fn a_graph_is_written_to_a_file(fixture: &Fixture) -> CaseResult {
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let buffer = fixture.iota(8, 0)?;
    let graph = fixture.capture(&stream, CaptureMode::Global, || Ok(fixture.add(&stream, &buffer, 1)?))?;
    let folder =
        std::env::temp_dir().join(format!("thalweg-graph-{}-{}", std::process::id(), stream.handle.raw()));
    let path = folder.join("graph.dot");
    let missing = driver.graph_debug_dot_print(graph.handle, &path, false);
    holds(missing.is_err(), "a file in a folder that is not there is an error")?;
    if let Err(error) = std::fs::create_dir(&folder) {
        return skip(format!("there is no room for a file: {error}"));
    }
    let written = driver.graph_debug_dot_print(graph.handle, &path, true);
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let _ = std::fs::remove_dir_all(&folder);
    written?;
    holds(text.contains("digraph") && text.contains(Kernel::Add.name()), "the file draws the graph")
}

fn nodes_keep_their_labels(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let buffer = fixture.iota(8, 0)?;
    let graph = fixture.capture(&stream, CaptureMode::Global, || Ok(fixture.add(&stream, &buffer, 1)?))?;
    let description = fixture.driver.graph_describe(graph.handle)?;
    let labels: Vec<_> =
        description.nodes.iter().map(|node| node.label.map(|label| label.operator)).collect();
    if labels == [None] {
        return super::fixture::skip("the driver does not know which operator submitted a node");
    }
    equal(labels, vec![Some(Kernel::Add.name())], "the operators that the nodes name")
}

fn information_follows_the_capture(fixture: &Fixture) -> CaseResult {
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let buffer = fixture.iota(8, 0)?;
    let info = || driver.stream_capture_info(stream.handle);
    equal(info()?, CaptureInfo::none(), "the state before a capture")?;
    let mut ids = Vec::new();
    for _ in 0..2 {
        driver.stream_begin_capture(stream.handle, CaptureMode::Global)?;
        let empty = info()?;
        equal(empty.status, CaptureStatus::Active, "the status in a capture")?;
        equal(empty.dependencies.len(), 0, "the dependencies of the first node")?;
        fixture.add(&stream, &buffer, 1)?;
        let one = info()?;
        fixture.add(&stream, &buffer, 1)?;
        let two = info()?;
        holds(one.id == two.id && one.id != 0, "a capture keeps its number, which is not 0")?;
        equal(two.dependencies.len(), 1, "how many nodes the third one would depend on")?;
        holds(one.dependencies != two.dependencies, "the dependencies move on with each command")?;
        let Some(graph) = two.graph else {
            return super::fixture::fail("a capture has a graph, and the information has none");
        };
        equal(driver.graph_describe(graph)?.nodes.len(), 2, "the nodes of the graph under construction")?;
        ids.push(two.id);
        let ended = driver.stream_end_capture(stream.handle)?;
        driver.graph_destroy(ended)?;
        equal(info()?, CaptureInfo::none(), "the state after a capture")?;
    }
    holds(ids[0] != ids[1], "two captures have two numbers")
}

fn a_forked_stream_tells_of_its_capture(fixture: &Fixture) -> CaseResult {
    let (one, two) = (fixture.stream()?, fixture.stream()?);
    let (fork, join) = (fixture.event()?, fixture.event()?);
    let buffer = fixture.iota(8, 0)?;
    let graph = fixture.capture(&one, CaptureMode::Global, || {
        fixture.add(&one, &buffer, 1)?;
        fixture.event_record(fork.handle, one.handle)?;
        equal(
            fixture.stream_capture_info(two.handle)?.status,
            CaptureStatus::None,
            "the other stream before it waits",
        )?;
        fixture.stream_wait_event(two.handle, fork.handle)?;
        let (origin, forked) =
            (fixture.stream_capture_info(one.handle)?, fixture.stream_capture_info(two.handle)?);
        equal(forked.id, origin.id, "the capture of the other stream once it waits")?;
        equal(forked.dependencies, origin.dependencies, "what the other stream's next command depends on")?;
        fixture.event_record(join.handle, two.handle)?;
        fixture.stream_wait_event(one.handle, join.handle)?;
        Ok(())
    })?;
    equal(fixture.graph_describe(graph.handle)?.nodes.len(), 1, "the nodes: events are none")
}

fn dependencies_are_replaced_and_added(fixture: &Fixture) -> CaseResult {
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let (one, two) = (fixture.iota(8, 0)?, fixture.iota(8, 0)?);
    let graph = fixture.capture(&stream, CaptureMode::Global, || {
        fixture.add(&stream, &one, 1)?;
        let first = driver.stream_capture_info(stream.handle)?.dependencies;
        driver.stream_update_capture_dependencies(stream.handle, &[], DependencyUpdate::Set)?;
        equal(
            driver.stream_capture_info(stream.handle)?.dependencies.len(),
            0,
            "the dependencies after none were set",
        )?;
        fixture.add(&stream, &two, 1)?;
        driver.stream_update_capture_dependencies(stream.handle, &first, DependencyUpdate::Add)?;
        equal(
            driver.stream_capture_info(stream.handle)?.dependencies.len(),
            2,
            "the dependencies after one was added",
        )?;
        fixture.launch(
            &stream,
            Kernel::Copy,
            KernelArguments::new(one.pointer, 8, 0).with_source(two.pointer),
        )?;
        Ok(())
    })?;
    let description = driver.graph_describe(graph.handle)?;
    equal(
        shape(&description),
        vec![(0, 1), (0, 1), (2, 0)],
        "edges of two roots and a node that depends on both",
    )?;
    graph.replay(&stream, 1)?;
    equal(one.words()?, (1..9).collect(), "what the last node copied")
}

/// Walks a diamond of nodes from its last node to its first, both during the capture and in the finished graph.
fn nodes_know_their_predecessors(fixture: &Fixture) -> CaseResult {
    let (one, two) = (fixture.stream()?, fixture.stream()?);
    let (fork, join) = (fixture.event()?, fixture.event()?);
    let (left, right) = (fixture.iota(8, 0)?, fixture.iota(8, 0)?);
    let last = |stream: &super::fixture::Stream<'_>| {
        Ok::<_, thalweg_driver::Error>(fixture.stream_capture_info(stream.handle)?.dependencies)
    };
    let mut walk = None;
    let graph = fixture.capture(&one, CaptureMode::Global, || {
        fixture.add(&one, &left, 1)?;
        let first = last(&one)?;
        fixture.event_record(fork.handle, one.handle)?;
        fixture.stream_wait_event(two.handle, fork.handle)?;
        fixture.add(&two, &right, 1)?;
        let branch = last(&two)?;
        fixture.add(&one, &left, 1)?;
        let own = last(&one)?;
        fixture.event_record(join.handle, two.handle)?;
        fixture.stream_wait_event(one.handle, join.handle)?;
        fixture.add(&one, &left, 1)?;
        let info = fixture.stream_capture_info(one.handle)?;
        let (Some(graph), [end]) = (info.graph, &info.dependencies[..]) else {
            return super::fixture::fail("a capture has a graph, and one node at its end");
        };
        let predecessors = |node| fixture.graph_node_predecessors(graph, node);
        let mut both = predecessors(*end)?;
        both.sort_unstable();
        let mut expected = [branch.clone(), own.clone()].concat();
        expected.sort_unstable();
        equal(&both, &expected, "what the node after the join depends on")?;
        equal(predecessors(branch[0])?, first.clone(), "what the node after the fork depends on")?;
        equal(predecessors(own[0])?, first.clone(), "what the second node depends on")?;
        equal(predecessors(first[0])?, vec![], "what the first node depends on")?;
        let wrong = GraphNodeHandle::from_raw(end.raw() ^ 0x8);
        refused_argument(predecessors(wrong), "the predecessors of a node that is none")?;
        walk = Some((graph, *end, both));
        Ok(())
    })?;
    let Some((under_construction, end, both)) = walk else { return Ok(()) };
    equal(under_construction, graph.handle, "the graph of the capture, and the one that it gave")?;
    let mut seen = fixture.graph_node_predecessors(graph.handle, end)?;
    seen.sort_unstable();
    equal(seen, both, "the predecessors once the capture is over")?;
    let other =
        fixture.capture(&two, CaptureMode::Global, || fixture.add(&two, &right, 1).map_err(Into::into))?;
    refused_argument(
        fixture.graph_node_predecessors(other.handle, end),
        "the predecessors of another graph's node",
    )
}

fn many_predecessors_are_all_there(fixture: &Fixture) -> CaseResult {
    const BRANCHES: usize = 33;
    let (one, event, buffer) = (fixture.stream()?, fixture.event()?, fixture.iota(8, 0)?);
    let graph = fixture.capture(&one, CaptureMode::Relaxed, || {
        let mut ends = Vec::new();
        for _ in 0..BRANCHES {
            fixture.stream_update_capture_dependencies(one.handle, &[], DependencyUpdate::Set)?;
            fixture.launch(&one, Kernel::Iota, KernelArguments::new(buffer.pointer, 0, 5))?;
            ends.extend(fixture.stream_capture_info(one.handle)?.dependencies);
        }
        fixture.stream_update_capture_dependencies(one.handle, &ends, DependencyUpdate::Set)?;
        fixture.add(&one, &buffer, 1)?;
        let info = fixture.stream_capture_info(one.handle)?;
        let Some(graph) = info.graph else { return super::fixture::fail("a capture has a graph") };
        let mut seen = fixture.graph_node_predecessors(graph, info.dependencies[0])?;
        seen.sort_unstable();
        ends.sort_unstable();
        equal(seen, ends, "a node after many")?;
        fixture.event_record(event.handle, one.handle)?;
        Ok(())
    })?;
    graph.replay(&one, 1)?;
    equal(buffer.words()?, (1..9).collect(), "memory after a launch")
}

fn nothing_is_a_graph_too(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let graph = fixture.capture(&stream, CaptureMode::Global, || Ok(()))?;
    equal(
        fixture.driver.graph_describe(graph.handle)?,
        GraphDescription::default(),
        "the graph of an empty capture",
    )?;
    graph.replay(&stream, 2)?;
    Ok(())
}

fn host_functions_run_at_each_launch(fixture: &Fixture) -> CaseResult {
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let count = Arc::new(AtomicU32::new(0));
    let graph = fixture.capture(&stream, CaptureMode::Global, || {
        let count = Arc::clone(&count);
        let increment = move || {
            count.fetch_add(1, Ordering::SeqCst);
        };
        driver.host_function_async(stream.handle, Arc::new(increment), Label::here("count"))?;
        Ok(())
    })?;
    equal(count.load(Ordering::SeqCst), 0, "how often the function ran before a launch")?;
    graph.replay(&stream, 5)?;
    equal(count.load(Ordering::SeqCst), 5, "how often it ran in five launches")
}

fn events_are_ordinary_again_after_a_new_record(fixture: &Fixture) -> CaseResult {
    let (stream, other, event) = (fixture.stream()?, fixture.stream()?, fixture.event()?);
    let _graph = fixture
        .capture(&stream, CaptureMode::Relaxed, || Ok(fixture.event_record(event.handle, stream.handle)?))?;
    fixture.event_record(event.handle, other.handle)?;
    fixture.event_synchronize(event.handle)?;
    equal(fixture.event_query(event.handle)?, true, "the event after a record outside")
}

fn other_streams_go_on(fixture: &Fixture) -> CaseResult {
    let (capturing, free) = (fixture.stream()?, fixture.stream()?);
    let (one, two) = (fixture.iota(8, 0)?, fixture.iota(8, 0)?);
    let graph = fixture.capture(&capturing, CaptureMode::Relaxed, || {
        fixture.add(&capturing, &one, 1)?;
        fixture.add(&free, &two, 2)?;
        equal(fixture.words_on(free.handle, two.pointer, 8)?, (2..10).collect(), "a stream beside a capture")
    })?;
    equal(fixture.driver.graph_describe(graph.handle)?.nodes.len(), 1, "the nodes of the captured stream")
}

/// Checks that the default stream can be used while another stream captures: only captures of blocking streams forbid it, and
/// `Driver` creates none.
fn the_default_stream_goes_on(fixture: &Fixture) -> CaseResult {
    let driver = fixture.driver();
    let default = driver.default_stream(fixture.device)?;
    let stream = fixture.stream()?;
    let (one, two) = (fixture.iota(8, 0)?, fixture.iota(8, 0)?);
    let graph = fixture.capture(&stream, CaptureMode::Global, || {
        fixture.add(&stream, &one, 1)?;
        equal(
            driver.stream_capture_info(default)?.status,
            CaptureStatus::None,
            "the status of the default stream",
        )?;
        fixture.kernels.launch(driver, default, Kernel::Add, KernelArguments::new(two.pointer, 8, 1))?;
        Ok(())
    })?;
    driver.stream_synchronize(default)?;
    equal(two.words()?, (1..9).collect(), "work of the default stream beside a capture")?;
    equal(driver.graph_describe(graph.handle)?.nodes.len(), 1, "the nodes of the captured stream")
}

fn relaxed_captures_allow_allocation(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let graph = fixture.capture(&stream, CaptureMode::Relaxed, || {
        let buffer = fixture.buffer(1024)?;
        fixture.add(&stream, &buffer, 1)?;
        Ok(())
    })?;
    // Never launched: its buffer is gone.
    equal(fixture.driver.graph_describe(graph.handle)?.nodes.len(), 1, "the nodes of the capture")
}

fn relaxed_captures_allow_freeing_pinned_memory(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let buffer = fixture.iota(4, 0)?;
    // Also memory that the device has copied from: freeing it may have to wait for the device.
    let used = fixture.driver.host_allocate(16, HostFlags::default())?;
    fixture.driver.host_write(used, &[0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0])?;
    let (source, target) = (Endpoint::Pinned(used), Endpoint::Device(buffer.pointer));
    fixture
        .driver
        .copy_async(stream.handle, &Copy { source, target, bytes: 16, label: Label::here("copy") })?;
    let graph = fixture.capture(&stream, CaptureMode::Relaxed, || {
        fixture.add(&stream, &buffer, 1)?;
        let pointer = fixture.driver.host_allocate(64, HostFlags::default())?;
        fixture.driver.host_free(used)?;
        Ok(fixture.driver.host_free(pointer)?)
    })?;
    graph.replay(&stream, 1)?;
    equal(buffer.words()?, vec![1, 2, 3, 4], "memory after a launch of the graph")
}

fn the_mode_of_a_thread_is_exchanged(fixture: &Fixture) -> CaseResult {
    let first = fixture.thread_exchange_capture_mode(CaptureMode::Relaxed)?;
    let second = fixture.thread_exchange_capture_mode(CaptureMode::ThreadLocal)?;
    let third = fixture.thread_exchange_capture_mode(first)?;
    equal(
        [first, second, third],
        [CaptureMode::Global, CaptureMode::Relaxed, CaptureMode::ThreadLocal],
        "modes",
    )
}

fn require_pools(fixture: &Fixture) -> CaseResult {
    if fixture.driver.device_properties(fixture.device)?.memory_pools {
        return Ok(());
    }
    skip("the device has no memory pools")
}

/// Captures two allocations whose lifetimes do not overlap, and checks their contents.
fn pool_memory_becomes_nodes(fixture: &Fixture) -> CaseResult {
    require_pools(fixture)?;
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let buffer = fixture.iota(64, 0)?;
    let pool = driver.pool_create(fixture.device)?;
    let graph = fixture.capture(&stream, CaptureMode::Global, || {
        for value in [5, 7] {
            let pointer = driver.memory_allocate_async(pool, 256, stream.handle)?;
            fixture.launch(&stream, Kernel::Constant, KernelArguments::new(pointer, 64, value))?;
            fixture.launch(&stream, Kernel::Add, KernelArguments::new(pointer, 64, 1))?;
            let copy = KernelArguments::new(buffer.pointer, 64, 0).with_source(pointer);
            fixture.launch(&stream, Kernel::Copy, copy)?;
            driver.memory_free_async(pointer, stream.handle)?;
            refused_argument(
                driver.memory_free_async(pointer, stream.handle),
                "a second free in the capture",
            )?;
        }
        Ok(())
    })?;
    let mut kinds: Vec<_> = driver
        .graph_describe(graph.handle)?
        .nodes
        .into_iter()
        .map(|node| format!("{:?}", node.kind))
        .collect();
    kinds.sort_unstable();
    let expected = [["Allocate"; 2].as_slice(), &["Free"; 2], &["Kernel"; 6]].concat();
    equal(kinds, expected.into_iter().map(str::to_owned).collect(), "the kinds of the nodes")?;
    graph.replay(&stream, 3)?;
    equal(buffer.words()?, vec![8; 64], "what went through memory of the graph")?;
    driver.pool_destroy(pool)?;
    graph.replay(&stream, 1)?;
    Ok(())
}

fn pool_memory_that_a_graph_leaves_is_freed_outside(fixture: &Fixture) -> CaseResult {
    require_pools(fixture)?;
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let pool = driver.pool_create(fixture.device)?;
    let mut left = None;
    let graph = fixture.capture(&stream, CaptureMode::Global, || {
        let pointer = driver.memory_allocate_async(pool, 4096, stream.handle)?;
        fixture.launch(&stream, Kernel::Iota, KernelArguments::new(pointer, 1024, 4))?;
        left = Some(pointer);
        Ok(())
    })?;
    let Some(pointer) = left else { return Ok(()) };
    let exec = driver.graph_instantiate(graph.handle, fixture.device)?;
    for _ in 0..2 {
        // The first launch leaves the memory allocated for the second, which frees it before it allocates again.
        driver.graph_launch(exec, stream.handle)?;
        driver.graph_launch(exec, stream.handle)?;
        let seen = fixture.words_on(stream.handle, pointer, 1024)?;
        driver.memory_free_async(pointer, stream.handle)?;
        equal(seen, (4..1028).collect(), "memory that a launch left allocated")?;
    }
    driver.stream_synchronize(stream.handle)?;
    driver.graph_exec_destroy(exec)?;
    Ok(driver.pool_destroy(pool)?)
}

fn pool_memory_of_before_is_not_freed_in_a_capture(fixture: &Fixture) -> CaseResult {
    require_pools(fixture)?;
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let pool = driver.pool_create(fixture.device)?;
    let pointer = driver.memory_allocate_async(pool, 4096, stream.handle)?;
    driver.stream_synchronize(stream.handle)?;
    driver.stream_begin_capture(stream.handle, CaptureMode::Relaxed)?;
    let freed = driver.memory_free_async(pointer, stream.handle);
    if let Ok(graph) = driver.stream_end_capture(stream.handle) {
        driver.graph_destroy(graph)?;
    }
    refused_argument(freed, "memory_free_async of memory of before, in a capture")?;
    driver.memory_free_async(pointer, stream.handle)?;
    driver.stream_synchronize(stream.handle)?;
    Ok(driver.pool_destroy(pool)?)
}
