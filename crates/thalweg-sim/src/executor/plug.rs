//! Traits by which commands that the executor does not know plug into it.
//!
//! - A mark can carry something that [learns](Reached) when it is queued, and that it was reached.
//! - A [`QueueingCommand`] is a command without a worker: when it is reached, it may queue others, and it is complete when they and
//!   what they lead to are.
//! - A [`Gate`] holds commands whose work is [gated](super::task::Work::Gated): when they could run, they *arrive* there, and hold
//!   their streams up until the gate gives [work](super::task::JointWork) that one of them does for several, or gives them up.
//!
//! All of them run in the critical section: they own nothing of the program that is dropped there, and never wait.
//!
//! This module and `command` use each other: a command may carry one of these, which learns the command's place in the order.

use std::sync::Arc;

use smallvec::SmallVec;

use super::command::{CommandId, Frontier, Origin, Planned};
use super::task::Task;
use crate::refusal::Refusal;

/// Something that learns when a place in the order is queued, and when it is reached.
pub(crate) trait Reached: Send + Sync {
    /// Notes that the place is queued as this command, and returns what else it comes after.
    fn queued(&self, _command: CommandId) -> Frontier {
        Frontier::new()
    }

    /// Notes that the place was reached, so many nanoseconds after the machine started.
    fn reached(&self, nanoseconds: u64);
}

/// A command that queues others.
pub(crate) trait QueueingCommand: Send + Sync {
    /// Returns the device whose loss ends it.
    fn device(&self) -> u32;

    /// Returns what comes next. It is asked when the command is reached, and again whenever what it queued is complete.
    fn next(&self) -> Next<'_>;
}

/// The action of a [`QueueingCommand`] that was asked.
pub(crate) enum Next<'a> {
    /// It is complete.
    Done,
    /// These commands, after which `again` is asked.
    Queue { commands: Vec<Planned<'a>>, origin: Origin, again: Box<dyn QueueingCommand> },
    /// It is complete, and its device is lost.
    Fail(Refusal),
}

/// The place where gated commands wait for each other.
pub(crate) trait Gate {
    /// Takes in a gated command that is queued, and returns what else it comes after.
    fn enlist(&mut self, command: CommandId, task: &Arc<Task>) -> Frontier;

    /// Notes that the command in a slot could run.
    fn arrived(&mut self, slot: u32);

    /// Returns what has become of commands that have arrived; one thing at a time.
    fn verdict(&mut self, lost: &[Option<Refusal>]) -> Option<Verdict>;

    /// Notes that the command in a slot has run. If that was for several, returns their devices, and the other commands that are
    /// over with it.
    fn end(&mut self, slot: u32) -> Option<(Devices, SmallVec<[u32; 8]>)>;

    /// Returns the gated commands without which the command in a slot cannot run.
    fn partners(&self, slot: u32) -> SmallVec<[CommandId; 8]>;

    /// Returns whether there may be commands that wait for each other in a circle that has not been looked for.
    fn may_wait_in_circle(&mut self) -> bool;

    /// Gives up commands that wait for each other in a circle.
    fn find_circle(&mut self, web: &Web<'_>) -> Option<Failure>;

    /// Describes which commands wait for which, in words; empty if none waits.
    fn describe(&self, web: &Web<'_>) -> String;
}

/// Devices of gated commands.
pub(crate) type Devices = SmallVec<[u32; 8]>;

/// The fate of gated commands.
pub(crate) enum Verdict {
    /// The task runs as the first of these commands, by slot, and all are complete when it is.
    Runs { slots: SmallVec<[u32; 8]>, task: Arc<Task> },
    /// It cannot be: the devices are lost, and these commands are over.
    Fails(Failure),
}

/// Devices that are lost, why, and the commands that wait no longer.
pub(crate) struct Failure {
    pub(crate) devices: Devices,
    pub(crate) refusal: Refusal,
    pub(crate) released: SmallVec<[u32; 8]>,
}

/// The dependences between commands.
pub(crate) struct Web<'a> {
    /// The commands that wait for the command in a slot.
    pub(crate) successors: &'a dyn Fn(u32) -> &'a [u32],
    /// Whether a command is complete.
    pub(crate) is_done: &'a dyn Fn(CommandId) -> bool,
}
