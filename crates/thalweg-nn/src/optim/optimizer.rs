//! [`Optimizer`]: the optimizer, generic over its rule.

use std::panic::Location;

use thalweg_derive::at_line;
use thalweg_ir::DType;
use thalweg_ops::optimizer::{Bound, OptimizerOptions};
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::GradientScale;
use super::clip::clip_scale;
use super::group::{Group, memory_order};
use thalweg_tensor::Tensor;
use thalweg_tensor::caller::at_line;

/// An optimizer with the rule of its options, like PyTorch's with `fused=True` and `capturable=True`.
///
/// Step counts and learning rates are in device memory, and so is the scale of the gradients, if there is one. In a captured
/// step, the other options keep the values that they had at the capture.
#[derive(Debug)]
pub struct Optimizer<O> {
    groups: Vec<ParamGroup<O>>,
    /// The state without gradient scaling: 1 and 0.
    unscaled: GradientScale,
    /// Whether a gradient was not finite when a scaler unscaled them last.
    found_inf: Tensor,
}

/// Parameters of an optimizer that have options of their own (`param_groups`).
#[derive(Debug)]
pub struct ParamGroup<O> {
    options: O,
    pub(super) group: Group,
}

impl<O: OptimizerOptions> ParamGroup<O> {
    /// Creates a group over parameters that were checked.
    pub(super) fn new(parameters: Vec<Tensor>, options: O) -> Result<Self> {
        Ok(Self { options, group: Group::new(O::RULE, options.values(), parameters)? })
    }

    /// Returns the options, with the learning rate that was set last on the host.
    pub fn options(&self) -> O {
        let mut options = self.options;
        options.set_learning_rate(self.learning_rate());
        options
    }

    /// Returns the parameters.
    pub fn parameters(&self) -> impl ExactSizeIterator<Item = &Tensor> {
        self.group.parameters.iter().map(|parameter| &parameter.value)
    }

    /// Returns the learning rate that was set last on the host.
    pub fn learning_rate(&self) -> f64 {
        *self.group.last_learning_rate.lock()
    }

    /// Returns the learning rate on the device, which steps read: one element of f64. Captured steps follow values that are
    /// written into it.
    pub fn learning_rate_tensor(&self) -> &Tensor {
        &self.group.learning_rate
    }

    /// Returns the number of steps of a parameter: one element of f32 on the device.
    pub fn steps(&self, parameter: usize) -> &Tensor {
        &self.group.parameters[parameter].scalar_states[0]
    }

    /// Changes options that require neither other states nor another kernel.
    pub(super) fn replace_options(&mut self, options: O) {
        self.options = options;
        self.group.values = options.values();
    }
}

impl<O: OptimizerOptions> Optimizer<O> {
    /// Makes an optimizer of one group of parameters: leaves of floats without gaps in memory, all on one device, none of which
    /// shares memory with another.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the parameters do not satisfy this, or an option is out of its bounds.
    #[at_line]
    pub fn new(parameters: Vec<Tensor>, options: O) -> Result<Self> {
        check::<O>(&parameters, &options, &[])?;
        let device = parameters[0].device().clone();
        let number = |value: f64| Tensor::full(&[], value, DType::F32, &device);
        let unscaled = GradientScale { scale: number(1.0)?, found_inf: number(0.0)? };
        let found_inf = number(0.0)?;
        Ok(Self { groups: vec![ParamGroup::new(parameters, options)?], unscaled, found_inf })
    }

    /// Adds a group of parameters with options of its own (`add_param_group`).
    ///
    /// # Errors
    /// Those of [`Optimizer::new`]; also if a parameter shares memory with one of another group.
    #[at_line]
    pub fn add_param_group(&mut self, parameters: Vec<Tensor>, options: O) -> Result<()> {
        let others: Vec<&Tensor> = self.parameters().collect();
        check::<O>(&parameters, &options, &others)?;
        self.groups.push(ParamGroup::new(parameters, options)?);
        Ok(())
    }

    /// Returns the groups of parameters.
    pub fn param_groups(&self) -> &[ParamGroup<O>] {
        &self.groups
    }

    pub(super) fn param_groups_mut(&mut self) -> &mut [ParamGroup<O>] {
        &mut self.groups
    }

    /// Removes all gradients.
    pub fn zero_grad(&self) {
        self.parameters().for_each(Tensor::zero_grad);
    }

    /// Returns the parameters, group after group.
    pub fn parameters(&self) -> impl Iterator<Item = &Tensor> {
        self.groups.iter().flat_map(ParamGroup::parameters)
    }

    /// Sets the learning rate of every group. Asynchronous: later steps of the current stream use it, including replayed ones.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the rate is not at least 0.
    #[at_line]
    pub fn set_learning_rate(&self, learning_rate: f64) -> Result<()> {
        self.set_learning_rates(&vec![learning_rate; self.groups.len()])
    }

    /// Copies the learning rate of one group from a tensor of one element. Asynchronous, and the host reads nothing: later steps
    /// of the current stream use it, including replayed ones. The optimizer still returns the rate that was set last on the host.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if there is no such group, or the tensor does not have exactly one element.
    #[at_line]
    pub fn follow_learning_rate(&self, group: usize, rate: &Tensor) -> Result<()> {
        let Some(found) = self.groups.get(group) else {
            refuse!("{}: there is no group {group}", O::RULE.title);
        };
        refuse_if!(rate.elements() != 1, "{}: a learning rate is one number, not {rate:?}", O::RULE.title);
        found.group.follow_learning_rate(rate)
    }

    /// Sets the learning rate of each group, as [`Optimizer::set_learning_rate`] does.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if there is not one rate per group, or a rate is not at least 0.
    #[at_line]
    pub fn set_learning_rates(&self, learning_rates: &[f64]) -> Result<()> {
        let title = O::RULE.title;
        refuse_if!(
            learning_rates.len() != self.groups.len(),
            "{title}: there are {} learning rates for {} groups of parameters",
            learning_rates.len(),
            self.groups.len()
        );
        for &rate in learning_rates {
            if let Some(must) = Bound::AtLeastZero.violated(rate) {
                refuse!("{title}: lr is {rate}, and {must}");
            }
        }
        let mut pairs = self.groups.iter().zip(learning_rates);
        pairs.try_for_each(|(group, &rate)| group.group.set_learning_rate(rate))
    }

    /// Sets the options of each group, including its learning rate. The states are kept.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if there are not options for each group, or an option is out of its bounds or requires
    /// other states or kernels than the group has. Then nothing has changed.
    #[at_line]
    pub fn set_options(&mut self, options: &[O]) -> Result<()> {
        let fail = |text: String| Err(invalid!("{}: {text}", O::RULE.title));
        if options.len() != self.groups.len() {
            return fail(format!("there are options for {} groups of {}", options.len(), self.groups.len()));
        }
        for (group, options) in self.groups.iter().zip(options) {
            options.check().map_err(Error::invalid)?;
            if options.values().flags != group.group.values.flags {
                return fail(format!(
                    "{options:?} need other states and kernels; make an optimizer with them"
                ));
            }
        }
        self.groups.iter_mut().zip(options).try_for_each(|(group, &options)| {
            let rate = options.values().learning_rate;
            group.replace_options(options);
            if rate == group.learning_rate() { Ok(()) } else { group.group.set_learning_rate(rate) }
        })
    }

    /// Updates every parameter that has a gradient. Asynchronous.
    #[at_line]
    pub fn step(&self) -> Result<()> {
        self.step_at(&self.unscaled, Location::caller(), |_| true)
    }

    /// Updates those of these parameters that have a gradient and belong to the optimizer; the others are not changed.
    /// Asynchronous. `DistributedDataParallel` uses this to step the parameters whose gradients it has reduced.
    #[track_caller]
    pub fn step_parameters(&self, parameters: &[Tensor]) -> Result<()> {
        let is_stepped = |own: &Tensor| parameters.iter().any(|parameter| parameter.is_same(own));
        at_line(Location::caller(), || self.step_at(&self.unscaled, Location::caller(), is_stepped))
    }

    /// Updates every parameter that has a gradient, using scaled gradients, unless one of them is not finite. Asynchronous: the
    /// host reads nothing.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if a tensor of the scale is not one element of f32 on the parameters' device.
    #[at_line]
    pub fn step_scaled(&self, gradient_scale: &GradientScale) -> Result<()> {
        let device = self.unscaled.scale.device();
        for tensor in [&gradient_scale.scale, &gradient_scale.found_inf] {
            refuse_if!(
                tensor.elements() != 1 || tensor.dtype() != DType::F32 || tensor.device() != device,
                "{}: {tensor:?} of the gradient scale must be one element of float32 on {device}",
                O::RULE.title
            );
        }
        self.step_at(gradient_scale, Location::caller(), |_| true)
    }

    /// Updates every parameter that has a gradient as [`clip_grad_norm_`](super::clip_grad_norm_) and [`step`](Self::step) would,
    /// and returns the norm of all gradients together. The step's launch scales the gradients without writing them: they are read
    /// once for the norm and once for the step. They are divided by max(1, (norm + 10⁻⁶) / max_norm), which may differ in the
    /// last place. Asynchronous.
    #[at_line]
    pub fn step_clipped(&self, max_norm: f64, norm_type: f64) -> Result<Tensor> {
        let (title, location) = (O::RULE.title, Location::caller());
        let (norm, scale) = clip_scale(title, self.parameters(), max_norm, norm_type, location)?;
        let found_inf = self.unscaled.found_inf.clone();
        self.step_at(&GradientScale { scale, found_inf }, location, |_| true)?;
        Ok(norm)
    }

    /// Returns whether a gradient was not finite when a scaler unscaled them last: one element of f32 on the device.
    pub(super) fn found_inf(&self) -> &Tensor {
        &self.found_inf
    }

    fn step_at(
        &self,
        scale: &GradientScale,
        location: &'static Location<'static>,
        is_stepped: impl Fn(&Tensor) -> bool,
    ) -> Result<()> {
        // Everything that can fail precedes the first launch, so that a step that fails has changed nothing.
        let prepared =
            self.groups.iter().map(|group| group.group.prepare(&is_stepped)).collect::<Result<Vec<_>>>()?;
        prepared.iter().try_for_each(|group| group.launch(scale, location))
    }
}

/// Refuses options and parameters that cannot be stepped together with parameters that are already stepped.
fn check<O: OptimizerOptions>(parameters: &[Tensor], options: &O, others: &[&Tensor]) -> Result<()> {
    options.check().map_err(Error::invalid)?;
    check_parameters(O::RULE.title, parameters, others)
}

/// Returns whether a number is at least another; false for NaN.
pub(super) fn is_at_least(value: f64, least: f64) -> bool {
    value >= least
}

/// Refuses parameters that cannot be stepped together with parameters that are already stepped.
pub(super) fn check_parameters(title: &str, parameters: &[Tensor], others: &[&Tensor]) -> Result<()> {
    let fail = |text: String| Err(invalid!("{title}: {text}"));
    let Some(first) = others.first().copied().or(parameters.first()) else {
        return fail("there is no parameter to optimize".into());
    };
    if parameters.is_empty() {
        return fail("there is no parameter in the group".into());
    }
    for parameter in parameters {
        let is_number = parameter.dtype().is_floating_point() && !parameter.dtype().is_float8();
        if !is_number || !parameter.permute(&memory_order(parameter))?.is_contiguous() {
            return fail(format!(
                "{parameter:?} is not a floating-point parameter without gaps in its memory"
            ));
        }
        if parameter.device().is_meta() {
            return fail(format!(
                "{parameter:?} has no elements to step; parameters of a sharded module in host memory have an optimizer of their own \
                 (`OffloadedOptimizer`)"
            ));
        }
        if parameter.device() != first.device() {
            let (here, there) = (first.device(), parameter.device());
            return fail(format!(
                "the parameters are on two devices, {here} and {there}; make an optimizer for each"
            ));
        }
        if !parameter.is_leaf() {
            return fail(format!(
                "{parameter:?} is not a leaf: it was computed by an operator, so no gradient is kept for it; optimize what it was \
                 computed from, or detach it"
            ));
        }
    }
    let range = |parameter: &'_ Tensor| {
        let start = parameter.pointer().address();
        (start, start + (parameter.elements() * parameter.dtype().size_bytes()) as u64)
    };
    let all = parameters.iter().chain(others.iter().copied());
    let mut ranges: Vec<_> = all.map(|parameter| (range(parameter), parameter)).collect();
    ranges.retain(|((start, end), _)| start < end);
    ranges.sort_unstable_by_key(|&(range, _)| range);
    match ranges.windows(2).find(|pair| pair[1].0.0 < pair[0].0.1) {
        Some(pair) => fail(format!(
            "{:?} and {:?} share memory, which would be stepped twice; name each parameter once",
            pair[0].1, pair[1].1
        )),
        None => Ok(()),
    }
}
