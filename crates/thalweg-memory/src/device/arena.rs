//! One pool's memory on one stream, guarded by one lock.
//!
//! An [`Arena`] consists of parts that are responsible for one thing each and do not depend on the others:
//! [`blocks`](super::blocks) for the addresses, [`bins`](super::bins) for the free blocks by size, [`pending`](super::pending)
//! for the events, [`gauges`](super::gauges) for the sums. This module moves a block through all of them. Streams share nothing
//! here: each has its own arenas, and an allocation that the arena can serve touches nothing else.
//!
//! Invariants, which hold whenever the upstream is called:
//!
//! - A block is free and in exactly one bin, or unmapped and in the map of unmapped blocks, or taken and in neither. A taken
//!   block is held by a caller, or pending, or a *stale mapping*: a range whose pages have moved away, but which work in flight
//!   may still touch through its old address.
//! - The gauges agree with the present blocks.
//! # Locks
//!
//! An arena's lock is held during an operation on it, which in steady state makes no driver call. No thread holds two arenas'
//! locks. A thread that holds the lock of the slow path ([`slow_path`](super::slow_path)) may take an arena's; never the other
//! way round. A panic of the upstream poisons nothing: the state is valid at every call of the upstream, and our own checks run
//! before the change that they guard. An arena is nearly always used by one thread, so its lock is biased towards that thread
//! ([`BiasedMutex`]).
//!
//! A block's reference to its arena is not counted each time ([`references`](super::references)).
//!
//! The sources of memory when no free block serves a request are in [`expandable`](super::expandable).

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use thalweg_lock::{BiasedMutex, BiasedMutexGuard, OwnedGuard};
use thalweg_snapshot::{Action, BlockSnapshot, BlockState, SegmentSnapshot};

use super::bins::{self, Bins, Entry};
use super::blocks::{BlockId, BlockUse, Blocks, Merged, SegmentId, Span};
use super::common::Common;
use super::gauges::{Gauges, Quantity};
use super::inbox::Inbox;
use super::pages::{Idle, PageTable, StaleMapping};
use super::pending::{PendingFrees, Uses};
use super::reentry::Outside;
use super::references::LeftReferences;
use crate::error::AllocationError;
use crate::graph_pools::liveness::LivenessWatch;
use crate::ids::{ArenaKey, Owner, SegmentKind, SizeClass, StreamId};
use crate::policy::{self, Policy, Request};
use crate::trace::history::StackId;
use crate::trace::watch::Log;
use crate::upstream::{SegmentSource, UpstreamError};

/// One pool's memory on one stream.
pub(crate) struct Arena {
    pub(crate) number: u64,
    pub(crate) key: ArenaKey,
    pub(crate) common: Arc<Common>,
    /// The source of the arena's segments; the upstream if `None`.
    pub(crate) source: Option<Arc<dyn SegmentSource>>,
    state: BiasedMutex<ArenaState>,
    returned: Inbox<(BlockId, Uses, Option<StackId>)>,
}

impl Arena {
    pub(crate) fn new(
        common: &Arc<Common>,
        key: ArenaKey,
        source: Option<Arc<dyn SegmentSource>>,
        policy: Policy,
    ) -> Arc<Self> {
        common.add(|number| Self {
            number,
            key,
            common: Arc::clone(common),
            source,
            state: BiasedMutex::new(ArenaState::new(policy)),
            returned: Inbox::default(),
        })
    }

    /// Returns the state with every free block in its bin, after processing the blocks that were dropped while the lock was
    /// taken.
    pub(crate) fn lock(&self) -> BiasedMutexGuard<'_, ArenaState> {
        let mut state = self.lock_keeping_last_freed();
        state.bin_last_freed(self);
        state
    }

    /// Locks the state as [`lock`](Self::lock) does, except that the last-freed block may still be in no bin.
    #[inline]
    pub(crate) fn lock_keeping_last_freed(&self) -> BiasedMutexGuard<'_, ArenaState> {
        let mut state = self.state();
        // Checked under the lock, which guards it: no change of the gauges is ever in progress while another arena is exclusive.
        while !self.common.totals.is_quiet(self.number) {
            drop(state);
            self.turn_to();
            state = self.state();
        }
        if !self.returned.is_empty() || state.pending.has_ready() {
            self.take_in(&mut state);
        }
        state
    }

    #[cold]
    fn turn_to(&self) {
        let turned = self.common.totals.turn_to(self.number, true, &self.common.with());
        debug_assert!(turned, "an arena that is used is there");
    }

    /// Locks the state if that does not block, and keeps the reference to the arena; returns the reference if the lock is taken.
    #[inline]
    fn try_lock(arena: Arc<Self>) -> Result<OwnedGuard<Self, ArenaState>, Arc<Self>> {
        let state = OwnedGuard::try_lock(arena, |arena| &arena.state)?;
        match state.owner() {
            arena if arena.common.totals.is_quiet(arena.number) => Ok(state),
            _ => Self::try_to_turn_to(state),
        }
    }

    #[cold]
    #[inline(never)]
    fn try_to_turn_to(
        state: OwnedGuard<Self, ArenaState>,
    ) -> Result<OwnedGuard<Self, ArenaState>, Arc<Self>> {
        let arena = state.unlock();
        let with =
            |number, change: &mut dyn FnMut(&mut Gauges)| arena.common.try_change_gauges(number, change);
        arena.common.totals.turn_to(arena.number, false, &with);
        let state = OwnedGuard::try_lock(arena, |arena| &arena.state)?;
        match state.owner() {
            arena if arena.common.totals.is_quiet(arena.number) => Ok(state),
            _ => Err(state.unlock()),
        }
    }

    /// Returns the state without processing dropped blocks. The totals use this to read gauges, so no lock of the totals may be
    /// taken under it.
    #[inline]
    pub(crate) fn state(&self) -> BiasedMutexGuard<'_, ArenaState> {
        self.state.lock()
    }

    /// Locks the state as it is; `None` if the lock is taken.
    #[inline]
    pub(crate) fn try_state(&self) -> Option<BiasedMutexGuard<'_, ArenaState>> {
        self.state.try_lock()
    }

    pub(crate) fn has_empty_inbox(&self) -> bool {
        self.returned.is_empty()
    }

    /// Returns whether blocks here wait for other streams, or to be processed. This check is cheaper than locking the arena.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.returned.is_empty() || !self.state().pending.is_idle()
    }

    #[cold]
    fn take_in(&self, state: &mut ArenaState) {
        while let Some((block, uses, stack)) = self.returned.pop() {
            state.free(self, block, uses, stack);
        }
        // Only a panic of the upstream leaves ready blocks here.
        state.collect_ready(self);
    }

    /// Takes a block back: at once if the lock is free, otherwise at the next call. The reference that the block held is kept for
    /// the next block, unless the arena is closed.
    #[inline]
    pub(crate) fn take_back(arena: Arc<Self>, block: BlockId, uses: Uses) {
        let stack = arena.common.watch.stack_of_free();
        match Self::try_lock(arena) {
            Ok(mut state) => {
                let (inside, arena) = state.parts();
                inside.free(arena, block, uses, stack);
                if !inside.references.is_closed() {
                    state.leave(|state| state.references.left());
                }
            }
            Err(arena) => {
                arena.returned.push((block, uses, stack));
                arena.common.pending_lists.waiting.insert(arena.number);
            }
        }
    }

    /// Drops the references that were left here and accepts no more, so that the arena lives only as long as something else
    /// refers to it. Called by the owner of an arena when it drops the arena.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        let left = state.references.close();
        drop(state);
        drop(left);
    }

    /// Removes the uses by the block's own stream, which need no event: the stream's order is enough.
    pub(crate) fn forget_own_use(&self, uses: &mut Uses) {
        uses.retain(|one| {
            let own = one.stream == self.key.stream;
            if let Some(recorded) = one.event.filter(|_| own) {
                self.common.upstream.release_event(recorded.event);
            }
            !own
        });
    }

    /// Adds streams whose work may touch the memory that is free here: it returns to the upstream only after that work. Does not
    /// call the upstream.
    pub(crate) fn add_users(&self, streams: &[StreamId]) {
        let mut state = self.state();
        for stream in streams.iter().filter(|stream| **stream != self.key.stream) {
            if !state.users.contains(stream) {
                state.users.push(*stream);
            }
        }
    }

    /// *Blocks* until no work touches the free memory of this arena.
    pub(crate) fn wait_for_users(&self, state: &ArenaState) -> Result<(), UpstreamError> {
        let Some(memory) = self.common.upstream.virtual_memory() else { return Ok(()) };
        let unrecorded = self.common.unrecorded_users();
        let mut streams = state.users.iter().chain([&self.key.stream]);
        let may_end = |stream: &&StreamId| self.common.upstream.may_end(**stream);
        if let Some(stream) = streams.clone().chain(&unrecorded).find(may_end) {
            // This waits for the entire device, and therefore for the other streams too.
            return self.common.synchronize_stream(memory, *stream);
        }
        unrecorded.iter().for_each(|stream| drop(memory.synchronize_stream(*stream)));
        streams.try_for_each(|stream| memory.synchronize_stream(*stream))
    }

    /// Processes the frees that waited for the end of captures. No capture is under way any more.
    pub(crate) fn end_captures(&self) {
        let mut state = self.lock();
        state.pending.end_captures(&self.common.event_context());
        state.release_deferred(self);
        state.collect_ready(self);
    }

    /// *Blocks* until all pending events have passed.
    ///
    /// # Errors
    /// Returns the upstream's error; blocks whose events passed before it are free.
    pub(crate) fn synchronize(&self) -> Result<(), AllocationError> {
        let mut state = self.lock();
        let waited = state.pending.synchronize(&self.common.event_context());
        state.collect_ready(self);
        waited.map_err(|error| AllocationError::upstream("synchronize_event", error))
    }

    /// Returns whether the arena is empty. If it is, adds the sums of its figures to the totals.
    pub(crate) fn forget_if_empty(&self) -> bool {
        let mut state = self.lock();
        if state.blocks.segments().next().is_some() {
            return false;
        }
        state.abandon(self);
        drop(state);
        self.common.totals.forget(&|change| change(&mut self.state().gauges));
        true
    }

    /// Frees all memory when the arena is dropped. There is no caller to report a refusal of the upstream to:
    /// the usual reason is a lost device, whose memory is lost too. *Blocks*.
    fn release_everything(&self) {
        let _gate = self.common.hold_gate();
        let mut state = self.state();
        self.take_in(&mut state);
        state.bin_last_freed(self);
        let context = self.common.event_context();
        if !context.capturing {
            // A failed wait leaves blocks pending. Their segments are freed nevertheless: the upstream itself waits for work.
            let _ = state.pending.synchronize(&context);
            state.collect_ready(self);
        }
        state.abandon(self);
        let memory = self.common.upstream.virtual_memory();
        if !state.pages.is_empty() {
            let _ = self.wait_for_users(&state);
        }
        let had_pages = !state.pages.is_empty();
        let segments: Vec<_> = state.blocks.segments().collect();
        for segment in segments {
            match (memory, segment.tag.is_expandable) {
                (Some(memory), true) => state.destroy_expandable(self, segment, memory),
                _ => drop(self.return_segment(segment.address, segment.size_bytes)),
            }
        }
        self.common.watch.retire(&state.log.ring);
        drop(state);
        // An arena with memory is dropped after the allocator, when nothing is counted any more. An arena without memory, such as
        // that of a forgotten pool, does not free the spare pages.
        if let Some(memory) = memory.filter(|_| had_pages) {
            let _ = self.common.destroy_spare_pages(memory, |_| {});
        }
    }

    /// Takes a plain segment from this arena's source of segments.
    pub(crate) fn take_segment(&self, bytes: u64) -> Result<u64, UpstreamError> {
        let address = match &self.source {
            Some(source) => {
                let _outside = Outside::enter();
                source.allocate(bytes, self.key.stream)
            }
            None => self.common.upstream.allocate(bytes, self.key.stream),
        }?;
        bins::checked(address, bytes, || self.return_segment(address, bytes))
    }

    /// Frees a plain segment by handing it to its source.
    pub(crate) fn return_segment(&self, address: u64, size_bytes: u64) -> Result<(), UpstreamError> {
        match &self.source {
            Some(source) => {
                let _outside = Outside::enter();
                source.free(address, size_bytes, self.key.stream)
            }
            None => self.common.upstream.free(address, size_bytes, self.key.stream),
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // No block is left, so no thread uses the arena.
        self.release_everything();
        self.common.forget(self);
    }
}

/// The state guarded by an arena's lock.
pub(crate) struct ArenaState {
    pub(crate) policy: Policy,
    pub(crate) blocks: Blocks<SegmentKind>,
    /// The free blocks by size class, as in the fields below.
    pub(crate) free: [Bins; 2],
    /// Unmapped blocks by address.
    pub(crate) unmapped: [BTreeMap<u64, BlockId>; 2],
    /// The number of searches for a free block that this arena has seen: the clock by which cached blocks age
    /// ([`now`](Self::now)).
    pub(crate) searches: [u64; 2],
    /// The physical pages of expandable segments.
    pub(crate) pages: FxHashMap<SegmentId, PageTable>,
    /// Ranges whose pages have moved away, but that are still mapped.
    pub(crate) stale_mappings: FxHashMap<BlockId, StaleMapping>,
    /// Blocks without an address range: their memory was taken back while a caller held them
    /// ([`checkpoint`](crate::graph_pools::checkpoint)).
    pub(crate) revoked: FxHashSet<BlockId>,
    /// The watches to notify when a block is freed ([`liveness`](crate::graph_pools::liveness)).
    pub(crate) watched: FxHashMap<BlockId, Vec<Arc<LivenessWatch>>>,
    pub(crate) pending: PendingFrees<BlockId>,
    /// Other streams whose work may touch free memory: those that replay the graphs of a pool.
    users: Vec<StreamId>,
    pub(crate) gauges: Gauges,
    pub(crate) idle: Idle,
    pub(crate) log: Log,
    /// The blocks that were freed during a capture and must not be returned before its end; only without a cache.
    pub(crate) deferred: Vec<BlockId>,
    /// The last-freed block. To callers it is free, but it is not merged yet: the next request is most often for the same size,
    /// so merging and splitting again would be wasted.
    last_freed: Option<(BlockId, u64)>,
    pub(crate) references: LeftReferences,
    /// Whether the arena is on the [pending list](super::pending_list) of waiting arenas. It may be on the pending list although this is `false`.
    pub(crate) is_on_waiting: bool,
    /// Whether the arena is on the [pending list](super::pending_list) of arenas with free memory; exact.
    pub(crate) is_on_free_memory: bool,
}

impl ArenaState {
    fn new(policy: Policy) -> Self {
        Self {
            policy,
            blocks: Blocks::default(),
            free: Default::default(),
            unmapped: Default::default(),
            searches: [0; 2],
            pages: FxHashMap::default(),
            stale_mappings: FxHashMap::default(),
            revoked: FxHashSet::default(),
            watched: FxHashMap::default(),
            pending: PendingFrees::default(),
            users: Vec::new(),
            gauges: Gauges::default(),
            idle: Idle::default(),
            log: Log::default(),
            deferred: Vec::new(),
            last_freed: None,
            references: LeftReferences::default(),
            is_on_waiting: false,
            is_on_free_memory: false,
        }
    }

    /// Takes the last-freed block if it has exactly the requested size, and stores its range in `span`. Returns whether it does.
    #[inline]
    pub(crate) fn take_last_freed(&mut self, arena: &Arena, request: &Request, span: &mut Span) -> bool {
        let Some((block, size_bytes)) = self.last_freed else { return false };
        let fits = size_bytes == request.size_bytes;
        if !fits {
            return false;
        }
        self.last_freed = None;
        let (address, class) = self.blocks.take_again(block, request.requested_bytes);
        *span = Span { block, address, size_bytes };
        self.count_taken(arena, class.class, *span, request);
        true
    }

    /// Takes the best block from the bins, if there is one, and stores its range in `span`. Returns whether there was one.
    #[inline(never)]
    pub(crate) fn take_from_bins(&mut self, arena: &Arena, request: &Request, span: &mut Span) -> bool {
        self.bin_last_freed(arena);
        let Some(found) = self.cached(arena, request) else { return false };
        *span = self.hand_out(arena, request, found);
        true
    }

    /// Puts the last-freed block into its bin.
    #[inline]
    pub(crate) fn bin_last_freed(&mut self, arena: &Arena) {
        if let Some((block, _)) = self.last_freed.take() {
            self.return_to_bins(arena, block);
        }
    }

    /// Changes the policy, and recounts the oversize blocks under it. No dropped block may be waiting to be processed.
    pub(crate) fn set_policy(&mut self, arena: &Arena, policy: Policy) {
        self.policy = policy;
        let pending: FxHashSet<BlockId> = self.pending.iter().collect();
        for class in [SizeClass::Small, SizeClass::Large] {
            let segments = self.blocks.segments().filter(|segment| segment.tag.class == class);
            let oversize = segments
                .flat_map(|segment| self.blocks.blocks_of(segment))
                .filter(|block| self.blocks.requested_bytes(*block).is_some())
                .filter(|block| !pending.contains(block) && !self.stale_mappings.contains_key(block))
                .filter(|block| self.blocks.span(*block).size_bytes >= self.policy.max_split_bytes)
                .count() as u64;
            let before = self.gauges.current_of(class, Quantity::OversizeAllocations);
            self.gauges.change(class, Quantity::OversizeAllocations, oversize, before);
            arena.common.totals.changed(arena.number, &mut self.gauges, class);
        }
    }

    /// Returns the number of oversize plain segments.
    pub(crate) fn oversize_segments(&self) -> u64 {
        let plain = self.blocks.segments().filter(|segment| !segment.tag.is_expandable);
        plain.filter(|segment| segment.size_bytes >= self.policy.max_split_bytes).count() as u64
    }

    /// Returns the request with size and class according to the present policy.
    #[inline]
    pub(crate) fn request(&self, requested_bytes: u64) -> Request {
        let size_bytes = self.policy.round_size(requested_bytes);
        Request {
            requested_bytes,
            size_bytes,
            class: policy::size_class(size_bytes),
            stack: None,
            exact_address: false,
        }
    }

    /// Checks which pending events have passed.
    #[inline]
    pub(crate) fn process_events(&mut self, arena: &Arena) {
        if !self.pending.is_idle() {
            self.pending.process(arena.key.stream, &arena.common.event_context());
            self.collect_ready(arena);
        }
    }

    /// Takes the best free block for a request out of its bin.
    #[inline(always)]
    pub(crate) fn cached(&mut self, arena: &Arena, request: &Request) -> Option<Span> {
        let seen = &mut self.searches[request.class as usize];
        *seen = match self.policy.processes_all && arena.key.owner == Owner::Shared {
            true => arena.common.count_search(request.class, *seen),
            false => *seen + 1,
        };
        self.search(request)
    }

    /// Takes the best free block for a request out of its bin. Does not advance the clock by which blocks age, because
    /// [`cached`](Self::cached) has already counted the search.
    #[inline(always)]
    pub(crate) fn search(&mut self, request: &Request) -> Option<Span> {
        let entry = self.find(request)?;
        if !self.policy.may_serve(request.size_bytes, entry.size_bytes) {
            return None;
        }
        let bins = &mut self.free[request.class as usize];
        bins.remove(entry.span(), entry.registration);
        Some(entry.span())
    }

    #[inline(always)]
    fn find(&self, request: &Request) -> Option<Entry> {
        let bins = &self.free[request.class as usize];
        let entry = bins.best_fit(request.size_bytes)?;
        if !self.blocks.tag(entry.block).is_expandable {
            return Some(entry);
        }
        if !self.policy.expandable {
            // The setting was turned off meanwhile: only plain segments serve.
            return bins
                .at_least(request.size_bytes)
                .find(|entry| !self.blocks.tag(entry.block).is_expandable);
        }
        let growable = self.growable_bytes(entry);
        if growable == entry.size_bytes { Some(entry) } else { Some(self.least_growable(request, entry)) }
    }

    /// Returns the block that wastes least. A block before unmapped addresses counts with the size that it could grow to, so a
    /// slightly larger block that cannot grow is preferred to it. Checks blocks in order until one is not better than the block
    /// before it.
    #[cold]
    fn least_growable(&self, request: &Request, mut best: Entry) -> Entry {
        let bins = &self.free[request.class as usize];
        while let Some(next) = bins.after(best)
            && self.blocks.tag(best.block).is_expandable
            && self.growable_bytes(next) < self.growable_bytes(best)
        {
            best = next;
        }
        best
    }

    fn growable_bytes(&self, entry: Entry) -> u64 {
        let next = self.blocks.next(entry.block);
        let unmapped = next.filter(|next| self.blocks.usage(*next) == BlockUse::Unmapped);
        entry.size_bytes + unmapped.map_or(0, |next| self.blocks.span(next).size_bytes)
    }

    /// Hands out a free block, which is in no bin: splits off the excess and counts the block. Inlined, because a span that is
    /// passed between functions through memory stalls the reader.
    #[inline(always)]
    pub(crate) fn hand_out(&mut self, arena: &Arena, request: &Request, found: Span) -> Span {
        use Quantity::{InactiveSplit, InactiveSplitBytes};
        let SegmentKind { class, is_expandable, registration } = self.blocks.tag(found.block);
        let was_split = !is_expandable && self.blocks.is_split(found.block);
        let rest_bytes = found.size_bytes - request.size_bytes;
        let mut span = found;
        let mut inactive = (0, 0);
        if self.policy.should_split(class, request.size_bytes, rest_bytes) {
            let rest = self.blocks.split(found.block, request.size_bytes);
            self.free[class as usize].insert(rest, registration);
            self.note_free(arena);
            inactive = (1, rest.size_bytes);
            span.size_bytes = request.size_bytes;
        }
        self.blocks.take(found.block, request.requested_bytes);

        let gauges = &mut self.gauges;
        if !is_expandable && (was_split || inactive.0 > 0) {
            let was_inactive = if was_split { (1, found.size_bytes) } else { (0, 0) };
            gauges.change(class, InactiveSplit, inactive.0, was_inactive.0);
            gauges.change(class, InactiveSplitBytes, inactive.1, was_inactive.1);
        }
        self.count_taken(arena, class, span, request);
        span
    }

    #[inline(always)]
    fn count_taken(&mut self, arena: &Arena, class: SizeClass, span: Span, request: &Request) {
        let Span { size_bytes, .. } = span;
        let gauges = &mut self.gauges;
        gauges.taken(class, size_bytes, request.requested_bytes);
        if size_bytes >= self.policy.max_split_bytes {
            gauges.add(class, Quantity::OversizeAllocations, 1);
        }
        arena.common.totals.changed(arena.number, gauges, class);
        if arena.common.watch.is_on() {
            self.report_allocated(arena, span, request);
        }
    }

    /// Takes a free block out of its bin.
    pub(crate) fn take_out(&mut self, span: Span) {
        let SegmentKind { class, registration, .. } = self.blocks.tag(span.block);
        self.free[class as usize].remove(span, registration);
    }

    /// Returns the present time, in searches: with `policy:pytorch`, of the shared pool on all streams; otherwise of this arena.
    /// The time never decreases, even when the policy changes.
    #[inline]
    pub(crate) fn now(&mut self, arena: &Arena, class: SizeClass) -> u64 {
        let seen = &mut self.searches[class as usize];
        if self.policy.processes_all && arena.key.owner == Owner::Shared {
            *seen = arena.common.searches(class).max(*seen);
        }
        *seen
    }

    /// Returns the time at which a block became free, in searches.
    pub(crate) fn free_since(&self, block: BlockId) -> u64 {
        match self.blocks.usage(block) {
            BlockUse::Free { since } => since,
            other => panic!("a block in a bin is free, not {other:?}"),
        }
    }

    /// Takes a block back from its caller. It is reused when its uses on other streams are over.
    #[inline]
    pub(crate) fn free(&mut self, arena: &Arena, block: BlockId, uses: Uses, stack: Option<StackId>) {
        if !self.watched.is_empty() {
            self.notify_watches(block);
        }
        if self.is_revoked(block) {
            return self.forget_revoked(arena, block, uses);
        }
        let is_free_at_once = uses.is_empty() && !self.policy.direct;
        if arena.common.watch.is_on() {
            let actions = [Action::FreeRequested, Action::FreeCompleted];
            self.report_freed(arena, &actions[..1 + usize::from(is_free_at_once)], block, stack);
        }
        let (SegmentKind { class, .. }, size_bytes, requested_bytes) = self.blocks.taken(block);
        let gauges = &mut self.gauges;
        if size_bytes >= self.policy.max_split_bytes {
            gauges.subtract(class, Quantity::OversizeAllocations, 1);
        }
        if self.policy.direct {
            gauges.held(class, size_bytes);
            self.free_directly(arena, block, uses);
        } else if uses.is_empty() {
            gauges.returned(class, size_bytes, requested_bytes);
            if self.policy.keeps_last_freed {
                self.note_free(arena);
                if let Some((before, _)) = self.last_freed.replace((block, size_bytes)) {
                    self.return_to_bins(arena, before);
                }
            } else {
                self.return_to_bins(arena, block);
            }
        } else {
            gauges.held(class, size_bytes);
            let context = arena.common.event_context();
            self.note_waiting(arena);
            self.pending.free(block, uses, &context);
            self.collect_ready(arena);
        }
        arena.common.totals.changed(arena.number, &mut self.gauges, class);
    }

    /// Puts pending blocks that are ready into the bins. A block stays ready until the upstream, if it must be called, has
    /// returned.
    pub(crate) fn collect_ready(&mut self, arena: &Arena) {
        while let Some(block) = self.pending.first_ready() {
            if self.is_revoked(block) {
                self.pending.pop_ready();
                self.forget_revoked(arena, block, Uses::new());
            } else if self.stale_mappings.contains_key(&block) {
                self.unmap_first_stale(arena, block);
            } else if self.policy.direct {
                self.release_first_directly(arena, block);
            } else {
                self.pending.pop_ready();
                if arena.common.watch.is_on() {
                    self.report_freed(arena, &[Action::FreeCompleted], block, None);
                }
                let (SegmentKind { class, .. }, size_bytes, requested_bytes) = self.blocks.taken(block);
                self.gauges.passed(class, size_bytes, requested_bytes);
                self.return_to_bins(arena, block);
            }
        }
    }

    /// Puts a block that nothing uses into its bin, merged with its free neighbours.
    #[inline]
    pub(crate) fn return_to_bins(&mut self, arena: &Arena, block: BlockId) {
        let SegmentKind { class, is_expandable, registration } = self.blocks.tag(block);
        let now = self.now(arena, class);
        self.note_free(arena);
        let Merged { span, absorbed: [before, after] } = self.blocks.release(block, now);
        let bins = &mut self.free[class as usize];
        let (mut absorbed, mut absorbed_bytes) = (0, 0);
        if let Some(before) = before {
            bins.remove(before, registration);
            (absorbed, absorbed_bytes) = (1, before.size_bytes);
        }
        if let Some(after) = after {
            bins.remove(after, registration);
            (absorbed, absorbed_bytes) = (absorbed + 1, absorbed_bytes + after.size_bytes);
        }
        bins.insert(span, registration);
        let gauges = &mut self.gauges;
        if !is_expandable {
            let split = self.blocks.is_split(span.block);
            let (added, added_bytes) = if split { (1, span.size_bytes) } else { (0, 0) };
            gauges.change(class, Quantity::InactiveSplit, added, absorbed);
            gauges.change(class, Quantity::InactiveSplitBytes, added_bytes, absorbed_bytes);
        }
        arena.common.totals.changed(arena.number, gauges, class);
    }

    /// Returns the segments in no particular order, each with its blocks. An expandable segment is shown as its mapped ranges.
    pub(crate) fn snapshot(&self, key: ArenaKey) -> Vec<SegmentSnapshot> {
        let pending: FxHashSet<BlockId> = self.pending.iter().chain(self.deferred.iter().copied()).collect();
        let mut shown: Vec<SegmentSnapshot> = Vec::new();
        for segment in self.blocks.segments() {
            let mut open = false;
            for block in self.blocks.blocks_of(segment) {
                let span = self.blocks.span(block);
                let state = match self.blocks.usage(block) {
                    _ if self.stale_mappings.contains_key(&block) => None,
                    BlockUse::Unmapped => None,
                    BlockUse::Free { .. } => Some(BlockState::Inactive),
                    BlockUse::Taken { .. } if pending.contains(&block) => Some(BlockState::ActivePendingFree),
                    BlockUse::Taken { .. } => Some(BlockState::ActiveAllocated),
                };
                let Some(state) = state else {
                    open = false;
                    continue;
                };
                if !open {
                    shown.push(SegmentSnapshot {
                        address: span.address,
                        total_bytes: 0,
                        stream: key.stream,
                        class: segment.tag.class,
                        pool: key.owner.pool(),
                        is_expandable: segment.tag.is_expandable,
                        blocks: Vec::new(),
                    });
                    open = true;
                }
                let last = shown.last_mut().expect("one was pushed");
                last.total_bytes += span.size_bytes;
                let Span { address, size_bytes, .. } = span;
                let requested_bytes = self.blocks.requested_bytes(block).unwrap_or(0);
                last.blocks.push(BlockSnapshot { address, size_bytes, requested_bytes, state });
            }
        }
        shown
    }
}
