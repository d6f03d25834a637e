//! Conditional nodes: inlining of their bodies.
//!
//! When a graph is instantiated, the bodies of its conditional nodes are inserted before the node, as nodes of the graph: the
//! first nodes of a body depend on the node's dependencies, and the node depends on the last nodes of the body. Everything else
//! is then as in any graph. Of several bodies only one runs, so they are inserted one after the other and never conflict. The
//! body of a loop is inserted once: its rounds follow one another, so the order within one round holds for all rounds.
//!
//! A body counts as run. So a race is found whatever the condition is, and bytes that only a body writes count as written.
//!
//! The captures into a graph and into its bodies are a *family*: all captures of a family share their memory.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_driver::{GraphHandle, GraphNodeHandle};

use super::graph::{Graph, Node, NodeWork};
use super::model::Model;

/// The families of captures into graphs and into bodies of conditional nodes.
#[derive(Default)]
pub(super) struct Families {
    /// The first capture of the family of each capture into a body.
    first: FxHashMap<u64, u64>,
    /// The first capture of the family of each body, by the body's handle.
    bodies: FxHashMap<u64, u64>,
}

impl Families {
    /// Returns the first capture of a capture's family.
    pub(super) fn of(&self, capture: u64) -> u64 {
        self.first.get(&capture).copied().unwrap_or(capture)
    }

    /// Notes that a capture contains these bodies.
    pub(super) fn add(&mut self, capture: u64, bodies: &[GraphHandle]) {
        let first = self.of(capture);
        self.bodies.extend(bodies.iter().map(|body| (body.raw(), first)));
    }

    /// Notes that a capture into a body begins.
    pub(super) fn begin(&mut self, capture: u64, body: GraphHandle) {
        if let Some(&first) = self.bodies.get(&body.raw()) {
            self.first.insert(capture, first);
        }
    }
}

impl Model {
    /// Drops a graph with its bodies.
    pub(super) fn graph_destroyed(&mut self, handle: u64) {
        let mut open = vec![handle];
        while let Some(handle) = open.pop() {
            self.families.bodies.remove(&handle);
            let Some(graph) = self.graphs.remove(&handle) else { continue };
            for node in &graph.nodes {
                if let NodeWork::Bodies(bodies) = &node.work {
                    open.extend(bodies.iter().map(|body| body.raw()));
                }
            }
        }
    }

    /// Returns the nodes of a graph with all bodies inserted, and the new index of each of its own nodes.
    pub(super) fn in_place(&self, graph: &Graph) -> (Vec<Node>, FxHashMap<GraphNodeHandle, u32>) {
        let mut nodes = Vec::with_capacity(graph.nodes.len());
        let places = self.put(graph, &[], &mut nodes);
        let names = graph.handles.iter().map(|(&handle, &index)| (handle, places[index as usize])).collect();
        (nodes, names)
    }

    /// Appends a graph's nodes, the first of them depending on `entry`. Returns their indices.
    fn put(&self, graph: &Graph, entry: &[u32], nodes: &mut Vec<Node>) -> Vec<u32> {
        let mut places: Vec<u32> = Vec::with_capacity(graph.nodes.len());
        for node in &graph.nodes {
            let mut predecessors: SmallVec<[u32; 2]> =
                node.predecessors.iter().map(|&before| places[before as usize]).collect();
            if predecessors.is_empty() {
                predecessors.extend_from_slice(entry);
            }
            let work = if let NodeWork::Bodies(bodies) = &node.work {
                for body in bodies.iter().filter_map(|body| self.graphs.get(&body.raw())) {
                    let inside = self.put(body, &predecessors, nodes);
                    predecessors.extend(ends(body).map(|end| inside[end as usize]));
                }
                NodeWork::Accesses(Vec::new())
            } else {
                node.work.clone()
            };
            places.push(nodes.len() as u32);
            nodes.push(Node { predecessors, site: node.site, within: node.within, work });
        }
        places
    }
}

/// Returns the nodes that no other node depends on.
fn ends(graph: &Graph) -> impl Iterator<Item = u32> {
    let mut is_end = vec![true; graph.nodes.len()];
    for &before in graph.nodes.iter().flat_map(|node| &node.predecessors) {
        is_end[before as usize] = false;
    }
    (0..graph.nodes.len() as u32).filter(move |&index| is_end[index as usize])
}
