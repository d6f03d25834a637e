//! The command line.

use thalweg::DType;

use super::arguments::{Command, number};
use super::dtype::dtype;

pub const USAGE: &str = "\
usage: bert [--device cuda|sim[:N]] [--dtype f32|bf16] [--graph] [--weights FILE --vocab FILE] [--heads N] [SENTENCE]...

  --device D     where to run (default: the GPU if the machine has one, else the simulated GPU)
  --dtype T      f32 (default) or bf16, in which products then run by autocast
  --graph        capture the comparison once, and print what a replay gives
  --weights FILE the model.safetensors of a BERT, such as sentence-transformers/all-MiniLM-L6-v2; random weights without it
  --vocab FILE   the vocab.txt beside it
  --heads N      heads of attention, which the file does not say (default 12)
  SENTENCE       what is compared (default: four sentences)";

/// The options of the command line.
#[derive(Clone, Debug)]
pub struct Options {
    pub device: Option<String>,
    pub dtype: DType,
    pub graph: bool,
    pub weights: Option<String>,
    pub vocab: Option<String>,
    pub heads: usize,
    pub sentences: Vec<String>,
}

const SENTENCES: [&str; 4] = [
    "The river runs along its deepest line.",
    "Along its deepest line runs the river.",
    "The allocator returned the block to its pool.",
    "The block went back to the pool of the allocator.",
];

impl Options {
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Command<Self>, String> {
        let (device, weights, vocab) = (None, None, None);
        let mut options = Self {
            device,
            dtype: DType::F32,
            graph: false,
            weights,
            vocab,
            heads: 12,
            sentences: Vec::new(),
        };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--device" => options.device = Some(value()?),
                "--dtype" => options.dtype = dtype(&value()?)?,
                "--graph" => options.graph = true,
                "--weights" => options.weights = Some(value()?),
                "--vocab" => options.vocab = Some(value()?),
                "--heads" => options.heads = number(&argument, &value()?, 1)?,
                "--help" | "-h" => return Ok(Command::Help),
                other if other.starts_with("--") => return Err(format!("unknown argument {other}")),
                _ => options.sentences.push(argument),
            }
        }
        if options.weights.is_some() != options.vocab.is_some() {
            return Err("--weights and --vocab go together".to_owned());
        }
        if options.sentences.is_empty() {
            options.sentences = SENTENCES.map(str::to_owned).to_vec();
        }
        Ok(Command::Run(options))
    }
}
