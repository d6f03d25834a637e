//! `dtype`, and the PyTorch objects that are plain numbers here: memory formats and layouts.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyComplex, PyFloat, PyInt, PyType};
use thalweg::DType;
use thalweg::ops::schema::Kind as SchemaKind;
use thalweg::ops::{default_dtype, set_default_dtype};

/// A dtype (`torch.dtype`). There is one object per dtype, so `is` compares as `==` does.
#[pyclass(name = "dtype", module = "thalweg", frozen, eq, hash)]
#[derive(PartialEq, Eq, Hash)]
pub struct PyDType(Kind);

/// A dtype of tensors, or one of PyTorch's dtypes that no tensor here has but that programs compare with.
#[derive(PartialEq, Eq, Hash)]
enum Kind {
    Held(DType),
    Named(&'static str, usize),
}

/// PyTorch's dtypes that no tensor here has, with the size of an element in bytes.
const NAMED: [(&str, usize); 31] = [
    ("uint32", 4),
    ("uint64", 8),
    ("complex32", 4),
    ("float8_e4m3fnuz", 1),
    ("float8_e5m2fnuz", 1),
    ("float8_e8m0fnu", 1),
    ("float4_e2m1fn_x2", 1),
    ("qint8", 1),
    ("qint32", 4),
    ("quint8", 1),
    ("quint4x2", 1),
    ("quint2x4", 1),
    ("bits1x8", 1),
    ("bits2x4", 1),
    ("bits4x2", 1),
    ("bits8", 1),
    ("bits16", 2),
    ("int1", 1),
    ("int2", 1),
    ("int3", 1),
    ("int4", 1),
    ("int5", 1),
    ("int6", 1),
    ("int7", 1),
    ("uint1", 1),
    ("uint2", 1),
    ("uint3", 1),
    ("uint4", 1),
    ("uint5", 1),
    ("uint6", 1),
    ("uint7", 1),
];

impl PyDType {
    /// Returns the dtype of tensors, or an error if no tensor can have it.
    pub fn held(&self) -> PyResult<DType> {
        match self.0 {
            Kind::Held(dtype) => Ok(dtype),
            Kind::Named(name, _) => Err(PyTypeError::new_err(format!(
                "no tensor has the dtype torch.{name}: it is only a name here"
            ))),
        }
    }
}

#[pymethods]
impl PyDType {
    fn __repr__(&self) -> String {
        format!("torch.{}", self._name())
    }

    fn __reduce__(&self) -> String {
        self._name().to_owned()
    }

    /// Whether the dtype is a floating-point one.
    #[getter]
    fn is_floating_point(&self) -> bool {
        match self.0 {
            Kind::Held(dtype) => dtype.is_floating_point(),
            Kind::Named(name, _) => name.starts_with("float"),
        }
    }

    /// Whether the dtype is complex.
    #[getter]
    fn is_complex(&self) -> bool {
        match self.0 {
            Kind::Held(dtype) => dtype.is_complex(),
            Kind::Named(name, _) => name.starts_with("complex"),
        }
    }

    /// Whether the dtype can represent negative numbers.
    #[getter]
    fn is_signed(&self) -> bool {
        match self.0 {
            Kind::Held(dtype) => dtype.is_signed(),
            Kind::Named(name, _) => !name.starts_with(['u', 'b']) && !name.starts_with("quint"),
        }
    }

    /// The size of an element in bytes.
    #[getter]
    fn itemsize(&self) -> usize {
        match self.0 {
            Kind::Held(dtype) => dtype.size_bytes(),
            Kind::Named(_, size) => size,
        }
    }

    /// The name without a prefix (`float32`).
    #[getter]
    fn _name(&self) -> &'static str {
        match self.0 {
            Kind::Held(dtype) => dtype.name(),
            Kind::Named(name, _) => name,
        }
    }

    /// The name of PyTorch's scalar type (`Float`); the name without a prefix if no tensor has the dtype.
    #[getter]
    fn _scalar_type(&self) -> &'static str {
        match self.0 {
            Kind::Held(dtype) => dtype.exchange().scalar_type,
            Kind::Named(name, _) => name,
        }
    }

    /// Whether PyTorch has classes of storages of the dtype.
    #[getter]
    fn _has_classes(&self) -> PyResult<bool> {
        Ok(self.held()?.exchange().has_classes)
    }

    /// The name in files of the format `safetensors`, or None.
    #[getter]
    fn _safetensors(&self) -> PyResult<Option<&'static str>> {
        Ok(self.held()?.exchange().safetensors)
    }

    /// Kind and bytes in the interfaces of arrays (`f4`), or None.
    #[getter]
    fn _array(&self) -> PyResult<Option<&'static str>> {
        Ok(self.held()?.exchange().array)
    }

    /// Whether arithmetic is done in the dtype itself.
    #[getter]
    fn _is_computed(&self) -> PyResult<bool> {
        Ok(self.held()?.compute() == self.held()?)
    }

    /// Whether tensors have it.
    #[getter]
    fn _is_held(&self) -> bool {
        matches!(self.0, Kind::Held(_))
    }
}

/// The objects of the dtypes, in the order of [`DType::ALL`].
static OBJECTS: PyOnceLock<Vec<Py<PyDType>>> = PyOnceLock::new();

/// Returns the Python object of a dtype.
pub fn object(py: Python<'_>, dtype: DType) -> PyResult<Py<PyDType>> {
    let objects = OBJECTS.get_or_try_init(py, || {
        DType::ALL.iter().map(|&dtype| Py::new(py, PyDType(Kind::Held(dtype)))).collect::<PyResult<Vec<_>>>()
    })?;
    let place = DType::ALL.iter().position(|&known| known == dtype).expect("the list has every dtype");
    Ok(objects[place].clone_ref(py))
}

/// Reads a dtype: a dtype object, or a Python type that stands for one.
pub fn read(value: &Bound<'_, PyAny>) -> Option<DType> {
    if let Ok(dtype) = value.cast::<PyDType>() {
        return dtype.get().held().ok();
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

/// An order of dimensions in memory (`torch.memory_format`) or a layout (`torch.layout`), with PyTorch's number for it.
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

/// Returns the object of a memory format or a layout by its number.
pub fn numbered<'py>(py: Python<'py>, kind: SchemaKind, number: i64) -> PyResult<Bound<'py, PyAny>> {
    let name = match kind {
        SchemaKind::Layout => "strided",
        _ => NUMBERED.iter().find(|&&(_, own)| own == number).map_or("contiguous_format", |(name, _)| name),
    };
    py.import("thalweg._core")?.getattr(name)
}

/// Aliases of dtypes.
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

/// Returns the default floating-point dtype (`torch.get_default_dtype`).
#[pyfunction]
fn get_default_dtype(py: Python<'_>) -> PyResult<Py<PyDType>> {
    object(py, default_dtype())
}

/// Sets the default floating-point dtype of the process (`torch.set_default_dtype`): float64, float32, float16 or bfloat16.
/// Tensors that are made from floats without a dtype have it, and operators that turn integers into floats return it. The parts
/// of complex numbers without a dtype have it as well.
#[pyfunction(name = "set_default_dtype")]
fn choose_default_dtype(d: &PyDType) -> PyResult<()> {
    let dtype = d.held()?;
    if !set_default_dtype(dtype) {
        return Err(PyTypeError::new_err("only floating-point types are supported as the default type"));
    }
    Ok(())
}

/// Returns the dtypes of tensors.
#[pyfunction]
fn _dtypes(py: Python<'_>) -> PyResult<Vec<Py<PyDType>>> {
    DType::ALL.iter().map(|&dtype| object(py, dtype)).collect()
}

/// Adds the classes and their objects.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add_class::<PyDType>()?;
    module.add_class::<Numbered>()?;
    functions![module; get_default_dtype, choose_default_dtype];
    for dtype in DType::ALL {
        module.add(dtype.name(), object(py, dtype)?)?;
    }
    module.add_function(wrap_pyfunction!(_dtypes, module)?)?;
    for (name, size) in NAMED.into_iter().filter(|(name, _)| name.parse::<DType>().is_err()) {
        module.add(name, Py::new(py, PyDType(Kind::Named(name, size)))?)?;
    }
    for (name, dtype) in ALIASES {
        module.add(name, object(py, dtype)?)?;
    }
    for (name, number) in NUMBERED {
        module.add(name, Numbered { name, number })?;
    }
    Ok(())
}
