//! A node of a graph tree: a recorded graph, its invariants, and its replay.

use std::fmt;

use rustc_hash::FxHashMap;
use thalweg_ir::Layout;
use thalweg_runtime::graph::PoolState;
use thalweg_runtime::{DevicePointer, Graph, GraphPool, Label, OutputHandle, Result, Stream};

use super::counters::GraphTreeCounters;
use super::function::{CallInputs, CallKey};
use crate::graph::outputs::Outputs;
use crate::tensor::Tensor;

/// The identifier of a node: its index in the list of its forest.
pub(super) type NodeId = usize;

/// A recorded graph that follows the graphs replayed before it (PyTorch: `CUDAGraphNode`).
pub(super) struct Node {
    pub(super) graph: Graph,
    /// The rule of each input.
    pub(super) rules: Vec<InputRule>,
    pub(super) outputs: Outputs,
    /// The memory of outputs of the path that were dead at the recording, and that the graph may overwrite: by depth of the node and
    /// index of its memory.
    pub(super) expected_dead: Vec<(usize, usize)>,
    /// The checkpoint of the pool after the recording, with the node's outputs alive.
    pub(super) state: PoolState,
    /// The stream that the memory of the graph's own inputs belongs to.
    pub(super) input_stream: Stream,
    pub(super) children: FxHashMap<CallKey, Vec<NodeId>>,
    /// The number of the call that last replayed the node.
    pub(super) last_used: u64,
}

/// The way in which a graph receives an input.
pub(super) enum InputRule {
    /// The graph reads and writes the caller's tensor, which must have this address and layout.
    InPlace { base: DevicePointer, layout: Layout, is_managed: bool, is_written: bool },
    /// The input is copied to the graph's own tensor, and back if the graph writes it.
    Copied { own: Tensor, is_written: bool },
}

impl InputRule {
    /// Returns whether the graph reads its own copy of the input.
    pub(super) fn is_copied(&self) -> bool {
        matches!(self, Self::Copied { .. })
    }

    /// Returns whether the caller's tensor is not needed once it has been copied.
    pub(super) fn is_only_copied(&self) -> bool {
        matches!(self, Self::Copied { is_written: false, .. })
    }
}

/// The invariant that keeps a graph from being replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mismatch {
    /// A static input has another address.
    StaticInput(usize),
    /// Memory that the graph reads has been freed since the recording, usually that of a static input.
    DeadInput,
    /// A managed input, an output of an earlier graph, has another address.
    ManagedInput(usize),
    /// An output of an earlier graph is alive that was dead at the recording.
    LiveOutput { depth: usize },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StaticInput(index) => write!(f, "static input {index} has another address"),
            Self::DeadInput => f.write_str("memory that the graph reads has been freed"),
            Self::ManagedInput(index) => {
                write!(f, "input {index}, which was an output of an earlier graph, has another address")
            }
            Self::LiveOutput { depth } => {
                write!(f, "an output of graph {depth} of the path is alive, which was dead at the recording")
            }
        }
    }
}

impl Node {
    /// Returns the first invariant that does not hold, if there is one.
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
                    let is_there = input.storage().pointer() == *base && input.layout() == layout;
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

    /// Copies inputs to the graph's own tensors, and drops the caller's tensors that are not written back.
    pub(super) fn read(
        &self,
        inputs: &mut CallInputs,
        stream: &Stream,
        counters: &mut GraphTreeCounters,
    ) -> Result<()> {
        for (index, rule) in self.rules.iter().enumerate() {
            let InputRule::Copied { own, is_written } = rule else { continue };
            if own.shares_storage_with(&inputs.tensors[index]) {
                // The input was copied for the recording.
                continue;
            }
            counters.copy(own, &inputs.tensors[index])?;
            if *stream != self.input_stream {
                own.record_stream(stream);
            }
            if !is_written {
                inputs.replace(index, own.clone());
            }
        }
        Ok(())
    }

    /// Replays the graph, and returns the outputs with their handles.
    pub(super) fn replay(
        &self,
        pool: &GraphPool,
        inputs: &CallInputs,
        stream: &Stream,
        label: Label,
        counters: &mut GraphTreeCounters,
    ) -> Result<(Vec<Tensor>, Vec<OutputHandle>)> {
        let reconstructed = self.outputs.reconstruct(pool, stream, label);
        self.graph.replay()?;
        counters.replays += 1;
        let mut read = Vec::new();
        for (index, rule) in self.rules.iter().enumerate() {
            match rule {
                InputRule::InPlace { is_written, .. } => {
                    if *is_written {
                        inputs.tensors[index].bump_version();
                    }
                    read.push(inputs.tensors[index].clone());
                }
                InputRule::Copied { own, is_written } => {
                    if *is_written {
                        inputs.write_back(index, own)?;
                        counters.written_back += 1;
                    }
                    read.push(own.clone());
                }
            }
        }
        let is_callers = |index: usize| matches!(self.rules[index], InputRule::InPlace { .. });
        let outputs = self.outputs.results(&reconstructed, &read, is_callers)?;
        Ok((outputs, reconstructed.handles))
    }

    /// Returns a description of the outputs in one memory of the pool.
    pub(super) fn describe_outputs(&self, memory: usize) -> String {
        let list: Vec<String> = self.outputs.results_in(memory).iter().map(ToString::to_string).collect();
        format!("output {}", list.join(", "))
    }
}
