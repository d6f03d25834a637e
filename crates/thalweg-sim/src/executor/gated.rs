//! The executor's calls of the traits that plug into it.

use super::command::{Body, CommandId};
use super::plug::{Failure, Gate, Next, Verdict, Web};
use super::{Details, Executor};

impl<G: Gate> Executor<G> {
    /// Runs the commands that the gate lets through, and fails the commands that it gives up. Failed commands are completed with
    /// the next marks.
    pub(super) fn open_gate(&mut self) {
        while let Some(verdict) = self.gate.verdict(&self.lost) {
            match verdict {
                Verdict::Fails(failure) => self.give_up(failure),
                Verdict::Runs { slots, task } => {
                    let first = slots[0];
                    if let Some(Details { commands, .. }) = self.details.as_deref_mut() {
                        let is_needed = slots.iter().any(|&slot| commands[slot as usize].is_needed);
                        commands[first as usize].is_needed = is_needed;
                    }
                    let slot = &mut self.slots[first as usize];
                    (slot.body, slot.resolved) = (Some(Body::Task(task)), None);
                    self.ready.push(slot.level, first);
                    self.wake_workers = true;
                }
            }
        }
    }

    fn give_up(&mut self, failure: Failure) {
        self.lose(&failure.devices, &failure.refusal);
        self.completing.extend(failure.released);
    }

    /// Checks gated commands whose wait may never end.
    pub(crate) fn review_gate(&mut self) {
        self.open_gate();
        self.complete_marks();
    }

    /// Gives up gated commands that wait for each other in a circle, unless something runs that could break it.
    pub(crate) fn break_circles(&mut self) {
        if self.ready.queued() > 0 || !self.running.is_empty() || !self.gate.may_wait_in_circle() {
            return;
        }
        while let Some(failure) = self.with_web(|gate, web| gate.find_circle(web)) {
            self.give_up(failure);
            self.review_gate();
        }
    }

    /// Describes in words which gated command waits for which others; empty if none waits.
    pub(crate) fn describe_gate(&mut self) -> String {
        self.with_web(|gate, web| gate.describe(web))
    }

    fn with_web<T>(&mut self, look: impl FnOnce(&mut G, &Web<'_>) -> T) -> T {
        let Self { slots, gate, .. } = self;
        let slots = &*slots;
        let successors = |slot: u32| &slots[slot as usize].successors[..];
        let is_done = |id: CommandId| slots[id.index as usize].generation != id.generation;
        look(gate, &Web { successors: &successors, is_done: &is_done })
    }

    /// Lets the step that was reached last queue its next commands. Returns whether there was such a step.
    ///
    /// The commands that a step queues may reach further steps, which wait until this is done: nothing here is re-entered.
    pub(super) fn take_step(&mut self) -> bool {
        if self.is_stepping {
            return false;
        }
        let Some((slot, step)) = self.reached.pop() else { return false };
        self.is_stepping = true;
        let next = if self.lost(step.device()).is_some() { Next::Done } else { step.next() };
        match next {
            Next::Done => self.retire(slot),
            Next::Fail(refusal) => {
                self.lose(&[step.device()], &refusal);
                self.open_gate();
                self.retire(slot);
            }
            Next::Queue { commands, origin, again } => {
                let commands = self.add_all(commands, None);
                let end = self.add(Body::Step(again, Some(slot)), origin, commands);
                self.follow(slot, end);
            }
        }
        self.is_stepping = false;
        self.spent.push(step);
        true
    }

    /// Makes the command in a slot complete after another one.
    fn follow(&mut self, slot: u32, end: CommandId) {
        let Some(details) = &mut self.details else { return };
        let first = &mut details.commands[slot as usize];
        first.predecessors.push(end);
        if first.is_needed {
            self.need(&[end]);
        }
    }
}
