//! Deferred loops: inside a [`Region`], loops wait in a [window](window) until something could notice, and then run as a program.
//!
//! The function of a compiled region runs as it is written, each time. What it computes by loops is only noted: the loop, its
//! operands, and results whose memory is allocated later. The wait ends when the host waits, or with the region, and for loops that
//! have something to do with it when a command of another kind is queued, or an address is read; the others wait on. The loops noted
//! until then are a [`Segment`](thalweg_graph::Segment), and which of its results are read afterwards is known exactly: those whose
//! storage is still alive. Its program is planned once, and kept.
//!
//! Some loops wait on beyond that, and beyond the region: those that only widen numbers, if nothing else of the region needs the result in
//! memory ([`Window::queue`]), and those that compute again what only saved tensors hold ([`again`]). A backward pass then reads what
//! they read, or they run before their results are read.
//!
//! # Invariants
//! - Nothing notices the deferral: before every call that could, the runtime [queues what was deferred](thalweg_runtime::queue_deferred),
//!   and so does a storage without memory before it returns an address ([`Promise`]).
//! - Deferred loops of a thread belong to one stream: that on which they would have been queued. A loop that waits writes what only
//!   loops of its own thread read without an address; other threads' loops make it run first.
//! - Memory is given back to the allocator only if no waiting loop has its address ([`Window::forget`]).
//! - A program that failed leaves its results without memory: every later use of them reports the failure.

mod again;
mod explain;
mod flush;
mod gathered;
mod launches;
mod taken;
mod waiters;
mod window;

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use thalweg_runtime::{
    Before, Buffer, Error, Label, QueueDeferred, Result, Stream, queue_deferred, set_deferred,
};

use crate::storage::{Promise, Storage};

pub(crate) use self::again::{is_large, set_recomputed};
use self::flush::End;
pub(crate) use self::gathered::GatheredRows;
pub(crate) use self::launches::SharedLaunch;
use self::taken::Taken;
pub(crate) use self::window::Deferral;
use self::window::Window;

thread_local! {
    /// The number of regions that the thread is in; 0 in a part that is excluded.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Whether the thread runs a node of a backward pass.
    static BACKWARD: Cell<bool> = const { Cell::new(false) };
    /// The window of this thread.
    static WINDOW: RefCell<Option<Arc<Window>>> = const { RefCell::new(None) };
    /// The failure of deferred work that a caller could not be told: the next command reports it.
    static FAILED: RefCell<Option<Error>> = const { RefCell::new(None) };
    /// Whether the outermost region ends.
    static ENDS: Cell<bool> = const { Cell::new(false) };
    static COUNTERS: Cell<Counters> = const { Cell::new(Counters::NONE) };
}

/// Counts of the work of a thread's compiled functions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// The loops that waited.
    pub loops: u64,
    /// The segments that they formed.
    pub segments: u64,
    /// The kernels by which the segments were computed.
    pub kernels: u64,
    /// The programs that were planned: one per segment that was new.
    pub programs: u64,
    /// The loops that waited while a command of another kind was queued.
    pub passed: u64,
    /// The loops that were left out since another one computed the same.
    pub repeated: u64,
    /// The results that were not kept for a backward pass, since loops can compute them again.
    pub recomputed: u64,
    /// The bytes that the last segment allocated, as planned: the most that it needed at a time.
    pub planned_bytes: u64,
}

impl Counters {
    const NONE: Self = Self {
        loops: 0,
        segments: 0,
        kernels: 0,
        programs: 0,
        passed: 0,
        repeated: 0,
        recomputed: 0,
        planned_bytes: 0,
    };
}

/// Returns counts of the work of this thread's compiled functions so far.
pub(crate) fn counters() -> Counters {
    COUNTERS.get()
}

fn count(change: impl FnOnce(&mut Counters)) {
    let mut counters = COUNTERS.get();
    change(&mut counters);
    COUNTERS.set(counters);
}

/// Forgets the programs of this thread.
pub(crate) fn forget_programs() {
    flush::forget_programs();
}

/// Returns whether this thread defers its loops.
#[inline]
pub(crate) fn is_on() -> bool {
    DEPTH.get() > 0
}

/// A part of a program whose loops are deferred.
#[must_use = "loops are deferred while the region lives"]
#[derive(Debug)]
pub struct Region {
    former: u32,
    _not_send: PhantomData<*const ()>,
}

impl Region {
    /// Begins a region.
    pub fn enter() -> Self {
        let former = DEPTH.get();
        DEPTH.set(former + 1);
        Self { former, _not_send: PhantomData }
    }

    /// Begins a part that is excluded from the regions around it.
    pub fn leave() -> Result<Self> {
        queue_deferred(Label::here("excluded part"))?;
        Ok(Self { former: DEPTH.replace(0), _not_send: PhantomData })
    }

    /// Ends the region. If it is the outermost one, queues the work that it deferred.
    pub fn end(self) -> Result<()> {
        match self.former {
            0 => queue_at_end(),
            _ => Ok(()),
        }
    }
}

/// Queues the work that the outermost region deferred.
fn queue_at_end() -> Result<()> {
    let window = window();
    again::forget_saved(&window, true);
    await_commands(&window);
    ENDS.set(true);
    let queued = queue_deferred(Label::here("the end of a compiled region"));
    ENDS.set(false);
    queued
}

impl Drop for Region {
    fn drop(&mut self) {
        DEPTH.set(self.former);
        if self.former == 0 {
            // After `end` nothing is left; otherwise the region failed, and its own error is reported.
            let _ = queue_at_end();
        }
    }
}

/// Runs a function as a part of a backward pass, whose results are not computed again.
pub(crate) fn in_backward<T>(function: impl FnOnce() -> T) -> T {
    struct Former(bool);
    impl Drop for Former {
        fn drop(&mut self) {
            BACKWARD.set(self.0);
        }
    }
    let _former = Former(BACKWARD.replace(true));
    function()
}

/// Returns whether this thread runs a part of a backward pass.
fn is_backward() -> bool {
    BACKWARD.get()
}

/// Returns the window of this thread.
fn window() -> Arc<Window> {
    WINDOW.with_borrow_mut(|window| Arc::clone(window.get_or_insert_with(Arc::default)))
}

/// Returns a storage on a stream whose memory is allocated when it is first needed.
pub(crate) fn promised(stream: &Stream, bytes: u64, label: Label) -> Result<Storage> {
    let nothing = Buffer::labelled(stream, 0, label)?;
    let promise = Memory { window: window(), stream: stream.clone(), bytes, label, failure: OnceLock::new() };
    Ok(Storage::promised(nothing, Box::new(promise)))
}

/// Defers a loop if it may wait. Returns whether it does.
///
/// # Errors
/// Those of loops that cannot wait with it, and that of an operand whose program failed.
pub(crate) fn put_off(deferral: Deferral) -> Result<bool> {
    if deferral.is_refused() {
        return Ok(false);
    }
    for (storage, _) in deferral.read.iter().chain(&deferral.written) {
        storage.keep_of_other_thread();
        storage.check_promise()?;
    }
    let window = window();
    again::forget_saved(&window, false);
    if window.is_of_another_stream(&deferral.stream) {
        queue_deferred(deferral.label)?;
    } else if window.is_full() {
        queue_taken(&window, window.take_but_again(), End::Call(deferral.label))?;
    }
    count(|counters| counters.loops += 1);
    deferral.written.iter().for_each(|(storage, _)| storage.count_write());
    window.add(deferral);
    set_deferred(Some(queue));
    Ok(true)
}

/// Queues the deferred work of this thread as far as it must run before a call with this label.
fn queue(label: Label, before: Before<'_>) -> Result<()> {
    let (window, ends) = (window(), ENDS.take());
    let taken = match before {
        Before::Anything if ends => window.take_but_again(),
        Before::Anything | Before::Unlisted => window.take(),
        Before::Command { stream, accesses } => {
            let (taken, passed) = window.take_before_command(|own| own.key() == stream, accesses);
            count(|counters| counters.passed += passed);
            taken
        }
    };
    let end = if ends { End::Region(label) } else { End::Call(label) };
    let queued = queue_taken(&window, taken, end);
    match before {
        Before::Anything => {}
        Before::Unlisted => again::keep_all(),
        Before::Command { accesses, .. } => again::keep_written(accesses),
    }
    await_commands(&window);
    queued
}

/// Makes the runtime ask this thread before its commands if any could affect loops that wait or results that may be forgotten.
fn await_commands(window: &Window) {
    set_deferred((window.is_waiting() || again::has_candidates()).then_some(queue as QueueDeferred));
}

/// Queues loops that were taken from the window.
fn queue_taken(window: &Window, taken: Taken, end: End<'_>) -> Result<()> {
    set_deferred(None);
    let queued = window.queue(taken, end);
    await_commands(window);
    FAILED.take().map_or(queued, Err)
}

/// The promise of memory for results.
struct Memory {
    window: Arc<Window>,
    stream: Stream,
    bytes: u64,
    label: Label,
    /// The failure of the program that was to write the memory.
    failure: OnceLock<Error>,
}

impl Promise for Memory {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn is_of_this_thread(&self) -> bool {
        Arc::ptr_eq(&self.window, &window())
    }

    fn allocate(&self) -> Result<Buffer> {
        Buffer::labelled(&self.stream, self.bytes, self.label)
    }

    fn fail(&self, error: &Error) {
        let _first = self.failure.set(error.clone());
    }

    fn check(&self) -> Result<()> {
        match self.failure.get() {
            Some(error) => Err(error.clone().context("an earlier command of a compiled function failed")),
            None => Ok(()),
        }
    }

    fn keep(&self, storage: &Storage) {
        let kept = || -> Result<()> {
            let taken = self.window.take_before_reading(storage);
            let former = set_deferred(None);
            let queued = self.window.queue(taken, End::Read(storage));
            set_deferred(former.or_else(|| again::has_candidates().then_some(queue as QueueDeferred)));
            queued?;
            if storage.is_pending() {
                self.check()?;
                storage.fulfil(self.allocate()?);
            }
            Ok(())
        };
        if let Err(error) = kept() {
            FAILED.set(Some(error));
            set_deferred(Some(queue));
        }
    }
}
