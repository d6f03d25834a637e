//! Muon (K. Jordan, *Muon: An optimizer for hidden layers in neural networks*, 2024): momentum, made orthogonal.

use std::panic::Location;

use thalweg_ir::DType;
use thalweg_runtime::{Error, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::caller::at_line;

use super::stepped::Stepped;
use super::{OptimizerState, ParameterState};
use crate::functional::{call, operator};

/// The way in which [`Muon`] makes the learning rate fit the shape of a matrix (`adjust_lr_fn`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AdjustLr {
    /// Times the root of rows over columns, where that is above 1 (`"original"`).
    #[default]
    Original,
    /// Times a fifth of the root of the greater extent, so that AdamW's learning rates fit (`"match_rms_adamw"`).
    MatchRmsAdamW,
}

/// The options of [`Muon`], by PyTorch's names.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MuonOptions {
    /// The learning rate.
    pub learning_rate: f64,
    /// The part of each parameter that a step takes from it, times the learning rate.
    pub weight_decay: f64,
    /// The part of the momentum that stays.
    pub momentum: f64,
    /// Whether the gradient is added once more (Nesterov).
    pub nesterov: bool,
    /// The coefficients of the polynomial that is iterated.
    pub ns_coefficients: [f64; 3],
    /// The least norm that a matrix is divided by.
    pub epsilon: f64,
    /// How often it is iterated.
    pub ns_steps: usize,
    /// How the learning rate is made to fit the shape.
    pub adjust_lr: AdjustLr,
}

impl Default for MuonOptions {
    /// Returns PyTorch's options.
    fn default() -> Self {
        Self {
            learning_rate: 1e-3,
            weight_decay: 0.1,
            momentum: 0.95,
            nesterov: true,
            ns_coefficients: [3.4445, -4.7750, 2.0315],
            epsilon: 1e-7,
            ns_steps: 5,
            adjust_lr: AdjustLr::Original,
        }
    }
}

/// Muon (`torch.optim.Muon`): for the matrices of hidden layers. Nothing is read on the host, and the learning rate lies on the device:
/// a captured step follows it.
#[derive(Debug)]
pub struct Muon {
    options: MuonOptions,
    stepped: Stepped,
}

impl Muon {
    /// Makes an optimizer of matrices: contiguous leaves of floats, all on one device, none of which shares memory with another.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the parameters are not so, or an option is out of its bounds.
    #[track_caller]
    pub fn new(parameters: Vec<Tensor>, options: MuonOptions) -> Result<Self> {
        at_line(Location::caller(), || {
            let MuonOptions { learning_rate, weight_decay, momentum, epsilon, .. } = options;
            let least = [
                ("learning rate", learning_rate, 0.0),
                ("momentum", momentum, 0.0),
                ("weight decay", weight_decay, 0.0),
                ("epsilon", epsilon, 0.0),
            ];
            Stepped::refuse_below("Muon", &least)?;
            if options.ns_steps >= 100 {
                return Err(Error::invalid(format!(
                    "Muon: Number of steps must be less than 100 for computational efficiency, not {}",
                    options.ns_steps
                )));
            }
            if let Some(other) = parameters.iter().find(|parameter| parameter.rank() != 2) {
                let shape = other.shape();
                return Err(Error::invalid(format!(
                    "Muon only supports 2D parameters whereas we found a parameter with size: {shape:?}"
                )));
            }
            let state = |parameter: &Tensor| {
                let buffer = Tensor::zeros(parameter.shape(), parameter.dtype(), parameter.device())?;
                Ok(ParameterState::from([("momentum_buffer".to_owned(), buffer)]))
            };
            Ok(Self { stepped: Stepped::new("Muon", parameters, learning_rate, state)?, options })
        })
    }

    /// Returns the options.
    pub fn options(&self) -> &MuonOptions {
        &self.options
    }

    /// Forgets all gradients.
    pub fn zero_grad(&self) {
        self.stepped.parameters.iter().for_each(Tensor::zero_grad);
    }

    /// Sets the learning rate. Asynchronous: later steps of the current stream have it, also replayed ones.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if it is not at least 0.
    #[track_caller]
    pub fn set_learning_rate(&mut self, learning_rate: f64) -> Result<()> {
        at_line(Location::caller(), || {
            Stepped::refuse_below("Muon", &[("learning rate", learning_rate, 0.0)])?;
            self.stepped.set_learning_rate(learning_rate)?;
            self.options.learning_rate = learning_rate;
            Ok(())
        })
    }

    /// Updates every matrix that has a gradient. Asynchronous.
    ///
    /// # Errors
    /// Those of the operators.
    #[track_caller]
    pub fn step(&self) -> Result<()> {
        at_line(Location::caller(), || {
            self.stepped.each(|parameter, gradient, states| {
                let MuonOptions { momentum, nesterov, weight_decay, adjust_lr, .. } = self.options;
                let buffer = &states["momentum_buffer"];
                let gradient = gradient.to_dtype(buffer.dtype())?;
                buffer.lerp_(&gradient, 1.0 - momentum)?;
                let update = match nesterov {
                    true => gradient.add(&buffer.sub(&gradient)?.mul_scalar(momentum)?)?,
                    false => buffer.clone(),
                };
                let update = self.orthogonal(&update)?.to_dtype(parameter.dtype().compute())?;
                let [rows, columns] = [0, 1].map(|dim| parameter.shape()[dim] as f64);
                let ratio = match adjust_lr {
                    AdjustLr::Original => (rows / columns).max(1.0).sqrt(),
                    AdjustLr::MatchRmsAdamW => 0.2 * rows.max(columns).sqrt(),
                };
                let rate = &self.stepped.rate;
                parameter.mul_(&rate.mul_scalar(-weight_decay)?.add_scalar(1.0)?)?;
                parameter.sub_(&update.mul(&rate.mul_scalar(ratio)?)?)
            })
        })
    }

    /// Returns the orthogonal matrix that is near to one, in bf16: an odd polynomial, iterated, brings its singular values near to 1.
    fn orthogonal(&self, matrix: &Tensor) -> Result<Tensor> {
        let [a, b, c] = self.options.ns_coefficients;
        let is_tall = matrix.shape()[0] > matrix.shape()[1];
        let mut x = matrix.to_dtype(DType::Bf16)?;
        if is_tall {
            x = x.transpose(0, 1)?.contiguous()?;
        }
        x = x.div(&x.norm(2.0)?.clamp_min(self.options.epsilon)?)?;
        let add_product = |addend: &Tensor, beta: f64, left: &Tensor, right: &Tensor, alpha: f64| {
            let arguments = [addend.into(), left.into(), right.into(), beta.into(), alpha.into()];
            call(operator!("addmm"), &arguments, Location::caller())
        };
        for _ in 0..self.options.ns_steps {
            let gram = x.matmul(&x.transpose(0, 1)?)?;
            let square = add_product(&gram, b, &gram, &gram, c)?;
            x = add_product(&x, a, &square, &x, 1.0)?;
        }
        if is_tall { x.transpose(0, 1) } else { Ok(x) }
    }

    /// Returns states and options by PyTorch's names. The tensors are those that the optimizer goes on with.
    pub fn state_dict(&self) -> OptimizerState {
        let [a, b, c] = self.options.ns_coefficients;
        self.stepped.state_dict(&[
            ("lr", self.options.learning_rate),
            ("weight_decay", self.options.weight_decay),
            ("momentum", self.options.momentum),
            ("nesterov", f64::from(u8::from(self.options.nesterov))),
            ("ns_coefficients.0", a),
            ("ns_coefficients.1", b),
            ("ns_coefficients.2", c),
            ("eps", self.options.epsilon),
            ("ns_steps", self.options.ns_steps as f64),
        ])
    }

    /// Overwrites the states and the learning rate with saved ones.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if a state is missing or does not fit. Then nothing has changed.
    #[track_caller]
    pub fn load_state_dict(&mut self, saved: &OptimizerState) -> Result<()> {
        at_line(Location::caller(), || {
            let rate = self.stepped.load_state_dict(saved)?.options.get("lr").copied();
            rate.map_or(Ok(()), |rate| self.set_learning_rate(rate))
        })
    }
}
