//! [`FullyShard`]: modules whose parameters are sharded over all ranks, and gathered only while they are used (FSDP2).
//!
//! A *unit* is a module with its parameters, except those of the units within it. Each rank keeps its rows of each parameter, the
//! *shard*, which is what the optimizer sees. A forward pass gathers the unit's parameters, runs with them in the module's
//! fields, puts the shards back and frees the full parameters; operators save a note of where to find a parameter instead of the
//! parameter. The backward pass gathers again when the first node needs a parameter. When all gradients of a unit are ready, they
//! are reduced, and each rank gets those of its rows.
//!
//! ```text
//! gathers:       0  1  2        2  1  0          on the group's stream, one unit ahead of the computation
//! computation:      0  1  2  loss  2  1  0
//! reductions:                         2  1  0    on the group's stream
//! ```
//!
//! Full parameters belong to the group's stream. The streams that used them are recorded when they are freed
//! ([`Tensor::record_use`]), so the next gather reuses their memory as soon as the computation no longer needs it, and the host
//! never waits.
//!
//! `unit` gathers, reduces and frees; `context` has the order of the units of one model; `full` has state dictionaries of full
//! parameters, and `checkpoint` sharded files. Shards may be in host memory: `offloaded` is such a tensor, and `offload` steps
//! them.
//!
//! # Invariants
//! - Outside a forward pass the module's fields hold the shards.
//! - All ranks run the same units in the same order, so their collectives match.
//! - The gradients of all units are complete when the backward pass ends.
//!
//! This module is a hub: `unit`, `checkpoint`, `full` and `offload` use its options and its module. `unit` and `context` use each
//! other: a unit prefetches the next ones, and the context keeps the units' notes.

mod checkpoint;
mod context;
mod full;
mod offload;
mod offloaded;
mod unit;

use std::sync::{Arc, Weak};

use thalweg_derive::at_line;
use thalweg_ir::DType;
use thalweg_lock::{Mutex, MutexGuard};
use thalweg_nn::module::{Entry, EntryMut, Forward, Module, walk, walk_mut};
use thalweg_nn::optim::{clip_grads_with_norm_, get_total_norm};
use thalweg_runtime::{Error, Result, invalid, options, refuse_if};
use thalweg_tensor::autograd::saved_tensors_hooks_for;
use thalweg_tensor::{Tensor, no_grad};

pub use self::offload::OffloadedOptimizer;
use self::unit::Unit;
use crate::{DeviceMesh, ProcessGroup, ReduceOp};

options! {
    /// The dtypes in which a unit computes (`MixedPrecisionPolicy`). Shards and their gradients keep the dtype of the parameters.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct MixedPrecision {
        /// The dtype of gathered parameters, and so of the computation; `None`: the dtype of the shards.
        pub param_dtype: Option<DType> = None,
        /// The dtype in which gradients are reduced; `None`: the dtype of the gathered parameters.
        pub reduce_dtype: Option<DType> = None,
        /// The dtype to which [`Forward::forward`] converts its result; `None`: no conversion.
        pub output_dtype: Option<DType> = None,
        /// Whether [`Forward::forward`] converts a floating-point input to `param_dtype`.
        pub cast_forward_inputs: bool = true,
    }
}

/// The memory in which a unit keeps its shards, their gradients and the states of their optimizer.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum OffloadPolicy {
    /// Device memory.
    #[default]
    None,
    /// In pinned host memory (`CPUOffloadPolicy`). Rows are copied to the device before each gather, and gradients to the host
    /// after their reduction, on a stream of copies. The module's parameters are then tensors of the meta device, which have
    /// shapes and no elements, and [`OffloadedOptimizer`] steps them; [`FullyShard::full_state_dict`] and
    /// [`FullyShard::save_sharded`] have the values. Passes cannot be captured.
    Cpu,
}

options! {
    /// The options of [`fully_shard`], with PyTorch's names and defaults.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct FullyShardOptions {
        /// Whether the full parameters are freed after a forward pass, and gathered again for the backward pass. `None`: yes, except
        /// for the outermost unit, whose backward pass follows immediately.
        pub reshard_after_forward: Option<bool> = None,
        /// The dtypes of the computation.
        pub mixed_precision: MixedPrecision = MixedPrecision::default(),
        /// The number of units that are gathered before they are used, in the order of the previous pass. The default is 1; 0 gathers
        /// each unit when it is needed.
        pub prefetch: usize = 1,
        /// The memory in which the shards are kept.
        pub offload_policy: OffloadPolicy = OffloadPolicy::None,
    }
}

/// A module whose parameters are sharded over all ranks (`torch.distributed.fsdp.fully_shard`). [`fully_shard`] makes it.
///
/// As a module it has the parts of the wrapped module, under the same names; its parameters are this rank's shards. Forward
/// passes go through [`Forward::forward`] or [`run`](Self::run), one at a time. Convert a module to another device or dtype
/// before sharding it.
pub struct FullyShard<M> {
    module: Mutex<M>,
    unit: Arc<Unit>,
    /// The units within this one.
    nested: Vec<Arc<Unit>>,
    /// The parts of the module, with the tensors that its fields hold outside a forward pass.
    parts: Vec<(String, Part)>,
    is_training: bool,
}

enum Part {
    Parameter(Tensor),
    Buffer(Tensor),
}

/// A unit, with the address of its group's state. The address serves to skip units of other groups.
type Registered = (usize, Weak<Unit>);

/// All units of this process, among which the units within a module are found.
static UNITS: Mutex<Vec<Registered>> = Mutex::new(Vec::new());

fn registered() -> MutexGuard<'static, Vec<Registered>> {
    UNITS.lock()
}

fn address(group: &ProcessGroup) -> usize {
    Arc::as_ptr(&group.0).addr()
}

/// Returns the units whose parameters are sharded over a group.
fn units_of(group: &ProcessGroup) -> Vec<Arc<Unit>> {
    let mut units = registered();
    units.retain(|(_, unit)| unit.strong_count() > 0);
    units.iter().filter(|(of, _)| *of == address(group)).filter_map(|(_, unit)| unit.upgrade()).collect()
}

/// Shards the parameters of a module over the ranks of a group, by rows: rank r of n keeps the r-th of n equal parts of dimension
/// 0, of which the last may be smaller, or empty. The parameters get rank 0's values. Modules within that are sharded already
/// keep their parameters: shard the layers of a network, and then the network. *Blocks* if it must wait for device memory.
///
/// # Errors
/// [`Error::is_invalid_argument`] if a parameter is on a different device than the group, or is a scalar; and those of collectives.
#[at_line]
pub fn fully_shard<M: Module>(
    module: M,
    group: &ProcessGroup,
    options: FullyShardOptions,
) -> Result<FullyShard<M>> {
    shard(module, (group, None), options)
}

/// Shards the parameters of a module, as [`fully_shard`] does, along the last dimension of a mesh; along the first of two
/// dimensions all ranks have the same rows (`HSDP`). Gradients are reduced along both, so the ranks' batches are parts of one
/// batch. Shard modules within it on the same mesh.
///
/// # Errors
/// [`Error::is_invalid_argument`] if the mesh has more than two dimensions; else those of [`fully_shard`].
#[at_line]
pub fn fully_shard_on_mesh<M: Module>(
    module: M,
    mesh: &DeviceMesh,
    options: FullyShardOptions,
) -> Result<FullyShard<M>> {
    let groups = mesh.names().into_iter().map(|name| mesh.group(name)).collect::<Result<Vec<_>>>()?;
    match groups[..] {
        [group] => shard(module, (group, None), options),
        [replicas, group] => shard(module, (group, Some(replicas)), options),
        _ => Err(invalid!(
            "fully_shard expects a 1D or 2D DeviceMesh but got {:?} of shape {:?}",
            mesh.names(),
            mesh.shape()
        )),
    }
}

/// Shards the parameters of a module over a group, which may have replicas.
fn shard<M: Module>(
    mut module: M,
    (group, replicas): (&ProcessGroup, Option<&ProcessGroup>),
    options: FullyShardOptions,
) -> Result<FullyShard<M>> {
    let known = units_of(group);
    let named = module.named_parameters();
    let is_nested = |tensor: &Tensor| known.iter().any(|unit| unit.has(tensor));
    let own: Vec<(String, Tensor)> = named.iter().filter(|(_, tensor)| !is_nested(tensor)).cloned().collect();
    let nested = known.iter().filter(|unit| named.iter().any(|(_, tensor)| unit.has(tensor)));
    let nested: Vec<Arc<Unit>> = nested.cloned().collect();
    let unit = no_grad(|| Unit::new(group, replicas, &own, options))?;
    let whole: Vec<Tensor> = own.into_iter().map(|(_, tensor)| tensor).collect();
    exchange(&mut module, &whole, &unit.shards());
    unit.take_in(&nested);
    registered().push((address(group), Arc::downgrade(&unit)));
    let parts = parts_of(&module);
    let is_training = module.is_training();
    Ok(FullyShard { module: Mutex::new(module), unit, nested, parts, is_training })
}

impl<M: Module> FullyShard<M> {
    /// Runs a forward pass of any form with gathered parameters in the module, and returns its result.
    ///
    /// # Errors
    /// Those of the pass and of collectives; [`Error::is_invalid_argument`] if the module is in a forward pass already, or a
    /// backward pass did not reach all units ([`finish_backward`](Self::finish_backward)).
    #[at_line]
    pub fn run<T>(&self, forward: impl FnOnce(&M) -> Result<T>) -> Result<T> {
        let mut module = self.lock()?;
        let context = self.unit.context();
        let _inside = context.enter(&self.unit)?;
        let whole = self.unit.gathered()?;
        context.prefetch_forward(&self.unit)?;
        let whole = self.unit.recorded(whole);
        let exchanged = Exchanged::new(&mut *module, self.unit.shards(), whole)?;
        let (packing, pass) = (context.clone(), || forward(exchanged.module));
        let result =
            saved_tensors_hooks_for(move |tensor| Ok(packing.note(tensor)), unit::Note::tensor, pass);
        drop(exchanged);
        if self.unit.reshards_after_forward() {
            self.unit.reshard()?;
        }
        result
    }

    /// Returns the process group.
    pub fn group(&self) -> &ProcessGroup {
        self.unit.group()
    }

    /// Returns the ranks that have the same rows as this one, if the mesh has two dimensions.
    pub fn replicas(&self) -> Option<&ProcessGroup> {
        self.unit.replicas()
    }

    /// Gathers the full parameters, which stay until [`reshard`](Self::reshard) or the next pass frees them. A forward pass then
    /// need not wait for them. Asynchronous.
    #[at_line]
    pub fn unshard(&self) -> Result<()> {
        self.unit.gather_after_current()
    }

    /// Frees the full parameters. Asynchronous.
    pub fn reshard(&self) -> Result<()> {
        self.unit.reshard()
    }

    /// Sets whether backward passes reduce gradients. If not, gradients of full parameters accumulate on each rank, and are
    /// reduced in the next pass that reduces. Applies to the units within as well.
    pub fn set_requires_gradient_sync(&self, requires_gradient_sync: bool) {
        self.units().for_each(|unit| unit.set_syncs(requires_gradient_sync));
    }

    /// Sets whether the full parameters are freed after a forward pass, here and in the units within.
    pub fn set_reshard_after_forward(&self, reshard_after_forward: bool) {
        self.units().for_each(|unit| unit.set_reshards_after_forward(reshard_after_forward));
    }

    /// Ends a backward pass that did not reach all units whose forward pass was recorded: the gradients that were still being
    /// reduced are added to those of the shards. Other passes end without this call.
    #[at_line]
    pub fn finish_backward(&self) -> Result<()> {
        self.unit.context().finish()
    }

    /// Scales the gradients of all shards so that their norm over all ranks is at most `max_norm`, and returns the norm before
    /// scaling (`clip_grad_norm_`). All ranks call it. Asynchronous.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if there is no gradient, or a number is not above 0; and those of collectives.
    #[at_line]
    pub fn clip_grad_norm_(&self, max_norm: f64, norm_type: f64) -> Result<Tensor> {
        no_grad(|| {
            let parameters = self.parameters();
            let present: Vec<&Tensor> =
                parameters.iter().filter(|parameter| !parameter.device().is_meta()).collect();
            let gradients: Vec<Tensor> = present.iter().filter_map(|parameter| parameter.grad()).collect();
            let mut norms = offload::norms(self.units(), norm_type)?;
            if !gradients.is_empty() || norms.is_empty() {
                norms.push(get_total_norm(&gradients, norm_type)?);
            }
            let own = match &norms[..] {
                [norm] => norm.clone(),
                norms => get_total_norm(norms, norm_type)?,
            };
            let norm = match norm_type {
                f64::INFINITY => {
                    self.group().all_reduce(&own, ReduceOp::Max)?.wait()?;
                    own
                }
                power => {
                    let sum = own.pow_scalar(power)?;
                    self.group().all_reduce(&sum, ReduceOp::Sum)?.wait()?;
                    sum.pow_scalar(1.0 / power)?
                }
            };
            clip_grads_with_norm_(present, max_norm, &norm)?;
            offload::clip(self.units(), max_norm, &norm)?;
            Ok(norm)
        })
    }

    fn units(&self) -> impl Iterator<Item = &Arc<Unit>> {
        std::iter::once(&self.unit).chain(&self.nested)
    }

    fn lock(&self) -> Result<MutexGuard<'_, M>> {
        self.module.try_lock().ok_or_else(|| {
            invalid!(
                "fully_shard: the module is in a forward pass already; one runs at a time, and not within itself"
            )
        })
    }
}

/// A guard: while it lives, a module's fields hold full parameters.
struct Exchanged<'m, M: Module> {
    module: &'m mut M,
    shards: Vec<Tensor>,
    whole: Vec<Tensor>,
}

impl<'m, M: Module> Exchanged<'m, M> {
    fn new(module: &'m mut M, shards: Vec<Tensor>, whole: Vec<Tensor>) -> Result<Self> {
        let found = exchange(module, &shards, &whole);
        let exchanged = Self { module, shards, whole };
        refuse_if!(
            found < exchanged.shards.len(),
            "fully_shard: parameters of the module were replaced; convert or move a module before it is sharded"
        );
        Ok(exchanged)
    }
}

impl<M: Module> Drop for Exchanged<'_, M> {
    fn drop(&mut self) {
        exchange(self.module, &self.whole, &self.shards);
    }
}

/// Replaces some parameters of a module by other tensors, and returns the number of replacements.
fn exchange<M: Module>(module: &mut M, from: &[Tensor], to: &[Tensor]) -> usize {
    let mut found = 0;
    walk_mut(module, &mut |entry| {
        if let EntryMut::Parameter(tensor) = entry
            && let Some(place) = from.iter().position(|other| other.is_same(tensor))
        {
            *tensor = to[place].clone();
            found += 1;
        }
    });
    found
}

/// Returns the parts of a module with their full names, in order.
fn parts_of<M: Module>(module: &M) -> Vec<(String, Part)> {
    let mut parts = Vec::new();
    walk(module, "", &mut |name, entry| match entry {
        Entry::Parameter(tensor) => parts.push((name.to_owned(), Part::Parameter(tensor.clone()))),
        Entry::Buffer(tensor) => parts.push((name.to_owned(), Part::Buffer(tensor.clone()))),
        _ => {}
    });
    parts
}

impl<M: Forward> Forward for FullyShard<M> {
    #[at_line]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let policy = self.unit.options().mixed_precision;
        let own_dtype = policy.param_dtype.filter(|_| policy.cast_forward_inputs);
        let converted = |tensor: &Tensor, dtype: Option<DType>| match dtype {
            Some(dtype) if tensor.dtype().is_floating_point() => tensor.to_dtype(dtype),
            _ => Ok(tensor.clone()),
        };
        let input = converted(input, own_dtype)?;
        let output = self.run(|module| module.forward(&input))?;
        converted(&output, policy.output_dtype)
    }
}

impl<M: Module> Module for FullyShard<M> {
    fn visit<'a>(&'a self, visitor: &mut dyn FnMut(&str, Entry<'a>)) {
        for (name, part) in &self.parts {
            match part {
                Part::Parameter(tensor) => visitor(name, Entry::Parameter(tensor)),
                Part::Buffer(tensor) => visitor(name, Entry::Buffer(tensor)),
            }
        }
        visitor("training", Entry::Training(&self.is_training));
    }

    fn visit_mut<'a>(&'a mut self, visitor: &mut dyn FnMut(&str, EntryMut<'a>)) {
        self.module.get_mut().visit_mut(visitor);
        visitor("training", EntryMut::Training(&mut self.is_training));
    }
}
