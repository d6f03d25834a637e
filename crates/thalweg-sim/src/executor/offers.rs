//! The commands that a controlled machine can choose from.

use smallvec::SmallVec;
use thalweg_driver::Label;

use super::command::{Body, Claim, CommandId};
use super::plug::Gate;
use super::snapshot::{Snapshot, is_update};
use super::task::Work;
use super::{Detail, Executor, Holder, Job, conflict};
use crate::memory::Memory;
use crate::schedules::{Actor, Touched};

/// A command that can be chosen.
pub(crate) struct Offer<'a> {
    pub(crate) index: u32,
    pub(crate) number: u64,
    /// The number of the command among its actor's commands.
    pub(crate) step: u64,
    pub(crate) actor: Actor,
    pub(crate) label: Label,
    pub(crate) is_needed: bool,
    pub(crate) touched: Touched<'a>,
}

impl<G: Gate> Executor<G> {
    /// Returns the commands that can run now, in order of submission.
    pub(crate) fn offers(&mut self, memory: &Memory) -> SmallVec<[u32; 8]> {
        let Self { ready, slots, running, waiting_claims, lost, details, .. } = self;
        let mut found: SmallVec<[u32; 8]> = SmallVec::new();
        for index in ready.all() {
            let slot = &mut slots[index as usize];
            let held = running.iter().chain(waiting_claims.iter());
            if slot.is_host_function() || slot.is_admissible(memory, lost, held) {
                found.push(index);
            }
        }
        let details = details.as_ref().expect("the machine is controlled");
        found.sort_unstable_by_key(|&index| details.commands[index as usize].number);
        found
    }

    /// Returns the details of a command that `offers` returned.
    pub(crate) fn offer(&self, index: u32) -> Offer<'_> {
        let slot = &self.slots[index as usize];
        let Some(Body::Task(task)) = &slot.body else { unreachable!("only tasks are ready") };
        let details = self.details.as_ref().expect("the machine is controlled");
        let &Detail { number, index: step, actor, is_needed, .. } = &details.commands[index as usize];
        let touched = match &slot.resolved {
            Some((_, resolved)) if !slot.is_host_function() => Touched::Pieces(&resolved.pieces),
            _ => Touched::Anything,
        };
        Offer { index, number, step, actor, label: task.label, is_needed, touched }
    }

    /// Takes a command that `offers` returned.
    pub(crate) fn take_chosen(&mut self, index: u32, memory: &Memory) -> Job {
        self.ready.remove(index);
        let slot = &self.slots[index as usize];
        if slot.is_host_function() {
            return self.start_host(index);
        }
        let mut job = self.start(index, memory);
        let details = self.details.as_mut().expect("the machine is controlled");
        job.snapshot = details.commands[index as usize].snapshot.take();
        job
    }

    /// Returns whether it makes a difference to begin a command that `offers` returned now and to end it later: whether the
    /// command is an update that conflicts with another of these commands.
    pub(crate) fn can_begin(&self, index: u32, offers: &[u32]) -> bool {
        let slot = &self.slots[index as usize];
        let Some(Body::Task(task)) = &slot.body else { return false };
        let details = self.details.as_ref().expect("the machine is controlled");
        if !matches!(task.work, Work::Kernel { .. })
            || details.commands[index as usize].snapshot.is_some()
            || self.lost(task.device).is_some()
            || !is_update(&task.accesses)
        {
            return false;
        }
        let Some((_, own)) = &slot.resolved else { return false };
        offers.iter().filter(|&&other| other != index).any(|&other| {
            match &self.slots[other as usize].resolved {
                Some((_, resolved)) => conflict(&own.pieces, &resolved.pieces),
                None => false,
            }
        })
    }

    /// Begins a command for which `can_begin` holds: takes a copy of its memory.
    pub(crate) fn begin(&mut self, index: u32) {
        let slot = &self.slots[index as usize];
        let (Some(Body::Task(task)), Some((_, resolved))) = (&slot.body, &slot.resolved) else {
            unreachable!("`can_begin` holds")
        };
        // SAFETY: `offers` has resolved the accesses in this critical section, and returns only commands that do not
        // conflict with any running command; nothing begins to run before the critical section ends.
        let snapshot = unsafe { Snapshot::take(&task.accesses, resolved) };
        let details = self.details.as_mut().expect("the machine is controlled");
        details.commands[index as usize].snapshot = Some(snapshot);
    }

    /// Returns whether there is a host function that is not complete.
    pub(crate) fn has_host_functions(&self) -> bool {
        self.details.as_ref().is_some_and(|details| details.host_functions > 0)
    }

    /// Marks these commands, for which a host thread waits, and all their predecessors as needed.
    pub(crate) fn need(&mut self, commands: &[CommandId]) {
        let mut open: Vec<CommandId> = commands.to_vec();
        while let Some(id) = open.pop() {
            if self.is_done(id) {
                continue;
            }
            let details = self.details.as_mut().expect("the machine is controlled");
            let detail = &mut details.commands[id.index as usize];
            if !std::mem::replace(&mut detail.is_needed, true) {
                open.extend_from_slice(&detail.predecessors);
                open.extend(self.gate.partners(id.index));
            }
        }
    }

    /// Numbers the commands from 1 on again, for a new run.
    pub(crate) fn restart_numbers(&mut self) {
        if let Some(details) = &mut self.details {
            (details.number, details.ended) = (0, 0);
            details.counts.clear();
        }
    }

    /// Returns the label and the actor of a command for reports, if it is a task that has not begun.
    pub(crate) fn describe(&self, id: CommandId) -> Option<(Label, Actor)> {
        let slot = &self.slots[id.index as usize];
        let detail = &self.details.as_ref()?.commands[id.index as usize];
        match &slot.body {
            Some(Body::Task(task)) if slot.generation == id.generation => Some((task.label, detail.actor)),
            _ => None,
        }
    }

    /// Returns whether `try_hold` would succeed.
    pub(crate) fn can_hold(&self, claim: Claim) -> bool {
        let wanted = self.waiting_claims.iter().find(|held| held.holder == Holder::Host(claim));
        wanted.is_some_and(|wanted| !self.running.iter().any(|held| conflict(&held.pieces, &wanted.pieces)))
    }

    /// Withdraws a claim that is not held yet.
    pub(crate) fn withdraw(&mut self, claim: Claim) {
        self.waiting_claims.retain(|held| held.holder != Holder::Host(claim));
    }
}
