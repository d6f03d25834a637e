//! In-place kernels over a list of tensors ([`thalweg_ir::foreach`]).

use std::hash::Hash;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use thalweg_driver::{DevicePointer, Label};
use thalweg_ir::DType;
use thalweg_ir::foreach::{ForeachArguments, ForeachKernel};
use thalweg_kernels::Native;
use thalweg_lock::Mutex;
use thalweg_ops::optimizer::StepForm;

use super::work::NativeLaunches;
use super::{Kernels, Operator};
use crate::status::Result;

/// A cache of kernels, by the properties that they depend on.
pub(super) struct Loops<K>(Mutex<FxHashMap<K, Arc<ForeachKernel>>>);

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
    pub(super) fn get(&self, key: K, make: impl FnOnce() -> ForeachKernel) -> Arc<ForeachKernel> {
        Arc::clone(self.0.lock().entry(key).or_insert_with(|| Arc::new(make())))
    }
}

/// Runs a kernel on PyTorch's stream of a device: `None` if nothing was launched, and an error if only a part was.
///
/// # Safety
/// Each address is on the device, and has the kernel's number of elements of its dtype; nothing else uses the elements that are
/// written.
pub(super) unsafe fn run(
    kernel: &Arc<ForeachKernel>,
    kernels: &Kernels,
    operator: Operator,
    arguments: &ForeachArguments,
    device: i32,
) -> Option<Result<()>> {
    let native = NativeLaunches { kernels, device, stream: kernels.current_stream(device)? };
    for (number, launch) in kernel.launches(arguments, DevicePointer::new(0)).enumerate() {
        // SAFETY: the caller's promise.
        if let Err(error) = unsafe { native.run(&launch, Label::here(operator.name())) } {
            kernels.give_up(operator, &error);
            return (number > 0).then_some(Err(error));
        }
    }
    Some(Ok(()))
}
