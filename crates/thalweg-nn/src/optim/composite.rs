//! [`CompositeOptimizer`]: optimizers whose steps are written with operators.

use std::fmt::Debug;
use std::panic::Location;

use thalweg_derive::at_line;
use thalweg_ir::DType;
use thalweg_runtime::{Error, Result, invalid};
use thalweg_tensor::caller::at_line;
use thalweg_tensor::{Tensor, no_grad};

use super::optimizer::{check_parameters, is_at_least};
use super::{GroupState, OptimizerState, ParameterState};

/// The options of an optimizer whose step needs more than formulas over elements, with the step: the rule of a [`CompositeOptimizer`].
///
/// A step that is a formula over the elements of parameter, gradient and states is an entry of the table
/// (`thalweg_ops::optimizer`) instead, whose kernels step all parameters at once. Matrix products, sums over a tensor, and states
/// with a different shape than the parameter's cannot be such formulas.
pub trait CompositeRule: Copy + Debug {
    /// PyTorch's name of the optimizer.
    const TITLE: &'static str;

    /// Returns the options by PyTorch's names, as in a state dictionary; the learning rate is `lr`.
    fn named(&self) -> Vec<(&'static str, f64)>;

    /// Sets the option with one of these names; a flag is set if the value is not 0. Another name changes nothing.
    fn set(&mut self, option: &str, value: f64);

    /// Returns the learning rate of the options.
    fn learning_rate(&mut self) -> &mut f64;

    /// Refuses options that are out of bounds, and parameters that the optimizer does not support.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] for such options or parameters.
    fn check(&self, parameters: &[Tensor]) -> Result<()>;

    /// Makes the states of a parameter, by PyTorch's names.
    fn states(&self, parameter: &Tensor) -> Result<ParameterState>;

    /// Updates a parameter and its states. The learning rate is one element of f64 on the device.
    fn update(
        &self,
        rate: &Tensor,
        parameter: &Tensor,
        gradient: &Tensor,
        states: &ParameterState,
    ) -> Result<()>;
}

/// An optimizer of one group of parameters whose steps are written with operators. Nothing is read on the host, and the learning
/// rate is in device memory, so that a captured step follows it.
#[derive(Debug)]
pub struct CompositeOptimizer<R> {
    options: R,
    parameters: Vec<Tensor>,
    states: Vec<ParameterState>,
    /// The learning rate: one element of f64.
    rate: Tensor,
}

impl<R: CompositeRule> CompositeOptimizer<R> {
    /// Makes an optimizer of parameters: contiguous leaves of floats, all on one device, none of which shares memory with another.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the parameters do not satisfy this or are not supported by the optimizer, or an option
    /// is out of its bounds.
    #[at_line]
    pub fn new(parameters: Vec<Tensor>, mut options: R) -> Result<Self> {
        options.check(&parameters)?;
        check_parameters(R::TITLE, &parameters, &[])?;
        no_grad(|| {
            let states =
                parameters.iter().map(|parameter| options.states(parameter)).collect::<Result<_>>()?;
            let rate = Tensor::full(&[], *options.learning_rate(), DType::F64, parameters[0].device())?;
            Ok(Self { options, parameters, states, rate })
        })
    }

    /// Returns the options.
    pub fn options(&self) -> &R {
        &self.options
    }

    /// Removes all gradients.
    pub fn zero_grad(&self) {
        self.parameters.iter().for_each(Tensor::zero_grad);
    }

    /// Sets the learning rate. Asynchronous: later steps of the current stream use it, including replayed ones.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the learning rate is out of its bounds.
    #[at_line]
    pub fn set_learning_rate(&mut self, learning_rate: f64) -> Result<()> {
        let options = self.with_learning_rate(learning_rate)?;
        no_grad(|| {
            self.rate.record_stream(&self.rate.device().current_stream());
            self.rate.copy_(&Tensor::full(&[], learning_rate, DType::F64, self.rate.device())?)
        })?;
        self.options = options;
        Ok(())
    }

    /// Returns the options with another learning rate, if it is in its bounds.
    fn with_learning_rate(&self, learning_rate: f64) -> Result<R> {
        let mut options = self.options;
        *options.learning_rate() = learning_rate;
        options.check(&self.parameters)?;
        Ok(options)
    }

    /// Updates every parameter that has a gradient. Asynchronous.
    #[track_caller]
    pub fn step(&self) -> Result<()> {
        let step = || {
            let stream = self.rate.device().current_stream();
            self.rate.record_stream(&stream);
            for (parameter, states) in self.parameters.iter().zip(&self.states) {
                let Some(gradient) = parameter.grad() else { continue };
                // The tensors may have been made, or backward run, on another stream.
                for tensor in states.values().chain([parameter, &gradient]) {
                    tensor.record_stream(&stream);
                }
                self.options.update(&self.rate, parameter, &gradient.detach(), states)?;
            }
            Ok(())
        };
        at_line(Location::caller(), || no_grad(step))
    }

    /// Returns states and options by PyTorch's names. The tensors are the optimizer's own, not copies.
    pub fn state_dict(&self) -> OptimizerState {
        let options =
            self.options.named().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let group = GroupState { options, params: (0..self.parameters.len()).collect() };
        OptimizerState { state: self.states.iter().cloned().enumerate().collect(), param_groups: vec![group] }
    }

    /// Overwrites states and options with saved ones. Asynchronous.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if a state is missing or does not fit, or an option is out of its bounds. Then nothing has changed.
    #[at_line]
    pub fn load_state_dict(&mut self, saved: &OptimizerState) -> Result<()> {
        let (group, copies) = self.saved_states(saved)?;
        let mut options = self.options;
        group.options.iter().for_each(|(name, &value)| options.set(name, value));
        options.check(&self.parameters)?;
        no_grad(|| copies.iter().try_for_each(|(state, tensor)| state.copy_(tensor)))?;
        self.options = options;
        self.set_learning_rate(*options.learning_rate())
    }

    /// Returns the saved group, and every state with the value to be written into it.
    fn saved_states<'a>(
        &'a self,
        saved: &'a OptimizerState,
    ) -> Result<(&'a GroupState, Vec<(&'a Tensor, &'a Tensor)>)> {
        let refuse = |text: String| Err(invalid!("{}: {text}", R::TITLE));
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
        Ok((group, copies))
    }
}

/// Refuses an option that is below its minimum.
pub(super) fn refuse_below(title: &str, options: &[(&str, f64, f64)]) -> Result<()> {
    match options.iter().find(|(_, value, least)| !is_at_least(*value, *least)) {
        Some((name, value, least)) => Err(invalid!("{title}: {name} should be >= {least} but is: {value}")),
        None => Ok(()),
    }
}
