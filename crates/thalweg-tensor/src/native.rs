//! Launches of native kernels over tensors, and memory for their results.

use thalweg_execute::{Kernels, execute};
use thalweg_ir::DType;
use thalweg_kernels::Native;
use thalweg_runtime::{Device, DevicePointer, Label, Result};

use crate::dispatch::Call;
use crate::tensor::Tensor;

/// The operands of native kernels, in the order that their description states.
pub(crate) trait Operands<'t> {
    /// The addresses.
    type At;

    /// Returns the device, and the addresses.
    fn placed(self) -> (&'t Device, Self::At);
}

impl<'t, const COUNT: usize> Operands<'t> for [&'t Tensor; COUNT] {
    type At = [DevicePointer; COUNT];

    fn placed(self) -> (&'t Device, Self::At) {
        (self[0].device(), self.map(Tensor::pointer))
    }
}

/// The first operand exists; the address of one that does not is 0.
impl<'t, const COUNT: usize> Operands<'t> for [Option<&'t Tensor>; COUNT] {
    type At = [DevicePointer; COUNT];

    fn placed(self) -> (&'t Device, Self::At) {
        let address = |tensor: Option<&Tensor>| tensor.map_or(DevicePointer::new(0), Tensor::pointer);
        (self[0].expect("the first operand exists").device(), self.map(address))
    }
}

/// Addresses on a device.
impl<'t, A> Operands<'t> for (&'t Device, A) {
    type At = A;

    fn placed(self) -> (&'t Device, A) {
        self
    }
}

/// Queues native kernels on the current stream of their operands' device. Asynchronous.
pub(crate) fn launch<'t, O: Operands<'t>>(
    kernels: impl Native<O::At>,
    operands: O,
    label: Label,
) -> Result<()> {
    let (device, at) = operands.placed();
    execute(Kernels(kernels), at, &device.current_stream(), label)
}

impl Call<'_> {
    /// Allocates a result on the current stream, or takes offered memory for it.
    pub(crate) fn new_result(&self, shape: &[usize], dtype: DType) -> Result<Tensor> {
        Tensor::result_on(shape, dtype, &self.device.current_stream(), self.label)
    }

    /// Allocates a tensor on the current stream.
    pub(crate) fn new_empty(&self, shape: &[usize], dtype: DType) -> Result<Tensor> {
        Tensor::empty_on(shape, dtype, &self.device.current_stream(), self.label)
    }

    /// Queues native kernels over operands of the call's device. Asynchronous.
    pub(crate) fn launch<'t, O: Operands<'t>>(&self, kernels: impl Native<O::At>, operands: O) -> Result<()> {
        launch(kernels, operands, self.label)
    }
}
