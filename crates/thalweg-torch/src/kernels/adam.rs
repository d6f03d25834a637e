//! Fused Adam and AdamW: `_fused_adam_` and `_fused_adamw_`, which the optimizers of PyTorch with `fused=True` come to. All tensors of a list are
//! stepped by one kernel, as by the optimizers of Thalweg ([`thalweg_ops::optimizer`]).

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_driver::Label;
use thalweg_ir::DType;
use thalweg_ir::foreach::{ForeachArguments, ForeachItem, ForeachKernel};
use thalweg_ir::host::{Cells, HostProgram, Source};
use thalweg_kernels::foreach::launches;
use thalweg_ops::optimizer::{
    AdamOptions, AdamWOptions, OptimizerOptions, OptimizerRule, OptimizerValues, StepForm, step_kernel,
};

use super::libtorch::{Stack, Tensor};
use super::original::{Adam, AdamArguments, Rate};
use super::speeds::{COLUMNS, Class, Form};
use super::work::{NativeLaunches, Place, cells, slice};
use super::{Kernels, Operator};
use crate::status::{Error, Result};

/// The key of a kernel of a step: the optimizer, its flags, the dtype of all tensors but the numbers of steps, the form.
type Key = (&'static str, u32, DType, StepForm);

/// A kernel of a step, and its program for the host.
struct Step {
    kernel: Arc<ForeachKernel>,
    program: OnceLock<HostProgram>,
}

/// The kernels of steps that were made.
#[derive(Default)]
pub(super) struct Steps(Mutex<FxHashMap<Key, Arc<Step>>>);

impl Steps {
    fn get(
        &self,
        rule: &'static OptimizerRule,
        values: &OptimizerValues,
        dtype: DType,
        form: StepForm,
    ) -> Arc<Step> {
        let mut steps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || {
            let kernel = Arc::new(step_kernel(rule, values, [dtype; 2], form));
            Arc::new(Step { kernel, program: OnceLock::new() })
        };
        Arc::clone(steps.entry((rule.name, values.flags, dtype, form)).or_insert_with(make))
    }
}

/// The tensors of a call that fit together.
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

/// Returns whether an element of f32 lies on a device.
fn is_number(tensor: &Tensor<'_>, device: i32) -> bool {
    tensor.device() == Some(device)
        && tensor.dtype() == Some(DType::F32)
        && tensor.sizes().is_some_and(|sizes| sizes.iter().product::<i64>() == 1)
}

/// Returns whether elements lie one behind the other in some order of the dimensions.
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

/// Returns the tensors of a call; `None` if one of them is not of the others' device, dtype or layout.
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
        let sizes = parameter.sizes()?;
        let elements = sizes.iter().product::<i64>().unsigned_abs();
        let strides = if parameter.is_contiguous() { None } else { Some(parameter.strides()?) };
        if strides.as_ref().is_some_and(|strides| !is_dense(&sizes, strides)) {
            return None;
        }
        let mut addresses = SmallVec::new();
        for tensor in std::iter::once(parameter).chain(states.iter().map(|list| &list[place])) {
            let lies = match &strides {
                None => tensor.is_contiguous(),
                Some(strides) => tensor.strides()? == *strides,
            };
            let fits = lies
                && tensor.dtype() == Some(dtype)
                && tensor.device() == Some(device)
                && tensor.sizes()? == sizes;
            addresses.push(if fits && elements > 0 { tensor.address()? } else { 0 });
            if !fits {
                return None;
            }
        }
        if !is_number(&steps[place], device) {
            return None;
        }
        addresses.push(steps[place].address()?);
        if elements > 0 {
            items.push(ForeachItem { elements, addresses });
        }
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
    let original = original.expect("only operators are registered whose kernel was found");
    let arguments = AdamArguments::take(stack, original);
    let taken = kernels.attempt(operator, || {
        let values = values_of(&mut O::default(), &arguments);
        attempt(kernels, operator, O::RULE, &values, &arguments)
    });
    match taken {
        Some(Ok(())) => {}
        // Some parameters are stepped already: PyTorch's kernel would step them again.
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
        // PyTorch's kernel does so, too.
        writes_gradients: scale.is_some(),
    };
    let step = kernels.steps.get(rule, values, list.dtype, form);
    let launch = ForeachArguments {
        shared: shared.iter().map(|tensor| tensor.address()).collect::<Option<_>>()?,
        scalars: number.into_iter().chain(values.numbers.iter().map(|number| number.to_bits())).collect(),
        items: list.items,
    };
    match &kernels.place {
        Place::Gpu(_) => run(kernels, operator, &step.kernel, &launch, list.device),
        Place::Host(_) => {
            // SAFETY: all tensors of an item have its elements, on the host, and nothing else uses those that are written.
            let ran = unsafe { run_on_host(&step, &launch) };
            ran.map_err(|error| kernels.give_up(operator, &error)).ok().map(Ok)
        }
    }
}

/// Launches a step: `None` if nothing was launched, and an error if only a part was.
fn run(
    kernels: &Kernels,
    operator: Operator,
    kernel: &Arc<ForeachKernel>,
    arguments: &ForeachArguments,
    device: i32,
) -> Option<Result<()>> {
    let native = NativeLaunches { kernels, device, stream: kernels.current_stream(device)? };
    for (number, launch) in launches(kernel, arguments).enumerate() {
        if let Err(error) = native.run(&launch, Label::here(operator.name())) {
            kernels.give_up(operator, &error);
            return (number > 0).then_some(Err(error));
        }
    }
    Some(Ok(()))
}

/// Runs a step on the host.
///
/// # Safety
/// Each address is that of as many elements as the kernel says, of its dtype; nothing else uses what is written.
unsafe fn run_on_host(step: &Step, arguments: &ForeachArguments) -> Result<()> {
    let kernel = &step.kernel;
    let program = step.program.get_or_init(|| HostProgram::compile(&kernel.single()));
    for item in &arguments.items {
        let address = |input: usize| match kernel.is_shared(input) {
            true => arguments.shared[kernel.place(input)],
            false => item.addresses[kernel.place(input)],
        };
        let dtype = |input: usize| kernel.body.inputs[input].dtype;
        let inputs: SmallVec<[Source<'_>; 8]> = (0..kernel.operands.len())
            .map(|input| {
                let elements = kernel.elements(input, item.elements);
                // SAFETY: the caller's promise.
                unsafe {
                    match kernel.is_written(input) {
                        true => Source::Cells(cells(dtype(input), address(input), elements)),
                        false => slice(dtype(input), address(input), elements),
                    }
                }
            })
            .collect();
        let outputs: SmallVec<[Cells<'_>; 4]> = (kernel.targets.iter())
            // SAFETY: as above.
            .map(|&target| unsafe { cells(dtype(target.into()), address(target.into()), item.elements) })
            .collect();
        let ran = program.run(&kernel.geometry(item.elements), &arguments.scalars, &inputs, &outputs);
        ran.map_err(|fault| Error::invalid(fault.to_string()))?;
    }
    Ok(())
}
