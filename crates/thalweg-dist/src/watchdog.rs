//! The watchdog of a group: a thread that ends collectives that would wait forever.
//!
//! The watchdog checks the oldest collective that is not done, publishes its rank's progress in the store, and reads there
//! whether another rank of the group or of the first group has failed. It never disturbs a capture: it does not query events that
//! were recorded in one, and its queries are allowed while another thread captures.

use std::collections::VecDeque;
use std::sync::{Arc, Once, Weak};
use std::thread::Builder;
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use thalweg_driver::{CaptureMode, at_exit};
use thalweg_lock::{Mutex, MutexGuard, RwLock};
use thalweg_runtime::{Error, Event, Result};

use crate::ProcessGroup;
use crate::flight::Entry;
use crate::group::GroupState;

/// The time between two checks of the work, and of a store in the same process.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The time between two checks of a store in another process.
const STORE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The number of collectives that are checked together.
const BATCH: usize = 32;

/// A collective that may not be done.
#[derive(Clone)]
struct Call {
    entry: Entry,
    /// The event after the collective; `None` while it is being submitted, which may itself wait for other ranks.
    event: Option<Arc<Event>>,
    begin: Instant,
}

/// Collectives that may not be done.
#[derive(Default)]
pub(crate) struct Outstanding(Mutex<VecDeque<Call>>);

impl Outstanding {
    fn list(&self) -> MutexGuard<'_, VecDeque<Call>> {
        self.0.lock()
    }

    /// Records a collective that is about to be submitted. It is removed when the result is dropped, unless
    /// [`Submission::submitted`] was called.
    pub(crate) fn begin(&self, entry: Entry) -> Submission<'_> {
        self.list().push_back(Call { entry, event: None, begin: Instant::now() });
        Submission { outstanding: self, entry, is_submitted: false }
    }

    /// Removes the collectives that are done and passes them to `completed`. Returns the oldest that is not done, with its age.
    fn oldest(&self, completed: impl Fn(&[Entry])) -> Result<Option<(Entry, Duration)>> {
        loop {
            // The lock is not held while events are queried. No other thread removes entries from the front.
            let first: SmallVec<[Call; BATCH]> = self.list().iter().take(BATCH).cloned().collect();
            let mut done: SmallVec<[Entry; BATCH]> = SmallVec::new();
            let mut answer = Ok(true);
            for call in &first {
                answer = call.event.as_ref().map_or(Ok(false), |event| event.query());
                if !matches!(answer, Ok(true)) {
                    break;
                }
                done.push(call.entry);
            }
            self.list().drain(..done.len());
            completed(&done);
            answer?;
            if done.len() < BATCH {
                return Ok(first.get(done.len()).map(|call| (call.entry, call.begin.elapsed())));
            }
        }
    }
}

/// A collective that is being submitted.
pub(crate) struct Submission<'a> {
    outstanding: &'a Outstanding,
    entry: Entry,
    is_submitted: bool,
}

impl Submission<'_> {
    /// Sets the event that was recorded after the collective.
    pub(crate) fn submitted(mut self, event: Arc<Event>) {
        self.is_submitted = true;
        let mut list = self.outstanding.list();
        if let Some(call) = list.iter_mut().rfind(|call| call.entry.sequence == self.entry.sequence) {
            call.event = Some(event);
        }
    }
}

impl Drop for Submission<'_> {
    fn drop(&mut self) {
        if !self.is_submitted {
            self.outstanding.list().retain(|call| call.entry.sequence != self.entry.sequence);
        }
    }
}

/// Waits until the watchdogs of the other ranks of a group, which publish periodically, have published their progress.
pub(crate) fn wait_for_progress(group: &ProcessGroup) {
    if group.has_watchdog() {
        std::thread::sleep(
            2 * if group.0.store.is_in_process() { CHECK_INTERVAL } else { STORE_CHECK_INTERVAL },
        );
    }
}

/// A lock that each watchdog holds for reading during a check, and that the thread that ends the process takes and keeps.
static CHECKS: RwLock<()> = RwLock::new(());

/// The time that the end of the process waits for watchdogs, which may be aborting a communicator.
const EXIT_GRACE: Duration = Duration::from_secs(10);

/// Waits for watchdogs in a check, and prevents further checks: the libraries that they call are unloaded next.
fn exiting() {
    let begin = Instant::now();
    while begin.elapsed() < EXIT_GRACE {
        match CHECKS.try_write() {
            Some(guard) => return std::mem::forget(guard),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Starts the watchdog of a group. It ends with the group.
pub(crate) fn start(group: &Arc<GroupState>) -> Result<()> {
    static AT_EXIT: Once = Once::new();
    // The group has a communicator, so the library is loaded, and is still loaded when this is called.
    AT_EXIT.call_once(|| {
        let _ = at_exit(exiting);
    });
    let weak = Arc::downgrade(group);
    let started = Builder::new().name("collective-watchdog".to_owned()).spawn(move || watch(&weak));
    started.map(drop).map_err(|error| Error::distributed(format!("the watchdog has no thread: {error}")))
}

fn watch(group: &Weak<GroupState>) {
    let (mut published, mut stored) = (0, Instant::now());
    if let Some(group) = group.upgrade() {
        let driver = ProcessGroup(group).device().driver().clone();
        // Without this, a query would invalidate another thread's capture.
        let _ = driver.thread_exchange_capture_mode(CaptureMode::Relaxed);
    }
    loop {
        std::thread::sleep(CHECK_INTERVAL);
        let _look = CHECKS.read();
        let Some(group) = group.upgrade().map(ProcessGroup) else { return };
        if group.has_failed() {
            return;
        }
        let reaches_store = group.0.store.is_in_process() || stored.elapsed() >= STORE_CHECK_INTERVAL;
        if reaches_store {
            stored = Instant::now();
            if let Some(last) = group.last_call().filter(|last| last.sequence > published) {
                published = last.sequence;
                group.publish(last);
            }
        }
        if let Some(text) = problem(&group, reaches_store) {
            // An error of the abort is also returned by the waiting calls.
            let _ = group.fail(text);
            return;
        }
    }
}

/// Returns the reason why a group failed, if it has.
fn problem(group: &ProcessGroup, reaches_store: bool) -> Option<String> {
    if reaches_store && let Some(text) = group.failure_elsewhere() {
        return Some(text);
    }
    let timeout = group.0.options.timeout;
    let completed = |done: &[Entry]| done.iter().for_each(|entry| group.flight().completed(*entry));
    match group.0.outstanding.oldest(completed) {
        Ok(Some((entry, age))) if age > timeout => Some(format!(
            "watchdog caught collective operation timeout: rank {} of the group \"{}\" waited more than {} ms for {entry}. {}\
                 The last calls of this rank:\n{}",
            group.rank(),
            group.name(),
            timeout.as_millis(),
            group.who_is_missing(entry.sequence),
            group.flight_record()
        )),
        Ok(_) => None,
        Err(error) => Some(format!("rank {} has lost its device: {error}", group.rank())),
    }
}
