//! [`OffloadedTensor`]: tensors in pinned host memory, which are copied to the device while they are needed.

use std::collections::VecDeque;

use thalweg_ir::DType;
use thalweg_lock::Mutex;
use thalweg_runtime::{Device, Error, Event, Result, Stream, refuse_if};
use thalweg_tensor::{HostTensor, Tensor};

use crate::ProcessGroup;

/// The streams of a unit's copies between host and device memory; both directions run at once. Copies to the device allocate on a
/// stream that several units share, so that their memory is bounded as for other streams: a copy waits on the device until an
/// earlier one has been used. There are two such streams, and units alternate between them, so that a unit's copies do not wait
/// for the uses of its neighbour's.
#[derive(Clone, Debug)]
pub(super) struct Copies {
    arrivals: Stream,
    departures: Stream,
}

impl Copies {
    /// Returns the streams of the next unit of a group's rank.
    pub(super) fn of(group: &ProcessGroup) -> Result<Self> {
        let (arrivals, departures) = group.copy_streams()?;
        Ok(Self { arrivals, departures })
    }

    /// Returns the stream of copies to host memory.
    pub(super) fn departures(&self) -> &Stream {
        &self.departures
    }
}

/// A tensor in pinned host memory. Each copy from or to it follows the previous one.
#[derive(Debug)]
pub(super) struct OffloadedTensor {
    host: HostTensor,
    device: Device,
    copies: Copies,
    /// The event that was recorded after the last copy.
    last: Mutex<Event>,
}

impl OffloadedTensor {
    /// Allocates the memory, whose elements are uninitialized.
    pub(super) fn new(shape: &[usize], dtype: DType, copies: &Copies) -> Result<Self> {
        let device = copies.arrivals.device().clone();
        let host = HostTensor::pinned(shape, dtype, &device)?;
        Ok(Self { host, device, copies: copies.clone(), last: Mutex::default() })
    }

    /// Allocates memory for a tensor's elements, and copies them there.
    pub(super) fn of(tensor: &Tensor, copies: &Copies) -> Result<Self> {
        let offloaded = Self::new(tensor.shape(), tensor.dtype(), copies)?;
        offloaded.offload(tensor)?;
        Ok(offloaded)
    }

    pub(super) fn copies(&self) -> &Copies {
        &self.copies
    }

    /// Makes a copy on a stream, after the last one.
    fn copy<T>(&self, stream: &Stream, copy: impl FnOnce() -> Result<T>) -> Result<T> {
        let last = self.last.lock();
        stream.wait_event(&last)?;
        let copied = {
            let _stream = stream.make_current();
            copy()?
        };
        last.record(stream)?;
        Ok(copied)
    }

    /// Returns a copy on the device that work of the current stream can use. Its memory belongs to the stream of arrivals, so
    /// record its uses. Asynchronous.
    pub(super) fn arrive(&self) -> Result<Tensor> {
        let current = self.device.current_stream();
        refuse_if!(
            current.is_capturing()?,
            "fully_shard: parameters in host memory cannot be captured; leave offload_policy at `OffloadPolicy::None` for that"
        );
        let tensor = self.copy(&self.copies.arrivals, || self.host.to_device())?;
        current.wait_stream(&self.copies.arrivals)?;
        Ok(tensor)
    }

    /// Copies a tensor's elements to this memory, after the current stream's work so far. Asynchronous.
    pub(super) fn offload(&self, tensor: &Tensor) -> Result<()> {
        let (source, departures) = (tensor.detach().contiguous()?, &self.copies.departures);
        departures.wait_stream(&self.device.current_stream())?;
        self.copy(departures, || source.copy_to_pinned(&self.host))?;
        source.record_use(departures);
        Ok(())
    }
}

/// A limit on how far the host runs ahead of copies, whose device memory is free after them.
#[derive(Default)]
pub(super) struct Ahead(VecDeque<Event>);

impl Ahead {
    /// The number of pieces of work that may be in progress when another one begins.
    const PIECES: usize = 1;

    /// *Blocks* until another piece of work may begin.
    pub(super) fn begin(&mut self) -> Result<()> {
        while self.0.len() > Self::PIECES {
            self.0.pop_front().map_or(Ok(()), |event| event.synchronize())?;
        }
        Ok(())
    }

    /// Records that a piece of work ends with the stream's work so far.
    pub(super) fn end(&mut self, stream: &Stream) -> Result<()> {
        self.0.push_back(stream.record_event()?);
        Ok(())
    }
}
