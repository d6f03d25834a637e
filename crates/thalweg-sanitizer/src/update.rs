//! Updates of executable graphs.
//!
//! After an update of a complete executable its nodes are copies of the other graph's: their accesses and their order are then
//! right whichever nodes the driver paired. The pairing is only needed for the handles by which the nodes can still be updated,
//! so it is computed only if there are handles. A handle without a pair is forgotten: the sanitizer does not see later updates of
//! that node.

use thalweg_driver::{GraphNodeHandle, Launch};

use super::capture::CapturedCall;
use super::graph::{Executable, Node, chains};
use super::model::{Actor, Model};

impl Model {
    /// Notes that an executable was updated to the work of a graph.
    pub(super) fn exec_updated(&mut self, handle: u64, graph: u64) {
        let Some(graph) = self.graphs.get(&graph) else {
            // A graph from before the sanitizer was installed: nothing is known of the executable any more.
            return self.executable_destroyed(handle);
        };
        let (nodes, _) = self.in_place(graph);
        let Some(mut executable) = self.executables.remove(&handle) else { return };
        let pairs = pairs(&executable.nodes, &nodes);
        executable.names.retain(|_, index| match pairs[*index as usize] {
            Some(other) => {
                *index = other;
                true
            }
            None => false,
        });
        let (places, count) = chains(&nodes);
        let actor = Actor::Chain { graph: handle, stream: 0 };
        while executable.strands.len() < count as usize {
            executable.strands.push(self.strand(actor));
        }
        for strand in executable.strands.drain(count as usize..) {
            self.retire(strand, executable.last.of(strand));
        }
        executable.places = places.into();
        executable.nodes = nodes;
        self.executables.insert(handle, executable);
    }

    /// Notes that a kernel of an executable was replaced.
    pub(super) fn kernel_node_set(&mut self, handle: u64, node: GraphNodeHandle, launch: &Launch<'_>) {
        let Some(Executable { capture, names, .. }) = self.executables.get(&handle) else { return };
        let (capture, Some(&index)) = (*capture, names.get(&node)) else { return };
        let site = self.sites.of(launch.label);
        let work = self.work(capture, site, CapturedCall::Accesses(launch.accesses));
        let executable = self.executables.get_mut(&handle).expect("found above");
        let node = &mut executable.nodes[index as usize];
        (node.site, node.work) = (site, work);
    }
}

/// Returns, for each node of a graph, the corresponding node of another graph of the same shape. Pairs the last nodes of both
/// graphs in their order, then the predecessors of paired nodes in theirs.
fn pairs(old: &[Node], new: &[Node]) -> Vec<Option<u32>> {
    let ends = |nodes: &[Node]| {
        let mut is_end = vec![true; nodes.len()];
        nodes.iter().flat_map(|node| &node.predecessors).for_each(|&before| is_end[before as usize] = false);
        (0..nodes.len() as u32).filter(|&index| is_end[index as usize]).collect::<Vec<_>>()
    };
    let mut found = vec![None; old.len()];
    let mut open: Vec<(u32, u32)> = ends(old).into_iter().zip(ends(new)).collect();
    while let Some((one, other)) = open.pop() {
        if found[one as usize].replace(other).is_none() {
            let (one, other) = (&old[one as usize].predecessors, &new[other as usize].predecessors);
            open.extend(one.iter().copied().zip(other.iter().copied()));
        }
    }
    found
}
