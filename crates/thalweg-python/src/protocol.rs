//! Python's operators and protocols for tensors: arithmetic, comparisons, subscripts, lengths, numbers.
// Code that PyO3 generates for methods inside a `macro_rules!` macro counts as code of this crate.
#![expect(unsafe_op_in_unsafe_fn, reason = "the code is PyO3's")]

use pyo3::basic::CompareOp;
use pyo3::exceptions::PyUserWarning;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyComplex, PyFloat, PyInt, PyNotImplemented};
use smallvec::SmallVec;
use thalweg::tensor::represented;
use thalweg::{DType, Device, Scalar, Tensor, c128};

use crate::call::Passed;
use crate::convert::{number_beside, number_object, read_complex, read_scalar, tensor_of};
use crate::failure::{left_out, run, runtime, type_error, value_error};
use crate::functions::functions;
use crate::handle::{Held, PyTensor};
use crate::handle::{complex_item, item};
use crate::index::{is_array, read_subscript};
use crate::overrides::{subscript_taken_over, taken_over};

/// Returns a number as a tensor without dimensions that the device fills, which also works in a capture. Returns `None` for
/// values that are not numbers of the dtype's kind.
fn number_on(
    py: Python<'_>,
    value: &Bound<'_, PyAny>,
    dtype: DType,
    device: &Device,
) -> PyResult<Option<Tensor>> {
    if let Some(number) = read_complex(value).filter(|_| dtype.is_complex()) {
        let part = |part: f64| Tensor::full(&[], part, dtype.real(), device);
        return run(py, || part(number.re)?.complex(&part(number.im)?)).map(Some);
    }
    let is_true = |number: c128| number.re != 0.0 || number.im != 0.0;
    let number = match read_complex(value).filter(|_| dtype == DType::Bool) {
        Some(number) => Some(Scalar::Bool(is_true(number))),
        None => read_scalar(value, false)?,
    };
    let Some(number) = number else { return Ok(None) };
    run(py, || represented(number, dtype, device)).map(Some)
}

/// Calls a function of the table by its number.
pub fn call<'py>(
    py: Python<'py>,
    number: Option<usize>,
    receiver: Option<&Bound<'py, PyAny>>,
    places: &[Bound<'py, PyAny>],
) -> PyResult<Bound<'py, PyAny>> {
    let number = number.ok_or_else(|| left_out("the operator table has no such operator"))?;
    let (function, passed) = (&functions()[number], Passed { receiver, places, names: &[] });
    match taken_over(py, &function.name, &passed)? {
        Some(answer) => Ok(answer),
        None => function.call(py, &passed),
    }
}

/// Returns the number of a function by its literal name. The number is looked up only once.
macro_rules! number {
    ($name:literal) => {{
        static NUMBER: std::sync::OnceLock<Option<usize>> = std::sync::OnceLock::new();
        *NUMBER.get_or_init(|| $crate::functions::number_of($name))
    }};
}

/// Calls a function of the table by its literal name, with a receiver and at most one argument.
macro_rules! method {
    ($name:literal, $receiver:expr) => {
        $crate::protocol::method!($name, $receiver => &[])
    };
    ($name:literal, $receiver:expr, $argument:expr) => {
        $crate::protocol::method!($name, $receiver => std::slice::from_ref($argument))
    };
    ($name:literal, $receiver:expr => $places:expr) => {{
        let receiver: &pyo3::Bound<'_, $crate::handle::PyTensor> = $receiver;
        $crate::protocol::call(receiver.py(), $crate::protocol::number!($name), Some(receiver.as_any()), $places)
    }};
}

pub(crate) use {method, number};

/// Returns an operand of an operator with a tensor. For values that operators do not accept, `None` is returned, so that the
/// operand's own methods are tried.
fn operand<'py>(
    tensor: &Bound<'py, PyTensor>,
    value: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    if value.is_instance_of::<PyTensor>() || value.is_instance_of::<PyComplex>() {
        return Ok(Some(value.clone()));
    }
    match read_scalar(value, false) {
        Ok(number) => Ok(number.map(|_| value.clone())),
        Err(_) if value.is_instance_of::<PyInt>() => wide_operand(tensor, value).map(Some),
        Err(_) => Ok(None),
    }
}

/// Returns an unsigned integer of 64 bits as the signed number that PyTorch computes with: in arithmetic with integers, the one with
/// the same bits.
fn wide_operand<'py>(
    tensor: &Bound<'py, PyTensor>,
    value: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let bits: u64 = value.extract()?;
    Ok(match tensor.tensor().dtype().is_differentiable() {
        true => PyFloat::new(value.py(), bits as f64).into_any(),
        false => bits.cast_signed().into_pyobject(value.py())?.into_any(),
    })
}

/// Returns an operand of a quotient, for which no integer is converted to another.
fn divisor<'py>(
    tensor: &Bound<'py, PyTensor>,
    value: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let is_wide = value.is_instance_of::<PyInt>() && read_scalar(value, false).is_err();
    match is_wide {
        true => Ok(Some(PyFloat::new(value.py(), value.extract::<u64>()? as f64).into_any())),
        false => operand(tensor, value),
    }
}

/// Returns an operand of an in-place operator, which is refused if it is not a number.
fn operand_in_place<'py>(
    tensor: &Bound<'py, PyTensor>,
    value: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    operand(tensor, value)?.ok_or_else(|| type_error("an operand is not a number"))
}

/// An operand that operators may accept. For any other operand, an in-place operator returns `NotImplemented`.
struct Operand<'py>(Bound<'py, PyAny>);

impl<'a, 'py> FromPyObject<'a, 'py> for Operand<'py> {
    type Error = PyErr;

    fn extract(value: pyo3::Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let value = value.to_owned();
        let is_accepted = value.is_instance_of::<PyTensor>()
            || value.is_instance_of::<PyComplex>()
            || value.is_instance_of::<PyInt>()
            || matches!(read_scalar(&value, false), Ok(Some(_)));
        if is_accepted { Ok(Self(value)) } else { Err(type_error("an operand is not a number")) }
    }
}

/// Returns an operand that is not a tensor as a tensor without dimensions, for an operation with another tensor.
fn operand_tensor<'py>(
    tensor: &Bound<'py, PyTensor>,
    number: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyTensor>> {
    let made = number_beside(number, &tensor.tensor())?;
    PyTensor::object(tensor.py(), made.ok_or_else(|| type_error("an operand is not a number"))?)
}

/// Refuses a tensor that does not have exactly one element, because it cannot be converted to a Python number.
fn check_one(tensor: &Bound<'_, PyTensor>) -> PyResult<()> {
    match tensor.tensor().elements() {
        1 => Ok(()),
        _ => Err(value_error("only one element tensors can be converted to Python scalars")),
    }
}

/// Warns about a number that is read from a tensor in the graph, because autograd does not see it.
fn warn_of_gradient(tensor: &Bound<'_, PyTensor>) -> PyResult<()> {
    if !tensor.tensor().requires_grad() {
        return Ok(());
    }
    let text = c"Converting a tensor with requires_grad=True to a scalar may lead to unexpected behavior.\nConsider using tensor.detach() first.";
    PyErr::warn(tensor.py(), &tensor.py().get_type::<PyUserWarning>(), text, 1)
}

/// Defines Python's binary operators as operators of the table, with their in-place variants.
macro_rules! binary {
    ($($python:ident $in_place:ident $name:literal $name_in_place:literal;)*) => {
        #[pymethods]
        impl PyTensor {
            $(
                fn $python<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
                    let Some(other) = &operand(slf, other)? else {
                        return Ok(PyNotImplemented::get(slf.py()).to_owned().into_any());
                    };
                    crate::failure::guarded(|| method!($name, slf, other))
                }

                fn $in_place(slf: &Bound<'_, Self>, other: Operand<'_>) -> PyResult<()> {
                    crate::failure::guarded(|| method!($name_in_place, slf, &operand_in_place(slf, &other.0)?).map(drop))
                }
            )*
        }
    };
}

binary! {
    __add__ __iadd__ "add" "add_";
    __sub__ __isub__ "sub" "sub_";
    __mul__ __imul__ "mul" "mul_";
    __floordiv__ __ifloordiv__ "floor_divide" "floor_divide_";
    __mod__ __imod__ "remainder" "remainder_";
    __and__ __iand__ "bitwise_and" "bitwise_and_";
    __or__ __ior__ "bitwise_or" "bitwise_or_";
    __xor__ __ixor__ "bitwise_xor" "bitwise_xor_";
    __lshift__ __ilshift__ "bitwise_left_shift" "bitwise_left_shift_";
    __rshift__ __irshift__ "bitwise_right_shift" "bitwise_right_shift_";
}

/// Defines operators whose left operand is a number.
macro_rules! reflected {
    ($($python:ident $name:literal;)*) => {
        #[pymethods]
        impl PyTensor {
            $(
                fn $python<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
                    let Some(other) = &operand(slf, other)? else {
                        return Ok(PyNotImplemented::get(slf.py()).to_owned().into_any());
                    };
                    let places = [slf.as_any().clone(), other.clone()];
                    crate::failure::guarded(|| call(slf.py(), number!($name), None, &places))
                }
            )*
        }
    };
}

reflected! {
    __radd__ "add";
    __rmul__ "mul";
    __rsub__ "rsub";
    __rand__ "bitwise_and";
    __ror__ "bitwise_or";
    __rxor__ "bitwise_xor";
}

/// Calls a shift of a number by the elements of a tensor.
fn shifted<'py>(
    bits: &Bound<'py, PyTensor>,
    other: &Bound<'py, PyAny>,
    function: Option<usize>,
) -> PyResult<Bound<'py, PyAny>> {
    let Some(other) = &operand(bits, other)? else {
        return Ok(PyNotImplemented::get(bits.py()).to_owned().into_any());
    };
    crate::failure::guarded(|| call(bits.py(), function, None, &[other.clone(), bits.as_any().clone()]))
}

#[pymethods]
impl PyTensor {
    fn __matmul__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        if !other.is_instance_of::<Self>() {
            return Ok(PyNotImplemented::get(slf.py()).to_owned().into_any());
        }
        crate::failure::guarded(|| method!("matmul", slf, other))
    }

    fn __truediv__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match &divisor(slf, other)? {
            Some(divisor) => crate::failure::guarded(|| method!("div", slf, divisor)),
            None => Ok(PyNotImplemented::get(slf.py()).to_owned().into_any()),
        }
    }

    fn __itruediv__(slf: &Bound<'_, Self>, other: Operand<'_>) -> PyResult<()> {
        let divisor = &operand_in_place(slf, &other.0)?;
        crate::failure::guarded(|| method!("div_", slf, divisor).map(drop))
    }

    fn __pow__<'py>(
        slf: &Bound<'py, Self>,
        other: &Bound<'py, PyAny>,
        _modulo: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some(other) = &operand(slf, other)? else {
            return Ok(PyNotImplemented::get(slf.py()).to_owned().into_any());
        };
        crate::failure::guarded(|| method!("pow", slf, other))
    }

    fn __rpow__<'py>(
        slf: &Bound<'py, Self>,
        other: &Bound<'py, PyAny>,
        _modulo: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some(other) = &operand(slf, other)? else {
            return Ok(PyNotImplemented::get(slf.py()).to_owned().into_any());
        };
        crate::failure::guarded(|| {
            call(slf.py(), number!("pow"), None, &[other.clone(), slf.as_any().clone()])
        })
    }

    fn __ipow__(
        slf: &Bound<'_, Self>,
        other: Operand<'_>,
        _modulo: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        crate::failure::guarded(|| method!("pow_", slf, &operand_in_place(slf, &other.0)?).map(drop))
    }

    fn __rtruediv__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let Some(other) = &divisor(slf, other)? else {
            return Ok(PyNotImplemented::get(slf.py()).to_owned().into_any());
        };
        crate::failure::guarded(|| {
            let reciprocal = method!("reciprocal", slf)?;
            call(slf.py(), number!("mul"), None, &[reciprocal, other.clone()])
        })
    }

    fn __rfloordiv__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let Some(other) = &operand(slf, other)? else {
            return Ok(PyNotImplemented::get(slf.py()).to_owned().into_any());
        };
        crate::failure::guarded(|| method!("floor_divide", &operand_tensor(slf, other)?, slf.as_any()))
    }

    fn __rmod__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let Some(other) = &operand(slf, other)? else {
            return Ok(PyNotImplemented::get(slf.py()).to_owned().into_any());
        };
        crate::failure::guarded(|| method!("remainder", &operand_tensor(slf, other)?, slf.as_any()))
    }

    fn __rlshift__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        shifted(slf, other, number!("bitwise_left_shift"))
    }

    fn __rrshift__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        shifted(slf, other, number!("bitwise_right_shift"))
    }

    fn __neg__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        method!("neg", slf)
    }

    fn __pos__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        method!("positive", slf)
    }

    fn __abs__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        method!("abs", slf)
    }

    fn __invert__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        method!("bitwise_not", slf)
    }

    fn __richcmp__<'py>(
        slf: &Bound<'py, Self>,
        other: &Bound<'py, PyAny>,
        op: CompareOp,
    ) -> PyResult<Bound<'py, PyAny>> {
        let other = match operand(slf, other)? {
            None if is_array(other)? => {
                let made = tensor_of(other, None, Some(slf.tensor().device().clone()))?;
                Some(Self::object_of(slf.py(), made, None)?.into_any())
            }
            found => found,
        };
        let Some(other) = &other else {
            return Ok(PyNotImplemented::get(slf.py()).to_owned().into_any());
        };
        crate::failure::guarded(|| match op {
            CompareOp::Lt => method!("lt", slf, other),
            CompareOp::Le => method!("le", slf, other),
            CompareOp::Eq => method!("eq", slf, other),
            CompareOp::Ne => method!("ne", slf, other),
            CompareOp::Gt => method!("gt", slf, other),
            CompareOp::Ge => method!("ge", slf, other),
        })
    }

    fn __hash__(slf: &Bound<'_, Self>) -> usize {
        slf.as_ptr() as usize >> 4
    }

    fn __getitem__<'py>(
        slf: &Bound<'py, Self>,
        subscript: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Some(answer) = subscript_taken_over(slf, subscript, None, false)? {
            return Ok(answer);
        }
        let tensor = slf.tensor();
        let indices = match read_subscript(subscript, tensor.device()) {
            Ok(indices) => indices,
            Err(error) => return subscript_taken_over(slf, subscript, None, true)?.ok_or(error),
        };
        let part = Self::object_of(slf.py(), run(slf.py(), || tensor.i(indices))?, Some(slf.as_any()))?;
        Ok(part.into_any())
    }

    fn __setitem__(
        slf: &Bound<'_, Self>,
        subscript: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        if subscript_taken_over(slf, subscript, Some(value), false)?.is_some() {
            return Ok(());
        }
        let tensor = slf.tensor();
        // A truth value is a new dimension of one element, or of none.
        let whole = subscript.cast::<PyBool>().ok().map(|is_true| is_true.is_true());
        let indices = match whole {
            Some(_) => SmallVec::new(),
            None => read_subscript(subscript, tensor.device())?,
        };
        let value = match value.cast::<Self>() {
            Ok(value) => value.tensor(),
            Err(_) => {
                let (own, device) = (tensor.dtype(), tensor.device().clone());
                match number_on(slf.py(), value, own, &device)? {
                    Some(number) => number,
                    None => {
                        let made = tensor_of(value, read_complex(value).map(|_| own), Some(device))?;
                        run(slf.py(), || made.to_dtype(own))?
                    }
                }
            }
        };
        match whole {
            Some(false) => Ok(()),
            Some(true) => run(slf.py(), || tensor.unsqueeze(0)?.copy_(&value)),
            None => run(slf.py(), || tensor.assign(indices, &value)),
        }
    }

    fn __delitem__(_slf: &Bound<'_, Self>, _subscript: &Bound<'_, PyAny>) -> PyResult<()> {
        Err(type_error("Tensor does not support deleting items"))
    }

    fn __len__(slf: &Bound<'_, Self>) -> PyResult<usize> {
        match slf.tensor().shape().first() {
            Some(&extent) => Ok(extent),
            None => Err(type_error("len() of a 0-d tensor")),
        }
    }

    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        if slf.tensor().rank() == 0 {
            return Err(type_error("iteration over a 0-d tensor"));
        }
        let parts = method!("unbind", slf)?;
        Ok(parts.try_iter()?.into_any())
    }

    fn __contains__(slf: &Bound<'_, Self>, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        if !value.is_instance_of::<PyTensor>()
            && read_scalar(value, true)?.is_none()
            && read_complex(value).is_none()
        {
            return Err(runtime(format!(
                "Tensor.__contains__ only supports Tensor or scalar, but you passed in a {}.",
                value.get_type()
            )));
        }
        let equal = slf.as_any().rich_compare(value, CompareOp::Eq)?;
        method!("any", equal.cast::<Self>()?)?.is_truthy()
    }

    fn __bool__(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let tensor = slf.tensor();
        match tensor.elements() {
            1 if tensor.dtype().is_complex() => {
                let number = complex_item(slf.py(), &tensor)?;
                Ok(number.re != 0.0 || number.im != 0.0)
            }
            1 => Ok(item(slf.py(), &tensor)?.to_f64() != 0.0),
            0 => Err(runtime("Boolean value of Tensor with no values is ambiguous")),
            _ => Err(runtime("Boolean value of Tensor with more than one value is ambiguous")),
        }
    }

    fn __float__(slf: &Bound<'_, Self>) -> PyResult<f64> {
        check_one(slf)?;
        warn_of_gradient(slf)?;
        Ok(Self::one(slf)?.to_f64())
    }

    fn __complex__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyComplex>> {
        check_one(slf)?;
        warn_of_gradient(slf)?;
        let number = Self::one_object(slf)?;
        slf.py().get_type::<PyComplex>().call1((number,))?.cast_into().map_err(PyErr::from)
    }

    fn __int__(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        check_one(slf)?;
        let number = number_object(slf.py(), Self::one(slf)?)?;
        Ok(slf.py().import("builtins")?.getattr("int")?.call1((number,))?.unbind())
    }

    fn __index__(slf: &Bound<'_, Self>) -> PyResult<i64> {
        let tensor = slf.tensor();
        if tensor.dtype().is_floating_point() || tensor.elements() != 1 {
            return Err(type_error("only integer tensors of a single element can be converted to an index"));
        }
        Ok(Self::one(slf)?.to_i64())
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let tensor = slf.tensor();
        let text = run(slf.py(), || Ok(tensor.to_string()))?;
        Ok(crate::device::with_shown_device(text, tensor.device()))
    }

    fn __format__(slf: &Bound<'_, Self>, form: &str) -> PyResult<String> {
        let py = slf.py();
        if slf.tensor().rank() == 0 {
            let number = Self::one_object(slf)?;
            return py.import("builtins")?.getattr("format")?.call1((number, form))?.extract();
        }
        match form {
            "" => Self::__repr__(slf),
            _ => Err(type_error("unsupported format string passed to Tensor.__format__")),
        }
    }
}
