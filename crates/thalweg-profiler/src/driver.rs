//! [`ProfilerDriver`]: passes each call to the inner driver, and records it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use thalweg_driver::{
    Access, CaptureMode, Code, Collective, Copy, DevicePointer, Driver, Endpoint, Error, EventHandle, Fill,
    FunctionHandle, GpuCall, GraphExecHandle, GraphHandle, HostFunction, HostPointer, Label, Launch,
    LibraryLaunch, ModuleHandle, Result, StreamHandle,
};
use thalweg_lock::Mutex;

use crate::annotation;
use crate::recording::Recording;
use crate::trace::{Category, Command, Trace};

/// A driver that wraps another and records a timeline between [`start`](Self::start) and [`stop`](Self::stop).
#[derive(Debug)]
pub struct ProfilerDriver {
    inner: Arc<dyn Driver>,
    reads_accesses: bool,
    is_recording: AtomicBool,
    keeps_memory: AtomicBool,
    recording: Mutex<Option<Arc<Recording>>>,
    /// The names of the kernels that were looked up.
    names: Mutex<HashMap<FunctionHandle, String>>,
    operators: Operators,
    /// The number of captures under way.
    captures: AtomicUsize,
}

/// The operators that launched kernels into graphs, by the kernels' names: a graph's launch reports only the names of its
/// kernels.
#[derive(Debug, Default)]
pub(crate) struct Operators(Mutex<HashMap<String, &'static str>>);

impl Operators {
    /// Returns the operator of the last captured launch of the kernel with this name.
    pub(crate) fn of_kernel(&self, name: &str) -> Option<&'static str> {
        self.0.lock().get(name).copied()
    }
}

/// Records the work that `body` submits to the driver (`torch.profiler.profile`). *Blocks* until the devices that had work are
/// idle.
pub fn profile<T>(driver: &ProfilerDriver, body: impl FnOnce() -> T) -> Result<(T, Trace)> {
    driver.start()?;
    let answer = body();
    Ok((answer, driver.stop()?))
}

impl ProfilerDriver {
    /// Creates a profiler that wraps a driver. It does not record yet. Launches list the bytes that they touch for it, whether it
    /// records or not.
    pub fn new(inner: Arc<dyn Driver>) -> Arc<Self> {
        Self::of(inner, true)
    }

    /// Creates a profiler that makes launches list their bytes only if the inner driver needs them. While nothing is recorded, a
    /// call then costs one load.
    pub(crate) fn idle(inner: Arc<dyn Driver>) -> Arc<Self> {
        let reads_accesses = inner.reads_accesses();
        Self::of(inner, reads_accesses)
    }

    fn of(inner: Arc<dyn Driver>, reads_accesses: bool) -> Arc<Self> {
        Arc::new(Self {
            inner,
            reads_accesses,
            is_recording: AtomicBool::new(false),
            keeps_memory: AtomicBool::new(false),
            recording: Mutex::default(),
            names: Mutex::default(),
            operators: Operators::default(),
            captures: AtomicUsize::new(0),
        })
    }

    /// Sets whether later recordings contain each block that a caching allocator hands out or takes back
    /// (`torch.profiler.profile(profile_memory=True)`).
    pub fn profile_memory(&self, keeps_memory: bool) {
        self.keeps_memory.store(keeps_memory, Ordering::Relaxed);
    }

    /// Begins to record.
    ///
    /// # Errors
    /// [`Code::InvalidValue`] if it is already recording.
    pub fn start(&self) -> Result<()> {
        let mut recording = self.recording.lock();
        if recording.is_some() {
            return Err(Error::new(
                Code::InvalidValue,
                "start",
                "the profiler records already: stop it first",
            ));
        }
        let keeps_memory = self.keeps_memory.load(Ordering::Relaxed);
        let started = Recording::start(&*self.inner, std::ptr::from_ref(self).addr(), keeps_memory);
        let started = Arc::new(started);
        annotation::attach(&started);
        *recording = Some(started);
        self.is_recording.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Ends the recording. *Blocks* until the devices that had work are idle, so it must not be called in a capture.
    ///
    /// # Errors
    /// [`Code::InvalidValue`] if it is not recording; the errors of asynchronous work.
    pub fn stop(&self) -> Result<Trace> {
        self.is_recording.store(false, Ordering::Relaxed);
        let recording = self.recording.lock().take().ok_or_else(|| {
            Error::new(Code::InvalidValue, "stop", "the profiler does not record: start it first")
        })?;
        annotation::detach(&recording);
        recording.finish(&*self.inner, &self.operators)
    }

    fn recording(&self) -> Option<Arc<Recording>> {
        if !self.is_recording.load(Ordering::Relaxed) {
            return None;
        }
        self.recording.lock().clone()
    }

    /// Makes a call that submits no command.
    fn call<T>(&self, entry_point: &'static str, call: impl FnOnce() -> Result<T>) -> Result<T> {
        match self.recording() {
            None => call(),
            Some(recording) => recording.call(entry_point, call),
        }
    }

    /// Makes a call that submits a command.
    fn submit(
        &self,
        stream: StreamHandle,
        entry_point: &'static str,
        describe: impl Fn() -> Work,
        call: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let Some(recording) = self.recording() else { return call() };
        let describe = |_, correlation, device| describe().into_command(correlation, device, stream);
        recording.submit(&*self.inner, &[stream], entry_point, describe, call)
    }

    /// Notes the operator of a kernel that is captured.
    fn note_operator(&self, launch: &Launch<'_>) {
        if let Some(name) = self.names.lock().get(&launch.function) {
            self.operators.0.lock().insert(name.clone(), launch.label.operator);
        }
    }
}

/// The description of a command, without its times.
struct Work {
    name: String,
    label: Label,
    category: Category,
    bytes: u64,
    flops: u64,
    shape: Option<[[u32; 3]; 2]>,
}

impl Work {
    fn new(name: impl Into<String>, label: Label, category: Category, bytes: u64) -> Self {
        Self { name: name.into(), label, category, bytes, flops: 0, shape: None }
    }

    fn into_command(self, correlation: u64, device: u32, stream: StreamHandle) -> Command {
        let Self { name, label, category, bytes, flops, shape } = self;
        Command {
            name,
            operator: label.operator,
            source: format!("{}:{}", label.source().file, label.source().line),
            category,
            correlation,
            device,
            stream: stream.raw(),
            span: None,
            bytes,
            flops,
            shape,
        }
    }
}

fn bytes_of(accesses: &[Access]) -> u64 {
    accesses.iter().fold(0, |sum, access| sum.saturating_add(access.bytes))
}

/// Returns Kineto's name of a copy.
fn copy_name(copy: &Copy) -> &'static str {
    match (copy.source, copy.target) {
        (Endpoint::Device(_), Endpoint::Device(_)) => "Memcpy DtoD (Device -> Device)",
        (Endpoint::Device(_), Endpoint::Pinned(_)) => "Memcpy DtoH (Device -> Pinned)",
        (Endpoint::Pinned(_), Endpoint::Device(_)) => "Memcpy HtoD (Pinned -> Device)",
        (Endpoint::Pinned(_), Endpoint::Pinned(_)) => "Memcpy HtoH (Pinned -> Pinned)",
    }
}

impl Driver for ProfilerDriver {
    thalweg_driver::wraps!(inner);

    /// Returns whether launches must list the ranges that they access, from which a command's bytes are counted. Code that opens
    /// a device queries this once, before anything is recorded.
    fn reads_accesses(&self) -> bool {
        self.reads_accesses
    }

    // ---- Calls that wait or take long -----------------------------------------------------------------------------

    fn device_synchronize(&self, device: u32) -> Result<()> {
        self.call("cuCtxSynchronize", || self.inner.device_synchronize(device))
    }

    fn stream_synchronize(&self, stream: StreamHandle) -> Result<()> {
        self.call("cuStreamSynchronize", || self.inner.stream_synchronize(stream))
    }

    fn event_synchronize(&self, event: EventHandle) -> Result<()> {
        self.call("cuEventSynchronize", || self.inner.event_synchronize(event))
    }

    fn memory_allocate(&self, device: u32, bytes: u64) -> Result<DevicePointer> {
        self.call("cuMemAlloc", || self.inner.memory_allocate(device, bytes))
    }

    fn memory_free(&self, pointer: DevicePointer) -> Result<()> {
        self.call("cuMemFree", || self.inner.memory_free(pointer))
    }

    fn host_free(&self, pointer: HostPointer) -> Result<()> {
        self.call("cuMemFreeHost", || self.inner.host_free(pointer))
    }

    fn host_function_async(&self, stream: StreamHandle, function: HostFunction, label: Label) -> Result<()> {
        let call = || self.inner.host_function_async(stream, function, label);
        self.call("cuLaunchHostFunc", call)
    }

    fn graph_instantiate(&self, graph: GraphHandle, device: u32) -> Result<GraphExecHandle> {
        self.call("cuGraphInstantiate", || self.inner.graph_instantiate(graph, device))
    }

    // ---- Captures -------------------------------------------------------------------------------------------------

    fn stream_begin_capture(&self, stream: StreamHandle, mode: CaptureMode) -> Result<()> {
        self.inner.stream_begin_capture(stream, mode)?;
        self.captures.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn stream_end_capture(&self, stream: StreamHandle) -> Result<GraphHandle> {
        // A failed end may leave a capture: names that are noted without a graph do no harm.
        let graph = self.inner.stream_end_capture(stream)?;
        let one_less = |captures: usize| captures.checked_sub(1);
        let _ = self.captures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        Ok(graph)
    }

    // ---- Commands -------------------------------------------------------------------------------------------------

    fn function_get(&self, module: ModuleHandle, name: &str) -> Result<FunctionHandle> {
        let function = self.inner.function_get(module, name)?;
        self.names.lock().insert(function, name.to_owned());
        Ok(function)
    }

    fn launch(&self, stream: StreamHandle, launch: &Launch<'_>) -> Result<()> {
        let describe = || {
            let name = self.names.lock().get(&launch.function).cloned();
            let name = name.unwrap_or_else(|| launch.label.operator.to_owned());
            let bytes = bytes_of(launch.accesses);
            let shape = Some([launch.grid, launch.block]);
            Work { shape, ..Work::new(name, launch.label, Category::Kernel, bytes) }
        };
        if self.captures.load(Ordering::Relaxed) > 0 {
            self.note_operator(launch);
        }
        self.submit(stream, "cuLaunchKernel", describe, || self.inner.launch(stream, launch))
    }

    fn library_async(&self, stream: StreamHandle, launch: &LibraryLaunch<'_>) -> Result<()> {
        let entry_point = launch.gpu.entry_point();
        let describe = || {
            let flops = match launch.gpu {
                GpuCall::Matmul(call) => {
                    [call.m, call.n, call.k, call.batch].into_iter().fold(2, u64::saturating_mul)
                }
                _ => 0,
            };
            let bytes = bytes_of(launch.accesses);
            Work { flops, ..Work::new(entry_point, launch.label, Category::Kernel, bytes) }
        };
        self.submit(stream, entry_point, describe, || self.inner.library_async(stream, launch))
    }

    fn copy_async(&self, stream: StreamHandle, copy: &Copy) -> Result<()> {
        let describe = || Work::new(copy_name(copy), copy.label, Category::Memcpy, copy.bytes);
        self.submit(stream, "cuMemcpyAsync", describe, || self.inner.copy_async(stream, copy))
    }

    fn copy_from_host(
        &self,
        stream: StreamHandle,
        target: DevicePointer,
        source: &[u8],
        label: Label,
    ) -> Result<()> {
        let bytes = source.len() as u64;
        let describe = || Work::new("Memcpy HtoD (Pageable -> Device)", label, Category::Memcpy, bytes);
        let call = || self.inner.copy_from_host(stream, target, source, label);
        self.submit(stream, "cuMemcpyHtoDAsync", describe, call)
    }

    fn copy_to_host(
        &self,
        stream: StreamHandle,
        target: &mut [u8],
        source: DevicePointer,
        label: Label,
    ) -> Result<()> {
        let bytes = target.len() as u64;
        let describe = || Work::new("Memcpy DtoH (Device -> Pageable)", label, Category::Memcpy, bytes);
        let call = || self.inner.copy_to_host(stream, target, source, label);
        self.submit(stream, "cuMemcpyDtoHAsync", describe, call)
    }

    fn fill_async(&self, stream: StreamHandle, fill: &Fill) -> Result<()> {
        let describe = || {
            let bytes = fill.count.saturating_mul(fill.pattern.bytes());
            Work::new("Memset (Device)", fill.label, Category::Memset, bytes)
        };
        self.submit(stream, "cuMemsetAsync", describe, || self.inner.fill_async(stream, fill))
    }

    fn graph_launch(&self, exec: GraphExecHandle, stream: StreamHandle) -> Result<()> {
        let label = Label::here("graph_launch");
        let describe = || Work::new("CUDA graph", label, Category::Kernel, 0);
        self.submit(stream, "cuGraphLaunch", describe, || self.inner.graph_launch(exec, stream))
    }

    fn collectives_async(&self, collectives: &[Collective]) -> Result<()> {
        let call = || self.inner.collectives_async(collectives);
        let Some(recording) = self.recording() else { return call() };
        let streams: Vec<StreamHandle> = collectives.iter().map(|collective| collective.stream).collect();
        let describe = |index: usize, correlation, device| {
            let collective: &Collective = &collectives[index];
            let bytes = collective.count.saturating_mul(collective.format.bytes().unwrap_or(0));
            let work = Work::new(collective.operation.to_string(), collective.label, Category::Kernel, bytes);
            work.into_command(correlation, device, collective.stream)
        };
        recording.submit(&*self.inner, &streams, "ncclGroupEnd", describe, call)
    }
}
