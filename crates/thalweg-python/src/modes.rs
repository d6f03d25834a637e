//! Modes that receive each call below autograd (`__torch_dispatch__`), over the dispatch key [`DispatchKey::Python`], and calls of
//! operators by their names with overload (`torch.ops.aten`).

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::{Arc, Once};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyComplex, PyDict, PyList, PyString, PyTuple};
use thalweg::dispatch::{
    Argument, Call, DispatchKey, ExcludeKeyGuard, IncludeKeyGuard, Operator, find_operator, register_fallback,
};
use thalweg::ops::schema::{Kind, Literal, Parameter, Schema};
use thalweg::tensor::Tensors;
use thalweg::{Device, Tensor};
use thalweg_lock::Mutex;

use crate::call::{Function, Overload, Passed};
use crate::convert::{number_object, tensor_of};
use crate::device::PyDevice;
use crate::dtype;
use crate::failure::{call_python, exception, guarded, type_error, value_error};
use crate::handle::{Held, PyTensor};
use crate::table::{parameter_object, type_object};

/// A schema: its text, its parameters and its results.
type Described<'py> = (String, Vec<Bound<'py, PyDict>>, Vec<Bound<'py, PyDict>>);

thread_local! {
    /// The number of open modes of the thread.
    static MODES: Cell<usize> = const { Cell::new(0) };
    /// The guard that adds the key to the thread's calls while a mode is open.
    static INCLUDED: RefCell<Option<IncludeKeyGuard>> = const { RefCell::new(None) };
}

/// The function that passes a call to the innermost mode.
static HANDLER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Sets the number of modes that receive this thread's calls, and returns the former one.
#[pyfunction]
fn _set_dispatch_modes(count: usize) -> usize {
    MODES.replace(count)
}

/// Starts or stops passing this thread's calls to the modes.
#[pyfunction]
fn _pass_calls_to_modes(py: Python<'_>, handler: Py<PyAny>, passed: bool) {
    static REGISTER: Once = Once::new();
    HANDLER.get_or_init(py, || handler);
    REGISTER.call_once(|| register_fallback(DispatchKey::Python, Arc::new(answer)).keep());
    let guard = passed.then(|| IncludeKeyGuard::new(DispatchKey::Python));
    INCLUDED.with(|included| {
        let former = included.replace(None);
        drop(former);
        included.replace(guard);
    });
}

/// Passes a call to the innermost mode, or runs it if there is none. An operator whose gradient is defined through its parts is run,
/// and the mode receives the parts.
fn answer(call: &Call<'_>) -> thalweg::Result<Tensors> {
    let operator = call.operator;
    let runs = (operator.is_composite() || operator.writes_by_another())
        && call.tensors.iter().any(|tensor| tensor.requires_grad());
    if MODES.get() == 0 || runs {
        return call.redispatch();
    }
    call_python(|py| {
        let _below = ExcludeKeyGuard::new(DispatchKey::Autograd);
        let (places, names) = objects(py, operator, call.arguments)?;
        let handler = HANDLER.get(py).ok_or_else(|| type_error("no mode is registered"))?;
        let answer = handler.bind(py).call1((operator.name(), places, names))?;
        tensors(operator, &answer, call.device)
    })
}

/// Returns the tensors of a mode's answer.
fn tensors(operator: &Operator, answer: &Bound<'_, PyAny>, device: &Device) -> PyResult<Tensors> {
    let mut list = Tensors::new();
    match answer.cast::<PyTensor>() {
        Ok(one) => list.push(one.tensor()),
        Err(_) if answer.is_none() => {}
        Err(_) if answer.is_instance_of::<PyTuple>() || answer.is_instance_of::<PyList>() => {
            for value in answer.try_iter()? {
                let value = value?;
                match value.cast::<PyTensor>() {
                    Ok(tensor) => list.push(tensor.tensor()),
                    Err(_) => list.push(tensor_of(&value, None, Some(device.clone()))?),
                }
            }
        }
        Err(_) if operator.schema().returns.iter().any(|ty| ty.kind != Kind::Tensor) => {
            list.push(tensor_of(answer, None, Some(device.clone()))?);
        }
        Err(_) => {
            return Err(type_error(format!(
                "Unable to cast the result of __torch_dispatch__ for {} to a Tensor: it is {}",
                operator.name(),
                answer.get_type()
            )));
        }
    }
    Ok(list)
}

/// Returns a call's arguments as Python passes them: the last ones are left out as far as they are defaults.
fn objects<'py>(
    py: Python<'py>,
    operator: &Operator,
    arguments: &[Argument<'_>],
) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
    let (mut places, names) = (Vec::new(), PyDict::new(py));
    let parameters = &operator.schema().parameters;
    let all = || parameters.iter().zip(arguments);
    let is_given = |(parameter, argument): (&Parameter, &Argument<'_>)| !is_default(parameter, argument);
    let positional: Vec<_> = all().filter(|(parameter, _)| !parameter.keyword_only).collect();
    let count = positional.iter().rposition(|&pair| is_given(pair)).map_or(0, |last| last + 1);
    for (parameter, argument) in &positional[..count] {
        places.push(object(py, parameter, argument)?);
    }
    for (parameter, argument) in
        all().filter(|&(parameter, argument)| parameter.keyword_only && is_given((parameter, argument)))
    {
        names.set_item(&parameter.name, object(py, parameter, argument)?)?;
    }
    Ok((PyTuple::new(py, places)?, names))
}

/// Returns whether an argument is the default of its parameter.
fn is_default(parameter: &Parameter, argument: &Argument<'_>) -> bool {
    match (&parameter.default, argument) {
        (Some(Literal::None), Argument::None) => true,
        (Some(Literal::Bool(default)), Argument::Bool(value)) => default == value,
        (Some(Literal::Int(default)), Argument::Int(value)) => default == value,
        (Some(Literal::Int(default)), Argument::Scalar(value)) => *default as f64 == value.to_f64(),
        (Some(Literal::Int(default)), Argument::Ints(values)) => values.iter().all(|value| value == default),
        (Some(Literal::Float(default)), Argument::Float(value)) => default == value,
        (Some(Literal::Float(default)), Argument::Scalar(value)) => *default == value.to_f64(),
        (Some(Literal::Ints(default)), Argument::Ints(values)) => default.as_slice() == *values,
        (Some(Literal::Str(default)), Argument::Str(value)) => default == value,
        _ => false,
    }
}

/// Returns an argument as a Python object.
fn object<'py>(
    py: Python<'py>,
    parameter: &Parameter,
    argument: &Argument<'_>,
) -> PyResult<Bound<'py, PyAny>> {
    let tensor = |tensor: &Tensor| PyTensor::object(py, tensor.clone()).map(Bound::into_any);
    Ok(match *argument {
        Argument::None => py.None().into_bound(py),
        Argument::Tensor(one) => tensor(one)?,
        Argument::Tensors(list) => {
            PyList::new(py, list.iter().map(tensor).collect::<PyResult<Vec<_>>>()?)?.into_any()
        }
        Argument::OptionalTensors(list) => {
            let one = |value: &Option<Tensor>| value.as_ref().map(tensor).transpose();
            PyList::new(py, list.iter().map(one).collect::<PyResult<Vec<_>>>()?)?.into_any()
        }
        Argument::Scalar(number) => number_object(py, number)?,
        Argument::Complex(number) => PyComplex::from_doubles(py, number.re, number.im).into_any(),
        Argument::Int(number) => match parameter.ty.kind {
            Kind::MemoryFormat | Kind::Layout => dtype::numbered(py, parameter.ty.kind, number)?,
            _ => number.into_pyobject(py)?.into_any(),
        },
        Argument::Float(number) => number.into_pyobject(py)?.into_any(),
        Argument::Bool(truth) => truth.into_pyobject(py)?.to_owned().into_any(),
        Argument::Ints(list) => PyList::new(py, list)?.into_any(),
        Argument::Floats(list) => PyList::new(py, list)?.into_any(),
        Argument::Bools(list) => PyList::new(py, list)?.into_any(),
        Argument::Scalars(list) => {
            let numbers = list.iter().map(|&number| number_object(py, number));
            PyList::new(py, numbers.collect::<PyResult<Vec<_>>>()?)?.into_any()
        }
        Argument::Str(text) => PyString::new(py, text).into_any(),
        Argument::DType(own) => dtype::object(py, own)?.into_bound(py).into_any(),
        Argument::Device(device) => Bound::new(py, PyDevice::of(device.clone()))?.into_any(),
    })
}

/// Calls an operator by its name with overload.
#[pyfunction]
fn _call_overload<'py>(
    py: Python<'py>,
    name: &str,
    args: &Bound<'py, PyTuple>,
    kwargs: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    let function = of_one_overload(name)?;
    let (places, names) = arguments_of(args, kwargs)?;
    let passed = Passed { receiver: None, places: &places, names: &names };
    guarded(|| function.call(py, &passed))
}

/// Returns the function of one overload. It is made when it is first called.
fn of_one_overload(name: &str) -> PyResult<&'static Function> {
    static MADE: Mutex<Option<HashMap<String, &'static Function>>> = Mutex::new(None);
    let mut made = MADE.lock();
    let made = made.get_or_insert_default();
    if let Some(&known) = made.get(name) {
        return Ok(known);
    }
    let operator = find_operator(name).map_err(|error| exception(&error))?;
    let function: &'static Function = Box::leak(Box::new(Function::new(
        operator.base_name().to_owned(),
        vec![Overload::new(operator)],
        None,
    )));
    made.insert(name.to_owned(), function);
    Ok(function)
}

/// Returns a schema with its parameters and the types of its results.
fn described<'py>(py: Python<'py>, schema: &Schema) -> PyResult<Described<'py>> {
    let parameters = schema.parameters.iter().map(|parameter| parameter_object(py, parameter));
    let results = schema.returns.iter().enumerate().map(|(place, ty)| {
        let object = type_object(py, ty)?;
        object.set_item("name", schema.return_names.get(place))?;
        Ok(object)
    });
    Ok((schema.to_string(), parameters.collect::<PyResult<_>>()?, results.collect::<PyResult<_>>()?))
}

/// Returns the schema of an operator of the table by its name with overload.
#[pyfunction]
fn _overload_schema<'py>(py: Python<'py>, name: &str) -> PyResult<Described<'py>> {
    described(py, find_operator(name).map_err(|error| exception(&error))?.schema())
}

/// Returns a schema by its text.
#[pyfunction]
fn _parsed_schema<'py>(py: Python<'py>, text: &str) -> PyResult<Described<'py>> {
    described(py, &Schema::parse(text).map_err(|error| value_error(error.to_string()))?)
}

/// Returns the name with overload of the operator that a call of a function by this name runs, or `None` if no overload fits.
#[pyfunction]
fn _overload_of<'py>(
    py: Python<'py>,
    name: &str,
    args: &Bound<'py, PyTuple>,
    kwargs: &Bound<'py, PyDict>,
) -> PyResult<Option<&'static str>> {
    let Some(number) = crate::functions::number_of(name) else { return Ok(None) };
    let (places, names) = arguments_of(args, kwargs)?;
    let passed = Passed { receiver: None, places: &places, names: &names };
    crate::functions::functions()[number].name_of_overload(py, &passed)
}

/// The arguments of a call by position, and those by name.
type Arguments<'py> = (Vec<Bound<'py, PyAny>>, Vec<(Bound<'py, PyString>, Bound<'py, PyAny>)>);

/// Returns the arguments of a call.
fn arguments_of<'py>(args: &Bound<'py, PyTuple>, kwargs: &Bound<'py, PyDict>) -> PyResult<Arguments<'py>> {
    let named = kwargs.iter().map(|(name, value)| Ok((name.cast_into::<PyString>()?, value)));
    Ok((args.iter().collect(), named.collect::<PyResult<_>>()?))
}

/// Returns a number that no other tensor has while this one lives.
#[pyfunction]
fn _tensor_identity(tensor: &Bound<'_, PyTensor>) -> usize {
    tensor.tensor().identity()
}

/// Adds the functions.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    functions![module;
        _set_dispatch_modes, _pass_calls_to_modes, _tensor_identity, _call_overload, _overload_schema,
        _parsed_schema, _overload_of
    ];
    Ok(())
}
