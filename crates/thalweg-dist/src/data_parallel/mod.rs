//! [`DistributedDataParallel`]: every rank has the complete module and a part of the batch.
//!
//! Backward passes call the `reducer` as gradients become ready. It collects them in buckets, and reduces a bucket as soon as it
//! is full, while the pass continues. When the reduction of the last bucket has started, every parameter's gradient becomes a
//! view of its reduced bucket, and the pass's stream waits for the reductions. So an ordinary optimizer works unchanged. A
//! registered one steps a bucket's parameters while later buckets are still being reduced (`register_fused_optim`).
//!
//! Buckets hold parameters in the order in which their gradients became ready in the first pass on rank 0. In that first pass all
//! parameters of one dtype are one bucket. With `find_unused_parameters` the order is the reverse of the module's, from the first
//! pass on.
//!
//! This module is a hub: `reducer` and `join` use its options and its broadcast, and each other: a join runs the collectives of
//! the reducer's buckets, and the reducer checks whether ranks have joined.

mod buckets;
mod join;
mod reducer;
mod used;

use std::panic::Location;
use std::sync::Arc;

use thalweg_derive::at_line;
use thalweg_nn::module::{Entry, EntryMut, Forward, Module};
use thalweg_nn::optim::{Optimizer, OptimizerOptions};
use thalweg_runtime::{Error, Result, options, refuse, refuse_if};
use thalweg_tensor::autograd::HookHandle;
use thalweg_tensor::caller::at_line;
use thalweg_tensor::{Tensor, no_grad};

pub use self::join::JoinOptions;
use self::reducer::Reducer;
use crate::{ProcessGroup, ReduceOp, Work};

/// A function that reduces a bucket in a different way (`register_comm_hook`). It gets the bucket's gradients, concatenated in one
/// dimension. It returns the work in progress and the tensor that will hold the mean over the ranks, which has the same number of
/// elements, in any floating-point dtype.
pub type BucketHook = dyn Fn(&ProcessGroup, &Tensor) -> Result<(Work, Tensor)> + Send + Sync;

options! {
    /// The options of data parallel training, with PyTorch's names and defaults.
    #[derive(Clone)]
    pub struct DataParallelOptions {
        /// The size of a bucket in bytes; the default is 25 MiB. The first bucket is full at 1 MiB, so that reductions begin early.
        pub bucket_cap_bytes: usize = 25 << 20,
        /// Whether a forward pass in training mode first copies rank 0's values to the module's buffers.
        pub broadcast_buffers: bool = true,
        /// Whether parameters may get no gradient in a pass. Each forward pass then walks its graph to find them, and the ranks
        /// reduce a map of those that are used. If a rank leaves some out, its backward pass *blocks* until that map has arrived,
        /// which is queued before the pass's first bucket. Gradients of parameters that no rank uses are unchanged.
        pub find_unused_parameters: bool = false,
        /// Whether all passes use the same parameters. Parameters that get no gradient are found in the first pass, as with
        /// `find_unused_parameters`, which has no effect if this is set. Later passes do not wait on the host and can be captured;
        /// using other parameters is an error.
        pub static_graph: bool = false,
        /// The function that reduces a bucket; `None` computes the mean with `all_reduce`.
        pub hook: Option<Arc<BucketHook>> = None,
    }
}

/// Reduces a bucket in bfloat16, which halves the bytes sent (`bf16_compress_hook`).
pub fn bf16_compress_hook(group: &ProcessGroup, bucket: &Tensor) -> Result<(Work, Tensor)> {
    let narrow = bucket.to_dtype(thalweg_ir::DType::Bf16)?;
    Ok((group.all_reduce(&narrow, ReduceOp::Avg)?, narrow))
}

/// A module whose gradients are the means over all ranks (`torch.nn.parallel.DistributedDataParallel`): if the loss is a mean
/// over the samples and all ranks have equal parts of the batch, they are the gradients of the full batch. As a module it has one
/// part, `module`.
///
/// Its forward passes go through [`Forward::forward`] or [`run`](Self::run). After each, one backward pass must compute gradients
/// of all parameters, unless an option allows otherwise.
pub struct DistributedDataParallel<M> {
    module: M,
    reducer: Arc<Reducer>,
    hooks: Vec<HookHandle>,
}

impl<M: Module> DistributedDataParallel<M> {
    /// Wraps a module, and copies rank 0's values to its parameters and buffers. *Blocks* until the ranks have compared shapes.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if no parameter requires a gradient, a parameter is on a different device than the group, or the
    /// ranks' modules differ.
    #[at_line]
    pub fn new(module: M, group: &ProcessGroup, options: DataParallelOptions) -> Result<Self> {
        let named = module.named_parameters();
        let parameters: Vec<Tensor> = named
            .iter()
            .map(|(_, parameter)| parameter.clone())
            .filter(|parameter| parameter.requires_grad())
            .collect();
        refuse_if!(
            parameters.is_empty(),
            "DistributedDataParallel is not needed when a module doesn't have any parameter that requires a gradient."
        );
        let buffers: Vec<Tensor> = module.named_buffers().into_iter().map(|(_, buffer)| buffer).collect();
        verify_same(group, &named)?;
        let all: Vec<Tensor> =
            named.iter().map(|(_, parameter)| parameter).chain(&buffers).map(Tensor::detach).collect();
        broadcast(group, &all, 0)?;
        let reducer = Arc::new(Reducer::new(group.clone(), parameters, buffers, options));
        let hooks = reducer.register()?;
        Ok(Self { module, reducer, hooks })
    }

    /// Returns the module.
    pub fn module(&self) -> &M {
        &self.module
    }

    /// Returns the process group.
    pub fn group(&self) -> &ProcessGroup {
        self.reducer.group()
    }

    /// Runs a forward pass of any form, and returns its result. The closure returns a pair: the result, and the tensors that the
    /// backward pass will start from. Gradients are reduced in the backward pass that follows.
    ///
    /// # Errors
    /// Those of the pass; [`Error::is_invalid_argument`] if the previous backward pass computed no gradient for some parameter.
    #[track_caller]
    pub fn run<T>(&self, forward: impl FnOnce(&M) -> Result<(T, Vec<Tensor>)>) -> Result<T> {
        at_line(Location::caller(), || self.reducer.prepare(self.module.is_training()))?;
        let (result, outputs) = forward(&self.module)?;
        self.reducer.expect(&outputs)?;
        Ok(result)
    }

    /// Runs `passes` without reductions: gradients accumulate locally on each rank, until a backward pass outside reduces their
    /// sum (`no_sync`). The forward passes must be inside as well.
    pub fn no_sync<T>(&self, passes: impl FnOnce(&Self) -> T) -> T {
        let former = self.reducer.exchange_sync(false);
        let result = passes(self);
        self.reducer.exchange_sync(former);
        result
    }

    /// Runs a loop of training steps whose number may differ from rank to rank (`join`): a rank that has finished takes part in
    /// the others' reductions with zeros, until all have finished. Then the module has the parameters and buffers of the last
    /// rank. *All* ranks call it. Each forward pass inside must be followed by a backward pass. A forward pass *blocks* if the
    /// module has buffers, and the call *blocks* at the end until all ranks have finished.
    ///
    /// # Errors
    /// The loop's, without waiting for the others; those of collectives; [`Error::is_distributed`] with
    /// [`JoinOptions::throw_on_early_termination`] if a rank finishes before others.
    #[track_caller]
    pub fn join<T>(&self, options: JoinOptions, steps: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        let location = Location::caller();
        at_line(location, || self.reducer.begin_join(options))?;
        // Even if the loop fails, later passes are not part of the join.
        let _inside = join::Inside(&self.reducer);
        let result = steps(self)?;
        at_line(location, || no_grad(|| self.reducer.shadow()))?;
        Ok(result)
    }

    /// Makes an optimizer step the parameters of each bucket at the end of the backward pass, as soon as the bucket has been
    /// reduced and while later ones are still being reduced (`_register_fused_optim`): a training step is then a forward and a
    /// backward pass, and calls no `step`. Nothing can change the gradients in between, so there is no clipping and no scaler.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the optimizer has a parameter that gets no gradient here, or an optimizer is registered
    /// already.
    #[at_line]
    pub fn register_fused_optim<O: OptimizerOptions + 'static>(
        &self,
        optimizer: &Arc<Optimizer<O>>,
    ) -> Result<()> {
        let is_reduced = |own: &Tensor| self.reducer.parameters.iter().any(|other| other.is_same(own));
        if let Some(other) = optimizer.parameters().find(|own| !is_reduced(own)) {
            refuse!(
                "register_fused_optim: {other:?} of the optimizer is not a parameter of the module that requires a gradient, so nothing would step it"
            );
        }
        let (fused, optimizer) = (&mut self.reducer.state().fused, optimizer.clone());
        refuse_if!(
            fused.is_some(),
            "register_fused_optim: the module has such an optimizer already: give it one of all parameters"
        );
        *fused = Some(Arc::new(move |members: &[Tensor]| optimizer.step_parameters(members)));
        Ok(())
    }

    /// Returns the bytes of gradients in each bucket, in the order of their reductions.
    pub fn bucket_bytes(&self) -> Vec<usize> {
        self.reducer.bucket_bytes()
    }
}

impl<M: Forward> Forward for DistributedDataParallel<M> {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.run(|module| {
            let output = module.forward(input)?;
            Ok((output.clone(), vec![output]))
        })
    }
}

impl<M: Module> Module for DistributedDataParallel<M> {
    fn visit<'a>(&'a self, visitor: &mut dyn FnMut(&str, Entry<'a>)) {
        visitor("module", Entry::Child(&self.module));
    }

    fn visit_mut<'a>(&'a mut self, visitor: &mut dyn FnMut(&str, EntryMut<'a>)) {
        visitor("module", EntryMut::Child(&mut self.module));
    }
}

impl<M> Drop for DistributedDataParallel<M> {
    fn drop(&mut self) {
        self.hooks.iter().for_each(HookHandle::remove);
    }
}

/// Checks that the ranks' parameters have the same shapes and dtypes.
fn verify_same(group: &ProcessGroup, named: &[(String, Tensor)]) -> Result<()> {
    for (name, parameter) in named {
        refuse_if!(
            parameter.device() != group.device(),
            "DistributedDataParallel: the parameter `{name}` is on {}, and rank {} of the group is {}",
            parameter.device(),
            group.rank(),
            group.device()
        );
    }
    let own: Vec<String> = named
        .iter()
        .map(|(name, parameter)| format!("{name} {:?} {}", parameter.shape(), parameter.dtype()))
        .collect();
    let all = group.all_gather_object(own.join("\n").as_bytes())?;
    let of = |rank: usize| String::from_utf8_lossy(&all[rank]).into_owned();
    for rank in 1..all.len() {
        if all[rank] == all[0] {
            continue;
        }
        let (first, other) = (of(0), of(rank));
        let (count, others) = (first.lines().count(), other.lines().count());
        let difference = first.lines().zip(other.lines()).find(|(one, two)| one != two);
        return Err(Error::invalid(match difference {
            Some((one, two)) => format!(
                "DDP expects same model across all ranks, but Rank 0 has the parameter {one}, while rank {rank} has {two}."
            ),
            None => format!(
                "DDP expects same model across all ranks, but Rank 0 has {count} params, while rank {rank} has inconsistent {others} \
                 params."
            ),
        }));
    }
    Ok(())
}

/// Overwrites tensors with the values of rank `src`. Asynchronous.
fn broadcast(group: &ProcessGroup, tensors: &[Tensor], src: u32) -> Result<()> {
    if tensors.is_empty() {
        return Ok(());
    }
    let mut all = group.coalescing();
    for tensor in tensors {
        all.broadcast(tensor, src)?;
    }
    all.submit()?.wait()
}
