//! `device`, and the device of a call that names none.

use pyo3::basic::CompareOp;
use pyo3::prelude::*;
use thalweg::Device;

use crate::failure::{exception, run, type_error};
use crate::regions::{self, Current, Owner};

/// A device (`torch.device`): `cuda:0`, `sim:0`, `meta`.
#[pyclass(name = "device", module = "thalweg", frozen)]
pub struct PyDevice(pub Device);

/// Returns the device of a name. `cpu` names the simulated GPU, whose memory is the host's; a kind without a number is its current
/// device.
pub fn named(name: &str) -> thalweg::Result<Device> {
    let name = match name.split_once(':').unwrap_or((name, "")) {
        // A check has one device, whatever the program calls it.
        ("cpu" | "cuda" | "sim", "" | "0") if crate::check::is_running() => return Device::current(),
        ("cpu", _) => return Device::sim(0),
        (kind, "") => {
            let current = Device::current()?;
            if current.driver().name() == kind {
                return Ok(current);
            }
            name
        }
        _ => name,
    };
    Device::from_name(name).map_err(|error| match name.starts_with("cuda") && !error.is_invalid_argument() {
        true => error.context(
            "no GPU can be used (the simulated GPU needs none: say device=\"sim\", or name no device)",
        ),
        false => error,
    })
}

/// Reads a device: an object of one, a name, or the number of a GPU.
pub fn read(value: &Bound<'_, PyAny>) -> PyResult<Option<Device>> {
    if let Ok(device) = value.cast::<PyDevice>() {
        return Ok(Some(device.get().0.clone()));
    }
    if let Ok(name) = value.extract::<String>() {
        return run(value.py(), || named(&name)).map(Some);
    }
    if let Ok(number) = value.extract::<u32>() {
        return run(value.py(), || numbered(number)).map(Some);
    }
    Ok(None)
}

/// Returns the device of a number: of the kind of the current device.
fn numbered(number: u32) -> thalweg::Result<Device> {
    let current = Device::current()?;
    if current.is_simulated() { Device::sim(number) } else { Device::cuda(number) }
}

/// Returns the device of an argument: the current one of `None`.
pub fn or_current(py: Python<'_>, value: Option<&Bound<'_, PyAny>>) -> PyResult<Device> {
    match value {
        None => run(py, Device::current),
        Some(value) if value.is_none() => run(py, Device::current),
        Some(value) => read(value)?.ok_or_else(|| type_error(format!("{value:?} is not a device"))),
    }
}

#[pymethods]
impl PyDevice {
    #[new]
    #[pyo3(signature = (r#type, index=None))]
    fn new(r#type: &Bound<'_, PyAny>, index: Option<u32>) -> PyResult<Self> {
        let device = match index {
            None => read(r#type)?,
            Some(index) => {
                let name = format!("{}:{index}", r#type.extract::<String>()?);
                Some(run(r#type.py(), || named(&name))?)
            }
        };
        device.map(Self).ok_or_else(|| type_error("device() takes a name, a number or a device"))
    }

    /// The kind: `cuda`, `sim` or `meta`.
    #[getter]
    fn r#type(&self) -> &'static str {
        self.0.driver().name()
    }

    /// The number among the devices of its kind.
    #[getter]
    fn index(&self) -> u32 {
        self.0.index()
    }

    fn __repr__(&self) -> String {
        format!("device(type='{}', index={})", self.0.driver().name(), self.0.index())
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __hash__(&self) -> u64 {
        self.0.number()
    }

    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<(Py<PyAny>, (String,))> {
        Ok((slf.get_type().into_any().unbind(), (slf.get().0.to_string(),)))
    }

    fn __richcmp__(&self, other: &Bound<'_, PyAny>, op: CompareOp) -> Option<bool> {
        let is_same = match other.cast::<Self>() {
            Ok(other) => self.0 == other.get().0,
            Err(_) => false,
        };
        match op {
            CompareOp::Eq => Some(is_same),
            CompareOp::Ne => Some(!is_same),
            _ => None,
        }
    }
}

/// Makes a device current on this thread, until `_exit` is called for the same object.
#[pyfunction]
fn _enter_device(device: &Bound<'_, PyAny>, owner: &Bound<'_, PyAny>) -> PyResult<()> {
    let device = or_current(device.py(), Some(device))?;
    regions::enter(Owner::object(owner), Current::device(&device));
    Ok(())
}

/// Makes a device the current one of this thread (`torch.set_default_device`).
#[pyfunction]
fn _set_current_device(device: &Bound<'_, PyAny>) -> PyResult<()> {
    let device = or_current(device.py(), Some(device))?;
    regions::set(Current::device(&device));
    Ok(())
}

/// Returns the device on which tensors are made that name none (`torch.get_default_device`).
#[pyfunction]
fn get_default_device() -> PyResult<PyDevice> {
    Device::current().map(PyDevice).map_err(|error| exception(&error))
}

/// Adds the class and the functions.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyDevice>()?;
    module.add_function(wrap_pyfunction!(_enter_device, module)?)?;
    module.add_function(wrap_pyfunction!(_set_current_device, module)?)?;
    module.add_function(wrap_pyfunction!(get_default_device, module)?)
}
