//! Fused Adam and AdamW: `_fused_adam_` and `_fused_adamw_`, which PyTorch's optimizers with `fused=True` call. One kernel steps
//! all tensors of a list, as in Thalweg's optimizers ([`thalweg_ops::optimizer`]).

use smallvec::SmallVec;
use thalweg_ir::DType;
use thalweg_ir::foreach::{ForeachArguments, ForeachItem};
use thalweg_ops::optimizer::{
    AdamOptions, AdamWOptions, OptimizerOptions, OptimizerRule, OptimizerValues, StepForm, step_kernel,
};

use super::libtorch::{Sizes, Stack, Tensor};
use super::original::{Adam, AdamArguments, Exported, Rate};
use super::speeds::{COLUMNS, Class, Form};
use super::{Kernels, Operator, foreach};
use crate::status::Result;

/// The tensors of a call, checked to be alike.
struct List {
    dtype: DType,
    device: i32,
    items: Vec<ForeachItem>,
}

impl List {
    fn class(&self) -> Class {
        let elements: u64 = self.items.iter().map(|item| item.elements).sum();
        let columns = elements / self.items.len().max(1) as u64;
        Class { form: Form::List, dtype: self.dtype, columns, contiguous: COLUMNS, elements }
    }
}

/// Returns whether a tensor is one element of f32 on a device.
fn is_number(tensor: &Tensor<'_>, device: i32) -> bool {
    tensor.device() == Some(device)
        && tensor.dtype() == Some(DType::F32)
        && tensor.sizes().is_some_and(|sizes| sizes.iter().all(|&size| size == 1))
}

/// Returns whether the elements are dense in some order of the dimensions.
fn is_dense(sizes: &[i64], strides: &[i64]) -> bool {
    let mut dimensions: SmallVec<[(i64, i64); 6]> =
        strides.iter().copied().zip(sizes.iter().copied()).filter(|(_, size)| *size != 1).collect();
    dimensions.sort_unstable();
    let mut expected = 1;
    dimensions.iter().all(|&(stride, size)| {
        let is_next = stride == expected;
        expected *= size;
        is_next
    })
}

/// The properties that all tensors of a parameter share.
struct Alike {
    dtype: DType,
    device: i32,
    sizes: Sizes,
    /// The strides; `None` for contiguous tensors.
    strides: Option<Sizes>,
}

impl Alike {
    /// Returns the properties that a parameter's gradient and states must share; `None` if its elements have gaps, or PyTorch
    /// returns an error.
    fn of(parameter: &Tensor<'_>, dtype: DType, device: i32) -> Option<Self> {
        let sizes = parameter.sizes()?;
        let strides = if parameter.is_contiguous() { None } else { Some(parameter.strides()?) };
        let is_dense = strides.as_ref().is_none_or(|strides| is_dense(&sizes, strides));
        let fits = is_dense && parameter.dtype() == Some(dtype) && parameter.device() == Some(device);
        fits.then_some(Self { dtype, device, sizes, strides })
    }

    fn elements(&self) -> u64 {
        self.sizes.iter().product::<i64>().unsigned_abs()
    }

    fn fits(&self, tensor: &Tensor<'_>) -> bool {
        let lies = match &self.strides {
            None => tensor.is_contiguous(),
            Some(strides) => tensor.strides().as_ref() == Some(strides),
        };
        lies && tensor.dtype() == Some(self.dtype)
            && tensor.device() == Some(self.device)
            && tensor.has_sizes(&self.sizes)
    }
}

/// Returns the tensors of a call; `None` if the device, dtype or layout of one of them differs.
fn list_of(arguments: &AdamArguments<'_>) -> Option<List> {
    let AdamArguments { lists: [parameters, gradients, firsts, seconds, greatest, steps], .. } = arguments;
    let states: &[&Vec<Tensor<'_>>] = match arguments.amsgrad {
        true => &[gradients, firsts, seconds, greatest],
        false => &[gradients, firsts, seconds],
    };
    let first = parameters.first()?;
    let (dtype, device) = (first.dtype()?, first.device()?);
    let is_even = states.iter().chain([&steps]).all(|list| list.len() == parameters.len());
    if !is_even || !dtype.is_floating_point() {
        return None;
    }
    let mut items = Vec::with_capacity(parameters.len());
    for (place, parameter) in parameters.iter().enumerate() {
        let alike = Alike::of(parameter, dtype, device)?;
        let states = states.iter().map(|list| &list[place]);
        if !states.clone().all(|tensor| alike.fits(tensor)) || !is_number(&steps[place], device) {
            return None;
        }
        let elements = alike.elements();
        if elements == 0 {
            continue;
        }
        let mut addresses = SmallVec::new();
        for (number, tensor) in std::iter::once(parameter).chain(states).enumerate() {
            // The second is the gradient, which is written if it is divided by a scale.
            let is_written = number != 1 || arguments.scale.is_some();
            addresses.push(if is_written { tensor.address_to_write()? } else { tensor.address()? });
        }
        addresses.push(steps[place].address()?);
        items.push(ForeachItem { elements, addresses });
    }
    Some(List { dtype, device, items })
}

/// Returns the flags of a call's optimizer, and its numbers in the order of its rule.
fn values_of<O: OptimizerOptions>(options: &mut O, arguments: &AdamArguments<'_>) -> OptimizerValues {
    let [beta1, beta2, weight_decay, epsilon] = arguments.numbers;
    let flags = [arguments.amsgrad, arguments.maximize].map(|flag| f64::from(u8::from(flag)));
    let named = [
        ("betas.0", beta1),
        ("betas.1", beta2),
        ("weight_decay", weight_decay),
        ("eps", epsilon),
        ("amsgrad", flags[0]),
        ("maximize", flags[1]),
    ];
    for (name, value) in named {
        options.set(name, value);
    }
    options.values()
}

pub(super) fn adam(kernels: &Kernels, operator: Operator, original: Option<Adam>, stack: &Stack<'_>) {
    step::<AdamOptions>(kernels, operator, original, stack);
}

pub(super) fn adamw(kernels: &Kernels, operator: Operator, original: Option<Adam>, stack: &Stack<'_>) {
    step::<AdamWOptions>(kernels, operator, original, stack);
}

/// Steps all tensors of a call.
fn step<O: OptimizerOptions>(
    kernels: &Kernels,
    operator: Operator,
    original: Option<Adam>,
    stack: &Stack<'_>,
) {
    let arguments = AdamArguments::take(stack, original.found());
    let taken = kernels.attempt(operator, || {
        let values = values_of(&mut O::default(), &arguments);
        attempt(kernels, operator, O::RULE, &values, &arguments)
    });
    match taken {
        Some(Ok(())) => {}
        // Some parameters have been stepped already; PyTorch's kernel would step them again.
        Some(Err(_)) => kernels.torch.throw(c"a fused step ended among its parameters: a launch failed"),
        None => arguments.call(),
    }
}

fn attempt(
    kernels: &Kernels,
    operator: Operator,
    rule: &'static OptimizerRule,
    values: &OptimizerValues,
    arguments: &AdamArguments<'_>,
) -> Option<Result<()>> {
    let list = list_of(arguments)?;
    if !kernels.takes(operator, &list.class()) {
        return None;
    }
    let AdamArguments { rate, scale, found_inf, .. } = arguments;
    let (rate, number) = match rate {
        Rate::Number(number, _) => (None, Some(number.to_bits())),
        Rate::Tensor(tensor, _) => (Some(tensor), None),
    };
    let shared: SmallVec<[&Tensor<'_>; 3]> = rate.into_iter().chain(scale).chain(found_inf).collect();
    if !shared.iter().all(|tensor| is_number(tensor, list.device)) {
        return None;
    }
    let form = StepForm {
        learning_rate: rate.map(|_| DType::F32),
        has_scale: scale.is_some(),
        has_found_inf: found_inf.is_some(),
        // PyTorch's kernel does the same.
        writes_gradients: scale.is_some(),
        cast: None,
    };
    let key = (rule.name, values.flags, list.dtype, form);
    let step = kernels.steps.get(key, || step_kernel(rule, values, [list.dtype; 2], form));
    let launch = ForeachArguments {
        shared: shared.iter().map(|tensor| tensor.address()).collect::<Option<_>>()?,
        scalars: number.into_iter().chain(values.numbers.iter().map(|number| number.to_bits())).collect(),
        items: list.items,
    };
    // SAFETY: all tensors of an item have its elements, on the device, and nothing else uses those that are written.
    unsafe { foreach::run(&step, kernels, operator, &launch, list.device) }
}
