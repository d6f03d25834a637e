//! [`record_function`] and [`record_operator`]: named regions of a program, and calls of operators. [`emit_nvtx`] shows both to
//! other profilers.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use thalweg_driver::Driver;
use thalweg_driver::cuda::nvtx;
use thalweg_lock::{Mutex, MutexGuard};

use crate::recording::{Recording, thread_number};
use crate::trace::MemoryChange;

/// The number of recordings and [`EmitNvtx`] guards.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The number of [`EmitNvtx`] guards.
static EMITTERS: AtomicUsize = AtomicUsize::new(0);

static RECORDINGS: Mutex<Vec<Arc<Recording>>> = Mutex::new(Vec::new());

fn recordings() -> MutexGuard<'static, Vec<Arc<Recording>>> {
    RECORDINGS.lock()
}

/// Adds a recording to those that regions are written to.
pub(crate) fn attach(recording: &Arc<Recording>) {
    let mut recordings = recordings();
    recordings.push(Arc::clone(recording));
    COUNT.fetch_add(1, Ordering::Relaxed);
    count_memory(recording, true);
}

/// Removes a recording that was added by [`attach`].
pub(crate) fn detach(recording: &Arc<Recording>) {
    let mut recordings = recordings();
    recordings.retain(|other| !Arc::ptr_eq(other, recording));
    COUNT.fetch_sub(1, Ordering::Relaxed);
    count_memory(recording, false);
}

/// A guard: until it is dropped, regions and operators are also emitted as NVTX ranges.
#[must_use = "ranges are emitted until this is dropped"]
#[derive(Debug)]
pub struct EmitNvtx(());

/// Emits each [`record_function`] and each call of an operator as an NVTX range of its thread, for Nsight Systems and similar
/// tools, until the returned guard is dropped (`torch.autograd.profiler.emit_nvtx`). Without the NVTX library, or a tool that
/// reads its ranges, nothing is shown.
pub fn emit_nvtx() -> EmitNvtx {
    EMITTERS.fetch_add(1, Ordering::Relaxed);
    COUNT.fetch_add(1, Ordering::Relaxed);
    EmitNvtx(())
}

impl Drop for EmitNvtx {
    fn drop(&mut self) {
        EMITTERS.fetch_sub(1, Ordering::Relaxed);
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Begins an NVTX range if emitting is enabled.
fn emitted(name: &str) -> Option<nvtx::Range> {
    (EMITTERS.load(Ordering::Relaxed) > 0).then(|| nvtx::range(name))
}

/// A region of the program, which begins in [`record_function`] and ends when this is dropped. It belongs to its thread.
#[must_use = "the region ends when this is dropped"]
#[derive(Debug)]
pub struct RecordFunction(Option<OpenRegion>);

/// A region that has not ended.
#[derive(Debug)]
struct OpenRegion {
    name: String,
    begin: Instant,
    _range: Option<nvtx::Range>,
    thread: PhantomData<*const ()>,
}

/// Begins a region, which every recording profiler of the process shows under this name (`torch.profiler.record_function`). While
/// none records, it costs one relaxed load. A recording contains only regions that begin and end while it records.
pub fn record_function(name: &str) -> RecordFunction {
    let is_recorded = COUNT.load(Ordering::Relaxed) > 0;
    RecordFunction(is_recorded.then(|| OpenRegion {
        name: name.to_owned(),
        begin: Instant::now(),
        _range: emitted(name),
        thread: PhantomData,
    }))
}

thread_local! {
    /// The innermost operator of the thread; 0 for none.
    static OPERATOR: Cell<u64> = const { Cell::new(0) };
}

/// Returns the innermost operator of the calling thread.
pub(crate) fn current_operator() -> Option<u64> {
    Some(OPERATOR.get()).filter(|&operator| operator != 0)
}

/// A call of an operator, which begins in [`record_operator`] and ends when this is dropped.
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
    _range: Option<nvtx::Range>,
    thread: PhantomData<*const ()>,
}

/// Begins a call of an operator, which every recording profiler of the process shows. While none records, it costs one relaxed load.
pub fn record_operator(name: &'static str) -> RecordOperator {
    record_operator_with(|| name)
}

/// Begins a call of an operator, as [`record_operator`] does; the name is computed only if something records.
pub fn record_operator_with(name: impl FnOnce() -> &'static str) -> RecordOperator {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return RecordOperator(None);
    }
    begin_operator(name())
}

#[cold]
fn begin_operator(name: &'static str) -> RecordOperator {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    let parent = current_operator();
    OPERATOR.set(id);
    let range = emitted(name);
    let begin = Instant::now();
    RecordOperator(Some(OpenOperator { name, id, parent, begin, _range: range, thread: PhantomData }))
}

impl Drop for RecordOperator {
    fn drop(&mut self) {
        let Some(OpenOperator { name, id, parent, begin, .. }) = &self.0 else { return };
        let (end, begin) = (Instant::now(), *begin);
        OPERATOR.set(parent.unwrap_or(0));
        for recording in recordings().iter() {
            recording.operator(name, *id, *parent, [begin, end]);
        }
    }
}

impl Drop for RecordFunction {
    fn drop(&mut self) {
        let Some(OpenRegion { name, begin, .. }) = &self.0 else { return };
        let end = Instant::now();
        for recording in recordings().iter() {
            recording.annotate(name, thread_number(), *begin, end);
        }
    }
}

/// The number of recordings that record changes of memory.
static MEMORY: AtomicUsize = AtomicUsize::new(0);

/// Adds a recording to, or removes it from, the count of those that record changes of memory.
fn count_memory(recording: &Recording, is_attached: bool) {
    if !recording.keeps_memory() {
        return;
    }
    match is_attached {
        true => MEMORY.fetch_add(1, Ordering::Relaxed),
        false => MEMORY.fetch_sub(1, Ordering::Relaxed),
    };
}

/// Passes a change of memory to every recording of this driver that records them. While there is no such recording, it costs one
/// relaxed load, and `change` is not called.
#[inline]
pub fn record_memory(driver: &Arc<dyn Driver>, change: impl FnOnce() -> MemoryChange) {
    if MEMORY.load(Ordering::Relaxed) > 0 {
        memory_changed(driver, change());
    }
}

#[cold]
fn memory_changed(driver: &Arc<dyn Driver>, change: MemoryChange) {
    let when = Instant::now();
    for recording in recordings().iter().filter(|recording| recording.is_of(driver)) {
        recording.memory(change, when);
    }
}
