//! The command line.

use thalweg::DType;

use super::arguments::{Command, number};
use super::dtype::dtype;

pub const USAGE: &str = "\
usage: digits [--device cuda|sim[:N]] [--dtype f32|bf16] [--graph] [--steps N] [--epochs N] [--seed N] [--save FILE]
              [--resume FILE] [--json]

  --device D   where to run (default: the GPU if the machine has one, else the simulated GPU)
  --dtype T    f32 (default) or bf16, in which products then run by autocast
  --graph      capture the training step once and replay it
  --steps N    stop after N steps
  --epochs N   how often to go through the training images (default 30)
  --seed N     initial weights and the order of the images (default 0)
  --save FILE  write there at the end: weights, optimizer, step and random state as FILE.pt, weights alone as FILE.safetensors
  --resume FILE
               go on from a FILE.pt as if training had not stopped, or begin with the weights of a FILE.safetensors
  --json       one more line, with the figures as JSON";

/// The options of the command line.
#[derive(Clone, Debug)]
pub struct Options {
    pub device: Option<String>,
    pub dtype: DType,
    pub graph: bool,
    pub steps: Option<usize>,
    pub epochs: usize,
    pub seed: u64,
    pub save: Option<String>,
    pub resume: Option<String>,
    pub json: bool,
}

impl Options {
    pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Command<Self>, String> {
        let mut options = Self {
            device: None,
            dtype: DType::F32,
            graph: false,
            steps: None,
            epochs: 30,
            seed: 0,
            save: None,
            resume: None,
            json: false,
        };
        let mut arguments = arguments.peekable();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--device" => options.device = Some(value()?),
                "--dtype" => options.dtype = dtype(&value()?)?,
                "--save" => options.save = Some(value()?),
                "--resume" => options.resume = Some(value()?),
                "--steps" => options.steps = Some(number(&argument, &value()?, 0)?),
                "--epochs" => options.epochs = number(&argument, &value()?, 0)?,
                "--seed" => options.seed = number(&argument, &value()?, 0)? as u64,
                "--graph" => options.graph = true,
                "--json" => options.json = true,
                "--help" | "-h" => return Ok(Command::Help),
                other => return Err(format!("unknown argument {other}")),
            }
        }
        Ok(Command::Run(options))
    }
}
