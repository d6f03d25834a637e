//! [`Timeline`]: the times of each rank's computations, measured or planned.

use std::fmt::Write as _;

use rustc_hash::FxHashMap;
use thalweg_runtime::{Error, Event, Result, invalid, refuse};
use thalweg_tensor::Tensor;

use super::run::Run;
use super::schedule::{product, source};
use super::{Action, Pipeline, PipelineOutput, Schedule};
use crate::ReduceOp;

/// A computation in a timeline.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TimelineSpan {
    /// The stage, computation and microbatch.
    pub action: Action,
    /// The time at which the computation begins, in milliseconds from the begin of the step.
    pub begin_ms: f64,
    /// The time at which the computation ends, in milliseconds from the begin of the step.
    pub end_ms: f64,
}

/// The computations of all ranks in a step with their times: measured ([`Pipeline::step_timed`]), or computed from a schedule
/// with given times of computations and no time for messages ([`planned`](Self::planned)).
///
/// ```
/// # use thalweg_dist::pipeline::{Schedule, Timeline};
/// # fn main() -> thalweg_runtime::Result<()> {
/// let timeline = Timeline::planned(&Schedule::one_f_one_b(2, 3)?, |_| 1.0)?;
/// assert_eq!(timeline.bubble_share(), 0.25); // 1 of 4 steps: (ranks − 1) of (microbatches + ranks − 1)
/// assert_eq!(timeline.to_text(24), "rank 0 F0-F1-...B0-F2-B1-...B2-\nrank 1 ...F0-B0-F1-B1-F2-B2-...\n");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Timeline {
    pub(super) rows: Vec<Vec<TimelineSpan>>,
}

impl Timeline {
    /// Makes the timeline of a schedule for given computation times. Each computation begins as soon as its rank is free and its
    /// inputs are available. No order of messages can make a step shorter.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the schedule cannot run.
    pub fn planned(schedule: &Schedule, mut cost_ms: impl FnMut(Action) -> f64) -> Result<Self> {
        schedule.check()?;
        let stages = schedule.stages();
        let computations = |row: &Vec<Action>| -> Vec<Action> {
            row.iter().copied().filter(|action| action.computation.is_compute()).collect()
        };
        let rows: Vec<Vec<Action>> = schedule.rows().iter().map(computations).collect();
        let mut spans: Vec<Vec<TimelineSpan>> = vec![Vec::new(); rows.len()];
        let mut ends: FxHashMap<Action, f64> = FxHashMap::default();
        loop {
            let mut has_moved = false;
            for (row, spans) in rows.iter().zip(&mut spans) {
                while let Some(&action) = row.get(spans.len()) {
                    let needed = source(action, stages).map(|needed| ends.get(&needed).copied());
                    let Some(arrived) = needed.unwrap_or(Some(0.0)) else { break };
                    let begin_ms = spans.last().map_or(0.0, |last| last.end_ms).max(arrived);
                    let end_ms = begin_ms + cost_ms(action);
                    spans.push(TimelineSpan { action, begin_ms, end_ms });
                    ends.insert(product(action), end_ms);
                    has_moved = true;
                }
            }
            if !has_moved {
                break;
            }
        }
        match rows.iter().zip(&spans).position(|(row, spans)| spans.len() < row.len()) {
            Some(rank) => Err(invalid!(
                "the ranks of the schedule wait for each other: rank {rank} would never come to {}",
                rows[rank][spans[rank].len()]
            )),
            None => Ok(Self { rows: spans }),
        }
    }

    /// Returns the shortest timeline of the schedule with this timeline's times: every computation takes as long as here, and
    /// messages and the host take no time. The additional time of a measured step is that of messages and the host.
    ///
    /// # Errors
    /// Those of [`planned`](Self::planned); [`Error::is_invalid_argument`] if the schedule has computations that this timeline
    /// does not have.
    pub fn bound(&self, schedule: &Schedule) -> Result<Self> {
        let spans = self.rows.iter().flatten();
        let times: FxHashMap<Action, f64> =
            spans.map(|span| (span.action, span.end_ms - span.begin_ms)).collect();
        let mut computations = schedule.actions().filter(|(_, action)| action.computation.is_compute());
        if let Some((_, action)) = computations.find(|(_, action)| !times.contains_key(action)) {
            refuse!("{action} was not measured");
        }
        Self::planned(schedule, |action| times[&action])
    }

    /// Returns the computations of each rank, in their order.
    pub fn rows(&self) -> &[Vec<TimelineSpan>] {
        &self.rows
    }

    /// Returns the time from the first begin to the last end.
    pub fn total_ms(&self) -> f64 {
        let [begin, end] = self.ends();
        (end - begin).max(0.0)
    }

    /// Returns the share of the ranks' time between the first begin and the last end in which they compute nothing.
    pub fn bubble_share(&self) -> f64 {
        let busy: f64 = self.rows.iter().flatten().map(|span| span.end_ms - span.begin_ms).sum();
        let whole = self.total_ms() * self.rows.len() as f64;
        if whole > 0.0 { 1.0 - busy / whole } else { 0.0 }
    }

    pub(super) fn ends(&self) -> [f64; 2] {
        let spans = || self.rows.iter().flatten();
        let begin = spans().map(|span| span.begin_ms).fold(f64::INFINITY, f64::min);
        [begin, spans().map(|span| span.end_ms).fold(begin, f64::max)]
    }
}

impl Pipeline<'_> {
    /// Trains as [`step`](Self::step) does, and measures when each computation of each rank begins and ends on its device. *All* ranks
    /// call it. *Blocks* until all are done.
    ///
    /// # Errors
    /// Those of [`step`](Self::step) and of the collectives by which the ranks exchange their times.
    #[track_caller]
    pub fn step_timed(
        &mut self,
        input: Option<&Tensor>,
        target: Option<&Tensor>,
    ) -> Result<(PipelineOutput, Timeline)> {
        let (inputs, targets) = self.divided(input, target)?;
        self.check_batch(&inputs, &targets, true)?;
        let group = self.group.clone();
        let token = Tensor::zeros(&[1], thalweg_ir::DType::F32, group.device())?;
        // The ranks' clocks start after a collective, which ends on all of them at about the same time.
        group.barrier()?;
        group.all_reduce(&token, ReduceOp::Sum)?.wait()?;
        let start = Event::with_timing();
        start.record(&group.device().current_stream())?;
        let mut run = Run::new(self, inputs, targets, true);
        run.spans = Some(Vec::new());
        run.all()?;
        let (mut output, spans) = (std::mem::take(&mut run.output), run.spans.take().unwrap_or_default());
        output.sort();
        let mut own = String::new();
        for (action, begin, end) in &spans {
            end.synchronize()?;
            let _ = writeln!(own, "{action} {} {}", start.elapsed_ms(begin)?, start.elapsed_ms(end)?);
        }
        let all = group.all_gather_object(own.as_bytes())?;
        let rows = all.iter().map(|text| parsed(&String::from_utf8_lossy(text))).collect::<Result<_>>()?;
        Ok((output, Timeline { rows }))
    }
}

fn parsed(text: &str) -> Result<Vec<TimelineSpan>> {
    let span = |line: &str| {
        let refuse = || Error::distributed(format!("another rank's time is \"{line}\""));
        let mut words = line.split(' ');
        let action = words.next().ok_or_else(refuse)?.parse()?;
        let mut time = || words.next().and_then(|word| word.parse().ok()).ok_or_else(refuse);
        Ok(TimelineSpan { action, begin_ms: time()?, end_ms: time()? })
    };
    text.lines().map(span).collect()
}
