//! Pinning and unpinning memory, with its accounts.
//!
//! Memory comes from the upstream, piece by piece, or from the *reserve*: one large piece that is pinned at the first request and
//! handed out from its beginning to its end, in granules of 4 KiB. Nothing is returned to the reserve; blocks from it are cached
//! for ever, and all of it is freed with the allocator. If the reserve cannot be pinned, this is not tried again, and the
//! allocator works without it ([`reserve_segment_bytes`](crate::HostStatistics::reserve_segment_bytes) stays 0).
//!
//! The upstream is called with no lock held, except for the one call that pins the reserve.

use std::collections::BTreeMap;
use std::time::Instant;

use thalweg_lock::{Mutex, MutexGuard};
use thalweg_snapshot::Action;

use super::rounding::{Request, method_of};
use super::statistics::HostStatistics;
use super::unsplit::{Asked, PinnedBlock, Source};
use crate::error::AllocationError;
use crate::ids::StreamId;
use crate::settings::Settings;
use crate::trace::history::{Event, History, Ring, StackId};
use crate::upstream::{HostMethod, HostUpstream, UpstreamError};

/// The granule of the reserve: the page size of most hosts.
const RESERVE_GRANULE_BYTES: u64 = 4096;

#[derive(Clone, Copy, Debug)]
struct Reserve {
    address: u64,
    size_bytes: u64,
    used_bytes: u64,
    method: HostMethod,
}

impl Reserve {
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let granules = granules(bytes);
        if granules > self.size_bytes - self.used_bytes {
            return None;
        }
        let address = self.address + self.used_bytes;
        self.used_bytes += granules;
        Some(address)
    }
}

fn granules(bytes: u64) -> u64 {
    bytes.next_multiple_of(RESERVE_GRANULE_BYTES)
}

/// A block as it was pinned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) size_bytes: u64,
    /// The stack of the call that pinned the block, if stacks were recorded.
    pub(crate) stack: Option<StackId>,
    /// Whether the block is never used again, and in no bucket.
    pub(crate) lost: bool,
}

#[derive(Default, Debug)]
pub(crate) struct Accounts {
    /// The statistics, without the active blocks, which the buckets count.
    pub(crate) statistics: HostStatistics,
    /// All blocks, by address.
    pub(crate) pieces: BTreeMap<u64, Piece>,
    /// The record of when blocks were pinned and freed, and the events of buckets that no longer exist.
    pub(crate) ring: Ring,
    reserve: Option<Reserve>,
    /// The size of a reserve that could not be pinned.
    refused_reserve_bytes: u64,
}

/// The calls of the upstream, with their accounts. See the [module's essay](self).
#[derive(Default, Debug)]
pub(crate) struct Pinning(Mutex<Accounts>);

impl Pinning {
    /// Pins memory for a request; `None` if there is no memory left.
    pub(crate) fn pin(
        &self,
        asked: &Asked,
        history: &History,
        settings: &Settings,
        upstream: &dyn HostUpstream,
    ) -> Result<Option<PinnedBlock>, AllocationError> {
        let start = Instant::now();
        let Request { size_bytes, requested_bytes, .. } = asked.request;
        let block = |address, source| PinnedBlock { address, size_bytes, requested_bytes, source };
        let block = match self.reserved(size_bytes, settings, upstream) {
            Some(address) => block(address, Source::Reserve),
            None => match upstream.allocate_host(size_bytes, method_of(settings)) {
                Ok(address) => block(address, Source::Upstream(method_of(settings))),
                Err(UpstreamError::OutOfMemory) => return Ok(None),
                Err(error) => return Err(AllocationError::upstream("allocate_host", error)),
            },
        };
        let accounts = &mut *self.lock();
        let piece = Piece { size_bytes, stack: asked.stack, lost: false };
        accounts.pieces.insert(block.address, piece);
        accounts.report(history, Action::SegmentAlloc, block.address, &piece);
        let statistics = &mut accounts.statistics;
        statistics.host_alloc_time.add(start.elapsed());
        statistics.num_host_alloc += 1;
        statistics.allocations.increase(1);
        statistics.allocated_bytes.increase(size_bytes);
        Ok(Some(block))
    }

    fn reserved(&self, size_bytes: u64, settings: &Settings, upstream: &dyn HostUpstream) -> Option<u64> {
        let wanted_bytes = settings.pinned_reserve_segment_size_bytes()?;
        let accounts = &mut *self.lock();
        if accounts.reserve.is_none() {
            if accounts.refused_reserve_bytes == wanted_bytes {
                return None;
            }
            accounts.refused_reserve_bytes = wanted_bytes;
            let method = method_of(settings);
            let address = upstream.allocate_host(wanted_bytes, method).ok()?;
            accounts.reserve = Some(Reserve { address, size_bytes: wanted_bytes, used_bytes: 0, method });
            accounts.statistics.reserve_segment_bytes = wanted_bytes;
        }
        let reserve = accounts.reserve.as_mut()?;
        let address = reserve.take(size_bytes);
        accounts.statistics.reserve_segment_used_bytes = reserve.used_bytes;
        address
    }

    /// Returns one block, which has no uses, to the upstream it came from.
    pub(crate) fn unpin(
        &self,
        block: &PinnedBlock,
        history: &History,
        upstream: &dyn HostUpstream,
    ) -> Result<(), AllocationError> {
        let Source::Upstream(method) = block.source else {
            unreachable!("the reserve goes back as a whole");
        };
        let leaving = Leaving::report(self, block.address, history);
        let start = Instant::now();
        upstream
            .free_host(block.address, block.size_bytes, method)
            .map_err(|error| AllocationError::upstream("free_host", error))?;
        leaving.complete();
        let statistics = &mut self.lock().statistics;
        statistics.host_free_time.add(start.elapsed());
        statistics.num_host_free += 1;
        statistics.allocations.decrease(1);
        statistics.allocated_bytes.decrease(block.size_bytes);
        Ok(())
    }

    /// Frees the reserve if these are all the blocks that came from it. Only called when the allocator is dropped.
    pub(crate) fn unpin_reserve(&self, blocks: &[PinnedBlock], upstream: &dyn HostUpstream) {
        let Some(reserve) = self.lock().reserve else { return };
        let returned: u64 = blocks.iter().map(|block| granules(block.size_bytes)).sum();
        if returned == reserve.used_bytes {
            // There is no caller left to report a failure to.
            let _ = upstream.free_host(reserve.address, reserve.size_bytes, reserve.method);
        }
    }

    /// Locks the accounts and calls `action` with their statistics, to read or change them.
    pub(crate) fn with_statistics<T>(&self, action: impl FnOnce(&mut HostStatistics) -> T) -> T {
        action(&mut self.lock().statistics)
    }

    /// Locks the accounts, to read or change them.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Accounts> {
        self.0.lock()
    }
}

impl Accounts {
    fn report(&mut self, history: &History, action: Action, address: u64, piece: &Piece) {
        let event = Event::new(action, address, piece.size_bytes, StreamId::from_raw(0));
        self.ring.push(history, &Event { stack: piece.stack, ..event });
    }

    /// Marks blocks as lost: they belong to no bucket any more.
    pub(crate) fn lose(&mut self, blocks: &[PinnedBlock]) {
        for block in blocks {
            self.statistics.retired.count(block.size_bytes);
            if let Some(piece) = self.pieces.get_mut(&block.address) {
                piece.lost = true;
            }
        }
    }
}

/// A block that is about to be freed. The history records it before the call, since its address may be handed out again at once
/// on another thread. A block that the upstream refuses to free is recorded as taken again.
struct Leaving<'a> {
    pinning: &'a Pinning,
    history: &'a History,
    address: u64,
    piece: Piece,
}

impl<'a> Leaving<'a> {
    fn report(pinning: &'a Pinning, address: u64, history: &'a History) -> Self {
        let accounts = &mut *pinning.lock();
        let piece = accounts.pieces.remove(&address).expect("what goes back was pinned");
        accounts.report(history, Action::SegmentFree, address, &piece);
        Self { pinning, history, address, piece }
    }

    fn complete(self) {
        std::mem::forget(self);
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let accounts = &mut *self.pinning.lock();
        accounts.pieces.insert(self.address, self.piece);
        accounts.report(self.history, Action::SegmentAlloc, self.address, &self.piece);
    }
}
