//! Programs: graphs of another front end as lists of calls of the operator table.
//!
//! A program is what `torch.compile(backend="thalweg")` makes of a graph of PyTorch. Its steps run one after the other in a
//! compiled region, so that loops wait and are fused, and their memory is planned, exactly as in a function of
//! [`thalweg::compile`]. No Python runs between steps, except in those that call a function of the front end for an operator
//! that the table lacks.
//!
//! Values are in numbered *slots*. A slot has a value of ours, an object of the front end, or both; each is made from the other
//! when a step needs it (`exchange`). Integers, such as sizes, are values like any other, so one program serves all sizes.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyComplex, PyDict, PyFloat, PyInt, PyList, PyTuple};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg::dispatch::{Argument, Operator, Value, find_operator};
use thalweg::ops::schema::{Kind, Type};
use thalweg::tensor::caller::label_at;
use thalweg::{DType, Device, Error, Scalar, Tensor, c128};

use crate::compiling;
use crate::convert::{dtype_beside, number_object, read_complex, read_scalar, read_value};
use crate::exchange::Exchange;
use crate::failure::{attempt, exception, runtime, type_error, value_error};
use crate::handle::{Held, PyTensor};

/// A reference to a slot in the description of a program.
#[pyclass(name = "Place", module = "thalweg._core", frozen)]
struct Place {
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
enum Integer {
    Constant(i64),
    Slot(usize),
}

/// An argument of a call.
enum Operand {
    Constant(Value),
    Slot(usize),
    /// A list that is not constant.
    List(Vec<Operand>),
}

/// A result of a call.
struct CallResult {
    /// The slot, if a later step reads the result.
    slot: Option<usize>,
    /// The strides that later steps rely on.
    strides: Option<Vec<Integer>>,
}

/// A call of an operator.
struct Call {
    operator: &'static Operator,
    operands: Vec<Operand>,
    results: Vec<CallResult>,
    /// The slot of the tensor that the call writes.
    writes: Option<usize>,
}

/// A computation with integers.
#[derive(Clone, Copy)]
enum Arithmetic {
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
enum Action {
    Call(Call),
    Integer(Arithmetic, Vec<Integer>, usize),
    /// A function of the front end, with the slots of its arguments and of its results. If `is_one`, the function
    /// returns one value. `changes` has the slots of the tensors that it writes.
    Foreign {
        function: Py<PyAny>,
        arguments: Vec<usize>,
        results: Vec<Option<usize>>,
        is_one: bool,
        changes: Vec<usize>,
    },
}

/// A step.
struct Step {
    action: Action,
    /// The slots that no later step reads.
    last: Vec<usize>,
    /// The node of the graph and its line in the model, for messages.
    node: String,
}

/// The steps between two functions of the front end.
struct Part {
    steps: std::ops::Range<usize>,
    /// The slots that calls of the part read and that none of its steps wrote before.
    reads: Vec<usize>,
}

/// A result of the program: a slot, or an object that does not depend on the inputs.
enum Output {
    Slot(usize),
    Object(Py<PyAny>),
}

/// A graph as a list of calls of operators.
#[pyclass(name = "Program", module = "thalweg._core", frozen)]
struct Program {
    steps: Vec<Step>,
    parts: Vec<Part>,
    slots: usize,
    inputs: Vec<usize>,
    /// Objects that do not change between calls, such as the constants of a graph.
    constants: Vec<(usize, Py<PyAny>)>,
    outputs: Vec<Output>,
    /// Whether a slot's object of the front end is needed after its value of ours was made.
    is_kept: Vec<bool>,
    device: Device,
    /// The way to and from tensors of the front end; `None` if they are ours.
    exchange: Option<Exchange>,
}

/// The values of one call of a program.
struct Values {
    ours: Vec<Option<Value>>,
    theirs: Vec<Option<Py<PyAny>>>,
    /// The slots whose tensors were made from objects of the front end.
    sources: Vec<usize>,
    /// The slots whose tensors calls have written.
    written: Vec<usize>,
}

/// Returns the number of a slot if the object is a reference to one.
fn place_of(object: &Bound<'_, PyAny>) -> Option<usize> {
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
fn held(ours: &[Option<Value>], slot: usize) -> thalweg::Result<&Value> {
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
            type_error(format!("{object} is no argument of type {ty} for `{}`", operator.schema()))
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
                Self::List(_) => Err(Error::invalid("lists of lists are no arguments")),
            })
        };
        let number = |value: &Value| match *value {
            Value::Int(number) => Ok(Scalar::I64(number)),
            Value::Float(number) => Ok(Scalar::F64(number)),
            Value::Bool(truth) => Ok(Scalar::Bool(truth)),
            Value::Scalar(number) => Ok(number),
            ref other => Err(Error::invalid(format!("{other:?} is no number"))),
        };
        let tensor = |value: &Value| match value {
            Value::Tensor(tensor) => Ok(Some(tensor.clone())),
            Value::None => Ok(None),
            other => Err(Error::invalid(format!("{other:?} is no tensor"))),
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

impl Call {
    fn read(parts: &Bound<'_, PyTuple>) -> PyResult<Self> {
        let (name, arguments, results, writes): (
            String,
            Vec<Bound<'_, PyAny>>,
            Vec<Option<(usize, Option<Bound<'_, PyAny>>)>>,
            Option<usize>,
        ) = parts.extract()?;
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
            .map(|((argument, parameter), default)| match argument.is(&argument.py().Ellipsis()) {
                true => Ok(Operand::Constant(default.cloned().unwrap_or(Value::None))),
                false => Operand::read(argument, &parameter.ty, operator),
            })
            .collect::<PyResult<_>>()?;
        let results = (results.into_iter())
            .map(|result| match result {
                None => Ok(CallResult { slot: None, strides: None }),
                Some((slot, strides)) => Ok(CallResult {
                    slot: Some(slot),
                    strides: strides.map(|strides| Integer::list(&strides)).transpose()?,
                }),
            })
            .collect::<PyResult<_>>()?;
        Ok(Self { operator, operands, results, writes })
    }

    /// Runs the call.
    fn run(
        &self,
        ours: &mut [Option<Value>],
        written: &mut Vec<usize>,
        device: &Device,
    ) -> thalweg::Result<()> {
        let mut results = self.answer(ours, device)?;
        if let Some(slot) = self.writes {
            written.push(slot);
        }
        for (result, place) in results.drain(..).zip(&self.results) {
            let Some(slot) = place.slot else { continue };
            ours[slot] = Some(match (result, &place.strides) {
                (Value::Tensor(tensor), Some(strides)) => Value::Tensor(with_strides(tensor, strides, ours)?),
                (other, _) => other,
            });
        }
        Ok(())
    }

    /// Calls the operator with the values of the slots.
    fn answer(&self, ours: &[Option<Value>], device: &Device) -> thalweg::Result<Vec<Value>> {
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
        self.call(&arguments, device)
    }

    /// Returns tensors for the numbers that are in the places of tensors, as PyTorch makes them beside the first tensor.
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
            let like = self.operands.iter().find_map(|operand| match value_of(operand) {
                Ok(Value::Tensor(tensor)) => Some(tensor),
                _ => None,
            });
            let like = like.ok_or_else(|| Error::invalid("a number has no tensor beside it"))?;
            made.push((place, Tensor::full(&[], number, dtype_beside(number, &like), like.device())?));
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
    if fits || layout.elements() == 0 || expected.len() != layout.rank() {
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
    made.copy_(&tensor)?;
    Ok(made)
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
    fn read(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (kind, parts, last, node): (String, Bound<'_, PyTuple>, Vec<usize>, String) = object.extract()?;
        let action = match kind.as_str() {
            "call" => Action::Call(Call::read(&parts)?),
            "integer" => {
                let (name, operands, slot): (String, Bound<'_, PyAny>, usize) = parts.extract()?;
                Action::Integer(Arithmetic::named(&name)?, Integer::list(&operands)?, slot)
            }
            "foreign" => {
                let (function, arguments, results, is_one, changes) = parts.extract()?;
                Action::Foreign { function, arguments, results, is_one, changes }
            }
            _ => return Err(value_error(format!("there are no steps of the kind `{kind}`"))),
        };
        Ok(Self { action, last, node })
    }

    /// Returns the slots that a step of ours reads.
    fn reads(&self) -> Vec<usize> {
        let mut slots = Vec::new();
        match &self.action {
            Action::Call(call) => {
                call.operands.iter().for_each(|operand| operand.push_slots(&mut slots));
                let strides = call.results.iter().filter_map(|result| result.strides.as_ref()).flatten();
                slots.extend(strides.filter_map(Integer::slot));
            }
            Action::Integer(_, operands, _) => slots.extend(operands.iter().filter_map(Integer::slot)),
            Action::Foreign { .. } => {}
        }
        slots
    }

    fn is_foreign(&self) -> bool {
        matches!(self.action, Action::Foreign { .. })
    }

    /// Runs a step of ours.
    fn run(&self, values: &mut OurValues<'_>, device: &Device) -> thalweg::Result<()> {
        match &self.action {
            Action::Call(call) => call.run(values.ours, values.written, device)?,
            Action::Integer(kind, operands, slot) => {
                let number = kind.compute(operands, values.ours)?;
                values.ours[*slot] = Some(Value::Int(number));
            }
            Action::Foreign { .. } => {
                return Err(Error::invalid("a function of the front end is no step of ours"));
            }
        }
        for &slot in &self.last {
            values.ours[slot] = None;
        }
        Ok(())
    }
}

/// The part of the values that steps of ours use, without the interpreter lock.
struct OurValues<'a> {
    ours: &'a mut [Option<Value>],
    written: &'a mut Vec<usize>,
}

/// Divides steps at the functions of the front end.
fn parts_of(steps: &[Step]) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut start = 0;
    for end in 0..=steps.len() {
        if end < steps.len() && !steps[end].is_foreign() {
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

/// Adds the node of a step to the exception that it raised.
fn at_node(py: Python<'_>, error: PyErr, node: &str) -> PyErr {
    let text = format!("{}\n(in {node}, compiled by the backend \"thalweg\")", error.value(py));
    match error.get_type(py).call1((text,)) {
        Ok(made) => {
            let made = PyErr::from_value(made);
            made.set_cause(py, error.cause(py));
            made
        }
        Err(_) => error,
    }
}

#[pymethods]
impl Program {
    /// Makes a program of its description.
    ///
    /// A step is a tuple of its kind, its parts, the slots that no later step reads, and its node. `outputs` has references to
    /// slots and other objects. `kept` has the slots whose objects of the front end are needed after their first use.
    /// `exchange` converts tensors of the front end; without it, inputs and outputs are tensors of this package.
    #[new]
    #[pyo3(signature = (steps, slots, inputs, outputs, device, constants, kept, exchange=None))]
    #[expect(
        clippy::too_many_arguments,
        reason = "a description has these parts, which are read here and only here"
    )]
    fn new(
        py: Python<'_>,
        steps: Vec<Bound<'_, PyAny>>,
        slots: usize,
        inputs: Vec<usize>,
        outputs: Vec<Bound<'_, PyAny>>,
        device: &Bound<'_, PyAny>,
        constants: Vec<(usize, Py<PyAny>)>,
        kept: Vec<usize>,
        exchange: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let steps = steps.iter().map(Step::read).collect::<PyResult<Vec<_>>>()?;
        let device = crate::device::or_current(py, Some(device))?;
        let output = |object: &Bound<'_, PyAny>| match place_of(object) {
            Some(slot) => Output::Slot(slot),
            None => Output::Object(object.clone().unbind()),
        };
        let mut is_kept = vec![false; slots];
        for slot in kept {
            *is_kept.get_mut(slot).ok_or_else(|| value_error("there is no such slot"))? = true;
        }
        let program = Self {
            parts: parts_of(&steps),
            slots,
            inputs,
            constants,
            outputs: outputs.iter().map(output).collect(),
            is_kept,
            device,
            exchange: exchange.map(Exchange::read).transpose()?,
            steps,
        };
        program.check()?;
        Ok(program)
    }

    /// Runs the program. The list of inputs is emptied, so that each dies after its last use.
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyList>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let mut values = self.values(py, inputs)?;
        compiling::begin();
        let ran = self.run_parts(py, &mut values).and_then(|()| match &self.exchange {
            Some(exchange) if !self.device.is_simulated() => {
                self.outputs_of(py, &mut values, Some(exchange)).map(Some)
            }
            _ => Ok(None),
        });
        let ended = compiling::end(py);
        let outputs = ran?;
        ended?;
        match outputs {
            Some(outputs) => Ok(outputs),
            None => self.outputs_of(py, &mut values, self.exchange.as_ref()),
        }
    }
}

impl Program {
    /// Checks that all slots exist, so that no call reads beyond them.
    fn check(&self) -> PyResult<()> {
        let mut used = self.inputs.clone();
        for step in &self.steps {
            used.extend(step.reads());
            used.extend(&step.last);
            match &step.action {
                Action::Call(call) => {
                    used.extend(call.results.iter().filter_map(|result| result.slot));
                    used.extend(call.writes);
                }
                Action::Integer(_, _, slot) => used.push(*slot),
                Action::Foreign { arguments, results, changes, .. } => {
                    used.extend(arguments.iter().chain(changes));
                    used.extend(results.iter().flatten());
                }
            }
        }
        used.extend(self.constants.iter().map(|(slot, _)| *slot));
        used.extend(self.outputs.iter().filter_map(|output| match output {
            Output::Slot(slot) => Some(*slot),
            Output::Object(_) => None,
        }));
        match used.iter().find(|&&slot| slot >= self.slots) {
            Some(slot) => {
                Err(value_error(format!("the program has {} slots, and uses number {slot}", self.slots)))
            }
            None => Ok(()),
        }
    }

    /// Returns the values at the start of a call, and empties the list of inputs.
    fn values(&self, py: Python<'_>, inputs: &Bound<'_, PyList>) -> PyResult<Values> {
        if inputs.len() != self.inputs.len() {
            return Err(type_error(format!(
                "the program takes {} inputs, not {}",
                self.inputs.len(),
                inputs.len()
            )));
        }
        let mut values = Values {
            ours: (0..self.slots).map(|_| None).collect(),
            theirs: (0..self.slots).map(|_| None).collect(),
            sources: Vec::new(),
            written: Vec::new(),
        };
        let constants = self.constants.iter().map(|(slot, object)| (*slot, object.bind(py).clone()));
        for (slot, object) in self.inputs.iter().copied().zip(inputs.iter()).chain(constants) {
            self.place(&object, slot, &mut values)?;
        }
        inputs.del_slice(0, inputs.len())?;
        Ok(values)
    }

    /// Puts an object into a slot. Numbers, and tensors of this package, become values of ours.
    fn place(&self, object: &Bound<'_, PyAny>, slot: usize, values: &mut Values) -> PyResult<()> {
        values.ours[slot] = match object.cast::<PyTensor>() {
            Ok(tensor) => Some(Value::Tensor(tensor.tensor().detach())),
            Err(_) => number_value(object)?,
        };
        if values.ours[slot].is_none() {
            values.theirs[slot] = Some(object.clone().unbind());
        }
        Ok(())
    }

    /// Runs the steps.
    fn run_parts(&self, py: Python<'_>, values: &mut Values) -> PyResult<()> {
        for part in &self.parts {
            let first = &self.steps[part.steps.start];
            if let Action::Foreign { .. } = first.action {
                self.call_foreign(py, first, values).map_err(|error| at_node(py, error, &first.node))?;
                continue;
            }
            for &slot in &part.reads {
                self.make_ours(py, slot, values)?;
            }
            let mut at = part.steps.start;
            let Values { ours, written, .. } = values;
            let mut own = OurValues { ours, written };
            let (steps, device, now) = (&self.steps[part.steps.clone()], &self.device, &mut at);
            let ran = attempt(py, move || {
                steps.iter().try_for_each(|step| {
                    step.run(&mut own, device)?;
                    *now += 1;
                    Ok(())
                })
            })?;
            ran.map_err(|error| at_node(py, exception(&error), &self.steps[at].node))?;
            let last = self.steps[part.steps.clone()].iter().flat_map(|step| &step.last);
            last.for_each(|&slot| values.theirs[slot] = None);
        }
        Ok(())
    }

    /// Makes the value of ours of a slot from its object of the front end.
    fn make_ours(&self, py: Python<'_>, slot: usize, values: &mut Values) -> PyResult<()> {
        if values.ours[slot].is_some() {
            return Ok(());
        }
        let (Some(object), Some(exchange)) = (&values.theirs[slot], &self.exchange) else { return Ok(()) };
        let tensor = exchange.read_tensor(object.bind(py), &self.device)?;
        values.ours[slot] = Some(Value::Tensor(tensor));
        match self.is_kept[slot] {
            true => values.sources.push(slot),
            false => values.theirs[slot] = None,
        }
        Ok(())
    }

    /// Makes the object of the front end of a slot from its value of ours.
    fn make_theirs<'py>(
        &self,
        py: Python<'py>,
        slot: usize,
        values: &mut Values,
        exchange: Option<&Exchange>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Some(object) = &values.theirs[slot] {
            return Ok(object.bind(py).clone());
        }
        let value = values.ours[slot].as_ref().ok_or_else(|| runtime(format!("slot {slot} is empty")))?;
        let object = match (value, exchange) {
            (Value::Tensor(tensor), None) => PyTensor::object(py, tensor.clone())?.into_any(),
            (Value::Tensor(tensor), Some(exchange)) => match values.base_of(tensor) {
                Some(base) => exchange.view_of(base.bind(py), tensor)?,
                None => exchange.write_tensor(py, tensor)?,
            },
            (value, _) => number_of(py, value)?,
        };
        values.theirs[slot] = Some(object.clone().unbind());
        Ok(object)
    }

    /// Calls a function of the front end, outside of the compiled region.
    fn call_foreign(&self, py: Python<'_>, step: &Step, values: &mut Values) -> PyResult<()> {
        let Action::Foreign { function, arguments, results, is_one, changes } = &step.action else {
            return Ok(());
        };
        self.write_back(py, values)?;
        let objects = (arguments.iter())
            .map(|&slot| self.make_theirs(py, slot, values, self.exchange.as_ref()))
            .collect::<PyResult<Vec<_>>>()?;
        compiling::begin_excluded(py)?;
        let answer = function.bind(py).call1(PyTuple::new(py, objects)?);
        compiling::end(py)?;
        let answer = answer?;
        if self.device.is_simulated() {
            // Ours are copies of what the function has written.
            changes
                .iter()
                .filter(|&&slot| values.theirs[slot].is_some())
                .for_each(|&slot| values.ours[slot] = None);
        }
        let mut put = |slot: Option<usize>, object: &Bound<'_, PyAny>| match slot {
            Some(slot) => self.place(object, slot, values),
            None => Ok(()),
        };
        match is_one {
            true => put(results.first().copied().flatten(), &answer)?,
            false => {
                for (object, &slot) in answer.try_iter()?.zip(results) {
                    put(slot, &object?)?;
                }
            }
        }
        for &slot in &step.last {
            (values.ours[slot], values.theirs[slot]) = (None, None);
        }
        Ok(())
    }

    /// Copies what calls have written back to the tensors of the front end, where ours are copies of them.
    fn write_back(&self, py: Python<'_>, values: &mut Values) -> PyResult<()> {
        let Some(exchange) = self.exchange.as_ref().filter(|_| self.device.is_simulated()) else {
            return Ok(());
        };
        for slot in std::mem::take(&mut values.written) {
            if let (Some(Value::Tensor(tensor)), Some(object)) = (&values.ours[slot], &values.theirs[slot]) {
                exchange.copy_to_host(py, tensor, object.bind(py))?;
            }
        }
        Ok(())
    }

    /// Returns the results of the program.
    fn outputs_of<'py>(
        &self,
        py: Python<'py>,
        values: &mut Values,
        exchange: Option<&Exchange>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.write_back(py, values)?;
        if let Some(exchange) = exchange {
            self.write_shared(py, values, exchange)?;
        }
        (self.outputs.iter())
            .map(|output| match output {
                Output::Slot(slot) => self.make_theirs(py, *slot, values, exchange),
                Output::Object(object) => Ok(object.bind(py).clone()),
            })
            .collect()
    }

    /// Makes objects of the front end for results that share memory: they share it there, too.
    fn write_shared(&self, py: Python<'_>, values: &mut Values, exchange: &Exchange) -> PyResult<()> {
        let mut of_storage: FxHashMap<(usize, DType), Vec<usize>> = FxHashMap::default();
        for output in &self.outputs {
            if let Output::Slot(slot) = *output
                && values.theirs[slot].is_none()
                && let Some(Value::Tensor(tensor)) = &values.ours[slot]
                && values.base_of(tensor).is_none()
            {
                let slots = of_storage.entry((tensor.storage_identity(), tensor.dtype())).or_default();
                if !slots.contains(&slot) {
                    slots.push(slot);
                }
            }
        }
        for slots in of_storage.into_values().filter(|slots| slots.len() > 1) {
            let tensors: Vec<Tensor> = (slots.iter())
                .filter_map(|&slot| match &values.ours[slot] {
                    Some(Value::Tensor(tensor)) => Some(tensor.clone()),
                    _ => None,
                })
                .collect();
            let objects = exchange.write_shared(py, &tensors)?;
            for (slot, object) in slots.into_iter().zip(objects) {
                values.theirs[slot] = Some(object.unbind());
            }
        }
        Ok(())
    }
}

impl Values {
    /// Returns the object of the front end whose memory a tensor is in.
    fn base_of(&self, tensor: &Tensor) -> Option<&Py<PyAny>> {
        let is_base = |slot: usize| match &self.ours[slot] {
            Some(Value::Tensor(own)) => own.shares_storage_with(tensor),
            _ => false,
        };
        let base = self.sources.iter().find(|&&slot| self.theirs[slot].is_some() && is_base(slot));
        base.and_then(|&slot| self.theirs[slot].as_ref())
    }
}

/// Returns a Python number as a value.
fn number_value(object: &Bound<'_, PyAny>) -> PyResult<Option<Value>> {
    Ok(if let Ok(truth) = object.cast::<PyBool>() {
        Some(Value::Bool(truth.is_true()))
    } else if object.is_instance_of::<PyInt>() {
        Some(Value::Int(object.extract()?))
    } else if let Ok(number) = object.cast::<PyFloat>() {
        Some(Value::Float(number.value()))
    } else {
        object.cast::<PyComplex>().ok().map(|number| Value::Complex(c128::new(number.real(), number.imag())))
    })
}

/// Returns a value that is a number as a Python object.
fn number_of<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    match *value {
        Value::Int(number) => Ok(number.into_pyobject(py)?.into_any()),
        Value::Float(number) => Ok(PyFloat::new(py, number).into_any()),
        Value::Bool(truth) => Ok(PyBool::new(py, truth).to_owned().into_any()),
        Value::Scalar(number) => number_object(py, number),
        Value::Complex(number) => Ok(PyComplex::from_doubles(py, number.re, number.im).into_any()),
        ref other => Err(type_error(format!("{other:?} is no result of a program"))),
    }
}

/// Adds the classes.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Place>()?;
    module.add_class::<Program>()
}
