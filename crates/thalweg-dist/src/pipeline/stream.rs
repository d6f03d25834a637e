//! Inference over a stream of microbatches.

use std::collections::VecDeque;
use thalweg_derive::at_line;
use thalweg_runtime::Result;
use thalweg_tensor::Tensor;

use super::run::Run;
use super::{Action, Computation, Pipeline};
use crate::Work;

impl Pipeline<'_> {
    /// Runs microbatches through the stages one after the other, forward only and without gradients. Their number does not depend
    /// on the schedule. In each step every stage has one microbatch, and the next one enters as soon as the first stage is free.
    /// `input` returns them on the first stage's rank, by number; `output` takes the results on the last one's, in the same
    /// order. *All* ranks call it with the same number. *Blocks* while more than `ahead` steps are submitted that are not done or
    /// not received by the next rank, which bounds the memory.
    ///
    /// # Errors
    /// Those of the stages and of the two functions; [`Error::is_invalid_argument`](thalweg_runtime::Error::is_invalid_argument),
    /// with PyTorch's message, if a microbatch does not have the first one's shape.
    #[at_line]
    pub fn stream(
        &mut self,
        microbatches: usize,
        ahead: usize,
        mut input: impl FnMut(usize) -> Result<Tensor>,
        mut output: impl FnMut(usize, Tensor) -> Result<()>,
    ) -> Result<()> {
        let stages = self.rank_of.len();
        let mut own = self.own_stages();
        // The later stages of a rank are first: their inputs were sent in the previous step.
        own.reverse();
        let rank_of = self.rank_of.clone();
        let is_apart = |one: usize, other: usize| rank_of[one] != rank_of[other];
        let stream = self.group.device().current_stream();
        let mut run = Run::new(self, Vec::new(), Vec::new(), false);
        let mut submitted = VecDeque::new();
        for step in 0..microbatches + stages - 1 {
            for &stage in own.iter().filter(|&&stage| stage <= step && step - stage < microbatches) {
                let microbatch = step - stage;
                let action = |computation| Action::new(stage, computation, microbatch);
                if stage == 0 {
                    run.give_input(microbatch, input(microbatch)?);
                } else if is_apart(stage - 1, stage) {
                    run.act(action(Computation::ReceiveForward))?;
                }
                run.act(action(Computation::Forward))?;
                if stage + 1 < stages && is_apart(stage, stage + 1) {
                    run.act(action(Computation::SendForward))?;
                }
                for (microbatch, result) in run.take_outputs() {
                    output(microbatch, result)?;
                }
            }
            submitted.push_back((stream.record_event()?, run.take_sent()));
            while submitted.len() > ahead.max(1)
                && let Some((computed, sent)) = submitted.pop_front()
            {
                computed.synchronize()?;
                sent.iter().try_for_each(Work::synchronize)?;
            }
        }
        submitted.iter().flat_map(|(_, sent)| sent).try_for_each(Work::wait)
    }

    /// Returns the numbers of this rank's stages.
    fn own_stages(&self) -> Vec<usize> {
        let rank = self.group.rank() as usize;
        (0..self.rank_of.len()).filter(|&stage| self.rank_of[stage] == rank).collect()
    }
}
