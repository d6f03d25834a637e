//! The choice of the pool that serves a request: the shared one, or a private one.
//!
//! A captured graph replays its work at the addresses that it was captured with. So its memory must keep its addresses, and
//! nothing outside the graph may use it, for as long as the graph lives. That is the purpose of a *private pool*: while
//! allocations are directed to it ([`begin_allocate_to_pool`](crate::DeviceAllocator::begin_allocate_to_pool)), the requests that
//! match the filter get blocks from the pool's own segments, and a block of a pool returns to that pool whenever it is freed.
//!
//! A private pool is reference-counted: code that needs its addresses creates and retains it, and so does the scope that
//! allocates to it. After the last release its blocks may live on, but its free segments may be returned to the upstream, and
//! when the last segment has been returned the pool is forgotten.
//!
//! Scopes nest: of the scopes that match a request, the one begun last serves it. A scope matches the requests of some streams,
//! or those of one thread. It need not be a capture: a program may use a pool of its own
//! ([`use_pool`](crate::DeviceAllocator::use_pool)), and while nothing is captured, events and waits work as usual.
//!
//! Frees during a capture are postponed in [`pending`](super::pending).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;

use thalweg_lock::RwLock;

use super::arena::Arena;
use crate::error::Kind;
use crate::ids::{Owner, PoolId, StreamFilter, StreamId};
use crate::upstream::SegmentSource;

/// The options of a private pool (`torch.cuda.MemPool`).
#[derive(Clone, Default)]
pub struct PoolOptions {
    /// The source of the pool's segments; the allocator's upstream if `None`.
    pub source: Option<Arc<dyn SegmentSource>>,
    /// Whether the pool's free blocks serve requests of the shared pool when memory is short.
    pub use_on_oom: bool,
    /// Whether the pool's blocks are never split, so that each request gets an entire segment.
    pub no_split: bool,
    /// Whether free pages that are needed in one piece (`stitching`) are mapped there and also stay mapped at their old address:
    /// the same memory at two addresses, for as long as the pool is held. For users that rely on the pool's addresses, as graphs
    /// do, but not on different addresses being different memory. This ends with the first
    /// [checkpoint](crate::DeviceAllocator::checkpoint_pool), or with a call of
    /// [`keep_pool_in_place`](crate::DeviceAllocator::keep_pool_in_place).
    pub may_alias: bool,
}

impl fmt::Debug for PoolOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, use_on_oom, no_split, may_alias } = self;
        f.debug_struct("PoolOptions")
            .field("has_source", &source.is_some())
            .field("use_on_oom", use_on_oom)
            .field("no_split", no_split)
            .field("may_alias", may_alias)
            .finish()
    }
}

#[derive(Default)]
struct PrivatePool {
    options: PoolOptions,
    references: usize,
    /// Whether no address may lose its page any more, even if the page stays mapped there.
    stays_in_place: bool,
    arenas: BTreeMap<StreamId, Arc<Arena>>,
}

/// The private pools. [`Scopes`] decides which requests are directed to them.
#[derive(Default)]
pub(crate) struct Pools {
    private: BTreeMap<PoolId, PrivatePool>,
    /// The private pools without a reference.
    unheld: BTreeSet<PoolId>,
    /// The private pools that serve other requests when memory is short.
    helping: BTreeSet<PoolId>,
}

impl Pools {
    /// Returns a new private pool with one reference.
    pub(crate) fn create(&mut self, options: PoolOptions) -> PoolId {
        let id = PoolId::unique();
        if options.use_on_oom {
            self.helping.insert(id);
        }
        self.private.insert(id, PrivatePool { options, references: 1, ..PrivatePool::default() });
        id
    }

    pub(crate) fn retain(&mut self, id: PoolId) -> Result<(), Kind> {
        self.referenced(id)?.references += 1;
        Ok(())
    }

    pub(crate) fn release(&mut self, id: PoolId) -> Result<(), Kind> {
        let private = self.referenced(id)?;
        private.references -= 1;
        if private.references == 0 {
            self.unheld.insert(id);
        }
        self.forget_done();
        Ok(())
    }

    /// Removes a reference from a pool whose memory may still be touched by work of these streams.
    pub(crate) fn release_after(&mut self, id: PoolId, streams: &[StreamId]) -> Result<(), Kind> {
        self.referenced(id)?.arenas.values().for_each(|arena| arena.add_users(streams));
        self.release(id)
    }

    /// Adds a reference to a pool whose last reference was released, if it has not been forgotten yet. Returns whether it did.
    pub(crate) fn revive(&mut self, id: PoolId) -> bool {
        let found = self.private.get_mut(&id).filter(|private| private.references == 0);
        let revived =
            found.map(|private| (private.references, private.stays_in_place) = (1, false)).is_some();
        revived && self.unheld.remove(&id)
    }

    /// Returns the number of references of a pool; 0 if it does not exist.
    pub(crate) fn references(&self, id: PoolId) -> usize {
        self.private.get(&id).map_or(0, |private| private.references)
    }

    /// Returns the arena of a pool for a stream, created by `make` if there is none. Returns `None` if the pool's last reference
    /// was released while the request was on its way.
    pub(crate) fn arena(
        &mut self,
        id: PoolId,
        stream: StreamId,
        make: impl FnOnce(&PoolOptions) -> Arc<Arena>,
    ) -> Option<Arc<Arena>> {
        let private = self.private.get_mut(&id)?;
        let arena = private.arenas.entry(stream).or_insert_with(|| make(&private.options));
        Some(Arc::clone(arena))
    }

    /// Returns whether free memory of `owner` may be moved or returned: nothing relies on its addresses.
    pub(crate) fn is_releasable(&self, owner: Owner) -> bool {
        match owner {
            Owner::Shared => true,
            Owner::Private(id) => self.references(id) == 0,
        }
    }

    /// Returns whether free memory of `owner`, which is held, may be mapped at a second address.
    pub(crate) fn may_alias(&self, owner: Owner) -> bool {
        let held = owner.pool().and_then(|id| self.private.get(&id)).filter(|pool| pool.references > 0);
        held.is_some_and(|pool| pool.options.may_alias && !pool.options.no_split && !pool.stays_in_place)
    }

    /// Keeps a pool's free memory at its addresses from now on.
    pub(crate) fn keep_in_place(&mut self, id: PoolId) {
        if let Some(pool) = self.private.get_mut(&id) {
            pool.stays_in_place = true;
        }
    }

    /// Returns the arenas for one stream of pools that serve other requests when memory is short.
    pub(crate) fn helping_out(&self, stream: StreamId) -> Vec<Arc<Arena>> {
        let helping = self.helping.iter().filter_map(|id| self.private.get(id));
        helping.filter_map(|private| private.arenas.get(&stream).cloned()).collect()
    }

    /// Returns the arenas of pools without references, which exist as long as they have memory.
    pub(crate) fn unreferenced(&self) -> Vec<Arc<Arena>> {
        let left = self.unheld.iter().filter_map(|id| self.private.get(id));
        left.flat_map(|private| private.arenas.values().cloned()).collect()
    }

    /// Changes the options of a pool, except the source of its segments, which never changes. Returns its arenas, whose policy
    /// may depend on the options.
    pub(crate) fn change_options(
        &mut self,
        id: PoolId,
        change: impl FnOnce(&mut PoolOptions),
    ) -> Result<Vec<Arc<Arena>>, Kind> {
        let private = self.referenced(id)?;
        change(&mut private.options);
        let (helps, arenas) = (private.options.use_on_oom, private.arenas.values().cloned().collect());
        if helps {
            self.helping.insert(id);
        } else {
            self.helping.remove(&id);
        }
        Ok(arenas)
    }

    /// Returns whether a pool's blocks are never split.
    pub(crate) fn no_split(&self, owner: Owner) -> bool {
        owner.pool().and_then(|id| self.private.get(&id)).is_some_and(|private| private.options.no_split)
    }

    /// Forgets the pools that have neither a reference nor memory.
    pub(crate) fn forget_done(&mut self) {
        let Self { private, unheld, helping } = self;
        unheld.retain(|id| {
            let Some(pool) = private.get(id) else { return false };
            let keeps = pool.arenas.values().any(|arena| !arena.forget_if_empty());
            if !keeps {
                pool.arenas.values().for_each(|arena| arena.close());
                private.remove(id);
                helping.remove(id);
            }
            keeps
        });
    }

    /// Returns a pool that still has a reference.
    fn referenced(&mut self, id: PoolId) -> Result<&mut PrivatePool, Kind> {
        self.private.get_mut(&id).filter(|private| private.references > 0).ok_or(Kind::UnknownPool(id))
    }
}

/// The requests that a scope directs to a private pool: those of one thread, or those on some streams.
#[derive(Clone, Debug)]
pub(crate) enum Requests {
    OnStreams(StreamFilter),
    OfThread(ThreadId),
}

#[derive(Debug)]
struct Scope {
    pool: PoolId,
    requests: Requests,
}

/// The open scopes. Nearly always there are none, which one load detects.
#[derive(Debug, Default)]
pub(crate) struct Scopes {
    open: AtomicUsize,
    scopes: RwLock<Vec<Scope>>,
}

impl Scopes {
    /// Returns the owner of memory for a request on `stream` by the calling thread now.
    #[inline]
    pub(crate) fn owner_for(&self, stream: StreamId) -> Owner {
        if self.open.load(Ordering::Acquire) == 0 { Owner::Shared } else { self.search(stream) }
    }

    #[cold]
    fn search(&self, stream: StreamId) -> Owner {
        let scopes = self.scopes.read();
        let matches = |scope: &&Scope| match &scope.requests {
            Requests::OnStreams(filter) => filter.matches(stream),
            Requests::OfThread(thread) => *thread == std::thread::current().id(),
        };
        scopes.iter().rev().find(matches).map_or(Owner::Shared, |scope| Owner::Private(scope.pool))
    }

    /// Opens a scope.
    ///
    /// # Errors
    /// If requests on streams are already directed to this pool: then it would be ambiguous which scope a call to `end` means.
    pub(crate) fn begin(&self, pool: PoolId, requests: Requests) -> Result<(), Kind> {
        let mut scopes = self.scopes.write();
        let streams = |requests: &Requests| matches!(requests, Requests::OnStreams(_));
        if streams(&requests) && scopes.iter().any(|scope| scope.pool == pool && streams(&scope.requests)) {
            return Err(Kind::PoolInUse(pool));
        }
        scopes.push(Scope { pool, requests });
        self.open.store(scopes.len(), Ordering::Release);
        Ok(())
    }

    /// Closes the scope of streams that allocates to `pool`.
    pub(crate) fn end_streams(&self, pool: PoolId) -> Result<(), Kind> {
        self.end(pool, |requests| matches!(requests, Requests::OnStreams(_)))
    }

    /// Closes the innermost scope of `thread` that allocates to `pool`.
    pub(crate) fn end_thread(&self, pool: PoolId, thread: ThreadId) -> Result<(), Kind> {
        self.end(pool, |requests| matches!(requests, Requests::OfThread(of) if *of == thread))
    }

    fn end(&self, pool: PoolId, matches: impl Fn(&Requests) -> bool) -> Result<(), Kind> {
        let mut scopes = self.scopes.write();
        let position = scopes.iter().rposition(|scope| scope.pool == pool && matches(&scope.requests));
        scopes.remove(position.ok_or(Kind::PoolNotInUse(pool))?);
        self.open.store(scopes.len(), Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scope_begun_last_serves() {
        let (scopes, mut pools) = (Scopes::default(), Pools::default());
        let [outer, inner] = [(); 2].map(|()| pools.create(PoolOptions::default()));
        let (one, two) = (StreamId::from_raw(1), StreamId::from_raw(2));
        scopes.begin(outer, Requests::OnStreams(StreamFilter::All)).expect("it is not open");
        let second = StreamFilter::Matching(Arc::new(move |stream| stream == two));
        scopes.begin(inner, Requests::OnStreams(second)).expect("it is not open");
        assert_eq!(scopes.owner_for(one), Owner::Private(outer));
        assert_eq!(scopes.owner_for(two), Owner::Private(inner));
        scopes.end_streams(outer).expect("the scope is open");
        assert_eq!(scopes.owner_for(one), Owner::Shared);
        assert_eq!(scopes.owner_for(two), Owner::Private(inner));
    }

    #[test]
    fn a_scope_serves_its_thread_alone() {
        let (scopes, mut pools) = (Scopes::default(), Pools::default());
        let pool = pools.create(PoolOptions::default());
        let (stream, thread) = (StreamId::from_raw(1), std::thread::current().id());
        scopes.begin(pool, Requests::OfThread(thread)).expect("scopes of a thread nest");
        scopes.begin(pool, Requests::OfThread(thread)).expect("scopes of a thread nest");
        assert_eq!(scopes.owner_for(stream), Owner::Private(pool));
        let elsewhere = std::thread::scope(|scope| scope.spawn(|| scopes.owner_for(stream)).join());
        assert_eq!(elsewhere.expect("it does not panic"), Owner::Shared);
        scopes.end_thread(pool, thread).expect("it is open twice");
        assert_eq!(scopes.owner_for(stream), Owner::Private(pool));
        scopes.end_thread(pool, thread).expect("it is open");
        assert!(matches!(scopes.end_thread(pool, thread), Err(Kind::PoolNotInUse(_))));
    }

    #[test]
    fn a_pool_is_forgotten_with_its_last_reference() {
        let mut pools = Pools::default();
        let id = pools.create(PoolOptions::default());
        pools.retain(id).expect("the pool exists");
        pools.release(id).expect("two references");
        assert!(!pools.is_releasable(Owner::Private(id)));
        pools.release(id).expect("one reference");
        assert!(matches!(pools.release(id), Err(Kind::UnknownPool(_))));
        assert!(matches!(pools.retain(id), Err(Kind::UnknownPool(_))));
    }
}
