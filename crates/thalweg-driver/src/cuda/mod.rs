//! Real GPUs: NVIDIA's driver and libraries, loaded at run time.
//!
//! CUDA is not needed to build or to start: [`CudaDriver::open`], [`Nvrtc::load`] and the other entry points search for
//! their library when they are called ([`locate`]). A machine without it gets an error that lists the places that were
//! searched.
//!
//! # The layers
//! - `search` finds and loads libraries; `table` contains their entry points; `sys` is our copy of `cuda.h`. These do not
//!   check arguments.
//! - `objects` knows what exists: every handle, address and size of a caller is checked against it before the driver sees them. It is
//!   why [`Driver`](crate::Driver) can be a safe trait over an unsafe library.
//! - `context` (devices, errors, `fork`) with `staging` memory, `blaslt`, `cudnn`, `fourier`, `dense` and `nccl` are the libraries; `state`
//!   contains all of these. (A context has staging memory, which is pinned through a context: these three know each other.)
//! - `stream`, `memory`, `host`, `sharing`, `module`, `tensor_map`, `library`, `nccl` and `graph` implement the calls of the trait, in groups,
//!   on that state; `driver` connects them to the trait.
//! - `tools` are NVIDIA's libraries beside the driver: they work without the rest.
//!
//! # Invariants
//! - The driver never sees a pointer into the caller's memory that it could use after the call returned.
//! - An object is destroyed when no call uses it, and its handle is dead from then on.
//! - A call that a library refuses is an error that names the entry point, the request, and the library's own words.
//!
//! # Not included
//! No caching of memory, no policy, no dtypes. Nothing is released when the process ends: the operating system does that
//! better than a destructor that runs while other libraries shut CUDA down.

#[cfg(test)]
mod argument_sizes;
mod blaslt;
mod context;
mod cudnn;
mod dense;
mod driver;
mod fourier;
mod graph;
mod host;
mod library;
mod memory;
mod module;
mod nccl;
mod objects;
#[cfg(test)]
mod oracle;
mod search;
mod sharing;
mod staging;
mod state;
mod stream;
mod sys;
mod table;
mod tensor_map;
mod tools;
mod workspace;

pub use context::ContextGuard;
pub use search::{Attempt, Found, FoundBy, Library, SearchEnvironment, SearchReport, locate};
pub use state::CudaDriver;
pub use tools::nvml::{
    Availability, AvailabilityReason, DeviceProcess, Reading, StateUnknown, availability, availability_with,
    device_processes, device_reading,
};
pub use tools::nvrtc::{Architecture, CompileOptions, Compiled, Nvrtc};
pub use tools::nvtx;
