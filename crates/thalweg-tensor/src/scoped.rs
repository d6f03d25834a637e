//! Values of a thread that last for a scope: who sets one puts the former back.
//!
//! They have no destructors, so that operators work in the destructors of other thread-local values too. Nothing stays behind, as each scope takes what it put.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::thread::LocalKey;

/// The place of such a value in `thread_local!`.
pub(crate) type Scoped<T> = RefCell<ManuallyDrop<T>>;

/// Creates a place with what is there outside of all scopes, which holds no memory.
pub(crate) const fn scoped<T>(value: T) -> Scoped<T> {
    RefCell::new(ManuallyDrop::new(value))
}

/// Puts a value in the place and returns the former.
pub(crate) fn put<T>(place: &'static LocalKey<Scoped<T>>, value: T) -> T {
    ManuallyDrop::into_inner(place.replace(ManuallyDrop::new(value)))
}
