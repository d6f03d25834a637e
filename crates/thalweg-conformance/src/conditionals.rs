//! Conditional nodes: which body runs, how often, in which order with other work, and which work a body must not contain.

use std::sync::Arc;

use thalweg_driver::{
    CaptureMode, CaptureStatus, Code, ConditionFormat, ConditionHandle, Conditional, DevicePointer, Fill,
    FillPattern, GraphDescription, GraphExecUpdate, GraphHandle, GraphNodeKind, GraphNodeWork, Label,
    UpdateReason,
};

use super::fixture::{
    Buffer, Fixture, Graph, Stream, check_refused, equal, fail, holds, refused_argument, skip,
};
use super::{CaseResult, Kernel, KernelArguments, group};

group! {
    "conditionals":
    an_if_runs_where_its_condition_is_not_zero,
    an_else_runs_where_it_is,
    a_switch_runs_one_case_or_none,
    a_loop_runs_until_its_condition_is_zero,
    a_loop_may_not_run_at_all,
    each_launch_starts_at_the_initial_value,
    a_condition_is_read_from_a_byte,
    what_follows_waits_for_the_body,
    bodies_have_branches,
    bodies_have_copies_and_fills,
    bodies_have_conditional_nodes,
    bodies_are_captured_after_their_graph,
    an_empty_body_does_nothing,
    nodes_tell_of_their_bodies,
    the_next_command_depends_on_the_node,
    executables_outlive_graphs_with_bodies,
    bodies_go_with_their_graph,
    bodies_are_parts,
    bodies_are_captured_once,
    graphs_whose_bodies_are_captured_are_refused,
    conditions_belong_to_one_node,
    conditions_belong_to_one_graph,
    conditions_are_parts_of_captures,
    unknown_conditions_are_refused,
    host_functions_have_no_place_in_a_body,
    graphs_with_conditions_are_not_updated,
    a_broken_capture_takes_its_bodies_along,
    a_body_that_fails_spoils_its_graph,
}

fn label() -> Label {
    Label::here("a condition of the suite")
}

/// Skips the case if the device does not support such nodes.
fn require(fixture: &Fixture, conditional: Conditional) -> CaseResult {
    let has = fixture.driver.device_properties(fixture.device)?.conditional_nodes;
    let is_there = match conditional {
        Conditional::If | Conditional::While => has.if_and_while,
        Conditional::IfElse | Conditional::Switch { .. } => has.else_and_switch,
    };
    if is_there {
        Ok(())
    } else {
        skip(format!("the driver has no conditional nodes of the kind {conditional}"))
    }
}

/// The work of a body, on the stream that it is captured on.
type Work<'w> = &'w dyn Fn(&Stream<'_>) -> CaseResult;

/// Fills a body.
fn fill_body(fixture: &Fixture, body: GraphHandle, stream: &Stream<'_>, work: Work<'_>) -> CaseResult {
    fixture.driver.stream_begin_capture_to_graph(stream.handle, body, CaptureMode::Global)?;
    work(stream)?;
    equal(
        fixture.driver.stream_end_capture(stream.handle)?,
        body,
        "the graph that a capture into a body gives",
    )
}

/// Captures a conditional node with its bodies, which are captured on `inner`.
fn node(
    fixture: &Fixture,
    [outer, inner]: [&Stream<'_>; 2],
    condition: ConditionHandle,
    conditional: Conditional,
    bodies: &[Work<'_>],
) -> CaseResult {
    let graphs = fixture.driver.conditional_node_add(outer.handle, condition, conditional, label())?;
    equal(graphs.len(), conditional.bodies() as usize, "the bodies of the node")?;
    graphs.into_iter().zip(bodies).try_for_each(|(body, work)| fill_body(fixture, body, inner, *work))
}

/// Returns a graph that sets a condition from `source` and has one conditional node on it.
fn deciding<'f>(
    fixture: &'f Fixture,
    source: &Buffer<'_>,
    conditional: Conditional,
    bodies: &[Work<'_>],
) -> CaseResult<Graph<'f>> {
    require(fixture, conditional)?;
    let (driver, outer, inner) = (fixture.driver(), fixture.stream()?, fixture.stream()?);
    fixture.capture(&outer, CaptureMode::Global, || {
        let condition = driver.condition_create(outer.handle, 0)?;
        driver.condition_set_async(outer.handle, condition, source.pointer, ConditionFormat::U32, label())?;
        node(fixture, [&outer, &inner], condition, conditional, bodies)
    })
}

/// Launches the graph with each of these conditions, and reads the first word of the buffer after each launch.
fn outcomes(
    fixture: &Fixture,
    graph: &Graph<'_>,
    source: &Buffer<'_>,
    conditions: &[u32],
    seen: &Buffer<'_>,
) -> CaseResult<Vec<u32>> {
    let stream = fixture.stream()?;
    let each = conditions.iter().map(|&condition| {
        fixture.set(&stream, seen, 0)?;
        fixture.set(&stream, source, condition)?;
        graph.replay(&stream, 1)?;
        Ok(seen.words()?[0])
    });
    each.collect()
}

fn an_if_runs_where_its_condition_is_not_zero(fixture: &Fixture) -> CaseResult {
    let (source, buffer) = (fixture.buffer(1)?, fixture.buffer(8)?);
    let graph =
        deciding(fixture, &source, Conditional::If, &[&|stream| Ok(fixture.add(stream, &buffer, 5)?)])?;
    let seen = outcomes(fixture, &graph, &source, &[0, 1, 0, 77, u32::MAX], &buffer)?;
    equal(seen, vec![0, 5, 0, 5, 5], "memory after an if that adds 5, for five conditions")
}

fn an_else_runs_where_it_is(fixture: &Fixture) -> CaseResult {
    let (source, buffer) = (fixture.buffer(1)?, fixture.buffer(8)?);
    let bodies: [Work<'_>; 2] =
        [&|stream| Ok(fixture.add(stream, &buffer, 5)?), &|stream| Ok(fixture.add(stream, &buffer, 9)?)];
    let graph = deciding(fixture, &source, Conditional::IfElse, &bodies)?;
    let seen = outcomes(fixture, &graph, &source, &[0, 1, 2, 0], &buffer)?;
    equal(seen, vec![9, 5, 5, 9], "memory after an if that adds 5, or else 9")
}

fn a_switch_runs_one_case_or_none(fixture: &Fixture) -> CaseResult {
    let (source, buffer) = (fixture.buffer(1)?, fixture.buffer(8)?);
    let bodies: [Work<'_>; 3] = [
        &|stream| Ok(fixture.add(stream, &buffer, 10)?),
        &|stream| Ok(fixture.add(stream, &buffer, 11)?),
        &|stream| Ok(fixture.add(stream, &buffer, 12)?),
    ];
    let graph = deciding(fixture, &source, Conditional::Switch { cases: 3 }, &bodies)?;
    let seen = outcomes(fixture, &graph, &source, &[2, 0, 3, 1, u32::MAX], &buffer)?;
    equal(seen, vec![12, 10, 0, 11, 0], "memory after a switch of three cases")
}

/// Returns a graph that adds 3 to a buffer as many times as the word at `count`, and leaves 0 in that word.
fn counting<'f>(
    fixture: &'f Fixture,
    count: &Buffer<'_>,
    buffer: &Buffer<'_>,
    initial: Option<u32>,
) -> CaseResult<Graph<'f>> {
    require(fixture, Conditional::While)?;
    let (driver, outer, inner) = (fixture.driver(), fixture.stream()?, fixture.stream()?);
    fixture.capture(&outer, CaptureMode::Global, || {
        let condition = driver.condition_create(outer.handle, initial.unwrap_or(0))?;
        let set = |stream: &Stream<'_>| {
            driver.condition_set_async(stream.handle, condition, count.pointer, ConditionFormat::U32, label())
        };
        if initial.is_none() {
            set(&outer)?;
        }
        let body = |stream: &Stream<'_>| {
            fixture.add(stream, buffer, 3)?;
            fixture.add(stream, count, u32::MAX)?;
            Ok(set(stream)?)
        };
        node(fixture, [&outer, &inner], condition, Conditional::While, &[&body])
    })
}

fn a_loop_runs_until_its_condition_is_zero(fixture: &Fixture) -> CaseResult {
    let (count, buffer) = (fixture.buffer(1)?, fixture.buffer(8)?);
    let graph = counting(fixture, &count, &buffer, None)?;
    let seen = outcomes(fixture, &graph, &count, &[1, 2, 100], &buffer)?;
    equal(seen, vec![3, 6, 300], "memory after a loop of so many rounds that add 3")
}

fn a_loop_may_not_run_at_all(fixture: &Fixture) -> CaseResult {
    let (count, buffer) = (fixture.buffer(1)?, fixture.buffer(8)?);
    let graph = counting(fixture, &count, &buffer, None)?;
    let seen = outcomes(fixture, &graph, &count, &[0, 4, 0], &buffer)?;
    equal(seen, vec![0, 12, 0], "memory after a loop whose condition is 0 at first")
}

fn each_launch_starts_at_the_initial_value(fixture: &Fixture) -> CaseResult {
    let (stream, count, buffer) = (fixture.stream()?, fixture.buffer(1)?, fixture.buffer(8)?);
    let graph = counting(fixture, &count, &buffer, Some(1))?;
    let exec = fixture.driver.graph_instantiate(graph.handle, fixture.device)?;
    fixture.set(&stream, &buffer, 0)?;
    for rounds in [3, 1, 2] {
        fixture.set(&stream, &count, rounds)?;
        fixture.driver.graph_launch(exec, stream.handle)?;
    }
    fixture.driver.stream_synchronize(stream.handle)?;
    fixture.driver.graph_exec_destroy(exec)?;
    equal(buffer.words()?, vec![18; 8], "memory after three launches of a loop that begins by itself")
}

fn a_condition_is_read_from_a_byte(fixture: &Fixture) -> CaseResult {
    require(fixture, Conditional::If)?;
    let (driver, outer, inner) = (fixture.driver(), fixture.stream()?, fixture.stream()?);
    let (source, buffer) = (fixture.buffer(1)?, fixture.buffer(8)?);
    // The bytes around it are not 0.
    let byte = source.pointer.offset(2);
    let graph = fixture.capture(&outer, CaptureMode::Global, || {
        let condition = driver.condition_create(outer.handle, 1)?;
        driver.condition_set_async(outer.handle, condition, byte, ConditionFormat::U8, label())?;
        node(
            fixture,
            [&outer, &inner],
            condition,
            Conditional::If,
            &[&|stream| Ok(fixture.add(stream, &buffer, 1)?)],
        )
    })?;
    let seen = outcomes(fixture, &graph, &source, &[0xff00_ffff, 0x0001_0000, 0x0080_0000], &buffer)?;
    equal(seen, vec![0, 1, 1], "memory after an if on the third byte of a word")
}

fn what_follows_waits_for_the_body(fixture: &Fixture) -> CaseResult {
    require(fixture, Conditional::If)?;
    let (driver, outer, inner) = (fixture.driver(), fixture.stream()?, fixture.stream()?);
    let (one, two) = (fixture.iota(8, 0)?, fixture.iota(8, 0)?);
    let graph = fixture.capture(&outer, CaptureMode::Global, || {
        fixture.launch(
            &outer,
            Kernel::Constant,
            KernelArguments::new(one.pointer, 8, 1).with_delay_us(500),
        )?;
        let condition = driver.condition_create(outer.handle, 0)?;
        driver.condition_set_async(outer.handle, condition, one.pointer, ConditionFormat::U32, label())?;
        node(
            fixture,
            [&outer, &inner],
            condition,
            Conditional::If,
            &[&|stream| {
                let slow = KernelArguments::new(one.pointer, 8, 40).with_delay_us(1000);
                Ok(fixture.launch(stream, Kernel::Add, slow)?)
            }],
        )?;
        Ok(fixture.launch(
            &outer,
            Kernel::Copy,
            KernelArguments::new(two.pointer, 8, 0).with_source(one.pointer),
        )?)
    })?;
    graph.replay(&outer, 3)?;
    equal(two.words()?, vec![41; 8], "what a kernel behind a conditional node copied")
}

fn bodies_have_branches(fixture: &Fixture) -> CaseResult {
    let (driver, other) = (fixture.driver(), fixture.stream()?);
    let (fork, join) = (fixture.event()?, fixture.event()?);
    let (source, buffer, side) = (fixture.buffer(1)?, fixture.buffer(8)?, fixture.buffer(8)?);
    let graph = deciding(
        fixture,
        &source,
        Conditional::If,
        &[&|stream| {
            driver.event_record(fork.handle, stream.handle)?;
            driver.stream_wait_event(other.handle, fork.handle)?;
            fixture.set(&other, &side, 30)?;
            fixture.add(stream, &buffer, 4)?;
            driver.event_record(join.handle, other.handle)?;
            driver.stream_wait_event(stream.handle, join.handle)?;
            let sum = KernelArguments::new(buffer.pointer, 8, 2).with_source(side.pointer);
            Ok(fixture.launch(stream, Kernel::Copy, sum)?)
        }],
    )?;
    equal(
        driver.stream_capture_info(other.handle)?.status,
        CaptureStatus::None,
        "the forked stream afterwards",
    )?;
    let seen = outcomes(fixture, &graph, &source, &[0, 1], &buffer)?;
    equal(seen, vec![0, 32], "memory after a body of two branches")
}

fn bodies_have_copies_and_fills(fixture: &Fixture) -> CaseResult {
    let (source, buffer, other) = (fixture.buffer(1)?, fixture.buffer(8)?, fixture.buffer(8)?);
    let fill = Fill { target: other.pointer, pattern: FillPattern::U32(21), count: 8, label: label() };
    let graph = deciding(
        fixture,
        &source,
        Conditional::If,
        &[&|stream| {
            fixture.driver.fill_async(stream.handle, &fill)?;
            Ok(fixture.copy(stream, buffer.end(), other.end(), 32)?)
        }],
    )?;
    let seen = outcomes(fixture, &graph, &source, &[0, 1], &buffer)?;
    equal(seen, vec![0, 21], "memory after a body that fills and copies")
}

/// Captures a loop of `n` rounds whose body contains a conditional node. The body of that node runs in all rounds but the last.
fn bodies_have_conditional_nodes(fixture: &Fixture) -> CaseResult {
    require(fixture, Conditional::While)?;
    let streams = [fixture.stream()?, fixture.stream()?, fixture.stream()?];
    let [outer, middle, inner] = &streams;
    let (count, buffer) = (fixture.buffer(1)?, fixture.buffer(8)?);
    let set = |stream: &Stream<'_>, condition| {
        fixture.condition_set_async(stream.handle, condition, count.pointer, ConditionFormat::U32, label())
    };
    let graph = fixture.capture(outer, CaptureMode::Global, || {
        let condition = fixture.condition_create(outer.handle, 0)?;
        set(outer, condition)?;
        node(
            fixture,
            [outer, middle],
            condition,
            Conditional::While,
            &[&|stream| {
                fixture.add(stream, &buffer, 100)?;
                fixture.add(stream, &count, u32::MAX)?;
                let within = fixture.condition_create(stream.handle, 0)?;
                set(stream, within)?;
                node(
                    fixture,
                    [stream, inner],
                    within,
                    Conditional::If,
                    &[&|stream| Ok(fixture.add(stream, &buffer, 1)?)],
                )?;
                Ok(set(stream, condition)?)
            }],
        )
    })?;
    let seen = outcomes(fixture, &graph, &count, &[0, 1, 5], &buffer)?;
    equal(seen, vec![0, 100, 504], "memory after a loop with an if in it")
}

/// Returns a graph of one conditional node, whose condition is the word at `source`; and its body, still empty.
fn empty_if<'f>(
    fixture: &'f Fixture,
    stream: &Stream<'_>,
    source: &Buffer<'_>,
) -> CaseResult<(Graph<'f>, GraphHandle)> {
    let mut bodies = Vec::new();
    let graph = fixture.capture(stream, CaptureMode::Global, || {
        let condition = fixture.condition_create(stream.handle, 0)?;
        fixture.condition_set_async(
            stream.handle,
            condition,
            source.pointer,
            ConditionFormat::U32,
            label(),
        )?;
        bodies = fixture.conditional_node_add(stream.handle, condition, Conditional::If, label())?;
        Ok(())
    })?;
    Ok((graph, bodies[0]))
}

fn bodies_are_captured_after_their_graph(fixture: &Fixture) -> CaseResult {
    require(fixture, Conditional::If)?;
    let stream = fixture.stream()?;
    let (source, buffer) = (fixture.buffer(1)?, fixture.buffer(8)?);
    let (graph, body) = empty_if(fixture, &stream, &source)?;
    fill_body(fixture, body, &stream, &|stream| Ok(fixture.add(stream, &buffer, 6)?))?;
    let seen = outcomes(fixture, &graph, &source, &[1, 0], &buffer)?;
    equal(seen, vec![6, 0], "memory after an if whose body was captured last")
}

fn an_empty_body_does_nothing(fixture: &Fixture) -> CaseResult {
    let (source, buffer) = (fixture.buffer(1)?, fixture.buffer(8)?);
    let graph = deciding(fixture, &source, Conditional::If, &[])?;
    let seen = outcomes(fixture, &graph, &source, &[1, 0], &buffer)?;
    equal(seen, vec![0, 0], "memory after an if with nothing in it")
}

fn kinds(graph: &GraphDescription) -> Vec<GraphNodeKind> {
    graph.nodes.iter().map(|node| node.kind).collect()
}

fn nodes_tell_of_their_bodies(fixture: &Fixture) -> CaseResult {
    let (source, buffer) = (fixture.buffer(1)?, fixture.buffer(8)?);
    let bodies: [Work<'_>; 2] = [&|stream| Ok(fixture.add(stream, &buffer, 5)?), &|stream| {
        fixture.add(stream, &buffer, 9)?;
        Ok(fixture.add(stream, &buffer, 9)?)
    }];
    let graph = deciding(fixture, &source, Conditional::IfElse, &bodies)?;
    let description = fixture.driver.graph_describe(graph.handle)?;
    equal(description.edges.len(), 1, "the edges of a graph that sets a condition and reads it")?;
    let node = description.nodes.iter().find(|node| node.kind == GraphNodeKind::Conditional);
    let Some(GraphNodeWork::Conditional { conditional, bodies }) = node.map(|node| &node.work) else {
        return fail("a conditional node tells that it is one");
    };
    equal(*conditional, Conditional::IfElse, "what the node makes of its condition")?;
    let expected = vec![vec![GraphNodeKind::Kernel], vec![GraphNodeKind::Kernel; 2]];
    equal(bodies.iter().map(kinds).collect::<Vec<_>>(), expected, "what its bodies hold")?;
    holds(description.to_dot().contains("else of"), "a drawing has a frame for each body")
}

fn the_next_command_depends_on_the_node(fixture: &Fixture) -> CaseResult {
    require(fixture, Conditional::If)?;
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let buffer = fixture.iota(8, 0)?;
    let graph = fixture.capture(&stream, CaptureMode::Global, || {
        fixture.add(&stream, &buffer, 1)?;
        let before = driver.stream_capture_info(stream.handle)?;
        let condition = driver.condition_create(stream.handle, 0)?;
        driver.conditional_node_add(stream.handle, condition, Conditional::If, label())?;
        let after = driver.stream_capture_info(stream.handle)?;
        let ([node], Some(graph)) = (&after.dependencies[..], after.graph) else {
            return fail("a capture has a graph, and one node at its end");
        };
        equal(
            driver.graph_node_predecessors(graph, *node)?,
            before.dependencies,
            "what the node depends on",
        )?;
        Ok(fixture.add(&stream, &buffer, 1)?)
    })?;
    graph.replay(&stream, 1)?;
    equal(buffer.words()?, (2..10).collect(), "memory after kernels around a node that does nothing")
}

fn executables_outlive_graphs_with_bodies(fixture: &Fixture) -> CaseResult {
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let (count, buffer) = (fixture.buffer(1)?, fixture.buffer(8)?);
    let graph = counting(fixture, &count, &buffer, None)?;
    let first = driver.graph_instantiate(graph.handle, fixture.device)?;
    let second = driver.graph_instantiate(graph.handle, fixture.device);
    check_refused(second, &[Code::NotSupported], "a second executable of a graph with conditional nodes")?;
    driver.graph_exec_destroy(first)?;
    let exec = driver.graph_instantiate(graph.handle, fixture.device)?;
    drop(graph);
    fixture.set(&stream, &buffer, 0)?;
    for _ in 0..3 {
        fixture.set(&stream, &count, 2)?;
        driver.graph_launch(exec, stream.handle)?;
    }
    driver.graph_exec_destroy(exec)?;
    driver.stream_synchronize(stream.handle)?;
    equal(buffer.words()?, vec![18; 8], "memory after loops whose graph was given up")
}

fn bodies_go_with_their_graph(fixture: &Fixture) -> CaseResult {
    require(fixture, Conditional::If)?;
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let mut made = None;
    let graph = fixture.capture(&stream, CaptureMode::Global, || {
        let condition = driver.condition_create(stream.handle, 0)?;
        let bodies = driver.conditional_node_add(stream.handle, condition, Conditional::If, label())?;
        made = Some((condition, bodies[0]));
        Ok(())
    })?;
    let Some((condition, body)) = made else { return fail("the capture ran") };
    drop(graph);
    check_refused(driver.graph_describe(body), &[Code::InvalidHandle], "a body whose graph was given up")?;
    let begun = driver.stream_begin_capture_to_graph(stream.handle, body, CaptureMode::Global);
    check_refused(begun, &[Code::InvalidHandle], "a capture into such a body")?;
    driver.stream_begin_capture(stream.handle, CaptureMode::Global)?;
    let added = driver.conditional_node_add(stream.handle, condition, Conditional::If, label());
    check_refused(added, &[Code::InvalidHandle], "a condition whose graph was given up")?;
    let graph = driver.stream_end_capture(stream.handle)?;
    Ok(driver.graph_destroy(graph)?)
}

fn bodies_are_parts(fixture: &Fixture) -> CaseResult {
    require(fixture, Conditional::If)?;
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let (source, buffer) = (fixture.buffer(1)?, fixture.buffer(8)?);
    let (graph, body) = empty_if(fixture, &stream, &source)?;
    fill_body(fixture, body, &stream, &|stream| Ok(fixture.add(stream, &buffer, 1)?))?;
    check_refused(driver.graph_destroy(body), &[Code::IllegalState], "a body that is given up by itself")?;
    let alone = driver.graph_instantiate(body, fixture.device);
    check_refused(alone, &[Code::IllegalState], "a body that is instantiated by itself")?;
    equal(driver.graph_describe(body)?.nodes.len(), 1, "the nodes of the body")?;
    let seen = outcomes(fixture, &graph, &source, &[1], &buffer)?;
    equal(seen, vec![1], "memory after an if whose body was refused by itself")
}

fn bodies_are_captured_once(fixture: &Fixture) -> CaseResult {
    require(fixture, Conditional::If)?;
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let buffer = fixture.buffer(8)?;
    let ordinary = fixture.capture(&stream, CaptureMode::Global, || Ok(fixture.set(&stream, &buffer, 1)?))?;
    let into = |graph| driver.stream_begin_capture_to_graph(stream.handle, graph, CaptureMode::Global);
    refused_argument(into(ordinary.handle), "a capture into a graph that is not a body")?;
    let mut bodies = Vec::new();
    let graph = fixture.capture(&stream, CaptureMode::Global, || {
        let condition = driver.condition_create(stream.handle, 0)?;
        bodies = driver.conditional_node_add(stream.handle, condition, Conditional::If, label())?;
        check_refused(into(bodies[0]), &[Code::IllegalState], "a capture on a stream that captures")?;
        Ok(())
    })?;
    fill_body(fixture, bodies[0], &stream, &|stream| Ok(fixture.set(stream, &buffer, 1)?))?;
    refused_argument(into(bodies[0]), "a second capture into a body")?;
    equal(driver.stream_capture_info(stream.handle)?.status, CaptureStatus::None, "the stream afterwards")?;
    graph.replay(&stream, 1)?;
    Ok(())
}

fn graphs_whose_bodies_are_captured_are_refused(fixture: &Fixture) -> CaseResult {
    require(fixture, Conditional::If)?;
    let (driver, stream, inner) = (fixture.driver(), fixture.stream()?, fixture.stream()?);
    let (source, buffer) = (fixture.buffer(1)?, fixture.buffer(8)?);
    let (graph, body) = empty_if(fixture, &stream, &source)?;
    driver.stream_begin_capture_to_graph(inner.handle, body, CaptureMode::Relaxed)?;
    let info = driver.stream_capture_info(inner.handle)?;
    equal(info.graph, Some(body), "the graph that a capture into a body builds")?;
    fixture.add(&inner, &buffer, 1)?;
    let early = driver.graph_instantiate(graph.handle, fixture.device);
    check_refused(early, &[Code::IllegalState], "a graph of which a body is being captured")?;
    check_refused(driver.graph_destroy(graph.handle), &[Code::IllegalState], "the same, given up")?;
    driver.stream_end_capture(inner.handle)?;
    let seen = outcomes(fixture, &graph, &source, &[1, 0], &buffer)?;
    equal(seen, vec![1, 0], "memory after an if once its body is there")
}

fn conditions_belong_to_one_node(fixture: &Fixture) -> CaseResult {
    require(fixture, Conditional::If)?;
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let graph = fixture.capture(&stream, CaptureMode::Global, || {
        let condition = driver.condition_create(stream.handle, 0)?;
        driver.conditional_node_add(stream.handle, condition, Conditional::If, label())?;
        let again = driver.conditional_node_add(stream.handle, condition, Conditional::While, label());
        refused_argument(again, "a second node on a condition")
    })?;
    equal(driver.graph_describe(graph.handle)?.nodes.len(), 1, "the nodes of the graph")?;
    Ok(graph.replay(&stream, 1)?)
}

fn conditions_belong_to_one_graph(fixture: &Fixture) -> CaseResult {
    require(fixture, Conditional::If)?;
    let (driver, one, two) = (fixture.driver(), fixture.stream()?, fixture.stream()?);
    let source = fixture.buffer(1)?;
    driver.stream_begin_capture(two.handle, CaptureMode::Relaxed)?;
    let graph = fixture.capture(&one, CaptureMode::Relaxed, || {
        let condition = driver.condition_create(one.handle, 0)?;
        let set =
            driver.condition_set_async(two.handle, condition, source.pointer, ConditionFormat::U32, label());
        refused_argument(set, "a condition that is set in another graph")?;
        let read = driver.conditional_node_add(two.handle, condition, Conditional::If, label());
        refused_argument(read, "a condition that is read in another graph")?;
        let crooked = source.pointer.offset(2);
        let set = driver.condition_set_async(one.handle, condition, crooked, ConditionFormat::U32, label());
        refused_argument(set, "a value that is not aligned")?;
        driver.conditional_node_add(one.handle, condition, Conditional::If, label())?;
        Ok(())
    })?;
    let other = driver.stream_end_capture(two.handle)?;
    driver.graph_destroy(other)?;
    Ok(graph.replay(&one, 1)?)
}

fn conditions_are_parts_of_captures(fixture: &Fixture) -> CaseResult {
    require(fixture, Conditional::If)?;
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let source = fixture.buffer(1)?;
    check_refused(
        driver.condition_create(stream.handle, 0),
        &[Code::IllegalState],
        "a condition outside of a capture",
    )?;
    let mut made = None;
    let graph = fixture.capture(&stream, CaptureMode::Global, || {
        let condition = driver.condition_create(stream.handle, 0)?;
        driver.conditional_node_add(stream.handle, condition, Conditional::If, label())?;
        made = Some(condition);
        Ok(())
    })?;
    let Some(condition) = made else { return fail("the capture ran") };
    let set =
        driver.condition_set_async(stream.handle, condition, source.pointer, ConditionFormat::U32, label());
    check_refused(set, &[Code::IllegalState], "a condition that is set outside of a capture")?;
    Ok(graph.replay(&stream, 1)?)
}

fn unknown_conditions_are_refused(fixture: &Fixture) -> CaseResult {
    require(fixture, Conditional::If)?;
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let graph = fixture.capture(&stream, CaptureMode::Global, || {
        for raw in [0, 1, 0xdead_beef, u64::MAX] {
            let condition = ConditionHandle::from_raw(raw);
            let source = DevicePointer::default();
            let set =
                driver.condition_set_async(stream.handle, condition, source, ConditionFormat::U8, label());
            check_refused(set, &[Code::InvalidHandle], "condition_set_async")?;
            let added = driver.conditional_node_add(stream.handle, condition, Conditional::If, label());
            check_refused(added, &[Code::InvalidHandle], "conditional_node_add")?;
        }
        let condition = driver.condition_create(stream.handle, 0)?;
        for cases in [0, Conditional::MOST_CASES + 1] {
            let added =
                driver.conditional_node_add(stream.handle, condition, Conditional::Switch { cases }, label());
            check_refused(
                added,
                &[Code::InvalidValue, Code::NotSupported],
                "a switch of no case, or too many",
            )?;
        }
        driver.conditional_node_add(stream.handle, condition, Conditional::If, label())?;
        Ok(())
    })?;
    Ok(graph.replay(&stream, 1)?)
}

/// A driver may detect it when the function is captured, when the capture ends, or when the graph is instantiated.
fn host_functions_have_no_place_in_a_body(fixture: &Fixture) -> CaseResult {
    require(fixture, Conditional::If)?;
    let (driver, stream, inner) = (fixture.driver(), fixture.stream()?, fixture.stream()?);
    let mut bodies = Vec::new();
    let graph = fixture.capture(&stream, CaptureMode::Global, || {
        let condition = driver.condition_create(stream.handle, 0)?;
        bodies = driver.conditional_node_add(stream.handle, condition, Conditional::If, label())?;
        Ok(())
    })?;
    driver.stream_begin_capture_to_graph(inner.handle, bodies[0], CaptureMode::Relaxed)?;
    let called = driver.host_function_async(inner.handle, Arc::new(|| ()), label());
    let ended = driver.stream_end_capture(inner.handle);
    let made = called.and(ended).and_then(|_| driver.graph_instantiate(graph.handle, fixture.device));
    holds(made.is_err(), "a graph with a host function in a body cannot be made")?;
    equal(driver.stream_capture_info(inner.handle)?.status, CaptureStatus::None, "the stream afterwards")
}

fn graphs_with_conditions_are_not_updated(fixture: &Fixture) -> CaseResult {
    let (count, buffer) = (fixture.buffer(1)?, fixture.buffer(8)?);
    let graph = counting(fixture, &count, &buffer, None)?;
    let exec = fixture.driver.graph_instantiate(graph.handle, fixture.device)?;
    let same = counting(fixture, &count, &buffer, None)?;
    let GraphExecUpdate::Refused(refusal) = fixture.driver.graph_exec_update(exec, same.handle)? else {
        return fail("an update of conditional nodes was done");
    };
    fixture.driver.graph_exec_destroy(exec)?;
    equal(refusal.reason, UpdateReason::NotSupported, "why the update was refused")
}

fn a_broken_capture_takes_its_bodies_along(fixture: &Fixture) -> CaseResult {
    require(fixture, Conditional::If)?;
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    driver.stream_begin_capture(stream.handle, CaptureMode::Relaxed)?;
    let condition = driver.condition_create(stream.handle, 0)?;
    let bodies = driver.conditional_node_add(stream.handle, condition, Conditional::If, label())?;
    let asked = driver.stream_query(stream.handle);
    check_refused(asked, &[Code::StreamCaptureUnsupported], "a query of a capturing stream")?;
    check_refused(
        driver.condition_create(stream.handle, 0),
        &[Code::StreamCaptureInvalidated],
        "a condition afterwards",
    )?;
    check_refused(
        driver.stream_end_capture(stream.handle),
        &[Code::StreamCaptureInvalidated],
        "the end of the capture",
    )?;
    check_refused(
        driver.graph_describe(bodies[0]),
        &[Code::InvalidHandle],
        "a body of a graph that there is not",
    )
}

fn a_body_that_fails_spoils_its_graph(fixture: &Fixture) -> CaseResult {
    require(fixture, Conditional::If)?;
    let (driver, stream, inside) = (fixture.driver(), fixture.stream()?, fixture.stream()?);
    let (side, buffer) = (fixture.stream()?, fixture.iota(8, 0)?);
    let event = fixture.event()?;
    driver.stream_begin_capture(stream.handle, CaptureMode::Relaxed)?;
    let condition = driver.condition_create(stream.handle, 1)?;
    let bodies = driver.conditional_node_add(stream.handle, condition, Conditional::If, label())?;
    driver.stream_begin_capture_to_graph(inside.handle, bodies[0], CaptureMode::Relaxed)?;
    driver.event_record(event.handle, inside.handle)?;
    driver.stream_wait_event(side.handle, event.handle)?;
    fixture.add(&side, &buffer, 1)?;
    let ended = driver.stream_end_capture(inside.handle);
    check_refused(ended, &[Code::StreamCaptureUnjoined], "the end of a body with a fork that is not joined")?;
    let again = driver.stream_begin_capture_to_graph(inside.handle, bodies[0], CaptureMode::Relaxed);
    check_refused(again, &[Code::IllegalState], "a second capture of the body")?;
    let graph = driver.stream_end_capture(stream.handle)?;
    check_refused(driver.graph_describe(graph), &[Code::IllegalState], "a description of the graph")?;
    let instantiated = driver.graph_instantiate(graph, fixture.device);
    check_refused(instantiated, &[Code::IllegalState], "an executable of the graph")?;
    driver.graph_destroy(graph)?;
    fixture.add(&stream, &buffer, 1)?;
    driver.stream_synchronize(stream.handle)?;
    equal(buffer.words()?, (1..9).collect(), "memory after a command of a stream that captured")
}
