//! Priorities that change a few times: probabilistic concurrency testing.
//!
//! Burckhardt, Kothari, Musuvathi and Nagarakatte, *A randomized scheduler with probabilistic guarantees of finding bugs*,
//! ASPLOS
//! 2010. Each actor has a random priority, and the most urgent actor that can run does. At `depth - 1` random steps of the
//!    run, the actor that would run falls below all others. A bug that needs `depth` orderings is found with probability at
//!    least 1 / (n k^(depth - 1)) in one run of n actors and k steps. A schedule that chooses at random at each step, in
//!    contrast, almost never starves an actor for long.

use rustc_hash::FxHashMap;

use super::{Actor, Choice, Schedule, SplitMix};

/// A schedule of priorities that change a few times: Burckhardt et al., "A Randomized Scheduler with Probabilistic
/// Guarantees of Finding Bugs", 2010.
#[derive(Clone, Debug)]
pub struct PriorityChange {
    priorities: FxHashMap<Actor, u64>,
    /// The steps at which a priority falls, in descending order.
    changes: Vec<u64>,
    step: u64,
    /// The next priority to assign, which is below all other priorities.
    lowest: u64,
    choices: SplitMix,
    numbers: SplitMix,
}

impl PriorityChange {
    /// Creates the schedule of a seed, for bugs of up to `depth` orderings (at least 1) in runs of about `steps` decisions.
    pub fn new(seed: u64, depth: u32, steps: u64) -> Self {
        let mut choices = SplitMix::for_choices(seed);
        let steps = steps.max(1) as usize;
        let mut changes: Vec<u64> = (1..depth).map(|_| choices.below(steps) as u64).collect();
        changes.sort_unstable_by(|left, right| right.cmp(left));
        let lowest = u64::from(depth);
        Self {
            priorities: FxHashMap::default(),
            changes,
            step: 0,
            lowest,
            choices,
            numbers: SplitMix::new(seed),
        }
    }

    fn most_urgent(&mut self, choices: &[Choice<'_>]) -> usize {
        let Self { priorities, choices: random, .. } = self;
        // The priorities of a run are far above those to which actors fall.
        let mut priority =
            |choice: &Choice<'_>| *priorities.entry(choice.actor).or_insert_with(|| random.next() | 1 << 63);
        let mut best = (0, priority(&choices[0]));
        for (position, choice) in choices.iter().enumerate().skip(1) {
            let priority = priority(choice);
            if priority > best.1 {
                best = (position, priority);
            }
        }
        best.0
    }
}

impl Schedule for PriorityChange {
    fn next(&mut self, choices: &[Choice<'_>]) -> usize {
        let step = self.step;
        self.step += 1;
        while self.changes.last() == Some(&step) {
            self.changes.pop();
            let falling = self.most_urgent(choices);
            self.lowest -= 1;
            self.priorities.insert(choices[falling].actor, self.lowest);
        }
        self.most_urgent(choices)
    }

    fn random(&mut self) -> u64 {
        self.numbers.next()
    }
}
