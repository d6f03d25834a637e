//! A driver with a tracer that reports activities as CUPTI does: several activities per call, the kernels of a graph, work of other
//! libraries, mangled C++ names.

use std::sync::Arc;
use std::time::{Duration, Instant};

use thalweg_driver::{
    Activities, Activity, ActivityKind, ActivityTracer, CaptureMode, Code, Copy, Driver, Error, Fill,
    FunctionHandle, GraphExecHandle, KernelActivity, Launch, ModuleHandle, Result, StreamHandle,
};
use thalweg_lock::Mutex;
use thalweg_profiler::{
    ActivityStream, Clock, ProfilerDriver, Trace, profile, record_function, record_operator,
};
use thalweg_sim::{SimConfig, SimDriver};

use crate::world::World;

/// The name of the kernel that the library of the test launches: `void gemm<float>(int)`.
const MANGLED: &str = "_Z4gemmIfEvi";

/// A simulated GPU with a tracer: submitted work "runs" immediately, for 10 µs per activity.
#[derive(Debug)]
struct Traced {
    inner: Arc<SimDriver>,
    open: Mutex<Option<Vec<Activity>>>,
    calls: Mutex<Vec<u64>>,
    is_taken: bool,
}

impl Traced {
    fn add(&self, kind: ActivityKind, name: &str, stream: u32, bytes: u64, graph_node: Option<u64>) {
        let mut open = self.open.lock();
        let Some(list) = open.as_mut() else { return };
        let start = Instant::now();
        let kernel = (kind == ActivityKind::Kernel).then_some(KernelActivity {
            grid: [3, 2, 1],
            block: [64, 1, 1],
            registers: 32,
            shared_memory_bytes: 128,
        });
        list.push(Activity {
            kind,
            name: name.to_owned(),
            call: self.calls.lock().last().copied(),
            device: 0,
            stream,
            start,
            end: start + Duration::from_micros(10),
            bytes,
            kernel,
            graph_node,
        });
    }
}

impl ActivityTracer for Traced {
    fn start(&self) -> Result<()> {
        if self.is_taken {
            return Err(Error::new(Code::NotSupported, "cuptiSubscribe", "another profiler has CUPTI"));
        }
        *self.open.lock() = Some(Vec::new());
        Ok(())
    }

    fn enter(&self, call: u64) {
        self.calls.lock().push(call);
    }

    fn leave(&self) {
        self.calls.lock().pop();
    }

    fn stop(&self) -> Result<Activities> {
        let list = self.open.lock().take().expect("it was started");
        Ok(Activities { list, dropped: 3 })
    }
}

impl Driver for Traced {
    thalweg_driver::wraps!(inner);

    fn activity_tracer(&self) -> Result<&dyn ActivityTracer> {
        Ok(self)
    }

    fn function_get(&self, module: ModuleHandle, name: &str) -> Result<FunctionHandle> {
        self.inner.function_get(module, name)
    }

    fn launch(&self, stream: StreamHandle, launch: &Launch<'_>) -> Result<()> {
        if self.inner.stream_capture_info(stream)?.status == thalweg_driver::CaptureStatus::None {
            self.add(ActivityKind::Kernel, "sleep", 7, 0, None);
            self.add(ActivityKind::Kernel, MANGLED, 7, 0, None);
        }
        self.inner.launch(stream, launch)
    }

    fn fill_async(&self, stream: StreamHandle, fill: &Fill) -> Result<()> {
        self.add(ActivityKind::Fill, "", 8, fill.count * fill.pattern.bytes(), None);
        self.inner.fill_async(stream, fill)
    }

    fn copy_async(&self, stream: StreamHandle, copy: &Copy) -> Result<()> {
        self.inner.copy_async(stream, copy)
    }

    fn graph_launch(&self, exec: GraphExecHandle, stream: StreamHandle) -> Result<()> {
        self.add(ActivityKind::Kernel, "sleep", 7, 0, Some(1));
        self.add(ActivityKind::Kernel, "unknown", 99, 0, Some(2));
        self.inner.graph_launch(exec, stream)
    }
}

fn world(is_taken: bool) -> (World, Arc<Traced>) {
    let config = SimConfig { memory_bytes: 64 << 20, ..SimConfig::default() };
    let (open, calls) = (Mutex::default(), Mutex::default());
    let traced = Arc::new(Traced { inner: SimDriver::new(config).unwrap(), open, calls, is_taken });
    (World::over(Arc::clone(&traced) as Arc<dyn Driver>), traced)
}

/// Returns the activities as (name, operator, stream of the world or the tracer's number, bytes).
fn ran(world: &World, trace: &Trace) -> Vec<(String, String, Result<usize, u32>, u64)> {
    let stream = |stream| match stream {
        ActivityStream::Program(raw) => {
            Ok(world.streams.iter().position(|stream| stream.raw() == raw).expect("a stream of the world"))
        }
        ActivityStream::Other(number) => Err(number),
    };
    let activities = trace.activities.iter();
    activities.map(|it| (it.name.clone(), it.operator.clone(), stream(it.stream), it.bytes)).collect()
}

#[test]
fn activities_of_a_call_are_joined_with_its_command() {
    let (world, traced) = world(false);
    let ((), trace) = profile(&world.driver, || {
        world.launch(0, "mm", 256);
        world.fill(1, "zero_", 64);
        // Another library's work, outside of any call.
        traced.add(ActivityKind::Kernel, "external", 50, 0, None);
    })
    .unwrap();
    assert_eq!((&trace.clock, trace.dropped), (&Clock::Device, 3));
    let row =
        |name: &str, operator: &str, stream, bytes| (name.to_owned(), operator.to_owned(), stream, bytes);
    let expected = [
        row("sleep", "mm", Ok(0), 256),
        row("void gemm<float>(int)", "mm", Ok(0), 256),
        row("Memset (Device)", "zero_", Ok(1), 64),
        row("external", "external", Err(50), 0),
    ];
    assert_eq!(ran(&world, &trace), expected);
    let whole = trace.commands[0].span.expect("it ran");
    assert_eq!((whole.start, whole.end), (trace.activities[0].span.start, trace.activities[1].span.end));

    let averages = trace.key_averages();
    let row = |operator: &str| averages.0.iter().find(|row| row.operator == operator).expect("a row");
    assert_eq!((row("mm").count, row("mm").device_nanoseconds, row("mm").bytes), (1, 20_000, 256));
    assert_eq!((row("external").count, row("external").device_nanoseconds), (1, 10_000));
    let file = trace.chrome_trace();
    let events = file["traceEvents"].as_array().unwrap();
    let kernel = events.iter().find(|event| event["cat"] == "kernel").unwrap();
    assert_eq!(
        (kernel["args"]["registers per thread"].as_u64(), kernel["dur"].as_f64()),
        (Some(32), Some(10.0))
    );
    assert_eq!(file["clock"], "device");
}

#[test]
fn kernels_of_a_graph_have_spans_and_the_operators_that_were_captured() {
    let (world, _) = world(false);
    let (driver, stream) = (&world.driver, world.streams[0]);
    driver.stream_begin_capture(stream, CaptureMode::Global).unwrap();
    world.launch(0, "softmax", 64);
    let graph = driver.stream_end_capture(stream).unwrap();
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    let ((), trace) = profile(driver, || {
        world.launch(0, "add", 64);
        let _region = record_function("replays");
        for _ in 0..3 {
            driver.graph_launch(exec, stream).unwrap();
        }
    })
    .unwrap();
    let names: Vec<_> = ran(&world, &trace).into_iter().map(|it| (it.1, it.2)).collect();
    let replay = [("softmax".to_owned(), Ok(0)), ("unknown".to_owned(), Err(99))];
    let eager = [("add".to_owned(), Ok(0)), ("add".to_owned(), Ok(0))];
    assert_eq!(names, [&eager[..], &replay, &replay, &replay].concat());
    let averages = trace.key_averages();
    let row = |operator: &str| averages.0.iter().find(|row| row.operator == operator).expect("a row");
    assert_eq!((row("softmax").count, row("softmax").device_nanoseconds), (3, 30_000));
    assert_eq!(row("softmax").bandwidth(), None, "a graph does not say what its kernels touch");
    assert_eq!(row("add").bandwidth(), Some(64.0 / 20_000.0));
    assert_eq!((row("graph_launch").count, row("graph_launch").device_nanoseconds), (3, 0));

    let file = trace.chrome_trace();
    let events = file["traceEvents"].as_array().unwrap();
    let of =
        |phase: &str| events.iter().filter(|event| event["ph"] == phase).map(|event| &event["id"]).collect();
    let (begins, ends): (Vec<_>, Vec<_>) = (of("s"), of("f"));
    assert_eq!((begins.len(), &begins), (2 + 6, &ends));
    let region = events.iter().filter(|event| event["cat"] == "gpu_user_annotation");
    assert_eq!(region.count(), 2, "the region is on the stream and on the graph's own");
}

#[test]
fn without_the_tracer_events_are_used_and_the_trace_says_why() {
    let (world, _) = world(true);
    let ((), trace) = profile(&world.driver, || world.launch(0, "add", 64)).unwrap();
    let Clock::Events { reason } = &trace.clock else { panic!("{:?}", trace.clock) };
    assert!(reason.contains("another profiler has CUPTI"), "{reason}");
    assert_eq!(trace.activities.len(), 1);
    assert!(trace.commands[0].span.is_some());
}

#[test]
fn calls_of_operators_have_their_time_on_the_host() {
    let world = World::new();
    let (_, trace) = profile(&world.driver, || {
        let _outer = record_operator("outer operator");
        std::thread::sleep(Duration::from_millis(3));
        {
            let _inner = record_operator("inner operator");
            std::thread::sleep(Duration::from_millis(2));
            world.launch(0, "mm", 64);
        }
        world.launch(0, "add", 64);
    })
    .unwrap();
    // No other test has these names: operators of all threads are in each trace.
    let thread = trace.calls[0].thread;
    let own: Vec<_> = trace.operators.iter().filter(|call| call.thread == thread).collect();
    let [linear, mm] = own[..] else { panic!("{own:?}") };
    assert_eq!((linear.name, mm.name, mm.parent), ("outer operator", "inner operator", Some(linear.id)));
    let launches: Vec<_> = trace
        .calls
        .iter()
        .filter(|call| call.entry_point == "cuLaunchKernel")
        .map(|call| call.operator)
        .collect();
    assert_eq!(launches, [Some(mm.id), Some(linear.id)]);
    let averages = trace.key_averages();
    let row = |operator: &str| averages.0.iter().find(|row| row.operator == operator).expect("a row");
    let (linear, mm) = (row("outer operator"), row("inner operator"));
    assert_eq!(linear.self_host_nanoseconds, linear.host_nanoseconds - mm.host_nanoseconds);
    assert!(linear.host_nanoseconds >= 5_000_000 && mm.self_host_nanoseconds >= 2_000_000, "{averages}");
    // The time of `add`, the label's operator, is part of the operator that was called.
    assert_eq!((linear.count, mm.count, averages.0.iter().any(|row| row.operator == "add")), (1, 1, false));
    assert!(linear.device_nanoseconds >= 2_000_000 && linear.bytes == 64, "{averages}");
    assert!(ProfilerDriver::new(SimDriver::new(SimConfig::default()).unwrap()).stop().is_err());
}
