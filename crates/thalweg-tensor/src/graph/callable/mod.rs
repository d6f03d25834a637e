//! Graphed callables: functions of tensors whose forward and backward passes are a graph each (`make_graphed_callables`).
//!
//! A graphed callable stands in for a function inside a program that is otherwise eager: it takes part in autograd as one
//! node, whose backward pass replays the captured one. All callables of one making share a pool, and are captured in the order
//! in which a step uses them, so that the pool's memory is used again as it would be in that step:
//!
//! ```text
//! capture   forward 1 … forward N   backward N … backward 1      (one pool; what backward i has read is free for the next)
//! call      copy inputs that lie elsewhere ─ replay forward i ─ record a node
//! backward  copy gradients that lie elsewhere ─ replay backward i
//! ```
//!
//! # What a replay overwrites, and what is done about it
//! A replay writes wherever its recording did, which may be memory that a later recording was given. So forward `i` overwrites
//! the results of callables from `i` on, and all gradients; backward `i` overwrites the gradients of callables up to `i`.
//! Results and gradients are lent, so it is known whether somebody still holds them: a held result is refused or moved
//! ([`LiveOutputs`]), a held gradient is moved, so that gradients accumulate as ever. What forward `i` saves for backward is
//! overwritten by any later forward up to `i` and by a later backward before `i`: backward is an error then, never a wrong
//! number.
//!
//! # What it does not do
//! A module here has no hooks and autograd runs no second derivative, so neither has to be refused. Numbers that a callable
//! reads on the host are those of the capture.

mod record;
mod replay;

use std::panic::Location;
use std::sync::Arc;

use thalweg_runtime::{CaptureMode, Device, GraphPool, Result};

use super::LiveOutputs;
use crate::caller::label_at;
use crate::tensor::Tensor;
use replay::Set;

/// A function of tensors with parameters, of which a graph can be made.
pub trait Callable: Send + Sync {
    /// The name, for messages.
    fn name(&self) -> &str;

    /// The results for some inputs. It must do the same work at each call.
    fn call(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>>;

    /// The tensors beside the inputs that gradients flow to.
    fn parameters(&self) -> Vec<Tensor>;

    /// Tensors that belong to it and want no gradient.
    fn buffers(&self) -> Vec<Tensor> {
        Vec::new()
    }

    /// Whether it is being trained. While this differs from what it was at the capture, calls go to the function itself.
    fn is_training(&self) -> bool {
        true
    }
}

/// A closure as a callable.
struct OfFunction<F> {
    name: String,
    parameters: Vec<Tensor>,
    function: F,
}

impl<F: Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync> Callable for OfFunction<F> {
    fn name(&self) -> &str {
        &self.name
    }

    fn call(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        (self.function)(inputs)
    }

    fn parameters(&self) -> Vec<Tensor> {
        self.parameters.clone()
    }
}

/// A closure as a [`Callable`], with the tensors that it reads and that gradients flow to.
pub fn function(
    name: &str,
    parameters: Vec<Tensor>,
    function: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
) -> Box<dyn Callable> {
    Box::new(OfFunction { name: name.to_owned(), parameters, function })
}

/// How callables are captured.
#[derive(Clone, Debug)]
pub struct CallableOptions {
    /// How often each is run, forward and backward, before the capture, on a stream of its own. Random numbers are drawn there.
    pub warm_up: usize,
    /// Whether inputs and parameters that want a gradient may go without one.
    pub allow_unused_input: bool,
    /// The pool; a new one where there is none. Graphs of others in a shared pool must be replayed in the order of capture.
    pub pool: Option<GraphPool>,
    /// Which calls of other threads the captures forbid.
    pub mode: CaptureMode,
    /// What to do about results that are still held when they would be overwritten.
    pub live_outputs: LiveOutputs,
}

impl Default for CallableOptions {
    /// PyTorch's: three warm-ups, no unused input.
    fn default() -> Self {
        let (pool, mode, live_outputs) = (None, CaptureMode::default(), LiveOutputs::default());
        Self { warm_up: 3, allow_unused_input: false, pool, mode, live_outputs }
    }
}

/// A function whose forward and backward passes are graphs. See the [module](self).
pub struct GraphedCallable {
    set: Arc<Set>,
    index: usize,
}

/// Makes graphs of callables, which a step uses in this order, once each, before it runs backward. `samples` are the inputs of
/// each: the graphs read these very tensors, so an input that is passed as such is not copied. Whether gradients flow to an
/// input is what its sample says; under [`no_grad`](crate::no_grad) there are forward graphs only.
///
/// *Blocks*: each capture waits for the device.
///
/// # Errors
/// [`Error::is_invalid_argument`](thalweg_runtime::Error::is_invalid_argument) if there are not as many samples as callables, a
/// sample is not contiguous or lies on another device, a buffer requires a gradient, an input or parameter gets none and
/// [`CallableOptions::allow_unused_input`] does not say so, or a callable keeps a result for itself;
/// [`Error::is_capture`](thalweg_runtime::Error::is_capture) if one breaks a rule of capture; and the callables' own.
#[track_caller]
pub fn make_graphed_callables(
    device: &Device,
    callables: Vec<Box<dyn Callable>>,
    samples: Vec<Vec<Tensor>>,
    options: &CallableOptions,
) -> Result<Vec<GraphedCallable>> {
    let label = label_at("make_graphed_callables", Location::caller());
    let count = callables.len();
    let set = record::record(device, callables, samples, options, label)?;
    let set = Arc::new(set);
    Ok((0..count).map(|index| GraphedCallable { set: set.clone(), index }).collect())
}

impl GraphedCallable {
    /// The results for some inputs, of the shapes and dtypes of the samples. Asynchronous on the current stream, like any
    /// operator. The next call of this callable, or of one before it, writes the results' memory again: see [`LiveOutputs`].
    ///
    /// Within a capture, or while the callable's training differs, the function itself is called.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`](thalweg_runtime::Error::is_invalid_argument) if an input differs from its sample, or
    /// results that would be overwritten are still held, and [`LiveOutputs::Refuse`] was asked for.
    #[track_caller]
    pub fn call(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let callable = self.original();
        if callable.is_training() != self.set.was_training(self.index)
            || self.set.device().current_stream().is_capturing()?
        {
            return callable.call(inputs);
        }
        let label = label_at("graphed_callable", Location::caller());
        self.set.forward(self.index, inputs, label).map_err(|error| error.context(callable.name()))
    }

    /// The function itself.
    pub fn original(&self) -> &dyn Callable {
        self.set.callable(self.index)
    }

    /// The pool of all callables that were made together.
    pub fn pool(&self) -> &GraphPool {
        self.set.pool()
    }
}

impl std::fmt::Debug for GraphedCallable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GraphedCallable").field("name", &self.original().name()).finish_non_exhaustive()
    }
}
