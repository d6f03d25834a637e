//! [`Pipeline`]: a schedule with the stages of one rank.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use thalweg_derive::at_line;
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};
use thalweg_tensor::{Tensor, no_grad};

use super::meta::Meta;
use super::run::{Known, Run, check_grad_enabled};
use super::{Action, PipelineStage, Schedule};
use crate::ProcessGroup;

/// A function that computes the loss of a microbatch, a tensor of one element, from the last stage's result and the target.
pub type PipelineLoss<'m> = dyn Fn(&Tensor, &Tensor) -> Result<Tensor> + 'm;

/// The options of a pipeline, with PyTorch's names and defaults.
pub struct PipelineOptions<'m> {
    /// The loss (`loss_fn`), which the last stage's rank calls. The default is none.
    pub loss: Option<Box<PipelineLoss<'m>>>,
    /// Whether gradients are divided by the number of microbatches. If the loss is a mean, they are then the gradients of the
    /// full batch. The default is true.
    pub scale_grads: bool,
    /// Whether a step returns the last stage's results, which stay in memory until then. The default is true. An evaluation
    /// always returns them.
    pub return_outputs: bool,
}

impl Default for PipelineOptions<'_> {
    fn default() -> Self {
        Self { loss: None, scale_grads: true, return_outputs: true }
    }
}

impl<'m> PipelineOptions<'m> {
    /// Makes the options with a loss.
    pub fn with_loss(loss: impl Fn(&Tensor, &Tensor) -> Result<Tensor> + 'm) -> Self {
        Self { loss: Some(Box::new(loss)), ..Self::default() }
    }
}

/// The results of a batch by microbatch, on the last stage's rank. Empty on other ranks.
#[derive(Default, Debug)]
pub struct PipelineOutput {
    pub(super) outputs: Vec<(usize, Tensor)>,
    pub(super) losses: Vec<(usize, Tensor)>,
}

impl PipelineOutput {
    /// Returns the last stage's results, in the order of the microbatches.
    pub fn outputs(&self) -> Vec<Tensor> {
        self.outputs.iter().map(|(_, output)| output.clone()).collect()
    }

    /// Returns the losses, in the order of the microbatches.
    pub fn losses(&self) -> Vec<Tensor> {
        self.losses.iter().map(|(_, loss)| loss.clone()).collect()
    }

    /// Returns the results concatenated to one batch; `None` on other ranks.
    pub fn merged(&self) -> Result<Option<Tensor>> {
        if self.outputs.is_empty() {
            return Ok(None);
        }
        no_grad(|| Tensor::cat(&self.outputs(), 0)).map(Some)
    }

    /// Returns the mean of the losses; `None` on other ranks, or without a loss function.
    pub fn mean_loss(&self) -> Result<Option<Tensor>> {
        let Some(((_, first), rest)) = self.losses.split_first() else { return Ok(None) };
        let sum = rest.iter().try_fold(first.clone(), |sum, (_, loss)| sum.add(loss))?;
        sum.div_scalar(self.losses.len() as f64).map(Some)
    }

    pub(super) fn sort(&mut self) {
        self.outputs.sort_by_key(|&(microbatch, _)| microbatch);
        self.losses.sort_by_key(|&(microbatch, _)| microbatch);
    }
}

/// A schedule with the stages of one rank (`_PipelineScheduleRuntime` and the classes above it in PyTorch): it splits batches
/// into microbatches, runs these through the stages of all ranks, and accumulates gradients.
///
/// Computation is on the current stream. Activations and gradients go from rank to rank on side streams, one per pair of ranks
/// and direction, each with its own process group. Stages compute while messages are in progress, and a message is received as
/// soon as it is sent.
///
/// ```
/// use thalweg_dist::pipeline::{Pipeline, PipelineOptions, PipelineStage, Schedule};
/// use thalweg_dist::{run_ranks, simulated_devices};
/// use thalweg_nn::module::Linear;
/// use thalweg_tensor::{Tensor, random::Generator};
///
/// # fn main() -> thalweg_runtime::Result<()> {
/// let schedule = Schedule::one_f_one_b(2, 4)?;
/// let losses = run_ranks(&simulated_devices(2)?, |group| {
///     let layer = Linear::new(3, 3, &mut Generator::new(u64::from(group.rank())), group.device())?;
///     let stage = PipelineStage::new(&layer, group.rank() as usize, 2)?;
///     let options = PipelineOptions::with_loss(|y, target| y.sub(target)?.square()?.mean(&[], false));
///     let mut pipeline = Pipeline::new(&schedule, vec![stage], &group, options)?;
///     let x = Tensor::ones(&[8, 3], thalweg_ir::DType::F32, group.device())?;
///     let output = pipeline.step(Some(&x), Some(&x))?; // the first rank takes the input, the last one the target
///     output.mean_loss()?.map(|loss| loss.item::<f32>()).transpose()
/// })?;
/// assert!(losses[0].is_none() && losses[1].is_some());
/// # Ok(())
/// # }
/// ```
pub struct Pipeline<'m> {
    stages: Vec<PipelineStage<'m>>,
    pub(super) group: ProcessGroup,
    pub(super) options: PipelineOptions<'m>,
    /// This rank's row, with messages.
    pub(super) row: Arc<[Action]>,
    pub(super) rank_of: Vec<usize>,
    pub(super) microbatches: usize,
    has_backward: bool,
    /// The groups of two ranks in which this rank sends and receives, by sender and receiver.
    pub(super) links: FxHashMap<(usize, usize), ProcessGroup>,
    pub(super) known: FxHashMap<Known, Meta>,
}

impl<'m> Pipeline<'m> {
    /// Makes a rank of a pipeline from its stages. *All* ranks of the group call it with the same schedule. *Blocks* until all
    /// ranks have made this call.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the schedule cannot run, has another number of ranks than the group, or assigns other
    /// stages to this rank.
    #[at_line]
    pub fn new(
        schedule: &Schedule,
        stages: Vec<PipelineStage<'m>>,
        group: &ProcessGroup,
        options: PipelineOptions<'m>,
    ) -> Result<Self> {
        let rank_of = schedule.check()?;
        refuse_if!(
            schedule.ranks() != group.size() as usize,
            "Schedule has incorrect number of ranks - expected {}, actual {}",
            group.size(),
            schedule.ranks()
        );
        let rank = group.rank() as usize;
        check_ranks(group, &stages, schedule, &rank_of)?;
        let with_messages =
            if schedule.has_messages() { schedule.clone() } else { schedule.with_messages()? };
        let links = links(group, &rank_of)?;
        Ok(Self {
            stages,
            group: group.clone(),
            options,
            row: with_messages.rows()[rank].as_slice().into(),
            microbatches: schedule.microbatches(),
            has_backward: schedule.has_backward(),
            rank_of,
            links,
            known: FxHashMap::default(),
        })
    }

    /// Returns the number of microbatches that a batch is divided into.
    pub fn microbatches(&self) -> usize {
        self.microbatches
    }

    /// Returns whether this rank has the first stage, which takes the input.
    pub fn has_first(&self) -> bool {
        self.rank_of.first() == Some(&(self.group.rank() as usize))
    }

    /// Returns whether this rank has the last stage, which takes the target and has the result.
    pub fn has_last(&self) -> bool {
        self.rank_of.last() == Some(&(self.group.rank() as usize))
    }

    /// Trains on a full batch: divides input and target along dimension 0, runs the schedule, and leaves the gradients in the
    /// stages' parameters (`schedule.step`). Only the first stage's rank uses the input, and only the last one's the target.
    /// Asynchronous, except for the first batch, for which the ranks exchange shapes.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`], with PyTorch's message, if the batch cannot be divided into the schedule's number of
    /// microbatches of equal shape, the schedule has no backward passes, or gradients are disabled; those of the stages.
    #[at_line]
    pub fn step(&mut self, input: Option<&Tensor>, target: Option<&Tensor>) -> Result<PipelineOutput> {
        let (inputs, targets) = self.divided(input, target)?;
        self.run(inputs, targets, true)
    }

    /// Trains as [`step`](Self::step) does, on a batch that is already divided into microbatches.
    #[at_line]
    pub fn step_microbatches(&mut self, inputs: &[Tensor], targets: &[Tensor]) -> Result<PipelineOutput> {
        self.run(inputs.to_vec(), targets.to_vec(), true)
    }

    /// Runs only the forward passes (`schedule.eval`), with losses if there is a target.
    #[at_line]
    pub fn eval(&mut self, input: Option<&Tensor>, target: Option<&Tensor>) -> Result<PipelineOutput> {
        let (inputs, targets) = self.divided(input, target)?;
        self.run(inputs, targets, false)
    }

    pub(super) fn divided(
        &self,
        input: Option<&Tensor>,
        target: Option<&Tensor>,
    ) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
        let divided = |tensor: Option<&Tensor>, is_used: bool| match tensor {
            Some(tensor) if is_used => microbatches_of(tensor, self.microbatches),
            _ => Ok(Vec::new()),
        };
        Ok((divided(input, self.has_first())?, divided(target, self.has_last())?))
    }

    pub(super) fn run(
        &mut self,
        inputs: Vec<Tensor>,
        targets: Vec<Tensor>,
        has_backward: bool,
    ) -> Result<PipelineOutput> {
        self.check_batch(&inputs, &targets, has_backward)?;
        let mut run = Run::new(self, inputs, targets, has_backward);
        run.all()?;
        let mut output = std::mem::take(&mut run.output);
        output.sort();
        Ok(output)
    }

    /// Checks the arguments of a step, before any of its work is submitted.
    pub(super) fn check_batch(
        &self,
        inputs: &[Tensor],
        targets: &[Tensor],
        has_backward: bool,
    ) -> Result<()> {
        if has_backward && !self.has_backward {
            refuse!("Forward-only schedule does not support loss computation");
        }
        if has_backward {
            check_grad_enabled()?;
        }
        let has_loss = self.options.loss.is_some();
        if has_backward && self.has_last() && !has_loss {
            refuse!("step() requires a loss function on the rank of the last stage");
        }
        let needs_target = self.has_last() && has_loss && (has_backward || !targets.is_empty());
        for (name, given, is_needed) in
            [("arg_mbs", inputs, self.has_first()), ("target_mbs", targets, needs_target)]
        {
            if is_needed && given.len() != self.microbatches {
                refuse!("Expecting {} {name} but got {}", self.microbatches, given.len());
            }
        }
        Ok(())
    }

    /// Returns the parameters of this rank's stages.
    pub(super) fn parameters(&self) -> impl Iterator<Item = &Tensor> {
        self.stages.iter().flat_map(|stage| &stage.parameters)
    }

    /// Returns one of this rank's stages.
    pub(super) fn stage(&self, index: usize) -> Result<&PipelineStage<'m>> {
        let stage = self.stages.iter().find(|stage| stage.index() == index);
        stage.ok_or_else(|| invalid!("stage {index} is not on rank {}", self.group.rank()))
    }
}

/// Checks that all ranks have the same schedule, and each has the stages that it assigns to the rank. All ranks get the same
/// result. *Blocks* until they have made this call.
fn check_ranks(
    group: &ProcessGroup,
    stages: &[PipelineStage<'_>],
    schedule: &Schedule,
    rank_of: &[usize],
) -> Result<()> {
    let mut given: Vec<usize> = stages.iter().map(PipelineStage::index).collect();
    given.sort_unstable();
    let count = stages.iter().map(PipelineStage::stages).find(|&count| count != rank_of.len());
    let own = format!("{given:?} of {}\n{}", count.unwrap_or(rank_of.len()), schedule.to_csv());
    let all = group.all_gather_object(own.as_bytes())?;
    let texts: Vec<_> = all.iter().map(|text| String::from_utf8_lossy(text)).collect();
    let parts = |rank: usize| texts[rank].split_once('\n').unwrap_or_default();
    for rank in 0..texts.len() {
        refuse_if!(parts(rank).1 != parts(0).1, "rank {rank} has another schedule than rank 0");
        let wanted: Vec<usize> = (0..rank_of.len()).filter(|&stage| rank_of[stage] == rank).collect();
        let wanted = format!("{wanted:?} of {}", rank_of.len());
        refuse_if!(
            parts(rank).0 != wanted,
            "the schedule gives rank {rank} the stages {wanted}, and it was made with {}",
            parts(rank).0
        );
    }
    Ok(())
}

/// Makes a group of two for each pair of ranks with neighbouring stages and each direction.
fn links(group: &ProcessGroup, rank_of: &[usize]) -> Result<FxHashMap<(usize, usize), ProcessGroup>> {
    let mut pairs: Vec<(usize, usize)> = Vec::new();
    for stages in rank_of.windows(2).filter(|stages| stages[0] != stages[1]) {
        for pair in [(stages[0], stages[1]), (stages[1], stages[0])] {
            if !pairs.contains(&pair) {
                pairs.push(pair);
            }
        }
    }
    let mut links = FxHashMap::default();
    for (from, to) in pairs {
        if let Some(link) = group.new_group(&[from as u32, to as u32])? {
            link.stream().set_name(&format!("pipeline {from} to {to}"));
            links.insert((from, to), link);
        }
    }
    Ok(links)
}

/// Divides a batch along dimension 0, as `tensor_split` does.
fn microbatches_of(batch: &Tensor, count: usize) -> Result<Vec<Tensor>> {
    let Some(&rows) = batch.shape().first() else {
        refuse!("a batch has at least one dimension, along which it is divided");
    };
    let parts = count.min(rows);
    let mut start = 0;
    let part = |index: usize| {
        let length = rows / parts + usize::from(index < rows % parts);
        start += length;
        no_grad(|| batch.narrow(0, start - length, length))
    };
    (0..parts).map(part).collect()
}
