//! The state of a device's streams: the driver's handles, the commands that may still be under way, and the pool.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use thalweg_driver::{Driver, Label, StreamHandle};
use thalweg_lock::Mutex;

use crate::Result;
use crate::forgotten::ForgottenStreams;

/// The number of streams per priority in the pool (`kStreamsPerPool` in PyTorch's `CUDAStream.cpp`).
pub const STREAMS_PER_PRIORITY: usize = 32;

/// The number of labels that a stream remembers.
const LOG_LENGTH: usize = 64;

/// The part of a stream that its device keeps.
pub(crate) struct StreamState {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) handle: StreamHandle,
    pub(crate) priority: i32,
    pub(crate) kind: StreamKind,
    /// The list to which an external stream is added when its last handle is dropped.
    pub(crate) forgotten: Option<Arc<ForgottenStreams>>,
    pub(crate) log: Mutex<Log>,
}

/// The labels of the commands that were submitted to a stream and are not known to be complete, oldest first. Commands are
/// numbered, so that a command submitted while a thread waited is not assumed to be complete.
#[derive(Default)]
pub(crate) struct Log {
    labels: VecDeque<Label>,
    /// The number of the first label that is kept.
    first: u64,
}

impl Log {
    /// Returns the number that the next command gets.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.labels.len() as u64
    }

    pub(crate) fn push(&mut self, label: Label) {
        if self.labels.len() == LOG_LENGTH {
            self.labels.pop_front();
            self.first += 1;
        }
        self.labels.push_back(label);
    }

    /// Forgets the commands before a number.
    fn forget_before(&mut self, end: u64) {
        let count = end.saturating_sub(self.first).min(self.labels.len() as u64);
        self.labels.drain(..count as usize);
        self.first += count;
    }

    /// Forgets the commands from a number on.
    fn forget_from(&mut self, start: u64) {
        self.labels.truncate(start.saturating_sub(self.first) as usize);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StreamKind {
    Default,
    Pool,
    External,
}

impl StreamState {
    pub(crate) fn default_of(driver: &Arc<dyn Driver>, device: u32) -> Result<Self> {
        let handle = driver.default_stream(device)?;
        Ok(Self::new(driver, handle, 0, StreamKind::Default))
    }

    pub(crate) fn new(
        driver: &Arc<dyn Driver>,
        handle: StreamHandle,
        priority: i32,
        kind: StreamKind,
    ) -> Self {
        Self { driver: driver.clone(), handle, priority, kind, forgotten: None, log: Mutex::default() }
    }

    pub(crate) fn log(&self) -> thalweg_lock::MutexGuard<'_, Log> {
        self.log.lock()
    }

    /// Returns the labels that are not known to be complete, oldest first.
    pub(crate) fn outstanding(&self) -> Vec<Label> {
        self.log().labels.iter().copied().collect()
    }

    /// Returns the number of the next command.
    pub(crate) fn next_command(&self) -> u64 {
        self.log().next()
    }

    /// Notes that the commands before this number are complete.
    pub(crate) fn complete_before(&self, number: u64) {
        self.log().forget_before(number);
    }

    /// Checks whether the stream is idle, or waits until it is. Then the commands submitted before are complete.
    pub(crate) fn completed(&self, is_idle: impl FnOnce() -> Result<bool>) -> Result<bool> {
        let next = self.next_command();
        let is_idle = is_idle()?;
        if is_idle {
            self.complete_before(next);
        }
        Ok(is_idle)
    }

    /// Removes the command with this number, which the driver refused. If later commands have been submitted, keeps it: an extra
    /// suspect in an error report is harmless.
    pub(crate) fn retract(&self, number: u64) {
        let mut log = self.log();
        if log.next() == number + 1 {
            log.forget_from(number);
        }
    }
}

impl Drop for StreamState {
    fn drop(&mut self) {
        if let Some(forgotten) = &self.forgotten {
            forgotten.forget(self.handle);
        } else if self.kind != StreamKind::Default {
            // A stream that cannot be destroyed (the driver is gone already) has nothing left to leak.
            let _ = self.driver.stream_destroy(self.handle);
        }
    }
}

/// The streams of one device.
pub(crate) struct StreamPool {
    priorities: Mutex<Vec<PriorityPool>>,
    pub(crate) external: Mutex<Vec<std::sync::Weak<StreamState>>>,
    /// The stream for captures whose caller chose no stream.
    capture: OnceLock<Arc<StreamState>>,
    /// The stream on which data loaders copy.
    copies: OnceLock<Arc<StreamState>>,
    pub(crate) forgotten: Arc<ForgottenStreams>,
}

struct PriorityPool {
    priority: i32,
    streams: Vec<Arc<StreamState>>,
    next: usize,
}

impl StreamPool {
    pub(crate) fn new(forgotten: Arc<ForgottenStreams>) -> Self {
        Self {
            priorities: Mutex::default(),
            external: Mutex::default(),
            capture: OnceLock::new(),
            copies: OnceLock::new(),
            forgotten,
        }
    }

    pub(crate) fn take(
        &self,
        driver: &Arc<dyn Driver>,
        device: u32,
        priority: i32,
    ) -> thalweg_driver::Result<Arc<StreamState>> {
        let mut pools = self.priorities.lock();
        if !pools.iter().any(|pool| pool.priority == priority) {
            pools.push(PriorityPool { priority, streams: Vec::new(), next: 0 });
        }
        let pool = pools.iter_mut().find(|pool| pool.priority == priority).expect("pushed above");
        if pool.streams.len() < STREAMS_PER_PRIORITY {
            let handle = driver.stream_create(device, priority)?;
            pool.streams.push(Arc::new(StreamState::new(driver, handle, priority, StreamKind::Pool)));
        }
        let state = pool.streams[pool.next].clone();
        pool.next = (pool.next + 1) % STREAMS_PER_PRIORITY;
        Ok(state)
    }

    pub(crate) fn for_captures(
        &self,
        driver: &Arc<dyn Driver>,
        device: u32,
    ) -> thalweg_driver::Result<Arc<StreamState>> {
        made_once(&self.capture, driver, device)
    }

    pub(crate) fn for_copies(
        &self,
        driver: &Arc<dyn Driver>,
        device: u32,
    ) -> thalweg_driver::Result<Arc<StreamState>> {
        made_once(&self.copies, driver, device)
    }

    /// Returns every known stream except the default stream.
    pub(crate) fn all(&self) -> Vec<Arc<StreamState>> {
        let pools = self.priorities.lock();
        let mut external = self.external.lock();
        external.retain(|state| state.strong_count() > 0);
        let pooled = pools.iter().flat_map(|pool| pool.streams.iter().cloned());
        let capture = self.capture.get().into_iter().chain(self.copies.get()).cloned();
        pooled.chain(capture).chain(external.iter().filter_map(std::sync::Weak::upgrade)).collect()
    }
}

/// Returns the stream of a cell, creating it the first time.
fn made_once(
    cell: &OnceLock<Arc<StreamState>>,
    driver: &Arc<dyn Driver>,
    device: u32,
) -> thalweg_driver::Result<Arc<StreamState>> {
    if let Some(state) = cell.get() {
        return Ok(state.clone());
    }
    let handle = driver.stream_create(device, 0)?;
    let state = Arc::new(StreamState::new(driver, handle, 0, StreamKind::Pool));
    // If another thread was faster, this stream is destroyed with its state.
    Ok(cell.get_or_init(|| state).clone())
}

#[cfg(test)]
mod tests {
    use thalweg_sim::{SimConfig, SimDriver};

    use super::*;

    /// Commands are distinguished by the last digit of their number.
    const NAMES: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];

    fn label(number: u64) -> Label {
        Label::here(NAMES[(number % 10) as usize])
    }

    /// Compares the log with a list of all numbers that are not forgotten.
    #[test]
    fn the_log_forgets_by_number() {
        for seed in 1..=50_u64 {
            let (mut log, mut known, mut next, mut state) = (Log::default(), VecDeque::new(), 0, seed);
            for _ in 0..400 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                // Places around the oldest number, around the latest, and far beyond both.
                let place = (next + state / 64 % 4).saturating_sub(state / 256 % 90);
                match state % 16 {
                    0 => {
                        log.forget_before(place);
                        known.retain(|&number| number >= place);
                        if known.is_empty() {
                            next = log.next();
                        }
                    }
                    1 if known.front().is_some_and(|&oldest| oldest <= place) => {
                        log.forget_from(place);
                        known.retain(|&number| number < place);
                        next = next.min(place);
                    }
                    _ => {
                        log.push(label(next));
                        known.push_back(next);
                        next += 1;
                        if known.len() > LOG_LENGTH {
                            known.pop_front();
                        }
                    }
                }
                assert_eq!(log.next(), next);
                let expected = known.iter().map(|&number| label(number).operator);
                assert!(log.labels.iter().map(|label| label.operator).eq(expected), "seed {seed}: {known:?}");
            }
        }
    }

    #[test]
    fn a_refused_command_takes_no_later_one_with_it() {
        let driver: Arc<dyn Driver> = SimDriver::new(SimConfig::default()).unwrap();
        let stream = StreamState::default_of(&driver, 0).unwrap();
        (0..3).for_each(|number| stream.log().push(label(number)));
        let names = || stream.outstanding().iter().map(|label| label.operator).collect::<Vec<_>>();
        stream.retract(1);
        assert_eq!(names(), ["0", "1", "2"], "another thread's has come after it");
        stream.retract(2);
        assert_eq!((names(), stream.next_command()), (vec!["0", "1"], 2));
    }

    #[test]
    fn what_comes_during_a_wait_is_not_complete() {
        let driver: Arc<dyn Driver> = SimDriver::new(SimConfig::default()).unwrap();
        let stream = StreamState::default_of(&driver, 0).unwrap();
        stream.log().push(label(0));
        let asked = |is_idle| {
            stream.completed(|| {
                let number = stream.next_command();
                stream.log().push(label(number));
                Ok(is_idle)
            })
        };
        assert!(!asked(false).unwrap());
        assert_eq!(stream.outstanding().len(), 2, "it is not idle");
        assert!(asked(true).unwrap());
        let left: Vec<_> = stream.outstanding().iter().map(|label| label.operator).collect();
        assert_eq!(left, ["2"], "another thread's");
    }
}
