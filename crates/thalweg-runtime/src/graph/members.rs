//! The graphs of one pool: which of the pool's memory each one writes, leaves and reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustc_hash::FxHashMap;
use thalweg_driver::Label;
use thalweg_lock::{Mutex, MutexGuard};

use super::contract::{Contract, InputKind, Output};
use super::ranges::Ranges;
use super::report::GraphMemory;

/// The policy for a replay that would overwrite a live output of another graph of its pool.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum OverwritePolicy {
    /// The replay returns an error before anything is launched.
    #[default]
    Refuse,
    /// The output is copied aside before the replay and back after it. This takes two copies of the overlapping part on the
    /// device, in the order of the replay's stream, and memory for it meanwhile.
    Preserve,
    /// Nothing is checked: the caller knows which outputs are still needed.
    Unchecked,
}

/// A graph as a part of its pool.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) number: u64,
    pub(super) memory: GraphMemory,
    /// The ranges of the graph's own memory that its commands write.
    pub(super) written: Ranges,
    /// The written ranges that hold the graph's results at its end.
    pub(super) left: Ranges,
    pub(super) outputs: Vec<Left>,
    /// The graphs of the pool whose outputs this graph reads, with those outputs.
    pub(super) reads: Vec<Reads>,
    /// Whether the graph was replayed and its outputs were not released since.
    pub(super) wanted: AtomicBool,
    /// Whether an output of the graph is lost.
    pub(super) any_lost: AtomicBool,
    /// Whether a replay of the graph overwrites outputs of other graphs.
    pub(super) overwrites: AtomicBool,
    /// Whether the graph is dropped.
    pub(super) gone: AtomicBool,
}

/// Outputs of another graph that a graph reads.
#[derive(Debug)]
pub(super) struct Reads {
    pub(super) producer: Arc<Member>,
    /// The indices of the outputs in the other graph, each with the first command that reads the output.
    pub(super) outputs: Vec<(usize, Label)>,
}

/// An output of a graph in the pool.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) output: Output,
    /// Whether the output was overwritten since its graph was replayed.
    pub(super) lost: AtomicBool,
}

impl Left {
    pub(super) fn range(&self) -> (u64, u64) {
        (self.output.address, self.output.address + self.output.size_bytes)
    }
}

impl Member {
    /// Releases the last replay's outputs.
    pub(super) fn release_outputs(&self) {
        self.wanted.store(false, Ordering::Release);
    }

    /// Removes a graph that is dropped. Its outputs may still be held.
    pub(super) fn leave(&self) {
        self.gone.store(true, Ordering::Release);
    }

    pub(super) fn is_needed(&self) -> bool {
        !self.gone.load(Ordering::Acquire) || self.outputs.iter().any(|left| left.output.is_held())
    }
}

/// A part of an output that another graph's replay overwrites.
#[derive(Debug)]
pub(super) struct Hazard {
    pub(super) victim: Arc<Member>,
    pub(super) output: usize,
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Hazard {
    pub(super) fn left(&self) -> &Left {
        &self.victim.outputs[self.output]
    }

    /// Returns whether the output is still needed.
    pub(super) fn is_imminent(&self) -> bool {
        self.victim.wanted.load(Ordering::Acquire) && self.left().output.is_held()
    }
}

/// The graphs of one pool.
#[derive(Debug)]
pub(super) struct Members {
    pub(super) policy: OverwritePolicy,
    pub(super) next: AtomicU64,
    pub(super) accounts: Mutex<Accounts>,
}

#[derive(Debug, Default)]
pub(super) struct Accounts {
    pub(super) members: Vec<Arc<Member>>,
    /// The hazards, by the number of the graph that overwrites.
    pub(super) hazards: FxHashMap<u64, Vec<Hazard>>,
}

impl Members {
    pub(super) fn new(policy: OverwritePolicy) -> Self {
        Self { policy, next: AtomicU64::new(0), accounts: Mutex::default() }
    }

    pub(super) fn accounts(&self) -> MutexGuard<'_, Accounts> {
        self.accounts.lock()
    }

    /// Returns the outputs of the pool's graphs that a graph reads, as inputs of kind `kind`.
    pub(super) fn reads(&self, contract: &Contract, kind: InputKind) -> Vec<Reads> {
        self.accounts().read_by(contract, kind)
    }

    /// Adds a graph that was captured into the pool and reads these outputs of other pools.
    pub(super) fn join(
        &self,
        contract: &Contract,
        mut reads: Vec<Reads>,
        written: Ranges,
        left: Ranges,
        memory: GraphMemory,
    ) -> Arc<Member> {
        let mut accounts = self.accounts();
        accounts.prune();
        reads.append(&mut accounts.read_by(contract, InputKind::Pool));
        let lost = || AtomicBool::new(false);
        let outputs =
            contract.outputs().iter().map(|output| Left { output: output.clone(), lost: lost() }).collect();
        let member = Arc::new(Member {
            number: self.next.fetch_add(1, Ordering::Relaxed),
            memory,
            written,
            left,
            outputs,
            reads,
            wanted: AtomicBool::new(false),
            any_lost: AtomicBool::new(false),
            overwrites: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        });
        if self.policy != OverwritePolicy::Unchecked {
            let others = accounts.members.clone();
            others.iter().for_each(|other| {
                accounts.note_hazards(other, &member);
                accounts.note_hazards(&member, other);
            });
        }
        accounts.members.push(Arc::clone(&member));
        member
    }

    /// Returns the memory use of the graphs of the pool, oldest first.
    pub(super) fn memory(&self) -> Vec<GraphMemory> {
        let accounts = self.accounts();
        let there = accounts.members.iter().filter(|member| !member.gone.load(Ordering::Acquire));
        there.map(|member| member.memory.clone()).collect()
    }
}

impl Accounts {
    /// Removes the graphs that are dropped and whose outputs are all gone.
    fn prune(&mut self) {
        self.members.retain(|member| member.is_needed());
        let members = &self.members;
        self.hazards.retain(|number, hazards| {
            hazards.retain(|hazard| hazard.victim.is_needed());
            members.iter().any(|member| member.number == *number && !member.gone.load(Ordering::Acquire))
        });
    }

    /// Returns the outputs of other graphs that a graph reads, as inputs of kind `kind`.
    fn read_by(&self, contract: &Contract, kind: InputKind) -> Vec<Reads> {
        let mut reads: Vec<Reads> = Vec::new();
        let of_pool = contract.inputs().iter().filter(|input| input.kind == kind && input.is_read);
        for input in of_pool {
            // Finds the youngest graph that left something there: an older one's output is gone.
            let producer = self.members.iter().rev().find_map(|member| {
                let holds = |left: &Left| left.output.address == input.address;
                Some((member, member.outputs.iter().position(holds)?))
            });
            let Some((producer, output)) = producer else { continue };
            match reads.iter_mut().find(|known| Arc::ptr_eq(&known.producer, producer)) {
                Some(known) => known.outputs.push((output, input.label)),
                None => {
                    let outputs = vec![(output, input.label)];
                    reads.push(Reads { producer: Arc::clone(producer), outputs });
                }
            }
        }
        reads
    }

    /// Notes which outputs of `victim` are overwritten by `writer`.
    fn note_hazards(&mut self, writer: &Member, victim: &Arc<Member>) {
        for (output, left) in victim.outputs.iter().enumerate() {
            let (start, end) = left.range();
            // Only the ranges that the victim writes: memory that it leaves untouched is not its output.
            for (start, end) in victim.left.overlaps(start, end) {
                for (start, end) in writer.written.overlaps(start, end) {
                    let hazard = Hazard { victim: Arc::clone(victim), output, start, end };
                    self.hazards.entry(writer.number).or_default().push(hazard);
                    writer.overwrites.store(true, Ordering::Release);
                }
            }
        }
    }
}
