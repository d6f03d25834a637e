//! Modules as functions of which graphs can be made.

use thalweg_runtime::{Error, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::graph::callable::Callable;

use super::Module;

/// A module as a callable of one input and one result.
struct OfModule<M>(M);

impl<M: Module + Send + Sync> Callable for OfModule<M> {
    fn name(&self) -> &str {
        std::any::type_name::<M>().rsplit("::").next().unwrap_or("module")
    }

    fn call(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        match inputs {
            [input] => Ok(vec![self.0.forward(input)?]),
            _ => Err(Error::invalid(format!("a module takes one input, not {}", inputs.len()))),
        }
    }

    fn parameters(&self) -> Vec<Tensor> {
        self.0.parameters()
    }
}

/// Returns a module as a [`Callable`], for [`make_graphed_callables`](thalweg_tensor::graph::callable::make_graphed_callables).
pub fn callable(module: impl Module + Send + Sync + 'static) -> Box<dyn Callable> {
    Box::new(OfModule(module))
}
