//! Operators as data: the table, and the planner that makes kernels from it.
//!
//! - [`elementwise_operators`]: the elementwise operators, one entry each, from which everything else is derived.
//! - [`structured`]: creation, reductions, losses, windows.
//! - [`optimizer`]: fused optimizers, one entry each.
//! - [`gradient()`]: gradients, derived from the same bodies.
//! - [`fused`]: calls of several operators that one operator computes, as a table of patterns.
//! - [`lower`]: calls to launches without addresses, which everything that executes shares.
//! - [`stages`]: reductions of few long rows, in parts.
//! - [`schema`]: signatures in the notation of `native_functions.yaml`.
//! - [`plan()`]: from layouts to a kernel's class and a launch's geometry. Only the planner decides these.
//!
//! Kernels that are not loops over a body (matrix products, sorting) are in the crate `thalweg-kernels`.
//!
//! # Invariants
//! - No device, no stream, no memory: names, dtypes, bodies and numbers only. No `unsafe`.
//!
//! All decisions here depend only on shapes, strides and dtypes.
#![forbid(unsafe_code)]

mod default_dtype;
mod definition;
mod elementwise;
pub mod fused;
mod gradient;
pub mod lower;
pub mod optimizer;
mod plan;
pub mod schema;
pub mod stages;
pub mod structured;

pub use default_dtype::{default_dtype, set_default_dtype};
pub use definition::{
    Autocast, DTypeError, DTypeRule, DTypes, Examples, FromResult, LoopOp, Signature, Sizes, Space,
    result_type, scalar, scalar_bits,
};
pub use elementwise::{elementwise, parts, table};
pub use gradient::{
    ForwardBody, GradientBody, PartialGradient, SummedGradient, forward, forward_into, gradient, gradient_of,
    summed, without,
};
pub use plan::{
    Divided, Iteration, LEAST_DIVIDED, LaunchPlan, Placement, divided, kernel, plan, plan_in_lanes,
};
