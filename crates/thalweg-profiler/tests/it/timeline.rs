//! A recorded program compared with a plain list of its work.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;
use thalweg_driver::{CaptureMode, Code, Driver};
use thalweg_profiler::{
    Category, MemoryChange, SortBy, Trace, profile, record_function, record_memory, record_operator,
};

use crate::world::{KERNEL_TIME, World};

/// Runs a program on two streams. Returns its trace, and the commands that it must contain as (stream, operator, category, bytes).
fn program(world: &World) -> (Vec<(usize, &'static str, Category, u64)>, Trace) {
    let mut model = Vec::new();
    let ((), trace) = profile(&world.driver, || {
        let _whole = record_function("whole");
        for round in 1..=4_u64 {
            let _round = record_function("round");
            for stream in 0..2 {
                let bytes = 64 * round + 2 * stream as u64;
                world.fill(stream, "zero_", bytes);
                model.push((stream, "zero_", Category::Memset, bytes));
                world.launch(stream, "add", bytes);
                model.push((stream, "add", Category::Kernel, bytes));
            }
        }
        world.read(1, "item", 8);
        model.push((1, "item", Category::Memcpy, 8));
    })
    .unwrap();
    (model, trace)
}

/// Returns the names of the regions of the thread that made the calls: regions of other tests are in the trace, too.
fn regions_of_this_thread(trace: &Trace) -> Vec<&str> {
    let thread = trace.calls[0].thread;
    let own = trace.annotations.iter().filter(|annotation| annotation.thread == thread);
    own.map(|annotation| annotation.name.as_str()).collect()
}

#[test]
fn a_trace_has_what_the_program_submitted_and_streams_keep_their_order() {
    let world = World::new();
    let (model, trace) = program(&world);
    let found: Vec<_> = trace
        .commands
        .iter()
        .map(|command| {
            let stream = world.streams.iter().position(|stream| stream.raw() == command.stream).unwrap();
            (stream, command.operator, command.category, command.bytes)
        })
        .collect();
    assert_eq!(found, model);

    let calls: HashMap<u64, _> = trace.calls.iter().map(|call| (call.correlation, call)).collect();
    assert_eq!(calls.len(), trace.calls.len(), "correlations are unique");
    let mut idle_since = HashMap::new();
    for command in &trace.commands {
        let span = command.span.expect("it ran");
        let call = calls[&command.correlation];
        assert!(span.end > call.span.start, "{command:?} ended before {call:?} began");
        let before = idle_since.insert(command.stream, span.end).unwrap_or(0);
        assert!(before <= span.start && span.start <= span.end, "{command:?} after {before}");
        let (entry_point, name) = match command.category {
            Category::Kernel => ("cuLaunchKernel", "sleep"),
            Category::Memset => ("cuMemsetAsync", "Memset (Device)"),
            Category::Memcpy => ("cuMemcpyDtoHAsync", "Memcpy DtoH (Device -> Pageable)"),
        };
        assert_eq!((call.entry_point, command.name.as_str()), (entry_point, name));
        assert!(command.source.contains("timeline.rs:"), "{}", command.source);
        if command.category == Category::Kernel {
            assert_eq!(command.shape, Some([[3, 2, 1], [64, 1, 1]]));
            // A 32-bit float of milliseconds rounds.
            let least = KERNEL_TIME.as_nanos() as u64 - 1000;
            assert!(span.nanoseconds() >= least, "{command:?}");
        }
    }
}

#[test]
fn the_table_sums_the_events_of_the_file() {
    let world = World::new();
    let (_, trace) = program(&world);
    let path = std::env::temp_dir().join(format!("thalweg-profiler-{}.json", std::process::id()));
    trace.export_chrome_trace(&path).unwrap();
    let file: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(file["schemaVersion"], 1);
    let mut sums: HashMap<&str, (u64, f64, u64)> = HashMap::new();
    for event in file["traceEvents"].as_array().unwrap() {
        if matches!(event["cat"].as_str(), Some("kernel" | "gpu_memcpy" | "gpu_memset")) {
            let sum = sums.entry(event["args"]["operator"].as_str().unwrap()).or_default();
            sum.0 += 1;
            sum.1 += event["dur"].as_f64().unwrap();
            sum.2 += event["args"]["bytes"].as_u64().unwrap();
        }
    }
    let averages = trace.key_averages();
    // Operators of other tests have rows, too, and no work on this device.
    let ran: Vec<_> = averages.0.iter().filter(|row| row.device_nanoseconds > 0).collect();
    assert_eq!(ran.len(), sums.len());
    for row in ran {
        let (count, microseconds, bytes) = sums[row.operator.as_str()];
        assert_eq!((row.count, row.bytes), (count, bytes), "{}", row.operator);
        assert!((row.device_nanoseconds as f64 / 1e3 - microseconds).abs() < 1e-3, "{}", row.operator);
    }
    assert_eq!(averages.0[0].operator, "add", "the kernels that sleep have the most device time");
    let lines = averages.table(SortBy::DeviceTime, 3);
    assert_eq!(lines.lines().count(), 4, "{lines}");
}

#[test]
fn arrows_lead_from_each_call_to_its_work() {
    let world = World::new();
    let (model, trace) = program(&world);
    let file = trace.chrome_trace();
    let events = file["traceEvents"].as_array().unwrap();
    let with = |phase: &'static str| events.iter().filter(move |event| event["ph"] == phase);
    // Where an event begins.
    let place = |event: &Value| (event["pid"].clone(), event["tid"].clone(), event["ts"].clone());
    let mut arrows = 0;
    for begin in with("s") {
        let id = &begin["id"];
        let ends: Vec<_> = with("f").filter(|end| end["id"] == *id).collect();
        assert_eq!(ends.len(), 1, "{begin}");
        assert_eq!((ends[0]["bp"].as_str(), ends[0]["cat"].as_str()), (Some("e"), Some("ac2g")));
        let joined: Vec<_> = with("X").filter(|event| event["args"]["correlation"] == *id).collect();
        let [call, work] = joined[..] else { panic!("{joined:?}") };
        assert_eq!(call["cat"], "cuda_driver");
        let external = &work["args"]["External id"];
        let mut operators = with("X").filter(|event| event["cat"] == "cpu_op");
        let operator = operators.find(|event| event["args"]["External id"] == *external).expect("one");
        assert_eq!(operator["name"], work["args"]["operator"]);
        assert_eq!(place(call), place(begin));
        assert_eq!(place(work), place(ends[0]));
        arrows += 1;
    }
    assert_eq!(arrows, model.len());
    assert_eq!(with("f").count(), arrows);
}

#[test]
fn a_region_is_on_the_device_from_its_first_command_to_its_last() {
    let world = World::new();
    let (_, trace) = program(&world);
    assert_eq!(regions_of_this_thread(&trace), ["round", "round", "round", "round", "whole"]);
    let file = trace.chrome_trace();
    let regions = file["traceEvents"].as_array().unwrap().iter();
    let regions: Vec<_> = regions.filter(|event| event["cat"] == "gpu_user_annotation").collect();
    assert_eq!(regions.len(), 2 * 5, "each region has work on both streams");
    for (stream, handle) in world.streams.iter().enumerate() {
        let commands = || trace.commands.iter().filter(|command| command.stream == handle.raw());
        let spans: Vec<_> = commands().map(|command| command.span.unwrap()).collect();
        let on_stream: Vec<_> = regions.iter().filter(|region| region["tid"] == stream + 1).collect();
        let expect = |region: &Value, first: usize, last: usize| {
            let (start, end) = (spans[first].start, spans[last].end);
            assert_eq!(region["ts"].as_f64(), Some(start as f64 / 1e3), "stream {stream}");
            assert_eq!(region["dur"].as_f64(), Some((end - start) as f64 / 1e3), "stream {stream}");
        };
        let (whole, rounds) = on_stream.split_last().unwrap();
        for (round, region) in rounds.iter().enumerate() {
            expect(region, 2 * round, 2 * round + 1);
        }
        expect(whole, 0, spans.len() - 1);
    }
}

#[test]
fn captured_work_has_no_times_and_the_profiler_adds_nothing_to_the_graph() {
    let world = World::new();
    let (stream, driver) = (world.streams[0], &world.driver);
    let (graph, trace) = profile(driver, || {
        driver.stream_begin_capture(stream, CaptureMode::Global).unwrap();
        world.launch(0, "add", 64);
        world.fill(0, "zero_", 64);
        let graph = driver.stream_end_capture(stream).unwrap();
        let exec = driver.graph_instantiate(graph, 0).unwrap();
        driver.graph_launch(exec, stream).unwrap();
        graph
    })
    .unwrap();
    assert_eq!(driver.graph_describe(graph).unwrap().nodes.len(), 2);
    let found: Vec<_> = trace.commands.iter().map(|it| (it.operator, it.span.is_some())).collect();
    assert_eq!(found, [("add", false), ("zero_", false), ("graph_launch", true)]);
    let file = trace.chrome_trace();
    let arrows = file["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "s").count();
    assert_eq!(arrows, 1);
}

#[test]
fn what_comes_before_and_after_is_not_recorded() {
    let world = World::new();
    let driver = &world.driver;
    assert_eq!(driver.stop().unwrap_err().code(), Code::InvalidValue);
    world.launch(0, "before", 64);
    let region = record_function("began before");
    driver.start().unwrap();
    drop(region);
    assert_eq!(driver.start().unwrap_err().code(), Code::InvalidValue);
    world.launch(0, "during", 64);
    let trace = driver.stop().unwrap();
    world.launch(0, "after", 64);
    let operators: Vec<_> = trace.commands.iter().map(|command| command.operator).collect();
    assert_eq!(operators, ["during"]);
    assert!(regions_of_this_thread(&trace).is_empty());
    let (_, second) = profile(driver, || world.fill(1, "again", 64)).unwrap();
    assert_eq!(second.commands.len(), 1);
    driver.device_synchronize(0).unwrap();
}

#[test]
fn changes_of_memory_go_to_the_recordings_of_their_driver_that_keep_them() {
    let (kept, other, without) = (World::new(), World::new(), World::new());
    kept.driver.profile_memory(true);
    other.driver.profile_memory(true);
    let driver: Arc<dyn Driver> = kept.driver.clone();
    let change = |bytes: i64, total_allocated| MemoryChange {
        device: 0,
        address: 0x1000,
        bytes,
        total_allocated,
        total_reserved: 4096,
    };
    let (of_others, trace) = profile(&kept.driver, || {
        other.driver.start().unwrap();
        without.driver.start().unwrap();
        {
            let _outer = record_operator("an operator that takes");
            let _inner = record_operator("one within it");
            record_memory(&driver, || change(512, 512));
        }
        record_memory(&driver, || change(-512, 0));
        [other.driver.stop().unwrap(), without.driver.stop().unwrap()]
    })
    .unwrap();
    assert!(of_others.iter().all(|trace| trace.memory.is_empty()));
    assert_eq!(trace.memory.iter().map(|it| it.change.bytes).collect::<Vec<_>>(), [512, -512]);
    assert!(trace.memory[0].at <= trace.memory[1].at && trace.memory[1].operator.is_none());
    let averages = trace.key_averages();
    let memory = |operator: &str| {
        let row = averages.0.iter().find(|row| row.operator == operator).expect("a row");
        (row.self_device_memory_bytes, row.device_memory_bytes)
    };
    assert_eq!(memory("an operator that takes"), (0, 512));
    assert_eq!(memory("one within it"), (512, 512));
    assert_eq!(memory("[memory]"), (-512, -512));
    let file = trace.chrome_trace();
    let curve: Vec<_> = file["traceEvents"].as_array().unwrap().iter().filter(|it| it["ph"] == "C").collect();
    assert_eq!(
        curve.iter().map(|it| it["args"]["allocated"].as_u64().unwrap()).collect::<Vec<_>>(),
        [512, 0]
    );
    // After the recording the closure is not called.
    record_memory(&driver, || unreachable!("no recording keeps memory"));
}
