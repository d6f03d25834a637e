//! [`Formula`]: a gradient as a function of tensors, for an operator whose kernel is not a loop with a derived one.
//!
//! ```text
//! Formula { inputs: &[0], outputs: &[], backward: |call| call.one(0, || call.gradient()?.mul(&call.saved(0)?)) }
//! ```
//!
//! The node keeps the tensors that the formula names, the other arguments, and shapes and dtypes of all tensors.

use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;
use thalweg_ir::{DType, Shape};
use thalweg_ops::schema::Schema;
use thalweg_runtime::{Device, Label, Result};

use super::saved::freed;
use super::{
    Backward, BackwardOptions, Gradients, Request, Saved, SavedPlace, gradients_with, no_grad, record,
};
use crate::argument::{Argument, Arguments, Value};
use crate::dispatch::{Call, Operator};
use crate::tensor::{Tensor, Tensors};

/// A gradient: the tensors that it reads, and its computation.
#[derive(Clone, Copy, Debug)]
pub struct Formula {
    /// The tensors of the call that it reads, by their index among the call's tensors.
    pub inputs: &'static [usize],
    /// The results that it reads, by their index.
    pub outputs: &'static [usize],
    /// Computes the gradient of each tensor of the call.
    pub backward: fn(&GradientCall<'_>) -> Result<Gradients>,
}

/// The operators whose gradient reads no tensor here, each with the input that PyTorch's gradient keeps. A second pass through their
/// nodes is refused, as in PyTorch.
const KEPT_IN_PYTORCH: [&str; 7] = [
    "avg_pool2d",
    "avg_pool3d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d",
    "_fft_r2c",
];

impl Formula {
    /// Runs a call, and records a node that computes this formula.
    pub(crate) fn record(&'static self, call: &Call<'_>) -> Result<Tensors> {
        let results = no_grad(|| call.redispatch())?;
        let mut results: Tensors = results.into_iter().map(|result| result.detach()).collect();
        if !results.iter().any(|result| result.dtype().is_differentiable()) {
            return Ok(results);
        }
        let node = FormulaNode {
            formula: self,
            operator: call.operator,
            arguments: call.arguments.iter().map(|argument| argument.to_value_without_tensors()).collect(),
            tensors: call.tensors.iter().map(|tensor| Input::of(tensor)).collect(),
            results: results.iter().map(|result| (result.shape().into(), result.dtype())).collect(),
            saved: self
                .inputs
                .iter()
                .filter_map(|&at| Some((at, call.tensors.get(at)?)))
                .map(|(at, tensor)| Ok((at, Saved::new(tensor)?)))
                .collect::<Result<_>>()?,
            saved_results: (self.outputs.iter())
                .map(|&at| Ok((at, Saved::result(&results[at], at)?)))
                .collect::<Result<_>>()?,
            device: call.device.clone(),
            label: call.label,
            is_spent: AtomicBool::new(false),
        };
        record(Box::new(node), call.tensors, &mut results, call.device.current_stream());
        Ok(results)
    }
}

/// The shape and dtype of a tensor of a call, and whether its gradient is required.
struct Input {
    shape: Shape,
    dtype: DType,
    is_wanted: bool,
}

impl Input {
    fn of(tensor: &Tensor) -> Self {
        let is_wanted = tensor.requires_grad() && tensor.dtype().is_differentiable();
        Self { shape: tensor.shape().into(), dtype: tensor.dtype(), is_wanted }
    }
}

struct FormulaNode {
    formula: &'static Formula,
    operator: &'static Operator,
    arguments: SmallVec<[Value; 6]>,
    tensors: SmallVec<[Input; 4]>,
    results: SmallVec<[(Shape, DType); 2]>,
    saved: SmallVec<[(usize, Saved); 4]>,
    saved_results: SmallVec<[(usize, Saved); 2]>,
    device: Device,
    label: Label,
    /// Whether a pass that did not retain the graph has run the node.
    is_spent: AtomicBool,
}

impl Backward for FormulaNode {
    fn name(&self) -> &'static str {
        self.operator.base_name()
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        self.backward_for(gradients, &Request::default())
    }

    fn backward_for(&self, gradients: &[Option<Tensor>], request: &Request) -> Result<Gradients> {
        if self.is_spent.load(Ordering::Relaxed) && KEPT_IN_PYTORCH.contains(&self.name()) {
            return Err(freed());
        }
        (self.formula.backward)(&GradientCall { node: self, gradients, request })
    }

    fn release(&self) {
        self.is_spent.store(true, Ordering::Relaxed);
        self.saved.iter().chain(&self.saved_results).for_each(|(_, saved)| saved.release());
    }

    fn saved(&self) -> Vec<SavedPlace<'_>> {
        let schema = self.operator.schema();
        let inputs = self.saved.iter().map(|(at, saved)| SavedPlace::input(schema, *at, saved));
        inputs
            .chain(self.saved_results.iter().map(|(at, saved)| SavedPlace::result(schema, *at, saved)))
            .collect()
    }
}

/// A call whose gradient is computed: the gradients of its results, the saved tensors, and its arguments without tensors.
#[derive(Clone, Copy)]
pub struct GradientCall<'a> {
    node: &'a FormulaNode,
    gradients: &'a [Option<Tensor>],
    request: &'a Request,
}

impl Arguments for GradientCall<'_> {
    fn schema(&self) -> &Schema {
        self.node.operator.schema()
    }

    fn argument(&self, place: usize) -> Argument<'_> {
        self.node.arguments[place].as_argument()
    }
}

impl GradientCall<'_> {
    /// Returns the gradient of the first result; zeros if it has none.
    pub fn gradient(&self) -> Result<Tensor> {
        self.gradient_of(0)
    }

    /// Returns the gradient of a result; zeros if it has none.
    pub fn gradient_of(&self, result: usize) -> Result<Tensor> {
        match &self.gradients[result] {
            Some(gradient) => Ok(gradient.clone()),
            None => {
                let (shape, dtype) = &self.node.results[result];
                Tensor::zeros(shape, *dtype, &self.node.device)
            }
        }
    }

    /// Returns whether a result has a gradient.
    pub fn has_gradient(&self, result: usize) -> bool {
        self.gradients[result].is_some()
    }

    /// Returns a tensor of the call that the formula names, by its index among the call's tensors.
    ///
    /// # Panics
    /// Panics if the formula does not name the tensor.
    pub fn saved(&self, tensor: usize) -> Result<Tensor> {
        let (_, saved) =
            self.node.saved.iter().find(|(at, _)| *at == tensor).expect("a saved tensor is named");
        saved.get()
    }

    /// Returns a tensor of the call that the formula names, as memory for its own gradient: if this pass frees it and nothing
    /// else holds its memory, so that a kernel may overwrite the elements that it reads. Call this before [`saved`](Self::saved)
    /// for the same tensor.
    pub fn reusable_memory(&self, tensor: usize) -> Option<Tensor> {
        let mut saved = self.node.saved.iter().filter(|_| self.request.is_last());
        saved.find(|(at, _)| *at == tensor)?.1.reusable_memory()
    }

    /// Returns a result that the formula names.
    ///
    /// # Panics
    /// Panics if the formula does not name the result.
    pub fn result(&self, result: usize) -> Result<Tensor> {
        let mut saved = self.node.saved_results.iter();
        saved.find(|(at, _)| *at == result).expect("a saved result is named").1.get()
    }

    /// Returns the number of tensors of the call.
    pub fn tensor_count(&self) -> usize {
        self.node.tensors.len()
    }

    /// Returns the shape of a tensor of the call.
    pub fn shape(&self, tensor: usize) -> &[usize] {
        &self.node.tensors[tensor].shape
    }

    /// Returns the dtype of a tensor of the call.
    pub fn dtype_of(&self, tensor: usize) -> DType {
        self.node.tensors[tensor].dtype
    }

    /// Returns whether the gradient of a tensor of the call is required.
    pub fn wants(&self, tensor: usize) -> bool {
        self.node.tensors.get(tensor).is_some_and(|input| input.is_wanted) && self.request.is_asked(tensor)
    }

    /// Returns the request of the backward pass.
    pub fn request(&self) -> &Request {
        self.request
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.node.device
    }

    /// Returns the operator that was called, and the line that called it.
    pub fn label(&self) -> Label {
        self.node.label
    }

    /// Returns the gradients of a call of which only one tensor has a gradient; it is computed if it is required.
    pub fn one(&self, tensor: usize, gradient: impl FnOnce() -> Result<Tensor>) -> Result<Gradients> {
        let mut gradients = Gradients::from_elem(None, self.tensor_count());
        if self.wants(tensor) {
            gradients[tensor] = Some(gradient()?);
        }
        Ok(gradients)
    }

    /// Returns the gradients of the call in a form that can be differentiated: operators compute the results of `outputs` again from
    /// the call's tensors `inputs`, and their gradients are returned.
    pub fn recorded(&self, outputs: &[Tensor], inputs: &[Tensor]) -> Result<Gradients> {
        let of_outputs =
            (0..outputs.len()).map(|at| self.gradient_of(at).map(Some)).collect::<Result<Vec<_>>>()?;
        let wanted = (inputs.iter().enumerate()).filter(|&(at, _)| self.wants(at));
        let wanted: Vec<Tensor> = wanted.map(|(_, input)| input.clone()).collect();
        let options = BackwardOptions { create_graph: true, ..BackwardOptions::default() };
        let mut found = gradients_with(outputs, &of_outputs, &wanted, options)?.into_iter();
        self.each(|_| Ok(found.next().flatten()))
    }

    /// Returns the gradients of all tensors of the call, each computed if it is required; the function returns `None` for a
    /// tensor without a gradient.
    pub fn each(&self, mut gradient: impl FnMut(usize) -> Result<Option<Tensor>>) -> Result<Gradients> {
        (0..self.tensor_count()).map(|at| if self.wants(at) { gradient(at) } else { Ok(None) }).collect()
    }
}

/// Registers the formula of a program's own operator: its `Autograd` kernel records it.
pub fn register_formula(
    operator: &'static Operator,
    formula: &'static Formula,
) -> crate::dispatch::Registration {
    let kernel = std::sync::Arc::new(move |call: &Call<'_>| formula.record(call));
    operator.register(crate::dispatch::DispatchKey::Autograd, kernel)
}
