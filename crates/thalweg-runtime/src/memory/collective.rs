//! Memory that NCCL allocates as a source of segments, which are registered with communicators.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use thalweg_driver::{DevicePointer, Driver, Result};
use thalweg_memory::{SegmentSource, StreamId, UpstreamError};

use super::outside_capture;
use super::upstream::{lock, upstream_error};
use crate::{Communicator, Device, Label};

/// Segments that NCCL allocates (`ncclMemAlloc`). All of them, also those to come, are registered with some communicators: NCCL's kernels then read and write
/// them from other GPUs, with no copy between.
pub(crate) struct CollectiveMemory {
    driver: Arc<dyn Driver>,
    device: u32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Sizes by address.
    segments: BTreeMap<u64, u64>,
    users: Vec<User>,
}

/// A communicator that segments are registered with, and the call that asked for it. One that is gone has nothing registered.
struct User {
    communicator: Weak<Communicator>,
    label: Label,
}

impl User {
    fn is(&self, communicator: &Arc<Communicator>) -> bool {
        self.communicator.as_ptr() == Arc::as_ptr(communicator)
    }
}

/// A segment, by its address and its size, that a communicator is to take, for this call.
type Wanted = (Arc<Communicator>, u64, u64, Label);

/// Registers segments with communicators: all of them, or none.
fn register_all(wanted: impl Iterator<Item = Wanted>) -> Result<()> {
    let mut done: Vec<(Arc<Communicator>, DevicePointer)> = Vec::new();
    for (communicator, address, bytes, label) in wanted {
        let pointer = DevicePointer::new(address);
        if let Err(error) = communicator.register(pointer, bytes, label) {
            // The first error is the one to tell.
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
        let mut state = lock(&self.state);
        state.users.retain(|user| user.communicator.strong_count() > 0);
        state
    }

    /// Registers all segments with a communicator, and those that come from now on. Returns whether they were not yet.
    pub(crate) fn register(&self, communicator: &Arc<Communicator>, label: Label) -> Result<bool> {
        let mut state = self.state();
        if state.users.iter().any(|user| user.is(communicator)) {
            return Ok(false);
        }
        let segments = state.segments.iter();
        register_all(segments.map(|(&address, &bytes)| (communicator.clone(), address, bytes, label)))?;
        state.users.push(User { communicator: Arc::downgrade(communicator), label });
        Ok(true)
    }

    /// Takes the registrations with a communicator back. Returns whether there were any.
    pub(crate) fn deregister(&self, communicator: &Arc<Communicator>) -> Result<bool> {
        let mut state = self.state();
        let Some(place) = state.users.iter().position(|user| user.is(communicator)) else {
            return Ok(false);
        };
        state.users.swap_remove(place);
        let outcomes =
            state.segments.keys().map(|&address| communicator.deregister(DevicePointer::new(address)));
        outcomes.fold(Ok(()), Result::and).map(|()| true)
    }

    fn allocate_registered(&self, bytes: u64) -> Result<u64> {
        let mut state = self.state();
        let pointer = self.driver.memory_allocate_collective(self.device, bytes)?;
        let users =
            state.users.iter().filter_map(|user| user.communicator.upgrade().map(|one| (one, user.label)));
        if let Err(error) = register_all(users.map(|(one, label)| (one, pointer.address(), bytes, label))) {
            // Nothing knows the memory yet.
            let _ = self.driver.memory_free(pointer);
            return Err(error);
        }
        state.segments.insert(pointer.address(), bytes);
        Ok(pointer.address())
    }

    fn free_registered(&self, address: u64) -> Result<()> {
        let mut state = self.state();
        let pointer = DevicePointer::new(address);
        for communicator in state.users.iter().filter_map(|user| user.communicator.upgrade()) {
            communicator.deregister(pointer)?;
        }
        self.driver.memory_free(pointer)?;
        state.segments.remove(&address);
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
