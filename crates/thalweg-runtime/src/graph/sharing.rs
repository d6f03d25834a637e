//! Graphs of one pool that overwrite each other's outputs, and the pool's policy for it.
//!
//! Graphs that share a pool share addresses: memory that one needs only while it runs may be used by another as well. An output
//! is safe from graphs that are captured while it is held. But a graph that was captured *earlier* may use the same addresses for
//! intermediate values, and when it is replayed after the other, the output is gone:
//!
//! ```text
//! capture A   [ between ][ output a ]            `between` is free at the end of A
//! capture B   [ output b ][ output a ]           B's output has its place
//! replay  A, B, A                                the second A overwrites output b
//! ```
//!
//! The outputs that a graph overwrites are known when it joins the pool, from the ranges that its commands write. So a graph that
//! overwrites nothing pays one load per replay, and one that does checks the outputs in its way. An output is in danger if its
//! buffer is held, and it was replayed and not [released](super::Graph::release_outputs) since. Then the pool's
//! [`OverwritePolicy`] applies.
//!
//! An output that was overwritten after it was released is *lost* until its graph is replayed again. A graph that was captured to
//! read it is not replayed meanwhile.
//!
//! The order of replays on different streams is not checked here: as for any other work, it is the caller's responsibility.

use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use thalweg_driver::{DevicePointer, Label};

use super::contract::Output;
use super::members::{Hazard, Left, Member, Members, OverwritePolicy, Reads};
use crate::{Buffer, Error, Result, Stream};
use crate::{invalid, refuse_if};

/// The outputs that were copied aside before a replay, each with the address that it is copied back to.
#[derive(Default)]
pub(super) struct SavedOutputs(SmallVec<[(Buffer, DevicePointer); 1]>);

impl SavedOutputs {
    fn holds(&self, hazard: &Hazard) -> bool {
        self.0.iter().any(|(_, start)| start.address() == hazard.start)
    }
}

impl Members {
    /// Prepares a replay of the graph on a stream: copies aside the outputs in its way that must be kept.
    ///
    /// # Errors
    /// If an output that the graph reads is lost; if the replay would overwrite an output that is needed, and the policy refuses
    /// that; or if there is not enough memory to keep it.
    #[inline]
    pub(super) fn before_replay(
        &self,
        member: &Member,
        stream: &Stream,
        label: Label,
    ) -> Result<SavedOutputs> {
        for reads in &member.reads {
            if reads.producer.any_lost.load(Ordering::Acquire) {
                reads.check()?;
            }
        }
        if member.overwrites.load(Ordering::Acquire) {
            return self.protect(member, stream, label);
        }
        Ok(SavedOutputs::default())
    }

    /// Copies the outputs in danger aside, or refuses the replay.
    #[cold]
    fn protect(&self, member: &Member, stream: &Stream, label: Label) -> Result<SavedOutputs> {
        let accounts = self.accounts();
        let imminent = accounts.hazards.get(&member.number).into_iter().flatten();
        let imminent: Vec<&Hazard> = imminent.filter(|hazard| hazard.is_imminent()).collect();
        if self.policy == OverwritePolicy::Refuse && !imminent.is_empty() {
            return Err(refusal(&imminent));
        }
        let mut kept = SavedOutputs::default();
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
        kept: SavedOutputs,
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
    fn note_losses(&self, member: &Member, kept: &SavedOutputs) {
        let accounts = self.accounts();
        for hazard in accounts.hazards.get(&member.number).into_iter().flatten() {
            if !kept.holds(hazard) {
                hazard.left().lost.store(true, Ordering::Release);
                hazard.victim.any_lost.store(true, Ordering::Release);
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
            refuse_if!(
                lost.load(Ordering::Acquire),
                "the graph reads {} bytes at {:#x} ({label}), which another graph of the pool left there, and which a \
                 third one has overwritten since: replay the graph that makes them first, or give the graphs pools of \
                 their own",
                output.size_bytes,
                output.address
            );
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
    invalid!(
        "the replay would overwrite {size_bytes} bytes at {address:#x} ({label}){more}: live outputs of a graph that shares the \
         pool and was captured later. Copy what is still needed (`Tensor::deep_clone`, `Buffer::duplicate`) and call `release_outputs` on that \
         graph; or give the graphs pools of their own; or let the pool keep such outputs by copying (`OverwritePolicy::Preserve`)"
    )
}
