//! Replays of graphed callables, in any order in which a program calls them.
//!
//! This module and its parent depend on each other: a callable is replayed here.

use std::sync::Arc;

use thalweg_lock::{Mutex, MutexGuard};
use thalweg_runtime::graph::HeldMemory;
use thalweg_runtime::{
    Device, Error, Graph, GraphPool, Label, OutputHandle, Result, Stream, invalid, refuse, refuse_if,
};

use super::Callable;
use crate::autograd::{Backward, Gradients, is_grad_enabled, no_grad, record};
use crate::graph::outputs::{LiveOutputs, Outputs, clear, still_held};
use crate::tensor::Tensor;

/// Callables that were made together.
pub(super) struct CallableSet {
    pub(super) entries: Vec<CallableEntry>,
    pub(super) pool: GraphPool,
    /// The memory of all results and gradients, which each of them keeps alive.
    pub(super) held: Arc<Vec<HeldMemory>>,
    pub(super) live_outputs: LiveOutputs,
    /// The stream that was current when the callables were made; the memory of the graphs' own inputs belongs to it.
    pub(super) input_stream: Stream,
    pub(super) state: Mutex<ReplayState>,
}

/// A callable with its graphs.
pub(super) struct CallableEntry {
    pub(super) callable: Box<dyn Callable>,
    pub(super) was_training: bool,
    /// The inputs that the forward graph reads.
    pub(super) inputs: Vec<Tensor>,
    pub(super) parameters: Vec<Tensor>,
    pub(super) forward: Graph,
    pub(super) results: Outputs,
    pub(super) backward: Option<BackwardGraph>,
}

/// The backward pass of a callable.
pub(super) struct BackwardGraph {
    pub(super) graph: Graph,
    /// The gradients that the graph reads, for the results that require one.
    pub(super) result_gradients: Vec<Option<Tensor>>,
    /// A flag per input and parameter: whether the graph computes its gradient.
    pub(super) is_computed: Vec<bool>,
    pub(super) gradients: Outputs,
}

/// The order of the replays so far, and the handles of their outputs.
pub(super) struct ReplayState {
    replays: u64,
    forward_at: Vec<u64>,
    backward_at: Vec<u64>,
    results: Vec<Vec<OutputHandle>>,
    gradients: Vec<Vec<OutputHandle>>,
    /// The stream of the last replay.
    stream: Option<Stream>,
}

impl ReplayState {
    pub(super) fn new(count: usize) -> Self {
        let none = || (0..count).map(|_| Vec::new()).collect();
        let (forward_at, backward_at) = (vec![0; count], vec![0; count]);
        Self { replays: 0, forward_at, backward_at, results: none(), gradients: none(), stream: None }
    }

    /// Orders a stream after the last replay, since all replays share memory.
    fn follow(&mut self, stream: &Stream) -> Result<()> {
        if let Some(last) = self.stream.replace(stream.clone())
            && last != *stream
        {
            stream.wait_stream(&last)?;
        }
        Ok(())
    }

    fn next(&mut self) -> u64 {
        self.replays += 1;
        self.replays
    }
}

impl CallableSet {
    pub(super) fn device(&self) -> &Device {
        self.input_stream.device()
    }

    pub(super) fn pool(&self) -> &GraphPool {
        &self.pool
    }

    pub(super) fn callable(&self, index: usize) -> &dyn Callable {
        &*self.entries[index].callable
    }

    pub(super) fn was_training(&self, index: usize) -> bool {
        self.entries[index].was_training
    }

    fn state(&self) -> MutexGuard<'_, ReplayState> {
        self.state.lock()
    }

    /// Replays the forward pass of a callable, and records an autograd node.
    pub(super) fn forward(
        self: &Arc<Self>,
        index: usize,
        inputs: &[Tensor],
        label: Label,
    ) -> Result<Vec<Tensor>> {
        let entry = &self.entries[index];
        entry.check(inputs)?;
        let stream = self.device().current_stream();
        let mut state = self.state();
        state.follow(&stream)?;
        let held = still_held(state.results[index..].iter().flatten());
        if let (LiveOutputs::Refuse, Some(first)) = (self.live_outputs, held.first()) {
            refuse!(
                "results of an earlier call ({}, {} in all) are still held, and this replay would overwrite them: drop or copy \
                 them first, or ask for `LiveOutputs::Clone`",
                first.label(),
                held.len()
            );
        }
        for handles in &mut state.results[index..] {
            clear(handles, &stream)?;
        }
        for handles in &mut state.gradients {
            clear(handles, &stream)?;
        }
        no_grad(|| entry.inputs.iter().zip(inputs).try_for_each(|(own, given)| fill(own, Some(given))))?;
        self.record_use(&stream, entry.inputs.iter());
        let reconstructed = entry.results.reconstruct(&self.pool, &stream, label);
        reconstructed.handles.iter().for_each(|handle| handle.keep(self.held.clone()));
        entry.forward.replay()?;
        // The handles report which results are held, so the pool need not refuse the next callable's replay.
        entry.forward.release_outputs();
        let mut results = no_grad(|| entry.results.results(&reconstructed, &entry.inputs, |_| false))?;
        state.results[index] = reconstructed.handles;
        let number = state.next();
        state.forward_at[index] = number;
        drop(state);
        if entry.backward.is_some() && is_grad_enabled() {
            let node = GraphedBackward { set: self.clone(), index, number };
            let tensors: Vec<&Tensor> = inputs.iter().chain(&entry.parameters).collect();
            let differentiable: Vec<bool> = entry
                .backward
                .iter()
                .flat_map(|graph| &graph.result_gradients)
                .map(Option::is_some)
                .collect();
            let plain = results.clone();
            record(Box::new(node), &tensors, &mut results, stream);
            for ((result, plain), is_differentiable) in results.iter_mut().zip(plain).zip(differentiable) {
                if !is_differentiable {
                    *result = plain;
                }
            }
        }
        Ok(results)
    }

    /// Replays the backward pass that belongs to the forward replay of this number.
    fn backward(&self, index: usize, number: u64, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        let entry = &self.entries[index];
        let graph = entry.backward.as_ref().expect("recorded only where there is a backward graph");
        let stream = self.device().current_stream();
        let mut state = self.state();
        let is_overwritten = state.forward_at[..=index].iter().any(|&at| at > number)
            || state.backward_at[..index].iter().any(|&at| at > number);
        refuse_if!(
            is_overwritten,
            "the tensors that the graphed callable '{}' saved for backward were overwritten by a later replay of it or of one that was \
             made before it: run backward first, in the reverse order of the calls, or make one callable per call",
            entry.callable.name()
        );
        state.follow(&stream)?;
        for handles in &mut state.gradients[..=index] {
            clear(handles, &stream)?;
        }
        for (own, given) in graph.result_gradients.iter().zip(gradients) {
            own.as_ref().map_or(Ok(()), |own| fill(own, given.as_ref()))?;
        }
        self.record_use(&stream, graph.result_gradients.iter().flatten());
        let label =
            state.results[index].first().map_or_else(|| Label::here("graphed_backward"), OutputHandle::label);
        let label = Label { operator: "graphed_backward", ..label };
        let reconstructed = graph.gradients.reconstruct(&self.pool, &stream, label);
        reconstructed.handles.iter().for_each(|handle| handle.keep(self.held.clone()));
        graph.graph.replay()?;
        graph.graph.release_outputs();
        let read: Vec<Tensor> = graph.result_gradients.iter().flatten().cloned().collect();
        let mut computed = graph.gradients.results(&reconstructed, &read, |_| false)?.into_iter();
        state.gradients[index] = reconstructed.handles;
        let number = state.next();
        state.backward_at[index] = number;
        Ok(graph
            .is_computed
            .iter()
            .map(|&is_computed| is_computed.then(|| computed.next()).flatten())
            .collect())
    }

    /// Records that a stream uses the graphs' own inputs, unless they belong to it.
    fn record_use<'a>(&self, stream: &Stream, tensors: impl Iterator<Item = &'a Tensor>) {
        if *stream != self.input_stream {
            tensors.for_each(|tensor| tensor.record_stream(stream));
        }
    }
}

impl CallableEntry {
    /// Checks inputs against the samples: shapes, dtypes, device, and gradients.
    fn check(&self, inputs: &[Tensor]) -> Result<()> {
        let alike = |own: &Tensor, given: &Tensor| {
            (own.shape(), own.dtype(), own.device()) == (given.shape(), given.dtype(), given.device())
                && (own.requires_grad() || !given.requires_grad() || !is_grad_enabled())
        };
        if inputs.len() != self.inputs.len() {
            let (found, expected) = (inputs.len(), self.inputs.len());
            refuse!("{found} inputs, but it was captured with {expected}");
        }
        match self.inputs.iter().zip(inputs).find(|(own, given)| !alike(own, given)) {
            None => Ok(()),
            Some((own, given)) => Err(invalid!(
                "the input {given:?} differs from the sample {own:?} that it was captured with: a graph has one shape and \
                 dtype for each input, and gradients where the sample requires one"
            )),
        }
    }
}

/// Copies a tensor, or zeros if none is given, to a tensor that a graph reads, unless they are the same memory.
fn fill(own: &Tensor, given: Option<&Tensor>) -> Result<()> {
    match given {
        Some(given)
            if given.pointer() == own.pointer() && given.layout().strides() == own.layout().strides() =>
        {
            Ok(())
        }
        Some(given) => own.copy_(given),
        None => own.copy_(&Tensor::zeros(&[], own.dtype(), own.device())?),
    }
}

/// The autograd node of a call.
struct GraphedBackward {
    set: Arc<CallableSet>,
    index: usize,
    /// The number of the forward replay.
    number: u64,
}

impl Backward for GraphedBackward {
    fn name(&self) -> &'static str {
        "graphed_callable"
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        self.set.backward(self.index, self.number, gradients)
    }

    /// Returns `false`: a second derivative through a graphed callable is an error.
    fn is_recorded(&self) -> bool {
        false
    }
}
