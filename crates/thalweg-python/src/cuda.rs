//! Streams, and functions that concern a device in general, for `thalweg.cuda`. They work in the same way on a GPU and on the
//! simulated one.
//!
//! This module is a hub: it registers the other modules of `thalweg.cuda` in the same Python module, and they use its streams.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use thalweg::driver::cuda::{AvailabilityReason, availability};
use thalweg::driver::{ExternalStream, Label};
use thalweg::{Device, Event, Stream};

use crate::device::{PyDevice, or_current};
use crate::events::PyEvent;
use crate::failure::{exception, run};
use crate::handle::{Held, PyTensor};
use crate::regions::{Current, Owner, enter, leave, set};

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

    /// The priority: streams with lower numbers run first.
    #[getter]
    fn priority(&self) -> i32 {
        self.0.priority()
    }

    /// The number of the device.
    #[getter]
    fn device_index(&self) -> u32 {
        self.0.device().index()
    }

    /// PyTorch's number for the kind of device: 1 for CUDA, also for the simulated GPU.
    #[getter]
    fn device_type(&self) -> i64 {
        1
    }

    /// The number of the stream among those of its device.
    #[getter]
    fn stream_id(&self) -> u64 {
        self.0.id().raw()
    }

    /// Returns the least and the greatest priority that are allowed for streams of the current device.
    #[staticmethod]
    fn priority_range(py: Python<'_>) -> PyResult<(i32, i32)> {
        Ok(or_current(py, None)?.properties().stream_priority_range)
    }

    /// CUDA's handle.
    #[getter]
    fn cuda_stream(&self) -> PyResult<u64> {
        self.0.cuda_stream().map_err(|error| exception(&error))
    }

    /// CUDA's handle, as `cuda_stream` also returns it.
    #[getter]
    fn native_handle(&self) -> PyResult<u64> {
        self.cuda_stream()
    }

    /// Returns the version of the protocol and CUDA's handle, for libraries that accept any object with a stream.
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

    fn __enter__<'py>(slf: &Bound<'py, Self>) -> Bound<'py, Self> {
        enter(Owner::object(slf.as_any()), Current::stream(&slf.get().0));
        slf.clone()
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(slf: &Bound<'_, Self>, _exception: &Bound<'_, PyTuple>) {
        leave(Owner::object(slf.as_any()));
    }

    /// Returns whether all work of the stream has finished.
    fn query(&self, py: Python<'_>) -> PyResult<bool> {
        run(py, || self.0.query())
    }

    /// Blocks until all work of the stream has finished.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        run(py, || self.0.synchronize())
    }

    /// Makes work that is submitted from now on wait for an event.
    fn wait_event(&self, py: Python<'_>, event: &Bound<'_, PyEvent>) -> PyResult<()> {
        let event = event.get();
        run(py, || self.0.wait_event(&event.0))
    }

    /// Makes work that is submitted from now on wait for the current work of another stream.
    fn wait_stream(&self, py: Python<'_>, stream: &Bound<'_, PyStream>) -> PyResult<()> {
        let stream = stream.get();
        run(py, || self.0.wait_stream(&stream.0))
    }

    /// Records an event after the current work of the stream, and returns the event.
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

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let (own, class) = (&slf.get().0, slf.get_type().fully_qualified_name()?);
        Ok(format!(
            "<{class} device={} priority={}>",
            PyDevice::of(own.device().clone()).__str__(),
            own.priority()
        ))
    }

    /// Makes the stream current on this thread, until `_exit` is called for the same owner.
    fn _enter(&self, owner: &Bound<'_, PyAny>) {
        enter(Owner::object(owner), Current::stream(&self.0));
    }

    /// Makes the stream current on this thread for good.
    fn _set_current(&self) {
        set(Current::stream(&self.0));
    }
}

/// Returns the given stream, or the current stream if there is none.
pub fn stream_or_current(py: Python<'_>, stream: Option<&Bound<'_, PyStream>>) -> PyResult<Stream> {
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

/// Records that a stream uses a tensor: all work until the tensor is dropped, or with `so_far` only the work that the stream has
/// now.
#[pyfunction]
fn _record_stream(
    py: Python<'_>,
    tensor: &Bound<'_, PyTensor>,
    stream: &Bound<'_, PyStream>,
    so_far: bool,
) -> PyResult<()> {
    let (tensor, stream) = (tensor.tensor(), stream.get());
    run(py, || {
        if so_far {
            tensor.record_use(&stream.0)
        } else {
            tensor.record_stream(&stream.0)
        }
        Ok(())
    })
}

/// Returns whether the current stream is being captured.
#[pyfunction]
fn is_current_stream_capturing(py: Python<'_>) -> PyResult<bool> {
    run(py, || Device::current()?.current_stream().is_capturing())
}

/// Returns the number of usable GPUs. The number is read from NVML, so CUDA is not initialised and the process may still fork. If
/// NVML is not available, the driver is queried.
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

/// Makes later work of another library's stream wait for the current work of the device's current stream. The number is that of
/// DLPack: 1 is the legacy default stream, 2 the calling thread's own default stream, any other a `CUstream`.
#[pyfunction]
fn _let_wait(py: Python<'_>, device: &Bound<'_, PyAny>, number: u64) -> PyResult<()> {
    let device = or_current(py, Some(device))?;
    run(py, || external(&device, number)?.wait_stream(&device.current_stream()))
}

/// Makes later work of the device's current stream wait for the current work of another library's stream.
#[pyfunction]
fn _wait_for(py: Python<'_>, device: &Bound<'_, PyAny>, number: u64) -> PyResult<()> {
    let device = or_current(py, Some(device))?;
    run(py, || device.current_stream().wait_stream(&external(&device, number)?))
}

/// Returns a stream of another library as an external stream.
fn external(device: &Device, number: u64) -> thalweg::Result<Stream> {
    // SAFETY: by the rules of DLPack and of the CUDA array interface, the number is a stream of the device that lives during the
    // call, and the call drops the handle at its end. For an `ExternalStream`, PyTorch's rules require the program to ensure
    // this. 2 is CUDA's own value for the thread's default stream.
    Stream::from_external(device, unsafe { ExternalStream::new(number) })
}

/// Returns the number that identifies the device's current stream to other libraries: never 0, which is ambiguous.
#[pyfunction]
fn _stream_number(py: Python<'_>, device: &Bound<'_, PyAny>) -> PyResult<u64> {
    let device = or_current(py, Some(device))?;
    run(py, || Ok(device.current_stream().cuda_stream()?.max(1)))
}

/// Keeps the current stream busy for the given number of cycles of a 1 GHz GPU, by a host function that sleeps in stream order.
#[pyfunction]
fn _sleep(py: Python<'_>, cycles: u64) -> PyResult<()> {
    run(py, || {
        let stream = Device::current()?.current_stream();
        let sleep = move || std::thread::sleep(Duration::from_nanos(cycles));
        thalweg::runtime::queue_deferred(Label::here("_sleep"))?;
        Ok(stream.device().driver().host_function_async(
            stream.handle(),
            Arc::new(sleep),
            Label::here("_sleep"),
        )?)
    })
}

/// Blocks until all work of a device has finished.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn synchronize(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let device = or_current(py, device)?;
    run(py, || device.synchronize())
}

/// Returns the open devices of the current device's kind.
#[pyfunction]
fn _opened_devices(py: Python<'_>) -> PyResult<Vec<PyDevice>> {
    Ok(run(py, || Ok(Device::current()?.opened()))?.into_iter().map(PyDevice::of).collect())
}

/// Returns all cached and unused memory of all devices of the current device's kind to the driver.
#[pyfunction]
fn empty_cache(py: Python<'_>) -> PyResult<()> {
    run(py, || Device::current()?.opened().iter().try_for_each(Device::empty_cache))
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

/// Returns the statistics as a readable table.
#[pyfunction]
#[pyo3(signature = (device=None, abbreviated=false))]
fn memory_summary(py: Python<'_>, device: Option<&Bound<'_, PyAny>>, abbreviated: bool) -> PyResult<String> {
    let device = or_current(py, device)?;
    run(py, || Ok(device.memory_summary(abbreviated)))
}

/// Resets the peaks of the statistics to the current values.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn reset_peak_memory_stats(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let device = or_current(py, device)?;
    run(py, || {
        device.allocator().reset_peak_memory_stats();
        Ok(())
    })
}

/// Resets the accumulated statistics to 0.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn reset_accumulated_memory_stats(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let device = or_current(py, device)?;
    run(py, || {
        device.allocator().reset_accumulated_memory_stats();
        Ok(())
    })
}

/// Returns the properties of a device, by PyTorch's names.
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

/// Adds the classes and the functions, in a submodule.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let own = PyModule::new(module.py(), "_cuda")?;
    own.add_class::<PyStream>()?;
    crate::events::register(&own)?;
    crate::graphs::register(&own)?;
    crate::regions::register(&own)?;
    functions![&own;
        current_stream, default_stream, _record_stream, is_current_stream_capturing, _gpu_count,
        _device_count, _let_wait, _wait_for, _sleep, _stream_number
    ];
    crate::audit::register(&own)?;
    functions![&own;
        synchronize, _opened_devices, empty_cache, memory_stats, memory_summary, reset_peak_memory_stats,
        reset_accumulated_memory_stats, _device_properties
    ];
    crate::history::register(&own)?;
    crate::memory::register(&own)?;
    crate::readings::register(&own)?;
    module.add("_cuda", own)
}
