//! Errors and panics as Python's exceptions.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::create_exception;
use pyo3::exceptions::{
    PyIndexError, PyNotImplementedError, PyRecursionError, PyRuntimeError, PyTypeError, PyUserWarning,
    PyValueError,
};
use pyo3::prelude::*;
use thalweg::Error;
use thalweg::warning::set_warning_handler;

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

/// Returns the exception of an error, as PyTorch would raise it.
pub fn exception(error: &Error) -> PyErr {
    let text = message(error);
    if error.is_out_of_memory() {
        return OutOfMemoryError::new_err(text);
    }
    if error.is_index() {
        return PyIndexError::new_err(text);
    }
    if error.is_recomputation() {
        return CheckpointError::new_err(text);
    }
    PyRuntimeError::new_err(text)
}

/// Returns the text of an error without the line of this crate that made the call: the traceback has the program's own.
fn message(error: &Error) -> String {
    let text = error.to_string();
    match error.location() {
        Some(location) => {
            let place = format!("at {}:{}", location.file(), location.line());
            text.replace(&format!("\n  noticed {place}"), "").replace(&format!("\n  {place}"), "")
        }
        None => text,
    }
}

/// Runs a function whose panic becomes a `RuntimeError`.
pub fn guarded<T>(function: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(function)).unwrap_or_else(|panic| Err(panicked(&*panic)))
}

/// Returns the exception of a panic.
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

/// Runs a call of the layers below: without the interpreter lock, its error an exception, its panic as well.
pub fn run<T: Send>(py: Python<'_>, call: impl FnOnce() -> thalweg::Result<T> + Send) -> PyResult<T> {
    attempt(py, call)?.map_err(|error| exception(&error))
}

/// Runs a call as [`run`] does, but leaves its error; one that is an exception of Python is that exception.
pub fn attempt<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> thalweg::Result<T> + Send,
) -> PyResult<thalweg::Result<T>> {
    let _stack = crate::history::noted(py);
    let (answer, interrupted) = py.detach(|| with_signals(|| catch_unwind(AssertUnwindSafe(call))));
    if let Some(exception) = interrupted {
        return Err(exception);
    }
    if HAS_WARNINGS.load(Ordering::Relaxed) {
        show_warnings(py)?;
    }
    match answer {
        Ok(Ok(value)) => {
            // An exception that the layers below have dealt with, as that which ends a checkpointed function early.
            let _left = RAISED.take();
            Ok(Ok(value))
        }
        Ok(Err(error)) => raised(&error).map_or(Ok(Err(error)), Err),
        Err(panic) => Err(panicked(&*panic)),
    }
}

thread_local! {
    /// The exception that a signal has raised during a call of the layers below.
    static INTERRUPTED: Interrupted = const { Interrupted { calls: Cell::new(0), exception: RefCell::new(None) } };
}

/// The calls of the layers below that a thread is in, and the exception of a signal.
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

/// Runs a call, and returns the exception of a signal that came while it waited as well.
fn with_signals<T>(call: impl FnOnce() -> T) -> (T, Option<PyErr>) {
    INTERRUPTED.with(|interrupted| {
        interrupted.calls.set(interrupted.calls.get() + 1);
        let guard = CallGuard(&interrupted.calls);
        let answer = call();
        drop(guard);
        (answer, interrupted.exception.take())
    })
}

/// Lets signals of Python, such as that of Ctrl-C, interrupt the waits of calls. (A wait that comes from elsewhere, such as the end of an
/// object, has nobody who would get the exception: it is not interrupted.)
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
                // A handler may have raised before, in a wait whose refusal was dealt with: the call is to end.
                _ => interrupted.exception.borrow().is_some(),
            }
        })
    });
}

/// Warnings of calls that are not back in Python yet.
static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Whether there are any.
static HAS_WARNINGS: AtomicBool = AtomicBool::new(false);

/// Keeps warnings until the call that they come from is back in Python.
pub fn keep_warnings() {
    set_warning_handler(|text| {
        WARNINGS.lock().unwrap_or_else(PoisonError::into_inner).push(text.to_owned());
        HAS_WARNINGS.store(true, Ordering::Relaxed);
    });
}

/// Hands warnings to Python's `warnings`, whose filters may make an exception of one.
#[cold]
fn show_warnings(py: Python<'_>) -> PyResult<()> {
    let texts = {
        HAS_WARNINGS.store(false, Ordering::Relaxed);
        std::mem::take(&mut *WARNINGS.lock().unwrap_or_else(PoisonError::into_inner))
    };
    let class = py.get_type::<PyUserWarning>();
    for text in texts {
        let text = CString::new(text).unwrap_or_default();
        PyErr::warn(py, &class, &text, 1)?;
    }
    Ok(())
}

thread_local! {
    /// The number of functions of Python that this thread runs that were called from below.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// The exception that a function of Python raised last when it was called from below, with its number.
    static RAISED: RefCell<Option<(u64, PyErr)>> = const { RefCell::new(None) };
}

/// The greatest depth of functions of Python that are called from below: each level has frames on the stack of the process, which the
/// interpreter's own limit knows nothing of.
const DEEPEST: usize = 256;

/// A guard that puts the depth back.
struct Back(usize);

impl Drop for Back {
    fn drop(&mut self) {
        DEPTH.set(self.0);
    }
}

/// The part of the text of an error that is an exception of Python, in front of its number.
const MARK: &str = "an exception of Python, number ";

/// Calls Python from the layers below, with the interpreter lock. An exception is an error there, and the exception itself again where
/// that error comes back to Python ([`run`]).
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

/// Returns the exception of Python that an error is.
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

/// Returns the exception of what PyTorch has and Thalweg leaves out.
pub fn left_out(text: impl Into<String>) -> PyErr {
    PyNotImplementedError::new_err(text.into())
}

/// Panics, for the test that a panic is an exception.
#[pyfunction]
fn _panic(py: Python<'_>) -> PyResult<()> {
    run(py, || -> thalweg::Result<()> { panic!("asked for") })
}

/// Adds the exceptions.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("OutOfMemoryError", module.py().get_type::<OutOfMemoryError>())?;
    module.add("_CheckpointError", module.py().get_type::<CheckpointError>())?;
    module.add_function(wrap_pyfunction!(_panic, module)?)
}
