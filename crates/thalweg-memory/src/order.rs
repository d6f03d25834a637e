//! When may a freed thing be used again?
//!
//! A block belongs to one stream. Freed there, it may be handed out on the same stream at once: the stream's own order puts
//! the new use behind the old one. If other streams used it too (`record_stream`), each of them must be past that use
//! first. So a free with uses records one event a stream, behind the stream's work so far, and the block waits until all
//! its events have come to pass.
//!
//! ```text
//!              no uses                                        ┌──────────────┐
//! free ────────────────────────────────────────────────────▶  │              │
//!   │  uses                 record                all passed  │  may be used │
//!   └─────────▶ unrecorded ────────▶ events queued ─────────▶ │    again     │
//!                  ▲    │            (FIFO a stream)          └──────────────┘
//!                  └────┘ a capture is under way, or recording failed: tried again later
//! ```
//!
//! Invariants:
//!
//! - What waits is in `pending`, with the number of its queued events and the uses that have no event yet; it becomes
//!   `ready` when both are none.
//! - Events of one stream pass in the order in which they were recorded, so that only the head of a queue is asked for.
//! - While a capture is under way no event is recorded, queried or waited for: a recorded event would become part of the
//!   graph. Uses wait, unrecorded, until it ends. An event recorded later stands behind more work than needed, never less.
//! - The state is valid at each call of the upstream: a call that fails or panics loses nothing.
//!
//! What this module never sees: an address, a size, a pool. `T` is a name that its owner understands.

use std::collections::{BTreeMap, VecDeque};
use std::hash::Hash;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::upstream::{EventId, Events, StreamId, UpstreamError};

/// The streams, other than its own, that used a block. No stream twice.
pub(crate) type Uses = SmallVec<[StreamId; 2]>;

#[derive(Debug)]
struct Pending {
    queued_events: usize,
    unrecorded: Uses,
}

/// The frees that wait.
#[derive(Debug)]
pub(crate) struct Order<T> {
    pending: FxHashMap<T, Pending>,
    /// Those of `pending` that have uses without an event, oldest first.
    unrecorded: VecDeque<T>,
    queues: BTreeMap<StreamId, VecDeque<(EventId, T)>>,
    ready: VecDeque<T>,
    captures: usize,
}

impl<T> Default for Order<T> {
    fn default() -> Self {
        Self {
            pending: FxHashMap::default(),
            unrecorded: VecDeque::new(),
            queues: BTreeMap::new(),
            ready: VecDeque::new(),
            captures: 0,
        }
    }
}

impl<T: Copy + Eq + Hash> Order<T> {
    /// Frees `freed` behind its uses. It comes out of [`pop_ready`](Self::pop_ready), some day.
    pub(crate) fn free(&mut self, freed: T, uses: Uses, events: &dyn Events) {
        if uses.is_empty() {
            self.ready.push_back(freed);
            return;
        }
        let before = self.pending.insert(freed, Pending { queued_events: 0, unrecorded: uses });
        assert!(before.is_none(), "a block is freed once");
        self.unrecorded.push_back(freed);
        if self.captures == 0 && self.record_uses(freed, events) {
            self.unrecorded.pop_back();
        }
    }

    /// What may be used again now; the oldest first. The caller empties this after every call that may add to it.
    pub(crate) fn pop_ready(&mut self) -> Option<T> {
        self.ready.pop_front()
    }

    /// Looks how far the streams have come, without waiting. Does nothing while a capture is under way.
    ///
    /// An event that cannot be asked for counts as not passed: this is housekeeping on the way to something else, which must
    /// not fail for it.
    pub(crate) fn process(&mut self, events: &dyn Events) {
        if self.captures > 0 || self.pending.is_empty() {
            return;
        }
        self.record_all(events);
        let Self { pending, queues, ready, .. } = self;
        for queue in queues.values_mut() {
            while let Some(&(event, freed)) = queue.front()
                && matches!(events.query_event(event), Ok(true))
            {
                queue.pop_front();
                settle(pending, ready, freed);
                events.release_event(event);
            }
        }
        queues.retain(|_, queue| !queue.is_empty());
    }

    /// *Blocks* until all queued events have passed. A use whose event cannot be recorded goes on waiting.
    ///
    /// # Errors
    /// The first failure to wait; what was passed before is ready, the rest stays queued.
    ///
    /// # Panics
    /// While a capture is under way.
    pub(crate) fn synchronize(&mut self, events: &dyn Events) -> Result<(), UpstreamError> {
        assert!(self.captures == 0, "nothing waits for an event while a capture is under way");
        self.record_all(events);
        let Self { pending, queues, ready, .. } = self;
        for queue in queues.values_mut() {
            while let Some(&(event, freed)) = queue.front() {
                events.synchronize_event(event)?;
                queue.pop_front();
                settle(pending, ready, freed);
                events.release_event(event);
            }
        }
        queues.clear();
        Ok(())
    }

    /// Gives all queued events back, passed or not. What waited for them waits for ever: this is for the end only.
    pub(crate) fn abandon(&mut self, events: &dyn Events) {
        while let Some((_, queue)) = self.queues.pop_first() {
            queue.into_iter().for_each(|(event, _)| events.release_event(event));
        }
    }

    /// From here to the matching [`end_capture`](Self::end_capture) no event is touched.
    pub(crate) fn begin_capture(&mut self) {
        self.captures += 1;
    }

    /// Ends one capture. If it was the last, what waited for that is recorded.
    pub(crate) fn end_capture(&mut self, events: &dyn Events) {
        self.captures = self.captures.checked_sub(1).expect("a capture ends once");
        if self.captures == 0 {
            self.record_all(events);
        }
    }

    pub(crate) fn is_capturing(&self) -> bool {
        self.captures > 0
    }

    /// Whether `freed` was freed and waits.
    pub(crate) fn is_pending(&self, freed: T) -> bool {
        self.pending.contains_key(&freed)
    }

    fn record_all(&mut self, events: &dyn Events) {
        for _ in 0..self.unrecorded.len() {
            let freed = self.unrecorded[0];
            if self.record_uses(freed, events) {
                self.unrecorded.pop_front();
            } else {
                self.unrecorded.rotate_left(1);
            }
        }
    }

    /// Records the events that `freed` lacks; whether it has them all now.
    fn record_uses(&mut self, freed: T, events: &dyn Events) -> bool {
        let pending = self.pending.get_mut(&freed).expect("what has unrecorded uses is pending");
        while let Some(&stream) = pending.unrecorded.last() {
            let Ok(event) = events.record_event(stream) else { return false };
            pending.unrecorded.pop();
            pending.queued_events += 1;
            self.queues.entry(stream).or_default().push_back((event, freed));
        }
        true
    }
}

/// One event of `freed` has passed.
fn settle<T: Copy + Eq + Hash>(pending: &mut FxHashMap<T, Pending>, ready: &mut VecDeque<T>, freed: T) {
    let waiting = pending.get_mut(&freed).expect("what has a queued event is pending");
    waiting.queued_events -= 1;
    if waiting.queued_events == 0 && waiting.unrecorded.is_empty() {
        pending.remove(&freed);
        ready.push_back(freed);
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::fake::{FakeUpstream, Fault};

    fn stream(number: u64) -> StreamId {
        StreamId::from_raw(number)
    }

    fn ready(order: &mut Order<u32>) -> Vec<u32> {
        std::iter::from_fn(|| order.pop_ready()).collect()
    }

    #[test]
    fn a_use_on_two_streams_waits_for_both() {
        let upstream = FakeUpstream::new(0);
        let mut order = Order::default();
        order.free(1, smallvec![stream(1), stream(2)], &upstream);
        order.free(2, smallvec![], &upstream);
        assert_eq!(ready(&mut order), [2]);
        upstream.complete_stream(stream(2));
        order.process(&upstream);
        assert_eq!(ready(&mut order), []);
        upstream.complete_stream(stream(1));
        order.process(&upstream);
        assert_eq!(ready(&mut order), [1]);
        assert_eq!(upstream.live_events(), 0);
    }

    #[test]
    fn only_the_head_of_a_queue_is_asked_for() {
        let upstream = FakeUpstream::new(0);
        let mut order = Order::default();
        for freed in 0..10 {
            order.free(freed, smallvec![stream(1)], &upstream);
        }
        order.process(&upstream);
        assert_eq!(upstream.calls().query_event, 1);
        upstream.complete_next(stream(1));
        order.process(&upstream);
        assert_eq!(ready(&mut order), [0]);
        assert_eq!(upstream.calls().query_event, 3);
    }

    #[test]
    fn a_use_whose_event_could_not_be_recorded_is_not_forgotten() {
        let upstream = FakeUpstream::new(0);
        let mut order = Order::default();
        upstream.fail_call(2, Fault::Other);
        order.free(1, smallvec![stream(1), stream(2)], &upstream);
        assert_eq!(upstream.live_events(), 1, "the other stream's event was recorded before the failure");
        upstream.complete_all();
        upstream.fail_call(1, Fault::Other);
        order.process(&upstream);
        assert!(order.is_pending(1), "one event has passed, but the other use has none yet");
        order.process(&upstream);
        assert_eq!(ready(&mut order), [], "the late event stands behind work that is still running");
        upstream.complete_all();
        order.process(&upstream);
        assert_eq!(ready(&mut order), [1]);
    }

    #[test]
    fn nothing_touches_events_during_a_capture() {
        let upstream = FakeUpstream::new(0);
        let mut order = Order::default();
        order.free(1, smallvec![stream(1)], &upstream);
        upstream.complete_all();
        order.begin_capture();
        order.begin_capture();
        let before = upstream.calls();
        order.free(2, smallvec![stream(1)], &upstream);
        order.process(&upstream);
        order.end_capture(&upstream);
        order.process(&upstream);
        assert_eq!(upstream.calls(), before);
        order.end_capture(&upstream);
        assert_eq!(upstream.calls().record_event, 2);
        order.synchronize(&upstream).expect("the fake does not fail");
        assert_eq!(ready(&mut order), [1, 2]);
    }
}
