//! The state that all handles of a host allocator share: the buckets and the ways between them.
//!
//! A request takes one bucket's lock. Further steps follow only if no block there serves:
//!
//! ```text
//! 1. the bucket of its size            one lock, no driver
//! 2. the events of that bucket         a few queries
//! 3. the upstream                      pins
//! 4. out of memory:  the events of all buckets, then the bucket again, then all free memory back and the upstream again
//! 5.                 the same, waiting for the events
//! 6.                 any free block that is large enough
//! ```
//!
//! Waiting (5) comes after every step that does not need it, and all blocks that have completed are found before the first wait:
//! a stuck stream delays no request that can be served without it. Steps 4 and 5 are left out during a capture, when events may
//! not be touched and freeing may break the capture. Step 6 makes sure that a request fails only when no free block could serve
//! it. A private pool that finds nothing may take a shared block permanently; never the other way round.
//!
//! *Chores* are tasks that a drop leaves to others because it must not wait: returning blocks that are too large to be kept, and
//! emptying pools that were closed. The next call of any kind does them; a flag indicates whether there are any.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use thalweg_lock::{Mutex, MutexGuard, RwLock, RwLockReadGuard};

use super::bucket::{Arrival, Bucket, Common, Freed, PinnedOwner, Shelf};
use super::captures::{Gate, PrivatePool, PrivatePools};
use super::pinning::Pinning;
use super::poller::Wake;
use super::rounding::Rounding;
use super::statistics::{self, HostStatistics, Tally};
use super::unsplit::{Asked, PinnedBlock};
use super::uses::Recorder;
use crate::error::{AllocationError, Kind, OutOfMemory};
use crate::settings::Settings;
use crate::trace::history::{History, StackId};
use crate::upstream::HostUpstream;

/// The size that no request may exceed (1 EiB): a larger one can only be a mistake, and rounding cannot overflow.
const MAX_REQUEST_BYTES: u64 = 1 << MAX_EXPONENT;
const MAX_EXPONENT: usize = 60;

/// The state of a host allocator. See the [module's essay](self).
pub(crate) struct Core {
    upstream: Arc<dyn HostUpstream>,
    pub(crate) recorder: Recorder,
    settings: Mutex<Settings>,
    pub(crate) common: Common,
    /// The shared buckets, indexed by the exponent of the smallest power of two that is at least the size.
    shared: [Bucket; MAX_EXPONENT + 1],
    pub(crate) gate: Gate,
    pub(crate) pools: PrivatePools,
    pub(crate) pinning: Pinning,
    /// Held for reading while a call has blocks that are in no bucket and held by no caller, and for writing while all blocks are
    /// listed. It is taken before the locks of buckets.
    pub(crate) moving: RwLock<()>,
    has_chores: AtomicBool,
    /// The number of times that a pool was about to be forgotten, and the number of times that this had finished.
    forgettings_begun: AtomicU64,
    forgettings_ended: AtomicU64,
    pub(crate) wake: Wake,
}

impl Core {
    pub(crate) fn new(upstream: Arc<dyn HostUpstream>, settings: Settings) -> Self {
        Self {
            recorder: Recorder::new(Arc::clone(&upstream)),
            upstream,
            common: Common { rounding: Rounding::new(&settings), history: History::new() },
            moving: RwLock::default(),
            settings: Mutex::new(settings),
            shared: std::array::from_fn(|_| Bucket::default()),
            gate: Gate::default(),
            forgettings_begun: AtomicU64::new(0),
            forgettings_ended: AtomicU64::new(0),
            pools: PrivatePools::default(),
            pinning: Pinning::default(),
            has_chores: AtomicBool::new(false),
            wake: Wake::default(),
        }
    }

    pub(crate) fn settings(&self) -> Settings {
        self.settings.lock().clone()
    }

    pub(crate) fn set_settings(&self, settings: Settings) {
        self.common.rounding.set(&settings);
        *self.settings.lock() = settings;
    }

    /// Finds memory for a request of at least 1 byte.
    pub(crate) fn allocate(
        &self,
        bytes: u64,
        owner: &PinnedOwner,
        stack: Option<StackId>,
    ) -> Result<PinnedBlock, AllocationError> {
        if bytes > MAX_REQUEST_BYTES {
            return Err(self.out_of_memory(bytes));
        }
        self.do_chores();
        let asked = Asked { request: self.common.rounding.request(bytes), stack };
        if let Some(block) = self.cached(&asked, owner) {
            return Ok(block);
        }
        if let Some(block) = self.pinned(&asked, owner)? {
            return Ok(block);
        }
        let mut failure = None;
        for wait in [false, true] {
            if !self.settle(wait) {
                break;
            }
            if let Some(block) = self.cached(&asked, owner) {
                return Ok(block);
            }
            failure = self.give_back_free().err().or(failure);
            if let Some(block) = self.pinned(&asked, owner)? {
                return Ok(block);
            }
        }
        match self.any(&asked, owner) {
            Some(block) => Ok(block),
            None => Err(failure.unwrap_or_else(|| self.out_of_memory(bytes))),
        }
    }

    /// Takes a cached block, possibly one that has just become free.
    fn cached(&self, asked: &Asked, owner: &PinnedOwner) -> Option<PinnedBlock> {
        let bucket = self.bucket(owner, asked.request.size_bytes);
        let mut shelf = self.lock(bucket);
        if let Some(block) = shelf.take(asked, &self.common) {
            return Some(block);
        }
        if !shelf.has_pending() {
            return None;
        }
        drop(shelf);
        let gate = self.gate.try_hold_open()?;
        let mut shelf = self.lock(bucket);
        self.process(&mut shelf, false);
        drop(gate);
        shelf.take(asked, &self.common)
    }

    fn pinned(&self, asked: &Asked, owner: &PinnedOwner) -> Result<Option<PinnedBlock>, AllocationError> {
        let history = &self.common.history;
        let block = self.pinning.pin(asked, history, &self.settings(), &*self.upstream)?;
        Ok(block.map(|block| self.taken(block, asked, owner)))
    }

    fn taken(&self, block: PinnedBlock, asked: &Asked, owner: &PinnedOwner) -> PinnedBlock {
        self.lock(self.bucket(owner, block.size_bytes)).taken(block, asked, &self.common)
    }

    /// Takes the smallest free block that is large enough, however much of it is unused.
    fn any(&self, asked: &Asked, owner: &PinnedOwner) -> Option<PinnedBlock> {
        let request = &asked.request;
        let own = match owner {
            PinnedOwner::Private(pool) => Some(&pool.bucket),
            PinnedOwner::Shared => None,
        };
        let shared = &self.shared[exponent(request.requested_bytes)..];
        let block = own.into_iter().chain(shared).find_map(|bucket| self.lock(bucket).take_any(request))?;
        Some(self.taken(block, asked, owner))
    }

    /// Takes a block back from a caller. Neither fails nor waits.
    pub(crate) fn take_back(&self, freed: Freed) {
        let mut delivery = Delivery { core: self, freed: Some(freed) };
        if let Some(freed) = &mut delivery.freed
            && freed.uses.has_marks()
            && let Some(_open) = self.gate.try_hold_open()
        {
            freed.failed = freed.uses.record_marks(&self.recorder).is_err();
        }
    }

    /// Moves a freed block to its next place: waiting, kept, or free.
    fn deliver(&self, mut freed: Freed) {
        let pool = loop {
            match freed.captured_by.pop() {
                Some(pool) if pool.is_closed() => {}
                pool => break pool,
            }
        };
        let (to, size_bytes) =
            (pool.clone().map_or(freed.owner.clone(), PinnedOwner::Private), freed.block.size_bytes);
        let may_wait = !freed.uses.is_empty();
        let arrival = if pool.is_some() { Arrival::Kept(freed) } else { Arrival::Returned(freed) };
        let bucket = self.bucket(&to, size_bytes);
        match bucket.shelf.try_lock() {
            Some(mut shelf) => shelf.receive(arrival, &self.common),
            None => bucket.inbox.push(arrival),
        }
        let chore = to.is_closed() || !self.common.rounding.is_cached(size_bytes);
        if chore {
            self.has_chores.store(true, Ordering::Release);
        }
        if chore || may_wait {
            self.wake.wake();
        }
    }

    /// Checks the progress of the streams. Returns whether anything is still pending.
    pub(crate) fn process_events(&self) -> bool {
        let looked = self.settle(false);
        self.do_chores();
        let mut pending = !looked || self.has_chores.load(Ordering::Acquire);
        self.each_bucket(|shelf| pending |= shelf.has_pending());
        pending
    }

    /// Checks the events of all buckets, or *waits* for them, and empties closed pools. Returns `false` if a capture prevented
    /// this.
    fn settle(&self, wait: bool) -> bool {
        let mut looked = true;
        self.each_bucket(|shelf| {
            if shelf.has_pending() && looked {
                match self.gate.try_hold_open() {
                    Some(_open) => self.process(shelf, wait),
                    None => looked = false,
                }
            }
        });
        self.sweep();
        looked && self.gate.try_hold_open().is_some()
    }

    /// Processes the events of a bucket. The caller holds the gate open.
    fn process(&self, shelf: &mut Shelf, wait: bool) {
        shelf.process(&self.recorder, &*self.upstream, &self.common, wait);
        if !shelf.discarded.is_empty() {
            self.has_chores.store(true, Ordering::Release);
        }
    }

    /// Releases all memory that no caller holds. *Waits* for pending uses, after everything else has been returned.
    pub(crate) fn empty_cache(&self) -> Result<(), AllocationError> {
        for wait in [false, true] {
            if !self.settle(wait) {
                return Err(Kind::Capturing { call: "empty_cache" }.into());
            }
            self.give_back_free()?;
        }
        Ok(())
    }

    /// Releases the free memory of the shared buckets.
    fn give_back_free(&self) -> Result<(), AllocationError> {
        let _moving = self.moving();
        for bucket in &self.shared {
            let mut shelf = self.lock(bucket);
            let mut blocks = shelf.free.take_all(false);
            blocks.append(&mut shelf.discarded);
            drop(shelf);
            self.give_back(blocks)?;
        }
        Ok(())
    }

    fn give_back(&self, blocks: Vec<PinnedBlock>) -> Result<(), AllocationError> {
        if blocks.is_empty() {
            return Ok(());
        }
        let catch_all = self.settings().pinned_free_catch_all();
        let mut going = Going { core: self, blocks };
        while let Some(block) = going.blocks.last() {
            match self.pinning.unpin(block, &self.common.history, &*self.upstream) {
                Ok(()) => {}
                Err(_) if catch_all => self.pinning.lock().lose(&[*block]),
                Err(error) => return Err(error),
            }
            going.blocks.pop();
        }
        Ok(())
    }

    /// Does the chores that drops have left, if any. Memory that cannot be returned stays for [`empty_cache`](Self::empty_cache).
    fn do_chores(&self) {
        if !self.has_chores.load(Ordering::Acquire) {
            return;
        }
        let Some(_open) = self.gate.try_hold_open() else { return };
        if !self.has_chores.swap(false, Ordering::AcqRel) {
            return;
        }
        self.sweep();
        let _moving = self.moving();
        for bucket in &self.shared {
            let blocks = std::mem::take(&mut self.lock(bucket).discarded);
            let _ = self.give_back(blocks);
        }
    }

    /// Empties the closed pools, and forgets those closed pools whose blocks have all been freed by callers.
    pub(crate) fn sweep(&self) {
        for pool in self.pools.all() {
            if pool.is_closed() {
                self.sweep_pool(&pool);
            }
        }
    }

    fn sweep_pool(&self, pool: &Arc<PrivatePool>) {
        let _moving = self.moving();
        loop {
            let mut shelf = self.lock(&pool.bucket);
            let kept = std::mem::take(&mut shelf.kept);
            let mut free = shelf.free.take_all(true);
            free.append(&mut shelf.discarded);
            drop(shelf);
            for block in free {
                self.lock(self.shared_bucket(block.size_bytes)).put(block, &self.common.rounding);
            }
            if kept.is_empty() {
                break;
            }
            // Some of the memory may become free blocks here.
            kept.into_iter().for_each(|freed| self.deliver(freed));
        }
        let is_empty = || self.lock(&pool.bucket).is_empty();
        self.forgettings_begun.fetch_add(1, Ordering::AcqRel);
        if self.pools.forget(pool, is_empty) {
            let shelf = self.lock(&pool.bucket);
            let accounts = &mut *self.pinning.lock();
            accounts.lose(&shelf.retired);
            accounts.ring.absorb(&self.common.history, &shelf.log.ring);
            let sum = &mut accounts.statistics;
            statistics::add_past(&mut sum.active_requests, &shelf.active_requests);
            statistics::add_past(&mut sum.active_bytes, &shelf.active_bytes);
        }
        self.forgettings_ended.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn statistics(&self) -> HostStatistics {
        loop {
            // The figures of a pool that is just being forgotten may be in neither place, or in both.
            let ended = self.forgettings_ended.load(Ordering::Acquire);
            let sum = self.sum_statistics();
            if self.forgettings_begun.load(Ordering::Acquire) == ended {
                return sum;
            }
            std::thread::yield_now();
        }
    }

    fn sum_statistics(&self) -> HostStatistics {
        let mut sum = self.pinning.with_statistics(|statistics| statistics.clone());
        self.each_bucket(|shelf| {
            statistics::add(&mut sum.active_requests, &shelf.active_requests);
            statistics::add(&mut sum.active_bytes, &shelf.active_bytes);
            sum.pending = sum.pending + shelf.pending();
            sum.retired = sum.retired + Tally::of(shelf.retired.iter().map(|block| block.size_bytes));
        });
        sum
    }

    pub(crate) fn reset_peak(&self) {
        self.pinning.with_statistics(HostStatistics::reset_peak);
        self.each_bucket(|shelf| {
            shelf.active_requests.reset_peak();
            shelf.active_bytes.reset_peak();
        });
    }

    pub(crate) fn reset_accumulated(&self) {
        self.pinning.with_statistics(HostStatistics::reset_accumulated);
        self.each_bucket(|shelf| {
            shelf.active_requests.reset_accumulated();
            shelf.active_bytes.reset_accumulated();
        });
    }

    fn out_of_memory(&self, requested_bytes: u64) -> AllocationError {
        let statistics = self.statistics();
        let mut private_pool_bytes = 0;
        for pool in self.pools.all() {
            private_pool_bytes += self.lock(&pool.bucket).active_bytes.current;
        }
        let pending_bytes = statistics.pending.bytes;
        Kind::OutOfMemory(Box::new(OutOfMemory {
            label: "Pinned host memory".to_owned(),
            requested_bytes,
            allocated_bytes: statistics.active_bytes.current.saturating_sub(pending_bytes),
            reserved_bytes: statistics.allocated_bytes.current,
            pending_bytes,
            private_pool_bytes,
            capturing: self.gate.is_closed(),
            ..OutOfMemory::default()
        }))
        .into()
    }

    pub(crate) fn bucket<'a>(&'a self, owner: &'a PinnedOwner, size_bytes: u64) -> &'a Bucket {
        match owner {
            PinnedOwner::Shared => self.shared_bucket(size_bytes),
            PinnedOwner::Private(pool) => &pool.bucket,
        }
    }

    fn shared_bucket(&self, size_bytes: u64) -> &Bucket {
        &self.shared[exponent(size_bytes)]
    }

    /// Runs `action` on every bucket in turn, ending with the buckets of private pools.
    pub(crate) fn each_bucket(&self, mut action: impl FnMut(&mut Shelf)) {
        let pools = self.pools.all();
        self.buckets(&pools).for_each(|bucket| action(&mut self.lock(bucket)));
    }

    /// Returns all buckets, ending with the buckets of these pools.
    pub(crate) fn buckets<'a>(&'a self, pools: &'a [Arc<PrivatePool>]) -> impl Iterator<Item = &'a Bucket> {
        self.shared.iter().chain(pools.iter().map(|pool| &pool.bucket))
    }

    fn moving(&self) -> RwLockReadGuard<'_, ()> {
        self.moving.read()
    }

    /// Takes a bucket's lock and processes the blocks that were left in its inbox while another thread held it.
    pub(crate) fn lock<'a>(&self, bucket: &'a Bucket) -> MutexGuard<'a, Shelf> {
        // The state of a bucket is valid whenever the upstream, which may panic, is called.
        let mut shelf = bucket.shelf.lock();
        while let Some(arrival) = bucket.inbox.pop() {
            shelf.receive(arrival, &self.common);
        }
        shelf.settle_all(&self.common);
        shelf
    }
}

/// Returns the exponent of the smallest power of two that is at least a size.
fn exponent(size_bytes: u64) -> usize {
    size_bytes.next_power_of_two().trailing_zeros() as usize
}

/// A freed block that is delivered even if recording its events panics; the missing events are recorded later.
struct Delivery<'a> {
    core: &'a Core,
    freed: Option<Freed>,
}

impl Drop for Delivery<'_> {
    fn drop(&mut self) {
        if let Some(freed) = self.freed.take() {
            self.core.deliver(freed);
        }
    }
}

/// Blocks that are being returned to the upstream. Those that were not returned become free again when this is dropped.
struct Going<'a> {
    core: &'a Core,
    blocks: Vec<PinnedBlock>,
}

impl Drop for Going<'_> {
    fn drop(&mut self) {
        for block in self.blocks.drain(..) {
            self.core.lock(self.core.shared_bucket(block.size_bytes)).put(block, &self.core.common.rounding);
        }
    }
}

impl Drop for Core {
    /// Releases all memory that can be released; no caller holds a block any more. Memory that could not be waited for may still
    /// be copied to or from, and memory kept by a graph's pool may still be used by replays: it stays pinned rather than being
    /// taken away from the device.
    fn drop(&mut self) {
        // An upstream that panics now must not prevent the release of the rest.
        let guarded = |action: &dyn Fn()| drop(catch_unwind(AssertUnwindSafe(action)));
        guarded(&|| _ = self.settle(true));
        self.sweep();
        let mut reserve = Vec::new();
        let mut blocks = Vec::new();
        self.each_bucket(|shelf| {
            shelf.waiting.abandon();
            blocks.extend(shelf.free.take_all(false));
            blocks.append(&mut shelf.discarded);
            reserve.extend(shelf.free.take_all(true));
        });
        for block in blocks {
            guarded(&|| _ = self.pinning.unpin(&block, &self.common.history, &*self.upstream));
        }
        guarded(&|| self.pinning.unpin_reserve(&reserve, &*self.upstream));
    }
}
