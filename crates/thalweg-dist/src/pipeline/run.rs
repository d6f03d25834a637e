//! One pass of a batch through a pipeline, on one rank: the actions of the rank's row, one after the other.
//!
//! Two tables have the tensors that arrive at a stage and those that leave it, by stage, direction and microbatch. A message from
//! another rank is stored in memory of its link's stream. It is received as soon as the sender has it, independent of the
//! computation, which waits for it only where it is used.

use rustc_hash::FxHashMap;
use thalweg_runtime::{Error, Event, Result, Stream, invalid, refuse};
use thalweg_tensor::Tensor;
use thalweg_tensor::autograd::{BackwardWeights, backward_input, enable_grad, is_grad_enabled, no_grad};

use super::meta::Meta;
use super::{Action, Computation, Pipeline, PipelineOutput};
use crate::{ProcessGroup, Work};

/// The key of a tensor: stage, microbatch, and whether it is an activation (`true`) or a gradient (`false`).
type Place = (usize, usize, bool);

/// A tensor that has arrived at a stage, with the message that carried it.
struct Arrival {
    tensor: Tensor,
    work: Option<Work>,
}

impl Arrival {
    /// Returns the tensor, ready on the current stream.
    fn ready(self) -> Result<Tensor> {
        self.work.map_or(Ok(()), |work| work.wait())?;
        Ok(self.tensor)
    }
}

/// The tensors that a forward pass keeps for the backward pass.
struct Forwarded {
    input: Tensor,
    output: Tensor,
}

/// The second half of a backward pass, with the tensors that it uses.
struct HalfBackward {
    rest: BackwardWeights,
    used: Vec<Tensor>,
}

/// An action with the events at its begin and end on the device.
pub(super) type Span = (Action, Event, Event);

/// A pass in progress.
pub(super) struct Run<'p, 'm> {
    pipeline: &'p mut Pipeline<'m>,
    inputs: FxHashMap<usize, Tensor>,
    targets: Vec<Tensor>,
    has_backward: bool,
    compute: Stream,
    arrived: FxHashMap<Place, Arrival>,
    leaving: FxHashMap<Place, Tensor>,
    forwarded: FxHashMap<(usize, usize), Forwarded>,
    halves: FxHashMap<(usize, usize), HalfBackward>,
    sent: Vec<Work>,
    pub(super) output: PipelineOutput,
    pub(super) spans: Option<Vec<Span>>,
}

impl<'p, 'm> Run<'p, 'm> {
    pub(super) fn new(
        pipeline: &'p mut Pipeline<'m>,
        inputs: Vec<Tensor>,
        targets: Vec<Tensor>,
        has_backward: bool,
    ) -> Self {
        let compute = pipeline.group.device().current_stream();
        Self {
            pipeline,
            inputs: inputs.into_iter().enumerate().collect(),
            targets,
            has_backward,
            compute,
            arrived: FxHashMap::default(),
            leaving: FxHashMap::default(),
            forwarded: FxHashMap::default(),
            halves: FxHashMap::default(),
            sent: Vec::new(),
            output: PipelineOutput::default(),
            spans: None,
        }
    }

    /// Runs the actions of the rank's row.
    pub(super) fn all(&mut self) -> Result<()> {
        let row = self.pipeline.row.clone();
        for &action in row.iter() {
            let is_forward = matches!(
                action.computation,
                Computation::Forward | Computation::SendForward | Computation::ReceiveForward
            );
            if !is_forward && !self.has_backward {
                continue;
            }
            self.timed(action).map_err(|error| error.context(format!("pipeline action {action}")))?;
        }
        if self.has_backward && self.pipeline.options.scale_grads {
            self.scale()?;
        }
        self.wait_for_sends()
    }

    /// Makes the current stream wait for sent tensors: one may be a parameter, which the optimizer writes next.
    fn wait_for_sends(&mut self) -> Result<()> {
        self.sent.drain(..).try_for_each(|work| work.wait())
    }

    /// Adds a microbatch for the first stage.
    pub(super) fn give_input(&mut self, microbatch: usize, input: Tensor) {
        self.inputs.insert(microbatch, input);
    }

    /// Removes and returns the messages that have been sent.
    pub(super) fn take_sent(&mut self) -> Vec<Work> {
        std::mem::take(&mut self.sent)
    }

    /// Takes the results that are available.
    pub(super) fn take_outputs(&mut self) -> Vec<(usize, Tensor)> {
        std::mem::take(&mut self.output.outputs)
    }

    fn timed(&mut self, action: Action) -> Result<()> {
        if self.spans.is_none() || !action.computation.is_compute() {
            return self.act(action);
        }
        self.wait_for_arrivals(action)?;
        let (begin, end) = (Event::with_timing(), Event::with_timing());
        begin.record(&self.compute)?;
        self.act(action)?;
        end.record(&self.compute)?;
        self.spans.get_or_insert_default().push((action, begin, end));
        Ok(())
    }

    /// Makes the current stream wait for the tensors that an action will use, so that the measured time covers only the
    /// computation.
    fn wait_for_arrivals(&mut self, action: Action) -> Result<()> {
        let place = (action.stage, of(action)?, action.computation == Computation::Forward);
        self.arrived.get(&place).and_then(|arrival| arrival.work.as_ref()).map_or(Ok(()), |work| work.wait())
    }

    pub(super) fn act(&mut self, action: Action) -> Result<()> {
        let stage = action.stage;
        match action.computation {
            Computation::Forward => self.forward(stage, of(action)?),
            Computation::FullBackward => self.backward(stage, of(action)?),
            Computation::SendForward => self.send((stage, of(action)?, true), stage + 1),
            Computation::SendBackward => self.send((stage, of(action)?, false), stage - 1),
            Computation::ReceiveForward => self.receive((stage, of(action)?, true), stage - 1),
            Computation::ReceiveBackward => self.receive((stage, of(action)?, false), stage + 1),
            // The mean is computed for all stages at once.
            Computation::ReduceGradients => Ok(()),
            Computation::BackwardInput => self.backward_input(stage, of(action)?),
            Computation::BackwardWeight => self.backward_weight(stage, of(action)?),
            Computation::Unshard | Computation::Reshard => {
                Err(invalid!("the parameters of a stage are not sharded"))
            }
        }
    }

    // ---- Computation ------------------------------------------------------------------------------------------------

    fn forward(&mut self, stage: usize, microbatch: usize) -> Result<()> {
        let input = if stage == 0 {
            let input = self.inputs.remove(&microbatch);
            let input = input.ok_or_else(|| invalid!("the microbatch was not given"))?.detach();
            self.pipeline.know(Known::Input, &input)?;
            input
        } else {
            let input = self.arrive((stage, microbatch, true))?;
            input.set_requires_grad(self.has_backward && input.dtype().is_floating_point())?;
            input
        };
        let run = || (self.pipeline.stage(stage)?.forward)(&input);
        let output = if self.has_backward { enable_grad(run) } else { no_grad(run) };
        // The memory is a link's stream's. The backward pass uses saved tensors and records that as well.
        input.record_use(&self.compute);
        let output = output?;
        self.pipeline.know(Known::Output(stage), &output)?;
        let is_last = stage + 1 == self.pipeline.rank_of.len();
        let result = if is_last {
            if self.pipeline.options.return_outputs || !self.has_backward {
                self.output.outputs.push((microbatch, output.detach()));
            }
            self.loss(microbatch, output)?
        } else {
            let leaving = no_grad(|| output.detach().contiguous())?;
            self.pass_to_stage((stage, microbatch, true), stage + 1, leaving);
            output
        };
        if self.has_backward {
            self.forwarded.insert((stage, microbatch), Forwarded { input, output: result });
        }
        Ok(())
    }

    /// Returns the loss of a microbatch, or its output if there is no target.
    fn loss(&mut self, microbatch: usize, output: Tensor) -> Result<Tensor> {
        let (Some(function), Some(target)) = (&self.pipeline.options.loss, self.targets.get(microbatch))
        else {
            return Ok(output);
        };
        let run = || function(&output, target);
        let loss = if self.has_backward { enable_grad(run) } else { no_grad(run) }?;
        self.output.losses.push((microbatch, loss.detach()));
        Ok(loss)
    }

    fn backward(&mut self, stage: usize, microbatch: usize) -> Result<()> {
        let Forwarded { input, output } = self.take(stage, microbatch)?;
        let is_last = stage + 1 == self.pipeline.rank_of.len();
        let gradient = if is_last { None } else { Some(self.arrive((stage, microbatch, false))?) };
        let outcome = match &gradient {
            None => output.backward(),
            Some(gradient) if output.requires_grad() => output.backward_with(gradient),
            // Stages whose parameters are all frozen are skipped.
            Some(_) => Ok(()),
        };
        drop(output);
        std::iter::once(&input).chain(&gradient).for_each(|tensor| tensor.record_use(&self.compute));
        outcome?;
        self.give_gradient(stage, microbatch, input.grad())
    }

    /// Computes only the gradient of a stage's input.
    fn backward_input(&mut self, stage: usize, microbatch: usize) -> Result<()> {
        let Forwarded { input, output } = self.take(stage, microbatch)?;
        let is_last = stage + 1 == self.pipeline.rank_of.len();
        let gradient = if is_last { None } else { Some(self.arrive((stage, microbatch, false))?) };
        let mut of_input = None;
        if output.requires_grad() || is_last {
            let halves = backward_input(&output, gradient.as_ref(), &input);
            let used: Vec<Tensor> = std::iter::once(input).chain(gradient).collect();
            used.iter().for_each(|tensor| tensor.record_use(&self.compute));
            let (found, rest) = halves?;
            of_input = found;
            self.halves.insert((stage, microbatch), HalfBackward { rest, used });
        }
        self.give_gradient(stage, microbatch, of_input)
    }

    /// Computes the gradients of a stage's weights.
    fn backward_weight(&mut self, stage: usize, microbatch: usize) -> Result<()> {
        let Some(HalfBackward { rest, used }) = self.halves.remove(&(stage, microbatch)) else {
            return Ok(());
        };
        let outcome = rest.run();
        used.iter().for_each(|tensor| tensor.record_use(&self.compute));
        outcome
    }

    /// Passes the gradient of a stage's input to the previous stage.
    fn give_gradient(&mut self, stage: usize, microbatch: usize, gradient: Option<Tensor>) -> Result<()> {
        if stage == 0 {
            return Ok(());
        }
        let Some(gradient) = gradient else {
            refuse!(
                "[{stage}] for chunk {microbatch} has gradients None and is expecting to send gradients to stage {}",
                stage - 1
            );
        };
        let leaving = no_grad(|| gradient.contiguous())?;
        self.pass_to_stage((stage, microbatch, false), stage - 1, leaving);
        Ok(())
    }

    fn take(&mut self, stage: usize, microbatch: usize) -> Result<Forwarded> {
        self.forwarded
            .remove(&(stage, microbatch))
            .ok_or_else(|| invalid!("stage {stage} has no forward pass of microbatch {microbatch}"))
    }

    /// Divides the accumulated gradients by the number of microbatches. A parameter that several stages share is divided once.
    fn scale(&self) -> Result<()> {
        let mut scaled: Vec<&Tensor> = Vec::new();
        for parameter in self.pipeline.parameters() {
            if scaled.iter().any(|other| other.is_same(parameter)) {
                continue;
            }
            scaled.push(parameter);
            if let Some(gradient) = parameter.grad() {
                let mean = no_grad(|| gradient.div_scalar(self.pipeline.microbatches as f64))?;
                parameter.set_grad(Some(mean))?;
            }
        }
        Ok(())
    }

    // ---- Messages ---------------------------------------------------------------------------------------------------

    /// Returns the tensor that has arrived at a stage, ready on the current stream.
    fn arrive(&mut self, place: Place) -> Result<Tensor> {
        let arrival = self.arrived.remove(&place).ok_or_else(|| {
            let (stage, microbatch, is_forward) = place;
            let what = if is_forward { "activation" } else { "gradient" };
            invalid!("stage {stage} has got no {what} of microbatch {microbatch}")
        })?;
        arrival.ready()
    }

    /// Passes a tensor to another stage: immediately if that is on this rank, otherwise by the send action of the row.
    fn pass_to_stage(&mut self, place: Place, to: usize, tensor: Tensor) {
        let (stage, microbatch, is_forward) = place;
        let rank_of = &self.pipeline.rank_of;
        if rank_of[stage] == rank_of[to] {
            self.arrived.insert((to, microbatch, is_forward), Arrival { tensor, work: None });
        } else {
            self.leaving.insert(place, tensor);
        }
    }

    fn send(&mut self, place: Place, to: usize) -> Result<()> {
        let tensor = self.leaving.remove(&place).ok_or_else(|| invalid!("nothing was computed"))?;
        let (group, peer) = self.pipeline.link(place.0, to)?;
        self.sent.push(group.send(&tensor, peer)?);
        Ok(())
    }

    fn receive(&mut self, place: Place, from: usize) -> Result<()> {
        let (stage, microbatch, is_forward) = place;
        let meta = if is_forward {
            self.pipeline.expected_input(stage)?
        } else {
            self.pipeline.expected_output(stage)?
        };
        let (group, peer) = self.pipeline.link(from, stage)?;
        // Memory of the link's own stream does not wait for computation.
        let _current = group.stream().make_current();
        let tensor = Tensor::empty(&meta.shape, meta.dtype, group.device())?;
        let work = group.recv(&tensor, peer)?;
        self.arrived.insert((stage, microbatch, is_forward), Arrival { tensor, work: Some(work) });
        Ok(())
    }
}

/// The tensors whose shapes a pipeline learns from its first batch.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Known {
    /// The input of the first stage.
    Input,
    /// The result of a stage.
    Output(usize),
}

impl Pipeline<'_> {
    /// Checks a tensor's shape and dtype against earlier microbatches. For the first microbatch, records them, and publishes them
    /// to the next stage.
    fn know(&mut self, which: Known, tensor: &Tensor) -> Result<()> {
        if let Some(meta) = self.known.get(&which) {
            return meta.check(
                &match which {
                    Known::Input => "Stage 0 forward inputs".to_owned(),
                    Known::Output(stage) => format!("Stage {stage} forward outputs"),
                },
                tensor,
            );
        }
        let meta = Meta::of(tensor);
        if let Known::Output(stage) = which
            && self.rank_of.get(stage + 1).is_some_and(|&next| next != self.rank_of[stage])
        {
            meta.publish(self.link(stage, stage + 1)?.0, stage)?;
        }
        self.known.insert(which, meta);
        Ok(())
    }

    /// Returns the shape and dtype of a stage's input from the previous stage. *Blocks* the first time.
    fn expected_input(&mut self, stage: usize) -> Result<Meta> {
        let which = Known::Output(stage - 1);
        if let Some(meta) = self.known.get(&which) {
            return Ok(meta.clone());
        }
        let meta = Meta::read(self.link(stage - 1, stage)?.0, stage - 1)?;
        self.known.insert(which, meta.clone());
        Ok(meta)
    }

    fn expected_output(&self, stage: usize) -> Result<Meta> {
        let meta = self.known.get(&Known::Output(stage));
        meta.cloned().ok_or_else(|| invalid!("stage {stage} has not run"))
    }

    /// Returns the group in which a stage's rank sends to another's, and the other rank's number in it.
    fn link(&self, from: usize, to: usize) -> Result<(&ProcessGroup, u32)> {
        let pair = (self.rank_of[from], self.rank_of[to]);
        let link = self.links.get(&pair);
        let link = link.ok_or_else(|| invalid!("rank {} has no link to rank {}", pair.0, pair.1))?;
        Ok((link, 1 - link.rank()))
    }
}

/// Checks that gradients are enabled, which a training step needs.
pub(super) fn check_grad_enabled() -> Result<()> {
    if is_grad_enabled() {
        return Ok(());
    }
    Err(invalid!(
        "step() requires gradients to be enabled for backward computation; it should not be used under torch.no_grad() context. Please \
         call eval() instead."
    ))
}

fn of(action: Action) -> Result<usize> {
    action.microbatch.ok_or_else(|| invalid!("{action} is of no microbatch"))
}
