//! The cache of pinned host memory.
//!
//! The device copies to and from pinned memory by itself, while the host goes on. Pinning is slow (it talks to the driver
//! and the kernel, page by page), so freed memory is kept. There is no splitting and merging: sizes are rounded up to few
//! classes, and a request takes a free block of its class, the one that was freed last, which is the likeliest to be in the
//! host's caches.
//!
//! A block belongs to no stream. Each stream that copies to or from it is recorded with [`HostBlock::record_use`], which
//! records an event behind the copy; freed, the block serves no request until all its events have passed. (It may be freed at
//! once after the copy was submitted: the next owner gets it when the copy is over.)
//!
//! ```text
//!            allocate ┌───────────┐ drop
//!          ┌─────────▶│ held      │──────────────┐
//!          │          └───────────┘              ▼
//!  ┌───────┴──┐  no uses, or all passed     ┌─────────┐ used by a capture ┌───────────────────────┐
//!  │ free     │◀────────────────────────────│ freed   │──────────────────▶│ kept, until the graphs │
//!  └──┬────▲──┘                             └────┬────┘                   │ of the pool are gone   │
//!     │    │ pin                   an event fails│                        └───────────────────────┘
//!     ▼    │                                     ▼
//!   upstream                            retired: never used again
//! ```
//!
//! # The rooms
//!
//! | module | knows | never sees |
//! |---|---|---|
//! | `settings` | what a request comes to: classes and thresholds | memory |
//! | `uses` | events, and when they have passed | captures |
//! | `bucket` | one lock, and the blocks of one size behind it | other buckets |
//! | `captures` | which captures are under way, and their private pools | what is in a bucket |
//! | `pinning` | the upstream, the reserve, their accounts | the code that asks |
//! | `unsplit`, `log` | a range of pinned memory; what was recorded of it | what holds it |
//! | `core` | the ways between all these; what to do when memory is short | handles |
//! | `poller` | the background thread | |
//! | `watch` | the history: what happened to which block; snapshots | how a block is found |
//! | `block` | handles | |
//!
//! # What holds
//!
//! - No block is smaller than what was asked for, whatever the settings were when it was pinned. Above 1 MiB at most 12.5 %
//!   of a block are wasted, unless the alternative is failure (or the settings are [PyTorch's](HostSettings::pytorch)).
//! - A block is handed out only after all events of its last life have passed.
//! - A block whose events have passed waits for nothing else: not for another stream, another block, or an event that cannot
//!   be asked for. (PyTorch asks in one queue, in which one event that never passes holds up all behind it.)
//! - A request that fails finds no free block that is large enough, anywhere it may take one from.
//! - In steady state a call takes one lock, that of its bucket, and calls no driver.
//! - Any call of the upstream may fail, or panic: the allocator is valid before and after, and works on.
//! - Dropping a block neither fails nor waits: `inbox`.
//!
//! What is not here: the copies themselves, and access to the memory, which only its address is known of.

mod block;
mod bucket;
mod captures;
mod core;
mod log;
mod pinning;
mod poller;
mod settings;
mod statistics;
mod unsplit;
mod uses;
mod watch;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::bucket::PinnedOwner;
use self::core::Core;
use self::poller::Poller;
use crate::error::AllocationError;
use crate::ids::{PoolId, StreamFilter, StreamId};
use crate::upstream::HostUpstream;

pub use self::block::HostBlock;
pub use self::settings::HostSettings;
pub use self::statistics::{HostStatistics, StatisticEntry, Tally, TimeStatistic};

/// A caching allocator for pinned host memory. See the [module's essay](self).
///
/// All methods may be called from any thread. It lives as long as any of its blocks; when the last is gone it waits for
/// pending uses and gives everything back to the upstream.
pub struct HostAllocator {
    core: Arc<Core>,
    poller: Mutex<Option<Poller>>,
}

impl HostAllocator {
    /// Creates an allocator that holds nothing yet.
    pub fn new(upstream: Arc<dyn HostUpstream>, settings: HostSettings) -> Arc<Self> {
        let core = Arc::new(Core::new(upstream, HostSettings::default()));
        let allocator = Arc::new(Self { core, poller: Mutex::default() });
        allocator.set_settings(settings);
        allocator
    }

    /// Returns how it behaves now.
    pub fn settings(&self) -> HostSettings {
        self.core.settings()
    }

    /// Changes how it behaves from now on. What is pinned stays as it is: blocks that are cached serve under the new rounding
    /// if they fit, those that are now too large to be kept go at [`empty_cache`](Self::empty_cache), and a reserve that was
    /// made stays in use until it is used up. Ends the background thread, and waits for its end, if there is to be none.
    pub fn set_settings(&self, settings: HostSettings) {
        let mut poller = self.poller();
        let background = settings.pinned_use_background_threads();
        self.core.set_settings(settings);
        if !background {
            *poller = None;
        } else if poller.is_none() {
            *poller = Poller::start(&self.core);
        }
    }

    /// Returns a block of at least `bytes` of pinned memory, for no stream in particular: of private pools only one that serves all
    /// streams serves it. `bytes` of 0 give a null block, which holds no memory. May block: when nothing cached fits, the
    /// upstream pins memory, and when it has run out, the host waits for all pending uses.
    ///
    /// # Errors
    /// [`is_out_of_memory`](AllocationError::is_out_of_memory) when the host has no more to pin; or the upstream's error. The
    /// allocator works on as before.
    pub fn allocate(self: &Arc<Self>, bytes: u64) -> Result<HostBlock, AllocationError> {
        self.allocate_for(bytes, None)
    }

    /// Allocates a block as [`allocate`](Self::allocate) does, for work on `stream`: while allocations for it go to a private pool (see
    /// [`begin_allocate_to_pool`](Self::begin_allocate_to_pool)), the block is from there.
    ///
    /// # Errors
    /// Those of [`allocate`](Self::allocate).
    pub fn allocate_on(self: &Arc<Self>, bytes: u64, stream: StreamId) -> Result<HostBlock, AllocationError> {
        self.allocate_for(bytes, Some(stream))
    }

    fn allocate_for(
        self: &Arc<Self>,
        bytes: u64,
        stream: Option<StreamId>,
    ) -> Result<HostBlock, AllocationError> {
        if bytes == 0 {
            return Ok(HostBlock::new(Arc::clone(self), None, PinnedOwner::Shared));
        }
        let mut owner = PinnedOwner::Shared;
        if self.core.gate.is_closed()
            && let Some(pool) = self.core.gate.hold().pool_for(stream)
        {
            owner = PinnedOwner::Private(Arc::clone(pool));
        }
        let block = self.core.allocate(bytes, &owner, self.core.common.history.stack_of_allocation())?;
        Ok(HostBlock::new(Arc::clone(self), Some(block), owner))
    }

    /// Looks how far the streams have come, and gives back what is not to be kept. Calls that need a block do this by themselves;
    /// call it to bring the statistics up to date. Touches no event while a capture is under way.
    pub fn process_events(&self) {
        self.core.process_events();
    }

    /// Gives all memory that no block holds back to the upstream, but for the reserve and what private pools hold. *Blocks*
    /// until pending uses are over; what is free without that goes back first.
    ///
    /// # Errors
    /// [`is_capture`](AllocationError::is_capture) while a capture is under way; or the upstream's error, after which
    /// the rest stays cached (but see
    /// [`pinned_free_catch_all`](HostSettings::with_pinned_free_catch_all)).
    pub fn empty_cache(&self) -> Result<(), AllocationError> {
        self.core.empty_cache()
    }

    /// Returns a new private pool with one reference, which the caller gives back with [`release_pool`](Self::release_pool).
    pub fn create_pool(&self) -> PoolId {
        let id = PoolId::unique();
        let retained = self.core.pools.retain(id);
        debug_assert!(retained.is_ok(), "a new name is not known: {retained:?}");
        id
    }

    /// Adds a reference to a private pool. A name that is not known here, a device allocator's for instance, becomes a pool.
    ///
    /// # Errors
    /// [`is_invalid_argument`](AllocationError::is_invalid_argument) if the last reference was released, and blocks of the
    /// pool are still out.
    pub fn retain_pool(&self, pool: PoolId) -> Result<(), AllocationError> {
        Ok(self.core.pools.retain(pool)?)
    }

    /// Takes a reference away. With the last, no graph uses the pool's memory any more: no replay is under way, except those that
    /// [`record_use`](HostBlock::record_use) or [`record_stream`](HostBlock::record_stream) has recorded. All of it is shared
    /// from then on.
    ///
    /// # Errors
    /// [`is_invalid_argument`](AllocationError::is_invalid_argument) if there is no reference.
    pub fn release_pool(&self, pool: PoolId) -> Result<(), AllocationError> {
        self.released(self.core.pools.release(pool)?);
        Ok(())
    }

    /// Directs requests for streams that match the filter to the pool until [`end_allocate_to_pool`](Self::end_allocate_to_pool).
    /// Meanwhile blocks that such streams use are kept for the pool, and *no event is touched*: freed blocks that were used wait.
    /// Call it before the capture begins. Captures may overlap; the scope begun last whose filter matches serves. Holds a
    /// reference. Waits for calls that are touching events.
    ///
    /// # Errors
    /// [`is_invalid_argument`](AllocationError::is_invalid_argument) if there is no reference to the pool, or
    /// allocations go to it already.
    pub fn begin_allocate_to_pool(&self, pool: PoolId, filter: StreamFilter) -> Result<(), AllocationError> {
        let private = self.core.pools.hold(pool)?;
        let begun = self.core.gate.begin(private, filter);
        if begun.is_err() {
            self.released(self.core.pools.release(pool)?);
        }
        Ok(begun?)
    }

    /// Ends what [`begin_allocate_to_pool`](Self::begin_allocate_to_pool) began. Call it after the capture has ended: if it
    /// was the last, the events that had to wait for that are recorded now.
    ///
    /// # Errors
    /// [`is_invalid_argument`](AllocationError::is_invalid_argument) if no allocations go to the pool.
    pub fn end_allocate_to_pool(&self, pool: PoolId) -> Result<(), AllocationError> {
        self.core.gate.end(pool)?;
        self.released(self.core.pools.release(pool)?);
        self.core.process_events();
        Ok(())
    }

    fn released(&self, was_last: bool) {
        if was_last {
            self.core.sweep();
            // What a graph kept may have marks: their events are recorded as early as can be.
            self.core.process_events();
        }
    }

    /// Returns the statistics at this moment.
    pub fn statistics(&self) -> HostStatistics {
        self.core.statistics()
    }

    /// Returns the statistics under PyTorch's keys, sorted by key (`torch.cuda.host_memory_stats`).
    pub fn memory_stats(&self) -> Vec<(String, u64)> {
        self.statistics().memory_stats()
    }

    /// Returns the statistics by quantity (`torch.cuda.host_memory_stats_as_nested_dict`).
    pub fn memory_stats_nested(&self) -> Vec<(&'static str, StatisticEntry)> {
        self.statistics().memory_stats_nested()
    }

    /// Sets every peak to what there is now.
    pub fn reset_peak_memory_stats(&self) {
        self.core.reset_peak();
    }

    /// Sets every sum, time and counter to 0.
    pub fn reset_accumulated_memory_stats(&self) {
        self.core.reset_accumulated();
    }

    fn poller(&self) -> MutexGuard<'_, Option<Poller>> {
        self.poller.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for HostAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostAllocator").field("settings", &self.settings()).finish_non_exhaustive()
    }
}
