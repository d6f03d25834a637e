//! The events that a bucket records of its blocks.

use rustc_hash::FxHashMap;
use thalweg_snapshot::Action;

use super::unsplit::PinnedBlock;
use crate::ids::StreamId;
use crate::trace::history::{Event, History, Ring, StackId, TextId};

/// The stream in records: pinned memory belongs to no stream.
pub(crate) const NO_STREAM: StreamId = StreamId::from_raw(0);

/// A block that was handed out while something was recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holding {
    pub(crate) requested_bytes: u64,
    /// The stack of the allocation, if stacks are recorded.
    pub(crate) stack: Option<StackId>,
}

/// The events that a bucket records.
#[derive(Default, Debug)]
pub(crate) struct Log {
    pub(crate) pool_id: (u64, u64),
    pub(crate) ring: Ring,
    /// The blocks that are not free again, by address.
    pub(crate) held: FxHashMap<u64, Holding>,
}

impl Log {
    /// Records that a caller gets a block.
    #[cold]
    #[inline(never)]
    pub(crate) fn report_allocated(&mut self, history: &History, block: PinnedBlock, stack: Option<StackId>) {
        self.held.insert(block.address, Holding { requested_bytes: block.requested_bytes, stack });
        self.report(history, Event { stack, ..event(Action::Alloc, block, self.pool_id) });
    }

    /// Records that a caller freed a block, or that the block has become free. `stack` is the stack of the free, if there is one.
    #[cold]
    #[inline(never)]
    pub(crate) fn report_freed(
        &mut self,
        history: &History,
        action: Action,
        block: PinnedBlock,
        pool_id: (u64, u64),
        stack: Option<StackId>,
    ) {
        let holding = match action {
            Action::FreeCompleted => self.held.remove(&block.address),
            _ => self.held.get(&block.address).copied(),
        };
        let stack = stack.or_else(|| holding?.stack);
        self.report(history, Event { stack, ..event(action, block, pool_id) });
    }

    pub(crate) fn annotate(&mut self, history: &History, block: PinnedBlock, text: &str) {
        let stack = self.held.get(&block.address).and_then(|holding| holding.stack);
        let metadata = TextId::of(text);
        self.report(history, Event { stack, metadata, ..event(Action::Annotate, block, self.pool_id) });
    }

    fn report(&mut self, history: &History, event: Event) {
        self.ring.push(history, &event);
    }
}

fn event(action: Action, block: PinnedBlock, pool_id: (u64, u64)) -> Event {
    Event { pool_id, ..Event::new(action, block.address, block.requested_bytes, NO_STREAM) }
}
