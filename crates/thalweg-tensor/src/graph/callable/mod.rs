//! Graphed callables: functions of tensors whose forward and backward passes are one graph each (`make_graphed_callables`).
//!
//! A graphed callable replaces a function inside a program that is otherwise eager: it takes part in autograd as one node, whose
//! backward pass replays the captured one. Callables that are made together share a pool, and are captured in the order in which
//! a step uses them, so that they reuse the pool's memory as that step would:
//!
//! ```text
//! capture   forward 1 … forward N   backward N … backward 1      (one pool; memory that backward i has read is free for the next)
//! call      copy inputs to the graph's own ─ replay forward i ─ record an autograd node
//! backward  copy gradients to the graph's own ─ replay backward i
//! ```
//!
//! # Overwritten memory
//! A replay writes the memory that its recording wrote, which later recordings may have reused. Forward `i` therefore overwrites
//! the results of callables from `i` on, and all gradients; backward `i` overwrites the gradients of callables up to `i`. The
//! callables have a handle of each result and gradient, which reports whether it is still held. If a result is held, the call is
//! refused or the result is moved ([`LiveOutputs`]); a held gradient is moved, so that gradients accumulate as usual. The tensors
//! that forward `i` saves for backward are overwritten by any later forward up to `i` and by a later backward before `i`:
//! backward is an error then, never a wrong number.
//!
//! # Limits
//! Second derivatives are an error. A number that a callable reads on the host keeps the value that it had at the capture.

mod record;
mod replay;

use std::panic::Location;
use std::sync::Arc;

use thalweg_runtime::{CaptureMode, Device, Error, GraphPool, Result, refuse_if};

use super::LiveOutputs;
use crate::autocast::{current_options, is_autocast_enabled};
use crate::caller::label_at;
use crate::tensor::Tensor;
use replay::CallableSet;

/// A function of tensors with parameters, from which [`make_graphed_callables`] makes graphs.
pub trait Callable: Send + Sync {
    /// Returns the name, for errors.
    fn name(&self) -> &str;

    /// Returns the results for some inputs. It must do the same work at each call.
    fn call(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>>;

    /// Returns the tensors other than the inputs that gradients flow to.
    fn parameters(&self) -> Vec<Tensor>;

    /// Returns the tensors that belong to the callable and require no gradient.
    fn buffers(&self) -> Vec<Tensor> {
        Vec::new()
    }

    /// Returns whether the callable is in training mode. While this differs from the mode at the capture, calls go to the
    /// function itself.
    fn is_training(&self) -> bool {
        true
    }
}

/// A closure with its name and parameters.
struct FunctionCallable<F> {
    name: String,
    parameters: Vec<Tensor>,
    function: F,
}

impl<F: Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync> Callable for FunctionCallable<F> {
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

/// Makes a [`Callable`] from a closure. `parameters` are the tensors other than its inputs that it reads and that gradients flow
/// to.
pub fn function(
    name: &str,
    parameters: Vec<Tensor>,
    function: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
) -> Box<dyn Callable> {
    Box::new(FunctionCallable { name: name.to_owned(), parameters, function })
}

/// The options of [`make_graphed_callables`].
#[derive(Clone, Debug)]
pub struct CallableOptions {
    /// The number of runs of each callable, forward and backward, before the capture. They draw random numbers.
    pub warm_up: usize,
    /// A flag that permits inputs and parameters that require a gradient and receive none.
    pub allow_unused_input: bool,
    /// The pool of the graphs; by default a new one. Replay other graphs of a shared pool in the order of their capture.
    pub pool: Option<GraphPool>,
    /// The calls of other threads that the captures forbid.
    pub mode: CaptureMode,
    /// The policy for results that are still held when a replay would overwrite them.
    pub live_outputs: LiveOutputs,
}

impl Default for CallableOptions {
    /// Returns PyTorch's defaults: three warm-ups, no unused input.
    fn default() -> Self {
        let (pool, mode, live_outputs) = (None, CaptureMode::default(), LiveOutputs::default());
        Self { warm_up: 3, allow_unused_input: false, pool, mode, live_outputs }
    }
}

/// A function whose forward and backward passes are graphs. See the [module](self).
pub struct GraphedCallable {
    set: Arc<CallableSet>,
    index: usize,
}

/// Captures the forward and backward passes of callables as graphs (`torch.cuda.make_graphed_callables`). A step must call them in
/// this order, once each, before it runs backward. `samples` are the inputs of each callable: the graphs read these tensors, so a
/// call that passes one of them copies nothing for it. Gradients flow to an input if its sample requires one. Under
/// [`no_grad`](crate::no_grad) there are forward graphs only.
///
/// *Blocks*: each capture waits for the device.
///
/// # Errors
/// [`Error::is_invalid_argument`](thalweg_runtime::Error::is_invalid_argument) if there are not as many samples as callables, a
/// sample has overlapping elements, has gaps, or is on another device, a buffer requires a gradient, an input or parameter
/// receives none and [`CallableOptions::allow_unused_input`] is not set, or a callable keeps a result itself;
/// [`Error::is_capture`](thalweg_runtime::Error::is_capture) if one breaks a rule of capture; and those of the callables.
#[track_caller]
pub fn make_graphed_callables(
    device: &Device,
    callables: Vec<Box<dyn Callable>>,
    samples: Vec<Vec<Tensor>>,
    options: &CallableOptions,
) -> Result<Vec<GraphedCallable>> {
    let label = label_at("make_graphed_callables", Location::caller());
    refuse_if!(
        is_autocast_enabled() && current_options().is_some_and(|options| options.cache_enabled),
        "make_graphed_callables does not support the autocast caching: graphs would read casts that the region frees. Please set \
         `cache_enabled=False`."
    );
    let count = callables.len();
    let set = record::record(device, callables, samples, options, label)?;
    let set = Arc::new(set);
    Ok((0..count).map(|index| GraphedCallable { set: set.clone(), index }).collect())
}

impl GraphedCallable {
    /// Returns the results for inputs that have the shapes and dtypes of the samples. Asynchronous on the current stream, like
    /// any operator. The next call of this callable, or of one before it, overwrites the results' memory: see [`LiveOutputs`].
    ///
    /// Inside a capture, or while the callable's training mode differs from that at its capture, calls the function itself.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`](thalweg_runtime::Error::is_invalid_argument) if an input differs from its sample, or
    /// results that would be overwritten are still held under [`LiveOutputs::Refuse`].
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

    /// Returns the function from which the graphs were captured.
    pub fn original(&self) -> &dyn Callable {
        self.set.callable(self.index)
    }

    /// Returns the pool of all callables that were made together.
    pub fn pool(&self) -> &GraphPool {
        self.set.pool()
    }
}

impl std::fmt::Debug for GraphedCallable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GraphedCallable").field("name", &self.original().name()).finish_non_exhaustive()
    }
}
