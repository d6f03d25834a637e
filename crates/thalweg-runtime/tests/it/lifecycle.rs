//! A graph's life: begin, end, instantiate, replay, reset, and every call that is made in the wrong state.

use thalweg_driver::{CaptureMode, Code, FillPattern};
use thalweg_memory::Settings;
use thalweg_runtime::graph::CapturedGraph;
use thalweg_runtime::{
    Buffer, CaptureOptions, Device, Environment, Error, Event, Graph, GraphPool, Label, Result, Stream,
};

use crate::kernels::launch_sum;
use crate::support::{buffer_of, device, read, sim, sim_in, write};

/// Captures `data += 1`, `times` times.
fn increments(device: &Device, data: &Buffer, times: usize) -> Result<CapturedGraph> {
    let capture = Graph::capture_begin(device, CaptureOptions::default())?;
    let count = data.size_bytes() / 4;
    (0..times).try_for_each(|_| launch_sum(capture.stream(), &[data.pointer()], data.pointer(), count))?;
    capture.end()
}

fn code(error: &Error) -> Option<Code> {
    error.driver_error().map(thalweg_driver::Error::code)
}

#[test]
fn a_captured_graph_is_kept_and_instantiated_as_often_as_one_likes() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let data = buffer_of(&stream, &[0.0]);
    let captured = increments(&device, &data, 3).unwrap();
    assert_eq!(captured.description().unwrap().nodes.len(), 3);
    assert_eq!(read(&stream, &data), [0.0], "nothing ran");
    let [first, second] = [(); 2].map(|()| captured.instantiate().unwrap());
    first.replay_on(&stream).unwrap();
    second.replay_on(&stream).unwrap();
    assert_eq!(read(&stream, &data), [6.0]);
    first.reset();
    let third = captured.instantiate().unwrap();
    drop(captured);
    third.replay_on(&stream).unwrap();
    second.replay_on(&stream).unwrap();
    assert_eq!(read(&stream, &data), [12.0]);
}

#[test]
fn a_capture_leaves_the_current_stream_alone_and_may_go_on_over_functions() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let data = buffer_of(&stream, &[1.0]);
    let _current = stream.make_current();
    let capture = Graph::capture_begin(&device, CaptureOptions::default()).unwrap();
    assert_eq!(device.current_stream(), stream);
    assert!(capture.stream().is_capturing().unwrap() && !stream.is_capturing().unwrap());
    launch_sum(capture.stream(), &[data.pointer()], data.pointer(), 1).unwrap();
    // Work that is submitted elsewhere is not part of it.
    launch_sum(&stream, &[data.pointer()], data.pointer(), 1).unwrap();
    let graph = capture.end().unwrap().instantiate().unwrap();
    assert_eq!(read(&stream, &data), [2.0]);
    graph.replay().unwrap();
    assert_eq!(read(&stream, &data), [3.0]);
}

#[test]
fn a_capture_that_is_dropped_is_abandoned() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    device.synchronize().unwrap();
    device.empty_cache().unwrap();
    let reserved = || device.allocator().statistics().reserved_bytes.all.current;
    let before = reserved();
    for _ in 0..3 {
        let options = CaptureOptions { stream: Some(stream.clone()), ..Default::default() };
        let capture = Graph::capture_begin(&device, options).unwrap();
        let buffer = Buffer::new(&stream, 8 << 20).unwrap();
        launch_sum(&stream, &[buffer.pointer()], buffer.pointer(), 4).unwrap();
        drop(capture);
        drop(buffer);
        assert!(!stream.is_capturing().unwrap());
        device.empty_cache().unwrap();
        assert_eq!(reserved(), before, "the pool is released");
    }
    let data = buffer_of(&stream, &[1.0]);
    let graph = increments(&device, &data, 1).unwrap().instantiate().unwrap();
    graph.replay_on(&stream).unwrap();
    assert_eq!(read(&stream, &data), [2.0]);
}

#[test]
fn a_second_begin_is_an_error_and_harms_nothing() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let data = buffer_of(&stream, &[1.0]);
    let capturing = Stream::new(&device).unwrap();
    let on = |stream: &Stream| CaptureOptions { stream: Some(stream.clone()), ..Default::default() };
    let capture = Graph::capture_begin(&device, on(&capturing)).unwrap();
    for options in [on(&capturing), on(&stream), CaptureOptions::default()] {
        let error = Graph::capture_begin(&device, options).unwrap_err();
        assert!(error.is_invalid_argument(), "{error}");
    }
    // From another thread, the error is about the stream.
    let from_elsewhere = std::thread::scope(|scope| {
        scope.spawn(|| Graph::capture_begin(&device, on(&capturing)).map(drop)).join().unwrap()
    });
    assert!(from_elsewhere.unwrap_err().to_string().contains("captures already"));
    launch_sum(&capturing, &[data.pointer()], data.pointer(), 1).unwrap();
    let graph = capture.end().unwrap().instantiate().unwrap();
    graph.replay_on(&stream).unwrap();
    assert_eq!(read(&stream, &data), [2.0]);
}

#[test]
fn what_cannot_capture_is_refused() {
    let devices = sim(2);
    let begin = |options| Graph::capture_begin(&devices[0], options).map(drop).unwrap_err();
    let default = CaptureOptions { stream: Some(devices[0].default_stream()), ..Default::default() };
    assert!(begin(default).to_string().contains("Stream::new"));
    let elsewhere = CaptureOptions { stream: Some(Stream::new(&devices[1]).unwrap()), ..Default::default() };
    assert_eq!(begin(elsewhere).to_string(), "graph capture: the stream is on sim:1, expected sim:0");
    let pool = CaptureOptions { pool: Some(GraphPool::new(&devices[1])), ..Default::default() };
    assert_eq!(begin(pool).to_string(), "graph capture: the pool is on sim:1, expected sim:0");
    let (graph, ()) = Graph::capture(&devices[0], CaptureOptions::default(), || Ok(())).unwrap();
    let error = graph.replay_on(&Stream::new(&devices[1]).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "graph replay: the stream is on sim:1, expected sim:0");
}

#[test]
fn one_pool_serves_one_capture_at_a_time() {
    let device = sim(1).remove(0);
    let pool = GraphPool::new(&device);
    let options = || CaptureOptions {
        pool: Some(pool.clone()),
        mode: CaptureMode::ThreadLocal,
        ..CaptureOptions::default()
    };
    let capture = Graph::capture_begin(&device, options()).unwrap();
    let error = std::thread::scope(|scope| {
        scope.spawn(|| Graph::capture_begin(&device, options()).map(drop)).join().unwrap().unwrap_err()
    });
    assert!(error.is_invalid_argument(), "{error}");
    capture.end().unwrap();
    Graph::capture(&device, options(), || Ok(())).unwrap();
}

#[test]
fn a_replay_while_its_stream_captures_is_refused_and_the_capture_goes_on() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let data = buffer_of(&stream, &[1.0]);
    let inner = increments(&device, &data, 1).unwrap().instantiate().unwrap();
    let (outer, ()) = Graph::capture(&device, CaptureOptions::default(), || {
        let error = inner.replay().unwrap_err();
        assert!(error.is_capture() && error.to_string().contains("cannot be replayed into a capture"));
        // On a stream that does not capture it runs now.
        inner.replay_on(&stream)?;
        launch_sum(&device.current_stream(), &[data.pointer()], data.pointer(), 1)
    })
    .unwrap();
    assert_eq!(read(&stream, &data), [2.0]);
    outer.replay_on(&stream).unwrap();
    assert_eq!(read(&stream, &data), [3.0]);
}

#[test]
fn an_empty_graph_says_so() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let data = buffer_of(&stream, &[1.0]);
    let capture = Graph::capture_begin(&device, CaptureOptions::default()).unwrap();
    // The usual mistake: the work goes to a stream that does not capture.
    launch_sum(&stream, &[data.pointer()], data.pointer(), 1).unwrap();
    let captured = capture.end().unwrap();
    assert!(captured.is_empty() && captured.instantiate().unwrap().is_empty());
    assert!(!increments(&device, &data, 1).unwrap().is_empty());
}

#[test]
fn nodes_know_who_submitted_them_and_so_does_the_picture() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let data = buffer_of(&stream, &[1.0; 4]);
    let capture = Graph::capture_begin(&device, CaptureOptions::default()).unwrap();
    capture.stream().fill(data.pointer(), FillPattern::U32(0), 4, Label::here("zero")).unwrap();
    launch_sum(capture.stream(), &[data.pointer()], data.pointer(), 4).unwrap();
    let captured = capture.end().unwrap();
    let operators: Vec<_> =
        captured.description().unwrap().nodes.iter().map(|node| node.label.unwrap().operator).collect();
    assert_eq!(operators, ["zero", "sum"]);
    let dot = captured.description().unwrap().to_dot();
    assert!(dot.starts_with("digraph"), "{dot}");
    assert!(dot.contains("n0 -> n1;") && dot.contains("zero at ") && dot.contains("lifecycle.rs"), "{dot}");
    assert_eq!(dot.matches('{').count(), dot.matches('}').count());
}

#[test]
fn an_unjoined_stream_is_named_with_its_last_command_and_the_missing_wait() {
    let device = sim(1).remove(0);
    let [origin, joined, forgotten] = [(); 3].map(|()| Stream::new(&device).unwrap());
    let data = [(); 3].map(|()| buffer_of(&origin, &[0.0]));
    let pointer = |place: usize| data[place].pointer();
    let options = CaptureOptions { stream: Some(origin.clone()), ..Default::default() };
    let capture = Graph::capture_begin(&device, options).unwrap();
    joined.wait_stream(&origin).unwrap();
    forgotten.wait_stream(&origin).unwrap();
    launch_sum(&joined, &[pointer(0)], pointer(0), 1).unwrap();
    launch_sum(&forgotten, &[pointer(1)], pointer(1), 1).unwrap();
    origin.wait_stream(&forgotten).unwrap();
    // After the join it continues: nothing waits for this work.
    let line = line!() + 1;
    launch_sum(&forgotten, &[pointer(1)], pointer(1), 1).unwrap();
    origin.wait_stream(&joined).unwrap();
    launch_sum(&origin, &[pointer(2)], pointer(2), 1).unwrap();
    let error = capture.end().unwrap_err();
    assert!(error.is_capture());
    assert_eq!(code(&error), Some(Code::StreamCaptureUnjoined));
    let text = error.to_string();
    for part in [
        format!("{forgotten:?} was forked and not joined"),
        format!("sum at {}:{line}", file!()),
        format!("{origin:?}, on which the capture began"),
        "missing is a `wait_stream` of the latter for the former".to_owned(),
    ] {
        assert!(text.contains(&part), "'{part}' is not in: {text}");
    }
    assert!(!text.contains(&format!("{joined:?}")), "the joined one is right: {text}");
    for stream in [&origin, &joined, &forgotten] {
        assert!(!stream.is_capturing().unwrap());
        write(stream, &data[0], &[5.0]);
        assert_eq!(read(stream, &data[0]), [5.0]);
    }
}

#[test]
fn a_fork_without_work_needs_no_join() {
    let device = device();
    let side = Stream::new(&device).unwrap();
    let data = buffer_of(&side, &[0.0]);
    let (graph, ()) = Graph::capture(&device, CaptureOptions::default(), || {
        let stream = device.current_stream();
        launch_sum(&stream, &[data.pointer()], data.pointer(), 1)?;
        side.wait_stream(&stream)?;
        launch_sum(&stream, &[data.pointer()], data.pointer(), 1)
    })
    .unwrap();
    graph.replay_on(&side).unwrap();
    assert_eq!(read(&side, &data), [2.0]);
}

#[test]
fn a_wait_for_what_is_outside_is_refused_and_the_capture_goes_on() {
    let device = device();
    let [outside, inside] = [(); 2].map(|()| Stream::new(&device).unwrap());
    let data = buffer_of(&outside, &[0.0]);
    let before = outside.record_event().unwrap();
    let options = CaptureOptions { stream: Some(inside.clone()), ..Default::default() };
    let capture = Graph::capture_begin(&device, options).unwrap();
    let refused = [
        inside.wait_event(&before),
        inside.wait_stream(&outside),
        outside.record_event().and_then(|event| event.wait(&inside)),
    ];
    for refused in refused {
        let error = refused.unwrap_err();
        assert!(error.is_capture() && error.to_string().contains("recorded outside it"), "{error}");
    }
    // An event of the capture, and one that was never recorded, are fine.
    let event = Event::new();
    inside.wait_event(&event).unwrap();
    event.record(&inside).unwrap();
    inside.wait_event(&event).unwrap();
    launch_sum(&inside, &[data.pointer()], data.pointer(), 1).unwrap();
    let graph = capture.end().unwrap().instantiate().unwrap();
    graph.replay_on(&outside).unwrap();
    assert_eq!(read(&outside, &data), [1.0]);
}

#[test]
fn captures_of_two_threads_are_not_merged() {
    let device = sim(1).remove(0);
    let local = |stream: &Stream| CaptureOptions {
        stream: Some(stream.clone()),
        mode: CaptureMode::ThreadLocal,
        ..CaptureOptions::default()
    };
    let [one, other] = [(); 2].map(|()| Stream::new(&device).unwrap());
    let capture = Graph::capture_begin(&device, local(&one)).unwrap();
    let event = one.record_event().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let capture = Graph::capture_begin(&device, local(&other)).unwrap();
            let error = other.wait_event(&event).unwrap_err();
            assert!(error.to_string().contains("recorded in another capture"), "{error}");
            capture.end().unwrap();
        });
    });
    capture.end().unwrap();
}

#[test]
fn the_three_modes_say_what_other_threads_may_do() {
    let device = sim(1).remove(0);
    for (mode, allowed) in
        [(CaptureMode::Global, false), (CaptureMode::ThreadLocal, true), (CaptureMode::Relaxed, true)]
    {
        let capture =
            Graph::capture_begin(&device, CaptureOptions { mode, ..CaptureOptions::default() }).unwrap();
        // A plain allocation of the driver, which CUDA counts as unsafe.
        let elsewhere = std::thread::scope(|scope| {
            scope.spawn(|| device.driver().memory_allocate(0, 4096)).join().unwrap()
        });
        assert_eq!(elsewhere.is_ok(), allowed, "{mode:?}");
        let ended = capture.end();
        assert_eq!(ended.is_ok(), allowed, "{mode:?}: {ended:?}");
        // Our own calls on other threads are safe in every mode.
        let capture =
            Graph::capture_begin(&device, CaptureOptions { mode, ..CaptureOptions::default() }).unwrap();
        let stream = Stream::new(&device).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| Buffer::new(&stream, 12 << 20).unwrap());
        });
        capture.end().unwrap();
    }
}

#[test]
fn a_captured_region_that_runs_out_of_memory_leaves_all_as_it_was() {
    let device = sim(1).remove(0);
    let stream = Stream::new(&device).unwrap();
    let reserved = || device.allocator().statistics().reserved_bytes.all.current;
    let before = reserved();
    let error = Graph::capture(&device, CaptureOptions::default(), || {
        let stream = device.current_stream();
        let kept: Vec<_> = (0..100).map(|_| Buffer::new(&stream, 8 << 20)).collect::<Result<_>>()?;
        Ok(kept)
    })
    .unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    device.empty_cache().unwrap();
    assert_eq!(reserved(), before);
    drop(Buffer::new(&stream, 40 << 20).unwrap());
}

#[test]
fn the_lifecycle_holds_under_every_schedule() {
    thalweg_runtime::sim::check(|gpu| -> Result<()> {
        let device = gpu.device();
        let [stream, side] = [Stream::new(device)?, Stream::new(device)?];
        let data = buffer_of(&stream, &[0.0]);
        let capture = Graph::capture_begin(device, CaptureOptions::default())?;
        let origin = capture.stream().clone();
        let between = Buffer::new(&origin, 4)?;
        launch_sum(&origin, &[data.pointer()], between.pointer(), 1)?;
        side.wait_stream(&origin)?;
        launch_sum(&side, &[between.pointer()], data.pointer(), 1)?;
        between.record_use(&side);
        drop(between);
        origin.wait_stream(&side)?;
        let captured = capture.end()?;
        let [first, second] = [captured.instantiate()?, captured.instantiate()?];
        drop(captured);
        first.replay_on(&stream)?;
        second.replay_on(&stream)?;
        side.wait_stream(&stream)?;
        first.replay_on(&side)?;
        drop(first);
        stream.wait_stream(&side)?;
        second.replay_on(&stream)?;
        data.record_use(&side);
        assert_eq!(read(&stream, &data), [8.0]);
        Ok(())
    });
}

#[test]
fn a_command_costs_the_same_in_a_large_capture() {
    let device = sim(1).remove(0);
    let streams = [(); 3].map(|()| Stream::new(&device).unwrap());
    let inputs: Vec<_> = (0..8).map(|_| buffer_of(&streams[0], &[0.0; 4])).collect();
    // Forks, joins, and memory that is handed from one stream to another.
    let capture = |commands: usize| {
        let options = CaptureOptions { stream: Some(streams[0].clone()), ..Default::default() };
        let capture = Graph::capture_begin(&device, options).unwrap();
        for turn in 0..commands / 4 {
            let side = &streams[1 + turn % 2];
            let between = Buffer::new(&streams[0], 16).unwrap();
            let input = inputs[turn % inputs.len()].pointer();
            launch_sum(&streams[0], &[input], between.pointer(), 4).unwrap();
            side.wait_stream(&streams[0]).unwrap();
            launch_sum(side, &[between.pointer()], between.pointer(), 4).unwrap();
            launch_sum(side, &[between.pointer()], between.pointer(), 4).unwrap();
            between.record_use(side);
            drop(between);
            streams[0].wait_stream(side).unwrap();
            launch_sum(&streams[0], &[input], input, 4).unwrap();
        }
        capture.end().unwrap()
    };
    let [small, large] = [100, 10_000].map(|commands| {
        let captured = capture(commands);
        let cost = captured.cost();
        assert_eq!(cost.commands, commands as u64);
        assert_eq!(captured.contract().inputs().len(), 8);
        assert!(
            captured.memory().occupied_bytes < 100 << 10,
            "memory is used again: {:?}",
            captured.memory()
        );
        cost.driver_calls as f64 / cost.commands as f64
    });
    assert!(large <= 1.05 * small, "{small} calls per command in a small capture, {large} in a large one");
    assert!(small < 8.0, "{small} calls per command");
}

/// Checks that captures with pools of their own do not accumulate memory: each pool takes memory, and more addresses than the device
/// has memory, and a capture cannot make another pool release any.
#[test]
fn captures_with_pools_of_their_own_do_not_gather_memory() {
    for settings in ["", "expandable_segments:False"] {
        let kernel_record = Environment::get().kernel_record.clone();
        let allocator = Settings::parse(settings).unwrap();
        let environment = Environment { kernel_record, allocator, ..Environment::default() };
        let device = sim_in(&environment, 1).1.pop().unwrap();
        let total_bytes = device.driver().memory_info(0).unwrap().total_bytes;
        for _ in 0..70 {
            let pool = GraphPool::new(&device);
            let options = CaptureOptions { pool: Some(pool), ..CaptureOptions::default() };
            let capture = || {
                let stream = device.current_stream();
                let buffer = Buffer::new(&stream, total_bytes / 8)?;
                launch_sum(&stream, &[buffer.pointer()], buffer.pointer(), 4)
            };
            let (graph, ()) = Graph::capture(&device, options, capture).unwrap();
            graph.replay().unwrap();
        }
        assert!(device.memory_reserved() <= total_bytes / 2, "that of the last pool");
    }
}
