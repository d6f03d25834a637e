//! Replaying graphed callables, in whatever order a program calls them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thalweg_runtime::graph::HeldMemory;
use thalweg_runtime::{Device, Error, Graph, GraphPool, Label, OutputHandle, Result, Stream};

use super::Callable;
use crate::autograd::{Backward, Gradients, is_grad_enabled, no_grad, record};
use crate::graph::outputs::{LiveOutputs, Outputs, clear, still_held};
use crate::tensor::Tensor;

/// Callables that were made together.
pub(super) struct Set {
    pub(super) entries: Vec<Entry>,
    pub(super) pool: GraphPool,
    /// The memory of all results and gradients. Whoever holds one keeps it.
    pub(super) held: Arc<Vec<HeldMemory>>,
    pub(super) live_outputs: LiveOutputs,
    /// The stream that was current when they were made, which the graphs' own inputs belong to.
    pub(super) home: Stream,
    pub(super) state: Mutex<SetState>,
}

/// One callable.
pub(super) struct Entry {
    pub(super) callable: Box<dyn Callable>,
    pub(super) was_training: bool,
    /// What the forward graph reads.
    pub(super) inputs: Vec<Tensor>,
    pub(super) parameters: Vec<Tensor>,
    pub(super) forward: Graph,
    pub(super) results: Outputs,
    pub(super) backward: Option<BackwardGraph>,
}

/// The backward pass of a callable.
pub(super) struct BackwardGraph {
    pub(super) graph: Graph,
    /// What it reads: the gradients of those results from which gradients flow.
    pub(super) result_gradients: Vec<Option<Tensor>>,
    /// Whether it computes a gradient for each input and parameter.
    pub(super) is_computed: Vec<bool>,
    pub(super) gradients: Outputs,
}

/// What was replayed when, and what is lent.
pub(super) struct SetState {
    replays: u64,
    forward_at: Vec<u64>,
    backward_at: Vec<u64>,
    results: Vec<Vec<OutputHandle>>,
    gradients: Vec<Vec<OutputHandle>>,
    /// Where the last replay ran.
    stream: Option<Stream>,
}

impl SetState {
    pub(super) fn new(count: usize) -> Self {
        let none = || (0..count).map(|_| Vec::new()).collect();
        let (forward_at, backward_at) = (vec![0; count], vec![0; count]);
        Self { replays: 0, forward_at, backward_at, results: none(), gradients: none(), stream: None }
    }

    /// Orders a stream behind the last replay: all replays share memory.
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

impl Set {
    pub(super) fn device(&self) -> &Device {
        self.home.device()
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

    fn state(&self) -> MutexGuard<'_, SetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replays the forward pass of a callable, and records it.
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
            return Err(Error::invalid(format!(
                "results of an earlier call ({}, {} in all) are still held, and this replay would overwrite them: drop or copy \
                 them first, or ask for `LiveOutputs::Clone`",
                first.label(),
                held.len()
            )));
        }
        for loans in &mut state.results[index..] {
            clear(loans, &stream)?;
        }
        for loans in &mut state.gradients {
            clear(loans, &stream)?;
        }
        no_grad(|| entry.inputs.iter().zip(inputs).try_for_each(|(own, given)| fill(own, Some(given))))?;
        self.stays_for(&stream, entry.inputs.iter());
        let lending = entry.results.lend(&self.pool, &stream, label);
        lending.loans.iter().for_each(|loan| loan.keep(self.held.clone()));
        entry.forward.replay()?;
        // What is held of them is known here: the pool need not refuse the next callable's replay.
        entry.forward.release_outputs();
        let mut results = no_grad(|| entry.results.results(&lending, &entry.inputs, |_| false))?;
        state.results[index] = lending.loans;
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
        if is_overwritten {
            return Err(Error::invalid(format!(
                "what the graphed callable '{}' saved for backward was overwritten by a later replay of it or of one that was \
                 made before it: run backward first, in the reverse order of the calls, or make one callable a call",
                entry.callable.name()
            )));
        }
        state.follow(&stream)?;
        for loans in &mut state.gradients[..=index] {
            clear(loans, &stream)?;
        }
        for (own, given) in graph.result_gradients.iter().zip(gradients) {
            own.as_ref().map_or(Ok(()), |own| fill(own, given.as_ref()))?;
        }
        self.stays_for(&stream, graph.result_gradients.iter().flatten());
        let label =
            state.results[index].first().map_or_else(|| Label::here("graphed_backward"), OutputHandle::label);
        let label = Label { operator: "graphed_backward", ..label };
        let lending = graph.gradients.lend(&self.pool, &stream, label);
        lending.loans.iter().for_each(|loan| loan.keep(self.held.clone()));
        graph.graph.replay()?;
        graph.graph.release_outputs();
        let read: Vec<Tensor> = graph.result_gradients.iter().flatten().cloned().collect();
        let mut computed = graph.gradients.results(&lending, &read, |_| false)?.into_iter();
        state.gradients[index] = lending.loans;
        let number = state.next();
        state.backward_at[index] = number;
        Ok(graph
            .is_computed
            .iter()
            .map(|&is_computed| is_computed.then(|| computed.next()).flatten())
            .collect())
    }

    /// The graphs' own inputs are used on another stream than their own.
    fn stays_for<'a>(&self, stream: &Stream, tensors: impl Iterator<Item = &'a Tensor>) {
        if *stream != self.home {
            tensors.for_each(|tensor| tensor.record_stream(stream));
        }
    }
}

impl Entry {
    /// Whether the inputs are like the samples.
    fn check(&self, inputs: &[Tensor]) -> Result<()> {
        let alike = |own: &Tensor, given: &Tensor| {
            (own.shape(), own.dtype(), own.device()) == (given.shape(), given.dtype(), given.device())
                && (own.requires_grad() || !given.requires_grad() || !is_grad_enabled())
        };
        if inputs.len() != self.inputs.len() {
            let (found, expected) = (inputs.len(), self.inputs.len());
            return Err(Error::invalid(format!("{found} inputs, but it was captured with {expected}")));
        }
        match self.inputs.iter().zip(inputs).find(|(own, given)| !alike(own, given)) {
            None => Ok(()),
            Some((own, given)) => Err(Error::invalid(format!(
                "the input {given:?} differs from the sample {own:?} that it was captured with: a graph has one shape and \
                 dtype for each input, and gradients where the sample requires one"
            ))),
        }
    }
}

/// Writes what is given to a tensor that a graph reads, unless it lies there already. What is not given is zero.
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

/// The node of a graphed call.
struct GraphedBackward {
    set: Arc<Set>,
    index: usize,
    /// Of the forward replay.
    number: u64,
}

impl Backward for GraphedBackward {
    fn name(&self) -> &'static str {
        "graphed_callable"
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        self.set.backward(self.index, self.number, gradients)
    }
}
