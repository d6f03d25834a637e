//! Launches of the gradient of a table of embeddings: see [`thalweg_ir::embedding`].

use std::sync::{Arc, OnceLock};

use thalweg_driver::{Access, DevicePointer, HostFault, HostKernel, HostLaunch, Label, Launch};
use thalweg_ir::embedding::{self, EmbeddingBackward};
use thalweg_ir::{DType, Element, bf16, f16};

use crate::graph::Command;
use crate::{Error, Result, Stream};

impl Stream {
    /// Queues the gradient of a table of embeddings into a result of zeros, from the gradients of the places that read it and their
    /// indices (i64), all contiguous.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the dtype is no floating-point type.
    pub fn embedding_backward(
        &self,
        sizes: &EmbeddingBackward,
        [gradient, indices, result]: [DevicePointer; 3],
        label: Label,
    ) -> Result<()> {
        if !sizes.dtype.is_floating_point() {
            return Err(Error::invalid(format!(
                "embedding_backward: gradients are floats, not {}",
                sizes.dtype
            )));
        }
        let spans = sizes.spans();
        if spans.contains(&0) {
            return Ok(());
        }
        let element = sizes.dtype.size_bytes() as u64;
        let accesses = [
            Access::read(gradient, spans[0] * element),
            Access::read(indices, spans[1] * size_of::<i64>() as u64),
            // The other rows stay as they are.
            Access::read_write(result, spans[2] * element),
        ];
        let name = embedding::name(sizes.dtype);
        let print = || embedding::print(sizes.dtype);
        let function = self.device().text_kernel(&name, &print, &|| host_function().clone())?;
        let arguments = sizes.pack([gradient, indices, result].map(DevicePointer::address));
        let shape = sizes.launch_shape();
        let launch = Launch {
            function,
            grid: shape.grid,
            block: shape.block,
            shared_memory_bytes: 0,
            arguments: bytemuck::cast_slice(&arguments),
            accesses: &accesses,
            label,
        };
        self.submit(Command::Launch(&launch), || self.device().driver().launch(self.handle(), &launch))
    }
}

fn host_function() -> &'static Arc<dyn HostKernel> {
    static FUNCTION: OnceLock<Arc<dyn HostKernel>> = OnceLock::new();
    FUNCTION.get_or_init(|| Arc::new(run_on_host))
}

fn run_on_host(launch: &HostLaunch<'_>) -> std::result::Result<(), HostFault> {
    let (sizes, addresses) = EmbeddingBackward::unpack(launch.arguments)
        .ok_or_else(|| HostFault("embedding_backward: the arguments are not in its layout".to_owned()))?;
    match sizes.dtype {
        DType::F16 => run_typed::<f16>(launch, &sizes, addresses),
        DType::Bf16 => run_typed::<bf16>(launch, &sizes, addresses),
        DType::F32 => run_typed::<f32>(launch, &sizes, addresses),
        DType::F64 => run_typed::<f64>(launch, &sizes, addresses),
        other => Err(HostFault(format!("embedding_backward: {other} is no floating-point dtype"))),
    }
}

fn run_typed<T: Element>(
    launch: &HostLaunch<'_>,
    sizes: &EmbeddingBackward,
    addresses: [u64; 3],
) -> std::result::Result<(), HostFault> {
    let [gradient, indices, result] = addresses.map(DevicePointer::new);
    let [gradients, count, results] = sizes.spans().map(|span| span as usize);
    let (gradient, indices) = (launch.read::<T>(gradient, gradients)?, launch.read::<i64>(indices, count)?);
    sizes.run(gradient, indices, launch.write::<T>(result, results)?);
    Ok(())
}
