//! The iteration space of a call, and the placement of operands in it.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_ir::{Body, DType, Dimensions, Layout, OutputPlace, Shape, broadcast_shapes};

use super::launch::{LaunchNumbers, LoopLaunch};
use super::{LoopArguments, LowerError, Operand, Result};
use crate::definition::{LoopOp, Space};
use crate::plan::Placement;

/// Returns sizes in the planner's integer type.
pub fn widen(sizes: &[usize]) -> Dimensions {
    sizes.iter().map(|&size| size as u64).collect()
}

/// The dimensions of a row operator: which are rows, and which are reduced.
#[derive(Clone, PartialEq, Debug)]
pub struct Split {
    /// The dimensions that are rows.
    pub rows: SmallVec<[usize; 6]>,
    /// The dimensions within a row.
    pub inner: SmallVec<[usize; 6]>,
}

impl Split {
    /// Splits the dimensions of a tensor of this rank; `reduced` lists the inner ones.
    pub fn new(rank: usize, reduced: &[usize]) -> Self {
        let (inner, rows) = (0..rank).partition(|dimension| reduced.contains(dimension));
        Self { rows, inner }
    }

    /// Returns the values of the rows and those of the inner dimensions, from one value per dimension.
    pub fn pick(&self, values: &[usize]) -> (Shape, Shape) {
        let of = |dimensions: &[usize]| dimensions.iter().map(|&dimension| values[dimension]).collect();
        (of(&self.rows), of(&self.inner))
    }

    /// Returns the placement of a tensor over all dimensions, or over the rows only (an input is repeated within a row).
    fn placement(&self, layout: &Layout, full_rank: usize, place: OutputPlace, is_output: bool) -> Placement {
        let strides = layout.strides();
        if layout.rank() == full_rank && place == OutputPlace::Point {
            let (rows, inner) = self.pick(strides);
            return Placement::Strided { rows: widen(&rows), inner: widen(&inner) };
        }
        let inner = if is_output { Dimensions::new() } else { self.inner.iter().map(|_| 0).collect() };
        Placement::Strided { rows: widen(strides), inner }
    }
}

/// The iteration space of a call.
#[derive(Clone, PartialEq, Debug)]
pub enum Extents {
    /// Points of this shape, over which tensors are broadcast.
    Elementwise(Shape),
    /// Rows of points.
    Rows {
        /// The dimensions that are rows.
        split: Split,
        /// The shape of the iteration space: rows and the points within them.
        shape: Shape,
    },
    /// Points of this shape, whose coordinates the body reads.
    Coordinates(Shape),
}

impl Extents {
    /// Returns the iteration space of an operator's call.
    ///
    /// # Errors
    /// Returns an error if the shapes do not broadcast.
    pub fn new(operator: &LoopOp, operands: &[Operand<'_>], arguments: &LoopArguments) -> Result<Self> {
        Ok(match operator.space {
            Space::Elementwise if operands.is_empty() => Self::Elementwise(arguments.points.extents().into()),
            Space::Elementwise => {
                let mut shape: Shape = operands[0].layout.shape().into();
                for operand in &operands[1..] {
                    shape = broadcast_shapes(&shape, operand.layout.shape())?;
                }
                Self::Elementwise(shape)
            }
            Space::Rows => {
                let shape: Shape = operands[0].layout.shape().into();
                Self::Rows { split: Split::new(shape.len(), arguments.points.reduced()), shape }
            }
            Space::Coordinates => Self::Coordinates(arguments.points.extents().into()),
        })
    }

    /// Returns the extents of the rows and those of the inner dimensions.
    pub fn rows_and_inner(&self) -> (Shape, Shape) {
        match self {
            Self::Elementwise(shape) | Self::Coordinates(shape) => (shape.clone(), Shape::new()),
            Self::Rows { split, shape } => split.pick(shape),
        }
    }

    /// Returns the shape of an output that is written at a place.
    pub fn output_shape(&self, place: OutputPlace) -> Shape {
        match (self, place) {
            (Self::Rows { shape, .. }, OutputPlace::Point) => shape.clone(),
            _ => self.rows_and_inner().0,
        }
    }

    /// Returns the placement of an input.
    ///
    /// # Errors
    /// Returns an error if the input's shape is that of neither the points nor the rows, and does not broadcast to them.
    pub fn input(&self, layout: &Layout) -> Result<Placement> {
        match self {
            Self::Elementwise(shape) | Self::Coordinates(shape) => broadcast_placement(layout, shape),
            Self::Rows { split, shape } => {
                if layout.shape() == shape.as_slice() {
                    return Ok(split.placement(layout, shape.len(), OutputPlace::Point, false));
                }
                let rows = split.pick(shape).0;
                if layout.shape() != rows.as_slice() {
                    return Err(LowerError::Operands(format!(
                        "shape {:?} must be {rows:?}, one value a row, or {shape:?}",
                        layout.shape()
                    )));
                }
                Ok(split.placement(layout, shape.len(), OutputPlace::Row, false))
            }
        }
    }

    /// Returns the placement of an output.
    pub fn output(&self, layout: &Layout, place: OutputPlace) -> Placement {
        match self {
            Self::Elementwise(_) | Self::Coordinates(_) => {
                Placement::Strided { rows: widen(layout.strides()), inner: Dimensions::new() }
            }
            Self::Rows { split, shape } => split.placement(layout, shape.len(), place, true),
        }
    }

    /// Returns the launch of a body over these points.
    ///
    /// # Errors
    /// Those of [`input`](Self::input); and an error if an operand has a different dtype than the body.
    pub fn launch(
        &self,
        (id, name, body): (u64, Cow<'static, str>, Arc<Body>),
        compute: DType,
        (inputs, outputs): (&[Operand<'_>], &[Operand<'_>]),
        scalars: LaunchNumbers,
    ) -> Result<LoopLaunch> {
        let wanted = body.inputs.iter().map(|input| input.dtype);
        let wanted = wanted.chain(body.outputs.iter().map(|output| output.dtype));
        inputs
            .iter()
            .chain(outputs)
            .zip(wanted)
            .try_for_each(|(operand, dtype)| check_dtype(operand, dtype))?;
        let mut placements =
            inputs.iter().map(|operand| self.input(operand.layout)).collect::<Result<SmallVec<[_; 8]>>>()?;
        let places = outputs.iter().zip(&body.outputs);
        placements.extend(places.map(|(operand, output)| self.output(operand.layout, output.place)));
        let (rows, inner) = self.rows_and_inner();
        Ok(LoopLaunch { id, name, body, compute, rows, inner, placements, scalars, lanes: None })
    }
}

/// Refuses an operand of a different dtype than the body reads or writes: the body would access memory outside it.
fn check_dtype(operand: &Operand<'_>, dtype: DType) -> Result<()> {
    match operand.dtype == dtype {
        true => Ok(()),
        false => Err(LowerError::Operands(format!(
            "a tensor {:?} must be {dtype}, not {}",
            operand.layout.shape(),
            operand.dtype
        ))),
    }
}

/// Returns the placement of a tensor that is broadcast over the points of an elementwise operator.
fn broadcast_placement(layout: &Layout, shape: &[usize]) -> Result<Placement> {
    let strided =
        |layout: &Layout| Placement::Strided { rows: widen(layout.strides()), inner: Dimensions::new() };
    match layout.shape() == shape {
        true => Ok(strided(layout)),
        false => Ok(strided(&layout.expand(shape)?)),
    }
}
