//! Conditions, conditional nodes and their bodies, as they are captured and instantiated.
//!
//! The graph that a capture begins is the *root* of all bodies in it, at any depth: bodies and conditions belong to the
//! root and are destroyed with it.
//!
//! Invariant: a body's root is a graph of the table for as long as the body has one.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use smallvec::SmallVec;
use thalweg_driver::{
    Access, CaptureMode, Code, ConditionFormat, Conditional, DevicePointer, GraphNodeKind, Label,
};

use super::{BodyOf, Branch, BranchBody, Condition, ConditionEntry, Conditions};
use crate::executor::task::{Task, Work};
use crate::objects::graph::{Graph, Node};
use crate::objects::stream::Branch as StreamBranch;
use crate::refusal::{CallResult, Refusal};
use crate::state::{MachineState, unknown};

impl MachineState {
    /// Returns the graph that the stream captures into, and its root.
    fn captured_graphs(&self, own: u64) -> CallResult<(u64, u64)> {
        let Some(StreamBranch { capture, .. }) = &self.stream(own).capture else {
            return Err(Refusal::new(
                Code::IllegalState,
                "the stream does not capture: conditions and conditional nodes are parts of a graph",
            ));
        };
        self.check_capture(own)?;
        let graph = self.graph_under_capture(*capture);
        let body_of = self.graph(graph)?.body_of;
        Ok((graph, body_of.map_or(graph, |body| body.root)))
    }

    /// Returns a condition of the graph that the stream captures into.
    fn condition_here(&self, own: u64, condition: u64) -> CallResult<(&ConditionEntry, u64)> {
        let entry = self.conditions.get(condition).ok_or_else(|| unknown("condition", condition))?;
        let (graph, root) = self.captured_graphs(own)?;
        let device = self.stream(own).device;
        if entry.root != root || entry.device != device {
            let detail =
                "the condition belongs to another graph, or another device, than the stream captures for";
            return Err(Refusal::new(Code::InvalidValue, detail));
        }
        Ok((entry, graph))
    }

    pub(crate) fn condition_create(&mut self, stream: u64, initial: u32) -> CallResult<u64> {
        let own = self.enter(stream)?;
        let (_, root) = self.captured_graphs(own)?;
        let device = self.stream(own).device;
        let condition = Condition::new(initial);
        let handle = self.conditions.insert(ConditionEntry { root, device, condition, is_used: false });
        self.graphs.get_mut(root).expect("a root is there").conditions.push(handle);
        Ok(handle)
    }

    pub(crate) fn condition_set(
        &mut self,
        stream: u64,
        condition: u64,
        source: DevicePointer,
        format: ConditionFormat,
        label: Label,
    ) -> CallResult<()> {
        let own = self.enter(stream)?;
        let (entry, _) = self.condition_here(own, condition)?;
        if !source.address().is_multiple_of(format.bytes()) {
            let detail =
                format!("`{label}`: {source:?} is not aligned to the {} bytes of the value", format.bytes());
            return Err(Refusal::new(Code::InvalidValue, detail));
        }
        let task = Task {
            device: entry.device,
            label,
            accesses: SmallVec::from_slice(&[Access::read(source, format.bytes())]),
            work: Work::ToCell(Arc::clone(&entry.condition.value)),
        };
        self.submit(own, task, GraphNodeKind::Kernel).map(|_| ())
    }

    pub(crate) fn conditional_node_add(
        &mut self,
        stream: u64,
        condition: u64,
        conditional: Conditional,
        label: Label,
    ) -> CallResult<Vec<u64>> {
        let own = self.enter(stream)?;
        let (entry, _) = self.condition_here(own, condition)?;
        let refuse = |why: &str| Refusal::new(Code::InvalidValue, format!("`{label}`, {conditional}: {why}"));
        conditional.check().map_err(|why| refuse(&why))?;
        if entry.is_used {
            return Err(refuse("another node reads this condition"));
        }
        let (root, device, condition_value) = (entry.root, entry.device, entry.condition.clone());
        let graphs: Vec<u64> = (0..conditional.bodies())
            .map(|_| {
                let serial = self.next_graph_serial();
                self.graphs.insert(Graph::body(serial, BodyOf { root, device }))
            })
            .collect();
        let bodies =
            graphs.iter().map(|&graph| BranchBody { graph, nodes: Arc::new([]), first_number: 0 }).collect();
        let branch = Branch { device, label, conditional, condition: condition_value, bodies };
        self.graphs.get_mut(root).expect("a root is there").bodies.extend(&graphs);
        self.capture_branch(own, Arc::new(branch))?;
        self.conditions.get_mut(condition).expect("found above").is_used = true;
        Ok(graphs)
    }

    pub(crate) fn capture_begin_to_graph(
        &mut self,
        stream: u64,
        graph: u64,
        mode: CaptureMode,
    ) -> CallResult<()> {
        let own = self.stream_id(stream)?;
        let device = self.stream(own).device;
        let body = self.graph(graph)?;
        let refuse = |detail: &str| Err(Refusal::new(Code::InvalidValue, detail));
        match body.body_of {
            None => {
                return refuse("the graph is not a body of a conditional node: only those are captured into");
            }
            Some(of) if of.device != device => {
                let detail =
                    format!("the body is of device {}, and the stream of device {device}", of.device);
                return refuse(&detail);
            }
            Some(of) if self.check_intact(of.root).is_err() => return self.check_intact(of.root),
            Some(_) if !body.is_complete || !body.nodes.is_empty() => {
                return refuse("the body has been captured already, or is just now");
            }
            Some(_) => {}
        }
        self.capture_begin_into(own, Some(graph), mode)?;
        self.graphs.get_mut(graph).expect("found above").is_complete = false;
        Ok(())
    }

    /// Refuses a graph with a condition that no node reads, as drivers for CUDA 12.8 do.
    pub(crate) fn check_conditions(&self, graph: &Graph) -> CallResult<()> {
        let unused = |&&condition: &&u64| self.conditions.get(condition).is_some_and(|entry| !entry.is_used);
        match graph.conditions.iter().filter(unused).count() {
            0 => Ok(()),
            count => {
                let detail = format!("{count} conditions of the graph are read by no conditional node");
                Err(Refusal::new(Code::InvalidValue, detail))
            }
        }
    }

    /// Starts an executable of a graph.
    pub(crate) fn begin_instance(&self, graph: &Graph) -> Instance {
        let of_graph = graph.conditions.iter().filter_map(|&handle| self.conditions.get(handle));
        let conditions = of_graph.map(|entry| (entry.condition.clone(), entry.condition.sibling())).collect();
        Instance { next_number: graph.nodes.len() as u32, conditions }
    }

    /// Returns the nodes of a graph for an executable: with conditions of its own, and bodies in their places.
    pub(crate) fn instance(&self, nodes: &[Node], instance: &mut Instance) -> CallResult<Arc<[Node]>> {
        nodes
            .iter()
            .map(|node| {
                let mut node = node.clone();
                if let Some(task) = &node.task
                    && let Work::ToCell(cell) = &task.work
                {
                    let (label, accesses) = (task.label, task.accesses.clone());
                    let work = Work::ToCell(Arc::clone(&instance.condition(cell).value));
                    node.task = Some(Arc::new(Task { device: task.device, label, accesses, work }));
                }
                if let Some(branch) = &node.branch {
                    node.branch = Some(Arc::new(self.branch_instance(branch, instance)?));
                }
                Ok(node)
            })
            .collect()
    }

    fn branch_instance(&self, branch: &Branch, instance: &mut Instance) -> CallResult<Branch> {
        let body = |BranchBody { graph, .. }: &BranchBody| {
            let found = self.graph(*graph)?;
            if !found.is_complete {
                let detail =
                    format!("a body of `{}` is being captured: end that capture first", branch.label);
                return Err(Refusal::new(Code::IllegalState, detail));
            }
            let first_number = instance.next_number;
            instance.next_number += found.nodes.len() as u32;
            let nodes = self.instance(&found.nodes, instance)?;
            Ok(BranchBody { graph: *graph, nodes, first_number })
        };
        let bodies = branch.bodies.iter().map(body).collect::<CallResult<_>>()?;
        let condition = instance.condition(&branch.condition.value).clone();
        let &Branch { device, label, conditional, .. } = branch;
        Ok(Branch { device, label, conditional, condition, bodies })
    }

    /// Drops the bodies and conditions of a graph that is being dropped. A body that is being captured is left to its capture,
    /// which is broken.
    pub(crate) fn drop_family(&mut self, graph: &Graph) {
        for &condition in &graph.conditions {
            self.conditions.remove(condition);
        }
        for &body in &graph.bodies {
            let Some(found) = self.graphs.get_mut(body) else { continue };
            if found.is_complete {
                let body = self.graphs.remove(body);
                self.trash.push(Box::new(body));
            } else {
                found.body_of = None;
                self.invalidate_captures_into(body, "the graph of its conditional node is gone");
            }
        }
    }
}

/// The parts of an executable while it is created.
pub(crate) struct Instance {
    /// The number of the next node in a body.
    pub(crate) next_number: u32,
    /// Pairs of a condition of the graph and the corresponding one of the executable.
    conditions: Vec<(Condition, Condition)>,
}

impl Instance {
    /// Returns the executable's condition for the graph's condition with this value.
    fn condition(&self, value: &Arc<AtomicU32>) -> &Condition {
        let found = self.conditions.iter().find(|(of_graph, _)| Arc::ptr_eq(&of_graph.value, value));
        &found.expect("a graph holds the conditions of its nodes").1
    }

    /// Returns the conditions of the executable.
    pub(crate) fn into_conditions(self) -> Conditions {
        Conditions(self.conditions.into_iter().map(|(_, own)| own).collect())
    }
}
