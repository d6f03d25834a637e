//! The schedules without randomness, and replay.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::{Actor, Choice, Deviation, Schedule, SplitMix, StepName};

/// A schedule that runs everything as soon as it can: the commands in order of submission, then the host threads.
#[derive(Clone, Debug)]
pub struct Eager(SplitMix);

/// A schedule that runs commands only when a blocked or polling host thread needs them, so that all other work, and every
/// event after it, is as late as possible. This is always the default choice.
#[derive(Clone, Debug)]
pub struct Late(SplitMix);

/// A schedule that runs the host threads and streams in turn, one step each.
#[derive(Clone, Debug)]
pub struct RoundRobin {
    last: Option<Actor>,
    numbers: SplitMix,
}

/// A schedule that repeats a recorded run: the default choice except for the deviations.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The steps that replace a default step, by that default step.
    deviations: FxHashMap<StepName, VecDeque<StepName>>,
    numbers: SplitMix,
}

impl Eager {
    /// Creates the schedule; the seed is for the program's own random numbers.
    pub const fn new(seed: u64) -> Self {
        Self(SplitMix::new(seed))
    }
}

impl Schedule for Eager {
    fn next(&mut self, choices: &[Choice<'_>]) -> usize {
        let commands = choices.iter().enumerate().filter(|(_, choice)| choice.is_command());
        commands.min_by_key(|(_, choice)| choice.command).map_or(0, |(position, _)| position)
    }

    fn random(&mut self) -> u64 {
        self.0.next()
    }
}

impl Late {
    /// Creates the schedule; the seed is for the program's own random numbers.
    pub const fn new(seed: u64) -> Self {
        Self(SplitMix::new(seed))
    }
}

impl Schedule for Late {
    fn next(&mut self, _choices: &[Choice<'_>]) -> usize {
        0
    }

    fn random(&mut self) -> u64 {
        self.0.next()
    }
}

impl RoundRobin {
    /// Creates the schedule; the seed is for the program's own random numbers.
    pub const fn new(seed: u64) -> Self {
        Self { last: None, numbers: SplitMix::new(seed) }
    }
}

impl Schedule for RoundRobin {
    fn next(&mut self, choices: &[Choice<'_>]) -> usize {
        let all = || choices.iter().enumerate().map(|(position, choice)| (choice.actor, position));
        let after = all().filter(|(actor, _)| self.last.is_none_or(|last| *actor > last)).min();
        let (actor, position) = after.or_else(|| all().min()).expect("there are choices");
        self.last = Some(actor);
        position
    }

    fn random(&mut self) -> u64 {
        self.numbers.next()
    }
}

impl Replay {
    /// Creates the replay of a run with these deviations, in the order in which they happened, and the seed of its
    /// schedule. A deviation whose step is not among the choices is skipped.
    pub fn new(deviations: &[Deviation], seed: u64) -> Self {
        let mut by_default = FxHashMap::<_, VecDeque<_>>::default();
        for deviation in deviations {
            by_default.entry(deviation.default).or_default().push_back(deviation.step);
        }
        Self { deviations: by_default, numbers: SplitMix::new(seed) }
    }
}

impl Schedule for Replay {
    fn next(&mut self, choices: &[Choice<'_>]) -> usize {
        let Some(steps) = self.deviations.get_mut(&choices[0].name()) else { return 0 };
        let place = |step: &StepName| choices.iter().position(|choice| choice.name() == *step);
        let found = steps.iter().enumerate().find_map(|(entry, step)| Some((entry, place(step)?)));
        let Some((entry, chosen)) = found else { return 0 };
        steps.remove(entry);
        chosen
    }

    fn random(&mut self) -> u64 {
        self.numbers.next()
    }
}
