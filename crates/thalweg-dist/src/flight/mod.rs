//! The flight recorder: the last collectives of a rank, and the progress of each.

mod call;
mod summary;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use thalweg_driver::CaptureMode;
use thalweg_runtime::{Device, Event, Label};
use thalweg_tensor::Tensor;

pub use self::call::{FlightCall, FlightState, FlightTensor};
pub use self::summary::{FlightSummary, RankFlight};

/// The number of collectives that are remembered.
const REMEMBERED: usize = 64;

/// The number of inputs, and of outputs, of a collective that are remembered.
const TENSORS: usize = 8;

/// A collective that a rank has submitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// The collective's number in the group, from 1.
    pub(crate) sequence: u64,
    /// The operation and its source line.
    pub(crate) label: Label,
    /// The sender and the receiver of a message; `None` for a collective of all ranks.
    pub(crate) message: Option<[u32; 2]>,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.message {
            Some([from, to]) => {
                write!(f, "{} (call {}, rank {from} to rank {to})", self.label, self.sequence)
            }
            None => write!(f, "{} (call {})", self.label, self.sequence),
        }
    }
}

/// The tensors that a collective reads and those that it writes. A tensor that it changes in place is in both.
#[derive(Clone, Default, Debug)]
pub(crate) struct Tensors {
    /// The sender and the receiver of a message; `None` for a collective of all ranks.
    pub(crate) message: Option<[u32; 2]>,
    pub(crate) inputs: Vec<FlightTensor>,
    pub(crate) outputs: Vec<FlightTensor>,
}

impl Tensors {
    pub(crate) fn new<'t>(
        message: Option<[u32; 2]>,
        inputs: impl Iterator<Item = &'t Tensor>,
        outputs: impl Iterator<Item = &'t Tensor>,
    ) -> Self {
        let inputs = inputs.take(TENSORS).map(FlightTensor::of).collect();
        Self { message, inputs, outputs: outputs.take(TENSORS).map(FlightTensor::of).collect() }
    }
}

/// The progress of a remembered collective.
#[derive(Clone, Debug)]
enum Place {
    /// The collective is being submitted.
    Begun,
    /// The collective was captured.
    Graph,
    /// The collective is on the group's stream: after the first event, if the stream has waited for one, and before the second.
    Stream(Option<Arc<Event>>, Arc<Event>),
    /// The collective is known to be done, even if its device has been lost since.
    Done,
}

#[derive(Clone, Debug)]
struct Recorded {
    entry: Entry,
    tensors: Tensors,
    place: Place,
}

/// The last collectives of a rank.
#[derive(Default, Debug)]
pub(crate) struct FlightRecorder {
    entries: VecDeque<Recorded>,
    submitted: u64,
}

impl FlightRecorder {
    pub(crate) fn add(&mut self, label: Label, tensors: Tensors) -> Entry {
        self.submitted += 1;
        if self.entries.len() == REMEMBERED {
            self.entries.pop_front();
        }
        let entry = Entry { sequence: self.submitted, label, message: tensors.message };
        self.entries.push_back(Recorded { entry, tensors, place: Place::Begun });
        entry
    }

    fn put(&mut self, entry: Entry, place: Place) {
        let found = self.entries.iter_mut().rev().find(|other| other.entry.sequence == entry.sequence);
        if let Some(recorded) = found {
            recorded.place = place;
        }
    }

    /// Records that a collective is a part of a graph.
    pub(crate) fn captured(&mut self, entry: Entry) {
        self.put(entry, Place::Graph);
    }

    /// Records that a collective is on a stream, between two events.
    pub(crate) fn submitted(&mut self, entry: Entry, ready: Option<Arc<Event>>, done: Arc<Event>) {
        self.put(entry, Place::Stream(ready, done));
    }

    /// Records that a collective is done.
    pub(crate) fn completed(&mut self, entry: Entry) {
        self.put(entry, Place::Done);
    }

    pub(crate) fn last(&self) -> Option<Entry> {
        self.entries.back().map(|recorded| recorded.entry)
    }

    /// Returns the remembered collectives, to query their events without this recorder's lock.
    pub(crate) fn remembered(&self) -> Remembered {
        Remembered(self.entries.iter().cloned().collect())
    }
}

/// The collectives that a recorder remembers.
pub(crate) struct Remembered(Vec<Recorded>);

impl Remembered {
    /// Returns the collectives with their progress, one per line, the latest last.
    pub(crate) fn dump(&self, device: &Device) -> String {
        let driver = device.driver();
        // Events may be queried during another thread's capture. If that cannot be allowed, the query returns an error like any
        // other.
        let former = driver.thread_exchange_capture_mode(CaptureMode::Relaxed);
        let mut is_former_done = true;
        let line = |recorded: &Recorded| {
            // A lost device cannot be queried. Calls that are not known to be done are taken as not done, and the first of them
            // as started.
            let is_done = |event: &Event| event.query().unwrap_or(false);
            let is_ready = |event: &Arc<Event>| event.query().unwrap_or(true);
            let state = match &recorded.place {
                Place::Begun => FlightState::Scheduled,
                Place::Graph => FlightState::Captured,
                Place::Done => FlightState::Completed,
                Place::Stream(_, done) if is_done(done) => FlightState::Completed,
                Place::Stream(ready, _) => {
                    let can_run = is_former_done && ready.as_ref().is_none_or(is_ready);
                    is_former_done = false;
                    if can_run { FlightState::Started } else { FlightState::Scheduled }
                }
            };
            let Tensors { message, inputs, outputs } = recorded.tensors.clone();
            let call = FlightCall {
                label: recorded.entry.label.to_string(),
                message,
                inputs,
                outputs,
                state: Some(state),
            };
            format!("  {}\n", call.to_line(recorded.entry.sequence))
        };
        let text = self.0.iter().map(line).collect();
        if let Ok(former) = former {
            let _ = driver.thread_exchange_capture_mode(former);
        }
        text
    }
}
