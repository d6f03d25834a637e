//! Repeated calls of a program.
//!
//! The first call of a program with some sizes runs its steps; the second one [records](thalweg::runtime::command_list) the commands
//! that they queue; each later call makes the results, queues the commands and calls the functions of the front end between them, without
//! a step. What the commands need beside the results are a few blocks, which are tensors of the front end, too: its allocator sees all memory
//! of a call, and a block may be where an input was that was let go. A program repeats its calls if its tensors are in memory of the front end, no step uses another stream, and no function of the
//! front end returns a number or sizes that depend on elements. What else a call depends on is the key of its commands: numbers among
//! the inputs, sizes that vary, and settings.
//!
//! Inputs that the front end gives away, such as saved tensors that only this backward pass reads, may be written where they are read for
//! the last time. Each call checks that nothing else holds them; a call in which something holds some runs the steps, and the next one is
//! recorded again and keeps these.

use std::hash::BuildHasher;
use std::ops::Range;
use std::sync::Arc;

use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyList, PyTuple};
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};
use thalweg::Device;
use thalweg::backends;
use thalweg::runtime::command_list::{Queueing, RecordedCommands};
use thalweg::runtime::{CommandList, DevicePointer, Label, command_list};
use thalweg::tensor::compile;
use thalweg_lock::Mutex;

use crate::exchange::Exchange;
use crate::failure::{exception, run, runtime};
use crate::journal::{self, Journal, Known, Maker, Outside, Source, form_of};

/// The most keys that a program keeps the commands of.
const MOST_KEPT: usize = 128;

/// The key of a call's commands.
type Key = Box<[u64]>;

/// The objects that are results of a call.
type Results<'py> = Vec<Bound<'py, PyAny>>;

/// A part of a repeated call.
enum Event {
    /// Commands are queued.
    Queue(Range<usize>),
    /// A tensor is made; the commands have this number for its memory.
    Make(usize, Option<usize>),
    /// A function of the front end is called.
    Call(usize),
    /// A tensor is released: nothing uses it later.
    Drop(Source),
}

/// A recorded call.
struct Repeat {
    commands: CommandList,
    /// The tensors whose memory the commands use.
    given: Vec<Source>,
    /// The work of a call, in its order.
    events: Vec<Event>,
    /// The way in which each new tensor is made, and the number of its memory.
    made: Vec<(Maker, Option<usize>)>,
    calls: Vec<Outside>,
    outputs: Vec<Known>,
    /// The pairs of inputs that are one tensor.
    same: Vec<(usize, usize)>,
    /// The inputs whose memory the commands write after its last use.
    overwritten: Vec<usize>,
    /// The inputs that were given away, but that something held in earlier calls.
    kept: Arc<[usize]>,
    /// The most bytes by which the memory of inputs and new tensors grows during a call.
    peak_bytes: i64,
}

/// The state of calls with a key.
#[derive(Clone)]
enum State {
    /// One call has run. The next one is recorded, and writes none of these inputs.
    Seen(Arc<[usize]>),
    Recorded(Arc<Repeat>),
    /// Calls are not repeated, for this reason.
    Refused(Arc<str>),
}

/// The recorded calls of a program.
pub struct Repeats {
    known: Mutex<Vec<(Key, State)>>,
    /// The places of the inputs that are numbers, and of tensors whose sizes may vary.
    varying: Vec<usize>,
    /// The places of the inputs that the front end gives away.
    given_away: Vec<usize>,
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
    pub fn new(varying: Vec<usize>, given_away: Vec<usize>) -> Self {
        Self { known: Mutex::new(Vec::new()), varying, given_away }
    }

    /// Returns the operators of the commands of each recorded call, or the reason why there are none, and the most bytes by which memory
    /// grows during the call.
    pub fn describe(&self) -> Vec<(Vec<&'static str>, String, i64)> {
        let describe = |(_, state): &(Key, State)| match state {
            State::Seen(_) => None,
            State::Recorded(repeat) => {
                let operators = repeat.commands.labels().map(|label| label.operator).collect();
                Some((operators, String::new(), repeat.peak_bytes))
            }
            State::Refused(reason) => Some((Vec::new(), reason.to_string(), 0)),
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
        // Neither waits, so that the interpreter's lock is kept.
        if compile::is_compiling() || stream.is_capturing().map_err(|error| exception(&error))? {
            return call();
        }
        let Some(key) = self.key(inputs)? else { return call() };
        match self.state(&key) {
            None => {
                let results = call()?;
                self.set(key, State::Seen(Arc::default()));
                Ok(results)
            }
            Some(State::Seen(kept)) => {
                let Passed { sources, same, held } = Passed::of(inputs, parts);
                journal::begin(sources);
                let (results, commands) = command_list::record(&stream, call);
                let journal = journal::end();
                let results = results?;
                let known = journal.known_all(&results);
                let is_free = |place| !kept.contains(&place) && !held.contains(&place);
                let given_away = self.given_away.iter().copied().filter(|&place| is_free(place)).collect();
                let lists = Lists { same, held, given_away, kept };
                let made = commands
                    .and_then(|commands| Repeat::new(py, (commands, journal), lists, known?, parts.exchange));
                let state = match made {
                    Ok(repeat) => {
                        // Later calls take nothing of what the steps have taken.
                        run(py, || parts.device.empty_cache())?;
                        State::Recorded(Arc::new(repeat))
                    }
                    Err(reason) => State::Refused(reason.into()),
                };
                self.set(key, state);
                Ok(results)
            }
            Some(State::Recorded(repeat)) => {
                let held = repeat.held(inputs, parts.exchange)?;
                if !held.is_empty() {
                    let results = call()?;
                    self.set(key, State::Seen(held.into_iter().chain(repeat.kept.iter().copied()).collect()));
                    return Ok(results);
                }
                match repeat.call(py, inputs, parts)? {
                    Some(results) => Ok(results),
                    None => call(),
                }
            }
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
        for &place in &self.varying {
            let object = inputs.get_item(place)?;
            if let Ok(truth) = object.cast::<PyBool>() {
                key.extend([1, u64::from(truth.is_true())]);
            } else if object.is_instance_of::<PyInt>() {
                key.extend([2, object.extract::<i64>()? as u64]);
            } else if let Ok(number) = object.cast::<PyFloat>() {
                key.extend([3, number.value().to_bits()]);
            } else if object.is_none() {
                key.push(5);
            } else {
                // Another object, such as a generator, is not compared.
                let Some(shape) = object.getattr_opt("shape")? else { return Ok(None) };
                let shape: Vec<u64> = shape.extract()?;
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
        thalweg::cuda::tunable::is_enabled(),
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

/// Returns whether something other than the list of inputs, and this reference, holds an input.
fn is_held(input: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the object is alive, and the interpreter's lock is held.
    unsafe { ffi::Py_REFCNT(input.as_ptr()) > 2 }
}

/// The tensors that a call is given.
struct Passed {
    /// The origins of the tensors, by their identities.
    sources: FxHashMap<usize, Source>,
    /// The pairs of inputs that are one tensor.
    same: Vec<(usize, usize)>,
    /// The inputs that something other than the list of inputs holds: to let them go frees nothing.
    held: Vec<usize>,
}

impl Passed {
    fn of(inputs: &Bound<'_, PyList>, parts: Parts<'_>) -> Self {
        let constants = parts.constants.iter().enumerate();
        let mut sources: FxHashMap<usize, Source> =
            constants.map(|(place, (_, one))| (one.as_ptr().addr(), Source::Constant(place))).collect();
        let (mut same, mut held) = (Vec::new(), Vec::new());
        let is_number =
            |one: &Bound<'_, PyAny>| one.is_instance_of::<PyInt>() || one.is_instance_of::<PyFloat>();
        for (place, one) in inputs.iter().enumerate().filter(|(_, one)| !is_number(one)) {
            if is_held(&one) {
                held.push(place);
            }
            if let Some(Source::Input(former)) = sources.insert(one.as_ptr().addr(), Source::Input(place)) {
                same.push((former, place));
            }
        }
        Self { sources, same, held }
    }
}

/// The inputs about which a recording knows something.
struct Lists {
    /// The pairs of inputs that are one tensor.
    same: Vec<(usize, usize)>,
    /// The inputs that something other than the list of inputs holds.
    held: Vec<usize>,
    /// The inputs that may be written after their last use.
    given_away: Vec<usize>,
    /// The inputs that were given away, but that something held in earlier calls.
    kept: Arc<[usize]>,
}

impl Repeat {
    /// Makes a repeated call of a recorded one.
    fn new(
        py: Python<'_>,
        (commands, journal): (RecordedCommands, Journal),
        Lists { same, held, given_away, kept }: Lists,
        outputs: Vec<Known>,
        exchange: &Exchange,
    ) -> Result<Self, String> {
        let Journal { mut given, made, calls, .. } = journal;
        let number = |place| given.iter().position(|source| *source == Source::Made(place));
        let mut made: Vec<_> =
            made.into_iter().enumerate().map(|(place, made)| (made.maker, number(place))).collect();
        let lasts = |source| match source {
            Source::Input(place) => held.contains(&place),
            Source::Constant(_) => true,
            Source::Made(_) => outputs.iter().any(|output| output.source() == Some(source)),
        };
        // The front end may read what its functions and its results are made of after the last command that does.
        let read = calls.iter().flat_map(|call| &call.arguments).chain(&outputs);
        let read: FxHashSet<Source> = read.filter_map(Known::source).collect();
        let may_overwrite = |source| match source {
            Source::Input(place) => given_away.contains(&place) && !read.contains(&source),
            _ => false,
        };
        let commands = commands.plan(|number| lasts(given[number]), |number| may_overwrite(given[number]));
        let overwritten = commands.overwritten().filter_map(|number| match given[number] {
            Source::Input(place) => Some(place),
            _ => None,
        });
        let overwritten = overwritten.collect();
        for (number, bytes) in commands.blocks() {
            let arguments = exchange.arguments_of_block(py, bytes).map_err(|error| error.to_string())?;
            given.push(Source::Made(made.len()));
            made.push((Maker::New(arguments), Some(number)));
        }
        let events = events(&commands, &given, &made, &calls, &outputs);
        let peak_bytes = peak_bytes(&commands, &given, &events, lasts);
        Ok(Self { commands, given, events, made, calls, outputs, same, overwritten, kept, peak_bytes })
    }

    /// Returns which of the inputs that the commands write something other than the list of inputs holds.
    fn held(&self, inputs: &Bound<'_, PyList>, exchange: &Exchange) -> PyResult<Vec<usize>> {
        let mut held = Vec::new();
        for &place in &self.overwritten {
            let input = inputs.get_item(place)?;
            if is_held(&input) || !exchange.is_alone(&input)? {
                held.push(place);
            }
        }
        Ok(held)
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
        let mut objects = Objects { inputs, parts, made: vec![None; self.made.len()] };
        let given = self.addresses(py, &objects)?;
        if !self.commands.fits(&given) {
            return Ok(None);
        }
        let stream = parts.device.current_stream();
        let mut queueing = run(py, || self.commands.begin(&stream, &given, Label::here("program")))?;
        for event in &self.events {
            match event {
                Event::Queue(commands) => run(py, || queueing.queue(commands.clone()))?,
                Event::Drop(Source::Made(place)) => objects.made[*place] = None,
                Event::Drop(Source::Input(place)) => inputs.set_item(*place, py.None())?,
                Event::Drop(Source::Constant(_)) => {}
                Event::Make(place, number) => {
                    let (Maker::New(arguments), _) = &self.made[*place] else { continue };
                    let object = parts.exchange.make(arguments.bind(py))?;
                    place_memory(&mut queueing, *number, &object)?;
                    objects.made[*place] = Some(object);
                }
                Event::Call(call) => self.call_outside(&self.calls[*call], &mut objects, &mut queueing)?,
            }
        }
        let results = self.outputs.iter().map(|known| objects.of(known)).collect::<PyResult<_>>()?;
        inputs.del_slice(0, inputs.len())?;
        Ok(Some(results))
    }

    /// Returns the addresses of the tensors whose memory the commands use; those of tensors that are made are 0.
    fn addresses(&self, py: Python<'_>, objects: &Objects<'_, '_>) -> PyResult<Vec<DevicePointer>> {
        let tensors = PyList::empty(py);
        for &source in self.given.iter().filter(|source| !matches!(source, Source::Made(_))) {
            tensors.append(objects.tensor(source)?)?;
        }
        let mut known = objects.parts.exchange.addresses(&tensors)?.into_iter();
        (self.given.iter())
            .map(|source| match source {
                Source::Made(_) => Ok(DevicePointer::new(0)),
                _ => (known.next().map(DevicePointer::new))
                    .ok_or_else(|| runtime("the front end returned too few addresses")),
            })
            .collect()
    }

    /// Calls a function of the front end.
    fn call_outside(
        &self,
        call: &Outside,
        objects: &mut Objects<'_, '_>,
        queueing: &mut Queueing<'_>,
    ) -> PyResult<()> {
        let py = objects.inputs.py();
        let arguments = call.arguments.iter().map(|known| objects.of(known)).collect::<PyResult<Vec<_>>>()?;
        let answer = call.function.bind(py).call1(PyTuple::new(py, arguments)?)?;
        for &(place, number) in &call.results {
            let object = if call.is_one { answer.clone() } else { answer.get_item(place)? };
            let (maker, memory) = &self.made[number];
            let form = form_of(&object)?;
            if let Maker::Function { shape, strides } = maker
                && !(form.0.eq(shape)? && form.1.eq(strides)?)
            {
                return Err(runtime(format!(
                    "{} returned a tensor of the shape {} and the strides {}, and before {shape} and {strides}",
                    call.function, form.0, form.1
                )));
            }
            place_memory(queueing, *memory, &object)?;
            objects.made[number] = Some(object);
        }
        Ok(())
    }
}

/// Returns the address of a tensor of the front end.
fn address(object: &Bound<'_, PyAny>) -> PyResult<DevicePointer> {
    object.call_method0(intern!(object.py(), "data_ptr"))?.extract().map(DevicePointer::new)
}

/// Sets the address of a tensor that was made, if commands use it.
fn place_memory(
    queueing: &mut Queueing<'_>,
    number: Option<usize>,
    object: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let Some(number) = number else { return Ok(()) };
    queueing.make(number, address(object)?).map_err(|error| exception(&error))
}

/// The tensors of a repeated call.
struct Objects<'a, 'py> {
    inputs: &'a Bound<'py, PyList>,
    parts: Parts<'a>,
    /// Those that were made so far.
    made: Vec<Option<Bound<'py, PyAny>>>,
}

impl<'py> Objects<'_, 'py> {
    fn tensor(&self, source: Source) -> PyResult<Bound<'py, PyAny>> {
        match source {
            Source::Input(place) => self.inputs.get_item(place),
            Source::Constant(place) => Ok(self.parts.constants[place].1.bind(self.inputs.py()).clone()),
            Source::Made(place) => {
                self.made[place].clone().ok_or_else(|| runtime(format!("tensor {place} was not made")))
            }
        }
    }

    fn of(&self, known: &Known) -> PyResult<Bound<'py, PyAny>> {
        let py = self.inputs.py();
        match known {
            Known::Tensor(source) => self.tensor(*source),
            Known::Object(object) => Ok(object.bind(py).clone()),
            Known::View { base, shape, strides, offset } => {
                let base = self.tensor(*base)?;
                let first: usize = base.call_method0(intern!(py, "storage_offset"))?.extract()?;
                self.parts.exchange.alias_of(&base, shape.bind(py), strides.bind(py), first + offset)
            }
        }
    }
}

/// The commands and the calls of a recorded call, numbered in their common order.
struct Order {
    commands: Vec<usize>,
    calls: Vec<usize>,
}

impl Order {
    fn new(commands: usize, calls: &[Outside]) -> Self {
        let (mut order, mut call) = (Self { commands: Vec::new(), calls: Vec::new() }, 0);
        for command in 0..=commands {
            while calls.get(call).is_some_and(|call| call.before <= command) {
                order.calls.push(command + call);
                call += 1;
            }
            if command < commands {
                order.commands.push(command + call);
            }
        }
        order
    }

    fn end(&self) -> usize {
        self.commands.len() + self.calls.len()
    }
}

/// Returns the first and the last use of each tensor, in an order.
fn uses(
    commands: &CommandList,
    given: &[Source],
    calls: &[Outside],
    order: &Order,
) -> FxHashMap<Source, (usize, usize)> {
    let mut uses: FxHashMap<Source, (usize, usize)> = FxHashMap::default();
    let mut note = |source: Source, at: usize| {
        let (first, last) = uses.entry(source).or_insert((at, at));
        (*first, *last) = ((*first).min(at), (*last).max(at));
    };
    for (&source, used) in given.iter().zip(commands.uses()) {
        if let Some((first, last)) = used {
            note(source, order.commands[first]);
            note(source, order.commands[last]);
        }
    }
    for (call, &at) in calls.iter().zip(&order.calls) {
        call.arguments.iter().filter_map(Known::source).for_each(|source| note(source, at));
        call.results.iter().for_each(|&(_, made)| note(Source::Made(made), at));
    }
    uses
}

/// Returns the work of a call in its order. A tensor is made before its first use, and released after its last use, unless it is a
/// result or a result is a view of it.
fn events(
    commands: &CommandList,
    given: &[Source],
    made: &[(Maker, Option<usize>)],
    calls: &[Outside],
    outputs: &[Known],
) -> Vec<Event> {
    let order = Order::new(commands.len(), calls);
    let uses = uses(commands, given, calls, &order);
    let is_result = |source| outputs.iter().any(|output| output.source() == Some(source));
    // What is let go may be the memory of what is made: it comes first.
    let mut placed: Vec<(usize, u8, Event)> = Vec::new();
    for (place, (maker, number)) in made.iter().enumerate() {
        let used = uses.get(&Source::Made(place)).map(|&(first, _)| first);
        let first = used.or_else(|| is_result(Source::Made(place)).then(|| order.end()));
        if let (Maker::New(_), Some(first)) = (maker, first) {
            placed.push((first, 1, Event::Make(place, *number)));
        }
    }
    for (&source, &(_, last)) in uses.iter().filter(|(source, _)| !is_result(**source)) {
        placed.push((last + 1, 0, Event::Drop(source)));
    }
    placed.extend(order.calls.iter().enumerate().map(|(call, &at)| (at, 2, Event::Call(call))));
    placed.extend(order.commands.iter().enumerate().map(|(command, &at)| {
        let range = command..command + 1;
        (at, 2, Event::Queue(range))
    }));
    placed.sort_by_key(|&(at, kind, _)| (at, kind));
    let mut events: Vec<Event> = Vec::new();
    for (_, _, event) in placed {
        let is_made = matches!(event, Event::Make(..));
        match (events.last_mut(), event) {
            (Some(Event::Queue(former)), Event::Queue(next)) => former.end = next.end,
            // Nothing was let go since then, so the most memory at a time stays the same, and commands are queued together.
            (Some(Event::Queue(_)), event) if is_made => events.insert(events.len() - 1, event),
            (_, event) => events.push(event),
        }
    }
    events
}

/// Returns the most bytes by which the memory of inputs and new tensors grows during a call.
fn peak_bytes(
    commands: &CommandList,
    given: &[Source],
    events: &[Event],
    lasts: impl Fn(Source) -> bool,
) -> i64 {
    let bytes = |source: Source| {
        let number = given.iter().position(|own| *own == source);
        number.map_or(0, |number| commands.allocated_bytes(number) as i64)
    };
    let (mut now, mut most) = (0, 0);
    for event in events {
        now += match event {
            Event::Make(place, _) => bytes(Source::Made(*place)),
            Event::Drop(source) if !lasts(*source) => -bytes(*source),
            _ => 0,
        };
        most = most.max(now);
    }
    most
}
