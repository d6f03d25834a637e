//! CUDA graphs: a region of work is captured once and replayed many times, for the price of one launch.
//!
//! While a region is captured nothing runs. Its allocations come from a private pool ([`GraphPool`]), whose addresses stay
//! put for as long as a graph or a handle of the pool lives: a replay runs on the very addresses that were captured. So a
//! graph's inputs are written in place before a replay, and its outputs are read in place after it. Device memory that the
//! region uses but did not allocate is the caller's to keep; pinned memory that it copies from or to is kept by the graph.
//!
//! ```text
//! capture:  begin pool ─ begin capture ─ region's commands ─ end capture ─ end pool ─ instantiate
//! replay:   write inputs ─ launch on the current stream ─ read outputs
//! ```
//!
//! # Note: dropping a graph while a replay is under way
//! Nothing waits. The driver runs the launch to its end; the pool's segments are no one's but the pool's until they go
//! back to the driver, and that is behind all replays: the pool remembers their streams. Pinned memory has the streams of all replays recorded as
//! uses, so that its cache waits for them.
//!
//! # Note: several captures at once
//! Captures of different threads may overlap. The device is waited for only where no other capture is under way (waiting
//! would break that one), and each pool serves the streams of its own capture, which are told by the capture's number.
//! Captures of one thread do not nest.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;
use thalweg_device::check::UseKind;
use thalweg_device::{
    CaptureMode, Driver, GraphDescription, GraphExecHandle, GraphHandle, Label, StreamHandle,
};
use thalweg_memory::{PoolId, StreamFilter, StreamId, planted};

use crate::memory::from_allocation;
use crate::pinned::PinnedBlock;
use crate::stream::same_device;
use crate::{Device, Error, Result, Stream};

/// A private memory pool for captures (`torch.cuda.graph_pool_handle`). Graphs that share one may reuse each other's freed
/// memory, so replay them in the order of their capture. Clones are the same pool.
#[derive(Clone, Debug)]
pub struct GraphPool(Arc<PoolOwner>);

#[derive(Debug)]
struct PoolOwner {
    device: Device,
    id: PoolId,
    /// Where graphs of the pool were replayed.
    replayed_on: Mutex<SmallVec<[StreamId; 2]>>,
}

impl GraphPool {
    /// A new pool on a device.
    pub fn new(device: &Device) -> Self {
        let id = device.allocator().create_pool();
        // The graphs' pinned memory is in a pool of the same name.
        let retained = device.host_allocator().retain_pool(id);
        debug_assert!(retained.is_ok(), "a new name is not known: {retained:?}");
        Self(Arc::new(PoolOwner { device: device.clone(), id, replayed_on: Mutex::default() }))
    }

    /// The allocator's name of the pool.
    pub fn id(&self) -> PoolId {
        self.0.id
    }

    /// Work of this stream touches the pool's memory, and goes on when the graph is gone.
    fn was_replayed_on(&self, stream: StreamId) {
        let mut streams = self.0.replayed_on.lock().unwrap_or_else(PoisonError::into_inner);
        if !streams.contains(&stream) {
            streams.push(stream);
        }
    }
}

impl Drop for PoolOwner {
    fn drop(&mut self) {
        let streams = self.replayed_on.get_mut().unwrap_or_else(PoisonError::into_inner);
        let released = self.device.allocator().release_pool_behind(self.id, streams);
        debug_assert!(released.is_ok(), "a pool is released once: {released:?}");
        let host = self.device.host_allocator();
        let released = planted!(HostPoolNotReleased, host.release_pool(self.id), Ok(()));
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

/// A captured region, ready to be replayed. Dropping it waits for nothing; a replay that is under way runs to its end.
#[derive(Debug)]
pub struct Graph {
    exec: Executable,
    description: GraphDescription,
    /// Pinned memory that the captured copies use.
    pinned: Vec<Arc<PinnedBlock>>,
    pool: GraphPool,
}

/// The driver's executable graph.
struct Executable {
    device: Device,
    handle: GraphExecHandle,
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} on {}", self.handle, self.device)
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        // An executable that its driver no longer knows holds nothing.
        let _ = self.device.driver().graph_exec_destroy(self.handle);
    }
}

impl Graph {
    /// Captures what `region` submits to its current stream, and gives the graph with the region's result.
    ///
    /// *Blocks*: before it starts, all work of the device is waited for. Inside, anything that needs the host to wait is an
    /// error (reading a value back, say); run the region once beforehand so that its kernels are compiled. An error or a
    /// panic of the region ends the capture: the stream is usable and the pool is given back.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the stream is the default stream, or captures already, or this thread is inside
    /// another capture of the device (which goes on unharmed), or if pool and stream are not of this device.
    /// [`Error::is_capture`] if the region broke a rule of capture. The region's own error, as it is.
    pub fn capture<T>(
        device: &Device,
        options: CaptureOptions,
        region: impl FnOnce() -> Result<T>,
    ) -> Result<(Self, T)> {
        let CaptureOptions { pool, mode, stream } = options;
        if device.current_stream().is_capturing()? {
            return Err(Error::invalid(
                "graph capture: the current stream captures already, and captures do not nest; end the outer capture first",
            ));
        }
        let stream = match stream {
            Some(stream) => stream,
            None => Stream::new(device)?,
        };
        if stream.is_default() {
            return Err(Error::invalid(
                "graph capture: the default stream cannot capture; make a stream with `Stream::new` and capture there",
            ));
        }
        let pool = pool.unwrap_or_else(|| GraphPool::new(device));
        same_device("graph capture: the stream", device, stream.device())?;
        same_device("graph capture: the pool", device, &pool.0.device)?;
        if stream.is_capturing()? {
            return Err(Error::invalid(format!(
                "graph capture: {stream:?} captures already; capture on another stream"
            )));
        }
        let name = |error: Error| error.context("graph capture");
        let capture = Capture::begin(&stream, &pool, mode).map_err(name)?;
        let result = {
            let _current = stream.make_current();
            region()?
        };
        let (graph, pinned) = capture.end().map_err(name)?;
        let driver = device.driver();
        let built = driver
            .graph_describe(graph)
            .and_then(|description| Ok((description, driver.graph_instantiate(graph, device.index())?)));
        // The executable lives on. A handle that the driver gave a moment ago can be given back.
        let _ = driver.graph_destroy(graph);
        let (description, handle) = device.check(built).map_err(name)?;
        let exec = Executable { device: device.clone(), handle };
        let pool = planted!(GraphDropsPool, pool, GraphPool::new(device));
        Ok((Self { exec, description, pinned, pool }, result))
    }

    /// Queues the whole graph on the current stream.
    #[track_caller]
    pub fn replay(&self) -> Result<()> {
        let Executable { device, handle } = &self.exec;
        let stream = device.current_stream();
        let label = Label::here("graph replay");
        if let Some(instrument) = device.driver().instrument() {
            instrument.label_next(label);
        }
        stream.submit(label, || device.driver().graph_launch(*handle, stream.handle()))?;
        planted!(ReplayNotAwaited, self.pool.was_replayed_on(stream.id()), ());
        // The event comes when the memory is freed: one for all replays.
        let used = planted!(ReplayForgetsPinned, &self.pinned[..], &[]);
        used.iter().for_each(|block| block.record(&stream, UseKind::UntilFree, label));
        Ok(())
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

/// The captures of one device that are under way.
#[derive(Default)]
pub(crate) struct Captures {
    /// How many, to be asked without the lock.
    count: AtomicUsize,
    under_way: Mutex<Vec<UnderWay>>,
}

/// A capture, by its number, with the pinned memory that its copies use.
struct UnderWay {
    id: u64,
    pinned: Vec<Arc<PinnedBlock>>,
}

impl Captures {
    /// If the stream captures, its graph keeps the pinned memory.
    pub(crate) fn keep(&self, stream: &Stream, block: &Arc<PinnedBlock>) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let Ok(info) = stream.device().driver().stream_capture_info(stream.handle()) else { return };
        if let Some(capture) = self.lock().iter_mut().find(|capture| capture.id == info.id)
            && !capture.pinned.iter().any(|known| Arc::ptr_eq(known, block))
        {
            planted!(GraphForgetsPinned, capture.pinned.push(block.clone()), ());
        }
    }

    fn take(&self, id: u64) -> Vec<Arc<PinnedBlock>> {
        let mut under_way = self.lock();
        let Some(position) = under_way.iter().position(|capture| capture.id == id) else { return Vec::new() };
        self.count.fetch_sub(1, Ordering::Release);
        under_way.swap_remove(position).pinned
    }

    fn lock(&self) -> MutexGuard<'_, Vec<UnderWay>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A capture under way. Dropping it abandons the capture and leaves stream and allocator as they were.
struct Capture<'a> {
    stream: &'a Stream,
    pool: &'a GraphPool,
    /// The capture's number; 0 before it has begun.
    id: u64,
    /// The first command of the region.
    first_command: u64,
    open: bool,
}

impl<'a> Capture<'a> {
    fn begin(stream: &'a Stream, pool: &'a GraphPool, mode: CaptureMode) -> Result<Self> {
        let device = stream.device();
        let driver = device.driver();
        // Held until the capture has begun, so that no other one begins while the device is waited for.
        let mut under_way = device.captures().lock();
        if under_way.is_empty() {
            device.synchronize()?;
        }
        let id = Arc::new(AtomicU64::new(0));
        let filter = streams_of_capture(driver, &id);
        let named = |error| from_allocation(device, error);
        device.allocator().begin_allocate_to_pool(pool.id(), filter.clone()).map_err(named)?;
        if let Err(error) = device.host_allocator().begin_allocate_to_pool(pool.id(), filter) {
            let ended = device.allocator().end_allocate_to_pool(pool.id());
            debug_assert!(ended.is_ok(), "the scope was opened a moment ago: {ended:?}");
            return Err(named(error));
        }
        let mut capture =
            Self { stream, pool, id: 0, first_command: stream.state().next_command(), open: false };
        device.check(driver.stream_begin_capture(stream.handle(), mode))?;
        capture.open = true;
        capture.id = device.check(driver.stream_capture_info(stream.handle()))?.id;
        id.store(capture.id, Ordering::Release);
        under_way.push(UnderWay { id: capture.id, pinned: Vec::new() });
        device.captures().count.fetch_add(1, Ordering::Release);
        Ok(capture)
    }

    /// Ends the capture: the graph, and the pinned memory that it uses.
    fn end(mut self) -> Result<(GraphHandle, Vec<Arc<PinnedBlock>>)> {
        self.open = false;
        let device = self.stream.device();
        let graph = device.check(device.driver().stream_end_capture(self.stream.handle()))?;
        Ok((graph, device.captures().take(self.id)))
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
        if self.id != 0 {
            drop(device.captures().take(self.id));
        }
        self.stream.state().retract_from(self.first_command);
        let ended = device.host_allocator().end_allocate_to_pool(self.pool.id());
        debug_assert!(ended.is_ok(), "a capture ends what it began: {ended:?}");
        let allocator = device.allocator();
        let ended = planted!(CaptureNeverEnds, allocator.end_allocate_to_pool(self.pool.id()), Ok(()));
        debug_assert!(ended.is_ok(), "a capture ends what it began: {ended:?}");
    }
}

/// The streams that take part in the capture of this number.
fn streams_of_capture(driver: &Arc<dyn Driver>, id: &Arc<AtomicU64>) -> StreamFilter {
    let (driver, id) = (driver.clone(), id.clone());
    StreamFilter::Matching(Arc::new(move |stream: StreamId| {
        let id = id.load(Ordering::Acquire);
        let info = (id != 0).then(|| driver.stream_capture_info(StreamHandle::from_raw(stream.raw())));
        info.is_some_and(|info| info.is_ok_and(|info| info.id == id))
    }))
}
