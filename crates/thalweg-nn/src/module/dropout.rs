//! Dropout.

use std::panic::Location;
use std::sync::Arc;

use thalweg_derive::enter;
use thalweg_runtime::{Error, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::caller::outermost;
use thalweg_tensor::random::DeviceGenerator;

use super::{Forward, Module};
use crate::functional;

/// A layer that sets elements to 0 with a probability in training, and divides the others by 1 minus that probability.
#[derive(Module, Clone, Debug)]
pub struct Dropout {
    /// The probability.
    #[module(skip)]
    p: f64,
    #[module(skip)]
    generator: Arc<DeviceGenerator>,
    #[module(training)]
    training: bool,
}

impl Dropout {
    /// Makes a layer that draws from a generator.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the probability is not between 0 and 1.
    #[track_caller]
    pub fn new(p: f64, generator: &Arc<DeviceGenerator>) -> Result<Self> {
        if !(0.0..=1.0).contains(&p) {
            let text = format!("dropout probability has to be between 0 and 1, but got {p}");
            return Err(Error::invalid(text).at(outermost(Location::caller())));
        }
        Ok(Self { p, generator: Arc::clone(generator), training: true })
    }
}

impl Forward for Dropout {
    #[enter]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        functional::dropout(input, self.p, self.training, &self.generator)
    }
}
