//! Graphs: captured nodes, their description, and launches.
//!
//! A launch queues every node as a command of its own, with the edges of the graph, between a mark that comes after the
//! stream and a mark that the stream comes after. Launches of one executable come one after the other. Tasks are shared by
//! all launches.
//!
//! Invariant: a node's predecessors have smaller numbers than the node.

use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_driver::{Code, GraphDescription, GraphNode, GraphNodeHandle, GraphNodeKind, GraphNodeWork};

use crate::conditional::calls::BodyOf;
use crate::conditional::{Branch, Conditions, Round};
use crate::executor::command::{Body, Frontier, Origin, Planned};
use crate::executor::plug::Reached;
use crate::executor::task::{Task, Work};
use crate::refusal::{CallResult, Refusal};
use crate::schedules::Actor;
use crate::state::{MachineState, unknown};

/// Bits of a node's number in its handle, and of the graph's number above it.
const NODE_BITS: u32 = 24;
const GRAPH_BITS: u32 = 24;

/// A graph.
pub(crate) struct Graph {
    /// Unique among the graphs of the driver.
    serial: u64,
    pub(crate) nodes: Vec<Node>,
    /// Whether its capture is over.
    pub(crate) is_complete: bool,
    /// Where it is the body of a conditional node.
    pub(crate) body_of: Option<BodyOf>,
    /// Of a root: all bodies in it, and all conditions.
    pub(crate) bodies: Vec<u64>,
    pub(crate) conditions: Vec<u64>,
    /// Of a root: whether the capture of a body failed.
    pub(crate) is_broken: bool,
}

/// A node.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) kind: GraphNodeKind,
    pub(crate) level: u8,
    pub(crate) task: Option<Arc<Task>>,
    pub(crate) branch: Option<Arc<Branch>>,
    pub(crate) predecessors: SmallVec<[u32; 2]>,
}

/// A graph that can be launched.
pub(crate) struct Executable {
    /// The handle of the graph that it was instantiated from: its nodes have their names, and their numbers.
    pub(crate) template: u64,
    pub(crate) nodes: Arc<[Node]>,
    /// The nodes that no other comes after.
    sinks: SmallVec<[u32; 2]>,
    last_launch: Frontier,
    conditions: Arc<Conditions>,
    /// The graph whose memory it holds, if that has any.
    memory: Option<u64>,
}

impl Node {
    /// Returns whether a conditional node may run it.
    pub(crate) fn can_be_in_a_body(&self) -> bool {
        use GraphNodeKind::{Conditional, Copy, Empty, Fill, Kernel, Library};
        let is_gated = self.task.as_ref().is_some_and(|task| matches!(task.work, Work::Gated(_)));
        !is_gated && matches!(self.kind, Conditional | Copy | Empty | Fill | Kernel | Library)
    }
}

impl Graph {
    pub(crate) fn new(serial: u64) -> Self {
        Self {
            serial,
            nodes: Vec::new(),
            is_complete: false,
            body_of: None,
            bodies: Vec::new(),
            conditions: Vec::new(),
            is_broken: false,
        }
    }

    /// Creates a body, which is empty until it is captured.
    pub(crate) fn body(serial: u64, body_of: BodyOf) -> Self {
        Self { is_complete: true, body_of: Some(body_of), ..Self::new(serial) }
    }

    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// Adds a node and returns its number.
    pub(crate) fn push(&mut self, node: Node) -> CallResult<u32> {
        if self.nodes.len() >> NODE_BITS != 0 {
            let detail = format!("a graph of the simulator has at most {} nodes", 1 << NODE_BITS);
            return Err(Refusal::new(Code::NotSupported, detail));
        }
        let index = self.nodes.len() as u32;
        debug_assert!(node.predecessors.iter().all(|&predecessor| predecessor < index));
        self.nodes.push(node);
        Ok(index)
    }

    /// Returns which nodes lie before these, these included.
    pub(crate) fn ancestors(&self, nodes: &[u32]) -> Vec<bool> {
        let mut found = vec![false; self.nodes.len()];
        for &node in nodes {
            found[node as usize] = true;
        }
        for index in (0..self.nodes.len()).rev() {
            if found[index] {
                for &predecessor in &self.nodes[index].predecessors {
                    found[predecessor as usize] = true;
                }
            }
        }
        found
    }

    /// Returns the handle of a node: the number of its graph and its own, with a bit that makes it no other handle.
    pub(crate) fn handle(&self, index: u32) -> GraphNodeHandle {
        let graph = self.serial & ((1 << GRAPH_BITS) - 1);
        GraphNodeHandle::from_raw(1 << 63 | graph << NODE_BITS | u64::from(index))
    }

    /// Returns the number of a node of this graph.
    pub(crate) fn index(&self, handle: GraphNodeHandle) -> Option<u32> {
        let index = (handle.raw() & ((1 << NODE_BITS) - 1)) as u32;
        ((index as usize) < self.nodes.len() && self.handle(index) == handle).then_some(index)
    }
}

/// Returns the nodes of a graph as commands of a launch on the stream of this number.
pub(crate) fn planned(nodes: &[Node], first_number: u32, stream: u32) -> impl Iterator<Item = Planned<'_>> {
    nodes.iter().zip(first_number..).map(move |(node, number)| {
        let body = match (&node.task, &node.branch) {
            (Some(task), _) => Body::Task(Arc::clone(task)),
            (None, Some(branch)) => Body::Step(Box::new(Round::first(branch, stream)), None),
            (None, None) => Body::Mark(None),
        };
        let origin = Origin { level: node.level, actor: Actor::Node { stream, node: number } };
        Planned { body, origin, predecessors: &node.predecessors }
    })
}

pub(crate) fn sinks(nodes: &[Node]) -> SmallVec<[u32; 2]> {
    let mut has_successor = vec![false; nodes.len()];
    for &predecessor in nodes.iter().flat_map(|node| &node.predecessors) {
        has_successor[predecessor as usize] = true;
    }
    (0..nodes.len() as u32).filter(|&index| !has_successor[index as usize]).collect()
}

impl MachineState {
    pub(crate) fn next_graph_serial(&mut self) -> u64 {
        self.last_graph_serial += 1;
        self.last_graph_serial
    }

    pub(crate) fn graph(&self, handle: u64) -> CallResult<&Graph> {
        self.graphs.get(handle).ok_or_else(|| unknown("graph", handle))
    }

    pub(crate) fn graph_describe(&self, handle: u64) -> CallResult<GraphDescription> {
        let graph = self.graph(handle)?;
        self.check_intact(graph.body_of.as_ref().map_or(handle, |body| body.root))?;
        let node = |(index, node): (usize, &Node)| {
            let of_task = node.task.as_ref().map(|task| (task.label, task.describe()));
            let label = of_task.as_ref().map(|(label, _)| *label);
            let work = match &node.branch {
                Some(branch) => {
                    let bodies = branch.bodies.iter().map(|body| self.graph_describe(body.graph));
                    let (conditional, bodies) = (branch.conditional, bodies.collect::<CallResult<_>>()?);
                    GraphNodeWork::Conditional { conditional, bodies }
                }
                None => of_task.map(|(_, work)| work).unwrap_or_default(),
            };
            let label = label.or_else(|| node.branch.as_ref().map(|branch| branch.label));
            Ok(GraphNode { handle: graph.handle(index as u32), kind: node.kind, label, work })
        };
        let nodes = graph.nodes.iter().enumerate().map(node).collect::<CallResult<_>>()?;
        let edges = graph.nodes.iter().enumerate().flat_map(|(index, node)| {
            node.predecessors.iter().map(move |&predecessor| (predecessor as usize, index))
        });
        Ok(GraphDescription { nodes, edges: edges.collect() })
    }

    pub(crate) fn graph_node_predecessors(
        &self,
        handle: u64,
        node: GraphNodeHandle,
    ) -> CallResult<Vec<GraphNodeHandle>> {
        let graph = self.graph(handle)?;
        let index = graph.index(node).ok_or_else(|| {
            Refusal::new(Code::InvalidValue, format!("{node:?} is not a node of the graph"))
        })?;
        let predecessors = &graph.nodes[index as usize].predecessors;
        Ok(predecessors.iter().map(|&predecessor| graph.handle(predecessor)).collect())
    }

    /// Returns a graph that is not part of another: no capture builds it, and no conditional node has it.
    pub(crate) fn finished_graph(&self, handle: u64) -> CallResult<&Graph> {
        let graph = self.graph(handle)?;
        let detail = if !graph.is_complete {
            "the graph is under construction and belongs to its capture: end that first"
        } else if graph.body_of.is_some() {
            "the graph is a body of a conditional node and belongs to the graph that it is in"
        } else {
            return Ok(graph);
        };
        Err(Refusal::new(Code::IllegalState, detail))
    }

    /// Refuses to look into a root of which the capture of a body failed.
    pub(crate) fn check_intact(&self, root: u64) -> CallResult<()> {
        if !self.graph(root)?.is_broken {
            return Ok(());
        }
        let detail = "the capture of a body of the graph failed: the graph can only be destroyed";
        Err(Refusal::new(Code::IllegalState, detail))
    }

    pub(crate) fn graph_destroy(&mut self, handle: u64) -> CallResult<()> {
        let graph = self.finished_graph(handle)?;
        if graph.bodies.iter().any(|&body| self.graph(body).is_ok_and(|body| !body.is_complete)) {
            let detail = "a body of the graph is being captured: end that capture first";
            return Err(Refusal::new(Code::IllegalState, detail));
        }
        self.drop_graph(handle);
        Ok(())
    }

    pub(crate) fn drop_graph(&mut self, handle: u64) {
        if let Some(graph) = self.graphs.remove(handle) {
            self.let_go_of_graph_memory(graph.serial);
            self.drop_family(&graph);
            self.trash.push(Box::new(graph));
        }
    }

    pub(crate) fn graph_instantiate(&mut self, handle: u64, device: u32) -> CallResult<u64> {
        self.usable(device)?;
        let graph = self.finished_graph(handle)?;
        self.check_intact(handle)?;
        self.check_conditions(graph)?;
        let has_executable = self.executables.iter().any(|(_, executable)| executable.template == handle);
        if has_executable && !graph.conditions.is_empty() {
            let detail = "a graph with conditional nodes has one executable at a time: destroy that first";
            return Err(Refusal::new(Code::NotSupported, detail));
        }
        let serial = graph.serial;
        let mut instance = self.begin_instance(graph);
        let nodes: Arc<[Node]> = if graph.conditions.is_empty() {
            graph.nodes.as_slice().into()
        } else {
            self.instance(&graph.nodes, &mut instance)?
        };
        let memory = self.hold_graph_memory(serial);
        let executable = Executable {
            template: handle,
            sinks: sinks(&nodes),
            nodes,
            last_launch: Frontier::new(),
            conditions: Arc::new(instance.into_conditions()),
            memory,
        };
        Ok(self.executables.insert(executable))
    }

    pub(crate) fn graph_exec_destroy(&mut self, handle: u64) -> CallResult<()> {
        let executable =
            self.executables.remove(handle).ok_or_else(|| unknown("executable graph", handle))?;
        if let Some(memory) = executable.memory {
            self.let_go_of_graph_memory(memory);
        }
        self.trash.push(Box::new(executable));
        Ok(())
    }

    /// Prepares nodes that are about to be queued: refuses where they are parts of a rank that has been given up.
    fn begin_collectives(&mut self, nodes: &[Node]) -> CallResult<()> {
        if !self.executor.gate.are_used() {
            return Ok(());
        }
        self.executor.gate.begin();
        for task in nodes.iter().filter_map(|node| node.task.as_ref()) {
            if !self.executor.gate.is_usable(task) {
                let detail =
                    format!("the communicator of `{}`, in the graph, has been destroyed", task.label);
                return Err(Refusal::new(Code::InvalidHandle, detail));
            }
        }
        Ok(())
    }

    pub(crate) fn graph_launch(&mut self, handle: u64, stream: u64) -> CallResult<()> {
        let own = self.enter(stream)?;
        self.forbid_on_capturing(own, "graph_launch")?;
        let executable = self.executables.get(handle).ok_or_else(|| unknown("executable graph", handle))?;
        let (nodes, conditions) = (Arc::clone(&executable.nodes), Arc::clone(&executable.conditions));
        let (sinks, mut before) = (executable.sinks.clone(), executable.last_launch.clone());
        self.begin_collectives(&nodes)?;
        before.extend(self.frontier(own));
        let (origin, stream) = (self.stream(own).origin(), self.stream(own).number);
        let start = if conditions.0.is_empty() { None } else { Some(conditions as Arc<dyn Reached>) };
        let entry = self.executor.add(Body::Mark(start), origin, before);
        let commands = self.executor.add_all(planned(&nodes, 0, stream), Some(entry));
        let ends = sinks.iter().map(|&index| commands[index as usize]).chain([entry]);
        let exit = self.executor.add(Body::Mark(None), origin, ends);
        self.stream_mut(own).frontier = Frontier::from_slice(&[exit]);
        let executable = self.executables.get_mut(handle).expect("found above");
        executable.last_launch = Frontier::from_slice(&[exit]);
        if let Some(memory) = executable.memory {
            self.launched_graph_memory(memory, &Frontier::from_slice(&[exit]));
        }
        Ok(())
    }
}
