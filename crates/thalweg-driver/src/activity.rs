//! [`ActivityTracer`]: a record of the work of devices, by the devices' own clocks.
//!
//! A profiler numbers the calls of the host ([`ActivityTracer::enter`]) and gets, for each kernel, copy and fill that they
//! caused, its number and when it ran. On real GPUs this is CUPTI ([`CudaDriver`](crate::cuda::CudaDriver)).

use std::fmt;
use std::time::Instant;

use crate::Result;

/// The kind of an [`Activity`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ActivityKind {
    /// A kernel.
    Kernel,
    /// A copy from the host, to the host, within a device, or between two devices.
    Copy,
    /// A fill.
    Fill,
}

/// A kernel, copy or fill that ran on a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Activity {
    /// The kind of work.
    pub kind: ActivityKind,
    /// A kernel's name as the compiler wrote it, mangled if it is C++; empty for copies and fills.
    pub name: String,
    /// The number that was passed to [`ActivityTracer::enter`] around the call that caused the activity; `None` outside of
    /// such calls.
    pub call: Option<u64>,
    /// The device.
    pub device: u32,
    /// The tracer's number of the stream. Work of a graph may also have the numbers of streams that the driver keeps for
    /// graphs.
    pub stream: u32,
    /// The moment when the activity began.
    pub start: Instant,
    /// The moment when the activity ended.
    pub end: Instant,
    /// The number of bytes that a copy moved or a fill wrote; 0 for a kernel.
    pub bytes: u64,
    /// Details of a kernel.
    pub kernel: Option<KernelActivity>,
    /// The node of the graph that contains the activity, by the tracer's number.
    pub graph_node: Option<u64>,
}

/// Details of a kernel that ran.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelActivity {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads per block in x, y, z.
    pub block: [u32; 3],
    /// Registers per thread.
    pub registers: u32,
    /// Bytes of static and dynamic shared memory per block.
    pub shared_memory_bytes: u32,
}

/// The result of [`ActivityTracer::stop`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Activities {
    /// The activities, in the order in which they began.
    pub list: Vec<Activity>,
    /// The number of activities that the tracer had no room for.
    pub dropped: u64,
}

/// A record of the work on all devices of the process, between [`start`](Self::start) and [`stop`](Self::stop).
pub trait ActivityTracer: Send + Sync + fmt::Debug {
    /// Starts tracing. The first call may take seconds if kernels are loaded already, because the library instruments them.
    ///
    /// # Errors
    /// [`InvalidValue`](crate::Code::InvalidValue) if tracing is on already; the library's refusals, such as for a second
    /// profiler in the process.
    fn start(&self) -> Result<()>;

    /// Attributes the work that the calling thread submits from now on to the call with this number, until
    /// [`leave`](Self::leave). Calls nest.
    fn enter(&self, call: u64);

    /// Undoes the latest [`enter`](Self::enter) of the calling thread.
    fn leave(&self);

    /// Stops tracing and returns what ran. Work that is still under way is left out, so synchronize the devices first.
    ///
    /// # Errors
    /// [`InvalidValue`](crate::Code::InvalidValue) if tracing is off; the library's errors.
    fn stop(&self) -> Result<Activities>;
}
