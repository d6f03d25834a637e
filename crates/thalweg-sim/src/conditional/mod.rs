//! Conditional nodes: conditions, the nodes that read them, and their execution.
//!
//! A conditional node is a [`QueueingCommand`] of the executor: it reads its condition when it is reached, and queues the
//! body that the condition selects. When the body is complete, the node is asked again. When there is nothing more to run,
//! the node is complete, and its successors continue. So bodies are queued only when they run, and order nothing but
//! themselves.
//!
//! The capture and instantiation of such nodes is in `calls`.
//!
//! This module and `objects::graph` use each other: a conditional node is a node of a graph, and its bodies are graphs.

pub(crate) mod calls;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use thalweg_driver::{Code, Conditional, Label};

use crate::executor::command::Origin;
use crate::executor::plug::{Next, QueueingCommand, Reached};
use crate::objects::graph::{Node, planned};
use crate::refusal::Refusal;
use crate::schedules::Actor;

/// The number of times that a node may run its body in one launch. A GPU would continue forever.
const MOST_ROUNDS: u32 = 1 << 20;

/// The value that a node reads. Each executable has its own.
#[derive(Clone, Debug)]
pub(crate) struct Condition {
    initial: u32,
    pub(crate) value: Arc<AtomicU32>,
}

impl Condition {
    pub(crate) fn new(initial: u32) -> Self {
        Self { initial, value: Arc::new(AtomicU32::new(initial)) }
    }

    /// Returns another condition that starts at the same value.
    pub(crate) fn sibling(&self) -> Self {
        Self::new(self.initial)
    }
}

/// The conditions of an executable.
pub(crate) struct Conditions(pub(crate) Vec<Condition>);

impl Reached for Conditions {
    /// Resets the conditions to the values with which each launch starts.
    fn reached(&self, _: u64) {
        self.0.iter().for_each(|condition| condition.value.store(condition.initial, Ordering::Relaxed));
    }
}

/// A condition.
pub(crate) struct ConditionEntry {
    pub(crate) root: u64,
    pub(crate) device: u32,
    pub(crate) condition: Condition,
    /// Whether a node reads the condition.
    pub(crate) is_used: bool,
}

/// The place of a body: its root and its conditional node.
#[derive(Clone, Copy)]
pub(crate) struct BodyOf {
    pub(crate) root: u64,
    pub(crate) device: u32,
}

/// A conditional node.
pub(crate) struct Branch {
    pub(crate) device: u32,
    pub(crate) label: Label,
    pub(crate) conditional: Conditional,
    pub(crate) condition: Condition,
    pub(crate) bodies: Vec<BranchBody>,
}

/// A body of a conditional node.
pub(crate) struct BranchBody {
    /// The handle of the graph.
    pub(crate) graph: u64,
    /// The contents of the graph at instantiation; only in executables.
    pub(crate) nodes: Arc<[Node]>,
    /// The number of the first node, unique in the executable; only in executables.
    pub(crate) first_number: u32,
}

/// A launch of a conditional node, between two rounds.
pub(crate) struct Round {
    branch: Arc<Branch>,
    stream: u32,
    /// The number of times that a body has run.
    number: u32,
}

impl Round {
    /// Begins a launch of a node on the stream with number `stream`.
    pub(crate) fn first(branch: &Arc<Branch>, stream: u32) -> Self {
        Self { branch: Arc::clone(branch), stream, number: 0 }
    }

    /// Returns which body runs next.
    fn choose(&self) -> Result<Option<usize>, Refusal> {
        let branch = &*self.branch;
        let value = branch.condition.value.load(Ordering::Relaxed);
        Ok(match branch.conditional {
            Conditional::While if value != 0 && self.number == MOST_ROUNDS => {
                let detail = format!(
                    "`{}`: the body of a while node has run {MOST_ROUNDS} times in one launch, and its condition is \
                     still {value}: a GPU would run it for ever",
                    branch.label
                );
                return Err(Refusal::new(Code::LaunchTimeout, detail));
            }
            Conditional::While => (value != 0).then_some(0),
            _ if self.number > 0 => None,
            Conditional::If => (value != 0).then_some(0),
            Conditional::IfElse => Some(usize::from(value == 0)),
            Conditional::Switch { cases } => (value < cases).then_some(value as usize),
        })
    }
}

impl QueueingCommand for Round {
    fn device(&self) -> u32 {
        self.branch.device
    }

    fn next(&self) -> Next<'_> {
        let body = match self.choose() {
            Ok(Some(body)) => &self.branch.bodies[body],
            Ok(None) => return Next::Done,
            Err(refusal) => return Next::Fail(refusal),
        };
        Next::Queue {
            commands: planned(&body.nodes, body.first_number, self.stream).collect(),
            origin: Origin { level: 0, actor: Actor::Stream(self.stream) },
            again: Box::new(Self {
                branch: Arc::clone(&self.branch),
                stream: self.stream,
                number: self.number + 1,
            }),
        }
    }
}
