//! Copies between the device and ordinary host memory, through [staging memory](crate::cuda::staging).

use std::collections::VecDeque;

use crate::command::Label;
use crate::cuda::context::Device;
use crate::cuda::objects::Stream;
use crate::cuda::staging::{Block, LARGE_BYTES};
use crate::cuda::state::CudaDriver;
use crate::cuda::sys;
use crate::{Code, DevicePointer, Error, Result, StreamHandle};

impl CudaDriver {
    pub(in crate::cuda) fn copy_from_host(
        &self,
        stream: StreamHandle,
        target: DevicePointer,
        source: &[u8],
        label: Label,
    ) -> Result<()> {
        let call = "cuMemcpyHtoDAsync";
        let stream = self.streams.get(stream.raw(), call)?;
        let device = self.submit_on(&stream)?;
        self.check_not_capturing(&stream, label)?;
        self.check_device_range(target.address(), source.len() as u64, call)?;
        let _relaxed = self.cuda.relaxed();
        let mut address = target.address();
        for part in source.chunks(LARGE_BYTES as usize) {
            let bytes = part.len() as u64;
            let mut block = device.staging.acquire(&self.cuda, bytes)?;
            block.memory.write(0, part);
            let from = block.memory.pointer().cast_const();
            // SAFETY: the block contains `bytes` at `from` and is not used until the event reports that the copy is done;
            // the target is device memory.
            let outcome = unsafe { self.cuda.table.copy_to_device(address, from, part.len(), stream.raw) };
            let queued = self
                .cuda
                .check(outcome, || format!("{bytes} bytes to {address:#x}, for {label}"))
                .and_then(|()| block.record(&self.cuda, &stream));
            if let Err(error) = queued {
                device.staging.abandon(&block);
                return Err(error);
            }
            device.staging.put_back(block);
            address += bytes;
        }
        Ok(())
    }

    pub(in crate::cuda) fn copy_to_host(
        &self,
        stream: StreamHandle,
        target: &mut [u8],
        source: DevicePointer,
        label: Label,
    ) -> Result<()> {
        let call = "cuMemcpyDtoHAsync";
        let stream = self.streams.get(stream.raw(), call)?;
        let device = self.submit_on(&stream)?;
        self.check_not_capturing(&stream, label)?;
        self.check_device_range(source.address(), target.len() as u64, call)?;
        let _relaxed = self.cuda.relaxed();
        let mut address = source.address();
        // Two blocks at a time: the host empties one while the engine fills the other.
        let mut flying: VecDeque<(Block, &mut [u8])> = VecDeque::new();
        for part in target.chunks_mut(LARGE_BYTES as usize) {
            if flying.len() == 2
                && let Some((block, part)) = flying.pop_front()
            {
                self.land(device, block, part)?;
            }
            let mut block = device.staging.acquire(&self.cuda, part.len() as u64)?;
            let to = block.memory.pointer();
            // SAFETY: the block has room for the part and is not used until its event reports that the copy is done; the
            // source is device memory.
            let outcome = unsafe { self.cuda.table.copy_to_host(to, address, part.len(), stream.raw) };
            let queued = self
                .cuda
                .check(outcome, || format!("{} bytes from {address:#x}, for {label}", part.len()))
                .and_then(|()| block.record(&self.cuda, &stream));
            if let Err(error) = queued {
                device.staging.abandon(&block);
                return Err(error);
            }
            address += part.len() as u64;
            flying.push_back((block, part));
        }
        for (block, part) in flying {
            self.land(device, block, part)?;
        }
        device.fault.check()
    }

    /// Waits for a block and copies its contents.
    fn land(&self, device: &Device, mut block: Block, part: &mut [u8]) -> Result<()> {
        if let Err(error) = block.wait(&self.cuda) {
            device.staging.abandon(&block);
            return Err(error);
        }
        block.in_flight = false;
        block.memory.read(0, part);
        device.staging.put_back(block);
        Ok(())
    }

    /// Refuses ordinary memory in a graph: if the stream captures, breaks the capture and returns the error.
    fn check_not_capturing(&self, stream: &Stream, label: Label) -> Result<()> {
        if self.capture_status(stream, "cuStreamIsCapturing")? == sys::CAPTURE_NONE {
            return Ok(());
        }
        // SAFETY: the stream is looked up. On a capturing stream this fails, and breaks the capture, as the contract says.
        let outcome = unsafe { self.cuda.table.stream_synchronize(stream.raw) };
        let detail = format!(
            "{label} copies ordinary host memory on a stream that captures; copy to pinned memory instead, or before the \
             capture"
        );
        self.cuda.check(outcome, || detail.clone())?;
        Err(Error::new(Code::StreamCaptureUnsupported, "cuMemcpyAsync", detail))
    }
}
