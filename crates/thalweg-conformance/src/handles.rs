//! Handles and pointers that refer to nothing: each is an error of the caller, and the driver stays usable.

use std::sync::Arc;

use thalweg_driver::{
    CaptureMode, Code, Copy, DependencyUpdate, DevicePointer, Endpoint, EventHandle, Fill, FillPattern,
    FunctionHandle, GraphExecHandle, GraphHandle, GraphNodeHandle, HostPointer, Image, ImageKind, Label,
    ModuleHandle, StreamHandle,
};

use super::fixture::{Fixture, check_refused, refused_argument};
use super::{CaseResult, Kernel, KernelArguments, PTX, group, host_module};

group! {
    "handles":
    unknown_streams_are_refused,
    unknown_events_are_refused,
    unknown_code_is_refused,
    unknown_graphs_are_refused,
    destroyed_streams_and_events_are_refused,
    unloaded_code_is_refused,
    destroyed_graphs_are_refused,
    null_pointers_are_refused,
    invented_pointers_are_refused,
}

const NO: &[Code] = &[Code::InvalidHandle];

/// Numbers that no driver can have issued as such a handle.
const UNKNOWN: [u64; 3] = [0, 0x00de_ad00_0000, u64::MAX];

fn refuses_stream(fixture: &Fixture, stream: StreamHandle) -> CaseResult {
    let driver = fixture.driver();
    let (event, words) = (fixture.event()?, fixture.buffer(4)?);
    let label = Label::here("a stream that is not there");
    let copy = Copy { target: words.end(), source: words.end_at(8), bytes: 8, label };
    let fill = Fill { target: words.pointer, pattern: FillPattern::U8(1), count: 4, label };
    let arguments = KernelArguments::new(words.pointer, 4, 1);
    check_refused(driver.stream_device(stream), NO, "stream_device")?;
    check_refused(driver.stream_priority(stream), NO, "stream_priority")?;
    check_refused(driver.stream_query(stream), NO, "stream_query")?;
    check_refused(driver.stream_synchronize(stream), NO, "stream_synchronize")?;
    check_refused(driver.stream_wait_event(stream, event.handle), NO, "stream_wait_event")?;
    check_refused(driver.cuda_stream(stream), NO, "cuda_stream")?;
    check_refused(driver.event_record(event.handle, stream), NO, "event_record")?;
    check_refused(driver.copy_async(stream, &copy), NO, "copy_async")?;
    check_refused(driver.copy_from_host(stream, words.pointer, &[1; 4], label), NO, "copy_from_host")?;
    check_refused(driver.copy_to_host(stream, &mut [0; 4], words.pointer, label), NO, "copy_to_host")?;
    check_refused(driver.fill_async(stream, &fill), NO, "fill_async")?;
    check_refused(driver.host_function_async(stream, Arc::new(|| ()), label), NO, "host_function_async")?;
    check_refused(fixture.kernels.launch(driver, stream, Kernel::Constant, arguments), NO, "launch")?;
    check_refused(driver.stream_begin_capture(stream, CaptureMode::Relaxed), NO, "stream_begin_capture")?;
    check_refused(driver.stream_end_capture(stream), NO, "stream_end_capture")?;
    check_refused(driver.stream_capture_info(stream), NO, "stream_capture_info")?;
    check_refused(
        driver.stream_update_capture_dependencies(stream, &[], DependencyUpdate::Set),
        NO,
        "stream_update_capture_dependencies",
    )?;
    check_refused(driver.stream_destroy(stream), NO, "stream_destroy")
}

fn unknown_streams_are_refused(fixture: &Fixture) -> CaseResult {
    UNKNOWN.into_iter().try_for_each(|raw| refuses_stream(fixture, StreamHandle::from_raw(raw)))
}

fn refuses_event(fixture: &Fixture, event: EventHandle) -> CaseResult {
    let (stream, other) = (fixture.stream()?, fixture.event()?);
    check_refused(fixture.event_record(event, stream.handle), NO, "event_record")?;
    check_refused(fixture.event_query(event), NO, "event_query")?;
    check_refused(fixture.event_synchronize(event), NO, "event_synchronize")?;
    check_refused(fixture.event_elapsed_ms(event, other.handle), NO, "event_elapsed_ms")?;
    check_refused(fixture.event_elapsed_ms(other.handle, event), NO, "event_elapsed_ms")?;
    check_refused(fixture.stream_wait_event(stream.handle, event), NO, "stream_wait_event")?;
    check_refused(fixture.event_destroy(event), NO, "event_destroy")
}

fn unknown_events_are_refused(fixture: &Fixture) -> CaseResult {
    UNKNOWN.into_iter().try_for_each(|raw| refuses_event(fixture, EventHandle::from_raw(raw)))
}

fn refuses_function(fixture: &Fixture, function: FunctionHandle) -> CaseResult {
    let stream = fixture.stream()?;
    let launch = thalweg_driver::Launch {
        function,
        grid: [1; 3],
        block: [1; 3],
        shared_memory_bytes: 0,
        mode: thalweg_driver::LaunchMode::InOrder,
        arguments: &[0; 32],
        accesses: &[],
        label: Label::here("a kernel that is not there"),
    };
    check_refused(fixture.function_attributes(function), NO, "function_attributes")?;
    check_refused(fixture.driver.launch(stream.handle, &launch), NO, "launch")
}

fn unknown_code_is_refused(fixture: &Fixture) -> CaseResult {
    for raw in UNKNOWN {
        let module = ModuleHandle::from_raw(raw);
        check_refused(fixture.driver.function_get(module, "thalweg_add"), NO, "function_get")?;
        check_refused(fixture.driver.module_unload(module), NO, "module_unload")?;
        refuses_function(fixture, FunctionHandle::from_raw(raw))?;
    }
    Ok(())
}

fn refuses_graph(fixture: &Fixture, graph: GraphHandle) -> CaseResult {
    check_refused(fixture.graph_describe(graph), NO, "graph_describe")?;
    check_refused(fixture.graph_instantiate(graph, fixture.device), NO, "graph_instantiate")?;
    let stream = fixture.stream()?;
    let other = fixture.capture(&stream, CaptureMode::Relaxed, || Ok(()))?;
    let exec = fixture.graph_instantiate(other.handle, fixture.device)?;
    check_refused(fixture.graph_exec_update(exec, graph), NO, "graph_exec_update from a graph")?;
    fixture.graph_exec_destroy(exec)?;
    check_refused(fixture.graph_destroy(graph), NO, "graph_destroy")
}

fn refuses_exec(fixture: &Fixture, exec: GraphExecHandle) -> CaseResult {
    let stream = fixture.stream()?;
    check_refused(fixture.driver.graph_launch(exec, stream.handle), NO, "graph_launch")?;
    let graph = fixture.capture(&stream, CaptureMode::Relaxed, || Ok(()))?;
    check_refused(fixture.driver.graph_exec_update(exec, graph.handle), NO, "graph_exec_update")?;
    let arguments = KernelArguments::new(thalweg_driver::DevicePointer::default(), 0, 0);
    let set = fixture.kernels.with_launch(Kernel::Add, arguments, |launch| {
        fixture.driver.graph_exec_kernel_node_set_params(exec, GraphNodeHandle::from_raw(1), launch)
    });
    check_refused(set, NO, "graph_exec_kernel_node_set_params")?;
    check_refused(fixture.driver.graph_exec_destroy(exec), NO, "graph_exec_destroy")
}

fn unknown_graphs_are_refused(fixture: &Fixture) -> CaseResult {
    for raw in UNKNOWN {
        refuses_graph(fixture, GraphHandle::from_raw(raw))?;
        refuses_exec(fixture, GraphExecHandle::from_raw(raw))?;
        let stream = fixture.stream()?;
        fixture.driver.stream_begin_capture(stream.handle, CaptureMode::Relaxed)?;
        let nodes = [GraphNodeHandle::from_raw(raw)];
        let update = DependencyUpdate::Add;
        let result = fixture.driver.stream_update_capture_dependencies(stream.handle, &nodes, update);
        refused_argument(result, "stream_update_capture_dependencies with an unknown node")?;
    }
    Ok(())
}

fn destroyed_streams_and_events_are_refused(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream_create(fixture.device, 0)?;
    fixture.stream_destroy(stream)?;
    refuses_stream(fixture, stream)?;
    // A handle created afterwards must not make the old one valid again.
    let successor = fixture.stream()?;
    check_refused(
        fixture.stream_query(stream),
        NO,
        "a destroyed stream's handle after another stream was made",
    )?;
    fixture.stream_synchronize(successor.handle)?;
    let event = fixture.event_create(fixture.device, thalweg_driver::EventFlags::default())?;
    fixture.event_destroy(event)?;
    let successor = fixture.event()?;
    refuses_event(fixture, event)?;
    fixture.event_synchronize(successor.handle)?;
    Ok(())
}

fn unloaded_code_is_refused(fixture: &Fixture) -> CaseResult {
    let host = host_module();
    let image = match fixture.device_properties(fixture.device)?.image_kind {
        ImageKind::Cubin(_) => Image::Ptx(PTX),
        ImageKind::Host => Image::Host(&host),
    };
    let module = fixture.module_load(fixture.device, image)?;
    let function = fixture.function_get(module, Kernel::Add.name())?;
    fixture.module_unload(module)?;
    check_refused(
        fixture.function_get(module, Kernel::Add.name()),
        NO,
        "function_get of an unloaded module",
    )?;
    check_refused(fixture.module_unload(module), NO, "module_unload twice")?;
    refuses_function(fixture, function)
}

fn destroyed_graphs_are_refused(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    fixture.stream_begin_capture(stream.handle, CaptureMode::Relaxed)?;
    let graph = fixture.stream_end_capture(stream.handle)?;
    let exec = fixture.graph_instantiate(graph, fixture.device)?;
    fixture.graph_destroy(graph)?;
    fixture.graph_exec_destroy(exec)?;
    refuses_graph(fixture, graph)?;
    refuses_exec(fixture, exec)
}

/// Checks that every call that takes a device pointer refuses one that names no memory.
fn refuses_pointer(fixture: &Fixture, wrong: DevicePointer) -> CaseResult {
    let (stream, words) = (fixture.stream()?, fixture.buffer(4)?);
    let label = Label::here("a pointer that is not there");
    let wrong_end = Endpoint::Device(wrong);
    let fill = Fill { target: wrong, pattern: FillPattern::U32(1), count: 4, label };
    refused_argument(fixture.memory_free(wrong), "memory_free")?;
    refused_argument(fixture.copy(&stream, wrong_end, words.end(), 16), "copy_async to it")?;
    refused_argument(fixture.copy(&stream, words.end(), wrong_end, 16), "copy_async from it")?;
    refused_argument(fixture.copy_from_host(stream.handle, wrong, &[1; 4], label), "copy_from_host")?;
    refused_argument(fixture.copy_to_host(stream.handle, &mut [0; 4], wrong, label), "copy_to_host")?;
    refused_argument(fixture.fill_async(stream.handle, &fill), "fill_async")
}

fn refuses_host_pointer(fixture: &Fixture, wrong: HostPointer) -> CaseResult {
    let (stream, words) = (fixture.stream()?, fixture.buffer(4)?);
    let wrong_end = Endpoint::Pinned(wrong);
    refused_argument(fixture.host_read(wrong, &mut [0; 4]), "host_read")?;
    refused_argument(fixture.host_write(wrong, &[0; 4]), "host_write")?;
    refused_argument(fixture.host_free(wrong), "host_free")?;
    refused_argument(fixture.copy(&stream, wrong_end, words.end(), 16), "copy_async to it")?;
    refused_argument(fixture.copy(&stream, words.end(), wrong_end, 16), "copy_async from it")
}

fn null_pointers_are_refused(fixture: &Fixture) -> CaseResult {
    refuses_pointer(fixture, DevicePointer::new(0))?;
    refuses_host_pointer(fixture, HostPointer::new(0))
}

fn invented_pointers_are_refused(fixture: &Fixture) -> CaseResult {
    // Addresses in the first page, and far outside the range that 64-bit processors translate: nothing can be mapped there.
    for address in [0x40, 0x7000_0000_0000_0000] {
        refuses_pointer(fixture, DevicePointer::new(address))?;
        refuses_host_pointer(fixture, HostPointer::new(address))?;
    }
    Ok(())
}
