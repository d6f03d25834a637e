//! Events: markers in a stream that other streams and the host can wait for.

use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use thalweg_driver::{EventFlags, EventHandle, Label};
use thalweg_lock::{Mutex, MutexGuard};

use crate::deferred::queue_deferred;
use crate::graph::Command;
use crate::recorder;
use crate::stream::same_device;
use crate::{Device, Error, Result, Stream};
use crate::{invalid, refuse, refuse_if};

/// A marker in a stream. It is created on its device by the first [`Event::record`], as in PyTorch; until then it counts as
/// complete, and waiting for it does nothing.
#[derive(Debug)]
pub struct Event {
    flags: EventFlags,
    /// Whether graphs record the event and wait for it at each replay.
    is_external: bool,
    recorded: Mutex<Option<Arc<Recorded>>>,
}

/// The driver's event of an [`Event`].
struct Recorded {
    device: Device,
    handle: EventHandle,
    /// The number of the capture that the latest record is a part of; 0 for none.
    capture: AtomicU64,
    /// Whether the event has no timing and spins, so that any event without flags of its own may reuse it.
    is_plain: bool,
}

impl std::fmt::Debug for Recorded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} on {}", self.handle, self.device)
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        // Streams that wait for its record keep waiting for that record, whatever the event is recorded after later. An event
        // that a capture or an audit refers to is not reused.
        let is_free = self.capture.load(Ordering::Relaxed) == 0 && !self.device.auditor().is_on();
        if self.is_plain && is_free && self.device.spare_events().keep(self.handle) {
            return;
        }
        // An event that its driver no longer knows cannot leak.
        let _ = self.device.driver().event_destroy(self.handle);
    }
}

impl Default for Event {
    fn default() -> Self {
        Self::new()
    }
}

impl Event {
    /// Creates an event without timing.
    pub fn new() -> Self {
        Self::with_flags(EventFlags::default())
    }

    /// Creates an event for [`Event::elapsed_ms`].
    pub fn with_timing() -> Self {
        Self::with_flags(EventFlags { timing: true, ..EventFlags::default() })
    }

    /// Creates an event with these flags.
    pub fn with_flags(flags: EventFlags) -> Self {
        Self { flags, is_external: false, recorded: Mutex::new(None) }
    }

    /// Makes the event one by which a graph is ordered with work outside of it (`external` in PyTorch).
    ///
    /// A record on a stream that captures is then a node that records the event at each replay, so that work which is submitted after the
    /// replay can wait for a place within the graph, and the time between two places can be taken ([`with_timing`](Self::with_timing)).
    /// A wait there is a node that waits, at each replay, for the latest record before the replay, or by an earlier command of the graph.
    /// Neither brings a stream into the capture, which an event without this does. Outside of captures nothing is different.
    #[must_use]
    pub fn external(self) -> Self {
        Self { is_external: true, ..self }
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<Recorded>>> {
        self.recorded.lock()
    }

    fn recorded(&self) -> Option<Arc<Recorded>> {
        self.slot().clone()
    }

    /// Returns the driver's event, and whether this call created it. If there is no event yet, one is created on the device.
    fn recorded_on(&self, device: &Device) -> Result<(Arc<Recorded>, bool)> {
        let mut slot = self.slot();
        if let Some(recorded) = &*slot {
            return Ok((recorded.clone(), false));
        }
        let is_plain = self.flags == EventFlags::default() && !self.is_external;
        let spare = if is_plain { device.spare_events().take() } else { None };
        let handle = match spare {
            Some(handle) => handle,
            None => device.check(device.driver().event_create(device.index(), self.flags))?,
        };
        let (device, capture) = (device.clone(), AtomicU64::new(0));
        Ok((slot.insert(Arc::new(Recorded { device, handle, capture, is_plain })).clone(), true))
    }

    /// Records the event after the work that is now on the stream. The first record fixes the device; a stream of another device
    /// is an error from then on.
    #[track_caller]
    pub fn record(&self, stream: &Stream) -> Result<()> {
        queue_deferred(Label::here("record"))?;
        recorder::refuse(|| "an event is recorded".to_owned());
        let is_node = self.is_node_on(stream)?;
        stream.device().called(Label::here("record"));
        let (recorded, is_first) = self.recorded_on(stream.device())?;
        same_device("the stream to record the event on", &recorded.device, stream.device())?;
        let (driver, place) = (recorded.device.driver(), stream.handle());
        let result = if is_node {
            let call = || driver.event_record_external(recorded.handle, place);
            capture_node(stream, recorded.handle, Label::here("record"), call)
        } else {
            stream.check(driver.event_record(recorded.handle, place))
        };
        if let Err(error) = result {
            if is_first {
                *self.slot() = None;
            }
            return Err(error);
        }
        if !is_node {
            recorded.capture.store(recorded.device.captures().of(stream), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns whether records and waits on a stream are nodes of a graph.
    fn is_node_on(&self, stream: &Stream) -> Result<bool> {
        Ok(self.is_external && stream.is_capturing()?)
    }

    /// Makes later work on the stream wait for the event's latest record so far. The stream may be one of another device of the
    /// same driver.
    ///
    /// # Errors
    /// [`Error::is_capture`] if the stream captures and the event was recorded outside that capture, which continues unharmed.
    #[track_caller]
    pub fn wait(&self, stream: &Stream) -> Result<()> {
        self.wait_as(stream, Label::here("wait"))
    }

    /// Waits as [`Event::wait`] does, with the label of another call.
    pub(crate) fn wait_as(&self, stream: &Stream, label: Label) -> Result<()> {
        queue_deferred(label)?;
        recorder::refuse(|| format!("{label} waits for an event"));
        let is_node = self.is_node_on(stream)?;
        stream.device().called(label);
        // The record that a node is to wait for may come later.
        let recorded = if is_node { Some(self.recorded_on(stream.device())?.0) } else { self.recorded() };
        match recorded {
            Some(recorded) => {
                refuse_if!(
                    !Arc::ptr_eq(recorded.device.driver(), stream.device().driver()),
                    "a stream cannot wait for an event of a device with which it shares no driver; call `synchronize` on the event (they are of {})",
                    stream.device().told_apart(&recorded.device)
                );
                let driver = stream.device().driver();
                if is_node {
                    let call = || driver.stream_wait_event_external(stream.handle(), recorded.handle);
                    return capture_node(stream, recorded.handle, label, call);
                }
                let captures = stream.device().captures();
                captures.check_wait(stream, recorded.capture.load(Ordering::Relaxed))?;
                if let Some(instrument) = stream.device().instrument() {
                    instrument.label_next(label);
                }
                stream.check(driver.stream_wait_event(stream.handle(), recorded.handle))?;
                captures.joined(stream);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Returns whether the event measures time.
    pub fn has_timing(&self) -> bool {
        self.flags.timing
    }

    /// Returns the `CUevent` as a number, for other libraries: 0 until the first record makes it.
    pub fn cuda_event(&self) -> Result<u64> {
        match self.recorded() {
            Some(recorded) => recorded.device.check(recorded.device.driver().cuda_event(recorded.handle)),
            None => Ok(0),
        }
    }

    /// Returns the device, which the first record chooses.
    pub fn device(&self) -> Option<Device> {
        Some(self.recorded()?.device.clone())
    }

    /// Returns whether the latest record is complete; `true` if there is none.
    #[track_caller]
    pub fn query(&self) -> Result<bool> {
        queue_deferred(Label::here("query"))?;
        match self.recorded() {
            Some(recorded) => {
                recorded.device.called(Label::here("query"));
                let answer = recorded.device.check(recorded.device.driver().event_query(recorded.handle));
                crate::stream::polled(answer, Label::here("query"))
            }
            None => Ok(true),
        }
    }

    /// Blocks until the latest record is complete.
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        queue_deferred(Label::here("synchronize"))?;
        match self.recorded() {
            Some(recorded) => {
                recorded.device.called(Label::here("synchronize"));
                recorded.device.check(recorded.device.driver().event_synchronize(recorded.handle))?;
                recorded.device.check_indices()
            }
            None => Ok(()),
        }
    }

    /// Returns the milliseconds from this event's record to the other's. Both need timing and a complete record.
    #[track_caller]
    pub fn elapsed_ms(&self, end: &Self) -> Result<f32> {
        let location = Location::caller();
        self.elapsed(end).map_err(|error| error.at(location))
    }

    #[track_caller]
    fn elapsed(&self, end: &Self) -> Result<f32> {
        if !self.flags.timing || !end.flags.timing {
            refuse!("both events need timing: make them with `Event::with_timing`");
        }
        match (self.recorded(), end.recorded()) {
            (Some(start), Some(end)) => {
                same_device("the end event", &start.device, &end.device)?;
                start.device.called(Label::here("elapsed_ms"));
                start.device.check(start.device.driver().event_elapsed_ms(start.handle, end.handle))
            }
            _ => Err(invalid!("both events must be recorded before the time between them is taken")),
        }
    }
}

/// Makes a call that adds a node for an external event to a graph.
fn capture_node(
    stream: &Stream,
    event: EventHandle,
    label: Label,
    call: impl FnOnce() -> thalweg_driver::Result<()>,
) -> Result<()> {
    let parameters = &event.raw().to_ne_bytes();
    stream.submit(Command::Other { label, accesses: &[], parameters }, call)
}

impl Stream {
    /// Makes later work on this stream wait for the event's latest record so far.
    #[track_caller]
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        event.wait_as(self, Label::here("wait_event"))
    }

    /// Makes later work on this stream wait for all work that is now on the other stream.
    #[track_caller]
    pub fn wait_stream(&self, other: &Self) -> Result<()> {
        let event = other.record_event()?;
        event.wait_as(self, Label::here("wait_stream"))
    }

    /// Records a new event (without timing) after the work that is now on the stream.
    #[track_caller]
    pub fn record_event(&self) -> Result<Event> {
        let event = Event::new();
        event.record(self)?;
        Ok(event)
    }
}
