//! Counters of a [`GraphTreeManager`](super::GraphTreeManager), and the log of its decisions.

use std::collections::VecDeque;
use std::fmt;

use thalweg_runtime::Result;

use crate::tensor::Tensor;

/// The number of decisions that the log keeps.
const REMEMBERED: usize = 256;

/// The counters of a [`GraphTreeManager`](super::GraphTreeManager).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GraphTreeCounters {
    /// Calls of functions.
    pub calls: u64,
    /// Calls that ran eagerly to warm up their function for their shapes.
    pub warm_ups: u64,
    /// Calls that ran eagerly because of a limit, because the function cannot be captured, or because no captured size is large enough.
    pub eager: u64,
    /// Calls inside a capture of the caller, which became part of that capture.
    pub inlined: u64,
    /// Graphs that were recorded.
    pub recordings: u64,
    /// Graphs that were replayed, including each new one.
    pub replays: u64,
    /// Variants that were recorded because a static input had moved or been freed.
    pub static_inputs_moved: u64,
    /// Variants that were recorded because a managed input, which is in the pool, had moved.
    pub managed_inputs_moved: u64,
    /// Variants that were recorded because an output was alive that the graph would overwrite.
    pub outputs_alive: u64,
    /// Managed inputs that moved too often, and are copied from then on.
    pub demotions: u64,
    /// Steps that ended.
    pub steps: u64,
    /// Inputs that were copied to a graph's own tensors.
    pub copied_inputs: u64,
    /// The number of bytes of the inputs that were copied to a graph's own tensors.
    pub copied_bytes: u64,
    /// Inputs that a graph changed, and that were copied back to the caller's tensors.
    pub written_back: u64,
    /// Calls whose inputs were padded to a captured size.
    pub padded: u64,
    /// Outputs of earlier steps that were moved to memory of their own.
    pub moved_outputs: u64,
    /// Pools that were evicted because of the limit of bytes.
    pub evictions: u64,
}

impl GraphTreeCounters {
    /// Copies an input to a graph's own tensor, and counts it.
    pub(super) fn copy(&mut self, own: &Tensor, input: &Tensor) -> Result<()> {
        own.copy_(input)?;
        self.copied_inputs += 1;
        self.copied_bytes += (own.elements() * own.dtype().size_bytes()) as u64;
        Ok(())
    }
}

/// The kind of a [`Decision`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DecisionKind {
    /// A graph was recorded.
    Record,
    /// A variant was recorded, because an invariant of the present graphs failed.
    Rerecord,
    /// A managed input is copied from now on.
    Demote,
    /// A call, or all calls from now on, run without a graph.
    Eager,
    /// A pool was evicted.
    Evict,
}

/// A decision of a [`GraphTreeManager`](super::GraphTreeManager), with its reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    /// The name of the function.
    pub function: String,
    /// The kind of the decision.
    pub kind: DecisionKind,
    /// The reason for the decision.
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

/// A log of the last decisions, oldest first.
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
