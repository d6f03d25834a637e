//! [`Recording`]: collects calls and commands until the times of their work are read: from a tracer of the device's activities if
//! the driver has one, else from events around each command ([`events`](crate::events)).
//!
//! This module is a hub, whose spokes are `events`, `annotation` and `driver`: they write into a recording, which looks up the
//! current operator (`annotation`), the operators of captured commands (`driver`), and reads times (`events`).

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use thalweg_driver::{Activities, ActivityKind, ActivityTracer, Driver, Result, StreamHandle};
use thalweg_lock::{Mutex, MutexGuard};

use crate::annotation::current_operator;
use crate::driver::Operators;
use crate::events::{self, EventPair, Recorded};
use crate::trace::{
    Activity, ActivityStream, Annotation, Call, Category, Clock, Command, MemoryChange, MemoryEvent,
    OperatorCall, Span, Trace,
};

/// Returns the number of the calling thread: 1 for the first thread that called this.
pub(crate) fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

/// A timeline that is being recorded.
#[derive(Debug)]
pub(crate) struct Recording {
    base: Instant,
    base_nanoseconds: u64,
    clock: Clock,
    /// The address of the recording profiler, which is the driver that programs see.
    profiler: usize,
    keeps_memory: bool,
    next_correlation: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    calls: Vec<Call>,
    operators: Vec<OperatorCall>,
    commands: Vec<Recorded>,
    annotations: Vec<Annotation>,
    memory: Vec<MemoryEvent>,
    is_over: bool,
}

impl Recording {
    /// Begins a recording: by the devices' clocks if the driver has a tracer that starts. `profiler` is the address of the driver
    /// that wraps this one.
    pub(crate) fn start(driver: &dyn Driver, profiler: usize, keeps_memory: bool) -> Self {
        let clock = match driver.activity_tracer().and_then(ActivityTracer::start) {
            Ok(()) => Clock::Device,
            Err(error) => Clock::Events { reason: error.to_string() },
        };
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            base: Instant::now(),
            base_nanoseconds: since_epoch.as_nanos() as u64,
            clock,
            profiler,
            keeps_memory,
            next_correlation: AtomicU64::new(1),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the tracer of a recording that uses the devices' clocks.
    fn tracer<'d>(&self, driver: &'d dyn Driver) -> Option<&'d dyn ActivityTracer> {
        if self.clock == Clock::Device { driver.activity_tracer().ok() } else { None }
    }

    pub(crate) fn since_base(&self, moment: Instant) -> u64 {
        moment.saturating_duration_since(self.base).as_nanos() as u64
    }

    fn span(&self, [begin, end]: [Instant; 2]) -> Span {
        Span { start: self.since_base(begin), end: self.since_base(end) }
    }

    /// Adds a region that began and ended while this recording ran; ignores one that began earlier.
    pub(crate) fn annotate(&self, name: &str, thread: u64, begin: Instant, end: Instant) {
        if begin >= self.base {
            let span = self.span([begin, end]);
            self.state().annotations.push(Annotation { name: name.to_owned(), thread, span });
        }
    }

    /// Adds a call of an operator by the calling thread that began and ended while this recording ran; ignores one that began
    /// earlier.
    pub(crate) fn operator(&self, name: &'static str, id: u64, parent: Option<u64>, when: [Instant; 2]) {
        if when[0] >= self.base {
            let (thread, span) = (thread_number(), self.span(when));
            self.state().operators.push(OperatorCall { name, id, parent, thread, span });
        }
    }

    /// Returns whether changes of memory are recorded.
    pub(crate) fn keeps_memory(&self) -> bool {
        self.keeps_memory
    }

    /// Returns whether this is a recording of this driver.
    pub(crate) fn is_of(&self, driver: &Arc<dyn Driver>) -> bool {
        self.profiler == Arc::as_ptr(driver).addr()
    }

    /// Adds a change of memory by the calling thread, if changes of memory are recorded.
    pub(crate) fn memory(&self, change: MemoryChange, when: Instant) {
        if self.keeps_memory && when >= self.base {
            let (operator, thread, at) = (current_operator(), thread_number(), self.since_base(when));
            self.state().memory.push(MemoryEvent { change, operator, thread, at });
        }
    }

    /// Makes a call that submits no command.
    pub(crate) fn call<T>(&self, entry_point: &'static str, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let correlation = self.next_correlation.fetch_add(1, Ordering::Relaxed);
        let start = Instant::now();
        let answer = call();
        self.push(self.returned(entry_point, correlation, start), Vec::new());
        answer
    }

    /// Makes a call that submits a command to each of some streams. The profiler's own calls never fail the program: if events
    /// are needed and cannot be made, the command has no times.
    pub(crate) fn submit(
        &self,
        driver: &dyn Driver,
        streams: &[StreamHandle],
        entry_point: &'static str,
        describe: impl Fn(usize, u64, u32) -> Command,
        call: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let correlation = self.next_correlation.fetch_add(1, Ordering::Relaxed);
        let devices =
            streams.iter().map(|&stream| driver.stream_device(stream)).collect::<Result<Vec<u32>>>()?;
        let tracer = self.tracer(driver);
        let mut events: Vec<Option<EventPair>> = Vec::new();
        match tracer {
            Some(tracer) => tracer.enter(correlation),
            None => {
                let pairs = devices.iter().zip(streams);
                events.extend(pairs.map(|(&device, &stream)| EventPair::begin(driver, device, stream)));
            }
        }
        let start = Instant::now();
        let answer = call();
        let returned = self.returned(entry_point, correlation, start);
        if let Some(tracer) = tracer {
            tracer.leave();
        }
        let ended = events.into_iter().zip(streams);
        let mut events = ended.map(|(pair, &stream)| pair?.end(driver, stream, answer.is_ok()));
        let recorded = devices.iter().enumerate().map(|(index, &device)| Recorded {
            events: events.next().flatten(),
            command: describe(index, correlation, device),
        });
        let recorded = recorded.collect();
        for unused in self.push(returned, if answer.is_ok() { recorded } else { Vec::new() }) {
            unused.events.into_iter().for_each(|pair| pair.destroy(driver));
        }
        answer
    }

    fn returned(&self, entry_point: &'static str, correlation: u64, start: Instant) -> Call {
        let span = self.span([start, Instant::now()]);
        Call { entry_point, correlation, operator: current_operator(), thread: thread_number(), span }
    }

    /// Adds a call and its commands; returns the commands if the recording is over.
    fn push(&self, call: Call, recorded: Vec<Recorded>) -> Vec<Recorded> {
        let mut state = self.state();
        if state.is_over {
            return recorded;
        }
        state.calls.push(call);
        state.commands.extend(recorded);
        Vec::new()
    }

    /// Ends the recording and reads the times. *Blocks* until the devices are idle.
    pub(crate) fn finish(&self, driver: &dyn Driver, operators: &Operators) -> Result<Trace> {
        let state = std::mem::replace(&mut *self.state(), State { is_over: true, ..State::default() });
        let State {
            mut calls, operators: mut operator_calls, commands: recorded, annotations, memory, ..
        } = state;
        let (mut commands, activities, dropped) = match self.tracer(driver) {
            Some(tracer) => {
                let commands: Vec<Command> = recorded.into_iter().map(|recorded| recorded.command).collect();
                let devices: BTreeSet<u32> = commands.iter().map(|command| command.device).collect();
                let idle = devices.into_iter().try_for_each(|device| driver.device_synchronize(device));
                let traced = tracer.stop();
                idle?;
                let Activities { list, dropped } = traced?;
                let activities = self.joined(list, &commands, operators);
                (commands, activities, dropped)
            }
            None => {
                let (commands, activities) = events::resolve(self, driver, recorded)?;
                (commands, activities, 0)
            }
        };
        set_spans(&mut commands, &activities);
        calls.sort_by_key(|call| (call.thread, call.span.start));
        operator_calls.sort_by_key(|call| (call.thread, call.span.start));
        let devices: BTreeSet<u32> = (commands.iter().map(|command| command.device))
            .chain(activities.iter().map(|activity| activity.device))
            .chain(memory.iter().map(|event| event.change.device))
            .collect();
        let devices = devices.into_iter().map(|device| Ok((device, driver.device_properties(device)?)));
        let devices = devices.collect::<Result<_>>()?;
        let mut trace = Trace {
            base_nanoseconds: self.base_nanoseconds,
            calls,
            operators: operator_calls,
            commands,
            activities,
            dropped,
            clock: self.clock.clone(),
            annotations,
            memory,
            devices,
        };
        trace.name_activities();
        Ok(trace)
    }

    /// Joins the activities that a tracer recorded with the commands that caused them.
    fn joined(
        &self,
        traced: Vec<thalweg_driver::Activity>,
        commands: &[Command],
        operators: &Operators,
    ) -> Vec<Activity> {
        let mut by_call: HashMap<u64, Vec<&Command>> = HashMap::new();
        for command in commands {
            by_call.entry(command.correlation).or_default().push(command);
        }
        let command_of = |it: &thalweg_driver::Activity| {
            let commands = by_call.get(&it.call?)?;
            commands.iter().find(|command| command.device == it.device).copied()
        };
        // A command that is not a graph runs on its own stream.
        let mut streams: HashMap<(u32, u32), u64> = HashMap::new();
        for it in traced.iter().filter(|it| it.graph_node.is_none()) {
            if let Some(command) = command_of(it) {
                streams.insert((it.device, it.stream), command.stream);
            }
        }
        let recorded = traced.iter().filter(|it| it.end >= self.base);
        recorded
            .map(|it| {
                let command = command_of(it);
                let own = command.filter(|_| it.graph_node.is_none());
                let name = activity_name(it, own);
                let operator = match own {
                    Some(command) => command.operator,
                    None => operators.of_kernel(&it.name).unwrap_or(&name),
                };
                let known = streams.get(&(it.device, it.stream));
                Activity {
                    operator: operator.to_owned(),
                    name,
                    category: category(it.kind),
                    correlation: it.call,
                    device: it.device,
                    stream: known
                        .map_or(ActivityStream::Other(it.stream), |&stream| ActivityStream::Program(stream)),
                    span: self.span([it.start, it.end]),
                    bytes: if it.kind == ActivityKind::Kernel {
                        own.map_or(0, |it| it.bytes)
                    } else {
                        it.bytes
                    },
                    kernel: it.kernel,
                    graph_node: it.graph_node,
                }
            })
            .collect()
    }
}

fn category(kind: ActivityKind) -> Category {
    match kind {
        ActivityKind::Kernel => Category::Kernel,
        ActivityKind::Copy => Category::Memcpy,
        ActivityKind::Fill => Category::Memset,
    }
}

/// Returns the name of an activity. A kernel has its own name, which is demangled; a copy or a fill has the name of its command.
fn activity_name(it: &thalweg_driver::Activity, command: Option<&Command>) -> String {
    match (it.kind, command) {
        (ActivityKind::Kernel, _) => demangled(&it.name),
        (_, Some(command)) => command.name.clone(),
        (ActivityKind::Copy, None) => "Memcpy".to_owned(),
        (ActivityKind::Fill, None) => "Memset (Device)".to_owned(),
    }
}

/// Returns a demangled C++ name, with the feature `timeline`; other names unchanged.
fn demangled(name: &str) -> String {
    #[cfg(feature = "timeline")]
    if name.starts_with("_Z")
        && let Ok(symbol) = cpp_demangle::Symbol::new(name)
        && let Ok(words) = symbol.demangle()
    {
        return words;
    }
    name.to_owned()
}

/// Sets the span of each command: from its first activity to its last.
fn set_spans(commands: &mut [Command], activities: &[Activity]) {
    let mut spans: HashMap<(u64, u32), Span> = HashMap::new();
    for activity in activities {
        let Some(correlation) = activity.correlation else { continue };
        let whole = spans.entry((correlation, activity.device)).or_insert(activity.span);
        whole.start = whole.start.min(activity.span.start);
        whole.end = whole.end.max(activity.span.end);
    }
    for command in commands {
        command.span = spans.get(&(command.correlation, command.device)).copied();
    }
}
