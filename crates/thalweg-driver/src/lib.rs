//! The boundary to GPUs: the [`Driver`] trait, and its implementation on NVIDIA's driver.
//!
//! - [`driver`] is the contract: devices, streams, events, memory, modules and graphs, in CUDA's verbs with plain handles. The calls
//!   themselves are a list, `calls`.
//! - [`cuda`] speaks to NVIDIA's driver. Every library is loaded at run time, so the same binary starts on a machine
//!   without CUDA and reports what is missing.
//! - [`activity`] records the work of a device for profilers.
//! - [`instrument`] is the interface by which the layers above notify a sanitizer of events that no driver sees.
//!
//! The simulated GPU, the sanitizer and the conformance suite are separate crates (`thalweg-sim`, `thalweg-sanitizer`,
//! `thalweg-conformance`). Everything above this crate is the same code on a GPU and on the simulated one.
//!
//! # Invariants
//! - [`Driver`] is a safe trait: no call of a method, however wrong, is undefined behaviour in Rust.
//! - A driver knows no dtypes, tensors or policies.
//! - A missing library is an error that lists the places that were searched, never a panic.

pub mod activity;
pub mod anonymous;
mod calls;
pub mod collective;
mod command;
pub mod cuda;
pub mod driver;
mod error;
mod external;
mod fork;
mod graph;
mod handle;
pub mod host;
mod in_place;
pub mod instrument;
mod interruption;
mod library;
mod memory;
mod module;
mod process;
mod program_line;
mod properties;
mod tensor_map;

pub use activity::{Activities, Activity, ActivityKind, ActivityTracer, KernelActivity};
pub use collective::{
    Collective, CollectiveOperation, CommunicatorId, CommunicatorInfo, Reduction, Registration,
};
pub use command::{
    Access, AccessMode, Copy, Endpoint, EventFlags, Fill, FillPattern, HostFunction, Label, Launch,
    LaunchMode, LibraryLaunch, STEPS, StrideStep, Touch,
};
pub use driver::Driver;
pub use error::{Code, Error, Result};
pub use external::{ExternalMemory, ExternalStream};
pub use fork::Process;
pub use graph::conditional;
pub use graph::conditional::{ConditionFormat, Conditional};
pub use graph::description::{GraphDescription, GraphNode, GraphNodeKind, GraphNodeWork};
pub use graph::{
    CaptureInfo, CaptureMode, CaptureStatus, DependencyUpdate, GraphExecUpdate, UpdateReason, UpdateRefusal,
};
pub use handle::{
    CommunicatorHandle, ConditionHandle, DevicePointer, EventHandle, FunctionHandle, GraphExecHandle,
    GraphHandle, GraphNodeHandle, HostPointer, ModuleHandle, PhysicalHandle, PoolHandle, StreamHandle,
};
pub use host::{HostFault, HostKernel, HostLaunch, Touched};
pub use in_place::{ProcessMemory, map_process};
pub use instrument::{BlockKind, HostClock, Instrument, UseKind, Within, within};
pub use interruption::{INTERRUPTION_INTERVAL, interruption, set_interruption};
pub use library::attention::{
    AttentionCall, AttentionGradients, AttentionMask, AttentionOperand, AttentionShape,
};
pub use library::convolution::{ConvolutionCall, ConvolutionEpilogue, ConvolutionPass, ConvolutionShape};
pub use library::dense::{DenseCall, DenseMethod, DenseUse};
pub use library::fourier::{FourierCall, FourierKind, FourierShape};
pub use library::recurrent::{
    RecurrentCall, RecurrentKind, RecurrentMemory, RecurrentPart, RecurrentPass, RecurrentShape,
    RecurrentStates,
};
pub use library::{
    Activation, ActivationPass, ComputeFormat, ElementFormat, GpuCall, MatmulActivation, MatmulAlgorithm,
    MatmulCall, MatmulEpilogue, Matrix, ReductionSchemes,
};
pub use memory::{
    HandleType, HostFlags, HostMethod, IpcHandle, MemoryAccess, MemoryAdvice, MemoryInfo, MemoryLocation,
    PhysicalFlags, PoolAttributes, PoolUsage, ShareableHandle,
};
pub use module::{Cluster, FunctionAttributes, HostModule, Image};
pub use process::{at_exit, descriptor_of_process, effective_user_id};
pub use program_line::{CalledFrom, SourceLine, called_from, program_line};
pub use properties::{
    ComputeCapability, ConditionalSupport, DeviceProperties, ImageKind, LibrarySupport, Version,
};
pub use tensor_map::{TILE_ROW_BYTES, TensorMap, TensorTiles};
