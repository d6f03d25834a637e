//! The device allocator's public face: [`DeviceAllocator`] gives out [`Block`]s, and dropping one gives it back.
//!
//! A [`Block`] carries all that is needed to use it and to free it: its arena, address, sizes, stream, its name there, and
//! the uses by other streams. So neither freeing nor [`record_use`](Block::record_use) looks anything up by address.
//!
//! An allocation finds the arena of its pool and stream ([`directory`](super::directory)), and is served under that arena's
//! lock from what is cached there. Only if that fails is the lock of the slow path taken ([`slow_path`](super::slow_path)), which
//! is the one lock that all streams share.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use rustc_hash::FxHashMap;
use thalweg_snapshot::SegmentSnapshot;

use super::arena::{Arena, Home, Request};
use super::blocks::{BlockId, Span};
use super::common::Common;
use super::directory::Directory;
use super::ledger::Ledger;
use super::pending::{Uses, use_of};
use super::pools::{Owner, PoolId, PoolOptions, Pools, Requests, Scopes, StreamFilter};
use super::reentry;
use super::slow_path::Climb;
use crate::error::{AllocationError, Kind};
use crate::policy::{MAX_REQUEST_BYTES, Policy};
use crate::settings::Settings;
use crate::statistics::stats::{DeviceStatistics, SizeClass};
use crate::trace::history::{Ring, StackId};
use crate::upstream::{StreamId, Upstream};

/// No segment that grows reserves more addresses than this (4 TiB, which is more than any device has) without need, so that there
/// are enough for thousands of streams and pools.
const MOST_RESERVE_BYTES: u64 = 4 << 40;

/// Called when memory is short; whether it freed any. It may drop blocks; other calls of the allocator are refused.
pub type FreeMemoryCallback = Arc<dyn Fn() -> bool + Send + Sync>;

/// What stands behind the lock of the slow path.
#[derive(Default)]
pub(crate) struct Cold {
    pub(crate) ledger: Ledger,
    pub(crate) pools: Pools,
    pub(crate) free_memory_callbacks: Vec<FreeMemoryCallback>,
    /// Events that concern no arena.
    pub(crate) ring: Ring,
    /// The request that is looked for found no range of addresses to grow in.
    pub(crate) addresses_are_short: bool,
}

/// A caching allocator for the memory of one device. See the [crate's essay](crate).
///
/// All methods may be called from any thread. Memory lives as long as any of its blocks; when the last one of a stream is
/// gone, and so is the allocator, the host waits for pending events and everything goes back to the upstream.
pub struct DeviceAllocator {
    pub(crate) common: Arc<Common>,
    directory: Directory,
    pub(crate) scopes: Scopes,
    cold: Mutex<Cold>,
    settings: RwLock<Settings>,
    reserve_classes: RwLock<FxHashMap<StreamId, String>>,
    /// The device's memory; asked for when it is first needed.
    total_bytes: OnceLock<u64>,
}

impl DeviceAllocator {
    /// An allocator that holds nothing yet.
    pub fn new(upstream: Arc<dyn Upstream>, settings: Settings) -> Arc<Self> {
        let mut allocator = Self {
            common: Common::new(upstream),
            directory: Directory::default(),
            scopes: Scopes::default(),
            cold: Mutex::default(),
            settings: RwLock::new(settings.clone()),
            reserve_classes: RwLock::default(),
            total_bytes: OnceLock::new(),
        };
        let allowed_bytes = allocator.allowed_bytes(settings.per_process_memory_fraction());
        let cold = allocator.cold.get_mut().unwrap_or_else(PoisonError::into_inner);
        cold.ledger.allowed_bytes = allowed_bytes;
        Arc::new(allocator)
    }

    /// A block of at least `bytes` for use on `stream`, at a multiple of 512. It comes from the private pool that allocations
    /// on `stream` go to, if any, else from the shared one. `bytes` of 0 give a null block, which holds no memory.
    ///
    /// Steady work is served from the cache and touches no driver. What is not may block: the upstream's allocation does,
    /// and if it finds no room, the host waits for all pending events.
    ///
    /// # Errors
    /// [`is_out_of_memory`](AllocationError::is_out_of_memory) when there is no room after everything that can be spared
    /// was given back; or the upstream's error. The allocator works on as before.
    #[inline]
    pub fn allocate(&self, bytes: u64, stream: StreamId) -> Result<Block, AllocationError> {
        // The block is put together here, in the caller's own code, of what is in registers: returned whole, through memory, it
        // would be copied at once, and a copy waits for what was written just before it in other pieces.
        let mut span = Span::NULL;
        let arena = self.obtain(bytes, stream, &mut span)?;
        Ok(Block::new(arena, span, bytes, stream))
    }

    /// Finds memory for a block of `stream`: its arena, and, in `span`, which.
    fn obtain(&self, bytes: u64, stream: StreamId, span: &mut Span) -> Result<Arc<Arena>, AllocationError> {
        match self.scopes.owner_for(stream) {
            Owner::Shared => match self.directory.find(stream) {
                Some(arena) => self.obtain_from(arena, bytes, span),
                None => self.obtain_from(self.add_arena(stream), bytes, span),
            },
            Owner::Private(pool) => self.obtain_privately(pool, bytes, stream, span),
        }
    }

    #[cold]
    fn add_arena(&self, stream: StreamId) -> &Arc<Arena> {
        self.directory.find_or_add(stream, || {
            let home = Home { stream, owner: Owner::Shared };
            Arena::new(&self.common, home, None, self.policy(false))
        })
    }

    #[cold]
    fn obtain_privately(
        &self,
        pool: PoolId,
        bytes: u64,
        stream: StreamId,
        span: &mut Span,
    ) -> Result<Arc<Arena>, AllocationError> {
        self.obtain_from(&self.private_arena(pool, stream)?, bytes, span)
    }

    fn private_arena(&self, pool: PoolId, stream: StreamId) -> Result<Arc<Arena>, AllocationError> {
        let arena = self.enter()?.pools.arena(pool, stream, |options| {
            let home = Home { stream, owner: Owner::Private(pool) };
            Arena::new(&self.common, home, options.source.clone(), self.policy(options.no_split))
        });
        Ok(arena.ok_or(Kind::UnknownPool(pool))?)
    }

    #[inline]
    fn obtain_from(
        &self,
        arena: &Arc<Arena>,
        bytes: u64,
        span: &mut Span,
    ) -> Result<Arc<Arena>, AllocationError> {
        if bytes == 0 || bytes > MAX_REQUEST_BYTES {
            return self.obtain_oddly(arena, bytes);
        }
        let stack = self.common.watch.stack_of_allocation()?;
        let mut state = arena.lock_with_hand();
        if state.policy.processes_all {
            drop(state);
            self.process_events();
            state = arena.lock();
        }
        state.process_events(arena);
        let request = Request { stack, ..state.request(bytes) };
        if state.take_from_hand(arena, &request, span) || state.take_from_bins(arena, &request, span) {
            return Ok(state.reference(arena));
        }
        drop(state);
        self.obtain_slowly(arena, bytes, stack, span)
    }

    #[cold]
    fn obtain_slowly(
        &self,
        arena: &Arc<Arena>,
        bytes: u64,
        stack: Option<StackId>,
        span: &mut Span,
    ) -> Result<Arc<Arena>, AllocationError> {
        reentry::check()?;
        let state = arena.lock();
        let request = Request { stack, ..state.request(bytes) };
        let direct = state.policy.direct;
        drop(state);
        let obtained = if direct {
            self.allocate_directly(arena, &request).map(|span| (Arc::clone(arena), span))
        } else {
            Climb::new(self, arena, request).obtain()
        };
        let (owner, found) = obtained.map_err(|error| self.tell_of_failure(error))?;
        *span = found;
        Ok(owner)
    }

    #[cold]
    fn obtain_oddly(&self, arena: &Arc<Arena>, bytes: u64) -> Result<Arc<Arena>, AllocationError> {
        if bytes == 0 {
            return Ok(Arc::clone(arena));
        }
        // Nothing of this size is rounded: a sum with it could overflow.
        let stack = self.common.watch.stack_of_allocation()?;
        let request = Request {
            requested_bytes: bytes,
            size_bytes: bytes,
            class: SizeClass::Large,
            stack,
            exact_address: false,
        };
        let error = self.out_of_memory(&mut *self.enter()?, arena, &request);
        Err(self.tell_of_failure(error))
    }

    /// Gives all cached memory that can be spared back to the upstream: *blocks* until pending events have passed, then
    /// frees all that is free and that no private pool relies on.
    ///
    /// # Errors
    /// [`is_capture`](AllocationError::is_capture) while a capture is under way; or the upstream's error, after which
    /// the rest stays cached.
    pub fn empty_cache(&self) -> Result<(), AllocationError> {
        self.empty("empty_cache", None)
    }

    /// The same for one private pool only, which may still be referred to. Whoever replays a graph that was captured into it
    /// needs its memory where it was.
    ///
    /// # Errors
    /// As [`empty_cache`](Self::empty_cache).
    pub fn empty_pool_cache(&self, pool: PoolId) -> Result<(), AllocationError> {
        self.empty("empty_pool_cache", Some(pool))
    }

    fn empty(&self, call: &'static str, pool: Option<PoolId>) -> Result<(), AllocationError> {
        let stack = self.common.watch.stack_of_free();
        let mut cold = self.enter()?;
        if self.common.is_capturing() {
            return Err(Kind::Capturing { call }.into());
        }
        cold.ledger.given_back_at = stack;
        let outcome = self.release_cached(&mut cold, pool);
        cold.ledger.given_back_at = None;
        outcome
    }

    /// Looks, without waiting, which freed blocks other streams are done with, and makes them available. Every allocation
    /// does so too, for its own stream (with `policy:pytorch`, for all).
    pub fn process_events(&self) {
        for arena in self.common.waiting_arenas() {
            if arena.is_waiting() {
                arena.lock().process_events(&arena);
            } else {
                arena.state().strike_waiting(&arena);
            }
        }
    }

    /// Never takes more than `fraction` of the device's total memory from the upstream; 1 lifts the limit. What is taken
    /// already stays.
    ///
    /// # Errors
    /// If `fraction` is not within 0 and 1, or the upstream cannot say how much there is.
    pub fn set_memory_fraction(&self, fraction: f64) -> Result<(), AllocationError> {
        let settings = self.settings().with_per_process_memory_fraction(fraction)?;
        self.common
            .upstream
            .memory_info()
            .map_err(|error| AllocationError::upstream("memory_info", error))?;
        self.enter()?.ledger.allowed_bytes = self.allowed_bytes(fraction);
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = settings;
        Ok(())
    }

    /// The fraction of the device's memory that may be taken.
    pub fn memory_fraction(&self) -> f64 {
        self.settings().per_process_memory_fraction()
    }

    /// Calls `callback` when memory is short, before more is taken from the upstream.
    pub fn add_free_memory_callback(&self, callback: FreeMemoryCallback) {
        self.cold().free_memory_callbacks.push(callback);
    }

    /// A new private pool, with one reference for the caller to [`release`](Self::release_pool).
    pub fn create_pool(&self) -> PoolId {
        self.create_pool_with(PoolOptions::default())
    }

    /// The same, with options.
    pub fn create_pool_with(&self, options: PoolOptions) -> PoolId {
        if options.source.is_some() {
            self.common.watch.note_calls_out();
        }
        self.cold().pools.create(options)
    }

    /// Changes [`PoolOptions::use_on_oom`] of a pool, for requests to come.
    ///
    /// # Errors
    /// If there is no such pool, or it has no reference left.
    pub fn set_pool_use_on_oom(&self, pool: PoolId, value: bool) -> Result<(), AllocationError> {
        self.enter()?.pools.change_options(pool, |options| options.use_on_oom = value)?;
        Ok(())
    }

    /// Changes [`PoolOptions::no_split`] of a pool. Blocks that are cut already stay so.
    ///
    /// # Errors
    /// If there is no such pool, or it has no reference left.
    pub fn set_pool_no_split(&self, pool: PoolId, value: bool) -> Result<(), AllocationError> {
        let mut cold = self.enter()?;
        for arena in cold.pools.change_options(pool, |options| options.no_split = value)? {
            arena.lock().set_policy(&arena, self.policy(value));
        }
        Ok(())
    }

    /// Adds a reference: the pool's addresses stay put until it is released once more.
    ///
    /// # Errors
    /// If there is no such pool, or it has no reference left.
    pub fn retain_pool(&self, pool: PoolId) -> Result<(), AllocationError> {
        Ok(self.enter()?.pools.retain(pool)?)
    }

    /// Takes a reference away. After the last, the pool's memory may be given back as soon as it is free; its live blocks
    /// stay valid.
    ///
    /// # Errors
    /// If there is no such pool, or it has no reference left.
    pub fn release_pool(&self, pool: PoolId) -> Result<(), AllocationError> {
        Ok(self.enter()?.pools.release(pool)?)
    }

    /// The same for a pool whose memory work of other streams than its blocks' own may still touch, beyond the life of any
    /// block: replays of graphs that were captured into it. Its memory goes back to the upstream behind what these streams have
    /// then.
    ///
    /// # Errors
    /// Those of [`release_pool`](Self::release_pool).
    pub fn release_pool_behind(&self, pool: PoolId, streams: &[StreamId]) -> Result<(), AllocationError> {
        Ok(self.enter()?.pools.release_behind(pool, streams)?)
    }

    /// Gives a pool whose last reference has gone a new one, so that what memory it still has serves again; `false` if it
    /// has none any more, or a reference. Only where all work that may touch its memory is done.
    pub fn revive_pool(&self, pool: PoolId) -> bool {
        let mut cold = self.cold();
        let revived = cold.pools.revive(pool);
        if revived {
            self.close_aliases(pool);
        }
        revived
    }

    /// How many references a pool has: those of its creator and of who retained it, and one for each open scope.
    pub fn pool_use_count(&self, pool: PoolId) -> usize {
        self.cold().pools.references(pool)
    }

    /// What a private pool has reserved, in bytes: one entry of
    /// [`reserved_bytes_by_private_pools`](DeviceStatistics::reserved_bytes_by_private_pools), without the other figures.
    pub fn pool_reserved_bytes(&self, pool: PoolId) -> u64 {
        self.cold().ledger.private.get(&pool).map_or(0, |statistic| statistic.current)
    }

    /// From now until [`end_allocate_to_pool`](Self::end_allocate_to_pool), requests that match `filter` get memory from
    /// `pool`, and a capture counts as under way: no event is touched, no cached memory goes back to the upstream, and blocks
    /// that are freed with uses on other streams wait for the end. Call it before the capture begins. Pools nest; the one
    /// begun last goes first. The pool is retained meanwhile.
    ///
    /// *Blocks* until calls that touch events are through with that. If no other capture is under way, what is left of pools
    /// that nobody holds any more goes back to the upstream, behind the work that may touch it: a capture could not have it.
    ///
    /// # Errors
    /// If there is no such pool, or allocations go to it already.
    pub fn begin_allocate_to_pool(&self, pool: PoolId, filter: StreamFilter) -> Result<(), AllocationError> {
        let mut cold = self.enter()?;
        self.open_scope(&mut cold, pool, Requests::OnStreams(filter))?;
        self.announce_capture(&mut cold);
        Ok(())
    }

    /// Ends what [`begin_allocate_to_pool`](Self::begin_allocate_to_pool) began. Call it after the capture has ended, since
    /// the events that waited are recorded now.
    ///
    /// # Errors
    /// If no allocations go to this pool.
    pub fn end_allocate_to_pool(&self, pool: PoolId) -> Result<(), AllocationError> {
        // Held to the end, so that no other capture begins before the events are recorded.
        let mut cold = self.enter()?;
        self.scopes.end_streams(pool)?;
        // First of all, so that a panic of the upstream below does not leave a capture under way for ever.
        let last = self.common.end_capture();
        cold.pools.release(pool)?;
        if last {
            self.common.end_captures();
        }
        Ok(())
    }

    /// The statistics at this moment.
    pub fn statistics(&self) -> DeviceStatistics {
        let cold = self.cold();
        let mut statistics = cold.ledger.statistics.clone();
        statistics.reserved_bytes_by_private_pools =
            cold.ledger.private.iter().map(|(pool, statistic)| (*pool, *statistic)).collect();
        let arenas = self.settled_arenas();
        let (with, each) = (self.common.with(), Common::each(&arenas));
        self.common.totals.read(&mut statistics, &with, &each);
        statistics.pending_use_bytes =
            statistics.active_bytes.all.current.saturating_sub(statistics.allocated_bytes.all.current);
        statistics.num_cross_stream_waits = self.common.waits();
        statistics.max_split_size = self.settings().max_split_size_bytes();
        self.complete_directly(&mut statistics);
        statistics
    }

    /// The statistics under PyTorch's keys, sorted by key.
    pub fn memory_stats(&self) -> Vec<(String, i64)> {
        self.statistics().memory_stats()
    }

    /// Sets every peak to what there is now.
    pub fn reset_peak_memory_stats(&self) {
        let mut cold = self.cold();
        cold.ledger.reset_peak();
        let arenas = self.settled_arenas();
        self.common.totals.reset_peak(&self.common.with(), &Common::each(&arenas));
    }

    /// Sets every sum (`allocated`, `freed`) and every counter (`num_ooms` and so on) to 0.
    pub fn reset_accumulated_memory_stats(&self) {
        let mut cold = self.cold();
        cold.ledger.reset_accumulated();
        self.common.reset_waits();
        let arenas = self.settled_arenas();
        self.common.totals.reset_accumulated(&Common::each(&arenas));
    }

    /// All arenas, after they have taken in what was dropped while they were busy.
    fn settled_arenas(&self) -> Vec<Arc<Arena>> {
        let arenas = self.common.all_arenas();
        arenas.iter().for_each(|arena| drop(arena.lock()));
        arenas
    }

    /// All segments in address order, each with its blocks.
    pub fn snapshot(&self) -> Vec<SegmentSnapshot> {
        let _cold = self.cold();
        let arenas = self.common.all_arenas();
        let mut segments: Vec<_> =
            arenas.iter().flat_map(|arena| arena.lock().snapshot(arena.home)).collect();
        segments.sort_by_key(|segment| segment.address);
        segments
    }

    /// The settings.
    pub fn settings(&self) -> Settings {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the settings for what comes. What is allocated or cached stays as it is.
    ///
    /// # Errors
    /// If the backend would change: memory of one cannot be given to the other.
    pub fn set_settings(&self, settings: Settings) -> Result<(), AllocationError> {
        let mut cold = self.enter()?;
        let before = self.settings();
        if settings.backend() != before.backend() || settings.caching() != before.caching() {
            return Err(Kind::Fixed { what: "the backend" }.into());
        }
        cold.ledger.allowed_bytes = self.allowed_bytes(settings.per_process_memory_fraction());
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = settings;
        let mut oversize_segments = 0;
        for arena in self.common.all_arenas() {
            let no_split = cold.pools.no_split(arena.home.owner);
            let mut state = arena.lock();
            state.set_policy(&arena, self.policy(no_split));
            oversize_segments += state.oversize_segments();
        }
        cold.ledger.recount_oversize(oversize_segments);
        Ok(())
    }

    /// # Panics
    /// If the calling thread is in a function that is called with a lock held ([`reentry`](super::reentry)): it may be this one.
    pub(crate) fn cold(&self) -> MutexGuard<'_, Cold> {
        self.enter().unwrap_or_else(|refusal| panic!("{}", AllocationError::from(refusal)))
    }

    /// The same, with an error in that case.
    pub(crate) fn enter(&self) -> Result<MutexGuard<'_, Cold>, Kind> {
        reentry::check()?;
        Ok(self.cold.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What the settings come to on this upstream.
    fn policy(&self, no_split: bool) -> Policy {
        let has_virtual_memory = self.common.upstream.virtual_memory().is_some();
        Policy::new(&self.settings(), has_virtual_memory, no_split)
    }

    fn total_bytes(&self) -> Option<u64> {
        if let Some(total_bytes) = self.total_bytes.get() {
            return Some(*total_bytes);
        }
        let info = self.common.upstream.memory_info().ok()?;
        Some(*self.total_bytes.get_or_init(|| info.total_bytes))
    }

    fn allowed_bytes(&self, fraction: f64) -> Option<u64> {
        if fraction >= 1.0 {
            return None;
        }
        Some((fraction * self.total_bytes()? as f64).round() as u64)
    }

    /// Counts `stream` among the streams of a class, for which `expandable_segments_reserve_by_class` may say how many addresses
    /// a segment that grows reserves; `None` takes it out again. Segments that are there already stay as they are.
    pub fn set_expandable_segment_reserve_class(&self, stream: StreamId, class: Option<&str>) {
        let mut classes = self.reserve_classes.write().unwrap_or_else(PoisonError::into_inner);
        match class {
            Some(class) => drop(classes.insert(stream, class.to_owned())),
            None => drop(classes.remove(&stream)),
        }
    }

    /// The class of a stream, if it has one.
    pub fn expandable_segment_reserve_class(&self, stream: StreamId) -> Option<String> {
        self.reserve_classes.read().unwrap_or_else(PoisonError::into_inner).get(&stream).cloned()
    }

    /// The addresses that segments that grow have reserved, in bytes, and how many such segments there are. Addresses are not
    /// memory: most of them have none behind them.
    pub fn expandable_segments_reserved(&self) -> (u64, usize) {
        let arenas = self.common.all_arenas();
        let sizes = arenas.iter().flat_map(|arena| {
            let state = arena.lock();
            let growing = state.blocks.segments().filter(|segment| segment.tag.grows);
            growing.map(|segment| segment.size_bytes).collect::<Vec<_>>()
        });
        sizes.fold((0, 0), |(bytes, count), size_bytes| (bytes + size_bytes, count + 1))
    }

    /// The addresses to reserve for a segment that grows, in which `bytes` fit; `None` if so many are not to be reserved.
    pub(crate) fn segment_reserve_bytes(&self, stream: StreamId, bytes: u64) -> Option<u64> {
        let reserve_bytes =
            self.full_reserve_bytes(stream).filter(|reserve_bytes| *reserve_bytes >= bytes)?;
        Some(reserve_bytes.min(MOST_RESERVE_BYTES.max(bytes)))
    }

    /// The most addresses that a segment may reserve.
    pub(crate) fn full_reserve_bytes(&self, stream: StreamId) -> Option<u64> {
        let total_bytes = self.total_bytes()?;
        let class = self.expandable_segment_reserve_class(stream);
        let bytes = self.settings().expandable_segments_reserve_bytes(class.as_deref(), total_bytes);
        Some(bytes.min(MAX_REQUEST_BYTES))
    }

    pub(crate) fn common(&self) -> &Arc<Common> {
        &self.common
    }

    /// The arena that serves requests of the calling thread on `stream`.
    ///
    /// # Errors
    /// If the pool that they go to has lost its last reference.
    pub(crate) fn arena_for(&self, stream: StreamId) -> Result<Arc<Arena>, AllocationError> {
        match self.scopes.owner_for(stream) {
            Owner::Shared => {
                Ok(Arc::clone(self.directory.find(stream).unwrap_or_else(|| self.add_arena(stream))))
            }
            Owner::Private(pool) => self.private_arena(pool, stream),
        }
    }
}

impl Drop for DeviceAllocator {
    fn drop(&mut self) {
        // Arenas may live on, as long as they have blocks; pages that are in no arena do not.
        self.common.all_arenas().iter().for_each(|arena| arena.close());
        if let Some(memory) = self.common.upstream.virtual_memory() {
            // What the upstream refuses now is offered again when an arena goes, and then there is nobody to tell.
            let _ = self.common.destroy_spare_pages(memory, |_| {});
        }
    }
}

impl fmt::Debug for DeviceAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceAllocator").finish_non_exhaustive()
    }
}

/// Device memory in the caller's hands. Dropping it frees it, without failing and without waiting.
///
/// The memory may be used on [`stream`](Self::stream) without further ado, also by work that is still queued when the block
/// is dropped. Work on another stream must be ordered against it by the caller, and be told of before the drop, by
/// [`record_use`](Self::record_use) or [`record_stream`](Self::record_stream).
pub struct Block {
    /// There until the block is dropped, which leaves it to the arena.
    arena: Option<Arc<Arena>>,
    /// [`BlockId::NONE`] for a null block.
    block: BlockId,
    address: u64,
    size_bytes: u64,
    requested_bytes: u64,
    /// Not the arena's if the block is borrowed from another stream.
    stream: StreamId,
    /// Nearly always none: a block is small, because it is moved about a lot.
    uses: Mutex<Option<Box<Uses>>>,
}

impl Block {
    #[inline]
    pub(crate) fn new(arena: Arc<Arena>, span: Span, requested_bytes: u64, stream: StreamId) -> Self {
        let Span { block, address, size_bytes } = span;
        let uses = Mutex::new(None);
        Self { arena: Some(arena), block, address, size_bytes, requested_bytes, stream, uses }
    }

    pub(crate) fn null(arena: Arc<Arena>) -> Self {
        let stream = arena.home.stream;
        Self::new(arena, Span::NULL, 0, stream)
    }

    /// Where the memory begins: a multiple of 512, or 0 for a null block.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes there are: what was asked for, rounded up. A block that was cached whole may be larger still.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// How many bytes were asked for.
    pub fn requested_bytes(&self) -> u64 {
        self.requested_bytes
    }

    /// The stream that the block was allocated on.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// The private pool that the memory belongs to; `None` for the shared one.
    pub fn pool(&self) -> Option<PoolId> {
        self.arena().home.owner.pool()
    }

    /// Whether this is a null block, which holds no memory.
    pub fn is_null(&self) -> bool {
        self.block == BlockId::NONE
    }

    /// Says that `stream` uses the memory too. When the block is dropped, an event is recorded there, behind all its work so
    /// far, and the memory is not used again before that has passed, or before its own stream waits for it. On the block's
    /// own stream it is a no-op, and so it is the second time. Touches neither the allocator nor the device.
    pub fn record_stream(&self, stream: StreamId) {
        let is_foreign = planted!(RecordStreamLost, stream != self.stream, false);
        if is_foreign && !self.is_null() {
            use_of(self.uses().get_or_insert_default(), stream).note(self.arena().common.is_capturing());
        }
    }

    /// Says that what `stream` has been given so far is the last, until the next call, that it does with the memory: an event
    /// is recorded there *now*. The memory is not used again before it has passed, or before its own stream waits for it;
    /// whatever else `stream` does meanwhile holds nothing up. So the block may be dropped at any time, on any thread.
    ///
    /// On the block's own stream it is a no-op. Many calls for one stream are as good as the last one. If an event cannot be
    /// recorded now, this is [`record_stream`](Self::record_stream).
    ///
    /// During a capture it is a note of the place in the graph: within the capture, the memory is used again where the graph
    /// itself orders the new use behind the old one.
    pub fn record_use(&self, stream: StreamId) {
        if stream == self.stream || self.is_null() {
            return;
        }
        if reentry::check().is_err() {
            return self.record_stream(stream);
        }
        let mut uses = self.uses();
        // Held so that no capture begins between the look and the record.
        let _state = self.arena().state();
        let around = self.arena().common.surroundings();
        let one = use_of(uses.get_or_insert_default(), stream);
        if one.at_free {
            return;
        }
        // Until there is an event, or a mark, the use is noted at least: a call that panics tells of nothing else.
        let was_eager = one.eager;
        one.note(around.capturing);
        if around.capturing {
            if let Some(marks) = around.marks(stream) {
                one.marks = marks;
                one.at_free = false;
            }
            return;
        }
        if let Ok(recorded) = around.record(planted!(UseRecordedAtHome, stream, self.stream)) {
            one.at_free = false;
            one.eager = was_eager;
            let kept = planted!(FirstUseKept, recorded, one.event.take().unwrap_or(recorded));
            if let Some(before) = one.event.replace(kept) {
                around.events.release_event(before.event);
            }
        }
    }

    /// Never gives the memory back: for a forked child, to which it does not belong, and where a drop could wait for a thread that is
    /// not there. To be called before the drop, and no other call is to follow.
    pub fn abandon(&mut self) {
        std::mem::forget(self.arena.take());
    }

    /// Takes the block out of what is being dropped, so that its memory goes back later: for checks that hold freed memory back.
    /// For those who watch it ([`Vigil`](crate::Vigil)) it dies now. No other call of what is left is to follow.
    pub fn hold_back(&mut self) -> Self {
        let arena = self.arena.take();
        if let (Some(arena), Some(block)) = (&arena, self.block.some()) {
            arena.lock().tell_vigils(block);
        }
        let uses = Mutex::new(self.uses().take());
        Self { arena, uses, ..*self }
    }

    /// Its arena, and its name there.
    pub(crate) fn place(&self) -> (&Arc<Arena>, Option<BlockId>) {
        (self.arena(), self.block.some())
    }

    fn arena(&self) -> &Arc<Arena> {
        self.arena.as_ref().expect("a block has its arena until it is dropped")
    }

    fn uses(&self) -> MutexGuard<'_, Option<Box<Uses>>> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        let (Some(block), Some(arena)) = (self.block.some(), self.arena.take()) else { return };
        let uses = self.uses.get_mut().unwrap_or_else(PoisonError::into_inner);
        if uses.is_none() && self.stream == arena.home.stream {
            Arena::take_back(arena, block, Uses::new());
        } else {
            let uses = uses.take().map(|uses| *uses).unwrap_or_default();
            self.give_back_behind(arena, block, uses);
        }
    }
}

impl Block {
    #[cold]
    fn give_back_behind(&self, arena: Arc<Arena>, block: BlockId, mut uses: Uses) {
        if self.stream != arena.home.stream {
            // A borrowed block: all that its borrower was given so far comes before its owner has it back.
            planted!(BorrowerForgotten, use_of(&mut uses, self.stream).note(false), ());
            arena.forget_own_use(&mut uses);
        }
        Arena::take_back(arena, block, uses);
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("address", &format_args!("{:#x}", self.address))
            .field("size_bytes", &self.size_bytes)
            .field("requested_bytes", &self.requested_bytes)
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}
