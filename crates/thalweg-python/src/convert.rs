//! Conversion of Python values to arguments, and of numbers and nested lists to tensors and back.
//!
//! This module and `handle` use each other: a Python value may be a tensor, and the only element of a tensor is a Python value.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyComplex, PyFloat, PyInt, PyList, PySequence, PyString, PyTuple};
use thalweg::dispatch::Value;
use thalweg::ir::Category;
use thalweg::ops::default_dtype;
use thalweg::ops::schema::{Kind, Type};
use thalweg::tensor::converted;
use thalweg::{DType, Device, Scalar, Tensor, c128};

use crate::device;
use crate::dtype::{self, Numbered};
use crate::failure::{exception, run, runtime, type_error, value_error};
use crate::handle::{Held, PyTensor, complex_item, item};

/// Reads an argument for a parameter of the given type. Returns `None` if the argument has another type. A lenient read accepts a
/// tensor of one element as a number; the host waits for its value.
pub fn read_value(value: &Bound<'_, PyAny>, ty: &Type, lenient: bool) -> PyResult<Option<Value>> {
    if !ty.list
        && ty.kind == Kind::Tensor
        && let Ok(tensor) = value.cast::<PyTensor>()
    {
        return Ok(Some(Value::Tensor(tensor.tensor())));
    }
    if value.is_none() {
        return Ok(ty.optional.then_some(Value::None));
    }
    if ty.list {
        return read_list(value, ty, lenient);
    }
    Ok(match ty.kind {
        Kind::Tensor | Kind::Generator => None,
        Kind::Scalar => match read_complex(value) {
            Some(number) => Some(Value::Complex(number)),
            None => read_scalar(value, lenient)?.map(Value::Scalar),
        },
        Kind::Int => read_int_or_tensor(value, lenient)?.map(Value::Int),
        Kind::Float if value.is_instance_of::<PyBool>() => None,
        Kind::Float => read_scalar(value, lenient)?.map(|number| Value::Float(number.to_f64())),
        Kind::Bool => match value.cast::<PyBool>() {
            Ok(truth) => Some(Value::Bool(truth.is_true())),
            Err(_) => None,
        },
        Kind::Str => match value.cast::<PyString>() {
            Ok(text) => Some(Value::Str(text.to_cow()?.into_owned())),
            Err(_) => None,
        },
        Kind::DType => dtype::read(value).map(Value::DType),
        Kind::Device => device::read(value)?.map(Value::Device),
        Kind::Layout | Kind::MemoryFormat => {
            value.cast::<Numbered>().ok().map(|format| Value::Int(format.get().number))
        }
    })
}

/// Reads a list. A single number stands for a list of the type's fixed length.
fn read_list(value: &Bound<'_, PyAny>, ty: &Type, lenient: bool) -> PyResult<Option<Value>> {
    let is_list = value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>();
    if !is_list {
        return Ok(match (ty.length, ty.kind) {
            (Some(_), Kind::Int) => read_int_or_tensor(value, lenient)?.map(Value::Int),
            (Some(_), Kind::Float) => {
                read_scalar(value, lenient)?.map(|number| Value::Float(number.to_f64()))
            }
            (Some(_), Kind::Bool) => value.cast::<PyBool>().ok().map(|truth| Value::Bool(truth.is_true())),
            _ => None,
        });
    }
    fn all<'py, T>(
        list: &Bound<'py, PyAny>,
        read: impl Fn(&Bound<'py, PyAny>) -> PyResult<Option<T>>,
    ) -> PyResult<Option<Vec<T>>> {
        list.try_iter()?.map(|element| read(&element?)).collect()
    }
    let tensor =
        |element: &Bound<'_, PyAny>| Ok(element.cast::<PyTensor>().ok().map(|tensor| tensor.tensor()));
    Ok(match ty.kind {
        Kind::Tensor if ty.optional_elements => {
            all(
                value,
                |element| {
                    if element.is_none() { Ok(Some(None)) } else { Ok(tensor(element)?.map(Some)) }
                },
            )?
            .map(Value::OptionalTensors)
        }
        Kind::Tensor => all(value, tensor)?.map(Value::Tensors),
        Kind::Int => all(value, |element| read_int_or_tensor(element, lenient))?.map(Value::Ints),
        Kind::Float => {
            all(value, |element| Ok(read_scalar(element, lenient)?.map(Scalar::to_f64)))?.map(Value::Floats)
        }
        Kind::Bool => all(value, |element| Ok(element.cast::<PyBool>().ok().map(|truth| truth.is_true())))?
            .map(Value::Bools),
        Kind::Scalar => all(value, |element| read_scalar(element, lenient))?.map(Value::Scalars),
        _ => None,
    })
}

/// Reads an integer: a Python `int` or an object with `__index__`, but not a `bool`.
pub fn read_int(value: &Bound<'_, PyAny>) -> Option<i64> {
    if value.is_instance_of::<PyBool>()
        || value.is_instance_of::<PyTensor>()
        || value.is_instance_of::<PyFloat>()
    {
        return None;
    }
    value.extract().ok()
}

/// Reads an integer. A lenient read accepts a tensor of one element.
pub fn read_int_or_tensor(value: &Bound<'_, PyAny>, lenient: bool) -> PyResult<Option<i64>> {
    if lenient
        && let Ok(tensor) = value.cast::<PyTensor>()
        && !tensor.tensor().dtype().is_floating_point()
    {
        return Ok(one_element(tensor)?.map(Scalar::to_i64));
    }
    Ok(read_int(value))
}

/// Reads a complex number.
pub fn read_complex(value: &Bound<'_, PyAny>) -> Option<c128> {
    let number = value.cast::<PyComplex>().ok()?;
    Some(c128::new(number.real(), number.imag()))
}

/// Reads a real number of any kind.
pub fn read_scalar(value: &Bound<'_, PyAny>, lenient: bool) -> PyResult<Option<Scalar>> {
    if let Ok(number) = value.cast_exact::<PyFloat>() {
        return Ok(Some(Scalar::F64(number.value())));
    }
    if let Ok(truth) = value.cast::<PyBool>() {
        return Ok(Some(Scalar::Bool(truth.is_true())));
    }
    if value.is_instance_of::<PyInt>() {
        return value.extract().map(|integer| Some(Scalar::I64(integer)));
    }
    if let Ok(tensor) = value.cast::<PyTensor>() {
        return if lenient { one_element(tensor) } else { Ok(None) };
    }
    if value.is_instance_of::<PyString>()
        || value.is_instance_of::<PyList>()
        || value.is_instance_of::<PyTuple>()
    {
        return Ok(None);
    }
    // Numbers of other libraries, such as NumPy.
    if let Ok(integer) = value.extract::<i64>() {
        return Ok(Some(Scalar::I64(integer)));
    }
    Ok(value.extract::<f64>().ok().map(Scalar::F64))
}

/// Converts a number to a tensor without dimensions, for an operation with `like`. The result has the dtype of `like` if that can
/// hold numbers of its category. Returns `None` if the object is not a number.
pub fn number_beside(number: &Bound<'_, PyAny>, like: &Tensor) -> PyResult<Option<Tensor>> {
    if let Some(complex) = read_complex(number) {
        let dtype = if like.dtype().is_complex() { like.dtype() } else { default_dtype().complex() };
        let made = || Tensor::from_slice(&[complex], &[], like.device())?.to_dtype(dtype);
        return run(number.py(), made).map(Some);
    }
    let Some(scalar) = read_scalar(number, false)? else { return Ok(None) };
    let dtype = dtype_beside(scalar, std::slice::from_ref(like));
    run(number.py(), || converted(scalar, dtype, like.device())).map(Some)
}

/// Returns the dtype of a tensor that is made of a number, for an operation with other tensors: that to which those are promoted that can
/// hold numbers of its category, first those with dimensions. Otherwise it is the dtype of Python's numbers.
pub fn dtype_beside(number: Scalar, others: &[Tensor]) -> DType {
    let category = number.category();
    let promoted = |has_dimensions: bool| {
        let able = others.iter().filter(|tensor| (tensor.rank() > 0) == has_dimensions);
        let dtypes = able.map(Tensor::dtype).filter(|dtype| dtype.category() >= category);
        dtypes.reduce(|one, other| one.promote(other).unwrap_or(one))
    };
    match (promoted(true), promoted(false)) {
        // An integer beside more of them is one of 64 bits: it is converted with them, to floats where there is a quotient.
        (Some(dtype), _) if category == Category::Integer && dtype.category() == category => DType::I64,
        (Some(dtype), _) | (None, Some(dtype)) => dtype,
        (None, None) => dtype_of(category),
    }
}

/// Returns the dtype of Python numbers of a category.
fn dtype_of(category: Category) -> DType {
    match category {
        Category::Bool => DType::Bool,
        Category::Integer => DType::I64,
        _ => default_dtype(),
    }
}

/// Returns the number in a tensor without dimensions that does not require a gradient.
fn one_element(tensor: &Bound<'_, PyTensor>) -> PyResult<Option<Scalar>> {
    let inner = tensor.tensor();
    if inner.rank() != 0 || inner.requires_grad() {
        return Ok(None);
    }
    item(tensor.py(), &inner).map(Some)
}

/// Returns a number as a Python object.
pub fn number_object<'py>(py: Python<'py>, number: Scalar) -> PyResult<Bound<'py, PyAny>> {
    Ok(match number {
        Scalar::Bool(truth) => PyBool::new(py, truth).to_owned().into_any(),
        Scalar::I64(integer) => integer.into_pyobject(py)?.into_any(),
        other => PyFloat::new(py, other.to_f64()).into_any(),
    })
}

/// Returns the elements as nested lists (`tolist`).
pub fn to_list<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    let shape = tensor.shape().to_vec();
    if tensor.dtype().is_complex() {
        let numbers = run(py, || tensor.detach().to_dtype(DType::C128)?.to_vec::<c128>())?;
        let object = |number: &c128| Ok(PyComplex::from_doubles(py, number.re, number.im).into_any());
        return nest(py, &shape, &numbers, &object);
    }
    let object = |number: &Scalar| number_object(py, *number);
    if shape.is_empty() {
        return object(&item(py, tensor)?);
    }
    let numbers = run(py, || {
        let tensor = tensor.detach();
        Ok(match tensor.dtype() {
            DType::Bool => tensor.to_vec::<u8>()?.into_iter().map(|value| Scalar::Bool(value != 0)).collect(),
            dtype if dtype.is_floating_point() => {
                tensor.to_dtype(DType::F64)?.to_vec::<f64>()?.into_iter().map(Scalar::F64).collect()
            }
            _ => {
                tensor.to_dtype(DType::I64)?.to_vec::<i64>()?.into_iter().map(Scalar::I64).collect::<Vec<_>>()
            }
        })
    })?;
    nest(py, &shape, &numbers, &object)
}

fn nest<'py, T>(
    py: Python<'py>,
    shape: &[usize],
    numbers: &[T],
    object: &dyn Fn(&T) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let Some((&extent, inner)) = shape.split_first() else { return object(&numbers[0]) };
    let step: usize = inner.iter().product();
    let parts = (0..extent).map(|place| nest(py, inner, &numbers[place * step..(place + 1) * step], object));
    Ok(PyList::new(py, parts.collect::<PyResult<Vec<_>>>()?)?.into_any())
}

/// Returns whether an object is a sequence of elements: a list, a tuple, a range or a deque, but not text.
pub fn is_sequence(value: &Bound<'_, PyAny>) -> bool {
    value.is_instance_of::<PyList>()
        || value.is_instance_of::<PyTuple>()
        || (!value.is_instance_of::<PyString>()
            && !value.is_instance_of::<PyBytes>()
            && value.cast::<PySequence>().is_ok())
}

/// Returns the dtype of a NumPy object, an array or a number.
fn numpy_dtype(value: &Bound<'_, PyAny>) -> PyResult<Option<DType>> {
    let is_plain = value.cast_exact::<PyFloat>().is_ok()
        || value.cast_exact::<PyInt>().is_ok()
        || value.is_instance_of::<PyBool>()
        || value.is_instance_of::<PyTensor>()
        || !value.hasattr("__array_interface__")?;
    if is_plain {
        return Ok(None);
    }
    let name: String = value.getattr("dtype")?.getattr("name")?.extract()?;
    Ok(DType::ALL.iter().copied().find(|dtype| dtype.name() == name))
}

/// Returns the exception for an object that cannot be an element of a tensor.
fn no_element(value: &Bound<'_, PyAny>, depth: usize) -> PyErr {
    let name = value.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
    let is_text = value.is_instance_of::<PyString>() || value.is_instance_of::<PyBytes>();
    let remedy = "tensors are made of numbers, sequences of numbers, tensors and arrays";
    match is_text {
        true if depth == 0 => type_error(format!("new(): invalid data type '{name}': {remedy}")),
        true => value_error(format!("too many dimensions '{name}': {remedy}")),
        false => runtime(format!("Could not infer dtype of {name}: {remedy}")),
    }
}

/// The shape and the numbers of nested lists, row-major.
#[derive(Default)]
struct Nested {
    shape: Vec<usize>,
    /// The dtype to which the numbers read so far promote.
    own: Option<DType>,
    numbers: Vec<Scalar>,
    /// The imaginary parts up to that of the last complex number. Empty if all numbers are real.
    imaginary: Vec<f64>,
}

impl Nested {
    /// Reads a value that is nested `depth` lists deep.
    fn read(&mut self, value: &Bound<'_, PyAny>, depth: usize) -> PyResult<()> {
        if is_sequence(value) {
            return self.read_sequence(value, depth);
        }
        let named = numpy_dtype(value)?;
        if let Some(dtype) = named
            && value.getattr("ndim")?.extract::<usize>()? > 0
        {
            let former = self.own.take();
            self.read_sequence(&value.call_method0("tolist")?, depth)?;
            self.own = former;
            return self.meet(dtype);
        }
        if depth != self.shape.len() {
            return Err(type_error(format!(
                "not a sequence: a list was expected at dim {depth}, not a number"
            )));
        }
        if let Ok(tensor) = value.cast::<PyTensor>() {
            return self.read_tensor(tensor);
        }
        if let Some(number) =
            read_complex(value).or(named.filter(|dtype| dtype.is_complex()).and_then(|_| {
                let number = value.call_method0("item").ok()?;
                read_complex(&number)
            }))
        {
            self.push_complex(number);
            return self.meet(named.unwrap_or_else(|| default_dtype().complex()));
        }
        let number = match named {
            Some(_) => read_scalar(&value.call_method0("item")?, false)?,
            None => read_scalar(value, false)?,
        };
        let number = number.ok_or_else(|| no_element(value, depth))?;
        self.numbers.push(number);
        self.meet(named.unwrap_or_else(|| dtype_of(number.category())))
    }

    /// Reads the elements of a sequence.
    fn read_sequence(&mut self, value: &Bound<'_, PyAny>, depth: usize) -> PyResult<()> {
        let extent = value.len()?;
        match self.shape.get(depth) {
            None if self.numbers.is_empty() && self.shape.len() == depth => self.shape.push(extent),
            None => {
                return Err(type_error(format!("a number was expected at dim {depth}, not a list")));
            }
            Some(&first) if first == extent => {}
            Some(first) => {
                return Err(value_error(format!(
                    "expected sequence of length {first} at dim {depth} (got {extent})"
                )));
            }
        }
        if depth > 64 {
            return Err(value_error("too many dimensions: lists are more than 64 deep"));
        }
        value.try_iter()?.try_for_each(|element| self.read(&element?, depth + 1))
    }

    /// Reads the only element of a tensor.
    fn read_tensor(&mut self, tensor: &Bound<'_, PyTensor>) -> PyResult<()> {
        let inner = tensor.tensor();
        if inner.elements() != 1 {
            return Err(value_error("only one element tensors can be converted to Python scalars"));
        }
        if inner.dtype().is_complex() {
            self.push_complex(complex_item(tensor.py(), &inner)?);
        } else {
            self.numbers.push(item(tensor.py(), &inner)?);
        }
        self.meet(inner.dtype())
    }

    /// Adds a complex number.
    fn push_complex(&mut self, number: c128) {
        self.imaginary.resize(self.numbers.len(), 0.0);
        self.imaginary.push(number.im);
        self.numbers.push(Scalar::F64(number.re));
    }

    /// Promotes the dtype of a number with that of the numbers that were read before it.
    fn meet(&mut self, dtype: DType) -> PyResult<()> {
        self.own = Some(match self.own {
            None => dtype,
            Some(former) => former.promote(dtype).map_err(|error| type_error(error.to_string()))?,
        });
        Ok(())
    }

    /// Returns the dtype of the numbers, as PyTorch infers it.
    fn dtype(&self) -> DType {
        self.own.unwrap_or_else(default_dtype)
    }

    /// Returns the numbers as a tensor. They are copied to the device in the widest type of their kind and are converted there.
    fn tensor(&self, dtype: DType, device: &Device) -> thalweg::Result<Tensor> {
        let Self { shape, numbers, imaginary, .. } = self;
        numbers.iter().try_for_each(|&number| thalweg::tensor::check_convertible(number, dtype))?;
        if !imaginary.is_empty() {
            if !dtype.is_complex() {
                return Err(thalweg::Error::invalid(format!(
                    "value cannot be converted to type {dtype} without overflow: it is complex"
                )));
            }
            let parts = imaginary.iter().copied().chain(std::iter::repeat(0.0));
            let values: Vec<c128> =
                numbers.iter().zip(parts).map(|(real, part)| c128::new(real.to_f64(), part)).collect();
            return arrived(Tensor::from_slice(&values, shape, device)?.to_dtype(dtype)?);
        }
        if self.dtype().is_floating_point() || dtype.is_floating_point() {
            let values: Vec<f64> = numbers.iter().map(|number| number.to_f64()).collect();
            if dtype == DType::F32 {
                let narrow: Vec<f32> = values.iter().map(|&value| value as f32).collect();
                return arrived(Tensor::from_slice(&narrow, shape, device)?);
            }
            return arrived(Tensor::from_slice(&values, shape, device)?.to_dtype(dtype)?);
        }
        let values: Vec<i64> = numbers.iter().map(|number| number.to_i64()).collect();
        arrived(Tensor::from_slice(&values, shape, device)?.to_dtype(dtype)?)
    }
}

/// Creates a tensor from numbers, nested lists, a tensor or a buffer (`torch.tensor`).
pub fn tensor_of(data: &Bound<'_, PyAny>, dtype: Option<DType>, device: Option<Device>) -> PyResult<Tensor> {
    let py = data.py();
    let current = || device.clone().map_or_else(|| Device::current().map_err(|error| exception(&error)), Ok);
    let copied = |source: Tensor, device: &Device| {
        run(py, || {
            let moved = source.to_device(device)?;
            let converted = moved.to_dtype(dtype.unwrap_or(source.dtype()))?;
            if converted.shares_storage_with(&source) { cloned(&converted) } else { Ok(converted) }
        })
    };
    if let Ok(tensor) = data.cast::<PyTensor>() {
        let source = tensor.tensor().detach();
        let device = device.unwrap_or_else(|| source.device().clone());
        return copied(source, &device);
    }
    let device = current()?;
    let is_list = is_sequence(data) || data.is_instance_of::<PyBytes>();
    if !is_list && let Some((bytes, shape, own)) = read_buffer(data)? {
        let bytes = bytes.as_bytes();
        return run(py, || arrived(from_bytes(bytes, &shape, own, &device)?.to_dtype(dtype.unwrap_or(own))?));
    }
    if !is_list && let Some(source) = external(data)? {
        return copied(source, &device);
    }
    let mut nested = Nested::default();
    nested.read(data, 0)?;
    let dtype = dtype.unwrap_or_else(|| nested.dtype());
    run(py, || nested.tensor(dtype, &device))
}

/// Converts an object of another library with `__dlpack__` to a tensor. Returns `None` for any other object.
pub fn external(data: &Bound<'_, PyAny>) -> PyResult<Option<Tensor>> {
    if !data.hasattr("__dlpack__")? {
        return Ok(None);
    }
    let made = data.py().import("thalweg._dlpack")?.getattr("from_dlpack")?.call1((data,))?;
    Ok(Some(made.cast::<PyTensor>()?.tensor()))
}

/// Reads the elements, the shape and the dtype of an object with the buffer protocol, such as a NumPy array.
#[allow(clippy::type_complexity)]
pub fn read_buffer<'py>(
    data: &Bound<'py, PyAny>,
) -> PyResult<Option<(Bound<'py, PyBytes>, Vec<usize>, DType)>> {
    let is_number = data.is_instance_of::<PyInt>()
        || data.is_instance_of::<PyFloat>()
        || data.is_instance_of::<PyComplex>();
    if is_number || data.is_instance_of::<PyString>() {
        return Ok(None);
    }
    let py = data.py();
    let Ok(view) = py.import("builtins")?.getattr("memoryview")?.call1((data,)) else { return Ok(None) };
    let format: String = view.getattr("format")?.extract()?;
    let size: usize = view.getattr("itemsize")?.extract()?;
    let shape: Vec<usize> = view.getattr("shape")?.extract()?;
    let element = match (format.trim_start_matches(['@', '=', '<']), size) {
        // C's `long`, by its size.
        ("l", 4) => "i",
        ("l", 8) => "q",
        ("L", 4) => "I",
        ("L", 8) => "Q",
        (element, _) => element,
    };
    let found = DType::ALL
        .into_iter()
        .find(|dtype| (dtype.exchange().buffer, dtype.size_bytes()) == (Some(element), size));
    let dtype = found.ok_or_else(|| {
        type_error(format!("a buffer of format '{format}' has no dtype here; convert it first"))
    })?;
    let bytes = view.call_method0("tobytes")?.cast_into::<PyBytes>().map_err(PyErr::from)?;
    Ok(Some((bytes, shape, dtype)))
}

/// Creates a tensor from the bytes of its elements.
pub fn from_bytes(bytes: &[u8], shape: &[usize], dtype: DType, device: &Device) -> thalweg::Result<Tensor> {
    let tensor = Tensor::empty(shape, dtype, device)?;
    if bytes.len() != tensor.elements() * dtype.size_bytes() {
        return Err(thalweg::Error::invalid(format!(
            "{} bytes are not the elements of a {dtype} tensor of shape {shape:?}",
            bytes.len()
        )));
    }
    let label = thalweg::tensor::caller::label_at("from_bytes", std::panic::Location::caller());
    device.current_stream().copy_from_host(tensor.pointer(), bytes, label)?;
    arrived(tensor)
}

/// Waits until the data of a tensor has arrived, as PyTorch does for ordinary host memory, so that any stream may use it. In an
/// audited region it does not wait, because a capture would already have refused the copy.
fn arrived(tensor: Tensor) -> thalweg::Result<Tensor> {
    let stream = tensor.device().current_stream();
    if !stream.is_capturing()? {
        stream.synchronize()?;
    }
    Ok(tensor)
}

/// Returns the bytes of a tensor's elements, row-major.
pub fn to_bytes(tensor: &Tensor) -> thalweg::Result<Vec<u8>> {
    let source = tensor.detach().contiguous()?;
    let mut bytes = Vec::new();
    let count = source.elements() * source.dtype().size_bytes();
    bytes.try_reserve_exact(count).map_err(|_| {
        thalweg::Error::out_of_memory(format!("the host has no room for the {count} bytes of the tensor"))
    })?;
    bytes.resize(count, 0);
    let label = thalweg::tensor::caller::label_at("to_bytes", std::panic::Location::caller());
    source.device().current_stream().copy_to_host(&mut bytes, source.pointer(), label)?;
    Ok(bytes)
}

/// Returns a copy of a tensor.
pub fn cloned(tensor: &Tensor) -> thalweg::Result<Tensor> {
    let location = std::panic::Location::caller();
    let label = thalweg::tensor::caller::label_at("clone", location);
    let mut results = thalweg::dispatch::find_operator("clone")?.call(&[tensor.into()], None, label)?;
    Ok(results.swap_remove(0))
}
