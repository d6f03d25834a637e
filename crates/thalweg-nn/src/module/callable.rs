//! Modules as functions that can be captured as graphs.

use thalweg_runtime::{Error, Result, invalid};
use thalweg_tensor::Tensor;
use thalweg_tensor::graph::callable::Callable;

use super::Forward;

/// A module as a callable of one input and one result.
struct OfModule<M>(M);

impl<M: Forward + Send + Sync> Callable for OfModule<M> {
    fn name(&self) -> &str {
        self.0.type_name()
    }

    fn call(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        match inputs {
            [input] => Ok(vec![self.0.forward(input)?]),
            _ => Err(invalid!("a module takes one input, not {}", inputs.len())),
        }
    }

    fn parameters(&self) -> Vec<Tensor> {
        self.0.parameters()
    }

    fn buffers(&self) -> Vec<Tensor> {
        self.0.named_buffers().into_iter().map(|(_, tensor)| tensor).collect()
    }

    fn is_training(&self) -> bool {
        self.0.is_training()
    }
}

/// Returns a module as a [`Callable`], for [`make_graphed_callables`](thalweg_tensor::graph::callable::make_graphed_callables).
pub fn callable(module: impl Forward + Send + Sync + 'static) -> Box<dyn Callable> {
    Box::new(OfModule(module))
}
