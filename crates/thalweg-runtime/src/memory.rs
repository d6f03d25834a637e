//! Memory: the driver as the allocators' upstream, and [`Buffer`], what a tensor holds.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustc_hash::FxHashMap;
use thalweg_device::{
    CaptureMode, DevicePointer, Driver, EventFlags, EventHandle, HostFlags, HostPointer, StreamHandle,
};
use thalweg_memory::{
    AllocationError, Block, EventId, Events, HostMethod, HostUpstream, MemoryInfo, StreamId, Upstream,
    UpstreamError,
};

use crate::forgotten::{ForgottenStreams, LastWork};
use crate::{Device, Error, Result, Stream};

/// A driver as the source of segments, pinned memory and events.
pub(crate) struct DriverUpstream {
    driver: Arc<dyn Driver>,
    device: u32,
    forgotten: Arc<ForgottenStreams>,
    /// Carries waits for forgotten streams; made when first needed.
    stand_in: OnceLock<StreamHandle>,
    events: Mutex<EventCache>,
}

/// Makes a call that a capture of another thread or device would forbid, and that is harmless to it: allocation, and asking
/// for events that were recorded outside captures.
pub(crate) fn outside_capture<T>(
    driver: &Arc<dyn Driver>,
    call: impl FnOnce() -> thalweg_device::Result<T>,
) -> thalweg_device::Result<T> {
    let former = driver.thread_exchange_capture_mode(CaptureMode::Relaxed)?;
    let result = call();
    driver.thread_exchange_capture_mode(former)?;
    result
}

/// Events that were made once and are used again.
#[derive(Default)]
struct EventCache {
    /// The device of every event that was made.
    device_of: FxHashMap<EventHandle, u32>,
    spare: Vec<EventHandle>,
}

fn upstream_error(error: thalweg_device::Error) -> UpstreamError {
    if error.is_out_of_memory() { UpstreamError::OutOfMemory } else { UpstreamError::Other(Box::new(error)) }
}

impl DriverUpstream {
    pub(crate) fn new(driver: Arc<dyn Driver>, device: u32, forgotten: Arc<ForgottenStreams>) -> Self {
        Self { driver, device, forgotten, stand_in: OnceLock::new(), events: Mutex::default() }
    }

    /// The stream to record an event on that stands behind all work of `stream`.
    fn stream_to_record_on(&self, stream: StreamHandle) -> thalweg_device::Result<StreamHandle> {
        let Err(error) = self.driver.stream_device(stream) else { return Ok(stream) };
        let last = self.forgotten.last_work(stream);
        if let Some(LastWork::Unknown) = last {
            return Err(error);
        }
        let stand_in = match self.stand_in.get() {
            Some(stand_in) => *stand_in,
            None => {
                let made = self.driver.stream_create(self.device, 0)?;
                // Allocators call with their lock held, so nobody else has made one meanwhile.
                *self.stand_in.get_or_init(|| made)
            }
        };
        if let Some(LastWork::Event(event)) = last {
            self.driver.stream_wait_event(stand_in, event)?;
        }
        Ok(stand_in)
    }

    fn events(&self) -> MutexGuard<'_, EventCache> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_event(&self, device: u32) -> thalweg_device::Result<EventHandle> {
        let mut events = self.events();
        if let Some(position) = events.spare.iter().position(|event| events.device_of[event] == device) {
            return Ok(events.spare.swap_remove(position));
        }
        let event = self.driver.event_create(device, EventFlags::default())?;
        events.device_of.insert(event, device);
        Ok(event)
    }
}

impl Events for DriverUpstream {
    fn record_event(&self, stream: StreamId) -> Result<EventId, UpstreamError> {
        let handle =
            self.stream_to_record_on(StreamHandle::from_raw(stream.raw())).map_err(upstream_error)?;
        let device = self.driver.stream_device(handle).map_err(upstream_error)?;
        let event = self.take_event(device).map_err(upstream_error)?;
        match self.driver.event_record(event, handle) {
            Ok(()) => Ok(EventId::from_raw(event.raw())),
            Err(error) => {
                self.events().spare.push(event);
                Err(upstream_error(error))
            }
        }
    }

    fn query_event(&self, event: EventId) -> Result<bool, UpstreamError> {
        let event = EventHandle::from_raw(event.raw());
        outside_capture(&self.driver, || self.driver.event_query(event)).map_err(upstream_error)
    }

    fn synchronize_event(&self, event: EventId) -> Result<(), UpstreamError> {
        let event = EventHandle::from_raw(event.raw());
        outside_capture(&self.driver, || self.driver.event_synchronize(event)).map_err(upstream_error)
    }

    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<(), UpstreamError> {
        let (stream, event) = (StreamHandle::from_raw(stream.raw()), EventHandle::from_raw(event.raw()));
        self.driver.stream_wait_event(stream, event).map_err(upstream_error)
    }

    fn release_event(&self, event: EventId) {
        self.events().spare.push(EventHandle::from_raw(event.raw()));
    }
}

impl Upstream for DriverUpstream {
    fn allocate(&self, bytes: u64, _stream: StreamId) -> Result<u64, UpstreamError> {
        outside_capture(&self.driver, || self.driver.memory_allocate(self.device, bytes))
            .map(DevicePointer::address)
            .map_err(upstream_error)
    }

    fn free(&self, address: u64, _bytes: u64, _stream: StreamId) -> Result<(), UpstreamError> {
        outside_capture(&self.driver, || self.driver.memory_free(DevicePointer::new(address)))
            .map_err(upstream_error)
    }

    fn memory_info(&self) -> Result<MemoryInfo, UpstreamError> {
        let info = self.driver.memory_info(self.device).map_err(upstream_error)?;
        Ok(MemoryInfo { free_bytes: info.free_bytes, total_bytes: info.total_bytes })
    }
}

impl HostUpstream for DriverUpstream {
    fn allocate_host(&self, bytes: u64, method: HostMethod) -> Result<u64, UpstreamError> {
        let register_threads = match method {
            HostMethod::Allocate => 0,
            HostMethod::Register { threads } => threads,
        };
        let flags = HostFlags { register_threads, ..HostFlags::default() };
        outside_capture(&self.driver, || self.driver.host_allocate(bytes, flags))
            .map(HostPointer::address)
            .map_err(upstream_error)
    }

    fn free_host(&self, address: u64, _bytes: u64, _method: HostMethod) -> Result<(), UpstreamError> {
        outside_capture(&self.driver, || self.driver.host_free(HostPointer::new(address)))
            .map_err(upstream_error)
    }
}

impl Drop for DriverUpstream {
    fn drop(&mut self) {
        for event in self.events.get_mut().unwrap_or_else(PoisonError::into_inner).device_of.keys() {
            // The driver may have lost its context; then it has lost the event too.
            let _ = self.driver.event_destroy(*event);
        }
        if let Some(stand_in) = self.stand_in.get() {
            let _ = self.driver.stream_destroy(*stand_in);
        }
    }
}

/// An allocator's refusal as an error: the driver's own error where that is the cause.
pub(crate) fn from_allocation(device: &Device, error: AllocationError) -> Error {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(cause) = source {
        if let Some(driver_error) = cause.downcast_ref::<thalweg_device::Error>() {
            let answer: thalweg_device::Result<()> = Err(driver_error.clone());
            return device.check(answer).expect_err("made from an error");
        }
        source = cause.source();
    }
    if error.is_out_of_memory() {
        Error::out_of_memory(error.to_string())
    } else if error.is_capture() {
        Error::capture(format!("{device}: {error}"))
    } else {
        Error::invalid(format!("{device}: {error}"))
    }
}

/// A piece of device memory from the caching allocator. It belongs to the stream it was allocated on: work there may use it
/// at once, and dropping it lets later work of that stream have it. Use on another stream needs order (an event), and
/// [`Buffer::record_stream`] before the drop.
#[derive(Debug)]
pub struct Buffer {
    device: Device,
    block: Block,
}

impl Buffer {
    /// At least `bytes` of device memory for work on `stream`. 0 bytes give a null pointer and take nothing.
    pub fn new(stream: &Stream, bytes: u64) -> Result<Self> {
        let device = stream.device();
        let block = device
            .allocator()
            .allocate(bytes, stream.id())
            .map_err(|error| from_allocation(device, error))?;
        Ok(Self { device: device.clone(), block })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The address.
    pub fn pointer(&self) -> DevicePointer {
        DevicePointer::new(self.block.address())
    }

    /// The bytes that were asked for.
    pub fn size_bytes(&self) -> u64 {
        self.block.requested_bytes()
    }

    /// Says that work on `stream` uses the memory: after the drop it is not reused before the work that the stream has at
    /// that moment is done.
    pub fn record_stream(&self, stream: &Stream) {
        self.block.record_stream(stream.id());
    }
}
