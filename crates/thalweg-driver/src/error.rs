//! One error type for every driver, in CUDA's own codes.
//!
//! The simulator fails with the codes that CUDA would return, so code above never distinguishes the drivers.

use std::fmt;

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal;)*) => {
        /// The kind of an error, numbered as `CUresult` in `cuda.h` is.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum Code {
            $($(#[$doc])* $variant,)*
            /// A status that this version has no name for.
            Other(u32),
        }

        impl Code {
            /// Creates the code with CUDA's number.
            pub const fn from_number(number: u32) -> Self {
                match number {
                    $($number => Self::$variant,)*
                    other => Self::Other(other),
                }
            }

            /// Returns CUDA's number (`CUresult`). The codes that CUDA lacks (a missing library, say) have numbers from
            /// 100,000.
            pub const fn number(self) -> u32 {
                match self {
                    $(Self::$variant => $number,)*
                    Self::Other(number) => number,
                }
            }

            /// Returns CUDA's name, as in `CUDA_ERROR_INVALID_VALUE`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                    Self::Other(_) => "CUDA_ERROR (no name in this version)",
                }
            }
        }
    };
}

codes! {
    /// An argument is out of its range.
    InvalidValue = 1, "CUDA_ERROR_INVALID_VALUE";
    /// The device has no room left.
    OutOfMemory = 2, "CUDA_ERROR_OUT_OF_MEMORY";
    /// The driver was not initialised, or was inherited through `fork`.
    NotInitialized = 3, "CUDA_ERROR_NOT_INITIALIZED";
    /// The driver is shutting down.
    Deinitialized = 4, "CUDA_ERROR_DEINITIALIZED";
    /// The installed driver is a stub library.
    StubLibrary = 34, "CUDA_ERROR_STUB_LIBRARY";
    /// The device cannot be used just now.
    DeviceUnavailable = 46, "CUDA_ERROR_DEVICE_UNAVAILABLE";
    /// There is no device at all.
    NoDevice = 100, "CUDA_ERROR_NO_DEVICE";
    /// No device has this number.
    InvalidDevice = 101, "CUDA_ERROR_INVALID_DEVICE";
    /// The image is not loadable.
    InvalidImage = 200, "CUDA_ERROR_INVALID_IMAGE";
    /// No context is current, or the wrong one.
    InvalidContext = 201, "CUDA_ERROR_INVALID_CONTEXT";
    /// A range could not be mapped.
    MapFailed = 205, "CUDA_ERROR_MAP_FAILED";
    /// A range could not be unmapped.
    UnmapFailed = 206, "CUDA_ERROR_UNMAP_FAILED";
    /// The range is mapped already.
    AlreadyMapped = 208, "CUDA_ERROR_ALREADY_MAPPED";
    /// The image holds no code for this device.
    NoBinaryForDevice = 209, "CUDA_ERROR_NO_BINARY_FOR_GPU";
    /// The range is not mapped.
    NotMapped = 211, "CUDA_ERROR_NOT_MAPPED";
    /// An uncorrectable memory error.
    EccUncorrectable = 214, "CUDA_ERROR_ECC_UNCORRECTABLE";
    /// Peer access between the two devices is impossible.
    PeerAccessUnsupported = 217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED";
    /// The PTX does not compile.
    InvalidPtx = 218, "CUDA_ERROR_INVALID_PTX";
    /// The PTX is newer than the driver.
    UnsupportedPtxVersion = 222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION";
    /// The operating system refused.
    OperatingSystem = 304, "CUDA_ERROR_OPERATING_SYSTEM";
    /// The handle is unknown or was destroyed.
    InvalidHandle = 400, "CUDA_ERROR_INVALID_HANDLE";
    /// The object is in a state that does not allow the call.
    IllegalState = 401, "CUDA_ERROR_ILLEGAL_STATE";
    /// There is no object with that name.
    NotFound = 500, "CUDA_ERROR_NOT_FOUND";
    /// Work is still running. Only queries return this code, and the trait turns it into `Ok(false)`.
    NotReady = 600, "CUDA_ERROR_NOT_READY";
    /// A kernel accessed memory that does not exist. Sticky: the context is lost.
    IllegalAddress = 700, "CUDA_ERROR_ILLEGAL_ADDRESS";
    /// A launch requested more registers, threads or shared memory than there are.
    LaunchOutOfResources = 701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES";
    /// A kernel ran for too long. Sticky.
    LaunchTimeout = 702, "CUDA_ERROR_LAUNCH_TIMEOUT";
    /// Peer access is enabled already.
    PeerAccessAlreadyEnabled = 704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED";
    /// Peer access is not enabled.
    PeerAccessNotEnabled = 705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED";
    /// The context was destroyed.
    ContextIsDestroyed = 709, "CUDA_ERROR_CONTEXT_IS_DESTROYED";
    /// A device-side assertion failed. Sticky.
    Assert = 710, "CUDA_ERROR_ASSERT";
    /// A misaligned access in a kernel. Sticky.
    MisalignedAddress = 716, "CUDA_ERROR_MISALIGNED_ADDRESS";
    /// A kernel failed. Sticky.
    LaunchFailed = 719, "CUDA_ERROR_LAUNCH_FAILED";
    /// A cooperative launch has more blocks than the device holds at once.
    CooperativeLaunchTooLarge = 720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE";
    /// The operation is not permitted.
    NotPermitted = 800, "CUDA_ERROR_NOT_PERMITTED";
    /// The device or the driver does not support this.
    NotSupported = 801, "CUDA_ERROR_NOT_SUPPORTED";
    /// The call is forbidden while a stream captures.
    StreamCaptureUnsupported = 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
    /// The capture was broken by an earlier error.
    StreamCaptureInvalidated = 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED";
    /// Two captures would have been merged.
    StreamCaptureMerge = 902, "CUDA_ERROR_STREAM_CAPTURE_MERGE";
    /// The capture was not started on this stream.
    StreamCaptureUnmatched = 903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED";
    /// A forked stream was not joined before the end.
    StreamCaptureUnjoined = 904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED";
    /// A dependency would cross the boundary of the capture.
    StreamCaptureIsolation = 905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION";
    /// The legacy default stream would depend on a capturing stream.
    StreamCaptureImplicit = 906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT";
    /// The event was last recorded in a capture.
    CapturedEvent = 907, "CUDA_ERROR_CAPTURED_EVENT";
    /// The capture was started by another thread.
    StreamCaptureWrongThread = 908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD";
    /// The wait for an event took longer than its limit.
    Timeout = 909, "CUDA_ERROR_TIMEOUT";
    /// The graph cannot be updated in place.
    GraphExecUpdateFailure = 910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE";
    /// Anything else.
    Unknown = 999, "CUDA_ERROR_UNKNOWN";
    /// A shared library is not on this machine, or is too old to have the entry point.
    LibraryMissing = 100_000, "THALWEG_LIBRARY_MISSING";
    /// The run-time compiler refused the source.
    Compilation = 100_001, "THALWEG_COMPILATION";
    /// A vendor library (cuBLASLt, say) returned an error.
    Library = 100_002, "THALWEG_LIBRARY";
    /// The process is a child of one that had initialised the driver.
    Forked = 100_003, "THALWEG_FORKED";
    /// A sanitizer found an error in the program's calls, and is configured to fail calls with errors.
    Finding = 100_004, "THALWEG_FINDING";
    /// A call needs another rank, which has ended or cannot be reached. The communicator can only be aborted.
    CommunicatorFailed = 100_005, "THALWEG_COMMUNICATOR_FAILED";
}

impl Code {
    /// Returns whether the device's context is lost: every later call on it fails with the same code.
    pub const fn is_sticky(self) -> bool {
        matches!(
            self,
            Self::EccUncorrectable
                | Self::IllegalAddress
                | Self::LaunchTimeout
                | Self::Assert
                | Self::MisalignedAddress
                | Self::LaunchFailed
                | Self::ContextIsDestroyed
        )
    }
}

/// An error of a driver: a [`Code`], the call that failed, and the known cause.
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Clone, PartialEq, Eq)]
struct Inner {
    code: Code,
    call: &'static str,
    detail: String,
    asynchronous: bool,
}

/// The result of a driver's call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Creates an error of `call` (CUDA's name of the entry point, `cuMemAlloc`) with a detail for people: the request, and
    /// how to fix it.
    pub fn new(code: Code, call: &'static str, detail: impl Into<String>) -> Self {
        Self(Box::new(Inner { code, call, detail: detail.into(), asynchronous: false }))
    }

    /// Returns the error, marked as caused by earlier work.
    #[must_use]
    pub fn asynchronous(mut self) -> Self {
        self.0.asynchronous = true;
        self
    }

    /// Returns the error with `more` appended to its detail.
    #[must_use]
    pub fn with_detail(mut self, more: &str) -> Self {
        if !self.0.detail.is_empty() {
            self.0.detail.push_str("; ");
        }
        self.0.detail.push_str(more);
        self
    }

    /// Returns the code.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// Returns the entry point that failed (`cuMemAlloc`).
    pub fn call(&self) -> &'static str {
        self.0.call
    }

    /// Returns the cause in words.
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// Returns whether the device has no room left: freeing memory and trying again makes sense.
    pub fn is_out_of_memory(&self) -> bool {
        self.0.code == Code::OutOfMemory
    }

    /// Returns whether the caller's argument was wrong (a value, a handle, a device number).
    pub fn is_invalid_argument(&self) -> bool {
        matches!(self.0.code, Code::InvalidValue | Code::InvalidHandle | Code::InvalidDevice)
    }

    /// Returns whether the context of the device is lost.
    pub fn is_device_lost(&self) -> bool {
        self.0.code.is_sticky()
    }

    /// Returns whether a rule of stream capture was broken (CUDA's codes 900 to 908).
    pub fn is_capture(&self) -> bool {
        (900..=908).contains(&self.0.code.number())
    }

    /// Returns whether a library or an entry point is missing on this machine.
    pub fn is_library_missing(&self) -> bool {
        self.0.code == Code::LibraryMissing
    }

    /// Returns whether the driver does not support the request at all.
    pub fn is_not_supported(&self) -> bool {
        self.0.code == Code::NotSupported
    }

    /// Returns whether earlier asynchronous work is the cause, not the call that failed.
    pub fn is_asynchronous(&self) -> bool {
        self.0.asynchronous || self.0.code.is_sticky()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { code, call, detail, .. } = &*self.0;
        write!(f, "{call}: {} ({})", code.name(), code.number())?;
        if !detail.is_empty() {
            write!(f, ": {detail}")?;
        }
        if self.is_asynchronous() {
            write!(f, " [caused by work submitted earlier, not by this call]")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({self})")
    }
}

impl std::error::Error for Error {}
