//! Optimizers (`torch.optim`).

use std::panic::Location;

use smallvec::SmallVec;
use thalweg_ir::{DType, Scalar};
use thalweg_ops::structured;
use thalweg_runtime::{Error, Result};

use crate::autograd::no_grad;
use crate::dispatch::Arguments;
use crate::kernels::loops::run_into;
use crate::tensor::{Tensor, label_at};

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
    /// L2 regularisation, added to the gradient.
    pub weight_decay: f64,
}

impl Default for AdamOptions {
    fn default() -> Self {
        Self { learning_rate: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 }
    }
}

/// Adam (Kingma and Ba, <https://arxiv.org/abs/1412.6980>). The number of steps lives in device memory, so that a captured
/// step counts on when it is replayed (PyTorch's `capturable`).
#[derive(Debug)]
pub struct Adam {
    options: AdamOptions,
    step: Tensor,
    parameters: Vec<Parameter>,
}

#[derive(Debug)]
struct Parameter {
    value: Tensor,
    first_moment: Tensor,
    second_moment: Tensor,
}

impl Adam {
    /// An optimizer of these parameters, all on one device.
    pub fn new(parameters: Vec<Tensor>, options: AdamOptions) -> Result<Self> {
        let Some(first) = parameters.first() else {
            return Err(Error::invalid("Adam: there is no parameter to optimize"));
        };
        let step = Tensor::zeros(&[], DType::F32, first.device())?;
        let parameters = parameters
            .into_iter()
            .map(|value| {
                if !value.is_contiguous() || !value.dtype().is_floating_point() {
                    return Err(Error::invalid(format!(
                        "Adam: {value:?} is no contiguous floating-point parameter"
                    )));
                }
                let zeros = || Tensor::zeros(value.shape(), value.dtype(), value.device());
                Ok(Parameter { first_moment: zeros()?, second_moment: zeros()?, value })
            })
            .collect::<Result<_>>()?;
        Ok(Self { options, step, parameters })
    }

    /// Forgets all gradients.
    pub fn zero_grad(&self) {
        self.parameters.iter().for_each(|parameter| parameter.value.set_grad(None));
    }

    /// Updates every parameter that has a gradient. Asynchronous.
    #[track_caller]
    pub fn step(&self) -> Result<()> {
        let location = Location::caller();
        no_grad(|| {
            let one =
                Arguments { scalars: SmallVec::from_slice(&[Scalar::F64(1.0)]), ..Arguments::default() };
            let count = label_at("adam_count", location);
            run_into(
                &thalweg_ops::table::add_scalar,
                &[&self.step],
                &one,
                std::slice::from_ref(&self.step),
                count,
            )?;
            let AdamOptions { learning_rate, beta1, beta2, epsilon, weight_decay } = self.options;
            let arguments = Arguments {
                scalars: [learning_rate, beta1, beta2, epsilon, weight_decay]
                    .into_iter()
                    .map(Scalar::F64)
                    .collect(),
                ..Arguments::default()
            };
            for Parameter { value, first_moment, second_moment } in &self.parameters {
                let Some(gradient) = value.grad() else { continue };
                let outputs = [value.detach(), first_moment.clone(), second_moment.clone()];
                let inputs = [&outputs[0], &gradient, first_moment, second_moment, &self.step];
                run_into(
                    &structured::ADAM_STEP,
                    &inputs,
                    &arguments,
                    &outputs,
                    label_at("adam_step", location),
                )?;
            }
            Ok(())
        })
    }
}
