//! The command line.

use super::common::arguments::{Command, number};
use super::common::options::{TrainingOptions, training_usage};

pub const USAGE: &str = concat!(
    "\
usage: gpt [--device cuda|sim[:N]] [--dtype f32|bf16] [--graph] [--steps N] [--batch N] [--seed N] [--log-dir DIR]
           [--save FILE] [--resume FILE] [--prompt TEXT] [--sample N]

",
    training_usage!(),
    "
  --batch N      pieces of text per step (default 16)
  --prompt TEXT  what the sample begins with (default \"When \")
  --sample N     how many characters to sample (default 200)"
);

/// The options of the command line.
#[derive(Clone, Debug)]
pub struct Options {
    pub training: TrainingOptions,
    pub prompt: String,
    pub sample: usize,
}

impl Options {
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Command<Self>, String> {
        let training = TrainingOptions::new(16);
        let mut options = Self { training, prompt: "When ".to_owned(), sample: 200 };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--prompt" => options.prompt = value()?,
                "--sample" => options.sample = number(&argument, &value()?, 0)?,
                "--help" | "-h" => return Ok(Command::Help),
                other if options.training.take(other, value)? => {}
                other => return Err(format!("unknown argument {other}")),
            }
        }
        if options.prompt.is_empty() {
            return Err("--prompt must have at least one character".to_owned());
        }
        Ok(Command::Run(options))
    }
}
