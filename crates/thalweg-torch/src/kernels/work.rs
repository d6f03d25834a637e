//! A launch of a body's kernel on memory that PyTorch owns. Plans and kernels are made once per key.
//!
//! This module and its parent use each other: [`Kernels`] caches the plans and kernels that are made here, and finds those of a
//! launch.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_driver::{DevicePointer, Label};
use thalweg_ir::host::{Cells, HostProgram, Slice, Source};
use thalweg_ir::{DType, Kernel, bf16, f16};
use thalweg_kernels::NativeKernel;
use thalweg_lock::Mutex;
use thalweg_ops::LaunchPlan;
use thalweg_ops::lower::{LoopLaunch, LowerError};
use thalweg_runtime::{Device, LaunchKey, PreparedLaunch};

use super::Kernels;
use crate::allocator::Allocator;
use crate::status::{Error, Result, Status};

/// The alignment in bytes that a kernel may assume, if the addresses have it.
const ALIGNMENT: u64 = 16;

/// The place where kernels run: a GPU or the host.
pub(super) enum Place {
    /// On the devices of an allocator, at PyTorch's key CUDA.
    Gpu(&'static Allocator),
    /// On the host, at PyTorch's key CPU.
    Host(Programs),
}

/// A function that lowers a launch.
pub(super) type Lower<'a> = &'a dyn Fn() -> Result<LoopLaunch>;

/// One launch. The addresses are those of inputs and outputs in the order of the body's operands.
pub(super) struct Work<'a> {
    pub(super) name: &'static str,
    /// The number that identifies the body.
    pub(super) number: u64,
    /// The dtypes of operands that the body depends on; of all operands if they differ.
    pub(super) dtypes: &'a [DType],
    /// All values that the launch depends on besides the number and dtypes.
    pub(super) extents: &'a [u64],
    /// Lowers the launch, when its key is first seen.
    pub(super) lower: Lower<'a>,
    pub(super) scalars: &'a [u64],
    pub(super) inputs: &'a [u64],
    pub(super) outputs: &'a [u64],
}

impl Work<'_> {
    fn alignment_bytes(&self) -> u64 {
        let all = self.inputs.iter().chain(self.outputs).fold(ALIGNMENT, |all, address| all | address);
        1 << all.trailing_zeros()
    }

    fn key(&self) -> LaunchKey {
        let count = self.dtypes.len() as u64;
        let mut key = LaunchKey::from_slice(&[self.number, self.alignment_bytes(), count]);
        key.extend(self.dtypes.iter().map(|&dtype| dtype as u64));
        key.extend_from_slice(self.extents);
        key
    }

    /// Runs the work, on a GPU asynchronously on a stream of PyTorch's.
    ///
    /// # Errors
    /// Those of the driver or the compiler. [`Status::Capture`] if the kernel is not loaded yet and the stream captures. Nothing
    /// has been launched then.
    ///
    /// # Safety
    /// Each address is that of an operand on the device with the plan's size; no output overlaps another operand.
    pub(super) unsafe fn run(&self, place: &Place, device: i32, stream: u64) -> Result<()> {
        match place {
            Place::Gpu(allocator) => self.launch(allocator, device, stream),
            // SAFETY: the caller's promise.
            Place::Host(programs) => unsafe { self.run_on_host(programs) },
        }
    }

    fn prepare(&self, device: &Device) -> thalweg_runtime::Result<PreparedLaunch> {
        let launch =
            (self.lower)().map_err(|error| thalweg_runtime::Error::invalid(error.message().to_owned()))?;
        thalweg_execute::prepare(&launch, device, self.alignment_bytes())
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
                self.prepare(&open.device)
            });
            let prepared = prepared.map_err(|error| match captures {
                true => Error::new(Status::Capture, error.to_string()),
                false => error.into(),
            })?;
            let pointers = |addresses: &[u64]| -> SmallVec<[DevicePointer; 8]> {
                addresses.iter().copied().map(DevicePointer::new).collect()
            };
            let label = Label::here(self.name);
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
        let mut programs = programs.lock();
        let entry = match programs.get(&key) {
            Some(entry) => entry.clone(),
            None => {
                let launch = (self.lower)()?;
                let plan = launch.plan(self.alignment_bytes(), 0, false).map_err(to_error)?;
                let kernel = launch.kernel(&plan);
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
            // SAFETY: as above; only this code writes it.
            .map(|(output, (written, &address))| unsafe {
                cells(written.dtype, address, geometry.span(body.inputs.len() + output))
            })
            .collect();
        let ran = program.run(geometry, self.scalars, &inputs, &outputs);
        ran.map_err(|fault| Error::invalid(fault.to_string()))
    }
}

/// Converts an error of lowering to one of this crate.
pub(super) fn to_error(error: LowerError) -> Error {
    thalweg_execute::to_runtime_error(error).into()
}

/// Launches of native kernels on a stream of PyTorch's.
pub(super) struct NativeLaunches<'a> {
    pub(super) kernels: &'a Kernels,
    pub(super) device: i32,
    pub(super) stream: u64,
}

impl NativeLaunches<'_> {
    /// Launches a kernel asynchronously.
    ///
    /// # Errors
    /// As for [`Work::run`].
    pub(super) fn run(&self, kernel: &dyn NativeKernel, label: Label) -> Result<()> {
        let Place::Gpu(allocator) = &self.kernels.place else {
            return Err(Error::invalid("there is no GPU"));
        };
        let key = (self.device, kernel.name().to_owned());
        allocator.with_device(self.device, |open| {
            let stream = open.streams.find_or_wrap(&open.device, open.named(self.stream))?;
            let is_loaded = self.kernels.loaded().contains(&key);
            if !is_loaded && stream.is_capturing()? {
                return Err(Error::new(
                    Status::Capture,
                    "the stream captures, and the kernel is not loaded yet",
                ));
            }
            stream.launch_native(kernel, label)?;
            if !is_loaded {
                self.kernels.loaded().insert(key.clone());
            }
            Ok(())
        })
    }
}

/// The programs of the host, by the key of a launch.
pub(crate) type Programs = Mutex<FxHashMap<LaunchKey, Arc<(HostProgram, Kernel, LaunchPlan)>>>;

/// Returns elements that are read.
///
/// # Safety
/// There are `count` elements of the dtype, and nothing writes them.
pub(super) unsafe fn slice<'a>(dtype: DType, address: u64, count: u64) -> Source<'a> {
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
/// There are `count` elements of the dtype, and nothing else reads or writes them.
pub(super) unsafe fn cells<'a>(dtype: DType, address: u64, count: u64) -> Cells<'a> {
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
