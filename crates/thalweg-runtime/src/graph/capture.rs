//! A capture under way: what it opens, what it keeps, and how each of its ends leaves stream, allocator and pool usable.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thalweg_device::{CaptureMode, Driver, GraphHandle, StreamHandle};
use thalweg_memory::{StreamFilter, StreamId, planted};

use super::GraphPool;
use crate::memory::from_allocation;
use crate::pinned::PinnedBlock;
use crate::{Result, Stream};

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
pub(super) struct Capture<'a> {
    stream: &'a Stream,
    pool: &'a GraphPool,
    /// The capture's number; 0 before it has begun.
    id: u64,
    /// The first command of the region.
    first_command: u64,
    open: bool,
}

impl<'a> Capture<'a> {
    pub(super) fn begin(stream: &'a Stream, pool: &'a GraphPool, mode: CaptureMode) -> Result<Self> {
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
    pub(super) fn end(mut self) -> Result<(GraphHandle, Vec<Arc<PinnedBlock>>)> {
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
