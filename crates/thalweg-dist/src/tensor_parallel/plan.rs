//! [`parallelize_module`]: applies a plan, and returns the division of the parameters.

use thalweg_derive::at_line;
use thalweg_nn::module::{EntryMut, Module, StateDict};
use thalweg_nn::optim::{clip_grads_with_norm_, get_total_norm};
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};
use thalweg_tensor::{Tensor, no_grad};

use super::Placement;
use super::layers::Slot;
use super::split::Split;
use super::style::{ColwiseParallel, ParallelStyle};
use crate::{DeviceMesh, ProcessGroup, ReduceOp};

/// Divides the layers of a module among the ranks of a mesh of one dimension
/// (`torch.distributed.tensor.parallel.parallelize_module`): a plan names parts of the module, whose fields are
/// [`Parallel`](super::Parallel), and their styles. In a name each `*` matches any characters and `?` one character, except
/// points: `blocks.*.up`. All parameters and buffers get the values of the mesh's first rank, even if the plan does not name
/// them. Make optimizers and [`fully_shard`](crate::fully_shard) or [`DistributedDataParallel`](crate::DistributedDataParallel)
/// of another dimension afterwards. Asynchronous.
///
/// # Errors
/// [`Error::is_invalid_argument`] if the mesh has several dimensions, a name matches no part, a part is not a
/// [`Parallel`](super::Parallel) or has a style already, the style does not apply to it, or a dimension is not a multiple of the
/// number of ranks; the module is then unchanged. Those of collectives.
#[at_line]
pub fn parallelize_module<M: Module>(
    module: &mut M,
    device_mesh: &DeviceMesh,
    parallelize_plan: &[(&str, ParallelStyle)],
) -> Result<TensorParallel> {
    let names = device_mesh.names();
    let [name] = names[..] else {
        refuse!(
            "parallelize_module takes a one-dimensional DeviceMesh, not one of {names:?}: `submesh` has one of its dimensions"
        );
    };
    let group = device_mesh.group(name)?.clone();
    check_devices(module, &group)?;
    let mut work =
        Work { group, carries_out: false, named: Vec::new(), tied: Vec::new(), divided: Vec::new() };
    // Once to find errors, and once to apply the plan.
    for carries_out in [false, true] {
        work.carries_out = carries_out;
        for (path, style) in parallelize_plan {
            check(style)?;
            let tokens: Vec<&str> = path.split('.').filter(|token| !token.is_empty()).collect();
            work.apply(module, "", &tokens, style)?;
        }
    }
    work.same_values(module)?;
    Ok(TensorParallel { group: work.group, divided: work.divided })
}

/// Checks the options of a style.
fn check(style: &ParallelStyle) -> Result<()> {
    match style {
        ParallelStyle::Colwise(ColwiseParallel { input_layouts, reduce_gradient: false, .. })
            if *input_layouts != Placement::Replicate =>
        {
            Err(invalid!(
                "ColwiseParallel: with reduce_gradient=false the input is whole, not {input_layouts}"
            ))
        }
        _ => Ok(()),
    }
}

fn check_devices(module: &impl Module, group: &ProcessGroup) -> Result<()> {
    for (name, parameter) in module.named_parameters() {
        refuse_if!(
            parameter.device() != group.device(),
            "parallelize_module: the parameter `{name}` is on {}, and rank {} of the mesh is {}",
            parameter.device(),
            group.rank(),
            group.device()
        );
    }
    Ok(())
}

/// A plan that is being applied.
struct Work {
    group: ProcessGroup,
    /// Whether the plan is applied to the module, and not only checked.
    carries_out: bool,
    /// The modules that the plan names.
    named: Vec<String>,
    /// Divided parameters with this rank's parts, so that a parameter that occurs in several places stays shared.
    tied: Vec<(Tensor, Split, Tensor)>,
    divided: Vec<(String, Split)>,
}

impl Work {
    /// Applies a style to the parts of a module that a path names.
    fn apply(
        &mut self,
        module: &mut dyn Module,
        prefix: &str,
        tokens: &[&str],
        style: &ParallelStyle,
    ) -> Result<()> {
        let Some((token, rest)) = tokens.split_first() else { return self.apply_here(module, prefix, style) };
        let (mut outcome, mut names) = (Ok(()), Vec::new());
        let mut found = false;
        module.visit_mut(&mut |name, entry| {
            let EntryMut::Child(child) = entry else { return };
            names.push(name.to_owned());
            if outcome.is_ok() && matches(name, token) {
                found = true;
                outcome = self.apply(child, &joined(prefix, name), rest, style);
            }
        });
        outcome?;
        if found {
            return Ok(());
        }
        let place = if prefix.is_empty() { module.type_name().to_owned() } else { format!("`{prefix}`") };
        Err(invalid!(
            "Parallelize plan key could not be resolved: no submodule matching token '{token}' in {place}, which has {names:?}"
        ))
    }

    /// Applies a style to a module itself.
    fn apply_here(&mut self, module: &mut dyn Module, path: &str, style: &ParallelStyle) -> Result<()> {
        let kind = module.type_name();
        let slot = module.any_mut().and_then(|any| any.downcast_mut::<Slot>()).ok_or_else(|| {
            invalid!(
                "parallelize_module: `{path}` is a {kind}, and {} needs a Parallel<{kind}>",
                style.name()
            )
        })?;
        let split = slot.split;
        if self.carries_out {
            slot.applied = Some((*style, self.group.clone()));
        } else if slot.applied.is_some() || self.named.iter().any(|named| named == path) {
            refuse!("parallelize_module: `{path}` has a style already");
        } else {
            self.named.push(path.to_owned());
        }
        // The style may not apply to a module without parameters, either.
        split(style, "weight")
            .map_err(|error| error.context(format!("parallelize_module: `{path}`, a {kind}")))?;
        let mut outcome = Ok(());
        module.visit_mut(&mut |name, entry| {
            let EntryMut::Parameter(parameter) = entry else { return };
            if outcome.is_ok() {
                let whole = joined(path, name);
                outcome = split(style, name).and_then(|split| match split {
                    Some(split) => self.divide(&whole, parameter, split),
                    None => Ok(()),
                });
            }
        });
        outcome
    }

    /// Replaces a parameter by this rank's part.
    fn divide(&mut self, name: &str, parameter: &mut Tensor, split: Split) -> Result<()> {
        let group = &self.group;
        split.part(name, parameter.shape(), group.size() as usize)?;
        if !self.carries_out {
            return Ok(());
        }
        self.divided.push((name.to_owned(), split));
        let known = self.tied.iter().find(|(whole, by, _)| whole.is_same(parameter) && *by == split);
        if let Some((_, _, local)) = known {
            *parameter = local.clone();
            return Ok(());
        }
        let local = no_grad(|| {
            let values = parameter.detach().contiguous()?;
            group.broadcast(&values, 0)?.wait()?;
            split.local(name, &values, group)
        })?;
        local.set_requires_grad(parameter.requires_grad())?;
        self.tied.push((parameter.clone(), split, local.clone()));
        *parameter = local;
        Ok(())
    }

    /// Overwrites parameters and buffers that were not divided with the values of the first rank.
    fn same_values(&self, module: &impl Module) -> Result<()> {
        let is_divided = |tensor: &Tensor| self.tied.iter().any(|(_, _, local)| local.is_same(tensor));
        let (parameters, buffers) = (module.named_parameters(), module.named_buffers());
        let whole = parameters.into_iter().chain(buffers).filter(|(_, tensor)| !is_divided(tensor));
        no_grad(|| {
            for (_, tensor) in whole {
                let tensor = tensor.detach();
                let values = tensor.contiguous()?;
                self.group.broadcast(&values, 0)?.wait()?;
                if !tensor.is_contiguous() {
                    tensor.copy_(&values)?;
                }
            }
            Ok(())
        })
    }
}

fn joined(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") }
}

/// Returns whether a name matches a pattern with `*` and `?`.
fn matches(name: &str, pattern: &str) -> bool {
    let Some(first) = pattern.chars().next() else { return name.is_empty() };
    let (rest, mut others) = (&pattern[first.len_utf8()..], name.chars());
    match (first, others.next()) {
        ('*', _) => {
            let ends = name.char_indices().map(|(at, _)| at).chain([name.len()]);
            ends.into_iter().any(|at| matches(&name[at..], rest))
        }
        ('?', Some(_)) => matches(others.as_str(), rest),
        (wanted, Some(found)) => wanted == found && matches(others.as_str(), rest),
        (_, None) => false,
    }
}

/// A module's division among ranks, by the names of its parameters, for state dictionaries and norms of the full module.
#[derive(Clone, Debug)]
pub struct TensorParallel {
    group: ProcessGroup,
    divided: Vec<(String, Split)>,
}

impl TensorParallel {
    /// Returns the process group.
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// Returns how a parameter is divided; `None` for a parameter that every rank has in full.
    pub fn split(&self, name: &str) -> Option<Split> {
        self.divided.iter().find(|(divided, _)| divided == name).map(|(_, split)| *split)
    }

    /// Returns the full tensors for this rank's parts by the names of parameters, on every rank: for a state dictionary, say, or
    /// for gradients. All ranks call it with the same names. Asynchronous.
    #[at_line]
    pub fn full_state_dict(&self, local: &StateDict) -> Result<StateDict> {
        let whole = |(name, tensor): (&String, &Tensor)| {
            let whole = self.split(name).map(|split| split.whole(&tensor.detach(), &self.group));
            Ok((name.clone(), whole.transpose()?.unwrap_or_else(|| tensor.clone())))
        };
        local.iter().map(whole).collect()
    }

    /// Returns this rank's parts of full tensors by the names of parameters, as [`Module::load_state_dict`] and
    /// [`FullyShard::load_full_state_dict`](crate::FullyShard::load_full_state_dict) take. Asynchronous.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if a dimension is not a multiple of the number of ranks.
    #[at_line]
    pub fn local_state_dict(&self, whole: &StateDict) -> Result<StateDict> {
        let local = |(name, tensor): (&String, &Tensor)| {
            let local = self.split(name).map(|split| split.local(name, &tensor.detach(), &self.group));
            Ok((name.clone(), local.transpose()?.unwrap_or_else(|| tensor.clone())))
        };
        whole.iter().map(local).collect()
    }

    /// Scales the gradients of a module so that their total norm over all ranks is at most `max_norm`, and returns the norm
    /// before scaling (`clip_grad_norm_`). `shards` is the group over which [`fully_shard`](crate::fully_shard) has sharded the
    /// module, if any. All ranks call it. Asynchronous.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if there is no gradient, or a number is not above 0; those of collectives.
    #[at_line]
    pub fn clip_grad_norm_(
        &self,
        module: &impl Module,
        max_norm: f64,
        norm_type: f64,
        shards: Option<&ProcessGroup>,
    ) -> Result<Tensor> {
        let named = module.named_parameters();
        let gradients = |is_divided: bool| -> Vec<Tensor> {
            let chosen = named.iter().filter(|(name, _)| self.split(name).is_some() == is_divided);
            chosen.filter_map(|(_, parameter)| parameter.grad()).collect()
        };
        let (divided, whole) = (gradients(true), gradients(false));
        no_grad(|| {
            let total = Total { norm_type, max_norm };
            let divided = total.over(&divided, &[Some(&self.group), shards])?;
            let whole = total.over(&whole, &[shards])?;
            let norm = match (divided, whole) {
                (Some(divided), Some(whole)) => get_total_norm(&[divided, whole], norm_type)?,
                (Some(norm), None) | (None, Some(norm)) => norm,
                (None, None) => {
                    refuse!("clip_grad_norm_: no parameter has a gradient; run backward first");
                }
            };
            let parameters: Vec<Tensor> = named.iter().map(|(_, parameter)| parameter.clone()).collect();
            clip_grads_with_norm_(&parameters, total.max_norm, &norm)?;
            Ok(norm)
        })
    }
}

/// The options for the total norm of tensors that are divided over ranks.
struct Total {
    norm_type: f64,
    max_norm: f64,
}

impl Total {
    /// Returns the norm of tensors that are divided over all ranks of some groups; `None` if there are no tensors.
    fn over(&self, tensors: &[Tensor], groups: &[Option<&ProcessGroup>]) -> Result<Option<Tensor>> {
        if tensors.is_empty() {
            return Ok(None);
        }
        let own = get_total_norm(tensors, self.norm_type)?;
        let groups = groups.iter().flatten();
        if self.norm_type == f64::INFINITY {
            groups.into_iter().try_for_each(|group| group.all_reduce(&own, ReduceOp::Max)?.wait())?;
            return Ok(Some(own));
        }
        let sum = own.pow_scalar(self.norm_type)?;
        groups.into_iter().try_for_each(|group| group.all_reduce(&sum, ReduceOp::Sum)?.wait())?;
        Ok(Some(sum.pow_scalar(1.0 / self.norm_type)?))
    }
}
