//! The command line.

use std::path::PathBuf;

use super::arguments::{Command, number};

pub const USAGE: &str = "\
usage: graph_study [--device cuda|sim[:N]] [--rounds N] [--layers N] [--html OUT] [--json]

  --device D    where to run (default: the GPU if the machine has one, else the simulated GPU)
  --rounds N    how often each way of doing a step is timed (default 50)
  --layers N    the layers of the network (default 4)
  --html OUT    where to write the page (default: graph_study.html in the current directory)
  --json        the figures as JSON, one object per line, instead of the tables

The exit status is 0 if every check holds, 1 if one does not, 2 for a command line that is not understood.";

/// The options of the command line.
#[derive(Clone, Debug)]
pub struct Options {
    pub device: Option<String>,
    pub rounds: usize,
    pub layers: usize,
    pub html: PathBuf,
    pub json: bool,
}

impl Options {
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Command<Self>, String> {
        let html = "graph_study.html".into();
        let mut options = Self { device: None, rounds: 50, layers: 4, html, json: false };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--device" => options.device = Some(value()?),
                "--rounds" => options.rounds = number(&argument, &value()?, 1)?,
                "--layers" => options.layers = number(&argument, &value()?, 1)?,
                "--html" => options.html = value()?.into(),
                "--json" => options.json = true,
                "--help" | "-h" => return Ok(Command::Help),
                other => return Err(format!("unknown argument {other}")),
            }
        }
        Ok(Command::Run(options))
    }
}
