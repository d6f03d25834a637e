//! The fused optimizers, gradient scaling and clipping, for the classes of `thalweg.optim`.

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use thalweg::ops::optimizer::OptimizerOptions;
use thalweg::optim::{GradientScaler, GradientScalerOptions, GroupState, Optimizer, OptimizerState};
use thalweg::{Result, Tensor};
use thalweg_lock::Mutex;

use crate::device::or_current;
use crate::failure::{run, value_error};
use crate::handle::{Held, PyTensor};

/// Options by PyTorch's names. A flag is 1 or 0; the parts of a pair are `betas.0` and `betas.1`.
type Options = HashMap<String, f64>;

/// An optimizer with any rule.
trait AnyOptimizer: Send {
    fn step(&self) -> Result<()>;
    fn step_scaled(&self, scaler: &GradientScaler) -> Result<()>;
    fn step_unscaled(&self, scaler: &GradientScaler) -> Result<()>;
    fn unscale(&self, scaler: &GradientScaler) -> Result<()>;
    fn set_learning_rates(&self, rates: &[f64]) -> Result<()>;
    fn set_options(&mut self, values: &[Options]) -> Result<()>;
    fn follow_learning_rate(&self, group: usize, rate: &Tensor) -> Result<()>;
    fn state(&self) -> OptimizerState;
    fn load(&mut self, state: &OptimizerState) -> Result<()>;
    fn parameters(&self) -> Vec<Tensor>;
}

impl<O: OptimizerOptions> AnyOptimizer for Optimizer<O> {
    fn step(&self) -> Result<()> {
        Self::step(self)
    }

    fn step_scaled(&self, scaler: &GradientScaler) -> Result<()> {
        scaler.step(self)
    }

    fn step_unscaled(&self, scaler: &GradientScaler) -> Result<()> {
        scaler.step_unscaled(self)
    }

    fn unscale(&self, scaler: &GradientScaler) -> Result<()> {
        scaler.unscale(self)
    }

    fn set_learning_rates(&self, rates: &[f64]) -> Result<()> {
        Self::set_learning_rates(self, rates)
    }

    fn set_options(&mut self, values: &[Options]) -> Result<()> {
        let options = values.iter().map(options).collect::<Result<Vec<O>>>()?;
        Self::set_options(self, &options)
    }

    fn follow_learning_rate(&self, group: usize, rate: &Tensor) -> Result<()> {
        Self::follow_learning_rate(self, group, rate)
    }

    fn state(&self) -> OptimizerState {
        self.state_dict()
    }

    fn load(&mut self, state: &OptimizerState) -> Result<()> {
        self.load_state_dict(state)
    }

    fn parameters(&self) -> Vec<Tensor> {
        Self::parameters(self).cloned().collect()
    }
}

/// Returns the default options of a rule with some values changed.
fn options<O: OptimizerOptions>(values: &Options) -> Result<O> {
    let mut options = O::default();
    for (name, &value) in values {
        if !options.set(name, value) {
            return Err(thalweg::Error::invalid(format!("{} has no option '{name}'", O::RULE.title)));
        }
    }
    Ok(options)
}

/// Creates an optimizer from groups of parameters.
fn made<O: OptimizerOptions>(groups: &[(Vec<Tensor>, Options)]) -> Result<Box<dyn AnyOptimizer>> {
    let mut groups = groups.iter();
    let (parameters, values) =
        groups.next().ok_or_else(|| thalweg::Error::invalid("there is no group of parameters"))?;
    let mut optimizer = Optimizer::<O>::new(parameters.clone(), options(values)?)?;
    for (parameters, values) in groups {
        optimizer.add_param_group(parameters.clone(), options(values)?)?;
    }
    Ok(Box::new(optimizer))
}

/// A function that creates an optimizer with a rule.
type Maker = fn(&[(Vec<Tensor>, Options)]) -> Result<Box<dyn AnyOptimizer>>;

/// A function that returns the default options of a rule.
type Defaults = fn() -> Vec<(&'static str, f64)>;

/// A rule of the optimizer table, for Python.
struct Rule {
    title: &'static str,
    make: Maker,
    defaults: Defaults,
}

fn rule<O: OptimizerOptions + 'static>() -> Rule {
    Rule { title: O::RULE.title, make: made::<O>, defaults: defaults::<O> }
}

/// Makes the list of the table's rules.
macro_rules! rules {
    ($($name:ident $options:ident $title:literal;)*) => {
        /// Returns the rules of the table of optimizers.
        fn rules() -> impl Iterator<Item = Rule> {
            [$(rule::<thalweg::optim::$options>()),*].into_iter()
        }
    };
}

thalweg::ops::for_each_optimizer! { rules }

fn defaults<O: OptimizerOptions>() -> Vec<(&'static str, f64)> {
    O::default().named()
}

/// Returns each rule with its options, by PyTorch's names, and their defaults.
#[pyfunction]
fn _optimizers(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let titles = PyDict::new(py);
    for Rule { title, defaults, .. } in rules() {
        let options = PyDict::new(py);
        for (name, value) in defaults() {
            options.set_item(name, value)?;
        }
        titles.set_item(title, options)?;
    }
    Ok(titles)
}

/// An optimizer: its rule, the parameters in groups, and their states on the device.
#[pyclass(frozen)]
struct _FusedOptimizer(Mutex<Box<dyn AnyOptimizer>>);

#[pymethods]
impl _FusedOptimizer {
    #[new]
    fn new(py: Python<'_>, rule: &str, groups: Vec<(Vec<Bound<'_, PyTensor>>, Options)>) -> PyResult<Self> {
        let Some(Rule { make, .. }) = rules().find(|known| known.title == rule) else {
            return Err(value_error(format!("there is no optimizer {rule}")));
        };
        let groups: Vec<(Vec<Tensor>, Options)> = (groups.into_iter())
            .map(|(tensors, options)| (tensors.iter().map(|tensor| tensor.tensor()).collect(), options))
            .collect();
        run(py, || make(&groups)).map(|optimizer| Self(Mutex::new(optimizer)))
    }

    /// Updates every parameter that has a gradient. With a scaler, the gradients are those that it has scaled, or that have been
    /// unscaled since.
    #[pyo3(signature = (scaler=None, is_unscaled=false))]
    fn step(
        &self,
        py: Python<'_>,
        scaler: Option<&Bound<'_, _GradientScaler>>,
        is_unscaled: bool,
    ) -> PyResult<()> {
        let scaler = scaler.map(|scaler| scaler.get());
        run(py, || match scaler {
            None => self.0.lock().step(),
            Some(scaler) if is_unscaled => self.0.lock().step_unscaled(&scaler.0),
            Some(scaler) => self.0.lock().step_scaled(&scaler.0),
        })
    }

    /// Divides the gradients by the scale of a scaler, in place.
    fn unscale(&self, py: Python<'_>, scaler: &Bound<'_, _GradientScaler>) -> PyResult<()> {
        let scaler = scaler.get();
        run(py, || self.0.lock().unscale(&scaler.0))
    }

    /// Sets the learning rate of each group.
    fn set_learning_rates(&self, py: Python<'_>, rates: Vec<f64>) -> PyResult<()> {
        run(py, || self.0.lock().set_learning_rates(&rates))
    }

    /// Sets the options of each group, its learning rate too.
    fn set_options(&self, py: Python<'_>, options: Vec<Options>) -> PyResult<()> {
        run(py, || self.0.lock().set_options(&options))
    }

    /// Takes the learning rate of a group from a tensor on the device, which the host does not read.
    fn follow_learning_rate(&self, group: usize, rate: &Bound<'_, PyTensor>) -> PyResult<()> {
        let tensor = rate.tensor();
        run(rate.py(), || self.0.lock().follow_learning_rate(group, &tensor))
    }

    /// Returns whether these are the optimizer's parameters.
    fn steps(&self, tensors: Vec<Bound<'_, PyTensor>>) -> bool {
        let own = self.0.lock().parameters();
        own.len() == tensors.len() && own.iter().zip(&tensors).all(|(own, tensor)| tensor.holds(own))
    }

    /// Returns the states of each parameter by name, and the options of each group.
    fn state<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyDict>, Bound<'py, PyList>)> {
        let state = self.0.lock().state();
        let states = PyDict::new(py);
        for (number, own) in state.state {
            let named = PyDict::new(py);
            for (name, tensor) in own {
                named.set_item(name, PyTensor::object(py, tensor)?)?;
            }
            states.set_item(number, named)?;
        }
        let groups = PyList::empty(py);
        for group in state.param_groups {
            groups.append((group.options.into_iter().collect::<HashMap<_, _>>(), group.params))?;
        }
        Ok((states, groups))
    }

    /// Overwrites the states and options.
    fn load(
        &self,
        py: Python<'_>,
        states: HashMap<usize, HashMap<String, Bound<'_, PyTensor>>>,
        groups: Vec<(Options, Vec<usize>)>,
    ) -> PyResult<()> {
        let state = OptimizerState {
            state: (states.into_iter())
                .map(|(number, own)| {
                    let own = own.into_iter().map(|(name, tensor)| (name, tensor.tensor()));
                    (number, own.collect())
                })
                .collect(),
            param_groups: (groups.into_iter())
                .map(|(options, params)| GroupState { options: options.into_iter().collect(), params })
                .collect(),
        };
        run(py, || self.0.lock().load(&state))
    }
}

/// A gradient scale that adapts itself and is stored on the device.
#[pyclass(frozen)]
struct _GradientScaler(GradientScaler);

#[pymethods]
impl _GradientScaler {
    #[new]
    fn new(
        py: Python<'_>,
        init_scale: f64,
        growth_factor: f64,
        backoff_factor: f64,
        growth_interval: u32,
        device: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let device = or_current(py, device)?;
        let options = GradientScalerOptions { init_scale, growth_factor, backoff_factor, growth_interval };
        run(py, || GradientScaler::new(options, &device)).map(Self)
    }

    /// Returns the scaled loss.
    fn scale<'py>(&self, loss: &Bound<'py, PyTensor>) -> PyResult<Bound<'py, PyTensor>> {
        let own = loss.tensor();
        PyTensor::object(loss.py(), run(loss.py(), || self.0.scale(&own))?)
    }

    /// Ends the step: the scale grows or shrinks.
    fn update(&self, py: Python<'_>) -> PyResult<()> {
        run(py, || self.0.update())
    }

    /// Divides the gradients of parameters by the scale, in place. Returns a tensor that is not 0 if one of them was not finite.
    fn unscale<'py>(
        &self,
        py: Python<'py>,
        parameters: Vec<Bound<'py, PyTensor>>,
    ) -> PyResult<Bound<'py, PyTensor>> {
        let parameters = tensors(&parameters);
        PyTensor::object(py, run(py, || self.0.unscale_gradients(&parameters))?)
    }

    /// Returns three tensors: the scale, the number of consecutive steps with finite gradients, and whether a gradient of this
    /// step is not finite.
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<[Bound<'py, PyTensor>; 3]> {
        let state = self.0.state();
        let [scale, steps, found_inf] = [&state.scale, self.0.growth_steps(), &state.found_inf]
            .map(|tensor| PyTensor::object(py, tensor.clone()));
        Ok([scale?, steps?, found_inf?])
    }
}

fn tensors(objects: &[Bound<'_, PyTensor>]) -> Vec<Tensor> {
    objects.iter().map(|object| object.tensor()).collect()
}

/// Returns the norm of all tensors taken together.
#[pyfunction]
fn _total_norm<'py>(
    py: Python<'py>,
    list: Vec<Bound<'py, PyTensor>>,
    norm_type: f64,
) -> PyResult<Bound<'py, PyTensor>> {
    let list = tensors(&list);
    PyTensor::object(py, run(py, || thalweg::optim::get_total_norm(&list, norm_type))?)
}

/// Scales gradients whose norm is known so that it is at most a given number.
#[pyfunction]
fn _clip_grads_with_norm(
    py: Python<'_>,
    parameters: Vec<Bound<'_, PyTensor>>,
    max_norm: f64,
    total_norm: &Bound<'_, PyTensor>,
) -> PyResult<()> {
    let (parameters, norm) = (tensors(&parameters), total_norm.tensor());
    run(py, || thalweg::optim::clip_grads_with_norm_(&parameters, max_norm, &norm))
}

/// Clamps gradients to ± a number.
#[pyfunction]
fn _clip_grad_value(py: Python<'_>, parameters: Vec<Bound<'_, PyTensor>>, clip_value: f64) -> PyResult<()> {
    let parameters = tensors(&parameters);
    run(py, || thalweg::optim::clip_grad_value_(&parameters, clip_value))
}

/// Adds the classes and the functions.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<_FusedOptimizer>()?;
    module.add_class::<_GradientScaler>()?;
    functions![module; _optimizers, _total_norm, _clip_grads_with_norm, _clip_grad_value];
    Ok(())
}
