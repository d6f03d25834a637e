//! The steps of a program: calls of operators, computations with integers, and functions of the front end.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use smallvec::SmallVec;
use thalweg::dispatch::{Argument, Operator, Value, as_ints, find_operator};
use thalweg::ops::schema::{Kind, Type};
use thalweg::tensor::caller::label_at;
use thalweg::tensor::converted;
use thalweg::{DType, Device, Error, Scalar, Tensor};

use crate::convert::{dtype_beside, read_complex, read_scalar, read_value};
use crate::dtype::PyDType;
use crate::exchange::{Exchange, copy_once};
use crate::failure::{exception, type_error, value_error};

/// A reference to a slot in the description of a program.
#[pyclass(name = "Place", module = "thalweg._core", frozen)]
pub struct Place {
    number: usize,
}

#[pymethods]
impl Place {
    #[new]
    fn new(number: usize) -> Self {
        Self { number }
    }

    fn __repr__(&self) -> String {
        format!("Place({})", self.number)
    }

    /// The number of the slot.
    #[getter]
    fn number(&self) -> usize {
        self.number
    }
}

/// An integer that a step reads.
pub enum Integer {
    /// A constant.
    Constant(i64),
    /// The value of a slot.
    Slot(usize),
}

/// An argument of a call.
pub enum Operand {
    /// A constant.
    Constant(Value),
    /// The value of a slot.
    Slot(usize),
    /// A list that is not constant.
    List(Vec<Operand>),
}

/// A result of a call.
pub struct CallResult {
    /// The slot, if a later step reads the result.
    pub slot: Option<usize>,
    /// The strides that later steps rely on.
    strides: Option<Vec<Integer>>,
    /// The sizes and the dtype, where the results of the call may be written into given memory.
    form: Option<(Vec<Integer>, DType)>,
    /// Whether it is written into memory of the front end, because a result of the program is this value or a view of it.
    is_given: bool,
}

/// A call of an operator.
pub struct Call {
    operator: &'static Operator,
    operands: Vec<Operand>,
    /// The results.
    pub results: Vec<CallResult>,
    /// The slots of the tensors that the call writes.
    pub writes: Vec<usize>,
}

/// A computation with integers.
#[derive(Clone, Copy)]
pub enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    FloorDivide,
    Modulo,
    Negate,
    Maximum,
    Minimum,
    Size,
    Stride,
}

/// The work of a step.
pub enum Action {
    /// A call of an operator.
    Call(Call),
    /// A computation with integers, and the slot of its result.
    Integer(Arithmetic, Vec<Integer>, usize),
    /// The use of the tensors in these slots on the current stream, which is not the stream of their memory.
    Record(Vec<usize>),
    /// A function of the front end, with the slots of its arguments and of its results. If `is_one`, the function
    /// returns one value. `changes` has the slots of the tensors that it writes.
    External {
        function: Py<PyAny>,
        arguments: Vec<usize>,
        results: Vec<Option<usize>>,
        is_one: bool,
        changes: Vec<usize>,
    },
}

/// A step.
pub struct Step {
    /// The work.
    pub action: Action,
    /// The slots that no later step reads.
    pub last: Vec<usize>,
    /// The node of the graph and its line in the model, for messages.
    pub node: String,
}

/// The steps between two functions of the front end.
pub struct Part {
    /// The numbers of the steps.
    pub steps: std::ops::Range<usize>,
    /// The slots that calls of the part read and that none of its steps wrote before.
    pub reads: Vec<usize>,
}

/// Returns the number of a slot if the object is a reference to one.
pub fn place_of(object: &Bound<'_, PyAny>) -> Option<usize> {
    object.cast::<Place>().ok().map(|place| place.get().number)
}

impl Integer {
    fn read(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        match place_of(object) {
            Some(slot) => Ok(Self::Slot(slot)),
            None => object.extract().map(Self::Constant),
        }
    }

    fn list(object: &Bound<'_, PyAny>) -> PyResult<Vec<Self>> {
        object.try_iter()?.map(|element| Self::read(&element?)).collect()
    }

    fn now(&self, ours: &[Option<Value>]) -> thalweg::Result<i64> {
        match self {
            Self::Constant(number) => Ok(*number),
            Self::Slot(slot) => match held(ours, *slot)? {
                Value::Int(number) | Value::Scalar(Scalar::I64(number)) => Ok(*number),
                Value::Bool(truth) => Ok(i64::from(*truth)),
                other => Err(Error::invalid(format!("slot {slot} has no integer: {other:?}"))),
            },
        }
    }

    fn slot(&self) -> Option<usize> {
        match self {
            Self::Slot(slot) => Some(*slot),
            Self::Constant(_) => None,
        }
    }
}

/// Returns the value of a slot.
pub fn held(ours: &[Option<Value>], slot: usize) -> thalweg::Result<&Value> {
    (ours[slot].as_ref()).ok_or_else(|| Error::invalid(format!("slot {slot} of the program is empty")))
}

/// Returns the tensor of a slot.
fn held_tensor(ours: &[Option<Value>], slot: usize) -> thalweg::Result<&Tensor> {
    match held(ours, slot)? {
        Value::Tensor(tensor) => Ok(tensor),
        other => Err(Error::invalid(format!("slot {slot} has no tensor: {other:?}"))),
    }
}

impl Operand {
    /// Reads an argument for a parameter.
    fn read(object: &Bound<'_, PyAny>, ty: &Type, operator: &Operator) -> PyResult<Self> {
        if let Some(slot) = place_of(object) {
            return Ok(Self::Slot(slot));
        }
        let is_list = object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>();
        if is_list && ty.list {
            let elements = object.try_iter()?.collect::<PyResult<Vec<_>>>()?;
            if elements.iter().any(|element| place_of(element).is_some()) {
                let one = Type { list: false, optional: ty.optional_elements, ..ty.clone() };
                let read = elements.iter().map(|element| Self::read(element, &one, operator));
                return Ok(Self::List(read.collect::<PyResult<_>>()?));
            }
        }
        // A number in the place of a tensor becomes one beside the others.
        if !ty.list && ty.kind == Kind::Tensor && !object.is_none() {
            if let Some(number) = read_complex(object) {
                return Ok(Self::Constant(Value::Complex(number)));
            }
            if let Some(number) = read_scalar(object, false)? {
                return Ok(Self::Constant(Value::Scalar(number)));
            }
        }
        let read = read_value(object, ty, false)?;
        read.map(Self::Constant).ok_or_else(|| {
            type_error(format!("{object} is not an argument of type {ty} for `{}`", operator.schema()))
        })
    }

    fn push_slots(&self, slots: &mut Vec<usize>) {
        match self {
            Self::Slot(slot) => slots.push(*slot),
            Self::List(list) => list.iter().for_each(|operand| operand.push_slots(slots)),
            Self::Constant(_) => {}
        }
    }

    /// Returns the value of a list.
    fn list_now(list: &[Self], ty: &Type, ours: &[Option<Value>]) -> thalweg::Result<Value> {
        let each = || {
            list.iter().map(|operand| match operand {
                Self::Constant(value) => Ok(value),
                Self::Slot(slot) => held(ours, *slot),
                Self::List(_) => Err(Error::invalid("lists of lists are not arguments")),
            })
        };
        let number = |value: &Value| match *value {
            Value::Int(number) => Ok(Scalar::I64(number)),
            Value::Float(number) => Ok(Scalar::F64(number)),
            Value::Bool(truth) => Ok(Scalar::Bool(truth)),
            Value::Scalar(number) => Ok(number),
            ref other => Err(Error::invalid(format!("{other:?} is not a number"))),
        };
        let tensor = |value: &Value| match value {
            Value::Tensor(tensor) => Ok(Some(tensor.clone())),
            Value::None => Ok(None),
            other => Err(Error::invalid(format!("{other:?} is not a tensor"))),
        };
        let numbers = || each().map(|value| number(value?)).collect::<thalweg::Result<Vec<_>>>();
        Ok(match ty.kind {
            Kind::Tensor => {
                let list = each().map(|value| tensor(value?)).collect::<thalweg::Result<Vec<_>>>()?;
                match ty.optional_elements {
                    true => Value::OptionalTensors(list),
                    false => Value::Tensors(list.into_iter().flatten().collect()),
                }
            }
            Kind::Scalar => Value::Scalars(numbers()?),
            Kind::Float => Value::Floats(numbers()?.into_iter().map(Scalar::to_f64).collect()),
            _ => Value::Ints(numbers()?.into_iter().map(Scalar::to_i64).collect()),
        })
    }
}

/// The sizes and the dtype of a result, and whether it is written into memory of the front end.
type FormParts<'py> = (Bound<'py, PyAny>, Bound<'py, PyDType>, bool);

/// The description of a result: its slot, its strides if they are prescribed, and its form if all results of the call may be
/// written into given memory; `None` if nothing reads it.
type ResultParts<'py> = Option<(usize, Option<Bound<'py, PyAny>>, Option<FormParts<'py>>)>;

/// The description of a call: the operator's name, arguments, results, and the slots of the tensors that are written.
type CallParts<'py> = (String, Vec<Bound<'py, PyAny>>, Vec<ResultParts<'py>>, Vec<usize>);

impl Call {
    /// Reads a call from its parts.
    pub fn read(parts: &Bound<'_, PyTuple>) -> PyResult<Self> {
        let (name, arguments, results, writes): CallParts<'_> = parts.extract()?;
        let operator = find_operator(&name).map_err(|error| exception(&error))?;
        let parameters = &operator.schema().parameters;
        if arguments.len() > parameters.len() {
            return Err(value_error(format!(
                "{} arguments are too many for `{}`",
                arguments.len(),
                operator.schema()
            )));
        }
        let operands = (arguments.iter().zip(parameters).zip(operator.defaults()))
            .map(|((argument, parameter), default)| match argument.is(argument.py().Ellipsis()) {
                true => Ok(Operand::Constant(default.cloned().unwrap_or(Value::None))),
                false => Operand::read(argument, &parameter.ty, operator),
            })
            .collect::<PyResult<_>>()?;
        let results = (results.into_iter())
            .map(|result| match result {
                None => Ok(CallResult { slot: None, strides: None, form: None, is_given: false }),
                Some((slot, strides, form)) => Ok(CallResult {
                    slot: Some(slot),
                    strides: strides.map(|strides| Integer::list(&strides)).transpose()?,
                    is_given: form.as_ref().is_some_and(|(_, _, is_given)| *is_given),
                    form: form
                        .map(|(sizes, dtype, _)| PyResult::Ok((Integer::list(&sizes)?, dtype.get().held()?)))
                        .transpose()?,
                }),
            })
            .collect::<PyResult<_>>()?;
        Ok(Self { operator, operands, results, writes })
    }

    /// Runs the call.
    fn run(&self, values: &mut OurValues<'_>, device: &Device) -> thalweg::Result<()> {
        let memory = self.memory(values, device)?;
        let ours = &mut *values.ours;
        let mut results = self.answer(ours, memory.as_deref(), device)?;
        values.written.extend(&self.writes);
        for (result, place) in results.drain(..).zip(&self.results) {
            let Some(slot) = place.slot else { continue };
            ours[slot] = Some(match (result, &place.strides) {
                (Value::Tensor(tensor), Some(strides)) => Value::Tensor(with_strides(tensor, strides, ours)?),
                (other, _) => other,
            });
        }
        Ok(())
    }

    /// Returns memory for the results, if one of them is written into memory of the front end.
    fn memory(
        &self,
        values: &mut OurValues<'_>,
        device: &Device,
    ) -> thalweg::Result<Option<SmallVec<[Tensor; 2]>>> {
        if !self.results.iter().any(|result| result.is_given) {
            return Ok(None);
        }
        let forms: Option<SmallVec<[_; 2]>> = (self.results.iter())
            .map(|result| result.form.as_ref().map(|(sizes, dtype)| (result, sizes, *dtype)))
            .collect();
        let Some(forms) = forms else { return Ok(None) };
        let each = forms.iter().map(|(result, sizes, dtype)| values.memory(result, (sizes, *dtype), device));
        each.collect::<thalweg::Result<_>>().map(Some)
    }

    /// Calls the operator with the values of the slots. The results are written into the memory, if there is any.
    pub fn answer(
        &self,
        ours: &[Option<Value>],
        memory: Option<&[Tensor]>,
        device: &Device,
    ) -> thalweg::Result<Vec<Value>> {
        let parameters = &self.operator.schema().parameters;
        let mut lists: SmallVec<[Value; 2]> = SmallVec::new();
        for (operand, parameter) in self.operands.iter().zip(parameters) {
            if let Operand::List(list) = operand {
                lists.push(Operand::list_now(list, &parameter.ty, ours)?);
            }
        }
        let (mut made, numbers) = (lists.iter(), self.numbers_as_tensors(ours)?);
        let mut numbers_made = numbers.iter().peekable();
        let mut arguments: SmallVec<[Argument<'_>; 8]> = SmallVec::new();
        for (place, operand) in self.operands.iter().enumerate() {
            if let Some((_, tensor)) = numbers_made.next_if(|(number, _)| *number == place) {
                arguments.push(Argument::Tensor(tensor));
                continue;
            }
            arguments.push(match operand {
                Operand::Constant(value) => value.as_argument(),
                Operand::Slot(slot) => held(ours, *slot)?.as_argument(),
                Operand::List(_) => made.next().expect("one value for each list").as_argument(),
            });
        }
        let Some(memory) = memory else { return self.call(&arguments, device) };
        self.operator.call_out(&arguments, memory)?;
        Ok(memory.iter().cloned().map(Value::Tensor).collect())
    }

    /// Returns tensors for the numbers that were passed in the places of tensors, with the dtype and device that PyTorch would give
    /// them next to the first tensor.
    fn numbers_as_tensors(&self, ours: &[Option<Value>]) -> thalweg::Result<SmallVec<[(usize, Tensor); 1]>> {
        let value_of = |operand: &Operand| match operand {
            Operand::Constant(value) => Ok(value.clone()),
            Operand::Slot(slot) => held(ours, *slot).cloned(),
            Operand::List(_) => Ok(Value::None),
        };
        let mut made = SmallVec::new();
        let parameters = &self.operator.schema().parameters;
        for (place, (operand, parameter)) in self.operands.iter().zip(parameters).enumerate() {
            if parameter.ty.kind != Kind::Tensor || parameter.ty.list {
                continue;
            }
            let number = match value_of(operand)? {
                Value::Scalar(number) => number,
                Value::Int(number) => Scalar::I64(number),
                Value::Float(number) => Scalar::F64(number),
                Value::Bool(truth) => Scalar::Bool(truth),
                _ => continue,
            };
            let beside: SmallVec<[Tensor; 4]> = (self.operands.iter())
                .filter_map(|operand| match value_of(operand) {
                    Ok(Value::Tensor(tensor)) => Some(tensor),
                    _ => None,
                })
                .collect();
            let first = beside.first().ok_or_else(|| Error::invalid("a number has no tensor beside it"))?;
            made.push((place, converted(number, dtype_beside(number, &beside), first.device())?));
        }
        Ok(made)
    }

    /// Calls the operator.
    fn call(&self, arguments: &[Argument<'_>], device: &Device) -> thalweg::Result<Vec<Value>> {
        let operator = self.operator;
        if operator.schema().returns.iter().any(|ty| ty.kind != Kind::Tensor) {
            let values: Vec<Value> = arguments.iter().map(|argument| argument.to_value()).collect();
            return operator.call_boxed(&values, Some(device));
        }
        let label = label_at(operator.base_name(), std::panic::Location::caller());
        let results = operator.call(arguments, Some(device), label)?;
        Ok(results.into_iter().map(Value::Tensor).collect())
    }
}

/// Returns a tensor with the strides that the graph's later nodes rely on: the tensor itself, or a copy.
fn with_strides(tensor: Tensor, strides: &[Integer], ours: &[Option<Value>]) -> thalweg::Result<Tensor> {
    let expected: SmallVec<[i64; 6]> =
        strides.iter().map(|stride| stride.now(ours)).collect::<thalweg::Result<_>>()?;
    let layout = tensor.layout();
    let fits = expected.len() == layout.rank()
        && (layout.shape().iter().zip(layout.strides()).zip(&expected))
            .all(|((&extent, &own), &stride)| extent <= 1 || own as i64 == stride);
    // Elements that would share memory are of a trace with other sizes, such as that of a function whose sizes depend on elements.
    if fits || layout.elements() == 0 || expected.len() != layout.rank() || overlap(layout.shape(), &expected)
    {
        return Ok(tensor);
    }
    let sizes: Vec<i64> = layout.shape().iter().map(|&extent| extent as i64).collect();
    let location = std::panic::Location::caller();
    let arguments = [Argument::Ints(&sizes), Argument::Ints(&expected), Argument::DType(tensor.dtype())];
    let mut made = find_operator("empty_strided")?.call(
        &arguments,
        Some(tensor.device()),
        label_at("empty_strided", location),
    )?;
    let made = made.swap_remove(0);
    copy_once(&made, &tensor)?;
    Ok(made)
}

/// Returns whether elements of a shape share memory with these strides.
fn overlap(shape: &[usize], strides: &[i64]) -> bool {
    let mut steps: SmallVec<[(i64, i64); 6]> = (strides.iter().zip(shape))
        .filter(|&(_, &extent)| extent > 1)
        .map(|(&stride, &extent)| (stride, extent as i64))
        .collect();
    steps.sort_unstable();
    let mut span = 1;
    steps.iter().any(|&(stride, extent)| {
        let is_inside = stride < span;
        span += (extent - 1) * stride;
        is_inside
    })
}

impl Arithmetic {
    fn named(name: &str) -> PyResult<Self> {
        Ok(match name {
            "add" => Self::Add,
            "sub" => Self::Subtract,
            "mul" => Self::Multiply,
            "floordiv" => Self::FloorDivide,
            "mod" => Self::Modulo,
            "neg" => Self::Negate,
            "max" => Self::Maximum,
            "min" => Self::Minimum,
            "size" => Self::Size,
            "stride" => Self::Stride,
            _ => return Err(value_error(format!("integers have no `{name}`"))),
        })
    }

    /// Computes the integer.
    fn compute(self, operands: &[Integer], ours: &[Option<Value>]) -> thalweg::Result<i64> {
        let too_large = || Error::invalid("a size exceeds 64 bits");
        let number = |place: usize| operands[place].now(ours);
        let (first, rest) = operands.split_first().ok_or_else(|| Error::invalid("no operands"))?;
        if matches!(self, Self::Size | Self::Stride) {
            let slot = first.slot().ok_or_else(|| Error::invalid("the size of no tensor"))?;
            let tensor = held_tensor(ours, slot)?;
            let place =
                tensor.layout().dimension(number(1)?).map_err(|error| Error::invalid(error.to_string()))?;
            let list = if matches!(self, Self::Size) { tensor.shape() } else { tensor.layout().strides() };
            return Ok(list[place] as i64);
        }
        let mut value = first.now(ours)?;
        if matches!(self, Self::Negate) {
            return value.checked_neg().ok_or_else(too_large);
        }
        for operand in rest {
            let other = operand.now(ours)?;
            value = match self {
                Self::Add => value.checked_add(other),
                Self::Subtract => value.checked_sub(other),
                Self::Multiply => value.checked_mul(other),
                Self::FloorDivide | Self::Modulo if other == 0 => {
                    return Err(Error::invalid("integer division or modulo by zero"));
                }
                Self::FloorDivide => value.checked_div_euclid(other).map(|quotient| match other < 0 {
                    // Euclid's quotient rounds so that the rest is positive, Python's so that it has the divisor's sign.
                    true if value.rem_euclid(other) != 0 => quotient - 1,
                    _ => quotient,
                }),
                Self::Modulo => {
                    let rest = value.rem_euclid(other);
                    Some(if other < 0 && rest != 0 { rest + other } else { rest })
                }
                Self::Maximum => Some(value.max(other)),
                Self::Minimum => Some(value.min(other)),
                Self::Negate | Self::Size | Self::Stride => None,
            }
            .ok_or_else(too_large)?;
        }
        Ok(value)
    }
}

impl Step {
    /// Reads a step: its kind, the parts of the kind, the slots that are not read afterwards, and the node.
    pub fn read(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (kind, parts, last, node): (String, Bound<'_, PyTuple>, Vec<usize>, String) = object.extract()?;
        let action = match kind.as_str() {
            "call" => Action::Call(Call::read(&parts)?),
            "integer" => {
                let (name, operands, slot): (String, Bound<'_, PyAny>, usize) = parts.extract()?;
                Action::Integer(Arithmetic::named(&name)?, Integer::list(&operands)?, slot)
            }
            "record" => Action::Record(parts.extract::<(Vec<usize>,)>()?.0),
            "external" => {
                let (function, arguments, results, is_one, changes) = parts.extract()?;
                Action::External { function, arguments, results, is_one, changes }
            }
            _ => return Err(value_error(format!("there are no steps of the kind `{kind}`"))),
        };
        Ok(Self { action, last, node })
    }

    /// Returns the slots that a step of this package reads.
    pub fn reads(&self) -> Vec<usize> {
        let mut slots = Vec::new();
        match &self.action {
            Action::Call(call) => {
                call.operands.iter().for_each(|operand| operand.push_slots(&mut slots));
                let strides = call.results.iter().filter_map(|result| result.strides.as_ref()).flatten();
                let sizes = call.results.iter().filter_map(|result| result.form.as_ref());
                slots.extend(strides.chain(sizes.flat_map(|(sizes, _)| sizes)).filter_map(Integer::slot));
            }
            Action::Integer(_, operands, _) => slots.extend(operands.iter().filter_map(Integer::slot)),
            Action::Record(recorded) => slots.extend(recorded),
            Action::External { .. } => {}
        }
        slots
    }

    fn is_external(&self) -> bool {
        matches!(self.action, Action::External { .. })
    }

    /// Runs a step of this package.
    pub fn run(&self, values: &mut OurValues<'_>, device: &Device) -> thalweg::Result<()> {
        match &self.action {
            Action::Call(call) => call.run(values, device)?,
            Action::Integer(kind, operands, slot) => {
                let number = kind.compute(operands, values.ours)?;
                values.ours[*slot] = Some(Value::Int(number));
            }
            Action::Record(slots) => {
                for &slot in slots {
                    if let Value::Tensor(tensor) = held(values.ours, slot)? {
                        tensor.record_stream(&device.current_stream());
                    }
                }
            }
            Action::External { .. } => {
                return Err(Error::invalid("a function of the front end is not a step of ours"));
            }
        }
        for &slot in &self.last {
            values.ours[slot] = None;
        }
        Ok(())
    }
}

/// The part of the values that steps of this package use, without the interpreter lock.
pub struct OurValues<'a> {
    /// The values of the slots.
    pub ours: &'a mut [Option<Value>],
    /// The slots whose tensors calls have written.
    pub written: &'a mut Vec<usize>,
    /// The function that allocates results in the front end's memory; `None` if they are written into memory of this package.
    pub exchange: Option<&'a Exchange>,
    /// The objects of the front end that results were written into, with their slots.
    pub given: &'a mut Vec<(usize, Py<PyAny>)>,
    /// The exception of the front end that stopped the steps.
    pub raised: &'a mut Option<PyErr>,
}

impl OurValues<'_> {
    /// Returns memory for a result.
    fn memory(
        &mut self,
        result: &CallResult,
        (sizes, dtype): (&[Integer], DType),
        device: &Device,
    ) -> thalweg::Result<Tensor> {
        let now = |list: &[Integer]| {
            let each = list.iter().map(|number| Ok(number.now(self.ours)?.max(0) as usize));
            each.collect::<thalweg::Result<SmallVec<[usize; 6]>>>()
        };
        let (shape, strides) = (now(sizes)?, now(result.strides.as_deref().unwrap_or_default())?);
        let (Some(slot), Some(exchange), true) = (result.slot, self.exchange, result.is_given) else {
            let [shape, strides] = [as_ints(&shape), as_ints(&strides)];
            let arguments = [Argument::Ints(shape), Argument::Ints(strides), Argument::DType(dtype)];
            let label = label_at("empty_strided", std::panic::Location::caller());
            return Ok(find_operator("empty_strided")?.call(&arguments, Some(device), label)?.swap_remove(0));
        };
        match Python::attach(|py| exchange.target(py, (&shape, &strides), dtype, device)) {
            Ok((object, tensor)) => {
                self.given.push((slot, object));
                Ok(tensor)
            }
            Err(error) => {
                *self.raised = Some(error);
                Err(Error::invalid("the front end has no memory for a result"))
            }
        }
    }
}

/// Divides steps at the functions of the front end.
pub fn parts_of(steps: &[Step]) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut start = 0;
    for end in 0..=steps.len() {
        if end < steps.len() && !steps[end].is_external() {
            continue;
        }
        if start < end {
            let mut reads: Vec<usize> = steps[start..end].iter().flat_map(Step::reads).collect();
            reads.sort_unstable();
            reads.dedup();
            parts.push(Part { steps: start..end, reads });
        }
        if end < steps.len() {
            parts.push(Part { steps: end..end + 1, reads: Vec::new() });
        }
        start = end + 1;
    }
    parts
}
