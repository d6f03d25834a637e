//! Streams, the pool they come from, and the current stream of a thread.
//!
//! A [`Stream`] is a queue of commands on one device. Unless a stream is named, work is submitted to the *current* stream of its
//! device, which is a property of the thread and starts as the device's default stream (CUDA's legacy default stream). As in
//! PyTorch, the pool has 32 streams per priority, which are handed out in turn, non-blocking and never destroyed; a
//! [`StreamGuard`] makes one current and restores the previous one on drop.
//!
//! Each stream remembers the labels of the commands that were submitted to it since it was last known to be idle. When the driver
//! reports that asynchronous work failed, the error names these commands as suspects.

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_driver::{
    Access, CaptureInfo, CaptureStatus, Code, ExternalStream, Label, Launch, LibraryLaunch, StreamHandle,
};
use thalweg_kernels::Accesses;
use thalweg_memory::StreamId;

use crate::deferred::{Before, has_deferred, queue_deferred, queue_deferred_before};
use crate::device::{Device, DeviceId};
use crate::graph::Command;
use crate::invalid;
use crate::memory::outside_capture;
use crate::recorder;
use crate::stream_state::{StreamKind, StreamState};
use crate::{Error, Result};

/// A queue of commands on one device. Clones are the same stream.
#[derive(Clone)]
pub struct Stream {
    device: Device,
    state: Arc<StreamState>,
}

impl Device {
    /// Returns the legacy default stream, which waits for all blocking streams, as they wait for it. Streams of the pool are
    /// non-blocking.
    pub fn default_stream(&self) -> Stream {
        Stream::from_state(self, self.default_stream_state().clone())
    }

    /// Returns the calling thread's current stream of this device.
    pub fn current_stream(&self) -> Stream {
        Stream::current(self)
    }
}

impl Stream {
    pub(crate) fn from_state(device: &Device, state: Arc<StreamState>) -> Self {
        Self { device: device.clone(), state }
    }

    /// Returns a stream of the pool with the default priority. The 33rd call returns the first stream again, as in PyTorch.
    #[track_caller]
    pub fn new(device: &Device) -> Result<Self> {
        Self::made(device, 0, Label::here("Stream::new"))
    }

    /// Returns a stream of the pool. Smaller numbers are more urgent; the priority is clamped to the device's range
    /// ([`thalweg_driver::DeviceProperties::stream_priority_range`]).
    #[track_caller]
    pub fn with_priority(device: &Device, priority: i32) -> Result<Self> {
        Self::made(device, priority, Label::here("Stream::with_priority"))
    }

    fn made(device: &Device, priority: i32, label: Label) -> Result<Self> {
        // The pool may hand out a stream without a call of the driver.
        device.check_process("Stream::new")?;
        let (least, greatest) = device.properties().stream_priority_range;
        let priority = priority.clamp(greatest.min(least), least.max(greatest));
        let state = device.check(device.stream_pool().take(device.driver(), device.index(), priority))?;
        if let Some(instrument) = device.instrument() {
            instrument.stream_made(state.handle, label);
        }
        Ok(Self::from_state(device, state))
    }

    /// Names the stream in the reports of a [checker](thalweg_sanitizer), with all its clones and every later use of the same
    /// pool stream. Does nothing without a checker. If the name is an identifier, reports use it in the calls that they advise,
    /// so use the name of the variable.
    pub fn set_name(&self, name: &str) {
        if let Some(instrument) = self.device.instrument() {
            instrument.name_stream(self.handle(), name);
        }
    }

    /// Returns the stream on which a device's captures run if the caller chose none. It is always the same stream, so that a
    /// region that is captured again reuses its previous memory.
    pub(crate) fn for_captures(device: &Device) -> Result<Self> {
        let state = device.check(device.stream_pool().for_captures(device.driver(), device.index()))?;
        Ok(Self::from_state(device, state))
    }

    /// Returns the stream on which a device's data loaders copy. It is always the same stream, so that a data loader reuses the
    /// memory of the previous one.
    pub fn for_copies(device: &Device) -> Result<Self> {
        let state = device.check(device.stream_pool().for_copies(device.driver(), device.index()))?;
        Ok(Self::from_state(device, state))
    }

    /// Wraps a stream that another library made; `CUstream` 0 and 1 return the device's default stream. A stream that is wrapped
    /// twice counts as two streams for memory reuse, so wrap it once. Dropping the last clone forgets the stream and does not
    /// destroy it: its owner may destroy it from then on. Memory that was used on it still waits for its work.
    pub fn from_external(device: &Device, stream: ExternalStream) -> Result<Self> {
        if stream.cuda_stream() <= 1 && stream.context().is_none() {
            return Ok(device.default_stream());
        }
        let handle = device.check(device.driver().stream_from_external(device.index(), stream))?;
        let priority = device.check(device.driver().stream_priority(handle))?;
        let pool = device.stream_pool();
        let mut state = StreamState::new(device.driver(), handle, priority, StreamKind::External);
        state.forgotten = Some(pool.forgotten.clone());
        let state = Arc::new(state);
        let mut external = pool.external.lock();
        // Dropped streams are removed before the list would grow, so that it is never longer than twice the number of live ones.
        if external.len() == external.capacity() {
            external.retain(|state| state.strong_count() > 0);
        }
        external.push(Arc::downgrade(&state));
        drop(external);
        Ok(Self::from_state(device, state))
    }

    /// Marks an [external](Self::from_external) stream as transient: its owner may destroy it at any moment, even before the last
    /// clone is dropped. From now on allocators use it only in calls that name it. Memory that was allocated on it is reused for
    /// other streams only if there is no other memory. Does nothing to a stream of the runtime's own.
    ///
    /// The other methods of the stream may be called only while its owner keeps it.
    pub fn set_transient(&self) {
        if let Some(forgotten) = &self.state.forgotten {
            forgotten.set_transient(self.state.handle);
        }
    }

    /// Returns the calling thread's current stream of a device.
    pub fn current(device: &Device) -> Self {
        current_stream_of(device.id()).unwrap_or_else(|| device.default_stream())
    }

    /// Makes the stream current for this thread, and its device the current device, until the guard is dropped.
    #[must_use = "the stream is current only while the guard lives"]
    pub fn make_current(&self) -> StreamGuard {
        StreamGuard { _entered: enter(&self.device, Some(self)) }
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the driver's handle.
    pub fn handle(&self) -> StreamHandle {
        self.state.handle
    }

    /// Returns the number of the device, and the driver's handle, which distinguish streams.
    pub fn key(&self) -> (u64, StreamHandle) {
        (self.device.number(), self.handle())
    }

    /// Returns the id by which allocators refer to the stream.
    pub fn id(&self) -> StreamId {
        StreamId::from_raw(self.state.handle.raw())
    }

    /// Returns the priority after clamping.
    pub fn priority(&self) -> i32 {
        self.state.priority
    }

    /// Returns whether the stream is its device's default stream.
    pub fn is_default(&self) -> bool {
        self.state.kind == StreamKind::Default
    }

    /// Returns the `CUstream` as a number, for other libraries (PyTorch's `stream.cuda_stream`).
    pub fn cuda_stream(&self) -> Result<u64> {
        queue_deferred_before(Label::here("cuda_stream"), Before::Unlisted)?;
        self.check(self.device.driver().cuda_stream(self.handle()))
    }

    /// Returns whether all work is complete.
    #[track_caller]
    pub fn query(&self) -> Result<bool> {
        let label = Label::here("query");
        queue_deferred(label)?;
        self.device.called(label);
        self.device.captures().check_in_body(self, label)?;
        self.state.completed(|| {
            let answer = polled(self.check(self.device.driver().stream_query(self.handle())), label)?;
            Ok(answer)
        })
    }

    /// Blocks until all work is complete.
    ///
    /// # Errors
    /// The error of failed asynchronous work; [`Error::is_out_of_range`] if a kernel found an index out of range.
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        let label = Label::here("synchronize");
        queue_deferred(label)?;
        self.device.called(label);
        self.device.captures().check_in_body(self, label)?;
        let driver = self.device.driver();
        let is_idle = self.state.completed(|| {
            self.check(driver.stream_synchronize(self.handle()))?;
            Ok(true)
        });
        is_idle?;
        self.device.check_indices()
    }

    /// Returns whether the stream captures; in a region that is [audited](crate::graph::audit()), whether it would.
    #[track_caller]
    pub fn is_capturing(&self) -> Result<bool> {
        Ok(self.capture_id()?.is_some())
    }

    /// Returns the number of the capture that the stream takes part in, if it captures: see [`is_capturing`](Self::is_capturing).
    /// The body of a conditional node has a number of its own.
    #[track_caller]
    pub fn capture_id(&self) -> Result<Option<u64>> {
        self.device.called(Label::here("is_capturing"));
        let info = self.check(self.device.driver().stream_capture_info(self.handle()))?;
        Ok((info.status != CaptureStatus::None).then_some(info.id))
    }

    /// Launches a kernel of the program's own, asynchronously, as [`Driver::launch`](thalweg_driver::Driver::launch) does, but as
    /// a command of this stream. So it is a suspect of later failures, and a graph knows the ranges that it touches.
    pub fn launch_kernel(&self, launch: &Launch<'_>) -> Result<()> {
        self.submit(Command::Launch(launch), || self.device.driver().launch(self.handle(), launch))
    }

    /// Declares the ranges of the commands that were submitted to the stream past Thalweg since its last command: through
    /// [`Device::driver`], or by a library that has the `CUstream`. A graph that captures them then watches that memory; without
    /// a declaration the graph refuses its replays. Outside captures no declaration is needed.
    pub fn declare(&self, accesses: &[Access], label: Label) {
        self.device.captures().declared(self, accesses, label);
    }

    /// Submits a command: records its label, makes the call, notifies the capture that it became part of, and waits if
    /// `CUDA_LAUNCH_BLOCKING` is set.
    pub(crate) fn submit(
        &self,
        command: Command<'_>,
        call: impl FnOnce() -> thalweg_driver::Result<()>,
    ) -> Result<()> {
        queue_deferred_before(command.label(), Before::Unlisted)?;
        recorder::refuse(|| format!("{} is not repeated", command.label()));
        self.submit_in(self.device.captures().info(self), command, call)
    }

    /// Submits a command that touches exactly the memory that it lists, and does nothing else: deferred work that has nothing to do
    /// with it waits on. `note` notes the command where commands are recorded.
    pub(crate) fn submit_listed(
        &self,
        command: Command<'_>,
        note: impl FnOnce(),
        call: impl FnOnce() -> thalweg_driver::Result<()>,
    ) -> Result<()> {
        let before = Before::Command { stream: self.key(), accesses: command.accesses() };
        queue_deferred_before(command.label(), before)?;
        note();
        self.submit_in(self.device.captures().info(self), command, call)
    }

    /// Submits a command to a stream that takes part in `capture`, or in no capture, as queried before.
    fn submit_in(
        &self,
        capture: Option<CaptureInfo>,
        command: Command<'_>,
        call: impl FnOnce() -> thalweg_driver::Result<()>,
    ) -> Result<()> {
        let label = command.label();
        let Some(before) = capture else { return self.submit_numbered(label, call).map(drop) };
        // The command does not run now, so it is not a suspect of later failures.
        self.check(call()).map_err(|error| error.context(label.operator).at(label.location))?;
        self.device.captures().submitted(self, &before, &command);
        Ok(())
    }

    /// Lists the ranges of a submission if they are read by the driver, a sanitizer, or a capture, or decide which deferred work must
    /// run before it, which is queued. Returns the capture that the command becomes part of.
    #[inline]
    fn list_accesses(
        &self,
        accesses: &mut Accesses,
        list: impl FnOnce(&mut Accesses),
        label: Label,
    ) -> Result<Option<CaptureInfo>> {
        if has_deferred() {
            list(accesses);
            queue_deferred_before(label, Before::Command { stream: self.key(), accesses })?;
            return Ok(self.device.captures().info(self));
        }
        let capture = self.device.captures().info(self);
        if capture.is_some() || self.device.reads_accesses() || recorder::is_recording() {
            list(accesses);
        }
        Ok(capture)
    }

    /// Submits a kernel, whose ranges are listed only if they are read: by the driver, a sanitizer, or a capture.
    pub(crate) fn submit_launch(&self, launch: Launch<'_>, list: impl FnOnce(&mut Accesses)) -> Result<()> {
        let mut accesses = Accesses::new();
        let capture = self.list_accesses(&mut accesses, list, launch.label)?;
        let launch = Launch { accesses: &accesses, ..launch };
        recorder::note_launch(self.key(), &launch);
        let call = || self.device.driver().launch(self.handle(), &launch);
        self.submit_in(capture, Command::Launch(&launch), call)
    }

    /// Queues a call of a library. `list` adds the ranges of memory that it touches, and is called only if the driver, a sanitizer or
    /// a capture reads them; the ranges of `launch` are ignored. Asynchronous, unless the library has to prepare the call.
    ///
    /// # Errors
    /// Those of the driver and of the library.
    pub fn submit_library(&self, launch: LibraryLaunch<'_>, list: impl FnOnce(&mut Accesses)) -> Result<()> {
        let mut accesses = Accesses::new();
        let capture = self.list_accesses(&mut accesses, list, launch.label)?;
        let launch = LibraryLaunch { accesses: &accesses, ..launch };
        recorder::note_library(self.key(), &launch);
        let command =
            Command::Other { label: launch.label, accesses: &accesses, parameters: launch.arguments };
        self.submit_in(capture, command, || self.device.driver().library_async(self.handle(), &launch))
    }

    /// Submits a call that is complete when it returns, together with all work submitted to the stream before.
    pub(crate) fn submit_and_wait(
        &self,
        label: Label,
        call: impl FnOnce() -> thalweg_driver::Result<()>,
    ) -> Result<()> {
        queue_deferred(label)?;
        recorder::refuse(|| format!("{label} waits for the device"));
        self.device.captures().check_in_body(self, label)?;
        let number = self.submit_numbered(label, call)?;
        self.state.complete_before(number + 1);
        self.device.check_indices()
    }

    /// Submits a command, and returns its number.
    fn submit_numbered(
        &self,
        label: Label,
        call: impl FnOnce() -> thalweg_driver::Result<()>,
    ) -> Result<u64> {
        // Recorded before the call: another thread may see the command fail immediately.
        let number = {
            let mut log = self.state.log();
            log.push(label);
            log.next() - 1
        };
        if let Err(error) = call() {
            self.state.retract(number);
            return self.check(Err(error)).map_err(|error| error.context(label.operator).at(label.location));
        }
        if self.device.environment().launch_blocking && !self.is_capturing()? {
            // The wait harms no capture of another stream: nothing of a capture runs.
            outside_capture(self.device.driver(), || Ok(self.synchronize()))??;
        }
        Ok(number)
    }

    /// Converts a driver's result, and adds the suspects if asynchronous work failed.
    pub fn check<T>(&self, result: thalweg_driver::Result<T>) -> Result<T> {
        self.device.check(result)
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        self.device == other.device && self.handle() == other.handle()
    }
}

impl Eq for Stream {}

/// Returns the result of a query; a timeout error gets the label of the line where a program polls for ever.
pub(crate) fn polled(answer: Result<bool>, label: Label) -> Result<bool> {
    answer.map_err(|error| match error.driver_error() {
        Some(cause) if cause.code() == Code::Timeout => error.context(label.to_string()),
        _ => error,
    })
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({}, {:?}, {:?})", self.device, self.state.kind, self.state.handle)
    }
}

/// A guard that keeps a stream, and its device, current on this thread. Guards may be dropped in any order: the latest remaining
/// one counts.
pub struct StreamGuard {
    _entered: Entered,
}

/// A device that was made current, perhaps with one of its streams.
struct Entry {
    number: u64,
    device: Device,
    stream: Option<Stream>,
}

/// The entries that a thread has entered and not left, the latest last.
///
/// Guards are dropped in any order: each removes its own entry. The list has no destructor, so it is also usable in destructors
/// of other thread-local values, even if a guard is dropped there.
struct Entries {
    next: u64,
    list: ManuallyDrop<SmallVec<[Entry; 4]>>,
}

thread_local! {
    static ENTRIES: RefCell<Entries> =
        const { RefCell::new(Entries { next: 0, list: ManuallyDrop::new(SmallVec::new_const()) }) };
}

/// A guard of an entry: dropping it removes the entry. It belongs to the thread that created it.
pub(crate) struct Entered {
    number: u64,
    _not_send: PhantomData<*const ()>,
}

/// Makes a device, and optionally a stream of it, current on this thread.
pub(crate) fn enter(device: &Device, stream: Option<&Stream>) -> Entered {
    let (device, stream) = (device.clone(), stream.cloned());
    ENTRIES.with_borrow_mut(|entries| {
        let number = entries.next;
        entries.next += 1;
        entries.list.push(Entry { number, device, stream });
        Entered { number, _not_send: PhantomData }
    })
}

impl Drop for Entered {
    fn drop(&mut self) {
        // Dropped outside the borrow: the last handle of a device or a stream calls its driver.
        let _left = ENTRIES.with_borrow_mut(|Entries { list, .. }| {
            let place = list.iter().rposition(|entry| entry.number == self.number)?;
            let left = list.remove(place);
            if list.is_empty() && list.spilled() {
                // Nothing frees the list's memory when the thread ends, so an empty list must own none.
                list.shrink_to_fit();
            }
            Some(left)
        });
    }
}

/// Returns the device that was made current on this thread, if there is one.
pub(crate) fn current_device() -> Option<Device> {
    ENTRIES.with_borrow(|entries| Some(entries.list.last()?.device.clone()))
}

/// Returns the stream of a device that was made current on this thread, if there is one.
fn current_stream_of(device: DeviceId) -> Option<Stream> {
    ENTRIES.with_borrow(|entries| {
        let of_device = |entry: &&Entry| entry.device.id() == device && entry.stream.is_some();
        entries.list.iter().rev().find(of_device)?.stream.clone()
    })
}

/// Refuses work that mixes devices.
pub(crate) fn same_device(what: &str, expected: &Device, found: &Device) -> Result<()> {
    if expected == found { Ok(()) } else { Err(invalid!("{what} is on {found}, expected {expected}")) }
}

#[cfg(test)]
mod tests {
    use thalweg_sim::{SimConfig, SimDriver};

    use super::*;

    #[test]
    fn external_streams_that_are_gone_leave_the_list() {
        let driver = SimDriver::new(SimConfig::default()).unwrap();
        let device = Device::all_of(driver.clone(), &crate::Environment::default()).unwrap().remove(0);
        let wrap =
            || Stream::from_external(&device, driver.external_stream_create(0, 0, false).unwrap()).unwrap();
        let _kept = wrap();
        drop(wrap());
        assert_eq!(device.stream_pool().all().len(), 1);
        assert_eq!(device.stream_pool().external.lock().len(), 1);
        // Also without a query for all streams.
        (0..1000).for_each(|_| drop(wrap()));
        let listed = device.stream_pool().external.lock().len();
        assert!(listed <= 16, "{listed} streams are listed, and one is there");
    }
}
