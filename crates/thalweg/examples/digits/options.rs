//! The command line.

use super::arguments::{Command, number};

pub const USAGE: &str = "\
usage: digits [--device cuda|sim[:N]] [--graph] [--steps N] [--epochs N] [--seed N] [--json]

  --device D   where to run (default: the GPU if the machine has one, else the simulated GPU)
  --graph      capture the training step once and replay it
  --steps N    stop after N steps
  --epochs N   how often to go through the training images (default 30)
  --seed N     initial weights and the order of the images (default 0)
  --json       one more line, with the figures as JSON";

/// The options of the command line.
#[derive(Clone, Debug)]
pub struct Options {
    pub device: Option<String>,
    pub graph: bool,
    pub steps: Option<usize>,
    pub epochs: usize,
    pub seed: u64,
    pub json: bool,
}

impl Options {
    pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Command<Self>, String> {
        let mut options = Self { device: None, graph: false, steps: None, epochs: 30, seed: 0, json: false };
        let mut arguments = arguments.peekable();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--device" => options.device = Some(value()?),
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
