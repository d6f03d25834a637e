//! `device`, and the default device of a call that names none.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use pyo3::basic::CompareOp;
use pyo3::prelude::*;
use thalweg::{Device, Error};

use crate::failure::{exception, run, type_error};
use crate::regions::{self, Current, Owner};

/// A device (`torch.device`): `cuda:0`, `sim:0`, `meta`. A GPU is only a name until it is used.
#[pyclass(name = "device", module = "thalweg", frozen)]
#[derive(Clone)]
pub struct PyDevice(Place);

#[derive(Clone)]
enum Place {
    Open(Device),
    Named { kind: &'static str, index: Option<u32> },
}

/// The kinds of devices that are only names until they are used: PyTorch's kinds, of which all but the first have no backend
/// here.
const NAMES: [&str; 20] = [
    "cuda",
    "ipu",
    "xpu",
    "mkldnn",
    "opengl",
    "opencl",
    "ideep",
    "hip",
    "ve",
    "fpga",
    "maia",
    "xla",
    "lazy",
    "vulkan",
    "mps",
    "hpu",
    "mtia",
    "privateuseone",
    "sparse",
    "quantized",
];

/// The kind that the simulated GPU is shown as: its own, or one of PyTorch's kinds if this package is `torch`.
static SHOWN: AtomicU8 = AtomicU8::new(0);
const SHOWN_KINDS: [&str; 3] = ["sim", "cpu", "cuda"];

fn shown_kind() -> &'static str {
    SHOWN_KINDS[usize::from(SHOWN.load(Ordering::Relaxed))]
}

/// Returns whether `cuda` means the simulated GPU: this package is `torch` and the machine has no GPU.
fn stands_in() -> bool {
    static HAS_GPU: OnceLock<bool> = OnceLock::new();
    SHOWN.load(Ordering::Relaxed) != 0 && !*HAS_GPU.get_or_init(thalweg::is_available)
}

/// Returns the simulated GPU in place of a GPU, and warns about it once.
fn stand_in(index: &str) -> thalweg::Result<Device> {
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    if !IS_SAID.swap(true, Ordering::Relaxed) {
        eprintln!("thalweg: this machine has no GPU: `cuda` is the simulated one");
    }
    let current = Device::current()?;
    if index.is_empty() && current.is_simulated() {
        return Ok(current);
    }
    Device::from_name(&format!("sim:{}", if index.is_empty() { "0" } else { index }))
}

/// Returns the device with the given name. `cpu` names the simulated GPU, whose memory is host memory. A kind without a number is
/// its current device.
pub fn named(name: &str) -> thalweg::Result<Device> {
    let name = match name.split_once(':').unwrap_or((name, "")) {
        // During a check there is one device, under every name that the program uses.
        ("cpu" | "cuda" | "sim", "" | "0") if crate::check::is_running() => return Device::current(),
        ("cpu", _) => return Device::sim(0),
        ("cuda", index) if stands_in() => return stand_in(index),
        (kind, "") => {
            let current = Device::current()?;
            if current.driver().name() == kind {
                return Ok(current);
            }
            name
        }
        (kind, _) if kind != "cuda" && NAMES.contains(&kind) => {
            return Err(Error::invalid(format!(
                "device '{name}': there is no backend for '{kind}' here; write `cuda`, `sim`, `cpu` or `meta`"
            )));
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

/// Reads a device: a device object, a name, or the number of a GPU.
pub fn read(value: &Bound<'_, PyAny>) -> PyResult<Option<Device>> {
    if let Ok(device) = value.cast::<PyDevice>() {
        return device.get().open(value.py()).map(Some);
    }
    if let Ok(name) = value.extract::<String>() {
        return run(value.py(), || named(&name)).map(Some);
    }
    if let Ok(number) = value.extract::<u32>() {
        return run(value.py(), || numbered(number)).map(Some);
    }
    Ok(None)
}

/// Returns the device with the given number, of the current device's kind.
fn numbered(number: u32) -> thalweg::Result<Device> {
    let current = Device::current()?;
    if current.is_simulated() { Device::sim(number) } else { Device::cuda(number) }
}

/// Returns the device of an argument, or the current device for `None`.
pub fn or_current(py: Python<'_>, value: Option<&Bound<'_, PyAny>>) -> PyResult<Device> {
    match value {
        None => run(py, Device::current),
        Some(value) if value.is_none() => run(py, Device::current),
        Some(value) => read(value)?.ok_or_else(|| type_error(format!("{value:?} is not a device"))),
    }
}

/// Parses the name of a device. A GPU stays a name.
fn parsed(py: Python<'_>, text: &str) -> PyResult<PyDevice> {
    let (kind, number) = text.split_once(':').unwrap_or((text, ""));
    match NAMES.into_iter().find(|&known| known == kind) {
        Some(kind) if !crate::check::is_running() => {
            let index = if number.is_empty() {
                None
            } else {
                Some(number.parse().map_err(|_| {
                    pyo3::exceptions::PyRuntimeError::new_err(format!("Invalid device string: '{text}'"))
                })?)
            };
            Ok(PyDevice(Place::Named { kind, index }))
        }
        _ => run(py, || named(text)).map(PyDevice::of),
    }
}

impl PyDevice {
    /// Returns the object of a device.
    pub fn of(device: Device) -> Self {
        Self(Place::Open(device))
    }

    /// Returns the device, opening it if it is only a name.
    fn open(&self, py: Python<'_>) -> PyResult<Device> {
        match &self.0 {
            Place::Open(device) => Ok(device.clone()),
            Place::Named { .. } => run(py, || named(&self.__str__())),
        }
    }
}

#[pymethods]
impl PyDevice {
    #[new]
    #[pyo3(signature = (r#type, index=None))]
    fn new(r#type: &Bound<'_, PyAny>, index: Option<u32>) -> PyResult<Self> {
        let py = r#type.py();
        if let Ok(device) = r#type.cast::<Self>() {
            return Ok(device.get().clone());
        }
        if let Ok(text) = r#type.extract::<String>() {
            return match index {
                None => parsed(py, &text),
                Some(index) => parsed(py, &format!("{text}:{index}")),
            };
        }
        read(r#type)?.map(Self::of).ok_or_else(|| type_error("device() takes a name, a number or a device"))
    }

    /// The kind: `cuda`, `sim` or `meta`.
    #[getter]
    fn r#type(&self) -> &'static str {
        match &self.0 {
            Place::Open(device) if device.is_meta() => "meta",
            Place::Open(device) if device.is_simulated() => shown_kind(),
            Place::Open(device) => device.driver().name(),
            Place::Named { kind, .. } => kind,
        }
    }

    /// The number among the devices of its kind, if it has one.
    #[getter]
    fn index(&self) -> Option<u32> {
        match &self.0 {
            Place::Open(device) if device.is_meta() => None,
            Place::Open(device) if self.r#type() == "cpu" && device.index() == 0 => None,
            Place::Open(device) => Some(device.index()),
            Place::Named { index, .. } => *index,
        }
    }

    fn __repr__(&self) -> String {
        match self.index() {
            Some(index) => format!("device(type='{}', index={index})", self.r#type()),
            None => format!("device(type='{}')", self.r#type()),
        }
    }

    pub fn __str__(&self) -> String {
        match self.index() {
            Some(index) => format!("{}:{index}", self.r#type()),
            None => self.r#type().to_owned(),
        }
    }

    fn __hash__(&self) -> u64 {
        let place = SHOWN_KINDS.iter().chain(&NAMES).chain(&["meta"]).position(|&kind| kind == self.r#type());
        (place.unwrap_or_default() as u64) << 32 | u64::from(self.index().map_or(0, |index| index + 1))
    }

    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<(Py<PyAny>, (String,))> {
        Ok((slf.get_type().into_any().unbind(), (slf.get().__str__(),)))
    }

    fn __richcmp__(&self, other: &Bound<'_, PyAny>, op: CompareOp) -> Option<bool> {
        let is_same = match other.cast::<Self>() {
            Ok(other) => (self.r#type(), self.index()) == (other.get().r#type(), other.get().index()),
            Err(_) => false,
        };
        match op {
            CompareOp::Eq => Some(is_same),
            CompareOp::Ne => Some(!is_same),
            _ => None,
        }
    }
}

/// Returns whether the simulated GPU is shown as the CPU.
pub fn is_shown_as_cpu() -> bool {
    shown_kind() == "cpu"
}

/// Returns whether a device is shown as a CUDA GPU.
pub fn is_shown_as_cuda(device: &Device) -> bool {
    !device.is_meta() && (!device.is_simulated() || shown_kind() == "cuda")
}

/// Returns a tensor's text with its device as it is shown. `cpu` is omitted.
pub fn with_shown_device(text: String, device: &Device) -> String {
    if !device.is_simulated() || device.is_meta() || shown_kind() == "sim" {
        return text;
    }
    let (own, shown) = (format!("device='{device}'"), PyDevice::of(device.clone()).__str__());
    if shown == "cpu" {
        return text.replace(&format!(", {own}"), "").replace(&format!(",\n       {own}"), "");
    }
    text.replace(&own, &format!("device='{shown}'"))
}

/// Sets the kind that the simulated GPU is shown as: `sim`, `cpu` or `cuda`. With one of PyTorch's kinds, `cuda` means the
/// simulated GPU if there is no other GPU. `memory_bytes` is its memory unless the environment sets it.
#[pyfunction]
#[pyo3(signature = (kind, memory_bytes=None))]
fn _show_simulated_as(kind: &str, memory_bytes: Option<u64>) -> PyResult<()> {
    if let Some(bytes) = memory_bytes {
        thalweg::runtime::set_sim_memory(bytes);
    }
    let Some(place) = SHOWN_KINDS.iter().position(|&known| known == kind) else {
        return Err(pyo3::exceptions::PyValueError::new_err(format!(
            "the simulated GPU is shown as sim, cpu or cuda, not as {kind:?}"
        )));
    };
    SHOWN.store(u8::try_from(place).expect("there are three"), Ordering::Relaxed);
    Ok(())
}

/// Returns the kind that the simulated GPU is shown as.
#[pyfunction]
fn _simulated_is_shown_as() -> &'static str {
    shown_kind()
}

/// Makes a device current on this thread, until `_exit` is called for the same owner.
#[pyfunction]
fn _enter_device(device: &Bound<'_, PyAny>, owner: &Bound<'_, PyAny>) -> PyResult<()> {
    let device = or_current(device.py(), Some(device))?;
    regions::enter(Owner::object(owner), Current::device(&device));
    Ok(())
}

/// Makes a device the current device of this thread (`torch.set_default_device`).
#[pyfunction]
fn _set_current_device(device: &Bound<'_, PyAny>) -> PyResult<()> {
    let device = or_current(device.py(), Some(device))?;
    regions::set(Current::device(&device));
    Ok(())
}

/// Returns the device for tensors that are made without a `device` argument (`torch.get_default_device`).
#[pyfunction]
fn get_default_device() -> PyResult<PyDevice> {
    Device::current().map(PyDevice::of).map_err(|error| exception(&error))
}

/// Adds the class and the functions.
/// Searches the package's folder for compiled kernels.
#[pyfunction]
fn _use_precompiled(folder: std::path::PathBuf) {
    thalweg::runtime::use_precompiled(folder);
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(_use_precompiled, module)?)?;
    module.add_class::<PyDevice>()?;
    functions![module;
        _show_simulated_as, _simulated_is_shown_as, _enter_device, _set_current_device, get_default_device
    ];
    Ok(())
}
