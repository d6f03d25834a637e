//! [`GradientScaler`]: prevents small gradients of low precision from vanishing (`torch.amp.GradScaler`).
//!
//! The loss is multiplied by a scale, and the optimizer divides the gradients by it. The scale grows while all gradients are
//! finite, and shrinks when one is not; such a step changes nothing. All state is on the device and the host reads nothing, so an
//! entire step can be captured; PyTorch's scaler reads back whether the step counts.

use std::panic::Location;

use thalweg_derive::at_line;
use thalweg_ir::DType;
use thalweg_runtime::{Device, Error, Result, invalid, options, refuse, refuse_if};

use thalweg_kernels::magnitudes::Magnitude;

use super::gradients::Gradients;
use super::{GradientScale, Optimizer, OptimizerOptions};
use thalweg_tensor::Tensor;
use thalweg_tensor::no_grad;

options! {
    /// The numbers of a [`GradientScaler`], with PyTorch's defaults.
    #[derive(Clone, Copy, PartialEq, Debug)]
    pub struct GradientScalerOptions {
        /// The first scale.
        pub init_scale: f64 = 65536.0,
        /// The factor of the scale after `growth_interval` consecutive steps with finite gradients.
        pub growth_factor: f64 = 2.0,
        /// The factor of the scale after a step with a gradient that is not finite.
        pub backoff_factor: f64 = 0.5,
        /// The number of consecutive steps until the scale grows.
        pub growth_interval: u32 = 2000,
    }
}

/// A scaler of gradients, with a scale that adapts itself. In each step: [`scale`](Self::scale) the loss, run backward,
/// [`step`](Self::step) each optimizer, [`update`](Self::update).
#[derive(Debug)]
pub struct GradientScaler {
    options: GradientScalerOptions,
    /// The scale, and `found_inf`. Any value of `found_inf` other than 0 means that a gradient was not finite. It covers all
    /// optimizers from the first one's step to the update.
    state: GradientScale,
    /// The number of consecutive steps with finite gradients.
    growth_steps: Tensor,
    growth_interval: Tensor,
    zero: Tensor,
    one: Tensor,
}

impl GradientScaler {
    /// Creates a scaler for gradients on a device.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the scale could not stay finite and positive with these numbers.
    #[at_line]
    pub fn new(options: GradientScalerOptions, device: &Device) -> Result<Self> {
        let GradientScalerOptions { init_scale, growth_factor, backoff_factor, growth_interval } = options;
        let is_sound = init_scale > 0.0
            && (init_scale as f32).is_finite()
            && growth_factor >= 1.0
            && growth_factor.is_finite()
            && backoff_factor > 0.0
            && backoff_factor <= 1.0
            && growth_interval > 0;
        refuse_if!(
            !is_sound,
            "GradientScaler: {options:?} must have a positive scale, a growth of 1 or more, a backoff above 0 and up to 1, \
                 and an interval of at least one step"
        );
        let number = |value: f64| Tensor::full(&[], value, DType::F32, device);
        Ok(Self {
            options,
            state: GradientScale { scale: number(init_scale)?, found_inf: number(0.0)? },
            growth_steps: number(0.0)?,
            growth_interval: number(f64::from(growth_interval))?,
            zero: number(0.0)?,
            one: number(1.0)?,
        })
    }

    /// Returns the scale, and whether a gradient of this step is not finite: one element of f32 each, on the device.
    pub fn state(&self) -> &GradientScale {
        &self.state
    }

    /// Returns the number of consecutive steps with finite gradients: one element of f32, on the device.
    pub fn growth_steps(&self) -> &Tensor {
        &self.growth_steps
    }

    /// Restores a scale and a number of consecutive steps with finite gradients, from [`state`](Self::state) and
    /// [`growth_steps`](Self::growth_steps) (`load_state_dict`). Asynchronous.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] for a scale that is not positive and finite in f32.
    #[at_line]
    pub fn load_state(&self, scale: f64, growth_steps: u32) -> Result<()> {
        if !(scale > 0.0 && (scale as f32) > 0.0 && (scale as f32).is_finite()) {
            refuse!("GradientScaler: a scale of {scale} is not positive and finite");
        }
        self.stays_for_current_stream();
        no_grad(|| {
            self.state.scale.fill_(scale)?;
            self.growth_steps.fill_(f64::from(growth_steps))?;
            self.state.found_inf.copy_(&self.zero)
        })
    }

    /// Records the use of the state on the current stream: no other code has access to it.
    fn stays_for_current_stream(&self) {
        let GradientScale { scale, found_inf } = &self.state;
        for tensor in [scale, found_inf, &self.growth_steps, &self.growth_interval, &self.zero, &self.one] {
            tensor.record_stream(&tensor.device().current_stream());
        }
    }

    /// Returns the loss, scaled: run backward from this.
    #[at_line]
    pub fn scale(&self, loss: &Tensor) -> Result<Tensor> {
        self.stays_for_current_stream();
        loss.mul(&self.state.scale.to_dtype(loss.dtype())?)
    }

    /// Checks whether the gradients are finite, and updates the optimizer's parameters if they are. Asynchronous.
    #[at_line]
    pub fn step<O: OptimizerOptions>(&self, optimizer: &Optimizer<O>) -> Result<()> {
        let found_inf = self.look(optimizer.parameters(), None)?.unwrap_or_else(|| self.zero.clone());
        optimizer.step_scaled(&GradientScale { scale: self.state.scale.clone(), found_inf })
    }

    /// Divides the gradients of an optimizer by the scale, in place, and checks whether they are finite
    /// (`torch.amp.GradScaler.unscale_`): for clipping, before [`step_unscaled`](Self::step_unscaled). Call it once per step.
    /// Asynchronous.
    #[at_line]
    pub fn unscale<O: OptimizerOptions>(&self, optimizer: &Optimizer<O>) -> Result<()> {
        let found = self.unscaled(optimizer.parameters())?;
        let own = optimizer.found_inf();
        own.record_stream(&own.device().current_stream());
        no_grad(|| own.copy_(found.as_ref().unwrap_or(&self.zero)))
    }

    /// Divides the gradients of parameters by the scale, in place, and returns whether one of them was not finite: one element of
    /// f32 on the device, not 0 if so. For custom rules, which check it before they step. Call it once per step. Asynchronous.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if no parameter has a gradient.
    #[at_line]
    pub fn unscale_gradients(&self, parameters: &[Tensor]) -> Result<Tensor> {
        self.unscaled(parameters.iter())?.ok_or_else(|| {
            invalid!("GradientScaler: no parameter has a gradient; run backward from the scaled loss before")
        })
    }

    /// Updates the parameters of an optimizer whose gradients were [unscaled](Self::unscale), if they are finite. Asynchronous.
    #[at_line]
    pub fn step_unscaled<O: OptimizerOptions>(&self, optimizer: &Optimizer<O>) -> Result<()> {
        self.stays_for_current_stream();
        let found_inf = optimizer.found_inf().clone();
        optimizer.step_scaled(&GradientScale { scale: self.one.clone(), found_inf })
    }

    /// Divides gradients by the scale; see [`look`](Self::look).
    fn unscaled<'a>(&self, parameters: impl IntoIterator<Item = &'a Tensor>) -> Result<Option<Tensor>> {
        let factor = no_grad(|| self.one.div(&self.state.scale))?;
        self.look(parameters, Some(&factor))
    }

    /// Checks whether one of the gradients is not finite, multiplies them by a factor, and returns the result of the check, which the
    /// next update of the scale reads; `None` if there are no gradients.
    fn look<'a>(
        &self,
        parameters: impl IntoIterator<Item = &'a Tensor>,
        factor: Option<&Tensor>,
    ) -> Result<Option<Tensor>> {
        self.stays_for_current_stream();
        no_grad(|| {
            let Some(gradients) = Gradients::of("GradientScaler", parameters, Location::caller())? else {
                return Ok(None);
            };
            let greatest = gradients.magnitudes(Magnitude::Greatest)?.amax(&[], false)?;
            // Infinity minus itself is NaN, and so is NaN minus itself.
            let rest = greatest.sub(&greatest)?;
            let found = rest.ne(&rest)?.to_dtype(DType::F32)?;
            if let Some(factor) = factor {
                gradients.scale(factor)?;
            }
            self.state.found_inf.copy_(&self.state.found_inf.maximum(&found)?)?;
            Ok(Some(found))
        })
    }

    /// Ends the step: the scale grows or shrinks (`_amp_update_scale_`). Asynchronous.
    #[at_line]
    pub fn update(&self) -> Result<()> {
        self.stays_for_current_stream();
        let GradientScale { scale, found_inf } = &self.state;
        no_grad(|| {
            let failed = found_inf.ne(&self.zero)?;
            let steps = self.growth_steps.add_scalar(1.0)?;
            let grows = steps.ge(&self.growth_interval)?;
            let larger = scale.mul_scalar(self.options.growth_factor)?;
            // The scale does not grow beyond the largest number: infinity minus itself is NaN.
            let rest = larger.sub(&larger)?;
            let larger = rest.eq(&self.zero)?.select_where(&larger, scale)?;
            let smaller = scale.mul_scalar(self.options.backoff_factor)?;
            let kept = grows.select_where(&larger, scale)?;
            let scaled = failed.select_where(&smaller, &kept)?;
            let steps = failed.select_where(&self.zero, &grows.select_where(&self.zero, &steps)?)?;
            // Everything that needs memory has been done.
            scale.copy_(&scaled)?;
            self.growth_steps.copy_(&steps)?;
            found_inf.copy_(&self.zero)
        })
    }
}
