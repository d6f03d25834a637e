//! Graphs of one pool that overwrite each other's outputs, and the pool's policy for it.
//!
//! Graphs that share a pool share addresses: what one needs only while it runs, another may use as well. An output is safe
//! from the graphs that are captured while it is held. But a graph that was captured *earlier* may use the very addresses
//! for something in between, and when it is replayed after the other, the output is gone:
//!
//! ```text
//! capture A   [ between ][ output a ]            `between` is free at the end of A
//! capture B   [ output b ][ output a ]           B's output has its place
//! replay  A, B, A                                the second A overwrites output b
//! ```
//!
//! Which graph overwrites which output is known when a graph joins the pool, from the ranges that its commands write. So
//! a graph that overwrites nothing pays one load per replay, and one that does looks at the outputs in its way: an output is
//! in danger if its buffer is held, and it was replayed and not [released](super::Graph::release_outputs) since. What
//! happens then is the pool's [`OverwritePolicy`].
//!
//! An output that was overwritten when it was not wanted is *lost* until its graph is replayed again. A graph that was captured
//! to read it is not replayed meanwhile.
//!
//! What is not here: the order of replays on different streams, which is the caller's affair as for any other work.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_driver::{DevicePointer, Label};

use super::contract::{Contract, InputKind, Output};
use super::ranges::Ranges;
use super::report::GraphMemory;
use crate::{Buffer, Error, Result, Stream};

/// The policy for when a replay would overwrite a live output of another graph of its pool.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum OverwritePolicy {
    /// The replay is an error, before anything is launched.
    #[default]
    Refuse,
    /// The output is copied aside before the replay and back behind it: two copies on the device of what overlaps, in the
    /// order of the replay's stream, and memory for it meanwhile.
    Preserve,
    /// Nothing: the caller knows which outputs are still wanted.
    Unchecked,
}

/// A graph as a part of its pool.
#[derive(Debug)]
pub(super) struct Member {
    number: u64,
    pub(super) memory: GraphMemory,
    /// The ranges of its own memory that its commands write.
    written: Ranges,
    /// The ranges of it that are left in the end.
    left: Ranges,
    outputs: Vec<Left>,
    /// The graphs of the pool whose outputs it reads, with those outputs.
    reads: Vec<Reads>,
    /// Whether it was replayed, and its outputs were not released since.
    wanted: AtomicBool,
    /// Whether an output is lost.
    any_lost: AtomicBool,
    /// Whether a replay overwrites outputs of others.
    overwrites: AtomicBool,
    /// The graph is dropped.
    gone: AtomicBool,
}

/// Outputs of another graph that a graph reads.
#[derive(Debug)]
struct Reads {
    producer: Arc<Member>,
    /// Their places among its outputs, with the first command that reads them.
    outputs: Vec<(usize, Label)>,
}

/// An output in the pool.
#[derive(Debug)]
struct Left {
    output: Output,
    /// Overwritten since its graph was replayed.
    lost: AtomicBool,
}

impl Left {
    fn range(&self) -> (u64, u64) {
        (self.output.address, self.output.address + self.output.size_bytes)
    }
}

impl Member {
    /// Releases the last replay's outputs.
    pub(super) fn release_outputs(&self) {
        self.wanted.store(false, Ordering::Release);
    }

    /// Removes a graph that is dropped. Its outputs may live on.
    pub(super) fn leave(&self) {
        self.gone.store(true, Ordering::Release);
    }

    fn is_needed(&self) -> bool {
        !self.gone.load(Ordering::Acquire) || self.outputs.iter().any(|left| left.output.is_held())
    }
}

/// A part of an output that another graph's replay overwrites.
#[derive(Debug)]
struct Hazard {
    victim: Arc<Member>,
    output: usize,
    start: u64,
    end: u64,
}

impl Hazard {
    fn left(&self) -> &Left {
        &self.victim.outputs[self.output]
    }

    /// Returns whether the output is still wanted.
    fn is_imminent(&self) -> bool {
        self.victim.wanted.load(Ordering::Acquire) && self.left().output.is_held()
    }
}

/// The graphs of one pool.
#[derive(Debug)]
pub(super) struct Members {
    policy: OverwritePolicy,
    next: AtomicU64,
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    members: Vec<Arc<Member>>,
    /// By the number of the graph that overwrites.
    hazards: FxHashMap<u64, Vec<Hazard>>,
}

/// The outputs that were put aside before a replay, each with the address that it goes back to.
#[derive(Default)]
pub(super) struct Kept(SmallVec<[(Buffer, DevicePointer); 1]>);

impl Kept {
    fn holds(&self, hazard: &Hazard) -> bool {
        self.0.iter().any(|(_, start)| start.address() == hazard.start)
    }
}

impl Members {
    pub(super) fn new(policy: OverwritePolicy) -> Self {
        Self { policy, next: AtomicU64::new(0), books: Mutex::default() }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a graph was captured into the pool.
    pub(super) fn join(
        &self,
        contract: &Contract,
        written: Ranges,
        left: Ranges,
        memory: GraphMemory,
    ) -> Arc<Member> {
        let mut books = self.books();
        books.prune();
        let lost = || AtomicBool::new(false);
        let outputs =
            contract.outputs().iter().map(|output| Left { output: output.clone(), lost: lost() }).collect();
        let member = Arc::new(Member {
            number: self.next.fetch_add(1, Ordering::Relaxed),
            memory,
            written,
            left,
            outputs,
            reads: books.read_by(contract),
            wanted: AtomicBool::new(false),
            any_lost: AtomicBool::new(false),
            overwrites: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        });
        if self.policy != OverwritePolicy::Unchecked {
            let others = books.members.clone();
            others.iter().for_each(|other| {
                books.note_hazards(other, &member);
                books.note_hazards(&member, other);
            });
        }
        books.members.push(Arc::clone(&member));
        member
    }

    /// Returns what the graphs that are there take of memory, oldest first.
    pub(super) fn memory(&self) -> Vec<GraphMemory> {
        let books = self.books();
        let there = books.members.iter().filter(|member| !member.gone.load(Ordering::Acquire));
        there.map(|member| member.memory.clone()).collect()
    }

    /// Returns the graph is about to be replayed on a stream.
    ///
    /// # Errors
    /// If an output that it reads is lost; if it would overwrite one that is wanted, and that is to be refused; or if there is
    /// no room to keep it.
    #[inline]
    pub(super) fn before_replay(&self, member: &Member, stream: &Stream, label: Label) -> Result<Kept> {
        for reads in &member.reads {
            if reads.producer.any_lost.load(Ordering::Acquire) {
                reads.check()?;
            }
        }
        if member.overwrites.load(Ordering::Acquire) {
            return self.protect(member, stream, label);
        }
        Ok(Kept::default())
    }

    /// Puts what is in danger aside, or refuses.
    #[cold]
    fn protect(&self, member: &Member, stream: &Stream, label: Label) -> Result<Kept> {
        let books = self.books();
        let imminent = books.hazards.get(&member.number).into_iter().flatten();
        let imminent: Vec<&Hazard> = imminent.filter(|hazard| hazard.is_imminent()).collect();
        if self.policy == OverwritePolicy::Refuse && !imminent.is_empty() {
            return Err(refusal(&imminent));
        }
        let mut kept = Kept::default();
        for hazard in imminent {
            let (start, bytes) = (DevicePointer::new(hazard.start), hazard.end - hazard.start);
            let aside = Buffer::labelled(stream, bytes, label)?;
            stream.copy_on_device(aside.pointer(), start, bytes, label)?;
            kept.0.push((aside, start));
        }
        Ok(kept)
    }

    /// Notes that the graph was launched on the stream.
    #[inline]
    pub(super) fn after_replay(
        &self,
        member: &Member,
        kept: Kept,
        stream: &Stream,
        label: Label,
    ) -> Result<()> {
        if member.overwrites.load(Ordering::Acquire) {
            self.note_losses(member, &kept);
        }
        if member.any_lost.swap(false, Ordering::AcqRel) {
            member.outputs.iter().for_each(|left| left.lost.store(false, Ordering::Release));
        }
        member.wanted.store(true, Ordering::Release);
        for (aside, start) in kept.0 {
            stream.copy_on_device(start, aside.pointer(), aside.size_bytes(), label)?;
        }
        Ok(())
    }

    #[cold]
    fn note_losses(&self, member: &Member, kept: &Kept) {
        let books = self.books();
        for hazard in books.hazards.get(&member.number).into_iter().flatten() {
            if !kept.holds(hazard) {
                hazard.left().lost.store(true, Ordering::Release);
                hazard.victim.any_lost.store(true, Ordering::Release);
            }
        }
    }
}

impl Books {
    /// Forgets the graphs that are dropped, and of whose outputs nothing is left.
    fn prune(&mut self) {
        self.members.retain(|member| member.is_needed());
        let members = &self.members;
        self.hazards.retain(|number, hazards| {
            hazards.retain(|hazard| hazard.victim.is_needed());
            members.iter().any(|member| member.number == *number && !member.gone.load(Ordering::Acquire))
        });
    }

    /// Returns the outputs of others that a graph reads.
    fn read_by(&self, contract: &Contract) -> Vec<Reads> {
        let mut reads: Vec<Reads> = Vec::new();
        let of_pool = contract.inputs().iter().filter(|input| input.kind == InputKind::Pool && input.is_read);
        for input in of_pool {
            // The youngest that left something there: an older one's output is gone.
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
            // Only what the victim writes there: what it leaves untouched is not its output.
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

impl Reads {
    /// Checks that the outputs that the graph reads are still there.
    #[cold]
    fn check(&self) -> Result<()> {
        for (output, label) in &self.outputs {
            let Left { output, lost } = &self.producer.outputs[*output];
            if lost.load(Ordering::Acquire) {
                return Err(Error::invalid(format!(
                    "the graph reads {} bytes at {:#x} ({label}), which another graph of the pool left there, and which a \
                     third one has overwritten since: replay the graph that makes them first, or give the graphs pools of \
                     their own",
                    output.size_bytes, output.address
                )));
            }
        }
        Ok(())
    }
}

fn refusal(hazards: &[&Hazard]) -> Error {
    let Output { address, size_bytes, label, .. } = &hazards[0].left().output;
    let more = match hazards.len() {
        1 => String::new(),
        count => format!(", and {} more", count - 1),
    };
    Error::invalid(format!(
        "the replay would overwrite {size_bytes} bytes at {address:#x} ({label}){more}: live outputs of a graph that shares the \
         pool and was captured later. Copy what is still needed (`Buffer::duplicate`) and call `release_outputs` on that \
         graph; or give the graphs pools of their own; or let the pool keep such outputs by copying (`OverwritePolicy::Preserve`)"
    ))
}
