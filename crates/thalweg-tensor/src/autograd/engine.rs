//! The engine: runs the recorded graph backwards.
//!
//! A node runs when every node that feeds it has run; among those that are ready the one recorded last goes first. All on
//! the calling thread: the work itself is asynchronous on the device.
//!
//! # Streams
//! Every node has one canonical stream, the one that was current when it was recorded, and its backward function runs with
//! that stream current. A gradient that was produced on another stream is waited for by an event, and its memory is marked
//! as used there. When the graph is done, the caller's stream waits for every stream that work was left on: whatever
//! follows `backward` on the caller's stream is ordered behind it. A leaf's gradient may be another stream's memory then;
//! it is marked as used on the caller's, where the optimizer will read it and drop it.

use std::collections::BinaryHeap;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_runtime::{Error, Result, Stream};

use super::{Edge, Gradients, Node};
use crate::tensor::Tensor;

/// The gradients that have arrived for a node's outputs, each with the stream on which it is ready.
type Buffer = SmallVec<[Option<(Tensor, Stream)>; 2]>;

struct Ready(Arc<Node>);

impl PartialEq for Ready {
    fn eq(&self, other: &Self) -> bool {
        self.0.sequence == other.0.sequence
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
        self.0.sequence.cmp(&other.0.sequence)
    }
}

/// Runs the graph from `root`, whose gradient is `gradient`.
pub(crate) fn run(root: Edge, gradient: Tensor) -> Result<()> {
    let caller = gradient.device().current_stream();
    let mut missing = count_feeders(&root.node);
    let mut buffers: FxHashMap<u64, Buffer> = FxHashMap::default();
    let mut used: SmallVec<[Stream; 4]> = SmallVec::new();
    let mut leaves_elsewhere: SmallVec<[Arc<Node>; 4]> = SmallVec::new();
    deliver(&mut buffers, &root, gradient, &caller)?;
    let mut ready = BinaryHeap::from([Ready(root.node)]);
    while let Some(Ready(node)) = ready.pop() {
        let buffer = buffers.remove(&node.sequence).unwrap_or_default();
        let results = run_node(&node, buffer)?;
        if !used.contains(&node.stream) {
            used.push(node.stream.clone());
        }
        if node.stream != caller && node.edges.is_empty() {
            leaves_elsewhere.push(node.clone());
        }
        for (edge, result) in node.edges.iter().zip(results) {
            let Some(edge) = edge else { continue };
            if let Some(result) = result {
                deliver(&mut buffers, edge, result, &node.stream)?;
            }
            let count = missing.get_mut(&edge.node.sequence).expect("every reachable node was counted");
            *count -= 1;
            if *count == 0 {
                ready.push(Ready(edge.node.clone()));
            }
        }
    }
    for stream in used.iter().filter(|stream| **stream != caller && stream.device() == caller.device()) {
        caller.wait_stream(stream)?;
    }
    for gradient in leaves_elsewhere.iter().filter_map(|leaf| leaf.function.leaf_gradient()) {
        if gradient.device() == caller.device() {
            gradient.record_stream(&caller);
        }
    }
    Ok(())
}

/// How many edges lead to each node from nodes that the root reaches.
fn count_feeders(root: &Arc<Node>) -> FxHashMap<u64, usize> {
    let mut counts: FxHashMap<u64, usize> = FxHashMap::default();
    counts.insert(root.sequence, 0);
    let mut pending = vec![root.clone()];
    while let Some(node) = pending.pop() {
        for edge in node.edges.iter().flatten() {
            let count = counts.entry(edge.node.sequence).or_insert(0);
            *count += 1;
            if *count == 1 {
                pending.push(edge.node.clone());
            }
        }
    }
    counts
}

/// Runs one node on its stream, once its gradients are ready there.
fn run_node(node: &Node, mut buffer: Buffer) -> Result<Gradients> {
    buffer.resize(node.outputs, None);
    let mut gradients: Gradients = SmallVec::new();
    for slot in buffer {
        gradients.push(match slot {
            Some((tensor, stream)) => Some(move_to(tensor, &stream, &node.stream)?),
            None => None,
        });
    }
    if gradients.iter().all(Option::is_none) {
        return Ok(SmallVec::from_elem(None, node.edges.len()));
    }
    let _current = node.stream.make_current();
    let name = node.function.name();
    let results =
        node.function.backward(&gradients).map_err(|error| error.context(format!("backward of {name}")))?;
    if results.len() != node.edges.len() && !node.edges.is_empty() {
        return Err(Error::invalid(format!(
            "backward of {name} gave {} gradients for {} inputs",
            results.len(),
            node.edges.len()
        )));
    }
    Ok(results)
}

/// Makes a gradient that is ready on one stream ready on another.
fn move_to(tensor: Tensor, from: &Stream, to: &Stream) -> Result<Tensor> {
    if from != to {
        to.wait_stream(from)?;
        tensor.record_stream(to);
    }
    Ok(tensor)
}

/// Adds a gradient to what has arrived at an edge. Sums are made on the stream of the node that will use them.
fn deliver(
    buffers: &mut FxHashMap<u64, Buffer>,
    edge: &Edge,
    gradient: Tensor,
    producer: &Stream,
) -> Result<()> {
    let buffer = buffers.entry(edge.node.sequence).or_default();
    if buffer.len() <= edge.input {
        buffer.resize(edge.input + 1, None);
    }
    let slot = &mut buffer[edge.input];
    *slot = Some(match slot.take() {
        None => (gradient, producer.clone()),
        Some((earlier, earlier_stream)) => {
            let consumer = &edge.node.stream;
            let earlier = move_to(earlier, &earlier_stream, consumer)?;
            let gradient = move_to(gradient, producer, consumer)?;
            let _current = consumer.make_current();
            (earlier.add(&gradient)?, consumer.clone())
        }
    });
    Ok(())
}
