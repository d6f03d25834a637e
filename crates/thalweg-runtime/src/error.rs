//! The error type of all layers above the driver.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_driver::{Code, Label};
use thalweg_memory::{AllocationError, SettingsError};

/// An error of the runtime, with predicates instead of variants, and the context in which it happened.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: Kind,
    /// The contexts, from the innermost to the outermost.
    context: SmallVec<[Context; 2]>,
    suspects: Vec<Label>,
    location: Option<&'static Location<'static>>,
}

#[derive(Clone)]
enum Context {
    /// A description of the operation that failed, with its operands.
    Text(String),
    /// The call in which the error happened; there is at most one.
    Call(String),
}

#[derive(Clone, Debug, thiserror::Error)]
enum Kind {
    #[error("{}", in_words(.0))]
    Driver(thalweg_driver::Error),
    #[error("{0}")]
    OutOfMemory(String),
    #[error("{1}")]
    Invalid(ErrorClass, String),
    #[error("{0}")]
    Recomputation(String),
    #[error("{0}")]
    Capture(String),
    #[error("{0}")]
    Distributed(String),
    /// An index out of range: the text, and the call whose kernel detected it.
    #[error("{}: {}\n  called at {}:{}", .2.operator, .1, .2.source().file, .2.source().line)]
    OutOfRange(ErrorClass, String, Label),
}

/// The class of a refused request, named after PyTorch's exception.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ErrorClass {
    /// `RuntimeError`: most refusals.
    #[default]
    Runtime,
    /// `ValueError`: an argument of the right type whose value does not fit.
    Value,
    /// `IndexError`: a dimension or an index out of range, or a subscript that fits no tensor.
    Index,
    /// `NotImplementedError`: a dtype or a number of dimensions that the operator does not take.
    NotImplemented,
    /// `LinAlgError`: a matrix whose values the algorithm cannot work with, such as a singular one.
    LinearAlgebra,
}

/// The number of suspects that a message lists.
const LISTED_SUSPECTS: usize = 16;

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Makes the error of a request that cannot be served ([`Error::invalid`]), with a text that is written like that of [`format!`]. The
/// `Error` is the one in scope.
#[macro_export]
macro_rules! invalid {
    ($($text:tt)+) => {
        Error::invalid(::std::format!($($text)+))
    };
}

/// Returns from the function with the error that [`invalid!`] makes.
#[macro_export]
macro_rules! refuse {
    ($($text:tt)+) => {
        return ::std::result::Result::Err($crate::invalid!($($text)+))
    };
}

/// Expands to [`refuse!`] under a condition.
///
/// ```
/// # use thalweg_runtime::{Error, Result, refuse_if};
/// fn half(count: usize) -> Result<usize> {
///     refuse_if!(count % 2 != 0, "{count} elements have no half");
///     Ok(count / 2)
/// }
///
/// assert_eq!(half(4).unwrap(), 2);
/// assert!(half(3).unwrap_err().is_invalid_argument());
/// ```
#[macro_export]
macro_rules! refuse_if {
    ($condition:expr, $($text:tt)+) => {
        if $condition {
            $crate::refuse!($($text)+);
        }
    };
}

impl Error {
    /// Creates the error of a request that cannot be served. The text describes the problem, the values involved, and the remedy.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::of_class(ErrorClass::Runtime, text)
    }

    /// Creates the error of a request that cannot be served, with a class.
    pub fn of_class(class: ErrorClass, text: impl Into<String>) -> Self {
        Self::from_kind(Kind::Invalid(class, text.into()))
    }

    /// Creates the error of an argument whose value does not fit: PyTorch's `ValueError`.
    pub fn value(text: impl Into<String>) -> Self {
        Self::of_class(ErrorClass::Value, text)
    }

    /// Creates the error of a dimension or an index that is out of range, or of a subscript that fits no tensor: PyTorch's `IndexError`.
    pub fn index(text: impl Into<String>) -> Self {
        Self::of_class(ErrorClass::Index, text)
    }

    /// Creates the error of a dtype or a number of dimensions that an operator does not take: PyTorch's `NotImplementedError`.
    pub fn not_implemented(text: impl Into<String>) -> Self {
        Self::of_class(ErrorClass::NotImplemented, text)
    }

    /// Creates the error of a matrix whose values an algorithm cannot work with: PyTorch's `LinAlgError`.
    pub fn linear_algebra(text: impl Into<String>) -> Self {
        Self::of_class(ErrorClass::LinearAlgebra, text)
    }

    /// Creates the error of a checkpointed function that saves different tensors when it runs again: PyTorch's `CheckpointError`.
    pub fn recomputation(text: impl Into<String>) -> Self {
        Self::from_kind(Kind::Recomputation(text.into()))
    }

    /// Creates the error of a device without free memory.
    pub fn out_of_memory(text: impl Into<String>) -> Self {
        Self::from_kind(Kind::OutOfMemory(text.into()))
    }

    /// Creates the error of ranks that work together: one did not arrive in time, gave up, or cannot be reached.
    pub fn distributed(text: impl Into<String>) -> Self {
        Self::from_kind(Kind::Distributed(text.into()))
    }

    /// Creates the error of an index that a kernel found out of range: the text describes the index, the label names the operator
    /// and the line.
    pub(crate) fn out_of_range(class: ErrorClass, text: String, label: Label) -> Self {
        Self::from_kind(Kind::OutOfRange(class, text, label)).suspects(vec![label])
    }

    /// Creates the error of a call that is not possible while a stream captures.
    pub fn capture(text: impl Into<String>) -> Self {
        Self::from_kind(Kind::Capture(text.into()))
    }

    fn from_kind(kind: Kind) -> Self {
        Self(Arc::new(Inner { kind, context: SmallVec::new(), suspects: Vec::new(), location: None }))
    }

    fn edit(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Returns the error with a description of the operation during which it happened: the operator and its shapes.
    #[must_use]
    pub fn context(self, text: impl Into<String>) -> Self {
        self.edit(|inner| inner.context.push(Context::Text(text.into())))
    }

    /// Returns the error with the call in which it happened, `operator(operands)`, and its location. Calls that this call made
    /// are no longer named, because the user did not pass their operands.
    #[must_use]
    pub fn in_call(self, call: impl Into<String>, location: &'static Location<'static>) -> Self {
        let call = call.into();
        self.at(location).edit(|inner| {
            let operator = call.split('(').next().unwrap_or_default();
            inner.context.retain(|context| matches!(context, Context::Text(text) if text != operator));
            inner.context.push(Context::Call(call));
        })
    }

    /// Returns the error with the line of the user's code that made the call.
    #[must_use]
    pub fn at(self, location: &'static Location<'static>) -> Self {
        self.edit(|inner| inner.location = Some(location))
    }

    /// Returns the location of the call that returned this error, if it is known. For an asynchronous error it is the call that
    /// reported it.
    pub fn location(&self) -> Option<&'static Location<'static>> {
        self.0.location
    }

    /// Returns the error with the commands that may have caused it.
    #[must_use]
    pub(crate) fn suspects(self, suspects: Vec<Label>) -> Self {
        self.edit(|inner| inner.suspects = suspects)
    }

    /// Returns the commands that may have caused an asynchronous error: those that were submitted and not known to be
    /// complete, stream by stream, oldest first.
    pub fn possible_causes(&self) -> &[Label] {
        &self.0.suspects
    }

    /// Returns the driver's error, if one is the cause.
    pub fn driver_error(&self) -> Option<&thalweg_driver::Error> {
        match &self.0.kind {
            Kind::Driver(error) => Some(error),
            _ => None,
        }
    }

    /// Returns whether the device is out of memory.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self.0.kind, Kind::OutOfMemory(_))
            || self.driver_error().is_some_and(|error| error.is_out_of_memory())
    }

    /// Returns whether the caller's argument was wrong: a shape, a dtype, a device, an index.
    pub fn is_invalid_argument(&self) -> bool {
        matches!(self.0.kind, Kind::Invalid(..) | Kind::Recomputation(_) | Kind::OutOfRange(..))
            || self.driver_error().is_some_and(|error| error.is_invalid_argument())
    }

    /// Returns whether a dimension or an index is out of range, or a subscript fits no tensor, which PyTorch reports as an
    /// `IndexError`. A kernel may have found it ([`is_out_of_range`](Self::is_out_of_range)).
    pub fn is_index(&self) -> bool {
        self.class() == ErrorClass::Index
    }

    /// Returns the class of PyTorch's exception: [`ErrorClass::Runtime`] for every error other than a refused request.
    pub fn class(&self) -> ErrorClass {
        match self.0.kind {
            Kind::Invalid(class, _) | Kind::OutOfRange(class, ..) => class,
            _ => ErrorClass::Runtime,
        }
    }

    /// Returns whether a checkpointed function saved different tensors when it ran again.
    pub fn is_recomputation(&self) -> bool {
        matches!(self.0.kind, Kind::Recomputation(_))
    }

    /// Returns whether the context of the device is lost.
    pub fn is_device_lost(&self) -> bool {
        self.driver_error().is_some_and(|error| error.is_device_lost())
    }

    /// Returns whether a kernel found an index out of range, in the call that [`possible_causes`](Self::possible_causes) returns.
    /// The kernel read and wrote nothing there, and the device remains usable.
    pub fn is_out_of_range(&self) -> bool {
        matches!(self.0.kind, Kind::OutOfRange(..))
    }

    /// Returns whether earlier asynchronous work is the cause.
    pub fn is_asynchronous(&self) -> bool {
        self.is_out_of_range() || self.driver_error().is_some_and(|error| error.is_asynchronous())
    }

    /// Returns whether a library is missing on this machine.
    pub fn is_library_missing(&self) -> bool {
        self.driver_error().is_some_and(|error| error.is_library_missing())
    }

    /// Returns whether no library of this machine computes the call: it is missing, or does not support the call.
    pub fn is_without_library(&self) -> bool {
        self.is_library_missing() || self.is_not_supported()
    }

    /// Returns whether the device, or an installed library, does not support the call.
    pub fn is_not_supported(&self) -> bool {
        self.driver_error().is_some_and(|error| error.is_not_supported())
    }

    /// Returns whether a launch whose blocks wait for each other has more of them than fit on the device at the same time.
    pub fn is_launch_too_large(&self) -> bool {
        self.driver_error().is_some_and(|error| error.code() == Code::CooperativeLaunchTooLarge)
    }

    /// Returns whether a rule of stream capture was broken.
    pub fn is_capture(&self) -> bool {
        matches!(self.0.kind, Kind::Capture(_)) || self.driver_error().is_some_and(|error| error.is_capture())
    }

    /// Returns whether another rank is the cause: it did not arrive in time, gave up, or cannot be reached.
    pub fn is_distributed(&self) -> bool {
        matches!(self.0.kind, Kind::Distributed(_))
    }
}

impl From<thalweg_driver::Error> for Error {
    fn from(error: thalweg_driver::Error) -> Self {
        Self::from_kind(Kind::Driver(error))
    }
}

/// Lets a function that reads files pass their errors on by `?`.
///
/// ```
/// # use thalweg_runtime::{Error, Result};
/// fn read(path: &str) -> Result<String> {
///     Ok(std::fs::read_to_string(path)?)
/// }
///
/// let error: Error = read("/no/such/file").unwrap_err();
/// assert!(error.to_string().contains("No such file"), "{error}");
/// ```
impl From<AllocationError> for Error {
    /// Converts an error of the methods of an allocator itself.
    fn from(error: AllocationError) -> Self {
        let text = error.to_string();
        match (error.is_out_of_memory(), error.is_capture()) {
            (true, _) => Self::out_of_memory(text),
            (_, true) => Self::capture(text),
            _ => Self::invalid(text),
        }
    }
}

impl From<SettingsError> for Error {
    fn from(error: SettingsError) -> Self {
        Self::value(error.to_string())
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<thalweg_ir::LayoutError> for Error {
    fn from(error: thalweg_ir::LayoutError) -> Self {
        if error.is_index() { Self::index(error.to_string()) } else { Self::invalid(error.to_string()) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for context in self.0.context.iter().rev() {
            // An index out of range was found by an earlier call, which the error names.
            if self.is_out_of_range() {
                break;
            }
            let (Context::Text(text) | Context::Call(text)) = context;
            write!(f, "{text}: ")?;
        }
        write!(f, "{}", self.0.kind)?;
        if let Some(location) = self.0.location {
            let reported = if self.is_asynchronous() { "noticed at" } else { "at" };
            write!(f, "\n  {reported} {}:{}", location.file(), location.line())?;
        }
        if self.is_out_of_range() {
            return Ok(());
        }
        write_suspects(f, &self.0.suspects)
    }
}

/// Returns the cause in words, followed by the driver's call and code, so that a reader of one line sees the words.
fn in_words(error: &thalweg_driver::Error) -> String {
    let (call, code, detail) = (error.call(), error.code(), error.detail());
    let earlier = if error.is_asynchronous() { "work submitted earlier failed: " } else { "" };
    if detail.is_empty() {
        format!("{earlier}{call}: {} ({})", code.name(), code.number())
    } else {
        format!("{earlier}{detail} ({call}: {}, {})", code.name(), code.number())
    }
}

/// Writes one line per suspect; equal ones share a line, and a long list is cut.
fn write_suspects(f: &mut fmt::Formatter<'_>, suspects: &[Label]) -> fmt::Result {
    let mut distinct: Vec<(Label, usize)> = Vec::new();
    for &label in suspects {
        match distinct.iter_mut().find(|(known, _)| *known == label) {
            Some((_, count)) => *count += 1,
            None => distinct.push((label, 1)),
        }
    }
    match distinct.len() {
        0 => return Ok(()),
        1 => f.write_str("\npossible cause:")?,
        _ => f.write_str("\npossible causes (CUDA_LAUNCH_BLOCKING=1 tells which):")?,
    }
    for (label, count) in distinct.iter().take(LISTED_SUSPECTS) {
        write!(f, "\n  {label}")?;
        if *count > 1 {
            write!(f, " ({count} times)")?;
        }
    }
    match distinct.len().saturating_sub(LISTED_SUSPECTS) {
        0 => Ok(()),
        more => write!(f, "\n  and {more} more"),
    }
}

/// Writes the text for people, because `main` prints this format of an error that it returns.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.driver_error().map(|error| error as _)
    }
}
