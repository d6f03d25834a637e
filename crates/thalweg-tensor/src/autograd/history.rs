//! A tensor in the graph: whether gradients flow to it, and which node it is a result of.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use thalweg_derive::in_call;
use thalweg_lock::Mutex;
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::leaf::Accumulate;
use super::meta::{AutogradMeta, ViewOf};
use super::redirected::redirected_edge;
use super::region::region_edge;
use super::{Edge, Node, is_grad_enabled, is_inference_mode_enabled};
use crate::tensor::Tensor;

impl Tensor {
    /// Returns whether gradients flow to the tensor.
    pub fn requires_grad(&self) -> bool {
        let meta = &self.0.autograd;
        if meta.base().is_some() {
            _ = self.edge();
        }
        meta.requires_grad.load(Ordering::Acquire)
    }

    /// Returns a view as an independent tensor, with its history.
    pub(crate) fn without_base(&self) -> Self {
        match self.edge() {
            Some(edge) => self.with_autograd(AutogradMeta::leaf(false).with_edge(edge)),
            None => self.clone(),
        }
    }

    /// Returns whether the tensor is a leaf: not the result of an operator that recorded itself.
    pub fn is_leaf(&self) -> bool {
        self.edge().is_none()
    }

    /// Returns PyTorch's name of the node that the tensor is the result of, for messages; empty for a leaf.
    pub fn gradient_name(&self) -> &'static str {
        self.edge().map_or("", |edge| edge.node.title())
    }

    /// Makes the tensor require a gradient, in place (`torch.Tensor.requires_grad_`), and returns the tensor itself.
    /// Floating-point tensors only. Does nothing for the result of a recorded operator, which requires one already.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] for another dtype.
    #[track_caller]
    pub fn requires_grad_(&self) -> Result<Self> {
        self.set_requires_grad(true)?;
        Ok(self.clone())
    }

    /// Sets whether the tensor requires a gradient (`requires_grad` of PyTorch).
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if `requires_grad` is set for a tensor that is not floating-point, or for an inference
    /// tensor outside inference mode; or if it is unset for a tensor that is not a leaf: use [`Tensor::detach`] for a tensor
    /// outside the graph.
    #[in_call("requires_grad", &[self])]
    pub fn set_requires_grad(&self, requires_grad: bool) -> Result<()> {
        refuse_if!(
            requires_grad && !self.dtype().is_differentiable(),
            "only floating-point and complex tensors have gradients, this one is {}",
            self.dtype()
        );
        refuse_if!(
            requires_grad && self.is_inference() && !is_inference_mode_enabled(),
            "Setting requires_grad=True on inference tensor outside InferenceMode is not allowed."
        );
        if self.is_leaf() {
            self.0.autograd.requires_grad.store(requires_grad, Ordering::Release);
        } else if !requires_grad {
            refuse!(
                "it is the result of an operator, and only a leaf can be taken out of the graph; use `detach`"
            );
        }
        Ok(())
    }

    /// Returns this tensor over the memory of another one, with the dtype and layout of that (`x.data = y` of PyTorch). It has this
    /// tensor's place in the graph: history, gradient and hooks. The gradient remains even if it does not fit the new memory.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if this tensor requires a gradient, and tensors of the new dtype have none.
    pub fn with_data(&self, data: &Self) -> Result<Self> {
        let edge = self.edge();
        if self.requires_grad() && !data.dtype().is_differentiable() {
            return Err(Error::invalid(format!(
                "data set to a tensor that requires gradients must be floating point or complex dtype, not {}",
                data.dtype()
            )));
        }
        let fits =
            self.shape() == data.shape() && self.dtype() == data.dtype() && self.device() == data.device();
        let moved = data.detach().with_autograd(self.0.autograd.moved(edge, fits));
        moved.0.autograd.kept().set_leaf(&moved);
        Ok(moved)
    }

    /// Returns this tensor outside the graph, with its gradient and hooks (`torch.Tensor.detach_`).
    #[must_use]
    pub fn taken_out(&self) -> Self {
        let autograd = self.0.autograd.moved(None, false);
        autograd.requires_grad.store(false, Ordering::Release);
        let taken = self.with_autograd(autograd);
        taken.0.autograd.kept().set_leaf(&taken);
        taken
    }

    /// Returns the edge that this tensor's gradient flows to: its node, or the accumulator of a leaf. `None` if it requires none.
    pub fn gradient_edge(&self) -> Option<Edge> {
        let meta = &self.0.autograd;
        if let Some(edge) = self.edge() {
            return Some(edge);
        }
        if !meta.requires_grad.load(Ordering::Acquire) {
            return None;
        }
        if let Some(edge) = redirected_edge(self) {
            return Some(edge);
        }
        let slot = meta.accumulator.get_or_init(Mutex::default);
        let mut slot = slot.lock();
        if let Some(node) = slot.upgrade() {
            return Some(Edge { node, input: 0 });
        }
        let accumulate = Accumulate::new(meta.kept().clone(), self.layout());
        let node = Node::accumulator(Box::new(accumulate), meta.kept(), self.device().current_stream());
        meta.kept().set_leaf(self);
        *slot = Arc::downgrade(&node);
        Some(Edge { node, input: 0 })
    }

    /// Returns the edge to the node that the tensor is a result of. A view whose base was written since becomes a part of the
    /// base's new value.
    fn edge(&self) -> Option<Edge> {
        let meta = &self.0.autograd;
        let mut history = meta.history();
        let Some(base) = meta.base() else { return history.edge.clone() };
        let mut former = None;
        let is_own_leaf = history.edge.is_none() && meta.requires_grad.load(Ordering::Acquire);
        let writes = base.0.autograd.writes.load(Ordering::Acquire);
        if history.writes_of_base != writes && !is_own_leaf {
            let edge = base.gradient_edge().map(|edge| region_edge(self, base, edge));
            former = std::mem::replace(&mut history.edge, edge);
            meta.retain_still(former.as_ref(), history.edge.as_ref());
            history.writes_of_base = writes;
            meta.requires_grad.store(history.edge.is_some(), Ordering::Release);
        }
        let edge = history.edge.clone();
        // A node may hold values with a `Drop` of their own, so it is dropped after the lock is released.
        drop(history);
        drop(former);
        edge
    }

    /// Gives the tensor the history of a view of itself, after it has become that view. Other views keep their histories: nothing
    /// was written.
    pub(crate) fn take_history(&self, view: &Self) {
        if let Some(edge) = view.edge() {
            let former = self.0.autograd.history().edge.replace(edge.clone());
            self.0.autograd.retain_still(former.as_ref(), Some(&edge));
        }
    }

    /// Makes the tensor the result of a node that has written it in place.
    pub fn set_history(&self, edge: Edge) {
        let meta = &self.0.autograd;
        let former = meta.history().edge.replace(edge.clone());
        meta.retain_still(former.as_ref(), Some(&edge));
        meta.requires_grad.store(true, Ordering::Release);
        meta.writes.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns whether autograd records a write in place, whose source may require a gradient.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`](thalweg_runtime::Error::is_invalid_argument) if the tensor is a leaf that requires a gradient or a view
    /// of one, if it is a view whose base autograd does not know, or if it is an inference tensor outside inference mode.
    pub(crate) fn is_write_recorded(&self, source_requires_grad: bool) -> Result<bool> {
        self.check_inference_write()?;
        let refused = |why: &str| Err(invalid!("{self:?} {why}"));
        if !is_grad_enabled() {
            return Ok(false);
        }
        let view_of = self.0.autograd.view_of();
        let base = view_of.and_then(ViewOf::base);
        let unrecorded = match view_of {
            Some(ViewOf::Unrecorded { of_required }) => Some(*of_required),
            _ => None,
        };
        let wanted = source_requires_grad
            || self.requires_grad()
            || base.is_some_and(Self::requires_grad)
            || unrecorded == Some(true);
        if !wanted || !self.dtype().is_differentiable() {
            return Ok(false);
        }
        if let Some(why) = self.refusal_of_view() {
            return refused(&why);
        }
        // The base of a view does not require a gradient if the view was made from a leaf that is itself a view and does.
        let is_required = |tensor: &Self| tensor.requires_grad() || self.requires_grad();
        for (tensor, which) in [(Some(self), "a leaf Variable"), (base, "a view of a leaf Variable")] {
            if tensor.is_some_and(|tensor| tensor.is_leaf() && is_required(tensor)) {
                return refused(&format!(
                    "cannot be written in place: {which} that requires grad is being used in an in-place operation. Do it inside \
                     `no_grad`"
                ));
            }
        }
        if unrecorded.is_some() {
            return refused(
                "is a view that was made inside `no_grad` or inference mode, so a write that gradients flow through cannot be recorded: \
                 A view was created in no_grad mode and is being modified inplace with grad mode enabled. Make the view outside, or \
                 write inside `no_grad`",
            );
        }
        Ok(true)
    }

    /// Returns PyTorch's message about a write to a view whose writes cannot be recorded: one of several views that one operator returned, or
    /// the result of a program's own function that shares the memory of an input. `None` for other tensors.
    fn refusal_of_view(&self) -> Option<String> {
        let view_of = self.0.autograd.view_of()?;
        if !matches!(view_of, ViewOf::OneOfMany(_) | ViewOf::Function) {
            return None;
        }
        let edge = self.gradient_edge();
        let which = edge.as_ref().map_or_else(
            || "A view".to_owned(),
            |edge| format!("Output {} of {} is a view and", edge.place(), edge.node().title()),
        );
        let is_one_of_many = matches!(view_of, ViewOf::OneOfMany(_));
        let why = if is_one_of_many || edge.is_some_and(|edge| edge.node().output_count() > 1) {
            "This view is the output of a function that returns multiple views. Such functions do not allow the output views to be modified \
             inplace. You should replace the inplace operation by an out-of-place one."
        } else {
            "This view was created inside a custom Function (or because an input was returned as-is) and the autograd logic to handle \
             view+inplace would override the custom backward associated with the custom Function, leading to incorrect gradients. This \
             behavior is forbidden. You can fix this by cloning the output of the custom Function."
        };
        Some(format!("cannot be written in place: {which} is being modified inplace. {why}"))
    }
}
