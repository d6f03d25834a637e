//! Conditional nodes as they run.
//!
//! A conditional node is a mark that is not complete when it is reached: it reads its condition then, queues the body that
//! this chooses, and behind it a mark of its own that asks again. Once there is nothing more to run the node is complete, and
//! what comes after it goes on. So bodies are queued only when they run, and order nothing but themselves.
//!
//! Invariants: the command of a node that has been reached stays in its slot until the node is complete; queueing a body can
//! reach further nodes, which wait in a list until that is done, so nothing here is entered twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use thalweg_driver::{Code, Conditional, Label};

use super::{Body, CommandId, Executor, Origin};
use crate::objects::graph::Node;
use crate::refusal::Refusal;
use crate::schedules::Actor;

/// How often a node may run its body in one launch. A GPU would go on for ever.
const MOST_ROUNDS: u32 = 1 << 20;

/// The value that a node reads. Each executable has its own.
#[derive(Debug)]
pub(crate) struct Condition {
    initial: u32,
    value: AtomicU32,
}

impl Condition {
    pub(crate) fn new(initial: u32) -> Self {
        Self { initial, value: AtomicU32::new(initial) }
    }

    /// Returns another condition that starts at the same value.
    pub(crate) fn sibling(&self) -> Self {
        Self::new(self.initial)
    }

    pub(crate) fn set(&self, value: u32) {
        self.value.store(value, Ordering::Relaxed);
    }
}

/// A conditional node.
pub(crate) struct Branch {
    pub(crate) device: u32,
    pub(crate) label: Label,
    pub(crate) conditional: Conditional,
    pub(crate) condition: Arc<Condition>,
    pub(crate) bodies: Vec<BranchBody>,
}

/// One of its bodies.
pub(crate) struct BranchBody {
    /// The handle of the graph.
    pub(crate) graph: u64,
    /// In an executable: what the graph held when it was instantiated.
    pub(crate) nodes: Arc<[Node]>,
    /// In an executable: the number of the first node, which no other node of it has.
    pub(crate) first_number: u32,
}

/// A launch of a conditional node, between two rounds.
#[derive(Clone)]
pub(crate) struct Round {
    pub(crate) branch: Arc<Branch>,
    pub(crate) stream: u32,
    /// How often a body has run.
    pub(crate) number: u32,
    /// The slot of the node's command, where a body has run.
    pub(crate) slot: Option<u32>,
}

impl Executor {
    /// Resets the conditions to the values with which each launch starts.
    pub(super) fn start_conditions(conditions: &[Arc<Condition>]) {
        conditions.iter().for_each(|condition| condition.set(condition.initial));
    }

    /// Queues the nodes of a graph, those without predecessors behind `entry`. The commands, in the order of the nodes.
    pub(crate) fn queue_nodes(
        &mut self,
        nodes: &[Node],
        first_number: u32,
        stream: u32,
        entry: Option<CommandId>,
    ) -> Vec<CommandId> {
        let mut commands: Vec<CommandId> = Vec::with_capacity(nodes.len());
        for (node, number) in nodes.iter().zip(first_number..) {
            let origin = Origin { level: node.level, actor: Actor::Node { stream, node: number } };
            let body = match (&node.task, &node.branch) {
                (Some(task), _) => Body::Task(Arc::clone(task)),
                (None, Some(branch)) => {
                    Body::Branch(Round { branch: Arc::clone(branch), stream, number: 0, slot: None })
                }
                (None, None) => Body::Mark(None),
            };
            let command = if node.predecessors.is_empty() {
                self.add(body, origin, entry)
            } else {
                let predecessors = node.predecessors.iter().map(|&index| commands[index as usize]);
                self.add(body, origin, predecessors)
            };
            commands.push(command);
        }
        commands
    }

    /// Goes on with the conditional nodes that have been reached. Whether any was.
    pub(super) fn take_branches(&mut self) -> bool {
        if self.is_branching {
            return false;
        }
        let Some((slot, round)) = self.reached.pop() else { return false };
        self.is_branching = true;
        match self.choose(&round) {
            Some(body) => self.queue_body(slot, &round, body),
            None => self.retire(slot),
        }
        self.is_branching = false;
        // It may be the last to know the tasks of its bodies, which are not dropped here.
        self.spent.push(round.branch);
        true
    }

    /// Returns which body runs next.
    fn choose(&mut self, round: &Round) -> Option<usize> {
        let branch = &*round.branch;
        if self.lost(branch.device).is_some() {
            return None;
        }
        let value = branch.condition.value.load(Ordering::Relaxed);
        match branch.conditional {
            Conditional::While if value != 0 && round.number == MOST_ROUNDS => {
                let detail = format!(
                    "`{}`: the body of a while node has run {MOST_ROUNDS} times in one launch, and its condition is \
                     still {value}: a GPU would run it for ever",
                    branch.label
                );
                self.lose(&[branch.device], &Refusal::new(Code::LaunchTimeout, detail));
                self.meet();
                None
            }
            Conditional::While => (value != 0).then_some(0),
            _ if round.number > 0 => None,
            Conditional::If => (value != 0).then_some(0),
            Conditional::IfElse => Some(usize::from(value == 0)),
            Conditional::Switch { cases } => (value < cases).then_some(value as usize),
        }
    }

    fn queue_body(&mut self, slot: u32, round: &Round, body: usize) {
        let &BranchBody { ref nodes, first_number, .. } = &round.branch.bodies[body];
        let commands = self.queue_nodes(nodes, first_number, round.stream, None);
        let again = Round { number: round.number + 1, slot: Some(slot), ..round.clone() };
        let origin = Origin { level: 0, actor: Actor::Stream(round.stream) };
        let id = self.add(Body::Branch(again), origin, commands);
        if let Some(details) = &mut self.details {
            let node = &mut details.commands[slot as usize];
            node.predecessors.push(id);
            if node.is_needed {
                self.need(&[id]);
            }
        }
    }
}
