//! Executable graphs: their launches in stream order, their lifetime, and the memory that they share.

use thalweg_driver::{CaptureMode, Code, EventFlags, GraphNodeKind};

use super::fixture::{Fixture, Graph, check_refused, equal, holds};
use super::{CaseResult, Kernel, KernelArguments, group};

group! {
    "graphs":
    launches_are_ordered_with_the_stream,
    launches_of_one_executable_follow_each_other,
    launches_are_ordered_by_events,
    an_executable_outlives_its_graph,
    a_launch_outlives_its_executable,
    a_graph_is_instantiated_twice,
    branches_run_all,
    a_graph_keeps_its_arguments,
    an_event_after_a_launch_waits_for_it,
    the_default_stream_launches_graphs,
    a_launch_waits_for_work_outside,
    a_wait_node_without_a_record_holds_nothing_up,
    work_outside_waits_for_a_place_in_a_launch,
    a_wait_node_sees_the_record_of_an_earlier_node,
    event_nodes_take_the_time,
    event_nodes_outlive_their_events,
    an_update_exchanges_the_events_of_nodes,
    event_nodes_are_for_captures,
}

/// Returns a graph that adds to a buffer with some delay.
fn adding<'f>(fixture: &'f Fixture, arguments: KernelArguments) -> CaseResult<Graph<'f>> {
    let stream = fixture.stream()?;
    fixture.capture(&stream, CaptureMode::Global, || Ok(fixture.launch(&stream, Kernel::Add, arguments)?))
}

fn launches_are_ordered_with_the_stream(fixture: &Fixture) -> CaseResult {
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let (buffer, copy) = (fixture.iota(32, 0)?, fixture.buffer(32)?);
    let graph = adding(fixture, KernelArguments::new(buffer.pointer, 32, 1).with_delay_us(100))?;
    let exec = driver.graph_instantiate(graph.handle, fixture.device)?;
    for round in 0..10 {
        fixture.launch(&stream, Kernel::Iota, KernelArguments::new(buffer.pointer, 32, round))?;
        driver.graph_launch(exec, stream.handle)?;
        fixture.copy(&stream, copy.end(), buffer.end(), 128)?;
        driver.graph_launch(exec, stream.handle)?;
        let seen = fixture.words_on(stream.handle, copy.pointer, 32)?;
        equal(seen, (round + 1..round + 33).collect(), "a copy between two launches of a graph")?;
        let seen = fixture.words_on(stream.handle, buffer.pointer, 32)?;
        equal(seen, (round + 2..round + 34).collect(), "memory after two launches of a graph")?;
    }
    driver.graph_exec_destroy(exec)?;
    Ok(())
}

fn launches_of_one_executable_follow_each_other(fixture: &Fixture) -> CaseResult {
    let streams = [fixture.stream()?, fixture.stream()?, fixture.stream()?];
    let buffer = fixture.iota(64, 0)?;
    let graph = adding(fixture, KernelArguments::new(buffer.pointer, 64, 1).with_delay_us(50))?;
    let exec = fixture.graph_instantiate(graph.handle, fixture.device)?;
    // Nothing else orders the three streams: an addition that is not atomic would be lost if two launches overlapped.
    for _ in 0..20 {
        for stream in &streams {
            fixture.graph_launch(exec, stream.handle)?;
        }
    }
    fixture.device_synchronize(fixture.device)?;
    fixture.graph_exec_destroy(exec)?;
    equal(buffer.words()?, (60..124).collect(), "sixty launches of one executable on three streams")
}

fn launches_are_ordered_by_events(fixture: &Fixture) -> CaseResult {
    let (one, two, event) = (fixture.stream()?, fixture.stream()?, fixture.event()?);
    let buffer = fixture.iota(16, 0)?;
    let graph = adding(fixture, KernelArguments::new(buffer.pointer, 16, 1))?;
    let exec = fixture.graph_instantiate(graph.handle, fixture.device)?;
    fixture.launch(&one, Kernel::Iota, KernelArguments::new(buffer.pointer, 16, 100).with_delay_us(1000))?;
    fixture.event_record(event.handle, one.handle)?;
    fixture.stream_wait_event(two.handle, event.handle)?;
    fixture.graph_launch(exec, two.handle)?;
    let seen = fixture.words_on(two.handle, buffer.pointer, 16)?;
    fixture.graph_exec_destroy(exec)?;
    equal(seen, (101..117).collect(), "a launch on a stream that waits for another")
}

fn an_executable_outlives_its_graph(fixture: &Fixture) -> CaseResult {
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let buffer = fixture.iota(16, 0)?;
    let graph = adding(fixture, KernelArguments::new(buffer.pointer, 16, 1))?;
    let exec = driver.graph_instantiate(graph.handle, fixture.device)?;
    drop(graph);
    for _ in 0..3 {
        driver.graph_launch(exec, stream.handle)?;
    }
    driver.stream_synchronize(stream.handle)?;
    driver.graph_exec_destroy(exec)?;
    equal(buffer.words()?, (3..19).collect(), "three launches after the graph was given up")
}

fn a_launch_outlives_its_executable(fixture: &Fixture) -> CaseResult {
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let buffer = fixture.iota(16, 0)?;
    let graph = adding(fixture, KernelArguments::new(buffer.pointer, 16, 1).with_delay_us(2000))?;
    let exec = driver.graph_instantiate(graph.handle, fixture.device)?;
    driver.graph_launch(exec, stream.handle)?;
    driver.graph_exec_destroy(exec)?;
    driver.stream_synchronize(stream.handle)?;
    equal(buffer.words()?, (1..17).collect(), "a launch whose executable was given up meanwhile")
}

fn a_graph_is_instantiated_twice(fixture: &Fixture) -> CaseResult {
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let buffer = fixture.iota(16, 0)?;
    let graph = adding(fixture, KernelArguments::new(buffer.pointer, 16, 1))?;
    let one = driver.graph_instantiate(graph.handle, fixture.device)?;
    let two = driver.graph_instantiate(graph.handle, fixture.device)?;
    driver.graph_launch(one, stream.handle)?;
    driver.graph_launch(two, stream.handle)?;
    driver.stream_synchronize(stream.handle)?;
    driver.graph_exec_destroy(one)?;
    driver.graph_launch(two, stream.handle)?;
    driver.stream_synchronize(stream.handle)?;
    driver.graph_exec_destroy(two)?;
    equal(buffer.words()?, (3..19).collect(), "launches of two executables of one graph")
}

fn branches_run_all(fixture: &Fixture) -> CaseResult {
    let origin = fixture.stream()?;
    let forks: Vec<_> = (0..5).map(|_| fixture.stream()).collect::<Result<_, _>>()?;
    let buffers: Vec<_> = (0..5).map(|_| fixture.iota(16, 0)).collect::<Result<_, _>>()?;
    let fork = fixture.event()?;
    let graph = fixture.capture(&origin, CaptureMode::Global, || {
        fixture.event_record(fork.handle, origin.handle)?;
        for (stream, buffer) in forks.iter().zip(&buffers) {
            fixture.stream_wait_event(stream.handle, fork.handle)?;
            fixture.add(stream, buffer, 1)?;
            fixture.add(stream, buffer, 2)?;
            let join = fixture.event()?;
            fixture.event_record(join.handle, stream.handle)?;
            fixture.stream_wait_event(origin.handle, join.handle)?;
        }
        Ok(())
    })?;
    equal(fixture.graph_describe(graph.handle)?.edges.len(), 5, "the edges of five branches of two nodes")?;
    graph.replay(&origin, 4)?;
    for buffer in &buffers {
        equal(buffer.words()?, (12..28).collect(), "a buffer of one of five branches after four launches")?;
    }
    Ok(())
}

fn a_graph_keeps_its_arguments(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let (buffer, pinned) = (fixture.iota(4, 0)?, fixture.pinned(16)?);
    // A captured copy reads its source at each launch, not when it was captured.
    fixture.driver.host_write(pinned.pointer, &[1; 16])?;
    let graph = fixture.capture(&stream, CaptureMode::Global, || {
        Ok(fixture.copy(&stream, buffer.end(), pinned.end_at(0), 16)?)
    })?;
    for value in [2, 3] {
        fixture.driver.host_write(pinned.pointer, &[value; 16])?;
        graph.replay(&stream, 1)?;
        let word = u32::from_le_bytes([value; 4]);
        equal(buffer.words()?, vec![word; 4], "what a launch copied")?;
    }
    Ok(())
}

fn an_event_after_a_launch_waits_for_it(fixture: &Fixture) -> CaseResult {
    let (stream, event) = (fixture.stream()?, fixture.event()?);
    let buffer = fixture.iota(4, 0)?;
    let graph = adding(fixture, KernelArguments::new(buffer.pointer, 4, 7).with_delay_us(3000))?;
    let exec = fixture.graph_instantiate(graph.handle, fixture.device)?;
    fixture.graph_launch(exec, stream.handle)?;
    fixture.event_record(event.handle, stream.handle)?;
    fixture.event_synchronize(event.handle)?;
    equal(buffer.words()?, (7..11).collect(), "memory once per event behind a launch is complete")?;
    fixture.graph_exec_destroy(exec)?;
    Ok(())
}

fn the_default_stream_launches_graphs(fixture: &Fixture) -> CaseResult {
    let default = fixture.default_stream(fixture.device)?;
    let buffer = fixture.iota(4, 0)?;
    let graph = adding(fixture, KernelArguments::new(buffer.pointer, 4, 1))?;
    let exec = fixture.graph_instantiate(graph.handle, fixture.device)?;
    fixture.graph_launch(exec, default)?;
    fixture.stream_synchronize(default)?;
    fixture.graph_exec_destroy(exec)?;
    equal(buffer.words()?, (1..5).collect(), "a launch on the default stream")
}

fn a_launch_waits_for_work_outside(fixture: &Fixture) -> CaseResult {
    let (inside, outside, event) = (fixture.stream()?, fixture.stream()?, fixture.event()?);
    let buffer = fixture.iota(16, 0)?;
    let graph = fixture.capture(&inside, CaptureMode::Global, || {
        fixture.stream_wait_event_external(inside.handle, event.handle)?;
        Ok(fixture.add(&inside, &buffer, 1)?)
    })?;
    let kinds: Vec<_> = fixture.graph_describe(graph.handle)?.nodes.iter().map(|node| node.kind).collect();
    holds(kinds.contains(&GraphNodeKind::WaitEvent) && kinds.len() == 2, "a wait becomes a node")?;
    let exec = fixture.graph_instantiate(graph.handle, fixture.device)?;
    for round in 1..4 {
        let gate = fixture.gate(outside.handle)?;
        fixture.set(&outside, &buffer, round * 10)?;
        fixture.event_record(event.handle, outside.handle)?;
        fixture.graph_launch(exec, inside.handle)?;
        equal(
            fixture.stream_query(inside.handle)?,
            false,
            "a launch that waits for a stream that is held up",
        )?;
        gate.open();
        let seen = fixture.words_on(inside.handle, buffer.pointer, 16)?;
        equal(seen, vec![round * 10 + 1; 16], "memory after a launch that waited for another stream")?;
    }
    Ok(fixture.graph_exec_destroy(exec)?)
}

fn a_wait_node_without_a_record_holds_nothing_up(fixture: &Fixture) -> CaseResult {
    let (driver, stream, event) = (fixture.driver(), fixture.stream()?, fixture.event()?);
    let buffer = fixture.iota(4, 0)?;
    let graph = fixture.capture(&stream, CaptureMode::Global, || {
        driver.stream_wait_event_external(stream.handle, event.handle)?;
        Ok(fixture.add(&stream, &buffer, 1)?)
    })?;
    graph.replay(&stream, 2)?;
    equal(buffer.words()?, (2..6).collect(), "two launches that wait for an event that is never recorded")
}

fn work_outside_waits_for_a_place_in_a_launch(fixture: &Fixture) -> CaseResult {
    let (inside, outside, event) = (fixture.stream()?, fixture.stream()?, fixture.event()?);
    let (buffer, seen) = (fixture.iota(16, 0)?, fixture.buffer(16)?);
    let graph = fixture.capture(&inside, CaptureMode::Global, || {
        let slow = KernelArguments::new(buffer.pointer, 16, 1).with_delay_us(200);
        fixture.launch(&inside, Kernel::Add, slow)?;
        Ok(fixture.event_record_external(event.handle, inside.handle)?)
    })?;
    equal(fixture.event_query(event.handle)?, true, "the event, which the capture leaves as it was")?;
    let exec = fixture.graph_instantiate(graph.handle, fixture.device)?;
    for round in 1..4 {
        let gate = fixture.gate(inside.handle)?;
        fixture.graph_launch(exec, inside.handle)?;
        equal(fixture.event_query(event.handle)?, false, "the event of a launch that is held up")?;
        fixture.stream_wait_event(outside.handle, event.handle)?;
        fixture.copy(&outside, seen.end(), buffer.end(), 64)?;
        gate.open();
        fixture.stream_synchronize(outside.handle)?;
        equal(seen.words()?, (round..round + 16).collect(), "what waited for a place in the graph")?;
    }
    fixture.stream_synchronize(inside.handle)?;
    Ok(fixture.graph_exec_destroy(exec)?)
}

fn a_wait_node_sees_the_record_of_an_earlier_node(fixture: &Fixture) -> CaseResult {
    let (one, two) = (fixture.stream()?, fixture.stream()?);
    let (event, fork, join) = (fixture.event()?, fixture.event()?, fixture.event()?);
    let buffer = fixture.iota(16, 0)?;
    let graph = fixture.capture(&one, CaptureMode::Global, || {
        fixture.event_record(fork.handle, one.handle)?;
        fixture.stream_wait_event(two.handle, fork.handle)?;
        let slow = KernelArguments::new(buffer.pointer, 16, 1).with_delay_us(200);
        fixture.launch(&one, Kernel::Add, slow)?;
        fixture.event_record_external(event.handle, one.handle)?;
        fixture.stream_wait_event_external(two.handle, event.handle)?;
        fixture.launch(&two, Kernel::Add, slow)?;
        fixture.event_record(join.handle, two.handle)?;
        Ok(fixture.stream_wait_event(one.handle, join.handle)?)
    })?;
    graph.replay(&one, 4)?;
    equal(buffer.words()?, (8..24).collect(), "two additions per launch that an event of their own orders")
}

fn event_nodes_take_the_time(fixture: &Fixture) -> CaseResult {
    let timed = EventFlags { timing: true, ..EventFlags::default() };
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let (start, end) = (fixture.event_with(timed)?, fixture.event_with(timed)?);
    let buffer = fixture.iota(4, 0)?;
    let graph = fixture.capture(&stream, CaptureMode::Global, || {
        driver.event_record_external(start.handle, stream.handle)?;
        let slow = KernelArguments::new(buffer.pointer, 4, 1).with_delay_us(2000);
        fixture.launch(&stream, Kernel::Add, slow)?;
        Ok(driver.event_record_external(end.handle, stream.handle)?)
    })?;
    let early = driver.event_elapsed_ms(start.handle, end.handle);
    check_refused(early, &[Code::InvalidHandle], "the time between events of a graph that was not launched")?;
    graph.replay(&stream, 2)?;
    let elapsed = driver.event_elapsed_ms(start.handle, end.handle)?;
    holds(elapsed.is_finite() && elapsed >= 0.0, &format!("{elapsed} ms is a time"))
}

fn event_nodes_outlive_their_events(fixture: &Fixture) -> CaseResult {
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let (waited, recorded) = (fixture.event()?, fixture.event()?);
    let buffer = fixture.iota(4, 0)?;
    let graph = fixture.capture(&stream, CaptureMode::Global, || {
        driver.stream_wait_event_external(stream.handle, waited.handle)?;
        fixture.add(&stream, &buffer, 1)?;
        Ok(driver.event_record_external(recorded.handle, stream.handle)?)
    })?;
    drop((waited, recorded));
    graph.replay(&stream, 2)?;
    equal(buffer.words()?, (2..6).collect(), "two launches after the events of the nodes were given up")
}

fn an_update_exchanges_the_events_of_nodes(fixture: &Fixture) -> CaseResult {
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let (first, second) = (fixture.event()?, fixture.event()?);
    let buffer = fixture.iota(4, 0)?;
    let recording = |event| {
        fixture.capture(&stream, CaptureMode::Global, || {
            fixture.add(&stream, &buffer, 1)?;
            Ok(driver.event_record_external(event, stream.handle)?)
        })
    };
    let (graph, other) = (recording(first.handle)?, recording(second.handle)?);
    let exec = driver.graph_instantiate(graph.handle, fixture.device)?;
    let updated = driver.graph_exec_update(exec, other.handle)?;
    holds(updated.is_updated(), "graphs that differ in their events have one shape")?;
    let gate = fixture.gate(stream.handle)?;
    driver.graph_launch(exec, stream.handle)?;
    equal(driver.event_query(first.handle)?, true, "the event that the executable recorded before")?;
    equal(driver.event_query(second.handle)?, false, "the event that it records now")?;
    gate.open();
    driver.stream_synchronize(stream.handle)?;
    Ok(driver.graph_exec_destroy(exec)?)
}

fn event_nodes_are_for_captures(fixture: &Fixture) -> CaseResult {
    let (driver, stream, event) = (fixture.driver(), fixture.stream()?, fixture.event()?);
    let no = &[Code::IllegalState];
    check_refused(
        driver.event_record_external(event.handle, stream.handle),
        no,
        "a record node without a capture",
    )?;
    check_refused(
        driver.stream_wait_event_external(stream.handle, event.handle),
        no,
        "a wait node without a capture",
    )?;
    equal(driver.event_query(event.handle)?, true, "the event, which was not recorded")
}
