//! L-BFGS (J. Nocedal and S. J. Wright, *Numerical Optimization*, 2006, algorithms 7.4 and 3.5), with PyTorch's options and
//! stopping conditions.

use std::collections::VecDeque;
use thalweg_derive::at_line;
use thalweg_runtime::{Error, Result, invalid, options, refuse_if};
use thalweg_tensor::autograd::enable_grad;
use thalweg_tensor::{Tensor, no_grad};

use super::line_search::{Point, strong_wolfe};
use super::optimizer::{check_parameters, is_at_least};

options! {
    /// The options of [`Lbfgs`], by PyTorch's names.
    #[derive(Clone, Copy, PartialEq, Debug)]
    pub struct LbfgsOptions {
        /// The length of a step along its direction, or the first to be tried by a line search.
        pub lr: f64 = 1.0,
        /// The maximum number of directions per call of [`Lbfgs::step`].
        pub max_iter: usize = 20,
        /// The maximum number of evaluations of the loss per call; by default a quarter more than `max_iter`.
        pub max_eval: Option<usize> = None,
        /// The tolerance of the gradient: a call ends if no element is greater.
        pub tolerance_grad: f64 = 1e-7,
        /// The tolerance of changes: a call ends if neither a parameter nor the loss changes by more.
        pub tolerance_change: f64 = 1e-9,
        /// The number of steps from which the Hessian is approximated.
        pub history_size: usize = 100,
        /// Whether each step's length is searched until it satisfies the strong Wolfe conditions (`line_search_fn="strong_wolfe"`).
        pub strong_wolfe: bool = false,
    }
}

/// The history of a step: the changes of the parameters and of the gradient, and the reciprocal of their product.
#[derive(Debug)]
struct Past {
    step: Tensor,
    change: Tensor,
    inverse: f64,
}

/// The state that is kept between calls.
#[derive(Debug)]
struct Memory {
    direction: Tensor,
    length: f64,
    gradient: Tensor,
    /// The first approximation of the inverse Hessian: this number times the identity.
    scale: f64,
    past: VecDeque<Past>,
}

/// L-BFGS (`torch.optim.LBFGS`): directions by an approximation of the Hessian. The host reads numbers at every direction, as in
/// PyTorch, so that a step cannot be captured.
#[derive(Debug)]
pub struct Lbfgs {
    parameters: Vec<Tensor>,
    options: LbfgsOptions,
    memory: Option<Memory>,
    evaluations: usize,
    iterations: usize,
}

impl Lbfgs {
    /// Makes an optimizer of parameters: contiguous leaves of floats, all on one device, none of which shares memory with another.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the parameters do not satisfy this, or have different dtypes, or an option is out of its
    /// bounds.
    #[at_line]
    pub fn new(parameters: Vec<Tensor>, options: LbfgsOptions) -> Result<Self> {
        check_parameters("LBFGS", &parameters, &[])?;
        let refuse = |text: String| Err(invalid!("LBFGS: {text}"));
        if let Some(other) = parameters.iter().find(|other| other.dtype() != parameters[0].dtype()) {
            return refuse(format!("{other:?} is not of the dtype of {:?}", parameters[0]));
        }
        let LbfgsOptions { lr, tolerance_grad, tolerance_change, history_size, .. } = options;
        let numbers =
            [("lr", lr), ("tolerance_grad", tolerance_grad), ("tolerance_change", tolerance_change)];
        if let Some((name, value)) = numbers.into_iter().find(|(_, value)| !is_at_least(*value, 0.0)) {
            return refuse(format!("{name} is {value}, and must be at least 0"));
        }
        if history_size == 0 {
            return refuse("history_size is 0, and must be at least 1".into());
        }
        Ok(Self { parameters, options, memory: None, evaluations: 0, iterations: 0 })
    }

    /// Returns the options.
    pub fn options(&self) -> &LbfgsOptions {
        &self.options
    }

    /// Sets the learning rate of later steps.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the rate is not at least 0.
    pub fn set_learning_rate(&mut self, learning_rate: f64) -> Result<()> {
        refuse_if!(!is_at_least(learning_rate, 0.0), "LBFGS: lr is {learning_rate}, and must be at least 0");
        self.options.lr = learning_rate;
        Ok(())
    }

    /// Returns the numbers of evaluations of the loss (`func_evals`) and of directions (`n_iter`).
    pub fn counts(&self) -> (usize, usize) {
        (self.evaluations, self.iterations)
    }

    /// Removes all gradients.
    pub fn zero_grad(&self) {
        self.parameters.iter().for_each(Tensor::zero_grad);
    }

    /// Takes up to `max_iter` steps. The closure must remove the gradients, compute the loss and its gradients, and return the
    /// loss; it is called for every point that is tried. Returns the first loss. *Blocks*, because the host reads numbers from
    /// the device.
    #[at_line]
    pub fn step(&mut self, mut closure: impl FnMut() -> Result<Tensor>) -> Result<Tensor> {
        let first = closure()?;
        self.evaluations += 1;
        no_grad(|| self.walk(number(&first)?, &mut closure))?;
        Ok(first)
    }

    fn walk(&mut self, mut loss: f64, closure: &mut dyn FnMut() -> Result<Tensor>) -> Result<()> {
        let options = self.options;
        let max_eval = options.max_eval.unwrap_or(options.max_iter * 5 / 4);
        let mut gradient = self.gradient()?;
        if largest(&gradient)? <= options.tolerance_grad {
            return Ok(());
        }
        let mut evaluations = 1;
        for iteration in 1..=options.max_iter {
            self.iterations += 1;
            let is_first = self.memory.is_none();
            let direction = self.next_direction(&gradient)?;
            let length = match is_first {
                true => (1.0 / number(&gradient.abs()?.sum(&[], false)?)?).min(1.0) * options.lr,
                false => options.lr,
            };
            let memory = self.memory.as_mut().expect("a direction was found");
            (memory.direction, memory.length) = (direction.clone(), length);
            memory.gradient = gradient.clone();
            let slope = number(&gradient.dot(&direction)?)?;
            if slope > -options.tolerance_change {
                break;
            }
            let former_loss = loss;
            let mut tried = 0;
            if options.strong_wolfe {
                let start = Point { length: 0.0, loss, gradient, slope };
                let budget = max_eval.saturating_sub(evaluations);
                let found = self.search(&direction, start, length, budget, closure)?;
                (loss, gradient, tried) = (found.0.loss, found.0.gradient, found.1);
                self.memory.as_mut().expect("it is there").length = found.0.length;
                self.move_by(&direction, found.0.length)?;
            } else {
                self.move_by(&direction, length)?;
                // The next call evaluates the result of the last step.
                if iteration < options.max_iter {
                    loss = self.evaluate(closure)?;
                    gradient = self.gradient()?;
                    tried = 1;
                }
            }
            evaluations += tried;
            self.evaluations += tried;
            let moved = largest(&direction)? * self.memory.as_ref().expect("it is there").length.abs();
            let is_done = evaluations >= max_eval
                || largest(&gradient)? <= options.tolerance_grad
                || moved <= options.tolerance_change
                || (loss - former_loss).abs() < options.tolerance_change;
            if is_done {
                break;
            }
        }
        Ok(())
    }

    /// Searches for a length along a direction, without changing the parameters.
    fn search(
        &self,
        direction: &Tensor,
        start: Point,
        length: f64,
        budget: usize,
        closure: &mut dyn FnMut() -> Result<Tensor>,
    ) -> Result<(Point, usize)> {
        // Adding and subtracting a step would not restore the exact values.
        let places = self
            .parameters
            .iter()
            .map(|parameter| parameter.detach().mul_scalar(1.0))
            .collect::<Result<Vec<_>>>()?;
        let extent = largest(direction)?;
        strong_wolfe(start, length, extent, budget, &mut |length| {
            self.move_by(direction, length)?;
            let tried = self.evaluate(closure);
            let gradient = self.gradient();
            for (parameter, place) in self.parameters.iter().zip(&places) {
                parameter.copy_(place)?;
            }
            let (loss, gradient) = (tried?, gradient?);
            let slope = number(&gradient.dot(direction)?)?;
            Ok(Point { length, loss, gradient, slope })
        })
    }

    /// Returns the direction at a gradient from the history, after adding the last step to it.
    fn next_direction(&mut self, gradient: &Tensor) -> Result<Tensor> {
        let Some(memory) = &mut self.memory else {
            let direction = gradient.neg()?;
            let (gradient, past) = (gradient.clone(), VecDeque::new());
            self.memory =
                Some(Memory { direction: direction.clone(), length: 0.0, gradient, scale: 1.0, past });
            return Ok(direction);
        };
        let change = gradient.sub(&memory.gradient)?;
        let step = memory.direction.mul_scalar(memory.length)?;
        let product = number(&change.dot(&step)?)?;
        if product > 1e-10 {
            if memory.past.len() == self.options.history_size {
                memory.past.pop_front();
            }
            memory.scale = product / number(&change.dot(&change)?)?;
            memory.past.push_back(Past { step, change, inverse: 1.0 / product });
        }
        let mut direction = gradient.neg()?;
        let mut parts = Vec::with_capacity(memory.past.len());
        for past in memory.past.iter().rev() {
            let part = number(&past.step.dot(&direction)?)? * past.inverse;
            direction = direction.sub(&past.change.mul_scalar(part)?)?;
            parts.push(part);
        }
        direction = direction.mul_scalar(memory.scale)?;
        for (past, part) in memory.past.iter().zip(parts.into_iter().rev()) {
            let other = number(&past.change.dot(&direction)?)? * past.inverse;
            direction = direction.add(&past.step.mul_scalar(part - other)?)?;
        }
        Ok(direction)
    }

    fn evaluate(&self, closure: &mut dyn FnMut() -> Result<Tensor>) -> Result<f64> {
        number(&enable_grad(closure)?)
    }

    /// Returns all gradients as one vector, with zeros for missing ones.
    fn gradient(&self) -> Result<Tensor> {
        let parts = self.parameters.iter().map(|parameter| match parameter.grad() {
            Some(gradient) => gradient.detach().reshape(&[parameter.elements()])?.to_dtype(parameter.dtype()),
            None => Tensor::zeros(&[parameter.elements()], parameter.dtype(), parameter.device()),
        });
        Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, 0)
    }

    fn move_by(&self, direction: &Tensor, length: f64) -> Result<()> {
        let mut start = 0;
        for parameter in &self.parameters {
            let part = direction.narrow(0, start, parameter.elements())?.reshape(parameter.shape())?;
            parameter.add_(&part.mul_scalar(length)?)?;
            start += parameter.elements();
        }
        Ok(())
    }
}

/// Returns a tensor's number on the host.
fn number(tensor: &Tensor) -> Result<f64> {
    tensor.detach().to_dtype(thalweg_ir::DType::F64)?.item()
}

/// Returns the greatest absolute value of a vector; 0 for an empty one.
fn largest(vector: &Tensor) -> Result<f64> {
    if vector.elements() == 0 {
        return Ok(0.0);
    }
    number(&vector.abs()?.amax(&[], false)?)
}
