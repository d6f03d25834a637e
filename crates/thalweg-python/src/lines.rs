//! The Python lines that calls come from, for the labels of reports, refused replays and captures.
//!
//! While there is a reader of lines, the code that calls the layers below ([`crate::failure::run`]) or drops a tensor first notes
//! the current line of the program ([`noted`]), and every label that is made meanwhile contains it. Without a reader, this costs
//! one load.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, OnceLock};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyString;
use rustc_hash::FxHashMap;
use thalweg::driver::{CalledFrom, SourceLine, called_from};
use thalweg::runtime::Environment;
use thalweg_lock::Mutex;

/// The number of readers of lines: running checks, audits and captures. A program under `thalweg sim` has one.
static READERS: AtomicUsize = AtomicUsize::new(0);

/// The function that is called before a line is noted.
static BEFORE: OnceLock<fn()> = OnceLock::new();

/// Sets a function that is called before a line is noted, for work that other threads request but that a thread must do itself.
pub fn run_before(function: fn()) {
    let _already = BEFORE.set(function);
}

/// A guard: there is a reader of lines while it lives.
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

/// Notes that calls of this thread come from the Python line that runs now, until the result is dropped. Returns `None` without a
/// reader, or if the line is not known.
#[inline]
pub fn noted(py: Python<'_>) -> Option<CalledFrom> {
    if are_read() { note(py) } else { None }
}

/// Notes the current Python line while a tensor is dropped, which may happen on any thread and at any time.
#[inline]
pub fn noted_at_drop() -> Option<CalledFrom> {
    if are_read() { Python::try_attach(note).flatten() } else { None }
}

#[cold]
fn note(py: Python<'_>) -> Option<CalledFrom> {
    if let Some(function) = BEFORE.get() {
        function();
    }
    // A tensor may be dropped while an exception is propagating, which reading a frame must not change.
    let raised = PyErr::take(py);
    let line = line_of_program(py).unwrap_or_default();
    if let Some(raised) = raised {
        raised.restore(py);
    }
    line.map(called_from)
}

/// Returns the innermost Python line that is outside of this package.
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

/// Returns the innermost Python frame, or `None` if no Python code runs.
///
/// Calling `sys._getframe` from here is not equivalent: while the locals of a function that has returned are dropped, the
/// innermost frame in CPython 3.12 is one on the interpreter's stack that belongs to no object, and a frame object made for it
/// outlives its memory.
pub fn innermost_frame(py: Python<'_>) -> Option<Bound<'_, PyAny>> {
    // SAFETY: this thread is attached to the interpreter, as `py` proves. The reference is borrowed, and null if there is no
    // frame.
    unsafe { Bound::from_borrowed_ptr_or_opt(py, ffi::PyEval_GetFrame().cast()) }
}

/// Interned lines. They live as long as the process: they grow with the program's text, not with time.
#[derive(Default)]
struct InternedLines {
    files: HashSet<&'static str>,
    lines: FxHashMap<(usize, u32), &'static SourceLine>,
}

fn kept(file: &str, line: u32) -> &'static SourceLine {
    static KEPT: LazyLock<Mutex<InternedLines>> = LazyLock::new(Mutex::default);
    let InternedLines { files, lines } = &mut *KEPT.lock();
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

/// Adds a reader of lines for a program that runs under `thalweg sim`.
pub fn read_under_sim() {
    if Environment::get().sim_check.is_some() {
        std::mem::forget(Reader::new());
    }
}
