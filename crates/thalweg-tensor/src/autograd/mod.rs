//! Automatic differentiation: the graph that operators record, and the switches of recording.
//!
//! An operator whose inputs require a gradient records a [`Node`]: what it saved, and an [`Edge`] to the node of each input.
//! A leaf's node accumulates into [`Tensor::grad`]. [`backward`](Tensor::backward) walks the graph from the result to the
//! leaves, each node after all nodes that feed it; see `engine` for streams. [`gradients`] gives what arrives at chosen tensors
//! instead, and [`backward_input`] cuts a pass in two. Hooks see, and may replace, the gradients on the way.
//!
//! What a node saved must still be what it was: a write in place to a saved tensor is found by its version and is an error
//! that names the operator. A backward pass frees what the nodes saved as it goes, unless [`BackwardOptions::retain_graph`] is
//! set. A write in place of something that a gradient flows from is recorded too; see `kernels::recorded_write`.
//!
//! # Gradients that leaves have already
//! A pass adds to them in place, as PyTorch does: all holders of [`Tensor::grad`] see the sum, and a graph that saved it finds it written. Under
//! [`BackwardOptions::create_graph`] the sum is a new tensor. Where the gradient of a weight is a matrix product, the kernel that multiplies adds it
//! (`sums`): the sum is rounded once, no memory is needed for the product, and nothing follows it. So it is with the products of a weight
//! that several layers share, and of a weight that autocast casts: its f32 gradient is added to without being rounded to 16 bits. A gradient of its own is made for hooks that see it, in anomaly mode, in [`gradients`], on other
//! streams than the caller's, and where dtype or layout of the leaf's gradient differ from the product's.
//!
//! # Hooks
//! A pass comes to a node when all gradients of its outputs have arrived, and then calls, with the node's stream current:
//!
//! 1. the hooks of tensors ([`Tensor::register_hook`]) in the order of their registration, each of which sees what the former left;
//! 2. [`Tensor::retain_grad`], which keeps what those left;
//! 3. the hooks before the node ([`Node::register_prehook`]);
//! 4. the node's backward function; of a leaf, the accumulation into [`Tensor::grad`];
//! 5. the hooks behind the accumulation ([`Tensor::register_post_accumulate_grad_hook`]), and those behind the node
//!    ([`Node::register_hook`]).
//!
//! [`gradients`] calls those of 1 and 2 for its inputs too, and returns what they left; PyTorch's
//! `torch.autograd.grad` returns what arrived where it goes on beyond the input. No hook is called where no gradient arrived.
//!
//! A hook's result must be ready on the stream that is current when it is called: one that works on another stream lets this one
//! wait for it, and records the uses of tensors on both. Hooks run under `no_grad`, unless
//! [`BackwardOptions::create_graph`] is set. An error of a hook is one of the pass.

mod anomaly;
mod checkpoint;
mod edge;
pub(crate) mod engine;
pub mod formula;
mod gradcheck;
mod halves;
mod hook_list;
mod hooks;
mod leaf;
mod meta;
mod mode;
mod offload;
mod pass;
mod region;
mod saved;
mod sums;

use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use thalweg_runtime::{Error, Label, Result, Stream, within};

use crate::caller::at_line;
use crate::dispatch::{DispatchKey, ExcludeKeyGuard};
use crate::scoped::{Scoped, put, scoped};
use crate::tensor::Tensor;

pub use anomaly::{
    detect_anomaly, is_anomaly_check_nan_enabled, is_anomaly_enabled, set_anomaly_enabled,
    set_detect_anomaly, set_stack_source,
};
pub use checkpoint::{CheckpointOptions, Explain, checkpoint, checkpoint_with};
pub use edge::{Attachment, Backpropagation, SavedPlace, run_backward};
pub use gradcheck::{GradcheckOptions, gradcheck, gradgradcheck};
pub(crate) use halves::is_asked;
pub use halves::{BackwardWeights, backward_input};
pub use hook_list::HookHandle;
pub(crate) use hook_list::HookList;
pub(crate) use meta::{AutogradMeta, ViewOf};
pub use mode::{
    NoGrad, enable_grad, inference_mode, is_grad_enabled, is_inference_mode_enabled, no_grad,
    set_grad_enabled, set_inference_mode, set_inference_mode_enabled, try_no_grad,
};
pub use offload::save_on_cpu;
pub use pass::{at_end as at_pass_end, number as pass_number, queue_callback, will_run};
pub(crate) use region::Region;
pub use saved::{
    Saved, SavedTensorsRegion, enter_saved_tensors_hooks, saved_tensors_hooks, saved_tensors_hooks_for,
};
pub(crate) use sums::{is_widened, sum_of};

/// A gradient for each of a node's inputs or outputs; `None` is zero.
pub type Gradients = SmallVec<[Option<Tensor>; 4]>;

/// The backward function of a node: it computes the gradients of the node's inputs from those of its outputs.
pub trait Backward: Send + Sync {
    /// Returns the operator, for messages.
    fn name(&self) -> &'static str;

    /// Returns the gradient of each input, in the order of the node's edges. Runs on the stream that was current when the node was
    /// recorded; `gradients` are ready there.
    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients>;

    /// Returns the gradients as [`backward`](Self::backward) does, in a pass that frees what was saved: it may write over it, where nothing
    /// else holds it.
    fn backward_last(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        self.backward(gradients)
    }

    /// Returns whether its gradient can be differentiated: it is computed by operators that record themselves, or records a node of
    /// its own.
    fn is_recorded(&self) -> bool {
        true
    }

    /// Returns whether it is the cast of a leaf of f32, whose gradient is that of the result in f32: what is added to the leaf's gradient need
    /// not pass here, and what does may be of f32.
    #[doc(hidden)]
    fn is_cast(&self) -> bool {
        false
    }

    /// Returns whether it is called where no gradient has arrived for any result.
    fn runs_without_gradients(&self) -> bool {
        false
    }

    /// Frees what was saved: a backward pass that does not retain the graph has run this node.
    fn release(&self) {}

    /// Returns the tensors that it keeps, with the names that PyTorch has for them, for those who look at a node.
    fn saved(&self) -> Vec<SavedPlace<'_>> {
        Vec::new()
    }
}

/// A place in the graph that gradients flow to: an input of a node.
#[derive(Clone)]
pub struct Edge {
    pub(crate) node: Arc<Node>,
    pub(crate) input: usize,
}

/// The output of a node that a tensor is.
pub(crate) type GradientEdge = Edge;

/// One recorded operator.
pub struct Node {
    pub(crate) function: Box<dyn Backward>,
    /// The node that the gradient of each input goes to; `None` for an input that requires none.
    pub(crate) edges: SmallVec<[Option<Edge>; 4]>,
    /// The number of outputs that the operator had.
    pub(crate) outputs: usize,
    /// Later nodes have greater numbers; the engine runs the latest first.
    pub(crate) sequence: u64,
    /// The stream of the forward pass, where the backward function runs too.
    pub(crate) stream: Stream,
    /// The gradient that a leaf keeps, of a leaf's node.
    pub(crate) kept: Option<Arc<leaf::Kept>>,
    /// The call that recorded it, if that was in anomaly mode.
    origin: Option<Arc<anomaly::Origin>>,
    /// Hooks, of few nodes.
    hooks: OnceLock<Box<hooks::NodeHooks>>,
    /// The value that a program has put beside it, of few nodes.
    attachment: OnceLock<Box<Attachment>>,
}

impl Node {
    pub(crate) fn new(
        function: Box<dyn Backward>,
        edges: SmallVec<[Option<Edge>; 4]>,
        outputs: usize,
        stream: Stream,
    ) -> Arc<Self> {
        Arc::new(Self::with_kept(function, edges, outputs, stream, None))
    }

    /// Returns the node of a leaf.
    pub(crate) fn accumulator(
        function: Box<dyn Backward>,
        kept: &Arc<leaf::Kept>,
        stream: Stream,
    ) -> Arc<Self> {
        Arc::new(Self::with_kept(function, SmallVec::new(), 1, stream, Some(kept.clone())))
    }

    fn with_kept(
        function: Box<dyn Backward>,
        edges: SmallVec<[Option<Edge>; 4]>,
        outputs: usize,
        stream: Stream,
        kept: Option<Arc<leaf::Kept>>,
    ) -> Self {
        static SEQUENCE: AtomicU64 = AtomicU64::new(0);
        let sequence = SEQUENCE.fetch_add(1, Ordering::Relaxed);
        let origin = anomaly::origin(function.name(), running_node);
        let (hooks, attachment) = (OnceLock::new(), OnceLock::new());
        Self { function, edges, outputs, sequence, stream, kept, origin, hooks, attachment }
    }
}

impl Drop for Node {
    /// Unlinks a long chain without recursion, so that a deep graph does not overflow the stack.
    fn drop(&mut self) {
        let mut pending: Vec<Edge> = self.edges.drain(..).flatten().collect();
        while let Some(edge) = pending.pop() {
            if let Some(mut node) = Arc::into_inner(edge.node) {
                pending.extend(node.edges.drain(..).flatten());
            }
        }
    }
}

impl Tensor {
    /// Computes the gradients of all leaves that this tensor, of one element, depends on, and adds them to
    /// [`Tensor::grad`] in place. Frees what the graph saved, so that it runs once: see [`BackwardOptions`]. Asynchronous: the gradients
    /// are ready for work on the current stream.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the tensor has another number of elements than one, depends on no leaf that requires a
    /// gradient, or its graph was run before; and those of the operators' backward functions. Leaves that a failed pass has not
    /// come to keep the gradients that they had.
    #[track_caller]
    pub fn backward(&self) -> Result<()> {
        self.backward_options(None, BackwardOptions::default())
    }

    /// Runs backward as [`Tensor::backward`] does, from a given gradient of this tensor.
    ///
    /// # Errors
    /// Those of [`Tensor::backward_options`].
    #[track_caller]
    pub fn backward_with(&self, gradient: &Tensor) -> Result<()> {
        self.backward_options(Some(gradient), BackwardOptions::default())
    }

    /// Runs backward as [`Tensor::backward`] does, with options, from a gradient of this tensor (1 where none is given and the
    /// tensor has one element).
    ///
    /// # Errors
    /// Those of [`Tensor::backward`]; [`Error::is_invalid_argument`] if the gradient does not have the tensor's shape, dtype and
    /// device.
    #[track_caller]
    pub fn backward_options(&self, gradient: Option<&Tensor>, options: BackwardOptions) -> Result<()> {
        let _call = within(Label::here("backward"));
        at_line(Location::caller(), || {
            let gradient = self.starting_gradient("backward", gradient, options)?;
            let Some(edge) = self.gradient_edge() else {
                return Err(Error::invalid(
                    "backward: this tensor does not require grad and does not have a grad_fn: it depends on no leaf that requires a \
                     gradient (was it computed under no_grad? is it made of gradients of a pass without create_graph?)",
                ));
            };
            options.run(|| engine::run(edge, gradient, options))
        })
    }

    /// Returns the gradient of this output that a pass starts from: the one that was given, or 1 for a real output of one element.
    fn starting_gradient(
        &self,
        operator: &str,
        gradient: Option<&Tensor>,
        options: BackwardOptions,
    ) -> Result<Tensor> {
        if let Some(gradient) = gradient {
            self.check_gradient(operator, gradient)?;
            return Ok(options.given(gradient));
        }
        if self.elements() != 1 {
            return Err(Error::invalid(format!(
                "{operator}: shape {:?} has {} elements, and grad can be implicitly created only for scalar outputs; give a gradient, \
                 or reduce it to one",
                self.shape(),
                self.elements()
            )));
        }
        if self.dtype().is_complex() {
            return Err(Error::invalid(format!(
                "{operator}: grad can be implicitly created only for real scalar outputs, and this one is complex; give a gradient"
            )));
        }
        no_grad(|| Tensor::ones(self.shape(), self.dtype(), self.device()))
    }
}

/// The options of a backward pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BackwardOptions {
    /// Whether what the graph saved is kept, so that another backward pass can follow (`retain_graph` of PyTorch). Without it
    /// the memory is given back as the pass goes, and a second one over the same nodes is an error.
    pub retain_graph: bool,
    /// Whether the gradients are themselves part of a graph, so that gradients of gradients can follow (`create_graph` of
    /// PyTorch). What the graph saved is kept then too.
    pub create_graph: bool,
}

impl BackwardOptions {
    /// Returns whether what the graph saved is kept.
    pub(crate) const fn retains(self) -> bool {
        self.retain_graph || self.create_graph
    }

    /// Runs a pass, recorded only if gradients of gradients are asked for.
    pub(crate) fn run<T>(self, pass: impl FnOnce() -> T) -> T {
        let _computes_in_the_dtypes_of_the_forward_pass = ExcludeKeyGuard::new(DispatchKey::Autocast);
        if self.create_graph { pass() } else { no_grad(pass) }
    }

    /// Returns a gradient that the caller gave: outside the graph unless gradients of gradients are asked for.
    fn given(self, gradient: &Tensor) -> Tensor {
        if self.create_graph { gradient.clone() } else { gradient.detach() }
    }
}

/// Returns, of each leaf, whether a backward pass from any of these tensors would come to it: of parameters, which of them were used.
pub fn reached(outputs: &[Tensor], leaves: &[Tensor]) -> Vec<bool> {
    engine::reached(outputs, leaves)
}

/// Returns the gradients of `inputs`, from gradients of `outputs` (`torch.autograd.grad` with `allow_unused`): `None` for an input
/// that wants none, or that no output depends on. The gradient of an output of one real element may be left out, and is 1 then;
/// outputs outside the graph count for nothing. No leaf's [`Tensor::grad`] changes. Frees what the nodes on the way saved.
/// Asynchronous: the results are ready for work on the current stream.
///
/// # Errors
/// [`Error::is_invalid_argument`] if a gradient has not the shape, dtype and device of its output, is left out for an output of
/// more elements than one or of complex numbers, there is not an entry for each output, or the graph was run before.
#[track_caller]
pub fn gradients(
    outputs: &[Tensor],
    output_gradients: &[Option<Tensor>],
    inputs: &[Tensor],
) -> Result<Vec<Option<Tensor>>> {
    gradients_with(outputs, output_gradients, inputs, BackwardOptions::default())
}

/// Computes gradients as [`gradients`] does, with options.
///
/// # Errors
/// Those of [`gradients`].
#[track_caller]
pub fn gradients_with(
    outputs: &[Tensor],
    output_gradients: &[Option<Tensor>],
    inputs: &[Tensor],
    options: BackwardOptions,
) -> Result<Vec<Option<Tensor>>> {
    let _call = within(Label::here("gradients"));
    at_line(Location::caller(), || {
        if outputs.len() != output_gradients.len() {
            return Err(Error::invalid(format!(
                "gradients: {} outputs and {} gradients of outputs",
                outputs.len(),
                output_gradients.len()
            )));
        }
        let mut roots = Vec::new();
        for (output, gradient) in outputs.iter().zip(output_gradients) {
            let Some(edge) = output.gradient_edge() else { continue };
            roots.push((edge, output.starting_gradient("gradients", gradient.as_ref(), options)?));
        }
        let targets: Vec<Option<Edge>> = inputs.iter().map(Tensor::gradient_edge).collect();
        options.run(|| engine::gradients(roots, &targets, options))
    })
}

/// The backward function of a gradient whose own gradient is not known.
struct Undifferentiable(&'static str);

impl Backward for Undifferentiable {
    fn name(&self) -> &'static str {
        self.0
    }

    fn backward(&self, _: &[Option<Tensor>]) -> Result<Gradients> {
        Err(Error::invalid(format!("the gradient of {} cannot be differentiated again", self.0)))
    }
}

/// Runs a node's backward function, for the last time if what it saved is not kept; what it computes without recording itself is marked
/// as having no gradient of its own.
pub(crate) fn run_function(
    node: &Arc<Node>,
    gradients: &[Option<Tensor>],
    is_last: bool,
) -> Result<Gradients> {
    let _unpacked = saved::Unpacked::new();
    let function = &node.function;
    if !is_grad_enabled() {
        return running(node, || match is_last {
            true => function.backward_last(gradients),
            false => function.backward(gradients),
        });
    }
    if function.is_recorded() {
        return running(node, || function.backward(gradients));
    }
    let mut results = no_grad(|| function.backward(gradients))?;
    let inputs: SmallVec<[&Tensor; 4]> = gradients.iter().flatten().collect();
    for result in results.iter_mut().flatten() {
        let mut marked = [result.detach()];
        record(Box::new(Undifferentiable(function.name())), &inputs, &mut marked, node.stream.clone());
        let [marked] = marked;
        *result = marked;
    }
    Ok(results)
}

/// Records the node of an operator over `inputs`: its `results` become part of the graph.
pub(crate) fn record(
    function: Box<dyn Backward>,
    inputs: &[&Tensor],
    results: &mut [Tensor],
    stream: Stream,
) {
    record_places(function, inputs, results.iter_mut().map(Some), stream);
}

/// Records a node as [`record`] does, some of whose results are not tensors.
fn record_places<'a>(
    function: Box<dyn Backward>,
    inputs: &[&Tensor],
    results: impl ExactSizeIterator<Item = Option<&'a mut Tensor>>,
    stream: Stream,
) {
    let edges = inputs.iter().map(|tensor| tensor.gradient_edge()).collect();
    let node = Node::new(function, edges, results.len(), stream);
    for (input, result) in results.enumerate() {
        if let Some(result) = result.filter(|result| result.dtype().is_differentiable()) {
            result.join(Edge { node: node.clone(), input });
        }
    }
}

/// Records a function of one's own (`torch.autograd.Function`): returns `results`, which the caller has computed from `inputs`
/// outside the graph, as the outputs of a node with this backward function. One that shares memory with an input cannot be written in place.
/// What the node needs it holds itself. Where nothing is recorded, or no input requires a gradient, the results come back as they are.
///
/// ```
/// # use thalweg_runtime::{Device, Result};
/// # use thalweg_tensor::{Tensor, no_grad};
/// # use thalweg_tensor::autograd::{Backward, Gradients, record_function};
/// # use thalweg_ir::DType;
/// /// A copy whose gradient is turned around.
/// struct Reversal;
///
/// impl Backward for Reversal {
///     fn name(&self) -> &'static str {
///         "reversal"
///     }
///
///     fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
///         gradients.iter().map(|gradient| gradient.as_ref().map(Tensor::neg).transpose()).collect()
///     }
/// }
///
/// # fn main() -> Result<()> {
/// let x = Tensor::ones(&[2], DType::F32, &Device::sim(0)?)?.requires_grad_()?;
/// let copy = no_grad(|| x.mul_scalar(1.0))?;
/// let y = record_function(Box::new(Reversal), &[&x], vec![copy]).remove(0);
/// y.sum(&[], false)?.backward()?;
/// assert_eq!(x.grad().expect("a gradient").to_vec::<f32>()?, [-1.0, -1.0]);
/// # Ok(())
/// # }
/// ```
pub fn record_function(function: Box<dyn Backward>, inputs: &[&Tensor], results: Vec<Tensor>) -> Vec<Tensor> {
    let results = results.into_iter().map(Some).collect();
    record_function_of_any(function, inputs, results).into_iter().flatten().collect()
}

/// Records a function as [`record_function`] does, some of whose results are not tensors: `None` is one, and has no gradient.
pub fn record_function_of_any(
    function: Box<dyn Backward>,
    inputs: &[&Tensor],
    results: Vec<Option<Tensor>>,
) -> Vec<Option<Tensor>> {
    let (true, Some(first)) = (is_grad_enabled(), inputs.iter().find(|input| input.requires_grad())) else {
        return results;
    };
    let stream = first.device().current_stream();
    let apart = |result: &Tensor| match inputs.iter().any(|input| input.shares_storage_with(result)) {
        true => result.detached_view(),
        false => result.detach(),
    };
    let mut results: Vec<Option<Tensor>> = results.iter().map(|result| result.as_ref().map(apart)).collect();
    record_places(function, inputs, results.iter_mut().map(Option::as_mut), stream);
    results
}

thread_local! {
    /// The node that this thread runs.
    static RUNNING: Scoped<Option<Arc<Node>>> = const { scoped(None) };
}

/// Returns the node whose backward function this thread runs.
pub fn running_node() -> Option<Arc<Node>> {
    RUNNING.with_borrow(|node| (**node).clone())
}

/// Runs a function as a part of a node.
pub(crate) fn running<T>(node: &Arc<Node>, function: impl FnOnce() -> T) -> T {
    let former = put(&RUNNING, Some(Arc::clone(node)));
    let result = function();
    let _ended = put(&RUNNING, former);
    result
}
