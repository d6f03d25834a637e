//! [`Ema`]: a module whose weights are an average of another's.

use thalweg_derive::at_line;
use thalweg_runtime::{Error, Result, refuse_if};
use thalweg_tensor::{Tensor, try_no_grad};

use crate::module::Module;

/// A copy of a module whose parameters are the exponential moving average of the module's (`AveragedModel` with
/// `get_ema_multi_avg_fn`). Evaluate it instead of the module that is trained.
///
/// ```
/// # use thalweg_nn::{module::Linear, optim::Ema};
/// # let device = thalweg_runtime::Device::sim(0)?;
/// # let generator = &mut thalweg_tensor::random::Generator::new(0);
/// let layer = Linear::new(1, 1, generator, &device)?;
/// layer.weight.data().fill_(1.0)?;
/// let ema = Ema::new(&layer, 0.9)?;
/// layer.weight.data().fill_(2.0)?; // a step of an optimizer
/// ema.update(&layer)?;
/// assert_eq!(ema.module().weight.to_string(), "tensor([[1.1000]], device='sim:0')");
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Ema<M> {
    module: M,
    decay: f64,
}

/// Returns the tensors of two modules in pairs.
fn pairs(averages: Vec<(String, Tensor)>, currents: Vec<(String, Tensor)>) -> Result<Vec<(Tensor, Tensor)>> {
    let shapes = |tensors: &[(String, Tensor)]| -> Vec<(String, Vec<usize>)> {
        tensors.iter().map(|(name, tensor)| (name.clone(), tensor.shape().to_vec())).collect()
    };
    let (own, found) = (shapes(&averages), shapes(&currents));
    refuse_if!(own != found, "Ema: the average is of tensors {own:?}, and the module has {found:?}");
    Ok(averages
        .into_iter()
        .map(|(_, tensor)| tensor)
        .zip(currents.into_iter().map(|(_, tensor)| tensor))
        .collect())
}

impl<M: Module + Clone> Ema<M> {
    /// Returns an average that begins at the module's weights. Asynchronous.
    ///
    /// # Errors
    /// [`is_invalid_argument`](thalweg_runtime::Error::is_invalid_argument) if the decay is not between 0 and 1.
    #[at_line]
    pub fn new(module: &M, decay: f64) -> Result<Self> {
        refuse_if!(
            !(0.0..=1.0).contains(&decay),
            "Invalid decay value {decay} provided. Please provide a value in [0,1] range."
        );
        let module = module.deep_clone()?;
        module.set_requires_grad(false)?;
        Ok(Self { module, decay })
    }

    /// Moves each parameter towards that of the module, by 1 − decay of the distance, and copies the buffers. Asynchronous.
    ///
    /// # Errors
    /// [`is_invalid_argument`](thalweg_runtime::Error::is_invalid_argument) if the module has parameters or buffers of other names or
    /// shapes than the one that was averaged. Then nothing has changed.
    #[at_line]
    pub fn update(&self, module: &M) -> Result<()> {
        let parameters = pairs(self.module.named_parameters(), module.named_parameters())?;
        let buffers = pairs(self.module.named_buffers(), module.named_buffers())?;
        try_no_grad(|| {
            for (average, current) in parameters {
                average.lerp_(&current.detach(), 1.0 - self.decay)?;
            }
            buffers.into_iter().try_for_each(|(average, current)| average.copy_(&current))
        })
    }

    /// Returns the module with the averaged parameters.
    pub const fn module(&self) -> &M {
        &self.module
    }

    /// Returns the module with the averaged parameters, to be set to evaluation mode.
    pub const fn module_mut(&mut self) -> &mut M {
        &mut self.module
    }
}
