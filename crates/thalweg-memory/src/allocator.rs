//! The device allocator's public face: [`DeviceAllocator`] gives out [`Block`]s, and dropping one gives it back.
//!
//! A [`Block`] carries all that is needed to use it and to free it: address, sizes, stream, its name in the allocator, and
//! the streams that used it. So neither freeing nor [`record_stream`](Block::record_stream) looks anything up by address,
//! and `record_stream` takes no lock of the allocator.
//!
//! # Dropping
//!
//! A drop may come from any thread, in the middle of anything, and must neither fail nor wait. If the allocator is busy (the
//! upstream may be blocking in another thread's call), the drop leaves the block in `returned`, a queue whose own lock is
//! only ever held for a push or a pop; the next call of any kind empties it. The same road is taken when an upstream drops a
//! block inside one of its methods.
//!
//! # Locking
//!
//! One mutex holds the state. A panic of the upstream poisons it, and that is ignored: the state is valid at every call of
//! the upstream (see [`state`](crate::state)), and checks of our own come before the change that they guard.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use crate::blocks::BlockId;
use crate::error::{AllocationError, Kind};
use crate::order::Uses;
use crate::policy::best_fit;
use crate::pools::{PoolId, StreamFilter};
use crate::snapshot::SegmentSnapshot;
use crate::state::State;
use crate::stats::DeviceStatistics;
use crate::upstream::{StreamId, Upstream};

/// How a [`DeviceAllocator`] behaves. The default is PyTorch's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    label: String,
    max_split_size_bytes: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { label: "The device".to_owned(), max_split_size_bytes: None }
    }
}

impl Settings {
    /// What error messages call the device: `GPU 0`.
    #[must_use]
    pub fn with_label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Never cut blocks of `bytes` or more, and keep them for requests of that size: less fragmentation, more waste.
    ///
    /// # Errors
    /// If it is less than 20 MiB, the size of an ordinary large segment.
    pub fn with_max_split_size_bytes(mut self, bytes: u64) -> Result<Self, AllocationError> {
        if bytes < best_fit::LARGE_SEGMENT_BYTES {
            let what = "max_split_size";
            return Err(Kind::OutOfRange {
                what,
                value: format!("{bytes} bytes"),
                allowed: "at least 20 MiB",
            }
            .into());
        }
        self.max_split_size_bytes = Some(bytes);
        Ok(self)
    }

    /// What error messages call the device.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The size, in bytes, from which blocks are not cut; `None` if all may be.
    pub fn max_split_size_bytes(&self) -> Option<u64> {
        self.max_split_size_bytes
    }
}

/// A block on its way back, when the allocator was busy.
struct Returned {
    block: BlockId,
    uses: Uses,
}

/// A caching allocator for the memory of one device. See the [crate's essay](crate).
///
/// All methods may be called from any thread. It lives as long as any of its blocks; when the last is gone it waits for
/// pending events and gives everything back to the upstream.
pub struct DeviceAllocator {
    upstream: Arc<dyn Upstream>,
    state: Mutex<State>,
    returned: Mutex<VecDeque<Returned>>,
}

impl DeviceAllocator {
    /// An allocator that holds nothing yet.
    pub fn new(upstream: Arc<dyn Upstream>, settings: Settings) -> Arc<Self> {
        let state = Mutex::new(State { settings, ..State::default() });
        Arc::new(Self { upstream, state, returned: Mutex::default() })
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
    pub fn allocate(self: &Arc<Self>, bytes: u64, stream: StreamId) -> Result<Block, AllocationError> {
        let mut block = Block {
            allocator: Arc::clone(self),
            block: None,
            address: 0,
            size_bytes: 0,
            requested_bytes: bytes,
            stream,
            uses: Mutex::default(),
        };
        if bytes == 0 {
            return Ok(block);
        }
        let upstream = &*self.upstream;
        let mut state = self.lock();
        if bytes > best_fit::MAX_REQUEST_BYTES {
            return Err(state.out_of_memory(bytes, upstream));
        }
        state.order.process(upstream);
        state.collect_ready();
        let request = state.request(bytes, stream);
        let found = state.obtain(&request, upstream)?;
        let span = state.hand_out(&request, found);
        block.block = Some(span.block);
        block.address = span.address;
        block.size_bytes = span.size_bytes;
        Ok(block)
    }

    /// Gives all cached memory that can be spared back to the upstream: *blocks* until pending events have passed, then
    /// frees every segment without a live block that no private pool relies on.
    ///
    /// # Errors
    /// [`is_capture`](AllocationError::is_capture) while a capture is under way; or the upstream's error, after which
    /// the rest stays cached.
    pub fn empty_cache(&self) -> Result<(), AllocationError> {
        let mut state = self.lock();
        if state.order.is_capturing() {
            return Err(Kind::Capturing { call: "empty_cache" }.into());
        }
        state.release_cached(&*self.upstream)
    }

    /// Looks, without waiting, which freed blocks other streams are done with, and makes them available. Every allocation
    /// does so too.
    pub fn process_events(&self) {
        let mut state = self.lock();
        state.order.process(&*self.upstream);
        state.collect_ready();
    }

    /// Never takes more than `fraction` of the device's total memory from the upstream; 1 lifts the limit. What is taken
    /// already stays.
    ///
    /// # Errors
    /// If `fraction` is not within 0 and 1, or the upstream cannot say how much there is.
    pub fn set_memory_fraction(&self, fraction: f64) -> Result<(), AllocationError> {
        if !(0.0..=1.0).contains(&fraction) {
            let what = "the memory fraction";
            return Err(Kind::OutOfRange { what, value: fraction.to_string(), allowed: "from 0 to 1" }.into());
        }
        let info =
            self.upstream.memory_info().map_err(|error| AllocationError::upstream("memory_info", error))?;
        let allowed_bytes = (fraction * info.total_bytes as f64).round() as u64;
        self.lock().allowed_bytes = (fraction < 1.0).then_some(allowed_bytes);
        Ok(())
    }

    /// A new private pool, with one reference for the caller to [`release`](Self::release_pool).
    pub fn create_pool(&self) -> PoolId {
        self.lock().pools.create()
    }

    /// Adds a reference: the pool's addresses stay put until it is released once more.
    ///
    /// # Errors
    /// If there is no such pool, or it has no reference left.
    pub fn retain_pool(&self, pool: PoolId) -> Result<(), AllocationError> {
        Ok(self.lock().pools.retain(pool)?)
    }

    /// Takes a reference away. After the last, the pool's memory may be given back as soon as it is free; its live blocks
    /// stay valid.
    ///
    /// # Errors
    /// If there is no such pool, or it has no reference left.
    pub fn release_pool(&self, pool: PoolId) -> Result<(), AllocationError> {
        Ok(self.lock().pools.release(pool)?)
    }

    /// From now until [`end_allocate_to_pool`](Self::end_allocate_to_pool), requests that match `filter` get memory from
    /// `pool`, and a capture counts as under way: no event is touched, no cached memory goes back to the upstream, and blocks
    /// that are freed with uses on other streams wait for the end. Call it before the capture begins. Pools nest; the one
    /// begun last goes first. The pool is retained meanwhile.
    ///
    /// # Errors
    /// If there is no such pool, or allocations go to it already.
    pub fn begin_allocate_to_pool(&self, pool: PoolId, filter: StreamFilter) -> Result<(), AllocationError> {
        let mut state = self.lock();
        state.pools.begin(pool, filter)?;
        state.order.begin_capture();
        Ok(())
    }

    /// Ends what [`begin_allocate_to_pool`](Self::begin_allocate_to_pool) began. Call it after the capture has ended, since
    /// the events that waited are recorded now.
    ///
    /// # Errors
    /// If no allocations go to this pool.
    pub fn end_allocate_to_pool(&self, pool: PoolId) -> Result<(), AllocationError> {
        let mut state = self.lock();
        state.pools.end(pool)?;
        state.order.end_capture(&*self.upstream);
        Ok(())
    }

    /// The statistics at this moment.
    pub fn statistics(&self) -> DeviceStatistics {
        self.lock().statistics.clone()
    }

    /// The statistics under PyTorch's keys, sorted by key.
    pub fn memory_stats(&self) -> Vec<(String, u64)> {
        self.statistics().memory_stats()
    }

    /// Sets every peak to what there is now.
    pub fn reset_peak_memory_stats(&self) {
        self.lock().statistics.reset_peak();
    }

    /// Sets every sum (`allocated`, `freed`) and every counter (`num_ooms` and so on) to 0.
    pub fn reset_accumulated_memory_stats(&self) {
        self.lock().statistics.reset_accumulated();
    }

    /// All segments in address order, each with its blocks.
    pub fn snapshot(&self) -> Vec<SegmentSnapshot> {
        self.lock().snapshot()
    }

    /// The settings.
    pub fn settings(&self) -> Settings {
        self.lock().settings.clone()
    }

    /// The state, after taking in what was dropped while it was busy.
    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(Returned { block, uses }) = self.next_returned() {
            state.free(block, uses, &*self.upstream);
        }
        // Nearly always there is nothing: only a panic of the upstream leaves something behind.
        state.collect_ready();
        state
    }

    /// A function of its own, so that the queue's lock is not held while its element is dealt with.
    fn next_returned(&self) -> Option<Returned> {
        self.returned().pop_front()
    }

    fn returned(&self) -> MutexGuard<'_, VecDeque<Returned>> {
        self.returned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a block back: at once if nobody is busy, else at the next call.
    fn take_back(&self, block: BlockId, uses: Uses) {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.returned().push_back(Returned { block, uses });
                return;
            }
        };
        state.free(block, uses, &*self.upstream);
    }
}

impl Drop for DeviceAllocator {
    fn drop(&mut self) {
        // No block is left, so no thread is inside. What the upstream refuses now cannot be offered again, and there is
        // nobody to tell: a lost device is the usual reason, and its memory is gone with it.
        let upstream = Arc::clone(&self.upstream);
        let mut state = self.lock();
        state.release_everything(&*upstream);
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
/// is dropped. Work on another stream must be ordered against it by the caller, and be told of by
/// [`record_stream`](Self::record_stream) before the drop.
pub struct Block {
    allocator: Arc<DeviceAllocator>,
    /// `None` for a null block.
    block: Option<BlockId>,
    address: u64,
    size_bytes: u64,
    requested_bytes: u64,
    stream: StreamId,
    uses: Mutex<Uses>,
}

impl Block {
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

    /// Whether this is a null block, which holds no memory.
    pub fn is_null(&self) -> bool {
        self.block.is_none()
    }

    /// The allocator that the block goes back to.
    pub fn allocator(&self) -> &Arc<DeviceAllocator> {
        &self.allocator
    }

    /// Says that `stream` uses the memory too. When the block is dropped, an event is recorded there, behind all its work so
    /// far, and the memory is not used again before that has passed. On the block's own stream it is a no-op, and so it
    /// is the second time. Touches neither the allocator nor the device.
    pub fn record_stream(&self, stream: StreamId) {
        if stream == self.stream || self.is_null() {
            return;
        }
        let mut uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        if !uses.contains(&stream) {
            uses.push(stream);
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(block) = self.block {
            let uses = std::mem::take(self.uses.get_mut().unwrap_or_else(PoisonError::into_inner));
            self.allocator.take_back(block, uses);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeUpstream;

    #[test]
    fn a_released_pool_is_forgotten_when_its_memory_has_gone_back() {
        let allocator = DeviceAllocator::new(Arc::new(FakeUpstream::new(1 << 30)), Settings::default());
        let stream = StreamId::from_raw(1);
        let pool = allocator.create_pool();
        allocator.begin_allocate_to_pool(pool, StreamFilter::All).expect("the pool is known");
        drop([1, 3 << 20].map(|bytes| allocator.allocate(bytes, stream).expect("there is room")));
        allocator.end_allocate_to_pool(pool).expect("it was begun");
        allocator.release_pool(pool).expect("it has one reference");
        assert_eq!(allocator.lock().pools.releasable().count(), 2);
        allocator.empty_cache().expect("no capture is under way");
        assert_eq!(allocator.lock().pools.releasable().count(), 1, "only the shared pool is left");
    }
}
