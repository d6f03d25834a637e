//! [`record_function`]: regions of a program, by name.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::recording::{Recording, thread_number};

/// How many recordings there are.
static COUNT: AtomicUsize = AtomicUsize::new(0);

static RECORDINGS: Mutex<Vec<Arc<Recording>>> = Mutex::new(Vec::new());

/// Makes regions go to this recording, too.
pub(crate) fn attach(recording: &Arc<Recording>) {
    let mut recordings = RECORDINGS.lock().unwrap_or_else(PoisonError::into_inner);
    recordings.push(Arc::clone(recording));
    COUNT.store(recordings.len(), Ordering::Relaxed);
}

/// Undoes [`attach`].
pub(crate) fn detach(recording: &Arc<Recording>) {
    let mut recordings = RECORDINGS.lock().unwrap_or_else(PoisonError::into_inner);
    recordings.retain(|other| !Arc::ptr_eq(other, recording));
    COUNT.store(recordings.len(), Ordering::Relaxed);
}

/// A region of the program, from [`record_function`] until this is dropped.
#[must_use = "the region ends when this is dropped"]
#[derive(Debug)]
pub struct RecordFunction(Option<(String, Instant)>);

/// Begins a region, which every recording profiler of the process shows under this name (`torch.profiler.record_function`). While
/// none records, it costs one relaxed load. A region that a recording does not see whole is not in it.
pub fn record_function(name: &str) -> RecordFunction {
    let is_recorded = COUNT.load(Ordering::Relaxed) > 0;
    RecordFunction(is_recorded.then(|| (name.to_owned(), Instant::now())))
}

impl Drop for RecordFunction {
    fn drop(&mut self) {
        let Some((name, begin)) = self.0.take() else { return };
        let end = Instant::now();
        let recordings = RECORDINGS.lock().unwrap_or_else(PoisonError::into_inner);
        for recording in recordings.iter() {
            recording.annotate(&name, thread_number(), begin, end);
        }
    }
}
