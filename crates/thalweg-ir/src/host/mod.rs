//! The host executor: runs a [`Kernel`] on the CPU. It is the embedded default where there is no GPU, and the definition
//! that kernels on a GPU are held against.
//!
//! A [`HostProgram`] is a kernel compiled once: straight lists of `HostStep`s over registers. A register is a block
//! of some hundreds or thousands of elements of one type, and a step is one tight loop over blocks, which the compiler vectorises; so
//! the price of deciding what to do is paid once per block, not once per element.
//!
//! # Levels and phases
//! A step runs as seldom as it can: once per launch (constants, scalars and what follows from them), once per row, or once per
//! point. Reductions cut a row into *phases*: a reduction that needs the result of another one runs in a later pass over
//! the row's points, and one that does not shares the pass. What several phases need of a point is computed anew in each, unless
//! a block holds whole rows: then it stays in its register. Outputs are written in the last phase, so that an output may
//! take the place of an input of the same layout: every block is read before it is written.
//!
//! # Directions
//! A block lies either *across* rows (element *i* belongs to row *i* of the block, and points are walked one by one) or
//! *along* the points of one row, or of several, as lines of the block. Rows come in *groups*: steps of rows run once for a group, and
//! steps at points for one block of it after the other. Loops take a block line by line, so inputs and outputs are read and written where they lie,
//! and a value that is the same at all points of a row stands in a register as one piece. Both directions combine values in the order that [`Class::lanes`](crate::Class::lanes) fixes, so
//! the choice is made a launch at a time, by what it costs, and never changes a bit of the result.
//!
//! # Choices where the primitives leave room
//! - Max and Min of zeros of both signs give the second operand, on a GPU +0 and −0 in f32; with a NaN, they give a NaN, but which is not
//!   fixed.
//! - Casts between a 16-bit float and another type go through f32, as in PyTorch. Casts between integers wrap.
//! - Log of f32 is computed in f64, Exp, Tanh and Erf within a unit in the last place ([`vectors`](self)); Pow and the others are those of the platform's mathematical library, or of
//!   the `libm` crate.
//! - In a body with inner dimensions, what a row output reads of an input directly is the input at the row's first point.
//!
//! # What it does not do
//! It starts no threads (code that does asks for [`parts`](HostProgram::parts)), keeps no pointers and knows no device. Memory that an output shares with an input comes as
//! [`Cells`], so an ill-placed overlap gives strange numbers and never undefined behaviour.

mod allocation;
mod arithmetic;
mod launch;
mod loops;
mod memory;
mod operand;
mod parts;
mod passes;
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
    /// Makes a fault of its text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Fault {}

/// A kernel, ready to run on the host. Compiling costs microseconds; programs are meant to be kept.
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
    /// If the operands do not fit the kernel or the geometry (number, dtype, rank, length), or a gather whose guard holds
    /// reads outside its input.
    pub fn run(
        &self,
        geometry: &Geometry,
        scalars: &[u64],
        inputs: &[Source<'_>],
        outputs: &[Cells<'_>],
    ) -> Result<(), Fault> {
        launch::run(&self.0, geometry, scalars, inputs, outputs, Observer::default(), None)
    }

    /// Runs the program as [`run`](Self::run), and calls the observer's functions.
    ///
    /// # Errors
    /// As [`run`](Self::run).
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

    /// Runs one of the launch's [`parts`](Self::parts), as [`run_observed`](Self::run_observed) runs the whole: the geometry and the
    /// operands are [those of the part](Part::geometry).
    ///
    /// # Errors
    /// As [`run`](Self::run).
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

/// Functions that a run calls as it goes.
#[derive(Clone, Copy, Default)]
pub struct Observer<'o> {
    /// Takes each element that is read or written of operands whose elements data chooses: the operand's number (inputs, then
    /// outputs) and the element's, as often as it is touched.
    pub chosen: Option<&'o dyn Fn(usize, u64)>,
    /// Takes each index that the body [reports](crate::Report) as out of range, and the extent.
    pub out_of_range: Option<&'o dyn Fn(i64, i64)>,
}

impl fmt::Debug for Observer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = [self.chosen.is_some(), self.out_of_range.is_some()];
        f.debug_tuple("Observer").field(&told).finish()
    }
}
