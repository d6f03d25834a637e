//! Adafactor (N. Shazeer and M. Stern, *Adafactor: Adaptive Learning Rates with Sublinear Memory Cost*, 2018), as PyTorch has it.

use std::panic::Location;

use thalweg_ir::DType;
use thalweg_runtime::{Error, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::caller::at_line;

use super::optimizer::is_at_least;
use super::stepped::Stepped;
use super::{OptimizerState, ParameterState};

/// The options of [`Adafactor`], by PyTorch's names.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AdafactorOptions {
    /// The greatest relative step, and the factor of the weight decay.
    pub learning_rate: f64,
    /// The power of the number of steps by which the variance forgets: at most 0.
    pub beta2_decay: f64,
    /// The least root of a variance; the dtype's precision where there is none (`eps[0]`).
    pub epsilon1: Option<f64>,
    /// The least size of a parameter that steps are relative to (`eps[1]`).
    pub epsilon2: f64,
    /// The size of an update above which it is made smaller: at least 1.
    pub d: f64,
    /// The part of each parameter that a step takes from it, times the learning rate.
    pub weight_decay: f64,
    /// Whether the loss is made large.
    pub maximize: bool,
}

impl Default for AdafactorOptions {
    /// Returns PyTorch's options.
    fn default() -> Self {
        Self {
            learning_rate: 1e-2,
            beta2_decay: -0.8,
            epsilon1: None,
            epsilon2: 1e-3,
            d: 1.0,
            weight_decay: 0.0,
            maximize: false,
        }
    }
}

/// Adafactor (`torch.optim.Adafactor`): of a matrix, only the means of squares over rows and columns are kept. Nothing is read on the
/// host, and steps are counted on the device, so that a step can be captured, which PyTorch's cannot.
#[derive(Debug)]
pub struct Adafactor {
    options: AdafactorOptions,
    stepped: Stepped,
}

impl Adafactor {
    /// Makes an optimizer of parameters: contiguous leaves of floats, all on one device, none of which shares memory with another.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the parameters are not so, or an option is out of its bounds.
    #[track_caller]
    pub fn new(parameters: Vec<Tensor>, options: AdafactorOptions) -> Result<Self> {
        at_line(Location::caller(), || {
            let AdafactorOptions { learning_rate, beta2_decay, epsilon1, epsilon2, d, weight_decay, .. } =
                options;
            let least = [
                ("Learning rate", learning_rate, 0.0),
                ("epsilon1", epsilon1.unwrap_or(0.0), 0.0),
                ("epsilon2", epsilon2, 0.0),
                ("Clipping threshold d", d, 1.0),
                ("weight_decay", weight_decay, 0.0),
            ];
            Stepped::refuse_below("Adafactor", &least)?;
            if !is_at_least(-beta2_decay, 0.0) {
                return Err(Error::invalid(format!(
                    "Adafactor: beta2_decay should be <= 0 but is: {beta2_decay}"
                )));
            }
            let stepped = Stepped::new("Adafactor", parameters, learning_rate, |parameter| {
                let zeros = |shape: &[usize]| Tensor::zeros(shape, parameter.dtype(), parameter.device());
                let shape = parameter.shape();
                let mut states = ParameterState::new();
                states.insert("step".into(), Tensor::zeros(&[], DType::F32, parameter.device())?);
                if shape.len() < 2 {
                    states.insert("variance".into(), zeros(shape)?);
                    return Ok(states);
                }
                for (name, dim) in [("row_var", shape.len() - 1), ("col_var", shape.len() - 2)] {
                    let mut shape = shape.to_vec();
                    shape[dim] = 1;
                    states.insert(name.into(), zeros(&shape)?);
                }
                Ok(states)
            })?;
            Ok(Self { options, stepped })
        })
    }

    /// Returns the options.
    pub fn options(&self) -> &AdafactorOptions {
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
            Stepped::refuse_below("Adafactor", &[("Learning rate", learning_rate, 0.0)])?;
            self.stepped.set_learning_rate(learning_rate)?;
            self.options.learning_rate = learning_rate;
            Ok(())
        })
    }

    /// Updates every parameter that has a gradient. Asynchronous.
    ///
    /// # Errors
    /// Those of the operators.
    #[track_caller]
    pub fn step(&self) -> Result<()> {
        at_line(Location::caller(), || {
            self.stepped.each(|parameter, gradient, states| self.update(parameter, gradient, states))
        })
    }

    fn update(&self, parameter: &Tensor, gradient: &Tensor, states: &ParameterState) -> Result<()> {
        let options = &self.options;
        let rate = &self.stepped.rate;
        let gradient = gradient.to_dtype(parameter.dtype())?;
        let gradient = if options.maximize { gradient.neg()? } else { gradient };
        let size = (parameter.elements().max(1) as f64).sqrt();
        let norm = |tensor: &Tensor| tensor.norm(2.0)?.to_dtype(DType::F64);
        states["step"].add_scalar_(1.0)?;
        let step = states["step"].to_dtype(DType::F64)?;
        let new_part = step.pow_scalar(options.beta2_decay)?;
        let relative = rate.minimum(&step.rsqrt()?)?;
        let alpha = norm(parameter)?.div_scalar(size)?.clamp_min(options.epsilon2)?.mul(&relative)?;
        if options.weight_decay != 0.0 {
            parameter.mul_(&rate.mul_scalar(-options.weight_decay)?.add_scalar(1.0)?)?;
        }
        let epsilon = options.epsilon1.unwrap_or_else(|| precision(parameter.dtype()));
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
        let denominator = norm(&update)?.div_scalar(size * options.d)?.clamp_min(1.0)?;
        parameter.sub_(&update.mul(&alpha.div(&denominator)?)?)
    }

    /// Returns states and options by PyTorch's names. The tensors are those that the optimizer goes on with.
    pub fn state_dict(&self) -> OptimizerState {
        let options = &self.options;
        let mut named = vec![
            ("lr", options.learning_rate),
            ("beta2_decay", options.beta2_decay),
            ("eps.1", options.epsilon2),
            ("d", options.d),
            ("weight_decay", options.weight_decay),
            ("maximize", f64::from(u8::from(options.maximize))),
        ];
        named.extend(options.epsilon1.map(|epsilon| ("eps.0", epsilon)));
        self.stepped.state_dict(&named)
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

/// Returns the distance from 1 to the next greater number (`torch.finfo(dtype).eps`).
fn precision(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON,
        DType::F16 => f64::powi(2.0, -10),
        DType::Bf16 => f64::powi(2.0, -7),
        _ => f64::from(f32::EPSILON),
    }
}
