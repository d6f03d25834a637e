//! [`Stepped`]: what optimizers have in common whose steps are written with operators.

use thalweg_ir::DType;
use thalweg_runtime::{Error, Result};
use thalweg_tensor::{Tensor, no_grad};

use super::optimizer::{check_parameters, is_at_least};
use super::{GroupState, OptimizerState, ParameterState};

/// Parameters of one group with their states, and a learning rate that lies on the device, so that captured steps follow it.
#[derive(Debug)]
pub(super) struct Stepped {
    title: &'static str,
    pub(super) parameters: Vec<Tensor>,
    pub(super) states: Vec<ParameterState>,
    /// One element of f64.
    pub(super) rate: Tensor,
}

impl Stepped {
    /// Checks the parameters, and makes the states of each.
    pub(super) fn new(
        title: &'static str,
        parameters: Vec<Tensor>,
        learning_rate: f64,
        state: impl Fn(&Tensor) -> Result<ParameterState>,
    ) -> Result<Self> {
        check_parameters(title, &parameters, &[])?;
        no_grad(|| {
            let states = parameters.iter().map(state).collect::<Result<_>>()?;
            let rate = Tensor::full(&[], learning_rate, DType::F64, parameters[0].device())?;
            Ok(Self { title, parameters, states, rate })
        })
    }

    /// Sets the learning rate, in the order of the current stream.
    pub(super) fn set_learning_rate(&self, learning_rate: f64) -> Result<()> {
        no_grad(|| {
            self.rate.record_stream(&self.rate.device().current_stream());
            self.rate.copy_(&Tensor::full(&[], learning_rate, DType::F64, self.rate.device())?)
        })
    }

    /// Runs a function on every parameter that has a gradient, with the gradient and its states.
    pub(super) fn each(&self, step: impl Fn(&Tensor, &Tensor, &ParameterState) -> Result<()>) -> Result<()> {
        no_grad(|| {
            let stream = self.rate.device().current_stream();
            self.rate.record_stream(&stream);
            for (parameter, states) in self.parameters.iter().zip(&self.states) {
                let Some(gradient) = parameter.grad() else { continue };
                // They may have been made, or backward run, on another stream.
                for tensor in states.values().chain([parameter, &gradient]) {
                    tensor.record_stream(&stream);
                }
                step(parameter, &gradient.detach(), states)?;
            }
            Ok(())
        })
    }

    /// Returns the states, with options by PyTorch's names.
    pub(super) fn state_dict(&self, options: &[(&str, f64)]) -> OptimizerState {
        let options = options.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        let group = GroupState { options, params: (0..self.parameters.len()).collect() };
        OptimizerState { state: self.states.iter().cloned().enumerate().collect(), param_groups: vec![group] }
    }

    /// Overwrites the states with saved ones. If one is missing or does not fit, nothing has changed. Returns the saved options.
    pub(super) fn load_state_dict<'a>(&self, saved: &'a OptimizerState) -> Result<&'a GroupState> {
        let refuse = |text: String| Err(Error::invalid(format!("{}: {text}", self.title)));
        let [group] = &saved.param_groups[..] else {
            return refuse(format!("the state has {} groups of parameters, not 1", saved.param_groups.len()));
        };
        if group.params.len() != self.parameters.len() {
            let (found, own) = (group.params.len(), self.parameters.len());
            return refuse(format!("the saved group has {found} parameters, the optimizer's has {own}"));
        }
        let mut copies = Vec::new();
        for (states, number) in self.states.iter().zip(&group.params) {
            let Some(saved) = saved.state.get(number) else { continue };
            for (name, state) in states {
                match saved.get(name) {
                    Some(tensor) if tensor.shape() == state.shape() && tensor.device() == state.device() => {
                        copies.push((state, tensor));
                    }
                    Some(tensor) => {
                        return refuse(format!(
                            "the saved {name} of parameter {number} is {tensor:?}, and must be {:?} on {}",
                            state.shape(),
                            state.device()
                        ));
                    }
                    None => return refuse(format!("parameter {number} has no saved {name}")),
                }
            }
        }
        no_grad(|| copies.iter().try_for_each(|(state, tensor)| state.copy_(tensor)))?;
        Ok(group)
    }

    /// Refuses an option that is out of its bounds.
    pub(super) fn refuse_below(title: &str, options: &[(&str, f64, f64)]) -> Result<()> {
        match options.iter().find(|(_, value, least)| !is_at_least(*value, *least)) {
            Some((name, value, least)) => {
                Err(Error::invalid(format!("{title}: {name} should be >= {least} but is: {value}")))
            }
            None => Ok(()),
        }
    }
}
