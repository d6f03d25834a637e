//! The known schedules. All but one are cases of one function: a rank has one order of forward passes and one of backward passes.
//! It runs some forward passes before the first backward pass, and then alternates.

use thalweg_runtime::{Error, Result, refuse_if};

use super::{Action, Computation, Schedule};

/// The number of stages of a rank, and the order in which its forward and backward passes alternate.
struct Turns {
    ranks: usize,
    stages_per_rank: usize,
    microbatches: usize,
    /// The number of microbatches that go through a stage before the next stage of the rank runs.
    round: usize,
}

impl Turns {
    fn new(schedule: &str, ranks: usize, stages_per_rank: usize, microbatches: usize) -> Result<Self> {
        refuse_if!(
            ranks == 0 || stages_per_rank == 0 || microbatches == 0,
            "{schedule}: ranks, stages of a rank and microbatches are at least 1: {ranks}, {stages_per_rank}, {microbatches}"
        );
        let numbers = [ranks, stages_per_rank, microbatches];
        let passes = numbers.into_iter().try_fold(1_usize, usize::checked_mul);
        refuse_if!(
            passes.is_none_or(|passes| passes > 1 << 32),
            "{schedule}: {ranks} ranks with {stages_per_rank} stages and {microbatches} microbatches make more than 2³² passes"
        );
        let rounds = (microbatches / ranks).max(1);
        refuse_if!(
            stages_per_rank > 1 && !microbatches.is_multiple_of(rounds),
            "{schedule} requires the number of microbatches to be a multiple of the number of rounds ({rounds}), but got {microbatches}."
        );
        let round = if stages_per_rank == 1 { microbatches } else { microbatches / rounds };
        Ok(Self { ranks, stages_per_rank, microbatches, round })
    }

    fn passes(&self) -> usize {
        self.stages_per_rank * self.microbatches
    }

    /// Returns the number of a rank's forward passes before its first backward pass. A rank does `steps` more of them than the
    /// next rank, which is `steps` steps closer to the first backward pass.
    fn warmup(&self, rank: usize, steps: usize) -> usize {
        let ahead = (self.stages_per_rank - 1) * self.round + steps * (self.ranks - 1 - rank);
        ahead.min(self.passes())
    }

    /// Returns a rank's forward or backward pass by its number.
    fn pass(&self, rank: usize, number: usize, computation: Computation) -> Action {
        let turn = number / self.round;
        let chunk = turn % self.stages_per_rank;
        let chunk =
            if computation == Computation::Forward { chunk } else { self.stages_per_rank - 1 - chunk };
        let microbatch = turn / self.stages_per_rank * self.round + number % self.round;
        Action::new(chunk * self.ranks + rank, computation, microbatch)
    }

    /// Makes the schedule from the number of forward passes that each rank runs ahead. If a delay is given, the weights'
    /// gradients are computed in separate passes, that many backward passes later.
    fn schedule(
        &self,
        ahead: impl Fn(usize) -> usize,
        weights_after: Option<fn(usize) -> usize>,
    ) -> Schedule {
        use Computation::{BackwardInput, BackwardWeight, Forward, FullBackward};
        let row = |rank: usize| {
            let (ahead, passes) = (ahead(rank), self.passes());
            let mut row: Vec<Action> = (0..ahead).map(|number| self.pass(rank, number, Forward)).collect();
            let after = weights_after.map(|after| after(rank));
            for number in 0..passes {
                if ahead + number < passes {
                    row.push(self.pass(rank, ahead + number, Forward));
                }
                let backward = if after.is_some() { BackwardInput } else { FullBackward };
                row.push(self.pass(rank, number, backward));
                if let Some(weight) = after.and_then(|after| number.checked_sub(after)) {
                    row.push(self.pass(rank, weight, BackwardWeight));
                }
            }
            if let Some(after) = after {
                let left = passes.saturating_sub(after)..passes;
                row.extend(left.map(|number| self.pass(rank, number, BackwardWeight)));
            }
            row
        };
        Schedule::new((0..self.ranks).map(row).collect())
    }
}

impl Schedule {
    /// Makes a schedule for evaluation or inference, with only forward passes: each rank alternates between its stages. Microbatches
    /// go through the stages in rounds of one per rank.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if a number is 0, or the microbatches are not a multiple of the rounds.
    pub fn forward_only(ranks: usize, stages_per_rank: usize, microbatches: usize) -> Result<Self> {
        let turns = Turns::new("ForwardOnly", ranks, stages_per_rank, microbatches)?;
        let row =
            |rank| (0..turns.passes()).map(|number| turns.pass(rank, number, Computation::Forward)).collect();
        Ok(Self::new((0..ranks).map(row).collect()))
    }

    /// Makes GPipe (`ScheduleGPipe`): all forward passes, then all backward passes. A rank idles for `ranks − 1` of
    /// `(microbatches + ranks − 1)` steps, and keeps the activations of all microbatches.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if a number is 0.
    pub fn gpipe(ranks: usize, microbatches: usize) -> Result<Self> {
        let turns = Turns::new("GPipe", ranks, 1, microbatches)?;
        Ok(turns.schedule(|_| turns.passes(), None))
    }

    /// Makes 1F1B (`Schedule1F1B`, PipeDream-Flush): as soon as possible, a rank alternates backward and forward passes. It idles
    /// as long as in GPipe, and rank `r` keeps the activations of at most `ranks − r` microbatches.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if a number is 0.
    pub fn one_f_one_b(ranks: usize, microbatches: usize) -> Result<Self> {
        let turns = Turns::new("1F1B", ranks, 1, microbatches)?;
        Ok(turns.schedule(|rank| turns.warmup(rank, 1), None))
    }

    /// Makes the breadth-first schedule of several stages per rank (`ScheduleLoopedBFS`): each stage does all its microbatches at once.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if a number is 0.
    pub fn looped_bfs(ranks: usize, stages_per_rank: usize, microbatches: usize) -> Result<Self> {
        let mut turns = Turns::new("LoopedBFS", ranks, stages_per_rank.min(1), microbatches)?;
        turns.stages_per_rank = stages_per_rank;
        let mut schedule = turns.schedule(|_| turns.passes(), None);
        for action in schedule.rows.iter_mut().flatten() {
            // The microbatch whose forward pass was last has the first backward pass.
            if action.computation == Computation::FullBackward {
                action.microbatch = action.microbatch.map(|microbatch| microbatches - 1 - microbatch);
            }
        }
        Ok(schedule)
    }

    /// Makes interleaved 1F1B (`ScheduleInterleaved1F1B`, of Megatron-LM): rank `r` has the stages `r`, `r + ranks`, …, so that
    /// the idle time of a rank is that of 1F1B divided by its number of stages.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if a number is 0, or the microbatches are not a multiple of the number of rounds, which is
    /// `microbatches / ranks` rounded down, and at least 1.
    pub fn interleaved(ranks: usize, stages_per_rank: usize, microbatches: usize) -> Result<Self> {
        let turns = Turns::new("Interleaved 1F1B", ranks, stages_per_rank, microbatches)?;
        Ok(turns.schedule(|rank| turns.warmup(rank, 2), None))
    }

    /// Makes the zero-bubble schedule ZB1P of one or more stages per rank (`ScheduleInterleavedZeroBubble`): gradients of weights
    /// are computed where a rank would idle. Each rank keeps as many activations as rank 0 does in 1F1B.
    pub fn zero_bubble(ranks: usize, stages_per_rank: usize, microbatches: usize) -> Result<Self> {
        let turns = Turns::new("Zero bubble", ranks, stages_per_rank, microbatches)?;
        Ok(turns.schedule(|rank| turns.warmup(rank, 1), Some(|rank| rank)))
    }

    /// Makes the zero-bubble schedule ZBV (`ScheduleZBVZeroBubble`): rank `r` has the stages `r` and `2 · ranks − 1 − r`, so that
    /// the last stage's backward pass begins on rank 0. If the forward pass and both parts of the backward pass take equally
    /// long, a rank never idles between its first action and its last.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if a number is 0.
    pub fn zbv(ranks: usize, microbatches: usize) -> Result<Self> {
        let turns = Turns::new("ZBV", ranks, 1, microbatches)?;
        Ok(Self::new((0..turns.ranks).map(|rank| v_row(rank, ranks, microbatches)).collect()))
    }
}

/// The row of a rank of ZBV while it is built: each added action uses the next microbatch of its stage.
struct VRow {
    stages: [usize; 2],
    row: Vec<Action>,
    /// The next microbatches, by stage and by F, I, W.
    next: [[usize; 3]; 2],
}

impl VRow {
    fn add(&mut self, chunk: usize, part: usize) {
        const PARTS: [Computation; 3] =
            [Computation::Forward, Computation::BackwardInput, Computation::BackwardWeight];
        let next = &mut self.next[chunk][part];
        self.row.push(Action::new(self.stages[chunk], PARTS[part], *next));
        *next += 1;
    }

    fn add_all(&mut self, list: &[(usize, usize)]) {
        list.iter().for_each(|&(chunk, part)| self.add(chunk, part));
    }
}

/// Returns a rank's row of ZBV. If there are too few microbatches to fill the pipeline, the row is that of a larger batch, with
/// gaps.
fn v_row(rank: usize, ranks: usize, microbatches: usize) -> Vec<Action> {
    const F: usize = 0;
    const I: usize = 1;
    const W: usize = 2;
    let (down, up, after) = (0, 1, ranks - rank);
    let stages = [rank, 2 * ranks - 1 - rank];
    let mut v = VRow { stages, row: Vec::new(), next: [[0; 3]; 2] };
    let count = microbatches.max(2 * ranks - 1);
    (0..2 * after - 1).for_each(|_| v.add(down, F));
    (0..rank).for_each(|_| v.add_all(&[(up, F), (down, F)]));
    (0..after).for_each(|_| v.add_all(&[(up, F), (up, I), (up, W)]));
    while v.next[down][F] < count || v.next[up][F] < v.next[down][F] {
        if v.next[down][F] < count {
            v.add(down, F);
        }
        v.add_all(&[(down, I), (down, W), (up, F), (up, I), (up, W)]);
    }
    (0..rank).for_each(|_| v.add_all(&[(down, I), (up, I)]));
    (0..after).for_each(|_| v.add_all(&[(down, I), (down, W)]));
    for chunk in [up, down] {
        (v.next[chunk][W]..count).for_each(|_| v.add(chunk, W));
    }
    v.row.retain(|action| action.microbatch.is_some_and(|microbatch| microbatch < microbatches));
    v.row
}
