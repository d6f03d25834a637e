//! The report of a check: the problem, the smallest plan that shows it, and instructions to reproduce it.

use std::fmt;

use thalweg_sanitizer::{Finding, FindingKind, Site};

use super::plan::RunPlan;

/// The problem of a run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Problem {
    /// The sanitizer found that the program relies on an order or a lifetime that CUDA does not guarantee.
    Finding(Box<Finding>),
    /// The program panicked: an assertion, most likely.
    Panic {
        /// The error's message.
        message: String,
        /// The location of the panic, `file:line`.
        location: String,
    },
    /// The program returned an error, and no fault was injected.
    Error(String),
    /// No thread made progress any more: a deadlock, a livelock, or a run that exceeded its time limit.
    Stuck(String),
    /// A host function or kernel called the driver, which CUDA forbids.
    HostFunction(String),
    /// Blocks are still held by a caller after the program ended.
    Leak {
        /// The device that the blocks belong to.
        device: String,
        /// The number of blocks that are still held.
        blocks: u64,
        /// The total size of the blocks, in bytes.
        bytes: u64,
    },
    /// Freed memory is still held back although all work is complete: a use was recorded that never ends.
    NeverFree {
        /// The device that holds the memory.
        device: String,
        /// The size, in bytes.
        bytes: u64,
    },
    /// Memory was taken from the driver and is lost: it is neither cached nor held by a caller.
    Lost {
        /// The device that the memory belongs to.
        device: String,
        /// The size, in bytes.
        bytes: u64,
    },
}

impl Problem {
    /// Returns whether this is the same problem in another run: numbers may differ, but not the places in the program.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Finding(one), Self::Finding(two)) => {
                let first = match (&one.first, &two.first) {
                    (Some(one), Some(two)) => is_same(one.site, two.site),
                    (one, two) => one.is_none() && two.is_none(),
                };
                one.kind == two.kind && first && is_same(one.second.site, two.second.site)
            }
            (Self::Panic { location: one, .. }, Self::Panic { location: two, .. }) => one == two,
            (Self::Error(one), Self::Error(two)) => without_digits(one) == without_digits(two),
            (Self::Stuck(one), Self::Stuck(two)) => first_word(one) == first_word(two),
            (Self::HostFunction(_), Self::HostFunction(_))
            | (Self::Leak { .. }, Self::Leak { .. })
            | (Self::NeverFree { .. }, Self::NeverFree { .. })
            | (Self::Lost { .. }, Self::Lost { .. }) => true,
            _ => false,
        }
    }

    /// Returns whether the problem is a use after free.
    pub(super) fn is_use_after_free(&self) -> bool {
        matches!(self, Self::Finding(finding) if finding.kind == FindingKind::UseAfterFree)
    }

    /// Returns whether the problem names a drop without its line.
    pub(super) fn lacks_drop(&self) -> bool {
        let Self::Finding(finding) = self else { return false };
        finding.history.freed.is_some_and(|freed| freed.location.is_none())
    }
}

/// Returns whether two sites are the same, as far as they are known: the line of a drop usually is not.
fn is_same(one: Site, two: Site) -> bool {
    let is_unknown = one.location.is_none() || two.location.is_none();
    one == two || one.operator == two.operator && is_unknown
}

/// Returns the kind of a standstill: which thread waits where differs between schedules.
fn first_word(text: &str) -> Option<&str> {
    text.split(':').next()
}

fn without_digits(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_ascii_hexdigit()).collect()
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finding(finding) => write!(f, "{finding}"),
            Self::Panic { message, location } => {
                write!(f, "the program panicked at {location}:\n  {message}")
            }
            Self::Error(text) => write!(f, "the program returned an error:\n  {text}"),
            Self::Stuck(text) | Self::HostFunction(text) => f.write_str(text),
            Self::Leak { device, blocks, bytes } => write!(
                f,
                "leak: {blocks} blocks of {device}, {bytes} bytes together, are still allocated after the program ended.\n  \
                 Something keeps them: a static, a cycle of references, `mem::forget`. Drop it, or allow leaks in the check."
            ),
            Self::NeverFree { device, bytes } => write!(
                f,
                "{bytes} bytes of {device} were freed and are held back although all work is done: a use was recorded \
                 that never ends."
            ),
            Self::Lost { device, bytes } => write!(
                f,
                "{bytes} bytes of {device} are lost: they were taken from the driver and are neither cached nor held by a caller \
                 hands."
            ),
        }
    }
}

/// The maximum number of problems that a report shows.
const SHOWN: usize = 12;

/// A failing seed with its explanation. Its `Display` is the report.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The problems of the seed; the one for which the plan was shrunk comes first.
    pub(super) problems: Vec<Problem>,
    /// The smallest plan that shows the problem.
    pub(super) plan: RunPlan,
    /// The original plan of the seed.
    pub(super) first: RunPlan,
    pub(super) is_deterministic: bool,
    /// The deviations of the smallest plan, in words.
    pub(super) notes: Vec<String>,
}

impl Failure {
    /// Returns the seed.
    pub fn seed(&self) -> u64 {
        self.first.seed
    }

    /// Returns the problem for which the schedule was shrunk.
    pub fn problem(&self) -> &Problem {
        &self.problems[0]
    }

    /// Returns all problems of the seed's run, the one of [`problem`](Self::problem) first.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Returns the number of schedule choices that still deviate from the plain order, and the number of faults.
    pub fn size(&self) -> (usize, usize) {
        (self.plan.deviations.as_ref().map_or(0, Vec::len), self.plan.faults.len())
    }

    /// Returns whether two runs of the seed were the same. If they were not, something besides the seed influences the program.
    pub fn is_deterministic(&self) -> bool {
        self.is_deterministic
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seed = self.seed();
        writeln!(f, "simulated GPU: seed {seed} fails\n")?;
        let count = self.problems.len();
        for (number, problem) in self.problems.iter().take(SHOWN).enumerate() {
            match count {
                1 => writeln!(f, "{problem}\n")?,
                _ => writeln!(f, "{} of {count}: {problem}\n", number + 1)?,
            }
        }
        if count > SHOWN {
            writeln!(f, "and {} more\n", count - SHOWN)?;
        }
        match &self.plan.deviations {
            Some(list) if list.is_empty() => writeln!(
                f,
                "schedule: none in particular (every command runs when it is needed, and no sooner)"
            )?,
            Some(list) => {
                writeln!(f, "schedule: every command runs when it is needed and no sooner, but")?;
                for note in &self.notes {
                    writeln!(f, "  - {note}")?;
                }
                if list.len() > self.notes.len() {
                    writeln!(f, "  - and {} more", list.len() - self.notes.len())?;
                }
            }
            None => writeln!(f, "schedule: {}", self.first.style)?,
        }
        if self.plan.holds_freed {
            writeln!(
                f,
                "memory:   freed blocks are held back in this run (otherwise another owner may have them by then)"
            )?;
        }
        for fault in &self.plan.faults {
            writeln!(f, "fault:    {fault}")?;
        }
        if !self.is_deterministic {
            writeln!(
                f,
                "caution:  a second run of this seed went another way, so something besides the seed decides what the program \
                 does: threads that are not from `gpu.spawn`, the time, addresses, a hash map's order"
            )?;
        }
        write!(f, "again:    THALWEG_SEED={seed}")
    }
}

impl std::error::Error for Failure {}
