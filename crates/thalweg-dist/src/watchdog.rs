//! The watchdog of a group: a thread that ends what would wait for ever.
//!
//! It looks at the oldest collective that is not done, says in the store how far its rank has come, and reads there whether
//! another rank has failed, of the group or of the first one. It never touches a capture: events that were recorded in one are not looked at, and its queries are
//! allowed while another thread captures.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::Builder;
use std::time::{Duration, Instant};

use thalweg_driver::CaptureMode;
use thalweg_runtime::{Error, Event, Result};

use crate::ProcessGroup;
use crate::flight::Entry;
use crate::group::GroupState;

/// The time between two looks at a store in the same process, and at the work.
const LOOK: Duration = Duration::from_millis(20);

/// The time between two looks at a store of another process.
const STORE_LOOK: Duration = Duration::from_secs(1);

/// A collective that may not be done.
#[derive(Clone)]
struct Call {
    entry: Entry,
    /// Recorded behind it; `None` while it is being submitted, which may itself wait for other ranks.
    event: Option<Arc<Event>>,
    begin: Instant,
}

/// Collectives that may not be done.
#[derive(Default)]
pub(crate) struct Outstanding(Mutex<VecDeque<Call>>);

impl Outstanding {
    fn list(&self) -> MutexGuard<'_, VecDeque<Call>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a collective that is about to be submitted. It is forgotten with the answer, but where [`Submission::submitted`] was called.
    pub(crate) fn begin(&self, entry: Entry) -> Submission<'_> {
        self.list().push_back(Call { entry, event: None, begin: Instant::now() });
        Submission { outstanding: self, entry }
    }

    /// Forgets those that are done, which `completed` gets, and returns the oldest that is not, with its age.
    fn oldest(&self, completed: impl Fn(Entry)) -> Result<Option<(Entry, Duration)>> {
        loop {
            let Some(Call { entry, event, begin }) = self.list().front().cloned() else { return Ok(None) };
            let is_done = event.map_or(Ok(false), |event| event.query())?;
            if !is_done {
                return Ok(Some((entry, begin.elapsed())));
            }
            self.list().retain(|call| call.entry.sequence != entry.sequence);
            completed(entry);
        }
    }
}

/// A collective that is being submitted.
pub(crate) struct Submission<'a> {
    outstanding: &'a Outstanding,
    entry: Entry,
}

impl Submission<'_> {
    /// Says that an event was recorded behind the collective.
    pub(crate) fn submitted(self, event: Arc<Event>) {
        let mut list = self.outstanding.list();
        if let Some(call) = list.iter_mut().find(|call| call.entry.sequence == self.entry.sequence) {
            call.event = Some(event);
        }
    }
}

impl Drop for Submission<'_> {
    fn drop(&mut self) {
        // One that was submitted has an event and stays.
        let is_other = |call: &Call| call.entry.sequence != self.entry.sequence || call.event.is_some();
        self.outstanding.list().retain(is_other);
    }
}

/// Starts the watchdog of a group. It ends with the group.
pub(crate) fn start(group: &Arc<GroupState>) -> Result<()> {
    let weak = Arc::downgrade(group);
    let started = Builder::new().name("collective-watchdog".to_owned()).spawn(move || watch(&weak));
    started.map(drop).map_err(|error| Error::distributed(format!("the watchdog has no thread: {error}")))
}

fn watch(group: &Weak<GroupState>) {
    let (mut published, mut stored) = (0, Instant::now());
    if let Some(group) = group.upgrade() {
        let driver = ProcessGroup(group).device().driver().clone();
        // Without it a query breaks another thread's capture, which that thread then learns.
        let _ = driver.thread_exchange_capture_mode(CaptureMode::Relaxed);
    }
    loop {
        std::thread::sleep(LOOK);
        let Some(group) = group.upgrade().map(ProcessGroup) else { return };
        if group.check().is_err() {
            return;
        }
        let reaches_store = group.0.store.is_in_process() || stored.elapsed() >= STORE_LOOK;
        if reaches_store {
            stored = Instant::now();
            if let Some(last) = group.last_call().filter(|last| last.sequence > published) {
                published = last.sequence;
                group.publish(last);
            }
        }
        if let Some(text) = problem(&group, reaches_store) {
            // What abort answers, the waiting calls answer as well.
            let _ = group.fail(text);
            return;
        }
    }
}

/// Returns why a group is over, if it is.
fn problem(group: &ProcessGroup, reaches_store: bool) -> Option<String> {
    if reaches_store && let Some(text) = group.failure_elsewhere() {
        return Some(text);
    }
    let timeout = group.0.options.timeout;
    match group.0.outstanding.oldest(|entry| group.flight().completed(entry)) {
        Ok(Some((entry, age))) if age > timeout => {
            // The others say how far they have come once in a while.
            if !group.0.store.is_in_process() {
                std::thread::sleep(2 * STORE_LOOK);
            }
            Some(format!(
                "watchdog caught collective operation timeout: rank {} of the group \"{}\" waited more than {} ms for {entry}. {}\
                 The last calls of this rank:\n{}",
                group.rank(),
                group.name(),
                timeout.as_millis(),
                group.who_is_missing(entry.sequence),
                group.flight_record()
            ))
        }
        Ok(_) => None,
        Err(error) => Some(format!("rank {} has lost its device: {error}", group.rank())),
    }
}
