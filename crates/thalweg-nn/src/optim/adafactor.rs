//! Adafactor (N. Shazeer and M. Stern, *Adafactor: Adaptive Learning Rates with Sublinear Memory Cost*, 2018), in PyTorch's
//! version.
//!
//! It is not an entry of the table of fused optimizers ([`thalweg_ops::optimizer`]), where a step is a formula over the elements
//! of the parameter and of states of its shape. Here a matrix keeps two states of other shapes, the means of squares over rows
//! and over columns, and a step needs means over a dimension and two norms of entire tensors before it changes the first element.
//! It is therefore a [`CompositeRule`]: options, states and one function of operators; [`CompositeOptimizer`] does the rest.

use thalweg_ir::DType;
use thalweg_runtime::{Error, Result, invalid, options};
use thalweg_tensor::Tensor;

use super::ParameterState;
use super::composite::{CompositeOptimizer, CompositeRule, refuse_below};
use super::optimizer::is_at_least;

/// Adafactor (`torch.optim.Adafactor`): for a matrix, only the means of squares over rows and columns are kept. Steps are counted
/// on the device, so that a step can be captured, unlike PyTorch's.
pub type Adafactor = CompositeOptimizer<AdafactorOptions>;

options! {
    /// The options of [`Adafactor`], by PyTorch's names.
    #[derive(Clone, Copy, PartialEq, Debug)]
    pub struct AdafactorOptions {
        /// The greatest relative step, and the factor of the weight decay.
        pub lr: f64 = 1e-2,
        /// The exponent of the step number in the decay of the variance: at most 0.
        pub beta2_decay: f64 = -0.8,
        /// Two lower bounds: of the root of a variance (by default the dtype's precision), and of the parameter magnitude that steps
        /// are relative to.
        pub eps: (Option<f64>, f64) = (None, 1e-3),
        /// The magnitude above which an update is scaled down: at least 1.
        pub d: f64 = 1.0,
        /// The fraction of each parameter that a step subtracts from it, times the learning rate.
        pub weight_decay: f64 = 0.0,
        /// Whether the loss is maximized.
        pub maximize: bool = false,
    }
}

impl CompositeRule for AdafactorOptions {
    const TITLE: &'static str = "Adafactor";

    fn named(&self) -> Vec<(&'static str, f64)> {
        let mut named = vec![
            ("lr", self.lr),
            ("beta2_decay", self.beta2_decay),
            ("eps.1", self.eps.1),
            ("d", self.d),
            ("weight_decay", self.weight_decay),
            ("maximize", f64::from(u8::from(self.maximize))),
        ];
        named.extend(self.eps.0.map(|epsilon| ("eps.0", epsilon)));
        named
    }

    fn set(&mut self, option: &str, value: f64) {
        match option {
            "lr" => self.lr = value,
            "beta2_decay" => self.beta2_decay = value,
            "eps.0" => self.eps.0 = Some(value),
            "eps.1" => self.eps.1 = value,
            "d" => self.d = value,
            "weight_decay" => self.weight_decay = value,
            "maximize" => self.maximize = value != 0.0,
            _ => {}
        }
    }

    fn learning_rate(&mut self) -> &mut f64 {
        &mut self.lr
    }

    fn check(&self, _: &[Tensor]) -> Result<()> {
        let least = [
            ("Learning rate", self.lr, 0.0),
            ("epsilon1", self.eps.0.unwrap_or(0.0), 0.0),
            ("epsilon2", self.eps.1, 0.0),
            ("Clipping threshold d", self.d, 1.0),
            ("weight_decay", self.weight_decay, 0.0),
        ];
        refuse_below(Self::TITLE, &least)?;
        match self.beta2_decay {
            decay if is_at_least(-decay, 0.0) => Ok(()),
            decay => Err(invalid!("Adafactor: beta2_decay should be <= 0 but is: {decay}")),
        }
    }

    fn states(&self, parameter: &Tensor) -> Result<ParameterState> {
        let rank = parameter.rank();
        let zeros = |reduced: usize| {
            let mut shape = parameter.shape().to_vec();
            shape[reduced] = 1;
            Tensor::zeros(&shape, parameter.dtype(), parameter.device())
        };
        let step = Tensor::zeros(&[], DType::F32, parameter.device())?;
        let named: Vec<(&str, Tensor)> = match rank {
            0 | 1 => vec![("step", step), ("variance", parameter.zeros_like()?)],
            _ => vec![("step", step), ("row_var", zeros(rank - 1)?), ("col_var", zeros(rank - 2)?)],
        };
        Ok(named.into_iter().map(|(name, state)| (name.to_owned(), state)).collect())
    }

    fn update(
        &self,
        rate: &Tensor,
        parameter: &Tensor,
        gradient: &Tensor,
        states: &ParameterState,
    ) -> Result<()> {
        let gradient = gradient.to_dtype(parameter.dtype())?;
        let gradient = if self.maximize { gradient.neg()? } else { gradient };
        let size = (parameter.elements().max(1) as f64).sqrt();
        let norm = |tensor: &Tensor| tensor.norm(2.0)?.to_dtype(DType::F64);
        states["step"].add_scalar_(1.0)?;
        let step = states["step"].to_dtype(DType::F64)?;
        let new_part = step.pow_scalar(self.beta2_decay)?;
        let relative = rate.minimum(&step.rsqrt()?)?;
        let alpha = norm(parameter)?.div_scalar(size)?.clamp_min(self.eps.1)?.mul(&relative)?;
        if self.weight_decay != 0.0 {
            parameter.mul_(&rate.mul_scalar(-self.weight_decay)?.add_scalar(1.0)?)?;
        }
        let epsilon = self.eps.0.unwrap_or_else(|| precision(parameter.dtype()));
        let toward = |state: &Tensor, mean: &Tensor| state.add_(&mean.sub(state)?.mul(&new_part)?);
        let squares = gradient.square()?;
        let variance = match states.get("variance") {
            Some(variance) => {
                toward(variance, &squares)?;
                variance.clone()
            }
            None => {
                let (rows, columns) = (&states["row_var"], &states["col_var"]);
                toward(rows, &squares.mean(&[-1], true)?)?;
                toward(columns, &squares.mean(&[-2], true)?)?;
                rows.mul(columns)?.div(&rows.mean(&[-2], true)?.clamp_min(epsilon)?)?
            }
        };
        let update = variance.clamp_min(epsilon * epsilon)?.rsqrt()?.mul(&gradient)?;
        let denominator = norm(&update)?.div_scalar(size * self.d)?.clamp_min(1.0)?;
        parameter.sub_(&update.mul(&alpha.div(&denominator)?)?)
    }
}

/// Returns the distance from 1 to the next greater number (`torch.finfo(dtype).eps`).
fn precision(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON,
        DType::F16 => f64::powi(2.0, -10),
        DType::Bf16 => f64::powi(2.0, -7),
        _ => f64::from(f32::EPSILON),
    }
}
