//! Memory that NCCL allocates, as a source of segments, which are registered with communicators.

use std::fmt;
use std::sync::{Arc, Weak};

use thalweg_driver::{DevicePointer, Driver, Result};
use thalweg_lock::{Mutex, MutexGuard};
use thalweg_memory::{SegmentSource, StreamId, UpstreamError};

use super::outside_capture;
use super::upstream::upstream_error;
use crate::{Communicator, Device, Label};

/// Segments that NCCL allocates (`ncclMemAlloc`). With some communicators all segments are registered, including later ones:
/// NCCL's kernels then access them from other GPUs without an intermediate copy. With others the segments that existed at the
/// call are registered as symmetric memory, which all ranks do together.
pub(crate) struct CollectiveMemory {
    driver: Arc<dyn Driver>,
    device: u32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The segments, in the order of their allocation.
    segments: Vec<Segment>,
    users: Vec<User>,
}

#[derive(Clone, Copy)]
struct Segment {
    address: u64,
    bytes: u64,
}

/// A communicator that segments are registered with, and the call that requested it. A dropped communicator has nothing
/// registered.
struct User {
    communicator: Weak<Communicator>,
    label: Label,
    /// The addresses of the segments that are symmetric memory; `None` if all segments are registered, including later ones.
    symmetric: Option<Vec<u64>>,
}

impl User {
    fn has(&self, address: u64) -> bool {
        self.symmetric.as_ref().is_none_or(|known| known.contains(&address))
    }

    fn is(&self, communicator: &Arc<Communicator>) -> bool {
        self.communicator.as_ptr() == Arc::as_ptr(communicator)
    }
}

/// A segment that must be registered with a communicator, for this call.
type Wanted = (Arc<Communicator>, Segment, Label);

/// Registers segments with communicators: all of them, or none if one fails.
fn register_all(wanted: impl Iterator<Item = Wanted>, symmetric: bool) -> Result<()> {
    let mut done: Vec<(Arc<Communicator>, DevicePointer)> = Vec::new();
    for (communicator, Segment { address, bytes }, label) in wanted {
        let pointer = DevicePointer::new(address);
        if let Err(error) = communicator.register(pointer, bytes, symmetric, label) {
            // The first error is the one to report.
            done.iter().for_each(|(communicator, pointer)| drop(communicator.deregister(*pointer)));
            return Err(error);
        }
        done.push((communicator, pointer));
    }
    Ok(())
}

impl CollectiveMemory {
    pub(crate) fn new(device: &Device) -> Self {
        Self { driver: device.driver().clone(), device: device.index(), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        state.users.retain(|user| user.communicator.strong_count() > 0);
        state
    }

    /// Registers all current and later segments with a communicator. Returns `false` if they were registered already.
    pub(crate) fn register(&self, communicator: &Arc<Communicator>, label: Label) -> Result<bool> {
        let mut state = self.state();
        if state.users.iter().any(|user| user.is(communicator)) {
            return Ok(false);
        }
        register_all(state.segments.iter().map(|&segment| (communicator.clone(), segment, label)), false)?;
        state.users.push(User { communicator: Arc::downgrade(communicator), label, symmetric: None });
        Ok(true)
    }

    /// Registers the segments that were added since the last call of this function as symmetric memory. *Blocks* on GPUs until
    /// all ranks have called it. Returns `false` if the segments are already registered as ordinary memory.
    pub(crate) fn register_symmetric(&self, communicator: &Arc<Communicator>, label: Label) -> Result<bool> {
        let mut state = self.state();
        let place = state.users.iter().position(|user| user.is(communicator));
        let known = match place {
            None => Vec::new(),
            Some(place) => match &state.users[place].symmetric {
                Some(known) => known.clone(),
                None => return Ok(false),
            },
        };
        let new: Vec<Segment> =
            state.segments.iter().copied().filter(|segment| !known.contains(&segment.address)).collect();
        register_all(new.iter().map(|&segment| (communicator.clone(), segment, label)), true)?;
        let all = known.into_iter().chain(new.iter().map(|segment| segment.address)).collect();
        let user = User { communicator: Arc::downgrade(communicator), label, symmetric: Some(all) };
        match place {
            Some(place) => state.users[place] = user,
            None => state.users.push(user),
        }
        Ok(true)
    }

    /// Returns the sizes of the segments, in the order of their allocation.
    pub(crate) fn segment_bytes(&self) -> Vec<u64> {
        self.state().segments.iter().map(|segment| segment.bytes).collect()
    }

    /// Removes the registrations with a communicator. Returns whether there were any.
    pub(crate) fn deregister(&self, communicator: &Arc<Communicator>) -> Result<bool> {
        let mut state = self.state();
        let Some(place) = state.users.iter().position(|user| user.is(communicator)) else {
            return Ok(false);
        };
        let user = state.users.swap_remove(place);
        let addresses =
            state.segments.iter().map(|segment| segment.address).filter(|&address| user.has(address));
        let outcomes = addresses.map(|address| communicator.deregister(DevicePointer::new(address)));
        outcomes.fold(Ok(()), Result::and).map(|()| true)
    }

    fn allocate_registered(&self, bytes: u64) -> Result<u64> {
        let mut state = self.state();
        let pointer = self.driver.memory_allocate_collective(self.device, bytes)?;
        let segment = Segment { address: pointer.address(), bytes };
        let users = state.users.iter().filter(|user| user.symmetric.is_none());
        let users = users.filter_map(|user| Some((user.communicator.upgrade()?, segment, user.label)));
        if let Err(error) = register_all(users, false) {
            // Nothing refers to the memory yet.
            let _ = self.driver.memory_free(pointer);
            return Err(error);
        }
        state.segments.push(segment);
        Ok(pointer.address())
    }

    fn free_registered(&self, address: u64) -> Result<()> {
        let mut state = self.state();
        let pointer = DevicePointer::new(address);
        for user in state.users.iter_mut().filter(|user| user.has(address)) {
            if let Some(communicator) = user.communicator.upgrade() {
                communicator.deregister(pointer)?;
            }
            if let Some(known) = &mut user.symmetric {
                known.retain(|&other| other != address);
            }
        }
        self.driver.memory_free(pointer)?;
        state.segments.retain(|segment| segment.address != address);
        Ok(())
    }
}

impl SegmentSource for CollectiveMemory {
    fn allocate(&self, bytes: u64, _stream: StreamId) -> std::result::Result<u64, UpstreamError> {
        outside_capture(&self.driver, || self.allocate_registered(bytes)).map_err(upstream_error)
    }

    fn free(&self, address: u64, _bytes: u64, _stream: StreamId) -> std::result::Result<(), UpstreamError> {
        outside_capture(&self.driver, || self.free_registered(address)).map_err(upstream_error)
    }
}

impl fmt::Debug for CollectiveMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CollectiveMemory").field("device", &self.device).finish_non_exhaustive()
    }
}
