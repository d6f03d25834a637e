//! The captures under way, the pools that serve their requests, and the memory that their graphs keep.
//!
//! A captured copy runs at every replay, so the pinned memory that it uses must belong to the graph for as long as the graph
//! lives, and while a capture is under way no event may be recorded (it would become part of the graph) or queried. The graph
//! holds a *private pool*, named by the same [`PoolId`] as its device memory:
//!
//! ```text
//! retain_pool ─ begin_allocate_to_pool ─ capture ─ end_allocate_to_pool ─ replays ─ release_pool
//!                 │                                  │                                │
//!                 └ no event is touched from here ───┘ to here                        └ memory is shared again
//! ```
//!
//! - A request for a stream that a scope matches is served from the pool, and the block is returned to it. If no captured work
//!   used the block, it may serve the pool's next request.
//! - A block that captured work used, from the pool or not, is *kept* by the pool when it is freed, and serves no request until
//!   the last reference is released.
//!
//! The [`Gate`] indicates whether events may be touched. A call that touches events holds it open meanwhile. A capture is
//! announced by closing it, which waits until no call holds it open. Drops do not wait: they treat a gate that is just moving as
//! closed, which postpones their events and harms nothing.
//!
//! Locks are taken in this order: gate, the list of pools, a bucket, an inbox; if a bucket's lock is taken before the gate, the
//! gate is only tried.
//!
//! This module and `bucket` use each other: a private pool has a bucket, whose blocks refer to the pool that they belong to.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use thalweg_lock::{Mutex, RwLock, RwLockReadGuard};

use super::bucket::Bucket;
use crate::error::Kind;
use crate::ids::{PoolId, StreamFilter, StreamId};

/// The pinned memory of some graphs.
pub(crate) struct PrivatePool {
    id: PoolId,
    /// Whether the last reference has been released. This never becomes `false` again.
    closed: AtomicBool,
    /// The pool's blocks of all sizes.
    pub(crate) bucket: Bucket,
}

impl PrivatePool {
    fn new(id: PoolId) -> Self {
        let pool = Self { id, closed: AtomicBool::new(false), bucket: Bucket::default() };
        pool.bucket.shelf.lock().log.pool_id = pool.pool_id();
        pool
    }

    /// Returns the name of the pool in the history.
    pub(crate) fn pool_id(&self) -> (u64, u64) {
        (0, self.id.raw())
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

impl fmt::Debug for PrivatePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Blocks that the pool keeps lead back to the pool, so the output stops here.
        self.id.fmt(f)
    }
}

/// A scope: while it is open, requests that match are directed to the pool.
struct Scope {
    pool: Arc<PrivatePool>,
    filter: StreamFilter,
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} for {:?}", self.pool.id, self.filter)
    }
}

/// The captures under way, in the order in which they began.
#[derive(Default, Debug)]
pub(crate) struct Gate {
    scopes: RwLock<Vec<Scope>>,
    /// The number of captures under way, readable without the lock.
    count: AtomicUsize,
}

/// A guard that holds off the beginning and the end of captures.
pub(crate) struct GateGuard<'a>(RwLockReadGuard<'a, Vec<Scope>>);

impl GateGuard<'_> {
    /// Returns whether events may be touched.
    pub(crate) fn is_open(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the pool that serves requests on this stream; without a stream, one that serves all.
    pub(crate) fn pool_for(&self, stream: Option<StreamId>) -> Option<&Arc<PrivatePool>> {
        let serves = |scope: &&Scope| match (stream, &scope.filter) {
            (Some(stream), filter) => filter.matches(stream),
            (None, filter) => matches!(filter, StreamFilter::All),
        };
        self.0.iter().rev().find(serves).map(|scope| &scope.pool)
    }
}

impl Gate {
    /// Returns whether a capture is under way, as far as this is known without waiting.
    pub(crate) fn is_closed(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Locks the gate in its present state.
    pub(crate) fn hold(&self) -> GateGuard<'_> {
        GateGuard(self.scopes.read())
    }

    /// Holds the gate if the gate is open and can be held without waiting.
    pub(crate) fn try_hold_open(&self) -> Option<GateGuard<'_>> {
        self.scopes.try_read().map(GateGuard).filter(GateGuard::is_open)
    }

    /// Opens a scope, and thereby closes the gate. *Waits* for calls that hold it open.
    pub(crate) fn begin(&self, pool: Arc<PrivatePool>, filter: StreamFilter) -> Result<(), Kind> {
        let mut scopes = self.scopes.write();
        if scopes.iter().any(|scope| scope.pool.id == pool.id) {
            return Err(Kind::PoolInUse(pool.id));
        }
        scopes.push(Scope { pool, filter });
        self.count.store(scopes.len(), Ordering::Release);
        Ok(())
    }

    /// Ends a scope.
    pub(crate) fn end(&self, id: PoolId) -> Result<(), Kind> {
        let mut scopes = self.scopes.write();
        let position = scopes.iter().position(|scope| scope.pool.id == id).ok_or(Kind::PoolNotInUse(id))?;
        scopes.remove(position);
        self.count.store(scopes.len(), Ordering::Release);
        Ok(())
    }
}

#[derive(Debug)]
struct Counted {
    pool: Arc<PrivatePool>,
    references: usize,
}

/// The private pools that are referenced, or have blocks that callers hold.
#[derive(Default, Debug)]
pub(crate) struct PrivatePools(Mutex<BTreeMap<PoolId, Counted>>);

impl PrivatePools {
    /// Adds a reference. An unknown name becomes a new pool.
    ///
    /// # Errors
    /// If the last reference was released and callers still hold blocks of the pool.
    pub(crate) fn retain(&self, id: PoolId) -> Result<(), Kind> {
        let mut pools = self.0.lock();
        let counted = pools
            .entry(id)
            .or_insert_with(|| Counted { pool: Arc::new(PrivatePool::new(id)), references: 0 });
        if counted.pool.is_closed() {
            return Err(Kind::UnknownPool(id));
        }
        counted.references += 1;
        Ok(())
    }

    /// Removes a reference. Returns whether it was the last: then the pool is closed.
    pub(crate) fn release(&self, id: PoolId) -> Result<bool, Kind> {
        let mut pools = self.0.lock();
        let counted = referenced(&mut pools, id)?;
        counted.references -= 1;
        let last = counted.references == 0;
        counted.pool.closed.store(last, Ordering::Release);
        Ok(last)
    }

    /// Adds a reference to a pool that has one already.
    pub(crate) fn hold(&self, id: PoolId) -> Result<Arc<PrivatePool>, Kind> {
        let mut pools = self.0.lock();
        let counted = referenced(&mut pools, id)?;
        counted.references += 1;
        Ok(counted.pool.clone())
    }

    /// Returns all pools, including closed ones.
    pub(crate) fn all(&self) -> Vec<Arc<PrivatePool>> {
        self.0.lock().values().map(|counted| counted.pool.clone()).collect()
    }

    /// Forgets a closed pool if it is empty and only the caller could still add a block to it. Returns whether the pool was
    /// forgotten.
    pub(crate) fn forget(&self, pool: &Arc<PrivatePool>, is_empty: impl FnOnce() -> bool) -> bool {
        let mut pools = self.0.lock();
        // The two references are the caller's and ours. Others are cloned from one of these, or from ours with the lock held.
        let forgotten = Arc::strong_count(pool) == 2 && pools.contains_key(&pool.id) && is_empty();
        if forgotten {
            pools.remove(&pool.id);
        }
        forgotten
    }
}

fn referenced(pools: &mut BTreeMap<PoolId, Counted>, id: PoolId) -> Result<&mut Counted, Kind> {
    pools.get_mut(&id).filter(|counted| counted.references > 0).ok_or(Kind::UnknownPool(id))
}
