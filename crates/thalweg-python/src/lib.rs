//! The extension module that `import thalweg` loads: Thalweg in Python.
//!
//! This crate holds the parts that need Rust: tensors, the generic path of every operator, the fused optimizers, streams and
//! graphs, files. Modules, optimizer classes and everything else that Python programs subclass are written in Python, in the
//! package next to this crate.
//!
//! - `call` reads a call's arguments by the schemas of the operator table and chooses the overload, as PyTorch's parser does.
//! - `functions` creates a Python function and a method for every name of the table. The parts with `unsafe` are `functions`,
//!   `handle` (the cell of a tensor in its object), `dlpack`, `exchange` (memory of
//!   PyTorch's tensors) and the streams of other libraries in `cuda`.
//! - `overrides` finds calls that arguments or modes take over (`__torch_function__`), and `modes` passes calls below autograd to
//!   Python (`__torch_dispatch__`).
//! - `external` has the gradients that are objects of Python: sparse ones, and those of classes.
//! - `check` runs a Python function under the simulator with many seeds.
//! - `program` runs graphs of PyTorch as lists of calls of the table, and `exchange` converts their tensors.
//! - `failure` turns errors and panics into Python exceptions, so that no program can crash the interpreter.
//!
//! # Invariants
//! - No operator has code of its own here: Python has every operator of the table.
//! - The interpreter lock is released around every call of the layers below.
//! - Classes are frozen, and no call has exclusive access to an object: mutable state is protected by a lock (`handle` has that
//!   of a tensor) or belongs to its thread. So the module also works in Python builds without the interpreter lock.

/// Adds functions to a module, in a function that returns a result.
macro_rules! functions {
    ($module:expr; $($function:path),*) => {{
        let module: &pyo3::Bound<'_, pyo3::types::PyModule> = $module;
        $(module.add_function(pyo3::wrap_pyfunction!($function, module)?)?;)*
    }};
}

mod asked;
mod audit;
mod autograd;
mod backends;
mod call;
mod callable;
mod check;
mod communicator;
mod compiling;
mod convert;
mod cuda;
mod device;
mod dlpack;
mod dtype;
mod events;
mod exchange;
mod external;
mod failure;
mod files;
mod functions;
mod generator;
mod graphs;
mod handle;
mod history;
mod in_place;
mod index;
mod journal;
mod lines;
mod memory;
mod modes;
mod node;
mod optim;
mod overrides;
mod profiler;
mod program;
mod protocol;
mod readings;
mod record;
mod recordings;
mod regions;
mod repeats;
mod signature;
mod steps;
mod table;
mod tensor;
mod trees;
mod tunable;

use pyo3::prelude::*;

/// Fills the extension module.
#[pymodule(gil_used = false)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    failure::keep_warnings();
    lines::read_under_sim();
    failure::watch_signals();
    failure::register(module)?;
    dtype::register(module)?;
    device::register(module)?;
    tensor::register(module)?;
    functions::register(module)?;
    overrides::register(module)?;
    modes::register(module)?;
    generator::register(module)?;
    table::register(module)?;
    autograd::register(module)?;
    node::register(module)?;
    record::register(module)?;
    optim::register(module)?;
    cuda::register(module)?;
    backends::register(module)?;
    profiler::register(module)?;
    tunable::register(module)?;
    callable::register(module)?;
    recordings::register(module)?;
    signature::register(module)?;
    trees::register(module)?;
    check::register(module)?;
    compiling::register(module)?;
    communicator::register(module)?;
    program::register(module)?;
    asked::register(module)?;
    files::register(module)?;
    in_place::register(module)?;
    dlpack::register(module)
}
