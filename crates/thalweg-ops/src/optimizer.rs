//! Fused optimizers as data: an [`OptimizerRule`] is an entry of the table in `optimizer/table.rs`. Derived from it are the
//! options with their checks, the state tensors, and the kernels that step all parameters of a list in one launch.
//!
//! # A step
//! A step is two kernels over a list of parameters (`thalweg_ir::foreach`): [`count_kernel`] advances the states that are one
//! number per parameter (such as the number of steps), [`step_kernel`] updates the parameters and the states that have their
//! shape. Values that change from step to step are in device memory, so that a replayed capture of a step continues correctly:
//! step counts, the learning rate, and, for gradient scaling, the scale and whether a gradient was not finite, in which case
//! nothing changes.
//!
//! # Adding an optimizer
//! An entry of the table, and a type alias in `thalweg_nn::optim`.

mod number;
mod table;

use smallvec::SmallVec;
use thalweg_ir::foreach::{ForeachKernel, ForeachOperand};
use thalweg_ir::{BodyBuilder, DType, OutputPlace, Value};

pub use number::Number;
pub use table::*;

/// The values that an option of an optimizer may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// At least 0.
    AtLeastZero,
    /// Above 0.
    Positive,
    /// At least 0 and less than 1.
    BelowOne,
    /// Any number.
    Any,
}

impl Bound {
    /// Returns the requirement that a value violates, if it is out of bounds.
    pub fn violated(self, value: f64) -> Option<&'static str> {
        let (holds, text) = match self {
            Self::AtLeastZero => (value >= 0.0, "must be at least 0"),
            Self::Positive => (value > 0.0, "must be above 0"),
            Self::BelowOne => ((0.0..1.0).contains(&value), "must be in [0, 1)"),
            Self::Any => (!value.is_nan(), "must be a number"),
        };
        (!holds).then_some(text)
    }
}

/// A number that an optimizer takes in addition to its learning rate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct NumberRule {
    /// Its name in PyTorch's state dictionaries: that of the options' field, and of a pair there `betas.0` and `betas.1`.
    pub name: &'static str,
    /// The values that the number may have.
    pub bound: Bound,
}

/// A state that is one number per parameter.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ScalarStateRule {
    /// PyTorch's name, or the entry's own for a state that is not saved.
    pub name: &'static str,
    /// The initial value.
    pub start: f64,
    /// Whether the state is part of a saved state. A state that is not carries a number from a step's first kernel to its second.
    pub is_saved: bool,
}

/// A fused optimizer: names, and the bodies of its two kernels.
#[derive(Clone, Copy, Debug)]
pub struct OptimizerRule {
    /// The first part of the names of the optimizer's kernels: letters, digits and underscores.
    pub name: &'static str,
    /// The name of a step in labels, traces and reports (`adam_step`).
    pub step_label: &'static str,
    /// The name of counting a step in labels, traces and reports (`adam_count`).
    pub count_label: &'static str,
    /// The name of the optimizer's class, PyTorch's if PyTorch has it.
    pub title: &'static str,
    /// The numbers that the optimizer takes in addition to the learning rate.
    pub numbers: &'static [NumberRule],
    /// The options that are fixed when a kernel is built: the names of the bits of [`OptimizerValues::flags`].
    pub flags: &'static [&'static str],
    /// The states that have the parameter's shape and dtype, by PyTorch's names.
    pub states: &'static [&'static str],
    /// The states that are one number per parameter, except the number of steps.
    pub scalar_states: &'static [ScalarStateRule],
    /// Returns the default options.
    pub defaults: fn() -> OptimizerValues,
    /// Writes the body of a step.
    step: fn(&mut StepBody<'_>),
    /// Writes the body that computes the next scalar states.
    count: fn(&mut StepBody<'_>),
}

/// The options of an optimizer with values for all of them.
#[derive(Clone, PartialEq, Debug)]
pub struct OptimizerValues {
    /// The step size.
    pub learning_rate: f64,
    /// The numbers, in the order of [`OptimizerRule::numbers`].
    pub numbers: SmallVec<[f64; 8]>,
    /// The flags as bits, in the order of [`OptimizerRule::flags`], from the lowest bit on.
    pub flags: u32,
    /// The initial value of each of [`OptimizerRule::states`]; `None` for a state that these options do not need.
    pub states: SmallVec<[Option<f64>; 4]>,
}

/// The options of an optimizer: a struct that the table generates from the optimizer's entry.
pub trait OptimizerOptions:
    Clone + Copy + PartialEq + std::fmt::Debug + Default + Send + Sync + 'static
{
    /// The optimizer.
    const RULE: &'static OptimizerRule;

    /// Returns all values, in the rule's order.
    fn values(&self) -> OptimizerValues;

    /// Returns the options by the names of [`NumberRule::name`], `lr` and the flags; a flag is 1 or 0.
    fn named(&self) -> Vec<(&'static str, f64)>;

    /// Sets the learning rate.
    fn set_learning_rate(&mut self, value: f64) {
        self.set("lr", value);
    }

    /// Sets the option with this name; a flag is set if the value is not 0. Returns whether the option exists.
    fn set(&mut self, option: &str, value: f64) -> bool;

    /// Returns the requirement on several options together that these options violate, if they violate one.
    fn conflict(&self) -> Option<&'static str>;

    /// Checks every value, and the values together.
    ///
    /// # Errors
    /// A sentence that begins with the optimizer's title and names the invalid value.
    fn check(&self) -> Result<(), String> {
        let OptimizerValues { learning_rate, numbers, .. } = self.values();
        let rule = Self::RULE;
        let named =
            rule.numbers.iter().zip(numbers).map(|(number, value)| (number.name, number.bound, value));
        let all = std::iter::once(("lr", Bound::AtLeastZero, learning_rate)).chain(named);
        for (name, bound, value) in all {
            if let Some(must) = bound.violated(value) {
                return Err(format!("{}: {name} is {value}, and {must}", rule.title));
            }
        }
        match self.conflict() {
            Some(conflict) => Err(format!("{}: {conflict}", rule.title)),
            None => Ok(()),
        }
    }
}

impl OptimizerRule {
    /// Returns the numbers of the states that these options need.
    pub fn kept<'a>(&self, values: &'a OptimizerValues) -> impl Iterator<Item = usize> + 'a {
        values.states.iter().enumerate().filter(|(_, start)| start.is_some()).map(|(state, _)| state)
    }

    /// Returns the default options, and options with every flag and every state: the variants that tests compile.
    pub fn variants(&self) -> [OptimizerValues; 2] {
        let defaults = (self.defaults)();
        let all = OptimizerValues {
            flags: (1 << self.flags.len()) - 1,
            states: self.states.iter().map(|_| Some(0.0)).collect(),
            ..defaults.clone()
        };
        [defaults, all]
    }

    /// Returns the part of a kernel's name that encodes the flags.
    fn variant(&self, flags: u32) -> String {
        let set = self.flags.iter().enumerate().filter(|(bit, _)| flags >> bit & 1 == 1);
        set.map(|(_, name)| format!("_{name}")).collect()
    }

    /// Returns whether a flag is set in the bits of a call.
    fn is_set(&self, flags: u32, name: &str) -> bool {
        let bit = self.flags.iter().position(|&flag| flag == name).expect("the rule has the flag");
        flags >> bit & 1 == 1
    }
}

/// The values that all tensors of a step share, and the treatment of the gradients.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StepForm {
    /// The dtype of the learning rate, one element in device memory; `None` for a scalar in f64, which precedes the rule's
    /// numbers.
    pub learning_rate: Option<DType>,
    /// Whether gradients are divided by a scale: one element of f32.
    pub has_scale: bool,
    /// Whether one element of f32 states, by not being 0, that a gradient is not finite and the step changes nothing.
    pub has_found_inf: bool,
    /// Whether gradients are overwritten with themselves divided by the scale.
    pub writes_gradients: bool,
    /// The dtype of a second copy of the parameters, written to separate memory: the casts that autocast would compute.
    pub cast: Option<DType>,
}

impl Default for StepForm {
    /// Returns PyTorch's options: everything that changes from step to step is in device memory, with the learning rate in f64;
    /// gradients are not changed.
    fn default() -> Self {
        Self {
            learning_rate: Some(DType::F64),
            has_scale: true,
            has_found_inf: true,
            writes_gradients: false,
            cast: None,
        }
    }
}

impl StepForm {
    /// Returns the part of a kernel's name that distinguishes the form from the default one.
    fn variant(self) -> String {
        let Self { learning_rate, has_scale, has_found_inf, writes_gradients, cast } = self;
        if self == Self::default() {
            return String::new();
        }
        let rate = learning_rate.map_or("scalar", DType::name);
        let marks = [(has_scale, "_scaled"), (has_found_inf, "_skipped"), (writes_gradients, "_gradients")];
        let name = marks.iter().filter(|(is, _)| *is).fold(format!("_{rate}"), |name, (_, mark)| name + mark);
        cast.map_or(name.clone(), |cast| format!("{name}_cast_{cast}"))
    }
}

/// Builds the kernel that steps parameters and gradients of these dtypes.
///
/// Each tensor has its own elements of parameter, gradient and the states that the options need, its number of steps and its
/// other scalar states (f32 each), and its cast, if the form has one. All tensors share the learning rate, the scale and
/// `found_inf`, in this order, as far as the form has them in device memory. Scalars are the rule's numbers, in f64.
pub fn step_kernel(
    rule: &'static OptimizerRule,
    values: &OptimizerValues,
    dtypes: [DType; 2],
    form: StepForm,
) -> ForeachKernel {
    let [parameter, gradient] = dtypes;
    let builder = BodyBuilder::new();
    let operands = write_step(&builder, rule, values, dtypes, form);
    let gradients = form.writes_gradients.then_some(1);
    let cast = form.cast.map(|_| operands.len() as u16 - 1);
    let states = (2..).take(rule.kept(values).count());
    let targets = std::iter::once(0).chain(states).chain(gradients).chain(cast).collect();
    let variant = rule.variant(values.flags) + &form.variant();
    let name = format!("{}{variant}_step_{parameter}_{gradient}", rule.name);
    ForeachKernel { name, body: builder.finish(), operands, targets }
}

fn write_step<'b>(
    builder: &'b BodyBuilder,
    rule: &'static OptimizerRule,
    values: &OptimizerValues,
    [parameter_dtype, gradient_dtype]: [DType; 2],
    form: StepForm,
) -> SmallVec<[ForeachOperand; 8]> {
    let mut operands = SmallVec::new();
    let mut input = |operand: ForeachOperand, dtype: DType| {
        operands.push(operand);
        builder.input(dtype)
    };
    let parameter = input(ForeachOperand::Elements, parameter_dtype);
    let gradient = input(ForeachOperand::Elements, gradient_dtype).to(parameter.dtype());
    let mut state = |start: &Option<f64>| match start {
        Some(_) => input(ForeachOperand::Elements, parameter_dtype),
        None => parameter.like(0.0),
    };
    let states: SmallVec<[Value<'b>; 4]> = values.states.iter().map(&mut state).collect();
    let mut number = || Number::new(input(ForeachOperand::PerTensor, DType::F32));
    let scalar_states = (0..=rule.scalar_states.len()).map(|_| number()).collect();
    let learning_rate = Number::new(match form.learning_rate {
        Some(dtype) => input(ForeachOperand::Shared, dtype),
        None => builder.scalar(DType::F64),
    });
    let [scale, found_inf] = [form.has_scale, form.has_found_inf]
        .map(|is_there| is_there.then(|| input(ForeachOperand::Shared, DType::F32)));
    let unscaled = scale.map_or(gradient, |scale| gradient / scale.to(parameter.dtype()));
    let mut body = StepBody {
        rule,
        flags: values.flags,
        parameter,
        gradient: if rule.is_set(values.flags, "maximize") { -unscaled } else { unscaled },
        states: states.clone(),
        scalar_states,
        learning_rate,
        numbers: rule.numbers.iter().map(|_| Number::new(builder.scalar(DType::F64))).collect(),
    };
    (rule.step)(&mut body);
    let skip = found_inf.map(|found_inf| found_inf.eq(0.0).logical_not());
    let write = |old: Value<'b>, new: Value<'b>, dtype: DType| {
        let value = skip.map_or(new, |skip| skip.select(old, new));
        builder.output(value, dtype, OutputPlace::Row);
    };
    write(parameter, body.parameter, parameter_dtype);
    for state in rule.kept(values) {
        write(states[state], body.states[state], parameter_dtype);
    }
    if form.writes_gradients {
        write(gradient, unscaled, gradient_dtype);
    }
    if let Some(cast) = form.cast {
        write(parameter, body.parameter, cast);
        operands.push(ForeachOperand::Elements);
        builder.input(cast);
    }
    operands
}

/// Builds the kernel that counts a step, unless a gradient was not finite. It runs over the numbers of steps and the other scalar
/// states (f32). All tensors share the learning rate (f64) and whether a gradient was not finite (f32). Scalars are the rule's
/// numbers.
pub fn count_kernel(rule: &'static OptimizerRule, values: &OptimizerValues) -> ForeachKernel {
    let builder = BodyBuilder::new();
    write_count(&builder, rule, values);
    let states = 1 + rule.scalar_states.len();
    let mut operands = SmallVec::from_elem(ForeachOperand::Elements, states);
    operands.extend([ForeachOperand::Shared; 2]);
    let name = format!("{}{}_count", rule.name, rule.variant(values.flags));
    ForeachKernel { name, body: builder.finish(), operands, targets: (0..states as u16).collect() }
}

fn write_count<'b>(builder: &'b BodyBuilder, rule: &'static OptimizerRule, values: &OptimizerValues) {
    let old: SmallVec<[Value<'b>; 2]> =
        (0..=rule.scalar_states.len()).map(|_| builder.input(DType::F32)).collect();
    let learning_rate = Number::new(builder.input(DType::F64));
    let found_inf = builder.input(DType::F32);
    let zero = old[0].like(0.0);
    let mut body = StepBody {
        rule,
        flags: values.flags,
        parameter: zero,
        gradient: zero,
        states: SmallVec::new(),
        scalar_states: old.iter().map(|&value| Number::new(value)).collect(),
        learning_rate,
        numbers: rule.numbers.iter().map(|_| Number::new(builder.scalar(DType::F64))).collect(),
    };
    body.scalar_states[0] = body.scalar_states[0] + 1.0;
    (rule.count)(&mut body);
    let skip = found_inf.eq(0.0).logical_not();
    for (&old, new) in old.iter().zip(&body.scalar_states) {
        builder.output(skip.select(old, new.to(DType::F32)), DType::F32, OutputPlace::Row);
    }
}

/// The values of a step while its body is written. The table's macro makes them available to the entries' formulas by name.
struct StepBody<'b> {
    rule: &'static OptimizerRule,
    flags: u32,
    parameter: Value<'b>,
    gradient: Value<'b>,
    states: SmallVec<[Value<'b>; 4]>,
    /// The number of steps, including this one, then the rule's scalar states.
    scalar_states: SmallVec<[Number<'b>; 2]>,
    learning_rate: Number<'b>,
    numbers: SmallVec<[Number<'b>; 8]>,
}

impl StepBody<'_> {
    fn flag(&self, name: &str) -> bool {
        self.rule.is_set(self.flags, name)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{OPTIMIZERS, OptimizerOptions, SgdOptions, StepForm, step_kernel};
    use thalweg_ir::DType;

    #[test]
    fn kernels_of_one_name_are_one_kernel() {
        let mut names = BTreeSet::new();
        for (rule, values) in OPTIMIZERS.iter().flat_map(|rule| rule.variants().map(|values| (rule, values)))
        {
            for learning_rate in [None, Some(DType::F32), Some(DType::F64)] {
                for bits in 0..16 {
                    let [has_scale, has_found_inf, writes_gradients, has_cast] =
                        [0, 1, 2, 3].map(|bit| bits >> bit & 1 == 1);
                    let cast = has_cast.then_some(DType::F16);
                    let form = StepForm { learning_rate, has_scale, has_found_inf, writes_gradients, cast };
                    let kernel = step_kernel(rule, &values, [DType::Bf16, DType::F32], form);
                    assert!(thalweg_ir::cuda::print_foreach(&kernel).contains(&kernel.name));
                    assert!(names.insert(kernel.name), "{} {names:?}", rule.name);
                }
            }
        }
        assert_eq!(names.len(), 2 * 48 * OPTIMIZERS.len());
    }

    #[test]
    fn options_say_what_is_wrong_with_them() {
        let check = |options: SgdOptions| options.check().unwrap_err();
        let momentum = SgdOptions { momentum: f64::NAN, ..SgdOptions::default() };
        assert_eq!(check(momentum), "SGD: momentum is NaN, and must be at least 0");
        let nesterov = SgdOptions { nesterov: true, ..SgdOptions::default() };
        assert_eq!(check(nesterov), "SGD: nesterov needs a momentum above 0 and no dampening");
        assert_eq!(SgdOptions { momentum: 0.5, ..nesterov }.check(), Ok(()));
    }
}
