//! The line that commands and errors name: that of the user's call.
//!
//! A public function that is made of others says with [`enter`] where it was called. What it calls on the same thread then names
//! that line, and not lines of this crate: in the labels of commands, which an asynchronous error lists, and in errors. Functions
//! that run the user's code do not enter.

use std::cell::Cell;
use std::panic::Location;

use thalweg_ir::DType;
use thalweg_runtime::{Device, Label, Result};

use crate::tensor::{Tensor, describe, describe_new};

type Place = &'static Location<'static>;

thread_local! {
    static OUTERMOST: Cell<Option<Place>> = const { Cell::new(None) };
}

/// While it lives, what this thread calls was called from where the outermost of these was entered.
#[must_use = "the line is named only while the guard lives"]
pub(crate) struct Entered {
    former: Option<Place>,
}

/// Enters a public function that was called there.
pub(crate) fn enter(location: Place) -> Entered {
    let former = OUTERMOST.get();
    OUTERMOST.set(Some(former.unwrap_or(location)));
    Entered { former }
}

impl Drop for Entered {
    fn drop(&mut self) {
        OUTERMOST.set(self.former);
    }
}

/// Where the user called, if this function was called there.
pub(crate) fn outermost(location: Place) -> Place {
    OUTERMOST.get().unwrap_or(location)
}

/// A label for an operator that was called there.
pub(crate) fn label_at(operator: &'static str, location: Place) -> Label {
    Label { operator, location: outermost(location) }
}

/// Runs a public function on tensors; an error names it, its tensors and its line.
pub(crate) fn in_call<T>(
    operator: &str,
    tensors: &[&Tensor],
    location: Place,
    run: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let _entered = enter(location);
    run().map_err(|error| error.in_call(describe(operator, tensors), outermost(location)))
}

/// Runs a public function that is called on no tensors, or whose errors say enough of them; an error names its line.
pub(crate) fn at_line<T>(location: Place, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let _entered = enter(location);
    run().map_err(|error| error.at(outermost(location)))
}

/// As [`in_call`], for a function that makes a tensor of a shape and dtype on a device.
pub(crate) fn creating<T>(
    operator: &str,
    (shape, dtype, device): (&[usize], DType, &Device),
    location: Place,
    run: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let _entered = enter(location);
    run().map_err(|error| error.in_call(describe_new(operator, shape, dtype, device), outermost(location)))
}
