//! The cache of pinned host memory.
//!
//! The device copies to and from pinned memory by itself, while the host goes on. Pinning is slow (it talks to the driver
//! and the kernel, page by page), so freed memory is kept. There is no splitting and merging: sizes are rounded up to powers
//! of two, each power has a stack of free pieces, and a request takes the one that was freed last, which is the likeliest to
//! be in the host's caches.
//!
//! A piece belongs to no stream. Each stream that copies to or from it is told of with [`HostBlock::record_use`]; after the
//! drop the piece waits until all of them are past that point. Waiting is the same as on the device, and so is the code:
//! `order`.
//!
//! Dropping and locking work as in [`DeviceAllocator`](crate::DeviceAllocator): a drop neither fails nor waits.
//!
//! What is not here: the copies themselves, and access to the memory, which only its address is known of.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use crate::arena::Arena;
use crate::error::{AllocationError, Kind, OutOfMemory};
use crate::order::{Order, Uses};
use crate::policy::best_fit::MAX_REQUEST_BYTES;
use crate::stats::HostStatistics;
use crate::upstream::{Events, HostUpstream, StreamId, UpstreamError};

/// Names a piece as long as it exists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct PieceId(u32);

#[derive(Clone, Copy, Debug)]
struct Piece {
    address: u64,
    size_bytes: u64,
}

/// The power of two that a size is rounded up to.
fn size_exponent(bytes: u64) -> usize {
    bytes.next_power_of_two().trailing_zeros() as usize
}

#[derive(Debug)]
struct State {
    pieces: Arena<Piece>,
    /// The free pieces, by the exponent of their size; the one freed last is on top.
    free: [Vec<PieceId>; 64],
    order: Order<PieceId>,
    statistics: HostStatistics,
}

impl Default for State {
    fn default() -> Self {
        Self {
            pieces: Arena::default(),
            free: std::array::from_fn(|_| Vec::new()),
            order: Order::default(),
            statistics: HostStatistics::default(),
        }
    }
}

impl State {
    fn allocate(&mut self, bytes: u64, upstream: &dyn HostUpstream) -> Result<PieceId, AllocationError> {
        self.order.process(upstream);
        self.collect_ready();
        let exponent = size_exponent(bytes);
        let piece = match self.free[exponent].pop() {
            Some(piece) => piece,
            None => self.pin(bytes, exponent, upstream)?,
        };
        self.statistics.active_requests.increase(1);
        self.statistics.active_bytes.increase(1 << exponent);
        Ok(piece)
    }

    /// Takes a new piece from the upstream; when that has run out, the cache is given back and it is asked again.
    fn pin(
        &mut self,
        requested_bytes: u64,
        exponent: usize,
        upstream: &dyn HostUpstream,
    ) -> Result<PieceId, AllocationError> {
        let size_bytes = 1 << exponent;
        if let Some(piece) = self.try_pin(size_bytes, upstream)? {
            return Ok(piece);
        }
        if !self.order.is_capturing() {
            self.wait_for_uses(upstream)?;
            if let Some(piece) = self.free[exponent].pop() {
                return Ok(piece);
            }
            self.release_free(upstream)?;
            if let Some(piece) = self.try_pin(size_bytes, upstream)? {
                return Ok(piece);
            }
        }
        Err(self.out_of_memory(requested_bytes))
    }

    fn try_pin(
        &mut self,
        size_bytes: u64,
        upstream: &dyn HostUpstream,
    ) -> Result<Option<PieceId>, AllocationError> {
        let start = Instant::now();
        let address = match upstream.allocate_host(size_bytes) {
            Ok(address) => address,
            Err(UpstreamError::OutOfMemory) => return Ok(None),
            Err(error) => return Err(AllocationError::upstream("allocate_host", error)),
        };
        self.statistics.host_alloc_time.add(start.elapsed());
        self.statistics.num_host_alloc += 1;
        self.statistics.allocations.increase(1);
        self.statistics.allocated_bytes.increase(size_bytes);
        Ok(Some(PieceId(self.pieces.insert(Piece { address, size_bytes }))))
    }

    fn free(&mut self, piece: PieceId, uses: Uses, events: &dyn Events) {
        self.order.free(piece, uses, events);
        self.collect_ready();
    }

    fn collect_ready(&mut self) {
        while let Some(piece) = self.order.pop_ready() {
            let size_bytes = self.pieces[piece.0].size_bytes;
            self.free[size_exponent(size_bytes)].push(piece);
            self.statistics.active_requests.decrease(1);
            self.statistics.active_bytes.decrease(size_bytes);
        }
    }

    fn wait_for_uses(&mut self, upstream: &dyn HostUpstream) -> Result<(), AllocationError> {
        let waited = self.order.synchronize(upstream);
        self.collect_ready();
        waited.map_err(|error| AllocationError::upstream("synchronize_event", error))
    }

    /// Gives every free piece back.
    fn release_free(&mut self, upstream: &dyn HostUpstream) -> Result<(), AllocationError> {
        for exponent in 0..self.free.len() {
            while let Some(&piece) = self.free[exponent].last() {
                let Piece { address, size_bytes } = self.pieces[piece.0];
                let start = Instant::now();
                upstream
                    .free_host(address, size_bytes)
                    .map_err(|error| AllocationError::upstream("free_host", error))?;
                self.free[exponent].pop();
                self.pieces.remove(piece.0);
                self.statistics.host_free_time.add(start.elapsed());
                self.statistics.num_host_free += 1;
                self.statistics.allocations.decrease(1);
                self.statistics.allocated_bytes.decrease(size_bytes);
            }
        }
        Ok(())
    }

    fn out_of_memory(&self, requested_bytes: u64) -> AllocationError {
        Kind::OutOfMemory(OutOfMemory {
            label: "Pinned host memory".to_owned(),
            requested_bytes,
            allocated_bytes: self.statistics.active_bytes.current,
            reserved_bytes: self.statistics.allocated_bytes.current,
            pending_bytes: 0,
            private_pool_bytes: 0,
            allowed_bytes: None,
            device: None,
            capturing: self.order.is_capturing(),
        })
        .into()
    }
}

/// A piece on its way back, when the allocator was busy.
struct Returned {
    piece: PieceId,
    uses: Uses,
}

/// A caching allocator for pinned host memory. See the [module's essay](self).
///
/// All methods may be called from any thread. It lives as long as any of its blocks; when the last is gone it waits for
/// pending uses and gives everything back to the upstream.
pub struct HostAllocator {
    upstream: Arc<dyn HostUpstream>,
    state: Mutex<State>,
    returned: Mutex<VecDeque<Returned>>,
}

impl HostAllocator {
    /// An allocator that holds nothing yet.
    pub fn new(upstream: Arc<dyn HostUpstream>) -> Arc<Self> {
        Arc::new(Self { upstream, state: Mutex::default(), returned: Mutex::default() })
    }

    /// A block of at least `bytes` of pinned memory. `bytes` of 0 give a null block, which holds no memory. May block: when
    /// nothing cached fits, the upstream pins memory, and when it has run out, the host waits for all pending uses.
    ///
    /// # Errors
    /// [`is_out_of_memory`](AllocationError::is_out_of_memory) when the host has no more to pin; or the upstream's error. The
    /// allocator works on as before.
    pub fn allocate(self: &Arc<Self>, bytes: u64) -> Result<HostBlock, AllocationError> {
        let null = Piece { address: 0, size_bytes: 0 };
        let mut block = HostBlock {
            allocator: Arc::clone(self),
            id: None,
            piece: null,
            requested_bytes: bytes,
            uses: Mutex::default(),
        };
        if bytes == 0 {
            return Ok(block);
        }
        let mut state = self.lock();
        if bytes > MAX_REQUEST_BYTES {
            return Err(state.out_of_memory(bytes));
        }
        let id = state.allocate(bytes, &*self.upstream)?;
        block.piece = state.pieces[id.0];
        block.id = Some(id);
        Ok(block)
    }

    /// Gives all memory that no block holds back to the upstream. *Blocks* until pending uses are over.
    ///
    /// # Errors
    /// [`is_capture`](AllocationError::is_capture) while a capture is under way; or the upstream's error, after which
    /// the rest stays cached.
    pub fn empty_cache(&self) -> Result<(), AllocationError> {
        let mut state = self.lock();
        if state.order.is_capturing() {
            return Err(Kind::Capturing { call: "empty_cache" }.into());
        }
        state.wait_for_uses(&*self.upstream)?;
        state.release_free(&*self.upstream)
    }

    /// From now until the matching [`end_capture`](Self::end_capture) no event is touched: blocks that were used wait. Call it
    /// before the capture begins. Captures may overlap.
    ///
    /// Memory that a *captured* copy uses is used by every replay: whoever keeps the graph keeps the block.
    pub fn begin_capture(&self) {
        self.lock().order.begin_capture();
    }

    /// Ends what [`begin_capture`](Self::begin_capture) began; call it after the capture has ended.
    ///
    /// # Panics
    /// If no capture was begun.
    pub fn end_capture(&self) {
        self.lock().order.end_capture(&*self.upstream);
    }

    /// The statistics at this moment.
    pub fn statistics(&self) -> HostStatistics {
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

    /// Sets every sum, time and counter to 0.
    pub fn reset_accumulated_memory_stats(&self) {
        self.lock().statistics.reset_accumulated();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(Returned { piece, uses }) = self.next_returned() {
            state.free(piece, uses, &*self.upstream);
        }
        // Nearly always there is nothing: only a panic of the upstream leaves something behind.
        state.collect_ready();
        state
    }

    fn next_returned(&self) -> Option<Returned> {
        self.returned().pop_front()
    }

    fn returned(&self) -> MutexGuard<'_, VecDeque<Returned>> {
        self.returned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_back(&self, piece: PieceId, uses: Uses) {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.returned().push_back(Returned { piece, uses });
                return;
            }
        };
        state.free(piece, uses, &*self.upstream);
    }
}

impl Drop for HostAllocator {
    fn drop(&mut self) {
        let upstream = Arc::clone(&self.upstream);
        let mut state = self.lock();
        if !state.order.is_capturing() {
            let _ = state.wait_for_uses(&*upstream);
        }
        state.order.abandon(&*upstream);
        // What could not be waited for may still be copied to or from: it is left pinned rather than taken away from
        // under the device. A lost device is the reason, so the process is about to end.
        let _ = state.release_free(&*upstream);
    }
}

impl fmt::Debug for HostAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostAllocator").finish_non_exhaustive()
    }
}

/// Pinned host memory in the caller's hands. Dropping it frees it, without failing and without waiting.
pub struct HostBlock {
    allocator: Arc<HostAllocator>,
    /// `None` for a null block.
    id: Option<PieceId>,
    piece: Piece,
    requested_bytes: u64,
    uses: Mutex<Uses>,
}

impl HostBlock {
    /// Where the memory begins; 0 for a null block.
    pub fn address(&self) -> u64 {
        self.piece.address
    }

    /// How many bytes there are: what was asked for, rounded up to a power of two.
    pub fn size_bytes(&self) -> u64 {
        self.piece.size_bytes
    }

    /// How many bytes were asked for.
    pub fn requested_bytes(&self) -> u64 {
        self.requested_bytes
    }

    /// Whether this is a null block, which holds no memory.
    pub fn is_null(&self) -> bool {
        self.id.is_none()
    }

    /// Says that `stream` copies to or from the memory. When the block is dropped, an event is recorded there, behind all
    /// its work so far, and the memory is not used again before that has passed. The second time it is a no-op.
    pub fn record_use(&self, stream: StreamId) {
        if self.is_null() {
            return;
        }
        let mut uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        if !uses.contains(&stream) {
            uses.push(stream);
        }
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let uses = std::mem::take(self.uses.get_mut().unwrap_or_else(PoisonError::into_inner));
            self.allocator.take_back(id, uses);
        }
    }
}

impl fmt::Debug for HostBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostBlock")
            .field("address", &format_args!("{:#x}", self.piece.address))
            .field("size_bytes", &self.piece.size_bytes)
            .field("requested_bytes", &self.requested_bytes)
            .finish_non_exhaustive()
    }
}
