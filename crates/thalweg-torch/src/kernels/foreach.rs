//! In-place kernels over a list of tensors ([`thalweg_ir::foreach`]).

use std::hash::Hash;
use std::sync::{Arc, OnceLock};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_driver::Label;
use thalweg_ir::DType;
use thalweg_ir::foreach::{ForeachArguments, ForeachKernel};
use thalweg_ir::host::{Cells, HostProgram, Source};
use thalweg_kernels::foreach::launches;
use thalweg_lock::Mutex;
use thalweg_ops::optimizer::StepForm;

use super::work::{NativeLaunches, Place, cells, slice};
use super::{Kernels, Operator};
use crate::status::{Error, Result};

/// A kernel over a list of tensors, and its program for the host.
pub(super) struct Loop {
    kernel: Arc<ForeachKernel>,
    program: OnceLock<HostProgram>,
}

/// A cache of kernels, by the properties that they depend on.
pub(super) struct Loops<K>(Mutex<FxHashMap<K, Arc<Loop>>>);

/// The kernels of steps, by the optimizer, its flags, the dtype of all tensors but the numbers of steps, and the form.
pub(super) type Steps = Loops<(&'static str, u32, DType, StepForm)>;

/// The kernels that move running statistics, by their dtype.
pub(super) type Updates = Loops<DType>;

impl<K> Default for Loops<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Hash + Eq> Loops<K> {
    /// Returns the kernel of a key, and makes it if it does not exist.
    pub(super) fn get(&self, key: K, make: impl FnOnce() -> ForeachKernel) -> Arc<Loop> {
        let mut loops = self.0.lock();
        let make = || Arc::new(Loop { kernel: Arc::new(make()), program: OnceLock::new() });
        Arc::clone(loops.entry(key).or_insert_with(make))
    }
}

impl Loop {
    /// Runs the kernel on PyTorch's stream of a device: `None` if nothing was launched, and an error if only a part was.
    ///
    /// # Safety
    /// Each address is on the device, and has the kernel's number of elements of its dtype; nothing else uses the elements that
    /// are written.
    pub(super) unsafe fn run(
        &self,
        kernels: &Kernels,
        operator: Operator,
        arguments: &ForeachArguments,
        device: i32,
    ) -> Option<Result<()>> {
        if let Place::Host = kernels.place {
            // SAFETY: the caller's promise.
            let ran = unsafe { self.run_on_host(arguments) };
            return ran.map_err(|error| kernels.give_up(operator, &error)).ok().map(Ok);
        }
        let native = NativeLaunches { kernels, device, stream: kernels.current_stream(device)? };
        for (number, launch) in launches(&self.kernel, arguments).enumerate() {
            if let Err(error) = native.run(&launch, Label::here(operator.name())) {
                kernels.give_up(operator, &error);
                return (number > 0).then_some(Err(error));
            }
        }
        Some(Ok(()))
    }

    /// Runs the kernel on the host.
    ///
    /// # Safety
    /// As [`run`](Self::run), and the addresses are the host's.
    unsafe fn run_on_host(&self, arguments: &ForeachArguments) -> Result<()> {
        let kernel = &self.kernel;
        let program = self.program.get_or_init(|| HostProgram::compile(&kernel.single()));
        for item in &arguments.items {
            let address = |input: usize| match kernel.is_shared(input) {
                true => arguments.shared[kernel.place(input)],
                false => item.addresses[kernel.place(input)],
            };
            let dtype = |input: usize| kernel.body.inputs[input].dtype;
            let inputs: SmallVec<[Source<'_>; 8]> = (0..kernel.operands.len())
                .map(|input| {
                    let elements = kernel.elements(input, item.elements);
                    // SAFETY: the caller's promise.
                    unsafe {
                        match kernel.is_written(input) {
                            true => Source::Cells(cells(dtype(input), address(input), elements)),
                            false => slice(dtype(input), address(input), elements),
                        }
                    }
                })
                .collect();
            let outputs: SmallVec<[Cells<'_>; 4]> = (kernel.targets.iter())
                // SAFETY: as above.
                .map(|&target| unsafe { cells(dtype(target.into()), address(target.into()), item.elements) })
                .collect();
            let ran = program.run(&kernel.geometry(item.elements), &arguments.scalars, &inputs, &outputs);
            ran.map_err(|fault| Error::invalid(fault.to_string()))?;
        }
        Ok(())
    }
}
