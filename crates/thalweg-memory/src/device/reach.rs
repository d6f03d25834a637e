//! The commands that the next command of a capturing stream is ordered behind.
//!
//! While a graph is captured nothing runs, so no event can tell how far a stream has come. But the graph itself says what
//! will be ordered behind what: a block may be used again once the nodes of all its uses are *predecessors* of the next
//! command. [`Reach`] is the set of those predecessors for one stream.
//!
//! It grows with the graph. The next command always depends on the commands before it on its stream, so what was reached
//! once is reached for ever, and each search stops at nodes that are known: over a whole capture every edge is walked once
//! per stream, however often the set is asked for. (Walking the whole graph at every allocation made captures up to 20 times
//! slower where it was tried.)
//!
//! Not here: the graph, which belongs to the driver ([`Captures`]), and blocks.

use rustc_hash::FxHashSet;

use crate::ids::StreamId;
use crate::upstream::{CaptureId, Captures, NodeId};

/// The nodes that the next command of one stream is ordered behind.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    capture: Option<CaptureId>,
    nodes: FxHashSet<NodeId>,
}

impl Reach {
    /// Takes in what was captured since the last call. `false` if the stream does not capture, or cannot be asked; then
    /// nothing is known to be ordered.
    pub(crate) fn advance(&mut self, stream: StreamId, captures: &dyn Captures) -> bool {
        let Ok(Some(capture)) = captures.capture_of(stream) else { return false };
        if self.capture != Some(capture) {
            self.nodes.clear();
            self.capture = Some(capture);
        }
        let Ok(mut unvisited) = captures.terminals(stream) else { return false };
        // A node is marked only after its predecessors are known, so that a failure in between leaves no node marked whose
        // predecessors are not; it is found again at the next call.
        while let Some(&node) = unvisited.last() {
            if self.nodes.contains(&node) {
                unvisited.pop();
                continue;
            }
            let Ok(predecessors) = captures.predecessors(stream, node) else { return false };
            let before = unvisited.len();
            unvisited.extend(predecessors.into_iter().filter(|node| !self.nodes.contains(node)));
            if unvisited.len() == before {
                self.nodes.insert(node);
                unvisited.pop();
            }
        }
        true
    }

    pub(crate) fn contains(&self, node: NodeId) -> bool {
        self.nodes.contains(&node)
    }
}
