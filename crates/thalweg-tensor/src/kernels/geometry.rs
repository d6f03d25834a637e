//! Windows over planes of up to three axes: their sizes, and the launches over them.

use smallvec::SmallVec;
use thalweg_ir::{DType, element_count};
use thalweg_ops::structured::{
    AVERAGE_ADAPTIVE, AVERAGE_ADAPTIVE_BACKWARD, AVERAGE_WINDOWS, AVERAGE_WINDOWS_BACKWARD,
    AVERAGE_WINDOWS_NARROW, AVERAGE_WINDOWS_NARROW_BACKWARD, FOLD_WINDOWS, GREATEST_ADAPTIVE,
    GREATEST_ADAPTIVE_BACKWARD, GREATEST_OF_WINDOWS, GREATEST_OF_WINDOWS_BACKWARD,
    GREATEST_OF_WINDOWS_NARROW, GREATEST_OF_WINDOWS_NARROW_BACKWARD, UNFOLD_WINDOWS,
};
use thalweg_ops::{DTypes, LoopOp, Placement, forward};
use thalweg_runtime::{Error, Label, Result};

use super::loops::{LoopLaunch, widen};
use crate::tensor::{Tensor, Tensors};

/// A number per axis; planes of fewer axes have extents of 1 in front.
pub(crate) type PerAxis = [usize; 3];

/// How windows lie along the axes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Placing {
    /// At a stride, with padding and dilation. An average divides by `divisor`, or where that is 0 by the elements that it has,
    /// with those of the padding where it counts them.
    Strided {
        kernel: PerAxis,
        stride: PerAxis,
        padding: PerAxis,
        dilation: PerAxis,
        counts_padding: bool,
        divisor: i64,
    },
    /// So that they cover each axis.
    Adaptive,
}

/// The windows of planes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Geometry {
    /// The extents of a plane.
    pub extents: PerAxis,
    /// How many windows there are along each axis.
    pub windows: PerAxis,
    /// Where they lie.
    pub placing: Placing,
}

fn volume(extents: PerAxis) -> Result<usize> {
    Ok(element_count(&extents)?)
}

impl Geometry {
    /// Returns how many places a window has.
    pub(crate) fn places(&self) -> Result<usize> {
        volume(self.window_extents())
    }

    /// Returns how many windows a plane has.
    pub(crate) fn window_count(&self) -> Result<usize> {
        volume(self.windows)
    }

    /// Returns the extents of the greatest window.
    fn window_extents(&self) -> PerAxis {
        match self.placing {
            Placing::Strided { kernel, .. } => kernel,
            Placing::Adaptive => [0, 1, 2].map(|axis| {
                let (extent, windows) = (self.extents[axis], self.windows[axis].max(1));
                (extent.div_ceil(windows) + 1).min(extent)
            }),
        }
    }

    /// Returns how many windows a point can lie in.
    fn windows_of_a_point(&self) -> PerAxis {
        [0, 1, 2].map(|axis| {
            let (extent, windows) = (self.extents[axis], self.windows[axis]);
            let most = match self.placing {
                Placing::Strided { kernel, stride, dilation, .. } => {
                    (kernel[axis] - 1) * dilation[axis] / stride[axis] + 1
                }
                Placing::Adaptive => windows.div_ceil(extent.max(1)) + 1,
            };
            most.min(windows)
        })
    }

    /// Returns the numbers of the operators.
    fn numbers(&self) -> SmallVec<[u64; 20]> {
        let Self { extents, windows, placing } = *self;
        let lists: SmallVec<[PerAxis; 6]> = match placing {
            Placing::Strided { kernel, stride, padding, dilation, .. } => {
                SmallVec::from_slice(&[extents, kernel, windows, stride, padding, dilation])
            }
            Placing::Adaptive => SmallVec::from_slice(&[extents, windows]),
        };
        let mut numbers: SmallVec<[u64; 20]> =
            lists.into_iter().flatten().map(|number| number as u64).collect();
        if let Placing::Strided { counts_padding, divisor, .. } = placing {
            numbers.extend([u64::from(counts_padding), divisor as u64]);
        }
        numbers
    }

    /// Returns whether everything that windows at a stride compute of places fits into 32 bits.
    fn is_narrow(&self) -> bool {
        let Placing::Strided { kernel, stride, dilation, .. } = self.placing else { return false };
        let is_small = |numbers: PerAxis| {
            numbers
                .iter()
                .try_fold(1usize, |all, &number| all.checked_mul(number))
                .is_some_and(|all| all < 1 << 30)
        };
        let reach = |counts: PerAxis, steps: PerAxis| {
            counts.iter().zip(steps).all(|(&count, step)| count.saturating_mul(step) < 1 << 28)
        };
        self.numbers().iter().all(|&number| number < 1 << 28)
            && [self.extents, self.windows, kernel].into_iter().all(is_small)
            && reach(kernel, dilation)
            && reach(self.windows, stride)
    }

    /// Returns the operator for these windows: of those at a stride, in 32 bits or wide, and adaptive.
    fn choose(&self, [narrow, wide, adaptive]: [&'static LoopOp; 3]) -> &'static LoopOp {
        match self.placing {
            Placing::Adaptive => adaptive,
            Placing::Strided { .. } if self.is_narrow() => narrow,
            Placing::Strided { .. } => wide,
        }
    }

    /// Launches an operator over contiguous inputs.
    fn run(
        &self,
        operator: &'static LoopOp,
        inputs: &[&Tensor],
        (rows, inner): (&[usize], &[usize]),
        outputs: &[(&[usize], DType)],
        label: Label,
    ) -> Result<Tensors> {
        element_count(rows)?;
        let inputs = inputs.iter().map(|tensor| tensor.contiguous()).collect::<Result<Tensors>>()?;
        let inputs: SmallVec<[&Tensor; 4]> = inputs.iter().collect();
        let dtypes: DTypes = inputs.iter().map(|tensor| tensor.dtype()).collect();
        let signature =
            operator.signature(&dtypes, false, None).map_err(|error| Error::invalid(error.to_string()))?;
        let prepared = forward(operator, &signature);
        let stream = inputs[0].device().current_stream();
        let outputs = (outputs.iter())
            .map(|&(shape, dtype)| Tensor::empty_on(shape, dtype, &stream, label))
            .collect::<Result<Tensors>>()?;
        if outputs[0].elements() == 0 {
            return Ok(outputs);
        }
        let mut placements: SmallVec<[Placement; 8]> =
            inputs.iter().map(|tensor| Placement::Gathered(tensor.elements() as u64)).collect();
        let strides = widen(&thalweg_ir::contiguous_strides(rows));
        placements.extend(
            outputs.iter().map(|_| Placement::Strided { rows: strides.clone(), inner: Default::default() }),
        );
        LoopLaunch {
            id: prepared.id,
            name: operator.name,
            body: &prepared.body,
            compute: signature.compute,
            rows,
            inner,
            placements,
            scalars: &self.numbers(),
            label,
        }
        .run(&inputs, &outputs)?;
        Ok(outputs)
    }

    fn rows(planes: usize, extents: PerAxis) -> [usize; 4] {
        [planes, extents[0], extents[1], extents[2]]
    }

    /// Returns the windows of planes, in any shape, as (planes, places, windows).
    pub(crate) fn unfold(&self, x: &Tensor, planes: usize, label: Label) -> Result<Tensor> {
        let (kernel, windows) = (self.window_extents(), self.windows);
        let rows = [planes, kernel[0], kernel[1], kernel[2], windows[0], windows[1], windows[2]];
        let shape = [planes, self.places()?, self.window_count()?];
        let outputs = [(shape.as_slice(), x.dtype())];
        Ok(self.run(&UNFOLD_WINDOWS, &[x], (&rows, &[]), &outputs, label)?.swap_remove(0))
    }

    /// Returns the sums of window entries, (planes, places, windows) in any shape, as planes of this shape.
    pub(crate) fn fold(
        &self,
        columns: &Tensor,
        planes: usize,
        shape: &[usize],
        label: Label,
    ) -> Result<Tensor> {
        let space = (Self::rows(planes, self.extents), self.windows_of_a_point());
        let outputs = [(shape, columns.dtype())];
        Ok(self.run(&FOLD_WINDOWS, &[columns], (&space.0, &space.1), &outputs, label)?.swap_remove(0))
    }

    /// Returns the mean over each window, in this shape.
    pub(crate) fn average(&self, x: &Tensor, planes: usize, shape: &[usize], label: Label) -> Result<Tensor> {
        let operator = self.choose([&AVERAGE_WINDOWS_NARROW, &AVERAGE_WINDOWS, &AVERAGE_ADAPTIVE]);
        let space = (Self::rows(planes, self.windows), self.window_extents());
        let outputs = [(shape, x.dtype())];
        Ok(self.run(operator, &[x], (&space.0, &space.1), &outputs, label)?.swap_remove(0))
    }

    /// Returns the gradient of [`Geometry::average`] for an input of this shape.
    pub(crate) fn average_backward(
        &self,
        gradient: &Tensor,
        planes: usize,
        shape: &[usize],
        label: Label,
    ) -> Result<Tensor> {
        let operator = self.choose([
            &AVERAGE_WINDOWS_NARROW_BACKWARD,
            &AVERAGE_WINDOWS_BACKWARD,
            &AVERAGE_ADAPTIVE_BACKWARD,
        ]);
        let space = (Self::rows(planes, self.extents), self.windows_of_a_point());
        let outputs = [(shape, gradient.dtype())];
        Ok(self.run(operator, &[gradient], (&space.0, &space.1), &outputs, label)?.swap_remove(0))
    }

    /// Returns the greatest element of each window and its place in the plane, in this shape.
    pub(crate) fn greatest(
        &self,
        x: &Tensor,
        planes: usize,
        shape: &[usize],
        label: Label,
    ) -> Result<Tensors> {
        let operator = self.choose([&GREATEST_OF_WINDOWS_NARROW, &GREATEST_OF_WINDOWS, &GREATEST_ADAPTIVE]);
        let space = (Self::rows(planes, self.windows), self.window_extents());
        self.run(operator, &[x], (&space.0, &space.1), &[(shape, x.dtype()), (shape, DType::I64)], label)
    }

    /// Returns the gradient of [`Geometry::greatest`] for an input of this shape.
    pub(crate) fn greatest_backward(
        &self,
        [gradient, places]: [&Tensor; 2],
        planes: usize,
        shape: &[usize],
        label: Label,
    ) -> Result<Tensor> {
        let operator = self.choose([
            &GREATEST_OF_WINDOWS_NARROW_BACKWARD,
            &GREATEST_OF_WINDOWS_BACKWARD,
            &GREATEST_ADAPTIVE_BACKWARD,
        ]);
        let space = (Self::rows(planes, self.extents), self.windows_of_a_point());
        let outputs = [(shape, gradient.dtype())];
        Ok(self.run(operator, &[gradient, places], (&space.0, &space.1), &outputs, label)?.swap_remove(0))
    }
}
