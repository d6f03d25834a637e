//! The public interface of the device allocator: [`DeviceAllocator`] hands out [`Block`]s, and dropping a block frees it.
//!
//! An allocation finds the arena of its pool and stream ([`directory`](super::directory)), and is served under that arena's lock
//! from the arena's cached blocks. Only if that fails does it take the lock of the slow path ([`slow_path`](super::slow_path)),
//! the one lock that all streams share.

use std::fmt;
use std::sync::{Arc, OnceLock};

use rustc_hash::FxHashMap;
use thalweg_lock::{Mutex, MutexGuard, RwLock};
use thalweg_snapshot::SegmentSnapshot;

use super::arena::Arena;
use super::block::Block;
use super::blocks::Span;
use super::central::{Central, FreeMemoryCallback};
use super::common::Common;
use super::directory::Directory;
use super::pools::{PoolOptions, Requests, Scopes};
use super::reentry;
use crate::error::{AllocationError, Kind};
use crate::ids::{ArenaKey, Owner, PoolId, SizeClass, StreamFilter, StreamId};
use crate::ipc::imports::Imports;
use crate::policy::{MAX_REQUEST_BYTES, Policy, Request};
use crate::settings::Settings;
use crate::statistics::stats::DeviceStatistics;
use crate::trace::history::StackId;
use crate::upstream::Upstream;

/// The most addresses that an expandable segment reserves unless a request needs more: 4 TiB, which is more memory than any
/// device has and leaves enough addresses for thousands of streams and pools.
const MOST_RESERVE_BYTES: u64 = 4 << 40;

/// A caching allocator for the memory of one device. See the [crate's essay](crate).
///
/// All methods may be called from any thread. Memory lives as long as any of its blocks. When the allocator and the last block of
/// a stream have been dropped, the host waits for pending events and all memory of the stream is returned to the upstream.
pub struct DeviceAllocator {
    pub(crate) common: Arc<Common>,
    directory: Directory,
    /// Memory imported from other processes.
    pub(crate) imports: Imports,
    pub(crate) scopes: Scopes,
    central: Mutex<Central>,
    settings: RwLock<Settings>,
    reserve_classes: RwLock<FxHashMap<StreamId, String>>,
    /// The device's memory; queried when it is first needed.
    total_bytes: OnceLock<u64>,
}

impl DeviceAllocator {
    /// Creates an allocator that holds nothing yet.
    pub fn new(upstream: Arc<dyn Upstream>, settings: Settings) -> Arc<Self> {
        let mut allocator = Self {
            common: Common::new(upstream),
            directory: Directory::default(),
            imports: Imports::default(),
            scopes: Scopes::default(),
            central: Mutex::default(),
            settings: RwLock::new(settings.clone()),
            reserve_classes: RwLock::default(),
            total_bytes: OnceLock::new(),
        };
        let allowed_bytes = allocator.allowed_bytes(settings.per_process_memory_fraction());
        let central = allocator.central.get_mut();
        central.ledger.allowed_bytes = allowed_bytes;
        Arc::new(allocator)
    }

    /// Allocates a block of at least `bytes` for use on `stream`, at a multiple of 512. The memory comes from the private pool
    /// that allocations on `stream` are directed to, if any, otherwise from the shared pool. If `bytes` is 0, the result is a
    /// null block, which holds no memory.
    ///
    /// A program in steady state is served from the cache, without a driver call. Otherwise the call may block: the upstream's
    /// allocation blocks, and if the upstream has no room, the host waits for all pending events.
    ///
    /// # Errors
    /// [`is_out_of_memory`](AllocationError::is_out_of_memory) if there is no room even after all cached memory that can be
    /// released was released; or the upstream's error. The allocator stays usable.
    #[inline]
    pub fn allocate(&self, bytes: u64, stream: StreamId) -> Result<Block, AllocationError> {
        // The block is put together here, in the caller's own code, from values in registers. If it were returned through memory,
        // it would be copied at once, and the copy would wait for the stores that wrote its parts just before. Returning the
        // block costs 8 ns on top of a pair of 24, returning the span with the arena 2 (`docs/record/`, 2026-11-22); so the span
        // is an out-parameter.
        let mut span = Span::NULL;
        let arena = self.obtain(bytes, stream, &mut span)?;
        Ok(Block::new(arena, span, bytes, stream))
    }

    /// Finds memory for a block of `stream`. Returns its arena, and stores its range in `span`.
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
            let key = ArenaKey { stream, owner: Owner::Shared };
            Arena::new(&self.common, key, None, self.policy(false))
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
            let key = ArenaKey { stream, owner: Owner::Private(pool) };
            Arena::new(&self.common, key, options.source.clone(), self.policy(options.no_split))
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
        let mut state = arena.lock_keeping_last_freed();
        if state.policy.processes_all {
            drop(state);
            self.process_events();
            state = arena.lock();
        }
        state.process_events(arena);
        let request = Request { stack, ..state.request(bytes) };
        if state.take_last_freed(arena, &request, span) || state.take_from_bins(arena, &request, span) {
            return Ok(state.references.take(arena));
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
            self.obtain_on_slow_path(arena, request)
        };
        let (owner, found) = obtained.map_err(|error| self.report_failure(error))?;
        *span = found;
        Ok(owner)
    }

    #[cold]
    fn obtain_oddly(&self, arena: &Arc<Arena>, bytes: u64) -> Result<Arc<Arena>, AllocationError> {
        if bytes == 0 {
            return Ok(Arc::clone(arena));
        }
        // A request of this size is not rounded: the sum could overflow.
        let stack = self.common.watch.stack_of_allocation()?;
        let request = Request {
            requested_bytes: bytes,
            size_bytes: bytes,
            class: SizeClass::Large,
            stack,
            exact_address: false,
        };
        let error = self.out_of_memory(&mut *self.enter()?, arena, &request);
        Err(self.report_failure(error))
    }

    /// Releases cached memory to the upstream. *Blocks* until pending events have passed, then frees all
    /// free memory that no private pool relies on.
    ///
    /// # Errors
    /// [`is_capture`](AllocationError::is_capture) while a capture is under way; or the upstream's error, after which the rest
    /// stays cached.
    pub fn empty_cache(&self) -> Result<(), AllocationError> {
        self.empty("empty_cache", None)
    }

    /// Releases the cached memory of one private pool to the upstream, even if the pool still has references. A graph that was
    /// captured into the pool cannot be replayed afterwards.
    pub fn empty_pool_cache(&self, pool: PoolId) -> Result<(), AllocationError> {
        self.empty("empty_pool_cache", Some(pool))
    }

    fn empty(&self, call: &'static str, pool: Option<PoolId>) -> Result<(), AllocationError> {
        let stack = self.common.watch.stack_of_free();
        let mut central = self.enter()?;
        if self.common.is_capturing() {
            return Err(Kind::Capturing { call }.into());
        }
        central.ledger.given_back_at = stack;
        let outcome = self.release_cached(&mut central, pool);
        central.ledger.given_back_at = None;
        outcome
    }

    /// Checks, without waiting, which freed blocks other streams have finished with, and makes them available. Every allocation
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

    /// Limits the memory taken from the upstream to `fraction` of the device's total memory; 1 lifts the limit. Memory that was
    /// taken before is kept.
    ///
    /// # Errors
    /// If `fraction` is not within 0 and 1, or the upstream cannot report the total memory.
    pub fn set_memory_fraction(&self, fraction: f64) -> Result<(), AllocationError> {
        let settings = self.settings().with_per_process_memory_fraction(fraction)?;
        self.common
            .upstream
            .memory_info()
            .map_err(|error| AllocationError::upstream("memory_info", error))?;
        self.enter()?.ledger.allowed_bytes = self.allowed_bytes(fraction);
        *self.settings.write() = settings;
        Ok(())
    }

    /// Returns the fraction of the device's memory that may be taken from the upstream.
    pub fn memory_fraction(&self) -> f64 {
        self.settings().per_process_memory_fraction()
    }

    /// Adds a callback that is called when memory is short, before more is taken from the upstream.
    pub fn add_free_memory_callback(&self, callback: FreeMemoryCallback) {
        self.central().free_memory_callbacks.push(callback);
    }

    /// Returns a new private pool, with one reference for the caller to [`release`](Self::release_pool).
    pub fn create_pool(&self) -> PoolId {
        self.create_pool_with(PoolOptions::default())
    }

    /// Creates a private pool with options and one reference for the caller to [`release`](Self::release_pool).
    pub fn create_pool_with(&self, options: PoolOptions) -> PoolId {
        if options.source.is_some() {
            self.common.watch.note_calls_out();
        }
        self.central().pools.create(options)
    }

    /// Changes [`PoolOptions::use_on_oom`] of a pool, for future requests.
    ///
    /// # Errors
    /// If there is no such pool, or it has no reference left.
    pub fn set_pool_use_on_oom(&self, pool: PoolId, value: bool) -> Result<(), AllocationError> {
        self.enter()?.pools.change_options(pool, |options| options.use_on_oom = value)?;
        Ok(())
    }

    /// Changes [`PoolOptions::no_split`] of a pool. Blocks that were split before stay split.
    ///
    /// # Errors
    /// If there is no such pool, or it has no reference left.
    pub fn set_pool_no_split(&self, pool: PoolId, value: bool) -> Result<(), AllocationError> {
        let mut central = self.enter()?;
        for arena in central.pools.change_options(pool, |options| options.no_split = value)? {
            arena.lock().set_policy(&arena, self.policy(value));
        }
        Ok(())
    }

    /// Adds a reference: the pool's addresses keep their memory until it is released once more.
    ///
    /// # Errors
    /// If there is no such pool, or it has no reference left.
    pub fn retain_pool(&self, pool: PoolId) -> Result<(), AllocationError> {
        Ok(self.enter()?.pools.retain(pool)?)
    }

    /// Removes a reference. After the last one is removed, the pool's memory may be returned to the upstream as soon as it is
    /// free; its live blocks stay valid.
    ///
    /// # Errors
    /// If there is no such pool, or it has no reference left.
    pub fn release_pool(&self, pool: PoolId) -> Result<(), AllocationError> {
        Ok(self.enter()?.pools.release(pool)?)
    }

    /// Removes a reference from a pool whose memory may still be touched by other streams than its blocks' own, even after all
    /// blocks were dropped: by replays of graphs that were captured into it. The pool's memory returns to the upstream only after
    /// the work that these streams have at the time of the call.
    pub fn release_pool_after(&self, pool: PoolId, streams: &[StreamId]) -> Result<(), AllocationError> {
        Ok(self.enter()?.pools.release_after(pool, streams)?)
    }

    /// Adds a reference to a pool whose last reference was released, so that its remaining memory can be used again. Returns
    /// `false` if the pool has no memory or still has a reference. Call this only when all work that may touch its memory is
    /// done.
    pub fn revive_pool(&self, pool: PoolId) -> bool {
        let mut central = self.central();
        let revived = central.pools.revive(pool);
        if revived {
            self.close_aliases(pool);
        }
        revived
    }

    /// Returns the number of references of a pool: one of its creator, one per call of [`retain_pool`](Self::retain_pool), and
    /// one per open scope.
    pub fn pool_use_count(&self, pool: PoolId) -> usize {
        self.central().pools.references(pool)
    }

    /// Returns the bytes that a private pool has reserved: one entry of
    /// [`reserved_bytes_by_private_pools`](DeviceStatistics::reserved_bytes_by_private_pools), without the other figures.
    pub fn pool_reserved_bytes(&self, pool: PoolId) -> u64 {
        self.central().ledger.private.get(&pool).map_or(0, |statistic| statistic.current)
    }

    /// Directs requests that match `filter` to `pool` until [`end_allocate_to_pool`](Self::end_allocate_to_pool). Meanwhile a
    /// capture counts as under way: no event is touched, no cached memory is returned to the upstream, and blocks that are freed
    /// with uses on other streams wait for the end. Call this before the capture begins. Pools nest; the pool begun last ends
    /// first. The pool is retained meanwhile.
    ///
    /// *Blocks* until calls that touch events have finished doing so. If no other capture is under way, the remaining memory of
    /// pools without references is returned to the upstream, after the work that may touch it, because it could not be returned
    /// during the capture.
    ///
    /// # Errors
    /// If there is no such pool, or allocations are already directed to it.
    pub fn begin_allocate_to_pool(&self, pool: PoolId, filter: StreamFilter) -> Result<(), AllocationError> {
        let mut central = self.enter()?;
        self.open_scope(&mut central, pool, Requests::OnStreams(filter))?;
        self.announce_capture(&mut central);
        Ok(())
    }

    /// Ends the redirection that [`begin_allocate_to_pool`](Self::begin_allocate_to_pool) began. Call it after the capture has
    /// ended, since the postponed events are recorded now.
    ///
    /// # Errors
    /// If no allocations are directed to this pool.
    pub fn end_allocate_to_pool(&self, pool: PoolId) -> Result<(), AllocationError> {
        // Held to the end, so that no other capture begins before the events are recorded.
        let mut central = self.enter()?;
        self.scopes.end_streams(pool)?;
        // Done first, so that a panic of the upstream below does not leave a capture under way for ever.
        let last = self.common.end_capture();
        central.pools.release(pool)?;
        if last {
            self.common.end_captures();
        }
        Ok(())
    }

    /// Returns the statistics at this moment.
    pub fn statistics(&self) -> DeviceStatistics {
        let central = self.central();
        let mut statistics = central.ledger.statistics.clone();
        statistics.reserved_bytes_by_private_pools =
            central.ledger.private.iter().map(|(pool, statistic)| (*pool, *statistic)).collect();
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

    /// Returns the statistics under PyTorch's keys, sorted by key.
    pub fn memory_stats(&self) -> Vec<(String, i64)> {
        self.statistics().memory_stats()
    }

    /// Sets the peak of every figure to the present value of the figure.
    pub fn reset_peak_memory_stats(&self) {
        let mut central = self.central();
        central.ledger.reset_peak();
        let arenas = self.settled_arenas();
        self.common.totals.reset_peak(&self.common.with(), &Common::each(&arenas));
        self.reset_driver_peak();
    }

    /// Sets every sum (`allocated`, `freed`) and every counter (`num_ooms` and so on) to 0.
    pub fn reset_accumulated_memory_stats(&self) {
        let mut central = self.central();
        central.ledger.reset_accumulated();
        self.common.reset_waits();
        let arenas = self.settled_arenas();
        self.common.totals.reset_accumulated(&Common::each(&arenas));
    }

    /// Returns all arenas. First, each arena processes the blocks that were dropped while it was busy.
    fn settled_arenas(&self) -> Vec<Arc<Arena>> {
        let arenas = self.common.all_arenas();
        arenas.iter().for_each(|arena| drop(arena.lock()));
        arenas
    }

    /// Returns all segments in address order, each with its blocks.
    pub fn snapshot(&self) -> Vec<SegmentSnapshot> {
        let _cold = self.central();
        let arenas = self.common.all_arenas();
        let mut segments: Vec<_> = arenas.iter().flat_map(|arena| arena.lock().snapshot(arena.key)).collect();
        segments.sort_by_key(|segment| segment.address);
        segments
    }

    /// Returns the settings.
    pub fn settings(&self) -> Settings {
        self.settings.read().clone()
    }

    /// Changes the settings for future requests. Allocated and cached memory is not changed.
    ///
    /// # Errors
    /// If the backend would change: memory of one backend cannot be freed by another.
    pub fn set_settings(&self, settings: Settings) -> Result<(), AllocationError> {
        let mut central = self.enter()?;
        let before = self.settings();
        if settings.backend() != before.backend() || settings.caching() != before.caching() {
            return Err(Kind::Fixed { what: "the backend" }.into());
        }
        central.ledger.allowed_bytes = self.allowed_bytes(settings.per_process_memory_fraction());
        *self.settings.write() = settings;
        let mut oversize_segments = 0;
        for arena in self.common.all_arenas() {
            let no_split = central.pools.no_split(arena.key.owner);
            let mut state = arena.lock();
            state.set_policy(&arena, self.policy(no_split));
            oversize_segments += state.oversize_segments();
        }
        central.ledger.recount_oversize(oversize_segments);
        Ok(())
    }

    /// Locks the central state.
    ///
    /// # Panics
    /// If the calling thread is in a function that is called with a lock held ([`reentry`](super::reentry)), since that lock may
    /// be this one.
    pub(crate) fn central(&self) -> MutexGuard<'_, Central> {
        self.enter().unwrap_or_else(|refusal| panic!("{}", AllocationError::from(refusal)))
    }

    /// Locks the central state; returns an error where [`central`](Self::central) panics.
    pub(crate) fn enter(&self) -> Result<MutexGuard<'_, Central>, Kind> {
        reentry::check()?;
        Ok(self.central.lock())
    }

    /// Returns the policy that results from the settings on this upstream.
    fn policy(&self, no_split: bool) -> Policy {
        let has_virtual_memory = self.common.upstream.virtual_memory().is_some();
        Policy::new(&self.settings(), has_virtual_memory, no_split)
    }

    /// Returns the size of the device's memory.
    ///
    /// # Errors
    /// Returns the upstream's error, for example when the device is lost.
    fn total_bytes(&self) -> Result<u64, AllocationError> {
        if let Some(total_bytes) = self.total_bytes.get() {
            return Ok(*total_bytes);
        }
        let info = self.common.upstream.memory_info();
        let info = info.map_err(|error| AllocationError::upstream("memory_info", error))?;
        Ok(*self.total_bytes.get_or_init(|| info.total_bytes))
    }

    fn allowed_bytes(&self, fraction: f64) -> Option<u64> {
        if fraction >= 1.0 {
            return None;
        }
        Some((fraction * self.total_bytes().ok()? as f64).round() as u64)
    }

    /// Adds `stream` to a class of streams; `expandable_segments_reserve_by_class` can set the addresses that an expandable
    /// segment of the class reserves. `None` removes the stream from its class. Existing segments are not changed.
    pub fn set_expandable_segment_reserve_class(&self, stream: StreamId, class: Option<&str>) {
        let mut classes = self.reserve_classes.write();
        match class {
            Some(class) => drop(classes.insert(stream, class.to_owned())),
            None => drop(classes.remove(&stream)),
        }
    }

    /// Returns the reserve class of a stream, if one was set.
    pub fn expandable_segment_reserve_class(&self, stream: StreamId) -> Option<String> {
        self.reserve_classes.read().get(&stream).cloned()
    }

    /// Returns the addresses that expandable segments have reserved, in bytes, and the number of such segments. Addresses are not
    /// memory: most of them are not mapped.
    pub fn expandable_segments_reserved(&self) -> (u64, usize) {
        let arenas = self.common.all_arenas();
        let sizes = arenas.iter().flat_map(|arena| {
            let state = arena.lock();
            let expandable = state.blocks.segments().filter(|segment| segment.tag.is_expandable);
            expandable.map(|segment| segment.size_bytes).collect::<Vec<_>>()
        });
        sizes.fold((0, 0), |(bytes, count), size_bytes| (bytes + size_bytes, count + 1))
    }

    /// Returns the number of addresses to reserve for an expandable segment that `bytes` must fit in; `None` if that exceeds the
    /// limit.
    pub(crate) fn segment_reserve_bytes(
        &self,
        stream: StreamId,
        bytes: u64,
    ) -> Result<Option<u64>, AllocationError> {
        let reserve_bytes = self.full_reserve_bytes(stream)?;
        Ok((reserve_bytes >= bytes).then(|| reserve_bytes.min(MOST_RESERVE_BYTES.max(bytes))))
    }

    /// Returns the most addresses that a segment may reserve.
    pub(crate) fn full_reserve_bytes(&self, stream: StreamId) -> Result<u64, AllocationError> {
        let total_bytes = self.total_bytes()?;
        let class = self.expandable_segment_reserve_class(stream);
        let bytes = self.settings().expandable_segments_reserve_bytes(class.as_deref(), total_bytes);
        Ok(bytes.min(MAX_REQUEST_BYTES))
    }

    /// Declares that work of `stream` may touch memory of other streams without a record of the use, even memory that is freed
    /// before that work is done. PyTorch's programs may do so, as long as the memory's own stream has waited for the work when it
    /// next requests memory. Free memory then leaves its stream, and pages move, only after all such streams have passed as well.
    /// (Reuse on the same stream needs no more care than before.) A stream that the driver no longer has counts as done. As soon
    /// as one of them [may end](crate::Upstream::may_end) at any moment, memory leaves its stream only after a wait for the
    /// device.
    pub fn add_unrecorded_user(&self, stream: StreamId) {
        self.common.add_unrecorded_user(stream);
    }

    pub(crate) fn common(&self) -> &Arc<Common> {
        &self.common
    }

    /// Returns the arena that serves requests of the calling thread on `stream`.
    ///
    /// # Errors
    /// If the pool that the requests are directed to has lost its last reference.
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
        // Arenas may outlive the allocator, as long as they have blocks; pages that are in no arena do not.
        self.common.all_arenas().iter().for_each(|arena| arena.close());
        if let Some(memory) = self.common.upstream.virtual_memory() {
            // Memory that the upstream refuses to free now is offered again when an arena is dropped; there is no caller left
            // that an error could be returned to.
            let _ = self.common.destroy_spare_pages(memory, |_| {});
        }
    }
}

impl fmt::Debug for DeviceAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceAllocator").finish_non_exhaustive()
    }
}
