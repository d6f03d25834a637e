//! The state of an optimizer, to be saved and loaded (`state_dict`), by PyTorch's names.

use std::collections::BTreeMap;
use thalweg_derive::at_line;
use thalweg_ops::optimizer::{OptimizerOptions, OptimizerValues};
use thalweg_runtime::{Error, Result, invalid};

use super::group::{Group, Parameter};
use super::{Optimizer, ParamGroup};
use thalweg_tensor::Tensor;
use thalweg_tensor::no_grad;

/// The states of one parameter by name (`step`, `exp_avg`, …).
pub type ParameterState = BTreeMap<String, Tensor>;

/// A group of parameters.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct GroupState {
    /// The options by PyTorch's names (`lr`, `weight_decay`); a flag is 1 or 0, and the parts of a pair are `betas.0` and
    /// `betas.1`.
    pub options: BTreeMap<String, f64>,
    /// The numbers of the group's parameters in [`OptimizerState::state`].
    pub params: Vec<usize>,
}

/// The state of an optimizer, in the form of PyTorch's `state_dict`.
#[derive(Clone, Debug, Default)]
pub struct OptimizerState {
    /// The states of each parameter, by its number over all groups. A parameter that was never stepped may be missing.
    pub state: BTreeMap<usize, ParameterState>,
    /// The groups.
    pub param_groups: Vec<GroupState>,
}

impl Group {
    /// Returns a parameter's states, in the order of [`Parameter::all_states`].
    fn kinds(&self) -> Vec<StateKind> {
        let names = self.rule.kept(&self.values).map(|state| self.rule.states[state]);
        let starts = self.values.states.iter().copied().flatten();
        let own = names.zip(starts).map(|(name, start)| StateKind { name, start, where_missing: None });
        let step = StateKind { name: "step", start: 0.0, where_missing: Some(1.0) };
        let scalars = self.rule.scalar_states.iter().filter(|state| state.is_saved);
        let scalars =
            scalars.map(|state| StateKind { name: state.name, start: state.start, where_missing: None });
        own.chain(self.counts.then_some(step)).chain(scalars).collect()
    }
}

/// A state that every parameter of a group has.
struct StateKind {
    /// PyTorch's name.
    name: &'static str,
    /// The initial value.
    start: f64,
    /// The value to use if a file has a parameter's other states but not this one; `None` if that is an error.
    where_missing: Option<f64>,
}

impl Parameter {
    /// Returns the states in the order of [`Group::kinds`]; the step count precedes only the rule's own scalars.
    fn all_states(&self, group: &Group) -> impl Iterator<Item = &Tensor> {
        let step = self.scalar_states[..usize::from(group.counts)].iter();
        let scalars = self.scalar_states[1..].iter().zip(group.rule.scalar_states);
        let saved = scalars.filter(|(_, rule)| rule.is_saved).map(|(state, _)| state);
        self.states.iter().chain(step).chain(saved)
    }
}

impl<O: OptimizerOptions> Optimizer<O> {
    /// Returns the states and options. The tensors are the optimizer's own, as in PyTorch: later steps change them.
    pub fn state_dict(&self) -> OptimizerState {
        let mut dictionary = OptimizerState::default();
        let mut number = 0;
        for group in self.param_groups() {
            let kinds = group.group.kinds();
            let first = number;
            for parameter in &group.group.parameters {
                let states = kinds.iter().zip(parameter.all_states(&group.group));
                let states = states.map(|(kind, state)| (kind.name.to_owned(), state.clone())).collect();
                dictionary.state.insert(number, states);
                number += 1;
            }
            let options = group.options().named().into_iter();
            dictionary.param_groups.push(GroupState {
                options: options.map(|(name, value)| (name.to_owned(), value)).collect(),
                params: (first..number).collect(),
            });
        }
        dictionary
    }

    /// Overwrites states and options with saved ones. The memory is reused, so steps that were captured before continue with the
    /// loaded states and learning rates; other options keep their values from the capture. A group whose saved options need other states
    /// or another kernel (`amsgrad`, a first momentum) gets new states: steps of it that were captured do not see them.
    ///
    /// States on another device are moved. A parameter without saved states is reset. If there are states but no `step` (PyTorch's SGD), one step is assumed. Names
    /// that this optimizer does not know are ignored. Asynchronous.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the groups do not have the same numbers of parameters, a state is missing or has another
    /// shape, or an option is out of its bounds. Then nothing has changed.
    #[at_line]
    pub fn load_state_dict(&mut self, saved: &OptimizerState) -> Result<()> {
        let options = self.saved_options(saved)?;
        let made_anew = |(group, &options): (&ParamGroup<O>, &O)| {
            let (own, saved) = (&group.group.values, options.values());
            let is_kept =
                |values: &OptimizerValues| values.states.iter().map(Option::is_some).collect::<Vec<_>>();
            let fits = own.flags == saved.flags && is_kept(own) == is_kept(&saved);
            (!fits).then(|| ParamGroup::new(group.parameters().cloned().collect(), options)).transpose()
        };
        let anew =
            self.param_groups().iter().zip(&options).map(made_anew).collect::<Result<Vec<Option<_>>>>()?;
        let groups = self.param_groups().iter().zip(&anew).map(|(own, anew)| anew.as_ref().unwrap_or(own));
        let copies = saved_states(groups.map(|group| &group.group), saved)?;
        no_grad(|| {
            copies.iter().try_for_each(|(state, value)| {
                state.record_stream(&state.device().current_stream());
                match value {
                    Saved::Tensor(tensor) => state.copy_(tensor),
                    Saved::Number(number) => {
                        state.copy_(&Tensor::full(&[], *number, state.dtype(), state.device())?)
                    }
                }
            })
        })?;
        for ((group, options), anew) in self.param_groups_mut().iter_mut().zip(options).zip(anew) {
            match anew {
                Some(anew) => *group = anew,
                None => group.replace_options(options),
            }
            group.group.set_learning_rate(group.group.values.learning_rate)?;
        }
        Ok(())
    }

    /// Returns the options of each group, replaced by the saved ones.
    fn saved_options(&self, saved: &OptimizerState) -> Result<Vec<O>> {
        let fail = |text: String| Err(invalid!("{}: {text}", O::RULE.title));
        let sizes = |groups: &mut dyn Iterator<Item = usize>| groups.collect::<Vec<_>>();
        let own = sizes(&mut self.param_groups().iter().map(|group| group.parameters().len()));
        let theirs = sizes(&mut saved.param_groups.iter().map(|group| group.params.len()));
        if own != theirs {
            return fail(format!(
                "the saved groups have {theirs:?} parameters, the optimizer's have {own:?}; make the same groups before loading"
            ));
        }
        let mut all = Vec::new();
        for (group, saved) in self.param_groups().iter().zip(&saved.param_groups) {
            let mut options = group.options();
            for (name, _) in options.named() {
                if let Some(&value) = saved.options.get(name) {
                    options.set(name, value);
                }
            }
            options.check().map_err(Error::invalid)?;
            all.push(options);
        }
        Ok(all)
    }
}

/// Returns every state with the value to be written into it.
fn saved_states<'g>(
    groups: impl Iterator<Item = &'g Group>,
    saved: &OptimizerState,
) -> Result<Vec<(Tensor, Saved)>> {
    let mut copies = Vec::new();
    for (group, saved_group) in groups.zip(&saved.param_groups) {
        let fail = |text: String| Err(invalid!("{}: {text}", group.rule.title));
        let kinds = group.kinds();
        for (parameter, number) in group.parameters.iter().zip(&saved_group.params) {
            let states = saved.state.get(number).filter(|states| !states.is_empty());
            for (state, kind) in parameter.all_states(group).zip(&kinds) {
                let name = kind.name;
                let value = match states.map(|states| states.get(name)) {
                    None => Saved::Number(kind.start),
                    Some(None) => match kind.where_missing {
                        Some(number) => Saved::Number(number),
                        None => return fail(format!("parameter {number} has no saved {name}")),
                    },
                    Some(Some(tensor)) if tensor.shape() != state.shape() => {
                        let shape = state.shape();
                        return fail(format!(
                            "the saved {name} of parameter {number} is {tensor:?}, and must be {shape:?}"
                        ));
                    }
                    Some(Some(tensor)) => Saved::Tensor(tensor.to_device(state.device())?),
                };
                copies.push((state.clone(), value));
            }
        }
    }
    Ok(copies)
}

/// A value that is loaded into a state.
enum Saved {
    Tensor(Tensor),
    Number(f64),
}
