//! Moves of tensors from one device to another.

use std::panic::Location;
use std::sync::Arc;

use thalweg_runtime::{Device, PinnedBuffer, Result};

use crate::autograd::{Backward, Gradients, is_grad_enabled, record};
use crate::caller::{in_call, label_at};
use crate::host_room::host_room;
use crate::tensor::Tensor;

/// The largest tensor in bytes that pinned memory holds on its way to a device of another driver.
const STAGED_BYTES: usize = 64 << 20;

/// The backward node of a move: it moves the gradient back.
struct MoveBackward {
    source: Device,
}

impl Backward for MoveBackward {
    fn name(&self) -> &'static str {
        "to_device"
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        gradients
            .iter()
            .map(|gradient| gradient.as_ref().map(|gradient| gradient.to_device(&self.source)).transpose())
            .collect()
    }
}

impl Tensor {
    /// Returns the elements on another device (`torch.Tensor.to(device)`); the tensor itself if it is already there. Gradients
    /// flow back to the tensor's own device.
    ///
    /// Between devices of one driver the copy is asynchronous: it runs on the current stream of the tensor's device, after the
    /// work that the current stream of the other device has at the time, and later work on that stream waits for it. Between
    /// devices of two drivers, such as a simulated one and a GPU, the elements go through the host: the call *blocks* until they
    /// have been read, and pinned memory holds them until the current stream of the other device has copied them. For a tensor
    /// of more than 64 MiB it blocks until they have arrived.
    ///
    /// # Errors
    /// [`Error::is_out_of_memory`](thalweg_runtime::Error::is_out_of_memory) if a device or the host does not have enough memory; and
    /// those of the copies.
    #[track_caller]
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        if self.device() == device {
            return Ok(self.clone());
        }
        in_call("to_device", &[self], Location::caller(), || {
            let source = self.detach().contiguous()?;
            let mut moved = [if is_one_driver(self.device(), device) {
                source.copied_across(device, Location::caller())?
            } else {
                source.copied_through_host(device, Location::caller())?
            }];
            if is_grad_enabled() && self.requires_grad() {
                let node = Box::new(MoveBackward { source: self.device().clone() });
                record(node, &[self], &mut moved, device.current_stream());
            }
            let [moved] = moved;
            Ok(moved)
        })
    }

    /// Copies a contiguous tensor to another device of the driver, asynchronously.
    ///
    /// The target's memory belongs to the current stream of its device; the copy runs on the current stream of the source's
    /// device. The copy waits for the target's stream, whose earlier work may still use the memory. The target's stream then
    /// waits for the copy, so that everything that uses or frees the target in its order runs afterwards. The source is read in
    /// the order of its own stream.
    fn copied_across(&self, device: &Device, location: &'static Location<'static>) -> Result<Self> {
        let label = label_at("to_device", location);
        let (from, to) = (self.device().current_stream(), device.current_stream());
        let target = Self::empty_on(self.shape(), self.dtype(), &to, label)?;
        if self.elements() > 0 {
            // Memory that the allocator maps can be copied only if the stream's device has access to it. Devices without peer
            // access can still copy plain memory, so an error does not matter to an allocator that maps none.
            let _unseen = device.enable_peer_access(self.device());
            from.wait_stream(&to)?;
            let bytes = (self.elements() * self.dtype().size_bytes()) as u64;
            from.copy_on_device(target.pointer(), self.pointer(), bytes, label)?;
            to.wait_stream(&from)?;
        }
        Ok(target)
    }

    /// Copies a contiguous tensor to a device of another driver. *Blocks* until the elements have been read, or for a large tensor
    /// until they have arrived.
    fn copied_through_host(&self, device: &Device, location: &'static Location<'static>) -> Result<Self> {
        let label = label_at("to_device", location);
        let bytes = self.elements() * self.dtype().size_bytes();
        let mut values = host_room::<u8>(bytes)?;
        values.resize(bytes, 0);
        self.device().current_stream().copy_to_host(&mut values, self.pointer(), label)?;
        let to = device.current_stream();
        let target = Self::empty_on(self.shape(), self.dtype(), &to, label)?;
        if bytes > 0 && bytes <= STAGED_BYTES && !device.is_meta() && !to.is_capturing()? {
            let staging = PinnedBuffer::new(device, bytes as u64)?;
            staging.write(0, &values)?;
            to.copy_from_pinned(target.pointer(), &staging, 0, bytes as u64, label)?;
            return Ok(target);
        }
        to.copy_from_host(target.pointer(), &values, label)?;
        to.synchronize()?;
        Ok(target)
    }
}

/// Returns whether the streams of two devices can wait for each other.
pub(crate) fn is_one_driver(one: &Device, other: &Device) -> bool {
    Arc::ptr_eq(one.driver(), other.driver())
}
