//! [`Recording`]: calls and commands while they come, and the events around them until their times are read.

use std::cell::Cell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use thalweg_driver::{CaptureStatus, Driver, EventFlags, EventHandle, Result, StreamHandle};

use crate::trace::{Annotation, Call, Command, Span, Trace};

/// Times are read from an event at most this far away: a 32-bit float has steps of 60 ns there.
const REACH_MILLISECONDS: f64 = 500.0;

/// How many events join the clocks of the host and a device.
const LOOKS: usize = 8;

/// Returns the number of the calling thread: 1 for the first that asked.
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

/// A timeline that grows.
#[derive(Debug)]
pub(crate) struct Recording {
    base: Instant,
    base_nanoseconds: u64,
    next_correlation: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    calls: Vec<Call>,
    commands: Vec<Recorded>,
    annotations: Vec<Annotation>,
    is_over: bool,
}

/// A command, and the events before and behind it; none if it was captured.
#[derive(Debug)]
struct Recorded {
    command: Command,
    events: Option<[EventHandle; 2]>,
}

/// A command that has times: its place in the list, and its events.
struct Timed {
    index: usize,
    events: [EventHandle; 2],
}

impl Recording {
    pub(crate) fn new() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            base: Instant::now(),
            base_nanoseconds: since_epoch.as_nanos() as u64,
            next_correlation: AtomicU64::new(1),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn since_base(&self, moment: Instant) -> u64 {
        moment.saturating_duration_since(self.base).as_nanos() as u64
    }

    /// Adds a region that began after this recording and ended before it.
    pub(crate) fn annotate(&self, name: &str, thread: u64, begin: Instant, end: Instant) {
        if begin >= self.base {
            let span = Span { start: self.since_base(begin), end: self.since_base(end) };
            self.state().annotations.push(Annotation { name: name.to_owned(), thread, span });
        }
    }

    /// Makes a call that submits no command.
    pub(crate) fn call<T>(&self, entry_point: &'static str, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let correlation = self.next_correlation.fetch_add(1, Ordering::Relaxed);
        let start = Instant::now();
        let answer = call();
        self.push(self.returned(entry_point, correlation, start), None);
        answer
    }

    /// Makes a call that submits a command between two events. The profiler's own calls never fail the program: without events, the
    /// command has no times.
    pub(crate) fn submit(
        &self,
        driver: &dyn Driver,
        stream: StreamHandle,
        entry_point: &'static str,
        describe: impl FnOnce(u64, u32) -> Command,
        call: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let correlation = self.next_correlation.fetch_add(1, Ordering::Relaxed);
        let device = driver.stream_device(stream)?;
        let events = event_pair(driver, device, stream);
        let start = Instant::now();
        let answer = call();
        let returned = self.returned(entry_point, correlation, start);
        let events = events.filter(|events| {
            let is_whole = answer.is_ok() && driver.event_record(events[1], stream).is_ok();
            if !is_whole {
                destroy(driver, events);
            }
            is_whole
        });
        let recorded = answer.is_ok().then(|| Recorded { command: describe(correlation, device), events });
        if let Some(Recorded { events: Some(events), .. }) = self.push(returned, recorded) {
            destroy(driver, &events);
        }
        answer
    }

    fn returned(&self, entry_point: &'static str, correlation: u64, start: Instant) -> Call {
        let span = Span { start: self.since_base(start), end: self.since_base(Instant::now()) };
        Call { entry_point, correlation, thread: thread_number(), span }
    }

    /// Adds a call and its command; gives the command back if recording is over.
    fn push(&self, call: Call, recorded: Option<Recorded>) -> Option<Recorded> {
        let mut state = self.state();
        if state.is_over {
            return recorded;
        }
        state.calls.push(call);
        state.commands.extend(recorded);
        None
    }

    /// Ends the recording and reads the times. *Blocks* until the devices are idle.
    pub(crate) fn finish(&self, driver: &dyn Driver) -> Result<Trace> {
        let State { mut calls, commands, annotations, .. } =
            std::mem::replace(&mut *self.state(), State { is_over: true, ..State::default() });
        let resolved = self.resolve(driver, &commands);
        for events in commands.iter().filter_map(|recorded| recorded.events.as_ref()) {
            destroy(driver, events);
        }
        let spans = resolved?;
        let mut commands: Vec<Command> = commands.into_iter().map(|recorded| recorded.command).collect();
        for (command, span) in commands.iter_mut().zip(spans) {
            command.span = span;
        }
        calls.sort_by_key(|call| (call.thread, call.span.start));
        let devices: BTreeSet<u32> = commands.iter().map(|command| command.device).collect();
        let devices = devices.into_iter().map(|device| Ok((device, driver.device_properties(device)?)));
        let devices = devices.collect::<Result<_>>()?;
        Ok(Trace { base_nanoseconds: self.base_nanoseconds, calls, commands, annotations, devices })
    }

    /// Returns the span of each command.
    fn resolve(&self, driver: &dyn Driver, commands: &[Recorded]) -> Result<Vec<Option<Span>>> {
        let mut spans = vec![None; commands.len()];
        let mut streams: BTreeMap<(u32, u64), Vec<Timed>> = BTreeMap::new();
        for (index, recorded) in commands.iter().enumerate() {
            if let Some(events) = recorded.events {
                let command = &recorded.command;
                streams.entry((command.device, command.stream)).or_default().push(Timed { index, events });
            }
        }
        let mut anchors: BTreeMap<u32, (EventHandle, u64)> = BTreeMap::new();
        let answer = streams.into_iter().try_for_each(|((device, _), commands)| {
            let anchor = match anchors.entry(device) {
                Entry::Occupied(entry) => *entry.get(),
                Entry::Vacant(entry) => *entry.insert(self.anchor(driver, device)?),
            };
            resolve_stream(driver, anchor, &commands, &mut spans)
        });
        for (event, _) in anchors.values() {
            let _ = driver.event_destroy(*event);
        }
        answer.map(|()| spans)
    }

    /// Returns an event that is reached, and when it was at the latest, in nanoseconds: the host sees each of several events late, and
    /// the one that it sees the least late says how late the others were.
    fn anchor(&self, driver: &dyn Driver, device: u32) -> Result<(EventHandle, u64)> {
        driver.device_synchronize(device)?;
        let stream = driver.default_stream(device)?;
        let anchor = driver.event_create(device, timing())?;
        let seen = |event| -> Result<u64> {
            driver.event_record(event, stream)?;
            driver.event_synchronize(event)?;
            Ok(self.since_base(Instant::now()))
        };
        let later = || -> Result<u64> {
            let event = driver.event_create(device, timing())?;
            let answer = seen(event).and_then(|seen| {
                let since = f64::from(driver.event_elapsed_ms(anchor, event)?) * 1e6;
                Ok(seen.saturating_sub(since as u64))
            });
            let _ = driver.event_destroy(event);
            answer
        };
        let first = seen(anchor);
        match first.and_then(|first| (1..LOOKS).try_fold(first, |latest, _| Ok(latest.min(later()?)))) {
            Ok(latest) => Ok((anchor, latest)),
            Err(error) => {
                let _ = driver.event_destroy(anchor);
                Err(error)
            }
        }
    }
}

/// Works out the spans of a stream's commands, which do not overlap.
fn resolve_stream(
    driver: &dyn Driver,
    anchor: (EventHandle, u64),
    commands: &[Timed],
    spans: &mut [Option<Span>],
) -> Result<()> {
    let milliseconds = |from, to| driver.event_elapsed_ms(from, to).map(f64::from);
    let mut reference: Option<(EventHandle, f64)> = None;
    let mut idle_since = 0;
    for &Timed { index, events: [before, behind] } in commands {
        // In milliseconds since recording began.
        let begin = match reference {
            Some((event, moment)) => moment + milliseconds(event, before)?,
            None => anchor.1 as f64 / 1e6 - milliseconds(before, anchor.0)?,
        };
        if reference.is_none_or(|(_, moment)| begin - moment > REACH_MILLISECONDS) {
            reference = Some((before, begin));
        }
        let nanoseconds = |milliseconds: f64| (milliseconds * 1e6).max(0.0).round() as u64;
        let start = nanoseconds(begin).max(idle_since);
        let end = nanoseconds(begin + milliseconds(before, behind)?).max(start);
        spans[index] = Some(Span { start, end });
        idle_since = end;
    }
    Ok(())
}

fn timing() -> EventFlags {
    EventFlags { timing: true, ..EventFlags::default() }
}

/// Returns two events, the first of them recorded; `None` while the stream captures.
fn event_pair(driver: &dyn Driver, device: u32, stream: StreamHandle) -> Option<[EventHandle; 2]> {
    if driver.stream_capture_info(stream).ok()?.status != CaptureStatus::None {
        return None;
    }
    let before = driver.event_create(device, timing()).ok()?;
    let Ok(behind) = driver.event_create(device, timing()) else {
        let _ = driver.event_destroy(before);
        return None;
    };
    let events = [before, behind];
    if driver.event_record(before, stream).is_err() {
        destroy(driver, &events);
        return None;
    }
    Some(events)
}

fn destroy(driver: &dyn Driver, events: &[EventHandle; 2]) {
    for &event in events {
        let _ = driver.event_destroy(event);
    }
}
