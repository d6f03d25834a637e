//! An upstream without a device, for tests and measurements.
//!
//! [`FakeUpstream`] invents addresses and touches no memory. It is strict: a call that breaks the contract (freeing memory that
//! was not allocated, querying a released event) panics, since it is a bug of the caller. It is controllable: memory runs out at
//! a capacity, any call can be made to fail, and events complete when the test decides, in the order of their stream. And it is
//! as unkind as a driver may be: it reuses addresses at once, the lowest first, so that segments are adjacent.
//!
//! An allocator that answers a failure by trying again for ever would hang a test. A *fuse* turns that into a failure: it blows
//! after too many failed calls in a row.
//!
//! The modules `driver_pool` and `graph` are parts of the same upstream.

mod driver_pool;
mod graph;

use std::collections::BTreeMap;
use std::ops::Range;

use thalweg_lock::Mutex;

use driver_pool::DriverPool;

use self::graph::Graphs;
use crate::ids::StreamId;
use crate::upstream::{
    Captures, EventId, Events, HostMethod, HostUpstream, MemoryInfo, PageId, StreamOrdered, Upstream,
    UpstreamError, VirtualMemory,
};

/// The kind of an injected failure.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fault {
    /// [`UpstreamError::OutOfMemory`].
    OutOfMemory,
    /// [`UpstreamError::Other`] with an [`InjectedFault`] in it.
    Other,
    /// A panic.
    Panic,
}

/// The error in an injected [`Fault::Other`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InjectedFault {
    /// The number of the call that failed, from 1.
    pub call: u64,
}

impl std::fmt::Display for InjectedFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "call {} of the fake upstream was made to fail", self.call)
    }
}

impl std::error::Error for InjectedFault {}

/// The number of calls of each method, failures included.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Calls {
    /// Calls of [`Upstream::allocate`].
    pub allocate: u64,
    /// Calls of [`Upstream::free`].
    pub free: u64,
    /// Calls of [`VirtualMemory::reserve_addresses`] and [`VirtualMemory::free_addresses`].
    pub addresses: u64,
    /// Calls of [`VirtualMemory::create_page`].
    pub create_page: u64,
    /// Calls of [`VirtualMemory::destroy_page`].
    pub destroy_page: u64,
    /// Calls of [`VirtualMemory::map`].
    pub map: u64,
    /// Calls of [`VirtualMemory::unmap`].
    pub unmap: u64,
    /// Calls of [`VirtualMemory::synchronize_stream`].
    pub synchronize_stream: u64,
    /// Calls of [`StreamOrdered::allocate_async`].
    pub allocate_async: u64,
    /// Calls of [`StreamOrdered::free_async`].
    pub free_async: u64,
    /// Calls of [`StreamOrdered::trim`].
    pub trim: u64,
    /// Calls of [`StreamOrdered::reserved`].
    pub reserved: u64,
    /// Calls of [`StreamOrdered::reset_reserved_peak`].
    pub reset_reserved_peak: u64,
    /// Calls of [`StreamOrdered::synchronize`].
    pub synchronize: u64,
    /// Calls of [`Upstream::memory_info`].
    pub memory_info: u64,
    /// Calls of [`HostUpstream::allocate_host`].
    pub allocate_host: u64,
    /// Calls of [`HostUpstream::free_host`].
    pub free_host: u64,
    /// Calls of [`Events::record_event`].
    pub record_event: u64,
    /// Calls of [`Events::query_event`].
    pub query_event: u64,
    /// Calls of [`Events::synchronize_event`].
    pub synchronize_event: u64,
    /// Calls of [`Events::wait_event`].
    pub wait_event: u64,
    /// Calls of [`Captures::capture_of`] and [`Captures::terminals`].
    pub captures: u64,
    /// Calls of [`Captures::predecessors`].
    pub predecessors: u64,
    /// Calls of [`Events::release_event`].
    pub release_event: u64,
}

impl Calls {
    /// Returns all calls that can fail, which is all but `release_event`.
    pub fn fallible(&self) -> u64 {
        self.allocate
            + self.free
            + self.addresses
            + self.create_page
            + self.destroy_page
            + self.map
            + self.unmap
            + self.synchronize_stream
            + self.allocate_async
            + self.free_async
            + self.trim
            + self.reserved
            + self.reset_reserved_peak
            + self.synchronize
            + self.memory_info
            + self.allocate_host
            + self.free_host
            + self.record_event
            + self.query_event
            + self.synchronize_event
            + self.wait_event
            + self.captures
            + self.predecessors
    }
}

/// The regions of invented addresses: for pinned memory, expandable segments and plain segments. If a region is full, the second
/// region for the same purpose is used.
const HOST: Range<u64> = 0x1000_0000_0000..0x4000_0000_0000;
const GROWING: Range<u64> = 0x4000_0000_0000..0x7000_0000_0000;
const PLAIN: Range<u64> = 0x7000_0000_0000..1 << 48;
const MORE_GROWING: Range<u64> = 1 << 48..1 << 56;
const MORE_PLAIN: Range<u64> = 1 << 56..1 << 57;

/// Ranges of invented addresses, the lowest first.
#[derive(Debug)]
struct Ranges {
    capacity_bytes: u64,
    used_bytes: u64,
    /// The ranges that are handed out: their bytes, by address.
    live: BTreeMap<u64, u64>,
    /// The free ranges. No two of them are adjacent.
    gaps: BTreeMap<u64, u64>,
}

impl Ranges {
    fn new(regions: &[Range<u64>], capacity_bytes: u64) -> Self {
        let gaps = regions.iter().map(|region| (region.start, region.end - region.start)).collect();
        Self { capacity_bytes, used_bytes: 0, live: BTreeMap::new(), gaps }
    }

    fn take(&mut self, bytes: u64) -> Result<(), UpstreamError> {
        if bytes > self.capacity_bytes - self.used_bytes {
            return Err(UpstreamError::OutOfMemory);
        }
        self.used_bytes += bytes;
        Ok(())
    }

    fn allocate(&mut self, bytes: u64) -> Result<u64, UpstreamError> {
        let gap = self.gaps.iter().find(|(_, gap_bytes)| **gap_bytes >= bytes);
        let (&address, &gap_bytes) = gap.ok_or(UpstreamError::OutOfMemory)?;
        self.take(bytes)?;
        self.gaps.remove(&address);
        if gap_bytes > bytes {
            self.gaps.insert(address + bytes, gap_bytes - bytes);
        }
        self.live.insert(address, bytes);
        Ok(address)
    }

    fn free(&mut self, address: u64, bytes: u64) -> Result<(), UpstreamError> {
        let size = self.live.remove(&address);
        assert_eq!(size, Some(bytes), "the fake upstream is given back what it gave, at {address:#x}");
        self.used_bytes -= bytes;
        let (mut start, mut end) = (address, address + bytes);
        if let Some(after) = self.gaps.remove(&end) {
            end += after;
        }
        if let Some((&before, &gap_bytes)) = self.gaps.range(..start).next_back()
            && before + gap_bytes == start
        {
            start = before;
        }
        self.gaps.insert(start, end - start);
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Timeline {
    /// The number of events that were recorded on the stream.
    recorded: u64,
    /// The number of recorded events that have passed.
    passed: u64,
    may_end: bool,
}

#[derive(Debug)]
struct Inner {
    device: Ranges,
    host: Ranges,
    /// The way in which the memory at each address of `host` was pinned.
    host_methods: BTreeMap<u64, HostMethod>,
    /// Reserved addresses.
    addresses: Ranges,
    /// Physical pages by identifier: their size, and the number of addresses at which they are mapped.
    pages: BTreeMap<PageId, (u64, usize)>,
    next_page: u64,
    /// Mapped pages by address.
    mapped: BTreeMap<u64, (u64, PageId)>,
    driver_pool: DriverPool,
    calls: Calls,
    faults: BTreeMap<u64, Fault>,
    timelines: BTreeMap<StreamId, Timeline>,
    /// The live events: their stream, and their position on its timeline.
    events: BTreeMap<EventId, (StreamId, u64)>,
    next_event: u64,
    graphs: Graphs,
    failures_in_a_row: u64,
}

/// The number of failed calls in a row after which the fuse blows.
const FUSE: u64 = 1000;

/// A fake upstream. It serves a [`DeviceAllocator`](crate::DeviceAllocator) and a [`HostAllocator`](crate::HostAllocator).
#[derive(Debug)]
pub struct FakeUpstream {
    inner: Mutex<Inner>,
    has_virtual_memory: bool,
    has_stream_order: bool,
}

impl FakeUpstream {
    /// Creates a device with `capacity_bytes`, and a host with the same capacity of pinned memory.
    pub fn new(capacity_bytes: u64) -> Self {
        Self {
            inner: Mutex::new(Inner {
                device: Ranges::new(&[PLAIN, MORE_PLAIN], capacity_bytes),
                host: Ranges::new(&[HOST], capacity_bytes),
                host_methods: BTreeMap::new(),
                addresses: Ranges::new(&[GROWING, MORE_GROWING], u64::MAX),
                pages: BTreeMap::new(),
                next_page: 1,
                mapped: BTreeMap::new(),
                driver_pool: DriverPool::default(),
                calls: Calls::default(),
                faults: BTreeMap::new(),
                timelines: BTreeMap::new(),
                events: BTreeMap::new(),
                next_event: 1,
                graphs: Graphs::default(),
                failures_in_a_row: 0,
            }),
            has_virtual_memory: false,
            has_stream_order: false,
        }
    }

    /// Creates a device with virtual memory, whose pages are multiples of 2 MiB.
    pub fn with_virtual_memory(capacity_bytes: u64) -> Self {
        Self { has_virtual_memory: true, ..Self::new(capacity_bytes) }
    }

    /// Returns the mapped pages, as (address, bytes, page), in address order.
    pub fn mapped_pages(&self) -> Vec<(u64, u64, PageId)> {
        self.inner.lock().mapped.iter().map(|(&address, &(bytes, page))| (address, bytes, page)).collect()
    }

    /// Returns the number of physical pages.
    pub fn live_pages(&self) -> usize {
        self.inner.lock().pages.len()
    }

    /// Returns the reserved ranges of addresses, as (address, bytes), in address order.
    pub fn reserved_ranges(&self) -> Vec<(u64, u64)> {
        self.inner.lock().addresses.live.iter().map(|(&address, &bytes)| (address, bytes)).collect()
    }

    /// Makes the `number`-th fallible call from now on fail (1 is the next).
    pub fn fail_call(&self, number: u64, fault: Fault) {
        let mut inner = self.inner.lock();
        let call = inner.calls.fallible() + number;
        inner.faults.insert(call, fault);
    }

    /// Forgets all failures that have not happened yet.
    pub fn clear_faults(&self) {
        self.inner.lock().faults.clear();
    }

    /// Returns whether the device offers virtual memory.
    pub fn has_virtual_memory(&self) -> bool {
        self.has_virtual_memory
    }

    /// Returns the number of calls of each method so far.
    pub fn calls(&self) -> Calls {
        self.inner.lock().calls
    }

    /// Returns the device segments that are allocated, as (address, bytes), in address order.
    pub fn live_segments(&self) -> Vec<(u64, u64)> {
        self.inner.lock().device.live.iter().map(|(&address, &bytes)| (address, bytes)).collect()
    }

    /// Returns the pieces of pinned memory that are allocated, as (address, bytes), in address order.
    pub fn live_host_allocations(&self) -> Vec<(u64, u64)> {
        self.inner.lock().host.live.iter().map(|(&address, &bytes)| (address, bytes)).collect()
    }

    /// Returns how each allocated piece of pinned memory was pinned, in address order.
    pub fn live_host_methods(&self) -> Vec<HostMethod> {
        self.inner.lock().host_methods.values().copied().collect()
    }

    /// Returns the number of events that were recorded and not released.
    pub fn live_events(&self) -> usize {
        self.inner.lock().events.len()
    }

    /// Returns the number of events recorded on `stream` so far.
    pub fn recorded_events(&self, stream: StreamId) -> u64 {
        self.inner.lock().timelines.get(&stream).map_or(0, |timeline| timeline.recorded)
    }

    /// Returns the number of events recorded on `stream` that the device has passed.
    pub fn passed_events(&self, stream: StreamId) -> u64 {
        self.inner.lock().timelines.get(&stream).map_or(0, |timeline| timeline.passed)
    }

    /// Declares that the owner of `stream` may destroy it at any moment.
    pub fn make_transient(&self, stream: StreamId) {
        self.inner.lock().timelines.entry(stream).or_default().may_end = true;
    }

    /// Makes the device pass the next event on `stream`, if there is one.
    pub fn complete_next(&self, stream: StreamId) {
        if let Some(timeline) = self.inner.lock().timelines.get_mut(&stream) {
            timeline.passed = timeline.recorded.min(timeline.passed + 1);
        }
    }

    /// Makes the device pass all events recorded on `stream` so far.
    pub fn complete_stream(&self, stream: StreamId) {
        if let Some(timeline) = self.inner.lock().timelines.get_mut(&stream) {
            timeline.passed = timeline.recorded;
        }
    }

    /// Makes the device pass all events recorded so far.
    pub fn complete_all(&self) {
        self.inner.lock().timelines.values_mut().for_each(|timeline| timeline.passed = timeline.recorded);
    }

    /// Runs one fallible call: counts it, and then either fails or runs it.
    fn call<T>(
        &self,
        count: impl FnOnce(&mut Calls) -> &mut u64,
        action: impl FnOnce(&mut Inner) -> Result<T, UpstreamError>,
    ) -> Result<T, UpstreamError> {
        let mut inner = self.inner.lock();
        *count(&mut inner.calls) += 1;
        let call = inner.calls.fallible();
        let result = match inner.faults.remove(&call) {
            None => action(&mut inner),
            Some(Fault::OutOfMemory) => Err(UpstreamError::OutOfMemory),
            Some(Fault::Other) => Err(UpstreamError::Other(Box::new(InjectedFault { call }))),
            Some(Fault::Panic) => panic!("call {call} of the fake upstream was made to panic"),
        };
        inner.failures_in_a_row = if result.is_ok() { 0 } else { inner.failures_in_a_row + 1 };
        assert!(
            inner.failures_in_a_row < FUSE,
            "the fuse of the fake upstream blew: {FUSE} calls failed in a row"
        );
        result
    }
}

impl Inner {
    fn event(&self, event: EventId) -> (StreamId, u64) {
        *self.events.get(&event).unwrap_or_else(|| panic!("{event:?} was never recorded, or was released"))
    }

    /// Checks that no capture is under way when an event is touched, and panics otherwise: the event would become part of a
    /// graph, or end its capture.
    fn assert_events_may_be_touched(&self) {
        assert!(!self.graphs.are_under_way(), "an event is touched while a capture is under way");
    }

    fn has_passed(&self, event: EventId) -> bool {
        self.assert_events_may_be_touched();
        let (stream, place) = self.event(event);
        self.timelines[&stream].passed >= place
    }
}

impl Events for FakeUpstream {
    fn record_event(&self, stream: StreamId) -> Result<EventId, UpstreamError> {
        self.call(
            |calls| &mut calls.record_event,
            |inner| {
                inner.assert_events_may_be_touched();
                let timeline = inner.timelines.entry(stream).or_default();
                timeline.recorded += 1;
                let event = EventId::from_raw(inner.next_event);
                inner.next_event += 1;
                inner.events.insert(event, (stream, timeline.recorded));
                Ok(event)
            },
        )
    }

    fn query_event(&self, event: EventId) -> Result<bool, UpstreamError> {
        self.call(|calls| &mut calls.query_event, |inner| Ok(inner.has_passed(event)))
    }

    fn synchronize_event(&self, event: EventId) -> Result<(), UpstreamError> {
        self.call(
            |calls| &mut calls.synchronize_event,
            |inner| {
                let (stream, place) = inner.event(event);
                let timeline = inner.timelines.entry(stream).or_default();
                timeline.passed = timeline.passed.max(place);
                Ok(())
            },
        )
    }

    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<(), UpstreamError> {
        // Work is not modelled: only memory that is freed in stream order has to wait. But the event must exist.
        self.call(
            |calls| &mut calls.wait_event,
            |inner| {
                let place = inner.event(event);
                inner.driver_pool.wait(stream, place);
                Ok(())
            },
        )
    }

    fn release_event(&self, event: EventId) {
        let mut inner = self.inner.lock();
        inner.calls.release_event += 1;
        assert!(inner.events.remove(&event).is_some(), "{event:?} was never recorded, or was released");
    }
}

impl Upstream for FakeUpstream {
    fn may_end(&self, stream: StreamId) -> bool {
        self.inner.lock().timelines.get(&stream).is_some_and(|timeline| timeline.may_end)
    }

    fn allocate(&self, bytes: u64, _stream: StreamId) -> Result<u64, UpstreamError> {
        assert!(
            bytes > 0 && bytes.is_multiple_of(512),
            "segments are whole numbers of 512 bytes, not {bytes}"
        );
        self.call(|calls| &mut calls.allocate, |inner| inner.device.allocate(bytes))
    }

    fn free(&self, address: u64, bytes: u64, _stream: StreamId) -> Result<(), UpstreamError> {
        self.call(|calls| &mut calls.free, |inner| inner.device.free(address, bytes))
    }

    fn memory_info(&self) -> Result<MemoryInfo, UpstreamError> {
        self.call(
            |calls| &mut calls.memory_info,
            |inner| {
                let Ranges { capacity_bytes, used_bytes, .. } = inner.device;
                Ok(MemoryInfo { free_bytes: capacity_bytes - used_bytes, total_bytes: capacity_bytes })
            },
        )
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.has_virtual_memory.then_some(self)
    }

    fn stream_ordered(&self) -> Option<&dyn StreamOrdered> {
        self.has_stream_order.then_some(self)
    }

    fn captures(&self) -> Option<&dyn Captures> {
        Some(self)
    }
}

const GRANULARITY_BYTES: u64 = 2 << 20;

impl VirtualMemory for FakeUpstream {
    fn granularity_bytes(&self) -> u64 {
        GRANULARITY_BYTES
    }

    fn reserve_addresses(&self, bytes: u64) -> Result<u64, UpstreamError> {
        assert!(bytes > 0 && bytes.is_multiple_of(GRANULARITY_BYTES), "{bytes} bytes are not whole pages");
        self.call(|calls| &mut calls.addresses, |inner| inner.addresses.allocate(bytes))
    }

    fn free_addresses(&self, address: u64, bytes: u64) -> Result<(), UpstreamError> {
        self.call(
            |calls| &mut calls.addresses,
            |inner| {
                let mapped = inner.mapped.range(address..address + bytes).next();
                assert_eq!(mapped, None, "nothing is mapped in a range that is given back");
                inner.addresses.free(address, bytes)
            },
        )
    }

    fn create_page(&self, bytes: u64) -> Result<PageId, UpstreamError> {
        assert!(bytes > 0 && bytes.is_multiple_of(GRANULARITY_BYTES), "{bytes} bytes are not whole pages");
        self.call(
            |calls| &mut calls.create_page,
            |inner| {
                inner.device.take(bytes)?;
                let page = PageId::from_raw(inner.next_page);
                inner.next_page += 1;
                inner.pages.insert(page, (bytes, 0));
                Ok(page)
            },
        )
    }

    fn destroy_page(&self, page: PageId) -> Result<(), UpstreamError> {
        self.call(
            |calls| &mut calls.destroy_page,
            |inner| {
                let (bytes, mappings) = inner.pages.remove(&page).expect("a page is destroyed once");
                assert_eq!(mappings, 0, "{page:?} is still mapped");
                inner.device.used_bytes -= bytes;
                Ok(())
            },
        )
    }

    fn map(&self, address: u64, page_bytes: u64, pages: &[PageId]) -> Result<(), UpstreamError> {
        self.call(
            |calls| &mut calls.map,
            |inner| {
                let end = address + page_bytes * pages.len() as u64;
                let range = inner.addresses.live.range(..=address).next_back();
                let reserved = range.is_some_and(|(start, bytes)| end <= start + bytes);
                assert!(reserved, "{address:#x} to {end:#x} is not within a reserved range");
                assert_eq!(inner.mapped.range(address..end).next(), None, "an address is mapped once");
                for (place, page) in (0u64..).zip(pages) {
                    let (bytes, mappings) = inner.pages.get_mut(page).expect("only pages are mapped");
                    assert_eq!(*bytes, page_bytes, "{page:?} has another size");
                    *mappings += 1;
                    inner.mapped.insert(address + place * page_bytes, (page_bytes, *page));
                }
                Ok(())
            },
        )
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), UpstreamError> {
        self.call(
            |calls| &mut calls.unmap,
            |inner| {
                let mut next = address;
                while next < address + bytes {
                    let (page_bytes, page) =
                        inner.mapped.remove(&next).expect("only what is mapped is unmapped");
                    inner.pages.get_mut(&page).expect("a mapped page exists").1 -= 1;
                    next += page_bytes;
                }
                assert_eq!(next, address + bytes, "whole pages are unmapped");
                Ok(())
            },
        )
    }

    fn synchronize_stream(&self, stream: StreamId) -> Result<(), UpstreamError> {
        self.call(
            |calls| &mut calls.synchronize_stream,
            |inner| {
                if let Some(timeline) = inner.timelines.get_mut(&stream) {
                    timeline.passed = timeline.recorded;
                }
                Ok(())
            },
        )
    }
}

impl HostUpstream for FakeUpstream {
    fn allocate_host(&self, bytes: u64, method: HostMethod) -> Result<u64, UpstreamError> {
        assert!(bytes > 0, "a request to pin has a size");
        self.call(
            |calls| &mut calls.allocate_host,
            |inner| {
                let address = inner.host.allocate(bytes)?;
                inner.host_methods.insert(address, method);
                Ok(address)
            },
        )
    }

    fn free_host(&self, address: u64, bytes: u64, method: HostMethod) -> Result<(), UpstreamError> {
        self.call(
            |calls| &mut calls.free_host,
            |inner| {
                let taken = inner.host_methods.remove(&address);
                assert_eq!(taken, Some(method), "pinned memory goes back the way it came, at {address:#x}");
                inner.host.free(address, bytes)
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_reused_lowest_first_and_bytes_run_out() {
        let upstream = FakeUpstream::new(3 << 20);
        let stream = StreamId::from_raw(1);
        let [a, b, c] = [(); 3].map(|()| upstream.allocate(1 << 20, stream).expect("there is room"));
        assert_eq!([b - a, c - b], [1 << 20; 2]);
        assert!(matches!(upstream.allocate(512, StreamId::from_raw(1)), Err(UpstreamError::OutOfMemory)));
        upstream.free(b, 1 << 20, stream).expect("it is out");
        assert_eq!(upstream.memory_info().expect("no fault").free_bytes, 1 << 20);
        assert_eq!(upstream.allocate(512, StreamId::from_raw(1)).expect("there is room"), b);
    }

    #[test]
    fn events_pass_in_the_order_of_their_stream() {
        let upstream = FakeUpstream::new(0);
        let stream = StreamId::from_raw(7);
        let [first, second, third] = [(); 3].map(|()| upstream.record_event(stream).expect("no fault"));
        let passed = || [first, second, third].map(|event| upstream.query_event(event).expect("no fault"));
        assert_eq!(passed(), [false, false, false]);
        upstream.complete_next(stream);
        assert_eq!(passed(), [true, false, false]);
        upstream.synchronize_event(second).expect("no fault");
        assert_eq!(passed(), [true, true, false]);
    }

    #[test]
    #[should_panic(expected = "fuse")]
    fn the_fuse_ends_endless_retries() {
        let upstream = FakeUpstream::new(0);
        while upstream.allocate(512, StreamId::from_raw(1)).is_err() {}
    }
}
