//! Saved tensors in host memory.

use thalweg_runtime::{Result, Stream};

use super::saved_tensors_hooks;
use crate::host_tensor::HostTensor;
use crate::tensor::Tensor;

/// Runs a function whose operators save tensors for backward in pinned host memory (`torch.autograd.graph.save_on_cpu` with
/// `pin_memory=True`), which frees the device's memory for other uses until backward reaches the node. Copies are asynchronous,
/// on the stream of the operator. A tensor that several nodes save is copied for each.
pub fn save_on_cpu<T>(function: impl FnOnce() -> T) -> T {
    let pack = |tensor: &Tensor| -> Result<(HostTensor, Stream)> {
        let host = HostTensor::pinned(tensor.shape(), tensor.dtype(), tensor.device())?;
        tensor.contiguous()?.copy_to_pinned(&host)?;
        Ok((host, tensor.device().current_stream()))
    };
    let unpack = |(host, stream): &(HostTensor, Stream)| {
        let current = stream.device().current_stream();
        if current != *stream {
            current.wait_stream(stream)?;
        }
        host.to_device()
    };
    saved_tensors_hooks(pack, unpack, function)
}
