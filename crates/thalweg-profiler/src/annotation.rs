//! [`record_function`] and [`record_operator`]: regions of a program, by name, and calls of operators.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
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

thread_local! {
    /// The innermost operator that the thread is in; 0 for none.
    static OPERATOR: Cell<u64> = const { Cell::new(0) };
}

/// Returns the innermost operator that the calling thread is in.
pub(crate) fn current_operator() -> Option<u64> {
    Some(OPERATOR.get()).filter(|&operator| operator != 0)
}

/// A call of an operator, from [`record_operator`] until this is dropped.
#[must_use = "the call ends when this is dropped"]
#[derive(Debug)]
pub struct RecordOperator(Option<OpenOperator>);

/// A call of an operator that has not ended. It belongs to the thread that began it.
#[derive(Debug)]
struct OpenOperator {
    name: &'static str,
    id: u64,
    parent: Option<u64>,
    begin: Instant,
    thread: std::marker::PhantomData<*const ()>,
}

/// Begins a call of an operator, which every recording profiler of the process shows. While none records, it costs one relaxed load.
pub fn record_operator(name: &'static str) -> RecordOperator {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    if COUNT.load(Ordering::Relaxed) == 0 {
        return RecordOperator(None);
    }
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    let parent = current_operator();
    OPERATOR.set(id);
    let thread = std::marker::PhantomData;
    RecordOperator(Some(OpenOperator { name, id, parent, begin: Instant::now(), thread }))
}

impl Drop for RecordOperator {
    fn drop(&mut self) {
        let Some(OpenOperator { name, id, parent, begin, .. }) = self.0.take() else { return };
        let end = Instant::now();
        OPERATOR.set(parent.unwrap_or(0));
        let recordings = RECORDINGS.lock().unwrap_or_else(PoisonError::into_inner);
        for recording in recordings.iter() {
            recording.operator(name, id, parent, [begin, end]);
        }
    }
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
