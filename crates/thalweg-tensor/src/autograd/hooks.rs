//! Hooks: functions of the user that a backward pass calls. The module [`autograd`](super) documents when.

use std::collections::BTreeMap;
use std::sync::Arc;

use thalweg_derive::in_call;
use thalweg_lock::Mutex;
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::hook_list::HookList;
use super::leaf::{KeptGradient, TensorHook};
use super::node::NodeHooks;
use super::{Gradients, HookHandle, Node};
use crate::tensor::Tensor;

/// Operators whose nodes have different names in PyTorch, including powers with a literal exponent.
const NAMED: &[(&str, &str)] = &[
    ("copy", "CloneBackward0"),
    ("copy_", "CopyBackwards"),
    ("power_1", "PowBackward0"),
    ("power_2", "PowBackward0"),
    ("power_3", "PowBackward0"),
];

/// Returns PyTorch's name of the node of an operator. Names are never freed: there are at most as many as operators.
pub(super) fn title(operator: &'static str) -> &'static str {
    static TITLES: Mutex<BTreeMap<&'static str, &'static str>> = Mutex::new(BTreeMap::new());
    // A function of the program has the name of its node.
    if operator.strip_suffix("Backward").is_some() {
        return operator;
    }
    if let Some((_, title)) = NAMED.iter().find(|(name, _)| *name == operator) {
        return title;
    }
    let mut titles = TITLES.lock();
    titles.entry(operator).or_insert_with(|| {
        let name = operator.rsplit("::").next().unwrap_or(operator);
        let name = name.strip_suffix("_scalar").unwrap_or(name);
        let words = name.split('_').map(|word| {
            let mut letters = word.chars();
            let first = letters.next().map(|first| first.to_ascii_uppercase());
            first.into_iter().chain(letters).collect::<String>()
        });
        Box::leak(format!("{}Backward0", words.collect::<String>()).into_boxed_str())
    })
}

impl Node {
    /// Returns the operator that recorded the node, for messages (`torch.autograd.graph.Node.name`).
    pub fn name(&self) -> &'static str {
        self.function.name()
    }

    /// Returns PyTorch's name of the node: `MulBackward0` of `mul`, `AccumulateGrad` of a leaf.
    pub fn title(&self) -> &'static str {
        if self.is_accumulator() { "AccumulateGrad" } else { title(self.name()) }
    }

    /// Returns, for each input, the node that its gradient flows to and the index among that node's results; `None` for an input
    /// that requires none (`torch.autograd.graph.Node.next_functions`).
    pub fn next_functions(&self) -> Vec<Option<(Arc<Self>, usize)>> {
        self.edges.iter().map(|edge| edge.as_ref().map(|edge| (edge.node.clone(), edge.input))).collect()
    }

    /// Returns the node's number: later nodes have greater numbers.
    pub fn sequence_number(&self) -> u64 {
        self.sequence
    }

    /// Returns whether this is the node of a leaf, which accumulates the gradient.
    pub fn is_accumulator(&self) -> bool {
        self.kept.is_some()
    }

    /// Returns the leaf whose gradient this node accumulates, if a handle of it exists.
    pub fn leaf(&self) -> Option<Tensor> {
        self.kept.as_ref()?.leaf()
    }

    /// Registers a hook that each backward pass calls before this node, with the gradients of the operator's results, `None`
    /// being zero (`torch.autograd.graph.Node.register_prehook`). If the hook returns gradients, they replace these: the same
    /// number, each with the same shape, dtype and device. See [`autograd`](crate::autograd) for the order of hooks.
    pub fn register_prehook(
        &self,
        hook: impl Fn(&[Option<Tensor>]) -> Result<Option<Gradients>> + Send + Sync + 'static,
    ) -> HookHandle {
        self.hooks.get_or_init(Box::default).before.add(0, Arc::new(hook))
    }

    /// Registers a hook that each backward pass calls after this node, with the gradients of the operator's inputs and those of
    /// its results (`torch.autograd.graph.Node.register_hook`). If the hook returns gradients, they replace those of the inputs:
    /// the same number, each with the same shape, dtype and device.
    pub fn register_hook(
        &self,
        hook: impl Fn(&[Option<Tensor>], &[Option<Tensor>]) -> Result<Option<Gradients>> + Send + Sync + 'static,
    ) -> HookHandle {
        self.hooks.get_or_init(Box::default).after.add(0, Arc::new(hook))
    }

    /// Returns whether a hook sees the gradients that arrive at this node, or is called after it has run.
    pub(crate) fn is_watched(&self) -> bool {
        let of_leaf = self.kept.as_ref().is_some_and(|kept| kept.has_hooks());
        of_leaf || self.hooks.get().is_some()
    }

    /// Returns whether hooks see the gradients that arrive for the results of this operator.
    pub(super) fn has_hooks_before(&self) -> bool {
        let has_any =
            |hooks: &NodeHooks| !hooks.tensors.hooks().is_empty() || !hooks.before.hooks().is_empty();
        self.hooks.get().is_some_and(|hooks| has_any(hooks))
    }

    /// Returns whether hooks see the gradients that this node computes.
    pub(super) fn has_hooks_after(&self) -> bool {
        self.hooks.get().is_some_and(|hooks| !hooks.after.hooks().is_empty())
    }

    /// Makes passes keep the gradient of an output.
    pub(super) fn retain(&self, output: usize, kept: &Arc<KeptGradient>) {
        let mut retained = self.hooks.get_or_init(Box::default).retained();
        if !retained.iter().any(|(_, other)| Arc::ptr_eq(other, kept)) {
            retained.push((output, kept.clone()));
        }
    }

    /// Makes passes no longer keep a gradient there, and returns whether they did.
    pub(super) fn stop_retaining(&self, kept: &Arc<KeptGradient>) -> bool {
        let Some(hooks) = self.hooks.get() else { return false };
        let mut retained = hooks.retained();
        let place = retained.iter().position(|(_, other)| Arc::ptr_eq(other, kept));
        place.map(|place| retained.swap_remove(place)).is_some()
    }

    /// Returns the outputs whose gradients are kept, and where.
    pub(super) fn retaining(&self) -> Vec<(usize, Arc<KeptGradient>)> {
        self.hooks.get().map_or_else(Vec::new, |hooks| hooks.retained().clone())
    }

    /// Calls the hooks of the tensors that the gradients belong to, and stores the gradients that are to be retained.
    pub(super) fn run_tensor_hooks(&self, gradients: &mut Gradients) -> Result<()> {
        if let Some(hooks) = self.kept.as_ref().and_then(|kept| kept.hooks()) {
            self.run_list(&hooks.arriving, gradients)?;
        }
        let Some(hooks) = self.hooks.get() else { return Ok(()) };
        self.run_list(&hooks.tensors, gradients)?;
        for (output, kept) in self.retaining() {
            if let Some(gradient) = &gradients[output] {
                kept.add(gradient, gradient.layout())?;
            }
        }
        Ok(())
    }

    fn run_list(&self, list: &HookList<TensorHook>, gradients: &mut Gradients) -> Result<()> {
        for (output, hook) in list.hooks() {
            let replaced = hook(gradients[output].as_ref()).map_err(|error| self.in_hook(error))?;
            if let Some(replaced) = replaced {
                if let Some(gradient) = &gradients[output] {
                    self.check_replaced(gradient, &replaced)?;
                }
                gradients[output] = Some(replaced);
            }
        }
        Ok(())
    }

    /// Calls the hooks before the node.
    pub(super) fn run_before(&self, gradients: &mut Gradients) -> Result<()> {
        let Some(hooks) = self.hooks.get() else { return Ok(()) };
        for (_, hook) in hooks.before.hooks() {
            let replaced = hook(gradients).map_err(|error| self.in_hook(error))?;
            self.replace(gradients, replaced)?;
        }
        Ok(())
    }

    /// Calls the hooks after the node, which has run, and returns the gradients of its inputs.
    pub(super) fn run_after(
        &self,
        mut results: Gradients,
        gradients: &[Option<Tensor>],
    ) -> Result<Gradients> {
        if let Some(hooks) = self.kept.as_ref().filter(|kept| kept.is_wanted()).and_then(|kept| kept.hooks())
        {
            for (_, hook) in hooks.accumulated.hooks() {
                hook().map_err(|error| self.in_hook(error))?;
            }
        }
        if let Some(hooks) = self.hooks.get() {
            for (_, hook) in hooks.after.hooks() {
                let replaced = hook(&results, gradients).map_err(|error| self.in_hook(error))?;
                self.replace(&mut results, replaced)?;
            }
        }
        Ok(results)
    }

    fn replace(&self, gradients: &mut Gradients, replaced: Option<Gradients>) -> Result<()> {
        let Some(replaced) = replaced else { return Ok(()) };
        refuse_if!(
            replaced.len() != gradients.len(),
            "a hook of {} has returned an incorrect number of values (got {}, but expected {})",
            self.name(),
            replaced.len(),
            gradients.len()
        );
        for (former, now) in gradients.iter().zip(&replaced) {
            match (former, now) {
                (Some(former), Some(now)) => self.check_replaced(former, now)?,
                (None, Some(_)) => {
                    refuse!("a hook of {} can't replace a None gradient with a non-None value", self.name());
                }
                (_, None) => {}
            }
        }
        *gradients = replaced;
        Ok(())
    }

    /// Refuses a gradient that cannot replace the former one, with PyTorch's message.
    fn check_replaced(&self, former: &Tensor, now: &Tensor) -> Result<()> {
        let changed = if former.dtype() != now.dtype() {
            format!("type of value (was {} got {})", former.dtype(), now.dtype())
        } else if former.device() != now.device() && now.external().is_none() && former.external().is_none() {
            format!("type of value (was {} got {})", former.device(), now.device())
        } else if former.shape() != now.shape() {
            format!("size of value (was {:?} got {:?})", former.shape(), now.shape())
        } else {
            return Ok(());
        };
        Err(invalid!("a hook of {} has changed the {changed}", self.name()))
    }

    fn in_hook(&self, error: Error) -> Error {
        error.context(format!("a hook of {}", self.name()))
    }
}

impl Tensor {
    /// Registers a hook that each backward pass calls with the gradient of this tensor, once all of it has arrived
    /// (`torch.Tensor.register_hook`). If the hook returns a gradient, it replaces this one: it must have the same shape, dtype
    /// and device, and be ready on the stream that is current in the hook, which is that of the forward pass. The hook may not
    /// write the gradient in place. If the tensor is written in place later, the hook still sees the gradient of its present
    /// value.
    ///
    /// Hooks of one tensor run in the order of their registration; see [`autograd`](crate::autograd) for the others. Dropping the
    /// handle does not remove the hook.
    ///
    /// A hook that owns the tensor, or one that is computed from it, creates a reference cycle: neither is ever freed. Let the
    /// hook own the result of [`detach`](Tensor::detach), or remove it by its handle.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the tensor does not require a gradient.
    #[track_caller]
    pub fn register_hook(
        &self,
        hook: impl Fn(&Self) -> Result<Option<Self>> + Send + Sync + 'static,
    ) -> Result<HookHandle> {
        self.register_hook_of_any(move |gradient| gradient.map_or(Ok(None), &hook))
    }

    /// Registers a hook as [`register_hook`](Self::register_hook) does. It is also called, with `None`, if a gradient has arrived
    /// for other results of the same operator but none for this one.
    #[in_call("register_hook", &[self])]
    pub fn register_hook_of_any(
        &self,
        hook: impl Fn(Option<&Self>) -> Result<Option<Self>> + Send + Sync + 'static,
    ) -> Result<HookHandle> {
        self.check_hookable()?;
        let hook: Arc<TensorHook> = Arc::new(hook);
        Ok(match self.gradient_edge() {
            Some(edge) if edge.node.kept.is_none() => {
                edge.node.hooks.get_or_init(Box::default).tensors.add(edge.input, hook)
            }
            _ => self.kept().hooks_to_add().arriving.add(0, hook),
        })
    }

    /// Registers a hook that each backward pass calls with this leaf once it has accumulated its gradient
    /// (`torch.Tensor.register_post_accumulate_grad_hook`): it may step an optimizer and free the gradient immediately. The
    /// stream that is current in the hook is that on which the gradient is ready. The hook does not keep the tensor alive, and is
    /// not called once its last handle is dropped.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the tensor does not require a gradient, or is not a leaf.
    #[in_call("register_post_accumulate_grad_hook", &[self])]
    pub fn register_post_accumulate_grad_hook(
        &self,
        hook: impl Fn(&Self) -> Result<()> + Send + Sync + 'static,
    ) -> Result<HookHandle> {
        self.check_hookable()?;
        if !self.is_leaf() {
            refuse!("post accumulate grad hooks cannot be registered on non-leaf tensors");
        }
        self.kept().set_leaf(self);
        let kept = Arc::downgrade(self.kept());
        let leaf = move || kept.upgrade().and_then(|kept| kept.leaf());
        let hook = move || leaf().map_or(Ok(()), |leaf| hook(&leaf));
        Ok(self.kept().hooks_to_add().accumulated.add(0, Arc::new(hook)))
    }

    /// Makes backward passes keep the gradient of this result of an operator in [`Tensor::grad`], as they do for a leaf
    /// (`torch.Tensor.retain_grad`): they add to an existing one. It is the gradient after the tensor's hooks, and after a write
    /// in place it is that of the new value. Does nothing for a leaf.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the tensor does not require a gradient.
    #[in_call("retain_grad", &[self])]
    pub fn retain_grad(&self) -> Result<()> {
        refuse_if!(!self.requires_grad(), "can't retain_grad on Tensor that has requires_grad=False");
        if let Some(node) = self.grad_fn() {
            let edge = self.gradient_edge().expect("it has a node");
            node.retain(edge.input, self.kept());
        }
        Ok(())
    }

    /// Returns whether backward passes keep the gradient of this result of an operator (`torch.Tensor.retains_grad`); false for a
    /// leaf.
    pub fn retains_grad(&self) -> bool {
        let is_kept =
            |node: Arc<Node>| node.retaining().iter().any(|(_, kept)| Arc::ptr_eq(kept, self.kept()));
        self.grad_fn().is_some_and(is_kept)
    }

    /// Returns the node that the tensor is a result of (`torch.Tensor.grad_fn`); `None` for a leaf.
    pub fn grad_fn(&self) -> Option<Arc<Node>> {
        let edge = self.gradient_edge()?;
        edge.node.kept.is_none().then_some(edge.node)
    }

    /// Returns whether the tensor has hooks that backward passes call.
    pub(crate) fn has_hooks(&self) -> bool {
        self.kept().has_hooks()
    }

    fn check_hookable(&self) -> Result<()> {
        if self.requires_grad() {
            return Ok(());
        }
        Err(invalid!("cannot register a hook on a tensor that doesn't require gradient"))
    }

    fn kept(&self) -> &Arc<KeptGradient> {
        self.0.autograd.kept()
    }
}
