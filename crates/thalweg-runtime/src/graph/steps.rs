//! The commands of a capture in the order of submission: the work of each, and the commands that it depends on.
//!
//! A driver's graph reports little about its nodes, and slowly. The list that is recorded here, as the commands are submitted,
//! names the nodes for people, and lets two captures be compared without the driver. If only the arguments of a few kernels
//! differ, only those need to be updated in an executable ([`update`](super::update)).
//!
//! Libraries may put nodes of their own into a capture. Such a node is noticed when something that we see depends on it, at the
//! latest when the capture ends; then the list is *partial*, and nothing is concluded from it. Unless the ranges that such nodes
//! touch were declared ([`Stream::declare`](crate::Stream::declare)), the graph cannot vouch for its replays either.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use thalweg_driver::{Access, FunctionHandle, GraphDescription, GraphNodeHandle, Label, Launch, LaunchMode};

/// A command on its way to a stream.
pub(crate) enum Command<'a> {
    /// A kernel.
    Launch(&'a Launch<'a>),
    /// Anything else.
    Other {
        /// The operator and the source line that requested the command.
        label: Label,
        /// Every byte of device memory that the command may touch.
        accesses: &'a [Access],
        /// The parameters that distinguish the command from others of its label, in bytes.
        parameters: &'a [u8],
    },
}

impl Command<'_> {
    pub(crate) fn label(&self) -> Label {
        match self {
            Self::Launch(launch) => launch.label,
            Self::Other { label, .. } => *label,
        }
    }

    pub(crate) fn accesses(&self) -> &[Access] {
        match self {
            Self::Launch(launch) => launch.accesses,
            Self::Other { accesses, .. } => accesses,
        }
    }
}

/// A command that became a node.
#[derive(Debug)]
pub(super) struct CapturedCommand {
    pub(super) node: GraphNodeHandle,
    pub(super) label: Label,
    /// The indices of the commands that this command depends on, in the driver's order.
    predecessors: SmallVec<[u32; 2]>,
    pub(super) work: Work,
}

impl CapturedCommand {
    fn mode(&self) -> LaunchMode {
        match &self.work {
            Work::Kernel(kernel) => kernel.mode,
            Work::Other { .. } => LaunchMode::InOrder,
        }
    }
}

/// The work of a command.
#[derive(PartialEq, Debug)]
pub(super) enum Work {
    Kernel(Kernel),
    Other { parameters: Box<[u8]>, accesses: Box<[Access]> },
}

/// A copy of a captured kernel launch.
#[derive(PartialEq, Debug)]
pub(super) struct Kernel {
    function: FunctionHandle,
    grid: [u32; 3],
    block: [u32; 3],
    shared_memory_bytes: u32,
    mode: LaunchMode,
    arguments: Box<[u8]>,
    accesses: Box<[Access]>,
}

impl Kernel {
    /// Returns the kernel as a launch.
    pub(super) fn launch(&self, label: Label) -> Launch<'_> {
        Launch {
            function: self.function,
            grid: self.grid,
            block: self.block,
            shared_memory_bytes: self.shared_memory_bytes,
            mode: self.mode,
            arguments: &self.arguments,
            accesses: &self.accesses,
            label,
        }
    }
}

/// The commands of a capture, in the order of submission. See the [module's essay](self).
#[derive(Debug, Default)]
pub(super) struct Steps {
    steps: Vec<CapturedCommand>,
    places: FxHashMap<GraphNodeHandle, u32>,
    is_partial: bool,
    /// Nodes that are not steps, and whose ranges are known.
    declared: FxHashSet<GraphNodeHandle>,
    has_undeclared: bool,
}

impl Steps {
    /// Checks whether all of these nodes are known.
    pub(super) fn look(&mut self, nodes: &[GraphNodeHandle]) {
        let is_known = |node| self.places.contains_key(node) || self.declared.contains(node);
        self.has_undeclared |= !nodes.iter().all(is_known);
    }

    /// Declares the ranges that these nodes touch, and the ranges of the nodes between them and the last known nodes.
    pub(super) fn declare(&mut self, nodes: &[GraphNodeHandle]) {
        self.declared.extend(nodes);
    }

    /// Returns whether the capture has nodes whose ranges are not known.
    pub(super) fn has_undeclared(&self) -> bool {
        self.has_undeclared
    }

    /// Notes that a command was submitted after the nodes `before`, and that its stream now ends at the nodes `after`.
    pub(super) fn submitted(
        &mut self,
        before: &[GraphNodeHandle],
        after: &[GraphNodeHandle],
        command: &Command<'_>,
    ) {
        self.look(before);
        self.declare(after);
        let known = before.iter().map(|node| self.places.get(node).copied());
        let known: Option<SmallVec<[u32; 2]>> = known.collect();
        let (Some(predecessors), &[node]) = (known, after) else {
            self.is_partial = true;
            return;
        };
        if self.places.contains_key(&node) {
            // The command did not become a node.
            return;
        }
        let work = match command {
            Command::Launch(launch) => Work::Kernel(Kernel {
                function: launch.function,
                grid: launch.grid,
                block: launch.block,
                shared_memory_bytes: launch.shared_memory_bytes,
                mode: launch.mode,
                arguments: launch.arguments.into(),
                accesses: launch.accesses.into(),
            }),
            Command::Other { parameters, accesses, .. } => {
                Work::Other { parameters: (*parameters).into(), accesses: (*accesses).into() }
            }
        };
        let place = u32::try_from(self.steps.len()).expect("a graph has fewer than 2^32 nodes");
        self.places.insert(node, place);
        self.steps.push(CapturedCommand { node, label: command.label(), predecessors, work });
    }

    /// Notes that the capture ends at these nodes. A node that was not recorded here makes the steps partial. This includes
    /// conditional nodes, because no node of their kind can be updated.
    pub(super) fn ended(&mut self, nodes: &[GraphNodeHandle]) {
        self.look(nodes);
        self.is_partial |= nodes.iter().any(|node| !self.places.contains_key(node));
    }

    pub(super) fn len(&self) -> usize {
        self.steps.len()
    }

    /// Returns whether nothing was captured.
    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty() && !self.is_partial
    }

    /// Returns the command at this index.
    pub(super) fn step(&self, place: usize) -> &CapturedCommand {
        &self.steps[place]
    }

    /// Returns the handles of the nodes, in the order of submission.
    pub(super) fn nodes(&self) -> Arc<[GraphNodeHandle]> {
        self.steps.iter().map(|step| step.node).collect()
    }

    /// Returns the indices of the commands that differ from the other graph's, if both graphs have the same commands with the
    /// same dependencies.
    pub(super) fn differences(&self, other: &Self) -> Option<Vec<usize>> {
        let same_length = self.steps.len() == other.steps.len();
        if self.is_partial || other.is_partial || !same_length {
            return None;
        }
        let mut differences = Vec::new();
        for (place, (one, other)) in self.steps.iter().zip(&other.steps).enumerate() {
            // A programmatic dependent launch has another kind of incoming edge, and a node cannot become cooperative.
            if one.predecessors != other.predecessors || one.mode() != other.mode() {
                return None;
            }
            if one.work != other.work {
                differences.push(place);
            }
        }
        Some(differences)
    }

    /// Adds to the nodes of a description the labels that the driver does not know.
    pub(super) fn name_nodes(&self, description: &mut GraphDescription) {
        for node in description.nodes.iter_mut().filter(|node| node.label.is_none()) {
            node.label = self.places.get(&node.handle).map(|place| self.steps[*place as usize].label);
        }
    }
}
