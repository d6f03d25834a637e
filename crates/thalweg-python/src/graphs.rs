//! Captured graphs, for `thalweg.cuda`.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pyo3::exceptions::{PyIndexError, PyUserWarning};
use pyo3::prelude::*;
use thalweg::driver::CaptureMode;
use thalweg::graph::Capture;
use thalweg::runtime::graph::{CapturedGraph, OverwritePolicy};
use thalweg::{CaptureOptions, Graph, GraphPool, Stream};
use thalweg_lock::Mutex;

use crate::cuda::{PyStream, stream_or_current};
use crate::device::or_current;
use crate::failure::{exception, left_out, run, runtime, value_error};
use crate::generator::PyGenerator;
use crate::lines::{Reader, noted, run_before};
use crate::memory::_MemPool;
use crate::regions::{Current, Owner, enter, leave};

thread_local! {
    /// The captures that this thread has begun and not yet ended.
    static CAPTURES: RefCell<Vec<UnderWay>> = const { RefCell::new(Vec::new()) };
}

/// A capture in progress.
struct UnderWay {
    /// The number of its graph.
    graph: u64,
    capture: Capture,
    /// Weak references to optimizers whose steps were captured.
    optimizers: Vec<Py<PyAny>>,
    /// Keeps Python lines in labels during the capture, so that a replay that is refused later can name them.
    _reader: Reader,
}

/// The numbers of graphs that were dropped while another thread captured into them.
static ABANDONED: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// Whether [`ABANDONED`] is not empty.
static ANY_ABANDONED: AtomicBool = AtomicBool::new(false);

/// A captured graph (`torch.cuda.CUDAGraph`).
#[pyclass(name = "CUDAGraph", module = "thalweg.cuda", subclass, frozen)]
struct PyGraph {
    /// The unique number of the graph.
    number: u64,
    /// Whether a thread is capturing into the graph.
    is_captured_into: AtomicBool,
    graph: Mutex<Option<Graph>>,
    pool: Mutex<Option<GraphPool>>,
    /// The captured graph, if it is kept.
    captured: Mutex<Option<CapturedGraph>>,
    keeps: AtomicBool,
    /// Weak references to the optimizers whose steps are in the graph. They update their learning rates on the device before a
    /// replay.
    optimizers: Mutex<Vec<Py<PyAny>>>,
}

/// The memory pool of graphs.
#[pyclass(module = "thalweg.cuda", frozen)]
pub struct _GraphPool(pub GraphPool);

/// The sequence protocol: to programs the pool looks like the pair that a pool's `id` is.
#[pymethods]
impl _GraphPool {
    fn __len__(&self) -> usize {
        2
    }

    fn __getitem__(&self, place: isize) -> PyResult<u64> {
        match place {
            0 | -2 => Ok(0),
            1 | -1 => Ok(self.0.id().raw()),
            _ => Err(PyIndexError::new_err("a pool's id is a pair")),
        }
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        match other.cast::<Self>() {
            Ok(other) => other.get().0.id() == self.0.id(),
            Err(_) => other.extract::<(u64, u64)>().is_ok_and(|pair| pair == (0, self.0.id().raw())),
        }
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        (0, self.0.id().raw()).into_pyobject(py)?.hash()
    }

    fn __repr__(&self) -> String {
        format!("(0, {})", self.0.id().raw())
    }
}

#[pymethods]
impl PyGraph {
    #[new]
    #[pyo3(signature = (keep_graph=false))]
    fn new(keep_graph: bool) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        Self {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            is_captured_into: AtomicBool::new(false),
            graph: Mutex::default(),
            pool: Mutex::default(),
            captured: Mutex::default(),
            keeps: AtomicBool::new(keep_graph),
            optimizers: Mutex::default(),
        }
    }

    /// Keeps the graphs that are captured from now on (`keep_graph=True`), so that `debug_dump` can write them.
    fn enable_debug_mode(&self) {
        self.keeps.store(true, Ordering::Relaxed);
    }

    /// Begins to capture the work submitted to a stream: the given stream or the current one. The default stream cannot be
    /// captured, so in its place a stream of the device's own becomes the current one.
    #[pyo3(signature = (pool=None, capture_error_mode="global", stream=None))]
    fn capture_begin(
        &self,
        py: Python<'_>,
        pool: Option<&Bound<'_, PyAny>>,
        capture_error_mode: &str,
        stream: Option<&Bound<'_, PyStream>>,
    ) -> PyResult<()> {
        let stream = match stream {
            Some(stream) => Some(stream.get().0.clone()),
            None => Some(stream_or_current(py, None)?).filter(|current| !current.is_default()),
        };
        self.begin(py, pool, capture_error_mode, stream)
    }

    /// Begins a capture on the given stream, or else on one of the device's own, and makes that stream current
    /// (`torch.cuda.graph`).
    fn _capture_begin_aside(
        &self,
        py: Python<'_>,
        pool: Option<&Bound<'_, PyAny>>,
        capture_error_mode: &str,
        stream: Option<&Bound<'_, PyStream>>,
    ) -> PyResult<()> {
        self.begin(py, pool, capture_error_mode, stream.map(|stream| stream.get().0.clone()))
    }

    /// Ends the capture and restores the former current stream. The captured graph is instantiated, or kept until its first
    /// replay.
    fn capture_end(&self, py: Python<'_>) -> PyResult<()> {
        let UnderWay { capture, optimizers, .. } = self.taken()?;
        *self.optimizers.lock() = optimizers;
        let captured = capture.end().map_err(|error| exception(&error))?;
        if captured.is_empty() {
            let text = c"The CUDA Graph is empty. This usually means that the graph was attempted to be captured on wrong device or stream.";
            PyErr::warn(py, &py.get_type::<PyUserWarning>(), text, 1)?;
        }
        if self.keeps.load(Ordering::Relaxed) {
            *self.graph.lock() = None;
            *self.captured.lock() = Some(captured);
            return Ok(());
        }
        let graph = captured.instantiate().map_err(|error| exception(&error))?;
        *self.graph.lock() = Some(graph);
        Ok(())
    }

    /// Instantiates a captured graph that was kept. `replay` does this if it has not been done before.
    fn instantiate(&self, py: Python<'_>) -> PyResult<()> {
        run(py, || {
            // The locks are taken in the same order as in `replay`.
            let (mut graph, captured) = (self.graph.lock(), self.captured.lock());
            let captured = captured.as_ref().ok_or_else(|| {
                thalweg::Error::invalid(
                    "instantiate() is for graphs that are kept: say CUDAGraph(keep_graph=True), and capture",
                )
            })?;
            *graph = Some(captured.instantiate()?);
            Ok(())
        })
    }

    /// Writes the graph to a file in Graphviz format.
    #[pyo3(signature = (debug_path, *, verbose=false))]
    fn debug_dump(&self, py: Python<'_>, debug_path: PathBuf, verbose: bool) -> PyResult<()> {
        run(py, || match &*self.captured.lock() {
            Some(captured) => captured.debug_dump(&debug_path, verbose),
            None => Err(thalweg::Error::invalid(
                "debug_dump() is for graphs that are kept: call enable_debug_mode() before the capture",
            )),
        })
    }

    /// Abandons a capture whose region failed.
    fn _capture_abandon(&self) -> PyResult<()> {
        self.taken().map(drop)
    }

    /// Queues the graph on the current stream.
    fn replay(&self, py: Python<'_>) -> PyResult<()> {
        let optimizers: Vec<Py<PyAny>> =
            self.optimizers.lock().iter().map(|optimizer| optimizer.clone_ref(py)).collect();
        for reference in optimizers {
            let optimizer = reference.call0(py)?;
            if !optimizer.is_none(py) {
                optimizer.call_method0(py, "_before_replay")?;
            }
        }
        run(py, || {
            let mut graph = self.graph.lock();
            if let (None, Some(captured)) = (&*graph, &*self.captured.lock()) {
                *graph = Some(captured.instantiate()?);
            }
            match &*graph {
                Some(graph) => graph.replay(),
                None => Err(thalweg::Error::invalid(
                    "Called CUDAGraph::replay without a preceding successful capture.",
                )),
            }
        })
    }

    /// Drops the graph, and its memory unless something else keeps it. A capture in progress into the graph is abandoned as well.
    fn reset(&self) {
        self.abandon();
        *self.graph.lock() = None;
        *self.captured.lock() = None;
    }

    /// Does nothing: the state of every generator is on its device, where replays advance it.
    fn register_generator_state(&self, _generator: &Bound<'_, PyGenerator>) {}

    /// Returns the list of the graph's memory pools, which has one element.
    fn pools(&self) -> PyResult<Vec<_GraphPool>> {
        Ok(vec![self.pool()?])
    }

    /// Refuses: the driver's graphs are Thalweg's own.
    fn raw_cuda_graph(&self) -> PyResult<()> {
        Err(left_out(
            "CUDAGraph.raw_cuda_graph is left out: the driver's graph is Thalweg's own; `debug_dump` writes it",
        ))
    }

    /// Refuses: the driver's graphs are Thalweg's own.
    fn raw_cuda_graph_exec(&self) -> PyResult<()> {
        Err(left_out("CUDAGraph.raw_cuda_graph_exec is left out: the driver's graph is Thalweg's own"))
    }

    /// Returns the graph's memory pool, for other captures to share.
    fn pool(&self) -> PyResult<_GraphPool> {
        let pool = self.pool.lock().clone();
        pool.map(_GraphPool).ok_or_else(|| runtime("the graph has no pool yet: nothing was captured"))
    }
}

impl PyGraph {
    fn begin(
        &self,
        py: Python<'_>,
        pool: Option<&Bound<'_, PyAny>>,
        mode: &str,
        stream: Option<Stream>,
    ) -> PyResult<()> {
        let mode = capture_mode(mode)?;
        let pool = pool.map(graph_pool).transpose()?;
        let device = match &stream {
            Some(stream) => stream.device().clone(),
            None => or_current(py, None)?,
        };
        let reader = Reader::new();
        let _line = noted(py);
        let options = CaptureOptions { pool, mode, stream, policy: OverwritePolicy::Unchecked };
        // A capture belongs to this thread, so the interpreter lock is kept.
        let capture = Graph::capture_begin(&device, options).map_err(|error| exception(&error))?;
        // As in PyTorch, the program sees to it that graphs which leave memory to this one are replayed before it.
        capture.pool().vouch(capture.stream());
        *self.pool.lock() = Some(capture.pool().clone());
        if device.current_stream() != *capture.stream() {
            enter(Owner::Graph(self.number), Current::stream(capture.stream()));
        }
        self.is_captured_into.store(true, Ordering::Relaxed);
        let under_way = UnderWay { graph: self.number, capture, optimizers: Vec::new(), _reader: reader };
        CAPTURES.with_borrow_mut(|captures| captures.push(under_way));
        Ok(())
    }

    /// Returns this thread's capture into this graph, and restores the current stream.
    fn taken(&self) -> PyResult<UnderWay> {
        let taken = take(self.number);
        let under_way = taken.ok_or_else(|| runtime("this thread captures nothing into this graph"))?;
        self.is_captured_into.store(false, Ordering::Relaxed);
        Ok(under_way)
    }

    /// Abandons a capture into this graph: at once, or, if another thread has begun it, at that thread's next call of the layers
    /// below.
    fn abandon(&self) {
        if !self.is_captured_into.swap(false, Ordering::Relaxed) {
            return;
        }
        match take(self.number) {
            Some(under_way) => drop(under_way),
            None => {
                ABANDONED.lock().push(self.number);
                ANY_ABANDONED.store(true, Ordering::Release);
            }
        }
    }
}

impl Drop for PyGraph {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// Returns this thread's capture into a graph, if there is one, and restores the current stream.
fn take(graph: u64) -> Option<UnderWay> {
    let taken = CAPTURES.try_with(|captures| {
        let mut captures = captures.borrow_mut();
        let place = captures.iter().rposition(|under_way| under_way.graph == graph)?;
        Some(captures.remove(place))
    });
    let under_way = taken.ok().flatten()?;
    leave(Owner::Graph(graph));
    Some(under_way)
}

/// Notes that a step of an optimizer is captured, if this thread is capturing: replays call the optimizer's `_before_replay`
/// first. Returns whether the thread is capturing.
#[pyfunction]
fn _step_is_captured(optimizer: &Bound<'_, PyAny>) -> PyResult<bool> {
    if CAPTURES.with_borrow(Vec::is_empty) {
        return Ok(false);
    }
    let reference = optimizer.py().import("weakref")?.getattr("ref")?.call1((optimizer,))?;
    CAPTURES.with_borrow_mut(|captures| {
        if let Some(under_way) = captures.last_mut() {
            under_way.optimizers.push(reference.unbind());
        }
    });
    Ok(true)
}

/// Ends the captures of this thread into graphs that other threads have dropped.
fn end_abandoned() {
    if !ANY_ABANDONED.load(Ordering::Acquire) {
        return;
    }
    let numbers = ABANDONED.lock().clone();
    for number in numbers {
        if let Some(under_way) = take(number) {
            drop(under_way);
            let mut list = ABANDONED.lock();
            list.retain(|other| *other != number);
            ANY_ABANDONED.store(!list.is_empty(), Ordering::Release);
        }
    }
}

/// Returns the graph pool of an argument: a graph, a handle, a `MemPool` or its `id`.
pub fn graph_pool(value: &Bound<'_, PyAny>) -> PyResult<GraphPool> {
    if let Ok(pool) = value.cast::<_GraphPool>() {
        return Ok(pool.get().0.clone());
    }
    let pools = value.py().import("thalweg.cuda.memory")?;
    pools.call_method1("_inner_of", (value,))?.cast::<_MemPool>()?.get().for_graphs(value.py())
}

/// Returns the capture mode with PyTorch's name.
pub fn capture_mode(name: &str) -> PyResult<CaptureMode> {
    match name {
        "global" => Ok(CaptureMode::Global),
        "thread_local" => Ok(CaptureMode::ThreadLocal),
        "relaxed" => Ok(CaptureMode::Relaxed),
        other => {
            Err(value_error(format!("capture_error_mode is global, thread_local or relaxed, not {other}")))
        }
    }
}

/// Returns a pool that captures can share.
#[pyfunction]
fn graph_pool_handle(py: Python<'_>) -> PyResult<_GraphPool> {
    Ok(_GraphPool(GraphPool::with_policy(&or_current(py, None)?, OverwritePolicy::Unchecked)))
}

/// Adds the classes and the function.
pub fn register(own: &Bound<'_, PyModule>) -> PyResult<()> {
    run_before(end_abandoned);
    own.add_class::<PyGraph>()?;
    own.add_class::<_GraphPool>()?;
    functions![own; _step_is_captured, graph_pool_handle];
    Ok(())
}
