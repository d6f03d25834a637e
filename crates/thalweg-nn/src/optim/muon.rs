//! Muon (K. Jordan, *Muon: An optimizer for hidden layers in neural networks*, 2024): momentum, made orthogonal.
//!
//! A step needs products of matrices, so it is a [`CompositeRule`], not an entry of the table of fused optimizers.

use std::panic::Location;

use thalweg_ir::DType;
use thalweg_runtime::{Error, Result, invalid, options, refuse_if};
use thalweg_tensor::Tensor;

use super::ParameterState;
use super::composite::{CompositeOptimizer, CompositeRule, refuse_below};
use crate::functional::{call, operator};

/// Muon (`torch.optim.Muon`): for the matrices of hidden layers.
pub type Muon = CompositeOptimizer<MuonOptions>;

/// The way in which [`Muon`] adapts the learning rate to the shape of a matrix (`adjust_lr_fn`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AdjustLr {
    /// Times the root of rows divided by columns, if that is above 1 (`"original"`).
    #[default]
    Original,
    /// Times a fifth of the root of the greater extent, so that AdamW's learning rates fit (`"match_rms_adamw"`).
    MatchRmsAdamW,
}

options! {
    /// The options of [`Muon`], by PyTorch's names.
    #[derive(Clone, Copy, PartialEq, Debug)]
    pub struct MuonOptions {
        /// The learning rate.
        pub lr: f64 = 1e-3,
        /// The fraction of each parameter that a step subtracts from it, times the learning rate.
        pub weight_decay: f64 = 0.1,
        /// The fraction of the momentum that is kept.
        pub momentum: f64 = 0.95,
        /// Whether the gradient is added once more (Nesterov).
        pub nesterov: bool = true,
        /// The coefficients of the polynomial that is iterated.
        pub ns_coefficients: [f64; 3] = [3.4445, -4.7750, 2.0315],
        /// The lower bound of the norm that a matrix is divided by.
        pub eps: f64 = 1e-7,
        /// The number of iterations of the polynomial.
        pub ns_steps: usize = 5,
        /// The way in which the learning rate is adapted to the shape.
        pub adjust_lr: AdjustLr = AdjustLr::Original,
    }
}

impl CompositeRule for MuonOptions {
    const TITLE: &'static str = "Muon";

    fn named(&self) -> Vec<(&'static str, f64)> {
        let [a, b, c] = self.ns_coefficients;
        vec![
            ("lr", self.lr),
            ("weight_decay", self.weight_decay),
            ("momentum", self.momentum),
            ("nesterov", f64::from(u8::from(self.nesterov))),
            ("ns_coefficients.0", a),
            ("ns_coefficients.1", b),
            ("ns_coefficients.2", c),
            ("eps", self.eps),
            ("ns_steps", self.ns_steps as f64),
        ]
    }

    fn set(&mut self, option: &str, value: f64) {
        match option {
            "lr" => self.lr = value,
            "weight_decay" => self.weight_decay = value,
            "momentum" => self.momentum = value,
            "nesterov" => self.nesterov = value != 0.0,
            "ns_coefficients.0" => self.ns_coefficients[0] = value,
            "ns_coefficients.1" => self.ns_coefficients[1] = value,
            "ns_coefficients.2" => self.ns_coefficients[2] = value,
            "eps" => self.eps = value,
            "ns_steps" => self.ns_steps = value as _,
            _ => {}
        }
    }

    fn learning_rate(&mut self) -> &mut f64 {
        &mut self.lr
    }

    fn check(&self, parameters: &[Tensor]) -> Result<()> {
        let least = [
            ("learning rate", self.lr, 0.0),
            ("momentum", self.momentum, 0.0),
            ("weight decay", self.weight_decay, 0.0),
            ("epsilon", self.eps, 0.0),
        ];
        refuse_below(Self::TITLE, &least)?;
        refuse_if!(
            self.ns_steps >= 100,
            "Muon: Number of steps must be less than 100 for computational efficiency, not {}",
            self.ns_steps
        );
        match parameters.iter().find(|parameter| parameter.rank() != 2) {
            Some(other) => Err(invalid!(
                "Muon only supports 2D parameters whereas we found a parameter with size: {:?}",
                other.shape()
            )),
            None => Ok(()),
        }
    }

    fn states(&self, parameter: &Tensor) -> Result<ParameterState> {
        Ok(ParameterState::from([("momentum_buffer".to_owned(), parameter.zeros_like()?)]))
    }

    fn update(
        &self,
        rate: &Tensor,
        parameter: &Tensor,
        gradient: &Tensor,
        states: &ParameterState,
    ) -> Result<()> {
        let buffer = &states["momentum_buffer"];
        let gradient = gradient.to_dtype(buffer.dtype())?;
        buffer.lerp_(&gradient, 1.0 - self.momentum)?;
        let update = match self.nesterov {
            true => gradient.add(&buffer.sub(&gradient)?.mul_scalar(self.momentum)?)?,
            false => buffer.clone(),
        };
        let update = self.orthogonal(&update)?.to_dtype(parameter.dtype().compute())?;
        let [rows, columns] = [0, 1].map(|dim| parameter.shape()[dim] as f64);
        let ratio = match self.adjust_lr {
            AdjustLr::Original => (rows / columns).max(1.0).sqrt(),
            AdjustLr::MatchRmsAdamW => 0.2 * rows.max(columns).sqrt(),
        };
        parameter.mul_(&rate.mul_scalar(-self.weight_decay)?.add_scalar(1.0)?)?;
        parameter.sub_(&update.mul(&rate.mul_scalar(ratio)?)?)
    }
}

impl MuonOptions {
    /// Returns an orthogonal matrix close to the given one, in bf16: iterating an odd polynomial brings its singular values close
    /// to 1.
    fn orthogonal(&self, matrix: &Tensor) -> Result<Tensor> {
        let [a, b, c] = self.ns_coefficients;
        let is_tall = matrix.shape()[0] > matrix.shape()[1];
        let mut x = matrix.to_dtype(DType::Bf16)?;
        if is_tall {
            x = x.transpose(0, 1)?.contiguous()?;
        }
        x = x.div(&x.norm(2.0)?.clamp_min(self.eps)?)?;
        let add_product = |addend: &Tensor, beta: f64, left: &Tensor, right: &Tensor, alpha: f64| {
            let arguments = [addend.into(), left.into(), right.into(), beta.into(), alpha.into()];
            call(operator!("addmm"), &arguments, Location::caller())
        };
        for _ in 0..self.ns_steps {
            let gram = x.matmul(&x.transpose(0, 1)?)?;
            let square = add_product(&gram, b, &gram, &gram, c)?;
            x = add_product(&x, a, &square, &x, 1.0)?;
        }
        if is_tall { x.transpose(0, 1) } else { Ok(x) }
    }
}
