//! What a tree has decided, counted and in words.

use std::collections::VecDeque;
use std::fmt;

use thalweg_runtime::Result;

use crate::tensor::Tensor;

/// How many decisions are remembered in words.
const REMEMBERED: usize = 256;

/// How often a [`GraphTree`](super::GraphTree) did what.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GraphTreeCounters {
    /// Calls of functions.
    pub calls: u64,
    /// Calls that ran eagerly because their function and shapes were not warm yet.
    pub warm_ups: u64,
    /// Calls that ran eagerly because of a limit, or because the function cannot be captured or has no size that fits.
    pub eager: u64,
    /// Calls inside somebody else's capture, which became part of that.
    pub inlined: u64,
    /// Graphs that were recorded.
    pub recordings: u64,
    /// Graphs that were replayed, those included that were recorded for it.
    pub replays: u64,
    /// Recordings in a place where there was a graph already, because a static input had moved, or was another one in its place.
    pub static_inputs_moved: u64,
    /// … because an input that lies in the pool had moved.
    pub managed_inputs_moved: u64,
    /// … because an output was still held that the graph would overwrite.
    pub outputs_alive: u64,
    /// Inputs that were found in the pool too often at changing places, and are copied from then on.
    pub demotions: u64,
    /// Steps that ended: explicitly, or because nothing of them was held any more.
    pub steps: u64,
    /// Inputs that were copied to where a graph reads them.
    pub copied_inputs: u64,
    /// The bytes of those.
    pub copied_bytes: u64,
    /// Inputs that a graph had changed where it reads them, and that were copied back.
    pub written_back: u64,
    /// Calls whose inputs were padded to a captured size.
    pub padded: u64,
    /// Outputs of earlier steps that were moved to memory of their own.
    pub moved_outputs: u64,
    /// Pools that were given up because of the limit of bytes.
    pub evictions: u64,
}

impl GraphTreeCounters {
    /// Copies an input to where a graph reads it.
    pub(super) fn copy(&mut self, own: &Tensor, input: &Tensor) -> Result<()> {
        own.copy_(input)?;
        self.copied_inputs += 1;
        self.copied_bytes += (own.elements() * own.dtype().size_bytes()) as u64;
        Ok(())
    }
}

/// What a decision was about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DecisionKind {
    /// A graph was recorded.
    Record,
    /// A graph was recorded where there was one, which did not fit.
    Rerecord,
    /// An input is copied from now on.
    Demote,
    /// A call, or all calls from now on, run without a graph.
    Eager,
    /// A pool was given up.
    Evict,
}

/// A decision, with its reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    /// The name of the function.
    pub function: String,
    /// What was decided.
    pub kind: DecisionKind,
    /// Why.
    pub reason: String,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.kind {
            DecisionKind::Record => "recorded",
            DecisionKind::Rerecord => "recorded again",
            DecisionKind::Demote => "input demoted",
            DecisionKind::Eager => "run eagerly",
            DecisionKind::Evict => "evicted",
        };
        write!(f, "{}: {verb}: {}", self.function, self.reason)
    }
}

/// The last decisions, oldest first.
#[derive(Debug, Default)]
pub(super) struct DecisionLog(VecDeque<Decision>);

impl DecisionLog {
    pub(super) fn push(&mut self, function: &str, kind: DecisionKind, reason: String) {
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(Decision { function: function.to_owned(), kind, reason });
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Decision> {
        self.0.iter()
    }
}
