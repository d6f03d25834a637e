//! The upstream of a replay: invented memory, at the trace's own addresses if requested.
//!
//! It is a [`FakeUpstream`] with three additions. A segment that the trace's allocator took for the same request has the recorded
//! address: so two allocators that follow the same rules agree on every address, even where the rules say "the lowest". Other
//! segments are placed as a driver would place them ([`addresses`](super::addresses)). The physical page that is mapped at each
//! address is recorded. And the order between streams is recorded: which events a stream was made to wait for, and which work
//! those follow, as vector clocks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use rustc_hash::FxHashMap;
use thalweg_lock::Mutex;
use thalweg_memory::{
    Captures, EventId, Events, MemoryInfo, PageId, StreamId, StreamOrdered, Upstream, UpstreamError,
    VirtualMemory, fake::FakeUpstream,
};

use super::addresses::Addresses;
use super::clocks::Clock;
use super::program::RecordedProgram;

/// The memory that no device exceeds: 2 TiB. Beyond this nothing is laid out.
pub(crate) const MOST_BYTES: u64 = 1 << 41;

#[derive(Debug, Default)]
struct Inner {
    /// The trace's segments, as (address, bytes), by the number of the block for which each was taken.
    script: FxHashMap<u32, (u64, u64)>,
    /// The addresses at which expandable segments may have begun to grow, each by the number of the block for which the segment
    /// grew.
    mapped_for: FxHashMap<u32, u64>,
    /// The address of the next segment that is laid out as recorded.
    next: Option<u64>,
    /// The reserved address ranges that the recording contains too: by address, the size and the address in the recording.
    ranges: BTreeMap<u64, (u64, u64)>,
    addresses: Addresses,
    /// The fake's address of each present segment, by address.
    fakes: FxHashMap<u64, u64>,
    unscripted: usize,
    /// The mapped pages by address, with their sizes.
    mapped: BTreeMap<u64, (u64, PageId)>,
    page_bytes: BTreeMap<PageId, u64>,
    /// The numbers of streams in clocks.
    streams: FxHashMap<StreamId, usize>,
    /// The work that each stream's later work is ordered after, including its own events.
    clocks: Vec<Clock>,
    /// The work that each live event is ordered after, including itself.
    events: FxHashMap<EventId, Clock>,
    released: Vec<(u64, u64)>,
}

/// The upstream of a replay. See the [module's essay](super).
#[derive(Debug)]
pub struct ReplayUpstream {
    fake: FakeUpstream,
    inner: Mutex<Inner>,
    /// The number of the block that is being allocated.
    block: AtomicU32,
    /// The bytes that are handed out in segments and pages.
    taken_bytes: AtomicU64,
    total_bytes: u64,
    /// Whether more memory may be taken than the device has: while the state before the trace is recreated, which was on another
    /// GPU.
    is_endless: AtomicBool,
}

impl ReplayUpstream {
    /// Creates a device of `total_bytes` that reuses the addresses in the trace of `program`. If the trace has a segment of the
    /// same size for the same request, the segment gets the recorded address, if possible. Other segments get invented addresses.
    pub fn scripted(program: &RecordedProgram, total_bytes: u64) -> Self {
        let this = Self::with_script(program.opened().collect(), total_bytes);
        this.inner.lock().mapped_for = program.mapped().collect();
        this
    }

    /// Creates a device of `total_bytes` on which all addresses are invented.
    pub fn unscripted(total_bytes: u64) -> Self {
        Self::with_script(FxHashMap::default(), total_bytes)
    }

    fn with_script(script: FxHashMap<u32, (u64, u64)>, total_bytes: u64) -> Self {
        Self {
            fake: FakeUpstream::with_virtual_memory(u64::MAX),
            inner: Mutex::new(Inner { script, ..Inner::default() }),
            block: AtomicU32::new(u32::MAX),
            taken_bytes: AtomicU64::new(0),
            total_bytes,
            is_endless: AtomicBool::new(false),
        }
    }

    /// Sets whether more memory may be taken than the device has.
    pub(crate) fn set_endless(&self, is_endless: bool) {
        self.is_endless.store(is_endless, Ordering::Relaxed);
    }

    /// Returns how many more bytes are taken than the device has.
    pub(crate) fn excess_bytes(&self) -> u64 {
        self.taken_bytes().saturating_sub(self.total_bytes)
    }

    fn check_room(&self, bytes: u64) -> Result<(), UpstreamError> {
        let after = self.taken_bytes().saturating_add(bytes);
        if self.is_endless.load(Ordering::Relaxed) {
            // More memory than any device has is not laid out either.
            return if after > MOST_BYTES { Err(UpstreamError::OutOfMemory) } else { Ok(()) };
        }
        if after > self.total_bytes { Err(UpstreamError::OutOfMemory) } else { Ok(()) }
    }

    /// Sets the block for which the following requests are made.
    pub(crate) fn serve_block(&self, number: u32) {
        self.block.store(number, Ordering::Relaxed);
    }

    /// Places the next segment where the recording has one that begins at `address`.
    pub(crate) fn lay_out(&self, address: u64) {
        self.inner.lock().next = Some(address);
    }

    /// Returns the recorded address of the memory at `address`. Expandable segments never have their recorded addresses: only
    /// distances within them can be the same.
    pub(crate) fn recorded(&self, address: u64) -> u64 {
        let inner = self.inner.lock();
        let range = inner.ranges.range(..=address).next_back();
        match range.filter(|(start, (bytes, _))| address - **start < *bytes) {
            Some((start, (_, recorded))) => recorded.wrapping_add(address - start),
            None => address,
        }
    }

    /// Returns the number of bytes in present segments and pages.
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.taken_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of requested segments that the trace does not have.
    pub fn unscripted_segments(&self) -> usize {
        self.inner.lock().unscripted
    }

    /// Returns the fake that invents the memory: for its counts of calls, and for making them fail.
    pub fn fake(&self) -> &FakeUpstream {
        &self.fake
    }

    pub(crate) fn complete_stream(&self, stream: StreamId) {
        self.fake.complete_stream(stream);
    }

    pub(crate) fn recorded_events(&self, stream: StreamId) -> u64 {
        self.fake.recorded_events(stream)
    }

    /// Returns whether the event with number `place` on `after` is past for later work of `stream`.
    pub(crate) fn is_past(&self, after: StreamId, place: u64, stream: StreamId) -> bool {
        let known = || {
            let mut inner = self.inner.lock();
            let (after, stream) = (inner.stream(after), inner.stream(stream));
            inner.clocks[stream].get(after)
        };
        self.fake.passed_events(after) >= place || known() >= place
    }

    /// Returns the physical location of a range of addresses, in pieces of (position, bytes). Memory that is not mapped page by
    /// page is located at its address.
    pub(crate) fn physical(&self, address: u64, bytes: u64) -> Vec<(u64, u64)> {
        let inner = self.inner.lock();
        let end = address + bytes;
        let first = inner.mapped.range(..=address).next_back().map_or(address, |(&start, _)| start);
        let pieces: Vec<_> = inner
            .mapped
            .range(first..end)
            .filter(|(start, (page_bytes, _))| *start + page_bytes > address)
            .map(|(&start, &(page_bytes, page))| {
                let (from, to) = (address.max(start), end.min(start + page_bytes));
                (place_of(page) + (from - start), to - from)
            })
            .collect();
        if pieces.is_empty() { vec![(address, bytes)] } else { pieces }
    }

    /// Returns the pieces of physical memory that were freed since the last call.
    pub(crate) fn take_released(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.inner.lock().released)
    }

    fn pages(&self) -> &dyn VirtualMemory {
        self.fake.virtual_memory().expect("the replay offers virtual memory only where the fake does")
    }
}

/// Returns the position of a page in physical memory: above all addresses, at a distance of 4 GiB from the next.
fn place_of(page: PageId) -> u64 {
    1 << 63 | page.raw() << 32
}

impl Inner {
    /// Returns the number of a stream in clocks.
    fn stream(&mut self, stream: StreamId) -> usize {
        let next = self.clocks.len();
        let number = *self.streams.entry(stream).or_insert(next);
        if number == next {
            self.clocks.push(Clock::default());
        }
        number
    }
}

impl Events for ReplayUpstream {
    fn record_event(&self, stream: StreamId) -> Result<EventId, UpstreamError> {
        let event = self.fake.record_event(stream)?;
        let place = self.fake.recorded_events(stream);
        let mut inner = self.inner.lock();
        let stream = inner.stream(stream);
        inner.clocks[stream].set(stream, place);
        let clock = inner.clocks[stream].clone();
        inner.events.insert(event, clock);
        Ok(event)
    }

    fn query_event(&self, event: EventId) -> Result<bool, UpstreamError> {
        self.fake.query_event(event)
    }

    fn synchronize_event(&self, event: EventId) -> Result<(), UpstreamError> {
        self.fake.synchronize_event(event)
    }

    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<(), UpstreamError> {
        self.fake.wait_event(stream, event)?;
        let mut inner = self.inner.lock();
        let after = inner.events.get(&event).cloned().unwrap_or_default();
        let stream = inner.stream(stream);
        inner.clocks[stream].merge(&after);
        Ok(())
    }

    fn release_event(&self, event: EventId) {
        self.inner.lock().events.remove(&event);
        self.fake.release_event(event);
    }
}

impl Upstream for ReplayUpstream {
    fn allocate(&self, bytes: u64, stream: StreamId) -> Result<u64, UpstreamError> {
        self.check_room(bytes)?;
        let fake = self.fake.allocate(bytes, stream)?;
        let Inner { script, addresses, fakes, unscripted, next, .. } = &mut *self.inner.lock();
        let laid_out = next.take().map(|address| (address, bytes));
        let scripted = laid_out.or_else(|| script.get(&self.block.load(Ordering::Relaxed)).copied());
        let address = match scripted {
            Some((address, same)) if same == bytes && addresses.take_recorded(address, bytes) => address,
            _ => {
                *unscripted += 1;
                addresses.place_segment(bytes)
            }
        };
        fakes.insert(address, fake);
        self.taken_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(address)
    }

    fn free(&self, address: u64, bytes: u64, stream: StreamId) -> Result<(), UpstreamError> {
        let fake = self.inner.lock().fakes.get(&address).copied();
        // An address that is not allocated is left to the fake, which panics.
        self.fake.free(fake.unwrap_or(address), bytes, stream)?;
        let mut inner = self.inner.lock();
        inner.fakes.remove(&address);
        inner.addresses.give_back(address);
        inner.released.push((address, bytes));
        self.taken_bytes.fetch_sub(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn memory_info(&self) -> Result<MemoryInfo, UpstreamError> {
        let free_bytes = self.total_bytes.saturating_sub(self.taken_bytes());
        Ok(MemoryInfo { free_bytes, total_bytes: self.total_bytes })
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.fake.virtual_memory().map(|_| self as &dyn VirtualMemory)
    }

    fn stream_ordered(&self) -> Option<&dyn StreamOrdered> {
        self.fake.stream_ordered()
    }

    fn captures(&self) -> Option<&dyn Captures> {
        self.fake.captures()
    }
}

/// Forwards to the fake, and records which page is mapped where.
impl VirtualMemory for ReplayUpstream {
    fn granularity_bytes(&self) -> u64 {
        self.pages().granularity_bytes()
    }

    fn reserve_addresses(&self, bytes: u64) -> Result<u64, UpstreamError> {
        let address = self.pages().reserve_addresses(bytes)?;
        let mut inner = self.inner.lock();
        let block = self.block.load(Ordering::Relaxed);
        let recorded = inner.next.take().or_else(|| inner.mapped_for.get(&block).copied());
        if let Some(recorded) = recorded {
            inner.ranges.insert(address, (bytes, recorded));
        }
        Ok(address)
    }

    fn free_addresses(&self, address: u64, bytes: u64) -> Result<(), UpstreamError> {
        self.pages().free_addresses(address, bytes)?;
        self.inner.lock().ranges.remove(&address);
        Ok(())
    }

    fn create_page(&self, bytes: u64) -> Result<PageId, UpstreamError> {
        self.check_room(bytes)?;
        let page = self.pages().create_page(bytes)?;
        self.inner.lock().page_bytes.insert(page, bytes);
        self.taken_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(page)
    }

    fn destroy_page(&self, page: PageId) -> Result<(), UpstreamError> {
        self.pages().destroy_page(page)?;
        let mut inner = self.inner.lock();
        if let Some(bytes) = inner.page_bytes.remove(&page) {
            inner.released.push((place_of(page), bytes));
            self.taken_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    fn map(&self, address: u64, page_bytes: u64, pages: &[PageId]) -> Result<(), UpstreamError> {
        self.pages().map(address, page_bytes, pages)?;
        let starts = (0..).map(|index| address + index * page_bytes);
        self.inner.lock().mapped.extend(starts.zip(pages.iter().map(|&page| (page_bytes, page))));
        Ok(())
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), UpstreamError> {
        self.pages().unmap(address, bytes)?;
        let mut inner = self.inner.lock();
        let end = address + bytes;
        while let Some((&start, _)) = inner.mapped.range(address..end).next() {
            inner.mapped.remove(&start);
        }
        Ok(())
    }

    fn synchronize_stream(&self, stream: StreamId) -> Result<(), UpstreamError> {
        self.pages().synchronize_stream(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_passes_from_stream_to_stream() {
        let upstream = ReplayUpstream::unscripted(0);
        let [a, b, c] = [1, 2, 3].map(StreamId::from_raw);
        let first = upstream.record_event(a).expect("the fake does not fail");
        upstream.wait_event(b, first).expect("the fake does not fail");
        assert!(upstream.is_past(a, 1, b) && !upstream.is_past(a, 2, b) && !upstream.is_past(a, 1, c));
        let second = upstream.record_event(b).expect("the fake does not fail");
        upstream.wait_event(c, second).expect("the fake does not fail");
        assert!(upstream.is_past(a, 1, c) && upstream.is_past(b, 1, c) && !upstream.is_past(c, 1, a));
        upstream.complete_stream(a);
        assert!(upstream.is_past(a, 1, c), "the host saw it pass");
    }

    #[test]
    fn a_segment_is_where_the_trace_has_it_for_the_same_request_if_it_can_be() {
        const BASE: u64 = 1 << 40;
        let (place, other) = (BASE + 0x1_0000, BASE + 0x2_0000);
        let script = [(0, (place, 1024)), (1, (place, 1024)), (2, (other, 512)), (3, (3, 1024))];
        let upstream = ReplayUpstream::with_script(script.into_iter().collect(), 1 << 20);
        let stream = StreamId::from_raw(1);
        let allocate = |block, bytes| {
            upstream.serve_block(block);
            upstream.allocate(bytes, stream).expect("there is room")
        };
        assert_eq!(allocate(0, 1024), place);
        // Something is at the address; the size differs; the address is invalid; the trace has no segment. These fill the piece
        // from its beginning.
        let invented =
            [(1, 1024), (2, 1024), (3, 1024), (4, 1024)].map(|(block, bytes)| allocate(block, bytes));
        assert_eq!(invented, [0, 1024, 2048, 3072].map(|offset| BASE + offset));
        assert_eq!(upstream.unscripted_segments(), 4);
        upstream.free(place, 1024, stream).expect("it is out");
        assert_eq!(allocate(1, 1024), place);
        assert_eq!(upstream.take_released(), [(place, 1024)]);
    }

    #[test]
    fn a_page_is_the_same_memory_wherever_it_is_mapped() {
        const MIB: u64 = 1 << 20;
        let upstream = ReplayUpstream::unscripted(1 << 30);
        let pages = [(); 2].map(|()| upstream.create_page(2 * MIB).expect("there is room"));
        let [one, two] = [(); 2].map(|()| upstream.reserve_addresses(16 * MIB).expect("there is room"));
        upstream.map(one, 2 * MIB, &pages).expect("it is reserved");
        upstream.map(two, 2 * MIB, &pages[1..]).expect("it is reserved");
        let across = upstream.physical(one + MIB, 2 * MIB);
        assert_eq!(across, [(place_of(pages[0]) + MIB, MIB), (place_of(pages[1]), MIB)]);
        assert_eq!(upstream.physical(two, MIB), across[1..]);
        assert_eq!(upstream.physical(512, 512), [(512, 512)], "what is not mapped is where it says");
        upstream.unmap(two, 2 * MIB).expect("it is mapped");
        assert_eq!(upstream.take_released(), [], "what is unmapped is still memory");
    }
}
