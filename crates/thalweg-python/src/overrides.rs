//! Functions that arguments or modes of the program take over (`__torch_function__`).
//!
//! A call from Python is taken over if a mode is open on the thread (`torch.overrides.TorchFunctionMode`), or if the class of an
//! argument has a method `__torch_function__` of its own. The Python part of the package then decides whose method is called
//! (`_overriding.py`); this module finds such calls, at a cost of a few comparisons for all others.

use std::cell::Cell;
use std::sync::OnceLock;

use pyo3::PyTypeInfo;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PySlice, PyTuple, PyType};

use crate::call::Passed;
use crate::handle::PyTensor;

/// The overrides of a thread.
#[derive(Clone, Copy)]
struct State {
    /// The number of open modes.
    modes: usize,
    /// The extent to which overrides are switched off: 0 not at all, 1 those of arguments, 2 those of modes as well.
    off: u8,
}

thread_local! {
    static STATE: Cell<State> = const { Cell::new(State { modes: 0, off: 0 }) };
}

/// The addresses of classes that override nothing and live as long as the process.
static PLAIN: OnceLock<Vec<usize>> = OnceLock::new();

/// The objects that Python registers.
struct Registered {
    /// The function that chooses and calls an override.
    handler: Py<PyAny>,
    /// The value of `__torch_function__` by which a class states that it overrides nothing.
    disabled: Py<PyAny>,
    /// The classes whose addresses are in [`PLAIN`].
    _plain: Vec<Py<PyType>>,
}

static REGISTERED: PyOnceLock<Registered> = PyOnceLock::new();

/// Returns whether a value overrides no function.
fn is_plain(py: Python<'_>, value: &Bound<'_, PyAny>) -> bool {
    let class = value.get_type_ptr() as usize;
    if class == PyTensor::type_object_raw(py) as usize
        || PLAIN.get().is_some_and(|plain| plain.contains(&class))
    {
        return true;
    }
    if let Ok(list) = value.cast_exact::<PyList>() {
        return list.iter().all(|element| is_plain(py, &element));
    }
    if let Ok(tuple) = value.cast_exact::<PyTuple>() {
        return tuple.iter().all(|element| is_plain(py, &element));
    }
    !overrides(py, value)
}

/// Returns whether the class of a value has a method `__torch_function__` that is not the one for classes that override nothing.
fn overrides(py: Python<'_>, value: &Bound<'_, PyAny>) -> bool {
    let Some(registered) = REGISTERED.get(py) else { return false };
    match value.get_type().getattr(intern!(py, "__torch_function__")) {
        Ok(method) => !method.is(&registered.disabled),
        Err(_) => false,
    }
}

/// Appends the values that take over functions, each class once.
fn collect<'py>(py: Python<'py>, value: &Bound<'py, PyAny>, found: &Bound<'py, PyList>) -> PyResult<()> {
    if let Ok(list) = value.cast_exact::<PyList>() {
        return list.iter().try_for_each(|element| collect(py, &element, found));
    }
    if let Ok(tuple) = value.cast_exact::<PyTuple>() {
        return tuple.iter().try_for_each(|element| collect(py, &element, found));
    }
    let is_known = found.iter().any(|known| known.get_type().is(value.get_type()));
    if is_known || is_plain(py, value) { Ok(()) } else { found.append(value) }
}

/// Returns the result of a call that is taken over, or `None` if the function itself is to run.
pub fn taken_over<'py>(
    py: Python<'py>,
    name: &str,
    passed: &Passed<'_, 'py>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let State { modes, off } = STATE.get();
    if off == 2 || (modes == 0 && off == 1) {
        return Ok(None);
    }
    let values = || {
        passed.receiver.into_iter().chain(passed.places).chain(passed.names.iter().map(|(_, value)| value))
    };
    if modes == 0 && values().all(|value| is_plain(py, value)) {
        return Ok(None);
    }
    let found = PyList::empty(py);
    if off == 0 {
        values().try_for_each(|value| collect(py, value, &found))?;
    }
    let Some(registered) = REGISTERED.get(py) else { return Ok(None) };
    let places: Vec<_> = passed.receiver.into_iter().chain(passed.places).collect();
    let arguments = PyTuple::new(py, places)?;
    let named = PyDict::new(py);
    for (name, value) in passed.names {
        named.set_item(name, value)?;
    }
    let answer =
        registered.handler.bind(py).call1((name, passed.receiver.is_some(), found, arguments, named))?;
    Ok(Some(answer))
}

/// Returns the result of reading or writing a subscript if a value in it overrides that. Parts of slices are checked only if
/// requested, and only if they are not numbers.
pub fn subscript_taken_over<'py>(
    tensor: &Bound<'py, PyTensor>,
    subscript: &Bound<'py, PyAny>,
    value: Option<&Bound<'py, PyAny>>,
    with_slices: bool,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = tensor.py();
    let is_seen = !is_plain(py, subscript) || value.is_some_and(|value| !is_plain(py, value)) || with_slices;
    let Some(registered) = REGISTERED.get(py).filter(|_| is_seen && STATE.get().off == 0) else {
        return Ok(None);
    };
    let found = PyList::empty(py);
    let parts: Vec<_> = match subscript.cast::<PyTuple>() {
        Ok(parts) => parts.iter().collect(),
        Err(_) => vec![subscript.clone()],
    };
    for part in parts.iter().chain(value) {
        match part.cast::<PySlice>() {
            Ok(slice) => {
                ["start", "stop", "step"]
                    .iter()
                    .try_for_each(|&name| collect(py, &slice.getattr(name)?, &found))?;
            }
            Err(_) => collect(py, part, &found)?,
        }
    }
    if found.is_empty() {
        return Ok(None);
    }
    let mut arguments = vec![tensor.clone().into_any(), subscript.clone()];
    arguments.extend(value.cloned());
    let name = if value.is_some() { "__setitem__" } else { "__getitem__" };
    let arguments = PyTuple::new(py, arguments)?;
    registered.handler.bind(py).call1((name, true, found, arguments, PyDict::new(py))).map(Some)
}

/// Returns whether an argument of a call overrides it.
#[pyfunction]
#[pyo3(signature = (args, kwargs))]
fn _is_overridden(py: Python<'_>, args: &Bound<'_, PyTuple>, kwargs: &Bound<'_, PyDict>) -> bool {
    let State { modes, off } = STATE.get();
    if off == 2 || (modes == 0 && off == 1) {
        return false;
    }
    modes > 0
        || !(args.iter().all(|value| is_plain(py, &value))
            && kwargs.values().iter().all(|value| is_plain(py, &value)))
}

/// Returns the values among arguments that take over functions, each class once.
#[pyfunction]
fn _overriding<'py>(
    py: Python<'py>,
    args: &Bound<'py, PyTuple>,
    kwargs: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyList>> {
    let found = PyList::empty(py);
    if STATE.get().off == 0 {
        args.iter().chain(kwargs.values().iter()).try_for_each(|value| collect(py, &value, &found))?;
    }
    Ok(found)
}

/// Sets the number of open modes of this thread, and returns the former one.
#[pyfunction]
fn _set_function_modes(count: usize) -> usize {
    let state = STATE.get();
    STATE.set(State { modes: count, ..state });
    state.modes
}

/// Sets the extent to which this thread's overrides are switched off, and returns the former one.
#[pyfunction]
fn _set_overrides_off(off: u8) -> u8 {
    let state = STATE.get();
    STATE.set(State { off, ..state });
    state.off
}

/// Returns the extent to which this thread's overrides are switched off.
#[pyfunction]
fn _overrides_off() -> u8 {
    STATE.get().off
}

/// Registers the function that chooses overrides, the mark of classes that override nothing, and common classes of that kind.
#[pyfunction]
fn _register_overrides(
    py: Python<'_>,
    handler: Py<PyAny>,
    disabled: Py<PyAny>,
    plain: Vec<Bound<'_, PyType>>,
) {
    PLAIN.get_or_init(|| plain.iter().map(|class| class.as_type_ptr() as usize).collect());
    REGISTERED.get_or_init(py, || Registered {
        handler,
        disabled,
        _plain: plain.into_iter().map(Bound::unbind).collect(),
    });
}

/// Adds the functions.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    functions![module;
        _is_overridden, _overriding, _set_function_modes, _set_overrides_off, _overrides_off,
        _register_overrides
    ];
    Ok(())
}
