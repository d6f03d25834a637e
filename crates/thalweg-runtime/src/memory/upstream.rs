//! The driver as the source of segments, pinned memory and events.
//!
//! # Destroyed streams
//! An allocator may name a stream whose handle was released since ([`ForgottenStreams`]): memory outlives the streams that used
//! it. Requests for such a stream are made to a *stand-in*, a stream of our own that waits for the last work of the forgotten
//! one. Several threads may use it at a time, and then wait for more than they need.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use rustc_hash::FxHashMap;
use thalweg_driver::{
    CaptureStatus, Code, DevicePointer, DeviceProperties, Driver, EventFlags, EventHandle, HostFlags,
    HostPointer, PoolHandle, StreamHandle,
};
use thalweg_lock::{Mutex, RwLock};
use thalweg_memory::{
    Captures, EventId, Events, HostMethod, HostUpstream, MemoryInfo, MemorySharing, PageId, StreamId,
    StreamOrdered, Upstream, UpstreamError, VirtualMemory,
};

use super::outside_capture;
use crate::forgotten::{ForgottenStreams, LastWork};

/// A driver as the upstream of the allocators.
pub(crate) struct DriverUpstream {
    pub(super) driver: Arc<dyn Driver>,
    pub(super) device: u32,
    forgotten: Arc<ForgottenStreams>,
    /// The stream that stands in for forgotten streams, made at first use.
    stand_in: Mutex<Option<StreamHandle>>,
    events: Mutex<EventCache>,
    /// The stream-ordered pool, made at first use.
    pub(super) pool: Mutex<Option<PoolHandle>>,
    /// The descriptors through which other processes open exported pages. A descriptor stays open until its page is destroyed.
    pub(super) descriptors: Mutex<FxHashMap<PageId, OwnedFd>>,
    /// A counter with a random start that grows whenever a descriptor is closed, since its number may then be reused.
    pub(super) serial: AtomicU64,
    properties: OnceLock<DeviceProperties>,
    /// The devices, besides the device itself, that mapped memory is accessible to.
    pub(super) peers: RwLock<Vec<u32>>,
    /// The peers that earlier mappings are accessible to, too.
    open_to: RwLock<Vec<u32>>,
}

/// Events that were made once and are used again.
#[derive(Default)]
struct EventCache {
    /// The device of every event that was made.
    device_of: FxHashMap<EventHandle, u32>,
    /// The unused events, by device.
    spare: FxHashMap<u32, Vec<EventHandle>>,
}

impl EventCache {
    fn give_back(&mut self, event: EventHandle) {
        let device = self.device_of[&event];
        self.spare.entry(device).or_default().push(event);
    }
}

pub(super) fn upstream_error(error: thalweg_driver::Error) -> UpstreamError {
    if error.is_out_of_memory() { UpstreamError::OutOfMemory } else { UpstreamError::Other(Box::new(error)) }
}

pub(super) const fn handle(stream: StreamId) -> StreamHandle {
    StreamHandle::from_raw(stream.raw())
}

impl DriverUpstream {
    pub(crate) fn new(driver: Arc<dyn Driver>, device: u32, forgotten: Arc<ForgottenStreams>) -> Self {
        Self {
            driver,
            device,
            forgotten,
            stand_in: Mutex::new(None),
            events: Mutex::default(),
            pool: Mutex::new(None),
            descriptors: Mutex::default(),
            serial: AtomicU64::new(RandomState::new().build_hasher().finish()),
            properties: OnceLock::new(),
            peers: RwLock::default(),
            open_to: RwLock::default(),
        }
    }

    /// Makes all later mappings accessible to another device.
    pub(crate) fn add_peer(&self, peer: u32) {
        let mut peers = self.peers.write();
        if !peers.contains(&peer) {
            peers.push(peer);
        }
    }

    /// Returns whether all mapped memory is accessible to another device.
    pub(crate) fn is_open_to(&self, peer: u32) -> bool {
        self.open_to.read().contains(&peer)
    }

    /// Notes that all mapped memory is accessible to another device.
    pub(crate) fn set_open_to(&self, peer: u32) {
        self.open_to.write().push(peer);
    }

    /// Returns the device's properties, if the driver reports them. (The cache of pinned memory never calls this, so it creates
    /// no context.)
    pub(super) fn properties(&self) -> Option<&DeviceProperties> {
        if self.properties.get().is_none() {
            let properties = self.driver.device_properties(self.device).ok()?;
            return Some(self.properties.get_or_init(|| properties));
        }
        self.properties.get()
    }

    /// Returns a stream that is ordered after all work of `stream`: the stream itself, if it still exists.
    pub(super) fn stream_after(&self, stream: StreamHandle) -> thalweg_driver::Result<StreamHandle> {
        let Err(error) = self.driver.stream_device(stream) else { return Ok(stream) };
        let last = self.forgotten.last_work(stream);
        if let Some(LastWork::Unknown) = last {
            return Err(error);
        }
        let mut slot = self.stand_in.lock();
        let stand_in = match *slot {
            Some(stand_in) => stand_in,
            None => *slot.insert(self.driver.stream_create(self.device, 0)?),
        };
        drop(slot);
        if let Some(LastWork::Event(event)) = last {
            self.driver.stream_wait_event(stand_in, event)?;
        }
        Ok(stand_in)
    }

    /// Blocks until the work that was submitted to the stream is complete. Refuses a stream that captures, because waiting for it
    /// would break the capture.
    pub(super) fn wait_for_stream(&self, stream: StreamHandle) -> thalweg_driver::Result<()> {
        let driver = &self.driver;
        if self.forgotten.is_transient(stream) {
            let device = driver.stream_device(stream).unwrap_or(self.device);
            return outside_capture(driver, || driver.device_synchronize(device));
        }
        if let Err(error) = driver.stream_device(stream) {
            return match self.forgotten.last_work(stream) {
                None => Ok(()),
                Some(LastWork::Event(event)) => outside_capture(driver, || driver.event_synchronize(event)),
                Some(LastWork::Unknown) => Err(error),
            };
        }
        if driver.stream_capture_info(stream)?.status != CaptureStatus::None {
            return Err(thalweg_driver::Error::new(
                Code::StreamCaptureUnsupported,
                "stream_synchronize",
                format!("{stream:?} captures, and nothing on it runs: wait for it after the capture"),
            ));
        }
        outside_capture(driver, || driver.stream_synchronize(stream))
    }

    /// Returns whether the stream is destroyed, and was not capturing at the time.
    pub(super) fn left_no_capture(&self, stream: StreamHandle) -> bool {
        let is_gone = self.driver.stream_device(stream).is_err();
        is_gone && !matches!(self.forgotten.last_work(stream), Some(LastWork::Unknown))
    }

    fn take_event(&self, device: u32) -> thalweg_driver::Result<EventHandle> {
        let mut events = self.events.lock();
        let spare = events.spare.get_mut(&device);
        if let Some(event) = spare.and_then(|spare| spare.pop()) {
            return Ok(event);
        }
        let event = self.driver.event_create(device, EventFlags::default())?;
        events.device_of.insert(event, device);
        Ok(event)
    }
}

impl Events for DriverUpstream {
    fn record_event(&self, stream: StreamId) -> Result<EventId, UpstreamError> {
        let stream = self.stream_after(handle(stream)).map_err(upstream_error)?;
        let device = self.driver.stream_device(stream).map_err(upstream_error)?;
        let event = self.take_event(device).map_err(upstream_error)?;
        let place = stream;
        match self.driver.event_record(event, place) {
            Ok(()) => Ok(EventId::from_raw(event.raw())),
            Err(error) => {
                self.events.lock().give_back(event);
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
        let event = EventHandle::from_raw(event.raw());
        self.driver.stream_wait_event(handle(stream), event).map_err(upstream_error)
    }

    fn release_event(&self, event: EventId) {
        self.events.lock().give_back(EventHandle::from_raw(event.raw()));
    }
}

impl Upstream for DriverUpstream {
    fn may_end(&self, stream: StreamId) -> bool {
        self.forgotten.is_transient(handle(stream))
    }

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

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.properties()?.virtual_memory.then_some(self)
    }

    fn stream_ordered(&self) -> Option<&dyn StreamOrdered> {
        self.properties()?.memory_pools.then_some(self)
    }

    fn captures(&self) -> Option<&dyn Captures> {
        Some(self)
    }

    fn sharing(&self) -> Option<&dyn MemorySharing> {
        Some(self)
    }
}

impl HostUpstream for DriverUpstream {
    fn allocate_host(&self, bytes: u64, method: HostMethod) -> Result<u64, UpstreamError> {
        let method = match method {
            HostMethod::Allocate => thalweg_driver::HostMethod::Allocate,
            HostMethod::Register { threads } => {
                thalweg_driver::HostMethod::Register { prefault_threads: threads }
            }
        };
        let flags = HostFlags { method, ..HostFlags::default() };
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
    /// Frees the remaining resources. If the driver has lost its context it has lost these too, so its errors are ignored.
    fn drop(&mut self) {
        for event in self.events.lock().device_of.keys() {
            let _ = self.driver.event_destroy(*event);
        }
        if let Some(stand_in) = self.stand_in.lock().take() {
            let _ = self.driver.stream_destroy(stand_in);
        }
        if let Some(pool) = self.pool.lock().take() {
            let _ = self.driver.pool_destroy(pool);
        }
    }
}
