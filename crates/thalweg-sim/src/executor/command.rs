//! Commands: what names them, what they come after, and what they are.

use std::sync::Arc;

use smallvec::SmallVec;

use super::plug::{QueueingCommand, Reached};
use super::task::Task;
use crate::schedules::Actor;

/// A command, for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CommandId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl CommandId {
    /// Returns where it is as long as it is not complete.
    pub(crate) fn slot(self) -> u32 {
        self.index
    }
}

/// Commands that something comes after.
pub(crate) type Frontier = SmallVec<[CommandId; 2]>;

/// The kind of a command, with its work.
pub(crate) enum Body {
    /// Work for a worker.
    Task(Arc<Task>),
    /// A place in the order; it may tell that it was reached.
    Mark(Option<Arc<dyn Reached>>),
    /// A stream-ordered free of the allocation at this address.
    PoolFree(u64),
    /// A command that says itself what comes next; where it is the end of what that queued, the slot of the first.
    Step(Box<dyn QueueingCommand>, Option<u32>),
}

/// The place where a command comes from.
#[derive(Clone, Copy)]
pub(crate) struct Origin {
    /// Its priority.
    pub(crate) level: u8,
    /// The actor whose step it is.
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

/// A command that is queued with others.
pub(crate) struct Planned<'a> {
    pub(crate) body: Body,
    pub(crate) origin: Origin,
    /// By their places among the others, all of them earlier ones.
    pub(crate) predecessors: &'a [u32],
}

/// Bytes held, or waited for, by a host thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Claim(pub(super) u64);
