//! Capture and graphs on the simulator.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use thalweg_driver::{
    CaptureMode, CaptureStatus, Code, DependencyUpdate, Driver, EventFlags, EventHandle, GraphNodeKind,
    HostFlags, Label, StreamHandle,
};
use thalweg_sim::SimDriver;

use super::sim_support::{Gate, append, code, number, read, sim};

fn streams(driver: &SimDriver) -> ([StreamHandle; 2], EventHandle) {
    let streams = [0; 2].map(|_| driver.stream_create(0, 0).unwrap());
    (streams, driver.event_create(0, EventFlags::default()).unwrap())
}

fn status(driver: &SimDriver, stream: StreamHandle) -> CaptureStatus {
    driver.stream_capture_info(stream).unwrap().status
}

#[test]
fn a_captured_fork_and_join_replays() {
    let driver = sim(1);
    let ([main, side], event) = streams(&driver);
    let [left, right] = [0; 2].map(|_| number(&driver, 0));
    driver.stream_begin_capture(main, CaptureMode::Global).unwrap();
    append(&driver, main, left, 1);
    driver.event_record(event, main).unwrap();
    driver.stream_wait_event(side, event).unwrap();
    assert_eq!(status(&driver, side), CaptureStatus::Active);
    append(&driver, side, right, 2);
    append(&driver, main, left, 3);
    driver.event_record(event, side).unwrap();
    driver.stream_wait_event(main, event).unwrap();
    append(&driver, main, right, 4);
    let graph = driver.stream_end_capture(main).unwrap();
    assert_eq!([main, side].map(|stream| status(&driver, stream)), [CaptureStatus::None; 2]);

    let described = driver.graph_describe(graph).unwrap();
    assert_eq!(described.nodes.len(), 4);
    assert!(described.nodes.iter().all(|node| node.kind == GraphNodeKind::Kernel && node.label.is_some()));
    let mut edges = described.edges.clone();
    edges.sort_unstable();
    assert_eq!(edges, [(0, 1), (0, 2), (1, 3), (2, 3)]);

    assert_eq!(read(&driver, main, left), 0, "nothing ran while it was captured");
    let executable = driver.graph_instantiate(graph, 0).unwrap();
    driver.graph_destroy(graph).unwrap();
    for _ in 0..3 {
        driver.graph_launch(executable, main).unwrap();
    }
    assert_eq!([left, right].map(|value| read(&driver, main, value)), [131_313, 242_424]);
    driver.graph_exec_destroy(executable).unwrap();
    assert_eq!(code(driver.graph_launch(executable, main)), Code::InvalidHandle);
}

#[test]
fn launches_of_one_executable_come_one_after_the_other() {
    let driver = sim(1);
    let ([first, second], _) = streams(&driver);
    let runs = Arc::new(AtomicU32::new(0));
    let inside = Arc::new(AtomicU32::new(0));
    driver.stream_begin_capture(first, CaptureMode::Relaxed).unwrap();
    for step in [1, u32::MAX] {
        let (runs, inside) = (Arc::clone(&runs), Arc::clone(&inside));
        let function = move || {
            let before = inside.fetch_add(step, Ordering::SeqCst);
            assert_eq!(before, if step == 1 { 0 } else { 1 }, "two launches at once");
            runs.fetch_add(1, Ordering::SeqCst);
        };
        driver.host_function_async(first, Arc::new(function), Label::here("step")).unwrap();
    }
    let graph = driver.stream_end_capture(first).unwrap();
    let executable = driver.graph_instantiate(graph, 0).unwrap();
    for _ in 0..50 {
        driver.graph_launch(executable, first).unwrap();
        driver.graph_launch(executable, second).unwrap();
    }
    driver.device_synchronize(0).unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 200);
}

#[test]
fn a_graph_launch_is_one_piece_of_its_stream() {
    let driver = sim(1);
    let ([stream, other], event) = streams(&driver);
    let value = number(&driver, 0);
    driver.stream_begin_capture(stream, CaptureMode::Relaxed).unwrap();
    append(&driver, stream, value, 2);
    let graph = driver.stream_end_capture(stream).unwrap();
    let executable = driver.graph_instantiate(graph, 0).unwrap();
    let gate = Gate::close(&driver, stream);
    append(&driver, stream, value, 1);
    driver.graph_launch(executable, stream).unwrap();
    driver.event_record(event, stream).unwrap();
    driver.stream_wait_event(other, event).unwrap();
    append(&driver, other, value, 3);
    gate.open();
    assert_eq!(read(&driver, other, value), 123);
    // A GPU refuses to launch a graph into a capture, and so does the simulator.
    driver.stream_begin_capture(stream, CaptureMode::Relaxed).unwrap();
    assert_eq!(code(driver.graph_launch(executable, stream)), Code::StreamCaptureUnsupported);
    assert_eq!(code(driver.stream_end_capture(stream)), Code::StreamCaptureInvalidated);
}

#[test]
fn what_the_host_may_not_ask_of_a_capturing_stream_breaks_the_capture() {
    type Call = fn(&SimDriver, StreamHandle) -> thalweg_driver::Result<()>;
    let calls: [Call; 9] = [
        |driver, _| driver.stream_query(driver.stream_create(0, 0)?).map(|_| ()),
        |driver, _| driver.stream_synchronize(driver.default_stream(0)?),
        |driver, _| driver.event_query(driver.event_create(0, EventFlags::default())?).map(|_| ()),
        |driver, _| driver.event_synchronize(driver.event_create(0, EventFlags::default())?),
        |driver, stream| driver.stream_query(stream).map(|_| ()),
        |driver, stream| driver.stream_synchronize(stream),
        |driver, _| driver.device_synchronize(0),
        |driver, _| driver.memory_allocate(0, 8).map(|_| ()),
        |driver, _| driver.host_allocate(8, HostFlags::default()).map(|_| ()),
    ];
    for call in calls {
        let driver = sim(1);
        let ([stream, _], event) = streams(&driver);
        let value = number(&driver, 0);
        driver.stream_begin_capture(stream, CaptureMode::ThreadLocal).unwrap();
        append(&driver, stream, value, 1);
        assert_eq!(code(call(&driver, stream)), Code::StreamCaptureUnsupported);
        assert_eq!(status(&driver, stream), CaptureStatus::Invalidated);
        assert_eq!(code(driver.event_record(event, stream)), Code::StreamCaptureInvalidated);
        assert_eq!(code(driver.stream_end_capture(stream)), Code::StreamCaptureInvalidated);
        assert_eq!(status(&driver, stream), CaptureStatus::None);
        append(&driver, stream, value, 2);
        assert_eq!(
            read(&driver, stream, value),
            2,
            "the stream is usable again, and nothing of the capture ran"
        );
    }
}

#[test]
fn modes_say_which_threads_are_bound() {
    use CaptureMode::{Global, Relaxed, ThreadLocal};
    // Mode of the capture, mode of the calling thread, whether it is the capturing one, whether the call is allowed.
    let cases = [
        (Global, Global, true, false),
        (Global, ThreadLocal, true, false),
        (Global, Relaxed, true, true),
        (Global, Global, false, false),
        (Global, ThreadLocal, false, true),
        (Global, Relaxed, false, true),
        (ThreadLocal, Global, true, false),
        (ThreadLocal, Global, false, true),
        (Relaxed, Global, true, true),
        (Relaxed, Global, false, true),
    ];
    for (mode, thread_mode, is_same_thread, is_allowed) in cases {
        let driver = sim(1);
        let stream = driver.stream_create(0, 0).unwrap();
        driver.stream_begin_capture(stream, mode).unwrap();
        let allocate = || {
            let before = driver.thread_exchange_capture_mode(thread_mode).unwrap();
            let outcome = driver.memory_allocate(0, 8);
            assert_eq!(driver.thread_exchange_capture_mode(before).unwrap(), thread_mode);
            outcome
        };
        let outcome = if is_same_thread {
            allocate()
        } else {
            std::thread::scope(|scope| scope.spawn(allocate).join().unwrap())
        };
        let case = (mode, thread_mode, is_same_thread);
        assert_eq!(outcome.is_ok(), is_allowed, "{case:?}: {outcome:?}");
        assert_eq!(driver.stream_end_capture(stream).is_ok(), is_allowed, "{case:?}");
    }
}

#[test]
fn captures_begin_and_end_where_they_may() {
    let driver = sim(1);
    let ([stream, side], event) = streams(&driver);
    let legacy = driver.default_stream(0).unwrap();
    assert_eq!(
        code(driver.stream_begin_capture(legacy, CaptureMode::Relaxed)),
        Code::StreamCaptureUnsupported
    );
    assert_eq!(code(driver.stream_end_capture(stream)), Code::IllegalState);
    driver.stream_begin_capture(stream, CaptureMode::ThreadLocal).unwrap();
    assert_eq!(code(driver.stream_begin_capture(stream, CaptureMode::Relaxed)), Code::IllegalState);
    let other_thread =
        std::thread::scope(|scope| scope.spawn(|| code(driver.stream_end_capture(stream))).join().unwrap());
    assert_eq!(other_thread, Code::StreamCaptureWrongThread);
    assert_eq!(status(&driver, stream), CaptureStatus::None, "the attempt ended the capture");
    driver.stream_begin_capture(stream, CaptureMode::ThreadLocal).unwrap();
    driver.event_record(event, stream).unwrap();
    driver.stream_wait_event(side, event).unwrap();
    assert_eq!(code(driver.stream_end_capture(side)), Code::StreamCaptureUnmatched);
    assert_eq!(code(driver.stream_end_capture(stream)), Code::StreamCaptureInvalidated);
    assert_eq!([stream, side].map(|stream| status(&driver, stream)), [CaptureStatus::None; 2]);

    driver.stream_begin_capture(stream, CaptureMode::Relaxed).unwrap();
    let graph = std::thread::scope(|scope| scope.spawn(|| driver.stream_end_capture(stream)).join().unwrap());
    assert!(driver.graph_describe(graph.unwrap()).unwrap().nodes.is_empty());
}

#[test]
fn forks_must_be_joined() {
    let driver = sim(1);
    let ([stream, side], event) = streams(&driver);
    let value = number(&driver, 0);
    driver.stream_begin_capture(stream, CaptureMode::Global).unwrap();
    append(&driver, stream, value, 1);
    driver.event_record(event, stream).unwrap();
    driver.stream_wait_event(side, event).unwrap();
    append(&driver, side, value, 2);
    assert_eq!(code(driver.stream_end_capture(stream)), Code::StreamCaptureUnjoined);
    assert_eq!([stream, side].map(|stream| status(&driver, stream)), [CaptureStatus::None; 2]);
    assert_eq!(code(driver.stream_wait_event(stream, event)), Code::InvalidValue);
    assert_eq!(code(driver.event_query(event)), Code::InvalidValue);
    driver.event_record(event, stream).unwrap();
    driver.stream_wait_event(side, event).unwrap();
}

#[test]
fn events_do_not_cross_the_boundary_of_a_capture() {
    let driver = sim(1);
    let ([first, second], event) = streams(&driver);
    let outside = driver.event_create(0, EventFlags::default()).unwrap();
    driver.event_record(outside, second).unwrap();
    driver.stream_begin_capture(first, CaptureMode::Relaxed).unwrap();
    assert_eq!(code(driver.stream_wait_event(first, outside)), Code::StreamCaptureIsolation);
    assert_eq!(code(driver.stream_end_capture(first)), Code::StreamCaptureInvalidated);

    driver.stream_begin_capture(first, CaptureMode::Relaxed).unwrap();
    driver.stream_begin_capture(second, CaptureMode::Relaxed).unwrap();
    driver.event_record(event, first).unwrap();
    assert_eq!(code(driver.event_query(event)), Code::CapturedEvent);
    assert_eq!(code(driver.event_synchronize(event)), Code::InvalidValue, "the query broke the capture");
    for stream in [first, second] {
        let _ = driver.stream_end_capture(stream);
    }
    driver.stream_begin_capture(first, CaptureMode::Relaxed).unwrap();
    driver.stream_begin_capture(second, CaptureMode::Relaxed).unwrap();
    driver.event_record(event, first).unwrap();
    assert_eq!(code(driver.stream_wait_event(second, event)), Code::StreamCaptureMerge);
}

#[test]
fn the_legacy_stream_stays_away_from_capturing_blocking_streams() {
    let driver = sim(1);
    let legacy = driver.default_stream(0).unwrap();
    let value = number(&driver, 0);
    let external = driver.external_stream_create(0, 0, true).unwrap();
    let blocking = driver.stream_from_external(0, external).unwrap();
    driver.stream_begin_capture(blocking, CaptureMode::Relaxed).unwrap();
    assert_eq!(code(driver.stream_capture_info(legacy)), Code::StreamCaptureImplicit);
    assert_eq!(status(&driver, blocking), CaptureStatus::Active, "asking breaks nothing");
    let event = driver.event_create(0, EventFlags::default()).unwrap();
    assert_eq!(code(driver.event_record(event, legacy)), Code::StreamCaptureImplicit);
    assert_eq!(code(driver.stream_end_capture(blocking)), Code::StreamCaptureInvalidated);
    // A non-blocking stream that captures does not affect the legacy stream.
    let free = driver.stream_create(0, 0).unwrap();
    driver.stream_begin_capture(free, CaptureMode::Relaxed).unwrap();
    append(&driver, legacy, value, 1);
    assert_eq!(read(&driver, legacy, value), 1);
    driver.stream_end_capture(free).unwrap();
}

#[test]
fn dependencies_can_be_read_and_changed() {
    let driver = sim(1);
    let ([stream, _], _) = streams(&driver);
    let value = number(&driver, 0);
    assert_eq!(
        code(driver.stream_update_capture_dependencies(stream, &[], DependencyUpdate::Set)),
        Code::IllegalState
    );
    driver.stream_begin_capture(stream, CaptureMode::Relaxed).unwrap();
    assert!(driver.stream_capture_info(stream).unwrap().dependencies.is_empty());
    append(&driver, stream, value, 1);
    let first = driver.stream_capture_info(stream).unwrap().dependencies;
    driver.stream_update_capture_dependencies(stream, &[], DependencyUpdate::Set).unwrap();
    append(&driver, stream, value, 2);
    driver.stream_update_capture_dependencies(stream, &first, DependencyUpdate::Add).unwrap();
    append(&driver, stream, value, 3);
    let info = driver.stream_capture_info(stream).unwrap();
    assert_eq!((info.status, info.dependencies.len()), (CaptureStatus::Active, 1));
    let under_construction = info.graph.unwrap();
    assert_eq!(code(driver.graph_destroy(under_construction)), Code::IllegalState);
    let graph = driver.stream_end_capture(stream).unwrap();
    assert_eq!(graph, under_construction);
    let described = driver.graph_describe(graph).unwrap();
    assert_eq!(described.nodes[0].handle, first[0]);
    let mut edges = described.edges;
    edges.sort_unstable();
    assert_eq!(edges, [(0, 2), (1, 2)]);

    driver.stream_begin_capture(stream, CaptureMode::Relaxed).unwrap();
    assert_eq!(
        code(driver.stream_update_capture_dependencies(stream, &first, DependencyUpdate::Set)),
        Code::InvalidValue
    );
}

#[test]
fn a_destroyed_stream_leaves_its_capture_and_an_origin_ends_it() {
    let driver = sim(1);
    let ([stream, side], event) = streams(&driver);
    let value = number(&driver, 0);
    for work in [false, true] {
        let joined = driver.stream_create(0, 0).unwrap();
        driver.stream_begin_capture(stream, CaptureMode::Global).unwrap();
        driver.event_record(event, stream).unwrap();
        driver.stream_wait_event(joined, event).unwrap();
        if work {
            append(&driver, joined, value, 1);
        }
        driver.stream_destroy(joined).unwrap();
        let ended = driver.stream_end_capture(stream);
        assert_eq!(
            ended.map(|_| ()).map_err(|error| error.code()),
            if work { Err(Code::StreamCaptureUnjoined) } else { Ok(()) }
        );
    }
    driver.stream_begin_capture(stream, CaptureMode::Global).unwrap();
    driver.event_record(event, stream).unwrap();
    driver.stream_wait_event(side, event).unwrap();
    driver.stream_destroy(stream).unwrap();
    assert_eq!(status(&driver, side), CaptureStatus::None);
    driver.memory_allocate(0, 8).unwrap();
}
