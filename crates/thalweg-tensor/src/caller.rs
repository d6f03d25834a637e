//! The source line that commands and errors name: the line of the user's call.
//!
//! A public function that calls other public functions records its caller's line with [`enter`]. Everything it calls on the same
//! thread then names that line instead of lines of the library, both in the labels of commands, which an asynchronous error
//! lists, and in errors. Functions that run the user's code do not call [`enter`].
//!
//! ```
//! # use thalweg_runtime::{Device, Result};
//! # use thalweg_tensor::{Tensor, caller};
//! use std::panic::Location;
//!
//! /// Returns the products of all rows of a matrix with each other.
//! #[track_caller]
//! fn gram(x: &Tensor) -> Result<Tensor> {
//!     caller::in_call("gram", &[x], Location::caller(), || x.matmul(&x.transpose(0, 1)?))
//! }
//!
//! # fn main() -> Result<()> {
//! # let device = Device::sim(0)?;
//! let row = Tensor::from_slice(&[1.0f32], &[1], &device)?;
//! let error = gram(&row).unwrap_err().to_string(); // its line is that of this call
//! assert!(error.contains("gram([1] float32"), "{error}");
//! # Ok(())
//! # }
//! ```

use std::cell::Cell;
use std::panic::Location;

use thalweg_ir::DType;
use thalweg_runtime::{Device, Label, Result};

/// A line of the source.
pub type CallLocation = &'static Location<'static>;

thread_local! {
    static OUTERMOST: Cell<Option<CallLocation>> = const { Cell::new(None) };
    static INDIRECT: Cell<Option<Indirect>> = const { Cell::new(None) };
}

/// A call through a trait object. A `#[track_caller]` function called this way sees a line of its own source, since the compiler
/// does not pass the caller's line through a trait object.
#[derive(Clone, Copy)]
struct Indirect {
    line: CallLocation,
    /// The path prefix of the sources that contain such functions.
    sources: &'static str,
}

/// A guard of a call through a trait object.
#[must_use = "the line is named only while the guard lives"]
pub struct IndirectGuard {
    former: Option<Indirect>,
}

/// Enters a call through a trait object that was made at `location`: functions in `sources` that are called there name that line.
/// Other code, such as the user's, names its own lines.
pub fn enter_indirect(location: CallLocation, sources: &'static str) -> IndirectGuard {
    let line = outermost(location);
    IndirectGuard { former: INDIRECT.replace(Some(Indirect { line, sources })) }
}

impl Drop for IndirectGuard {
    fn drop(&mut self) {
        INDIRECT.set(self.former);
    }
}

/// Returns the line of a call at `location`, which may have been made through a trait object.
fn direct(location: CallLocation) -> CallLocation {
    match INDIRECT.get() {
        Some(Indirect { line, sources }) if location.file().starts_with(sources) => line,
        _ => location,
    }
}

/// A guard: while it lives, calls of this thread name the line at which the outermost such guard was entered.
#[must_use = "the line is named only while the guard lives"]
pub struct Entered {
    former: Option<CallLocation>,
}

/// Enters a public function that was called at `location`.
pub fn enter(location: CallLocation) -> Entered {
    let former = OUTERMOST.get();
    OUTERMOST.set(Some(former.unwrap_or_else(|| direct(location))));
    Entered { former }
}

impl Drop for Entered {
    fn drop(&mut self) {
        OUTERMOST.set(self.former);
    }
}

/// Returns the line of the user's call, for a function that was called at `location`.
pub fn outermost(location: CallLocation) -> CallLocation {
    OUTERMOST.get().unwrap_or_else(|| direct(location))
}

/// Returns the line of the user's call, if a public function was entered.
pub(crate) fn entered() -> Option<CallLocation> {
    OUTERMOST.get()
}

/// Returns a label for an operator that was called at `location`.
pub fn label_at(operator: &'static str, location: CallLocation) -> Label {
    Label::at(operator, outermost(location))
}

/// A value that a call takes, such as a [`Tensor`](crate::Tensor), and that the call's errors describe.
pub trait Operand {
    /// Returns the description of the value in errors.
    fn describe(&self) -> String;
}

/// Describes a call for errors and labels, as `name(shape dtype, …)`.
pub(crate) fn describe<O: Operand>(operator: &str, operands: &[&O]) -> String {
    let list: Vec<String> = operands.iter().map(|operand| operand.describe()).collect();
    format!("{operator}({})", list.join(", "))
}

/// Describes a call that makes a tensor, as [`describe`] does.
pub(crate) fn describe_new(operator: &str, shape: &[usize], dtype: DType, device: &Device) -> String {
    format!("{operator}({shape:?} {dtype} on {device})")
}

/// Runs a public function on tensors; an error names it, its tensors and its line.
pub fn in_call<T, O: Operand>(
    operator: &str,
    operands: &[&O],
    location: CallLocation,
    run: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let _entered = enter(location);
    run().map_err(|error| error.in_call(describe(operator, operands), outermost(location)))
}

/// Runs a public function that takes no tensors; an error names it and its line.
pub fn in_function<T>(name: &str, location: CallLocation, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let _entered = enter(location);
    run().map_err(|error| error.in_call(format!("{name}()"), outermost(location)))
}

/// Runs a public function that takes no tensors, or whose errors already describe them; an error names its line.
pub fn at_line<T>(location: CallLocation, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let _entered = enter(location);
    run().map_err(|error| error.at(outermost(location)))
}

/// Runs a function that makes a tensor of a shape and dtype on a device, within the call as [`in_call`] does.
pub(crate) fn creating<T>(
    operator: &str,
    (shape, dtype, device): (&[usize], DType, &Device),
    location: CallLocation,
    run: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let _entered = enter(location);
    run().map_err(|error| error.in_call(describe_new(operator, shape, dtype, device), outermost(location)))
}
