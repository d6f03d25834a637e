//! Updates of executable graphs, with CUDA's rules.
//!
//! An update replaces tasks and the events of nodes, and nothing else: an executable always keeps the shape of the graph that it
//! was instantiated from. Everything is compared before anything is replaced, so a refused update changes nothing. Queued
//! launches keep the tasks with which they were queued.

use std::sync::Arc;

use thalweg_driver::{
    Code, GraphExecUpdate, GraphNodeHandle, GraphNodeKind, Launch, UpdateReason, UpdateRefusal,
};

use crate::executor::task::{Task, Work};
use crate::memory::Memory;
use crate::objects::graph::{Node, sinks};
use crate::refusal::{CallResult, Refusal};
use crate::state::{MachineState, unknown};

/// The difference that refuses an update, and the nodes of the new graph that show it.
struct Mismatch {
    reason: UpdateReason,
    node: Option<u32>,
    dependency: Option<u32>,
}

impl Mismatch {
    fn of(reason: UpdateReason, node: u32) -> Self {
        Self { reason, node: Some(node), dependency: None }
    }
}

impl MachineState {
    pub(crate) fn graph_exec_update(&mut self, executable: u64, graph: u64) -> CallResult<GraphExecUpdate> {
        let source = self.finished_graph(graph)?;
        let target =
            self.executables.get(executable).ok_or_else(|| unknown("executable graph", executable))?;
        let paired = pair(&target.nodes, &source.nodes).and_then(|pairs| {
            for (old, &new) in target.nodes.iter().zip(&pairs) {
                check(&self.memory, old, &source.nodes[new as usize])
                    .map_err(|reason| Mismatch::of(reason, new))?;
            }
            Ok(pairs)
        });
        let pairs = match paired {
            Ok(pairs) => pairs,
            Err(Mismatch { reason, node, dependency }) => {
                let name = |node: Option<u32>| node.map(|node| source.handle(node));
                let (node, dependency) = (name(node), name(dependency));
                return Ok(GraphExecUpdate::Refused(UpdateRefusal { reason, node, dependency }));
            }
        };
        let of_source = |&new: &u32| {
            let node = &source.nodes[new as usize];
            (node.task.clone(), node.event.clone())
        };
        let work: Vec<_> = pairs.iter().map(of_source).collect();
        let target = self.executables.get_mut(executable).expect("found above");
        let nodes = Arc::make_mut(&mut target.nodes);
        for (node, (task, event)) in nodes.iter_mut().zip(work) {
            node.event = event;
            let old = std::mem::replace(&mut node.task, task);
            self.trash.push(Box::new(old));
        }
        Ok(GraphExecUpdate::Updated)
    }

    pub(crate) fn graph_exec_kernel_node_set_params(
        &mut self,
        executable: u64,
        node: GraphNodeHandle,
        launch: &Launch<'_>,
    ) -> CallResult<()> {
        let target =
            self.executables.get(executable).ok_or_else(|| unknown("executable graph", executable))?;
        let refuse = |detail: &str| Refusal::new(Code::InvalidValue, detail);
        let template = self.graphs.get(target.template).ok_or_else(|| {
            refuse(
                "the graph that the executable was instantiated from has been destroyed: keep it, since its nodes name \
                 the executable's",
            )
        })?;
        let index = template.index(node).ok_or_else(|| {
            refuse(&format!("{node:?} is not a node of the graph that the executable was instantiated from"))
        })?;
        let found = &target.nodes[index as usize];
        let is_launch = |task: &&Arc<Task>| {
            found.kind == GraphNodeKind::Kernel && matches!(task.work, Work::Kernel { .. })
        };
        let Some(old) = found.task.as_ref().filter(is_launch) else {
            return Err(refuse(&format!("{node:?} is not a kernel: it is a node of kind {:?}", found.kind)));
        };
        let task = self.kernel_task(old.device, launch)?;
        let target = self.executables.get_mut(executable).expect("found above");
        let nodes = Arc::make_mut(&mut target.nodes);
        let old = nodes[index as usize].task.replace(Arc::new(task));
        self.trash.push(Box::new(old));
        Ok(())
    }
}

/// Returns, for each node of the old graph, the corresponding node of the new one.
fn pair(old: &[Node], new: &[Node]) -> Result<Vec<u32>, Mismatch> {
    let changed = |node, dependency| Mismatch { reason: UpdateReason::TopologyChanged, node, dependency };
    let (old_ends, new_ends) = (sinks(old), sinks(new));
    if old.len() != new.len() || old_ends.len() != new_ends.len() {
        let node = new_ends.get(old_ends.len()).filter(|_| old.len() == new.len()).copied();
        return Err(changed(node, None));
    }
    let (mut forth, mut back) = (vec![None; old.len()], vec![None; new.len()]);
    // Pairs that are not yet compared, with the node that each is a dependency of.
    let mut open: Vec<(u32, u32, Option<u32>)> =
        old_ends.iter().zip(&new_ends).map(|(&old, &new)| (old, new, None)).collect();
    while let Some((one, other, dependent)) = open.pop() {
        match (forth[one as usize], back[other as usize]) {
            (None, None) => {}
            (Some(known), _) if known == other => continue,
            _ => return Err(changed(dependent, Some(other))),
        }
        (forth[one as usize], back[other as usize]) = (Some(other), Some(one));
        let (before, after) = (&old[one as usize].predecessors, &new[other as usize].predecessors);
        if before.len() != after.len() {
            return Err(changed(Some(other), None));
        }
        open.extend(before.iter().zip(after).map(|(&old, &new)| (old, new, Some(other))));
    }
    let all: Option<Vec<u32>> = forth.into_iter().collect();
    Ok(all.expect("every node lies before an end"))
}

/// Checks whether a node can replace another.
fn check(memory: &Memory, old: &Node, new: &Node) -> Result<(), UpdateReason> {
    use GraphNodeKind::{Allocate, Conditional, Free, Kernel, Library};
    if old.kind != new.kind {
        return Err(UpdateReason::KindChanged);
    }
    if matches!(old.kind, Allocate | Free | Conditional) {
        return Err(UpdateReason::NotSupported);
    }
    let (Some(before), Some(after)) = (&old.task, &new.task) else { return Ok(()) };
    match (&before.work, &after.work) {
        (Work::Gated(_) | Work::ToCell(_), _) | (_, Work::ToCell(_)) => {
            return Err(UpdateReason::NotSupported);
        }
        (Work::Fill(one), Work::Fill(other)) if one.bytes() != other.bytes() => {
            return Err(UpdateReason::ParametersChanged);
        }
        (Work::Kernel { .. }, _) if before.device != after.device => {
            return Err(UpdateReason::FunctionChanged);
        }
        (Work::Copy | Work::Fill(_), _) => {
            // Memory that is gone meanwhile no longer shows where it was.
            let moved = before.accesses.iter().zip(&after.accesses).any(|(one, other)| {
                let known = memory.place(one.start);
                known.is_some() && known != memory.place(other.start)
            });
            if moved || before.device != after.device {
                return Err(UpdateReason::ParametersChanged);
            }
        }
        _ => {}
    }
    // A launch keeps the priorities with which its kernels were captured.
    if matches!(old.kind, Kernel | Library) && old.level != new.level {
        return Err(UpdateReason::AttributesChanged);
    }
    Ok(())
}
