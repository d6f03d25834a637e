//! Errors in C's form: a status, and the calling thread's last message.
//!
//! [`answer`] wraps every exported function. It turns an error into a status and keeps the message for `thalweg_error_message`.
//! It also catches panics, so that nothing unwinds into C. A panic is our bug, so it is reported on standard error at once, since
//! a caller may ignore statuses.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use thalweg_memory::{AllocationError, SettingsError};

/// The result of an exported function. The numbers are those of the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Status {
    /// Success.
    Ok = 0,
    /// Out of memory: the caller may free memory and try again.
    OutOfMemory = 1,
    /// Invalid arguments.
    Invalid = 2,
    /// The call is not possible during a capture.
    Capture = 3,
    /// The CUDA driver returned an error.
    Driver = 4,
    /// A bug of this library. The message has the location.
    Panic = 5,
    /// The process is a forked child of one that uses CUDA.
    Forked = 6,
}

/// The reason why a call failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    status: Status,
    message: String,
}

/// The outcome of a call.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(status: Status, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Status::Invalid, message)
    }

    pub(crate) fn forked(call: &str) -> Self {
        let message = format!(
            "{call}: this process was forked from one that uses CUDA, and cannot use it; start workers with the spawn method, \
             or fork before the first use of a GPU"
        );
        Self::new(Status::Forked, message)
    }

    /// Returns the kind of the failure.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Returns a message for people.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl From<AllocationError> for Error {
    fn from(error: AllocationError) -> Self {
        let status = match () {
            () if error.is_out_of_memory() => Status::OutOfMemory,
            () if error.is_capture() => Status::Capture,
            () if error.is_invalid_argument() => Status::Invalid,
            () => Status::Driver,
        };
        // PyTorch's words, which programs search for.
        let prefix = if status == Status::OutOfMemory { "CUDA " } else { "" };
        Self::new(status, format!("{prefix}{error}"))
    }
}

impl From<thalweg_runtime::Error> for Error {
    fn from(error: thalweg_runtime::Error) -> Self {
        let status = match () {
            () if error.is_out_of_memory() => Status::OutOfMemory,
            () if error.is_capture() => Status::Capture,
            () if error.is_invalid_argument() => Status::Invalid,
            () => Status::Driver,
        };
        Self::new(status, error.to_string())
    }
}

impl From<thalweg_driver::Error> for Error {
    fn from(error: thalweg_driver::Error) -> Self {
        thalweg_runtime::Error::from(error).into()
    }
}

impl From<SettingsError> for Error {
    fn from(error: SettingsError) -> Self {
        Self::invalid(error.to_string())
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// Runs the body of the exported function `call`.
#[inline]
pub(crate) fn answer(call: &'static str, body: impl FnOnce() -> Result<()>) -> Status {
    // The state after a panic is valid: the allocators guarantee that themselves, and this crate changes its own tables in single
    // steps.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::Ok,
        Ok(Err(error)) => refuse(error),
        Err(panic) => report_panic(call, &*panic),
    }
}

#[cold]
fn refuse(error: Error) -> Status {
    keep_message(error.message);
    error.status
}

#[cold]
fn report_panic(call: &str, panic: &(dyn Any + Send)) -> Status {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    let message = format!("{call} failed by a bug of Thalweg: {text}. Please report it with this message.");
    // `eprintln!` would panic if standard error is closed, and no code around this catches panics.
    let _ = writeln!(std::io::stderr(), "thalweg: {message}");
    keep_message(message);
    Status::Panic
}

fn keep_message(mut message: String) {
    message.retain(|character| character != '\0');
    let message = CString::new(message).expect("zeros were taken out");
    // A thread that is ending has no caller left.
    let _ = MESSAGE.try_with(|last| *last.borrow_mut() = message);
}

/// Returns the calling thread's last message; valid until its next failure.
pub(crate) fn last_message() -> *const c_char {
    MESSAGE.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"the thread is ending".as_ptr())
}

/// Returns a text from C.
///
/// # Safety
/// `text` is null or points to a text that ends with a zero and does not change while the result is used.
pub(crate) unsafe fn text_of<'a>(what: &str, text: *const c_char) -> Result<&'a str> {
    if text.is_null() {
        return Err(Error::invalid(format!("{what} is a null pointer")));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Error::invalid(format!("{what} is not UTF-8")))
}
