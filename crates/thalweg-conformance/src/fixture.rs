//! Helpers of a case: a device, guards for the objects that it makes, gates, and expectations that explain themselves.
//!
//! Guards release their object when they are dropped and ignore the error: a case that ends early must not leak into the next
//! one, and a case that tests the release calls the driver itself.

use std::fmt::Debug;
use std::ops::Deref;
use std::panic::Location;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use thalweg_driver::{
    CaptureMode, CaptureStatus, Code, Copy, DevicePointer, Driver, Endpoint, EventFlags, EventHandle,
    GraphHandle, HostFlags, HostPointer, Label, Result, StreamHandle,
};
use thalweg_lock::{Condvar, Mutex};

use super::kernels::{Kernel, KernelArguments, KernelSet};
use super::{CaseResult, Stop, place};

/// The time that a case waits for something that must happen, before it reports a failure. It is generous, because it only bounds
/// how long a broken driver can block the suite.
const PATIENCE: Duration = Duration::from_secs(20);

/// A driver, one of its devices, and the kernels of the suite.
#[derive(Debug)]
pub struct Fixture {
    /// The driver under test.
    pub driver: Arc<dyn Driver>,
    /// The device under test.
    pub device: u32,
    /// The kernels, loaded on that device.
    pub kernels: KernelSet,
    progress: OnceLock<bool>,
}

impl Fixture {
    /// Loads the kernels and runs each once, so that lazy loading (which may block) is complete when the cases start.
    pub fn new(driver: Arc<dyn Driver>, device: u32) -> Result<Self> {
        let kernels = KernelSet::load(&*driver, device)?;
        let fixture = Self { driver, device, kernels, progress: OnceLock::new() };
        let stream = fixture.stream()?;
        let words = fixture.iota(16, 0)?;
        for kernel in Kernel::ALL {
            let arguments = KernelArguments::new(words.pointer, 8, 0).with_source(words.pointer.offset(32));
            fixture.launch(&stream, kernel, arguments)?;
        }
        fixture.driver.stream_synchronize(stream.handle)?;
        drop((stream, words));
        Ok(fixture)
    }

    /// Returns the driver.
    pub(super) fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    /// Returns a new stream.
    pub(super) fn stream(&self) -> Result<Stream<'_>> {
        self.stream_of(self.device)
    }

    /// Returns a new stream of a device, which may differ from the one under test.
    pub(super) fn stream_of(&self, device: u32) -> Result<Stream<'_>> {
        Ok(Stream { fixture: self, handle: self.driver.stream_create(device, 0)? })
    }

    /// Returns a new event without timing.
    pub(super) fn event(&self) -> Result<Event<'_>> {
        self.event_with(EventFlags::default())
    }

    /// Returns a new event.
    pub(super) fn event_with(&self, flags: EventFlags) -> Result<Event<'_>> {
        let handle = self.driver.event_create(self.device, flags)?;
        Ok(Event { fixture: self, handle })
    }

    /// Allocates device memory for `words` words of 32 bits.
    pub(super) fn buffer(&self, words: u64) -> Result<Buffer<'_>> {
        let pointer = self.driver.memory_allocate(self.device, words * 4)?;
        Ok(Buffer { fixture: self, pointer, words })
    }

    /// Allocates device memory with the values `value, value + 1, …`; the write is complete.
    pub(super) fn iota(&self, words: u64, value: u32) -> Result<Buffer<'_>> {
        let buffer = self.buffer(words)?;
        let content: Vec<u8> = (0..words as u32).flat_map(|i| (value + i).to_le_bytes()).collect();
        let stream = self.stream()?;
        self.driver.copy_from_host(stream.handle, buffer.pointer, &content, Label::here("iota"))?;
        self.driver.stream_synchronize(stream.handle)?;
        Ok(buffer)
    }

    /// Allocates pinned memory.
    pub(super) fn pinned(&self, bytes: u64) -> Result<Pinned<'_>> {
        let pointer = self.driver.host_allocate(bytes, HostFlags::default())?;
        Ok(Pinned { fixture: self, pointer })
    }

    /// Launches a kernel with the accesses that it declares.
    #[track_caller]
    pub(super) fn launch(
        &self,
        stream: &Stream<'_>,
        kernel: Kernel,
        arguments: KernelArguments,
    ) -> Result<()> {
        self.kernels.launch(&*self.driver, stream.handle, kernel, arguments)
    }

    /// Submits `buffer[..] += value` on the stream.
    #[track_caller]
    pub(super) fn add(&self, stream: &Stream<'_>, buffer: &Buffer<'_>, value: u32) -> Result<()> {
        self.launch(stream, Kernel::Add, KernelArguments::new(buffer.pointer, buffer.words, value))
    }

    /// Submits `buffer[..] = value` on the stream.
    #[track_caller]
    pub(super) fn set(&self, stream: &Stream<'_>, buffer: &Buffer<'_>, value: u32) -> Result<()> {
        self.launch(stream, Kernel::Constant, KernelArguments::new(buffer.pointer, buffer.words, value))
    }

    /// Submits an asynchronous copy.
    #[track_caller]
    pub(super) fn copy(
        &self,
        stream: &Stream<'_>,
        target: Endpoint,
        source: Endpoint,
        bytes: u64,
    ) -> Result<()> {
        self.driver.copy_async(stream.handle, &Copy { target, source, bytes, label: Label::here("copy") })
    }

    /// Reads words of device memory in the order of the stream, and returns them.
    pub(super) fn words_on(
        &self,
        stream: StreamHandle,
        pointer: DevicePointer,
        words: u64,
    ) -> Result<Vec<u32>> {
        let mut bytes = vec![0; words as usize * 4];
        self.driver.copy_to_host(stream, &mut bytes, pointer, Label::here("read back"))?;
        Ok(bytes
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            .collect())
    }

    /// Reads bytes of device memory on a stream of their own, for work that is complete, and returns them.
    pub(super) fn bytes(&self, pointer: DevicePointer, bytes: usize) -> Result<Vec<u8>> {
        let stream = self.stream()?;
        let mut content = vec![0; bytes];
        self.driver.copy_to_host(stream.handle, &mut content, pointer, Label::here("read back"))?;
        Ok(content)
    }

    /// Waits until the function returns `true`, and fails if it does not in time.
    #[track_caller]
    pub(super) fn eventually(&self, what: &str, ask: impl FnMut() -> Result<bool>) -> CaseResult {
        if within(PATIENCE, ask)? {
            return Ok(());
        }
        fail(format!("{what}: expected within {} s, and it did not happen", PATIENCE.as_secs()))
    }

    /// Skips the case if a blocked stream blocks all others: CUDA guarantees no concurrency, so that is not a failure.
    pub(super) fn require_progress(&self) -> CaseResult {
        if let Some(&progress) = self.progress.get() {
            return if progress { Ok(()) } else { skip(NO_PROGRESS) };
        }
        let (blocked, free) = (self.stream()?, self.stream()?);
        let buffer = self.buffer(1)?;
        let gate = self.gate(blocked.handle)?;
        self.set(&free, &buffer, 1)?;
        let progress = within(Duration::from_secs(2), || self.driver.stream_query(free.handle))?;
        gate.open();
        self.driver.stream_synchronize(blocked.handle)?;
        self.driver.stream_synchronize(free.handle)?;
        if *self.progress.get_or_init(|| progress) { Ok(()) } else { skip(NO_PROGRESS) }
    }

    /// Blocks the stream until the gate is opened. One gate at a time: CUDA runs host functions one after another.
    pub(super) fn gate(&self, stream: StreamHandle) -> Result<Gate> {
        let gate = Gate { state: Arc::default() };
        let state = Arc::clone(&gate.state);
        self.driver.host_function_async(
            stream,
            Arc::new(move || state.wait()),
            Label::here("a gate of the conformance suite"),
        )?;
        Ok(gate)
    }

    /// Captures the work that `work` submits to the stream, in `mode`.
    pub(super) fn capture(
        &self,
        stream: &Stream<'_>,
        mode: CaptureMode,
        work: impl FnOnce() -> CaseResult,
    ) -> CaseResult<Graph<'_>> {
        self.driver.stream_begin_capture(stream.handle, mode)?;
        work()?;
        let handle = self.driver.stream_end_capture(stream.handle)?;
        Ok(Graph { fixture: self, handle })
    }

    /// Makes a round trip through memory, a kernel and a copy, after all work is complete, to check whether the driver still
    /// works.
    pub(super) fn still_works(&self) -> CaseResult {
        self.driver.device_synchronize(self.device)?;
        let stream = self.stream()?;
        let buffer = self.buffer(3)?;
        self.set(&stream, &buffer, 7)?;
        self.add(&stream, &buffer, 1)?;
        equal(self.words_on(stream.handle, buffer.pointer, 3)?, vec![8; 3], "a round trip after the case")
    }
}

/// Calls of the driver under test.
impl Deref for Fixture {
    type Target = dyn Driver;

    fn deref(&self) -> &Self::Target {
        &*self.driver
    }
}

const NO_PROGRESS: &str = "a blocked stream holds up all others on this driver, which CUDA allows";

fn within(patience: Duration, mut ask: impl FnMut() -> Result<bool>) -> Result<bool> {
    let start = Instant::now();
    loop {
        if ask()? {
            return Ok(true);
        }
        if start.elapsed() > patience {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// A host function that blocks its stream until it is opened or dropped, or a long time has passed.
#[derive(Debug)]
pub(super) struct Gate {
    state: Arc<GateState>,
}

#[derive(Debug, Default)]
struct GateState {
    open: Mutex<bool>,
    changed: Condvar,
}

impl GateState {
    fn wait(&self) {
        let open = self.open.lock();
        let _ = self.changed.wait_timeout_while(open, PATIENCE, |open| !*open);
    }
}

impl Gate {
    /// Lets the stream continue.
    pub(super) fn open(&self) {
        *self.state.open.lock() = true;
        self.state.changed.notify_all();
    }

    /// Opens the gate after a short delay, from another thread. The thread sets the flag just before it does so.
    pub(super) fn open_soon(&self, flag: &Arc<std::sync::atomic::AtomicBool>) -> std::thread::JoinHandle<()> {
        let (gate, flag) = (Self { state: Arc::clone(&self.state) }, Arc::clone(flag));
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            flag.store(true, std::sync::atomic::Ordering::SeqCst);
            gate.open();
        })
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

/// A stream that is destroyed at the end of the case; a capture that is still under way is ended first.
#[derive(Debug)]
pub(super) struct Stream<'f> {
    fixture: &'f Fixture,
    pub(super) handle: StreamHandle,
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        let driver = self.fixture.driver();
        let capturing =
            driver.stream_capture_info(self.handle).is_ok_and(|info| info.status != CaptureStatus::None);
        if capturing && let Ok(graph) = driver.stream_end_capture(self.handle) {
            let _ = driver.graph_destroy(graph);
        }
        let _ = driver.stream_destroy(self.handle);
    }
}

/// An event that is destroyed at the end of the case.
#[derive(Debug)]
pub(super) struct Event<'f> {
    fixture: &'f Fixture,
    pub(super) handle: EventHandle,
}

impl Drop for Event<'_> {
    fn drop(&mut self) {
        let _ = self.fixture.driver().event_destroy(self.handle);
    }
}

/// Device memory that is freed at the end of the case.
#[derive(Debug)]
pub(super) struct Buffer<'f> {
    fixture: &'f Fixture,
    pub(super) pointer: DevicePointer,
    pub(super) words: u64,
}

impl Buffer<'_> {
    /// Returns all words of the buffer; work that writes them must be complete.
    pub(super) fn words(&self) -> Result<Vec<u32>> {
        let stream = self.fixture.stream()?;
        self.fixture.words_on(stream.handle, self.pointer, self.words)
    }

    /// Returns the start of the buffer as an endpoint of a copy.
    pub(super) fn end(&self) -> Endpoint {
        Endpoint::Device(self.pointer)
    }

    /// Returns the place `bytes` after the start as an endpoint of a copy.
    pub(super) fn end_at(&self, bytes: u64) -> Endpoint {
        Endpoint::Device(self.pointer.offset(bytes))
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        let _ = self.fixture.driver().memory_free(self.pointer);
    }
}

/// Pinned memory that is freed at the end of the case.
#[derive(Debug)]
pub(super) struct Pinned<'f> {
    fixture: &'f Fixture,
    pub(super) pointer: HostPointer,
}

impl Pinned<'_> {
    /// Returns `count` bytes from the start.
    pub(super) fn bytes(&self, count: usize) -> Result<Vec<u8>> {
        let mut content = vec![0xee; count];
        self.fixture.driver().host_read(self.pointer, &mut content)?;
        Ok(content)
    }

    /// Returns the place `bytes` after the start as an endpoint of a copy.
    pub(super) fn end_at(&self, bytes: u64) -> Endpoint {
        Endpoint::Pinned(self.pointer.offset(bytes))
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        let _ = self.fixture.driver().host_free(self.pointer);
    }
}

/// A graph that is destroyed at the end of the case.
#[derive(Debug)]
pub(super) struct Graph<'f> {
    fixture: &'f Fixture,
    pub(super) handle: GraphHandle,
}

impl Graph<'_> {
    /// Instantiates the graph, launches it `times` times on the stream, waits and destroys the executable.
    pub(super) fn replay(&self, stream: &Stream<'_>, times: usize) -> Result<()> {
        let driver = self.fixture.driver();
        let exec = driver.graph_instantiate(self.handle, self.fixture.device)?;
        for _ in 0..times {
            driver.graph_launch(exec, stream.handle)?;
        }
        driver.stream_synchronize(stream.handle)?;
        driver.graph_exec_destroy(exec)
    }
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        let _ = self.fixture.driver().graph_destroy(self.handle);
    }
}

/// Ends the case as failed.
#[track_caller]
pub(super) fn fail<T>(what: impl Into<String>) -> CaseResult<T> {
    Err(Stop::Failed(format!("{} (at {})", what.into(), place(Location::caller()))))
}

/// Ends the case as skipped.
pub(super) fn skip(reason: impl Into<String>) -> CaseResult {
    Err(Stop::Skipped(reason.into()))
}

/// Checks that a statement holds.
#[track_caller]
pub(super) fn holds(condition: bool, what: &str) -> CaseResult {
    if condition { Ok(()) } else { fail(format!("{what}: expected, and it does not hold")) }
}

/// Checks that a value equals the expected one.
#[track_caller]
pub(super) fn equal<T: PartialEq + Debug>(seen: T, expected: T, what: &str) -> CaseResult {
    if seen == expected {
        return Ok(());
    }
    let brief = |value: &T| {
        let text = format!("{value:?}");
        if text.len() > 160 { format!("{}…", text.chars().take(160).collect::<String>()) } else { text }
    };
    fail(format!("{what}: expected {}, saw {}", brief(&expected), brief(&seen)))
}

/// Checks that a call was refused with one of the codes.
#[track_caller]
pub(super) fn check_refused<T: Debug>(result: Result<T>, codes: &[Code], what: &str) -> CaseResult {
    match result {
        Err(error) if codes.contains(&error.code()) => Ok(()),
        Err(error) => fail(format!("{what}: expected one of {codes:?}, got {error}")),
        Ok(value) => fail(format!("{what}: expected one of {codes:?}, but it succeeded with {value:?}")),
    }
}

/// Checks that a call was refused because of a wrong argument.
#[track_caller]
pub(super) fn refused_argument<T: Debug>(result: Result<T>, what: &str) -> CaseResult {
    check_refused(result, &[Code::InvalidValue, Code::InvalidHandle, Code::InvalidDevice], what)
}
