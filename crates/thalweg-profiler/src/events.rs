//! Times by events: each command is enclosed by two events on its stream, whose times are read when recording ends.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Instant;

use thalweg_driver::{CaptureStatus, Driver, EventFlags, EventHandle, Result, StreamHandle};

use crate::recording::Recording;
use crate::trace::{Activity, ActivityStream, Command, Span};

/// The maximum distance over which times are read from an event: a 32-bit float has steps of 60 ns there.
const REACH_MILLISECONDS: f64 = 500.0;

/// The number of events that relate the clocks of the host and a device.
const CLOCK_EVENTS: usize = 8;

/// A command, with the events before and after it; `None` if it was captured, or if a tracer has its times.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) command: Command,
    pub(crate) events: Option<EventPair>,
}

/// The events before and after a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventPair {
    before: EventHandle,
    after: EventHandle,
}

/// A command that has times: its index in the list, and its events.
struct Timed {
    index: usize,
    events: EventPair,
}

fn timing() -> EventFlags {
    EventFlags { timing: true, ..EventFlags::default() }
}

impl EventPair {
    /// Returns two events, the first of them recorded; `None` while the stream captures.
    pub(crate) fn begin(driver: &dyn Driver, device: u32, stream: StreamHandle) -> Option<Self> {
        if driver.stream_capture_info(stream).ok()?.status != CaptureStatus::None {
            return None;
        }
        let before = driver.event_create(device, timing()).ok()?;
        let Ok(after) = driver.event_create(device, timing()) else {
            let _ = driver.event_destroy(before);
            return None;
        };
        let pair = Self { before, after };
        if driver.event_record(before, stream).is_err() {
            pair.destroy(driver);
            return None;
        }
        Some(pair)
    }

    /// Records the second event after a command that was submitted; otherwise destroys both events.
    pub(crate) fn end(self, driver: &dyn Driver, stream: StreamHandle, was_submitted: bool) -> Option<Self> {
        if was_submitted && driver.event_record(self.after, stream).is_ok() {
            return Some(self);
        }
        self.destroy(driver);
        None
    }

    pub(crate) fn destroy(self, driver: &dyn Driver) {
        for event in [self.before, self.after] {
            let _ = driver.event_destroy(event);
        }
    }
}

/// Reads and destroys the events of commands. Returns the commands, and the activities of those that ran.
pub(crate) fn resolve(
    recording: &Recording,
    driver: &dyn Driver,
    recorded: Vec<Recorded>,
) -> Result<(Vec<Command>, Vec<Activity>)> {
    let spans = spans(recording, driver, &recorded);
    for events in recorded.iter().filter_map(|recorded| recorded.events) {
        events.destroy(driver);
    }
    let spans = spans?;
    let commands: Vec<Command> = recorded.into_iter().map(|recorded| recorded.command).collect();
    let ran = commands.iter().zip(spans).filter_map(|(command, span)| {
        Some(Activity {
            name: command.name.clone(),
            operator: command.operator.to_owned(),
            category: command.category,
            correlation: Some(command.correlation),
            device: command.device,
            stream: ActivityStream::Program(command.stream),
            span: span?,
            bytes: command.bytes,
            kernel: None,
            graph_node: None,
        })
    });
    let mut activities: Vec<Activity> = ran.collect();
    activities.sort_by_key(|activity| activity.span.start);
    Ok((commands, activities))
}

/// Returns the span of each command.
fn spans(recording: &Recording, driver: &dyn Driver, recorded: &[Recorded]) -> Result<Vec<Option<Span>>> {
    let mut spans = vec![None; recorded.len()];
    let mut streams: BTreeMap<(u32, u64), Vec<Timed>> = BTreeMap::new();
    for (index, recorded) in recorded.iter().enumerate() {
        if let Some(events) = recorded.events {
            let command = &recorded.command;
            streams.entry((command.device, command.stream)).or_default().push(Timed { index, events });
        }
    }
    let mut anchors: BTreeMap<u32, (EventHandle, u64)> = BTreeMap::new();
    let answer = streams.into_iter().try_for_each(|((device, _), commands)| {
        let anchor = match anchors.entry(device) {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => *entry.insert(anchor(recording, driver, device)?),
        };
        resolve_stream(driver, anchor, &commands, &mut spans)
    });
    for (event, _) in anchors.values() {
        let _ = driver.event_destroy(*event);
    }
    answer.map(|()| spans)
}

/// Returns a completed event, and the latest time at which it can have completed, in nanoseconds. The host notices each of several
/// events late; the one that it notices with the smallest delay bounds the delays of the others.
fn anchor(recording: &Recording, driver: &dyn Driver, device: u32) -> Result<(EventHandle, u64)> {
    driver.device_synchronize(device)?;
    let stream = driver.default_stream(device)?;
    let anchor = driver.event_create(device, timing())?;
    let seen = |event| -> Result<u64> {
        driver.event_record(event, stream)?;
        driver.event_synchronize(event)?;
        Ok(recording.since_base(Instant::now()))
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
    match first.and_then(|first| (1..CLOCK_EVENTS).try_fold(first, |latest, _| Ok(latest.min(later()?)))) {
        Ok(latest) => Ok((anchor, latest)),
        Err(error) => {
            let _ = driver.event_destroy(anchor);
            Err(error)
        }
    }
}

/// Computes the spans of a stream's commands, which do not overlap.
fn resolve_stream(
    driver: &dyn Driver,
    anchor: (EventHandle, u64),
    commands: &[Timed],
    spans: &mut [Option<Span>],
) -> Result<()> {
    let milliseconds = |from, to| driver.event_elapsed_ms(from, to).map(f64::from);
    let mut reference: Option<(EventHandle, f64)> = None;
    let mut idle_since = 0;
    for &Timed { index, events: EventPair { before, after } } in commands {
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
        let end = nanoseconds(begin + milliseconds(before, after)?).max(start);
        spans[index] = Some(Span { start, end });
        idle_since = end;
    }
    Ok(())
}
