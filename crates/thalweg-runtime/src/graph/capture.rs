//! The beginning of a capture, and its possible ends, each of which leaves stream, allocator and pool usable.

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use thalweg_driver::{CaptureMode, Code, Label, StreamHandle};
use thalweg_lock::Mutex;
use thalweg_memory::{Backend, StreamFilter, StreamId};

use super::branches::Branches;
use super::captured::{CapturedGraph, Content, Template};
use super::captures::{Ids, UnderWay};
use super::contract::InputKind;
use super::footprint::{Footprint, Traces};
use super::members::OverwritePolicy;
use super::report::GraphMemory;
use super::steps::Steps;
use super::{GraphPool, REGION};
use crate::deferred::queue_deferred;
use crate::device::from_allocation;
use crate::stream::same_device;
use crate::{Device, Error, Result, Stream};
use crate::{invalid, refuse, refuse_if};

/// The options with which a region is captured.
#[derive(Clone, Debug, Default)]
pub struct CaptureOptions {
    /// The pool that the region allocates from. If `None`, the capture gets a pool of its own: a new one, or the remaining memory
    /// of the pool of a dropped graph.
    pub pool: Option<GraphPool>,
    /// The policy of the pool that is made if `pool` is `None`.
    pub policy: OverwritePolicy,
    /// The calls of other threads that the capture forbids.
    pub mode: CaptureMode,
    /// The stream that captures. If `None`, a stream that the device keeps for captures, or another one if that stream is
    /// capturing. Never the default stream.
    pub stream: Option<Stream>,
}

/// A capture under way: the work that is submitted to its [stream](Self::stream), and to streams that join it, becomes a graph.
///
/// [`end`](Self::end) returns the graph. Dropping the capture abandons it: the stream is usable, and the pool is released. So a
/// capture is in one of three states, and each is a type of its own: a [`Capture`] cannot be replayed, a [`CapturedGraph`] cannot
/// be captured into, and only a [`Graph`](super::Graph) can be launched. A capture stays on the thread that began it, because
/// CUDA requires that the same thread ends it.
///
/// ```compile_fail
/// # fn f(capture: thalweg_runtime::graph::Capture) -> thalweg_runtime::Result<()> {
/// let graph = capture.end()?;
/// capture.end()?; // a capture ends once
/// # Ok(()) }
/// ```
///
/// ```compile_fail
/// # fn f(capture: thalweg_runtime::graph::Capture) -> thalweg_runtime::Result<()> {
/// capture.replay()?; // nothing can be replayed before the end
/// # Ok(()) }
/// ```
///
/// ```compile_fail
/// # fn f(capture: thalweg_runtime::graph::Capture) {
/// std::thread::spawn(move || capture.end()); // it stays on its thread
/// # }
/// ```
#[must_use = "a capture that is dropped is abandoned"]
pub struct Capture {
    stream: Stream,
    pool: GraphPool,
    /// The capture's number; 0 before it has begun.
    id: u64,
    open: bool,
    reserved_before_bytes: u64,
    _not_send: PhantomData<*const ()>,
}

impl Capture {
    pub(super) fn begin(device: &Device, options: CaptureOptions) -> Result<Self> {
        queue_deferred(Label::here("capture"))?;
        check(device, &options)?;
        Self::open(device, options).map_err(|error| error.context(REGION))
    }

    fn open(device: &Device, options: CaptureOptions) -> Result<Self> {
        let driver = device.driver();
        // Held until the capture has begun, so that no other capture begins while the device is waited for.
        let mut under_way = device.captures().lock();
        let thread = std::thread::current().id();
        if under_way.iter().any(|capture| capture.thread == thread) {
            return Err(nested());
        }
        let is_alone = under_way.is_empty();
        if is_alone {
            device.synchronize()?;
        }
        let CaptureOptions { pool, policy, mode, stream } = options;
        let pool = match pool {
            Some(shared) => {
                device.allocator().keep_pool_in_place(shared.id());
                shared
            }
            None => GraphPool::of_one_graph(device, policy, is_alone),
        };
        let stream = &match stream {
            Some(stream) => stream,
            None => free_stream(device)?,
        };
        let reserved_before_bytes = pool.reserved_bytes();
        let ids = Ids::default();
        let questions = Arc::default();
        let filter = streams_of_capture(stream, &ids, &questions);
        let named = |error| from_allocation(device, error);
        device.allocator().begin_allocate_to_pool(pool.id(), filter.clone()).map_err(named)?;
        if let Err(error) = device.host_allocator().begin_allocate_to_pool(pool.id(), filter) {
            let ended = device.allocator().end_allocate_to_pool(pool.id());
            debug_assert!(ended.is_ok(), "the scope was opened a moment ago: {ended:?}");
            return Err(named(error));
        }
        let mut capture = Self {
            stream: stream.clone(),
            pool: pool.clone(),
            id: 0,
            open: false,
            reserved_before_bytes,
            _not_send: PhantomData,
        };
        device.check(driver.stream_begin_capture(stream.handle(), mode))?;
        capture.open = true;
        let info = device.check(driver.stream_capture_info(stream.handle()))?;
        capture.id = info.id;
        ids.lock().push(info.id);
        let own = device.clone();
        let pool_of_one_graph = Box::new(move |id| own.captures().pool_of_one_graph(id));
        under_way.push(UnderWay {
            ids,
            thread,
            mode,
            body_streams: Vec::new(),
            broken: None,
            pool: pool.clone(),
            branches: Branches::default(),
            steps: Steps::default(),
            footprint: Footprint::new(device.allocator(), pool.id(), pool_of_one_graph),
            pinned: Vec::new(),
            upkeeps: Vec::new(),
            questions,
        });
        device.captures().count.fetch_add(1, Ordering::Release);
        drop(under_way);
        Ok(capture)
    }

    /// Returns the stream that captures. Make it current, or submit to it.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Returns the pool that the capture allocates from.
    pub fn pool(&self) -> &GraphPool {
        &self.pool
    }

    /// Ends the capture and keeps the graph.
    ///
    /// # Errors
    /// [`Error::is_capture`] if a rule of capture was broken. For a stream that was forked and not joined, the error names the
    /// stream, its last command, and the missing wait. In any case the capture is over, and its streams are usable.
    pub fn end(self) -> Result<CapturedGraph> {
        self.close().map_err(|error| error.context(REGION))
    }

    fn close(mut self) -> Result<CapturedGraph> {
        queue_deferred(Label::here("end of a capture"))?;
        let device = self.stream.device().clone();
        let driver = device.driver();
        let captures = device.captures();
        let mut broken = None;
        captures.note(&self.stream, |capture, end| {
            capture.steps.ended(&end.dependencies);
            broken = capture.broken.take();
        });
        if let Some(why) = broken {
            return Err(Error::capture(format!(
                "a part of the region failed, and no graph comes of it: {why}"
            )));
        }
        let unjoined = captures.unjoined(&self.stream, self.id);
        self.open = false;
        let ended = device.check(driver.stream_end_capture(self.stream.handle()));
        let handle = ended.map_err(|error| explain(error, unjoined))?;
        let template = Arc::new(Template::new(&device, handle));
        let UnderWay { ids, steps, footprint, pinned, upkeeps, questions, .. } =
            captures.take(self.id).expect("it is under way until it is taken here, or dropped");
        upkeeps.iter().for_each(|(_, upkeep)| upkeep.captured());
        // No stream takes part any more.
        ids.lock().clear();
        let Traces { mut contract, kept, written, left, occupied_bytes, allocated_bytes } =
            footprint.finish();
        // The stream-ordered allocator puts nodes of its own into a capture.
        let is_watched = device.allocator().settings().backend() == Backend::Native;
        contract.has_undeclared = is_watched && steps.has_undeclared();
        let memory = GraphMemory {
            reserved_before_bytes: self.reserved_before_bytes,
            reserved_after_bytes: self.pool.reserved_bytes(),
            allocated_bytes,
            occupied_bytes,
            output_bytes: contract.outputs().iter().map(|output| output.size_bytes).sum(),
            input_bytes: contract.inputs().iter().map(|input| input.size_bytes).sum(),
            pinned_bytes: pinned.iter().map(|block| block.size_bytes()).sum(),
        };
        let pool = self.pool.clone();
        let reads =
            kept.iter().flat_map(|pool| pool.members().reads(&contract, InputKind::OtherPool)).collect();
        let member = pool.members().join(&contract, reads, written, left, memory);
        let content = Content {
            device,
            template,
            questions: questions.load(Ordering::Relaxed),
            steps,
            description: OnceLock::new(),
            contract,
            member,
            pinned,
            upkeeps,
            replayed_on: Mutex::default(),
            pool,
            kept,
        };
        Ok(CapturedGraph { content: Arc::new(content) })
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let device = self.stream.device();
        if self.open {
            // Work that was deferred in the region is not to be queued after it.
            let _ = queue_deferred(Label::here("end of a capture"));
        }
        if self.open
            && let Ok(graph) = device.driver().stream_end_capture(self.stream.handle())
        {
            let _ = device.driver().graph_destroy(graph);
        }
        if self.id != 0 {
            drop(device.captures().take(self.id));
        }
        let ended = device.host_allocator().end_allocate_to_pool(self.pool.id());
        debug_assert!(ended.is_ok(), "a capture ends what it began: {ended:?}");
        let allocator = device.allocator();
        let ended = allocator.end_allocate_to_pool(self.pool.id());
        debug_assert!(ended.is_ok(), "a capture ends what it began: {ended:?}");
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Capture({} on {:?}, into {:?})", self.id, self.stream, self.pool.id())
    }
}

/// Returns an error of the end of a capture, with the streams that were not joined if they are the cause.
pub(super) fn explain(error: Error, unjoined: Option<String>) -> Error {
    let code = error.driver_error().map(thalweg_driver::Error::code);
    let unjoined = unjoined.filter(|_| code == Some(Code::StreamCaptureUnjoined));
    unjoined.into_iter().fold(error, Error::context)
}

/// Checks whether a capture can begin with the options.
fn check(device: &Device, options: &CaptureOptions) -> Result<()> {
    if device.current_stream().is_capturing()? {
        return Err(nested().context(REGION));
    }
    if let Some(pool) = &options.pool {
        same_device("graph capture: the pool", device, pool.device())?;
    }
    let Some(stream) = &options.stream else { return Ok(()) };
    refuse_if!(
        stream.is_default(),
        "graph capture: the default stream cannot capture; make a stream with `Stream::new` and capture there"
    );
    same_device("graph capture: the stream", device, stream.device())?;
    if stream.is_capturing()? {
        refuse!("graph capture: {stream:?} captures already; capture on another stream");
    }
    Ok(())
}

/// Returns the device's stream for captures, or another one if that stream is capturing.
fn free_stream(device: &Device) -> Result<Stream> {
    let stream = Stream::for_captures(device)?;
    if stream.is_capturing()? { Stream::new(device) } else { Ok(stream) }
}

fn nested() -> Error {
    invalid!("this thread captures already, and captures do not nest; end the outer capture first")
}

/// Returns a filter for the streams that take part in the captures with these numbers. Makes no call of the driver for the
/// origin.
fn streams_of_capture(origin: &Stream, ids: &Ids, questions: &Arc<AtomicU64>) -> StreamFilter {
    let (driver, origin) = (origin.device().driver().clone(), origin.id());
    let (ids, questions) = (ids.clone(), questions.clone());
    StreamFilter::Matching(Arc::new(move |stream: StreamId| {
        let ids = ids.lock();
        if ids.is_empty() || stream == origin {
            return !ids.is_empty();
        }
        questions.fetch_add(1, Ordering::Relaxed);
        let info = driver.stream_capture_info(StreamHandle::from_raw(stream.raw()));
        info.is_ok_and(|info| ids.contains(&info.id))
    }))
}
