//! Copies between the device and ordinary host memory.
//!
//! The driver never sees a caller's slice. Given one, it may go on using it after the call (when the memory is pinned
//! without our knowledge, when a capture turns the copy into a node that is replayed), and Rust would have freed or passed
//! it elsewhere by then. Bytes go through blocks of pinned memory of our own: the host copies to or from a block while no
//! work uses it, the copy engine does the rest, and an event says when the block is free again.
//!
//! Small copies to the device take a small block each and never wait. Large ones pass through a few large blocks, the host
//! filling one while the engine empties another, and wait when all of them are in flight.

use std::collections::VecDeque;
use std::sync::Mutex;

use super::context::{Cuda, Device};
use super::driver::CudaDriver;
use super::handles::lock;
use super::pinned::PinnedBlock;
use super::stream::Stream;
use super::sys::{self, RawEvent};
use crate::command::Label;
use crate::{Code, DevicePointer, Error, Result, StreamHandle};

/// Copies of up to so many bytes never wait for the device.
const SMALL_BYTES: u64 = 64 << 10;
const LARGE_BYTES: u64 = 4 << 20;
/// Large blocks of a device at most.
const LARGE_BLOCKS: usize = 4;

/// A block of pinned memory and the event that says when its last copy is done.
struct Block {
    memory: PinnedBlock,
    event: RawEvent,
    in_flight: bool,
}

/// Blocks of one size.
#[derive(Default)]
struct Shelf {
    /// Those that no call holds, the longest unused first.
    blocks: VecDeque<Block>,
    /// All that exist.
    count: usize,
}

/// The staging memory of one device. It is kept until the process ends.
#[derive(Default)]
pub(super) struct Staging {
    small: Mutex<Shelf>,
    large: Mutex<Shelf>,
}

impl Staging {
    const fn shelf(&self, bytes: u64) -> &Mutex<Shelf> {
        if bytes <= SMALL_BYTES { &self.small } else { &self.large }
    }

    /// Returns a block that no work uses, for `bytes` or the largest part of it.
    fn acquire(&self, cuda: &Cuda, bytes: u64) -> Result<Block> {
        let small = bytes <= SMALL_BYTES;
        let candidate = {
            let mut shelf = lock(self.shelf(bytes));
            match shelf.blocks.front().map(|block| block.is_done(cuda)) {
                Some(Ok(false)) if small || shelf.count < LARGE_BLOCKS => None,
                Some(_) => shelf.blocks.pop_front(),
                None => None,
            }
        };
        if let Some(mut block) = candidate {
            match block.wait(cuda) {
                Ok(()) => {
                    block.in_flight = false;
                    return Ok(block);
                }
                Err(_) => self.abandon(&block),
            }
        }
        let block = Block::new(cuda, if small { SMALL_BYTES } else { LARGE_BYTES })?;
        lock(self.shelf(bytes)).count += 1;
        Ok(block)
    }

    fn put_back(&self, block: Block) {
        lock(self.shelf(block.memory.bytes())).blocks.push_back(block);
    }

    /// Leaves a block to itself for ever: what uses it is not known. (Dropping one gives nothing back to the driver.)
    fn abandon(&self, block: &Block) {
        let mut shelf = lock(self.shelf(block.memory.bytes()));
        shelf.count = shelf.count.saturating_sub(1);
    }
}

impl Block {
    fn new(cuda: &Cuda, bytes: u64) -> Result<Self> {
        let mut event = RawEvent::default();
        // SAFETY: writes one handle.
        let outcome = unsafe { cuda.table.event_create(&raw mut event, sys::EVENT_DISABLE_TIMING) };
        cuda.check(outcome, || "an event for staging memory".to_owned())?;
        Ok(Self { memory: PinnedBlock::allocate(cuda, bytes, false)?, event, in_flight: false })
    }

    fn is_done(&self, cuda: &Cuda) -> Result<bool> {
        if !self.in_flight {
            return Ok(true);
        }
        // SAFETY: the event is this block's own.
        let outcome = unsafe { cuda.table.event_query(self.event) };
        if outcome.status == Code::NotReady.number() {
            return Ok(false);
        }
        cuda.check(outcome, || "staging memory".to_owned()).map(|()| true)
    }

    fn wait(&self, cuda: &Cuda) -> Result<()> {
        if !self.in_flight {
            return Ok(());
        }
        // SAFETY: the event is this block's own.
        let outcome = unsafe { cuda.table.event_synchronize(self.event) };
        cuda.check(outcome, || "staging memory".to_owned())
    }

    /// Marks the place on the stream after which the block is free.
    fn record(&mut self, cuda: &Cuda, stream: &Stream) -> Result<()> {
        // SAFETY: the event is this block's own, the stream is looked up.
        let outcome = unsafe { cuda.table.event_record(self.event, stream.raw) };
        cuda.check(outcome, || "staging memory".to_owned())?;
        self.in_flight = true;
        Ok(())
    }
}

impl CudaDriver {
    pub(super) fn copy_from_host(
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
            // SAFETY: the block holds `bytes` at `from` and is left alone until the event says that the copy is done;
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

    pub(super) fn copy_to_host(
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
            // SAFETY: the block has room for the part and is left alone until its event says that the copy is done; the
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

    /// Waits for a block and copies what it holds.
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

    /// Refuses ordinary memory in a graph: returns the error, and the end of the capture, if the stream captures.
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
