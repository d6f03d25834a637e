//! Traits by which commands of other modules plug into the executor.
//!
//! - A mark can contain an object that is [notified](Reached) when the mark is queued and when it is reached.
//! - A [`QueueingCommand`] is a command without a worker: when it is reached, it may queue others, and it is complete when
//!   all of these and their followers are.
//! - A [`Gate`] holds commands whose work is [gated](super::task::Work::Gated): when they could run, they *arrive* there
//!   and hold their streams up, until the gate returns [work](super::task::JointWork) that one of them does for several, or
//!   gives them up.
//!
//! All of them run in the critical section: they drop no values of the program there, and never wait.
//!
//! This module and `command` use each other: a command may contain one of these objects, which learns the command's
//! position in the order.

use std::sync::Arc;

use smallvec::SmallVec;

use super::command::{CommandId, Frontier, Origin, Planned};
use super::task::Task;
use crate::refusal::Refusal;

/// An object that is notified when a position in the order is queued, and when it is reached.
pub(crate) trait Reached: Send + Sync {
    /// Handles the notification that the position is queued as this command, and returns the further commands that it follows.
    fn queued(&self, _command: CommandId) -> Frontier {
        Frontier::new()
    }

    /// Handles the notification that the position was reached, `nanoseconds` after the machine started.
    fn reached(&self, nanoseconds: u64);
}

/// A command that queues other commands.
pub(crate) trait QueueingCommand: Send + Sync {
    /// Returns the device whose loss ends it.
    fn device(&self) -> u32;

    /// Returns the next action. Called when the command is reached, and again whenever the commands that it queued are complete.
    fn next(&self) -> Next<'_>;
}

/// The next action of a [`QueueingCommand`].
pub(crate) enum Next<'a> {
    /// The command is complete.
    Done,
    /// Queues these commands. When they are complete, `again` is called.
    Queue { commands: Vec<Planned<'a>>, origin: Origin, again: Box<dyn QueueingCommand> },
    /// The command ends, and its device is lost for this reason.
    Fail(Refusal),
}

/// The place where gated commands wait for each other.
pub(crate) trait Gate {
    /// Registers a gated command that is queued, and returns further commands that it must follow.
    fn enlist(&mut self, command: CommandId, task: &Arc<Task>) -> Frontier;

    /// Handles the arrival of the command in a slot, which could run now.
    fn arrived(&mut self, slot: u32);

    /// Returns the fate of arrived commands, one meeting at a time.
    fn verdict(&mut self, lost: &[Option<Refusal>]) -> Option<Verdict>;

    /// Handles the end of the command in a slot. If it ran on behalf of several commands, returns their devices, and the other
    /// commands that end with it.
    fn end(&mut self, slot: u32) -> Option<(Devices, SmallVec<[u32; 8]>)>;

    /// Returns the gated commands that must also arrive before the command in a slot can run.
    fn partners(&self, slot: u32) -> SmallVec<[CommandId; 8]>;

    /// Returns whether there may be a circle of waiting commands that has not been searched for.
    fn may_wait_in_circle(&mut self) -> bool;

    /// Gives up the commands of a circle that wait for each other.
    fn find_circle(&mut self, web: &Web<'_>) -> Option<Failure>;

    /// Describes in words which command waits for which others; empty if none waits.
    fn describe(&self, web: &Web<'_>) -> String;
}

/// The devices of gated commands.
pub(crate) type Devices = SmallVec<[u32; 8]>;

/// The fate of gated commands.
pub(crate) enum Verdict {
    /// The task runs in the place of the first of these commands, which are given by their slots. All of the commands are
    /// complete when the task is.
    Runs { slots: SmallVec<[u32; 8]>, task: Arc<Task> },
    /// The commands cannot run: the devices are lost, and these commands are over.
    Fails(Failure),
}

/// Devices that are lost, the reason, and the commands that no longer wait.
pub(crate) struct Failure {
    pub(crate) devices: Devices,
    pub(crate) refusal: Refusal,
    pub(crate) released: SmallVec<[u32; 8]>,
}

/// The dependences between commands.
pub(crate) struct Web<'a> {
    /// Returns the commands that wait for the command in a slot.
    pub(crate) successors: &'a dyn Fn(u32) -> &'a [u32],
    /// Returns whether a command is complete.
    pub(crate) is_done: &'a dyn Fn(CommandId) -> bool,
}
