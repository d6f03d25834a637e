//! Streams, events, graphs and memory, for `thalweg.cuda`. They are those of the GPU and of the simulated one alike.
//!
//! This module is a hub: it registers `audit`, `history`, `memory` and `readings` in the same module of Python, and `audit` and `memory` take its
//! streams.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use thalweg::driver::cuda::{AvailabilityReason, availability};
use thalweg::driver::{CaptureMode, EventFlags, ExternalStream};
use thalweg::graph::Capture;
use thalweg::runtime::MemPoolScope;
use thalweg::runtime::graph::CapturedGraph;
use thalweg::{CaptureOptions, Device, DeviceGuard, Event, Graph, GraphPool, Stream, StreamGuard};

use crate::device::{PyDevice, or_current};
use crate::failure::{exception, run, value_error};
use crate::handle::{Held, PyTensor};

thread_local! {
    /// Streams, devices and pools that `with` statements of this thread have made current, the innermost last.
    static ENTERED: RefCell<Vec<Entered>> = const { RefCell::new(Vec::new()) };
    /// The captures that this thread has begun, by the number of their graph.
    static CAPTURES: RefCell<Vec<(usize, Capture)>> = const { RefCell::new(Vec::new()) };
}

/// A stream, a device or a pool that a `with` statement makes current.
#[expect(dead_code, reason = "their drop is what they are for")]
pub enum Entered {
    Stream(StreamGuard),
    Device(DeviceGuard),
    Pool(MemPoolScope),
}

/// Keeps what a `with` statement makes current on this thread, until [`_exit`].
pub fn entered(one: Entered) {
    ENTERED.with_borrow_mut(|entered| entered.push(one));
}

/// A stream (`torch.cuda.Stream`).
#[pyclass(name = "Stream", module = "thalweg.cuda", frozen, subclass)]
pub struct PyStream(pub Stream);

#[pymethods]
impl PyStream {
    #[new]
    #[pyo3(signature = (device=None, priority=0, *, stream_ptr=None))]
    fn new(
        py: Python<'_>,
        device: Option<&Bound<'_, PyAny>>,
        priority: i32,
        stream_ptr: Option<u64>,
    ) -> PyResult<Self> {
        let device = or_current(py, device)?;
        run(py, || match stream_ptr {
            Some(number) => external(&device, number),
            None => Stream::with_priority(&device, priority),
        })
        .map(Self)
    }

    /// The device.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice::of(self.0.device().clone())
    }

    /// The priority: lower numbers go first.
    #[getter]
    fn priority(&self) -> i32 {
        self.0.priority()
    }

    /// The number of the device.
    #[getter]
    fn device_index(&self) -> u32 {
        self.0.device().index()
    }

    /// PyTorch's number of the kind of device: 1, CUDA, also for the simulated GPU.
    #[getter]
    fn device_type(&self) -> i64 {
        1
    }

    /// The number of the stream among those of its device.
    #[getter]
    fn stream_id(&self) -> u64 {
        self.0.id().raw()
    }

    /// Returns the least and the greatest priority that streams of the current device may have.
    #[staticmethod]
    fn priority_range(py: Python<'_>) -> PyResult<(i32, i32)> {
        Ok(or_current(py, None)?.properties().stream_priority_range)
    }

    /// CUDA's handle.
    #[getter]
    fn cuda_stream(&self) -> PyResult<u64> {
        self.0.cuda_stream().map_err(|error| exception(&error))
    }

    /// CUDA's handle (`cuda_stream`).
    #[getter]
    fn native_handle(&self) -> PyResult<u64> {
        self.cuda_stream()
    }

    /// Returns the version of the protocol and CUDA's handle, for libraries that take any object with a stream.
    fn __cuda_stream__(&self) -> PyResult<(u32, u64)> {
        Ok((0, self.cuda_stream()?))
    }

    /// CUDA's handle as `ctypes` passes it.
    #[getter]
    fn _as_parameter_<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("ctypes")?.getattr("c_void_p")?.call1((self.cuda_stream()?,))
    }

    /// Returns whether the stream is being captured.
    fn is_capturing(&self, py: Python<'_>) -> PyResult<bool> {
        run(py, || self.0.is_capturing())
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf._enter();
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {
        _exit();
    }

    /// Returns whether all work of the stream is done.
    fn query(&self, py: Python<'_>) -> PyResult<bool> {
        run(py, || self.0.query())
    }

    /// Blocks until all work of the stream is done.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        run(py, || self.0.synchronize())
    }

    /// Lets work that is submitted from now on wait for an event.
    fn wait_event(&self, py: Python<'_>, event: &Bound<'_, PyEvent>) -> PyResult<()> {
        let event = event.get();
        run(py, || self.0.wait_event(&event.0))
    }

    /// Lets work that is submitted from now on wait for what another stream has now.
    fn wait_stream(&self, py: Python<'_>, stream: &Bound<'_, PyStream>) -> PyResult<()> {
        let stream = stream.get();
        run(py, || self.0.wait_stream(&stream.0))
    }

    /// Records an event behind the work that the stream has now, and returns it.
    #[pyo3(signature = (event=None))]
    fn record_event<'py>(
        slf: &Bound<'py, Self>,
        event: Option<Bound<'py, PyEvent>>,
    ) -> PyResult<Bound<'py, PyEvent>> {
        let py = slf.py();
        let event = match event {
            Some(event) => event,
            None => Bound::new(py, PyEvent(Event::new()))?,
        };
        let (stream, recorded) = (slf.get(), event.get());
        run(py, || recorded.0.record(&stream.0))?;
        Ok(event)
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| {
            let other = other.get();
            other.0.id() == self.0.id() && other.0.device() == self.0.device()
        })
    }

    fn __hash__(&self) -> u64 {
        (self.0.device().number() << 48) ^ self.0.cuda_stream().unwrap_or_default()
    }

    fn __repr__(&self) -> String {
        format!("<thalweg.cuda.Stream device={} priority={}>", self.0.device(), self.0.priority())
    }

    /// Makes the stream current on this thread, until [`Self::_exit`].
    fn _enter(&self) {
        ENTERED.with_borrow_mut(|entered| entered.push(Entered::Stream(self.0.make_current())));
    }

    /// Makes the stream current on this thread for good.
    fn _set_current(&self) {
        std::mem::forget(self.0.make_current());
    }
}

/// Makes a device current on this thread, until [`_exit`].
#[pyfunction]
fn _enter_device(device: &Bound<'_, PyAny>) -> PyResult<()> {
    let device = or_current(device.py(), Some(device))?;
    ENTERED.with_borrow_mut(|entered| entered.push(Entered::Device(device.make_current())));
    Ok(())
}

/// Ends the innermost `with` statement of this thread.
#[pyfunction]
fn _exit() {
    let _dropped_outside = ENTERED.with_borrow_mut(Vec::pop);
}

/// A marker in a stream (`torch.cuda.Event`).
#[pyclass(name = "Event", module = "thalweg.cuda", frozen, subclass)]
struct PyEvent(Event);

#[pymethods]
impl PyEvent {
    #[new]
    #[pyo3(signature = (enable_timing=false, blocking=false, interprocess=false, external=false))]
    fn new(enable_timing: bool, blocking: bool, interprocess: bool, external: bool) -> PyResult<Self> {
        if interprocess || external {
            return Err(crate::failure::left_out(
                "Event(interprocess=True) and Event(external=True) are left out",
            ));
        }
        Ok(Self(Event::with_flags(EventFlags { timing: enable_timing, blocking_sync: blocking })))
    }

    /// Records the event behind the work that a stream has now: the current one, where none is given.
    #[pyo3(signature = (stream=None))]
    fn record(&self, py: Python<'_>, stream: Option<&Bound<'_, PyStream>>) -> PyResult<()> {
        let stream = stream_or_current(py, stream)?;
        run(py, || self.0.record(&stream))
    }

    /// Lets a stream wait for the event: the current one, where none is given.
    #[pyo3(signature = (stream=None))]
    fn wait(&self, py: Python<'_>, stream: Option<&Bound<'_, PyStream>>) -> PyResult<()> {
        let stream = stream_or_current(py, stream)?;
        run(py, || self.0.wait(&stream))
    }

    /// Returns whether the work in front of the event is done.
    fn query(&self, py: Python<'_>) -> PyResult<bool> {
        run(py, || self.0.query())
    }

    /// Blocks until the work in front of the event is done.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        run(py, || self.0.synchronize())
    }

    /// Returns the time between two events, in milliseconds.
    fn elapsed_time(&self, py: Python<'_>, end_event: &Bound<'_, Self>) -> PyResult<f32> {
        let end = end_event.get();
        run(py, || self.0.elapsed_ms(&end.0))
    }
}

fn stream_or_current(py: Python<'_>, stream: Option<&Bound<'_, PyStream>>) -> PyResult<Stream> {
    match stream {
        Some(stream) => Ok(stream.get().0.clone()),
        None => run(py, || Ok(Device::current()?.current_stream())),
    }
}

/// Returns the current stream of a device.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn current_stream(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<PyStream> {
    Ok(PyStream(or_current(py, device)?.current_stream()))
}

/// Returns the default stream of a device.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn default_stream(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<PyStream> {
    Ok(PyStream(or_current(py, device)?.default_stream()))
}

/// Records that work of a stream uses a tensor.
#[pyfunction]
fn _record_stream(tensor: &Bound<'_, PyTensor>, stream: &Bound<'_, PyStream>) {
    tensor.tensor().record_stream(&stream.get().0);
}

/// A captured graph (`torch.cuda.CUDAGraph`).
#[pyclass(name = "CUDAGraph", module = "thalweg.cuda", subclass, frozen)]
struct PyGraph {
    graph: Mutex<Option<Graph>>,
    pool: Mutex<Option<GraphPool>>,
    /// The captured graph, where it is kept.
    captured: Mutex<Option<CapturedGraph>>,
    keeps: AtomicBool,
}

/// Locks what one call at a time may touch; what a panic left behind is whole.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The memory pool of graphs.
#[pyclass(module = "thalweg.cuda", frozen)]
pub struct _GraphPool(pub GraphPool);

#[pymethods]
impl PyGraph {
    #[new]
    #[pyo3(signature = (keep_graph=false))]
    fn new(keep_graph: bool) -> Self {
        Self {
            graph: Mutex::default(),
            pool: Mutex::default(),
            captured: Mutex::default(),
            keeps: AtomicBool::new(keep_graph),
        }
    }

    /// Keeps what is captured from now on (`keep_graph=True`), so that `debug_dump` can write it.
    fn enable_debug_mode(&self) {
        self.keeps.store(true, Ordering::Relaxed);
    }

    /// Begins to capture what is submitted to a stream, and makes it the current one.
    #[pyo3(signature = (pool=None, capture_error_mode="global", stream=None))]
    fn capture_begin(
        slf: &Bound<'_, Self>,
        pool: Option<&Bound<'_, _GraphPool>>,
        capture_error_mode: &str,
        stream: Option<&Bound<'_, PyStream>>,
    ) -> PyResult<()> {
        let mode = capture_mode(capture_error_mode)?;
        let stream = stream.map(|stream| stream.get().0.clone());
        let device = match &stream {
            Some(stream) => stream.device().clone(),
            None => or_current(slf.py(), None)?,
        };
        let options = CaptureOptions { pool: pool.map(|pool| pool.get().0.clone()), mode, stream };
        // A capture belongs to this thread, so the lock is kept.
        let capture = Graph::capture_begin(&device, options).map_err(|error| exception(&error))?;
        *locked(&slf.get().pool) = Some(capture.pool().clone());
        ENTERED.with_borrow_mut(|entered| entered.push(Entered::Stream(capture.stream().make_current())));
        CAPTURES.with_borrow_mut(|captures| captures.push((slf.as_ptr() as usize, capture)));
        Ok(())
    }

    /// Ends the capture; the stream that was current before is so again. What was captured is instantiated, or kept until it is replayed
    /// first.
    fn capture_end(slf: &Bound<'_, Self>) -> PyResult<()> {
        let own = slf.get();
        let captured = Self::take_capture(slf)?.end().map_err(|error| exception(&error))?;
        if own.keeps.load(Ordering::Relaxed) {
            *locked(&own.graph) = None;
            *locked(&own.captured) = Some(captured);
            return Ok(());
        }
        let graph = captured.instantiate().map_err(|error| exception(&error))?;
        *locked(&own.graph) = Some(graph);
        Ok(())
    }

    /// Makes an executable of what was captured and kept; `replay` does it where that was not done.
    fn instantiate(&self, py: Python<'_>) -> PyResult<()> {
        run(py, || {
            // In the order of `replay`, whose locks these are too.
            let (mut graph, captured) = (locked(&self.graph), locked(&self.captured));
            let captured = captured.as_ref().ok_or_else(|| {
                thalweg::Error::invalid(
                    "instantiate() is for graphs that are kept: say CUDAGraph(keep_graph=True), and capture",
                )
            })?;
            *graph = Some(captured.instantiate()?);
            Ok(())
        })
    }

    /// Writes the graph to a file in the language of Graphviz.
    #[pyo3(signature = (debug_path, *, verbose=false))]
    fn debug_dump(&self, py: Python<'_>, debug_path: PathBuf, verbose: bool) -> PyResult<()> {
        run(py, || match &*locked(&self.captured) {
            Some(captured) => captured.debug_dump(&debug_path, verbose),
            None => Err(thalweg::Error::invalid(
                "debug_dump() is for graphs that are kept: call enable_debug_mode() before the capture",
            )),
        })
    }

    /// Gives a capture up whose region failed.
    fn _capture_abandon(slf: &Bound<'_, Self>) -> PyResult<()> {
        drop(Self::take_capture(slf)?);
        Ok(())
    }

    /// Queues the whole graph on the current stream.
    fn replay(&self, py: Python<'_>) -> PyResult<()> {
        run(py, || {
            let mut graph = locked(&self.graph);
            if let (None, Some(captured)) = (&*graph, &*locked(&self.captured)) {
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

    /// Gives the graph up, and its memory unless something else keeps it.
    fn reset(&self) {
        *locked(&self.graph) = None;
        *locked(&self.captured) = None;
    }

    /// Returns the pool of its memory, for other captures to share.
    fn pool(&self) -> PyResult<_GraphPool> {
        let pool = locked(&self.pool).clone();
        pool.map(_GraphPool).ok_or_else(|| value_error("the graph has no pool yet: nothing was captured"))
    }
}

impl PyGraph {
    fn take_capture(slf: &Bound<'_, Self>) -> PyResult<Capture> {
        let own = slf.as_ptr() as usize;
        let taken = CAPTURES.with_borrow_mut(|captures| {
            let place = captures.iter().rposition(|(graph, _)| *graph == own)?;
            Some(captures.remove(place).1)
        });
        let capture = taken.ok_or_else(|| value_error("this thread captures nothing into this graph"))?;
        _exit();
        Ok(capture)
    }
}

/// Returns the mode of a capture by PyTorch's name.
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

/// Returns a pool that captures share.
#[pyfunction]
fn graph_pool_handle(py: Python<'_>) -> PyResult<_GraphPool> {
    Ok(_GraphPool(GraphPool::new(&or_current(py, None)?)))
}

/// Returns whether the current stream captures.
#[pyfunction]
fn is_current_stream_capturing(py: Python<'_>) -> PyResult<bool> {
    run(py, || Device::current()?.current_stream().is_capturing())
}

/// Returns the number of GPUs that can be used. NVML tells it, so that nothing is initialised and the process may still fork; where it
/// cannot, the driver is asked.
#[pyfunction]
fn _gpu_count(py: Python<'_>) -> PyResult<u32> {
    run(py, || {
        let availability = availability();
        if !matches!(availability.reason, AvailabilityReason::Unknown(_)) {
            return Ok(availability.device_count);
        }
        Ok(Device::cuda(0).map_or(0, |device| device.driver().device_count()))
    })
}

/// Returns the number of devices of the current device's kind.
#[pyfunction]
fn _device_count(py: Python<'_>) -> PyResult<u32> {
    run(py, || Ok(Device::current()?.driver().device_count()))
}

/// Lets later work of a stream of another library wait for what the current stream of a device has now. The number is that of DLPack: 1 is
/// the legacy default stream, 2 the calling thread's own default stream, any other a `CUstream`.
#[pyfunction]
fn _let_wait(py: Python<'_>, device: &Bound<'_, PyAny>, number: u64) -> PyResult<()> {
    let device = or_current(py, Some(device))?;
    run(py, || external(&device, number)?.wait_stream(&device.current_stream()))
}

/// Lets later work of the current stream of a device wait for what a stream of another library has now.
#[pyfunction]
fn _wait_for(py: Python<'_>, device: &Bound<'_, PyAny>, number: u64) -> PyResult<()> {
    let device = or_current(py, Some(device))?;
    run(py, || device.current_stream().wait_stream(&external(&device, number)?))
}

/// Returns a stream of another library.
fn external(device: &Device, number: u64) -> thalweg::Result<Stream> {
    // SAFETY: by DLPack's and the interface's rules the number is a stream of the device, which lives during a call that drops the handle at
    // its end; of an `ExternalStream`, PyTorch's rules ask that of the program. 2 is CUDA's own name of the thread's default stream.
    Stream::from_external(device, unsafe { ExternalStream::new(number) })
}

/// Returns the number by which other libraries know the current stream of a device: never 0, which is ambiguous.
#[pyfunction]
fn _stream_number(py: Python<'_>, device: &Bound<'_, PyAny>) -> PyResult<u64> {
    let device = or_current(py, Some(device))?;
    run(py, || Ok(device.current_stream().cuda_stream()?.max(1)))
}

/// Blocks until all work of a device is done.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn synchronize(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let device = or_current(py, device)?;
    run(py, || device.synchronize())
}

/// Gives all memory that is cached and unused back to the driver.
#[pyfunction]
fn empty_cache(py: Python<'_>) -> PyResult<()> {
    run(py, || Device::current()?.empty_cache())
}

/// Returns the statistics of a device's caching allocator, by PyTorch's names.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn memory_stats<'py>(py: Python<'py>, device: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyDict>> {
    let device = or_current(py, device)?;
    let stats = PyDict::new(py);
    for (name, value) in run(py, || Ok(device.allocator().statistics().memory_stats()))? {
        stats.set_item(name, value)?;
    }
    Ok(stats)
}

/// Returns the statistics as a table for people.
#[pyfunction]
#[pyo3(signature = (device=None, abbreviated=false))]
fn memory_summary(py: Python<'_>, device: Option<&Bound<'_, PyAny>>, abbreviated: bool) -> PyResult<String> {
    let device = or_current(py, device)?;
    run(py, || Ok(device.memory_summary(abbreviated)))
}

/// Sets the peaks of the statistics to what is current.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn reset_peak_memory_stats(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let device = or_current(py, device)?;
    run(py, || {
        device.allocator().reset_peak_memory_stats();
        Ok(())
    })
}

/// Sets the sums of the statistics to 0.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn reset_accumulated_memory_stats(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let device = or_current(py, device)?;
    run(py, || {
        device.allocator().reset_accumulated_memory_stats();
        Ok(())
    })
}

/// Returns what a device is and can do, by PyTorch's names.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn _device_properties<'py>(
    py: Python<'py>,
    device: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let device = or_current(py, device)?;
    let own = device.properties();
    let properties = PyDict::new(py);
    properties.set_item("name", &own.name)?;
    properties.set_item("major", own.compute_capability.major)?;
    properties.set_item("minor", own.compute_capability.minor)?;
    properties.set_item("total_memory", own.total_memory_bytes)?;
    properties.set_item("multi_processor_count", own.multi_processor_count)?;
    properties.set_item("warp_size", own.warp_size)?;
    properties.set_item("max_threads_per_multi_processor", own.max_threads_per_multi_processor)?;
    properties.set_item("regs_per_multiprocessor", own.registers_per_multi_processor)?;
    properties.set_item("shared_memory_per_block", own.shared_memory_per_block_bytes)?;
    properties.set_item("shared_memory_per_block_optin", own.shared_memory_per_block_optin_bytes)?;
    properties.set_item("L2_cache_size", own.l2_cache_bytes)?;
    properties.set_item("max_threads_per_block", own.max_threads_per_block)?;
    properties.set_item("clock_rate", own.clock_rate_khz)?;
    properties.set_item("memory_clock_rate", own.memory_clock_rate_khz)?;
    properties.set_item("memory_bus_width", own.memory_bus_width_bits)?;
    properties.set_item("is_integrated", own.is_integrated)?;
    let digits: String = own.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let uuid = py.import("uuid")?.getattr("UUID")?.call1((digits,))?;
    properties.set_item("uuid", uuid)?;
    Ok(properties)
}

/// Adds the classes and the functions, in a module of their own.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let own = PyModule::new(module.py(), "_cuda")?;
    own.add_class::<PyStream>()?;
    own.add_class::<PyEvent>()?;
    own.add_class::<PyGraph>()?;
    own.add_class::<_GraphPool>()?;
    own.add_function(wrap_pyfunction!(_enter_device, &own)?)?;
    own.add_function(wrap_pyfunction!(_exit, &own)?)?;
    own.add_function(wrap_pyfunction!(current_stream, &own)?)?;
    own.add_function(wrap_pyfunction!(default_stream, &own)?)?;
    own.add_function(wrap_pyfunction!(_record_stream, &own)?)?;
    own.add_function(wrap_pyfunction!(graph_pool_handle, &own)?)?;
    own.add_function(wrap_pyfunction!(is_current_stream_capturing, &own)?)?;
    own.add_function(wrap_pyfunction!(_gpu_count, &own)?)?;
    own.add_function(wrap_pyfunction!(_device_count, &own)?)?;
    own.add_function(wrap_pyfunction!(_let_wait, &own)?)?;
    own.add_function(wrap_pyfunction!(_wait_for, &own)?)?;
    own.add_function(wrap_pyfunction!(_stream_number, &own)?)?;
    crate::audit::register(&own)?;
    own.add_function(wrap_pyfunction!(synchronize, &own)?)?;
    own.add_function(wrap_pyfunction!(empty_cache, &own)?)?;
    own.add_function(wrap_pyfunction!(memory_stats, &own)?)?;
    own.add_function(wrap_pyfunction!(memory_summary, &own)?)?;
    own.add_function(wrap_pyfunction!(reset_peak_memory_stats, &own)?)?;
    own.add_function(wrap_pyfunction!(reset_accumulated_memory_stats, &own)?)?;
    own.add_function(wrap_pyfunction!(_device_properties, &own)?)?;
    crate::history::register(&own)?;
    crate::memory::register(&own)?;
    crate::readings::register(&own)?;
    module.add("_cuda", own)
}
