//! The host executor: runs a [`Kernel`] on the CPU. It is the embedded default where there is no GPU, and the reference that
//! kernels on a GPU are tested against.
//!
//! A [`HostProgram`] is a kernel compiled once: straight lists of `HostStep`s over registers. A register is a block of hundreds
//! or thousands of elements of one type, and a step is one tight loop over blocks, which the compiler vectorises. So the cost of
//! dispatch is paid once per block, not once per element.
//!
//! # Levels and phases
//! A step runs as rarely as it can: once per launch (constants, scalars and values that follow from them), once per row, or once
//! per point. Reductions divide a row into *phases*: a reduction that needs the result of another runs in a later pass over the
//! row's points; one that does not shares the pass. Values at points that several phases need are computed again in each, unless
//! a block holds complete rows: then they stay in their registers. Outputs are written in the last phase, so that an output may
//! overwrite an input of the same layout: every block is read before it is written.
//!
//! # Directions
//! A block is either *across* rows (element *i* belongs to row *i* of the block, and points are visited one by one) or *along*
//! the points of one row, or of several, which are then the lines of the block. Rows come in *groups*: row steps run once for a
//! group, and steps at points run for one block of the group after the other. Loops process a block line by line, so inputs and
//! outputs are accessed in place, and a value that is the same at all points of a row is stored in a register as one piece. Both
//! directions combine values in the order that [`Class::lanes`](crate::Class::lanes) fixes, so the direction is chosen per
//! launch, by its cost, and never changes a bit of the result.
//!
//! # Behaviour that the primitives leave open
//! - Max and Min of zeros of both signs return the second operand, on a GPU +0 and −0 in f32. With a NaN they return a NaN, but
//!   it is not specified which.
//! - Casts between a 16-bit float and another type go through f32, as in PyTorch. Casts between integers wrap.
//! - Log of f32 is computed in f64; Exp, Tanh and Erf are within a unit in the last place ([`vectors`](self)); Pow and the others
//!   are those of the platform's mathematical library, or of the `libm` crate.
//! - In a body with inner dimensions, a row output that reads an input directly reads it at the row's first point.
//!
//! # Limits
//! The executor starts no threads (callers that do divide a launch into [`parts`](HostProgram::parts)), keeps no pointers and
//! uses no device. Memory that an output shares with an input is passed as [`Cells`], so a wrong overlap results in wrong numbers
//! and never in undefined behaviour.

mod allocation;
mod arithmetic;
mod launch;
mod loops;
mod memory;
mod operand;
mod parts;
mod passes;
pub mod processor;
mod program;
mod reduction;
mod register;
mod space;
mod step;
pub(crate) mod vectors;

use std::fmt;

pub use operand::{Cells, Slice, SliceMut, Source, represents};
pub use parts::Part;

use crate::{Geometry, Kernel};

/// The reason why a launch on the host failed. What it wrote until then is not specified.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault(String);

impl Fault {
    /// Creates a fault from its text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns a fault with this text unless a condition holds.
    pub fn unless(holds: bool, text: impl FnOnce() -> String) -> Result<(), Self> {
        if holds { Ok(()) } else { Err(Self(text())) }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Fault {}

/// A kernel, ready to run on the host. Compiling takes microseconds; programs are meant to be kept.
#[derive(Clone, Debug)]
pub struct HostProgram(program::CompiledKernel);

impl HostProgram {
    /// Compiles a kernel.
    ///
    /// # Panics
    /// If the body is ill-formed: a primitive on a dtype that it is not defined for, operands of different dtypes.
    #[must_use]
    pub fn compile(kernel: &Kernel) -> Self {
        Self(program::compile(kernel))
    }

    /// Runs the program and returns when it is done. Each operand starts at its base element and is at least
    /// [`Geometry::span`] elements long; `scalars` are the bits of [`Scalar::to_bits`](crate::Scalar::to_bits).
    ///
    /// # Errors
    /// If the operands do not fit the kernel or the geometry (number, dtype, rank, length), or a gather whose guard is true reads
    /// outside its input.
    pub fn run(
        &self,
        geometry: &Geometry,
        scalars: &[u64],
        inputs: &[Source<'_>],
        outputs: &[Cells<'_>],
    ) -> Result<(), Fault> {
        launch::run(&self.0, geometry, scalars, inputs, outputs, Observer::default(), None)
    }

    /// Runs the program like [`run`](Self::run), and calls the observer's functions.
    pub fn run_observed(
        &self,
        geometry: &Geometry,
        scalars: &[u64],
        inputs: &[Source<'_>],
        outputs: &[Cells<'_>],
        observer: Observer<'_>,
    ) -> Result<(), Fault> {
        launch::run(&self.0, geometry, scalars, inputs, outputs, observer, None)
    }

    /// Runs one of the launch's [`parts`](Self::parts), as [`run_observed`](Self::run_observed) runs the complete launch: the
    /// geometry and the operands are [those of the part](Part::geometry).
    pub fn run_part(
        &self,
        part: Part,
        geometry: &Geometry,
        scalars: &[u64],
        inputs: &[Source<'_>],
        outputs: &[Cells<'_>],
        observer: Observer<'_>,
    ) -> Result<(), Fault> {
        launch::run(&self.0, geometry, scalars, inputs, outputs, observer, Some(part))
    }
}

/// Functions that are called during a run.
#[derive(Clone, Copy, Default)]
pub struct Observer<'o> {
    /// Receives each access to an element of an operand whose elements data chooses: the operand's number (inputs, then outputs)
    /// and the element's.
    pub chosen: Option<&'o dyn Fn(usize, u64)>,
    /// Receives each index that the body [reports](crate::Report) as out of range, and the extent.
    pub out_of_range: Option<&'o dyn Fn(i64, i64)>,
}

impl fmt::Debug for Observer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let observed = [self.chosen.is_some(), self.out_of_range.is_some()];
        f.debug_tuple("Observer").field(&observed).finish()
    }
}
