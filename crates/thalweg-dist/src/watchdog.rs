//! The watchdog of a group: a thread that ends what would wait for ever.
//!
//! It looks at the oldest collective that is not done, says in the store how far its rank has come, and reads there whether
//! another rank has failed, of the group or of the first one. It never touches a capture: events that were recorded in one are not looked at, and its queries are
//! allowed while another thread captures.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, RwLock, TryLockError, Weak};
use std::thread::Builder;
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use thalweg_driver::{CaptureMode, at_exit};
use thalweg_runtime::{Error, Event, Result};

use crate::ProcessGroup;
use crate::flight::Entry;
use crate::group::GroupState;

/// The time between two looks at a store in the same process, and at the work.
const LOOK: Duration = Duration::from_millis(20);

/// The time between two looks at a store of another process.
const STORE_LOOK: Duration = Duration::from_secs(1);

/// The number of collectives that are looked at together.
const BATCH: usize = 32;

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
        Submission { outstanding: self, entry, is_submitted: false }
    }

    /// Forgets those that are done, which `completed` gets, and returns the oldest that is not, with its age.
    fn oldest(&self, completed: impl Fn(&[Entry])) -> Result<Option<(Entry, Duration)>> {
        loop {
            // The lock is not held while events are asked. No other thread takes any from the front.
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
    /// Says that an event was recorded behind the collective.
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

/// Waits until the other ranks of a group, whose watchdogs say it once in a while, have said how far they have come.
pub(crate) fn wait_for_progress(group: &ProcessGroup) {
    if group.has_watchdog() {
        std::thread::sleep(2 * if group.0.store.is_in_process() { LOOK } else { STORE_LOOK });
    }
}

/// Held for reading by each watchdog while it looks, and from the end of the process on by the thread that ends it.
static LOOKS: RwLock<()> = RwLock::new(());

/// The time that the end of the process waits for watchdogs, which may be aborting a communicator.
const EXIT_GRACE: Duration = Duration::from_secs(10);

/// Waits for the watchdogs that look, and has none look again: the libraries that they call are taken down next.
fn exiting() {
    let begin = Instant::now();
    while begin.elapsed() < EXIT_GRACE {
        match LOOKS.try_write() {
            Ok(guard) => return std::mem::forget(guard),
            Err(TryLockError::Poisoned(poisoned)) => return std::mem::forget(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Starts the watchdog of a group. It ends with the group.
pub(crate) fn start(group: &Arc<GroupState>) -> Result<()> {
    static AT_EXIT: Once = Once::new();
    // The group has a communicator, so the library is loaded, and is still there when this is called.
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
        // Without it a query breaks another thread's capture, which that thread then learns.
        let _ = driver.thread_exchange_capture_mode(CaptureMode::Relaxed);
    }
    loop {
        std::thread::sleep(LOOK);
        let _look = LOOKS.read().unwrap_or_else(PoisonError::into_inner);
        let Some(group) = group.upgrade().map(ProcessGroup) else { return };
        if group.has_failed() {
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
