//! Schedules of a controlled machine, which decide the command or thread that goes next.
//!
//! A machine of [`SimDriver::controlled`](super::SimDriver::controlled) leaves everything open that CUDA leaves open, and
//! asks a [`Schedule`] each time. A run is a sequence of choices, and the same choices result in the same run. The choice
//! with the number 0 is always the *default*: the host thread that has the turn continues, a blocked one gets the command
//! that it needs, and nothing else runs. A run is recorded as its deviations from the default ([`Trace`]), each by the
//! names of the two steps. So a failing run can be reduced by leaving deviations out: the others keep their meaning.
//!
//! - [`Late`] always takes the default: commands run as late as possible, and side work starves. [`Eager`] runs every
//!   command as soon as it can run. These two extremes find most of the errors that a missing wait causes.
//! - [`Random`] and [`PriorityChange`] explore, from a seed; [`RoundRobin`] is fair.
//! - [`Replay`] repeats a trace. [`Exhaustive`] goes through all runs of a small program.
//!
//! Schedules see commands and threads, never the program's data: they cannot know more than a GPU's hardware does.

mod exhaustive;
mod priority;
mod random;
mod simple;
mod trace;

use std::fmt;

use smallvec::SmallVec;
use thalweg_driver::Label;

pub use exhaustive::{Exhaustive, ExhaustiveRun};
pub use priority::PriorityChange;
pub use random::{Random, SplitMix};
pub use simple::{Eager, Late, Replay, RoundRobin};
pub use trace::{Deviation, StepName, Trace};

use super::memory::Piece;

/// A schedule, which decides what happens next. One value is used for one run.
///
/// The schedule is called in the machine's critical section: it must not call the driver.
pub trait Schedule: Send {
    /// Returns the index of the next choice. There are at least two choices; their order depends only on the program and on
    /// earlier choices, and the first is the default. An index outside the slice means the default.
    fn next(&mut self, choices: &[Choice<'_>]) -> usize;

    /// Returns a random number, for the program and for faults. The same schedule returns the same numbers.
    fn random(&mut self) -> u64;
}

impl<S: Schedule + ?Sized> Schedule for Box<S> {
    fn next(&mut self, choices: &[Choice<'_>]) -> usize {
        (**self).next(choices)
    }

    fn random(&mut self) -> u64 {
        (**self).random()
    }
}

/// A step that can happen next.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    /// The actor that takes the step.
    pub actor: Actor,
    /// The label of the command; `None` for a host thread.
    pub label: Option<Label>,
    /// The command's number in order of submission, from 1 on; 0 for a host thread.
    pub command: u64,
    /// The number of the command among its actor's commands, from 1 on; for a host thread, the number of its earlier turns.
    pub index: u64,
    /// Whether the choice is the host thread that has the turn.
    pub is_current: bool,
    /// Whether a blocked or polling host thread waits for the choice, directly or through other commands.
    pub is_needed: bool,
    /// Whether the choice is a call that only queues work or an order. Commands that run meanwhile cannot change the call's
    /// result, and the call cannot change theirs.
    pub is_quiet: bool,
    /// Whether only the first half of the command is offered. This happens to a kernel that updates memory which another ready
    /// command touches: it reads now, and writes when it is chosen again.
    pub is_beginning: bool,
    /// The memory that the command touches.
    pub(super) touched: Touched<'a>,
}

impl Choice<'_> {
    /// Returns whether the choice is a command, and not a step of a host thread.
    pub const fn is_command(&self) -> bool {
        self.command != 0
    }

    /// Returns the name of the step in a trace.
    pub const fn name(&self) -> StepName {
        StepName { actor: self.actor, index: self.index, is_beginning: self.is_beginning }
    }

    /// Returns the memory that the step touches, in a form that can be kept.
    pub(super) fn footprint(&self) -> Footprint {
        match self.touched {
            Touched::Anything => Footprint::Anything,
            Touched::Pieces(pieces) => Footprint::Pieces(SmallVec::from_slice(pieces)),
        }
    }
}

/// The memory that a step touches.
#[derive(Clone, Copy, Debug)]
pub(super) enum Touched<'a> {
    /// The bytes are unknown: the step is a host thread's or a host function.
    Anything,
    /// The step touches these bytes, by physical address.
    Pieces(&'a [Piece]),
}

/// The ranges that a step touches, in a form that can be kept.
#[derive(Clone, Debug)]
pub(super) enum Footprint {
    Anything,
    Pieces(SmallVec<[Piece; 2]>),
}

impl Footprint {
    /// Returns whether the order of two steps can matter.
    pub(super) fn conflicts(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Pieces(left), Self::Pieces(right)) => {
                left.iter().any(|piece| right.iter().any(|other| piece.conflicts(other)))
            }
            _ => true,
        }
    }
}

/// The actor of a step: a host thread, a stream, or a node of a graph.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Actor {
    /// A host thread, numbered in the order in which threads were started; the thread that created the driver is 0.
    Host(u32),
    /// A stream, numbered in the order in which streams were created, starting with the default streams of the devices.
    Stream(u32),
    /// A node of a graph, by its number in the graph, launched on a stream.
    Node {
        /// The stream.
        stream: u32,
        /// The node.
        node: u32,
    },
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(number) => write!(f, "host thread {number}"),
            Self::Stream(number) => write!(f, "stream {number}"),
            Self::Node { stream, node } => write!(f, "graph node {node} on stream {stream}"),
        }
    }
}
