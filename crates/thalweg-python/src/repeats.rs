//! Repeated calls of a program.
//!
//! The first call of a program with some sizes runs its steps; the second one [records](thalweg::runtime::command_list) the commands
//! that they queue; each later call makes the results and queues the commands, without a step. A program repeats its calls if its
//! tensors are in memory of the front end, and no step calls a function of the front end or uses another stream. What else a call
//! depends on is the key of its commands: numbers among the inputs, sizes that vary, and settings.

use std::hash::BuildHasher;
use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyList, PyTuple};
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};
use thalweg::Device;
use thalweg::runtime::{CommandList, DevicePointer, Label, backends, command_list};
use thalweg::tensor::compile;
use thalweg_lock::Mutex;

use crate::exchange::Exchange;
use crate::failure::{exception, run, runtime};
use crate::journal::{self, Journal, Source};

/// The most keys that a program keeps the commands of.
const MOST_KEPT: usize = 128;

/// The key of a call's commands.
type Key = Box<[u64]>;

/// The objects that are results of a call.
type Results<'py> = Vec<Bound<'py, PyAny>>;

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

/// Work between commands.
#[derive(Clone, Copy)]
enum Event {
    /// An input is let go: no later command uses it.
    Drop(usize),
    /// A tensor is made: the next command is the first that uses it, by this number of its memory.
    Make(usize, Option<usize>),
}

/// A recorded call.
struct Repeat {
    commands: CommandList,
    /// The tensors whose memory the commands use.
    given: Vec<Source>,
    /// The work between commands, in their order: each before the command with this number.
    events: Vec<(usize, Event)>,
    /// The arguments by which each new tensor is made.
    made: Vec<Py<PyTuple>>,
    outputs: Vec<Output>,
    /// The pairs of inputs that are one tensor.
    same: Vec<(usize, usize)>,
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
                let (sources, same) = sources(inputs, parts);
                journal::begin(sources);
                let (results, commands) = command_list::record(&stream, call);
                let journal = journal::end();
                let results = results?;
                let made = commands.and_then(|commands| Repeat::new(commands, &journal, same, &results));
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

/// Returns the origins of a call's tensors by their identities, and the pairs of inputs that are one tensor.
fn sources(inputs: &Bound<'_, PyList>, parts: Parts<'_>) -> (FxHashMap<usize, Source>, Vec<(usize, usize)>) {
    let constants = parts.constants.iter().enumerate();
    let mut sources: FxHashMap<usize, Source> =
        constants.map(|(place, (_, one))| (one.as_ptr().addr(), Source::Constant(place))).collect();
    let mut same = Vec::new();
    let is_number = |one: &Bound<'_, PyAny>| one.is_instance_of::<PyInt>() || one.is_instance_of::<PyFloat>();
    for (place, one) in inputs.iter().enumerate().filter(|(_, one)| !is_number(one)) {
        if let Some(Source::Input(former)) = sources.insert(one.as_ptr().addr(), Source::Input(place)) {
            same.push((former, place));
        }
    }
    (sources, same)
}

impl Repeat {
    /// Makes a repeated call of a recorded one.
    fn new(
        commands: CommandList,
        journal: &Journal,
        same: Vec<(usize, usize)>,
        results: &[Bound<'_, PyAny>],
    ) -> Result<Self, String> {
        let output = |object: &Bound<'_, PyAny>| {
            let py = object.py();
            if let Some(source) = journal.source(object) {
                return Ok(Output::Tensor(source));
            }
            if let Some(view) = journal.views.get(&object.as_ptr().addr()) {
                let (shape, strides) = (view.shape.clone_ref(py), view.strides.clone_ref(py));
                return Ok(Output::View { base: view.base, shape, strides, offset: view.offset });
            }
            let is_number = object.is_instance_of::<PyInt>() || object.is_instance_of::<PyFloat>();
            match object.is_none() || is_number {
                true => Ok(Output::Object(object.clone().unbind())),
                false => Err("a result is neither a tensor that is known nor a number".to_owned()),
            }
        };
        let outputs = results.iter().map(output).collect::<Result<Vec<_>, _>>()?;
        let given = journal.given.clone();
        let events = events(&commands, &given, &outputs);
        let made = results.first().map_or_else(Vec::new, |first| {
            journal.made.iter().map(|made| made.arguments.clone_ref(first.py())).collect()
        });
        Ok(Self { commands, given, events, made, outputs, same })
    }

    /// Queues the commands for these inputs, and returns the results; `None` if their memory does not fit the commands.
    fn call<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyList>,
        parts: Parts<'_>,
    ) -> PyResult<Option<Results<'py>>> {
        for &(one, other) in &self.same {
            if !inputs.get_item(one)?.is(&inputs.get_item(other)?) {
                return Ok(None);
            }
        }
        let address = |object: &Bound<'py, PyAny>| {
            object.call_method0(intern!(py, "data_ptr"))?.extract().map(DevicePointer::new)
        };
        let given = (self.given.iter())
            .map(|&source| match source {
                Source::Input(place) => address(&inputs.get_item(place)?),
                Source::Constant(place) => address(parts.constants[place].1.bind(py)),
                Source::Made(_) => Ok(DevicePointer::new(0)),
            })
            .collect::<PyResult<Vec<_>>>()?;
        if !self.commands.fits(&given) {
            return Ok(None);
        }
        let stream = parts.device.current_stream();
        let mut queueing = run(py, || self.commands.begin(&stream, &given, Label::here("program")))?;
        let mut made: Vec<Option<Bound<'py, PyAny>>> = vec![None; self.made.len()];
        let mut next = 0;
        for &(command, event) in &self.events {
            if next < command {
                run(py, || queueing.queue(next..command))?;
                next = command;
            }
            match event {
                Event::Drop(place) => inputs.set_item(place, py.None())?,
                Event::Make(place, number) => {
                    let object = parts.exchange.make(self.made[place].bind(py))?;
                    if let Some(number) = number {
                        let made = queueing.make(number, address(&object)?);
                        made.map_err(|error| exception(&error))?;
                    }
                    made[place] = Some(object);
                }
            }
        }
        run(py, || queueing.queue(next..self.commands.len()))?;
        let results = self.results(py, inputs, parts, &made)?;
        inputs.del_slice(0, inputs.len())?;
        Ok(Some(results))
    }

    /// Returns the results of a call that has made these tensors.
    fn results<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyList>,
        parts: Parts<'_>,
        made: &[Option<Bound<'py, PyAny>>],
    ) -> PyResult<Results<'py>> {
        let object = |source: Source| match source {
            Source::Input(place) => inputs.get_item(place),
            Source::Constant(place) => Ok(parts.constants[place].1.bind(py).clone()),
            Source::Made(place) => {
                made[place].clone().ok_or_else(|| runtime(format!("result {place} was not made")))
            }
        };
        (self.outputs.iter())
            .map(|output| match output {
                Output::Tensor(source) => object(*source),
                Output::Object(object) => Ok(object.bind(py).clone()),
                Output::View { base, shape, strides, offset } => {
                    let base = object(*base)?;
                    let first: usize = base.call_method0(intern!(py, "storage_offset"))?.extract()?;
                    parts.exchange.alias_of(&base, shape.bind(py), strides.bind(py), first + offset)
                }
            })
            .collect()
    }
}

/// Returns what is done between commands: an input is let go after its last use, unless it is a result or a part of one is a view of it,
/// and a tensor is made before its first use.
fn events(commands: &CommandList, given: &[Source], outputs: &[Output]) -> Vec<(usize, Event)> {
    let is_result = |source: Source| {
        outputs.iter().any(|output| match output {
            Output::Tensor(own) | Output::View { base: own, .. } => *own == source,
            Output::Object(_) => false,
        })
    };
    let uses = commands.uses();
    let mut events: Vec<(usize, Event)> = (given.iter().enumerate().zip(&uses))
        .filter_map(|((number, &source), used)| match (source, used) {
            (Source::Made(place), used) => {
                let first = used.map_or(commands.len(), |(first, _)| first);
                Some((first, Event::Make(place, Some(number))))
            }
            (Source::Input(place), Some((_, last))) if !is_result(source) => {
                Some((last + 1, Event::Drop(place)))
            }
            _ => None,
        })
        .collect();
    let results = outputs.iter().filter_map(|output| match output {
        Output::Tensor(Source::Made(place)) | Output::View { base: Source::Made(place), .. } => Some(*place),
        _ => None,
    });
    let unused: FxHashSet<usize> = results.filter(|&place| !given.contains(&Source::Made(place))).collect();
    events.extend(unused.into_iter().map(|place| (commands.len(), Event::Make(place, None))));
    // What is let go may be the memory of what is made.
    events.sort_by_key(|&(command, event)| (command, matches!(event, Event::Make(..))));
    events
}
