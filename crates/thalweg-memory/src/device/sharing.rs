//! Opening the memory of other processes; [`imports`](crate::ipc::imports) explains how.

use std::sync::Arc;

use super::allocator::DeviceAllocator;
use crate::error::AllocationError;
use crate::ipc::imports::SharedMemory;
use crate::ipc::sharing::MemoryHandle;

impl DeviceAllocator {
    /// Opens memory that another process exported, or returns it if it is already open. May block.
    ///
    /// # Errors
    /// [`is_invalid_argument`](AllocationError::is_invalid_argument) if the upstream shares no memory, or has no pages of that
    /// size; or the upstream's error, after which no further memory is open.
    pub fn open_shared(&self, handle: &MemoryHandle) -> Result<Arc<SharedMemory>, AllocationError> {
        self.imports.open(self.common(), handle)
    }

    /// Drops a reference to opened memory. Returns the memory if the caller had the last reference, to be kept until work that
    /// may read it is done. From then on it is not found as open any more, since its handle may stand for other memory as soon as
    /// the other process learns of this.
    pub fn retire_shared(&self, memory: Arc<SharedMemory>) -> Option<Arc<SharedMemory>> {
        self.imports.retire(memory)
    }
}
