//! The sanitizer: a [`Driver`] that wraps any other and finds races, lifetime bugs and reads of uninitialised memory.
//!
//! [`SanitizerDriver`] forwards every call to a driver, simulated or real, and keeps a model of the orders that the program has
//! established. It checks work when it is *submitted*: every order that CUDA guarantees is known then, so its findings do not
//! depend on how the device happens to run the work. It shares no code with the simulator, so that it does not repeat the
//! simulator's mistakes.
//!
//! # Sources of order
//! The order of a stream; the record of an event and the waits for that record; everything that a host thread has seen complete
//! (synchronisation, queries that returned `true`, blocking copies, calls that wait for the device) before everything that it
//! submits afterwards; the implicit synchronisation between the legacy default stream and blocking streams; the edges of a graph,
//! its place in the launching stream, and the order of the launches of one executable; the data of collectives, which a rank
//! receives after the earlier work of the senders. Nothing else orders work.
//!
//! # What it finds
//! Each [`FindingKind`] is explained in `docs/simulator.md`. [`Instrument`] reports what the driver cannot see (blocks of a
//! caching allocator, host threads that wait for one another).
//!
//! # Modules
//! - `clock`: vector clocks. `shadow`: the state of every byte. `space`: the mapping from addresses to bytes, with mappings of
//!   virtual memory followed, so that two addresses of one page are one byte.
//! - `bytes`: sets of bytes at regular distances. `model`: streams, events, hosts. `threads`: host threads and their clocks.
//!   `touch`: accesses. `chosen`: bytes chosen by data. `memory`, `blocks`: lifetimes. `graph`, `capture`, `bodies`, `update`:
//!   captured work.
//! - `collective`: parts of collectives and their order. `reported`: programs that submit work past this driver.
//! - `finding` is the report, `report` writes it. `driver` implements the trait, thinly; `calls` has what its methods share.
//!
//! `model` is the hub of the only circle of modules: it contains the state of `blocks`, `bodies`, `collective` and `report`, and
//! these and `touch` change it.
//!
//! The sanitizer's memory is bounded by the layout of the program's memory: for each byte it remembers the last write, and those
//! later reads that do not come before another of them.
//!
//! # What it does not do
//! The sanitizer sees no races between threads of one kernel, and trusts the accesses that a launch declares. Memory that is
//! imported twice under two handles counts as two. An order that a program establishes by other means than the driver's calls (a
//! flag in memory that a kernel spins on) is not seen.

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
mod reported;
mod shadow;
mod site;
mod space;
mod threads;
mod touch;
mod update;

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use smallvec::SmallVec;
use thalweg_driver::{
    Access, BlockKind, Code, Driver, Error, HostClock, Instrument, Label, Result, StreamHandle, Touch,
    UseKind,
};
use thalweg_lock::Mutex;

use self::calls::work;
use self::clock::Clock;
pub use self::finding::{Finding, FindingKind, History, Site, WIDTH, Work};
use self::model::Model;
pub use self::reported::Completed;
pub use thalweg_driver::SourceLine;

/// A driver that checks the calls it forwards. See the [module](self).
///
/// Calls return the results of the inner driver. Findings are collected, each once, and do not fail a call unless
/// [`fail_on_findings`](Self::fail_on_findings) is set.
pub struct SanitizerDriver {
    inner: Arc<dyn Driver>,
    model: Arc<Mutex<Model>>,
    /// The number of captures under way.
    captures: AtomicUsize,
    fails: AtomicBool,
    /// Whether host functions report the bytes chosen by data.
    speaks: AtomicBool,
}

thread_local! {
    /// The label of the next call without one.
    static LABEL: Cell<Option<Label>> = const { Cell::new(None) };
    /// The position of the thread in a program that reports its work.
    static TOLD: Cell<Option<Site>> = const { Cell::new(None) };
}

impl SanitizerDriver {
    /// Returns a sanitizer that wraps a driver. It does not know what happened before, so wrap the driver before the first call.
    pub fn new(inner: Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Self {
            model: Arc::new(Mutex::new(Model::new(inner.device_count()))),
            inner,
            captures: AtomicUsize::new(0),
            fails: AtomicBool::new(false),
            speaks: AtomicBool::new(false),
        })
    }

    /// Sets whether a call that causes a finding returns [`Code::Finding`], with the report. The driver has executed the call all
    /// the same.
    pub fn fail_on_findings(&self, fails: bool) {
        self.fails.store(fails, Ordering::Relaxed);
    }

    /// Enables or disables looking up the source line of each free, for later reports. A lookup takes milliseconds; without it,
    /// the line of a drop is known only if something is wrong with the drop itself.
    pub fn trace_drops(&self, traces: bool) {
        self.model.lock().traces_drops = traces;
    }

    /// Treats all host threads as one unregistered thread. Use this when threads synchronise in ways that the sanitizer cannot
    /// observe. Call it before the first driver call.
    pub fn count_threads_as_one(&self) {
        self.model.lock().threads_are_one = true;
    }

    /// Returns the findings so far, each once, in order. Findings that depend on bytes chosen by data are found when the work has
    /// run. Possible races of work that has not run yet ([`Finding::is_possible`]) are last.
    pub fn findings(&self) -> Vec<Finding> {
        self.model.lock().found()
    }

    /// Calls `observer` with each finding, when it is found. It is called while the sanitizer is locked, so it must not call the
    /// driver.
    pub fn on_finding(&self, observer: impl Fn(&Finding) + Send + Sync + 'static) {
        self.model.lock().findings.observer = Some(Box::new(observer));
    }

    /// Returns the inner driver.
    pub fn inner(&self) -> &Arc<dyn Driver> {
        &self.inner
    }

    /// Returns the result of a call: its value, or the first finding since there were `before` findings.
    fn answer<T>(&self, model: &Model, before: usize, call: &'static str, value: T) -> Result<T> {
        match model.findings.list.get(before) {
            Some(finding) if self.fails.load(Ordering::Relaxed) => {
                Err(Error::new(Code::Finding, call, finding.to_string()))
            }
            _ => Ok(value),
        }
    }

    /// Returns the accesses of a launch, with a ticket for each access whose bytes are chosen by data. `None` if no access needs
    /// a ticket, or if the bytes will not be reported.
    fn with_tickets(&self, stream: StreamHandle, accesses: &[Access]) -> Option<SmallVec<[Access; 4]>> {
        let is_chosen = |access: &Access| matches!(access.touch, Touch::Chosen { .. });
        // A launch of a graph runs the captured work many times.
        if !accesses.iter().any(is_chosen)
            || !self.speaks.load(Ordering::Relaxed)
            || self.capture_of(stream) != 0
        {
            return None;
        }
        let mut accesses: SmallVec<[Access; 4]> = SmallVec::from_slice(accesses);
        let mut model = self.model.lock();
        for access in &mut accesses {
            if let Touch::Chosen { ticket, .. } = &mut access.touch {
                let pieces = model.space.translate(access.start, access.bytes);
                // Before the work can run and report its bytes.
                *ticket = model.chosen.enter(pieces);
            }
        }
        Some(accesses)
    }

    /// Returns the capture that a stream takes part in; 0 for none.
    fn capture_of(&self, stream: StreamHandle) -> u64 {
        if self.captures.load(Ordering::Acquire) == 0 {
            return 0;
        }
        self.inner.stream_capture_info(stream).map_or(0, |info| info.id)
    }
}

impl Drop for SanitizerDriver {
    fn drop(&mut self) {
        self.model.lock().give_up();
    }
}

impl fmt::Debug for SanitizerDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SanitizerDriver").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// Returns the label that was set for the next call without one.
fn take_label() -> Option<Label> {
    LABEL.take()
}

impl Instrument for SanitizerDriver {
    fn block_allocated(&self, start: u64, bytes: u64, kind: BlockKind, stream: StreamHandle, label: Label) {
        if bytes == 0 {
            return;
        }
        let (host, capture) = (self.host(), self.capture_of(stream));
        let mut model = self.model.lock();
        let site = model.site_or(|model| model.sites.of(label));
        if let Some(stream) = model.stream(stream) {
            model.block_allocated((start, bytes), kind, stream, capture, host, site);
        }
    }

    fn block_freed(&self, start: u64, label: Option<Label>) {
        let host = self.host();
        let mut model = self.model.lock();
        let site = model.site_or(|model| model.sites.labelled(label, "drop"));
        model.block_freed(start, host, site);
    }

    fn block_recorded(&self, start: u64, stream: StreamHandle, kind: UseKind, label: Label) {
        let mut model = self.model.lock();
        let site = model.site_or(|model| model.sites.of(label));
        if let Some(stream) = model.stream(stream) {
            model.block_recorded(start, stream, kind, site);
        }
    }

    fn capture_vouched(&self, stream: StreamHandle) {
        let capture = self.capture_of(stream);
        self.model.lock().capture_vouched(capture);
    }

    fn stream_made(&self, stream: StreamHandle, label: Label) {
        let mut model = self.model.lock();
        let site = model.site_or(|model| model.sites.of(label));
        if let Some(stream) = model.stream(stream) {
            let made = &mut model.streams[stream as usize].made;
            *made = if *made == 0 { site } else { *made };
        }
    }

    fn name_stream(&self, stream: StreamHandle, name: &str) {
        let mut model = self.model.lock();
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
        self.host_clock()
    }

    fn host_acquire(&self, clock: &HostClock) {
        // A clock of another type comes from another driver, and has no meaning here.
        let Some(clock) = clock.0.downcast_ref::<Clock>() else { return };
        let host = self.host();
        self.model.lock().tell(host, clock);
    }
}
