//! Objects made elsewhere.

/// A stream that another library made (`CUstream`, as PyTorch's `stream.cuda_stream`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ForeignStream(u64);

impl ForeignStream {
    /// A stream by its native number.
    ///
    /// # Safety
    /// `native` is a live `CUstream` of the device that it is adopted for (0 and 1 are the legacy default stream), and its
    /// owner keeps it alive while a handle of it is in use.
    pub const unsafe fn new(native: u64) -> Self {
        Self(native)
    }

    /// The native number.
    pub const fn native(self) -> u64 {
        self.0
    }
}
