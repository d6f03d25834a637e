//! Redirected leaves: a region of a thread in which the gradients of some leaves flow to separate nodes, which belong to the region. A
//! graph that is recorded there can outlive the region without using the leaves' own gradients, hooks and streams.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::leaf::{Accumulate, KeptGradient};
use super::{Edge, Node};
use crate::scoped::{Scoped, put, scoped};
use crate::tensor::Tensor;

thread_local! {
    /// The edges of the leaves that are redirected in the innermost region, by the addresses of the leaves.
    static REDIRECTED: Scoped<Option<FxHashMap<usize, Edge>>> = const { scoped(None) };
}

fn key(leaf: &Tensor) -> usize {
    Arc::as_ptr(&leaf.0) as usize
}

/// Returns the edge of a leaf that is redirected on this thread.
pub(super) fn redirected_edge(leaf: &Tensor) -> Option<Edge> {
    REDIRECTED.with_borrow(|edges| edges.as_ref()?.get(&key(leaf)).cloned())
}

/// A guard of a region: dropping it restores the surrounding one.
struct Restore(Option<FxHashMap<usize, Edge>>);

impl Drop for Restore {
    fn drop(&mut self) {
        let _ended = put(&REDIRECTED, self.0.take());
    }
}

/// Runs a function in a region in which these leaves are redirected. The function is passed the edges that their gradients flow to.
/// Returns its result, and whether a backward pass within the region has accumulated a gradient of one of them.
pub(crate) fn with_redirected_leaves<T>(leaves: &[Tensor], function: impl FnOnce(&[Edge]) -> T) -> (T, bool) {
    let mut gradients = Vec::new();
    let edges: Vec<Edge> = leaves
        .iter()
        .map(|leaf| {
            let kept = Arc::<KeptGradient>::default();
            let accumulate = Accumulate::new(kept.clone(), leaf.layout());
            let node = Node::accumulator(Box::new(accumulate), &kept, leaf.device().current_stream());
            gradients.push(kept);
            Edge { node, input: 0 }
        })
        .collect();
    let redirected = leaves.iter().map(key).zip(edges.iter().cloned()).collect();
    let restore = Restore(put(&REDIRECTED, Some(redirected)));
    let result = function(&edges);
    drop(restore);
    (result, gradients.iter().any(|kept| kept.get().is_some()))
}
