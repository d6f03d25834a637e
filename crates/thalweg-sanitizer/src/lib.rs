//! The sanitizer: a [`Driver`] around any other that finds races, lifetime bugs and reads of nothing.
//!
//! [`SanitizerDriver`] forwards every call to a driver, simulated or real, and keeps a model of its own of what the program has
//! ordered. It works when work is *submitted*: every order that CUDA promises is known then, so what it finds does not depend on
//! how the device happens to run things. It shares no code with the simulator: it must not repeat the simulator's mistakes.
//!
//! # What orders work
//! A stream's own order; the record of an event and the waits that found it; what a host thread has seen complete
//! (synchronisation, queries that answered `true`, blocking copies, calls that wait for the device) and whatever it submits
//! afterwards; the ties between the legacy default stream and blocking streams; the edges of a graph, its place in the launching
//! stream, and the launches of one executable, which follow one another; the data of collectives, which a rank receives after
//! what its givers did before. Nothing else does.
//!
//! # What it finds
//! Each [`FindingKind`] is explained in `docs/simulator.md`. For what the driver cannot see (blocks of a caching allocator, host
//! threads that wait for one another) it learns through [`Instrument`].
//!
//! # How it is built
//! - `clock`: vector clocks. `shadow`: what is known of every byte. `space`: which bytes an address means, with mappings of
//!   virtual memory followed, so that two addresses of one page are one byte.
//! - `bytes`: sets of bytes at regular distances. `model`: streams, events, hosts. `threads`: which thread is which
//!   host. `touch`: accesses. `chosen`: bytes that data chooses. `memory`, `blocks`: lifetimes. `graph`, `capture`, `bodies`, `update`: captured work.
//! - `collective`: which parts meet. `told`: programs that do not go through this driver.
//! - `finding` is the report, `report` writes it. `driver` is the trait, thin; `calls` is what its methods share.
//!
//! `model` is the hub of the one circle of modules: it holds what `blocks`, `bodies`, `collective` and `report` keep, and they, as
//! `touch`, change it.
//!
//! Memory is bounded by the layout of the program's memory: of each byte the last write is remembered, and those reads since
//! which do not come before another of them.
//!
//! # What it does not do
//! It sees no races between threads of one kernel, and believes the accesses that a launch declares. Memory that is imported
//! twice under two handles counts as two. An order that a program makes by other means than the driver's calls (a flag in
//! memory that a kernel spins on) is not seen.

#![forbid(unsafe_code)]

mod blocks;
mod bodies;
mod bytes;
mod calls;
mod capture;
mod chosen;
mod clock;
mod collective;
mod driver;
mod finding;
mod graph;
mod memory;
mod model;
mod report;
mod shadow;
mod site;
mod space;
mod threads;
mod told;
mod touch;
mod update;

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;
use thalweg_driver::{
    Access, BlockKind, Code, Driver, Error, HostClock, Instrument, Label, Result, StreamHandle, Touch,
    UseKind,
};

use self::calls::work;
use self::clock::Clock;
pub use self::finding::{Finding, FindingKind, History, Site, WIDTH, Work};
use self::model::Model;
pub use self::told::Completed;
pub use thalweg_driver::SourceLine;

/// A driver that checks what it is asked to do. See the [module](self).
///
/// Calls answer as the driver inside answers. Findings are collected, each once, and do not fail a call unless
/// [`fail_on_findings`](Self::fail_on_findings) says so.
pub struct SanitizerDriver {
    inner: Arc<dyn Driver>,
    model: Arc<Mutex<Model>>,
    /// The number of captures that are under way.
    captures: AtomicUsize,
    fails: AtomicBool,
    /// Whether host functions say which bytes data chooses.
    speaks: AtomicBool,
}

thread_local! {
    /// The label of the next call without one.
    static LABEL: Cell<Option<Label>> = const { Cell::new(None) };
    /// The place where the thread is in a program that tells of its work.
    static TOLD: Cell<Option<Site>> = const { Cell::new(None) };
}

impl SanitizerDriver {
    /// Returns a sanitizer around a driver. What happened before it is unknown to it, so put it there before the first call.
    pub fn new(inner: Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Self {
            model: Arc::new(Mutex::new(Model::new(inner.device_count()))),
            inner,
            captures: AtomicUsize::new(0),
            fails: AtomicBool::new(false),
            speaks: AtomicBool::new(false),
        })
    }

    /// Sets whether a call at which something is found answers [`Code::Finding`], with the report. The driver has done what it
    /// was asked for all the same.
    pub fn fail_on_findings(&self, fails: bool) {
        self.fails.store(fails, Ordering::Relaxed);
    }

    /// Looks up the line of the program at which each block is freed from now on, for reports of what comes later. This takes
    /// milliseconds each time; without it, the line of a drop is known where something is wrong with the drop itself.
    pub fn trace_drops(&self, traces: bool) {
        self.lock().traces_drops = traces;
    }

    /// Counts all host threads as one that is not introduced: for programs whose threads tell each other what the sanitizer does not
    /// hear of. Say so before the first call.
    pub fn count_threads_as_one(&self) {
        self.lock().threads_are_one = true;
    }

    /// Returns what was found so far, each once: in order, but for what depends on bytes that data chooses, which is found when the
    /// work has run. Races of work that has not run yet may be none ([`Finding::is_possible`]), and come last.
    pub fn findings(&self) -> Vec<Finding> {
        self.lock().found()
    }

    /// Calls `observer` with each finding, as it is found. It is called while the sanitizer is locked: it must not call the driver.
    pub fn on_finding(&self, observer: impl Fn(&Finding) + Send + Sync + 'static) {
        self.lock().findings.observer = Some(Box::new(observer));
    }

    /// Returns the driver inside.
    pub fn inner(&self) -> &Arc<dyn Driver> {
        &self.inner
    }

    fn lock(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the end of a call: its answer, or what was found since there were `before` findings.
    fn answer<T>(&self, model: &Model, before: usize, call: &'static str, value: T) -> Result<T> {
        match model.findings.list.get(before) {
            Some(finding) if self.fails.load(Ordering::Relaxed) => {
                Err(Error::new(Code::Finding, call, finding.to_string()))
            }
            _ => Ok(value),
        }
    }

    /// Returns the accesses of a launch with a ticket for each whose bytes data chooses; `None` where there is none, or where it
    /// will not be known which bytes they are.
    fn with_tickets(&self, stream: StreamHandle, accesses: &[Access]) -> Option<SmallVec<[Access; 4]>> {
        let is_chosen = |access: &Access| matches!(access.touch, Touch::Chosen { .. });
        // A launch of a graph runs what was captured once, many times.
        if !accesses.iter().any(is_chosen)
            || !self.speaks.load(Ordering::Relaxed)
            || self.capture_of(stream) != 0
        {
            return None;
        }
        let mut accesses: SmallVec<[Access; 4]> = SmallVec::from_slice(accesses);
        let mut model = self.lock();
        for access in &mut accesses {
            if let Touch::Chosen { ticket, .. } = &mut access.touch {
                let pieces = model.space.translate(access.start, access.bytes);
                // Before the work can run, and say what it is asked.
                *ticket = model.chosen.enter(pieces);
            }
        }
        Some(accesses)
    }

    /// Returns the capture that a stream takes part in, if any is under way; 0 for none.
    fn capture_of(&self, stream: StreamHandle) -> u64 {
        if self.captures.load(Ordering::Acquire) == 0 {
            return 0;
        }
        self.inner.stream_capture_info(stream).map_or(0, |info| info.id)
    }
}

impl Drop for SanitizerDriver {
    fn drop(&mut self) {
        self.lock().give_up();
    }
}

impl fmt::Debug for SanitizerDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SanitizerDriver").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// Returns the label that was left for the next call without one.
fn take_label() -> Option<Label> {
    LABEL.take()
}

impl Instrument for SanitizerDriver {
    fn block_allocated(&self, start: u64, bytes: u64, kind: BlockKind, stream: StreamHandle, label: Label) {
        if bytes == 0 {
            return;
        }
        let (host, capture) = (self.host(), self.capture_of(stream));
        let mut model = self.lock();
        let site = model.site_or(|model| model.sites.of(label));
        if let Some(stream) = model.stream(stream) {
            model.block_allocated((start, bytes), kind, stream, capture, host, site);
        }
    }

    fn block_freed(&self, start: u64, label: Option<Label>) {
        let host = self.host();
        let mut model = self.lock();
        let site = model.site_or(|model| model.sites.labelled(label, "drop"));
        model.block_freed(start, host, site);
    }

    fn block_recorded(&self, start: u64, stream: StreamHandle, kind: UseKind, label: Label) {
        let mut model = self.lock();
        let site = model.site_or(|model| model.sites.of(label));
        if let Some(stream) = model.stream(stream) {
            model.block_recorded(start, stream, kind, site);
        }
    }

    fn capture_vouched(&self, stream: StreamHandle) {
        let capture = self.capture_of(stream);
        self.lock().capture_vouched(capture);
    }

    fn stream_made(&self, stream: StreamHandle, label: Label) {
        let mut model = self.lock();
        let site = model.site_or(|model| model.sites.of(label));
        if let Some(stream) = model.stream(stream) {
            let made = &mut model.streams[stream as usize].made;
            *made = if *made == 0 { site } else { *made };
        }
    }

    fn name_stream(&self, stream: StreamHandle, name: &str) {
        let mut model = self.lock();
        if let Some(stream) = model.stream(stream) {
            name.clone_into(&mut model.streams[stream as usize].name);
        }
    }

    fn label_next(&self, label: Label) {
        LABEL.set(Some(label));
    }

    fn exchange_internal(&self, is_internal: bool) -> bool {
        threads::exchange_internal(is_internal)
    }

    fn introduce_thread(&self, name: &str) {
        self.introduce(name);
    }

    fn host_release(&self) -> HostClock {
        self.knows()
    }

    fn host_acquire(&self, clock: &HostClock) {
        // A clock of another kind comes from another driver, and says nothing here.
        let Some(clock) = clock.0.downcast_ref::<Clock>() else { return };
        let host = self.host();
        self.lock().tell(host, clock);
    }
}
