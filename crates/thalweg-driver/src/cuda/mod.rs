//! Real GPUs: NVIDIA's driver and libraries, loaded at run time.
//!
//! CUDA is not needed to build or to start: [`CudaDriver::open`], [`Nvrtc::load`] and the other entry points search for
//! their library when they are called ([`locate`]). A machine without it gets an error that lists the places that were
//! searched.
//!
//! # The layers
//! - `search` finds and loads libraries; `table` contains their entry points; `sys` is our copy of `cuda.h`. These do not
//!   check arguments.
//! - `handles`, `objects`, `ranges`, `pinned` know what exists: every handle, address and size of a caller is checked
//!   against them before the driver sees it. They are why [`Driver`](crate::Driver) can be a safe trait over an unsafe
//!   library.
//! - `context` (devices, errors, `fork`) with `staging` memory, `blaslt`, `cudnn` and `nccl` are the libraries; `state`
//!   contains all of these. (A context has staging memory, which is pinned through a context: these three know each other.)
//! - `stream`, `memory`, `host_memory`, `host_copy`, `sharing`, `module`, `library`, `collective`, `collective_memory`,
//!   `graph`, `graph_description`, `graph_update`, `conditional` and `host_function` implement the calls of the trait, in
//!   groups, on that state; `driver` connects them to the trait.
//! - `nvrtc` compiles kernels and `nvml` counts devices; both work without the rest. `cupti` records the work of a device;
//!   [`nvtx`] shows the program's own ranges in profilers.
//!
//! # Invariants
//! - The driver never sees a pointer into the caller's memory that it could use after the call returned.
//! - An object is destroyed when no call uses it, and its handle is dead from then on.
//! - A call that a library refuses is an error that names the entry point, the request, and the library's own words.
//!
//! # Not included
//! No caching of memory, no policy, no dtypes. Nothing is released when the process ends: the operating system does that
//! better than a destructor that runs while other libraries shut CUDA down.

mod blaslt;
mod blaslt_algorithm;
mod blaslt_epilogue;
mod collective;
mod collective_memory;
mod conditional;
mod context;
mod cudnn;
mod cupti;
mod driver;
mod graph;
mod graph_description;
mod graph_update;
mod handles;
mod host_copy;
mod host_function;
mod host_memory;
mod library;
mod memory;
mod module;
mod nccl;
mod nccl_version;
mod nvml;
mod nvrtc;
pub mod nvtx;
mod objects;
#[cfg(test)]
mod oracle;
mod pinned;
mod ranges;
mod search;
mod sharing;
mod staging;
mod state;
mod stream;
mod sys;
mod table;
mod tensor_map;

pub use context::ContextGuard;
pub use nvml::{
    Availability, AvailabilityReason, DeviceProcess, Reading, StateUnknown, availability, availability_with,
    device_processes, device_reading,
};
pub use nvrtc::{Architecture, CompileOptions, Compiled, Nvrtc};
pub use search::{Attempt, Found, FoundBy, Library, SearchEnvironment, SearchReport, locate};
pub use state::CudaDriver;
