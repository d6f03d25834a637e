//! Opening the memory of other processes; [`imports`](crate::ipc::imports) says how.

use std::sync::Arc;

use super::allocator::DeviceAllocator;
use crate::error::AllocationError;
use crate::ipc::imports::SharedMemory;
use crate::ipc::sharing::MemoryHandle;

impl DeviceAllocator {
    /// Opens what another process exported, or finds it open already. May block.
    ///
    /// # Errors
    /// [`is_invalid_argument`](AllocationError::is_invalid_argument) if the upstream shares no memory, or has no pages of
    /// that size; or the upstream's, after which nothing is open that was not before.
    pub fn open_shared(&self, handle: &MemoryHandle) -> Result<Arc<SharedMemory>, AllocationError> {
        self.imports.open(self.common(), handle)
    }

    /// Lets go of opened memory. Returns it if the caller was the last to have it, to keep until work that may read it is done:
    /// from then on it is not found open any more, since its handle may stand for other memory as soon as the other process hears
    /// of this.
    pub fn retire_shared(&self, memory: Arc<SharedMemory>) -> Option<Arc<SharedMemory>> {
        self.imports.retire(memory)
    }
}
