//! Captured work: nodes as they were captured, and the chains that an executable is divided into.
//!
//! The dependencies of a node are learned from the driver (`stream_capture_info` before and after each captured call), so that
//! the rules of capture need not be implemented here. At a launch the nodes are checked as if they were submitted then. The nodes
//! of a chain are ordered, so a chain is one strand. It keeps its strand from launch to launch, since the launches of an
//! executable are ordered too.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_driver::{Access, GraphHandle, GraphNodeHandle};

use super::clock::{Clock, Strand};
use super::shadow::BlockId;
use super::site::SiteId;

/// The owner of memory that a captured access touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Owner {
    /// The block that contained the bytes; 0 for none.
    pub(super) block: BlockId,
    /// The serial number of the object at the address.
    pub(super) serial: u64,
    /// Whether the graph's own pool keeps the memory: it was allocated in the capture.
    pub(super) is_kept: bool,
}

/// An access of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Captured {
    pub(super) access: Access,
    pub(super) owner: Owner,
}

/// The work of a node.
#[derive(Clone, Debug)]
pub(super) enum NodeWork {
    /// Touches these bytes of memory, or nothing.
    Accesses(Vec<Captured>),
    /// Allocates memory of the graph.
    Allocate { start: u64, bytes: u64 },
    /// Frees memory of the graph.
    Free { start: u64 },
    /// Records this event for work outside of the graph.
    Record { event: u64 },
    /// Waits for this event of work outside of the graph.
    Wait { event: u64 },
    /// Runs one of these graphs. In an executable their nodes are inserted before this node, which does nothing more.
    Bodies(SmallVec<[GraphHandle; 2]>),
}

/// A captured call.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// Indices into the graph's nodes, all smaller than the node's own.
    pub(super) predecessors: SmallVec<[u32; 2]>,
    pub(super) site: SiteId,
    /// The call that the node was captured in, if that is a different call; 0 for none.
    pub(super) within: SiteId,
    pub(super) work: NodeWork,
}

/// A capture under way, or a graph.
#[derive(Default)]
pub(super) struct Graph {
    /// The number of the capture.
    pub(super) capture: u64,
    /// The stream that the capture began on.
    pub(super) origin: u64,
    pub(super) nodes: Vec<Node>,
    pub(super) handles: FxHashMap<GraphNodeHandle, u32>,
}

impl Graph {
    /// Adds a node.
    pub(super) fn push(&mut self, handle: GraphNodeHandle, node: Node) -> u32 {
        debug_assert!(node.predecessors.iter().all(|&index| (index as usize) < self.nodes.len()));
        let index = self.nodes.len() as u32;
        self.nodes.push(node);
        self.handles.insert(handle, index);
        index
    }
}

/// The position of a node in its chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChainPosition {
    pub(super) chain: u32,
    /// Whether nodes of other chains depend on this node.
    pub(super) is_awaited: bool,
}

/// An executable graph.
pub(super) struct Executable {
    /// The capture of the graph that the executable was instantiated from.
    pub(super) capture: u64,
    pub(super) nodes: Vec<Node>,
    /// The indices of the executable's nodes, by their handles in that graph.
    pub(super) names: FxHashMap<GraphNodeHandle, u32>,
    pub(super) places: Arc<[ChainPosition]>,
    /// The strands of the chains.
    pub(super) strands: SmallVec<[Strand; 2]>,
    /// The end of the last launch, which precedes the next launch.
    pub(super) last: Clock,
}

/// Divides a graph into chains, and returns the position of each node and the number of chains.
pub(super) fn chains(nodes: &[Node]) -> (Vec<ChainPosition>, u32) {
    let mut places: Vec<ChainPosition> = Vec::with_capacity(nodes.len());
    // For each node that is the last of a chain, that chain.
    let mut ends: FxHashMap<u32, u32> = FxHashMap::default();
    let mut count = 0;
    for (index, node) in nodes.iter().enumerate() {
        let continued = node.predecessors.iter().find_map(|before| Some((*before, ends.remove(before)?)));
        let chain = continued.map_or_else(
            || {
                count += 1;
                count - 1
            },
            |(_, chain)| chain,
        );
        for &before in &node.predecessors {
            if continued.is_none_or(|(kept, _)| kept != before) {
                places[before as usize].is_awaited = true;
            }
        }
        ends.insert(index as u32, chain);
        places.push(ChainPosition { chain, is_awaited: false });
    }
    (places, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(predecessors: &[u32]) -> Node {
        Node { predecessors: predecessors.into(), site: 0, within: 0, work: NodeWork::Accesses(Vec::new()) }
    }

    #[test]
    fn a_diamond_is_two_chains() {
        let nodes = [node(&[]), node(&[0]), node(&[0]), node(&[2, 1])];
        let (places, count) = chains(&nodes);
        assert_eq!(count, 2);
        let of = |index: usize| (places[index].chain, places[index].is_awaited);
        assert_eq!([of(0), of(1), of(2), of(3)], [(0, true), (0, true), (1, false), (1, false)]);
    }
}
