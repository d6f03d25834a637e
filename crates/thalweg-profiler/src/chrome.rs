//! Kineto's form of Chrome's trace format: times in microseconds, the process or the device as `pid`, the thread or the stream as `tid`,
//! and an arrow (`ac2g`) from each call to what it made the device do.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use thalweg_driver::DeviceProperties;

use crate::trace::{Annotation, Call, Command, Span, Trace};

/// Numbers of streams, by device and the driver's number.
type StreamNumbers = BTreeMap<(u32, u64), u64>;

/// Numbers the streams of each device from 1 on, in the order of their first commands: the driver's numbers have more bits than readers of
/// the format keep.
fn stream_numbers(trace: &Trace) -> StreamNumbers {
    let mut numbers = StreamNumbers::new();
    let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
    for command in &trace.commands {
        numbers.entry((command.device, command.stream)).or_insert_with(|| {
            let count = counts.entry(command.device).or_default();
            *count += 1;
            *count
        });
    }
    numbers
}

/// Returns the whole file.
pub(crate) fn trace(trace: &Trace) -> Value {
    let pid = std::process::id();
    let mut events = Vec::new();
    let threads: BTreeSet<u64> = trace
        .calls
        .iter()
        .map(|call| call.thread)
        .chain(trace.annotations.iter().map(|annotation| annotation.thread))
        .collect();
    events.push(metadata("process_name", json!(pid), 0, json!({"name": "thalweg"})));
    events.push(metadata("process_labels", json!(pid), 0, json!({"labels": "CPU"})));
    for &thread in &threads {
        events.push(metadata("thread_name", json!(pid), thread, json!({"name": format!("thread {thread}")})));
    }
    let streams = stream_numbers(trace);
    for (device, properties) in &trace.devices {
        events.push(metadata("process_name", json!(device), 0, json!({"name": properties.name})));
        events.push(metadata("process_labels", json!(device), 0, json!({"labels": format!("GPU {device}")})));
    }
    for (&(device, _), &number) in &streams {
        let name = json!({"name": format!("stream {number}")});
        events.push(metadata("thread_name", json!(device), number, name));
    }
    events.extend(trace.annotations.iter().map(|annotation| {
        complete(
            "user_annotation",
            &annotation.name,
            json!(pid),
            annotation.thread,
            annotation.span,
            json!({}),
        )
    }));
    events.extend(device_annotations(trace, &streams));
    let by_correlation: BTreeMap<u64, &Command> =
        trace.commands.iter().map(|command| (command.correlation, command)).collect();
    for call in &trace.calls {
        call_events(&mut events, &streams, call, by_correlation.get(&call.correlation).copied());
    }
    json!({
        "schemaVersion": 1,
        "deviceProperties": trace.devices.iter().map(|(id, properties)| device(*id, properties)).collect::<Vec<_>>(),
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": trace.base_nanoseconds,
        "traceEvents": events,
        "traceName": "thalweg",
    })
}

fn device(id: u32, properties: &DeviceProperties) -> Value {
    json!({
        "id": id,
        "name": properties.name,
        "totalGlobalMem": properties.total_memory_bytes,
        "computeMajor": properties.compute_capability.major,
        "computeMinor": properties.compute_capability.minor,
        "numSms": properties.multi_processor_count,
    })
}

/// Adds a call, what it made the device do, and the arrow between them.
fn call_events(events: &mut Vec<Value>, streams: &StreamNumbers, call: &Call, command: Option<&Command>) {
    let pid = std::process::id();
    let mut arguments = json!({"correlation": call.correlation});
    if let Some(command) = command {
        let operator = json!({"External id": call.correlation});
        events.push(complete("cpu_op", command.operator, json!(pid), call.thread, call.span, operator));
        arguments["External id"] = json!(call.correlation);
        arguments["operator"] = json!(command.operator);
        arguments["source"] = json!(command.source);
    }
    events.push(complete("cuda_driver", call.entry_point, json!(pid), call.thread, call.span, arguments));
    let Some((command, span)) = command.and_then(|command| Some((command, command.span?))) else { return };
    let stream = streams[&(command.device, command.stream)];
    let mut arguments = json!({
        "device": command.device,
        "stream": stream,
        "correlation": command.correlation,
        "External id": command.correlation,
        "operator": command.operator,
        "bytes": command.bytes,
    });
    if let Some([grid, block]) = command.shape {
        arguments["grid"] = json!(grid);
        arguments["block"] = json!(block);
    }
    let (name, category) = (command.name.as_str(), command.category.name());
    events.push(complete(category, name, json!(command.device), stream, span, arguments));
    events.push(json!({
        "ph": "s", "id": call.correlation, "pid": pid, "tid": call.thread,
        "ts": microseconds(call.span.start), "cat": "ac2g", "name": "ac2g",
    }));
    events.push(json!({
        "ph": "f", "bp": "e", "id": call.correlation, "pid": command.device, "tid": stream,
        "ts": microseconds(span.start), "cat": "ac2g", "name": "ac2g",
    }));
}

/// Returns, per region and stream, the span of what the region submitted to the stream.
fn device_annotations(trace: &Trace, streams: &StreamNumbers) -> Vec<Value> {
    let commands: BTreeMap<u64, &Command> =
        trace.commands.iter().map(|command| (command.correlation, command)).collect();
    let mut calls: BTreeMap<u64, Vec<&Call>> = BTreeMap::new();
    for call in &trace.calls {
        calls.entry(call.thread).or_default().push(call);
    }
    let within = |annotation: &Annotation| {
        let mut spans: BTreeMap<(u32, u64), Span> = BTreeMap::new();
        let of_thread = calls.get(&annotation.thread).map_or(&[][..], Vec::as_slice);
        let first = of_thread.partition_point(|call| call.span.start < annotation.span.start);
        let last = of_thread.partition_point(|call| call.span.start < annotation.span.end);
        for call in &of_thread[first..last.max(first)] {
            let Some(command) = commands.get(&call.correlation) else { continue };
            let Some(span) = command.span else { continue };
            let whole = spans.entry((command.device, command.stream)).or_insert(span);
            whole.start = whole.start.min(span.start);
            whole.end = whole.end.max(span.end);
        }
        spans
    };
    let mut events = Vec::new();
    for annotation in &trace.annotations {
        for (stream, span) in within(annotation) {
            let (name, device, stream) = (&annotation.name, stream.0, streams[&stream]);
            events.push(complete("gpu_user_annotation", name, json!(device), stream, span, json!({})));
        }
    }
    events
}

fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e3
}

fn complete(category: &str, name: &str, pid: Value, tid: u64, span: Span, arguments: Value) -> Value {
    json!({
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid,
        "ts": microseconds(span.start), "dur": microseconds(span.nanoseconds()), "args": arguments,
    })
}

fn metadata(name: &str, pid: Value, tid: u64, arguments: Value) -> Value {
    json!({"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": arguments})
}
