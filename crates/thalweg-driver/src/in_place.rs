//! Memory of the process that devices use in place.
//!
//! # Lifetime
//! [`map_process`] makes memory of the process the memory of a device, whose owner ends the mapping and only then drops the owner that
//! it was given. Above this crate, that owner is dropped after the work that used the memory. If the mapping cannot be ended, as in the
//! child of a fork, what keeps the memory alive is never dropped.

use std::any::Any;
use std::sync::Arc;

use crate::{DevicePointer, Driver, ExternalMemory, Result};

/// Memory of this process that devices are to use in place ([`Driver::host_map`](crate::Driver::host_map)).
///
/// # Who may write when
/// The memory is ordinary memory of the process: an array of another library, or a file that several processes have mapped. A device
/// command accesses it only while the call that queued the command blocks. So a thread that makes calls and accesses the memory
/// between them has no race. Other threads and processes that write it at the same moment are as those of any shared memory: the
/// program orders them, or accepts that a number is the former or the new one (numbers of up to eight bytes are loaded and stored
/// as a whole).
#[derive(Debug)]
pub struct ProcessMemory {
    address: usize,
    size_bytes: u64,
}

impl ProcessMemory {
    /// Names memory by its address.
    ///
    /// # Safety
    /// The `size_bytes` bytes from `address` on can be read and written until the mapping has ended, and the process accesses them
    /// as described at the [type](Self).
    pub unsafe fn new(address: usize, size_bytes: u64) -> Self {
        Self { address, size_bytes }
    }

    /// Returns the address of the first byte.
    pub fn address(&self) -> usize {
        self.address
    }

    /// Returns the size.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }
}

/// A mapping, with the owner of the memory.
struct Mapping {
    driver: Arc<dyn Driver>,
    pointer: DevicePointer,
    owner: Option<Box<dyn Any + Send + Sync>>,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let is_unmapped = self.driver.host_unmap(self.pointer).is_ok();
        let owner = self.owner.take();
        if !is_unmapped {
            std::mem::forget(owner);
        }
    }
}

/// Returns memory of the process as memory of a driver's devices, which use it in place. The owner is dropped when they do not use it
/// any more.
///
/// # Errors
/// Those of [`Driver::host_map`].
pub fn map_process(
    driver: &Arc<dyn Driver>,
    memory: &ProcessMemory,
    owner: Box<dyn Any + Send + Sync>,
) -> Result<ExternalMemory> {
    let pointer = driver.host_map(memory)?;
    let mapping = Mapping { driver: Arc::clone(driver), pointer, owner: Some(owner) };
    // SAFETY: the bytes can be read and written until the mapping's owner is dropped, as the maker of `ProcessMemory` has promised,
    // and devices reach them at this address until the mapping ends, which is before.
    Ok(unsafe { ExternalMemory::new(pointer, memory.size_bytes(), mapping) })
}

impl ExternalMemory {
    /// Returns the owner that [`map_process`] was given, if the memory is of the process.
    pub fn owner_in_process(&self) -> Option<&(dyn Any + Send + Sync)> {
        self.owner().downcast_ref::<Mapping>()?.owner.as_deref()
    }
}
