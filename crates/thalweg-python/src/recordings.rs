//! Captured functions that record gradients: the backward pass of each call is a graph as well.

use std::sync::Arc;
use std::thread::{self, ThreadId};

use pyo3::prelude::*;
use thalweg::tensor::compile::compiled;
use thalweg::tensor::graph::tree::{
    Differentiable, ForwardPass, FunctionId, FunctionOptions, RunBackward, attach, check_kept, holders,
    record_forward,
};
use thalweg::{Device, Error, Tensor};
use thalweg_lock::Mutex;

use crate::handle::{Held, PyTensor};
use crate::trees;

/// The calls of one kind that record gradients: the tensors that gradients flow to, and the graphs of backward passes.
#[pyclass(frozen)]
pub struct _Recording(pub Arc<Recording>);

/// The state of a [`_Recording`], which the nodes of its calls share.
pub struct Recording {
    pub differentiable: Differentiable,
    device: Device,
    /// The thread whose manager has the graphs, and the number of times that its managers had been dropped.
    owner: (ThreadId, u64),
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The pass that the last run of the function recorded, until the call has taken it.
    made: Option<Arc<ForwardPass>>,
    /// The pass of the last graph.
    captured: Option<Arc<ForwardPass>>,
    /// The backward passes, by the results that have a gradient.
    backwards: Vec<(Vec<bool>, Arc<BackwardGraph>)>,
}

/// A backward pass as a function of a manager.
struct BackwardGraph {
    function: FunctionId,
    call: Arc<Mutex<BackwardCall>>,
}

/// The pass that a backward graph computes the gradients of, and which of them there are.
#[derive(Default)]
struct BackwardCall {
    pass: Option<Arc<ForwardPass>>,
    is_computed: Vec<bool>,
}

#[pymethods]
impl _Recording {
    /// Returns the recording of calls with gradients for these inputs and leaves.
    #[new]
    fn new(
        inputs: Vec<usize>,
        leaves: Vec<Bound<'_, PyTensor>>,
        lasting: Vec<Bound<'_, PyTensor>>,
        sample: &Bound<'_, PyTensor>,
    ) -> Self {
        let inner = |tensors: Vec<Bound<'_, PyTensor>>| tensors.iter().map(|one| one.tensor()).collect();
        let differentiable = Differentiable { inputs, leaves: inner(leaves), lasting: inner(lasting) };
        let device = sample.tensor().device().clone();
        let owner = (thread::current().id(), trees::drops());
        Self(Arc::new(Recording { differentiable, device, owner, state: Mutex::default() }))
    }
}

impl Recording {
    /// Runs the function, and keeps its nodes for [`attach`](Self::attach).
    pub fn run(
        &self,
        inputs: &[Tensor],
        function: impl FnOnce(&[Tensor]) -> thalweg::Result<Vec<Tensor>>,
    ) -> thalweg::Result<Vec<Tensor>> {
        let before = holders(inputs);
        let (outputs, pass) = compiled(|| record_forward(inputs, &self.differentiable, function))?;
        check_kept(inputs, &before)?;
        self.state.lock().made = Some(pass);
        Ok(outputs)
    }

    /// Makes the results of a call part of the caller's graph.
    pub fn attach(self: &Arc<Self>, given: &[Tensor], outputs: Vec<Tensor>) -> thalweg::Result<Vec<Tensor>> {
        let pass = {
            let mut state = self.state.lock();
            let made = state.made.take();
            let is_graph = |pass: &Arc<ForwardPass>| trees::records_on(&self.device, pass.stream());
            if let Some(made) = made.clone().filter(is_graph) {
                state.captured = Some(made);
            }
            made.or_else(|| state.captured.clone())
        };
        let pass = pass.ok_or_else(|| Error::invalid("a graph was replayed before its function ran"))?;
        let recording = self.clone();
        let run: Arc<RunBackward> =
            Arc::new(move |pass, saved, gradients| recording.backward(pass, saved, gradients));
        attach(&pass, given, &self.differentiable, outputs, run, trees::pending())
    }

    /// Computes gradients. It replays a graph if this thread's manager captured the pass and nothing else is being captured.
    fn backward(
        &self,
        pass: &Arc<ForwardPass>,
        saved: Vec<Tensor>,
        gradients: &[Option<Tensor>],
    ) -> thalweg::Result<Vec<Option<Tensor>>> {
        let is_here = (thread::current().id(), trees::drops()) == self.owner;
        if !is_here || !trees::is_free(&self.device) || !trees::records_on(&self.device, pass.stream()) {
            return pass.backward(saved, gradients);
        }
        let graph = self.graph_for(gradients)?;
        graph.call.lock().pass = Some(pass.clone());
        let inputs = pass.inputs_of_backward(saved, gradients);
        let computed = trees::call_function(&self.device, graph.function, inputs);
        let mut call = graph.call.lock();
        call.pass = None;
        let mut computed = computed?.into_iter();
        Ok(call
            .is_computed
            .iter()
            .map(|&is_computed| is_computed.then(|| computed.next()).flatten())
            .collect())
    }

    /// Returns the backward graph for the results that have a gradient.
    fn graph_for(&self, gradients: &[Option<Tensor>]) -> thalweg::Result<Arc<BackwardGraph>> {
        let is_given: Vec<bool> = gradients.iter().map(Option::is_some).collect();
        let known = self
            .state
            .lock()
            .backwards
            .iter()
            .find(|(of, _)| *of == is_given)
            .map(|(_, graph)| graph.clone());
        if let Some(known) = known {
            return Ok(known);
        }
        let call = Arc::new(Mutex::new(BackwardCall::default()));
        let (current, given) = (call.clone(), is_given.clone());
        let body = move |inputs: &[Tensor]| {
            let pass = current.lock().pass.clone();
            let pass = pass.ok_or_else(|| Error::invalid("a backward graph runs in a backward pass only"))?;
            let gradients = pass.backward_of(inputs, &given)?;
            current.lock().is_computed = gradients.iter().map(Option::is_some).collect();
            Ok(gradients.into_iter().flatten().collect())
        };
        let function = trees::register_function(&self.device, "backward", FunctionOptions::default(), body)?;
        let graph = Arc::new(BackwardGraph { function, call });
        self.state.lock().backwards.push((is_given, graph.clone()));
        Ok(graph)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let backwards = std::mem::take(&mut self.state.lock().backwards);
        for (_, graph) in backwards {
            trees::unregister_later(&self.device, graph.function, self.owner);
        }
    }
}

/// Adds the class.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<_Recording>()
}
