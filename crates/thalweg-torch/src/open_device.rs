//! An open device: its allocator, and PyTorch's names of its streams and pools.

use std::sync::Arc;

use thalweg_driver::Label;
use thalweg_driver::cuda::CudaDriver;
use thalweg_driver::{BlockKind, UseKind};
use thalweg_lock::{Mutex, MutexGuard};
use thalweg_memory::{
    Block, CaptureScope, DeviceAllocator, PoolCheckpoint, PoolId, SharedMemory, StreamId, UpstreamError,
};
use thalweg_runtime::{Device, ExternalStream, invalid, refuse};

use crate::live::{Live, LiveBlocks};
use crate::pools::{PoolName, Pools};
use crate::status::{Error, Result};
use crate::streams::Streams;

/// A device that is open.
pub(crate) struct OpenDevice {
    pub(crate) index: u32,
    pub(crate) device: Device,
    pub(crate) streams: Streams,
    pub(crate) pools: Pools,
    /// The driver, if it is a real GPU.
    cuda: Option<Arc<CudaDriver>>,
    /// Memory of other processes that this process has closed, but that pending work may still read.
    closing: Mutex<Vec<Arc<SharedMemory>>>,
    /// The captures in progress, as the caller reported them.
    captures: Mutex<Vec<CaptureScope>>,
}

/// A state of a pool that can be restored. See [`PoolCheckpoint`].
pub struct Checkpoint {
    pub(crate) device: u32,
    pool: PoolId,
    state: PoolCheckpoint,
}

/// The effects of restoring a pool, by the addresses of blocks.
pub(crate) struct PutBack {
    pub(crate) freed: Vec<u64>,
    /// Addresses and sizes, in bytes, of the blocks that are live again.
    pub(crate) allocated: Vec<(u64, u64)>,
}

impl OpenDevice {
    pub(crate) fn new(index: u32, device: Device, cuda: Option<Arc<CudaDriver>>) -> Self {
        let (streams, pools) = (Streams::default(), Pools::default());
        Self { index, device, streams, pools, cuda, closing: Mutex::default(), captures: Mutex::default() }
    }

    /// Records that a capture begins.
    pub(crate) fn begin_capture(&self) {
        let capture = self.allocator().begin_capture();
        self.captures().push(capture);
    }

    /// Records that a capture has ended.
    pub(crate) fn end_capture(&self) -> Result<()> {
        let ended = self.captures().pop();
        ended.map(drop).ok_or_else(|| invalid!("no capture is under way"))
    }

    /// Returns whether the caller has reported a capture in progress.
    pub(crate) fn is_capturing(&self) -> bool {
        !self.captures().is_empty()
    }

    fn captures(&self) -> MutexGuard<'_, Vec<CaptureScope>> {
        self.captures.lock()
    }

    #[inline]
    pub(crate) fn allocator(&self) -> &Arc<DeviceAllocator> {
        self.device.allocator()
    }

    #[inline]
    pub(crate) fn stream(&self, cuda_stream: u64) -> Result<StreamId> {
        self.streams.id(&self.device, self.named(cuda_stream))
    }

    /// Resolves a `cudaStream_t`: for the default stream's handle it returns the default stream of the current green context, if
    /// there is one.
    #[inline]
    pub(crate) fn named(&self, cuda_stream: u64) -> ExternalStream {
        let cuda = self.cuda.as_ref().filter(|_| cuda_stream <= 1);
        // SAFETY: the header requires live streams of this device, and the driver checks the device. PyTorch's streams live as
        // long as the process. Streams that may not are transient, and are used only in calls that name them, like the current
        // context's default stream.
        unsafe {
            match cuda.and_then(|driver| driver.green_context(self.index)) {
                None => ExternalStream::new(cuda_stream),
                Some(context) => ExternalStream::default_of(context),
            }
        }
    }

    /// Marks the stream as transient: its owner may destroy it without notice.
    pub(crate) fn set_stream_transient(&self, cuda_stream: u64) -> Result<()> {
        self.streams.find_or_wrap(&self.device, self.named(cuda_stream))?.set_transient();
        Ok(())
    }

    /// Allocates a block for work on a CUDA stream, adds it to `live`, and returns its address.
    #[inline]
    pub(crate) fn allocate(&self, live: &LiveBlocks, bytes: u64, cuda_stream: u64) -> Result<u64> {
        let stream = self.stream(cuda_stream)?;
        let block = self.allocator().allocate(bytes, stream)?;
        Ok(self.hold(live, block))
    }

    /// Allocates at an exact address.
    pub(crate) fn allocate_at(
        &self,
        live: &LiveBlocks,
        address: u64,
        bytes: u64,
        cuda_stream: u64,
    ) -> Result<()> {
        let stream = self.stream(cuda_stream)?;
        let block = self.allocator().allocate_at(address, bytes, stream)?;
        self.hold(live, block);
        Ok(())
    }

    /// Adds a block to `live` for the caller, and returns its address; 0 for a null block, which is not added.
    #[inline]
    fn hold(&self, live: &LiveBlocks, block: Block) -> u64 {
        if block.is_null() {
            return 0;
        }
        let address = block.address();
        self.report_allocated(&block);
        let former = live.insert(Live { block, device: self.index });
        assert!(
            former.is_none_or(|former| former.block.is_revoked()),
            "two live blocks do not begin at one address"
        );
        address
    }

    #[inline]
    fn report_allocated(&self, block: &Block) {
        let Some(instrument) = self.device.driver().instrument() else { return };
        let stream = thalweg_driver::StreamHandle::from_raw(block.stream().raw());
        let label = Label::here("allocate");
        instrument.block_allocated(
            block.address(),
            block.requested_bytes(),
            BlockKind::Device,
            stream,
            label,
        );
    }

    /// Reports a free before the block is returned, because it may immediately be allocated again.
    #[inline]
    pub(crate) fn report_freed(&self, address: u64) {
        if let Some(instrument) = self.device.driver().instrument() {
            instrument.block_freed(address, None);
        }
    }

    /// Records a use on the default stream of the current green context. PyTorch does not distinguish that stream from the device's
    /// default stream, so freed memory may be in use there although no use was recorded.
    #[inline]
    pub(crate) fn note_green_use(&self, block: &Block) -> Result<()> {
        if !self.streams.has_green() {
            return Ok(());
        }
        let current = self.named(0);
        if current.context().is_none() {
            return Ok(());
        }
        self.record_on(block, self.streams.id(&self.device, current)?, UseKind::SoFar)
    }

    /// Records a use of a block on a stream of this device, which need not be the block's own.
    pub(crate) fn record(&self, block: &Block, cuda_stream: u64, kind: UseKind) -> Result<()> {
        let named = self.named(cuda_stream);
        let stream = self.streams.id(&self.device, named)?;
        if named.context().is_none() || kind == UseKind::SoFar {
            return self.record_on(block, stream, kind);
        }
        // The context may be destroyed before the block is freed. Later work in it is recorded if the block is freed before the
        // context is popped; after that the device's default stream waits for it.
        self.record_on(block, stream, UseKind::SoFar)?;
        // SAFETY: 0 is the default stream of every device.
        let default = self.streams.id(&self.device, unsafe { ExternalStream::new(0) })?;
        self.record_on(block, default, kind)
    }

    fn record_on(&self, block: &Block, stream: StreamId, kind: UseKind) -> Result<()> {
        match kind {
            UseKind::UntilFree => block.record_stream(stream),
            UseKind::SoFar => block.record_use(stream),
        }
        if let Some(instrument) = self.device.driver().instrument() {
            let stream = thalweg_driver::StreamHandle::from_raw(stream.raw());
            instrument.block_recorded(block.address(), stream, kind, Label::here("record"));
        }
        Ok(())
    }

    /// Removes a reference to a pool. A graph that was captured into it may still run, on a stream that was never named. With the
    /// last reference the pool's memory becomes free for others, so this waits for the device. Waiting would break a capture;
    /// then only the known streams are waited for.
    pub(crate) fn release_pool(&self, name: PoolName) -> Result<()> {
        let (id, allocator) = (self.pools.id(name)?, self.allocator());
        if allocator.pool_use_count(id) > 1 {
            return self.pools.release(allocator, name);
        }
        if self.is_capturing() || self.device.synchronize().is_err() {
            allocator.retain_pool(id)?;
            allocator.release_pool_after(id, &self.streams.ids())?;
        }
        self.pools.release(allocator, name)
    }

    /// Closes another process's memory. PyTorch closes it before the work that reads it is done, and names no streams, so this
    /// waits for the device before the last holder unmaps it. That would break a capture in progress; then the memory stays until
    /// the next is closed.
    pub(crate) fn close_shared(&self, memory: Arc<SharedMemory>) {
        let Some(memory) = self.allocator().retire_shared(memory) else { return };
        let mut closing = self.closing.lock();
        closing.push(memory);
        if !self.is_capturing() && self.device.synchronize().is_ok() {
            closing.clear();
        }
    }

    pub(crate) fn checkpoint(&self, name: PoolName) -> Result<Checkpoint> {
        let pool = self.pools.id(name)?;
        let state = self.allocator().checkpoint_pool(pool)?;
        Ok(Checkpoint { device: self.index, pool, state })
    }

    /// Restores a pool to a checkpoint. The pool's live blocks are removed from `live`, and those that are live in the checkpoint
    /// are added.
    pub(crate) fn restore(&self, live: &LiveBlocks, checkpoint: &Checkpoint) -> Result<PutBack> {
        if checkpoint.device != self.index {
            let of = checkpoint.device;
            refuse!("a checkpoint of device {of} was given for device {}", self.index);
        }
        let restored = self.allocator().restore_pool(checkpoint.pool, &checkpoint.state)?;
        for address in &restored.freed {
            self.report_freed(*address);
            drop(live.remove_if(*address, |live| live.block.is_revoked()));
        }
        let mut allocated = Vec::with_capacity(restored.allocated.len());
        for block in restored.allocated {
            allocated.push((block.address(), block.requested_bytes()));
            self.report_allocated(&block);
            drop(live.insert(Live { block, device: self.index }));
        }
        Ok(PutBack { freed: restored.freed, allocated })
    }

    /// Returns the largest request that could be served without releasing cached memory: from the driver's free memory, within
    /// the memory fraction, or from the largest free block (`cacheInfo`).
    pub(crate) fn largest_free_bytes(&self) -> Result<u64> {
        let allocator = self.allocator();
        let info = self.device.driver().memory_info(self.device.index())?;
        let allowed = allocator.settings().allowed_bytes(info.total_bytes);
        let reserved = allocator.statistics().reserved_bytes.all.current;
        let room = allowed.map_or(u64::MAX, |allowed| allowed.saturating_sub(reserved));
        let free = allocator.snapshot().into_iter().flat_map(|segment| segment.blocks);
        let cached = free
            .filter(|block| block.state == thalweg_memory::BlockState::Inactive)
            .map(|block| block.size_bytes)
            .max();
        Ok(info.free_bytes.min(room).max(cached.unwrap_or(0)))
    }
}

/// A source of segments for one pool, from the caller's function.
pub(crate) struct CallerSource {
    pub(crate) allocate: Box<dyn Fn(u64, u64) -> u64 + Send + Sync>,
    pub(crate) free: Box<dyn Fn(u64, u64, u64) + Send + Sync>,
    pub(crate) cuda_stream_of: Box<dyn Fn(StreamId) -> u64 + Send + Sync>,
}

impl thalweg_memory::SegmentSource for CallerSource {
    fn allocate(&self, bytes: u64, stream: StreamId) -> std::result::Result<u64, UpstreamError> {
        match (self.allocate)(bytes, (self.cuda_stream_of)(stream)) {
            0 => Err(UpstreamError::OutOfMemory),
            address => Ok(address),
        }
    }

    fn free(&self, address: u64, bytes: u64, stream: StreamId) -> std::result::Result<(), UpstreamError> {
        (self.free)(address, bytes, (self.cuda_stream_of)(stream));
        Ok(())
    }
}
