//! The audit compared with real captures: random programs are audited, and captured. The audit has no obstacle exactly if the
//! capture returns a graph with all that the program submits, and its first obstacle with a code has the code that the capture
//! returns.

use std::cell::RefCell;

use thalweg_driver::{CaptureMode, Code, DevicePointer, FillPattern};
use thalweg_runtime::graph::{Audit, audit};
use thalweg_runtime::{
    Buffer, CaptureOptions, Device, Environment, Error, Event, Graph, Label, PinnedBuffer, Result, Stream,
};

use crate::kernels::launch_sum;
use crate::support::{buffer_of, pinned_of, sim_in};

/// One step. Streams and events are numbered as in the [`World`]; stream 0 is the region's, the last one the default stream.
/// Event 0 was recorded outside, before.
#[derive(Clone, Debug)]
enum Step {
    Launch(usize),
    Fill(usize),
    CopyPinned(usize),
    HostFunction(usize),
    CopyFromHost(usize),
    CopyToHost(usize),
    Replay(usize),
    Record(usize, usize),
    Wait(usize, usize),
    WaitStream(usize, usize),
    SynchronizeStream(usize),
    QueryStream(usize),
    SynchronizeEvent(usize),
    QueryEvent(usize),
    SynchronizeDevice,
    AllocateFromDriver,
    AllocatePinnedFromDriver,
    Allocate(usize),
    AllocatePinned,
    /// The steps happen only if the stream does not capture.
    UnlessCapturing(usize, Vec<Step>),
    /// The steps happen on another thread, which is joined.
    Elsewhere(Vec<Step>),
    /// The steps happen while no capture restricts the thread.
    Relaxed(Vec<Step>),
}

/// A small generator of random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ (word >> 31)) % bound as u64) as usize
    }
}

const STREAMS: usize = 4;
const EVENTS: usize = 4;

/// The objects that programs work with.
struct World {
    device: Device,
    streams: Vec<Stream>,
    buffers: Vec<Buffer>,
    pinned: PinnedBuffer,
    graph: Graph,
}

/// A run of a program: its events, and the driver resources that it releases when it is over.
struct Run<'a> {
    world: &'a World,
    events: &'a [Event],
    device_memory: RefCell<Vec<DevicePointer>>,
    pinned_memory: RefCell<Vec<thalweg_driver::HostPointer>>,
}

impl World {
    /// Creates a world; if `is_blocking`, stream 1 synchronises with the default stream.
    fn new(is_blocking: bool) -> Self {
        let (driver, mut devices) = sim_in(&Environment::default(), 1);
        let device = devices.remove(0);
        let mut streams: Vec<_> = (1..STREAMS).map(|_| Stream::new(&device).unwrap()).collect();
        if is_blocking {
            let external = driver.external_stream_create(0, 0, true).unwrap();
            streams[1] = Stream::from_external(&device, external).unwrap();
        }
        streams.push(device.default_stream());
        let buffers: Vec<_> = streams.iter().map(|stream| buffer_of(stream, &[1.0; 4])).collect();
        // So that no program is the first one to load the kernel.
        let pointer = buffers[0].pointer();
        launch_sum(&streams[0], &[pointer], pointer, 4).unwrap();
        let options = CaptureOptions { stream: Some(streams[0].clone()), ..CaptureOptions::default() };
        let (graph, ()) =
            Graph::capture(&device, options, || launch_sum(&streams[0], &[pointer], pointer, 4)).unwrap();
        let pinned = pinned_of(&device, &[2.0; 4]);
        Self { device, streams, buffers, pinned, graph }
    }

    /// Runs `attempt` with the program as its region, on fresh events.
    fn attempt<T>(
        &self,
        steps: &[Step],
        mode: CaptureMode,
        attempt: impl FnOnce(&Device, CaptureOptions, &dyn Fn() -> Result<()>) -> Result<T>,
    ) -> Result<T> {
        let events: Vec<Event> = (0..EVENTS).map(|_| Event::new()).collect();
        events[0].record(&self.streams[STREAMS - 1]).unwrap();
        // Releases the pools of earlier captures, so that the driver has memory for programs that allocate from it.
        self.device.empty_cache().unwrap();
        let run = Run {
            world: self,
            events: &events,
            device_memory: RefCell::default(),
            pinned_memory: RefCell::default(),
        };
        let options =
            CaptureOptions { mode, stream: Some(self.streams[0].clone()), ..CaptureOptions::default() };
        let result = attempt(&self.device, options, &|| run.all(steps));
        self.device.synchronize().unwrap();
        for pointer in run.device_memory.take() {
            self.device.driver().memory_free(pointer).unwrap();
        }
        for pointer in run.pinned_memory.take() {
            self.device.driver().host_free(pointer).unwrap();
        }
        result
    }
}

impl Run<'_> {
    fn all(&self, steps: &[Step]) -> Result<()> {
        steps.iter().try_for_each(|step| self.step(step))
    }

    fn step(&self, step: &Step) -> Result<()> {
        let World { device, streams, buffers, pinned, graph } = self.world;
        let (events, label) = (self.events, Label::here("step"));
        let pointer = |stream: usize| buffers[stream].pointer();
        let driver = device.driver();
        match *step {
            Step::Launch(stream) => launch_sum(&streams[stream], &[pointer(stream)], pointer(stream), 4),
            Step::Fill(stream) => streams[stream].fill(pointer(stream), FillPattern::U32(0), 4, label),
            Step::CopyPinned(stream) => {
                streams[stream].copy_from_pinned(pointer(stream), pinned, 0, 16, label)
            }
            Step::HostFunction(stream) => {
                let nothing = std::sync::Arc::new(|| {});
                Ok(driver.host_function_async(streams[stream].handle(), nothing, label)?)
            }
            Step::CopyFromHost(stream) => streams[stream].copy_from_host(pointer(stream), &[0; 16], label),
            Step::CopyToHost(stream) => streams[stream].copy_to_host(&mut [0; 16], pointer(stream), label),
            Step::Replay(stream) => {
                let _current = streams[stream].make_current();
                graph.replay()
            }
            Step::Record(event, stream) => events[event].record(&streams[stream]),
            Step::Wait(stream, event) => events[event].wait(&streams[stream]),
            Step::WaitStream(stream, other) => streams[stream].wait_stream(&streams[other]),
            Step::SynchronizeStream(stream) => streams[stream].synchronize(),
            Step::QueryStream(stream) => streams[stream].query().map(drop),
            Step::SynchronizeEvent(event) => events[event].synchronize(),
            Step::QueryEvent(event) => events[event].query().map(drop),
            Step::SynchronizeDevice => device.synchronize(),
            Step::AllocateFromDriver => {
                self.device_memory.borrow_mut().push(driver.memory_allocate(device.index(), 256)?);
                Ok(())
            }
            Step::AllocatePinnedFromDriver => {
                let flags = thalweg_driver::HostFlags::default();
                self.pinned_memory.borrow_mut().push(driver.host_allocate(256, flags)?);
                Ok(())
            }
            Step::Allocate(stream) => Buffer::new(&streams[stream], 4096).map(drop),
            Step::AllocatePinned => PinnedBuffer::new(device, 1 << 16).map(drop),
            Step::UnlessCapturing(stream, ref steps) => {
                if streams[stream].is_capturing()? {
                    Ok(())
                } else {
                    self.all(steps)
                }
            }
            Step::Elsewhere(ref steps) => self.elsewhere(steps),
            Step::Relaxed(ref steps) => {
                let former = driver.thread_exchange_capture_mode(CaptureMode::Relaxed)?;
                let result = self.all(steps);
                driver.thread_exchange_capture_mode(former)?;
                result
            }
        }
    }

    fn elsewhere(&self, steps: &[Step]) -> Result<()> {
        let events = self.events;
        let world = self.world;
        let (result, device_memory, pinned_memory) = std::thread::scope(|scope| {
            let run = move || {
                let run = Run {
                    world,
                    events,
                    device_memory: RefCell::default(),
                    pinned_memory: RefCell::default(),
                };
                (run.all(steps), run.device_memory.take(), run.pinned_memory.take())
            };
            scope.spawn(run).join().expect("a program does not panic")
        });
        self.device_memory.borrow_mut().extend(device_memory);
        self.pinned_memory.borrow_mut().extend(pinned_memory);
        result
    }
}

/// Returns a program: mostly calls that captures allow, forks that are mostly joined, and now and then a forbidden call.
fn program(random: &mut Random) -> Vec<Step> {
    let mut steps = Vec::new();
    let length = 1 + random.below(10);
    let tame = random.below(3) == 0;
    for _ in 0..length {
        steps.push(step(random, tame, 0));
    }
    if random.below(4) > 0 {
        // The usual end: the region's stream waits for the others.
        for stream in 1..STREAMS - 1 {
            let used = |step: &Step| matches!(step, Step::WaitStream(joined, 0) if *joined == stream);
            if steps.iter().any(used) {
                steps.push(Step::WaitStream(0, stream));
            }
        }
    }
    steps
}

fn step(random: &mut Random, tame: bool, depth: usize) -> Step {
    let stream = |random: &mut Random| match random.below(10) {
        0..6 => 0,
        6..8 => 1,
        8 => 2,
        _ if tame => 1,
        _ => STREAMS - 1,
    };
    let fork = |random: &mut Random| Step::WaitStream(1 + random.below(STREAMS - 2), 0);
    match random.below(if tame { 11 } else { 28 }) {
        0..3 => Step::Launch(stream(random)),
        3 => Step::Fill(stream(random)),
        4 => Step::CopyPinned(stream(random)),
        5..8 => fork(random),
        8 => Step::Allocate(stream(random)),
        9 => Step::AllocatePinned,
        10 => Step::HostFunction(stream(random)),
        11 => Step::CopyFromHost(stream(random)),
        12 => Step::CopyToHost(stream(random)),
        13 => Step::Replay(stream(random)),
        14 | 15 => Step::Record(1 + random.below(EVENTS - 1), stream(random)),
        16 | 17 => Step::Wait(stream(random), random.below(EVENTS)),
        18 => Step::WaitStream(stream(random), stream(random)),
        19 => Step::SynchronizeStream(stream(random)),
        20 => Step::QueryStream(stream(random)),
        21 => Step::SynchronizeEvent(random.below(EVENTS)),
        22 => Step::QueryEvent(random.below(EVENTS)),
        23 => Step::SynchronizeDevice,
        24 => Step::AllocateFromDriver,
        25 => Step::AllocatePinnedFromDriver,
        _ if depth == 2 => Step::Launch(0),
        _ => {
            let steps = (0..1 + random.below(3)).map(|_| step(random, tame, depth + 1)).collect();
            match random.below(3) {
                0 => Step::UnlessCapturing(random.below(STREAMS), steps),
                1 => Step::Elsewhere(steps),
                _ => Step::Relaxed(steps),
            }
        }
    }
}

/// Returns the code that the driver would have returned for a call that the runtime refused without calling it, so that the capture
/// continued.
fn refused_before_the_driver(error: &Error) -> Option<Code> {
    let text = error.to_string();
    assert!(error.is_capture(), "the capture failed for a reason of its own: {text}");
    let refusals = [
        ("graph replay", Code::StreamCaptureUnsupported),
        ("the event was recorded outside it", Code::StreamCaptureIsolation),
        ("not joined", Code::StreamCaptureUnjoined),
    ];
    let code = refusals.iter().find(|(part, _)| text.contains(part)).map(|(_, code)| *code);
    assert!(code.is_some(), "a refusal that this test does not know: {text}");
    code
}

#[test]
fn the_audit_says_what_the_capture_does() {
    let worlds = [World::new(false), World::new(true)];
    let mut random = Random(5);
    let (mut clean, mut refused, mut wrong) = (0, 0, 0);
    for number in 0..4000 {
        let steps = program(&mut random);
        let world = &worlds[number % 2];
        let mode = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed][random.below(3)];
        let report: Audit = world
            .attempt(&steps, mode, |device, options, region| audit(device, options, region))
            .unwrap_or_else(|error| panic!("program {number} {steps:?}: the audit failed: {error}"));
        let captured = world.attempt(&steps, mode, |device, options, region| {
            Ok(Graph::capture(device, options, region)?.0.description()?.nodes.len() as u64)
        });
        let context = || format!("program {number} ({mode:?}) {steps:#?}\n{report}");
        match captured {
            Err(error) => {
                match error.driver_error() {
                    Some(error) => assert_eq!(report.code(), Some(error.code()), "{error}\n{}", context()),
                    None => assert_eq!(report.code(), refused_before_the_driver(&error), "{}", context()),
                }
                refused += 1;
            }
            Ok(nodes) => {
                assert_eq!(report.code(), None, "the capture gave a graph\n{}", context());
                let commands = report.counts().commands();
                if report.is_capturable() {
                    assert_eq!(nodes, commands, "the graph does all that the region does\n{}", context());
                    clean += 1;
                } else {
                    assert!(nodes < commands, "the graph lacks something\n{}", context());
                    wrong += 1;
                }
            }
        }
    }
    assert!(clean > 500 && refused > 500 && wrong > 100, "clean {clean}, refused {refused}, wrong {wrong}");
}
