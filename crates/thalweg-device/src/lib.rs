//! The boundary to GPUs: the [`Driver`] trait, and its two implementations.
//!
//! - [`cuda`] speaks to NVIDIA's driver. Every library is loaded at run time, so the same binary starts on a machine
//!   without CUDA and says what is missing.
//! - [`sim`] is a simulated GPU that runs on any CPU: streams and events that are asynchronous to the host, device memory
//!   that is not the caller's memory, capture and graphs, with CUDA's own error codes.
//!
//! Everything above this crate is the same code on both. [`conformance`] is the suite that both pass, [`litmus`] the small
//! programs with the outcomes that CUDA allows: what the card does must be among what the simulator allows.
//!
//! # Invariants
//! - All `unsafe` code of the workspace outside the foreign-language skins is in this crate. [`Driver`] is a safe trait:
//!   no call of it, however wrong, is undefined behaviour in Rust.
//! - A driver never names a dtype, a tensor or a policy.
//! - A missing library is an error that says where it was looked for, never a panic.

mod anonymous;
pub mod collective;
mod command;
pub mod conditional;
mod description;
pub mod driver;
mod error;
mod foreign;
mod fork;
mod graph;
mod handle;
mod host;
mod library;
mod memory;
mod module;
mod process;
mod properties;

pub mod check;
pub mod conformance;
pub mod cuda;
pub mod litmus;
pub mod sim;

pub use collective::{Collective, CollectiveOperation, CommunicatorInfo, Reduction};
pub use command::{
    Access, AccessMode, Copy, Endpoint, Fill, FillPattern, Label, Launch, LibraryLaunch, STEPS, Step, Touch,
};
pub use conditional::{ConditionFormat, Conditional};
pub use description::{GraphDescription, GraphNode, GraphNodeKind, GraphNodeWork};
pub use driver::{Driver, EventFlags, FunctionAttributes, HostFunction, MemoryAccess, MemoryInfo};
pub use error::{Code, Error, Result};
pub use foreign::ForeignStream;
pub use fork::Process;
pub use graph::{
    CaptureInfo, CaptureMode, CaptureStatus, DependencyUpdate, GraphExecUpdate, UpdateReason, UpdateRefusal,
};
pub use handle::{
    CommunicatorHandle, ConditionHandle, DevicePointer, EventHandle, FunctionHandle, GraphExecHandle,
    GraphHandle, GraphNodeHandle, HostPointer, ModuleHandle, PhysicalHandle, PoolHandle, StreamHandle,
};
pub use host::{HostFault, HostKernel, HostLaunch};
pub use library::{CardCall, ComputeFormat, ElementFormat, MatmulCall, Matrix};
pub use memory::{
    HandleType, HostFlags, HostMethod, IpcHandle, MemoryAdvice, MemoryLocation, PhysicalFlags,
    PoolAttributes, PoolUsage, ShareableHandle,
};
pub use module::{HostModule, Image};
pub use process::{descriptor_of_process, effective_user_id};
pub use properties::{
    ComputeCapability, ConditionalSupport, DeviceProperties, ImageKind, LibrarySupport, Version,
};
