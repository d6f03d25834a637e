//! Numbers and loops: dtypes, layouts, and the loop IR in which operators are written once.
//!
//! An operator of the table is a [`Body`]: a small DAG over a closed table of primitives. Derived from it are
//! - the CUDA C kernel ([`cuda::print`]),
//! - the host executor ([`host`]), which is also the reference that the kernel is tested against,
//! - the gradient ([`grad`]),
//! - the ranges that a launch touches ([`Geometry::span`]).
//!
//! Two bodies over one iteration space become one by [composition](compose): fusion as substitution.
//!
//! A [`foreach::ForeachKernel`] applies one body to a list of tensors. Kernels that are not loops over a body (matrix products,
//! sums whose terms depend on data) are in the crate `thalweg-kernels`.
//!
//! # Invariants
//! - Pure: no I/O, no clock, no threads, no device. No `unsafe` but in one module, which runs loops that are compiled for
//!   the processor.
//!
//! Three readers (printer, executor, gradient) match exhaustively on the same enums: a new primitive does not compile until each
//! of them handles it.
#![deny(unsafe_code)]

#[macro_use]
mod dtype;
mod complex;
mod float8;

pub mod body;
pub mod kernel;
mod layout;
mod scalar;

pub mod compose;
pub mod cuda;
pub mod foreach;
mod functions;
pub mod grad;
pub mod held;
pub mod host;
pub mod online;
pub mod philox;

pub use body::{
    Binary, Body, BodyBuilder, Dimension, ExprId, Input, InputKind, Node, Operand, Output, OutputPlace,
    ReduceOp, Reduction, Report, Scatter, Unary, Value,
};
pub use complex::{c64, c128, quotient};
#[doc(hidden)]
pub use dtype::elements;
pub use dtype::{Category, DType, Element, Exchange, HostElement, PromotionError, UnknownDType};
pub use float8::{f8e4m3, f8e5m2};
pub use half::{bf16, f16};
pub use kernel::{
    Class, Dimensions, Geometry, Kernel, LaunchArguments, OperandGeometry, RUN, Streamed, Unpacked,
};
pub use layout::{
    Layout, LayoutError, Shape, broadcast_shapes, byte_count, contiguous_strides, element_count,
    inverse_order,
};
pub use scalar::Scalar;
