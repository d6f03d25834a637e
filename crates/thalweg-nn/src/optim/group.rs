//! [`Group`]: parameters that are stepped with the same options, and the launches of a step.

use std::panic::Location;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_execute::{Kernels, execute};
use thalweg_ir::DType;
use thalweg_ir::foreach::{ForeachArguments, ForeachItem, ForeachKernel};
use thalweg_lock::Mutex;
use thalweg_ops::optimizer::{OptimizerRule, OptimizerValues, StepForm, count_kernel, step_kernel};
use thalweg_runtime::{Result, Stream};

use thalweg_tensor::Tensor;
use thalweg_tensor::autocast::KeptCast;
use thalweg_tensor::caller::label_at;
use thalweg_tensor::no_grad;

/// The state of gradient scaling that a step reads, on the device (`grad_scale` and `found_inf` of PyTorch's fused optimizers): one
/// element of f32 each.
#[derive(Clone, Debug)]
pub struct GradientScale {
    /// The factor that the gradients were multiplied by, and must be divided by.
    pub scale: Tensor,
    /// A number that is not 0 if a gradient is not finite. In that case the step changes nothing and is not counted.
    pub found_inf: Tensor,
}

/// Parameters with the same options.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) rule: &'static OptimizerRule,
    pub(super) values: OptimizerValues,
    pub(super) parameters: Vec<Parameter>,
    /// The learning rate: one element of f64.
    pub(super) learning_rate: Tensor,
    /// The learning rate that the host set last.
    pub(super) last_learning_rate: Mutex<f64>,
    /// The scalar states in f32: a row of step counts, then one row per scalar state of the rule; one column per parameter.
    scalar_states: Tensor,
    /// Whether steps are counted, which is the case if parameters have any state.
    pub(super) counts: bool,
    count_kernel: Arc<ForeachKernel>,
    step_kernels: Mutex<FxHashMap<Dtypes, Arc<ForeachKernel>>>,
}

/// A parameter with its states.
#[derive(Debug)]
pub(super) struct Parameter {
    pub(super) value: Tensor,
    /// The states that the options require, in the rule's order.
    pub(super) states: SmallVec<[Tensor; 4]>,
    /// The scalar states, one element each: the step count, then the rule's.
    pub(super) scalar_states: SmallVec<[Tensor; 2]>,
    /// The parameter's cast that regions of autocast use.
    cast: Option<Arc<KeptCast>>,
}

/// The dtypes of a parameter and its gradient, and of the cast that is written with the parameter.
type Dtypes = (DType, DType, Option<DType>);

/// A parameter that is stepped.
struct Stepped<'a> {
    /// The number of the parameter in its group.
    number: usize,
    parameter: &'a Parameter,
    /// The gradient, with its elements in the parameter's memory order.
    gradient: Tensor,
    /// The cast that is written with the parameter.
    cast: Option<Tensor>,
}

/// A list of parameters that one kernel steps.
struct List<'a> {
    dtypes: Dtypes,
    kernel: Arc<ForeachKernel>,
    parameters: Vec<Stepped<'a>>,
}

/// A step of a group that is prepared up to its launches.
pub(super) struct Prepared<'a> {
    group: &'a Group,
    lists: Vec<List<'a>>,
}

impl Group {
    pub(super) fn new(
        rule: &'static OptimizerRule,
        values: OptimizerValues,
        parameters: Vec<Tensor>,
    ) -> Result<Self> {
        no_grad(|| {
            let device = parameters[0].device().clone();
            let row = |start: f64| Tensor::full(&[1, parameters.len()], start, DType::F32, &device);
            let shape = [1 + rule.scalar_states.len(), parameters.len()];
            let scalar_states = Tensor::empty(&shape, DType::F32, &device)?;
            let starts = std::iter::once(0.0).chain(rule.scalar_states.iter().map(|state| state.start));
            for (number, start) in starts.enumerate() {
                scalar_states.narrow(0, number, 1)?.copy_(&row(start)?)?;
            }
            let learning_rate = Tensor::full(&[], values.learning_rate, DType::F64, &device)?;
            let parameters = parameters
                .into_iter()
                .enumerate()
                .map(|(number, value)| {
                    let state = |start: &f64| value.detach().full_like(*start);
                    let states = values.states.iter().flatten().map(state).collect::<Result<_>>()?;
                    let column = scalar_states.select(1, number)?;
                    let scalar_states = column.unbind(0)?.into();
                    // The cast made by a region is in the order of the dimensions.
                    let cast = value.is_contiguous().then(|| KeptCast::of(&value)).flatten();
                    Ok(Parameter { value, states, scalar_states, cast })
                })
                .collect::<Result<_>>()?;
            Ok(Self {
                rule,
                last_learning_rate: Mutex::new(values.learning_rate),
                learning_rate,
                parameters,
                scalar_states,
                counts: values.states.iter().any(Option::is_some),
                count_kernel: Arc::new(count_kernel(rule, &values)),
                step_kernels: Mutex::default(),
                values,
            })
        })
    }

    /// Sets the learning rate, in the order of the current stream.
    pub(super) fn set_learning_rate(&self, learning_rate: f64) -> Result<()> {
        no_grad(|| {
            let device = self.learning_rate.device();
            self.learning_rate.copy_(&Tensor::full(&[], learning_rate, DType::F64, device)?)?;
            self.learning_rate.record_stream(&device.current_stream());
            *self.last_learning_rate.lock() = learning_rate;
            Ok(())
        })
    }

    /// Copies the learning rate from a tensor of one element, in the order of the current stream, without reading it on the host.
    pub(super) fn follow_learning_rate(&self, rate: &Tensor) -> Result<()> {
        no_grad(|| {
            let device = self.learning_rate.device();
            let rate = rate.detach().reshape(())?.to_dtype(DType::F64)?;
            let rate = if rate.device() == device { rate } else { rate.to_device(device)? };
            self.learning_rate.copy_(&rate)?;
            self.learning_rate.record_stream(&device.current_stream());
            Ok(())
        })
    }

    /// Performs everything of a step of some parameters that can fail, before its first launch.
    pub(super) fn prepare(&self, is_stepped: impl Fn(&Tensor) -> bool) -> Result<Prepared<'_>> {
        let mut lists: Vec<List<'_>> = Vec::new();
        for (number, parameter) in
            self.parameters.iter().enumerate().filter(|(_, one)| is_stepped(&one.value))
        {
            let Some(gradient) = parameter.value.grad() else { continue };
            let gradient = gradient.external().map_or(Ok(gradient.clone()), |external| external.dense())?;
            let gradient = in_order_of(&gradient.detach(), &parameter.value)?;
            let cast = parameter.cast.as_ref().map(|kept| kept.to_write()).transpose()?.flatten();
            let dtypes = (parameter.value.dtype(), gradient.dtype(), cast.as_ref().map(Tensor::dtype));
            let list = match lists.iter_mut().find(|list| list.dtypes == dtypes) {
                Some(list) => list,
                None => {
                    let kernel = self.kernel(dtypes);
                    lists.push(List { dtypes, kernel, parameters: Vec::new() });
                    lists.last_mut().expect("it was just added")
                }
            };
            list.parameters.push(Stepped { number, parameter, gradient, cast });
        }
        Ok(Prepared { group: self, lists })
    }

    fn kernel(&self, dtypes: Dtypes) -> Arc<ForeachKernel> {
        let mut kernels = self.step_kernels.lock();
        let (parameter, gradient, cast) = dtypes;
        let form = StepForm { cast, ..StepForm::default() };
        let make = || Arc::new(step_kernel(self.rule, &self.values, [parameter, gradient], form));
        kernels.entry(dtypes).or_insert_with(make).clone()
    }

    /// Returns the arguments of a kernel after the lists and the shared inputs.
    fn scalars(&self) -> SmallVec<[u64; 8]> {
        self.values.numbers.iter().map(|number| number.to_bits()).collect()
    }
}

impl Prepared<'_> {
    /// Launches the step.
    pub(super) fn launch(&self, scale: &GradientScale, location: &'static Location<'static>) -> Result<()> {
        let group = self.group;
        let GradientScale { scale, found_inf } = scale;
        if self.lists.is_empty() {
            return Ok(());
        }
        let stream = group.learning_rate.device().current_stream();
        for tensor in [&group.learning_rate, &group.scalar_states, scale, found_inf] {
            tensor.record_stream(&stream);
        }
        if group.counts {
            self.launch_count(found_inf, &stream, location)?;
        }
        for List { kernel, parameters, .. } in &self.lists {
            let shared = [&group.learning_rate, scale, found_inf].map(|tensor| tensor.pointer().address());
            let arguments = ForeachArguments {
                shared: shared.into_iter().collect(),
                scalars: group.scalars(),
                items: parameters.iter().map(Stepped::item).collect(),
            };
            execute(Kernels(kernel), &arguments, &stream, label_at(group.rule.step_label, location))?;
            for Stepped { parameter, gradient, cast, .. } in parameters {
                // The tensors may have been made, or backward run, on another stream; and only this code has access to the
                // states.
                gradient.record_stream(&stream);
                for tensor in std::iter::once(&parameter.value).chain(&parameter.states).chain(cast) {
                    tensor.record_stream(&stream);
                    tensor.bump_version();
                }
                if let (Some(kept), Some(cast)) = (&parameter.cast, cast) {
                    kept.written(cast.clone());
                }
            }
        }
        Ok(())
    }

    /// Counts the step for every parameter that has a gradient: the scalar states of consecutive parameters are one item.
    fn launch_count(
        &self,
        found_inf: &Tensor,
        stream: &Stream,
        location: &'static Location<'static>,
    ) -> Result<()> {
        let group = self.group;
        let mut stepped: Vec<usize> =
            self.lists.iter().flat_map(|list| &list.parameters).map(|stepped| stepped.number).collect();
        stepped.sort_unstable();
        let items = stepped.chunk_by(|&a, &b| a + 1 == b).map(|run| ForeachItem {
            elements: run.len() as u64,
            addresses: group.parameters[run[0]].scalar_addresses().collect(),
        });
        let arguments = ForeachArguments {
            shared: [&group.learning_rate, found_inf]
                .map(|tensor| tensor.pointer().address())
                .into_iter()
                .collect(),
            scalars: group.scalars(),
            items: items.collect(),
        };
        execute(
            Kernels(&group.count_kernel),
            &arguments,
            stream,
            label_at(group.rule.count_label, location),
        )?;
        group.scalar_states.bump_version();
        Ok(())
    }
}

/// Returns the order of dimensions, outermost in memory first.
pub(super) fn memory_order(tensor: &Tensor) -> SmallVec<[usize; 8]> {
    let strides = tensor.layout().strides();
    let mut order: SmallVec<[usize; 8]> = (0..strides.len()).collect();
    if !tensor.is_contiguous() {
        order.sort_by_key(|&dim| std::cmp::Reverse(strides[dim]));
    }
    order
}

/// Returns the elements of a tensor as a vector, in the memory order of another tensor.
fn in_order_of(tensor: &Tensor, other: &Tensor) -> Result<Tensor> {
    if other.is_contiguous() {
        tensor.contiguous()
    } else {
        tensor.permute(&memory_order(other))?.contiguous()
    }
}

impl Parameter {
    fn scalar_addresses(&self) -> impl Iterator<Item = u64> + '_ {
        self.scalar_states.iter().map(|state| state.pointer().address())
    }
}

impl Stepped<'_> {
    fn item(&self) -> ForeachItem {
        let Self { parameter, gradient, cast, .. } = self;
        let address = |tensor: &Tensor| tensor.pointer().address();
        let operands = [&parameter.value, gradient].into_iter().chain(&parameter.states).map(address);
        let addresses = operands.chain(parameter.scalar_addresses()).chain(cast.iter().map(address));
        ForeachItem { elements: parameter.value.elements() as u64, addresses: addresses.collect() }
    }
}
