//! The order of a compiled pass, whose loops wait to be fused.
//!
//! The engine runs the node that was recorded last. Between two nodes whose loops could be one kernel there may then be a product, before
//! which the first one's loops run. A compiled pass moves two kinds of work:
//!
//! - a ready node of loops runs *ahead* of products. So the gradients of a gate and of what it gates are computed by one kernel,
//!   although the product of one of them was recorded between the two;
//! - a product computes the gradients that others need first, and those of its leaves *later*: once the loops that follow wait. What it
//!   reads for them may have to be computed again from what these loops read, too, and then one kernel does both.
//!
//! # Invariants
//! - No sum changes: work is moved only if every gradient that it computes is the last one, or the only one, to arrive where it goes.
//! - No program sees the order: neither hooks nor functions of the program run in the nodes that are moved, and leaves have no hooks.

use std::sync::Arc;

use thalweg_runtime::Result;

use super::super::request::Asked;
use super::{Gradients, Left, Pass, Ready, RetainedNode};
use crate::autograd::{Edge, Node, anomaly, is_grad_enabled};

/// The most products that wait to compute the gradients of their leaves.
const MOST_LATE: usize = 8;

/// Products that compute the gradients of their leaves later.
#[derive(Default)]
pub(super) struct Late {
    nodes: Vec<RetainedNode>,
    /// The node at which the gradients arrive that the products have computed.
    meeting: u64,
}

impl Late {
    /// Returns the edges of a node that has run last, and is to run for these edges later.
    pub(super) fn of(&self, node: &Arc<Node>) -> Option<Asked> {
        self.nodes.last().filter(|kept| Arc::ptr_eq(&kept.node, node)).map(|kept| kept.asked.clone())
    }
}

impl Pass {
    /// Returns whether the pass may move work.
    fn moves(&self) -> bool {
        self.is_compiled && self.kept.is_none() && self.begun.is_empty() && !is_grad_enabled()
    }

    /// Returns whether a node that is ready runs ahead of products.
    pub(super) fn is_ahead(&self, node: &Node) -> bool {
        let is_last = |edge: &Edge| self.missing.get(&edge.node.sequence) == Some(&1);
        self.moves()
            && node.is_compiled
            && node.function.is_of_loops()
            && node.stream == self.caller
            && !node.is_watched()
            && node.edges.iter().flatten().all(is_last)
    }

    /// Returns whether a gradient is the only one that a leaf gets, directly or through its cast.
    fn is_of_leaf(&self, edge: &Edge) -> bool {
        let mut node = &edge.node;
        loop {
            let is_seen = node.is_watched() || node.stream != self.caller;
            if is_seen
                || self.missing.get(&node.sequence) != Some(&1)
                || self.buffers.contains_key(&node.sequence)
            {
                return false;
            }
            match (&node.edges[..], node.function.is_of_loops()) {
                _ if node.is_accumulator() => return true,
                ([Some(next)], true) => node = &next.node,
                _ => return false,
            }
        }
    }

    /// Returns the gradients of a product that are computed later, by its edges; `None` if all are computed at once.
    pub(super) fn later(&self, node: &Node) -> Option<Asked> {
        let is_moved = self.moves()
            && node.is_compiled
            && node.function.is_of_products()
            && node.stream == self.caller
            && !node.has_hooks_after()
            && self.late.nodes.len() < MOST_LATE;
        if !is_moved {
            return None;
        }
        let of_edge = |edge: &Option<Edge>| {
            edge.as_ref().is_some_and(|edge| self.runs(&edge.node) && self.is_of_leaf(edge))
        };
        let later: Asked = node.edges.iter().map(of_edge).collect();
        let (some, all) = (
            later.contains(&true),
            node.edges.iter().zip(&later).all(|(edge, later)| edge.is_none() || *later),
        );
        (some && !all).then_some(later)
    }

    /// Returns the node at which the gradients that a product passes on (those of leaves do not count) meet other work: a sum of
    /// gradients, a node with several inputs, or a node that does more than loops.
    fn meeting(&self, node: &Node, later: &Asked) -> u64 {
        let first = node.edges.iter().zip(later).find_map(|(edge, later)| edge.as_ref().filter(|_| !later));
        let Some(mut edge) = first else { return node.sequence };
        loop {
            let next = &edge.node;
            let is_met =
                self.missing.get(&next.sequence) != Some(&1) || self.buffers.contains_key(&next.sequence);
            match &next.edges[..] {
                [Some(following)] if !is_met && next.function.is_of_loops() => edge = following,
                _ => return next.sequence,
            }
        }
    }

    /// Notes a product that has computed its first gradients.
    pub(super) fn delay(&mut self, node: &Arc<Node>, gradients: Gradients, later: Asked) {
        self.late.meeting = self.meeting(node, &later);
        self.late.nodes.push(RetainedNode { node: Arc::clone(node), gradients, asked: later });
    }

    /// Returns whether the waiting products must run before a node. They must if the node is a product whose gradient does not meet
    /// theirs.
    pub(super) fn ends_delay(&self, node: &Node) -> bool {
        let meets = || self.later(node).is_some_and(|later| self.meeting(node, &later) == self.late.meeting);
        !self.late.nodes.is_empty() && node.function.is_of_products() && !meets()
    }

    /// Runs the products that wait, in the order in which they began. Returns whether there were any.
    pub(super) fn run_late(&mut self, left: &mut Left) -> Result<bool> {
        let nodes = std::mem::take(&mut self.late.nodes);
        let had_any = !nodes.is_empty();
        for kept in nodes {
            left.note(&kept.node, self);
            let node = Arc::clone(&kept.node);
            self.finish(kept).map_err(|error| anomaly::explain(&node, error))?;
        }
        Ok(had_any)
    }

    /// Schedules a node that has all its gradients.
    pub(super) fn schedule(&mut self, node: &Arc<Node>) {
        let is_ahead = self.is_ahead(node);
        self.ready.push(Ready { node: Arc::clone(node), is_ahead });
    }
}
