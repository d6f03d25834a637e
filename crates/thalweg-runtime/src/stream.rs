//! Streams, the pool they come from, and which one is current.
//!
//! A [`Stream`] is a queue of commands on one device. Work that is not told otherwise goes to the *current* stream of its
//! device, which is a property of the thread and starts as the device's default stream (CUDA's legacy default stream). As in
//! PyTorch, streams from the pool are 32 a priority, handed out in turn, non-blocking and never destroyed; a
//! [`StreamGuard`] makes one current and restores the former on drop.
//!
//! Each stream remembers the labels of the commands that it was given since it was last known to be idle. When the driver
//! reports that asynchronous work failed, those are the suspects that the error names.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use thalweg_driver::{Access, CaptureStatus, Code, Driver, ExternalStream, Label, Launch, StreamHandle};
use thalweg_memory::StreamId;

use crate::device::{Device, DeviceGuard, DeviceId};
use crate::forgotten::ForgottenStreams;
use crate::graph::Command;
use crate::graph::audit::called;
use crate::memory::outside_capture;
use crate::{Error, Event, Result};

/// Streams of one priority in the pool (`kStreamsPerPool` in PyTorch's `CUDAStream.cpp`).
pub const STREAMS_PER_PRIORITY: usize = 32;

/// How many labels a stream remembers.
const LOG_LENGTH: usize = 64;

/// A queue of commands on one device. Clones are the same stream.
#[derive(Clone)]
pub struct Stream {
    device: Device,
    state: Arc<StreamState>,
}

/// The part of a stream that its device keeps.
pub(crate) struct StreamState {
    driver: Arc<dyn Driver>,
    handle: StreamHandle,
    priority: i32,
    kind: StreamKind,
    /// Where an external stream is remembered when it is forgotten.
    forgotten: Option<Arc<ForgottenStreams>>,
    log: Mutex<Log>,
}

/// The labels of the commands that a stream was given and that are not known to be complete, oldest first. Commands are
/// numbered, so that what was submitted while a thread waited is not taken for complete.
#[derive(Default)]
struct Log {
    labels: VecDeque<Label>,
    /// The number of the first label that is left.
    first: u64,
}

impl Log {
    /// Returns the number that the next command gets.
    fn next(&self) -> u64 {
        self.first + self.labels.len() as u64
    }

    fn push(&mut self, label: Label) {
        if self.labels.len() == LOG_LENGTH {
            self.labels.pop_front();
            self.first += 1;
        }
        self.labels.push_back(label);
    }

    /// Forgets the commands before a number.
    fn forget_before(&mut self, end: u64) {
        let count = end.saturating_sub(self.first).min(self.labels.len() as u64);
        self.labels.drain(..count as usize);
        self.first += count;
    }

    /// Forgets the commands from a number on.
    fn forget_from(&mut self, start: u64) {
        self.labels.truncate(start.saturating_sub(self.first) as usize);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StreamKind {
    Default,
    Pool,
    External,
}

impl StreamState {
    pub(crate) fn default_of(driver: &Arc<dyn Driver>, device: u32) -> Result<Self> {
        let handle = driver.default_stream(device)?;
        Ok(Self::new(driver, handle, 0, StreamKind::Default))
    }

    fn new(driver: &Arc<dyn Driver>, handle: StreamHandle, priority: i32, kind: StreamKind) -> Self {
        Self { driver: driver.clone(), handle, priority, kind, forgotten: None, log: Mutex::default() }
    }

    fn log(&self) -> std::sync::MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the labels that are not known to be complete, oldest first.
    pub(crate) fn outstanding(&self) -> Vec<Label> {
        self.log().labels.iter().copied().collect()
    }

    /// Returns the number of the next command.
    pub(crate) fn next_command(&self) -> u64 {
        self.log().next()
    }

    /// Notes that the commands before this number are complete.
    pub(crate) fn complete_before(&self, number: u64) {
        self.log().forget_before(number);
    }

    /// Asks whether the stream is idle, or waits until it is: what it was given before is complete then.
    fn completed(&self, is_idle: impl FnOnce() -> Result<bool>) -> Result<bool> {
        let next = self.next_command();
        let is_idle = is_idle()?;
        if is_idle {
            self.complete_before(next);
        }
        Ok(is_idle)
    }

    /// Removes the command of this number, which was refused. If others came after it, it stays: a suspect too many does no
    /// harm.
    fn retract(&self, number: u64) {
        let mut log = self.log();
        if log.next() == number + 1 {
            log.forget_from(number);
        }
    }
}

impl Drop for StreamState {
    fn drop(&mut self) {
        if let Some(forgotten) = &self.forgotten {
            forgotten.forget(self.handle);
        } else if self.kind != StreamKind::Default {
            // A stream that cannot be given up (the driver is gone already) has nothing left to leak.
            let _ = self.driver.stream_destroy(self.handle);
        }
    }
}

/// The streams of one device.
pub(crate) struct StreamPool {
    priorities: Mutex<Vec<PriorityPool>>,
    external: Mutex<Vec<std::sync::Weak<StreamState>>>,
    /// The stream on which captures run that were given none.
    capture: OnceLock<Arc<StreamState>>,
    forgotten: Arc<ForgottenStreams>,
}

struct PriorityPool {
    priority: i32,
    streams: Vec<Arc<StreamState>>,
    next: usize,
}

impl StreamPool {
    pub(crate) fn new(forgotten: Arc<ForgottenStreams>) -> Self {
        Self { priorities: Mutex::default(), external: Mutex::default(), capture: OnceLock::new(), forgotten }
    }

    fn take(
        &self,
        driver: &Arc<dyn Driver>,
        device: u32,
        priority: i32,
    ) -> thalweg_driver::Result<Arc<StreamState>> {
        let mut pools = self.priorities.lock().unwrap_or_else(PoisonError::into_inner);
        if !pools.iter().any(|pool| pool.priority == priority) {
            pools.push(PriorityPool { priority, streams: Vec::new(), next: 0 });
        }
        let pool = pools.iter_mut().find(|pool| pool.priority == priority).expect("pushed above");
        if pool.streams.len() < STREAMS_PER_PRIORITY {
            let handle = driver.stream_create(device, priority)?;
            pool.streams.push(Arc::new(StreamState::new(driver, handle, priority, StreamKind::Pool)));
        }
        let state = pool.streams[pool.next].clone();
        pool.next = (pool.next + 1) % STREAMS_PER_PRIORITY;
        Ok(state)
    }

    fn for_captures(
        &self,
        driver: &Arc<dyn Driver>,
        device: u32,
    ) -> thalweg_driver::Result<Arc<StreamState>> {
        if let Some(state) = self.capture.get() {
            return Ok(state.clone());
        }
        let handle = driver.stream_create(device, 0)?;
        let state = Arc::new(StreamState::new(driver, handle, 0, StreamKind::Pool));
        // If another thread was faster, this one is destroyed with its state.
        Ok(self.capture.get_or_init(|| state).clone())
    }

    /// Returns every stream that is known, the default stream apart.
    pub(crate) fn all(&self) -> Vec<Arc<StreamState>> {
        let pools = self.priorities.lock().unwrap_or_else(PoisonError::into_inner);
        let mut external = self.external.lock().unwrap_or_else(PoisonError::into_inner);
        external.retain(|state| state.strong_count() > 0);
        let pooled = pools.iter().flat_map(|pool| pool.streams.iter().cloned());
        let capture = self.capture.get().cloned();
        pooled.chain(capture).chain(external.iter().filter_map(std::sync::Weak::upgrade)).collect()
    }
}

thread_local! {
    /// The streams that guards of this thread made current; the latest entry of a device counts.
    static CURRENT: RefCell<Vec<(DeviceId, Stream)>> = const { RefCell::new(Vec::new()) };
}

impl Stream {
    pub(crate) fn from_state(device: &Device, state: Arc<StreamState>) -> Self {
        Self { device: device.clone(), state }
    }

    /// Creates a stream of the pool with the default priority. The 33rd is the first again, as in PyTorch.
    #[track_caller]
    pub fn new(device: &Device) -> Result<Self> {
        Self::made(device, 0, Label::here("Stream::new"))
    }

    /// Creates a stream of the pool. Smaller numbers are more urgent; the device's range clamps the priority
    /// ([`thalweg_driver::DeviceProperties::stream_priority_range`]).
    #[track_caller]
    pub fn with_priority(device: &Device, priority: i32) -> Result<Self> {
        Self::made(device, priority, Label::here("Stream::with_priority"))
    }

    fn made(device: &Device, priority: i32, label: Label) -> Result<Self> {
        let (least, greatest) = device.properties().stream_priority_range;
        let priority = priority.clamp(greatest.min(least), least.max(greatest));
        let state = device.check(device.stream_pool().take(device.driver(), device.index(), priority))?;
        if let Some(instrument) = device.driver().instrument() {
            instrument.stream_made(state.handle, label);
        }
        Ok(Self::from_state(device, state))
    }

    /// Names the stream, with all its clones and whatever stream the pool makes of it later, in the reports of a
    /// [checker](thalweg_sanitizer). Nothing, where there is none. A name that is an identifier goes into the calls that a
    /// report advises, so name it as the variable.
    pub fn set_name(&self, name: &str) {
        if let Some(instrument) = self.device.driver().instrument() {
            instrument.name_stream(self.handle(), name);
        }
    }

    /// Creates the stream on which a device's captures run that were given none: always the same, so that a region that is
    /// captured again finds the memory of before.
    pub(crate) fn for_captures(device: &Device) -> Result<Self> {
        let state = device.check(device.stream_pool().for_captures(device.driver(), device.index()))?;
        Ok(Self::from_state(device, state))
    }

    /// Wraps a stream that another library made; `CUstream` 0 and 1 give the device's default stream. One wrapped twice counts as two streams for memory reuse, so
    /// wrap it once. Dropping the last clone forgets it and leaves the stream alone: its owner may destroy it from then on.
    /// Memory that was used on it still waits for its work.
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
        let mut external = pool.external.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that are gone leave before the list would grow, so that it is never longer than twice what lives.
        if external.len() == external.capacity() {
            external.retain(|state| state.strong_count() > 0);
        }
        external.push(Arc::downgrade(&state));
        drop(external);
        Ok(Self::from_state(device, state))
    }

    /// Marks an [external](Self::from_external) stream as transient: its owner may destroy it at any moment, and not only when the last
    /// clone is dropped. Allocators use it from now on only in calls that name it. Memory that was
    /// made on it stays with it as long as there is other memory. Does nothing to a stream of the runtime's own.
    ///
    /// The other methods of the stream are for as long as its owner keeps it.
    pub fn set_transient(&self) {
        if let Some(forgotten) = &self.state.forgotten {
            forgotten.set_transient(self.state.handle);
        }
    }

    /// Creates the calling thread's current stream of a device.
    pub fn current(device: &Device) -> Self {
        CURRENT
            .with_borrow(|stack| {
                stack.iter().rev().find(|(id, _)| *id == device.id()).map(|(_, stream)| stream.clone())
            })
            .unwrap_or_else(|| device.default_stream())
    }

    /// Makes the stream current for this thread, and its device the current device, until the guard is dropped.
    #[must_use = "the stream is current only while the guard lives"]
    pub fn make_current(&self) -> StreamGuard {
        let depth = CURRENT.with_borrow_mut(|stack| {
            stack.push((self.device.id(), self.clone()));
            stack.len()
        });
        StreamGuard { depth, _device: self.device.make_current() }
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the driver's handle.
    pub fn handle(&self) -> StreamHandle {
        self.state.handle
    }

    /// Returns the name by which allocators know the stream.
    pub fn id(&self) -> StreamId {
        StreamId::from_raw(self.state.handle.raw())
    }

    /// Returns the priority after clamping.
    pub fn priority(&self) -> i32 {
        self.state.priority
    }

    /// Returns whether it is the device's default stream.
    pub fn is_default(&self) -> bool {
        self.state.kind == StreamKind::Default
    }

    /// Returns the `CUstream` as a number, for other libraries (PyTorch's `stream.cuda_stream`).
    pub fn cuda_stream(&self) -> Result<u64> {
        self.check(self.device.driver().cuda_stream(self.handle()))
    }

    /// Returns whether all work is done.
    #[track_caller]
    pub fn query(&self) -> Result<bool> {
        called(&self.device, Label::here("query"));
        let label = Label::here("query");
        self.state.completed(|| {
            let answer = polled(self.check(self.device.driver().stream_query(self.handle())), label)?;
            Ok(answer)
        })
    }

    /// Blocks until all work is done.
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        called(&self.device, Label::here("synchronize"));
        let driver = self.device.driver();
        let is_idle = self.state.completed(|| {
            self.check(driver.stream_synchronize(self.handle()))?;
            Ok(true)
        });
        is_idle.map(drop)
    }

    /// Makes later work on this stream wait for the event's latest record so far.
    #[track_caller]
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        event.wait_as(self, Label::here("wait_event"))
    }

    /// Makes later work on this stream wait for all work that the other has now.
    #[track_caller]
    pub fn wait_stream(&self, other: &Self) -> Result<()> {
        let event = other.record_event()?;
        event.wait_as(self, Label::here("wait_stream"))
    }

    /// Records a new event (without timing) behind the work that the stream has now.
    #[track_caller]
    pub fn record_event(&self) -> Result<Event> {
        let event = Event::new();
        event.record(self)?;
        Ok(event)
    }

    /// Returns whether the stream captures; in a region that is [audited](crate::graph::audit()), whether it would.
    #[track_caller]
    pub fn is_capturing(&self) -> Result<bool> {
        called(&self.device, Label::here("is_capturing"));
        let info = self.check(self.device.driver().stream_capture_info(self.handle()))?;
        Ok(info.status != CaptureStatus::None)
    }

    /// Launches a kernel of the program's own, asynchronously: what [`Driver::launch`] does, as a command of this stream. So it is
    /// a suspect of what fails later, and a graph knows what it touches.
    ///
    /// # Errors
    /// The driver's.
    pub fn launch_kernel(&self, launch: &Launch<'_>) -> Result<()> {
        self.submit(Command::Launch(launch), || self.device.driver().launch(self.handle(), launch))
    }

    /// Says what the commands touch that the stream was given past Thalweg since its last command: through
    /// [`Device::driver`], or by a library that has the `CUstream`. A graph that they are captured into then watches that
    /// memory; without it the graph refuses its replays. Outside captures nothing is to be said.
    pub fn declare(&self, accesses: &[Access], label: Label) {
        self.device.captures().declared(self, accesses, label);
    }

    /// Submits a command: remembers its label, makes the call, tells the capture that it became part of, waits where
    /// `CUDA_LAUNCH_BLOCKING` asks for it.
    pub(crate) fn submit(
        &self,
        command: Command<'_>,
        call: impl FnOnce() -> thalweg_driver::Result<()>,
    ) -> Result<()> {
        let (captures, label) = (self.device.captures(), command.label());
        let Some(before) = captures.info(self) else { return self.submit_numbered(label, call).map(drop) };
        // It does not run now, so it is no suspect of what fails later.
        self.check(call()).map_err(|error| error.context(label.operator).at(label.location))?;
        captures.submitted(self, &before, &command);
        Ok(())
    }

    /// Submits a call that is done when it returns, and so is all that the stream was given before.
    pub(crate) fn submit_and_wait(
        &self,
        label: Label,
        call: impl FnOnce() -> thalweg_driver::Result<()>,
    ) -> Result<()> {
        let number = self.submit_numbered(label, call)?;
        self.state.complete_before(number + 1);
        Ok(())
    }

    /// Returns the number of the command.
    fn submit_numbered(
        &self,
        label: Label,
        call: impl FnOnce() -> thalweg_driver::Result<()>,
    ) -> Result<u64> {
        // Remembered before the call: another thread may see it fail at once.
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

    /// Turns a driver's answer into a result, with the suspects where asynchronous work failed.
    pub(crate) fn check<T>(&self, result: thalweg_driver::Result<T>) -> Result<T> {
        self.device.check(result)
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        self.device == other.device && self.handle() == other.handle()
    }
}

impl Eq for Stream {}

/// Returns the answer of a query, whose error says where a program polls for ever.
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

/// Keeps a stream, and its device, current on this thread. Guards are dropped in the reverse order of their making.
pub struct StreamGuard {
    depth: usize,
    _device: DeviceGuard,
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        CURRENT.with_borrow_mut(|stack| stack.truncate(self.depth - 1));
    }
}

/// Refuses work that mixes devices.
pub(crate) fn same_device(what: &str, expected: &Device, found: &Device) -> Result<()> {
    if expected == found {
        Ok(())
    } else {
        Err(Error::invalid(format!("{what} is on {found}, expected {expected}")))
    }
}

#[cfg(test)]
mod tests {
    use thalweg_sim::{SimConfig, SimDriver};

    use super::*;

    /// Commands are told apart by the last digit of their number.
    const NAMES: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];

    fn label(number: u64) -> Label {
        Label::here(NAMES[(number % 10) as usize])
    }

    /// The log beside a list of all numbers that are not forgotten.
    #[test]
    fn the_log_forgets_by_number() {
        for seed in 1..=50_u64 {
            let (mut log, mut known, mut next, mut state) = (Log::default(), VecDeque::new(), 0, seed);
            for _ in 0..400 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                // Around the oldest, around the latest, and far beyond both.
                let place = (next + state / 64 % 4).saturating_sub(state / 256 % 90);
                match state % 16 {
                    0 => {
                        log.forget_before(place);
                        known.retain(|&number| number >= place);
                        if known.is_empty() {
                            next = log.next();
                        }
                    }
                    1 if known.front().is_some_and(|&oldest| oldest <= place) => {
                        log.forget_from(place);
                        known.retain(|&number| number < place);
                        next = next.min(place);
                    }
                    _ => {
                        log.push(label(next));
                        known.push_back(next);
                        next += 1;
                        if known.len() > LOG_LENGTH {
                            known.pop_front();
                        }
                    }
                }
                assert_eq!(log.next(), next);
                let expected = known.iter().map(|&number| label(number).operator);
                assert!(log.labels.iter().map(|label| label.operator).eq(expected), "seed {seed}: {known:?}");
            }
        }
    }

    #[test]
    fn a_refused_command_takes_no_later_one_with_it() {
        let driver: Arc<dyn Driver> = SimDriver::new(SimConfig::default()).unwrap();
        let stream = StreamState::default_of(&driver, 0).unwrap();
        (0..3).for_each(|number| stream.log().push(label(number)));
        let names = || stream.outstanding().iter().map(|label| label.operator).collect::<Vec<_>>();
        stream.retract(1);
        assert_eq!(names(), ["0", "1", "2"], "another thread's has come after it");
        stream.retract(2);
        assert_eq!((names(), stream.next_command()), (vec!["0", "1"], 2));
    }

    #[test]
    fn what_comes_during_a_wait_is_not_complete() {
        let driver: Arc<dyn Driver> = SimDriver::new(SimConfig::default()).unwrap();
        let stream = StreamState::default_of(&driver, 0).unwrap();
        stream.log().push(label(0));
        let asked = |is_idle| {
            stream.completed(|| {
                let number = stream.next_command();
                stream.log().push(label(number));
                Ok(is_idle)
            })
        };
        assert!(!asked(false).unwrap());
        assert_eq!(stream.outstanding().len(), 2, "it is not idle");
        assert!(asked(true).unwrap());
        let left: Vec<_> = stream.outstanding().iter().map(|label| label.operator).collect();
        assert_eq!(left, ["2"], "another thread's");
    }

    #[test]
    fn external_streams_that_are_gone_leave_the_list() {
        let driver = SimDriver::new(SimConfig::default()).unwrap();
        let device = Device::all_of(driver.clone(), &crate::Environment::default()).unwrap().remove(0);
        let wrap =
            || Stream::from_external(&device, driver.external_stream_create(0, 0, false).unwrap()).unwrap();
        let _kept = wrap();
        drop(wrap());
        assert_eq!(device.stream_pool().all().len(), 1);
        assert_eq!(device.stream_pool().external.lock().unwrap().len(), 1);
        // And without a question for all.
        (0..1000).for_each(|_| drop(wrap()));
        let listed = device.stream_pool().external.lock().unwrap().len();
        assert!(listed <= 16, "{listed} streams are listed, and one is there");
    }
}
