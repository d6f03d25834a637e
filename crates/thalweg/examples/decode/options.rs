//! The command line.

use std::path::PathBuf;

use thalweg::DType;
use thalweg::module::IntegerFormat;

use super::arguments::{self, Command};
use super::dtype::dtype;

pub const USAGE: &str = "\
usage: decode [--device cuda|sim[:N]] [--dtype f32|bf16] [--tokens N] [--first TOKEN] [--temperature T]
              [--integers int8|int4] [--weights FILE] [--layers N] [--features N] [--heads N] [--context N] [--vocabulary N] [--json]

  --device D       where to run (default: the GPU if the machine has one, else the simulated GPU)
  --dtype D        the dtype of weights and cache (default bf16)
  --tokens N       how many tokens to decode (default 32)
  --first TOKEN    the token that the sequence begins with (default 42; GPT-2's end of a text is 50256)
  --temperature T  draws tokens, from scores divided by T (default: takes the likeliest)
  --integers F     the weights of the layers' products as integers of 8 or 4 bits (groups of 64) with scales
  --weights FILE   a GPT-2 in safetensors, with Hugging Face's names; it has sizes of its own
  --layers N, --features N, --heads N, --context N, --vocabulary N
                   the size of a random model (default 2, 64, 4, 128 and 256; GPT-2's are 12, 768, 12, 1024 and 50257)
  --json           the figures as JSON, one object per line";

/// The options of the command line.
#[derive(Clone, Debug)]
pub struct Options {
    pub device: Option<String>,
    pub dtype: DType,
    pub tokens: usize,
    pub first: usize,
    pub temperature: Option<f64>,
    pub integers: Option<IntegerFormat>,
    pub weights: Option<PathBuf>,
    pub layers: usize,
    pub features: usize,
    pub heads: usize,
    pub context: usize,
    pub vocabulary: usize,
    pub json: bool,
}

impl Options {
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Command<Self>, String> {
        let mut options = Self {
            device: None,
            dtype: DType::Bf16,
            tokens: 32,
            first: 42,
            temperature: None,
            integers: None,
            weights: None,
            layers: 2,
            features: 64,
            heads: 4,
            context: 128,
            vocabulary: 256,
            json: false,
        };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            let count = |text: &str| arguments::number(&argument, text, 1);
            match argument.as_str() {
                "--device" => options.device = Some(value()?),
                "--dtype" => options.dtype = dtype(&value()?)?,
                "--tokens" => options.tokens = count(&value()?)?,
                "--first" => options.first = arguments::number(&argument, &value()?, 0)?,
                "--temperature" => options.temperature = Some(temperature(&value()?)?),
                "--integers" => options.integers = Some(integers(&value()?)?),
                "--weights" => options.weights = Some(value()?.into()),
                "--layers" => options.layers = count(&value()?)?,
                "--features" => options.features = count(&value()?)?,
                "--heads" => options.heads = count(&value()?)?,
                "--context" => options.context = count(&value()?)?,
                "--vocabulary" => options.vocabulary = count(&value()?)?,
                "--json" => options.json = true,
                "--help" | "-h" => return Ok(Command::Help),
                other => return Err(format!("unknown argument {other}")),
            }
        }
        if options.weights.is_none() {
            options.check(options.context, options.vocabulary)?;
        }
        if !options.features.is_multiple_of(options.heads) {
            return Err(format!(
                "{} features cannot be divided among {} heads",
                options.features, options.heads
            ));
        }
        Ok(Command::Run(options))
    }

    /// Checks that the tokens fit into a model.
    pub fn check(&self, context: usize, vocabulary: usize) -> Result<(), String> {
        if self.tokens >= context {
            return Err(format!(
                "{} tokens behind the first do not fit into a context of {context}",
                self.tokens
            ));
        }
        if self.first >= vocabulary {
            return Err(format!("there is no token {} among {vocabulary}", self.first));
        }
        Ok(())
    }
}

fn integers(text: &str) -> Result<IntegerFormat, String> {
    match text {
        "int8" => Ok(IntegerFormat::Int8),
        "int4" => Ok(IntegerFormat::Int4 { group: 64 }),
        _ => Err(format!("--integers takes int8 or int4, not '{text}'")),
    }
}

fn temperature(text: &str) -> Result<f64, String> {
    let temperature =
        text.parse().ok().filter(|temperature: &f64| temperature.is_finite() && *temperature > 0.0);
    temperature.ok_or_else(|| format!("--temperature takes a number above 0, not '{text}'"))
}
