//! The generic path from a call in Python to an operator of the table.
//!
//! A name has one or more overloads. Each is tried with the call's positional and keyword arguments, first strictly, then with
//! one-element tensors accepted as numbers, as PyTorch's parser does. The first overload that fits is called. The path has no
//! lookup by name and creates no dictionary.
//!
//! This module is a hub: `functions` builds the functions that Python calls from it, `table` describes them, and the error for a
//! call that fits no overload shows the signatures of `table`.

use std::ffi::CString;

use pyo3::exceptions::{PyTypeError, PyUserWarning};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyList, PyString, PyTuple};
use smallvec::SmallVec;
use thalweg::dispatch::{Argument, Operator, Value};
use thalweg::driver::Label;
use thalweg::ops::schema::{Kind, Parameter, Schema};
use thalweg::random::with_generator;
use thalweg::{DType, Device, Tensor};

use crate::convert::{
    number_beside, number_object, read_complex, read_int_or_tensor, read_scalar, read_value, tensor_of,
};
use crate::dtype::{self, PyDType};
use crate::failure::{exception, run, type_error};
use crate::generator::PyGenerator;
use crate::handle::{Held, PyTensor};

/// The arguments of one overload: `None` where the call omits one.
type Read = SmallVec<[Option<Value>; 8]>;

/// The positional and keyword arguments of a call that was rewritten into another form.
type Rewritten<'py> = (Vec<Bound<'py, PyAny>>, Vec<(Bound<'py, PyString>, Bound<'py, PyAny>)>);

/// An overload as Python calls it.
pub struct Overload {
    /// The operator.
    pub operator: &'static Operator,
    /// The position of the parameter `self`, for methods.
    pub receiver: Option<usize>,
    /// The number of parameters that may be passed by position.
    positional: usize,
    /// The default of each parameter.
    defaults: Vec<Option<Value>>,
    /// Whether the function makes tensors, with parameters such as `dtype`, and so takes `requires_grad` as well.
    is_factory: bool,
    /// Whether a result is a number.
    gives_numbers: bool,
    /// Whether the result is one tensor.
    gives_one: bool,
}

/// A Python function: the overloads of a name.
pub struct Function {
    /// The name.
    pub name: String,
    /// The overloads, in the order in which they are tried.
    pub overloads: Vec<Overload>,
    /// The class of named tuples for several named results.
    pub results: Option<Py<PyAny>>,
    /// Whether numbers are accepted for its tensors, as in `remainder(5, x)`.
    pub takes_numbers: bool,
}

/// The functions of two operands for which PyTorch accepts numbers as tensors, without `_` and in-place aliases.
const TAKES_NUMBERS: &[&str] = &[
    "add",
    "bitwise_and",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "div",
    "divide",
    "floor_divide",
    "mul",
    "multiply",
    "remainder",
    "special_chebyshev_polynomial_t",
    "special_chebyshev_polynomial_u",
    "special_chebyshev_polynomial_v",
    "special_chebyshev_polynomial_w",
    "special_hermite_polynomial_h",
    "special_hermite_polynomial_he",
    "special_laguerre_polynomial_l",
    "special_legendre_polynomial_p",
    "special_shifted_chebyshev_polynomial_t",
    "special_shifted_chebyshev_polynomial_u",
    "special_shifted_chebyshev_polynomial_v",
    "special_shifted_chebyshev_polynomial_w",
    "special_xlog1py",
    "special_zeta",
    "sub",
    "subtract",
    "true_divide",
    "xlogy",
    "special_xlogy",
];

/// A call: the receiver of a method, and the positional and keyword arguments.
pub struct Passed<'a, 'py> {
    /// The tensor whose method is called.
    pub receiver: Option<&'a Bound<'py, PyAny>>,
    /// The positional arguments.
    pub places: &'a [Bound<'py, PyAny>],
    /// The keyword arguments, each with its name.
    pub names: &'a [(Bound<'py, PyString>, Bound<'py, PyAny>)],
}

impl<'a, 'py> Passed<'a, 'py> {
    /// Returns the receiver, or the first argument.
    fn first(&self) -> Option<&'a Bound<'py, PyAny>> {
        (self.receiver.or(self.places.first())).or(self.names.first().map(|(_, value)| value))
    }
}

/// The keyword arguments that no schema has.
#[derive(Default)]
struct Extra<'a, 'py> {
    out: Option<&'a Bound<'py, PyAny>>,
    requires_grad: bool,
    pin_memory: bool,
    generator: Option<&'a Bound<'py, PyGenerator>>,
}

/// A call as its overloads are tried.
struct Prepared<'a, 'py> {
    extra: Extra<'a, 'py>,
    /// The keyword arguments that schemas have.
    names: SmallVec<[(Bound<'py, PyString>, Bound<'py, PyAny>); 4]>,
    /// The positional arguments with numbers as tensors, if there are any.
    places: Option<SmallVec<[Bound<'py, PyAny>; 2]>>,
}

impl<'py> Prepared<'_, 'py> {
    /// Returns the call with these arguments.
    fn passed<'b>(&'b self, passed: &Passed<'b, 'py>) -> Passed<'b, 'py> {
        Passed {
            receiver: passed.receiver,
            places: self.places.as_deref().unwrap_or(passed.places),
            names: &self.names,
        }
    }
}

impl Overload {
    /// Returns an operator as an overload for Python.
    pub fn new(operator: &'static Operator) -> Self {
        let (parameters, returns) = (&operator.schema().parameters, operator.schema().returns.as_slice());
        let is_tensor = |parameter: &Parameter| parameter.ty.kind == Kind::Tensor && !parameter.ty.list;
        let receiver =
            parameters.iter().position(|parameter| parameter.name == "self" && is_tensor(parameter));
        Self {
            operator,
            receiver,
            positional: parameters.iter().take_while(|parameter| !parameter.keyword_only).count(),
            defaults: operator.defaults().map(<Option<&Value>>::cloned).collect(),
            is_factory: parameters.iter().any(|parameter| parameter.name == "pin_memory"),
            gives_numbers: returns.iter().any(|ty| ty.kind != Kind::Tensor),
            gives_one: matches!(returns, [ty] if !ty.list),
        }
    }

    /// Returns the schema.
    pub fn schema(&self) -> &'static Schema {
        self.operator.schema()
    }

    /// Returns the position of a parameter by its name in the call: PyTorch's own, or NumPy's.
    fn place_of(&self, name: &str) -> Option<usize> {
        let parameters = &self.schema().parameters;
        let find = |name: &str| parameters.iter().position(|parameter| parameter.name == name);
        find(name).or_else(|| match name {
            "input" | "x" | "a" | "x1" => find("self"),
            "axis" => find("dim"),
            "keepdims" => find("keepdim"),
            "x2" => find("other"),
            "other" => find("src"),
            "from_" => find("from"),
            _ => None,
        })
    }

    /// Matches a call against the schema and writes its arguments to `bound`. Returns whether the call fits.
    fn bind(&self, passed: &Passed<'_, '_>, lenient: bool, bound: &mut Read) -> PyResult<bool> {
        let parameters = &self.schema().parameters;
        bound.clear();
        bound.resize_with(parameters.len(), || None);
        let mut read = |place: usize, value: &Bound<'_, PyAny>| -> PyResult<bool> {
            if bound[place].is_some() {
                return Ok(false);
            }
            let read = read_value(value, &parameters[place].ty, lenient)?;
            bound[place] = read;
            Ok(bound[place].is_some())
        };
        if let Some(receiver) = passed.receiver {
            let Some(place) = self.receiver else { return Ok(false) };
            if !read(place, receiver)? {
                return Ok(false);
            }
        }
        let skipped = passed.receiver.and(self.receiver);
        let mut places = (0..self.positional).filter(|&place| Some(place) != skipped);
        let room = self.positional - usize::from(skipped.is_some());
        if let (1, Some(list)) = (room, self.repeated(places.clone().next(), passed.places, lenient)?) {
            let place = places.next().expect("there is room for one");
            bound[place] = Some(list);
        } else {
            if passed.places.len() > room {
                return Ok(false);
            }
            for value in passed.places {
                let place = places.next().expect("there is room for all");
                if !read(place, value)? {
                    return Ok(false);
                }
            }
        }
        for (name, value) in passed.names {
            let name = name.to_cow()?;
            let Some(place) = self.place_of(&name) else { return Ok(false) };
            let read = if bound[place].is_some() {
                None
            } else {
                read_value(value, &parameters[place].ty, lenient)?
            };
            if read.is_none() {
                return Ok(false);
            }
            bound[place] = read;
        }
        let is_missing =
            |(value, default): (&Option<Value>, &Option<Value>)| value.is_none() && default.is_none();
        Ok(!bound.iter().zip(&self.defaults).any(is_missing))
    }

    /// Returns the reason why a call does not fit, in the words that PyTorch uses for a function with one overload.
    fn mismatch(&self, name: &str, passed: &Passed<'_, '_>) -> Option<String> {
        let parameters = &self.schema().parameters;
        let kind = |value: &Bound<'_, PyAny>| {
            value.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string())
        };
        let does_fit = |value: &Bound<'_, PyAny>, parameter: &Parameter| {
            read_value(value, &parameter.ty, true).is_ok_and(|read| read.is_some())
        };
        let skipped = passed.receiver.and(self.receiver);
        let positional: Vec<usize> = (0..self.positional).filter(|&place| Some(place) != skipped).collect();
        // Sizes that are passed one by one form a list.
        let are_sizes = positional.len() == 1
            && self
                .repeated(positional.first().copied(), passed.places, true)
                .is_ok_and(|list| list.is_some());
        if !are_sizes && passed.places.len() > positional.len() {
            let (room, given) = (positional.len(), passed.places.len());
            let plural = if room == 1 { "" } else { "s" };
            return Some(format!("{name}() takes {room} positional argument{plural} but {given} were given"));
        }
        for (at, (value, &place)) in passed.places.iter().zip(&positional).enumerate().filter(|_| !are_sizes)
        {
            let parameter = &parameters[place];
            if !does_fit(value, parameter) {
                let (shown, ty) =
                    (crate::table::shown_name(parameter), crate::table::type_name(&parameter.ty));
                return Some(format!(
                    "{name}(): argument '{shown}' (position {}) must be {ty}, not {}",
                    at + 1,
                    kind(value)
                ));
            }
        }
        for (key, value) in passed.names {
            let key = key.to_string();
            let Some(place) = self.place_of(&key) else {
                return Some(format!("{name}() got an unexpected keyword argument '{key}'"));
            };
            if parameters[place].ty.kind == Kind::DType && value.is_instance_of::<PyDType>() {
                return dtype::read(value)
                    .is_none()
                    .then(|| format!("{name}(): there are no tensors of {value}"));
            }
            if !does_fit(value, &parameters[place]) {
                let ty = crate::table::type_name(&parameters[place].ty);
                return Some(format!("{name}(): argument '{key}' must be {ty}, not {}", kind(value)));
            }
        }
        let is_named =
            |place: usize| passed.names.iter().any(|(key, _)| self.place_of(&key.to_string()) == Some(place));
        let missing: Vec<String> = (positional.iter().skip(passed.places.len()))
            .filter(|&&place| self.defaults[place].is_none() && !is_named(place))
            .map(|&place| format!("\"{}\"", crate::table::shown_name(&parameters[place])))
            .collect();
        let (count, list) = (missing.len(), missing.join(", "));
        (count > 0).then(|| format!("{name}() missing {count} required positional arguments: {list}"))
    }

    /// Returns integers that are passed one by one for a list that is the only parameter (`x.view(2, 3)`).
    fn repeated(
        &self,
        place: Option<usize>,
        values: &[Bound<'_, PyAny>],
        lenient: bool,
    ) -> PyResult<Option<Value>> {
        let Some(place) = place else { return Ok(None) };
        let ty = &self.schema().parameters[place].ty;
        if !ty.list || ty.kind != Kind::Int || values.is_empty() {
            return Ok(None);
        }
        let mut list = Vec::with_capacity(values.len());
        for value in values {
            match read_int_or_tensor(value, lenient)? {
                Some(integer) => list.push(integer),
                None => return Ok(None),
            }
        }
        Ok(Some(Value::Ints(list)))
    }
}

impl Function {
    /// Returns a function by its name and overloads. In-place variants follow the rules of their functions. PyTorch accepts numbers
    /// for both operands of `add(2, 3)`.
    pub fn new(name: String, overloads: Vec<Overload>, results: Option<Py<PyAny>>) -> Self {
        let takes_numbers = TAKES_NUMBERS.contains(&name.strip_suffix('_').unwrap_or(&name));
        Self { name, overloads, results, takes_numbers }
    }

    /// Calls the overload that fits.
    pub fn call<'py>(&self, py: Python<'py>, passed: &Passed<'_, 'py>) -> PyResult<Bound<'py, PyAny>> {
        let prepared = self.prepare(py, passed)?;
        let passed = prepared.passed(passed);
        let mut bound = Read::new();
        if let Some(overload) = self.fitting(&passed, &mut bound)? {
            return self.run(py, overload, &mut bound, &passed, &prepared.extra);
        }
        let Some((places, names)) = self.without_numbers_between(py, &passed)? else {
            return Err(self.refusal(&passed));
        };
        let rewritten = Passed { receiver: passed.receiver, places: &places, names: &names };
        match self.fitting(&rewritten, &mut bound)? {
            Some(overload) => self.run(py, overload, &mut bound, &rewritten, &prepared.extra),
            None => Err(self.refusal(&passed)),
        }
    }

    /// Returns the name with overload of the operator that a call runs, or `None` if no overload fits.
    pub fn name_of_overload<'py>(
        &self,
        py: Python<'py>,
        passed: &Passed<'_, 'py>,
    ) -> PyResult<Option<&'static str>> {
        let prepared = self.prepare(py, passed)?;
        let found = self.fitting(&prepared.passed(passed), &mut Read::new())?;
        Ok(found.map(|overload| overload.operator.name()))
    }

    /// Takes the keyword arguments that no schema has from a call, and converts the numbers that are operands.
    fn prepare<'a, 'py>(&self, py: Python<'py>, passed: &Passed<'a, 'py>) -> PyResult<Prepared<'a, 'py>> {
        let mut extra = Extra::default();
        let mut names = SmallVec::new();
        for (name, value) in passed.names {
            match &*name.to_cow()? {
                "out" if value.is_none() => {}
                "out" => extra.out = Some(value),
                "requires_grad" if self.overloads[0].is_factory => extra.requires_grad = value.extract()?,
                "pin_memory" if self.overloads[0].is_factory => {
                    extra.pin_memory = value.extract::<Option<bool>>()?.unwrap_or(false)
                }
                "generator" if value.is_none() => {}
                "generator" if self.draws() => match value.cast::<PyGenerator>() {
                    Ok(generator) => extra.generator = Some(generator),
                    Err(_) => names.push((name.clone(), value.clone())),
                },
                _ => names.push((name.clone(), value.clone())),
            }
        }
        Ok(Prepared { extra, names, places: self.numbers_as_tensors(py, passed)? })
    }

    /// Returns the overload that fits a call, after writing its arguments to `bound`.
    fn fitting(&self, passed: &Passed<'_, '_>, bound: &mut Read) -> PyResult<Option<&Overload>> {
        for lenient in [false, true] {
            for overload in &self.overloads {
                if overload.bind(passed, lenient, bound)? {
                    return Ok(Some(overload));
                }
            }
        }
        Ok(None)
    }

    /// Rewrites a call in one of PyTorch's older forms, which have numbers before and between the tensors (`addcmul(x, 0.5, y,
    /// z)`), as one that passes the numbers by name, and shows PyTorch's warning. Returns `None` if the function has no such
    /// form.
    fn without_numbers_between<'py>(
        &self,
        py: Python<'py>,
        passed: &Passed<'_, 'py>,
    ) -> PyResult<Option<Rewritten<'py>>> {
        let (tensors, numbers): (usize, &[&str]) = match self.name.trim_end_matches('_') {
            "add" | "sub" => (2, &["alpha"]),
            "addcmul" | "addcdiv" => (3, &["value"]),
            "addmm" | "addmv" | "addr" | "addbmm" | "baddbmm" => (3, &["beta", "alpha"]),
            _ => return Ok(None),
        };
        let (mut places, mut names) = (Vec::new(), passed.names.to_vec());
        let mut left = numbers.iter();
        for value in passed.places {
            let is_number = read_complex(value).is_some() || read_scalar(value, false)?.is_some();
            match (value.is_instance_of::<PyTensor>(), is_number) {
                (true, _) => places.push(value.clone()),
                (false, true) if places.len() + usize::from(passed.receiver.is_some()) < tensors => {
                    let Some(name) = left.next() else { return Ok(None) };
                    names.push((PyString::new(py, name), value.clone()));
                }
                _ => return Ok(None),
            }
        }
        let is_form = places.len() + usize::from(passed.receiver.is_some()) == tensors;
        if !is_form || left.len() == numbers.len() {
            return Ok(None);
        }
        let text = format!(
            "This overload of {name} is deprecated: numbers before tensors are to be named. Consider using {name}(Tensor input, ..., *, {named})",
            name = self.name,
            named = numbers.iter().map(|name| format!("Number {name}")).collect::<Vec<_>>().join(", ")
        );
        PyErr::warn(py, &py.get_type::<PyUserWarning>(), &CString::new(text)?, 1)?;
        Ok(Some((places, names)))
    }

    /// Converts numbers among the positional arguments to tensors, for a function that accepts numbers as tensors: a first
    /// operand, a second operand where no overload takes a number, and a bool next to bools, because kernels with a number do not
    /// take bools.
    fn numbers_as_tensors<'py>(
        &self,
        py: Python<'py>,
        passed: &Passed<'_, 'py>,
    ) -> PyResult<Option<SmallVec<[Bound<'py, PyAny>; 2]>>> {
        let second = usize::from(passed.receiver.is_none());
        if !self.takes_numbers || passed.places.len() <= second {
            return Ok(None);
        }
        let tensor = |value: &Bound<'py, PyAny>| Some(value.cast::<PyTensor>().ok()?.tensor());
        let first = passed.receiver.unwrap_or(&passed.places[0]);
        if passed.receiver.is_none()
            && passed.places.iter().all(|value| matches!(read_scalar(value, false), Ok(Some(_))))
        {
            // The result for two numbers is a tensor without dimensions.
            let made = |value| Ok(PyTensor::object(py, tensor_of(value, None, None)?)?.into_any());
            return passed.places.iter().map(made).collect::<PyResult<_>>().map(Some);
        }
        let (place, like) = match (tensor(first), tensor(&passed.places[second])) {
            (None, Some(like)) => (0, like),
            (Some(like), None) => (second, like),
            _ => return Ok(None),
        };
        let value = &passed.places[place];
        let is_truth = value.is_instance_of::<PyBool>() && like.dtype() == DType::Bool;
        let takes_number = |overload: &Overload| {
            overload.schema().parameters.get(1).is_some_and(|parameter| parameter.ty.kind == Kind::Scalar)
        };
        let is_second = passed.receiver.is_some() || place == 1;
        if is_second && !is_truth && self.overloads.iter().any(takes_number) {
            return Ok(None);
        }
        let Some(made) = number_beside(value, &like)? else { return Ok(None) };
        let mut places: SmallVec<[_; 2]> = passed.places.iter().cloned().collect();
        places[place] = PyTensor::object(py, made)?.into_any();
        Ok(Some(places))
    }

    /// Returns whether the function draws random numbers and takes a generator.
    fn draws(&self) -> bool {
        self.overloads.iter().any(|overload| overload.operator.takes_generator())
    }

    /// Calls an overload.
    fn run<'py>(
        &self,
        py: Python<'py>,
        overload: &Overload,
        bound: &mut Read,
        passed: &Passed<'_, 'py>,
        extra: &Extra<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let operator = overload.operator;
        while bound.last().is_some_and(Option::is_none) {
            bound.pop();
        }
        let mut arguments: SmallVec<[Argument<'_>; 8]> = SmallVec::new();
        for (value, default) in bound.iter().zip(&overload.defaults) {
            let value = value.as_ref().or(default.as_ref());
            arguments.push(value.map_or(Argument::None, Value::as_argument));
        }
        let first = first_tensor(&arguments);
        let device = match first {
            Some(_) => None,
            None if arguments.iter().any(|argument| matches!(argument, Argument::Device(_))) => None,
            None => Some(Device::current().map_err(|error| exception(&error))?),
        };
        if let Some(out) = extra.out {
            return self.run_out(py, overload, &arguments, out);
        }
        let generator = extra.generator.map(|generator| generator.get().source(py)).transpose()?;
        if let Some(generator) = extra.generator {
            let named = arguments.iter().find_map(|argument| match argument {
                Argument::Device(device) => Some(*device),
                _ => None,
            });
            let place = first.map(Tensor::device).or(named).or(device.as_ref());
            place.map_or(Ok(()), |place| generator.get().check(py, place))?;
        }
        if overload.gives_numbers {
            return number_results(py, operator, &arguments, device);
        }
        let call = || operator.call(&arguments, device.as_ref(), Label::here(operator.base_name()));
        let mut results = run(py, || match &generator {
            None => call(),
            Some(generator) => with_generator(generator, call),
        })?;
        if overload.gives_one
            && results.len() == 1
            && let Some(result) = results.pop()
        {
            if let Some(same) = passed.first().and_then(|first| same_object(&result, first)) {
                return Ok(same);
            }
            if extra.pin_memory {
                result.mark_pinned().map_err(|error| exception(&error))?;
            }
            if extra.requires_grad {
                result.set_requires_grad(true).map_err(|error| exception(&error))?;
            }
            return Ok(PyTensor::object_of(py, result, passed.first())?.into_any());
        }
        let given = passed.first().and_then(|first| first.cast::<PyList>().ok());
        let list = (results.into_iter().enumerate())
            .map(|(place, tensor)| {
                let given = given.and_then(|list| list.get_item(place).ok());
                match given.and_then(|one| same_object(&tensor, &one)) {
                    Some(same) => Ok(same),
                    None => Ok(PyTensor::object_of(py, tensor, passed.first())?.into_any()),
                }
            })
            .collect::<PyResult<Vec<_>>>()?;
        self.named(operator, PyTuple::new(py, list)?)
    }

    /// Returns several results of an operator, by their names if it names them.
    fn named<'py>(&self, operator: &Operator, tuple: Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
        match &self.results {
            Some(class) if !operator.schema().return_names.is_empty() => class.bind(tuple.py()).call1(tuple),
            _ => Ok(tuple.into_any()),
        }
    }

    /// Calls an operator that writes its results into the given tensors.
    fn run_out<'py>(
        &self,
        py: Python<'py>,
        overload: &Overload,
        arguments: &[Argument<'_>],
        out: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let targets: Vec<Tensor> = match out.cast::<PyTensor>() {
            Ok(one) => vec![one.tensor()],
            Err(_) => (out.try_iter()?)
                .map(|target| Ok(target?.cast::<PyTensor>()?.tensor()))
                .collect::<PyResult<_>>()?,
        };
        run(py, || overload.operator.call_out(arguments, &targets))?;
        match out.cast::<PyTensor>() {
            Ok(_) => Ok(out.clone()),
            Err(_) => self.named(
                overload.operator,
                out.try_iter()?.collect::<PyResult<Vec<_>>>().and_then(|all| PyTuple::new(py, all))?,
            ),
        }
    }

    /// Returns the exception for a call that fits no overload.
    fn refusal(&self, passed: &Passed<'_, '_>) -> PyErr {
        let kind = |value: &Bound<'_, PyAny>| {
            value.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string())
        };
        let places = passed.places.iter().map(kind);
        let names = passed.names.iter().map(|(name, value)| format!("{name}={}", kind(value)));
        let got: Vec<String> = places.chain(names).collect();
        let expected: Vec<String> = (self.overloads.iter())
            .map(|overload| format!("\n * {}", crate::table::signature(overload, passed.receiver.is_some())))
            .collect();
        let first = match self.overloads.as_slice() {
            [only] => only.mismatch(&self.name, passed).map(|why| why + "\n").unwrap_or_default(),
            _ => String::new(),
        };
        PyTypeError::new_err(format!(
            "{first}{}() received an invalid combination of arguments - got ({}), but expected one of:{}",
            self.name,
            got.join(", "),
            expected.concat()
        ))
    }
}

/// Returns the first tensor among arguments.
fn first_tensor<'a>(arguments: &[Argument<'a>]) -> Option<&'a Tensor> {
    arguments.iter().find_map(|argument| match *argument {
        Argument::Tensor(tensor) => Some(tensor),
        Argument::Tensors(list) => list.first(),
        Argument::OptionalTensors(list) => list.iter().flatten().next(),
        _ => None,
    })
}

/// Returns the argument's object if the result is that same tensor: `x.add_(y)` and `x.contiguous()` return `x` itself, and
/// `broadcast_tensors` those of its list that have the shape already.
fn same_object<'py>(result: &Tensor, argument: &Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
    let tensor = argument.cast::<PyTensor>().ok()?;
    tensor.holds(result).then(|| argument.clone())
}

/// Calls an operator whose results are numbers that the host reads.
fn number_results<'py>(
    py: Python<'py>,
    operator: &'static Operator,
    arguments: &[Argument<'_>],
    device: Option<Device>,
) -> PyResult<Bound<'py, PyAny>> {
    let values: Vec<Value> = arguments.iter().map(|argument| argument.to_value()).collect();
    let results = run(py, || operator.call_boxed(&values, device.as_ref()))?;
    let objects = (results.into_iter().zip(&operator.schema().returns))
        .map(|(value, ty)| match value {
            Value::Tensor(tensor) => Ok(PyTensor::object(py, tensor)?.into_any()),
            Value::Scalar(number) if ty.kind == Kind::Int => {
                Ok(number.to_i64().into_pyobject(py)?.into_any())
            }
            Value::Scalar(number) => number_object(py, number),
            other => Err(type_error(format!("the result {other:?} has no form in Python"))),
        })
        .collect::<PyResult<Vec<_>>>()?;
    match <[_; 1]>::try_from(objects) {
        Ok([one]) => Ok(one),
        Err(several) => Ok(PyTuple::new(py, several)?.into_any()),
    }
}
