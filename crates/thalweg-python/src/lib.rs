//! Thalweg in Python: the extension module behind `import thalweg`.
//!
//! It holds what needs Rust: tensors, the generic path of every operator, the fused optimizers, streams and graphs, files. Modules,
//! optimizers as classes and everything else that Python programs subclass is Python, in the package beside this crate.
//!
//! - `call` reads a call's arguments by the schemas of the operator table and chooses the overload, as PyTorch's parser does.
//! - `functions` makes a Python function and a method of every name of the table. It, `handle` (the place of a tensor in its object), `dlpack`
//!   and the streams of other libraries in `cuda` are the parts with `unsafe`.
//! - `check` runs a function of Python under the simulator's seeds.
//! - `failure` turns errors and panics into Python's exceptions: nothing that a program does may end the interpreter.
//!
//! # Invariants
//! - No operator has code of its own here: what the table has, Python has.
//! - The interpreter lock is released around every call of the layers below.
//! - Classes are frozen, and no call holds an object to itself: what calls change lies behind a lock (`handle` has that of a tensor), or
//!   belongs to its thread. So the module does without the interpreter lock, where a build of Python has none.

mod audit;
mod autograd;
mod backends;
mod call;
mod callable;
mod check;
mod convert;
mod cuda;
mod device;
mod dlpack;
mod dtype;
mod events;
mod failure;
mod files;
mod functions;
mod generator;
mod graphs;
mod handle;
mod history;
mod index;
mod lines;
mod memory;
mod node;
mod optim;
mod profiler;
mod protocol;
mod readings;
mod record;
mod regions;
mod table;
mod tensor;
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
    check::register(module)?;
    files::register(module)?;
    dlpack::register(module)
}
