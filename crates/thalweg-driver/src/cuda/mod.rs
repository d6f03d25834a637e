//! Real GPUs: NVIDIA's driver and libraries, loaded at run time.
//!
//! Nothing of CUDA is needed to build or to start: [`CudaDriver::open`], [`Nvrtc::load`] and the rest look for their library
//! when they are called ([`locate`]), and a machine without it gets an error that says where it was looked for.
//!
//! # The layers
//! - `search` finds and loads libraries; `table` holds their entry points; `sys` is our copy of `cuda.h`. Nothing here
//!   checks arguments.
//! - `handles`, `objects`, `ranges`, `pinned` know what exists: every handle, address and size that a caller gives is checked
//!   against them before the driver sees it. They are why [`Driver`](crate::Driver) can be a safe trait over an unsafe library.
//! - `context` (devices, errors, `fork`) with `staging` memory, `blaslt`, `cudnn` and `nccl` are the libraries; `state` holds all of these.
//!   (A context has its staging memory, which is pinned through a context: these three know each other.)
//! - `stream`, `memory`, `host_memory`, `host_copy`, `sharing`, `module`, `library`, `collective`, `collective_memory`, `graph`, `graph_description`,
//!   `graph_update`, `conditional` and `host_function` are the calls of the trait, group by group, on that state; `driver` ties them
//!   together.
//! - `nvrtc` compiles kernels and `nvml` counts devices; both work without the rest. `cupti` says what ran on a device, and when;
//!   [`nvtx`] tells profilers of the program's own ranges.
//!
//! # Invariants
//! - The driver never sees a pointer into the caller's memory that it could use after the call returned.
//! - An object is destroyed when no call uses it, and its handle is dead from then on.
//! - A call that a library refuses is an error that names the entry point, what was asked for, and the library's own words.
//!
//! # What it does not do
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
