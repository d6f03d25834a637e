//! Recording: the results of an operator, or of a program's own function, become those of a node.

use thalweg_runtime::{Device, Stream};

use super::node::Expected;
use super::{Backward, Edge, Node, is_grad_enabled};
use crate::tensor::Tensor;

/// Records the node of an operator over `inputs`: its `results` become part of the graph.
pub(crate) fn record(
    function: Box<dyn Backward>,
    inputs: &[&Tensor],
    results: &mut [Tensor],
    stream: Stream,
) {
    record_places(function, inputs, results.iter_mut().map(Some), stream, None);
}

/// Records a node as [`record`] does, some of whose results are not tensors.
fn record_places<'a>(
    function: Box<dyn Backward>,
    inputs: &[&Tensor],
    results: impl ExactSizeIterator<Item = Option<&'a mut Tensor>>,
    stream: Stream,
    expected: Option<Expected>,
) {
    let edges = inputs.iter().map(|tensor| tensor.gradient_edge()).collect();
    let node = Node::new(function, edges, results.len(), stream, expected);
    for (input, result) in results.enumerate() {
        if let Some(result) = result.filter(|result| result.dtype().is_differentiable()) {
            result.join(Edge { node: node.clone(), input });
        }
    }
}

/// Records a program's own function (`torch.autograd.Function`): returns `results`, which the caller has computed from `inputs`
/// outside the graph, as the outputs of a node with this backward function. A result that shares memory with an input cannot be
/// written in place. The backward function holds what it needs itself. If nothing is recorded, or no input requires a gradient,
/// the results are returned unchanged. A gradient that the function returns is summed to the shape of its input and converted to its
/// dtype; one that does not sum to it, or is on another device, is an error of the backward pass.
///
/// ```
/// # use thalweg_runtime::{Device, Result};
/// # use thalweg_tensor::{Tensor, no_grad};
/// # use thalweg_tensor::autograd::{Backward, Gradients, record_function};
/// # use thalweg_ir::DType;
/// /// A copy whose gradient is turned around.
/// struct Reversal;
///
/// impl Backward for Reversal {
///     fn name(&self) -> &'static str {
///         "reversal"
///     }
///
///     fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
///         gradients.iter().map(|gradient| gradient.as_ref().map(Tensor::neg).transpose()).collect()
///     }
/// }
///
/// # fn main() -> Result<()> {
/// let x = Tensor::ones(&[2], DType::F32, &Device::sim(0)?)?.requires_grad_()?;
/// let copy = no_grad(|| x.mul_scalar(1.0))?;
/// let y = record_function(Box::new(Reversal), &[&x], vec![copy]).remove(0);
/// y.sum(&[], false)?.backward()?;
/// assert_eq!(x.grad().expect("a gradient").to_vec::<f32>()?, [-1.0, -1.0]);
/// # Ok(())
/// # }
/// ```
pub fn record_function(function: Box<dyn Backward>, inputs: &[&Tensor], results: Vec<Tensor>) -> Vec<Tensor> {
    let results = results.into_iter().map(Some).collect();
    record_function_of_any(function, inputs, results).into_iter().flatten().collect()
}

/// Records a function as [`record_function`] does, some of whose results are not tensors: these are `None` and have no gradient.
pub fn record_function_of_any(
    function: Box<dyn Backward>,
    inputs: &[&Tensor],
    results: Vec<Option<Tensor>>,
) -> Vec<Option<Tensor>> {
    let (true, Some(first)) = (is_grad_enabled(), inputs.iter().find(|input| input.requires_grad())) else {
        return results;
    };
    // Tensors without memory represent those of a program's own class, which are computed on the current device.
    let with_memory = inputs.iter().map(|input| input.device().clone()).find(|device| !device.is_meta());
    let device = with_memory.or_else(|| Device::current().ok()).unwrap_or_else(|| first.device().clone());
    let stream = device.current_stream();
    let apart = |result: &Tensor| match inputs.iter().any(|input| input.shares_storage_with(result)) {
        true => result.detached_view(),
        false => result.detach(),
    };
    let mut results: Vec<Option<Tensor>> = results.iter().map(|result| result.as_ref().map(apart)).collect();
    let property = |input: &&Tensor| (input.shape().into(), input.dtype(), input.device().clone());
    let expected = (!function.takes_external()).then(|| inputs.iter().map(property).collect());
    record_places(function, inputs, results.iter_mut().map(Option::as_mut), stream, expected);
    results
}
