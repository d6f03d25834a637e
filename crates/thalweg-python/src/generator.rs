//! `Generator`: a source of random numbers as an object, and the argument `generator` of functions that draw.

use std::sync::Arc;

use pyo3::prelude::*;
use thalweg::Device;
use thalweg::random::{DeviceGenerator, default_generator};

use crate::device::{PyDevice, or_current};
use crate::failure::{run, runtime, value_error};

/// A source of random numbers on a device (`torch.Generator`).
#[pyclass(name = "Generator", module = "thalweg", frozen)]
pub struct PyGenerator(pub Arc<DeviceGenerator>);

/// The seed of a generator that was given none, PyTorch's.
const SEED: u64 = 67_280_421_310_721;

impl PyGenerator {
    /// Refuses a generator of another device than that of the numbers.
    pub fn check(&self, device: &Device) -> PyResult<()> {
        if self.0.device() == device {
            return Ok(());
        }
        Err(runtime(format!(
            "Expected a '{device}' device type for generator but found '{}'",
            self.0.device()
        )))
    }
}

#[pymethods]
impl PyGenerator {
    #[new]
    #[pyo3(signature = (device=None))]
    fn new(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let device = or_current(py, device)?;
        Ok(Self(Arc::new(run(py, || DeviceGenerator::new(SEED, &device))?)))
    }

    /// The device.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice::of(self.0.device().clone())
    }

    /// Sets the seed, and returns the generator itself.
    fn manual_seed<'py>(slf: &Bound<'py, Self>, seed: i128) -> PyResult<Bound<'py, Self>> {
        if !(i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(&seed) {
            return Err(value_error(format!(
                "Overflow when unpacking long long: the seed {seed} has more than 64 bits"
            )));
        }
        let generator = &slf.get().0;
        run(slf.py(), || generator.manual_seed(seed as u64))?;
        Ok(slf.clone())
    }

    /// Sets a seed that differs each time, and returns it.
    fn seed(&self, py: Python<'_>) -> PyResult<u64> {
        let seed: u64 = py.import("secrets")?.call_method1("randbits", (53,))?.extract()?;
        run(py, || self.0.manual_seed(seed))?;
        Ok(seed)
    }

    /// Returns the seed.
    fn initial_seed(&self, py: Python<'_>) -> PyResult<u64> {
        run(py, || Ok(self.0.state()?.0))
    }

    /// Pickles device, seed and offset.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (PyDevice, u64, u64))> {
        let py = slf.py();
        let generator = &slf.get().0;
        let (seed, offset) = run(py, || generator.state())?;
        let restored = py.import("thalweg.random")?.getattr("_restored")?;
        Ok((restored, (PyDevice::of(generator.device().clone()), seed, offset)))
    }

    /// Returns the seed and the offset of the next draw.
    fn _state(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        run(py, || self.0.state())
    }

    /// Sets the seed and the offset of the next draw.
    fn _set_state(&self, py: Python<'_>, seed: u64, offset: u64) -> PyResult<()> {
        run(py, || self.0.set_state(seed, offset))
    }
}

/// Returns the default generator of a device.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn _default_generator(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<PyGenerator> {
    let device = or_current(py, device)?;
    run(py, || default_generator(&device)).map(PyGenerator)
}

/// Adds the class and the functions.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyGenerator>()?;
    module.add_function(wrap_pyfunction!(_default_generator, module)?)
}
