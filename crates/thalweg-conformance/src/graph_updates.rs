//! Updates of executable graphs: which changes are allowed, which are not, and what remains unchanged.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use thalweg_driver::{
    CaptureMode, Code, Fill, FillPattern, GraphExecHandle, GraphExecUpdate, GraphHandle, GraphNodeHandle,
    GraphNodeKind, Label, UpdateReason, UpdateRefusal,
};

use super::fixture::{
    Buffer, Fixture, Graph, Stream, check_refused, equal, fail, holds, refused_argument, skip,
};
use super::{CaseResult, Kernel, KernelArguments, group};

group! {
    "graph_updates":
    an_update_takes_over_the_work,
    an_update_replaces_kernels,
    an_update_pairs_branches,
    an_update_leaves_queued_launches_alone,
    copies_and_fills_move,
    host_functions_are_taken_over,
    a_graph_with_more_nodes_is_refused,
    a_graph_of_another_shape_is_refused,
    nodes_of_another_kind_are_refused,
    copies_between_other_memory_are_refused,
    priorities_stay,
    graphs_under_construction_are_refused,
    a_kernel_gets_new_arguments,
    a_kernel_becomes_another,
    a_new_kernel_leaves_queued_launches_alone,
    a_new_kernel_leaves_the_graph_alone,
    nodes_keep_their_names_after_an_update,
    nodes_that_are_no_kernel_stay,
    nodes_of_other_graphs_are_refused,
    without_its_graph_an_executable_has_no_names,
    wrong_launches_are_refused,
}

/// Returns the graph of the work that `work` submits to a stream of its own.
fn captured<'f>(fixture: &'f Fixture, work: impl FnOnce(&Stream<'f>) -> CaseResult) -> CaseResult<Graph<'f>> {
    let stream = fixture.stream()?;
    fixture.capture(&stream, CaptureMode::Global, || work(&stream))
}

/// Returns a graph that adds to buffers, one after another.
fn adding<'f>(fixture: &'f Fixture, work: &[(&Buffer<'f>, u32)]) -> CaseResult<Graph<'f>> {
    captured(fixture, |stream| {
        work.iter().try_for_each(|(buffer, value)| Ok(fixture.add(stream, buffer, *value)?))
    })
}

fn instantiate(fixture: &Fixture, graph: &Graph<'_>) -> CaseResult<GraphExecHandle> {
    Ok(fixture.driver.graph_instantiate(graph.handle, fixture.device)?)
}

/// Launches the executable, and waits.
fn launch(fixture: &Fixture, exec: GraphExecHandle) -> CaseResult {
    let stream = fixture.stream()?;
    fixture.driver.graph_launch(exec, stream.handle)?;
    Ok(fixture.driver.stream_synchronize(stream.handle)?)
}

fn updated(fixture: &Fixture, exec: GraphExecHandle, graph: &Graph<'_>) -> CaseResult {
    equal(fixture.driver.graph_exec_update(exec, graph.handle)?, GraphExecUpdate::Updated, "the update")
}

/// Checks that an update is refused for this reason, at a node that belongs to the graph.
fn not_updated(
    fixture: &Fixture,
    exec: GraphExecHandle,
    graph: GraphHandle,
    reason: UpdateReason,
) -> CaseResult<UpdateRefusal> {
    let GraphExecUpdate::Refused(refusal) = fixture.driver.graph_exec_update(exec, graph)? else {
        return fail("an update that cannot be was done");
    };
    equal(refusal.reason, reason, "why the update was refused")?;
    let nodes = fixture.driver.graph_describe(graph)?.nodes;
    let is_known = |node: Option<GraphNodeHandle>| {
        node.is_none_or(|node| nodes.iter().any(|known| known.handle == node))
    };
    holds(is_known(refusal.node), "the node that a refusal names is one of the new graph's")?;
    Ok(refusal)
}

/// Returns the only kernel of a graph.
fn kernel_of(fixture: &Fixture, graph: &Graph<'_>) -> CaseResult<GraphNodeHandle> {
    let nodes = fixture.driver.graph_describe(graph.handle)?.nodes;
    match nodes.iter().find(|node| node.kind == GraphNodeKind::Kernel) {
        Some(node) => Ok(node.handle),
        None => fail("a graph with a captured kernel has a kernel"),
    }
}

fn set(
    fixture: &Fixture,
    exec: GraphExecHandle,
    node: GraphNodeHandle,
    kernel: Kernel,
    arguments: KernelArguments,
) -> thalweg_driver::Result<()> {
    fixture.kernels.with_launch(kernel, arguments, |launch| {
        fixture.driver.graph_exec_kernel_node_set_params(exec, node, launch)
    })
}

fn an_update_takes_over_the_work(fixture: &Fixture) -> CaseResult {
    let (one, two) = (fixture.iota(40, 0)?, fixture.iota(40, 0)?);
    let graph = adding(fixture, &[(&one, 1), (&one, 2)])?;
    let exec = instantiate(fixture, &graph)?;
    launch(fixture, exec)?;
    let other = adding(fixture, &[(&two, 10), (&one, 20)])?;
    updated(fixture, exec, &other)?;
    // The executable does not need the graph that it was updated from.
    drop(other);
    launch(fixture, exec)?;
    fixture.driver.graph_exec_destroy(exec)?;
    equal(one.words()?, (23..63).collect(), "memory of the first graph's kernels")?;
    equal(two.words()?, (10..50).collect(), "memory of the second graph's first kernel")
}

fn an_update_replaces_kernels(fixture: &Fixture) -> CaseResult {
    let (one, two) = (fixture.iota(16, 0)?, fixture.iota(1000, 0)?);
    let graph = adding(fixture, &[(&one, 1)])?;
    let exec = instantiate(fixture, &graph)?;
    let other = captured(fixture, |stream| {
        Ok(fixture.launch(stream, Kernel::Iota, KernelArguments::new(two.pointer, 1000, 7))?)
    })?;
    updated(fixture, exec, &other)?;
    launch(fixture, exec)?;
    fixture.driver.graph_exec_destroy(exec)?;
    equal(one.words()?, (0..16).collect(), "memory of the kernel that was replaced")?;
    equal(two.words()?, (7..1007).collect(), "memory of its successor, with a larger grid")
}

/// Returns a graph of a kernel, two branches after it, and a kernel after both.
fn diamond<'f>(fixture: &'f Fixture, buffers: [&Buffer<'f>; 3], value: u32) -> CaseResult<Graph<'f>> {
    let (one, two) = (fixture.stream()?, fixture.stream()?);
    let (fork, join) = (fixture.event()?, fixture.event()?);
    let [first, left, right] = buffers;
    fixture.capture(&one, CaptureMode::Global, || {
        fixture.set(&one, first, value)?;
        fixture.event_record(fork.handle, one.handle)?;
        fixture.stream_wait_event(two.handle, fork.handle)?;
        let copy = |target: &Buffer<'_>, more| {
            KernelArguments::new(target.pointer, 8, more).with_source(first.pointer).with_delay_us(50)
        };
        fixture.launch(&one, Kernel::Copy, copy(left, 1))?;
        fixture.launch(&two, Kernel::Copy, copy(right, 2))?;
        fixture.event_record(join.handle, two.handle)?;
        fixture.stream_wait_event(one.handle, join.handle)?;
        Ok(fixture.launch(
            &one,
            Kernel::Copy,
            KernelArguments::new(first.pointer, 8, 0).with_source(right.pointer),
        )?)
    })
}

fn an_update_pairs_branches(fixture: &Fixture) -> CaseResult {
    let buffers: Vec<_> = (0..6).map(|_| fixture.iota(8, 0)).collect::<Result<_, _>>()?;
    let [a, b, c, d, e, f] = &buffers[..] else { return fail("six buffers") };
    let graph = diamond(fixture, [a, b, c], 100)?;
    let exec = instantiate(fixture, &graph)?;
    launch(fixture, exec)?;
    equal(
        [a, b, c].map(|buffer| buffer.words().map(|words| words[0]).ok()),
        [102, 101, 102].map(Some),
        "a diamond",
    )?;
    updated(fixture, exec, &diamond(fixture, [d, e, f], 200)?)?;
    launch(fixture, exec)?;
    equal(
        [d, e, f].map(|buffer| buffer.words().map(|words| words[0]).ok()),
        [202, 201, 202].map(Some),
        "a diamond that took another's place",
    )?;
    Ok(fixture.driver.graph_exec_destroy(exec)?)
}

fn an_update_leaves_queued_launches_alone(fixture: &Fixture) -> CaseResult {
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let (one, two) = (fixture.iota(8, 0)?, fixture.iota(8, 0)?);
    let graph = adding(fixture, &[(&one, 1)])?;
    let exec = instantiate(fixture, &graph)?;
    let other = adding(fixture, &[(&two, 1)])?;
    // The executable is loaded at its first launch, which may wait for the device.
    launch(fixture, exec)?;
    let gate = fixture.gate(stream.handle)?;
    driver.graph_launch(exec, stream.handle)?;
    updated(fixture, exec, &other)?;
    gate.open();
    driver.graph_launch(exec, stream.handle)?;
    driver.stream_synchronize(stream.handle)?;
    driver.graph_exec_destroy(exec)?;
    equal(one.words()?, (2..10).collect(), "memory of the launches before the update")?;
    equal(two.words()?, (1..9).collect(), "memory of the launch after it")
}

fn copies_and_fills_move(fixture: &Fixture) -> CaseResult {
    let buffers: Vec<_> = (0..4).map(|_| fixture.iota(8, 0)).collect::<Result<_, _>>()?;
    let graph = |target: &Buffer<'_>, copy: &Buffer<'_>, value| {
        captured(fixture, |stream| {
            let label = Label::here("a captured fill");
            let pattern = FillPattern::U32(value);
            fixture.fill_async(stream.handle, &Fill { target: target.pointer, pattern, count: 8, label })?;
            Ok(fixture.copy(stream, copy.end(), target.end(), 32)?)
        })
    };
    let first = graph(&buffers[0], &buffers[1], 5)?;
    let exec = instantiate(fixture, &first)?;
    launch(fixture, exec)?;
    updated(fixture, exec, &graph(&buffers[2], &buffers[3], 6)?)?;
    launch(fixture, exec)?;
    fixture.graph_exec_destroy(exec)?;
    let seen = buffers.iter().map(|buffer| Ok(buffer.words()?[7])).collect::<CaseResult<Vec<_>>>()?;
    equal(seen, vec![5, 5, 6, 6], "what two fills and two copies left")
}

fn host_functions_are_taken_over(fixture: &Fixture) -> CaseResult {
    let counts = [0; 2].map(|_| Arc::new(AtomicU32::new(0)));
    let counting = |count: &Arc<AtomicU32>| {
        let count = Arc::clone(count);
        captured(fixture, move |stream| {
            let function = Arc::new(move || {
                count.fetch_add(1, Ordering::SeqCst);
            });
            let label = Label::here("a counter");
            Ok(fixture.driver.host_function_async(stream.handle, function, label)?)
        })
    };
    let graph = counting(&counts[0])?;
    let exec = instantiate(fixture, &graph)?;
    launch(fixture, exec)?;
    let other = counting(&counts[1])?;
    updated(fixture, exec, &other)?;
    drop((graph, other));
    launch(fixture, exec)?;
    launch(fixture, exec)?;
    fixture.driver.graph_exec_destroy(exec)?;
    equal(counts.map(|count| count.load(Ordering::SeqCst)), [1, 2], "how often each function ran")
}

fn a_graph_with_more_nodes_is_refused(fixture: &Fixture) -> CaseResult {
    let buffer = fixture.iota(8, 0)?;
    let graph = adding(fixture, &[(&buffer, 1)])?;
    let exec = instantiate(fixture, &graph)?;
    let other = adding(fixture, &[(&buffer, 10), (&buffer, 10)])?;
    not_updated(fixture, exec, other.handle, UpdateReason::TopologyChanged)?;
    launch(fixture, exec)?;
    fixture.driver.graph_exec_destroy(exec)?;
    equal(buffer.words()?, (1..9).collect(), "a launch after an update that was refused")
}

fn a_graph_of_another_shape_is_refused(fixture: &Fixture) -> CaseResult {
    let buffers: Vec<_> = (0..3).map(|_| fixture.iota(8, 0)).collect::<Result<_, _>>()?;
    let [a, b, c] = &buffers[..] else { return fail("three buffers") };
    let graph = diamond(fixture, [a, b, c], 100)?;
    let exec = instantiate(fixture, &graph)?;
    // The same number of nodes, in one row.
    let other = adding(fixture, &[(a, 1), (b, 1), (c, 1), (a, 1)])?;
    not_updated(fixture, exec, other.handle, UpdateReason::TopologyChanged)?;
    launch(fixture, exec)?;
    fixture.driver.graph_exec_destroy(exec)?;
    equal(a.words()?, vec![102; 8], "a launch after an update that was refused")
}

fn nodes_of_another_kind_are_refused(fixture: &Fixture) -> CaseResult {
    let buffer = fixture.iota(8, 0)?;
    let graph = adding(fixture, &[(&buffer, 1), (&buffer, 2)])?;
    let exec = instantiate(fixture, &graph)?;
    let other = captured(fixture, |stream| {
        fixture.add(stream, &buffer, 10)?;
        Ok(fixture.copy(stream, buffer.end(), buffer.end_at(16), 16)?)
    })?;
    let refusal = not_updated(fixture, exec, other.handle, UpdateReason::KindChanged)?;
    let nodes = fixture.driver.graph_describe(other.handle)?.nodes;
    let copy = nodes.iter().find(|node| node.kind == GraphNodeKind::Copy).map(|node| node.handle);
    equal(refusal.node, copy, "the node whose kind is another")?;
    launch(fixture, exec)?;
    fixture.driver.graph_exec_destroy(exec)?;
    equal(buffer.words()?, (3..11).collect(), "a launch after an update that was refused")
}

fn copies_between_other_memory_are_refused(fixture: &Fixture) -> CaseResult {
    let (one, two, pinned) = (fixture.iota(8, 0)?, fixture.iota(8, 50)?, fixture.pinned(32)?);
    fixture.driver.host_write(pinned.pointer, &[1; 32])?;
    let graph = |value, source| {
        captured(fixture, |stream| {
            fixture.copy(stream, one.end(), source, 32)?;
            Ok(fixture.add(stream, &one, value)?)
        })
    };
    let first = graph(1, two.end())?;
    let exec = instantiate(fixture, &first)?;
    let other = graph(100, pinned.end_at(0))?;
    not_updated(fixture, exec, other.handle, UpdateReason::ParametersChanged)?;
    launch(fixture, exec)?;
    fixture.driver.graph_exec_destroy(exec)?;
    equal(one.words()?, (51..59).collect(), "a launch after an update that was refused")
}

fn priorities_stay(fixture: &Fixture) -> CaseResult {
    let driver = fixture.driver();
    let (least, greatest) = driver.device_properties(fixture.device)?.stream_priority_range;
    if least == greatest {
        return skip("the device has one priority");
    }
    let buffer = fixture.iota(8, 0)?;
    let graph = |priority| -> CaseResult<GraphHandle> {
        let stream = driver.stream_create(fixture.device, priority)?;
        driver.stream_begin_capture(stream, CaptureMode::Global)?;
        let arguments = KernelArguments::new(buffer.pointer, 8, 1);
        fixture.kernels.launch(driver, stream, Kernel::Add, arguments)?;
        let graph = driver.stream_end_capture(stream)?;
        driver.stream_destroy(stream)?;
        Ok(graph)
    };
    let (urgent, other) = (graph(greatest)?, graph(least)?);
    let exec = driver.graph_instantiate(urgent, fixture.device)?;
    not_updated(fixture, exec, other, UpdateReason::AttributesChanged)?;
    driver.graph_exec_destroy(exec)?;
    driver.graph_destroy(urgent)?;
    Ok(driver.graph_destroy(other)?)
}

fn graphs_under_construction_are_refused(fixture: &Fixture) -> CaseResult {
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let buffer = fixture.iota(8, 0)?;
    let graph = adding(fixture, &[(&buffer, 1)])?;
    let exec = instantiate(fixture, &graph)?;
    driver.stream_begin_capture(stream.handle, CaptureMode::Relaxed)?;
    fixture.add(&stream, &buffer, 10)?;
    let Some(unfinished) = driver.stream_capture_info(stream.handle)?.graph else {
        return fail("a capture has a graph");
    };
    check_refused(
        driver.graph_exec_update(exec, unfinished),
        &[Code::IllegalState],
        "an update from an unfinished graph",
    )?;
    let finished = driver.stream_end_capture(stream.handle)?;
    equal(driver.graph_exec_update(exec, finished)?, GraphExecUpdate::Updated, "once the capture is over")?;
    driver.graph_destroy(finished)?;
    launch(fixture, exec)?;
    driver.graph_exec_destroy(exec)?;
    equal(buffer.words()?, (10..18).collect(), "what the launch added")
}

fn a_kernel_gets_new_arguments(fixture: &Fixture) -> CaseResult {
    let (one, two) = (fixture.iota(8, 0)?, fixture.iota(600, 0)?);
    let graph = adding(fixture, &[(&one, 1)])?;
    let (exec, node) = (instantiate(fixture, &graph)?, kernel_of(fixture, &graph)?);
    set(fixture, exec, node, Kernel::Add, KernelArguments::new(two.pointer, 600, 3))?;
    launch(fixture, exec)?;
    launch(fixture, exec)?;
    fixture.driver.graph_exec_destroy(exec)?;
    equal(one.words()?, (0..8).collect(), "memory of the arguments that were replaced")?;
    equal(two.words()?, (6..606).collect(), "memory of the new arguments, with a larger grid")
}

fn a_kernel_becomes_another(fixture: &Fixture) -> CaseResult {
    let (one, two) = (fixture.iota(8, 0)?, fixture.iota(8, 0)?);
    let graph = adding(fixture, &[(&one, 1)])?;
    let (exec, node) = (instantiate(fixture, &graph)?, kernel_of(fixture, &graph)?);
    let copy = KernelArguments::new(two.pointer, 8, 40).with_source(one.pointer);
    set(fixture, exec, node, Kernel::Copy, copy)?;
    launch(fixture, exec)?;
    fixture.driver.graph_exec_destroy(exec)?;
    equal(two.words()?, (40..48).collect(), "what the other kernel wrote")
}

fn a_new_kernel_leaves_queued_launches_alone(fixture: &Fixture) -> CaseResult {
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let (one, two) = (fixture.iota(8, 0)?, fixture.iota(8, 0)?);
    let graph = adding(fixture, &[(&one, 1)])?;
    let (exec, node) = (instantiate(fixture, &graph)?, kernel_of(fixture, &graph)?);
    launch(fixture, exec)?;
    let gate = fixture.gate(stream.handle)?;
    driver.graph_launch(exec, stream.handle)?;
    set(fixture, exec, node, Kernel::Add, KernelArguments::new(two.pointer, 8, 1))?;
    gate.open();
    driver.graph_launch(exec, stream.handle)?;
    driver.stream_synchronize(stream.handle)?;
    driver.graph_exec_destroy(exec)?;
    equal(one.words()?, (2..10).collect(), "memory of the launches before the change")?;
    equal(two.words()?, (1..9).collect(), "memory of the launch after it")
}

fn a_new_kernel_leaves_the_graph_alone(fixture: &Fixture) -> CaseResult {
    let (one, two) = (fixture.iota(8, 0)?, fixture.iota(8, 0)?);
    let graph = adding(fixture, &[(&one, 1)])?;
    let (exec, node) = (instantiate(fixture, &graph)?, kernel_of(fixture, &graph)?);
    let sibling = instantiate(fixture, &graph)?;
    set(fixture, exec, node, Kernel::Add, KernelArguments::new(two.pointer, 8, 1))?;
    let later = instantiate(fixture, &graph)?;
    for exec in [exec, sibling, later] {
        launch(fixture, exec)?;
        fixture.driver.graph_exec_destroy(exec)?;
    }
    equal(one.words()?, (2..10).collect(), "memory of the graph's other executables")?;
    equal(two.words()?, (1..9).collect(), "memory of the one that was changed")
}

fn nodes_keep_their_names_after_an_update(fixture: &Fixture) -> CaseResult {
    let buffers: Vec<_> = (0..3).map(|_| fixture.iota(8, 0)).collect::<Result<_, _>>()?;
    let [one, two, three] = &buffers[..] else { return fail("three buffers") };
    let graph = adding(fixture, &[(one, 1)])?;
    let (exec, node) = (instantiate(fixture, &graph)?, kernel_of(fixture, &graph)?);
    let other = adding(fixture, &[(two, 1)])?;
    updated(fixture, exec, &other)?;
    refused_argument(
        set(
            fixture,
            exec,
            kernel_of(fixture, &other)?,
            Kernel::Add,
            KernelArguments::new(three.pointer, 8, 1),
        ),
        "a node by its name in a graph that the executable was updated from",
    )?;
    launch(fixture, exec)?;
    set(fixture, exec, node, Kernel::Add, KernelArguments::new(three.pointer, 8, 1))?;
    launch(fixture, exec)?;
    fixture.driver.graph_exec_destroy(exec)?;
    let seen = buffers.iter().map(|buffer| Ok(buffer.words()?[0])).collect::<CaseResult<Vec<_>>>()?;
    equal(seen, vec![0, 1, 1], "which memory the launches touched")
}

fn nodes_that_are_no_kernel_stay(fixture: &Fixture) -> CaseResult {
    let (one, two) = (fixture.iota(8, 0)?, fixture.iota(8, 20)?);
    let graph = captured(fixture, |stream| Ok(fixture.copy(stream, one.end(), two.end(), 32)?))?;
    let exec = instantiate(fixture, &graph)?;
    let node = fixture.driver.graph_describe(graph.handle)?.nodes[0].handle;
    refused_argument(
        set(fixture, exec, node, Kernel::Add, KernelArguments::new(one.pointer, 8, 1)),
        "a copy that is to be a kernel",
    )?;
    launch(fixture, exec)?;
    fixture.driver.graph_exec_destroy(exec)?;
    equal(one.words()?, (20..28).collect(), "what the copy does afterwards")
}

fn nodes_of_other_graphs_are_refused(fixture: &Fixture) -> CaseResult {
    let buffer = fixture.iota(8, 0)?;
    let (graph, other) = (adding(fixture, &[(&buffer, 1)])?, adding(fixture, &[(&buffer, 1)])?);
    let exec = instantiate(fixture, &graph)?;
    let own = kernel_of(fixture, &graph)?;
    for node in [kernel_of(fixture, &other)?.raw(), own.raw() ^ 0x8, 0, u64::MAX] {
        let arguments = KernelArguments::new(buffer.pointer, 8, 100);
        refused_argument(
            set(fixture, exec, GraphNodeHandle::from_raw(node), Kernel::Add, arguments),
            "a node that the executable does not have",
        )?;
    }
    launch(fixture, exec)?;
    fixture.driver.graph_exec_destroy(exec)?;
    equal(buffer.words()?, (1..9).collect(), "a launch after changes that were refused")
}

fn without_its_graph_an_executable_has_no_names(fixture: &Fixture) -> CaseResult {
    let buffer = fixture.iota(8, 0)?;
    let graph = adding(fixture, &[(&buffer, 1)])?;
    let (exec, node) = (instantiate(fixture, &graph)?, kernel_of(fixture, &graph)?);
    drop(graph);
    refused_argument(
        set(fixture, exec, node, Kernel::Add, KernelArguments::new(buffer.pointer, 8, 100)),
        "a node whose graph has been destroyed",
    )?;
    // An update of the whole executable needs no node handles.
    updated(fixture, exec, &adding(fixture, &[(&buffer, 10)])?)?;
    launch(fixture, exec)?;
    fixture.driver.graph_exec_destroy(exec)?;
    equal(buffer.words()?, (10..18).collect(), "a launch after the update")
}

fn wrong_launches_are_refused(fixture: &Fixture) -> CaseResult {
    let buffer = fixture.iota(8, 0)?;
    let graph = adding(fixture, &[(&buffer, 1)])?;
    let (exec, node) = (instantiate(fixture, &graph)?, kernel_of(fixture, &graph)?);
    fixture.kernels.with_launch(Kernel::Add, KernelArguments::new(buffer.pointer, 8, 100), |launch| {
        let wrong = [
            thalweg_driver::Launch { grid: [1, 0, 1], ..*launch },
            thalweg_driver::Launch { block: [2048, 1, 1], ..*launch },
            thalweg_driver::Launch { function: thalweg_driver::FunctionHandle::from_raw(7), ..*launch },
        ];
        wrong.iter().try_for_each(|launch| {
            let result = fixture.driver.graph_exec_kernel_node_set_params(exec, node, launch);
            refused_argument(result, "a launch that cannot be")
        })
    })?;
    launch(fixture, exec)?;
    fixture.driver.graph_exec_destroy(exec)?;
    equal(buffer.words()?, (1..9).collect(), "a launch after changes that were refused")
}
