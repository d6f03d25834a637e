//! Activations that are composed of operators; the others are methods of [`Tensor`].

use std::panic::Location;

use thalweg_runtime::Result;
use thalweg_tensor::Tensor;
use thalweg_tensor::caller::in_call;

/// Returns x − tanh x (`torch.nn.functional.tanhshrink`).
#[track_caller]
pub fn tanhshrink(input: &Tensor) -> Result<Tensor> {
    in_call("tanhshrink", &[input], Location::caller(), || input.sub(&input.tanh()?))
}

/// Returns softmax of the negated elements along a dimension (`torch.nn.functional.softmin`).
///
/// # Errors
/// [`Error::is_invalid_argument`](thalweg_runtime::Error::is_invalid_argument) if there is no such dimension.
#[track_caller]
pub fn softmin(input: &Tensor, dim: i64) -> Result<Tensor> {
    in_call("softmin", &[input], Location::caller(), || input.neg()?.softmax(dim))
}

/// Returns samples of the Gumbel-softmax distribution along a dimension, drawn from the device's default generator
/// (`torch.nn.functional.gumbel_softmax`). With `hard` they are one-hot, and the gradient is that of the soft ones.
///
/// # Errors
/// [`Error::is_invalid_argument`](thalweg_runtime::Error::is_invalid_argument) if there is no such dimension.
#[track_caller]
pub fn gumbel_softmax(logits: &Tensor, tau: f64, hard: bool, dim: i64) -> Result<Tensor> {
    in_call("gumbel_softmax", &[logits], Location::caller(), || {
        let draws = logits.detach().empty_like()?;
        draws.exponential_(1.0)?;
        let soft = logits.sub(&draws.log()?)?.div_scalar(tau)?.softmax(dim)?;
        if !hard {
            return Ok(soft);
        }
        let place = soft.detach().argmax(dim)?.unsqueeze(dim)?;
        let chosen = soft.detach().zeros_like()?.scatter_value(dim, &place, 1.0)?;
        chosen.sub(&soft.detach())?.add(&soft)
    })
}
