//! `Generator`: a source of random numbers as an object, and the argument `generator` of functions that draw.

use std::sync::Arc;

use pyo3::prelude::*;
use thalweg::Device;
use thalweg::random::{DeviceGenerator, default_generator};
use thalweg_lock::Mutex;

use crate::device::{PyDevice, or_current};
use crate::failure::{run, runtime, value_error};

/// A source of random numbers on a device (`torch.Generator`). One that has none yet becomes, at its first use, the default generator
/// of the device that is then current: `manual_seed` opens no device.
#[pyclass(name = "Generator", module = "thalweg", frozen)]
pub struct PyGenerator(Mutex<Option<Arc<DeviceGenerator>>>);

/// The seed of a generator that was not seeded, the same as PyTorch's.
const SEED: u64 = 67_280_421_310_721;

impl PyGenerator {
    /// Returns a generator with a source.
    fn of(source: Arc<DeviceGenerator>) -> Self {
        Self(Mutex::new(Some(source)))
    }

    /// Returns the random source.
    pub fn source(&self, py: Python<'_>) -> PyResult<Arc<DeviceGenerator>> {
        if let Some(source) = &*self.0.lock() {
            return Ok(source.clone());
        }
        let device = or_current(py, None)?;
        let source = run(py, || default_generator(&device))?;
        Ok(self.0.lock().get_or_insert(source).clone())
    }

    /// Returns the source for a call that host and device perform together, which cannot be captured.
    fn for_host(&self, py: Python<'_>, call: &str) -> PyResult<Arc<DeviceGenerator>> {
        let source = self.source(py)?;
        check_host(py, source.device(), &format!("Generator.{call}"))?;
        Ok(source)
    }

    /// Refuses a generator of a different device than that of the result.
    pub fn check(&self, py: Python<'_>, device: &Device) -> PyResult<()> {
        let source = self.source(py)?;
        if source.device() == device {
            return Ok(());
        }
        Err(runtime(format!(
            "Expected a '{device}' device type for generator but found '{}'",
            source.device()
        )))
    }
}

/// Refuses, while the current stream is captured, a call that host and device perform together.
pub fn check_host(py: Python<'_>, device: &Device, call: &str) -> PyResult<()> {
    if run(py, || device.current_stream().is_capturing())? {
        return Err(runtime(format!(
            "{call} is not possible while the current stream is captured: the seed and the offset are on the device. Call it before \
             the capture; each replay draws the numbers that follow"
        )));
    }
    Ok(())
}

#[pymethods]
impl PyGenerator {
    #[new]
    #[pyo3(signature = (device=None))]
    fn new(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let device = or_current(py, device)?;
        Ok(Self::of(Arc::new(run(py, || DeviceGenerator::new(SEED, &device))?)))
    }

    /// The device.
    #[getter]
    fn device(&self, py: Python<'_>) -> PyResult<PyDevice> {
        Ok(PyDevice::of(self.source(py)?.device().clone()))
    }

    /// Sets the seed, and returns the generator itself.
    fn manual_seed<'py>(slf: &Bound<'py, Self>, seed: i128) -> PyResult<Bound<'py, Self>> {
        if !(i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(&seed) {
            return Err(value_error(format!(
                "Overflow when unpacking long long: the seed {seed} has more than 64 bits"
            )));
        }
        let generator = slf.get().for_host(slf.py(), "manual_seed")?;
        run(slf.py(), || generator.manual_seed(seed as u64))?;
        Ok(slf.clone())
    }

    /// Sets a seed that differs from call to call, and returns it.
    fn seed(&self, py: Python<'_>) -> PyResult<u64> {
        let seed: u64 = py.import("secrets")?.call_method1("randbits", (53,))?.extract()?;
        let source = self.for_host(py, "seed")?;
        run(py, || source.manual_seed(seed))?;
        Ok(seed)
    }

    /// Returns the seed.
    fn initial_seed(&self, py: Python<'_>) -> PyResult<u64> {
        let source = self.for_host(py, "initial_seed")?;
        run(py, || Ok(source.state()?.0))
    }

    /// Pickles the device, the seed and the offset.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (PyDevice, u64, u64))> {
        let py = slf.py();
        let generator = slf.get().for_host(py, "__reduce__")?;
        let (seed, offset) = run(py, || generator.state())?;
        let restored = py.import("thalweg.random")?.getattr("_restored")?;
        Ok((restored, (PyDevice::of(generator.device().clone()), seed, offset)))
    }

    /// Returns the seed and the offset of the next draw.
    fn _state(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let source = self.for_host(py, "get_state")?;
        run(py, || source.state())
    }

    /// Sets the seed and the offset of the next draw.
    fn _set_state(&self, py: Python<'_>, seed: u64, offset: u64) -> PyResult<()> {
        let source = self.for_host(py, "set_state")?;
        run(py, || source.set_state(seed, offset))
    }

    /// Returns a generator that shares its state with this one, for `graphsafe_set_state`.
    fn graphsafe_get_state(&self, py: Python<'_>) -> PyResult<Self> {
        self.source(py).map(Self::of)
    }

    /// Shares the state of another generator from now on. Draws that were already captured keep the former state.
    fn graphsafe_set_state(&self, state: &Bound<'_, Self>) -> PyResult<()> {
        let py = state.py();
        let source = state.get().source(py)?;
        state.get().check(py, self.source(py)?.device())?;
        *self.0.lock() = Some(source);
        Ok(())
    }

    /// Returns the offset of the next draw.
    fn get_offset(&self, py: Python<'_>) -> PyResult<u64> {
        let source = self.for_host(py, "get_offset")?;
        run(py, || Ok(source.state()?.1))
    }

    /// Sets the offset of the next draw, a multiple of 4.
    fn set_offset(&self, py: Python<'_>, offset: u64) -> PyResult<()> {
        let source = self.for_host(py, "set_offset")?;
        run(py, || source.set_state(source.state()?.0, offset))
    }
}

/// Returns the default generator of a device.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn _default_generator(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<PyGenerator> {
    let device = or_current(py, device)?;
    run(py, || default_generator(&device)).map(PyGenerator::of)
}

/// Returns the default generator of the device that is current when it is first used.
#[pyfunction]
fn _generator_of_current_device() -> PyGenerator {
    PyGenerator(Mutex::new(None))
}

/// Adds the class and the functions.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyGenerator>()?;
    module.add_function(wrap_pyfunction!(_generator_of_current_device, module)?)?;
    module.add_function(wrap_pyfunction!(_default_generator, module)?)
}
