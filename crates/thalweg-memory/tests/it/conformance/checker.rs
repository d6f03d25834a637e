//! An upstream that checks whether the calls of the allocator are safe. It does not depend on the allocator.
//!
//! Memory comes from a [`FakeUpstream`]. Time is the checker's own: each action of the program on a stream (the last touch of a
//! block, the record of an event) is a *point* there, counted from 1. A stream's later work is ordered after everything that it
//! was made to wait for, and an event is ordered after everything that its stream was ordered after. So the work that is done
//! when an event has passed, and the work that another stream is ordered after, are vectors of points.
//!
//! There are two shadows. One is by physical byte: a new use of a byte must be ordered after the previous one. The other is by
//! address in reserved ranges: when a page is unmapped there, all work that touches it *there* must be done.
//!
//! Code that holds a pool *relies* on its addresses: memory that was handed out there stays mapped, and no other pool has its
//! pages.

use std::collections::BTreeMap;

use thalweg_lock::Mutex;
use thalweg_memory::fake::FakeUpstream;
use thalweg_memory::{
    Captures, EventId, Events, MemoryInfo, PageId, PoolId, SegmentSource, StreamId, Upstream, UpstreamError,
    VirtualMemory,
};

use super::shadow::{Point, Shadow};

/// The progress of streams, or the known part of it.
type Clock = BTreeMap<StreamId, u64>;

fn merge(clock: &mut Clock, other: &Clock) {
    for (&stream, &point) in other {
        let known = clock.entry(stream).or_default();
        *known = point.max(*known);
    }
}

fn reaches(clock: &Clock, (stream, point): Point) -> bool {
    clock.get(&stream).is_some_and(|known| *known >= point)
}

#[derive(Debug, Default)]
struct Inner {
    /// The number of actions on each stream.
    now: Clock,
    /// The progress of the device on each stream.
    done: Clock,
    /// For each stream, the work that its later work waits for.
    after: BTreeMap<StreamId, Clock>,
    /// The live events: their stream, their point on it, and the work that they are ordered after.
    events: BTreeMap<EventId, (StreamId, u64, Clock)>,
    physical: Shadow,
    addresses: Shadow,
    /// Mapped pages by address: size and page.
    mapped: BTreeMap<u64, (u64, PageId)>,
    pages: BTreeMap<PageId, u64>,
    /// The addresses that a graph relies on, by their beginnings, with the size and the pool.
    relied: BTreeMap<u64, (u64, PoolId)>,
    /// The pages that are mapped at those addresses.
    bound: BTreeMap<PageId, PoolId>,
    /// The capturing streams: one each, or all. While there are any, no event may be touched.
    captures: Vec<Option<StreamId>>,
    violations: Vec<String>,
}

impl Inner {
    /// Returns the work that the stream's next work is ordered after.
    fn clock(&self, stream: StreamId) -> Clock {
        let mut clock = self.after.get(&stream).cloned().unwrap_or_default();
        clock.insert(stream, self.now.get(&stream).copied().unwrap_or(0));
        clock
    }

    fn next_point(&mut self, stream: StreamId) -> u64 {
        let now = self.now.entry(stream).or_default();
        *now += 1;
        *now
    }

    fn is_past(&self, stream: StreamId, point: Point) -> bool {
        point.0 == stream
            || reaches(&self.done, point)
            || self.after.get(&stream).is_some_and(|clock| reaches(clock, point))
    }

    /// Returns the physical location of a range of addresses.
    fn physical(&self, address: u64, bytes: u64) -> Vec<(u64, u64)> {
        let end = address + bytes;
        let before =
            self.mapped.range(..=address).next_back().filter(|(start, (size, _))| *start + size > address);
        let Some((&first, _)) = before else { return vec![(address, end)] };
        let (mut parts, mut next) = (Vec::new(), address);
        for (&start, &(size, page)) in self.mapped.range(first..end) {
            assert!(start <= next, "there is no memory at {next:#x}");
            let base = (1 << 63) | (page.raw() << 32);
            let to = end.min(start + size);
            parts.push((base + (next - start), base + (to - start)));
            next = to;
        }
        assert_eq!(next, end, "there is no memory at {next:#x}");
        parts
    }

    /// Returns the mapped pages that overlap a range, with their addresses.
    fn pages_of(&self, address: u64, bytes: u64) -> impl Iterator<Item = (u64, PageId)> + '_ {
        let before = self.mapped.range(..=address).next_back().map_or(address, |(&start, _)| start);
        let all = self.mapped.range(before..address + bytes);
        all.filter(move |(start, (size, _))| **start + size > address)
            .map(|(&start, &(_, page))| (start, page))
    }

    fn touch_events(&mut self, call: &str) {
        if !self.captures.is_empty() {
            self.violations.push(format!("{call} while a capture is under way"));
        }
    }

    fn object(&mut self, what: &str, outcome: Result<(), String>) {
        if let Err(why) = outcome {
            self.violations.push(format!("{what}: {why}"));
        }
    }
}

/// The checking upstream. See the [module's essay](self).
#[derive(Debug)]
pub struct Checker {
    pub fake: FakeUpstream,
    inner: Mutex<Inner>,
}

impl Checker {
    pub fn new(fake: FakeUpstream) -> Self {
        Self { fake, inner: Mutex::default() }
    }

    /// Records that a block was handed out for work on `stream`.
    pub fn handed_out(&self, address: u64, bytes: u64, stream: StreamId) {
        let mut inner = self.inner.lock();
        for (from, end) in inner.physical(address, bytes) {
            let mut physical = std::mem::take(&mut inner.physical);
            let outcome = physical.claim(from, end, |point| inner.is_past(stream, point));
            inner.physical = physical;
            inner.object(&format!("{address:#x} for {stream:?}"), outcome);
        }
        let mut addresses = std::mem::take(&mut inner.addresses);
        // Earlier use of the address does not matter: only its bytes count.
        let _ = addresses.claim(address, address + bytes, |_| true);
        inner.addresses = addresses;
    }

    /// Records a touch on `stream` and returns its point, the last so far.
    pub fn touched(&self, stream: StreamId) -> Point {
        (stream, self.inner.lock().next_point(stream))
    }

    /// Records that a block is about to be dropped, after these last touches of it.
    pub fn given_back(&self, address: u64, bytes: u64, after: &[Point]) {
        let mut inner = self.inner.lock();
        for (from, end) in inner.physical(address, bytes) {
            inner.physical.release(from, end, after.to_vec());
        }
        inner.addresses.release(address, address + bytes, after.to_vec());
    }

    /// Makes the device reach the next event on a stream, with everything that the event is ordered after.
    pub fn complete_next(&self, stream: StreamId) {
        let mut inner = self.inner.lock();
        let done = inner.done.get(&stream).copied().unwrap_or(0);
        let ahead = inner.events.values().filter(|(on, point, _)| *on == stream && *point > done);
        if let Some((.., clock)) = ahead.min_by_key(|(_, point, _)| *point).cloned() {
            merge(&mut inner.done, &clock);
        }
    }

    /// Makes the device finish all work of a stream.
    pub fn complete_stream(&self, stream: StreamId) {
        let mut inner = self.inner.lock();
        let clock = inner.clock(stream);
        merge(&mut inner.done, &clock);
    }

    pub fn complete_all(&self) {
        let mut inner = self.inner.lock();
        inner.done = inner.now.clone();
    }

    pub fn begin_capture(&self, stream: Option<StreamId>) {
        self.inner.lock().captures.push(stream);
    }

    pub fn end_capture(&self, stream: Option<StreamId>) {
        let mut inner = self.inner.lock();
        let place = inner.captures.iter().position(|one| *one == stream).expect("it was begun");
        inner.captures.remove(place);
    }

    /// Records that a block was handed out from a pool that is held, or from the shared one.
    pub fn relied_on(&self, address: u64, bytes: u64, pool: Option<PoolId>) {
        let mut inner = self.inner.lock();
        let pages: Vec<PageId> = inner.pages_of(address, bytes).map(|(_, page)| page).collect();
        for page in pages {
            if let Some(other) = inner.bound.get(&page).filter(|other| Some(**other) != pool) {
                let what = format!("{page:?} at {address:#x} is {pool:?}'s, and {other:?} relies on it");
                inner.violations.push(what);
            }
            if let Some(pool) = pool {
                inner.bound.insert(page, pool);
            }
        }
        if let Some(pool) = pool {
            let relied = inner.relied.entry(address).or_insert((bytes, pool));
            *relied = (relied.0.max(bytes), pool);
        }
    }

    /// Records that nothing relies on the addresses of a pool any more.
    pub fn let_go_of(&self, pool: PoolId) {
        let mut inner = self.inner.lock();
        inner.relied.retain(|_, (_, of)| *of != pool);
        inner.bound.retain(|_, of| *of != pool);
    }

    /// Returns the violations so far.
    pub fn violations(&self) -> Vec<String> {
        self.inner.lock().violations.clone()
    }

    /// Returns the amount of the device's memory that the allocator has, in bytes.
    pub fn reserved_bytes(&self) -> u64 {
        let plain: u64 = self.fake.live_segments().iter().map(|(_, bytes)| bytes).sum();
        plain + self.inner.lock().pages.values().sum::<u64>()
    }

    /// Returns the numbers of segments, pages, ranges of addresses, mapped pages and events that the allocator has.
    pub fn held(&self) -> [usize; 5] {
        let fake = &self.fake;
        let (segments, ranges) = (fake.live_segments().len(), fake.reserved_ranges().len());
        [segments, fake.live_pages(), ranges, fake.mapped_pages().len(), fake.live_events()]
    }

    fn memory(&self) -> &dyn VirtualMemory {
        self.fake.virtual_memory().expect("it is offered only where the fake has it")
    }
}

impl Events for Checker {
    fn record_event(&self, stream: StreamId) -> Result<EventId, UpstreamError> {
        let event = self.fake.record_event(stream)?;
        let mut inner = self.inner.lock();
        inner.touch_events("record_event");
        let point = inner.next_point(stream);
        let clock = inner.clock(stream);
        inner.events.insert(event, (stream, point, clock));
        Ok(event)
    }

    fn query_event(&self, event: EventId) -> Result<bool, UpstreamError> {
        self.fake.query_event(event)?;
        let mut inner = self.inner.lock();
        inner.touch_events("query_event");
        let (stream, point, _) = inner.events[&event];
        Ok(reaches(&inner.done, (stream, point)))
    }

    fn synchronize_event(&self, event: EventId) -> Result<(), UpstreamError> {
        self.fake.synchronize_event(event)?;
        let mut inner = self.inner.lock();
        inner.touch_events("synchronize_event");
        let clock = inner.events[&event].2.clone();
        merge(&mut inner.done, &clock);
        Ok(())
    }

    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<(), UpstreamError> {
        self.fake.wait_event(stream, event)?;
        let mut inner = self.inner.lock();
        inner.touch_events("wait_event");
        let clock = inner.events[&event].2.clone();
        merge(inner.after.entry(stream).or_default(), &clock);
        Ok(())
    }

    fn release_event(&self, event: EventId) {
        self.inner.lock().events.remove(&event);
        self.fake.release_event(event);
    }
}

impl Upstream for Checker {
    fn allocate(&self, bytes: u64, stream: StreamId) -> Result<u64, UpstreamError> {
        self.fake.allocate(bytes, stream)
    }

    fn free(&self, address: u64, bytes: u64, stream: StreamId) -> Result<(), UpstreamError> {
        self.fake.free(address, bytes, stream)?;
        let mut inner = self.inner.lock();
        // The free waits for the segment's own stream, and for everything that this stream waits for.
        let mut physical = std::mem::take(&mut inner.physical);
        let outcome = physical.forget(address, address + bytes, |point| inner.is_past(stream, point));
        inner.physical = physical;
        inner.object("free", outcome);
        let _ = inner.addresses.forget(address, address + bytes, |_| true);
        Ok(())
    }

    fn memory_info(&self) -> Result<MemoryInfo, UpstreamError> {
        self.fake.memory_info()
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.fake.virtual_memory().map(|_| self as &dyn VirtualMemory)
    }

    fn captures(&self) -> Option<&dyn Captures> {
        self.fake.captures()
    }
}

/// The source of some pools, which uses the same memory.
impl SegmentSource for Checker {
    fn allocate(&self, bytes: u64, stream: StreamId) -> Result<u64, UpstreamError> {
        Upstream::allocate(self, bytes, stream)
    }

    fn free(&self, address: u64, bytes: u64, stream: StreamId) -> Result<(), UpstreamError> {
        Upstream::free(self, address, bytes, stream)
    }
}

impl VirtualMemory for Checker {
    fn granularity_bytes(&self) -> u64 {
        self.memory().granularity_bytes()
    }

    fn reserve_addresses(&self, bytes: u64) -> Result<u64, UpstreamError> {
        self.memory().reserve_addresses(bytes)
    }

    fn free_addresses(&self, address: u64, bytes: u64) -> Result<(), UpstreamError> {
        self.memory().free_addresses(address, bytes)
    }

    fn create_page(&self, bytes: u64) -> Result<PageId, UpstreamError> {
        let page = self.memory().create_page(bytes)?;
        self.inner.lock().pages.insert(page, bytes);
        Ok(page)
    }

    fn destroy_page(&self, page: PageId) -> Result<(), UpstreamError> {
        self.memory().destroy_page(page)?;
        let mut inner = self.inner.lock();
        let bytes = inner.pages.remove(&page).expect("the fake knows it");
        let base = (1 << 63) | (page.raw() << 32);
        let mut physical = std::mem::take(&mut inner.physical);
        let outcome = physical.forget(base, base + bytes, |point| reaches(&inner.done, point));
        inner.physical = physical;
        inner.object("destroy_page", outcome);
        Ok(())
    }

    fn map(&self, address: u64, page_bytes: u64, pages: &[PageId]) -> Result<(), UpstreamError> {
        self.memory().map(address, page_bytes, pages)?;
        let mut inner = self.inner.lock();
        for (place, page) in (0u64..).zip(pages) {
            inner.mapped.insert(address + place * page_bytes, (page_bytes, *page));
        }
        Ok(())
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), UpstreamError> {
        self.memory().unmap(address, bytes)?;
        let mut inner = self.inner.lock();
        let mut addresses = std::mem::take(&mut inner.addresses);
        let outcome = addresses.forget(address, address + bytes, |point| reaches(&inner.done, point));
        inner.addresses = addresses;
        inner.object("unmap", outcome);
        let relied = inner
            .relied
            .iter()
            .filter(|(start, (size, _))| **start < address + bytes && **start + size > address);
        let relied: Vec<String> =
            relied.map(|(start, (_, pool))| format!("{start:#x} of {pool:?} lost its memory")).collect();
        inner.violations.extend(relied);
        let gone: Vec<u64> = inner.mapped.range(address..address + bytes).map(|(&start, _)| start).collect();
        inner.mapped.retain(|start, _| !gone.contains(start));
        Ok(())
    }

    fn synchronize_stream(&self, stream: StreamId) -> Result<(), UpstreamError> {
        if self.inner.lock().captures.iter().any(|one| one.is_none_or(|one| one == stream)) {
            return Err(UpstreamError::Other(format!("{stream:?} captures").into()));
        }
        self.memory().synchronize_stream(stream)?;
        self.complete_stream(stream);
        Ok(())
    }
}
