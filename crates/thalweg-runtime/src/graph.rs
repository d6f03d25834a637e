//! CUDA graphs: a region of work is captured once and replayed many times, for the price of one launch.
//!
//! While a region is captured nothing runs. Its allocations come from a private pool ([`GraphPool`]), whose addresses stay
//! put for as long as a graph or a handle of the pool lives: a replay runs on the very addresses that were captured. So a
//! graph's inputs are written in place before a replay, and its outputs are read in place after it.
//!
//! ```text
//! capture:  begin pool ─ begin capture ─ region's commands ─ end capture ─ end pool ─ instantiate
//! replay:   write inputs ─ launch on the current stream ─ read outputs
//! ```

use std::sync::{Arc, Mutex, PoisonError};

use thalweg_device::{CaptureMode, CaptureStatus, GraphDescription, GraphExecHandle, GraphHandle, Label, StreamHandle};
use thalweg_memory::{PoolId, StreamFilter};

use crate::memory::from_allocation;
use crate::{Device, Error, Result, Stream};

/// A private memory pool for captures (`torch.cuda.graph_pool_handle`). Graphs that share one may reuse each other's freed
/// memory, so replay them in the order of their capture. Clones are the same pool.
#[derive(Clone, Debug)]
pub struct GraphPool(Arc<PoolOwner>);

#[derive(Debug)]
struct PoolOwner {
    device: Device,
    id: PoolId,
}

impl GraphPool {
    /// A new pool on a device.
    pub fn new(device: &Device) -> Self {
        Self(Arc::new(PoolOwner { device: device.clone(), id: device.allocator().create_pool() }))
    }

    /// The allocator's name of the pool.
    pub fn id(&self) -> PoolId {
        self.0.id
    }
}

impl Drop for PoolOwner {
    fn drop(&mut self) {
        let released = self.device.allocator().release_pool(self.id);
        debug_assert!(released.is_ok(), "a pool is released once: {released:?}");
    }
}

/// How a region is captured.
#[derive(Clone, Debug, Default)]
pub struct CaptureOptions {
    /// The pool that the region allocates from; a new one where there is none.
    pub pool: Option<GraphPool>,
    /// Which calls of other threads the capture forbids.
    pub mode: CaptureMode,
    /// The stream that captures; one of the pool where there is none. Never the default stream.
    pub stream: Option<Stream>,
}

/// A captured region, ready to be replayed.
#[derive(Debug)]
pub struct Graph {
    device: Device,
    pool: GraphPool,
    description: GraphDescription,
    exec: Mutex<GraphExecHandle>,
}

impl Graph {
    /// Captures what `region` submits to its current stream, and gives the graph with the region's result.
    ///
    /// Before it starts, all work of the device is waited for. Inside, anything that needs the host to wait is an error
    /// (reading a value back, say); run the region once beforehand so that its kernels are compiled. An error or a panic of
    /// the region ends the capture: the stream is usable and the pool is given back.
    pub fn capture<T>(
        device: &Device,
        options: CaptureOptions,
        region: impl FnOnce() -> Result<T>,
    ) -> Result<(Self, T)> {
        let stream = match options.stream {
            Some(stream) => stream,
            None => Stream::new(device)?,
        };
        if stream.is_default() {
            return Err(Error::invalid(
                "the default stream cannot capture: make a stream with `Stream::new` and capture there",
            ));
        }
        let pool = options.pool.unwrap_or_else(|| GraphPool::new(device));
        if pool.0.device != *device || stream.device() != device {
            return Err(Error::invalid(format!("the pool and the stream of a capture on {device} must be on {device}")));
        }
        device.synchronize()?;
        let capture = Capture::begin(&stream, &pool, options.mode)?;
        let result = {
            let _current = stream.make_current();
            region()?
        };
        let graph = capture.end()?;
        let driver = device.driver();
        let built = driver
            .graph_describe(graph)
            .and_then(|description| Ok((description, driver.graph_instantiate(graph, device.index())?)));
        driver.graph_destroy(graph)?;
        let (description, exec) = device.check(built)?;
        Ok((Self { device: device.clone(), pool, description, exec: Mutex::new(exec) }, result))
    }

    /// Queues the whole graph on the current stream.
    #[track_caller]
    pub fn replay(&self) -> Result<()> {
        let stream = self.device.current_stream();
        let exec = *self.exec.lock().unwrap_or_else(PoisonError::into_inner);
        stream.submit(Label::here("graph replay"), || self.device.driver().graph_launch(exec, stream.handle()))
    }

    /// The pool that the graph's memory is in.
    pub fn pool(&self) -> &GraphPool {
        &self.pool
    }

    /// Nodes and edges as they were captured.
    pub fn description(&self) -> &GraphDescription {
        &self.description
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let exec = *self.exec.get_mut().unwrap_or_else(PoisonError::into_inner);
        // A launch that is under way runs to its end; the pool's addresses must outlive it.
        let _ = self.device.driver().device_synchronize(self.device.index());
        let _ = self.device.driver().graph_exec_destroy(exec);
    }
}

/// A capture under way. Dropping it abandons the capture and leaves stream and allocator as they were.
struct Capture<'a> {
    stream: &'a Stream,
    pool: &'a GraphPool,
    open: bool,
}

impl<'a> Capture<'a> {
    fn begin(stream: &'a Stream, pool: &'a GraphPool, mode: CaptureMode) -> Result<Self> {
        let device = stream.device();
        let driver = device.driver().clone();
        let capturing = move |id: thalweg_memory::StreamId| {
            driver
                .stream_capture_info(StreamHandle::from_raw(id.raw()))
                .is_ok_and(|info| info.status != CaptureStatus::None)
        };
        device
            .allocator()
            .begin_allocate_to_pool(pool.id(), StreamFilter::Matching(Arc::new(capturing)))
            .map_err(|error| from_allocation(device, error))?;
        device.host_allocator().begin_capture();
        let mut capture = Self { stream, pool, open: false };
        device.check(device.driver().stream_begin_capture(stream.handle(), mode))?;
        capture.open = true;
        Ok(capture)
    }

    fn end(mut self) -> Result<GraphHandle> {
        self.open = false;
        let device = self.stream.device();
        device.check(device.driver().stream_end_capture(self.stream.handle()))
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        let device = self.stream.device();
        if self.open
            && let Ok(graph) = device.driver().stream_end_capture(self.stream.handle())
        {
            let _ = device.driver().graph_destroy(graph);
        }
        device.host_allocator().end_capture();
        let ended = device.allocator().end_allocate_to_pool(self.pool.id());
        debug_assert!(ended.is_ok(), "a capture ends what it began: {ended:?}");
    }
}
