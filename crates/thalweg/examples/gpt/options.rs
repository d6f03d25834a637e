//! The command line.

use thalweg::DType;

pub const USAGE: &str = "\
usage: gpt [--device cuda|sim[:N]] [--dtype f32|bf16] [--graph] [--steps N] [--batch N] [--seed N] [--save FILE]
           [--resume FILE] [--prompt TEXT] [--sample N]

  --device D     where to run (default: the GPU if the machine has one, else the simulated GPU)
  --dtype T      the dtype of products (default f32); with bf16 they run in an autocast region
  --graph        capture the training step after three steps, and replay it
  --steps N      how many steps to train (default 200; 0 only samples)
  --batch N      pieces of text per step (default 16)
  --seed N       the seed of weights, order and sample (default 0)
  --save FILE    write the weights there at the end, as safetensors
  --resume FILE  begin with the weights of a file
  --prompt TEXT  what the sample begins with (default \"When \")
  --sample N     how many characters to sample (default 200)";

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
    pub prompt: String,
    pub sample: usize,
}

pub enum Command {
    Run(Options),
    Help,
}

impl Options {
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Command, String> {
        let mut options = Self {
            device: None,
            dtype: DType::F32,
            graph: false,
            steps: 200,
            batch: 16,
            seed: 0,
            save: None,
            resume: None,
            prompt: "When ".to_owned(),
            sample: 200,
        };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--device" => options.device = Some(value()?),
                "--dtype" => options.dtype = dtype(&value()?)?,
                "--graph" => options.graph = true,
                "--steps" => options.steps = number(&argument, &value()?, 0)?,
                "--batch" => options.batch = number(&argument, &value()?, 1)?,
                "--seed" => options.seed = number(&argument, &value()?, 0)? as u64,
                "--save" => options.save = Some(value()?),
                "--resume" => options.resume = Some(value()?),
                "--prompt" => options.prompt = value()?,
                "--sample" => options.sample = number(&argument, &value()?, 0)?,
                "--help" | "-h" => return Ok(Command::Help),
                other => return Err(format!("unknown argument {other}")),
            }
        }
        if options.prompt.is_empty() {
            return Err("--prompt must have at least one character".to_owned());
        }
        Ok(Command::Run(options))
    }
}

fn dtype(name: &str) -> Result<DType, String> {
    match name {
        "f32" => Ok(DType::F32),
        "bf16" => Ok(DType::Bf16),
        other => Err(format!("--dtype takes f32 or bf16, not '{other}'")),
    }
}

fn number(name: &str, text: &str, least: usize) -> Result<usize, String> {
    let number = text.parse().ok().filter(|&number| number >= least);
    number.ok_or_else(|| format!("{name} takes a whole number from {least} on, not '{text}'"))
}
