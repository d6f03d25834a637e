//! Plans of runs: everything that decides a run of a program.

use std::fmt;

use thalweg_sim::schedules::{Eager, Late, PriorityChange, Random, Replay, RoundRobin, SplitMix};
use thalweg_sim::{Deviation, Fault, Schedule, Trace};

/// The number of decisions among which changes of priority are placed.
const EXPECTED_STEPS: u64 = 200;

/// The way in which the choices of a run are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Style {
    Eager,
    Late,
    RoundRobin,
    Random,
    PriorityChange { depth: u32 },
}

impl fmt::Display for Style {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Eager => f.write_str("everything as soon as it can"),
            Self::Late => f.write_str("everything as late as possible"),
            Self::RoundRobin => f.write_str("in turn"),
            Self::Random => f.write_str("at random"),
            Self::PriorityChange { depth } => write!(f, "by priorities that change {depth} times"),
        }
    }
}

/// Everything that decides a run of a program.
#[derive(Clone, Debug)]
pub(super) struct RunPlan {
    pub(super) seed: u64,
    pub(super) style: Style,
    pub(super) faults: Vec<Fault>,
    /// The recorded choices to repeat; `None` if the style makes the choices.
    pub(super) deviations: Option<Vec<Deviation>>,
    /// Whether freed memory is held back. Allocators then behave differently (their figures, their errors), so only uses of freed
    /// memory count: those are wrong whatever an allocator does.
    pub(super) holds_freed: bool,
}

impl RunPlan {
    /// Returns the plan of a seed. The first seeds have the plain styles, so that a short check includes them.
    pub(super) fn of_seed(seed: u64, with_faults: bool) -> Self {
        let mut random = SplitMix::new(seed);
        let style = match (seed, random.below(4)) {
            (0, _) => Style::Late,
            (1, _) => Style::Eager,
            (2, _) => Style::RoundRobin,
            (_, 0) => Style::PriorityChange { depth: 1 + random.below(3) as u32 },
            _ => Style::Random,
        };
        let count = if with_faults && random.below(2) == 0 { 1 + random.below(4) } else { 0 };
        let faults = (0..count).map(|_| fault(&mut random)).collect();
        Self { seed, style, faults, deviations: None, holds_freed: false }
    }

    /// Returns the plan with a link that stalls, in half of the seeds.
    pub(super) fn with_stall(mut self) -> Self {
        let mut random = SplitMix::new(!self.seed);
        if random.below(2) == 0 {
            let reach = 1 << random.below(7);
            let collective = random.below(reach) as u64;
            self.faults.push(Fault::LinkStalls { collective, link: random.below(64) as u32 });
        }
        self
    }

    /// Creates the schedule of a seed without faults, with freed memory held back.
    pub(super) fn holding_freed(seed: u64) -> Self {
        Self { holds_freed: true, ..Self::of_seed(seed, false) }
    }

    /// Returns the plan with the choices of this trace recorded.
    pub(super) fn recorded(&self, trace: &Trace) -> Self {
        Self { deviations: Some(trace.deviations.clone()), ..self.clone() }
    }

    /// Returns whether every other schedule would have resulted in the same calls as this one, whose trace is given.
    pub(super) fn shows_all(&self, trace: &Trace) -> bool {
        self.style == Style::Late && self.faults.is_empty() && trace.is_controlled && trace.observations == 0
    }

    pub(super) fn schedule(&self) -> Box<dyn Schedule> {
        if let Some(deviations) = &self.deviations {
            return Box::new(Replay::new(deviations, self.seed));
        }
        match self.style {
            Style::Eager => Box::new(Eager::new(self.seed)),
            Style::Late => Box::new(Late::new(self.seed)),
            Style::RoundRobin => Box::new(RoundRobin::new(self.seed)),
            Style::Random => Box::new(Random::new(self.seed)),
            Style::PriorityChange { depth } => {
                Box::new(PriorityChange::new(self.seed, depth, EXPECTED_STEPS))
            }
        }
    }
}

/// Draws a fault. Early ones are more likely: programs under test are short.
fn fault(random: &mut SplitMix) -> Fault {
    let reach = 1 << random.below(7);
    let number = random.below(reach) as u64;
    match random.below(5) {
        0 | 1 => Fault::OutOfMemory { request: number },
        2 => Fault::MapFails { call: number },
        3 => Fault::PinnedOutOfMemory { request: number },
        _ => Fault::CommandFails { command: number, by_hardware: random.below(2) == 0 },
    }
}
