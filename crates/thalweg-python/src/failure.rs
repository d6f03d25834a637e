//! Conversion of errors and panics to Python exceptions.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pyo3::create_exception;
use pyo3::exceptions::{
    PyIndexError, PyNotImplementedError, PyRecursionError, PyRuntimeError, PyTypeError, PyUserWarning,
    PyValueError,
};
use pyo3::prelude::*;
use thalweg::warning::set_warning_handler;
use thalweg::{Error, ErrorClass};
use thalweg_lock::Mutex;

create_exception!(
    thalweg,
    OutOfMemoryError,
    PyRuntimeError,
    "The exception of a device without free memory (`torch.cuda.OutOfMemoryError`)."
);

create_exception!(
    thalweg.utils.checkpoint,
    CheckpointError,
    PyRuntimeError,
    "The exception of a checkpointed function that saves other tensors when it runs again (`torch.utils.checkpoint.CheckpointError`)."
);

create_exception!(
    thalweg.linalg,
    LinAlgError,
    PyRuntimeError,
    "The exception of a matrix whose values an algorithm cannot work with, such as a singular one (`torch.linalg.LinAlgError`)."
);

/// Returns the exception that PyTorch would raise for an error.
pub fn exception(error: &Error) -> PyErr {
    let text = message(error);
    if error.is_out_of_memory() {
        return OutOfMemoryError::new_err(text);
    }
    if error.is_recomputation() {
        return CheckpointError::new_err(text);
    }
    match error.class() {
        ErrorClass::Index => PyIndexError::new_err(text),
        ErrorClass::Value => PyValueError::new_err(text),
        ErrorClass::NotImplemented => PyNotImplementedError::new_err(text),
        ErrorClass::LinearAlgebra => LinAlgError::new_err(text),
        ErrorClass::Runtime => PyRuntimeError::new_err(text),
    }
}

/// Names of the Rust interface in messages, with their Python equivalents.
const IN_PYTHON: &[(&str, &str)] = &[
    ("Specify `BackwardOptions::retain_graph`", "Specify retain_graph=True"),
    ("`Buffer::duplicate`", "`clone`"),
    (" and call `release_outputs` on its graph", ""),
    (" (`OverwritePolicy::Preserve`)", ""),
    ("`LiveOutputs::Clone`", "copies"),
    ("make them with `Event::with_timing`", "make them with `Event(enable_timing=True)`"),
    ("`BackwardOptions::retain_graph`", "`retain_graph=True`"),
    ("`Stream::new`", "`cuda.Stream()`"),
    ("`MemPool::for_collectives`", "the Rust crate"),
    ("`Tensor::empty`", "`empty`"),
    ("`to_vec`", "`tolist`"),
    ("`to_dtype`", "`.to(dtype)`"),
    ("`to_device`", "`.to(device)`"),
    ("`contiguous`", "`.contiguous()`"),
    ("`detach`", "`.detach()`"),
    ("`enabled: false`", "`enabled=False`"),
    ("to_vec([", "tolist(["),
    ("i([", "__getitem__(["),
    ("assign([", "__setitem__(["),
];

/// Replaces Rust names in a text by their Python equivalents. Only entire names are replaced.
fn in_python(mut text: String) -> String {
    for (rust, python) in IN_PYTHON {
        let is_name = rust.ends_with("([");
        let mut from = 0;
        while let Some(place) = text[from..].find(rust).map(|place| from + place) {
            let before = text[..place].chars().next_back();
            let is_part = before.is_some_and(|before| before.is_alphanumeric() || before == '_');
            from = place + rust.len();
            if !(is_name && is_part) {
                text.replace_range(place..from, python);
                from = place + python.len();
            }
        }
    }
    text
}

/// Returns an error's message for Python users: without source lines of Rust, because the traceback has the program's own lines,
/// and without names of Rust.
fn message(error: &Error) -> String {
    in_python(without_lines_of_rust(&error.to_string()))
}

/// Removes ` at FILE.rs:LINE` from a text, and the lines that become empty.
fn without_lines_of_rust(text: &str) -> String {
    /// Returns the punctuation that follows a location in a Rust file, or `None` if the word is not a location.
    fn place_after(word: &str) -> Option<&str> {
        let (_, number) = word.rsplit_once(".rs:")?;
        let signs = number.trim_start_matches(|letter: char| letter.is_ascii_digit());
        (signs.len() < number.len() && signs.chars().all(|sign| ",;.:)".contains(sign))).then_some(signs)
    }
    let mut lines: Vec<String> = Vec::new();
    for line in text.split('\n') {
        let mut kept = String::new();
        for (number, word) in line.split(' ').enumerate() {
            match place_after(word) {
                Some(signs) if kept.ends_with(" at") || kept == "at" => {
                    kept.truncate(kept.len() - "at".len());
                    kept.truncate(kept.trim_end().len());
                    kept.push_str(signs);
                }
                _ => {
                    kept.push_str(if number == 0 { "" } else { " " });
                    kept.push_str(word);
                }
            }
        }
        let is_empty = ["", "noticed", "called"].contains(&kept.trim());
        if !is_empty || line.trim().is_empty() {
            lines.push(kept);
        }
    }
    lines.join("\n")
}

/// Runs a function and converts a panic to a `RuntimeError`.
pub fn guarded<T>(function: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(function)).unwrap_or_else(|panic| Err(panicked(&*panic)))
}

/// Returns the exception for a panic.
fn panicked(panic: &(dyn Any + Send)) -> PyErr {
    let text = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (None, Some(text)) => text.as_str(),
        (None, None) => "without a message",
    };
    PyRuntimeError::new_err(format!(
        "a bug of Thalweg: an assertion failed ({text}); please report it with the call that led here"
    ))
}

/// Runs a call of the layers below without the interpreter lock. Errors and panics become exceptions.
pub fn run<T: Send>(py: Python<'_>, call: impl FnOnce() -> thalweg::Result<T> + Send) -> PyResult<T> {
    attempt(py, call)?.map_err(|error| exception(&error))
}

/// Runs a call as [`run`] does, but returns its error unchanged, unless the error is a Python exception, which is raised.
pub fn attempt<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> thalweg::Result<T> + Send,
) -> PyResult<thalweg::Result<T>> {
    let (_stack, _line) = (crate::history::noted(py), crate::lines::noted(py));
    let (answer, interrupted) = py.detach(|| with_signals(|| catch_unwind(AssertUnwindSafe(call))));
    if let Some(exception) = interrupted {
        return Err(exception);
    }
    if HAS_WARNINGS.load(Ordering::Relaxed) {
        let shown = show_warnings(py);
        match (shown, &answer) {
            (Err(raised), Ok(Ok(_))) => return Err(raised),
            // The call returns an error of its own, which takes precedence.
            (Err(raised), _) => raised.print(py),
            (Ok(()), _) => {}
        }
    }
    match answer {
        Ok(Ok(value)) => {
            // An exception that the layers below have handled, such as the one that ends a checkpointed function early.
            let _left = RAISED.take();
            Ok(Ok(value))
        }
        Ok(Err(error)) => raised(&error).map_or(Ok(Err(error)), Err),
        Err(panic) => Err(panicked(&*panic)),
    }
}

thread_local! {
    /// The exception that a signal handler raised during a call of the layers below.
    static INTERRUPTED: Interrupted = const { Interrupted { calls: Cell::new(0), exception: RefCell::new(None) } };
}

/// The number of calls of the layers below that a thread is in, and the exception of a signal.
struct Interrupted {
    calls: Cell<usize>,
    exception: RefCell<Option<PyErr>>,
}

/// A guard that ends a call.
struct CallGuard<'a>(&'a Cell<usize>);

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Runs a call, and returns its result with the exception of a signal that arrived while it waited.
fn with_signals<T>(call: impl FnOnce() -> T) -> (T, Option<PyErr>) {
    INTERRUPTED.with(|interrupted| {
        interrupted.calls.set(interrupted.calls.get() + 1);
        let guard = CallGuard(&interrupted.calls);
        let answer = call();
        drop(guard);
        (answer, interrupted.exception.take())
    })
}

/// Lets Python signals, such as that of Ctrl-C, interrupt the waits of calls. A wait outside of a call, such as one in the
/// destructor of an object, has no caller that could receive the exception, so it is not interrupted.
pub fn watch_signals() {
    thalweg::driver::set_interruption(|| {
        INTERRUPTED.with(|interrupted| {
            if interrupted.calls.get() == 0 {
                return false;
            }
            match Python::try_attach(|py| py.check_signals()) {
                Some(Err(exception)) => {
                    interrupted.exception.replace(Some(exception));
                    true
                }
                // A handler may have raised before, in a wait whose error was handled: the call must end.
                _ => interrupted.exception.borrow().is_some(),
            }
        })
    });
}

/// Warnings of calls that have not returned to Python yet.
static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Whether [`WARNINGS`] is not empty.
static HAS_WARNINGS: AtomicBool = AtomicBool::new(false);

/// Collects warnings until the call that caused them returns to Python.
pub fn keep_warnings() {
    set_warning_handler(|text| {
        WARNINGS.lock().push(text.to_owned());
        HAS_WARNINGS.store(true, Ordering::Relaxed);
    });
}

/// Passes warnings to Python's `warnings`, whose filters may turn one into an exception.
#[cold]
fn show_warnings(py: Python<'_>) -> PyResult<()> {
    let texts = {
        HAS_WARNINGS.store(false, Ordering::Relaxed);
        std::mem::take(&mut *WARNINGS.lock())
    };
    let class = py.get_type::<PyUserWarning>();
    for text in texts {
        let text = CString::new(text).unwrap_or_default();
        PyErr::warn(py, &class, &text, 1)?;
    }
    Ok(())
}

thread_local! {
    /// The nesting depth of Python functions that the layers below have called on this thread.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// The last exception of a Python function that the layers below called, with its number.
    static RAISED: RefCell<Option<(u64, PyErr)>> = const { RefCell::new(None) };
}

/// The maximum nesting depth of Python functions that the layers below call. Each level uses stack of the process that the
/// interpreter's own recursion limit does not count.
const DEEPEST: usize = 256;

/// A guard that restores the depth.
struct Back(usize);

impl Drop for Back {
    fn drop(&mut self) {
        DEPTH.set(self.0);
    }
}

/// The text before the number in an error that is a Python exception.
const MARK: &str = "an exception of Python, number ";

/// Calls Python from the layers below, with the interpreter lock. An exception becomes an error there, and the original exception
/// again when that error returns to Python ([`run`]).
pub fn call_python<T>(function: impl FnOnce(Python<'_>) -> PyResult<T>) -> thalweg::Result<T> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let depth = DEPTH.get();
    DEPTH.set(depth + 1);
    let _back = Back(depth);
    let called = Python::try_attach(|py| match depth < DEEPEST {
        true => function(py),
        false => Err(PyRecursionError::new_err(format!(
            "functions of Python are called within {DEEPEST} others from below"
        ))),
    });
    match called {
        Some(Ok(value)) => Ok(value),
        Some(Err(error)) => {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let _earlier = RAISED.replace(Some((number, error)));
            Err(Error::invalid(format!("{MARK}{number};")))
        }
        None => Err(Error::invalid("the interpreter ends, and calls no functions any more")),
    }
}

/// Returns the Python exception that an error carries.
fn raised(error: &Error) -> Option<PyErr> {
    let (number, exception) = RAISED.take()?;
    let is_that = error.is_invalid_argument() && error.to_string().contains(&format!("{MARK}{number};"));
    is_that.then_some(exception)
}

/// Returns a `RuntimeError`.
pub fn runtime(text: impl Into<String>) -> PyErr {
    PyRuntimeError::new_err(text.into())
}

/// Returns a `TypeError`.
pub fn type_error(text: impl Into<String>) -> PyErr {
    PyTypeError::new_err(text.into())
}

/// Returns a `ValueError`.
pub fn value_error(text: impl Into<String>) -> PyErr {
    PyValueError::new_err(text.into())
}

/// Returns the exception for a feature of PyTorch that Thalweg leaves out.
pub fn left_out(text: impl Into<String>) -> PyErr {
    PyNotImplementedError::new_err(text.into())
}

/// Panics, for the test that a panic becomes an exception.
#[pyfunction]
fn _panic(py: Python<'_>) -> PyResult<()> {
    run(py, || -> thalweg::Result<()> { panic!("asked for") })
}

/// Adds the exceptions.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("OutOfMemoryError", module.py().get_type::<OutOfMemoryError>())?;
    module.add("_LinAlgError", module.py().get_type::<LinAlgError>())?;
    module.add("_CheckpointError", module.py().get_type::<CheckpointError>())?;
    module.add_function(wrap_pyfunction!(_panic, module)?)
}
