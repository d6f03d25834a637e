//! Commands: their identifiers, their predecessors, and their kinds.

use std::sync::Arc;

use smallvec::SmallVec;

use super::plug::{QueueingCommand, Reached};
use super::task::Task;
use crate::schedules::Actor;

/// The identifier of a command, which is never reused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CommandId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl CommandId {
    /// Returns the command's slot, which is valid as long as it is not complete.
    pub(crate) fn slot(self) -> u32 {
        self.index
    }
}

/// The latest commands of a stream or another order: commands that follow must wait for these.
pub(crate) type Frontier = SmallVec<[CommandId; 2]>;

/// The kind of a command, with its work.
pub(crate) enum Body {
    /// Work for a worker.
    Task(Arc<Task>),
    /// A position in the order; it may notify an object when it is reached.
    Mark(Option<Arc<dyn Reached>>),
    /// A stream-ordered free of the allocation at this address.
    PoolFree(u64),
    /// A command that chooses the commands to queue next, when it is reached. At the end of the commands that it queued, the
    /// second value is the slot of the first one.
    Step(Box<dyn QueueingCommand>, Option<u32>),
}

/// The origin of a command.
#[derive(Clone, Copy)]
pub(crate) struct Origin {
    /// The priority.
    pub(crate) level: u8,
    /// The actor that takes the step.
    pub(crate) actor: Actor,
}

impl Origin {
    /// Returns the number of the stream in whose queue the command is.
    pub(super) fn stream(self) -> u32 {
        match self.actor {
            Actor::Stream(stream) | Actor::Node { stream, .. } => stream,
            Actor::Host(_) => unreachable!("a host thread is not a command"),
        }
    }
}

/// A command that is queued together with other commands.
pub(crate) struct Planned<'a> {
    pub(crate) body: Body,
    pub(crate) origin: Origin,
    /// The indices of the predecessors, all of them earlier commands of the list.
    pub(crate) predecessors: &'a [u32],
}

/// Bytes held, or waited for, by a host thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Claim(pub(super) u64);
