//! The journal of a recorded call of a program: which tensors of the front end it used and made, and how.

use std::cell::RefCell;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rustc_hash::FxHashMap;
use thalweg::runtime::DevicePointer;
use thalweg::runtime::command_list::note_given;

/// A new tensor of the front end.
pub struct Made {
    pub object: Py<PyAny>,
    /// The arguments of the function that made it.
    pub arguments: Py<PyTuple>,
}

/// A tensor of the front end over the memory of another one.
pub struct View {
    pub base: Py<PyAny>,
    pub shape: Py<PyTuple>,
    pub strides: Py<PyTuple>,
    /// The distance of the first elements.
    pub offset: usize,
}

/// The tensors of a call.
#[derive(Default)]
pub struct Journal {
    /// The tensors whose memory the call uses, in the order of their numbers.
    pub given: Vec<Py<PyAny>>,
    numbers: FxHashMap<usize, usize>,
    pub made: Vec<Made>,
    pub views: FxHashMap<usize, View>,
    /// Tensors that are only kept alive, so that no other object has their identity.
    kept: Vec<Py<PyAny>>,
}

thread_local! {
    static JOURNAL: RefCell<Option<Journal>> = const { RefCell::new(None) };
}

fn note(change: impl FnOnce(&mut Journal)) {
    JOURNAL.with_borrow_mut(|journal| journal.as_mut().map(change));
}

/// Begins the journal of this thread.
pub fn begin() {
    JOURNAL.set(Some(Journal::default()));
}

/// Ends the journal of this thread, and returns it.
pub fn end() -> Journal {
    JOURNAL.take().unwrap_or_default()
}

/// Notes that the call uses the memory of a tensor.
pub fn given(object: &Bound<'_, PyAny>, address: u64, bytes: u64) {
    note(|journal| {
        let identity = object.as_ptr().addr();
        let next = journal.given.len();
        if *journal.numbers.entry(identity).or_insert(next) == next {
            note_given(DevicePointer::new(address), bytes);
            journal.given.push(object.clone().unbind());
        }
    });
}

/// Notes a new tensor, made by these arguments.
pub fn made(object: &Bound<'_, PyAny>, arguments: &Bound<'_, PyTuple>) {
    note(|journal| {
        journal.made.push(Made { object: object.clone().unbind(), arguments: arguments.clone().unbind() });
    });
}

/// Notes a tensor over the memory of another one.
pub fn view(object: &Bound<'_, PyAny>, view: impl FnOnce() -> View) {
    note(|journal| {
        journal.kept.push(object.clone().unbind());
        journal.views.insert(object.as_ptr().addr(), view());
    });
}
