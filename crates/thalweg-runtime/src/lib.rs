//! The runtime: turns work into commands on streams.
//!
//! The runtime connects crates that do not depend on each other. It passes a driver to `memory` as its upstream, and it passes an
//! `ir` kernel to a GPU as CUDA C and to the simulator as a host function. Code above the runtime never sees a driver's handle.
//!
//! - [`Device`]: a GPU, real or simulated, with its allocators, its streams and its loaded kernels.
//! - [`Stream`], [`Event`]: order. The current stream is a property of the thread.
//! - [`Buffer`], [`PinnedBuffer`]: memory from the caches; [`ManagedMemory`]: a source for a pool of its own.
//! - [`SharedBuffer`]: memory of another process, opened by its [`SharedHandle`].
//! - [`LoadedKernel`], [`PreparedLaunch`], [`Stream::launch`], [`Stream::submit_library`]: work, with the ranges that it touches and a label.
//! - [`Communicator`]: collectives across several devices, as commands of streams.
//! - [`Graph`]: capture and replay of a region with a private pool; [`graph::audit()`]: the reasons why a region cannot be
//!   captured.
//! - [`sim::check`]: a program under many schedules and faults of the simulated GPU, watched by a sanitizer.
//!
//! # Invariants
//! - No operator names, no tensors, no `unsafe`.
//! - The environment is read once, into [`Environment`].
//! - An error of asynchronous work names the commands that may have caused it.
#![forbid(unsafe_code)]

mod accesses;
mod ahead;
pub mod command_list;
mod communicator;
mod copy;
mod deferred;
mod device;
pub mod disk_cache;
mod elements;
mod environment;
mod error;
mod event;
mod forgotten;
mod format;
pub mod graph;
mod kernel;
mod kernel_pack;
mod launch;
mod loaded;
mod loop_kernel;
mod mem_pool;
mod memory;
mod meta;
mod native;
mod options;
mod out_of_range;
mod pinned;
mod recorder;
#[cfg(feature = "sim-tools")]
pub mod sim;
mod spare_events;
mod stream;
mod stream_state;

pub use command_list::CommandList;
pub use communicator::{CollectivePart, Communicator};
pub use deferred::{Before, QueueDeferred, queue_deferred, set_deferred};
pub use device::{DefaultDeviceGuard, Device, DeviceGuard, Devices, set_sim_memory};
pub use environment::Environment;
pub use error::{Error, ErrorClass, Result};
pub use event::Event;
pub use format::element_format;
pub use graph::{CaptureOptions, Graph, GraphPool};
pub use kernel::{compiler, precompile, use_precompiled};
pub use kernel_pack::pack as pack_kernels;
pub use loaded::{KernelKey, LaunchKey, LoadedKernel, PreparedLaunch};
pub use loop_kernel::HostLoop;
pub use mem_pool::{MemPool, MemPoolScope};
pub use memory::{Buffer, ManagedMemory, OutputHandle, SharedBuffer, SharedHandle, outside_capture};
pub use out_of_range::{OutOfRangeReport, RangeOf};
pub use pinned::PinnedBuffer;
pub use stream::{Stream, StreamGuard};
pub use stream_state::STREAMS_PER_PRIORITY;
pub use thalweg_driver::{
    Access, CaptureMode, CommunicatorId, DevicePointer, ExternalMemory, ExternalStream, Label, ProcessMemory,
    map_process,
};
pub use thalweg_driver::{Activation, ActivationPass, MatmulActivation, MatmulEpilogue};
pub use thalweg_driver::{ConvolutionEpilogue, ConvolutionPass, ConvolutionShape, ElementFormat};
pub use thalweg_driver::{DenseCall, DenseMethod, DenseUse};
pub use thalweg_driver::{FourierCall, FourierKind, FourierShape};
pub use thalweg_driver::{
    RecurrentCall, RecurrentKind, RecurrentMemory, RecurrentPart, RecurrentPass, RecurrentShape,
    RecurrentStates,
};
pub use thalweg_driver::{Within, within};

/// Returns whether this machine has a GPU that [`Device::cuda`] could open. Creates no context; with
/// `PYTORCH_NVML_BASED_CUDA_CHECK=1` it does not initialise the driver either, so that the process may still `fork` (unless NVML
/// cannot report the devices; then, as in PyTorch, the driver is initialised after all).
pub fn is_available() -> bool {
    use thalweg_driver::cuda::{AvailabilityReason, availability};
    if Environment::get().nvml_based_check {
        let availability = availability();
        if !matches!(availability.reason, AvailabilityReason::Unknown(_)) {
            return availability.device_count > 0;
        }
    }
    Device::cuda(0).is_ok()
}
