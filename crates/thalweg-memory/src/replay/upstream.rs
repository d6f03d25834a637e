//! The upstream of a replay: invented memory, at the trace's own addresses where that is wanted.
//!
//! It is a [`FakeUpstream`], with two things added. Segments get the addresses that the trace's allocator got for them, as
//! long as it has more of the size that is asked for: then two allocators that follow the same rules agree on every address, also where the
//! rules say "the lowest". And the order between streams is followed: which events a stream was made to wait for, and what
//! was behind those, as vector clocks.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::program::Program;
use crate::fake::FakeUpstream;
use crate::upstream::{
    Captures, EventId, Events, MemoryInfo, PageId, StreamId, StreamOrdered, Upstream, UpstreamError,
    VirtualMemory,
};

/// How far other streams are known to be, by the number of their last event that passed.
type Clock = BTreeMap<StreamId, u64>;

#[derive(Debug, Default)]
struct Inner {
    /// The trace's segments that are still to come.
    script: VecDeque<(u64, u64)>,
    /// The fake's address of a segment that was put at a scripted one.
    moved: BTreeMap<u64, u64>,
    unscripted: usize,
    /// For each stream, what its later work is ordered behind.
    clocks: BTreeMap<StreamId, Clock>,
    /// For each live event, what is behind it: itself too.
    events: BTreeMap<EventId, Clock>,
    released: Vec<(u64, u64)>,
}

/// See the [module](super).
#[derive(Debug)]
pub struct ReplayUpstream {
    fake: FakeUpstream,
    inner: Mutex<Inner>,
}

impl ReplayUpstream {
    /// A device of `total_bytes` on which each segment is where the next one of its size was in the trace of `program`; where
    /// there is none, at an invented address below all of those.
    pub fn scripted(program: &Program, total_bytes: u64) -> Self {
        let script = program.segments().iter().copied().collect();
        Self {
            fake: FakeUpstream::with_virtual_memory(total_bytes),
            inner: Mutex::new(Inner { script, ..Inner::default() }),
        }
    }

    /// A device of `total_bytes` on which segments are at the lowest address that is free.
    pub fn unscripted(total_bytes: u64) -> Self {
        Self { fake: FakeUpstream::with_virtual_memory(total_bytes), inner: Mutex::default() }
    }

    /// How many segments were asked for that the trace does not have.
    pub fn unscripted_segments(&self) -> usize {
        self.lock().unscripted
    }

    /// The fake that invents the memory: for its counts of calls, and for making them fail.
    pub fn fake(&self) -> &FakeUpstream {
        &self.fake
    }

    pub(crate) fn complete_stream(&self, stream: StreamId) {
        self.fake.complete_stream(stream);
    }

    pub(crate) fn recorded_events(&self, stream: StreamId) -> u64 {
        self.fake.recorded_events(stream)
    }

    /// Whether the event of number `place` on `after` is past for what `stream` is given from now on.
    pub(crate) fn is_past(&self, after: StreamId, place: u64, stream: StreamId) -> bool {
        let known = || self.lock().clocks.get(&stream).and_then(|clock| clock.get(&after)).copied();
        self.fake.passed_events(after) >= place || known().is_some_and(|known| known >= place)
    }

    /// The ranges that went back since the last call.
    pub(crate) fn take_released(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.lock().released)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pages(&self) -> &dyn VirtualMemory {
        self.fake.virtual_memory().expect("the replay offers virtual memory only where the fake does")
    }
}

impl Inner {
    /// The address of the trace's next segment of this size.
    fn next_in_script(&mut self, bytes: u64) -> Option<u64> {
        let at = self.script.iter().position(|&(address, scripted_bytes)| {
            // A real driver gives an address out again after it came back; here it may still be out.
            scripted_bytes == bytes && !self.moved.contains_key(&address)
        })?;
        self.script.remove(at).map(|(address, _)| address)
    }
}

/// Raises each entry of `clock` to that of `other`.
fn merge(clock: &mut Clock, other: &Clock) {
    for (&stream, &place) in other {
        let known = clock.entry(stream).or_default();
        *known = place.max(*known);
    }
}

impl Events for ReplayUpstream {
    fn record_event(&self, stream: StreamId) -> Result<EventId, UpstreamError> {
        let event = self.fake.record_event(stream)?;
        let place = self.fake.recorded_events(stream);
        let mut inner = self.lock();
        let mut clock = inner.clocks.get(&stream).cloned().unwrap_or_default();
        clock.insert(stream, place);
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
        let mut inner = self.lock();
        let behind = inner.events.get(&event).cloned().unwrap_or_default();
        merge(inner.clocks.entry(stream).or_default(), &behind);
        Ok(())
    }

    fn release_event(&self, event: EventId) {
        self.lock().events.remove(&event);
        self.fake.release_event(event);
    }
}

impl Upstream for ReplayUpstream {
    fn allocate(&self, bytes: u64, stream: StreamId) -> Result<u64, UpstreamError> {
        let invented = self.fake.allocate(bytes, stream)?;
        let mut inner = self.lock();
        let Some(address) = inner.next_in_script(bytes) else {
            inner.unscripted += 1;
            return Ok(invented);
        };
        inner.moved.insert(address, invented);
        Ok(address)
    }

    fn free(&self, address: u64, bytes: u64, stream: StreamId) -> Result<(), UpstreamError> {
        let invented = self.lock().moved.get(&address).copied().unwrap_or(address);
        self.fake.free(invented, bytes, stream)?;
        let mut inner = self.lock();
        inner.moved.remove(&address);
        inner.released.push((address, bytes));
        Ok(())
    }

    fn memory_info(&self) -> Result<MemoryInfo, UpstreamError> {
        self.fake.memory_info()
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

/// The fake's, and what is unmapped counts as given back.
impl VirtualMemory for ReplayUpstream {
    fn granularity_bytes(&self) -> u64 {
        self.pages().granularity_bytes()
    }

    fn reserve_addresses(&self, bytes: u64) -> Result<u64, UpstreamError> {
        self.pages().reserve_addresses(bytes)
    }

    fn free_addresses(&self, address: u64, bytes: u64) -> Result<(), UpstreamError> {
        self.pages().free_addresses(address, bytes)
    }

    fn create_page(&self, bytes: u64) -> Result<PageId, UpstreamError> {
        self.pages().create_page(bytes)
    }

    fn destroy_page(&self, page: PageId) -> Result<(), UpstreamError> {
        self.pages().destroy_page(page)
    }

    fn map(&self, address: u64, page_bytes: u64, pages: &[PageId]) -> Result<(), UpstreamError> {
        self.pages().map(address, page_bytes, pages)
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), UpstreamError> {
        self.pages().unmap(address, bytes)?;
        self.lock().released.push((address, bytes));
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
}
