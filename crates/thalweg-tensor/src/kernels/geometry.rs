//! Windows over planes of up to three axes: their sizes, and the launches over them.

use smallvec::SmallVec;
use thalweg_ir::{DType, element_count};
use thalweg_kernels::pool::{Pool, PoolPass};
use thalweg_ops::structured::{
    AVERAGE_ADAPTIVE, AVERAGE_ADAPTIVE_BACKWARD, AVERAGE_WINDOWS, AVERAGE_WINDOWS_BACKWARD, FOLD_WINDOWS,
    GREATEST_ADAPTIVE, GREATEST_ADAPTIVE_BACKWARD, GREATEST_OF_WINDOWS, GREATEST_OF_WINDOWS_BACKWARD,
    UNFOLD_WINDOWS,
};
use thalweg_ops::{LoopOp, Placement};
use thalweg_runtime::{Error, Label, Result, refuse_if};

use crate::loops::{launch_placed, widen};
use crate::memory_format::{empty_in, laid_out};
use crate::native;
use crate::tensor::{Tensor, Tensors};

/// A number per axis; planes of fewer axes have leading extents of 1.
pub(crate) type PerAxis = [usize; 3];

/// The placement of windows along the axes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Placing {
    /// At a stride, with padding and dilation. An average divides by `divisor`, or, if that is 0, by the number of elements in
    /// the window, including padding if it is counted.
    Strided {
        kernel: PerAxis,
        stride: PerAxis,
        padding: PerAxis,
        dilation: PerAxis,
        counts_padding: bool,
        divisor: i64,
    },
    /// Adaptive: the windows divide each axis.
    Adaptive,
}

/// The windows of planes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Geometry {
    /// The extents of a plane.
    pub extents: PerAxis,
    /// The number of windows along each axis.
    pub windows: PerAxis,
    /// The placement of the windows.
    pub placing: Placing,
}

fn volume(extents: PerAxis) -> Result<usize> {
    Ok(element_count(&extents)?)
}

/// The most elements of an adaptive window that one thread reads.
const SMALL_WINDOW: usize = 64;

impl Geometry {
    /// Returns the number of elements of a window.
    pub(crate) fn places(&self) -> Result<usize> {
        volume(self.window_extents())
    }

    /// Returns the number of windows of a plane.
    pub(crate) fn window_count(&self) -> Result<usize> {
        volume(self.windows)
    }

    /// Returns the extents of the largest window.
    fn window_extents(&self) -> PerAxis {
        match self.placing {
            Placing::Strided { kernel, .. } => kernel,
            Placing::Adaptive => [0, 1, 2].map(|axis| {
                let (extent, windows) = (self.extents[axis], self.windows[axis].max(1));
                (extent.div_ceil(windows) + 1).min(extent)
            }),
        }
    }

    /// Returns the maximum number of windows per axis that contain a point.
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

    /// Returns the numbers that the operators take.
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

    /// Returns the operator for these windows, out of the strided and the adaptive one.
    fn choose(&self, [strided, adaptive]: [&'static LoopOp; 2]) -> &'static LoopOp {
        match self.placing {
            Placing::Adaptive => adaptive,
            Placing::Strided { .. } => strided,
        }
    }

    /// Returns the kernel of a pass over windows of floats, if there is one, and, for large adaptive windows, if channels are innermost:
    /// a thread reads a window, where an operator has several threads for it.
    fn kernel(&self, pass: PoolPass, [planes, inner]: [usize; 2], dtype: DType) -> Option<Pool> {
        let (kernel, stride, padding, dilation, counts_padding, divisor) = match self.placing {
            Placing::Strided { kernel, stride, padding, dilation, counts_padding, divisor } => {
                (kernel, stride, padding, dilation, counts_padding, divisor)
            }
            Placing::Adaptive => {
                let kernel = self.window_extents();
                let is_forward = matches!(pass, PoolPass::Average | PoolPass::Greatest);
                if is_forward && inner == 1 && kernel.iter().product::<usize>() > SMALL_WINDOW {
                    return None;
                }
                (kernel, [0; 3], [0; 3], [1; 3], false, 0)
            }
        };
        let [extents, windows, kernel, stride, padding, dilation] =
            [self.extents, self.windows, kernel, stride, padding, dilation]
                .map(|numbers| numbers.map(|number| number as u64));
        let pool = Pool {
            pass,
            planes: planes as u64,
            inner: inner as u64,
            extents,
            windows,
            kernel,
            stride,
            padding,
            dilation,
            counts_padding,
            divisor,
            dtype,
        };
        pool.is_taken().then_some(pool)
    }

    /// Launches the kernel of a pass, or else the operator.
    fn pool(
        &self,
        (pass, operators): (PoolPass, [&'static LoopOp; 2]),
        inputs: &[&Tensor],
        planes: usize,
        shape: &[usize],
        label: Label,
    ) -> Result<Tensors> {
        let dtype = inputs[0].dtype();
        let outputs = [(shape, dtype), (shape, pass.places().unwrap_or(dtype))];
        let has_places = matches!(pass, PoolPass::Greatest | PoolPass::GreatestWithin);
        let outputs = &outputs[..1 + usize::from(has_places)];
        // With channels innermost in the first input, they are so in all. Without batches, the second dimension is an axis.
        let is_batch = |shape: &[usize]| shape.len() > 3 && shape[..2].iter().product::<usize>() == planes;
        let channels_last = inputs[0].rank() == shape.len()
            && is_batch(inputs[0].shape())
            && is_batch(shape)
            && inputs[0].layout().is_like_channels_last();
        let channels = if channels_last { shape[1] } else { 1 };
        let Some(kernel) = self.kernel(pass, [planes / channels.max(1), channels], dtype) else {
            refuse_if!(pass.places() == Some(DType::U8), "places within these windows do not fit into bytes");
            let space = match pass {
                PoolPass::Average | PoolPass::Greatest => (self.windows, self.window_extents()),
                _ => (self.extents, self.windows_of_a_point()),
            };
            let rows = Self::rows(planes, space.0);
            return self.run(self.choose(operators), inputs, (&rows, &space.1), outputs, label);
        };
        let inputs =
            inputs.iter().map(|tensor| laid_out(tensor, channels_last)).collect::<Result<Tensors>>()?;
        let stream = inputs[0].device().current_stream();
        let outputs = (outputs.iter())
            .map(|&(shape, dtype)| empty_in(shape, dtype, (channels_last, &stream), label))
            .collect::<Result<Tensors>>()?;
        if outputs[0].elements() > 0 {
            let places = inputs.get(1).or(outputs.get(1));
            native::launch(kernel, [Some(&inputs[0]), places, Some(&outputs[0])], label)?;
        }
        Ok(outputs)
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
        let stream = inputs[0].device().current_stream();
        let outputs = (outputs.iter())
            .map(|&(shape, dtype)| Tensor::result_on(shape, dtype, &stream, label))
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
        launch_placed(operator, (rows, inner), (&inputs, &outputs), placements, &self.numbers(), label)?;
        Ok(outputs)
    }

    fn rows(planes: usize, extents: PerAxis) -> [usize; 4] {
        [planes, extents[0], extents[1], extents[2]]
    }

    /// Returns the windows of planes, in any shape, as (planes, elements, windows).
    pub(crate) fn unfold(&self, x: &Tensor, planes: usize, label: Label) -> Result<Tensor> {
        let (kernel, windows) = (self.window_extents(), self.windows);
        let rows = [planes, kernel[0], kernel[1], kernel[2], windows[0], windows[1], windows[2]];
        let shape = [planes, self.places()?, self.window_count()?];
        let outputs = [(shape.as_slice(), x.dtype())];
        Ok(self.run(&UNFOLD_WINDOWS, &[x], (&rows, &[]), &outputs, label)?.swap_remove(0))
    }

    /// Returns the sums of window entries, (planes, elements, windows) in any shape, as planes of this shape.
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
        let pass = (PoolPass::Average, [&AVERAGE_WINDOWS, &AVERAGE_ADAPTIVE]);
        Ok(self.pool(pass, &[x], planes, shape, label)?.swap_remove(0))
    }

    /// Returns the gradient of [`Geometry::average`] for an input of this shape.
    pub(crate) fn average_backward(
        &self,
        gradient: &Tensor,
        planes: usize,
        shape: &[usize],
        label: Label,
    ) -> Result<Tensor> {
        let operators = [&AVERAGE_WINDOWS_BACKWARD, &AVERAGE_ADAPTIVE_BACKWARD];
        let pass = (PoolPass::AverageBackward, operators);
        Ok(self.pool(pass, &[gradient], planes, shape, label)?.swap_remove(0))
    }

    /// Returns the greatest element of each window and its place, in this shape: its index in the plane as int64, or its place within
    /// the window as uint8.
    pub(crate) fn greatest(
        &self,
        places: DType,
        x: &Tensor,
        planes: usize,
        shape: &[usize],
        label: Label,
    ) -> Result<Tensors> {
        let pass = if places == DType::U8 { PoolPass::GreatestWithin } else { PoolPass::Greatest };
        self.pool((pass, [&GREATEST_OF_WINDOWS, &GREATEST_ADAPTIVE]), &[x], planes, shape, label)
    }

    /// Returns the gradient of [`Geometry::greatest`] for an input of this shape, from that of the elements and their places.
    pub(crate) fn greatest_backward(
        &self,
        inputs: [&Tensor; 2],
        planes: usize,
        shape: &[usize],
        label: Label,
    ) -> Result<Tensor> {
        let is_within = inputs[1].dtype() == DType::U8;
        let pass = if is_within { PoolPass::GreatestWithinBackward } else { PoolPass::GreatestBackward };
        let operators = [&GREATEST_OF_WINDOWS_BACKWARD, &GREATEST_ADAPTIVE_BACKWARD];
        Ok(self.pool((pass, operators), &inputs, planes, shape, label)?.swap_remove(0))
    }
}
