//! `dtype`, and the objects of PyTorch that stand for numbers: memory formats and layouts.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyComplex, PyFloat, PyInt, PyType};
use thalweg::DType;

/// A dtype (`torch.dtype`). Each is one object, so `is` compares as `==` does.
#[pyclass(name = "dtype", module = "thalweg", frozen, eq, hash)]
#[derive(PartialEq, Eq, Hash)]
pub struct PyDType(pub DType);

#[pymethods]
impl PyDType {
    fn __repr__(&self) -> String {
        format!("torch.{}", self.0.name())
    }

    fn __reduce__(&self) -> String {
        self.0.name().to_owned()
    }

    /// Whether it is a floating-point dtype.
    #[getter]
    fn is_floating_point(&self) -> bool {
        self.0.is_floating_point()
    }

    /// Whether it is a complex dtype.
    #[getter]
    fn is_complex(&self) -> bool {
        self.0.is_complex()
    }

    /// Whether it has negative numbers.
    #[getter]
    fn is_signed(&self) -> bool {
        self.0.is_signed()
    }

    /// Bytes of an element.
    #[getter]
    fn itemsize(&self) -> usize {
        self.0.size_bytes()
    }

    /// The name without a prefix (`float32`).
    #[getter]
    fn _name(&self) -> &'static str {
        self.0.name()
    }
}

/// The objects of the dtypes, in the order of [`DType::ALL`].
static OBJECTS: PyOnceLock<Vec<Py<PyDType>>> = PyOnceLock::new();

/// Returns the object of a dtype.
pub fn object(py: Python<'_>, dtype: DType) -> PyResult<Py<PyDType>> {
    let objects = OBJECTS.get_or_try_init(py, || {
        DType::ALL.iter().map(|&dtype| Py::new(py, PyDType(dtype))).collect::<PyResult<Vec<_>>>()
    })?;
    let place = DType::ALL.iter().position(|&known| known == dtype).expect("the list has every dtype");
    Ok(objects[place].clone_ref(py))
}

/// Reads a dtype: an object of one, or a type of Python that stands for one.
pub fn read(value: &Bound<'_, PyAny>) -> Option<DType> {
    if let Ok(dtype) = value.cast::<PyDType>() {
        return Some(dtype.get().0);
    }
    let ty = value.cast::<PyType>().ok()?;
    let py = value.py();
    if ty.is(py.get_type::<PyBool>()) {
        Some(DType::Bool)
    } else if ty.is(py.get_type::<PyInt>()) {
        Some(DType::I64)
    } else if ty.is(py.get_type::<PyFloat>()) {
        Some(DType::F64)
    } else if ty.is(py.get_type::<PyComplex>()) {
        Some(DType::C128)
    } else {
        None
    }
}

/// An order of dimensions in memory (`torch.memory_format`), or a layout (`torch.layout`): PyTorch's number for it.
#[pyclass(name = "memory_format", module = "thalweg", frozen)]
pub struct Numbered {
    /// The name, as it is printed.
    name: &'static str,
    /// PyTorch's number.
    pub number: i64,
}

#[pymethods]
impl Numbered {
    fn __repr__(&self) -> String {
        format!("torch.{}", self.name)
    }

    fn __reduce__(&self) -> String {
        self.name.to_owned()
    }
}

/// PyTorch's memory formats and the one layout.
const NUMBERED: [(&str, i64); 5] = [
    ("contiguous_format", 0),
    ("preserve_format", 1),
    ("channels_last", 2),
    ("channels_last_3d", 3),
    ("strided", 0),
];

/// Other names of dtypes.
const ALIASES: [(&str, DType); 9] = [
    ("half", DType::F16),
    ("float", DType::F32),
    ("double", DType::F64),
    ("short", DType::I16),
    ("int", DType::I32),
    ("long", DType::I64),
    ("bool", DType::Bool),
    ("cfloat", DType::C64),
    ("cdouble", DType::C128),
];

/// Adds the classes and their objects.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add_class::<PyDType>()?;
    module.add_class::<Numbered>()?;
    for dtype in DType::ALL {
        module.add(dtype.name(), object(py, dtype)?)?;
    }
    for (name, dtype) in ALIASES {
        module.add(name, object(py, dtype)?)?;
    }
    for (name, number) in NUMBERED {
        module.add(name, Numbered { name, number })?;
    }
    Ok(())
}
