//! Making graphed callables: checks, warm-up, and the captures in their order.

use std::sync::{Arc, Mutex};

use thalweg_runtime::graph::OverwritePolicy;
use thalweg_runtime::{CaptureMode, CaptureOptions, Device, Error, Graph, GraphPool, Label, Result, Stream};

use super::replay::{BackwardGraph, Entry, Set, SetState};
use super::{Callable, CallableOptions};
use crate::autograd::{BackwardOptions, gradients_with, is_grad_enabled};
use crate::graph::outputs::Outputs;
use crate::tensor::Tensor;

/// A callable on its way to a graph.
struct Draft {
    callable: Box<dyn Callable>,
    inputs: Vec<Tensor>,
    /// Inputs and parameters, in this order, where gradients flow to them.
    targets: Vec<Option<Tensor>>,
    results: Vec<Tensor>,
    forward: Option<Graph>,
    backward: Option<DraftBackward>,
}

struct DraftBackward {
    graph: Graph,
    result_gradients: Vec<Option<Tensor>>,
    gradients: Vec<Option<Tensor>>,
}

/// Where and how to capture.
struct Studio<'a> {
    device: &'a Device,
    stream: Stream,
    pool: GraphPool,
    mode: CaptureMode,
}

impl Studio<'_> {
    fn capture<T>(&self, region: impl FnOnce() -> Result<T>) -> Result<(Graph, T)> {
        let (pool, stream) = (Some(self.pool.clone()), Some(self.stream.clone()));
        Graph::capture(self.device, CaptureOptions { pool, mode: self.mode, stream }, || {
            // Of the callables' other graphs: the order of the replays is watched.
            self.pool.vouch(&self.stream);
            region()
        })
    }
}

pub(super) fn record(
    device: &Device,
    callables: Vec<Box<dyn Callable>>,
    samples: Vec<Vec<Tensor>>,
    options: &CallableOptions,
    label: Label,
) -> Result<Set> {
    if callables.len() != samples.len() {
        let (callables, samples) = (callables.len(), samples.len());
        return Err(Error::invalid(format!(
            "{callables} callables, but samples for {samples}: give one list each"
        )));
    }
    let pool =
        options.pool.clone().unwrap_or_else(|| GraphPool::with_policy(device, OverwritePolicy::Unchecked));
    let studio = Studio { device, stream: Stream::new(device)?, pool, mode: options.mode };
    let mut drafts = callables
        .into_iter()
        .zip(samples)
        .map(|(callable, samples)| {
            let name = callable.name().to_owned();
            Draft::new(callable, samples, device).map_err(|error| error.context(name))
        })
        .collect::<Result<Vec<_>>>()?;
    warm_up(&studio, &drafts, options.warm_up)?;
    for draft in &mut drafts {
        let named = |error: Error| error.context(draft.callable.name());
        let (graph, results) = studio.capture(|| draft.callable.call(&draft.inputs)).map_err(named)?;
        (draft.forward, draft.results) = (Some(graph), results);
    }
    for draft in drafts.iter_mut().rev() {
        let captured = draft.capture_backward(&studio, options.allow_unused_input);
        captured.map_err(|error| error.context(draft.callable.name()))?;
    }
    let mut held = Vec::new();
    let mut entries = Vec::new();
    for draft in drafts {
        let name = draft.callable.name().to_owned();
        let entry = draft.finish(&studio.pool, &mut held, label);
        entries.push(entry.map_err(|error| error.context(name))?);
    }
    Ok(Set {
        state: Mutex::new(SetState::new(entries.len())),
        home: device.current_stream(),
        pool: studio.pool,
        held: Arc::new(held),
        live_outputs: options.live_outputs,
        entries,
    })
}

/// Runs all callables, forward and backward, as they will be captured, on the stream of the captures.
fn warm_up(studio: &Studio<'_>, drafts: &[Draft], times: usize) -> Result<()> {
    let caller = studio.device.current_stream();
    studio.stream.wait_stream(&caller)?;
    {
        let _current = studio.stream.make_current();
        for draft in (0..times).flat_map(|_| drafts) {
            let results = draft.callable.call(&draft.inputs)?;
            let result_gradients = gradients_of_results(&results)?;
            draft.gradients(&results, &result_gradients)?;
        }
    }
    caller.wait_stream(&studio.stream)
}

/// Zeros, where a gradient flows from a result.
fn gradients_of_results(results: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
    let zeros = |result: &Tensor| Tensor::zeros(result.shape(), result.dtype(), result.device());
    results.iter().map(|result| result.requires_grad().then(|| zeros(result)).transpose()).collect()
}

impl Draft {
    fn new(callable: Box<dyn Callable>, samples: Vec<Tensor>, device: &Device) -> Result<Self> {
        if let Some(buffer) = callable.buffers().iter().find(|buffer| buffer.requires_grad()) {
            return Err(Error::invalid(format!(
                "the buffer {buffer:?} requires a gradient, which a graphed callable does not compute: make it a parameter"
            )));
        }
        for sample in &samples {
            if sample.device() != device || !sample.is_contiguous() {
                return Err(Error::invalid(format!(
                    "the sample {sample:?} must be contiguous, and on {device}: graphs read it where it is"
                )));
            }
        }
        let own = |sample: Tensor| {
            if sample.requires_grad() { sample.detach().requires_grad_() } else { Ok(sample.detach()) }
        };
        let inputs = samples.into_iter().map(own).collect::<Result<Vec<_>>>()?;
        let parameters = callable.parameters();
        let wants = |tensor: &Tensor| (is_grad_enabled() && tensor.requires_grad()).then(|| tensor.clone());
        let targets = inputs.iter().chain(&parameters).map(wants).collect();
        Ok(Self { callable, inputs, targets, results: Vec::new(), forward: None, backward: None })
    }

    /// The gradients of the targets; `None` in the place of an input that is no target, or that nothing depends on.
    fn gradients(&self, results: &[Tensor], from: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        let targets: Vec<Tensor> = self.targets.iter().flatten().cloned().collect();
        // What was saved stays until the capture has ended: gradients must not lie where the replay still reads.
        let options = BackwardOptions { retain_graph: true, ..BackwardOptions::default() };
        let mut found = gradients_with(results, from, &targets, options)?.into_iter();
        Ok(self.targets.iter().map(|target| target.as_ref().and_then(|_| found.next().flatten())).collect())
    }

    /// Captures the backward pass, if there is one, and frees what the forward pass saved for it.
    fn capture_backward(&mut self, studio: &Studio<'_>, allows_unused: bool) -> Result<()> {
        let result_gradients = gradients_of_results(&self.results)?;
        let has_targets = self.targets.iter().any(Option::is_some);
        if has_targets && result_gradients.iter().any(Option::is_some) {
            let (graph, gradients) = studio.capture(|| self.gradients(&self.results, &result_gradients))?;
            let unused = self
                .targets
                .iter()
                .zip(&gradients)
                .position(|(target, gradient)| target.is_some() && gradient.is_none());
            if let (Some(index), false) = (unused, allows_unused) {
                return Err(Error::invalid(format!(
                    "no result depends on input {index} (parameters counted behind the inputs), which requires a gradient: \
                     set `allow_unused_input` if that is meant"
                )));
            }
            self.backward = Some(DraftBackward { graph, result_gradients, gradients });
        }
        self.results.iter_mut().for_each(|result| *result = result.detach());
        Ok(())
    }

    fn finish(
        self,
        pool: &GraphPool,
        held: &mut Vec<thalweg_runtime::graph::HeldMemory>,
        label: Label,
    ) -> Result<Entry> {
        let forward = self.forward.expect("all forward passes are captured before the first is finished");
        let results = Outputs::adopt(self.results, &self.inputs, pool, label)?;
        held.extend(results.held);
        let backward = match self.backward {
            None => None,
            Some(DraftBackward { graph, result_gradients, gradients }) => {
                let is_computed = gradients.iter().map(Option::is_some).collect();
                let read: Vec<Tensor> = result_gradients.iter().flatten().cloned().collect();
                let gradients = gradients.into_iter().flatten().collect();
                let adopted = Outputs::adopt(gradients, &read, pool, label)?;
                held.extend(adopted.held);
                Some(BackwardGraph { graph, result_gradients, is_computed, gradients: adopted.outputs })
            }
        };
        Ok(Entry {
            was_training: self.callable.is_training(),
            parameters: self.callable.parameters(),
            callable: self.callable,
            inputs: self.inputs,
            forward,
            results: results.outputs,
            backward,
        })
    }
}
