//! Launches of native kernels, which are not loops over a body: see [`thalweg_kernels`].

use thalweg_driver::{Label, Launch};
use thalweg_kernels::NativeKernel;

use crate::{Error, Result, Stream};

impl Stream {
    /// Queues a kernel that is written as CUDA C, or its host function on the simulated GPU. Does nothing if there is nothing to
    /// compute. Asynchronous; the first launch of a kernel on a device may compile it.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the description is invalid ([`NativeKernel::check`]), and the errors of the compiler and
    /// the driver.
    pub fn launch_native(&self, kernel: &dyn NativeKernel, label: Label) -> Result<()> {
        kernel.check().map_err(|fault| Error::invalid(fault.to_string()))?;
        let Some(shape) = kernel.launch_shape() else { return Ok(()) };
        let device = self.device();
        let function = device.native_kernel(kernel)?;
        let mut words = kernel.words();
        if kernel.reports_indices() {
            words.push(device.out_of_range().scalar(device.driver(), label)?);
        }
        let launch = Launch {
            function,
            grid: shape.grid,
            block: shape.block,
            shared_memory_bytes: kernel.shared_memory_bytes(),
            mode: kernel.mode(),
            arguments: bytemuck::cast_slice(&words),
            accesses: &[],
            label,
        };
        self.submit_launch(launch, |list| {
            list.extend(kernel.accesses().into_iter().filter(|access| access.bytes > 0));
        })
    }
}
