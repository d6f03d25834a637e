//! Which pool serves a request: the shared one, or a private one.
//!
//! A captured graph replays its work at the addresses that it was captured with. So its memory must stay put, and nothing
//! outside the graph may get it, for as long as the graph lives. That is what a *private pool* is for: while allocations go
//! to it ([`begin_allocate_to_pool`](crate::DeviceAllocator::begin_allocate_to_pool)), the requests that match the filter
//! get blocks from the pool's own segments, and a block that came from a pool goes back to it whenever it is freed.
//!
//! A private pool is counted: created and retained by those who need its addresses, and held by the scope that allocates to
//! it. After the last release its blocks may live on, but its free segments may go back to the upstream, and when the last
//! has gone the pool is forgotten.
//!
//! Scopes nest: the one begun last whose filter matches the stream serves.
//!
//! What is not here: the deferral of frees during a capture ([`order`](crate::order)).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Kind;
use crate::pool::Pool;
use crate::upstream::StreamId;

/// Names a private pool. No two pools of a process share a name, whatever allocator they belong to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId(u64);

impl PoolId {
    pub(crate) fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The name as a number, for logs and snapshots.
    pub const fn raw(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolId({})", self.0)
    }
}

/// Which requests a private pool serves while allocations go to it.
#[derive(Clone)]
pub enum StreamFilter {
    /// Those on every stream. Memory that a bystander allocates meanwhile is overwritten by the next replay, if the capture
    /// had used it before: choose this only if there is no bystander.
    All,
    /// Those on one stream.
    Stream(StreamId),
    /// Those on the streams for which the function holds: the streams that a capture has spread to, say. It is called
    /// with the allocator's lock held and must not call the allocator.
    Matching(Arc<dyn Fn(StreamId) -> bool + Send + Sync>),
}

impl StreamFilter {
    pub(crate) fn matches(&self, stream: StreamId) -> bool {
        match self {
            Self::All => true,
            Self::Stream(one) => *one == stream,
            Self::Matching(matches) => matches(stream),
        }
    }
}

impl fmt::Debug for StreamFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("All"),
            Self::Stream(stream) => f.debug_tuple("Stream").field(stream).finish(),
            Self::Matching(_) => f.write_str("Matching(..)"),
        }
    }
}

/// Whose a segment is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    Shared,
    Private(PoolId),
}

#[derive(Debug, Default)]
struct PrivatePool {
    pool: Pool,
    references: usize,
    segments: usize,
}

#[derive(Debug)]
struct Scope {
    pool: PoolId,
    filter: StreamFilter,
}

/// The shared pool, the private ones, and the scopes that are open.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    shared: Pool,
    private: BTreeMap<PoolId, PrivatePool>,
    scopes: Vec<Scope>,
}

impl Pools {
    /// A new private pool with one reference.
    pub(crate) fn create(&mut self) -> PoolId {
        let id = PoolId::unique();
        self.private.insert(id, PrivatePool { references: 1, ..PrivatePool::default() });
        id
    }

    pub(crate) fn retain(&mut self, id: PoolId) -> Result<(), Kind> {
        self.referenced(id)?.references += 1;
        Ok(())
    }

    pub(crate) fn release(&mut self, id: PoolId) -> Result<(), Kind> {
        self.referenced(id)?.references -= 1;
        self.forget_if_done(id);
        Ok(())
    }

    /// Opens a scope, which holds a reference.
    pub(crate) fn begin(&mut self, id: PoolId, filter: StreamFilter) -> Result<(), Kind> {
        if self.scopes.iter().any(|scope| scope.pool == id) {
            return Err(Kind::PoolInUse(id));
        }
        self.retain(id)?;
        self.scopes.push(Scope { pool: id, filter });
        Ok(())
    }

    pub(crate) fn end(&mut self, id: PoolId) -> Result<(), Kind> {
        let position = self.scopes.iter().position(|scope| scope.pool == id).ok_or(Kind::PoolNotInUse(id))?;
        self.scopes.remove(position);
        self.release(id)
    }

    /// Who serves a request on `stream` now.
    pub(crate) fn owner_for(&self, stream: StreamId) -> Owner {
        let scope = self.scopes.iter().rev().find(|scope| scope.filter.matches(stream));
        scope.map_or(Owner::Shared, |scope| Owner::Private(scope.pool))
    }

    pub(crate) fn pool(&self, owner: Owner) -> &Pool {
        match owner {
            Owner::Shared => &self.shared,
            Owner::Private(id) => &self.private[&id].pool,
        }
    }

    pub(crate) fn pool_mut(&mut self, owner: Owner) -> &mut Pool {
        match owner {
            Owner::Shared => &mut self.shared,
            Owner::Private(id) => &mut self.with_segments(id).pool,
        }
    }

    pub(crate) fn segment_added(&mut self, owner: Owner) {
        if let Owner::Private(id) = owner {
            self.with_segments(id).segments += 1;
        }
    }

    pub(crate) fn segment_removed(&mut self, owner: Owner) {
        if let Owner::Private(id) = owner {
            self.with_segments(id).segments -= 1;
            self.forget_if_done(id);
        }
    }

    /// The pools whose free segments nobody relies on.
    pub(crate) fn releasable(&self) -> impl Iterator<Item = &Pool> {
        let unreferenced = self.private.values().filter(|private| private.references == 0);
        std::iter::once(&self.shared).chain(unreferenced.map(|private| &private.pool))
    }

    /// A pool that somebody still holds.
    fn referenced(&mut self, id: PoolId) -> Result<&mut PrivatePool, Kind> {
        self.private.get_mut(&id).filter(|private| private.references > 0).ok_or(Kind::UnknownPool(id))
    }

    fn with_segments(&mut self, id: PoolId) -> &mut PrivatePool {
        self.private.get_mut(&id).expect("a pool is known as long as it has segments or references")
    }

    fn forget_if_done(&mut self, id: PoolId) {
        if self.private.get(&id).is_some_and(|private| private.references == 0 && private.segments == 0) {
            self.private.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scope_begun_last_serves() {
        let mut pools = Pools::default();
        let (outer, inner) = (pools.create(), pools.create());
        let (one, two) = (StreamId::from_raw(1), StreamId::from_raw(2));
        pools.begin(outer, StreamFilter::All).expect("the pool exists");
        pools
            .begin(inner, StreamFilter::Matching(Arc::new(move |stream| stream == two)))
            .expect("the pool exists");
        assert_eq!(pools.owner_for(one), Owner::Private(outer));
        assert_eq!(pools.owner_for(two), Owner::Private(inner));
        pools.end(outer).expect("the scope is open");
        assert_eq!(pools.owner_for(one), Owner::Shared);
        assert_eq!(pools.owner_for(two), Owner::Private(inner));
    }

    #[test]
    fn a_pool_is_forgotten_with_its_last_reference_and_segment() {
        let mut pools = Pools::default();
        let id = pools.create();
        let owner = Owner::Private(id);
        pools.retain(id).expect("the pool exists");
        pools.segment_added(owner);
        pools.release(id).expect("two references");
        assert_eq!(pools.releasable().count(), 1);
        pools.release(id).expect("one reference");
        assert_eq!(pools.releasable().count(), 2);
        assert!(matches!(pools.release(id), Err(Kind::UnknownPool(_))));
        assert!(matches!(pools.retain(id), Err(Kind::UnknownPool(_))));
        pools.segment_removed(owner);
        assert_eq!(pools.releasable().count(), 1);
    }
}
