//! PyTorch in another process, which receives rows and returns times.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value as Json;

use super::measure::Time;
use super::rows::Row;
use crate::output::Failure;

/// The program that the other process runs.
const PROGRAM: &str = include_str!("torch_peer.py");

/// A process that times rows with PyTorch.
pub struct Peer {
    child: Child,
    rows: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// PyTorch's version and its GPU.
    pub name: String,
}

impl Peer {
    /// Starts the process with this Python; it tries cuDNN's engines if `cudnn_benchmark` is set.
    pub fn start(python: &str, cudnn_benchmark: bool) -> Result<Self, Failure> {
        let mut child = Command::new(python)
            .args(["-c", PROGRAM])
            .args(cudnn_benchmark.then_some("cudnn.benchmark"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Failure(format!("`{python}` could not be started: {error}")))?;
        let (rows, answers) = (child.stdin.take(), child.stdout.take());
        let (Some(rows), Some(answers)) = (rows, answers) else {
            return Err(Failure(format!("`{python}` has no standard input and output")));
        };
        let mut peer = Self { child, rows, answers: BufReader::new(answers), name: String::new() };
        let greeting = peer.answer()?;
        match greeting["peer"].as_str().filter(|name| !name.is_empty()) {
            Some(name) => peer.name = name.to_owned(),
            None => return Err(Failure(format!("PyTorch of `{python}` finds no GPU"))),
        }
        Ok(peer)
    }

    /// Times a row, or returns the reason why PyTorch cannot run it.
    pub fn time(&mut self, row: &Row) -> Result<Result<Time, String>, Failure> {
        writeln!(self.rows, "{}", row.as_json())
            .map_err(|error| Failure(format!("PyTorch has gone: {error}")))?;
        let answer = self.answer()?;
        Ok(match answer["microseconds"].as_f64() {
            Some(microseconds) => Ok(Time { microseconds, captured: answer["captured"] == true }),
            None => Err(answer["error"].as_str().unwrap_or("no time").to_owned()),
        })
    }

    fn answer(&mut self) -> Result<Json, Failure> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(0) => Err(Failure("PyTorch ended; what it said stands above".to_owned())),
            Ok(_) => serde_json::from_str(&line)
                .map_err(|error| Failure(format!("PyTorch answered `{}`: {error}", line.trim()))),
            Err(error) => Err(Failure(format!("PyTorch's answer could not be read: {error}"))),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
