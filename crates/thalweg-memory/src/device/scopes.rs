//! Directing requests to a private pool for a while, and announcing a capture.

use std::sync::Arc;
use std::thread::ThreadId;

use super::allocator::DeviceAllocator;
use super::central::Central;
use super::pools::Requests;
use crate::error::AllocationError;
use crate::ids::{PoolId, StreamFilter};

impl DeviceAllocator {
    /// Retains a pool and opens a scope that allocates to it.
    pub(crate) fn open_scope(
        &self,
        central: &mut Central,
        pool: PoolId,
        requests: Requests,
    ) -> Result<(), AllocationError> {
        central.pools.retain(pool)?;
        if let Err(error) = self.scopes.begin(pool, requests) {
            central.pools.release(pool)?;
            return Err(error.into());
        }
        Ok(())
    }

    /// Directs requests of the calling thread to `pool` until the scope is dropped (`torch.cuda.use_mem_pool`). Scopes nest. The
    /// pool is retained meanwhile. No capture is announced: everything else works as usual.
    ///
    /// # Errors
    /// If there is no such pool, or it has no reference left.
    pub fn use_pool(self: &Arc<Self>, pool: PoolId) -> Result<PoolScope, AllocationError> {
        let thread = std::thread::current().id();
        self.open_scope(&mut *self.enter()?, pool, Requests::OfThread(thread))?;
        Ok(PoolScope { allocator: Arc::clone(self), pool, thread })
    }

    /// Directs requests that match `filter` to `pool` until [`end_use_pool`](Self::end_use_pool). For a capture, call
    /// [`begin_capture`](Self::begin_capture) too.
    ///
    /// # Errors
    /// If there is no such pool, or requests on streams are already directed to it.
    pub fn begin_use_pool(&self, pool: PoolId, filter: StreamFilter) -> Result<(), AllocationError> {
        self.open_scope(&mut *self.enter()?, pool, Requests::OnStreams(filter))
    }

    /// Ends the redirection that [`begin_use_pool`](Self::begin_use_pool) began.
    ///
    /// # Errors
    /// If no requests on streams are directed to this pool.
    pub fn end_use_pool(&self, pool: PoolId) -> Result<(), AllocationError> {
        let mut central = self.enter()?;
        self.scopes.end_streams(pool)?;
        Ok(central.pools.release(pool)?)
    }

    /// Announces a capture, which counts as under way until the scope is dropped, with the effects that
    /// [`begin_allocate_to_pool`](Self::begin_allocate_to_pool) lists (that call announces one itself). Call it before the
    /// capture begins, and drop the scope after it has ended.
    pub fn begin_capture(self: &Arc<Self>) -> CaptureScope {
        self.announce_capture(&mut self.central());
        CaptureScope { allocator: Arc::clone(self) }
    }

    /// Counts a capture as under way. If it is the first, the remaining memory of pools without references is returned before.
    pub(crate) fn announce_capture(&self, central: &mut Central) {
        if !self.common.is_capturing() {
            self.release_unreferenced_pools(central);
        }
        self.common.begin_capture();
    }
}

/// A guard that directs requests of one thread to a private pool while it is alive. See [`DeviceAllocator::use_pool`].
#[derive(Debug)]
pub struct PoolScope {
    allocator: Arc<DeviceAllocator>,
    pool: PoolId,
    thread: ThreadId,
}

impl Drop for PoolScope {
    fn drop(&mut self) {
        let ended = self.allocator.scopes.end_thread(self.pool, self.thread);
        debug_assert!(ended.is_ok(), "a scope ends once: {ended:?}");
        let released = self.allocator.release_pool(self.pool);
        debug_assert!(released.is_ok(), "a scope holds its pool: {released:?}");
    }
}

/// A guard during whose life a capture counts as under way. See [`DeviceAllocator::begin_capture`].
#[derive(Debug)]
#[must_use = "the capture ends when it is dropped"]
pub struct CaptureScope {
    allocator: Arc<DeviceAllocator>,
}

impl Drop for CaptureScope {
    fn drop(&mut self) {
        // Held to the end, so that no other capture begins before the events are recorded.
        let _cold = self.allocator.enter();
        let common = &self.allocator.common;
        if common.end_capture() {
            common.end_captures();
        }
    }
}
