//! The commands that the next command of a capturing stream is ordered after.
//!
//! While a graph is captured nothing runs, so no event can show the progress of a stream. But the graph itself defines the order:
//! a block may be used again once the nodes of all its uses are *predecessors* of the next command. [`Reach`] is the set of those
//! predecessors for one stream.
//!
//! The set grows with the graph. The next command always depends on the commands before it on its stream, so a node that was
//! reached once stays reached, and each search stops at known nodes: over an entire capture every edge is walked once per stream,
//! however often the set is needed. (Walking all of the graph at every allocation made captures up to 20 times slower in an
//! experiment.)
//!
//! The graph belongs to the driver ([`Captures`]); blocks are not handled here.

use rustc_hash::FxHashSet;

use crate::ids::StreamId;
use crate::upstream::{CaptureId, Captures, NodeId};

/// The nodes that the next command of one stream is ordered after.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    capture: Option<CaptureId>,
    nodes: FxHashSet<NodeId>,
}

impl Reach {
    /// Adds the commands that were captured since the last call. Returns `false` if the stream does not capture, or cannot be
    /// queried; then nothing is known to be ordered.
    pub(crate) fn advance(&mut self, stream: StreamId, captures: &dyn Captures) -> bool {
        let Ok(Some(capture)) = captures.capture_of(stream) else { return false };
        if self.capture != Some(capture) {
            self.nodes.clear();
            self.capture = Some(capture);
        }
        let Ok(mut unvisited) = captures.terminals(stream) else { return false };
        // A node is marked only after its predecessors are known, so that a failure in between leaves no marked node with unknown
        // predecessors; the node is found again at the next call.
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
