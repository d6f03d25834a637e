//! Kernels over the rows of tensors that PyTorch owns: a body of the table of operators, planned and loaded once a shape, launched on addresses.
//!
//! On a GPU a launch goes to PyTorch's current stream; on the host it runs at once, which is for tests of the interface.

use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_driver::{DevicePointer, Label};
use thalweg_ir::host::{Cells, HostProgram, Slice, Source};
use thalweg_ir::{Body, DType, Kernel, bf16, f16};
use thalweg_ops::structured::{
    CROSS_ENTROPY_BACKWARD, CROSS_ENTROPY_WIDE, LAYER_NORM_AFFINE, LAYER_NORM_BACKWARD, LOG_SOFTMAX, SOFTMAX,
};
use thalweg_ops::{Iteration, LaunchPlan, LoopOp, Placement, Signature, forward, gradient, kernel, plan};
use thalweg_runtime::{KernelKey, LaunchKey, PreparedLaunch};

use super::Place;
use super::rms::{RMS_NORM, RMS_NORM_BACKWARD};
use crate::allocator::Allocator;
use crate::status::{Error, Result, Status};

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
    CrossEntropy,
    CrossEntropyBackward,
}

/// Where an operand lies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lies {
    /// At every point.
    Points,
    /// Once a row.
    Rows,
    /// Once a column, the same for all rows.
    Columns,
}

impl Computation {
    /// Returns the name of the kernel, the operator, and where inputs and outputs lie.
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
            Self::RmsNorm => ("rms_norm", &RMS_NORM, &[Points, Columns, Points, Rows]),
            Self::RmsNormBackward => {
                ("rms_norm_backward", &RMS_NORM_BACKWARD, &[Points, Columns, Rows, Points, Points])
            }
            Self::CrossEntropy => ("cross_entropy", &CROSS_ENTROPY_WIDE, &[Points, Rows, Rows, Rows]),
            Self::CrossEntropyBackward => {
                ("cross_entropy_backward", &CROSS_ENTROPY_BACKWARD, &[Points, Rows, Rows, Rows, Points])
            }
        }
    }

    /// Returns the body, and a number that tells it from the others. `dtype` is the input's, `to` the result's.
    fn body(self, dtype: DType, to: DType) -> Result<(u64, Body)> {
        let (_, operator, lies) = self.parts();
        let inputs: SmallVec<[DType; 8]> = match self {
            Self::LayerNorm => SmallVec::from_elem(dtype, 3),
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
            Self::SoftmaxBackward | Self::LogSoftmaxBackward => {
                let derived = gradient(operator, &signature, 1).map_err(Error::invalid)?;
                Ok((derived.id, derived.body.clone()))
            }
            _ => {
                let forward = forward(operator, &signature);
                Ok((forward.id, forward.body.clone()))
            }
        }
    }
}

/// One call: addresses are those of inputs and outputs in the order of the computation's operands.
pub(crate) struct RowCall<'a> {
    pub(crate) computation: Computation,
    /// Of the operator's input.
    pub(crate) dtype: DType,
    /// Of its result.
    pub(crate) to: DType,
    pub(crate) rows: u64,
    pub(crate) columns: u64,
    pub(crate) scalars: &'a [u64],
    pub(crate) inputs: &'a [u64],
    pub(crate) outputs: &'a [u64],
}

/// Addresses are taken to be aligned to so many bytes, if they are.
const ALIGNMENT: u64 = 16;

impl RowCall<'_> {
    fn alignment_bytes(&self) -> u64 {
        let all = self.inputs.iter().chain(self.outputs).fold(ALIGNMENT, |all, address| all | address);
        1 << all.trailing_zeros()
    }

    fn key(&self) -> LaunchKey {
        let kinds = [self.computation as u64, self.dtype as u64, self.to as u64];
        let kinds = kinds.into_iter().fold(0, |key, kind| key << 8 | kind);
        LaunchKey::from_slice(&[kinds, self.rows, self.columns, self.alignment_bytes()])
    }

    /// Returns the number of the body, the body, and the plan.
    fn plan(&self) -> Result<(u64, Body, LaunchPlan)> {
        let (id, body) = self.computation.body(self.dtype, self.to)?;
        let (_, _, lies) = self.computation.parts();
        let operands = lies.iter().enumerate().map(|(number, lies)| {
            let (row, inner) = match lies {
                Lies::Points => (self.columns, 1),
                Lies::Rows => (1, 0),
                Lies::Columns => (0, 1),
            };
            let is_row_output = *lies == Lies::Rows && number >= body.inputs.len();
            let inner: SmallVec<_> =
                if is_row_output { SmallVec::new() } else { SmallVec::from_elem(inner, 1) };
            Placement::Strided { rows: SmallVec::from_elem(row, 1), inner }
        });
        let iteration = Iteration {
            rows: SmallVec::from_elem(self.rows, 1),
            inner: SmallVec::from_elem(self.columns, 1),
            operands: operands.collect(),
            alignment_bytes: self.alignment_bytes(),
        };
        let plan = plan(&body, &iteration);
        Ok((id, body, plan))
    }

    fn kernel(&self, body: Body, plan: &LaunchPlan) -> Kernel {
        kernel(self.computation.parts().0, DType::F32, body, plan.class)
    }

    /// Runs the call, on a GPU asynchronously on a stream of PyTorch's.
    ///
    /// # Errors
    /// What the driver or the compiler refuses. [`Status::Capture`]: the kernel is not loaded yet and the stream captures. Nothing was launched then.
    ///
    /// # Safety
    /// Each address is that of an operand as large as rows and columns say, on the device; no output overlaps another operand.
    pub(crate) unsafe fn run(&self, place: &Place, device: i32, stream: u64) -> Result<()> {
        match place {
            Place::Gpu(allocator) => self.launch(allocator, device, stream),
            // SAFETY: the caller's promise.
            Place::Host(programs) => unsafe { self.run_on_host(programs) },
        }
    }

    fn launch(&self, allocator: &Allocator, device: i32, stream: u64) -> Result<()> {
        allocator.with_device(device, |open| {
            let stream = open.streams.find_or_wrap(&open.device, open.named(stream))?;
            let mut captures = false;
            let prepared = open.device.prepared_launch(&self.key(), || {
                captures = stream.is_capturing()?;
                if captures {
                    return Err(thalweg_runtime::Error::invalid(
                        "the stream captures, and the kernel is not loaded yet",
                    ));
                }
                let (id, body, plan) = self
                    .plan()
                    .map_err(|error| thalweg_runtime::Error::invalid(error.message().to_owned()))?;
                let key = KernelKey {
                    body: id,
                    dtypes: SmallVec::from_slice(&[self.dtype, self.to]),
                    class: plan.class,
                };
                let loaded = open.device.kernel(&key, || self.kernel(body, &plan))?;
                Ok(PreparedLaunch::new(&open.device, loaded, &plan.geometry))
            });
            let prepared = prepared.map_err(|error| match captures {
                true => Error::new(Status::Capture, error.to_string()),
                false => error.into(),
            })?;
            let pointers = |addresses: &[u64]| -> SmallVec<[DevicePointer; 8]> {
                addresses.iter().copied().map(DevicePointer::new).collect()
            };
            let label = Label::here(self.computation.parts().0);
            let (inputs, outputs) = (pointers(self.inputs), pointers(self.outputs));
            Ok(stream.launch(&prepared, &inputs, &outputs, self.scalars, label)?)
        })
    }

    /// Runs the call on the host.
    ///
    /// # Safety
    /// As [`run`](Self::run), and the addresses are the host's.
    unsafe fn run_on_host(&self, programs: &Programs) -> Result<()> {
        let key = self.key();
        let mut programs = programs.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = match programs.get(&key) {
            Some(entry) => entry.clone(),
            None => {
                let (_, body, plan) = self.plan()?;
                let kernel = self.kernel(body, &plan);
                let entry = Arc::new((HostProgram::compile(&kernel), kernel, plan));
                programs.insert(key, Arc::clone(&entry));
                entry
            }
        };
        drop(programs);
        let (program, kernel, plan) = &*entry;
        let (body, geometry) = (&kernel.body, &plan.geometry);
        let inputs: SmallVec<[Source<'_>; 8]> = (body.inputs.iter().zip(self.inputs).enumerate())
            // SAFETY: the operand has as many elements as the geometry spans, and nothing writes it.
            .map(|(operand, (input, &address))| unsafe {
                slice(input.dtype, address, geometry.span(operand))
            })
            .collect();
        let outputs: SmallVec<[Cells<'_>; 4]> = (body.outputs.iter().zip(self.outputs).enumerate())
            // SAFETY: as above; it is written here alone.
            .map(|(output, (written, &address))| unsafe {
                cells(written.dtype, address, geometry.span(body.inputs.len() + output))
            })
            .collect();
        let ran = program.run(geometry, self.scalars, &inputs, &outputs);
        ran.map_err(|fault| Error::invalid(fault.to_string()))
    }
}

/// The programs of the host, by the key of a launch.
pub(crate) type Programs = Mutex<FxHashMap<LaunchKey, Arc<(HostProgram, Kernel, LaunchPlan)>>>;

/// Returns elements that are read.
///
/// # Safety
/// There are so many elements of the dtype, and nothing writes them.
unsafe fn slice<'a>(dtype: DType, address: u64, count: u64) -> Source<'a> {
    // SAFETY: the caller's promise.
    unsafe fn of<'a, T>(address: u64, count: u64) -> &'a [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(address as *const T, count as usize) }
    }
    // SAFETY: the caller's promise.
    Source::Slice(unsafe {
        match dtype {
            DType::F16 => Slice::F16(of::<f16>(address, count)),
            DType::Bf16 => Slice::Bf16(of::<bf16>(address, count)),
            DType::I64 => Slice::I64(of::<i64>(address, count)),
            _ => Slice::F32(of::<f32>(address, count)),
        }
    })
}

/// Returns elements that are written.
///
/// # Safety
/// There are so many elements of the dtype, and nothing else reads or writes them.
unsafe fn cells<'a>(dtype: DType, address: u64, count: u64) -> Cells<'a> {
    // SAFETY: the caller's promise.
    unsafe fn of<'a, T>(address: u64, count: u64) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(address as *mut T, count as usize) }
    }
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::F16 => Cells::from(of::<f16>(address, count)),
            DType::Bf16 => Cells::from(of::<bf16>(address, count)),
            _ => Cells::from(of::<f32>(address, count)),
        }
    }
}
