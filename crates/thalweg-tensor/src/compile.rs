//! Compiled functions: their loops are fused, and the memory of results between the loops is planned.
//!
//! [`compile`] returns a function that runs as it is written, and computes the same bits. What it computes by loops waits until
//! something else needs it, or the function ends; the loops that wait become a program ([`thalweg_graph`]), which is planned when it
//! is new and kept. So nothing is assumed about the function: it may branch on what it reads, print, draw random numbers, write in
//! place, or use other streams. A size that is new is planned anew, and finds kernels that are compiled already. The backward
//! functions of what a compiled function recorded are compiled, too.
//!
//! ```
//! use thalweg_runtime::{Device, Result};
//! use thalweg_tensor::{Tensor, compile::compile};
//!
//! # fn main() -> Result<()> {
//! let device = Device::sim(0)?;
//! let scaled = compile(|inputs: &[Tensor]| Ok(vec![inputs[0].exp()?.mul_scalar(2.0)?.add(&inputs[1])?]));
//! let x = Tensor::from_slice(&[0.0f32, 1.0], &[2], &device)?;
//! let before = thalweg_tensor::compile::counters();
//! let y = scaled.call(&[x.clone(), x.clone()])?;
//! let kernels = thalweg_tensor::compile::counters().kernels - before.kernels;
//! assert_eq!(kernels, 1);
//! assert_eq!(y[0].to_vec::<f32>()?[0], 2.0);
//! # Ok(())
//! # }
//! ```
//!
//! `THALWEG_EXPLAIN=compile` writes to standard error, for each segment that is new, what became one kernel, what did not, and why.

use thalweg_runtime::Result;

use crate::deferred;
pub use crate::deferred::{Counters, Region};
use crate::tensor::Tensor;

/// A compiled function.
#[derive(Clone, Debug)]
pub struct Compiled<F> {
    function: F,
}

/// Compiles a function of tensors.
pub fn compile<F>(function: F) -> Compiled<F>
where
    F: Fn(&[Tensor]) -> Result<Vec<Tensor>>,
{
    Compiled { function }
}

impl<F> Compiled<F>
where
    F: Fn(&[Tensor]) -> Result<Vec<Tensor>>,
{
    /// Calls the function. When this returns, its work is queued.
    ///
    /// # Errors
    /// Those of the function. A loop that fails to be queued may be reported by a later call of the function than its own.
    pub fn call(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        compiled(|| (self.function)(inputs))
    }
}

/// Runs a function once, compiled. See [`compile`].
pub fn compiled<T>(function: impl FnOnce() -> Result<T>) -> Result<T> {
    let region = Region::enter();
    let result = function();
    let ended = region.end();
    let result = result?;
    ended.map(|()| result)
}

/// Runs a part of a compiled function as it would run outside.
pub fn excluded<T>(function: impl FnOnce() -> Result<T>) -> Result<T> {
    let _excluded = Region::leave()?;
    function()
}

/// Returns whether this thread runs a compiled function.
pub fn is_compiling() -> bool {
    deferred::is_on()
}

/// Returns counts of the work of this thread's compiled functions so far.
pub fn counters() -> Counters {
    deferred::counters()
}

/// Forgets the programs of this thread (`torch.compiler.reset`). Kernels stay compiled.
pub fn reset() {
    deferred::forget_programs();
}

/// Sets the least bytes of a result that compiled functions of this thread compute again in the backward pass instead of keeping it,
/// where loops can do so from what is kept anyway. `None` is the default: `THALWEG_RECOMPUTE_BYTES`, or 1 MiB. With `u64::MAX` every
/// result is kept.
pub fn set_recomputed_bytes(bytes: Option<u64>) {
    deferred::set_recomputed(bytes);
}
