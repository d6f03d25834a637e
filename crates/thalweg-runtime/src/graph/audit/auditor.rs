//! [`Auditor`]: the driver that the runtime calls while a region is audited. Each call is passed to the inner driver and executed
//! there; its meaning in a capture is passed to the [`DryRun`].
//!
//! A device hands out the plain driver unless an audit is under way (`Device::driver`), so that a program which audits nothing
//! pays one load for this. All devices of a driver share one auditor, as they share captures.
//!
//! The allocators call the plain driver. They may: their calls are harmless to captures, and no capture restricts them.
//!
//! Conditional nodes exist only in captures, so they are refused here, as in any region that runs eagerly.
//!
//! # Invariants
//! - An auditor changes only one result: a stream that would take part in the capture reports that it captures. Code that queries
//!   this takes the branch that it would take in the capture.
//! - The dry run is not locked while the inner driver works.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use thalweg_driver::{
    CaptureInfo, CaptureMode, CaptureStatus, Collective, CommunicatorHandle, CommunicatorId, Copy,
    DependencyUpdate, DevicePointer, Driver, EventHandle, Fill, FunctionHandle, GraphExecHandle,
    GraphNodeHandle, HostFlags, HostFunction, HostPointer, Image, IpcHandle, Label, Launch, LibraryLaunch,
    ModuleHandle, PoolHandle, Result, StreamHandle,
};
use thalweg_lock::{Mutex, MutexGuard};

use super::counts::Command;
use super::dry_run::{Caller, DryRun, StreamIdentity};
use super::next_call;
use super::obstacle::{ObstacleKind, Site};
use super::times::SubmissionTimes;

/// The number of the dry run's capture: no driver reaches it.
const DRY_RUN_CAPTURE: u64 = u64::MAX;

/// See the [module](self).
pub(crate) struct Auditor {
    inner: Arc<dyn Driver>,
    is_on: AtomicBool,
    session: Mutex<Option<Session>>,
}

/// An audit under way.
pub(super) struct Session {
    pub(super) dry_run: DryRun,
    pub(super) times: SubmissionTimes,
}

impl fmt::Debug for Auditor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auditor")
            .field("inner", &self.inner)
            .field("is_on", &self.is_on)
            .finish_non_exhaustive()
    }
}

impl Auditor {
    pub(crate) fn new(inner: Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Self { inner, is_on: AtomicBool::new(false), session: Mutex::new(None) })
    }

    /// Returns whether an audit is under way.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    fn session(&self) -> MutexGuard<'_, Option<Session>> {
        self.session.lock()
    }

    /// Begins an audit of all calls from now on, as if the stream captured. `false` if an audit is under way already.
    pub(super) fn begin(&self, stream: StreamHandle, mode: CaptureMode) -> Result<bool> {
        let origin = self.find_place(stream)?;
        let mut session = self.session();
        if session.is_some() {
            return Ok(false);
        }
        let dry_run = DryRun::new(origin, mode, std::thread::current().id());
        *session = Some(Session { dry_run, times: SubmissionTimes::start() });
        self.is_on.store(true, Ordering::Relaxed);
        Ok(true)
    }

    /// Ends the audit.
    pub(super) fn end(&self) -> Option<Session> {
        self.is_on.store(false, Ordering::Relaxed);
        self.session().take()
    }

    pub(super) fn host_random(&self, label: Label) {
        self.report(|dry_run| dry_run.host_random(label.into()));
    }

    /// Passes an event to the dry run, if there is one.
    fn report(&self, what: impl FnOnce(&mut DryRun)) {
        if let Some(session) = &mut *self.session() {
            what(&mut session.dry_run);
        }
    }

    /// Returns the identity of the stream of a handle; `None` for an invalid handle, which the driver will report, or if nothing
    /// is audited.
    fn place(&self, stream: StreamHandle) -> Option<StreamIdentity> {
        if self.is_on() { self.find_place(stream).ok() } else { None }
    }

    /// Returns which stream a handle means, if it would capture.
    fn place_in_dry_run(&self, stream: StreamHandle) -> Option<StreamIdentity> {
        let place = self.place(stream)?;
        let captures = self.session().as_ref().is_some_and(|session| session.dry_run.captures(place));
        captures.then_some(place)
    }

    fn find_place(&self, stream: StreamHandle) -> Result<StreamIdentity> {
        let driver = &self.inner;
        let device = driver.stream_device(stream)?;
        let cuda_stream = driver.cuda_stream(stream)?;
        Ok(StreamIdentity {
            cuda_stream,
            device,
            is_legacy: cuda_stream == driver.cuda_stream(driver.default_stream(device)?)?,
            is_blocking: driver.stream_is_blocking(stream)?,
        })
    }

    /// Returns the calling thread, and the code that makes the call, for a driver call with this name.
    fn caller(&self, call: &'static str) -> Caller {
        let (site, kind) = match next_call::take() {
            Some((label, kind)) => (label.into(), kind),
            None => (Site::unknown(call), None),
        };
        // The mode can only be read by changing it.
        let mode = self.inner.thread_exchange_capture_mode(CaptureMode::Relaxed).unwrap_or_default();
        let restored = self.inner.thread_exchange_capture_mode(mode);
        debug_assert!(restored.is_ok(), "a mode that was read can be set: {restored:?}");
        Caller { site, kind, thread: std::thread::current().id(), mode }
    }

    fn caller_of(&self, label: Label) -> Caller {
        let caller = self.caller(label.operator);
        Caller { site: label.into(), ..caller }
    }

    /// Submits a command, and reports it to the dry run if the driver accepts it.
    fn submit<T>(
        &self,
        stream: StreamHandle,
        label: Option<Label>,
        command: Command,
        call: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let answer = call()?;
        let taken = Instant::now();
        if let Some(place) = self.place(stream) {
            let by = match label {
                Some(label) => self.caller_of(label),
                None => self.caller("memory_async"),
            };
            if let Some(session) = &mut *self.session() {
                session.dry_run.submitted(place, &by, command);
                if session.dry_run.is_own(by.thread) {
                    session.times.submitted(taken);
                }
            }
        }
        Ok(answer)
    }

    /// Makes a call that fails on any stream that is capturing.
    fn submit_uncapturable(
        &self,
        stream: StreamHandle,
        by: impl FnOnce() -> Caller,
        command: Command,
        (kind, words): (ObstacleKind, &str),
        call: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if let Some(place) = self.place(stream) {
            let by = by();
            self.report(|dry_run| dry_run.submitted_uncapturable(place, &by, command, kind, words));
        }
        self.wait(call)
    }

    /// Makes a call that may wait for the device.
    fn wait<T>(&self, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let answer = call();
        self.waited(start.elapsed());
        answer
    }

    fn waited(&self, time: Duration) {
        if !self.is_on() {
            return;
        }
        if let Some(session) = &mut *self.session()
            && session.dry_run.is_own(std::thread::current().id())
        {
            session.times.waited(time);
        }
    }

    /// Makes a call that is potentially unsafe during a capture.
    fn unsafe_call<T>(
        &self,
        kind: ObstacleKind,
        name: &'static str,
        words: &str,
        call: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if self.is_on() {
            let by = self.caller(name);
            self.report(|dry_run| dry_run.unsafe_call(kind, &by, words));
        }
        self.wait(call)
    }

    fn ask_stream(&self, stream: StreamHandle, name: &'static str, words: &str) {
        if let Some(place) = self.place(stream) {
            let by = self.caller(name);
            self.report(|dry_run| dry_run.asked_stream(place, &by, words));
        }
    }

    fn ask_event(&self, event: EventHandle, name: &'static str, words: &str) {
        if self.is_on() {
            let by = self.caller(name);
            self.report(|dry_run| dry_run.asked_event(event, &by, words));
        }
    }
}

/// Defines calls that a capture forbids, by their description: each reports an obstacle of this kind, and passes the call on.
macro_rules! uncapturable {
    ($kind:ident $($words:literal: $name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {
        $(fn $name(&self, $($argument: $type),*) -> Result<$answer> {
            let call = || self.inner.$name($($argument),*);
            self.unsafe_call(ObstacleKind::$kind, stringify!($name), $words, call)
        })*
    };
}

impl Driver for Auditor {
    thalweg_driver::wraps!(inner);

    // Calls that are not listed here mean the same in a capture and outside, and are passed to the inner driver.

    // ---- The host waits -------------------------------------------------------------------------------------------

    fn device_synchronize(&self, device: u32) -> Result<()> {
        if self.is_on() {
            let by = self.caller("device_synchronize");
            self.report(|dry_run| dry_run.asked_device(device, &by));
        }
        self.wait(|| self.inner.device_synchronize(device))
    }

    fn stream_query(&self, stream: StreamHandle) -> Result<bool> {
        self.ask_stream(stream, "stream_query", "asks about");
        self.inner.stream_query(stream)
    }

    fn stream_synchronize(&self, stream: StreamHandle) -> Result<()> {
        self.ask_stream(stream, "stream_synchronize", "waits for");
        self.wait(|| self.inner.stream_synchronize(stream))
    }

    fn event_query(&self, event: EventHandle) -> Result<bool> {
        self.ask_event(event, "event_query", "asks about");
        self.inner.event_query(event)
    }

    fn event_synchronize(&self, event: EventHandle) -> Result<()> {
        self.ask_event(event, "event_synchronize", "waits for");
        self.wait(|| self.inner.event_synchronize(event))
    }

    fn event_elapsed_ms(&self, start: EventHandle, end: EventHandle) -> Result<f32> {
        if self.is_on() {
            let by = self.caller("event_elapsed_ms");
            self.report(|dry_run| {
                let words = "asks for the time of";
                let _ = dry_run.refused_as_captured(start, &by, words)
                    || dry_run.refused_as_captured(end, &by, words);
            });
        }
        self.inner.event_elapsed_ms(start, end)
    }

    // ---- Order ----------------------------------------------------------------------------------------------------

    fn event_record(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        let by = self.is_on().then(|| self.caller("event_record"));
        self.inner.event_record(event, stream)?;
        if let (Some(by), Some(place)) = (by, self.place(stream)) {
            self.report(|dry_run| dry_run.recorded(event, place, &by));
        }
        Ok(())
    }

    fn event_record_external(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        match self.place_in_dry_run(stream) {
            Some(place) => {
                let by = self.caller("event_record_external");
                self.inner.event_record(event, stream)?;
                self.report(|dry_run| dry_run.met_outside(place, &by));
                Ok(())
            }
            None => self.inner.event_record_external(event, stream),
        }
    }

    fn stream_wait_event_external(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        match self.place_in_dry_run(stream) {
            Some(place) => {
                let by = self.caller("stream_wait_event_external");
                self.inner.stream_wait_event(stream, event)?;
                self.report(|dry_run| dry_run.met_outside(place, &by));
                Ok(())
            }
            None => self.inner.stream_wait_event_external(stream, event),
        }
    }

    fn event_destroy(&self, event: EventHandle) -> Result<()> {
        self.report(|dry_run| dry_run.forget_event(event));
        self.inner.event_destroy(event)
    }

    fn stream_wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        let by = self.is_on().then(|| self.caller("stream_wait_event"));
        self.inner.stream_wait_event(stream, event)?;
        if let (Some(by), Some(place)) = (by, self.place(stream)) {
            self.report(|dry_run| dry_run.waited(place, event, &by));
        }
        Ok(())
    }

    fn stream_destroy(&self, stream: StreamHandle) -> Result<()> {
        let place = self.place(stream);
        self.inner.stream_destroy(stream)?;
        if let Some(place) = place {
            self.report(|dry_run| dry_run.destroyed(place));
        }
        Ok(())
    }

    // ---- Memory ---------------------------------------------------------------------------------------------------

    uncapturable! { SynchronousAllocation
        "allocates device memory": memory_allocate(device: u32, bytes: u64) -> DevicePointer;
        "allocates managed memory": memory_allocate_managed(device: u32, bytes: u64) -> DevicePointer;
        "allocates memory for collectives": memory_allocate_collective(device: u32, bytes: u64) -> DevicePointer;
        "gives device memory back": memory_free(pointer: DevicePointer) -> ();
        "allocates pinned memory": host_allocate(bytes: u64, flags: HostFlags) -> HostPointer;
        "gives pinned memory back": host_free(pointer: HostPointer) -> ();
    }

    fn memory_allocate_async(
        &self,
        pool: PoolHandle,
        bytes: u64,
        stream: StreamHandle,
    ) -> Result<DevicePointer> {
        let call = || self.inner.memory_allocate_async(pool, bytes, stream);
        self.submit(stream, None, Command::Memory, call)
    }

    fn memory_free_async(&self, pointer: DevicePointer, stream: StreamHandle) -> Result<()> {
        let call = || self.inner.memory_free_async(pointer, stream);
        self.submit(stream, None, Command::Memory, call)
    }

    // ---- Calls that no graph contains -----------------------------------------------------------------------------

    uncapturable! { UncapturableCall
        "makes a device's context": context_initialize(device: u32) -> ();
        "opens another process's memory": ipc_open(device: u32, handle: IpcHandle) -> DevicePointer;
        "closes another process's memory": ipc_close(pointer: DevicePointer) -> ();
        "makes communicators": communicators_create(devices: &[u32]) -> Vec<CommunicatorHandle>;
        "joins a communicator": communicator_join(id: &CommunicatorId, device: u32, rank: u32, ranks: u32) -> CommunicatorHandle;
        "splits a communicator": communicator_split(own: CommunicatorHandle, part: &[u32]) -> Option<CommunicatorHandle>;
        "gives a communicator up": communicator_destroy(communicator: CommunicatorHandle) -> ();
    }

    fn graph_launch(&self, exec: GraphExecHandle, stream: StreamHandle) -> Result<()> {
        let what = (ObstacleKind::UncapturableCall, "launches a graph");
        let by = || self.caller("graph_launch");
        self.submit_uncapturable(stream, by, Command::Graph, what, || self.inner.graph_launch(exec, stream))
    }

    // ---- Copies and kernels ---------------------------------------------------------------------------------------

    fn copy_async(&self, stream: StreamHandle, copy: &Copy) -> Result<()> {
        let command = Command::Copy { bytes: copy.bytes };
        self.submit(stream, Some(copy.label), command, || self.inner.copy_async(stream, copy))
    }

    fn copy_from_host(
        &self,
        stream: StreamHandle,
        target: DevicePointer,
        source: &[u8],
        label: Label,
    ) -> Result<()> {
        let command = Command::CopyFromHost { bytes: source.len() as u64 };
        let what = (ObstacleKind::PageableCopy, "copies from pageable memory");
        let call = || self.inner.copy_from_host(stream, target, source, label);
        self.submit_uncapturable(stream, || self.caller_of(label), command, what, call)
    }

    fn copy_to_host(
        &self,
        stream: StreamHandle,
        target: &mut [u8],
        source: DevicePointer,
        label: Label,
    ) -> Result<()> {
        let command = Command::Copy { bytes: target.len() as u64 };
        let what = (ObstacleKind::PageableCopy, "copies to pageable memory");
        let call = || self.inner.copy_to_host(stream, target, source, label);
        self.submit_uncapturable(stream, || self.caller_of(label), command, what, call)
    }

    fn fill_async(&self, stream: StreamHandle, fill: &Fill) -> Result<()> {
        self.submit(stream, Some(fill.label), Command::Fill, || self.inner.fill_async(stream, fill))
    }

    fn host_function_async(&self, stream: StreamHandle, function: HostFunction, label: Label) -> Result<()> {
        let call = || self.inner.host_function_async(stream, function, label);
        self.submit(stream, Some(label), Command::HostFunction, call)
    }

    fn module_load(&self, device: u32, image: Image<'_>) -> Result<ModuleHandle> {
        let module = self.inner.module_load(device, image)?;
        if self.is_on() {
            let by = self.caller("module_load");
            self.report(|dry_run| dry_run.loaded(&by));
        }
        Ok(module)
    }

    fn function_get(&self, module: ModuleHandle, name: &str) -> Result<FunctionHandle> {
        self.report(|dry_run| dry_run.found_kernel(std::thread::current().id(), name));
        self.inner.function_get(module, name)
    }

    fn launch(&self, stream: StreamHandle, launch: &Launch<'_>) -> Result<()> {
        self.submit(stream, Some(launch.label), Command::Kernel, || self.inner.launch(stream, launch))
    }

    fn library_async(&self, stream: StreamHandle, launch: &LibraryLaunch<'_>) -> Result<()> {
        self.submit(stream, Some(launch.label), Command::Library, || self.inner.library_async(stream, launch))
    }

    fn collectives_async(&self, collectives: &[Collective]) -> Result<()> {
        self.inner.collectives_async(collectives)?;
        for part in collectives {
            self.submit(part.stream, Some(part.label), Command::Library, || Ok(()))?;
        }
        Ok(())
    }

    // ---- What a capture looks like --------------------------------------------------------------------------------

    fn stream_capture_info(&self, stream: StreamHandle) -> Result<CaptureInfo> {
        let Some(place) = self.place(stream) else { return self.inner.stream_capture_info(stream) };
        let by = self.caller("stream_capture_info");
        let branch = self.session().as_mut().and_then(|Session { dry_run, .. }| {
            let is_apart = dry_run.refused_by_legacy(place, &by) || place.is_legacy;
            if is_apart { None } else { dry_run.branch(place).map(<[u32]>::to_vec) }
        });
        let Some(branch) = branch else { return self.inner.stream_capture_info(stream) };
        Ok(CaptureInfo {
            status: CaptureStatus::Active,
            id: DRY_RUN_CAPTURE,
            graph: None,
            dependencies: branch.into_iter().map(|node| GraphNodeHandle::from_raw(node.into())).collect(),
        })
    }

    fn stream_update_capture_dependencies(
        &self,
        stream: StreamHandle,
        dependencies: &[GraphNodeHandle],
        update: DependencyUpdate,
    ) -> Result<()> {
        if let Some(place) = self.place(stream)
            && let Some(session) = &mut *self.session()
            && session.dry_run.captures(place)
        {
            let nodes: Vec<u32> = dependencies.iter().map(|node| node.raw() as u32).collect();
            session.dry_run.set_branch(place, &nodes, update == DependencyUpdate::Add);
            return Ok(());
        }
        self.inner.stream_update_capture_dependencies(stream, dependencies, update)
    }
}
