//! The command line.

use thalweg::DType;

pub const USAGE: &str = "\
usage: resnet [--device cuda|sim[:N]] [--dtype f32|bf16] [--graph] [--steps N] [--batch N] [--seed N] [--save FILE]
              [--resume FILE]

  --device D     where to run (default: the GPU if the machine has one, else the simulated GPU)
  --dtype T      the dtype of products and convolutions (default f32); with bf16 they run in an autocast region
  --graph        capture the training step after three steps, and replay it
  --steps N      how many steps to train (default 200; 0 only evaluates)
  --batch N      images per step (default 32)
  --seed N       the seed of weights and order (default 0)
  --save FILE    write the weights there at the end, as safetensors
  --resume FILE  begin with the weights of a file";

/// The options of the command line.
#[derive(Clone, Debug)]
pub struct Options {
    pub device: Option<String>,
    pub dtype: DType,
    pub graph: bool,
    pub steps: usize,
    pub batch: usize,
    pub seed: u64,
    pub save: Option<String>,
    pub resume: Option<String>,
}

pub enum Command {
    Run(Options),
    Help,
}

impl Options {
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Command, String> {
        let (device, save, resume) = (None, None, None);
        let (dtype, graph, steps, batch, seed) = (DType::F32, false, 200, 32, 0);
        let mut options = Self { device, dtype, graph, steps, batch, seed, save, resume };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--device" => options.device = Some(value()?),
                "--dtype" => {
                    options.dtype = match value()?.as_str() {
                        "f32" => DType::F32,
                        "bf16" => DType::Bf16,
                        other => return Err(format!("--dtype takes f32 or bf16, not '{other}'")),
                    }
                }
                "--graph" => options.graph = true,
                "--steps" => options.steps = number(&argument, &value()?, 0)?,
                "--batch" => options.batch = number(&argument, &value()?, 1)?,
                "--seed" => options.seed = number(&argument, &value()?, 0)? as u64,
                "--save" => options.save = Some(value()?),
                "--resume" => options.resume = Some(value()?),
                "--help" | "-h" => return Ok(Command::Help),
                other => return Err(format!("unknown argument {other}")),
            }
        }
        Ok(Command::Run(options))
    }
}

fn number(name: &str, text: &str, least: usize) -> Result<usize, String> {
    let number = text.parse().ok().filter(|&number| number >= least);
    number.ok_or_else(|| format!("{name} takes a whole number from {least} on, not '{text}'"))
}
