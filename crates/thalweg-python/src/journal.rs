//! The journal of a recorded call of a program: which tensors of the front end it used and made, how, and which functions of the front
//! end it called.

use std::cell::RefCell;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt, PyTuple};
use rustc_hash::FxHashMap;
use thalweg::runtime::DevicePointer;
use thalweg::runtime::command_list::{note_given, note_made, recorded, refuse};

/// The origin of a tensor of the front end.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// An input, by its place.
    Input(usize),
    /// A constant, by its place.
    Constant(usize),
    /// A tensor that the call makes, by its number.
    Made(usize),
}

/// The way in which a tensor was made.
pub enum Maker {
    /// By the front end's function for new tensors, with these arguments.
    New(Py<PyTuple>),
    /// By a function of the front end, with this shape and these strides.
    Function { shape: Py<PyAny>, strides: Py<PyAny> },
}

/// A new tensor of the front end.
pub struct Made {
    /// The tensor, which is kept alive, so that no other object has its identity.
    _object: Py<PyAny>,
    pub maker: Maker,
}

/// A reference to an object of the front end, as far as it is known in a call.
pub enum Known {
    Tensor(Source),
    View {
        base: Source,
        shape: Py<PyTuple>,
        strides: Py<PyTuple>,
        offset: usize,
    },
    /// An object that does not depend on the inputs, for calls with the same key.
    Object(Py<PyAny>),
}

impl Known {
    /// Returns the tensor that it is, or is a view of.
    pub fn source(&self) -> Option<Source> {
        match self {
            Self::Tensor(source) | Self::View { base: source, .. } => Some(*source),
            Self::Object(_) => None,
        }
    }
}

/// A call of a function of the front end.
pub struct Outside {
    pub function: Py<PyAny>,
    pub arguments: Vec<Known>,
    /// The results that are new tensors, by their places, with their numbers.
    pub results: Vec<(usize, usize)>,
    /// Whether the function returns one result, and no list of them.
    pub is_one: bool,
    /// The number of commands before it.
    pub before: usize,
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
    views: FxHashMap<usize, View>,
    pub calls: Vec<Outside>,
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
        journal.make(object, Maker::New(arguments.clone().unbind()));
    });
}

/// Notes a call of a function of the front end, and its results: one, or as many as it has.
pub fn outside(
    function: &Py<PyAny>,
    arguments: &Bound<'_, PyTuple>,
    results: &[Bound<'_, PyAny>],
    is_one: bool,
) {
    let py = arguments.py();
    JOURNAL.with_borrow_mut(|journal| {
        let Some(journal) = journal.as_mut() else { return };
        let known: Result<Vec<_>, _> = arguments.iter().map(|object| journal.known(&object)).collect();
        let Ok(known) = known else {
            refuse(|| "a function of the front end is given an object that is not known".to_owned());
            return;
        };
        let mut made = Vec::new();
        for (place, object) in results.iter().enumerate() {
            if is_number(object) {
                refuse(|| "a function of the front end returns a number".to_owned());
            } else if !object.is_none() && !arguments.iter().any(|argument| argument.is(object)) {
                // Not by its identity alone: it may be where an input was that was let go.
                let Ok((shape, strides)) = form_of(object) else {
                    refuse(|| "a function of the front end returns something other than tensors".to_owned());
                    continue;
                };
                made.push((place, journal.made.len()));
                journal.make(object, Maker::Function { shape: shape.unbind(), strides: strides.unbind() });
            }
        }
        let function = function.clone_ref(py);
        let (arguments, results, before) = (known, made, recorded());
        journal.calls.push(Outside { function, arguments, results, is_one, before });
    });
}

/// Returns the shape and the strides of a tensor of the front end.
pub fn form_of<'py>(object: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let py = object.py();
    Ok((object.getattr(intern!(py, "shape"))?, object.call_method0(intern!(py, "stride"))?))
}

fn is_number(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<PyInt>() || object.is_instance_of::<PyFloat>()
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
    fn source(&self, object: &Bound<'_, PyAny>) -> Option<Source> {
        self.sources.get(&object.as_ptr().addr()).copied()
    }

    fn make(&mut self, object: &Bound<'_, PyAny>, maker: Maker) {
        self.sources.insert(object.as_ptr().addr(), Source::Made(self.made.len()));
        self.made.push(Made { _object: object.clone().unbind(), maker });
    }

    /// Returns references to known objects.
    pub fn known_all(&self, objects: &[Bound<'_, PyAny>]) -> Result<Vec<Known>, String> {
        objects.iter().map(|object| self.known(object)).collect()
    }

    /// Returns a reference to a known object: a result, or an argument of a function of the front end.
    pub fn known(&self, object: &Bound<'_, PyAny>) -> Result<Known, String> {
        let py = object.py();
        if let Some(source) = self.source(object) {
            return Ok(Known::Tensor(source));
        }
        if let Some(view) = self.views.get(&object.as_ptr().addr()) {
            let (shape, strides) = (view.shape.clone_ref(py), view.strides.clone_ref(py));
            return Ok(Known::View { base: view.base, shape, strides, offset: view.offset });
        }
        match object.is_none() || is_number(object) {
            true => Ok(Known::Object(object.clone().unbind())),
            false => Err("an object is neither a tensor that is known nor a number".to_owned()),
        }
    }
}
