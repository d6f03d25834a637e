//! Thread-local values that last for a scope: the code that sets one restores the previous value.
//!
//! These values have no destructors, so that operators work in the destructors of other thread-local values too. Nothing leaks,
//! as each scope takes back the value that it put.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::thread::LocalKey;

use smallvec::SmallVec;

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

/// The values that the guards of a thread replaced, the latest last, in `thread_local!`.
pub(crate) type Replaced<T> = RefCell<ManuallyDrop<(u64, SmallVec<[(u64, T); 4]>)>>;

/// Creates the list of a thread that has no guards.
pub(crate) const fn nothing_replaced<T>() -> Replaced<T> {
    RefCell::new(ManuallyDrop::new((0, SmallVec::new_const())))
}

/// A guard of a value that lasts until it is dropped. Guards are dropped in any order: one that is not the latest leaves the value that it
/// replaced to the next, which puts it back.
pub(crate) struct Guard<T: 'static> {
    list: &'static LocalKey<Replaced<T>>,
    number: u64,
    _not_send: PhantomData<*const ()>,
}

impl<T> Guard<T> {
    /// Makes the guard of a value that has replaced another.
    pub(crate) fn new(list: &'static LocalKey<Replaced<T>>, replaced: T) -> Self {
        let number = list.with_borrow_mut(|list| {
            let (next, values) = &mut **list;
            *next += 1;
            values.push((*next, replaced));
            *next
        });
        Self { list, number, _not_send: PhantomData }
    }

    /// Ends the guard, and returns the value to be put back, if this was the latest guard.
    pub(crate) fn end(&self) -> Option<T> {
        // What the next guard had is dropped outside the borrow.
        let ended = self.list.with_borrow_mut(|list| {
            let values = &mut list.1;
            let place = values.iter().rposition(|(number, _)| *number == self.number)?;
            let (_, replaced) = values.remove(place);
            if values.is_empty() {
                // Nothing frees the list's memory when the thread ends, so an empty list must own none.
                values.shrink_to_fit();
            }
            Some(match values.get_mut(place) {
                Some(next) => Err(std::mem::replace(&mut next.1, replaced)),
                None => Ok(replaced),
            })
        });
        ended?.ok()
    }
}
