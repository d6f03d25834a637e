//! [`Action`]: an operation of a rank in a pipeline.

use std::fmt;
use std::str::FromStr;

use thalweg_runtime::{Error, Result, invalid};

/// The work of a rank on a microbatch in a stage, with PyTorch's letters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Computation {
    /// `F`: the forward pass.
    Forward,
    /// `I`: the part of the backward pass that the previous stage waits for: the gradient of the stage's input.
    BackwardInput,
    /// `W`: the rest of the backward pass: the gradients of the weights.
    BackwardWeight,
    /// `B`: the full backward pass.
    FullBackward,
    /// `UNSHARD`: the gather of a sharded stage's parameters.
    Unshard,
    /// `RESHARD`: the release of a sharded stage's gathered parameters.
    Reshard,
    /// `SEND_F`: an activation is sent to the next stage.
    SendForward,
    /// `RECV_F`: an activation is received from the previous stage.
    ReceiveForward,
    /// `SEND_B`: a gradient is sent to the previous stage.
    SendBackward,
    /// `RECV_B`: a gradient is received from the next stage.
    ReceiveBackward,
    /// `REDUCE_GRAD`: the gradients of the microbatches are combined to those of the batch.
    ReduceGradients,
}

impl Computation {
    /// All kinds of work.
    pub const ALL: [Self; 11] = [
        Self::Forward,
        Self::BackwardInput,
        Self::BackwardWeight,
        Self::FullBackward,
        Self::Unshard,
        Self::Reshard,
        Self::SendForward,
        Self::ReceiveForward,
        Self::SendBackward,
        Self::ReceiveBackward,
        Self::ReduceGradients,
    ];

    /// Returns PyTorch's letters.
    pub const fn letters(self) -> &'static str {
        match self {
            Self::Forward => "F",
            Self::BackwardInput => "I",
            Self::BackwardWeight => "W",
            Self::FullBackward => "B",
            Self::Unshard => "UNSHARD",
            Self::Reshard => "RESHARD",
            Self::SendForward => "SEND_F",
            Self::ReceiveForward => "RECV_F",
            Self::SendBackward => "SEND_B",
            Self::ReceiveBackward => "RECV_B",
            Self::ReduceGradients => "REDUCE_GRAD",
        }
    }

    /// Returns whether the work is a computation with a microbatch.
    pub const fn is_compute(self) -> bool {
        matches!(self, Self::Forward | Self::BackwardInput | Self::BackwardWeight | Self::FullBackward)
    }

    /// Returns whether the work belongs to one microbatch, not to the stage as a whole.
    pub const fn has_microbatch(self) -> bool {
        !matches!(self, Self::Unshard | Self::Reshard | Self::ReduceGradients)
    }
}

/// An operation of a rank in a pipeline (`_Action` of PyTorch's pipelining), in PyTorch's notation: `0F0` is the forward pass of
/// microbatch 0 in stage 0, `1SEND_B2` the gradient of microbatch 2 that leaves stage 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Action {
    /// The stage.
    pub stage: usize,
    /// The work that is done.
    pub computation: Computation,
    /// The microbatch; `None` if the action belongs to the stage as a whole.
    pub microbatch: Option<usize>,
}

impl Action {
    /// Makes an action of a microbatch.
    pub const fn new(stage: usize, computation: Computation, microbatch: usize) -> Self {
        Self { stage, computation, microbatch: Some(microbatch) }
    }

    /// Makes an action of a stage as a whole.
    pub const fn of_stage(stage: usize, computation: Computation) -> Self {
        Self { stage, computation, microbatch: None }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.stage, self.computation.letters())?;
        self.microbatch.map_or(Ok(()), |microbatch| write!(f, "{microbatch}"))
    }
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Action {
    type Err = Error;

    /// Reads PyTorch's notation.
    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        let refuse = || {
            invalid!(
                "Invalid action string: {text}, should be formatted as [stage][action type][(microbatch)] e.g. 2F0"
            )
        };
        let is_digit = |letter: char| letter.is_ascii_digit();
        let first = text.find(|letter| !is_digit(letter)).ok_or_else(refuse)?;
        let letters = text.trim_end_matches(is_digit);
        let (stage, microbatch) = (&text[..first], &text[letters.len()..]);
        let letters = &letters[first..];
        let computation = Computation::ALL.into_iter().find(|computation| computation.letters() == letters);
        let computation = computation.ok_or_else(refuse)?;
        let number = |digits: &str| digits.parse::<usize>().map_err(|_| refuse());
        let microbatch = match computation.has_microbatch() {
            true => Some(number(microbatch)?),
            false if microbatch.is_empty() => None,
            false => return Err(refuse()),
        };
        Ok(Self { stage: number(stage)?, computation, microbatch })
    }
}
