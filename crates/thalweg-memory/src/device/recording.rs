//! The events that an allocator records of its memory, and the snapshots that are made of them.
//!
//! An arena records its events where they happen, under its lock, since only there is their order known. Snapshots read all
//! arenas in turn.
//!
//! What is kept of an event is decided in [`history`](crate::history), and whether it is recorded in
//! [`watch`](crate::trace::watch).

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use thalweg_snapshot::{Action, Frames, Segment, SettingValue, Snapshot};

use super::allocator::DeviceAllocator;
use super::arena::{Arena, ArenaState};
use super::block::Block;
use super::blocks::{BlockId, SegmentId, Span};
use super::gauges::Quantity;
use crate::ids::StreamId;
use crate::policy::Request;
use crate::settings::SnapshotValue;
use crate::trace::history::{
    Event, History, HistorySettings, Merge, Ring, ScopeStage, StackId, StackSource, TextId,
};
use crate::trace::observe::{ObserverId, OutOfMemoryEvent, SnapshotFiles};
use crate::trace::watch::{SnapshotOptions, SnapshotPart};

/// The events of an arena. They are recorded only if the history or an observer needs them.
impl ArenaState {
    /// Records that a caller gets a block.
    #[cold]
    #[inline(never)]
    pub(crate) fn report_allocated(&mut self, arena: &Arena, span: Span, request: &Request) {
        let Request { requested_bytes, stack, exact_address, .. } = *request;
        match stack {
            Some(stack) => self.log.allocations.insert(span.block, stack),
            None => self.log.allocations.remove(&span.block),
        };
        let event = Event {
            exact_address,
            stack,
            ..Event::new(Action::Alloc, span.address, requested_bytes, arena.key.stream)
        };
        self.report_event(arena, event);
    }

    /// Records that a caller freed a block, or that it has become free, or both at the same moment. `stack` is the stack of the
    /// free, if there is one.
    #[cold]
    #[inline(never)]
    pub(crate) fn report_freed(
        &mut self,
        arena: &Arena,
        actions: &[Action],
        block: BlockId,
        stack: Option<StackId>,
    ) {
        let Some(&action) = actions.last() else { return };
        let Span { address, .. } = self.blocks.span(block);
        let bytes = self.blocks.requested_bytes(block).expect("what is freed was taken");
        let allocated_at = match action {
            Action::FreeCompleted => self.log.allocations.remove(&block),
            _ => self.log.allocations.get(&block).copied(),
        };
        let event =
            Event { stack: stack.or(allocated_at), ..Event::new(action, address, bytes, arena.key.stream) };
        self.report_each(arena, event, actions);
    }

    /// Records that memory was taken from the upstream, or moved here.
    pub(crate) fn report_gained(
        &mut self,
        arena: &Arena,
        action: Action,
        span: Span,
        stack: Option<StackId>,
    ) {
        if !arena.common.watch.is_on() {
            return;
        }
        let segment = self.blocks.segment_of(span.block).id;
        // If only the state is recorded, PyTorch reports where live blocks were allocated, and nothing about free memory.
        match stack.filter(|_| arena.common.watch.history.keeps_stacks_of_events()) {
            Some(stack) => self.log.segments.insert(segment, stack),
            None => self.log.segments.remove(&segment),
        };
        self.report(arena, action, span.address, span.size_bytes, stack);
    }

    /// Records that memory is about to be returned to the upstream, or moved away. The block still exists. `stack` is the stack
    /// of the code that returns or moves the memory.
    pub(crate) fn report_lost(&mut self, arena: &Arena, action: Action, span: Span, stack: Option<StackId>) {
        if !arena.common.watch.is_on() {
            return;
        }
        let segment = self.blocks.segment_of(span.block).id;
        let taken_at = match action {
            Action::SegmentFree => self.log.segments.remove(&segment),
            _ => self.log.segments.get(&segment).copied(),
        };
        self.report(arena, action, span.address, span.size_bytes, stack.or(taken_at));
    }

    fn report(&mut self, arena: &Arena, action: Action, address: u64, bytes: u64, stack: Option<StackId>) {
        let event = Event { stack, ..Event::new(action, address, bytes, arena.key.stream) };
        self.report_event(arena, event);
    }

    fn report_event(&mut self, arena: &Arena, event: Event) {
        self.report_each(arena, event, &[event.action]);
    }

    fn report_each(&mut self, arena: &Arena, event: Event, actions: &[Action]) {
        let event = Event { pool_id: arena.key.pool_id(), ..event };
        arena.common.watch.report_each(&mut self.log.ring, &event, actions);
    }

    /// Attaches a text to a block that is taken.
    fn annotate(&mut self, arena: &Arena, block: BlockId, text: &str) {
        let (span, bytes) = (self.blocks.span(block), self.blocks.requested_bytes(block));
        let event = Event {
            stack: self.log.allocations.get(&block).copied(),
            metadata: TextId::of(text),
            ..Event::new(Action::Annotate, span.address, bytes.unwrap_or(0), arena.key.stream)
        };
        self.report_event(arena, event);
    }

    /// Returns the block that contains `address` and that a caller holds.
    fn live_block_at(&self, address: u64) -> Option<BlockId> {
        let within = |from: u64, bytes: u64| (from..from + bytes).contains(&address);
        let segment = self.blocks.segments().find(|segment| within(segment.address, segment.size_bytes))?;
        let block = self.blocks.blocks_of(segment).find(|block| {
            let Span { address: from, size_bytes, .. } = self.blocks.span(*block);
            within(from, size_bytes)
        })?;
        let waits =
            || self.pending.iter().chain(self.deferred.iter().copied()).any(|pending| pending == block);
        let taken = self.blocks.requested_bytes(block).is_some() && !self.stale_mappings.contains_key(&block);
        (taken && !waits()).then_some(block)
    }

    /// Forgets the stack of a segment that no longer exists.
    pub(crate) fn forget_segment(&mut self, segment: SegmentId) {
        self.log.segments.remove(&segment);
    }

    fn forget_stacks(&mut self) {
        self.log.allocations.clear();
        self.log.segments.clear();
    }
}

/// The stacks by address, as noted while a snapshot is taken; names are looked up later.
#[derive(Default)]
struct Stacks {
    blocks: FxHashMap<u64, StackId>,
    /// Segments as the upstream provided them: first address, end, stack.
    segments: Vec<(u64, u64, StackId)>,
}

impl Stacks {
    fn add(&mut self, state: &ArenaState) {
        let address = |block: &BlockId| state.blocks.span(*block).address;
        self.blocks.extend(state.log.allocations.iter().map(|(block, stack)| (address(block), *stack)));
        self.segments.extend(state.blocks.segments().filter_map(|segment| {
            let stack = *state.log.segments.get(&segment.id)?;
            Some((segment.address, segment.address + segment.size_bytes, stack))
        }));
    }

    fn write(mut self, segments: &mut [Segment], history: &History) {
        self.segments.sort_unstable_by_key(|(from, ..)| *from);
        let mut known: FxHashMap<StackId, Frames> = FxHashMap::default();
        let mut frames = |stack| known.entry(stack).or_insert_with(|| history.frames(stack)).clone();
        for segment in segments {
            let after = self.segments.partition_point(|(from, ..)| *from <= segment.address);
            if let Some((_, end, stack)) = after.checked_sub(1).map(|index| self.segments[index])
                && segment.address < end
            {
                segment.frames = frames(stack);
            }
            for block in &mut segment.blocks {
                if let Some(stack) = self.blocks.get(&block.address) {
                    block.frames = frames(*stack);
                }
            }
        }
    }
}

/// History, snapshots and observers.
impl DeviceAllocator {
    /// Begins to record the events of the memory (`torch.cuda.memory._record_memory_history`). Without stacks that costs less
    /// than 100 ns per event. When recording ends, everything that was recorded is forgotten.
    pub fn record_memory_history(&self, settings: HistorySettings) {
        let ((), remembers) = self.common().watch.switch(|watch| watch.history.configure(settings));
        if !remembers {
            for arena in self.common().all_arenas() {
                arena.lock().forget_stacks();
            }
        }
    }

    /// Sets the source of the stacks in the history. It cannot be changed later.
    ///
    /// # Errors
    /// Returns `source` if there is one already.
    pub fn set_stack_source(&self, source: Arc<dyn StackSource>) -> Result<(), Arc<dyn StackSource>> {
        self.common().watch.history.set_stack_source(source)
    }

    /// Adds the pinned memory of `host` to all snapshots from now on, including those that are written when memory runs out. Its
    /// history is recorded by that allocator itself
    /// ([`HostAllocator::record_memory_history`](crate::HostAllocator::record_memory_history)).
    ///
    /// # Errors
    /// Returns `host` if there is one already.
    pub fn attach_host_allocator(&self, host: Arc<dyn SnapshotPart>) -> Result<(), Arc<dyn SnapshotPart>> {
        self.common().watch.pinned.set(host)
    }

    /// Returns everything that is recorded about the memory, in the form of PyTorch's `_snapshot()`: segments and blocks, with
    /// the stacks of their allocation as far as they were recorded, the events, settings and annotations. The snapshot itself is
    /// an event too, the last one in the history of the next snapshot. Pinned memory is included if its allocator is
    /// [attached](Self::attach_host_allocator).
    pub fn memory_snapshot(&self) -> Snapshot {
        self.memory_snapshot_with(&SnapshotOptions::default())
    }

    /// Returns a snapshot as [`memory_snapshot`](Self::memory_snapshot) does, or a part of it.
    pub fn memory_snapshot_with(&self, options: &SnapshotOptions) -> Snapshot {
        let watch = &self.common().watch;
        let device = self.settings().device_number();
        let mut central = self.central();
        let mut merge = options.include_traces.then(|| watch.history.merge());
        let (mut segments, mut stacks) = (Vec::new(), Stacks::default());
        let mut active_bytes = 0;
        let add = |merge: &mut Option<Merge<'_>>, ring: &Ring| {
            if let Some(merge) = merge {
                merge.add(ring);
            }
        };
        for arena in self.common().all_arenas() {
            let state = arena.lock();
            add(&mut merge, &state.log.ring);
            active_bytes += state.gauges.current(Quantity::ActiveBytes);
            if options.pool.is_none() || options.pool == arena.key.owner.pool() {
                segments.extend(state.snapshot(arena.key));
                stacks.add(&state);
            }
        }
        add(&mut merge, &watch.retired());
        add(&mut merge, &central.ring);
        if watch.is_on() {
            let event = Event::new(Action::Snapshot, 0, active_bytes, StreamId::from_raw(0));
            watch.report(&mut central.ring, &event);
        }
        drop(central);
        segments.sort_by_key(|segment| segment.address);
        let mut snapshot = Snapshot {
            allocator_settings: self.settings().allocator_settings().into_iter().map(setting).collect(),
            external_annotations: watch.history.annotations(),
            ..Snapshot::default()
        };
        snapshot.add_segments(device, &segments);
        stacks.write(&mut snapshot.segments, &watch.history);
        if let Some(merge) = merge {
            // The list has an entry for each device up to this one.
            snapshot.device_traces.resize_with(usize::try_from(device).unwrap_or(0), Vec::new);
            snapshot.device_traces.push(merge.finish());
        }
        if let Some(host) = watch.pinned.get() {
            host.add_to_snapshot(&mut snapshot, options);
        }
        snapshot
    }

    /// Returns the stacks that live blocks, segments and events refer to: a stack source that keeps more may forget the rest.
    /// Locks all arenas in turn.
    pub fn stacks_in_use(&self) -> FxHashSet<StackId> {
        let history = &self.common().watch.history;
        let central = self.central();
        let mut used: FxHashSet<StackId> = history.stacks_in(&central.ring).collect();
        used.extend(history.stacks_in(&self.common().watch.retired()));
        for arena in self.common().all_arenas() {
            let state = arena.lock();
            used.extend(state.log.allocations.values().chain(state.log.segments.values()));
            used.extend(history.stacks_in(&state.log.ring));
        }
        used
    }

    /// Returns the stack of the allocation of the live block that contains `address`; `None` if there is no such block, or no
    /// stack was recorded. Searches all blocks.
    pub fn allocation_traceback(&self, address: u64) -> Option<Frames> {
        let stack = self.common().all_arenas().into_iter().find_map(|arena| {
            let state = arena.lock();
            let block = state.live_block_at(address)?;
            state.log.allocations.get(&block).copied()
        })?;
        Some(self.common().watch.history.frames(stack))
    }

    /// Attaches `text` to the live block that contains `address`, in the history. Returns whether there is such a block. Searches
    /// all blocks, which [`Block::annotate`] does not.
    pub fn annotate(&self, address: u64, text: &str) -> bool {
        self.common().all_arenas().into_iter().any(|arena| {
            let mut state = arena.lock();
            let Some(block) = state.live_block_at(address) else { return false };
            if arena.common.watch.is_on() {
                state.annotate(&arena, block, text);
            }
            true
        })
    }

    /// Records the start or the end of a scope of the program, if the history's `record_annotations` is set.
    pub fn annotate_scope(&self, name: &str, stage: ScopeStage) {
        self.common().watch.history.annotate_scope(name, stage, self.settings().device_number());
    }

    /// Adds an observer that is called for every event from now on, recorded or not, with the lock of its memory held. The
    /// observer may drop blocks. Other calls of an allocator are refused, with an error
    /// ([`is_invalid_argument`](crate::AllocationError::is_invalid_argument)) or, if a call returns none, by a panic. A panic of
    /// the observer reaches only the panic hook.
    pub fn add_event_observer(&self, observer: impl Fn(&Event) + Send + Sync + 'static) -> ObserverId {
        self.common().watch.note_calls_out();
        self.common().watch.switch(|watch| watch.events.add(observer)).0
    }

    /// Removes an observer. Returns whether it was registered.
    pub fn remove_event_observer(&self, observer: ObserverId) -> bool {
        self.common().watch.switch(|watch| watch.events.remove(observer)).0
    }

    /// Adds an observer that is called for every request that fails for lack of memory, after everything has been tried, on the
    /// requesting thread, with no lock held.
    pub fn add_out_of_memory_observer(
        &self,
        observer: impl Fn(&OutOfMemoryEvent) + Send + Sync + 'static,
    ) -> ObserverId {
        self.common().watch.failures.add(observer)
    }

    /// Removes an observer. Returns whether it was registered.
    pub fn remove_out_of_memory_observer(&self, observer: ObserverId) -> bool {
        self.common().watch.failures.remove(observer)
    }

    /// Adds an observer that is called for every request that is refused because of the memory fraction before anything is tried
    /// (`throw_on_cudamalloc_oom`), in the same way as [`add_out_of_memory_observer`](Self::add_out_of_memory_observer).
    pub fn add_rejection_observer(
        &self,
        observer: impl Fn(&OutOfMemoryEvent) + Send + Sync + 'static,
    ) -> ObserverId {
        self.common().watch.rejections.add(observer)
    }

    /// Writes a snapshot into these files when a request fails for lack of memory; `None` ends that. The error names the file, or
    /// the reason why it was not written.
    pub fn write_snapshots_on_out_of_memory(&self, files: Option<SnapshotFiles>) {
        *self.common().watch.files.lock() = files.map(Arc::new);
    }
}

impl Block {
    /// Attaches `text` to this block, in the history: as a separate event, in addition to the record of its allocation.
    pub fn annotate(&self, text: &str) {
        let (arena, block) = self.place();
        if !arena.common.watch.is_on() {
            return;
        }
        let mut state = arena.lock();
        if let Some(block) = block.filter(|block| !state.is_revoked(*block)) {
            state.annotate(arena, block, text);
        }
    }
}

fn setting((name, value): (&'static str, SnapshotValue)) -> (Arc<str>, SettingValue) {
    let value = match value {
        SnapshotValue::Boolean(value) => SettingValue::Bool(value),
        SnapshotValue::Integer(value) => SettingValue::Int(value),
        SnapshotValue::Number(value) => SettingValue::Float(value),
        SnapshotValue::Text(text) => SettingValue::Text(text.into()),
        SnapshotValue::Table(rows) => {
            SettingValue::Table(rows.into_iter().map(|(name, value)| (name.into(), value)).collect())
        }
    };
    (name.into(), value)
}
