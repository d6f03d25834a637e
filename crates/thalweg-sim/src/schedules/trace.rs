//! The trace of a run: the deviations from the default, which determine the rest.

use std::fmt;

use thalweg_driver::Label;

use super::{Actor, Choice};

/// The name of a step, which does not change when other steps happen at other times or not at all.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StepName {
    /// The actor that takes the step.
    pub actor: Actor,
    /// The number of the command among its actor's commands, from 1 on; for a host thread, the number of its earlier turns.
    pub index: u64,
    /// Whether the step is the first half of a command.
    pub is_beginning: bool,
}

/// A decision that was not the default: `step` happened instead of `default`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Deviation {
    /// The default step.
    pub default: StepName,
    /// The chosen step.
    pub step: StepName,
}

impl fmt::Display for StepName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let half = if self.is_beginning { ", first half" } else { "" };
        write!(f, "step {} of {}{half}", self.index, self.actor)
    }
}

impl fmt::Display for Deviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} before {}", self.step, self.default)
    }
}

/// A run: its choices, and a hash of its events.
///
/// Two runs with the same choices have the same hash, unless something outside of the machine decided as well (a thread
/// that it does not know, the time, an address of the host).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// The decisions that were not the default, in order.
    pub deviations: Vec<Deviation>,
    /// The number of decisions.
    pub decisions: u64,
    /// The number of commands that ran.
    pub commands: u64,
    /// A hash of every command that ran (label, actor, number) and every result of a query, in order.
    pub hash: u64,
    /// The number of times that the program may have seen decisions of the schedule: unfinished work in a query, another
    /// host thread that could continue, a host function, a random number. If it is 0 under [`Late`](super::Late), every
    /// other schedule results in the same calls.
    pub observations: u64,
    /// Whether only threads that the machine knew beforehand called the driver.
    pub is_controlled: bool,
}

impl Default for Trace {
    fn default() -> Self {
        Self {
            deviations: Vec::new(),
            decisions: 0,
            commands: 0,
            hash: 0,
            observations: 0,
            is_controlled: true,
        }
    }
}

impl Trace {
    /// Records which of several choices was made.
    pub(crate) fn decided(&mut self, choice: usize, choices: &[Choice<'_>]) {
        if choice != 0 {
            self.deviations.push(Deviation { default: choices[0].name(), step: choices[choice].name() });
        }
        self.decisions += 1;
        self.mix(choices.len() as u64);
    }

    /// Records a command that runs.
    pub(crate) fn ran(&mut self, label: Label, actor: Actor, command: u64) {
        self.commands += 1;
        self.mix_text(label.operator);
        self.mix_text(label.location.file());
        self.mix(u64::from(label.location.line()) << 32 | u64::from(label.location.column()));
        let (kind, number) = match actor {
            Actor::Host(number) => (1, u64::from(number)),
            Actor::Stream(number) => (2, u64::from(number)),
            Actor::Node { stream, node } => (3, u64::from(stream) << 32 | u64::from(node)),
        };
        self.mix(number);
        self.mix(command << 2 | kind);
    }

    /// Records a command whose first half runs.
    pub(crate) fn began(&mut self, label: Label, actor: Actor, command: u64) {
        self.ran(label, actor, command);
        self.commands -= 1;
        self.mix(1 << 62);
    }

    /// Records the result of a query.
    pub(crate) fn answered(&mut self, host: u32, is_done: bool) {
        self.mix(1 << 63 | u64::from(host) << 1 | u64::from(is_done));
    }

    fn mix_text(&mut self, text: &str) {
        for chunk in text.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
        self.mix(text.len() as u64);
    }

    fn mix(&mut self, value: u64) {
        let mixed = (self.hash ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash = mixed ^ mixed >> 29;
    }
}
