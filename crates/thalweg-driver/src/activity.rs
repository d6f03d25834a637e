//! [`ActivityTracer`]: what ran on devices, by the devices' own clocks.
//!
//! A profiler marks the calls of the host by numbers ([`ActivityTracer::enter`]) and gets, for each kernel, copy and fill that
//! they caused, when it ran. On real GPUs this is CUPTI ([`CudaDriver`](crate::cuda::CudaDriver)).

use std::fmt;
use std::time::Instant;

use crate::Result;

/// The kind of an [`Activity`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ActivityKind {
    /// A kernel.
    Kernel,
    /// A copy, from the host, to it, within a device, or between two.
    Copy,
    /// A fill.
    Fill,
}

/// Something that ran on a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Activity {
    /// The kind of work.
    pub kind: ActivityKind,
    /// A kernel's name as the compiler wrote it, mangled if it is of C++; empty for copies and fills.
    pub name: String,
    /// The number that was given to [`ActivityTracer::enter`] around the call that caused it; `None` outside of such calls.
    pub call: Option<u64>,
    /// The device.
    pub device: u32,
    /// The tracer's number of the stream. A graph's work has those of streams that the driver keeps for graphs, too.
    pub stream: u32,
    /// The moment when it began.
    pub start: Instant,
    /// The moment when it ended.
    pub end: Instant,
    /// The number of bytes that a copy moved or a fill wrote; 0 for a kernel.
    pub bytes: u64,
    /// Details of a kernel.
    pub kernel: Option<KernelActivity>,
    /// The node of the graph that it was part of, by the tracer's number.
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
    /// The number of further ones that the tracer had no room for.
    pub dropped: u64,
}

/// A record of what runs on all devices of the process, between [`start`](Self::start) and [`stop`](Self::stop).
pub trait ActivityTracer: Send + Sync + fmt::Debug {
    /// Begins to trace. The first time may take seconds, if kernels are loaded already: the library instruments them.
    ///
    /// # Errors
    /// [`InvalidValue`](crate::Code::InvalidValue) if it traces already; what the library refuses, such as a second profiler in the process.
    fn start(&self) -> Result<()>;

    /// Says that what the calling thread submits from now on is of the call with this number, until [`leave`](Self::leave). Calls nest.
    fn enter(&self, call: u64);

    /// Undoes the newest [`enter`](Self::enter) of the calling thread.
    fn leave(&self);

    /// Ends the trace, and returns what ran. Work that is still under way is left out: synchronize the devices before.
    ///
    /// # Errors
    /// [`InvalidValue`](crate::Code::InvalidValue) if it does not trace; what the library answers.
    fn stop(&self) -> Result<Activities>;
}
