//! Helpers of the sanitizer's tests: a checked simulator, kernels that declare accesses and make none, and verdicts.

use std::sync::Arc;

use thalweg_driver::{
    Access, AccessMode, BlockKind, CaptureMode, ConditionFormat, Conditional, Copy, DevicePointer, Driver,
    Endpoint, EventFlags, EventHandle, FunctionHandle, GraphExecHandle, GraphHandle, HostFault, HostFlags,
    HostKernel, HostLaunch, HostModule, HostPointer, Image, Instrument, Label, Launch, LaunchMode,
    StreamHandle, Touch, UseKind,
};
use thalweg_sanitizer::{Finding, FindingKind, SanitizerDriver};
use thalweg_sim::{SimConfig, SimDriver};

/// A checked machine of two devices, with streams, events and memory that has been written.
pub struct World {
    pub sim: Arc<SimDriver>,
    pub driver: Arc<SanitizerDriver>,
    function: FunctionHandle,
    /// A kernel that reports which rows it touches, as its arguments name them.
    rows: FunctionHandle,
    pub a: StreamHandle,
    pub b: StreamHandle,
    pub c: StreamHandle,
    pub default: StreamHandle,
    pub e: EventHandle,
    /// 4 KiB of memory, written and waited for.
    pub x: DevicePointer,
    pub y: DevicePointer,
}

pub const BYTES: u64 = 4096;

/// The bytes of a row.
pub const ROW: u64 = 64;

/// Reports the rows that the arguments name as touched.
fn touch_rows(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let words: Vec<u64> =
        launch.arguments.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    let mode = [AccessMode::Read, AccessMode::Write, AccessMode::ReadWrite][words[1] as usize];
    let rows = words[2..].iter().map(|row| (words[0] + row * ROW, ROW));
    launch.touched(&Access::new(words[0], BYTES, mode), rows);
    Ok(())
}

impl World {
    pub fn new() -> Self {
        let config = SimConfig { devices: 2, memory_bytes: 64 << 20, workers: 1, ..SimConfig::default() };
        let sim = SimDriver::new(config).unwrap();
        let driver = SanitizerDriver::new(sim.clone());
        let kernel: Arc<dyn HostKernel> = Arc::new(|_: &HostLaunch<'_>| Ok(()));
        let module = driver.module_load(0, Image::Host(&HostModule::single("nothing", kernel))).unwrap();
        let function = driver.function_get(module, "nothing").unwrap();
        let rows = HostModule::single("rows", Arc::new(touch_rows));
        let module = driver.module_load(0, Image::Host(&rows)).unwrap();
        let rows = driver.function_get(module, "rows").unwrap();
        let default = driver.default_stream(0).unwrap();
        let [a, b, c] = [0; 3].map(|_| driver.stream_create(0, 0).unwrap());
        let e = driver.event_create(0, EventFlags::default()).unwrap();
        let [x, y] = [0; 2].map(|_| driver.memory_allocate(0, BYTES).unwrap());
        let world = Self { sim, driver, function, rows, a, b, c, default, e, x, y };
        for pointer in [x, y] {
            world.write(a, pointer);
        }
        world.driver.device_synchronize(0).unwrap();
        world
    }

    /// Submits work that touches these ranges.
    #[track_caller]
    pub fn work(&self, stream: StreamHandle, operator: &'static str, accesses: &[Access]) {
        self.driver.launch(stream, &self.kernel(operator, accesses)).unwrap();
    }

    /// Returns a launch that touches these ranges.
    #[track_caller]
    pub fn kernel<'a>(&self, operator: &'static str, accesses: &'a [Access]) -> Launch<'a> {
        Launch {
            function: self.function,
            grid: [1; 3],
            block: [1; 3],
            shared_memory_bytes: 0,
            mode: LaunchMode::InOrder,
            arguments: &[],
            accesses,
            label: Label::here(operator),
        }
    }

    /// Submits work on rows of [`ROW`] bytes in a block of [`BYTES`] bytes. Which rows it touches depends only on data.
    #[track_caller]
    pub fn touch_rows(
        &self,
        stream: StreamHandle,
        operator: &'static str,
        mode: AccessMode,
        pointer: DevicePointer,
        rows: &[u64],
    ) {
        let access =
            Access::new(pointer.address(), BYTES, mode).touching(Touch::chosen(ROW * rows.len() as u64));
        let mode =
            [AccessMode::Read, AccessMode::Write, AccessMode::ReadWrite].iter().position(|m| *m == mode);
        let words = [pointer.address(), mode.unwrap() as u64];
        let arguments: Vec<u8> = words.iter().chain(rows).flat_map(|word| word.to_le_bytes()).collect();
        let accesses = [access];
        let launch = self.kernel(operator, &accesses);
        self.driver.launch(stream, &Launch { function: self.rows, arguments: &arguments, ..launch }).unwrap();
    }

    #[track_caller]
    pub fn read(&self, stream: StreamHandle, pointer: DevicePointer) {
        self.work(stream, "read", &[Access::read(pointer, BYTES)]);
    }

    #[track_caller]
    pub fn write(&self, stream: StreamHandle, pointer: DevicePointer) {
        self.work(stream, "write", &[Access::write(pointer, BYTES)]);
    }

    pub fn record(&self, event: EventHandle, stream: StreamHandle) {
        self.driver.event_record(event, stream).unwrap();
    }

    pub fn wait(&self, stream: StreamHandle, event: EventHandle) {
        self.driver.stream_wait_event(stream, event).unwrap();
    }

    pub fn event(&self) -> EventHandle {
        self.driver.event_create(0, EventFlags::default()).unwrap()
    }

    /// Calls `later.wait_stream(&earlier)`.
    pub fn order(&self, earlier: StreamHandle, later: StreamHandle) {
        let event = self.driver.event_create(0, EventFlags::default()).unwrap();
        self.record(event, earlier);
        self.wait(later, event);
        self.driver.event_destroy(event).unwrap();
    }

    pub fn pinned(&self) -> HostPointer {
        self.driver.host_allocate(BYTES, HostFlags::default()).unwrap()
    }

    pub fn host_write(&self, pointer: HostPointer) {
        self.driver.host_write(pointer, &[1; 64]).unwrap();
    }

    pub fn host_read(&self, pointer: HostPointer) {
        self.driver.host_read(pointer, &mut [0; 64]).unwrap();
    }

    #[track_caller]
    pub fn copy_out(&self, stream: StreamHandle, target: HostPointer, source: DevicePointer) {
        let copy = Copy {
            target: Endpoint::Pinned(target),
            source: Endpoint::Device(source),
            bytes: 64,
            label: Label::here("copy_out"),
        };
        self.driver.copy_async(stream, &copy).unwrap();
    }

    #[track_caller]
    pub fn copy_in(&self, stream: StreamHandle, target: DevicePointer, source: HostPointer) {
        let copy = Copy {
            target: Endpoint::Device(target),
            source: Endpoint::Pinned(source),
            bytes: 64,
            label: Label::here("copy_in"),
        };
        self.driver.copy_async(stream, &copy).unwrap();
    }

    // ---- Blocks ---------------------------------------------------------------------------------------------------

    /// Plays an allocator of one block, which is at `x` and is uninitialised from now on.
    #[track_caller]
    pub fn take(&self, stream: StreamHandle) -> DevicePointer {
        let label = Label::here("empty");
        self.driver.block_allocated(self.x.address(), BYTES, BlockKind::Device, stream, label);
        self.x
    }

    #[track_caller]
    pub fn free(&self, pointer: DevicePointer) {
        self.driver.block_freed(pointer.address(), Some(Label::here("drop")));
    }

    #[track_caller]
    pub fn record_stream(&self, pointer: DevicePointer, stream: StreamHandle) {
        let label = Label::here("record_stream");
        self.driver.block_recorded(pointer.address(), stream, UseKind::UntilFree, label);
    }

    #[track_caller]
    pub fn record_use(&self, pointer: DevicePointer, stream: StreamHandle) {
        let label = Label::here("record_use");
        self.driver.block_recorded(pointer.address(), stream, UseKind::SoFar, label);
    }

    // ---- Graphs ---------------------------------------------------------------------------------------------------

    /// Captures the work of `body` from the stream, and returns the graph.
    pub fn graph(&self, stream: StreamHandle, body: impl FnOnce()) -> GraphHandle {
        self.driver.stream_begin_capture(stream, CaptureMode::Relaxed).unwrap();
        body();
        self.driver.stream_end_capture(stream).unwrap()
    }

    /// Captures the work of `body` from the stream, and instantiates it.
    pub fn capture(&self, stream: StreamHandle, body: impl FnOnce()) -> GraphExecHandle {
        let graph = self.graph(stream, body);
        let exec = self.driver.graph_instantiate(graph, 0).unwrap();
        self.driver.graph_destroy(graph).unwrap();
        exec
    }

    /// Captures on A a node on the condition at `y`, with bodies that are captured on C.
    #[track_caller]
    pub fn conditional(&self, conditional: Conditional, bodies: &[&dyn Fn()]) {
        let label = Label::here("conditional");
        let condition = self.driver.condition_create(self.a, 0).unwrap();
        self.driver.condition_set_async(self.a, condition, self.y, ConditionFormat::U32, label).unwrap();
        let graphs = self.driver.conditional_node_add(self.a, condition, conditional, label).unwrap();
        for (graph, body) in graphs.into_iter().zip(bodies) {
            self.driver.stream_begin_capture_to_graph(self.c, graph, CaptureMode::Relaxed).unwrap();
            body();
            assert_eq!(self.driver.stream_end_capture(self.c), Ok(graph));
        }
    }

    pub fn launch(&self, exec: GraphExecHandle, stream: StreamHandle) {
        self.driver.graph_launch(exec, stream).unwrap();
    }

    // ---- Verdicts -------------------------------------------------------------------------------------------------

    pub fn findings(&self) -> Vec<Finding> {
        self.driver.findings()
    }

    pub fn kinds(&self) -> Vec<FindingKind> {
        self.findings().iter().map(|finding| finding.kind).collect()
    }
}

/// Runs a program on a fresh machine and compares its findings with the expected ones.
#[track_caller]
pub fn verdict(name: &str, expected: &[FindingKind], program: impl FnOnce(&World)) -> Vec<Finding> {
    let world = World::new();
    program(&world);
    let found = world.findings();
    let text: Vec<_> = found.iter().map(ToString::to_string).collect();
    assert_eq!(world.kinds(), expected, "{name}:\n{}", text.join("\n"));
    for line in text.iter().flat_map(|text| text.lines()) {
        assert!(line.chars().count() <= thalweg_sanitizer::WIDTH, "{name}: too wide: {line}");
    }
    found
}
