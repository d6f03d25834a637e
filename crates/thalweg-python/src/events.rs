//! Events, for `thalweg.cuda` and `torch.Event`.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyTuple, PyType};
use thalweg::Event;
use thalweg::driver::EventFlags;

use crate::cuda::{PyStream, stream_or_current};
use crate::device::PyDevice;
use crate::failure::{exception, left_out, run, type_error, value_error};

/// A marker in a stream (`torch.cuda.Event`).
#[pyclass(name = "Event", module = "thalweg.cuda", frozen, subclass)]
pub struct PyEvent(pub Event);

#[pymethods]
impl PyEvent {
    /// Accepts PyTorch's arguments of both classes: `torch.Event` has a leading device argument. The first record chooses the
    /// device.
    #[new]
    #[pyo3(signature = (*args, enable_timing=false, blocking=false, interprocess=false, external=false, device=None))]
    fn new(
        args: &Bound<'_, PyTuple>,
        enable_timing: bool,
        blocking: bool,
        interprocess: bool,
        external: bool,
        device: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let mut flags = [enable_timing, blocking, interprocess, external];
        let mut device = device.cloned();
        let flag = |value: &Bound<'_, PyAny>| value.cast::<PyBool>().ok().map(|flag| flag.is_true());
        for (place, value) in args.iter().enumerate() {
            match (flags.get_mut(place), flag(&value)) {
                (Some(taken), Some(flag)) => *taken = flag,
                (Some(_), None) if place == 0 && args.len() == 1 && device.is_none() => device = Some(value),
                _ => return Err(type_error(format!("Event() takes four flags, or a device, not {value:?}"))),
            }
        }
        if let Some(device) = device.filter(|device| !device.is_none())
            && crate::device::read(&device)?.is_none()
        {
            return Err(type_error(format!("Event() takes flags and a device, not {device:?}")));
        }
        let [timing, blocking, interprocess, external] = flags;
        if interprocess {
            return Err(left_out(
                "Event(interprocess=True) is left out: events of other processes are in the Rust crate only",
            ));
        }
        let event = Event::with_flags(EventFlags { timing, blocking_sync: blocking });
        Ok(Self(if external { event.external() } else { event }))
    }

    /// The driver's handle, for other libraries; 0 until the event is first recorded.
    #[getter]
    fn cuda_event(&self) -> PyResult<u64> {
        self.0.cuda_event().map_err(|error| exception(&error))
    }

    /// The driver's handle, the same as `cuda_event`.
    #[getter]
    fn event_id(&self) -> PyResult<u64> {
        self.cuda_event()
    }

    /// The driver's handle as `ctypes` passes it.
    #[getter]
    fn _as_parameter_<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("ctypes")?.getattr("c_void_p")?.call1((self.cuda_event()?,))
    }

    /// The device of the first record; `None` until then.
    #[getter]
    fn device(&self) -> Option<PyDevice> {
        self.0.device().map(PyDevice::of)
    }

    /// Refuses: events of other processes are not supported.
    fn ipc_handle(&self) -> PyResult<()> {
        Err(left_out("Event.ipc_handle is left out: events of other processes are in the Rust crate only"))
    }

    /// Refuses: events of other processes are not supported.
    #[classmethod]
    fn from_ipc_handle(
        _cls: &Bound<'_, PyType>,
        _device: &Bound<'_, PyAny>,
        _handle: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        Err(left_out(
            "Event.from_ipc_handle is left out: events of other processes are in the Rust crate only",
        ))
    }

    /// Records the event after the current work of a stream, by default the current stream.
    #[pyo3(signature = (stream=None))]
    fn record(&self, py: Python<'_>, stream: Option<&Bound<'_, PyStream>>) -> PyResult<()> {
        let stream = stream_or_current(py, stream)?;
        run(py, || self.0.record(&stream))
    }

    /// Makes a stream wait for the event, by default the current stream.
    #[pyo3(signature = (stream=None))]
    fn wait(&self, py: Python<'_>, stream: Option<&Bound<'_, PyStream>>) -> PyResult<()> {
        let stream = stream_or_current(py, stream)?;
        run(py, || self.0.wait(&stream))
    }

    /// Returns whether the work before the event has finished.
    fn query(&self, py: Python<'_>) -> PyResult<bool> {
        run(py, || self.0.query())
    }

    /// Blocks until the work before the event has finished.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        run(py, || self.0.synchronize())
    }

    /// Returns the time between two events, in milliseconds.
    fn elapsed_time(&self, py: Python<'_>, end_event: &Bound<'_, Self>) -> PyResult<f32> {
        let end = end_event.get();
        if !self.0.has_timing() || !end.0.has_timing() {
            return Err(value_error("Both events must be created with argument 'enable_timing=True'."));
        }
        if self.0.device().is_none() || end.0.device().is_none() {
            return Err(value_error("Both events must be recorded before calculating elapsed time."));
        }
        run(py, || self.0.elapsed_ms(&end.0))
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let (own, class) = (slf.get(), slf.get_type().fully_qualified_name()?);
        Ok(match own.device() {
            Some(device) => format!("<{class} device={} {:#x}>", device.__str__(), own.cuda_event()?),
            None => format!("<{class} uninitialized>"),
        })
    }
}

/// Adds the class.
pub fn register(own: &Bound<'_, PyModule>) -> PyResult<()> {
    own.add_class::<PyEvent>()
}
