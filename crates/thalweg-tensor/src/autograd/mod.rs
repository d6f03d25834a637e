//! Automatic differentiation: the graph that operators record, and the switches of recording.
//!
//! An operator whose inputs require a gradient records a [`Node`]: what it saved, and an [`Edge`] to the node of each input.
//! A leaf's node accumulates into [`Tensor::grad`]. [`backward`](Tensor::backward) walks the graph from the result to the
//! leaves, each node after all nodes that feed it; see `engine` for streams. [`gradients`] gives what arrives at chosen tensors instead.
//!
//! What a node saved must still be what it was: a write in place to a saved tensor is found by its version and is an error
//! that names the operator.

pub(crate) mod engine;
pub(crate) mod nodes;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use smallvec::SmallVec;
use thalweg_runtime::{Error, Result, Stream};

use crate::dispatch::{DispatchKey, ExcludeKeyGuard, is_excluded};
use crate::tensor::Tensor;

/// A gradient for each of a node's inputs or outputs; `None` is zero.
pub type Gradients = SmallVec<[Option<Tensor>; 4]>;

/// What a node computes: the gradients of its inputs from those of its outputs.
pub trait Backward: Send + Sync {
    /// The operator, for messages.
    fn name(&self) -> &'static str;

    /// The gradient of each input, in the order of the node's edges. Runs on the stream that was current when the node was
    /// recorded; `gradients` are ready there.
    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients>;

    /// Of a leaf: the gradient that it keeps, if it has one by now.
    fn leaf_gradient(&self) -> Option<Tensor> {
        None
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
    /// Where the gradient of each input goes; `None` where nobody wants it.
    pub(crate) edges: SmallVec<[Option<Edge>; 4]>,
    /// How many outputs the operator had.
    pub(crate) outputs: usize,
    /// Later nodes have greater numbers; the engine runs the latest first.
    pub(crate) sequence: u64,
    /// The stream of the forward pass, where the backward function runs too.
    pub(crate) stream: Stream,
}

impl Node {
    pub(crate) fn new(
        function: Box<dyn Backward>,
        edges: SmallVec<[Option<Edge>; 4]>,
        outputs: usize,
        stream: Stream,
    ) -> Arc<Self> {
        static SEQUENCE: AtomicU64 = AtomicU64::new(0);
        let sequence = SEQUENCE.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { function, edges, outputs, sequence, stream })
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

/// A tensor's part in the graph.
pub(crate) struct AutogradMeta {
    requires_grad: AtomicBool,
    node: Option<GradientEdge>,
    gradient: Arc<Mutex<Option<Tensor>>>,
    accumulator: OnceLock<Mutex<Weak<Node>>>,
}

impl AutogradMeta {
    pub(crate) fn leaf(requires_grad: bool) -> Self {
        Self {
            requires_grad: AtomicBool::new(requires_grad),
            node: None,
            gradient: Arc::default(),
            accumulator: OnceLock::new(),
        }
    }

    pub(crate) fn of_node(node: GradientEdge) -> Self {
        Self { node: Some(node), ..Self::leaf(true) }
    }

    pub(crate) fn requires_grad(&self) -> bool {
        self.requires_grad.load(Ordering::Acquire)
    }

    pub(crate) fn node(&self) -> Option<&GradientEdge> {
        self.node.as_ref()
    }

    pub(crate) fn gradient(&self) -> &Arc<Mutex<Option<Tensor>>> {
        &self.gradient
    }
}

impl Tensor {
    /// Where this tensor's gradient goes: its node, or the accumulator of a leaf. `None` where it wants none.
    pub(crate) fn gradient_edge(&self) -> Option<Edge> {
        let meta = &self.0.autograd;
        if let Some(edge) = meta.node() {
            return Some(edge.clone());
        }
        if !meta.requires_grad() {
            return None;
        }
        let slot = meta.accumulator.get_or_init(Mutex::default);
        let mut slot = slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(node) = slot.upgrade() {
            return Some(Edge { node, input: 0 });
        }
        let accumulate = nodes::Accumulate::new(meta.gradient().clone(), self.shape());
        let node = Node::new(Box::new(accumulate), SmallVec::new(), 1, self.device().current_stream());
        *slot = Arc::downgrade(&node);
        Some(Edge { node, input: 0 })
    }

    /// Computes the gradients of all leaves that this tensor, of one element, depends on, and adds them to
    /// [`Tensor::grad`]. Asynchronous: the gradients are ready for work on the current stream.
    pub fn backward(&self) -> Result<()> {
        if self.elements() != 1 {
            return Err(Error::invalid(format!(
                "backward: shape {:?} has {} elements; give a gradient with `backward_with`, or reduce it to one",
                self.shape(),
                self.elements()
            )));
        }
        let one = no_grad(|| Tensor::ones(self.shape(), self.dtype(), self.device()))?;
        self.backward_with(&one)
    }

    /// [`Tensor::backward`] from a given gradient of this tensor, of its shape, dtype and device.
    pub fn backward_with(&self, gradient: &Tensor) -> Result<()> {
        let Some(edge) = self.gradient_edge() else {
            return Err(Error::invalid(
                "backward: this tensor depends on no leaf that requires a gradient (was it computed under no_grad?)",
            ));
        };
        self.check_gradient("backward", gradient)?;
        no_grad(|| engine::run(edge, gradient.detach()))
    }
}

/// The gradients of `inputs`, from gradients of `outputs` (`torch.autograd.grad` with `allow_unused`): `None` for an input that
/// wants none, or that no output depends on; outputs without a gradient, or outside the graph, count for nothing. No leaf's
/// [`Tensor::grad`] changes. Asynchronous: the results are ready for work on the current stream.
///
/// # Errors
/// [`Error::is_invalid_argument`] if a gradient has not the shape, dtype and device of its output, or there is not one for
/// each.
pub fn gradients(
    outputs: &[Tensor],
    output_gradients: &[Option<Tensor>],
    inputs: &[Tensor],
) -> Result<Vec<Option<Tensor>>> {
    if outputs.len() != output_gradients.len() {
        return Err(Error::invalid(format!(
            "gradients: {} outputs and {} gradients of outputs",
            outputs.len(),
            output_gradients.len()
        )));
    }
    let mut roots = Vec::new();
    for (output, gradient) in outputs.iter().zip(output_gradients) {
        let (Some(edge), Some(gradient)) = (output.gradient_edge(), gradient) else { continue };
        output.check_gradient("gradients", gradient)?;
        roots.push((edge, gradient.detach()));
    }
    let targets: Vec<Option<Edge>> = inputs.iter().map(Tensor::gradient_edge).collect();
    no_grad(|| engine::gradients(roots, &targets))
}

/// Runs a function whose operators record nothing (`torch.no_grad`).
pub fn no_grad<T>(function: impl FnOnce() -> T) -> T {
    let _guard = ExcludeKeyGuard::new(DispatchKey::Autograd);
    function()
}

/// Whether operators of this thread record themselves.
pub fn is_grad_enabled() -> bool {
    !is_excluded(DispatchKey::Autograd)
}

/// The node of an operator over `inputs` with these results: `results` become part of the graph.
pub(crate) fn record(
    function: Box<dyn Backward>,
    inputs: &[&Tensor],
    results: &mut [Tensor],
    stream: Stream,
) {
    let edges = inputs.iter().map(|tensor| tensor.gradient_edge()).collect();
    let node = Node::new(function, edges, results.len(), stream);
    for (input, result) in results.iter_mut().enumerate() {
        if result.dtype().is_floating_point() {
            *result = result.with_edge(Edge { node: node.clone(), input });
        }
    }
}

/// A tensor that a node keeps for backward, with the version that it had.
pub(crate) struct Saved {
    tensor: Tensor,
    version: u32,
}

impl Saved {
    pub(crate) fn new(tensor: &Tensor) -> Self {
        // Outside the graph: a node that keeps its own result must not keep itself alive.
        Self { tensor: tensor.detach(), version: tensor.version() }
    }

    /// The tensor, if it was not written since.
    pub(crate) fn get(&self) -> Result<&Tensor> {
        if self.tensor.version() == self.version {
            Ok(&self.tensor)
        } else {
            Err(Error::invalid(format!(
                "a tensor {:?} that backward needs was written in place after the forward pass (version {}, saved {}); \
                 compute out of place, or run backward first",
                self.tensor.shape(),
                self.tensor.version(),
                self.version
            )))
        }
    }
}
