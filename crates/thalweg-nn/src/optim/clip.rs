//! Clipping of gradients in place (`torch.nn.utils.clip_grad_norm_`, `clip_grad_value_`). The host reads nothing.

use std::panic::Location;

use thalweg_derive::at_line;
use thalweg_ir::DType;
use thalweg_kernels::magnitudes::Magnitude;
use thalweg_runtime::{Error, Result, invalid, refuse};

use super::gradients::Gradients;
use thalweg_tensor::Tensor;
use thalweg_tensor::no_grad;

/// Scales the gradients of some parameters, in place, so that their total norm is at most `max_norm`, and returns their previous
/// norm: one element of f32, or of f64 if a gradient is f64. `norm_type` is 2 in most uses, and infinity for the greatest
/// magnitude.
///
/// The factor is max_norm / (norm + 10⁻⁶), at most 1, as in PyTorch; if the norm is NaN, all gradients become NaN. Asynchronous:
/// the gradients are read once for the norm, and once more where they are scaled, each time by one launch per 160 tensors.
/// [`Optimizer::step_clipped`](super::Optimizer::step_clipped) scales them in the step's own launch.
///
/// # Errors
/// [`Error::is_invalid_argument`] if there is no gradient, the gradients are on several devices, `max_norm` is below 0, or `norm_type`
/// is not above 0.
#[at_line]
pub fn clip_grad_norm_<'a>(
    parameters: impl IntoIterator<Item = &'a Tensor>,
    max_norm: f64,
    norm_type: f64,
) -> Result<Tensor> {
    is_at_least_0("clip_grad_norm_: max_norm", max_norm)?;
    is_above_0("clip_grad_norm_: norm_type", norm_type)?;
    let Some(gradients) = Gradients::of("clip_grad_norm_", parameters, Location::caller())? else {
        refuse!("clip_grad_norm_: no parameter has a gradient; run backward first");
    };
    let norm = norm(&gradients, norm_type)?;
    gradients.clip(&norm, max_norm)?;
    Ok(norm)
}

/// Returns the norm of the gradients of some parameters, and the divisor that reduces it to at most `max_norm`: one element of
/// f32.
pub(super) fn clip_scale<'a>(
    operator: &str,
    parameters: impl IntoIterator<Item = &'a Tensor>,
    max_norm: f64,
    norm_type: f64,
    location: &'static Location<'static>,
) -> Result<(Tensor, Tensor)> {
    is_above_0(&format!("{operator}: max_norm"), max_norm)?;
    is_above_0(&format!("{operator}: norm_type"), norm_type)?;
    let Some(gradients) = Gradients::of(operator, parameters, location)? else {
        refuse!("{operator}: no parameter has a gradient; run backward first");
    };
    let norm = norm(&gradients, norm_type)?;
    no_grad(|| {
        let scale = norm.add_scalar(1e-6)?.mul_scalar(1.0 / max_norm)?.clamp_min(1.0)?;
        Ok((norm, scale.to_dtype(DType::F32)?))
    })
}

/// Returns the total norm of all tensors (`torch.nn.utils.get_total_norm`): one element of f32, or of f64 if one of them is f64.
/// Asynchronous.
///
/// # Errors
/// [`Error::is_invalid_argument`] if there is no tensor, they are on several devices, or the kind of norm is not above 0.
#[at_line]
pub fn get_total_norm(tensors: &[Tensor], norm_type: f64) -> Result<Tensor> {
    is_above_0("get_total_norm: norm_type", norm_type)?;
    let tensors = tensors.iter().map(Tensor::detach).collect();
    norm(&Gradients::new("get_total_norm", tensors, Location::caller())?, norm_type)
}

fn norm(gradients: &Gradients, norm_type: f64) -> Result<Tensor> {
    no_grad(|| match norm_type {
        f64::INFINITY => gradients.magnitudes(Magnitude::Greatest)?.amax(&[], false),
        2.0 => gradients.magnitudes(Magnitude::Power(2.0))?.sum(&[], false)?.sqrt(),
        power => gradients.magnitudes(Magnitude::Power(power))?.sum(&[], false)?.pow_scalar(1.0 / power),
    })
}

/// Scales the gradients of some parameters, in place, by max_norm / (norm + 10⁻⁶) where that is below 1
/// (`torch.nn.utils.clip_grads_with_norm_`): for a norm that was computed elsewhere, for example over several ranks.
/// Asynchronous.
///
/// # Errors
/// [`Error::is_invalid_argument`] if the gradients are on several devices, or `max_norm` is below 0.
#[at_line]
pub fn clip_grads_with_norm_<'a>(
    parameters: impl IntoIterator<Item = &'a Tensor>,
    max_norm: f64,
    total_norm: &Tensor,
) -> Result<()> {
    is_at_least_0("clip_grads_with_norm_: max_norm", max_norm)?;
    let gradients = Gradients::of("clip_grads_with_norm_", parameters, Location::caller())?;
    gradients.map_or(Ok(()), |gradients| {
        gradients.clip(&total_norm.detach().to_dtype(gradients.dtype())?, max_norm)
    })
}

fn is_above_0(name: &str, value: f64) -> Result<()> {
    if value > 0.0 {
        return Ok(());
    }
    Err(invalid!("{name} is {value}, and must be above 0"))
}

fn is_at_least_0(name: &str, value: f64) -> Result<()> {
    if value >= 0.0 {
        return Ok(());
    }
    Err(invalid!("{name} is {value}, and must be at least 0"))
}

/// Limits every element of the gradients of some parameters to ±`clip_value`, in place. Asynchronous.
///
/// # Errors
/// [`Error::is_invalid_argument`] if the gradients are on several devices, or the limit is not at least 0.
#[at_line]
pub fn clip_grad_value_<'a>(parameters: impl IntoIterator<Item = &'a Tensor>, clip_value: f64) -> Result<()> {
    is_at_least_0("clip_grad_value_: clip_value", clip_value)?;
    let Some(gradients) = Gradients::of("clip_grad_value_", parameters, Location::caller())? else {
        return Ok(());
    };
    no_grad(|| {
        let mut gradients = gradients.tensors().iter();
        gradients.try_for_each(|gradient| gradient.copy_(&gradient.clamp(-clip_value, clip_value)?))
    })
}
