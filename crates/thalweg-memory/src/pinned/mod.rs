//! The cache of pinned host memory.
//!
//! The device copies to and from pinned memory on its own, while the host continues. Pinning is slow (it involves the driver and
//! the kernel, page by page), so freed memory is kept. Blocks are not split or merged: sizes are rounded up to few classes, and a
//! request takes a free block of its class, the last-freed one, which is the likeliest to be in the host's caches.
//!
//! A block belongs to no stream. Each stream that copies to or from it is recorded with [`HostBlock::record_use`], which records
//! an event after the copy; once freed, the block serves no request until all its events have passed. (It may be freed right
//! after the copy was submitted: the next owner gets it when the copy is over.)
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
//! | `rounding` | the size that a request is rounded to: classes and thresholds | memory |
//! | `uses` | events, and when they have passed | captures |
//! | `bucket` | one lock, and the blocks of one size that it guards | other buckets |
//! | `captures` | which captures are under way, and their private pools | the contents of a bucket |
//! | `pinning` | the upstream, the reserve, their accounts | the requesting code |
//! | `unsplit`, `log` | a range of pinned memory; its recorded events | its holder |
//! | `core` | the ways between all these; the steps when memory is short | handles |
//! | `poller` | the background thread | |
//! | `watch` | the history: the events of each block; snapshots | how a block is found |
//! | `block` | handles | |
//!
//! # Guarantees
//!
//! - No block is smaller than the requested size, whatever the settings were when it was pinned. Above 1 MiB at most 12.5 % of a
//!   block are wasted, unless the alternative is failure (or the settings are [PyTorch's](crate::Policy::PyTorch)).
//! - A block is handed out only after all events of its last use have passed.
//! - A block whose events have passed waits for nothing else: not for another stream, another block, or an event that cannot be
//!   queried. (PyTorch queries in one queue, in which one event that never passes delays all later ones.)
//! - A request fails only if there is no free block that is large enough, anywhere it may take one from.
//! - In steady state a call takes one lock, that of its bucket, and makes no driver call.
//! - Any call of the upstream may fail, or panic: the allocator is valid before and after, and stays usable.
//! - Dropping a block neither fails nor waits: `inbox`.
//!
//! Not part of this module: the copies themselves, and access to the memory, of which only the address is handled.

mod block;
mod bucket;
mod captures;
mod core;
mod log;
mod pinning;
mod poller;
mod rounding;
mod statistics;
mod unsplit;
mod uses;
mod watch;

use std::fmt;
use std::sync::Arc;

use thalweg_lock::{Mutex, MutexGuard};

use self::bucket::PinnedOwner;
use self::core::Core;
use self::poller::Poller;
use crate::error::AllocationError;
use crate::ids::{PoolId, StreamFilter, StreamId};
use crate::settings::Settings;
use crate::upstream::HostUpstream;

pub use self::block::HostBlock;
pub use self::statistics::{HostStatistics, StatisticEntry, Tally, TimeStatistic};

/// A caching allocator for pinned host memory. See the [module's essay](self).
///
/// All methods may be called from any thread. The allocator lives as long as any of its blocks; when the last one is dropped, it
/// waits for pending uses and returns all memory to the upstream.
pub struct HostAllocator {
    core: Arc<Core>,
    poller: Mutex<Option<Poller>>,
}

impl HostAllocator {
    /// Creates an allocator that holds nothing yet.
    pub fn new(upstream: Arc<dyn HostUpstream>, settings: Settings) -> Arc<Self> {
        let core = Arc::new(Core::new(upstream, Settings::default()));
        let allocator = Arc::new(Self { core, poller: Mutex::default() });
        allocator.set_settings(settings);
        allocator
    }

    /// Returns the present settings.
    pub fn settings(&self) -> Settings {
        self.core.settings()
    }

    /// Changes the settings from now on. Pinned memory is not changed: blocks that are cached serve under the new rounding if
    /// they fit, blocks that are now too large to be kept are returned by [`empty_cache`](Self::empty_cache), and an existing
    /// reserve stays in use until it is used up. If the new settings have no background thread, the call stops it and waits for
    /// its end.
    pub fn set_settings(&self, settings: Settings) {
        let mut poller = self.poller();
        let background = settings.pinned_use_background_threads();
        self.core.set_settings(settings);
        if !background {
            *poller = None;
        } else if poller.is_none() {
            *poller = Poller::start(&self.core);
        }
    }

    /// Returns a block of at least `bytes` of pinned memory, for no particular stream: the only private pool that may serve it is
    /// one that serves all streams. If `bytes` is 0, the result is a null block, which holds no memory. May block: if no cached
    /// block fits, the upstream pins memory, and if the upstream has run out, the host waits for all pending uses.
    ///
    /// # Errors
    /// [`is_out_of_memory`](AllocationError::is_out_of_memory) if the host has no more memory to pin; or the upstream's error.
    /// The allocator stays usable.
    pub fn allocate(self: &Arc<Self>, bytes: u64) -> Result<HostBlock, AllocationError> {
        self.allocate_for(bytes, None)
    }

    /// Allocates a block as [`allocate`](Self::allocate) does, for work on `stream`: while allocations for it are directed to a
    /// private pool (see [`begin_allocate_to_pool`](Self::begin_allocate_to_pool)), the block is from that pool.
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

    /// Checks the progress of the streams, and returns memory that is not to be kept. Calls that need a block do this
    /// automatically; call it to update the statistics. Touches no event while a capture is under way.
    pub fn process_events(&self) {
        self.core.process_events();
    }

    /// Releases all memory that no caller holds to the upstream, except the reserve and the memory of private pools. *Blocks*
    /// until pending uses are over; memory that is free already is returned first.
    ///
    /// # Errors
    /// [`is_capture`](AllocationError::is_capture) while a capture is under way; or the upstream's error, after which the rest
    /// stays cached (but see [`pinned_free_catch_all`](Settings::with_pinned_free_catch_all)).
    pub fn empty_cache(&self) -> Result<(), AllocationError> {
        self.core.empty_cache()
    }

    /// Returns a new private pool with one reference, which the caller releases with [`release_pool`](Self::release_pool).
    pub fn create_pool(&self) -> PoolId {
        let id = PoolId::unique();
        let retained = self.core.pools.retain(id);
        debug_assert!(retained.is_ok(), "a new name is not known: {retained:?}");
        id
    }

    /// Adds a reference to a private pool. An unknown name, for example of a device allocator's pool, becomes a new pool.
    ///
    /// # Errors
    /// [`is_invalid_argument`](AllocationError::is_invalid_argument) if the last reference was released, and callers still hold
    /// blocks of the pool.
    pub fn retain_pool(&self, pool: PoolId) -> Result<(), AllocationError> {
        Ok(self.core.pools.retain(pool)?)
    }

    /// Removes a reference. When the last one is removed, no graph may use the pool's memory any more: no replay is under way,
    /// except those that [`record_use`](HostBlock::record_use) or [`record_stream`](HostBlock::record_stream) has recorded. All
    /// of the memory is shared from then on.
    ///
    /// # Errors
    /// [`is_invalid_argument`](AllocationError::is_invalid_argument) if there is no reference.
    pub fn release_pool(&self, pool: PoolId) -> Result<(), AllocationError> {
        self.released(self.core.pools.release(pool)?);
        Ok(())
    }

    /// Directs requests for streams that match the filter to the pool until [`end_allocate_to_pool`](Self::end_allocate_to_pool).
    /// Meanwhile blocks that such streams use are kept for the pool, and *no event is touched*: freed blocks that were used wait.
    /// Call this before the capture begins. Captures may overlap; of the scopes whose filter matches, the one begun last serves.
    /// Holds a reference. Waits for calls that are touching events.
    ///
    /// # Errors
    /// [`is_invalid_argument`](AllocationError::is_invalid_argument) if there is no reference to the pool, or allocations are
    /// already directed to it.
    pub fn begin_allocate_to_pool(&self, pool: PoolId, filter: StreamFilter) -> Result<(), AllocationError> {
        let private = self.core.pools.hold(pool)?;
        let begun = self.core.gate.begin(private, filter);
        if begun.is_err() {
            self.released(self.core.pools.release(pool)?);
        }
        Ok(begun?)
    }

    /// Ends the redirection that [`begin_allocate_to_pool`](Self::begin_allocate_to_pool) began. Call it after the capture has
    /// ended: if it was the last, the postponed events are recorded now.
    ///
    /// # Errors
    /// [`is_invalid_argument`](AllocationError::is_invalid_argument) if no allocations are directed to the pool.
    pub fn end_allocate_to_pool(&self, pool: PoolId) -> Result<(), AllocationError> {
        self.core.gate.end(pool)?;
        self.released(self.core.pools.release(pool)?);
        self.core.process_events();
        Ok(())
    }

    fn released(&self, was_last: bool) {
        if was_last {
            self.core.sweep();
            // Blocks that a graph kept may have marks: their events are recorded as early as possible.
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

    /// Sets the peak of every figure to the present value of the figure.
    pub fn reset_peak_memory_stats(&self) {
        self.core.reset_peak();
    }

    /// Sets every sum, time and counter to 0.
    pub fn reset_accumulated_memory_stats(&self) {
        self.core.reset_accumulated();
    }

    fn poller(&self) -> MutexGuard<'_, Option<Poller>> {
        self.poller.lock()
    }
}

impl fmt::Debug for HostAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostAllocator").field("settings", &self.settings()).finish_non_exhaustive()
    }
}
