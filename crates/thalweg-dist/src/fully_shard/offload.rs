//! [`OffloadedOptimizer`]: steps parameters whose rows, gradients and states are in host memory, one unit at a time.

use std::collections::BTreeMap;
use std::sync::Arc;

use thalweg_derive::at_line;
use thalweg_lock::Mutex;
use thalweg_nn::module::Module;
use thalweg_nn::optim::{
    Optimizer, OptimizerOptions, OptimizerState, ParameterState, clip_grads_with_norm_, get_total_norm,
};
use thalweg_runtime::{Error, Result, refuse, refuse_if};
use thalweg_tensor::{Tensor, no_grad};

use super::FullyShard;
use super::offloaded::{Ahead, OffloadedTensor};
use super::unit::{Sharded, Unit};

/// An optimizer of the parameters of a [`FullyShard`] with [`OffloadPolicy::Cpu`](super::OffloadPolicy::Cpu). Its states are in
/// pinned host memory.
///
/// A step copies the rows, gradients and states of one unit after the other to the device, steps them there with the kernels of
/// [`Optimizer`], and copies them back; the copies of consecutive units overlap. PyTorch steps on the CPU instead.
pub struct OffloadedOptimizer<O> {
    options: Mutex<O>,
    windows: Vec<Window>,
}

/// A unit and its parameters.
struct Window {
    unit: Arc<Unit>,
    members: Vec<Member>,
}

/// A parameter with its optimizer states.
struct Member {
    /// The parameter's index in its unit.
    place: usize,
    /// The parameter's index in [`Module::parameters`].
    number: usize,
    states: BTreeMap<String, OffloadedTensor>,
}

/// Parameters that are on the device for a step.
struct Present<O> {
    optimizer: Optimizer<O>,
    /// The padded rows; the optimizer has the rows without the padding.
    padded: Vec<Tensor>,
}

impl Window {
    fn sharded(&self, member: &Member) -> &Sharded {
        &self.unit.parameters()[member.place]
    }

    /// Copies some parameters to the device, with an optimizer whose states are those before the first step.
    fn bring<O: OptimizerOptions>(&self, members: &[&Member], options: O) -> Result<Present<O>> {
        let (mut padded, mut rows) = (Vec::new(), Vec::new());
        for member in members {
            let [whole, own] = self.sharded(member).present()?;
            padded.push(whole);
            rows.push(own);
        }
        Ok(Present { optimizer: Optimizer::new(rows, options)?, padded })
    }

    /// Returns the states of some parameters on the device, with the options of an optimizer.
    fn states<O: OptimizerOptions>(&self, members: &[&Member], of: &Present<O>) -> Result<OptimizerState> {
        let current = self.unit.group().device().current_stream();
        let state = |member: &&Member| -> Result<ParameterState> {
            let arrived = member.states.iter().map(|(name, offloaded)| {
                let state = offloaded.arrive()?;
                state.record_stream(&current);
                Ok((name.clone(), state))
            });
            arrived.collect()
        };
        let state = members.iter().map(state).collect::<Result<Vec<_>>>()?;
        let state = state.into_iter().enumerate().collect();
        Ok(OptimizerState { state, param_groups: of.optimizer.state_dict().param_groups })
    }
}

impl<O: OptimizerOptions> OffloadedOptimizer<O> {
    /// Makes an optimizer of all parameters of a module. *Blocks* until its states are in host memory.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if a parameter is not in host memory, or an option is out of range; and errors of
    /// allocation.
    #[at_line]
    pub fn new<M: Module>(module: &FullyShard<M>, options: O) -> Result<Self> {
        let parameters = module.parameters();
        let mut windows: Vec<Window> =
            module.units().map(|unit| Window { unit: unit.clone(), members: Vec::new() }).collect();
        for (number, parameter) in parameters.iter().enumerate() {
            let found = windows.iter_mut().find_map(|window| {
                let place = window.unit.place(parameter).filter(|_| window.unit.copies().is_some())?;
                Some((window, place))
            });
            let Some((window, place)) = found else {
                refuse!(
                    "OffloadedOptimizer: the parameter {number} of the module is not in host memory: shard every unit with \
                         `OffloadPolicy::Cpu`, or make an optimizer of `parameters` if none is"
                );
            };
            window.members.push(Member { place, number, states: BTreeMap::new() });
        }
        windows.retain(|window| !window.members.is_empty());
        no_grad(|| windows.iter_mut().try_for_each(|window| start(window, options)))?;
        Ok(Self { options: Mutex::new(options), windows })
    }

    fn options(&self) -> O {
        *self.options.lock()
    }

    /// Sets the learning rate for later steps.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the rate is negative or NaN.
    #[at_line]
    pub fn set_learning_rate(&self, learning_rate: f64) -> Result<()> {
        let mut options = self.options();
        options.set_learning_rate(learning_rate);
        options.check().map_err(Error::invalid)?;
        *self.options.lock() = options;
        Ok(())
    }

    /// Drops all gradients.
    pub fn zero_grad(&self) {
        for window in &self.windows {
            window.members.iter().for_each(|member| window.sharded(member).shard.zero_grad());
        }
    }

    /// Updates every parameter that has a gradient. *Blocks* while the copies of more than two units are in progress, so the
    /// device holds the rows, gradients and states of at most two units.
    ///
    /// # Errors
    /// Those of allocation and of copies. The units before the error have then been stepped.
    #[at_line]
    pub fn step(&self) -> Result<()> {
        let (options, mut ahead) = (self.options(), Ahead::default());
        no_grad(|| {
            self.windows.iter().try_for_each(|window| {
                let has_gradient = |member: &&Member| window.sharded(member).shard.grad().is_some();
                let members: Vec<&Member> = window.members.iter().filter(has_gradient).collect();
                if members.is_empty() {
                    return Ok(());
                }
                ahead.begin()?;
                step(window, &members, options)?;
                window.unit.copies().map_or(Ok(()), |copies| ahead.end(copies.departures()))
            })
        })
    }

    /// Returns the states and options, by the index in [`Module::parameters`], as [`Optimizer::state_dict`] does. The states are
    /// copies on the device: load changed ones with [`load_state_dict`](Self::load_state_dict).
    #[at_line]
    pub fn state_dict(&self) -> Result<OptimizerState> {
        let mut all = OptimizerState::default();
        no_grad(|| {
            for window in &self.windows {
                let members: Vec<&Member> = window.members.iter().collect();
                let present = window.bring(&members, self.options())?;
                let part = window.states(&members, &present)?;
                for (member, (_, states)) in members.iter().zip(part.state) {
                    all.state.insert(member.number, states);
                }
                all.param_groups = part.param_groups;
            }
            Ok::<(), Error>(())
        })?;
        let count = all.state.len();
        all.param_groups.iter_mut().for_each(|group| group.params = (0..count).collect());
        Ok(all)
    }

    /// Overwrites states and options with saved ones, as [`Optimizer::load_state_dict`] does.
    ///
    /// # Errors
    /// Those of [`Optimizer::load_state_dict`]; if a state does not fit, the states of earlier units have been overwritten.
    #[at_line]
    pub fn load_state_dict(&self, saved: &OptimizerState) -> Result<()> {
        let [group] = &saved.param_groups[..] else {
            refuse!(
                "OffloadedOptimizer: the state has {} groups of parameters, not 1",
                saved.param_groups.len()
            );
        };
        let count: usize = self.windows.iter().map(|window| window.members.len()).sum();
        refuse_if!(
            group.params.len() != count,
            "OffloadedOptimizer: the saved group has {} parameters, the optimizer's has {count}",
            group.params.len()
        );
        no_grad(|| {
            self.windows.iter().try_for_each(|window| {
                let members: Vec<&Member> = window.members.iter().collect();
                let mut present = window.bring(&members, self.options())?;
                let own = members.iter().enumerate().filter_map(|(place, member)| {
                    Some((place, saved.state.get(&group.params[member.number])?.clone()))
                });
                let mut part = OptimizerState { state: own.collect(), param_groups: vec![group.clone()] };
                part.param_groups[0].params = (0..members.len()).collect();
                present.optimizer.load_state_dict(&part)?;
                offload_states(&members, &present)?;
                *self.options.lock() = present.optimizer.param_groups()[0].options();
                Ok(())
            })
        })
    }
}

/// Makes the states of a window's parameters.
fn start<O: OptimizerOptions>(window: &mut Window, options: O) -> Result<()> {
    let Some(copies) = window.unit.copies().cloned() else { return Ok(()) };
    let present = window.bring(&window.members.iter().collect::<Vec<_>>(), options)?;
    let mut states = present.optimizer.state_dict().state;
    for (place, member) in window.members.iter_mut().enumerate() {
        for (name, state) in states.remove(&place).unwrap_or_default() {
            member.states.insert(name, OffloadedTensor::of(&state, &copies)?);
        }
    }
    // The next window's states need not be on the device at the same time.
    copies.departures().synchronize()
}

/// Steps some parameters of a window on the device.
fn step<O: OptimizerOptions>(window: &Window, members: &[&Member], options: O) -> Result<()> {
    let mut present = window.bring(members, options)?;
    for (member, rows) in members.iter().zip(present.optimizer.parameters()) {
        rows.set_grad(window.sharded(member).gradient()?)?;
    }
    let states = window.states(members, &present)?;
    present.optimizer.load_state_dict(&states)?;
    present.optimizer.step()?;
    for (member, padded) in members.iter().zip(&present.padded) {
        window.sharded(member).offload(padded)?;
    }
    offload_states(members, &present)
}

/// Copies the states of parameters back.
fn offload_states<O: OptimizerOptions>(members: &[&Member], present: &Present<O>) -> Result<()> {
    let states = present.optimizer.state_dict().state;
    for (member, states) in members.iter().zip(states.values()) {
        for (name, state) in states {
            member.states.get(name).map_or(Ok(()), |offloaded| offloaded.offload(state))?;
        }
    }
    Ok(())
}

/// Returns the norms of the gradients of units in host memory, one tensor per unit that has gradients.
pub(super) fn norms<'u>(units: impl Iterator<Item = &'u Arc<Unit>>, norm_type: f64) -> Result<Vec<Tensor>> {
    let mut all = Vec::new();
    each(units, |_, gradients| {
        all.push(get_total_norm(gradients, norm_type)?);
        Ok(())
    })?;
    Ok(all)
}

/// Scales the gradients of units in host memory, as `clip_grads_with_norm_` does for those on the device.
pub(super) fn clip<'u>(
    units: impl Iterator<Item = &'u Arc<Unit>>,
    max_norm: f64,
    norm: &Tensor,
) -> Result<()> {
    each(units, |owners, gradients| {
        let holders: Vec<Tensor> = gradients.iter().map(Tensor::detach).collect();
        for (holder, gradient) in holders.iter().zip(gradients) {
            holder.set_grad(Some(gradient.clone()))?;
        }
        clip_grads_with_norm_(&holders, max_norm, norm)?;
        owners.iter().zip(gradients).try_for_each(|(owner, gradient)| owner.set_gradient(gradient.clone()))
    })
}

/// Calls a function, for each unit in host memory, with the parameters that have gradients, and with their gradients on the
/// device.
fn each<'u>(
    units: impl Iterator<Item = &'u Arc<Unit>>,
    mut with: impl FnMut(&[&Sharded], &[Tensor]) -> Result<()>,
) -> Result<()> {
    let mut ahead = Ahead::default();
    for unit in units {
        let Some(copies) = unit.copies() else { continue };
        let current = unit.group().device().current_stream();
        let (mut owners, mut gradients) = (Vec::new(), Vec::new());
        ahead.begin()?;
        for parameter in unit.parameters() {
            if let Some(gradient) = parameter.gradient()? {
                gradient.record_stream(&current);
                owners.push(parameter);
                gradients.push(gradient);
            }
        }
        if gradients.is_empty() {
            continue;
        }
        with(&owners, &gradients)?;
        copies.departures().wait_stream(&current)?;
        ahead.end(copies.departures())?;
    }
    Ok(())
}
