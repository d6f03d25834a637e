//! Streams that another library made.

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
    /// `cuda_stream` is a live stream of the device that it is wrapped for (0 and 1 are the legacy default stream), and its
    /// owner keeps it alive while a handle of it is in use. During a call of
    /// [`Driver::stream_capture_info`](crate::Driver::stream_capture_info) no other thread uses the stream except by that handle.
    pub const unsafe fn new(cuda_stream: u64) -> Self {
        Self { cuda_stream, context: 0 }
    }

    /// Names the legacy default stream of a context that is not its device's primary one: of a green context, which
    /// [`CudaDriver::green_context`](crate::cuda::CudaDriver::green_context) finds.
    ///
    /// # Safety
    /// `context` is a live `CUcontext` of the device that the stream is wrapped for, and lives while a handle of the stream is
    /// in use.
    pub const unsafe fn default_of(context: u64) -> Self {
        Self { cuda_stream: 0, context }
    }

    /// Returns the context whose legacy default stream this is, if that is not the primary one.
    pub const fn context(self) -> Option<u64> {
        if self.context == 0 { None } else { Some(self.context) }
    }

    /// Returns the `CUstream` as a number (PyTorch's `stream.cuda_stream`).
    pub const fn cuda_stream(self) -> u64 {
        self.cuda_stream
    }
}
