//! The conditions under which a freed block may be used again.
//!
//! A block belongs to one stream, its *own* stream. After a free it may be handed out on the same stream at once: the stream's
//! own order puts the new use after the old one. If other streams used it too, each of them must have finished that use first, or
//! the use must be *ordered before* the reuse: the block's own stream is made to wait, on the device, for the event after the
//! use.
//!
//! There are two ways to record a use:
//!
//! - `record_stream`: the stream is noted, and when the block is freed an event is recorded there, after all its work so far.
//!   That is late, so the event follows more work than necessary.
//! - `record_use`: the event is recorded at the call, right after the use. A later one on the same stream replaces it, so there
//!   is never more than one per stream.
//!
//! ```text
//!              no uses                                        ┌──────────────┐
//! free ────────────────────────────────────────────────────▶  │              │
//!   │  uses                 record                all passed  │  may be used │
//!   └─────────▶ unrecorded ────────▶ events queued ─────────▶ │    again     │
//!                  ▲    │      │          │  own stream waits │              │
//!                  └────┘      │          └─────────────────▶ │              │
//!      a capture is under way, │  own stream has waited, or   │              │
//!      or recording failed     └────────────────────────────▶ │              │
//!                                  the host has seen, a later └──────────────┘
//!                                  event of the same stream
//! ```
//!
//! Invariants:
//!
//! - Each waiting free is in `pending`, with the number of its queued events and the uses that have no event yet; it becomes
//!   `ready` when there are none of either.
//! - The events of one stream are in its queue in the order in which they were recorded, so that only the head is queried, and no
//!   event that has passed waits behind one that has not.
//! - While a capture is under way no event is recorded, queried or waited for: a recorded event would become part of the graph.
//!   Uses by streams of the capture are represented by the graph's own nodes instead (*marks*). They are over when those nodes
//!   are ordered before the own stream's next command ([`Reach`]), or when the capture ends. Other uses wait, unrecorded, until
//!   it ends; an event recorded later follows more work than necessary, never less.
//! - The state is valid at each call of the upstream: a call that fails or panics loses nothing.
//!
//! This module does not handle addresses, sizes or pools. `T` is an identifier that its owner understands.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::reach::Reach;
use crate::ids::StreamId;
use crate::upstream::{Captures, EventId, Events, NodeId, UpstreamError};

/// An event, with its sequence number among all events that one allocator recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Recorded {
    pub(crate) event: EventId,
    pub(crate) sequence: u64,
}

/// The functions of the upstream that frees need, and the state that the pending frees of all arenas of an allocator share.
pub(crate) struct EventContext<'a> {
    pub(crate) events: &'a dyn Events,
    pub(crate) captures: Option<&'a dyn Captures>,
    /// Whether a capture is under way anywhere on the device.
    pub(crate) capturing: bool,
    /// The counter that assigns sequence numbers to recorded events.
    pub(crate) sequence: &'a AtomicU64,
}

impl EventContext<'_> {
    pub(crate) fn record(&self, stream: StreamId) -> Result<Recorded, UpstreamError> {
        // The number is taken first. If two threads record on one stream at the same time, neither order is guaranteed, but one
        // thread's second event has a greater number than its first.
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let event = self.events.record_event(stream)?;
        Ok(Recorded { event, sequence })
    }

    /// Returns the nodes that the next command of `stream` will depend on, if it is part of a capture.
    pub(crate) fn marks(&self, stream: StreamId) -> Option<Vec<NodeId>> {
        let captures = self.captures?;
        captures.capture_of(stream).ok()??;
        captures.terminals(stream).ok()
    }
}

/// The use of a block by one stream other than its own.
#[derive(Debug)]
pub(crate) struct Use {
    pub(crate) stream: StreamId,
    /// Whether an event must be recorded when the block is freed.
    pub(crate) at_free: bool,
    /// Whether a part of the use was outside a capture, so that no graph orders it.
    pub(crate) eager: bool,
    /// The event after the last use that was recorded with `record_use`.
    pub(crate) event: Option<Recorded>,
    /// The graph nodes after the last use that was recorded with `record_use` during a capture.
    pub(crate) marks: Vec<NodeId>,
}

impl Use {
    pub(crate) fn noted(stream: StreamId) -> Self {
        Self { stream, at_free: true, eager: true, event: None, marks: Vec::new() }
    }

    /// Records that the stream may use the block until it is freed.
    pub(crate) fn note(&mut self, capturing: bool) {
        self.at_free = true;
        self.eager |= !capturing;
    }
}

/// The uses of a block by streams other than its own, with at most one entry per stream.
pub(crate) type Uses = Vec<Use>;

/// Returns the entry of `stream`, created if there is none.
pub(crate) fn use_of(uses: &mut Uses, stream: StreamId) -> &mut Use {
    let position = uses.iter().position(|one| one.stream == stream).unwrap_or_else(|| {
        uses.push(Use { stream, at_free: false, eager: false, event: None, marks: Vec::new() });
        uses.len() - 1
    });
    &mut uses[position]
}

#[derive(Debug)]
struct PendingFree<T> {
    freed: T,
    queued_events: usize,
    /// Streams whose event must still be recorded.
    unrecorded: SmallVec<[StreamId; 2]>,
    /// Nodes of a capture that must be ordered before a reuse within it.
    marks: Vec<NodeId>,
}

#[derive(Debug)]
struct Queued {
    recorded: Recorded,
    ticket: u64,
}

/// The frees of one stream that wait for uses on other streams.
#[derive(Debug)]
pub(crate) struct PendingFrees<T> {
    /// The frees by ticket, so the oldest is first.
    pending: BTreeMap<u64, PendingFree<T>>,
    next_ticket: u64,
    /// The tickets in `pending` of frees with uses that have no event, oldest first.
    unrecorded: VecDeque<u64>,
    queues: BTreeMap<StreamId, VecDeque<Queued>>,
    /// The last event of each stream that the host has seen pass or that the own stream has waited for.
    settled: FxHashMap<StreamId, u64>,
    /// Events that the own stream was made to wait for and that the host has not seen pass.
    waits: VecDeque<EventId>,
    /// The number of entries of `pending` that have marks.
    marked: usize,
    reach: Reach,
    ready: VecDeque<T>,
}

impl<T> Default for PendingFrees<T> {
    fn default() -> Self {
        Self {
            pending: BTreeMap::new(),
            next_ticket: 0,
            unrecorded: VecDeque::new(),
            queues: BTreeMap::new(),
            settled: FxHashMap::default(),
            waits: VecDeque::new(),
            marked: 0,
            reach: Reach::default(),
            ready: VecDeque::new(),
        }
    }
}

impl<T: Copy + Eq> PendingFrees<T> {
    /// Frees `freed` after its uses. [`pop_ready`](Self::pop_ready) returns it when they are over.
    pub(crate) fn free(&mut self, freed: T, uses: Uses, context: &EventContext<'_>) {
        let mut pending =
            PendingFree { freed, queued_events: 0, unrecorded: SmallVec::new(), marks: Vec::new() };
        let ticket = self.next_ticket;
        let mut unmarked = SmallVec::<[StreamId; 2]>::new();
        for Use { stream, at_free, eager, event, marks } in uses {
            let in_capture = context.capturing && !eager;
            if let Some(recorded) = event {
                // A later event on the same stream also follows this use, so this event is not needed; a position in a graph does
                // not.
                if (at_free && !in_capture) || self.is_settled(stream, recorded) {
                    context.events.release_event(recorded.event);
                } else {
                    self.enqueue(stream, recorded, ticket);
                    pending.queued_events += 1;
                }
            }
            if at_free {
                pending.unrecorded.push(stream);
                if in_capture {
                    unmarked.push(stream);
                }
            } else {
                pending.marks.extend(marks);
            }
        }
        if pending.queued_events == 0 && pending.unrecorded.is_empty() && pending.marks.is_empty() {
            self.ready.push_back(freed);
            return;
        }
        self.next_ticket += 1;
        self.marked += usize::from(!pending.marks.is_empty());
        let unrecorded = !pending.unrecorded.is_empty();
        self.pending.insert(ticket, pending);
        if !unrecorded {
            return;
        }
        self.unrecorded.push_back(ticket);
        // From here on the upstream is called, and nothing is lost if it fails.
        for stream in unmarked {
            self.mark(ticket, stream, context);
        }
        let has_unrecorded = self.pending.get(&ticket).is_some_and(|pending| !pending.unrecorded.is_empty());
        if !has_unrecorded || (!context.capturing && self.record_uses(ticket, context)) {
            self.unrecorded.pop_back();
        }
    }

    /// Represents a use by nodes of the graph instead of an event, if `stream` is part of a capture.
    fn mark(&mut self, ticket: u64, stream: StreamId, context: &EventContext<'_>) {
        let Some(marks) = context.marks(stream) else { return };
        let pending = self.pending.get_mut(&ticket).expect("it was just put there");
        self.marked += usize::from(pending.marks.is_empty() && !marks.is_empty());
        pending.marks.extend(marks);
        pending.unrecorded.retain(|other| *other != stream);
        self.finish(ticket);
    }

    /// Takes the oldest block that may be used again now. The caller empties this after every call that may add to it.
    #[inline]
    pub(crate) fn pop_ready(&mut self) -> Option<T> {
        self.ready.pop_front()
    }

    /// Returns the oldest block that may be used again now, without removing it.
    #[inline]
    pub(crate) fn first_ready(&self) -> Option<T> {
        self.ready.front().copied()
    }

    /// Returns whether there are ready blocks that were not taken yet.
    #[inline]
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns whether nothing waits and there is no event to poll.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.waits.is_empty()
    }

    /// Returns the waiting blocks, the oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = T> + '_ {
        self.pending.values().map(|pending| pending.freed)
    }

    /// Returns the number of device-side waits that the host has not seen pass.
    pub(crate) fn waits_in_flight(&self) -> usize {
        self.waits.len()
    }

    /// Adds events that the own stream was made to wait for, for another reason. They are released when they have passed.
    pub(crate) fn add_waits(&mut self, events: impl Iterator<Item = EventId>) {
        self.waits.extend(events);
    }

    /// Checks the progress of the streams, without waiting. During a capture this is the progress of its graph.
    ///
    /// An event that cannot be queried counts as not passed: this runs as a part of another operation, which must not fail
    /// because of it.
    pub(crate) fn process(&mut self, own_stream: StreamId, context: &EventContext<'_>) {
        if context.capturing {
            self.process_marks(own_stream, context);
            return;
        }
        self.end_captures(context);
        while let Some(&event) = self.waits.front()
            && matches!(context.events.query_event(event), Ok(true))
        {
            self.waits.pop_front();
            context.events.release_event(event);
        }
        for stream in self.streams() {
            while let Some(&Queued { recorded, .. }) = self.head(stream)
                && let Ok(is_over) = context.events.query_event(recorded.event)
                && is_over
            {
                self.settle_head(stream);
                context.events.release_event(recorded.event);
            }
        }
    }

    /// Records the events that were postponed to the end of captures. No capture is under way any more.
    pub(crate) fn end_captures(&mut self, context: &EventContext<'_>) {
        self.drop_marks();
        self.record_all(context);
    }

    /// *Blocks* until all queued events have passed. A use whose event cannot be recorded keeps waiting.
    ///
    /// # Errors
    /// Returns the first failure to wait; blocks whose events passed before it are ready, the rest stay queued.
    ///
    /// # Panics
    /// While a capture is under way.
    pub(crate) fn synchronize(&mut self, context: &EventContext<'_>) -> Result<(), UpstreamError> {
        assert!(!context.capturing, "nothing waits for an event while a capture is under way");
        self.end_captures(context);
        for stream in self.streams() {
            while let Some(&Queued { recorded, .. }) = self.head(stream) {
                context.events.synchronize_event(recorded.event)?;
                self.settle_head(stream);
                context.events.release_event(recorded.event);
            }
        }
        Ok(())
    }

    /// Makes `own_stream` wait, on the device, for all uses of `freed`, which is then ready; so are all blocks that waited for
    /// earlier events of the same streams. Returns `false` if this is not possible: a use has no event, or `freed` does not wait.
    ///
    /// # Errors
    /// Returns the upstream's error; the waits that were made before it remain.
    pub(crate) fn order_before(
        &mut self,
        freed: T,
        own_stream: StreamId,
        context: &EventContext<'_>,
    ) -> Result<bool, UpstreamError> {
        let Some((&ticket, pending)) = self.pending.iter().find(|(_, pending)| pending.freed == freed) else {
            return Ok(false);
        };
        if context.capturing || !pending.unrecorded.is_empty() || !pending.marks.is_empty() {
            return Ok(false);
        }
        for stream in self.streams() {
            let queue = &self.queues[&stream];
            let Some(last) = queue.iter().rev().find(|queued| queued.ticket == ticket) else { continue };
            let last = last.recorded;
            context.events.wait_event(own_stream, last.event)?;
            // The event is kept until it has passed, so that waits in flight can be counted.
            self.waits.push_back(last.event);
            while let Some(&Queued { recorded, .. }) = self.head(stream)
                && recorded.sequence <= last.sequence
            {
                self.settle_head(stream);
                if recorded.event != last.event {
                    context.events.release_event(recorded.event);
                }
            }
        }
        Ok(true)
    }

    /// Releases all events, whether they have passed or not. Blocks that waited for them wait for ever, so this is only called
    /// when the arena is dropped.
    pub(crate) fn abandon(&mut self, events: &dyn Events) {
        while let Some((_, queue)) = self.queues.pop_first() {
            queue.into_iter().for_each(|queued| events.release_event(queued.recorded.event));
        }
        self.waits.drain(..).for_each(|event| events.release_event(event));
    }

    fn is_settled(&self, stream: StreamId, recorded: Recorded) -> bool {
        self.settled.get(&stream).is_some_and(|&last| recorded.sequence <= last)
    }

    /// Adds an event to its queue, after those that were recorded before it.
    fn enqueue(&mut self, stream: StreamId, recorded: Recorded, ticket: u64) {
        let queue = self.queues.entry(stream).or_default();
        let after =
            queue.iter().rev().take_while(|other| other.recorded.sequence > recorded.sequence).count();
        queue.insert(queue.len() - after, Queued { recorded, ticket });
    }

    /// Returns a copy of the streams that have queues, so that the queues may change during the iteration.
    fn streams(&self) -> SmallVec<[StreamId; 4]> {
        self.queues.keys().copied().collect()
    }

    fn head(&self, stream: StreamId) -> Option<&Queued> {
        self.queues.get(&stream)?.front()
    }

    /// Removes the head of a queue, because its event has passed or the owning stream waits for it.
    fn settle_head(&mut self, stream: StreamId) {
        let queue = self.queues.get_mut(&stream).expect("a queue with a head");
        let Queued { recorded, ticket } = queue.pop_front().expect("a queue with a head");
        if queue.is_empty() {
            self.queues.remove(&stream);
        }
        let last = self.settled.entry(stream).or_default();
        *last = recorded.sequence.max(*last);
        let pending = self.pending.get_mut(&ticket).expect("what has a queued event is pending");
        pending.queued_events -= 1;
        self.finish(ticket);
    }

    /// Makes a pending free ready if it no longer waits for anything.
    fn finish(&mut self, ticket: u64) {
        let pending = &self.pending[&ticket];
        if pending.queued_events == 0 && pending.unrecorded.is_empty() && pending.marks.is_empty() {
            self.ready.push_back(pending.freed);
            self.pending.remove(&ticket);
        }
    }

    fn record_all(&mut self, context: &EventContext<'_>) {
        for _ in 0..self.unrecorded.len() {
            let ticket = self.unrecorded[0];
            if self.record_uses(ticket, context) {
                self.unrecorded.pop_front();
            } else {
                self.unrecorded.rotate_left(1);
            }
        }
    }

    /// Records the events that a free lacks. Returns whether it has all of them now.
    fn record_uses(&mut self, ticket: u64, context: &EventContext<'_>) -> bool {
        loop {
            // Meanwhile all its uses may have been represented by graph nodes, and may be over.
            let Some(pending) = self.pending.get_mut(&ticket) else { return true };
            let Some(&stream) = pending.unrecorded.last() else { return true };
            let Ok(recorded) = context.record(stream) else { return false };
            let left = pending.unrecorded.len() - 1;
            pending.unrecorded.truncate(left);
            pending.queued_events += 1;
            self.enqueue(stream, recorded, ticket);
        }
    }

    /// Makes the blocks ready whose uses the graph under capture orders before the next command of `own_stream`.
    fn process_marks(&mut self, own_stream: StreamId, context: &EventContext<'_>) {
        let Some(captures) = context.captures else { return };
        if self.marked == 0 || !self.reach.advance(own_stream, captures) {
            return;
        }
        let tickets: Vec<u64> = self.pending.keys().copied().collect();
        for ticket in tickets {
            let pending = self.pending.get_mut(&ticket).expect("it was just seen");
            let mut nodes = pending.marks.iter();
            let is_reached = |node: &NodeId| self.reach.contains(*node);
            if !pending.marks.is_empty() && nodes.all(is_reached) {
                pending.marks.clear();
                self.marked -= 1;
                self.finish(ticket);
            }
        }
    }

    /// Forgets the nodes of captures that have ended, since all their streams were joined.
    fn drop_marks(&mut self) {
        if self.marked == 0 {
            return;
        }
        self.marked = 0;
        self.reach = Reach::default();
        let tickets: Vec<u64> = self.pending.keys().copied().collect();
        for ticket in tickets {
            self.pending.get_mut(&ticket).expect("it was just seen").marks.clear();
            self.finish(ticket);
        }
    }
}
