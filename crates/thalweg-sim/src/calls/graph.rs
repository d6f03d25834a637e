//! Graphs: their description, and launches.
//!
//! A launch queues every node as a separate command, with the edges of the graph, between a mark that comes after the
//! stream's earlier work and a mark that precedes its later work. Launches of one executable run one after the other. Tasks
//! are shared by all launches.

use std::sync::Arc;

use thalweg_driver::{Code, GraphDescription, GraphNode, GraphNodeHandle, GraphNodeWork};

use crate::executor::command::{Body, Frontier};
use crate::executor::plug::Reached;
use crate::objects::graph::{Executable, Graph, Node, planned, sinks};
use crate::refusal::{CallResult, Refusal};
use crate::state::{MachineState, unknown};

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

    /// Returns a graph that is finished and not a body.
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

    /// Refuses a root with a body whose capture failed.
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

    /// Prepares nodes that are about to be queued: refuses parts of a rank that has been destroyed.
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
        let touches = |node: &Node| {
            node.task.as_ref().is_some_and(|task| self.memory.visible.are_touched(&task.accesses))
        };
        if nodes.iter().any(touches) {
            self.awaited.push(exit);
        }
        let executable = self.executables.get_mut(handle).expect("found above");
        executable.last_launch = Frontier::from_slice(&[exit]);
        if let Some(memory) = executable.memory {
            self.launched_graph_memory(memory, &Frontier::from_slice(&[exit]));
        }
        Ok(())
    }
}
