//! The device time of a [`Row`], measured by events on the stream.

use std::collections::BTreeMap;

use serde_json::Value as Json;
use thalweg::dispatch::{Operator, Value, find_operator};
use thalweg::ops::schema::{Kind, Parameter};
use thalweg::random::default_generator;
use thalweg::{
    CaptureOptions, DType, Device, Error, Event, Graph, MemoryFormat, Result, Scalar, Tensor, autograd,
};

use super::rows::{Row, Variable};

/// The total time of the calls of one measurement, in milliseconds, unless one call takes longer.
const SPAN_MS: f32 = 1.0;

/// The maximum number of calls of one measurement.
const MOST_CALLS: usize = 50;

/// The number of repetitions of a measurement, of which the minimum is used.
const REPEATS: usize = 7;

/// The time of a row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Time {
    /// Microseconds per call.
    pub microseconds: f64,
    /// Whether the calls were replayed from a graph; otherwise the host submitted each, and may have been slower than the device.
    pub captured: bool,
}

/// The operator and its inputs on a device.
pub struct Prepared {
    operator: &'static Operator,
    values: Vec<Value>,
    inputs: Vec<Tensor>,
    /// The gradient of the first result; `None` if only forward is timed.
    cotangent: Option<Tensor>,
    device: Device,
    bytes: u64,
}

impl Prepared {
    /// Draws the inputs and calls the operator once, which compiles its kernels.
    pub fn new(row: &Row, device: &Device) -> Result<Self> {
        let operator = find_operator(&row.operator)?;
        let mut tensors = BTreeMap::new();
        let mut inputs = Vec::new();
        for variable in &row.variables {
            let mut tensor = draw(variable, device)?;
            if row.gradients.contains(&variable.name) {
                tensor = tensor.requires_grad_()?;
                inputs.push(tensor.clone());
            }
            tensors.insert(variable.name.as_str(), tensor);
        }
        let parameters = &operator.schema().parameters;
        let values = row
            .arguments
            .iter()
            .zip(parameters)
            .map(|(argument, parameter)| value(argument, parameter, &tensors))
            .collect::<Result<_>>()?;
        let mut prepared =
            Self { operator, values, inputs, cotangent: None, device: device.clone(), bytes: 0 };
        let results = prepared.forward()?;
        let read: u64 = row.variables.iter().map(Variable::bytes).sum();
        prepared.bytes = read
            + results
                .iter()
                .map(|tensor| (tensor.elements() * tensor.dtype().size_bytes()) as u64)
                .sum::<u64>();
        if !prepared.inputs.is_empty() {
            let result =
                results.first().ok_or_else(|| Error::invalid(format!("{} has no result", row.operator)))?;
            prepared.cotangent = Some(result.detach().ones_like()?);
        }
        drop(results);
        prepared.call()?;
        device.synchronize()?;
        Ok(prepared)
    }

    /// Returns the bytes of inputs and results, which forward moves at least.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Calls the operator and returns its results that are tensors.
    fn forward(&self) -> Result<Vec<Tensor>> {
        let results = self.operator.call_boxed(&self.values, Some(&self.device))?;
        Ok(results
            .into_iter()
            .flat_map(|value| match value {
                Value::Tensor(tensor) => vec![tensor],
                Value::Tensors(list) => list,
                _ => Vec::new(),
            })
            .collect())
    }

    /// Runs the timed work once.
    fn call(&self) -> Result<()> {
        let results = self.forward()?;
        if let Some(cotangent) = &self.cotangent {
            autograd::gradients(&results[..1], &[Some(cotangent.clone())], &self.inputs)?;
        }
        Ok(())
    }

    /// Times calls: all of one measurement are replayed from a graph, or submitted if they cannot be captured.
    pub fn time(&self) -> Result<Time> {
        let first = least_span(&self.device, 1, || self.call())?;
        let calls = ((SPAN_MS / first.max(1e-3)) as usize).clamp(1, MOST_CALLS);
        let many = || (0..calls).try_for_each(|_| self.call());
        let graph =
            Graph::capture(&self.device, CaptureOptions::default(), many).ok().map(|(graph, ())| graph);
        let run = || graph.as_ref().map_or_else(many, |graph| graph.replay());
        run()?;
        let least = least_span(&self.device, REPEATS, run)?;
        Ok(Time { microseconds: f64::from(least) * 1e3 / calls as f64, captured: graph.is_some() })
    }
}

/// Returns the minimum time between events around a run on the current stream, in milliseconds, of `runs` runs. *Blocks*.
pub fn least_span(device: &Device, runs: usize, run: impl Fn() -> Result<()>) -> Result<f32> {
    let stream = device.current_stream();
    let mut least = f32::INFINITY;
    for _ in 0..runs {
        let (start, end) = (Event::with_timing(), Event::with_timing());
        start.record(&stream)?;
        run()?;
        end.record(&stream)?;
        end.synchronize()?;
        least = least.min(start.elapsed_ms(&end)?);
    }
    Ok(least)
}

/// Draws random numbers for a variable.
fn draw(variable: &Variable, device: &Device) -> Result<Tensor> {
    let mut shape = variable.shape.clone();
    if let (true, [.., rows, columns]) = (variable.transposed, shape.as_mut_slice()) {
        std::mem::swap(rows, columns);
    }
    let generator = default_generator(device)?;
    let tensor = match variable.dtype {
        DType::Bool => generator.rand(&shape, DType::F32)?.gt_scalar(0.5)?,
        dtype if !dtype.is_floating_point() => {
            let below = variable.below.unwrap_or(100);
            // Numbers below 2^24 are exact in f32.
            generator.uniform(&shape, 0.0, below as f64, DType::F32)?.to_dtype(dtype)?
        }
        dtype if variable.positive => generator.uniform(&shape, 0.1, 2.0, DType::F32)?.to_dtype(dtype)?,
        dtype => generator.randn(&shape, DType::F32)?.to_dtype(dtype)?,
    };
    if variable.channels_last {
        return tensor.contiguous_in(MemoryFormat::ChannelsLast);
    }
    if variable.transposed { tensor.transpose(-2, -1) } else { Ok(tensor) }
}

/// Converts an argument to its parameter's type.
fn value(json: &Json, parameter: &Parameter, tensors: &BTreeMap<&str, Tensor>) -> Result<Value> {
    let wrong = || Error::invalid(format!("{json} is not an argument for `{}`", parameter.name));
    let tensor =
        |json: &Json| json["var"].as_str().and_then(|name| tensors.get(name)).cloned().ok_or_else(wrong);
    let scalar = |json: &Json| {
        let whole = json.as_i64().map(Scalar::I64).or_else(|| json.as_bool().map(Scalar::Bool));
        whole.or_else(|| json.as_f64().map(Scalar::F64)).ok_or_else(wrong)
    };
    if json.is_null() {
        return Ok(Value::None);
    }
    if let Some(list) = json.as_array() {
        return Ok(match parameter.ty.kind {
            Kind::Tensor if parameter.ty.optional_elements => {
                Value::OptionalTensors(list.iter().map(|json| tensor(json).map(Some)).collect::<Result<_>>()?)
            }
            Kind::Tensor => Value::Tensors(list.iter().map(tensor).collect::<Result<_>>()?),
            // A variable's name stands for the list of its extents.
            Kind::Int if list.iter().all(Json::is_object) => {
                let shapes = list.iter().map(tensor).collect::<Result<Vec<_>>>()?;
                Value::Ints(
                    shapes
                        .iter()
                        .flat_map(|tensor| tensor.shape().iter().map(|&extent| extent as i64))
                        .collect(),
                )
            }
            _ => Value::Ints(list.iter().map(|json| json.as_i64().ok_or_else(wrong)).collect::<Result<_>>()?),
        });
    }
    Ok(match parameter.ty.kind {
        Kind::Tensor => Value::Tensor(tensor(json)?),
        Kind::Scalar => Value::Scalar(scalar(json)?),
        Kind::Int if parameter.ty.list => Value::Ints(vec![json.as_i64().ok_or_else(wrong)?]),
        Kind::Int => Value::Int(json.as_i64().ok_or_else(wrong)?),
        Kind::Float => Value::Float(json.as_f64().ok_or_else(wrong)?),
        Kind::Bool => Value::Bool(json.as_bool().ok_or_else(wrong)?),
        Kind::Str => Value::Str(json.as_str().ok_or_else(wrong)?.to_owned()),
        Kind::DType => {
            Value::DType(json["dtype"].as_str().and_then(|name| name.parse().ok()).ok_or_else(wrong)?)
        }
        _ => return Err(wrong()),
    })
}
