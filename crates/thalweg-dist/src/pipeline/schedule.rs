//! [`Schedule`]: a table of the actions of each rank.

use std::fmt;

use rustc_hash::{FxHashMap, FxHashSet};
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::{Action, Computation};

/// The actions of each rank of a pipeline, in order: a table with one row per rank. It is plain data: there is a function for
/// each known schedule, [`from_csv`](Self::from_csv) reads any other, and [`Pipeline`](super::Pipeline) runs it.
///
/// ```
/// # use thalweg_dist::pipeline::Schedule;
/// # fn main() -> thalweg_runtime::Result<()> {
/// let schedule = Schedule::one_f_one_b(2, 3)?;
/// assert_eq!(schedule.to_csv(), "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n");
/// assert_eq!(schedule.with_messages()?.rows()[0][..4], Schedule::from_csv("0F0,0SEND_F0,0F1,0SEND_F1")?.rows()[0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Schedule {
    pub(super) rows: Vec<Vec<Action>>,
}

impl Schedule {
    /// Makes a schedule from rows, one per rank. Nothing is checked: see [`check`](Self::check).
    pub fn new(rows: Vec<Vec<Action>>) -> Self {
        Self { rows }
    }

    /// Returns the rows, one per rank.
    pub fn rows(&self) -> &[Vec<Action>] {
        &self.rows
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.rows.len()
    }

    /// Returns the number of stages.
    pub fn stages(&self) -> usize {
        self.actions().map(|(_, action)| action.stage + 1).max().unwrap_or(0)
    }

    /// Returns the number of microbatches.
    pub fn microbatches(&self) -> usize {
        self.actions().filter_map(|(_, action)| action.microbatch).max().map_or(0, |last| last + 1)
    }

    /// Returns whether there are backward passes.
    pub fn has_backward(&self) -> bool {
        self.actions().any(|(_, action)| {
            matches!(action.computation, Computation::FullBackward | Computation::BackwardInput)
        })
    }

    /// Returns whether the table has the messages between ranks.
    pub fn has_messages(&self) -> bool {
        self.actions().any(|(_, action)| {
            matches!(action.computation, Computation::SendForward | Computation::SendBackward)
        })
    }

    /// Returns all actions with their ranks, row by row.
    pub fn actions(&self) -> impl Iterator<Item = (usize, Action)> + '_ {
        self.rows.iter().enumerate().flat_map(|(rank, row)| row.iter().map(move |&action| (rank, action)))
    }

    /// Reads a table as PyTorch writes it (`_load_csv` of `_PipelineScheduleRuntime`): one row per rank, with actions separated
    /// by commas. Empty fields, in which PyTorch's rank does nothing, are skipped.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] with the row and the text that cannot be parsed.
    pub fn from_csv(text: &str) -> Result<Self> {
        let row = |(rank, line): (usize, &str)| -> Result<Vec<Action>> {
            let fields = line.split(',').filter(|field| !field.trim().is_empty());
            let actions = fields.map(str::parse).collect::<Result<_>>();
            actions.map_err(|error| error.context(format!("row {rank}")))
        };
        Ok(Self { rows: text.lines().enumerate().map(row).collect::<Result<_>>()? })
    }

    /// Returns the table in the format that PyTorch reads.
    pub fn to_csv(&self) -> String {
        let row = |row: &Vec<Action>| {
            let fields: Vec<String> = row.iter().map(Action::to_string).collect();
            fields.join(",") + "\n"
        };
        self.rows.iter().map(row).collect()
    }

    /// Returns the stages of a rank, in order; empty for a rank that the table does not have.
    pub fn stages_of(&self, rank: usize) -> Result<Vec<usize>> {
        let rank_of = self.check()?;
        Ok((0..rank_of.len()).filter(|&stage| rank_of[stage] == rank).collect())
    }

    /// Returns the rank of each stage, after checks that do not need an order between ranks: every stage is on one rank and runs
    /// every microbatch once; forward is before backward, and the input's gradient before those of the weights.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] with the rank, the step and the action that do not fit.
    pub fn check(&self) -> Result<Vec<usize>> {
        let (stages, microbatches) = (self.stages(), self.microbatches());
        let mut rank_of: Vec<Option<usize>> = vec![None; stages];
        let mut done: FxHashSet<Action> = FxHashSet::default();
        for (rank, row) in self.rows.iter().enumerate() {
            for (step, &action) in row.iter().enumerate() {
                let refuse = |text: String| Err(invalid!("rank {rank}, step {step}: {action} {text}"));
                let known = rank_of[action.stage].get_or_insert(rank);
                if *known != rank {
                    return refuse(format!(
                        "is of stage {}, which is assigned to both rank {known} and rank {rank}",
                        action.stage
                    ));
                }
                if !done.insert(action) && action.computation.has_microbatch() {
                    return refuse("is there twice".to_owned());
                }
                if let Some(missing) = own_need(action).filter(|needed| !done.contains(needed)) {
                    return refuse(format!("comes without {missing} before it"));
                }
            }
        }
        let has_backward = self.has_backward();
        for stage in 0..stages {
            for microbatch in 0..microbatches {
                let has = |computation| done.contains(&Action::new(stage, computation, microbatch));
                let (forward, full) = (has(Computation::Forward), has(Computation::FullBackward));
                let (input, weight) = (has(Computation::BackwardInput), has(Computation::BackwardWeight));
                let is_whole = if has_backward { full != (input && weight) && input == weight } else { true };
                refuse_if!(
                    !forward || !is_whole,
                    "stage {stage} does not do microbatch {microbatch} once: it is in the table as F {forward}, B {full}, I {input}, \
                     W {weight}"
                );
            }
        }
        Ok(rank_of.into_iter().map(|rank| rank.expect("a stage without actions has no microbatch")).collect())
    }

    /// Adds the messages between ranks, and the end of the batch after a stage's last microbatch, as PyTorch's runtime does. A
    /// message is received at the step at which it is sent, so that both ranks of each pair have the messages in the same order.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if [`check`](Self::check) fails, the schedule has messages already, or its ranks would wait
    /// for each other forever.
    pub fn with_messages(&self) -> Result<Self> {
        let rank_of = self.check()?;
        refuse_if!(self.has_messages(), "the schedule has messages already");
        let rows = self.with_reductions();
        let (ranks, stages) = (self.ranks(), self.stages());
        let mut written: Vec<Vec<Action>> = vec![Vec::new(); ranks];
        // The actions that each rank has computed or received.
        let mut present: FxHashSet<(usize, Action)> = FxHashSet::default();
        let mut next = vec![0; ranks];
        loop {
            let mut has_moved = false;
            for rank in 0..ranks {
                let Some(&action) = rows[rank].get(next[rank]) else { continue };
                let source = source(action, stages);
                if source.is_some_and(|needed| !present.contains(&(rank, needed))) {
                    continue;
                }
                (next[rank], has_moved) = (next[rank] + 1, true);
                written[rank].push(action);
                present.insert((rank, product(action)));
                let Some((send, receive)) = message(action, stages) else { continue };
                let target = rank_of[receive.stage];
                if target != rank {
                    written[rank].push(send);
                    written[target].push(receive);
                    present.insert((target, product(action)));
                }
            }
            if !has_moved {
                break;
            }
        }
        if let Some(rank) = (0..ranks).find(|&rank| next[rank] < rows[rank].len()) {
            refuse!(
                "the ranks of the schedule wait for each other: rank {rank} would never come to {}",
                rows[rank][next[rank]]
            );
        }
        Ok(Self { rows: written })
    }

    /// Adds the end of the batch after each stage's last gradient of weights.
    fn with_reductions(&self) -> Vec<Vec<Action>> {
        let microbatches = self.microbatches();
        let row = |row: &Vec<Action>| {
            let mut counts: FxHashMap<usize, usize> = FxHashMap::default();
            let mut reduced = Vec::with_capacity(row.len() + 1);
            for &action in row {
                reduced.push(action);
                if matches!(action.computation, Computation::FullBackward | Computation::BackwardWeight) {
                    let count = counts.entry(action.stage).or_insert(0);
                    *count += 1;
                    if *count == microbatches {
                        reduced.push(Action::of_stage(action.stage, Computation::ReduceGradients));
                    }
                }
            }
            reduced
        };
        self.rows.iter().map(row).collect()
    }
}

/// Returns the action that the same rank must have done before an action.
fn own_need(action: Action) -> Option<Action> {
    let needed = match action.computation {
        Computation::FullBackward | Computation::BackwardInput | Computation::SendForward => {
            Computation::Forward
        }
        Computation::BackwardWeight => Computation::BackwardInput,
        _ => return None,
    };
    Some(Action { computation: needed, ..action })
}

/// Returns the action whose output an action sends to the neighbouring stage. For a full backward pass this is its first part,
/// which computes the input's gradient.
pub(super) fn product(action: Action) -> Action {
    match action.computation {
        Computation::FullBackward => Action { computation: Computation::BackwardInput, ..action },
        _ => action,
    }
}

/// Returns the neighbouring stage's action whose output an action needs.
pub(super) fn source(action: Action, stages: usize) -> Option<Action> {
    match action.computation {
        Computation::Forward if action.stage > 0 => Some(Action { stage: action.stage - 1, ..action }),
        Computation::FullBackward | Computation::BackwardInput if action.stage + 1 < stages => {
            Some(Action { stage: action.stage + 1, computation: Computation::BackwardInput, ..action })
        }
        _ => None,
    }
}

/// Returns the send and the receive that carry an action's output.
fn message(action: Action, stages: usize) -> Option<(Action, Action)> {
    let (send, receive, to) = match action.computation {
        Computation::Forward if action.stage + 1 < stages => {
            (Computation::SendForward, Computation::ReceiveForward, action.stage + 1)
        }
        Computation::FullBackward | Computation::BackwardInput if action.stage > 0 => {
            (Computation::SendBackward, Computation::ReceiveBackward, action.stage - 1)
        }
        _ => return None,
    };
    let send = Action { computation: send, ..action };
    Some((send, Action { stage: to, computation: receive, ..action }))
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_csv())
    }
}
