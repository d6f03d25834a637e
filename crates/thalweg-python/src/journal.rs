//! The journal of a recorded call of a program: which tensors of the front end it used and made, and how.

use std::cell::RefCell;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rustc_hash::FxHashMap;
use thalweg::runtime::DevicePointer;
use thalweg::runtime::command_list::{note_given, note_made, refuse};

/// The origin of a tensor of the front end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// An input, by its place.
    Input(usize),
    /// A constant, by its place.
    Constant(usize),
    /// A tensor that the call makes, by its number.
    Made(usize),
}

/// A new tensor of the front end.
pub struct Made {
    /// The tensor, which is kept alive, so that no other object has its identity.
    _object: Py<PyAny>,
    /// The arguments of the function that made it.
    pub arguments: Py<PyTuple>,
}

/// A tensor of the front end over the memory of another one.
pub struct View {
    /// The tensor, which is kept alive, so that no other object has its identity.
    _object: Py<PyAny>,
    pub base: Source,
    pub shape: Py<PyTuple>,
    pub strides: Py<PyTuple>,
    /// The distance of the first elements.
    pub offset: usize,
}

/// The tensors of a call.
#[derive(Default)]
pub struct Journal {
    /// The origin of each tensor that is known, by its identity.
    sources: FxHashMap<usize, Source>,
    /// The tensors whose memory the call uses, in the order of their numbers.
    pub given: Vec<Source>,
    pub made: Vec<Made>,
    pub views: FxHashMap<usize, View>,
}

thread_local! {
    static JOURNAL: RefCell<Option<Journal>> = const { RefCell::new(None) };
}

fn note(change: impl FnOnce(&mut Journal)) {
    JOURNAL.with_borrow_mut(|journal| journal.as_mut().map(change));
}

/// Begins the journal of this thread, for a call with these tensors.
pub fn begin(sources: FxHashMap<usize, Source>) {
    JOURNAL.set(Some(Journal { sources, ..Journal::default() }));
}

/// Ends the journal of this thread, and returns it.
pub fn end() -> Journal {
    JOURNAL.take().unwrap_or_default()
}

/// Notes that the call uses the memory of a tensor.
pub fn given(object: &Bound<'_, PyAny>, address: u64, bytes: u64) {
    note(|journal| match journal.source(object) {
        None => refuse(|| "a tensor of the front end is neither an input nor a result".to_owned()),
        Some(source) if journal.given.contains(&source) => {}
        Some(source) => {
            journal.given.push(source);
            match source {
                Source::Made(_) => note_made(DevicePointer::new(address), bytes),
                Source::Input(_) | Source::Constant(_) => note_given(DevicePointer::new(address), bytes),
            }
        }
    });
}

/// Notes a new tensor, made by these arguments.
pub fn made(object: &Bound<'_, PyAny>, arguments: &Bound<'_, PyTuple>) {
    note(|journal| {
        journal.sources.insert(object.as_ptr().addr(), Source::Made(journal.made.len()));
        journal.made.push(Made { _object: object.clone().unbind(), arguments: arguments.clone().unbind() });
    });
}

/// Notes a tensor over the memory of another one.
pub fn view(
    object: &Bound<'_, PyAny>,
    base: &Bound<'_, PyAny>,
    (shape, strides): (&Bound<'_, PyTuple>, &Bound<'_, PyTuple>),
    offset: usize,
) {
    note(|journal| match journal.source(base) {
        None => refuse(|| "a result is a view of neither an input nor a result".to_owned()),
        Some(base) => {
            let (shape, strides) = (shape.clone().unbind(), strides.clone().unbind());
            let view = View { _object: object.clone().unbind(), base, shape, strides, offset };
            journal.sources.remove(&object.as_ptr().addr());
            journal.views.insert(object.as_ptr().addr(), view);
        }
    });
}

impl Journal {
    /// Returns the origin of a tensor.
    pub fn source(&self, object: &Bound<'_, PyAny>) -> Option<Source> {
        self.sources.get(&object.as_ptr().addr()).copied()
    }
}
