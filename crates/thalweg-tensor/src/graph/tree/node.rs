//! One recorded graph of a tree: what it assumes, and its replay.

use std::fmt;

use rustc_hash::FxHashMap;
use thalweg_ir::Layout;
use thalweg_runtime::graph::PoolState;
use thalweg_runtime::{DevicePointer, Graph, GraphPool, Label, OutputHandle, Result, Stream};

use super::counters::GraphTreeCounters;
use super::function::{Fitted, Key};
use crate::graph::outputs::Outputs;
use crate::tensor::Tensor;

/// A node of a grove, by its place in the list.
pub(super) type NodeId = usize;

/// A recorded graph, in its place behind the graphs that were replayed before it.
pub(super) struct Node {
    pub(super) graph: Graph,
    pub(super) rules: Vec<InputRule>,
    pub(super) outputs: Outputs,
    /// Memory of earlier graphs of the path that nobody held when this one was recorded, and that it may overwrite: by the depth
    /// of the graph, and the index of its memory.
    pub(super) expected_dead: Vec<(usize, usize)>,
    /// The pool behind the recording, with the outputs alive.
    pub(super) state: PoolState,
    /// The stream whose memory the copied inputs are.
    pub(super) home: Stream,
    pub(super) children: FxHashMap<Key, Vec<NodeId>>,
    pub(super) last_used: u64,
}

/// How a graph gets an input.
pub(super) enum InputRule {
    /// It reads and writes the caller's tensor, which must lie where it lay: its memory's beginning, and its layout there.
    InPlace { base: DevicePointer, layout: Layout, is_managed: bool, is_written: bool },
    /// The input is copied to a tensor of the graph's, and back if the graph writes it.
    Copied { own: Tensor, is_written: bool },
}

impl InputRule {
    /// Whether the graph reads a tensor of its own.
    pub(super) fn is_copied(&self) -> bool {
        matches!(self, Self::Copied { .. })
    }

    /// Whether the caller's tensor is not needed once it has been copied.
    pub(super) fn is_only_copied(&self) -> bool {
        matches!(self, Self::Copied { is_written: false, .. })
    }
}

/// Why a graph cannot be replayed now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mismatch {
    /// A static input lies elsewhere.
    StaticInput(usize),
    /// Memory that it reads was given back since, whatever lies there now: of a static input, mostly.
    DeadInput,
    /// An input that was an output of an earlier graph lies elsewhere.
    ManagedInput(usize),
    /// An output of an earlier graph is alive that was dead at the recording.
    LiveOutput { depth: usize },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StaticInput(index) => write!(f, "static input {index} lies at another address"),
            Self::DeadInput => f.write_str("memory that the graph reads has been given back"),
            Self::ManagedInput(index) => {
                write!(f, "input {index}, which was an output of an earlier graph, lies at another address")
            }
            Self::LiveOutput { depth } => {
                write!(
                    f,
                    "an output of the {depth}. graph of the path is alive that was dead at the recording"
                )
            }
        }
    }
}

impl Node {
    /// Whether the assumptions of the recording hold.
    pub(super) fn mismatch(
        &self,
        inputs: &[Tensor],
        is_dead: impl Fn(usize, usize) -> bool,
    ) -> Option<Mismatch> {
        if !self.graph.contract().is_kept() {
            return Some(Mismatch::DeadInput);
        }
        for (index, (rule, input)) in self.rules.iter().zip(inputs).enumerate() {
            match rule {
                InputRule::InPlace { base, layout, is_managed, .. } => {
                    let is_there = input.storage().buffer.pointer() == *base && input.layout() == layout;
                    match (is_there, is_managed) {
                        (true, _) => {}
                        (false, true) => return Some(Mismatch::ManagedInput(index)),
                        (false, false) => return Some(Mismatch::StaticInput(index)),
                    }
                }
                InputRule::Copied { .. } => {}
            }
        }
        let live = self.expected_dead.iter().find(|&&(depth, memory)| !is_dead(depth, memory));
        live.map(|&(depth, _)| Mismatch::LiveOutput { depth: depth + 1 })
    }

    /// Copies the inputs that are copied, and lets go of those that are not written back.
    pub(super) fn read(
        &self,
        fitted: &mut Fitted,
        stream: &Stream,
        counters: &mut GraphTreeCounters,
    ) -> Result<()> {
        for (index, rule) in self.rules.iter().enumerate() {
            let InputRule::Copied { own, is_written } = rule else { continue };
            if own.shares_storage_with(&fitted.inputs[index]) {
                // Copied for the recording already.
                continue;
            }
            counters.copy(own, &fitted.inputs[index])?;
            if *stream != self.home {
                own.record_stream(stream);
            }
            if !is_written {
                fitted.replace(index, own.clone());
            }
        }
        Ok(())
    }

    /// Replays the graph: the outputs, and the lender's side of them.
    pub(super) fn replay(
        &self,
        pool: &GraphPool,
        fitted: &Fitted,
        stream: &Stream,
        label: Label,
        counters: &mut GraphTreeCounters,
    ) -> Result<(Vec<Tensor>, Vec<OutputHandle>)> {
        let lending = self.outputs.lend(pool, stream, label);
        self.graph.replay()?;
        counters.replays += 1;
        let mut read = Vec::new();
        for (index, rule) in self.rules.iter().enumerate() {
            match rule {
                InputRule::InPlace { is_written, .. } => {
                    if *is_written {
                        fitted.inputs[index].bump_version();
                    }
                    read.push(fitted.inputs[index].clone());
                }
                InputRule::Copied { own, is_written } => {
                    if *is_written {
                        fitted.write_back(index, own)?;
                        counters.written_back += 1;
                    }
                    read.push(own.clone());
                }
            }
        }
        let is_callers = |index: usize| matches!(self.rules[index], InputRule::InPlace { .. });
        let outputs = self.outputs.results(&lending, &read, is_callers)?;
        Ok((outputs, lending.loans))
    }

    /// The words for outputs that are still held: which, of how many.
    pub(super) fn describe_outputs(&self, memory: usize) -> String {
        let list: Vec<String> = self.outputs.results_in(memory).iter().map(ToString::to_string).collect();
        format!("output {}", list.join(", "))
    }
}
