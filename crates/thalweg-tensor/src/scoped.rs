//! Thread-local values that last for a scope: the code that sets one restores the previous value.
//!
//! These values have no destructors, so that operators work in the destructors of other thread-local values too. Nothing leaks,
//! as each scope takes back the value that it put.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::thread::LocalKey;

/// A thread-local cell of such a value, in `thread_local!`.
pub(crate) type Scoped<T> = RefCell<ManuallyDrop<T>>;

/// Creates a cell with the value that holds outside of all scopes. The value must own no memory.
pub(crate) const fn scoped<T>(value: T) -> Scoped<T> {
    RefCell::new(ManuallyDrop::new(value))
}

/// Puts a value into the cell and returns the previous one.
pub(crate) fn put<T>(place: &'static LocalKey<Scoped<T>>, value: T) -> T {
    ManuallyDrop::into_inner(place.replace(ManuallyDrop::new(value)))
}
