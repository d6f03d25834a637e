//! Signatures: the check whether the arguments of a captured function are of a kind that is known, without a call of Python.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType};
use smallvec::SmallVec;
use thalweg::{DType, Device};

use crate::handle::{Held, PyTensor};

/// The arguments of one kind of call: tensors, constants and objects, without containers.
#[pyclass(frozen)]
pub struct _Signature {
    positional: Vec<Item>,
    named: Vec<(Py<PyString>, Item)>,
}

/// An argument.
enum Item {
    /// A tensor, with its place among the different tensors of the call.
    Tensor { described: Described, kind: Py<PyType>, place: usize },
    /// A value that must be equal, or another object, which must be the same one.
    Value(Py<PyAny>),
}

/// The facts about a tensor that decide the kernels for it.
#[derive(PartialEq)]
struct Described {
    shape: SmallVec<[usize; 6]>,
    strides: SmallVec<[usize; 6]>,
    dtype: DType,
    requires_grad: bool,
    device: Device,
}

impl Described {
    fn new(tensor: &Bound<'_, PyTensor>) -> Self {
        let tensor = tensor.tensor();
        Self {
            shape: tensor.shape().into(),
            strides: tensor.layout().strides().into(),
            dtype: tensor.dtype(),
            requires_grad: tensor.requires_grad(),
            device: tensor.device().clone(),
        }
    }

    fn fits(&self, tensor: &Bound<'_, PyTensor>) -> bool {
        let tensor = tensor.tensor();
        tensor.shape() == self.shape.as_slice()
            && tensor.layout().strides() == self.strides.as_slice()
            && tensor.dtype() == self.dtype
            && tensor.requires_grad() == self.requires_grad
            && *tensor.device() == self.device
    }
}

/// The different tensors of a call.
type Tensors<'py> = SmallVec<[Bound<'py, PyAny>; 8]>;

impl Item {
    fn new<'py>(value: Bound<'py, PyAny>, tensors: &mut Tensors<'py>) -> Self {
        let Ok(tensor) = value.cast::<PyTensor>() else { return Self::Value(value.unbind()) };
        let (described, kind) = (Described::new(tensor), value.get_type().unbind());
        let place = tensors.iter().position(|other| other.is(&value)).unwrap_or(tensors.len());
        if place == tensors.len() {
            tensors.push(value);
        }
        Self::Tensor { described, kind, place }
    }

    /// Returns whether a value is an argument of this kind. A tensor joins those of the call.
    fn fits<'py>(&self, value: &Bound<'py, PyAny>, tensors: &mut Tensors<'py>) -> PyResult<bool> {
        let (described, kind, place) = match self {
            Self::Value(known) => return is_same(known.bind(value.py()), value),
            Self::Tensor { described, kind, place } => (described, kind, *place),
        };
        if !value.get_type().is(kind.bind(value.py())) {
            return Ok(false);
        }
        let found = tensors.iter().position(|other| other.is(value)).unwrap_or(tensors.len());
        if found != place || !described.fits(value.cast::<PyTensor>()?) {
            return Ok(false);
        }
        if place == tensors.len() {
            tensors.push(value.clone());
        }
        // Attributes of the program's own are a reason not to capture.
        value.getattr(intern!(value.py(), "__dict__"))?.is_empty()
    }
}

/// Returns whether two values are the same object, or equal constants of one type.
fn is_same(known: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    if known.is(value) {
        return Ok(true);
    }
    if !known.get_type().is(value.get_type()) {
        return Ok(false);
    }
    if let (Ok(known), Ok(value)) = (known.cast_exact::<PyFloat>(), value.cast_exact::<PyFloat>()) {
        return Ok(known.value().to_bits() == value.value().to_bits());
    }
    let is_constant = value.is_exact_instance_of::<PyInt>()
        || value.is_exact_instance_of::<PyBool>()
        || value.is_exact_instance_of::<PyString>()
        || value.is_exact_instance_of::<PyBytes>();
    Ok(is_constant && known.eq(value)?)
}

#[pymethods]
impl _Signature {
    /// Returns the signature of arguments without containers.
    #[new]
    fn new(args: &Bound<'_, PyTuple>, kwargs: &Bound<'_, PyDict>) -> PyResult<Self> {
        let mut tensors = Tensors::new();
        let positional = args.iter().map(|value| Item::new(value, &mut tensors)).collect();
        let named = kwargs.iter().map(|(name, value)| -> PyResult<_> {
            Ok((name.cast_into::<PyString>()?.unbind(), Item::new(value, &mut tensors)))
        });
        let named = named.collect::<PyResult<_>>()?;
        Ok(Self { positional, named })
    }

    /// Returns the different tensors of arguments, or None if the arguments are not of this kind.
    fn tensors<'py>(
        &self,
        args: &Bound<'py, PyTuple>,
        kwargs: &Bound<'py, PyDict>,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        if args.len() != self.positional.len() || kwargs.len() != self.named.len() {
            return Ok(None);
        }
        let mut tensors = Tensors::new();
        for (item, value) in self.positional.iter().zip(args.iter_borrowed()) {
            if !item.fits(&value, &mut tensors)? {
                return Ok(None);
            }
        }
        for ((name, item), (given, value)) in self.named.iter().zip(kwargs.iter()) {
            if !name.bind(args.py()).as_any().eq(given)? || !item.fits(&value, &mut tensors)? {
                return Ok(None);
            }
        }
        PyList::new(args.py(), tensors).map(Some)
    }
}

/// Adds the class.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<_Signature>()
}
