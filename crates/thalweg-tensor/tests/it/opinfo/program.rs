//! Replays the calls of a sample through the dispatcher's boxed interface.

use serde_json::Value as Json;
use thalweg_ir::{DType, Scalar, c128};
use thalweg_ops::schema::{Kind, Literal, Parameter, Type};
use thalweg_runtime::Device;
use thalweg_tensor::Tensor;
use thalweg_tensor::dispatch::{Operator, Value, find_operator};

use super::file::list;
use crate::support::device;

/// The reason why calls cannot continue.
pub enum Stop {
    /// The operator refused the arguments of the last call: the error, and whether it is one of a wrong argument.
    Refused {
        /// The text of the error.
        message: String,
        /// Whether the error is one of a wrong argument.
        is_invalid_argument: bool,
        /// Whether the call was the program's last.
        in_last_call: bool,
    },
    /// The golden contains something that a call cannot express here: a complex number, a generator, a parameter that does not
    /// exist.
    Inexpressible(String),
}

impl Stop {
    /// Returns the reason as text, for a program that should have run.
    pub fn into_message(self) -> String {
        match self {
            Self::Refused { message, .. } => format!("refused: {message}"),
            Self::Inexpressible(reason) => reason,
        }
    }
}

/// The values of a program: inputs, then results; values other than tensors are kept at their positions.
pub struct Machine {
    values: Vec<Option<Tensor>>,
    device: Device,
}

impl Machine {
    /// Starts with the inputs.
    pub fn new(inputs: &[Tensor]) -> Self {
        Self::on(inputs, &device())
    }

    /// Starts with inputs that are already on a device.
    pub fn on(inputs: &[Tensor], device: &Device) -> Self {
        Self { values: inputs.iter().cloned().map(Some).collect(), device: device.clone() }
    }

    /// Returns the tensor of a number.
    pub fn tensor(&self, number: &Json) -> Result<&Tensor, String> {
        let index = number.as_u64().ok_or_else(|| format!("{number} is not a value"))? as usize;
        self.values.get(index).and_then(Option::as_ref).ok_or_else(|| format!("value {index} was never made"))
    }

    fn keep(&mut self, number: &Json, tensor: Tensor) {
        let index = number.as_u64().expect("a value's number") as usize;
        if index >= self.values.len() {
            self.values.resize(index + 1, None);
        }
        self.values[index] = Some(tensor);
    }

    /// Runs all calls.
    pub fn run(&mut self, calls: &[Json]) -> Result<(), Stop> {
        for (index, call) in calls.iter().enumerate() {
            let name = call[0].as_str().expect("an overload's name");
            let (operator, values) = self.bind(name, &call[1])?;
            let results =
                operator.call_boxed(&values, Some(&self.device)).map_err(|error| Stop::Refused {
                    message: error.to_string(),
                    is_invalid_argument: error.is_invalid_argument(),
                    in_last_call: index + 1 == calls.len(),
                })?;
            self.store(list(&call[2]), results).map_err(Stop::Inexpressible)?;
        }
        Ok(())
    }

    fn store(&mut self, places: &[Json], results: Vec<Value>) -> Result<(), String> {
        for (place, result) in places.iter().zip(results) {
            match (place, result) {
                (Json::Number(_), Value::Tensor(tensor)) => self.keep(place, tensor),
                (Json::Array(places), Value::Tensors(tensors)) => {
                    if places.len() != tensors.len() {
                        return Err(format!("{} results, PyTorch's {}", tensors.len(), places.len()));
                    }
                    for (place, tensor) in places.iter().zip(tensors) {
                        self.keep(place, tensor);
                    }
                }
                (Json::Object(expected), found) => is_value(&expected["value"], &found)?,
                _ => return Err("a result is of another type than PyTorch's".into()),
            }
        }
        Ok(())
    }

    /// Finds the operator that takes the arguments, and puts them into the order of its schema.
    pub fn bind(&self, name: &str, arguments: &Json) -> Result<(&'static Operator, Vec<Value>), Stop> {
        let arguments = arguments.as_object().expect("arguments by name");
        let mut operator = find_operator(name).map_err(|error| Stop::Inexpressible(error.to_string()))?;
        let numbers_for_tensors = |operator: &'static Operator| {
            let parameters = &operator.schema().parameters;
            parameters.iter().any(|p| {
                p.ty.kind == Kind::Tensor && !p.ty.list && arguments.get(&p.name).is_some_and(is_number)
            })
        };
        // Python passes a number for a tensor: an overload for numbers is equivalent.
        if numbers_for_tensors(operator)
            && let Ok(scalar) = find_operator(&name.replace(".Tensor", ".Scalar"))
            && !numbers_for_tensors(scalar)
        {
            operator = scalar;
        }
        let parameters = &operator.schema().parameters;
        if let Some(unknown) = arguments.keys().find(|name| parameters.iter().all(|p| p.name != **name)) {
            return Err(Stop::Inexpressible(format!("`{}` has no parameter `{unknown}`", operator.schema())));
        }
        let given = |p: &Parameter| arguments.get(&p.name);
        let count = parameters.iter().rposition(|p| given(p).is_some()).map_or(0, |last| last + 1);
        let values = parameters[..count].iter().map(|parameter| match given(parameter) {
            Some(argument) => self.value(argument, &parameter.ty),
            // Every tensor of a sample is on one device, which the goldens do not name.
            None if parameter.ty.kind == Kind::Device => Ok(Value::Device(self.device.clone())),
            None => default_of(parameter).ok_or_else(|| format!("`{}` is missing", parameter.name)),
        });
        values.collect::<Result<_, _>>().map(|values| (operator, values)).map_err(Stop::Inexpressible)
    }

    fn value(&self, json: &Json, ty: &Type) -> Result<Value, String> {
        if json.is_null() {
            return Ok(Value::None);
        }
        if let Some(number) = json.get("t") {
            return Ok(Value::Tensor(self.tensor(number)?.clone()));
        }
        if let (Some(elements), true) = (json.as_array(), ty.list) {
            return self.list(elements, ty);
        }
        Ok(match ty.kind {
            Kind::Tensor if json.get("complex").is_some() => {
                let number = complex(json)?;
                let tensor = Tensor::from_slice(&[number], &[], &self.device);
                Value::Tensor(tensor.map_err(|error| error.to_string())?)
            }
            Kind::Tensor => Value::Tensor(self.number_as_tensor(&scalar(json)?)?),
            Kind::Scalar if json.get("complex").is_some() => Value::Complex(complex(json)?),
            Kind::Scalar => Value::Scalar(scalar(json)?),
            Kind::Int => Value::Int(integer(json)?),
            Kind::Float => Value::Float(scalar(json)?.to_f64()),
            Kind::Bool => Value::Bool(json.as_bool().ok_or_else(|| format!("{json} is not a truth value"))?),
            Kind::Str => Value::Str(json.as_str().ok_or_else(|| format!("{json} is not a string"))?.into()),
            Kind::DType => {
                let name = json["dtype"].as_str().unwrap_or_default();
                Value::DType(name.parse().map_err(|_| format!("dtype {name} does not exist"))?)
            }
            Kind::MemoryFormat => Value::Int(memory_format(json)?),
            Kind::Layout | Kind::Device | Kind::Generator => return Err(format!("{json} cannot be passed")),
        })
    }

    fn list(&self, elements: &[Json], ty: &Type) -> Result<Value, String> {
        let tensor = |json: &Json| self.tensor(&json["t"]).cloned();
        Ok(match ty.kind {
            Kind::Tensor if ty.optional_elements => {
                let optional = |json: &Json| (!json.is_null()).then(|| tensor(json)).transpose();
                Value::OptionalTensors(elements.iter().map(optional).collect::<Result<_, _>>()?)
            }
            Kind::Tensor => Value::Tensors(elements.iter().map(tensor).collect::<Result<_, _>>()?),
            Kind::Scalar => Value::Scalars(elements.iter().map(scalar).collect::<Result<_, _>>()?),
            Kind::Float => {
                let float = |json: &Json| scalar(json).map(Scalar::to_f64);
                Value::Floats(elements.iter().map(float).collect::<Result<_, _>>()?)
            }
            Kind::Bool => Value::Bools(elements.iter().map(|json| json == &Json::Bool(true)).collect()),
            _ => Value::Ints(elements.iter().map(integer).collect::<Result<_, _>>()?),
        })
    }

    /// Returns a number as a tensor that does not affect the dtype if the first input's category includes it.
    fn number_as_tensor(&self, number: &Scalar) -> Result<Tensor, String> {
        let first = self.values.iter().flatten().next().map(Tensor::dtype);
        let default = match number {
            Scalar::Bool(_) => DType::Bool,
            Scalar::I64(_) => DType::I64,
            Scalar::F64(_) => DType::F32,
        };
        let dtype = first.filter(|first| first.category() >= default.category()).unwrap_or(default);
        Tensor::from_slice(&[number.to_f64()], &[], &self.device)
            .and_then(|tensor| tensor.to_dtype(dtype))
            .map_err(|error| error.to_string())
    }
}

fn is_number(json: &Json) -> bool {
    json.is_number() || json.is_boolean() || json.get("f").is_some() || json.get("complex").is_some()
}

fn scalar(json: &Json) -> Result<Scalar, String> {
    if let Some(truth) = json.as_bool() {
        return Ok(Scalar::Bool(truth));
    }
    if let Some(integer) = json.as_i64() {
        return Ok(Scalar::I64(integer));
    }
    let special = json.get("f").and_then(Json::as_str).and_then(|name| name.parse().ok());
    special
        .or(json.as_f64())
        .map(Scalar::F64)
        .ok_or_else(|| format!("{json} is not a number that exists here"))
}

/// Returns a complex number from two parts.
fn complex(json: &Json) -> Result<c128, String> {
    let [re, im] = [0, 1].map(|part| scalar(&json["complex"][part]).map(Scalar::to_f64));
    Ok(c128 { re: re?, im: im? })
}

fn integer(json: &Json) -> Result<i64, String> {
    match scalar(json)? {
        Scalar::F64(_) => Err(format!("{json} is not an integer")),
        integer => Ok(integer.to_i64()),
    }
}

/// Returns PyTorch's number of a memory format.
fn memory_format(json: &Json) -> Result<i64, String> {
    let name = json["memory_format"].as_str().unwrap_or_default();
    let names = ["contiguous_format", "preserve_format", "channels_last", "channels_last_3d"];
    let number = names.iter().position(|known| *known == name);
    number.map(|number| number as i64).ok_or_else(|| format!("{json} is not a memory format"))
}

/// Returns the default of a parameter.
fn default_of(parameter: &Parameter) -> Option<Value> {
    Some(match parameter.default.as_ref()? {
        Literal::None => Value::None,
        Literal::Bool(truth) => Value::Bool(*truth),
        Literal::Int(integer) => Value::Int(*integer),
        Literal::Float(number) => Value::Float(*number),
        Literal::Ints(list) => Value::Ints(list.clone()),
        Literal::Str(_) if parameter.ty.kind == Kind::DType => Value::DType(DType::I64),
        Literal::Str(text) => Value::Str(text.clone()),
    })
}

/// Compares a result that is not a tensor.
fn is_value(expected: &Json, found: &Value) -> Result<(), String> {
    if let Value::Complex(found) = found {
        return match complex(expected) {
            Ok(number) if number == *found => Ok(()),
            _ => Err(format!("a result is {found}, PyTorch's {expected}")),
        };
    }
    let found_number = match found {
        Value::Bool(truth) => Scalar::Bool(*truth),
        Value::Int(integer) => Scalar::I64(*integer),
        Value::Float(number) => Scalar::F64(*number),
        Value::Scalar(number) => *number,
        _ => return Err(format!("a result is not {expected}")),
    };
    match scalar(expected) {
        Ok(number) if number == found_number => Ok(()),
        _ => Err(format!("a result is {found_number:?}, PyTorch's {expected}")),
    }
}
