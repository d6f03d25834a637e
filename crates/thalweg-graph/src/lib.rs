//! Programs: a segment of loops, compiled.
//!
//! A [`Segment`] is a list of [launches](thalweg_ops::lower::LoopLaunch) in program order, with the memory that each reads and
//! writes. [`plan`] makes a [`Program`] of it, with the same bits in all memory that is read afterwards:
//!
//! - work that nothing reads is left out, and what several loops compute is computed once;
//! - loops become one loop by [composition of their bodies](thalweg_ir::compose), where that is allowed and not slower ([`fuse`]
//!   says when): what a loop reads from another one then never is in memory, and what both read is read once;
//! - a loop of which others read or write parts is divided, and one whose result several loops read is computed in each of them, where
//!   that makes fewer bytes move;
//! - what remains between the loops gets offsets in one arena, so its size is known before the program runs.
//!
//! # Invariants
//! - Pure: no device, no address, no tensor. A program depends on dtypes, extents, strides, alignments and lifetimes only.
//! - Compiled equals uncompiled, bit for bit. A loop that combines keeps the order of its lanes, or is not fused.
#![forbid(unsafe_code)]

mod embedding;
pub mod fuse;
mod grouping;
mod loops;
mod machine;
mod parts;
mod program;
mod record;
mod segment;
mod spread;
mod twins;

pub use fuse::Refusal;
pub use grouping::Apart;
pub use machine::Machine;
pub use program::{Program, Step, plan};
pub use segment::{Lifetime, Memory, Node, Operand, Segment};
