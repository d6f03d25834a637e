//! A tensor's part in the graph.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use thalweg_lock::{Mutex, MutexGuard};

use super::leaf::KeptGradient;
use super::node::{Edge, Node};
use crate::tensor::Tensor;

/// The origin of a view's memory, for writes in place.
#[derive(Clone)]
pub(crate) enum ViewOf {
    /// The tensor that owns the history of the entire memory; it is not a view itself.
    Base(Tensor),
    /// Like `Base`, but the view is one of several that one operator returned, or a view of such a view: as in PyTorch, a write that
    /// must be recorded is refused.
    OneOfMany(Tensor),
    /// The view was made while nothing was recorded: a write that must be recorded is refused, and so is every write outside `no_grad`
    /// if the tensor that it was made from required a gradient.
    Unrecorded { of_required: bool },
    /// The view is the result of a program's own function and shares the memory of an input.
    Function,
}

impl ViewOf {
    /// Returns the tensor that owns the history of the memory, if autograd knows it.
    pub(crate) const fn base(&self) -> Option<&Tensor> {
        match self {
            Self::Base(base) | Self::OneOfMany(base) => Some(base),
            Self::Unrecorded { .. } | Self::Function => None,
        }
    }
}

/// A tensor's part in the graph.
pub(crate) struct AutogradMeta {
    pub(super) requires_grad: AtomicBool,
    pub(super) history: Mutex<History>,
    /// The number of times that a write in place replaced the history: a write to this tensor or, for a base, to a view of it.
    pub(super) writes: AtomicU64,
    view_of: Option<ViewOf>,
    /// The gradient and hooks. Few tensors have them, so they are made on first use.
    kept: OnceLock<Arc<KeptGradient>>,
    pub(super) accumulator: OnceLock<Mutex<Weak<Node>>>,
}

/// The node that a tensor is the result of.
#[derive(Default)]
pub(super) struct History {
    pub(super) edge: Option<Edge>,
    /// For a view: the base's `writes` at the time of this history.
    pub(super) writes_of_base: u64,
}

impl AutogradMeta {
    pub(crate) fn leaf(requires_grad: bool) -> Self {
        Self {
            requires_grad: AtomicBool::new(requires_grad),
            history: Mutex::default(),
            writes: AtomicU64::new(0),
            view_of: None,
            kept: OnceLock::new(),
            accumulator: OnceLock::new(),
        }
    }

    /// Returns the part of a view that is not in the graph yet.
    pub(crate) fn view(view_of: ViewOf) -> Self {
        let writes_of_base = view_of.base().map_or(0, |base| base.0.autograd.writes.load(Ordering::Acquire));
        let history = Mutex::new(History { edge: None, writes_of_base });
        Self { history, view_of: Some(view_of), ..Self::leaf(false) }
    }

    /// Returns the part of a result of a node, over the same memory.
    pub(crate) fn with_edge(&self, edge: Edge) -> Self {
        let writes_of_base = self.history().writes_of_base;
        Self {
            history: Mutex::new(History { edge: Some(edge), writes_of_base }),
            view_of: self.view_of.clone(),
            ..Self::leaf(true)
        }
    }

    /// Returns the part of the same tensor over other memory: with its gradient and its hooks, and with the node of a leaf if
    /// `keeps_accumulator` is set. It is not a view.
    pub(super) fn moved(&self, edge: Option<Edge>, keeps_accumulator: bool) -> Self {
        let requires_grad = edge.is_some() || self.requires_grad.load(Ordering::Acquire);
        let accumulator = self.accumulator.get().filter(|_| keeps_accumulator);
        let accumulator = accumulator.map(|slot| OnceLock::from(Mutex::new(slot.lock().clone())));
        Self {
            history: Mutex::new(History { edge, writes_of_base: 0 }),
            kept: self.kept.clone(),
            accumulator: accumulator.unwrap_or_default(),
            ..Self::leaf(requires_grad)
        }
    }

    /// Makes the tensor the result of a node. Nothing else holds the tensor yet.
    pub(crate) fn join(&mut self, edge: Edge) {
        self.history.get_mut().edge = Some(edge);
        *self.requires_grad.get_mut() = true;
    }

    pub(crate) fn view_of(&self) -> Option<&ViewOf> {
        self.view_of.as_ref()
    }

    /// Returns the storage of the gradient.
    pub(crate) fn kept(&self) -> &Arc<KeptGradient> {
        self.kept.get_or_init(Arc::default)
    }

    /// Makes the present history retain the gradient if the former one did.
    pub(super) fn retain_still(&self, former: Option<&Edge>, now: Option<&Edge>) {
        if let (Some(kept), Some(former), Some(now)) = (self.kept.get(), former, now)
            && former.node.stop_retaining(kept)
        {
            now.node.retain(now.input, kept);
        }
    }

    pub(super) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock()
    }

    /// Returns the tensor whose writes in place this one must check.
    pub(super) fn base(&self) -> Option<&Tensor> {
        let base = self.view_of.as_ref().and_then(ViewOf::base);
        base.filter(|base| base.0.autograd.writes.load(Ordering::Acquire) > 0)
    }
}
