//! All runs of a small program.
//!
//! A depth-first search over the choices: each run takes the next branch that has not been taken, and the program is run
//! again from its beginning. Two reductions skip runs that do not differ visibly from another one:
//!
//! - *Sleep sets* (Godefroid, *Partial-order methods for the verification of concurrent systems*, 1996): after a branch is
//!   done, its first step need not be tried after a sibling until a conflicting step has run. Two commands conflict when
//!   they touch the same physical bytes and one writes; host functions conflict with everything.
//! - While every host thread is about to queue something, and no host function is queued, commands wait: none of them can
//!   change what is queued, so running them before is no different from running them after.
//!
//! Both are sound for programs whose commands do not fail: the loss of a device affects every stream at once.

use std::sync::Arc;

use thalweg_lock::Mutex;

use super::{Actor, Choice, Footprint, Schedule, SplitMix};

/// The search. Each [`next_run`](Self::next_run) returns the schedule of one run, until there is none left:
///
/// ```
/// use thalweg_sim::schedules::Exhaustive;
/// let mut search = Exhaustive::new();
/// while let Some(schedule) = search.next_run() {
///     // Run the program under `Box::new(schedule)`.
/// #   break;
/// }
/// ```
#[derive(Debug, Default)]
pub struct Exhaustive {
    search: Arc<Mutex<Search>>,
    runs: u64,
}

/// The schedule of one run of the search.
#[derive(Debug)]
pub struct ExhaustiveRun {
    search: Arc<Mutex<Search>>,
    numbers: SplitMix,
}

#[derive(Debug, Default)]
struct Search {
    /// The decisions, from the first one to the last one that has branches.
    path: Vec<Node>,
    /// The number of decisions that this run has made.
    depth: usize,
    /// Steps that lead to nothing new at the present point of the run.
    asleep: Vec<ActorStep>,
    /// Whether the rest of this run repeats an earlier one.
    is_redundant: bool,
}

/// A decision of the path.
#[derive(Debug)]
struct Node {
    asleep: Vec<ActorStep>,
    done: Vec<ActorStep>,
    current: (usize, ActorStep),
    /// The choices that have not been taken. The last one is the next.
    left: Vec<(usize, ActorStep)>,
}

/// A step in a form that outlives its choice, to be compared with other steps.
#[derive(Clone, Debug)]
struct ActorStep {
    actor: Actor,
    command: u64,
    is_quiet: bool,
    is_beginning: bool,
    footprint: Footprint,
}

impl ActorStep {
    fn of(choice: &Choice<'_>) -> Self {
        let &Choice { actor, command, is_quiet, is_beginning, .. } = choice;
        Self { actor, command, is_quiet, is_beginning, footprint: choice.footprint() }
    }

    fn is(&self, choice: &Choice<'_>) -> bool {
        (self.actor, self.command, self.is_beginning) == (choice.actor, choice.command, choice.is_beginning)
    }

    /// Returns whether the order of the two steps cannot matter.
    fn commutes(&self, other: &Self) -> bool {
        match (self.command != 0, other.command != 0) {
            (true, true) => !self.footprint.conflicts(&other.footprint),
            (true, false) => other.is_quiet,
            (false, true) => self.is_quiet,
            (false, false) => false,
        }
    }
}

impl Exhaustive {
    /// Creates a search that has not begun.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the schedule of the next run; `None` when all runs were made. The previous run must be over.
    pub fn next_run(&mut self) -> Option<ExhaustiveRun> {
        let mut search = self.search.lock();
        if self.runs > 0 && !search.backtrack() {
            return None;
        }
        (search.depth, search.is_redundant) = (0, false);
        search.asleep.clear();
        self.runs += 1;
        Some(ExhaustiveRun { search: Arc::clone(&self.search), numbers: SplitMix::new(0) })
    }

    /// Returns how many runs have begun.
    pub fn runs(&self) -> u64 {
        self.runs
    }
}

impl Search {
    /// Moves to the next branch. Returns whether there is one.
    fn backtrack(&mut self) -> bool {
        while let Some(mut node) = self.path.pop() {
            if let Some(next) = node.left.pop() {
                let (_, done) = std::mem::replace(&mut node.current, next);
                node.done.push(done);
                self.path.push(node);
                return true;
            }
        }
        false
    }

    fn decide(&mut self, choices: &[Choice<'_>]) -> usize {
        if self.is_redundant {
            return 0;
        }
        if self.depth == self.path.len() && !self.branch(choices) {
            self.is_redundant = true;
            return 0;
        }
        let node = &self.path[self.depth];
        self.depth += 1;
        let (position, step) = &node.current;
        let before = node.asleep.iter().chain(&node.done);
        self.asleep = before.filter(|other| other.commutes(step)).cloned().collect();
        *position
    }

    /// Adds a new decision, if one of its choices leads to something new. Returns whether it does.
    fn branch(&mut self, choices: &[Choice<'_>]) -> bool {
        let is_quiet = choices.iter().any(|choice| choice.is_quiet);
        let mut left: Vec<_> = choices
            .iter()
            .enumerate()
            .filter(|(_, choice)| !is_quiet || !choice.is_command())
            .filter(|(_, choice)| !self.asleep.iter().any(|step| step.is(choice)))
            .map(|(position, choice)| (position, ActorStep::of(choice)))
            .rev()
            .collect();
        let Some(current) = left.pop() else { return false };
        let asleep = std::mem::take(&mut self.asleep);
        self.path.push(Node { asleep, done: Vec::new(), current, left });
        true
    }
}

impl Schedule for ExhaustiveRun {
    fn next(&mut self, choices: &[Choice<'_>]) -> usize {
        self.search.lock().decide(choices)
    }

    fn random(&mut self) -> u64 {
        self.numbers.next()
    }
}
