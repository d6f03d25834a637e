//! Kernels over the rows of tensors that PyTorch owns, and copies: the body from the table of operators, and the layouts of the
//! operands.
//!
//! On a GPU a launch goes to PyTorch's current stream; on the host it runs at once, which is for tests of the interface.

use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_ir::{Body, DType, Layout, Shape};
use thalweg_ops::lower::{
    Extents, LaunchNumbers, LoopArguments, LoopLaunch, LowerError, Operand, Result, Split, Steps,
};
use thalweg_ops::structured::{
    AMAX, COPY, CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD, LAYER_NORM_AFFINE, LAYER_NORM_BACKWARD, LOG_SOFTMAX,
    LOGSUMEXP, MEAN, RMS_NORM_AFFINE, RMS_NORM_AFFINE_BACKWARD, SOFTMAX, SUM,
};
use thalweg_ops::{LoopOp, Signature, forward, forward_into, gradient};

use super::work::Work;
use super::{Kernels, Operator};

/// The channels of rows, each with its own weight.
#[derive(Clone, Copy)]
pub(super) struct Channels {
    /// The number of rows of an instance.
    pub(super) groups: u64,
    /// The number of points of a channel.
    pub(super) plane: u64,
}

/// A computation over rows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Computation {
    Softmax,
    LogSoftmax,
    SoftmaxBackward,
    LogSoftmaxBackward,
    LayerNorm,
    LayerNormBackward,
    RmsNorm,
    RmsNormBackward,
    GroupNorm,
    CrossEntropy,
    CrossEntropyBackward,
    Sum,
    Mean,
    Amax,
    LogSumExp,
}

/// The points at which an operand has values.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lies {
    /// One value per point.
    Points,
    /// One value per row.
    Rows,
    /// One value per column, the same for all rows; or one per channel.
    Columns,
}

impl Computation {
    /// Returns the name of the kernel, the operator, and for each input and output the points at which it has values.
    fn parts(self) -> (&'static str, &'static LoopOp, &'static [Lies]) {
        use Lies::{Columns, Points, Rows};
        match self {
            Self::Softmax => ("softmax", &SOFTMAX, &[Points; 2]),
            Self::LogSoftmax => ("log_softmax", &LOG_SOFTMAX, &[Points; 2]),
            Self::SoftmaxBackward => ("softmax_backward", &SOFTMAX, &[Points; 3]),
            Self::LogSoftmaxBackward => ("log_softmax_backward", &LOG_SOFTMAX, &[Points; 3]),
            Self::LayerNorm => {
                ("layer_norm_affine", &LAYER_NORM_AFFINE, &[Points, Columns, Columns, Points, Rows, Rows])
            }
            Self::LayerNormBackward => {
                ("layer_norm_backward", &LAYER_NORM_BACKWARD, &[Points, Columns, Rows, Rows, Points, Points])
            }
            Self::RmsNorm => ("rms_norm", &RMS_NORM_AFFINE, &[Points, Columns, Points, Rows]),
            Self::RmsNormBackward => {
                ("rms_norm_backward", &RMS_NORM_AFFINE_BACKWARD, &[Points, Rows, Points, Columns, Points])
            }
            Self::GroupNorm => {
                ("group_norm_affine", &LAYER_NORM_AFFINE, &[Points, Columns, Columns, Points, Rows, Rows])
            }
            Self::CrossEntropy => ("cross_entropy", &CROSS_ENTROPY, &[Points, Rows, Rows, Rows]),
            Self::CrossEntropyBackward => {
                ("cross_entropy_backward", &CROSS_ENTROPY_BACKWARD, &[Points, Rows, Rows, Rows, Points])
            }
            Self::Sum => ("sum", &SUM, &[Points, Rows]),
            Self::Mean => ("mean", &MEAN, &[Points, Rows]),
            Self::Amax => ("amax", &AMAX, &[Points, Rows]),
            Self::LogSumExp => ("logsumexp", &LOGSUMEXP, &[Points, Rows]),
        }
    }

    /// Returns the number of scalars of a call.
    pub(crate) fn scalars(self) -> usize {
        self.parts().1.scalars.len()
    }

    /// Returns the body, and a number that identifies it. `dtype` is the input's, `to` the result's.
    fn body(self, dtype: DType, to: DType) -> Result<(u64, Arc<Body>)> {
        let (_, operator, lies) = self.parts();
        let inputs: SmallVec<[DType; 8]> = match self {
            Self::LayerNorm | Self::GroupNorm => SmallVec::from_elem(dtype, 3),
            Self::RmsNorm => SmallVec::from_elem(dtype, 2),
            Self::LayerNormBackward | Self::RmsNormBackward => {
                let inputs = lies[..operator.input_count].iter();
                inputs.map(|&lies| if lies == Lies::Rows { DType::F32 } else { dtype }).collect()
            }
            Self::CrossEntropy => SmallVec::from_slice(&[dtype, DType::I64]),
            Self::CrossEntropyBackward => SmallVec::from_slice(&[dtype, DType::I64, DType::F32, DType::F32]),
            _ => SmallVec::from_elem(dtype, 1),
        };
        let outputs = SmallVec::from_elem(to, operator.outputs.len());
        let signature = Signature { inputs, common: dtype, compute: DType::F32, outputs };
        match self {
            // PyTorch keeps the statistics of groups in the dtype of the input.
            Self::GroupNorm if dtype != DType::F32 => {
                let computed = SmallVec::from_slice(&[to, DType::F32, DType::F32]);
                let into = Signature { outputs: computed, ..signature.clone() };
                let forward = forward_into(operator, &into, &signature.outputs);
                Ok((forward.id, Arc::clone(&forward.body)))
            }
            Self::SoftmaxBackward | Self::LogSoftmaxBackward => {
                let derived = gradient(operator, &signature, 1).map_err(LowerError::Operands)?;
                Ok((derived.id, Arc::clone(&derived.body)))
            }
            _ => {
                let forward = forward(operator, &signature);
                Ok((forward.id, Arc::clone(&forward.body)))
            }
        }
    }
}

/// One call. The addresses are those of inputs and outputs in the order of the computation's operands.
pub(crate) struct RowCall<'a> {
    pub(crate) computation: Computation,
    /// The dtype of the operator's input.
    pub(crate) dtype: DType,
    /// The dtype of the result.
    pub(crate) to: DType,
    /// A row is a run of `columns` points with stride `after`; there are `before` times `after` rows.
    pub(crate) before: u64,
    pub(crate) columns: u64,
    pub(crate) after: u64,
    /// The channels, if rows are groups of them; operands with one value per column then have one per channel.
    pub(super) channels: Option<Channels>,
    pub(crate) scalars: &'a [u64],
    pub(crate) inputs: &'a [u64],
    pub(crate) outputs: &'a [u64],
}

impl RowCall<'_> {
    /// Returns the shape of the points, and the dimensions that are within a row: (before, columns, after), or rows that are
    /// groups of channels, (instances, groups, channels, points).
    fn points(&self) -> (SmallVec<[u64; 4]>, &'static [usize]) {
        match self.channels {
            None => (SmallVec::from_slice(&[self.before, self.columns, self.after]), &[1]),
            Some(Channels { groups, plane }) => {
                let shape = [self.before / groups, groups, self.columns / plane, plane];
                (SmallVec::from_slice(&shape), &[2, 3])
            }
        }
    }

    /// Returns the layout of an operand: contiguous points or rows; a column's value is repeated over the rows.
    fn layout(&self, lies: Lies) -> Result<Layout> {
        let (shape, inner) = self.points();
        let shape: Shape = shape.iter().map(|&extent| extent as usize).collect();
        let is_inner = |dimension: &usize| inner.contains(dimension);
        Ok(match lies {
            Lies::Points => Layout::contiguous(&shape),
            Lies::Rows => {
                let rows = (0..shape.len()).filter(|dimension| !is_inner(dimension));
                Layout::contiguous(&rows.map(|dimension| shape[dimension]).collect::<Shape>())
            }
            Lies::Columns => {
                // With groups of channels there is one value per channel, the same for all instances.
                let strides: &[usize] = match self.channels {
                    None => &[0, 1, 0],
                    Some(_) => &[0, shape[2], 1, 0],
                };
                Layout::new(&shape, strides, 0)?
            }
        })
    }

    fn lower(&self) -> Result<Steps> {
        let (id, body) = self.computation.body(self.dtype, self.to)?;
        let (name, _, lies) = self.computation.parts();
        let layouts = lies.iter().map(|&lies| self.layout(lies)).collect::<Result<SmallVec<[_; 8]>>>()?;
        let dtypes = body.inputs.iter().map(|input| input.dtype);
        let dtypes = dtypes.chain(body.outputs.iter().map(|output| output.dtype));
        let operands: SmallVec<[Operand<'_>; 8]> =
            layouts.iter().zip(dtypes).map(|(layout, dtype)| Operand { dtype, layout }).collect();
        let operands = operands.split_at(body.inputs.len());
        let (shape, inner) = self.points();
        let shape: Shape = shape.iter().map(|&extent| extent as usize).collect();
        let extents = Extents::Rows { split: Split::new(shape.len(), inner), shape };
        let parts = (id, name.into(), body);
        Ok(extents.launch(parts, DType::F32, operands, LaunchNumbers::new())?.into())
    }

    /// Runs the call on PyTorch's stream of a device; `None` as for [`Work::run`].
    ///
    /// # Safety
    /// Each address is that of an operand on the device with the size given by rows and columns; no output overlaps another
    /// operand.
    pub(super) unsafe fn run(&self, kernels: &Kernels, operator: Operator, device: i32) -> Option<()> {
        let work = Work {
            name: self.computation.parts().0,
            number: self.computation as u64,
            dtypes: &[self.dtype, self.to],
            extents: &[
                self.before,
                self.columns,
                self.after,
                self.channels.map_or(0, |channels| channels.groups),
                self.channels.map_or(0, |channels| channels.plane),
            ],
            lower: &|| self.lower(),
            scalars: self.scalars,
            inputs: self.inputs,
            outputs: self.outputs,
        };
        // SAFETY: the caller's promise.
        unsafe { work.run(kernels, operator, device) }
    }
}

/// A copy into contiguous memory.
pub(crate) struct CopyCall<'a> {
    pub(crate) dtype: DType,
    pub(crate) sizes: &'a [u64],
    /// The strides of the source.
    pub(crate) strides: &'a [u64],
    pub(crate) source: u64,
    pub(crate) target: u64,
}

impl CopyCall<'_> {
    fn lower(&self) -> Result<Steps> {
        let narrow = |sizes: &[u64]| -> Shape { sizes.iter().map(|&size| size as usize).collect() };
        let sizes = narrow(self.sizes);
        let source = Layout::new(&sizes, &narrow(self.strides), 0)?;
        let operand = |layout| Operand { dtype: self.dtype, layout };
        let arguments = LoopArguments { dtype: Some(self.dtype), ..LoopArguments::default() };
        let target = Layout::contiguous(&sizes);
        let operands = ([operand(&source)], [operand(&target)]);
        Ok(LoopLaunch::into_outputs(&COPY, &operands.0, &operands.1, &arguments)?.into())
    }

    /// Runs the copy on PyTorch's stream of a device; `None` as for [`Work::run`].
    ///
    /// # Safety
    /// The addresses are those of tensors of these sizes and strides on the device, which do not overlap.
    pub(super) unsafe fn run(&self, kernels: &Kernels, device: i32) -> Option<()> {
        let extents: SmallVec<[u64; 12]> = self.sizes.iter().chain(self.strides).copied().collect();
        let work = Work {
            name: "copy",
            number: u64::from(u8::MAX),
            dtypes: &[self.dtype; 2],
            extents: &extents,
            lower: &|| self.lower(),
            scalars: &[],
            inputs: &[self.source],
            outputs: &[self.target],
        };
        // SAFETY: the caller's promise.
        unsafe { work.run(kernels, Operator::Clone, device) }
    }
}
