//! The engine: runs the recorded graph backwards.
//!
//! A node runs when every node that feeds it has run; among the ready nodes, leaves run first, then the one recorded last. A pass
//! through what a compiled function recorded moves some work in this [order], with the same results.
//! Everything runs on the calling thread; the work itself is asynchronous on the device.
//!
//! # Streams
//! Every node has one canonical stream, the one that was current when it was recorded, and its backward function runs with that
//! stream current. If a gradient was produced on another stream, the node's stream waits for it by an event, and its memory is
//! marked as used there. At the end of the pass, the caller's stream waits for every stream on which work was left, and so does
//! the current stream of each other device: work that follows `backward` there is ordered after it. A leaf's gradient may then be
//! memory of another stream; it is marked as used on the caller's stream, where the optimizer will read and drop it. Tensors that
//! a node saved may be memory of another stream as well, and so may the existing gradient of a leaf: both are marked as used on
//! the stream where the node runs.

mod order;

use std::collections::BinaryHeap;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use thalweg_profiler::record_operator_with;
use thalweg_runtime::{Device, Error, Result, Stream, invalid, refuse_if};

use self::order::Late;
use super::pass::{RunningPass, Runs};
use super::request::{Asked, Request};
use super::saved::Unpacked;
use super::{
    Backward, BackwardOptions, BackwardWeights, Edge, Gradients, Node, anomaly, is_grad_enabled, leaf,
    no_grad, pass, record, running,
};
use crate::deferred::Region;
use crate::moves::is_one_driver;
use crate::storage::Storage;
use crate::tensor::Tensor;

/// The gradients that have arrived for a node's outputs, each with the stream on which it is ready.
type Buffer = SmallVec<[Option<(Tensor, Stream)>; 2]>;

/// A node that can run.
struct Ready {
    node: Arc<Node>,
    /// Whether it runs ahead of nodes that were recorded after it.
    is_ahead: bool,
}

impl From<Arc<Node>> for Ready {
    fn from(node: Arc<Node>) -> Self {
        Self { node, is_ahead: false }
    }
}

impl PartialEq for Ready {
    fn eq(&self, other: &Self) -> bool {
        self.node.sequence == other.node.sequence
    }
}

impl Eq for Ready {}

impl PartialOrd for Ready {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ready {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let key = |Self { node, is_ahead }: &Self| (node.is_accumulator(), *is_ahead, node.sequence);
        key(self).cmp(&key(other))
    }
}

/// Runs the graph from `root`, whose gradient is `gradient`: leaves accumulate the gradients that arrive.
pub(crate) fn run(root: Edge, gradient: Tensor, options: BackwardOptions) -> Result<()> {
    Pass::new(vec![(root, gradient)], None, options)?.run().map(drop)
}

/// Runs the graph from several roots, and returns the gradients that arrive at the targets. Leaves accumulate nothing, and nodes
/// that lead to no target do not run.
pub(crate) fn gradients(
    roots: Vec<(Edge, Tensor)>,
    targets: &[Option<Edge>],
    options: BackwardOptions,
) -> Result<Vec<Option<Tensor>>> {
    if roots.is_empty() {
        return Ok(vec![None; targets.len()]);
    }
    Pass::new(roots, Some(targets), options)?.run()
}

/// Runs the graph from several roots: leaves accumulate the gradients that arrive, either all leaves or only those among the
/// targets.
pub(super) fn accumulate(
    roots: Vec<(Edge, Tensor)>,
    targets: Option<&[Option<Edge>]>,
    options: BackwardOptions,
) -> Result<()> {
    if roots.is_empty() {
        return Ok(());
    }
    let mut pass = Pass::new(roots, targets, options)?;
    if let Some(wanted) = &mut pass.wanted {
        let nodes = wanted.nodes.clone();
        Arc::make_mut(&mut wanted.on_the_way).extend(nodes.iter());
    }
    pass.run().map(drop)
}

/// A node that has run for some of its edges: the gradients that had arrived, and the remaining edges.
pub(super) struct RetainedNode {
    pub(super) node: Arc<Node>,
    gradients: Gradients,
    pub(super) asked: Asked,
}

/// Runs the first half of a pass: only the edges that lead to the target. Returns the gradient that arrives there, and the nodes
/// left for the second half.
pub(super) fn first_half(
    root: Edge,
    gradient: Tensor,
    target: Option<Edge>,
) -> Result<(Option<Tensor>, BackwardWeights)> {
    let targets = [target];
    let mut pass =
        Pass::new(vec![(root.clone(), gradient.clone())], Some(&targets), BackwardOptions::default())?;
    pass.kept = Some(Vec::new());
    let is_apart = pass.wanted.as_ref().is_some_and(|wanted| !wanted.leads(&root));
    let (mut arrived, kept) = pass.run_and_keep()?;
    let rest = is_apart.then_some((root, gradient));
    Ok((arrived.pop().flatten(), BackwardWeights { kept, root: rest }))
}

/// Runs the second half of a pass.
pub(super) fn second_half(rest: BackwardWeights) -> Result<()> {
    let BackwardWeights { kept, root } = rest;
    let roots = kept.iter().flat_map(RetainedNode::others).chain(root.as_ref().map(|(edge, _)| edge));
    let nodes = reachable(roots.map(|edge| &edge.node));
    let mut missing: FxHashMap<u64, usize> = FxHashMap::default();
    let inner = nodes.iter().flat_map(|node| node.edges.iter().flatten());
    for edge in inner.chain(kept.iter().flat_map(RetainedNode::others)) {
        *missing.entry(edge.node.sequence).or_insert(0) += 1;
    }
    let device = kept.first().map(|kept| kept.node().stream.device());
    let device = device.or(root.as_ref().map(|(_, gradient)| gradient.device()));
    let Some(caller) = device.map(thalweg_runtime::Device::current_stream) else { return Ok(()) };
    let (buffers, ready) = (FxHashMap::default(), BinaryHeap::new());
    let (wanted, options) = (None, BackwardOptions::default());
    let (captures, begun) = (caller.is_capturing()?, FxHashMap::default());
    let (late, is_compiled) = (Late::default(), false);
    let roots = kept.iter().map(|kept| kept.node.clone()).collect();
    let mut pass = Pass {
        caller,
        captures,
        missing,
        buffers,
        ready,
        wanted,
        options,
        roots,
        kept: None,
        begun,
        late,
        is_compiled,
    };
    if let Some((edge, gradient)) = root {
        let stream = pass.caller.clone();
        pass.deliver(&edge, gradient, &stream)?;
        pass.ready.push(edge.node.into());
    }
    for kept in kept {
        pass.ready.push(kept.node.clone().into());
        pass.begun.insert(kept.node.sequence, kept);
    }
    pass.run().map(drop)
}

/// One walk over the graph.
struct Pass {
    caller: Stream,
    /// Whether the pass is captured.
    captures: bool,
    /// The number of edges that still have to deliver, per node.
    missing: FxHashMap<u64, usize>,
    buffers: FxHashMap<u64, Buffer>,
    ready: BinaryHeap<Ready>,
    wanted: Option<Wanted>,
    options: BackwardOptions,
    /// The nodes that the pass starts from.
    roots: Vec<Arc<Node>>,
    /// For the first half of a pass, the nodes that it leaves to the second.
    kept: Option<Vec<RetainedNode>>,
    /// For the second half, the nodes that the first half has begun.
    begun: FxHashMap<u64, RetainedNode>,
    /// The products that compute the gradients of their leaves later.
    late: Late,
    /// Whether the loops of the pass are compiled.
    is_compiled: bool,
}

/// The edges whose gradients a walk returns, instead of writing those of the leaves.
struct Wanted {
    /// The indices of the targets, by node and input.
    targets: FxHashMap<(u64, usize), SmallVec<[usize; 1]>>,
    /// The nodes of the targets.
    nodes: Arc<FxHashSet<u64>>,
    arrived: Vec<Option<(Tensor, Stream)>>,
    /// Nodes from which a target is reached.
    on_the_way: Arc<FxHashSet<u64>>,
}

impl Pass {
    fn new(
        roots: Vec<(Edge, Tensor)>,
        targets: Option<&[Option<Edge>]>,
        options: BackwardOptions,
    ) -> Result<Self> {
        let caller = roots[0].1.device().current_stream();
        let nodes = reachable(roots.iter().map(|(edge, _)| &edge.node));
        let mut missing: FxHashMap<u64, usize> = FxHashMap::default();
        for edge in nodes.iter().flat_map(|node| node.edges.iter().flatten()) {
            *missing.entry(edge.node.sequence).or_insert(0) += 1;
        }
        let wanted = targets.map(|targets| Wanted::new(targets, &nodes));
        let (buffers, ready) = (FxHashMap::default(), BinaryHeap::new());
        let (kept, begun) = (None, FxHashMap::default());
        let (late, is_compiled) = (Late::default(), false);
        let captures = caller.is_capturing()?;
        let starting = roots.iter().map(|(edge, _)| edge.node.clone()).collect();
        let mut pass = Self {
            caller,
            captures,
            missing,
            buffers,
            ready,
            wanted,
            options,
            roots: starting,
            kept,
            begun,
            late,
            is_compiled,
        };
        let mut starts: FxHashMap<u64, Arc<Node>> = FxHashMap::default();
        for (edge, gradient) in roots {
            let stream = pass.caller.clone();
            pass.deliver(&edge, gradient, &stream)?;
            starts.insert(edge.node.sequence, edge.node);
        }
        starts.retain(|sequence, _| !pass.missing.contains_key(sequence));
        pass.ready.extend(starts.into_values().map(Ready::from));
        Ok(pass)
    }

    /// Runs ready nodes until none is left. Returns the gradients of the targets, ready on the caller's stream.
    fn run(self) -> Result<Vec<Option<Tensor>>> {
        self.run_and_keep().map(|(arrived, _)| arrived)
    }

    /// Runs the pass as [`run`](Self::run) does, and also returns the nodes that a second half starts from.
    fn run_and_keep(mut self) -> Result<(Vec<Option<Tensor>>, Vec<RetainedNode>)> {
        let roots = std::mem::take(&mut self.roots);
        let runs = (self.wanted.as_ref()).map_or(Runs::From(roots), |wanted| {
            Runs::Towards(wanted.on_the_way.clone(), wanted.nodes.clone())
        });
        let _running = RunningPass::new(runs);
        let mut left = Left::default();
        let (options, outcome) = (self.options, self.walk(&mut left));
        // This is also done after a failure: leaves keep what they have accumulated until then.
        let joined = left.join(&self.caller);
        outcome?;
        joined?;
        options.run(pass::run_callbacks)?;
        let arrived = self.wanted.map(|wanted| wanted.arrived).unwrap_or_default();
        let arrived: Result<_> = arrived
            .into_iter()
            .map(|slot| slot.map(|(tensor, stream)| move_to(tensor, &stream, &self.caller)).transpose())
            .collect();
        Ok((arrived?, self.kept.unwrap_or_default()))
    }

    fn walk(&mut self, left: &mut Left) -> Result<()> {
        let mut compiled = None;
        let outcome = self.walk_with(left, &mut compiled);
        let ended = compiled.map_or(Ok(()), Region::end);
        outcome.and(ended)
    }

    /// Runs ready nodes. From the first node on that a compiled function recorded, their loops are compiled.
    fn walk_with(&mut self, left: &mut Left, compiled: &mut Option<Region>) -> Result<()> {
        loop {
            let Some(Ready { node, is_ahead }) = self.ready.pop() else {
                if self.run_late(left)? {
                    continue;
                }
                break;
            };
            if self.ends_delay(&node) {
                self.ready.push(Ready { node, is_ahead });
                self.run_late(left)?;
                continue;
            }
            if node.is_compiled && compiled.is_none() {
                *compiled = Some(Region::enter());
                self.is_compiled = true;
            }
            if let Some(kept) = self.begun.remove(&node.sequence) {
                left.note(&node, self);
                self.finish(kept).map_err(|error| anomaly::explain(&node, error))?;
                continue;
            }
            let buffer = self.buffers.remove(&node.sequence).unwrap_or_default();
            let runs = self.runs(&node);
            let is_called = buffer.iter().any(Option::is_some)
                || runs && (node.function.runs_without_gradients() || node.has_hooks_before());
            let results = match is_called {
                true => {
                    left.note(&node, self);
                    self.run_node(&node, buffer, runs).map_err(|error| anomaly::explain(&node, error))?
                }
                false => SmallVec::from_elem(None, node.edges.len()),
            };
            let is_begun = self
                .kept
                .as_ref()
                .is_some_and(|kept| kept.last().is_some_and(|kept| Arc::ptr_eq(&kept.node, &node)));
            let later = self.late.of(&node);
            if runs && !is_begun && later.is_none() && !self.options.retains() {
                node.function.release();
            }
            for (number, (edge, result)) in node.edges.iter().zip(results).enumerate() {
                let is_later = later.as_ref().is_some_and(|later| later[number]);
                if let Some(edge) = edge.as_ref().filter(|_| !is_later) {
                    self.pass_on(edge, result, &node.stream)?;
                }
            }
        }
        Ok(())
    }

    /// Delivers the gradient that a node has computed for an edge, and schedules the next node if this was the last gradient that
    /// it waited for.
    fn pass_on(&mut self, edge: &Edge, result: Option<Tensor>, producer: &Stream) -> Result<()> {
        if let Some(result) = result {
            self.deliver(edge, result, producer)?;
        }
        let count = self.missing.get_mut(&edge.node.sequence).expect("every reachable node was counted");
        *count -= 1;
        if *count == 0 {
            self.schedule(&edge.node);
        }
        Ok(())
    }

    /// Runs a node for the edges that were left.
    fn finish(&mut self, kept: RetainedNode) -> Result<()> {
        let RetainedNode { node, gradients, asked } = kept;
        let current = node.stream.make_current();
        let is_last = !self.options.retains();
        let results = self.compute(&node, &gradients, is_last, Some(asked.clone()))?;
        drop(current);
        if is_last {
            node.function.release();
        }
        for ((edge, result), is_asked) in node.edges.iter().zip(results).zip(asked) {
            if let Some(edge) = edge.as_ref().filter(|_| is_asked) {
                self.pass_on(edge, result, &node.stream)?;
            }
        }
        Ok(())
    }

    /// Returns whether the pass needs the gradients that a node computes.
    fn runs(&self, node: &Node) -> bool {
        self.wanted.as_ref().is_none_or(|wanted| wanted.on_the_way.contains(&node.sequence))
    }

    /// Adds a gradient to those that have arrived at an edge, on the stream of the node that will use it.
    fn deliver(&mut self, edge: &Edge, gradient: Tensor, producer: &Stream) -> Result<()> {
        let is_target =
            (self.wanted.as_ref()).is_some_and(|wanted| wanted.nodes.contains(&edge.node.sequence));
        if !is_target && !self.runs(&edge.node) {
            return Ok(());
        }
        let buffer = self.buffers.entry(edge.node.sequence).or_default();
        if buffer.len() <= edge.input {
            buffer.resize(edge.input + 1, None);
        }
        let slot = &mut buffer[edge.input];
        let consumer = stream_of(&edge.node, &self.caller, self.captures);
        *slot = Some(added(slot.take(), gradient, producer, consumer)?);
        Ok(())
    }

    /// Runs one node on its stream, once its gradients are ready there: first the hooks of tensors, which see the gradients that
    /// arrived; then, if the pass needs its gradients, the node.
    fn run_node(&mut self, node: &Arc<Node>, mut buffer: Buffer, runs: bool) -> Result<Gradients> {
        buffer.resize(node.outputs, None);
        let mut gradients: Gradients = SmallVec::new();
        let own = stream_of(node, &self.caller, self.captures);
        for slot in buffer {
            gradients.push(match slot {
                Some((tensor, stream)) => Some(move_to(taken(node, tensor)?, &stream, own)?),
                None => None,
            });
        }
        let _current = own.make_current();
        node.run_tensor_hooks(&mut gradients)?;
        if let Some(wanted) = &mut self.wanted {
            wanted.take(node, &gradients);
        }
        if !runs {
            return Ok(SmallVec::from_elem(None, node.edges.len()));
        }
        node.run_before(&mut gradients)?;
        if gradients.iter().all(Option::is_none) && !node.function.runs_without_gradients() {
            return Ok(SmallVec::from_elem(None, node.edges.len()));
        }
        let mut is_last = !self.options.retains();
        let mut asked = None;
        if let (Some(kept), Some(wanted)) = (&mut self.kept, &self.wanted) {
            let leads: Asked =
                node.edges.iter().map(|edge| edge.as_ref().is_some_and(|edge| wanted.leads(edge))).collect();
            let others: Asked =
                node.edges.iter().zip(&leads).map(|(edge, leads)| edge.is_some() && !leads).collect();
            asked = Some(leads);
            if others.contains(&true) {
                is_last = false;
                kept.push(RetainedNode { node: node.clone(), gradients: gradients.clone(), asked: others });
            }
        }
        if let Some(later) = self.later(node) {
            (is_last, asked) = (false, Some(later.iter().map(|is_later| !is_later).collect()));
            self.delay(node, gradients.clone(), later);
        }
        self.compute(node, &gradients, is_last, asked)
    }

    /// Runs a node's backward function, for all edges or the requested ones, and the hooks after it.
    fn compute(
        &self,
        node: &Arc<Node>,
        gradients: &Gradients,
        is_last: bool,
        asked: Option<Asked>,
    ) -> Result<Gradients> {
        let name = node.function.name();
        let _recorded = record_operator_with(|| node.title());
        let request = self.request(node, is_last, asked);
        let mut results = run_function(node, gradients, &request)
            .map_err(|error| error.context(format!("backward of {}", public_name(name))))?;
        drop(request);
        refuse_if!(
            results.len() != node.edges.len() && !node.edges.is_empty(),
            "backward of {} gave {} gradients for {} inputs",
            public_name(name),
            results.len(),
            node.edges.len()
        );
        fit(node, &mut results)?;
        anomaly::check(node, &results)?;
        node.run_after(results, gradients)
    }
}

/// Sums and converts the gradients of a program's own function to the shapes and dtypes of its inputs.
fn fit(node: &Node, results: &mut Gradients) -> Result<()> {
    let expected = node.expected.iter().flatten().zip(&node.edges);
    for (place, (result, ((shape, dtype, device), edge))) in results.iter_mut().zip(expected).enumerate() {
        let Some(gradient) = result.take().filter(|_| edge.is_some()) else { continue };
        let invalid = |found: String| {
            let title = node.title();
            invalid!("Function {title} returned an invalid gradient at index {place} - {found}")
        };
        if gradient.device() != device {
            return Err(invalid(format!("expected device {device} but got {}", gradient.device())));
        }
        let compatible =
            || format!("got {:?} but expected shape compatible with {shape:?}", gradient.shape());
        let summed = gradient.sum_to_shape(shape).map_err(|_| invalid(compatible()))?;
        *result = Some(summed.to_dtype(*dtype)?);
    }
    Ok(())
}

/// Returns the name under which the user knows an operator: a formula of the table that belongs to an operator has the operator's
/// name followed by `_of`.
fn public_name(name: &str) -> &str {
    name.strip_suffix("_of").unwrap_or(name)
}

impl Pass {
    /// Returns the request of the pass to a node, with the sums to which the node may add gradients in place and the inputs whose
    /// gradient only the cast of a leaf reads. Both are empty if a hook or the pass itself must see the gradients that the node
    /// computes.
    fn request(&self, node: &Node, is_last: bool, asked: Option<Asked>) -> Request {
        if is_grad_enabled() || node.has_hooks_after() || anomaly::is_anomaly_enabled() {
            return Request { is_last, asked, ..Request::default() };
        }
        let is_target = |edge: &Edge| {
            self.wanted.as_ref().is_some_and(|wanted| wanted.nodes.contains(&edge.node.sequence))
        };
        let reads_alone =
            |edge: &Edge| edge.node.function.is_cast() && !edge.node.is_watched() && !is_target(edge);
        let widened = (node.edges.iter().enumerate())
            .filter(|(_, edge)| edge.as_ref().is_some_and(reads_alone))
            .map(|(input, _)| input)
            .collect();
        let is_summed = self.wanted.is_none() && node.stream == self.caller;
        let sums = if is_summed { self.sums_in_place(node, asked.as_ref()) } else { SmallVec::new() };
        Request { is_last, asked, sums, widened }
    }

    /// Returns the sums for a node's inputs: the gradient that has already arrived there, or the existing gradient of a leaf,
    /// directly or through a cast, if no other gradient will arrive and no hook must see the gradient of this pass.
    fn sums_in_place(&self, node: &Node, asked: Option<&Asked>) -> SmallVec<[(usize, Tensor); 2]> {
        let asked = |input: usize| asked.is_none_or(|asked| asked[input]);
        let arrived = |edge: &Edge| -> Option<&(Tensor, Stream)> {
            self.buffers.get(&edge.node.sequence)?.get(edge.input)?.as_ref()
        };
        let is_last = |edge: &Edge| {
            let Edge { node: consumer, .. } = edge;
            let is_here = consumer.stream == node.stream && !consumer.is_watched();
            is_here && self.missing[&consumer.sequence] == 1 && arrived(edge).is_none()
        };
        let sum = |input: usize| {
            let edge = node.edges[input].as_ref().filter(|_| asked(input))?;
            let sum = match arrived(edge) {
                Some((arrived, stream)) => {
                    let is_ours =
                        Arc::strong_count(&arrived.0) == 1 && Storage::holders(arrived.storage()) == 1;
                    let is_here = *stream == node.stream && edge.node.stream == node.stream;
                    (is_ours && is_here).then(|| arrived.clone())
                }
                None if !is_last(edge) => None,
                None if edge.node.function.is_cast() => {
                    let leaf = edge.node.edges[0].as_ref().filter(|leaf| is_last(leaf))?;
                    leaf.node.kept.as_ref()?.get()
                }
                None => edge.node.kept.as_ref()?.get(),
            };
            let fits = |sum: &Tensor| sum.is_contiguous() && !sum.is_inference() && sum.external().is_none();
            sum.filter(fits).map(|sum| (input, sum))
        };
        (0..node.edges.len()).filter_map(sum).collect()
    }
}

/// The streams on which a walk has left work that the caller's stream has not waited for.
#[derive(Default)]
struct Left {
    streams: SmallVec<[Stream; 4]>,
    kept: SmallVec<[Arc<leaf::KeptGradient>; 4]>,
}

impl Left {
    fn note(&mut self, node: &Arc<Node>, pass: &Pass) {
        let stream = stream_of(node, &pass.caller, pass.captures);
        if *stream == pass.caller {
            return;
        }
        if !self.streams.contains(stream) {
            self.streams.push(stream.clone());
        }
        self.kept.extend(node.kept.iter().cloned());
        self.kept.extend(node.retaining().into_iter().map(|(_, kept)| kept));
    }

    /// Orders the caller's stream, and the current stream of each other device, after the work there.
    fn join(&self, caller: &Stream) -> Result<()> {
        let waiting = |device: &Device| match device == caller.device() {
            true => caller.clone(),
            false => device.current_stream(),
        };
        for stream in &self.streams {
            let waiting = waiting(stream.device());
            if waiting != *stream {
                waiting.wait_stream(stream)?;
            }
        }
        for gradient in self.kept.iter().filter_map(|kept| kept.get()) {
            gradient.record_stream(&waiting(gradient.device()));
        }
        Ok(())
    }
}

impl Wanted {
    fn new(targets: &[Option<Edge>], nodes: &[Arc<Node>]) -> Self {
        let mut by_place: FxHashMap<(u64, usize), SmallVec<[usize; 1]>> = FxHashMap::default();
        for (index, edge) in targets.iter().enumerate() {
            if let Some(edge) = edge {
                by_place.entry((edge.node.sequence, edge.input)).or_default().push(index);
            }
        }
        let mut on_the_way = FxHashSet::default();
        // An input's node is older than the node itself, so its number is smaller.
        let mut nodes: Vec<&Arc<Node>> = nodes.iter().collect();
        nodes.sort_unstable_by_key(|node| node.sequence);
        for node in nodes {
            let leads = node.edges.iter().flatten().any(|edge| {
                on_the_way.contains(&edge.node.sequence)
                    || by_place.contains_key(&(edge.node.sequence, edge.input))
            });
            if leads {
                on_the_way.insert(node.sequence);
            }
        }
        let nodes = Arc::new(by_place.keys().map(|(sequence, _)| *sequence).collect());
        let on_the_way = Arc::new(on_the_way);
        Self { targets: by_place, nodes, arrived: vec![None; targets.len()], on_the_way }
    }

    /// Returns whether a target is at an edge or reached through it.
    fn leads(&self, edge: &Edge) -> bool {
        self.on_the_way.contains(&edge.node.sequence)
            || self.targets.contains_key(&(edge.node.sequence, edge.input))
    }

    /// Takes the gradients of the targets among a node's outputs.
    fn take(&mut self, node: &Node, gradients: &Gradients) {
        if !self.nodes.contains(&node.sequence) {
            return;
        }
        for (output, gradient) in gradients.iter().enumerate() {
            for &target in self.targets.get(&(node.sequence, output)).into_iter().flatten() {
                self.arrived[target] = gradient.clone().map(|gradient| (gradient, node.stream.clone()));
            }
        }
    }
}

/// The backward function of a gradient that cannot be differentiated itself.
struct Undifferentiable(&'static str);

impl Backward for Undifferentiable {
    fn name(&self) -> &'static str {
        self.0
    }

    fn backward(&self, _: &[Option<Tensor>]) -> Result<Gradients> {
        Err(invalid!("the gradient of {} cannot be differentiated again", self.0))
    }
}

/// Runs a node's backward function. Gradients that it computes without recording are marked as not differentiable.
pub(super) fn run_function(
    node: &Arc<Node>,
    gradients: &[Option<Tensor>],
    request: &Request,
) -> Result<Gradients> {
    let _unpacked = Unpacked::new();
    let function = &node.function;
    if !is_grad_enabled() {
        return running(node, || function.backward_for(gradients, request));
    }
    if function.is_recorded() {
        return running(node, || function.backward_for(gradients, request));
    }
    let mut results = no_grad(|| function.backward_for(gradients, request))?;
    let inputs: SmallVec<[&Tensor; 4]> = gradients.iter().flatten().collect();
    for result in results.iter_mut().flatten() {
        let mut marked = [result.detach()];
        record(Box::new(Undifferentiable(function.name())), &inputs, &mut marked, node.stream.clone());
        let [marked] = marked;
        *result = marked;
    }
    Ok(results)
}

/// Returns, for each leaf, whether a backward pass from any of these tensors would reach it.
pub(super) fn reached(outputs: &[Tensor], leaves: &[Tensor]) -> Vec<bool> {
    let edges: Vec<Edge> = outputs.iter().filter_map(Tensor::gradient_edge).collect();
    let nodes: FxHashSet<u64> =
        reachable(edges.iter().map(|edge| &edge.node)).iter().map(|node| node.sequence).collect();
    let is_reached =
        |leaf: &Tensor| leaf.gradient_edge().is_some_and(|edge| nodes.contains(&edge.node.sequence));
    leaves.iter().map(is_reached).collect()
}

/// Returns the nodes that the roots reach, each once.
pub(crate) fn reachable<'a>(roots: impl Iterator<Item = &'a Arc<Node>>) -> Vec<Arc<Node>> {
    let mut seen: FxHashSet<u64> = FxHashSet::default();
    let mut pending: Vec<Arc<Node>> = roots.cloned().collect();
    let mut nodes = Vec::new();
    while let Some(node) = pending.pop() {
        if seen.insert(node.sequence) {
            pending.extend(node.edges.iter().flatten().map(|edge| edge.node.clone()));
            nodes.push(node);
        }
    }
    nodes
}

/// Returns the stream on which a node runs: that of its forward pass. A leaf has no forward pass, and its node may be left over
/// from a pass before a capture, on a stream that the capture cannot wait for, so it runs on the caller's stream.
fn stream_of<'a>(node: &'a Node, caller: &'a Stream, captures: bool) -> &'a Stream {
    let is_stale = captures
        && node.edges.is_empty()
        && node.stream != *caller
        && node.stream.is_capturing().is_ok_and(|is_captured| !is_captured);
    if is_stale { caller } else { &node.stream }
}

/// Returns a gradient as a node takes it.
fn taken(node: &Node, gradient: Tensor) -> Result<Tensor> {
    match gradient.external() {
        Some(external) if !node.function.takes_external() => external.dense(),
        _ => Ok(gradient),
    }
}

/// Makes a gradient that is ready on one stream ready on another.
fn move_to(tensor: Tensor, from: &Stream, to: &Stream) -> Result<Tensor> {
    // The elements of a external gradient are read on the current stream of their device.
    if tensor.external().is_some() && !is_one_driver(from.device(), to.device()) {
        let reader = from.device().current_stream();
        if reader != *from {
            reader.wait_stream(from)?;
        }
    }
    // Tensors move between devices of two drivers by a blocking copy, so they are ready on every stream.
    if from != to && is_one_driver(from.device(), to.device()) {
        to.wait_stream(from).map_err(|error| match (from.is_capturing(), to.is_capturing()) {
            (Ok(true), Ok(false)) => error.context(format!(
                "the backward pass is captured, and its next node runs on {to:?}, where its forward pass ran before the capture: run \
                 the forward pass in the capture too, or backward outside of it"
            )),
            _ => error,
        })?;
        tensor.record_stream(to);
    }
    Ok(tensor)
}

/// Returns the sum of a gradient and those that arrived earlier, computed on the stream of the node that will use it.
fn added(
    earlier: Option<(Tensor, Stream)>,
    gradient: Tensor,
    producer: &Stream,
    consumer: &Stream,
) -> Result<(Tensor, Stream)> {
    let Some((earlier, earlier_stream)) = earlier else { return Ok((gradient, producer.clone())) };
    let earlier = move_to(earlier, &earlier_stream, consumer)?;
    let gradient = move_to(gradient, producer, consumer)?;
    let _current = consumer.make_current();
    Ok((leaf::sum_of(&earlier, &gradient)?, consumer.clone()))
}
