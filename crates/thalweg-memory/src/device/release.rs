//! Returning cached memory to the upstream.
//!
//! All free memory is returned when the program calls `empty_cache`, or when a request would fail otherwise. Before that, a
//! request that lacks pages first makes the allocator return only as many bytes as it lacks, starting with pages of the other
//! size, which could not move to where they are needed. Small and large pages are not exchanged, so this is how memory changes
//! from one kind to the other, and a program that does so now and then should not lose its entire cache each time.
//!
//! Memory is returned as entire plain segments and entire pages, after the work that may touch it: the host waits for that.
//!
//! The [slow path](super::slow_path) decides when; the end of an arena or an allocator is not handled here.

use std::sync::Arc;

use super::allocator::DeviceAllocator;
use super::arena::Arena;
use super::bins::Entry;
use super::blocks::Span;
use super::central::Central;
use super::spare::SparePage;
use crate::error::AllocationError;
use crate::ids::{Owner, PoolId, SizeClass};

impl DeviceAllocator {
    /// Waits for all pending events, then returns all free memory to the upstream: the memory that no private pool relies on, or
    /// the memory of one pool. *Blocks*.
    ///
    /// # Errors
    /// Returns the first failure of the upstream. Memory that was returned before it is gone, the rest stays cached.
    pub(crate) fn release_cached(
        &self,
        central: &mut Central,
        pool: Option<PoolId>,
    ) -> Result<(), AllocationError> {
        central.ledger.statistics.num_sync_all_streams += 1;
        (central.ledger.most_active_bytes, central.ledger.moved_bytes) = (0, 0);
        for arena in self.common().all_arenas() {
            arena.synchronize()?;
        }
        let chosen = |arena: &Arc<Arena>| match pool {
            Some(pool) => arena.key.owner == Owner::Private(pool),
            None => central.pools.is_releasable(arena.key.owner),
        };
        let chosen: Vec<Arc<Arena>> = self.common().all_arenas().into_iter().filter(chosen).collect();
        self.release_up_to(central, u64::MAX, &chosen, [SizeClass::Large, SizeClass::Small])?;
        self.trim_driver()?;
        central.pools.forget_done();
        Ok(())
    }

    /// Releases the memory and addresses of pools without references to the upstream, except memory that waits for other streams.
    /// *Blocks* until no work touches it. Memory that the upstream refuses stays until memory is short.
    pub(crate) fn release_unreferenced_pools(&self, central: &mut Central) {
        let left = central.pools.unreferenced();
        if left.is_empty() {
            return;
        }
        left.iter().for_each(|arena| arena.lock().process_events(arena));
        let _ = self.release_up_to(central, u64::MAX, &left, [SizeClass::Large, SizeClass::Small]);
        central.pools.forget_done();
    }

    /// Releases free memory to the upstream until it makes up `bytes`, or all if there is less; first the memory in segments of
    /// the other class than `class`. Memory that waits for other streams stays. *Blocks* until the work of the streams that own
    /// the memory is done. Returns the number of bytes that were returned.
    pub(crate) fn release_some(
        &self,
        central: &mut Central,
        bytes: u64,
        class: SizeClass,
    ) -> Result<u64, AllocationError> {
        let before = central.ledger.reserved_bytes();
        let mut chosen = self.common().all_arenas();
        chosen.retain(|arena| central.pools.is_releasable(arena.key.owner));
        self.release_up_to(central, bytes, &chosen, [class.other(), class])?;
        Ok(before - central.ledger.reserved_bytes())
    }

    fn release_up_to(
        &self,
        central: &mut Central,
        mut bytes: u64,
        chosen: &[Arc<Arena>],
        classes: [SizeClass; 2],
    ) -> Result<(), AllocationError> {
        for class in classes {
            for arena in chosen {
                if bytes == 0 {
                    break;
                }
                arena.release_free(central, class, &mut bytes)?;
            }
        }
        let Some(memory) = self.common().upstream.virtual_memory() else { return Ok(()) };
        let ledger = &mut central.ledger;
        let destroyed = |spare: &SparePage| ledger.page_destroyed(spare.class, spare.bytes);
        let outcome = self.common().destroy_spare_pages(memory, destroyed);
        outcome.map_err(|(call, error)| AllocationError::upstream(call, error))
    }
}

impl Arena {
    /// Releases the free memory of one class to its source, until it makes up `bytes`, which is reduced accordingly: entire plain
    /// segments, and entire pages. *Blocks* until this stream and [other users](Self::add_users) are done, if there are pages.
    ///
    /// # Errors
    /// Returns the upstream's error; the rest stays cached.
    fn release_free(
        &self,
        central: &mut Central,
        class: SizeClass,
        bytes: &mut u64,
    ) -> Result<(), AllocationError> {
        let mut state = self.lock();
        let entries: Vec<Span> = state.free[class as usize].iter().map(Entry::span).collect();
        let (expandable, plain): (Vec<Span>, Vec<Span>) =
            entries.into_iter().partition(|span| state.blocks.tag(span.block).is_expandable);
        for span in plain {
            if *bytes > 0 && !state.blocks.is_split(span.block) {
                state.release_plain(self, &mut central.ledger, span)?;
                *bytes = bytes.saturating_sub(span.size_bytes);
            }
        }
        let Some(memory) = self.common.upstream.virtual_memory().filter(|_| *bytes > 0) else {
            return Ok(());
        };
        let must_wait = !expandable.is_empty() || state.has_aliases();
        if must_wait {
            let waited = self.wait_for_users(&state);
            waited.map_err(|error| AllocationError::upstream("synchronize_stream", error))?;
        }
        state.close_aliases(memory)?;
        for span in expandable {
            if *bytes > 0 {
                let released_bytes = state.release_pages(self, &mut central.ledger, span, *bytes, memory)?;
                *bytes = bytes.saturating_sub(released_bytes);
            }
        }
        state.release_addresses(memory)
    }
}
