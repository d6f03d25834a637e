//! Giving cached memory back to the upstream.
//!
//! All that is free goes back when the program asks for it (`empty_cache`), or when a request would fail otherwise. Before that, a
//! request for which there are not enough pages has just as many go back as it lacks: first those that are of the other size,
//! which is why they could not move to where they are needed. Small pages and large ones are not exchanged; this is how memory
//! gets from the one kind to the other, and a program that does it now and then should not lose its whole cache each time.
//!
//! Memory goes back in whole plain segments and whole pages, behind the work that may touch it: the host waits for that.
//!
//! Not here: when it is done ([`slow_path`](super::slow_path)), and the end of an arena or an allocator.

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
    /// Waits for all pending events, then gives all that is free back: what no private pool relies on, or what one pool has.
    /// *Blocks*.
    ///
    /// # Errors
    /// The first failure of the upstream. What was given back before it is gone, the rest stays cached.
    pub(crate) fn release_cached(
        &self,
        central: &mut Central,
        pool: Option<PoolId>,
    ) -> Result<(), AllocationError> {
        central.ledger.statistics.num_sync_all_streams += 1;
        central.ledger.most_active_bytes = 0;
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

    /// Gives back the memory and addresses of pools without references, except memory that waits for other streams. *Blocks*
    /// until nothing touches it. What is refused stays until memory is short.
    pub(crate) fn release_unreferenced_pools(&self, central: &mut Central) {
        let left = central.pools.unreferenced();
        if left.is_empty() {
            return;
        }
        left.iter().for_each(|arena| arena.lock().process_events(arena));
        let _ = self.release_up_to(central, u64::MAX, &left, [SizeClass::Large, SizeClass::Small]);
        central.pools.forget_done();
    }

    /// Gives back as much of what is free as makes up `bytes`, or all if there is less; first what lies in segments of the other
    /// class than `class`. What waits for other streams stays. *Blocks* until the work of streams that give something is done.
    /// Returns how many bytes went back.
    ///
    /// # Errors
    /// As [`release_cached`](Self::release_cached).
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
    /// Gives what is free in one class back to where it came from, until it makes up `bytes`, which become fewer by that: whole
    /// plain segments, and whole pages. *Blocks* until this stream and [other users](Self::add_users) are done, if there are
    /// pages.
    ///
    /// # Errors
    /// The upstream's; the rest stays cached.
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
