//! The recorded graph: a [`Node`] has the backward function of an operator, and an [`Edge`] to the node of each input.
//!
//! A tensor's part in the graph (`meta`) names nodes, and nodes keep tensors (`saved`, `leaf`), whose gradients a pass may
//! request in several ways (`request`): these files and `tensor` depend on each other. Methods of nodes and of tensors in the
//! graph are above them (`edge`, `history`, `hooks`).

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use thalweg_ir::{DType, Shape};
use thalweg_lock::{Mutex, MutexGuard};
use thalweg_runtime::{Device, Result, Stream};

use super::hook_list::HookList;
use super::leaf::{KeptGradient, TensorHook};
use super::origin::{Origin, origin};
use super::request::Request;
use super::saved::SavedPlace;
use crate::deferred;
use crate::scoped::{Scoped, put, scoped};
use crate::tensor::Tensor;

/// A gradient for each of a node's inputs or outputs; `None` is zero.
pub type Gradients = SmallVec<[Option<Tensor>; 4]>;

/// The backward function of a node: it computes the gradients of the node's inputs from those of its outputs.
pub trait Backward: Send + Sync {
    /// Returns the operator, for messages.
    fn name(&self) -> &'static str;

    /// Returns the gradient of each input, in the order of the node's edges. Runs on the stream that was current when the node was
    /// recorded; `gradients` are ready there.
    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients>;

    /// Returns the gradients as [`backward`](Self::backward) does, as far as the pass requests them: see [`Request`].
    fn backward_for(&self, gradients: &[Option<Tensor>], _request: &Request) -> Result<Gradients> {
        self.backward(gradients)
    }

    /// Returns whether the gradient can be differentiated: it is computed by operators that are recorded, or records a node of
    /// its own.
    fn is_recorded(&self) -> bool {
        true
    }

    /// Returns whether this is the cast of an f32 leaf, whose gradient is the result's gradient in f32. A gradient that is added
    /// directly to the leaf's can bypass this function, and gradients passed to it may be f32.
    #[doc(hidden)]
    fn is_cast(&self) -> bool {
        false
    }

    /// Returns whether the function only queues loops and makes views: a compiled pass runs it as early as it can.
    fn is_of_loops(&self) -> bool {
        false
    }

    /// Returns whether the function computes the gradient of each input by a product of its own: a compiled pass may call it twice, for
    /// some of the inputs each time.
    fn is_of_products(&self) -> bool {
        false
    }

    /// Returns whether the function is called even if no gradient has arrived for any result.
    fn runs_without_gradients(&self) -> bool {
        false
    }

    /// Returns whether the function takes gradients that are not made of elements. Others receive such a gradient as a tensor with
    /// elements.
    fn takes_external(&self) -> bool {
        false
    }

    /// Returns whether the function is the program's own, which may have effects besides its gradients.
    fn is_of_the_program(&self) -> bool {
        false
    }

    /// Frees the saved tensors, after a backward pass that does not retain the graph has run this node.
    fn release(&self) {}

    /// Returns the tensors that the function keeps, with PyTorch's names for them, for inspection of a node.
    fn saved(&self) -> Vec<SavedPlace<'_>> {
        Vec::new()
    }
}

/// A place in the graph that gradients flow to: a result of a node's operator.
#[derive(Clone)]
pub struct Edge {
    pub(crate) node: Arc<Node>,
    pub(crate) input: usize,
}

impl Edge {
    /// Returns the edge to a result of a node, by the result's index.
    pub fn new(node: Arc<Node>, place: usize) -> Self {
        Self { node, input: place }
    }

    /// Returns the node.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Returns the index among the node's results.
    pub fn place(&self) -> usize {
        self.input
    }
}

/// A value that a program has attached to a node.
pub type Attachment = dyn Any + Send + Sync;

pub(super) type PreHook = dyn Fn(&[Option<Tensor>]) -> Result<Option<Gradients>> + Send + Sync;
pub(super) type PostHook =
    dyn Fn(&[Option<Tensor>], &[Option<Tensor>]) -> Result<Option<Gradients>> + Send + Sync;

/// The hooks of a node.
#[derive(Default)]
pub(super) struct NodeHooks {
    /// The hooks of the tensors that are the node's results.
    pub(super) tensors: Arc<HookList<TensorHook>>,
    /// The outputs whose gradients are kept, and where.
    retained: Mutex<Vec<(usize, Arc<KeptGradient>)>>,
    pub(super) before: Arc<HookList<PreHook>>,
    pub(super) after: Arc<HookList<PostHook>>,
}

impl NodeHooks {
    pub(super) fn retained(&self) -> MutexGuard<'_, Vec<(usize, Arc<KeptGradient>)>> {
        self.retained.lock()
    }
}

/// The shape, dtype and device of each input of a node, which its gradient has, too.
pub(crate) type Expected = Box<[(Shape, DType, Device)]>;

/// One recorded operator.
pub struct Node {
    pub(crate) function: Box<dyn Backward>,
    /// For each input, the edge that its gradient flows along; `None` for an input that requires none.
    pub(crate) edges: SmallVec<[Option<Edge>; 4]>,
    /// The number of outputs that the operator had.
    pub(crate) outputs: usize,
    /// The number of the node. Later nodes have greater numbers; the engine runs the latest first.
    pub(crate) sequence: u64,
    /// The stream of the forward pass, where the backward function runs too.
    pub(crate) stream: Stream,
    /// The gradient that a leaf keeps, in a leaf's node.
    pub(crate) kept: Option<Arc<KeptGradient>>,
    /// The properties that gradients must have, in the node of a program's own function.
    pub(super) expected: Option<Expected>,
    /// Whether a compiled function recorded the node: its backward function is compiled, too.
    pub(super) is_compiled: bool,
    /// The call that recorded the node, if that was in anomaly mode.
    pub(super) origin: Option<Arc<Origin>>,
    /// The hooks, which few nodes have.
    pub(super) hooks: OnceLock<Box<NodeHooks>>,
    /// The value that a program has attached, which few nodes have.
    pub(super) attachment: OnceLock<Box<Attachment>>,
}

impl Node {
    pub(crate) fn new(
        function: Box<dyn Backward>,
        edges: SmallVec<[Option<Edge>; 4]>,
        outputs: usize,
        stream: Stream,
        expected: Option<Expected>,
    ) -> Arc<Self> {
        Arc::new(Self::with_kept(function, edges, outputs, stream, (None, expected)))
    }

    /// Returns the node of a leaf.
    pub(crate) fn accumulator(
        function: Box<dyn Backward>,
        kept: &Arc<KeptGradient>,
        stream: Stream,
    ) -> Arc<Self> {
        Arc::new(Self::with_kept(function, SmallVec::new(), 1, stream, (Some(kept.clone()), None)))
    }

    fn with_kept(
        function: Box<dyn Backward>,
        edges: SmallVec<[Option<Edge>; 4]>,
        outputs: usize,
        stream: Stream,
        (kept, expected): (Option<Arc<KeptGradient>>, Option<Expected>),
    ) -> Self {
        static SEQUENCE: AtomicU64 = AtomicU64::new(0);
        let sequence = SEQUENCE.fetch_add(1, Ordering::Relaxed);
        let origin = origin(function.name(), || running_node()?.origin.clone());
        let (hooks, attachment) = (OnceLock::new(), OnceLock::new());
        let is_compiled = deferred::is_on();
        Self {
            function,
            edges,
            outputs,
            sequence,
            stream,
            kept,
            expected,
            is_compiled,
            origin,
            hooks,
            attachment,
        }
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

thread_local! {
    /// The node that this thread is running.
    static RUNNING: Scoped<Option<Arc<Node>>> = const { scoped(None) };
}

/// Returns the node whose backward function this thread is running.
pub fn running_node() -> Option<Arc<Node>> {
    RUNNING.with_borrow(|node| (**node).clone())
}

/// Runs a function as a part of a node.
pub(crate) fn running<T>(node: &Arc<Node>, function: impl FnOnce() -> T) -> T {
    let former = put(&RUNNING, Some(Arc::clone(node)));
    let result = deferred::in_backward(function);
    let _ended = put(&RUNNING, former);
    result
}
