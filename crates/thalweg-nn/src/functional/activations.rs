//! Activations that are composed of operators; the others are methods of [`Tensor`].

use thalweg_derive::in_call;
use thalweg_runtime::Result;
use thalweg_tensor::Tensor;

/// Returns x − tanh x (`torch.nn.functional.tanhshrink`).
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let x = Tensor::from_values([0.0f32, 1.0], &device)?;
/// assert_eq!(functional::tanhshrink(&x)?.to_string(), "tensor([0.0000, 0.2384], device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
#[in_call("tanhshrink", &[input])]
pub fn tanhshrink(input: &Tensor) -> Result<Tensor> {
    input.sub(&input.tanh()?)
}

/// Returns softmax of the negated elements along a dimension (`torch.nn.functional.softmin`).
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
/// assert_eq!(functional::softmin(&x, 0)?.to_string(), "tensor([0.6652, 0.2447, 0.0900], device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
///
/// # Errors
/// [`Error::is_invalid_argument`](thalweg_runtime::Error::is_invalid_argument) if there is no such dimension.
#[in_call("softmin", &[input])]
pub fn softmin(input: &Tensor, dim: i64) -> Result<Tensor> {
    input.neg()?.softmax(dim)
}

/// Returns samples of the Gumbel-softmax distribution along a dimension, drawn from the device's default generator
/// (`torch.nn.functional.gumbel_softmax`). With `hard` they are one-hot, and the gradient is that of the soft ones.
///
/// ```
/// # use thalweg_nn::functional::{self, *};
/// # use thalweg_tensor::Tensor;
/// # let device = thalweg_runtime::Device::sim(0)?;
/// let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
/// assert_eq!(functional::gumbel_softmax(&x, 1.0, true, 0)?.sum(&[], false)?.to_string(), "tensor(1., device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
///
/// # Errors
/// [`Error::is_invalid_argument`](thalweg_runtime::Error::is_invalid_argument) if there is no such dimension.
#[in_call("gumbel_softmax", &[logits])]
pub fn gumbel_softmax(logits: &Tensor, tau: f64, hard: bool, dim: i64) -> Result<Tensor> {
    let draws = logits.detach().empty_like()?;
    draws.exponential_(1.0)?;
    let soft = logits.sub(&draws.log()?)?.div_scalar(tau)?.softmax(dim)?;
    if !hard {
        return Ok(soft);
    }
    let place = soft.detach().argmax(dim)?.unsqueeze(dim)?;
    let chosen = soft.detach().zeros_like()?.scatter_value(dim, &place, 1.0)?;
    chosen.sub(&soft.detach())?.add(&soft)
}
