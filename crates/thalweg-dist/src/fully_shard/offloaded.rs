//! [`OffloadedTensor`]: tensors of a unit in pinned host memory, which come to the device for a while.

use std::collections::VecDeque;

use thalweg_ir::DType;
use thalweg_runtime::{Device, Error, Event, Result, Stream};
use thalweg_tensor::{HostTensor, Tensor};

/// A tensor in pinned host memory. All its copies are on one stream, so each finds what the one before has left.
#[derive(Debug)]
pub(super) struct OffloadedTensor {
    host: HostTensor,
    device: Device,
    copies: Stream,
}

impl OffloadedTensor {
    /// Allocates the memory, whose elements are anything.
    pub(super) fn new(shape: &[usize], dtype: DType, copies: &Stream) -> Result<Self> {
        let device = copies.device().clone();
        Ok(Self { host: HostTensor::pinned(shape, dtype, &device)?, device, copies: copies.clone() })
    }

    /// Allocates memory for what a tensor holds, and copies it there.
    pub(super) fn of(tensor: &Tensor, copies: &Stream) -> Result<Self> {
        let offloaded = Self::new(tensor.shape(), tensor.dtype(), copies)?;
        offloaded.leave(tensor)?;
        Ok(offloaded)
    }

    pub(super) fn copies(&self) -> &Stream {
        &self.copies
    }

    /// Returns a copy on the device, in memory of the stream of copies, that work of the current stream can use; record its uses.
    /// Asynchronous.
    pub(super) fn arrive(&self) -> Result<Tensor> {
        let current = self.device.current_stream();
        if current.is_capturing()? {
            return Err(Error::invalid(
                "fully_shard: parameters in host memory cannot be captured; leave offload_policy at `OffloadPolicy::None` for that",
            ));
        }
        let tensor = {
            let _copies = self.copies.make_current();
            self.host.to_device()?
        };
        current.wait_stream(&self.copies)?;
        Ok(tensor)
    }

    /// Copies what a tensor holds behind the current stream's work so far. Asynchronous.
    pub(super) fn leave(&self, tensor: &Tensor) -> Result<()> {
        let source = tensor.detach().contiguous()?;
        self.copies.wait_stream(&self.device.current_stream())?;
        {
            let _copies = self.copies.make_current();
            source.copy_to_pinned(&self.host)?;
        }
        source.record_use(&self.copies);
        Ok(())
    }
}

/// A limit of how far the host is ahead of copies, whose memory on the device is free behind them.
#[derive(Default)]
pub(super) struct Ahead(VecDeque<Event>);

impl Ahead {
    /// How many pieces of work may be under way before another one begins.
    const PIECES: usize = 1;

    /// *Blocks* until another piece of work may begin.
    pub(super) fn begin(&mut self) -> Result<()> {
        while self.0.len() > Self::PIECES {
            self.0.pop_front().map_or(Ok(()), |event| event.synchronize())?;
        }
        Ok(())
    }

    /// Notes that a piece of work ends with what a stream has now.
    pub(super) fn end(&mut self, stream: &Stream) -> Result<()> {
        self.0.push_back(stream.record_event()?);
        Ok(())
    }
}
