//! Streams and events.
//!
//! A stream is the *frontier* after which its next command comes: its last command, and the commands that it was made to
//! wait for. An event is a copy of a frontier. So waiting and recording cost no command at all, a wait refers to the record
//! that it found, and recording again does not affect it. Only an event with timing needs a mark in the order.
//!
//! The legacy default stream comes after the frontiers of all blocking streams of its device, and they come after its own;
//! nothing else is needed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use thalweg_driver::{Code, EventFlags, GraphNodeKind};
use thalweg_lock::Mutex;

use crate::executor::command::{Body, CommandId, Frontier};
use crate::executor::plug::Reached;
use crate::executor::task::Task;
use crate::objects::stream::{Event, EventNode, Record, Stamp, Stream, StreamEntry};
use crate::refusal::{CallResult, Refusal};
use crate::state::{MachineState, unknown};

/// The number of commands at which a frontier is replaced by one mark.
const FRONTIER_COMMANDS: usize = 16;

impl MachineState {
    // ---- Streams --------------------------------------------------------------------------------------------------

    /// Returns the handle of the stream itself.
    pub(crate) fn stream_id(&self, handle: u64) -> CallResult<u64> {
        let (own, _) = self.number_and_device(handle)?;
        if self.streams.get(own).is_none() {
            self.ended_streams_named.fetch_add(1, Ordering::Relaxed);
            return Err(unknown("stream", handle));
        }
        Ok(own)
    }

    /// Returns the handle of the stream itself, and its device. For an external stream this also works after its owner has
    /// destroyed it. Does not call a driver.
    pub(crate) fn number_and_device(&self, handle: u64) -> CallResult<(u64, u32)> {
        match self.streams.get(handle) {
            Some(StreamEntry::Own(stream)) => Ok((handle, stream.device)),
            Some(&StreamEntry::External { own, device }) => Ok((own, device)),
            None => Err(unknown("stream", handle)),
        }
    }

    /// Returns a stream whose handle `stream_id` has checked.
    pub(crate) fn stream(&self, own: u64) -> &Stream {
        match self.streams.get(own) {
            Some(StreamEntry::Own(stream)) => stream,
            _ => unreachable!("checked by stream_id under the same lock"),
        }
    }

    /// Returns the stream, mutably.
    pub(crate) fn stream_mut(&mut self, own: u64) -> &mut Stream {
        match self.streams.get_mut(own) {
            Some(StreamEntry::Own(stream)) => stream,
            _ => unreachable!("checked by stream_id under the same lock"),
        }
    }

    /// Returns the number of the stream, if a thread that submits work to it must wait for room in its queue. Captured
    /// commands are not queued; a call with an unknown stream does not wait, and is refused later.
    pub(crate) fn full_queue(&self, handle: u64) -> Option<u32> {
        let (own, _) = self.number_and_device(handle).ok()?;
        let Some(StreamEntry::Own(stream)) = self.streams.get(own) else { return None };
        let is_full = stream.capture.is_none() && !self.executor.has_room(stream.number);
        is_full.then_some(stream.number)
    }

    /// Checks that work can be submitted to a stream: the stream exists, and is not the legacy stream while a blocking stream
    /// captures.
    pub(crate) fn enter(&mut self, handle: u64) -> CallResult<u64> {
        let own = self.stream_id(handle)?;
        let stream = self.stream(own);
        let (device, is_legacy) = (stream.device, stream.is_legacy);
        self.check_alive(device)?;
        if is_legacy {
            self.check_legacy(device)?;
        }
        Ok(own)
    }

    pub(crate) fn stream_create(&mut self, device: u32, priority: i32, is_blocking: bool) -> CallResult<u64> {
        self.usable(device)?;
        let stream = Stream::new(self.next_stream, device, priority, is_blocking);
        self.next_stream = self.next_stream.wrapping_add(1);
        let handle = self.streams.insert(StreamEntry::Own(stream));
        if is_blocking {
            self.devices[device as usize].blocking_streams.push(handle);
        }
        Ok(handle)
    }

    /// Releases a handle. The stream is destroyed with the handle that created it.
    pub(crate) fn stream_destroy(&mut self, handle: u64) -> CallResult<()> {
        match self.streams.get(handle) {
            None => return Err(unknown("stream", handle)),
            Some(StreamEntry::External { .. }) => {
                self.streams.remove(handle);
                return Ok(());
            }
            Some(StreamEntry::Own(stream)) if stream.is_legacy => {
                return Err(Refusal::new(Code::InvalidHandle, "the default stream cannot be destroyed"));
            }
            Some(StreamEntry::Own(_)) => {}
        }
        self.leave_capture(handle);
        let Some(StreamEntry::Own(stream)) = self.streams.remove(handle) else { unreachable!() };
        let device = &mut self.devices[stream.device as usize];
        device.blocking_streams.retain(|other| *other != handle);
        device.orphans.extend_from_slice(&stream.frontier);
        // Later work of the default stream still comes after it.
        let default_stream = device.default_stream;
        self.executor.prune(&mut device.orphans);
        if stream.is_blocking {
            self.stream_mut(default_stream).frontier.extend_from_slice(&stream.frontier);
        }
        Ok(())
    }

    /// Returns a handle for an external stream.
    pub(crate) fn stream_from_external(&mut self, device: u32, cuda_stream: u64) -> CallResult<u64> {
        self.usable(device)?;
        let own = if cuda_stream <= 1 { self.devices[device as usize].default_stream } else { cuda_stream };
        match self.streams.get(own) {
            Some(StreamEntry::Own(stream)) if stream.device == device => {
                Ok(self.streams.insert(StreamEntry::External { own, device }))
            }
            _ => Err(Refusal::new(
                Code::InvalidHandle,
                format!("{cuda_stream:#x} is not a cuda_stream stream of simulated device {device}"),
            )),
        }
    }

    /// Returns the commands that a command submitted now must follow.
    pub(crate) fn frontier(&mut self, own: u64) -> Frontier {
        let stream = self.stream(own);
        let mut frontier = stream.frontier.clone();
        let device = &self.devices[stream.device as usize];
        if stream.is_legacy {
            for &other in &device.blocking_streams {
                frontier.extend_from_slice(&self.stream(other).frontier);
            }
        } else if stream.is_blocking {
            frontier.extend_from_slice(&self.stream(device.default_stream).frontier);
        }
        self.executor.prune(&mut frontier);
        frontier
    }

    /// Queues a command on a stream that does not capture.
    pub(crate) fn append(&mut self, own: u64, body: Body) -> CommandId {
        let predecessors = self.frontier(own);
        let origin = self.stream(own).origin();
        let is_visible = match &body {
            Body::Task(task) => self.memory.visible.are_touched(&task.accesses),
            _ => false,
        };
        let command = self.executor.add(body, origin, predecessors);
        if is_visible {
            self.awaited.push(command);
        }
        self.stream_mut(own).frontier = Frontier::from_slice(&[command]);
        command
    }

    /// Queues a task, or makes it a node if the stream captures. Returns the command, if it was queued.
    pub(crate) fn submit(
        &mut self,
        own: u64,
        task: Task,
        kind: GraphNodeKind,
    ) -> CallResult<Option<CommandId>> {
        let task = Arc::new(task);
        if self.stream(own).capture.is_some() {
            self.capture_node(own, kind, Some(task))?;
            return Ok(None);
        }
        Ok(Some(self.append(own, Body::Task(task))))
    }

    pub(crate) fn stream_wait_event(&mut self, stream: u64, event: u64) -> CallResult<()> {
        let own = self.enter(stream)?;
        let record = self.event(event)?.record().clone();
        match record {
            Record::Captured { capture, nodes } => self.capture_wait(own, capture, &nodes),
            Record::Never => self.check_capture(own),
            Record::Live { mut frontier, .. } => {
                if self.stream(own).capture.is_some() {
                    self.check_capture(own)?;
                    return Err(self.break_capture_of(
                        own,
                        Code::StreamCaptureIsolation,
                        "the event was recorded outside the capture: record it on a capturing stream, or wait for it \
                         before the capture begins",
                    ));
                }
                self.executor.prune(&mut frontier);
                let known = &mut self.stream_mut(own).frontier;
                frontier.retain(|command| !known.contains(command));
                known.extend_from_slice(&frontier);
                if known.len() > FRONTIER_COMMANDS {
                    self.append(own, Body::Mark(None));
                }
                Ok(())
            }
        }
    }

    // ---- Events ---------------------------------------------------------------------------------------------------

    pub(crate) fn event_create(&mut self, device: u32, flags: EventFlags) -> CallResult<u64> {
        self.usable(device)?;
        Ok(self.events.insert(Event { device, flags, record: Arc::new(Mutex::new(Record::Never)) }))
    }

    fn event(&self, handle: u64) -> CallResult<&Event> {
        self.events.get(handle).ok_or_else(|| unknown("event", handle))
    }

    pub(crate) fn event_record(&mut self, event: u64, stream: u64) -> CallResult<()> {
        let own = self.enter(stream)?;
        self.check_event_device(event, own)?;
        let record = if let Some(branch) = &self.stream(own).capture {
            let record = Record::Captured { capture: branch.capture, nodes: branch.nodes.clone() };
            self.check_capture(own)?;
            record
        } else if self.event(event)?.flags.timing {
            let stamp = Arc::new(Stamp::default());
            let mark = self.append(own, Body::Mark(Some(Arc::clone(&stamp) as Arc<dyn Reached>)));
            Record::Live { frontier: Frontier::from_slice(&[mark]), stamp: Some(stamp) }
        } else {
            Record::Live { frontier: self.frontier(own), stamp: None }
        };
        *self.event(event)?.record() = record;
        Ok(())
    }

    /// Checks that an event can be recorded on a stream.
    fn check_event_device(&self, event: u64, own: u64) -> CallResult<()> {
        let (event_device, stream_device) = (self.event(event)?.device, self.stream(own).device);
        if event_device != stream_device {
            return Err(Refusal::new(
                Code::InvalidHandle,
                format!(
                    "an event of device {event_device} cannot be recorded on a stream of device {stream_device}"
                ),
            ));
        }
        Ok(())
    }

    pub(crate) fn event_record_external(&mut self, event: u64, stream: u64) -> CallResult<()> {
        let own = self.enter(stream)?;
        self.check_event_device(event, own)?;
        self.capture_event_of_outside(own, event, true)
    }

    pub(crate) fn stream_wait_event_external(&mut self, stream: u64, event: u64) -> CallResult<()> {
        let own = self.enter(stream)?;
        self.capture_event_of_outside(own, event, false)
    }

    fn capture_event_of_outside(&mut self, own: u64, event: u64, records: bool) -> CallResult<()> {
        let record = Arc::clone(&self.event(event)?.record);
        if self.stream(own).capture.is_none() {
            let detail = "only a stream that captures takes the nodes of external events";
            return Err(Refusal::new(Code::IllegalState, detail));
        }
        self.capture_event(own, EventNode { record, records })
    }

    /// Returns the unfinished commands before the latest record.
    pub(crate) fn event_frontier(&mut self, event: u64) -> CallResult<Frontier> {
        let found = self.event(event)?;
        let device = found.device;
        let record = found.record().clone();
        let mut frontier = match record {
            Record::Never => Frontier::new(),
            Record::Live { frontier, .. } => frontier,
            Record::Captured { capture, .. } => return Err(self.refuse_captured_event(capture)),
        };
        self.check_alive(device)?;
        self.executor.prune(&mut frontier);
        Ok(frontier)
    }

    pub(crate) fn event_device(&self, event: u64) -> CallResult<u32> {
        Ok(self.event(event)?.device)
    }

    /// Returns when both events were reached, in nanoseconds.
    pub(crate) fn event_times(&mut self, start: u64, end: u64) -> CallResult<(u64, u64)> {
        Ok((self.event_time(start)?, self.event_time(end)?))
    }

    fn event_time(&mut self, event: u64) -> CallResult<u64> {
        let found = self.event(event)?;
        if !found.flags.timing {
            return Err(Refusal::new(Code::InvalidHandle, "the event was made without timing"));
        }
        if matches!(*found.record(), Record::Never) {
            return Err(Refusal::new(Code::InvalidHandle, "the event was never recorded"));
        }
        if !self.event_frontier(event)?.is_empty() {
            return Err(Refusal::new(Code::NotReady, "the event has not been reached: synchronise first"));
        }
        match &*self.event(event)?.record() {
            Record::Live { stamp: Some(stamp), .. } => Ok(stamp.nanoseconds()),
            _ => unreachable!("an event with timing is recorded with a stamp"),
        }
    }
}
