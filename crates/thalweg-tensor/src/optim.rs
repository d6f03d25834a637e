//! Optimizers (`torch.optim`), and the scaling of gradients.

mod scaler;

use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHashMap;
use thalweg_ir::DType;
use thalweg_ir::foreach::{ForeachArguments, ForeachItem, ForeachKernel};
use thalweg_kernels::foreach::launches;
use thalweg_ops::{LoopOp, structured};
use thalweg_runtime::{Error, Result};

pub use scaler::{GradientScaler, GradientScalerOptions};

use crate::autograd::no_grad;
use crate::caller::{at_line, label_at};
use crate::kernels::loops::{LoopArguments, run_into};
use crate::tensor::Tensor;

/// The numbers of Adam, with PyTorch's defaults.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AdamOptions {
    /// The step size.
    pub learning_rate: f64,
    /// How slowly the first moment forgets.
    pub beta1: f64,
    /// How slowly the second moment forgets.
    pub beta2: f64,
    /// What keeps the division finite.
    pub epsilon: f64,
    /// L2 regularisation, added to the gradient; of AdamW, the part of a parameter that a step of size 1 takes away.
    pub weight_decay: f64,
    /// Whether the weight decay is taken from the parameter instead of added to the gradient: AdamW.
    pub decoupled_weight_decay: bool,
}

impl Default for AdamOptions {
    fn default() -> Self {
        Self {
            learning_rate: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
            decoupled_weight_decay: false,
        }
    }
}

impl AdamOptions {
    /// The defaults of `torch.optim.AdamW`.
    pub fn adamw() -> Self {
        Self { weight_decay: 1e-2, decoupled_weight_decay: true, ..Self::default() }
    }

    fn check(&self) -> Result<()> {
        let Self { learning_rate, beta1, beta2, epsilon, weight_decay, .. } = *self;
        let at_least_0 =
            [("learning_rate", learning_rate), ("epsilon", epsilon), ("weight_decay", weight_decay)];
        let unfit = |value: f64| value.is_nan() || value < 0.0;
        if let Some((name, value)) = at_least_0.into_iter().find(|&(_, value)| unfit(value)) {
            return Err(Error::invalid(format!("Adam: {name} is {value}, and must be at least 0")));
        }
        let betas = [("beta1", beta1), ("beta2", beta2)];
        match betas.into_iter().find(|(_, beta)| !(0.0..1.0).contains(beta)) {
            Some((name, beta)) => {
                Err(Error::invalid(format!("Adam: {name} is {beta}, and must be in [0, 1)")))
            }
            None => Ok(()),
        }
    }
}

/// Refuses parameters that Adam cannot step.
fn check_parameters(parameters: &[Tensor]) -> Result<()> {
    let fail = |text: String| Err(Error::invalid(format!("Adam: {text}")));
    let Some(first) = parameters.first() else { return fail("there is no parameter to optimize".into()) };
    let mut ranges = Vec::with_capacity(parameters.len());
    for parameter in parameters {
        if !parameter.dtype().is_floating_point() || !parameter.is_contiguous() {
            return fail(format!("{parameter:?} is no contiguous floating-point parameter"));
        }
        if parameter.device() != first.device() {
            let (here, there) = (first.device(), parameter.device());
            return fail(format!(
                "the parameters are on two devices, {here} and {there}; make an optimizer for each"
            ));
        }
        if !parameter.is_leaf() {
            return fail(format!(
                "{parameter:?} is no leaf: it was computed by an operator, so no gradient is kept for it; optimize what it was \
                 computed from, or detach it"
            ));
        }
        let start = parameter.pointer().address();
        let bytes = (parameter.elements() * parameter.dtype().size_bytes()) as u64;
        if bytes > 0 {
            ranges.push((start, start + bytes, parameter));
        }
    }
    ranges.sort_unstable_by_key(|&(start, end, _)| (start, end));
    match ranges.windows(2).find(|pair| pair[1].0 < pair[0].1) {
        Some(pair) => fail(format!(
            "{:?} and {:?} share memory, which would be stepped twice; name each parameter once",
            pair[0].2, pair[1].2
        )),
        None => Ok(()),
    }
}

/// What gradient scaling hands to a step, on the device (`grad_scale` and `found_inf` of PyTorch's fused optimizers): one
/// element of f32 each.
#[derive(Clone, Debug)]
pub struct GradientScale {
    /// What the gradients were multiplied by, and are divided by.
    pub scale: Tensor,
    /// Not 0 where a gradient is not finite: then the step changes nothing, and does not count.
    pub found_inf: Tensor,
}

/// Adam (Kingma and Ba, <https://arxiv.org/abs/1412.6980>) and AdamW, as `torch.optim.Adam(fused=True, capturable=True)`: one
/// kernel counts the step and one updates all parameters, whatever their number (one for each 80 of a dtype).
///
/// The number of steps lives in device memory, and so does the scale of the gradients, if there is one; so a captured step
/// counts on when it is replayed.
#[derive(Debug)]
pub struct Adam {
    options: AdamOptions,
    step: Tensor,
    /// Without gradient scaling: 1 and 0.
    unscaled: GradientScale,
    parameters: Vec<Parameter>,
    /// The kernels by dtypes of parameter and gradient.
    kernels: Mutex<FxHashMap<[DType; 2], Arc<ForeachKernel>>>,
}

/// Parameters and their gradients, by the dtypes of both.
type Lists<'a> = FxHashMap<[DType; 2], Vec<(&'a Parameter, Tensor)>>;

#[derive(Debug)]
struct Parameter {
    value: Tensor,
    first_moment: Tensor,
    second_moment: Tensor,
}

impl Adam {
    /// An optimizer of these parameters: contiguous leaves of floats, all on one device, none of which shares memory with another.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the parameters are not so, or if learning rate, epsilon or weight decay are not at least
    /// 0, or a beta not in [0, 1).
    #[track_caller]
    pub fn new(parameters: Vec<Tensor>, options: AdamOptions) -> Result<Self> {
        at_line(Location::caller(), || {
            options.check()?;
            check_parameters(&parameters)?;
            let device = parameters[0].device().clone();
            let number = |value: f64| Tensor::full(&[], value, DType::F32, &device);
            let unscaled = GradientScale { scale: number(1.0)?, found_inf: number(0.0)? };
            let step = number(0.0)?;
            let parameters = parameters
                .into_iter()
                .map(|value| {
                    let zeros = || Tensor::zeros(value.shape(), value.dtype(), value.device());
                    Ok(Parameter { first_moment: zeros()?, second_moment: zeros()?, value })
                })
                .collect::<Result<_>>()?;
            Ok(Self { options, step, unscaled, parameters, kernels: Mutex::default() })
        })
    }

    /// Forgets all gradients.
    pub fn zero_grad(&self) {
        self.parameters.iter().for_each(|parameter| parameter.value.zero_grad());
    }

    /// The parameters.
    pub fn parameters(&self) -> impl Iterator<Item = &Tensor> {
        self.parameters.iter().map(|parameter| &parameter.value)
    }

    /// The number of steps: one element of f32 on the device.
    pub fn steps(&self) -> &Tensor {
        &self.step
    }

    /// Updates every parameter that has a gradient. Asynchronous.
    #[track_caller]
    pub fn step(&self) -> Result<()> {
        at_line(Location::caller(), || self.step_at(&self.unscaled, Location::caller()))
    }

    /// [`Adam::step`] with scaled gradients, unless one of them is not finite. Asynchronous: the host learns nothing.
    #[track_caller]
    pub fn step_scaled(&self, gradient_scale: &GradientScale) -> Result<()> {
        at_line(Location::caller(), || {
            for tensor in [&gradient_scale.scale, &gradient_scale.found_inf] {
                if tensor.elements() != 1
                    || tensor.dtype() != DType::F32
                    || tensor.device() != self.step.device()
                {
                    return Err(Error::invalid(format!(
                        "Adam: {tensor:?} of the gradient scale must be one element of float32 on {}",
                        self.step.device()
                    )));
                }
            }
            self.step_at(gradient_scale, Location::caller())
        })
    }

    fn step_at(&self, gradient_scale: &GradientScale, location: &'static Location<'static>) -> Result<()> {
        let GradientScale { scale, found_inf } = gradient_scale;
        // Everything that can fail comes before the first launch: a step that fails has changed nothing.
        let lists = self
            .lists()?
            .into_iter()
            .map(|(dtypes, list)| Ok((self.kernel(dtypes)?, list)))
            .collect::<Result<Vec<_>>>()?;
        no_grad(|| {
            let found = found_inf.reshape(&[])?;
            run_into(
                &structured::ADAM_TICK,
                &[&self.step, &found],
                &LoopArguments::default(),
                std::slice::from_ref(&self.step),
                label_at("adam_tick", location),
            )
        })?;
        let AdamOptions { learning_rate, beta1, beta2, epsilon, weight_decay, .. } = self.options;
        let stream = self.step.device().current_stream();
        [&self.step, scale, found_inf].into_iter().for_each(|tensor| tensor.record_stream(&stream));
        for (kernel, list) in lists {
            let arguments = ForeachArguments {
                shared: [&self.step, scale, found_inf]
                    .map(|tensor| tensor.pointer().address())
                    .into_iter()
                    .collect(),
                scalars: [learning_rate, beta1, beta2, epsilon, weight_decay]
                    .map(f64::to_bits)
                    .into_iter()
                    .collect(),
                items: list.iter().map(|(parameter, gradient)| parameter.item(gradient)).collect(),
            };
            let operator = self.operator();
            for launch in launches(&kernel, &arguments) {
                stream.launch_native(&launch, label_at(operator.name, location))?;
            }
            for (parameter, gradient) in list {
                let Parameter { value, first_moment, second_moment } = parameter;
                // Whoever made them or ran backward may have done so on another stream, and nobody else can reach the moments.
                for tensor in [value, &gradient, first_moment, second_moment] {
                    tensor.record_stream(&stream);
                }
                [value, first_moment, second_moment].into_iter().for_each(Tensor::bump_version);
            }
        }
        Ok(())
    }

    /// The parameters that have gradients, with contiguous ones, by the dtypes of both.
    fn lists(&self) -> Result<Lists<'_>> {
        let mut lists = Lists::default();
        for parameter in &self.parameters {
            let Some(gradient) = parameter.value.grad() else { continue };
            let gradient = gradient.detach().contiguous()?;
            let dtypes = [parameter.value.dtype(), gradient.dtype()];
            lists.entry(dtypes).or_default().push((parameter, gradient));
        }
        Ok(lists)
    }

    fn operator(&self) -> &'static LoopOp {
        if self.options.decoupled_weight_decay { &structured::ADAMW_STEP } else { &structured::ADAM_STEP }
    }

    fn kernel(&self, dtypes: [DType; 2]) -> Result<Arc<ForeachKernel>> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels.get(&dtypes) {
            return Ok(kernel.clone());
        }
        let kernel = Arc::new(
            structured::adam_foreach(self.operator(), dtypes)
                .map_err(|error| Error::invalid(error.to_string()))?,
        );
        kernels.insert(dtypes, kernel.clone());
        Ok(kernel)
    }
}

impl Parameter {
    fn item(&self, gradient: &Tensor) -> ForeachItem {
        let operands = [&self.value, gradient, &self.first_moment, &self.second_moment];
        ForeachItem {
            elements: self.value.elements() as u64,
            addresses: operands.map(|tensor| tensor.pointer().address()).into(),
        }
    }
}
