//! The command line.

use super::common::arguments::Command;
use super::common::options::{TrainingOptions, training_usage};

pub const USAGE: &str = concat!(
    "\
usage: resnet [--device cuda|sim[:N]] [--dtype f32|bf16] [--graph] [--steps N] [--batch N] [--seed N] [--log-dir DIR]
              [--save FILE] [--resume FILE]

",
    training_usage!(),
    "
  --batch N      images per step (default 32)"
);

pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Command<TrainingOptions>, String> {
    let mut options = TrainingOptions::new(32);
    while let Some(argument) = arguments.next() {
        let value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--help" | "-h" => return Ok(Command::Help),
            other if options.take(other, value)? => {}
            other => return Err(format!("unknown argument {other}")),
        }
    }
    Ok(Command::Run(options))
}
