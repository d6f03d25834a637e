//! Streams and memory that another library made.

use std::any::Any;
use std::fmt;

use crate::DevicePointer;

/// A stream that another library made (a `CUstream`; PyTorch's `torch.cuda.ExternalStream`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ExternalStream {
    cuda_stream: u64,
    context: u64,
}

impl ExternalStream {
    /// Names a stream by its `CUstream` as a number.
    ///
    /// # Safety
    /// `cuda_stream` is a live stream of the device it is wrapped for (0 and 1 are the legacy default stream), and its
    /// owner keeps it alive while a handle of it is in use. During a call of
    /// [`Driver::stream_capture_info`](crate::Driver::stream_capture_info) other threads use the stream through that handle
    /// only.
    pub const unsafe fn new(cuda_stream: u64) -> Self {
        Self { cuda_stream, context: 0 }
    }

    /// Names the legacy default stream of a context that is not its device's primary one, such as a green context, which
    /// [`CudaDriver::green_context`](crate::cuda::CudaDriver::green_context) finds.
    ///
    /// # Safety
    /// `context` is a live `CUcontext` of the device that the stream is wrapped for, and lives while a handle of the stream is
    /// in use.
    pub const unsafe fn default_of(context: u64) -> Self {
        Self { cuda_stream: 0, context }
    }

    /// Returns the context whose legacy default stream this is; `None` if it is the primary context, or another stream.
    pub const fn context(self) -> Option<u64> {
        if self.context == 0 { None } else { Some(self.context) }
    }

    /// Returns the `CUstream` as a number (PyTorch's `stream.cuda_stream`).
    pub const fn cuda_stream(self) -> u64 {
        self.cuda_stream
    }
}

/// Memory of a device that another library allocated (a tensor received through DLPack), with its owner: dropping the owner
/// frees the memory.
pub struct ExternalMemory {
    pointer: DevicePointer,
    size_bytes: u64,
    owner: Box<dyn Any + Send + Sync>,
    is_in_stream_order: bool,
}

impl ExternalMemory {
    /// Names memory by its address, with its size and its owner.
    ///
    /// # Safety
    /// The `size_bytes` bytes from `pointer` on are memory of the device it is wrapped for. They can be read and
    /// written until `owner` is dropped. The owner may be dropped on any thread, once work that uses the memory is done.
    pub unsafe fn new(pointer: DevicePointer, size_bytes: u64, owner: impl Any + Send + Sync) -> Self {
        Self { pointer, size_bytes, owner: Box::new(owner), is_in_stream_order: false }
    }

    /// Declares that the memory is reused in the order of the stream on which it is used first, as the allocators of
    /// frameworks do: its owner may be dropped as soon as that stream's work is queued, before it is done. Until then nothing else
    /// uses the memory, so that work on it may be put off.
    ///
    /// # Safety
    /// Work that uses the memory after its owner was dropped is queued to that stream, or ordered after it.
    pub unsafe fn in_stream_order(self) -> Self {
        Self { is_in_stream_order: true, ..self }
    }

    /// Returns whether the owner may be dropped before the work of the first stream is done.
    pub fn is_in_stream_order(&self) -> bool {
        self.is_in_stream_order
    }

    /// Returns the address.
    pub fn pointer(&self) -> DevicePointer {
        self.pointer
    }

    /// Returns the size.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns the owner, to look at it.
    pub(crate) fn owner(&self) -> &(dyn Any + Send + Sync) {
        &*self.owner
    }

    /// Returns the owner. Dropping it frees the memory.
    pub fn into_owner(self) -> Box<dyn Any + Send + Sync> {
        self.owner
    }
}

impl fmt::Debug for ExternalMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalMemory")
            .field("pointer", &self.pointer)
            .field("size_bytes", &self.size_bytes)
            .finish_non_exhaustive()
    }
}
