//! Repeated calls of a program.
//!
//! The first call of a program with some sizes runs its steps; the second one [records](thalweg::runtime::command_list) the commands
//! that they queue; each later call makes the results and queues the commands, without a step. A program repeats its calls if its
//! tensors are in memory of the front end, and no step calls a function of the front end or uses another stream. What else a call
//! depends on is the key of its commands: numbers among the inputs, sizes that vary, and settings.

use std::hash::BuildHasher;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyList, PyTuple};
use thalweg::runtime::{CommandList, DevicePointer, Label, backends, command_list};
use thalweg::tensor::compile;
use thalweg::Device;
use rustc_hash::FxBuildHasher;
use thalweg_lock::Mutex;

use crate::exchange::Exchange;
use crate::failure::run;
use crate::journal::{self, Journal};

/// The most keys that a program keeps the commands of.
const MOST_KEPT: usize = 128;

/// The key of a call's commands.
type Key = Box<[u64]>;

/// The objects that are results of a call.
type Results<'py> = Vec<Bound<'py, PyAny>>;

/// The origin of a tensor of the front end.
#[derive(Clone, Copy)]
enum Source {
    Input(usize),
    Constant(usize),
    /// A tensor that the call makes, by its number.
    Made(usize),
}

/// A result of a call.
enum Output {
    Tensor(Source),
    View {
        base: Source,
        shape: Py<PyTuple>,
        strides: Py<PyTuple>,
        offset: usize,
    },
    /// An object that does not depend on the inputs, for calls with the same key.
    Object(Py<PyAny>),
}

/// A recorded call.
struct Repeat {
    commands: CommandList,
    /// The tensors whose memory the commands use.
    given: Vec<Source>,
    /// The arguments by which each new tensor is made.
    made: Vec<Py<PyTuple>>,
    outputs: Vec<Output>,
}

/// The state of calls with a key.
#[derive(Clone)]
enum State {
    /// One call has run.
    Seen,
    Recorded(Arc<Repeat>),
    /// Calls are not repeated, for this reason.
    Refused(Arc<str>),
}

/// The recorded calls of a program.
pub struct Repeats {
    known: Mutex<Vec<(Key, State)>>,
    /// Whether the sizes of an input may vary, by the place of the input.
    varies: Vec<bool>,
}

/// The parts of a program that a call reads.
#[derive(Clone, Copy)]
pub struct Parts<'a> {
    pub exchange: &'a Exchange,
    pub constants: &'a [(usize, Py<PyAny>)],
    pub device: &'a Device,
}

impl Repeats {
    /// Makes the state of a program, of which no call was recorded.
    pub fn new(varies: Vec<bool>) -> Self {
        Self { known: Mutex::new(Vec::new()), varies }
    }

    /// Returns the number of commands of each recorded call, or the reason why there are none.
    pub fn describe(&self) -> Vec<(usize, String)> {
        let describe = |(_, state): &(Key, State)| match state {
            State::Seen => None,
            State::Recorded(repeat) => Some((repeat.commands.len(), String::new())),
            State::Refused(reason) => Some((0, reason.to_string())),
        };
        self.known.lock().iter().filter_map(describe).collect()
    }

    /// Calls a program: by its recorded commands, if there are any, or by its steps, which `call` runs.
    pub fn call<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyList>,
        parts: Parts<'_>,
        call: impl FnOnce() -> PyResult<Results<'py>>,
    ) -> PyResult<Results<'py>> {
        let stream = parts.device.current_stream();
        if compile::is_compiling() || run(py, || stream.is_capturing())? {
            return call();
        }
        let Some(key) = self.key(inputs)? else { return call() };
        match self.state(&key) {
            None => {
                let results = call()?;
                self.set(key, State::Seen);
                Ok(results)
            }
            Some(State::Seen) => {
                let originals: Results<'py> = inputs.iter().collect();
                journal::begin();
                let (results, commands) = command_list::record(&stream, call);
                let journal = journal::end();
                let results = results?;
                let made = commands
                    .and_then(|commands| Repeat::new(commands, journal, (&originals, parts), &results));
                let state = match made {
                    Ok(repeat) => State::Recorded(Arc::new(repeat)),
                    Err(reason) => State::Refused(reason.into()),
                };
                self.set(key, state);
                Ok(results)
            }
            Some(State::Recorded(repeat)) => match repeat.call(py, inputs, parts)? {
                Some(results) => Ok(results),
                None => call(),
            },
            Some(State::Refused(_)) => call(),
        }
    }

    fn state(&self, key: &[u64]) -> Option<State> {
        let known = self.known.lock();
        known.iter().find(|(own, _)| **own == *key).map(|(_, state)| state.clone())
    }

    fn set(&self, key: Key, state: State) {
        let mut known = self.known.lock();
        match known.iter_mut().find(|(own, _)| *own == key) {
            Some((_, own)) => *own = state,
            None => {
                if known.len() >= MOST_KEPT {
                    known.remove(0);
                }
                known.push((key, state));
            }
        }
    }

    /// Returns everything but addresses that the commands of a call depend on; `None` for inputs that are not compared.
    fn key(&self, inputs: &Bound<'_, PyList>) -> PyResult<Option<Key>> {
        let mut key = settings();
        for (object, &varies) in inputs.iter().zip(&self.varies) {
            if let Ok(truth) = object.cast::<PyBool>() {
                key.extend([1, u64::from(truth.is_true())]);
            } else if object.is_instance_of::<PyInt>() {
                key.extend([2, object.extract::<i64>()? as u64]);
            } else if let Ok(number) = object.cast::<PyFloat>() {
                key.extend([3, number.value().to_bits()]);
            } else if object.is_none() {
                return Ok(None);
            } else if varies {
                let shape: Vec<u64> = object.getattr("shape")?.extract()?;
                let strides: Vec<u64> = object.call_method0("stride")?.extract()?;
                key.extend([4, shape.len() as u64]);
                key.extend(shape);
                key.extend(strides);
            }
        }
        Ok(Some(key.into()))
    }
}

/// Returns the settings on which the commands of calls depend, as words.
fn settings() -> Vec<u64> {
    use backends::{cuda, cudnn};
    let flags = [
        thalweg::tensor::deterministic::are_deterministic_algorithms_enabled(),
        thalweg::runtime::tunable::is_enabled(),
        cuda::matmul::allow_tf32(),
        cuda::matmul::allow_fp16_accumulation(),
        cudnn::enabled(),
        cudnn::allow_tf32(),
        cudnn::deterministic(),
        cudnn::benchmark(),
    ];
    let bits = flags.iter().fold(0, |bits, &flag| bits << 1 | u64::from(flag));
    let reductions = [
        cuda::matmul::allow_fp16_reduced_precision_reduction(),
        cuda::matmul::allow_bf16_reduced_precision_reduction(),
    ];
    let choices = (cuda::preferred_blas_library(), reductions, thalweg::ops::default_dtype());
    vec![bits, FxBuildHasher.hash_one(choices)]
}

impl Repeat {
    /// Makes a repeated call of a recorded one.
    fn new(
        commands: CommandList,
        journal: Journal,
        (inputs, parts): (&[Bound<'_, PyAny>], Parts<'_>),
        results: &[Bound<'_, PyAny>],
    ) -> Result<Self, String> {
        let Some(first) = inputs.first().or(results.first()) else {
            return Err("nothing is computed".to_owned());
        };
        let py = first.py();
        let source = |object: &Bound<'_, PyAny>| {
            let made = journal.made.iter().position(|made| made.object.is(object)).map(Source::Made);
            let input = || inputs.iter().position(|input| input.is(object)).map(Source::Input);
            let constant =
                || parts.constants.iter().position(|(_, one)| one.is(object)).map(Source::Constant);
            made.or_else(input).or_else(constant)
        };
        let unknown = || "a tensor of the front end is no input and no result".to_owned();
        let output =
            |object: &Bound<'_, PyAny>| match (source(object), journal.views.get(&object.as_ptr().addr())) {
                (Some(source), _) => Ok(Output::Tensor(source)),
                (None, Some(view)) => Ok(Output::View {
                    base: source(view.base.bind(py)).ok_or_else(unknown)?,
                    shape: view.shape.clone_ref(py),
                    strides: view.strides.clone_ref(py),
                    offset: view.offset,
                }),
                (None, None)
                    if object.is_none()
                        || object.is_instance_of::<PyInt>()
                        || object.is_instance_of::<PyFloat>() =>
                {
                    Ok(Output::Object(object.clone().unbind()))
                }
                _ => Err(unknown()),
            };
        Ok(Self {
            commands,
            given: journal
                .given
                .iter()
                .map(|object| source(object.bind(py)).ok_or_else(unknown))
                .collect::<Result<_, _>>()?,
            made: journal.made.iter().map(|made| made.arguments.clone_ref(py)).collect(),
            outputs: results.iter().map(output).collect::<Result<_, _>>()?,
        })
    }

    /// Queues the commands for these inputs, and returns the results; `None` if their memory does not fit the commands.
    fn call<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyList>,
        parts: Parts<'_>,
    ) -> PyResult<Option<Results<'py>>> {
        let made = (self.made.iter())
            .map(|arguments| parts.exchange.make(arguments.bind(py)))
            .collect::<PyResult<Results<'py>>>()?;
        let object = |source: Source| match source {
            Source::Input(place) => inputs.get_item(place),
            Source::Constant(place) => Ok(parts.constants[place].1.bind(py).clone()),
            Source::Made(place) => Ok(made[place].clone()),
        };
        let given = (self.given.iter())
            .map(|&source| object(source)?.call_method0("data_ptr")?.extract().map(DevicePointer::new))
            .collect::<PyResult<Vec<_>>>()?;
        if !self.commands.fits(&given) {
            return Ok(None);
        }
        let stream = parts.device.current_stream();
        run(py, || self.commands.queue(&stream, &given, Label::here("program")))?;
        let results = (self.outputs.iter())
            .map(|output| match output {
                Output::Tensor(source) => object(*source),
                Output::Object(object) => Ok(object.bind(py).clone()),
                Output::View { base, shape, strides, offset } => {
                    let base = object(*base)?;
                    let first: usize = base.call_method0("storage_offset")?.extract()?;
                    parts.exchange.alias_of(&base, shape.bind(py), strides.bind(py), first + offset)
                }
            })
            .collect::<PyResult<_>>()?;
        inputs.del_slice(0, inputs.len())?;
        Ok(Some(results))
    }
}
