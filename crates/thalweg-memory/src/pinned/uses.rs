//! The streams that use a block of pinned memory, and when they have finished with it.
//!
//! Pinned memory belongs to no stream. Each stream that copies to or from it is a *use* of the block, which is recorded in one of
//! two ways: *precisely*, by an event recorded at once, after the copy; or by a *mark*, whose event is recorded when the block is
//! freed, after all work of the stream so far. A block has one use per stream: a later precise use replaces an earlier one, and a
//! mark replaces both, because the event of a mark follows theirs.
//!
//! A freed block whose uses all have events is [`Waiting`]: it is returned when every one of them has passed.
//!
//! ```text
//! record_use ─▶ event ─┐                                ┌─▶ every event passed: free
//!                      ├─ freed: marks get events ─ waiting
//! record_stream ▶ mark ┘                                └─▶ an event failed:    retired
//! ```
//!
//! Invariants:
//!
//! - The events of one stream are queried in the order in which they were recorded, whatever order the blocks were freed in: each
//!   queue is sorted by the events' numbers. Streams pass their events in order, so that only the head of a queue is queried, and
//!   a head that has not passed delays no event that has. (The number is assigned just after the recording; if two threads record
//!   on one stream at the same moment, two neighbours may be swapped.)
//! - An event that cannot be queried never delays another: its block is retired and the next event is queried.
//! - An [`Event`] is released when it is dropped, once.
//! - The state is valid at each call of the upstream: a call that fails or panics loses nothing.
//!
//! Captures are not handled here: during a capture the owner calls nothing that touches events. Nor is the further use of a block
//! that has finished waiting.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::unsplit::PinnedBlock;
use crate::ids::StreamId;
use crate::upstream::{EventId, HostUpstream, UpstreamError};

/// A recorder of events, which numbers them in the order of recording.
pub(crate) struct Recorder {
    upstream: Arc<dyn HostUpstream>,
    next_number: AtomicU64,
}

impl Recorder {
    pub(crate) fn new(upstream: Arc<dyn HostUpstream>) -> Self {
        Self { upstream, next_number: AtomicU64::new(0) }
    }

    fn record(&self, stream: StreamId) -> Result<Event, UpstreamError> {
        let id = self.upstream.record_event(stream)?;
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        Ok(Event { id, number, upstream: Arc::clone(&self.upstream) })
    }
}

/// A recorded event, released when dropped.
pub(crate) struct Event {
    id: EventId,
    number: u64,
    upstream: Arc<dyn HostUpstream>,
}

impl Drop for Event {
    fn drop(&mut self) {
        self.upstream.release_event(self.id);
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} (number {})", self.id, self.number)
    }
}

/// A stream that uses a block.
#[derive(Debug)]
struct Use {
    stream: StreamId,
    /// The event after the use; `None` for a mark.
    event: Option<Event>,
}

/// The uses of one block: at most one per stream.
#[derive(Default, Debug)]
pub(crate) struct Uses(SmallVec<[Use; 1]>);

impl Uses {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn has_marks(&self) -> bool {
        self.0.iter().any(|used| used.event.is_none())
    }

    /// Records a use whose event is recorded at the free.
    pub(crate) fn mark(&mut self, stream: StreamId) {
        match self.of(stream) {
            Some(used) => used.event = None,
            None => self.0.push(Use { stream, event: None }),
        }
    }

    /// Records the stream's event now. If that fails (or panics), the use is a mark instead: its event is recorded later, and
    /// follows more work than necessary, never less.
    pub(crate) fn record(&mut self, stream: StreamId, recorder: &Recorder) {
        let earlier = match self.of(stream) {
            Some(Use { event: None, .. }) => return,
            Some(used) => used.event.take(),
            None => {
                self.0.push(Use { stream, event: None });
                None
            }
        };
        let recorded = recorder.record(stream);
        drop(earlier);
        if let (Some(used), Ok(event)) = (self.of(stream), recorded) {
            used.event = Some(event);
        }
    }

    /// Records the events of all marks.
    ///
    /// # Errors
    /// Returns the first failure; the marks before it have their events.
    pub(crate) fn record_marks(&mut self, recorder: &Recorder) -> Result<(), UpstreamError> {
        for used in self.0.iter_mut().filter(|used| used.event.is_none()) {
            used.event = Some(recorder.record(used.stream)?);
        }
        Ok(())
    }

    fn of(&mut self, stream: StreamId) -> Option<&mut Use> {
        self.0.iter_mut().find(|used| used.stream == stream)
    }
}

/// The way in which a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitOutcome {
    /// All uses are over.
    Passed,
    /// The end of the uses cannot be determined: the block is never used again.
    Failed,
}

#[derive(Debug)]
struct Waiter {
    block: PinnedBlock,
    events: usize,
}

#[derive(Debug)]
struct Queued {
    event: Event,
    address: u64,
}

/// The freed blocks that wait for events, by stream.
#[derive(Default, Debug)]
pub(crate) struct Waiting {
    /// The waiting blocks, by address.
    blocks: FxHashMap<u64, Waiter>,
    /// The queues of events by stream, each sorted by the events' numbers.
    queues: BTreeMap<StreamId, VecDeque<Queued>>,
    /// Blocks that have finished waiting and were not taken yet.
    settled: VecDeque<(PinnedBlock, WaitOutcome)>,
    bytes: u64,
}

impl Waiting {
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.settled.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns all blocks that wait, or have finished waiting and were not taken yet.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &PinnedBlock> {
        self.blocks.values().map(|waiter| &waiter.block).chain(self.settled.iter().map(|(block, _)| block))
    }

    /// Adds a freed block, all of whose uses have events; there is at least one.
    pub(crate) fn add(&mut self, block: PinnedBlock, uses: Uses) {
        let address = block.address;
        self.bytes += block.size_bytes;
        let uses = uses.0;
        let former = self.blocks.insert(address, Waiter { block, events: uses.len() });
        assert!(former.is_none(), "a block is freed once");
        for Use { stream, event } in uses {
            let event = event.expect("a block waits when all its uses have events");
            let queue = self.queues.entry(stream).or_default();
            let later = queue.iter().rev().take_while(|queued| queued.event.number > event.number).count();
            queue.insert(queue.len() - later, Queued { event, address });
        }
    }

    /// Checks the progress of the streams, without waiting.
    pub(crate) fn poll(&mut self, upstream: &dyn HostUpstream) {
        self.process(|event| upstream.query_event(event));
    }

    /// *Blocks* until all events have passed, or failed.
    pub(crate) fn synchronize(&mut self, upstream: &dyn HostUpstream) {
        self.process(|event| upstream.synchronize_event(event).map(|()| true));
    }

    fn process(&mut self, mut has_passed: impl FnMut(EventId) -> Result<bool, UpstreamError>) {
        let mut next = self.queues.keys().next().copied();
        while let Some(stream) = next {
            while let Some(head) = self.queues.get(&stream).and_then(VecDeque::front) {
                let address = head.address;
                match has_passed(head.event.id) {
                    Ok(false) => break,
                    Ok(true) => self.passed(stream, address),
                    Err(_) => self.failed(address),
                }
            }
            next = self
                .queues
                .range((std::ops::Bound::Excluded(stream), std::ops::Bound::Unbounded))
                .next()
                .map(|(&next, _)| next);
        }
        self.queues.retain(|_, queue| !queue.is_empty());
    }

    /// Removes the head of the stream's queue, an event of this block that has passed.
    fn passed(&mut self, stream: StreamId, address: u64) {
        let head = self.queues.get_mut(&stream).and_then(VecDeque::pop_front);
        let waiter = self.blocks.get_mut(&address).expect("what has a queued event waits");
        waiter.events -= 1;
        if waiter.events == 0 {
            self.settle(address, WaitOutcome::Passed);
        }
        drop(head);
    }

    /// Handles the failure of one of the block's events. The block's other events are not needed any more.
    fn failed(&mut self, address: u64) {
        let mut dropped = Vec::new();
        for queue in self.queues.values_mut() {
            if let Some(position) = queue.iter().position(|queued| queued.address == address) {
                dropped.extend(queue.remove(position));
            }
        }
        self.settle(address, WaitOutcome::Failed);
    }

    fn settle(&mut self, address: u64, outcome: WaitOutcome) {
        let Waiter { block, .. } = self.blocks.remove(&address).expect("a block settles once");
        self.bytes -= block.size_bytes;
        self.settled.push_back((block, outcome));
    }

    /// Takes the oldest block that has finished waiting. The owner empties this after each call above.
    pub(crate) fn pop_settled(&mut self) -> Option<(PinnedBlock, WaitOutcome)> {
        self.settled.pop_front()
    }

    /// Releases all events. Blocks that wait for them wait for ever, so this is only called when the allocator is dropped.
    pub(crate) fn abandon(&mut self) {
        self.queues.clear();
    }
}
