//! A Python function and a method for every name of the operator table.
//!
//! # Note: functions without an object
//! A call from Python is cheapest if the callee is a C function with the convention `METH_FASTCALL | METH_KEYWORDS`: the
//! arguments are a slice on the interpreter's stack, and no tuple, dictionary or bound method is created. Such a C function
//! receives only its receiver and the arguments, not which function it is, so each name needs a C function of its own. They are
//! instances of one generic function, parameterised by the number of the name ([`TRAMPOLINES`]).

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_int};
use std::sync::OnceLock;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple, PyType};
use smallvec::SmallVec;
use thalweg::dispatch::{find_operator, operators};
use thalweg::ops::schema::{Kind, Schema, base_name};

use crate::call::{Function, Overload, Passed};
use crate::failure::{exception, guarded};
use crate::handle::PyTensor;
use crate::overrides::taken_over;

/// The functions, indexed by their numbers.
static FUNCTIONS: OnceLock<Vec<Function>> = OnceLock::new();

/// Returns the functions, by name.
pub fn functions() -> &'static [Function] {
    FUNCTIONS.get().map_or(&[], Vec::as_slice)
}

/// Returns the number of a function by its name.
pub fn number_of(name: &str) -> Option<usize> {
    functions().binary_search_by(|function| function.name.as_str().cmp(name)).ok()
}

/// Calls the function whose name has number `N`. This is the C function that Python holds. `receiver` is null for functions of
/// the module.
///
/// # Safety
/// Called by the interpreter, by the convention `METH_FASTCALL | METH_KEYWORDS`.
unsafe extern "C" fn trampoline<const N: usize>(
    receiver: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the interpreter fulfils the requirements of `enter`.
    unsafe { enter(N, receiver, arguments, count, names) }
}

/// Calls a function by its number.
///
/// # Safety
/// The thread holds the interpreter lock. `arguments` has `count` objects, plus one for each name in the tuple `names`. `names`
/// and `receiver` may be null. All objects live until the call returns.
unsafe fn enter(
    number: usize,
    receiver: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the caller holds the lock.
    let py = unsafe { Python::assume_attached() };
    let result = guarded(|| {
        // SAFETY: the caller's promise; the `Bound` takes a reference of its own.
        let receiver = unsafe { Bound::from_borrowed_ptr_or_opt(py, receiver) };
        let count = count as usize;
        let at = |place: usize| {
            // SAFETY: `place` is below the number of arguments, by the caller's promise.
            unsafe { Bound::from_borrowed_ptr(py, *arguments.add(place)) }
        };
        let places: SmallVec<[Bound<'_, PyAny>; 6]> = (0..count).map(at).collect();
        let mut named: SmallVec<[(Bound<'_, PyString>, Bound<'_, PyAny>); 6]> = SmallVec::new();
        // SAFETY: the caller's promise.
        if let Some(names) = unsafe { Bound::from_borrowed_ptr_or_opt(py, names) } {
            for (place, name) in names.cast::<PyTuple>()?.iter().enumerate() {
                named.push((name.cast_into::<PyString>().map_err(PyErr::from)?, at(count + place)));
            }
        }
        let passed = Passed { receiver: receiver.as_ref(), places: &places, names: &named };
        let function = &functions()[number];
        match taken_over(py, &function.name, &passed)? {
            Some(answer) => Ok(answer),
            None => function.call(py, &passed),
        }
    });
    match result {
        Ok(object) => object.into_ptr(),
        Err(error) => {
            error.restore(py);
            std::ptr::null_mut()
        }
    }
}

/// Expands to instances of [`trampoline`] in rows of 16.
macro_rules! trampolines {
    ($($row:literal)*) => {
        [$(
            trampoline::<{ 16 * $row }>, trampoline::<{ 16 * $row + 1 }>, trampoline::<{ 16 * $row + 2 }>,
            trampoline::<{ 16 * $row + 3 }>, trampoline::<{ 16 * $row + 4 }>, trampoline::<{ 16 * $row + 5 }>,
            trampoline::<{ 16 * $row + 6 }>, trampoline::<{ 16 * $row + 7 }>, trampoline::<{ 16 * $row + 8 }>,
            trampoline::<{ 16 * $row + 9 }>, trampoline::<{ 16 * $row + 10 }>, trampoline::<{ 16 * $row + 11 }>,
            trampoline::<{ 16 * $row + 12 }>, trampoline::<{ 16 * $row + 13 }>, trampoline::<{ 16 * $row + 14 }>,
            trampoline::<{ 16 * $row + 15 }>,
        )*]
    };
}

/// The trampolines, one for each possible number of a name.
static TRAMPOLINES: [ffi::PyCFunctionFastWithKeywords; 2048] = trampolines! {
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45
    46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88
    89 90 91 92 93 94 95 96 97 98 99 100 101 102 103 104 105 106 107 108 109 110 111 112 113 114 115 116 117 118 119 120 121 122 123
    124 125 126 127
};

/// Returns every operator that Python has, by its name without overload: those of the table and their in-place variants.
/// Operators that only serve as parts of others have a namespace and are left out.
fn by_name() -> PyResult<BTreeMap<String, Vec<Overload>>> {
    let mut names: BTreeMap<String, Vec<Overload>> = BTreeMap::new();
    for operator in operators() {
        if operator.name().contains("::")
            || operator.name().ends_with("_out")
            || operator.name().ends_with(".out")
        {
            continue;
        }
        if let Some(schema) = operator.in_place_schema() {
            let in_place = find_operator(&schema.name).map_err(|error| exception(&error))?;
            names.entry(base_name(in_place.name()).to_owned()).or_default().push(Overload::new(in_place));
        }
        // In-place variants are already in the table if a program has called them.
        let list = names.entry(operator.base_name().to_owned()).or_default();
        if list.iter().all(|known| known.operator.name() != operator.name()) {
            list.push(Overload::new(operator));
        }
    }
    for overloads in names.values_mut() {
        // Tensors before numbers: in a strict match a tensor is never a number. Numbers before lists: one number may stand for a
        // list.
        let numbers = |overload: &Overload| {
            overload.schema().parameters.iter().filter(|parameter| parameter.ty.kind == Kind::Scalar).count()
        };
        let lists = |overload: &Overload| {
            overload.schema().parameters.iter().filter(|parameter| parameter.ty.list).count()
        };
        overloads.sort_by_key(|overload| {
            let count = overload.schema().parameters.len();
            (count, numbers(overload), lists(overload), overload.operator.name())
        });
    }
    Ok(names)
}

/// Returns the class for several named results: a named tuple, as in PyTorch's `return_types`.
fn results_class(py: Python<'_>, name: &str, overloads: &[Overload]) -> PyResult<Option<Py<PyAny>>> {
    let is_named = |schema: &&Schema| {
        schema.return_names.len() > 1 && schema.return_names.iter().all(|name| !name.is_empty())
    };
    let Some(schema) = overloads.iter().map(Overload::schema).find(is_named) else {
        return Ok(None);
    };
    let fields = PyList::new(py, &schema.return_names)?;
    let make = py.import("thalweg._results")?.getattr("results_class")?;
    Ok(Some(make.call1((name, fields))?.unbind()))
}

/// Leaks a text for the interpreter, which keeps pointers to function definitions until the process ends.
fn leaked(text: String) -> &'static CStr {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    Box::leak(text.into_boxed_c_str())
}

/// Returns the definition of a C function or method.
fn definition(number: usize, function: &Function, is_method: bool) -> *mut ffi::PyMethodDef {
    Box::leak(Box::new(ffi::PyMethodDef {
        ml_name: leaked(function.name.clone()).as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: TRAMPOLINES[number] },
        ml_flags: (ffi::METH_FASTCALL | ffi::METH_KEYWORDS) as c_int,
        ml_doc: leaked(crate::table::documentation(function, is_method)).as_ptr(),
    }))
}

/// Adds a function to the module, and a method if an overload has `self`. In-place functions are added to the module if
/// `in_place` lists them: PyTorch has some of them there. Returns whether a method was added.
fn install(
    module: &Bound<'_, PyModule>,
    in_place: &Bound<'_, PyDict>,
    class: &Bound<'_, PyType>,
    number: usize,
    function: &Function,
) -> PyResult<bool> {
    let py = module.py();
    let name = function.name.as_str();
    let is_in_place = name.ends_with('_') && !name.ends_with("__");
    let own = definition(number, function, false);
    // SAFETY: the definition lives as long as the process; the result is a new reference, or null with an exception set.
    let object = unsafe {
        Bound::from_owned_ptr_or_err(
            py,
            ffi::PyCFunction_NewEx(own, std::ptr::null_mut(), std::ptr::null_mut()),
        )
    }?;
    if is_in_place {
        in_place.set_item(name, object)?
    } else {
        module.add(name, object)?
    }
    // A method that the class already defines does more than the operator.
    if function.overloads.iter().any(|overload| overload.receiver.is_some()) && !class.hasattr(name)? {
        let definition = definition(number, function, true);
        // SAFETY: as above; `class` is a type object.
        let method = unsafe {
            Bound::from_owned_ptr_or_err(py, ffi::PyDescr_NewMethod(class.as_type_ptr(), definition))
        }?;
        class.setattr(name, method)?;
        return Ok(true);
    }
    Ok(false)
}

/// Adds the functions, and the methods to the class of tensors.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let mut functions = Vec::new();
    for (name, overloads) in by_name()? {
        let results = results_class(py, &name, &overloads)?;
        functions.push(Function::new(name, overloads, results));
    }
    assert!(
        functions.len() <= TRAMPOLINES.len(),
        "there are {} names; make more trampolines",
        functions.len()
    );
    let functions = FUNCTIONS.get_or_init(|| functions);
    let class = py.get_type::<PyTensor>();
    let in_place = PyDict::new(py);
    let mut methods = Vec::new();
    for (number, function) in functions.iter().enumerate() {
        if install(module, &in_place, &class, number, function)? {
            methods.push(function.name.as_str());
        }
    }
    module.add("_in_place", in_place)?;
    module.add("_operator_methods", methods)?;
    Ok(())
}
