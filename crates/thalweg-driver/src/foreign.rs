//! Objects made elsewhere.

/// A stream that another library made (`CUstream`, as PyTorch's `stream.cuda_stream`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ForeignStream {
    native: u64,
    context: u64,
}

impl ForeignStream {
    /// A stream by its native number.
    ///
    /// # Safety
    /// `native` is a live `CUstream` of the device that it is adopted for (0 and 1 are the legacy default stream), and its
    /// owner keeps it alive while a handle of it is in use. While a capture of it is looked into
    /// ([`Driver::stream_capture_info`](crate::Driver::stream_capture_info)), no other thread works with it past that handle.
    pub const unsafe fn new(native: u64) -> Self {
        Self { native, context: 0 }
    }

    /// The legacy default stream of a context that is not its device's primary one: a green context, which
    /// [`CudaDriver::green_context`](crate::cuda::CudaDriver::green_context) finds.
    ///
    /// # Safety
    /// `context` is a live `CUcontext` of the device that the stream is adopted for, and lives while a handle of the stream is in
    /// use.
    pub const unsafe fn default_of(context: u64) -> Self {
        Self { native: 0, context }
    }

    /// The context whose legacy default stream this is, if that is not the primary one.
    pub const fn context(self) -> Option<u64> {
        if self.context == 0 { None } else { Some(self.context) }
    }

    /// The native number.
    pub const fn native(self) -> u64 {
        self.native
    }
}
