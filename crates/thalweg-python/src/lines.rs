//! The lines of Python that calls come from, in labels: of reports, of refused replays, of captures.
//!
//! One rule for all: while there is a reader of lines, the code that calls the layers below ([`crate::failure::run`]), or drops a tensor, says first which line
//! of the program that is ([`noted`]), and every label that is made meanwhile has it. Otherwise this is one load.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyString;
use rustc_hash::FxHashMap;
use thalweg::driver::{CalledFrom, SourceLine, called_from};
use thalweg::runtime::Environment;

/// The number of those who read lines: checks, audits and captures that run. A program under `thalweg sim` has one.
static READERS: AtomicUsize = AtomicUsize::new(0);

/// The function that runs before a line is noted.
static BEFORE: OnceLock<fn()> = OnceLock::new();

/// Has a function run before a line is noted: for what a thread must do itself, and learns from others.
pub fn run_before(function: fn()) {
    let _already = BEFORE.set(function);
}

/// A reader of lines, while it lives.
pub struct Reader(());

impl Reader {
    /// Creates a reader.
    pub fn new() -> Self {
        READERS.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        READERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns whether there is a reader of lines.
#[inline]
pub fn are_read() -> bool {
    READERS.load(Ordering::Relaxed) != 0
}

/// Says that calls of this thread come from the line of Python that runs now, until what this returns is dropped. `None` where no reader is,
/// and where no line is known.
#[inline]
pub fn noted(py: Python<'_>) -> Option<CalledFrom> {
    if are_read() { note(py) } else { None }
}

/// Says so while a tensor is dropped, which may be on any thread and at any time.
#[inline]
pub fn noted_at_drop() -> Option<CalledFrom> {
    if are_read() { Python::try_attach(note).flatten() } else { None }
}

#[cold]
fn note(py: Python<'_>) -> Option<CalledFrom> {
    if let Some(function) = BEFORE.get() {
        function();
    }
    // A tensor may be dropped while an exception is on its way, which asking for a frame must not change.
    let raised = PyErr::take(py);
    let line = line_of_program(py).unwrap_or_default();
    if let Some(raised) = raised {
        raised.restore(py);
    }
    line.map(called_from)
}

/// Returns the innermost line of Python that is not this package's.
fn line_of_program(py: Python<'_>) -> PyResult<Option<&'static SourceLine>> {
    static PACKAGE: OnceLock<String> = OnceLock::new();
    let package = match PACKAGE.get() {
        Some(package) => package,
        None => {
            let path: String = py.import("thalweg")?.getattr("__path__")?.get_item(0)?.extract()?;
            PACKAGE.get_or_init(|| format!("{path}/"))
        }
    };
    let Some(mut frame) = innermost_frame(py) else { return Ok(None) };
    while !frame.is_none() {
        let file = frame.getattr("f_code")?.getattr("co_filename")?;
        let file = file.cast::<PyString>()?.to_cow()?;
        if !file.starts_with(package.as_str()) && !file.starts_with("<frozen ") {
            // A line is None where the bytecode has none.
            return Ok(Some(kept(&file, frame.getattr("f_lineno")?.extract().unwrap_or(0))));
        }
        frame = frame.getattr("f_back")?;
    }
    Ok(None)
}

/// Returns the innermost frame of Python that runs; `None` where none does.
///
/// `sys._getframe`, called from here, is not the same: while the locals of a function that has returned are dropped, the innermost frame of
/// CPython 3.12 is one on the interpreter's stack that belongs to none, and an object of it outlives its memory.
pub fn innermost_frame(py: Python<'_>) -> Option<Bound<'_, PyAny>> {
    // SAFETY: this thread is attached to the interpreter, as `py` says. The reference is borrowed, and null where no frame is.
    unsafe { Bound::from_borrowed_ptr_or_opt(py, ffi::PyEval_GetFrame().cast()) }
}

/// Lines that were met. They live as long as the process: they grow with the program's text, not with time.
#[derive(Default)]
struct Kept {
    files: HashSet<&'static str>,
    lines: FxHashMap<(usize, u32), &'static SourceLine>,
}

fn kept(file: &str, line: u32) -> &'static SourceLine {
    static KEPT: LazyLock<Mutex<Kept>> = LazyLock::new(Mutex::default);
    let Kept { files, lines } = &mut *KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let file: &'static str = match files.get(file) {
        Some(known) => known,
        None => {
            let name: &'static str = Box::leak(Box::from(file));
            files.insert(name);
            name
        }
    };
    lines
        .entry((file.as_ptr().addr(), line))
        .or_insert_with(|| Box::leak(Box::new(SourceLine { file, line })))
}

/// Lets a program under `thalweg sim` have lines.
pub fn read_under_sim() {
    if Environment::get().sim_check.is_some() {
        std::mem::forget(Reader::new());
    }
}
