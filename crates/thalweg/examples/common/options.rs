//! The options that examples of training share.

use thalweg::{DType, Device};

use super::arguments::{device, number};
use super::dtype::dtype;

/// The lines of the usage text that are the same everywhere.
macro_rules! training_usage {
    () => {
        "\
  --device D     where to run (default: the GPU if the machine has one, else the simulated GPU)
  --dtype T      f32 (default) or bf16, in which products then run by autocast
  --graph        capture the training step after three steps, and replay it
  --steps N      how many steps to train (default 200; 0 trains none)
  --seed N       the seed of weights and order (default 0)
  --log-dir DIR  write the loss there, for TensorBoard and as JSON lines
  --save FILE    write there at the end: weights, optimizer, step and random state as FILE.pt, weights alone as FILE.safetensors
  --resume FILE  go on from a FILE.pt as if training had not stopped, or begin with the weights of a FILE.safetensors"
    };
}
pub(crate) use training_usage;

/// The options that all examples of training have.
#[derive(Clone, Debug)]
pub struct TrainingOptions {
    device: Option<String>,
    pub dtype: DType,
    pub graph: bool,
    pub steps: usize,
    pub batch: usize,
    pub seed: u64,
    pub log_dir: Option<String>,
    pub save: Option<String>,
    pub resume: Option<String>,
}

impl TrainingOptions {
    /// Returns the defaults, with batches of this size.
    pub fn new(batch: usize) -> Self {
        let (device, log_dir, save, resume) = (None, None, None, None);
        Self { device, dtype: DType::F32, graph: false, steps: 200, batch, seed: 0, log_dir, save, resume }
    }

    /// Parses an argument, with its value if it has one; returns `false` if it is not one of these options.
    pub fn take(
        &mut self,
        argument: &str,
        mut value: impl FnMut() -> Result<String, String>,
    ) -> Result<bool, String> {
        match argument {
            "--device" => self.device = Some(value()?),
            "--dtype" => self.dtype = dtype(&value()?)?,
            "--graph" => self.graph = true,
            "--steps" => self.steps = number(argument, &value()?, 0)?,
            "--batch" => self.batch = number(argument, &value()?, 1)?,
            "--seed" => self.seed = number(argument, &value()?, 0)? as u64,
            "--log-dir" => self.log_dir = Some(value()?),
            "--save" => self.save = Some(value()?),
            "--resume" => self.resume = Some(value()?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    pub fn device(&self) -> thalweg::Result<Device> {
        device(self.device.as_deref())
    }
}
