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
use thalweg::dispatch::Value;
use thalweg::runtime::command_list;
use thalweg::{DType, Device, Tensor, c128};

use crate::compiling;
use crate::convert::number_object;
use crate::cuda::PyStream;
use crate::exchange::Exchange;
use crate::failure::{attempt, exception, runtime, type_error, value_error};
use crate::handle::{Held, PyTensor};
use crate::journal;
use crate::repeats::{Parts, Repeats};
use crate::steps::{Action, OurValues, Part, Place, Step, parts_of, place_of};

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
    /// Whether a slot's object of the front end is still needed after this package's tensor was made from it.
    is_kept: Vec<bool>,
    device: Device,
    /// The conversions from and to tensors of the front end; `None` if the caller passes our tensors.
    exchange: Option<Exchange>,
    /// The recorded calls; `None` if calls cannot be repeated.
    repeats: Option<Repeats>,
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
    /// slots and other objects. `kept` has the slots whose objects of the front end are needed after their first use, and `varying` the
    /// inputs that are numbers, or whose sizes may differ between calls; `given_away` has those that nothing but the list of inputs needs
    /// once a call has begun. `may_repeat` is whether what a call does depends on numbers, sizes and settings alone.
    /// `exchange` converts tensors of the front end; without it, inputs and outputs are tensors of this package.
    #[new]
    #[pyo3(signature = (steps, slots, inputs, outputs, device, constants, kept, exchange=None, varying=Vec::new(), may_repeat=true, given_away=Vec::new()))]
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
        varying: Vec<usize>,
        may_repeat: bool,
        given_away: Vec<usize>,
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
        let exchange = exchange.map(Exchange::read).transpose()?;
        let can_repeat = may_repeat && exchange.as_ref().is_some_and(|exchange| exchange.is_in_place);
        let places =
            |slots: &[usize]| (0..inputs.len()).filter(|&place| slots.contains(&inputs[place])).collect();
        let program = Self {
            repeats: can_repeat.then(|| Repeats::new(places(&varying), places(&given_away))),
            parts: parts_of(&steps),
            slots,
            inputs,
            constants,
            outputs: outputs.iter().map(output).collect(),
            is_kept,
            device,
            exchange,
            steps,
        };
        program.check()?;
        Ok(program)
    }

    /// Runs the program, on a stream or on the current one. The list of inputs is emptied, so that each dies after its last use.
    #[pyo3(signature = (inputs, stream=None))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyList>,
        stream: Option<&Bound<'py, PyStream>>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let _current = stream.map(|stream| stream.get().0.make_current());
        match (&self.repeats, &self.exchange) {
            (Some(repeats), Some(exchange)) if inputs.len() == self.inputs.len() => {
                let parts = Parts { exchange, constants: &self.constants, device: &self.device };
                repeats.call(py, inputs, parts, || self.run(py, inputs))
            }
            _ => self.run(py, inputs),
        }
    }

    /// Returns the operators of the commands of each recorded call, or the reason why there are none, and the most bytes by which memory
    /// grows during the call.
    fn _repeats(&self) -> Vec<(Vec<&'static str>, String, i64)> {
        self.repeats.as_ref().map(Repeats::describe).unwrap_or_default()
    }
}

impl Program {
    /// Runs the steps. The list of inputs is emptied.
    fn run<'py>(&self, py: Python<'py>, inputs: &Bound<'py, PyList>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let mut values = self.values(py, inputs)?;
        compiling::begin();
        let ran = self.run_parts(py, &mut values).and_then(|()| match &self.exchange {
            Some(exchange) if exchange.is_in_place => {
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

    /// Checks that all slots exist, so that no call reads beyond them.
    fn check(&self) -> PyResult<()> {
        let mut used = self.inputs.clone();
        for step in &self.steps {
            used.extend(step.reads());
            used.extend(&step.last);
            match &step.action {
                Action::Call(call) => {
                    used.extend(call.results.iter().filter_map(|result| result.slot));
                    used.extend(&call.writes);
                }
                Action::Integer(_, _, slot) => used.push(*slot),
                Action::Record(slots) => used.extend(slots),
                Action::External { arguments, results, changes, .. } => {
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

    /// Puts an object into a slot: as a value of this package if it is a number or a tensor of this package.
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
            if let Action::External { .. } = first.action {
                self.call_external(py, first, values).map_err(|error| at_node(py, error, &first.node))?;
                continue;
            }
            for &slot in &part.reads {
                self.make_ours(py, slot, values)?;
            }
            let mut at = part.steps.start;
            let Values { ours, written, .. } = &mut *values;
            let (mut given, mut raised) = (Vec::new(), None);
            let exchange = self.exchange.as_ref().filter(|exchange| exchange.is_in_place);
            let mut own = OurValues { ours, written, exchange, given: &mut given, raised: &mut raised };
            let (steps, device, now) = (&self.steps[part.steps.clone()], &self.device, &mut at);
            let ran = attempt(py, move || {
                steps.iter().try_for_each(|step| {
                    step.run(&mut own, device)?;
                    *now += 1;
                    Ok(())
                })
            })?;
            ran.map_err(|error| {
                at_node(py, raised.unwrap_or_else(|| exception(&error)), &self.steps[at].node)
            })?;
            for (slot, object) in given {
                values.theirs[slot] = Some(object);
                values.sources.push(slot);
            }
            let last = self.steps[part.steps.clone()].iter().flat_map(|step| &step.last);
            last.for_each(|&slot| values.theirs[slot] = None);
        }
        Ok(())
    }

    /// Makes a slot's tensor of this library from its object of the front end.
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

    /// Makes a slot's object of the front end from its tensor of this library.
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
    fn call_external(&self, py: Python<'_>, step: &Step, values: &mut Values) -> PyResult<()> {
        let Action::External { function, arguments, results, is_one, changes } = &step.action else {
            return Ok(());
        };
        self.write_back(py, values)?;
        let objects = (arguments.iter())
            .map(|&slot| self.make_theirs(py, slot, values, self.exchange.as_ref()))
            .collect::<PyResult<Vec<_>>>()?;
        compiling::begin_excluded(py)?;
        let objects = PyTuple::new(py, objects)?;
        let answer = command_list::excluded(|| function.bind(py).call1(&objects));
        compiling::end(py)?;
        let answer = answer?;
        let answers = match is_one {
            true => vec![answer],
            false => answer.try_iter()?.collect::<PyResult<_>>()?,
        };
        journal::outside(function, &objects, &answers, *is_one);
        if self.exchange.as_ref().is_some_and(|exchange| !exchange.is_in_place) {
            // Ours are copies of what the function has written.
            changes
                .iter()
                .filter(|&&slot| values.theirs[slot].is_some())
                .for_each(|&slot| values.ours[slot] = None);
        }
        for (object, slot) in answers.iter().zip(results) {
            if let Some(slot) = *slot {
                self.place(object, slot, values)?;
            }
        }
        for &slot in &step.last {
            (values.ours[slot], values.theirs[slot]) = (None, None);
        }
        Ok(())
    }

    /// Copies tensors that calls have written back to the tensors of the front end, if they are copies of these.
    fn write_back(&self, py: Python<'_>, values: &mut Values) -> PyResult<()> {
        let Some(exchange) = self.exchange.as_ref().filter(|exchange| !exchange.is_in_place) else {
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
pub fn number_value(object: &Bound<'_, PyAny>) -> PyResult<Option<Value>> {
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
        ref other => Err(type_error(format!("{other:?} is not a result of a program"))),
    }
}

/// Adds the classes.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Place>()?;
    module.add_class::<Program>()
}
