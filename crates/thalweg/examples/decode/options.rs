//! The command line.

pub const USAGE: &str = "\
usage: decode [--device cuda|sim[:N]] [--tokens N] [--layers N] [--features N] [--heads N] [--context N] [--json]

  --device D    where to run (default: the GPU if the machine has one, else the simulated GPU)
  --tokens N    how many tokens to decode (default 32)
  --layers N, --features N, --heads N, --context N
                the size of the model (default 2, 64, 4 and 128; GPT-2's are 12, 768, 12 and 1024)
  --json        the figures as JSON, one object per line";

/// The options of the command line.
#[derive(Clone, Debug)]
pub struct Options {
    pub device: Option<String>,
    pub tokens: usize,
    pub layers: usize,
    pub features: usize,
    pub heads: usize,
    pub context: usize,
    pub json: bool,
}

pub enum Command {
    Run(Options),
    Help,
}

impl Options {
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Command, String> {
        let mut options =
            Self { device: None, tokens: 32, layers: 2, features: 64, heads: 4, context: 128, json: false };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--device" => options.device = Some(value()?),
                "--tokens" => options.tokens = count(&argument, &value()?)?,
                "--layers" => options.layers = count(&argument, &value()?)?,
                "--features" => options.features = count(&argument, &value()?)?,
                "--heads" => options.heads = count(&argument, &value()?)?,
                "--context" => options.context = count(&argument, &value()?)?,
                "--json" => options.json = true,
                "--help" | "-h" => return Ok(Command::Help),
                other => return Err(format!("unknown argument {other}")),
            }
        }
        if options.tokens >= options.context {
            return Err(format!(
                "{} tokens behind the first do not fit into a context of {}",
                options.tokens, options.context
            ));
        }
        if !options.features.is_multiple_of(options.heads) {
            return Err(format!(
                "{} features cannot be divided among {} heads",
                options.features, options.heads
            ));
        }
        Ok(Command::Run(options))
    }
}

fn count(name: &str, text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|&count| count > 0);
    count.ok_or_else(|| format!("{name} takes a whole number from 1 on, not '{text}'"))
}
