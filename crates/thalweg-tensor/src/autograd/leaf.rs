//! The gradient that a tensor keeps, and the node of a leaf, which accumulates there.

use std::any::Any;
use std::panic::Location;
use std::sync::{Arc, OnceLock, Weak};

use thalweg_ir::{Layout, contiguous_strides, inverse_order};
use thalweg_lock::Mutex;
use thalweg_runtime::{Error, Result, refuse_if};

use super::hook_list::HookList;
use super::is_grad_enabled;
use super::node::{Backward, Gradients};
use crate::storage::Storage;
use crate::tensor::{Tensor, TensorState};

/// A gradient that is not made of a tensor's elements: a sparse tensor, or one of a program's own class. A tensor without memory
/// represents it in the graph, with its shape and its dtype ([`Tensor::representing`]).
pub trait ExternalGradient: Any + Send + Sync {
    /// Returns the sum of two gradients, of which at least one is external.
    fn sum(&self, first: &Tensor, second: &Tensor) -> Result<Tensor>;

    /// Returns the sum of the gradient that a leaf keeps and one that has arrived, of which at least one is external: in place, if
    /// the kept one can be written.
    fn accumulated(&self, kept: &Tensor, arrived: &Tensor) -> Result<Tensor> {
        self.sum(kept, arrived)
    }

    /// Returns the gradient as a tensor with elements, for an operator that computes with it.
    fn dense(&self) -> Result<Tensor>;
}

/// Returns the sum of two gradients.
pub(super) fn sum_of(first: &Tensor, second: &Tensor) -> Result<Tensor> {
    match first.external().or_else(|| second.external()) {
        Some(external) => external.sum(first, second),
        None => first.add(second),
    }
}

/// A hook that sees a gradient and may replace it. `None` is the zero gradient of a result for which none has arrived, while one
/// has arrived for another result of the same operator.
pub(crate) type TensorHook = dyn Fn(Option<&Tensor>) -> Result<Option<Tensor>> + Send + Sync;

/// The gradient that a tensor keeps, with the hooks of a leaf.
#[derive(Default)]
pub(crate) struct KeptGradient {
    gradient: Mutex<Option<Tensor>>,
    hooks: OnceLock<Box<LeafHooks>>,
    /// The leaf itself, which hooks receive.
    leaf: Mutex<Weak<TensorState>>,
}

/// The hooks of a leaf. They belong to the leaf, since its node lives only as long as graphs lead to it.
#[derive(Default)]
pub(crate) struct LeafHooks {
    /// Hooks that see the gradients that arrive.
    pub arriving: Arc<HookList<TensorHook>>,
    /// Hooks that run once the leaf has accumulated.
    pub accumulated: Arc<HookList<dyn Fn() -> Result<()> + Send + Sync>>,
}

impl KeptGradient {
    /// Returns the gradient.
    pub(crate) fn get(&self) -> Option<Tensor> {
        self.gradient.lock().clone()
    }

    /// Replaces the gradient.
    pub(crate) fn set(&self, gradient: Option<Tensor>) {
        let mut slot = self.gradient.lock();
        // The former gradient is dropped after the lock is released.
        let _former = std::mem::replace(&mut *slot, gradient);
        drop(slot);
    }

    /// Sets the tensor that hooks of the leaf receive.
    pub(super) fn set_leaf(&self, leaf: &Tensor) {
        *self.leaf.lock() = Arc::downgrade(&leaf.0);
    }

    /// Returns the tensor that hooks of the leaf receive, if a handle of it exists.
    pub(super) fn leaf(&self) -> Option<Tensor> {
        self.leaf.lock().upgrade().map(Tensor)
    }

    /// Returns whether the leaf still requires a gradient. A leaf may be frozen after it was used.
    pub(super) fn is_wanted(&self) -> bool {
        self.leaf().is_none_or(|leaf| leaf.requires_grad())
    }

    /// Returns the hooks, if there ever were any.
    pub(crate) fn hooks(&self) -> Option<&LeafHooks> {
        self.hooks.get().map(|hooks| &**hooks)
    }

    /// Returns whether there are hooks.
    pub(crate) fn has_hooks(&self) -> bool {
        let has_any =
            |hooks: &LeafHooks| !hooks.arriving.hooks().is_empty() || !hooks.accumulated.hooks().is_empty();
        self.hooks().is_some_and(has_any)
    }

    /// Returns the hooks, to add one.
    pub(crate) fn hooks_to_add(&self) -> &LeafHooks {
        self.hooks.get_or_init(Box::default)
    }

    /// Adds a gradient that has arrived, on the current stream: in place, so that all holders of the gradient see the sum, unless
    /// the sum is to have a gradient itself.
    pub(crate) fn add(&self, arrived: &Tensor, leaf: &Layout) -> Result<()> {
        loop {
            // The former gradient stays until the sum is computed, so that a failed sum does not lose it.
            let earlier = self.get();
            let sum = match &earlier {
                Some(earlier) => {
                    earlier.record_stream(&earlier.device().current_stream());
                    if is_summed_in_place(earlier, arrived) {
                        return earlier.add_(arrived);
                    }
                    match earlier.external().or_else(|| arrived.external()) {
                        Some(external) => external.accumulated(earlier, arrived)?,
                        None => earlier.add(arrived)?,
                    }
                }
                None => own(arrived, leaf)?,
            };
            let mut slot = self.gradient.lock();
            let is_unchanged = match (&*slot, &earlier) {
                (Some(now), Some(earlier)) => Arc::ptr_eq(&now.0, &earlier.0),
                (now, earlier) => now.is_none() && earlier.is_none(),
            };
            // Otherwise the backward pass of another thread has changed this tensor's gradient first.
            if is_unchanged {
                // The former gradient is dropped after the lock is released.
                let _earlier = slot.replace(sum);
                drop(slot);
                return Ok(());
            }
        }
    }
}

/// Returns whether a gradient is added to an existing one in place, as PyTorch does.
fn is_summed_in_place(earlier: &Tensor, arrived: &Tensor) -> bool {
    let fits = earlier.dtype() == arrived.dtype() && earlier.shape() == arrived.shape();
    fits && earlier.external().is_none()
        && arrived.external().is_none()
        && !is_grad_enabled()
        && !earlier.layout().may_overlap()
        && !earlier.is_inference()
}

/// Returns a gradient in memory that it does not share, since a kept gradient may be written in place, and in its leaf's order of
/// dimensions (row-major, if the leaf has gaps), so that an optimizer traverses both in the same order. Returns `arrived` itself
/// if this is already so and only this pass holds it, else a copy. A external gradient is kept as it is.
fn own(arrived: &Tensor, leaf: &Layout) -> Result<Tensor> {
    if arrived.external().is_some() {
        return Ok(arrived.clone());
    }
    let is_ours = Arc::strong_count(&arrived.0) == 1 && Storage::holders(arrived.storage()) == 1;
    let Some(order) = leaf.dense_order() else {
        let stays = is_ours && arrived.is_contiguous();
        return if stays { with_strides_of_its_shape(arrived) } else { arrived.copied(Location::caller()) };
    };
    let arrived = arrived.permute(&order)?;
    let stays = is_ours && arrived.is_contiguous();
    let own = if stays { with_strides_of_its_shape(&arrived) } else { arrived.copied(Location::caller()) };
    own?.permute(&inverse_order(&order))
}

/// Returns a contiguous tensor with the strides of its shape where any would do: in dimensions of one index, or without elements.
fn with_strides_of_its_shape(tensor: &Tensor) -> Result<Tensor> {
    let (layout, strides) = (tensor.layout(), contiguous_strides(tensor.shape()));
    if *layout.strides() == *strides {
        return Ok(tensor.clone());
    }
    Ok(tensor.with_layout(Layout::new(tensor.shape(), &strides, layout.offset())?))
}

/// The backward function of a leaf's node: it adds arriving gradients to the leaf's gradient.
pub(crate) struct Accumulate {
    kept: Arc<KeptGradient>,
    layout: Layout,
}

impl Accumulate {
    pub(crate) fn new(kept: Arc<KeptGradient>, layout: &Layout) -> Self {
        Self { kept, layout: layout.clone() }
    }
}

impl Backward for Accumulate {
    fn name(&self) -> &'static str {
        "accumulate"
    }

    fn takes_external(&self) -> bool {
        true
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        if let Some(arrived) = gradients[0].as_ref().filter(|_| self.kept.is_wanted()) {
            let (found, own) = (arrived.shape(), self.layout.shape());
            refuse_if!(found != own, "a gradient of shape {found:?} arrived at a leaf of shape {own:?}");
            self.kept.add(arrived, &self.layout)?;
        }
        Ok(Gradients::new())
    }
}
