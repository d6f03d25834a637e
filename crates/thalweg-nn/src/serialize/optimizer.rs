//! The state of an optimizer as a value of PyTorch's files, by the keys of `torch.optim.Optimizer.state_dict`.

use std::collections::BTreeMap;

use super::Object;
use crate::optim::{GroupState, OptimizerState, ParameterState};

/// Builds PyTorch's dictionary: `{"state": {0: {"exp_avg": …}}, "param_groups": [{"lr": 0.001, "betas": (0.9, 0.999), "params":
/// [0]}]}`. Options are floats; those that are flags in PyTorch are 1 or 0.
impl From<OptimizerState> for Object {
    fn from(saved: OptimizerState) -> Self {
        let text = |text: &str| Self::Str(text.to_owned());
        let state = saved.state.into_iter().map(|(number, states)| {
            let states = states.into_iter().map(|(name, state)| (Self::Str(name), Self::Tensor(state)));
            (Self::Int(number as i64), Self::Dict(states.collect()))
        });
        let groups = saved.param_groups.into_iter().map(|group| {
            let mut pairs: Vec<(Self, Self)> = Vec::new();
            for (name, value) in group.options {
                // The parts of a pair are consecutive.
                match (name.split_once('.'), pairs.last_mut()) {
                    (Some((pair, _)), Some((Self::Str(last), Self::Tuple(parts))))
                        if pair == last.as_str() =>
                    {
                        parts.push(Self::Float(value));
                    }
                    (Some((pair, _)), _) => pairs.push((text(pair), Self::Tuple(vec![Self::Float(value)]))),
                    (None, _) => pairs.push((Self::Str(name), Self::Float(value))),
                }
            }
            let params = group.params.into_iter().map(|number| Self::Int(number as i64));
            pairs.push((text("params"), Self::List(params.collect())));
            Self::Dict(pairs)
        });
        let (state, groups) = (Self::Dict(state.collect()), Self::List(groups.collect()));
        Self::Dict(vec![(text("state"), state), (text("param_groups"), groups)])
    }
}

impl Object {
    /// Returns the state of an optimizer, if this is the dictionary of one. States that are not tensors, and options that are not numbers,
    /// are left out.
    pub fn optimizer_state(&self) -> Option<OptimizerState> {
        let (Self::Dict(states), Self::List(groups)) = (self.get("state")?, self.get("param_groups")?) else {
            return None;
        };
        let state = states.iter().map(|(number, states)| match (number, states) {
            (Self::Int(number), Self::Dict(states)) => {
                let tensors = states.iter().filter_map(|pair| match pair {
                    (Self::Str(name), Self::Tensor(state)) => Some((name.clone(), state.clone())),
                    _ => None,
                });
                Some((usize::try_from(*number).ok()?, tensors.collect::<ParameterState>()))
            }
            _ => None,
        });
        let groups = groups.iter().map(Self::group_state);
        Some(OptimizerState {
            state: state.collect::<Option<BTreeMap<_, _>>>()?,
            param_groups: groups.collect::<Option<_>>()?,
        })
    }

    fn group_state(&self) -> Option<GroupState> {
        let Self::Dict(pairs) = self else { return None };
        let mut group = GroupState::default();
        for (name, value) in pairs {
            let Self::Str(name) = name else { return None };
            match value {
                Self::List(params) if name == "params" => {
                    let number = |param: &Self| match param {
                        Self::Int(number) => usize::try_from(*number).ok(),
                        _ => None,
                    };
                    group.params = params.iter().map(number).collect::<Option<_>>()?;
                }
                Self::Tuple(parts) => {
                    let parts =
                        parts.iter().enumerate().filter_map(|(place, part)| Some((place, part.number()?)));
                    group.options.extend(parts.map(|(place, part)| (format!("{name}.{place}"), part)));
                }
                value => group.options.extend(value.number().map(|number| (name.clone(), number))),
            }
        }
        Some(group)
    }

    /// Returns a number or a truth value as a float.
    fn number(&self) -> Option<f64> {
        match *self {
            Self::Bool(truth) => Some(f64::from(u8::from(truth))),
            Self::Int(number) => Some(number as f64),
            Self::Float(number) => Some(number),
            _ => None,
        }
    }
}
