//! The making of graphed callables: checks, warm-up, and the captures in their order.

use std::sync::Arc;

use thalweg_lock::Mutex;
use thalweg_runtime::graph::OverwritePolicy;
use thalweg_runtime::{
    CaptureMode, CaptureOptions, Device, Error, Graph, GraphPool, Label, Result, Stream, refuse, refuse_if,
};

use super::replay::{BackwardGraph, CallableEntry, CallableSet, ReplayState};
use super::{Callable, CallableOptions};
use crate::autograd::{BackwardOptions, gradients_with, is_grad_enabled};
use crate::graph::outputs::Outputs;
use crate::tensor::Tensor;

/// A callable while its graphs are captured.
struct Draft {
    callable: Box<dyn Callable>,
    inputs: Vec<Tensor>,
    /// The inputs and then the parameters; `None` for one that no gradient flows to.
    targets: Vec<Option<Tensor>>,
    results: Vec<Tensor>,
    forward: Option<Graph>,
    backward: Option<DraftBackward>,
}

/// The captured backward pass of a [`Draft`].
struct DraftBackward {
    graph: Graph,
    result_gradients: Vec<Option<Tensor>>,
    gradients: Vec<Option<Tensor>>,
}

/// The device, stream, pool and mode of the captures.
struct CaptureSetup<'a> {
    device: &'a Device,
    stream: Stream,
    pool: GraphPool,
    mode: CaptureMode,
}

impl CaptureSetup<'_> {
    fn capture<T>(&self, region: impl FnOnce() -> Result<T>) -> Result<(Graph, T)> {
        let (pool, stream) = (Some(self.pool.clone()), Some(self.stream.clone()));
        Graph::capture(
            self.device,
            CaptureOptions { pool, mode: self.mode, stream, ..CaptureOptions::default() },
            || {
                // This capture may use the memory of the callables' other graphs: `CallableSet` checks the order of the replays.
                self.pool.vouch(&self.stream);
                region()
            },
        )
    }
}

/// Warms the callables up and captures them.
pub(super) fn record(
    device: &Device,
    callables: Vec<Box<dyn Callable>>,
    samples: Vec<Vec<Tensor>>,
    options: &CallableOptions,
    label: Label,
) -> Result<CallableSet> {
    if callables.len() != samples.len() {
        let (callables, samples) = (callables.len(), samples.len());
        refuse!("{callables} callables, but samples for {samples}: give one list each");
    }
    let pool =
        options.pool.clone().unwrap_or_else(|| GraphPool::with_policy(device, OverwritePolicy::Unchecked));
    let setup = CaptureSetup { device, stream: Stream::new(device)?, pool, mode: options.mode };
    let mut drafts = callables
        .into_iter()
        .zip(samples)
        .map(|(callable, samples)| {
            let name = callable.name().to_owned();
            Draft::new(callable, samples, device).map_err(|error| error.context(name))
        })
        .collect::<Result<Vec<_>>>()?;
    warm_up(&setup, &drafts, options.warm_up)?;
    for draft in &mut drafts {
        let named = |error: Error| error.context(draft.callable.name());
        let (graph, results) = setup.capture(|| draft.callable.call(&draft.inputs)).map_err(named)?;
        (draft.forward, draft.results) = (Some(graph), results);
    }
    for draft in drafts.iter_mut().rev() {
        let captured = draft.capture_backward(&setup, options.allow_unused_input);
        captured.map_err(|error| error.context(draft.callable.name()))?;
    }
    let mut held = Vec::new();
    let mut entries = Vec::new();
    for draft in drafts {
        let name = draft.callable.name().to_owned();
        let entry = draft.finish(&setup.pool, &mut held, label);
        entries.push(entry.map_err(|error| error.context(name))?);
    }
    Ok(CallableSet {
        state: Mutex::new(ReplayState::new(entries.len())),
        input_stream: device.current_stream(),
        pool: setup.pool,
        held: Arc::new(held),
        live_outputs: options.live_outputs,
        entries,
    })
}

/// Runs all callables, forward and backward, on the stream of the captures.
fn warm_up(setup: &CaptureSetup<'_>, drafts: &[Draft], times: usize) -> Result<()> {
    let caller = setup.device.current_stream();
    setup.stream.wait_stream(&caller)?;
    {
        let _current = setup.stream.make_current();
        for draft in (0..times).flat_map(|_| drafts) {
            let results = draft.callable.call(&draft.inputs)?;
            let result_gradients = gradients_of_results(&results)?;
            draft.gradients(&results, &result_gradients)?;
        }
    }
    caller.wait_stream(&setup.stream)
}

/// Returns whether a tensor is row-major in some order of its dimensions, so that no two elements overlap.
fn has_each_element_once(tensor: &Tensor) -> bool {
    let mut order: Vec<usize> = (0..tensor.rank()).collect();
    order.sort_by_key(|&dim| std::cmp::Reverse((tensor.layout().strides()[dim], tensor.shape()[dim])));
    tensor.detach().permute(&order).is_ok_and(|ordered| ordered.is_contiguous())
}

/// Returns a gradient of zeros for each result that requires one.
fn gradients_of_results(results: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
    let zeros = |result: &Tensor| Tensor::zeros(result.shape(), result.dtype(), result.device());
    results.iter().map(|result| result.requires_grad().then(|| zeros(result)).transpose()).collect()
}

impl Draft {
    fn new(callable: Box<dyn Callable>, samples: Vec<Tensor>, device: &Device) -> Result<Self> {
        if let Some(buffer) = callable.buffers().iter().find(|buffer| buffer.requires_grad()) {
            refuse!(
                "the buffer {buffer:?} requires a gradient, which a graphed callable does not compute: make it a parameter"
            );
        }
        for sample in &samples {
            refuse_if!(
                sample.device() != device || !has_each_element_once(sample),
                "the sample {sample:?} must be on {device}, with a place of its own for each element: graphs read it where it is, and \
                 calls write it"
            );
        }
        let own = |sample: Tensor| {
            if sample.requires_grad() { sample.detach().requires_grad_() } else { Ok(sample.detach()) }
        };
        let inputs = samples.into_iter().map(own).collect::<Result<Vec<_>>>()?;
        let parameters = callable.parameters();
        refuse_if!(
            parameters.iter().any(Tensor::has_hooks),
            "a parameter has hooks, which the capture would make part of the graph: register them behind \
             `make_graphed_callables`, and each call of the callable runs them"
        );
        let wants = |tensor: &Tensor| (is_grad_enabled() && tensor.requires_grad()).then(|| tensor.clone());
        let targets = inputs.iter().chain(&parameters).map(wants).collect();
        Ok(Self { callable, inputs, targets, results: Vec::new(), forward: None, backward: None })
    }

    /// Returns the gradients of the targets; `None` for an input that is not a target, or that no result depends on.
    fn gradients(&self, results: &[Tensor], from: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        let targets: Vec<Tensor> = self.targets.iter().flatten().cloned().collect();
        // Saved tensors are kept until the capture has ended: gradients must not be allocated in memory that the replay still
        // reads.
        let options = BackwardOptions { retain_graph: true, ..BackwardOptions::default() };
        let mut found = gradients_with(results, from, &targets, options)?.into_iter();
        Ok(self.targets.iter().map(|target| target.as_ref().and_then(|_| found.next().flatten())).collect())
    }

    /// Captures the backward pass, if there is one, and frees the tensors that the forward pass saved for it.
    fn capture_backward(&mut self, setup: &CaptureSetup<'_>, allows_unused: bool) -> Result<()> {
        let result_gradients = gradients_of_results(&self.results)?;
        let has_targets = self.targets.iter().any(Option::is_some);
        if has_targets && result_gradients.iter().any(Option::is_some) {
            let (graph, gradients) = setup.capture(|| self.gradients(&self.results, &result_gradients))?;
            let unused = self
                .targets
                .iter()
                .zip(&gradients)
                .position(|(target, gradient)| target.is_some() && gradient.is_none());
            if let (Some(index), false) = (unused, allows_unused) {
                refuse!(
                    "no result depends on input {index} (parameters counted behind the inputs), which requires a gradient: \
                     set `allow_unused_input` if that is meant"
                );
            }
            self.backward = Some(DraftBackward { graph, result_gradients, gradients });
        }
        self.results.iter_mut().for_each(|result| *result = result.detach());
        Ok(())
    }

    /// Takes over the memory of the results and gradients.
    fn finish(
        self,
        pool: &GraphPool,
        held: &mut Vec<thalweg_runtime::graph::HeldMemory>,
        label: Label,
    ) -> Result<CallableEntry> {
        let forward = self.forward.expect("all forward passes are captured before the first is finished");
        let (results, held_results) = Outputs::take_over(self.results, &self.inputs, pool, label)?;
        held.extend(held_results);
        let backward = match self.backward {
            None => None,
            Some(DraftBackward { graph, result_gradients, gradients }) => {
                let is_computed = gradients.iter().map(Option::is_some).collect();
                let read: Vec<Tensor> = result_gradients.iter().flatten().cloned().collect();
                let gradients = gradients.into_iter().flatten().collect();
                let (gradients, held_gradients) = Outputs::take_over(gradients, &read, pool, label)?;
                held.extend(held_gradients);
                Some(BackwardGraph { graph, result_gradients, is_computed, gradients })
            }
        };
        Ok(CallableEntry {
            was_training: self.callable.is_training(),
            parameters: self.callable.parameters(),
            callable: self.callable,
            inputs: self.inputs,
            forward,
            results,
            backward,
        })
    }
}
