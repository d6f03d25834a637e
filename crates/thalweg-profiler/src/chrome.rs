//! Kineto's variant of Chrome's trace format: times in microseconds, the process or the device as `pid`, the thread or the stream
//! as `tid`, and an arrow (`ac2g`) from each call to the device work that it caused.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Value, json};
use thalweg_driver::DeviceProperties;

use crate::trace::{
    Activity, ActivityStream, Annotation, Call, Clock, Command, MemoryChange, MemoryEvent, OperatorCall,
    Span, Trace,
};

/// The numbers of streams, by device.
type StreamNumbers = BTreeMap<(u32, ActivityStream), u64>;

/// Numbers the streams of each device from 1 on: first the program's streams, in the order of their first commands, then the
/// other streams. The driver's own numbers have more bits than readers of the format keep.
fn stream_numbers(trace: &Trace) -> StreamNumbers {
    let mut numbers = StreamNumbers::new();
    let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
    let commands = trace.commands.iter().map(|it| (it.device, ActivityStream::Program(it.stream)));
    let activities = trace.activities.iter().map(|it| (it.device, it.stream));
    for (device, stream) in commands.chain(activities) {
        numbers.entry((device, stream)).or_insert_with(|| {
            let count = counts.entry(device).or_default();
            *count += 1;
            *count
        });
    }
    numbers
}

/// Returns the complete file.
pub(crate) fn trace(trace: &Trace) -> Value {
    let streams = stream_numbers(trace);
    let mut events = names(trace, &streams);
    let own = json!(std::process::id());
    events.extend(trace.annotations.iter().map(|annotation| {
        let Annotation { name, thread, span } = annotation;
        complete("user_annotation", name, own.clone(), *thread, *span, json!({}))
    }));
    events.extend(device_annotations(trace, &streams));
    events.extend(trace.operators.iter().map(|operator| {
        let OperatorCall { name, id, thread, span, .. } = operator;
        complete("cpu_op", name, own.clone(), *thread, *span, json!({"External id": id}))
    }));
    let mut commands: HashMap<u64, &Command> = HashMap::new();
    for command in &trace.commands {
        commands.entry(command.correlation).or_insert(command);
    }
    let mut calls: HashMap<u64, &Call> = HashMap::new();
    for call in &trace.calls {
        call_events(&mut events, call, commands.get(&call.correlation).copied());
        calls.insert(call.correlation, call);
    }
    trace.memory.iter().for_each(|event| memory_events(&mut events, event));
    let devices: HashMap<u32, &DeviceProperties> = trace.devices.iter().map(|(id, it)| (*id, it)).collect();
    for activity in &trace.activities {
        let call = activity.correlation.and_then(|correlation| calls.get(&correlation).copied());
        let properties = devices.get(&activity.device).copied();
        activity_events(
            &mut events,
            activity,
            call,
            streams[&(activity.device, activity.stream)],
            properties,
        );
    }
    json!({
        "schemaVersion": 1,
        "deviceProperties": trace.devices.iter().map(|(id, properties)| device(*id, properties)).collect::<Vec<_>>(),
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": trace.base_nanoseconds,
        "clock": match &trace.clock {
            Clock::Device => "device".to_owned(),
            Clock::Events { reason } => format!("events: {reason}"),
        },
        "traceEvents": events,
        "traceName": "thalweg",
    })
}

/// Returns the names of the process, its threads, the devices and their streams.
fn names(trace: &Trace, streams: &StreamNumbers) -> Vec<Value> {
    let pid = std::process::id();
    let mut events = Vec::new();
    let threads: BTreeSet<u64> = (trace.calls.iter().map(|call| call.thread))
        .chain(trace.operators.iter().map(|call| call.thread))
        .chain(trace.annotations.iter().map(|annotation| annotation.thread))
        .chain(trace.memory.iter().map(|event| event.thread))
        .collect();
    events.push(metadata("process_name", json!(pid), 0, json!({"name": "thalweg"})));
    events.push(metadata("process_labels", json!(pid), 0, json!({"labels": "CPU"})));
    for &thread in &threads {
        events.push(metadata("thread_name", json!(pid), thread, json!({"name": format!("thread {thread}")})));
    }
    for (device, properties) in &trace.devices {
        events.push(metadata("process_name", json!(device), 0, json!({"name": properties.name})));
        events.push(metadata("process_labels", json!(device), 0, json!({"labels": format!("GPU {device}")})));
    }
    for (&(device, stream), &number) in streams {
        let name = match stream {
            ActivityStream::Program(_) => format!("stream {number}"),
            ActivityStream::Other(_) => format!("stream {number} (of a graph or a library)"),
        };
        events.push(metadata("thread_name", json!(device), number, json!({"name": name})));
    }
    events
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

/// The first id of an operator that no dispatcher reported, and that is known only from the label of a driver command.
const FIRST_LONE_ID: u64 = 1 << 40;

/// Returns the id that links a call and its work to the operator's event.
fn external_id(call: &Call) -> u64 {
    call.operator.unwrap_or(FIRST_LONE_ID + call.correlation)
}

/// Adds a call, and the operator of its command if the dispatcher reported none.
fn call_events(events: &mut Vec<Value>, call: &Call, command: Option<&Command>) {
    let pid = std::process::id();
    let mut arguments = json!({"correlation": call.correlation});
    if let Some(command) = command {
        let id = external_id(call);
        if call.operator.is_none() {
            let operator = json!({"External id": id});
            events.push(complete("cpu_op", command.operator, json!(pid), call.thread, call.span, operator));
        }
        arguments["External id"] = json!(id);
        arguments["operator"] = json!(command.operator);
        arguments["source"] = json!(command.source);
    }
    events.push(complete("cuda_driver", call.entry_point, json!(pid), call.thread, call.span, arguments));
}

/// Adds a change of memory: Kineto's instant event, and a value of each of the two curves of its device.
fn memory_events(events: &mut Vec<Value>, event: &MemoryEvent) {
    /// Kineto's number of CUDA devices (`c10::DeviceType::CUDA`).
    const CUDA: u32 = 1;
    let MemoryChange { device, address, bytes, total_allocated, total_reserved } = event.change;
    let at = microseconds(event.at);
    let mut arguments = json!({
        "Device Type": CUDA, "Device Id": device, "Addr": address, "Bytes": bytes,
        "Total Allocated": total_allocated, "Total Reserved": total_reserved,
    });
    if let Some(operator) = event.operator {
        arguments["External id"] = json!(operator);
    }
    events.push(json!({
        "ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": std::process::id(), "tid": event.thread,
        "ts": at, "args": arguments,
    }));
    events.push(json!({
        "ph": "C", "name": "memory in bytes", "pid": device, "tid": 0, "ts": at,
        "args": {"allocated": total_allocated, "reserved": total_reserved},
    }));
}

/// Adds an activity, and the arrow to it from its call.
fn activity_events(
    events: &mut Vec<Value>,
    activity: &Activity,
    call: Option<&Call>,
    stream: u64,
    properties: Option<&DeviceProperties>,
) {
    let mut arguments = json!({
        "device": activity.device,
        "stream": stream,
        "operator": activity.operator,
        "bytes": activity.bytes,
    });
    if let Some(node) = activity.graph_node {
        arguments["graph node id"] = json!(node);
    }
    if let Some(kernel) = &activity.kernel {
        let volume = |sides: [u32; 3]| sides.into_iter().map(f64::from).product::<f64>();
        arguments["grid"] = json!(kernel.grid);
        arguments["block"] = json!(kernel.block);
        arguments["registers per thread"] = json!(kernel.registers);
        arguments["shared memory"] = json!(kernel.shared_memory_bytes);
        if let Some(properties) = properties {
            let blocks = volume(kernel.grid) / f64::from(properties.multi_processor_count.max(1));
            let warps = (volume(kernel.block) / f64::from(properties.warp_size.max(1))).ceil();
            arguments["blocks per SM"] = json!(blocks);
            arguments["warps per SM"] = json!(blocks * warps);
        }
    }
    if let Some(call) = call {
        arguments["correlation"] = json!(call.correlation);
        arguments["External id"] = json!(external_id(call));
    }
    let (name, category) = (activity.name.as_str(), activity.category.name());
    events.push(complete(category, name, json!(activity.device), stream, activity.span, arguments));
    let Some(call) = call else { return };
    // A graph's launch leads to each of its activities, and an arrow has one beginning and one end.
    let id = match activity.graph_node {
        None => json!(call.correlation),
        Some(node) => json!(format!("{}.{node}", call.correlation)),
    };
    events.push(json!({
        "ph": "s", "id": id, "pid": std::process::id(), "tid": call.thread,
        "ts": microseconds(call.span.start), "cat": "ac2g", "name": "ac2g",
    }));
    events.push(json!({
        "ph": "f", "bp": "e", "id": id, "pid": activity.device, "tid": stream,
        "ts": microseconds(activity.span.start), "cat": "ac2g", "name": "ac2g",
    }));
}

/// Returns, for each region and stream, the span of the work that the region submitted to the stream.
fn device_annotations(trace: &Trace, streams: &StreamNumbers) -> Vec<Value> {
    let mut activities: HashMap<u64, Vec<&Activity>> = HashMap::new();
    for activity in &trace.activities {
        if let Some(correlation) = activity.correlation {
            activities.entry(correlation).or_default().push(activity);
        }
    }
    let mut calls: BTreeMap<u64, Vec<&Call>> = BTreeMap::new();
    for call in &trace.calls {
        calls.entry(call.thread).or_default().push(call);
    }
    let within = |annotation: &Annotation| {
        let mut spans: BTreeMap<(u32, ActivityStream), Span> = BTreeMap::new();
        let of_thread = calls.get(&annotation.thread).map_or(&[][..], Vec::as_slice);
        let first = of_thread.partition_point(|call| call.span.start < annotation.span.start);
        let last = of_thread.partition_point(|call| call.span.start < annotation.span.end);
        let caused =
            of_thread[first..last.max(first)].iter().filter_map(|it| activities.get(&it.correlation));
        for activity in caused.flatten() {
            let whole = spans.entry((activity.device, activity.stream)).or_insert(activity.span);
            whole.start = whole.start.min(activity.span.start);
            whole.end = whole.end.max(activity.span.end);
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
