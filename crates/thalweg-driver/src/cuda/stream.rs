//! Streams and events.

use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicBool, Ordering};

use super::context::Device;
use super::objects::{Event, Stream, StreamOwner};
use super::state::CudaDriver;
use super::sys::{self, RawContext, RawDevice, RawEvent, RawStream};
use super::table::CallStatus;
use crate::{Code, Error, EventFlags, EventHandle, ExternalStream, Result, StreamHandle};

impl CudaDriver {
    pub(super) fn default_stream(&self, device: u32) -> Result<StreamHandle> {
        let device = self.device(device)?;
        Ok(*device.default_stream.get_or_init(|| {
            let stream = Stream::new(RawStream(0), device.index, StreamOwner::Device);
            StreamHandle::from_raw(self.streams.insert(stream))
        }))
    }

    pub(super) fn stream_create(&self, device: u32, priority: i32) -> Result<StreamHandle> {
        let device = self.enter(device)?;
        let (least, greatest) = device.context(&self.cuda)?.priorities;
        // The highest priority is the smallest number.
        let priority = priority.clamp(greatest.min(least), least.max(greatest));
        let mut raw = RawStream::default();
        // SAFETY: writes one handle.
        let outcome = unsafe {
            self.cuda.table.stream_create(&raw mut raw, sys::STREAM_NON_BLOCKING, priority as c_int)
        };
        self.cuda.check(outcome, || format!("a stream of priority {priority} on device {}", device.index))?;
        let stream = Stream::new(raw, device.index, StreamOwner::Driver);
        Ok(StreamHandle::from_raw(self.streams.insert(stream)))
    }

    pub(super) fn stream_destroy(&self, stream: StreamHandle) -> Result<()> {
        let call = "cuStreamDestroy";
        let handle = stream.raw();
        self.streams.remove(handle, call, |stream| match stream.owner {
            StreamOwner::Device => {
                Err(Error::new(Code::InvalidHandle, call, "the legacy default stream cannot be destroyed"))
            }
            StreamOwner::External => Ok(()),
            StreamOwner::Driver => {
                self.enter_stream(stream)?;
                // SAFETY: the stream is this driver's, and nothing else holds its entry.
                let outcome = unsafe { self.cuda.table.stream_destroy(stream.raw) };
                self.cuda.check(outcome, || format!("a stream of device {}", stream.device))
            }
        })?;
        self.capturing.lock().remove(&handle);
        Ok(())
    }

    pub(super) fn stream_device(&self, stream: StreamHandle) -> Result<u32> {
        Ok(self.streams.get(stream.raw(), "cuStreamGetDevice")?.device)
    }

    pub(super) fn stream_priority(&self, stream: StreamHandle) -> Result<i32> {
        let stream = self.streams.get(stream.raw(), "cuStreamGetPriority")?;
        self.enter_stream(&stream)?;
        let mut priority: c_int = 0;
        // SAFETY: the stream is looked up; writes one number.
        let outcome = unsafe { self.cuda.table.stream_get_priority(stream.raw, &raw mut priority) };
        self.cuda.check(outcome, || format!("a stream of device {}", stream.device))?;
        Ok(priority)
    }

    pub(super) fn stream_is_blocking(&self, stream: StreamHandle) -> Result<bool> {
        let stream = self.streams.get(stream.raw(), "cuStreamGetFlags")?;
        if stream.owner == StreamOwner::Device {
            return Ok(true);
        }
        self.enter_stream(&stream)?;
        let mut flags: c_uint = 0;
        // SAFETY: the stream is looked up; writes one number.
        let outcome = unsafe { self.cuda.table.stream_get_flags(stream.raw, &raw mut flags) };
        self.cuda.check(outcome, || format!("a stream of device {}", stream.device))?;
        Ok(flags & sys::STREAM_NON_BLOCKING == 0)
    }

    pub(super) fn stream_query(&self, stream: StreamHandle) -> Result<bool> {
        let stream = self.streams.get(stream.raw(), "cuStreamQuery")?;
        let device = self.enter_stream(&stream)?;
        // SAFETY: the stream is looked up.
        let outcome = unsafe { self.cuda.table.stream_query(stream.raw) };
        self.ready(device, outcome, "a stream")
    }

    pub(super) fn stream_synchronize(&self, stream: StreamHandle) -> Result<()> {
        let stream = self.streams.get(stream.raw(), "cuStreamSynchronize")?;
        let device = self.enter_stream(&stream)?;
        // SAFETY: the stream is looked up.
        let outcome = unsafe { self.cuda.table.stream_synchronize(stream.raw) };
        self.cuda.check(outcome, || format!("a stream of device {}", stream.device))?;
        device.fault.check()
    }

    /// Returns the result of a query: not ready is `false`.
    fn ready(&self, device: &Device, outcome: CallStatus, what: &str) -> Result<bool> {
        if outcome.status == Code::NotReady.number() {
            return Ok(false);
        }
        self.cuda.check(outcome, || format!("{what} of device {}", device.index))?;
        device.fault.check().map(|()| true)
    }

    pub(super) fn stream_wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        self.wait_event(stream, event, 0)
    }

    pub(super) fn stream_wait_event_external(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        self.wait_event(stream, event, sys::EVENT_WAIT_EXTERNAL)
    }

    fn wait_event(&self, stream: StreamHandle, event: EventHandle, flags: c_uint) -> Result<()> {
        let stream = self.streams.get(stream.raw(), "cuStreamWaitEvent")?;
        let event = self.events.get(event.raw(), "cuStreamWaitEvent")?;
        self.enter_stream(&stream)?;
        if flags == sys::EVENT_WAIT_EXTERNAL {
            event.is_in_graph.store(true, Ordering::Relaxed);
        }
        // SAFETY: both are looked up.
        let outcome = unsafe { self.cuda.table.stream_wait_event(stream.raw, event.raw, flags) };
        let what = || format!("a stream of device {}, an event of device {}", stream.device, event.device);
        self.cuda.check(outcome, what)
    }

    pub(super) fn stream_from_external(&self, device: u32, external: ExternalStream) -> Result<StreamHandle> {
        let device = self.enter(device)?;
        let cuda_stream = usize::try_from(external.cuda_stream()).unwrap_or_default();
        // 1 is CUDA's other name of the legacy default stream.
        let raw = RawStream(if cuda_stream == 1 { 0 } else { cuda_stream });
        let context = external.context().map(|context| RawContext(context as usize));
        let stream = Stream { context, ..Stream::new(raw, device.index, StreamOwner::External) };
        self.enter_stream(&stream)?;
        if !self.is_of(raw, device)? {
            let detail = format!("the stream {cuda_stream:#x} is not of device {}", device.index);
            return Err(Error::new(Code::InvalidContext, "cuStreamGetCtx", detail));
        }
        Ok(StreamHandle::from_raw(self.streams.insert(stream)))
    }

    /// Returns whether a stream belongs to a device's primary context, or to a green context of the device.
    fn is_of(&self, stream: RawStream, device: &Device) -> Result<bool> {
        let mut context = RawContext::default();
        // SAFETY: the code that created the `ExternalStream` promised that it is a live stream.
        let outcome = unsafe { self.cuda.table.stream_get_context(stream, &raw mut context) };
        self.cuda
            .check(outcome, || format!("the stream {:#x} as one of device {}", stream.0, device.index))?;
        if context == device.context(&self.cuda)?.raw {
            return Ok(true);
        }
        let mut raw: RawDevice = -1;
        // SAFETY: as above; writes one number. A driver that is too old for the call has no green contexts.
        let outcome = unsafe { self.cuda.table.stream_get_device(stream, &raw mut raw) };
        Ok(outcome.is_success() && raw == device.raw)
    }

    pub(super) fn cuda_stream(&self, stream: StreamHandle) -> Result<u64> {
        Ok(self.streams.get(stream.raw(), "cuda_stream")?.raw.0 as u64)
    }

    pub(super) fn cuda_event(&self, event: EventHandle) -> Result<u64> {
        Ok(self.events.get(event.raw(), "cuda_event")?.raw.0 as u64)
    }

    pub(super) fn event_create(&self, device: u32, flags: EventFlags) -> Result<EventHandle> {
        let device = self.enter(device)?;
        let timing = if flags.timing { 0 } else { sys::EVENT_DISABLE_TIMING };
        let sleep = if flags.blocking_sync { sys::EVENT_BLOCKING_SYNC } else { 0 };
        let mut raw = RawEvent::default();
        // SAFETY: writes one handle.
        let outcome = unsafe { self.cuda.table.event_create(&raw mut raw, timing | sleep) };
        self.cuda.check(outcome, || format!("an event of device {}", device.index))?;
        let is_in_graph = AtomicBool::new(false);
        Ok(EventHandle::from_raw(self.events.insert(Event { raw, device: device.index, is_in_graph })))
    }

    pub(super) fn event_destroy(&self, event: EventHandle) -> Result<()> {
        self.events.remove(event.raw(), "cuEventDestroy", |event| {
            if *event.is_in_graph.get_mut() {
                return Ok(());
            }
            self.enter(event.device)?;
            // SAFETY: the event is this driver's, and nothing else holds its entry.
            let outcome = unsafe { self.cuda.table.event_destroy(event.raw) };
            self.cuda.check(outcome, || format!("an event of device {}", event.device))
        })
    }

    pub(super) fn event_record(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        self.record_event(event, stream, |event, stream| {
            // SAFETY: both are looked up.
            unsafe { self.cuda.table.event_record(event.raw, stream.raw) }
        })
    }

    pub(super) fn event_record_external(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        self.record_event(event, stream, |event, stream| {
            event.is_in_graph.store(true, Ordering::Relaxed);
            let flags = sys::EVENT_RECORD_EXTERNAL;
            // SAFETY: both are looked up.
            unsafe { self.cuda.table.event_record_with_flags(event.raw, stream.raw, flags) }
        })
    }

    fn record_event(
        &self,
        event: EventHandle,
        stream: StreamHandle,
        record: impl FnOnce(&Event, &Stream) -> CallStatus,
    ) -> Result<()> {
        let call = "cuEventRecord";
        let event = self.events.get(event.raw(), call)?;
        let stream = self.streams.get(stream.raw(), call)?;
        if event.device != stream.device {
            let (of, on) = (event.device, stream.device);
            let detail = format!("an event of device {of} cannot be recorded on a stream of device {on}");
            return Err(Error::new(Code::InvalidHandle, call, detail));
        }
        self.enter_stream(&stream)?;
        let outcome = record(&event, &stream);
        self.cuda.check(outcome, || format!("on a stream of device {}", stream.device))
    }

    pub(super) fn event_query(&self, event: EventHandle) -> Result<bool> {
        let event = self.events.get(event.raw(), "cuEventQuery")?;
        let device = self.enter(event.device)?;
        // SAFETY: the event is looked up.
        let outcome = unsafe { self.cuda.table.event_query(event.raw) };
        self.ready(device, outcome, "an event")
    }

    pub(super) fn event_synchronize(&self, event: EventHandle) -> Result<()> {
        let event = self.events.get(event.raw(), "cuEventSynchronize")?;
        let device = self.enter(event.device)?;
        // SAFETY: the event is looked up.
        let outcome = unsafe { self.cuda.table.event_synchronize(event.raw) };
        self.cuda.check(outcome, || format!("an event of device {}", event.device))?;
        device.fault.check()
    }

    pub(super) fn event_elapsed_ms(&self, start: EventHandle, end: EventHandle) -> Result<f32> {
        let call = "cuEventElapsedTime";
        let first = self.events.get(start.raw(), call)?;
        // If both events are the same, its entry is looked up once.
        let second = if start == end { None } else { Some(self.events.get(end.raw(), call)?) };
        let last = second.as_ref().map_or(first.raw, |event| event.raw);
        self.enter(first.device)?;
        let mut milliseconds = 0.0_f32;
        let table = &self.cuda.table;
        // SAFETY: both events are looked up; writes one number. Both versions have the same signature.
        let mut outcome = unsafe { table.event_elapsed_v2(&raw mut milliseconds, first.raw, last) };
        if outcome.missing.is_some() {
            // SAFETY: as above.
            outcome = unsafe { table.event_elapsed_v1(&raw mut milliseconds, first.raw, last) };
        }
        self.cuda.check(outcome, || "the time between two events".to_owned())?;
        Ok(milliseconds)
    }
}
