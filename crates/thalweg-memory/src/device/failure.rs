//! The end of a request that cannot be served: figures, advice, observers.
//!
//! The figures and the advice are computed from one reading of the state, under the lock of the slow path. Observers are
//! notified, and snapshots written, after all locks have been released: an observer may free memory, or allocate some.

use std::sync::Arc;

use thalweg_snapshot::Action;

use super::allocator::DeviceAllocator;
use super::arena::Arena;
use super::central::Central;
use super::gauges::Quantity;
use super::reentry;
use crate::diagnose::advice::Situation;
use crate::error::{AllocationError, Kind, OutOfMemory};
use crate::ids::Owner;
use crate::policy::Request;
use crate::trace::history::Event;
use crate::trace::observe::OutOfMemoryEvent;

impl DeviceAllocator {
    /// Returns the error for a request that cannot be served, after counting it and recording an event.
    pub(crate) fn out_of_memory(
        &self,
        central: &mut Central,
        arena: &Arc<Arena>,
        request: &Request,
    ) -> AllocationError {
        central.ledger.statistics.num_ooms += 1;
        let figures = self.figures(central, arena, request, false);
        let watch = &self.common().watch;
        if watch.is_on() {
            let event = Event {
                pool_id: arena.key.pool_id(),
                stack: request.stack,
                ..Event::new(
                    Action::Oom,
                    figures.device.map_or(0, |device| device.free_bytes),
                    request.size_bytes,
                    arena.key.stream,
                )
            };
            watch.report(&mut central.ring, &event);
        }
        Kind::OutOfMemory(Box::new(figures)).into()
    }

    /// Returns the error for a request that is refused only because of the memory fraction.
    pub(crate) fn rejected(
        &self,
        central: &mut Central,
        arena: &Arc<Arena>,
        request: &Request,
    ) -> AllocationError {
        central.ledger.statistics.num_oom_rejections += 1;
        Kind::OutOfMemory(Box::new(self.figures(central, arena, request, true))).into()
    }

    /// Notifies the observers of a failed request, and writes a snapshot if one is requested. No lock is held.
    #[cold]
    pub(crate) fn report_failure(&self, mut error: AllocationError) -> AllocationError {
        let Some(figures) = error.figures_mut() else { return error };
        let device = figures.device;
        let total_bytes = device.map_or(0, |device| device.total_bytes);
        let event = OutOfMemoryEvent {
            device: figures.device_number,
            size_bytes: figures.segment_bytes,
            allowed_bytes: figures.allowed_bytes.unwrap_or(total_bytes),
            free_bytes: device.map_or(0, |device| device.free_bytes),
        };
        let watch = &self.common().watch;
        reentry::report_failure(|| {
            if figures.rejected {
                return watch.rejections.notify(&event);
            }
            watch.failures.notify(&event);
            if let Some(files) = watch.files() {
                let written = files.write(|| self.memory_snapshot());
                figures.snapshot = written.map_err(|error| error.to_string()).transpose();
            }
        });
        error
    }

    /// Returns whether a request that failed would be served now: other threads may have freed memory meanwhile.
    pub(crate) fn would_fit_now(&self, central: &mut Central, arena: &Arc<Arena>, request: &Request) -> bool {
        self.look(central, arena, request, false).1.fits()
    }

    fn figures(
        &self,
        central: &mut Central,
        arena: &Arc<Arena>,
        request: &Request,
        rejected: bool,
    ) -> OutOfMemory {
        let (mut figures, situation) = self.look(central, arena, request, rejected);
        figures.segment_bytes = situation.segment_bytes();
        figures.advice = situation.advice();
        figures
    }

    /// Returns the memory situation of a request that cannot be served.
    fn look(
        &self,
        central: &mut Central,
        arena: &Arc<Arena>,
        request: &Request,
        rejected: bool,
    ) -> (OutOfMemory, Situation) {
        let settings = self.settings();
        let mut figures = OutOfMemory {
            label: settings.label().to_owned(),
            device_number: settings.device_number(),
            requested_bytes: request.requested_bytes,
            allowed_bytes: central.ledger.allowed_bytes,
            device: self.common().upstream.memory_info().ok(),
            capturing: self.common().is_capturing(),
            rejected,
            ..OutOfMemory::default()
        };
        for one in self.common().all_arenas() {
            let state = one.lock();
            let active_bytes = state.gauges.current(Quantity::ActiveBytes);
            figures.allocated_bytes += state.gauges.current(Quantity::AllocatedBytes);
            figures.pending_bytes += active_bytes - state.gauges.current(Quantity::AllocatedBytes);
            let free = || state.free.iter().flat_map(|bins| bins.iter()).map(|entry| entry.size_bytes);
            let free_bytes: u64 = free().sum();
            if one.key.owner != Owner::Shared {
                figures.private_pool_bytes += active_bytes;
                figures.private_pool_cached_bytes += free_bytes;
            } else if one.number != arena.number {
                figures.other_streams_cached_bytes += free_bytes;
            }
            let largest_bytes = free().max().unwrap_or(0);
            figures.largest_free_block_bytes = figures.largest_free_block_bytes.max(largest_bytes);
        }
        figures.reserved_bytes = match settings.is_cached_here() {
            true => central.ledger.reserved_bytes(),
            false => figures.allocated_bytes + figures.pending_bytes,
        };
        let situation = Situation::of(self, central, arena, request, &figures);
        (figures, situation)
    }
}
